"""What every classifier predicts, derived from one thing: its predictive distribution."""

from __future__ import annotations

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_consistent_length, column_or_1d

from skuq.estimators._base import PredictionMixin
from skuq.estimators._folds import class_codes
from skuq.predictive._uncertainty import ClassUncertainty

__all__ = ["UncertaintyClassifierMixin"]


class UncertaintyClassifierMixin(PredictionMixin, ClassifierMixin):
    """The prediction API of all classifiers.

    A subclass gives ``_predict_distribution(X) -> CategoricalMixture``, where X is
    validated, and has the labels `classes_` in the order of its codes. Shapes below are
    for n rows and C classes.
    """

    def predict_proba(self, X, return_std=False):
        """Class probabilities, averaged over the members.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        proba : ndarray of shape (n, C)
            Columns in the order of `classes_`.
        std : ndarray of shape (n, C)
            Only if `return_std`; each probability's standard deviation across members.
        """
        distribution = self.predict_distribution(X)
        return (distribution.mean, distribution.std) if return_std else distribution.mean

    def predict_log_proba(self, X):
        """Logarithm of the averaged class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, C)
            In nats; about -708 where a probability is 0, so never -inf.
        """
        return self.predict_distribution(X).log_mean

    def predict(self, X, return_std=False):
        """Most probable class, and on request how far members differ on it.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        labels : ndarray of shape (n,)
            Out of `classes_`.
        std : ndarray of shape (n,)
            Only if `return_std`; the standard deviation across members of the predicted
            class' probability.
        """
        distribution = self.predict_distribution(X)
        mode = distribution.mode
        labels = self.classes_[mode]
        return (labels, distribution.std[np.arange(len(mode)), mode]) if return_std else labels

    def predict_uncertainty(self, X) -> ClassUncertainty:
        """Entropies of the predicted class by source.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ClassUncertainty
            Named tuple of total, aleatoric and epistemic, each of shape (n,), in nats and
            never negative; ``total == aleatoric + epistemic``.
        """
        return self.predict_distribution(X).uncertainty()

    def sample_y(self, X, n_samples=1, random_state=None):
        """Joint draws of labels: one member and one uniform number for all rows of a draw.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n, n_samples)
            Out of `classes_`.
        """
        return self.classes_[super().sample_y(X, n_samples, random_state)]

    def log_prob(self, X, y):
        """Log of the averaged probability of each row's label.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,)
            Labels out of `classes_`.

        Returns
        -------
        ndarray of shape (n,)
            In nats; about -708 where the probability is 0, so never -inf.

        Raises
        ------
        ValueError
            If y holds labels that are not in `classes_`, or another number of rows than X.
        """
        distribution = self.predict_distribution(X)
        y = column_or_1d(y)
        check_consistent_length(distribution.mean, y)
        return distribution.log_prob(self._codes(y))

    def _codes(self, y: np.ndarray) -> np.ndarray:
        return class_codes(y, self.classes_)
