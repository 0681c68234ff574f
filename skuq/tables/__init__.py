"""From a user's table to what networks train on: validated, encoded, split, standardised."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
