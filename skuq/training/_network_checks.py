"""Networks as pure functions of their weights, and their first weights.

Networks that give several predictions (draws) a row run by the same code in training (on tensors)
and in prediction (on arrays). Only a base network that is a Keras model needs the backend to
predict.

Keras draws weights from a global generator while it builds a model. The result would depend on
everything else that the process has drawn, in other threads too. Therefore weights are drawn
again here, each variable by a copy of its initializer with a seed of its own.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq import backend
from skuq._messages import warn_user
from skuq._random import MAX_SEED
from skuq.exceptions import SearchSpaceError
from skuq.networks import _keras_models
from skuq.networks._member import Member, checked_network
from skuq.networks._operations import ARRAYS, Namespace, Run, split_weights
from skuq.networks._operator_network import EpistemicNetwork
from skuq.networks._plan import Plan, make_plan

_SEED_STATE = "seed_generator_state"


@backend.in_thread
def draw_variables(model: Any, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw flat trainable weights of shape (n_weights,), and the non-trainable variables.

    The initializer of a variable `w` is its layer's attribute `w_initializer`, as in all
    of Keras' layers. Frozen variables are drawn again if all of them still have the values with
    which Keras started them, such as those of random features; if some were trained or set, all
    keep their values. Variables without an initializer keep theirs, too, with a warning if they are
    trained and not constant, because all members then start from them.
    """
    rng, starts = np.random.default_rng(seed), _starts(model, with_frozen=True)
    values: dict[int, np.ndarray] = {}  # by identity: nested models may repeat a path
    for variable in model.variables:
        # Drawn for every variable, so that a seed depends only on the variable's position.
        own_seed, value = int(rng.integers(1, MAX_SEED)), variable.numpy()
        if variable.name == _SEED_STATE:  # the generator of a random layer
            value = np.random.default_rng(own_seed).integers(MAX_SEED, size=value.shape)
            value = value.astype(variable.dtype)
        elif id(variable) in starts:
            value = starts[id(variable)].draw(variable, own_seed)
        elif variable.trainable and value.dtype.kind == "f" and np.ptp(value) > 0:
            warn_user(
                f"Variable {variable.path} has no initializer that its layer names "
                f"`{variable.name}_initializer`: all members start from the same value. Give the "
                "layer such an attribute."
            )
        values[id(variable)] = np.asarray(value)
    parts = [values[id(v)].ravel() for v in model.trainable_variables]
    flat = np.concatenate(parts).astype("float32")
    return flat, [values[id(v)] for v in model.non_trainable_variables]


def has_fixed_values(model: Any) -> bool:
    """Tell whether some variables may start from the model's own values instead of drawn ones."""
    starts = _starts(model)
    return any(v.name != _SEED_STATE and id(v) not in starts for v in model.variables)


@dataclass(frozen=True)
class _Start:
    """The initializer of a variable, and whether the variable is the bias of an LSTM.

    The quarter of this bias that belongs to the forget gate starts as ones, as in Keras.
    """

    initializer: Any
    is_bias_of_lstm: bool = False

    def draw(self, variable: Any, seed: int | None = None) -> np.ndarray:
        """Draw a value for a variable, with this seed or as Keras has drawn it at first."""
        initializer, config = self.initializer, self.initializer.get_config()
        if seed is not None and "seed" in config:
            initializer = type(initializer).from_config({**config, "seed": seed})

        def drawn(*shape: int) -> np.ndarray:
            numbers = initializer(shape, dtype=variable.dtype)
            return np.asarray(backend.ops.convert_to_numpy(numbers))

        if not self.is_bias_of_lstm:
            return drawn(*variable.shape)
        n_units = variable.shape[0] // 4  # of the gates for input, forgetting, cell and output
        ones = np.ones(n_units, variable.dtype)
        return np.concatenate([drawn(n_units), ones, drawn(2 * n_units)])


def _starts(model: Any, *, with_frozen: bool = False) -> dict[int, _Start]:
    """Map ``id(variable)`` to its start, if its layer names an initializer for it.

    Frozen layers and variables are left out. With `with_frozen` random ones among them are
    included, but only if all that is frozen still has the values with which Keras started it.
    Otherwise it has been trained or set, and is to keep its values.
    """
    found: dict[int, _Start] = {}
    frozen: dict[int, _Start] = {}
    for layer in backend.flatten_layers(model, include_self=False):
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            start = _start_of(variable, layer)
            if start is None:
                continue
            # The state of a layer, such as moving averages, is never trainable itself.
            is_state = any(variable is other for other in layer._non_trainable_variables)
            if layer.trainable and (variable.trainable or is_state):
                found[id(variable)] = start
            elif not np.array_equal(start.draw(variable), variable.numpy()):
                with_frozen = False
            # Random, without a seed that the user has given.
            elif start.initializer.get_config().get("seed", 0) is None:
                frozen[id(variable)] = start
    return found | frozen if with_frozen else found


