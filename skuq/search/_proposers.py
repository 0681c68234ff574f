"""Proposers of configurations: pure functions of the finished and the running trials.

A proposer keeps no state. Its answer depends only on the history, the running configurations
and the random generator it is given, so that a search can be repeated, resumed and extended.
Those of the AutoDEUQ paper are ageing evolution (Real et al., 2018) on architectures, joined with
Bayesian optimisation (a random forest) in AgEBO.
"""

import itertools
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import RandomForestRegressor

from skuq.backend import keep_random_state
from skuq.ensembles._selection import select_by
from skuq.networks._given_spaces import space_to_keras_tuner
from skuq.networks._space import Decisions, Space
from skuq.search._records import TrialRecord

# Keras-Tuner ends a search after a few failures in a row; skuq records them and continues.
_UNLIMITED = 10**9

#: Finished trials, in the order in which they finished. Scores are minimised.
History = Sequence[TrialRecord]
#: Configurations that are being evaluated.
Running = Sequence[Mapping[str, Any]]


class Proposer(Protocol):
    """An object that proposes the next configuration of a search.

    A proposer with a state of its own can also have ``tell(history)``, which is called when the
    search has ended.
    """

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        """Propose a configuration; the generator belongs to this proposal alone."""


@dataclass(frozen=True)
class RandomProposer:
    """Propose random configurations, whatever the scores of the history.

    Parameters
    ----------
    space : Space
    shared : tuple of str, default=()
        Names of the decisions that determine the compiled program.
    n_trainings : int, default=1
        Number of trials that share the values of these decisions. Those of an earlier trial are
        taken as long as there are fewer, and only then others are drawn. Compiling takes longer
        than training a small table.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import Integer, Space
    >>> from skuq.search._proposers import RandomProposer
    >>> proposer = RandomProposer(Space([Integer("units", 1, 64)]))
    >>> 1 <= proposer.ask([], [], np.random.default_rng(0))["units"] <= 64
    True
    """

    space: Space
    shared: tuple[str, ...] = ()
    n_trainings: int = 1

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        drawn = self.space.sample(rng)
        if self.n_trainings > 1:
            tried = [*(record.configuration for record in history), *running]
            programs = Counter(tuple((name, c[name]) for name in self.shared) for c in tried)
            # In an order of their own: trials of a parallel search finish in any order.
            few = sorted((p for p, n in programs.items() if n < self.n_trainings), key=repr)
            if few:
                drawn.update(few[rng.integers(len(few))])
        return drawn


@dataclass(frozen=True)
class Fixed:
    """Propose the same configuration every time: only the seeds of the trials differ."""

    configuration: Mapping[str, Any]

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        return dict(self.configuration)


@dataclass(frozen=True)
class StartingWith:
    """Propose given configurations first, then those of another proposer.

    Parameters
    ----------
    configurations : sequence of mapping
        First configurations, in order.
    proposer : Proposer, optional
        Proposer of all others. It learns from the first trials as from its own. None proposes no
        others.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._dense import WidthDepthSpace
    >>> from skuq.search import RandomSearch, SearchProblem
    >>> from skuq.search._proposers import StartingWith
    >>> decisions = WidthDepthSpace().decisions()
    >>> others = RandomSearch().proposer(SearchProblem(decisions, n_trials=10))
    >>> first = {**decisions.architecture.default(), **decisions.hyperparameters.default()}
    >>> StartingWith([first], others).ask([], [], np.random.default_rng(0)) == first
    True
    """

    configurations: Sequence[Mapping[str, Any]]
    proposer: Proposer | None = None

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        # Each trial stands for one of its equals. Trials are not counted, since a stored search
        # may lack any of them.
        tried = [*(record.configuration for record in history), *running]
        for configuration in self.configurations:
            if configuration not in tried:
                return dict(configuration)
            tried.remove(configuration)
        if self.proposer is None:
            raise LookupError("every configuration has been proposed")
        return self.proposer.ask(history, running, rng)


