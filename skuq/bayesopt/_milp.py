"""Exact maximisation of NOMU's upper bound: a network of ReLUs as a mixed integer programme.

Notation: d inputs; v = (x, h_1, h_2, ..) are the inputs and all hidden units from first to
last. Hidden layer k is ``h_k = max(0, v_<k W_k + b_k)``: it may see x and every unit before it,
so that networks side by side, joins and skips need no cases of their own.

References
----------
Heiss et al., "NOMU: Neural Optimization-based Model Uncertainty", ICML 2022, Remark 3.2.
Weissteiner and Seuken, "Deep Learning-powered Iterative Combinatorial Auctions", AAAI 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

__all__ = ["ReluReadout", "maximize_readout"]

_N_SCREENED = 2000  # random points: something to return where time runs out at once
_GAP = 1e-7  # relative, between the best point found and what is proved


@dataclass(frozen=True, eq=False)
class ReluReadout:
    """A mean and a linear readout of an uncertainty, both affine in ReLU units.

    ``readout(X)`` gives mean and standard deviation of rows X (n, d), each (n,), in units of y.

    Attributes
    ----------
    hidden : tuple of (ndarray of shape (n_before, n_units), ndarray of shape (n_units,))
        Weights and biases of each hidden layer; ``n_before`` is d and all units before it.
    mean : tuple of (ndarray of shape (n_all,), float)
        Weights of x and of all units, and an offset; in units of y.
    raw : tuple of (ndarray of shape (n_all,), float)
        The same of the raw uncertainty r.
    l_min, l_max : float
        Ends of the readout: the standard deviation is ``unit * clip(r, l_min, l_max)``.
    unit : float
    """

    hidden: tuple
    mean: tuple
    raw: tuple
    l_min: float
    l_max: float
    unit: float

    def __call__(self, X):
        values = np.asarray(X, dtype="float64")
        for kernel, bias in self.hidden:
            values = np.hstack([values, np.maximum(values @ kernel + bias, 0)])
        mean, raw = (values @ weights + offset for weights, offset in (self.mean, self.raw))
        return mean, self.unit * np.clip(raw, self.l_min, self.l_max)

    @property
    def n_inputs(self) -> int:
        return len(self.mean[0]) - sum(len(bias) for _, bias in self.hidden)

    def negated(self) -> ReluReadout:
        """The same model of minus y."""
        return replace(self, mean=(-self.mean[0], -self.mean[1]))


def maximize_readout(
    readout: ReluReadout,
    bounds,
    beta: float,
    integer=False,
    time_limit: float | None = None,
    *,
    one_hot=(),
    exclude=None,
):
    """Greatest value of mean + beta * standard deviation on a box, found and proved.

    Parameters
    ----------
    readout : ReluReadout
        From ``readout_weights()`` of a fitted model.
    bounds : array-like of shape (d, 2)
    beta : float
        At least 0.
    integer : bool or array-like of bool of shape (d,), default=False
        Which inputs are whole numbers: with bounds (0, 1) and True the domain is {0, 1}^d.
    time_limit : float, optional
        Seconds, after which the best point so far is returned.
    one_hot : sequence of sequences of int
        Inputs of which exactly one is 1, and all others 0.
    exclude : ndarray of shape (n, d), optional
        Points that may not be returned; only where all inputs are 0 or 1.

    Returns
    -------
    x : ndarray of shape (d,)
    value : float
        Of the model itself at x.
    optimal : bool
        Whether nothing better exists, up to the solver's tolerances: False where time ran out.

    Raises
    ------
    ValueError
        If `beta` is negative or not finite, bounds do not fit, points of a domain that is not
        {0, 1}^d are to be excluded, or no point is left.

    Notes
    -----
    With bounds L <= z <= U of a unit's input z (by interval arithmetic), h = max(0, z) is

        h >= 0,  h >= z,  h <= U a,  h <= z - L (1 - a),  a in {0, 1};

    units that cannot change sign need no a. The readout
    ``l_min + max(0, r - l_min) - max(0, r - l_max)`` is maximised, so it needs one more unit and a
    ceiling at l_max only. Programmes of more than some hundred units take long: NP-hard they are.
    """
    bounds = np.asarray(bounds, dtype="float64")
    d = readout.n_inputs
    if bounds.shape != (d, 2) or not (bounds[:, 0] < bounds[:, 1]).all():
        raise ValueError(
            f"`bounds` must be {d} pairs (low, high) with low < high, one for each input of the "
            f"network. Got shape {bounds.shape}."
        )
    if not (np.isfinite(beta) and beta >= 0):
        raise ValueError(f"`beta` must be finite and at least 0. Got {beta}.")
    is_integer = np.zeros(d, dtype=bool) | np.asarray(integer, dtype=bool)
    for group in one_hot:
        is_integer[np.asarray(group)] = True
    programme = _Programme(bounds, is_integer)
    for kernel, bias in readout.hidden:
        programme.add_units(kernel, bias)
    objective, offset = programme.expression(*readout.mean)
    if beta * readout.unit > 0:
        weights, shift = readout.raw
        programme.add_units(weights[:, None], np.array([shift - readout.l_min]))
        raised = programme.add_ceiling(readout.l_max - readout.l_min)
        objective = np.append(objective, np.zeros(programme.n_variables - len(objective)))
        objective[raised] = beta * readout.unit
    for group in one_hot:
        programme.add_sum(group, 1.0)
    if exclude is not None:
        programme.exclude(np.asarray(exclude, dtype="float64"))
    result = programme.maximize(objective, time_limit)
    if result.status == 2:
        raise ValueError(
            "No point is left: all of {0, 1}^d have been excluded."
            if exclude is not None
            else f"The solver finds no point in the bounds ({result.message})."
        )
    candidates = _screened(bounds, is_integer, one_hot, exclude)
    if result.x is not None:
        candidates = np.vstack([programme.inputs(result.x), candidates])
    if not len(candidates):
        raise ValueError("No point was found within the time limit: raise it.")
    mean, std = readout(candidates)
    values = mean + beta * std
    best = int(np.argmax(values))
    return candidates[best], float(values[best]), result.status == 0


class _Programme:
    """Variables and constraints, built up layer by layer.

    The first variables are the inputs: each shifted to begin at 0, and scaled to [0, 1] where
    it is continuous, so that the solver's absolute tolerances mean the same for all.
    """

    def __init__(self, bounds, is_integer):
        low, high = bounds.T
        self.low, self.is_integer = low, is_integer
        self.scale = np.where(is_integer, 1.0, high - low)
        if (low[is_integer] % 1).any():
            raise ValueError(f"Bounds of whole numbers must be whole numbers. Got {bounds}.")
        self._lower = [np.zeros(len(low))]
        self._upper = [np.floor((high - low) / self.scale)]
        self._integrality = [is_integer.astype(int)]
        self._position = list(range(len(low)))  # variables that are entries of v
        self._blocks: list[tuple] = []  # (columns, matrix, lower, upper)
        self.n_variables = len(low)

    def inputs(self, solution):
        """x (d,) of a solution, within the bounds whatever the solver's tolerances."""
        part = solution[: len(self.low)]
        part = np.where(self.is_integer, np.round(part), part)
        return self.low + self.scale * np.clip(part, 0, self._upper[0])

    def expression(self, weights, offset):
        """Coefficients (n_variables,) and offset of ``v @ weights + offset``."""
        d, coefficients = len(self.low), np.zeros(self.n_variables)
        coefficients[self._position[: len(weights)]] = weights
        coefficients[:d] *= self.scale
        return coefficients, offset + self.low @ weights[:d]

    def add_units(self, kernel, bias):
        """``h = max(0, v @ kernel + bias)`` as the next entries of v."""
        d, before = len(self.low), np.array(self._position[: len(kernel)])
        kernel, bias = kernel.copy(), bias + self.low @ kernel[:d]
        kernel[:d] *= self.scale[:, None]
        lower, upper = (np.concatenate(part)[before] for part in (self._lower, self._upper))
        least = bias + np.maximum(kernel, 0).T @ lower + np.minimum(kernel, 0).T @ upper
        most = bias + np.maximum(kernel, 0).T @ upper + np.minimum(kernel, 0).T @ lower
        h = self._add(len(bias), 0.0, np.maximum(most, 0))
        self._position += h.tolist()

        def bound(units, low, high, switch=None, switched=None):
            """low <= h - v @ kernel + switched * switch <= high, for some of the units."""
            columns, parts = [before, h[units]], [-kernel[:, units].T, np.eye(units.sum())]
            if switch is not None:
                columns, parts = [*columns, switch], [*parts, np.diag(switched)]
            self._add_block(np.concatenate(columns), np.hstack(parts), low, high)

        active, unstable = least >= 0, (least < 0) & (most > 0)
        if active.any():
            bound(active, bias[active], bias[active])
        if unstable.any():
            a = self._add(unstable.sum(), 0.0, 1.0, integrality=1)
            low, high = least[unstable], most[unstable]
            bound(unstable, bias[unstable], np.inf)
            bound(unstable, -np.inf, bias[unstable] - low, a, -low)
            self._add_block(
                np.concatenate([h[unstable], a]),
                np.hstack([np.eye(len(a)), -np.diag(high)]),
                -np.inf,
                0.0,
            )

    def add_ceiling(self, ceiling):
        """A variable that is at most the last unit, and at most a number; its position."""
        capped = self._add(1, 0.0, ceiling)
        last = self._position[-1]
        self._add_block(np.array([last, capped[0]]), np.array([[-1.0, 1.0]]), -np.inf, 0.0)
        return capped[0]

    def add_sum(self, inputs, total):
        inputs = np.asarray(inputs)
        self._add_block(inputs, np.ones((1, len(inputs))), total, total)

    def exclude(self, points):
        if not (self.is_integer.all() and (self._upper[0] == 1).all()):
            raise ValueError("Points can be excluded only where all inputs are 0 or 1.")
        bits = np.round(points - self.low)
        # At least one input is different: sum_{0} x + sum_{1} (1 - x) >= 1.
        columns = np.arange(len(self.low))
        self._add_block(columns, 1 - 2 * bits, 1 - bits.sum(axis=1), np.inf)

    def maximize(self, objective, time_limit):
        rows, lower, upper = [], [], []
        for columns, matrix, low, high in self._blocks:
            block = sparse.coo_array(matrix)
            wide = (len(matrix), self.n_variables)
            rows.append(sparse.coo_array((block.data, (block.row, columns[block.col])), wide))
            lower.append(np.broadcast_to(low, len(matrix)))
            upper.append(np.broadcast_to(high, len(matrix)))
        constraints = ()
        if rows:
            matrix = sparse.vstack(rows).tocsc()
            constraints = LinearConstraint(matrix, np.concatenate(lower), np.concatenate(upper))
        options = {"mip_rel_gap": _GAP}
        if time_limit is not None:
            options["time_limit"] = float(time_limit)
        return milp(
            -np.append(objective, np.zeros(self.n_variables - len(objective))),
            integrality=np.concatenate(self._integrality),
            bounds=Bounds(np.concatenate(self._lower), np.concatenate(self._upper)),
            constraints=constraints,
            options=options,
        )

    def _add(self, n, lower, upper, integrality=0):
        self._lower.append(np.broadcast_to(np.float64(lower), n))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype="float64"), n))
        self._integrality.append(np.full(n, integrality))
        first, self.n_variables = self.n_variables, self.n_variables + int(n)
        return np.arange(first, self.n_variables)

    def _add_block(self, columns, matrix, lower, upper):
        self._blocks.append((columns, matrix, lower, upper))


def _screened(bounds, is_integer, one_hot, exclude):
    """Random points of the domain (n, d), without those excluded."""
    rng = np.random.default_rng(0)
    low, high = bounds.T
    points = low + (high - low) * rng.random((_N_SCREENED, len(low)))
    points[:, is_integer] = rng.integers(
        low[is_integer], high[is_integer], (_N_SCREENED, is_integer.sum()), endpoint=True
    )
    for group in one_hot:
        points[:, group] = np.eye(len(group))[rng.integers(len(group), size=_N_SCREENED)]
    if exclude is not None:
        known = {tuple(row) for row in np.asarray(exclude, dtype="float64")}
        points = points[[tuple(row) not in known for row in points]]
    return points
