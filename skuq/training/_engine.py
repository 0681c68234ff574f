"""Training networks: the host's side of the compiled program."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from skuq.backend import BACKEND, BoundedCache, compile_program, keras, to_host, to_tensors
from skuq.catalog._records import Member
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import make_plan, without_names
from skuq.tables._training_data import TrainingData
from skuq.training._blocks import Blocks
from skuq.training._network import make_network
from skuq.training._predict import predict_members
from skuq.training._program import ProgramKey, make_program, padded_rows, start_carry, table_rows
from skuq.training._recipe import Recipe
from skuq.training._tiers import worth_xla
from skuq.training._weights import draw_variables

__all__ = ["pad", "programs", "train_member", "train_stack"]

#: Every compiled training program of this process.
programs = BoundedCache(max_size=16)

# One call of a program should return within about this time, so that an interrupt or a
# deadline is seen; a call costs a millisecond.
_SLICE_SECONDS = 1.0
_NEVER = np.iinfo("int32").max
# What members of one stack may differ in, besides seed, rows and first weights.
_OWN = (
    "learning_rate",
    "reduce_lr_patience",
    "reduce_lr_factor",
    "early_stopping_patience",
    "clip_norm",
    "l2",
    "weight_decay",
    "dropout",
    "loss_settings",
    "rate_factors_of_layers",
)


def train_member(
    model: keras.Model,
    head,
    recipe: Recipe,
    data: TrainingData,
    seed: int,
    *,
    initial=None,
    permutation: Callable | None = None,
    jit: bool | None = None,
    padded: dict | None = None,
    cancelled: Callable | None = None,
    held_out: np.ndarray | None = None,
    artificial: Callable | None = None,
    report: Callable | None = None,
) -> Member:
    """Train one network from scratch; its best epoch becomes a member.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        A template; it is neither changed nor are its weights used.
    head : object
        Hashable, with `n_raw` and ``loss(y, raw)``. One whose loss has terms for inputs
        without targets also has ``row_loss(y, raw, settings)``, ``artificial_loss(raw,
        settings)`` and `detached`, the beginning of the names of those layers whose weights
        these two do not move (or None). Where its `sums_rows` is true, a batch's loss is the
        sum over its rows, not their mean.
    recipe : Recipe
    data : TrainingData
        Without validation rows the training loss is watched in their place.
    seed : int
        Decides first weights, batches and dropout.
    initial : tuple of (ndarray, list of ndarray), optional
        First weights (flat) and state, instead of drawing them.
    permutation : callable, optional
        ``permutation(n_train)`` gives each epoch's order of the rows, instead of a
        shuffle that `seed` decides.
    jit : bool, optional
        Compile through XLA or not; by default what is expected to end sooner.
    padded : dict, optional
        ``pad(data)``, when many networks train on the same data.
    cancelled : callable, optional
        Asked between slices; when it says True, training ends with InterruptedError.
    held_out : ndarray of shape (n_held_out, ...), optional
        Inputs that the trained network predicts for the record, instead of `data.x_valid`.
    artificial : callable, optional
        ``artificial(n, rng) -> (n, ...)``: standardised inputs without targets, drawn for
        every step where the recipe's `n_artificial` is not 0.
    report : callable, optional
        ``report(n_epochs)`` after each slice of a run: how many epochs it had.

    Raises
    ------
    FloatingPointError
        If no epoch had a finite loss.
    """
    (member,) = _train(
        model,
        head,
        [recipe],
        data,
        [seed],
        initial=initial and [initial],
        permutations=permutation and [permutation],
        jit=jit,
        padded=padded,
        cancelled=cancelled,
        held_out=held_out,
        artificial=artificial,
        report=report,
        stacked=False,
    )
    if isinstance(member, FloatingPointError):
        raise member
    return member


def train_stack(
    model: keras.Model,
    head,
    recipes: Recipe | Sequence[Recipe],
    data: TrainingData,
    seeds: Sequence[int],
    *,
    splits: Sequence[tuple[np.ndarray, np.ndarray]] | None = None,
    initial=None,
    permutations: Sequence[Callable] | None = None,
    jit: bool | None = None,
    padded: dict | None = None,
    cancelled: Callable | None = None,
    held_out: np.ndarray | None = None,
    artificial: Callable | None = None,
    report: Callable | None = None,
) -> list[Member | FloatingPointError]:
    """Train K networks of one architecture side by side, in one vectorised program.

    Every member becomes what `train_member` would have made of it, up to rounding: it
    has its own first weights, order of rows, learning rate, plateaus and early stopping.

    Parameters
    ----------
    recipes : Recipe or sequence of K
        They may differ in learning_rate, reduce_lr_patience, reduce_lr_factor,
        early_stopping_patience, clip_norm, l2, weight_decay, dropout, loss_settings and
        rate_factors_of_layers.
    seeds : sequence of K int
    splits : sequence of K pairs of (train rows, validation rows or None), optional
        Rows of ``data.x`` that each member trains and validates on, instead of all of
        them and ``data.x_valid`` (which None keeps). All members have equally many. Rows
        may repeat, as in a bootstrap sample.
    initial, permutations : sequence of K, optional
        For each member as in `train_member`.
    jit, padded, cancelled, held_out :
        As in `train_member`; `held_out` is not for members with validation rows of their own.
    artificial : callable, optional
        As in `train_member`; each member draws by its own seed.
    report : callable, optional
        As in `train_member`.

    Returns
    -------
    list of K Member or FloatingPointError
        An error stands for a member none of whose epochs had a finite loss.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.
    """
    seeds = list(seeds)
    recipes = [recipes] * len(seeds) if isinstance(recipes, Recipe) else list(recipes)
    _check_stack(recipes, seeds, splits, initial, permutations)
    return _train(
        model,
        head,
        recipes,
        data,
        seeds,
        splits=splits,
        initial=initial,
        permutations=permutations,
        jit=jit,
        padded=padded,
        cancelled=cancelled,
        held_out=held_out,
        artificial=artificial,
        report=report,
        stacked=True,
    )


def _check_stack(recipes, seeds, splits, initial, permutations):
    for name, given in (
        ("recipes", recipes),
        ("splits", splits),
        ("initial", initial),
        ("permutations", permutations),
    ):
        if given is not None and len(given) != len(seeds):
            raise ValueError(
                f"`{name}` must have one entry a seed ({len(seeds)}). Got {len(given)}."
            )
    if not seeds:
        raise ValueError("A stack needs at least one seed.")
    reason = why_not_together(recipes)
    if reason:
        raise ValueError(reason)
    sizes = {(len(a), None if b is None else len(b)) for a, b in splits or ()}
    if len(sizes) > 1:
        raise ValueError("All `splits` of a stack must have equally many rows of either kind.")


def why_not_together(recipes: Sequence[Recipe]) -> str:
    """What keeps recipes from being those of one stack; empty if nothing does."""
    for name in sorted(set(Recipe.field_names()) - set(_OWN)):
        values = {getattr(recipe, name) for recipe in recipes}
        if len(values) > 1:
            return f"The recipes of a stack must agree in `{name}`. Got {values}."
    for name in ("clip_norm", "dropout"):
        if len({getattr(recipe, name) is None for recipe in recipes}) > 1:
            return f"Either all recipes of a stack have a `{name}`, or none."
    if len({tuple(name for name, _ in recipe.loss_settings) for recipe in recipes}) > 1:
        return "The recipes of a stack must have `loss_settings` of the same names."
    return ""


def _train(
    model,
    head,
    recipes,
    data,
    seeds,
    *,
    stacked,
    splits=None,
    initial=None,
    permutations=None,
    jit=None,
    padded=None,
    cancelled=None,
    held_out=None,
    artificial=None,
    report=None,
):
    started = time.perf_counter()
    network, recipe, template = model.to_json(), recipes[0], _Template(model)
    if recipe.n_artificial and artificial is None:
        raise ValueError(
            f"A recipe with n_artificial={recipe.n_artificial} needs `artificial`, a function that "
            "draws these inputs."
        )
    n_members = len(seeds) if stacked else 0
    own_valid = splits is not None and splits[0][1] is not None
    sizes = [
        len(splits[0][0] if splits is not None else data.x),
        len(splits[0][1] if own_valid else data.x_valid),
    ]
    if jit is None:
        n_steps = recipe.epochs * -(-sizes[0] // recipe.batch_size)
        stops_early = recipe.early_stopping_patience is not None
        n_weights = sum(map(math.prod, template.shapes)) * len(seeds)
        jit = worth_xla(network, n_steps, n_weights, stops_early=stops_early)
    key = _program_key(model, network, head, recipes, data, sizes, n_members, own_valid, jit)

    entropy = [np.random.SeedSequence(seed).generate_state(4) for seed in seeds]
    initial = initial or [template.draw(int(words[0])) for words in entropy]
    permutations = permutations or [
        np.random.default_rng(int(words[1])).permutation for words in entropy
    ]
    if splits is not None:
        permutations = [
            functools.partial(_permuted, np.asarray(rows, dtype="int32"), permutation)
            for (rows, _), permutation in zip(splits, permutations)
        ]
    blocks_of = Blocks(template.shapes, key.jit)
    weights, states = zip(*initial)
    carry = start_carry(
        blocks_of.pack(np.asarray(_lead(weights, stacked), dtype="float32")),
        [_lead(values, stacked) for values in zip(*states)],
        key,
        _own(recipes, "learning_rate", stacked),
        _lead([words[2] for words in entropy], stacked),
    )
    padded = pad(data, splits if own_valid else None) if padded is None else padded
    scalars = _scalars(recipes, data, sizes, stacked)
    if key.rate_factors:
        factors = [recipe.factors_of(template.names) for recipe in recipes]
        scalars["rate_factors"] = blocks_of.spread(np.float32(_lead(factors, stacked)))
    draws = [
        functools.partial(artificial, rng=np.random.default_rng(int(words[3])))
        for words in (entropy if key.n_artificial else ())
    ]
    carry, history = _run(
        model, key, carry, padded, recipe, scalars, sizes[0], permutations, draws, cancelled, report
    )
    weights, states = to_host((carry["best_weights"], carry["best_state"]))
    weights = blocks_of.join(weights)
    seconds = (time.perf_counter() - started) / len(seeds)
    if not stacked:
        history, weights, states = history[..., None], weights[None], [s[None] for s in states]
    held_out = data.x_valid if held_out is None else held_out
    members = []
    for k, seed in enumerate(seeds):
        members.append(
            _member(
                network,
                weights[k],
                tuple(value[k] for value in states),
                history[..., k],
                recipes[k],
                seed,
                seconds,
                key,
                data.x[splits[k][1]] if own_valid else held_out,
            )
        )
    return members


class _Template:
    """A network to train: the shapes of its weights, and how they are drawn at first."""

    def __init__(self, model):
        if isinstance(model, EpistemicNetwork):
            network = make_network(model, model, 0)
            self.shapes, self.draw, self.names = network.shapes, network.draw, []
        else:
            self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
            self.draw = functools.partial(draw_variables, model)
            self.names = [variable.path for variable in model.trainable_variables]


def _program_key(model, network, head, recipes, data, sizes, n_members, own_validation, jit):
    n_train, n_valid = sizes
    recipe, plan = recipes[0], make_plan(network)
    if recipe.dropout is not None and (plan is None or not plan.n_dropouts):
        raise ValueError(
            "A recipe's `dropout` sets the rate of Dropout layers, and this network has none, or "
            "has layers that run through Keras. Give the rate to the layer instead."
        )
    scheduled = recipe.dropout_schedule != "constant"
    if scheduled and plan is None:
        raise ValueError(
            f"A recipe's dropout_schedule={recipe.dropout_schedule!r} is not for networks with "
            "layers that run through Keras, which know their own rate only."
        )
    # Full batches are padded like the rows, so that folds share a program; Keras' own
    # batch normalisation would take the padding for rows.
    is_keras = plan is None and not isinstance(model, EpistemicNetwork)
    batch = min(recipe.batch_size, n_train if is_keras else padded_rows(n_train))
    if is_keras:
        plan = without_names(network)
    return ProgramKey(
        network=plan or model.without_names(),
        head=head,
        optimizer=recipe.optimizer,
        batch_size=batch,
        input_shape=data.x.shape[1:],
        n_outputs=data.y.shape[1],
        n_rows=table_rows(len(data.x)),
        n_steps=-(-table_rows(n_train) // batch) if batch < n_train else 1,
        n_valid=padded_rows(n_valid) if n_valid else 0,
        jit=jit,
        n_members=n_members,
        own_validation=own_validation,
        clip=recipe.clip_norm is not None,
        l2=any(r.l2 for r in recipes),
        decay=any(r.weight_decay for r in recipes),
        dropout=recipe.dropout is not None,
        adversarial=recipe.adversarial_epsilon > 0,
        momentum=recipe.momentum,
        n_artificial=recipe.n_artificial,
        n_draws=recipe.n_draws,
        detached=_detached(model, head) if recipe.n_artificial else (),
        beta_2=recipe.beta_2,
        dropout_schedule=scheduled and plan.n_dropouts > 0,
        rate_factors=any(r.rate_factors_of_layers for r in recipes),
    )


def _detached(model, head):
    """Positions of the variables that a head's uncertainty terms do not move."""
    if head.detached is None:
        return ()
    names = [variable.path for variable in model.trainable_variables]
    return tuple(k for k, name in enumerate(names) if name.startswith(head.detached))


