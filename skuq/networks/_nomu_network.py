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
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq import backend
from skuq._params import Interval, Settings, StrOptions, parameters, refuse
from skuq.networks._heads import MEAN_LAYERS as _MEAN
from skuq.networks._heads import NomuHead
from skuq.networks._keras_models import build_of_shape, check_units
from skuq.networks._operations import ACTIVATIONS

_SIDE = "side_"  # beginning of the names of the layers of r


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
    head: NomuHead,
    network: NOMUNetwork,
    loss: NOMULoss,
    auto_units: Sequence[int] = (50,),
    *,
    given: Any = None,
    sample: np.ndarray | None = None,
):
    """Build NOMU's architecture (Figure 2) as one Keras model of one input.

    Parameters
    ----------
    input_shape : tuple
        ``(n_features,)``.
    head : NomuHead
        The model gives f (m numbers, none where it is `given`), then r (n_sides * m).
    network : NOMUNetwork
        Layers of f and r. r's `connect_layers` count as 0 if they are 1, and f has no hidden layer
        that is a vector. At most 1 can be seen by a `side` of the user's, whose last layer of
        weights gives way to one that also sees f.
    loss : NOMULoss
        Penalties on weights and biases: `l2` of f and of r's output layer, `side_l2` of r's hidden
        layers (appendix D.4).
    auto_units : sequence of int
        Widths of hidden layers that the settings leave open.
    given : tuple (keras.Model, scale, offset) or "apart", optional
        Trained f, which takes ``x * scale + offset``. Its layers are frozen, and its outputs are
        not outputs of the network. "apart" means that f has no layers that could be seen: then
        r sees x only.
    sample : ndarray of shape (n, n_features), optional
        Rows over which the features of a given f are standardised before r sees them, as they may
        be of any size.

    Raises
    ------
    ValueError
        If `connect_layers` is larger than the number of layers that can be connected.
    """
    make, connect_layers = _Layers(network, loss), network.connect_layers
    units, side_units = network.units(auto_units)
    inputs = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    mean, hidden = None, []  # f's outputs, and those of its hidden layers that r may see
    if given is None:
        mean, hidden = make.mean(inputs, head.n_outputs, units)
    elif given != "apart" and connect_layers:
        model, scale, offset = given
        hidden = _frozen_features(model, scale, offset, inputs, sample)
    # Places where f can join r: its output layer and, if they are made here, its hidden layers.
    n_joins = 1 if network.side is not None else 1 + len(side_units)
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
    joins, n_r = hidden[::-1][:connect_layers], head.n_sides * head.n_outputs
    if network.side is None:
        # Hidden layers of r are built from the first to the last.
        side = make.hidden(inputs, side_units, _SIDE, loss.side_l2, joins[:0:-1])[-1:]
    else:
        # The copy has names of its own: a `mean` of the user's may give its layers the same ones.
        built = build_of_shape(network.side, input_shape, n_r, "`side` of `network`")
        _, hidden_r = _copy(built, inputs, prefix=_SIDE)
        side = hidden_r[-1:] or [inputs]
    joined = _concatenate(side + joins[:1], _SIDE + "join")
    outputs = make.dense(joined, n_r, _SIDE + "output", loss.l2)
    if mean is not None:
        outputs = backend.keras.layers.Concatenate(dtype="float32", name="output")([mean, outputs])
    return backend.keras.Model(inputs, outputs, name="nomu", dtype="float32")


def build_mean(input_shape, n_raw, network, loss, auto_units):
    """Build the part of f alone, with `n_raw` outputs; parameters as in `build_nomu`."""
    inputs = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    outputs, _ = _Layers(network, loss).mean(inputs, n_raw, network.units(auto_units)[0])
    return backend.keras.Model(inputs, outputs, name="mean", dtype="float32")


