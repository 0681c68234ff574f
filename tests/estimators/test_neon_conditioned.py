"""NEON's prior conditioned in closed form: it closes at the data and is a Gaussian process."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from operators import (
    FAR,
    INPUTS,
    NEAR,
    QUERIES,
    SMALL,
    VALUES,
    WAVE_SETTINGS,
    EncoderDecoder,
    build,
    derivatives_of,
    inputs,
    std_of,
    waves,
)
from plans import ARRAYS
from sklearn.linear_model import LinearRegression

from skuq import CalibratedUncertaintyRegressor, NEONRegressor
from skuq.backend import keras
from skuq.estimators._operators import _conditioned

layers = keras.layers


def small(**changes):
    return build(NEONRegressor, **{**SMALL, "query_points": QUERIES, "n_draws": 16, **changes})


def wave_model(**changes):
    return build(
        NEONRegressor, **{**WAVE_SETTINGS, "noise_std": 0.0, "training__steps": 500, **changes}
    )


@pytest.fixture(scope="module")
def wave():
    u = inputs(10)
    return wave_model().fit(u, waves(u))


def test_predict_computes_means_without_draws(wave, monkeypatch):
    mean, _ = wave.predict(NEAR, return_std=True)
    shapes = []
    draws = type(wave.fitted_.draws)
    raw = draws.raw
    monkeypatch.setattr(
        draws, "raw", lambda self, *args: shapes.append(self.directions.shape) or raw(self, *args)
    )
    assert_allclose(wave.predict(NEAR), mean, rtol=1e-12, atol=1e-14)
    assert shapes[0][1] == 1  # the direction of the mean alone


def test_fit_closes_the_prior_at_the_data(wave):
    at_data, new = std_of(wave, inputs(10)).mean(), std_of(wave, NEAR).mean()
    assert at_data < 0.05 * new
    assert std_of(wave, FAR).mean() > 4 * new


def test_calibrated_draws_are_functions(wave):
    u = inputs(7)
    error = np.random.default_rng(0).choice([-0.1, 0.1], waves(u).shape)
    model = CalibratedUncertaintyRegressor(wave, cv="prefit").fit(u, waves(u) + error)
    expected = np.corrcoef(wave.sample_y(FAR, 2000, random_state=0).reshape(-1, 2000))
    for draws in (wave.predict_distribution(FAR).sample(2000, 1), model.sample_y(FAR, 2000, 2)):
        assert_allclose(np.corrcoef(draws.reshape(-1, 2000)), expected, atol=0.15)


def test_fit_meets_training_rows(wave):
    u = inputs(10)
    error = wave.predict(u) - waves(u)
    assert np.sqrt(np.mean(error**2)) < 2e-5 * waves(u).std()


def test_fit_with_noise_meets_the_data_up_to_noise(wave):
    u = inputs(10)
    noisy = wave_model(noise_std=0.3).fit(u, waves(u))
    assert std_of(noisy, u).mean() > 3 * std_of(wave, u).mean()


# The algebra ------------------------------------------------------------------------------

NETWORKS = {
    "split": EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9)),
    "concat": EncoderDecoder(3, 2, 2, (7,), 6, "concat", (8, 9)),
    "deep": EncoderDecoder(3, 2, 1, (7, 5, 4), 7, "split", (8, 9, 4)),
    "fourier": EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9), fourier_scale=2.0),
    "fourier concat": EncoderDecoder(3, 1, 2, (7,), 6, "concat", (8, 9), fourier_scale=2.0),
    "plain": EncoderDecoder(3, 2, 2, (7,), 6, factorized=False, activation="tanh"),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_encoder_decoder_derivatives_are_those_of_differences(network, monkeypatch):
    rng = np.random.default_rng(0)
    weights = [v + 0.1 * rng.normal(size=v.shape) for v in network.draw(rng)]
    x = rng.normal(size=(5, network.n_inputs + network.n_queries))
    directions = [rng.normal(size=(3, *v.shape)) for v in weights]
    raw, tangents = network.tangents(ARRAYS, weights, directions, x)
    assert_allclose(raw, network(ARRAYS, weights, x)[0], atol=1e-12)
    flat = np.concatenate([v.reshape(3, -1) for v in directions], axis=1)
    pairs = np.concatenate(
        [np.repeat(x[:, :3], 2, axis=0), np.resize(x[:, 3:], (10, x.shape[1] - 3))], 1
    )
    for found, expected in zip(
        network.tangents(ARRAYS, weights, directions, pairs, n_queries=2),
        network.tangents(ARRAYS, weights, directions, pairs),
    ):
        assert_allclose(found, expected, atol=1e-12)
    derivatives = network.derivatives(weights, x)
    along = derivatives.along(flat).reshape(tangents.shape)
    jacobian = derivatives.back(np.eye(raw.size))
    assert_allclose(derivatives.raw, raw, atol=1e-12)
    assert_allclose(derivatives.gram(), jacobian @ jacobian.T, atol=1e-8)
    # The kernel in parts of two rows and of one.
    monkeypatch.setattr("skuq.networks._dense_layers._GRAM_ENTRIES", 2 * raw.size * network.n_raw)
    expected = (jacobian @ jacobian.T)[: 2 * network.n_raw]
    assert_allclose(derivatives.rows(np.arange(2)).gram(derivatives), expected, atol=1e-8)
    assert_allclose(derivatives.gram(), jacobian @ jacobian.T, atol=1e-8)
    for s in range(3):
        up, down = (
            network(ARRAYS, [v + h * d[s] for v, d in zip(weights, directions)], x)[0]
            for h in (1e-6, -1e-6)
        )
        assert_allclose(tangents[s], (up - down) / 2e-6, atol=1e-6)
        assert_allclose(along[s], tangents[s], atol=1e-8)
        assert_allclose(jacobian @ flat[s], tangents[s].ravel(), atol=1e-8)


@pytest.mark.parametrize("each", [False, True])
def test_predict_left_out_is_that_of_a_gaussian_process(each):
    rng = np.random.default_rng(0)
    jacobian, y = rng.normal(size=(40, 200)), rng.normal(size=40)
    process, left_out = (
        _conditioned.ExactProcess(derivatives_of(jacobian, np.zeros(40))),
        np.arange(40) >= 30,
    )
    targets = np.stack([y, 2 * y + 1])
    noises = [np.full(40, noise) for noise in (0.01, 0.2)] if each else (0.01, 0.2)
    weight = np.ones(40)
    means, variances, noiseless = process.predict_left_out(targets, left_out, noises, weight)
    gram = jacobian @ jacobian.T / process.unit
    for k, noise in enumerate((0.01, 0.2)):
        weights = gram[30:, :30] @ np.linalg.inv(
            gram[:30, :30] + (noise + _conditioned.JITTER) * np.eye(30)
        )
        assert_allclose(means[k], targets[:, :30] @ weights.T, atol=1e-6)
        variance = np.diag(gram)[30:] - np.sum(weights * gram[30:, :30], axis=1) + noise
        assert_allclose(variances[k], variance, rtol=1e-4)
        # Draws without noise of their own are random functions minus what the others say of them.
        step = np.eye(40)[30:]
        step[:, :30] -= weights
        assert_allclose(noiseless[k], np.diag(step @ gram @ step.T), rtol=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_condition_counts_a_value_of_importance_three_as_three(noise):
    rng = np.random.default_rng(0)
    jacobian, y = rng.normal(size=(10, 50)), rng.normal(size=10)
    jacobian /= np.linalg.norm(jacobian, axis=1, keepdims=True)  # so that the unit is the same
    copies = np.append(np.arange(10), [0, 1, 0, 1])  # the first two occur three times
    repeated = derivatives_of(jacobian[copies], np.zeros(14))
    expected = _conditioned.ExactProcess(repeated).condition(y[None, copies], noise)
    once, importance = derivatives_of(jacobian, np.zeros(10)), np.array([3, 3] + [1] * 8)
    assert_allclose(
        _conditioned.ExactProcess(once).condition(y[None], noise, importance), expected, atol=1e-6
    )
    sparse = _conditioned.SparseProcess(once, np.arange(10)).condition(y[None], noise, importance)
    assert_allclose(sparse, expected, atol=1e-5)


def test_sparse_process_is_exact_where_the_kernel_has_low_rank():
    rng = np.random.default_rng(0)
    jacobian, y = rng.normal(size=(100, 8)), rng.normal(size=(1, 100))
    derivatives = derivatives_of(jacobian, np.zeros(100))
    exact, sparse = (
        make(derivatives).condition(y, 0.1)
        for make in (
            _conditioned.ExactProcess,
            lambda d: _conditioned.SparseProcess(d, np.arange(0, 100, 9)),
        )
    )
    assert_allclose(sparse, exact, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("limit", "value", "ratio", "error"), [("MAX_EXACT", 200, 5, 0.01), ("MAX_VALUES", 100, 2, 1)]
)
def test_fit_conditions_on_some_of_many_values(monkeypatch, limit, value, ratio, error):
    monkeypatch.setattr(_conditioned, limit, value)
    u = inputs(40)
    model = wave_model(training__steps=200).fit(u, waves(u))
    assert std_of(model, FAR).mean() > ratio * std_of(model, u).mean() > 0
    assert np.sqrt(np.mean((model.predict(u) - waves(u)) ** 2)) < error * waves(u).std()


# Posteriors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{"loss": "nll"}, {"pretrained": LinearRegression().fit(INPUTS, VALUES)}]
)
def test_fit_trains_an_epinet_where_nothing_can_be_conditioned(changes):
    assert hasattr(small(**changes).fit(INPUTS, VALUES).fitted_.draws, "member")


def test_fit_learns_no_noise_below_single_precision():
    """A table that a network meets almost exactly: rows it was trained on lie in its intervals."""
    grid = np.linspace(-1, 1, 10)
    X = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    y = np.exp(3 * X[:, 0]) + X[:, 1]
    settings = {**SMALL, **WAVE_SETTINGS, "query_points": None, "training__steps": 500}
    model = build(NEONRegressor, **settings, prior="conditioned", noise_std="auto").fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.quantile(np.abs(y - mean) / std, 0.9) < 2


def test_exact_process_of_rows_that_nearly_meet_is_positive(monkeypatch):
    """In single precision it had eigenvalues of -1e-7, and fits of converged searches failed."""
    grams = []

    class Watched(_conditioned.ExactProcess):
        def __init__(self, derivatives):
            super().__init__(derivatives)
            grams.append(derivatives.gram() / self.unit)

    monkeypatch.setattr(_conditioned, "ExactProcess", Watched)
    rng = np.random.default_rng(0)
    X = rng.random((60, 6))
    X[20:] = X[0] + 1e-3 * rng.standard_normal((40, 6))
    build(NEONRegressor, noise_std=0.0, training__steps=50, random_state=0).fit(
        X, np.sin(3 * X).sum(axis=1)
    )
    assert np.linalg.eigvalsh(grams[0])[0] > -1e-12
