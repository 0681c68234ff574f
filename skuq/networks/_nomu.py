"""NOMU: one network for a mean and a raw model uncertainty, its loss and its readout.

Notation: f is the mean, r the raw uncertainty; m outputs. A network gives m numbers f (none
where f is given), then m numbers r, or 2 m for bounds that are not symmetric: r upwards,
then r downwards.

References
----------
Heiss et al., "NOMU: Neural Optimization-based Model Uncertainty", ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["READOUTS", "NomuHead", "build_mean", "build_nomu"]

# Beginnings of the names of the layers of f and of r.
_MEAN, _SIDE = "mean_", "side_"


@dataclass(frozen=True)
class NomuHead:
    """NOMU's loss (Definition 3.3), and what a network's raw numbers mean.

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
    detached: str | None = _MEAN

    sums_rows = True

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_outputs * (self.with_mean + self.n_sides)

    def split(self, raw):
        """f (.., n_outputs), of no columns where it is given, and r (.., n_sides * n_outputs)."""
        n_means = self.n_outputs * self.with_mean
        return raw[..., :n_means], raw[..., n_means:]

    def loss(self, y, raw):
        """Term (a), the squared error of each row: tensors (.., n_outputs) to (..,)."""
        from skuq._keras import ops

        mean, r = self.split(raw)
        if not self.with_mean:
            return 0.0 * ops.sum(r, axis=-1)
        return ops.sum(ops.square(y - mean), axis=-1)

    def row_loss(self, y, raw, settings):
        """Term (b) of each row (..,); `settings` holds `pi_sqr`.

        With two sides it is that of Eq. 63: bounds f + r and f - r that meet y. There y must
        be the error of f where f is given.
        """
        from skuq._keras import ops

        mean, r = self.split(raw)
        if self.n_sides == 2:
            error = mean - y if self.with_mean else -y
            r = r + ops.concatenate([error, -error], axis=-1)
        rho = ops.square(r)
        if self.stable:  # Eq. 54; written so that neither branch overflows
            rho = ops.where(ops.abs(r) > 1, 2 * ops.abs(r) - 1, ops.square(ops.clip(r, -1, 1)))
        return settings["pi_sqr"] * ops.sum(rho, axis=-1)

    def artificial_loss(self, raw, settings):
        """Term (c) of each artificial input (..,); `settings` holds `pi_exp`, `c_exp`."""
        from skuq._keras import ops

        steep = settings["c_exp"][..., None] * self.split(raw)[1]
        if self.stable:  # Eq. 55, raised by 1 below 0, where it is then continuous
            u = ops.exp(-ops.maximum(steep, 0.0)) - ops.minimum(steep, 0.0)
        else:
            u = ops.exp(-steep)
        return settings["pi_exp"] * ops.sum(u, axis=-1)


def exponential_readout(raw, l_min, l_max):
    """Eq. 2: from l_min (nearly) at r <= 0 up to l_max far from the data."""
    return -l_max * np.expm1(-(np.maximum(raw, 0) + l_min) / l_max)


def linear_readout(raw, l_min, l_max):
    """Remark 3.2, which mixed integer programmes can hold: between l_min and l_max, r itself."""
    return l_min + np.maximum(raw - l_min, 0) - np.maximum(raw - l_max, 0)


#: The readout maps ``(raw, l_min, l_max) -> sigma`` by name.
READOUTS: dict[str, Callable] = {"exponential": exponential_readout, "linear": linear_readout}


