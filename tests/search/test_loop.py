"""The asynchronous search loop on every kind of slot, with evaluations without networks."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import joblib
import pytest
from joblib.externals.loky.process_executor import ProcessPoolExecutor
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
from tiers import cases, slow

from skuq.exceptions import SearchFailedError, SearchSpaceError, SlotsLostError
from skuq.search import Limits, RunOptions, Search

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that processes import less


class Evaluate:
    """Evaluation whose score is x; k decides whether it fails."""

    def __init__(self, fail=(), sleep=0.0):
        self.fail, self.sleep = fail, sleep

    def __call__(self, configuration, seed):
        time.sleep(self.sleep)
        if configuration["k"] in self.fail:
            raise ArithmeticError(f"k is {configuration['k']}")
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        return SimpleNamespace(score=configuration["x"], pid=os.getpid(), threads=threads)


def always(configuration, seed):
    return SimpleNamespace(score=1.0)


def kill(configuration, seed):
    os.kill(os.getpid(), signal.SIGKILL)


def search_within(limits, slots, n_trials, entropy=1, **fields):
    return search(slots, n_trials, entropy=entropy, options=RunOptions(limits=limits), **fields)


def contents(records):
    # As text: the NaN of a failed trial is unlike another one.
    return [repr((r.trial_number, r.configuration, r.seed, r.score, r.message)) for r in records]


@pytest.mark.parametrize("kind", [threads, processes])
def test_all_slots_give_the_same_random_search(kind):
    evaluate = Evaluate(fail=(1, 2, 3))
    expected = search(inline(evaluate), n_trials=20)
    records = sorted(search(kind(evaluate, 2), n_trials=20), key=lambda r: r.trial_number)
    assert contents(records) == contents(expected)
    assert [r.trial_number for r in records] == list(range(20))
    assert len({r.seed for r in records}) == 20 and min(r.seed for r in records) >= 1
    failed = [r for r in records if not r.completed]
    assert {r.configuration["k"] for r in failed} == {1, 2, 3}
    for record in failed:
        assert record.message == f"ArithmeticError: k is {record.configuration['k']}"
        assert record.score != record.score and record.failed  # NaN, never a made-up number


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
        search(processes(kill, 1), n_trials=1)


def test_processes_share_the_cores_and_stay_warm():
    first = search(processes(Evaluate(sleep=0.05), 2), n_trials=6)
    again = search(processes(Evaluate(), 2), n_trials=6)
    pids = {r.result.pid for r in first}
    assert len(pids) == 2 and os.getpid() not in pids
    assert {r.result.pid for r in again} <= pids
    share = max(1, joblib.cpu_count() // 2)
    assert {r.result.threads for r in first} == {str(share)}


@slow
def test_a_process_is_replaced_after_many_trials(monkeypatch):
    monkeypatch.setattr("skuq.search._process_slots._MAX_TRIALS", 4)
    monkeypatch.setattr("skuq.search._process_slots._idle", [])
    records = search(processes(Evaluate(), 1), n_trials=9)
    assert all(r.completed for r in records)
    assert len({r.result.pid for r in records}) == 3


class Counting:
    """k is the number of the trial."""

    def ask(self, history, running, rng):
        return {"x": 0.5, "k": len(history) + len(running)}


def test_one_slow_trial_does_not_hold_up_the_others():
    def evaluate(configuration, seed):
        time.sleep(0.5 if configuration["k"] == 0 else 0.01)
        return always(configuration, seed)

    store = Kept()
    search(threads(evaluate, 2), n_trials=10, proposer=Counting(), store=store)
    assert store.added[-1].trial_number == 0


def test_hopeless_searches_end_early_and_say_why():
    slots = threads(Evaluate(fail=range(10)), 2)
    with pytest.raises(SearchFailedError, match=r"(?s)failed.*ArithmeticError: k is") as error:
        search(slots, n_trials=200)
    assert 10 <= len(error.value.records) <= 11
    slots = inline(Evaluate(fail=range(10)))
    with pytest.raises(SearchFailedError) as error:
        search(slots, 40)
    assert len(error.value.records) == 10
    # Failures of an earlier search do not end this one, until it has had its own.
    with pytest.raises(SearchFailedError, match=r"All 20[\s\S]*10 of them are from an earlier"):
        search(slots, 40, store=Kept(error.value.records))
    store = Kept(error.value.records)
    records = search(inline(Evaluate()), 40, store=store)
    assert len(records) == 40 and sum(r.completed for r in records) == 30


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SlotsLostError("The cluster is gone.")])
def test_what_has_finished_is_kept_after_an_interrupt_or_with_lost_slots(error):
    class Ending(InlineSlots):
        def submit(self, slot, configuration, seed):
            if configuration["k"] == n_before:
                raise error
            return super().submit(slot, configuration, seed)

    n_before = 3
    for is_open, trials in ((False, "3 of 9 trials"), (True, "3 trials")):
        told = f"interrupted: continuing with {trials}(: {error}|\\.$)"
        with pytest.warns(UserWarning, match=told):
            options = RunOptions(is_open=is_open)
            assert len(search(Ending(always), 9, Counting(), options=options)) == 3
    n_before = 0
    with pytest.raises(type(error)):
        search(Ending(always), 9, Counting())


def test_an_interrupt_while_a_trial_is_written_loses_nothing():
    store = Hasty(2)
    with pytest.warns(UserWarning, match="with 3 of 9 trials"):
        history = search(inline(Evaluate()), 9, store=store)
    assert [r.trial_number for r in history] == [0, 1, 2] and store.added == history


def test_an_interrupt_does_not_wait_for_threads_that_are_busy():
    is_over = threading.Event()

    class Interrupting(Counting):
        def ask(self, history, running, rng):
            if len(history) >= 2:  # while every slot is busy
                raise KeyboardInterrupt
            return super().ask(history, running, rng)

    def evaluate(configuration, seed):
        return SimpleNamespace(score=float(configuration["k"] >= 2 and is_over.wait(60)))

    started = time.monotonic()
    with pytest.warns(UserWarning, match="interrupted"):
        search(threads(evaluate, 2), n_trials=20, proposer=Interrupting())
    assert time.monotonic() - started < 50
    is_over.set()


def kind_of(n_jobs, n_trials):
    return type(open_slots(Evaluate(), n_jobs, n_trials)).__name__


def test_n_jobs_and_joblib_choose_the_slots(monkeypatch):
    assert kind_of(None, 10) == "InlineSlots"
    assert kind_of(2, 10) == "ProcessSlots"
    assert open_slots(Evaluate(), 2, 1).n_slots == 1
    assert kind_of(1, 50) == "InlineSlots" and kind_of(1, 51) == "ProcessSlots"
    with joblib.parallel_config(backend="threading", n_jobs=3):
        assert kind_of(None, 10) == "ThreadSlots"
        assert open_slots(Evaluate(), None, 10).n_slots == 3
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert kind_of(None, 10) == "ProcessSlots"
    assert kind_of(1, 3) == "InlineSlots"
    with monkeypatch.context() as patch:
        patch.setattr("skuq.search._slots._MAX_BYTES", 1)
        assert kind_of(1, 3) == "ProcessSlots"


def test_forks_and_daemons_start_no_processes(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("skuq.search._process_slots._is_forked", True)
        assert kind_of(1, 100) == "InlineSlots"
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert kind_of(1, 100) == "InlineSlots"


@cases("backend", "threading", "loky", quick=1)
def test_inside_a_joblib_worker_trials_run_inline(backend):
    delayed = joblib.delayed(kind_of)
    kinds = joblib.Parallel(n_jobs=2, backend=backend)(delayed(4, 10) for _ in range(2))
    assert kinds == ["InlineSlots"] * 2


def test_a_search_of_any_number_of_trials_shows_no_total(capsys):
    options = RunOptions(verbose=1, score_name="NLL", is_open=True)
    best = min(record.score for record in search(inline(Evaluate()), 3, options=options))
    shown = capsys.readouterr().err
    assert "3trial" in shown and f"best NLL={best:.3f}, failed=0" in shown


class NotHere:
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


@pytest.mark.parametrize("n_first", [0, 5, 12])
def test_a_search_goes_on_where_a_store_ends(n_first):
    evaluate = Evaluate(fail=(1, 2))
    whole = search(inline(evaluate), 12, Learning(SPACE))
    kept = Kept(whole[:n_first])
    again = search(inline(evaluate), 12, Learning(SPACE), store=kept)
    assert contents(again) == contents(whole)
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
    assert search(inline(Evaluate()), 5, store=Kept(whole)) == whole[:5]
    gaps = Kept([whole[6], whole[1]])
    filled = search(inline(Evaluate()), 8, store=gaps)
    assert [r.trial_number for r in gaps.added] == [0, 2, 3, 4, 5, 7]
    assert contents(filled) == contents(whole)


@pytest.mark.parametrize("score", [float("nan"), -float("inf")])
def test_scores_that_are_no_numbers_are_failures(score):
    slots = inline(lambda _, seed: SimpleNamespace(score=score if seed % 2 else 1.0))
    failed = [r for r in search(slots, 20) if not r.completed]
    assert 0 < len(failed) < 20
    assert {r.message for r in failed} == {f"The evaluation returned a score of {score}."}
    assert all(r.result is None for r in failed)


@pytest.mark.parametrize("kind", [inline, lambda evaluate: threads(evaluate, 2)])
def test_time_ends_a_search_with_the_trial_that_is_running(kind):
    records = search_within(Limits(max_time=0.5), kind(Evaluate(sleep=0.1)), 1000)
    assert 1 <= len(records) <= 12
    assert all(r.completed for r in records)


def test_no_time_at_all_still_gives_one_success():
    records = search_within(Limits(max_time=1e-9), inline(Evaluate(fail=range(5))), 40)
    assert [r.completed for r in records] == [False] * (len(records) - 1) + [True]


@slow
def test_a_trial_that_does_not_end_costs_itself_only():
    def evaluate(configuration, seed):
        if configuration["k"] == 4:
            time.sleep(600)
        return always(configuration, seed)

    # A new process takes a while to start, hence the grace.
    limits = Limits(trial_timeout=1.0, grace=9.0)
    records = search_within(limits, processes(evaluate, 2), 12, entropy=3)
    stuck = [r for r in records if r.configuration["k"] == 4]
    assert len(records) == 12 and stuck
    assert {r.message for r in stuck} == {"TimeoutError: stopped after trial_timeout=1 s."}
    assert all(r.seconds > 10 for r in stuck)
    assert all(r.completed for r in records if r.configuration["k"] != 4)


@pytest.mark.parametrize("n_trials", [3, 9])  # nothing is left to submit; something is
def test_trials_that_go_with_their_slots_are_not_recorded(n_trials):
    class Lost(InlineSlots):
        n_slots = 3

        def result(self, slot, future):
            if slot == 1:
                raise SlotsLostError("The cluster is gone.")
            return super().result(slot, future)

    with pytest.warns(UserWarning, match=f"2 of {n_trials} trials: The cluster is gone."):
        records = search(Lost(Evaluate()), n_trials=n_trials)
    assert [record.trial_number for record in records if record.completed] == [0, 2]
