"""Size of NEON's random prior and of the noise, where values are noisy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiers import slow_after

from skuq import NEONRegressor
from skuq.estimators import _neon_conditioned
from skuq.estimators._neon_prior import learn_prior, learn_scale
from skuq.estimators._tangent_process import ExactProcess
from skuq.networks._dense_layers import Derivatives

NOISE = 0.2


def function(X):
    return np.sin(3 * X[:, 0]) + X[:, 1] ** 2


def noisy_rows(n, seed, noise=NOISE):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, function(X) + noise * rng.normal(size=n)


def small(**changes):
    settings = {"encoder_units": (16,), "latent": 16, "decoder_units": (16,), "steps": 2000}
    return NEONRegressor(**{**settings, "learning_rate": 0.01, "random_state": 0, **changes})


def judge(model):
    """Ratio of the mean's errors to the epistemic deviations, and the root mean square error."""
    X = np.random.default_rng(99).uniform(-1, 1, (1000, 2))
    parts = model.predict_uncertainty(X)
    error = parts.mean - function(X)
    return np.sqrt(np.mean((error / parts.epistemic) ** 2)), np.sqrt(np.mean(error**2))


@pytest.mark.parametrize("seed", slow_after(1, range(5)))
@pytest.mark.parametrize("n", [40, 200])
@pytest.mark.parametrize("noise", ["auto", NOISE])
def test_errors_of_the_mean_are_as_large_as_the_epistemic_part_says(noise, n, seed):
    ratio, error = judge(small(noise=noise, random_state=seed).fit(*noisy_rows(n, seed)))
    assert 0.4 < ratio < 2.5
    assert error < 4 * NOISE / np.sqrt(n / 5)


def test_few_rows_with_a_known_noise_are_not_learnt_by_heart():
    models = [small(noise=NOISE, random_state=k).fit(*noisy_rows(20, k)) for k in range(5)]
    ratio, error = np.median([judge(model) for model in models], axis=0)
    assert ratio < 1.8 and error < 0.5


def test_a_known_noise_stops_networks_early_from_ten_rows_on():
    members = [len(small(noise=0.1, steps=5).fit(*noisy_rows(n, 0)).members_) for n in (9, 10)]
    assert members == [1, 5]


def test_a_given_scale_is_kept_with_a_known_noise():
    X, y = noisy_rows(40, 0)
    far = np.full((1, 2), 20.0)
    spreads = [
        small(noise=NOISE, prior_scale=scale).fit(X, y).predict_uncertainty(far).epistemic[0]
        for scale in (0.5, 5.0)
    ]
    assert 3 < spreads[1] / spreads[0] < 11  # the larger one meets the data more closely
    parts = small(noise=NOISE, prior_scale=0).fit(X, y).predict_uncertainty(X)
    assert (parts.epistemic < 1e-9).all()
    assert_allclose(parts.aleatoric, NOISE)


def test_a_warm_start_with_a_known_noise_does_not_go_on_from_what_it_leaves_out():
    X, y = noisy_rows(20, 0)
    model = small(noise=NOISE, warm_start=True).fit(X, y)
    once = model.predict(X)
    assert_allclose(model.fit(X, y).predict(X), once)


@pytest.mark.parametrize("known", [False, True])
def test_scale_and_noise_of_a_linear_network_are_found(known):
    """Values of a network that is linear in its weights, drawn from the prior, plus noise."""
    rng, n, scale, noise = np.random.default_rng(0), 600, 3.0, 0.5
    jacobian = rng.normal(size=(n, 100)) / 10
    y = scale * jacobian @ rng.normal(size=100) + noise * rng.normal(size=n)
    derivatives = Derivatives(np.zeros((n, 1)), ((jacobian, np.ones((1, n, 1))),))
    process = ExactProcess(derivatives)
    unseen = np.arange(n) % 5 == np.arange(5)[:, None]
    given = [None] * 5, lambda member: (derivatives, process), y, np.ones(n), unseen
    if known:
        prior = learn_scale(*given, np.full(n, noise**2))
        assert_allclose(prior.noise * prior.scale**2, noise**2, rtol=0.2)
    else:
        prior, (factor, std) = learn_prior(*given, np.arange(n) % 2, (1, 2))
        assert_allclose(std, noise, rtol=0.15)
        assert_allclose(factor, 1, rtol=0.15)
    assert prior.scale == pytest.approx(scale * np.sqrt(process.unit), rel=0.35)


