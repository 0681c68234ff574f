"""Run searches: proposers, slots and the loop over trials. It is independent of networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
