"""One search, from its proposer to the trials that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from skuq._seeds import generator
from skuq.catalog import Catalog, HeldOut
from skuq.search._limits import RunOptions
from skuq.search._loop import run_trials
from skuq.search._proposers import Proposer
from skuq.search._result import SearchResult
from skuq.search._stacked import run_together
from skuq.search._trial_log import Store

__all__ = ["Search"]


@dataclass(frozen=True)
class Search:
    """Everything that decides a search.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``. With the methods ``fit_together`` and
        ``together`` of a `skuq.training.MemberTrainer` it can evaluate in stacks, too.
    proposer : Proposer
    n_trials : int
    entropy : int
        Decides the proposals' generators and the trials' seeds, by trial number.
    held_out : HeldOut
        Rows that every trial predicts, for the catalog.
    store : Store, optional
        Trials that it has are not run again; each that finishes is added to it.
    options : RunOptions, optional
    in_stacks : bool, default=False
        Whether all configurations are known beforehand: trials that can be trained side by side
        then are.
    """

    evaluate: Callable[..., Any]
    proposer: Proposer
    n_trials: int
    entropy: int
    held_out: HeldOut
    store: Store | None = None
    options: RunOptions = field(default_factory=RunOptions)
    in_stacks: bool = False

    def run(self) -> SearchResult:
        """Run the trials that the store does not have.

        Raises
        ------
        SearchFailedError
            If no trial succeeded, or more failed than the limits allow.
        """
        records = None
        if self.in_stacks:
            rngs = [generator(self.entropy, "ask", k) for k in range(self.n_trials)]
            configurations = [self.proposer.ask([], [], rng) for rng in rngs]
            evaluate: Any = self.evaluate
            if evaluate.fit_together(configurations):
                records = run_together(
                    evaluate.together,
                    configurations,
                    self.entropy,
                    store=self.store,
                    options=self.options,
                )
        if records is None:
            records = run_trials(
                self.evaluate,
                self.proposer,
                self.n_trials,
                self.entropy,
                store=self.store,
                options=self.options,
            )
        return SearchResult(Catalog(records, self.held_out))
