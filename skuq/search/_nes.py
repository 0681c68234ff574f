"""Neural ensemble search by regularised evolution (NES-RE)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skuq._space import Space
from skuq.ensembles._likelihood import select_by

__all__ = ["EnsembleEvolution", "Mutation", "ensemble_population"]

_MAX_MUTATIONS = 1000  # draws until one has changed what may change


def ensemble_population(n_trials: int, population_size=None, n_parents=None) -> tuple[int, int]:
    """P and m: the paper's 50 and 10 at its budget of 400, and less for smaller ones.

    P is an eighth of the budget, but at least 8 and at most 50, and never more than half of
    it, so that at least half of the trials evolve; m is at most half of P, so that there is
    something to choose.
    """
    p = population_size or min(max(8, min(50, n_trials // 8)), max(2, n_trials // 2))
    return p, min(p, n_parents or max(1, min(10, p // 2)))


@dataclass(frozen=True)
class Mutation:
    """One change: the space's own kind of an architecture, or another value of a decision.

    Parameters
    ----------
    architecture, hyperparameters : Space
        Decisions with a single value are never changed.
    own : callable, optional
        The space's ``mutate(configuration, rng)``, for architectures. With it, either half is
        as likely to change as the other, if both vary; without it, all decisions are. It is
        asked again where it has changed nothing but decisions with a single value.
    """

    architecture: Space
    hyperparameters: Space
    own: Callable | None = None

    def __call__(self, configuration, rng):
        if self.own is None:
            return (self.architecture + self.hyperparameters).mutate(configuration, rng)
        halves = [half for half in (self.architecture, self.hyperparameters) if half.size > 1]
        half = halves[rng.integers(len(halves))]
        if half is self.hyperparameters:
            return {**configuration, **half.mutate(configuration, rng)}
        single = {d.name: d.default for d in half.decisions if d.size == 1}
        for _ in range(_MAX_MUTATIONS):
            drawn = {**configuration, **self.own(configuration, rng)}
            child = {**drawn, **single}
            if child != configuration or drawn == configuration:
                break
        return child


@dataclass(frozen=True)
class EnsembleEvolution:
    """A mutated copy of a member of the ensemble that the population would make.

    The population is the last `population_size` completed trials: each new one replaces the
    oldest. Until it is full, configurations are random.

    Parameters
    ----------
    sample : callable
        ``sample(rng) -> configuration``.
    mutate : callable
        ``mutate(configuration, rng) -> configuration``.
    judges : sequence of callable
        ``judge(records) -> (statistics, loss, weight)``, for `skuq.ensembles.select_by`: what
        those trials predict of a set of validation rows. One judge is drawn a proposal: with
        clean and shifted rows, evolution finds networks that are good for either.
    population_size : int, default=50
        P.
    n_parents : int, default=10
        m: the parent is drawn uniformly from an ensemble of so many.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    Algorithm 2 and section 4.3.
    """

    sample: Callable
    mutate: Callable
    judges: Sequence[Callable]
    population_size: int = 50
    n_parents: int = 10

    def ask(self, history, running, rng):
        population = [r for r in history if r.completed][-self.population_size :]
        if len(population) < self.population_size:
            return self.sample(rng)
        judge = self.judges[rng.integers(len(self.judges))]
        statistics, loss, weight = judge(population)
        parents = select_by(statistics, loss, self.n_parents, sample_weight=weight).indices
        return self.mutate(population[rng.choice(parents)].configuration, rng)
