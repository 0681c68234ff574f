"""Make the proposers of the AutoDEUQ paper's searches by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skuq.networks._search_space import Decisions
from skuq.search._evolution import AgeingEvolution
from skuq.search._forest import ForestOptimizer
from skuq.search._proposers import Fixed, Joint, Proposer, RandomProposer

#: Names as in the paper: Fig. 1 (agebo, age, bo, init) and Fig. 2 (the mixed ones).
STRATEGIES = ("agebo", "age", "bo", "init", "rs-mixed", "age-mixed", "bo-mixed")


def population_sizes(
    n_trials: int, population_size: int | None = None, sample_size: int | None = None
) -> tuple[int, int]:
    """Choose population size P and sample size S of ageing evolution.

    They are the paper's 100 and 10 from 400 trials on. With fewer trials, P is a quarter of the
    budget, so that three quarters of the trials evolve, and S is at most a third of P.
    """
    p = population_size or min(100, max(4, n_trials // 4))
    return p, min(p, sample_size or min(10, max(2, p // 3)))


def pin(
    decisions: Decisions,
    fixed_architecture: Mapping[str, Any] | None = None,
    fixed_hyperparameters: Mapping[str, Any] | None = None,
) -> Decisions:
    """Restrict decisions fixed by the user to their single value.

    Raises
    ------
    ValueError
        If the space does not have a fixed decision or its value.
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
    fixed_architecture: Mapping[str, Any] | None = None,
    fixed_hyperparameters: Mapping[str, Any] | None = None,
    population_size: int | None = None,
    sample_size: int | None = None,
    kappa: float = 0.001,
    n_initial: int = 10,
) -> Proposer:
    """Make the proposer of a named strategy.

    Parameters
    ----------
    strategy : str
        One of `STRATEGIES`. "agebo" evolves the architecture and optimises the
        hyperparameters; "age" evolves architectures with fixed hyperparameters; "bo"
        optimises hyperparameters with a fixed architecture; "init" fixes both, so that
        only initial weights and batches differ; the "-mixed" strategies treat both as one vector
        (random search, ageing evolution, Bayesian optimisation).
    decisions : Decisions
        Decisions about architecture and training.
    n_trials : int
        Budget of the search, which determines the default population size.
    fixed_architecture, fixed_hyperparameters : dict, optional
        Decisions that are not searched. If a strategy fixes all decisions of one kind, those
        that are not given have the space's default value.
    population_size, sample_size : int, optional
        P and S of the evolution; see `population_sizes`.
    kappa : float, default=0.001
        Exploration of the Bayesian optimiser: the weight of the standard deviation.
    n_initial : int, default=10
        Number of trials with a score, at least 1, before the Bayesian optimiser replaces random
        configurations. The paper starts with one random configuration for each worker.

    Raises
    ------
    ValueError
        If the strategy is unknown, or the space does not have a fixed decision.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import WidthDepthSpace
    >>> from skuq.search import make_proposer
    >>> proposer = make_proposer("agebo", WidthDepthSpace().decisions(), n_trials=100)
    >>> sorted(proposer.ask([], [], np.random.default_rng(0)))[:3]
    ['batch_size', 'depth', 'early_stopping_patience']
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"`search` must be one of {STRATEGIES}. Got {strategy!r}.")
    p, s = population_sizes(n_trials, population_size, sample_size)
    architecture, hyperparameters = pin(decisions, fixed_architecture, fixed_hyperparameters)
    default_architecture, default_recipe = architecture.default(), hyperparameters.default()
    both = architecture + hyperparameters
    evolve = AgeingEvolution(architecture, p, s)
    optimise = ForestOptimizer(hyperparameters, kappa, n_initial)
    proposers: dict[str, Proposer] = {
        "agebo": Joint(evolve, optimise),
        "age": Joint(evolve, Fixed(default_recipe)),
        "bo": Joint(Fixed(default_architecture), optimise),
        "init": Fixed({**default_architecture, **default_recipe}),
        "rs-mixed": RandomProposer(both),
        "age-mixed": AgeingEvolution(both, p, s),
        "bo-mixed": ForestOptimizer(both, kappa, n_initial),
    }
    return proposers[strategy]
