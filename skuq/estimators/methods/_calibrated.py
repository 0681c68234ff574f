"""Fit an estimator and calibrate its uncertainty on rows that it has not seen."""

from __future__ import annotations

import functools
import warnings
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.parallel import delayed
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skuq._checks import check_labels, check_targets, check_weights, class_codes
from skuq._messages import warn_user
from skuq._params import HasMethods, StrOptions, parameters, safe_indexing, safe_split
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor, fits
from skuq.estimators.methods._deep import DeepEnsembleRegressor
from skuq.estimators.methods._out_of_fold import (
    FittedProbabilities,
    check_estimator,
    fit_and_predict,
    inherit_tags,
    learns_nothing,
    make_folds,
    read_foreign_rows,
    route,
    run,
    take_argument,
)
from skuq.exceptions import CalibrationWarning
from skuq.files._registry import saved_as
from skuq.fitted._fitted_calibrated import (
    ClassRecalibration,
    ConditionalRecalibration,
    FittedCalibrated,
    Recalibration,
    classifier_distribution,
    inputs_of_errors,
    regressor_distribution,
    without_classes,
)
from skuq.predictive._learners import fit_scales, fit_temperature
from skuq.predictive._normals import EpistemicNormal

_SMALL_WEIGHT = 0.1  # mean weight of a row below which weights are hardly meant as counts

# Networks that "conditional" fits to errors: plain ones take a tenth of the time of those for
# tables, and with the CRPS no longer predict too narrow distributions for few rows.
# Errors stay in their unit, in which the mean of the model is added to their distribution.
_NETWORKS_OF_ERRORS = {"loss": "crps", "target_transform": "standard", "random_state": 0}

_CONSTRAINTS: dict = {
    "estimator": [HasMethods(["fit"]), HasMethods(["predict"]), callable],
    "cv": ["cv_object", StrOptions({"prefit"})],
    "n_jobs": [Integral, None],
    "verbose": ["verbose", None],
}


