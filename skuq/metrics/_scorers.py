"""Scorers of estimators by name, for scikit-learn's cross-validation and searches.

Notation: n rows, m outputs.
"""

import difflib
import inspect
import re
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import sklearn.metrics
from scipy import special
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import column_or_1d
from sklearn.utils.metadata_routing import MetadataRequest

from skuq._formulas import crps_normal
from skuq._messages import warn_user
from skuq._params import (
    NoUncertaintyError,
    classifies,
    fill_masked,
    predict_normal,
    reshape_like_prediction,
    unwrap_estimator,
)
from skuq.metrics import _scores

# Levels of the midpoint rule for the CRPS of distributions that are given by quantiles.
_CRPS_LEVELS = (np.arange(100) + 0.5) / 100


def get_scorer(name):
    """Get a scorer by its name.

    Parameters
    ----------
    name : str
        "neg_nll", "neg_gaussian_nll", "neg_nll_min", "neg_crps", "neg_coverage_width_auc" or
        "neg_calibration_error" of regressors; "coverage_90", "neg_coverage_error_90",
        "neg_interval_90" or "neg_mean_width_90" of their intervals, with any percentage from 1 on,
        such as "coverage_99.5";
        "neg_nll", "neg_brier" or "neg_ece" of classifiers; or the name of one of scikit-learn's
        scorers.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None)``, which can be pickled. Larger values are
        better, except for coverages, such as "coverage_90", whose best value is 0.9.

    Raises
    ------
    ValueError
        If the name is unknown.

    Notes
    -----
    Estimators with `predict_distribution(X)`, as all of skuq's, are scored by the distribution:
    by its `log_prob`, `cdf` and `interval`, and for the CRPS by its `crps` or, without it, by its
    `quantile`. If the method or one of these is missing, the
    normal of `predict(X, return_std=True)` is scored. Intervals are those of
    ``predict_interval(X, coverage=..)`` if the estimator has it: a pair of arrays (n[, m]), or an
    array (n, 2[, m]). MAPIE's regressors have those that they were made for. Classifiers are scored
    by `predict_proba`, and pipelines and searches by the estimator inside.

    Cross-validation and searches of scikit-learn stop with an error if the estimator is of the
    wrong kind for the scorer.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_diabetes(return_X_y=True)
    >>> cross_val_score(BayesianRidge(), X, y, scoring=get_scorer("coverage_90"), cv=3).round(2)
    array([0.91, 0.85, 0.91])
    """
    if isinstance(name, str):
        if name in _SCORES or _percentage(name) is not None:
            return UncertaintyScorer(name)
        if name in sklearn.metrics.get_scorer_names():
            return sklearn.metrics.get_scorer(name)
    names = [*_SCORES, *(f"{kind}_90" for kind in _INTERVAL_SCORES)]
    close = difflib.get_close_matches(str(name), [*names, *sklearn.metrics.get_scorer_names()], 2)
    raise ValueError(
        f"`name` must be one of {names}, with 90 or another percentage from 1 on, or the name of "
        f"one of scikit-learn's scorers. Got {name!r}."
        + f" Did you mean {' or '.join(map(repr, close))}?"
        * bool(close)
    )


