"""The paper's searches by name."""

from __future__ import annotations

from skuq.networks._search_space import Decisions
from skuq.search._evolution import AgeingEvolution
from skuq.search._forest import ForestOptimizer
from skuq.search._proposers import Fixed, Joint, Proposer, RandomProposer

__all__ = ["STRATEGIES", "make_proposer", "pin", "population_sizes"]

#: Names as in the paper: Fig. 1 (agebo, age, bo, init) and Fig. 2 (the mixed ones).
STRATEGIES = ("agebo", "age", "bo", "init", "rs-mixed", "age-mixed", "bo-mixed")


def population_sizes(n_trials: int, population_size=None, sample_size=None) -> tuple[int, int]:
    """P and S: the paper's 100 and 10 where the budget is large enough for them.

    With fewer than 400 trials P is a quarter of the budget, so that three quarters of
    the trials evolve, and S at most a third of P.
    """
    p = population_size or min(100, max(4, n_trials // 4))
    return p, min(p, sample_size or min(10, max(2, p // 3)))


def pin(decisions: Decisions, fixed_architecture=None, fixed_hyperparameters=None) -> Decisions:
    """The same decisions, where those a user has fixed have one value.

    Raises
    ------
    ValueError
        If a fixed decision is not one of the space's, or its value is not.
    """
    halves = (
        ("fixed_architecture", decisions.architecture, fixed_architecture or {}),
        ("fixed_hyperparameters", decisions.hyperparameters, fixed_hyperparameters or {}),
    )
    pinned = []
    for name, space, fixed in halves:
        complete = space.check(fixed, name)
        pinned.append(space.pin({key: complete[key] for key in fixed}))
    return Decisions(*pinned)


def make_proposer(
    strategy: str,
    decisions: Decisions,
    n_trials: int,
    *,
    fixed_architecture=None,
    fixed_hyperparameters=None,
    population_size=None,
    sample_size=None,
    kappa=0.001,
) -> Proposer:
    """The proposer of a named strategy.

    Parameters
    ----------
    strategy : str
        One of `STRATEGIES`. "agebo" evolves the architecture and optimises the
        hyperparameters; "age" evolves architectures with fixed hyperparameters; "bo"
        optimises hyperparameters with a fixed architecture; "init" fixes both, so that
        only first weights and batches differ; the "-mixed" ones treat both as one vector
        (random, ageing evolution, Bayesian optimisation).
    decisions : Decisions
    n_trials : int
        Budget, from which the population's size follows.
    fixed_architecture, fixed_hyperparameters : dict, optional
        Decisions that are not searched. Where a strategy fixes a whole half, decisions
        left out have the space's default value.
    population_size, sample_size : int, optional
        P and S of the evolution; see `population_sizes`.
    kappa : float, default=0.001
        Exploration of the Bayesian optimiser.

    Raises
    ------
    ValueError
        If the strategy is unknown or a fixed decision is not one of the space's.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"`search` must be one of {STRATEGIES}. Got {strategy!r}.")
    p, s = population_sizes(n_trials, population_size, sample_size)
    architecture, hyperparameters = pin(decisions, fixed_architecture, fixed_hyperparameters)
    one_architecture, one_recipe = architecture.default(), hyperparameters.default()
    both = architecture + hyperparameters
    evolve = AgeingEvolution(architecture, p, s)
    optimise = ForestOptimizer(hyperparameters, kappa)
    proposers = {
        "agebo": Joint(evolve, optimise),
        "age": Joint(evolve, Fixed(one_recipe)),
        "bo": Joint(Fixed(one_architecture), optimise),
        "init": Fixed({**one_architecture, **one_recipe}),
        "rs-mixed": RandomProposer(both),
        "age-mixed": AgeingEvolution(both, p, s),
        "bo-mixed": ForestOptimizer(both, kappa),
    }
    return proposers[strategy]
