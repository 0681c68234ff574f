"""Interface of a head for training, searches and prediction.

A head defines the meaning of a network's raw outputs: their number, the distribution that they
describe, and the loss that trains them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Head(Protocol):
    """Common interface of all heads. They are frozen dataclasses, since they key cached programs.

    Notes
    -----
    Some heads have further members. `validation_loss` replaces `loss` on validation rows. If
    `sums_rows` is true, a batch's loss is the sum over its rows instead of their mean.
    ``moments(raw, xp=numpy)`` computes means and standard deviations (.., m) from an array.
    """

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        ...

    def loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        ...


class MixableHead(Head, Protocol):
    """A head that can score the mixture of several copies of a network; see `PackedHead`."""

    def mixture_loss(self, y: Any, copies: Any) -> Any:
        """Compute the loss (..,) of the equal mixture of C copies.

        `y` (.., m) and `copies` (.., C, n_raw) are tensors.
        """
        ...


class ArtificialHead(Head, Protocol):
    """A head whose loss has terms for artificial inputs, which have no targets."""

    @property
    def detached(self) -> str | None:
        """Prefix of the names of layers that get no gradient from these terms, or None."""
        ...

    def row_loss(self, y: Any, raw: Any, settings: dict[str, Any]) -> Any:
        """Compute a further loss (..,) of each row with a target."""
        ...

    def artificial_loss(self, raw: Any, settings: dict[str, Any]) -> Any:
        """Compute the loss (..,) of each artificial input."""
        ...


class LikelihoodHead(Head, Protocol):
    """A head whose networks can be scored by a search and mixed."""

    def scores(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Compute the loss (..,) of each row that a search minimises, from arrays."""
        ...

    def log_likelihood(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays."""
        ...

    def pooled(self, raw: np.ndarray) -> np.ndarray:
        """Compute raw outputs with the moments of the equal mixture of K networks (K, ..)."""
        ...