@dataclass(frozen=True)
class Joint:
    """Combine two independent proposers, each for its own decisions.

    With ageing evolution for the architecture and a Bayesian optimiser for the
    hyperparameters this is AgEBO.
    """

    first: Proposer
    second: Proposer

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        first_rng, second_rng = rng.spawn(2)
        return {
            **self.first.ask(history, running, first_rng),
            **self.second.ask(history, running, second_rng),
        }


class OracleProposer:
    """Use any ``keras_tuner.Oracle`` as the proposer of a search.

    Unlike skuq's own proposers it has a state: that of the oracle. To repeat a search, use a new
    oracle with the same seed.

    Parameters
    ----------
    oracle : keras_tuner.Oracle
        Oracle that proposes the configurations.
    decisions : Decisions
        Decisions, which are declared to the oracle unless it knows them already.
    n_trials : int, default=1
        Number of proposals that the search will ask for.

    Raises
    ------
    ValueError
        If the oracle's own `max_trials` is smaller.

    Examples
    --------
    >>> import keras_tuner
    >>> import numpy as np
    >>> from skuq.networks._dense import WidthDepthSpace
    >>> from skuq.search._proposers import OracleProposer
    >>> oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=5, seed=1)
    >>> proposer = OracleProposer(oracle, WidthDepthSpace().decisions())
    >>> sorted(proposer.ask([], [], np.random.default_rng(0)))[:3]
    ['batch_size', 'depth', 'early_stopping_patience']
    """

    def __init__(self, oracle: Any, decisions: Decisions, n_trials: int = 1) -> None:
        self._oracle = oracle
        folder = tempfile.mkdtemp(prefix="skuq-oracle-")  # oracles store their trials
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._trials: dict[int, Any] = {}  # Keras-Tuner's trials, by skuq's trial number
        self._n_told = 0
        self._space = decisions.architecture + decisions.hyperparameters
        if oracle.max_trials is not None and oracle.max_trials < n_trials:
            raise ValueError(
                f"The oracle's max_trials must be at least n_trials={n_trials}. "
                f"Got {oracle.max_trials}."
            )
        oracle.max_consecutive_failed_trials = _UNLIMITED
        oracle.verbose = 0
        oracle._set_project_dir(folder, "search")
        oracle.update_space(space_to_keras_tuner(self._space))

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        """Tell the oracle the finished trials, then take its next trial."""
        self.tell(history)
        # The loop asks for the lowest number without a trial.
        number = next(k for k in itertools.count() if k not in self._trials)
        trial = self._trials[number] = self._create_trial()
        return self._space.restrict(trial.hyperparameters.values)

    def _create_trial(self) -> Any:
        """Ask the oracle for a trial; raise RuntimeError if it proposes none."""
        tuner_id = f"skuq-{threading.get_ident()}-{len(self._trials)}"
        with keep_random_state():  # of which Keras-Tuner makes the trial's name
            trial = self._oracle.create_trial(tuner_id)
        if trial.status != "RUNNING" or not trial.hyperparameters.values:
            raise RuntimeError(
                f"The oracle proposed no configuration (status {trial.status}) at trial "
                f"{len(self._trials)}. The space may have fewer configurations than n_trials."
            )
        return trial

    def tell(self, history: Sequence[TrialRecord]) -> None:
        """Tell the oracle the trials it does not know yet, also those of an earlier search."""
        for record in history[self._n_told :]:
            if record.trial_number not in self._trials:
                # Let the oracle propose, to advance its state, and replace the proposal by the
                # configuration that was evaluated.
                trial = self._trials[record.trial_number] = self._create_trial()
                trial.hyperparameters.values.update(record.configuration)
            trial = self._trials[record.trial_number]
            if not record.failed:
                sign = -1 if self._oracle.objective.direction == "max" else 1
                metrics = {self._oracle.objective.name: sign * record.score}
                self._oracle.update_trial(trial.trial_id, metrics)
            trial = self._oracle.trials[trial.trial_id]
            trial.status = "FAILED" if record.failed else "COMPLETED"
            trial.message = record.message
            self._oracle.end_trial(trial)
        self._n_told = len(history)