@dataclass(eq=False, repr=False)
class CalibratedUncertainty:
    """Methods that calibrated regressors and classifiers have in common.

    A subclass has three methods. `_read_targets` validates the targets of `fit`, and returns them
    and the classes, None for numbers. `_predictor` makes the function of a fitted estimator and X
    that predicts before calibration. `_learn` learns a calibration from predicted rows.
    """

    estimator: Any
    _: KW_ONLY
    cv: Any = None
    n_jobs: int | None = None
    verbose: int | None = None

    @fits(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None, **fit_params):
        """Calibrate on out-of-fold predictions, and fit the estimator on all rows.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Whatever the estimator accepts.
        y : array-like of shape (n,), or of numbers (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows, for fitting and for calibrating. A row of weight 2
            counts as two equal rows; weights that are only relative should have the mean 1. A
            pipeline hands them to its last step, as ``step__sample_weight`` does; so with `groups`.
        **fit_params
            Further arguments of the estimator's `fit`. Arrays with one entry per row are divided
            like the rows, while validation rows such as `X_val` go to every fit. `groups` is passed
            to `cv` as well: rows of one group are then never in two folds, also with the default
            of `cv`. With metadata routing enabled, the estimator and `cv` get what they request.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If arguments are invalid, or no fold can test rows of two classes.
        TypeError
            If the estimator does not take the weights, or is no estimator and `cv` not "prefit".

        Warns
        -----
        CalibrationWarning
            If the mean weight is below 0.1, or rows are left out because their fold trains on no
            row of their class.
        """
        prefit = isinstance(self.cv, str)
        is_kind = is_classifier if is_classifier(self) else is_regressor
        fitted = check_estimator("`estimator`", self.estimator, is_kind, prefit)
        sample_weight = take_argument(self.estimator, "sample_weight", sample_weight, fit_params)
        X, _, sample_weight = read_foreign_rows(self, X, y, sample_weight)
        weight = check_weights(sample_weight, X)
        y, classes = self._read_targets(X, y, fitted)
        used = weight > 0  # predictions of rows without weight may be anything
        if used.sum() < 2:
            raise ValueError(
                "Calibration needs at least 2 rows with positive weights. Got "
                f"n_samples={used.sum()}."
            )
        if weight[used].mean() < _SMALL_WEIGHT:
            warn_user(
                f"Weights of {used.sum()} rows sum to {weight.sum():.3g}, and count as that many "
                "rows. If they are relative, divide them by their mean.",
                CalibrationWarning,
            )
        fit_params, groups = route(self, sample_weight, fit_params)
        predict = self._predictor(classes, y.shape[1:])
        if prefit:  # one fold, of all rows
            test = np.flatnonzero(used)
            folds = [(predict(fitted, safe_split(fitted, X, y, test)[0]), test)]
        else:
            kind = "numbers" if classes is None else "any" if learns_nothing(fitted) else "classes"
            splits = make_folds(self.cv, X, y, used, groups, kind)
            folds, fitted = self._fit_folds(predict, splits, X, y, fit_params)
        mixtures, tests = zip(*folds)
        order = np.concatenate(tests)
        # A regressor that is fitted already decides between (n,) and (n, 1).
        if classes is None and y.size == len(y):
            y = y.reshape(-1, *mixtures[0].mean.shape[1:])
        if not prefit and classes is not None:
            # Classes of which no fold could test a row are not compared with the others.
            lost = np.isin(classes, y[used]) & ~np.isin(classes, y[order])
            mixtures = tuple(without_classes(mixture, lost) for mixture in mixtures)
        # Errors that rows of a draw share may be large, and change no marginal.
        mixtures = tuple(
            EpistemicNormal(m.mean, m.aleatoric, m.epistemic)
            if isinstance(m, EpistemicNormal)
            else m
            for m in mixtures
        )
        # A row counts once, also if repeated folds predict it several times. A weight of 2 is that
        # of a row that is there twice, which decides how much priors count.
        n_times = len(order) / len(np.unique(order))
        weight = weight[order] / n_times
        X, groups = (None if rows is None else safe_indexing(rows, order) for rows in (X, groups))
        calibration = self._learn(X, mixtures, y[order], weight, groups, classes)
        # Everything is learnt: attributes are assigned together.
        if classes is not None:
            self.classes_ = classes
        self.fitted_ = FittedCalibrated(fitted, calibration)
        return self

    def _fit_folds(self, predict, splits, X, y, fit_params):
        """Fit in each fold and on all rows; return predictions of test rows, and the last fit."""
        is_column = y.shape[1:] == (1,) and not get_tags(self).target_tags.multi_output
        fit_y = column_or_1d(y, warn=True) if is_column else y
        every = np.arange(len(y)), None
        calls = (
            delayed(fit_and_predict)(self.estimator, predict, X, fit_y, fit_params, train, test)
            for train, test in [*splits, every]
        )
        n_fits = len(splits) + 1
        *folds, fitted = run(calls, self.n_jobs, self.verbose, "calibration", "fit", n_fits)
        return folds, fitted

    # Parts of the fitted model, which the class docstring describes.
    estimator_ = property(attrgetter("fitted_.estimator"), doc="")

    def get_metadata_routing(self):
        """Describe the metadata that the estimator and `cv` request.

        Returns
        -------
        MetadataRouter
        """
        splitter = GroupKFold() if self.cv is None or isinstance(self.cv, Integral) else self.cv
        fit, split = (MethodMapping().add(caller="fit", callee=name) for name in ("fit", "split"))
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self.estimator, method_mapping=fit)
        return router.add(splitter=splitter, method_mapping=split)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        return inherit_tags(tags, [self.estimator])


