"""The asynchronous search loop on every kind of slot, with evaluations without networks."""

import os
import signal
import threading
import time
from dataclasses import dataclass

import joblib
import pytest
from joblib.externals.loky.process_executor import ProcessPoolExecutor
from processes import start_python
from slots import (
    SPACE,
    Hasty,
    InlineSlots,
    Kept,
    RandomProposer,
    inline,
    open_slots,
    processes,
    search,
    threads,
)
from tiers import slow

from skuq.exceptions import SearchFailedError, SearchSpaceError, SlotsLostError
from skuq.search import Limits, RunOptions, Search


@dataclass(frozen=True)
class Result:
    score: float
    pid: int = 0
    threads: str = ""


class Evaluate:
    """Evaluation whose score is x; k decides how it fails."""

    def __init__(self, fail=(), kill=(), sleep=0.0):
        self.fail, self.kill, self.sleep = fail, kill, sleep

    def __call__(self, configuration, seed):
        time.sleep(self.sleep)
        if configuration["k"] in self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if configuration["k"] in self.fail:
            raise ArithmeticError(f"k is {configuration['k']}")
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        return Result(configuration["x"], os.getpid(), threads)


@pytest.fixture(params=[inline, threads, processes], ids=lambda kind: kind.__name__)
def slots_of(request):
    kind = request.param
    return lambda evaluate: kind(evaluate) if kind is inline else kind(evaluate, 2)


def search_within(limits, slots, n_trials, entropy=1, **fields):
    return search(slots, n_trials, entropy=entropy, options=RunOptions(limits=limits), **fields)


def test_all_slots_give_the_same_random_search(slots_of):
    records = sorted(search(slots_of(Evaluate())), key=lambda r: r.trial_number)
    expected = search(inline(Evaluate()))
    assert [r.trial_number for r in records] == list(range(12))
    told = [[(r.configuration, r.seed, r.score) for r in each] for each in (records, expected)]
    assert told[0] == told[1]
    assert len({r.seed for r in records}) == 12 and min(r.seed for r in records) >= 1


def test_failed_trials_are_recorded_with_their_reason(slots_of):
    records = search(slots_of(Evaluate(fail=(1, 2, 3))), n_trials=30)
    failed = [r for r in records if not r.completed]
    assert len(records) == 30 and 0 < len(failed) < 30
    for record in failed:
        assert record.message == f"ArithmeticError: k is {record.configuration['k']}"
        assert record.score != record.score  # NaN, never a made-up number
    assert all(r.configuration["k"] not in (1, 2, 3) for r in records if r.completed)


@slow
@pytest.mark.smoke
def test_a_killed_worker_costs_its_own_trial_only():
    records = search(processes(Evaluate(kill=(4,)), 2), n_trials=24)
    killed = [r for r in records if not r.completed]
    assert len(records) == 24 and killed
    assert {r.configuration["k"] for r in killed} == {4}
    assert all("worker process died" in r.message for r in killed)


@slow
def test_a_worker_killed_in_place_of_one_that_was_idle_for_long(monkeypatch):
    """The first trial after a pause; loky's thread would wait without the new process."""
    monkeypatch.setattr("skuq.search._process_slots._IDLE_SECONDS", 0.2)
    monkeypatch.setattr("skuq.search._process_slots._idle", idle := [])
    search(processes(Evaluate(), 1), n_trials=1)
    while idle[0]._executor._processes:
        time.sleep(0.1)
    time.sleep(2)  # its end has been noticed
    idle[0]._executor._timeout = 60
    start = ProcessPoolExecutor._ensure_executor_running

    def start_late(self):
        time.sleep(0.3)  # loky's thread has looked for processes by now
        start(self)

    monkeypatch.setattr(ProcessPoolExecutor, "_ensure_executor_running", start_late)
    with pytest.raises(SearchFailedError, match="worker process died"):
        search(processes(Evaluate(kill=range(10)), 1), n_trials=1)


