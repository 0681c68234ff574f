"""Oracles of Keras-Tuner in searches of skuq."""

import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from slots import SearchProblem, inline, search
from tiers import cases

from skuq.backend import keras_tuner
from skuq.exceptions import SearchFailedError
from skuq.networks import DenseSpace
from skuq.search import OracleSearch


def proposer_of(oracle, decisions, n_trials=1):
    return OracleSearch(oracle).proposer(SearchProblem(decisions, n_trials))


class Score:
    def __init__(self, score):
        self.score = score


def evaluate(configuration, seed):
    if configuration["optimizer"] == "sgd":
        raise ArithmeticError("no sgd")
    return Score(abs(np.log10(configuration["learning_rate"]) + 2))


@cases(
    "make",
    lambda: keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=20, seed=1),
    lambda: keras_tuner.oracles.BayesianOptimizationOracle(
        objective=keras_tuner.Objective("score", "max"), max_trials=20, seed=1
    ),
    ids=["random", "bayesian"],
)
def test_any_oracle_drives_our_search(make):
    oracle = make()
    decisions = DenseSpace(n_nodes=1).decisions()
    before = random.getstate()
    proposer = proposer_of(oracle, decisions)
    records = search(inline(evaluate), 15, proposer, entropy=1)
    assert len(records) == 15
    assert random.getstate() == before
    both = decisions.architecture + decisions.hyperparameters
    for record in records:
        assert both.check(record.configuration, "c") == record.configuration
    scored = [t for t in oracle.trials.values() if t.status == "COMPLETED"]
    assert len(scored) == sum(record.completed for record in records)
    sign = -1 if oracle.objective.direction == "max" else 1
    expected = sorted(r.score for r in records if r.completed)
    assert sorted(sign * trial.score for trial in scored) == pytest.approx(expected)


def test_an_oracle_that_has_nothing_left_says_so():
    oracle = keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=2)
    decisions = DenseSpace(n_nodes=1).decisions()
    with pytest.raises(ValueError, match="max_trials must be at least n_trials=5. Got 2"):
        proposer_of(oracle, decisions, 5)
    proposer = proposer_of(oracle, decisions)
    with pytest.raises(SearchFailedError) as error:
        search(inline(evaluate), 5, proposer, entropy=1)
    assert "could not propose trial 2" in str(error.value) and len(error.value.records) == 2
    oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=2)
    proposer = proposer_of(oracle, DenseSpace(n_nodes=1).decisions())
    folder = Path(oracle._project_dir)
    assert folder.is_dir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # of resources that nobody has released
        del proposer
    assert not caught and not folder.exists()
