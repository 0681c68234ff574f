"""Formulas that heads and predictive distributions share.

Notation of piecewise linear quantile functions: levels t_1 < .. < t_q, values v_1 <= .. <= v_q on
the first axis, then any others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

#: Minus the log density of a standard normal at 0.
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


_LEAST_WIDTH = 1e-6  # smallest width of a piece, relative to its step in level times the range
_LEAST_RANGE = 1e-9  # smallest range of the values relative to their size: far above rounding
# Quadrature nodes of a tail, of all pieces together, and the fewest of one piece.
_TAIL_NODES, _PIECE_NODES, _LEAST_NODES = 16, 64, 4
_TINY = 1e-100  # smallest range, for values that are all 0; its square does not underflow
_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)


def mean_distance(mean, std, xp=np):
    """Compute E|X| of normals X with these means and standard deviations, arrays or tensors."""
    z, erf = mean / std, special.erf if xp is np else xp.erf
    return std * (z * erf(_SQRT_HALF * z) + _SQRT_2_OVER_PI * xp.exp(-0.5 * xp.square(z)))


def check_quantile_levels(levels) -> np.ndarray:
    """Check levels of quantiles (q,): two or more, strictly increasing inside (0, 1)."""
    checked = np.asarray(levels, dtype=float)
    # Positive conditions, so that NaN fails.
    sound = checked.ndim == 1 and len(checked) > 1
    if not (sound and (np.diff(checked) > 0).all() and checked[0] > 0 and checked[-1] < 1):
        raise ValueError(
            f"levels must be at least two numbers in (0, 1), strictly increasing. Got {levels}."
        )
    return checked


@dataclass(frozen=True, eq=False)
class PiecewiseQuantiles:
    """An array of distributions, given by their quantiles at the same levels.

    Between levels the density is constant. Below the first and above the last level it falls
    exponentially from the density of the outermost piece. The scale of the lower tail is
    ``t_1 * (v_2 - v_1) / (t_2 - t_1)``, and that of the upper tail accordingly. `from_values`
    makes it.

    Parameters
    ----------
    levels : ndarray of shape (q,)
        Levels of the quantiles.
    centre : ndarray of shape (...)
        Value at the middle level.
    knots : ndarray of shape (q, ...)
        Values minus `centre`.
    widths : ndarray of shape (q - 1, ...)
        Widths of the pieces; positive.
    lower, upper : ndarray of shape (...)
        Scales of the tails.
    """

    levels: np.ndarray
    centre: np.ndarray
    knots: np.ndarray
    widths: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def from_values(cls, levels: np.ndarray, values: np.ndarray) -> PiecewiseQuantiles:
        """Make distributions from values (q, ...) at levels (q,).

        Values must not decrease along the first axis. Pieces are widened to at least 1e-6 times
        their step in level times the range of the values, so that the density is at most 1e6
        divided by that range. The middle value stays, and the others change by at most 1e-6 of
        the range. The range counts as at least 1e-9 of the largest absolute value, so that equal
        values have a finite density, too.
        """
        middle, steps = len(levels) // 2, np.diff(levels)
        size = np.maximum(abs(values[0]), abs(values[-1]))
        # The range (...), the widths (q - 1, ...), and their sums outwards from the middle value.
        reach = np.maximum(values[-1] - values[0], _LEAST_RANGE * size + _TINY)
        widths = np.maximum(np.diff(values, axis=0), _LEAST_WIDTH * reach * _first(steps, values))
        below = -np.cumsum(widths[:middle][::-1], axis=0)[::-1]
        above = np.cumsum(widths[middle:], axis=0)
        return cls(
            levels,
            centre=values[middle],
            knots=np.concatenate([below, np.zeros_like(values[:1]), above]),
            widths=widths,
            lower=levels[0] / steps[0] * widths[0],
            upper=(1 - levels[-1]) / steps[-1] * widths[-1],
        )

    def _parts(self):
        """Compute probability, mean minus `centre` and variance of the q + 1 parts.

        The parts are the lower tail, the pieces and the upper tail.
        """
        probability = np.diff(self.levels, prepend=0.0, append=1.0)  # (q + 1,)
        mean = np.concatenate(
            [
                (self.knots[0] - self.lower)[None],
                0.5 * (self.knots[1:] + self.knots[:-1]),
                (self.knots[-1] + self.upper)[None],
            ]
        )
        variance = np.concatenate(
            # Exponential tails have variance scale^2, and uniform pieces width^2 / 12.
            [(self.lower**2)[None], self.widths**2 / 12, (self.upper**2)[None]]
        )
        return probability, mean, variance

    @property
    def mean(self) -> np.ndarray:
        """Means, of shape (...)."""
        probability, mean, _ = self._parts()
        return self.centre + np.tensordot(probability, mean, axes=1)

    @property
    def variance(self) -> np.ndarray:
        """Variances, of shape (...)."""
        # Law of total variance over the pieces and the two tails.
        probability, mean, variance = self._parts()
        distance = mean - np.tensordot(probability, mean, axes=1)
        return np.tensordot(probability, variance + distance**2, axes=1)

    def nodes(self) -> Iterator[tuple[float, np.ndarray]]:
        """Iterate over weights, which sum to 1, and nodes (...) of a rule for expectations.

        Each piece and tail has a Gaussian rule of its own, because the density jumps between them.
        """
        t, probability = special.roots_laguerre(_TAIL_NODES)
        for z, weight in zip(t, probability):
            yield self.levels[0] * weight, self.centre + self.knots[0] - self.lower * z
            yield (1 - self.levels[-1]) * weight, self.centre + self.knots[-1] + self.upper * z
        n_each = max(_LEAST_NODES, math.ceil(_PIECE_NODES / len(self.widths)))
        t, probability = special.roots_legendre(n_each)
        for step, knot, width in zip(np.diff(self.levels), self.knots, self.widths):
            for z, weight in zip(0.5 * (t + 1), 0.5 * probability):
                yield step * weight, self.centre + knot + width * z

    def cdf(self, y) -> np.ndarray:
        """Compute P(Y <= y), where y broadcasts against (...)."""
        z = y - self.centre
        below = self.levels[0] * np.exp(np.minimum(z - self.knots[0], 0) / self.lower)
        above = (1 - self.levels[-1]) * -np.expm1(np.minimum(self.knots[-1] - z, 0) / self.upper)
        total = below + above
        # Each piece adds its step in level times the share of it that lies below y.
        for step, knot, width in zip(np.diff(self.levels), self.knots, self.widths):
            total += step * np.clip((z - knot) / width, 0, 1)
        return np.minimum(total, 1.0)

    def log_density(self, y) -> np.ndarray:
        """Compute the log density at y, which broadcasts against (...)."""
        z = np.asarray(y - self.centre)
        piece = (z >= self.knots).sum(axis=0)  # 0 below the first knot, q above the last
        # Log densities of the pieces, with those of the outermost pieces for the tails, too.
        heights = np.log(_first(np.diff(self.levels), self.widths)) - np.log(self.widths)
        heights = np.concatenate([heights[:1], heights, heights[-1:]])
        heights = np.broadcast_to(heights, (len(heights), *piece.shape))
        tails = np.minimum(z - self.knots[0], 0) / self.lower
        tails += np.minimum(self.knots[-1] - z, 0) / self.upper
        return np.take_along_axis(heights, piece[None], axis=0)[0] + tails

    def quantile(self, levels) -> np.ndarray:
        """Compute quantiles at levels in (0, 1), which broadcast against (...)."""
        return self._quantile(levels, np.log(levels), np.log1p(-np.asarray(levels)))

    def at_scores(self, z) -> np.ndarray:
        """Compute quantiles at levels Phi(z) of a standard normal, exact far in the tails."""
        return self._quantile(special.ndtr(z), special.log_ndtr(z), special.log_ndtr(-z))

    def _quantile(self, levels, log_below, log_above):
        """Compute quantiles from levels, and the logs of the levels and of their complements."""
        first, last = np.log(self.levels[0]), np.log1p(-self.levels[-1])
        below = self.lower * np.minimum(log_below - first, 0)
        above = self.upper * np.minimum(log_above - last, 0)
        total = self.knots[0] + below - above
        for step, level, width in zip(np.diff(self.levels), self.levels, self.widths):
            total = total + width * np.clip((levels - level) / step, 0, 1)
        return self.centre + total


def _first(numbers, like):
    """Reshape numbers (q,) to broadcast along the first axis of an array (q, ...)."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))
