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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skuq._utils._records import saved_as
from skuq.networks._dense import add_linear
from skuq.networks._keras_models import build_of_shape

# Beginnings of the names of the layers of f and of r.
_MEAN, _SIDE = "mean_", "side_"


@saved_as("networks.NomuHead")
@dataclass(frozen=True)
class NomuHead:
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
    detached: str | None = _MEAN

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
        from skuq.backend import ops

        if not self.with_mean:
            return ops.zeros_like(raw[..., 0])
        return ops.sum(ops.square(y - self.split(raw)[0]), axis=-1)

    def row_loss(self, y, raw, settings):
        """Compute the paper's term (b), pi_sqr * r**2, of each row (..,).

        It keeps the raw uncertainty r small at the rows; `settings` holds its weight `pi_sqr`. With
        two sides it is that of Definition C.1, the squared distances of both bounds to y. Where the
        mean f is not part of the network, y must be the error of f, y - f.
        """
        from skuq.backend import ops

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
        from skuq.backend import ops

        _, r = self.split(raw)
        scaled = settings["c_exp"][..., None] * r
        if self.stable:  # Eq. 55, plus 1 for negative r, so that it is continuous at 0
            term = ops.exp(-ops.maximum(scaled, 0.0)) - ops.minimum(scaled, 0.0)
        else:
            term = ops.exp(-scaled)
        return settings["pi_exp"] * ops.sum(term, axis=-1)


def exponential_readout(raw, l_min, l_max, xp=np):
    """Map r to a standard deviation by Eq. 2: about l_min at r <= 0, l_max for large r."""
    return -l_max * xp.expm1(-(xp.maximum(raw, 0) + l_min) / l_max)


def linear_readout(raw, l_min, l_max, xp=np):
    """Clip r to [l_min, l_max], written in ReLUs for mixed integer programmes (Remark 3.2)."""
    return l_min + xp.maximum(raw - l_min, 0) - xp.maximum(raw - l_max, 0)


#: The readout maps ``(raw, l_min, l_max, xp=numpy) -> sigma`` by name.
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
    mean_network: Callable | None = None,
    side_network: Callable | None = None,
    given: tuple | None = None,
    sample: np.ndarray | None = None,
    linear: tuple[np.ndarray, np.ndarray] | None = None,
):
    """Build NOMU's architecture (Figure 2) as one Keras model of one input.

    Parameters
    ----------
    input_shape : tuple
        ``(n_features,)``.
    n_outputs : int
        m; the model gives f (m numbers, none where it is `given`), then r (n_sides * m).
    hidden_units, side_hidden_units : sequence of int
        Widths of the hidden layers of f and of r.
    connect_layers : int, default=1
        Number of f's hidden layers that r sees: the last joins r's output layer, the one
        before it r's last hidden layer, and so on (Remark 3.1). 1 counts as 0 if f has no hidden
        layer that is a vector. With `side_network` at most 1 can be seen.
    l2 : float
        Penalty on weights and biases of f and of r's output layer.
    side_l2 : float
        The same for r's hidden layers (appendix D.4).
    initial_range : float, optional
        Initial weights and biases are uniform between minus and plus this; by default the range
        is Glorot and Bengio's for the weights of each layer.
    mean_network : callable, optional
        ``mean_network(input_shape, n_outputs) -> keras.Model``, for f.
    side_network : callable, optional
        The same for r; its last layer of weights gives way to one that also sees f.
    given : tuple (keras.Model, scale, offset) or "apart", optional
        Trained f, which takes ``x * scale + offset``. Its layers are frozen, and its outputs are
        not outputs of the network. "apart" means that f has no layers that could be seen: then
        r sees x only.
    sample : ndarray of shape (n, n_features), optional
        Rows over which the features of a given f are standardised before r sees them, as they may
        be of any size.
    linear : tuple of kernel (n_features, m) and bias (m,), optional
        Frozen linear part of f, beside which its other part starts from zero.

    Raises
    ------
    ValueError
        If `connect_layers` is larger than the number of layers that can be connected.
    """
    from skuq.backend import keras

    make = _Layers(activation, initial_range)
    inputs = keras.Input(shape=input_shape, name="input", dtype="float32")
    mean, hidden = None, []  # f's outputs, and those of its hidden layers that r may see
    if given is None:
        mean, hidden = make.mean(inputs, n_outputs, hidden_units, l2, mean_network, linear)
    elif given != "apart" and connect_layers:
        model, scale, offset = given
        hidden = _frozen_features(model, scale, offset, inputs, sample)
    # Places where f can join r: its output layer and, if they are made here, its hidden layers.
    n_joins = 1 if side_network is not None else 1 + len(side_hidden_units)
    if given == "apart" or (connect_layers == 1 and not hidden):  # nothing that r could see
        connect_layers = 0
    most = min(len(hidden), n_joins)
    if connect_layers > most:
        raise ValueError(
            f"`connect_layers` must be at most {most} for these networks (f shows "
            f"{len(hidden)} hidden layers, r can take {n_joins}). Got {connect_layers}."
        )
    # The last hidden layers of f: the first of `joins` enters r's output layer, the next its last
    # hidden layer, and so on.
    joins = hidden[::-1][:connect_layers]
    n_r = n_sides * n_outputs
    if side_network is None:
        # Hidden layers of r are built from the first to the last.
        side = make.hidden(inputs, side_hidden_units, _SIDE, side_l2, joins[:0:-1])[-1:]
    else:
        # The copy has names of its own: `mean_network` may give its layers the same ones.
        built = build_of_shape(side_network, input_shape, n_r, "`side` of `network`")
        _, hidden_r = _copy(built, inputs, prefix=_SIDE)
        side = hidden_r[-1:] or [inputs]
    outputs = make.dense(_concatenate(side + joins[:1], _SIDE + "join"), n_r, _SIDE + "output", l2)
    if mean is not None:
        outputs = keras.layers.Concatenate(dtype="float32", name="output")([mean, outputs])
    return keras.Model(inputs, outputs, name="nomu", dtype="float32")


