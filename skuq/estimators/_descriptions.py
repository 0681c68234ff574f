"""Describe data and parameters in JSON, so that a search can be told from another one."""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import re
import types

import numpy as np

# Their functions are known by their names: the code may change with the version.
_LIBRARIES = ("skuq", "sklearn", "keras", "keras_tuner", "numpy", "scipy", "tensorflow")
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...))


def digest_of(data):
    """Compute a digest of arrays, or of each part of a list."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [digest_of(part) for part in data]
    data = np.asarray(data)
    if data.dtype.kind not in "biufc":
        data = data.astype(str) if data.dtype.names is None else np.array(repr(data.tolist()))
    data = np.ascontiguousarray(data)
    digest = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
    digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def describe(value):
    """Describe a parameter in JSON.

    Estimators are described by their parameters, since scikit-learn shortens their representation.
    Functions are described by their name, and those of users by their code as well. Other objects
    are described by their representation.
    """
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        pass
    if isinstance(value, np.ndarray):
        return digest_of(value)
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if hasattr(value, "get_params") and not isinstance(value, type):
        params = value.get_params(deep=False)
        return [f"{type(value).__module__}.{type(value).__qualname__}", describe(params)]
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    name, function = describe_by_name(value), function_of(value)
    return name if function is None else [name, *_describe_function(function, [])]


def describe_by_name(value):
    """Describe an object by its name, or that of its type, and its representation."""
    is_named = callable(value) and hasattr(value, "__qualname__")  # generators are not
    kind = value if is_named else type(value)
    representation = re.sub(" at 0x[0-9a-f]+", "", repr(value))
    return f"{kind.__module__}.{kind.__qualname__} {representation}"


def function_of(value):
    """Return the function of a method, or of a wrapper such as a cache; None of other values."""
    value = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return value if isinstance(value, types.FunctionType) else None


def _describe_function(function, seen):
    """Describe a user's function by its code, its defaults, and the variables that it encloses.

    Lists and other objects that may change while the function is used are described by their type
    only, and variables that it assigns are left out. `seen` lists the functions described so far,
    in their order, and grows: functions may call each other.
    """
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return []
    if function in seen:
        return [f"function {seen.index(function)}"]
    seen.append(function)
    code = function.__code__
    around = dict(zip(code.co_freevars, function.__closure__ or ()))
    for name in _assigned(code):
        around.pop(name, None)
    parts = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *(_content(cell) for cell in around.values()),
    ]
    return [_digest_of_code(code), *(_describe_constant(part, seen) for part in parts)]


def _describe_constant(value, seen):
    """Describe numbers, texts, arrays and functions by their content, all else by its type."""
    function = function_of(value)
    if function is not None:
        return [function.__qualname__, *_describe_function(function, seen)]
    if isinstance(value, functools.partial):
        parts = value.func, value.args, *value.keywords.items()
        return [_describe_constant(part, seen) for part in parts]
    if isinstance(value, tuple):
        return [_describe_constant(part, seen) for part in value]
    if isinstance(value, frozenset):  # in an order that differs between processes
        return sorted(repr(_describe_constant(part, seen[:])) for part in value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return digest_of(value)
    if type(value) in _CONSTANTS or isinstance(value, np.number | np.bool_):
        return repr(value)
    return type(value).__qualname__


def _content(cell):
    """Return the value of an enclosed variable, None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _assigned(code):
    """List the enclosed variables that code, or code inside of it, assigns."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_DEREF"}
    return own.union(*map(_assigned, inner))


def _digest_of_code(code):
    """Compute a digest of compiled code that line numbers and addresses do not change."""
    constants = [
        _digest_of_code(c) if isinstance(c, types.CodeType) else _describe_constant(c, [])
        for c in code.co_consts
    ]
    parts = code.co_code.hex(), constants, code.co_names, code.co_varnames[: code.co_argcount]
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
