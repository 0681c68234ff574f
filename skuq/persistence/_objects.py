"""Encode objects as names and attributes, and restore them: the hooks of `skuq._archive`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq._registry import find_by_class, find_by_name
from skuq._warnings import warn_user
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.persistence import _standard  # noqa: F401 - registers classes
from skuq.persistence._codecs import DECODERS, State, encode
from skuq.persistence._foreign import dump_foreign, is_foreign, load_foreign
from skuq.persistence._parts import MissingPart, PartNames, description_of, is_users

_PART, _FOREIGN = "part", "sklearn"  # stored names that are not names of classes
# Attributes of scikit-learn's callbacks, which belong to the process and not to the model.
_CALLBACKS = (
    "_skl_callbacks",
    "_skl_callbacks_to_teardown",
    "_callback_fit_ctx",
    "_parent_callback_ctx",
)


class Describer:
    """Encode an object that is not plain: ``(object, where) -> (name, state)``.

    The parameters of the estimator that is saved name the parts that are the user's own.
    """

    def __init__(self, estimator: Any) -> None:
        self._name_part = PartNames(estimator)
        # id of a foreign object -> (the object, its bytes)
        self._dumped: dict[int, tuple[Any, np.ndarray | None]] = {}

    def __call__(self, value: Any, where: Any) -> tuple[str, State] | None:
        described = self._describe(value, where)
        if described is not None and not all(type(name) is str for name in described[1]):
            raise UnsavableError(f"{where} has attributes whose names are no strings.")
        return described

    def _describe(self, value: Any, where: Any) -> tuple[str, State] | None:
        """Describe an object by its stored name and state; None if it cannot be saved."""
        if type(value) is MissingPart:
            return _PART, vars(value)
        if (found := encode(value, where)) is not None:
            return found
        if (saved := find_by_class(type(value))) is not None:
            state = _state_of(value, where)
            if saved.check is not None:
                try:
                    saved.check(state, where)
                except FileFormatError as error:  # what cannot be loaded must not be saved
                    raise UnsavableError(f"{error}.") from error
            return saved.name, state
        if is_foreign(value):
            if id(value) not in self._dumped:
                self._dumped[id(value)] = value, dump_foreign(value, where)
            data, name = self._dumped[id(value)][1], self._name_part(value, where)
            if data is not None:
                return _FOREIGN, {"name": name, "data": data}
            if not self._name_part.is_parameter(value):  # it may hold what was learnt
                warn_user(
                    f"{where} is not saved, because skops cannot write it: {description_of(value)}."
                    f" Predictions may need it: keep it, and give it to load(path, parts="
                    f"{{{name!r}: ...}}). Functions of a module, in place of lambdas, can be saved."
                )
        if is_users(value, self._name_part.is_parameter(value)):
            name = self._name_part(value, where)
            return _PART, {"name": name, "description": description_of(value)}
        return None


def _state_of(value: Any, where: Any) -> State:
    """Collect the attributes that a pickle would hold."""
    if dataclasses.is_dataclass(value):  # only its fields: cached values are left out
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        record: Any = value  # a named tuple
        return dict(record._asdict())
    state = value.__getstate__()
    if state is None:
        return {}
    if type(state) is not dict:
        raise UnsavableError(f"{where} has a state that is no dict of attributes.")
    return {name: part for name, part in state.items() if name not in _CALLBACKS}


class Restorer:
    """Make objects of registered classes: ``(name, state, where) -> object``.

    `parts` are the user's by name; `trusted` are further types that skops may make.
    """

    def __init__(self, parts: State | None, trusted: Sequence[str | type] | None) -> None:
        self._parts, self._trusted = dict(parts or {}), list(trusted or [])
        self._names: set[str] = set()  # names of the user's parts in the file
        # id of bytes -> (the bytes, the foreign object)
        self._loaded: dict[int, tuple[Any, Any]] = {}

    def __call__(self, name: str, state: Any, where: Any) -> Any:
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise FileFormatError(f"{where} has a state that is no dict of attributes")
        try:
            return self._make(name, state, where)
        except FileFormatError:
            raise
        # A state may be wrong in any way, and classes do not check theirs.
        except Exception as error:
            raise FileFormatError(
                f"{where} cannot be made ({type(error).__name__}: {error})"
            ) from error

    def _make(self, name: str, state: State, where: Any) -> Any:
        """Make the object of a stored name from its state."""
        if name in (_PART, _FOREIGN):
            part = state["name"]
            if type(part) is not str:
                raise FileFormatError(f"{where} has no name")
            given = part if part in self._parts else self._pair_of(part)
            self._names.add(given or part)
            if given is not None:
                value = self._parts[given]
                return value if given == part else value[int(part.rpartition("__")[2])]
            if name == _PART:
                return MissingPart(part, str(state["description"])[:200])
            return self._foreign(state["data"], part)
        if name in DECODERS:
            return DECODERS[name](state)
        saved = find_by_name(name)
        if saved is None:
            raise FileFormatError(f"{where} is of class {name[:100]!r}, which is not known")
        if saved.check is not None:
            saved.check(state, where)
        return _make_object(saved.cls, state)

    def _pair_of(self, part: str) -> str | None:
        """Return the name of a pair that the user gives whole, for one of its two parts."""
        name, _, position = part.rpartition("__")
        given = self._parts.get(name)
        is_in = isinstance(given, tuple | list) and position in map(str, range(len(given)))
        return name if is_in else None

    def _foreign(self, data: Any, part: str) -> Any:
        # The same object may be stored in several places, as a pool lists its members twice.
        if id(data) not in self._loaded:
            self._loaded[id(data)] = data, load_foreign(data, self._trusted, part)
        return self._loaded[id(data)][1]

    def check_parts(self) -> None:
        """Raise ValueError if the user gave a part that the file does not name."""
        if unknown := sorted(set(self._parts) - self._names):
            raise ValueError(
                f"`parts` has names that the file does not know: {unknown}. It knows "
                f"{sorted(self._names)}."
            )


def _make_object(cls: Any, state: State) -> Any:
    """Make an object with these attributes, without calling its class' `__init__`."""
    if wrong := [name for name in state if name.startswith("__") or not name.isidentifier()]:
        raise FileFormatError(f"{cls.__name__} has no attribute {wrong[0][:50]!r}")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, _fields(cls, cls._fields, state).values())
    made = object.__new__(cls)
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
        vars(made).update(_fields(cls, names, state))
        return made
    if hasattr(cls, "get_params"):
        state = _complete_parameters(cls, state)
    if hasattr(cls, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    return made


def _fields(cls: Any, names: Sequence[str], state: State) -> State:
    """Return the fields of a record in order; check that none is missing or unknown."""
    if unknown := set(state) - set(names):
        raise FileFormatError(f"{cls.__name__} has no field {min(unknown)[:50]!r}")
    if missing := [name for name in names if name not in state]:
        raise FileFormatError(f"{cls.__name__} lacks the field {missing[0]!r}")
    return {name: state[name] for name in names}


def _complete_parameters(cls: type, state: State) -> State:
    """Raise FileFormatError if an estimator's parameters are missing; return its state.

    Parameters that a newer scikit-learn has added to its own classes take their defaults.
    """
    missing = {name: p for name, p in _parameters(cls).items() if name not in state}
    # A pipeline of ours has scikit-learn's parameters.
    declared_in = getattr(cls.__init__, "__module__", cls.__module__)  # type: ignore[misc]
    if missing and not declared_in.startswith("sklearn."):
        raise FileFormatError(f"{cls.__name__} lacks the parameter {min(missing)!r}")
    return {**state, **{name: p.default for name, p in missing.items() if p.default is not p.empty}}


@functools.cache
def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Get an estimator's parameters by name, as its `__init__` declares them."""
    return dict(inspect.signature(cls).parameters)
