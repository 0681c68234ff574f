"""A constant y is predicted as a constant, by every ensemble."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiers import slow_after

from skuq import (
    AutoDEUQRegressor,
    DeepEnsembleRegressor,
    HyperDeepEnsembleRegressor,
    MCDropoutRegressor,
    NESRegressor,
)
from skuq.metrics import gaussian_nll_loss

NETWORK = {"hidden_units": 4, "epochs": 3, "random_state": 0}
ENSEMBLES = [
    DeepEnsembleRegressor(2, **NETWORK),
    DeepEnsembleRegressor(2, loss="mse", **NETWORK),
    DeepEnsembleRegressor(2, loss="quantiles", **NETWORK),
    DeepEnsembleRegressor(2, loss="student-t", **NETWORK),
    DeepEnsembleRegressor(2, loss="gaussian-mixture", **NETWORK),
    DeepEnsembleRegressor(2, target_transform="yeo-johnson", **NETWORK),
    MCDropoutRegressor(5, **NETWORK),
    HyperDeepEnsembleRegressor(2, n_search=2, **NETWORK),
    NESRegressor(n_trials=3, n_members=2, epochs=3, random_state=0),
    AutoDEUQRegressor(n_trials=3, n_members=2, random_state=0),
]


@pytest.mark.filterwarnings("ignore:The ensemble has")
@pytest.mark.parametrize("model", slow_after(1, ENSEMBLES))
def test_a_constant_is_a_constant(model):
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.full(40, 7.0)
    parts = model.fit(X, y).predict_uncertainty(9 * X)
    assert_allclose(parts.mean, 7, rtol=1e-5)
    assert (parts.total > 0).all() and (parts.total < 1e-4).all()
    low, high = model.predict_interval(X).T
    assert (low <= high).all() and np.ptp([low, high]) < 1e-4
    assert np.isfinite(gaussian_nll_loss(y, *model.predict(X, return_std=True)))
