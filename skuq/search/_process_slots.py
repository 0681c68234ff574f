"""Slots that are processes: one each, replaced when it dies, is stopped or has grown large."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import tempfile
import threading
import time
import uuid
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import joblib
from joblib.externals.loky.process_executor import ProcessPoolExecutor

from skuq.search._gpus import gpu_of_slot
from skuq.search._parcel import Parcel, opened

__all__ = ["MAX_BYTES", "ProcessSlots", "resident_bytes"]

MAX_BYTES = 1.5e9  # resident memory of one process
_MAX_JOBS = 150  # trials of one process: about 6 MB stay for each compiled program
_IDLE_SECONDS = 300  # a warm process waits this long for the next search
_STOP_SECONDS = 5.0  # in which a killed process is gone
_REMOVE_SECONDS = 2.0  # in which a folder is removed that others may still write to


class ProcessSlots:
    """One process a slot, with its share of the cores and, where there are several, one GPU."""

    def __init__(self, evaluate, n_slots):
        self.n_slots = n_slots
        self._evaluate = evaluate
        self._threads = max(1, joblib.cpu_count() // n_slots)
        self._workers = [None] * n_slots
        self._futures = [None] * n_slots
        self._killed = []  # processes that may not be gone yet

    def __enter__(self):
        parcel = Parcel(self._evaluate)
        self._folder = tempfile.TemporaryDirectory(prefix="skuq-", ignore_cleanup_errors=True)
        # Written once and read by each process when it first needs it: a process that
        # is replaced finds it again, and large data are not sent with every trial.
        self._path = str(Path(self._folder.name) / "evaluate.pkl")
        Path(self._path).write_bytes(pickle.dumps(parcel))
        return self

    def __exit__(self, *exception):
        try:
            for worker, future in zip(self._workers, self._futures):
                if worker is not None and future is not None and not future.done():
                    self._killed += worker.stop()  # interrupted: nobody wants what it is doing
                elif worker is not None:
                    _give_back(worker)
            # One that still lives could write its outcome into the folder while that is removed.
            deadline = time.monotonic() + _STOP_SECONDS
            for process in self._killed:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            self._folder.cleanup()
            _remove(self._folder.name)
        return False

    def submit(self, slot, configuration, seed) -> Future:
        if self._workers[slot] is None:
            self._workers[slot] = self._take_worker(slot)
        job = self._path, configuration, seed
        try:
            self._futures[slot] = self._workers[slot].submit(*job)
        except BrokenExecutor:  # it died while it was idle
            self.stop(slot)
            self._workers[slot] = self._take_worker(slot)
            self._futures[slot] = self._workers[slot].submit(*job)
        return self._futures[slot]

    def _take_worker(self, slot):
        gpu = gpu_of_slot(slot)
        if gpu is None:  # a warm process may have been started to see something else
            gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        return _take_worker(self._threads, self._folder.name, gpu)

    def stop(self, slot) -> bool:
        """Kill the slot's process, whatever it is doing; the next trial gets another."""
        worker, self._workers[slot], self._futures[slot] = self._workers[slot], None, None
        if worker is not None:
            self._killed = [p for p in self._killed if p.is_alive()] + worker.stop()
        return True

    def result(self, slot, future):
        """What the evaluation returned; raises what it raised.

        Raises
        ------
        RuntimeError
            If the slot's process died.
        """
        try:
            path, resident = future.result()
        except BrokenExecutor as error:
            self.stop(slot)
            raise RuntimeError(_obituary(error)) from error
        worker = self._workers[slot]
        if worker.n_jobs >= _MAX_JOBS or resident > MAX_BYTES:
            self.stop(slot)
        outcome = pickle.loads(Path(path).read_bytes())
        Path(path).unlink()
        return opened(*outcome)


def _obituary(error):
    """What an executor says of its dead process, in one line."""
    exit_codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
    if exit_codes is None:
        return f"The worker process died: {str(error).splitlines()[0]}"
    hint = "; killed, or out of memory" if "SIGKILL" in exit_codes[1] else ""
    return f"The worker process died ({exit_codes[1]}{hint})."


class _Worker:
    """One process behind an executor of its own."""

    def __init__(self, n_threads, folder, gpu):
        self.n_threads, self.gpu = n_threads, gpu
        self.n_jobs = 0
        threads = str(n_threads)
        self._executor = ProcessPoolExecutor(
            max_workers=1,
            timeout=_IDLE_SECONDS,
            initializer=_follow_parent,
            initargs=(os.getpid(), folder),
            env={
                "TF_NUM_INTRAOP_THREADS": threads,
                "TF_NUM_INTEROP_THREADS": "1",
                "OMP_NUM_THREADS": threads,
                "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
                **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            },
        )

    def submit(self, *job) -> Future:
        self.n_jobs += 1
        return self._executor.submit(_run_job, *job)

    def stop(self) -> list:
        """Kill the process, without waiting for its end; the processes to wait for."""
        processes = list(self._executor._processes.values())
        self._executor.shutdown(wait=False, kill_workers=True)
        return processes


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


def _take_worker(n_threads, folder, gpu):
    """A warm process with these resources, if one is idle; else one for this search's folder."""
    with _idle_lock:
        for worker in _idle:
            if (worker.n_threads, worker.gpu) == (n_threads, gpu):
                _idle.remove(worker)
                return worker
    return _Worker(n_threads, folder, gpu)


def _give_back(worker):
    """Keep a process for the next search; at most one a core waits."""
    with _idle_lock:
        _idle.append(worker)
        surplus = _idle[: max(0, len(_idle) - joblib.cpu_count())]
        del _idle[: len(surplus)]
    for worker in surplus:
        worker.stop()


_loaded: dict = {}  # in a worker: the parcel it last read
_folder: str | None = None  # in a worker: that of the search that it works for
_PARENT_CHECK_SECONDS = 2.0


def _follow_parent(parent, folder):
    """In a worker: end with the process that started it, even if that was killed.

    The folder of the search holds its data, and nobody else is left then to remove it.
    """
    global _folder
    _folder = folder

    def watch():
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)
        try:
            _remove(_folder)
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="skuq-follow-parent", daemon=True).start()


def _remove(folder):
    """Remove a folder that others may be putting files into: under another name they cannot."""
    renamed = f"{folder}-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):  # gone already, or not to be renamed
        os.rename(folder, renamed)
        folder = renamed
    deadline = time.monotonic() + _REMOVE_SECONDS
    while os.path.exists(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


def _run_job(path, configuration, seed):
    """In a worker: ``(path of the outcome, resident bytes)``.

    Outcomes go through files. One that is larger than the pipe to the caller would be sent
    in pieces, and a process killed between two of them leaves the caller waiting for ever.
    """
    global _folder
    _folder = str(Path(path).parent)  # a warm process comes from an earlier search
    if path not in _loaded:
        _loaded.clear()
        _loaded[path] = pickle.loads(Path(path).read_bytes())
    outcome = _loaded[path].run(configuration, seed)
    outcome_path = Path(path).with_name(f"{uuid.uuid4().hex}.pkl")
    outcome_path.write_bytes(pickle.dumps(outcome))
    return str(outcome_path), resident_bytes()


def resident_bytes():
    """Resident memory of this process where the system tells, else 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
