"""Make the records of trained networks."""

from __future__ import annotations

import numpy as np

from skuq.catalog._records import Member
from skuq.networks._epinet import EpistemicNetwork
from skuq.training._job import TrainingJob
from skuq.training._predict import predict_members
from skuq.training._program_key import ProgramKey


def make_member(
    job: TrainingJob,
    k: int,
    key: ProgramKey,
    weights: np.ndarray,
    state: tuple[np.ndarray, ...],
    history: np.ndarray,
    seconds: float,
    held_out: np.ndarray,
) -> Member | FloatingPointError:
    """Make the record of member k, or the error of one that diverged.

    `weights` and `state` are those of the epoch that the recipe keeps. `history` (n_epochs, 3)
    holds training loss, validation loss and learning rate, NaN for epochs that were not run. The
    record includes the member's predictions of `held_out`.
    """
    recipe = job.recipes[k]
    settings = f"(optimizer={recipe.optimizer}, learning_rate={recipe.learning_rate:.3g})"
    history = history[~np.isnan(history[:, 2])]  # only epochs that were run have a learning rate
    watched = history[:, 1] if key.n_valid else history[:, 0]
    if not np.isfinite(watched).any():
        what = "validation loss" if key.n_valid else "training loss"
        return FloatingPointError(
            f"Training diverged: no finite {what} in {len(history)} epochs {settings}."
        )
    if not np.isfinite(weights).all():
        return FloatingPointError(
            f"Training diverged: the last epoch's weights are not finite {settings}."
        )
    member = Member(
        network=job.network,
        weights=weights,
        state=state,
        history=dict(zip(("loss", "val_loss", "learning_rate"), history.T)),
        best_epoch=int(len(watched) - 1 if recipe.keep == "last" else np.nanargmin(watched)),
        # Predictions are added below, as they need the record itself.
        held_out=None,
        seed=job.seeds[k],
        seconds=seconds,
        tier="xla" if key.jit else "graph",
    )
    # An epistemic network predicts draws, and their indices are chosen after training.
    if isinstance(key.network, EpistemicNetwork):
        return member
    if not len(held_out):  # some Keras layers fail on zero rows
        return member.with_held_out(np.empty((0, job.head.n_raw), dtype="float32"))
    raw = predict_members([member], held_out, cache=False)[0]
    return member.with_held_out(raw.astype("float32"))
