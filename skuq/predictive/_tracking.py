"""Quantiles of a stream of scores, followed online with several step sizes.

Notation: T rows, m outputs, q levels, k step sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
_STEPS = 1 / (MEMORIES[:, None] * np.maximum(_DENSITY, 0.1))  # (k, q)
_HORIZON = 500  # rows on which a step size is to be as good as the best one
_SHARE = 1 / (2 * _HORIZON)  # of the weight that is dealt out anew at each row
_REMEMBERED = 500  # rows that `CalibrationDrift` looks back on
_MOST_BLOCKS = 10_000  # updates of one call; more rows are taken several at a time


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
        weights = np.full((k, n_outputs), 1 / k)
        return cls(positions, weights, np.zeros(n_outputs), 0, np.empty((0, 2, n_outputs)))

    @property
    def quantiles(self) -> np.ndarray:
        """Scores (q, m) of the levels `LEVELS`, increasing."""
        return increasing(NOMINAL, np.einsum("km,kqm->qm", self.weights, self.positions))

    def updated(self, scores: np.ndarray) -> QuantileTracker:
        """Learn from the normal scores (T, m) of truths, in the order of their arrival."""
        size = -(-len(scores) // _MOST_BLOCKS)
        tracker, seen = self, [self.recent]
        for start in range(0, len(scores), size):
            block = scores[start : start + size]
            seen.append(np.stack([block, tracker._levelled(block)], axis=1))
            tracker = tracker._step(block)
        recent = np.concatenate(seen)[-_REMEMBERED:]
        return replace(tracker, recent=recent, n_rows=self.n_rows + len(scores))

    def _levelled(self, scores: np.ndarray) -> np.ndarray:
        """Normal scores (T, m) of truths under the quantiles tracked."""
        columns = [
            np.interp(own, knots, NOMINAL, left=-np.inf, right=np.inf)
            for own, knots in zip(scores.T, self.quantiles.T)
        ]
        return np.stack(columns, axis=1)

    def _step(self, block: np.ndarray) -> QuantileTracker:
        """Learn from some rows (b, m) at once."""
        levels = LEVELS[:, None]
        apart = block[:, None, None] - self.positions  # (b, k, q, m)
        push = levels - (apart < 0)
        # In units of the loss while the calibration holds, all levels alike.
        losses = np.mean(push * apart / _DENSITY[:, None], axis=2).sum(axis=0)  # (k, m)
        losses -= (self.weights * losses).sum(axis=0)
        kept = (1 - 1 / _HORIZON) ** len(block)
        energy = kept * self.energy + (self.weights * losses**2).sum(axis=0)
        k = len(MEMORIES)
        rate = np.sqrt((np.log(2 * k * _HORIZON) + 1) / (energy + 1.0))
        weights = self.weights * np.exp(-rate * (losses - losses.min(axis=0)))
        weights /= weights.sum(axis=0)
        share = 1 - (1 - _SHARE) ** len(block)
        positions = self.positions + _STEPS[..., None] * push.sum(axis=0)
        return replace(
            self,
            positions=positions,
            weights=(1 - share) * weights + share / k,
            energy=energy,
        )

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
            (high - low) / (2 * special.ndtri(0.95)) if shape else
            float((high - low) / (2 * special.ndtri(0.95))),
        )
