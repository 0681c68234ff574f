"""Settings of a search, and their checks: when it is made, and when a saved one is continued."""

from __future__ import annotations

from collections.abc import Callable
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
_OF_MILP = (*_BOUNDS, "mean")  # acquisitions that maximizer="milp" can maximise


@dataclass(frozen=True, eq=False)
class SearchSettings:
    """Everything that decides a step besides results and pending points.

    Parameters of `BayesianOptimizer` under their names; `domain` holds its bounds, `entropy` is
    the seed of the whole search.
    """

    estimator: Any
    domain: Domain
    constraints: Constraints
    acquisition: Acquisition
    maximizer: str
    n_restarts: int
    n_draws: int
    noisy: bool
    reseed: bool
    entropy: int


def check_settings(
    *,
    estimator: Any,
    acquisition: Acquisition,
    objective: Callable[..., Any] | None,
    mean_width: Any,
    dynamic_c: Any,
    maximizer: str,
    n_restarts: Any,
    n_draws: Any,
    n_initial: Any,
    n_constraints: int,
    noisy: Any,
    reseed: Any,
    callback: Callable[..., Any] | None,
) -> None:
    """Check parameters of `BayesianOptimizer`, and that none contradicts another."""
    for parameter, value in (
        ("n_restarts", n_restarts),
        ("n_draws", n_draws),
        ("n_initial", n_initial),
    ):
        check_count(parameter, value)
    check_surrogate(estimator)
    for parameter, value in (("noisy", noisy), ("reseed", reseed), ("dynamic_c", dynamic_c)):
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"`{parameter}` must be True or False. Got {value!r}.")
    if callback is not None and not callable(callback):
        raise TypeError(f"`callback` must be a function. Got {callback!r}.")
    if n_draws < 2:
        raise ValueError("`n_draws` must be at least 2: one function shows no uncertainty.")
    if objective is not None and not callable(objective):
        raise TypeError(f"`objective` must be a function of outputs. Got {objective!r}.")
    if maximizer not in (*METHODS, "milp"):
        raise ValueError(
            f"`maximizer` must be one of {', '.join((*METHODS, 'milp'))}. Got {maximizer!r}."
        )
    name = acquisition.name
    for parameter, value in (("mean_width", mean_width), ("dynamic_c", dynamic_c)):
        if value and name not in _BOUNDS:
            raise ValueError(f'`{parameter}` is for acquisition="ucb". Got {name!r}.')
    is_width = isinstance(mean_width, Real) and 0 < float(mean_width) < np.inf
    if mean_width is not None and not is_width:
        raise ValueError(f"`mean_width` must be a positive number. Got {mean_width!r}.")
    if maximizer == "milp" and (name not in _OF_MILP or objective is not None):
        raise ValueError(
            'maximizer="milp" is for acquisition="ucb" or "mean" without an `objective`. '
            f"Got {name!r}{'' if objective is None else ' with one'}."
        )
    if maximizer == "milp" and n_constraints:
        raise ValueError('maximizer="milp" knows no `constraints`. Use another maximizer.')


def check_changes(
    changes: dict[str, Any],
    *,
    had_objective: bool,
    had_beta: bool,
    constraint_names: list[str],
) -> None:
    """Check the parameters that a saved search is given again.

    Its state holds no function: not the objective, if it had one, nor a callable beta.
    """
    if "random_state" in changes:
        raise ValueError("A search continues with its own seed: leave out `random_state`.")
    if had_objective != (changes.get("objective") is not None):
        raise ValueError(
            "This search has an `objective`. A saved search holds no functions: give it again."
            if had_objective
            else "This search was told numbers, not outputs: it takes no `objective`."
        )
    names = list(changes.get("constraints") or {})
    if names != list(constraint_names):
        raise ValueError(
            f"This search has the `constraints` {list(constraint_names)}. A saved search holds no "
            f"functions and no regressors: give them again, in this order. Got {names}."
        )
    if not had_beta and "beta" not in changes:
        raise ValueError("`beta` is a function here. A saved search holds no functions: give it.")


def check_same_domain(domain: Domain, before: Domain) -> None:
    """Check that a continued search has the domain of the saved one."""
    if domain != before:
        raise ValueError(
            "A search continues in its own domain. It has bounds "
            f"{before.bounds.tolist()}, integer={before.integer} and "
            f"categories={before.categories}. Got {domain.bounds.tolist()}, "
            f"{domain.integer} and {domain.categories}."
        )
