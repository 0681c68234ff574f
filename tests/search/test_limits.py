"""Time limits of single trials."""

import math
import time

import pytest
from slots import inline, search
from tiers import cases
from training_data import TrialOutcome

from skuq.search import Limits, RunOptions, TrialRecord


class Timed:
    """An evaluation that takes some time, of which it gets a budget; on a clock of its own."""

    takes_budget = True

    def __init__(self, monkeypatch, seconds=400.0, fails=False):
        self.budgets, self.seconds, self.fails = [], seconds, fails
        self.now = time.monotonic()  # by which trials note their start
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, configuration, seed, budget):
        self.budgets.append(budget.seconds)
        self.now += min(self.seconds, budget.seconds)
        if self.fails:
            raise ArithmeticError("no luck")
        return TrialOutcome("a network", configuration["x"])


def run(evaluate, n_trials, limits):
    return search(inline(evaluate), n_trials, evaluate=evaluate, options=RunOptions(limits=limits))


def record(seconds, **fields):
    return TrialRecord(0, seconds=seconds, **{"score": 1.0, **fields})


@cases(
    ("elapsed", "history", "expected"),
    (30, [], (70, True)),  # nobody knows yet how long a trial takes
    (30, [record(5)], (70, False)),
    (70, [record(10)], (30, True)),  # it might need more than there is
    (91, [record(20)], (0, True)),  # not worth it
    (97, [record(20, status="failed")], (3, True)),
    (94, [record(3, share=0.3)], (6, True)),  # a whole training would have taken ten
    (97, [record(3, share=0.3)], (0, True)),
    (60, [record(5, share=0.002)], (40, True)),  # five seconds of compilation
    (96, [record(5, share=0.002)], (0, True)),
)
def test_what_time_the_next_trial_gets(monkeypatch, elapsed, history, expected):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + elapsed)
    found = Limits(max_time=100).time_of_next_trial(history, 1000.0)
    assert found == pytest.approx(expected)


@cases(
    ("elapsed", "history", "expected"),
    (60, [record(9, share=0.3)], 40),  # a whole training takes 30
    (90, [record(9, share=0.3)] * 2, 0),  # not its first one
    (90, [record(9, share=0.3), record(1, status="failed")], 10),
    (101, [record(9, share=0.3)], 0),
)
def test_a_fit_that_goes_on_runs_a_trial_of_its_own(monkeypatch, elapsed, history, expected):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + elapsed)
    found, _ = Limits(max_time=100).time_of_next_trial(history, 1000.0, n_known=1)
    assert found == pytest.approx(expected)


def test_a_trial_may_use_all_time_until_two_have_succeeded(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1050.0)
    limits, failed = Limits(max_time=60, first_trials=100), TrialRecord(0, status="failed")
    for history in ([], [failed]):
        assert limits.time_of_next_trial(history, 1000.0) == (50, True)
        assert limits.time_of_next_trial(history, 1000.0, n_slots=2) == (10, True)
    done = TrialRecord(1, score=0.0, seconds=15.0)
    assert limits.time_of_next_trial([failed, done], 1000.0) == (50, False)
    assert limits.time_of_next_trial([failed, done], 1000.0, n_slots=2) == (10, True)
    assert limits.time_of_next_trial([done, done], 1000.0) == (10, True)
    # With less than half of the time of a trial left, the first one is repeated.
    longer = TrialRecord(1, score=0.0, seconds=101.0)
    assert limits.time_of_next_trial([longer], 1000.0) == (0, True)
    monkeypatch.setattr(time, "monotonic", lambda: 1200.0)
    seconds, is_tight = Limits(max_time=100).time_of_next_trial([], 1000.0)
    assert 0 < seconds < 1 and is_tight
    assert Limits().time_of_next_trial([], 1000.0) == (math.inf, False)


def test_the_second_trial_ends_after_the_time_of_the_search(monkeypatch):
    evaluate = Timed(monkeypatch)
    records = run(evaluate, 1000, Limits(max_time=500, first_trials=1500))
    assert [record.completed for record in records] == [True, True]
    assert evaluate.budgets == pytest.approx([1500, 1100])


def test_trials_get_the_time_that_is_left(monkeypatch):
    evaluate = Timed(monkeypatch)
    assert len(run(evaluate, 1000, Limits(max_time=1500))) == 3
    assert evaluate.budgets == pytest.approx([1500, 1100, 700])


def test_repeats_end_in_time_even_if_none_succeeds(monkeypatch):
    evaluate = Timed(monkeypatch, seconds=100, fails=True)
    limits = {"needs_success": False, "raise_on_failures": False}
    records = run(evaluate, 1000, Limits(max_time=450, **limits))
    assert len(records) == 5 and all(record.failed for record in records)
    assert run(evaluate, 5, Limits(max_time=0, **limits)) == []
