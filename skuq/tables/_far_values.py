"""Find values absurdly far from all others of their column: typing errors, sentinels, sensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# A value is far if it alone makes a column's standard deviation at least this many times the spread
# of the other values. To a network the others would then all be the same number.
_RATIO = 1000.0
_MOST_ROWS = 10_000  # rows from which quartiles are computed
_MOST_NAMED = 3  # values that a message names


class FarValues(NamedTuple):
    """Positions of the far values (`rows`, `columns`), and bounds of all others (`low`, `high`).

    The bounds have shape (d,), one for each column.
    """

    rows: np.ndarray
    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def describe(self, table: np.ndarray, row_numbers: np.ndarray, names: Sequence[Any]) -> str:
        """Name the first of the values, with the row numbers (n,) that the user knows."""
        places = [
            f"{table[row, k]:.6g} in column {names[k]!s}, row {row_numbers[row]}"
            for row, k in zip(self.rows[:_MOST_NAMED], self.columns)
        ]
        n_others = len(self.rows) - len(places)
        return "; ".join([*places, *([f"and {n_others} more"] if n_others else [])])


def find_far_values(table: np.ndarray) -> FarValues | None:
    """Find the far values of a table (n, d) of finite numbers; None if there are none.

    Columns without any are bounded by infinities.
    """
    n, d = table.shape
    reach = _RATIO * np.sqrt(n)
    every = math.ceil(n / _MOST_ROWS)
    first, median, third = np.quantile(table[::every], [0.25, 0.5, 0.75], axis=0)
    # Halve first, since the distance of two numbers can overflow. One value at distance D from n
    # others gives a standard deviation of about D / sqrt(n).
    spread = third / 2 - first / 2
    farthest = np.maximum(table.max(axis=0) / 2 - median / 2, median / 2 - table.min(axis=0) / 2)
    low, high, is_far = np.full(d, -np.inf), np.full(d, np.inf), {}
    for k in np.flatnonzero(farthest / reach > spread):
        column, typical = table[:, k], spread[k]
        distance = abs(column / 2 - median[k] / 2)
        if typical == 0:  # more than half of the rows are equal: take the spread of the others
            typical = np.median(distance[distance > 0])
        far = distance / reach > typical
        if far.any():
            is_far[k] = far
            low[k], high[k] = column[~far].min(), column[~far].max()
    if not is_far:
        return None
    rows = [np.flatnonzero(far) for far in is_far.values()]
    columns = np.repeat(list(is_far), [len(of_column) for of_column in rows])
    return FarValues(np.concatenate(rows), columns, low, high)
