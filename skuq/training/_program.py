"""The training program: many epochs of one network as one pure function.

Backend-neutral: everything is `keras.ops`, except the gradient, which the backend module
(`_tensorflow`) hands in and which also compiles the result. A program reads no variable
and keeps no state; what changes from epoch to epoch travels in a `carry`, so a run can be
cut into slices and continued, and threads may share a program.

Notation: n_weights P (the network's trainable weights, flattened and joined); rows are
padded to a ladder of sizes, `n_train` and `n_valid` say how many are real; one call runs
`n_epochs` epochs whose batch orders the host has drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._keras import keras, ops
from skuq.training._optimizers import RULES

__all__ = ["ProgramKey", "epochs_per_call", "make_program", "padded_rows", "start_carry"]

_PLATEAU_MIN_DELTA = 1e-4  # Keras' ReduceLROnPlateau; EarlyStopping has 0
_VALIDATION_CHUNK = 8192  # rows of one validation pass: bounds its memory
_ORDER_ENTRIES = 2**20  # row numbers sent with one call: 4 MB
_MAX_EPOCHS_PER_CALL = 64


@dataclass(frozen=True)
class ProgramKey:
    """All that shapes a program; two runs with equal keys share one compilation."""

    network: str  # the Keras model's configuration, as JSON
    head: Any  # hashable, with `loss(y, raw)`
    optimizer: str
    batch_size: int
    n_train: int  # padded
    n_valid: int  # padded
    jit: bool


def padded_rows(n_rows: int) -> int:
    """The next size on a ladder of four steps an octave: at most a quarter too many."""
    if n_rows <= 8:
        return 8
    step = 2 ** (math.ceil(math.log2(n_rows)) - 3)
    return step * math.ceil(n_rows / step)


def epochs_per_call(n_train: int) -> int:
    """Most epochs of one call, so that the orders sent with it stay small."""
    return max(1, min(_MAX_EPOCHS_PER_CALL, _ORDER_ENTRIES // n_train))


def start_carry(weights, state, key: ProgramKey, learning_rate: float) -> dict:
    """The carry before the first epoch.

    Parameters
    ----------
    weights : ndarray of shape (n_weights,)
    state : list of ndarray
        The model's non-trainable variables.
    """
    weights = ops.convert_to_tensor(weights)
    state = tuple(ops.convert_to_tensor(value) for value in state)
    infinity, zero = ops.convert_to_tensor(np.float32(np.inf)), np.int32(0)
    return {
        "weights": weights,
        "state": state,
        "slots": RULES[key.optimizer].init(weights),
        "step": ops.convert_to_tensor(np.float32(0)),
        "learning_rate": ops.convert_to_tensor(np.float32(learning_rate)),
        "plateau_best": infinity,
        "plateau_wait": ops.convert_to_tensor(zero),
        "stop_wait": ops.convert_to_tensor(zero),
        "best_loss": infinity,
        "best_weights": weights,
        "best_state": state,
        "stopped": ops.convert_to_tensor(False),
    }


def make_program(model: keras.Model, key: ProgramKey, value_and_gradient):
    """The function ``program(carry, data, orders, scalars) -> (carry, history)``.

    Parameters
    ----------
    model : keras.Model
        A template; its own variables are never read.
    value_and_gradient : callable
        ``(function, weights) -> (value, auxiliary, gradient)`` of the backend.

    Returns
    -------
    callable
        `data` holds x, y, weight (padded rows) and their `_valid` twins; `orders` is
        int32 of shape (epochs_per_call, steps * batch_size), row numbers; `scalars`
        holds n_train, n_valid, n_epochs, reduce_lr_patience, reduce_lr_factor,
        early_stopping_patience. `history` is float32 of shape (epochs_per_call, 3):
        training loss, validation loss and learning rate of each epoch run, NaN beyond.
    """
    rule = RULES[key.optimizer]
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()
    batch, loss_of = key.batch_size, key.head.loss
    chunk = min(key.n_valid, _VALIDATION_CHUNK)

    def forward(weights, state, x, training):
        parts = ops.split(weights, ends)
        parts = [ops.reshape(part, shape) for part, shape in zip(parts, shapes)]
        return model.stateless_call(parts, list(state), x, training=training, return_losses=True)

    def train_step(data, rows, is_real, n_real, carry):
        x, y, weight = (ops.take(data[name], rows, axis=0) for name in ("x", "y", "weight"))

        def batch_loss(weights):
            raw, state, penalties = forward(weights, carry["state"], x, True)
            # As in Keras: the mean over the batch's rows, each times its sample weight.
            fit = ops.sum(ops.where(is_real, weight * loss_of(y, raw), 0.0)) / n_real
            return sum(penalties, fit), tuple(state)

        loss, state, gradient = value_and_gradient(batch_loss, carry["weights"])
        step = carry["step"] + 1.0
        weights, slots = rule.update(
            carry["weights"], carry["slots"], gradient, step, carry["learning_rate"]
        )
        moved = {"weights": weights, "slots": slots, "state": state, "step": step}
        return loss, {**carry, **moved}

    def train_epoch(data, order, n_train, carry):
        n_steps = (n_train + batch - 1) // batch

        def go_on(step, finite, total, carry):
            return ops.logical_and(step < n_steps, finite)

        def body(step, finite, total, carry):
            rows = ops.slice(order, [step * batch], [batch])
            is_real = step * batch + ops.arange(batch, dtype="int32") < n_train
            n_real = ops.cast(ops.minimum(batch, n_train - step * batch), "float32")
            loss, carry = train_step(data, rows, is_real, n_real, carry)
            return step + 1, ops.isfinite(loss), total + loss * n_real, carry

        start = (np.int32(0), ops.convert_to_tensor(True), np.float32(0), carry)
        _, finite, total, carry = ops.while_loop(go_on, body, start)
        return total / ops.cast(n_train, "float32"), finite, carry

    def validation_loss(data, n_valid, carry):
        def body(start, total):
            x, y, weight = (
                _rows(data[name], start, chunk) for name in ("x_valid", "y_valid", "weight_valid")
            )
            raw, _, penalties = forward(carry["weights"], carry["state"], x, False)
            is_real = start + ops.arange(chunk, dtype="int32") < n_valid
            total = total + ops.sum(ops.where(is_real, weight * loss_of(y, raw), 0.0))
            n_real = ops.cast(ops.minimum(chunk, n_valid - start), "float32")
            return start + chunk, sum((n_real * p for p in penalties), total)

        _, total = ops.while_loop(
            lambda start, total: start < n_valid, body, (np.int32(0), np.float32(0))
        )
        return total / ops.cast(n_valid, "float32")

    def end_epoch(loss, finite, scalars, carry):
        """ReduceLROnPlateau, EarlyStopping(restore_best_weights), TerminateOnNaN."""
        better = loss < carry["plateau_best"] - _PLATEAU_MIN_DELTA
        plateau_wait = ops.where(better, 0, carry["plateau_wait"] + 1)
        reduce = plateau_wait >= scalars["reduce_lr_patience"]
        factor = ops.where(reduce, scalars["reduce_lr_factor"], 1.0)
        best = loss < carry["best_loss"]
        stop_wait = ops.where(best, 0, carry["stop_wait"] + 1)
        ended = stop_wait >= scalars["early_stopping_patience"]
        return {
            **carry,
            "learning_rate": carry["learning_rate"] * factor,
            "plateau_best": ops.where(better, loss, carry["plateau_best"]),
            "plateau_wait": ops.where(reduce, 0, plateau_wait),
            "stop_wait": stop_wait,
            "best_loss": ops.where(best, loss, carry["best_loss"]),
            "best_weights": ops.where(best, carry["weights"], carry["best_weights"]),
            "best_state": tuple(
                ops.where(best, now, kept) for now, kept in zip(carry["state"], carry["best_state"])
            ),
            "stopped": ops.logical_or(ended, ops.logical_not(finite)),
        }

    def program(carry, data, orders, scalars):
        history = ops.full((epochs_per_call(key.n_train), 3), np.float32(np.nan), dtype="float32")

        def go_on(epoch, carry, history):
            return ops.logical_and(epoch < scalars["n_epochs"], ops.logical_not(carry["stopped"]))

        def body(epoch, carry, history):
            rate = carry["learning_rate"]
            order = ops.take(orders, epoch, axis=0)
            loss, finite, carry = train_epoch(data, order, scalars["n_train"], carry)
            valid = validation_loss(data, scalars["n_valid"], carry)
            row = ops.reshape(ops.stack([loss, valid, rate]), (1, 3))
            history = ops.slice_update(history, [epoch, 0], row)
            return epoch + 1, end_epoch(valid, finite, scalars, carry), history

        _, carry, history = ops.while_loop(go_on, body, (np.int32(0), carry, history))
        return carry, history

    return program


def _rows(array, start, n_rows):
    """`n_rows` rows of a padded array; the last chunk may reach over its end."""
    last = array.shape[0] - n_rows
    if last == 0:
        return array
    index = start + ops.arange(n_rows, dtype="int32")
    return ops.take(array, ops.minimum(index, array.shape[0] - 1), axis=0)
