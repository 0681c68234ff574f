"""Arguments of a training program: its key, its data as tensors, and its random numbers.

The key of a program is everything its compilation depends on. Batch orders and artificial inputs
are drawn on the host.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from skuq import backend
from skuq._params import refuse
from skuq.backend import BoundedCache
from skuq.networks._heads import Head
from skuq.networks._keras_models import own_classes, rebuild
from skuq.networks._operator_network import EpistemicNetwork
from skuq.networks._plan import Plan, make_plan, without_names
from skuq.tables._splits import TrainingData
from skuq.training._network_checks import DrawingNetwork, draw_variables, has_fixed_values
from skuq.training._recipe import Recipe, stack_conflict

_ORDER_ENTRIES = 2**20  # row numbers sent with one call: 4 MB
_MAX_EPOCHS_PER_CALL = 64  # of a compiled program


@dataclass(frozen=True)
class ProgramKey:
    """Everything that a program's compilation depends on: equal keys share one program."""

    network: Plan | EpistemicNetwork | str  # str: JSON of a Keras model without a plan, no names
    head: Head
    optimizer: tuple[str, float, float, float]  # with momentum, beta_2 and epsilon
    batch_size: int
    input_shape: tuple[int, ...]
    n_outputs: int  # columns of y
    n_rows: int  # padded rows of the table that batches are taken from
    n_steps: int  # steps of one epoch, for the padded number of training rows
    n_valid: int  # padded number of validation rows; 0 without any
    jit: bool
    n_members: int = 0  # 0: one network, without a member axis
    own_validation: bool = False  # every member has validation rows of its own
    clip: bool = False  # this and the next flags: some recipe has clip_norm, l2, weight_decay
    l2: bool = False
    decay: bool = False
    dropout: bool = False  # the recipe's dropout rate, an argument, replaces the layers' own
    adversarial: bool = False
    n_artificial: int = 0  # inputs without targets in every step
    n_draws: int = 0  # epistemic indices in every step
    detached: tuple[int, ...] = ()  # variables without gradient from the head's uncertainty terms
    dropout_schedule: bool = False
    rate_factors: bool = False  # variables have factors of the learning rate
    calibrates: bool = False  # validation is at the best temperature
    own_classes: tuple[Any, ...] = ()  # the user's classes that the network's JSON only names

    @property
    def lead(self) -> tuple[int, ...]:
        """Shape of the member axis: (n_members,), or () for one network."""
        return (self.n_members,) if self.n_members else ()

    @property
    def epochs_per_call(self) -> int:
        """Largest number of epochs in one call, which bounds the batch orders sent with it."""
        numbers = self.batch_size + self.n_artificial * math.prod(self.input_shape)
        width = self.n_steps * numbers * max(1, self.n_members)
        return max(1, min(_MAX_EPOCHS_PER_CALL, _ORDER_ENTRIES // width))


_LEAST_ROWS = 8  # to which fewer rows are padded


def padded_rows(n_rows: int) -> int:
    """Round up to a ladder of sizes, four between a power of two and the next: by at most 25%."""
    if n_rows <= _LEAST_ROWS:
        return _LEAST_ROWS
    step: int = 2 ** (math.ceil(math.log2(n_rows)) - 3)
    return step * math.ceil(n_rows / step)


def full_batch_rows(n_rows: int, *, few: int = 128) -> int:
    """Round up to the size of a batch of all rows: a power of two for few rows, or the ladder.

    A data set that grows row by row, as in Bayesian optimisation, compiles a program for each size.
    With so few rows a step takes little longer for the padding: a fifth, if networks are large.
    """
    return table_rows(n_rows) if n_rows <= few else padded_rows(n_rows)


def table_rows(n_rows: int, *, small: int = 2**14) -> int:
    """Round up to the size of a table of training rows: a power of two of small tables.

    Padding of this table costs only memory. A data set that grows row by row, as in Bayesian
    optimisation, then compiles only each time that it doubles.
    """
    return padded_rows(2 ** math.ceil(math.log2(max(n_rows, 1))) if n_rows <= small else n_rows)


class HostStreams:
    """Random generators of each member, for its batches and its artificial inputs."""

    def __init__(self, job: TrainingJob):
        self._splits, self._artificial = job.splits, job.artificial
        words = [seed_words(seed) for seed in job.seeds]
        self._shuffles = [np.random.default_rng(word.orders) for word in words]
        self._artificial_rngs = [np.random.default_rng(word.artificial) for word in words]
        self._permutations = job.permutations

    def orders(self, key: ProgramKey, n_epochs: int, n_rows: int, n_train: int) -> np.ndarray:
        """Draw the row numbers of each epoch's batches.

        The result has shape (epochs_per_call, .., n_steps * batch_size).
        """
        shape = (key.epochs_per_call, len(self._shuffles), key.n_steps * key.batch_size)
        orders = np.zeros(shape, dtype="int32")
        # Whole batches, as the program reads them.
        width = math.ceil(n_train / key.batch_size) * key.batch_size
        for epoch in orders[:n_epochs]:
            for k, order in enumerate(epoch):
                # `n_train` of the member's rows, in random order.
                if self._permutations is not None:
                    rows = self._permutations[k](n_rows)[:n_train]
                elif n_train == n_rows:
                    rows = self._shuffles[k].permutation(n_rows)
                else:
                    rows = self._shuffles[k].choice(n_rows, n_train, replace=False)
                if self._splits is not None:
                    rows = np.asarray(self._splits[k][0])[rows]
                # The last batch is padded with rows from the start of the epoch, whose share in
                # the loss is zero.
                order[:width] = np.resize(rows, width)
        return orders if key.n_members else orders[:, 0]

    def artificial(self, key: ProgramKey, n_epochs: int, n_steps: int) -> np.ndarray:
        """Draw the artificial inputs of each member in each step of `n_epochs` epochs.

        The result has the program's shape, (epochs_per_call, key.n_steps, .., n_artificial,
        *input_shape); epochs and steps that are not run are 0.
        """
        shape = (len(self._artificial_rngs), key.n_artificial, *key.input_shape)
        inputs = np.zeros((key.epochs_per_call, key.n_steps, *shape), dtype="float32")
        for epoch in inputs[:n_epochs, :n_steps]:
            # One call for all steps of the epoch.
            for k, rng in enumerate(self._artificial_rngs):
                drawn = self._artificial(n_steps * key.n_artificial, rng=rng)
                epoch[:, k] = np.reshape(drawn, (n_steps, *shape[1:]))
        return inputs if key.n_members else inputs[:, :, 0]


# Tensors live as long as the data that they were made of.
_tensors: WeakKeyDictionary[TrainingData, dict[str, Any]] = WeakKeyDictionary()
_lock = threading.Lock()  # groups of members that start together share one copy


def data_tensors(data: TrainingData, splits: Sequence[Split] | None = None) -> dict[str, Any]:
    """Get the tables of a program: columns of x, y and weight joined, rows padded with zeros.

    Returns `table` (n_rows, inputs + outputs + 1), and `valid` if there are validation rows. With
    `splits`, each member has validation rows of its own: `valid` (n_members, n_valid, ..).
    """
    with _lock:
        shared = _tensors.get(data)
        if shared is None:
            tables = {"table": _pad_rows(_join_columns(data.x, data.y, data.weight), table_rows)}
            if len(data.x_valid):
                rows = _join_columns(data.x_valid, data.y_valid, data.weight_valid)
                tables["valid"] = _pad_rows(rows, padded_rows)
            shared = _tensors[data] = backend.to_tensors(tables)
    if splits is None:
        return shared
    tensors = {"table": shared["table"]}
    # Members train on rows of one table, but each has its own validation rows.
    rows = _join_columns(data.x, data.y, data.weight)
    valid = np.stack([rows[held_out] for _, held_out in splits])
    if valid.shape[-2]:
        tensors["valid"] = backend.to_tensors(_pad_rows(valid, padded_rows))
    return tensors


def _join_columns(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])), y, weight[:, None]], axis=1)