@dataclass(frozen=True)
class UncertaintyScorer:
    """Scorer of uncertainty: ``scorer(estimator, X, y, sample_weight=None)``.

    Parameters
    ----------
    name : str
        Name of the score; larger is better.
    weight_request : bool, str or None, default=None
        Request for `sample_weight` in scikit-learn's metadata routing.
    """

    name: str
    weight_request: bool | str | None = None

    @property
    def __name__(self):  # scikit-learn's displays of curves label an axis with it
        return self.name

    def __call__(self, estimator, X, y, sample_weight=None):
        """Predict X and score the predictions.

        Parameters
        ----------
        estimator : fitted estimator
            Regressor or classifier, or a pipeline or search with one inside.
        X : array-like of shape (n_samples, n_features)
            Rows to predict.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights of the rows.

        Returns
        -------
        float

        Raises
        ------
        TypeError
            If the score is not for this kind of estimator, or the estimator does not predict its
            uncertainty.

        Warns
        -----
        UndefinedMetricWarning
            If rows have classes that the classifier was fitted without, as in the folds of a
            cross-validation that lack a class. These rows are left out of the score.
        """
        try:
            return self._score(*unwrap_estimator(estimator, X), y, sample_weight)
        except TypeError as error:
            # Wrong kinds of estimators fail in all folds. Cross-validation warns of each error that
            # is raised, but stops at a score that is no number, whose text it shows. It calls
            # several scorers by one more frame.
            callers = inspect.stack(context=0)[1:3]
            if any(of.function == "_score" and "sklearn" in of.filename for of in callers):
                return TypeError(f"this error: {error}")
            raise

    def _score(self, model, X, y, sample_weight):
        if classifies(model):
            if self.name not in _CLASS_SCORES:
                raise TypeError(
                    f"{self.name!r} is a score of regressors. Scores of classifiers are "
                    f"{sorted(_CLASS_SCORES)}. Got {model!r}."
                )
            y, proba, known = known_labels(model, X, y)
            weight = None if sample_weight is None else np.asarray(sample_weight)[known]
            return -_CLASS_SCORES[self.name](y, proba, labels=model.classes_, sample_weight=weight)
        predicted, level = Predicted(model, X, y), _percentage(self.name)
        if level is not None:
            kind = self.name.rpartition("_")[0]
            return _score_intervals(kind, predicted, sample_weight, level / 100)
        if self.name not in _NUMBER_SCORES:
            raise TypeError(
                f"{self.name!r} is a score of classifiers, which have `classes_`. Got {model!r}. "
                "CalibratedUncertaintyClassifier(model, cv='prefit').fit(X, y) makes one of a "
                "fitted model of probabilities."
            )
        return -_NUMBER_SCORES[self.name](predicted, sample_weight)

    def set_score_request(self, *, sample_weight):
        """Return a scorer that requests weights by metadata routing.

        Parameters
        ----------
        sample_weight : bool, str or None
            Request, as in scikit-learn's `set_score_request`.

        Returns
        -------
        UncertaintyScorer
            Copy of this scorer with the request.
        """
        return replace(self, weight_request=sample_weight)

    def get_metadata_routing(self):
        """Describe the metadata that scikit-learn can route to the scorer.

        Returns
        -------
        MetadataRequest
            Request for `sample_weight`.
        """
        request = MetadataRequest(owner=self)
        request.score.add_request(param="sample_weight", alias=self.weight_request)
        return request

    def _accept_sample_weight(self):
        # Called by scikit-learn if several scorers share weights without routing.
        return True

    def __repr__(self):
        return f"get_scorer({self.name!r})"


def known_labels(model, X, y):
    """Return labels and probabilities of rows whose classes the model knows, and which those are.

    Warn of other rows, and refuse models that are no classifiers with probabilities.
    """
    if not (classifies(model) and hasattr(model, "predict_proba")):
        raise TypeError(
            "To be judged, a classifier must have `predict_proba` and `classes_` (give the one "
            f"inside of MAPIE's), and a regressor must have numbers as y. Got {model!r}."
        )
    y = column_or_1d(fill_masked(y))
    known = np.array([label in model.classes_.tolist() for label in y.tolist()], dtype=bool)
    known |= pd.isna(y)  # missing labels are refused
    if not known.any():
        known[:] = True  # unknown classes alone are refused
    elif not known.all():
        warn_user(
            f"The score leaves out {np.sum(~known)} of {len(y)} rows of the classes "
            f"{np.unique(y[~known]).tolist()}, which the classifier was fitted without. "
            "Stratified folds, such as StratifiedKFold's, train on all classes that have "
            "two rows.",
            UndefinedMetricWarning,
        )
    return y[known], np.asarray(model.predict_proba(X))[known], known


def _percentage(name):
    """Read the coverage at the end of the name of an interval score; None if there is none."""
    kind, _, digits = str(name).rpartition("_")
    # A number below 1 is more likely a share than a percentage, and is refused.
    known = kind in _INTERVAL_SCORES and re.fullmatch(r"[1-9]\d?(\.\d+)?", digits)
    return float(digits) if known and float(digits) < 100 else None


def levels_of_mapie(model):
    """Coverages that MAPIE's regressors were made for, which they do not take as an argument."""
    made = hasattr(model, "conformalize") or hasattr(model, "fit_conformalize")
    names = [n for n in ("_alphas", "_alpha", "alpha") if made and hasattr(model, n)]
    return 1 - np.atleast_1d(getattr(model, names[0])).astype(float) if names else None


