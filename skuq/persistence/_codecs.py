"""Objects of other libraries that files may hold: forms of their own, or bytes of skops.

skops has a list of types that are safe to load.
"""

from __future__ import annotations

import datetime
import importlib.util
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import MetadataRequest

from skuq._utils._trees import check_dtype
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.tables._columns import frame_to_pandas, is_frame

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


# pandas' types of columns that are stored as lists, and as numbers with a mask.
_LISTED = ("object", "str", "string")
_MASKED = ("boolean", "Float32", "Float64") + tuple(
    f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)
)


def _encode_frame(frame: pd.DataFrame, where: Any) -> State:
    """Encode the columns of a frame one by one, then those of its index."""
    index = [frame.index.get_level_values(k).to_series() for k in range(frame.index.nlevels)]
    return {
        "columns": [_encode_column(column, label, where) for label, column in frame.items()],
        "labels": list(frame.columns),
        "label_names": list(frame.columns.names),
        "index": [_encode_column(level, "index", where) for level in index],
        "index_names": list(frame.index.names),
    }


def _encode_column(column: pd.Series, label: Any, where: Any) -> State:
    """Encode the values of a column, or of a level of the index."""
    dtype, name = column.dtype, str(column.dtype)
    if name in _LISTED:
        values = column.astype(object)
        if name != "object":  # pandas has values of its own for missing texts
            values = values.where(values.notna(), None)
        return {"dtype": name, "values": values.tolist()}
    if isinstance(dtype, np.dtype):
        return {"dtype": name, "values": column.to_numpy()}
    if name in _MASKED:
        filled = column.fillna(dtype.type(0)).to_numpy(dtype.numpy_dtype)
        return {"dtype": name, "values": filled, "missing": column.isna().to_numpy()}
    if isinstance(dtype, pd.DatetimeTZDtype) and _has_named_zone(dtype):
        values = column.dt.tz_convert(None).to_numpy()
        return {"dtype": "datetimetz", "values": values, "zone": str(dtype.tz)}
    if isinstance(dtype, pd.PeriodDtype):
        return {"dtype": "period", "values": column.array.asi8, "type": name}
    if isinstance(dtype, pd.IntervalDtype):  # the categories of pandas.cut
        ends = [end.to_series() for end in (column.array.left, column.array.right)]
        left, right = (_encode_column(end, label, where) for end in ends)
        return {"dtype": "interval", "left": left, "right": right, "closed": dtype.closed}
    if isinstance(dtype, pd.CategoricalDtype):
        return {
            "dtype": name,
            "values": column.cat.codes.to_numpy(),
            "categories": _encode_column(dtype.categories.to_series(), label, where),
            "ordered": bool(dtype.ordered),
        }
    if isinstance(dtype, pd.SparseDtype):
        dense = _encode_column(column.sparse.to_dense(), label, where)
        return {"dtype": "sparse", "values": dense, "fill": dtype.fill_value}
    raise UnsavableError(
        f"{where} has a column {label!r} of type {dtype}, which files cannot hold. Convert it "
        "before `fit`, for example by `astype(float)` or `astype(str)`."
    )


def _has_named_zone(dtype: pd.DatetimeTZDtype) -> bool:
    """Tell whether a time zone is found again by its name."""
    try:
        return bool(pd.DatetimeTZDtype(dtype.unit, str(dtype.tz)) == dtype)
    except (TypeError, ValueError, KeyError):
        return False


def _decode_frame(state: State) -> pd.DataFrame:
    """Make a DataFrame of its columns, index and names."""
    levels = [_decode_column(level) for level in state["index"]]
    names = state["index_names"]
    if len(levels) == 1:
        index = pd.Index(levels[0], name=names[0])
    else:
        index = pd.MultiIndex.from_arrays(levels, names=names)
    columns = [_decode_column(column) for column in state["columns"]]
    frame = pd.DataFrame({k: column.set_axis(index) for k, column in enumerate(columns)}, index)
    labels, names = state["labels"], state["label_names"]
    if len(names) == 1:
        frame.columns = pd.Index(labels, name=names[0], tupleize_cols=False)
    else:
        frame.columns = pd.MultiIndex.from_tuples(labels, names=names)
    return frame


