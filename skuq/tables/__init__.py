"""From a user's table to what networks train on: validated, encoded, split, standardised."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_functions": ["FunctionInputs", "FunctionTargets"],
        "_inputs": ["ForeignInputs", "ImageInputs", "TableInputs"],
        "_preprocessing": ["TablePreprocessor"],
        "_rows": ["Rows", "check_groups", "read_rows", "read_validation_rows"],
        "_scaling": ["ImageScaling", "NoScaling", "RobustScaling", "Scaling", "TargetScaling"],
        "_splits": ["Splits", "make_splits", "split_rows"],
        "_target_transforms": ["TargetTransform"],
        "_targets": ["ClassTargets", "NumberTargets"],
        "_training_data": ["TrainingData"],
    },
)
