"""Objects of other libraries that files may hold: forms of their own, or bytes of skops.

skops has a list of types that are safe to load.
"""

from __future__ import annotations

import copyreg
import datetime
import importlib.util
import io
import os
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from sklearn.utils.metadata_routing import MetadataRequest

from skuq._utils._archive import unzip
from skuq._utils._trees import check_dtype, max_referred, read_json
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.tables._columns import frame_to_pandas, is_frame

State = dict[str, Any]


# pandas' types of columns that are stored as lists, and as numbers with a mask.
_LISTED = ("object", "str", "string")
_MASKED = ("boolean", "Float32", "Float64") + tuple(
    f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)
)


_LONGEST_PATH = 4096
# Names that pandas gives to time zones which are offsets.
_OFFSET = re.compile(r"UTC[+-]\d\d:\d\d")


def _encode_frame(frame: pd.DataFrame, where: Any) -> State:
    """Encode the columns of a frame one by one, and its index as one more."""
    if frame.index.nlevels > 1 or frame.columns.nlevels > 1:
        raise UnsavableError(
            f"{where} has an index of several levels, which files cannot hold. Call `reset_index`, "
            "or join the names of the columns, before `fit`."
        )
    return {
        "columns": [_encode_column(column, label, where) for label, column in frame.items()],
        "labels": list(frame.columns),
        "index": _encode_column(frame.index.to_series(), "index", where),
        "names": [frame.index.name, frame.columns.name],
    }


def _encode_column(column: pd.Series, label: Any, where: Any) -> State:
    """Encode the values of a column, or of the index."""
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
    if isinstance(dtype, pd.DatetimeTZDtype):
        zone = str(dtype.tz)
        try:
            found = pd.DatetimeTZDtype(dtype.unit, _zone_name(zone))
        except (TypeError, ValueError, KeyError):
            found = None
        if found == dtype:
            values = column.dt.tz_convert(None).to_numpy()
            return {"dtype": "datetimetz", "values": values, "zone": zone}
    if isinstance(dtype, pd.CategoricalDtype):
        return {
            "dtype": name,
            "values": column.cat.codes.to_numpy(),
            "categories": _encode_column(dtype.categories.to_series(), label, where),
            "ordered": bool(dtype.ordered),
        }
    if isinstance(dtype, pd.IntervalDtype):  # the categories of pandas.cut
        ends = (getattr(column.array, side).to_series() for side in ("left", "right"))
        left, right = (_encode_column(end, label, where) for end in ends)
        return {"dtype": "interval", "left": left, "right": right, "closed": dtype.closed}
    raise UnsavableError(
        f"{where} has a column {label!r} of type {dtype}, which files cannot hold. Convert it "
        "before `fit`, for example by `astype(float)` or `astype(str)`."
    )


def _zone_name(zone: str) -> str:
    """Return a time zone's name if it is an offset or known to `zoneinfo`, else raise an error.

    Pandas follows other names, such as "dateutil//etc/passwd", to files.
    """
    if not _OFFSET.fullmatch(zone):
        ZoneInfo(zone)
    return zone


def _decode_frame(state: State) -> pd.DataFrame:
    """Make a DataFrame of its columns, index and names."""
    index = pd.Index(_decode_column(state["index"]), name=state["names"][0])
    columns = [_decode_column(column).set_axis(index) for column in state["columns"]]
    frame = pd.DataFrame(dict(enumerate(columns)), index)
    frame.columns = pd.Index(state["labels"], name=state["names"][1], tupleize_cols=False)
    return frame


def _decode_column(state: State) -> pd.Series:
    """Decode what `_encode_column` returned."""
    if state["dtype"] == "interval":
        ends = [_decode_column(state[name]) for name in ("left", "right")]
        return pd.Series(pd.arrays.IntervalArray.from_arrays(*ends, closed=state["closed"]))
    dtype, values = state["dtype"], state["values"]
    if dtype in _LISTED and isinstance(values, list):
        whole = np.empty(len(values), dtype=object)
        whole[:] = values
        return pd.Series(whole, dtype=dtype)
    # In memory a column is as large as in the file.
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufcmM":
        raise FileFormatError("a column is no column")
    if dtype in _MASKED and values.dtype != pd.api.types.pandas_dtype(dtype).numpy_dtype:
        raise FileFormatError("a column has values of another type than it says")
    if dtype == "category":
        categories = pd.Index(_decode_column(state["categories"]))
        return pd.Series(pd.Categorical.from_codes(values, categories, ordered=state["ordered"]))
    if dtype in _MASKED:
        return pd.Series(values, dtype=dtype).mask(state["missing"])
    if dtype == "datetimetz":
        zone = _zone_name(state["zone"])
        return pd.Series(values).dt.tz_localize("UTC").dt.tz_convert(zone)
    return pd.Series(values)


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


def _decode_random_state(state: State) -> np.random.RandomState:
    below = {key: part for key, part in state.items() if key not in ("has_gauss", "gauss")}
    made = np.random.RandomState(_bit_generator(below))
    made.set_state(state)
    return made


def _decode_dtype(state: State) -> Any:
    text = state["dtype"]
    dtype = np.dtype(object) if text == "|O" else check_dtype(text)
    return dtype.type if state["is_type"] else dtype


def _decode_path(state: State) -> Path:
    if len(state["path"]) > _LONGEST_PATH:  # they are taken apart slowly
        raise FileFormatError("a path is too long")
    return Path(state["path"])


