"""Training one network: the host's side of the compiled program."""

from __future__ import annotations

import functools
import time

import numpy as np

from skuq._keras import keras, ops
from skuq.catalog._records import Member
from skuq.tables._training_data import TrainingData
from skuq.training._cache import BoundedCache
from skuq.training._predict import predict_raw
from skuq.training._program import (
    ProgramKey,
    epochs_per_call,
    make_program,
    padded_rows,
    start_carry,
)
from skuq.training._recipe import Recipe
from skuq.training._tensorflow import (
    compile_program,
    to_host,
    to_tensors,
    value_and_gradient,
)
from skuq.training._weights import draw_variables

__all__ = ["pad", "programs", "train_member"]

#: Every compiled training program of this process.
programs = BoundedCache(max_size=16)

# One call of a program should return within about this time, so that an interrupt or a
# deadline is seen; a call costs a millisecond.
_SLICE_SECONDS = 1.0
# From this many steps on, XLA's compilation pays for itself (benchmarks/trial_speed.py
# --tiers prints the measurement).
_STEPS_WORTH_XLA = 10_000


def train_member(
    model: keras.Model,
    head,
    recipe: Recipe,
    data: TrainingData,
    seed: int,
    *,
    initial=None,
    permutation=None,
    jit: bool | None = None,
    padded=None,
    cancelled=None,
) -> Member:
    """Train one network from scratch; its best epoch becomes a member.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``.

    Parameters
    ----------
    model : keras.Model
        A template; it is neither changed nor are its weights used.
    initial : tuple of (ndarray, list of ndarray), optional
        First weights (flat) and state, instead of drawing them.
    permutation : callable, optional
        ``permutation(n_train)`` gives each epoch's order of the rows, instead of a
        shuffle that `seed` decides.
    jit : bool, optional
        Compile through XLA or not; by default decided by the number of steps.
    padded : dict, optional
        ``pad(data)``, when many networks train on the same data.
    cancelled : callable, optional
        Asked between slices; when it says True, training ends with InterruptedError.

    Raises
    ------
    FloatingPointError
        If no epoch had a finite validation loss.
    """
    started = time.perf_counter()
    network = model.to_json()
    n_train, n_valid = len(data.x), len(data.x_valid)
    batch = min(recipe.batch_size, n_train)
    steps = -(-n_train // batch) * recipe.epochs
    key = ProgramKey(
        network=network,
        head=head,
        optimizer=recipe.optimizer,
        batch_size=batch,
        n_train=padded_rows(n_train),
        n_valid=padded_rows(n_valid),
        jit=steps > _STEPS_WORTH_XLA if jit is None else jit,
    )
    weights_seed, batches_seed = np.random.SeedSequence(seed).generate_state(2)
    weights, state = initial or draw_variables(model, int(weights_seed))
    carry = start_carry(weights, state, key, recipe.learning_rate)
    padded = pad(data) if padded is None else padded
    permutation = permutation or np.random.default_rng(int(batches_seed)).permutation
    carry, history = _run(
        model, key, carry, padded, recipe, n_train, n_valid, permutation, cancelled
    )
    if not np.isfinite(history[:, 1]).any():
        raise FloatingPointError(
            f"Training diverged: no finite validation loss in {len(history)} epochs "
            f"(optimizer={recipe.optimizer}, learning_rate={recipe.learning_rate:.3g})."
        )
    weights, state = to_host((carry["best_weights"], carry["best_state"]))
    raw = predict_raw(network, weights, state, data.x_valid, compiled=False)
    return Member(
        network=network,
        weights=weights,
        state=state,
        history=dict(zip(("loss", "val_loss", "learning_rate"), history.T)),
        held_out=raw.astype("float32"),
        seed=seed,
        seconds=time.perf_counter() - started,
        tier="xla" if key.jit else "graph",
    )


def _run(model, key, carry, padded, recipe, n_train, n_valid, permutation, cancelled):
    """All epochs, in slices of about a second; `permutation(n)` orders an epoch's rows."""
    per_call = epochs_per_call(key.n_train)
    width = -(-key.n_train // key.batch_size) * key.batch_size
    history, done, seconds_per_epoch = [], 0, np.inf
    while done < recipe.epochs:
        if cancelled is not None and cancelled():
            raise InterruptedError("Training was cancelled.")
        n_epochs = int(np.clip(_SLICE_SECONDS / seconds_per_epoch, 1, per_call))
        n_epochs = min(n_epochs, recipe.epochs - done)
        orders = np.zeros((per_call, width), dtype="int32")
        for order in orders[:n_epochs]:
            # The last batch is filled up with rows from the start of the epoch. They have
            # no weight in the loss, and batch statistics see real rows.
            order[:] = np.resize(permutation(n_train), width)
        scalars = {
            "n_train": np.int32(n_train),
            "n_valid": np.int32(n_valid),
            "n_epochs": np.int32(n_epochs),
            "reduce_lr_patience": np.int32(recipe.reduce_lr_patience),
            "reduce_lr_factor": np.float32(recipe.reduce_lr_factor),
            "early_stopping_patience": np.int32(recipe.early_stopping_patience),
        }
        arguments = to_tensors((carry, padded, orders, scalars))
        program = programs.get(key, functools.partial(_compiled, model, key, arguments))
        started = time.perf_counter()
        carry, rows = program(*arguments)
        rows, stopped = to_host((rows, carry["stopped"]))
        if done or not key.jit:  # XLA compiles in its first call
            seconds_per_epoch = (time.perf_counter() - started) / n_epochs
        rows = rows[~np.isnan(rows[:, 2])]  # epochs that were run have a learning rate
        history.append(rows)
        done += n_epochs
        if stopped:
            break
    return carry, np.concatenate(history)


def _compiled(model, key, arguments):
    return compile_program(make_program(model, key, value_and_gradient), arguments, jit=key.jit)


def pad(data: TrainingData) -> dict:
    """The data as tensors, rows padded to the ladder with zeros."""
    tensors = {}
    for name in data.__dataclass_fields__:
        array = getattr(data, name)
        extra = padded_rows(len(array)) - len(array)
        array = np.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1))
        tensors[name] = ops.convert_to_tensor(array)
    return tensors
