"""Surrogates of a search: posteriors of any regressor, and constraints on its outputs.

A constraint is a named value that must not be above 0. It is a function of the outputs, learned
by the same surrogate, or is measured together with them and has a regressor of its own.

Values and constraints become one number to maximise, the *merit* (Deb 2000, "An efficient
constraint handling method for genetic algorithms"). A feasible point has its value as merit. An
infeasible one has less than any known feasible point, and the less the more it violates. Draws
have merits too, so every acquisition function works on them, also before a feasible point is
known.

Notation: n rows, J constraints.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel
from sklearn.metrics import r2_score
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from skuq._utils._checks import check_targets, fill_masked, unwrap_estimator
from skuq._utils._records import saved_as
from skuq.predictive import Posterior
from skuq.predictive._posterior import quasi_random_normals
from skuq.tables._functions import flat_values


def check_surrogate(estimator) -> None:
    """Raise TypeError if draws cannot be had of a regressor once it is fitted."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TypeError(
            "`estimator` must be a regressor, an object and not its class or name. "
            f"Got {estimator!r}."
        )
    # A pipeline predicts as its last step does, and draws of a calibrated model are the model's.
    while isinstance(estimator, Pipeline) or not getattr(estimator, "_has_posterior", True):
        steps = getattr(estimator, "steps", None)
        estimator = steps[-1][1] if steps else estimator.estimator
    if hasattr(estimator, "predict_proba"):
        raise TypeError(f"`estimator` must be a regressor. Got the classifier {estimator!r}.")
    if isinstance(estimator, TransformedTargetRegressor):
        raise TypeError(
            "The standard deviation of a TransformedTargetRegressor is not in units of y. Give the "
            "regressor inside, and let it standardise y itself: all of skuq do, and "
            "GaussianProcessRegressor does with `normalize_y=True`."
        )
    if hasattr(estimator, "posterior_fn") or not hasattr(estimator, "predict"):
        return  # a search or another wrapper may have `predict` only once it is fitted
    parameters = inspect.signature(estimator.predict).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if "return_std" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise TypeError(
            "`estimator` must have `posterior_fn`, or predict(X, return_std=True): "
            f"{type(estimator).__name__} has no uncertainty to search by, and a calibration adds "
            "noise only. DeepEnsembleRegressor(network=...) trains any Keras architecture with it."
        )


def posterior_of(estimator, n_draws=128, random_state=None, *, X=None, output_shape=None):
    """Get draws of a fitted regressor's function.

    Parameters
    ----------
    estimator : object
        Fitted regressor with ``posterior_fn(n_draws, random_state)``, or else with
        ``predict(X, return_std=True)``.
    n_draws : int, default=128
        Number of draws, at least 2. An ensemble of networks gives one draw for each member
        instead.
    random_state : int or None, default=None
        Seed of the draws.
    X : array-like of shape (n, n_features), optional
        Inputs at which an estimator without `posterior_fn` can predict, from which the shape of its
        outputs is found. By default a row of zeros.
    output_shape : tuple of int, optional
        Shape of one row's outputs, for an estimator without `posterior_fn`: scikit-learn's predict
        (n,) for targets (n, 1). By default that of its predictions.

    Returns
    -------
    Posterior
        The estimator's own, if it has `posterior_fn`. Otherwise a posterior in NumPy that is not
        joint: a draw is the mean plus z standard deviations, with one normal z for all rows, and
        outputs are independent.

    Raises
    ------
    TypeError
        If the estimator has neither.
    ValueError
        If predictions do not have the size of `output_shape`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt._surrogate import posterior_of
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> model = GaussianProcessRegressor(optimizer=None).fit(X, X[:, 0])
    >>> posterior_of(model, n_draws=3, random_state=0)(X).shape
    (3, 5)
    """
    if hasattr(estimator, "posterior_fn"):
        return estimator.posterior_fn(n_draws=n_draws, random_state=random_state)
    if not hasattr(estimator, "predict"):
        raise TypeError(f"estimator must have posterior_fn or predict. Got {estimator!r}.")
    estimator = _without_noise(estimator)
    # One prediction shows the shape of the outputs.
    row = np.zeros((1, estimator.n_features_in_)) if X is None else np.asarray(X)[:1]
    mean, _ = _mean_and_std(estimator, row)
    if output_shape is None:
        output_shape = mean.shape[1:]
    n_outputs = math.prod(output_shape)
    if n_outputs != mean.size:
        raise ValueError(
            f"The estimator predicts outputs of shape {mean.shape[1:]}, which have another size "
            f"than `output_shape`. Got {output_shape}."
        )
    normals = quasi_random_normals(n_draws, n_outputs, np.random.default_rng(random_state))

    def function(xp, arguments, X):
        mean, std = (v.reshape(len(X), *output_shape) for v in _mean_and_std(estimator, X))
        # (n, *output_shape) by (n_draws, 1, *output_shape): one z for all rows of a draw
        return mean + std * arguments[0].reshape(n_draws, 1, *output_shape)

    return Posterior(
        function, (normals,), key=None, n_draws=n_draws, output_shape=output_shape, joint=False
    )


