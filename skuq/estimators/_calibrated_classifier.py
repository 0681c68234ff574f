"""Classifiers with calibrated probabilities."""

from __future__ import annotations

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skuq._checks import check_labels, class_codes, fill_masked
from skuq._params import StrOptions
from skuq._registry import saved_as
from skuq.estimators._base import UncertaintyClassifier
from skuq.estimators._calibrated import CONSTRAINTS, CalibratedUncertainty
from skuq.fitted._calibrated import classifier_distribution
from skuq.fitted._learning import learn_class_calibration


@saved_as("estimators.CalibratedUncertaintyClassifier", kind="estimator")
class CalibratedUncertaintyClassifier(CalibratedUncertainty, UncertaintyClassifier):
    """Classifier with calibrated probabilities.

    The classifier predicts every row out of fold, a calibration is fitted to these predictions by
    maximum likelihood, and the classifier is fitted on all rows. The predicted class remains that
    of the classifier.

    Parameters
    ----------
    estimator : classifier
        Classifier with `predict_distribution` (all of skuq's) or `predict_proba`; also as the last
        step of a pipeline or the estimator of a search.
    method : {"temperature", "vector"}, default="temperature"
        "temperature" divides the logarithms of all probabilities by one number. "vector" gives each
        class its own factor and bias, which also corrects classes that are predicted too often. It
        needs a few dozen rows of each class.
    groups : str, int, callable or None, default=None
        Groups of rows that are calibrated separately, so that intervals and probabilities are right
        in every group: a column of X (name or position), a function of X that returns a label for
        each row, or "uncertainty" for up to ten equally large bins of the predicted uncertainty.
        Small groups are shrunk towards all rows: the shape of all rows' errors counts as much as 20
        rows of the group, and their scale depends on how much groups differ. Rows without a label,
        or with one that `fit` has not seen, get the calibration of all rows. None calibrates all
        rows together.
    epistemic : bool, default=False
        Whether to calibrate the members' differences from the average as well, and with them the
        mutual information. They are multiplied by the factor that maximises the joint likelihood of
        the classes of similar rows. By default they remain unchanged.
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
    estimator_ : classifier
        Estimator fitted on all rows.
    spread_ : float
        Factor of the members' differences from the average; 1 without `epistemic`.
    temperature_ : float
        Divisor of the log probabilities; above 1 if the classifier was overconfident. With "vector"
        it is one over the mean factor, and with `groups` that of all rows together.
    calibration_rows_ : CalibrationRows
        Calibration rows and their predictions, for `recalibrate`.
    density_ratio_ : DensityRatio
        Weights of these rows, with measures of the overlap; only after `recalibrate`.
    drift_ : ClassDrift
        Deviation of the calibration of `fit` from the truths that have arrived since; only after
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

    _parameter_constraints: dict = {
        **CONSTRAINTS,
        "epistemic": ["boolean"],
        "method": [StrOptions({"temperature", "vector"})],
    }

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
        y = check_labels(y)
        is_fitted = isinstance(self.cv, str) or isinstance(self.estimator, FrozenEstimator)
        self.classes_ = np.asarray(self.estimator.classes_) if is_fitted else np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least two classes. Got 1 class: {self.classes_.tolist()}."
            )
        class_codes(y, self.classes_)  # complains of labels the estimator does not know
        return y

    def _distribution(self, estimator, X):
        return classifier_distribution(estimator, X, self.classes_)

    def _learn(self, rows, ratio=None):
        return learn_class_calibration(
            rows, self.method, self.classes_, self.groups, epistemic=self.epistemic
        )

    def _check_truths(self, y):
        return class_codes(column_or_1d(fill_masked(y), warn=True), self.classes_)

    @property
    def spread_(self):
        """Factor of the members' differences from the average."""
        return self.calibration_.whole.spread

    @property
    def temperature_(self):
        """Divisor of the log probabilities; above 1 if the classifier was overconfident."""
        return self.calibration_.whole.temperature

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
        if not return_std:
            return labels
        std = self.predict_distribution(X).std
        return labels, std[np.arange(len(std)), class_codes(labels, self.classes_)]
