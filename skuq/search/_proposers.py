"""Who proposes: pure functions of what has finished and what is running.

A proposer keeps no state. Its answer depends on the history, the running configurations
and the generator it is given, so a search can be repeated, resumed and extended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from skuq._space import Space
from skuq.catalog._records import TrialRecord

__all__ = ["Fixed", "Joint", "Listed", "Proposer", "RandomProposer"]


class Proposer(Protocol):
    """Anything that can say what to try next.

    One that keeps a state of its own may also have ``tell(history)``, which is called
    when the search has ended.
    """

    def ask(self, history: Sequence[TrialRecord], running: Sequence[Mapping], rng) -> dict:
        """The next configuration.

        Parameters
        ----------
        history : sequence of TrialRecord
            Finished trials, in the order in which they finished. Scores are minimised.
        running : sequence of dict
            Configurations that are being evaluated.
        rng : numpy.random.Generator
            Belongs to this proposal alone.
        """


@dataclass(frozen=True)
class RandomProposer:
    """Every decision drawn on its own, whatever came before."""

    space: Space

    def ask(self, history, running, rng):
        return self.space.sample(rng)


@dataclass(frozen=True)
class Fixed:
    """The same configuration every time: only the seeds of the trials differ."""

    configuration: Mapping

    def ask(self, history, running, rng):
        return dict(self.configuration)


@dataclass(frozen=True)
class Listed:
    """One configuration after the other, each once."""

    configurations: Sequence[Mapping]

    def ask(self, history, running, rng):
        return dict(self.configurations[len(history) + len(running)])


@dataclass(frozen=True)
class Joint:
    """Two proposers, each for its own decisions, neither knowing of the other's.

    With ageing evolution for the architecture and a Bayesian optimiser for the
    hyperparameters this is AgEBO.
    """

    first: Proposer
    second: Proposer

    def ask(self, history, running, rng):
        one, two = rng.spawn(2)
        return {
            **self.first.ask(history, running, one),
            **self.second.ask(history, running, two),
        }
