"""Calibrate the distributions that any fitted estimator predicts.

Calibrations may differ between groups of rows, and can be updated with a stream of observed values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy import special

from skuq._utils._checks import (
    NoUncertaintyError,
    class_codes,
    class_probabilities,
    fill_masked,
    predict_normal,
    unwrap_estimator,
)
from skuq._utils._messages import warn_user
from skuq._utils._records import record_repr, saved_as
from skuq.exceptions import CalibrationWarning
from skuq.fitted._ensemble import Fitted
from skuq.predictive import (
    AdaptedDistribution,
    CalibrationDrift,
    CategoricalMixture,
    ClassDrift,
    ConformalMixture,
    EpistemicNormal,
    GaussianMixture,
    Mixture,
    NestedGaussianMixture,
    RecalibratedMixture,
    TransformedMixture,
    TwoPieceNormal,
)
from skuq.predictive._categorical import scaled_probabilities
from skuq.predictive._mapped import normal_scores
from skuq.predictive._parametric import scale_epistemic, shift
from skuq.predictive._tracking import NOMINAL, LogitTracker, QuantileTracker
from skuq.tables._columns import column_names, frame_to_pandas, is_frame
from skuq.tables._inputs import ForeignInputs

UNCERTAINTY = "uncertainty"
_ROWS_OF_BIN = 50  # least average number of rows in a bin of the predicted uncertainty
_MOST_BINS = 10  # of predicted uncertainty


@saved_as("fitted.Grouping")
@dataclass(frozen=True, eq=False)
class Grouping:
    """Find the group of each row.

    Attributes
    ----------
    by : str, int or callable
        Column of X, function of X that gives labels (n,), or "uncertainty".
    labels : tuple
        Label of each group; for bins of the uncertainty the number of the bin.
    edges : ndarray of shape (n_groups - 1,)
        Inner edges of the bins, as logarithms; empty for labels.
    """

    by: Any
    labels: tuple[Hashable, ...]
    edges: np.ndarray

    __repr__ = record_repr

    @classmethod
    def learn(cls, by: Any, X: Any, log_uncertainty: np.ndarray) -> tuple[Grouping, np.ndarray]:
        """Find the groups of calibration rows.

        Parameters
        ----------
        by : str, int or callable
            See the class.
        X : array-like of shape (n, n_features)
            Calibration rows.
        log_uncertainty : ndarray of shape (n,)
            Logarithm of each row's predicted uncertainty.

        Returns
        -------
        grouping : Grouping
        codes : ndarray of int of shape (n,)
            Position of each row's group; -1 for rows without a label.

        Raises
        ------
        ValueError
            If `by` gives no usable labels.
        """
        if isinstance(by, str) and by == UNCERTAINTY and not _has_column(X, by):
            n_bins = int(np.clip(len(log_uncertainty) // _ROWS_OF_BIN, 1, _MOST_BINS))
            inner = np.arange(1, n_bins) / n_bins
            # If many rows have equal uncertainties, some edges are equal and there are fewer bins.
            edges = np.unique(np.quantile(log_uncertainty, inner, method="higher"))
            edges = edges[edges > log_uncertainty.min()]
            if n_bins > 1 and not len(edges):
                warn_user(
                    'group_by="uncertainty" finds a single group, since the estimator predicts the '
                    "same uncertainty for nearly all rows, as a point estimator does. Group by a "
                    "column or a function of X instead.",
                    CalibrationWarning,
                )
            grouping = cls(by, tuple(range(len(edges) + 1)), edges)
            return grouping, grouping.codes(X, log_uncertainty)
        keys = _labels(by, X, len(log_uncertainty))
        codes, labels = pd.factorize(keys, sort=False)
        if not len(labels):
            raise ValueError(f"`group_by` must give labels. All of {len(keys)} rows have none.")
        counts = np.bincount(codes[codes >= 0])
        if len(labels) > 2 and np.mean(counts == 1) > 0.5:
            raise ValueError(
                f"`group_by` must give labels that rows share. Got {len(labels)} labels for "
                f"{len(keys)} rows, {np.sum(counts == 1)} of them once only. Bin numbers by a "
                "function of X, such as lambda X: numpy.digitize(X[:, 0], edges)."
            )
        return cls(by, tuple(np.asarray(labels, dtype=object).tolist()), np.empty(0)), codes

    def codes(self, X: Any, log_uncertainty: np.ndarray) -> np.ndarray:
        """Find the position (n,) of each row's group; -1 if it has no known label."""
        if isinstance(self.by, str) and self.by == UNCERTAINTY and not _has_column(X, self.by):
            return np.searchsorted(self.edges, log_uncertainty, side="right")
        keys = _labels(self.by, X, len(log_uncertainty))
        code = {label: k for k, label in enumerate(self.labels)}
        # Look up each distinct label once, then map rows to groups.
        distinct, label_of = pd.factorize(keys)
        known = np.array([*(code.get(label, -1) for label in label_of), -1])
        codes = known[distinct]  # a missing label is -1, the last of `known`
        if (codes < 0).any():
            warn_user(
                f"{np.sum(codes < 0)} of {len(codes)} rows are of groups without calibration "
                "rows, and get the calibration of all rows.",
                CalibrationWarning,
            )
        return codes


