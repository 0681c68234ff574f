"""A search whose configurations share one architecture and are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from skuq._seeds import trial_seed
from skuq.catalog._records import TrialRecord
from skuq.search._limits import RunOptions
from skuq.search._trial_log import Store, TrialLog

__all__ = ["run_together"]

_MAX_STACK_SIZE = 16


def run_together(
    evaluate_stack: Callable[..., Sequence[Any]],
    configurations: Sequence[dict[str, Any]],
    entropy: int,
    *,
    store: Store | None = None,
    options: RunOptions | None = None,
) -> list[TrialRecord]:
    """Evaluate configurations in a few stacks of equal size.

    Parameters
    ----------
    evaluate_stack : callable
        ``evaluate_stack(configurations, seeds)`` returns a result, or an error, for each.
    configurations : sequence of dict
    entropy : int
        Decides the trials' seeds, as in `Search`.
    store, options : optional
        As in `Search`. `trial_timeout` holds for a whole stack, and no slots are used.

    Returns
    -------
    list of TrialRecord
        After a keyboard interrupt those of the stacks that had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If none could be trained, or more than the limits allow failed.
    """
    n = len(configurations)
    n_stacks = -(-n // _MAX_STACK_SIZE)
    size = -(-n // n_stacks)  # equal sizes, so that stacks share one compiled program
    log = TrialLog(n, store, replace(options or RunOptions(), name="training"))
    missing = list(log.missing)
    with log:
        for first in range(0, len(missing), size):
            if log.is_out_of_time():
                break
            numbers = missing[first : first + size]
            seeds = [trial_seed(entropy, k) for k in numbers]
            try:
                results = evaluate_stack([configurations[k] for k in numbers], seeds)
            except TimeoutError as error:
                results = [error] * len(numbers)
            log.finished.extend(
                _record(k, configurations[k], seed, result)
                for k, seed, result in zip(numbers, seeds, results)
            )
            log.store_finished()
    return log.history


def _record(number: int, configuration: dict[str, Any], seed: int, result: Any) -> TrialRecord:
    if isinstance(result, Exception):
        message = f"{type(result).__name__}: {result}"
        return TrialRecord(number, configuration, seed, "failed", message=message)
    return TrialRecord(
        number, configuration, seed, score=result.score, seconds=result.seconds, result=result
    )
