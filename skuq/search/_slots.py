"""Where trials run: slots, each of which evaluates one configuration at a time.

A slot is a process of its own (joblib's loky), a thread, or the caller itself.
``submit(slot, configuration, seed) -> Future`` starts a trial, `result` waits for it. A
process that dies takes its own trial with it and is replaced, and so is one that has
compiled a lot: a backend keeps memory for every program it has ever compiled.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import joblib
from joblib.externals.loky.process_executor import ProcessPoolExecutor

from skuq.exceptions import SearchSpaceError

__all__ = ["open_slots"]

_MAX_JOBS = 150  # trials of one process: about 6 MB stay for each compiled program
_MAX_BYTES = 1.5e9  # resident memory of one process
_IDLE_SECONDS = 300  # a warm process waits this long for the next search
# From this many trials on, even one worker is a process: the caller's memory stays flat.
_MANY_TRIALS = 50


def open_slots(evaluate, n_jobs=None, n_trials=1):
    """The slots that `n_jobs` and joblib's configuration ask for; a context manager.

    Inside a worker of joblib, and with one job and few trials, trials run in the caller.
    Under ``joblib.parallel_config(backend="threading")`` they run in threads, otherwise
    in processes.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``; pickled once a process.
    n_jobs : int, optional
        As in joblib: None is 1 unless a `parallel_config` says otherwise, -1 all cores.
    n_trials : int, default=1

    Raises
    ------
    ValueError
        If joblib's backend is one that trials cannot run on.
    """
    backend, configured = joblib.parallel.get_active_backend()
    name = type(backend).__name__
    if (backend.nesting_level or 0) > 0:
        return InlineSlots(evaluate)
    n_jobs = configured if n_jobs is None else n_jobs
    n_slots = max(1, min(joblib.effective_n_jobs(n_jobs), n_trials))
    if name == "ThreadingBackend":
        return ThreadSlots(evaluate, n_slots)
    if name not in ("LokyBackend", "SequentialBackend", "MultiprocessingBackend"):
        raise ValueError(
            f"Trials cannot run on joblib's {name}. Use the loky or threading backend."
        )
    if n_slots == 1 and n_trials <= _MANY_TRIALS and _resident_bytes() < _MAX_BYTES:
        return InlineSlots(evaluate)
    return ProcessSlots(evaluate, n_slots)


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
        if any(_busy(future) for future in self._futures) and hasattr(self._evaluate, "cancel"):
            self._evaluate.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return False

    def submit(self, slot, configuration, seed) -> Future:
        self._futures[slot] = self._pool.submit(self._evaluate, configuration, seed)
        return self._futures[slot]


class ProcessSlots:
    """One process a slot, with its share of the cores."""

    def __init__(self, evaluate, n_slots):
        self.n_slots = n_slots
        self._evaluate = evaluate
        self._threads = max(1, joblib.cpu_count() // n_slots)
        self._workers = [None] * n_slots
        self._futures = [None] * n_slots

    def __enter__(self):
        try:
            pickled = cloudpickle.dumps(self._evaluate)
        except Exception as error:
            raise SearchSpaceError(
                f"The search cannot be sent to worker processes ({type(error).__name__}: {error}). "
                "Most often the search space holds something that cannot be pickled; use "
                'n_jobs=1, or joblib.parallel_config(backend="threading").'
            ) from error
        self._folder = tempfile.TemporaryDirectory(prefix="skuq-")
        # Written once and read by each process when it first needs it: a process that
        # is replaced finds it again, and large data are not sent with every trial.
        self._path = str(Path(self._folder.name) / "evaluate.pkl")
        needs_backend = getattr(self._evaluate, "needs_backend", False)
        Path(self._path).write_bytes(cloudpickle.dumps((needs_backend, pickled)))
        return self

    def __exit__(self, *exception):
        for worker, future in zip(self._workers, self._futures):
            if worker is not None and _busy(future):
                worker.stop()  # interrupted: nobody wants what it is doing
            elif worker is not None:
                _give_back(worker)
        self._folder.cleanup()
        return False

    def submit(self, slot, configuration, seed) -> Future:
        if self._workers[slot] is None:
            self._workers[slot] = _take_worker(self._threads)
        job = self._path, configuration, seed
        try:
            self._futures[slot] = self._workers[slot].submit(*job)
        except BrokenExecutor:  # it died while it was idle
            self._replace(slot)
            self._futures[slot] = self._workers[slot].submit(*job)
        return self._futures[slot]

    def result(self, slot, future):
        """What the evaluation returned; raises what it raised.

        Raises
        ------
        RuntimeError
            If the slot's process died.
        """
        try:
            status, value, resident = future.result()
        except BrokenExecutor as error:
            self._replace(slot)
            raise RuntimeError("The worker process died (killed, or out of memory).") from error
        worker = self._workers[slot]
        if worker.n_jobs >= _MAX_JOBS or resident > _MAX_BYTES:
            worker.stop()
            self._workers[slot] = None
        if status == "raised":
            raise value
        return value

    def _replace(self, slot):
        self._workers[slot].stop()
        self._workers[slot] = _take_worker(self._threads)


def _busy(future):
    return future is not None and not future.done()


class _Worker:
    """One process behind an executor of its own."""

    def __init__(self, n_threads):
        self.n_threads = n_threads
        self.n_jobs = 0
        threads = str(n_threads)
        self._executor = ProcessPoolExecutor(
            max_workers=1,
            timeout=_IDLE_SECONDS,
            initializer=_follow_parent,
            env={
                "TF_NUM_INTRAOP_THREADS": threads,
                "TF_NUM_INTEROP_THREADS": "1",
                "OMP_NUM_THREADS": threads,
                "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
            },
        )

    def submit(self, *job) -> Future:
        self.n_jobs += 1
        return self._executor.submit(_run_job, *job)

    def stop(self):
        self._executor.shutdown(wait=False, kill_workers=True)


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


def _take_worker(n_threads):
    """A warm process with so many threads, if one is idle."""
    with _idle_lock:
        for worker in _idle:
            if worker.n_threads == n_threads:
                _idle.remove(worker)
                return worker
    return _Worker(n_threads)


def _give_back(worker):
    """Keep a process for the next search; at most one a core waits."""
    with _idle_lock:
        _idle.append(worker)
        surplus = _idle[: max(0, len(_idle) - joblib.cpu_count())]
        del _idle[: len(surplus)]
    for worker in surplus:
        worker.stop()


_loaded: dict = {}  # in a worker: the evaluation it last read
_PARENT_CHECK_SECONDS = 2.0


def _follow_parent():
    """In a worker: end with the process that started it, even if that was killed."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="skuq-follow-parent", daemon=True).start()


def _run_job(path, configuration, seed):
    """In a worker: ``("returned" or "raised", value, resident bytes)``."""
    try:
        if path not in _loaded:
            _loaded.clear()
            needs_backend, pickled = cloudpickle.loads(Path(path).read_bytes())
            if needs_backend:
                # Quietly, before unpickling a user's function imports it with its noise.
                import skuq._keras  # noqa: F401
            _loaded[path] = cloudpickle.loads(pickled)
        return "returned", _loaded[path](configuration, seed), _resident_bytes()
    except Exception as error:
        return "raised", _portable(error), _resident_bytes()


def _portable(error):
    """The error itself if it survives pickling, else one that says the same."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _resident_bytes():
    """Resident memory of this process where the system tells, else 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
