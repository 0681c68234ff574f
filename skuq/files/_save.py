"""Objects of other libraries that files may hold: forms of their own, or bytes of skops.

skops has a list of types that are safe to load.
"""

import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import joblib
import numpy as np
import pandas as pd
from sklearn import model_selection, preprocessing
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, TargetTags
from sklearn.utils.metadata_routing import MetadataRequest

from skuq.exceptions import FileFormatError, MissingPartError, UnsavableError
from skuq.files import _archive
from skuq.files._archive import atomic_write, unzip
from skuq.files._registry import BY_CLASS, saved_as

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
        if "numpy.memmap" in untrusted:  # mapped from a file; joblib writes plain arrays
            joblib.dump(value, buffer := io.BytesIO())
            buffer.seek(0)
            data = skops.io.dumps(joblib.load(buffer))
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
            f"{where} is a {name} that holds {skuq_types[0]}. Put scikit-learn's pipelines in the "
            "place of skuq's, save other estimators by themselves (of a search its "
            "best_estimator_, of an ensemble its estimators_), or pickle it."
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


# Classes of scikit-learn that files hold by their attributes, as they hold skuq's, and not as bytes
# of skops: fitted estimators have them inside, and files are read without skops installed. They
# are registered here, beside the other forms of foreign objects, as no file of skuq defines them.
for _cls in (FrozenEstimator, Pipeline):
    saved_as(f"sklearn.{_cls.__name__}", kind="estimator")(_cls)
for _name in ("OneHotEncoder", "OrdinalEncoder", "StandardScaler"):
    saved_as(f"sklearn.{_name}")(getattr(preprocessing, _name))
for _name in (
    *("GroupKFold", "GroupShuffleSplit", "KFold", "LeaveOneGroupOut", "LeaveOneOut"),
    *("ShuffleSplit", "StratifiedGroupKFold", "StratifiedKFold", "StratifiedShuffleSplit"),
    "TimeSeriesSplit",
):
    saved_as(f"sklearn.{_name}")(getattr(model_selection, _name))


@dataclass(frozen=True)
class MissingPart:
    """Placeholder for a function or object of the user that was not saved.

    Every use raises `MissingPartError`. Parts that a fitted estimator needs only to fit again may
    stay missing.
    """

    name: str
    description: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingPartError(
            f"`{self.name}` ({self.description}) was not saved: give it to skuq.load(path, "
            f"parts={{{self.name!r}: ...}}), to `from_catalog` by its name, or to `set_params`."
        )

    def __sklearn_tags__(self) -> Tags:
        # An estimator asks its missing `preprocess` for them, also to predict with a fitted one.
        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    # The methods by which constraints of parameters recognise spaces, oracles and estimators: a
    # loaded estimator has valid parameters, and only the use of a missing one is an error.
    decisions = build = recipe = create_trial = end_trial = __call__
    fit = predict = predict_proba = transform = __call__


# Packages whose objects are data. They must not be taken for parts that the user gives again.
_DATA = ("pandas", "scipy", "skuq")
# The same, except for objects that can be called, such as `functools.partial`.
_DATA_OR_FUNCTIONS = sys.stdlib_module_names | {"numpy"}


_PART, _FOREIGN = "part", "sklearn"  # stored names that are not names of classes


