"""Train configurations into ensemble members: recipes, jobs, compiled programs, the trainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
