"""Fitted models, which predict independently of the estimators that trained them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
