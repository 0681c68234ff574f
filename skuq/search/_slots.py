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

import contextlib
import itertools
import math
import os
import pickle
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from multiprocessing import current_process
from pathlib import Path
from typing import Any, Self

import cloudpickle
import joblib
from joblib.externals.loky import process_executor

from skuq.backend import loaded
from skuq.backend._scopes import call_after_fork
from skuq.exceptions import SearchSpaceError, SlotsLostError

_DEVICES = Path("/dev")  # NVIDIA's driver has a file for each GPU here


def gpu_of_slot(slot: int) -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES`` for a slot's process, or None to leave it as it is.

    With several GPUs the slots take them in turn. With one or none, every process sees the same
    devices as the caller.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # Like CUDA, ignore everything after the first invalid name.
        usable = itertools.takewhile(lambda name: name not in ("", "-1"), names)
        gpus = list(dict.fromkeys(usable))
    else:
        files = [p.name for p in _DEVICES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
        gpus = [str(k) for k in range(len(files))]
    return gpus[slot % len(gpus)] if len(gpus) > 1 else None


class Slots:
    """Places that run trials, one at a time in each of `n_slots` slots: a context manager.

    Parameters
    ----------
    evaluate : callable
        See `open_slots`.
    """

    def __init__(self, evaluate: Callable[..., Any], n_slots: int = 1) -> None:
        self._evaluate, self.n_slots = evaluate, n_slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Free what the slots use, and abandon trials that still run."""

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        """Start a trial in a free slot: evaluate configuration, seed and budget."""
        raise NotImplementedError

    def stop(self, slot: int) -> bool:
        """End the trial that the slot runs, and return whether that was possible.

        A thread cannot be ended from outside.
        """
        return False

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error."""
        return future.result()


#: Whether the evaluation returned, its pickled result or error, and the error's message.
Outcome = tuple[bool, bytes, str]


class EvaluationPayload:
    """A pickled evaluation; each process unpickles it once, when it first runs it.

    Raises SearchSpaceError if the evaluation cannot be pickled.
    """

    def __init__(self, evaluate: Callable[..., Any]) -> None:
        try:
            pickled = cloudpickle.dumps(evaluate)
        except Exception as error:
            raise SearchSpaceError(
                f"The search cannot be sent to worker processes ({type(error).__name__}: {error}). "
                "Most often the search space has a part that cannot be pickled. Use n_jobs=1, or "
                'joblib.parallel_config(backend="threading").'
            ) from error
        self.__setstate__((getattr(evaluate, "needs_backend", False), pickled))

    def __getstate__(self) -> tuple[bool, bytes]:
        return self._needs_backend, self._pickled

    def __setstate__(self, state: tuple[bool, bytes]) -> None:
        self._needs_backend, self._pickled = state
        self._evaluate: Callable[..., Any] | None = None
        self._is_cancelled, self._lock = False, threading.Lock()

    def run(self, *arguments: Any) -> Outcome:
        """Run one evaluation; never raises.

        The result is pickled here, so that a result that cannot be pickled only fails its own
        trial, with a message that names the reason.
        """
        try:
            with self._lock:  # several threads of one process may call at the same time
                if self._evaluate is None:
                    if self._needs_backend:
                        # Import the backend quietly, before a user's function imports it.
                        from skuq.backend import keras  # noqa: F401
                    self._evaluate = cloudpickle.loads(self._pickled)
                    if self._is_cancelled:
                        cancel(self._evaluate)
                evaluate: Any = self._evaluate
            return True, cloudpickle.dumps(run_trials(evaluate, *arguments)), ""
        except BaseException as error:  # sys.exit() in a trial must not end the caller
            pickled = b""
            # SystemExit and the like must not be raised again in the caller.
            if isinstance(error, Exception):
                with contextlib.suppress(Exception):
                    pickled = cloudpickle.dumps(error)
            return False, pickled, f"{type(error).__name__}: {error}"

    def cancel(self) -> None:
        """Ask running evaluations to end soon; can be called from any thread."""
        self._is_cancelled = True
        cancel(self._evaluate)


def cancel(evaluate: Any) -> None:
    if hasattr(evaluate, "cancel"):
        evaluate.cancel()


def unpack_outcome(returned: bool, pickled: bytes, message: str) -> Any:
    """Return the result that `EvaluationPayload.run` sent, or raise its error.

    Raises
    ------
    RuntimeError
        Instead of an error that could not be pickled, and if the result cannot be unpickled.
    """
    try:
        value = pickle.loads(pickled) if pickled else None
    except Exception as error:
        unreadable = f"What the trial returned cannot be read ({type(error).__name__}: {error})."
        raise RuntimeError(unreadable if returned else message) from error
    if returned:
        return value
    raise value if isinstance(value, Exception) else RuntimeError(message)


_MAX_BYTES = 1.5e9  # resident memory of one process
_MAX_TRIALS = 150  # trials of one process: about 6 MB stay for each compiled program
_IDLE_SECONDS = 300  # time that a warm process waits for the next search
_STOP_SECONDS = 5.0  # time in which a killed process ends
_REMOVE_SECONDS = 2.0  # time to remove a folder that others may still write to
_PARENT_CHECK_SECONDS = 2.0


class ProcessSlots(Slots):
    """Slots that are processes, each with a share of the cores and, if possible, its own GPU."""

    def __init__(self, evaluate: Callable[..., Any], n_slots: int) -> None:
        super().__init__(evaluate, n_slots)
        self._n_threads = max(1, joblib.cpu_count() // n_slots)
        self._workers: list[_Worker | None] = [None] * n_slots
        self._futures: list[Future[Any] | None] = [None] * n_slots
        self._killed: list[Any] = []  # processes that may not have ended yet

    def __enter__(self) -> Self:
        payload = EvaluationPayload(self._evaluate)
        self._folder = tempfile.TemporaryDirectory(prefix="skuq-", ignore_cleanup_errors=True)
        # The payload is written once, and each process reads it when it first needs it. New
        # processes find it, too, and large data are not sent with every trial.
        self._path = str(Path(self._folder.name) / "evaluate.pkl")
        Path(self._path).write_bytes(pickle.dumps(payload))
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for worker, future in zip(self._workers, self._futures):
                if worker is not None and future is not None and not future.done():
                    self._killed += worker.stop()  # interrupted: its result is not needed
                elif worker is not None:  # keep it for the next search
                    with _idle_lock:
                        _idle.append(worker)
            with _idle_lock:  # at most one process for each core waits
                surplus = _idle[: max(0, len(_idle) - joblib.cpu_count())]
                del _idle[: len(surplus)]
            for worker in surplus:  # those that have waited longest
                worker.stop()
            # Wait for killed processes, which could still write to the folder.
            deadline = time.monotonic() + _STOP_SECONDS
            for process in self._killed:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            self._folder.cleanup()
            _remove_folder(self._folder.name)

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        """Start a trial in a free slot: evaluate configuration, seed and budget."""
        job = self._path, *arguments
        try:
            future = self._worker_of(slot).submit(*job)
        except BrokenExecutor:  # the process died while it was idle
            self.stop(slot)
            future = self._worker_of(slot).submit(*job)
        self._futures[slot] = future
        return future

    def _worker_of(self, slot: int) -> "_Worker":
        """Return the slot's process; take an idle one or start one if the slot has none."""
        worker = self._workers[slot]
        if worker is None:
            # An idle process may have been started with other devices.
            devices = gpu_of_slot(slot) or os.environ.get("CUDA_VISIBLE_DEVICES")
            with _idle_lock:
                kinds = [(idle.n_threads, idle.gpu) for idle in _idle]
                if (self._n_threads, devices) in kinds:
                    worker = _idle.pop(kinds.index((self._n_threads, devices)))
            if worker is None:
                worker = _Worker(self._n_threads, self._folder.name, devices)
            self._workers[slot] = worker
        return worker

    def stop(self, slot: int) -> bool:
        """Kill the slot's process, and return True; the next trial gets another process."""
        worker, self._workers[slot], self._futures[slot] = self._workers[slot], None, None
        if worker is not None:
            self._killed = [p for p in self._killed if p.is_alive()] + worker.stop()
        return True

    def result(self, slot: int, future: Future[Any]) -> Any:
        """Return the evaluation's result, or raise its error.

        Raises RuntimeError if the process died.
        """
        try:
            path, resident = future.result()
        except BrokenExecutor as error:
            self.stop(slot)
            # Summarise in one line how the process ended.
            ended = f": {str(error).splitlines()[0]}"
            if codes := re.search(r"exit codes of the workers are \{(.*)\}", str(error)):
                hint = "; killed, or out of memory" if "SIGKILL" in codes[1] else ""
                ended = f" ({codes[1]}{hint})."
            raise RuntimeError(f"The worker process died{ended}") from error
        worker = self._workers[slot]
        # Replace a process that has grown large.
        if resident > _MAX_BYTES or (worker is not None and worker.n_trials >= _MAX_TRIALS):
            self.stop(slot)
        # Read after the check of the size: the file outlives the process.
        outcome = pickle.loads(Path(path).read_bytes())
        Path(path).unlink()
        return unpack_outcome(*outcome)


class _Worker:
    """One process behind an executor of its own."""

    def __init__(self, n_threads: int, folder: str, gpu: str | None) -> None:
        global _has_started
        _has_started = True
        self.n_threads, self.gpu = n_threads, gpu
        self.n_trials = 0
        threads = str(n_threads)
        self._executor = process_executor.ProcessPoolExecutor(
            max_workers=1,
            timeout=_IDLE_SECONDS,
            initializer=_start_worker,
            initargs=(os.getpid(), folder),
            env={
                "TF_NUM_INTRAOP_THREADS": threads,
                "TF_NUM_INTEROP_THREADS": "1",
                "OMP_NUM_THREADS": threads,
                "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
                **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            },
        )

    def submit(self, path: str, *arguments: Any) -> Future[Any]:
        self.n_trials += 1
        future: Future[Any] = self._executor.submit(_run_trial, path, *arguments)
        # If the process had ended while it was idle, `submit` has started another one, and the
        # executor's thread may not watch it: wake it, or it would not notice that process's death.
        with self._executor._flags.shutdown_lock:
            self._executor._executor_manager_thread_wakeup.wakeup()
        return future

    def stop(self) -> list[Any]:
        """Kill the process without waiting for its end; return the processes to wait for."""
        processes = list(self._executor._processes.values())
        self._executor.shutdown(wait=False, kill_workers=True)
        return processes


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


_has_started = False  # whether this process has started a worker
_is_forked = False  # whether it was forked from one that had


def _note_fork() -> None:
    global _is_forked
    _is_forked = _has_started


call_after_fork(_note_fork)


def can_start_processes() -> bool:
    """Tell whether this process can start worker processes.

    Daemons may have no children. Of a process that had workers, a fork inherits queues whose
    threads are not there.
    """
    return not (_is_forked or current_process().daemon)


# ---------------------------------------------------------------- in a worker

_payloads: dict[str, EvaluationPayload] = {}  # the last payload that was read, by its path
_folder: str | None = None  # folder of the search that this process works for


def _start_worker(parent: int, folder: str) -> None:
    """Let this process end with the one that started it, even a killed one, and no sooner.

    The search's folder holds its data. If the parent was killed, only the worker can remove it.
    """
    global _folder
    _folder = folder
    # loky would end a process that has grown by 300 MB, which networks soon do, with a warning.
    # Instead `_MAX_BYTES` limits the size of a process.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)
        try:
            if _folder is not None:
                _remove_folder(_folder)
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="skuq-exit-with-parent", daemon=True).start()


def _remove_folder(folder: str) -> None:
    """Remove a folder that others may write to: rename it first, so that they no longer can."""
    renamed = f"{folder}-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):  # removed already, or cannot be renamed
        os.rename(folder, renamed)
        folder = renamed
    deadline = time.monotonic() + _REMOVE_SECONDS
    while os.path.exists(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


def _run_trial(path: str, *arguments: Any) -> tuple[str, int]:
    """Run a trial; return the path of its outcome and this process's resident bytes.

    Outcomes are passed in files. An outcome larger than the pipe to the caller would be sent in
    pieces, and a process killed between two of them would leave the caller waiting forever.
    """
    global _folder
    _folder = str(Path(path).parent)  # a warm process comes from an earlier search
    if path not in _payloads:
        _payloads.clear()
        _payloads[path] = pickle.loads(Path(path).read_bytes())
    outcome = _payloads[path].run(*arguments)
    outcome_path = Path(path).with_name(f"{uuid.uuid4().hex}.pkl")
    outcome_path.write_bytes(pickle.dumps(outcome))
    return str(outcome_path), resident_bytes()


def resident_bytes() -> int:
    """Return this process's resident memory in bytes, or 0 if it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


_CLEAN_UP_SECONDS = 10  # maximum time that the end of a search waits for the cluster
_RESTART_SECONDS = 30  # longest time to wait for a restarted worker


class DaskSlots(Slots):
    """Slots that are threads of a cluster's workers.

    `submit_kwargs` are for ``client.submit``, for example the `resources` of a trial. Futures of
    ``client.get_executor()`` would not do: they hide the task, by which `stop` finds the worker of
    an overdue trial, and `result` lets Dask forget a finished one.
    """

    def __init__(
        self, evaluate: Callable[..., Any], client: Any, n_slots: int, submit_kwargs: dict[str, Any]
    ) -> None:
        super().__init__(evaluate, n_slots)
        self._client, self._submit_kwargs = client, submit_kwargs
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
        task = self._client.submit(_run_dask_trial, self._name, *arguments, **settings)
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


def _run_dask_trial(name: str, *arguments: Any) -> Outcome:
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
    distributed: Any = loaded("distributed")
    with contextlib.suppress(ValueError):
        return distributed is not None and distributed.get_worker() is not None
    return False


class InlineSlots(Slots):
    """One slot, in the calling thread."""

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(_run_here(self._evaluate, *arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class ThreadSlots(Slots):
    """Slots that are threads of the calling process."""

    def __init__(self, evaluate: Callable[..., Any], n_slots: int) -> None:
        super().__init__(evaluate, n_slots)
        self._pool = ThreadPoolExecutor(n_slots, thread_name_prefix="skuq-slot")
        self._futures: list[Future[Any] | None] = [None] * n_slots

    def __exit__(self, *exception: object) -> None:
        # Trials still run after an interrupt, or if time was over. Otherwise the evaluation stays
        # usable.
        if any(future is not None and not future.done() for future in self._futures):
            cancel(self._evaluate)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, slot: int, *arguments: Any) -> Future[Any]:
        future = self._futures[slot] = self._pool.submit(_run_here, self._evaluate, *arguments)
        return future


def run_trials(evaluate: Any, configuration: Any, seed: Any, *budget: Any) -> Any:
    """Evaluate a trial, or those of a pack: then configurations and seeds are tuples."""
    together = isinstance(seed, tuple)
    return (evaluate.together if together else evaluate)(configuration, seed, *budget)


def _run_here(evaluate: Callable[..., Any], *arguments: Any) -> Any:
    """Evaluate a trial in this process, where `sys.exit` must end only the trial."""
    try:
        return run_trials(evaluate, *arguments)
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error
