"""Common interface of heads: the meaning of raw outputs, and the loss that trains them."""

from __future__ import annotations

from typing import Any, Protocol


class Head(Protocol):
    """Common interface of all heads. They are frozen dataclasses, since they key cached programs.

    Notes
    -----
    Some heads have further members, and each use needs some of them:

    - `validation_loss` replaces `loss` on validation rows. If `sums_rows` is true, a batch's loss
      is the sum over its rows instead of their mean.
    - Searches score networks by ``scores(y, raw)`` and ``log_likelihood(y, raw)``, from arrays,
      and mix K networks by ``pooled(raw)``, from (K, ..). ``moments(raw, xp=numpy)`` computes
      means and standard deviations (.., m).
    - Heads whose `weighs_losses` is true take the recipe's `loss_settings`, numbers (..) that
      differ between the members of a stack: ``loss(y, raw, settings)``.
    - Losses with terms for artificial inputs, which have no targets: ``row_loss(y, raw,
      settings)`` and ``artificial_loss(raw, settings)``, and the prefix `detached` of the layers
      that get no gradient from these terms (or None).
    """

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        ...

    def loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        ...
