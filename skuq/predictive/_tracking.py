"""Quantiles of a stream of scores, followed online with several step sizes.

Notation: T rows, m outputs, q levels, k step sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from skuq._registry import saved_as
from skuq.predictive._adapted import increasing

_TAIL = np.array([0.005, 0.01, 0.025, 0.05])
LEVELS = np.concatenate([_TAIL, np.arange(2, 19) / 20, 1 - _TAIL[::-1]])
NOMINAL = special.ndtri(LEVELS)  # where these levels are while the calibration holds
_DENSITY = np.exp(-0.5 * NOMINAL**2) / np.sqrt(2 * np.pi)
# A step is so large that an error of a level is halved, about, within that many rows. Further out
# than 5 %, where a density is small, steps would be larger than what is followed.
MEMORIES = np.array([15.0, 40.0, 100.0, 250.0, 600.0, 1500.0])
# Weights of the step sizes at first: most of what is calibrated stays so.
_PRIOR = (np.sqrt(MEMORIES) / np.sqrt(MEMORIES).sum())[:, None]
_STEPS = 1 / (MEMORIES[:, None] * np.maximum(_DENSITY, 0.1))  # (k, q)
_HORIZON = 500  # rows on which a step size is to be as good as the best one
_SHARE = 1 / (2 * _HORIZON)  # of the weight that is dealt out anew at each row
_REMEMBERED = 500  # rows that `CalibrationDrift` looks back on
_STEP_ROWS = 24  # most rows that quantiles take one step for


@dataclass(frozen=True)
class CalibrationDrift:
    """How far a calibration is from the rows that came after it.

    Attributes
    ----------
    n_rows : int
        Rows that have arrived since the calibration.
    coverage : float
        Share of the last rows, 500 at most, in the 90 % interval that they had as they arrived.
    coverage_without : float
        The same for the intervals of the calibration as it was before the first of them.
    shift : float or ndarray of shape (n_outputs,)
        Median error now, in predicted standard deviations; 0 while the calibration holds.
    spread : float or ndarray of shape (n_outputs,)
        Width of the 90 % interval now, divided by what it was before.
    """

    n_rows: int
    coverage: float
    coverage_without: float
    shift: float | np.ndarray
    spread: float | np.ndarray


@saved_as("predictive.QuantileTracker")
@dataclass(frozen=True, eq=False)
class QuantileTracker:
    """Quantiles of normal scores of truths, followed as these arrive.

    Each step size follows every quantile by online gradient descent on its pinball loss: after a
    truth the quantile of level p moves up by a step times p, or down by a step times 1 - p. In
    the long run a share p of the truths is below it, whatever these are. Step sizes are weighted
    by their recent losses.

    Attributes
    ----------
    positions : ndarray of shape (k, q, m)
        Score at which each step size has each quantile.
    weights : ndarray of shape (k, m)
        Weights of the step sizes.
    energy : ndarray of shape (m,)
        Sum over recent rows of the variance of the losses among step sizes.
    n_rows : int
        Rows seen.
    recent : ndarray of shape (r, 2, m)
        Normal scores of the last rows: without the tracker, and with it as it was.

    References
    ----------
    Gibbs and Candès (2021), "Adaptive conformal inference under distribution shift"; Gibbs and
    Candès (2024), "Conformal inference for online prediction with arbitrary distribution
    shifts", Algorithm 1 (weights of step sizes). Angelopoulos, Candès and Tibshirani (2023),
    "Conformal PID control for time series prediction" (steps of scores instead of levels).
    """

    positions: np.ndarray
    weights: np.ndarray
    energy: np.ndarray
    n_rows: int
    recent: np.ndarray

    @classmethod
    def start(cls, n_outputs: int = 1) -> QuantileTracker:
        """Make a tracker that has seen nothing: every quantile is where a calibration has it."""
        k = len(MEMORIES)
        positions = np.tile(NOMINAL[:, None], (k, 1, n_outputs))
        weights = np.tile(_PRIOR, (1, n_outputs))
        return cls(positions, weights, np.zeros(n_outputs), 0, np.empty((0, 2, n_outputs)))

    @property
    def quantiles(self) -> np.ndarray:
        """Scores (q, m) of the levels `LEVELS`, increasing."""
        return increasing(NOMINAL, np.einsum("km,kqm->qm", self.weights, self.positions))

    def updated(self, scores: np.ndarray) -> QuantileTracker:
        """Learn from the normal scores (T, m) of truths, in the order of their arrival.

        They count as predicted together, before the first of them was known: step sizes are
        judged by the quantiles that they had then.
        """
        losses = np.stack([self._losses(own, k) for k, own in enumerate(scores.T)], axis=1)
        losses -= (self.weights * losses).sum(axis=0)
        k, n = len(MEMORIES), len(scores)
        energy = (1 - 1 / _HORIZON) ** n * self.energy + (self.weights * losses**2).sum(axis=0)
        rate = np.sqrt((np.log(2 * k * _HORIZON) + 1) / (energy + 1.0))
        weights = self.weights * np.exp(-rate * (losses - losses.min(axis=0)))
        weights /= weights.sum(axis=0)
        share = 1 - (1 - _SHARE) ** n
        positions = self.positions
        for start in range(0, n, _STEP_ROWS):
            block = scores[start : start + _STEP_ROWS, None, None]  # (b, 1, 1, m)
            push = LEVELS[:, None] * len(block) - (block < positions).sum(axis=0)
            positions = positions + _STEPS[..., None] * push
        last = scores[-_REMEMBERED:]
        seen = np.stack([last, self._levelled(last)], axis=1)
        return QuantileTracker(
            positions,
            (1 - share) * weights + share * _PRIOR,
            energy,
            self.n_rows + n,
            np.concatenate([self.recent, seen])[-_REMEMBERED:],
        )

    def _losses(self, scores: np.ndarray, output: int) -> np.ndarray:
        """Sum (k,) of the pinball losses of scores (T,), the mean over levels.

        In units of the loss while the calibration holds, so that all levels count alike.
        """
        r = self.positions[..., output]
        ordered = np.sort(scores)
        below = np.searchsorted(ordered, r)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        # p * (v - r) for all v, and r - v for those below r.
        losses = LEVELS * (sums[-1] - len(scores) * r) + below * r - sums[below]
        mean: np.ndarray = (losses / _DENSITY).mean(axis=1)
        return mean

    def _levelled(self, scores: np.ndarray) -> np.ndarray:
        """Normal scores (T, m) of truths under the quantiles tracked."""
        columns = [
            np.interp(own, knots, NOMINAL, left=-np.inf, right=np.inf)
            for own, knots in zip(scores.T, self.quantiles.T)
        ]
        return np.stack(columns, axis=1)

    def drift(self, shape: tuple[int, ...]) -> CalibrationDrift:
        """Report how far the calibration is; `shape` is () or (m,)."""
        without, with_ = np.moveaxis(abs(self.recent) <= special.ndtri(0.95), 1, 0)
        found = self.quantiles
        low, middle, high = (
            found[np.searchsorted(LEVELS, p - 1e-9)].reshape(shape) for p in (0.05, 0.5, 0.95)
        )
        return CalibrationDrift(
            self.n_rows,
            float(np.mean(with_)) if len(with_) else np.nan,
            float(np.mean(without)) if len(without) else np.nan,
            middle if shape else float(middle),
            (high - low) / (2 * special.ndtri(0.95))
            if shape
            else float((high - low) / (2 * special.ndtri(0.95))),
        )
