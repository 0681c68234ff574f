"""Compute the arguments of a training program from a job and the sizes of its data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq.networks._rebuild import own_classes
from skuq.tables._training_data import TrainingData
from skuq.training._job import TrainingJob
from skuq.training._program_key import (
    ProgramKey,
    full_batch_rows,
    padded_rows,
    table_rows,
)
from skuq.training._recipe import Recipe
from skuq.training._templates import Template

_NEVER = np.iinfo("int32").max  # a patience that no run exhausts; it stands for None


@dataclass(frozen=True)
class Sizes:
    """Row counts of each member: rows it has, rows of one epoch, and validation rows."""

    n_rows: int
    n_train: int
    n_valid: int

    @classmethod
    def of(cls, job: TrainingJob, data: TrainingData) -> Sizes:
        """Count the rows of a job."""
        n_rows, n_valid = len(data.x), len(data.x_valid)
        if job.splits is not None:
            train, valid = job.splits[0]
            n_rows, n_valid = len(train), n_valid if valid is None else len(valid)
        recipe = job.recipe
        n_steps = recipe.steps_per_epoch
        n_train = n_rows if n_steps is None else min(n_rows, n_steps * recipe.batch_size)
        return cls(n_rows, n_train, n_valid)


def program_key(
    job: TrainingJob, template: Template, data: TrainingData, sizes: Sizes, jit: bool
) -> ProgramKey:
    """Make the key under which a job's program is compiled and cached.

    Raises
    ------
    ValueError
        If the recipe sets dropout and the network has no Dropout layers.
    """
    recipes, recipe, plan = job.recipes, job.recipe, template.plan
    _check_dropout(recipe, template)
    # A full batch is padded, so that folds of slightly different size, and the steps of a search,
    # share a program. Networks that run through Keras are not padded: batch normalisation there
    # would count the padding as rows.
    n_rows = sizes.n_train if template.through_keras else full_batch_rows(sizes.n_train)
    batch = min(recipe.batch_size, n_rows)
    return ProgramKey(
        network=template.identity,
        head=job.head,
        optimizer=recipe.optimizer,
        batch_size=batch,
        input_shape=data.x.shape[1:],
        n_outputs=data.y.shape[1],
        n_rows=table_rows(len(data.x)),
        # Number of batches for the padded number of training rows.
        n_steps=math.ceil(table_rows(sizes.n_train) / batch) if batch < sizes.n_train else 1,
        n_valid=padded_rows(sizes.n_valid) if sizes.n_valid else 0,
        jit=jit,
        n_members=len(job.seeds) if job.stacked else 0,
        own_validation=job.own_validation,
        clip=recipe.clip_norm is not None,
        l2=any(r.l2 for r in recipes),
        decay=any(r.weight_decay for r in recipes),
        dropout=recipe.dropout is not None,
        adversarial=recipe.adversarial_epsilon > 0,
        momentum=recipe.momentum,
        n_artificial=recipe.n_artificial,
        n_draws=recipe.n_draws,
        detached=_detached(template, job.head) if recipe.n_artificial else (),
        beta_2=recipe.beta_2,
        epsilon=recipe.epsilon,
        # Without Dropout layers a schedule changes nothing and would only compile a new program.
        dropout_schedule=(
            recipe.dropout_schedule != "constant" and plan is not None and plan.n_dropouts > 0
        ),
        rate_factors=any(r.rate_factors_of_layers for r in recipes),
        own_classes=own_classes(template.network),
    )


def _check_dropout(recipe: Recipe, template: Template) -> None:
    """Raise ValueError if the recipe sets dropout that the network cannot apply."""
    plan = template.plan
    if recipe.dropout is not None and (plan is None or not plan.n_dropouts):
        raise ValueError(
            f"A recipe's `dropout` sets the rate of Dropout layers. Got dropout={recipe.dropout} "
            "for a network without Dropout layers, or with layers that run through Keras. "
            "Give the rate to the layers instead."
        )
    if recipe.dropout_schedule != "constant" and plan is None:
        raise ValueError(
            f"A recipe's dropout_schedule={recipe.dropout_schedule!r} cannot be used for networks "
            "with layers that run through Keras: their Dropout layers have fixed rates. "
            'Set dropout_schedule="constant".'
        )


def _detached(template: Template, head: Any) -> tuple[int, ...]:
    """Find the positions of variables that get no gradient from a head's uncertainty terms."""
    if head.detached is None:
        return ()
    return tuple(k for k, name in enumerate(template.names) if name.startswith(head.detached))


