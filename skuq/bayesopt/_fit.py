"""Fits of a search: surrogates of the results so far, their seeds, and the last fit."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from skuq._seeds import generator, trial_seed
from skuq._threads import one_thread_if_small
from skuq.bayesopt._results import Results
from skuq.bayesopt._settings import SearchSettings
from skuq.bayesopt._surrogate import posterior_of
from skuq.predictive import Posterior

#: What a fit raises if it fails numerically: another seed may help.
FIT_ERRORS = (FloatingPointError, np.linalg.LinAlgError)
N_ATTEMPTS = 2  # seeds that are tried if a fit fails


@dataclass(frozen=True, eq=False)
class Surrogates:
    """Fitted surrogates of the outputs and of the measured constraints, and their posteriors.

    `settings` are those of the last step that used them.
    """

    settings: SearchSettings
    model: Any
    posterior: Posterior
    constraint_models: dict[str, Any]
    constraint_posteriors: dict[str, Posterior]
    seconds: float


class Fits:
    """Fits surrogates to results; keeps the last fit, which pending points do not change."""

    def __init__(self) -> None:
        self.last: Surrogates | None = None
        self._key: tuple = ()

    def surrogates(self, settings: SearchSettings, results: Results, *, keep=True) -> Surrogates:
        """Find the surrogates of these results, or fit them.

        With `keep` they become the last fit; the results must then be those of evaluations, not
        predictions. If the fit fails numerically, another seed is tried.

        Raises
        ------
        FloatingPointError, LinAlgError
            If the fit fails with every seed.
        """
        # Results are only ever added, so that their counts identify them. The key keeps the
        # estimator alive: another one could have its id later.
        key = (len(results.X), len(results.failed), settings.estimator, settings.n_draws)
        if keep and self.last is not None and key == self._key:
            self.last = replace(self.last, settings=settings, seconds=0.0)
            return self.last
        for attempt in range(N_ATTEMPTS):
            purpose = ("step", results.n_told) if settings.reseed else ("search",)
            entropy = derived_seed(settings.entropy, *purpose, attempt)
            # A warm start would fail again in the same way: the second attempt starts cold.
            previous = None if settings.reseed or attempt else self.last
            try:
                surrogates = _fit(settings, results, entropy, previous)
                break
            except FIT_ERRORS:
                if attempt == N_ATTEMPTS - 1:
                    raise
        if keep:
            self.last, self._key = surrogates, key
        return surrogates


def _fit(settings, results, entropy, previous) -> Surrogates:
    """Fit seeded clones to the results.

    Estimators with ``warm_start=True`` go on from a copy of their `previous` fit.
    """
    start = time.perf_counter()
    X = settings.domain.encode(results.X)

    # Only a fit of the same estimator can go on: the user may have set another one.
    if previous is not None and previous.settings.estimator is not settings.estimator:
        previous = None

    def fit(estimator, y, fitted, seed):
        is_warm = fitted is not None and estimator.get_params().get("warm_start", False)
        model = copy.deepcopy(fitted) if is_warm else clone_with_seed(estimator, seed)
        # Networks have large arrays of their own, and limit threads themselves.
        n_rows = math.inf if hasattr(estimator, "posterior_fn") else len(X)
        with one_thread_if_small(n_rows):
            return model.fit(X, y)

    # Each posterior has a seed of its own, which depends on its position only.
    def draws(model, j, output_shape=()):
        seed = derived_seed(entropy, "posterior", j)
        return posterior_of(model, settings.n_draws, seed, X=X, output_shape=output_shape)

    fitted = None if previous is None else previous.model
    model = fit(settings.estimator, results.outputs, fitted, trial_seed(entropy, 0))
    posterior = draws(model, 0, results.outputs.shape[1:])
    constraints, models, posteriors = settings.constraints, {}, {}
    for j, (name, estimator) in enumerate(constraints.estimators.items(), start=1):
        column = results.constraints[:, constraints.names.index(name)]
        fitted = None if previous is None else previous.constraint_models[name]
        models[name] = fit(estimator, column, fitted, trial_seed(entropy, j))
        posteriors[name] = draws(models[name], j)
    seconds = time.perf_counter() - start
    return Surrogates(settings, model, posterior, models, posteriors, seconds)


def clone_with_seed(estimator, seed):
    """Clone an estimator and seed its `random_state` and those of all its parts."""
    model = clone(estimator)
    # A clone copies callable objects, but programs are found by the same object.
    params = estimator.get_params(deep=True)
    functions = {n: v for n, v in params.items() if callable(v) and not hasattr(v, "get_params")}
    model.set_params(**functions)
    names = sorted(model.get_params(deep=True))
    names = [name for name in names if name == "random_state" or name.endswith("__random_state")]
    seeds = np.random.default_rng(seed).integers(1, 2**31 - 1, size=len(names))
    return model.set_params(**{name: int(value) for name, value in zip(names, seeds)})


def derived_seed(entropy: int, *purpose: str | int) -> int:
    """Draw the seed of a purpose from the entropy of a search or of a step."""
    return int(generator(entropy, *purpose).integers(1, 2**31 - 1))
