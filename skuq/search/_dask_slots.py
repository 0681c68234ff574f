"""Slots on a Dask cluster.

The evaluation travels as a worker plugin. The scheduler gives it once to each worker, and to
each that is started later, so that a worker that dies takes nothing with it but the trial it was
running; Dask gives that trial to another worker. Scattered data would be lost with the last
worker that has a copy, and draw the trials to the workers that have one.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import CancelledError, Future

import distributed

from skuq.exceptions import SlotsLostError
from skuq.search._parcel import Parcel, opened

__all__ = ["DaskSlots"]

_GOODBYE_SECONDS = 10  # the end of a search waits no longer for the cluster to answer
_RESTART_SECONDS = 30


class DaskSlots:
    """Slots that are threads of a cluster's workers.

    Parameters
    ----------
    evaluate : callable
    client : distributed.Client
    n_slots : int
    submit_kwargs : dict, optional
        For ``client.submit``, for example the `resources` of a trial.
    """

    def __init__(self, evaluate, client, n_slots, submit_kwargs=None):
        self.n_slots = n_slots
        self._evaluate = evaluate
        self._client = client
        self._submit_kwargs = submit_kwargs or {}
        self._name = f"skuq-{uuid.uuid4().hex}"
        self._tasks = [None] * n_slots

    def __enter__(self):
        parcel = Parcel(self._evaluate)
        self._check_client()
        try:
            self._client.register_plugin(_Delivery(parcel), name=self._name)
        except BaseException:  # some workers may have got it
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        # A thread of its own: a cluster that does not answer must not hold up the caller.
        goodbye = threading.Thread(target=self._leave, name="skuq-dask-goodbye", daemon=True)
        goodbye.start()
        goodbye.join(_GOODBYE_SECONDS)
        return False

    def _leave(self):
        # The cluster may be gone, which is as good as having left it.
        with contextlib.suppress(Exception):
            self._client.cancel([task for task in self._tasks if task is not None])
        with contextlib.suppress(Exception):
            self._client.unregister_worker_plugin(self._name)

    def submit(self, slot, configuration, seed) -> Future:
        """Start a trial.

        Raises
        ------
        SlotsLostError
            If the client was closed or has lost the cluster.
        """
        self._check_client()
        settings = {**self._submit_kwargs, "pure": False}
        task = self._client.submit(_run, self._name, configuration, seed, **settings)
        self._tasks[slot] = task
        future = Future()
        future.set_running_or_notify_cancel()
        task.add_done_callback(lambda task: _bridge(task, future))
        return future

    def stop(self, slot) -> bool:
        """Restart the slot's worker, if a nanny can and nobody else is using it.

        Elsewhere the trial goes on, and with it the slot: what runs in a thread cannot be
        ended, and another trial would only wait behind it.
        """
        task = self._tasks[slot]
        try:
            place = self._client.run_on_scheduler(_place, task.key)
            if place is not None and not place[1]:
                return False
            task.cancel()
            if place is not None:
                self._client.restart_workers(
                    [place[0]], timeout=_RESTART_SECONDS, raise_for_error=False
                )
        except Exception:  # of many kinds, and all say that the cluster does not do it
            return False
        self._tasks[slot] = None
        return True

    def result(self, slot, future):
        """What the evaluation returned; raises what it raised.

        Raises
        ------
        RuntimeError
            If every worker that was given the trial died, or Dask cancelled it.
        SlotsLostError
            If the client was closed or has lost the cluster.
        """
        self._tasks[slot] = None  # else Dask would repeat a finished trial whose worker dies
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
        return opened(*outcome)

    def _check_client(self):
        if self._client.status != "running":
            raise SlotsLostError(
                f"The Dask client is {self._client.status}, not running: it was closed, or has "
                "lost its cluster. Keep the client open until the search has ended."
            )


def _bridge(task, future):
    """In Dask's thread for callbacks: hand over what a task gave."""
    try:
        future.set_result(task.result())
    except BaseException as error:
        future.set_exception(error)


def _place(key, dask_scheduler):
    """On the scheduler: the worker that has a task, and whether it can be restarted alone."""
    task = dask_scheduler.tasks.get(key)
    worker = None if task is None else task.processing_on
    if worker is None:
        return None
    return worker.address, worker.nanny is not None and len(worker.processing) == 1


class _Delivery(distributed.WorkerPlugin):
    """Brings a parcel to a worker, and ends what is left of it when it is taken away."""

    def __init__(self, parcel):
        self.parcel = parcel

    def teardown(self, worker):
        self.parcel.cancel()


def _run(name, configuration, seed):
    """In a worker: the outcome of a trial."""
    delivery = distributed.get_worker().plugins.get(name)
    if delivery is None:
        raise RuntimeError(
            "The Dask worker has no search to run this trial of: the search has ended, or the "
            "cluster's scheduler was restarted in the middle of it."
        )
    return delivery.parcel.run(configuration, seed)
