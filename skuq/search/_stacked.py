"""A search whose configurations are known beforehand and share one architecture."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence

from tqdm.auto import tqdm

from skuq._seeds import trial_seed
from skuq.catalog._records import TrialRecord
from skuq.search._limits import Limits
from skuq.search._loop import Store, keep, known_records

__all__ = ["run_together"]

_LARGEST_STACK = 16


def run_together(
    together: Callable,
    configurations: Sequence[dict],
    entropy: int,
    *,
    store: Store | None = None,
    limits: Limits | None = None,
    verbose: int = 0,
) -> list[TrialRecord]:
    """Evaluate configurations in a few stacks of equal size.

    Parameters
    ----------
    together : callable
        ``together(configurations, seeds)`` gives a result, or an error, for each.
    configurations : sequence of dict
    entropy : int
        Decides the trials' seeds, as in `run_search`.
    store, limits : optional
        As in `run_search`; what they say of a trial holds for a stack.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    list of TrialRecord
        After a keyboard interrupt those of the stacks that had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If none could be trained, or more than `limits` allow failed.
    """
    n = len(configurations)
    n_stacks = -(-n // _LARGEST_STACK)
    size = -(-n // n_stacks)  # equal, so that stacks share one compiled program
    limits = limits or Limits()
    records = known_records(store, n)
    known = {record.trial_number for record in records}
    over = deque()  # what has been trained and is not kept yet
    waiting = [number for number in range(n) if number not in known]
    with tqdm(
        total=n, initial=len(records), desc="training", unit="trial", disable=not verbose
    ) as bar:
        try:
            for first in range(0, len(waiting), size):
                if limits.out_of_time(records):
                    break
                numbers = waiting[first : first + size]
                seeds = [trial_seed(entropy, k) for k in numbers]
                try:
                    results = together([configurations[k] for k in numbers], seeds)
                except TimeoutError as error:
                    results = [error] * len(numbers)
                over.extend(
                    _record(k, configurations[k], seed, result)
                    for k, seed, result in zip(numbers, seeds, results)
                )
                while over:
                    keep(over[0], records, store)
                    over.popleft()
                bar.update(len(numbers))
                limits.check_failures(records, n, len(known))
        except KeyboardInterrupt:
            for record in over:
                keep(record, records, store)
            if not any(record.completed for record in records):
                raise
            warnings.warn(
                f"Training interrupted: going on with {len(records)} of {n} trials.", stacklevel=2
            )
    limits.check_failures(records, n, len(known))
    return records


def _record(number, configuration, seed, result):
    if isinstance(result, Exception):
        message = f"{type(result).__name__}: {result}"
        return TrialRecord(number, configuration, seed, "failed", message=message)
    return TrialRecord(
        number, configuration, seed, score=result.score, seconds=result.seconds, result=result
    )
