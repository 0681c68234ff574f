"""Head of quantiles, which never cross, for each output.

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq._piecewise_quantiles import PiecewiseQuantiles, check_quantile_levels
from skuq._registry import saved_as
from skuq.networks._likelihood_head import cast_like, softplus, split_last

_LEVELS = tuple(k / 20 for k in range(1, 20))


@saved_as("networks.QuantileHead")
@dataclass(frozen=True)
class QuantileHead:
    """Quantiles at given levels, which never cross, for each of several outputs.

    The network gives q m raw numbers for q levels and m outputs: m for the middle level,
    then m for each gap between neighbouring levels, from the lowest: ``softplus(r) / log(2)
    + min_scale`` times the gap that a standard normal has there. Raw numbers of 0 thus give
    the quantiles of a standard normal.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    levels : tuple of float, default=(0.05, 0.1, .., 0.95)
        At least two, strictly increasing inside (0, 1).
    min_scale : float, default=1e-3
        Quantiles are at least as far apart as those of a normal with about this standard
        deviation, in units of the standardised y. It bounds the density that
        `log_likelihood` reads from them.

    Raises
    ------
    ValueError
        If levels are not as described.

    References
    ----------
    Koenker and Bassett (1978), "Regression Quantiles". Gaps: Park et al. (2022), "Learning
    Quantile Functions without Quantile Crossing for Distribution-free Time Series
    Forecasting".
    """

    n_outputs: int = 1
    levels: tuple[float, ...] = _LEVELS
    min_scale: float = 1e-3

    def __post_init__(self):
        levels = check_quantile_levels(self.levels)
        object.__setattr__(self, "levels", tuple(levels.tolist()))  # hashable

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return len(self.levels) * self.n_outputs

    def quantiles(self, raw: Any, xp: Any = np) -> Any:
        """Quantiles (.., n_levels, n_outputs), non-decreasing, from (.., n_raw)."""
        q, middle = len(self.levels), len(self.levels) // 2
        parts = split_last(raw, (q, self.n_outputs), xp)
        centre, r = parts[..., :1, :], parts[..., 1:, :]
        normal = np.diff(special.ndtri(self.levels))[:, None]  # (q - 1, 1)
        factors = softplus(r, xp) / np.log(2) + self.min_scale
        gaps = factors * cast_like(normal, raw, xp)
        # Sums outwards from the middle: each is exactly at least the one before.
        below = xp.cumsum(xp.flip(gaps[..., :middle, :], axis=-2), axis=-2)
        above = xp.cumsum(gaps[..., middle:, :], axis=-2)
        sides = [centre - xp.flip(below, axis=-2), centre, centre + above]
        return xp.concatenate(sides, axis=-2)

    def _distribution(self, raw):
        """Distributions of shape (.., n_outputs) that have the quantiles."""
        values = np.moveaxis(self.quantiles(np.asarray(raw, dtype=float)), -2, 0)
        return PiecewiseQuantiles.from_values(np.asarray(self.levels), values)

    def moments(self, raw) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations, arrays (.., n_outputs) from (.., n_raw).

        Those of `skuq.predictive.QuantileMixture` with these quantiles.
        """
        distribution = self._distribution(raw)
        return distribution.mean, np.sqrt(distribution.variance)

    def loss(self, y, raw):
        """Pinball loss of each row, mean over levels and outputs.

        Tensors: y (.., n_outputs), raw (.., n_raw); returns (..,). Twice this is about the
        continuous ranked probability score.
        """
        return self._pinball(y, self.quantiles(raw, backend.ops))

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average quantiles: y (.., n_outputs), copies (.., C, n_raw)."""
        return self._pinball(y, backend.ops.mean(self.quantiles(copies, backend.ops), axis=-3))

    def _pinball(self, y, quantiles):
        ops = backend.ops
        error = y[..., None, :] - quantiles
        levels = ops.cast(np.asarray(self.levels)[:, None], error.dtype)
        return ops.mean(ops.maximum(levels * error, (levels - 1) * error), axis=(-2, -1))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of all outputs together: arrays (.., n_outputs), (.., n_raw).

        The density is that of `skuq.predictive.QuantileMixture` with these quantiles.
        """
        return self._distribution(raw).log_density(np.asarray(y, dtype=float)).sum(axis=-1)