def _lead(values, stacked):
    """The members' values with a member axis, or the only one's without."""
    return np.stack(values) if stacked else values[0]


def _own(recipes, name, stacked, dtype="float32", none=0):
    values = [getattr(recipe, name) for recipe in recipes]
    values = [none if value is None else min(value, _NEVER) for value in values]
    return np.asarray(_lead(values, stacked), dtype=dtype)


def _scalars(recipes, data, sizes, stacked):
    own = functools.partial(_own, recipes, stacked=stacked)
    scalars = {
        "n_valid": np.int32(sizes[1]),
        "keep_last": np.bool_(recipes[0].keep == "last"),
        "reduce_lr_patience": own("reduce_lr_patience", dtype="int32", none=_NEVER),
        "reduce_lr_factor": own("reduce_lr_factor"),
        "early_stopping_patience": own("early_stopping_patience", dtype="int32", none=_NEVER),
        "clip": own("clip_norm"),
        "l2": own("l2"),
        "weight_decay": own("weight_decay"),
        "dropout": own("dropout"),
    }
    if recipes[0].n_artificial:
        values = [dict(recipe.loss_settings) for recipe in recipes]
        scalars["settings"] = {
            name: np.float32(_lead([own[name] for own in values], stacked)) for name in values[0]
        }
    if recipes[0].adversarial_epsilon:
        scalars["adversarial"] = np.float32(recipes[0].adversarial_epsilon * np.ptp(data.x, axis=0))
    return scalars


