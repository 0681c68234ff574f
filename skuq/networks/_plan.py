"""Convert a Keras network to a plan: a list of operations on plain arrays or tensors.

Keras' layers can neither run many members at once nor run in NumPy. A plan can: the same code
runs on tensors in training (for one network, or for K of one architecture with a leading member
axis), and on arrays in prediction, with no backend loaded. It is made from the model's stored
configuration. A network with a layer that is unknown here has no plan, and runs through Keras
one member at a time.

Notation: arrays are (.., n_samples, n_features), where .. is nothing or (n_members,).
"""

import functools
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.networks import _operations
from skuq.networks._operations import FORWARD, DenseOperation, LayerSpec, NoPlan, Run, Weight


@dataclass(frozen=True)
class _Node:
    """One operation of a plan, with the positions of its inputs and variables."""

    operation: Any
    inputs: tuple[int, ...]  # numbers of the values that it takes; 0 is the network's input
    weights: tuple[int, int]  # first and end position of its weights among the plan's
    state: tuple[int, int]  # the same for its non-trainable variables


@dataclass(frozen=True)
class Plan:
    """Operations of a network in order; plans are equal if networks differ only in names.

    Attributes
    ----------
    input_shape : tuple of int
        Shape of one row.
    nodes : tuple
        Node i computes value i + 1.
    output : int
        Number of the value that is the network's output.
    weights : tuple of Weight
        The trainable variables, in Keras' order.
    n_state : int
        Number of non-trainable variables.
    n_dropouts : int
        Number of Dropout layers.
    width : int
        Largest number of entries of one value or intermediate result, for one row.
    """

    input_shape: tuple[int, ...]
    nodes: tuple[_Node, ...]
    output: int
    weights: tuple[Weight, ...]
    n_state: int
    n_dropouts: int
    width: int

    def __call__(self, weights, state, x, run: Run = FORWARD):
        """Compute ``(output, new state)`` from lists of weights and state in Keras' order."""
        values, state = [x], list(state)
        for node in self.nodes:
            inputs = [values[i] for i in node.inputs]
            # A node sees its own part of weights and state, and replaces the latter.
            of_node = slice(*node.state)
            value, state[of_node] = node.operation(
                run, weights[slice(*node.weights)], state[of_node], *inputs
            )
            values.append(value)
        return values[self.output], state

    @functools.cached_property
    def input_kernels(self) -> tuple[int, ...]:
        """Positions, among the weights, of the kernels of plain dense layers that read the input.

        Layers that divide by the root of their number of inputs are left out: their rates do not
        depend on it.
        """
        inputs, kernels = {0}, []
        for value, node in enumerate(self.nodes, start=1):
            if inputs.issuperset(node.inputs):
                if isinstance(node.operation, _Dropout):
                    inputs.add(value)
                elif isinstance(node.operation, DenseOperation) and node.operation.factor == 1:
                    kernels.append(node.weights[0])
        return tuple(kernels)

    def split(self, flat: Any) -> list[Any]:
        """Split flat weights (.., n_weights) into views, one for each variable."""
        return _operations.split_weights(flat, [weight.shape for weight in self.weights])


@functools.lru_cache(maxsize=256)
def without_names(network: str) -> str:
    """Replace layer names by numbers in a model's JSON, so that equal networks have equal JSON."""
    names: dict[str, str] = {}

    def collect(item):
        if isinstance(item, dict) and "class_name" in item and isinstance(item["config"], dict):
            names.setdefault(item["config"].get("name"), f"layer_{len(names)}")
        for part in item.values() if isinstance(item, dict) else item:
            if isinstance(part, dict | list):
                collect(part)

    def number(item, is_name):
        """Replace names; `is_name` tells that strings here are layer names, not other values."""
        if isinstance(item, list):
            return [number(part, is_name) for part in item]
        if isinstance(item, dict):
            return {
                key: number(part, is_name or key in _LAYER_NAME_KEYS) for key, part in item.items()
            }
        return names.get(item, item) if is_name else item

    # First all names, since a layer can be referred to before its own entry.
    config = json.loads(network)
    collect(config)
    return json.dumps(number(config, is_name=False))


_LAYER_NAME_KEYS = ("name", "keras_history", "input_layers", "output_layers")


@functools.lru_cache(maxsize=256)
def make_plan(network: str) -> Plan | None:
    """Make the plan of a Keras model's JSON configuration; None if the model cannot be planned."""
    try:
        return _read(json.loads(network))
    except (NoPlan, KeyError, TypeError, ValueError, IndexError):
        return None


