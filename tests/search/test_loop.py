"""Searches in slots of each kind, in stacks, within limits, and with networks trained again."""

import itertools
import math
import multiprocessing
import os
import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import joblib
import numpy as np
import pytest
import slots
from slots import SPACE, Kept, RandomProposer, contents, inline, processes, search, threads
from tiers import cases, slow
from training_data import TrialOutcome

from skuq.exceptions import SearchFailedError, SearchSpaceError, SlotsLostError
from skuq.networks import Member
from skuq.search import Catalog, Limits, RunOptions, Search, SearchResult, TrialRecord

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that processes import less


class Evaluate:
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


def search_within(limits, slots, n_trials, **fields):
    return search(slots, n_trials, options=RunOptions(limits=limits), **fields)


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


def test_processes_share_the_cores_and_stay_warm():
    first = search(processes(Evaluate(sleep=0.05), 2), n_trials=6)
    again, pids = search(processes(Evaluate(), 2), n_trials=6), {r.result.pid for r in first}
    assert len(pids) == 2 and os.getpid() not in pids and {r.result.pid for r in again} <= pids
    assert {r.result.threads for r in first} == {str(max(1, joblib.cpu_count() // 2))}


@slow
def test_a_process_is_replaced_after_many_trials_and_starts_none_itself(monkeypatch):
    monkeypatch.setattr("skuq.search._slots._MAX_TRIALS", 4)
    monkeypatch.setattr("skuq.search._slots._idle", [])
    records = search(processes(Evaluate(), 1), n_trials=9)
    assert all(r.completed for r in records) and len({r.result.pid for r in records}) == 3
    assert kinds_of_workers("loky") == ["InlineSlots"] * 2


class Counting:
    def __init__(self):
        self.numbers = itertools.count()

    def ask(self, history, running, rng):
        k = next(self.numbers)
        return {"x": k / 40, "k": k}


def test_hopeless_searches_and_what_cannot_be_sent_or_is_no_score_fail_and_say_why():
    failing = Evaluate(fail=range(10))
    with pytest.raises(SearchFailedError, match=r"(?s)failed.*ArithmeticError: k is") as error:
        search(threads(failing, 2), n_trials=200)
    assert 10 <= len(error.value.records) <= 11
    sent = cloudpickle.loads(cloudpickle.dumps(error.value))  # as processes send it
    assert (str(sent), len(sent.records)) == (str(error.value), len(error.value.records))
    with pytest.raises(SearchFailedError) as error:
        search(inline(failing), 40)
    assert len(error.value.records) == 10
    # Failures of an earlier search do not end this one, until it has had its own.
    with pytest.raises(SearchFailedError, match=r"All 20[\s\S]*10 of them are from an earlier"):
        search(inline(failing), 40, store=Kept(error.value.records))
    records = search(inline(Evaluate()), 40, store=Kept(error.value.records))
    assert len(records) == 40 and sum(r.completed for r in records) == 30

    class NotHere:
        def __reduce__(self):
            return __import__, ("no_such_module_of_skuq",)

    evaluate = Evaluate()
    evaluate.lock = threading.Lock()
    with pytest.raises(SearchSpaceError, match="cannot be sent to worker processes.*n_jobs=1"):
        search(processes(evaluate, 2))
    with pytest.raises(SearchFailedError, match="ModuleNotFoundError.*no_such_module"):
        search(processes(NotHere(), 1), n_trials=2)
    for score in (math.nan, -math.inf):
        own = inline(lambda _, seed, score=score: SimpleNamespace(score=score if seed % 2 else 1.0))
        failed = [r for r in search(own, 20) if not r.completed]
        assert 0 < len(failed) < 20 and all(r.result is None for r in failed)
        assert {r.message for r in failed} == {f"The evaluation returned a score of {score}."}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SlotsLostError("The cluster is gone.")])
def test_what_has_finished_is_kept_after_an_interrupt_or_with_lost_slots(error):
    class Ending(slots.InlineSlots):
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


def test_threads_that_are_busy_hold_up_no_interrupt_and_no_other_trial():
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

    def evaluate(configuration, seed):
        time.sleep(0.5 if configuration["k"] == 0 else 0.01)
        return always(configuration, seed)

    store = Kept()
    search(threads(evaluate, 2), n_trials=10, proposer=Counting(), store=store)
    assert store.added[-1].trial_number == 0


def kind_of(n_jobs, n_trials):
    return type(slots.open_slots(Evaluate(), n_jobs, n_trials)).__name__


def kinds_of_workers(backend):
    return joblib.Parallel(2, backend=backend)([joblib.delayed(kind_of)(4, 10)] * 2)


def test_n_jobs_and_joblib_choose_the_slots(monkeypatch):
    assert kind_of(None, 10) == "InlineSlots" and kind_of(2, 10) == "ProcessSlots"
    assert slots.open_slots(Evaluate(), 2, 1).n_slots == 1
    assert kind_of(1, 50) == "InlineSlots" and kind_of(1, 51) == "ProcessSlots"
    with joblib.parallel_config(backend="threading", n_jobs=3):
        assert kind_of(None, 10) == "ThreadSlots"
        assert slots.open_slots(Evaluate(), None, 10).n_slots == 3
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert kind_of(None, 10) == "ProcessSlots"
    assert kind_of(1, 3) == "InlineSlots"
    with monkeypatch.context() as patch:
        patch.setattr("skuq.search._slots._MAX_BYTES", 1)
        assert kind_of(1, 3) == "ProcessSlots"
    assert kinds_of_workers("threading") == ["InlineSlots"] * 2
    # Forks and daemons start no processes.
    with monkeypatch.context() as patch:
        patch.setattr("skuq.search._slots._is_forked", True)
        assert kind_of(1, 100) == "InlineSlots"
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert kind_of(1, 100) == "InlineSlots"


def test_a_search_of_any_number_of_trials_shows_no_total(capsys):
    options = RunOptions(verbose=1, score_name="NLL", is_open=True)
    best = min(record.score for record in search(inline(Evaluate()), 3, options=options))
    shown = capsys.readouterr().err
    assert "3trial" in shown and f"best NLL={best:.3f}, failed=0" in shown


def test_a_proposer_that_raises_or_an_interrupt_in_writing_loses_nothing():
    class Fails(RandomProposer):
        def ask(self, history, running, rng):
            if len(history) == 3:
                raise LookupError("nothing left")
            return super().ask(history, running, rng)

    with pytest.raises(SearchFailedError, match="propose trial 3: nothing left") as error:
        search(inline(Evaluate()), proposer=Fails(SPACE))
    assert len(error.value.records) == 3
    store = slots.Hasty(2)
    with pytest.warns(UserWarning, match="with 3 of 9 trials"):
        history = search(inline(Evaluate()), 9, store=store)
    assert [r.trial_number for r in history] == [0, 1, 2] and store.added == history


class Learning(RandomProposer):
    def ask(self, history, running, rng):
        drawn = super().ask(history, running, rng)
        return {**drawn, "x": drawn["x"] * (1 + sum(r.score for r in history if r.completed))}


def test_a_search_goes_on_where_a_store_ends_or_has_gaps():
    evaluate = Evaluate(fail=(1, 2))
    whole = search(inline(evaluate), 12, Learning(SPACE))
    for n_first in (0, 5, 12):
        kept = Kept(whole[:n_first])
        again = search(inline(evaluate), 12, Learning(SPACE), store=kept)
        assert contents(again) == contents(whole) and again == kept.records + kept.added
    whole = search(inline(Evaluate()), 8)
    assert search(inline(Evaluate()), 5, store=Kept(whole)) == whole[:5]
    gaps = Kept([whole[6], whole[1]])
    filled = search(inline(Evaluate()), 8, store=gaps)
    assert [r.trial_number for r in gaps.added] == [0, 2, 3, 4, 5, 7]
    assert contents(filled) == contents(whole)
    # Slots are opened for the trials that are missing.
    whole = search(inline(Evaluate()), n_trials=4)
    arguments, options = (Evaluate(), RandomProposer(SPACE), 4, 3), RunOptions(n_jobs=2)
    again = Search(*arguments, store=Kept(whole[:3]), options=options).run().catalog
    assert contents(again) == contents(whole)
    assert again[3].result.pid == os.getpid()  # a single trial needs no process
    records = Search(*arguments, options=options).run().catalog
    assert contents(records) == contents(whole)
    assert os.getpid() not in {record.result.pid for record in records}


def test_time_ends_a_search_with_the_trial_that_is_running():
    records = search_within(Limits(max_time=0.5), threads(Evaluate(sleep=0.1), 2), 1000)
    assert 1 <= len(records) <= 12 and all(r.completed for r in records)
    # Without any there is still one success.
    records = search_within(Limits(max_time=1e-9), inline(Evaluate(fail=range(5))), 40)
    assert [r.completed for r in records] == [False] * (len(records) - 1) + [True]


@slow
def test_a_trial_that_does_not_end_costs_itself_only():
    def evaluate(configuration, seed):
        if configuration["k"] == 4:
            time.sleep(600)
        return always(configuration, seed)

    # A new process takes a while to start, hence the grace.
    records = search_within(Limits(trial_timeout=1.0, grace=9.0), processes(evaluate, 2), 12)
    stuck = [r for r in records if r.configuration["k"] == 4]
    assert len(records) == 12 and stuck
    assert {r.message for r in stuck} == {"TimeoutError: stopped after trial_timeout=1 s."}
    assert all(r.seconds > 10 for r in stuck)
    assert all(r.completed for r in records if r.configuration["k"] != 4)


@pytest.mark.parametrize("n_trials", [3, 9])  # nothing is left to submit; something is
def test_trials_that_go_with_their_slots_are_not_recorded(n_trials):
    class Lost(slots.InlineSlots):
        def result(self, slot, future):
            if slot == 1:
                raise SlotsLostError("The cluster is gone.")
            return super().result(slot, future)

    with pytest.warns(UserWarning, match=f"2 of {n_trials} trials: The cluster is gone."):
        records = search(Lost(Evaluate(), 3), n_trials=n_trials)
    assert [record.trial_number for record in records if record.completed] == [0, 2]


class Together:
    """Evaluation of packs that returns x as scores, and records the seeds."""

    def __init__(self, at_pack=()):
        self.asked, self.at_pack = [], dict(at_pack)

    def __call__(self, configuration, seed):
        return self.together([configuration], [seed])[0]

    def together(self, configurations, seeds):
        self.asked.append(list(seeds))
        if (error := self.at_pack.get(len(self.asked))) is not None:
            raise error
        failed = ArithmeticError("no luck")
        return [failed if c["k"] == 3 else SimpleNamespace(score=c["x"]) for c in configurations]


def search_in_packs(evaluate, n_trials=40, proposer=None, **fields):
    fields |= {"evaluate": evaluate, "pack_size": 16}
    return search(inline(evaluate), n_trials, proposer or Counting(), **fields)


def test_packs_have_seeds_by_numbers_and_are_kept_after_an_interrupt():
    together = Together()
    records = search_in_packs(together)
    assert [len(seeds) for seeds in together.asked] == [16, 16, 8]
    scores = [r.score if r.completed else r.message for r in records]
    assert scores == [k / 40 if k != 3 else "ArithmeticError: no luck" for k in range(40)]
    assert search_in_packs(Together(), 1)[0].seed == together.asked[0][0]
    # Trials that a store has are not trained again.
    store, together = Kept([records[k] for k in (4, 0, 7)]), Together()
    again = search_in_packs(together, 10, store=store)
    assert [r.trial_number for r in again] == list(range(10)) and sum(map(len, together.asked)) == 7
    assert [r.trial_number for r in store.added] == [1, 2, 3, 5, 6, 8, 9]
    interrupted = Together({2: KeyboardInterrupt()})
    for evaluate, store in ((interrupted, Kept()), (Together(), slots.Hasty(5))):  # in writing
        with pytest.warns(UserWarning, match="continuing with 16 of 40 trials"):
            records = search_in_packs(evaluate, store=store)
        assert [r.trial_number for r in records] == list(range(16)) and store.added == records
    with pytest.raises(KeyboardInterrupt):
        search_in_packs(Together({1: KeyboardInterrupt()}))
    records = search_in_packs(Together({2: TimeoutError("too long"), 3: TimeoutError("too long")}))
    assert [r.completed for r in records[4:]] == [True] * 12 + [False] + [True] * 23
    assert records[16].message == "TimeoutError: too long"


def test_packs_know_what_runs_and_those_that_are_lost_run_again_trial_by_trial():
    evaluate, known = Together({1: RuntimeError("The worker process died")}), []

    def ask(history, running, rng):
        return known.append((len(history), len(running))) or {"x": 0.5, "k": 0}

    records = search_in_packs(evaluate, 18, SimpleNamespace(ask=ask))
    assert [len(seeds) for seeds in evaluate.asked] == [16, *[1] * 16, 2]
    assert evaluate.asked[0] == sum(evaluate.asked[1:17], [])  # what has been proposed
    assert known == [*((0, k) for k in range(16)), (16, 0), (16, 1)]
    assert all(record.completed for record in records)


def record(seconds, **fields):
    return TrialRecord(0, seconds=seconds, **{"score": 1.0, **fields})


PART, FAILED, DONE = record(9, share=0.3), record(1, status="failed"), record(15)


@cases(
    ("elapsed", "history", "options", "expected"),
    (30, [], {}, (70, True)),  # nobody knows yet how long a trial takes
    (30, [record(5)], {}, (70, False)),
    (70, [record(10)], {}, (30, True)),  # it might need more than there is
    (91, [record(20)], {}, (0, True)),  # not worth it
    (97, [record(20, status="failed")], {}, (3, True)),
    (94, [record(3, share=0.3)], {}, (6, True)),  # a whole training would have taken ten
    (97, [record(3, share=0.3)], {}, (0, True)),
    (60, [record(5, share=0.002)], {}, (40, True)),  # five seconds of compilation
    (96, [record(5, share=0.002)], {}, (0, True)),
    (200, [], {}, (pytest.approx(0.5, abs=0.49), True)),
    (0, [], {"max_time": None}, (math.inf, False)),
    # A fit that goes on runs a trial of its own, which takes 30 s if it is whole.
    (60, [PART], {"n_known": 1}, (40, True)),
    (90, [PART] * 2, {"n_known": 1}, (0, True)),  # not its first one
    (90, [PART, FAILED], {"n_known": 1}, (10, True)),
    (101, [PART], {"n_known": 1}, (0, True)),
    # Several side by side, of which nobody knows at first how long they take
    (40, [], {"max_time": None, "most": 4}, (math.inf, False, 4)),
    *((40, [r], {"most": 4}, (60, True, 2)) for r in (FAILED, PART, record(25))),
    *((40, [r], {"most": 4}, (60, True, n)) for r, n in ((DONE, 4), (record(90), 1))),
    (40, [record(25)], {"max_time": 1000, "most": 4}, (960, False, 4)),
)
def test_what_time_the_next_trial_gets(monkeypatch, elapsed, history, options, expected):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + elapsed)
    options = {"max_time": 100, **options}
    known = {name: options.pop(name) for name in ("n_known", "most") if name in options}
    assert Limits(**options).time_of_next_trials(history, 1000.0, **known) == (*expected, 1)[:3]


