"""Head with quantiles, which never cross, for each output.

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

    The network has q m raw outputs for q levels and m outputs: m for the middle level, then m
    for each gap between neighbouring levels, from the lowest. A gap is ``softplus(r) / log(2)
    + min_scale`` times the gap of a standard normal at these levels. Raw numbers of 0 therefore
    give the quantiles of a standard normal.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    levels : tuple of float, default=(0.05, 0.1, .., 0.95)
        Levels of the quantiles: at least two, strictly increasing inside (0, 1).
    min_scale : float, default=1e-3
        Smallest spread: gaps are at least those of a normal with about this standard deviation,
        in units of the standardised y. It bounds the density of `log_likelihood`.

    Raises
    ------
    ValueError
        If there are fewer than two levels, or they do not increase inside (0, 1).

    References
    ----------
    Koenker and Bassett (1978), "Regression Quantiles". Gaps: Park et al. (2022), "Learning
    Quantile Functions without Quantile Crossing for Distribution-free Time Series
    Forecasting".

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import QuantileHead
    >>> head = QuantileHead(levels=(0.1, 0.5, 0.9))
    >>> head.quantiles(np.zeros((1, head.n_raw))).round(2)
    array([[[-1.28],
            [ 0.  ],
            [ 1.28]]])
    """

    n_outputs: int = 1
    levels: tuple[float, ...] = _LEVELS
    min_scale: float = 1e-3

    def __post_init__(self):
        levels = check_quantile_levels(self.levels)
        object.__setattr__(self, "levels", tuple(levels.tolist()))  # hashable

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return len(self.levels) * self.n_outputs

    def quantiles(self, raw: Any, xp: Any = np) -> Any:
        """Compute quantiles (.., n_levels, n_outputs), non-decreasing, from (.., n_raw)."""
        q, middle = len(self.levels), len(self.levels) // 2
        parts = split_last(raw, (q, self.n_outputs), xp)
        centre, r = parts[..., :1, :], parts[..., 1:, :]
        normal = np.diff(special.ndtri(self.levels))[:, None]  # (q - 1, 1)
        factors = softplus(r, xp) / np.log(2) + self.min_scale
        gaps = factors * cast_like(normal, raw, xp)
        # Add up the gaps outwards from the middle, so that rounding never makes quantiles cross.
        below = xp.cumsum(xp.flip(gaps[..., :middle, :], axis=-2), axis=-2)
        above = xp.cumsum(gaps[..., middle:, :], axis=-2)
        sides = [centre - xp.flip(below, axis=-2), centre, centre + above]
        return xp.concatenate(sides, axis=-2)

    def _distribution(self, raw):
        """Make distributions of shape (.., n_outputs) that have these quantiles."""
        values = np.moveaxis(self.quantiles(np.asarray(raw, dtype=float)), -2, 0)
        return PiecewiseQuantiles.from_values(np.asarray(self.levels), values)

    def moments(self, raw) -> tuple[np.ndarray, np.ndarray]:
        """Compute means and standard deviations, arrays (.., n_outputs), from (.., n_raw).

        They are those of `skuq.predictive.QuantileMixture` with these quantiles.
        """
        distribution = self._distribution(raw)
        return distribution.mean, np.sqrt(distribution.variance)

    def loss(self, y, raw):
        """Compute each row's pinball loss (..,), mean over levels and outputs.

        `y` (.., n_outputs) and `raw` (.., n_raw) are tensors. Twice this loss approximates the
        continuous ranked probability score.
        """
        return self._pinball(y, self.quantiles(raw, backend.ops))

    def mixture_loss(self, y, copies):
        """Compute the loss of the copies' average quantiles.

        `y` is (.., n_outputs), and `copies` are (.., C, n_raw).
        """
        return self._pinball(y, backend.ops.mean(self.quantiles(copies, backend.ops), axis=-3))

    def _pinball(self, y, quantiles):
        """Compute max(level * e, (level - 1) * e) for errors e, mean over levels and outputs."""
        ops = backend.ops
        error = y[..., None, :] - quantiles
        levels = ops.cast(np.asarray(self.levels)[:, None], error.dtype)
        return ops.mean(ops.maximum(levels * error, (levels - 1) * error), axis=(-2, -1))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays y and raw.

        The density is that of `skuq.predictive.QuantileMixture` with these quantiles.
        """
        return self._distribution(raw).log_density(np.asarray(y, dtype=float)).sum(axis=-1)
