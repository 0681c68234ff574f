"""Check the order in which truths arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def check_order(time: Any, n_rows: int, last: Any) -> Any:
    """Return the last of the times (n_rows,), or None if there are none.

    Raise ValueError if times are missing, of different kinds, go back, or begin before `last`, the
    last time that was seen earlier (or None).
    """
    if time is None:
        return None
    time = _to_array(time)
    if len(time) != n_rows:
        raise ValueError(f"`time` must have {n_rows} rows, as y. Got {len(time)}.")
    if pd.isna(time).any():
        raise ValueError("`time` must be known for all rows. Got missing values.")
    try:
        back = np.flatnonzero(time[1:] < time[:-1])
        begins_before_last = last is not None and bool(time[0] < last)
    except TypeError as error:
        raise ValueError(
            f"`time` must be of one kind, also in later calls. Got {time[:1]} after {last!r}."
        ) from error
    if len(back):
        raise ValueError(
            f"`time` must not go back: truths are learnt in order. Row {back[0] + 1} is of "
            f"{time[back[0] + 1]}, the row before of {time[back[0]]}. Sort the rows by time."
        )
    if begins_before_last:
        raise ValueError(
            f"`time` must not go back: truths up to {last} have been learnt already. Got {time[0]}."
        )
    return time[-1]


def _to_array(time: Any) -> np.ndarray:
    """Convert times to an array; periods become their start, and times with zones become UTC."""
    index = pd.Index(time)
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if pd.api.types.infer_dtype(index) == "date":  # of the standard library
        index = pd.DatetimeIndex(index)
    if isinstance(index, pd.DatetimeIndex) and index.tz is not None:
        index = index.tz_convert(None)
    values: np.ndarray = index.to_numpy()
    return values