class Timed:
    """An evaluation that takes some time, of which it gets a budget; on a clock of its own."""

    takes_budget = True

    def __init__(self, monkeypatch):
        self.budgets, self.now = [], time.monotonic()  # by which trials note their start
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, configuration, seed, budget):
        self.budgets.append(budget.seconds)
        self.now += min(400.0, budget.seconds)
        return TrialOutcome("a network", configuration["x"])


def test_trials_get_the_time_that_is_left(monkeypatch):
    evaluate = Timed(monkeypatch)
    records = search_within(Limits(max_time=1500), inline(evaluate), 1000, evaluate=evaluate)
    assert [record.completed for record in records] == [True] * 4
    assert evaluate.budgets == pytest.approx([1500, 1100, 700, 300])


class Folder(Kept):
    def __init__(self, *refits):
        super().__init__()
        self.refitted = list(refits)

    def refits(self):
        return self.refitted

    def add_refit(self, record):
        self.refitted.append(record)


def network(seed):
    history = {"loss": np.zeros(1), "val_loss": np.full(1, np.nan), "learning_rate": np.ones(1)}
    return Member("{}", np.ones(2), (), history, 0, np.zeros((1, 1)), seed, 0.1, "graph")


TRIALS = [TrialRecord(n, {"x": n}, score=0.0, result=network(n)) for n in (3, 5)]


