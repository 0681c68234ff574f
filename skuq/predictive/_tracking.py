"""Track calibration online: quantiles of a stream of scores, and logits of probabilities.

An expert is one step size or one rate of forgetting. Notation: T rows, m outputs (absent where
there is one), q levels, C classes, k experts, d = 1 + C parameters of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from skuq._utils._records import saved_as
from skuq.predictive._categorical import SMALLEST_PROBABILITY, scaled_probabilities
from skuq.predictive._mapped import increasing

_REMEMBERED = 500  # last rows that a tracker describes


def update_weights(
    weights: np.ndarray, losses: np.ndarray, share: float, prior: np.ndarray | float
) -> np.ndarray:
    """Multiply the weights (k[, m]) of experts by exp(-losses), and mix a share of a prior in.

    The share lets an expert that was bad for long become important again.

    References
    ----------
    Herbster and Warmuth (1998), "Tracking the best expert".
    """
    weights = weights * np.exp(losses.min(axis=0) - losses)  # at least one factor is 1
    weights /= weights.sum(axis=0)
    return (1 - share) * weights + share * prior


_TAIL = np.array([0.005, 0.01, 0.025, 0.05])  # tracked levels below 10 %
LEVELS = np.concatenate([_TAIL, np.arange(2, 19) / 20, 1 - _TAIL[::-1]])
NOMINAL = special.ndtri(LEVELS)  # scores of these levels while the calibration holds
_LOWER, _MEDIAN, _UPPER = np.searchsorted(LEVELS, np.array([0.05, 0.5, 0.95]) - 1e-9)
_DENSITY = np.exp(-0.5 * NOMINAL**2) / np.sqrt(2 * np.pi)
# Within about this many rows the error of a level falls to 1/e.
MEMORIES = np.array([15.0, 40.0, 100.0, 250.0, 600.0, 1500.0])
# Initial weights of the step sizes. Small steps weigh most, since most calibrations stay valid.
_PRIOR = (np.sqrt(MEMORIES) / np.sqrt(MEMORIES).sum())[:, None]
# A memory is at most this many rows longer than the rows seen so far. The first rows then count
# as in a sample quantile to which the calibration, which may be wrong, contributes 50 rows.
_CALIBRATION_ROWS = 50
# Lower bound of the density in steps, as those beyond the 5 % levels would otherwise be larger than
# the changes to follow.
_LEAST_DENSITY = 0.1
# The unit of all steps is the spread of the quantiles with this memory, the third. The spread of a
# shorter memory would change by so much in a step of 24 rows that steps could grow without bound.
_UNIT_MEMORY = 2
_SMALLEST_UNIT = 1e-3  # of that spread, relative to the nominal one
_HORIZON = 500  # rows over which the weighted steps should be as good as the best step size
_REDISTRIBUTED_SHARE = 1 / (2 * _HORIZON)  # of the weight, at each row
_STEP_ROWS = 24  # largest number of rows in one step of the quantiles


@dataclass(frozen=True)
class CalibrationDrift:
    """Deviation of a calibration from the rows that arrived after it.

    Attributes
    ----------
    n_rows : int
        Number of rows that have arrived since the calibration.
    coverage : float
        Share of the last rows, at most 500, inside the 90 % intervals predicted at their arrival.
    coverage_without : float
        The same share for the intervals of the original calibration.
    shift : float or ndarray of shape (n_outputs,)
        Current median error, in predicted standard deviations; 0 while the calibration holds.
    spread : float or ndarray of shape (n_outputs,)
        Current width of the 90 % interval, divided by its original width.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1))
    >>> y = X[:, 0] + rng.normal(size=300)
    >>> model = CalibratedUncertaintyRegressor(BayesianRidge()).fit(X, y)
    >>> for rows in np.split(np.arange(300), 30):
    ...     _ = model.partial_calibrate(X[rows], y[rows] + 2)  # two standard deviations higher
    >>> model.drift_.n_rows, bool(model.drift_.shift > 1.5)
    (300, True)
    """

    n_rows: int
    coverage: float
    coverage_without: float
    shift: float | np.ndarray
    spread: float | np.ndarray


@saved_as("predictive.QuantileTracker")
@dataclass(frozen=True, eq=False)
class QuantileTracker:
    """Quantiles of normal scores of observed values, updated as these arrive.

    Each step size tracks every quantile by online gradient descent on its pinball loss: after a
    truth the quantile of level p moves up by the step times p, or down by the step times 1 - p. In
    the long run a share p of the values is below it, for any sequence of values that arrive in
    updates of up to 24 rows. After an update of more rows, predictions take the average of its
    later steps, and the next update goes on from the last step. Steps are in units
    of the current spread of the scores, so that errors can become a hundred times larger or
    smaller. They are larger at the start, and decrease to those of their memories. Step sizes are
    weighted by their recent losses.

    Attributes
    ----------
    positions : ndarray of shape (k, q, m)
        Quantiles of each step size after the last step.
    averages : ndarray of shape (k, q, m)
        Averages of these over the steps of the later half of the last update, for predictions.
    weights : ndarray of shape (k, m)
        Weights of the step sizes.
    energy : ndarray of shape (m,)
        Sum over recent rows of the variance of the losses among step sizes.
    n_rows : int
        Number of rows seen.
    recent : ndarray of shape (r, 2, m)
        Normal scores of the last rows: without the tracker, and by the tracker at their arrival.

    References
    ----------
    Gibbs and Candès (2021), "Adaptive conformal inference under distribution shift"; Gibbs and
    Candès (2024), "Conformal inference for online prediction with arbitrary distribution
    shifts", Algorithm 1 (weights of step sizes). Angelopoulos, Candès and Tibshirani (2023),
    "Conformal PID control for time series prediction" (steps of scores instead of levels).
    Angelopoulos, Barber and Bates (2024), "Online conformal prediction with decaying step sizes"
    (steps that decrease; coverage for any sequence of step sizes).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive._tracking import QuantileTracker
    >>> scores = np.random.default_rng(0).normal(1.0, 1.0, (500, 1))
    >>> tracker = QuantileTracker.start()
    >>> for row in scores:
    ...     tracker = tracker.updated(row[None])
    >>> round(tracker.drift(()).shift, 1)
    0.9
    """

    positions: np.ndarray
    averages: np.ndarray
    weights: np.ndarray
    energy: np.ndarray
    n_rows: int
    recent: np.ndarray

    @classmethod
    def start(cls, n_outputs: int = 1) -> QuantileTracker:
        """Make a tracker without rows: all quantiles are those of the calibration."""
        k = len(MEMORIES)
        positions = np.tile(NOMINAL[:, None], (k, 1, n_outputs))
        weights = np.tile(_PRIOR, (1, n_outputs))
        none = np.empty((0, 2, n_outputs))
        return cls(positions, positions, weights, np.zeros(n_outputs), 0, none)

    @property
    def quantiles(self) -> np.ndarray:
        """Scores (q, m) of the levels `LEVELS`, increasing."""
        return increasing(NOMINAL, np.einsum("km,kqm->qm", self.weights, self.averages))

    def updated(self, scores: np.ndarray) -> QuantileTracker:
        """Learn from the normal scores (T, m) of observed values, in the order of their arrival.

        All rows count as predicted before the first of their values was known: step sizes are
        judged by their quantiles before the update.
        """
        # Sums of the rows' pinball losses for each step size and output, (k, m). The loss of each
        # level is divided by its value while the calibration holds: levels weigh about the same.
        sums_of_losses = []
        for r, column in zip(np.moveaxis(self.averages, -1, 0), scores.T):
            # Beyond all quantiles the losses of all step sizes grow alike, and might overflow.
            ordered = np.sort(np.clip(column, r.min() - 1, r.max() + 1))
            below = np.searchsorted(ordered, r)
            sums = np.concatenate([[0.0], np.cumsum(ordered)])
            # Pinball loss of v at r: p (v - r) for all v, plus r - v for those below r.
            pinball = LEVELS * (sums[-1] - len(ordered) * r) + below * r - sums[below]
            sums_of_losses.append((pinball / _DENSITY).mean(axis=1))
        losses = np.stack(sums_of_losses, axis=1)
        # Excess over the weighted mean, in units of the spread: the rate below needs no units.
        losses -= (self.weights * losses).sum(axis=0)
        losses /= _spread(self.averages[_UNIT_MEMORY])
        k, n = len(MEMORIES), len(scores)
        # Discounted, so that the rate rises again once the step sizes differ less.
        energy = (1 - 1 / _HORIZON) ** n * self.energy + (self.weights * losses**2).sum(axis=0)
        # Learning rate of the weights: Gibbs and Candès (2024), section 3.
        rate = np.sqrt((np.log(2 * k * _HORIZON) + 1) / (energy + 1.0))
        share = 1 - (1 - _REDISTRIBUTED_SHARE) ** n
        positions, n_steps = self.positions, -(-n // _STEP_ROWS)
        later = np.zeros_like(positions)  # sum over the later half of the steps
        for step in range(n_steps):
            start = step * _STEP_ROWS
            block = scores[start : start + _STEP_ROWS, None, None]  # (b, 1, 1, m)
            # p times the rows of the block, minus those below the quantile: minus the gradient of
            # the block's pinball losses.
            push = LEVELS[:, None] * len(block) - (block < positions).sum(axis=0)  # (k, q, m)
            unit = _spread(positions[_UNIT_MEMORY])  # (m,)
            memories = np.minimum(MEMORIES, _CALIBRATION_ROWS + self.n_rows + start)
            steps = 1 / (memories[:, None] * np.maximum(_DENSITY, _LEAST_DENSITY))  # (k, q)
            positions = positions + unit * steps[..., None] * push
            if step >= n_steps // 2:
                later += positions
        # The last step reflects mainly the last 24 rows, such as those of a weekend. If many rows
        # arrive together, the average is a better prediction of as many more.
        averages = later / (n_steps - n_steps // 2) if n_steps else self.averages
        # Normal scores of the observed values under the tracked quantiles.
        tracked = [
            np.interp(column, knots, NOMINAL, left=-np.inf, right=np.inf)
            for column, knots in zip(scores.T, self.quantiles.T)
        ]
        seen = np.stack([scores, np.stack(tracked, axis=1)], axis=1)  # (T, 2, m)
        return QuantileTracker(
            positions,
            averages,
            update_weights(self.weights, rate * losses, share, _PRIOR),
            energy,
            self.n_rows + n,
            np.concatenate([self.recent, seen])[-_REMEMBERED:],
        )

    def drift(self, shape: tuple[int, ...]) -> CalibrationDrift:
        """Describe the deviation from the calibration; `shape` is () or (m,)."""
        without, with_ = np.moveaxis(abs(self.recent) <= special.ndtri(0.95), 1, 0)
        found = self.quantiles
        shift, spread = found[_MEDIAN].reshape(shape), _spread(found).reshape(shape)
        return CalibrationDrift(
            self.n_rows,
            float(np.mean(with_)) if len(with_) else np.nan,
            float(np.mean(without)) if len(without) else np.nan,
            shift if shape else float(shift),
            spread if shape else float(spread),
        )


def _spread(quantiles: np.ndarray) -> np.ndarray:
    """Compute the width (m,) of the 90 % interval of quantiles (q, m), relative to nominal."""
    width = quantiles[_UPPER] - quantiles[_LOWER]
    return np.maximum(abs(width) / (2 * NOMINAL[_UPPER]), _SMALLEST_UNIT)


# Rows after which the weight of a truth has fallen to 1 / e. The last rate does not move: it is the
# calibration as it was.
CLASS_MEMORIES = np.array([10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0, np.inf])
_MOVES = np.isfinite(CLASS_MEMORIES)[:, None]
# Precision of the prior, in rows: with few values the slope stays near 1 and biases near 0.
_SLOPE_PRECISION = 10.0
_BIAS_PRECISION = 1.0
_SHARE = 1e-3  # share of the weight that is redistributed with each call
_MOST_BLOCKS = 5000  # updates of one call; if there are more rows, an update takes several


@dataclass(frozen=True)
class ClassDrift:
    """Deviation of a classifier's calibration from the rows that arrived after it.

    Attributes
    ----------
    n_rows : int
        Number of rows that have arrived since the calibration.
    log_loss : float
        Mean log loss of the last rows, at most 500, by the probabilities predicted at their
        arrival.
    log_loss_without : float
        The same loss for the original calibration.
    slope : float
        Current factor of the logits: 1 while the calibration holds, below 1 if it has become
        overconfident.
    bias : ndarray of shape (n_classes,)
        Current addition to the logits, with mean 0; positive for classes that have become more
        frequent.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import CalibratedUncertaintyClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1))
    >>> y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    >>> model = CalibratedUncertaintyClassifier(LogisticRegression()).fit(X, y)
    >>> drift = model.partial_calibrate(X, np.ones(300, int)).drift_  # only class 1 has arrived
    >>> drift.n_rows, bool(drift.bias[1] > drift.bias[0])
    (300, True)
    """

    n_rows: int
    log_loss: float
    log_loss_without: float
    slope: float
    bias: np.ndarray


@saved_as("predictive.LogitTracker")
@dataclass(frozen=True, eq=False)
class LogitTracker:
    """Logistic regression of the class on the logits, with several rates of forgetting.

    For each rate of forgetting, the slope of the logits and a bias of each class are updated by
    online Newton steps on the log loss. The probabilities of the rates are averaged with weights by
    Bayes' rule, so that there is nothing to tune.

    Attributes
    ----------
    parameters : ndarray of shape (k, d)
        Slope and biases.
    curvature : ndarray of shape (k, d, d)
        Discounted sums of the Hessians of the log loss.
    weights : ndarray of shape (k,)
        Weights of the rates of forgetting.
    n_rows : int
        Number of rows seen.
    recent : ndarray of shape (r, 2)
        Log losses of the last rows: without the tracker, and by the tracker at their arrival.

    References
    ----------
    Vovk (1990), "Aggregating strategies"; Herbster and Warmuth (1998), "Tracking the best
    expert" (redistributed weights).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive._tracking import LogitTracker
    >>> proba = np.full((100, 2), 0.5)
    >>> tracker = LogitTracker.start(n_classes=2).updated(proba, np.ones(100, int))
    >>> bool(tracker.probabilities(proba[:1])[0, 1] > 0.5)  # only class 1 has arrived
    True
    """

    parameters: np.ndarray
    curvature: np.ndarray
    weights: np.ndarray
    n_rows: int
    recent: np.ndarray

    @classmethod
    def start(cls, n_classes: int) -> LogitTracker:
        """Make a tracker without rows, which does not change probabilities."""
        k, d = len(CLASS_MEMORIES), 1 + n_classes
        parameters = np.tile(np.r_[1.0, np.zeros(n_classes)], (k, 1))
        return cls(parameters, np.zeros((k, d, d)), np.full(k, 1 / k), 0, np.empty((0, 2)))

    def probabilities(self, proba: np.ndarray) -> np.ndarray:
        """Correct probabilities (T, C) according to the values observed so far."""
        return np.einsum("k,ktc->tc", self.weights, self._each(proba))

    def _each(self, proba: np.ndarray) -> np.ndarray:
        """Correct probabilities (T, C) for each rate of forgetting, to shape (k, T, C)."""
        slopes, biases = self.parameters[:, :1, None], self.parameters[:, None, 1:]
        return scaled_probabilities(proba, slopes, biases)

    def updated(self, proba: np.ndarray, codes: np.ndarray) -> LogitTracker:
        """Learn from the classes (T,) of rows with these probabilities, in order of arrival.

        They count as predicted together, before the first of them was known: rates are judged by
        the probabilities that they gave then.
        """
        n = len(codes)
        at = np.arange(n), codes
        before = np.maximum(self._each(proba)[:, *at], SMALLEST_PROBABILITY)  # (k, T)
        losses = -np.log(before).sum(axis=1)  # (k,)
        # Rows of one Newton step: 1, unless that would be more than 5000 steps.
        tracker, size = self, -(-n // _MOST_BLOCKS)
        for start in range(0, n, max(size, 1)):
            block = slice(start, start + size)
            tracker = tracker._step(proba[block], codes[block])
        given = np.maximum(proba[at], SMALLEST_PROBABILITY)
        seen = -np.log(np.stack([given, self.weights @ before], axis=1))  # (T, 2)
        return replace(
            tracker,
            weights=update_weights(self.weights, losses, _SHARE, 1 / len(CLASS_MEMORIES)),
            recent=np.concatenate([self.recent, seen])[-_REMEMBERED:],
            n_rows=self.n_rows + n,
        )

    def _step(self, given: np.ndarray, codes: np.ndarray) -> LogitTracker:
        """Learn from several rows with probabilities (b, C) in one Newton step."""
        b, n_classes = given.shape
        logits, proba = np.log(np.maximum(given, SMALLEST_PROBABILITY)), self._each(given)
        logits -= logits.mean(axis=1, keepdims=True)  # (b, C); probabilities are (k, b, C)
        # Derivatives of the logits: by the slope these logits, by the biases the identity.
        jacobian = np.concatenate(
            [logits[..., None], np.broadcast_to(np.eye(n_classes), (b, n_classes, n_classes))], 2
        )
        # Derivative of the log loss by the logits: probabilities minus indicators, (k, b, C).
        apart = proba.copy()
        apart[:, np.arange(b), codes] -= 1
        gradient = np.einsum("kbc,bcd->kd", apart, jacobian)
        # Hessian J^T (diag(p) - p p^T) J of the softmax, summed over rows: second moments of J
        # under p minus products of its means.
        weighted = proba[..., None] * jacobian  # (k, b, C, d)
        mean = weighted.sum(axis=2)
        hessian = np.einsum("kbcd,bce->kde", weighted, jacobian) - np.einsum(
            "kbd,kbe->kde", mean, mean
        )
        # Share (k,) of the past that is still remembered after these b rows.
        kept = (1 - 1 / CLASS_MEMORIES) ** b
        precision = np.r_[_SLOPE_PRECISION, np.full(n_classes, _BIAS_PRECISION)]
        prior = np.r_[1.0, np.zeros(n_classes)]
        curvature = kept[:, None, None] * self.curvature + hessian
        # The prior is forgotten like the rows, and what is lost of it is added again: its
        # precision stays the same.
        gradient = gradient + (1 - kept)[:, None] * precision * (self.parameters - prior)
        step = np.linalg.solve(curvature + np.diag(precision), gradient[..., None])[..., 0]
        return replace(self, parameters=self.parameters - _MOVES * step, curvature=curvature)

    def drift(self) -> ClassDrift:
        """Describe the deviation from the calibration."""
        without, with_ = self.recent.mean(axis=0) if len(self.recent) else (np.nan, np.nan)
        # Adding a number to all biases changes no probability: report those with mean 0.
        slope, *bias = self.weights @ self.parameters
        return ClassDrift(
            self.n_rows, float(with_), float(without), float(slope), np.array(bias) - np.mean(bias)
        )
