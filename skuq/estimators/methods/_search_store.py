"""Continue searches from a folder, and load estimators from folders.

A search is identified by its data and by the parameters that change trials.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import weakref
from numbers import Real
from typing import Any

from sklearn.base import is_classifier

from skuq._messages import warn_user
from skuq._params import Interval, Settings
from skuq.exceptions import UnsavableError
from skuq.files import dumps, loads
from skuq.files._save import MissingPart
from skuq.networks import Decisions
from skuq.search import Catalog, CatalogFolder, NESEvolution
from skuq.search._fingerprint import describe, digest_of
from skuq.search._folder import (
    catalog_dir_of,
    find_search,
    has_estimator,
    read_estimator,
    write_estimator,
)
from skuq.search._records import HeldOut

#: Constraints of the parameters about the storage and the end of a search.
DURABLE_CONSTRAINTS: dict = {
    "catalog_dir": [str, os.PathLike, None],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "trial_timeout": [Interval(Real, 0, None, closed="neither"), None],
    "warm_start": ["boolean"],
}

#: Parameters that change the selection of the ensemble alone.
SELECTION_PARAMETERS = ("n_members", "selection", "calibrate")

# Parameters that do not change trials: they can differ from one fit to the next.
_NOT_IN_FINGERPRINT = {
    *SELECTION_PARAMETERS,
    *("n_trials", "refit", "repeats", "n_jobs", "verbose"),
    *DURABLE_CONSTRAINTS,
}


def open_store(
    estimator: Any, plan: Any, task: Any, folds: Any, max_wait: float | None = None
) -> Any:
    """Open the store of a search's trials: its folder, or none.

    Parameters
    ----------
    estimator : estimator
        With ``warm_start``, its `_folder` holds the trials if it has no `catalog_dir`.
    plan : SearchPlan
    task : Task
    folds : list of pairs of ndarray, or None
        The folds of a user's splitter, which can make others each time.
    max_wait : float, optional
        Maximum seconds to wait for another fit that runs the same search.
    """
    catalog_dir = estimator.catalog_dir
    if catalog_dir is not None or not estimator.warm_start:
        estimator._folder = None
    elif estimator._folder is None:
        estimator._folder = TemporaryFolder()
    if estimator._folder is not None:
        catalog_dir = estimator._folder.path
    if catalog_dir is None:
        return contextlib.nullcontext()
    for value in estimator.get_params(deep=True).values():
        for part in _missing_parts(value):
            part()  # raises an error that names the missing part
    # Settings count by their values, so that a short form equals the object it stands for. The
    # decisions of a search space are compared by the store, which tells what changed.
    params = estimator.get_params(deep=False) | {"search": plan.strategy, "space": plan.space}
    found = _flatten({k: v for k, v in params.items() if k not in _NOT_IN_FINGERPRINT})
    # The evolution compares ensembles by the loss of the selection.
    if isinstance(plan.strategy, NESEvolution):
        found["selection__loss"] = plan.rule.loss
    found["search__initial_trials"] = plan.strategy.given_configurations()
    parts = {name: describe(value) for name, value in found.items()}
    weight = task.rows.weight
    data = {
        "X": task.rows.X,
        "y": task.rows.y,
        "sample_weight": None if (weight == 1).all() else weight,
        "groups": task.groups,
        "validation_data": task.validation,
        "shift_validation": task.shifted,
        # The labels of classes and the names of columns identify the search, too.
        "classes": getattr(task.targets, "classes", None),
        "feature_names": getattr(estimator, "feature_names_in_", None),
        **({} if folds is None else {"validation": folds}),
    }
    parts |= {name: digest_of(value) for name, value in data.items()}
    # random_state=None accepts any random numbers, those of an existing search included.
    parts["random_state"] = None if estimator.random_state is None else task.entropy
    parts["estimator"] = type(estimator).__name__
    if is_classifier(estimator):  # trials keep the epoch that has the best score
        at_best = estimator.calibrate and not task.shifted
        parts["score of trials, by `calibrate`"] = (
            "log loss at the best temperature" if at_best else "log loss"
        )
    else:
        parts |= plan.defaults.fingerprint
    return CatalogFolder(catalog_dir, parts, math.inf if max_wait is None else max_wait)


def _remove(path: str, process: int) -> None:
    """Remove a folder, but not at the end of a forked child of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


class TemporaryFolder:
    """A folder that is removed with the last estimator that has it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="skuq-warm-start-")
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __deepcopy__(self, memo: Any) -> TemporaryFolder:
        return self


def _flatten(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Settings):
            found[prefix + name] = type(value).__name__
            found |= _flatten(value.get_params(deep=False), f"{prefix}{name}__")
        else:
            found[prefix + name] = value
    return found


def begin_search(
    store: Any, estimator: Any, entropy: int, decisions: Decisions, held_out: HeldOut
) -> None:
    """Store the decisions of a search, and the estimator without trials."""
    halves = decisions._asdict()
    space = {d.name: f"{half}: {d}" for half, space in halves.items() for d in space.decisions}
    saved = None
    try:
        if estimator.catalog_dir is not None:
            saved = dumps(estimator)
    except UnsavableError as error:
        warn_user(
            f"The search is stored and can be continued by `fit`, but not loaded by "
            f"`from_catalog`: {error}"
        )
    store.begin(entropy, space, held_out, saved)


def store_again(store: Any, estimator: Any) -> None:
    """Store the estimator again, with what only training rows tell: its uncertainty far from them.

    `from_catalog` has no rows.
    """
    if has_estimator(store.path):
        write_estimator(store.path, dumps(estimator))


def load_search(cls: Any, path: Any, trusted: Any, params: dict[str, Any]) -> tuple[Any, Catalog]:
    """Load the estimator and the trials of a folder; see `SearchEstimator.from_catalog`.

    Returns the estimator as it was before its first trial, with the parameters `params`, and the
    catalog of all trials.
    """
    path = find_search(path)
    estimator: Any = loads(read_estimator(path), trusted=trusted)
    if type(estimator) is not cls:
        name = type(estimator).__name__
        raise TypeError(f"{path} holds a search of {name}. Use {name}.from_catalog.")
    given = estimator.get_params(deep=True)
    # The folder may have been moved since. Clones with other parameters get folders beside it,
    # unless it was renamed.
    params = {"catalog_dir": str(catalog_dir_of(path)), **params}
    missing = {name for name, value in given.items() if _missing_parts(value)}
    names = set(estimator.get_params(deep=False))
    allowed = (_NOT_IN_FINGERPRINT & names) | missing
    wrong = sorted(k for k in params if k not in allowed and k.partition("__")[0] not in allowed)
    if wrong:
        raise ValueError(
            f"{wrong} cannot be changed for existing trials. These can: {sorted(allowed)}."
        )
    estimator.set_params(**params)._validate_params()
    estimator.catalog_path_ = path
    return estimator, Catalog.load(path)


def _missing_parts(value: Any) -> list[MissingPart]:
    """List the missing parts in a parameter: the value itself, or what a container holds."""
    if isinstance(value, MissingPart):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return []
    return [part for item in values for part in _missing_parts(item)]
