"""What every regressor predicts, derived from one thing: its predictive distribution.

Classifiers do so too, in `_classifier`; what both share stands here.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from skuq._params import check_sample_weight
from skuq.estimators._rows import check_weights
from skuq.predictive._categorical_mixture import CategoricalMixture
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._uncertainty import Uncertainty

__all__ = ["PassThroughMixin", "PredictionMixin", "UncertaintyRegressorMixin"]


class PredictionMixin:
    """What regressors and classifiers share: one distribution, and draws from it.

    A subclass gives ``_predict_distribution(X)``, where X is validated. Shapes below are
    for n rows and m outputs; the output axis is absent where y was 1-D, and for classes.
    """

    def predict_distribution(self, X) -> GaussianMixture | CategoricalMixture:
        """The predictive distribution of each row, as a record.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        GaussianMixture or CategoricalMixture
            Of a regressor: mean, variance parts, cdf, quantile, log_prob, sample. Of a
            classifier: mean, mode, std, entropies, log_prob and sample, of class codes.
            Both have `to_tfp()`.
        """
        check_is_fitted(self)
        return self._predict_distribution(self._check_inputs(X))

    def _check_inputs(self, X):
        return validate_data(self, X, reset=False, dtype="float64")

    def sample_y(self, X, n_samples=1, random_state=None):
        """Joint draws: one member and one noise variable for all rows of a draw.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n[, m], n_samples)
        """
        seed = check_random_state(random_state).randint(2**31 - 1)
        return self.predict_distribution(X).sample(n_samples, np.random.default_rng(seed))


class UncertaintyRegressorMixin(PredictionMixin, RegressorMixin):
    """The prediction API of all regressors.

    A subclass gives ``_predict_distribution(X) -> GaussianMixture``, where X is validated,
    and may have the parameter `epistemic_ddof`. Shapes below are for n rows, m outputs and q
    quantiles; the output axis is absent where y was 1-D.
    """

    def predict_uncertainty(self, X) -> Uncertainty:
        """Mean and standard deviations by source.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        Uncertainty
            Named tuple of mean, aleatoric, epistemic and total, each of shape (n[, m])
            in units of y; ``total**2 == aleatoric**2 + epistemic**2``.
        """
        distribution = self.predict_distribution(X)
        return distribution.uncertainty(getattr(self, "epistemic_ddof", 0))

    def predict(self, X, return_std=False):
        """Predictive mean, and on request the total standard deviation.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of shape (n[, m])
        std : ndarray of shape (n[, m])
            Only if `return_std`; in units of y.
        """
        parts = self.predict_uncertainty(X)
        return (parts.mean, parts.total) if return_std else parts.mean

    def predict_interval(self, X, coverage=0.9):
        """Central interval that should hold y with probability `coverage`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        coverage : float, default=0.9

        Returns
        -------
        ndarray of shape (n, 2[, m])
            Quantiles of the mixture itself, lower end first.

        Raises
        ------
        ValueError
            If coverage is outside (0, 1).
        """
        return self.predict_distribution(X).interval(coverage)

    def predict_quantiles(self, X, quantiles=(0.05, 0.5, 0.95)):
        """Quantiles of the mixture itself, not of a moment-matched normal.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        quantiles : array-like of shape (q,), default=(0.05, 0.5, 0.95)
            Probabilities, strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n, q[, m])

        Raises
        ------
        ValueError
            If a probability is outside (0, 1).
        """
        return self.predict_distribution(X).quantile(np.atleast_1d(quantiles))

    def log_prob(self, X, y):
        """Log density of each row's y under its predictive mixture.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n[, m])

        Returns
        -------
        ndarray of shape (n,)
            In nats, with y's units in the density; of all outputs together.
        """
        distribution = self.predict_distribution(X)
        y = check_array(y, ensure_2d=False, dtype="float64", input_name="y")
        return distribution.log_prob(y)


class PassThroughMixin:
    """For estimators of estimators: X is handed on as it is, and these say what they accept."""

    def _check_inputs(self, X):
        if getattr(X, "ndim", 2) != 1:  # about a single row the others say what is wrong
            validate_data(self, X, reset=False, skip_check_array=True)
        return X

    def _check_rows(self, X, y, sample_weight):
        """X that can be indexed, weights to judge by, and weights to fit with or None."""
        (X,) = indexable(X)
        check_consistent_length(X, y)
        validate_data(self, X, skip_check_array=True)
        weight = check_weights(sample_weight, X)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, X)
        return X, weight, sample_weight

    def _inherit_tags(self, tags, estimators):
        """Accept what all of them accept."""
        inner = [get_tags(estimator).input_tags for estimator in estimators]
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        tags.input_tags.sparse = all(tag.sparse for tag in inner)
        return tags
