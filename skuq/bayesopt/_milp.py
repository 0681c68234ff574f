"""Exact maximisation of NOMU's upper bound: a ReLU network as a mixed integer programme.

Notation: d inputs; v = (x, h_1, h_2, ..) holds the inputs and all hidden units from first to
last. Hidden layer k is ``h_k = max(0, v_<k W_k + b_k)``. It may use x and every unit before it,
which covers parallel networks, joins and skip connections.

References
----------
Heiss et al., "NOMU: Neural Optimization-based Model Uncertainty", ICML 2022, Remark 3.2.
Weissteiner and Seuken, "Deep Learning-powered Iterative Combinatorial Auctions", AAAI 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

_N_SCREENED = 2000  # random points, to return one if the time is up at once
_GAP = 1e-7  # relative, between the best point found and what is proved


@dataclass(frozen=True, eq=False)
class ReluReadout:
    """Mean and standard deviation of a network whose outputs are affine in ReLU units.

    ``readout(X)`` computes both for rows X (n, d): two arrays (n,) in units of y.

    Attributes
    ----------
    hidden : tuple of (ndarray of shape (n_before, n_units), ndarray of shape (n_units,))
        Weights and biases of each hidden layer; ``n_before`` counts the inputs and all units
        before it.
    mean : tuple of (ndarray of shape (n_all,), float)
        Weights of inputs and units for the mean, and an offset; in units of y.
    raw : tuple of (ndarray of shape (n_all,), float)
        Weights and offset for the raw uncertainty r.
    l_min, l_max : float
        Range of the readout: the standard deviation is ``unit * clip(r, l_min, l_max)``.
    unit : float
        Scale of y.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt._milp import ReluReadout
    >>> unit = np.array([[1.0]]), np.array([0.0])  # h = max(0, x)
    >>> readout = ReluReadout(
    ...     (unit,), mean=(np.array([0.0, 2.0]), 1.0), raw=(np.array([0.5, 0.0]), 0.0),
    ...     l_min=0.1, l_max=2.0, unit=1.0,
    ... )
    >>> readout(np.array([[-1.0], [3.0]]))
    (array([1., 7.]), array([0.1, 1.5]))
    """

    hidden: tuple[tuple[np.ndarray, np.ndarray], ...]
    mean: tuple[np.ndarray, float]
    raw: tuple[np.ndarray, float]
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
        """Number of inputs d."""
        return len(self.mean[0]) - sum(len(bias) for _, bias in self.hidden)


def maximize_readout(
    readout: ReluReadout,
    bounds,
    beta: float,
    integer=False,
    time_limit: float | None = None,
    *,
    one_hot=(),
    linear: LinearConstraint | None = None,
    exclude=None,
):
    """Find the point of a box with the largest mean + beta * standard deviation, with a proof.

    Parameters
    ----------
    readout : ReluReadout
        Result of ``readout_weights()`` of a fitted model.
    bounds : array-like of shape (d, 2)
    beta : float
        Weight of the standard deviation, at least 0.
    integer : bool or array-like of bool of shape (d,), default=False
        Which inputs are whole numbers: with bounds (0, 1) and True the domain is {0, 1}^d.
    time_limit : float, optional
        Seconds after which the best point so far is returned.
    one_hot : sequence of sequences of int
        Groups of inputs of which exactly one is 1 and all others are 0.
    linear : scipy.optimize.LinearConstraint, optional
        Linear constraints of the inputs.
    exclude : ndarray of shape (n, d), optional
        Points that may not be returned; only if all inputs are 0 or 1.

    Returns
    -------
    x : ndarray of shape (d,)
    value : float
        Value of the model itself at x.
    optimal : bool
        Whether nothing better exists, up to the solver's tolerances; False if the time was up.

    Raises
    ------
    ValueError
        If `beta` is negative or not finite, bounds do not fit, points of a domain other than
        {0, 1}^d are excluded, or no point is left.

    Notes
    -----
    With bounds L <= z <= U of a unit's input z (by interval arithmetic), h = max(0, z) is

        h >= 0,  h >= z,  h <= U a,  h <= z - L (1 - a),  a in {0, 1};

    units that cannot change sign need no a. The readout
    ``l_min + max(0, r - l_min) - max(0, r - l_max)`` is maximised, so it needs one more unit and a
    ceiling at l_max only. The problem is NP-hard: some hundred units already take long.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt._milp import ReluReadout
    >>> from skuq.bayesopt import maximize_readout
    >>> unit = np.array([[1.0]]), np.array([0.0])  # h = max(0, x)
    >>> readout = ReluReadout(
    ...     (unit,), mean=(np.array([1.0, -2.0]), 0.0), raw=(np.array([0.0, 0.0]), 0.1),
    ...     l_min=0.1, l_max=2.0, unit=1.0,
    ... )  # the mean is x up to 0, and -x from there
    >>> x, value, optimal = maximize_readout(readout, [(-1, 1)], beta=1.0)
    >>> round(value, 3), optimal
    (0.1, True)
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
    # The network as constraints, and mean + beta * std as coefficients of variables.
    programme = _Programme(bounds, is_integer)
    for kernel, bias in readout.hidden:
        programme.add_units(kernel, bias)
    objective, _ = programme.expression(*readout.mean)
    if beta * readout.unit > 0:
        weights, shift = readout.raw
        # clip(r) = l_min + min(max(0, r - l_min), l_max - l_min): one more unit with a ceiling.
        # The constant l_min does not change the maximum.
        programme.add_units(weights[:, None], np.array([shift - readout.l_min]))
        raised = programme.add_ceiling(readout.l_max - readout.l_min)
        objective = np.append(objective, np.zeros(programme.n_variables - len(objective)))
        objective[raised] = beta * readout.unit
    for group in one_hot:
        programme.add_linear(np.isin(np.arange(d), group)[None], 1.0, 1.0)
    if linear is not None:
        programme.add_linear(linear.A, linear.lb, linear.ub)
    if exclude is not None:
        exclude = np.asarray(exclude, dtype="float64")
        programme.exclude(exclude)
    result = programme.maximize(objective, time_limit)
    # 2 means that the programme is infeasible.
    if result.status == 2:
        raise ValueError(
            "No point is left: all of {0, 1}^d have been excluded, or violate `linear`."
            if exclude is not None
            else f"The solver finds no point in the bounds ({result.message})."
        )
    # Random points too, since the solver may run out of time before it finds any.
    candidates = _draw_candidates(bounds, is_integer, one_hot, linear, exclude)
    if result.x is not None:
        candidates = np.vstack([programme.inputs(result.x), candidates])
    if not len(candidates):
        raise ValueError("No point was found within the time limit: raise it.")
    # The model's own values: the programme's hold up to the solver's tolerances only.
    mean, std = readout(candidates)
    values = mean + beta * std
    best = int(np.argmax(values))
    return candidates[best], float(values[best]), result.status == 0