@dataclass(frozen=True)
class _Layers:
    """Dense layers by the settings of network and loss."""

    network: NOMUNetwork
    loss: NOMULoss

    def dense(self, x, units, name, l2, activation=None):
        reach = self.network.initial_range
        if reach is None:  # Glorot's. Biases of 0 would put the kinks of all first units at 0
            reach = math.sqrt(6 / (x.shape[-1] + units))
        uniform = backend.keras.initializers.RandomUniform
        options = {f"{part}_initializer": uniform(-reach, reach) for part in _PARTS}
        if l2:
            l2 = backend.keras.regularizers.L2(float(l2))  # Keras takes no numbers of NumPy
            options |= {f"{part}_regularizer": l2 for part in _PARTS}
        return backend.keras.layers.Dense(
            units, activation=activation, dtype="float32", name=name, **options
        )(x)

    def mean(self, inputs, n_raw, units):
        """Build f; return its outputs and those hidden layers that r can see."""
        if self.network.mean is not None:
            built = build_of_shape(self.network.mean, inputs.shape[1:], n_raw, "`network`")
            return _copy(built, inputs)
        hidden = self.hidden(inputs, units, _MEAN, self.loss.l2)
        return self.dense(hidden[-1], n_raw, _MEAN + "output", self.loss.l2), hidden

    def hidden(self, x, units, prefix, l2, joins=()):
        """Build all hidden layers; `joins` are further inputs of the last of them, in order."""
        # Each of the last `len(joins)` layers gets one of `joins` besides the layer before it.
        values, first = [], len(units) - len(joins)
        for i, n in enumerate(units):
            if i >= first:
                x = _concatenate([x, joins[i - first]], f"{prefix}join_{i + 1}")
            x = self.dense(x, n, f"{prefix}hidden_{i + 1}", l2, self.network.activation)
            values.append(x)
        return values


_PARTS = ("kernel", "bias")


def _concatenate(values, name):
    if len(values) == 1:
        return values[0]
    return backend.keras.layers.Concatenate(dtype="float32", name=name)(values)


def _copy(model, x, prefix=_MEAN, frozen=False):
    """Copy a model's layers onto x; return its output, and the outputs of its hidden layers.

    The hidden layers are in order, from the first on. Copies have names of their own and are drawn
    anew, without the model's weights. Frozen copies keep the weights, and have neither dropout nor
    noise.
    """
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(f"Model {model.name!r} must have one input and one output.")
    twins: dict[str, Any] = {}

    def copy(operation):
        if operation.name not in twins:
            twins[operation.name] = _copy_operation(operation, prefix, frozen)
        return twins[operation.name]

    functional = backend.keras.Model(model.inputs[0], model.outputs[0])
    copied = backend.keras.models.clone_model(functional, input_tensors=x, clone_function=copy)
    if frozen:
        for layer in functional.layers:
            if layer.weights:
                twins[layer.name].set_weights(layer.get_weights())
    return copied.output, [twins[name].output for name in _hidden_layers(functional.outputs[0])]


def _copy_operation(operation, prefix, frozen):
    if not isinstance(operation, backend.keras.layers.Layer):
        return type(operation).from_config(operation.get_config())
    name = operation.name
    if isinstance(operation, backend.keras.Model):
        raise ValueError(
            f"A network of NOMU must have no model inside. Got {name!r}: use its layers instead, "
            "or connect_layers=0 for a `pretrained` model."
        )
    config = {**operation.get_config(), "name": prefix + name}
    if isinstance(operation, backend.keras.layers.Normalization) and config["mean"] is None:
        raise ValueError(
            "A network of NOMU must not hold what `adapt` has learnt, which no configuration has. "
            f"Got {name!r}: give a Normalization layer its `mean` and `variance`."
        )
    if frozen:
        config |= {part: 0.0 for part in ("rate", "stddev") if part in config}
    twin = type(operation).from_config(config)
    twin.trainable = operation.trainable and not frozen
    return twin


def _frozen_features(model, scale, offset, inputs, sample):
    """Copy the hidden layers of a trained model, frozen and standardised over a sample.

    All features of a layer share one factor, as separate ones would blow up features that hardly
    vary.
    """
    rescaling = partial(backend.keras.layers.Rescaling, dtype="float32")
    # f was trained on x * scale + offset.
    x = rescaling(scale, offset, name=_MEAN + "unscaled")(inputs)
    _, hidden = _copy(model, x, frozen=True)
    if sample is None or not hidden:
        return hidden
    # (x - mean) * factor, as a Rescaling layer.
    _, *seen = backend.keras.Model(inputs, [x, *hidden]).predict(sample, verbose=0)
    features = []
    for k, (feature, values) in enumerate(zip(hidden, seen)):
        values = values.astype("float64")
        factor = 1 / (np.sqrt(values.var(axis=0).mean()) or 1.0)
        shift = (-factor * values.mean(axis=0)).tolist()
        features.append(rescaling(float(factor), shift, name=f"{_MEAN}features_{k + 1}")(feature))
    return features