@dataclass(frozen=True)
class Predicted:
    """Targets of some rows, and a regressor's predictions of them, computed when needed."""

    model: object
    X: object
    target: object

    @cached_property
    def distribution(self):
        """Predictive distribution, or None if the regressor has none."""
        predict = getattr(self.model, "predict_distribution", None)
        return None if predict is None else predict(self.X)

    def offers(self, *names):
        """Tell whether the distribution has attributes of these names."""
        return all(hasattr(self.distribution, name) for name in names)

    @cached_property
    def normal(self):
        """Mean and standard deviation of the prediction, (n[, m]) each."""
        return predict_normal(self.model, self.X)

    @cached_property
    def y(self):
        """Targets (n[, m]), with the output axis of the prediction."""
        mean = getattr(self.distribution, "mean", None)
        mean = self.normal[0] if mean is None or callable(mean) else mean
        return _scores.targets_like(mean, self.target)

    def interval(self, coverage):
        """Predict both ends of central intervals, (n[, m]) each."""
        # Intervals of a model may follow another rule than quantiles of its distributions.
        own = getattr(self.model, "predict_interval", None)
        if own is None and not self.offers("interval"):
            mean, std = self.normal
            reach = special.ndtri((1 + coverage) / 2) * std
            return mean - reach, mean + reach
        if own is not None and (levels := levels_of_mapie(self.model)) is not None:
            if not (same := np.isclose(levels, coverage)).any():
                raise NoUncertaintyError(f"{self.model!r} has coverages {levels}. Got {coverage}.")
            return tuple(own(self.X)[1][:, :, same.argmax()].T)
        predict = self.distribution.interval if own is None else partial(own, self.X)
        ends = predict(coverage=coverage)
        return ends if isinstance(ends, tuple | list) else np.moveaxis(np.asarray(ends), 1, 0)

    def pit(self):
        """Compute values of the predicted cdf at y, (n[, m])."""
        if self.offers("cdf"):
            # Rounding may carry a cdf beyond [0, 1].
            return np.clip(self.distribution.cdf(self.y), 0, 1)
        return _scores.pit_values(self.y, *self.normal)


def nll(predicted):
    """Compute the negative log likelihood of each row under its distribution, or a normal."""
    if not predicted.offers("log_prob"):
        mean, std = predicted.normal
        # A point has no density.
        return np.where(std == 0, np.inf, _scores.normal_nll(predicted.y, mean, std + (std == 0)))
    with np.errstate(under="ignore"):
        return -predicted.distribution.log_prob(predicted.y) / predicted.y[0].size


def crps(predicted):
    """Compute the CRPS of each row, from quantiles if its distribution has no own, or a normal."""
    y, distribution = predicted.y, predicted.distribution
    if predicted.offers("crps"):
        return distribution.crps(y)
    if predicted.offers("quantile"):
        # The CRPS is twice the pinball loss, averaged over all levels.
        return 2 * _scores.pinball(y, distribution.quantile(_CRPS_LEVELS), _CRPS_LEVELS)
    mean, std = predicted.normal
    return np.where(std == 0, abs(y - mean), crps_normal(y - mean, std + (std == 0)))


def _score_intervals(kind, predicted, weight, coverage):
    ends = predicted.interval(coverage)
    y = reshape_like_prediction(predicted.target, ends[0])
    if kind == "neg_mean_width":
        return -_scores.mean_width(*ends, sample_weight=weight)
    if kind == "neg_interval":
        return -_scores.interval_loss(y, *ends, coverage, sample_weight=weight)
    share = _scores.coverage_score(y, *ends, sample_weight=weight)
    return share if kind == "coverage" else -abs(share - coverage)


def _averaged(losses):
    return lambda predicted, weight: float(_scores.average(losses(predicted), weight).mean())


def _of_normals(loss):
    return lambda of, weight: loss(
        reshape_like_prediction(of.y, of.normal[0]), *of.normal, sample_weight=weight
    )


# Losses of regressors.
_NUMBER_SCORES = {
    "neg_nll": _averaged(nll),
    "neg_gaussian_nll": _of_normals(_scores.gaussian_nll_loss),
    "neg_nll_min": _of_normals(_scores.nll_min_loss),
    "neg_crps": _averaged(crps),
    "neg_coverage_width_auc": _of_normals(_scores.coverage_width_auc),
    "neg_calibration_error": lambda predicted, weight: _scores.calibration_error(
        pit=predicted.pit(), sample_weight=weight
    ),
}
# Their names are followed by a percentage, the nominal coverage.
_INTERVAL_SCORES = ("coverage", "neg_coverage_error", "neg_interval", "neg_mean_width")
# Losses of classifiers.
_CLASS_SCORES = {
    # With the clip of an ensemble's probabilities.
    "neg_nll": lambda y, proba, **options: _scores.ensemble_nll_loss(y, proba[None], **options),
    "neg_brier": _scores.brier_loss,
    "neg_ece": _scores.ece_loss,
}
_SCORES = {**_NUMBER_SCORES, **_CLASS_SCORES}