def _read(model) -> Plan:
    """Make the plan of a parsed configuration, or raise NoPlan."""
    layers = model["config"]["layers"]
    # Positions among the layers, which differ from numbers of values: inputs have no node.
    wires, output = _wiring(model)
    if not model["config"].get("trainable", True):
        raise NoPlan
    # Keras lists layers in an order in which each follows its inputs, and their variables alike.
    nodes: list = []
    weights: list = []
    n_state = n_dropouts = width = 0
    values = {}  # position of a layer -> number of its value
    shapes: list = []  # shapes of the values, for one row
    for i, layer in enumerate(layers):
        if layer["class_name"] == "InputLayer":
            if shapes or _policy(layer["config"]) != "float32":
                raise NoPlan  # several inputs, or one of another type
            shape = layer["config"].get("batch_shape") or layer["config"]["batch_input_shape"]
            shapes.append(tuple(int(n) for n in shape[1:]))
            values[i] = 0
            continue
        sources = tuple(values[j] for j in wires[i])
        spec = _read_layer(layer, [shapes[s] for s in sources])
        width = max(width, getattr(spec.operation, "width", 0))
        if isinstance(spec.operation, _Dropout):
            spec = spec._replace(operation=replace(spec.operation, number=n_dropouts))
            n_dropouts += 1
        elif not layer["config"]["trainable"]:  # a frozen Dropout layer still drops units
            # Keras counts frozen weights as non-trainable variables, before the layer's others.
            n_frozen = len(spec.weights)
            frozen = _Frozen(spec.operation, n_frozen)
            spec = spec._replace(operation=frozen, weights=[], n_state=n_frozen + spec.n_state)
        node = _Node(
            spec.operation,
            inputs=sources,
            weights=(len(weights), len(weights) + len(spec.weights)),
            state=(n_state, n_state + spec.n_state),
        )
        nodes.append(node)
        weights += spec.weights
        n_state += spec.n_state
        shapes.append(spec.shape)
        values[i] = len(shapes) - 1
    return Plan(
        input_shape=shapes[0],
        nodes=tuple(nodes),
        output=values[output],
        weights=tuple(weights),
        n_state=n_state,
        n_dropouts=n_dropouts,
        width=max([width, *(math.prod(shape) for shape in shapes)]),
    )


def _wiring(model):
    """Find the positions of the layers that each layer reads, and that of the output layer."""
    layers = model["config"]["layers"]
    if model["class_name"] == "Sequential":
        if layers[0]["class_name"] != "InputLayer":
            raise NoPlan
        return [[i - 1] if i else [] for i in range(len(layers))], len(layers) - 1
    if model["class_name"] != "Functional":
        raise NoPlan
    positions = {layer["config"]["name"]: i for i, layer in enumerate(layers)}
    outputs = model["config"]["output_layers"]
    # Keras writes one output as [name, 0, 0], or as a list of such lists.
    ((name, *_),) = [outputs] if isinstance(outputs[0], str) else outputs
    return [_sources(layer, positions) for layer in layers], positions[name]


def _sources(layer, positions):
    """Find the positions of the layers that a layer of a functional model reads."""
    nodes = layer["inbound_nodes"]
    if not nodes:
        return []
    found = []

    def visit(item):
        if isinstance(item, dict) and item.get("class_name") == "__keras_tensor__":
            name, node, tensor = item["config"]["keras_history"]
            if node or tensor:
                raise NoPlan  # a layer that is called several times, or has several outputs
            found.append(positions[name])
        elif isinstance(item, list):
            for part in item:
                visit(part)
        else:
            raise NoPlan  # a constant argument

    (call,) = nodes
    visit(call["args"])
    kwargs = {key: value for key, value in call["kwargs"].items() if value is not None}
    if kwargs not in ({}, {"training": False}):
        raise NoPlan  # a keyword argument set by the model's author
    return found


def _read_layer(layer, shapes):
    config = layer["config"]
    if layer.get("module", "keras.layers") == "keras.layers":
        read = _READERS.get(layer["class_name"])
    else:
        read = _operations.TABULAR_READERS.get(layer.get("registered_name"))
    # These change what a layer computes or its loss, and plans do not have them.
    others = ("activity_regularizer", "lora_rank", "quantization_config")
    if (
        read is None
        or _policy(config) != "float32"
        or any(config.get(k) is not None for k in others)
    ):
        raise NoPlan
    return read(config, shapes)


def _policy(config):
    dtype = config.get("dtype") or "float32"
    return dtype["config"]["name"] if isinstance(dtype, dict) else dtype


@dataclass(frozen=True)
class _Frozen:
    """An operation with frozen weights, which Keras counts as non-trainable variables."""

    operation: Any
    n_weights: int

    def __call__(self, run, weights, state, *inputs):
        frozen, rest = state[: self.n_weights], state[self.n_weights :]
        run = replace(run, training=False)  # batch statistics do not change either
        return self.operation(run, frozen, rest, *inputs)[0], state


@dataclass(frozen=True)
class _Activation:
    activation: str

    @classmethod
    def read(cls, config, shapes):
        (shape,) = shapes
        return LayerSpec(cls(_operations.check_activation(config["activation"])), [], shape)

    def __call__(self, run, weights, state, x):
        return run.namespace.activation(self.activation)(x), state


