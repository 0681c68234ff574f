"""The training program: many epochs of one network, or of K at once, as a pure function.

Backend-neutral: everything is `keras.ops`, except the operations of a `Backend`, which is an
argument. A program reads no variable and keeps no state; what changes from epoch to epoch
travels in a `carry`, so a run can be cut into slices and continued, and threads may share a
program.

Notation: shapes that begin with ".." have a leading axis of n_members in a stack, and none
in a program of one network. Rows are padded to a ladder of sizes; `n_valid` says how many
of the validation rows are real. One call runs `n_epochs` epochs whose batch orders the
host has drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq.backend import Backend, keras, ops
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import Plan, Run, tensors
from skuq.training._blocks import Blocks
from skuq.training._network import make_network
from skuq.training._noise import normal, uniform
from skuq.training._optimizers import rule_of

__all__ = [
    "ProgramKey",
    "make_program",
    "padded_rows",
    "start_carry",
    "table_rows",
]

_PLATEAU_MIN_DELTA = 1e-4  # Keras' ReduceLROnPlateau; EarlyStopping has 0
_ORDER_ENTRIES = 2**20  # row numbers sent with one call: 4 MB
_MAX_EPOCHS_PER_CALL = 64
_INDEX_STREAM = 2**20  # of random numbers: far from those of dropout layers


@dataclass(frozen=True)
class ProgramKey:
    """All that shapes a program; two runs with equal keys share one compilation."""

    # Without a plan the Keras model's configuration, as JSON.
    network: Plan | EpistemicNetwork | str
    head: Any  # hashable, with `loss(y, raw)`
    optimizer: str
    batch_size: int
    input_shape: tuple[int, ...]
    n_outputs: int  # columns of y
    n_rows: int  # of the table the batches are taken from, padded
    n_steps: int  # of one epoch, for the padded number of training rows
    n_valid: int  # padded; 0 where nothing is held out
    jit: bool
    n_members: int = 0  # 0: one network, without a member axis
    own_validation: bool = False  # every member has validation rows of its own
    clip: bool = False
    l2: bool = False
    decay: bool = False
    dropout: bool = False  # rates come with the run
    adversarial: bool = False
    momentum: float = 0.0
    n_artificial: int = 0  # inputs without targets in every step
    n_draws: int = 0  # epistemic indices in every step
    detached: tuple[int, ...] = ()  # variables that the head's uncertainty terms do not move
    beta_2: float = 0.999
    dropout_schedule: bool = False
    rate_factors: bool = False  # of variables

    @property
    def lead(self) -> tuple[int, ...]:
        """The member axis, where there is one."""
        return (self.n_members,) if self.n_members else ()

    @property
    def epochs_per_call(self) -> int:
        """Most epochs of one call, so that the orders sent with it stay small."""
        numbers = self.batch_size + self.n_artificial * math.prod(self.input_shape)
        width = self.n_steps * numbers * max(1, self.n_members)
        return max(1, min(_MAX_EPOCHS_PER_CALL, _ORDER_ENTRIES // width))


def padded_rows(n_rows: int) -> int:
    """The next size on a ladder of four steps an octave: at most a quarter too many."""
    if n_rows <= 8:
        return 8
    step = 2 ** (math.ceil(math.log2(n_rows)) - 3)
    return step * math.ceil(n_rows / step)


def table_rows(n_rows: int) -> int:
    """The size of a table that batches are taken from: a power of two, unless that is large.

    Its filling costs memory alone, and a data set that grows by a row at a time compiles
    once an octave.
    """
    return padded_rows(2 ** math.ceil(math.log2(max(n_rows, 1))) if n_rows <= 2**14 else n_rows)


def start_carry(blocks, state, key: ProgramKey, learning_rate, noise_key) -> dict:
    """The carry before the first epoch, as arrays.

    Parameters
    ----------
    blocks : tuple of ndarray of shape (.., *block shape)
    state : sequence of ndarray (.., *shape)
        The model's non-trainable variables.
    learning_rate, noise_key : array-like of shape (..)
    """
    state = tuple(np.asarray(value) for value in state)
    rule = rule_of(key.optimizer, key.momentum, key.beta_2)

    def full(value, dtype):
        return np.full(key.lead, value, dtype=dtype)

    return {
        "weights": blocks,
        "state": state,
        "slots": tuple(rule.init(block) for block in blocks),
        "step": np.int32(0),
        "noise_key": np.asarray(noise_key, dtype="uint32"),
        "learning_rate": np.asarray(learning_rate, dtype="float32"),
        "plateau_best": full(np.inf, "float32"),
        "plateau_wait": full(0, "int32"),
        "stop_wait": full(0, "int32"),
        "best_loss": full(np.inf, "float32"),
        "best_weights": blocks,
        "best_state": state,
        "stopped": full(False, "bool"),
    }


def make_program(model: keras.Model, key: ProgramKey, backend: Backend):
    """The function ``program(carry, data, plan, scalars) -> (carry, history)``.

    Parameters
    ----------
    model : keras.Model
        A template; its own variables are never read.
    backend : Backend

    Returns
    -------
    callable
        `data` holds `table` (n_rows, inputs + outputs + 1: x, y and the row's weight) and
        `valid`, the same for validation rows, (.., n_valid, ..) where each member has its
        own. `plan` holds what the host prepared for each epoch and step: `orders` int32
        (epochs_per_call, .., n_steps * batch_size), row numbers of the table; `rates`, `decays`
        and `dropouts` float32 (epochs_per_call, n_steps), factors of the learning rate, of
        the weight decay and of dropout rates (the latter two where used); `shares` float32
        (n_steps * batch_size,), each row's share in its batch's loss, 0 for filling;
        `step_shares` float32 (n_steps,), each batch's share of the epoch's rows; and
        `artificial` float32 (epochs_per_call, n_steps, .., n_artificial, *input_shape).
        `scalars` holds n_steps, n_valid, n_epochs and what the recipe decides, (..) each.
        `history` is float32 (epochs_per_call, 3, ..): training loss, validation loss and
        learning rate of each epoch run, NaN beyond.
    """
    network = make_network(key.network, model, key.n_members)
    blocks_of = Blocks(network.shapes, key.jit)
    rule, batch = rule_of(key.optimizer, key.momentum, key.beta_2), key.batch_size
    loss_of = key.head.loss
    # What a head is judged by may be another loss than the one it learns from.
    valid_loss_of = getattr(key.head, "validation_loss", loss_of)
    n_inputs = math.prod(key.input_shape)
    columns = [n_inputs, n_inputs + key.n_outputs]
    chunk = min(key.n_valid, network.chunk)  # bounds the memory of a validation pass

    def beside(per_member, block):
        """Numbers (..) so that they broadcast over a block or variable (.., *shape)."""
        if not key.n_members:
            return per_member
        return ops.reshape(per_member, (key.n_members,) + (1,) * (len(block.shape) - 1))

    def sum_of_squares(blocks):
        """Of all weights together, (..)."""
        axes = [tuple(range(len(key.lead), len(block.shape))) for block in blocks]
        return sum(ops.sum(ops.square(b), axis=axis) for b, axis in zip(blocks, axes))

    def unjoin(rows):
        x, y, weight = ops.split(rows, columns, axis=-1)
        if len(key.input_shape) > 1:
            x = ops.reshape(x, (*rows.shape[:-1], *key.input_shape))
        return x, y, weight[..., 0]

    def dropout_mask_of(step, noise_key, scalars, factor):
        def mask(number, rate, shape):
            shape = tuple(shape) if not key.n_members else tuple(shape[-2:])
            numbers = uniform(noise_key, step, number, shape)
            if key.dropout:
                rate = scalars["dropout"][:, None, None] if key.n_members else scalars["dropout"]
            if key.dropout_schedule:
                rate = rate * factor
            return ops.cast(numbers >= rate, "float32") / (1.0 - rate)

        return mask

    def index_of(step, noise_key):
        """Epistemic indices (.., n_draws, n_index) of a step."""
        if not key.n_draws:
            return None
        return normal(noise_key, step, _INDEX_STREAM, (key.n_draws, key.network.n_index))

    def uncertainty_terms(variables, state, x, y, share, artificial, scalars):
        """Terms (..) of a head for rows (their `share`) and for inputs without targets.

        Networks give here what they will predict: without dropout, and with the batch
        statistics learnt from rows.
        """
        held = [ops.stop_gradient(v) if k in key.detached else v for k, v in enumerate(variables)]
        inputs = ops.concatenate([x, artificial], axis=len(key.lead))
        raw, _, _ = network.forward(held, state, inputs, Run(tensors(key.jit)))
        settings = {name: value[..., None] for name, value in scalars["settings"].items()}
        n_rows = x.shape[len(key.lead)]
        at_rows, apart = ops.split(raw, [n_rows], axis=len(key.lead))
        rows = ops.sum(share * key.head.row_loss(y, at_rows, settings), axis=-1)
        return rows + ops.mean(key.head.artificial_loss(apart, settings), axis=-1)

    def batch_losses(variables, state, rows, share, artificial, run, scalars):
        """Losses (..) of a batch, and the new state."""
        x, y, weight = unjoin(rows)

        def losses(x):
            raw, new_state, penalty = network.forward(variables, state, x, run)
            # As in Keras, the mean over the batch's rows, each times its sample weight; the
            # sum where the head says so, which `share` knows.
            fit = ops.sum(share * weight * loss_of(y, raw), axis=-1)
            return fit, new_state, penalty

        fit, new_state, penalty = losses(x)
        if key.adversarial:
            # Lakshminarayanan et al. (2017), Algorithm 1: a step along the sign of the
            # loss' gradient, in units of each feature's range.
            _, _, slope = backend.value_and_gradient(lambda x: (ops.sum(losses(x)[0]), ()), x)
            shift = scalars["adversarial"] * ops.sign(ops.stop_gradient(slope))
            fit = 0.5 * (fit + losses(x + shift)[0])
        if key.n_artificial:
            share = share * weight
            fit = fit + uncertainty_terms(variables, state, x, y, share, artificial, scalars)
        return fit + penalty, tuple(new_state)

    def train_step(rows, share, artificial, factors, scalars, inner):
        step = inner["step"] + 1
        run = Run(
            tensors(key.jit),
            training=True,
            is_real=ops.cast(share > 0, "float32"),
            dropout_mask=dropout_mask_of(
                step, scalars["noise_key"], scalars, factors.get("dropouts")
            ),
            index=index_of(step, scalars["noise_key"]),
        )

        def total(blocks):
            losses, state = batch_losses(
                blocks_of.variables(blocks), inner["state"], rows, share, artificial, run, scalars
            )
            return ops.sum(losses), (losses, state)

        _, (losses, state), gradient = backend.value_and_gradient(total, inner["weights"])
        weights, rate = inner["weights"], scalars["learning_rate"] * factors["rates"]
        if key.l2:
            losses = losses + scalars["l2"] * sum_of_squares(weights)
            gradient = [g + beside(2.0 * scalars["l2"], w) * w for g, w in zip(gradient, weights)]
        if key.clip:
            norm = ops.sqrt(sum_of_squares(gradient))
            factor = scalars["clip"] / ops.maximum(norm, scalars["clip"])
            gradient = [g * beside(factor, g) for g in gradient]
        rates = [beside(rate, w) for w in weights]
        if key.rate_factors:
            rates = [own * factor for own, factor in zip(rates, scalars["rate_factors"])]
        if key.decay:  # decoupled, before the update, as Keras' optimisers do
            decay = scalars["weight_decay"] * factors["decays"]
            weights = [w * (1.0 - own * beside(decay, w)) for w, own in zip(weights, rates)]
        t = ops.cast(step, "float32")
        updates = [
            rule.update(w, s, g, t, own)
            for w, s, g, own in zip(weights, inner["slots"], gradient, rates)
        ]
        weights, slots = (tuple(part) for part in zip(*updates))
        return losses, {"weights": weights, "state": state, "slots": slots, "step": step}

    def train_epoch(data, plan, epoch, scalars, carry):
        order = ops.take(plan["orders"], epoch, axis=0)
        schedules = {
            name: ops.take(plan[name], epoch, axis=0)
            for name in ("rates", "decays", "dropouts")
            if name in plan
        }
        artificial = ops.take(plan["artificial"], epoch, axis=0) if key.n_artificial else None
        alive = ops.logical_not(carry["stopped"])
        scalars = {
            **scalars,
            "learning_rate": carry["learning_rate"],
            "noise_key": carry["noise_key"],
        }

        def go_on(step, finite, total, inner):
            return ops.logical_and(
                step < scalars["n_steps"], ops.any(ops.logical_and(finite, alive))
            )

        def body(step, finite, total, inner):
            start = step * batch
            if key.n_members:
                numbers = ops.slice(order, [0, start], [key.n_members, batch])
            else:
                numbers = ops.slice(order, [start], [batch])
            rows = backend.gather(data["table"], numbers)
            share = ops.slice(plan["shares"], [start], [batch])
            factors = {name: ops.slice(v, [step], [1])[0] for name, v in schedules.items()}
            apart = None if artificial is None else ops.take(artificial, step, axis=0)
            losses, inner = train_step(rows, share, apart, factors, scalars, inner)
            finite = ops.logical_and(finite, ops.isfinite(losses))
            step_share = ops.slice(plan["step_shares"], [step], [1])[0]
            return step + 1, finite, total + losses * step_share, inner

        inner = {name: carry[name] for name in ("weights", "state", "slots", "step")}
        start = (
            np.int32(0),
            ops.convert_to_tensor(np.full(key.lead, True)),
            ops.zeros(key.lead, "float32"),
            inner,
        )
        _, finite, total, inner = ops.while_loop(go_on, body, start)
        return total, finite, {**carry, **inner}

    def validation_loss(valid, n_valid, carry):
        variables = blocks_of.variables(carry["weights"])
        run = Run(tensors(key.jit), index=index_of(np.int32(0), carry["noise_key"]))

        def losses(rows, is_real):
            x, y, weight = unjoin(rows)
            raw, _, penalty = network.forward(variables, carry["state"], x, run)
            fit = ops.where(is_real, weight * valid_loss_of(y, raw), 0.0)
            return ops.sum(fit, axis=-1), penalty

        n_real = ops.cast(n_valid, "float32")
        if chunk == key.n_valid:
            total, penalty = losses(valid, ops.arange(chunk, dtype="int32") < n_valid)
            return total / n_real + penalty

        axis = len(valid.shape) - 2

        def body(start, total, penalty):
            index = start + ops.arange(chunk, dtype="int32")
            rows = ops.take(valid, ops.minimum(index, key.n_valid - 1), axis=axis)
            part, penalty = losses(rows, index < n_valid)
            return start + chunk, total + part, penalty + ops.zeros(key.lead, "float32")

        zeros = ops.zeros(key.lead, "float32")
        _, total, penalty = ops.while_loop(
            lambda start, total, penalty: start < n_valid, body, (np.int32(0), zeros, zeros)
        )
        return total / n_real + penalty

    def end_epoch(loss, finite, scalars, carry):
        """ReduceLROnPlateau, EarlyStopping(restore_best_weights), TerminateOnNaN."""
        alive = ops.logical_not(carry["stopped"])
        better = loss < carry["plateau_best"] - _PLATEAU_MIN_DELTA
        plateau_wait = ops.where(better, 0, carry["plateau_wait"] + 1)
        reduce = plateau_wait >= scalars["reduce_lr_patience"]
        factor = ops.where(reduce, scalars["reduce_lr_factor"], 1.0)
        best = loss < carry["best_loss"]
        stop_wait = ops.where(best, 0, carry["stop_wait"] + 1)
        ended = stop_wait >= scalars["early_stopping_patience"]
        # A member that has stopped stands still; one that keeps its last epoch takes every.
        keep = ops.logical_and(alive, ops.logical_or(best, scalars["keep_last"]))
        return {
            **carry,
            "learning_rate": carry["learning_rate"] * factor,
            "plateau_best": ops.where(better, loss, carry["plateau_best"]),
            "plateau_wait": ops.where(reduce, 0, plateau_wait),
            "stop_wait": stop_wait,
            "best_loss": ops.where(best, loss, carry["best_loss"]),
            "best_weights": tuple(
                ops.where(beside(keep, now), now, kept)
                for now, kept in zip(carry["weights"], carry["best_weights"])
            ),
            "best_state": tuple(
                ops.where(beside(keep, now), now, kept)
                for now, kept in zip(carry["state"], carry["best_state"])
            ),
            "stopped": ops.logical_or(
                carry["stopped"], ops.logical_or(ended, ops.logical_not(finite))
            ),
        }

    def program(carry, data, plan, scalars):
        history = ops.full((key.epochs_per_call, 3, *key.lead), np.float32(np.nan), "float32")

        def go_on(epoch, carry, history):
            going = ops.logical_not(ops.all(carry["stopped"]))
            return ops.logical_and(epoch < scalars["n_epochs"], going)

        def body(epoch, carry, history):
            rate = ops.where(carry["stopped"], np.float32(np.nan), carry["learning_rate"])
            loss, finite, carry = train_epoch(data, plan, epoch, scalars, carry)
            if key.n_valid:
                valid = validation_loss(data["valid"], scalars["n_valid"], carry)
                watched = valid
            else:
                valid, watched = ops.full_like(loss, np.nan), loss
            row = ops.stack([loss, valid, rate])[None]
            history = ops.slice_update(history, [epoch, 0] + [0] * len(key.lead), row)
            return epoch + 1, end_epoch(watched, finite, scalars, carry), history

        _, carry, history = ops.while_loop(go_on, body, (np.int32(0), carry, history))
        return carry, history

    return program
