"""Slots of each kind, as `open_slots` gives them."""

import joblib

from skuq.search import open_slots

__all__ = ["inline", "processes", "threads"]


def inline(evaluate):
    return open_slots(evaluate, 1)


def threads(evaluate, n_slots):
    with joblib.parallel_config(backend="threading"):
        return open_slots(evaluate, n_slots, n_slots)


def processes(evaluate, n_slots):
    return open_slots(evaluate, n_slots, 1000)  # for so many trials even one job has a process
