"""EpiNets: networks that make a base network's prediction depend on a random index z.

Notation: as in `_operator`, and S indices z (.., S, n_index); draws are (.., S, N, n_raw).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from skuq._params import Interval, Settings, StrOptions
from skuq.files._registry import saved_as
from skuq.networks._dense import Dense
from skuq.networks._keras_models import check_units
from skuq.networks._operator_network import EncoderDecoder
from skuq.networks._plan import without_names
from skuq.networks._plan_parts import ACTIVATIONS, Namespace

#: Scale of a random prior where none is learnt or given; that of the paper's pollutants.
PRIOR_SCALE = 0.75


@dataclass(frozen=True)
class EpiNetLayers:
    """A trained network of features and z, plus a frozen random prior network (Eq. 4).

    It is made by `EpiNet.describe`.

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
    >>> from skuq.networks._epinet import EpiNetLayers
    >>> epinet = EpiNetLayers(n_features=6, n_raw=1, n_index=4)
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

    def draw(self, rng) -> tuple[list, list]:
        """Draw first weights, and the kernels of the prior (its biases are 0).

        The prior's kernels are (n_index, n_inputs, n_units). The first ones multiply the same
        features and are joined to one matrix (n_features, n_index * n_units).
        """
        weights = [part for layer in self._layers for part in layer.draw(rng)]
        units = [self.n_features, *self.prior_units, self.n_raw]
        prior_layers = [Dense(*pair) for pair in zip(units, units[1:])]
        # Layer by layer, in each of the n_index networks.
        first, *others = (
            [layer.draw(rng)[0] for _ in range(self.n_index)] for layer in prior_layers
        )
        return weights, [np.concatenate(first, axis=1), *map(np.stack, others)]

    def __call__(self, space: Namespace, weights, state, features, index):
        """Compute draws (.., S, N, n_raw) from features (.., N, n_features) and indices."""
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
        if self.units:
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
            trained = xp.matmul(value, kernel) + bias
        else:  # sum (.., S, N, n_index * n_raw), weighted by z
            value = xp.reshape(value, (*value.shape[:-1], self.n_index, self.n_raw))
            trained = xp.sum(value * index[..., :, None, :, None], axis=-2)
        # sigma(features, z) = trainable part + alpha * prior part (Eq. 4).
        return trained + self.prior_scale * self._prior(space, state, features, index)

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


