"""Run an asynchronous search: a free slot gets the next proposal when results are known.

Its result has the catalog, and the predictions that ensembles are selected on. Selected trials can
be refitted on all rows. Their networks are stored beside the trials of the search, and a resumed
fit takes them from there.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skuq._messages import warn_user
from skuq._random import generator, trial_seed
from skuq.ensembles._rules import Candidates
from skuq.exceptions import SearchFailedError
from skuq.files._registry import saved_record
from skuq.networks import Member
from skuq.networks._member import FoldedMember
from skuq.search import Catalog, _records
from skuq.search._records import (
    HeldOut,
    Pack,
    RunningPacks,
    RunningTrial,
    RunOptions,
    TrialBudget,
    TrialLog,
    TrialRecord,
)
from skuq.search._slots import Slots, open_slots
from skuq.search._strategies import Proposer, StartingWith


@saved_record("search.SearchResult", eq=True)
class SearchResult:
    """The trials of a search, and the members refitted on all rows.

    Attributes
    ----------
    catalog : Catalog
        All trials of the search.
    refitted : dict of int to Member
        Members refitted on all rows, by position in the catalog.
    interrupted : bool
        Whether the search ended early, by an interrupt or because it lost its slots.

    Examples
    --------
    >>> from skuq.search import Catalog, TrialRecord
    >>> from skuq.search import SearchResult
    >>> result = SearchResult(Catalog([TrialRecord(0, {"units": 8}, score=0.4)]))
    >>> result.catalog, result.interrupted
    (<Catalog of 1 trials, 1 completed>, False)
    """

    catalog: Catalog
    refitted: dict[int, Member] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def sets(self) -> list[tuple[slice, np.ndarray, np.ndarray]]:
        """All held-out sets: the clean rows first, then each shifted set."""
        held_out: Any = self.catalog.held_out
        return list(held_out.sets)

    def candidates(
        self, head: Any, sets: Sequence[tuple[slice, np.ndarray, np.ndarray]] | None = None
    ) -> Candidates:
        """Collect the completed trials' predictions for some of the held-out sets.

        Each set has the same total weight. Sets are often versions of the same rows in the same
        order, so that rows with the same position form a group.

        Parameters
        ----------
        head : Head
            Head of the targets.
        sets : list, optional
            Sets to collect, by default the shifted ones, or all rows if there are none.
        """
        sets = sets or self.sets[1:] or self.sets
        self.check_complete()
        members = [self.catalog.member(k) for k in self.catalog.completed]
        raw = [np.concatenate([np.asarray(m.held_out)[p] for p, _, _ in sets]) for m in members]
        y = np.concatenate([y for _, y, _ in sets]).astype("float64")
        # Sets of any size count the same.
        weight = np.concatenate([weight / weight.sum() for _, _, weight in sets])
        rows = np.concatenate([np.arange(len(y)) for _, y, _ in sets])
        groups = getattr(self.catalog.held_out, "groups", None)
        groups = rows if groups is None or len(groups) != rows.max() + 1 else groups[rows]
        is_clean = len(self.sets) == 1
        is_unseen = is_clean and all(isinstance(m, FoldedMember) for m in members)
        calibrates = is_unseen or (is_clean and len(y) >= _records.CALIBRATION_ROWS)
        # Centres exist for the clean rows only, and all trials must have one.
        centers: Any = [getattr(m, "center", None) if is_clean else None for m in members]
        centers = None if any(center is None for center in centers) else centers
        return Candidates(raw, y, head, weight, rows, centers, is_unseen, calibrates, groups)

    def check_complete(self) -> None:
        """Raise ValueError if the networks outside the ensemble are gone, as in a pickle."""
        members = [self.catalog.member(k) for k in self.catalog.completed]
        if any(network.weights is None for member in members for network in member.networks):
            raise ValueError(
                "The catalog has lost the networks that are not in the ensemble, because a pickle "
                "or a file of `skuq.save` keeps the members only. Do this before, load the search "
                "from its `catalog_dir` by `from_catalog`, or fit again."
            )

    def networks(self, index: int) -> tuple[Member, ...]:
        """Return the networks of a completed trial, or the refitted one."""
        if index in self.refitted:
            return (self.refitted[index],)
        return self.catalog.member(index).networks

    def members(self, selection: Any) -> tuple[tuple[Member, ...], np.ndarray]:
        """Return the networks of a selection, and their weights.

        A trial has one network, or one for each fold, which share the trial's weight.

        Parameters
        ----------
        selection : skuq.ensembles.Selection
            Positions of trials in the catalog, and their weights.
        """
        trials = [self.networks(k) for k in selection.indices]
        counts = [len(networks) for networks in trials]
        weights = np.repeat(selection.weights / counts, counts)
        return tuple(network for networks in trials for network in networks), weights


@dataclass(frozen=True)
class Search:
    """Everything that determines a search; `run` runs it.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``, where ``result.score`` is minimised. If its
        attribute `takes_budget` is true, it also gets a `TrialBudget`, and returns a
        `TrialOutcome`.
    proposer : Proposer
        Proposes the configurations.
    n_trials : int
        Number of trials, including those of the store.
    entropy : int
        Origin of the proposals' random generators and of the trials' seeds, by trial number.
    held_out : HeldOut, optional
        Rows that every trial predicts, for the catalog.
    store : object, optional
        Place for finished trials, as a `TrialLog` takes it. Trials that it has are not run again,
        and each new one is added before the next is proposed.
    options : RunOptions, optional
        Parallelism, limits and reports.
    pack_size : int, default=1
        Largest number of trials that are proposed and run together in a slot. If it is above 1,
        `evaluate` has a method ``together(configurations, seeds[, budget])``, which returns a
        result or an error of each trial.
    open_slots : callable, optional
        ``open_slots(evaluate, n_jobs, n_trials, seconds)`` makes the slots that trials run in.
    seconds : float, default=inf
        Time of the whole fit that the search belongs to. Where it is short, no worker processes
        are started.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from skuq.search import Search
    >>> from skuq.search._strategies import StartingWith
    >>> def evaluate(configuration, seed):
    ...     return SimpleNamespace(score=(configuration["x"] - 2) ** 2)
    >>> proposer = StartingWith([{"x": 0}, {"x": 2}, {"x": 5}])
    >>> result = Search(evaluate, proposer, n_trials=3, entropy=0).run()
    >>> [record.score for record in result.catalog]
    [4, 0, 9]
    """

    evaluate: Any
    proposer: Proposer
    n_trials: int
    entropy: int
    held_out: HeldOut | None = None
    store: Any = None
    options: RunOptions = field(default_factory=RunOptions)
    pack_size: int = 1
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
        log = TrialLog(self.n_trials, self.store, self.options)
        n_missing = max(1, len(log.missing))
        # No more slots than trials: each of them may start a process.
        new_slots = self.open_slots(self.evaluate, self.options.n_jobs, n_missing, self.seconds)
        with new_slots as slots, log:
            running = RunningPacks(slots, self.options.limits)
            while (log.missing or running) and log.seconds_left() > 0:
                most = min(self.pack_size, math.ceil(len(log.missing) / slots.n_slots))
                # Fill the free slots, as long as a further trial fits into the time left.
                while log.missing and running.free_slots:
                    seconds, is_tight, n_trials = self.options.limits.time_of_next_trials(
                        log.history, log.started, log.n_known, most
                    )
                    if not seconds:
                        break
                    pack = self._next_pack(log, running, n_trials)
                    budget: tuple[TrialBudget, ...] = ()
                    if getattr(self.evaluate, "takes_budget", False):
                        budget = (TrialBudget(seconds, shorten=is_tight),)
                    _, *arguments = zip(*pack.trials) if len(pack.trials) > 1 else pack.trials[0]
                    running[slots.submit(pack.slot, *arguments, *budget)] = pack
                if not running:
                    break
                running.wait(log)
                log.store_finished()
        # Keras-Tuner's oracles also expect the results of the last trials.
        if hasattr(self.proposer, "tell"):
            self.proposer.tell(log.history)
        return SearchResult(Catalog(log.history, self.held_out), interrupted=log.interrupted)

    def _next_pack(self, log: TrialLog, running: RunningPacks, size: int) -> Pack:
        """Propose configurations of the first missing trials, and take a free slot for them."""
        # Proposers of a parallel search need the trials that still run.
        trials, others, limits = list[RunningTrial](), running.trials, self.options.limits
        for number in log.take(size):
            if number in log.alone:  # proposed before
                trials.append(log.alone[number])
                continue
            known = [trial.configuration for trial in (*others, *trials)]
            try:
                # A generator for each trial: a resumed search proposes as an uninterrupted one.
                rng = generator(self.entropy, "ask", number)
                configuration = self.proposer.ask(log.history, known, rng)
            except Exception as error:
                raise SearchFailedError(
                    f"The search could not propose trial {number}: {error}\n"
                    f"{len(log.history)} trials had finished (the exception's `records`).",
                    log.history,
                ) from error
            trials.append(RunningTrial(number, configuration, trial_seed(self.entropy, number)))
        deadline = math.inf
        if limits.trial_timeout is not None:
            deadline = time.monotonic() + len(trials) * limits.trial_timeout + limits.grace
        return Pack(trials, running.free_slots.popleft(), deadline)


@dataclass(frozen=True)
class Refits:
    """The refits of a search's chosen trials on all rows.

    Parameters
    ----------
    result : SearchResult
        Result of the search.
    indices : sequence of int
        Positions of the trials in the catalog.
    """

    result: SearchResult
    indices: Sequence[int]

    @property
    def trials(self) -> list[TrialRecord]:
        """The records of the trials."""
        return [self.result.catalog[k] for k in self.indices]

    def train(
        self, search: Search, make_evaluation: Callable[..., Any], options: RunOptions, store: Any
    ) -> SearchResult:
        """Train the networks that the store does not have.

        Trainings that fail are left out, with a warning. Errors are not raised, so that the search
        is not lost.

        Parameters
        ----------
        search : Search
            The search, which has run.
        make_evaluation : callable
            ``make_evaluation(evaluate, trials)`` returns an evaluation of ``{"trial": number}``.
        options : RunOptions
        store : object, optional
            Place for the networks: ``refits()`` gives their records, and ``add_refit(record)``
            stores one.
        """
        requests, reason = [{"trial": trial.trial_number} for trial in self.trials], ""
        stored = None if store is None else _StoredRefits(self, store)
        records: Sequence[TrialRecord] = [] if stored is None else stored.records
        try:
            # A search of its own: slots, limits and interrupts then work as in the first one.
            again = Search(
                make_evaluation(search.evaluate, self.trials),
                StartingWith(requests),
                len(requests),
                search.entropy,
                store=stored,
                options=options,
                seconds=search.seconds,
            )
            records = again.run().catalog
        except (Exception, KeyboardInterrupt) as error:
            reason = f"{type(error).__name__}: {error}"
        failures = [record.message for record in records if record.failed]
        if reason:
            # The whole run failed: all that is missing has failed with it.
            failures = [reason] * (len(requests) - len(records))
        if failures:
            warn_user(
                f"{len(failures)} of {len(requests)} networks could not be refitted on all rows; "
                f"the networks of the search are used instead ({failures[0]})."
            )
        return self.join(records)

    def find(self, stored: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Find the refits among stored records, numbered by their order here."""
        known, found = {record.trial_number: record for record in stored}, []
        for number, trial in enumerate(self.trials):
            record = known.get(trial.trial_number)
            # Another search may have stored other trials under the same numbers.
            if record is not None and record.configuration == trial.configuration:
                request = {"trial": trial.trial_number}
                found.append(replace(record, trial_number=number, configuration=request))
        return found

    def join(self, records: Sequence[TrialRecord]) -> SearchResult:
        """Join refitted networks to the result of the search."""
        refitted = {self.indices[r.trial_number]: r.result for r in records if r.completed}
        return replace(self.result, refitted=self.result.refitted | refitted)


class _StoredRefits:
    """The stored refits, with the interface of a search's store.

    Failed ones are not stored, so that a later fit tries them again.
    """

    def __init__(self, refits: Refits, store: Any) -> None:
        self._refits, self._store = refits, store
        self.records = refits.find(store.refits())

    def add(self, record: TrialRecord) -> None:
        if record.completed:
            # Stored by the number of its trial, by which a later fit finds it.
            trial = self._refits.trials[record.trial_number]
            number, configuration = trial.trial_number, trial.configuration
            self._store.add_refit(replace(record, trial_number=number, configuration=configuration))
