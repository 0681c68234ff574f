"""Scores of predictions and of their uncertainty, from plain arrays.

A ``.._loss`` is better when smaller, a ``.._score`` when larger.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
