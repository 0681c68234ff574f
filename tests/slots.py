"""Slots of each kind, as `open_slots` gives them, and a store."""

import joblib

from skuq.search import open_slots

__all__ = ["Kept", "inline", "processes", "threads"]


class Kept:
    """A store in memory."""

    def __init__(self, records=()):
        self.records, self.added = list(records), []

    def add(self, record):
        self.added.append(record)


def inline(evaluate):
    return open_slots(evaluate, 1)


def threads(evaluate, n_slots):
    with joblib.parallel_config(backend="threading"):
        return open_slots(evaluate, n_slots, n_slots)


def processes(evaluate, n_slots):
    return open_slots(evaluate, n_slots, 1000)  # for so many trials even one job has a process
