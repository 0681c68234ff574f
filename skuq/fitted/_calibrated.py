"""Calibrate the distributions that any fitted estimator predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import class_codes
from skuq._nested import NoUncertaintyError, class_probabilities, predict_normal, unwrap_estimator
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
    TwoPieceNormal,
)
from skuq.predictive._class_calibration import scaled_probabilities
from skuq.tables import ForeignInputs

SMALLEST_UNCERTAINTY = 1e-150  # of a model that claims to be certain; its square is not yet 0
_COVERAGES = np.concatenate([np.arange(1, 19) / 20, [0.925, 0.95, 0.975, 0.99, 0.995]])


@saved_as("fitted.Calibration")
@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of a regressor's predictions.

    Attributes
    ----------
    method : {"scale", "isotonic", "conformal"}
        See `CalibratedUncertaintyRegressor`.
    scale : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations.
    levels : tuple of two ndarray, or None
        With "isotonic", predicted levels and the observed levels that replace them.
    scores : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    coverage : ndarray of the shape of `scores`, or None
        Least probability that the error of a new row is at most the score.
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
        """Calibrate predictions.

        Parameters
        ----------
        mixture : Mixture or TwoPieceNormal
            Predictions for n rows.
        X : array-like of shape (n, n_features)
            The rows, by which some calibrations find groups and weights.
        new_weight : ndarray of shape (n,), optional
            Weights of the rows under covariate shift; the average calibration row has 1.
        """
        scaled = mixture.scaled(self.scale)
        if self.method == "isotonic":
            return RecalibratedMixture(scaled, *self.levels)
        if self.method == "conformal":
            return ConformalMixture(scaled, self.scores, self.coverage, new_weight)
        return scaled

    def smooth(self, mixture: Any, X: Any) -> Any:
        """Calibrate predictions to a distribution with a density and quantiles at all levels.

        With "scale" and "isotonic" this is `apply`. With "conformal" it is a normal with mapped
        levels, whose intervals are the conformal ones.
        """
        calibrated = self.apply(mixture, X)
        if self.method != "conformal":
            return calibrated
        base = calibrated.base
        normal = EpistemicNormal(
            base.mean, np.sqrt(base.aleatoric_variance), np.sqrt(base.epistemic_variance)
        )
        scores, reach = (a.reshape(len(a), -1) for a in (self.scores, self.coverage))
        known = _COVERAGES[reach[-1].min() >= _COVERAGES]  # (q,)
        radii = np.stack(
            [
                scores_of_output[np.searchsorted(limit, known - 1e-9)]
                for scores_of_output, limit in zip(scores.T, reach.T)
            ],
            axis=1,
        )
        # A conformal interval of r stds ends at the levels ndtr(-r) and ndtr(r) of the normal.
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
    """Calibration of a classifier's averaged probabilities.

    Attributes
    ----------
    slopes, biases : ndarray of shape (n_classes,) or (n_groups + 1, n_classes)
        The logarithm of each class' probability is multiplied by its slope, and its bias is added.
        With groups, the last row is that of all groups together.
    classes : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    grouping : Grouping or None
        Groups of rows that are calibrated separately.
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
        """Calibrate predictions for the rows X."""
        slopes, biases = self.slopes, self.biases
        if self.grouping is not None:
            codes = self.grouping.codes(X, log_entropy(mixture))
            slopes, biases = slopes[codes], biases[codes]
        calibrated = scaled_probabilities(mixture.mean, slopes, biases)
        return with_mean(mixture, calibrated, self.spread)


def log_entropy(mixture: CategoricalMixture) -> np.ndarray:
    """Compute the logarithm (n,) of the entropy of the averaged probabilities."""
    entropy = special.entr(mixture.mean).sum(axis=1)
    logs: np.ndarray = np.log(np.maximum(entropy, SMALLEST_UNCERTAINTY))
    return logs


