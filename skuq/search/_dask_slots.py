"""Run trials on a Dask cluster.

The evaluation is sent as a worker plugin, which the scheduler gives once to each worker, also to
workers that start later. A worker that dies loses only the trial it was running, and Dask gives
that trial to another worker. Scattered data, the alternative, would be lost with the last worker
that has a copy, and Dask would prefer workers that have one.

Dask is optional: functions that need it import it.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from skuq.exceptions import SlotsLostError
from skuq.search._payload import EvaluationPayload, Outcome, unpack_outcome

_CLEAN_UP_SECONDS = 10  # maximum time that the end of a search waits for the cluster
_RESTART_SECONDS = 30  # longest time to wait for a restarted worker


class DaskSlots:
    """Slots that are threads of a cluster's workers.

    `submit_kwargs` are for ``client.submit``, for example the `resources` of a trial.
    """

    def __init__(
        self,
        evaluate: Callable[..., Any],
        client: Any,
        n_slots: int,
        submit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.n_slots = n_slots
        self._evaluate = evaluate
        self._client = client
        self._submit_kwargs = submit_kwargs or {}
        self._name = f"skuq-{uuid.uuid4().hex}"
        self._tasks: list[Any] = [None] * n_slots

    def __enter__(self) -> Self:
        payload = EvaluationPayload(self._evaluate)
        self._check_client()
        try:
            self._client.register_plugin(_make_plugin(payload), name=self._name)
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
        settings = {**self._submit_kwargs, "pure": False}
        task = self._client.submit(_run_trial, self._name, *arguments, **settings)
        self._tasks[slot] = task
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        task.add_done_callback(lambda task: _copy_outcome(task, future))
        return future

    def stop(self, slot: int) -> bool:
        """Restart the slot's worker, if it has a nanny and runs nothing else.

        Otherwise the trial continues in its slot: a thread cannot be ended from outside, and
        another trial would only wait behind it.
        """
        task = self._tasks[slot]
        try:
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


def _copy_outcome(task: Any, future: Future[Any]) -> None:
    """Copy a Dask task's result or error to a future; runs in Dask's callback thread."""
    try:
        future.set_result(task.result())
    except BaseException as error:
        future.set_exception(error)


def _find_worker(key: str, dask_scheduler: Any) -> tuple[str, bool] | None:
    """Return the address of the worker that has a task, and whether it can be restarted alone.

    Runs on the scheduler.
    """
    task = dask_scheduler.tasks.get(key)
    worker = None if task is None else task.processing_on
    if worker is None:
        return None
    return worker.address, worker.nanny is not None and len(worker.processing) == 1


def _make_plugin(payload: EvaluationPayload) -> Any:
    """Make a worker plugin that holds the payload, and cancels it when the search ends."""
    import distributed

    class PayloadPlugin(distributed.WorkerPlugin):
        def __init__(self, payload: EvaluationPayload) -> None:
            self.payload = payload

        def teardown(self, worker: Any) -> None:
            self.payload.cancel()

    return PayloadPlugin(payload)


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
