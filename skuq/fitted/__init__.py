"""Fitted models, which predict independently of the estimators that trained them."""

import lazy_loader

# Classes that are not public and whose names are in files: see `skuq/_utils/_records.py`.
_load_saved, _, _SAVED = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_calibrated": [
            "AdaptedCalibration",
            "AdaptedClassCalibration",
            "Calibration",
            "ClassCalibration",
            "ConditionalCalibration",
            "FittedCalibrated",
            "Grouping",
        ],
        "_density_ratio": ["DensityRatio", "WeightedCalibration"],
        "_ensemble": ["DropoutPasses", "FittedEnsemble", "FittedTeam"],
        "_far": ["FarUncertainty"],
        "_learning": ["CalibrationRows", "GroupedCalibration"],
        "_nomu": ["FittedNomu"],
        "_operator": ["FittedOperator"],
    },
)