class Describer:
    """Encode an object of a class that is not registered: ``(object, place) -> (name, state)``.

    The parameters of the estimator that is saved name the parts that are the user's own.
    """

    def __init__(self, estimator: Any) -> None:
        params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
        # Names of the user's parts. id -> (name, object): the object is kept alive, so that its id
        # stays unique.
        self._named: dict[int, tuple[str, Any]] = {}
        for name in sorted(params, key=lambda name: (name.count("__"), name)):
            self._named.setdefault(id(params[name]), (name, params[name]))
        self._params, self._names = frozenset(self._named), frozenset(params)
        # id of a foreign object -> (the object, its bytes)
        self._dumped: dict[int, tuple[Any, np.ndarray]] = {}

    def __call__(self, value: Any, where: str) -> tuple[str, State] | None:
        if type(value) is MissingPart:
            return _PART, vars(value)
        if (found := encode(value)) is not None:
            return found
        if hasattr(value, "_refuse_to_save"):
            value._refuse_to_save(where)
        if is_foreign(value):
            if id(value) not in self._dumped:
                self._dumped[id(value)] = value, dump_foreign(value, where)
            name = self._name_of(value, where)
            return _FOREIGN, {"name": name, "data": self._dumped[id(value)][1]}
        # Whether the object counts as the user's own, to be given again on loading.
        if isinstance(value, type) or hasattr(value, "__qualname__"):
            own_module = getattr(value, "__module__", None) or ""
            is_own = id(value) in self._params or not own_module.startswith("skuq.")
        else:
            root = type(value).__module__.partition(".")[0]
            is_own = callable(value) if root in _DATA_OR_FUNCTIONS else root not in _DATA
        if is_own or getattr(type(value), "_supplied_by_user", False):
            # The function or class that it is, or the class of an object.
            named = value if callable(value) and hasattr(value, "__qualname__") else type(value)
            description = f"{named.__module__}.{named.__qualname__}"
            return _PART, {"name": self._name_of(value, where), "description": description}
        return None

    def _name_of(self, value: Any, where: str) -> str:
        """Name a part of the user's by its parameter, or by its place as ``estimator__x``."""
        if id(value) not in self._named:
            _, *steps = where.replace("[", ".").replace("]", "").split(".")
            name = "__".join(step.strip("_'") for step in steps)
            # The user knows the parameter that a part of the fitted model was cloned from.
            parameter = name.removeprefix("fitted__")
            self._named[id(value)] = parameter if parameter in self._names else name, value
        return self._named[id(value)][0]


class Restorer:
    """Make objects of classes that are not registered: ``(name, state) -> object``.

    `parts` are the user's by name; `trusted` are further types that skops may make.
    """

    def __init__(self, parts: State | None, trusted: Sequence[str | type] | None) -> None:
        self.parts, self._trusted = dict(parts or {}), list(trusted or [])
        self.names: set[str] = set()  # names of the user's parts in the file
        # id of bytes -> (the bytes, the foreign object)
        self._loaded: dict[int, tuple[Any, Any]] = {}

    def __call__(self, name: str, state: State) -> Any:
        if name in DECODERS:
            return DECODERS[name](state)
        if name not in (_PART, _FOREIGN):
            raise FileFormatError(f"class {name[:100]!r} is not known")
        part = state["name"]
        self.names.add(part)
        if part in self.parts:
            return self.parts[part]
        if name == _PART:
            return MissingPart(part, state["description"])
        data = state["data"]
        # The same object may be stored in several places, as a pool lists its members twice.
        if id(data) not in self._loaded:
            self._loaded[id(data)] = data, load_foreign(data, self._trusted, part)
        return self._loaded[id(data)][1]


_KINDS = ("estimator", "catalog")  # kinds of files


def save(estimator: Any, path: str | PathLike[str]) -> None:
    """Save an estimator or a catalog to a file that is safe to load.

    The file holds what a pickle would, for a search without the networks that were not selected.
    An existing file is replaced as a whole, even if the process is killed meanwhile.

    Parameters
    ----------
    estimator : estimator or Catalog
        Estimator of skuq, fitted or not, or a `sklearn.pipeline.Pipeline` that holds one.
    path : str or path
        File to write; by convention its name ends in ``.skuq``.

    Raises
    ------
    UnsavableError
        If it is anything else, or holds data without a safe form; the message names them.

    Notes
    -----
    Functions, search spaces and Keras models of your own are not saved, only named: see `load`.
    Objects of scikit-learn (``preprocess=``, members of a pool) and NumPy's generators are saved
    with skops, which ``pip install "skuq[skops]"`` installs.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import skuq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.skuq"
    ...     skuq.save(skuq.NEONRegressor(n_draws=8), path)
    ...     skuq.load(path).n_draws
    8
    """
    atomic_write(path, dumps(estimator))


