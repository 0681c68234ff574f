"""Where trials run: slots, each of which evaluates one configuration at a time.

A slot is a process of its own (joblib's loky), a thread, a thread of a Dask cluster, or the
caller itself. They have one interface: ``submit(slot, configuration, seed) -> Future`` starts a
trial, ``result(slot, future)`` is what it gave, and ``stop(slot)`` gives up what the slot is
doing, where that can be done. A process that dies takes its own trial with it and is replaced,
and so is one that has compiled a lot: a backend keeps memory for every program it has ever
compiled.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor

import joblib

from skuq.search._process_slots import MAX_BYTES as _MAX_BYTES
from skuq.search._process_slots import ProcessSlots, resident_bytes

__all__ = ["open_slots"]

# From this many trials on, even one worker is a process: the caller's memory stays flat.
_MANY_TRIALS = 50


def open_slots(evaluate, n_jobs=None, n_trials=1):
    """The slots that `n_jobs` and joblib's configuration ask for; a context manager.

    Inside a worker of joblib or a task of Dask, and with one job and few trials, trials run in
    the caller. Under ``joblib.parallel_config(backend="threading")`` they run in threads, under
    ``backend="dask"`` on the client's cluster, otherwise in processes.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``; pickled once a process. With a method
        ``cancel()`` it is told when nobody wants its results any more.
    n_jobs : int, optional
        As in joblib: None is 1 unless a `parallel_config` says otherwise, -1 all cores. On
        Dask no more than the threads its workers have now, and by default as many.
    n_trials : int, default=1

    Raises
    ------
    ValueError
        If joblib's backend is one that trials cannot run on.
    TimeoutError
        If a Dask cluster has no workers.
    """
    backend, configured = joblib.parallel.get_active_backend()
    name = type(backend).__name__
    if (backend.nesting_level or 0) > 0 or _in_dask_task():
        return InlineSlots(evaluate)
    n_jobs = configured if n_jobs is None else n_jobs
    if name == "DaskDistributedBackend":
        from skuq.search._dask_slots import DaskSlots

        n_threads = backend.effective_n_jobs(n_jobs)  # of all workers, whatever n_jobs is
        n_jobs = -1 if n_jobs is None else n_jobs
        n_slots = min(n_jobs if n_jobs > 0 else n_threads + 1 + n_jobs, n_threads, n_trials)
        return DaskSlots(evaluate, backend.client, max(1, n_slots), backend.submit_kwargs)
    n_slots = max(1, min(joblib.effective_n_jobs(n_jobs), n_trials))
    if name == "ThreadingBackend":
        return ThreadSlots(evaluate, n_slots)
    if name not in ("LokyBackend", "SequentialBackend", "MultiprocessingBackend"):
        raise ValueError(
            f"Trials cannot run on joblib's {name}. Use the loky, threading or dask backend."
        )
    if n_slots == 1 and n_trials <= _MANY_TRIALS and resident_bytes() < _MAX_BYTES:
        return InlineSlots(evaluate)
    return ProcessSlots(evaluate, n_slots)


def _in_dask_task():
    """Whether a Dask worker is what calls. It knows nothing of joblib's nesting."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


class InlineSlots:
    """One slot: the caller."""

    n_slots = 1

    def __init__(self, evaluate):
        self._evaluate = evaluate

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False

    def submit(self, slot, configuration, seed) -> Future:
        future = Future()
        try:
            future.set_result(self._evaluate(configuration, seed))
        except Exception as error:
            future.set_exception(error)
        return future

    def stop(self, slot) -> bool:
        """Nothing ends a thread from outside: the evaluation has to end itself."""
        return False

    def result(self, slot, future):
        """What the evaluation returned; raises what it raised."""
        return future.result()


class ThreadSlots(InlineSlots):
    """Threads of the caller's process."""

    def __init__(self, evaluate, n_slots):
        super().__init__(evaluate)
        self.n_slots = n_slots
        self._pool = ThreadPoolExecutor(n_slots, thread_name_prefix="skuq-slot")
        self._futures = [None] * n_slots

    def __exit__(self, *exception):
        busy = any(future is not None and not future.done() for future in self._futures)
        if busy and hasattr(self._evaluate, "cancel"):
            self._evaluate.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return False

    def submit(self, slot, configuration, seed) -> Future:
        self._futures[slot] = self._pool.submit(self._evaluate, configuration, seed)
        return self._futures[slot]

    def result(self, slot, future):
        """What the evaluation returned; raises what it raised."""
        try:
            return super().result(slot, future)
        except SystemExit as error:  # of the trial's thread, not of the caller
            raise RuntimeError(f"SystemExit: {error}") from error