def build_mean(
    input_shape: tuple,
    n_raw: int,
    hidden_units,
    activation,
    l2,
    initial_range,
    mean_network,
    linear=None,
):
    """Build the part of f alone, with `n_raw` outputs; parameters as in `build_nomu`."""
    from skuq.backend import keras

    inputs = keras.Input(shape=input_shape, name="input", dtype="float32")
    make = _Layers(activation, initial_range)
    outputs, _ = make.mean(inputs, n_raw, hidden_units, l2, mean_network, linear)
    return keras.Model(inputs, outputs, name="mean", dtype="float32")


@dataclass(frozen=True)
class _Layers:
    """Dense layers with a common initial range."""

    activation: str
    initial_range: float | None

    def dense(self, x, units, name, l2, activation=None, reach=None):
        from skuq.backend import keras

        reach = self.initial_range if reach is None else reach
        if reach is None:  # Glorot's. Biases of 0 would put the kinks of all first units at 0
            reach = math.sqrt(6 / (x.shape[-1] + units))
        uniform = keras.initializers.RandomUniform
        options = {f"{part}_initializer": uniform(-reach, reach) for part in _PARTS}
        if l2:
            options |= {f"{part}_regularizer": keras.regularizers.L2(l2) for part in _PARTS}
        return keras.layers.Dense(
            units, activation=activation, dtype="float32", name=name, **options
        )(x)

    def mean(self, inputs, n_raw, units, l2, mean_network, linear=None):
        """Build f; return its outputs and those hidden layers that r can see."""
        if mean_network is not None:
            built = build_of_shape(mean_network, inputs.shape[1:], n_raw, "`network`")
            return _copy(built, inputs)
        hidden = self.hidden(inputs, units, _MEAN, l2)
        reach = None if linear is None else 0.0
        outputs = self.dense(hidden[-1], n_raw, _MEAN + "output", l2, reach=reach)
        if linear is not None:
            outputs = add_linear(inputs, outputs, linear)
        return outputs, hidden

    def hidden(self, x, units, prefix, l2, joins=()):
        """Build all hidden layers; `joins` are further inputs of the last of them, in order."""
        # Each of the last `len(joins)` layers gets one of `joins` besides the layer before it.
        values, first = [], len(units) - len(joins)
        for i, n in enumerate(units):
            if i >= first:
                x = _concatenate([x, joins[i - first]], f"{prefix}join_{i + 1}")
            x = self.dense(x, n, f"{prefix}hidden_{i + 1}", l2, self.activation)
            values.append(x)
        return values


_PARTS = ("kernel", "bias")


def _concatenate(values, name):
    from skuq.backend import keras

    if len(values) == 1:
        return values[0]
    return keras.layers.Concatenate(dtype="float32", name=name)(values)


def _copy(model, x, prefix=_MEAN, frozen=False):
    """Copy a model's layers; return its output for x, and the outputs of its hidden layers.

    The hidden layers are in order, from the first on. Copies have names of their own and are drawn
    anew, without the model's weights. Frozen copies keep the weights, and have neither dropout nor
    noise.
    """
    output = _Copy(prefix, frozen).apply(model, x)
    # A linear part beside the other layers sees the input itself.
    hidden, before = [], [part for part in inputs_of_last_layers(output) if part is not x]
    # Go back layer by layer, up to a tensor that no layer with weights has made: the input.
    while len(before) == 1 and len(before[0].shape) == 2 and inputs_of_last_layers(before[0]):
        hidden.insert(0, before[0])
        before = inputs_of_last_layers(before[0])
    return output, hidden