def test_known_noises_of_values_may_differ():
    rng, n = np.random.default_rng(1), 400
    jacobian = rng.normal(size=(n, 800)) / 28  # many weights, so that values tell the scale
    noise = np.where(np.arange(n) % 2, 1.0, 0.05)
    y = 2 * jacobian @ rng.normal(size=800) + noise * rng.normal(size=n)
    derivatives = Derivatives(np.zeros((n, 1)), ((jacobian, np.ones((1, n, 1))),))
    process = ExactProcess(derivatives)
    unseen = np.arange(n) % 5 == np.arange(5)[:, None]
    given = [None] * 5, lambda member: (derivatives, process), y, np.ones(n), unseen
    prior = learn_scale(*given, noise**2)
    assert_allclose(prior.noise / prior.noise[0], noise**2 / noise[0] ** 2)
    assert prior.scale == pytest.approx(2 * np.sqrt(process.unit), rel=0.35)


def test_places_with_larger_errors_have_wider_predictions():
    rng, n = np.random.default_rng(0), 400
    jacobian, place = rng.normal(size=(n, 20)), np.arange(n) % 2
    y = jacobian @ rng.normal(size=20) + np.where(place, 3.0, 0.3) * rng.normal(size=n)
    derivatives = Derivatives(np.zeros((n, 1)), ((jacobian, np.ones((1, n, 1))),))
    process = ExactProcess(derivatives)
    unseen = np.arange(n) % 5 == np.arange(5)[:, None]
    members = [None] * 5
    _, (factor, std) = learn_prior(
        members, lambda member: (derivatives, process), y, np.ones(n), unseen, place, (2, 1)
    )
    assert factor[1, 0] > 4 * factor[0, 0] and std[1, 0] > 4 * std[0, 0]


def test_equal_inputs_are_left_out_together():
    X = np.repeat(np.random.default_rng(0).uniform(-1, 1, (12, 2)), 3, axis=0)
    model = small(noise=0.0, steps=500).fit(X, function(X))
    ratio, _ = judge(model)
    alone, _ = judge(small(noise=0.0, steps=500).fit(X[::3], function(X[::3])))
    assert ratio < 2 * alone


@pytest.mark.parametrize("n_different", [1, 4, 6, 12])
def test_folds_of_equal_inputs(n_different, monkeypatch):
    X = np.resize(np.random.default_rng(0).uniform(-1, 1, (n_different, 2)), (12, 2))
    seen, train = [], _neon_conditioned._train_bases
    monkeypatch.setattr(
        _neon_conditioned,
        "_train_bases",
        lambda job, report: seen.append(job) or train(job, report),
    )
    small(noise=0.0, steps=5, prior_scale=0.75).fit(X, np.arange(12.0))
    left_out = seen[0].folds(5, 5)
    assert_array_equal(left_out.sum(axis=0), 1)
    assert left_out.any(axis=1).all()
    if n_different > 4:  # enough different inputs for five folds
        assert_array_equal(left_out, left_out[:, np.arange(12) % n_different])


def test_networks_that_diverged_teach_no_scale(monkeypatch):
    X, y = noisy_rows(20, 0, noise=0.0)
    scales = []
    learn = _neon_conditioned.learn_scale_without_noise

    def spy(members, *rest):
        scales.append(len(members))
        return learn(members, *rest)

    monkeypatch.setattr(_neon_conditioned, "learn_scale_without_noise", spy)
    monkeypatch.setattr(
        _neon_conditioned,
        "has_diverged",
        lambda member, calls=[]: calls.append(1) or len(calls) == 1,
    )
    small(noise=0.0, steps=50).fit(X, y)
    assert scales == [4]


def test_networks_that_err_more_than_their_processes_have_a_larger_scale():
    rng, n = np.random.default_rng(2), 200
    jacobian = rng.normal(size=(n, 400)) / 20
    y = jacobian @ rng.normal(size=400) + 0.1 * rng.normal(size=n)
    scales = []
    for error in (0.0, 3.0):  # an error that no change of the weights takes away elsewhere
        raw = error * rng.normal(size=(n, 1))
        derivatives = Derivatives(raw, ((jacobian, np.ones((1, n, 1))),))
        process = ExactProcess(derivatives)
        unseen = np.arange(n) % 5 == np.arange(5)[:, None]
        given = [None] * 5, lambda member, d=derivatives, p=process: (d, p), y, np.ones(n), unseen
        scales.append(learn_scale(*given, np.full(n, 0.01)).scale)
    assert scales[1] > 2 * scales[0]
