"""The record of everything that decides a training run, and a run's state between two epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.networks._head_protocol import Head
from skuq.training._recipe import Recipe, stack_conflict
from skuq.training._templates import FirstValues, template_of_model
from skuq.training._weights import draw_variables

_SMALLEST_GROUP = 4  # members; smaller stacks lose more to overhead than a second core gains
_MEMBER_FIELDS = ("recipes", "seeds", "splits", "start", "permutations")

#: ``(train rows, validation rows or None)`` of one member.
Split = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class SeedWords:
    """The seeds of one member's streams of random numbers."""

    weights: int
    orders: int
    noise: int
    artificial: int


def seed_words(seed: int) -> SeedWords:
    """Derive the seeds of a member's streams."""
    return SeedWords(*map(int, np.random.SeedSequence(seed).generate_state(4)))


@dataclass(frozen=True, eq=False)
class TrainingState:
    """A training run between two epochs: enough to continue it to exactly the same result.

    Shapes that begin with ".." have the member axis of a stack, or none. It can be pickled.

    Attributes
    ----------
    carry : dict
        The carry of the compiled program, as arrays: weights and optimiser slots in the
        program's blocks, the network's state, the number of steps, learning rate, the counters of
        plateaus and early stopping, best loss, best weights and state.
    history : ndarray of shape (n_epochs, 3, ..)
        Training loss, validation loss and learning rate of each epoch so far.
    streams : tuple of (dict, dict)
        For each member the positions of the generators of batch orders and of artificial inputs.
    n_epochs : int
        Epochs done.
    seconds : float
        Time spent.
    jit : bool
        Whether the program runs through XLA.
    """

    carry: dict[str, Any]
    history: np.ndarray
    streams: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    n_epochs: int
    seconds: float
    jit: bool

    @property
    def stopped(self) -> bool:
        """Whether early stopping or divergence has ended the run of every member."""
        return bool(np.all(self.carry["stopped"]))


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """Everything that decides a training run except its data; it can be pickled.

    Parameters
    ----------
    network : str
        Configuration of a Keras model or of an `EpistemicNetwork`, as JSON.
    head : Head
        Hashable, with `n_raw` and ``loss(y, raw)``. One whose loss has terms for inputs without
        targets also has ``row_loss(y, raw, settings)``, ``artificial_loss(raw, settings)`` and
        `detached`, the beginning of the names of those layers whose weights these two do not move
        (or None). Where its `sums_rows` is true, a batch's loss is the sum over its rows, not
        their mean.
    recipes : Recipe or sequence of Recipe
        One for each member; a single one is for all. Recipes of a stack may differ in
        learning_rate, reduce_lr_patience, reduce_lr_factor, early_stopping_patience, clip_norm,
        l2, weight_decay, dropout, loss_settings and rate_factors_of_layers.
    seeds : sequence of int
        One for each member: it decides first weights, batches and dropout.
    stacked : bool, default=False
        Whether the members train as one program with a member axis. Without it there is one.
    splits : sequence of (train rows, validation rows or None), optional
        Rows of ``data.x`` that each member of a stack trains and validates on, instead of all
        of them and ``data.x_valid`` (which None keeps). All members have equally many. Rows may
        repeat, as in a bootstrap sample.
    start : sequence of (ndarray, list of ndarray), or TrainingState, optional
        First weights (flat) and state of each member, instead of drawing them; or the state
        of a paused run, which then continues.
    artificial : callable, optional
        ``artificial(n, rng) -> (n, ...)``: standardised inputs without targets, drawn for every
        step where the recipe's `n_artificial` is not 0.
    held_out : ndarray of shape (n_held_out, ...), optional
        Inputs that trained networks predict for the record, instead of `data.x_valid`. Members
        with validation rows of their own predict these.
    permutations : sequence of callable, optional
        For each member ``permutation(n_train)``, asked once an epoch for the order of the rows,
        instead of a shuffle that its seed decides. Its own random state, if any, is no part of a
        `TrainingState`: pickle the job together with the state.
    jit : bool, optional
        Compile through XLA or not; by default what is expected to end sooner.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.
    """

    network: str
    head: Head
    recipes: tuple[Recipe, ...]
    seeds: tuple[int, ...]
    stacked: bool = False
    splits: tuple[Split, ...] | None = None
    start: tuple[FirstValues, ...] | TrainingState | None = None
    artificial: Callable[..., Any] | None = None
    held_out: np.ndarray | None = None
    permutations: tuple[Callable[[int], Any], ...] | None = None
    jit: bool | None = None

    def __post_init__(self) -> None:
        seeds = tuple(self.seeds)
        recipes: Any = self.recipes
        recipes = (recipes,) * len(seeds) if isinstance(recipes, Recipe) else tuple(recipes)
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "recipes", recipes)
        for name in ("splits", "start", "permutations"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, TrainingState):
                object.__setattr__(self, name, tuple(given))
        self._check()

    @classmethod
    def of_model(
        cls,
        model: Any,
        head: Head,
        recipes: Recipe | Sequence[Recipe],
        seeds: Sequence[int],
        **fields: Any,
    ) -> TrainingJob:
        """Make the job of a Keras model or of an `EpistemicNetwork`.

        Values of a model that no seed decides, as those of frozen layers, become part of the
        job's `start`. The model serves as template in this process, so that training need not
        build it again; it is neither changed nor are its other weights used.

        Parameters
        ----------
        model : keras.Model or EpistemicNetwork
        head, recipes, seeds : as of the class
        **fields : dict
            Other fields of the job.
        """
        template = template_of_model(model)
        if fields.get("start") is None and template.holds_values:
            fields["start"] = [draw_variables(model, seed_words(seed).weights) for seed in seeds]
        per_member: Any = recipes, seeds
        return cls(template.network, head, *per_member, **fields)

    @property
    def recipe(self) -> Recipe:
        """The first recipe, for what all members share."""
        return self.recipes[0]

    @property
    def own_validation(self) -> bool:
        """Whether each member has validation rows of its own."""
        return self.splits is not None and self.splits[0][1] is not None

    def join_members(self, values: Sequence[Any]) -> Any:
        """Join the members' values to ``(.., *shape)``: with a member axis in a stack."""
        return np.stack(values) if self.stacked else values[0]

    def groups(self) -> list[TrainingJob]:
        """Divide a stack into jobs of equally many members, at least four each, if it can be.

        They can run at the same time, and share a program. How a stack is divided follows from
        its members alone, so that results are the same on every machine.
        """
        n_members = len(self.seeds)
        if not self.stacked or isinstance(self.start, TrainingState):
            return [self]
        sizes = range(_SMALLEST_GROUP, n_members)
        size = next((k for k in sizes if n_members % k == 0), n_members)
        return [self._group(slice(k, k + size)) for k in range(0, n_members, size)]

    def _group(self, members: slice) -> TrainingJob:
        fields = {name: getattr(self, name) for name in _MEMBER_FIELDS}
        taken = {name: value and value[members] for name, value in fields.items()}
        return replace(self, **taken)

    def _check(self) -> None:
        n_members = len(self.seeds)
        if not n_members:
            raise ValueError("A training job needs at least one seed.")
        if not self.stacked and n_members > 1:
            raise ValueError("Several seeds are for a stack: set `stacked=True`.")
        if not self.stacked and self.splits is not None:
            raise ValueError("`splits` are for a stack: set `stacked=True`.")
        for name in ("recipes", "splits", "start", "permutations"):
            given = getattr(self, name)
            if given is None or isinstance(given, TrainingState):
                continue
            if len(given) != n_members:
                raise ValueError(
                    f"`{name}` must have one entry a seed ({n_members}). Got {len(given)}."
                )
        reason = stack_conflict(self.recipes)
        if reason:
            raise ValueError(reason)
        sizes = {(len(a), None if b is None else len(b)) for a, b in self.splits or ()}
        if len(sizes) > 1:
            raise ValueError("All `splits` of a stack must have equally many rows of either kind.")
        if self.recipe.n_artificial and self.artificial is None:
            raise ValueError(
                f"A recipe with n_artificial={self.recipe.n_artificial} needs `artificial`, a "
                "function that draws these inputs."
            )