def _has_column(X: Any, name: str) -> bool:
    names = column_names(X)
    return names is not None and name in names


def _labels(by: str | int | Callable[[Any], Any], X: Any, n_rows: int) -> np.ndarray:
    """Return the labels (n,) as objects; missing labels are None or NaN."""
    if callable(by):
        keys, source = by(X), "The function `group_by`"
    else:
        # A column, by name or by position.
        source, names = f"The column {by!r}", column_names(X)
        n_columns = np.shape(X)[1] if np.ndim(X) > 1 else 0
        if isinstance(by, str) and names is None:
            raise ValueError(
                "`group_by` must be the position of a column, since X has no names of "
                f"columns. Got {by!r}."
            )
        if isinstance(by, str) and not _has_column(X, by):
            raise ValueError(f"`group_by` must be a column of X, one of {list(names)}. Got {by!r}.")
        if hasattr(X, "toarray"):
            raise ValueError("`group_by` must be a function of X where X is sparse. Got a column.")
        if not (isinstance(by, str) or -n_columns <= by < n_columns):
            raise ValueError(f"`group_by` must be a column of X, which has {n_columns}. Got {by}.")
        if isinstance(by, str):
            keys = X[by]
        else:
            keys = X.iloc[:, by] if hasattr(X, "iloc") else np.asarray(X, dtype=object)[:, by]
    # Objects, as pandas would make numbers of some of them, such as dates.
    labels = pd.Series(np.asarray(fill_masked(keys), dtype=object).ravel(), dtype=object)
    if len(labels) != n_rows:
        raise ValueError(f"{source} must give one label a row, {n_rows}. Got {len(labels)}.")
    return labels.to_numpy()


SMALLEST_UNCERTAINTY = 1e-150  # of a model that claims to be certain; its square is not yet 0
_COVERAGES = np.concatenate([np.arange(1, 19) / 20, [0.925, 0.95, 0.975, 0.99, 0.995]])


class NumberCalibration:
    """Base of calibrations of regressors, which predict by `apply` of a subclass."""

    method: Any
    scale: Any

    #: ``apply(mixture, X)`` calibrates predictions for the rows X.
    apply: Callable[..., Any]

    def distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with the estimator, and calibrate."""
        predicted = regressor_distribution(estimator, X, self.method, np.shape(self.scale))
        return self.apply(predicted, X)


class DerivedCalibration(NumberCalibration):
    """Base of calibrations that refine one of all rows, `whole`: they have its method and scale."""

    whole: Any

    method = property(attrgetter("whole.method"), doc="Method of the calibration.")
    scale = property(attrgetter("whole.scale"), doc="Factor of the stds of all rows together.")


@saved_as("fitted.Calibration")
@dataclass(frozen=True, eq=False)
class Calibration(NumberCalibration):
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
    ratio : float
        Factor of the model's part of the standard deviation, beside `scale` of all of it.
    """

    method: str
    scale: Any
    levels: Any = None
    scores: Any = None
    coverage: Any = None
    ratio: float = 1.0

    __repr__ = record_repr

    whole = property(lambda self: self, doc="The calibration of all rows: this one.")

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
        if self.ratio != 1:
            mixture = scale_epistemic(mixture, self.ratio)
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
        parts = np.sqrt(base.aleatoric_variance), np.sqrt(base.epistemic_variance)
        normal = EpistemicNormal(base.mean, *parts, base.functions)
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


@saved_as("fitted.ConditionalCalibration")
@dataclass(frozen=True, eq=False)
class ConditionalCalibration(DerivedCalibration):
    """Calibration of a regressor by a distribution of its errors that depends on the row.

    Attributes
    ----------
    whole : Calibration
        Calibration by one factor, whose normals are the same for all rows of a point model.
    errors : regressor
        Fitted regressor, which predicts the distribution of the errors from `inputs_of_errors`.
    smallest_std : float or ndarray of shape (m,)
        Smallest standard deviation. Errors of a model that is exact are those of rounding, and
        may be smaller than the distance between the floats near y.
    """

    whole: Calibration
    errors: Any
    smallest_std: Any = 0.0

    __repr__ = record_repr

    def apply(self, mixture: Any, X: Any, new_weight: np.ndarray | None = None) -> Any:
        """Predict the distribution of each row's error, about the mean of the prediction.

        The mean stays. The error's predicted mean widens the distribution instead, so that its
        standard deviation is the root mean square of the predicted error, or `smallest_std`.
        """
        inputs = inputs_of_errors(X, mixture.mean, mixture.std)
        errors = self.errors.predict_distribution(inputs)
        root_mean_square = np.hypot(errors.std, errors.mean)
        wider = errors.scaled(np.maximum(root_mean_square, self.smallest_std) / errors.std)
        return shift(wider, mixture.mean - errors.mean)

    smooth = apply


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
    # Names that X does not have.
    name = max((str(column) for column in X.columns), key=len) + "_predicted"
    added = pd.DataFrame(columns, X.index, [f"{name}{k}" for k in range(columns.shape[1])])
    return pd.concat([X, added], axis=1)


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

    whole = property(lambda self: self, doc="The calibration of all rows: this one.")

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
    return np.log(np.maximum(entropy, SMALLEST_UNCERTAINTY))


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


