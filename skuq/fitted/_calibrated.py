"""Calibrated estimators: another estimator's distribution, corrected by what folds have shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._checks import class_codes
from skuq._nested import NoUncertaintyError, class_probabilities, innermost, predict_normal
from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq.fitted._protocol import refuse_keras
from skuq.predictive import (
    CategoricalMixture,
    ConformalMixture,
    GaussianMixture,
    Mixture,
    RecalibratedMixture,
)
from skuq.predictive._calibration import tempered
from skuq.tables import ForeignInputs

SMALLEST_STD = 1e-150  # where a model claims to be certain; its square is not yet 0


@saved_as("fitted.Calibration")
@dataclass(frozen=True, eq=False)
class Calibration:
    """What a regressor's standard deviations and levels become.

    Attributes
    ----------
    method : {"scale", "isotonic", "conformal"}
    scale : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations.
    levels : tuple of two ndarray, or None
        Of "isotonic": predicted levels, and observed ones.
    scores : ndarray of shape (n,) or (n, n_outputs), or None
        Of "conformal": sorted absolute errors out of fold, in calibrated stds.
    coverage : ndarray of the shape of `scores`, or None
        Share of new rows whose error is at most the score.
    """

    method: str
    scale: Any
    levels: Any = None
    scores: Any = None
    coverage: Any = None

    __repr__ = record_repr

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        scaled = regressor_distribution(estimator, X, self.method).scaled(self.scale)
        if self.method == "isotonic":
            return RecalibratedMixture(scaled, *self.levels)
        if self.method == "conformal":
            return ConformalMixture(scaled, self.scores, self.coverage)
        return scaled


@saved_as("fitted.Temperature")
@dataclass(frozen=True, eq=False)
class Temperature:
    """What a classifier's averaged probabilities become.

    Attributes
    ----------
    temperature : float
    classes : ndarray of shape (n_classes,)
    """

    temperature: float
    classes: np.ndarray

    __repr__ = record_repr

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate.

        Members keep their differences from the average, shortened where a probability would be
        negative.
        """
        mixture = classifier_distribution(estimator, X, self.classes)
        mean = mixture.mean
        calibrated = tempered(mean, self.temperature)
        differences = mixture.proba - mean
        room = np.ones_like(differences)
        np.divide(calibrated, -differences, out=room, where=differences < 0)
        share = np.minimum(room.min(axis=(0, 2)), 1.0)[:, None]
        proba = np.maximum(calibrated + share * differences, 0)
        return CategoricalMixture(proba / proba.sum(axis=2, keepdims=True), mixture.weights)


@saved_as("fitted.FittedCalibrated")
@dataclass(frozen=True, eq=False)
class FittedCalibrated:
    """A fitted estimator of any kind and its calibration.

    Attributes
    ----------
    estimator : estimator
    calibration : Calibration or Temperature
    """

    estimator: Any
    calibration: Any

    __repr__ = record_repr

    @property
    def inputs(self) -> ForeignInputs:
        """X is handed on as it is."""
        return ForeignInputs()

    def distribution(self, X: Any) -> Any:
        """Predict the calibrated distribution of each row."""
        return self.calibration.distribution(self.estimator, X)

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw (n[, m], n_samples) from the calibrated distribution."""
        return self.distribution(X).sample(n_samples, rng)

    def output_shape(self) -> tuple[int, ...]:
        """Shape of one row's prediction as the user has it."""
        return np.shape(self.calibration.scale)

    def to_keras(self, epistemic_ddof: int = 0) -> Any:
        """Refuse: the estimator may be anything."""
        refuse_keras("the calibrated estimator may be anything")


def regressor_distribution(estimator: Any, X: Any, method: str) -> Any:
    """Predict the distribution of any fitted regressor, before calibration.

    A regressor that predicts points only gets a standard deviation of 1 for all rows.

    Raises TypeError if the method cannot calibrate what it predicts, and ValueError for NaN or inf.
    """
    model, X = innermost(estimator, X)
    if hasattr(model, "predict_distribution"):
        distribution = model.predict_distribution(X)
        kind = Mixture if method == "scale" else GaussianMixture
        if not isinstance(distribution, kind):
            raise TypeError(
                f"With method={method!r} `estimator` must predict a {kind.__name__}. "
                f"{type(model).__name__} predicts a {type(distribution).__name__}, which "
                'method="scale" may calibrate.'
            )
        return distribution
    try:
        mean, std = predict_normal(model, X)
    except NoUncertaintyError:
        mean = np.asarray(model.predict(X), dtype=float)
        std = np.ones_like(mean)  # the scale is learnt from the errors
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise ValueError(f"`estimator` must predict finite numbers. {model!r} gave others.")
    return GaussianMixture(mean[None], np.maximum(std, SMALLEST_STD)[None])


def classifier_distribution(estimator: Any, X: Any, classes: np.ndarray) -> CategoricalMixture:
    """Predict the distribution over `classes` of any fitted classifier.

    Raises TypeError if it predicts no probabilities.
    """
    model, X = innermost(estimator, X)
    if hasattr(model, "predict_distribution"):
        mixture = model.predict_distribution(X)
        proba = np.zeros((*mixture.proba.shape[:2], len(classes)))
        proba[..., class_codes(model.classes_, classes)] = mixture.proba  # a fold may lack a class
        return CategoricalMixture(proba, mixture.weights)
    if not hasattr(model, "predict_proba"):
        raise TypeError(
            "`estimator` must have predict_distribution or predict_proba. "
            f"{type(model).__name__} has neither."
        )
    return CategoricalMixture(class_probabilities(model, X, classes)[None])
