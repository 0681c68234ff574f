"""The classes of scikit-learn that files may hold as attributes, without skops."""

from __future__ import annotations

from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TimeSeriesSplit,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq._registry import saved_as

for _cls in (FrozenEstimator, Pipeline):
    saved_as(f"sklearn.{_cls.__name__}", kind="estimator")(_cls)
for _cls in (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LabelEncoder,
    LeaveOneGroupOut,
    LeaveOneOut,
    OneHotEncoder,
    OrdinalEncoder,
    ShuffleSplit,
    StandardScaler,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TimeSeriesSplit,
):
    saved_as(f"sklearn.{_cls.__name__}")(_cls)
