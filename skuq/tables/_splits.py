"""Which rows train and which validate."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    check_cv,
)

from skuq._seeds import generator
from skuq.tables._inputs import Inputs
from skuq.tables._rows import Rows
from skuq.tables._targets import Targets
from skuq.tables._training_data import TrainingData


@dataclass(frozen=True, eq=False)
class Splits:
    """Rows that train and rows that validate.

    Attributes
    ----------
    train : Rows
        Rows that train; with `parts` all rows, which each part divides in its own way.
    valid : Rows or None
        Rows that validate every network, if there are any.
    positions : ndarray or None
        Positions of the rows that validate among those given to `fit`; None if they were given
        apart, or nothing validates.
    parts : list of pairs of ndarray, or None
        Positions in `train` that each network trains and validates on: a split for each member,
        or the folds of a cross-validation.
    """

    train: Rows
    valid: Rows | None = None
    positions: np.ndarray | None = None
    parts: Sequence[tuple[np.ndarray, ...]] | None = None

    @property
    def validates(self) -> bool:
        """Whether networks have validation rows."""
        return self.valid is not None or self.parts is not None

    @property
    def n_train(self) -> int:
        """Rows that one network trains on."""
        if self.parts is None:
            return len(self.train.X)
        return min(len(train) for train, _ in self.parts)

    @property
    def n_valid(self) -> int:
        """Rows that choices between networks are made on."""
        return 0 if not self.validates else len((self.valid or self.train).X)

    def training_data(self, inputs: Inputs, targets: Targets) -> TrainingData:
        """Fit the scales of inputs and targets on the training rows, and standardise all rows."""
        inputs.fit(self.train.X, self.train.weight)
        targets.fit(self.train.y, self.train.weight)
        train = standardise_rows(self.train, inputs, targets)
        if self.valid is None:
            return TrainingData.without_validation(*train)
        return TrainingData(*train, *standardise_rows(self.valid, inputs, targets))


def standardise_rows(
    rows: Rows, inputs: Inputs, targets: Targets
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return standardised X and y of rows, and their weights."""
    return inputs.transform(rows.X), targets.transform(rows.y), rows.weight


def make_splits(
    rows: Rows,
    entropy: int,
    *,
    fraction: float | None = None,
    cv: Any = None,
    n_members: int | None = None,
    validation: Rows | None = None,
    groups: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    repeat: int = 0,
) -> Splits:
    """Decide who trains and who validates.

    Rows of weight 0 are left out. The first that applies decides: rows given for validation,
    folds (`cv`), a share of the rows (`fraction`), or nothing validates.

    Parameters
    ----------
    rows : Rows
    entropy : int
        Of the fit; decides all draws.
    fraction : float, optional
        Share of the rows (with `groups`: of the groups) that validate.
    cv : int, cross-validation generator or iterable, optional
        A number shuffles the rows, keeps `groups` together and divides `labels` in proportion.
    n_members : int, optional
        Gives each of so many members a split of its own, unless there are `groups`: these differ
        in size, and the members of a stack have equally many rows.
    validation : Rows, optional
        Given by the user.
    groups : ndarray of shape (n,), optional
        Rows of one group are never divided.
    labels : ndarray of shape (n,), optional
        Classes to divide in proportion.
    repeat : int, default=0
        Another number divides the rows into other folds, if `cv` is a number.

    Raises
    ------
    ValueError
        If there are fewer than two rows of positive weight or two groups to divide, or `cv` does
        not test every row once.
    """
    used = rows.used
    if validation is not None:
        return Splits(rows.take(used), validation)
    if cv is None and fraction is None:
        return Splits(rows.take(used))
    if cv is None and (n_members is None or groups is not None):
        rng = generator(entropy, "split")
        train, valid = _split_used(rows, fraction, rng, groups, labels)
        return Splits(rows.take(train), rows.take(valid), valid)
    own = rows.take(used)
    groups, labels = (None if part is None else part[used] for part in (groups, labels))
    if cv is not None:
        rng = generator(entropy, "split", *([repeat] if repeat else []))
        return Splits(own, None, used, _folds(own, cv, rng, groups, labels))
    assert n_members is not None
    rngs = [generator(entropy, "split", k) for k in range(n_members)]
    parts = [_split_used(own, fraction, rng, None, labels) for rng in rngs]
    return Splits(own, None, None, parts)


