"""Constraints of a search: named values that must not be above 0.

A constraint is a function of the outputs, learned by the same surrogate, or is measured together
with them and has a regressor of its own.

Values and constraints become one number to maximise, the *merit* (Deb 2000, "An efficient
constraint handling method for genetic algorithms"). A feasible point has its value as merit. An
infeasible one has less than any known feasible point, and the less the more it violates. Draws
have merits too, so every acquisition function works on them, also before a feasible point is
known.

Notation: n rows, J constraints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import fill_masked
from skuq.bayesopt._surrogate import check_surrogate
from skuq.predictive import Posterior

# A draw's feasibility is a sigmoid of this width, in standard deviations of the known values of a
# constraint: it has gradients. Searches stop some widths inside of the border, where optima with
# constraints often lie: with 1e-3 one ended at 0.1986 where 0.2 is best, with 1e-5 at 0.1998.
# Single precision hardly resolves smaller widths.
_STEP = 1e-5
_COLUMN = re.compile(r"x\d+|value|feasible|status|message")  # of `ResultLog.to_frame`


class Constraints:
    """Named constraints, in the user's order.

    `given` maps names to functions of the outputs or to regressors; see `BayesianOptimizer`.
    Raise TypeError if it holds anything else, ValueError if `to_frame` has a column of a name.
    """

    def __init__(self, given: Mapping[str, Any] | None):
        if isinstance(given, Constraints):  # those of another search
            given = given.given
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"`constraints` must be a dict of names. Got {given!r}.")
        self.given = {} if given is None else dict(given)
        self.functions: dict[str, Callable | None] = {}
        self.estimators: dict[str, Any] = {}
        for name, constraint in self.given.items():
            if not isinstance(name, str):
                raise TypeError(f"Names of `constraints` must be strings. Got {name!r}.")
            if _COLUMN.fullmatch(name):
                raise ValueError(
                    f"`constraints` must not be named as a column of `to_frame()`. Got {name!r}."
                )
            if hasattr(constraint, "fit") and not isinstance(constraint, type):
                check_surrogate(constraint)
                self.estimators[name] = constraint
                self.functions[name] = None
            elif callable(constraint) and not isinstance(constraint, type):
                self.functions[name] = constraint
            else:
                raise TypeError(
                    f"`constraints` must be functions of the outputs or regressors. Got "
                    f"{constraint!r} for {name!r}."
                )

    def __len__(self):
        return len(self.functions)

    def __iter__(self):
        return iter(self.functions)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the user's order."""
        return tuple(self.functions)

    def check_measured(self, given: Mapping[str, Any] | None, n: int) -> dict[str, np.ndarray]:
        """Validate the values (n,) of measured constraints, as `tell` gets them."""
        given = {} if given is None else given
        if not isinstance(given, Mapping) or set(given) != set(self.estimators):
            names = list(given) if isinstance(given, Mapping) else given
            raise ValueError(
                "Results must come with one value for each measured constraint, "
                f"{sorted(self.estimators)}. Got {names!r}."
            )
        columns = {}
        for name, values in given.items():
            try:
                column = np.array(fill_masked(values), dtype="float64").reshape(-1)
            except (TypeError, ValueError):
                column = np.empty(0)
            if len(column) != n:
                raise ValueError(
                    f"Constraint {name!r} must have one number for each of {n} points. "
                    f"Got {values!r}."
                )
            columns[name] = column
        return columns

    def of_outputs(self, outputs: np.ndarray, measured: Mapping[str, Any]) -> np.ndarray:
        """Compute all constraints (n, J) from outputs (n, ..) and the measured values (n,)."""
        # In the user's order, whether measured or computed from the outputs.
        columns = [
            measured[name] if function is None else np.asarray(function(outputs), dtype="float64")
            for name, function in self.functions.items()
        ]
        for name, column in zip(self.names, columns):
            if np.shape(column) != (len(outputs),):
                raise WrongShapeError(
                    f"Constraint {name!r} must make one number of each output, along the last "
                    f"axes of its argument: of shape {outputs.shape}, {(len(outputs),)}. "
                    f"Got {np.shape(column)}."
                )
        return np.stack(columns, axis=1) if columns else np.empty((len(outputs), 0))


class WrongShapeError(ValueError):
    """The objective or a constraint does not give one number for each output."""


def is_feasible(constraints: np.ndarray) -> np.ndarray:
    """Tell which rows satisfy all constraints (n, J): (n,)."""
    return np.asarray((constraints <= 0).all(axis=1))