_NUMBERS_OF_OTHERS = 16  # numbers of a row's prediction by an estimator that is not skuq's


@saved_as("fitted.FittedCalibrated")
@dataclass(frozen=True, eq=False)
class FittedCalibrated(Fitted):
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
    inputs: ClassVar[ForeignInputs] = ForeignInputs()
    no_keras: ClassVar[str] = "the calibrated estimator may be anything"

    def distribution(self, X: Any) -> Any:
        """Predict the calibrated distribution of each row."""
        return self.calibration.distribution(self.estimator, X)

    def n_numbers(self) -> int:
        """Count the numbers of the estimator's raw prediction of one row."""
        fitted = getattr(unwrap_estimator(self.estimator)[0], "fitted_", None)
        # Other estimators return little, whatever they hold meanwhile.
        return fitted.n_numbers() if isinstance(fitted, Fitted) else _NUMBERS_OF_OTHERS

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's prediction: () or (n_outputs,)."""
        return np.shape(self.calibration.scale)


def regressor_distribution(
    estimator: Any, X: Any, method: str, output_shape: tuple[int, ...]
) -> Any:
    """Predict the distribution of any fitted regressor, before calibration.

    A regressor without uncertainty gets a standard deviation of 1 for all rows. Of a single output,
    which some regressors return as a column, `output_shape` is () or (1,). Raise TypeError if
    the method cannot calibrate what the regressor predicts, and ValueError for NaN or inf.
    """
    model, X = unwrap_estimator(estimator, X)
    if hasattr(model, "predict_distribution"):
        distribution = model.predict_distribution(X)
        normals = GaussianMixture, NestedGaussianMixture
        kinds = (Mixture, TwoPieceNormal) if method == "scale" else normals
        if not isinstance(distribution, kinds):
            advice = "" if method == "scale" else ' Use method="scale", which takes more kinds.'
            if isinstance(distribution, TransformedMixture):
                advice += ' Or fit with target_transform="standard".'
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


_FAR = 1000  # predicted standard deviations beyond which an observed value gives a warning


@saved_as("fitted.AdaptedCalibration")
@dataclass(frozen=True, eq=False)
class AdaptedCalibration(DerivedCalibration):
    """Calibration with corrections learnt from later rows.

    Attributes
    ----------
    start : Calibration, GroupedCalibration or WeightedCalibration
        Calibration that was learnt in `fit`.
    tracker : QuantileTracker
        Corrections learnt from later rows.
    """

    start: Any
    tracker: QuantileTracker

    __repr__ = record_repr

    whole = property(attrgetter("start.whole"), doc="The calibration of all rows in `fit`.")

    def apply(self, mixture: Any, X: Any) -> Any:
        """Calibrate predictions for the rows X, and correct them."""
        # Scores can be mapped only where the cdf is continuous, which conformal steps are not.
        base = self.start.smooth(mixture, X)
        quantiles = self.tracker.quantiles
        single = base.mean.ndim == 1
        return AdaptedDistribution(base, NOMINAL, quantiles[:, 0] if single else quantiles)

    @property
    def drift(self) -> CalibrationDrift:
        """Deviation of the calibration of `fit` from the rows that came since."""
        return self.tracker.drift(np.shape(self.scale))

    def updated(self, estimator: Any, X: Any, y: np.ndarray) -> AdaptedCalibration:
        """Learn from observed values (n[, m]), in the order of their arrival."""
        mixture = regressor_distribution(estimator, X, self.method, np.shape(self.scale))
        # Under the calibration of `fit`: the tracked quantiles are those of its scores.
        scores = normal_scores(self.start.smooth(mixture, X), y)
        furthest = abs(scores).max()
        if furthest > _FAR:
            warn_user(
                f"An observed value lies {furthest:.2g} predicted stds away from its prediction. "
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

    whole = property(attrgetter("start"), doc="The calibration that was learnt in `fit`.")

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
    """Make a calibration one that can be updated with observed values, if it is not."""
    if isinstance(calibration, AdaptedCalibration | AdaptedClassCalibration):
        return calibration
    if isinstance(calibration, ClassCalibration):
        tracker = LogitTracker.start(len(calibration.classes))
        return AdaptedClassCalibration(calibration, tracker)
    return AdaptedCalibration(calibration, QuantileTracker.start(np.size(calibration.scale)))
