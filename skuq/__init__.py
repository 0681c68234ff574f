"""Uncertainty-aware neural networks that behave like scikit-learn."""

import lazy_loader

__version__ = "0.1.0.dev0"

# Public names are loaded on first use: importing skuq loads no backend.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "bayesopt",
        "catalog",
        "datasets",
        "ensembles",
        "estimators",
        "exceptions",
        "fitted",
        "metrics",
        "networks",
        "persistence",
        "plotting",
        "predictive",
        "search",
        "tables",
        "training",
    ],
    submod_attrs={
        "estimators": [
            "AutoDEUQClassifier",
            "AutoDEUQRegressor",
            "CalibratedUncertaintyClassifier",
            "CalibratedUncertaintyRegressor",
            "DeepEnsembleClassifier",
            "DeepEnsembleRegressor",
            "HQEnsembleSelector",
            "HyperDeepEnsembleClassifier",
            "HyperDeepEnsembleRegressor",
            "MCDropoutClassifier",
            "MCDropoutRegressor",
            "NEONRegressor",
            "NESClassifier",
            "NESRegressor",
            "NOMURegressor",
            "OperatorEnsembleRegressor",
        ],
        "persistence": ["load", "save"],
    },
)
