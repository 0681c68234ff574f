"""Records that are saved to files: the registry of their classes, and their representations.

A decorator registers a class where it is defined. Files hold only its registered name, and no
other class is ever instantiated when a file is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

import skuq

_Class = TypeVar("_Class", bound=type)


class SavedClass(NamedTuple):
    """One registered class.

    Attributes
    ----------
    name : str
        Name of the class in files.
    cls : type
    kind : str or None
        Kind of file that an object of the class makes if it is saved by itself. None if such
        objects are only saved as parts of others.
    check : callable or None
        ``check(state, where)`` raises `FileFormatError` if the attributes are not safe to use.
    """

    name: str
    cls: type
    kind: str | None
    check: Callable[..., None] | None


_BY_NAME: dict[str, SavedClass] = {}
_BY_CLASS: dict[type, SavedClass] = {}


def saved_as(
    name: str, *, kind: str | None = None, check: Callable[..., None] | None = None
) -> Callable[[_Class], _Class]:
    """Register a class for saving (class decorator).

    Parameters
    ----------
    name : str
        Name of the class in files: ``package.Name``, where ``skuq.package.Name`` is public, or
        ``package.Owner.Name`` for a class that is registered as soon as the public
        ``skuq.package.Owner`` is imported. It stays when the class moves within its package.
    kind, check
        See `SavedClass`.
    """

    def register(cls: _Class) -> _Class:
        # A module that is loaded twice defines the same class twice.
        known = _BY_NAME.get(name)
        if known is not None and _place(known.cls) != _place(cls):
            raise ValueError(f"{name!r} is {_place(known.cls)}. It cannot be {_place(cls)} too.")
        _BY_NAME[name] = _BY_CLASS[cls] = SavedClass(name, cls, kind, check)
        return cls

    return register


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def find_by_name(name: str) -> SavedClass | None:
    """Find the class that is registered under a stored name; None if there is none."""
    if name not in _BY_NAME:
        # The class is registered where it is defined: import the public object that the name
        # begins with. Names come from files, so nothing is looked up that is not in an `__all__`.
        package, _, rest = name.partition(".")
        module = getattr(skuq, package) if package in getattr(skuq, "__all__", ()) else None
        owner = rest.partition(".")[0]
        if owner in getattr(module, "__all__", ()):
            getattr(module, owner)
    return _BY_NAME.get(name)


def find_by_class(cls: type) -> SavedClass | None:
    """Find the registration of a class; None if it is not registered."""
    return _BY_CLASS.get(cls)


_SUPPLIED_BY_USER: set[type] = set()


def supplied_by_user(cls: _Class) -> _Class:
    """Mark a class whose objects hold the user's functions (class decorator).

    Files store the name of such an object, not its content; the user supplies it again on loading.
    """
    _SUPPLIED_BY_USER.add(cls)
    return cls


def is_supplied_by_user(cls: type) -> bool:
    """Whether a class is marked with `supplied_by_user`."""
    return cls in _SUPPLIED_BY_USER


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
