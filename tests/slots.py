"""Slots of each kind, as `open_slots` gives them, a search in them, and a store."""

import joblib

from skuq.networks import Integer, Real, Space
from skuq.search import Search, _slots, _strategies
from skuq.search import _loop as _search

open_slots = _slots.open_slots
InlineSlots, DaskSlots = _slots.InlineSlots, _slots.DaskSlots
EnsembleEvolution = _strategies.EnsembleEvolution
Refits, RandomProposer = _search.Refits, _strategies.RandomProposer
SPACE = Space((Real("x", 0.0, 1.0), Integer("k", 0, 9)))


class Kept:
    """A store in memory."""

    def __init__(self, records=()):
        self.records, self.added = list(records), []

    def add(self, record):
        self.added.append(record)


class Hasty(Kept):
    """A slow disk, and an impatient user: the first writing of a trial is interrupted."""

    def __init__(self, trial_number):
        super().__init__()
        self.next = trial_number

    def add(self, record):
        if record.trial_number == self.next:
            self.next = None
            raise KeyboardInterrupt
        super().add(record)


def contents(records):
    # As text: the NaN of a failed trial is unlike another one.
    return [repr((r.trial_number, r.configuration, r.seed, r.score, r.message)) for r in records]


def inline(evaluate):
    return open_slots(evaluate, 1)


def threads(evaluate, n_slots):
    with joblib.parallel_config(backend="threading"):
        return open_slots(evaluate, n_slots, n_slots)


def processes(evaluate, n_slots):
    return open_slots(evaluate, n_slots, 1000)  # for so many trials even one job has a process


def search(slots, n_trials=12, proposer=None, entropy=3, evaluate=None, **fields):
    """Run a search in these slots, at random by default; returns its records."""
    proposer = proposer or RandomProposer(SPACE)
    fields |= {"open_slots": lambda *_: slots}
    return list(Search(evaluate, proposer, n_trials, entropy, **fields).run().catalog)
