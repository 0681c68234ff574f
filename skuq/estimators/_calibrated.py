"""Fit an estimator and calibrate its uncertainty on rows that it has not seen."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skuq._checks import check_weights
from skuq._params import HasMethods, StrOptions, safe_indexing, safe_split
from skuq._warnings import warn_user
from skuq.estimators._arrival import check_order
from skuq.estimators._base import fits
from skuq.estimators._folds import check_takes_weights, inherit_tags, read_foreign_rows
from skuq.estimators._out_of_fold import describe_routing, fit_folds, route, split_rows
from skuq.exceptions import CalibrationWarning
from skuq.fitted import CalibrationRows, FittedCalibrated
from skuq.fitted._adapted import adapt
from skuq.fitted._density_ratio import fit_density_ratio

_SMALL_WEIGHT = 0.1  # mean weight of a row below which weights are hardly meant as counts

CONSTRAINTS: dict = {
    "estimator": [HasMethods(["fit", "predict"])],
    "cv": ["cv_object", StrOptions({"prefit"})],
    "groups": [str, Integral, callable, None],
    "n_jobs": [Integral, None],
    "verbose": ["verbose", None],
}


class CalibratedUncertainty:
    """Methods that calibrated regressors and classifiers have in common.

    A subclass predicts with any fitted estimator (`_distribution`), learns a calibration from
    predicted rows (`_learn`), and checks the targets of `fit` (`_check_y`) and of
    `partial_calibrate` (`_check_truths`).
    """

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
            counts as two equal rows; weights that are only relative should have the mean 1.
        **fit_params
            Further arguments of the estimator's `fit`, for example `validation_data`. Arrays with
            one entry per row are divided like the rows. `groups`, an array and not the parameter
            of that name, is passed to `cv` as well: rows of one group are then never in two folds,
            also with the default of `cv`. With metadata routing enabled, the estimator and `cv` get
            what they request.

        Returns
        -------
        self

        Warns
        -----
        CalibrationWarning
            If the mean weight is below 0.1, or the parameter `groups` makes groups of fewer than 20
            rows.
        """
        prefit = isinstance(self.cv, str)
        self._check_estimator(prefit, sample_weight)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X, _, sample_weight = read_foreign_rows(self, X, y, sample_weight)
        weight = check_weights(sample_weight, X)
        y = self._check_y(y)
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
        fit_params, splitting = route(self, X, sample_weight, fit_params)
        if prefit:
            fitted, rows = self.estimator, np.flatnonzero(used)
            folds = [(self._distribution(fitted, safe_split(fitted, X, y, rows)[0]), rows)]
        else:
            splits = split_rows(self, X, y, used, splitting)
            *folds, fitted = fit_folds(self, self._distribution, X, y, fit_params, splits)
        mixtures, rows = zip(*folds)
        order = np.concatenate(rows)
        # A row counts once, also if repeated folds predict it several times. A weight of 2 is that
        # of a row that is there twice, which decides how much priors count.
        n_times = len(order) / len(np.unique(order))
        self.calibration_rows_ = CalibrationRows(
            safe_indexing(X, order), mixtures, y[order], weight[order] / n_times
        )
        self.estimator_ = fitted
        self.calibration_ = self._learn(self.calibration_rows_)
        return self

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
        ratio, factor = fit_density_ratio(rows.X, X_target, rows.weight, classifier)
        self.calibration_ = self._learn(rows.with_weights_times(factor), ratio)
        self.density_ratio_ = ratio
        vars(self).pop("last_time_", None)
        return self

    def partial_calibrate(self, X, y, *, time=None):
        """Update the calibration with truths that have arrived, without another fit.

        Later predictions are those of `fit`, corrected by the truths seen so far. Rows may arrive
        one by one or many at a time, in the order of time.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows whose truths have arrived.
        y : array-like of shape (n,), or of numbers (n, n_outputs)
            Truths of the rows, in the order of their arrival. One row's may be a number or label.
        time : array-like of shape (n,) or None, default=None
            Times of the rows, numbers or dates, for checking their order. None checks nothing.

        Returns
        -------
        self
            It has `drift_`, which describes the deviation from the calibration of `fit`.

        Raises
        ------
        ValueError
            If a truth is missing, or a time is before one that was seen already.

        Warns
        -----
        CalibrationWarning
            If a truth is more than 1000 standard deviations away from its prediction.
        """
        check_is_fitted(self)
        X = self.fitted_.inputs.validate(X, self)
        y = self._check_truths([y] if np.ndim(y) == 0 else y)
        check_consistent_length(X, y)
        last_time = check_order(time, len(y), getattr(self, "last_time_", None))
        self.calibration_ = adapt(self.calibration_).updated(self.estimator_, X, y)
        if last_time is not None:
            self.last_time_ = last_time
        return self

    @property
    def drift_(self):
        """Deviation of the calibration of `fit` from the truths that have arrived since."""
        if not hasattr(self.calibration_, "drift"):
            raise AttributeError("`drift_` is available after `partial_calibrate`.")
        return self.calibration_.drift

    @property
    def fitted_(self) -> FittedCalibrated:
        """The estimator fitted on all rows, and its calibration."""
        return FittedCalibrated(self.estimator_, self.calibration_)

    def _distribution(self, estimator: Any, X: Any) -> Any:
        """Predict with a fitted estimator, before calibration."""
        raise NotImplementedError

    def _learn(self, rows: CalibrationRows, ratio: Any = None) -> Any:
        """Learn a calibration; `ratio` is the density ratio by which rows are weighted, if any."""
        raise NotImplementedError

    def get_metadata_routing(self):
        """Describe the metadata that the estimator and `cv` request.

        Returns
        -------
        MetadataRouter
        """
        return describe_routing(self)

    def _check_estimator(self, prefit, sample_weight):
        """Raise if `estimator` is of the wrong kind, not fitted, or cannot take the weights."""
        kind, is_kind = (
            ("classifier", is_classifier) if is_classifier(self) else ("regressor", is_regressor)
        )
        if not is_kind(self.estimator):
            raise ValueError(f"`estimator` must be a {kind}. Got {self.estimator!r}.")
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
