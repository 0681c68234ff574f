"""Heads: what the raw outputs of a network mean, and the loss that trains them.

Notation: K members, n rows, m outputs (of classes, their probabilities); raw outputs are
(.., n_raw), and those of members (K, n, n_raw).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from skuq.predictive._calibration import UNCALIBRATED, Calibration


class Head:
    """Base of all heads. They are frozen dataclasses, since they key cached programs.

    Training needs `n_raw` and ``loss(y, raw)``. An ensemble also needs `means` and `mixture`, which
    `NormalsHead` derives from weighted normals, and the scores of `error`. Searches score networks
    by `scores` and `log_likelihood`, and mix those of a trial by ``pooled(raw)``.

    A loss with terms for artificial inputs, which have no targets, has ``row_loss(y, raw,
    settings)`` and ``artificial_loss(raw, settings)``.
    """

    #: Whether y are codes of classes.
    classifies: bool = False
    #: Whether the last raw numbers are those of the standard deviations of one normal.
    has_scales: bool = False
    #: Loss by which the selection "auto" compares ensembles; see `GreedySelection`.
    selection_loss: str = "mixture"
    #: Whether a batch's loss is the sum over its rows instead of their mean.
    sums_rows: bool = False
    #: Whether the loss takes the recipe's `loss_settings`, numbers (..) that differ between the
    #: members of a stack: ``loss(y, raw, settings)``.
    weighs_losses: bool = False
    #: Beginning of the names of the layers that get no gradient from artificial inputs.
    detached: str | None = None

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        raise NotImplementedError

    def loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        raise NotImplementedError

    def validation_loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each validation row, as `loss` by default."""
        return self.loss(y, raw)

    def log_likelihood(self, y: Any, raw: Any) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays y and raw."""
        raise NotImplementedError

    def scores(self, y: Any, raw: Any) -> np.ndarray:
        """Compute the negative log likelihood (..,) from arrays. Searches minimise it."""
        return -self.log_likelihood(y, raw)

    def means(self, raw: Any, xp: Any = np) -> Any:
        """Compute means (.., m) of the standardised y, or probabilities of classes."""
        raise NotImplementedError

    def without_noise(self) -> Self:
        """Return a head with the same means for all fits, which keys compiled draws."""
        return self

    def raw_of_means(self, values: np.ndarray) -> np.ndarray:
        """Compute raw numbers (.., n_raw) that add values (.., m) to the means, and nothing else.

        A network of numbers starts with such a part, the linear fit of its rows.
        """
        raise NotImplementedError

    def mixture(
        self, raw: np.ndarray, weights: np.ndarray, targets: Any, calibration: Calibration
    ) -> Any:
        """Mix what members predict, in units of y.

        Parameters
        ----------
        raw : ndarray of shape (K, n, n_raw)
        weights : ndarray of shape (K,)
            Positive weights of the members, summing to 1.
        targets : Targets
            Fitted scales of y: ``restore(loc, scale)`` converts to its units, and `is_1d` says
            whether the mixture has no axis of outputs. Where `is_transformed`, the mixture is one
            of the transformed y, behind the map of `scaling`.
        calibration : Calibration
            What to change, in units of the standardised y.
        """
        raise NotImplementedError

    def mean(
        self, raw: np.ndarray, weights: np.ndarray, calibration: Calibration = UNCALIBRATED
    ) -> np.ndarray:
        """Compute the mean (n, m) of the members' mixture, in units of the standardised y."""
        return np.tensordot(weights, self.means(raw), axes=1)

    def error(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Score means (n, m) alone by their squared error (n,), summed over outputs."""
        return np.square(y - mean, dtype="float64").sum(axis=1)

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the constant (m,) that predicts targets y (n, m) best, by `error`."""
        return np.average(y, axis=0, weights=weight)