@saved_as("estimators.CalibratedUncertaintyRegressor", kind="estimator")
@parameters
class CalibratedUncertaintyRegressor(CalibratedUncertainty, UncertaintyRegressor):
    """Regressor with calibrated standard deviations, intervals and quantiles.

    The estimator predicts every row out of fold, a calibration is learnt from these predictions,
    and the estimator is fitted on all rows. The point prediction remains that of the estimator.

    Parameters
    ----------
    estimator : regressor
        Regressor with `predict_distribution` (all of skuq's) or ``predict(X, return_std=True)``,
        such as scikit-learn's Gaussian process; also as the last step of a pipeline or the
        estimator of a search. A regressor without uncertainty, such as a random forest, gets the
        distribution of its errors, the same for all rows but with ``method="conditional"``. With
        ``cv="prefit"`` also any fitted model with `predict`, such as a Keras model, or a function
        of X.
    method : {"scale", "conformal", "conditional"}, default="scale"
        "scale" multiplies all standard deviations by the factor that maximises the likelihood of
        the calibration rows, shrunk towards 1 by its standard error: a factor that does not differ
        significantly from 1 is 1. This single parameter suits small data. "conformal" also takes
        intervals from the standardised errors. They cover new rows with at least the nominal
        probability, if new rows have the distribution of the calibration rows, whatever it is.
        "conditional" is for point models, such as forests: a small deep ensemble learns the
        distribution of the errors from the columns of X and the prediction, so that widths differ
        from row to row. It needs a table X, and suits a hundred rows or more.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one fold. None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    estimator_ : regressor
        Estimator fitted on all rows.
    scale_ : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations. If `estimator` predicts no uncertainty, it is the
        standard deviation of its errors, also with "conditional", whose predictions do not use it.
    scores_ : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyClassifier : Calibrates class probabilities.
    sklearn.calibration.CalibratedClassifierCV : Calibrates probabilities without parts.

    Notes
    -----
    Folds train on fewer rows than the final estimator, so that its uncertainty tends to be too
    large rather than too small. The default folds are not shuffled; for sorted rows use
    ``cv=KFold(5, shuffle=True, random_state=0)``. The conformal guarantee is exact with
    ``cv="prefit"``; over folds it holds as far as the final fit and the fits of the folds agree.
    Calibration does not account for shift: fit again on rows like those to predict.

    With "conditional" the mean of a row's distribution stays the estimator's prediction. Where the
    networks predict a mean error, the standard deviation is the root of its square plus that of
    theirs. Of an exact model it is about the distance between floats of the size of y. The
    aleatoric part is the noise that they predict, and the epistemic part what they disagree on:
    both are about the errors, not about the estimator's own members.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 (scale); Breiman (1995), "Better Subset Regression Using the
    Nonnegative Garrote" (its shrinkage); Lei et al. (2018), section 5.2 (conformal).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CalibratedUncertaintyRegressor(BayesianRidge(), method="conformal").fit(X, y)
    >>> model.predict_interval(X[:1], coverage=0.9).round()
    array([[111., 294.]])
    """

    method: str = field(default="scale", kw_only=False)

    _parameter_constraints = {
        **_CONSTRAINTS,
        "method": [StrOptions({"scale", "conformal", "conditional"})],
    }
    _has_posterior = False

    def _read_targets(self, X, y, fitted):
        return check_targets(y, self), None

    def _predictor(self, classes, output_shape):
        return functools.partial(regressor_distribution, output_shape=output_shape)

    def _learn(self, X, mixtures, y, weight, groups, classes):
        fitted = fit_scales(mixtures, y, weight, conformal=self.method == "conformal")
        calibration = Recalibration(*fitted)
        if self.method != "conditional":
            return calibration
        mean, std = (
            np.concatenate([getattr(mixture, name) for mixture in mixtures])
            for name in ("mean", "std")
        )
        networks = DeepEnsembleRegressor(**_NETWORKS_OF_ERRORS, verbose=self.verbose)
        # Their own standard deviations are too small on few rows.
        folds = KFold(3, shuffle=True, random_state=0) if groups is None else 3
        errors = CalibratedUncertaintyRegressor(networks, cv=folds)
        # Routing would refuse arguments that the user cannot request for these networks.
        with warnings.catch_warnings(), config_context(enable_metadata_routing=False):
            # Errors without structure are predicted no better than by a constant, and may be.
            warnings.filterwarnings("ignore", "The model predicts its validation rows worse")
            errors.fit(inputs_of_errors(X, mean, std), y - mean, weight, groups=groups)
        spacing = np.spacing(np.abs(y).max(axis=0))
        return ConditionalRecalibration(calibration.scale, errors=errors, smallest_std=spacing)

    # Parts of the fitted model, which the class docstring describes.
    scale_ = property(attrgetter("fitted_.calibration.scale"), doc="")
    scores_ = property(attrgetter("fitted_.calibration.scores"), doc="")

    def predict(self, X, return_std=False):
        """Predict as the estimator does, and on request the calibrated standard deviation.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of shape (n[, m])
            Exactly what the estimator predicts.
        std : ndarray of shape (n[, m])
            Calibrated standard deviation, in units of y. Only with `return_std`.
        """
        check_is_fitted(self)
        # The estimator's own prediction: calibration changes what is around it.
        mean = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if np.size(mean) == len(mean):  # some regressors return a column
            mean = np.reshape(mean, (-1, *self.fitted_.output_shape()))
        return (mean, self.predict_distribution(X).std) if return_std else mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            tags.target_tags.multi_output = get_tags(self.estimator).target_tags.multi_output
        return tags


