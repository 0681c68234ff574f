"""Strategies of searches: settings, which make the proposer of a search.

They are the objects for the parameter `search` of AutoDEUQ and NES, and stand in the order of the
papers: AutoDEUQ's, NES', and any Keras-Tuner oracle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from skuq._messages import warn_user
from skuq._params import HasMethods, Interval, Settings, StrOptions, parameters
from skuq.files._registry import PickledByValue, saved_as
from skuq.networks._space import Decisions, Space
from skuq.search import Catalog
from skuq.search._proposers import (
    AgeingEvolution,
    EnsembleEvolution,
    Fixed,
    ForestOptimizer,
    Joint,
    Mutation,
    OracleProposer,
    Proposer,
    RandomProposer,
)

_N_TAKEN_OVER = 10  # best trials of another search that are used as initial trials

_POSITIVE_COUNT = Interval(Integral, 1, None, closed="left")
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
        raise NotImplementedError

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
    """Restrict the decisions that do not vary to their defaults."""
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

    They are the paper's 100 and 10 from 400 trials on. With fewer trials, P is a quarter of the
    budget, so that three quarters of the trials evolve, and S is at most a third of P.
    """
    _warn_of_large_population(strategy.population_size, problem.n_trials)
    n = problem.n_planned or problem.n_trials
    p = strategy.population_size or min(100, max(4, n // 4))
    s = min(p, strategy.sample_size or min(10, max(2, p // 3)))
    return lambda space: AgeingEvolution(space, p, s)


@saved_as("search.AgEBO")
@parameters
class AgEBO(SearchStrategy):
    """Ageing evolution of architectures, with Bayesian optimisation of hyperparameters.

    It is AutoDEUQ's strategy, and the short form "agebo".

    Parameters
    ----------
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is a quarter of `n_trials`, from 4 to the paper's 100, and
        a third of that, from 2 to the paper's 10. With ``n_trials="auto"`` they are those of 50
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


@saved_as("search.AgE")
@parameters
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

    _parameter_constraints = {
        "vary": [StrOptions({"architecture", "hyperparameters", "both"})],
        **_POPULATION,
        **_TRIALS,
    }

    def proposer(self, problem: SearchProblem) -> Proposer:
        return _propose_by(_ageing_evolution(self, problem), problem.decisions, self.vary)


@saved_as("search.BayesianSearch")
@parameters
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

    _parameter_constraints = {
        "vary": [StrOptions({"architecture", "hyperparameters", "both"})],
        **_FOREST,
        **_TRIALS,
    }

    def proposer(self, problem: SearchProblem) -> Proposer:
        return _propose_by(
            lambda space: ForestOptimizer(space, self.kappa, self.n_initial),
            problem.decisions,
            self.vary,
        )


@saved_as("search.RandomSearch")
@parameters
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


@saved_as("search.NESEvolution")
@parameters
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


@saved_as("search.OracleSearch")
@parameters
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
