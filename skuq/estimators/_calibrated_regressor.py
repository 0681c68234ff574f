"""Regressors with calibrated uncertainty."""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from skuq._checks import check_targets, fill_masked
from skuq._params import StrOptions
from skuq._registry import saved_as
from skuq.estimators._base import UncertaintyRegressor
from skuq.estimators._calibrated import CONSTRAINTS, CalibratedUncertainty
from skuq.fitted import WeightedCalibration
from skuq.fitted._calibrated import regressor_distribution
from skuq.fitted._learning import learn_calibration


@saved_as("estimators.CalibratedUncertaintyRegressor", kind="estimator")
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
        distribution of its errors, which is the same for all rows.
    method : {"scale", "isotonic", "conformal"}, default="scale"
        "scale" multiplies all standard deviations by the factor that maximises the likelihood of
        the calibration rows, shrunk towards 1 by its standard error: a factor that does not differ
        significantly from 1 is 1. This single parameter suits small data. "isotonic" also maps
        predicted levels to observed ones, which corrects every quantile, also if errors are skewed.
        "conformal" also takes intervals from the standardised errors. They cover new rows with at
        least the nominal probability, if new rows have the distribution of the calibration rows,
        whatever it is.
    groups : str, int, callable or None, default=None
        Groups of rows that are calibrated separately, so that intervals and probabilities are right
        in every group: a column of X (name or position), a function of X that returns a label for
        each row, or "uncertainty" for up to ten equally large bins of the predicted uncertainty.
        Small groups are shrunk towards all rows: the shape of all rows' errors counts as much as 20
        rows of the group, and their scale depends on how much groups differ. Rows without a label,
        or with one that `fit` has not seen, get the calibration of all rows. None calibrates all
        rows together.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions; None is 5-fold cross-validation. "prefit" takes a
        fitted estimator as it is; then pass rows to `fit` that it has not seen.
    n_jobs : int or None, default=None
        Number of folds that are fitted in parallel; None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    estimator_ : regressor
        Estimator fitted on all rows.
    scale_ : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations; with `groups` that of all rows together. If `estimator`
        predicts no uncertainty, it is the standard deviation of its errors.
    levels_ : tuple of ndarray of shape (21,) or (21, n_outputs), or None
        With "isotonic", predicted levels and the observed levels that replace them.
    scores_ : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    calibration_rows_ : CalibrationRows
        Calibration rows and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of the overlap; only after `recalibrate`.
    drift_ : CalibrationDrift
        Deviation of the calibration of `fit` from the truths that have arrived since; only after
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
    population, and `partial_calibrate` uses truths as they arrive.

    After `partial_calibrate` the distribution is a `skuq.predictive.AdaptedDistribution`. Quantiles
    of the truths' normal scores are tracked with six step sizes, which are weighted by their
    losses. The standard deviation is the root mean square distance from the point prediction, so
    that a bias increases it. With "conformal", density and samples then follow the intervals.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 (scale); Breiman (1995), "Better Subset Regression Using the
    Nonnegative Garrote" (its shrinkage); Kuleshov, Fenner and Ermon (2018) (isotonic); Lei et al.
    (2018), section 5.2 (conformal); Smyth (2004) (scales of groups); Tibshirani et al. (2019),
    "Conformal prediction under covariate shift"; Gibbs and Candès (2024), "Conformal inference for
    online prediction with arbitrary distribution shifts".

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
        **CONSTRAINTS,
        "method": [StrOptions({"scale", "isotonic", "conformal"})],
    }
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

    def _learn(self, rows, ratio=None):
        calibration = learn_calibration(rows, self.method, self.groups)
        return calibration if ratio is None else WeightedCalibration(calibration, ratio)

    def _check_truths(self, y):
        """Check that the truths y are finite and shaped like predictions, and return them."""
        y = check_array(
            fill_masked(y),
            ensure_2d=False,
            dtype="float64",
            input_name="y",
            ensure_all_finite=False,
        )
        shape = self.fitted_.output_shape()
        y = y.reshape(len(y), *shape) if y.size == len(y) * np.prod(shape, dtype=int) else y
        if y.shape[1:] != shape:
            raise ValueError(
                f"y must have shape (n,{''.join(f' {m}' for m in shape)}). Got {y.shape}."
            )
        wrong = np.flatnonzero(~np.isfinite(y).reshape(len(y), -1).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"y must hold finite truths. Row {wrong[0]} is {y[wrong[0]]}, one of {len(wrong)} "
                "that are missing or infinite: leave out rows whose truth has not arrived."
            )
        return y

    @property
    def scale_(self):
        """Factor of the standard deviations."""
        return self.calibration_.scale

    @property
    def levels_(self):
        """With "isotonic": predicted and observed levels."""
        return self.calibration_.whole.levels

    @property
    def scores_(self):
        """With "conformal": sorted absolute out-of-fold errors, in calibrated stds."""
        return self.calibration_.whole.scores

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
        mean = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if np.shape(mean)[1:] == (1,):  # some regressors return a column
            mean = np.reshape(mean, -1)
        return (mean, self.predict_distribution(X).std) if return_std else mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            inner = self.estimator.__sklearn_tags__()
            tags.target_tags.multi_output = inner.target_tags.multi_output
        return tags