def _permuted(rows, permutation, n_rows):
    return rows[permutation(n_rows)]


def _run(
    model, key, carry, padded, recipe, scalars, n_train, permutations, draws, cancelled, report
):
    """All epochs, in slices of about a second; the history is (n_epochs, 3, ..)."""
    batch = key.batch_size
    n_steps = -(-n_train // batch)
    n_real = np.minimum(batch, n_train - batch * np.arange(n_steps))  # of each batch
    shares = np.zeros((key.n_steps, batch), dtype="float32")
    for step, n in enumerate(n_real):
        shares[step, :n] = 1 if getattr(key.head, "sums_rows", False) else 1 / n
    step_shares = np.zeros(key.n_steps, dtype="float32")
    step_shares[:n_steps] = n_real / n_train
    fixed = {"shares": shares.ravel(), "step_shares": step_shares}
    history, done, seconds_per_epoch = [], 0, np.inf
    while done < recipe.epochs:
        if cancelled is not None and cancelled():
            raise InterruptedError("Training was cancelled.")
        n_epochs = int(np.clip(_SLICE_SECONDS / seconds_per_epoch, 1, key.epochs_per_call))
        n_epochs = min(n_epochs, recipe.epochs - done)
        schedules = _schedules(key, recipe, done, n_epochs, n_steps)
        plan = {**fixed, "orders": _orders(key, n_epochs, n_train, permutations), **schedules}
        if key.n_artificial:
            plan["artificial"] = _artificial(key, n_epochs, n_steps, draws)
        counts = {"n_steps": np.int32(n_steps), "n_epochs": np.int32(n_epochs)}
        arguments = to_tensors((carry, padded, plan, {**scalars, **counts}))
        program = programs.get(key, functools.partial(_compiled, model, key, arguments))
        started = time.perf_counter()
        carry, rows, stopped = _call(program, arguments)
        if done or not key.jit:  # XLA compiles in its first call
            seconds_per_epoch = (time.perf_counter() - started) / n_epochs
        history.append(rows[:n_epochs])
        done += n_epochs
        if report is not None:
            report(n_epochs)
        if stopped:
            break
    return carry, np.concatenate(history)


def _schedules(key, recipe, done, n_epochs, n_steps):
    """Factors of what changes from step to step, (epochs_per_call, n_steps) each."""
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


def _orders(key, n_epochs, n_train, permutations):
    """Row numbers of each epoch's batches, (epochs_per_call, .., n_steps * batch_size)."""
    orders = np.zeros(
        (key.epochs_per_call, len(permutations), key.n_steps * key.batch_size), dtype="int32"
    )
    width = -(-n_train // key.batch_size) * key.batch_size
    for epoch in orders[:n_epochs]:
        for order, permutation in zip(epoch, permutations):
            # The last batch is filled up with rows from the start of the epoch. They
            # have no share in the loss.
            order[:width] = np.resize(permutation(n_train), width)
    return orders if key.n_members else orders[:, 0]


def _artificial(key, n_epochs, n_steps, draws):
    """Inputs of each step, (epochs_per_call, n_steps, .., n_artificial, *input_shape)."""
    shape = (len(draws), key.n_artificial, *key.input_shape)
    inputs = np.zeros((key.epochs_per_call, key.n_steps, *shape), dtype="float32")
    for epoch in inputs[:n_epochs, :n_steps]:
        for k, draw in enumerate(draws):
            drawn = draw(n_steps * key.n_artificial)
            epoch[:, k] = np.reshape(drawn, (n_steps, *shape[1:]))
    return inputs if key.n_members else inputs[:, :, 0]


def _call(program, arguments):
    """One slice: the new carry, and on the host its history and whether all have stopped."""
    carry, rows = program(*arguments)
    rows, stopped = to_host((rows, carry["stopped"]))
    return carry, rows, stopped.all()


def _compiled(model, key, arguments):
    return compile_program(make_program(model, key, BACKEND), arguments, jit=key.jit)


def _member(network, weights, state, history, recipe, seed, seconds, key, held_out):
    """The record of one member, from its history (n_epochs, 3)."""
    history = history[~np.isnan(history[:, 2])]  # epochs that were run have a learning rate
    watched = history[:, 1] if key.n_valid else history[:, 0]
    finite = np.isfinite(watched)
    if not finite.any():
        what = "validation loss" if key.n_valid else "training loss"
        return FloatingPointError(
            f"Training diverged: no finite {what} in {len(history)} epochs "
            f"(optimizer={recipe.optimizer}, learning_rate={recipe.learning_rate:.3g})."
        )
    member = Member(
        network=network,
        weights=weights,
        state=state,
        history=dict(zip(("loss", "val_loss", "learning_rate"), history.T)),
        best_epoch=int(len(watched) - 1 if recipe.keep == "last" else np.nanargmin(watched)),
        held_out=None,
        seed=seed,
        seconds=seconds,
        tier="xla" if key.jit else "graph",
    )
    if not np.isfinite(weights).all():
        return FloatingPointError(
            "Training diverged: the last epoch's weights are not finite "
            f"(optimizer={recipe.optimizer}, learning_rate={recipe.learning_rate:.3g})."
        )
    if isinstance(key.network, EpistemicNetwork):  # who has no predictions but its draws
        return member
    if not len(held_out):  # some of Keras' layers fail on no rows
        return member.with_held_out(np.empty((0, key.head.n_raw), dtype="float32"))
    raw = predict_members([member], held_out, once=True)[0]
    return member.with_held_out(raw.astype("float32"))


def pad(data: TrainingData, splits=None) -> dict:
    """The data as tensors: rows of x, y and weight joined, padded to the ladder with zeros."""
    table = _joined(data.x, data.y, data.weight)
    if splits is not None:
        valid = np.stack([table[rows] for _, rows in splits])
    else:
        valid = _joined(data.x_valid, data.y_valid, data.weight_valid)
    tables = {"table": _padded(table, table_rows(len(table)))}
    if valid.shape[-2]:
        tables["valid"] = _padded(valid, padded_rows(valid.shape[-2]))
    return to_tensors(tables)


def _joined(x, y, weight):
    return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])), y, weight[:, None]], axis=1)


def _padded(table, n_rows):
    extra = [(0, 0)] * (table.ndim - 2) + [(0, n_rows - table.shape[-2]), (0, 0)]
    return np.pad(table, extra)
