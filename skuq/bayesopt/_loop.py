"""The loop that evaluates a function at proposed points and records what it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from skuq._progress import Progress
from skuq._warnings import warn_user
from skuq.bayesopt._results import ResultLog
from skuq.exceptions import SearchFailedError

_logger = logging.getLogger("skuq")

_MOST_FAILURES = 10  # evaluations that may fail before the first success


def run_loop(
    func: Callable[[np.ndarray], Any],
    log: ResultLog,
    ask: Callable[[int], np.ndarray],
    lock: AbstractContextManager[Any],
    *,
    n_calls: int,
    q: int,
    first: np.ndarray,
    best: Callable[[], float],
    is_to_stop: Callable[[], bool],
    verbose: int | None,
) -> str:
    """Evaluate `func` at batches of `q` points until `n_calls` more results are in the log.

    The points of `first` (k, d) come before any is asked for. The log changes under the `lock` of
    the search. ``best()`` is shown as progress, and ``is_to_stop()`` is called after each batch.
    Return why the loop ended; raise SearchFailedError if none of the first ten evaluations, or of
    all, was usable.
    """
    end = len(log) + n_calls
    message = f"All {n_calls} evaluations are done."
    with Progress("search", "point", n_calls, verbose=verbose) as progress:
        try:
            while len(log) < end:
                n = min(q, end - len(log))
                if not len(first) and not log.n_left:
                    message = "Every point of the domain is known."
                    break
                if len(first):
                    batch, first = first[:n], first[n:]
                    with lock:
                        log.expect(batch)
                else:
                    batch = ask(int(min(n, log.n_left)))
                n_done = 0
                try:
                    for x in batch:
                        if n_done:
                            progress.step()
                        _evaluate(func, x, log, lock)
                        n_done += 1
                finally:  # after an interrupt, the rest of the batch is no longer pending
                    with lock:
                        log.forget(batch[n_done:])
                progress.step(best=f"{best():.4g}", failed=log.n_failed)
                if is_to_stop():
                    message = "Stopped by `callback`."
                    break
        except KeyboardInterrupt:
            if not log.has_value:
                raise
            message = f"Interrupted after {len(log)} of {end} evaluations."
            warn_user(message)
    if not log.has_value:
        raise _failure(log)
    return message


def _evaluate(func, x, log, lock):
    """Call the function at one point (d,) and record its result or its exception."""
    try:
        y, constraints = func(x.copy()), None
        if log.rules.estimators and isinstance(y, tuple) and len(y) == 2:
            y, constraints = y
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        _logger.info("evaluation %d failed: %s", len(log), message)
        with lock:
            log.add_failures(x, message)
    else:
        if y is None and not log.has_value:  # perhaps a forgotten `return`
            raise ValueError(f"The function must return numbers. Got None at x={x.tolist()}.")
        with lock:
            if y is None:
                log.add_failures(x, "no result")
            else:
                log.add(x, y, constraints)
    if len(log) >= _MOST_FAILURES and not log.has_value:
        raise _failure(log)


def _failure(log):
    return SearchFailedError(
        f"None of {len(log)} evaluations was usable. The last one: {log.messages[-1]}. "
        "The function gets one point of shape (d,), and returns a finite number."
    )
