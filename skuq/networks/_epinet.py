"""EpiNets: networks that make a base network's prediction depend on a random index z.

Notation: as in `_operator`, and S indices z (.., S, n_index); draws are (.., S, N, n_raw).
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from skuq._utils._records import saved_as
from skuq.networks._dense_layers import Dense
from skuq.networks._operator import OperatorNetwork
from skuq.networks._plan import Namespace, without_names


@saved_as("networks.EpiNet")
@dataclass(frozen=True)
class EpiNet:
    """A trained network of features and z, plus a frozen random prior network (Eq. 4).

    Both end with a sum weighted by z: of the n_index * n_raw outputs of the trained network, and
    of the n_raw outputs of each of the prior's n_index networks.

    Parameters
    ----------
    n_features : int
    n_raw : int
    n_index : int
        Length of z, which is standard normal.
    units, prior_units : tuple of int
        Widths of the hidden layers of the trained network, and of each network of the prior.
    prior_scale : float
        alpha in Eq. 4.
    activation : str
    factorized : bool
        As in `Dense`, of the trained network.

    References
    ----------
    NEON, section 2.2.1; Osband et al., "Epistemic neural networks", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import EpiNet
    >>> epinet = EpiNet(n_features=6, n_raw=1, n_index=4)
    >>> weights, prior = epinet.draw(np.random.default_rng(0))
    >>> [kernel.shape for kernel in prior]
    [(6, 20), (4, 5, 5), (4, 5, 1)]
    """

    n_features: int
    n_raw: int
    n_index: int = 16
    units: tuple[int, ...] = (32, 32)
    prior_units: tuple[int, ...] = (5, 5)
    prior_scale: float = 0.75
    activation: str = "gelu"
    factorized: bool = True

    @functools.cached_property
    def _layers(self) -> list[Dense]:
        units = [self.n_features + self.n_index, *self.units, self.n_index * self.n_raw]
        layers = [Dense(*pair, self.activation, self.factorized) for pair in zip(units, units[1:])]
        return [*layers[:-1], replace(layers[-1], activation="linear")]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [shape for layer in self._layers for shape in layer.shapes]

    @property
    def _prior_layers(self) -> list[Dense]:
        units = [self.n_features, *self.prior_units, self.n_raw]
        return [Dense(*pair) for pair in zip(units, units[1:])]

    def draw(self, rng) -> tuple[list, list]:
        """Draw first weights, and the kernels of the prior (its biases are 0).

        The prior's kernels are (n_index, n_inputs, n_units). The first ones multiply the same
        features and are joined to one matrix (n_features, n_index * n_units).
        """
        weights = [part for layer in self._layers for part in layer.draw(rng)]
        first, *others = (
            [layer.draw(rng)[0] for _ in range(self.n_index)] for layer in self._prior_layers
        )
        return weights, [np.concatenate(first, axis=1), *map(np.stack, others)]

    def __call__(self, space: Namespace, weights, state, features, index):
        """Compute draws (.., S, N, n_raw) from features (.., N, n_features) and indices."""
        # sigma(features, z) = trainable part + alpha * prior part (Eq. 4).
        return self._apply_trained(
            space, weights, features, index
        ) + self.prior_scale * self._prior(space, state, features, index)

    def _apply_trained(self, space, weights, features, index):
        """Compute the trained part of the output: (.., S, N, n_raw)."""
        xp, weights = space.xp, iter(weights)
        parts = [[next(weights) for _ in layer.shapes] for layer in self._layers]
        # The first layer is a sum of a part of each row and a part of each index, so that
        # neither is multiplied again for every pair.
        first, kernel = self._layers[0], self._layers[0].kernel(parts[0])
        n = self.n_features
        # (.., 1, N, units) and (.., S, units), which broadcast to (.., S, N, units).
        of_rows = xp.matmul(features, kernel[..., :n, :])[..., None, :, :]
        of_index = xp.matmul(index, kernel[..., n:, :]) + parts[0][1][..., None, :]
        value = space.activation(first.activation if self.units else "linear")(
            of_rows + of_index[..., :, None, :]
        )
        if not self.units:  # sum (.., S, N, n_index * n_raw), weighted by z
            value = xp.reshape(value, (*value.shape[:-1], self.n_index, self.n_raw))
            return xp.sum(value * index[..., :, None, :, None], axis=-2)
        shape = tuple(value.shape)  # (.., S, N, units)
        # The layers between see the pairs of index and row as rows: (.., S * N, units).
        value = xp.reshape(value, (*shape[:-3], shape[-3] * shape[-2], shape[-1]))
        for layer, part in zip(self._layers[1:-1], parts[1:-1]):
            value = layer(space, part, value)
        value = xp.reshape(value, (*shape[:-1], value.shape[-1]))
        # Weighting the last kernel by z before it multiplies rows saves a factor n_index.
        last = self._layers[-1]
        kernel, bias = last.kernel(parts[-1]), parts[-1][1]
        kernel = self._of_index(xp, kernel, index)  # (.., S, units, n_raw)
        bias = self._of_index(xp, bias[..., None, :], index)
        return xp.matmul(value, kernel) + bias

    def _of_index(self, xp, weights, index):
        """Sum weights (.., n, n_index * n_raw), weighted by each index: (.., S, n, n_raw)."""
        lead, n = tuple(weights.shape[:-2]), weights.shape[-2]
        # From (.., n, n_index * n_raw) to (.., n_index, n * n_raw): the sum is one product with z.
        weights = xp.reshape(weights, (*lead, n, self.n_index, self.n_raw))
        weights = xp.reshape(xp.moveaxis(weights, -2, -3), (*lead, self.n_index, n * self.n_raw))
        summed = xp.matmul(index, weights)
        return xp.reshape(summed, (*summed.shape[:-1], n, self.n_raw))

    def _prior(self, space, state, features, index):
        """Sum the outputs of the n_index frozen prior networks by weights z: (.., S, N, n_raw)."""
        xp, activation = space.xp, space.activation(self.activation)
        # All first kernels are one matrix: (.., N, n_index * units).
        value = xp.matmul(features, state[0])
        value = xp.reshape(value, (*value.shape[:-1], self.n_index, -1))
        # One network for each entry of z: (.., n_index, N, units).
        value = xp.moveaxis(value, -2, -3)
        for kernel in state[1:]:
            value = xp.matmul(activation(value), kernel)
        lead, (n_rows, n_raw) = tuple(value.shape[:-3]), value.shape[-2:]
        value = xp.reshape(value, (*lead, self.n_index, n_rows * n_raw))
        # Sum of the networks' outputs weighted by z, (.., S, N * n_raw).
        draws = xp.matmul(index, value)
        return xp.reshape(draws, (*draws.shape[:-1], n_rows, n_raw))


@dataclass(frozen=True)
class EpistemicNetwork:
    """Description of an operator network with a random prior: base network and EpiNet.

    Parameters
    ----------
    base : OperatorNetwork, str or None
        A string is the JSON of a Keras model, see `keras_base`. None if rows hold the features of
        a given model, whose residuals are learnt.
    n_raw : int
        Number of raw outputs for a row.
    epinet : EpiNet or None
        Without one, the prediction is that of the base plus `prior_scale` times a frozen network
        of the same architecture (a randomised prior network, RPN).
    prior_scale : float
        Scale of the random prior; 0 disables it.
    """

    base: OperatorNetwork | str | None
    n_raw: int
    epinet: EpiNet | None = None
    prior_scale: float = 0.0

    def to_json(self) -> str:
        """Write the configuration, as `Member.network` holds it."""
        parts = {"class_name": type(self).__name__, **asdict(self)}
        if isinstance(self.base, str):
            parts["base"] = json.loads(self.base)
        return json.dumps(parts)

    @classmethod
    def from_json(cls, network: str) -> EpistemicNetwork:
        parts = json.loads(network)
        if parts.pop("class_name") != cls.__name__:
            raise ValueError("This is not the configuration of an epistemic network.")
        base, epinet = parts["base"], parts["epinet"]
        if base is not None:
            is_keras = "class_name" in base
            base = json.dumps(base) if is_keras else OperatorNetwork(**_hashable(base))
        epinet = None if epinet is None else EpiNet(**_hashable(epinet))
        return cls(**{**parts, "base": base, "epinet": epinet})

    @property
    def n_index(self) -> int:
        return 0 if self.epinet is None else self.epinet.n_index

    def without_names(self) -> EpistemicNetwork:
        """Replace the names of Keras layers, which differ between equal networks.

        The result is for comparisons only and cannot be rebuilt.
        """
        if not isinstance(self.base, str):
            return self
        return replace(self, base=without_names(self.base))


def _hashable(fields):
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