def _start_of(variable: Any, layer: Any) -> _Start | None:
    """Find the initializer of a layer's variable by its name; None if it has another name."""
    stem = variable.name.removesuffix("_kernel") or variable.name
    # A depthwise convolution calls its kernel's initializer depthwise_initializer.
    for name in (variable.name, stem, stem.replace("kernel", "depthwise")):
        initializer = getattr(layer, f"{name}_initializer", None)
        if isinstance(initializer, backend.keras.initializers.Initializer):
            is_bias_of_lstm = name == "bias" and getattr(layer, "unit_forget_bias", False)
            config = initializer.get_config()
            lacks_axes = config.get("input_axes", 0) is None  # only some initializers have them
            if isinstance(layer, backend.keras.layers.EinsumDense) and lacks_axes:
                # Keras scales the values by the axes of the kernel, which the equation names.
                _, kernel, output = re.split(",|->", layer.equation.replace(" ", ""))
                config["input_axes"] = [k for k, axis in enumerate(kernel) if axis not in output]
                config["output_axes"] = [k for k, axis in enumerate(kernel) if axis in output]
                scaled = type(initializer).from_config(config)
                scaled.seed = initializer.seed
                initializer = scaled
            return _Start(initializer, is_bias_of_lstm)
    return None


@backend.in_thread
def keras_model(member: Member) -> Any:
    """Build a member's Keras model, and set its weights."""
    model = _keras_models.rebuild(checked_network(member))
    trainable = model.trainable_variables
    values = split_weights(np.asarray(member.weights), [v.shape for v in trainable])
    for variable, value in zip(trainable, values):
        variable.assign(value)
    for variable, value in zip(model.non_trainable_variables, member.state):
        variable.assign(value)
    return model


MAX_PASS_ROWS = 8192  # most rows of one forward pass without gradients ..
_MAX_PASS_ENTRIES = 2**23  # .. and most numbers that one layer may return in it: 32 MB


def numbers_per_row(model: Any) -> list[int]:
    """Count the numbers that each layer returns for one row, which determine a pass' memory.

    Axes of unknown length count as one.
    """
    shapes = [
        tensor.shape[1:]
        for layer in model.layers
        for node in layer._inbound_nodes
        for tensor in node.output_tensors
    ]
    return [math.prod(n or 1 for n in shape) for shape in shapes] or [1]


