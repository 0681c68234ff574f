"""The asynchronous search: whenever a slot is free, ask and submit; tell what finishes."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Protocol

from tqdm.auto import tqdm

from skuq._seeds import generator, trial_seed
from skuq.catalog._records import TrialRecord
from skuq.exceptions import SearchFailedError, SlotsLostError
from skuq.search._limits import Limits
from skuq.search._proposers import Proposer

__all__ = ["Store", "keep", "known_records", "run_search"]

_logger = logging.getLogger("skuq")


class Store(Protocol):
    """Where finished trials are kept, for example a `skuq.catalog.CatalogFolder`.

    Attributes
    ----------
    records : sequence of TrialRecord
        Of earlier searches, in the order in which they finished.
    """

    def add(self, record: TrialRecord):
        """Keep a trial; when this returns it is safe."""


def known_records(store: Store | None, n_trials: int) -> list[TrialRecord]:
    """Trials of the store that belong to a budget of so many."""
    return [] if store is None else [r for r in store.records if r.trial_number < n_trials]


def run_search(
    proposer: Proposer,
    slots,
    n_trials: int,
    entropy: int,
    *,
    store: Store | None = None,
    limits: Limits | None = None,
    verbose: int = 0,
    what: str = "search",
) -> list[TrialRecord]:
    """Evaluate `n_trials` configurations, or as many of them as a store has not yet.

    Parameters
    ----------
    proposer : Proposer
    slots : object
        From `open_slots`, entered.
    n_trials : int
    entropy : int
        Decides the proposals' generators and the trials' seeds, by trial number.
    store : Store, optional
        Trials that it has are not evaluated again; each that finishes is added before the
        next is asked for.
    limits : Limits, optional
    verbose : int, default=0
        1 shows a progress bar.
    what : str, default="search"
        Its name, for people.

    Returns
    -------
    list of TrialRecord
        In the order in which the trials finished, those of the store first. After a keyboard
        interrupt, or if the slots are lost, those that had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If no trial succeeded, none of the first ten, more than `limits` allow failed, or the
        proposer raised.
    """
    limits = limits or Limits()
    history, running = known_records(store, n_trials), {}
    if history:
        _logger.info("going on with %d of %d trials", len(history), n_trials)
    known = {record.trial_number for record in history}
    over = deque()  # what has finished and is not kept yet
    waiting = deque(number for number in range(n_trials) if number not in known)
    free = list(range(slots.n_slots))
    with tqdm(
        total=n_trials, initial=len(history), desc=what, unit="trial", disable=not verbose
    ) as bar:
        try:
            while (waiting or running) and not limits.out_of_time(history):
                while free and waiting:
                    slot, number = free.pop(0), waiting.popleft()
                    trial = _propose(proposer, number, history, running, entropy)
                    trial["deadline"] = limits.deadline()
                    future = slots.submit(slot, trial["configuration"], trial["seed"])
                    running[future] = slot, trial
                over.extend(_finished(slots, running, limits))
                while over:
                    slot, record = over[0]
                    keep(record, history, store)
                    over.popleft()
                    free.append(slot)
                    _report(bar, record, history)
                limits.check_failures(history, n_trials, len(known))
        except (KeyboardInterrupt, SlotsLostError) as error:
            for _, record in over:
                keep(record, history, store)
            if not any(record.completed for record in history):
                raise
            why = f": {error}" if str(error) else "."
            n = f"{len(history)} of {n_trials}"
            warnings.warn(
                f"{what.capitalize()} interrupted: going on with {n} trials{why}", stacklevel=2
            )
    limits.check_failures(history, n_trials, len(known))
    if hasattr(proposer, "tell"):
        proposer.tell(history)
    return history


def keep(record, history, store):
    """First where it is safe; an interrupt at any moment may have this done again."""
    if history and history[-1] is record:
        return
    if store is not None:
        store.add(record)
    history.append(record)


def _propose(proposer, number, history, running, entropy):
    asked = [trial["configuration"] for _, trial in running.values()]
    try:
        configuration = proposer.ask(history, asked, generator(entropy, "ask", number))
    except Exception as error:
        raise SearchFailedError(
            f"The search could not propose trial {number}: {error}\n"
            f"{len(history)} trials had finished (the exception's `records`).",
            history,
        ) from error
    return {
        "trial_number": number,
        "configuration": configuration,
        "seed": trial_seed(entropy, number),
        "submitted": time.monotonic(),
    }


def _finished(slots, running, limits):
    """Wait for some trial to be over; yields (slot, record) of each that is.

    Of trials that went with their slots there is no record: they are not over.
    """
    patience = min(trial["deadline"] for _, trial in running.values()) - time.monotonic()
    finished, _ = wait(
        running, None if patience == math.inf else max(0, patience), return_when=FIRST_COMPLETED
    )
    lost = None
    for future in sorted(finished, key=lambda f: running[f][1]["trial_number"]):
        slot, trial = running.pop(future)
        try:
            yield slot, _record(trial, *_outcome(slots, slot, future))
        except SlotsLostError as error:
            lost = error
    if lost is not None:
        raise lost
    overdue = [f for f, (_, trial) in running.items() if trial["deadline"] <= time.monotonic()]
    for future in overdue:
        slot, trial = running[future]
        trial["deadline"] = math.inf  # where it cannot be stopped it has to end itself
        if slots.stop(slot):
            del running[future]
            reason = f"TimeoutError: stopped after trial_timeout={limits.trial_timeout:g} s."
            yield slot, _record(trial, None, reason)


def _outcome(slots, slot, future):
    """What an evaluation gave, and why it failed if it did."""
    try:
        result = slots.result(slot, future)
    except SlotsLostError:
        raise
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    if not math.isfinite(result.score):
        return None, f"The evaluation gave a score of {result.score}."
    return result, ""


def _record(trial, result, reason) -> TrialRecord:
    return TrialRecord(
        trial["trial_number"],
        trial["configuration"],
        trial["seed"],
        status="failed" if reason else "completed",
        score=float("nan") if reason else result.score,
        seconds=time.monotonic() - trial["submitted"],
        message=reason,
        result=result,
    )


def _report(bar, record, history):
    bar.update()
    scores = [r.score for r in history if r.completed]
    bar.set_postfix(best=f"{min(scores):.3f}" if scores else "-", failed=len(history) - len(scores))
    if record.completed:
        _logger.info("trial %d: score %.4f", record.trial_number, record.score)
    else:
        # Not a warning: in a wide space some networks diverge, and the catalog says so.
        _logger.info("trial %d failed: %s", record.trial_number, record.message)