def _decode_column(state: State) -> pd.Series:
    """Decode what `_encode_column` returned."""
    dtype = state["dtype"]
    if dtype == "interval":
        ends = [_decode_column(state[name]) for name in ("left", "right")]
        return pd.Series(pd.arrays.IntervalArray.from_arrays(*ends, closed=state["closed"]))
    values = state["values"]
    if dtype == "sparse":
        dense = _decode_column(values)
        return pd.Series(pd.arrays.SparseArray(dense, fill_value=state["fill"]))
    if dtype in _LISTED and isinstance(values, list):
        whole = np.empty(len(values), dtype=object)
        whole[:] = values
        return pd.Series(whole, dtype=dtype)
    if not isinstance(values, np.ndarray):
        raise FileFormatError("a column is no column")
    if dtype == "category":
        categories = pd.Index(_decode_column(state["categories"]))
        return pd.Series(pd.Categorical.from_codes(values, categories, ordered=state["ordered"]))
    if dtype in _MASKED:
        return pd.Series(values, dtype=dtype).mask(state["missing"])
    if dtype == "datetimetz":
        return pd.Series(values).dt.tz_localize("UTC").dt.tz_convert(state["zone"])
    if dtype == "period":
        return pd.Series(pd.arrays.PeriodArray(values, dtype=state["type"]))
    return pd.Series(values)


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
    """Make one of NumPy's bit generators, whose position must lie within its numbers."""
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


def _is_plain_frame(value: Any) -> bool:
    """Whether a value is a frame of pandas, polars or pyarrow. All are loaded as pandas'."""
    package = type(value).__module__.split(".")[0]
    return type(value) is pd.DataFrame or (package in ("polars", "pyarrow") and is_frame(value))


def _is_dtype(value: Any) -> bool:
    is_type = isinstance(value, type) and issubclass(value, np.generic)
    return is_type or isinstance(value, np.dtype)


def _encode_dtype(value: Any, where: Any) -> State:
    return {"dtype": np.dtype(value).str, "type": isinstance(value, type)}


def _decode_dtype(state: State) -> Any:
    text = state["dtype"]
    dtype = np.dtype(object) if text == "|O" else check_dtype(text, "a type")
    return dtype.type if state["type"] else dtype


def encode_requests(requests: MetadataRequest, where: Any) -> State:
    """Encode which metadata an estimator requests, with the name of its class."""
    owner = requests.owner if isinstance(requests.owner, str) else type(requests.owner).__name__
    methods = {name: part for name, part in vars(requests).items() if hasattr(part, "requests")}
    return {"owner": owner, "requests": {k: dict(part.requests) for k, part in methods.items()}}


def decode_requests(state: State) -> MetadataRequest:
    """Make what `encode_requests` has encoded."""
    made = MetadataRequest(owner=str(state["owner"]))
    for method, requests in state["requests"].items():
        for param, alias in requests.items():
            vars(made)[method].add_request(param=param, alias=alias)
    return made


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
        "sklearn.MetadataRequest",
        lambda value: type(value) is MetadataRequest,
        encode_requests,
        decode_requests,
    ),
    _Codec(
        "pandas.DataFrame",
        _is_plain_frame,
        lambda frame, where: _encode_frame(frame_to_pandas(frame), where),
        _decode_frame,
    ),
    _Codec("pandas.Series", lambda value: type(value) is pd.Series, _encode_series, _decode_series),
    _Codec(
        "pandas.scalar",
        lambda value: isinstance(value, pd.Timestamp | pd.Timedelta | pd.Period | pd.Interval),
        lambda value, where: {"column": _encode_column(pd.Series([value]), "value", where)},
        lambda state: _decode_column(state["column"])[0],
    ),
    _Codec(
        "datetime.date",
        lambda value: type(value) is datetime.date,
        lambda day, where: {"day": day.isoformat()},
        lambda state: datetime.date.fromisoformat(state["day"]),
    ),
    _Codec(
        "pathlib.Path",
        lambda value: isinstance(value, Path),
        lambda path, where: {"path": os.fspath(path)},
        lambda state: Path(state["path"]),
    ),
    _Codec(
        "decimal.Decimal",
        lambda value: type(value) is Decimal,
        lambda number, where: {"digits": str(number)},
        lambda state: Decimal(state["digits"]),
    ),
    _Codec(
        "slice",
        lambda value: type(value) is slice,
        lambda value, where: {"start": value.start, "stop": value.stop, "step": value.step},
        _decode_slice,
    ),
)

