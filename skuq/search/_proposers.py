"""Proposers of configurations: pure functions of the finished and the running trials.

A proposer keeps no state. Its answer depends only on the history, the running configurations
and the random generator it is given, so that a search can be repeated, resumed and extended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from skuq._space import Space
from skuq.catalog._records import TrialRecord

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
    """Propose random configurations, independent of the history."""

    space: Space

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        return self.space.sample(rng)


@dataclass(frozen=True)
class Fixed:
    """Propose the same configuration every time: only the seeds of the trials differ."""

    configuration: Mapping[str, Any]

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        return dict(self.configuration)


def _first_untried(
    configurations: Sequence[Mapping[str, Any]], history: History, running: Running
) -> dict[str, Any] | None:
    """Return the first configuration that no trial has; each trial stands for one of its equals.

    Trials are not counted, since a stored search may lack any of them.
    """
    tried = [*(record.configuration for record in history), *running]
    for configuration in configurations:
        if configuration not in tried:
            return dict(configuration)
        tried.remove(configuration)
    return None


@dataclass(frozen=True)
class FixedSequence:
    """Propose the configurations of a list in order, each once."""

    configurations: Sequence[Mapping[str, Any]]

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        untried = _first_untried(self.configurations, history, running)
        assert untried is not None, "every configuration has been proposed"
        return untried


@dataclass(frozen=True)
class StartingWith:
    """Propose given configurations first, then those of another proposer.

    Parameters
    ----------
    configurations : sequence of mapping
        First configurations, in order.
    proposer : Proposer
        Proposer of all others. It learns from the first trials as from its own.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import WidthDepthSpace
    >>> from skuq.search import RandomSearch, SearchProblem, StartingWith
    >>> decisions = WidthDepthSpace().decisions()
    >>> others = RandomSearch().proposer(SearchProblem(decisions, n_trials=10))
    >>> first = {**decisions.architecture.default(), **decisions.hyperparameters.default()}
    >>> StartingWith([first], others).ask([], [], np.random.default_rng(0)) == first
    True
    """

    configurations: Sequence[Mapping[str, Any]]
    proposer: Proposer

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        untried = _first_untried(self.configurations, history, running)
        return self.proposer.ask(history, running, rng) if untried is None else untried


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
