"""Results of a search: trial records, trained members, and the catalog that holds them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
