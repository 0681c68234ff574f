"""Objects of other libraries that files may hold: forms of their own, or bytes of skops.

skops has a list of types that are safe to load.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import MetadataRequest

from skuq._utils._archive import unzip
from skuq.exceptions import FileFormatError, UnsavableError

State = dict[str, Any]


def encode(value: Any) -> tuple[str, State] | None:
    """Encode an object as ``(name, state)``; None if it has no form here."""
    if isinstance(value, type) and issubclass(value, np.generic):
        return "numpy.type", {"dtype": np.dtype(value).str}
    if isinstance(value, Path):
        return "pathlib.Path", {"path": os.fspath(value)}
    if type(value) is slice:
        return "slice", {"start": value.start, "stop": value.stop, "step": value.step}
    if type(value) is pd.DataFrame:  # the teams of an `HQEnsembleSelector`
        columns = [column.to_numpy() for _, column in value.items()]
        state = {"labels": list(value.columns), "columns": columns}
        return ("pandas.DataFrame", state) if _decode_frame(state).equals(value) else None
    if type(value) is MetadataRequest:
        owner = value.owner if isinstance(value.owner, str) else type(value.owner).__name__
        methods = {name: m for name, m in vars(value).items() if hasattr(m, "requests")}
        requests = {name: dict(method.requests) for name, method in methods.items()}
        return "sklearn.MetadataRequest", {"owner": owner, "requests": requests}
    return None


def _decode_frame(state: State) -> pd.DataFrame:
    return pd.DataFrame(dict(zip(state["labels"], state["columns"])))


def _decode_requests(state: State) -> MetadataRequest:
    made = MetadataRequest(owner=str(state["owner"]))
    for method, requests in state["requests"].items():
        for param, alias in requests.items():
            vars(made)[method].add_request(param=param, alias=alias)
    return made


# Stored names, and the functions that make objects of their states.
DECODERS: dict[str, Callable[[State], Any]] = {
    "numpy.type": lambda state: np.dtype(state["dtype"]).type,
    "pandas.DataFrame": _decode_frame,
    "pathlib.Path": lambda state: Path(state["path"]),
    "slice": lambda state: slice(state["start"], state["stop"], state["step"]),
    "sklearn.MetadataRequest": _decode_requests,
}


# Not on skops' list, although they are harmless: the dtype of an array that skops has read, which
# encoders hold; a list of column names, which a ColumnTransformer of scikit-learn 1.6 holds; and
# splitters that repeat others.
_SAFE = (
    *(f"sklearn.model_selection._split.{kind}KFold" for kind in ("", "Stratified")),
    *(f"sklearn.model_selection._split.Repeated{kind}KFold" for kind in ("", "Stratified")),
    "numpy.dtype",
    "sklearn.compose._column_transformer._RemainderColsList",
)


def is_foreign(value: Any) -> bool:
    """Tell whether an object is one of scikit-learn or a generator of NumPy, for skops to save."""
    kind = type(value)
    generators = np.random.RandomState, np.random.Generator
    is_of_sklearn = isinstance(value, BaseEstimator) or kind.__module__.startswith("sklearn.")
    return kind in generators or (is_of_sklearn and not kind.__module__.startswith("skuq."))


def dump_foreign(value: Any, where: str) -> np.ndarray:
    """Encode an object as bytes.

    Raise UnsavableError if skops is not installed or cannot write the object, or could not read it
    again, or if the object holds one of skuq.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if importlib.util.find_spec("skops") is None:
        raise UnsavableError(
            f'{where} is a {name}, which is saved with skops: pip install "skuq[skops]".'
        )
    import skops.io

    try:
        data = skops.io.dumps(value)
        untrusted = skops.io.get_untrusted_types(data=data)
        skuq_types = [kind for kind in untrusted if kind.startswith("skuq.")]
        if not skuq_types:
            skops.io.loads(data, trusted=untrusted)  # of a lambda there is only a useless name
    except Exception as error:  # parts of the object may raise anything
        raise UnsavableError(
            f"{where} is a {name}, which skops cannot save: {error!r:.200}. If it holds lambdas, "
            "put functions of a module in their place."
        ) from error
    if skuq_types:
        raise UnsavableError(
            f"{where} is a {name} that holds {skuq_types[0]}. Save the "
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

    data = data.tobytes()
    unzip(data, methods=(zipfile.ZIP_STORED,))  # skops neither compresses nor bounds what it reads
    untrusted = set(skops.io.get_untrusted_types(data=data))
    names = [k if isinstance(k, str) else f"{k.__module__}.{k.__qualname__}" for k in trusted]
    if unknown := sorted(untrusted - {*names, *_SAFE}):
        raise FileFormatError(
            f"`{name}` holds objects of types that are not known to be safe: {unknown}. If you "
            f"trust them, load(path, trusted={unknown}) makes them; or give the part itself, "
            f"load(path, parts={{{name!r}: ...}})"
        )
    made = skops.io.loads(data, trusted=[*trusted, *_SAFE])
    _check_generators(made, {})
    return made


def _check_generators(value: Any, seen: dict[int, Any]) -> None:
    """Refuse generators with a position beyond their numbers, where NumPy would read anything."""
    if id(value) in seen or isinstance(value, type):
        return
    seen[id(value)] = value
    state: Any = None
    if isinstance(value, np.random.RandomState):
        state = value.get_state(legacy=False)
    elif isinstance(value, np.random.Generator):
        state = value.bit_generator.state
    if state is not None:
        places = state.get("buffer_pos", 0), state["state"].get("pos", 0)
        if not (0 <= places[0] <= 4 and 0 <= places[1] <= 624):
            raise FileFormatError("it has a random generator with a position that there is not")
    parts = vars(value).values() if hasattr(value, "__dict__") else ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, np.ndarray) and value.dtype == object:
        parts = value.ravel()
    for part in parts:
        _check_generators(part, seen)
