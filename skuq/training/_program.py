"""Training programs: their losses, the update rules of seven optimisers, and the compiled loop.

Shapes that begin with ".." have the member axis of a stack, or none in a program of one network.

``network.forward(variables, state, x, run) -> (raw, state, penalty)``. `chunk` is the number of
rows for one forward pass without gradients. Planned networks run all members at once; networks
without a plan run through Keras, one member after the other.

The generators of Keras and TensorFlow keep a state, or draw other numbers through XLA than as a
graph, and none draws for many members with one key each. A counter-based generator does: it
hashes a counter, so that every number depends only on the member's key, the step, the layer and
the position. It is good enough for dropout, and not meant for cryptography.

Update rules work element by element, so that one fused update of concatenated weights is exact.
Constants are Keras' defaults, and tests compare every rule with Keras' own. Divisions and roots
dominate the time of an update on a CPU, and XLA computes each new array in a loop of its own.
Therefore scalar factors are multiplied first, and no array is divided twice.

Notation: w weights and g gradient, both (n_weights,) or (n_members, n_weights); t number of the
step, from 1; lr learning rate, a number or an array that broadcasts over w; m and v first and
second moments; c the optimiser's constants. `init` makes the slots (the optimiser's state), and
`update` maps ``(w, slots, g, t, lr)`` to ``(w, slots)``.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from skuq.backend import gather_rows, ops, split, take, value_and_gradient
from skuq.networks._operations import Run, tensors
from skuq.networks._operator_network import EpistemicNetwork
from skuq.networks._plan import Plan
from skuq.training._job import ProgramKey
from skuq.training._network_checks import DrawingNetwork, KerasNetwork, PlannedNetwork
from skuq.training._recipe import BETA_2, EPSILON, TEMPERATURES

# Constants of the hash: right shifts, each before a product, and the last shift.
_LOWBIAS32, _LAST_SHIFT = ((16, 0x7FEB352D), (15, 0x846CA68B)), 16
# 2**32 over the golden ratio: its multiples are far apart, and so are the streams.
_STREAM_STEP = 2654435769


def uniform(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw uniform numbers in [0, 1), multiples of 2**-24, for layer number `stream` of a step.

    `key` has shape () or (n_members,), and `shape` is ``(n_samples, n_units)``. The result has
    the shape of `key` followed by `shape`.
    """
    hashed = _mix(ops.cast(step, "uint32") + np.uint32(1))
    hashed = _mix(ops.bitwise_xor(key, hashed) + np.uint32(_STREAM_STEP * (stream + 1) % 2**32))
    index = np.arange(np.prod(shape), dtype="uint32").reshape(shape)
    # The position is hashed before it is combined with the key. Otherwise two keys that differ in
    # a few bits would give the same numbers in another order.
    index = ops.convert_to_tensor(_mix(index, np.bitwise_xor, np.right_shift))
    bits = _mix(ops.bitwise_xor(index, hashed[..., None, None] if len(hashed.shape) else hashed))
    return ops.cast(ops.right_shift(bits, np.uint32(8)), "float32") * np.float32(2.0**-24)


