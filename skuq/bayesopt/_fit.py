"""Settings of a search with their checks, and the surrogates that are fitted to its results."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.optimize import LinearConstraint
from sklearn.base import clone

from skuq._params import (
    Hidden,
    Interval,
    Settings,
    StrOptions,
    settings_constraint,
    validate_parameter_constraints,
)
from skuq._utils._checks import check_count, first_true
from skuq._utils._environment import generator, one_thread_if_small, trial_seed
from skuq.bayesopt._acquisition import (
    ACQUISITIONS,
    Acquisition,
    PosteriorMean,
    UpperConfidenceBound,
)
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._feasible import named_constraints
from skuq.bayesopt._results import Results
from skuq.bayesopt._surrogate import OutputConstraints, check_surrogate, posterior_of
from skuq.predictive import Posterior

_MOST_DRAWS = 2**22  # 32 MB at one point

# Settings that are saved as they are.
_SAVED = ("n_draws", "n_initial", "noisy", "reseed")


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


@dataclass(eq=False, repr=False)
class MixedInteger(Settings):
    """Maximise the upper bound of a ReLU network exactly, as a mixed integer programme.

    For acquisitions "ucb" and "mean", and for estimators with `readout_weights`, which are
    `NOMURegressor` with a linear readout. Its short form is "milp".

    Parameters
    ----------
    time_limit : float, default=60.0
        Seconds after which a step takes the best point found, with a warning.

    Examples
    --------
    >>> from skuq import NOMURegressor
    >>> from skuq.bayesopt import BayesianOptimizer, MixedInteger
    >>> search = BayesianOptimizer(
    ...     NOMURegressor(readout="linear"), [(0, 1)], "ucb", maximizer=MixedInteger(10.0)
    ... )
    """

    time_limit: float = 60.0

    _parameter_constraints = {"time_limit": [Interval(Real, 0, None, closed="neither")]}


#: Short forms of the parameters of a search that are settings.
SHORT_FORMS: dict[str, Mapping[Any, Any]] = {
    "acquisition": ACQUISITIONS,
    "maximizer": {
        "auto": MultiStart,
        "lbfgs": lambda: MultiStart("lbfgs"),
        "scipy": lambda: MultiStart("scipy"),
        "direct": Direct,
        "milp": MixedInteger,
    },
}
# Constraints of the parameters of a search; of settings, once short forms are resolved.
_CONSTRAINTS: dict = {
    "acquisition": settings_constraint(ACQUISITIONS, Acquisition),
    "objective": [callable, None],
    "maximizer": [
        *settings_constraint(SHORT_FORMS["maximizer"], MultiStart, MixedInteger),
        Hidden(Direct),
    ],
    "noisy": ["boolean"],
    "reseed": ["boolean"],
}

# Classes of settings by their names in saved searches.
_CLASSES: dict[str, type[Settings]] = {
    kind.__name__: kind for kind in (*ACQUISITIONS.values(), MultiStart, Direct, MixedInteger)
}


@dataclass(frozen=True, eq=False)
class SearchSettings:
    """Everything that decides a step besides results and pending points.

    Parameters of `BayesianOptimizer` under their names, where `domain` holds its bounds, and parts
    of `SearchState`. `search` is an object that stands for the search. Raise TypeError or
    ValueError if a parameter is wrong, or contradicts another.
    """

    estimator: Any
    domain: Domain
    acquisition: Acquisition
    objective: Callable[..., Any] | None
    maximizer: MultiStart | Direct | MixedInteger
    n_draws: int
    n_initial: int
    constraints: OutputConstraints
    noisy: bool
    reseed: bool
    entropy: int
    sign: int
    n_steps: int
    search: Hashable

    def __post_init__(self) -> None:
        check_surrogate(self.estimator)
        validate_parameter_constraints(_CONSTRAINTS, vars(self), "BayesianOptimizer")
        for name in ("n_draws", "n_initial"):
            check_count(name, getattr(self, name))
        if not 2 <= self.n_draws <= _MOST_DRAWS:
            raise ValueError(
                f"`n_draws` must be at least 2 and at most {_MOST_DRAWS}: one function shows no "
                f"uncertainty, and more need too much memory. Got {self.n_draws}."
            )
        if not isinstance(self.maximizer, MixedInteger):
            return
        acquisition, inputs = self.acquisition, self.domain.input_constraints.values()
        # The programme's objective is linear in the network's mean and standard deviation.
        if not isinstance(acquisition, UpperConfidenceBound | PosteriorMean):
            raise ValueError(
                f'maximizer="milp" is for acquisition="ucb" or "mean". Got {acquisition!r}: take '
                "one of these, or another maximizer."
            )
        obstacles = {
            f"the `deviation` of {acquisition!r}": (
                getattr(acquisition, "deviation", "std") != "std"
            ),
            "an `objective`": self.objective is not None,
            "`output_constraints`": bool(self.constraints.given),
            "`input_constraints` other than LinearConstraint": (
                not all(isinstance(constraint, LinearConstraint) for constraint in inputs)
            ),
        }
        if obstacle := first_true(obstacles):
            raise ValueError(
                f'maximizer="milp" cannot use {obstacle}. Do without, or take another maximizer.'
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what a saved search holds of them, as JSON types: no estimator and no function."""
        return {
            "bounds": self.domain.bounds.tolist(),
            "integer": list(self.domain.integer),
            "categories": list(self.domain.categories),
            "acquisition": _to_json(self.acquisition),
            "maximizer": _to_json(self.maximizer),
            **{name: getattr(self, name) for name in _SAVED},
            "has_objective": self.objective is not None,
            "output_constraints": list(self.constraints.names),
            "input_constraints": list(self.domain.input_constraints),
        }


