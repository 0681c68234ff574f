"""Calibrate the distributions that any fitted estimator predicts."""

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from skuq import _params
from skuq.files._registry import saved_record
from skuq.fitted._ensemble import Fitted
from skuq.predictive import CategoricalMixture, GaussianMixture, Mixture, TwoPieceNormal
from skuq.predictive._calibration import SMALLEST_UNCERTAINTY
from skuq.predictive._distributions import conformal_quantile, scaled_probabilities
from skuq.predictive._normals import shift
from skuq.tables._columns import frame_to_pandas, is_frame
from skuq.tables._inputs import ForeignInputs


@saved_record("fitted.Recalibration", brief=True)
class Recalibration:
    """Calibration of the predictions of any regressor.

    Attributes
    ----------
    scale : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations.
    scores : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    coverage : ndarray of the shape of `scores`, or None
        Least probability that the error of a new row is at most the score.
    correlation : tuple of tuple of float
        Correlation matrix of the outputs, as in `Calibration`. Empty leaves that of the regressor.
    """

    scale: Any
    scores: Any = None
    coverage: Any = None
    correlation: tuple[tuple[float, ...], ...] = ()

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        return self.apply(regressor_distribution(estimator, X, np.shape(self.scale)), X)

    def apply(self, mixture: Mixture | TwoPieceNormal, X: Any) -> Any:
        """Calibrate predictions for the rows X."""
        scaled = mixture.scaled(self.scale)
        return scaled.with_correlation(self.correlation) if self.correlation else scaled

    def quantile(self, distribution: Any, probability: Any) -> np.ndarray:
        """Compute quantiles of calibrated predictions: by the scores, if there are any."""
        if self.scores is None:
            return distribution.quantile(probability)
        return conformal_quantile(distribution, self.scores, self.coverage, probability)


@saved_record("fitted.ConditionalRecalibration", brief=True)
class ConditionalRecalibration(Recalibration):
    """Calibration of a regressor by a distribution of its errors that depends on the row.

    Attributes
    ----------
    scale : float or ndarray of shape (n_outputs,)
        Factor that would make one distribution of all rows' errors; it is not used.
    errors : regressor
        Fitted regressor, which predicts the distribution of the errors from `inputs_of_errors`.
    smallest_std : float or ndarray of shape (m,)
        Smallest standard deviation. Errors of a model that is exact are those of rounding, and
        may be smaller than the distance between the floats near y.
    """

    errors: Any = None
    smallest_std: Any = 0.0

    def apply(self, mixture: Mixture | TwoPieceNormal, X: Any) -> Any:
        """Predict the distribution of each row's error, about the mean of the prediction.

        The mean stays. The error's predicted mean widens the distribution instead, so that its
        standard deviation is the root mean square of the predicted error, or `smallest_std`.
        """
        errors = self.errors.predict_distribution(inputs_of_errors(X, mixture.mean, mixture.std))
        root_mean_square = np.hypot(errors.std, errors.mean)
        wider = errors.scaled(np.maximum(root_mean_square, self.smallest_std) / errors.std)
        return shift(wider, mixture.mean - errors.mean)


def inputs_of_errors(X: Any, mean: np.ndarray, std: np.ndarray) -> Any:
    """Add the predicted means and standard deviations (n[, m]) to the columns of X.

    Raise ValueError if X is no table.
    """
    if np.ndim(X) != 2 or hasattr(X, "toarray"):
        raise ValueError(
            'method="conditional" needs a table X of numbers or categories, of shape '
            f"(n, n_features). Got a {type(X).__name__} of shape {np.shape(X)}."
        )
    columns = np.column_stack([mean, std])
    if not is_frame(X):
        X = np.asarray(X)
        # NumPy would make texts of the numbers beside texts.
        return np.column_stack([X if X.dtype.kind in "biuf" else X.astype(object), columns])
    X = frame_to_pandas(X)
    X = X.set_axis([str(column) for column in X.columns], axis=1)
    name = max(X.columns, key=len) + "_predicted"  # which X does not have
    added = pd.DataFrame(columns, X.index, [f"{name}{k}" for k in range(columns.shape[1])])
    return pd.concat([X, added], axis=1)


@saved_record("fitted.ClassRecalibration", brief=True)
class ClassRecalibration:
    """Calibration of a classifier's averaged probabilities.

    Attributes
    ----------
    temperature : float
        Divisor of the logarithms of probabilities.
    classes : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    """

    temperature: float
    classes: np.ndarray

    def distribution(self, estimator: Any, X: Any) -> CategoricalMixture:
        """Predict with the estimator, and calibrate.

        Members keep their differences from the average, shortened in rows in which a probability
        would be negative.
        """
        mixture = classifier_distribution(estimator, X, self.classes)
        mean = scaled_probabilities(mixture.mean, 1 / self.temperature)
        differences = mixture.proba - mixture.mean  # (K, n, C)
        # Largest factor of each difference that leaves its probability non-negative.
        room = np.ones_like(differences)
        np.divide(mean, -differences, out=room, where=differences < 0)
        share = np.minimum(room.min(axis=(0, 2)), 1.0)[:, None]  # (n, 1)
        proba = np.maximum(mean + share * differences, 0)
        return CategoricalMixture(proba / proba.sum(axis=2, keepdims=True), mixture.weights)


