"""Early discarding of trials, and time limits of single trials."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slots import SPACE, Kept, inline, search
from tiers import cases
from training_data import TrialOutcome

from skuq.catalog import TrialRecord
from skuq.networks import Decisions, Space
from skuq.search import AgE, BayesianSearch, Limits, RunOptions, SearchProblem, SuccessiveHalving

SHARES = (0.1, 0.5)


class Staged:
    """Scores of the stages and the final one fall from x + 1 to x; records what budgets it got."""

    takes_budget = True

    def __init__(self, sleep=0.0, fail=()):
        self.budgets, self.sleep, self.fail = [], sleep, fail

    def __call__(self, configuration, seed, budget):
        self.budgets.append(budget)
        time.sleep(min(self.sleep, budget.seconds))
        if len(self.budgets) - 1 in self.fail:
            raise ArithmeticError("no luck")
        x, scores = configuration["x"], []
        for share, largest in budget.stages:
            scores.append(x + 1 - share)
            if scores[-1] > largest:
                return TrialOutcome(None, scores[-1], tuple(scores), share)
        return TrialOutcome("a network", x, tuple(scores))


def halved(evaluate, n_trials=20, store=None, **fields):
    halving = SuccessiveHalving(SHARES, 2.0, 3)
    return run(evaluate, n_trials, store=store, halving=halving, **fields)


def run(evaluate, n_trials, **fields):
    return search(inline(evaluate), n_trials, evaluate=evaluate, **fields)


@given(
    scores=st.lists(st.floats(-10, 10), min_size=0, max_size=30),
    new=st.floats(-10, 10),
    factor=st.floats(1.1, 5),
    min_trials=st.integers(1, 8),
)
def test_a_trial_passes_if_it_is_among_the_best(scores, new, factor, min_trials):
    history = [TrialRecord(k, score=9.0, stage_scores=(s,)) for k, s in enumerate(scores)]
    ((share, largest),) = SuccessiveHalving((0.3,), factor, min_trials).stages(history)
    assert share == 0.3
    rank = 1 + sum(s < new for s in scores)
    is_among_the_best = rank <= math.ceil((len(scores) + 1) / factor)
    assert (new <= largest) == (is_among_the_best or len(scores) < min_trials)


def test_each_stage_is_judged_by_those_that_have_reached_it():
    stages = [(1.0,), (2.0, 0.5), (3.0, 0.7), (4.0,), (5.0, 0.9, 0.1)]
    history = [TrialRecord(k, score=0.0, stage_scores=s) for k, s in enumerate(stages)]
    history.append(TrialRecord(9, status="failed"))
    found = SuccessiveHalving((0.1, 0.2, 0.3), 2.0, min_trials=1).stages(history)
    assert found == ((0.1, 3.0), (0.2, 0.7), (0.3, 0.1))
    halving = SuccessiveHalving(np.linspace(0.3, 0.6, 2), min_trials=1)
    assert {type(share) for share in halving.shares} == {float}


@cases(
    ("settings", "match"),
    ({"shares": (0.5, 0.1)}, "increase strictly between 0 and 1. Got \\(0.5, 0.1\\)"),
    ({"shares": (0.5, 1.0)}, "increase strictly"),
    ({"shares": (0.0, 0.5)}, "increase strictly"),
    ({"reduction_factor": 1}, "larger than 1. Got 1"),
    ({"reduction_factor": float("nan")}, "larger than 1. Got nan"),
    ({"reduction_factor": math.inf}, "larger than 1. Got inf"),
    ({"min_trials": 0}, "`min_trials` must be an integer >= 1. Got 0"),
    ({"shares": 0.5}, "`shares` must be numbers between 0 and 1. Got 0.5"),
)
def test_impossible_settings(settings, match):
    with pytest.raises((TypeError, ValueError), match=match):
        SuccessiveHalving(**settings)


def test_a_search_discards_those_that_are_behind():
    records = halved(Staged())
    by_number = sorted(records, key=lambda record: record.trial_number)
    discarded = [record for record in records if record.status == "discarded"]
    assert 5 <= len(discarded) <= 15
    assert all(record.completed for record in by_number[:3])  # nothing to compare with yet
    seen = []
    for record in by_number:
        x = record.configuration["x"]
        assert not record.failed
        largest = sorted(seen)[math.ceil((len(seen) + 1) / 2) - 1] if len(seen) >= 3 else math.inf
        first = x + 1 - SHARES[0]
        assert record.stage_scores[0] == first
        if first > largest:
            assert (record.status, record.share, record.score) == ("discarded", 0.1, first)
            assert record.result is None
        seen.append(first)
        if record.completed:
            assert record.score == x and record.share == 1 and record.result == "a network"


def test_a_resumed_search_is_the_same():
    whole = halved(Staged(), 16)
    store = Kept(halved(Staged(), 7))
    resumed = halved(Staged(), 16, store)

    def told(records):
        return [(r.trial_number, r.status, r.score, r.stage_scores, r.share) for r in records]

    assert told(resumed) == told(whole)


def test_discarded_trials_are_no_failures():
    records = halved(Staged(fail=(2, 5)), 20)
    assert [r.trial_number for r in records if r.failed] == [2, 5]
    assert any(r.status == "discarded" for r in records)
    records = run(Staged(), 8)
    assert all(record.completed and record.stage_scores == () for record in records)


@pytest.mark.parametrize("n_scored", [9, 10])
def test_discarded_trials_teach_the_proposers(n_scored):
    good = [TrialRecord(k, {"x": 0.9 + 0.01 * k, "k": k}, score=0.0) for k in range(3)]
    late = {"score": 5.0, "status": "discarded"}
    bad = [TrialRecord(k, {"x": 0.1 * k / n_scored, "k": k}, **late) for k in range(3, n_scored)]
    history = good + bad
    optimise = BayesianSearch().proposer(SearchProblem(Decisions(Space(), SPACE), 100))
    proposed = [optimise.ask(history, [], np.random.default_rng(s))["x"] for s in range(20)]
    is_learnt = min(proposed) > 0.5
    assert is_learnt == (n_scored >= 10)  # counts towards the ten random ones
    evolution = AgE(population_size=n_scored, sample_size=n_scored)
    evolution = evolution.proposer(SearchProblem(Decisions(SPACE, Space()), 100))
    child = evolution.ask(history, [], np.random.default_rng(0))
    shared = [sum(child[name] == g.configuration[name] for name in child) for g in good]
    assert max(shared) == len(child) - 1  # a mutation of one of the best


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
    (97, [record(20, status="discarded")], (3, True)),
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
    evaluate = Staged(sleep=0.4)
    limits = Limits(max_time=0.5, first_trials=1.5)
    records = run(evaluate, 1000, options=RunOptions(limits=limits))
    assert [record.completed for record in records] == [True, True]
    assert [budget.seconds for budget in evaluate.budgets] == pytest.approx([1.5, 1.1])


def test_trials_get_the_time_that_is_left(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    evaluate = Staged(sleep=0.4)
    records = run(evaluate, 1000, options=RunOptions(limits=Limits(max_time=1.5)))
    given = [budget.seconds for budget in evaluate.budgets]
    assert len(records) == len(given) and given[:3] == pytest.approx([1.5, 1.1, 0.7])
    assert now[0] <= 1001.5


def test_repeats_end_in_time_even_if_none_succeeds():
    evaluate = Staged(sleep=0.1, fail=range(1000))
    limits = Limits(max_time=0.5, needs_success=False, raise_on_failures=False)
    records = run(evaluate, 1000, options=RunOptions(limits=limits))
    assert 1 <= len(records) <= 8 and all(record.failed for record in records)
    none = Limits(max_time=0, needs_success=False, raise_on_failures=False)
    assert run(Staged(), 5, options=RunOptions(limits=none)) == []
