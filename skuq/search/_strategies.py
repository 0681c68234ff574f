"""Proposers of configurations, and strategies of searches: settings, which make the proposer.

A proposer is a pure function of the finished and the running trials: it keeps no state. Its
answer depends only on the history, the running configurations and the random generator it is given,
so that a search can be repeated, resumed and extended.
Those of the AutoDEUQ paper are ageing evolution (Real et al., 2018) on architectures, joined with
Bayesian optimisation (a random forest) in AgEBO. Strategies are the objects for the parameter
`search` of AutoDEUQ and NES, and stand in the order of the papers; an oracle is the last.
"""

import functools
import itertools
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import RandomForestRegressor

from skuq._messages import warn_user
from skuq._params import HasMethods, Interval, Settings, StrOptions, parameters
from skuq.backend import keep_random_state
from skuq.ensembles._selection import select_by
from skuq.files._registry import PickledByValue
from skuq.networks._given_spaces import space_to_keras_tuner
from skuq.networks._space import Decisions, Space
from skuq.search import Catalog
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
    >>> from skuq.search._strategies import RandomProposer
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
    >>> from skuq.search._strategies import StartingWith
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
    >>> from skuq.search._strategies import OracleProposer
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
        oracle.max_consecutive_failed_trials, oracle.verbose = _UNLIMITED, 0
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
        # Ten trees are scikit-optimize's default.
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
    >>> from skuq.search._strategies import EnsembleEvolution
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


_N_TAKEN_OVER = 10  # best trials of another search that are used as initial trials

_POSITIVE_COUNT = Interval(Integral, 1, None, closed="left")
_HALVES = StrOptions({"architecture", "hyperparameters", "both"})
_VARY = StrOptions({"auto", "architecture", "hyperparameters", "both", "initialisation"})
_POPULATION: dict[str, Any] = {
    "population_size": [_POSITIVE_COUNT, None],
    "sample_size": [_POSITIVE_COUNT, None],
}
_FOREST: dict[str, Any] = {
    "kappa": [Interval(Real, 0, None, closed="left")],
    "n_initial": [_POSITIVE_COUNT],
}
_TRIALS: dict[str, Any] = {
    "initial_trials": [None, list, tuple, Catalog],
    "objective": [None, callable],
}
_HOW_TO_START = (
    "To start from the best trials of a fitted search give its `catalog_`, or the `configuration` "
    "of one of its records."
)


@dataclass(frozen=True)
class SearchProblem:
    """Everything that a strategy may use to make its proposer.

    Attributes
    ----------
    decisions : Decisions
        Decisions about architecture and training; those that the user has fixed have one value.
    n_trials : int
        Number of trials of the search.
    n_planned : int or None
        Number of trials that determines default sizes of populations; by default `n_trials`.
    mutate : callable or None
        The space's own ``mutate(configuration, rng)`` of architectures.
    criteria : sequence of callable
        Criteria of `EnsembleEvolution`: for the clean validation rows, and for the last set of
        shifted rows if there is one.
    n_trainings : int
        Number of trials of random search that share an architecture, and with it a program.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._dense import WidthDepthSpace
    >>> from skuq.search import AgEBO, SearchProblem
    >>> proposer = AgEBO().proposer(SearchProblem(WidthDepthSpace().decisions(), n_trials=100))
    >>> sorted(proposer.ask([], [], np.random.default_rng(0)))[:3]
    ['batch_size', 'depth', 'early_stopping_patience']
    """

    decisions: Decisions
    n_trials: int
    n_planned: int | None = None
    mutate: Callable[..., Mapping[str, Any]] | None = None
    criteria: Sequence[Callable[..., Any]] = ()
    n_trainings: int = 1


