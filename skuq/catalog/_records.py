"""One frozen record per arrow: a trial of the search, and the member it trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skuq._registry import saved_as
from skuq.networks._safe import check_member

__all__ = ["FoldedMember", "Member", "TrialRecord"]


@saved_as("catalog.Member", check=check_member)
@dataclass(frozen=True, eq=False)
class Member:
    """A trained network as data: what is needed to rebuild it, and how it came to be.

    Attributes
    ----------
    network : str
        Configuration of the Keras model, as JSON.
    weights : ndarray of shape (n_weights,), float32, or None
        Trainable weights of the epoch kept, flattened in Keras' order and joined. None
        where they were dropped to keep a pickle small.
    state : tuple of ndarray
        Non-trainable variables of the epoch kept, in Keras' order.
    history : dict of str to ndarray of shape (n_epochs,)
        `loss`, `val_loss` (in units of the standardised y; NaN without validation rows)
        and `learning_rate`.
    best_epoch : int
        The epoch whose weights were kept, from 0.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on the validation rows, and on shifted ones behind them where there are any.
    seed : int
        Decides first weights and batches.
    seconds : float
        Time of training.
    tier : str
        "xla" or "graph": how the training program ran.
    """

    network: str
    weights: np.ndarray | None
    state: tuple
    history: dict
    best_epoch: int
    held_out: np.ndarray | None
    seed: int
    seconds: float
    tier: str

    @property
    def networks(self) -> tuple[Member, ...]:
        """This network, as the only one of its trial."""
        return (self,)

    @property
    def n_epochs(self) -> int:
        """Epochs trained."""
        return len(self.history["loss"])

    @property
    def score(self) -> float:
        """Loss of the epoch kept: on the validation rows, if there are any. Smaller is better."""
        watched = self.history["val_loss"]
        if np.isnan(watched).all():
            watched = self.history["loss"]
        return float(watched[self.best_epoch])

    def with_held_out(self, raw: np.ndarray) -> Member:
        """The same record with these raw outputs on the validation rows."""
        return replace(self, held_out=raw)

    def without_arrays(self) -> Member:
        """The same record without weights and held-out predictions."""
        return replace(self, weights=None, state=(), held_out=None)


@saved_as("catalog.FoldedMember")
@dataclass(frozen=True, eq=False)
class FoldedMember:
    """The networks of one trial, each trained without another part of the rows.

    Together they are one candidate of the search, and what it predicts is their mixture.

    Attributes
    ----------
    networks : tuple of Member
        One a fold. What they predicted of their folds is not theirs but stands below.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on all rows, each row's of the network that was trained without it; behind
        them those on shifted rows, of all networks together (their mixture's moments).
    score : float
        Negative log likelihood of `held_out`, the mean over rows by weight and over outputs.
        Smaller is better.
    """

    networks: tuple[Member, ...]
    held_out: np.ndarray | None
    score: float

    @property
    def n_epochs(self) -> int:
        """Epochs trained by a network, on average."""
        return round(np.mean([network.n_epochs for network in self.networks]))

    @property
    def best_epoch(self) -> int:
        """The networks' best epoch, on average."""
        return round(np.mean([network.best_epoch for network in self.networks]))

    def without_arrays(self) -> FoldedMember:
        """The same record without weights and held-out predictions."""
        networks = tuple(network.without_arrays() for network in self.networks)
        return replace(self, networks=networks, held_out=None)


@saved_as("catalog.TrialRecord")
@dataclass(frozen=True, eq=False)
class TrialRecord:
    """One finished trial of a search.

    Attributes
    ----------
    trial_number : int
        From 0, in the order in which configurations were proposed.
    configuration : dict
        ``{decision name: value}``.
    seed : int
    status : {"completed", "failed"}
    score : float
        What the search minimises; NaN if the trial failed.
    seconds : float
        From submission to result.
    message : str
        Why the trial failed; empty otherwise.
    result : Member, FoldedMember or None
        What the evaluation returned.
    """

    trial_number: int
    configuration: dict = field(default_factory=dict)
    seed: int = 0
    status: str = "completed"
    score: float = float("nan")
    seconds: float = 0.0
    message: str = ""
    result: Any = None

    @property
    def completed(self) -> bool:
        return self.status == "completed"
