"""NEON's prior conditioned in closed form: it closes at the data and is a Gaussian process."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import (
    FAR,
    INPUTS,
    NEAR,
    POINTS,
    QUERIES,
    SMALL,
    VALUES,
    WAVE_SETTINGS,
    assert_exact_gradients,
    inputs,
    single,
    std_of,
    waves,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from skuq import NEONRegressor
from skuq.backend import keras, ops
from skuq.fitted import _conditioned
from skuq.fitted._conditioned import Conditioning, FeatureKernel, kernel, random_features

layers = keras.layers


def small(**changes):
    return NEONRegressor(**{**SMALL, "query_points": QUERIES, "n_draws": 16, **changes})


def wave_model(**changes):
    return NEONRegressor(**{**WAVE_SETTINGS, "noise": 0.0, "steps": 500, **changes})


@pytest.fixture(scope="module")
def wave():
    u = inputs(40)
    return wave_model().fit(u, waves(u))


def test_the_prior_closes_at_the_data(wave):
    at_data, new = std_of(wave, inputs(40)).mean(), std_of(wave, NEAR).mean()
    assert at_data < 0.15 * new
    assert std_of(wave, FAR).mean() > 4 * new


def test_training_rows_are_met(wave):
    u = inputs(40)
    error = wave.predict(u) - waves(u)
    assert np.sqrt(np.mean(error**2)) < 1e-3 * waves(u).std()


def test_new_functions_are_predicted_between_query_points(wave):
    between = np.linspace(0.05, 1.9, 9)
    error = wave.predict(NEAR, query_points=between) - waves(NEAR, between)
    assert np.sqrt(np.mean(error**2)) < 0.1 * waves(NEAR, between).std()


def test_draws_are_joint_and_smooth(wave):
    y = np.linspace(0, 2, 101)
    draws = wave.sample_y(FAR[:1], 200, 0, query_points=y)[0]  # (101, 200)
    around = draws - draws.mean(axis=1, keepdims=True)
    assert np.abs(np.diff(around, axis=0)).max() < 0.5 * draws.std(axis=1).mean()


def test_with_noise_draws_meet_the_data_up_to_noise():
    u = inputs(40)
    stds = [std_of(wave_model(noise=noise).fit(u, waves(u)), u).mean() for noise in (0.0, 0.3)]
    assert stds[1] > 3 * stds[0]


# The algebra ------------------------------------------------------------------------------


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 9))
    return FeatureKernel.of(features, 1.5, rng), features, rng


def test_kernel_and_solution_are_those_of_a_gaussian_process(rows):
    features, seen, rng = rows
    conditioning = Conditioning(features, seen)
    y = rng.normal(size=40)
    process = GaussianProcessRegressor(Matern(1.0, nu=2.5), alpha=0.1 + 1e-6, optimizer=None)
    process.fit(conditioning.rows, y)
    new = rng.normal(size=(7, 9))
    z = _conditioned.project(np, features.shift, features.components, new)
    mean, std = process.predict(z, return_std=True)
    cross = kernel(np, z, conditioning.rows)
    assert_allclose(cross @ conditioning.solve(0.1, y[:, None])[:, 0], mean, atol=1e-9)
    variance = 1 - np.einsum("ij,ji->i", cross, conditioning.solve(0.1, cross.T))
    assert_allclose(variance, std**2, atol=1e-9)


def test_variances_of_rows_left_out_are_those_of_a_process_without_them(rows):
    features, seen, rng = rows
    conditioning, groups = Conditioning(features, seen), np.arange(40) % 4
    variance = conditioning.left_out(0.1, groups)
    for group in range(4):
        own = groups == group
        process = GaussianProcessRegressor(Matern(1.0, nu=2.5), alpha=0.1 + 1e-6, optimizer=None)
        process.fit(conditioning.rows[~own], np.zeros(sum(~own)))
        expected = process.predict(conditioning.rows[own], return_std=True)[1] ** 2
        assert_allclose(variance[own], expected, atol=1e-9)


def test_random_functions_have_the_kernel_as_covariance(rows, monkeypatch):
    _, seen, rng = rows
    monkeypatch.setattr(_conditioned, "_N_RANDOM", 200_000)
    features = FeatureKernel.of(seen, 1.5, rng)
    z = _conditioned.project(np, features.shift, features.components, seen)
    drawn = random_features(np, features.frequencies, features.phases, z)
    assert_allclose(drawn @ drawn.T, kernel(np, z, z), atol=0.02)


def test_predicted_variance_is_that_of_the_process():
    """With many functions in the prior: what is left of each has the process' variance."""
    u = inputs(15)
    model = wave_model(n_index=512, n_draws=2048, steps=200).fit(u, waves(u))
    draws = model.fitted_.draws
    seen = _conditioned.predict_bases(draws.members, model.fitted_.inputs.transform(NEAR))[1]
    z = _conditioned.project(np, draws.features.shift, draws.features.components, seen)
    cross = kernel(np, z, draws.rows)
    gram = kernel(np, draws.rows, draws.rows) + 1e-6 * np.eye(len(draws.rows))
    variance = 1 - np.einsum("ij,ji->i", cross, np.linalg.solve(gram, cross.T))
    std = model.prior_scale * np.sqrt(np.maximum(variance, 0)) * model.fitted_.targets.scale_[0]
    clear = std > 0.1 * std.max()
    assert_allclose(std_of(model, NEAR).ravel()[clear], std[clear], rtol=0.3)