def with_mean(
    mixture: CategoricalMixture, mean: np.ndarray, spread: float = 1.0
) -> CategoricalMixture:
    """Move the members of a mixture so that their average is `mean` (n, C).

    Their differences from the average are multiplied by `spread`, and shortened in rows in which a
    probability would be negative.
    """
    differences = spread * (mixture.proba - mixture.mean)  # (K, n, C)
    # Largest factor of each difference that leaves its probability non-negative.
    room = np.ones_like(differences)
    np.divide(mean, -differences, out=room, where=differences < 0)
    share = np.minimum(room.min(axis=(0, 2)), 1.0)[:, None]  # (n, 1)
    proba = np.maximum(mean + share * differences, 0)
    return CategoricalMixture(proba / proba.sum(axis=2, keepdims=True), mixture.weights)


@saved_as("fitted.FittedCalibrated")
@dataclass(frozen=True, eq=False)
class FittedCalibrated:
    """Fitted estimator of any kind with its calibration.

    Attributes
    ----------
    estimator : estimator
        Fitted regressor or classifier.
    calibration : Calibration, ClassCalibration, or a calibration that contains one
        Calibration of its predictions.
    """

    estimator: Any
    calibration: Any

    __repr__ = record_repr

    @property
    def inputs(self) -> ForeignInputs:
        """Inputs that are passed to the estimator as they are."""
        return ForeignInputs()

    def distribution(self, X: Any) -> Any:
        """Predict the calibrated distribution of each row."""
        return self.calibration.distribution(self.estimator, X)

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw (n[, m], n_samples) from the calibrated distribution."""
        return self.distribution(X).sample(n_samples, rng)

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's prediction: () or (n_outputs,)."""
        return np.shape(self.calibration.scale)

    def to_keras(self, ddof: int = 0) -> Any:
        """Raise ValueError, because the estimator may be of any kind."""
        refuse_keras("the calibrated estimator may be anything")


def regressor_distribution(estimator: Any, X: Any, method: str) -> Any:
    """Predict the distribution of any fitted regressor, before calibration.

    A regressor without uncertainty gets a standard deviation of 1 for all rows. Raise TypeError if
    the method cannot calibrate what the regressor predicts, and ValueError for NaN or inf.
    """
    model, X = unwrap_estimator(estimator, X)
    if hasattr(model, "predict_distribution"):
        distribution = model.predict_distribution(X)
        kinds = (Mixture, TwoPieceNormal) if method == "scale" else (GaussianMixture,)
        if not isinstance(distribution, kinds):
            advice = "" if method == "scale" else ' Use method="scale", which takes more kinds.'
            raise TypeError(
                f"With method={method!r} `estimator` must predict a "
                f"{' or a '.join(kind.__name__ for kind in kinds)}. {type(model).__name__} "
                f"predicts a {type(distribution).__name__}.{advice}"
            )
        return distribution
    try:
        mean, std = predict_normal(model, X)
    except NoUncertaintyError:
        mean = np.asarray(model.predict(X), dtype=float)
        std = np.ones_like(mean)  # calibration learns the scale of the errors
    if std.shape != mean.shape:
        raise ValueError(
            "`estimator` must predict a mean and a standard deviation of one shape. "
            f"{model!r} gave {mean.shape} and {std.shape}."
        )
    if mean.ndim == 2 and mean.shape[1] == 1:  # some regressors return a column
        mean, std = mean[:, 0], std[:, 0]
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise ValueError(f"`estimator` must predict finite numbers. {model!r} gave others.")
    return GaussianMixture(mean[None], np.maximum(std, SMALLEST_UNCERTAINTY)[None])


def classifier_distribution(estimator: Any, X: Any, classes: np.ndarray) -> CategoricalMixture:
    """Predict the distribution over `classes` with any fitted classifier, before calibration.

    Raise TypeError if the classifier predicts no probabilities.
    """
    model, X = unwrap_estimator(estimator, X)
    if hasattr(model, "predict_distribution"):
        mixture = model.predict_distribution(X)
        proba = np.zeros((*mixture.proba.shape[:2], len(classes)))
        proba[..., class_codes(model.classes_, classes)] = mixture.proba  # a fold may lack a class
        return CategoricalMixture(proba, mixture.weights)
    if not hasattr(model, "predict_proba"):
        raise TypeError(
            "`estimator` must have predict_distribution or predict_proba. "
            f"{type(model).__name__} has neither: wrap it, for example in scikit-learn's "
            "CalibratedClassifierCV."
        )
    return CategoricalMixture(class_probabilities(model, X, classes)[None])