@dataclass(frozen=True)
class _Rescaling:
    scale: tuple[float, ...]  # one entry, or one for each feature
    offset: tuple[float, ...]

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        values = [tuple(np.ravel(config[name]).astype(float)) for name in ("scale", "offset")]
        if any(len(value) not in (1, n) for value in values):
            raise NoPlan
        return LayerSpec(cls(*values), [], shape=(n,))

    def __call__(self, run, weights, state, x):
        dtype = getattr(x.dtype, "name", x.dtype)  # tensors' dtypes have a name, Keras' are one
        scale, offset = (np.asarray(v, dtype=dtype) for v in (self.scale, self.offset))
        return x * scale + offset, state


@dataclass(frozen=True)
class _Merge:
    """Sum or product of values of equal shape."""

    product: bool

    @classmethod
    def read(cls, config, shapes, *, product):
        if len(set(shapes)) != 1:
            raise NoPlan
        return LayerSpec(cls(product), [], shape=shapes[0])

    def __call__(self, run, weights, state, first, *others):
        for other in others:
            first = first * other if self.product else first + other
        return first, state


@dataclass(frozen=True)
class _Concatenate:
    @classmethod
    def read(cls, config, shapes):
        if any(len(shape) != 1 for shape in shapes) or config["axis"] not in (-1, 1):
            raise NoPlan
        return LayerSpec(cls(), [], shape=(sum(n for (n,) in shapes),))

    def __call__(self, run, weights, state, *inputs):
        return _operations.concatenate_features(run.namespace.xp, inputs), state


@dataclass(frozen=True)
class _Dropout:
    rate: float
    number: int = 0  # among the network's Dropout layers, set by `_read`

    @classmethod
    def read(cls, config, shapes):
        if config.get("noise_shape") is not None or config["rate"] >= 1:
            raise NoPlan
        ((n,),) = shapes
        rate = float(config["rate"])
        # Keras stores the layer's random seed as a variable: one entry of state, not used here.
        return LayerSpec(cls(rate), [], shape=(n,), n_state=int(rate > 0))

    def __call__(self, run, weights, state, x):
        if run.dropout_mask is None:  # prediction: Keras scales in training, not here
            return x, state
        return x * run.dropout_mask(self.number, self.rate, x.shape), state


def _scale_and_center(config, n):
    """List the weights (gamma, beta) of a layer that normalises n features."""
    weights = []
    for used, name in (("scale", "gamma"), ("center", "beta")):
        if config.get(f"{name}_constraint") is not None:
            raise NoPlan
        if config[used]:
            weights.append(Weight((n,), *_operations.penalty(config[f"{name}_regularizer"])))
    return weights


@dataclass(frozen=True)
class _BatchNormalization:
    momentum: float
    epsilon: float
    center: bool
    scale: bool

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        last = config["axis"] in (-1, 1, [-1], [1])
        if not last or config.get("synchronized") or config.get("renorm"):
            raise NoPlan
        operation = cls(config["momentum"], config["epsilon"], config["center"], config["scale"])
        # The state is the moving mean and variance.
        return LayerSpec(operation, _scale_and_center(config, n), shape=(n,), n_state=2)

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        mean, variance = state  # moving statistics, (.., n_features)
        if run.training:
            # Weighted statistics of the batch, in which rows that pad it have no weight.
            share = (run.is_real / xp.sum(run.is_real))[:, None]
            batch_mean = xp.sum(share * x, axis=-2)
            centred = x - _operations.row(xp, batch_mean)
            batch_variance = xp.sum(share * centred * centred, axis=-2)
            keep = self.momentum
            state = [
                keep * mean + (1 - keep) * batch_mean,
                keep * variance + (1 - keep) * batch_variance,
            ]
            mean, variance = batch_mean, batch_variance
        weights = list(weights)
        # y = gamma (x - mean) / sqrt(variance + epsilon) + beta, with one factor per feature.
        factor = 1 / xp.sqrt(variance + self.epsilon)
        factor = factor * weights.pop(0) if self.scale else factor
        y = (x - _operations.row(xp, mean)) * _operations.row(xp, factor)
        return (y + _operations.row(xp, weights[0]) if self.center else y), state


@dataclass(frozen=True)
class _LayerNormalization:
    epsilon: float
    center: bool
    scale: bool

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        if config["axis"] not in (-1, 1, [-1], [1]) or config.get("rms_scaling"):
            raise NoPlan
        operation = cls(config["epsilon"], config["center"], config["scale"])
        return LayerSpec(operation, _scale_and_center(config, n), shape=(n,))

    def __call__(self, run, weights, state, x):
        xp, weights = run.namespace.xp, list(weights)
        # Centre before squaring, so that the variance cannot become negative by rounding.
        x = x - xp.mean(x, axis=-1, keepdims=True)
        y = x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        if self.scale:
            y = y * _operations.row(xp, weights.pop(0))
        return (y + _operations.row(xp, weights[0]) if self.center else y), state


_READERS = {
    "Dense": DenseOperation.read,
    "Activation": _Activation.read,
    "Add": functools.partial(_Merge.read, product=False),
    "Multiply": functools.partial(_Merge.read, product=True),
    "Concatenate": _Concatenate.read,
    "Dropout": _Dropout.read,
    "BatchNormalization": _BatchNormalization.read,
    "LayerNormalization": _LayerNormalization.read,
    "Rescaling": _Rescaling.read,
}