class Again:
    def __init__(self, failing=()):
        self.failing, self.requests = failing, []

    def __call__(self, request, seed):
        self.requests.append(request["trial"])
        if request["trial"] in self.failing:
            raise ArithmeticError("no")
        return network(100 + request["trial"])


def refit(evaluate, store):
    refits = slots.Refits(SearchResult(Catalog(TRIALS)), [1, 0])
    search = Search(evaluate, RandomProposer(None), 2, 1)
    return refits.train(search, lambda evaluate, trials: evaluate, RunOptions(), store)


def test_refits_replace_the_networks_of_their_trials_and_are_stored():
    evaluate, store = Again(), Folder()
    for _ in range(2):  # the second time they are stored
        result = refit(evaluate, store)
        assert evaluate.requests == [5, 3] and store.added == []  # they are no trials
        seeds = {k: [member.seed for member in result.networks(k)] for k in (0, 1)}
        assert seeds == {0: [103], 1: [105]}
    assert [record.configuration for record in store.refitted] == [{"x": 5}, {"x": 3}]
    # A network of another configuration is not taken.
    other = TrialRecord(5, {"x": 9}, score=0.0, result=network(7))
    same = TrialRecord(3, {"x": 3}, score=0.0, result=network(8))
    result = refit(evaluate, Folder(other, same))
    assert evaluate.requests[2:] == [5] and result.networks(0)[0].seed == 8
    evaluate, store = Again(failing=[5]), Folder()
    with pytest.warns(UserWarning, match="1 of 2 networks could not be refitted.*ArithmeticError"):
        result = refit(evaluate, store)
    assert set(result.refitted) == {0} and len(store.refitted) == 1
    evaluate.failing = ()
    assert set(refit(evaluate, store).refitted) == {0, 1}
    assert evaluate.requests == [5, 3, 5]  # the failed one was tried again