DECODERS = {codec.name: codec.decode for codec in _CODECS}


# Not on skops' list, although they are harmless: the dtype of an array that skops has read, which
# encoders hold; a list of column names, which a ColumnTransformer of scikit-learn 1.6 holds; and
# the names of the metadata that an estimator requests.
_SAFE = (
    "numpy.dtype",
    "sklearn.compose._column_transformer._RemainderColsList",
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
)


def is_foreign(value: Any) -> bool:
    """Whether an object is scikit-learn's, or an estimator in its style."""
    if isinstance(value, type) or type(value).__module__.startswith("skuq."):
        return False
    return isinstance(value, BaseEstimator) or type(value).__module__.startswith("sklearn.")


def dump_foreign(value: Any, where: Any) -> np.ndarray | None:
    """Encode an object as bytes; None if skops cannot, or could not read them again.

    Raise UnsavableError if skops is not installed, or the object holds one of skuq.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if importlib.util.find_spec("skops") is None:
        raise UnsavableError(
            f'{where} is a {name}, which is saved with skops: pip install "skuq[skops]".'
        )
    import skops.io

    try:
        try:
            data = skops.io.dumps(value)
        except RecursionError:
            data = skops.io.dumps(_without_owners(value))
        untrusted = skops.io.get_untrusted_types(data=data)
        skuq_types = [kind for kind in untrusted if kind.startswith("skuq.")]
        if not skuq_types:
            skops.io.loads(data, trusted=untrusted)  # of a lambda there is only a useless name
    except Exception:  # parts of the object may raise anything
        return None
    if skuq_types:
        raise UnsavableError(
            f"{where} is a {name} that holds {', '.join(skuq_types)}. Save that by itself (of a "
            "search its best_estimator_), or put it in a sklearn.pipeline.Pipeline."
        )
    return np.frombuffer(data, np.uint8)


class _RequestsByName(pickle.Pickler):
    """Pickle requests of metadata with the name of their owner instead of the owner."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MetadataRequest):
            return decode_requests, (encode_requests(value, None),)
        return NotImplemented


def _without_owners(value: Any) -> Any:
    """Copy an object whose requests of metadata only name the estimator that they belong to.

    From scikit-learn 1.9 on they hold it, and skops cannot write this circle.
    """
    data = io.BytesIO()
    _RequestsByName(data).dump(value)
    return pickle.loads(data.getvalue())


def load_foreign(data: Any, trusted: Sequence[str | type], name: str) -> Any:
    """Make the object that `dump_foreign` has encoded.

    Raise FileFormatError if it is broken, or holds a type that is neither on skops' list nor in
    `trusted`.
    """
    if importlib.util.find_spec("skops") is None:
        raise FileFormatError(f'`{name}` was saved with skops: pip install "skuq[skops]"')
    import skops.io

    if type(data) is not np.ndarray or data.dtype != np.uint8:
        raise FileFormatError(f"`{name}` is not what skops writes")
    data = data.tobytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
        # skops does not compress by default, so nothing can grow beyond the file's size.
        if any(i.compress_type or i.file_size != i.compress_size for i in infos):
            raise FileFormatError(f"`{name}` is compressed")
        if sum(info.file_size for info in infos) > len(data):
            raise FileFormatError(f"`{name}` overlaps itself")
        untrusted = set(skops.io.get_untrusted_types(data=data))
    except FileFormatError:
        raise
    except Exception as error:  # skops checks little before it reads
        raise FileFormatError(f"`{name}` is broken ({type(error).__name__}: {error})") from error
    names = [k if isinstance(k, str) else f"{k.__module__}.{k.__qualname__}" for k in trusted]
    allowed = {*names, *_SAFE}
    if unknown := sorted(untrusted - allowed):
        raise FileFormatError(
            f"`{name}` holds objects of types that are not known to be safe: {unknown}. If you "
            f"trust them, load(path, trusted={unknown}) makes them; or give the part itself, "
            f"load(path, parts={{{name!r}: ...}})"
        )
    try:
        return skops.io.loads(data, trusted=[*trusted, *_SAFE])
    except Exception as error:
        raise FileFormatError(f"`{name}` is broken ({type(error).__name__}: {error})") from error
