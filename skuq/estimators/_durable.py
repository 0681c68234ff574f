"""Continue searches from a folder or from memory, and load estimators from folders.

A search is identified by its data and by the parameters that change trials.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import json
import os
import re
import types
from numbers import Integral, Real

import numpy as np

from skuq._params import Interval
from skuq._warnings import warn_user
from skuq.catalog import Catalog, CatalogFolder
from skuq.catalog._folder import catalog_dir_of
from skuq.catalog._memory import CatalogMemory
from skuq.catalog._search_files import find_search, read_estimator
from skuq.exceptions import SearchFailedError, UnsavableError
from skuq.persistence import MissingPart, dumps, loads

#: Constraints of the parameters about the storage and the end of a search.
DURABLE_CONSTRAINTS: dict = {
    "catalog_dir": [str, os.PathLike, None],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "trial_timeout": [Interval(Real, 0, None, closed="neither"), None],
    "max_failures": [Interval(Integral, 0, None, closed="left"), None],
    "warm_start": ["boolean"],
}

#: Parameters that do not change trials: they can differ from one fit to the next.
RUNNING_PARAMETERS = ("n_trials", "refit", "n_jobs", "verbose", *DURABLE_CONSTRAINTS)


def open_store(estimator, params, memory, is_fitted, data):
    """Open the store of a search's trials: a folder, a `CatalogMemory`, or none.

    `params` are the parameters that change trials, by name. `memory` holds the trials of the
    previous fit, if the estimator `is_fitted` and kept them. `data` are arrays, rows, lists of
    them, or None, by name, and replace parameters of the same name.
    """
    if estimator.catalog_dir is None and not estimator.warm_start:
        return contextlib.nullcontext()
    parts, objects = {name: _digest(value) for name, value in data.items()}, {}
    for name, value in params.items():
        if name not in data:
            for part in _missing_parts(value):
                part()  # raises an error that names the missing part
            # The decisions of a search space are compared by the store, which tells what changed.
            is_space = name == "search_space" and _function_of(value) is not None
            parts[name] = _named(value) if is_space else _plain(value)
            if callable(value) or hasattr(value, "__dict__"):
                objects[name] = value
    # The labels of classes and the names of columns identify the search, too.
    parts["classes"] = _digest(getattr(estimator, "classes_", None))
    parts["feature_names"] = _digest(getattr(estimator, "feature_names_in_", None))
    # random_state=None accepts any random numbers, those of an existing search included.
    parts["random_state"] = None if estimator.random_state is None else estimator.entropy_
    parts["estimator"] = type(estimator).__name__
    if estimator.catalog_dir is not None:
        return CatalogFolder(estimator.catalog_dir, parts)
    return _recall_memory(memory, parts, objects, is_fitted)


def _recall_memory(memory, parts, objects, is_fitted):
    """Return the trials in memory if this is the same search, otherwise an empty memory."""
    reason = None
    if memory is None and is_fitted:
        reason = (
            "its trials are not in memory (it had no warm_start or a catalog_dir, or this is a "
            "copy of the estimator)"
        )
    elif memory is not None and (changed := memory.differences(parts, objects)):
        reason = f"it differs in {changed}"
    if reason is not None:
        warn_user(
            f"warm_start cannot continue the last fit: {reason}. A new search starts.",
        )
    return CatalogMemory(parts, objects) if memory is None or reason is not None else memory


def begin_search(store, estimator, held_out):
    """Store the decisions of a search, and the estimator without trials."""
    halves = estimator.decisions_._asdict()
    space = {d.name: f"{half}: {d}" for half, space in halves.items() for d in space.decisions}
    saved = None
    try:
        if store.path is not None:
            saved = dumps(estimator)
    except UnsavableError as error:
        warn_user(
            f"The search is stored and can be continued by `fit`, but not loaded by "
            f"`from_catalog`: {error}",
        )
    store.begin(estimator.entropy_, space, held_out, saved)


def load_search(cls, path, trusted, params):
    """Load the estimator and the trials of a folder; see `SearchEstimator.from_catalog`.

    Returns the estimator as it was before its first trial, with the parameters `params`, and the
    catalog of its first `n_trials` trials, as `fit` with these parameters would take them.
    """
    path = find_search(path)
    estimator = loads(read_estimator(path), trusted=trusted)
    if type(estimator) is not cls:
        name = type(estimator).__name__
        raise TypeError(f"{path} holds a search of {name}. Use {name}.from_catalog.")
    # The folder may have been moved since. Clones with other parameters get folders beside it,
    # unless it was renamed.
    _set_params_after_search(estimator, {"catalog_dir": str(catalog_dir_of(path)), **params})
    estimator.catalog_path_ = path
    stored = Catalog.load(path)
    n_trials = estimator._method.n_trials
    catalog = Catalog([r for r in stored if r.trial_number < n_trials], stored.held_out)
    if not len(catalog.completed):
        raise SearchFailedError(
            f"None of the {len(catalog)} trials in {path} has succeeded.", catalog.records
        )
    return estimator, catalog


def _set_params_after_search(estimator, params):
    """Set parameters of an estimator that has trials; only some can be changed then."""
    missing = [
        name for name, value in estimator.get_params(deep=False).items() if _missing_parts(value)
    ]
    allowed = {*estimator._method.params_not_in_fingerprint, *missing}
    wrong = sorted(set(params) - allowed)
    if wrong:
        raise ValueError(
            f"{wrong} cannot be changed for existing trials. These can: {sorted(allowed)}."
        )
    estimator.set_params(**params)._validate_params()


def _missing_parts(value):
    """List the missing parts in a parameter: the value itself, or what a container holds."""
    if isinstance(value, MissingPart):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return []
    return [part for item in values for part in _missing_parts(item)]


def _digest(data):
    """Compute a digest of arrays, or of each part of a list."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [_digest(part) for part in data]
    data = np.asarray(data)
    if data.dtype.kind not in "biufc":
        data = data.astype(str) if data.dtype.names is None else np.array(repr(data.tolist()))
    data = np.ascontiguousarray(data)
    digest = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
    digest.update(data)
    return f"sha256:{digest.hexdigest()}"


