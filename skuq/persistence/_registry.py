"""The classes that files may name: nothing else is ever made of a file.

A file holds the name on the left, which stays when a class moves. What stands on the right is
imported; no word of a file is.
"""

from __future__ import annotations

import functools
import importlib

__all__ = ["ESTIMATORS", "class_of", "name_of"]

_ESTIMATORS = {
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
}

# What may be saved by itself, catalogs apart.
_WHOLE = {
    **{
        f"estimators.{name}": (f"skuq.estimators.{module}", name)
        for module, names in _ESTIMATORS.items()
        for name in names
    },
    "bayesopt.OutputwiseRegressor": ("skuq.bayesopt._surrogate", "OutputwiseRegressor"),
    "sklearn.Pipeline": ("sklearn.pipeline", "Pipeline"),
}
# Catalogs, and what is held by these and those.
_OTHERS = {
    "catalog.Catalog": ("skuq.catalog._catalog", "Catalog"),
    "catalog.FoldedMember": ("skuq.catalog._records", "FoldedMember"),
    "catalog.HeldOut": ("skuq.catalog._catalog", "HeldOut"),
    "catalog.Member": ("skuq.catalog._records", "Member"),
    "catalog.TrialRecord": ("skuq.catalog._records", "TrialRecord"),
    "ensembles.Selection": ("skuq.ensembles._selection", "Selection"),
    "ensembles.TeamSelection": ("skuq.ensembles._pruning", "TeamSelection"),
    "ensembles.Threshold": ("skuq.ensembles._pruning", "Threshold"),
    "estimators.FunctionScaling": ("skuq.estimators._functions", "FunctionScaling"),
    "estimators.GivenBase": ("skuq.estimators._given_base", "GivenBase"),
    "estimators.GivenMean": ("skuq.estimators._nomu_fit", "GivenMean"),
    "estimators.KnownNoise": ("skuq.estimators._nomu_fit", "KnownNoise"),
    "estimators.NomuNetwork": ("skuq.estimators._nomu_fit", "NomuNetwork"),
    "networks.CategoricalHead": ("skuq.networks._heads", "CategoricalHead"),
    "networks.Cell": ("skuq.networks._genotypes", "Cell"),
    "networks.CellSpace": ("skuq.networks._cells", "CellSpace"),
    "networks.Decisions": ("skuq.networks._search_space", "Decisions"),
    "networks.DenseSkipSpace": ("skuq.networks._dense", "DenseSkipSpace"),
    "networks.EpiNet": ("skuq.networks._epinet", "EpiNet"),
    "networks.GaussianHead": ("skuq.networks._heads", "GaussianHead"),
    "networks.GaussianMixtureHead": ("skuq.networks._heads", "GaussianMixtureHead"),
    "networks.Genotype": ("skuq.networks._genotypes", "Genotype"),
    "networks.NASBench201Space": ("skuq.networks._nas_bench", "NASBench201Space"),
    "networks.NomuHead": ("skuq.networks._nomu", "NomuHead"),
    "networks.OperatorHead": ("skuq.networks._operator_head", "OperatorHead"),
    "networks.OperatorNetwork": ("skuq.networks._operator", "OperatorNetwork"),
    "networks.PackedHead": ("skuq.networks._heads", "PackedHead"),
    "networks.QuantileHead": ("skuq.networks._heads", "QuantileHead"),
    "networks.SquaredErrorHead": ("skuq.networks._heads", "SquaredErrorHead"),
    "networks.StudentTHead": ("skuq.networks._heads", "StudentTHead"),
    "networks.TabularSpace": ("skuq.networks._tabular_space", "TabularSpace"),
    "networks.WidthDepthSpace": ("skuq.networks._width_depth", "WidthDepthSpace"),
    "networks.WithTraining": ("skuq.networks._with_training", "WithTraining"),
    "sklearn.FrozenEstimator": ("sklearn.frozen", "FrozenEstimator"),
    "sklearn.LabelEncoder": ("sklearn.preprocessing", "LabelEncoder"),
    "sklearn.OneHotEncoder": ("sklearn.preprocessing", "OneHotEncoder"),
    "sklearn.OrdinalEncoder": ("sklearn.preprocessing", "OrdinalEncoder"),
    **{
        f"sklearn.{name}": ("sklearn.model_selection", name)
        for name in (
            "GroupKFold",
            "GroupShuffleSplit",
            "KFold",
            "LeaveOneGroupOut",
            "LeaveOneOut",
            "ShuffleSplit",
            "StratifiedGroupKFold",
            "StratifiedKFold",
            "StratifiedShuffleSplit",
            "TimeSeriesSplit",
        )
    },
    "sklearn.StandardScaler": ("sklearn.preprocessing", "StandardScaler"),
    "space.Categorical": ("skuq._space", "Categorical"),
    "space.Integer": ("skuq._space", "Integer"),
    "space.Real": ("skuq._space", "Real"),
    "space.Space": ("skuq._space", "Space"),
    "tables.Affine": ("skuq.tables._scaling", "_Affine"),
    "tables.Codes": ("skuq.tables._preprocessing", "_Codes"),
    "tables.ImageScaling": ("skuq.tables._scaling", "ImageScaling"),
    "tables.Line": ("skuq.tables._target_transforms", "_Line"),
    "tables.NoScaling": ("skuq.tables._scaling", "NoScaling"),
    "tables.OneHot": ("skuq.tables._preprocessing", "_OneHot"),
    "tables.Power": ("skuq.tables._target_transforms", "_Power"),
    "tables.RobustScaling": ("skuq.tables._scaling", "RobustScaling"),
    "tables.Scaling": ("skuq.tables._scaling", "Scaling"),
    "tables.Scores": ("skuq.tables._target_transforms", "_Scores"),
    "tables.TablePreprocessor": ("skuq.tables._preprocessing", "TablePreprocessor"),
    "tables.TargetTransform": ("skuq.tables._target_transforms", "TargetTransform"),
}

_CLASSES = {**_WHOLE, **_OTHERS}

#: Names of what may be saved by itself, catalogs apart.
ESTIMATORS = frozenset(_WHOLE)


@functools.cache
def class_of(name: str) -> type | None:
    """The class of a stored name; None if there is none."""
    if name not in _CLASSES:
        return None
    module, attribute = _CLASSES[name]
    return getattr(importlib.import_module(module), attribute)


def name_of(cls: type) -> str | None:
    """The stored name of a class; None if it has none."""
    found = _names().get((cls.__module__, cls.__qualname__))
    if found is None and cls.__module__.startswith("sklearn."):  # whose modules move
        public = {class_of(name): name for name in _CLASSES if name.startswith("sklearn.")}
        found = public.get(cls)
    return found


@functools.cache
def _names():
    return {place: name for name, place in _CLASSES.items()}
