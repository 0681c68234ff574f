"""Calibrations that follow a stream of truths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq._warnings import warn_user
from skuq.exceptions import CalibrationWarning
from skuq.fitted._calibrated import ClassCalibration, regressor_distribution, with_mean
from skuq.predictive import AdaptedDistribution, CategoricalMixture
from skuq.predictive._adapted import normal_scores
from skuq.predictive._class_tracking import LogitTracker
from skuq.predictive._tracking import NOMINAL, QuantileTracker

_FAR = 1000  # standard deviations


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
    def scale(self) -> Any:
        """Factor of the standard deviations that was learnt in `fit`."""
        return self.start.scale

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        mixture = regressor_distribution(estimator, X, self.start.method)
        base = self.start.smooth(mixture, X)
        quantiles = self.tracker.quantiles
        single = base.mean.ndim == 1
        return AdaptedDistribution(base, NOMINAL, quantiles[:, 0] if single else quantiles)

    def learnt_from(self, estimator: Any, X: Any, y: Any) -> AdaptedCalibration:
        """Learn from truths (n[, m]) in the order of their arrival."""
        mixture = regressor_distribution(estimator, X, self.start.method)
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

    def distribution(self, estimator: Any, X: Any) -> CategoricalMixture:
        """Predict with the estimator, and calibrate."""
        calibrated = self.start.distribution(estimator, X)
        return with_mean(calibrated, self.tracker.probabilities(calibrated.mean))

    def learnt_from(self, estimator: Any, X: Any, codes: Any) -> AdaptedClassCalibration:
        """Learn from the classes' codes (n,) in the order of their arrival."""
        proba = self.start.distribution(estimator, X).mean
        return AdaptedClassCalibration(self.start, self.tracker.updated(proba, codes))