def test_of_many_rows_some_are_conditioned_on(monkeypatch):
    monkeypatch.setattr("skuq.estimators._neon_conditioned.MAX_ROWS", 100)
    u = inputs(40)
    model = wave_model(steps=200).fit(u, waves(u))
    assert model.fitted_.draws.rows.shape[0] == 100
    assert std_of(model, FAR).mean() > 2 * std_of(model, u).mean()


# Posteriors --------------------------------------------------------------------------------


def tanh_base(d_u, d_y, n_raw):
    u, y = keras.Input((d_u,)), keras.Input((d_y,))
    value = layers.Dense(8, activation="tanh")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw)(layers.PReLU()(value)))


CHANGES = {
    "functions": ({}, VALUES),
    "components": ({}, np.stack([VALUES, 2 - VALUES], axis=-1)),
    "numbers": ({"query_points": None}, VALUES[:, 3]),
    "keras": ({"build_base": tanh_base}, VALUES),
}


@pytest.mark.parametrize("name", CHANGES)
def test_posterior_draws_are_those_of_predictions_and_of_tensors(name):
    changes, Y = CHANGES[name]
    model, X = small(**changes).fit(INPUTS, Y), np.array([[0.7], [1.5], [3.0]])
    draws, parts = model.fitted_.posterior_of(model.index_)(X), model.predict_uncertainty(X)
    tolerance = 1e-4 if name == "keras" else 1e-9
    assert_allclose(draws.mean(axis=0), parts.mean, atol=tolerance)
    assert_allclose(draws.std(axis=0), parts.epistemic, atol=tolerance)
    first, other = model.posterior_fn(8, 0), small(**changes).fit(INPUTS, Y**2).posterior_fn(8, 0)
    assert first.joint and first.key == other.key and hash(first.key) == hash(other.key)
    x = ops.convert_to_tensor(X.astype("float32"))
    on_tensors = ops.convert_to_numpy(first.function(ops, single(other), x))
    assert on_tensors.dtype == "float32"
    assert_allclose(on_tensors, other(X), atol=1e-3 * np.abs(other(X)).max())


def test_posterior_has_exact_gradients(wave):
    assert_exact_gradients(wave.posterior_fn(8, random_state=0), NEAR[:5])


def test_rows_do_not_depend_on_those_beside_them(wave):
    alone = np.concatenate([wave.predict(row[None], True)[1] for row in NEAR])
    assert_allclose(std_of(wave, NEAR), alone, atol=1e-9)


def test_programs_of_posteriors_serve_further_functions():
    keys = {small().fit(INPUTS[:n], VALUES[:n]).posterior_fn(8).key for n in (5, 6)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"loss": "nll"}, "loss='nll'"), ({"output_map": "decaying"}, "`output_map`")],
)
def test_what_cannot_be_conditioned_trains_an_epinet(changes, reason):
    model = small(**changes).fit(INPUTS, VALUES)
    assert hasattr(model.fitted_.draws, "member")
    with pytest.raises(ValueError, match=f"epistemic='conditioned' is not possible with {reason}"):
        small(epistemic="conditioned", **changes).fit(INPUTS, VALUES)


@pytest.mark.parametrize("Y", [np.full((6, 4), 7.0), np.zeros((6, 4))], ids=["constant", "zero"])
def test_poor_data_give_finite_predictions(Y):
    for X in (INPUTS, np.ones((6, 1))):
        for part in small(steps=2).fit(X, Y).predict(X, return_std=True):
            assert np.isfinite(part).all()
    assert_array_equal(small(steps=2).fit(INPUTS[:1], Y[:1]).predict(INPUTS[:1]).shape, (1, 4))
    assert POINTS.shape == (12,)