def test_processes_share_the_cores_and_stay_warm():
    first = search(processes(Evaluate(sleep=0.05), 2), n_trials=6)
    again = search(processes(Evaluate(), 2), n_trials=6)
    pids = {r.result.pid for r in first}
    assert len(pids) == 2 and os.getpid() not in pids
    assert {r.result.pid for r in again} <= pids
    share = max(1, joblib.cpu_count() // 2)
    assert {r.result.threads for r in first} == {str(share)}


@pytest.mark.slow
def test_a_process_is_replaced_after_many_trials(monkeypatch):
    monkeypatch.setattr("skuq.search._process_slots._MAX_TRIALS", 4)
    monkeypatch.setattr("skuq.search._process_slots._idle", [])
    records = search(processes(Evaluate(), 1), n_trials=9)
    assert all(r.completed for r in records)
    assert len({r.result.pid for r in records}) == 3


def test_slots_are_asynchronous():
    """One slow trial does not hold up the others."""

    class Slow:
        def __call__(self, configuration, seed):
            time.sleep(1.0 if configuration["n"] == 0 else 0.01)
            return Result(float(configuration["n"]))

    class Counting:
        def __init__(self):
            self.n = -1

        def ask(self, history, running, rng):
            self.n += 1
            return {"n": self.n}

    store = Kept()
    search(threads(Slow(), 2), n_trials=10, proposer=Counting(), store=store)
    assert store.added[-1].trial_number == 0


def test_hopeless_searches_end_early_and_say_why(slots_of):
    with pytest.raises(SearchFailedError, match=r"(?s)failed.*ArithmeticError: k is") as error:
        search(slots_of(Evaluate(fail=range(10))), n_trials=200)
    assert 10 <= len(error.value.records) <= 11


def test_an_interrupt_keeps_what_has_finished():
    class Interrupted:
        n = 0

        def __call__(self, configuration, seed):
            self.n += 1
            if self.n == 4:
                raise KeyboardInterrupt
            return Result(1.0)

    with pytest.warns(UserWarning, match="interrupted: continuing with 3 of 20"):
        records = search(inline(Interrupted()), n_trials=20)
    assert len(records) == 3

    def evaluate(configuration, seed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(inline(evaluate))


def kind_of(n_jobs, n_trials):
    return type(open_slots(Evaluate(), n_jobs, n_trials)).__name__


def test_n_jobs_and_joblib_choose_the_slots(monkeypatch):
    assert kind_of(None, 10) == "InlineSlots"
    assert kind_of(2, 10) == "ProcessSlots"
    assert open_slots(Evaluate(), 2, 1).n_slots == 1
    assert kind_of(1, 500) == "ProcessSlots"
    with joblib.parallel_config(backend="threading", n_jobs=3):
        assert kind_of(None, 10) == "ThreadSlots"
        assert open_slots(Evaluate(), None, 10).n_slots == 3
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert kind_of(None, 10) == "ProcessSlots"
    monkeypatch.setattr("skuq.search._slots._MAX_BYTES", 1)
    assert kind_of(1, 3) == "ProcessSlots"


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_inside_a_joblib_worker_trials_run_inline(backend):
    delayed = joblib.delayed(kind_of)
    kinds = joblib.Parallel(n_jobs=2, backend=backend)(delayed(4, 10) for _ in range(2))
    assert kinds == ["InlineSlots"] * 2


@slow
def test_workers_end_with_the_process_that_started_them(tmp_path):
    """Killed without a chance to clean up: its workers follow."""
    script = tmp_path / "search.py"
    script.write_text(
        "import os, sys, time\n"
        "from skuq.search._slots import open_slots\n"
        "def evaluate(configuration, seed):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "with open_slots(evaluate, 1, 1000) as slots:\n"
        "    slots.submit(0, {}, 1).result()\n"
    )
    process = start_python(script)
    worker = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


@pytest.mark.parametrize(("is_open", "number"), [(False, "3/3"), (True, "3trial")])
def test_progress_is_shown_on_request(capsys, is_open, number):
    options = RunOptions(verbose=1, name="trials", score_name="NLL", is_open=is_open)
    records = search(inline(Evaluate()), 3, options=options)
    shown = capsys.readouterr().err
    best = min(r.score for r in records)
    assert number in shown and f"best NLL={best:.3f}, failed=0" in shown
    assert threading.active_count() < 50


class Interrupting(RandomProposer):
    """Ctrl-C while every slot is busy, after something has finished."""

    def ask(self, history, running, rng):
        if len(history) >= 2:
            raise KeyboardInterrupt
        return {"x": 0.5, "k": 1 if len(history) + len(running) < 2 else 2}


def test_an_interrupt_does_not_wait_for_threads_that_are_busy():
    is_over = threading.Event()

    def evaluate(configuration, seed):
        if configuration["k"] == 2:
            is_over.wait(60)
        return Result(1.0)

    started = time.monotonic()
    with pytest.warns(UserWarning, match="interrupted"):
        search(threads(evaluate, 2), n_trials=20, proposer=Interrupting(SPACE))
    assert time.monotonic() - started < 50
    is_over.set()


class NotHere:
    def __call__(self, configuration, seed):
        return Result(0.0)

    def __reduce__(self):
        return __import__, ("no_such_module_of_skuq",)


def test_what_cannot_be_sent_says_so():
    evaluate = Evaluate()
    evaluate.lock = threading.Lock()
    with pytest.raises(SearchSpaceError, match="cannot be sent to worker processes.*n_jobs=1"):
        search(processes(evaluate, 2))
    with pytest.raises(SearchFailedError, match="ModuleNotFoundError.*no_such_module"):
        search(processes(NotHere(), 1), n_trials=2)


def test_a_proposer_that_raises_does_not_lose_what_has_finished():
    class Fails(RandomProposer):
        def ask(self, history, running, rng):
            if len(history) == 3:
                raise LookupError("nothing left")
            return super().ask(history, running, rng)

    with pytest.raises(SearchFailedError, match="propose trial 3: nothing left") as error:
        search(inline(Evaluate()), proposer=Fails(SPACE))
    assert len(error.value.records) == 3


class Learning(RandomProposer):
    """Its proposals depend on all that has finished."""

    def ask(self, history, running, rng):
        drawn = super().ask(history, running, rng)
        return {**drawn, "x": drawn["x"] * (1 + sum(r.score for r in history if r.completed))}


def contents(records):
    return [(r.trial_number, r.configuration, r.seed, r.score, r.message) for r in records]


@pytest.mark.parametrize("n_first", [0, 1, 5, 12])
def test_a_search_goes_on_where_a_store_ends(n_first):
    evaluate = Evaluate(fail=(1, 2))
    whole = search(inline(evaluate), 12, Learning(SPACE))
    kept = Kept(whole[:n_first])
    again = search(inline(evaluate), 12, Learning(SPACE), store=kept)
    # The NaN of a failed trial is itself where the record is.
    assert repr(contents(again)) == repr(contents(whole))
    assert again[n_first:] == kept.added and again[:n_first] == kept.records


def test_slots_are_opened_for_the_trials_that_are_missing():
    whole = search(inline(Evaluate()), n_trials=4)
    arguments, options = (Evaluate(), RandomProposer(SPACE), 4, 3), RunOptions(n_jobs=2)
    again = Search(*arguments, store=Kept(whole[:3]), options=options).run().catalog
    assert contents(again) == contents(whole)
    assert again[3].result.pid == os.getpid()  # a single trial needs no process
    records = Search(*arguments, options=options).run().catalog
    assert contents(records) == contents(whole)
    assert os.getpid() not in {record.result.pid for record in records}


def test_a_store_may_hold_more_trials_than_are_asked_for_or_have_gaps():
    whole = search(inline(Evaluate()), 8)
    fewer = search(inline(Evaluate()), 5, store=Kept(whole))
    gaps = Kept([whole[6], whole[1]])
    filled = search(inline(Evaluate()), 8, store=gaps)
    assert fewer == whole[:5]
    assert [r.trial_number for r in gaps.added] == [0, 2, 3, 4, 5, 7]
    assert contents(filled) == contents(whole)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_no_numbers_are_failures(score):
    slots = inline(lambda configuration, seed: Result(score if seed % 2 else 1.0))
    records = search(slots, 20)
    failed = [r for r in records if not r.completed]
    assert 0 < len(failed) < 20
    assert {r.message for r in failed} == {f"The evaluation returned a score of {score}."}
    assert all(r.result is None for r in failed)


def test_time_ends_a_search_with_the_trial_that_is_running(slots_of):
    # Starting a process is part of the time, and there has to be one trial.
    records = search_within(Limits(max_time=1.0), slots_of(Evaluate(sleep=0.2)), 1000)
    assert 1 <= len(records) <= 12
    assert all(r.completed for r in records)


def test_no_time_at_all_still_gives_one_success():
    records = search_within(Limits(max_time=1e-9), inline(Evaluate(fail=range(5))), 40)
    assert [r.completed for r in records] == [False] * (len(records) - 1) + [True]


class Stuck(Evaluate):
    """Some trials never end."""

    def __call__(self, configuration, seed):
        if configuration["k"] == 4:
            time.sleep(600)
        return super().__call__(configuration, seed)


@slow
def test_a_trial_that_does_not_end_costs_itself_only():
    # A new process takes a while to start, hence the grace.
    limits = Limits(trial_timeout=1.0, grace=9.0)
    records = search_within(limits, processes(Stuck(), 2), 12, entropy=3)
    stuck = [r for r in records if r.configuration["k"] == 4]
    assert len(records) == 12 and stuck
    assert {r.message for r in stuck} == {"TimeoutError: stopped after trial_timeout=1 s."}
    assert all(r.seconds > 10 for r in stuck)
    assert all(r.completed for r in records if r.configuration["k"] != 4)


def test_what_has_finished_is_kept_when_the_slots_are_lost():
    class Lost(InlineSlots):
        n_submitted = 0

        def submit(self, slot, configuration, seed):
            self.n_submitted += 1
            if self.n_submitted > n_before:
                raise SlotsLostError("The cluster is gone.")
            return super().submit(slot, configuration, seed)

    n_before = 3
    with pytest.warns(UserWarning, match="continuing with 3 of 9 trials: The cluster is gone."):
        assert len(search(Lost(Evaluate()), n_trials=9)) == 3
    n_before = 0
    with pytest.raises(SlotsLostError, match="is gone"):
        search(Lost(Evaluate()), n_trials=9)


def test_trials_that_go_with_their_slots_are_not_recorded():
    class Lost(InlineSlots):
        n_slots = 3

        def result(self, slot, future):
            if slot == 1:
                raise SlotsLostError("The cluster is gone.")
            return super().result(slot, future)

    for n_trials in (3, 9):  # nothing is left to submit; something is
        with pytest.warns(UserWarning, match=f"2 of {n_trials} trials: The cluster is gone."):
            records = search(Lost(Evaluate()), n_trials=n_trials)
        assert [record.trial_number for record in records if record.completed] == [0, 2]


def test_an_interrupt_while_a_trial_is_written_loses_nothing():
    store = Hasty(2)
    with pytest.warns(UserWarning, match="with 3 of 9 trials"):
        history = search(inline(Evaluate()), 9, store=store)
    assert [r.trial_number for r in history] == [0, 1, 2] and store.added == history


def test_failures_of_an_earlier_search_do_not_end_this_one():
    slots = inline(Evaluate(fail=range(10)))
    with pytest.raises(SearchFailedError) as error:
        search(slots, 40)
    assert len(error.value.records) == 10
    with pytest.raises(SearchFailedError, match=r"All 20[\s\S]*10 of them are from an earlier"):
        search(slots, 40, store=Kept(error.value.records))
    slots = inline(Evaluate())  # mended
    store = Kept(error.value.records)
    records = search_within(Limits(), slots, 40, entropy=3, store=store)
    assert len(records) == 40 and sum(r.completed for r in records) == 30
