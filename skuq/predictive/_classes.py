"""Mixtures of class probabilities, as ensembles of classifiers predict them, and their calibration.

Notation: K members, n rows, C classes; entropies are in nats; codes (n,) are the positions of the
rows' classes, weights (n,) are 1 for a row of average weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.special import softmax

from skuq._params import check_member_weights, check_probabilities, read_only_copy
from skuq.files._registry import saved_as
from skuq.predictive._distributions import FILLED_IN, ClassUncertainty, RandomSource

# The smallest normal number; subnormal numbers can be flushed to 0.
_SMALLEST = np.finfo(float).tiny


@saved_as("predictive.CategoricalMixture")
@dataclass(frozen=True, eq=False)
class CategoricalMixture:
    """Mixture of K distributions over C classes for every row; rows share the weights.

    Parameters
    ----------
    proba : ndarray of shape (K, n, C)
        Class probabilities of the members. Each row must sum to 1 within 1e-6; it is not
        normalised.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

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

    Each member is certain of a different class: all of the log(2) nats are epistemic.

    >>> total, aleatoric, epistemic = torn.uncertainty()
    >>> aleatoric, epistemic.round(4)
    (array([0.]), array([0.6931]))
    """

    proba: np.ndarray
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        proba = read_only_copy(self.proba)
        if proba.ndim != 3 or not len(proba) or not proba.shape[2]:
            raise ValueError(
                f"proba must have shape (n_members, n_samples, n_classes). Got {proba.shape}."
            )
        check_probabilities("Each row of proba", proba, axis=2)
        weights = check_member_weights(self.weights, len(proba), positive=True, tolerance=1e-9)
        vars(self).update(proba=proba, weights=weights)

    def _average(self, values: np.ndarray) -> np.ndarray:
        """Average (K, ..) over the members, with their weights."""
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Averaged probabilities, of shape (n, C)."""
        return self._average(self.proba)

    @property
    def log_mean(self) -> np.ndarray:
        """Logarithm of `mean`, of shape (n, C), in nats; at least -708.4 instead of -inf."""
        return np.log(np.maximum(self.mean, _SMALLEST))

    @property
    def mode(self) -> np.ndarray:
        """Code of the class with the largest averaged probability, of shape (n,).

        Of several equal probabilities, the first class is taken.
        """
        return self.mean.argmax(axis=1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each class' probability over members, of shape (n, C).

        The divisor is K, so that one member gives 0.
        """
        return np.sqrt(self._average((self.proba - self.mean) ** 2))

    @np.errstate(under="ignore")
    def uncertainty(self) -> ClassUncertainty:
        """Compute the entropy of the averaged probabilities, by source.

        Returns
        -------
        ClassUncertainty
            Named tuple of total, aleatoric and epistemic entropy, each of shape (n,), in nats and
            never negative; ``total == aleatoric + epistemic``.
        """
        # Rounding could make both parts negative, and so could rows that sum to just above 1.
        aleatoric = np.maximum(self._average(special.entr(self.proba).sum(axis=2)), 0)
        # The mutual information is computed as a mean Kullback-Leibler divergence from the
        # average, because a difference of entropies cancels for members that nearly agree.
        # Subtracting p - mean, which averages to 0, makes each term non-negative and removes the
        # effect of rounding in the mean. The floor is for means of subnormal numbers, which can
        # round to 0.
        mean = self.mean
        terms = special.rel_entr(self.proba, np.maximum(mean, _SMALLEST)) - (self.proba - mean)
        divergence = terms.sum(axis=2)  # (K, n)
        epistemic = np.maximum(self._average(divergence), 0)
        # The total is the sum of its parts, so that they add up exactly.
        return ClassUncertainty(aleatoric + epistemic, aleatoric, epistemic)

    def log_prob(self, codes: ArrayLike) -> np.ndarray:
        """Compute the log of the averaged probability of each row's class, of shape (n,).

        Parameters
        ----------
        codes : array-like of int of shape (n,)
            Classes as integers in [0, C).

        Returns
        -------
        ndarray of shape (n,)
            Log probabilities in nats; about -708 instead of -inf for a probability of 0.

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

    def sample(
        self, n_samples: int = 1, rng: RandomSource = None, seed: int | None = None
    ) -> np.ndarray:
        """Draw class codes jointly for all rows, to shape (n, n_samples).

        Each draw takes one member for all rows, so that they depend on each other as the member
        predicts. Given the member, the classes of rows are drawn independently. Distributions of
        other rows that draw with the same `seed` take the same members.
        """
        rng = np.random.default_rng(rng)
        members = rng if seed is None else np.random.default_rng(seed)
        cdf = self.proba.cumsum(axis=2)
        # Make the cdf exactly 1 from the last possible class on: no impossible class is drawn.
        cdf /= cdf[..., -1:]
        member = members.choice(len(self.weights), size=n_samples, p=self.weights)
        uniform = rng.random((n_samples, cdf.shape[1]))
        codes = np.zeros(uniform.shape, dtype=int)
        # Loop over classes, because all at once would need an array of (n_samples, n, C).
        for edge in np.moveaxis(cdf[..., :-1], 2, 0):  # (K, n)
            codes += edge[member] <= uniform
        return codes.T

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution with a batch of n independent rows."""
        from skuq.backend import tfd

        members = tfd.Categorical(probs=np.moveaxis(self.proba, 0, 1))  # (n, K, C)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), members)


_LEAST_PROBABILITY = np.finfo(float).eps  # that a temperature can work on


def scaled_probabilities(proba: np.ndarray, slope: float) -> np.ndarray:
    """Multiply the logarithms of probabilities (n, C) by a slope, and normalise.

    A probability of 0 counts as 2e-16, because a class that a neighbourhood or a tree has not seen
    is not impossible.
    """
    return np.asarray(softmax(slope * np.log(np.maximum(proba, _LEAST_PROBABILITY)), axis=-1))