@dataclass
class _Copy:
    """Copies of a model's layers, those of nested models included, in one flat graph."""

    prefix: str
    frozen: bool
    twins: dict[int, Any] = field(default_factory=dict)  # copies of layers, by the layers' ids

    def apply(self, model, x):
        """Build the model's output for x from copies of its layers."""
        if len(model.inputs) != 1 or len(model.outputs) != 1:
            raise ValueError(f"Model {model.name!r} must have one input and one output.")
        values = {id(model.inputs[0]): x}

        def value_of(tensor):
            if id(tensor) not in values:
                # Repeat the layer call that made the tensor, on copies of its inputs.
                operation, position, _ = tensor._keras_history
                node = operation._inbound_nodes[position]
                known = {id(source): value_of(source) for source in node.input_tensors}
                arguments, options = node.arguments.fill_in(known)
                result = self._apply_copy(operation, *arguments, **options)
                results = result if isinstance(result, list | tuple) else [result]
                values.update(zip(map(id, node.output_tensors), results))
            return values[id(tensor)]

        return value_of(model.outputs[0])

    def _apply_copy(self, operation, *arguments, **options):
        """Apply the copy of a layer or nested model, or a function, to the arguments."""
        from skuq.backend import keras

        if isinstance(operation, keras.Model):
            # Layers of several nested models may have one name: that of the model goes before.
            outer, self.prefix = self.prefix, f"{self.prefix}{operation.name}_"
            result = self.apply(operation, *arguments)
            self.prefix = outer
            return result
        if not isinstance(operation, keras.layers.Layer):
            return operation(*arguments, **options)  # a function of keras.ops has no weights
        if id(operation) not in self.twins:
            self.twins[id(operation)] = self._copy_layer(operation)
        twin = self.twins[id(operation)]
        result = twin(*arguments, **options)  # the first call makes the weights
        if self.frozen and twin.weights:
            twin.set_weights(operation.get_weights())
        return result

    def _copy_layer(self, layer):
        """Make the copy of a layer; an adapted Normalization becomes a Rescaling."""
        from skuq.backend import keras

        name = self.prefix + layer.name
        if (
            isinstance(layer, keras.layers.Normalization)
            and getattr(layer, "mean", None) is not None
        ):
            # What it has adapted to is no weight that a configuration or `set_weights` keeps.
            mean, variance = (
                np.ravel(keras.ops.convert_to_numpy(part)).astype("float64")
                for part in (layer.mean, layer.variance)
            )
            scale = np.maximum(np.sqrt(variance), keras.config.epsilon())
            pair = (scale, mean) if layer.invert else (1 / scale, -mean / scale)
            scale, offset = (part.tolist() for part in pair)
            return keras.layers.Rescaling(scale, offset, dtype="float32", name=name)
        config = {**layer.get_config(), "name": name}
        if self.frozen:
            config |= {part: 0.0 for part in ("rate", "stddev") if part in config}
            # Constraints and penalties have no effect on weights that do not change.
            unused = ("_constraint", "_regularizer")
            config |= {part: None for part in config if part.endswith(unused)}
        twin = type(layer).from_config(config)
        twin.trainable = layer.trainable and not self.frozen
        return twin


def _frozen_features(model, scale, offset, inputs, sample):
    """Copy the hidden layers of a trained model, frozen and standardised over a sample.

    All features of a layer share one factor, as separate ones would blow up features that hardly
    vary.
    """
    from skuq.backend import keras

    # f was trained on x * scale + offset.
    x = keras.layers.Rescaling(scale, offset, dtype="float32", name=_MEAN + "unscaled")(inputs)
    output, hidden = _copy(model, x, frozen=True)
    if sample is None or not hidden:
        return hidden
    copied, *seen = keras.Model(inputs, [output, *hidden]).predict(sample, verbose=0)
    expected = model.predict(sample * scale + offset, verbose=0)
    if not np.allclose(copied, expected, rtol=1e-2, atol=1e-2 * (np.ptp(expected) or 1.0)):
        raise ValueError(
            "A copy of the trained model predicts other values than the model: some layer keeps "
            "what it has learnt outside of its weights. Use `connect_layers=0`."
        )
    # (x - mean) * factor, as a Rescaling layer.
    features = []
    for k, (feature, values) in enumerate(zip(hidden, seen)):
        values = values.astype("float64")
        factor = 1 / (np.sqrt(values.var(axis=0).mean()) or 1.0)
        shift = (-factor * values.mean(axis=0)).tolist()
        name = f"{_MEAN}features_{k + 1}"
        layer = keras.layers.Rescaling(float(factor), shift, dtype="float32", name=name)
        features.append(layer(feature))
    return features


def inputs_of_last_layers(output) -> list:
    """List the inputs of those layers with weights that come last before an output."""
    found: dict[int, Any] = {}
    waiting = [output]
    while waiting:
        operation, position, _ = waiting.pop()._keras_history
        sources = operation._inbound_nodes[position].input_tensors
        if getattr(operation, "weights", ()):
            found.update((id(source), source) for source in sources)
        else:
            waiting += sources
    return list(found.values())