def encode_requests(requests: MetadataRequest) -> State:
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


def encode(value: Any, where: Any) -> tuple[str, State] | None:
    """Encode an object as ``(name, state)``; None if it has no form here."""
    kind = type(value)
    if kind is np.random.RandomState:
        return "numpy.RandomState", dict(value.get_state(legacy=False))
    if kind is np.random.Generator:
        return "numpy.Generator", dict(value.bit_generator.state)
    is_type = isinstance(value, type) and issubclass(value, np.generic)
    if is_type or isinstance(value, np.dtype):
        return "numpy.dtype", {"dtype": np.dtype(value).str, "is_type": is_type}
    if kind is MetadataRequest:
        return "sklearn.MetadataRequest", encode_requests(value)
    # Frames of polars and pyarrow are loaded as pandas'.
    is_other = kind.__module__.partition(".")[0] in ("polars", "pyarrow") and is_frame(value)
    if kind is pd.DataFrame or is_other:
        return "pandas.DataFrame", _encode_frame(frame_to_pandas(value), where)
    if kind is pd.Series:
        frame = _encode_frame(value.to_frame(0), where)
        return "pandas.Series", {**frame, "name": value.name}
    if kind in (pd.Timestamp, pd.Interval):  # labels of groups can be dates and bins
        return "pandas.value", _encode_frame(pd.Series([value]).to_frame(0), where)
    if kind is datetime.date:
        return "datetime.date", {"date": value.isoformat()}
    if isinstance(value, Path):
        return "pathlib.Path", {"path": os.fspath(value)}
    if kind is slice:
        return "slice", {"start": value.start, "stop": value.stop, "step": value.step}
    return None


# Stored names, and the functions that make objects of their states.
DECODERS: dict[str, Callable[[State], Any]] = {
    "numpy.RandomState": _decode_random_state,
    "numpy.Generator": lambda state: np.random.Generator(_bit_generator(state)),
    "numpy.dtype": _decode_dtype,
    "sklearn.MetadataRequest": decode_requests,
    "pandas.DataFrame": _decode_frame,
    "pandas.Series": lambda state: _decode_frame(state).iloc[:, 0].rename(state["name"]),
    "pandas.value": lambda state: _decode_frame(state).iloc[0, 0],
    "datetime.date": lambda state: datetime.date.fromisoformat(state["date"]),
    "pathlib.Path": _decode_path,
    "slice": lambda state: slice(state["start"], state["stop"], state["step"]),
}


# Not on skops' list, although they are harmless: the dtype of an array that skops has read, which
# encoders hold; a list of column names, which a ColumnTransformer of scikit-learn 1.6 holds;
# splitters that repeat others; and the names of the metadata that an estimator requests.
_SAFE = (
    *(f"sklearn.model_selection._split.{kind}KFold" for kind in ("", "Stratified")),
    *(f"sklearn.model_selection._split.Repeated{kind}KFold" for kind in ("", "Stratified")),
    "numpy.dtype",
    "sklearn.compose._column_transformer._RemainderColsList",
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
)


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
            # From scikit-learn 1.9 on requests of metadata hold the estimator that they belong to,
            # a circle that skops cannot write. In this copy they only name it.
            copied = io.BytesIO()
            pickler = pickle.Pickler(copied)
            pickler.dispatch_table = copyreg.dispatch_table | {
                MetadataRequest: lambda requests: (decode_requests, (encode_requests(requests),))
            }
            pickler.dump(value)
            data = skops.io.dumps(pickle.loads(copied.getvalue()))
        untrusted = skops.io.get_untrusted_types(data=data)
        skuq_types = [kind for kind in untrusted if kind.startswith("skuq.")]
        if not skuq_types:
            skops.io.loads(data, trusted=untrusted)  # of a lambda there is only a useless name
    except Exception:  # parts of the object may raise anything
        return None
    if skuq_types:
        # Estimators say enough; their own parts would fill the message.
        estimators = [kind for kind in skuq_types if kind.startswith("skuq.estimators.")]
        raise UnsavableError(
            f"{where} is a {name} that holds {', '.join(estimators or skuq_types)}. Save the "
            "estimators that it holds by themselves (of a search its best_estimator_, of an "
            "ensemble its estimators_), or pickle the whole, for readers who trust you."
        )
    return np.frombuffer(data, np.uint8)


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
    # skops unpacks by itself, as often as its schema says. Here everything is unpacked once, within
    # the limits, and skops does not compress.
    parts = unzip(data)
    # The bytes of parts, each as often as its name is a text of the schema.
    referred, waiting = 0, [read_json(parts["schema.json"])]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            referred += len(parts.get(item, b""))
    if sum(map(len, parts.values())) > len(data) or referred > max_referred(len(data)):
        raise FileFormatError(f"`{name}` is larger than its file")
    untrusted = set(skops.io.get_untrusted_types(data=data))
    names = [k if isinstance(k, str) else f"{k.__module__}.{k.__qualname__}" for k in trusted]
    if unknown := sorted(untrusted - {*names, *_SAFE}):
        raise FileFormatError(
            f"`{name}` holds objects of types that are not known to be safe: {unknown}. If you "
            f"trust them, load(path, trusted={unknown}) makes them; or give the part itself, "
            f"load(path, parts={{{name!r}: ...}})"
        )
    return skops.io.loads(data, trusted=[*trusted, *_SAFE])