def merit_units(values: np.ndarray, constraints: np.ndarray) -> np.ndarray:
    """Compute the constants of merits from known values (n,) and constraints (n, J).

    They are the merit of an infeasible point on the border, the loss of merit for one unit of
    violation, and the unit of each constraint: (2 + J,).
    """
    feasible = is_feasible(constraints)
    # The lowest known value of a feasible point, and how far the others are above it.
    counted = values[feasible] if feasible.any() else values
    lowest, spread = counted.min(), np.ptp(counted)
    unit = spread if spread > 0 else max(abs(float(lowest)), 1.0)
    # One unit is a standard deviation of the known values, or their size if they are all equal.
    scales = constraints.std(axis=0)
    largest = np.abs(constraints).max(axis=0)
    scales = np.where(scales > 0, scales, np.where(largest > 0, largest, 1.0))
    return np.array([lowest, unit, *scales])


def merits(values: np.ndarray, constraints: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Compute merits (n,) of values (n,) under constraints (n, J); see the module."""
    if not constraints.shape[1]:
        return values
    violation = np.maximum(constraints / units[2:], 0.0).sum(axis=1)  # (n,)
    return np.where(is_feasible(constraints), values, units[0] - units[1] * violation)


@dataclass(frozen=True)
class MeritObjective:
    """Merit of draws; their columns are outputs, measured constraints and `merit_units`.

    Instances with equal fields compare equal, so that steps share compiled programs.
    """

    objective: Callable
    output_shape: tuple[int, ...]
    functions: tuple[Callable | None, ...]

    def __call__(self, columns):
        """Map columns (.., m + measured + 2 + J) to merits (..,)."""
        xp, sigmoid = np, special.expit
        if not isinstance(columns, np.ndarray):
            from skuq.backend import ops as xp

            sigmoid = xp.sigmoid
        leading = tuple(columns.shape[:-1])
        m, n_measured = math.prod(self.output_shape), sum(f is None for f in self.functions)
        outputs = xp.reshape(columns[..., :m], (*leading, *self.output_shape))
        units = columns[..., m + n_measured :]  # (.., 2 + J)
        # The loop turns violation and feasible into arrays (..,); column is the next measured one.
        value, violation, feasible, column = self.objective(outputs), 0.0, 1.0, m
        for j, function in enumerate(self.functions):
            if function is None:
                constraint, column = columns[..., column], column + 1
            else:
                constraint = function(outputs)
            constraint = constraint / units[..., 2 + j]
            violation = violation + xp.maximum(constraint, 0.0)
            # Product of smooth indicators: 1 if all constraints are clearly satisfied.
            feasible = feasible * sigmoid(-constraint / _STEP)
        # As `merits`, with a smooth step from feasible to infeasible.
        return feasible * value + (1 - feasible) * (units[..., 0] - units[..., 1] * violation)


def join_posteriors(posteriors: Sequence[Posterior], constants: np.ndarray) -> Posterior:
    """Join posteriors of the same inputs, and constants, into columns of one posterior.

    It has as many draws as the largest of them; the draws of the others are repeated.
    """
    n_draws = max(posterior.n_draws for posterior in posteriors)
    # The order in which each posterior's draws are repeated.
    orders = [np.resize(np.arange(p.n_draws), n_draws) for p in posteriors]
    function = _Joined(
        tuple(p.function for p in posteriors), tuple(len(p.arguments) for p in posteriors)
    )
    arguments = [constants, *orders, *(a for p in posteriors for a in p.arguments)]
    # The joint program can be found again only if all its parts have keys.
    keys = tuple(p.key for p in posteriors)
    width = sum(math.prod(p.output_shape) for p in posteriors) + len(constants)
    return Posterior(
        function,
        tuple(arguments),
        key=None if None in keys else ("joined", keys, tuple(p.n_draws for p in posteriors)),
        n_draws=n_draws,
        output_shape=(width,),
        joint=all(p.joint for p in posteriors),
    )


@dataclass(frozen=True)
class _Joined:
    """``(xp, arguments, X) -> (n_draws, n, columns)``; see `join_posteriors`."""

    functions: tuple[Callable, ...]
    sizes: tuple[int, ...]  # numbers of their arguments

    def __call__(self, xp, arguments, X):
        constants, *rest = arguments
        orders, rest = rest[: len(self.sizes)], rest[len(self.sizes) :]
        columns = []
        for function, size, order in zip(self.functions, self.sizes, orders):
            arguments, rest = rest[:size], rest[size:]
            draws = xp.take(
                function(xp, arguments, X), order, axis=0
            )  # (n_draws, n, *output_shape)
            columns.append(xp.reshape(draws, (*draws.shape[:2], -1)))
        flat = xp.zeros_like(columns[0][..., :1]) + constants  # (n_draws, n, 2 + J)
        return xp.concatenate([*columns, flat], axis=-1)
