"""A constant y, and few rows that are not taken for one; see test_contract for every ensemble."""

import warnings

import numpy as np
from numpy.testing import assert_allclose
from operators import FunctionTargets
from sklearn.linear_model import LinearRegression
from tiers import cases

import skuq
from skuq.exceptions import SmallValidationWarning
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, NOMUReadout, OperatorNetwork
from skuq.training import Training

OPERATOR = {
    "network": OperatorNetwork(encoder_units=(4,), latent=4, decoder_units=(4,)),
    "training": Training(steps=5),
    "random_state": 0,
}
NETWORK = {"network": MLP(4), "epochs": 3, "random_state": 0}
READOUT, BOX = NOMUReadout(l_min=0.01, l_max=2.0, c=1.0), ArtificialInputs(box=[(-1, 1)] * 2)


@cases(
    "model",
    *(skuq.DeepEnsembleRegressor(2, loss=loss, **NETWORK) for loss in ("mse", "gaussian-mixture")),
    skuq.DeepEnsembleRegressor(2, target_transform="yeo-johnson", **NETWORK),
    skuq.DeepEnsembleRegressor(2, target_transform="quantile", **NETWORK),
)
def test_fit_predicts_constants_and_does_not_depend_on_units(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    parts = model.fit(X, np.full(40, 7.0)).predict_uncertainty(9 * X)
    assert_allclose(parts.mean, 7, rtol=1e-5)
    assert (parts.total > 0).all() and (parts.total < 1e-4).all()
    y = np.exp(X[:, 0] + 0.3 * rng.normal(size=40))
    mean, std = model.fit(X, y).predict(X, return_std=True)
    for unit, zero in [(1e-9, 0.0), (1e9, -1e10)]:
        other = model.fit(X, unit * y + zero).predict(X, return_std=True)
        assert_allclose((other[0] - zero) / unit, mean, atol=1e-6 * std.mean())
        assert_allclose(other[1] / unit, std, rtol=1e-6)


@cases(
    ("n_rows", "model"),
    (8, skuq.DeepEnsembleRegressor(2, **NETWORK)),
    (1, skuq.NOMURegressor(NOMUNetwork(8), readout=READOUT, artificial=BOX, epochs=10)),
    (1, skuq.NEONRegressor(**OPERATOR)),
    (1, skuq.OperatorEnsembleRegressor(2, **OPERATOR)),
)
def test_fit_to_a_few_rows_takes_them_for_no_constant(n_rows, model):
    """The rows of a step function may all lie on one side."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(n_rows, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        model.fit(X, np.full(n_rows, 7.0))
    assert model.predict([[0.1, 3.0]], return_std=True)[1] > 1e-3


def test_fit_to_a_constant_component_does_not_spoil_the_others():
    """Values that all functions share at a query point are common: boundary conditions."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    Y = np.stack([np.full(40, 5.0), X[:, 0], X[:, 0] ** 2], axis=1)
    network = OperatorNetwork(encoder_units=(16,), latent=16, decoder_units=(4,))
    settings = {"network": network, "training": Training(steps=400), "noise_std": 0.0}
    settings["random_state"] = 0
    model = skuq.OperatorEnsembleRegressor(2, learning_rate=0.01, **settings).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean[:, 0], 5, rtol=1e-5)
    assert (std[:, 0] < 1e-4).all()
    assert np.abs(mean - Y)[:, 1:].mean() < 0.3 and np.median(std[:, 1:]) > 1e-3


def test_function_targets_do_not_see_the_scale_of_constants():
    Y = np.stack([np.full(4, 5.0), np.array([1.0, 2, 3, 4])], axis=1)
    weights = []
    for narrow in (True, False):
        targets = FunctionTargets(by_column=True, narrow_constants=narrow)
        values = targets.fit_encoder(Y, None)
        weights.append(targets.fit(values).pair_weights(values, np.ones(4)))
    wide = np.array([25 + (value / Y[:, 1].std()) ** 2 for value in Y[:, 1]])
    narrow = wide - 24  # a constant counts as 1 in place of its square
    assert_allclose(weights[0].reshape(4, 2)[:, 0] * narrow, 2)
    assert_allclose(weights[1].reshape(4, 2)[:, 0] * wide, 2)


def test_fit_learns_the_scale_in_a_warm_start_after_a_constant():
    X = np.random.default_rng(0).normal(size=(20, 2))
    settings = {**OPERATOR, "training": Training(steps=400), "noise_std": 0.0, "warm_start": True}
    model = skuq.OperatorEnsembleRegressor(2, **settings).fit(X, np.full(20, 7.0))
    model.fit(X, X[:, 0])
    assert np.abs(model.predict(X) - X[:, 0]).mean() < 0.3


def test_fit_to_a_constant_with_a_given_model_that_varies_is_uncertain():
    X = np.random.default_rng(0).normal(size=(20, 2))
    given = LinearRegression().fit(X, X[:, 0])
    settings = {"pretrained": given, "prior": "epinet", "noise_std": 0.0}
    model = skuq.NEONRegressor(**settings, training=Training(steps=5)).fit(X, np.zeros(20))
    assert model.predict(X, return_std=True)[1].min() > 1e-4
