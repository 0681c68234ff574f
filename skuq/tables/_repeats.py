"""Find rows that are in a table more than once, and keep equal rows on one side of splits.

A network that has trained on a row knows its copies: they would validate what they have trained.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.model_selection import PredefinedSplit, TimeSeriesSplit

from skuq._messages import warn_user
from skuq.exceptions import TableWarning

_PRECISION = 1e-10  # of values, as a share of their column's spread; networks see about 1e-7
_ROWS_LOOKED_AT = 1_000  # rows from which spreads are computed
_TOLD_SHARE = 0.01  # of the rows: repeats of fewer are not worth a warning


def number_rows(X: Any, used: np.ndarray) -> np.ndarray | None:
    """Number the distinct rows of X; equal rows, also with gaps, share a number (n,).

    Return None if no two rows at the positions `used` are equal, or values cannot be compared.
    """
    if sparse.issparse(X):
        X = sparse.csr_array(X)
        X = [X.indices[a:b].tobytes() + X.data[a:b].tobytes() for a, b in pairwise(X.indptr)]
        X = pd.DataFrame({0: X})
    try:
        is_frame = isinstance(X, pd.DataFrame)
        table = X if is_frame else np.asarray(X).reshape(len(X), -1)
        if is_frame or table.dtype.kind not in "fiub":
            frame = pd.DataFrame(table)
            columns = (frame.iloc[:, k] for k in range(frame.shape[1]))
            table = np.column_stack([pd.factorize(_rounded(column))[0] for column in columns])
        else:
            table = _rounded(table)
        # A hash of each value, and a random combination of those of a row. -0.0 + 0 is 0.0.
        values = pd.util.hash_array(np.ravel(table + 0), categorize=False).reshape(table.shape)
    except (IndexError, TypeError, ValueError):  # no rows, or values without a hash
        return None
    factors = np.random.default_rng(0).integers(2**64, size=table.shape[1], dtype="uint64")
    numbers = pd.factorize(values @ (factors | np.uint64(1)))[0]
    return numbers if np.bincount(numbers[used]).max(initial=0) > 1 else None


def _rounded(table: Any) -> Any:
    """Round floats to a share of each column's spread: a PCA's equal rows differ a little."""
    if not (isinstance(table.dtype, np.dtype) and table.dtype.kind == "f"):
        return table
    table = np.asarray(table)
    every = len(table) // _ROWS_LOOKED_AT + 1
    with np.errstate(all="ignore"):  # such as gaps, whose columns stay as they are
        unit = _PRECISION * np.diff(np.quantile(table[::every], [0.25, 0.75], axis=0), axis=0)
        rounded = np.rint(table / unit) * unit
    return np.where(np.isfinite(rounded), rounded, table)


def ignore_warnings_of_repeats() -> None:
    """Filter the warnings of this file out, for fits inside of one that has warned."""
    warnings.filterwarnings("ignore", "X has (repeated|[0-9]+ distinct) row", TableWarning)


def find_repeats(X: Any, used: np.ndarray, groups: Any) -> np.ndarray | None:
    """Number the distinct rows, and warn of the share of repeated ones; None with `groups`."""
    units = None if groups is not None else number_rows(X, used)
    if units is None:
        return None
    share = np.mean(np.bincount(units[used])[units[used]] > 1)
    if share >= _TOLD_SHARE:
        warn_user(
            f"X has repeated rows: {100 * share:.0f} % are there more than once. Rows of equal X "
            "stay on the same side of splits into training and validation rows, if enough rows "
            "differ and the folds are not a list of yours. If they are copies, drop them, or count "
            "them by `sample_weight`. Copies that differ a little are not recognised: give "
            "`groups`.",
            TableWarning,
        )
    return units


class DistinctRows(NamedTuple):
    """Distinct rows of a table, which are split in place of all rows.

    Attributes
    ----------
    first : ndarray or slice
        Position of the first of the equal rows; a slice of all rows if these are not compared.
    units : ndarray of shape (n,) or None
        Number of each row among the distinct ones; None if rows are not compared.
    """

    first: Any = slice(None)
    units: np.ndarray | None = None

    @classmethod
    def of(cls, units: np.ndarray | None, cv: Any, labels: Any = None) -> DistinctRows:
        """Make distinct rows of the numbers (n,) that equal rows share, if there are any.

        Rows are not compared if there are fewer distinct rows than folds, in each of the classes
        `labels` (n,), or not two of two classes, or if the folds of the user are of all rows.
        """
        is_list = not (cv is None or isinstance(cv, Integral) or hasattr(cv, "split"))
        if units is None or is_list or isinstance(cv, PredefinedSplit | TimeSeriesSplit):
            return cls()
        _, first, units = np.unique(units, return_index=True, return_inverse=True)
        n_folds = max(2, int(cv if isinstance(cv, Integral) else getattr(cv, "n_splits", 2)))
        of_class = pd.Series(units).groupby(units if labels is None else labels).nunique()
        divides = (of_class > 1).sum() > 1 and of_class.max() >= n_folds
        if len(first) >= n_folds and (labels is None or divides):
            return cls(first, units)
        warn_user(
            f"X has {len(first)} distinct row{'s' * (len(first) > 1)}, too few to divide them, or "
            f"those of two classes, into {n_folds} parts: equal rows are on both sides of splits. "
            "What validation rows teach, such as widths of intervals, holds for these rows only.",
            TableWarning,
        )
        return cls()

    def spread(self, parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Replace positions in `first` by the positions of all rows that equal these rows."""
        if self.units is None:
            return parts
        return tuple(np.flatnonzero(np.isin(self.units, part)) for part in parts)