def _tensors_before(tensor) -> list:
    """List the tensors that the last layers with weights read, before or at a tensor."""
    found: dict[int, Any] = {}
    waiting = [tensor]
    while waiting:
        operation, node, _ = waiting.pop()._keras_history
        inputs = operation._inbound_nodes[node].input_tensors
        if getattr(operation, "weights", ()):
            found |= {id(x): x for x in inputs}
        else:
            waiting += inputs
    return list(found.values())


def last_features(model) -> list:
    """List the vectors that enter a model's last layers with weights."""
    return [x for x in _tensors_before(model.outputs[0]) if len(x.shape) == 2]


def _hidden_layers(output) -> list[str]:
    """List the hidden layers before an output that are vectors, from the first on, by name."""
    hidden: list[str] = []
    # A layer that joins the input to the last hidden layer sees the input itself.
    input_layer = backend.keras.layers.InputLayer
    last = [(x, x._keras_history.operation) for x in _tensors_before(output)]
    before = [x for x, operation in last if not isinstance(operation, input_layer)]
    # Go back layer by layer, up to what no layer with weights has made: the input.
    while len(before) == 1 and len(before[0].shape) == 2 and _tensors_before(before[0]):
        hidden.insert(0, before[0]._keras_history.operation.name)
        before = _tensors_before(before[0])
    return hidden


_COUNT = Interval(Integral, 1, None, closed="left")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_CHOSEN = ("auto", "nll")  # values of a readout's numbers that are chosen on held-out rows

#: Candidates of the published UCI code for l_min and l_max, in units of the standardised y.
L_MINS = np.geomspace(0.005, 0.8, 100)
L_MAXS = np.geomspace(0.8, 10.0, 80)


@parameters("networks.NOMUNetwork", kw_only=False)
class NOMUNetwork(Settings):
    """Networks of the mean f and of the uncertainty r, for the parameter `network` of NOMU.

    Parameters
    ----------
    hidden_units : int, sequence of int or "auto", default="auto"
        Number of units of each hidden layer of f. "auto" is (64, 64), enough to interpolate the
        rows, below 100 rows and with ``noise_std=0.0``, and (50,) otherwise.
    side_hidden_units : int or sequence of int, optional
        Number of units of each hidden layer of r; by default those of f.
    activation : str, default="relu"
        Keras' name of the activation of the hidden layers.
    connect_layers : int, default=1
        Number of f's last hidden layers that are inputs of r. 1 is the paper's architecture: the
        last hidden layer of f joins r's output layer. With 2 the one before it joins r's last
        hidden layer, and so on (Remark 3.1). With 0 only X is an input of r, so that r measures
        Euclidean distances.
    connect_gradient : bool, default=False
        Whether the loss of r also trains the weights of f. The paper says no (footnote 5), and
        its code does so. It needs f and r to train together.
    initial_range : float, optional
        Initial weights and biases are uniform between minus and plus this; 0.05 in the paper. By
        default the range is Glorot and Bengio's for the weights of each layer, which suits tables
        better.
    mean : callable, optional
        Function ``mean(input_shape, n_outputs) -> keras.Model`` that builds f, instead of
        `hidden_units`.
    side : callable, optional
        The same for r, instead of `side_hidden_units`. The last layer of weights is replaced by
        one that f's last hidden layer joins.

    Examples
    --------
    >>> from skuq.networks import NOMUNetwork
    >>> NOMUNetwork((32, 32), connect_layers=0)
    NOMUNetwork(connect_layers=0, hidden_units=(32, 32))
    """

    hidden_units: Any = "auto"
    _: KW_ONLY
    side_hidden_units: Any = None
    activation: str = "relu"
    connect_layers: int = 1
    connect_gradient: bool = False
    initial_range: float | None = None
    mean: Callable | None = None
    side: Callable | None = None

    _parameter_constraints = {
        "hidden_units": ["array-like", _COUNT, StrOptions({"auto"})],
        "side_hidden_units": ["array-like", _COUNT, None],
        "activation": [StrOptions({*ACTIVATIONS, "swish"})],
        "connect_layers": [Interval(Integral, 0, None, closed="left")],
        "connect_gradient": ["boolean"],
        "initial_range": [Interval(Real, 0, None, closed="neither"), None],
        "mean": [callable, None],
        "side": [callable, None],
    }

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid or has no effect."""
        super().validate()
        has_mean, has_side = self.mean is not None, self.side is not None
        problems = {
            "`mean` builds the network of f, so that `hidden_units` has no effect: leave one of "
            "them out. The layers of r are set by `side_hidden_units`.": (
                has_mean and not isinstance(self.hidden_units, str)
            ),
            "`side` builds the network of r, so that `side_hidden_units` has no effect: leave one "
            "of them out.": has_side and self.side_hidden_units is not None,
            "`mean` and `side` build all hidden layers, so that `activation` has no effect: leave "
            f"it out. Got {self.activation!r}.": (
                has_mean and has_side and self.activation != "relu"
            ),
        }
        refuse(problems)
        # Raises if the numbers of units are invalid; the default is not used.
        self.units((1,))

    def units(self, auto: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the numbers of units of f's and of r's hidden layers; `auto` is the default."""
        # A function for f leaves `hidden_units` at "auto", which r's layers then follow.
        given = auto if isinstance(self.hidden_units, str) else self.hidden_units
        mean = check_units("hidden_units", given)
        if self.side_hidden_units is None:
            return mean, mean
        return mean, check_units("side_hidden_units", self.side_hidden_units)


