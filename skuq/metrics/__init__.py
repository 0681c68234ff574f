"""How good a prediction was: per sample first, mean second. Plain arrays in."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={"_regression": ["coverage_score", "crps_loss", "gaussian_nll_loss"]},
)
