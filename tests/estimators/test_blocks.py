"""Predictions of many rows are made in blocks, which bound their memory and change no digit."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from test_common import OTHERS, QUICK
from tiers import slow_after

import skuq
from skuq.fitted import _ensemble
from skuq.networks import MLP
from skuq.training import _predict

LIMIT = 2**10  # numbers of raw predictions held at a time
N_ROWS = 1000


def fit_quickly(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    model = clone(estimator)
    if isinstance(model, skuq.NEONRegressor | skuq.OperatorEnsembleRegressor):
        model.set_params(training__steps=5)
    elif "epochs" in model.get_params():
        model.set_params(epochs=2)
    return model.fit(X, y > 0 if is_classifier(model) else y)


def predictions(model, X):
    if is_classifier(model):
        methods = (model.predict, model.predict_proba, model.predict_uncertainty)
        found = [*model.predict(X, return_std=True), *model.predict_proba(X, return_std=True)]
    else:
        methods = (model.predict, model.predict_interval, model.predict_quantiles)
        found = [*model.predict(X, return_std=True), *model.predict_uncertainty(X)]
    return [*found, *(np.asarray(method(X)) for method in methods)]


@pytest.mark.parametrize(
    "estimator", slow_after(5, [m for m in [*QUICK, *OTHERS] if hasattr(m, "predict_uncertainty")])
)
def test_blocks_of_rows_change_no_digit(estimator, monkeypatch):
    model = fit_quickly(estimator)
    X = np.random.default_rng(1).normal(size=(N_ROWS, 3))
    # Chunks of 16 rows, which divide blocks.
    monkeypatch.setattr(_predict, "_CHUNKS", _predict._Chunks(entries=1))
    expected = predictions(model, X)
    sizes = []
    summarise = _ensemble.Fitted.summarise

    def recorded(self, X, summary, *args, **query):
        def seen(distribution):
            sizes.append(len(distribution.mean) * self.n_numbers(**query))
            return summary(distribution)

        return summarise(self, X, seen, *args, **query)

    monkeypatch.setattr(_ensemble.Fitted, "summarise", recorded)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", LIMIT)
    for found, whole in zip(predictions(model, X), expected, strict=True):
        # Functions divide their chunks otherwise, and so do rows far from those of training.
        if isinstance(model, skuq.NEONRegressor) or getattr(model.fitted_, "far", None) is not None:
            assert_allclose(found, whole, rtol=1e-12, atol=1e-14)
        else:
            assert_array_equal(found, whole)
    assert max(sizes) <= LIMIT


def test_memory_of_a_prediction_does_not_grow_with_its_rows(monkeypatch):
    model = skuq.MCDropoutRegressor(100, network=MLP((8,)), epochs=1, random_state=0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model.fit(X, X[:, 0]).predict(X)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**14)
    X = rng.normal(size=(2_500, 2))
    for method in (model.predict, model.predict_uncertainty, model.sample_y):
        tracemalloc.start()
        method(X)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6, method.__name__  # at once they would take 10 MB and more


def test_draws_in_blocks_share_their_function(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    model = skuq.DeepEnsembleRegressor(3, loss="mse", noise_std=1e-9, epochs=2, random_state=0)
    model.fit(X, X[:, 0])
    whole = model.sample_y(X, 5, random_state=0)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**9)
    assert_allclose(model.sample_y(X, 5, random_state=0), whole, atol=1e-7)
