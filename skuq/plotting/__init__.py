"""Pictures of predictions, searches and teams: one Display a subject, as in scikit-learn.

Importing this package loads no matplotlib; drawing does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
