"""Ageing evolution (Real et al., 2018), as AutoDEUQ uses it on architectures."""

from __future__ import annotations

from dataclasses import dataclass

from skuq._space import Space

__all__ = ["AgeingEvolution"]


@dataclass(frozen=True)
class AgeingEvolution:
    """A mutated copy of the best of a few members of a population that ages.

    The population is the last `population_size` completed trials: each new one replaces
    the oldest, however good that was. Until it is full, configurations are random.

    Parameters
    ----------
    space : Space
        The decisions that evolve.
    population_size : int, default=100
        P.
    sample_size : int, default=10
        S: the parent is the best of so many, drawn without replacement.

    References
    ----------
    Egele et al., "AutoDEUQ", Algorithm 1, lines 17-23; the settings are AgEBO-Tabular's.
    """

    space: Space
    population_size: int = 100
    sample_size: int = 10

    def ask(self, history, running, rng):
        population = [r for r in history if r.completed][-self.population_size :]
        if len(population) < self.population_size:
            return self.space.sample(rng)
        size = min(self.sample_size, len(population))
        drawn = rng.choice(len(population), size=size, replace=False)
        parent = min((population[i] for i in drawn), key=lambda record: record.score)
        return self.space.mutate(parent.configuration, rng)
