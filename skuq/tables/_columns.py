"""Validate tables of any kind, read their columns, and find far values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_complex_dtype, is_numeric_dtype
from scipy import sparse
from sklearn.utils.validation import check_array, validate_data

from skuq._formulas import QUARTILES
from skuq._messages import warn_user
from skuq._params import fill_masked, refuse_lazy
from skuq.exceptions import TableWarning

NUMBER, CATEGORY, EMPTY = "number", "category", "empty"
# Kinds of values in a column of objects, by the names of pandas' `infer_dtype`.
_NUMBERS = {"boolean", "integer", "floating", "decimal"}
_TIMES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"}


def read_table(owner: Any, X: Any, *, reset: bool = True, min_rows: int = 1) -> Any:
    """Validate X, and return a 2-d array or a pandas frame.

    X can be an array, a list, or a frame of pandas, polars or pyarrow; missing values are allowed.
    With `reset` the owner (an estimator) stores the number and names of the columns; otherwise they
    are compared. Raise ValueError or TypeError if X is empty, sparse, lazy, records or no table, if
    it has other columns than in `fit`, or if two columns have the same name.
    """
    refuse_lazy(X)
    refuse_sparse(X)
    first = X[0] if isinstance(X, list) and X else X
    if isinstance(first, dict) or getattr(getattr(X, "dtype", None), "names", None):
        raise TypeError("X has its columns in dicts or records. Give `pandas.DataFrame(X)`.")
    if not is_frame(X):
        X = fill_masked(X)
        array = validate_data(
            owner, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=min_rows
        )
        if array.dtype.kind in "US" and not hasattr(X, "dtype"):
            array = np.array(X, dtype=object)  # a list can mix numbers and text
        return array.astype(object) if array.dtype.kind in "US" else array
    frame = frame_to_pandas(X)
    if not frame.columns.is_unique:  # some versions of scikit-learn accept this
        twice = frame.columns[frame.columns.duplicated()].unique().tolist()
        raise ValueError(f"Columns of X must have unique names. Several are named {twice}.")
    validate_data(owner, frame, reset=reset, skip_check_array=True)
    if len(frame) < min_rows or not frame.shape[1]:
        # Raise the same error as for arrays.
        zeros = np.broadcast_to(0.0, frame.shape)
        check_array(zeros, ensure_min_samples=min_rows, estimator=owner)
    return frame


def refuse_sparse(X: Any) -> None:
    """Raise TypeError for a sparse matrix."""
    if sparse.issparse(X):
        raise TypeError(
            "Sparse data was passed for X, but dense data is required: pass `X.toarray()`. In a "
            "pipeline set `OneHotEncoder(sparse_output=False)` or "
            "`ColumnTransformer(.., sparse_threshold=0)`, or leave strings and categories as they "
            "are: they are encoded here."
        )


def frame_to_pandas(X: Any) -> Any:
    """Convert a frame of polars or pyarrow to pandas; return others as they are."""
    if isinstance(X, pd.DataFrame) or not is_frame(X):
        return X
    if not hasattr(X, "get_columns"):
        return X.to_pandas()
    # polars' own `to_pandas` needs pyarrow.
    values = {column.name: column.to_numpy() for column in X.get_columns()}
    return pd.DataFrame(dict(enumerate(values.values()))).set_axis(list(X.columns), axis=1)


def is_frame(X: Any) -> bool:
    """Tell whether X is a frame of pandas, polars or pyarrow."""
    # Check by methods, because polars and pyarrow may not be installed.
    return isinstance(X, pd.DataFrame) or hasattr(X, "get_columns") or hasattr(X, "column_names")


def column_names(X: Any) -> Any:
    """List the names of the columns of a frame; None for tables without."""
    # `columns` of pyarrow are the values.
    is_arrow = not isinstance(X, pd.DataFrame) and hasattr(X, "column_names")
    return getattr(X, "column_names" if is_arrow else "columns", None)


class Columns:
    """Columns of a table returned by `read_table`, which can be read as numbers or as labels."""

    def __init__(self, table, names=None):
        self.n = table.shape[1]
        self._names, self._is_frame = names, isinstance(table, pd.DataFrame)
        self._labels: dict[int, Labels] = {}  # of columns that have been read
        # The numbers of all columns, if all are numbers of NumPy, which is faster to read; and the
        # frame, if there is one or if columns differ.
        dtypes = table.dtypes if self._is_frame else [table.dtype]
        simple = all(isinstance(t, np.dtype) and t.kind in "iufb" for t in dtypes)
        self._array = np.asarray(table, dtype="float64") if simple else None
        self._frame = None if simple and not self._is_frame else pd.DataFrame(table)

    def __len__(self):
        return len(self._array if self._frame is None else self._frame)

    def name(self, k):
        """Return the name of a column, for messages and for names of the output."""
        return f"x{k}" if self._names is None else self._names[k]

    def _column(self, k) -> pd.Series:
        if self._frame is None:
            return pd.Series(self._array[:, k])
        return self._frame.iloc[:, k]

    def kind_to_fit(self, k) -> str:
        """Tell the kind of a column in `fit`: number, category, or empty without any value."""
        if self._array is not None:
            return EMPTY if np.isnan(self._array[:, k]).all() else NUMBER
        column = self._column(k)
        return EMPTY if column.isna().all() else self._kind(column, k)

    def _kind(self, column, k):
        """Tell whether a column holds numbers or categories; refuse dates and complex numbers."""
        dtype = column.dtype
        if isinstance(dtype, pd.CategoricalDtype):
            self._refuse_times(infer_dtype(dtype.categories, skipna=True), k)
            return CATEGORY
        if is_numeric_dtype(dtype) and not is_complex_dtype(dtype):
            return NUMBER
        inferred = infer_dtype(column, skipna=True)
        if inferred == "complex":
            raise ValueError(
                f"Complex data not supported. Column {self.name(k)!r} has complex numbers."
            )
        self._refuse_times(inferred, k)
        numbers = inferred in _NUMBERS
        if inferred.startswith("mixed"):  # such as a column with decimals and floats
            values = column.dropna()
            numbers = all(isinstance(value, Real | Decimal | np.bool_) for value in values)
        return NUMBER if numbers else CATEGORY

    def _refuse_times(self, inferred, k):
        if inferred in _TIMES:
            days = advise_on_times(self.expression(k), inferred)
            raise ValueError(
                f"Column {self.name(k)!r} holds dates or times ({inferred}). Convert it to numbers "
                f"first: year, month, weekday, or days, as {days} gives."
            )

    def expression(self, k) -> str:
        """Write Python code for a column of X as a series of pandas."""
        if self._names is not None:
            return f"X[{str(self._names[k])!r}]"
        return f"X.iloc[:, {k}]" if self._is_frame else f"pandas.Series(X[:, {k}])"

    def warn_of_text(self, k, *, most_texts: int = 1000, few_numbers: int = 10) -> bool:
        """Warn if the texts of a column are numbers or dates; return whether they are.

        The first `most_texts` distinct ones are looked at. A few distinct numbers as text are often
        codes of categories. The dtype `category` says that they are categories.
        """
        if isinstance(self._column(k).dtype, pd.CategoricalDtype):
            return False

        names, code = self.labels(k).names, self.expression(k)
        if infer_dtype(self._column(k), skipna=True) == "bytes":
            code += '.str.decode("utf-8")'
        found = advise_on_texts([str(name).strip() for name in names[:most_texts]], code)
        if found is None or (found.what == "numbers" and len(names) <= few_numbers):
            return False
        warn_user(
            f"Column {self.name(k)!r} holds {found.what} as text, such as {found.examples[0]!r} "
            f"and {found.examples[1]!r}, and is read as {len(names)} categories. {found.advice} If "
            "they are categories, give the column the dtype `category` of pandas.",
            TableWarning,
        )
        return True

    def numbers(self, positions) -> np.ndarray:
        """Read columns as float64, with NaN for missing values.

        Raises ValueError if a column has infinite numbers, or values that are no numbers.
        """
        if self._array is not None:
            numbers = self._array if len(positions) == self.n else self._array[:, positions]
        else:
            numbers = np.empty((len(self._frame), len(positions)))
            for i, k in enumerate(positions):
                column = self._column(k)
                self._kind(column, k)  # refuses dates, which could be converted to numbers
                try:
                    numbers[:, i] = column.to_numpy(dtype="float64", na_value=np.nan)
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"Column {self.name(k)!r} held numbers in fit, and now holds other values: "
                        f"{error}."
                    ) from error
        # Most tables are finite and pass with one check.
        if not np.isfinite(numbers).all() and np.isinf(numbers).any():
            wrong = [self.name(positions[i]) for i in np.flatnonzero(np.isinf(numbers).any(axis=0))]
            raise ValueError(
                f"X contains infinity, in columns {wrong}. Replace it by NaN (missing) or by a "
                "finite number."
            )
        return numbers

    def labels(self, k) -> Labels:
        """Read a column as codes and text labels; values with the same text are one label."""
        if k in self._labels:
            return self._labels[k]
        column = self._column(k)
        self._kind(column, k)  # raises for dates and complex numbers
        try:
            codes, values = pd.factorize(column)
        except TypeError:  # values without a hash, such as lists
            codes, values = pd.factorize(column.map(str, na_action="ignore"))
        names = np.asarray(values, dtype=object)
        if infer_dtype(names, skipna=False) != "string":
            texts = np.empty(len(names), dtype=object)
            for i, value in enumerate(names):
                # Whole numbers are read as floats if values are missing: 1.0 is "1", too.
                is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
                if isinstance(value, bytes):
                    texts[i] = value.decode(errors="replace")
                else:
                    texts[i] = str(int(value) if is_whole else value)
            # Different values can have the same text, as 1 and "1": merge them.
            places, names = pd.factorize(texts)
            codes = np.append(places, -1)[codes]
        self._labels[k] = Labels(codes, names)
        return self._labels[k]


class Labels(NamedTuple):
    """Labels of n rows: positions (n,) in `names`, -1 for missing values; and distinct names."""

    codes: np.ndarray
    names: np.ndarray

    @property
    def has_gaps(self) -> bool:
        """Whether some row has no label."""
        return bool((self.codes < 0).any())


_ROWS_LOOKED_AT = 10_000  # rows from which quartiles are computed


class FarValues(NamedTuple):
    """Positions of the far values (`rows`, `columns`), and bounds of all others (`low`, `high`).

    The bounds have shape (d,), one for each column.
    """

    rows: np.ndarray
    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def describe(
        self, table: np.ndarray, row_numbers: np.ndarray, names: Sequence[Any], most: int = 3
    ) -> str:
        """Name the first of the values, with the row numbers (n,) that the user knows."""
        places = [
            f"{table[row, k]:.6g} in column {names[k]!s}, row {row_numbers[row]}"
            for row, k in zip(self.rows[:most], self.columns)
        ]
        n_others = len(self.rows) - len(places)
        return "; ".join([*places, *([f"and {n_others} more"] if n_others else [])])


def find_far_values(table: np.ndarray, *, ratio: float = 1000.0) -> FarValues | None:
    """Find the far values of a table (n, d) of finite numbers; None if there are none.

    A value is far if it alone makes a column's standard deviation at least `ratio` times the spread
    of the other values. To a network the others would then all be the same number. Columns without
    any are bounded by infinities.
    """
    n, d = table.shape
    reach, every = ratio * np.sqrt(n), math.ceil(n / _ROWS_LOOKED_AT)
    # Halve first, since the distance of two numbers can overflow. One value at distance D from n
    # others gives a standard deviation of about D / sqrt(n).
    first, median, third = np.quantile(table[::every] / 2, QUARTILES, axis=0)
    spread = third - first
    farthest = np.maximum(table.max(axis=0) / 2 - median, median - table.min(axis=0) / 2)
    low, high, is_far = np.full(d, -np.inf), np.full(d, np.inf), {}
    for k in np.flatnonzero(farthest / reach > spread):
        column, typical = table[:, k], spread[k]
        distance = abs(column / 2 - median[k])
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


_SHARE = 0.9  # share of texts of one kind; others may be words for a missing value
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = (
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
    r"|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{2}[/.]\d{2}[/.]\d{2}"
    rf"|(\d{{1,2}}[-. ]+)?{_MONTH}[-., ]+(\d{{1,2}}[., ]+)?\d{{4}}"
)
_DATE = rf"({_DAY})([T ]+{_CLOCK})?(Z|[-+]\d{{2}}:?\d{{2}})?"
# Number with groups of three digits, and a currency before or a unit behind it.
_QUANTITY = re.compile(
    r"(?P<minus>[-+]?)\s*(?P<currency>[A-Z]{0,3}[$¢£¥\u20a0-\u20cf]|[A-Z]{3}\b)?\s*"
    r"(?P<number>(?=[-+]?[.,]?\d)[-+]?(\d{1,3}(?P<group>[ ,.'\u00a0\u202f])(\d{3}(?P=group))*\d{3}"
    r"|\d+)?([.,]\d+)?)\s*(?P<unit>[^\d\s,;:.()+-]{0,8})"
)


class Advice(NamedTuple):
    """Two example texts of a column, and the code that converts it."""

    what: str
    examples: list[str]
    advice: str


def days_since(column: str, options: str = "") -> str:
    """Write code that converts dates to days."""
    return (
        f"(pandas.to_datetime({column}, utc=True{options}) - "
        'pandas.Timestamp("2000-01-01", tz="UTC")) / pandas.Timedelta("1D")'
    )


def advise_on_times(column: str, inferred: str) -> str:
    """Write code that converts a column of the type that pandas infers, of dates or times."""
    if inferred == "period":
        return days_since(f"pandas.PeriodIndex({column}).to_timestamp()")
    if inferred == "time":
        column = f'{column}.astype(str), errors="coerce"'
    elif not inferred.startswith("timedelta"):
        return days_since(column)
    return f'pandas.to_timedelta({column}) / pandas.Timedelta("1D")'


def advise_on_texts(texts: list[str], column: str) -> Advice | None:
    """Recognise dates, times and numbers among distinct texts; None if they are words.

    `column` is code for the column, from which the advice makes code that converts it.
    """
    enough = max(2, _SHARE * len(texts))
    times = [text for text in texts if re.fullmatch(_CLOCK, text)]
    if len(times) >= enough:
        days = days_since(f'"2000-01-01 " + {column}', ', errors="coerce", format="mixed"')
        return Advice("times", times, f"Convert them to numbers first, as {days} does.")
    dates = [text for text in texts if re.fullmatch(_DATE, text)]
    if len(dates) >= enough:
        return _advise_on_dates(dates, column)
    return _advise_on_numbers(texts, column, enough)


def _advise_on_dates(dates: list[str], column: str) -> Advice | None:
    """Advise how to convert dates; without code if the order of day and month is not clear."""
    parts = [m for date in dates if (m := re.match(r"(\d\d?)([-/.])(\d\d?)[-/.]", date))]
    no_month = [{int(m[k]) for m in parts} & set(range(13, 32)) for k in (1, 3)]
    # Days come first where points divide, and where the first number is no month.
    points = len(parts) == len(dates) and all(m[2] == "." for m in parts) and not no_month[1]
    day_first = points or bool(no_month[0])
    read = pd.to_datetime(
        pd.Series(dates), utc=True, errors="coerce", format="mixed", dayfirst=day_first
    )
    if read.notna().mean() < _SHARE:
        return None
    advice = "Convert them to numbers first, by pandas.to_datetime with their `format`."
    if not (day_first and (no_month[1] or len(parts) < len(dates))):
        k = read.first_valid_index()
        days = days_since(column, f', errors="coerce", format="mixed", dayfirst={day_first}')
        reading = f"It reads {dates[k]!r} as {read[k]:%d %B %Y}."
        advice = f"Convert them to numbers first, as {days} does. {reading}"
    return Advice("dates", dates, advice)


def _advise_on_numbers(texts: list[str], column: str, enough: float) -> Advice | None:
    """Advise how to convert numbers, if there are `enough` among distinct texts."""
    plain = pd.to_numeric(pd.Series(texts), errors="coerce").notna()
    code, what, examples = column, "numbers", [t for t, holds in zip(texts, plain) if holds]
    if len(examples) < enough:
        quantities = {text: m for text in texts if (m := _QUANTITY.fullmatch(text))}
        examples = list(quantities)
        units = {(match["currency"] or "") + match["unit"] for match in quantities.values()}
        # A letter behind a number, another one for each number, is a name such as 12B.
        few = len(examples) < 3 and not units <= {"", *"%‰°€$£¥"}
        if len(examples) < enough or len(units - {""}) > 1 or few:
            return None
        numbers = [match["number"] for match in quantities.values()]
        # A comma is decimal if another mark makes groups, if it leaves no three digits behind it,
        # or if it stands behind a zero.
        decimal = r"[.' \u00a0\u202f]\d{3},|^[-+]?(0?,\d+|\d*,(\d{1,2}|\d{4,}))$"
        is_decimal = any(re.search(decimal, number) for number in numbers)
        point, what = (",", "a decimal comma") if is_decimal else (".", "a unit or groups")
        what = f"numbers with {what}"
        code = rf'{code}.str.replace(r"[^\d{point}+-]", "", regex=True)'
        code += '.str.replace(",", ".")' if is_decimal else ""
    code = f'pandas.to_numeric({code}, errors="coerce")'
    return Advice(what, examples, f"If they are numbers, convert them first, as {code} does.")
