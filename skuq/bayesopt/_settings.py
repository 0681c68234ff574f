"""Settings of a search: their checks, and what a saved search holds of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from skuq._checks import check_count
from skuq.bayesopt._acquisition import Acquisition
from skuq.bayesopt._constraints import Constraints
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._maximize import METHODS
from skuq.bayesopt._surrogate import check_surrogate

_BOUNDS = ("ucb", "lcb")  # acquisitions that use beta
_MILP_ACQUISITIONS = (*_BOUNDS, "mean")  # acquisitions that maximizer="milp" can maximise
# Settings that are saved as they are.
_SAVED = (
    "mean_width",
    "dynamic_c",
    "maximizer",
    "n_restarts",
    "n_draws",
    "n_initial",
    "noisy",
    "reseed",
)


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
    beta: float | Callable[[int], float]
    mean_width: float | None
    dynamic_c: bool
    maximizer: str
    n_restarts: int
    n_draws: int
    n_initial: int
    constraints: Constraints
    noisy: bool
    reseed: bool
    entropy: int
    sign: int
    n_steps: int
    search: Hashable

    def __post_init__(self) -> None:
        check_surrogate(self.estimator)
        if not isinstance(self.acquisition, Acquisition):
            raise TypeError(
                "The attribute `acquisition` of a search must be an Acquisition. Got "
                f"{self.acquisition!r}."
            )
        for name in ("n_restarts", "n_draws", "n_initial"):
            check_count(name, getattr(self, name))
        if self.n_draws < 2:
            raise ValueError("`n_draws` must be at least 2: one function shows no uncertainty.")
        for name in ("noisy", "reseed", "dynamic_c"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"`{name}` must be True or False. Got {getattr(self, name)!r}.")
        if self.objective is not None and not callable(self.objective):
            raise TypeError(f"`objective` must be a function of outputs. Got {self.objective!r}.")
        self._check_bound()
        self._check_maximizer()

    def _check_bound(self) -> None:
        """Check the settings of "ucb"."""
        for name in ("mean_width", "dynamic_c"):
            if getattr(self, name) and self.acquisition.name not in _BOUNDS:
                raise ValueError(
                    f'`{name}` is for acquisition="ucb". Got {self.acquisition.name!r}.'
                )
        width = self.mean_width
        if width is not None and not (isinstance(width, Real) and 0 < float(width) < np.inf):
            raise ValueError(f"`mean_width` must be a positive number. Got {width!r}.")

    def _check_maximizer(self) -> None:
        """Check that the maximiser is known, and that it can maximise the acquisition."""
        if self.maximizer not in (*METHODS, "milp"):
            raise ValueError(
                f"`maximizer` must be one of {', '.join((*METHODS, 'milp'))}. "
                f"Got {self.maximizer!r}."
            )
        if self.maximizer != "milp":
            return
        name = self.acquisition.name
        if name not in _MILP_ACQUISITIONS or self.objective is not None:
            raise ValueError(
                'maximizer="milp" is for acquisition="ucb" or "mean" without an `objective`. '
                f"Got {name!r}{'' if self.objective is None else ' with one'}."
            )
        if len(self.constraints):
            raise ValueError('maximizer="milp" knows no `constraints`. Use another maximizer.')

    def beta_at(self, n_results: int) -> float:
        """Compute beta for a number of usable results, before `dynamic_c` doubles it."""
        if not callable(self.beta):
            return float(self.beta)
        beta = float(self.beta(n_results))
        if not 0 <= beta < np.inf:
            raise ValueError(
                f"`beta` must give finite numbers >= 0. Got {beta} for {n_results} results."
            )
        return beta

    def to_dict(self) -> dict[str, Any]:
        """Return what a saved search holds of them, as JSON types: no estimator and no function."""
        return {
            "bounds": self.domain.bounds.tolist(),
            "integer": list(self.domain.integer),
            "categories": list(self.domain.categories),
            "acquisition": self.acquisition.name,
            "delta": self.acquisition.delta,
            "deviation": self.acquisition.deviation,
            **{name: getattr(self, name) for name in _SAVED},
            "beta": None if callable(self.beta) else self.beta,
            "has_objective": self.objective is not None,
            "constraint_names": list(self.constraints.names),
        }


def resumed_parameters(saved: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge `SearchSettings.to_dict` of a saved search with the parameters that are given now.

    Raise ValueError if a function or constraint of the search is missing, or if the search would
    go on with another domain or seed.
    """
    saved = dict(saved)
    had_objective, names = saved.pop("has_objective"), saved.pop("constraint_names")
    if "random_state" in changes:
        raise ValueError("A search continues with its own seed: leave out `random_state`.")
    if had_objective != (changes.get("objective") is not None):
        raise ValueError(
            "This search has an `objective`. A saved search holds no functions: give it again."
            if had_objective
            else "This search was told numbers, not outputs: it takes no `objective`."
        )
    given = list(changes.get("constraints") or {})
    if given != list(names):
        raise ValueError(
            f"This search has the `constraints` {list(names)}. A saved search holds no "
            f"functions and no regressors: give them again, in this order. Got {given}."
        )
    if saved["beta"] is None and "beta" not in changes:
        raise ValueError("`beta` is a function here. A saved search holds no functions: give it.")
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