def _split_used(
    rows: Rows,
    fraction: Any,
    rng: np.random.Generator,
    groups: np.ndarray | None,
    labels: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of training and validation rows, among those with a positive weight."""
    used = rows.used
    if len(used) < 2:
        raise ValueError(
            "Training and validation need at least 2 rows of positive weight. "
            f"Got {len(used)} (n_samples={len(rows.X)})."
        )
    groups, labels = (None if part is None else part[used] for part in (groups, labels))
    train, valid = split_rows(len(used), fraction, rng, groups, labels)
    return used[train], used[valid]


def _folds(
    rows: Rows,
    cv: Any,
    rng: np.random.Generator,
    groups: np.ndarray | None,
    labels: np.ndarray | None,
) -> list[tuple[np.ndarray, ...]]:
    """Pairs of positions to train on and to validate on; every row validates once."""
    if isinstance(cv, Integral):
        if groups is not None and len(np.unique(groups)) < 2:
            raise ValueError(
                "Folds need at least two groups of rows of positive weight, and `groups` has one: "
                f"{np.asarray(groups).tolist()[0]!r}. Give `validation_data`, or no groups."
            )
        # Where no class has a row for every fold, classes are divided like any other rows.
        if labels is not None and np.unique(labels, return_counts=True)[1].max() < cv:
            labels = None
        kinds = (KFold, StratifiedKFold), (GroupKFold, StratifiedGroupKFold)
        kind = kinds[groups is not None][labels is not None]
        cv = kind(cv, shuffle=True, random_state=int(rng.integers(2**31 - 1)))
    with warnings.catch_warnings():
        # Folds without a rare class are what there is; its rows still validate.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        return out_of_fold_splits(cv, rows.X, rows.y if labels is None else labels, groups)


def out_of_fold_splits(
    cv: Any, X: Any, y: Any, groups: Any = None, *, classifier: bool = False
) -> list[tuple[np.ndarray, ...]]:
    """List pairs of positions (train, test) that predict every row once.

    Raises
    ------
    ValueError
        If `cv` does not put every row into exactly one test fold, or trains on rows it tests.
    """
    splits = [
        tuple(_check_positions(part, len(y), cv) for part in pair)
        for pair in check_cv(cv, y, classifier=classifier).split(X, y, groups)
    ]
    if not splits:
        raise ValueError(f"`cv` gave no folds (a generator does so once only). Got {_short(cv)}.")
    tested = np.sort(np.concatenate([test for _, test in splits]))
    if not np.array_equal(tested, np.arange(len(y))):
        raise ValueError(
            "`cv` must put every row into exactly one test fold, as KFold does and ShuffleSplit "
            f"does not. There are {len(y)} rows, and `cv` is {_short(cv)}."
        )
    for k, (train, test) in enumerate(splits):
        if not len(train) or not len(test) or np.isin(test, train).any():
            raise ValueError(
                "`cv` must give rows to train on, and others to test on. Fold "
                f"{k} of {_short(cv)} has {len(train)} and {len(test)}, of which "
                f"{np.isin(test, train).sum()} in both."
            )
    return splits


def _check_positions(rows: Any, n: int, cv: Any) -> np.ndarray:
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (n,):
        rows = np.flatnonzero(rows)
    valid = rows.ndim == 1 and (rows.dtype.kind in "iu" or not len(rows))
    if not valid or ((rows < 0) | (rows >= n)).any():
        raise ValueError(f"`cv` must give positions of {n} rows. Got {_short(cv)}.")
    return rows.astype("int64")


def _short(cv: Any) -> str:
    text = repr(cv)
    return text if len(text) <= 200 else f"{text[:200]}..."


def split_rows(
    n_rows: int,
    validation_fraction: float,
    rng: np.random.Generator,
    groups: Any = None,
    labels: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of training and of validation rows, both sorted and never empty.

    Parameters
    ----------
    n_rows : int
        At least 2.
    validation_fraction : float
        Share of the rows (with `groups`: of the groups) that validate.
    rng : numpy.random.Generator
    groups : array-like of shape (n_rows,), optional
        Rows of one group are never divided.
    labels : array-like of shape (n_rows,), optional
        Classes to divide in proportion, each with a training row as far as the rows
        that do not validate suffice. Ignored with `groups`.

    Raises
    ------
    ValueError
        If there are fewer than two rows, or two groups.
    """
    if groups is not None:
        codes, named = pd.factorize(np.asarray(groups), use_na_sentinel=False)
        if len(named) < 2:
            raise ValueError("`groups` must name at least two groups: one has to validate.")
        n_valid = int(np.clip(round(validation_fraction * len(named)), 1, len(named) - 1))
        validates = np.isin(codes, rng.permutation(len(named))[:n_valid])
        return np.flatnonzero(~validates), np.flatnonzero(validates)
    if n_rows < 2:
        raise ValueError(f"Training and validation need at least 2 rows. Got {n_rows}.")
    n_valid = int(np.clip(round(validation_fraction * n_rows), 1, n_rows - 1))
    order = rng.permutation(n_rows)
    if labels is not None:
        order = _interleaved(order, np.asarray(labels)[order])
    return np.sort(order[n_valid:]), np.sort(order[:n_valid])


def _interleaved(order: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same rows so that every beginning has all classes in about their proportion.

    The last row of each class comes last of all, where it trains.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rank = pd.Series(codes).groupby(codes).cumcount().to_numpy()  # within its class
    position = (rank + 0.5) / counts[codes]
    position[rank == counts[codes] - 1] = 2.0
    return order[np.argsort(position, kind="stable")]
