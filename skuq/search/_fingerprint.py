"""Describe data and parameters in JSON, so that two searches can be compared."""

import contextlib
import functools
import inspect
import json
import types
from typing import Any

import joblib
import numpy as np

_LIBRARIES = (
    *("builtins", "keras", "keras_tuner", "numpy", "pandas", "scipy"),
    *("skuq", "sklearn", "tensorflow"),
)

# Settings of oracles by which they propose. Not among them are the seed, which is drawn if none is
# given, and the number of trials, which may grow.
_OF_ORACLES = (
    *("alpha", "beta", "factor", "hyperband_iterations", "max_epochs", "num_initial_points"),
    "search",
)


def digest_of(data: Any) -> Any:
    """Compute a digest of arrays, or of each part of a list."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [digest_of(part) for part in data]
    return _digest(np.ascontiguousarray(data))


def _digest(value: Any) -> str:
    return f"digest:{joblib.hash(value)}"


def describe(value: Any, seen: list[Any] | None = None) -> Any:
    """Describe a parameter in JSON.

    Estimators are described by their parameters, functions by source, defaults and the variables
    that they enclose, objects of users by the source of their class and their attributes, all else
    by a digest. `seen` are functions and objects described so far: they may refer to each other.
    """
    seen = [] if seen is None else seen
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        pass
    within = functools.partial(describe, seen=seen)
    if isinstance(value, dict):
        return {str(key): within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [within(item) for item in value]
    if isinstance(value, set | frozenset):  # in an order that differs between processes
        return sorted(map(repr, value))
    if any(value is other for other in seen):
        return f"described before: {next(k for k, other in enumerate(seen) if other is value)}"
    seen.append(value)
    if isinstance(value, functools.partial):
        return [within(part) for part in (value.func, value.args, value.keywords)]
    if inspect.ismethod(value):
        return [within(value.__func__), within(value.__self__)]
    if inspect.isfunction(value):
        values = value.__defaults__, value.__kwdefaults__, _enclosed(value)
        return [_name_of(value), _source_of(value), within(values)]
    if isinstance(value, type):
        return [_name_of(value), _source_of(value)]
    kind = type(value)
    of_user = [] if is_of_library(kind) else [_source_of(kind)]
    if hasattr(value, "get_params"):
        return [_name_of(kind), *of_user, within(value.get_params(deep=False))]
    if hasattr(value, "__dict__") and of_user:
        return [_name_of(kind), *of_user, within(vars(value))]
    try:
        return _digest(value)
    except Exception:  # what cannot be pickled, such as a lock, or an oracle, by its settings
        settings = {k: within(getattr(value, k)) for k in _OF_ORACLES if hasattr(value, k)}
        return [_name_of(kind), settings] if settings else _name_of(kind)


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _enclosed(function: Any) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values


def is_of_library(one: Any) -> bool:
    """Tell whether a function or class is of a library, whose source does not count."""
    return (one.__module__ or "").partition(".")[0] in _LIBRARIES


def _source_of(one: Any) -> str | None:
    """Compute a digest of the source of a function or class, or of its code if there is no source.

    The name of what is of a library is enough.
    """
    if is_of_library(one):
        return None
    is_class = isinstance(one, type)
    # The source of a lambda is its whole line, which may have others.
    if one.__name__ != "<lambda>":
        with contextlib.suppress(OSError, TypeError):  # typed into a console, or written in C
            return _digest(inspect.getsource(one if is_class else one.__code__))
    methods = vars(one).values() if is_class else [one]
    return _digest([_describe_code(m.__code__) for m in methods if inspect.isfunction(m)])


def _describe_code(code: types.CodeType) -> list[Any]:
    """Describe compiled code by its instructions, names and constants."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_describe_code(constant))
        elif isinstance(constant, frozenset):  # in an order that differs between processes
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(repr(constant))
    arguments = code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames
    return [code.co_code, code.co_names, arguments, constants]
