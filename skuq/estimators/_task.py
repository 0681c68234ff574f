"""Read the arguments of `fit`: the first step of every estimator's fit."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq._params import Interval, StrOptions
from skuq._utils._environment import draw_entropy, trial_seed
from skuq.tables._inputs import (
    Inputs,
    Rows,
    check_groups,
    group_codes,
    read_rows,
    read_validation_rows,
)
from skuq.tables._splits import Splits, make_splits
from skuq.tables._targets import Targets

#: Constraints of the parameter `validation` of all estimators that hold rows out.
VALIDATION: list = [
    Interval(Real, 0, 1, closed="neither"),
    Interval(Integral, 2, None, closed="left"),
    "cv_object",
    StrOptions({"auto"}),
]


@dataclass(frozen=True, eq=False)
class Task:
    """Everything that an estimator reads from the arguments of `fit`.

    Attributes
    ----------
    inputs : Inputs
        Encoding of X; `split` fits its scales.
    targets : Targets
        Encoding of y; `split` fits its scales.
    rows : Rows
        All rows of `fit`.
    entropy : int
        Origin of all random numbers of the fit, drawn from `random_state`.
    validation : Rows or None
        Validation rows given by the user.
    shifted : tuple of Rows
        Held-out rows of shifted distributions given by the user.
    groups : ndarray of shape (n,) or None
        Groups of rows that stay together.
    splits : Splits or None
        Training and validation rows; None before `split`.
    data : TrainingData or None
        Standardised rows of `splits`; None before `split`.
    """

    inputs: Any
    targets: Any
    rows: Rows
    entropy: int
    validation: Rows | None = None
    shifted: tuple[Rows, ...] = ()
    groups: np.ndarray | None = None
    splits: Any = None
    data: Any = None

    @property
    def n_units(self) -> int:
        """Number of rows of positive weight, or of their groups if there are groups."""
        used = self.rows.used
        if self.groups is None:
            return len(used)
        return int(1 + group_codes(self.groups[used]).max())

    def make_splits(
        self, validation: Any = None, *, n_members: int | None = None, repeat: int = 0
    ) -> Splits:
        """Split the rows into training and validation rows, or into folds.

        Parameters
        ----------
        validation : float, int, cross-validation generator, iterable or None
            Share of the rows that is held out, or the folds, see `make_splits`. Rows that the user
            gave for validation take precedence.
        n_members : int, optional
            Number of members with a split of their own.
        repeat : int, default=0
            Number of a repeat, which gives other folds.
        """
        is_share = isinstance(validation, Real) and not isinstance(validation, Integral)
        return make_splits(
            self.rows,
            self.entropy,
            fraction=validation if is_share else None,
            cv=None if is_share else validation,
            n_members=n_members,
            validation=self.validation,
            groups=self.groups,
            labels=self.targets.labels(self.rows.y),
            repeat=repeat,
        )

    def seeds(self, n: int, first: int = 0) -> list[int]:
        """Derive the seeds of `n` networks, from number `first` on."""
        return [trial_seed(self.entropy, first + k) for k in range(n)]

    def split(self, validation: Any = None, *, n_members: int | None = None) -> Task:
        """Return the task with its rows split and standardised; see `make_splits`."""
        splits = self.make_splits(validation, n_members=n_members)
        return self.with_splits(splits)

    def with_splits(self, splits: Splits) -> Task:
        """Return the task with these splits; the scales are fitted on the training rows."""
        data = splits.training_data(self.inputs, self.targets)
        return replace(self, splits=splits, data=data)


def read_task(
    estimator: Any,
    inputs: Inputs,
    targets: Targets,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    validation_data: Any = None,
    shift_validation: Any = None,
    groups: Any = None,
    min_rows: int = 1,
) -> Task:
    """Validate and encode the arguments of `fit`, and draw its random numbers' origin.

    Parameters
    ----------
    estimator : estimator
        It gets the attributes `n_features_in_` and `feature_names_in_`, and its `random_state` is
        read.
    inputs, targets : Inputs, Targets
        Encodings, not fitted yet.
    X, y, sample_weight, validation_data, shift_validation, groups :
        The user's arguments.
    min_rows : int, default=1
        Minimum number of rows.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    # Forms are checked first: reading rows takes longer.
    named = _name_shifted(shift_validation)
    rows = read_rows(estimator, inputs, targets, X, y, sample_weight, min_rows=min_rows)
    groups = check_groups(groups, rows.X)
    read = functools.partial(read_validation_rows, estimator, inputs, targets)
    validation = None if validation_data is None else read(validation_data)
    shifted = tuple(read(data, name) for name, data in named)
    # Drawn last: arguments that are refused do not advance a RandomState.
    entropy = draw_entropy(estimator.random_state)
    return Task(inputs, targets, rows, entropy, validation, shifted, groups)


def _name_shifted(shift_validation: Any) -> list[tuple[str, Any]]:
    """List pairs (name, data) of one shifted set or several."""
    if shift_validation is None:
        return []
    several = isinstance(shift_validation, list) or (
        isinstance(shift_validation, tuple)
        and all(isinstance(part, tuple) for part in shift_validation)
    )
    if not several:
        return [("shift_validation", shift_validation)]
    if not shift_validation:
        raise ValueError(
            "`shift_validation` must be (X, y), a list of such pairs, or None. Got an empty list."
        )
    return [(f"shift_validation[{k}]", part) for k, part in enumerate(shift_validation)]
