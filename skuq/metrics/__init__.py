"""Score predictions and their uncertainty, from plain arrays.

A smaller ``.._loss`` is better, and a larger ``.._score``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
