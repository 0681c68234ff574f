"""Records of a search: how each proposal was found, and the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class StepRecord:
    """Record of how one proposal was found.

    Attributes
    ----------
    n_results : int
        Number of results known before it.
    acquisition_value : float
        Acquisition at the proposed points; at the first of them if they were found one by one.
    beta : float or None
        Weight of the standard deviation, doublings included; None for acquisitions without it.
    n_doublings : int
        How often `dynamic_c` doubled beta.
    seconds_fit, seconds_acquisition : float
    n_pending : int
        Number of points that were pending.

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer
    >>> surrogate = GaussianProcessRegressor(optimizer=None)
    >>> search = BayesianOptimizer(surrogate, [(-2, 2)], n_initial=3, random_state=0)
    >>> result = search.minimize(lambda x: (x[0] - 0.5) ** 2, n_calls=5)
    >>> [step.n_results for step in result.history]
    [3, 4]
    """

    n_results: int
    acquisition_value: float
    beta: float | None
    n_doublings: int
    seconds_fit: float
    seconds_acquisition: float
    n_pending: int


@dataclass
class SearchState:
    """State of a search besides its parameters and results.

    Attributes
    ----------
    entropy : int
        Seed of the whole search.
    sign : {1, -1}
        1 if the objective is maximised, -1 if it is minimised.
    n_steps : int
        Number of steps over which the threshold of `dynamic_c` falls; 64 until a loop knows it.
    beta_ : float or None
        Value of beta that `mean_width` led to; None before the first step with a model.
    width : float or None
        Value of `mean_width` that led to it.
    history : list of StepRecord
    """

    entropy: int
    sign: int = 1
    n_steps: int = 64
    beta_: float | None = None
    width: float | None = None
    history: list[StepRecord] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types, by name."""
        return asdict(self)

    @classmethod
    def take_from(cls, settings: dict[str, Any]) -> SearchState:
        """Make the state from the entries of `to_dict`, and remove these from `settings`."""
        entries = {part.name: settings.pop(part.name) for part in fields(cls)}
        entries["history"] = [StepRecord(**record) for record in entries["history"]]
        return cls(**entries)


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """Result of a search.

    Attributes
    ----------
    x : ndarray of shape (d,)
        The best evaluated point, see `BayesianOptimizer.best_x_`.
    fun : float
        Value of the objective there; with ``noisy=True`` the mean that the surrogate predicts.
    x_iters : ndarray of shape (n, d)
        All points in the order of their evaluation, including those told before.
    y_iters : ndarray of shape ``(n, *output_shape)``
        Outputs of the function; NaN where it failed.
    values : ndarray of shape (n,)
        Values of the objective; NaN where the function failed.
    message : str
        Why the search ended.
    history : tuple of StepRecord

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer
    >>> surrogate = GaussianProcessRegressor()
    >>> search = BayesianOptimizer(surrogate, [(-2, 2)], n_initial=3, random_state=0)
    >>> result = search.minimize(lambda x: (x[0] - 0.5) ** 2, n_calls=3)
    >>> result.x_iters.shape, bool(result.fun == result.values.min())
    ((3, 1), True)
    """

    x: np.ndarray
    fun: float
    x_iters: np.ndarray
    y_iters: np.ndarray
    values: np.ndarray
    message: str
    history: tuple[StepRecord, ...] = field(repr=False)
