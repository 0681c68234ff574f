"""Split rows into training and validation rows or folds, and make the arrays of a training run."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import scipy.linalg
from sklearn import model_selection

from skuq._messages import short_repr, warn_user
from skuq._random import MAX_SEED, generator
from skuq.exceptions import CalibrationWarning
from skuq.tables._inputs import Inputs, Rows, group_codes
from skuq.tables._repeats import DistinctRows
from skuq.tables._targets import Targets

#: Positions of rows to train on and to test on.
Fold = tuple[np.ndarray, ...]

#: Kinds of folds, by whether they are stratified and whether they keep groups together.
KINDS_OF_FOLDS: dict[tuple[bool, bool], Any] = {
    (False, False): model_selection.KFold,
    (False, True): model_selection.GroupKFold,
    (True, False): model_selection.StratifiedKFold,
    (True, True): model_selection.StratifiedGroupKFold,
}

_MOMENT_ROWS = 1000  # most rows from which second moments are computed


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Standardised rows to train on and to validate on, in float32.

    Attributes
    ----------
    x : ndarray of shape (n_train, n_features)
        Inputs of the training rows.
    y : ndarray of shape (n_train, n_outputs)
        Targets of the training rows.
    weight : ndarray of shape (n_train,)
        Sample weights of the training rows, with mean 1.
    x_valid, y_valid, weight_valid : ndarray
        The same for the validation rows, of which there can be none.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.tables import TrainingData
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> TrainingData.without_validation(x, x**2, np.ones(20)).x_valid.shape
    (0, 1)
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    x_valid: np.ndarray
    y_valid: np.ndarray
    weight_valid: np.ndarray

    def __post_init__(self) -> None:
        # Factors restore the weights that were given, when rows are put together again.
        factors = {}
        for name in self.__dataclass_fields__:
            array = np.asarray(getattr(self, name), dtype="float64")
            if name.startswith("weight") and len(array):
                largest = array.max()
                array = array / largest  # first, because a sum of huge weights overflows
                factors[name] = largest * array.mean()
                array = array / array.mean()
            object.__setattr__(self, name, np.ascontiguousarray(array, dtype="float32"))
        object.__setattr__(self, "_factors", factors)

    @functools.cached_property
    def n_alike(self) -> float:
        """Number of columns that vary together: 1 for independent columns, p for p equal ones.

        It is the largest eigenvalue of the columns' second moments, over the mean one. Rows count
        by their weights.
        """
        rows = np.flatnonzero(self.weight)
        # Evenly spaced rows are enough for the largest eigenvalue.
        rows = rows[:: math.ceil(len(rows) / _MOMENT_ROWS)]
        x = self.x[rows].astype("float64") * np.sqrt(self.weight[rows, None])
        # The smaller of the two products has the same eigenvalues, and their sum is its trace.
        moments = x @ x.T if len(x) < x.shape[1] else x.T @ x
        largest, total = scipy.linalg.eigvalsh(moments)[-1], np.trace(moments)
        return float(x.shape[1] * largest / total) if total > 0 else 1.0

    @classmethod
    def without_validation(cls, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> TrainingData:
        """Make data without validation rows."""
        return cls(x, y, weight, x[:0], y[:0], weight[:0])

    def split_rows(self, train: np.ndarray, valid: np.ndarray) -> TrainingData:
        """Split the training rows, given by positions, into training and validation rows."""
        rows = self.x, self.y, self.weight
        return TrainingData(*(a[train] for a in rows), *(a[valid] for a in rows))

    def all_rows(self) -> TrainingData:
        """Use all rows for training, with the weights that were given to the constructor."""
        factors = vars(self)["_factors"]
        weights = [
            getattr(self, name).astype("float64") * factors.get(name, 1.0)
            for name in ("weight", "weight_valid")
        ]
        return TrainingData.without_validation(
            np.concatenate([self.x, self.x_valid]),
            np.concatenate([self.y, self.y_valid]),
            np.concatenate(weights),
        )


@dataclass(frozen=True, eq=False)
class Splits:
    """Training rows and validation rows.

    Attributes
    ----------
    train : Rows
        Training rows; with `parts` all rows, of which each part is another split.
    valid : Rows or None
        Validation rows common to all networks, if there are any.
    positions : ndarray or None
        Positions of the validation rows among those given to `fit`. None if the user gave
        separate validation rows, or there are none.
    parts : list of pairs of ndarray, or None
        Positions in `train` that each network trains and validates on: one split for each
        member, or the folds of a cross-validation.
    """

    train: Rows
    valid: Rows | None = None
    positions: np.ndarray | None = None
    parts: Sequence[Fold] | None = None

    @property
    def validates(self) -> bool:
        """Whether networks have validation rows."""
        return self.valid is not None or self.parts is not None

    @property
    def tested(self) -> np.ndarray:
        """With folds: whether one of them validates each row, as a mask (n,)."""
        assert self.parts is not None
        return np.isin(np.arange(len(self.train.X)), np.concatenate([t for _, t in self.parts]))

    @property
    def n_train(self) -> int:
        """Number of rows that one network trains on."""
        if self.parts is None:
            return len(self.train.X)
        return min(len(train) for train, _ in self.parts)

    @property
    def n_valid(self) -> int:
        """Number of rows on which networks are compared."""
        if self.parts is not None:
            return int(self.tested.sum())
        return 0 if self.valid is None else len(self.valid.X)

    def training_data(self, inputs: Inputs, targets: Targets) -> TrainingData:
        """Fit the scales of inputs and targets on the training rows, and standardise all rows."""
        inputs.fit(self.train.X, self.train.weight)
        targets.fit(self.train.y, self.train.weight)
        # Scales come from training rows alone: validation must not see itself.
        train = standardise_rows(self.train, inputs, targets)
        if self.valid is None:
            return TrainingData.without_validation(*train)
        return TrainingData(*train, *standardise_rows(self.valid, inputs, targets))


def standardise_rows(
    rows: Rows, inputs: Inputs, targets: Targets
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the standardised X and y of rows, and their weights."""
    return inputs.transform(rows.X), targets.transform(rows.y), rows.weight


