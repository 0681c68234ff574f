"""Fit an estimator and calibrate its uncertainty on rows that it has not seen."""

from __future__ import annotations

import functools
import warnings
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.parallel import delayed
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from skuq._params import HasMethods, StrOptions, parameters, safe_indexing, safe_split
from skuq._utils._checks import check_labels, check_targets, check_weights, class_codes, fill_masked
from skuq._utils._messages import warn_user
from skuq._utils._records import saved_as
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor, fits
from skuq.estimators._calibration._out_of_fold import (
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
from skuq.estimators._ensembles._deep import DeepEnsembleRegressor
from skuq.exceptions import CalibrationWarning
from skuq.fitted._calibrated import (
    ConditionalCalibration,
    FittedCalibrated,
    adapt,
    classifier_distribution,
    inputs_of_errors,
    regressor_distribution,
    without_classes,
)
from skuq.fitted._density_ratio import WeightedCalibration, fit_density_ratio
from skuq.fitted._learning import CalibrationRows, learn_calibration, learn_class_calibration
from skuq.predictive._parametric import EpistemicNormal

_SMALL_WEIGHT = 0.1  # mean weight of a row below which weights are hardly meant as counts

# Networks that "conditional" fits to errors: plain ones take a tenth of the time of those for
# tables, and with the CRPS no longer predict too narrow distributions for few rows.
# Errors stay in their unit, in which the mean of the model is added to their distribution.
_NETWORKS_OF_ERRORS = {"loss": "crps", "target_transform": "standard", "random_state": 0}

_CONSTRAINTS: dict = {
    "estimator": [HasMethods(["fit"]), HasMethods(["predict"]), callable],
    "cv": ["cv_object", StrOptions({"prefit"})],
    "group_by": [str, Integral, callable, None],
    "n_jobs": [Integral, None],
    "verbose": ["verbose", None],
}


@dataclass(eq=False, repr=False)
class CalibratedUncertainty:
    """Methods that calibrated regressors and classifiers have in common.

    A subclass has four methods. `_read_targets` validates the targets of `fit`, and returns them
    and the classes, None for numbers; `_check_observed` validates those of `partial_calibrate`.
    `_predictor` makes the function of a fitted estimator and X that predicts before calibration.
    `_learn` learns a calibration from predicted rows, weighted by a density ratio if there is one.
    """

    estimator: Any
    method: str = "scale"
    _: KW_ONLY
    group_by: Any = None
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
            If the mean weight is below 0.1, `group_by` makes groups of fewer than 20 rows, or rows
            are left out because their fold trains on no row of their class.
        """
        prefit, similar_shares = isinstance(self.cv, str), True
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
            if kind == "classes" and self.method == "vector":
                similar_shares = _check_shares(y, weight, splits)
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
        rows = CalibrationRows(
            safe_indexing(X, order),
            mixtures,
            y[order],
            weight[order] / n_times,
            similar_shares=similar_shares,
        )
        calibration = self._learn(rows, classes)
        # Everything is learnt: attributes are assigned together.
        if classes is not None:
            self.classes_ = classes
        self.calibration_rows_ = rows
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

    def recalibrate(self, X_target, *, classifier=None):
        """Calibrate for a population with other inputs, without its targets.

        Calibration rows are weighted by the density of the target population divided by that of
        the calibration population. Classifiers that separate the two samples estimate this ratio.
        The result is right if only the inputs have shifted, and y depends on them as before. It
        replaces what `partial_calibrate` has learnt.

        Parameters
        ----------
        X_target : array-like of shape (n_target, n_features)
            Sample of the rows that will be predicted.
        classifier : classifier or None, default=None
            Classifier with `predict_proba` that separates target rows from calibration rows. None
            is a logistic regression of the standardised columns, with one-hot encoded categories.

        Returns
        -------
        self
            It has `density_ratio_`, which measures the overlap: `n_effective` is the effective
            number of calibration rows, `unsupported` the share of target rows without similar
            calibration rows, and `auc` how well the classifiers separate the samples.

        Warns
        -----
        CalibrationWarning
            If the target and the calibration rows hardly overlap.
        """
        check_is_fitted(self)
        X_target = self.fitted_.inputs.validate(X_target, self)
        rows = self.calibration_rows_
        if rows is None:
            raise ValueError("`recalibrate` needs `calibration_rows_`. Got None: call `fit` again.")
        # Rows that are commoner in the target population than here weigh more.
        ratio, factor = fit_density_ratio(rows.X, X_target, rows.weight, classifier)
        factor = factor * rows.weight.sum() / (rows.weight @ factor)  # keeps the sum of weights
        weighted = replace(rows, weight=rows.weight * factor, factor=factor)
        calibration = self._learn(weighted, getattr(self, "classes_", None), ratio)
        self.density_ratio_ = ratio
        self.fitted_ = replace(self.fitted_, calibration=calibration)
        vars(self).pop("last_time_", None)  # values observed before are forgotten
        return self

    def partial_calibrate(self, X, y, *, time=None):
        """Update the calibration with observed values, without another fit.

        Later predictions are those of `fit`, corrected by the values seen so far. Rows may arrive
        one by one or many at a time, in the order of time.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows whose targets have been observed.
        y : array-like of shape (n,), or of numbers (n, n_outputs)
            Observed y of the rows, in the order of arrival. One row's may be a number or label.
        time : array-like of shape (n,) or None, default=None
            Times of the rows, numbers or dates, for checking their order. None checks nothing.

        Returns
        -------
        self
            It has `drift_`, which describes the deviation from the calibration of `fit`.

        Raises
        ------
        ValueError
            If an observed value is missing, or a time is before one that was seen already.

        Warns
        -----
        CalibrationWarning
            If an observed value is more than 1000 standard deviations away from its prediction.
        """
        check_is_fitted(self)
        X = self.fitted_.inputs.validate(X, self)
        y = self._check_observed([y] if np.ndim(y) == 0 else y)
        check_consistent_length(X, y)
        # Nothing is learnt before all arguments are checked.
        last_time = _check_order(time, len(y), getattr(self, "last_time_", None))
        calibration = adapt(self.fitted_.calibration).updated(self.estimator_, X, y)
        self.fitted_ = replace(self.fitted_, calibration=calibration)
        if last_time is not None:
            self.last_time_ = last_time
        return self

    # Parts of the fitted model, which the class docstring describes.
    estimator_ = property(attrgetter("fitted_.estimator"), doc="")

    @property
    def drift_(self):
        """Deviation of the calibration of `fit` from the values observed since."""
        if not hasattr(self.fitted_.calibration, "drift"):
            raise AttributeError("`drift_` is available after `partial_calibrate`.")
        return self.fitted_.calibration.drift

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
    method : {"scale", "parts", "isotonic", "conformal", "conditional"}, default="scale"
        "scale" multiplies all standard deviations by the factor that maximises the likelihood of
        the calibration rows, shrunk towards 1 by its standard error: a factor that does not differ
        significantly from 1 is 1. This single parameter suits small data. "parts" has a factor each
        for the noise and for the model's part (CLEAR), where these rows can tell the two apart; it
        needs a regressor that predicts both parts, as skuq's do. "isotonic" also maps
        predicted levels to observed ones, which corrects every quantile, also if errors are skewed.
        "conformal" also takes intervals from the standardised errors. They cover new rows with at
        least the nominal probability, if new rows have the distribution of the calibration rows,
        whatever it is. "conditional" is for point models, such as forests: a small deep ensemble
        learns the distribution of the errors from the columns of X and the prediction, so that
        widths differ from row to row. It needs a table X and no `group_by`, and suits a hundred
        rows or more.
    group_by : str, int, callable or None, default=None
        Groups of rows that are calibrated separately, so that intervals and probabilities are right
        in every group: a column of X (name or position), a function of X that returns a label for
        each row, or "uncertainty" for up to ten equally large bins of the predicted uncertainty.
        Small groups are shrunk towards all rows: the shape of all rows' errors counts as much as 20
        rows of the group, and their scale depends on how much groups differ. Rows without a label,
        or with one that `fit` has not seen, get the calibration of all rows. None calibrates all
        rows together.
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
        Factor of the standard deviations; with `group_by` that of all rows together. If `estimator`
        predicts no uncertainty, it is the standard deviation of its errors, also with
        "conditional", whose predictions do not use it.
    epistemic_scale_ : float or ndarray of shape (n_outputs,)
        Factor of the model's part; it differs from `scale_`, that of the noise, with "parts" only.
    levels_ : tuple of ndarray of shape (21,) or (21, n_outputs), or None
        With "isotonic", predicted levels and the observed levels that replace them.
    scores_ : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    calibration_rows_ : CalibrationRows
        Calibration rows and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of the overlap; only after `recalibrate`.
    drift_ : CalibrationDrift
        Deviation of the calibration of `fit` from the values observed since; only after
        `partial_calibrate`.
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
    Calibration in `fit` does not account for shift: `recalibrate` uses inputs of the target
    population, and `partial_calibrate` uses observed values as they arrive.

    With "conditional" the mean of a row's distribution stays the estimator's prediction. Where the
    networks predict a mean error, the standard deviation is the root of its square plus that of
    theirs. Of an exact model it is about the distance between floats of the size of y. The
    aleatoric part is the noise that they predict, and the epistemic part what they disagree on:
    both are about the errors, not about the estimator's own members.

    After `partial_calibrate` the distribution is a `skuq.predictive.AdaptedDistribution`. Quantiles
    of the normal scores of observed values are tracked with six step sizes, weighted by their
    losses. The standard deviation is the root mean square distance from the point prediction, so
    that a bias increases it. With "conformal", density and samples then follow the intervals.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 (scale); Breiman (1995), "Better Subset Regression Using the
    Nonnegative Garrote" (its shrinkage); Kuleshov, Fenner and Ermon (2018) (isotonic); Lei et al.
    (2018), section 5.2 (conformal); Azizi, Bodik, Heiss and Yu (2026), "CLEAR", arXiv 2507.08150
    (parts); Smyth (2004) (scales of groups); Tibshirani et al. (2019), "Conformal prediction under
    covariate shift"; Gibbs and Candès (2024), "Conformal inference for online prediction with
    arbitrary distribution shifts".

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

    _parameter_constraints = {
        **_CONSTRAINTS,
        "method": [StrOptions({"scale", "parts", "isotonic", "conformal", "conditional"})],
    }
    _has_posterior = False

    def _read_targets(self, X, y, fitted):
        if self.method == "conditional" and self.group_by is not None:
            raise ValueError(
                '`group_by` must be None with method="conditional", whose distributions differ '
                f"from row to row already. Got group_by={self.group_by!r}."
            )
        return check_targets(y, self), None

    @property
    def _base_method(self):
        """Method that calibrates all rows alike, also where another one follows it."""
        return "scale" if self.method in ("parts", "conditional") else self.method

    def _predictor(self, classes, output_shape):
        return functools.partial(
            regressor_distribution, method=self._base_method, output_shape=output_shape
        )

    def _learn(self, rows, classes, ratio=None):
        method = "parts" if self.method == "parts" else self._base_method
        calibration = learn_calibration(rows, method, self.group_by)
        if self.method == "conditional":
            spacing = np.spacing(np.abs(rows.y).max(axis=0))
            mean, std = (
                np.concatenate([getattr(mixture, name) for mixture in rows.mixtures])
                for name in ("mean", "std")
            )
            networks = DeepEnsembleRegressor(**_NETWORKS_OF_ERRORS, verbose=self.verbose)
            # Their own standard deviations are too small on few rows.
            errors = CalibratedUncertaintyRegressor(
                networks, cv=KFold(3, shuffle=True, random_state=0)
            )
            with warnings.catch_warnings():
                # Errors without structure are predicted no better than by a constant, and may be.
                warnings.filterwarnings("ignore", "The model predicts its validation rows worse")
                errors.fit(inputs_of_errors(rows.X, mean, std), rows.y - mean, rows.weight)
            errors.calibration_rows_ = None  # they are in `rows`
            calibration = ConditionalCalibration(calibration, errors, spacing)
        return calibration if ratio is None else WeightedCalibration(calibration, ratio)

    def _check_observed(self, y):
        y = check_array(
            fill_masked(y),
            ensure_2d=False,
            dtype="float64",
            input_name="y",
            ensure_all_finite=False,
        )
        shape = self.fitted_.output_shape()
        # A column is one output, and a single number may be one row's value.
        y = y.reshape(len(y), *shape) if y.size == len(y) * np.prod(shape, dtype=int) else y
        if y.shape[1:] != shape:
            raise ValueError(
                f"y must have shape (n,{''.join(f' {m}' for m in shape)}). Got {y.shape}."
            )
        wrong = np.flatnonzero(~np.isfinite(y).reshape(len(y), -1).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"y must be finite. Row {wrong[0]} is {y[wrong[0]]}, one of {len(wrong)} that are "
                "missing or infinite: leave out rows whose value has not been observed yet."
            )
        return y

    @property
    def epistemic_scale_(self):
        """Factor of the standard deviation of the model's part."""
        calibration = self.fitted_.calibration
        return calibration.scale * calibration.whole.ratio

    # Parts of the fitted model, which the class docstring describes.
    scale_ = property(attrgetter("fitted_.calibration.scale"), doc="")
    levels_ = property(attrgetter("fitted_.calibration.whole.levels"), doc="")
    scores_ = property(attrgetter("fitted_.calibration.whole.scores"), doc="")

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
    method : {"temperature", "vector"}, default="temperature"
        "temperature" divides the logarithms of all probabilities by one number. "vector" gives each
        class its own factor and bias, which also corrects classes that are predicted too often. It
        needs a few dozen rows of each class, and folds that train on similar shares of the classes
        as all rows have; otherwise it is "temperature", with a warning.
    group_by : str, int, callable or None, default=None
        Groups of rows that are calibrated separately, so that intervals and probabilities are right
        in every group: a column of X (name or position), a function of X that returns a label for
        each row, or "uncertainty" for up to ten equally large bins of the predicted uncertainty.
        Small groups are shrunk towards all rows: the shape of all rows' errors counts as much as 20
        rows of the group, and their scale depends on how much groups differ. Rows without a label,
        or with one that `fit` has not seen, get the calibration of all rows. None calibrates all
        rows together.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen.
    calibrate_epistemic : bool, default=False
        Whether to calibrate the members' differences from the average as well, and with them the
        mutual information. They are multiplied by the factor that maximises the joint likelihood of
        the classes of similar rows. By default they remain unchanged.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one fold. None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    estimator_ : classifier
        Estimator fitted on all rows.
    spread_ : float
        Factor of the members' differences from the average; 1 without
        `calibrate_epistemic`.
    temperature_ : float
        Divisor of the log probabilities; above 1 if the classifier was overconfident. With "vector"
        it is one over the mean factor, and with `group_by` that of all rows together.
    calibration_rows_ : CalibrationRows
        Calibration rows and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of the overlap; only after `recalibrate`.
    drift_ : ClassDrift
        Deviation of the calibration of `fit` from the values observed since; only after
        `partial_calibrate`.
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

    `partial_calibrate` tracks a slope of the logits and a bias of each class by online Newton steps
    with six rates of forgetting. Probabilities are averaged over the rates, and over the
    calibration of `fit`, by Bayes' rule.

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

    method: str = field(default="temperature", kw_only=False)
    calibrate_epistemic: bool = False

    _parameter_constraints = {
        **_CONSTRAINTS,
        "calibrate_epistemic": ["boolean"],
        "method": [StrOptions({"temperature", "vector"})],
    }

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

    def _learn(self, rows, classes, ratio=None):
        # Class probabilities need no weights of new rows: the weights of `rows` say it all.
        return learn_class_calibration(
            rows, self.method, classes, self.group_by, epistemic=self.calibrate_epistemic
        )

    def _check_observed(self, y):
        return class_codes(column_or_1d(fill_masked(y), warn=True), self.classes_)

    # Parts of the fitted model, which the class docstring describes.
    spread_ = property(attrgetter("fitted_.calibration.whole.spread"), doc="")
    temperature_ = property(attrgetter("fitted_.calibration.whole.temperature"), doc="")

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


def _check_shares(y: np.ndarray, weight: np.ndarray, splits: Any) -> bool:
    """Warn and return False if a fold trains on less than half of a class's share of all rows."""
    classes = np.unique(y[weight > 0])
    codes = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    n = len(classes)
    whole = np.bincount(codes, weight, n) / weight.sum()
    shares = [np.bincount(codes[t], weight[t], n) / weight[t].sum() for t, _ in splits]
    rare = (np.array(shares) < 0.5 * whole).any(axis=0)
    if rare.any():
        warn_user(
            "method='vector' fits one temperature and no biases of classes: `cv` has folds that "
            f"train on few or no rows of the classes {classes[rare].tolist()[:5]}. Give stratified "
            "folds, such as StratifiedKFold(5, shuffle=True).",
            CalibrationWarning,
        )
    return not rare.any()


def _check_order(time: Any, n_rows: int, last: Any) -> Any:
    """Return the last of the times (n_rows,), or None if there are none.

    Raise ValueError if times are missing, of different kinds, go back, or begin before `last`, the
    last time that was seen earlier (or None).
    """
    if time is None:
        return None
    index = pd.Index(time)
    # Periods become their start, dates of the standard library and times with zones become UTC.
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if pd.api.types.infer_dtype(index) == "date":
        index = pd.DatetimeIndex(index)
    if isinstance(index, pd.DatetimeIndex) and index.tz is not None:
        index = index.tz_convert(None)
    time = index.to_numpy()
    if len(time) != n_rows:
        raise ValueError(f"`time` must have {n_rows} rows, as y. Got {len(time)}.")
    if pd.isna(time).any():
        raise ValueError("`time` must be known for all rows. Got missing values.")
    try:
        back = np.flatnonzero(time[1:] < time[:-1])
        begins_before_last = last is not None and bool(time[0] < last)
    except TypeError as error:
        raise ValueError(
            f"`time` must be of one kind, also in later calls. Got {time[:1]} after {last!r}."
        ) from error
    if len(back):
        raise ValueError(
            f"`time` must not go back: rows are learnt in order. Row {back[0] + 1} is of "
            f"{time[back[0] + 1]}, the row before of {time[back[0]]}. Sort the rows by time."
        )
    if begins_before_last:
        raise ValueError(
            f"`time` must not go back: rows up to {last} have been learnt already. Got {time[0]}."
        )
    return time[-1]
