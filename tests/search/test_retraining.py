"""Networks that are trained again after a search, as their store sees them."""

from types import SimpleNamespace

import numpy as np
import pytest
from slots import Kept, RandomProposer, Retraining

from skuq.networks import Member
from skuq.search import Catalog, RunOptions, Search, SearchResult, TrialRecord


class Store(Kept):
    """A store in memory that has networks of each round, too."""

    def __init__(self, **rounds):
        super().__init__()
        self.rounds = rounds

    def retrained(self, name):
        return self.rounds.get(name.replace("-", "_"), [])

    def add_retrained(self, name, record):
        self.rounds.setdefault(name.replace("-", "_"), []).append(record)


def network(seed):
    history = {"loss": np.zeros(1), "val_loss": np.full(1, np.nan), "learning_rate": np.ones(1)}
    return Member("{}", np.ones(2), (), history, 0, np.zeros((1, 1)), seed, 0.1, "graph")


HEAD = SimpleNamespace(pooled=lambda raw: raw.mean(axis=0))
TRIALS = [TrialRecord(n, {"x": n}, score=0.0, result=network(n)) for n in (3, 5)]


class Evaluate:
    head = HEAD

    def __init__(self, failing=()):
        self.failing, self.requests = failing, []

    def __call__(self, requests, seed):
        self.requests.append((requests["trial"], requests["round"]))
        if self.requests[-1] in self.failing:
            raise ArithmeticError("no")
        return network(100 * requests["round"] + requests["trial"])


def retrain(kind, evaluate, store, n_rounds=1):
    search = Search(evaluate, RandomProposer(None), 2, 1)
    retraining = Retraining(kind, SearchResult(Catalog(TRIALS)), [1, 0], n_rounds, HEAD)
    return retraining.train(search, lambda evaluate, trials: evaluate, RunOptions(), store)


def test_repeats_join_the_networks_of_their_trials_in_the_order_of_rounds():
    evaluate, store = Evaluate(), Store()
    result = retrain("repeat", evaluate, store, 2)
    assert evaluate.requests == [(5, 0), (3, 0), (5, 1), (3, 1)]  # the most important trial first
    seeds = {k: [member.seed for member in result.networks(k)] for k in (0, 1)}
    assert seeds == {0: [3, 3, 103], 1: [5, 5, 105]}
    assert {name: len(records) for name, records in store.rounds.items()} == {
        "repeat_000": 2, "repeat_001": 2,
    }  # fmt: skip
    assert store.added == []  # they are no trials
    evaluate.requests.clear()
    again = retrain("repeat", evaluate, store, 2)
    assert evaluate.requests == []
    assert [member.seed for member in again.networks(1)] == seeds[1]


def test_refits_replace_the_networks_of_their_trials():
    evaluate, store = Evaluate(failing=[(5, 0)]), Store()
    with pytest.warns(UserWarning, match="1 of 2 networks could not be refitted.*ArithmeticError"):
        result = retrain("refit", evaluate, store)
    assert set(result.refitted) == {0} and len(store.rounds["refit_000"]) == 1
    evaluate.failing = ()
    assert set(retrain("refit", evaluate, store).refitted) == {0, 1}
    assert evaluate.requests == [(5, 0), (3, 0), (5, 0)]  # the failed one was tried again


def test_a_network_of_another_configuration_is_not_taken():
    other = TrialRecord(5, {"x": 9}, score=0.0, result=network(7))
    same = TrialRecord(3, {"x": 3}, score=0.0, result=network(8))
    evaluate = Evaluate()
    result = retrain("repeat", evaluate, Store(repeat_000=[other, same]))
    assert evaluate.requests == [(5, 0)]
    assert [member.seed for member in result.networks(0)] == [3, 8]
