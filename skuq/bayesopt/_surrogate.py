"""Any fitted regressor as a posterior, and regressors of one output for many outputs."""

from __future__ import annotations

import inspect

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y

from skuq._registry import saved_as
from skuq.predictive import Posterior
from skuq.predictive._posterior import normal_indices

__all__ = ["OutputwiseRegressor", "check_surrogate", "posterior_of"]


def check_surrogate(estimator) -> None:
    """Raise TypeError if it is known already that a regressor, once fitted, gives no draws."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TypeError(f"`estimator` must be a regressor, not its class. Got {estimator!r}.")
    while isinstance(estimator, Pipeline):  # which predicts as its last step does
        estimator = estimator.steps[-1][1]
    if hasattr(estimator, "posterior_fn") or not hasattr(estimator, "predict"):
        return  # a search or another wrapper may show `predict` only once it is fitted
    parameters = inspect.signature(estimator.predict).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if "return_std" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise TypeError(
            "`estimator` must have `posterior_fn`, or predict(X, return_std=True): "
            f"{type(estimator).__name__} has no uncertainty to search by."
        )


def posterior_of(estimator, n_draws=128, random_state=None):
    """Draws of a fitted regressor's function.

    Parameters
    ----------
    estimator : object
        Fitted. With ``posterior_fn(n_draws, random_state)``, else with
        ``predict(X, return_std=True)``.
    n_draws : int, default=128
        At least 2. An ensemble of networks gives one draw a member instead.
    random_state : int, numpy.random.Generator or None, default=None

    Returns
    -------
    Posterior
        Of the estimator's own making where it has `posterior_fn`. Else for NumPy alone and
        not joint: a draw is the mean plus so many standard deviations, the same number for
        all rows, and outputs are independent.

    Raises
    ------
    TypeError
        If the estimator has neither.
    """
    if hasattr(estimator, "posterior_fn"):
        return estimator.posterior_fn(n_draws=n_draws, random_state=random_state)
    if not hasattr(estimator, "predict"):
        raise TypeError(f"estimator must have posterior_fn or predict. Got {estimator!r}.")
    row = np.zeros((1, estimator.n_features_in_))
    mean, _ = _mean_and_std(estimator, row)
    output_shape = mean.shape[1:]
    n_outputs = int(np.prod(output_shape))
    normals = normal_indices(n_draws, n_outputs, np.random.default_rng(random_state))

    def function(xp, arguments, X):
        mean, std = _mean_and_std(estimator, X)
        return mean + std * arguments[0].reshape(n_draws, 1, *output_shape)

    return Posterior(function, (normals,), None, n_draws, output_shape, joint=False)


def _mean_and_std(estimator, X):
    try:
        mean, std = estimator.predict(X, return_std=True)
    except TypeError as error:
        raise TypeError(
            "estimator.predict must take return_std=True and return (mean, std): "
            f"{type(estimator).__name__} has no uncertainty to search by."
        ) from error
    return np.asarray(mean), np.asarray(std)


@saved_as("bayesopt.OutputwiseRegressor", kind="estimator")
class OutputwiseRegressor(RegressorMixin, BaseEstimator):
    """A regressor of its own for every output.

    With a Gaussian process this is the composite surrogate of Astudillo and Frazier (2019)
    with independent outputs.

    Parameters
    ----------
    estimator : object
        A regressor of one output; every output gets a clone.

    Attributes
    ----------
    estimators_ : list
        One fitted clone an output.
    n_features_in_ : int
    output_shape_ : tuple of int
        Of the outputs of one row; () where y was 1-D.

    References
    ----------
    Astudillo and Frazier (2019), "Bayesian optimization of composite functions", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import OutputwiseRegressor
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> model = OutputwiseRegressor(GaussianProcessRegressor()).fit(X, np.hstack([X, 2 * X]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((5, 2), (5, 2))
    """

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        """Fit a clone to every column.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,), (n, m) or (n, q, d_s)

        Returns
        -------
        self
        """
        y = np.asarray(y)
        columns = y.reshape(len(y), -1)
        X, _ = check_X_y(X, columns, dtype="float64", multi_output=True, y_numeric=True)
        self.n_features_in_ = X.shape[1]
        self.output_shape_ = y.shape[1:]
        self.estimators_ = [clone(self.estimator).fit(X, column) for column in columns.T]
        return self

    def predict(self, X, return_std=False):
        """Means, and standard deviations on request.

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
        X = check_array(X, dtype="float64")
        shape = (len(X), *self.output_shape_)
        if not return_std:
            return self._stacked([e.predict(X) for e in self.estimators_], shape)
        means, stds = zip(*(e.predict(X, return_std=True) for e in self.estimators_))
        return self._stacked(means, shape), self._stacked(stds, shape)

    @staticmethod
    def _stacked(columns, shape):
        return np.stack(columns, axis=1).reshape(shape)
