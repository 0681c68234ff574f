"""Members: trained networks as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.files._registry import saved_as
from skuq.networks._safe import check_member


@saved_as("networks.Member", check=check_member)
@dataclass(frozen=True, eq=False)
class Member:
    """A trained network as data: configuration, weights and history of the training.

    Attributes
    ----------
    network : str
        Configuration of the Keras model, as JSON.
    weights : ndarray of shape (n_weights,), float32, or None
        Trainable weights of the kept epoch, flattened and concatenated in Keras' order. None if
        they were dropped to keep a file small.
    state : tuple of ndarray
        Non-trainable variables of the kept epoch, in Keras' order.
    history : dict of str to ndarray of shape (n_epochs,)
        `loss`, `val_loss` (in units of the standardised y; NaN without validation rows) and
        `learning_rate` of each epoch, after reductions on plateaus and without the factors of
        schedules and `epoch_rates`.
    best_epoch : int
        Number of the epoch whose weights were kept, from 0.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on the validation rows, followed by those on shifted rows, if there are any.
    seed : int
        Seed of initial weights and batch order.
    seconds : float
        Duration of training, without the compilation of its program.
    tier : str
        Compilation of the training program, "xla" or "graph".

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import Member
    >>> history = {
    ...     "loss": np.array([3.0, 2.0]), "val_loss": np.array([1.5, 0.5]),
    ...     "learning_rate": np.array([0.1, 0.1]),
    ... }
    >>> member = Member(
    ...     "{}", np.ones(4, "float32"), (), history, best_epoch=1, held_out=None, seed=1,
    ...     seconds=0.1, tier="graph",
    ... )
    >>> member.n_epochs, member.n_weights, member.score
    (2, 4, 0.5)
    """

    network: str
    weights: np.ndarray | None
    state: tuple[np.ndarray, ...]
    history: dict[str, np.ndarray]
    best_epoch: int
    held_out: np.ndarray | None
    seed: int
    seconds: float
    tier: str

    def __repr__(self) -> str:
        epochs = f"best epoch {self.best_epoch + 1} of {self.n_epochs}"
        score = f"score {self.score:.4g}, {self.seconds:.1f} s"
        return f"Member({self.n_weights} weights, {epochs}, {score})"

    @property
    def networks(self) -> tuple[Member, ...]:
        """This network as a tuple, as `FoldedMember` has several."""
        return (self,)

    @property
    def n_epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.history["loss"])

    @property
    def n_weights(self) -> int:
        """Number of trained weights."""
        return 0 if self.weights is None else self.weights.size

    @property
    def score(self) -> float:
        """Loss of the best epoch, on validation rows if there are any. Smaller is better."""
        watched = self.history["val_loss"]
        if np.isnan(watched).all():
            watched = self.history["loss"]
        return float(watched[self.best_epoch])

    def with_held_out(self, raw: np.ndarray | None) -> Member:
        """Copy the record with other raw outputs on the validation rows."""
        return replace(self, held_out=raw)

    def without_arrays(self) -> Member:
        """Copy the record without weights and held-out predictions."""
        return replace(self, weights=None, state=(), held_out=None)


def checked_network(member: Any) -> str:
    """Return the network of a `Member`, which was checked if it comes from a file.

    In the place of members a file can hold other objects, whose networks were not.
    """
    if type(member) is not Member:
        raise TypeError(f"A {type(member).__name__} is no member of an ensemble.")
    return member.network


@saved_as("networks.FoldedMember")
@dataclass(frozen=True, eq=False)
class FoldedMember:
    """The networks of one trial with cross-validation, one for each fold.

    Together they are one candidate of the search, which predicts their mixture.

    Attributes
    ----------
    networks : tuple of Member
        One for each fold. Their `held_out` is None, since predictions are in `held_out` below.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on all rows, each of the network that was not trained on the row. The variance
        of numbers' predictions includes that of the means of all networks. Raw outputs of the
        networks' mixture on shifted rows follow.
    score : float
        Weighted mean over rows of the head's `scores` of `held_out`, or of several trainings the
        mean of their scores. Smaller is better.
    center : ndarray of shape (n_rows, n_outputs), float32, or None
        For numbers: mean of the mixture of all networks, on all rows.
    """

    networks: tuple[Member, ...]
    held_out: np.ndarray | None
    score: float
    center: np.ndarray | None = None

    def __repr__(self) -> str:
        return (
            f"FoldedMember({len(self.networks)} networks, {self.n_weights} weights, "
            f"score {self.score:.4g})"
        )

    @property
    def n_weights(self) -> int:
        """Number of trained weights of all networks."""
        return sum(network.n_weights for network in self.networks)

    @property
    def seconds(self) -> float:
        """Seconds of training of all networks, without compilation."""
        return sum(network.seconds for network in self.networks)

    @property
    def n_epochs(self) -> int:
        """Number of epochs trained, averaged over networks."""
        return round(float(np.mean([network.n_epochs for network in self.networks])))

    @property
    def best_epoch(self) -> int:
        """Number of the kept epoch, averaged over networks."""
        return round(float(np.mean([network.best_epoch for network in self.networks])))

    def without_arrays(self) -> FoldedMember:
        """Copy the record without weights and held-out predictions."""
        networks = tuple(network.without_arrays() for network in self.networks)
        return replace(self, networks=networks, held_out=None, center=None)
