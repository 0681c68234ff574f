"""Predictions of many rows are made in blocks, which bound their memory; see test_contract."""

import tracemalloc

import numpy as np
from numpy.testing import assert_allclose

import skuq
from skuq.fitted import _ensemble
from skuq.networks import MLP

X = np.random.default_rng(0).normal(size=(2_500, 2))


def test_memory_of_a_prediction_does_not_grow_with_its_rows(monkeypatch):
    model = skuq.MCDropoutRegressor(100, network=MLP((8,)), epochs=1, random_state=0)
    model.fit(X[:40], X[:40, 0]).predict(X[:40])
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**14)
    for method in (model.predict, model.predict_uncertainty, model.sample_y):
        tracemalloc.start()
        method(X)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6, method.__name__  # at once they would take 10 MB and more


def test_draws_in_blocks_share_their_function(monkeypatch):
    model = skuq.DeepEnsembleRegressor(3, loss="mse", noise_std=1e-9, epochs=2, random_state=0)
    model.fit(X[:60], X[:60, 0])
    whole = model.sample_y(X[:200], 5, random_state=0)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**9)
    assert_allclose(model.sample_y(X[:200], 5, random_state=0), whole, atol=1e-7)