def normal(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw standard normal numbers: Box-Muller, from two uniform numbers each."""
    radius = ops.sqrt(-2.0 * ops.log(1.0 - uniform(key, step, 2 * stream, shape)))
    return radius * ops.cos(np.float32(2 * np.pi) * uniform(key, step, 2 * stream + 1, shape))


def _mix(x: Any, xor: Any = ops.bitwise_xor, shift: Any = ops.right_shift) -> Any:
    """Hash with lowbias32 (C. Wellons): every bit of the result depends on every bit of x.

    Products of 32 bits wrap around, of tensors and of arrays alike.
    """
    for n_bits, factor in _LOWBIAS32:
        x = xor(x, shift(x, np.uint32(n_bits))) * np.uint32(factor)
    return xor(x, shift(x, np.uint32(_LAST_SHIFT)))


# Standard deviation of the prior of the logarithm of a temperature: on few rows some late epoch has
# a good one by chance.
_TEMPERATURE_SPREAD = 0.2

INDEX_STREAM = 2**20  # stream of epistemic indices: dropout layers count their streams from 0


class Batch(NamedTuple):
    """Inputs of one training step.

    Attributes
    ----------
    rows : tensor of shape (.., batch_size, columns)
        Rows of the table, with the columns of x, y and the weight.
    share : tensor of shape (batch_size,)
        Each row's share in the batch's loss, 0 for padding.
    prior : tensor of shape (.., batch_size, n_raw) or None
        Outputs of a frozen prior network.
    artificial : tensor of shape (.., n_artificial, *input_shape) or None
        Inputs without targets.
    """

    rows: Any
    share: Any
    prior: Any
    artificial: Any


class Losses:
    """Loss functions for batches and for validation rows."""

    def __init__(self, key: ProgramKey, network: Any):
        self.key, self.network = key, network
        n_inputs = math.prod(key.input_shape)
        self._columns = [n_inputs, n_inputs + key.n_outputs]  # where y and the weight begin
        self._head: Any = key.head  # with an `artificial_loss` if `key.n_artificial` is positive
        # A head may be validated by another loss than the one it is trained on.
        self._validation_loss = key.head.validation_loss

    def training_run(self, step: Any, batch: Batch, scalars: dict[str, Any], factor: Any) -> Run:
        """Make the `Run` of training step `step` (from 1): real rows, dropout masks, indices.

        `factor` multiplies the dropout rates in this step; None leaves them.
        """
        key, noise_key = self.key, scalars["noise_key"]

        def dropout_mask(number: int, rate: Any, shape: Any) -> Any:
            # `uniform` adds the member axis, since the noise key has one.
            shape = tuple(shape) if not key.n_members else tuple(shape[-2:])
            numbers = uniform(noise_key, step, number, shape)
            if key.dropout:  # the recipe's rate replaces the layer's own
                rate = scalars["dropout"][:, None, None] if key.n_members else scalars["dropout"]
            if key.dropout_schedule:
                rate = rate * factor
            # Inverted dropout: the units that are kept are scaled by 1 / (1 - rate).
            return ops.cast(numbers >= rate, "float32") / (1.0 - rate)

        return Run(
            tensors(key.jit),
            training=True,
            is_real=ops.cast(batch.share > 0, "float32"),
            dropout_mask=dropout_mask,
            index=self._index(step, noise_key),
            prior=batch.prior,
        )

    def of_batch(
        self, variables: Any, state: Any, batch: Batch, run: Run, scalars: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute the training losses (..) of a batch, and the network's new state.

        `run` is that of `training_run`, and `scalars` are the settings of each member.
        """
        rows, share, _, artificial = batch
        x, y, weight = self._columns_of(rows)
        # Weights of the losses (..) become (.., 1), so that they broadcast over rows.
        settings = {name: value[..., None] for name, value in scalars.get("settings", {}).items()}
        weights = (settings,) if self._head.weighs_losses else ()

        def losses(x: Any) -> tuple[Any, Any, Any]:
            raw, new_state, penalty = self.network.forward(variables, state, x, run)
            # As in Keras, the mean over the batch's rows of weight times loss. Heads that sum
            # over rows have shares of 1 instead of 1 / batch_size.
            fit = ops.sum(share * weight * self._head.loss(y, raw, *weights), axis=-1)
            return fit, new_state, penalty

        fit, new_state, penalty = losses(x)
        if self.key.adversarial:
            # Adversarial training (Lakshminarayanan et al. 2017, Algorithm 1): half of the loss
            # is taken at x' = x + eps * sign(dloss / dx), with eps in units of a feature's range.
            _, _, slope = value_and_gradient(lambda x: (ops.sum(losses(x)[0]), ()), x)
            shift = scalars["adversarial"] * ops.sign(ops.stop_gradient(slope))
            fit = 0.5 * (fit + losses(x + shift)[0])
        if self.key.n_artificial:
            share = share * weight
            # The head's uncertainty terms, for rows and for artificial inputs. The network runs as
            # in prediction: without dropout, and with the batch statistics learnt so far.
            key = self.key
            # Variables that these terms must not change get no gradient from them.
            partly = [
                ops.stop_gradient(v) if k in key.detached else v for k, v in enumerate(variables)
            ]
            # One forward pass for both: (.., batch_size + n_artificial, *input_shape).
            inputs = ops.concatenate([x, artificial], axis=len(key.lead))
            raw, _, _ = self.network.forward(partly, state, inputs, Run(tensors(key.jit)))
            n_rows = x.shape[len(key.lead)]
            of_rows, of_artificial = split(raw, [n_rows], axis=len(key.lead))
            # Rows count by their shares; a mean over artificial inputs stands for an integral.
            rows = ops.sum(share * self._head.row_loss(y, of_rows, settings), axis=-1)
            fit += rows + ops.mean(self._head.artificial_loss(of_artificial, settings), axis=-1)
        return fit + penalty, tuple(new_state)

    def validation(
        self, variables: Any, state: Any, valid: Any, n_valid: Any, noise_key: Any
    ) -> Any:
        """Compute the mean losses (..) of the validation rows.

        `valid` (.., key.n_valid, columns) is padded; its first `n_valid` rows count. Chunks of
        rows bound the memory. Logits that are calibrated later are divided by the temperature that
        is best for all members together.
        """
        key = self.key
        run = Run(tensors(key.jit), index=self._index(np.int32(0), noise_key))

        def losses(rows: Any, is_real: Any) -> tuple[Any, Any]:
            x, y, weight = self._columns_of(rows)
            raw, _, penalty = self.network.forward(variables, state, x, run)
            tempered = [raw / t for t in TEMPERATURES] if key.calibrates else [raw]
            fits = [weight * self._validation_loss(y, numbers) for numbers in tempered]
            totals = [ops.sum(ops.where(is_real, fit, 0.0), axis=-1) for fit in fits]
            return ops.stack(totals), penalty  # (n_temperatures, ..)

        n_real = ops.cast(n_valid, "float32")
        chunk = min(key.n_valid, self.network.chunk)
        if chunk == key.n_valid:
            total, penalty = losses(valid, ops.arange(chunk, dtype="int32") < n_valid)
            return self._at_best_temperature(total / n_real, n_real) + penalty

        axis = len(valid.shape) - 2  # the axis of rows, after a member axis

        def body(start: Any, total: Any, penalty: Any) -> tuple[Any, Any, Any]:
            index = start + ops.arange(chunk, dtype="int32")
            # Past the end, the last chunk repeats the last row, which does not count.
            rows = ops.take(valid, ops.minimum(index, key.n_valid - 1), axis=axis)
            part, penalty = losses(rows, index < n_valid)
            # A loop's values must keep their shapes, and a penalty may be a plain 0.
            return start + chunk, total + part, penalty + ops.zeros(key.lead, "float32")

        n_temperatures = len(TEMPERATURES) if key.calibrates else 1
        totals, penalties = (
            ops.zeros(shape, "float32") for shape in ((n_temperatures, *key.lead), key.lead)
        )
        _, total, penalty = ops.while_loop(
            lambda start, total, penalty: start < n_valid, body, (np.int32(0), totals, penalties)
        )
        return self._at_best_temperature(total / n_real, n_real) + penalty

    def _at_best_temperature(self, losses: Any, n_valid: Any) -> Any:
        """Select the losses (..) at the temperature that is best for all members.

        `losses` (n_temperatures, ..) are means over `n_valid` rows.
        """
        if not self.key.calibrates:
            return losses[0]
        known = ops.isfinite(losses)  # members that diverged have no part
        axes = tuple(range(1, len(losses.shape)))
        n_known = ops.maximum(ops.sum(ops.cast(known, "float32"), axis=axes), 1.0)
        mean = ops.sum(ops.where(known, losses, 0.0), axis=axes) / n_known
        surprise = 0.5 * np.square(np.log(TEMPERATURES) / _TEMPERATURE_SPREAD)
        n_rows = n_valid * np.float32(self.key.n_members or 1)
        best = ops.argmin(mean + ops.convert_to_tensor(surprise, "float32") / n_rows)
        return ops.take(losses, best, axis=0)

    def _columns_of(self, rows: Any) -> tuple[Any, Any, Any]:
        """Split rows of a table into x, y and weights."""
        x, y, weight = split(rows, self._columns, axis=-1)
        if len(self.key.input_shape) > 1:
            x = ops.reshape(x, (*rows.shape[:-1], *self.key.input_shape))
        return x, y, ops.squeeze(weight, -1)

    def _index(self, step: Any, noise_key: Any) -> Any:
        """Draw the epistemic indices (.., n_draws, n_index) of a step; None if it has none."""
        network: Any = self.key.network
        if not self.key.n_draws:
            return None
        return normal(noise_key, step, INDEX_STREAM, (self.key.n_draws, network.n_index))


#: The state of an optimiser for one block of weights, as tensors.
Slots = tuple[Any, ...]


class Constants(NamedTuple):
    """Constants that recipes set: momentum is sgd's, and sgd has no other."""

    momentum: float
    beta_2: float
    epsilon: float


# Constants that are always Keras' defaults: `rho` of RMSprop and Adadelta, and Nadam's decay.
_BETA_1, _RHO_RMSPROP, _RHO_ADADELTA, _NADAM_DECAY = 0.9, 0.9, 0.95, 0.96


class Rule(NamedTuple):
    """An optimiser: the functions that make its slots and apply one update."""

    init: Callable[[Any], Slots]
    update: Callable[..., tuple[Any, Slots]]


def _zeros(n: int) -> Callable[[Any], Slots]:
    """Make the function that starts n slots at zero."""
    return lambda w: tuple(ops.zeros_like(w) for _ in range(n))


def _momentum(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    (velocity,) = slots  # velocity <- momentum * velocity - lr * g;  w <- w + velocity
    velocity = c.momentum * velocity - lr * g
    return w + velocity, (velocity,)


def _rmsprop(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of RMSprop."""
    (v,), rho = slots, _RHO_RMSPROP  # v <- rho v + (1 - rho) g^2;  w <- w - lr g / sqrt(v + eps)
    v = rho * v + (1 - rho) * ops.square(g)
    return w - lr * g / ops.sqrt(v + c.epsilon), (v,)


def _adagrad(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    (total,) = slots  # sum of all squared gradients;  w <- w - lr g / sqrt(total + eps)
    total = total + ops.square(g)
    return w - lr * g / ops.sqrt(total + c.epsilon), (total,)


def _adadelta(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adadelta."""
    # Moving averages of squared gradients and of squared steps; the step is
    # g * sqrt((steps + eps) / (squares + eps)), times lr (Zeiler 2012, Algorithm 1).
    (squares, steps), rho = slots, _RHO_ADADELTA
    squares = rho * squares + (1 - rho) * ops.square(g)
    # The squared step is g^2 * ratio, so that the slot needs no second root.
    ratio = (steps + c.epsilon) / (squares + c.epsilon)
    steps = rho * steps + (1 - rho) * ops.square(g) * ratio
    return w - lr * g * ops.sqrt(ratio), (squares, steps)


def _adam(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adam."""
    # m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2 (Kingma & Ba 2015, Algorithm 1).
    m, v = slots
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - c.beta_2) * (ops.square(g) - v)
    # Both bias corrections in one number: lr * sqrt(1 - b2^t) / (1 - b1^t).
    rate = lr * ops.sqrt(1 - ops.power(c.beta_2, t)) / (1 - ops.power(_BETA_1, t))
    return w - rate * m / (ops.sqrt(v) + c.epsilon), (m, v)


def _adamax(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adamax."""
    # u is the decayed maximum of |g|, in place of sqrt(v) (Kingma & Ba 2015, Algorithm 2).
    m, u = slots
    m = m + (1 - _BETA_1) * (g - m)
    u = ops.maximum(c.beta_2 * u, ops.abs(g))
    # Only m needs a bias correction: the maximum is not drawn towards its start.
    return w - lr / (1 - ops.power(_BETA_1, t)) * m / (u + c.epsilon), (m, u)


def _nadam(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Nadam."""
    # Adam with Nesterov momentum: m_hat looks one step ahead. The momentum of step t is
    # b1 (1 - 0.5 decay^t), and `product` is that of all steps so far (Dozat 2016).
    m, v, product = slots
    now = _BETA_1 * (1 - 0.5 * ops.power(_NADAM_DECAY, t))
    ahead = _BETA_1 * (1 - 0.5 * ops.power(_NADAM_DECAY, t + 1))
    product = product * now
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - c.beta_2) * (ops.square(g) - v)
    # With momenta b_t and their products P_t:
    # m_hat = b_{t+1} m / (1 - P_{t+1}) + (1 - b_t) g / (1 - P_t).
    m_hat = (ahead / (1 - product * ahead)) * m + ((1 - now) / (1 - product)) * g
    v_hat = v * (1 / (1 - ops.power(c.beta_2, t)))
    return w - lr * m_hat / (ops.sqrt(v_hat) + c.epsilon), (m, v, product)


_RULES = {
    "sgd": Rule(_zeros(0), lambda w, slots, g, t, lr, c: (w - lr * g, slots)),
    "momentum": Rule(_zeros(1), _momentum),
    "rmsprop": Rule(_zeros(1), _rmsprop),
    "adagrad": Rule(lambda w: (ops.full_like(w, 0.1),), _adagrad),
    "adam": Rule(_zeros(2), _adam),
    "adadelta": Rule(_zeros(2), _adadelta),
    "adamax": Rule(_zeros(2), _adamax),
    # Both moments start at zero, and the product of the momentum schedule at one.
    "nadam": Rule(lambda w: (*_zeros(2)(w), ops.ones((), w.dtype)), _nadam),
}


def rule_of(
    optimizer: str, momentum: float = 0.0, beta_2: float = BETA_2, epsilon: float = EPSILON
) -> Rule:
    """Look up the update rule of an optimiser by its name."""
    init, update = _RULES["momentum" if optimizer == "sgd" and momentum else optimizer]
    return Rule(init, functools.partial(update, c=Constants(momentum, beta_2, epsilon)))


# Smallest matrix with a block of its own, by `jit`. An operation of a plain graph costs some
# microseconds each step, and a loop of an XLA program almost nothing, so that smaller matrices
# are worth a block there (benchmarks/engine.py).
_LARGE = {False: 65_536, True: 4_096}


class Blocks:
    """Layout of one network's weights, from its variables' shapes in Keras' order.

    `jit` says whether the program runs through XLA.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], jit: bool):
        self.shapes = [tuple(shape) for shape in shapes]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        large = [k for k, size in enumerate(self.sizes) if size >= _LARGE[jit]]
        small = [k for k in range(len(self.sizes)) if k not in large]
        # The numbers of the variables in each block. The block of all small ones comes first.
        self.variables_of_blocks = ([small] if small else []) + [[k] for k in large]

    def pack(self, flat: np.ndarray) -> tuple[np.ndarray, ...]:
        """Cut weights (.., n_weights) in Keras' order into blocks (.., *block shape)."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1], axis=-1)
        lead = flat.shape[:-1]
        return tuple(
            parts[numbers[0]].reshape(*lead, *self.shapes[numbers[0]])
            if self._is_single(numbers)
            else np.concatenate([parts[k] for k in numbers], axis=-1)
            for numbers in self.variables_of_blocks
        )

    def _is_single(self, numbers: list[int]) -> bool:
        """Tell whether a block is one variable in its own shape."""
        return len(numbers) == 1 and len(self.shapes[numbers[0]]) > 1

    def spread(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Reshape one value for each variable (.., n_variables) to broadcast over the blocks."""
        lead = values.shape[:-1]
        return tuple(
            values[..., numbers[0]].reshape(*lead, *[1] * len(self.shapes[numbers[0]]))
            if self._is_single(numbers)
            else np.repeat(values[..., numbers], [self.sizes[k] for k in numbers], axis=-1)
            for numbers in self.variables_of_blocks
        )

    def join(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Concatenate blocks (.., *block shape) to weights (.., n_weights): undo `pack`."""
        parts: list[Any] = [None] * len(self.sizes)
        for numbers, block in zip(self.variables_of_blocks, blocks):
            ends = np.cumsum([self.sizes[k] for k in numbers])[:-1]
            block = np.asarray(block)
            if self._is_single(numbers):
                lead = block.shape[: block.ndim - len(self.shapes[numbers[0]])]
                block = block.reshape(*lead, -1)
            for k, part in zip(numbers, np.split(block, ends, axis=-1)):
                parts[k] = part
        return np.concatenate(parts, axis=-1)

    def variables(self, blocks: Any) -> list[Any]:
        """Cut blocks of tensors into the variables (.., *shape) in Keras' order."""
        parts: list[Any] = [None] * len(self.sizes)
        for numbers, block in zip(self.variables_of_blocks, blocks):
            if self._is_single(numbers):
                parts[numbers[0]] = block
                continue
            # Variables of a shared vector: cut it, and give each piece its own shape.
            lead = tuple(block.shape[:-1])
            ends = np.cumsum([self.sizes[k] for k in numbers])[:-1].tolist()
            pieces = split(block, ends, axis=-1) if ends else [block]
            for k, piece in zip(numbers, pieces):
                parts[k] = ops.reshape(piece, lead + self.shapes[k])
        return parts


_PLATEAU_MIN_DELTA = 1e-4  # default of Keras' ReduceLROnPlateau; that of EarlyStopping is 0


def start_carry(
    blocks: tuple[np.ndarray, ...],
    state: Any,
    key: ProgramKey,
    learning_rate: np.ndarray,
    noise_key: np.ndarray,
) -> dict[str, Any]:
    """Make the carry before the first epoch, as arrays.

    `blocks` holds the weights (.., *block shape), `state` the non-trainable variables
    (.., *shape); `learning_rate` and `noise_key` have shape (..).

    The counters follow Keras' callbacks: `plateau_best` and `plateau_wait` those of
    ReduceLROnPlateau, `best_loss` and `stop_wait` those of EarlyStopping.
    """
    state = tuple(np.asarray(value) for value in state)
    full = functools.partial(np.full, key.lead)
    return {
        "weights": blocks,
        "state": state,
        "slots": tuple(map(rule_of(*key.optimizer).init, blocks)),
        "step": np.int32(0),
        "noise_key": np.asarray(noise_key, dtype="uint32"),
        "learning_rate": np.asarray(learning_rate, dtype="float32"),
        # Any finite loss is below the first bests, and NaN is never below.
        "plateau_best": full(np.inf, "float32"),
        "plateau_wait": full(0, "int32"),
        "stop_wait": full(0, "int32"),
        "best_loss": full(np.inf, "float32"),
        "best_weights": blocks,
        "best_state": state,
        "stopped": full(False, "bool"),
    }


class TrainingProgram:
    """A pure function ``program.run(carry, data, feed, scalars) -> (carry, history)``.

    `model` is a template, whose variables are never read.
    """

    def __init__(self, model: Any, key: ProgramKey):
        self.key = key
        network: Any
        if isinstance(key.network, Plan):
            network = PlannedNetwork(key.network)
        elif isinstance(key.network, EpistemicNetwork):
            network = DrawingNetwork(model, key.n_members)
        else:
            network = KerasNetwork(model, key.n_members)
        self.layout = Blocks(network.shapes, key.jit)
        self.losses = Losses(key, network)
        self.rule = rule_of(*key.optimizer)

    def run(
        self, carry: dict[str, Any], data: dict[str, Any], feed: dict[str, Any], scalars: Any
    ) -> tuple[dict[str, Any], Any]:
        """Run up to `n_epochs` epochs.

        Parameters
        ----------
        carry : dict
            Made by `start_carry` or returned by an earlier call.
        data : dict
            `table` (n_rows, inputs + outputs + 1), whose columns are x, y and the row's weight;
            `valid`, the same for validation rows, with a member axis if each member has
            validation rows of its own; and `prior` (.., n_rows, n_raw), the outputs of frozen
            prior networks for the rows of the table. The last two are only there if used.
        feed : dict
            Arrays prepared by the host for each epoch and step: `orders` int32 (epochs_per_call,
            .., n_steps * batch_size), row numbers of the table; `rates`, `decays` and `dropouts`
            float32 (epochs_per_call, n_steps), factors of the learning rate, of the weight decay
            and of dropout rates (the latter two if used); `shares` float32 (n_steps *
            batch_size,), each row's share in its batch's loss, 0 for padding; `step_shares`
            float32 (n_steps,), each batch's share of the epoch's rows; and `artificial` float32
            (epochs_per_call, n_steps, .., n_artificial, *input_shape).
        scalars : dict
            `n_steps`, `n_valid`, `n_epochs`, and the numbers of `scalars_of`.

        Returns
        -------
        carry : dict
        history : float32 tensor of shape (epochs_per_call, 3, ..)
            Training loss, validation loss and learning rate of each epoch. Rows of epochs that
            were not run are NaN.
        """
        key = self.key
        history = ops.full((key.epochs_per_call, 3, *key.lead), np.float32(np.nan), "float32")
        epochs = np.arange(key.epochs_per_call, dtype="int32").reshape(-1, 1, *[1] * len(key.lead))

        def go_on(epoch: Any, carry: Any, history: Any) -> Any:
            going = ops.logical_not(ops.all(carry["stopped"]))
            return ops.logical_and(epoch < scalars["n_epochs"], going)

        def body(epoch: Any, carry: Any, history: Any) -> tuple[Any, Any, Any]:
            # A rate of NaN marks the epochs after a member has stopped.
            rate = ops.where(carry["stopped"], np.float32(np.nan), carry["learning_rate"])
            loss, finite, carry = self._train_epoch(data, feed, epoch, scalars, carry)
            if key.n_valid:
                valid = watched = self.losses.validation(
                    self.layout.variables(carry["weights"]),
                    carry["state"],
                    data["valid"],
                    scalars["n_valid"],
                    carry["noise_key"],
                )
            else:  # as in Keras, callbacks then watch the training loss
                valid, watched = ops.full_like(loss, np.nan), loss
            # `ops.slice_update` would send a part of a plain graph through XLA.
            history = ops.where(epochs == epoch, ops.stack([loss, valid, rate]), history)
            return epoch + 1, self._end_epoch(watched, finite, scalars, carry), history

        _, carry, history = ops.while_loop(go_on, body, (np.int32(0), carry, history))
        return carry, history

    def _train_epoch(
        self, data: Any, feed: Any, epoch: Any, scalars: dict[str, Any], carry: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Run the steps of one epoch.

        Returns the epoch's mean losses (..), whether each is finite (..), and the carry.
        """
        key, size = self.key, self.key.batch_size
        order = take(feed["orders"], epoch)  # (.., n_steps * batch_size)
        # Factors of the steps of this epoch, (n_steps,) each.
        schedules = {
            name: take(feed[name], epoch)
            for name in ("rates", "decays", "dropouts")
            if name in feed
        }
        artificial = take(feed["artificial"], epoch) if key.n_artificial else None
        alive = ops.logical_not(carry["stopped"])
        scalars = scalars | {name: carry[name] for name in ("learning_rate", "noise_key")}

        # Steps end early when every member has either stopped or diverged in this epoch.
        def go_on(step: Any, finite: Any, total: Any, inner: Any) -> Any:
            return ops.logical_and(
                step < scalars["n_steps"], ops.any(ops.logical_and(finite, alive))
            )

        def body(step: Any, finite: Any, total: Any, inner: Any) -> tuple[Any, Any, Any, Any]:
            start = step * size
            numbers = ops.slice(order, [0] * len(key.lead) + [start], [*key.lead, size])
            rows = gather_rows(data["table"], numbers)  # (.., batch_size, columns)
            prior = gather_rows(data["prior"], numbers) if "prior" in data else None
            share = ops.slice(feed["shares"], [start], [size])
            factors = {name: take(v, step) for name, v in schedules.items()}
            inputs = None if artificial is None else take(artificial, step)
            batch = Batch(rows, share, prior, inputs)
            losses, inner = self._train_step(batch, factors, scalars, inner)
            finite = ops.logical_and(finite, ops.isfinite(losses))
            # The epoch's loss is the mean over its rows: batches count by their numbers of rows.
            return step + 1, finite, total + losses * take(feed["step_shares"], step), inner

        inner = {name: carry[name] for name in ("weights", "state", "slots", "step")}
        start = (
            np.int32(0),
            ops.convert_to_tensor(np.full(key.lead, True)),
            ops.zeros(key.lead, "float32"),
            inner,
        )
        _, finite, total, inner = ops.while_loop(go_on, body, start)
        return total, finite, {**carry, **inner}

    def _train_step(
        self, batch: Batch, factors: dict[str, Any], scalars: dict[str, Any], inner: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Run one step: return the losses (..) of its batch, and the inner carry after it."""
        step = inner["step"] + 1
        run = self.losses.training_run(step, batch, scalars, factors.get("dropouts"))

        def total(blocks: Any) -> tuple[Any, Any]:
            losses, state = self.losses.of_batch(
                self.layout.variables(blocks), inner["state"], batch, run, scalars
            )
            # Members share no weights: the gradient of the sum holds every member's own gradient.
            return ops.sum(losses), (losses, state)

        weights = inner["weights"]
        _, (losses, state), gradient = value_and_gradient(total, weights)
        # Update the weights, block by block.
        key, align = self.key, self._align
        rate = scalars["learning_rate"] * factors["rates"]
        # As in Keras, the penalty is part of the loss and clipped with it; decoupled decay is not.
        if key.l2:
            losses = losses + scalars["l2"] * self._sum_of_squares(weights)
            gradient = [g + align(2.0 * scalars["l2"], w) * w for g, w in zip(gradient, weights)]
        if key.clip:  # g <- g * clip / max(|g|, clip), with the norm over all blocks of a member
            norm = ops.sqrt(self._sum_of_squares(gradient))
            factor = scalars["clip"] / ops.maximum(norm, scalars["clip"])
            gradient = [g * align(factor, g) for g in gradient]
        rates = [align(rate, w) for w in weights]
        if key.rate_factors:
            rates = [lr * factor for lr, factor in zip(rates, scalars["rate_factors"])]
        if key.decay:  # decoupled: w <- w * (1 - rate * decay) before the update, as in Keras
            decay = scalars["weight_decay"] * factors["decays"]
            weights = [w * (1.0 - lr * align(decay, w)) for w, lr in zip(weights, rates)]
        t, blocks = ops.cast(step, "float32"), zip(weights, inner["slots"], gradient, rates)
        updates = [self.rule.update(w, s, g, t, lr) for w, s, g, lr in blocks]
        weights, slots = (tuple(part) for part in zip(*updates))
        return losses, {"weights": weights, "state": state, "slots": slots, "step": step}

    def _end_epoch(
        self, loss: Any, finite: Any, scalars: dict[str, Any], carry: dict[str, Any]
    ) -> dict[str, Any]:
        """Apply ReduceLROnPlateau, EarlyStopping(restore_best_weights) and TerminateOnNaN.

        `loss` (..) is the loss watched, and `finite` (..) tells whether the epoch's loss was.
        """
        alive = ops.logical_not(carry["stopped"])
        if self.key.n_members:
            # The mean over the members, of which those that diverged have no part.
            known = ops.isfinite(loss)
            mean = ops.sum(ops.where(known, loss, 0.0)) / ops.sum(ops.cast(known, "float32"))
            loss = ops.where(ops.logical_and(scalars["keep_jointly"], known), mean, loss)
        # ReduceLROnPlateau: after `patience` epochs without an improvement by min_delta.
        better = loss < carry["plateau_best"] - _PLATEAU_MIN_DELTA
        plateau_wait = ops.where(better, 0, carry["plateau_wait"] + 1)
        reduce = plateau_wait >= scalars["reduce_lr_patience"]
        factor = ops.where(reduce, scalars["reduce_lr_factor"], 1.0)
        # EarlyStopping: after `patience` epochs without any improvement.
        best = loss < carry["best_loss"]
        stop_wait = ops.where(best, 0, carry["stop_wait"] + 1)
        ended = stop_wait >= scalars["early_stopping_patience"]
        # Store the weights of this epoch if it is the best, or always with keep="last". The
        # stored weights of a member that has stopped do not change any more.
        store = ops.logical_and(alive, ops.logical_or(best, scalars["keep_last"]))

        def best_of(name: str) -> tuple[Any, ...]:
            return tuple(
                ops.where(self._align(store, now), now, before)
                for now, before in zip(carry[name], carry[f"best_{name}"])
            )

        return {
            **carry,
            "learning_rate": carry["learning_rate"] * factor,
            "plateau_best": ops.where(better, loss, carry["plateau_best"]),
            "plateau_wait": ops.where(reduce, 0, plateau_wait),
            "stop_wait": stop_wait,
            "best_loss": ops.where(best, loss, carry["best_loss"]),
            "best_weights": best_of("weights"),
            "best_state": best_of("state"),
            # TerminateOnNaN: a loss that is not finite ends a member's run, too.
            "stopped": ops.logical_or(
                carry["stopped"], ops.logical_or(ended, ops.logical_not(finite))
            ),
        }

    def _align(self, per_member: Any, block: Any) -> Any:
        """Reshape numbers (..) so that they broadcast over a block (.., *shape)."""
        if not self.key.n_members:
            return per_member
        return ops.reshape(per_member, (self.key.n_members,) + (1,) * (len(block.shape) - 1))

    def _sum_of_squares(self, blocks: Any) -> Any:
        """Sum the squares of all entries of all blocks, to shape (..)."""
        axes = [tuple(range(len(self.key.lead), len(block.shape))) for block in blocks]
        return sum(ops.sum(ops.square(b), axis=axis) for b, axis in zip(blocks, axes))
