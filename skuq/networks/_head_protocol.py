"""What training and prediction ask of a head.

A head says what a network's raw outputs mean: how many there are, the distribution they
describe and the loss that trains them.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Head", "MixableHead"]


class Head(Protocol):
    """Common interface of all heads; a frozen dataclass, since programs are cached by it.

    Notes
    -----
    Some heads have more. `validation_loss` replaces `loss` on validation rows;
    ``log_likelihood(y, raw)`` gives the log density (..,) of all outputs together and
    ``moments(raw, xp=numpy)`` means and standard deviations (.., m), both from arrays; heads
    with losses of artificial inputs have `row_loss`, `artificial_loss` and `sums_rows`.
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