def scalars_of(job: TrainingJob, data: TrainingData, sizes: Sizes) -> dict[str, Any]:
    """Collect the numbers that a compiled program takes from recipes as arguments.

    Each has shape (n_members,) in a stack, or () for one network.
    """

    def per_member(name: str, dtype: str = "float32", none: int = 0) -> np.ndarray:
        """Join one field of all recipes; `none` stands for None."""
        values = [getattr(recipe, name) for recipe in job.recipes]
        # None becomes a patience that no run exhausts, or a 0 that the program does not use.
        values = [none if value is None else min(value, _NEVER) for value in values]
        return np.asarray(job.join_members(values), dtype=dtype)

    scalars: dict[str, Any] = {
        "n_valid": np.int32(sizes.n_valid),
        "keep_last": np.bool_(job.recipe.keep == "last"),
        "reduce_lr_patience": per_member("reduce_lr_patience", dtype="int32", none=_NEVER),
        "reduce_lr_factor": per_member("reduce_lr_factor"),
        "early_stopping_patience": per_member(
            "early_stopping_patience", dtype="int32", none=_NEVER
        ),
        "clip": per_member("clip_norm"),
        "l2": per_member("l2"),
        "weight_decay": per_member("weight_decay"),
        "dropout": per_member("dropout"),
    }
    if job.recipe.n_artificial:  # the weights of the head's terms for artificial inputs
        values = [dict(recipe.loss_settings) for recipe in job.recipes]
        scalars["settings"] = {
            name: np.float32(job.join_members([settings[name] for settings in values]))
            for name in values[0]
        }
    if job.recipe.adversarial_epsilon:
        ranges = np.ptp(data.x, axis=0)  # the step of adversarial training, per feature
        scalars["adversarial"] = np.float32(job.recipe.adversarial_epsilon * ranges)
    return scalars


def batch_shares(key: ProgramKey, n_train: int) -> dict[str, np.ndarray]:
    """Compute each row's share in its batch's loss, and each batch's share of the epoch's rows."""
    n_steps = math.ceil(n_train / key.batch_size)
    # Rows of each batch without padding: only the last batch can have fewer.
    n_real = np.minimum(key.batch_size, n_train - key.batch_size * np.arange(n_steps))
    shares = np.zeros((key.n_steps, key.batch_size), dtype="float32")  # padding keeps share 0
    for step, n in enumerate(n_real):
        shares[step, :n] = 1 if getattr(key.head, "sums_rows", False) else 1 / n
    step_shares = np.zeros(key.n_steps, dtype="float32")
    step_shares[:n_steps] = n_real / n_train
    return {"shares": shares.ravel(), "step_shares": step_shares}


def schedules_of(
    key: ProgramKey, recipe: Recipe, done: int, n_epochs: int, n_steps: int
) -> dict[str, np.ndarray]:
    """Compute the factors that change from step to step, (epochs_per_call, n_steps) each.

    `done` counts the epochs before this call, and `n_epochs` those of the call.
    """
    functions = {"rates": recipe.rate_factors}
    if key.decay:
        functions["decays"] = recipe.weight_decay_factors
    if key.dropout_schedule:
        functions["dropouts"] = recipe.dropout_factors
    schedules = {}
    for name, function in functions.items():
        # Epochs and steps that only fill the program's shapes keep the factor 1.
        factors = np.ones((key.epochs_per_call, key.n_steps), dtype="float32")
        # Steps count from the recipe's first epoch, so that schedules go on from call to call.
        now = function(done * n_steps, n_epochs * n_steps, recipe.epochs * n_steps)
        factors[:n_epochs, :n_steps] = now.reshape(n_epochs, n_steps)
        schedules[name] = factors
    return schedules