@parameters("networks.NOMULoss")
class NOMULoss(Settings):
    """Weights of NOMU's loss (Definition 3.3), for the parameter `loss` of NOMU.

    Parameters
    ----------
    pi_sqr : float, default=0.1
        Weight of the term that keeps r small at the rows; a larger one makes the band narrower
        there. With ``noise_std=0.0`` it is multiplied by ten.
    pi_exp : float, default=0.01
        Weight of the term that raises r everywhere; a larger one makes the band wider.
    c_exp : float, default=30.0
        Factor in the exponent of that term; a larger one makes a wide band narrower, and a narrow
        one wider.
    stable : bool, default=True
        Whether to use the form of the loss with bounded gradients (Eq. 53-55). Both forms are
        equal for r in [0, 1].
    l2 : float, default=1e-9
        Factor of the penalty ``l2 * sum(w**2)`` on weights and biases, except those of r's hidden
        layers.
    side_l2 : float, default=1e-4
        Factor of the penalty on r's hidden layers. A larger one makes r depend more on f's
        features (desideratum D4), most of all with the paper's initial weights.

    Examples
    --------
    >>> from skuq.networks import NOMULoss
    >>> NOMULoss(pi_exp=0.1)
    NOMULoss(pi_exp=0.1)
    """

    pi_sqr: float = 0.1
    pi_exp: float = 0.01
    c_exp: float = 30.0
    stable: bool = True
    l2: float = 1e-9
    side_l2: float = 1e-4

    _parameter_constraints = {
        **dict.fromkeys(("pi_sqr", "pi_exp", "c_exp", "l2", "side_l2"), [_NOT_NEGATIVE]),
        "stable": ["boolean"],
    }


