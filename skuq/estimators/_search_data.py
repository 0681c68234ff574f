"""Data of a search: validate and encode the arguments of `fit`, and split the rows."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from skuq.catalog import HeldOut
from skuq.tables import (
    Rows,
    Splits,
    TrainingData,
    check_groups,
    make_splits,
    read_rows,
    read_validation_rows,
)
from skuq.tables._inputs import group_codes
from skuq.tables._splits import standardise_rows


class SearchData(NamedTuple):
    """The user's arguments of `fit`, validated and encoded."""

    inputs: Any
    targets: Any
    rows: Rows
    validation: Rows | None
    shifted: list[Rows]
    groups: np.ndarray | None

    def splits(self, estimator, repeat: int = 0) -> Splits:
        """Split the rows into training and validation rows; another `repeat` gives other folds."""
        given = self.validation is not None
        return make_splits(
            self.rows,
            estimator.entropy_,
            **estimator._method.validation(self._n_units(), given),
            validation=self.validation,
            groups=self.groups,
            labels=self.targets.labels(self.rows.y),
            repeat=repeat,
        )

    def _n_units(self) -> int:
        """Count the rows of positive weight, or of their groups if there are groups."""
        used = self.rows.used
        return len(used) if self.groups is None else 1 + group_codes(self.groups[used]).max()

    def identity(self, splits: Splits | None) -> dict[str, Any]:
        """Return the data that identify the search, by name; `splits` are the user's folds."""
        weight = self.rows.weight
        identity = {
            "X": self.rows.X,
            "y": self.rows.y,
            "sample_weight": None if np.all(weight == 1) else weight,
            "groups": self.groups,
            "validation_data": self.validation,
            "shift_validation": self.shifted,
        }
        return identity if splits is None else {**identity, "cv": splits.parts}


def read_search_data(
    estimator, method, X, y, sample_weight, validation_data, shift_validation, groups
) -> SearchData:
    """Validate and encode the user's arguments of `fit`."""
    named = _named_sets(shift_validation)
    method.check(named)
    is_auto = isinstance(estimator.cv, str)
    if estimator.cv is not None and not is_auto and validation_data is not None:
        raise ValueError(
            "Give either `cv` or `validation_data`: with `cv` every row validates. "
            f"Got both, with cv={estimator.cv!r}."
        )
    inputs, targets = method.inputs(X), method.targets()
    rows = read_rows(estimator, inputs, targets, X, y, sample_weight, min_rows=2)
    groups = check_groups(groups, rows.X)
    read = functools.partial(read_validation_rows, estimator, inputs, targets)
    validation = None if validation_data is None else read(validation_data)
    shifted = [read(data, name) for name, data in named]
    return SearchData(inputs, targets, rows, validation, shifted, groups)


def collect_held_out(splits, data, shifted, inputs, targets):
    """Collect the rows that all trials predict, and their inputs.

    The inputs are None if these are only the validation rows.
    """
    sets, x = [], [data.x_valid]
    for rows in shifted:
        # The same steps as for validation rows: float32, and weights with mean 1.
        part = TrainingData.without_validation(*standardise_rows(rows, inputs, targets))
        sets.append(HeldOut(None, part.y, part.weight))
        x.append(part.x)
    folds = splits.parts is not None
    y_and_weight = (data.y, data.weight) if folds else (data.y_valid, data.weight_valid)
    held_out = HeldOut(splits.positions, *y_and_weight, tuple(sets))
    return held_out, np.concatenate(x) if shifted else None


def _named_sets(shift_validation):
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
