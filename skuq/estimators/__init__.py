"""The public face: scikit-learn estimators."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_api": ["UncertaintyClassifier", "UncertaintyRegressor"],
        "_autodeuq": ["AutoDEUQClassifier", "AutoDEUQRegressor"],
        "_calibrated": ["CalibratedUncertaintyClassifier", "CalibratedUncertaintyRegressor"],
        "_deep_ensemble": ["DeepEnsembleClassifier", "DeepEnsembleRegressor"],
        "_hq": ["HQEnsembleSelector"],
        "_hyper_ensemble": ["HyperDeepEnsembleClassifier", "HyperDeepEnsembleRegressor"],
        "_mc_dropout": ["MCDropoutClassifier", "MCDropoutRegressor"],
        "_neon": ["NEONRegressor"],
        "_nes": ["NESClassifier", "NESRegressor"],
        "_nomu": ["NOMURegressor"],
        "_operator_ensemble": ["OperatorEnsembleRegressor"],
    },
)
