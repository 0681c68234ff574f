"""Uncertainty-aware neural networks that behave like scikit-learn."""

import lazy_loader

__version__ = "0.1.0"

# Public names are loaded on first use: importing skuq loads no backend.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
