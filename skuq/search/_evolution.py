"""Ageing evolution (Real et al., 2018), as AutoDEUQ uses it on architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._space import Space
from skuq.search._proposers import History, Running


@dataclass(frozen=True)
class AgeingEvolution:
    """Propose a mutated copy of the best of a sample of the population.

    The population is the last `population_size` trials that have a score, completed or discarded:
    each new one replaces the oldest, whatever their scores. Until it is full, configurations are
    random.

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
