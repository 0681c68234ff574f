"""Operator networks: from a function's input u and a query point y to its value there.

An EpiNet makes a base network's prediction depend on a random index z.

Pure functions of weights that run on tensors (`keras.ops`) while they train and on arrays
when they predict, for one network or for K of one architecture at once. Their head converts raw
draws to values and computes their loss.

Notation: N rows, each a pair of an input u (d_u numbers) and a query y (d_y); arrays are
(.., N, n), where .. is nothing or (K,). Weights and state are lists of variables. m outputs
(components of the function's value) a row; S draws are (.., S, N, n_raw), of indices z
(.., S, n_index).
"""

import functools
import json
import math
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np

from skuq import backend
from skuq._formulas import LOG_SQRT_2PI
from skuq._params import Interval, Settings, StrOptions, parameters
from skuq.files._registry import saved_record
from skuq.networks import _keras_models
from skuq.networks._dense import AppliedDense, Dense, Derivatives
from skuq.networks._heads import GaussianHead, Head
from skuq.networks._nomu_network import last_features
from skuq.networks._operations import ACTIVATIONS, Namespace, tensors
from skuq.networks._plan import without_names

#: Scale of a random prior where none is learnt or given; that of the paper's pollutants.
PRIOR_SCALE = 0.75


def tile_columns(xp, y, n):
    """Repeat the columns of y until there are n."""
    return xp.concatenate([y] * math.ceil(n / y.shape[-1]), axis=-1)[..., :n]