def dumps(estimator: Any) -> bytes:
    """Encode an estimator or catalog as the bytes of the file that `save` writes.

    Parameters
    ----------
    estimator : estimator of skuq, pipeline or Catalog
        Object to save, fitted or not.

    Returns
    -------
    data : bytes
        The whole file.

    Examples
    --------
    >>> from skuq import DeepEnsembleRegressor
    >>> from skuq.files import dumps, loads
    >>> loads(dumps(DeepEnsembleRegressor(n_members=3)))
    DeepEnsembleRegressor(n_members=3)
    """
    saved = BY_CLASS.get(type(estimator))
    if saved is None or saved.kind is None:
        raise UnsavableError(
            f"Only estimators of skuq, pipelines and catalogs are saved. Got {type(estimator)}. "
            "For a scikit-learn search save its best_estimator_. Pickle a BayesianOptimizer. "
            "For another object save the estimator that it holds."
        )
    return _archive.to_bytes(estimator, kind=saved.kind, describe=Describer(estimator))


def load(
    path: str | PathLike[str],
    *,
    parts: dict[str, Any] | None = None,
    trusted: Sequence[str | type] | None = None,
) -> Any:
    """Load an estimator or a catalog that `save` has written. No code in a file is ever run.

    Parameters
    ----------
    path : str or path
        File to read.
    parts : dict, optional
        Your own functions and objects, which were not saved, by the names of the parameters, for
        example ``{"space": build}``. For an estimator inside another one use two
        underscores, as in `set_params`. A part that is not given raises `MissingPartError` when it
        is used; predictions rarely need it.
    trusted : list of str or type, optional
        Types of objects in scikit-learn's estimators that skops does not know to be safe. Loading
        them runs their code, so check each of them.

    Returns
    -------
    estimator or Catalog

    Raises
    ------
    FileFormatError
        If the file is broken or was changed, was not written by this version's `save`, or holds
        what is not safe to load.
    ValueError
        If `parts` has a name that the file does not know.

    See Also
    --------
    save : Save an estimator; says what is saved.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import skuq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.skuq"
    ...     skuq.save(skuq.DeepEnsembleRegressor(n_members=3), path)
    ...     skuq.load(path)
    DeepEnsembleRegressor(n_members=3)
    """
    return _load(Path(path).read_bytes(), str(path), parts, trusted)


def loads(
    data: bytes, *, parts: dict[str, Any] | None = None, trusted: Sequence[str | type] | None = None
) -> Any:
    """Decode what `dumps` has written.

    Parameters
    ----------
    data : bytes
        The whole file.
    parts, trusted
        As for `load`.

    Returns
    -------
    estimator : estimator of skuq, pipeline or Catalog
        The object, as it was saved.

    Examples
    --------
    >>> from skuq import MCDropoutClassifier
    >>> from skuq.files import dumps, loads
    >>> loads(dumps(MCDropoutClassifier(dropout=0.2)))
    MCDropoutClassifier(dropout=0.2)
    """
    return _load(data, "the file", parts, trusted)


def _load(
    data: bytes, source: str, parts: State | None, trusted: Sequence[str | type] | None
) -> Any:
    restorer = Restorer(parts, trusted)
    loaded = _archive.from_bytes(data, kinds=_KINDS, restore=restorer, source=source)
    if unknown := sorted(set(restorer.parts) - restorer.names):
        raise ValueError(
            f"`parts` has names that the file does not know: {unknown}. It knows "
            f"{sorted(restorer.names)}."
        )
    saved = BY_CLASS.get(type(loaded))
    if saved is None or saved.kind not in _KINDS:
        raise FileFormatError(f"{source} cannot be read: it holds a {type(loaded).__name__}.")
    return loaded
