"""From a user's table to what networks train on: validated, split, standardised."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_preprocessing": ["TablePreprocessor"],
        "_scaling": ["ImageScaling", "NoScaling", "RobustScaling", "Scaling"],
        "_splits": ["split_rows"],
        "_target_transforms": ["TargetTransform"],
        "_training_data": ["TrainingData"],
    },
)
