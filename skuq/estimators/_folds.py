"""What estimators of estimators share: fits on parts of the rows, and classes in one order."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv
from sklearn.utils.validation import has_fit_parameter

from skuq._checks import class_codes
from skuq._params import safe_split

__all__ = [
    "check_takes_weights",
    "class_codes",
    "class_probabilities",
    "fit_fold",
    "out_of_fold_splits",
]


def check_takes_weights(estimator, name: str) -> None:
    """Raise TypeError if an estimator that is to be fitted takes no `sample_weight`."""
    fitted_already = isinstance(estimator, FrozenEstimator)
    if not fitted_already and not has_fit_parameter(estimator, "sample_weight"):
        raise TypeError(f"{name} cannot be fitted with `sample_weight`.")


def out_of_fold_splits(cv, X, y, groups=None, *, classifier=False) -> list:
    """Pairs of positions (train, test) that predict every row once.

    Raises
    ------
    ValueError
        If `cv` does not put every row into exactly one test fold, or trains on rows it tests.
    """
    splits = [
        tuple(_positions(part, len(y), cv) for part in pair)
        for pair in check_cv(cv, y, classifier=classifier).split(X, y, groups)
    ]
    if not splits:
        raise ValueError(f"`cv` gave no folds (a generator does so once only). Got {_named(cv)}.")
    tested = np.sort(np.concatenate([test for _, test in splits]))
    if not np.array_equal(tested, np.arange(len(y))):
        raise ValueError(
            "`cv` must put every row into exactly one test fold, as KFold does and ShuffleSplit "
            f"does not. There are {len(y)} rows, and `cv` is {_named(cv)}."
        )
    for k, (train, test) in enumerate(splits):
        if not len(train) or not len(test) or np.isin(test, train).any():
            raise ValueError(
                "`cv` must give rows to train on, and others to test on. Fold "
                f"{k} of {_named(cv)} has {len(train)} and {len(test)}, of which "
                f"{np.isin(test, train).sum()} in both."
            )
    return splits


def _positions(rows, n, cv):
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (n,):
        rows = np.flatnonzero(rows)
    sound = rows.ndim == 1 and (rows.dtype.kind in "iu" or not len(rows))
    if not sound or ((rows < 0) | (rows >= n)).any():
        raise ValueError(f"`cv` must give positions of {n} rows. Got {_named(cv)}.")
    return rows.astype("int64")


def _named(cv):
    text = repr(cv)
    return text if len(text) <= 200 else f"{text[:200]}..."


def fit_fold(estimator, X, y, sample_weight, train, test=None):
    """A clone fitted on the rows `train`, and X of the rows `test` for it to predict."""
    model = clone(estimator)
    X_train, y_train = safe_split(model, X, y, train)
    if sample_weight is None or isinstance(estimator, FrozenEstimator):
        model.fit(X_train, y_train)
    else:
        model.fit(X_train, y_train, sample_weight=sample_weight[train])
    return model, None if test is None else safe_split(model, X, y, test, train)[0]


def class_probabilities(model, X, classes: np.ndarray) -> np.ndarray:
    """Probabilities (n, C) in the order of `classes`; 0 for those the model has not seen.

    Raises
    ------
    ValueError
        If what the model predicts are no probabilities.
    """
    proba = np.asarray(model.predict_proba(X), dtype=float)
    known = class_codes(model.classes_, classes)
    sums = proba.sum(axis=-1)
    # Written so that NaN fails.
    sound = proba.shape[1:] == known.shape and (proba >= 0).all() and (abs(sums - 1) < 1e-3).all()
    if not sound:
        raise ValueError(
            f"predict_proba of {model!r} must give non-negative numbers of shape "
            f"(n_samples, {len(known)}), with sums of 1. Got shape {proba.shape}, numbers from "
            f"{proba.min(initial=np.inf)} to {proba.max(initial=-np.inf)}."
        )
    if (abs(sums - 1) > 1e-9).any():  # of single precision
        proba = proba / sums[:, None]
    every = np.zeros((len(proba), len(classes)))
    every[:, known] = proba
    return every