@saved_as("networks.EpiNet")
@dataclass(eq=False, repr=False, kw_only=True)
class EpiNet(Settings):
    """Settings of a trained EpiNet: a small network that makes predictions depend on an index z.

    For the parameter `prior` of `skuq.NEONRegressor`. This is the paper's method: an EpiNet learns
    by gradient steps to undo its frozen random prior where data determine the prediction.

    Parameters
    ----------
    units : int or sequence of int, default=(32, 32)
        Number of units of each hidden layer of the trained part.
    prior_units : int or sequence of int, default=(5, 5)
        Number of units of each hidden layer of the `n_index` networks of the random prior.
    scale : float, default=0.75
        Scale of the random prior (alpha in Eq. 4), in units of standardised values; 0 disables it.
        A larger one is less sure away from data. The default is that of the paper's pollutants.
    n_index : int, default=16
        Length of the random index z.
    n_index_samples : int, default=16
        Number of indices drawn for every step; all see the same rows.
    activation : str, default="gelu"
        Activation of the hidden layers, by its Keras name.
    factorize : bool, default=True
        Whether to factorise the weights of the trained part at random, as the paper's code does.

    References
    ----------
    NEON, section 2.2.1; Osband et al., "Epistemic neural networks", 2021.

    Examples
    --------
    >>> from skuq.networks import EpiNet
    >>> EpiNet(scale=0.5)
    EpiNet(scale=0.5)
    """

    units: Any = (32, 32)
    prior_units: Any = (5, 5)
    scale: float = PRIOR_SCALE
    n_index: int = 16
    n_index_samples: int = 16
    activation: str = "gelu"
    factorize: bool = True

    is_trained: ClassVar[bool] = True  # with the network

    _parameter_constraints = {
        "units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "prior_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "scale": [Interval(Real, 0, None, closed="left")],
        "n_index": [Interval(Integral, 1, None, closed="left")],
        "n_index_samples": [Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "factorize": ["boolean"],
    }

    def describe(self, n_features: int, n_raw: int) -> EpiNetLayers:
        """Describe the EpiNet of so many features of a row and raw outputs.

        Raises
        ------
        ValueError
            If units are not positive integers.
        """
        return EpiNetLayers(
            n_features,
            n_raw,
            n_index=int(self.n_index),
            units=tuple(check_units("units", self.units)),
            prior_units=tuple(check_units("prior_units", self.prior_units)),
            prior_scale=float(self.scale),
            activation=self.activation,
            factorized=bool(self.factorize),
        )


@saved_as("networks.ConditionedPrior")
@dataclass(eq=False, repr=False, kw_only=True)
class ConditionedPrior(Settings):
    """Settings of random changes of a network's weights, conditioned on the data in closed form.

    For the parameter `prior` of `skuq.NEONRegressor`. Base networks are trained alone. A random
    change of their weights changes their prediction by a draw of a Gaussian process. The draws are
    conditioned on the data by linear algebra, so that without noise they agree at the data.

    Parameters
    ----------
    scale : "auto" or float, default="auto"
        Standard deviation of the prior, in units of standardised values; 0 disables it. A larger
        one is less sure away from data. "auto" learns it from functions that five networks leave
        out, wherever there are 5 functions of different inputs or more; elsewhere it is 0.75. How
        closely mean and draws meet data without noise is then learnt, too: exactly, unless networks
        that do so clearly miss new functions by more. A number trains one network without noise,
        and meets the data exactly. In a warm start without noise the scale is learnt from networks
        that start from random weights, for at most 1500 values. A learnt noise comes with a learnt
        scale: a number other than 0 needs a known noise.
    n_index : int, default=16
        Number of random changes of the weights that each draw combines: the length of its index z.

    Examples
    --------
    >>> from skuq.networks import ConditionedPrior
    >>> ConditionedPrior(scale=0.75)
    ConditionedPrior(scale=0.75)
    """

    scale: Any = "auto"
    n_index: int = 16

    is_trained: ClassVar[bool] = False

    _parameter_constraints = {
        "scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "n_index": [Interval(Integral, 1, None, closed="left")],
    }


#: Short forms of the parameter `prior` of NEON. "auto" takes an EpiNet where it has to.
PRIORS: dict[Hashable, Callable[[], Settings]] = {
    "auto": ConditionedPrior,
    "conditioned": ConditionedPrior,
    "epinet": EpiNet,
}


@dataclass(frozen=True)
class EpistemicNetwork:
    """Description of an operator network with a random prior: base network and EpiNet.

    Parameters
    ----------
    base : EncoderDecoder, str or None
        A string is the JSON of a Keras model, see `keras_base`. None if rows hold the features of
        a given model, whose residuals are learnt.
    n_raw : int
        Number of raw outputs for a row.
    epinet : EpiNetLayers or None
        Without one, the prediction is that of the base plus `prior_scale` times a frozen network
        of the same architecture (a randomised prior network, RPN).
    prior_scale : float
        Scale of the random prior; 0 disables it.
    """

    base: EncoderDecoder | str | None
    n_raw: int
    epinet: EpiNetLayers | None = None
    prior_scale: float = 0.0

    def to_json(self) -> str:
        """Write the configuration, as `Member.network` holds it."""
        parts = {"class_name": type(self).__name__, **asdict(self)}
        if isinstance(self.base, str):
            parts["base"] = json.loads(self.base)
        return json.dumps(parts)

    @classmethod
    def from_json(cls, network: str) -> EpistemicNetwork:
        # Lists become tuples, since descriptions key cached programs.
        parts = json.loads(
            network,
            object_hook=lambda fields: {
                name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()
            },
        )
        if parts.pop("class_name") != cls.__name__:
            raise ValueError("This is not the configuration of an epistemic network.")
        base, epinet = parts["base"], parts["epinet"]
        if base is not None:
            is_keras = "class_name" in base
            base = json.dumps(base) if is_keras else EncoderDecoder(**base)
        epinet = None if epinet is None else EpiNetLayers(**epinet)
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
