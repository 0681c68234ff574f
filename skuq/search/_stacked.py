"""A search whose configurations are known beforehand and share one architecture."""

from __future__ import annotations

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
        for first in range(0, n, size):
            numbers = range(first, min(first + size, n))
            results = together(
                [configurations[k] for k in numbers], [trial_seed(entropy, k) for k in numbers]
            )
            records += [
                _record(number, configurations[number], trial_seed(entropy, number), result)
                for number, result in zip(numbers, results)
            ]
            bar.update(len(numbers))
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
