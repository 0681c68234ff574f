"""Describe a training run (`TrainingJob`), its templates, and its state between two epochs.

A template is a network without weights, from which runs start. Building a Keras model takes
longer than many training steps, so that a process caches the templates it used last, by the
network's configuration.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.backend import BoundedCache
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._heads import Head
from skuq.networks._keras_models import own_classes, rebuild
from skuq.networks._plan import Plan, make_plan, without_names
from skuq.tables._splits import TrainingData
from skuq.training._networks import DrawingNetwork, draw_variables, has_fixed_values
from skuq.training._recipe import Recipe, stack_conflict

#: Flat trainable weights (n_weights,) and the non-trainable variables.
FirstValues = tuple[np.ndarray, list[np.ndarray]]

# One template for each thread of a search is enough.
_templates = BoundedCache(max_size=8, collects=False)


class Template:
    """A network to train: shapes and names of its weights, and a method that draws them.

    Parameters
    ----------
    network : str
        Configuration as JSON.
    model : keras.Model or EpistemicNetwork
        Model of that configuration. Its own weights are not used, except by `has_fixed_values`.

    Attributes
    ----------
    plan : Plan or None
        None if the network runs through Keras' own layers, or is epistemic.
    shapes : list of tuple of int
        Shapes of the trainable variables, in Keras' order.
    names : list of str
        Paths of these variables; empty for an epistemic network.
    has_fixed_values : bool
        Whether the model has variables that are not drawn from a seed: those of frozen layers, or
        without an initializer.
    drawing : DrawingNetwork
        Computes the draws of an epistemic network; others have none.
    """

    def __init__(self, network: str, model: Any):
        self.network, self.model = network, model
        self.plan: Plan | None = None
        self.names: list[str] = []
        self.has_fixed_values = False
        self.is_epistemic = isinstance(model, EpistemicNetwork)
        if self.is_epistemic:
            self.drawing = DrawingNetwork(model)
            self.shapes = self.drawing.shapes
        else:
            self.plan = make_plan(network)
            variables = model.trainable_variables
            self.shapes = [tuple(variable.shape) for variable in variables]
            self.names = [variable.path for variable in variables]
            self.has_fixed_values = has_fixed_values(model)

    @functools.cached_property
    def identity(self) -> Plan | EpistemicNetwork | str:
        """Hashable description of the network, without the names of its layers."""
        if self.is_epistemic:
            return self.model.without_names()
        return self.plan or without_names(self.network)

    def draw(self, seed: int) -> FirstValues:
        """Draw first weights and state from the configuration's initializers."""
        if self.is_epistemic:
            return self.drawing.draw(seed)
        if not self.has_fixed_values:
            return draw_variables(self.model, seed)
        model = rebuild(self.network)  # the values of `self.model` may have been changed
        if any(layer.weights and not layer.trainable for layer in model._flatten_layers()):
            raise ValueError(
                "The network has frozen layers, whose values its configuration does not hold. "
                "Make the job with `TrainingJob.of_model`, or give `start`."
            )
        return draw_variables(model, seed)


def template_of(network: str) -> Template:
    """Get the template of a configuration from this process' cache, or make it."""
    is_epistemic = json.loads(network)["class_name"] == EpistemicNetwork.__name__
    read = EpistemicNetwork.from_json if is_epistemic else rebuild
    return _templates.get((network, own_classes(network)), lambda: Template(network, read(network)))


def template_of_model(model: Any) -> Template:
    """Get the template of a model, and cache it for jobs with the same configuration."""
    network = model.to_json()
    key = network, own_classes(network)
    return _templates.get(key, lambda: Template(network, model))


_SMALLEST_GROUP = 4  # members; smaller stacks lose more to overhead than a second core gains
_MEMBER_FIELDS = ("recipes", "seeds", "splits", "start", "permutations")  # one entry a member

#: ``(train rows, validation rows or None)`` of one member.
Split = tuple[np.ndarray, np.ndarray | None]


