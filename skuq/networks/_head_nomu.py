"""Head of NOMU: its loss, and what the raw numbers of its network mean.

Notation: f is the mean, r the raw uncertainty; m outputs. A network gives m numbers f (none
where f is given), then m numbers r, or 2 m for bounds that are not symmetric: r upwards,
then r downwards. Definitions and equations are those of Heiss et al., "NOMU: Neural
Optimization-based Model Uncertainty", ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skuq import backend
from skuq.files._registry import saved_as
from skuq.networks._head_base import Head

#: Beginning of the names of the layers of f.
MEAN_LAYERS = "mean_"


@saved_as("networks.NomuHead")
@dataclass(frozen=True)
class NomuHead(Head):
    """NOMU's loss (Definition 3.3), and the meaning of a network's raw numbers.

    Parameters
    ----------
    n_outputs : int, default=1
        m; losses are sums over outputs.
    with_mean : bool, default=True
        Whether the network gives f, and term (a) is part of the loss.
    n_sides : {0, 1, 2}, default=1
        2 for upper and lower bounds with an r of their own (appendix C.2), 0 for a network
        that gives f only.
    stable : bool, default=True
        Terms (b) and (c) in the form of Eq. 53-55, whose gradients are bounded.
    detached : str or None
        Layers by whose names (b) and (c) leave the weights alone (footnote 5); None lets
        their gradients reach f.
    """

    n_outputs: int = 1
    with_mean: bool = True
    n_sides: int = 1
    stable: bool = True
    detached: str | None = MEAN_LAYERS

    sums_rows = True

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_outputs * (self.with_mean + self.n_sides)

    def split(self, raw: Any) -> tuple[Any, Any]:
        """Split raw numbers into f (.., m) and r (.., n_sides * m); a given f has no columns."""
        n_means = self.n_outputs * self.with_mean
        return raw[..., :n_means], raw[..., n_means:]

    def loss(self, y, raw):
        """Compute the paper's term (a), the squared error of f, for each row: (.., m) to (..,)."""
        ops = backend.ops
        if not self.with_mean:
            return ops.zeros_like(raw[..., 0])
        return ops.sum(ops.square(y - self.split(raw)[0]), axis=-1)

    def row_loss(self, y, raw, settings):
        """Compute the paper's term (b), pi_sqr * r**2, of each row (..,).

        It keeps the raw uncertainty r small at the rows; `settings` holds its weight `pi_sqr`. With
        two sides it is that of Definition C.1, the squared distances of both bounds to y. Where the
        mean f is not part of the network, y must be the error of f, y - f.
        """
        ops = backend.ops
        mean, r = self.split(raw)
        if self.n_sides == 2:  # f + r_up - y, and y - (f - r_down)
            error = mean - y if self.with_mean else -y
            r = r + ops.concatenate([error, -error], axis=-1)
        rho = ops.square(r)
        if self.stable:  # Eq. 54; written so that neither branch overflows
            rho = ops.where(ops.abs(r) > 1, 2 * ops.abs(r) - 1, ops.square(ops.clip(r, -1, 1)))
        return settings["pi_sqr"] * ops.sum(rho, axis=-1)

    def artificial_loss(self, raw, settings):
        """Compute the paper's term (c), pi_exp * exp(-c_exp * r), of each artificial input (..,).

        It raises the raw uncertainty r there; `settings` holds the weight `pi_exp` and `c_exp`.
        """
        ops = backend.ops
        _, r = self.split(raw)
        scaled = settings["c_exp"][..., None] * r
        if self.stable:  # Eq. 55, plus 1 for negative r, so that it is continuous at 0
            term = ops.exp(-ops.maximum(scaled, 0.0)) - ops.minimum(scaled, 0.0)
        else:
            term = ops.exp(-scaled)
        return settings["pi_exp"] * ops.sum(term, axis=-1)