# Their functions are known by their names: the code may change with the version.
_LIBRARIES = ("skuq", "sklearn", "keras", "keras_tuner", "numpy", "scipy", "tensorflow")
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...))


def _plain(value):
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
        return _digest(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "get_params") and not isinstance(value, type):
        params = value.get_params(deep=False)
        return [f"{type(value).__module__}.{type(value).__qualname__}", _plain(params)]
    if isinstance(value, functools.partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    function = _function_of(value)
    return _named(value) if function is None else [_named(value), *_plain_function(function)]


def _named(value):
    """Describe an object by its name, or that of its type, and its representation."""
    is_named = callable(value) and hasattr(value, "__qualname__")  # generators are not
    kind = value if is_named else type(value)
    representation = re.sub(" at 0x[0-9a-f]+", "", repr(value))
    return f"{kind.__module__}.{kind.__qualname__} {representation}"


def _plain_function(function, seen=()):
    """Describe a user's function by its code, its defaults, and the variables that it encloses.

    Lists and other objects that may change while the function is used are described by their type
    only, and variables that it assigns are left out. `seen` are the functions whose description
    has begun: functions may call each other.
    """
    if (function.__module__ or "").split(".")[0] in _LIBRARIES or function in seen:
        return []
    seen, code = (*seen, function), function.__code__
    around = dict(zip(code.co_freevars, function.__closure__ or ()))
    for name in _assigned(code):
        around.pop(name, None)
    parts = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *(_content(cell) for cell in around.values()),
    ]
    return [_digest_code(code), *(_plain_constant(part, seen) for part in parts)]


def _function_of(value):
    """Return the function of a method, or of a wrapper such as a cache; None of other values."""
    value = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return value if isinstance(value, types.FunctionType) else None


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


def _plain_constant(value, seen):
    """Describe numbers, texts, arrays and functions by their content, all else by its type."""
    function = _function_of(value)
    if function is not None:
        return [function.__qualname__, *_plain_function(function, seen)]
    if isinstance(value, functools.partial):
        parts = value.func, value.args, *value.keywords.items()
        return [_plain_constant(part, seen) for part in parts]
    if isinstance(value, tuple):
        return [_plain_constant(part, seen) for part in value]
    if isinstance(value, frozenset):
        return sorted(repr(_plain_constant(part, seen)) for part in value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _digest(value)
    if type(value) in _CONSTANTS or isinstance(value, np.number | np.bool_):
        return repr(value)
    return type(value).__qualname__


def _digest_code(code):
    """Compute a digest of compiled code that line numbers and addresses do not change."""
    constants = [
        _digest_code(c) if isinstance(c, types.CodeType) else _plain_constant(c, ())
        for c in code.co_consts
    ]
    parts = code.co_code.hex(), constants, code.co_names, code.co_varnames[: code.co_argcount]
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
