"""Weights of calibration rows under covariate shift, by density ratios of the target."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import indexable

from skuq._params import safe_indexing
from skuq._utils._checks import fit_argument
from skuq._utils._messages import warn_user
from skuq._utils._records import record_repr, saved_as
from skuq.exceptions import CalibrationWarning
from skuq.fitted._calibrated import DerivedCalibration
from skuq.predictive._calibration import effective_rows
from skuq.tables import TablePreprocessor
from skuq.tables._columns import frame_to_pandas

_N_FOLDS = 5  # of the classifiers that separate the samples
_MOST_ROWS = 10_000  # largest number of rows of each sample that train a classifier
_RATIO_BOUNDS = (10.0, 100.0)  # the largest ratio is sqrt(n), clipped to this range
# With fewer effective rows, or a larger share of unsupported rows, there is a warning.
_MIN_EFFECTIVE_ROWS = 30
_MOST_UNSUPPORTED = 0.1
_SMALLEST_PROBABILITY = 1e-9  # of a class, so that its log odds are finite


@saved_as("fitted.DensityRatio")
@dataclass(frozen=True, eq=False)
class DensityRatio:
    """Ratio of the density of a target's rows to that of the calibration rows.

    Attributes
    ----------
    classifiers : tuple of classifiers
        Each separates target rows (class 1) from calibration rows (class 0), and is trained
        without one fold of both.
    odds : float
        Number of calibration rows over that of target rows in training.
    largest : float
        Bound of a ratio.
    unit : float
        Mean ratio of the calibration rows; weights are in units of it.
    n_effective : float
        Effective number of calibration rows: the number of equally weighted rows with the same
        information. Weights of `fit` count as well.
    unsupported : float
        Share of the target's rows with ratios above the bound, for which there are hardly any
        similar calibration rows.
    auc : float
        Area under the ROC curve of the classifiers on held-out rows: 0.5 if the target cannot be
        separated from the calibration rows, 1 if they are completely separated.
    """

    classifiers: tuple[Any, ...]
    odds: float
    largest: float
    unit: float
    n_effective: float
    unsupported: float
    auc: float

    __repr__ = record_repr

    def weights(self, X: Any) -> np.ndarray:
        """Compute weights (n,) of new rows, relative to the mean weight of calibration rows."""
        X = frame_to_pandas(X)  # as in the fit
        # Average the classifiers of all folds, as log odds.
        logs = [_log_odds(classifier, X) for classifier in self.classifiers]
        ratio = self.odds * np.exp(np.mean(logs, axis=0))
        return _bounded_weights(ratio, self.largest, self.unit, self.unsupported)


def fit_density_ratio(
    X: Any, X_target: Any, weight: np.ndarray, classifier: Any = None
) -> tuple[DensityRatio, np.ndarray]:
    """Learn the density ratio of a target, and the factors (n,) of the calibration rows' weights.

    Calibration rows X with these weights (n,) represent their population. By default the classifier
    is a logistic regression of the standardised columns, with one-hot encoded categories. A
    `CalibrationWarning` is given if the target and the calibration rows have too little in common.
    """
    X, X_target = (frame_to_pandas(indexable(rows)[0]) for rows in (X, X_target))
    # Sparse tables and lists have either a shape or a length.
    n, n_target = (r.shape[0] if hasattr(r, "shape") else len(r) for r in (X, X_target))
    if classifier is None and len(np.shape(X)) != 2:
        raise ValueError(
            "`recalibrate` needs the argument `classifier`: its own takes tables only. Got X of "
            f"shape {np.shape(X)}."
        )
    if classifier is not None and not hasattr(classifier, "predict_proba"):
        raise TypeError(f"`classifier` must have predict_proba. {classifier!r} has none.")
    if min(n, n_target) < 2 * _N_FOLDS:
        raise ValueError(
            f"`recalibrate` needs {2 * _N_FOLDS} calibration rows and as many rows of the target. "
            f"Got {n} and {n_target}."
        )
    if classifier is None:
        preprocessor = TablePreprocessor(max_categories=20)
        try:
            preprocessor.fit(X)  # to say what it cannot read before anything is trained
        except (TypeError, ValueError) as error:
            raise type(error)(
                "Without `classifier`, `recalibrate` separates the samples by a logistic "
                f"regression, which cannot read these rows: {error} Or give a `classifier` that "
                "reads them."
            ) from error
        classifier = make_pipeline(preprocessor, StandardScaler(), LogisticRegression())
    # Both samples in one table, the calibration rows first.
    if hasattr(X, "iloc"):
        both = [X, pd.DataFrame(X_target, columns=X.columns)]
        rows: Any = pd.concat(both, ignore_index=True)
    elif sparse.issparse(X):
        rows = sparse.vstack([X, X_target]).tocsr()
    else:
        is_list = isinstance(X, list)
        rows = [*X, *X_target] if is_list else np.concatenate([X, np.asarray(X_target)])
    is_target, counts = np.repeat([0, 1], [n, n_target]), weight
    # In units of the average row, so that weights leave the sizes of the samples as they are.
    weight = weight / weight.mean()
    weights = np.concatenate([weight, np.ones(n_target)])
    classifiers, log_odds, odds = _cross_fit(classifier, rows, is_target, weights)
    ratio = odds * np.exp(log_odds)
    # Ratios are bounded, since few huge ones would leave few effective rows.
    largest = float(np.clip(np.sqrt(n), *_RATIO_BOUNDS))
    unsupported = float(np.mean(ratio[n:] > largest))
    # In this unit the calibration rows have the average weight 1.
    unit = float(np.average(np.minimum(ratio[:n], largest), weights=weight))
    factor = _bounded_weights(ratio[:n], largest, unit, unsupported)
    n_effective = effective_rows(counts * factor, factor)
    auc = float(roc_auc_score(is_target, log_odds, sample_weight=weights))
    found = DensityRatio(tuple(classifiers), odds, largest, unit, n_effective, unsupported, auc)
    if n_effective < _MIN_EFFECTIVE_ROWS or unsupported > _MOST_UNSUPPORTED:
        warn_user(
            f"The target hardly overlaps with the calibration rows: {unsupported:.0%} of its rows "
            f"have no similar calibration rows, and the effective number of these is "
            f"{n_effective:.0f} of {counts.sum():.0f}. Intervals may be far too narrow or too "
            "wide. Calibrate with observed values of the target: partial_calibrate(X, y).",
            CalibrationWarning,
        )
    return found, factor


def _cross_fit(
    classifier: Any, rows: Any, is_target: np.ndarray, weights: np.ndarray
) -> tuple[list[Any], np.ndarray, float]:
    """Train a classifier without each fold.

    Returns the classifiers, the log odds (n,) that they predict of the rows they have not seen,
    and the odds of calibration rows to target rows in training.
    """
    # The argument of `fit` for weights; none if they are equal.
    weighted_fit = []
    if not np.allclose(weights, 1):
        argument = fit_argument(classifier)
        if argument is None:
            raise TypeError(
                "`classifier` must take `sample_weight`, because the calibration rows have "
                f"weights. {classifier!r} does not."
            )
        weighted_fit = [argument]
    rng = np.random.default_rng(0)
    classifiers, log_odds = [], np.empty(len(is_target))
    # Log odds are out-of-fold: a classifier separates its own training rows too well.
    for train, test in StratifiedKFold(_N_FOLDS, shuffle=True, random_state=0).split(
        is_target, is_target
    ):
        sides = [train[is_target[train] == side] for side in (0, 1)]
        # At most 10 000 rows of each sample train a classifier.
        used = np.concatenate([rng.permutation(side)[:_MOST_ROWS] for side in sides])
        given = dict.fromkeys(weighted_fit, weights[used])
        # Arguments are named after the steps of a pipeline, which routing would refuse.
        with config_context(enable_metadata_routing=False):
            model = clone(classifier).fit(safe_indexing(rows, used), is_target[used], **given)
        log_odds[test] = _log_odds(model, safe_indexing(rows, test))
        classifiers.append(model)
    # Bayes' rule: the density ratio is the classifier's odds times the ratio of the sample sizes
    # that it was trained with, nearly equal in all folds.
    odds = float(weights[used] @ (is_target[used] == 0) / np.sum(is_target[used] == 1))
    return classifiers, log_odds, odds


def _bounded_weights(
    ratio: np.ndarray, largest: float, unit: float, unsupported: float
) -> np.ndarray:
    """Compute weights (n,) from density ratios.

    Unsupported target rows have no similar calibration rows, so for their share of the weight all
    rows have equal weights.
    """
    return unsupported + (1 - unsupported) * np.minimum(ratio, largest) / unit


def _log_odds(classifier: Any, X: Any) -> np.ndarray:
    """Predict the log odds (n,) that rows belong to the target."""
    # The bounds keep log odds of certain classifiers finite, within +-20.7.
    proba = np.clip(classifier.predict_proba(X)[:, 1], _SMALLEST_PROBABILITY, None)
    return np.log(proba) - np.log(np.maximum(1 - proba, _SMALLEST_PROBABILITY))


@saved_as("fitted.WeightedCalibration")
@dataclass(frozen=True, eq=False)
class WeightedCalibration(DerivedCalibration):
    """Calibration learnt from weighted rows, for new rows with known weights.

    Attributes
    ----------
    calibration : Calibration or GroupedCalibration
        Calibration by weighted rows.
    ratio : DensityRatio
        It computes the weights of new rows.

    References
    ----------
    Tibshirani, Barber, Candès and Ramdas (2019), "Conformal prediction under covariate shift".
    """

    calibration: Any
    ratio: DensityRatio

    __repr__ = record_repr

    whole = property(attrgetter("calibration.whole"), doc="The calibration of all rows.")

    def apply(self, mixture: Any, X: Any) -> Any:
        """Calibrate predictions for the rows X, whose weights conformal intervals need."""
        weight = self.ratio.weights(X) if self.method == "conformal" else None
        return self.calibration.apply(mixture, X, weight)

    def smooth(self, mixture: Any, X: Any) -> Any:
        """Calibrate to a distribution with a density; see `Calibration.smooth`."""
        return self.calibration.smooth(mixture, X)
