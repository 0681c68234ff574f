"""Train the networks of one fit: recipe, folds, warm starts, refinement, and learnt widths.

`OperatorTrainer` holds the data and trains networks. `train_epinet` and `train_ensemble` train
those whose draws come from gradient steps alone. `train_bases` trains those that
`_neon_conditioned` goes on with.

Notation: n functions, each known at q query points, with m outputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from scipy.stats import rankdata

from skuq import training
from skuq._messages import warn_user
from skuq._random import generator, quasi_random_normals, trial_seed
from skuq.fitted._fitted_operator import IndexDraws, MemberDraws
from skuq.networks import Member
from skuq.networks._keras_models import rebuild
from skuq.networks._operations import ARRAYS
from skuq.networks._operator_network import PRIOR_SCALE, EpistemicNetwork, OperatorHead
from skuq.predictive._calibration import fit_factor_and_floor
from skuq.tables import TrainingData
from skuq.training import Recipe, Training
from skuq.training._job import seed_words, template_of_model
from skuq.training._predict import predict_draws, read_network, refine
from skuq.training._train import find_completed, has_diverged

#: Number of folds; a network that learns the noise leaves out one.
N_FOLDS = 5
#: Fewer functions are too few to leave some out and learn the noise.
FEWEST_FUNCTIONS = 30
#: Settings of `Training` that regressors of functions use.
TRAINING_FIELDS = set(Training().get_params()) - {"adversarial_epsilon", "l2", "weight_decay"}

#: Fewest functions with a known noise of which networks leave out a fifth.
FEWEST_WITH_NOISE = N_FOLDS

# Largest number of steps of the networks that a warm start learns a scale from. With 500 steps
# their errors can be so much larger than after full training that deviations are twice too wide.
_SCALE_STEPS = 2000

# Number of steps that `epochs="auto"` stands for.
_STEPS = 12_000

# Share of the epochs, and least number of them, after which a network stops that has not improved
# on the functions it leaves out.
_PATIENCE, _SHORTEST_PATIENCE = 0.25, 10


@dataclass(frozen=True, eq=False)
class OperatorTrainer:
    """Trains the networks of one fit, on its data and with its settings.

    Attributes
    ----------
    base : OperatorNetwork, str or None
        Base network, as `EpistemicNetwork` has it; None with a given base.
    head : OperatorHead
    data : TrainingData
        Rows are pairs of a function's input and a query point, all pairs of a function together.
    n_queries : int
        Rows of one function.
    recipe : Recipe
    by_function : bool
        Whether batches hold whole functions.
    entropy : int
        Seed of all random numbers of the fit.
    weight : ndarray of shape (n_functions,)
        Weights of the functions.
    learns_noise : bool
        Whether functions are left out to learn the noise and the scale of the epistemic part.
    noise : ndarray of shape (1, m) or (q, m)
        Known standard deviation of the noise of standardised values; 0 where it is learnt.
    expects_none : bool, default=False
        Whether values count as free of noise because functions are too few to learn it.
    refine : bool, default=False
        Whether to `refine` the members.
    previous : draws of the previous fit, optional
        Training starts from the weights of their members.
    report : callable, optional
        Gets the number of epochs that were trained, and of those left.
    """

    base: Any
    head: OperatorHead
    data: TrainingData
    n_queries: int
    recipe: Recipe
    by_function: bool
    entropy: int
    weight: np.ndarray
    learns_noise: bool
    noise: np.ndarray
    expects_none: bool = False
    refine: bool = False
    previous: Any = None
    report: Callable[[int, int], Any] | None = None

    def train(
        self, network: EpistemicNetwork, n_members: int, left_out: Any = None, validate: Any = False
    ) -> list[Member | FloatingPointError]:
        """Train members of one network, from the previous fit's weights if there are any.

        Parameters
        ----------
        network : EpistemicNetwork
        n_members : int
        left_out : ndarray of shape (n_members, n_functions), optional
            Functions that each member does not see.
        validate : bool, default=False
            Whether members keep the epoch that is best on the functions they do not see, and stop
            after a quarter of the epochs without a better one.
        """
        recipe, splits, orders = self.recipe, None, None
        if left_out is not None:
            splits = [(used, rest if validate else None) for used, rest in self.splits(left_out)]
        if self.by_function:
            rngs = [generator(self.entropy, "order", k) for k in range(n_members)]
            q = self.n_queries
            orders = [lambda n, rng=rng: self.rows_of(rng.permutation(n // q)) for rng in rngs]
        if validate:
            # Without noise networks improve until the learning rate has fallen. With noise the
            # best epoch is often among the first tenth, but a shorter patience misses better ones.
            patience = max(_SHORTEST_PATIENCE, round(_PATIENCE * recipe.epochs))
            recipe = replace(recipe, keep="best", early_stopping_patience=patience)
        job = training.TrainingJob.of_model(
            network,
            self.head,
            recipe,
            [trial_seed(self.entropy, k) for k in range(n_members)],
            stacked=True,
            splits=splits,
            permutations=orders,
            start=None if self.previous is None else self._start(network, n_members),
        )
        members, data = training.train(job, self.data, report=self.report), self.data
        if not self.refine:
            return members
        # Refine the members that converged, each on its training rows.
        rows: list = [slice(None)] * n_members if splits is None else [used for used, _ in splits]
        return [
            member
            if isinstance(member, FloatingPointError)
            else refine(member, data.x[used], data.y[used], data.weight[used])
            for member, used in zip(members, rows)
        ]

    def _start(self, network, n_members):
        """List first weights and states: those of the previous fit's members, then random ones."""
        previous = self.previous.members
        if read_network(previous[0].network).without_names() != network.without_names():
            raise ValueError(
                "`warm_start=True` goes on with the networks of the previous fit, but parameters "
                "or query points have changed their architecture. Set warm_start=False."
            )
        kept = previous[:n_members]
        seeds = [trial_seed(self.entropy, k) for k in range(len(kept), n_members)]
        return [(member.weights, list(member.state)) for member in kept] + [
            template_of_model(network).draw(seed_words(seed).weights) for seed in seeds
        ]

    @property
    def n_functions(self) -> int:
        """Number of functions to train on."""
        return len(self.data.x) // self.n_queries

    @cached_property
    def groups(self) -> np.ndarray:
        """Numbers (n_functions,) that functions of equal inputs share, by first appearance."""
        inputs = self.data.x[:: self.n_queries]  # each function's first pair
        _, first, group = np.unique(inputs, axis=0, return_index=True, return_inverse=True)
        return rankdata(first, method="ordinal")[group.reshape(-1)].astype(int) - 1

    @property
    def can_leave_out(self) -> bool:
        """Whether there are enough different inputs to leave a fold of them out."""
        return bool(self.groups.max() + 1 >= N_FOLDS)

    def folds(self, n_members: int) -> np.ndarray:
        """Draw the functions that each member leaves out: a mask (n_members, n_functions).

        Any `N_FOLDS` members in a row leave out each function exactly once. Functions of equal
        inputs are left out together, as a member that has seen one of them knows the others.
        """
        left_out = np.zeros((n_members, self.n_functions), dtype=bool)
        for k in range(n_members):
            order = generator(self.entropy, "folds", k // N_FOLDS)
            parts = np.array_split(order.permutation(self.groups.max() + 1), N_FOLDS)
            left_out[k] = np.isin(self.groups, parts[k % N_FOLDS])
        return left_out

    def noise_of_repeats(self) -> tuple[np.ndarray, int]:
        """Estimate the noise from functions of equal inputs, in which nothing else differs.

        Returns
        -------
        std : ndarray of the shape of `noise`
            Standard deviations of standardised values; 0 if no two inputs are equal.
        dof : int
            Degrees of freedom of each value.
        """
        y = self.data.y.reshape(self.n_functions, self.n_queries, -1)
        counts = np.bincount(self.groups)
        sums = np.zeros((len(counts), *y.shape[1:]))
        np.add.at(sums, self.groups, y)
        means = sums / counts[:, None, None]
        dof = self.n_functions - len(counts)
        variance = ((y - means[self.groups]) ** 2).sum(axis=0) / max(dof, 1)
        if len(self.noise) == 1:
            variance, dof = variance.mean(axis=0, keepdims=True), dof * self.n_queries
        return np.sqrt(variance), dof

    def splits(self, left_out: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Find the rows that each member trains and validates on.

        All members need equally many rows, so some functions of smaller parts occur twice.
        """
        parts = []
        for side in (~left_out, left_out):
            size = side.sum(axis=1).max()
            parts.append(
                [self.rows_of(np.resize(np.flatnonzero(of_member), size)) for of_member in side]
            )
        return list(zip(*parts))

    def rows_of(self, functions: np.ndarray) -> np.ndarray:
        """Find the rows of functions; the pairs of a function are adjacent."""
        return (functions[:, None] * self.n_queries + np.arange(self.n_queries)).ravel()


def operator_recipe(estimator: Any, settings: dict[str, Any], n: int, n_queries: int) -> Recipe:
    """Make the recipe of a regressor for n functions at so many query points.

    Parameters
    ----------
    estimator : OperatorRegressor
    settings : dict
        Given settings of the training, by name.
    n, n_queries : int
    """
    settings = {"schedule": "cosine", "final_lr_factor": 0.001, "clip_norm": 1.0, **settings}
    n_rows = n * n_queries
    batch = n_rows if estimator.batch_size is None else estimator.batch_size
    if estimator.batch_over == "functions":
        batch *= n_queries
    n_batches = math.ceil(n_rows / batch)
    n_steps, epochs = settings.pop("steps", _STEPS), estimator.epochs
    if callable(n_steps):
        n_steps = n_steps(n)
        if not isinstance(n_steps, Integral) or n_steps < 1:
            raise ValueError(
                f"`steps` must give an integer >= 1. Got {n_steps!r} for {n} functions."
            )
    if epochs == "auto":  # the fewest whole epochs that make so many steps
        epochs = math.ceil(n_steps / n_batches)
    else:
        n_steps = epochs * n_batches
    if callable(settings["final_lr_factor"]):
        settings["final_lr_factor"] = settings["final_lr_factor"](n_steps)
    return Recipe(
        learning_rate=estimator.learning_rate,
        batch_size=batch,
        epochs=epochs,
        reduce_lr_patience=None,
        early_stopping_patience=None,
        keep="last",
        **settings,
    )


def fit_widths(
    squared_error: np.ndarray, variance: np.ndarray, weight: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a factor of the epistemic standard deviations, and the noise, to functions left out.

    Parameters
    ----------
    squared_error, variance : ndarray of shape (n * q, m)
        Squared errors of standardised values, and the variances predicted of them.
    weight : ndarray of shape (n,)
        Weights of the functions; those of weight 0 are ignored.
    shape : tuple of int
        (1, m), or (q, m) where each column has a noise of its own.

    Returns
    -------
    factor, noise : ndarray of that shape
    """
    shape_of_all = len(weight), len(squared_error) // len(weight), -1
    error = squared_error.reshape(shape_of_all)[weight > 0]
    variance = variance.reshape(shape_of_all)[weight > 0]
    weight = weight[weight > 0]
    factor, noise = np.ones(shape), np.zeros(shape)
    for place in np.ndindex(shape):
        columns = slice(None)  # all columns share one noise if there are too few functions
        if shape[0] > 1 and len(weight) >= FEWEST_FUNCTIONS:
            columns = slice(place[0], place[0] + 1)
        squared, predicted = (v[:, columns, place[1]] for v in (error, variance))
        rows = np.repeat(weight, squared.shape[1])
        squared, predicted = squared.ravel(), predicted.ravel()
        if not squared.any():
            continue
        # Errors larger than predicted are attributed to noise first, not to the factor: equal
        # predicted variances cannot tell them apart.
        ratio = np.average(squared, weights=rows) / np.average(predicted, weights=rows)
        ratio = min(ratio, 1.0)
        a, floor = fit_factor_and_floor(squared, ratio * predicted, rows)
        factor[place], noise[place] = np.sqrt(ratio) * a, floor
    return factor, noise


def train_epinet(trainer, *, prior, n_draws):
    """Train a network and its EpiNet together by gradient steps, as in the paper.

    To learn the noise, a twin is trained on four fifths of the functions, and its errors at the
    others are compared with its draws.

    Parameters
    ----------
    trainer : OperatorTrainer
    prior : skuq.networks.EpiNet
    n_draws : int
        Number of draws that predictions average over.

    Returns
    -------
    draws : IndexDraws
    widths : tuple of two ndarrays of the shape of the noise, or None
        Factor of the epistemic part and standard deviation of the noise; None if not learnt.
    """
    base, n_raw = trainer.base, trainer.head.n_raw
    # The number of features that the EpiNet sees of a row.
    if base is None:  # rows are the features of a given model
        n_features = trainer.data.x.shape[1]
    elif isinstance(base, str):  # a Keras model gives raw outputs, then features
        n_features = rebuild(base).output_shape[-1] - n_raw
    else:
        n_features = base.n_features
    network = EpistemicNetwork(base, n_raw, prior.describe(n_features, n_raw))
    trainer = replace(trainer, recipe=replace(trainer.recipe, n_draws=prior.n_index_samples))
    index = quasi_random_normals(n_draws, prior.n_index, generator(trainer.entropy, "index"))
    n_members, left_out = 1, None
    if trainer.learns_noise:
        n_members = 2
        left_out = np.stack([np.zeros(trainer.n_functions, dtype=bool), *trainer.folds(1)])
    members = trainer.train(network, n_members, left_out)
    find_completed(members[:1])  # raises an error if the network itself has diverged
    if find_completed(members) != [0, 1]:  # no twin, or one that has diverged
        return IndexDraws(members[0], index), None
    others = np.flatnonzero(left_out[1])
    rows = trainer.rows_of(others)
    values, _ = trainer.head.values(ARRAYS, predict_draws(members[1], trainer.data.x[rows], index))
    error = trainer.data.y[rows] - values.mean(axis=0)
    widths = fit_widths(error**2, values.var(axis=0), trainer.weight[others], trainer.noise.shape)
    return IndexDraws(members[0], index), widths


def train_ensemble(trainer, *, n_members, prior_scale, subsample):
    """Train an ensemble, and learn widths from the functions that its members leave out.

    See `OperatorEnsembleRegressor` for its parameters, and `train_epinet` for the others and for
    the results.
    """
    network = EpistemicNetwork(trainer.base, trainer.head.n_raw, prior_scale=float(prior_scale))
    # A function's error needs a member that has not seen it, and another for the spread.
    learns, left_out = trainer.learns_noise and n_members > 1, None
    if subsample is not None:
        size = max(1, round(subsample * trainer.n_functions))
        rngs = [generator(trainer.entropy, "bootstrap", k) for k in range(n_members)]
        order = [rng.permutation(trainer.n_functions) for rng in rngs]
        left_out = ~np.stack([np.isin(np.arange(trainer.n_functions), o[:size]) for o in order])
        learns = learns and left_out.any(axis=1).all()
    elif learns:
        left_out = trainer.folds(n_members)
    members = trainer.train(network, n_members, left_out, validate=learns)
    kept = find_completed(members)
    draws = MemberDraws(tuple(members[k] for k in kept))
    if not learns or len(kept) < 2:
        return draws, None
    # The epistemic factor and the noise are fitted to functions that members have left out.
    left_out = left_out[kept]
    values, _ = trainer.head.values(ARRAYS, draws.raw(trainer.data.x, draws.index))
    unseen = np.repeat(left_out, trainer.n_queries, axis=1)[..., None]
    # The mean over the members that have not seen a value predicts it.
    mean = (values * unseen).sum(axis=0) / np.maximum(unseen.sum(axis=0), 1)
    weight, error = trainer.weight * left_out.any(axis=0), trainer.data.y - mean
    return draws, fit_widths(error**2, values.var(axis=0), weight, trainer.noise.shape)


def train_bases(trainer, learns_scale):
    """Train the base networks; return those that converged, and the functions each leaves out.

    Five networks are trained where errors at left-out functions teach the noise or the scale. Each
    leaves out a fifth of the functions and keeps the epoch that is best there, because a network
    that is trained to the end learns noise. Otherwise one network is trained on all functions to
    the end. A warm start without noise goes on with the networks of the previous fit.
    """
    network, is_noisy = EpistemicNetwork(trainer.base, trainer.head.n_raw), trainer.noise.any()
    enough = trainer.can_leave_out and trainer.n_functions >= FEWEST_WITH_NOISE
    if not trainer.learns_noise and not (
        enough and (is_noisy or (learns_scale and trainer.previous is None))
    ):
        n_members = 1 if trainer.previous is None else len(trainer.previous.members)
        members = trainer.train(network, n_members)
        return tuple(members[k] for k in find_completed(members)), None
    left_out = trainer.folds(N_FOLDS)
    # They start from random weights: networks of a previous fit have seen what they leave out.
    members = replace(trainer, previous=None).train(network, N_FOLDS, left_out, validate=True)
    kept = find_completed(members)
    return tuple(members[k] for k in kept), left_out[kept]


def train_briefly(trainer):
    """Train five networks, each without a fifth of the functions, for few steps.

    Returns those that converged, and the functions (n_members, n_functions) that each leaves out.
    """
    # The few steps of a warm start are not enough from random weights.
    epochs = math.ceil(_SCALE_STEPS / math.ceil(len(trainer.data.x) / trainer.recipe.batch_size))
    recipe = replace(trainer.recipe, epochs=epochs)
    # They start from random weights: networks of a previous fit have seen what they leave out.
    trainer = replace(trainer, recipe=recipe, previous=None, refine=False, report=None)
    left_out = trainer.folds(N_FOLDS)
    members = trainer.train(EpistemicNetwork(trainer.base, trainer.head.n_raw), N_FOLDS, left_out)
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        warn_user(
            f"The scale of the random prior is {PRIOR_SCALE}: all networks that it would be learnt "
            "from have diverged. Lower `learning_rate`, or give the `scale` of the prior."
        )
    return [members[k] for k in kept], left_out[kept]
