"""Neural ensemble search by regularised evolution (NES-RE)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._space import Space
from skuq.ensembles._likelihood import select_by
from skuq.search._proposers import History, Running

_MAX_MUTATIONS = 1000  # attempts to change a decision that has several values


def ensemble_population(
    n_trials: int, population_size: int | None = None, n_parents: int | None = None
) -> tuple[int, int]:
    """Choose population size P and number of parents m of NES' evolution.

    They are the paper's 50 and 10 at its budget of 400 trials. P is an eighth of the budget, at
    least 8 and at most 50, and never more than half of the budget, so that at least half of the
    trials evolve. m is at most half of P, so that parents are a selection.
    """
    p = population_size or min(max(8, min(50, n_trials // 8)), max(2, n_trials // 2))
    return p, min(p, n_parents or max(1, min(10, p // 2)))


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
        `skuq.ensembles.select_by` for the trials' predictions on one set of validation rows.
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
    >>> from skuq.catalog import TrialRecord
    >>> from skuq.search import EnsembleEvolution
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
