"""Corruptions of tables, in five severities."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype
from sklearn.utils import check_random_state

TABLE_CORRUPTIONS = ("noise", "missing", "scaling", "permutation")

_NUMERIC = ("noise", "scaling")  # kinds that change numeric columns only

# By severity, 1 to 5: standard deviation of the noise in units of the column's, share of the cells
# that are removed or permuted, and factor of the scaling.
_STDS = (0.1, 0.2, 0.4, 0.6, 1.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0)


def corrupt_table(
    X, kind="noise", severity=3, *, columns=None, reference=None, fill="mean", random_state=None
):
    """Corrupt a table's cells, to study predictions under dataset shift.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or DataFrame
        Table to corrupt. Missing cells stay missing. Columns of a DataFrame with a text,
        category or bool dtype hold categories; numbers are taken as quantities.
    kind : str or sequence of str, default="noise"
        Name of a corruption, or several, of which each row gets one at random; ``"all"``
        means all four. The five numbers below are those of the five severities:

        - ``"noise"``: adds a normal with 0.1, 0.2, 0.4, 0.6 or 1 times the standard
          deviation of the column;
        - ``"missing"``: a share of cells, 0.05, 0.1, 0.2, 0.3 or 0.5, is lost, see `fill`;
        - ``"scaling"``: in half of the cells, at random in each row, the distance from the
          mean of the column is multiplied or divided by 1.25, 1.5, 2, 3 or 4, as for sensors
          that drift or have other units. The cells are drawn row by row, since the result of
          one draw for the whole table would depend on luck;
        - ``"permutation"``: a share of each column's cells, as in ``"missing"``, is
          permuted. The distribution of the column stays, its relation to the others is lost.

        ``"noise"`` and ``"scaling"`` do not change columns of a DataFrame that are not numeric.
    severity : int, default=3
        Severity from 1 (mild) to 5 (strong); 0 returns a copy.
    columns : sequence of names or positions, default=None
        The columns to corrupt. By default all.
    reference : array-like of shape (n_reference, n_features) or DataFrame, default=None
        Table from which means, standard deviations and most frequent values are computed,
        preferably the training data. By default X.
    fill : {"mean", "nan"}, default="mean"
        Value of lost cells. "mean" imputes the mean of numbers and the most frequent of other
        values, so that any estimator can predict. "nan" sets NaN, which converts integers to
        float64 and bool to object.
    random_state : int, RandomState instance or None, default=None
        Seed of the corruptions.

    Returns
    -------
    X_corrupted : ndarray or DataFrame, as X
        Table with the same shape, columns, index and dtypes. Integers are rounded, and numbers
        clipped to the range of their dtype.

    Raises
    ------
    ValueError
        If an argument has another value, X does not have two dimensions, `reference` has
        other columns, or noise or scaling is asked for an array that is not numeric.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(12.0).reshape(4, 3)
    >>> corrupt_table(X, "missing", 5, fill="nan", random_state=0)
    array([[ 0., nan,  2.],
           [ 3.,  4., nan],
           [ 6., nan,  8.],
           [ 9., 10., 11.]])
    """
    if not isinstance(severity, Integral) or not 0 <= severity <= 5:
        raise ValueError(
            "`severity` must be a whole number from 0 (no change) to 5 (most severe). "
            f"Got {severity!r}."
        )
    kinds = TABLE_CORRUPTIONS if isinstance(kind, str) and kind == "all" else kind
    kinds = (kinds,) if isinstance(kinds, str) or not isinstance(kinds, Iterable) else tuple(kinds)
    if not kinds or any(name not in TABLE_CORRUPTIONS for name in kinds):
        raise ValueError(
            f"`kind` must be 'all', one of {', '.join(map(repr, TABLE_CORRUPTIONS))}, or a "
            f"sequence of these. Got {kind!r}."
        )
    if fill not in ("mean", "nan"):
        raise ValueError(f"`fill` must be 'mean' or 'nan'. Got {fill!r}.")
    frame = _as_frame(X, "X")
    reference = frame if reference is None else _as_frame(reference, "reference")
    if not frame.columns.equals(reference.columns):
        raise ValueError(
            "`reference` must have the columns of X. "
            f"Got {list(reference.columns)} for {list(frame.columns)}."
        )
    positions = _positions(frame, columns, named=isinstance(X, pd.DataFrame))
    is_numeric = all(_is_number(column) for _, column in frame.items())
    if not isinstance(X, pd.DataFrame) and set(kinds) & set(_NUMERIC) and not is_numeric:
        raise ValueError(
            "X must be an array of numbers for 'noise' and 'scaling', or a DataFrame of pandas, "
            f"whose other columns they leave alone. Got dtype {frame.dtypes.iloc[0]}."
        )
    corrupted = frame.copy()
    if severity:
        _corrupt_columns(corrupted, kinds, positions, reference, severity, fill, random_state)
    if isinstance(X, pd.DataFrame):
        return corrupted
    values = corrupted.to_numpy()
    return values if fill == "nan" else values.astype(np.asarray(X).dtype)


def _corrupt_columns(frame, kinds, positions, reference, severity, fill, random_state) -> None:
    """Corrupt columns at `positions` in place; each row gets one of the kinds at random."""
    rng = check_random_state(random_state)
    row_kinds = rng.randint(len(kinds), size=len(frame))
    for k, kind in enumerate(kinds):
        for j in positions:
            column, reference_column = (
                c.sparse.to_dense() if isinstance(c.dtype, pd.SparseDtype) else c
                for c in (frame.iloc[:, j], reference.iloc[:, j])
            )
            cells = (row_kinds == k) & column.notna().to_numpy()
            if cells.any() and (kind not in _NUMERIC or _is_number(column)):
                # Without a mean or a most frequent value there is nothing to corrupt by.
                is_number = _is_number(reference_column)
                if is_number and np.isinf(_numbers(reference_column)).any():
                    raise ValueError(f"Column {reference_column.name!r} has infinite values.")
                if reference_column.isna().all():
                    raise ValueError(f"`reference` has no value in column {column.name!r}.")
                corrupted = _TABLE_CORRUPTIONS[kind](
                    column, cells, reference_column, severity, fill, rng
                )
                dtype = frame.dtypes.iloc[j]
                if isinstance(dtype, pd.SparseDtype):
                    corrupted = corrupted.astype(pd.SparseDtype(corrupted.dtype, dtype.fill_value))
                frame.isetitem(j, corrupted)


# Each kind returns the column with some of the `cells` (n,) changed. Missing cells are not among
# them.


def _noise(column, cells, reference, severity, fill, rng):
    """Add normal noise to the cells."""
    std = _STDS[severity - 1] * np.nanstd(_numbers(reference))
    noise = std * rng.standard_normal(len(column))
    return _with_numbers(column, cells, _numbers(column) + noise)


def _scaling(column, cells, reference, severity, fill, rng):
    """Move some of the cells away from or towards the mean of the column, by a factor."""
    factor = _FACTORS[severity - 1]
    # Half of the cells keep their value, a quarter is stretched and a quarter shrunk.
    factors = rng.choice([1.0, 1.0, factor, 1 / factor], len(column))
    mean = np.nanmean(_numbers(reference))
    cells = cells & (factors != 1)
    return _with_numbers(column, cells, mean + factors * (_numbers(column) - mean))


def _missing(column, cells, reference, severity, fill, rng):
    """Lose a share of the cells, and fill them with the mean, the most frequent value or NaN."""
    cells = cells & (rng.uniform(size=len(column)) < _SHARES[severity - 1])
    if not cells.any():
        return column
    if fill == "nan":
        return column.mask(cells)
    if _is_number(column):
        return _with_numbers(column, cells, np.full(len(column), np.nanmean(_numbers(reference))))
    most = reference.mode().iloc[0]
    if isinstance(column.dtype, pd.CategoricalDtype) and most not in column.cat.categories:
        column = column.cat.add_categories([most])
    return column.mask(cells, most)


def _permutation(column, cells, reference, severity, fill, rng):
    """Permute a share of the cells among themselves."""
    cells = np.flatnonzero(cells & (rng.uniform(size=len(column)) < _SHARES[severity - 1]))
    order = np.arange(len(column))
    # Only the chosen cells exchange their values.
    order[cells] = rng.permutation(cells)
    return column.iloc[order].set_axis(column.index)


_TABLE_CORRUPTIONS = {
    "noise": _noise,
    "missing": _missing,
    "scaling": _scaling,
    "permutation": _permutation,
}


def _is_number(column: pd.Series) -> bool:
    return is_numeric_dtype(column.dtype) and not is_bool_dtype(column.dtype)


def _numbers(column: pd.Series) -> np.ndarray:
    return column.to_numpy(dtype="float64", na_value=np.nan)


def _with_numbers(column: pd.Series, cells: np.ndarray, numbers: np.ndarray) -> pd.Series:
    """Return the column with `numbers` in `cells`, in its own dtype and within its range."""
    dtype = np.dtype(getattr(column.dtype, "numpy_dtype", column.dtype))
    is_integer = is_integer_dtype(dtype)
    limits = np.iinfo(dtype) if is_integer else np.finfo(dtype)
    numbers = np.round(numbers[cells]) if is_integer else numbers[cells]
    with np.errstate(invalid="ignore", over="ignore"):  # such numbers are replaced below
        values = numbers.astype(dtype)
    # The limits of 64-bit integers are rounded in float64, so that clipping would not do.
    finite = np.isfinite(numbers)
    values[finite & (numbers >= float(limits.max))] = limits.max
    values[finite & (numbers <= float(limits.min))] = limits.min
    column = column.copy()
    column.iloc[cells] = values
    return column


def _as_frame(X, name: str) -> pd.DataFrame:
    """Return a table as a frame; `name` is that of the parameter."""
    if isinstance(X, pd.DataFrame):
        return X
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(
            f"{name} must be a DataFrame or an array (not a sparse one) of two dimensions. "
            f"Got {X.ndim}."
        )
    return pd.DataFrame(X)


def _positions(frame: pd.DataFrame, columns, named: bool) -> list[int]:
    """Return the positions of `columns`, given by name or position, in the table."""
    if columns is None:
        return list(range(frame.shape[1]))
    if isinstance(columns, (str, Integral)):
        columns = [columns]
    positions: list[int] = []
    for column in columns:
        if named and column in frame.columns:
            positions.extend(np.flatnonzero(frame.columns == column))
        elif isinstance(column, Integral) and -frame.shape[1] <= column < frame.shape[1]:
            positions.append(column % frame.shape[1])
        else:
            raise ValueError(
                f"`columns` must be names or positions of columns of X, {list(frame.columns)}. "
                f"Got {column!r}."
            )
    return sorted(set(positions))
