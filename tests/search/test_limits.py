"""Time limits of single trials."""

import math
import time

import pytest
from slots import inline, search
from tiers import cases
from training_data import TrialOutcome

from skuq.search import Limits, RunOptions, TrialRecord


class Timed:
    """An evaluation that sleeps, at most for the time it gets, and records what budgets it got."""

    takes_budget = True

    def __init__(self, sleep=0.0, fail=()):
        self.budgets, self.sleep, self.fail = [], sleep, fail

    def __call__(self, configuration, seed, budget):
        self.budgets.append(budget)
        time.sleep(min(self.sleep, budget.seconds))
        if len(self.budgets) - 1 in self.fail:
            raise ArithmeticError("no luck")
        return TrialOutcome("a network", configuration["x"])


def run(evaluate, n_trials, **fields):
    return search(inline(evaluate), n_trials, evaluate=evaluate, **fields)


def record(seconds, **fields):
    return TrialRecord(0, seconds=seconds, **{"score": 1.0, **fields})


@cases(
    ("elapsed", "history", "expected"),
    (30, [], (70, True)),  # nobody knows yet how long a trial takes
    (30, [record(5)], (70, False)),
    (30, [record(30)], (70, True)),  # it might need more than there is
    (85, [record(20)], (15, True)),
    (91, [record(20)], (0, True)),  # not worth it
    (97, [record(20, status="failed", score=math.nan)], (3, True)),
    (94, [record(3, share=0.3)], (6, True)),  # a whole training would have taken ten
    (97, [record(3, share=0.3)], (0, True)),
    (60, [record(5, share=0.002)], (40, True)),  # five seconds of compilation
    (96, [record(5, share=0.002)], (0, True)),
    (60, [record(5, share=0.002), record(90)], (0, True)),
    (120, [record(20)], (0, True)),
    (120, [record(1, share=0.1)], (0, True)),
)
def test_what_time_the_next_trial_gets(monkeypatch, elapsed, history, expected):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + elapsed)
    found = Limits(max_time=100).time_of_next_trial(history, 1000.0)
    assert found == pytest.approx(expected)


@cases(
    ("elapsed", "history", "n_known", "expected"),
    (60, [record(9, share=0.3)], 1, 40),  # a whole training takes 30
    (96, [record(9, share=0.3)], 1, 4),
    (90, [record(9, share=0.3)] * 2, 1, 0),  # not its first one
    (90, [record(9, share=0.3), record(1, status="failed")], 1, 10),
    (70, [record(70, share=0.006)], 1, 30),
    (101, [record(9, share=0.3)], 1, 0),
)
def test_a_fit_that_goes_on_runs_a_trial_of_its_own(
    monkeypatch, elapsed, history, n_known, expected
):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + elapsed)
    found, _ = Limits(max_time=100).time_of_next_trial(history, 1000.0, n_known=n_known)
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
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    evaluate = Timed(sleep=0.4)
    limits = Limits(max_time=0.5, first_trials=1.5)
    records = run(evaluate, 1000, options=RunOptions(limits=limits))
    assert [record.completed for record in records] == [True, True]
    assert [budget.seconds for budget in evaluate.budgets] == pytest.approx([1.5, 1.1])


def test_trials_get_the_time_that_is_left(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    evaluate = Timed(sleep=0.4)
    records = run(evaluate, 1000, options=RunOptions(limits=Limits(max_time=1.5)))
    given = [budget.seconds for budget in evaluate.budgets]
    assert len(records) == len(given) and given[:3] == pytest.approx([1.5, 1.1, 0.7])
    assert now[0] <= 1001.5


def test_repeats_end_in_time_even_if_none_succeeds():
    evaluate = Timed(sleep=0.1, fail=range(1000))
    limits = Limits(max_time=0.5, needs_success=False, raise_on_failures=False)
    records = run(evaluate, 1000, options=RunOptions(limits=limits))
    assert 1 <= len(records) <= 8 and all(record.failed for record in records)
    none = Limits(max_time=0, needs_success=False, raise_on_failures=False)
    assert run(Timed(), 5, options=RunOptions(limits=none)) == []
