"""Calibrated estimators: another estimator's distribution, corrected by what folds have shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import class_codes
from skuq._nested import NoUncertaintyError, class_probabilities, innermost, predict_normal
from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq.fitted._grouping import Grouping
from skuq.fitted._protocol import refuse_keras
from skuq.predictive import (
    CategoricalMixture,
    ConformalMixture,
    EpistemicNormal,
    GaussianMixture,
    Mixture,
    RecalibratedMixture,
)
from skuq.predictive._class_calibration import scaled_probabilities
from skuq.tables import ForeignInputs

SMALLEST_STD = 1e-150  # where a model claims to be certain; its square is not yet 0
_COVERAGES = np.concatenate([np.arange(1, 19) / 20, [0.925, 0.95, 0.975, 0.99, 0.995]])


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

    @property
    def whole(self) -> Calibration:
        """The calibration that was learnt from all rows: this one."""
        return self

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        return self.apply(regressor_distribution(estimator, X, self.method), X)

    def apply(self, mixture: Any, X: Any, new_weight: np.ndarray | None = None) -> Any:
        """Calibrate predictions; `new_weight` (n,) is relative to a mean calibration row."""
        scaled = mixture.scaled(self.scale)
        if self.method == "isotonic":
            return RecalibratedMixture(scaled, *self.levels)
        if self.method == "conformal":
            return ConformalMixture(scaled, self.scores, self.coverage, new_weight)
        return scaled

    def smooth(self, mixture: Any, X: Any) -> Any:
        """Calibrate predictions to a distribution with a density and quantiles at all levels.

        The same as `apply` but with "conformal", which gives normals whose levels are mapped so
        that their intervals are the conformal ones.
        """
        calibrated = self.apply(mixture, X)
        if self.method != "conformal":
            return calibrated
        base = calibrated.base
        normal = EpistemicNormal(
            base.mean, np.sqrt(base.aleatoric_variance), np.sqrt(base.epistemic_variance)
        )
        scores, reach = (a.reshape(len(a), -1) for a in (self.scores, self.coverage))
        known = _COVERAGES[reach[-1].min() >= _COVERAGES]
        radii = np.stack(
            [own[np.searchsorted(limit, known - 1e-9)] for own, limit in zip(scores.T, reach.T)],
            axis=1,
        )
        upper = special.ndtr(radii)  # (q, 1 or m)
        ends = np.zeros((1, upper.shape[1]))
        predicted = np.concatenate([ends, 1 - upper[::-1], ends + 0.5, upper, ends + 1])
        half = known / 2
        observed = np.concatenate([[0], 0.5 - half[::-1], [0.5], 0.5 + half, [1]])
        # Strictly increasing where scores are equal: a thousandth of the identity.
        predicted = 0.999 * predicted + 0.001 * observed[:, None]
        if self.scores.ndim == 1:
            return RecalibratedMixture(normal, predicted[:, 0], observed)
        observed = np.broadcast_to(observed[:, None], predicted.shape)
        return RecalibratedMixture(normal, predicted, observed)


@saved_as("fitted.ClassCalibration")
@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """What a classifier's averaged probabilities become.

    Attributes
    ----------
    slopes, biases : ndarray of shape (n_classes,) or (n_groups + 1, n_classes)
        The logarithm of each class' probability is multiplied by its slope, and its bias added.
        With groups the last row is for rows of no known group.
    classes : ndarray of shape (n_classes,)
    grouping : Grouping or None
    spread : float
        Factor of the members' differences from the average.
    """

    slopes: np.ndarray
    biases: np.ndarray
    classes: np.ndarray
    grouping: Grouping | None = None
    spread: float = 1.0

    __repr__ = record_repr

    @property
    def whole(self) -> ClassCalibration:
        """The calibration that holds what was learnt from all rows: this one."""
        return self

    @property
    def temperature(self) -> float:
        """One over the mean slope of all rows, which stands after those of groups."""
        return float(1 / np.atleast_2d(self.slopes)[-1].mean())

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        return self.apply(classifier_distribution(estimator, X, self.classes), X)

    def apply(self, mixture: CategoricalMixture, X: Any) -> CategoricalMixture:
        """Calibrate predictions."""
        slopes, biases = self.slopes, self.biases
        if self.grouping is not None:
            codes = self.grouping.codes(X, log_entropy(mixture))
            slopes, biases = slopes[codes], biases[codes]
        calibrated = scaled_probabilities(mixture.mean, slopes, biases)
        return with_mean(mixture, calibrated, self.spread)


def log_entropy(mixture: CategoricalMixture) -> np.ndarray:
    """Logarithm (n,) of the entropy of the averaged probabilities."""
    entropy = special.entr(mixture.mean).sum(axis=1)
    logs: np.ndarray = np.log(np.maximum(entropy, SMALLEST_STD))
    return logs


def with_mean(
    mixture: CategoricalMixture, mean: np.ndarray, spread: float = 1.0
) -> CategoricalMixture:
    """Move members so that their average is `mean` (n, C).

    They keep their differences from the average, times `spread`, shortened where a probability
    would be negative.
    """
    differences = spread * (mixture.proba - mixture.mean)
    room = np.ones_like(differences)
    np.divide(mean, -differences, out=room, where=differences < 0)
    share = np.minimum(room.min(axis=(0, 2)), 1.0)[:, None]
    proba = np.maximum(mean + share * differences, 0)
    return CategoricalMixture(proba / proba.sum(axis=2, keepdims=True), mixture.weights)


@saved_as("fitted.FittedCalibrated")
@dataclass(frozen=True, eq=False)
class FittedCalibrated:
    """A fitted estimator of any kind and its calibration.

    Attributes
    ----------
    estimator : estimator
    calibration : Calibration or ClassCalibration, or one made of these
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
