"""Forms of the objects of other libraries that files may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from skuq._npy import check_dtype
from skuq.exceptions import FileFormatError, UnsavableError

State = dict[str, Any]


class _Codec(NamedTuple):
    """Recognise, encode and decode one kind of object."""

    name: str
    matches: Callable[[Any], bool]  # object -> bool
    encode: Callable[[Any, Any], State]  # (object, where) -> state
    decode: Callable[[State], Any]  # state -> object


def encode(value: Any, where: Any) -> tuple[str, State] | None:
    """Encode an object as ``(name, state)``; None if it has no form here."""
    for codec in _CODECS:
        if codec.matches(value):
            return codec.name, codec.encode(value, where)
    return None


# Types of columns that are stored as lists.
_FRAME_DTYPES = ("object", "str", "string")


def _encode_frame(frame: pd.DataFrame, where: Any) -> State:
    for labels in (frame.index, frame.columns):
        if type(labels) not in (pd.Index, pd.RangeIndex) or not _is_frame_dtype(labels.dtype):
            raise UnsavableError(f"{where} has a {type(labels).__name__} of {labels.dtype}.")
    columns = {}
    for position, (label, column) in enumerate(frame.items()):
        dtype = column.dtype
        if not _is_frame_dtype(dtype):  # pandas' own types would come back as others
            raise UnsavableError(f"{where} has a column {label!r} of {dtype}.")
        values = column.tolist() if str(dtype) in _FRAME_DTYPES else column.to_numpy()
        columns[str(position)] = {"label": label, "dtype": str(dtype), "values": values}
    names = [frame.index.name, frame.columns.name]
    return {"columns": columns, "index": frame.index.tolist(), "names": names}


def _is_frame_dtype(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) or str(dtype) in _FRAME_DTYPES


def _decode_frame(state: State) -> pd.DataFrame:
    """Make a DataFrame of its columns, index and names."""
    index = state["index"]
    index = pd.RangeIndex(len(index)) if index == list(range(len(index))) else _labels(index)
    labels, series = [], []
    for column in state["columns"].values():
        values, dtype = column["values"], column["dtype"]
        if isinstance(values, np.ndarray):
            series.append(pd.Series(values, index=index))
        elif isinstance(values, list) and dtype in _FRAME_DTYPES:
            whole = np.empty(len(values), dtype=object)
            whole[:] = values
            series.append(pd.Series(whole, index=index, dtype=dtype))
        else:
            raise FileFormatError("a column is no column")
        labels.append(column["label"])
    frame = pd.DataFrame(dict(enumerate(series)), index=index)
    frame.columns = _labels(labels)
    # Files of earlier versions have no names.
    frame.index.name, frame.columns.name = state.get("names", [None, None])
    return frame


def _labels(labels: list[Any]) -> pd.Index:
    return pd.Index(labels, tupleize_cols=False)  # tuples are labels, not levels


def _encode_series(series: pd.Series, where: Any) -> State:
    return {**_encode_frame(series.to_frame(0), where), "name": series.name}


def _decode_series(state: State) -> pd.Series:
    series = _decode_frame(state).iloc[:, 0]
    series.name = state["name"]
    return series


def _encode_generator(generator: np.random.Generator, where: Any) -> State:
    return dict(generator.bit_generator.state)


def _encode_random_state(generator: np.random.RandomState, where: Any) -> State:
    return dict(generator.get_state(legacy=False))


# Generators whose C code reads at a position that the state gives: (part of the state that holds
# it, its name, first position out of range).
_ENDS = {"MT19937": ("state", "pos", 625), "Philox": (None, "buffer_pos", 5)}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def _bit_generator(state: State) -> np.random.BitGenerator:
    name = state["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise FileFormatError(f"{str(name)[:50]!r} is no bit generator of NumPy")
    if name in _ENDS:
        inner, key, end = _ENDS[name]
        position = (state[inner] if inner else state)[key]
        if type(position) is not int or not 0 <= position < end:
            raise FileFormatError("a bit generator stands beside its numbers")
    made: np.random.BitGenerator = getattr(np.random, name)(0)
    made.state = state
    return made


def _decode_generator(state: State) -> np.random.Generator:
    return np.random.Generator(_bit_generator(state))


def _decode_random_state(state: State) -> np.random.RandomState:
    below = {key: part for key, part in state.items() if key not in ("has_gauss", "gauss")}
    made = np.random.RandomState(_bit_generator(below))
    made.set_state(state)
    return made


def _decode_slice(state: State) -> slice:
    parts = [state[name] for name in ("start", "stop", "step")]
    if not all(part is None or type(part) is int for part in parts):
        raise FileFormatError("a slice is no slice")
    return slice(*parts)


def _is_dtype(value: Any) -> bool:
    is_type = isinstance(value, type) and issubclass(value, np.generic)
    return is_type or isinstance(value, np.dtype)


def _encode_dtype(value: Any, where: Any) -> State:
    return {"dtype": np.dtype(value).str, "type": isinstance(value, type)}


def _decode_dtype(state: State) -> Any:
    text = state["dtype"]
    dtype = np.dtype(object) if text == "|O" else check_dtype(text, "a type")
    return dtype.type if state["type"] else dtype


_CODECS = (
    _Codec(
        "numpy.RandomState",
        lambda value: type(value) is np.random.RandomState,
        _encode_random_state,
        _decode_random_state,
    ),
    _Codec(
        "numpy.Generator",
        lambda value: type(value) is np.random.Generator,
        _encode_generator,
        _decode_generator,
    ),
    _Codec("numpy.dtype", _is_dtype, _encode_dtype, _decode_dtype),
    _Codec(
        "sklearn.Bunch",
        lambda value: type(value) is Bunch,
        lambda bunch, where: dict(bunch),
        lambda state: Bunch(**state),
    ),
    _Codec(
        "pandas.DataFrame", lambda value: type(value) is pd.DataFrame, _encode_frame, _decode_frame
    ),
    _Codec("pandas.Series", lambda value: type(value) is pd.Series, _encode_series, _decode_series),
    _Codec(
        "pathlib.Path",
        lambda value: isinstance(value, Path),
        lambda path, where: {"path": os.fspath(path)},
        lambda state: Path(state["path"]),
    ),
    _Codec(
        "slice",
        lambda value: type(value) is slice,
        lambda own, where: {"start": own.start, "stop": own.stop, "step": own.step},
        _decode_slice,
    ),
)

DECODERS = {codec.name: codec.decode for codec in _CODECS}
