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

# Functions and objects of these packages are compared by name and representation only, since
# their code changes between versions.
_LIBRARIES = ("skuq", "sklearn", "keras", "keras_tuner", "numpy", "scipy", "tensorflow")
# Types of constants whose representation tells their value.
_CONSTANT_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_BASES_OF_CONSTANTS = (
    *(np.generic, enum.Enum, decimal.Decimal, fractions.Fraction, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
)
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # flags of code with *args, **kwargs
# Where methods, decorated functions and `np.vectorize` keep their function.
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


def describe(value, *, with_code=True):
    """Describe a parameter in JSON.

    Estimators are described by their parameters, since scikit-learn shortens their representation.
    Functions of users are described by their name, by the values that they use, and `with_code` by
    their code. Other objects are described by their representation, or by their attributes if they
    have no representation of their own.
    """
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        pass
    within = functools.partial(describe, with_code=with_code)
    if isinstance(value, np.ndarray):
        return digest_of(value)
    if isinstance(value, dict):
        return {str(key): within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [within(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(within(item)) for item in value)
    if isinstance(value, np.random.RandomState):
        return within(value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return within(value.bit_generator.state)
    if hasattr(value, "get_params") and not isinstance(value, type):
        params = value.get_params(deep=False)
        return [f"{type(value).__module__}.{type(value).__qualname__}", within(params)]
    if isinstance(value, functools.partial):
        return [within(value.func), within(value.args), within(value.keywords)]
    name, seen = _name_of(value), []
    parts = _describe_attributes(getattr(value, "__self__", value), seen, with_code)
    function = function_of(value) or (callable(value) and function_of(type(value).__call__))
    if function:
        parts += _describe_function(function, seen, with_code)
    return [name, *parts] if parts else name


def function_of(value):
    """Return the function of a method, or of a wrapper such as a cache; None of other values."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(value, types.FunctionType):
            return value
        wrapped = (getattr(value, name, None) for name in _WRAPPED)
        value = next((one for one in wrapped if one is not None), None)
    return None


def _name_of(value):
    """Describe an object by its name, or that of its type, and its representation."""
    is_named = callable(value) and hasattr(value, "__qualname__")  # generators are not
    kind = value if is_named else type(value)
    representation = re.sub(" at 0x[0-9a-fA-F]+", "", repr(value))
    return f"{getattr(kind, '__module__', None)}.{kind.__qualname__} {representation}"


def _is_of_library(module):
    return (module or "").split(".")[0] in _LIBRARIES


def _describe_attributes(value, seen, with_code):
    """Describe the attributes of an object of a user's class without a representation of its own.

    Attributes that its methods set later than in ``__init__`` are left out, such as counters.
    """
    kind = type(value)
    if kind.__repr__ is not object.__repr__ or _is_of_library(kind.__module__):
        return []
    changing = {
        instruction.argval
        for parent in kind.__mro__
        for name, method in vars(parent).items()
        if name != "__init__" and isinstance(method, types.FunctionType)
        for instruction in dis.get_instructions(method)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR")
    }
    return [
        [name, _describe_constant(item, seen, with_code)]
        for name, item in sorted(getattr(value, "__dict__", {}).items())
        if name not in changing
    ]


def _describe_function(function, seen, with_code=True):
    """Describe a user's function by its code, its defaults and its closure variables.

    Lists and other objects that may change while the function is used are described by their type
    only, and nonlocal variables that it assigns are left out. `seen` lists the functions described
    so far, in their order, and grows: functions may call each other.
    """
    # A decorator may give a function the module of the one that it wraps.
    if _is_of_library(function.__globals__.get("__name__")):
        return []
    if function in seen:
        return [f"function {seen.index(function)}"]
    seen.append(function)
    code = function.__code__
    closure = dict(zip(code.co_freevars, function.__closure__ or ()))
    for name in _nonlocal_names(code):
        closure.pop(name, None)
    values = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).items(),
        *(_value_of_cell(cell) for cell in closure.values()),
    ]
    described = [_describe_constant(value, seen, with_code) for value in values]
    return [_digest_of_code(code), *described] if with_code else described


def _describe_constant(value, seen, with_code=True):
    """Describe numbers, texts, arrays and functions by their content, all else by its type."""
    within = functools.partial(_describe_constant, with_code=with_code)
    function = function_of(value)
    if function is not None:
        return [function.__qualname__, *_describe_function(function, seen, with_code)]
    if isinstance(value, functools.partial):
        return [within(part, seen) for part in (value.func, value.args, *value.keywords.items())]
    if isinstance(value, tuple):
        return [within(part, seen) for part in value]
    if isinstance(value, frozenset):  # in an order that differs between processes
        return sorted(repr(within(part, seen[:])) for part in value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return digest_of(value)
    if type(value) in _CONSTANT_TYPES or isinstance(value, _BASES_OF_CONSTANTS):
        return repr(value)
    if callable(value) and hasattr(value, "__name__"):  # a class, or a function in C
        return _name_of(value)
    return type(value).__qualname__


def _value_of_cell(cell):
    """Return the value of a closure variable, None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _nonlocal_names(code):
    """List the closure variables that code, or code inside of it, assigns."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_DEREF"}
    return own.union(*map(_nonlocal_names, inner))


def _digest_of_code(code):
    """Compute a digest of compiled code.

    Line numbers, comments, docstrings and the names of local variables do not change it.
    """
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    steps = [(i.opname, _argument_of(i)) for i in dis.get_instructions(code)]
    parts = names, code.co_flags & _VARIADIC, steps, code.co_exceptiontable.hex()
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def _argument_of(instruction):
    """Describe what an instruction works on: a constant, a name, or a number."""
    if instruction.opcode in dis.hasconst:
        constant = instruction.argval
        is_code = isinstance(constant, types.CodeType)
        return _digest_of_code(constant) if is_code else _describe_constant(constant, [])
    return instruction.argval if instruction.opcode in dis.hasname else instruction.arg