class SearchStrategy(Settings):
    """Base class of strategies for the parameter `search`.

    A strategy of your own is a subclass with a method `proposer`. With ``vary = "both"``, the
    default, a tabular space's known recipes are the first trials, before the proposer is asked;
    ``initial_trials = []`` leaves them out. `vary`, `initial_trials` and `objective` are class
    attributes here, which a subclass may make parameters, as `RandomSearch` does.

    Examples
    --------
    >>> from skuq.search import SearchStrategy
    >>> class Defaults(SearchStrategy):
    ...     def proposer(self, problem):
    ...         return self
    ...     def ask(self, history, running, rng):
    ...         return {}
    """

    #: Decisions that can differ between trials.
    vary = "both"
    initial_trials = None
    objective: Any = None

    def proposer(self, problem: SearchProblem) -> Proposer:
        """Make the proposer of a search.

        Parameters
        ----------
        problem : SearchProblem

        Returns
        -------
        Proposer
        """
        raise NotImplementedError(f"{type(self).__name__} must define `proposer(problem)`.")

    def validate(self) -> None:
        super().validate()
        trials: Any = self.initial_trials
        given = trials if isinstance(trials, list | tuple) else ()
        if wrong := [trial for trial in given if not isinstance(trial, Mapping)]:
            raise ValueError(
                "`initial_trials` must be a list of configurations, dicts of decisions. Got "
                f"{wrong[0]!r} in it."
            )

    def given_configurations(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the configurations that the user gives as `initial_trials`, or None."""
        given = self.initial_trials
        if given is None or isinstance(given, list | tuple):
            return given
        completed = [given[int(k)] for k in given.completed]
        if not completed:
            raise ValueError(
                f"`initial_trials` must have a completed trial to start from. Got {given!r}. "
                "Give another catalog, a list of configurations, or None."
            )
        best = sorted(completed, key=lambda record: record.score)[:_N_TAKEN_OVER]
        return [record.configuration for record in best]

    def initial_configurations(
        self, decisions: Decisions, recipes: Sequence[Mapping[str, Any]], fixed: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the complete configurations of the first trials.

        They are the user's, or the `recipes` that the space knows if the strategy varies all that
        these differ in. `fixed` are decisions that are not searched.
        """
        both = decisions.architecture + decisions.hyperparameters
        given, name = self.given_configurations(), "initial_trials"
        if given is None:
            given, name = (recipes if self.vary == "both" else []), "known_recipes"
        is_list = isinstance(self.initial_trials, list | tuple)
        if not is_list:  # another search, perhaps of another space
            given = [{k: v for k, v in c.items() if k in both.names} for c in given]
        try:
            checked = [{**both.check(configuration, name), **fixed} for configuration in given]
        except ValueError as error:
            raise ValueError(f"{error} {_HOW_TO_START}" if is_list else str(error)) from error
        return [c for k, c in enumerate(checked) if c not in checked[:k]]

    def __getstate__(self) -> dict[str, Any]:
        # Of a catalog only the configurations are used.
        state: dict[str, Any] = super().__getstate__()
        if isinstance(state.get("initial_trials"), Catalog):
            state = {**state, "initial_trials": state["initial_trials"].keep_arrays_of([])}
        return state


def fix_decisions(decisions: Decisions, fixed: Mapping[str, Any]) -> Decisions:
    """Restrict the decisions that the user fixes to their single value.

    Raises
    ------
    ValueError
        If the space does not have a fixed decision or its value.
    """
    (decisions.architecture + decisions.hyperparameters).check(fixed, "fixed")
    return Decisions(*(half.pin(fixed) for half in decisions))


def _propose_by(make: Callable[[Space], Proposer], decisions: Decisions, vary: str) -> Proposer:
    """Make a proposer of the decisions that vary, and take the defaults of the others."""
    architecture, hyperparameters = decisions
    if vary == "both":
        return make(architecture + hyperparameters)
    if vary == "architecture":
        return Joint(make(architecture), Fixed(hyperparameters.default()))
    return Joint(Fixed(architecture.default()), make(hyperparameters))


def _keep_varied(decisions: Decisions, vary: str) -> Decisions:
    architecture, hyperparameters = decisions
    if vary in ("hyperparameters", "initialisation"):
        architecture = architecture.pin(architecture.default())
    if vary in ("architecture", "initialisation"):
        hyperparameters = hyperparameters.pin(hyperparameters.default())
    return Decisions(architecture, hyperparameters)


def _warn_of_large_population(population_size: int | None, n_trials: int) -> None:
    """Warn if evolution never starts."""
    if population_size is not None and population_size >= n_trials:
        warn_user(
            f"Evolution starts after `population_size={population_size}` trials, and `n_trials` "
            f"is {n_trials}: all are drawn at random. Set a smaller `population_size` or more "
            "trials."
        )


def _ageing_evolution(strategy: Any, problem: SearchProblem) -> Callable[[Space], Proposer]:
    """Choose population size P and sample size S, and return the function of a space.

    They are the published runs' 100 and 10 from 400 trials on. With fewer, P is a quarter of the
    budget, so that three quarters of the trials evolve, and S is at most a third of P.
    """
    _warn_of_large_population(strategy.population_size, problem.n_trials)
    n = problem.n_planned or problem.n_trials
    p = strategy.population_size or min(100, max(4, n // 4))
    s = min(p, strategy.sample_size or min(10, max(2, p // 3)))
    return lambda space: AgeingEvolution(space, p, s)


@parameters("search.AgEBO")
class AgEBO(SearchStrategy):
    """Ageing evolution of architectures, with Bayesian optimisation of hyperparameters.

    It is AutoDEUQ's strategy, and the short form "agebo".

    Parameters
    ----------
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is a quarter of `n_trials`, from 4 to 100, and a third of
        that, from 2 to 10, as in the published runs. With ``n_trials="auto"`` they are those of 50
        trials, 12 and 4, whatever `max_time` is.
    kappa : float, default=0.001
        Weight of the standard deviation in the Bayesian optimisation; larger explores more. Keep it
        small with several jobs, since running trials count as the best.
    n_initial : int, default=10
        Number of trials with a score before the Bayesian optimisation replaces random
        hyperparameters. The paper starts with one random configuration for each worker.
    initial_trials : list of dict, Catalog or None, default=None
        Configurations to try first, completed by the space's defaults; fixed decisions keep their
        values. From a catalog the ten best are taken, without decisions that this space does not
        have. None uses the known recipes of a tabular space if
        architecture and hyperparameters vary, and otherwise no initial trials.
    objective : callable or None, default=None
        ``objective(trial) -> float``, minimised by the search instead of ``trial.score``, for
        example with a penalty on size: ``lambda trial: trial.score + 1e-6 * trial.n_weights``. A
        trial is a `FoldedMember`, whose `n_weights` and `seconds` are sums over its
        networks, or without folds a `Member`. `seconds` are those of a full training without
        compilation; with them, a fit does not repeat exactly. The ensemble is selected by the loss
        of `selection`: for an ensemble of cheap members also give a `selection` of your own.

    References
    ----------
    Egele et al., "AutoDEUQ: Automated Deep Ensemble with Uncertainty Quantification", Algorithm 1.

    Examples
    --------
    >>> from skuq.search import AgEBO, SearchProblem
    >>> AgEBO(kappa=0.01)
    AgEBO(kappa=0.01)
    """

    population_size: int | None = None
    sample_size: int | None = None
    kappa: float = 0.001
    n_initial: int = 10
    initial_trials: Any = None
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {**_POPULATION, **_FOREST, **_TRIALS}

    def proposer(self, problem: SearchProblem) -> Proposer:
        architecture, hyperparameters = problem.decisions
        optimise = ForestOptimizer(hyperparameters, self.kappa, self.n_initial)
        return Joint(_ageing_evolution(self, problem)(architecture), optimise)


@parameters("search.AgE")
class AgE(SearchStrategy):
    """Ageing evolution: "age" of architectures, "age-mixed" of all decisions as one vector.

    Parameters
    ----------
    vary : {"architecture", "hyperparameters", "both"}, default="architecture"
        Decisions that evolve; the others have their values in `fixed` or the space's defaults.
    population_size, sample_size, initial_trials, objective :
        See `AgEBO`.

    Examples
    --------
    >>> from skuq.search import AgE
    >>> AgE(vary="both", population_size=20)
    AgE(population_size=20, vary='both')
    """

    vary: str = "architecture"
    population_size: int | None = None
    sample_size: int | None = None
    initial_trials: Any = None
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {"vary": [_HALVES], **_POPULATION, **_TRIALS}

    def proposer(self, problem: SearchProblem) -> Proposer:
        return _propose_by(_ageing_evolution(self, problem), problem.decisions, self.vary)


@parameters("search.BayesianSearch")
class BayesianSearch(SearchStrategy):
    """Bayesian optimisation: "bo" of hyperparameters, "bo-mixed" of all decisions as one vector.

    Parameters
    ----------
    vary : {"architecture", "hyperparameters", "both"}, default="hyperparameters"
        Decisions that are optimised; the others have their values in `fixed` or the space's
        defaults.
    kappa, n_initial, initial_trials, objective :
        See `AgEBO`.

    Examples
    --------
    >>> from skuq.search import BayesianSearch
    >>> BayesianSearch(vary="both")
    BayesianSearch(vary='both')
    """

    vary: str = "hyperparameters"
    kappa: float = 0.001
    n_initial: int = 10
    initial_trials: Any = None
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {"vary": [_HALVES], **_FOREST, **_TRIALS}

    def proposer(self, problem: SearchProblem) -> Proposer:
        make = functools.partial(ForestOptimizer, kappa=self.kappa, n_initial=self.n_initial)
        return _propose_by(make, problem.decisions, self.vary)


@parameters("search.RandomSearch")
class RandomSearch(SearchStrategy):
    """Random search: "random" and "init" of AutoDEUQ, and "random" of NES (NES-RS, Algorithm 1).

    In the tabular space three trials share an architecture, so that it is compiled once for them.

    Parameters
    ----------
    vary : {"auto", "architecture", "hyperparameters", "both", "initialisation"}, default="both"
        Decisions that can differ between trials; the others have their values in `fixed` or the
        space's defaults. With "initialisation" only seeds differ. "auto" is "both" in the tabular
        space, and otherwise "architecture", as in the NES paper.
    initial_trials, objective :
        See `AgEBO`. The objective does not change proposals, but it is the recorded score.

    Examples
    --------
    >>> from skuq.search import RandomSearch
    >>> RandomSearch(vary="initialisation")
    RandomSearch(vary='initialisation')
    """

    vary: str = "both"
    initial_trials: Any = None
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {"vary": [_VARY], **_TRIALS}

    def proposer(self, problem: SearchProblem) -> Proposer:
        decisions = _keep_varied(problem.decisions, self.vary)
        both = sum(decisions, Space())
        if both.size == 1:
            return Fixed(both.default())
        # Trials with a common architecture must differ in their training.
        n_trainings = problem.n_trainings if decisions.hyperparameters.size > 1 else 1
        return RandomProposer(both, tuple(decisions.architecture.names), n_trainings)


@parameters("search.NESEvolution")
class NESEvolution(SearchStrategy):
    """Evolution by ensembles: "re" of NES (NES-RE, Algorithm 2).

    Each network is a mutation of a member of the ensemble that is selected from the last networks.

    Parameters
    ----------
    vary : {"auto", "architecture", "hyperparameters", "both", "initialisation"}, default="auto"
        Decisions that can differ between trials, see `RandomSearch`.
    population_size, n_parents : int or None, default=None
        P and m of the evolution. None is the paper's 50 and 10 for budgets of 400 and more; for
        smaller ones P is an eighth of `n_trials`, at least 8 and at most half of it, and m half of
        P, at most 10. m is never larger than P.
    evolve_on : {"both", "clean", "shift"}, default="both"
        With `shift_validation`, the rows on which parents are selected. "both" draws for each
        proposal either the clean rows or those of the highest severity (NES-RE); "clean" is
        NES-RE-0.
    initial_trials, objective :
        See `AgEBO`. The objective does not change proposals, but it is the recorded score.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift", NeurIPS
    2021, Algorithm 2 and section 4.3.

    Examples
    --------
    >>> from skuq.search import NESEvolution
    >>> NESEvolution(population_size=20, n_parents=5)
    NESEvolution(n_parents=5, population_size=20)
    """

    vary: str = "auto"
    population_size: int | None = None
    n_parents: int | None = None
    evolve_on: str = "both"
    initial_trials: Any = None
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {
        "vary": [_VARY],
        "population_size": [_POSITIVE_COUNT, None],
        "n_parents": [_POSITIVE_COUNT, None],
        "evolve_on": [StrOptions({"both", "clean", "shift"})],
        **_TRIALS,
    }

    def proposer(self, problem: SearchProblem) -> Proposer:
        decisions = _keep_varied(problem.decisions, self.vary)
        both = decisions.architecture + decisions.hyperparameters
        if both.size == 1:
            return Fixed(both.default())
        _warn_of_large_population(self.population_size, problem.n_trials)
        # The paper's 50 and 10 at its budget of 400 trials. At least half of the trials evolve, and
        # at most half of the population are parents, so that these are a selection.
        n = problem.n_planned or problem.n_trials
        p = self.population_size or min(max(8, min(50, n // 8)), max(2, n // 2))
        m = min(p, self.n_parents or max(1, min(10, p // 2)))
        if p >= problem.n_trials:
            return RandomProposer(both)
        used = {"both": slice(None), "clean": slice(1), "shift": slice(1, None)}[self.evolve_on]
        mutation = Mutation(*decisions, problem.mutate)
        return EnsembleEvolution(both.sample, mutation, problem.criteria[used], p, m)


@parameters("search.OracleSearch")
class OracleSearch(SearchStrategy):
    """A Keras-Tuner oracle as strategy; the oracle alone is its short form.

    Parameters
    ----------
    oracle : keras_tuner.Oracle
        Oracle that proposes the trials. `fit` uses a copy of it.
    objective :
        See `AgEBO`.

    Examples
    --------
    >>> import keras_tuner
    >>> from skuq.search import OracleSearch
    >>> oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=20, seed=1)
    >>> OracleSearch(oracle).oracle.max_trials
    20
    """

    oracle: Any = field(kw_only=False)
    objective: Callable[[Any], float] | None = None

    _parameter_constraints = {
        "oracle": [HasMethods(["create_trial", "end_trial"])],
        "objective": _TRIALS["objective"],
    }

    #: The space's known recipes are no initial trials: the oracle proposes every trial itself.
    vary = "oracle"

    def validate(self) -> None:
        oracle = self.oracle
        if isinstance(oracle, type):
            raise ValueError(
                "`search` must be a name, a strategy or an oracle, which proposes trials. Got the "
                f"class {oracle.__name__}: give an object of an oracle's class."
            )
        super().validate()

    def proposer(self, problem: SearchProblem) -> Proposer:
        return OracleProposer(self.oracle, problem.decisions, problem.n_trials)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Oracles hold lambdas, which pickle cannot store.
        make, arguments, state, *rest = super().__reduce_ex__(protocol)
        return make, arguments, {**state, "oracle": PickledByValue(self.oracle)}, *rest


#: Short forms of the parameter `search` of AutoDEUQ, as in the paper: Fig. 1 (agebo, age, bo, init)
#: and Fig. 2 (the mixed ones).
AUTODEUQ_STRATEGIES: dict[str, Callable[[], SearchStrategy]] = {
    "auto": AgEBO,  # of the paper's spaces; AutoDEUQ takes `RandomSearch` in the tabular space
    "agebo": AgEBO,
    "age": AgE,
    "bo": BayesianSearch,
    "init": lambda: RandomSearch(vary="initialisation"),
    "random": RandomSearch,
    "age-mixed": lambda: AgE(vary="both"),
    "bo-mixed": lambda: BayesianSearch(vary="both"),
}
#: Short forms of the parameter `search` of NES.
NES_STRATEGIES: dict[str, Callable[[], SearchStrategy]] = {
    "re": NESEvolution,
    "random": lambda: RandomSearch(vary="auto"),
}
