"""Continue searches from a folder or from memory, and load estimators from folders.

A search is identified by its data and by the parameters that change trials.
"""

from __future__ import annotations

import contextlib
import os
from numbers import Integral, Real

from skuq._params import Interval
from skuq._utils._messages import warn_user
from skuq.catalog import Catalog, CatalogFolder
from skuq.catalog._catalog import CatalogMemory
from skuq.catalog._folder import catalog_dir_of, find_search, read_estimator
from skuq.estimators._descriptions import describe, digest_of
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
    parts, objects = {name: digest_of(value) for name, value in data.items()}, {}
    for name, value in params.items():
        if name not in data:
            for part in _missing_parts(value):
                part()  # raises an error that names the missing part
            # The decisions of a search space are compared by the store, which tells what changed.
            parts[name] = describe(value, with_code=name != "search_space")
            if callable(value) or hasattr(value, "__dict__"):
                objects[name] = value
    # The labels of classes and the names of columns identify the search, too.
    parts["classes"] = digest_of(getattr(estimator, "classes_", None))
    parts["feature_names"] = digest_of(getattr(estimator, "feature_names_in_", None))
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