def build_nomu(
    input_shape: tuple,
    n_outputs: int,
    *,
    hidden_units: Sequence[int] = (50,),
    side_hidden_units: Sequence[int] = (50,),
    activation: str = "relu",
    connect_layers: int = 1,
    n_sides: int = 1,
    l2: float = 0.0,
    side_l2: float = 0.0,
    initial_range: float | None = None,
    build_f: Callable | None = None,
    build_r: Callable | None = None,
    given: tuple | None = None,
    sample: np.ndarray | None = None,
):
    """NOMU's architecture (Figure 2) as one Keras model of one input.

    Parameters
    ----------
    input_shape : tuple
        ``(n_features,)``.
    n_outputs : int
        m; the model gives f (m numbers, none where it is `given`), then r (n_sides * m).
    hidden_units, side_hidden_units : sequence of int
        Of the hidden layers of f and of r.
    connect_layers : int, default=1
        How many of f's hidden layers r sees: the last joins r's output layer, the one
        before it r's last hidden layer, and so on (Remark 3.1). At most 1 with `build_f`,
        `build_r` or `given`.
    l2 : float
        Penalty on weights and biases of f and of r's output layer.
    side_l2 : float
        The same for r's hidden layers (appendix D.4).
    initial_range : float, optional
        All weights and biases begin uniform in plus and minus this; by default each layer's
        in the range that Glorot and Bengio give for its weights.
    build_f : callable, optional
        ``build_f(input_shape, n_outputs) -> keras.Model``, for f.
    build_r : callable, optional
        The same for r; its last layer of weights gives way to one that also sees f.
    given : tuple (keras.Model, scale, offset) or "apart", optional
        A trained f, which takes ``x * scale + offset``; its layers are frozen, and its
        outputs are not part of what the network gives. "apart" is one without layers that
        could be seen: then r sees x only.
    sample : ndarray of shape (n, n_features), optional
        Rows over which what r sees of a given f is brought to mean 0 and, all together,
        variance 1: its features may be of any size.

    Raises
    ------
    ValueError
        If there are not so many layers to connect.
    """
    from skuq._keras import keras

    make = _Layers(activation, initial_range)
    inputs = keras.Input(shape=input_shape, name="input", dtype="float32")
    mean = None
    if given == "apart":
        hidden, connect_layers = [], 0
    elif given is not None:
        model, scale, offset = given
        x = keras.layers.Rescaling(scale, offset, dtype="float32", name=_MEAN + "unscaled")(inputs)
        _, hidden = _copy(model, x, frozen=True)
        if sample is not None and connect_layers:
            hidden = [_standardised(inputs, feature, sample) for feature in hidden]
    else:
        mean, hidden = make.mean(inputs, n_outputs, hidden_units, l2, build_f)
    n_r = n_sides * n_outputs
    if build_r is not None:
        # Names of the same functions' layers would meet: f's copies begin with "mean_".
        side = _copy(_built("build_r", build_r, input_shape, n_r), inputs, prefix=_SIDE)[1][-1:]
        n_joins = 1
    else:
        n_joins = 1 + len(side_hidden_units)
    most = min(len(hidden), n_joins)
    if connect_layers > most:
        raise ValueError(
            f"`connect_layers` must be at most {most} for these networks (f shows "
            f"{len(hidden)} hidden layers, r can take {n_joins}). Got {connect_layers}."
        )
    joins = hidden[::-1][:connect_layers]  # for r's output layer first, then backwards
    if build_r is None:
        side = make.hidden(inputs, side_hidden_units, _SIDE, side_l2, joins[:0:-1])[-1:]
    outputs = make.dense(_joined(side + joins[:1], _SIDE + "join"), n_r, _SIDE + "output", l2)
    if mean is not None:
        outputs = keras.layers.Concatenate(dtype="float32", name="output")([mean, outputs])
    return keras.Model(inputs, outputs, name="nomu", dtype="float32")


def build_mean(
    input_shape: tuple, n_raw: int, hidden_units, activation, l2, initial_range, build_f
):
    """The part of f alone, with so many outputs; parameters as in `build_nomu`."""
    from skuq._keras import keras

    inputs = keras.Input(shape=input_shape, name="input", dtype="float32")
    make = _Layers(activation, initial_range)
    outputs, _ = make.mean(inputs, n_raw, hidden_units, l2, build_f)
    return keras.Model(inputs, outputs, name="mean", dtype="float32")


class _Layers:
    """Dense layers that begin and are penalised as told."""

    def __init__(self, activation, initial_range):
        self.activation = activation
        self.initial_range = initial_range

    def dense(self, x, units, name, l2, activation=None):
        from skuq._keras import keras

        reach = self.initial_range
        if reach is None:  # Glorot's, of matrices in Keras; biases of 0 would bend all units at 0
            reach = math.sqrt(6 / (x.shape[-1] + units))
        uniform = keras.initializers.RandomUniform
        options = {f"{part}_initializer": uniform(-reach, reach) for part in _PARTS}
        if l2:
            options |= {f"{part}_regularizer": keras.regularizers.L2(l2) for part in _PARTS}
        return keras.layers.Dense(
            units, activation=activation, dtype="float32", name=name, **options
        )(x)

    def mean(self, inputs, n_raw, units, l2, build_f):
        """f's outputs, and its hidden layers as far as they can be seen."""
        if build_f is not None:
            return _copy(_built("build_f", build_f, inputs.shape[1:], n_raw), inputs)
        hidden = self.hidden(inputs, units, _MEAN, l2)
        return self.dense(hidden[-1], n_raw, _MEAN + "output", l2), hidden

    def hidden(self, x, units, prefix, l2, joins=()):
        """All hidden layers; `joins` are further inputs of the last of them, in their order."""
        values, first = [], len(units) - len(joins)
        for i, n in enumerate(units):
            if i >= first:
                x = _joined([x, joins[i - first]], f"{prefix}join_{i + 1}")
            x = self.dense(x, n, f"{prefix}hidden_{i + 1}", l2, self.activation)
            values.append(x)
        return values


