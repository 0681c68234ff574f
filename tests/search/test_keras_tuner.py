"""Strategies of skuq as oracles of Keras-Tuner, and its oracles in searches of skuq."""

import random
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from plans import sequential
from slots import inline, search
from tiers import cases

from skuq.backend import keras, keras_tuner
from skuq.exceptions import SearchFailedError
from skuq.networks import DenseSpace, Space
from skuq.search import AgEBO, AgEBOOracle, OracleSearch, SearchProblem


def proposer_of(oracle, decisions, n_trials=1):
    return OracleSearch(oracle).proposer(SearchProblem(decisions, n_trials))


def build(hp):
    layers = keras.layers
    units, activation = hp.Int("units", 2, 16), hp.Choice("act", ["relu", "tanh"])
    model = sequential((2,), layers.Dense(units, activation), layers.Dense(1))
    model.compile(keras.optimizers.get(hp.Choice("optimizer", ["adam", "sgd"])), "mse")
    model.optimizer.learning_rate = hp.Float("learning_rate", 1e-4, 1e-1, sampling="log")
    return model


@pytest.mark.slow
def test_oracle_drives_keras_tuners_own_tuner(tmp_path, rng):
    oracle = AgEBOOracle(max_trials=9, search=AgEBO(population_size=4, sample_size=2), seed=1)
    tuner = keras_tuner.Tuner(oracle, build, directory=tmp_path, project_name="p")
    x = rng.normal(size=(24, 2))
    y = x.sum(axis=1)
    tuner.search(x, y, validation_data=(x, y), epochs=1, verbose=0)
    trials = [oracle.trials[key] for key in oracle.end_order]
    assert [trial.status for trial in trials] == ["COMPLETED"] * 9
    drawn = [trial.hyperparameters.values for trial in trials]
    assert all({"units", "act", "learning_rate", "optimizer"} <= set(values) for values in drawn)
    # The last ones evolve: each differs by one architecture decision from an earlier one.
    for k in range(5, 9):
        changes = [sum(one[n] != drawn[k][n] for n in ("units", "act")) for one in drawn[:k]]
        assert 1 in changes


@pytest.mark.parametrize(("score", "failed"), [(0.5, False), (np.inf, True), (-np.inf, True)])
def test_a_trial_with_an_infinite_score_is_a_failure_for_the_forest(score, failed):
    oracle = AgEBOOracle(max_trials=9, hyperparameters=keras_tuner.HyperParameters(), seed=1)
    trial = keras_tuner.engine.trial.Trial(keras_tuner.HyperParameters(), status="COMPLETED")
    trial.score = score
    assert oracle._record(0, trial, Space(), 1).failed is failed


def evaluate(configuration, seed):
    if configuration["optimizer"] == "sgd":
        raise ArithmeticError("no sgd")
    return SimpleNamespace(score=abs(np.log10(configuration["learning_rate"]) + 2))


def bayesian():
    objective = keras_tuner.Objective("score", "max")
    return keras_tuner.oracles.BayesianOptimizationOracle(objective, max_trials=20, seed=1)


@cases("make", bayesian, lambda: AgEBOOracle(max_trials=20, seed=1), ids=["bayesian", "agebo"])
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


def test_an_oracle_leaves_no_folder():
    oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=2)
    proposer = proposer_of(oracle, DenseSpace(n_nodes=1).decisions())
    folder = Path(oracle._project_dir)
    assert folder.is_dir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # of resources that nobody has released
        del proposer
    assert not caught and not folder.exists()