_NUMBERS_OF_OTHERS = 16  # numbers of a row's prediction by an estimator that is not skuq's


@saved_record("fitted.FittedCalibrated", brief=True)
class FittedCalibrated(Fitted):
    """Fitted estimator of any kind with its calibration.

    Attributes
    ----------
    estimator : estimator
        Fitted regressor or classifier.
    calibration : Recalibration or ClassRecalibration
        Calibration of its predictions.
    """

    estimator: Any
    calibration: Any

    inputs: ClassVar[ForeignInputs] = ForeignInputs()
    no_keras: ClassVar[str] = "the calibrated estimator may be anything"

    def distribution(self, X: Any) -> Any:
        """Predict the calibrated distribution of each row."""
        return self.calibration.distribution(self.estimator, X)

    def quantile(self, distribution: Any, probability: Any) -> np.ndarray:
        """Compute quantiles by the rule of the calibration."""
        return self.calibration.quantile(distribution, probability)

    def n_numbers(self) -> int:
        """Count the numbers of the estimator's raw prediction of one row."""
        fitted = getattr(_params.unwrap_estimator(self.estimator)[0], "fitted_", None)
        # Other estimators return little, whatever they hold meanwhile.
        return fitted.n_numbers() if isinstance(fitted, Fitted) else _NUMBERS_OF_OTHERS

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's prediction: () or (n_outputs,)."""
        return np.shape(self.calibration.scale)


def regressor_distribution(estimator: Any, X: Any, output_shape: tuple[int, ...]) -> Any:
    """Predict the distribution of any fitted regressor, before calibration.

    A regressor without uncertainty gets a standard deviation of 1 for all rows. Of a single output,
    which some regressors return as a column, `output_shape` is () or (1,). Raise TypeError for
    distributions that cannot be calibrated, and ValueError for NaN or inf.
    """
    model, X = _params.unwrap_estimator(estimator, X)
    if hasattr(model, "predict_distribution"):
        distribution = model.predict_distribution(X)
        if not isinstance(distribution, Mixture | TwoPieceNormal):
            raise TypeError(
                f"`estimator` must predict a Mixture or a TwoPieceNormal. {type(model).__name__} "
                f"predicts a {type(distribution).__name__}."
            )
        return distribution
    try:
        mean, std = _params.predict_normal(model, X)
    except _params.NoUncertaintyError:
        mean = np.asarray(model.predict(X), dtype=float)
        std = np.ones_like(mean)  # calibration learns the scale of the errors
    if std.shape != mean.shape:
        raise ValueError(
            "`estimator` must predict a mean and a standard deviation of one shape. "
            f"{model!r} gave {mean.shape} and {std.shape}."
        )
    if mean.size == len(mean):
        mean, std = (values.reshape(-1, *output_shape) for values in (mean, std))
    if mean.shape[1:] != output_shape:
        raise ValueError(
            f"`estimator` must predict rows of the shape {output_shape} of y's. {model!r} gave "
            f"{mean.shape[1:]}."
        )
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise ValueError(f"`estimator` must predict finite numbers. {model!r} gave others.")
    return GaussianMixture(mean[None], np.maximum(std, SMALLEST_UNCERTAINTY)[None])


def classifier_distribution(estimator: Any, X: Any, classes: np.ndarray) -> CategoricalMixture:
    """Predict the distribution over `classes` with any fitted classifier, before calibration.

    Raise TypeError if the classifier predicts no probabilities.
    """
    model, X = _params.unwrap_estimator(estimator, X)
    if hasattr(model, "predict_distribution"):
        mixture = model.predict_distribution(X)
        proba = np.zeros((*mixture.proba.shape[:2], len(classes)))
        # A fold may lack a class.
        proba[..., _params.class_codes(model.classes_, classes)] = mixture.proba
        return CategoricalMixture(proba, mixture.weights)
    if not hasattr(model, "predict_proba"):
        raise TypeError(
            "`estimator` must have predict_distribution or predict_proba. "
            f"{type(model).__name__} has neither: wrap it, for example in scikit-learn's "
            "CalibratedClassifierCV."
        )
    return CategoricalMixture(_params.class_probabilities(model, X, classes)[None])


def without_classes(mixture: CategoricalMixture, lost: np.ndarray) -> CategoricalMixture:
    """Condition predictions on the classes that are not `lost` (C,)."""
    if not lost.any():
        return mixture
    proba = np.where(lost, 0.0, mixture.proba)
    total = proba.sum(axis=2, keepdims=True)
    # If a member believed in lost classes alone, nothing is known of the others.
    uniform = np.broadcast_to(~lost / np.sum(~lost), proba.shape).copy()
    return CategoricalMixture(
        np.divide(proba, total, out=uniform, where=total > 0), mixture.weights
    )
