"""Settings of a search with their checks, and the surrogate that is fitted to its results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone

from skuq._params import (
    Hidden,
    Interval,
    Settings,
    StrOptions,
    settings_constraint,
    validate_parameter_constraints,
)
from skuq._utils._environment import generator, one_thread_if_small, trial_seed
from skuq.bayesopt._acquisition import ACQUISITIONS, Acquisition
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._results import Results
from skuq.bayesopt._surrogate import check_surrogate, posterior_of
from skuq.predictive import Posterior


@dataclass(eq=False, repr=False)
class MultiStart(Settings):
    """Maximise acquisition functions by climbing from many starts.

    Parameters
    ----------
    method : {"auto", "lbfgs", "scipy"}, default="auto"
        See `maximize_acquisition`.
    n_restarts : int, default=500
        Number of starts from a Latin hypercube, at most 2**20.

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer, MultiStart
    >>> search = BayesianOptimizer(
    ...     GaussianProcessRegressor(), [(0, 1)], maximizer=MultiStart(n_restarts=50)
    ... )
    """

    method: str = "auto"
    _: KW_ONLY
    n_restarts: int = 500

    _parameter_constraints = {
        "method": [StrOptions({"auto", "lbfgs", "scipy"})],
        "n_restarts": [Interval(Integral, 1, 2**20, closed="both")],
    }


class Direct(Settings):
    """Maximise acquisition functions by SciPy's DIRECT, as in NOMU's appendix B.3."""

    method = "direct"
    n_restarts = 1  # DIRECT takes no starts


#: Short forms of the parameters of a search that are settings.
SHORT_FORMS: dict[str, Mapping[Any, Any]] = {
    "acquisition": ACQUISITIONS,
    "maximizer": {
        "auto": MultiStart,
        "lbfgs": lambda: MultiStart("lbfgs"),
        "scipy": lambda: MultiStart("scipy"),
        "direct": Direct,
    },
}
# Constraints of the parameters of a search; of settings, once short forms are resolved.
_CONSTRAINTS: dict = {
    "acquisition": settings_constraint(ACQUISITIONS, Acquisition),
    "objective": [callable, None],
    "maximizer": [*settings_constraint(SHORT_FORMS["maximizer"], MultiStart), Hidden(Direct)],
    "n_draws": [Interval(Integral, 2, None, closed="left")],
    "n_initial": [Interval(Integral, 1, None, closed="left")],
    "noisy": ["boolean"],
    "direction": [StrOptions({"maximize", "minimize"})],
}


@dataclass(frozen=True, eq=False)
class SearchSettings:
    """Everything that decides a step besides results and pending points.

    Parameters of `BayesianOptimizer` under their names, where `domain` holds its bounds. `entropy`
    is the seed, `n_steps` the expected number of steps, and `search` an object that stands for the
    search. Raise TypeError or ValueError if a parameter is wrong.
    """

    estimator: Any
    domain: Domain
    acquisition: Acquisition
    objective: Callable[..., Any] | None
    maximizer: MultiStart | Direct
    n_draws: int
    n_initial: int
    noisy: bool
    direction: str
    entropy: int
    n_steps: int
    search: Hashable

    def __post_init__(self) -> None:
        check_surrogate(self.estimator)
        validate_parameter_constraints(_CONSTRAINTS, vars(self), "BayesianOptimizer")

    @property
    def sign(self) -> int:
        """Sign of values that are maximised."""
        return 1 if self.direction == "maximize" else -1


#: What a fit raises if it fails numerically: another seed may help.
FIT_ERRORS = (FloatingPointError, np.linalg.LinAlgError)
N_ATTEMPTS = 2  # seeds that are tried if a fit fails


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A fitted surrogate and its posterior; `settings` are those of the last step that used it."""

    settings: SearchSettings
    model: Any
    posterior: Posterior
    seconds: float


class Fits:
    """Fits the surrogate to results; keeps the last fit, which pending points do not change."""

    def __init__(self) -> None:
        self.last: Surrogate | None = None
        self._key: tuple = ()

    def surrogate(self, settings: SearchSettings, results: Results, *, keep=True) -> Surrogate:
        """Find the surrogate of these results, or fit it.

        With `keep` it becomes the last fit; the results must then be those of evaluations, not
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
            entropy = derived_seed(settings.entropy, "step", results.n_told, attempt)
            try:
                surrogate = _fit(settings, results, entropy)
                break
            except FIT_ERRORS:
                if attempt == N_ATTEMPTS - 1:
                    raise
        if keep:
            self.last, self._key = surrogate, key
        return surrogate


def _fit(settings, results, entropy) -> Surrogate:
    """Fit a seeded clone to the results."""
    start = time.perf_counter()
    X = settings.domain.encode(results.X)
    model = _clone_with_seed(settings.estimator, trial_seed(entropy, 0))
    # Networks have large arrays of their own, and limit threads themselves.
    n_rows = math.inf if hasattr(settings.estimator, "posterior_fn") else len(X)
    with one_thread_if_small(n_rows):
        model = model.fit(X, results.outputs)
    seed = derived_seed(entropy, "posterior", 0)
    posterior = posterior_of(model, settings.n_draws, seed, results.outputs.shape[1:])
    return Surrogate(settings, model, posterior, time.perf_counter() - start)


def _clone_with_seed(estimator, seed):
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