def _pad_rows(table: np.ndarray, size: Callable[[int], int]) -> np.ndarray:
    n_rows = table.shape[-2]
    return np.pad(table, [(0, 0)] * (table.ndim - 2) + [(0, size(n_rows) - n_rows), (0, 0)])


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
    """Make the key under which a job's program is compiled and cached."""
    recipes, recipe, plan = job.recipes, job.recipe, template.plan
    _check_recipe(recipe, template, job.head)
    # A full batch is padded, so that folds of slightly different size, and the steps of a search,
    # share a program. Networks that run through Keras are not padded: batch normalisation there
    # would count the padding as rows.
    through_keras = plan is None and not template.is_epistemic
    n_rows = sizes.n_train if through_keras else full_batch_rows(sizes.n_train)
    batch = min(recipe.batch_size, n_rows)
    # Variables that get no gradient from the head's terms for artificial inputs.
    prefix = job.head.detached if recipe.n_artificial else None
    detached = [k for k, name in enumerate(template.names) if prefix and name.startswith(prefix)]
    return ProgramKey(
        network=template.identity,
        head=job.head,
        optimizer=(recipe.optimizer, recipe.momentum, recipe.beta_2, recipe.epsilon),
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
        n_artificial=recipe.n_artificial,
        n_draws=recipe.n_draws,
        detached=tuple(detached),
        calibrates=recipe.keep == "best-calibrated",
        # Without Dropout layers a schedule changes nothing and would only compile a new program.
        dropout_schedule=(
            recipe.dropout_schedule != "constant" and plan is not None and plan.n_dropouts > 0
        ),
        rate_factors=any(
            r.rate_factors_of_layers or (rate_factors(r, template, data) != 1).any()
            for r in recipes
        ),
        own_classes=own_classes(template.network),
    )


