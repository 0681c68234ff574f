"""Training of the networks of one operator regressor: folds, warm starts, refinement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import rankdata

from skuq import training
from skuq._utils._environment import generator, trial_seed
from skuq.catalog import Member
from skuq.networks import OperatorHead
from skuq.networks._epinet import EpistemicNetwork
from skuq.tables import TrainingData
from skuq.training import Recipe
from skuq.training._job import seed_words, template_of_model
from skuq.training._predict import read_network

#: Number of folds; a network that learns the noise leaves out one.
N_FOLDS = 5

# Share of the epochs, and least number of them, after which a network stops that has not improved
# on the functions it leaves out.
_PATIENCE, _SHORTEST_PATIENCE = 0.25, 10


@dataclass(frozen=True, eq=False)
class OperatorTraining:
    """Data and settings with which the networks of one fit are trained.

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
        Whether to `skuq.training.refine` the members.
    previous : tuple of Member
        Members of the previous fit, whose weights training starts from; none by default.
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
    previous: tuple[Member, ...] = ()

    def train(
        self,
        network: EpistemicNetwork,
        n_members: int,
        report: Callable[[int, int], Any] | None,
        *,
        left_out: np.ndarray | None = None,
        validate: bool = False,
        recipe: Recipe | None = None,
    ) -> list[Member | FloatingPointError]:
        """Train members of one network, from the previous fit's weights if there are any.

        Parameters
        ----------
        network : EpistemicNetwork
        n_members : int
        report : callable or None
        left_out : ndarray of shape (n_members, n_functions), optional
            Functions that each member does not see.
        validate : bool, default=False
            Whether members keep the epoch that is best on the functions they do not see, and stop
            after a quarter of the epochs without a better one.
        recipe : Recipe, optional
            By default the job's.
        """
        recipe, splits = recipe or self.recipe, None
        if left_out is not None:
            splits = [
                (used, others if validate else None) for used, others in self.splits(left_out)
            ]
        fields: dict = {} if splits is None else {"splits": splits}
        if self.by_function:
            fields["permutations"] = [self.row_order(k) for k in range(n_members)]
        if self.previous:
            fields["start"] = self._start(network, n_members)
        job = training.TrainingJob.of_model(
            network,
            self.head,
            _stopping(recipe) if validate else recipe,
            [trial_seed(self.entropy, k) for k in range(n_members)],
            stacked=True,
            **fields,
        )
        members = training.train(job, self.data, report=report)
        return self._refine(members, splits) if self.refine else members

    def _refine(self, members, splits):
        """Refine the members that converged, each on its training rows."""
        rows = [slice(None)] * len(members) if splits is None else [used for used, _ in splits]
        data = self.data
        return [
            member
            if isinstance(member, FloatingPointError)
            else training.refine(member, data.x[used], data.y[used], data.weight[used])
            for member, used in zip(members, rows)
        ]

    def _start(self, network, n_members):
        """List first weights and states: those of the previous fit's members, then random ones."""
        known = read_network(self.previous[0].network)
        if known.without_names() != network.without_names():
            raise ValueError(
                "`warm_start=True` goes on with the networks of the previous fit, but parameters "
                "or query points have changed their architecture. Set warm_start=False."
            )
        kept = self.previous[:n_members]
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
    def n_copies(self) -> int:
        """Number of functions whose inputs and values are those of another one."""
        both = np.column_stack([self.groups, self.data.y.reshape(self.n_functions, -1)])
        return self.n_functions - len(np.unique(both, axis=0))

    @property
    def can_leave_out(self) -> bool:
        """Whether there are enough different inputs to leave a fold of them out."""
        return bool(self.groups.max() + 1 >= N_FOLDS)

    def folds(self, n_members: int, n_folds: int) -> np.ndarray:
        """Draw the functions that each member leaves out: a mask (n_members, n_functions).

        Any `n_folds` members in a row leave out each function exactly once. Functions of equal
        inputs are left out together, as a member that has seen one of them knows the others.
        """
        left_out = np.zeros((n_members, self.n_functions), dtype=bool)
        for k in range(n_members):
            order = generator(self.entropy, "folds", k // n_folds)
            parts = np.array_split(order.permutation(self.groups.max() + 1), n_folds)
            left_out[k] = np.isin(self.groups, parts[k % n_folds])
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

    def row_order(self, k: int) -> _OrderByFunction:
        """Make the callable that orders member k's rows in each epoch, function by function."""
        return _OrderByFunction(self.n_queries, generator(self.entropy, "order", k))


@dataclass(frozen=True)
class _OrderByFunction:
    """Random orders of rows that keep the rows of a function together."""

    n_queries: int
    rng: np.random.Generator

    def __call__(self, n_rows):
        functions = self.rng.permutation(n_rows // self.n_queries)
        return (functions[:, None] * self.n_queries + np.arange(self.n_queries)).ravel()


def _stopping(recipe: Recipe) -> Recipe:
    """Copy a recipe that keeps the best epoch and stops long after it.

    Without noise networks improve until the learning rate has fallen. With noise the best epoch is
    often among the first tenth. A shorter patience has missed better epochs.
    """
    patience = max(_SHORTEST_PATIENCE, round(_PATIENCE * recipe.epochs))
    return replace(recipe, keep="best", early_stopping_patience=patience)
