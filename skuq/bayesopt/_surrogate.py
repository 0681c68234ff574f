"""Posteriors of any regressor, and regressors that fit each output by itself."""

from __future__ import annotations

import inspect
import math

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import r2_score
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from skuq._checks import check_targets
from skuq._registry import saved_as
from skuq.predictive import Posterior
from skuq.predictive._posterior import quasi_random_normals
from skuq.tables._functions import flat_values


def check_surrogate(estimator) -> None:
    """Raise TypeError if draws cannot be had of a regressor once it is fitted."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TypeError(f"`estimator` must be a regressor, not its class. Got {estimator!r}.")
    while isinstance(estimator, Pipeline):  # predicts as its last step does
        estimator = estimator.steps[-1][1]
    if hasattr(estimator, "predict_proba"):
        raise TypeError(f"`estimator` must be a regressor. Got the classifier {estimator!r}.")
    if isinstance(estimator, TransformedTargetRegressor):
        raise TypeError(
            "The standard deviation of a TransformedTargetRegressor is not in units of y. Give the "
            "regressor inside, and let it standardise y itself: all of skuq do, and "
            "GaussianProcessRegressor does with `normalize_y=True`."
        )
    if hasattr(estimator, "posterior_fn") or not hasattr(estimator, "predict"):
        return  # a search or another wrapper may have `predict` only once it is fitted
    parameters = inspect.signature(estimator.predict).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if "return_std" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise TypeError(
            "`estimator` must have `posterior_fn`, or predict(X, return_std=True): "
            f"{type(estimator).__name__} has no uncertainty to search by."
        )


def posterior_of(estimator, n_draws=128, random_state=None, *, X=None, output_shape=None):
    """Get draws of a fitted regressor's function.

    Parameters
    ----------
    estimator : object
        Fitted regressor with ``posterior_fn(n_draws, random_state)``, or else with
        ``predict(X, return_std=True)``.
    n_draws : int, default=128
        Number of draws, at least 2. An ensemble of networks gives one draw for each member
        instead.
    random_state : int or None, default=None
        Seed of the draws.
    X : array-like of shape (n, n_features), optional
        Inputs at which an estimator without `posterior_fn` can predict, from which the shape of its
        outputs is found. By default a row of zeros.
    output_shape : tuple of int, optional
        Shape of one row's outputs, for an estimator without `posterior_fn`: scikit-learn's predict
        (n,) for targets (n, 1). By default that of its predictions.

    Returns
    -------
    Posterior
        The estimator's own, if it has `posterior_fn`. Otherwise a posterior in NumPy that is not
        joint: a draw is the mean plus z standard deviations, with one normal z for all rows, and
        outputs are independent.

    Raises
    ------
    TypeError
        If the estimator has neither.
    ValueError
        If predictions do not have the size of `output_shape`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import posterior_of
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> model = GaussianProcessRegressor(optimizer=None).fit(X, X[:, 0])
    >>> posterior_of(model, n_draws=3, random_state=0)(X).shape
    (3, 5)
    """
    if hasattr(estimator, "posterior_fn"):
        return estimator.posterior_fn(n_draws=n_draws, random_state=random_state)
    if not hasattr(estimator, "predict"):
        raise TypeError(f"estimator must have posterior_fn or predict. Got {estimator!r}.")
    # One prediction shows the shape of the outputs.
    row = np.zeros((1, estimator.n_features_in_)) if X is None else np.asarray(X)[:1]
    mean, _ = _mean_and_std(estimator, row)
    if output_shape is None:
        output_shape = mean.shape[1:]
    n_outputs = math.prod(output_shape)
    if n_outputs != mean.size:
        raise ValueError(
            f"The estimator predicts outputs of shape {mean.shape[1:]}, which have another size "
            f"than `output_shape`. Got {output_shape}."
        )
    normals = quasi_random_normals(n_draws, n_outputs, np.random.default_rng(random_state))

    def function(xp, arguments, X):
        mean, std = (v.reshape(len(X), *output_shape) for v in _mean_and_std(estimator, X))
        # (n, *output_shape) by (n_draws, 1, *output_shape): one z for all rows of a draw
        return mean + std * arguments[0].reshape(n_draws, 1, *output_shape)

    return Posterior(
        function, (normals,), key=None, n_draws=n_draws, output_shape=output_shape, joint=False
    )


def _mean_and_std(estimator, X):
    """Predict means and standard deviations, of shape (n, *output_shape)."""
    try:
        mean, std = estimator.predict(X, return_std=True)
    except TypeError as error:
        raise TypeError(
            "estimator.predict must take return_std=True and return (mean, std): "
            f"{type(estimator).__name__} has no uncertainty to search by."
        ) from error
    mean = np.asarray(mean)
    return mean, np.broadcast_to(std, mean.shape)


@saved_as("bayesopt.OutputwiseRegressor", kind="estimator")
class OutputwiseRegressor(RegressorMixin, BaseEstimator):
    """Fit a clone of a regressor to each output.

    With a Gaussian process this is the composite surrogate of Astudillo and Frazier (2019) with
    independent outputs.

    Parameters
    ----------
    estimator : object
        Regressor of one output.

    Attributes
    ----------
    estimators_ : list
        The fitted clones, one for each output.
    n_features_in_ : int
        Number of features seen by `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.
    output_shape_ : tuple of int
        Shape of the outputs of one row; () if y was 1-D.

    References
    ----------
    Astudillo and Frazier (2019), "Bayesian optimization of composite functions", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import OutputwiseRegressor
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> one = GaussianProcessRegressor(optimizer=None)  # a clone is fitted to each output
    >>> model = OutputwiseRegressor(one).fit(X, np.hstack([X, 2 * X]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((5, 2), (5, 2))
    """

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        """Fit a clone to each output.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,), (n, m) or (n, q, d_s)

        Returns
        -------
        self
        """
        flat, self.output_shape_ = flat_values(y)
        flat = check_targets(flat, self)
        X = validate_data(self, X, dtype="float64")
        check_consistent_length(X, flat)
        columns = flat.reshape(len(flat), -1)
        self.estimators_ = [clone(self.estimator).fit(X, column) for column in columns.T]
        return self

    def predict(self, X, return_std=False):
        """Predict means, and standard deviations on request.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of the shape of y
        std : ndarray of the shape of y
            If `return_std`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype="float64")
        shape = (len(X), *self.output_shape_)
        if not return_std:
            return self._stack([e.predict(X) for e in self.estimators_], shape)
        means, stds = zip(*(e.predict(X, return_std=True) for e in self.estimators_))
        return self._stack(means, shape), self._stack(stds, shape)

    def score(self, X, y, sample_weight=None):
        """Compute the coefficient of determination of the means, averaged over the outputs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of the shape of `fit`
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float
        """
        predicted, _ = flat_values(self.predict(X))
        return r2_score(flat_values(y)[0], predicted, sample_weight=sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @staticmethod
    def _stack(columns, shape):
        return np.stack(columns, axis=1).reshape(shape)
