"""What a member is: functions that build Keras models, beside their search spaces."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_dense": ["DenseSkipSpace"],
        "_heads": ["CategoricalHead", "GaussianHead", "SquaredErrorHead"],
        "_keras_tuner": ["KerasTunerSpace"],
        "_mlp": ["build_mlp"],
        "_resolve": ["resolve_search_space"],
        "_search_space": [
            "OPTIMIZERS",
            "Categorical",
            "Decisions",
            "Integer",
            "Real",
            "SearchSpace",
            "Space",
            "training_hyperparameters",
        ],
    },
)
