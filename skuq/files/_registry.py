"""Records that are saved to files: the registry of their classes, and their representations.

A decorator registers a class where it is defined. Files hold only its registered name, and no
other class is ever instantiated when a file is loaded.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np

from skuq.exceptions import FileFormatError, UnsavableError

_Class = TypeVar("_Class", bound=type)


class SavedClass(NamedTuple):
    """One registered class; see `saved_as`."""

    name: str
    cls: type
    kind: str | None
    check: Callable[..., None] | None


_BY_NAME: dict[str, SavedClass] = {}
_BY_CLASS: dict[type, SavedClass] = {}


def saved_as(
    name: str, *, kind: str | None = None, check: Callable[..., None] | None = None
) -> Callable[[_Class], _Class]:
    """Register a class for saving under this name (class decorator).

    Files also hold the modules of their classes, which are imported before the names are looked
    up. `kind` is the kind of file that an object of the class makes by itself; without one, such
    objects are only saved as parts of others. ``check(state)`` raises `FileFormatError` if the
    attributes are not safe to use.
    """

    def register(cls: _Class) -> _Class:
        # A module that is loaded twice defines the same class twice.
        known = _BY_NAME[name].cls if name in _BY_NAME else cls
        first, second = (f"{c.__module__}.{c.__qualname__}" for c in (known, cls))
        if first != second:
            raise ValueError(f"{name!r} is {first}. It cannot be {second} too.")
        _BY_NAME[name] = _BY_CLASS[cls] = SavedClass(name, cls, kind, check)
        return cls

    return register


def find_by_name(name: str) -> SavedClass | None:
    """Find the class that is registered under a stored name; None if there is none."""
    return _BY_NAME.get(name)


def find_by_class(cls: type) -> SavedClass | None:
    """Find the registration of a class; None if it is not registered."""
    return _BY_CLASS.get(cls)


def _is_record(cls: type) -> bool:
    """Whether a class is a dataclass, other than settings, whose state scikit-learn defines."""
    return dataclasses.is_dataclass(cls) and not hasattr(cls, "get_params")


def state_of(value: Any) -> dict[str, Any]:
    """Collect the attributes of an object that a pickle would hold."""
    if _is_record(type(value)):  # only its fields: cached values are left out
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        record: Any = value  # a named tuple
        return dict(record._asdict())
    state = value.__getstate__() or {}
    # Callbacks of scikit-learn belong to the process and not to the model.
    return {name: part for name, part in state.items() if "_callback" not in name}


def make_object(cls: Any, state: dict[str, Any]) -> Any:
    """Make an object with these attributes, without calling its class' `__init__`.

    Parameters of estimators that the file does not have, since a newer version has added them, take
    their defaults.
    """
    if issubclass(cls, tuple):  # a named tuple
        return cls(**state)
    if hasattr(cls, "get_params"):
        parameters = inspect.signature(cls).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        state = {**state, **{n: value for n, value in defaults.items() if n not in state}}
    made = object.__new__(cls)
    if hasattr(cls, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    return made


@dataclasses.dataclass
class PickledByValue:
    """Wrapper that pickles its value by value, also if that holds lambdas.

    Unpickling gives the value.
    """

    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


_MOST_CHARACTERS = 60  # length of one value's text


def record_repr(record: Any) -> str:
    """Represent a dataclass by its fields, each in a few words: ``__repr__ = record_repr``."""
    fields = [
        f"{field.name}={_brief(getattr(record, field.name))}"
        for field in dataclasses.fields(record)
    ]
    return f"{type(record).__name__}({', '.join(fields)})"


def _brief(value: Any) -> str:
    """Describe one value: small values in full, others by their type and size."""
    if isinstance(value, np.ndarray):
        if value.size <= 5:
            return np.array2string(value, precision=4, separator=", ")
        return f"<{value.dtype} array {value.shape}>"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value):
        # Short lists of plain values are shown in full.
        kinds = {type(item).__name__ for item in value}
        if len(kinds) == 1 and (len(value) > 3 or not isinstance(value[0], str | int | float)):
            return f"<{type(value).__name__} of {len(value)} {kinds.pop()}>"
    # The default would show the address, which differs from run to run.
    if type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"<{type(value).__name__}>"


_PLAIN = (type(None), bool, int, float, str)
_PLAIN_KINDS = "biufcUmM"  # numbers, truth values, strings and dates: types without pointers


class TreeEncoder:
    """Encode a tree as JSON, and collect its arrays, each once.

    ``describe(value, where)`` gives ``(name, state)`` of an object whose class is not registered,
    or None.

    Attributes
    ----------
    arrays : dict of str to bytes
        npy files by their names in the archive.
    modules : set of str
        Modules that define the registered classes of the tree.
    """

    def __init__(self, describe: Callable[[Any, str], tuple[str, Any] | None] | None):
        self._describe = describe
        self.arrays: dict[str, bytes] = {}
        self.modules: set[str] = set()
        # Name of a part by the id of the array, which is kept alive with it, as ids of freed arrays
        # are used again.
        self._names: dict[int, tuple[np.ndarray, str]] = {}

    def encode(self, value: Any, where: str) -> Any:
        """Encode a part of the tree; `where` is its path for error messages."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is np.str_:
            return str(value)
        if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS:
            return {"@": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        if kind in (np.ndarray, np.memmap) and value.dtype.kind in _PLAIN_KINDS:
            return {"@": "array", "part": self._part(value)}
        if kind is np.ndarray and value.dtype == object:
            items = self._items(value.ravel(), where)
            return {"@": "objects", "shape": list(value.shape), "items": items}
        if kind is list:
            return self._items(value, where)
        if kind is tuple:
            return {"@": "tuple", "items": self._items(value, where)}
        if kind is dict and "@" not in value and all(type(key) is str for key in value):
            return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
        if kind is dict:
            pairs = [
                [self.encode(key, f"{where} key"), self.encode(item, f"{where}[{key!r}]")]
                for key, item in value.items()
            ]
            return {"@": "dict", "items": pairs}
        return self._object(value, where)

    def _items(self, values: Any, where: str) -> list[Any]:
        return [
            item if type(item) in _PLAIN else self.encode(item, f"{where}[{k}]")
            for k, item in enumerate(values)
        ]

    def _part(self, array: np.ndarray) -> str:
        """Return the name of the part that holds an array."""
        if id(array) not in self._names:
            name, buffer = f"arrays/{len(self.arrays)}.npy", io.BytesIO()
            # NumPy does not read strings of no characters.
            whole = array if array.dtype.itemsize else array.astype("U1")
            np.lib.format.write_array(buffer, whole, version=(1, 0), allow_pickle=False)
            self._names[id(array)], self.arrays[name] = (array, name), buffer.getvalue()
        return self._names[id(array)][1]

    def _object(self, value: Any, where: str) -> dict[str, Any]:
        """Encode an object of a registered class, or one that `describe` knows."""
        saved = find_by_class(type(value))
        if saved is not None:
            name, state = saved.name, state_of(value)
            self.modules.add(type(value).__module__)
            if saved.check is not None:
                try:
                    saved.check(state)
                except FileFormatError as error:  # what cannot be loaded must not be saved
                    raise UnsavableError(f"{where} cannot be saved: {error}.") from error
        else:
            described = None if self._describe is None else self._describe(value, where)
            if described is None:
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise UnsavableError(f"{where} is a {kind}, which cannot be saved.")
            name, state = described
        return {"@": "object", "name": name, "state": self.encode(state, where)}


class TreeDecoder:
    """Decode what a `TreeEncoder` has encoded, from a file that is not trusted.

    ``restore(name, state)`` makes objects whose class is not registered.
    """

    def __init__(
        self,
        parts: dict[str, bytes],
        restore: Callable[[str, dict[str, Any]], Any] | None,
    ):
        self._parts, self._restore = parts, restore
        self._arrays: dict[str, np.ndarray] = {}

    def decode(self, value: Any) -> Any:
        """Decode a part of the tree. All references to a part give the same array."""
        if type(value) is list:
            return [self.decode(item) for item in value]
        if type(value) is not dict:
            return value
        match value.get("@"):
            case "tuple":
                return tuple([self.decode(item) for item in value["items"]])
            case "dict":
                return {self.decode(key): self.decode(item) for key, item in value["items"]}
            case "scalar":
                return _read_items(bytes.fromhex(value["hex"]), np.dtype(value["dtype"]))[0]
            case "objects":
                items = [self.decode(item) for item in value["items"]]
                return np.fromiter(items, object, len(items)).reshape(value["shape"])
            case "array":
                name = value["part"]
                if name not in self._arrays:
                    self._arrays[name] = _read_npy(self._parts[name])
                return self._arrays[name]
            case "object":
                return self._object(value["name"], self.decode(value["state"]))
        return {key: self.decode(item) for key, item in value.items()}

    def _object(self, name: str, state: dict[str, Any]) -> Any:
        """Make an object from the name of its class and its attributes."""
        saved = find_by_name(name)
        if saved is not None:
            if saved.check is not None:
                saved.check(state)
            return make_object(saved.cls, state)
        if self._restore is None:
            raise FileFormatError(f"class {name[:100]!r} is not known")
        return self._restore(name, state)


def _read_items(data: bytes, dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """Read the items of a plain type; refuse bytes that are no values of it."""
    if dtype.kind not in _PLAIN_KINDS:
        raise FileFormatError(f"it has an array of type {dtype}")
    flat = np.frombuffer(data, dtype, offset=offset).copy()
    if dtype.kind == "b":  # masks that hold other bytes than 0 and 1 let NumPy write anywhere
        return flat.view(np.uint8) != 0
    if dtype.kind == "U" and (flat.view(dtype.byteorder + "u4") > sys.maxunicode).any():
        raise FileFormatError("it has a text with characters that there are not")
    return flat


def _read_npy(data: bytes) -> np.ndarray:
    """Read an npy file; memory is allocated for the bytes that are there only.

    `numpy.frombuffer` makes no objects, and `reshape` refuses other numbers of elements.
    """
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return _read_items(data, dtype, file.tell()).reshape(shape, order="F" if is_fortran else "C")
