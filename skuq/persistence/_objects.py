"""Objects as names and attributes, and objects of those again: the hooks of `skuq._archive`."""

from __future__ import annotations

import dataclasses
import functools
import inspect

from skuq.exceptions import FileFormatError, UnsavableError
from skuq.networks._safe import check_member
from skuq.persistence._codecs import DECODERS, encoded
from skuq.persistence._foreign import dump_foreign, is_foreign, load_foreign
from skuq.persistence._parts import MissingPart, PartNames, description_of, is_users
from skuq.persistence._registry import class_of, name_of

__all__ = ["Describer", "Restorer"]

_PART, _FOREIGN = "part", "sklearn"  # names beside those of classes
_MEMBER = "catalog.Member"


class Describer:
    """``(object, where) -> (name, state)`` of what is not plain."""

    def __init__(self, estimator):
        self._name_part = PartNames(estimator)
        self._dumped = {}  # id of a foreign object -> (the object, its bytes)

    def __call__(self, value, where):
        described = self._describe(value, where)
        if described is not None and not all(type(name) is str for name in described[1]):
            raise UnsavableError(f"{where} has attributes whose names are no strings.")
        return described

    def _describe(self, value, where):
        if type(value) is MissingPart:
            return _PART, vars(value)
        if (found := encoded(value, where)) is not None:
            return found
        if (name := name_of(type(value))) is not None:
            state = _state_of(value, where)
            if name == _MEMBER:
                try:
                    check_member(state, where)
                except FileFormatError as error:  # what is not loaded must not be saved
                    raise UnsavableError(f"{error}.") from error
            return name, state
        if is_foreign(value):
            if id(value) not in self._dumped:
                self._dumped[id(value)] = value, dump_foreign(value, where)
            data = self._dumped[id(value)][1]
            if data is not None:
                return _FOREIGN, {"name": self._name_part(value, where), "data": data}
        if is_users(value, self._name_part.is_parameter(value)):
            name = self._name_part(value, where)
            return _PART, {"name": name, "description": description_of(value)}
        return None


def _state_of(value, where):
    """The attributes that a pickle would hold."""
    if dataclasses.is_dataclass(value):  # its fields, without what is cached beside them
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return value._asdict()
    state = value.__getstate__()
    if state is None:
        return {}
    if type(state) is not dict:
        raise UnsavableError(f"{where} has a state that is no dict of attributes.")
    return state


class Restorer:
    """``(name, state, where) -> object``, by the list of classes and the user's parts."""

    def __init__(self, parts, trusted):
        self._parts, self._trusted = dict(parts or {}), list(trusted or [])
        self._names = set()  # of the user's parts in the file
        self._loaded = {}  # id of bytes -> (the bytes, the foreign object)

    def __call__(self, name, state, where):
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise FileFormatError(f"{where} has a state that is no dict of attributes")
        try:
            return self._make(name, state, where)
        except FileFormatError:
            raise
        # A state may be wrong in any way, and classes take theirs at its word.
        except Exception as error:
            raise FileFormatError(
                f"{where} cannot be made ({type(error).__name__}: {error})"
            ) from error

    def _make(self, name, state, where):
        if name in (_PART, _FOREIGN):
            part = state["name"]
            if type(part) is not str:
                raise FileFormatError(f"{where} has no name")
            self._names.add(part)
            if part in self._parts:
                return self._parts[part]
            if name == _PART:
                return MissingPart(part, str(state["description"])[:200])
            return self._foreign(state["data"], part)
        if name in DECODERS:
            return DECODERS[name](state)
        cls = class_of(name)
        if cls is None:
            raise FileFormatError(f"{where} is of class {name[:100]!r}, which is not known")
        if name == _MEMBER:
            check_member(state, where)
        return _made(cls, state)

    def _foreign(self, data, part):
        # One array is one object: members of a pool are listed more than once.
        if id(data) not in self._loaded:
            self._loaded[id(data)] = data, load_foreign(data, self._trusted, part)
        return self._loaded[id(data)][1]

    def check_parts(self):
        """Raise ValueError if the user gave a part that was not asked for."""
        if unknown := sorted(set(self._parts) - self._names):
            raise ValueError(
                f"`parts` has names that the file does not know: {unknown}. It knows "
                f"{sorted(self._names)}."
            )


def _made(cls, state):
    """An object of a class with these attributes; its `__init__` is not called."""
    if wrong := [name for name in state if name.startswith("__") or not name.isidentifier()]:
        raise FileFormatError(f"{cls.__name__} has no attribute {wrong[0][:50]!r}")
    if issubclass(cls, tuple):
        values = _fields(cls.__name__, cls._fields, cls._field_defaults, state)
        return tuple.__new__(cls, values.values())
    made = object.__new__(cls)
    if hasattr(cls, "get_params"):
        state = {**state, **{k: v for k, v in _parameters(cls).items() if k not in state}}
    if dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        defaults = {}  # of fields that are newer than the file
        for field in fields:
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = field.default_factory()
        state = _fields(cls.__name__, [field.name for field in fields], defaults, state)
        vars(made).update(state)
    elif hasattr(cls, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    return made


@functools.cache
def _parameters(cls):
    """Defaults of an estimator's parameters: those of them that are newer than the file."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _fields(name, names, defaults, state):
    if unknown := set(state) - set(names):
        raise FileFormatError(f"{name} has no field {min(unknown)[:50]!r}")
    if missing := [field for field in names if field not in state and field not in defaults]:
        raise FileFormatError(f"{name} lacks the field {missing[0]!r}")
    return {field: state.get(field, defaults.get(field)) for field in names}
