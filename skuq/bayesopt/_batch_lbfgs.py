"""L-BFGS in the unit box from many starts at once: each round is one batched evaluation.

Starts in a line search and starts with a new direction share a round, and converged ones leave
the batch, so no start waits for the slowest. The batched L-BFGS of TFP waits, evaluates converged
starts as well, and has no bounds: with a sigmoid map of the box it took 6 to 10 s for 100 starts
on a network, after 40 to 60 s of compilation. This takes 1.5 s.

Notation: B starts, n variables, m remembered pairs; f and g are values and gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_N_PAIRS = 10  # as in SciPy's L-BFGS-B
_LEAST_GRADIENT = 1e-5  # largest entry of a projected gradient that counts as zero
_ARMIJO = 1e-4  # share of the decrease predicted by the slope that a step must gain
_FIRST_STEP = 0.1  # length of the first step, before the curvature is known
_MAX_HALVINGS = 8  # of one line search; a step is then 1e-8 to 4e-3 of the first
_CURVATURE = 1e-10  # smallest s.y / (|s| |y|) of a pair that is used


@dataclass(frozen=True)
class BatchResult:
    """Final points x (B, n) and values (B,), and the number of evaluated rows."""

    x: np.ndarray
    value: np.ndarray
    n_rows: int


def minimize_batch(
    function,
    x,
    *,
    max_rounds: int,
    survivors: dict[int, int] | None = None,
    ftol: float = 1e-9,
) -> BatchResult:
    """Find local minima over [0, 1]^n, from every row of `x` (B, n).

    `function` maps x (b, n), for any b, to values (b,) and gradients (b, n). From a round in
    `survivors` on only so many starts continue, those with the lowest values; converged ones
    count among them. A start has converged if a step gains less than ``ftol * max(1, |f|)``, or
    if the largest entry of the projected gradient is below 1e-5. Ten pairs are kept, as in
    SciPy's L-BFGS-B. Values found are never above those of the starts; a start whose value is not
    finite stays where it is, with value inf.

    Notes
    -----
    The projected quasi-Newton method of Bertsekas (1982). Variables at a bound whose gradient
    points outwards are fixed. The others take the L-BFGS direction of the pairs restricted to
    them. Steps are clipped to the box and shortened until they satisfy Armijo's condition. Pairs
    without positive curvature are not used.
    """
    state = _State(np.clip(np.asarray(x, dtype="float64"), 0.0, 1.0))
    survivors = survivors or {}
    f, g = function(state.x)
    state.start(f, g, ftol)
    for number in range(1, max_rounds):
        if number in survivors:
            # Ranks by value among all starts, converged ones included.
            state.active &= np.argsort(np.argsort(state.f, kind="stable")) < survivors[number]
        rows = np.flatnonzero(state.active)
        if not rows.size:
            break
        # Starts are at different points of their line searches; one call evaluates them all.
        trial = state.trial(rows)
        f, g = function(trial)
        state.update(rows, trial, f, g, ftol)
    return BatchResult(state.x, state.f, state.n_rows)


class _State:
    """All starts: their points, remembered pairs and current line searches."""

    def __init__(self, x):
        size, n = x.shape
        self.x = x
        self.direction = np.zeros((size, n))
        self.length = np.ones(size)
        self.halvings = np.zeros(size, int)
        # Remembered pairs: s, differences of points, and y, differences of gradients.
        self.steps = np.zeros((size, _N_PAIRS, n))  # newest last
        self.changes = np.zeros((size, _N_PAIRS, n))
        self.n_rows = 0

    def start(self, f, g, ftol):
        """Set values and gradients of the starts, and their first directions."""
        self.n_rows += len(f)
        finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
        self.f, self.g = np.where(finite, f, np.inf), np.where(finite[:, None], g, 0.0)
        self.active = finite & (self._largest_projected_gradient(self.x, self.g) > _LEAST_GRADIENT)
        self._aim(np.flatnonzero(self.active), ftol)

    def trial(self, rows):
        """Get the points that the line searches evaluate next."""
        return np.clip(self.x[rows] + self.length[rows, None] * self.direction[rows], 0.0, 1.0)

    def update(self, rows, trial, f, g, ftol):
        """Accept the steps that gain enough, and shorten the others."""
        self.n_rows += len(rows)
        step = trial - self.x[rows]
        promised = np.sum(self.g[rows] * step, axis=1)
        finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
        # Armijo's condition: f(x + p) <= f(x) + c g.p
        good = finite & (promised < 0) & (f <= self.f[rows] + _ARMIJO * promised)
        self._shorten(rows[~good], promised[~good], f[~good], ftol)
        # Move the other rows to their new points, and stop those that have converged.
        rows, x, f, g = rows[good], trial[good], f[good], g[good]
        for memory, new in ((self.steps, x - self.x[rows]), (self.changes, g - self.g[rows])):
            # The newest pair replaces the oldest.
            memory[rows, :-1] = memory[rows, 1:]
            memory[rows, -1] = new
        gained = self.f[rows] - f
        self.x[rows], self.f[rows], self.g[rows] = x, f, g
        small = gained <= ftol * np.maximum(1.0, np.abs(f))
        going = ~small & (self._largest_projected_gradient(x, g) > _LEAST_GRADIENT)
        self.active[rows] = going
        self._aim(rows[going], ftol)

    def _shorten(self, rows, promised, f, ftol):
        """Shorten steps to the minimum of a parabola, by a factor within [0.1, 0.5]."""
        # The parabola through f, its slope p and the new value f' has its minimum at the share
        # -p / (2 (f' - f - p)) of the step.
        with np.errstate(all="ignore"):
            ratio = -0.5 * promised / (f - self.f[rows] - promised)
        self.length[rows] *= np.clip(np.where(np.isfinite(ratio), ratio, 0.1), 0.1, 0.5)
        self.halvings[rows] += 1
        spent = rows[self.halvings[rows] >= _MAX_HALVINGS]
        # A start that gains nothing along its direction forgets its pairs and tries the gradient;
        # without pairs it has just tried that, and stops.
        forgetful = self.steps[spent].any(axis=(1, 2))
        self.active[spent[~forgetful]] = False
        self.steps[spent] = self.changes[spent] = 0.0
        self._aim(spent[forgetful], ftol)

    def _aim(self, rows, ftol):
        """Choose new directions; a start whose slope predicts no relevant gain has converged."""
        if not rows.size:
            return
        x, g = self.x[rows], self.g[rows]
        # Variables at a bound whose gradient points outwards stay there: the others are free.
        free = ~(((x <= 0.0) & (g > 0.0)) | ((x >= 1.0) & (g < 0.0)))  # (b, n)
        g = np.where(free, g, 0.0)
        direction = -_inverse_hessian_times(
            g, self.steps[rows] * free[:, None], self.changes[rows] * free[:, None]
        )
        largest = np.abs(g).max(axis=1, keepdims=True)
        downhill = -g * (_FIRST_STEP / np.maximum(largest, 1e-300))
        self.length[rows] = 1.0
        self.halvings[rows] = 0
        self.direction[rows] = direction
        # A step that is clipped to the box may lead uphill; NaN counts as uphill.
        self.direction[rows] = np.where(
            self._predict_change(rows)[:, None] < 0, direction, downhill
        )
        least = 0.1 * ftol * np.maximum(1.0, np.abs(self.f[rows]))
        self.active[rows] = -self._predict_change(rows) > least

    def _predict_change(self, rows):
        """Predict the change of f (b,) by its slope along the step that is tried next."""
        return np.sum(self.g[rows] * (self.trial(rows) - self.x[rows]), axis=1)

    @staticmethod
    def _largest_projected_gradient(x, g):
        """Compute the largest entry (b,) of the projected gradient ``P(x - g) - x``."""
        return np.abs(np.clip(x - g, 0.0, 1.0) - x).max(axis=1)


def _inverse_hessian_times(g, steps, changes):
    """Run the two loops of L-BFGS for every row (Nocedal and Wright 2006, Algorithm 7.4).

    Pairs without positive curvature get weight 0. A row without pairs gets the length of a first
    step.
    """
    curvature = np.einsum("bmn,bmn->bm", steps, changes)  # s.y of each pair
    squares = np.einsum("bmn,bmn->bm", changes, changes)  # y.y
    lengths = np.einsum("bmn,bmn->bm", steps, steps)  # s.s
    valid = curvature > _CURVATURE * np.sqrt(squares * lengths)
    # rho = 1 / s.y; a pair that is not used gets 0, so that both loops pass it by.
    rho = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=valid)
    n_pairs = rho.shape[1]
    q, alpha = g.copy(), np.zeros_like(rho)
    for i in reversed(range(n_pairs)):  # from the newest pair to the oldest
        alpha[:, i] = rho[:, i] * np.einsum("bn,bn->b", steps[:, i], q)
        q -= alpha[:, i, None] * changes[:, i]
    # The initial inverse Hessian is s.y / y.y of the newest valid pair; without one, it gives a
    # first step its length.
    scale = _FIRST_STEP / np.maximum(np.abs(g).max(axis=1), 1e-300)
    for i in range(n_pairs):  # newer pairs overwrite older ones
        newest = valid[:, i]
        scale[newest] = curvature[newest, i] / squares[newest, i]
    q *= scale[:, None]
    for i in range(n_pairs):
        beta = rho[:, i] * np.einsum("bn,bn->b", changes[:, i], q)
        q += (alpha[:, i] - beta)[:, None] * steps[:, i]
    return q
