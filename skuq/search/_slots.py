"""Slots: places that run trials, one at a time in each slot.

A slot is a process of its own (joblib's loky), a thread, a thread of a Dask cluster, or the
caller itself; all have the interface `Slots`. A process that dies loses only its own trial and is
replaced. A process that has compiled many programs is replaced, too, because a backend keeps
memory for each of them.

On Dask, the evaluation is sent as a worker plugin, which the scheduler gives once to each worker,
also to workers that start later. A worker that dies loses only the trial it was running, and Dask
gives that trial to another worker. Scattered data, the alternative, would be lost with the last
worker that has a copy, and Dask would prefer workers that have one. Dask is optional: functions
that need it import it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Self

import joblib

from skuq.backend import loaded
from skuq.exceptions import SlotsLostError
from skuq.search._process_slots import MAX_BYTES as _MAX_BYTES
from skuq.search._process_slots import (
    EvaluationPayload,
    Outcome,
    ProcessSlots,
    Slots,
    can_start_processes,
    cancel,
    resident_bytes,
    unpack_outcome,
)

_CLEAN_UP_SECONDS = 10  # maximum time that the end of a search waits for the cluster
_RESTART_SECONDS = 30  # longest time to wait for a restarted worker


class DaskSlots(Slots):
    """Slots that are threads of a cluster's workers.

    `submit_kwargs` are for ``client.submit``, for example the `resources` of a trial. Futures of
    ``client.get_executor()`` would not do: they hide the task, by which `stop` finds the worker of
    an overdue trial, and `result` lets Dask forget a finished one.
    """

    def __init__(
        self,
        evaluate: Callable[..., Any],
        client: Any,
        n_slots: int,
        submit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(evaluate)
        self.n_slots = n_slots
        self._client = client
        self._submit_kwargs = submit_kwargs or {}
        self._name = f"skuq-{uuid.uuid4().hex}"
        self._tasks: list[Any] = [None] * n_slots

    def __enter__(self) -> Self:
        payload = EvaluationPayload(self._evaluate)
        self._check_client()
        try:
            import distributed

            class PayloadPlugin(distributed.WorkerPlugin):
                payload: EvaluationPayload

                def teardown(self, worker: Any) -> None:
                    self.payload.cancel()

            plugin = PayloadPlugin()
            plugin.payload = payload
            self._client.register_plugin(plugin, name=self._name)
        except BaseException:  # some workers may have the plugin already
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        # In a thread, so that a cluster that does not answer does not block the caller.
        thread = threading.Thread(target=self._clean_up, name="skuq-dask-clean-up", daemon=True)
        thread.start()
        thread.join(_CLEAN_UP_SECONDS)

    def _clean_up(self) -> None:
        # If the cluster is gone, there is nothing to clean up.
        with contextlib.suppress(Exception):
            self._client.cancel([task for task in self._tasks if task is not None])
        with contextlib.suppress(Exception):
            self._client.unregister_worker_plugin(self._name)

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        """Start a trial in a free slot, or raise SlotsLostError."""
        self._check_client()
        # Equal arguments are different trials: Dask must not return an earlier result.
        settings = {**self._submit_kwargs, "pure": False}
        task = self._client.submit(_run_trial, self._name, *arguments, **settings)
        self._tasks[slot] = task
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def copy_outcome(task: Any) -> None:  # runs in Dask's callback thread
            try:
                future.set_result(task.result())
            except BaseException as error:
                future.set_exception(error)

        task.add_done_callback(copy_outcome)
        return future

    def stop(self, slot: int) -> bool:
        """Restart the slot's worker, if it has a nanny and runs nothing else.

        Otherwise the trial continues in its slot: a thread cannot be ended from outside, and
        another trial would only wait behind it.
        """
        task = self._tasks[slot]
        try:
            # The scheduler alone knows which worker has the task at present.
            found = self._client.run_on_scheduler(_find_worker, task.key)
            if found is not None and not found[1]:
                return False
            task.cancel()
            if found is not None:
                self._client.restart_workers(
                    [found[0]], timeout=_RESTART_SECONDS, raise_for_error=False
                )
        except Exception:  # errors of any type mean that the cluster cannot stop the trial
            return False
        self._tasks[slot] = None
        return True

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error.

        Raises
        ------
        RuntimeError
            If every worker that was given the trial died, or Dask cancelled it.
        SlotsLostError
            If the client was closed or has lost the cluster.
        """
        import distributed

        self._tasks[slot] = None  # otherwise Dask repeats a finished trial if its worker dies
        try:
            outcome = future.result()
        except distributed.KilledWorker as error:
            raise RuntimeError(
                "The Dask worker died, and so did those that were given the trial next "
                f"(killed, or out of memory). {error}"
            ) from error
        except CancelledError as error:
            self._check_client()
            raise RuntimeError(f"Dask cancelled the trial: {error}") from error
        return unpack_outcome(*outcome)

    def _check_client(self) -> None:
        if self._client.status != "running":
            raise SlotsLostError(
                f"The Dask client is {self._client.status} instead of running: it was closed, or "
                "has lost its cluster. Keep the client open until the search has ended."
            )


