"""Mixtures of class probabilities: what an ensemble of softmax networks predicts.

Notation: K members, n rows, C classes; entropies are in nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._checks import check_member_weights
from skuq._registry import saved_as
from skuq.predictive._types import FILLED_IN, RandomSource
from skuq.predictive._uncertainty import ClassUncertainty

# The smallest normal number: subnormal ones are 0 where a library has them flushed.
_SMALLEST = np.finfo(float).tiny


@saved_as("predictive.CategoricalMixture")
@dataclass(frozen=True, eq=False)
class CategoricalMixture:
    """Mixture of K distributions over C classes for every row; rows share the weights.

    Parameters
    ----------
    proba : ndarray of shape (K, n, C)
        Class probabilities of the members; each row sums to 1 within 1e-6 and is then
        used as given.
    weights : ndarray of shape (K,), optional
        Positive, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If proba has another shape, a row of it is not a distribution, or weights do not
        sum to 1.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search", section 3.1 (the average of the members'
    outputs); Lakshminarayanan et al. (2017), section 2.4. Entropies by source: Depeweg
    et al. (2018), "Decomposition of Uncertainty in Bayesian Deep Learning".

    Examples
    --------
    >>> import numpy as np
    >>> torn = CategoricalMixture(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> torn.mean, torn.std
    (array([[0.5, 0.5]]), array([[0.5, 0.5]]))

    Each member is certain, but of another class: all of log(2) nats is epistemic.

    >>> total, aleatoric, epistemic = torn.uncertainty()
    >>> aleatoric, epistemic.round(4)
    (array([0.]), array([0.6931]))
    """

    proba: np.ndarray
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        proba = np.asarray(self.proba, dtype=float)
        if proba.ndim != 3 or not len(proba) or not proba.shape[2]:
            raise ValueError(
                f"proba must have shape (n_members, n_samples, n_classes). Got {proba.shape}."
            )
        sums = proba.sum(axis=2)
        if not ((proba >= 0).all() and (np.abs(sums - 1) <= 1e-6).all()):
            raise ValueError(
                "Each row of proba must be non-negative and sum to 1. The smallest probability "
                f"is {proba.min()}, the sums are between {sums.min()} and {sums.max()}."
            )
        weights = check_member_weights(self.weights, len(proba), positive=True, tolerance=1e-9)
        for name, value in (("proba", proba), ("weights", weights)):
            object.__setattr__(self, name, value)

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Averaged probabilities, of shape (n, C)."""
        return self._average(self.proba)

    @property
    def log_mean(self) -> np.ndarray:
        """Logarithm of `mean`, of shape (n, C), in nats; at least -708.4, so never -inf."""
        return np.log(np.maximum(self.mean, _SMALLEST))

    @property
    def mode(self) -> np.ndarray:
        """Code of the class with the largest averaged probability, of shape (n,).

        The first of them where several are equal.
        """
        return self.mean.argmax(axis=1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each class' probability across members, of shape (n, C).

        The mixture's own: with the divisor K, so one member gives 0.
        """
        return np.sqrt(self._average((self.proba - self.mean) ** 2))

    def uncertainty(self) -> ClassUncertainty:
        """Entropy of the averaged probabilities by source.

        Returns
        -------
        ClassUncertainty
            Named tuple of total, aleatoric and epistemic, each of shape (n,), in nats and
            never negative; ``total == aleatoric + epistemic``.
        """
        # Both floors at 0 are against rounding; the first also against rows that sum to
        # just above 1.
        aleatoric = np.maximum(self._average(special.entr(self.proba).sum(axis=2)), 0)
        # As a divergence, not a difference of entropies, which cancels for members that
        # nearly agree. What is taken away averages to 0, but cancels what the mean's own
        # rounding does to the logarithm, and makes each term non-negative. Where the mean
        # of a subnormal and zeros is rounded to 0, the logarithm needs the floor.
        mean = self.mean
        terms = special.rel_entr(self.proba, np.maximum(mean, _SMALLEST)) - (self.proba - mean)
        divergence = terms.sum(axis=2)  # (K, n)
        epistemic = np.maximum(self._average(divergence), 0)
        # Total from its parts, so that they add up to the last digit.
        return ClassUncertainty(aleatoric + epistemic, aleatoric, epistemic)

    def log_prob(self, codes: ArrayLike) -> np.ndarray:
        """Log of the averaged probability of each row's class. Shape (n,).

        Parameters
        ----------
        codes : array-like of int of shape (n,)
            Classes as integers in [0, C).

        Returns
        -------
        ndarray of shape (n,)
            In nats; about -708 where the probability is 0, so never -inf.

        Raises
        ------
        ValueError
            If codes are not n integers in [0, C).
        """
        codes = np.asarray(codes)
        _, n, n_classes = self.proba.shape
        integers = codes.shape == (n,) and codes.dtype.kind in "iu"
        if not integers or ((codes < 0) | (codes >= n_classes)).any():
            raise ValueError(f"codes must be {n} integers in [0, {n_classes}). Got {codes}.")
        return self.log_mean[np.arange(n), codes]

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Joint draws of class codes, of shape (n, n_samples).

        Each draw takes one member and one uniform number for all rows, so that a draw
        is a function of the input and rows move together, as the members see it.
        """
        rng = np.random.default_rng(rng)
        cdf = self.proba.cumsum(axis=2)
        # Exactly 1 from the last possible class on, so that no impossible one is drawn.
        cdf /= cdf[..., -1:]
        member = rng.choice(len(self.weights), size=n_samples, p=self.weights)
        uniform = rng.random((n_samples, 1))
        codes = np.zeros((n_samples, cdf.shape[1]), dtype=int)
        # Class by class: all at once would hold an array of (n_samples, n, C).
        for edge in np.moveaxis(cdf[..., :-1], 2, 0):  # (K, n)
            codes += edge[member] <= uniform
        return codes.T

    def to_tfp(self) -> Any:
        """The same mixture as a TensorFlow Probability distribution of n rows."""
        from skuq.backend import tfd

        members = tfd.Categorical(probs=np.moveaxis(self.proba, 0, 1))  # (n, K, C)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), members)
