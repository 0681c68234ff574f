"""A search whose configurations are known beforehand and share one architecture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from tqdm.auto import tqdm

from skuq._seeds import trial_seed
from skuq.catalog._records import TrialRecord
from skuq.exceptions import SearchFailedError

__all__ = ["run_together"]

_LARGEST_STACK = 16


def run_together(
    together: Callable, configurations: Sequence[dict], entropy: int, *, verbose: int = 0
) -> list[TrialRecord]:
    """Evaluate configurations in a few stacks of equal size.

    Parameters
    ----------
    together : callable
        ``together(configurations, seeds)`` gives a result, or an error, for each.
    configurations : sequence of dict
    entropy : int
        Decides the trials' seeds, as in `run_search`.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    list of TrialRecord
        After a keyboard interrupt those of the stacks that had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If none could be trained.
    """
    n = len(configurations)
    n_stacks = -(-n // _LARGEST_STACK)
    size = -(-n // n_stacks)  # equal, so that stacks share one compiled program
    records = []
    with tqdm(total=n, desc="training", unit="trial", disable=not verbose) as bar:
        try:
            for first in range(0, n, size):
                numbers = range(first, min(first + size, n))
                seeds = [trial_seed(entropy, k) for k in numbers]
                results = together([configurations[k] for k in numbers], seeds)
                records += [
                    _record(k, configurations[k], seed, result)
                    for k, seed, result in zip(numbers, seeds, results)
                ]
                bar.update(len(numbers))
        except KeyboardInterrupt:
            if not any(record.completed for record in records):
                raise
            warnings.warn(
                f"Training interrupted: going on with {len(records)} of {n} trials.", stacklevel=2
            )
    if not any(record.completed for record in records):
        raise SearchFailedError(
            f"All {n} trials failed, the first with: {records[0].message}", records
        )
    return records


def _record(number, configuration, seed, result):
    if isinstance(result, Exception):
        message = f"{type(result).__name__}: {result}"
        return TrialRecord(number, configuration, seed, "failed", message=message)
    return TrialRecord(
        number, configuration, seed, score=result.score, seconds=result.seconds, result=result
    )
