"""Slots that are stopped, killed or handed what cannot be pickled: a fault costs its own trial."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import joblib
import pytest
from processes import start_python, wait_until
from slots import inline, processes, threads
from tiers import cases

from skuq.search import _slots


def processes_of(slots):
    executors = [worker._executor for worker in slots._workers]
    return [process for e in executors for process in e._processes.values()]


def wait_for_lines(path, n):
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= n)
    return [int(line) for line in path.read_text().split()]


def test_a_stopped_process_gives_its_slot_back(tmp_path):
    def evaluate(configuration, seed):
        with open(tmp_path / "started", "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(configuration["k"])
        return SimpleNamespace(score=0.0, pid=os.getpid())

    with processes(evaluate, 2) as slots:
        assert slots.stop(0)  # before its first trial
        other = slots.submit(1, {"k": 1}, 1)
        slots.submit(0, {"k": 600}, 1)
        pids = wait_for_lines(tmp_path / "started", 2)
        running, started = processes_of(slots), time.monotonic()
        assert slots.stop(0) is True and slots.stop(0)  # twice
        # Not `join`: another thread of the pool may have waited for it, and not said so yet.
        wait_until(lambda: not all(process.is_alive() for process in running))
        pid = slots.result(0, slots.submit(0, {"k": 0}, 1)).pid
        assert time.monotonic() - started < 300 and pid not in pids
        assert slots.result(1, other).pid in pids  # undisturbed


def faulty():
    """Make an evaluation that fails as its configuration says."""

    class Unpicklable(Exception):
        def __init__(self, message):
            super().__init__(message)
            self.lock = threading.Lock()

    class OnlyHere(Exception):
        score = 0.0

        def __reduce__(self):
            return __import__, ("no_such_module_of_skuq",)

    faults = {"unpicklable": Unpicklable, "unreadable": OnlyHere}
    ends = {"exit": sys.exit, "die": os._exit, "killed": lambda n: os.kill(os.getpid(), 8 + n)}

    def fault(configuration, seed):
        kind, _, what = configuration["kind"].partition(" ")
        if kind in ends:
            ends[kind](1)
        if what == "error":
            raise faults[kind]("of the worker")
        return faults[kind]("a result") if what else SimpleNamespace(score=0.0)

    return fault


@pytest.fixture(scope="module")
def one_process():
    with processes(faulty(), 1) as slots:
        yield slots


@cases(
    "kind, error, message",
    ("unpicklable error", RuntimeError, "^Unpicklable: of the worker$"),
    ("unreadable error", RuntimeError, "^OnlyHere: of the worker$"),
    ("unreadable result", RuntimeError, "What the trial returned cannot be read .ModuleNotFound"),
    ("unpicklable result", TypeError, "cannot pickle '_thread.lock'"),
    ("exit", RuntimeError, "^SystemExit: 1$"),
    ("die", RuntimeError, r"^The worker process died \(EXIT\(1\)\)\.$"),
    ("killed", RuntimeError, r"died \(SIGKILL\(-9\); killed, or out of memory\)\.$"),
)
def test_faults_are_reported_and_the_slot_goes_on(kind, error, message, one_process):
    with pytest.raises(error, match=message):
        one_process.result(0, one_process.submit(0, {"kind": kind}, 1))
    assert one_process.result(0, one_process.submit(0, {"kind": "none"}, 1)).score == 0


@pytest.mark.parametrize("slots_of", [threads, lambda evaluate, n: inline(evaluate)])
def test_what_runs_in_the_caller_does_not_end_it_and_cannot_be_stopped(slots_of):
    with slots_of(faulty(), 1) as slots:
        with pytest.raises(RuntimeError, match="SystemExit: 1"):
            slots.result(0, slots.submit(0, {"kind": "exit"}, 1))
        assert slots.stop(0) is False


class Counted:
    """Evaluation that records how often it was unpickled and cancelled."""

    told = []

    def __setstate__(self, state):
        time.sleep(0.05)  # other threads get here
        Counted.told.append("loaded")

    def __getstate__(self):
        return {"something": 1}

    def __call__(self, configuration, seed):
        return seed

    def cancel(self):
        Counted.told.append("cancelled")


@pytest.mark.parametrize("early", [True, False])
def test_threads_of_one_process_unpickle_once_and_are_cancelled(early):
    Counted.told.clear()
    payload = pickle.loads(pickle.dumps(_slots.EvaluationPayload(Counted())))
    if early:
        payload.cancel()
    assert Counted.told == []  # not before it is needed
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda seed: payload.run({}, seed), range(4)))
    assert [_slots.unpack_outcome(*outcome) for outcome in outcomes] == [0, 1, 2, 3]
    payload.cancel()
    assert Counted.told == ["loaded", *["cancelled"] * (1 + early)]


def test_a_backend_without_slots_is_refused():
    ray = type("RayBackend", (joblib.parallel.SequentialBackend,), {})
    joblib.register_parallel_backend("ray of a test", ray)
    with (
        joblib.parallel_config(backend="ray of a test"),
        pytest.raises(ValueError, match="joblib's RayBackend. Use the loky, threading or dask"),
    ):
        _slots.open_slots(faulty(), 2, 10)


SCRIPT = """
import os, time
from skuq.search._slots import open_slots