@dataclass(frozen=True)
class EncoderDecoder:
    """Encoder of u, decoder of its latent vector and y: NEON's base network (section 2.4).

    It is made by `OperatorNetwork.describe`.

    Parameters
    ----------
    n_inputs, n_queries, n_raw : int
        d_u, d_y, and the number of outputs.
    encoder_units : tuple of int
        Widths of the encoder's hidden layers.
    latent : int
        Length of the latent vector beta.
    decoder : {"split", "concat"}
        "split" gives each hidden layer of the decoder one of equally long chunks of beta; "concat"
        gives all of beta to the first.
    decoder_units : tuple of int
    fourier_scale : float, optional
        The decoder gets cosines and sines of y times a trained matrix, whose first entries are
        normal with this standard deviation. Without it the decoder gets y itself, repeated until
        it is as long as its chunk of beta.
    activation : str
    factorized : bool
        As in `Dense`.

    Examples
    --------
    >>> from skuq.networks._operator_network import EncoderDecoder
    >>> network = EncoderDecoder(n_inputs=4, n_queries=2, n_raw=1, encoder_units=(32,), latent=16)
    >>> network.shapes[0], network.n_features
    ((4, 32), 96)
    """

    n_inputs: int
    n_queries: int
    n_raw: int
    encoder_units: tuple[int, ...] = (64, 64)
    latent: int = 64
    decoder: str = "split"
    decoder_units: tuple[int, ...] = (64, 64)
    fourier_scale: float | None = None
    activation: str = "gelu"
    factorized: bool = True

    @property
    def n_features(self) -> int:
        """Length of the EpiNet's features: beta, the last hidden layer, y as long as beta."""
        return 2 * self.latent + self.decoder_units[-1]

    @property
    def _chunk(self) -> int:
        """Length of the chunk of beta that the decoder's first layer gets."""
        return self.latent // (len(self.decoder_units) if self.decoder == "split" else 1)

    @functools.cached_property
    def _layers(self) -> tuple[list[Dense], list[Dense]]:
        """Layers of the encoder and of the decoder."""
        dense = functools.partial(Dense, activation=self.activation, factorized=self.factorized)
        units = [self.n_inputs, *self.encoder_units, self.latent]
        encoder = [dense(*pair) for pair in zip(units, units[1:])]
        encoder[-1] = replace(encoder[-1], activation="linear")
        query = self._chunk if self.fourier_scale is None else 2 * self._n_frequencies
        decoder, width = [], query
        for k, n in enumerate(self.decoder_units):
            sees_beta = self.decoder == "split" or k == 0
            decoder.append(dense(width + self._chunk * sees_beta, n))
            width = n
        decoder.append(dense(width, self.n_raw, activation="linear"))
        return encoder, decoder

    _n_frequencies = property(lambda self: max(1, self._chunk // 2))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the trained variables: those of encoder, frequencies and decoder."""
        encoder, decoder = self._layers
        shapes = [shape for layer in encoder for shape in layer.shapes]
        if self.fourier_scale is not None:
            shapes.append((self.n_queries, self._n_frequencies))
        return shapes + [shape for layer in decoder for shape in layer.shapes]

    def draw(self, rng) -> list[np.ndarray]:
        """Draw first weights."""
        encoder, decoder = self._layers
        weights = [part for layer in encoder for part in layer.draw(rng)]
        if self.fourier_scale is not None:
            weights.append(rng.normal(0, self.fourier_scale, (self.n_queries, self._n_frequencies)))
        return weights + [part for layer in decoder for part in layer.draw(rng)]

    def __call__(self, space: Namespace, weights, x):
        """Compute raw outputs (.., N, n_raw) and features (.., N, n_features) of rows [u, y]."""
        xp = space.xp
        raw, beta, hidden, _ = self._run(
            xp, weights, x, lambda layer, arrays, value: layer(space, arrays, value)
        )
        # The EpiNet's features (section 2.4): beta, the last hidden layer, and y, repeated to the
        # length of beta.
        queries = tile_columns(xp, x[..., self.n_inputs :], self.latent)
        return raw, xp.concatenate([beta, hidden, queries], axis=-1)

    def _run(self, xp, weights, x, apply):
        """Run the network on rows [u, y], where ``apply(layer, weights, value)`` runs a layer.

        Returns raw outputs, the latent vector, the last hidden layer, and the phases of the
        Fourier features (or None).
        """
        weights, phase = iter(weights), None
        beta, y = x[..., : self.n_inputs], x[..., self.n_inputs :]
        encoder, decoder = self._layers

        def run(layer, value):
            return apply(layer, [next(weights) for _ in layer.shapes], value)

        # (.., N, latent) after the encoder
        for layer in encoder:
            beta = run(layer, beta)
        # Fourier features of y, or y itself.
        if self.fourier_scale is not None:
            phase = xp.matmul(y, next(weights))  # (.., N, n_frequencies)
            value = xp.concatenate([xp.cos(phase), xp.sin(phase)], axis=-1)
        else:
            value = tile_columns(xp, y, self._chunk)
        for k, layer in enumerate(decoder[:-1]):
            # A split decoder is given a chunk of beta by each layer, another one all of it at once.
            if self.decoder == "split" or k == 0:
                chunk = beta[..., k * self._chunk : (k + 1) * self._chunk]
                value = xp.concatenate([value, chunk], axis=-1)
            value = run(layer, value)
        return run(decoder[-1], value), beta, value, phase

    def tangents(self, space: Namespace, weights, directions, x, n_queries: int = 1):
        """Compute raw outputs (N, n_raw), and their derivatives (S, N, n_raw) along directions.

        The weights have no member axis. `directions` are S changes of each variable, ``(S,
        *shape)``. Every `n_queries` rows that follow each other have the same u, which is encoded
        once.
        """
        xp, weights, directions = space.xp, iter(weights), iter(directions)
        u, y = x[::n_queries, : self.n_inputs], x[:, self.n_inputs :]
        encoder, decoder = self._layers

        # Forward mode: with each value goes its derivative along the S directions.
        def apply(layer, value, tangent):
            parts = [next(weights) for _ in layer.shapes]
            changes = [next(directions) for _ in layer.shapes]
            return layer.tangents(space, parts, changes, value, tangent)

        beta: Any = u
        d_beta: Any = None  # the input does not depend on the weights
        for layer in encoder:
            beta, d_beta = apply(layer, beta, d_beta)
        if n_queries > 1:
            # Each u was encoded once: repeat its row for its query points.
            beta, d_beta = (xp.repeat(part, n_queries, axis=-2) for part in (beta, d_beta))
        if self.fourier_scale is not None:
            phase, d_phase = xp.matmul(y, next(weights)), xp.matmul(y, next(directions))
            cos, sin = xp.cos(phase), xp.sin(phase)
            value = xp.concatenate([cos, sin], axis=-1)
            # d cos(phase) = -sin(phase) d phase, and d sin(phase) = cos(phase) d phase.
            tangent = xp.concatenate([-sin * d_phase, cos * d_phase], axis=-1)
        else:
            value = tile_columns(xp, y, self._chunk)
            # y does not depend on the weights: zeros (S, N, chunk).
            tangent = 0 * d_beta[..., : self._chunk]
        for k, layer in enumerate(decoder[:-1]):
            if self.decoder == "split" or k == 0:
                # A chunk of beta enters with its derivatives.
                columns = slice(k * self._chunk, (k + 1) * self._chunk)
                value = xp.concatenate([value, beta[..., columns]], axis=-1)
                tangent = xp.concatenate([tangent, d_beta[..., columns]], axis=-1)
            value, tangent = apply(layer, value, tangent)
        return apply(decoder[-1], value, tangent)

    def derivatives(self, weights, x) -> Derivatives:
        """Compute raw outputs and their derivatives by all weights, in NumPy.

        Without a member axis.
        """
        encoder, decoder = self._layers
        trace: list[AppliedDense] = []

        def apply(layer, arrays, value):
            trace.append(AppliedDense(layer, arrays, value))
            return trace[-1].output

        raw, beta, _, phase = self._run(np, weights, x, apply)
        # Backwards: `d` (n_raw, N, width) is the derivative with respect to a layer's output.
        d = np.repeat(np.eye(self.n_raw)[:, None, :], len(x), axis=1)
        d_beta, blocks = np.zeros((self.n_raw, *beta.shape)), []
        for k in reversed(range(len(decoder))):
            # The output layer's derivatives come first, for each raw output and row.
            d, own_blocks = trace[len(encoder) + k].backward(d)
            blocks += own_blocks
            if k < len(decoder) - 1 and (self.decoder == "split" or k == 0):
                # The layer's input was [value, chunk of beta]: split its derivative alike.
                width = d.shape[-1] - self._chunk
                d_beta[..., k * self._chunk : (k + 1) * self._chunk] += d[..., width:]
                d = d[..., :width]
        if self.fourier_scale is not None:
            y, half = x[:, self.n_inputs :], self._n_frequencies
            # The phases y @ frequencies entered as [cos, sin].
            blocks.append((y, -np.sin(phase) * d[..., :half] + np.cos(phase) * d[..., half:]))
        d = d_beta
        for k in reversed(range(len(encoder))):
            d, own_blocks = trace[k].backward(d)
            blocks += own_blocks
        # Blocks were collected from the last variable to the first.
        return Derivatives(raw, tuple(blocks[::-1]))


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
    >>> from skuq.networks._operator_network import EpiNetLayers
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

    shapes = property(lambda self: [shape for layer in self._layers for shape in layer.shapes])

    def draw(self, rng) -> tuple[list, list]:
        """Draw first weights, and the kernels of the prior (its biases are 0).

        The prior's kernels are (n_index, n_inputs, n_units). The first ones multiply the same
        features and are joined to one matrix (n_features, n_index * n_units).
        """
        weights = [part for layer in self._layers for part in layer.draw(rng)]
        units = [self.n_features, *self.prior_units, self.n_raw]
        prior_layers = [Dense(*pair) for pair in zip(units, units[1:])]
        # Layer by layer, in each of the n_index networks.
        first, *rest = ([layer.draw(rng)[0] for _ in range(self.n_index)] for layer in prior_layers)
        return weights, [np.concatenate(first, axis=1), *map(np.stack, rest)]

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
        value = space.activation(first.activation)(of_rows + of_index[..., :, None, :])
        shape = tuple(value.shape)  # (.., S, N, units)
        # The layers between see the pairs of index and row as rows: (.., S * N, units).
        value = xp.reshape(value, (*shape[:-3], shape[-3] * shape[-2], shape[-1]))
        for layer, part in zip(self._layers[1:-1], parts[1:-1]):
            value = layer(space, part, value)
        value = xp.reshape(value, (*shape[:-1], value.shape[-1]))
        # Weighting the last kernel by z before it multiplies rows saves a factor n_index.
        kernel, bias = self._layers[-1].kernel(parts[-1]), parts[-1][1]
        kernel = self._of_index(xp, kernel, index)  # (.., S, units, n_raw)
        bias = self._of_index(xp, bias[..., None, :], index)
        trained = xp.matmul(value, kernel) + bias
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
    def from_json(cls, network: str) -> Self:
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
            base = json.dumps(base) if "class_name" in base else EncoderDecoder(**base)
        epinet = None if epinet is None else EpiNetLayers(**epinet)
        return cls(**{**parts, "base": base, "epinet": epinet})

    n_index = property(lambda self: 0 if self.epinet is None else self.epinet.n_index)

    def without_names(self) -> Self:
        """Replace the names of Keras layers, which differ between equal networks.

        The result is for comparisons only and cannot be rebuilt.
        """
        if not isinstance(self.base, str):
            return self
        return replace(self, base=without_names(self.base))


@parameters("networks.OperatorNetwork")
class OperatorNetwork(Settings):
    """Settings of operator networks: an encoder of u, and a decoder that also takes y.

    For the parameter `network` of regressors of functions.

    Parameters
    ----------
    encoder_units : int or sequence of int, default=(64, 64)
        Number of units of each hidden layer of the encoder of u.
    latent : int, default=64
        Length of the latent vector, the output of the encoder.
    decoder : {"split", "concat"}, default="split"
        "split" gives each hidden layer of the decoder a part of the latent vector, "concat" gives
        all of it to the first (NEON, section 2.4.1).
    decoder_units : int or sequence of int, default=(64, 64)
        Number of units of each hidden layer of the decoder.
    fourier_scale : float, optional
        Standard deviation of the initial frequencies of Fourier features of the (standardised)
        query points, for functions that vary fast; 5 to 15 in the paper. By default the points
        themselves are used.
    activation : str, default="gelu"
        Activation of the hidden layers, by its Keras name.
    factorize : bool, default=True
        Whether to factorise the weights of all layers at random, as the paper's code does.

    Examples
    --------
    >>> from skuq.networks import OperatorNetwork
    >>> OperatorNetwork(latent=96).set_params(fourier_scale=5.0)
    OperatorNetwork(fourier_scale=5.0, latent=96)
    """

    encoder_units: Any = (64, 64)
    latent: int = 64
    decoder: str = "split"
    decoder_units: Any = (64, 64)
    fourier_scale: float | None = None
    activation: str = "gelu"
    factorize: bool = True

    _parameter_constraints = {
        "encoder_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "latent": [Interval(Integral, 1, None, closed="left")],
        "decoder": [StrOptions({"split", "concat"})],
        "decoder_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "fourier_scale": [Interval(Real, 0, None, closed="neither"), None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "factorize": ["boolean"],
    }

    def describe(self, n_inputs: int, n_queries: int, n_raw: int) -> EncoderDecoder:
        """Describe the network of u (n_inputs,) and y (n_queries,) with `n_raw` outputs.

        Raises
        ------
        ValueError
            If units are not positive integers, or `latent` is too short to be split.
        """
        encoder_units = _keras_models.check_units("encoder_units", self.encoder_units)
        decoder_units = _keras_models.check_units("decoder_units", self.decoder_units)
        if self.decoder == "split" and self.latent < len(decoder_units):
            raise ValueError(
                "A split decoder cuts the latent vector into one chunk a hidden layer: `latent` "
                f"must be at least {len(decoder_units)}. Got {self.latent}."
            )
        return EncoderDecoder(
            n_inputs,
            n_queries,
            n_raw,
            encoder_units=tuple(encoder_units),
            latent=int(self.latent),
            decoder=self.decoder,
            decoder_units=tuple(decoder_units),
            fourier_scale=None if self.fourier_scale is None else float(self.fourier_scale),
            activation=self.activation,
            factorized=bool(self.factorize),
        )


#: Short forms of the parameter `network` of regressors of functions: the decoder's kind.
OPERATOR_NETWORKS: dict[Hashable, Callable[[], OperatorNetwork]] = {
    "split": OperatorNetwork,
    "concat": functools.partial(OperatorNetwork, decoder="concat"),
}


@parameters("networks.EpiNet")
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
            units=tuple(_keras_models.check_units("units", self.units)),
            prior_units=tuple(_keras_models.check_units("prior_units", self.prior_units)),
            prior_scale=float(self.scale),
            activation=self.activation,
            factorized=bool(self.factorize),
        )


@parameters("networks.ConditionedPrior")
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


def keras_base(model, n_inputs: int, n_queries: int, n_raw: int) -> str:
    """Convert a Keras model with inputs u and y to a base network: its configuration, as JSON.

    The model is functional, with inputs (N, n_inputs) and (N, n_queries) and one output
    (N, n_raw). The result is a model of rows [u, y] whose outputs are the raw outputs, followed by
    features: the inputs of the model's last layers with weights, u and y. Raise ValueError for
    another kind of model, or one that has no weights, has frozen layers or a sum that Keras
    computes wrongly, or cannot be rebuilt from its configuration.
    """
    wanted = [(None, n_inputs), (None, n_queries)]
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
    outputs = [tuple(tensor.shape) for tensor in getattr(model, "outputs", None) or ()]
    if shapes != wanted or outputs != [(None, n_raw)]:
        raise ValueError(
            "The base network must be a functional Keras model with inputs u and y of shapes "
            f"{wanted} and one output of shape {(None, n_raw)}. Got inputs {shapes} and "
            f"outputs {outputs}."
        )
    if not model.trainable_variables:
        raise ValueError("The base network must have weights to train. Got a Keras model of none.")
    frozen = [
        layer.name
        for layer in backend.flatten_layers(model)
        if (layer.weights and not layer.trainable) or _keras_models.frozen_variables(layer)
    ]
    if frozen:
        raise ValueError(
            "The base network must have no frozen layers or variables, since its configuration "
            f"does not hold their values. Got those of {frozen[0]!r}."
        )
    if fault := _keras_models.wrong_sum(model):
        raise ValueError(f"The base network cannot be trained: {fault}")
    _keras_models.forget_compilation(model)
    rows = backend.keras.Input((n_inputs + n_queries,), name="rows")
    base = backend.keras.Model(model.inputs, [model.outputs[0], *last_features(model)], name="base")
    parts = base([rows[:, :n_inputs], rows[:, n_inputs:]])
    parts = parts if isinstance(parts, list | tuple) else [parts]
    outputs = backend.keras.layers.Concatenate(name="raw_and_features")([*parts, rows])
    network = backend.keras.Model(rows, outputs, name="rows_of_base")
    try:
        _keras_models.check_rebuild(network)
    except Exception as error:
        raise ValueError(
            f"The base network cannot be rebuilt from its configuration: {error}."
        ) from error
    return network.to_json()


def _decay(space, raw, bounded):
    """Compute ``a * exp(-softplus(b))`` from the halves a and b of the raw numbers.

    `bounded` maps a to (0, 1) first, by a sigmoid.
    """
    m = raw.shape[-1] // 2
    a, b = raw[..., :m], raw[..., m:]
    sigmoid = space.activation("sigmoid")  # exp(-softplus(b)) = sigmoid(-b)
    return (sigmoid(a) if bounded else a) * sigmoid(-b)


#: For each name the function ``(space, raw (.., n * m)) -> values (.., m)``, and n.
OUTPUT_MAPS: dict[str, tuple[Callable, int]] = {
    "decaying": (functools.partial(_decay, bounded=False), 2),
    "bounded": (functools.partial(_decay, bounded=True), 2),
}


@saved_record("networks.OperatorHead")
class OperatorHead(Head):
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
    >>> from skuq.networks._operator_network import OperatorHead
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
            found = self.output_map(backend.ops.convert_to_tensor(raw))
            return backend.ops.convert_to_numpy(found), None
        return self.output_map(raw), None

    def loss(self, y, raw):
        """Compute the loss of each row (.., N), a mean over draws and outputs, for y (.., N, m)."""
        ops = backend.ops
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