def _find_worker(key: str, dask_scheduler: Any) -> tuple[str, bool] | None:
    """Return the address of the worker that has a task, and whether it can be restarted alone.

    Runs on the scheduler.
    """
    task = dask_scheduler.tasks.get(key)
    worker = None if task is None else task.processing_on
    if worker is None:
        return None
    return worker.address, worker.nanny is not None and len(worker.processing) == 1


def _run_trial(name: str, *arguments: Any) -> Outcome:
    """Run a trial in a worker."""
    import distributed

    plugin: Any = distributed.get_worker().plugins.get(name)
    if plugin is None:
        raise RuntimeError(
            "The Dask worker does not know the search of this trial: the search has ended, or the "
            "cluster's scheduler was restarted during it."
        )
    payload: EvaluationPayload = plugin.payload
    return payload.run(*arguments)


# With more trials, even one job runs in a process: the caller's memory stays flat.
_MANY_TRIALS = 50
# Starting worker processes takes several seconds. Two cores are busy in the calling process, too,
# where folds train side by side.
_WORTH_PROCESSES, _WORTH_TWO_PROCESSES = 30.0, 100.0


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
    >>> from skuq.search._slots import open_slots
    >>> def evaluate(configuration, seed):
    ...     return configuration["x"] + seed
    >>> with open_slots(evaluate, n_jobs=1) as slots:
    ...     future = slots.submit(0, {"x": 1}, 10)
    ...     slots.n_slots, slots.result(0, future)
    (1, 11)
    """
    backend, configured = joblib.parallel.get_active_backend()
    name = type(backend).__name__
    # Nested processes would compete for the cores that the outer level has shared out.
    if (backend.nesting_level or 0) > 0 or _is_in_dask_task():
        return InlineSlots(evaluate)
    n_jobs = configured if n_jobs is None else n_jobs
    if name == "DaskDistributedBackend":
        n_threads = backend.effective_n_jobs(n_jobs)  # threads of all workers, whatever n_jobs is
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
    # Starting processes takes several seconds, which a short search does not have.
    is_short = seconds < (_WORTH_PROCESSES if n_slots > 2 else _WORTH_TWO_PROCESSES)
    few_programs = n_slots == 1 and n_trials <= _MANY_TRIALS and resident_bytes() < _MAX_BYTES
    if is_short or few_programs or not can_start_processes():
        return InlineSlots(evaluate)
    return ProcessSlots(evaluate, n_slots)


def _is_in_dask_task() -> bool:
    """Tell whether the caller is a task of a Dask worker, which joblib's nesting does not show."""
    distributed = loaded("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


class InlineSlots(Slots):
    """One slot, in the calling thread."""

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._evaluate(*arguments))
        except SystemExit as error:  # as in other slots, it must end only the trial
            future.set_exception(RuntimeError(f"SystemExit: {error}"))
        except Exception as error:
            future.set_exception(error)
        return future


class ThreadSlots(Slots):
    """Slots that are threads of the calling process."""

    def __init__(self, evaluate: Callable[..., Any], n_slots: int) -> None:
        super().__init__(evaluate)
        self.n_slots = n_slots
        self._pool = ThreadPoolExecutor(n_slots, thread_name_prefix="skuq-slot")
        self._futures: list[Future[Any] | None] = [None] * n_slots

    def __exit__(self, *exception: object) -> None:
        # Trials still run after an interrupt, or if time was over. Otherwise the evaluation stays
        # usable.
        if any(future is not None and not future.done() for future in self._futures):
            cancel(self._evaluate)
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
