"""Track slope and biases of the logits of class probabilities online.

Notation: T rows, C classes, k rates of forgetting, d = 1 + C parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from skuq._registry import saved_as
from skuq.predictive._class_calibration import SMALLEST_PROBABILITY, scaled_probabilities
from skuq.predictive._online_weights import remember, update_weights

# Rows after which the weight of a truth has fallen to 1 / e. The last rate does not move: it is the
# calibration as it was.
MEMORIES = np.array([10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0, np.inf])
_MOVES = np.isfinite(MEMORIES)[:, None]
# Precision of the prior, in rows: with few truths the slope stays near 1 and biases near 0.
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
    >>> from skuq.predictive import LogitTracker
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
        k, d = len(MEMORIES), 1 + n_classes
        parameters = np.tile(np.r_[1.0, np.zeros(n_classes)], (k, 1))
        return cls(parameters, np.zeros((k, d, d)), np.full(k, 1 / k), 0, np.empty((0, 2)))

    def probabilities(self, proba: np.ndarray) -> np.ndarray:
        """Correct probabilities (T, C) according to the truths seen so far."""
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
            weights=update_weights(self.weights, losses, _SHARE, 1 / len(MEMORIES)),
            recent=remember(self.recent, seen),
            n_rows=self.n_rows + n,
        )

    def _step(self, given: np.ndarray, codes: np.ndarray) -> LogitTracker:
        """Learn from several rows with probabilities (b, C) in one Newton step."""
        b, n_classes = given.shape
        logits, proba = _logits(given), self._each(given)  # (b, C), (k, b, C)
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
        kept = (1 - 1 / MEMORIES) ** b
        precision = np.r_[_SLOPE_PRECISION, np.full(n_classes, _BIAS_PRECISION)]
        prior = np.r_[1.0, np.zeros(n_classes)]
        curvature = kept[:, None, None] * self.curvature + hessian
        # The prior is forgotten like the rows, and what is lost of it is added again: its
        # precision stays the same.
        gradient = gradient + (1 - kept)[:, None] * precision * (self.parameters - prior)
        step = np.linalg.solve(curvature + np.diag(precision), gradient[..., None])[..., 0]
        return replace(
            self,
            parameters=self.parameters - _MOVES * step,
            curvature=curvature,
        )

    def drift(self) -> ClassDrift:
        """Describe the deviation from the calibration."""
        without, with_ = self.recent.mean(axis=0) if len(self.recent) else (np.nan, np.nan)
        # Adding a number to all biases changes no probability: report those with mean 0.
        slope, *bias = self.weights @ self.parameters
        return ClassDrift(
            self.n_rows, float(with_), float(without), float(slope), np.array(bias) - np.mean(bias)
        )


def _logits(proba: np.ndarray) -> np.ndarray:
    """Compute logarithms of probabilities (T, C), with mean 0 over classes."""
    logs = np.log(np.maximum(proba, SMALLEST_PROBABILITY))
    return logs - logs.mean(axis=1, keepdims=True)
