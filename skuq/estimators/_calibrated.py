"""Calibration of any estimator's uncertainty, on rows its parts have not seen."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn import get_config
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from skuq._checks import check_targets, class_codes
from skuq._params import HasMethods, StrOptions, fit_context, safe_indexing, safe_split
from skuq._progress import Progress
from skuq._registry import saved_as
from skuq.estimators._api import UncertaintyClassifier, UncertaintyRegressor, forget_fit
from skuq.estimators._callbacks import tells_callbacks
from skuq.estimators._folds import check_takes_weights, fit_fold, inherit_tags, read_foreign_rows
from skuq.fitted import (
    AdaptedCalibration,
    AdaptedClassCalibration,
    CalibrationRows,
    FittedCalibrated,
    WeightedCalibration,
)
from skuq.fitted._calibrated import classifier_distribution, regressor_distribution
from skuq.fitted._density_ratio import fit_density_ratio
from skuq.fitted._learning import learn_calibration, learn_class_calibration
from skuq.predictive import LogitTracker, QuantileTracker

_CONSTRAINTS: dict = {
    "estimator": [HasMethods(["fit", "predict"])],
    "cv": ["cv_object", StrOptions({"prefit"})],
    "groups": [str, Integral, callable, None],
    "n_jobs": [Integral, None],
    "verbose": ["verbose", None],
}


class _CalibratedUncertainty:
    """Predict rows out of fold, learn from them, and fit on everything."""

    @fit_context(prefer_skip_nested_validation=False)
    @tells_callbacks
    def fit(self, X, y, sample_weight=None, **fit_params):
        """Calibrate on rows out of fold, and fit the estimator on all rows.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Whatever the estimator accepts.
        y : array-like of shape (n,), or of numbers (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative; for fitting and for calibrating.
        **fit_params
            Further arguments of the estimator's `fit`, for example `validation_data`. Arrays with
            an entry for each row are divided like the rows. `groups` (not the parameter of
            that name) go to `cv` as well: rows of one group then never stand in two folds, also
            with the default of `cv`. Under metadata routing the estimator and `cv` get what they
            request.

        Returns
        -------
        self
        """
        forget_fit(self)
        prefit = isinstance(self.cv, str)
        self._check_estimator(prefit, sample_weight)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X, weight, sample_weight = read_foreign_rows(self, X, y, sample_weight)
        y = self._check_y(y)
        if np.sum(weight > 0) < 2:
            raise ValueError(
                "Calibration needs at least 2 rows with positive weights. Got "
                f"n_samples={np.sum(weight > 0)}."
            )
        fit_params, splitting = self._route(X, sample_weight, fit_params)
        # Rows of no weight say nothing, and their predictions may be wild.
        if prefit:
            fitted, used = self.estimator, np.flatnonzero(weight > 0)
            folds = [(self._distribution(fitted, safe_split(fitted, X, y, used)[0]), used)]
        else:
            splitter = check_cv(self._splitter(splitting), y, classifier=is_classifier(self))
            splits = splitter.split(X, y, **splitting)
            splits = [(train, test[weight[test] > 0]) for train, test in splits]
            splits = [(train, test) for train, test in splits if len(test)]
            *folds, fitted = self._fit_folds(X, y, fit_params, splits)
        mixtures, rows = zip(*folds)
        order = np.concatenate(rows)
        # In units in which a row of average weight has 1, also if repeated folds predict it often.
        unit = weight[order].sum() / len(np.unique(order))
        self.calibration_rows_ = CalibrationRows(
            safe_indexing(X, order), mixtures, y[order], weight[order] / unit
        )
        self.estimator_ = fitted
        self.calibration_ = self._learn(self.calibration_rows_)
        return self

    def recalibrate(self, X_target, *, classifier=None):
        """Calibrate for rows whose inputs come from elsewhere, without their truths.

        Calibration rows are weighted by how much more often the target has rows like them: by the
        ratio of the two densities, which classifiers learn that tell the two apart. This is right
        where the inputs have shifted and y still depends on them as before. What
        `partial_calibrate` had learnt is forgotten.

        Parameters
        ----------
        X_target : array-like of shape (n_target, n_features)
            Rows like those to be predicted.
        classifier : classifier or None, default=None
            Classifier with `predict_proba`. None is a logistic regression of the standardised
            columns, with categories as columns of 0 and 1.

        Returns
        -------
        self
            With `density_ratio_`: its `n_effective` is the number of equally weighted rows that
            tell as much as the weighted calibration rows, `unsupported` the share of target rows
            that hardly any calibration row is like, and `auc` how well the two are told apart.

        Warns
        -----
        CalibrationWarning
            If the target has too little in common with the calibration rows.
        """
        check_is_fitted(self)
        X_target = self.fitted_.inputs.validate(X_target, self)
        rows = self.calibration_rows_
        if rows is None:
            raise ValueError("`recalibrate` needs `calibration_rows_`, which are None: fit again.")
        ratio, factor = fit_density_ratio(rows.X, X_target, rows.weight, classifier)
        self.calibration_ = self._weighted(self._learn(rows.weighted(factor)), ratio)
        self.density_ratio_ = ratio
        vars(self).pop("last_time_", None)
        return self

    def partial_calibrate(self, X, y, *, time=None):
        """Follow the calibration of new rows as their truths arrive, without another fit.

        From then on predictions are those of `fit`, corrected by what the truths have shown.
        Rows may arrive one by one or many at a time, in the order of time.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,), or of numbers (n, n_outputs)
            Truths, in the order in which they arrived.
        time : array-like of shape (n,) or None, default=None
            Times of the rows, by which their order is checked; any numbers or dates.

        Returns
        -------
        self
            With `drift_`.

        Raises
        ------
        ValueError
            If a truth is missing, or a time is before one that was seen already.
        """
        check_is_fitted(self)
        X = self.fitted_.inputs.validate(X, self)
        y = self._check_truths(y)
        check_consistent_length(X, y)
        last_time = _check_order(time, len(y), getattr(self, "last_time_", None))
        calibration = self.calibration_
        if not isinstance(calibration, AdaptedCalibration | AdaptedClassCalibration):
            calibration = self._adapted(calibration)
        self.calibration_ = calibration.learnt_from(self.estimator_, X, y)
        if last_time is not None:
            self.last_time_ = last_time
        return self

    @property
    def drift_(self):
        """How far the calibration of `fit` is from the truths that came since."""
        if not hasattr(self.calibration_, "tracker"):
            raise AttributeError("`drift_` is known after `partial_calibrate`.")
        return self._drift()

    def _weighted(self, calibration, ratio):
        return calibration

    @property
    def fitted_(self) -> FittedCalibrated:
        """The estimator fitted on all rows, and its calibration."""
        return FittedCalibrated(self.estimator_, self.calibration_)

    def _route(self, X, sample_weight, params):
        """Divide the arguments of `fit` into those of the estimator's `fit` and of the splitter."""
        given = {name: value for name, value in params.items() if value is not None}
        if given and isinstance(self.cv, str):
            raise TypeError(
                f"With cv='prefit' nothing is fitted, and `fit` takes no {sorted(given)}."
            )
        if "groups" in given:
            check_consistent_length(X, given["groups"])
        splitting = {"groups": given["groups"]} if "groups" in given else {}
        if sample_weight is not None:
            given["sample_weight"] = sample_weight
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **given)
            return routed["estimator"]["fit"], routed["splitter"]["split"]
        if "groups" in given and not has_fit_parameter(self.estimator, "groups"):
            del given["groups"]
        return given, splitting

    def _splitter(self, splitting):
        """Return `cv`, or a splitter that keeps groups together where `cv` does not name one."""
        if "groups" not in splitting or not (self.cv is None or isinstance(self.cv, Integral)):
            return self.cv
        kind = StratifiedGroupKFold if is_classifier(self) else GroupKFold
        return kind(self.cv or 5)

    def _fit_folds(self, X, y, fit_params, splits):
        """Yield predictions and rows of each fold, and then the estimator fitted on all rows."""
        every = np.arange(len(y)), None
        fits = Parallel(self.n_jobs, return_as="generator")(
            delayed(_fit_and_predict)(self, X, y, fit_params, train, test)
            for train, test in [*splits, every]
        )
        n_fits = len(splits) + 1
        with Progress("calibration", "fit", n_fits, verbose=self.verbose) as progress:
            for fit in fits:
                progress.step()
                yield fit

    def get_metadata_routing(self):
        """Describe the metadata that the estimator and `cv` request.

        Returns
        -------
        MetadataRouter
        """
        names_no_splitter = self.cv is None or isinstance(self.cv, Integral)
        return (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(
                estimator=self.estimator,
                method_mapping=MethodMapping().add(caller="fit", callee="fit"),
            )
            .add(
                splitter=GroupKFold() if names_no_splitter else self.cv,
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
        )

    def _check_estimator(self, prefit, sample_weight):
        if not self._is_kind(self.estimator):
            raise ValueError(f"`estimator` must be {self._kind}. Got {self.estimator!r}.")
        if prefit:
            try:
                check_is_fitted(self.estimator)
            except NotFittedError as error:
                raise NotFittedError(
                    "With cv='prefit' the estimator must be fitted. Got an unfitted "
                    f"{type(self.estimator).__name__}."
                ) from error
        elif sample_weight is not None and not get_config()["enable_metadata_routing"]:
            check_takes_weights(self.estimator, repr(self.estimator))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = [self.estimator] if hasattr(self.estimator, "__sklearn_tags__") else []
        return inherit_tags(tags, inner)


def _check_order(time, n_rows, last):
    """Return the last of these times; raise ValueError if they go back."""
    if time is None:
        return None
    time = _as_numbers_or_dates(time)
    if len(time) != n_rows:
        raise ValueError(f"`time` must have {n_rows} rows, as y. Got {len(time)}.")
    if pd.isna(time).any():
        raise ValueError("`time` must be known for all rows. Got missing values.")
    try:
        back = np.flatnonzero(time[1:] < time[:-1])
        is_before_last = last is not None and len(time) and bool(time[0] < last)
    except TypeError as error:
        raise ValueError(
            f"`time` must be of one kind, also in later calls. Got {time[:1]} after {last!r}."
        ) from error
    if len(back):
        raise ValueError(
            f"`time` must not go back: truths are learnt in order. Row {back[0] + 1} is of "
            f"{time[back[0] + 1]}, the row before of {time[back[0]]}. Sort the rows by time."
        )
    if is_before_last:
        raise ValueError(
            f"`time` must not go back: truths up to {last} have been learnt already. Got {time[0]}."
        )
    return time[-1] if len(time) else last


def _as_numbers_or_dates(time):
    """Convert times to an array (n,); of periods the start is taken, and time zones are undone."""
    index = pd.Index(time)
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if pd.api.types.infer_dtype(index) == "date":  # of the standard library
        index = pd.DatetimeIndex(index)
    return (index.tz_convert(None) if getattr(index, "tz", None) else index).to_numpy()


def _fit_and_predict(calibrated, X, y, fit_params, train, test):
    """A clone fitted on all rows, where test is None; else its predictions and their rows."""
    model, X_test = fit_fold(calibrated.estimator, X, y, fit_params, train, test)
    return model if test is None else (calibrated._distribution(model, X_test), test)


def _of_all_rows(calibration):
    """Find the part of a calibration that was learnt from all rows together in `fit`."""
    for name in ("start", "calibration", "whole"):
        calibration = getattr(calibration, name, calibration)
    return calibration


@saved_as("estimators.CalibratedUncertaintyRegressor", kind="estimator")
class CalibratedUncertaintyRegressor(_CalibratedUncertainty, UncertaintyRegressor):
    """A regressor whose standard deviations, intervals and quantiles mean what they say.

    The estimator predicts every row out of fold, a calibration is learnt from these
    predictions, and the estimator is fitted on all rows: none are given up. The point
    prediction stays that of the estimator.

    Parameters
    ----------
    estimator : regressor
        Regressor with `predict_distribution` (all of skuq's) or ``predict(X, return_std=True)``,
        such as scikit-learn's Gaussian process; also the last step of a pipeline or the estimator
        of a search. A regressor that predicts points only, such as a random forest, counts as
        equally sure of all rows: what is learnt is the distribution of its errors.
    method : {"scale", "isotonic", "conformal"}, default="scale"
        "scale" multiplies all standard deviations by the factor that maximises the likelihood of
        the rows: one parameter, which suits little data. "isotonic" also maps predicted levels to
        observed ones, which corrects every quantile, also of skewed errors. "conformal" also takes
        intervals from the standardised errors: they cover at least their share of new rows
        whatever the distribution, as long as these rows come from it.
    groups : str, int, callable or None, default=None
        Groups of rows with a calibration each, so that intervals and probabilities are right in
        every group and not on average only: a column of X (name or position), a function of X
        that gives a label for each row, or "uncertainty" for up to ten equally large bins of the
        predicted uncertainty. A small group borrows from all rows: their errors' shape counts as
        much as 20 rows, and their scale as the differences between groups call for.
        Rows without a label, and of labels that `fit` has not seen, get that of all rows.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        How out-of-fold predictions are made; None is 5-fold cross-validation. With "prefit" the
        estimator is fitted already and stays as it is: give `fit` rows that it has not seen.
    n_jobs : int or None, default=None
        Number of folds that are fitted in parallel.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    estimator_ : regressor
        Estimator fitted on all rows.
    scale_ : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations; with `groups` that of all rows together. Where
        `estimator` has none, the standard deviation of its errors.
    levels_ : tuple of ndarray of shape (n_knots,) or (n_knots, n_outputs), or None
        With "isotonic", predicted levels and the observed ones that replace them.
    scores_ : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors, in calibrated standard deviations.
    calibration_rows_ : CalibrationRows
        Rows that were calibrated on and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of overlap; only after `recalibrate`.
    drift_ : CalibrationDrift
        How far the calibration of `fit` is from the truths that came since; only after
        `partial_calibrate`.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyClassifier : For classes.
    sklearn.calibration.CalibratedClassifierCV : Calibrates probabilities; they have no parts.

    Notes
    -----
    Folds train on fewer rows than the final estimator, so its uncertainty is rather too
    large than too small. Folds of scikit-learn's default are not shuffled; for sorted
    rows give ``cv=KFold(5, shuffle=True, random_state=0)``. The conformal guarantee is exact for
    ``cv="prefit"``; over folds it holds to within what the final fit differs from the
    folds'. Calibration says nothing about shift: `recalibrate` takes inputs
    of the target into account, and `partial_calibrate` truths as they arrive.

    After `partial_calibrate` the distribution is a `skuq.predictive.AdaptedDistribution`: quantiles
    of the normal scores of the truths are followed with six step sizes, which are weighted by
    their losses. Its standard deviation is the root mean square distance from the point
    prediction, so that a bias makes it larger. With "conformal", density and samples then follow
    the intervals.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 (scale); Kuleshov, Fenner and Ermon (2018)
    (isotonic); Lei et al. (2018), section 5.2 (conformal); Smyth (2004) (scales of groups);
    Tibshirani et al. (2019), "Conformal prediction under covariate shift"; Gibbs and Candès
    (2024), "Conformal inference for online prediction with arbitrary distribution shifts".

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

    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        "method": [StrOptions({"scale", "isotonic", "conformal"})],
    }
    _kind = "a regressor"
    _is_kind = staticmethod(is_regressor)
    _has_posterior = False

    def __init__(
        self, estimator, method="scale", *, groups=None, cv=None, n_jobs=None, verbose=None
    ):
        self.estimator = estimator
        self.method = method
        self.groups = groups
        self.cv = cv
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_y(self, y):
        y = check_targets(y, self)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return y

    def _distribution(self, estimator, X):
        return regressor_distribution(estimator, X, self.method)

    def _learn(self, rows):
        return learn_calibration(rows, self.method, self.groups)

    def _weighted(self, calibration, ratio):
        return WeightedCalibration(calibration, ratio)

    def _adapted(self, calibration):
        n_outputs = int(np.prod(self.fitted_.output_shape(), dtype=int))
        return AdaptedCalibration(calibration, QuantileTracker.start(n_outputs))

    def _drift(self):
        return self.calibration_.tracker.drift(self.fitted_.output_shape())

    def _check_truths(self, y):
        y = check_array(
            y, ensure_2d=False, dtype="float64", input_name="y", ensure_all_finite=False
        )
        shape = self.fitted_.output_shape()
        y = y.reshape(len(y), *shape) if y.size == len(y) * np.prod(shape, dtype=int) else y
        if y.shape[1:] != shape:
            raise ValueError(
                f"y must have shape (n{''.join(f', {m}' for m in shape)}). Got {y.shape}."
            )
        wrong = np.flatnonzero(~np.isfinite(y).reshape(len(y), -1).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"y must hold truths. Row {wrong[0]} is {y[wrong[0]]}, one of {len(wrong)} that "
                "are missing or infinite: leave out rows whose truth has not arrived."
            )
        return y

    @property
    def scale_(self):
        """Factor of the standard deviations."""
        return self.calibration_.scale

    @property
    def levels_(self):
        """With "isotonic": predicted and observed levels."""
        return _of_all_rows(self.calibration_).levels

    @property
    def scores_(self):
        """With "conformal": sorted absolute errors out of fold, in calibrated stds."""
        return _of_all_rows(self.calibration_).scores

    def predict(self, X, return_std=False):
        """The estimator's prediction, and on request the calibrated standard deviation.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of shape (n[, m])
            Exactly what the estimator predicts.
        std : ndarray of shape (n[, m])
            Only if `return_std`; in units of y.
        """
        check_is_fitted(self)
        mean = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        return (mean, self.predict_distribution(X).std) if return_std else mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            inner = self.estimator.__sklearn_tags__()
            tags.target_tags.multi_output = inner.target_tags.multi_output
        return tags


@saved_as("estimators.CalibratedUncertaintyClassifier", kind="estimator")
class CalibratedUncertaintyClassifier(_CalibratedUncertainty, UncertaintyClassifier):
    """A classifier whose probabilities mean what they say.

    The classifier predicts every row out of fold, a calibration is found under which these rows'
    classes are most likely, and the classifier is fitted on all rows. The predicted class stays
    that of the classifier.

    Parameters
    ----------
    estimator : classifier
        Classifier with `predict_distribution` (all of skuq's) or `predict_proba`; also the last
        step of a pipeline or the estimator of a search.
    method : {"temperature", "vector"}, default="temperature"
        "temperature" divides the logarithms of all probabilities by one number. "vector" gives each
        class a factor and a bias of its own, which also mends classes that are predicted too often;
        it needs some dozen rows of each class.
    groups : str, int, callable or None, default=None
        Groups of rows with a calibration each, so that intervals and probabilities are right in
        every group and not on average only: a column of X (name or position), a function of X
        that gives a label for each row, or "uncertainty" for up to ten equally large bins of the
        predicted uncertainty. A small group borrows from all rows: their errors' shape counts as
        much as 20 rows, and their scale as the differences between groups call for.
        Rows without a label, and of labels that `fit` has not seen, get that of all rows.
    epistemic : bool, default=False
        Whether the members' differences from the average are multiplied by the factor under which
        the classes of similar rows are most likely together, so that mutual information is
        calibrated too. By default they stay as they are.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        How out-of-fold predictions are made; None is 5-fold cross-validation. With "prefit" the
        estimator is fitted already and stays as it is: give `fit` rows that it has not seen.
    n_jobs : int or None, default=None
        Number of folds that are fitted in parallel.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    estimator_ : classifier
        Estimator fitted on all rows.
    spread_ : float
        Factor of the members' differences from the average; 1 without `epistemic`.
    temperature_ : float
        Divisor of the log probabilities; above 1 the classifier was too sure. With "vector" it is
        one over the mean factor, and with `groups` that of all rows together.
    calibration_rows_ : CalibrationRows
        Rows that were calibrated on and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of overlap; only after `recalibrate`.
    drift_ : ClassDrift
        How far the calibration of `fit` is from the truths that came since; only after
        `partial_calibrate`.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyRegressor : For numbers.
    sklearn.calibration.CalibratedClassifierCV : Probabilities only, by more methods.

    Notes
    -----
    The temperature acts on the averaged probabilities, which is better than on each
    member's (Rahaman and Thiery, 2021) and leaves the predicted class alone. Members keep
    their differences from the average, shortened where a probability would be negative,
    so that entropies still have parts.

    `partial_calibrate` follows a slope of the logits and a bias of each class with online Newton
    steps, which forget at six rates or not at all; probabilities are averaged over these by
    Bayes' rule.

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

    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        "epistemic": ["boolean"],
        "method": [StrOptions({"temperature", "vector"})],
    }
    _kind = "a classifier"
    _is_kind = staticmethod(is_classifier)

    def __init__(
        self,
        estimator,
        method="temperature",
        *,
        groups=None,
        epistemic=False,
        cv=None,
        n_jobs=None,
        verbose=None,
    ):
        self.estimator = estimator
        self.method = method
        self.groups = groups
        self.epistemic = epistemic
        self.cv = cv
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_y(self, y):
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_ = np.asarray(self.estimator.classes_) if self.cv == "prefit" else np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least two classes. Got 1 class: {self.classes_.tolist()}."
            )
        class_codes(y, self.classes_)  # complains of labels the estimator does not know
        return y

    def _distribution(self, estimator, X):
        return classifier_distribution(estimator, X, self.classes_)

    def _learn(self, rows):
        return learn_class_calibration(
            rows, self.method, self.classes_, self.groups, epistemic=self.epistemic
        )

    def _adapted(self, calibration):
        return AdaptedClassCalibration(calibration, LogitTracker.start(len(self.classes_)))

    def _drift(self):
        return self.calibration_.tracker.drift()

    def _check_truths(self, y):
        return class_codes(column_or_1d(y, warn=True), self.classes_)

    @property
    def spread_(self):
        """Factor of the members' differences from the average."""
        return _of_all_rows(self.calibration_).spread

    @property
    def temperature_(self):
        """Above 1 the classifier was too sure."""
        calibration = _of_all_rows(self.calibration_)
        slopes = np.atleast_2d(calibration.slopes)[-1]  # of all rows, after those of groups
        return float(1 / slopes.mean())

    def predict(self, X, return_std=False):
        """The classifier's prediction, and on request how far members differ on it.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        labels : ndarray of shape (n,)
            Exactly what the classifier predicts.
        std : ndarray of shape (n,)
            Only if `return_std`; the standard deviation across members of the predicted
            class' probability.
        """
        check_is_fitted(self)
        labels = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if not return_std:
            return labels
        std = self.predict_distribution(X).std
        return labels, std[np.arange(len(std)), class_codes(labels, self.classes_)]