class KerasNetwork:
    """A Keras model as a function of its weights; the members of a stack run one by one.

    The model's own variables are never read. Its random layers draw from Keras' generators, whose
    seeds are part of the state. `n_members` is 0 for one network, without a member axis.
    """

    def __init__(self, model: Any, n_members: int):
        self.model, self.n_members = model, n_members
        self.chunk = min(MAX_PASS_ROWS, max(1, _MAX_PASS_ENTRIES // max(numbers_per_row(model))))
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, list[Any], Any]:
        """Compute ``(raw, new state, penalty)``, each with the member axis of a stack."""
        if not self.n_members:
            return self._forward(variables, state, x, run.training)
        shared_x = len(x.shape) == len(self.model.input_shape)  # x has no member axis
        each = [
            self._forward(
                [value[k] for value in variables],
                [value[k] for value in state],
                x if shared_x else x[k],
                run.training,
            )
            for k in range(self.n_members)
        ]
        raws, states, penalties = zip(*each)
        ops = backend.ops
        # Each variable of the state becomes one of shape (n_members, *shape).
        return ops.stack(raws), [ops.stack(values) for values in zip(*states)], ops.stack(penalties)

    def _forward(
        self, variables: Any, state: Any, x: Any, training: bool
    ) -> tuple[Any, list[Any], Any]:
        raw, state, penalties = self.model.stateless_call(
            list(variables), list(state), x, training=training, return_losses=True
        )
        return raw, list(state), sum(penalties, backend.ops.convert_to_tensor(0.0))


class PlannedNetwork:
    """A network described by a `Plan`, with or without a member axis.

    Like every network of a program, it knows the shapes of its weights and the rows of a chunk.
    """

    def __init__(self, plan: Plan):
        self.plan, self.chunk = plan, MAX_PASS_ROWS
        self.shapes = [weight.shape for weight in plan.weights]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute ``(raw, new state, penalty)``."""
        raw, state = self.plan(variables, state, x, run)
        total: Any = 0.0  # the layers' own weight penalties, () or (n_members,)
        for weight, value in zip(self.plan.weights, variables):
            axes = tuple(range(-len(weight.shape), 0))
            if weight.l1:
                total = total + weight.l1 * backend.ops.sum(backend.ops.abs(value), axis=axes)
            if weight.l2:
                total = total + weight.l2 * backend.ops.sum(backend.ops.square(value), axis=axes)
        return raw, state, total


class DrawingNetwork:
    """Base network plus EpiNet, or plus a fixed random prior network.

    It computes draws (.., S, N, n_raw) for N rows and the S epistemic indices of a run, or one
    draw without an EpiNet. `n_members` is 0 for one network, without a member axis.

    The variables are those of the base, then those of the EpiNet's trainable part. The state is
    that of the base, then the frozen weights of the prior.
    """

    chunk = MAX_PASS_ROWS

    def __init__(self, network: EpistemicNetwork, n_members: int = 0):
        self.network, base = network, network.base
        self.keras_base: KerasNetwork | None = None
        shapes: list[tuple[int, ...]] = []
        if isinstance(base, str):
            self.keras_base = KerasNetwork(_keras_models.rebuild(base), n_members)
            shapes = self.keras_base.shapes
        elif base is not None:
            shapes = base.shapes
        self.n_base, self._n_base_state = len(shapes), 0  # variables, and those of the state
        if self.keras_base is not None:
            self._n_base_state = len(self.keras_base.model.non_trainable_variables)
        self.shapes = shapes + (network.epinet.shapes if network.epinet is not None else [])

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Split flat weights (.., n_weights) into variables (.., *shape)."""
        return split_weights(flat, self.shapes)

    def draw(self, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Draw first weights (n_weights,) and state, as `draw_variables` does for Keras models."""
        rng = np.random.default_rng(seed)
        weights, state = self._draw_base(rng)
        epinet = self.network.epinet
        if epinet is not None:
            trainable, prior = epinet.draw(rng)
            weights = np.concatenate([weights, *map(np.ravel, trainable)])
            state = [*state, *prior]
        elif self.network.prior_scale:
            # The prior is a second network of the base's architecture, with frozen weights.
            prior_weights, prior_state = self._draw_base(rng)
            state = [*state, *self.split(prior_weights), *prior_state]
        state = [v.astype("float32") if v.dtype.kind == "f" else v for v in map(np.asarray, state)]
        return weights.astype("float32"), state

    def _draw_base(self, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.keras_base is not None:
            return draw_variables(self.keras_base.model, int(rng.integers(1, MAX_SEED)))
        base: Any = self.network.base
        parts = base.draw(rng) if base is not None else []
        return np.concatenate([np.zeros(0), *map(np.ravel, parts)]), []

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute draws (.., S, N, n_raw), new state and weight penalty for rows (.., N, n).

        An EpiNet adds its output, given the base's features, to the base's output (NEON, Eq. 3).
        """
        xp, epinet = run.namespace.xp, self.network.epinet
        lead = tuple(variables[0].shape[: -len(self.shapes[0])])  # (n_members,) or ()
        if lead and len(x.shape) == 2:  # all members share the rows: (N, n) -> (n_members, N, n)
            x = xp.broadcast_to(x, (*lead, *x.shape))
        n_state = self._n_base_state
        base_state, frozen = list(state[:n_state]), list(state[n_state:])
        base_variables = variables[: self.n_base]
        mean, features, base_state, penalty = self.base(base_variables, base_state, x, run)
        draws = mean[..., None, :, :]  # (.., N, n_raw) -> (.., 1, N, n_raw)
        if epinet is not None:
            # In training, the EpiNet's gradients stop at the base's features: "sg" of Eq. 3.
            # Gradients of a posterior with respect to its inputs pass through them.
            inputs = xp.stop_gradient(features) if run.training else features
            own_variables = variables[self.n_base :]
            draws = draws + epinet(run.namespace, own_variables, frozen, inputs, run.index)
        elif frozen:
            prior = self.prior(state, x, run.namespace) if run.prior is None else run.prior
            draws = draws + self.network.prior_scale * prior[..., None, :, :]
        return draws, base_state + frozen, penalty

    def prior(self, state: Any, x: Any, namespace: Namespace = ARRAYS) -> Any:
        """Compute the raw outputs (.., N, n_raw) of a random prior without an EpiNet."""
        frozen, n = state[self._n_base_state :], self.n_base
        return self.base(frozen[:n], frozen[n:], x, Run(namespace))[0]

    def base(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any, Any]:
        """Compute the base network: raw outputs (.., N, n_raw), features, new state, penalty."""
        n_raw, base = self.network.n_raw, self.network.base
        if base is None:
            return run.namespace.xp.zeros((*x.shape[:-1], n_raw), x.dtype), x, state, 0.0
        if self.keras_base is None:
            function: Any = base
            return *function(run.namespace, variables, x), state, 0.0
        # A Keras base returns its features as further columns of its output.
        raw, state, penalty = self.keras_base.forward(variables, state, x, run)
        return raw[..., :n_raw], raw[..., n_raw:], list(state), penalty


# Layers and operations that only apply an activation.
_ACTIVATIONS = (
    *("celu", "elu", "gelu", "hardsigmoid", "hardtanh", "leakyrelu", "logsigmoid", "logsoftmax"),
    *("prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign"),
    *("exp", "hardshrink", "softshrink", "sparsemax", "squareplus", "tanh", "threshold"),
)


@backend.in_thread
def build_checked(
    build: Callable[..., Any], input_shape: tuple[int, ...], n_raw: int, source: str
) -> Any:
    """Build the Keras model of a user's function, and check it.

    Parameters
    ----------
    build : callable
        ``build(input_shape, n_outputs) -> keras.Model``.
    source : str
        Name of the function's origin, with which error messages begin ("The search space").
    """
    model = _keras_models.build_of_shape(build, input_shape, n_raw, source)
    _keras_models.freeze_inner_layers(model)
    _keras_models.forget_compilation(model)
    _check_last_activation(model, source)
    if not model.trainable_variables:
        raise SearchSpaceError(f"{source} returned a model without trainable weights.")
    _check_layers(model, source)
    if fault := _keras_models.wrong_sum(model):
        raise SearchSpaceError(f"{source} returned a model in which {fault}")
    # A member is stored as its configuration, from which its model is rebuilt to predict. A plan
    # is made of the configuration alone, so that such a model needs no check.
    if make_plan(model.to_json()) is None:
        try:
            _keras_models.check_rebuild(model)
        except Exception as error:
            raise SearchSpaceError(
                f"{source} returned a model that cannot be rebuilt from its configuration: {error}."
            ) from error
    return model


def _check_last_activation(model: Any, source: str) -> None:
    """Raise SearchSpaceError if the outputs of a model come from one of Keras' activations."""
    tensor = model.outputs[0]
    while True:  # go into models, and back over changes of the shape
        last, index, _ = tensor._keras_history
        name = type(last).__name__
        if isinstance(last, backend.keras.Model) and hasattr(last, "outputs"):
            tensor = last.outputs[0]
        elif name in ("Dropout", "Flatten", "Identity", "Reshape"):
            tensor = last._inbound_nodes[index].input_tensors[0]
        else:
            break
    if name.lower() not in _ACTIVATIONS:
        name = "linear"
        # A layer of the user's may apply its activation anywhere.
        if type(last).__module__.startswith("keras."):
            activation = getattr(last, "activation", None)
            known = vars(backend.keras.activations)
            # A module has attributes that are None, too, as layers without activation have.
            name = next((one for one, f in known.items() if f is activation and callable(f)), name)
    if name != "linear":
        raise SearchSpaceError(
            f"{source} returned a model that ends with the activation {name!r}. Its outputs are "
            "parameters of a distribution, such as logits of classes, or a mean and a raw standard "
            "deviation. End with a layer without activation, such as Dense(n_outputs)."
        )


def _check_layers(model: Any, source: str) -> None:
    """Raise SearchSpaceError if layers do not compute float32, or hold what is not supported."""
    layers = backend.flatten_layers(model)
    types = {str(v.dtype) for v in model.trainable_variables}
    types |= {layer.compute_dtype for layer in layers}
    types |= {str(x.dtype) for x in model.inputs} & {"float16", "bfloat16"}  # these round X
    if types != {"float32"}:
        raise SearchSpaceError(
            f"{source} must return a model that takes, holds and computes float32. Got "
            f"{sorted(types)}. Give its inputs and layers dtype='float32', or unset a global "
            "dtype policy and float type."
        )
    for layer in layers:
        for name in vars(layer):
            if name.endswith("_constraint") and getattr(layer, name) is not None:
                raise SearchSpaceError(
                    f"Layer {layer.name!r} has a {name}, and training programs apply no "
                    "constraints. Remove it, or use a regularizer."
                )
        if frozen := _keras_models.frozen_variables(layer):
            raise SearchSpaceError(
                f"{source} returned a model with the frozen variable {frozen[0]!r} in layer "
                f"{layer.name!r}. Its configuration does not hold this. Freeze the whole layer."
            )
