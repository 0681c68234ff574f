"""What a member is: functions that build Keras models, beside their search spaces."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_cell_layers": ["build_cell_network"],
        "_cells": ["CellSpace"],
        "_dense": ["DenseSkipSpace"],
        "_epinet": ["EpiNet"],
        "_genotypes": ["AMOEBANET", "DARTS", "Cell", "Genotype"],
        "_heads": [
            "CategoricalHead",
            "GaussianHead",
            "GaussianMixtureHead",
            "PackedHead",
            "QuantileHead",
            "SquaredErrorHead",
            "StudentTHead",
        ],
        "_keras_tuner": ["KerasTunerSpace"],
        "_mlp": ["build_mlp"],
        "_nas_bench": ["NASBench201Space"],
        "_nomu": ["NomuHead", "build_mean", "build_nomu"],
        "_operator": ["OperatorNetwork"],
        "_operator_head": ["OperatorHead"],
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
        "_tabular": ["bin_edges", "build_tabular"],
        "_tabular_layers": [
            "CategoryEmbedding",
            "EnsembleDense",
            "FeatureScale",
            "NTKDense",
            "NumericEmbedding",
            "ParametricActivation",
            "Repeat",
        ],
        "_tabular_space": ["TabularSpace"],
        "_width_depth": ["WidthDepthSpace"],
        "_with_training": ["WithTraining"],
    },
)