def make_splits(
    rows: Rows,
    entropy: int,
    split: Any = None,
    *,
    n_members: int | None = None,
    validation: Rows | None = None,
    groups: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    units: np.ndarray | None = None,
    repeat: int = 0,
    n_used: int | None = None,
) -> Splits:
    """Split rows into training and validation rows, or into folds.

    Rows of weight 0 are left out. Without `validation` and `split` there are no validation rows.

    Parameters
    ----------
    rows : Rows
        All rows of `fit`.
    entropy : int
        Origin of the random numbers of the fit, which determines all splits.
    split : float, int, cross-validation generator or iterable, optional
        Share of the rows (with `groups`: of the groups) for validation, or folds. A number of folds
        shuffles the rows, keeps `groups` together and stratifies by `labels`.
    n_members : int, optional
        Make one split for each of this many members. It is ignored with `groups`, since these
        differ in size, and the members of a stack need equally many rows.
    validation : Rows, optional
        Validation rows given by the user, in place of `split`.
    groups : ndarray of shape (n,), optional
        Groups; all rows of a group are on the same side of a split.
    labels : ndarray of shape (n,), optional
        Classes, by which splits are stratified.
    units : ndarray of shape (n,), optional
        Numbers that equal rows share; these are on the same side of a split, as far as there are
        enough distinct rows.
    repeat : int, default=0
        Number of a repeat, which gives other folds if `split` is a number.
    n_used : int, optional
        Number of folds that are used, those that train on most classes. By default all.
    """
    used = rows.used
    used_rows = rows.take(used)
    if validation is not None or split is None:
        return Splits(used_rows, validation)
    is_share = isinstance(split, Real) and not isinstance(split, Integral)
    if is_share and len(used) < 2:
        raise ValueError(
            "Training and validation need at least 2 rows of positive weight. "
            f"Got {len(used)} (n_samples={len(rows.X)}). Add rows, or train without validation."
        )
    groups, labels, units = (None if p is None else p[used] for p in (groups, labels, units))
    distinct = DistinctRows.of(units, None if is_share else split, labels)
    # Only these rows are split; rows that equal one of them follow it.
    some = used_rows.take(distinct.first)
    classes = None if labels is None else labels[distinct.first]
    every = np.ones(len(used), dtype=bool)
    # Groups differ in size, and a stack needs equally many rows for each member.
    if is_share and (n_members is None or groups is not None):
        rng = generator(entropy, "split")
        part = distinct.spread(split_rows(len(some.X), split, rng, groups, classes))
        if labels is not None:  # whole groups may take all rows of a class with them
            (part,) = without_unseen_classes([part], labels, every)
        train, valid = (used[rows_of] for rows_of in part)
        return Splits(rows.take(train), rows.take(valid), valid)
    if not is_share:
        rng = generator(entropy, "split", *([repeat] if repeat else []))
        is_list = not isinstance(split, Integral) and not hasattr(split, "split")
        if is_list or isinstance(split, model_selection.PredefinedSplit):
            # The user's own folds are of all rows: number the used ones, and drop the others.
            number = np.full(len(rows.X), -1)
            number[used] = np.arange(len(used))
            folds = out_of_fold_splits(split, *rows[:2], name="validation")
            split = [tuple(p[p >= 0] for p in (number[a], number[b])) for a, b in folds]
        folds = [distinct.spread(fold) for fold in _folds(some, split, rng, groups, classes)]
        if labels is not None and n_used is not None:  # one fold may have all rows of a class
            folds = sorted(folds, key=lambda fold: -len(np.unique(labels[fold[0]])))
        folds = folds[:n_used]
        if labels is not None:
            folds = without_unseen_classes(folds, labels, every)
            if not all(len(test) for _, test in folds):
                raise ValueError(
                    "`validation` must give folds that test a class on which they train. Stratify "
                    f"them, or give fewer. Got {short_repr(split)}."
                )
        return Splits(used_rows, None, used, folds)
    assert n_members is not None
    # One stream for each member: a member's split does not depend on their number.
    rngs = [generator(entropy, "split", k) for k in range(n_members)]
    drawn = [split_rows(len(some.X), split, rng, None, classes) for rng in rngs]
    parts = [distinct.spread(part) for part in drawn]
    if labels is not None and units is not None:  # equal rows may be all rows of a class
        parts = without_unseen_classes(parts, labels, every)
    return Splits(used_rows, None, None, parts)


