"""Predictions of each row by a model that has not seen it, with their uncertainty."""

import numpy as np
import sklearn.model_selection
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import get_routing_for_object

from skuq._params import BaseSearchCV, num_samples, unwrap_estimator
from skuq.predictive import Concatenated
from skuq.predictive._distributions import Continuous

__all__ = ["cross_val_predict"]


def cross_val_predict(
    estimator,
    X,
    y=None,
    *,
    groups=None,
    cv=None,
    n_jobs=None,
    verbose=0,
    params=None,
    pre_dispatch="2*n_jobs",
    method="predict_uncertainty",
    **method_params,
):
    """Predict each row, with its uncertainty, by a model that was fitted without it.

    It is scikit-learn's function of this name for methods that predict more than an array.

    Parameters
    ----------
    estimator : estimator
        Regressor or classifier with the method, or a pipeline or search with one inside. It is
        cloned.
    X : array-like of shape (n_samples, n_features)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
        Targets.
    groups : array-like of shape (n_samples,), default=None
        Groups of rows for `cv`, such as `GroupKFold()`. Under metadata routing they are a part of
        `params`.
    cv : int, splitter or iterable, default=None
        Folds, as in scikit-learn: None is five. Each row must be in the test rows of one fold.
    n_jobs : int, default=None
        Number of folds that are fitted at a time.
    verbose : int, default=0
        Level of messages about the fits, as in scikit-learn.
    params : dict, default=None
        Arguments of the estimator's `fit`, such as ``{"sample_weight": w}``.
    pre_dispatch : int or str, default="2*n_jobs"
        Number of folds that are sent to processes in advance.
    method : str, default="predict_uncertainty"
        Method of the estimator: also "predict_interval", "predict_quantiles", "predict_proba",
        "predict_distribution" and others that take X and predict each row.
    **method_params
        Arguments of the method, such as ``coverage=0.8``.

    Returns
    -------
    ndarray, tuple or distribution
        Predictions of the method, in the order of the rows of X: an array, a (named) tuple of
        arrays, or a `skuq.predictive.Concatenated` of the folds' distributions.

    Raises
    ------
    AttributeError
        If the estimator does not have the method.
    TypeError
        If predictions of this kind cannot be put together.
    ValueError
        If a row is in the test rows of no fold or of several, or if folds were trained on
        different classes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor
    >>> from skuq.model_selection import cross_val_predict
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CalibratedUncertaintyRegressor(BayesianRidge())
    >>> mean, aleatoric, epistemic, total = cross_val_predict(model, X, y)
    >>> distribution = cross_val_predict(model, X, y, method="predict_distribution")
    >>> distribution.cdf(y).shape
    (442,)
    """
    inner, _ = unwrap_estimator(estimator)
    if isinstance(inner, BaseSearchCV):  # not fitted yet
        inner, _ = unwrap_estimator(inner.estimator)
    if not (hasattr(estimator, method) or hasattr(inner, method)):
        raise AttributeError(
            f"`method` must be one that the estimator has. Got {method!r}, and {estimator!r}. "
            "CalibratedUncertaintyRegressor and CalibratedUncertaintyClassifier give any model "
            "methods that predict its uncertainty."
        )
    row_by_row = _RowByRow(estimator, method, method_params)
    options = {"groups": groups, "cv": cv, "params": params, "n_jobs": n_jobs, "verbose": verbose}
    rows = sklearn.model_selection.cross_val_predict(
        row_by_row, X, y, pre_dispatch=pre_dispatch, **options
    )
    parts = {id(predicted): (predicted, classes) for predicted, classes, _ in rows}
    predicted, classes = zip(*parts.values())
    if not all(np.array_equal(each, classes[0]) for each in classes):
        raise ValueError(
            f"Folds were trained on different classes: {[each.tolist() for each in classes]}. Give "
            "folds that all have all classes in training, such as StratifiedKFold's, or leave out "
            "rare classes."
        )
    position = dict(zip(parts, range(len(parts))))
    part, row = np.array([(position[id(predicted)], k) for predicted, _, k in rows]).T
    return _join(predicted, part, row)


class _RowByRow(BaseEstimator):
    """Estimator whose `predict` returns (prediction, classes, k) for the k-th row.

    The prediction is that of all rows, by any method: scikit-learn's function joins arrays of rows.
    """

    def __init__(self, estimator, method, method_params):
        self.estimator, self.method = estimator, method
        self.method_params = method_params

    def fit(self, X, *args, **params):
        self.estimator.fit(X, *args, **params)
        return self

    def predict(self, X):
        model, n_rows = self.estimator, num_samples(X)
        if not hasattr(model, self.method):
            model, X = unwrap_estimator(model, X)
        predicted = getattr(model, self.method)(X, **self.method_params)
        classes = getattr(model, "classes_", None)
        return np.fromiter(((predicted, classes, k) for k in range(n_rows)), dtype=object)

    def __sklearn_tags__(self):
        return get_tags(self.estimator)

    def get_metadata_routing(self):
        return get_routing_for_object(self.estimator)


def _join(predicted, part, row):
    """Join predictions of parts of the rows; each row is `row` of `part`, both (n,)."""
    first = predicted[0]
    if isinstance(first, Continuous):
        return Concatenated(predicted, part, row)
    if isinstance(first, tuple):
        columns = [_join(column, part, row) for column in zip(*predicted)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if not hasattr(first, "__len__"):
        raise TypeError(
            "Predictions of folds must be arrays, tuples of arrays, or distributions of numbers. "
            f"Got {type(first).__name__}, whose rows cannot be put together."
        )
    return np.concatenate(predicted)[np.cumsum([0, *map(len, predicted)])[part] + row]
