"""Describe data and parameters in JSON, so that two searches can be compared."""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import json
import operator
import pathlib
import re
import types

import numpy as np
import pandas as pd

# Functions and objects of these packages are compared by name and representation only, since
# their code changes between versions.
_LIBRARIES = (
    *("skuq", "sklearn", "keras", "keras_tuner", "tensorflow", "tensorflow_probability", "torch"),
    *("numpy", "scipy", "pandas", "polars", "dask", "distributed", "joblib", "matplotlib"),
)
# Types of constants whose representation tells their value.
_CONSTANT_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_BASES_OF_CONSTANTS = (
    *(np.generic, enum.Enum, decimal.Decimal, fractions.Fraction, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
)
_TABLES = (pd.DataFrame, pd.Series, pd.Index)
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # flags of code with *args, **kwargs
# Attributes in which methods, decorated functions and `np.vectorize` hold their function.
_WRAPPED = ("__func__", "__wrapped__", "pyfunc")
_MOST_WRAPPERS = 100  # of one function; some objects answer any attribute with themselves


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


def _digests_of_table(table):
    """Compute digests of the values, the rows' labels and the columns of a table of pandas."""
    parts = (table.to_numpy(), *(axis.to_numpy() for axis in getattr(table, "axes", ())))
    return [type(table).__name__, *map(digest_of, parts)]


def describe(value, seen=None, with_code=True):
    """Describe a parameter in JSON.

    Estimators and objects of users are described by their parameters, functions of users by their
    name, by the values that they use, and `with_code` by their code. Other objects are described
    by their representation. `seen` are the functions and objects described so far, in order. It
    grows: functions may call each other.
    """
    seen = [] if seen is None else seen
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        pass
    within = functools.partial(describe, seen=seen, with_code=with_code)
    if isinstance(value, np.ndarray):
        return digest_of(value)
    if isinstance(value, _TABLES):
        return _digests_of_table(value)
    if isinstance(value, dict):
        return {str(key): within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [within(item) for item in value]
    if isinstance(value, set | frozenset):  # in an order that differs between processes
        return sorted(json.dumps(describe(item, seen[:], with_code)) for item in value)
    if isinstance(value, np.random.RandomState):
        return within(value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return within(value.bit_generator.state)
    if hasattr(value, "get_params") and not isinstance(value, type):
        params = value.get_params(deep=False)
        return [f"{type(value).__module__}.{type(value).__qualname__}", within(params)]
    if isinstance(value, functools.partial):
        return [within(value.func), within(value.args), within(value.keywords)]
    params = _parameters_of(value)
    name = _name_of(value) if params is None else _name_of(type(value))
    parts = [] if params is None else [_describe_parameters(value, params, seen, with_code)]
    # A method is described by its function and the parameters of its object.
    owner = _attribute(value, "__self__")
    params = None if owner is None else _parameters_of(owner)
    if params is not None:
        parts.append(_describe_parameters(owner, params, seen, with_code))
    function = function_of(value) or (callable(value) and function_of(type(value).__call__))
    if function:
        parts += _describe_function(function, seen, with_code)
    return [name, *parts] if parts else name


def function_of(value):
    """Return the function of a method, or of a wrapper such as a cache; None of other values."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(value, types.FunctionType):
            return value
        wrapped = (_attribute(value, name) for name in _WRAPPED)
        value = next((one for one in wrapped if one is not None), None)
    return None


def _attribute(value, name):
    """Return an attribute; None if there is none, or if it cannot be read."""
    try:
        return getattr(value, name, None)
    except Exception:  # a property of a user's class can raise anything
        return None


def _name_of(value):
    """Describe an object by its name, or that of its type, and its representation."""
    is_named = callable(value) and hasattr(value, "__qualname__")  # generators are not
    kind = value if is_named else type(value)
    representation = re.sub(" at 0x[0-9a-fA-F]+", "", repr(value))
    return f"{getattr(kind, '__module__', None)}.{kind.__qualname__} {representation}"


def _is_of_library(module):
    return (module or "").split(".")[0] in _LIBRARIES


def _parameters_of(value):
    """Return the parameters of an object of a user's class; None of other objects.

    By the convention of scikit-learn and dataclasses they are the attributes named as the
    arguments of ``__init__``, or so with an underscore before the name.
    """
    kind = type(value)
    is_own = isinstance(kind.__init__, types.FunctionType) and not _is_of_library(kind.__module__)
    names = list(inspect.signature(kind).parameters) if is_own else []
    found = {name: _attribute(value, name) for name in names}
    found |= {n: _attribute(value, f"_{n}") for n, item in found.items() if item is None}
    return found or None


def _describe_parameters(value, params, seen, with_code):
    """Describe the parameters of an object, or say which object it is if that has been done."""
    if any(value is other for other in seen):
        return f"described before: {next(k for k, other in enumerate(seen) if other is value)}"
    seen.append(value)
    return describe(params, seen, with_code)


def _describe_function(function, seen, with_code):
    """Describe a user's function by its code, its defaults and its closure variables.

    Lists and other objects that may change while the function is used are described by their type
    only, and nonlocal variables that it assigns are left out.
    """
    # A decorator may give a function the module of the one that it wraps.
    if _is_of_library(function.__globals__.get("__name__")):
        return []
    if any(function is other for other in seen):
        return [f"described before: {next(k for k, o in enumerate(seen) if o is function)}"]
    seen.append(function)
    code = function.__code__
    closure = dict(zip(code.co_freevars, function.__closure__ or ()))
    for name in _nonlocal_names(code):
        closure.pop(name, None)
    values = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).items(),
        *(_attribute(cell, "cell_contents") for cell in closure.values()),  # None: not assigned
    ]
    described = [_describe_constant(value, seen, with_code) for value in values]
    return [_digest_of_code(code), *described] if with_code else described


def _describe_constant(value, seen, with_code=True):
    """Describe a value that a function uses.

    Numbers, texts, arrays, functions and the parameters of users' objects count, of all else only
    the type.
    """
    within = functools.partial(_describe_constant, seen=seen, with_code=with_code)
    if isinstance(value, functools.partial):
        return [within(part) for part in (value.func, value.args, *value.keywords.items())]
    if isinstance(value, tuple):
        return [within(part) for part in value]
    if isinstance(value, frozenset):  # in an order that differs between processes
        return sorted(repr(_describe_constant(part, seen[:], with_code)) for part in value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return digest_of(value)
    if isinstance(value, _TABLES):
        return _digests_of_table(value)
    if type(value) in _CONSTANT_TYPES or isinstance(value, _BASES_OF_CONSTANTS):
        return repr(value)
    if function_of(value) is not None or _parameters_of(value) is not None:
        return describe(value, seen, with_code)
    if callable(value) and hasattr(value, "__name__"):  # a class, or a function in C
        return _name_of(value)
    return type(value).__qualname__


def _nonlocal_names(code):
    """List the closure variables that code, or code inside of it, assigns."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_DEREF"}
    return own.union(*map(_nonlocal_names, inner))


def _digest_of_code(code):
    """Compute a digest of compiled code.

    Line numbers, comments, docstrings and the names of local variables do not change it.
    """
    names, steps = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], []
    for i in dis.get_instructions(code):
        # What the instruction works on: a constant, a name, or a number.
        argument = i.argval if i.opcode in dis.hasname else i.arg
        if i.opcode in dis.hasconst:
            is_code = isinstance(i.argval, types.CodeType)
            argument = _digest_of_code(i.argval) if is_code else _describe_constant(i.argval, [])
        steps.append((i.opname, argument))
    parts = names, code.co_flags & _VARIADIC, steps, code.co_exceptiontable.hex()
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
