"""Make the records of trained networks, and find those that diverged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skuq._warnings import warn_user
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


def find_completed(members: Sequence[Member | FloatingPointError]) -> list[int]:
    """Find the positions of members that did not diverge, and warn if some did.

    A member whose training loss stopped being finite is left out even if an earlier epoch was
    finite, because a single bad member ruins a mixture. Raises FloatingPointError if all members
    diverged.
    """
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        what = "The network" if len(members) == 1 else f"All {len(members)} networks"
        first = "."
        if isinstance(members[0], Exception):
            first = f", the first with: {str(members[0]).rstrip('.')}."
        raise FloatingPointError(
            f"{what} diverged{first} Try a smaller `learning_rate`, weaker penalties, or "
            "`training=Training(clip_norm=1.0)`."
        )
    if len(kept) < len(members):
        warn_user(
            f"{len(members) - len(kept)} of {len(members)} networks diverged and were left out.",
        )
    return kept


def has_diverged(member: Member | FloatingPointError) -> bool:
    """Tell whether training failed, or the loss was not finite in every epoch."""
    if isinstance(member, FloatingPointError):
        return True
    return not bool(np.isfinite(member.history["loss"]).all())
