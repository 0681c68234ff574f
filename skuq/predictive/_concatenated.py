"""Distributions of the rows of several models, such as the folds of a cross-validation.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from skuq._params import read_only_copy
from skuq.files._registry import saved_as
from skuq.predictive._distributions import Continuous, Factor, RowIndex, Uncertainty


@saved_as("predictive.Concatenated")
@dataclass(frozen=True, eq=False, repr=False)
class Concatenated(Continuous):
    """Distributions of parts of the rows, each of a model of its own, in the order of the rows.

    `skuq.model_selection.cross_val_predict` returns them. A draw takes the same random numbers for
    what is epistemic in every part, such as the position of a mixture's member: models of different
    folds are trained on mostly the same rows, so that their errors are alike. The `correlation` of
    outputs is that of each part.

    Parameters
    ----------
    parts : tuple of Continuous
        Distributions of the parts, at least one, all of the same outputs.
    part : ndarray of int of shape (n,)
        For each row, the position of its part.
    row : ndarray of int of shape (n,)
        For each row, its position in its part.

    See Also
    --------
    skuq.model_selection.cross_val_predict : Predict every row by a model that has not seen it.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import Concatenated, EpistemicNormal
    >>> low, high = (EpistemicNormal([mean, mean], [1, 1], [0, 0]) for mean in (0.0, 10.0))
    >>> Concatenated((low, high), part=np.array([0, 1, 0]), row=np.array([0, 0, 1])).mean
    array([ 0., 10.,  0.])
    """

    parts: tuple[Continuous, ...]
    part: np.ndarray
    row: np.ndarray

    def __post_init__(self) -> None:
        part, row = (read_only_copy(positions, int) for positions in (self.part, self.row))
        vars(self).update(part=part, row=row)

    @property
    def _shape(self) -> tuple[int, ...]:
        return len(self.part), *self.parts[0]._shape[1:]

    @cached_property
    def _pieces(self) -> list[tuple[Continuous, np.ndarray]]:
        """The distributions of each part's rows, and the positions of these among all rows."""
        used = np.unique(self.part) if len(self.part) else [0]
        positions = [np.flatnonzero(self.part == k) for k in used]
        return [(self.parts[k].rows(self.row[at]), at) for k, at in zip(used, positions)]

    def _collect(
        self, compute: Callable[[Continuous, np.ndarray], np.ndarray], axis: int = 0
    ) -> np.ndarray:
        """Compute arrays of the pieces, and put them in the order of the rows along an axis."""
        arrays = [compute(piece, at) for piece, at in self._pieces]
        order = np.argsort(np.concatenate([at for _, at in self._pieces]))
        return np.take(np.concatenate(arrays, axis=axis), order, axis=axis)

    @property
    def mean(self) -> np.ndarray:
        """Point predictions, of shape (n,) or (n, m), in units of y."""
        return self._collect(lambda piece, _: piece.mean)

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, in squared units of y."""
        return self._collect(lambda piece, _: piece.aleatoric_variance)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance in excess of the noise's, in squared units of y."""
        return self._collect(lambda piece, _: piece.epistemic_variance)

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the mean and the standard deviations by source; `ddof` is that of the parts."""
        return Uncertainty(*self._collect(lambda p, _: np.stack(p.uncertainty(ddof)), axis=1))

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        return self._collect(lambda piece, at: piece._cdf_at(y[at]))

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        return self._collect(lambda piece, at: piece._log_prob_at(y[at]))

    def _crps_at(self, y: np.ndarray) -> np.ndarray:
        return self._collect(lambda piece, at: piece._crps_at(y[at]))

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        return self._collect(lambda piece, at: piece._inverse_cdf_at(levels[:, at]), axis=1)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        return self._collect(lambda piece, _: piece._draw(n_samples, seed, rng), axis=1)

    def scaled(self, factor: Factor) -> Self:
        return replace(self, parts=tuple(part.scaled(factor) for part in self.parts))

    def with_correlation(self, correlation: ArrayLike | None) -> Self:
        return replace(self, parts=tuple(part.with_correlation(correlation) for part in self.parts))

    def rows(self, rows: RowIndex) -> Self:
        """Select rows by a slice or positions."""
        return replace(self, part=self.part[rows], row=self.row[rows])

    def output(self, k: int) -> Self:
        """Select the marginal distribution of one of several outputs."""
        return replace(self, parts=tuple(part.output(k) for part in self.parts))
