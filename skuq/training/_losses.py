"""Losses of a training program, as pure functions of a network's weights.

The notation is that of `_program`: shapes that begin with ".." have the member axis of a stack.

``network.forward(variables, state, x, run) -> (raw, state, penalty)``, where everything has the
member axis of a stack, or none in a program of one network. `chunk` is the number of rows for
one forward pass without gradients. Planned networks run all members at once; networks without a
plan run through Keras, one member after the other.

The generators of Keras and TensorFlow keep a state, or draw other numbers through XLA than as a
graph, and none draws for many members with one key each. A counter-based generator does: it
hashes a counter, so that every number depends only on the member's key, the step, the layer and
the position. It is good enough for dropout, and not meant for cryptography.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skuq.backend import ops, split, value_and_gradient
from skuq.networks._operations import Run, tensors
from skuq.networks._plan import Plan
from skuq.training._job import ProgramKey
from skuq.training._network_checks import MAX_PASS_ROWS
from skuq.training._recipe import TEMPERATURES

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


class PlannedNetwork:
    """A network described by a `Plan`, with or without a member axis.

    Like every network of a program, it knows the shapes of its weights and the rows of a chunk.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.chunk = MAX_PASS_ROWS
        self.shapes = [weight.shape for weight in plan.weights]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute ``(raw, new state, penalty)``."""
        raw, state = self.plan(variables, state, x, run)
        total: Any = 0.0  # the layers' own weight penalties, () or (n_members,)
        for weight, value in zip(self.plan.weights, variables):
            axes = tuple(range(-len(weight.shape), 0))
            if weight.l1:
                total = total + weight.l1 * ops.sum(ops.abs(value), axis=axes)
            if weight.l2:
                total = total + weight.l2 * ops.sum(ops.square(value), axis=axes)
        return raw, state, total


# Standard deviation of the prior of the logarithm of a temperature: on few rows some late epoch has
# a good one by chance.
_TEMPERATURE_SPREAD = 0.2

INDEX_STREAM = 2**20  # stream of epistemic indices: dropout layers count their streams from 0


class Losses:
    """Loss functions for batches and for validation rows."""

    def __init__(self, key: ProgramKey, network: Any):
        self.key, self.network = key, network
        n_inputs = math.prod(key.input_shape)
        self._columns = [n_inputs, n_inputs + key.n_outputs]  # where y and the weight begin
        self._head: Any = key.head  # with an `artificial_loss` if `key.n_artificial` is positive
        # A head may be validated by another loss than the one it is trained on.
        self._validation_loss = key.head.validation_loss

    def training_run(
        self, step: Any, share: Any, prior: Any, scalars: dict[str, Any], factor: Any
    ) -> Run:
        """Make the `Run` of training step `step` (from 1): real rows, dropout masks, indices.

        `share` (batch_size,) is each row's share in the batch's loss, 0 for padding. `prior`
        (.., batch_size, n_raw) are the outputs of a frozen prior network, or None. `factor`
        multiplies the dropout rates in this step; None leaves them.
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
            is_real=ops.cast(share > 0, "float32"),
            dropout_mask=dropout_mask,
            index=self._index(step, noise_key),
            prior=prior,
        )

    def batch(
        self,
        variables: Any,
        state: Any,
        rows: Any,
        share: Any,
        artificial: Any,
        run: Run,
        scalars: dict[str, Any],
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute the training losses (..) of a batch, and the network's new state.

        `rows` (.., batch_size, columns) are rows of the table with the columns of x, y and the
        weight; `share` (batch_size,) is each row's share in the batch's loss, 0 for padding.
        `artificial` (.., n_artificial, *input_shape) are inputs without targets, or None. `run` is
        that of `training_run`, and `scalars` are the settings of each member.
        """
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
