"""From what a user gives to `fit` to rows of numbers: what all tabular estimators share."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils.validation import check_array, check_X_y

from skuq._params import check_sample_weight
from skuq.estimators._folds import out_of_fold_splits
from skuq.exceptions import SmallValidationWarning
from skuq.tables import split_rows

__all__ = [
    "Rows",
    "check_groups",
    "check_numbers",
    "check_validation_data",
    "check_weights",
    "fold_rows",
    "split",
    "warn_of_few_rows",
]

_ENOUGH_VALIDATION_ROWS = 100


class Rows(NamedTuple):
    """Checked rows: X (n, d) and y (n, m) in float64, positive weights (n,)."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def take(self, rows) -> Rows:
        return Rows(self.X[rows], self.y[rows], self.weight[rows])


def check_weights(sample_weight, X) -> np.ndarray:
    """Weights of at most 1: only ratios count, and sums of huge ones overflow."""
    weight = check_sample_weight(sample_weight, X, dtype="float64", ensure_non_negative=True)
    return weight / weight.max()


def check_numbers(y, n_outputs=None) -> np.ndarray:
    """Validation targets (n, m) from numbers (n,) or (n, m).

    Raises
    ------
    ValueError
        If they are no finite numbers, or m is not `n_outputs`.
    """
    y = check_array(y, ensure_2d=False, dtype="float64", input_name="y of validation rows")
    y = y.reshape(len(y), -1)
    if n_outputs is not None and y.shape[1] != n_outputs:
        raise ValueError(f"y of validation rows must have {n_outputs} outputs. Got {y.shape[1]}.")
    return y


def check_groups(groups, X):
    """Groups (n,) as an array, or None."""
    if groups is not None and np.shape(groups) != (len(X),):
        raise ValueError(f"`groups` must have shape ({len(X)},). Got {np.shape(groups)}.")
    return None if groups is None else np.asarray(groups)


def split(rows: Rows, fraction: float, rng, groups=None, labels=None):
    """Positions of training and validation rows, among those with a positive weight."""
    used = np.flatnonzero(rows.weight > 0)
    if len(used) < 2:
        raise ValueError(
            "Training and validation need at least 2 rows of positive weight. "
            f"Got {len(used)} (n_samples={len(rows.X)})."
        )
    groups, labels = (None if part is None else part[used] for part in (groups, labels))
    train, valid = split_rows(len(used), fraction, rng, groups, labels)
    return used[train], used[valid]


def fold_rows(rows: Rows, cv, rng, groups=None, labels=None):
    """Pairs of positions to train on and to validate on; every row validates once.

    Parameters
    ----------
    rows : Rows
        Of positive weight.
    cv : int, cross-validation generator or iterable
        A number shuffles the rows, keeps `groups` together and divides `labels` in proportion.
    """
    if isinstance(cv, Integral):
        kinds = (KFold, StratifiedKFold), (GroupKFold, StratifiedGroupKFold)
        kind = kinds[groups is not None][labels is not None]
        cv = kind(cv, shuffle=True, random_state=int(rng.integers(2**31 - 1)))
    return out_of_fold_splits(cv, rows.X, rows.y if labels is None else labels, groups)


def check_validation_data(estimator, data, targets, name="validation_data") -> Rows:
    """Rows that the user has given beside those to train on.

    Parameters
    ----------
    estimator : estimator
        Knows the number and names of features.
    data : tuple (X, y) or (X, y, sample_weight)
    targets : callable
        From y as it was given to numbers (n, m).
    name : str
        The argument's name, for errors.
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(
            f"`{name}` must be a tuple (X, y) or (X, y, sample_weight). Got {type(data).__name__}."
        )
    X, y, *weight = data
    X = estimator._check_inputs(X)
    y = targets(y)
    X, _ = check_X_y(X, y, dtype="float64", multi_output=True)
    weight = check_weights(weight[0] if weight else None, X)
    return Rows(X, y, weight).take(weight > 0)


def warn_of_few_rows(n_valid, advice="A larger validation_fraction or validation_data may help."):
    """Say that members are chosen on little."""
    if n_valid < _ENOUGH_VALIDATION_ROWS:
        warnings.warn(
            f"Members are chosen on {n_valid} validation rows; below {_ENOUGH_VALIDATION_ROWS} the "
            f"choice owes much to chance. {advice}".rstrip(),
            SmallValidationWarning,
            stacklevel=5,
        )
