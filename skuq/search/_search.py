"""Run an asynchronous search: a free slot gets the next proposal when results are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from skuq._seeds import generator, trial_seed
from skuq.catalog import Catalog, HeldOut
from skuq.catalog._records import TrialBudget, TrialRecord
from skuq.exceptions import SearchFailedError
from skuq.search._halving import SuccessiveHalving
from skuq.search._limits import RunOptions
from skuq.search._proposers import Proposer
from skuq.search._result import SearchResult
from skuq.search._running import RunningTrial, RunningTrials
from skuq.search._slots import Slots, open_slots
from skuq.search._trial_log import Store, TrialLog

_MAX_STACK_SIZE = 16  # networks of one program


@dataclass(frozen=True)
class Search:
    """Everything that determines a search; `run` runs it.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``, where ``result.score`` is minimised. If its
        attribute `takes_budget` is true, it also gets a `skuq.catalog.TrialBudget`, and returns a
        `skuq.catalog.TrialOutcome`. With `in_stacks` it has the methods ``can_train_together`` and
        ``train_together`` of a `skuq.training.MemberTrainer`.
    proposer : Proposer
        Proposes the configurations.
    n_trials : int
        Number of trials, including those of the store.
    entropy : int
        Origin of the proposals' random generators and of the trials' seeds, by trial number.
    held_out : HeldOut, optional
        Rows that every trial predicts, for the catalog.
    store : Store, optional
        Place for finished trials. Trials that it has are not run again, and each new one is added
        before the next is proposed.
    options : RunOptions, optional
        Parallelism, limits and reports.
    halving : SuccessiveHalving, optional
        Rule that discards trials early, for evaluations that take a budget. None trains all trials
        to their end.
    in_stacks : bool, default=False
        Whether the proposer ignores results, so that all configurations are known in advance.
        Trials that can be trained together are then trained in stacks of at most 16, without
        slots, and `trial_timeout` is the limit of their average time. With `max_time`, for which
        single trials are shortened, there are no stacks.
    open_slots : callable, optional
        ``open_slots(evaluate, n_jobs, n_trials, seconds)`` makes the slots that trials run in. By
        default `skuq.search.open_slots`.
    seconds : float, default=inf
        Time of the whole fit that the search belongs to. Where it is short, no worker processes
        are started.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from skuq.search import Search, StartingWith
    >>> def evaluate(configuration, seed):
    ...     return SimpleNamespace(score=(configuration["x"] - 2) ** 2)
    >>> proposer = StartingWith([{"x": 0}, {"x": 2}, {"x": 5}], proposer=None)
    >>> result = Search(evaluate, proposer, n_trials=3, entropy=0).run()
    >>> [record.score for record in result.catalog]
    [4, 0, 9]
    """

    evaluate: Callable[..., Any]
    proposer: Proposer
    n_trials: int
    entropy: int
    held_out: HeldOut | None = None
    store: Store | None = None
    options: RunOptions = field(default_factory=RunOptions)
    halving: SuccessiveHalving | None = None
    in_stacks: bool = False
    open_slots: Callable[..., Slots] = open_slots
    seconds: float = math.inf

    def run(self) -> SearchResult:
        """Run the trials that the store does not have.

        Returns
        -------
        SearchResult
            All trials. After a keyboard interrupt, or if the slots are lost, it has the trials
            that had finished, and a warning is issued.

        Raises
        ------
        SearchFailedError
            If no trial succeeded, all of the first ten failed, more failed than the limits allow,
            or the proposer raised an error.
        """
        if configurations := self._stackable_configurations():
            return self._run_in_stacks(configurations)
        log = TrialLog(self.n_trials, self.store, self.options)
        n_missing = max(1, len(log.missing))
        new_slots = self.open_slots(self.evaluate, self.options.n_jobs, n_missing, self.seconds)
        with new_slots as slots, log:
            running = RunningTrials(slots, self.options.limits)
            while (log.missing or running) and log.seconds_left() > 0:
                # Fill the free slots, as long as a further trial fits into the time left.
                while log.missing and running.free_slots:
                    seconds, is_tight = log.time_of_next_trial(slots.n_slots)
                    if not seconds:
                        break
                    trial = self._next_trial(log, running)
                    budget = self._budget(log, seconds, is_tight)
                    running[slots.submit(trial.slot, *trial.arguments, *budget)] = trial
                if not running:
                    break
                log.finished.extend(running.wait(log.seconds_left()))
                log.store_finished()
        if hasattr(self.proposer, "tell"):
            self.proposer.tell(log.history)
        catalog = Catalog(log.history, self.held_out)
        return SearchResult(catalog, interrupted=log.interrupted)

    def _budget(self, log: TrialLog, seconds: float, is_tight: bool) -> tuple[TrialBudget, ...]:
        """Make the budget of the next trial, if the evaluation takes one."""
        if not getattr(self.evaluate, "takes_budget", False):
            return ()
        stages = () if self.halving is None else self.halving.stages(log.history)
        return (TrialBudget(stages, seconds, shorten=is_tight),)

    def _stackable_configurations(self) -> list[dict[str, Any]]:
        """Propose all configurations if they can be trained in stacks; otherwise return none."""
        if not self.in_stacks or self.options.limits.max_time is not None:
            return []
        rngs = [generator(self.entropy, "ask", k) for k in range(self.n_trials)]
        configurations = [self.proposer.ask([], [], rng) for rng in rngs]
        evaluate: Any = self.evaluate
        return configurations if evaluate.can_train_together(configurations) else []

    def _run_in_stacks(self, configurations: list[dict[str, Any]]) -> SearchResult:
        """Train the missing trials in a few stacks of equal size, in the calling process."""
        log = TrialLog(self.n_trials, self.store, replace(self.options, name="training"))
        evaluate: Any = self.evaluate
        missing = list(log.missing)
        # Stacks of equal size share one compiled program.
        n_stacks = math.ceil(self.n_trials / _MAX_STACK_SIZE)
        size = math.ceil(self.n_trials / n_stacks)
        with log:
            for first in range(0, len(missing), size):
                numbers = missing[first : first + size]
                seeds = [trial_seed(self.entropy, k) for k in numbers]
                try:
                    results = evaluate.train_together([configurations[k] for k in numbers], seeds)
                except TimeoutError as error:
                    results = [error] * len(numbers)
                log.finished.extend(
                    _record(k, configurations[k], seed, result)
                    for k, seed, result in zip(numbers, seeds, results)
                )
                log.store_finished()
        return SearchResult(Catalog(log.history, self.held_out), interrupted=log.interrupted)

    def _next_trial(self, log: TrialLog, running: RunningTrials) -> RunningTrial:
        """Propose the configuration of the first missing trial, and take a free slot for it."""
        slot, number = running.free_slots.popleft(), log.missing.popleft()
        known = [trial.configuration for trial in running.values()]
        try:
            rng = generator(self.entropy, "ask", number)
            configuration = self.proposer.ask(log.history, known, rng)
        except Exception as error:
            raise SearchFailedError(
                f"The search could not propose trial {number}: {error}\n"
                f"{len(log.history)} trials had finished (the exception's `records`).",
                log.history,
            ) from error
        seed = trial_seed(self.entropy, number)
        return RunningTrial(number, configuration, seed, slot, self.options.limits.deadline())


def _record(number: int, configuration: dict[str, Any], seed: int, result: Any) -> TrialRecord:
    """Make the record of a trial that was trained in a stack."""
    if isinstance(result, Exception):
        message = f"{type(result).__name__}: {result}"
        return TrialRecord(number, configuration, seed, "failed", message=message)
    return TrialRecord(
        number, configuration, seed, score=result.score, seconds=result.seconds, result=result
    )
