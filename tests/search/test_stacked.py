"""Trials that train together: what is kept of them whatever happens."""

from types import SimpleNamespace

import pytest
from slots import Kept

from skuq.exceptions import SearchFailedError
from skuq.search import Limits, RunOptions, run_together

CONFIGURATIONS = [{"x": k / 40} for k in range(40)]


class Together:
    """A stack whose scores are the configurations; notes what it was asked for."""

    def __init__(self, at_stack=()):
        self.asked, self.at_stack = [], dict(at_stack)

    def __call__(self, configurations, seeds):
        self.asked.append(list(seeds))
        if (error := self.at_stack.get(len(self.asked))) is not None:
            raise error
        return [SimpleNamespace(score=c["x"], seconds=0.1) for c in configurations]


def test_stacks_are_of_equal_size_and_seeds_go_by_the_number_of_a_trial():
    together, alone = Together(), Together()
    records = run_together(together, CONFIGURATIONS, 3)
    assert [len(seeds) for seeds in together.asked] == [14, 14, 12]
    assert [r.trial_number for r in records] == list(range(40))
    assert [r.score for r in records] == [c["x"] for c in CONFIGURATIONS]
    run_together(alone, CONFIGURATIONS[:1], 3)
    assert alone.asked[0] == together.asked[0][:1]


def test_what_a_store_has_is_not_trained_again():
    records = run_together(Together(), CONFIGURATIONS[:10], 3)
    store, together = Kept([records[k] for k in (4, 0, 7)]), Together()
    again = run_together(together, CONFIGURATIONS[:10], 3, store=store)
    assert [r.trial_number for r in again] == [4, 0, 7, 1, 2, 3, 5, 6, 8, 9]
    assert sum(map(len, together.asked)) == 7 and store.added == again[3:]


def test_an_interrupt_keeps_the_stacks_that_had_finished():
    store = Kept()
    with pytest.warns(UserWarning, match="going on with 14 of 40 trials"):
        records = run_together(Together({2: KeyboardInterrupt()}), CONFIGURATIONS, 3, store=store)
    assert len(records) == 14 and store.added == records
    with pytest.raises(KeyboardInterrupt):
        run_together(Together({1: KeyboardInterrupt()}), CONFIGURATIONS, 3)


def test_an_interrupt_while_a_stack_is_written_loses_nothing():
    class Interrupted(Kept):
        interrupted = False

        def add(self, record):
            if record.trial_number == 5 and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            super().add(record)

    store = Interrupted()
    with pytest.warns(UserWarning, match="going on with 14 of 40 trials"):
        records = run_together(Together(), CONFIGURATIONS, 3, store=store)
    assert [r.trial_number for r in records] == list(range(14)) and store.added == records


def test_a_stack_out_of_time_fails_alone():
    records = run_together(Together({2: TimeoutError("too long")}), CONFIGURATIONS, 3)
    assert [r.completed for r in records] == [True] * 14 + [False] * 14 + [True] * 12
    assert records[14].message == "TimeoutError: too long"
    with pytest.raises(SearchFailedError, match="too long"):
        run_together(
            Together({2: TimeoutError("too long")}),
            CONFIGURATIONS,
            3,
            options=RunOptions(limits=Limits(max_failures=0.2)),
        )
