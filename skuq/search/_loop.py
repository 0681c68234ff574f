"""The asynchronous search: whenever a slot is free, ask and submit; tell what finishes."""

from __future__ import annotations

import logging
import time
import warnings
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, wait

from tqdm.auto import tqdm

from skuq._seeds import generator, trial_seed
from skuq.catalog._records import TrialRecord
from skuq.exceptions import SearchFailedError
from skuq.search._proposers import Proposer

__all__ = ["run_search"]

_logger = logging.getLogger("skuq")

# A search whose first trials all fail has something wrong with it, not with them.
_HOPELESS = 10


def run_search(
    proposer: Proposer, slots, n_trials: int, entropy: int, *, verbose: int = 0
) -> list[TrialRecord]:
    """Evaluate `n_trials` configurations.

    Parameters
    ----------
    proposer : Proposer
    slots : object
        From `open_slots`, entered.
    n_trials : int
    entropy : int
        Decides the proposals' generators and the trials' seeds, by trial number.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    list of TrialRecord
        In the order in which the trials finished. After a keyboard interrupt those that
        had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If no trial succeeded, none of the first ten, or the proposer raised.
    """
    history, running = [], {}
    free = list(range(slots.n_slots))
    n_asked = 0
    with tqdm(total=n_trials, desc="search", unit="trial", disable=not verbose) as bar:
        try:
            while n_asked < n_trials or running:
                while free and n_asked < n_trials:
                    slot = free.pop(0)
                    asked = [trial["configuration"] for _, trial in running.values()]
                    try:
                        configuration = proposer.ask(
                            history, asked, generator(entropy, "ask", n_asked)
                        )
                    except Exception as error:
                        raise SearchFailedError(
                            f"The search could not propose trial {n_asked}: {error}\n"
                            f"{len(history)} trials had finished (the exception's `records`).",
                            history,
                        ) from error
                    seed = trial_seed(entropy, n_asked)
                    trial = {
                        "trial_number": n_asked,
                        "configuration": configuration,
                        "seed": seed,
                        "seconds": -time.perf_counter(),
                    }
                    n_asked += 1
                    running[slots.submit(slot, configuration, seed)] = slot, trial
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=lambda f: running[f][1]["trial_number"]):
                    slot, trial = running.pop(future)
                    record = _record(slots, slot, future, trial)
                    history.append(record)
                    free.append(slot)
                    _report(bar, record, history)
                _stop_if_hopeless(history, n_trials)
        except KeyboardInterrupt:
            if not any(record.completed for record in history):
                raise
            warnings.warn(
                f"Search interrupted: going on with {len(history)} of {n_trials} trials.",
                stacklevel=2,
            )
    if hasattr(proposer, "tell"):
        proposer.tell(history)
    return history


def _record(slots, slot, future, trial) -> TrialRecord:
    try:
        result = slots.result(slot, future)
    except Exception as error:
        outcome = {"status": "failed", "message": f"{type(error).__name__}: {error}"}
    else:
        outcome = {"status": "completed", "score": result.score, "result": result}
    return TrialRecord(**{**trial, "seconds": trial["seconds"] + time.perf_counter()}, **outcome)


def _report(bar, record, history):
    bar.update()
    scores = [r.score for r in history if r.completed]
    bar.set_postfix(best=f"{min(scores):.3f}" if scores else "-", failed=len(history) - len(scores))
    if record.completed:
        _logger.info("trial %d: score %.4f", record.trial_number, record.score)
    else:
        # Not a warning: in a wide space some networks diverge, and the catalog says so.
        _logger.info("trial %d failed: %s", record.trial_number, record.message)


def _stop_if_hopeless(history, n_trials):
    if any(r.completed for r in history) or len(history) < min(n_trials, _HOPELESS):
        return
    reasons = Counter(record.message for record in history).most_common(3)
    listed = "\n".join(f"  {count} x {message}" for message, count in reasons)
    raise SearchFailedError(
        f"All {len(history)} trials so far failed, most often with:\n{listed}\n"
        "Check the search space and the data (the exception's `records` hold every trial).",
        history,
    )