def _folds(
    rows: Rows,
    cv: Any,
    rng: np.random.Generator,
    groups: np.ndarray | None,
    labels: np.ndarray | None,
) -> list[Fold]:
    """List folds as pairs of positions to train on and to validate on."""
    # Only a number leaves the kind of the folds to us.
    if isinstance(cv, Integral):
        if groups is not None:
            name, groups = groups[:1].tolist()[0], group_codes(groups)
            if not groups.any():
                raise ValueError(
                    "Folds need at least two groups of rows of positive weight, and `groups` has "
                    f"one: {name!r}. Give `validation_data`, or no groups."
                )
        # No class has a row for every fold, which scikit-learn refuses to stratify.
        few = labels is not None and np.unique(labels, return_counts=True)[1].max() < cv
        if labels is not None and few and groups is None and len(labels) >= cv:
            order, places = np.lexsort((rng.random(len(labels)), labels)), np.arange(len(labels))
            # Rows of a class go to folds one after the other.
            cv = model_selection.PredefinedSplit(places[np.argsort(order)] % cv)
            return out_of_fold_splits(cv, rows.X, labels, None, name="validation")
        labels = None if few else labels
        kind = KINDS_OF_FOLDS[labels is not None, groups is not None]
        cv = kind(cv, shuffle=True, random_state=int(rng.integers(MAX_SEED)))
    y = rows.y if labels is None else labels
    return out_of_fold_splits(cv, rows.X, y, groups, name="validation")


def out_of_fold_splits(
    cv: Any, X: Any, y: Any, groups: Any = None, *, name: str = "cv", once: bool = True
) -> list[Fold]:
    """List folds as pairs of positions (train, test), in which every row is tested once.

    Parameters
    ----------
    cv : int, cross-validation generator, iterable or None
        Folds, as scikit-learn's `check_cv` takes them.
    X, y, groups : array-like of shape (n, ...), (n,) and (n,)
        Rows to split.
    name : str, default="cv"
        Name of the user's parameter, for messages.
    once : bool, default=True
        Whether every row must be tested exactly once. Otherwise folds may repeat rows or leave some
        out, and test no row at all.
    """
    if groups is not None:
        # Splitters sort groups, and NumPy cannot sort None among names, or numbers among texts.
        is_mixed = groups.dtype == object and len(set(map(type, groups))) > 1
        groups = group_codes(groups) if is_mixed or pd.isna(groups).any() else groups
    n, splits, given = len(y), [], f"Got {short_repr(cv)}."
    with warnings.catch_warnings():
        # Folds without a rare class are what there is; see `without_unseen_classes`.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        try:
            splitter = model_selection.check_cv(cv, y)
            # A splitter of the user's need not take groups.
            pairs = list(splitter.split(X, y, *(() if groups is None else (groups,))))
        except ValueError as error:  # such as more folds than rows
            raise ValueError(f"`{name}` cannot split the rows: {error} {given}") from error
    for pair in pairs:
        parts = []
        for part in map(np.asarray, pair):
            # A user's own folds may be masks.
            rows = np.flatnonzero(part) if part.dtype == bool and part.shape == (n,) else part
            valid = rows.ndim == 1 and (rows.dtype.kind in "iu" or not len(rows))
            if not valid or ((rows < 0) | (rows >= n)).any():
                raise ValueError(f"`{name}` must give positions of {n} rows. {given}")
            parts.append(rows.astype("int64"))
        splits.append(tuple(parts))
    if not splits:
        raise ValueError(
            f"`{name}` has no folds. {given} A generator can only be used once: give a list."
        )
    # Out-of-fold predictions need each row once, or rows would be missing or count twice.
    tested = np.sort(np.concatenate([test for _, test in splits]))
    if once and not np.array_equal(tested, np.arange(n)):
        raise ValueError(
            f"`{name}` must put every row into exactly one test fold, as KFold does and "
            f"ShuffleSplit does not. There are {n} rows. {given}"
        )
    for k, (train, test) in enumerate(splits):
        if not len(train) or (once and not len(test)) or np.isin(test, train).any():
            raise ValueError(
                f"`{name}` must give rows to train on, and other rows to test on. Fold {k} has "
                f"{len(train)} and {len(test)} rows, of which {np.isin(test, train).sum()} are in "
                f"both. {given}"
            )
    return splits