def _without_noise(estimator):
    """Copy a regressor so that Gaussian processes in it predict deviations of the function.

    scikit-learn adds the noise of a `WhiteKernel` to them, which makes every point promising.
    """
    if any(True for _ in _white_kernels(estimator)):  # others may hold what cannot be copied
        estimator = copy.deepcopy(estimator)
        for part in _white_kernels(estimator):
            part.noise_level = 0.0
    return estimator


def _white_kernels(estimator):
    """Yield the kernels of noise of fitted Gaussian processes."""
    for model in getattr(estimator, "estimators_", [estimator]):
        kernel = getattr(unwrap_estimator(model)[0], "kernel_", None)
        if isinstance(kernel, Kernel):
            parts = kernel, *kernel.get_params().values()
            yield from (part for part in parts if isinstance(part, WhiteKernel))


def _mean_and_std(estimator, X):
    """Predict means and standard deviations, of shape (n, *output_shape)."""
    try:
        mean, std = estimator.predict(X, return_std=True)
    except TypeError as error:
        raise TypeError(
            "estimator.predict must take return_std=True and return (mean, std): "
            f"{type(estimator).__name__} has no uncertainty to search by. DeepEnsembleRegressor("
            "network=...) trains any Keras architecture with it."
        ) from error
    mean = np.asarray(mean)
    return mean, np.broadcast_to(std, mean.shape)


