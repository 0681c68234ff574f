"""Records that are saved to files: the registry of their classes, and their representations.

A decorator registers a class where it is defined. Files hold only its registered name, and no
other class is ever instantiated when a file is loaded.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import cloudpickle
import numpy as np

_Class = TypeVar("_Class", bound=type)
_T = TypeVar("_T")


class SavedClass(NamedTuple):
    """One registered class; see `saved_as`."""

    name: str
    cls: type
    kind: str | None
    check: Callable[..., None] | None


BY_NAME: dict[str, SavedClass] = {}
BY_CLASS: dict[type, SavedClass] = {}


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
        known = BY_NAME[name].cls if name in BY_NAME else cls
        first, second = (f"{c.__module__}.{c.__qualname__}" for c in (known, cls))
        if first != second:
            raise ValueError(f"{name!r} is {first}. It cannot be {second} too.")
        BY_NAME[name] = BY_CLASS[cls] = SavedClass(name, cls, kind, check)
        return cls

    return register


@dataclass_transform(eq_default=False, frozen_default=True)
def saved_record(
    name: str, *, eq: bool = False, brief: bool = False, check: Callable[..., None] | None = None
) -> Callable[[type[_T]], type[_T]]:
    """Make a class a frozen dataclass that is saved under this name (decorator).

    With `eq` records are compared by value, and `brief` ones show each field in a few words.
    """

    def make(cls: type[_T]) -> type[_T]:
        if brief:
            cls.__repr__ = _describe_record  # type: ignore[method-assign]
        return saved_as(name, check=check)(dataclasses.dataclass(frozen=True, eq=eq)(cls))

    return make


def state_of(value: Any) -> dict[str, Any]:
    """Collect the attributes of an object that a pickle would hold."""
    # A record has only its fields, without cached values. Settings are scikit-learn's to define.
    if dataclasses.is_dataclass(value) and not hasattr(value, "get_params"):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        record: Any = value  # a named tuple
        return dict(record._asdict())
    state = value.__getstate__() or {}
    # Callbacks of scikit-learn belong to the process and not to the model.
    return {name: part for name, part in state.items() if "_callback" not in name}


def make_read_only(value: Any) -> None:
    """Make the arrays of a fitted object read-only, in its collections and its registered records.

    Nobody changes what it predicts by working on an array that it has handed out.
    """
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, list | tuple):
        for part in value:
            make_read_only(part)
    elif isinstance(value, dict):
        make_read_only(list(value.values()))
    elif type(value) in BY_CLASS:
        # Parameters of estimators may be the user's arrays.
        every = not hasattr(value, "get_params")
        make_read_only([part for name, part in vars(value).items() if every or name[-1] == "_"])


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


def _describe_record(record: Any) -> str:
    fields = [
        f"{field.name}={_brief(getattr(record, field.name))}"
        for field in dataclasses.fields(record)
    ]
    return f"{type(record).__name__}({', '.join(fields)})"


def _brief(
    value: Any, *, most_numbers: int = 5, most_items: int = 3, most_characters: int = 60
) -> str:
    """Describe one value: small values in full, others by their type and size."""
    if isinstance(value, np.ndarray):
        if value.size <= most_numbers:
            return np.array2string(value, precision=4, separator=", ")
        return f"<{value.dtype} array {value.shape}>"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value):
        # Short lists of plain values are shown in full.
        kinds = {type(item).__name__ for item in value}
        if len(kinds) == 1 and (
            len(value) > most_items or not isinstance(value[0], str | int | float)
        ):
            return f"<{type(value).__name__} of {len(value)} {kinds.pop()}>"
    # The default would show the address, which differs from run to run.
    shows_address: Any = object.__repr__
    if type(value).__repr__ is shows_address:
        return f"<{type(value).__name__}>"
    text = repr(value)
    return text if len(text) <= most_characters else f"<{type(value).__name__}>"