def without_unseen_classes(
    splits: Sequence[Fold],
    labels: np.ndarray,
    used: np.ndarray,
    name: str = "validation",
    purpose: str = "validation",
    n_classes: int = 1,
) -> list[Fold]:
    """Leave rows out of test folds if no training row of the fold has their class, and warn.

    What a model predicts for a class that it has not seen says nothing about the model that is
    trained on all rows, and a single such row can outweigh all others.

    Parameters
    ----------
    splits : sequence of pairs of ndarray
        Positions to train on and to test on.
    labels : ndarray of shape (n,)
        Classes.
    used : ndarray of bool of shape (n,)
        Rows of positive weight. Others train nothing.
    name : str
        Name of the parameter that gave the folds.
    purpose : str
        What the rows are tested for.
    n_classes : int, default=1
        Fewest classes whose rows must be tested.

    Returns
    -------
    list of pairs of ndarray
        The folds. Those whose training rows have fewer classes than `n_classes` test no rows.
    """
    found: list[Fold] = []
    left, unseen = [], []
    for train, test in splits:
        trained = np.unique(labels[train[used[train]]])
        seen = np.isin(labels[test], trained)
        unseen.append(labels[test[~seen & used[test]]])
        found.append((train, test[seen & (len(trained) >= n_classes)]))
        kept = found[-1][1]
        left.append(labels[kept[used[kept]]])
    n_folds = sum(map(bool, map(len, unseen)))
    if not n_folds:
        return found
    n_lost = sum(used[test].sum() for _, test in splits) - sum(map(len, left))
    classes = np.unique(np.concatenate(unseen)).tolist()
    text = (
        f"{n_lost} of {len(labels)} rows: {n_folds} of {len(splits)} splits train on no row of the "
        f"classes {classes[:5]}{' and others' if len(classes) > 5 else ''} that they test. A class "
        "needs rows in two folds, and so in two groups if there are `groups`. Drop or merge "
        f"classes of one row, and give `{name}`, where it takes folds, stratified ones, such as "
        "StratifiedKFold(5, shuffle=True)."
    )
    if len(np.unique(np.concatenate(left))) < n_classes:
        raise ValueError(f"The {purpose} has too few rows to test on. It leaves out {text}")
    warn_user(f"The {purpose} leaves out {text}", CalibrationWarning)
    return found


def split_rows(
    n_rows: int,
    validation_fraction: float,
    rng: np.random.Generator,
    groups: Any = None,
    labels: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw positions of training and of validation rows, both sorted and never empty.

    Parameters
    ----------
    n_rows : int
        Number of rows, at least 2.
    validation_fraction : float
        Share of the rows (with `groups`: of the groups) for validation.
    rng : numpy.random.Generator
    groups : array-like of shape (n_rows,), optional
        Groups; all rows of a group are on the same side.
    labels : array-like of shape (n_rows,), optional
        Classes, by which the split is stratified. Every class gets a training row, if there are
        enough training rows. Ignored with `groups`.
    """
    if groups is not None:
        # The share is of the groups, since these stay whole.
        codes, named = pd.factorize(np.asarray(groups), use_na_sentinel=False)
        if len(named) < 2:
            raise ValueError(
                "`groups` must have at least two groups, one for training and one for validation. "
                f"Got {len(named)}."
            )
        n_valid = int(np.clip(round(validation_fraction * len(named)), 1, len(named) - 1))
        validates = np.isin(codes, rng.permutation(len(named))[:n_valid])
        return np.flatnonzero(~validates), np.flatnonzero(validates)
    n_valid = int(np.clip(round(validation_fraction * n_rows), 1, n_rows - 1))
    order = rng.permutation(n_rows)
    if labels is not None:
        # Sort rows so that the first k, for any k, have all classes in about their proportion.
        _, codes, counts = np.unique(
            np.asarray(labels)[order], return_inverse=True, return_counts=True
        )
        rank = pd.Series(codes).groupby(codes).cumcount().to_numpy()  # number within the class
        position = (rank + 0.5) / counts[codes]
        # The last row of each class goes to the end, so that it becomes a training row.
        position[rank == counts[codes] - 1] = 2.0
        order = order[np.argsort(position, kind="stable")]
    return np.sort(order[n_valid:]), np.sort(order[:n_valid])
