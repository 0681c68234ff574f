"""The arguments of a training program that follow from a job and the sizes of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq.tables._training_data import TrainingData
from skuq.training._job import TrainingJob
from skuq.training._program_key import ProgramKey, padded_rows, table_rows
from skuq.training._recipe import Recipe
from skuq.training._templates import Template

_NEVER = np.iinfo("int32").max


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows that each member has, trains on in an epoch, and validates on."""

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
        most = n_rows if n_steps is None else n_steps * recipe.batch_size
        return cls(n_rows, min(n_rows, most), n_valid)


def program_key(
    job: TrainingJob, template: Template, data: TrainingData, sizes: Sizes, jit: bool
) -> ProgramKey:
    """Give the static facts of a job's program.

    Raises
    ------
    ValueError
        If the recipe has settings of Dropout layers that the network has not.
    """
    recipes, recipe, plan = job.recipes, job.recipe, template.plan
    _check_dropout(recipe, template)
    # Full batches are padded like the rows, so that folds share a program; Keras' own
    # batch normalisation would take the padding for rows.
    n_rows = sizes.n_train if template.through_keras else padded_rows(sizes.n_train)
    batch = min(recipe.batch_size, n_rows)
    return ProgramKey(
        network=template.identity,
        head=job.head,
        optimizer=recipe.optimizer,
        batch_size=batch,
        input_shape=data.x.shape[1:],
        n_outputs=data.y.shape[1],
        n_rows=table_rows(len(data.x)),
        n_steps=-(-table_rows(sizes.n_train) // batch) if batch < sizes.n_train else 1,
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
        dropout_schedule=(
            recipe.dropout_schedule != "constant" and plan is not None and plan.n_dropouts > 0
        ),
        rate_factors=any(r.rate_factors_of_layers for r in recipes),
    )


def _check_dropout(recipe: Recipe, template: Template) -> None:
    plan = template.plan
    if recipe.dropout is not None and (plan is None or not plan.n_dropouts):
        raise ValueError(
            "A recipe's `dropout` sets the rate of Dropout layers, and this network has none, or "
            "has layers that run through Keras. Give the rate to the layer instead."
        )
    if recipe.dropout_schedule != "constant" and plan is None:
        raise ValueError(
            f"A recipe's dropout_schedule={recipe.dropout_schedule!r} is not for networks with "
            "layers that run through Keras, which know their own rate only."
        )


def _detached(template: Template, head: Any) -> tuple[int, ...]:
    """Find the positions of the variables that a head's uncertainty terms do not move."""
    if head.detached is None:
        return ()
    return tuple(k for k, name in enumerate(template.names) if name.startswith(head.detached))


def scalars_of(job: TrainingJob, data: TrainingData, sizes: Sizes) -> dict[str, Any]:
    """Give the numbers that recipes decide, (..) each."""

    def per_member(name: str, dtype: str = "float32", none: int = 0) -> np.ndarray:
        values = [getattr(recipe, name) for recipe in job.recipes]
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
    if job.recipe.n_artificial:
        values = [dict(recipe.loss_settings) for recipe in job.recipes]
        scalars["settings"] = {
            name: np.float32(job.join_members([settings[name] for settings in values]))
            for name in values[0]
        }
    if job.recipe.adversarial_epsilon:
        ranges = np.ptp(data.x, axis=0)
        scalars["adversarial"] = np.float32(job.recipe.adversarial_epsilon * ranges)
    return scalars


def batch_shares(key: ProgramKey, n_train: int) -> dict[str, np.ndarray]:
    """Give each row's share in its batch's loss, and each batch's share of the epoch's rows."""
    n_steps = -(-n_train // key.batch_size)
    n_real = np.minimum(key.batch_size, n_train - key.batch_size * np.arange(n_steps))
    shares = np.zeros((key.n_steps, key.batch_size), dtype="float32")
    for step, n in enumerate(n_real):
        shares[step, :n] = 1 if getattr(key.head, "sums_rows", False) else 1 / n
    step_shares = np.zeros(key.n_steps, dtype="float32")
    step_shares[:n_steps] = n_real / n_train
    return {"shares": shares.ravel(), "step_shares": step_shares}


def schedules_of(
    key: ProgramKey, recipe: Recipe, done: int, n_epochs: int, n_steps: int
) -> dict[str, np.ndarray]:
    """Give the factors that change from step to step, (epochs_per_call, n_steps) each."""
    functions = {"rates": recipe.rate_factors}
    if key.decay:
        functions["decays"] = recipe.weight_decay_factors
    if key.dropout_schedule:
        functions["dropouts"] = recipe.dropout_factors
    schedules = {}
    for name, function in functions.items():
        factors = np.ones((key.epochs_per_call, key.n_steps), dtype="float32")
        now = function(done * n_steps, n_epochs * n_steps, recipe.epochs * n_steps)
        factors[:n_epochs, :n_steps] = now.reshape(n_epochs, n_steps)
        schedules[name] = factors
    return schedules
