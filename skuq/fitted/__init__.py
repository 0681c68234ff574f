"""Fitted models: everything that predicts, apart from the estimators that trained it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_calibrated": ["Calibration", "FittedCalibrated", "Temperature"],
        "_ensemble": ["DropoutPasses", "FittedEnsemble"],
        "_nomu": ["FittedNomu"],
        "_operator": ["FittedOperator"],
        "_protocol": ["Fitted"],
        "_team": ["FittedTeam"],
    },
)
