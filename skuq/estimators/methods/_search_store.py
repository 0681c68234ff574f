"""Continue searches from a folder, and load estimators from folders.

A search is identified by its data and by the parameters that change trials.
"""

import contextlib
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, NamedTuple, Self, TypeAlias

from sklearn.base import is_classifier

from skuq._messages import warn_user
from skuq._params import Interval, Settings
from skuq.exceptions import UnsavableError
from skuq.files import _archive
from skuq.files._save import Describer, MissingPart, Restorer
from skuq.search import Catalog, CatalogFolder, NESEvolution
from skuq.search._fingerprint import describe, digest_of, is_of_library
from skuq.search._folder import catalog_dir_of, find_search, read_estimator
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
    *("n_trials", "refit", "n_jobs", "verbose"),
    *DURABLE_CONSTRAINTS,
}


def identify(estimator: Any, plan: Any, task: Any, folds: Any) -> dict[str, Any]:
    """Describe in JSON what identifies a search: its data, and the parameters that change trials.

    `folds` are those of a user's splitter, which can make others each time, or None.
    """
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
        "feature_names": task.features.get("feature_names_in_"),
        **({} if folds is None else {"validation": folds}),
    }
    parts |= {name: digest_of(value) for name, value in data.items()}
    # random_state=None accepts any random numbers, those of an existing search included.
    parts["random_state"] = None if estimator.random_state is None else task.entropy
    parts["estimator"] = type(estimator).__name__
    if not is_classifier(estimator):
        return parts
    # Trials of classes keep the epoch that has the best score.
    at_best = estimator.calibrate and not task.shifted
    score = "log loss at the best temperature" if at_best else "log loss"
    return parts | {"score of trials, by `calibrate`": score}


#: Describes what identifies a search, see `identify`.
Identify: TypeAlias = Callable[[], dict[str, Any]]


def open_store(estimator: Any, identify: Identify, max_wait: float | None) -> Any:
    """Open the store of a search's trials, or none: a folder of the user's or of a warm start.

    `max_wait` is the maximum number of seconds to wait for another fit that runs the same search.
    """
    folder = estimator._folder
    catalog_dir = estimator.catalog_dir if folder is None else folder.path
    if catalog_dir is None:
        return contextlib.nullcontext()
    return CatalogFolder(catalog_dir, identify(), math.inf if max_wait is None else max_wait)


def _remove(path: str, process: int) -> None:
    """Remove a folder, but not at the end of a forked child of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


class TemporaryFolder:
    """A folder that is removed with the last estimator that has it, unless it is to be kept."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="skuq-warm-start-")
        self._removal = weakref.finalize(self, _remove, self.path, os.getpid())

    def keep(self) -> None:
        """Leave the folder where it is, for a message that names it."""
        self._removal.detach()

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _flatten(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Settings):
            kind = type(value)
            found[prefix + name] = kind.__name__ if is_of_library(kind) else kind
            found |= _flatten(value.get_params(deep=False), f"{prefix}{name}__")
        else:
            found[prefix + name] = value
    return found


class SearchStart(NamedTuple):
    """What `from_catalog` needs besides the trials, as the folder of a search stores it.

    Attributes
    ----------
    estimator : str
        Name of the estimator's class.
    params : dict
        Parameters of the estimator.
    attributes : dict
        Fitted attributes that are known before the first trial.
    empty : FittedEnsemble
        Scales of X and y without networks; after the search, with what was learnt about rows far
        away, since `from_catalog` has no rows.
    """

    estimator: str
    params: dict[str, Any]
    attributes: dict[str, Any]
    empty: Any

    def to_bytes(self, estimator: Any) -> bytes:
        """Encode as a file; raise UnsavableError if a parameter cannot be saved."""
        return _archive.to_bytes(self._asdict(), kind=_KIND, describe=Describer(estimator))


_KIND = "start of a search"


def begin_search(
    store: Any, estimator: Any, start: SearchStart, held_out: HeldOut | None, *, loadable: bool
) -> None:
    """Store what is known before the first trial, for `from_catalog` if it is to be `loadable`."""
    halves = start.attributes["decisions_"]._asdict()
    space = {d.name: f"{half}: {d}" for half, space in halves.items() for d in space.decisions}
    saved = None
    try:
        if loadable:
            saved = start.to_bytes(estimator)
    except UnsavableError as error:
        warn_user(
            f"The search is stored and can be continued by `fit`, but not loaded by "
            f"`from_catalog`: {error}"
        )
    store.begin(start.attributes["entropy_"], space, held_out, saved)


@contextlib.contextmanager
def keeping_trials(
    store: Any, estimator: Any, start: SearchStart, identify: Identify, trials: Catalog
) -> Iterator[None]:
    """Keep the trials in a folder if what follows them fails, and name it in the error.

    It may be the user's `selection` that raises, or an interrupt.
    """
    held_out: Any = trials.held_out
    try:
        yield
    except BaseException as error:
        # The error is raised, whatever hinders the storage.
        with contextlib.suppress(OSError, UnsavableError):
            if store is None:
                store = CatalogFolder(tempfile.mkdtemp(prefix="skuq-trials-"), identify())
                with store:
                    begin_search(store, estimator, start, held_out, loadable=True)
                    for record in trials:
                        store.add(record)
            elif estimator.catalog_dir is None:  # the folder of a warm start
                begin_search(store, estimator, start, held_out, loadable=True)
                estimator._folder.keep()
            error.add_note(
                "No trial is lost. Choose among them with another selection, for example "
                f'{start.estimator}.from_catalog({str(store.path)!r}, selection="top").'
            )
        raise


def load_search(cls: Any, path: Any, trusted: Any, params: dict[str, Any]) -> tuple[Any, ...]:
    """Load the folder of a search; see `SearchEstimator.from_catalog`.

    Returns an estimator that is not fitted, with the parameters `params`, the start of the search,
    the catalog of all trials and the folder.
    """
    path = find_search(path)
    data, restore = read_estimator(path), Restorer(None, trusted)
    source = f"the start of the search in {path}"
    tree = _archive.from_bytes(data, kinds=(_KIND,), restore=restore, source=source)
    with _archive.refuse_broken(source):
        start = SearchStart(**tree)
    if start.estimator != cls.__name__:
        name = start.estimator
        raise TypeError(f"{path} holds a search of {name}. Use {name}.from_catalog.")
    estimator = cls(**start.params)
    given = estimator.get_params(deep=True)
    # The folder may have been moved since. Clones with other parameters get folders beside it,
    # unless it was renamed.
    params = {"catalog_dir": str(catalog_dir_of(path)), **params}
    missing = {name for name, value in given.items() if _missing_parts(value)}
    allowed = (_NOT_IN_FINGERPRINT & start.params.keys()) | missing
    wrong = sorted(k for k in params if k not in allowed and k.partition("__")[0] not in allowed)
    if wrong:
        raise ValueError(
            f"{wrong} cannot be changed for existing trials. These can: {sorted(allowed)}."
        )
    estimator.set_params(**params)._validate_params()
    return estimator, start, Catalog.load(path), path


def _missing_parts(value: Any) -> list[MissingPart]:
    """List the missing parts in a parameter: the value itself, or what a container holds."""
    if isinstance(value, MissingPart):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return []
    return [part for item in values for part in _missing_parts(item)]