def evaluate(configuration, seed):
    with open("started", "a") as file:
        file.write(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    with open_slots(evaluate, 1, 1000) as slots:
        slots.result(0, slots.submit(0, {}, 1))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes of Windows keep their parent")
def test_a_killed_search_leaves_no_data_and_no_process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # joblib tells of semaphores that it had to remove.
    options = {"cwd": tmp_path, "stderr": subprocess.DEVNULL, "env": {"TMPDIR": str(temporary)}}
    process = start_python("script.py", **options)
    try:
        (pid,) = wait_for_lines(tmp_path / "started", 1)
        assert list(temporary.glob("skuq-*/evaluate.pkl"))
        process.kill()
        process.wait(120)
        wait_until(lambda: not list(temporary.glob("skuq-*")))
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        process.kill()
        process.wait(20)


def test_an_interrupted_search_leaves_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def evaluate(configuration, seed):
        (folder,) = tmp_path.glob("skuq-*")
        (tmp_path / f"started {seed}").touch()
        for k in range(10**9):  # as outcomes are, until the process is killed
            with contextlib.suppress(OSError):
                (folder / f"{seed} {k}.pkl").touch()

    slots = processes(evaluate, 2)
    with pytest.raises(KeyboardInterrupt), slots:
        for slot in range(2):
            slots.submit(slot, {}, slot)
        started = processes_of(slots)
        wait_until(lambda: len(list(tmp_path.glob("started *"))) == 2)
        raise KeyboardInterrupt
    assert not Path(slots._folder.name).exists()
    assert not any(process.is_alive() for process in started)


def gpus():
    return [_slots.gpu_of_slot(slot) for slot in range(3)]


def test_each_slot_has_a_gpu_in_turn_which_its_process_sees(monkeypatch, tmp_path):
    for named, expected in (("0, GPU-b", ["0", "GPU-b", "0"]), ("0,0", None), ("0,-1,1", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert gpus() == (expected or [None] * 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(_slots, "_DEVICES", tmp_path)
    assert gpus() == [None] * 3
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus() == ["0", "1", "0"]

    def evaluate(configuration, seed):
        return SimpleNamespace(score=0.0, gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with processes(evaluate, 2) as slots:
        futures = [slots.submit(slot, {}, 0) for slot in range(2)]
        assert [slots.result(k, future).gpu for k, future in enumerate(futures)] == ["3", "5"]
    for seen in ("", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        with processes(evaluate, 2) as slots:  # warm ones of before see something else
            assert slots.result(0, slots.submit(0, {}, 0)).gpu == seen
