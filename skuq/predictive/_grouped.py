"""Distributions with separate records for groups of rows.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import as_floats
from skuq.predictive._continuous import Continuous
from skuq.predictive._types import RandomSource
from skuq.predictive._uncertainty import Uncertainty


@dataclass(frozen=True, eq=False)
class GroupedDistribution(Continuous):
    """Distribution for every row, with a separate record for each group of rows.

    Parameters
    ----------
    parts : tuple of distributions
        One record for each group, all with the same number of outputs.
    rows : tuple of ndarray of int
        Positions of the rows of each record. Together they hold 0 to n - 1, each once.

    Raises
    ------
    ValueError
        If the rows are not 0 to n - 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> narrow = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> wide = GaussianMixture(np.zeros((1, 2)), np.full((1, 2), 5.0))
    >>> GroupedDistribution((narrow, wide), (np.array([1]), np.array([0, 2]))).std
    array([5., 1., 5.])
    """

    parts: tuple[Any, ...]
    rows: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        together = np.sort(np.concatenate(self.rows))
        if len(self.parts) != len(self.rows) or (together != np.arange(len(together))).any():
            raise ValueError(
                "`rows` must hold each row from 0 to n - 1 once, with one array a record. Got "
                f"{len(self.parts)} records and rows {[rows.tolist() for rows in self.rows]}."
            )

    @property
    def _shape(self) -> tuple[int, ...]:
        return (sum(map(len, self.rows)), *self.parts[0].mean.shape[1:])

    def _gather(self, values: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
        """Put the records' values, whose rows are on `axis`, into the order of the rows."""
        together = np.concatenate(values, axis=axis)
        # The argsort of a permutation is its inverse.
        return np.take(together, np.argsort(np.concatenate(self.rows)), axis=axis)

    @property
    def mean(self) -> np.ndarray:
        """Point prediction of each record, of shape (n[, m])."""
        return self._gather([part.mean for part in self.parts])

    @property
    def variance(self) -> np.ndarray:
        """Variance of each record, in squared units of y."""
        return self._gather([part.variance for part in self.parts])

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, in squared units of y."""
        return self._gather([part.aleatoric_variance for part in self.parts])

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance beyond the noise's, in squared units of y."""
        return self._gather([part.epistemic_variance for part in self.parts])

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Compute the mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = zip(*(part.uncertainty(ddof) for part in self.parts))
        return Uncertainty(*(self._gather(values) for values in parts))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Compute P(Y <= y) for each row and output; y broadcasts against (n[, m])."""
        y = as_floats(y)
        y = np.broadcast_to(y, np.broadcast_shapes(y.shape, self._shape))
        axis = y.ndim - len(self._shape)
        found = [part.cdf(np.take(y, rows, axis)) for part, rows in zip(self.parts, self.rows)]
        return self._gather(found, axis)

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m])."""
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        found = [part.inverse_cdf(levels[:, rows]) for part, rows in zip(self.parts, self.rows)]
        return self._gather(found, axis=1)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Compute the log density of each row, of all outputs together. Shape (n,)."""
        y = self._check_y(y)
        return self._gather([part.log_prob(y[rows]) for part, rows in zip(self.parts, self.rows)])

    def output(self, k: int) -> GroupedDistribution:
        """Select the marginal distribution of one of several outputs."""
        return GroupedDistribution(tuple(part.output(k) for part in self.parts), self.rows)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly, to shape (n[, m], n_samples).

        All records draw from the same random numbers, so that a draw takes one member and one
        level for the rows of all groups.
        """
        seed = np.random.default_rng(rng).integers(2**63)
        return self._gather(
            [part.sample(n_samples, np.random.default_rng(seed)) for part in self.parts]
        )
