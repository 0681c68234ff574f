"""Refine trained networks in double precision, to meet data without noise.

First-order training leaves errors of about a thousandth of the targets' scale. Searches for an
optimum need less. Second-order methods get there in a few steps, from weights that are nearly
right.

Notation: N rows, n = N n_raw values, P weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from scipy import linalg, optimize

from skuq.networks._dense import Dense, Derivatives, chain_derivatives
from skuq.networks._member import Member
from skuq.networks._plan import make_plan
from skuq.networks._plan_parts import ARRAYS
from skuq.training._predict import parts_of, predict_draws

MAX_DUAL_VALUES = 1500  # with more, systems of n equations take longer than first-order steps
_MAX_DUAL_STEPS, _MAX_LBFGS_STEPS = 50, 300
_TOLERANCE = 1e-6  # root mean square of the residuals, in units of the standardised targets
# Damping, in units of the tangent kernel's mean diagonal. With less than the least, rounding makes
# the kernel of nearly equal rows indefinite.
_FIRST_DAMPING, _LEAST_DAMPING, _LARGEST_DAMPING = 1e-3, 1e-10, 1e8
_LEAST_GAIN = 0.02  # share of the squared error that a step must remove, or it was the last one
_ROWS_AT_ONCE = 4096  # whose derivatives are computed at once

# Computes raw outputs and derivatives from weights (P,) at some of the rows.
_DerivativesOfRows: TypeAlias = Callable[[np.ndarray, slice], Derivatives]


def refine(member: Member, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Member:
    """Minimise a trained network's weighted squared error from its present weights.

    Up to `MAX_DUAL_VALUES` values, the Levenberg-Marquardt method in its dual form solves for the
    smallest change of the weights that meets all values. With more values it is L-BFGS.

    Parameters
    ----------
    member : Member
        A chain of dense Keras layers, or a network whose base is an `EncoderDecoder`, without
        EpiNet. A frozen prior network stays as it is.
    x : ndarray of shape (N, n_features)
    y : ndarray of shape (N, n_raw)
    weight : ndarray of shape (N,)
        Rows of weight 0 are left out.

    Returns
    -------
    Member
        A copy with other weights, in single precision, and a longer time of training.
    """
    started = time.perf_counter()
    used = weight > 0
    x, y = x[used].astype("float64"), y[used].astype("float64")
    plan = make_plan(member.network)
    if plan is not None:
        shapes = [plan.weights[node.weights[0]].shape for node in plan.nodes]
        layers = [
            Dense(n, m, node.operation.activation) for (n, m), node in zip(shapes, plan.nodes)
        ]

        def derivatives(flat: np.ndarray, rows: slice) -> Derivatives:
            return chain_derivatives(layers, plan.split(flat), x[rows])

    else:
        network, variables, _ = parts_of(member)
        base: Any = network.network.base
        # What the frozen prior network adds to the base is a constant of every row.
        y = y - predict_draws(member, x)[0] + base(ARRAYS, variables, x)[0]

        def derivatives(flat: np.ndarray, rows: slice) -> Derivatives:
            return base.derivatives(network.split(flat), x[rows])

    start = np.asarray(member.weights, dtype="float64")
    # Roots of the rows' relative weights, (n,): residuals are multiplied by them.
    root = np.repeat(np.sqrt(weight[used] / weight[used].mean()), y.shape[1])
    if y.size <= MAX_DUAL_VALUES:
        every = slice(None)
        found = levenberg_marquardt(lambda flat: derivatives(flat, every), start, y.ravel(), root)
    else:
        found = _lbfgs(derivatives, start, y.ravel(), root, y.shape[1])
    seconds = member.seconds + time.perf_counter() - started
    return replace(member, weights=found.astype("float32"), seconds=seconds)


def levenberg_marquardt(
    derivatives: Callable[[np.ndarray], Derivatives],
    flat: np.ndarray,
    targets: np.ndarray,
    root: np.ndarray,
) -> np.ndarray:
    """Minimise ``|root * (targets - raw(flat))|^2`` over weights (P,), where n < P.

    A step is J^T (J J^T + damping I)^-1 residual, with J the derivatives of the weighted values:
    the change of the weights that Levenberg and Marquardt's normal equations give, from a system
    of n equations. Damping follows Nielsen's rule (1999).
    """
    current = derivatives(flat)
    residual = root * (targets - current.raw.ravel())
    loss, damping, growth = residual @ residual, None, 2.0
    for _ in range(_MAX_DUAL_STEPS):
        if loss <= len(targets) * _TOLERANCE**2:
            break
        # Kernel of the weighted values, diag(root) J J^T diag(root).
        gram = current.gram() * np.multiply.outer(root, root)
        unit = np.trace(gram) / len(gram)
        damping = _FIRST_DAMPING * unit if damping is None else max(damping, _LEAST_DAMPING * unit)
        while damping <= _LARGEST_DAMPING * unit:
            damped = gram + damping * np.eye(len(gram))
            # The step is J^T diag(root) dual.
            dual = linalg.cho_solve(linalg.cho_factor(damped, lower=True), residual)
            tried = flat + current.back((root * dual)[None])[0]
            tried_derivatives = derivatives(tried)
            after = root * (targets - tried_derivatives.raw.ravel())
            gain = loss - after @ after
            # The linear model predicts the residual damping * dual.
            predicted_gain = loss - damping**2 * (dual @ dual)
            if gain > 0:
                break
            damping, growth = damping * growth, 2 * growth
        else:
            return flat  # no step gains any more
        flat, current, residual, loss = tried, tried_derivatives, after, after @ after
        if gain < _LEAST_GAIN * (loss + gain):
            break
        # Nielsen's rule: more trust in the linear model, the better it predicted the gain.
        damping *= max(1 / 3, 1 - (2 * gain / predicted_gain - 1) ** 3)
        growth = 2.0
    return flat


def _lbfgs(
    derivatives: _DerivativesOfRows,
    flat: np.ndarray,
    targets: np.ndarray,
    root: np.ndarray,
    n_raw: int,
) -> np.ndarray:
    """Minimise the same by L-BFGS, with derivatives of some rows at a time."""
    n_rows = len(targets) // n_raw

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = 0.0, np.zeros_like(flat)
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            part = derivatives(flat, slice(start, start + _ROWS_AT_ONCE))
            # A row has `n_raw` neighbouring values.
            values = slice(start * n_raw, (start + _ROWS_AT_ONCE) * n_raw)
            residual = root[values] * (targets[values] - part.raw.ravel())
            total += residual @ residual
            # The gradient is -2 J^T diag(root) residual.
            gradient -= 2 * part.back((root[values] * residual)[None])[0]
        return total / len(targets), gradient / len(targets)

    # With tolerances of 0 the search ends after its last step, or when no step gains.
    found = optimize.minimize(
        loss,
        flat,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": _MAX_LBFGS_STEPS,
            "maxfun": 2 * _MAX_LBFGS_STEPS,
            "maxcor": 20,
            "ftol": 0.0,
            "gtol": 0.0,
        },
    )
    return found.x
