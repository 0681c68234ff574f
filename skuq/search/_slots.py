"""Slots: places that run trials, one at a time in each slot.

A slot is a process of its own (joblib's loky), a thread, a thread of a Dask cluster, or the
caller itself; all have the interface `Slots`. A process that dies loses only its own trial and is
replaced. A process that has compiled many programs is replaced, too, because a backend keeps
memory for each of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self

import joblib

from skuq.search._dask_slots import DaskSlots
from skuq.search._process_slots import MAX_BYTES as _MAX_BYTES
from skuq.search._process_slots import ProcessSlots, can_start_processes, resident_bytes

# From this many trials on, even one job runs in a process: the caller's memory stays flat.
_MANY_TRIALS = 50
# Starting worker processes takes several seconds. Two cores are busy in the calling process, too,
# where folds train side by side.
_WORTH_PROCESSES, _WORTH_TWO_PROCESSES = 30.0, 100.0


class Slots(Protocol):
    """A context manager with places for `n_slots` trials at a time."""

    n_slots: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> bool | None: ...

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        """Start a trial in a free slot: evaluate configuration, seed and budget."""

    def stop(self, slot: int) -> bool:
        """End the trial that the slot runs, and return whether that was possible."""

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error."""


def open_slots(
    evaluate: Callable[..., Any],
    n_jobs: int | None = None,
    n_trials: int = 1,
    seconds: float = math.inf,
) -> Slots:
    """Make slots according to `n_jobs` and joblib's configuration.

    Inside a worker of joblib or a task of Dask, in processes that cannot start others, and with
    one job and few trials, trials run in the caller. Under
    ``joblib.parallel_config(backend="threading")`` they run in threads, under ``backend="dask"``
    on the client's cluster, and otherwise in processes.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed[, budget]) -> result``, which is sent once to each process.
        If it has a method ``cancel()``, this is called when its results are no longer needed.
    n_jobs : int, optional
        Number of slots as in joblib: None means 1 unless a `parallel_config` sets another number,
        and -1 means all cores. On Dask it is at most the present number of the workers' threads,
        which is also the default.
    n_trials : int, default=1
        Maximum number of slots.
    seconds : float, default=inf
        Time of the whole search. Below 30 seconds, or 100 with at most two jobs, trials run in the
        caller instead of in processes, which take several seconds to start.

    Returns
    -------
    Slots
        A context manager.

    Raises
    ------
    ValueError
        If trials cannot run on joblib's backend.
    TimeoutError
        If a Dask cluster has no workers.

    Examples
    --------
    >>> from skuq.search import open_slots
    >>> def evaluate(configuration, seed):
    ...     return configuration["x"] + seed
    >>> with open_slots(evaluate, n_jobs=1) as slots:
    ...     future = slots.submit(0, {"x": 1}, 10)
    ...     slots.n_slots, slots.result(0, future)
    (1, 11)
    """
    backend, configured = joblib.parallel.get_active_backend()
    name = type(backend).__name__
    if (backend.nesting_level or 0) > 0 or _is_in_dask_task():
        return InlineSlots(evaluate)
    n_jobs = configured if n_jobs is None else n_jobs
    if name == "DaskDistributedBackend":
        return _open_dask_slots(evaluate, backend, n_jobs, n_trials)
    n_slots = max(1, min(joblib.effective_n_jobs(n_jobs), n_trials))
    if name == "ThreadingBackend":
        return ThreadSlots(evaluate, n_slots)
    if name not in ("LokyBackend", "SequentialBackend", "MultiprocessingBackend"):
        raise ValueError(
            f"Trials cannot run on joblib's {name}. Use the loky, threading or dask backend."
        )
    is_short = seconds < (_WORTH_PROCESSES if n_slots > 2 else _WORTH_TWO_PROCESSES)
    few_programs = n_slots == 1 and n_trials <= _MANY_TRIALS and resident_bytes() < _MAX_BYTES
    if is_short or few_programs or not can_start_processes():
        return InlineSlots(evaluate)
    return ProcessSlots(evaluate, n_slots)


def _open_dask_slots(
    evaluate: Callable[..., Any], backend: Any, n_jobs: int | None, n_trials: int
) -> Slots:
    """Make slots on the cluster of joblib's Dask backend."""
    n_threads = backend.effective_n_jobs(n_jobs)  # threads of all workers, whatever n_jobs is
    n_jobs = -1 if n_jobs is None else n_jobs
    n_slots = min(n_jobs if n_jobs > 0 else n_threads + 1 + n_jobs, n_threads, n_trials)
    return DaskSlots(evaluate, backend.client, max(1, n_slots), backend.submit_kwargs)


def _is_in_dask_task() -> bool:
    """Tell whether the caller is a task of a Dask worker, which joblib's nesting does not show."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


class InlineSlots:
    """One slot, in the calling thread."""

    n_slots = 1

    def __init__(self, evaluate: Callable[..., Any]) -> None:
        self._evaluate = evaluate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._evaluate(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def stop(self, slot: int) -> bool:
        """Return False: a thread cannot be ended from outside."""
        return False

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error."""
        return future.result()


class ThreadSlots(InlineSlots):
    """Slots that are threads of the calling process."""

    def __init__(self, evaluate: Callable[..., Any], n_slots: int) -> None:
        super().__init__(evaluate)
        self.n_slots = n_slots
        self._pool = ThreadPoolExecutor(n_slots, thread_name_prefix="skuq-slot")
        self._futures: list[Future[Any] | None] = [None] * n_slots

    def __exit__(self, *exception: object) -> None:
        busy = any(future is not None and not future.done() for future in self._futures)
        if busy and hasattr(self._evaluate, "cancel"):
            self._evaluate.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        future = self._futures[slot] = self._pool.submit(self._evaluate, *arguments)
        return future

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error."""
        try:
            return super().result(slot, future)
        except SystemExit as error:  # must end only the trial, not the caller
            raise RuntimeError(f"SystemExit: {error}") from error
