"""Save estimators and catalogs to files that are safe to load."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_parts": ["MissingPart"],
        "_save": ["dumps", "load", "loads", "save"],
    },
)