def rate_factors(recipe: Recipe, template: Template, data: TrainingData) -> np.ndarray:
    """Compute the factor of the learning rate of each variable (n_variables,)."""
    factors, rate = np.asarray(recipe.factors_of(template.names)), recipe.learning_rate
    kernels = [] if template.plan is None else list(template.plan.input_kernels)
    largest = recipe.largest_input_step
    if kernels and largest is not None and rate * data.x.shape[1] > largest:
        # One step moves the weights of all columns that vary together by about the rate.
        factors[kernels] *= min(1.0, largest / (rate * data.n_alike))
    return factors


def _check_recipe(recipe: Recipe, template: Template, head: Head) -> None:
    """Raise ValueError if the recipe sets what the network or the head does not have."""
    plan = template.plan
    problems = {
        f'keep="best-calibrated" needs logits of classes. Got {type(head).__name__}. Use '
        'keep="best-jointly".': recipe.keep == "best-calibrated" and not head.classifies,
        f"A recipe's `dropout` sets the rate of Dropout layers. Got dropout={recipe.dropout} for "
        "a network without Dropout layers, or with layers that run through Keras. Give the rate "
        "to the layers instead.": (
            recipe.dropout is not None and (plan is None or not plan.n_dropouts)
        ),
        f"A recipe's dropout_schedule={recipe.dropout_schedule!r} cannot be used for networks "
        "with layers that run through Keras: their Dropout layers have fixed rates. Set "
        'dropout_schedule="constant".': recipe.dropout_schedule != "constant" and plan is None,
    }
    refuse(problems)


def scalars_of(job: TrainingJob, data: TrainingData, sizes: Sizes) -> dict[str, Any]:
    """Collect the numbers that a compiled program takes from recipes as arguments.

    Each has shape (n_members,) in a stack, or () for one network.
    """

    def per_member(name: str, dtype: str = "float32", none: int = 0) -> np.ndarray:
        """Join one field of all recipes; `none` stands for None and for "cycle"."""
        values = [getattr(recipe, name) for recipe in job.recipes]
        # None becomes a patience that no run exhausts, or a 0 that the program does not use.
        values = [none if value in (None, "cycle") else min(value, _NEVER) for value in values]
        return np.asarray(job.join_members(values), dtype=dtype)

    scalars: dict[str, Any] = {
        "n_valid": np.int32(sizes.n_valid),
        "keep_last": np.bool_(job.recipe.keep == "last"),
        "keep_jointly": np.bool_(job.recipe.keeps_jointly),
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
    if job.recipe.loss_settings:  # the weights of the head's losses, or of their terms
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
        shares[step, :n] = 1 if key.head.sums_rows else 1 / n
    step_shares = np.zeros(key.n_steps, dtype="float32")
    step_shares[:n_steps] = n_real / n_train
    return {"shares": shares.ravel(), "step_shares": step_shares}


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
        if any(layer.weights and not layer.trainable for layer in backend.flatten_layers(model)):
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
    return _templates.get((network, own_classes(network)), lambda: Template(network, model))


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
    share : float, default=1
        Share of the epochs that is planned; schedules are completed within it.
    epoch_seconds : float, optional
        Measured time of an epoch, by which jobs that train together divide a limit of time.

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
    share: float = 1.0
    epoch_seconds: float | None = None

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

    @property
    def n_planned(self) -> int:
        """Number of epochs that is planned, at least one."""
        return max(1, int(self.share * self.recipe.epochs))

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
