"""Update calibrations with a stream of truths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq._warnings import warn_user
from skuq.exceptions import CalibrationWarning
from skuq.fitted._calibrated import (
    Calibration,
    ClassCalibration,
    regressor_distribution,
    with_mean,
)
from skuq.predictive import (
    AdaptedDistribution,
    CalibrationDrift,
    CategoricalMixture,
    ClassDrift,
    LogitTracker,
    QuantileTracker,
)
from skuq.predictive._adapted import normal_scores
from skuq.predictive._tracking import NOMINAL

_FAR = 1000  # predicted standard deviations beyond which a truth gives a warning


@saved_as("fitted.AdaptedCalibration")
@dataclass(frozen=True, eq=False)
class AdaptedCalibration:
    """Calibration with corrections learnt from later truths.

    Attributes
    ----------
    start : Calibration, GroupedCalibration or WeightedCalibration
        Calibration that was learnt in `fit`.
    tracker : QuantileTracker
        Corrections learnt from later truths.
    """

    start: Any
    tracker: QuantileTracker

    __repr__ = record_repr

    @property
    def whole(self) -> Calibration:
        """The calibration that was learnt from all rows in `fit`."""
        whole: Calibration = self.start.whole
        return whole

    @property
    def scale(self) -> Any:
        """Factor of the standard deviations that was learnt in `fit`."""
        return self.start.scale

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        mixture = regressor_distribution(estimator, X, self.start.method)
        # Scores can be mapped only where the cdf is continuous, which conformal steps are not.
        base = self.start.smooth(mixture, X)
        quantiles = self.tracker.quantiles
        single = base.mean.ndim == 1
        return AdaptedDistribution(base, NOMINAL, quantiles[:, 0] if single else quantiles)

    @property
    def drift(self) -> CalibrationDrift:
        """Deviation of the calibration of `fit` from the truths that came since."""
        return self.tracker.drift(np.shape(self.scale))

    def updated(self, estimator: Any, X: Any, y: np.ndarray) -> AdaptedCalibration:
        """Learn from truths (n[, m]), in the order of their arrival."""
        mixture = regressor_distribution(estimator, X, self.start.method)
        # Under the calibration of `fit`: the tracked quantiles are those of its scores.
        scores = normal_scores(self.start.smooth(mixture, X), y)
        furthest = abs(scores).max()
        if furthest > _FAR:
            warn_user(
                f"A truth lies {furthest:.2g} predicted stds away from its prediction. "
                "Intervals follow changes that large only slowly: `fit` again, on rows "
                "like these.",
                CalibrationWarning,
            )
        return AdaptedCalibration(self.start, self.tracker.updated(scores.reshape(len(y), -1)))


@saved_as("fitted.AdaptedClassCalibration")
@dataclass(frozen=True, eq=False)
class AdaptedClassCalibration:
    """Calibration of a classifier with corrections learnt from later labels.

    Attributes
    ----------
    start : ClassCalibration
        Calibration that was learnt in `fit`.
    tracker : LogitTracker
        Corrections learnt from later labels.
    """

    start: ClassCalibration
    tracker: LogitTracker

    __repr__ = record_repr

    @property
    def whole(self) -> ClassCalibration:
        """The calibration that was learnt in `fit`."""
        return self.start

    def distribution(self, estimator: Any, X: Any) -> CategoricalMixture:
        """Predict with the estimator, and calibrate."""
        calibrated = self.start.distribution(estimator, X)
        return with_mean(calibrated, self.tracker.probabilities(calibrated.mean))

    @property
    def drift(self) -> ClassDrift:
        """Deviation of the calibration of `fit` from the labels that came since."""
        return self.tracker.drift()

    def updated(self, estimator: Any, X: Any, codes: np.ndarray) -> AdaptedClassCalibration:
        """Learn from class codes (n,), in the order of their arrival."""
        proba = self.start.distribution(estimator, X).mean
        return AdaptedClassCalibration(self.start, self.tracker.updated(proba, codes))


def adapt(calibration: Any) -> AdaptedCalibration | AdaptedClassCalibration:
    """Make a calibration one that can be updated with truths, if it is not."""
    if isinstance(calibration, AdaptedCalibration | AdaptedClassCalibration):
        return calibration
    if isinstance(calibration, ClassCalibration):
        tracker = LogitTracker.start(len(calibration.classes))
        return AdaptedClassCalibration(calibration, tracker)
    return AdaptedCalibration(calibration, QuantileTracker.start(np.size(calibration.scale)))
