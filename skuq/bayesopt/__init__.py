"""Bayesian optimisation: what to ask next, from draws of a surrogate's function."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_acquisition": [
            "ACQUISITIONS",
            "Acquisition",
        ],
        "_loop": ["BayesianOptimizer", "OptimizationResult", "StepRecord"],
        "_maximize": ["maximize_acquisition"],
        "_milp": ["ReluReadout", "maximize_readout"],
        "_surrogate": ["OutputwiseRegressor", "posterior_of"],
    },
)