_PARTS = ("kernel", "bias")


def _joined(values, name):
    from skuq._keras import keras

    if len(values) == 1:
        return values[0]
    return keras.layers.Concatenate(dtype="float32", name=name)(values)


def _built(name, build, input_shape, n_outputs):
    """The model that a user's function builds, which must give so many outputs."""
    from skuq._keras import keras

    model = build(input_shape, n_outputs)
    if not isinstance(model, keras.Model):
        raise ValueError(f"`{name}` must return a keras.Model. Got {type(model).__name__}.")
    if getattr(model, "output_shape", None) != (None, n_outputs):
        raise ValueError(
            f"`{name}` must return a model with one output of shape {(None, n_outputs)} (its "
            "arguments are `input_shape` and `n_outputs`). Got "
            f"{getattr(model, 'output_shape', 'one whose shapes are unknown')}."
        )
    return model


def _copy(model, x, prefix=_MEAN, frozen=False):
    """A model's output for x, and its last hidden layer as a list of one, or of none.

    The layers are copies with names of their own. Where `frozen` they have their weights too,
    and see no dropout and no noise.
    """
    from skuq._keras import keras

    def copy(layer):
        if isinstance(layer, keras.Model):  # by their names inner layers are found too
            twin = keras.models.clone_model(_functional(layer), clone_function=copy)
            twin.name = prefix + layer.name
            return twin
        config = {**layer.get_config(), "name": prefix + layer.name}
        if frozen:
            config |= {name: 0.0 for name in ("rate", "stddev") if name in config}
        twin = type(layer).from_config(config)
        twin.trainable = layer.trainable and not frozen
        return twin

    model = _functional(model)
    twin = keras.models.clone_model(model, input_tensors=x, clone_function=copy)
    if frozen:
        twin.set_weights(model.get_weights())
    output = twin.outputs[0]
    hidden = _last_hidden(output)
    return output, [] if hidden is None else [hidden]


def _standardised(inputs, feature, sample):
    """Features of mean 0 over a sample of inputs, and together of variance 1.

    One factor for all: each on its own would blow up those that hardly vary.
    """
    from skuq._keras import keras

    values = keras.Model(inputs, feature).predict(sample, verbose=0).astype("float64")
    scale = 1 / (np.sqrt(values.var(axis=0).mean()) or 1.0)
    offset = (-scale * values.mean(axis=0)).tolist()
    layer = keras.layers.Rescaling(float(scale), offset, dtype="float32", name=_MEAN + "features")
    return layer(feature)


def _functional(model):
    """The same layers as a functional model, whose inner ones keep their names as paths."""
    from skuq._keras import keras

    if not isinstance(model, keras.Sequential):
        return model
    inputs = keras.Input(shape=model.input_shape[1:], dtype="float32")
    value = inputs
    for layer in model.layers:
        value = layer(value)
    return keras.Model(inputs, value)


def _last_hidden(output):
    """What enters the last layers with weights before an output; None if that is no vector."""
    found, seen = set(), {}
    waiting = [output]
    while waiting:
        layer = waiting.pop()._keras_history.operation
        sources = layer.input if isinstance(layer.input, list) else [layer.input]
        if getattr(layer, "weights", ()):
            seen.update((id(source), source) for source in sources)
            found.update(id(source) for source in sources)
        elif layer._inbound_nodes[0].input_tensors and type(layer).__name__ != "InputLayer":
            waiting += sources
    if len(found) != 1:
        return None
    hidden = seen[found.pop()]
    return hidden if len(hidden.shape) == 2 else None