@saved_as("bayesopt.OutputwiseRegressor", kind="estimator")
@dataclass(eq=False, repr=False)
class OutputwiseRegressor(RegressorMixin, BaseEstimator):
    """Fit a clone of a regressor to each output.

    With a Gaussian process this is the composite surrogate of Astudillo and Frazier (2019) with
    independent outputs.

    Parameters
    ----------
    estimator : object
        Regressor of one output.

    Attributes
    ----------
    estimators_ : list
        The fitted clones, one for each output.
    n_features_in_ : int
        Number of features seen by `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.
    output_shape_ : tuple of int
        Shape of the outputs of one row; () if y was 1-D.

    References
    ----------
    Astudillo and Frazier (2019), "Bayesian optimization of composite functions", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import OutputwiseRegressor
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> one = GaussianProcessRegressor(optimizer=None)  # a clone is fitted to each output
    >>> model = OutputwiseRegressor(one).fit(X, np.hstack([X, 2 * X]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((5, 2), (5, 2))
    """

    estimator: Any

    def fit(self, X, y):
        """Fit a clone to each output.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,), (n, m) or (n, q, d_s)

        Returns
        -------
        self
        """
        flat, self.output_shape_ = flat_values(y)
        flat = check_targets(flat, self)
        X = validate_data(self, X, dtype="float64")
        check_consistent_length(X, flat)
        columns = flat.reshape(len(flat), -1)
        self.estimators_ = [clone(self.estimator).fit(X, column) for column in columns.T]
        return self

    def predict(self, X, return_std=False):
        """Predict means, and standard deviations on request.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of the shape of y
        std : ndarray of the shape of y
            If `return_std`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype="float64")
        shape = (len(X), *self.output_shape_)
        if not return_std:
            return np.stack([e.predict(X) for e in self.estimators_], axis=1).reshape(shape)
        parts = zip(*(e.predict(X, return_std=True) for e in self.estimators_))
        mean, std = (np.stack(columns, axis=1).reshape(shape) for columns in parts)
        return mean, std

    def score(self, X, y, sample_weight=None):
        """Compute the coefficient of determination of the means, averaged over the outputs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of the shape of `fit`
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float
        """
        predicted, _ = flat_values(self.predict(X))
        return r2_score(flat_values(y)[0], predicted, sample_weight=sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


# A draw's feasibility is a sigmoid of this width, in standard deviations of the known values of a
# constraint: it has gradients. Searches stop some widths inside of the border, where optima with
# constraints often lie: with 1e-3 one ended at 0.1986 where 0.2 is best, with 1e-5 at 0.1998.
# Single precision hardly resolves smaller widths.
_STEP = 1e-5
_COLUMN = re.compile(r"x\d+|value|feasible|status|message")  # of `ResultLog.to_frame`


class OutputConstraints:
    """Named constraints, in the user's order.

    `given` maps names to functions of the outputs or to regressors; see `BayesianOptimizer`.
    Raise TypeError if it holds anything else, ValueError if `to_frame` has a column of a name.
    """

    def __init__(self, given: Mapping[str, Any] | None):
        if isinstance(given, OutputConstraints):  # those of another search
            given = given.given
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"`output_constraints` must be a dict of names. Got {given!r}.")
        self.given = {} if given is None else dict(given)
        self.functions: dict[str, Callable | None] = {}
        self.estimators: dict[str, Any] = {}
        for name, constraint in self.given.items():
            if not isinstance(name, str):
                raise TypeError(f"Names of `output_constraints` must be strings. Got {name!r}.")
            if _COLUMN.fullmatch(name):
                raise ValueError(
                    "`output_constraints` must not be named as a column of `to_frame()`. "
                    f"Got {name!r}."
                )
            if hasattr(constraint, "fit") and not isinstance(constraint, type):
                check_surrogate(constraint)
                self.estimators[name] = constraint
                self.functions[name] = None
            elif callable(constraint) and not isinstance(constraint, type):
                self.functions[name] = constraint
            else:
                raise TypeError(
                    f"`output_constraints` must be functions of the outputs or regressors. Got "
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
                f"{sorted(self.estimators)}: the function of `maximize` returns "
                f"(y, {{name: value}}), and `tell` has `output_constraints`. Got {names!r}."
            )
        columns = {}
        for name, values in given.items():
            self._refuse_booleans(name, values)
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

    @staticmethod
    def _refuse_booleans(name: str, values: Any) -> None:
        """Refuse True and False, which would count as 1, infeasible, and 0, feasible."""
        if np.asarray(values).dtype.kind == "b":
            raise WrongShapeError(
                f"Constraint {name!r} must be numbers, at most 0 where a result is feasible: "
                "write y <= c as y - c. Got True or False."
            )

    def of_outputs(self, outputs: np.ndarray, measured: Mapping[str, Any]) -> np.ndarray:
        """Compute all constraints (n, J) from outputs (n, ..) and the measured values (n,)."""
        # In the user's order, whether measured or computed from the outputs.
        columns = []
        for name, function in self.functions.items():
            column = measured[name] if function is None else function(outputs)
            self._refuse_booleans(name, column)
            columns.append(np.asarray(column, dtype="float64"))
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
    functions: tuple[Callable | None, ...] = field(compare=False)  # as those of `SignedObjective`

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
    functions = tuple(p.function for p in posteriors)
    function = functools.partial(_join_draws, functions, [len(p.arguments) for p in posteriors])
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


def _join_draws(functions, sizes, xp, arguments, X):
    """Join draws of functions with so many arguments each: (n_draws, n, columns)."""
    constants, *rest = arguments
    orders, rest = rest[: len(sizes)], rest[len(sizes) :]
    columns = []
    for function, size, order in zip(functions, sizes, orders):
        arguments, rest = rest[:size], rest[size:]
        draws = xp.take(function(xp, arguments, X), order, axis=0)  # (n_draws, n, *output_shape)
        columns.append(xp.reshape(draws, (*draws.shape[:2], -1)))
    flat = xp.zeros_like(columns[0][..., :1]) + constants  # (n_draws, n, 2 + J)
    return xp.concatenate([*columns, flat], axis=-1)