@parameters("networks.ArtificialInputs", kw_only=False)
class ArtificialInputs(Settings):
    """Inputs at which NOMU raises r, for the parameter `artificial` of NOMU.

    All of them are in units of X.

    Parameters
    ----------
    kind : {"uniform", "grid"}, callable or array-like, default="uniform"
        "uniform" draws inputs in the box for every step, and "grid" places them on a grid in it.
        A function ``(n, rng) -> (n, n_features)`` is called for every step. A table gives its
        rows, for example unlabelled ones if the data lie near a manifold (Remark 3.4).
    n : int, default=100
        Number of artificial inputs of each step; the maximum number for a grid.
    box : array-like of shape (n_features, 2), optional
        Bounds of inputs that are uniform or on a grid: r is trained within them, and outside the
        band is that of the nearest point, widened with the distance if c is "auto". By default the
        range of the rows, widened by `box_margin`.
    box_margin : float or "auto", default="auto"
        Share of each range that is added on either side. "auto" is 0.05, and more below 61 rows:
        three times the mean distance ``1 / (n_rows - 1)`` between uniform rows, at most 1.

    Examples
    --------
    >>> from skuq.networks import ArtificialInputs
    >>> ArtificialInputs("grid", n=128, box=[(-1, 1)])
    ArtificialInputs(box=[(-1, 1)], kind='grid', n=128)
    """

    kind: Any = "uniform"
    _: KW_ONLY
    n: int = 100
    box: Any = None
    box_margin: Any = "auto"

    _parameter_constraints = {
        "kind": [StrOptions({"uniform", "grid"}), callable, "array-like"],
        "n": [_COUNT],
        "box": ["array-like", None],
        "box_margin": [_NOT_NEGATIVE, StrOptions({"auto"})],
    }

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid or has no effect."""
        super().validate()
        # The box is that of uniform inputs and of grids only.
        has_box, has_margin = self.box is not None, not isinstance(self.box_margin, str)
        name = "box_margin" if has_margin else "box"
        problems = {
            f'`{name}` has no effect on artificial inputs of your own: use kind="uniform" or '
            f'"grid", or leave `{name}` out.': (
                not isinstance(self.kind, str) and (has_box or has_margin)
            ),
            "`box_margin` widens the default box, so that it has no effect on `box`: leave one of "
            "them out.": has_box and has_margin,
        }
        refuse(problems)


@parameters("networks.NOMUReadout", kw_only=False)
class NOMUReadout(Settings):
    """Map from r to a standard deviation, for the parameter `readout` of NOMU.

    Parameters
    ----------
    kind : {"exponential", "linear"}, default="exponential"
        Function from r to a standard deviation: Eq. 2, or the piecewise linear one of Remark 3.2,
        which mixed integer programmes can represent.
    l_min, l_max : float, "auto" or "nll", default="auto"
        Minimum and maximum standard deviation before the factor c, in units of the standardised
        y. "nll" chooses the pair of largest likelihood at held-out rows from a grid. So does
        "auto" if at least 30 rows are held out. With fewer, and with ``noise_std=0.0``, l_max is
        2, or twice an l_min above 1, and c * l_min the smallest band at the rows of f that explains
        the errors of f at and next to them, and those at held-out rows. If c is "auto" too, the
        median r at the rows of f then counts as none.
    c : float, "auto" or "nll", default="auto"
        Factor of the standard deviation. "nll" maximises the likelihood of held-out rows. "auto"
        widens the band if few rows are held out: it adds two variances, the one at the c of "nll"
        and a prior one, whose average over artificial inputs is the variance of y times
        (8 / number of held-out rows) squared, at most 1. Outside the box of artificial inputs the
        band then widens with the distance from it, as fast as it does on average with the distance
        from the rows.

    Examples
    --------
    >>> from skuq.networks import NOMUReadout
    >>> NOMUReadout("linear", l_min=0.001, l_max=2, c=1)
    NOMUReadout(c=1, kind='linear', l_max=2, l_min=0.001)
    """

    kind: str = "exponential"
    _: KW_ONLY
    l_min: Any = "auto"
    l_max: Any = "auto"
    c: Any = "auto"

    _parameter_constraints = {
        "kind": [StrOptions(set(READOUTS))],
        "l_min": [StrOptions(set(_CHOSEN)), _NOT_NEGATIVE],
        "l_max": [StrOptions(set(_CHOSEN)), Interval(Real, 0, None, closed="neither")],
        "c": [StrOptions(set(_CHOSEN)), _NOT_NEGATIVE],
    }

    @property
    def is_chosen(self) -> bool:
        """Whether l_min, l_max or c is chosen on held-out rows."""
        return any(value in _CHOSEN for value in (self.l_min, self.l_max, self.c))

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid, or parameters contradict each other."""
        super().validate()
        l_min, l_max, c_is_chosen = self.l_min, self.l_max, self.c in _CHOSEN
        # Values that are chosen come from a grid; its ends must leave a pair.
        lowest = L_MINS[0] if l_min in _CHOSEN else l_min
        highest = L_MAXS[-1] if l_max in _CHOSEN else l_max
        problems = {
            f"`l_min` and `l_max` are chosen together with c: with c={self.c!r} give numbers, for "
            f"example l_min=0.001 and l_max=2. Got {l_min!r} and {l_max!r}.": (
                not c_is_chosen and (l_min in _CHOSEN or l_max in _CHOSEN)
            ),
            f"`l_max` must be larger than `l_min`. Got l_min={l_min}, l_max={l_max}, where "
            f'"auto" and "nll" try l_min from {L_MINS[0]:g} and l_max up to {L_MAXS[-1]:g}.': (
                highest <= lowest
            ),
            # c divides errors by widths, which may be 0 then.
            "With `l_min` at 0 some rows would have no width at all, and c no value. Give a small "
            'number, or l_min="auto"; or a number for `c`.': c_is_chosen and l_min == 0,
        }
        refuse(problems)


#: Short forms of the parameters of NOMU that are settings.
NOMU_SETTINGS: dict[str, dict[Any, Callable[[], Settings]]] = {
    "network": {"mlp": NOMUNetwork},
    "loss": {"nomu": NOMULoss},
    "artificial": {kind: partial(ArtificialInputs, kind) for kind in ("uniform", "grid")},
    "readout": {kind: partial(NOMUReadout, kind) for kind in READOUTS},
}