class _Programme:
    """Variables and constraints of a mixed integer programme, built layer by layer.

    The first variables are the inputs, shifted to begin at 0. Continuous ones are scaled to
    [0, 1], so that the solver's absolute tolerances mean the same for all.
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
        """Get x (d,) from a solution, within the bounds whatever the solver's tolerances."""
        part = solution[: len(self.low)]
        part = np.where(self.is_integer, np.round(part), part)
        return self.low + self.scale * np.clip(part, 0, self._upper[0])

    def expression(self, weights, offset):
        """Get coefficients (n_variables,) and offset of ``v @ weights + offset``."""
        d, coefficients = len(self.low), np.zeros(self.n_variables)
        coefficients[self._position[: len(weights)]] = weights
        # x = low + scale * variable: the scale multiplies weights, and low enters the offset.
        coefficients[:d] *= self.scale
        return coefficients, offset + self.low @ weights[:d]

    def add_units(self, kernel, bias):
        """Append ``h = max(0, v @ kernel + bias)`` to v."""
        # Written for inputs that are shifted to 0 and scaled.
        d, before = len(self.low), np.array(self._position[: len(kernel)])
        kernel, bias = kernel.copy(), bias + self.low @ kernel[:d]
        kernel[:d] *= self.scale[:, None]
        # Interval arithmetic: least <= z = v @ kernel + bias <= most.
        lower, upper = (np.concatenate(part)[before] for part in (self._lower, self._upper))
        least = bias + np.maximum(kernel, 0).T @ lower + np.minimum(kernel, 0).T @ upper
        most = bias + np.maximum(kernel, 0).T @ upper + np.minimum(kernel, 0).T @ lower
        h = self._add(len(bias), 0.0, np.maximum(most, 0))
        self._position += h.tolist()

        def bound(units, low, high, switch=None, switched=None):
            """Add ``low <= h - v @ kernel + switched * switch <= high`` for these units."""
            columns, parts = [before, h[units]], [-kernel[:, units].T, np.eye(units.sum())]
            if switch is not None:
                columns, parts = [*columns, switch], [*parts, np.diag(switched)]
            self._blocks.append((np.concatenate(columns), np.hstack(parts), low, high))

        # Units with most <= 0 are 0 by their upper bound.
        active, unstable = least >= 0, (least < 0) & (most > 0)
        if active.any():  # h = z
            bound(active, bias[active], bias[active])
        if unstable.any():
            a = self._add(unstable.sum(), 0.0, 1.0, integrality=1)
            low, high = least[unstable], most[unstable]
            bound(unstable, bias[unstable], np.inf)  # h >= z
            bound(unstable, -np.inf, bias[unstable] - low, a, -low)  # h <= z - L (1 - a)
            matrix = np.hstack([np.eye(len(a)), -np.diag(high)])  # h <= U a
            self._blocks.append((np.concatenate([h[unstable], a]), matrix, -np.inf, 0.0))

    def add_ceiling(self, ceiling):
        """Add a variable that is at most the last unit and at most a number; get its position."""
        capped = self._add(1, 0.0, ceiling)  # capped - last <= 0
        last = self._position[-1]
        columns = np.array([last, capped[0]])
        self._blocks.append((columns, np.array([[-1.0, 1.0]]), -np.inf, 0.0))
        return capped[0]

    def add_linear(self, matrix, lower, upper):
        """Require ``lower <= matrix @ x <= upper`` of the inputs x (d,)."""
        matrix = np.asarray(matrix, dtype="float64")
        columns, shift = np.arange(len(self.low)), matrix @ self.low
        self._blocks.append((columns, matrix * self.scale, lower - shift, upper - shift))

    def exclude(self, points):
        """Forbid these points."""
        if not (self.is_integer.all() and (self._upper[0] == 1).all()):
            raise ValueError("Points can be excluded only where all inputs are 0 or 1.")
        bits = np.round(points - self.low)
        # At least one input is different: sum_{0} x + sum_{1} (1 - x) >= 1.
        columns = np.arange(len(self.low))
        self._blocks.append((columns, 1 - 2 * bits, 1 - bits.sum(axis=1), np.inf))

    def maximize(self, objective, time_limit):
        """Maximise a linear objective of the first variables; return SciPy's result."""
        # Each block has columns of its own: scatter it into a sparse row block of all variables.
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
        # milp minimises; variables that came after the objective have the coefficient 0.
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


def _draw_candidates(bounds, is_integer, one_hot, linear, exclude):
    """Draw points of the domain (n, d), always the same ones, without those not allowed."""
    rng = np.random.default_rng(0)
    low, high = bounds.T
    points = low + (high - low) * rng.random((_N_SCREENED, len(low)))
    points[:, is_integer] = rng.integers(
        low[is_integer], high[is_integer], (_N_SCREENED, is_integer.sum()), endpoint=True
    )
    for group in one_hot:
        points[:, group] = np.eye(len(group))[rng.integers(len(group), size=_N_SCREENED)]
    if linear is not None:
        sums = points @ np.transpose(linear.A)
        points = points[((sums >= linear.lb) & (sums <= linear.ub)).all(axis=1)]
    if exclude is not None:
        known = {tuple(row) for row in exclude}
        points = points[[tuple(row) not in known for row in points]]
    return points
