"""Mixtures of distributions given by quantiles, as ensembles of quantile networks predict them.

Notation: K members, q levels, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from skuq._utils._checks import check_member_weights
from skuq._utils._formulas import PiecewiseQuantiles, check_quantile_levels
from skuq._utils._records import saved_as
from skuq.predictive._mixture import FILLED_IN, Mixture, find_roots


def _of_pieces(name: str) -> Callable[..., Any]:
    """Make a method of `QuantileMixture` from that of one member's `PiecewiseQuantiles`.

    A node rule takes no argument, the others y, levels or scores before the member's arrays.
    """

    def method(self: QuantileMixture, *arguments: np.ndarray) -> Any:
        # The arrays of a member are the five after the levels; see `QuantileMixture._arrays`.
        *given, centre, knots, widths, lower, upper = arguments
        member = PiecewiseQuantiles(self.levels, centre, knots, widths, lower, upper)
        return getattr(member, name)(*given)

    return method


@saved_as("predictive.QuantileMixture")
@dataclass(frozen=True, eq=False)
class QuantileMixture(Mixture):
    """Mixture of K members for every row, each given by its quantiles at the same levels.

    Between the levels, a member's quantile function is linear, and its density constant. Below
    the first and above the last level the density falls exponentially from that of the outermost
    piece: with levels t and values v, the lower tail has the scale
    ``t_1 * (v_2 - v_1) / (t_2 - t_1)``. Given the member, outputs are independent.

    Parameters
    ----------
    levels : ndarray of shape (q,)
        Levels of the quantiles: at least two, strictly increasing inside (0, 1).
    values : ndarray of shape (K, q, n) or (K, q, n, m)
        Quantiles of the members, in units of y: finite, non-decreasing along the second axis.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If levels, values or weights are invalid.

    See Also
    --------
    skuq.networks._heads.QuantileHead : Head that predicts the quantiles.

    Notes
    -----
    Like the other mixtures, it averages distribution functions, not quantiles.

    Tied values would mean an infinite density. Therefore each piece is widened to at least 1e-6
    times its step in level times ``v_q - v_1``, where this range counts as at least 1e-9 of the
    largest absolute value. Values change by at most 1e-6 of the range.

    Examples
    --------
    >>> import numpy as np
    >>> values = np.array([0.0, 1.0, 2.0]).reshape(1, 3, 1)
    >>> one = QuantileMixture(np.array([0.25, 0.5, 0.75]), values)
    >>> one.quantile([0.25, 0.375, 0.75]), one.mean, one.cdf(1.5)
    (array([[0. , 0.5, 2. ]]), array([1.]), array([0.625]))
    """

    levels: np.ndarray
    values: np.ndarray
    weights: np.ndarray = FILLED_IN

    _array_kinds = {"values": "location"}
    _leading_axes = 2  # members and levels

    def __post_init__(self) -> None:
        levels, values = check_quantile_levels(self.levels), np.asarray(self.values, dtype=float)
        if values.ndim not in (3, 4) or values.shape[1] != len(levels) or not len(values):
            raise ValueError(
                "values must have shape (n_members, n_levels, n_samples) or (n_members, "
                f"n_levels, n_samples, n_outputs) for {len(levels)} levels. Got {values.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError("values must be finite. Got infinite values or NaN.")
        steps = np.diff(values, axis=1)
        if not (steps >= 0).all():
            raise ValueError(
                f"values must not decrease with the level; one falls by {-steps.min()}. "
                "Sort crossing quantiles by np.sort(values, axis=1)."
            )
        weights = check_member_weights(self.weights, len(values), positive=True, tolerance=1e-9)
        vars(self).update(levels=levels, values=values, weights=weights)

    @cached_property
    def _pieces(self) -> PiecewiseQuantiles:
        """Distributions of all members; knots and widths are (.., K, n[, m])."""
        return PiecewiseQuantiles.from_values(self.levels, np.moveaxis(self.values, 1, 0))

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self._pieces.mean

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self._pieces.variance

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Return the arrays that describe the members' quantile functions, with knots first."""
        p = self._pieces
        knots, widths = np.moveaxis(p.knots, 1, 0), np.moveaxis(p.widths, 1, 0)
        return p.centre, knots, widths, p.lower, p.upper

    _cdf = _of_pieces("cdf")
    _log_density = _of_pieces("log_density")
    _quantile = _of_pieces("quantile")
    _at_scores = _of_pieces("at_scores")
    _nodes = _of_pieces("nodes")

    def _roots(self, levels: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Find the quantiles of the mixture, by a root finder between neighbouring knots."""
        # Bracket each root between two neighbours among the knots of all members. There the cdf
        # is a straight line plus some members' exponential tails, so that the root finder
        # converges quickly. In a wider bracket it would meet a corner at each knot.
        low, high = self._bracket(levels, arrays)
        if low is high:  # one member: the quantile itself
            return low
        _, _, _, lower, upper = arrays
        y, slopes, below, ends = self._union(arrays)
        tails = np.stack([*ends, lower, upper])  # (4, K, r)
        at_knots = below + self._tails(y, *tails)  # the mixture's cdf at each knot, (K * q, r)
        rows = np.arange(y.shape[1])
        # The piece (q, r) between knots that contains each level: -1 is below all knots.
        piece = np.stack([(at_knots <= level).sum(axis=0) for level in levels]) - 1
        left, right = (np.clip(piece + k, 0, len(y) - 1) for k in (0, 1))
        # Outside all knots, the members' smallest and largest quantiles are the bracket.
        low = np.where(piece < 0, low, np.clip(y[left, rows], low, high))
        high = np.where(piece == len(y) - 1, high, np.clip(y[right, rows], low, high))
        # The straight line of each piece: its left knot, its slope and the cdf at that knot.
        start, slope, done = (a[left, rows].ravel() for a in (y, slopes, below))
        slope = np.where(piece.ravel() < 0, 0.0, slope)
        row = np.broadcast_to(rows, low.shape).ravel()

        def excess(y: np.ndarray, level: np.ndarray, at: np.ndarray) -> np.ndarray:
            straight = done[at] + slope[at] * (y - start[at])
            return straight + self._tails(y, *tails[:, :, row[at]]) - level

        at = np.arange(low.size).reshape(low.shape)
        return find_roots(excess, low, high, levels, at, 1e-14)

    def _union(
        self, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Merge the knots of all members, and compute the mixture's pieces between them.

        Returns the sorted knots, the density after each knot and the probability before it, all
        (K * q, r), and the first and last knots of the members, (K, r) each. Density and
        probability are without tails. They are summed over members: a running sum over knots
        would lose the small densities of wide members next to narrow ones.
        """
        centre, knots, widths, _, _ = arrays
        q, n_rows = len(self.levels), centre.shape[1]
        knots = centre[:, None] + knots  # (K, q, r)
        y = knots.reshape(-1, n_rows)
        order = np.argsort(y, axis=0)
        y, owner = np.take_along_axis(y, order, axis=0), order // q  # owner: the knot's member
        # Probability in a member's pieces before its j-th knot.
        done = np.concatenate([[0.0], self.levels - self.levels[0]])
        slopes, below = np.zeros_like(y), np.zeros_like(y)
        for k, weight in enumerate(self.weights):
            passed = np.cumsum(owner == k, axis=0)  # number of the member's knots so far, 0 to q
            # The member's density in each of its pieces, 0 before the first and after the last.
            density = weight * np.diff(self.levels)[:, None] / widths[k]
            density = np.take_along_axis(np.pad(density, ((1, 1), (0, 0))), passed, axis=0)
            start = np.take_along_axis(knots[k], np.maximum(passed - 1, 0), axis=0)
            slopes += density
            below += weight * done[passed] + density * (y - start)
        return y, slopes, below, (knots[:, 0], knots[:, -1])

    def _tails(
        self,
        y: np.ndarray,
        first: np.ndarray,
        last: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
    ) -> np.ndarray:
        """Compute what the members' exponential tails add to the mixture's cdf at y (.., r).

        The other arguments, (K, r) each, are the first and last knots of the members, and the
        scales of the tails before and after them.
        """
        total = np.zeros(y.shape)
        for weight, start, end, before, after in zip(self.weights, first, last, lower, upper):
            # A lower tail holds t_1 exp(-(v_1 - y) / scale) below y, at most t_1.
            below = np.exp(np.minimum(y - start, 0) / before)
            # An upper tail holds (1 - t_q) (1 - exp(-(y - v_q) / scale)) between its knot and y.
            above = -np.expm1(np.minimum(end - y, 0) / after)
            total = total + weight * (self.levels[0] * below + (1 - self.levels[-1]) * above)
        return total