def pad_splits(
    data: TrainingData, splits: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[TrainingData, list[Split]]:
    """Pad splits to equally many rows, as stacks need, with the number of a row of weight 0.

    Returns the data with that row as its last one, and the splits.
    """
    largest = [max(map(len, rows)) for rows in zip(*splits)]
    padded: list[Any] = [
        tuple(
            np.pad(rows, (0, size - len(rows)), constant_values=len(data.x))
            for rows, size in zip(split, largest)
        )
        for split in splits
    ]
    x, y, weight = (
        np.concatenate([a, np.zeros_like(a[:1])]) for a in (data.x, data.y, data.weight)
    )
    return replace(data, x=x, y=y, weight=weight), padded


@dataclass(frozen=True)
class SeedWords:
    """Seeds of one member's streams of random numbers."""

    weights: int
    orders: int
    noise: int
    artificial: int


def seed_words(seed: int) -> SeedWords:
    """Derive the seeds of a member's random streams from the member's seed."""
    return SeedWords(*map(int, np.random.SeedSequence(seed).generate_state(4)))


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """Everything that determines a training run except its data; it can be pickled.

    Parameters
    ----------
    network : str
        Configuration of a Keras model or of an `EpistemicNetwork`, as JSON.
    head : Head
        Hashable, with `n_raw` and ``loss(y, raw)``. A head whose loss has terms for artificial
        inputs (without targets) also has ``row_loss(y, raw, settings)``,
        ``artificial_loss(raw, settings)`` and `detached`: layers whose names begin with it get no
        gradient from these two terms (None: all layers do). If its `sums_rows` is true, a
        batch's loss is the sum over its rows instead of their mean.
    recipes : Recipe or sequence of Recipe
        One for each member; a single one is used for all. Recipes of a stack may differ in
        learning_rate, reduce_lr_patience, reduce_lr_factor, early_stopping_patience, clip_norm,
        l2, weight_decay, dropout, loss_settings and rate_factors_of_layers.
    seeds : sequence of int
        One for each member. A seed determines first weights, batch orders and dropout.
    stacked : bool, default=False
        Train the members as one program with a member axis. By default there is one member.
    splits : sequence of (train rows, validation rows or None), optional
        Rows of ``data.x`` that each member of a stack trains and validates on, equally many for
        every member. Rows may repeat, as in a bootstrap sample. None for the validation rows
        means ``data.x_valid``. By default all members train on all of ``data.x``.
    start : sequence of (ndarray, list of ndarray), optional
        First weights (flat) and state of each member. By default first weights are drawn.
    artificial : callable, optional
        ``artificial(n, rng) -> (n, ...)`` draws standardised inputs without targets. It is needed
        if the recipe's `n_artificial` is positive, and called for every step.
    held_out : ndarray of shape (n_held_out, ...), optional
        Inputs whose predictions are stored with each member, by default ``data.x_valid``. Members
        with validation rows of their own predict those.
    permutations : sequence of callable, optional
        For each member ``permutation(n_train)``, called once an epoch for the order of the rows,
        by default a shuffle determined by the seed.
    jit : bool, optional
        Compile through XLA (True) or as a plain graph (False); by default the tier that is
        expected to finish first.
    n_alike : int, default=1
        Number of jobs that share this job's program, itself included. The default of `jit`
        counts their steps, because the program is compiled only once.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.

    Examples
    --------
    >>> from skuq.backend import keras
    >>> from skuq.networks import GaussianHead
    >>> from skuq.training import Recipe, TrainingJob
    >>> dense = keras.layers.Dense
    >>> model = keras.Sequential([keras.Input((1,)), dense(8, "relu"), dense(2)])
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(), seeds=[0, 1], stacked=True)
    >>> job.seeds, job.recipe.epochs
    ((0, 1), 100)
    """

    network: str
    head: Head
    recipes: tuple[Recipe, ...]
    seeds: tuple[int, ...]
    stacked: bool = False
    splits: tuple[Split, ...] | None = None
    start: tuple[FirstValues, ...] | None = None
    artificial: Any = None
    held_out: np.ndarray | None = None
    permutations: tuple[Callable[[int], Any], ...] | None = None
    jit: bool | None = None
    n_alike: int = 1

    def __post_init__(self) -> None:
        n_members = len(self.seeds)
        if isinstance(self.recipes, Recipe):
            object.__setattr__(self, "recipes", (self.recipes,) * n_members)
        if not self.stacked and n_members > 1:
            raise ValueError(
                f"`seeds` must have one entry unless `stacked=True`. Got {n_members} entries."
            )
        for name in _MEMBER_FIELDS:
            given = getattr(self, name)
            if given is None:
                continue
            object.__setattr__(self, name, tuple(given))
            if len(given) != n_members:
                raise ValueError(
                    f"`{name}` must have one entry for each seed ({n_members}). Got {len(given)}."
                )
        reason = stack_conflict(self.recipes)
        if reason:
            raise ValueError(reason)

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

        The job draws its first weights from the seeds. Those of the model are used only where no
        seed determines them, as in frozen layers: then the drawn and the fixed weights together
        are the job's `start`. The model is not changed; it is kept as a template in this process,
        so that training need not build it again.

        Parameters
        ----------
        model : keras.Model or EpistemicNetwork
        head, recipes, seeds :
            See the class.
        **fields : dict
            Other fields of the job.
        """
        template = template_of_model(model)
        if fields.get("start") is None and template.has_fixed_values:
            fields["start"] = [draw_variables(model, seed_words(seed).weights) for seed in seeds]
        # `__post_init__` makes tuples of recipes and seeds, one for each member.
        per_member: Any = recipes, seeds
        return cls(template.network, head, *per_member, **fields)

    @property
    def recipe(self) -> Recipe:
        """The first recipe: use it for settings that all members share."""
        return self.recipes[0]

    @property
    def own_validation(self) -> bool:
        """Whether each member has validation rows of its own."""
        return self.splits is not None and self.splits[0][1] is not None

    def join_members(self, values: Sequence[Any]) -> Any:
        """Join one value for each member into ``(.., *shape)``, with a member axis in a stack."""
        return np.stack(values) if self.stacked else values[0]

    @staticmethod
    def joined(jobs: Sequence[TrainingJob]) -> TrainingJob:
        """Join stacks that differ in their members only."""
        fields = {name: [getattr(job, name) or () for job in jobs] for name in _MEMBER_FIELDS}
        members: dict[str, Any] = {name: sum(parts, ()) or None for name, parts in fields.items()}
        return replace(jobs[0], **members)

    def groups(self) -> list[TrainingJob]:
        """Divide a stack into jobs of equally many members, at least four each.

        The jobs can run at the same time and share a program. A stack that cannot be divided so
        is returned whole. The division depends only on the number of members, so that results
        are the same on every machine.
        """
        n_members = len(self.seeds)
        if not self.stacked:
            return [self]
        sizes = range(_SMALLEST_GROUP, n_members)
        # The smallest size that divides the stack, or the whole stack.
        size = next((k for k in sizes if n_members % k == 0), n_members)
        fields = {name: getattr(self, name) for name in _MEMBER_FIELDS}
        n_alike = self.n_alike * (n_members // size)  # groups share one program
        return [
            replace(
                self,
                **{name: value and value[k : k + size] for name, value in fields.items()},
                n_alike=n_alike,
            )
            for k in range(0, n_members, size)
        ]
