"""Interface of a head for training, searches and prediction.

A head says what a network's raw outputs mean: how many there are, the distribution they
describe and the loss that trains them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Head(Protocol):
    """Common interface of all heads; a frozen dataclass, since programs are cached by it.

    Notes
    -----
    Some heads have more. `validation_loss` replaces `loss` on validation rows; where `sums_rows`
    is true, a batch's loss is the sum over its rows, not their mean. ``moments(raw, xp=numpy)``
    gives means and standard deviations (.., m) from an array.
    """

    @property
    def n_raw(self) -> int:
        """Number of raw outputs the network has to give."""
        ...

    def loss(self, y: Any, raw: Any) -> Any:
        """Loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        ...


class MixableHead(Head, Protocol):
    """A head that can judge several copies of a network together; see `PackedHead`."""

    def mixture_loss(self, y: Any, copies: Any) -> Any:
        """Loss (..,) of an equal mixture, from tensors y (.., m) and copies (.., C, n_raw)."""
        ...


class ArtificialHead(Head, Protocol):
    """A head whose loss has terms for artificial inputs, which have no targets."""

    @property
    def detached(self) -> str | None:
        """Beginning of the names of the layers whose weights these terms do not move."""
        ...

    def row_loss(self, y: Any, raw: Any, settings: dict[str, Any]) -> Any:
        """Further loss (..,) of each row with a target."""
        ...

    def artificial_loss(self, raw: Any, settings: dict[str, Any]) -> Any:
        """Loss (..,) of each artificial input."""
        ...


class LikelihoodHead(Head, Protocol):
    """A head whose networks a search can score and mix."""

    def scores(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Loss (..,) of each row that a search minimises, from arrays."""
        ...

    def log_likelihood(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Log density (..,) of all outputs together, from arrays."""
        ...

    def pooled(self, raw: np.ndarray) -> np.ndarray:
        """Raw outputs with the moments of the mixture of several networks (K, ..)."""
        ...