@saved_as("estimators.CalibratedUncertaintyClassifier", kind="estimator")
@parameters
class CalibratedUncertaintyClassifier(CalibratedUncertainty, UncertaintyClassifier):
    """Classifier with calibrated probabilities.

    The classifier predicts every row out of fold, a calibration is fitted to these predictions by
    maximum likelihood, and the classifier is fitted on all rows. The predicted class remains that
    of the classifier.

    Parameters
    ----------
    estimator : classifier
        Classifier with `predict_distribution` (all of skuq's) or `predict_proba`; also as the last
        step of a pipeline or the estimator of a search. With ``cv="prefit"`` also any model, such
        as a Keras model, whose `predict` gives probabilities (n, C), or of the second of two
        classes, or a function of X that does. Its classes are the labels of y, or numbered from 0.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one fold. None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    estimator_ : classifier
        Estimator fitted on all rows.
    temperature_ : float
        Divisor of the log probabilities; above 1 if the classifier was overconfident.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyRegressor : Calibrates distributions of numbers.
    sklearn.calibration.CalibratedClassifierCV : Calibrates probabilities by more methods.

    Notes
    -----
    The temperature acts on the averaged probabilities, which is better than on each member's
    (Rahaman and Thiery, 2021) and does not change the predicted class. Its logarithm has a standard
    normal prior. Members keep their differences from the average, shortened where a probability
    would be negative, so that entropies still have parts.

    References
    ----------
    Guo, Pleiss, Sun and Weinberger (2017), "On Calibration of Modern Neural Networks".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skuq import CalibratedUncertaintyClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibratedUncertaintyClassifier(GaussianNB()).fit(X, y).predict(X[:2])
    array([0, 0])
    """

    _parameter_constraints = _CONSTRAINTS

    def _read_targets(self, X, y, fitted):
        y = check_labels(y)
        if isinstance(fitted, FittedProbabilities):
            fitted.find_classes(X, y)
        # A fitted classifier decides the order of the classes.
        is_fitted = isinstance(self.cv, str) or learns_nothing(fitted)
        classes = np.asarray(fitted.classes_) if is_fitted else np.unique(y)
        class_codes(y, classes)  # raises for labels that the estimator does not know
        return y, classes

    def _predictor(self, classes, output_shape):
        return functools.partial(classifier_distribution, classes=classes)

    def _learn(self, X, mixtures, y, weight, groups, classes):
        proba = np.concatenate([mixture.mean for mixture in mixtures])
        return ClassRecalibration(fit_temperature(proba, class_codes(y, classes), weight), classes)

    # Parts of the fitted model, which the class docstring describes.
    temperature_ = property(attrgetter("fitted_.calibration.temperature"), doc="")

    def predict(self, X, return_std=False):
        """Predict as the classifier does, and on request how much its members differ.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        labels : ndarray of shape (n,)
            Exactly what the classifier predicts.
        std : ndarray of shape (n,)
            Standard deviation across members of the predicted class' probability. Only with
            `return_std`.
        """
        check_is_fitted(self)
        labels = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if np.shape(labels)[1:] == (1,):  # some classifiers return a column
            labels = np.reshape(labels, -1)
        if not return_std:
            return labels
        std = self.predict_distribution(X).std
        return labels, std[np.arange(len(std)), class_codes(labels, self.classes_)]
