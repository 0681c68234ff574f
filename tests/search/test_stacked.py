"""Trials that train together: their results are kept after failures and interrupts."""

from types import SimpleNamespace

import pytest
from slots import Hasty, Kept, inline, search

from skuq.search import Limits, RunOptions

CONFIGURATIONS = [{"x": k / 40} for k in range(40)]


class Together:
    """Stack that returns the configurations as scores, and records the requests."""

    def __init__(self, at_stack=()):
        self.asked, self.at_stack = [], dict(at_stack)

    def can_train_together(self, configurations):
        return True

    def train_together(self, configurations, seeds):
        self.asked.append(list(seeds))
        if (error := self.at_stack.get(len(self.asked))) is not None:
            raise error
        return [SimpleNamespace(score=c["x"], seconds=0.1) for c in configurations]


class Listed:
    """Proposes the configurations one after the other."""

    def __init__(self):
        self.configurations = iter(CONFIGURATIONS)

    def ask(self, history, running, rng):
        return next(self.configurations)


def run(evaluate, n_trials=40, **fields):
    return search(None, n_trials, Listed(), evaluate=evaluate, in_stacks=True, **fields)


def test_stacks_are_of_equal_size_and_seeds_go_by_the_number_of_a_trial():
    together, alone = Together(), Together()
    records = run(together)
    assert [len(seeds) for seeds in together.asked] == [14, 14, 12]
    assert [r.trial_number for r in records] == list(range(40))
    assert [r.score for r in records] == [c["x"] for c in CONFIGURATIONS]
    run(alone, 1)
    assert alone.asked[0] == together.asked[0][:1]


def test_what_a_store_has_is_not_trained_again():
    records = run(Together(), 10)
    store, together = Kept([records[k] for k in (4, 0, 7)]), Together()
    again = run(together, 10, store=store)
    assert [r.trial_number for r in again] == list(range(10))
    assert sum(map(len, together.asked)) == 7
    assert [r.trial_number for r in store.added] == [1, 2, 3, 5, 6, 8, 9]


def test_an_interrupt_keeps_the_stacks_that_had_finished():
    for evaluate, store in (
        (Together({2: KeyboardInterrupt()}), Kept()),
        (Together(), Hasty(5)),  # while a stack is written
    ):
        with pytest.warns(UserWarning, match="continuing with 14 of 40 trials"):
            records = run(evaluate, store=store)
        assert [r.trial_number for r in records] == list(range(14)) and store.added == records
    with pytest.raises(KeyboardInterrupt):
        run(Together({1: KeyboardInterrupt()}))
    records = run(Together({2: TimeoutError("too long")}))
    assert [r.completed for r in records] == [True] * 14 + [False] * 14 + [True] * 12
    assert records[14].message == "TimeoutError: too long"


def test_a_deadline_shortens_single_trials_so_that_nothing_is_stacked():
    class Alone(Together):
        def __call__(self, configuration, seed):
            return SimpleNamespace(score=configuration["x"])

    evaluate, limits = Alone(), Limits(max_time=60)
    options = {"in_stacks": True, "options": RunOptions(limits=limits)}
    records = search(inline(evaluate), 5, Listed(), evaluate=evaluate, **options)
    assert [r.score for r in records] == [c["x"] for c in CONFIGURATIONS[:5]]
    assert evaluate.asked == []
