"""A search in a folder: what makes it the same search, and an estimator out of the folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from numbers import Integral, Real

import numpy as np

from skuq._params import Interval
from skuq.catalog import Catalog, CatalogFolder
from skuq.catalog._memory import CatalogMemory
from skuq.catalog._search_files import find_search, read_estimator
from skuq.exceptions import SearchFailedError, UnsavableError
from skuq.persistence import MissingPart, dumps, loads
from skuq.search import Limits, RunOptions

__all__ = ["DURABLE_CONSTRAINTS", "DurableSearchMixin"]

#: Of the parameters that say where a search is kept and when it ends.
DURABLE_CONSTRAINTS: dict = {
    "catalog_dir": [str, os.PathLike, None],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "trial_timeout": [Interval(Real, 0, None, closed="neither"), None],
    "max_failures": [Interval(Integral, 0, None, closed="left"), None],
    "warm_start": ["boolean"],
}


class DurableSearchMixin:
    """The parameters `catalog_dir`, `max_time`, `trial_timeout`, `max_failures`, `warm_start`.

    A subclass names its `_selection_parameters`, which decide on the ensemble alone, and has
    ``_select()``, which chooses from its `catalog_`.
    """

    _selection_parameters: tuple = ()
    _prediction_parameters: tuple = ()
    # What a search does without changing any trial: it may differ from one fit to the next.
    _running_parameters = ("n_trials", "refit", "n_jobs", "verbose", *DURABLE_CONSTRAINTS)

    def _run_options(self):
        limits = Limits(self.max_time, self.trial_timeout, self.max_failures)
        return RunOptions(self.n_jobs, limits, self.verbose)

    @property
    def _harmless(self):
        """Parameters that change no trial."""
        return {
            *self._selection_parameters,
            *self._prediction_parameters,
            *self._running_parameters,
        }

    def _open_store(self, is_fitted, **data):
        """Where the trials of this search are, for a `with`; None where nothing is kept.

        `is_fitted` says whether there was a fit before; `data` are arrays, rows, lists of them, or
        None, by what they are.
        """
        if self.catalog_dir is not None or not self.warm_start:
            self.__dict__.pop("_memory", None)
        if self.catalog_dir is None and not self.warm_start:
            return contextlib.nullcontext()
        parts, objects = {name: _digest(value) for name, value in data.items()}, {}
        for name, value in self.get_params(deep=False).items():
            if name not in self._harmless and name not in data:
                if isinstance(value, MissingPart):
                    value()  # says what is missing
                parts[name] = _plain(value)
                if callable(value) or hasattr(value, "__dict__"):
                    objects[name] = value
        # What predictions are called, and columns.
        parts["classes"] = _digest(getattr(self, "classes_", None))
        parts["feature_names"] = _digest(getattr(self, "feature_names_in_", None))
        # None asks for any random numbers: for those of the search that is there, if one is.
        parts["random_state"] = None if self.random_state is None else self.entropy_
        parts["estimator"] = type(self).__name__
        if self.catalog_dir is not None:
            return CatalogFolder(self.catalog_dir, parts)
        return self._recalled(parts, objects, is_fitted)

    def _recalled(self, parts, objects, is_fitted):
        """The trials in memory, if this is the same search; whatever becomes of it, they stay."""
        memory, why = self.__dict__.get("_memory"), None
        if memory is None and is_fitted:
            why = (
                "its trials are not in memory (it had no warm_start or a catalog_dir, or this is a "
                "copy of the estimator)"
            )
        elif memory is not None and (changed := memory.differences(parts, objects)):
            why = f"it differs in {changed}"
        if why is not None:
            warnings.warn(
                f"warm_start cannot go on with the last fit: {why}. A new search starts.",
                stacklevel=6,
            )
        if memory is None or why is not None:
            self._memory = CatalogMemory(parts, objects)
        return self._memory

    def _begin(self, store, held_out):
        """Write down what is searched, and the estimator as it is before its first trial."""
        halves = self.decisions_._asdict()
        space = {d.name: f"{half}: {d}" for half, own in halves.items() for d in own.decisions}
        front = None
        try:
            if store.path is not None:
                front = dumps(self)
        except UnsavableError as error:
            warnings.warn(
                f"The search is kept and can be gone on with, but `from_catalog` will not know it: "
                f"{error}",
                stacklevel=6,
            )
        store.begin(self.entropy_, space, held_out, front)

    @classmethod
    def from_catalog(cls, path, *, trusted=None, **params):
        """A fitted estimator from the folder of a search, finished or not.

        Nothing is trained, and no data are needed: the ensemble is selected anew from the
        trials that are there. To go on with the search, call `fit` with the same data and the
        same `catalog_dir`.

        Parameters
        ----------
        path : path
            The `catalog_dir` of the search, or the folder in it if it holds several.
        trusted : list of str or type, optional
            Types in a `preprocess` of scikit-learn's, see `skuq.load`.
        **params : dict
            Parameters that do not change trials: those of the selection, such as `n_members`,
            and of how a search runs, such as `n_trials`. And functions or objects of your own,
            a `search_space` for example, which files do not hold: needed to fit again.

        Returns
        -------
        estimator

        Raises
        ------
        FileNotFoundError
            If there is no search.
        ValueError
            If there are several, or a parameter cannot be changed afterwards.
        TypeError
            If the search is another estimator's.
        SearchFailedError
            If no trial has succeeded yet.
        FileFormatError
            If a file is broken.
        """
        path = find_search(path)
        estimator = loads(read_estimator(path), trusted=trusted)
        if type(estimator) is not cls:
            name = type(estimator).__name__
            raise TypeError(f"{path} is a search of {name}: call {name}.from_catalog.")
        # Where it is now: a folder may have been moved.
        estimator._set_harmless({"catalog_dir": str(path), **params})
        catalog = Catalog.load(path)
        if not len(catalog.completed):
            raise SearchFailedError(
                f"None of the {len(catalog)} trials in {path} has succeeded.", catalog.records
            )
        estimator.catalog_, estimator.catalog_path_ = catalog, path
        estimator.refitted_ = {}
        estimator.selection_ = estimator._select()
        if estimator.refit:
            warnings.warn(
                "Members are the networks of the search: with `refit=True` `fit` trains them anew "
                "on all rows, which needs the rows.",
                stacklevel=2,
            )
        return estimator

    def _set_harmless(self, params):
        missing = [
            name
            for name, value in self.get_params(deep=False).items()
            if isinstance(value, MissingPart)
        ]
        allowed = {*self._harmless, *missing}
        wrong = sorted(set(params) - allowed)
        if wrong:
            raise ValueError(
                f"{wrong} cannot be changed for trials that are there. Can be: {sorted(allowed)}."
            )
        self.set_params(**params)._validate_params()


def _digest(data):
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [_digest(part) for part in data]
    data = np.asarray(data)
    data = np.ascontiguousarray(data if data.dtype.kind in "biufc" else data.astype(str))
    found = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
    found.update(data)
    return f"sha256:{found.hexdigest()}"


def _plain(value):
    """A parameter in JSON; objects by what they say of themselves, functions by name."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        pass
    if isinstance(value, np.ndarray):
        return _digest(value)
    if isinstance(value, dict):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    is_named = callable(value) and hasattr(value, "__qualname__")  # generators are not
    kind = value if is_named else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} {re.sub(' at 0x[0-9a-f]+', '', repr(value))}"
