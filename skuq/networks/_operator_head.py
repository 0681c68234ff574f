"""Head of an operator network: it converts raw draws to values, and computes their loss.

Notation: as in `_epinet`; m outputs (components of the function's value) a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skuq._constants import LOG_SQRT_2PI
from skuq._registry import saved_as
from skuq.networks._gaussian_head import GaussianHead
from skuq.networks._plan import Namespace, tensors


def _halves(raw):
    m = raw.shape[-1] // 2
    return raw[..., :m], raw[..., m:]


def _map_to_decay(space, raw):
    """Compute ``a * exp(-softplus(b))``, with a and b the halves of the raw numbers."""
    a, b = _halves(raw)
    return a * space.activation("sigmoid")(-b)


def _map_to_unit_interval(space, raw):
    """Compute ``sigmoid(a) * exp(-softplus(b))``, with a and b the halves of the raw numbers."""
    a, b = _halves(raw)
    sigmoid = space.activation("sigmoid")
    return sigmoid(a) * sigmoid(-b)


#: For each name the function ``(space, raw (.., n * m)) -> values (.., m)``, and n.
OUTPUT_MAPS: dict[str, tuple[Callable, int]] = {
    "decaying": (_map_to_decay, 2),
    "bounded": (_map_to_unit_interval, 2),
}


@saved_as("networks.OperatorHead")
@dataclass(frozen=True, eq=False)
class OperatorHead:
    """Convert raw draws (.., S, N, n_raw) to values of m outputs, and compute their loss.

    Heads with equal fields are equal, and share compiled programs. One whose `output_map` is a
    function is equal only to itself: a program keeps what the function read when it was compiled,
    such as global variables.

    Parameters
    ----------
    n_outputs : int
        Number of outputs, m.
    kind : {"squared", "huber", "nll"}
        Half the squared error; the same with slope 1 beyond an error of 1; or the negative
        log likelihood of a mixture of normals with one component for each draw (Eq. 5).
    output_map : {"decaying", "bounded"}, callable or None
        Last step from raw numbers to values, the same for all draws: ``a * exp(-softplus(b))``,
        ``sigmoid(a) * exp(-softplus(b))`` (NEON's cell towers and interferometer), or a
        function of `keras.ops` from (.., m) to (.., m).

    Examples
    --------
    >>> from skuq.networks import OperatorHead
    >>> OperatorHead(2).n_raw, OperatorHead(2, output_map="decaying").n_raw
    (2, 4)
    """

    n_outputs: int
    kind: str = "squared"
    output_map: str | Callable | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OperatorHead) or callable(self.output_map):
            return self is other
        mine, others = ((h.n_outputs, h.kind, h.output_map) for h in (self, other))
        return mine == others

    def __hash__(self) -> int:
        return hash((self.n_outputs, self.kind, str(self.output_map)))

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        if self.kind == "nll":
            return GaussianHead(self.n_outputs).n_raw
        per_output = OUTPUT_MAPS[self.output_map][1] if isinstance(self.output_map, str) else 1
        return per_output * self.n_outputs

    def values(self, space: Namespace, raw):
        """Compute means (.., m), and standard deviations if `kind` is "nll", else None."""
        if self.kind == "nll":
            return GaussianHead(self.n_outputs).distribution(raw, space.xp)
        if isinstance(self.output_map, str):
            return OUTPUT_MAPS[self.output_map][0](space, raw), None
        if self.output_map is None:
            return raw, None
        if space.xp is np:  # a function of keras.ops
            from skuq.backend import ops

            return ops.convert_to_numpy(self.output_map(ops.convert_to_tensor(raw))), None
        return self.output_map(raw), None

    def loss(self, y, raw):
        """Compute the loss of each row (.., N), a mean over draws and outputs, for y (.., N, m)."""
        from skuq.backend import ops

        # (.., 1, N, m), against draws (.., S, N, m).
        y = y[..., None, :, :]
        mean, scale = self.values(tensors(), raw)
        if self.kind == "nll":
            density = -0.5 * ops.square((y - mean) / scale) - ops.log(scale)
            density = ops.sum(density, axis=-1) - self.n_outputs * LOG_SQRT_2PI
            log_n_draws = np.log(raw.shape[-3])
            # Eq. 5 with S draws of z: log of the mean of the draws' joint densities, (.., N).
            return -(ops.logsumexp(density, axis=-2) - log_n_draws) / self.n_outputs
        error = 0.5 * ops.square(y - mean)
        if self.kind == "huber":
            size = ops.abs(y - mean)
            error = ops.where(size > 1, size - 0.5, error)
        return ops.mean(ops.mean(error, axis=-1), axis=-2)
