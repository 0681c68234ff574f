"""Predictive distributions: means, variances by source, quantiles, densities and draws."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Classes that are not public and whose names are in files: see `skuq/_utils/_records.py`.
_load_saved, _, _SAVED = lazy_loader.attach(
    __name__, submod_attrs={"_tracking": ["LogitTracker", "QuantileTracker"]}
)