@dataclass(frozen=True)
class AgeingEvolution:
    """Propose a mutated copy of the best of a sample of the population.

    The population is the last `population_size` completed trials: each new one replaces the oldest,
    whatever their scores. Until it is full, configurations are random.

    Parameters
    ----------
    space : Space
        Decisions that evolve.
    population_size : int, default=100
        Size of the population, P in the paper.
    sample_size : int, default=10
        Number of members, drawn without replacement, whose best is the parent; S in the paper.

    References
    ----------
    Egele et al., "AutoDEUQ", Algorithm 1, lines 17-23; the settings are AgEBO-Tabular's.
    """

    space: Space
    population_size: int = 100
    sample_size: int = 10

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        population = [r for r in history if not r.failed][-self.population_size :]
        if len(population) < self.population_size:
            return self.space.sample(rng)
        size = min(self.sample_size, len(population))
        sample = rng.choice(len(population), size=size, replace=False)
        parent = min((population[i] for i in sample), key=lambda record: record.score)
        return self.space.mutate(parent.configuration, rng)


def forest_moments(
    forest: RandomForestRegressor, x: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict mean and standard deviation, each (n,), of x (n, n_columns) by a fitted forest.

    By the law of total variance, the variance is the mean over trees of the variance within the
    leaf, plus the variance over trees of the leaf's mean.
    """
    x = np.asarray(x, dtype="float32")
    trees = [estimator.tree_ for estimator in forest.estimators_]
    leaves = np.stack([tree.apply(x) for tree in trees])  # (n_trees, n)
    means = np.stack([t.value[leaf, 0, 0] for t, leaf in zip(trees, leaves)])  # (n_trees, n)
    # With squared error, a leaf's impurity is the variance of its targets. Rounding can make
    # that of a pure leaf negative, about -1e-17.
    within = np.stack([t.impurity[leaf] for t, leaf in zip(trees, leaves)])
    variance = np.maximum(within, 0).mean(axis=0) + means.var(axis=0)
    return means.mean(axis=0), np.sqrt(variance)


@dataclass(frozen=True)
class ForestOptimizer:
    """Propose the candidate with the best confidence bound of a forest fitted to the scores.

    Scores are minimised, so that the bound is ``mean - kappa * std``, and the candidate with the
    smallest bound is proposed. Failed trials count with the worst score seen so far, and running
    trials with the best (the "constant liar" of AgEBO's published runs). With the best score as
    lie, proposals are drawn towards running trials instead of being spread. With a large `kappa` a
    parallel search can stay close to its running trials. Parallel workers get different points
    because each proposal draws its own candidates.

    Parameters
    ----------
    space : Space
        Decisions to propose.
    kappa : float, default=0.001
        Weight of the standard deviation; AgEBO's published runs use 0.001, its ablations
        1.96 and 19.6.
    n_initial : int, default=10
        Number of trials with a score, at least 1, until which configurations are random. The
        paper starts with one random configuration for each worker.
    n_candidates : int, default=10000
        Number of random configurations of which the best is proposed.
    max_score : float, default=1000
        Larger scores, such as those of diverged networks, are clipped to this value, or to ten
        times the best score where that is larger: an objective may be in any unit.

    References
    ----------
    Egele et al., "AutoDEUQ", section II and Algorithm 1, lines 14-16.
    """

    space: Space
    kappa: float = 0.001
    n_initial: int = 10
    n_candidates: int = 10_000
    max_score: float = 1e3

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        scored = [record for record in history if not record.failed]
        if len(scored) < self.n_initial or not len(self.space):
            return self.space.sample(rng)
        scores = [record.score for record in scored]
        largest = max(self.max_score, 10 * min(scores))
        scores = [min(score, largest) for score in scores]
        failed = [record for record in history if record.failed]
        configurations = [record.configuration for record in scored + failed]
        # The constant liar: failed trials get the worst score, running ones the best.
        targets = scores + [max(scores)] * len(failed) + [min(scores)] * len(running)
        x = self.space.encode([*configurations, *running])
        # AgEBO's published runs have ten trees.
        forest = RandomForestRegressor(10, random_state=int(rng.integers(2**31 - 1)))
        # The acquisition is minimised over random candidates.
        candidates = self.space.sample_many(rng, self.n_candidates)
        mean, std = forest_moments(forest.fit(x, targets), self.space.encode(candidates))
        return candidates[int(np.argmin(mean - self.kappa * std))]


_MAX_MUTATIONS = 1000  # attempts to change a decision that has several values


@dataclass(frozen=True)
class Mutation:
    """Change a configuration by one mutation of its architecture or one other value.

    Parameters
    ----------
    architecture, hyperparameters : Space
        Decisions about architecture and training; those with a single value never change.
    mutate_architecture : callable, optional
        The search space's ``mutate(configuration, rng)``. With it, architecture and
        hyperparameters are equally likely to change if both vary. Without it, each decision is
        equally likely to change. It is called again if it changed only decisions with a single
        value.
    """

    architecture: Space
    hyperparameters: Space
    mutate_architecture: Callable[..., Mapping[str, Any]] | None = None

    def __call__(
        self, configuration: Mapping[str, Any], rng: np.random.Generator
    ) -> dict[str, Any]:
        if self.mutate_architecture is None:
            return (self.architecture + self.hyperparameters).mutate(configuration, rng)
        halves = [half for half in (self.architecture, self.hyperparameters) if half.size > 1]
        half = halves[rng.integers(len(halves))]
        if half is self.hyperparameters:
            return {**configuration, **half.mutate(configuration, rng)}
        single = {d.name: d.default for d in half.decisions if d.size == 1}
        for _ in range(_MAX_MUTATIONS):
            mutated = {**configuration, **self.mutate_architecture(configuration, rng)}
            child = {**mutated, **single}
            if child != configuration or mutated == configuration:
                break
        return child


@dataclass(frozen=True)
class EnsembleEvolution:
    """Propose a mutated copy of a member of the ensemble selected from the population.

    The population is the last `population_size` completed trials: each new one replaces the
    oldest. Until it is full, configurations are random.

    Parameters
    ----------
    sample : callable
        ``sample(rng) -> configuration`` draws a random configuration.
    mutate : callable
        ``mutate(configuration, rng) -> configuration`` mutates a configuration.
    criteria : sequence of callable
        ``criterion(records) -> (statistics, loss, weight)``, the arguments of
        `select_by` for the trials' predictions on one set of validation rows.
        Each proposal draws one criterion. With one for clean and one for shifted rows, evolution
        finds networks that are good on either kind of rows.
    population_size : int, default=50
        Size of the population, P in the paper.
    n_parents : int, default=10
        Size of the ensemble from which the parent is drawn uniformly, m in the paper.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    Algorithm 2 and section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.search import TrialRecord
    >>> from skuq.search._proposers import EnsembleEvolution
    >>> def criterion(records):
    ...     return [np.array([[r.configuration["x"]] for r in records])], np.square, None
    >>> evolution = EnsembleEvolution(
    ...     sample=lambda rng: {"x": rng.normal()},
    ...     mutate=lambda configuration, rng: {"x": configuration["x"] + 0.5},
    ...     criteria=[criterion], population_size=3, n_parents=1,
    ... )
    >>> history = [TrialRecord(k, {"x": x}, score=x**2) for k, x in enumerate([2.0, 1.0, 3.0])]
    >>> evolution.ask(history, [], np.random.default_rng(0))
    {'x': 1.5}
    """

    sample: Callable[..., dict[str, Any]]
    mutate: Callable[..., dict[str, Any]]
    criteria: Sequence[Callable[..., tuple[Any, Any, Any]]]
    population_size: int = 50
    n_parents: int = 10

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        population = [r for r in history if r.completed][-self.population_size :]
        if len(population) < self.population_size:
            return self.sample(rng)
        criterion = self.criteria[int(rng.integers(len(self.criteria)))]
        statistics, loss, weight = criterion(population)
        parents = select_by(statistics, loss, self.n_parents, sample_weight=weight).indices
        return self.mutate(population[rng.choice(parents)].configuration, rng)
