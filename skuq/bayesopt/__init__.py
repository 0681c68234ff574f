"""Bayesian optimisation with surrogates whose functions can be drawn."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_acquisition": [
            "ACQUISITIONS",
            "Acquisition",
        ],
        "_maximize": ["maximize_acquisition"],
        "_milp": ["ReluReadout", "maximize_readout"],
        "_optimizer": ["BayesianOptimizer"],
        "_records": ["OptimizationResult", "StepRecord"],
        "_surrogate": ["OutputwiseRegressor", "posterior_of"],
    },
)