def _to_json(settings: Settings) -> dict[str, Any] | None:
    """Convert settings to JSON types; None if they are a user's, or hold a function."""
    params = settings.get_params()
    # A subclass of the user's cannot be found again by its name.
    if _CLASSES.get(type(settings).__name__) is not type(settings):
        return None
    if any(callable(value) for value in params.values()):
        return None
    return {"class": type(settings).__name__, **params}


def resumed_parameters(saved: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge `SearchSettings.to_dict` of a saved search with the parameters that are given now.

    Raise ValueError if a function or constraint of the search is missing, or if the search would
    go on with another domain or seed.
    """
    saved = dict(saved)
    had_objective = saved.pop("has_objective")
    if "random_state" in changes:
        raise ValueError("A search continues with its own seed: leave out `random_state`.")
    if had_objective != (changes.get("objective") is not None):
        raise ValueError(
            "This search has an `objective`. A saved search holds no functions: give it again."
            if had_objective
            else "This search was told numbers, not outputs: it takes no `objective`."
        )
    for name, read in (("output_constraints", list), ("input_constraints", named_constraints)):
        names, given = list(saved.pop(name)), list(read(changes.get(name) or {}))
        if given != names:
            raise ValueError(
                f"This search has the `{name}` {names}. A saved search holds no functions and no "
                f"regressors: give them again, in this order. Got {given}."
            )
    if saved["acquisition"] is None and "acquisition" not in changes:
        raise ValueError(
            "The `acquisition` of this search has a function. A saved search holds no functions: "
            "give it again."
        )
    # Settings are saved as the name of their class and their parameters.
    for name in SHORT_FORMS:
        if saved[name] is not None:
            params = dict(saved[name])
            saved[name] = _CLASSES[params.pop("class")](**params)
    parameters = {**saved, **changes}
    before, domain = (
        Domain(*(source[name] for name in ("bounds", "integer", "categories")))
        for source in (saved, parameters)
    )
    if domain != before:
        raise ValueError(
            "A search continues in its own domain. It has bounds "
            f"{before.bounds.tolist()}, integer={before.integer} and "
            f"categories={before.categories}. Got {domain.bounds.tolist()}, "
            f"{domain.integer} and {domain.categories}."
        )
    return parameters


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
