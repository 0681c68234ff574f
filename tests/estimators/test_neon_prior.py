"""NEON's random prior: its size, the noise, and that it closes at the data in closed form."""

import dataclasses
import functools
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import FAR, NEAR, SMALL, EncoderDecoder, build, derivatives_of, inputs, std_of, waves
from plans import ARRAYS
from scipy import stats
from sklearn.linear_model import LinearRegression
from tiers import cases

from skuq import CalibratedUncertaintyRegressor, NEONRegressor, OperatorEnsembleRegressor
from skuq.estimators.methods import _neon_conditioned as _conditioned
from skuq.estimators.methods import _neon_training as _training
from skuq.tables import TrainingData

learn_scale, NOISE = _conditioned.learn_scale, 0.2
ONE = np.zeros(600, dtype=int)
GIVEN = LinearRegression().fit(operators.INPUTS, operators.VALUES)


def learn_prior(*arguments):
    return _conditioned.learn_prior(*arguments, n_functions=len(arguments[2]))


def function(X):
    return np.sin(3 * X[:, 0]) + X[:, 1] ** 2


def noisy_rows(n, seed, noise=NOISE):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, function(X) + noise * rng.normal(size=n)


def small(**changes):
    sizes = {"encoder_units": (16,), "latent": 16, "decoder_units": (16,)}
    settings = {f"network__{name}": size for name, size in sizes.items()}
    settings |= {"training__steps": 2000, "learning_rate": 0.01, "random_state": 0}
    return build(NEONRegressor, **{**settings, **changes})


def judge(model):
    """Ratio of the mean's errors to the epistemic deviations, and the root mean square error."""
    X = np.random.default_rng(99).uniform(-1, 1, (1000, 2))
    parts = model.predict_uncertainty(X)
    error = parts.mean - function(X)
    return np.sqrt(np.mean((error / parts.epistemic) ** 2)), np.sqrt(np.mean(error**2))


@cases(("noise", "n"), ("auto", 40), (0.0, 24), (NOISE, 20), (NOISE, 200), quick=2)
def test_fit_errs_as_much_as_its_epistemic_part_says(noise, n):
    ratio, error = judge(small(noise_std=noise).fit(*noisy_rows(n, 0, NOISE if noise else 0.0)))
    assert 0.4 < ratio < 2.5 and error < 4 * NOISE / np.sqrt(n / 5)


def levels(n_levels, n_repeats, seed):
    """Noisy rows of few inputs, each measured several times."""
    X = np.repeat(np.linspace(-1, 1, n_levels), n_repeats)[:, None]
    return X, np.sin(3 * X[:, 0]) + NOISE * np.random.default_rng(seed).standard_normal(len(X))


@cases(("noise", "n_levels", "seed"), ("auto", 5, 0), (NOISE, 6, 1), quick=1)
def test_fit_meets_inputs_that_are_measured_often(noise, n_levels, seed):
    X, y = levels(n_levels, 8, seed)
    model = small(noise_std=noise, random_state=seed).fit(X, y)
    parts, of_mean = model.predict_uncertainty(X[::8]), NOISE / np.sqrt(8)
    # Once means of 8 values were missed by 0.6, and deviations were 0.003.
    assert np.abs(parts.mean - y.reshape(-1, 8).mean(axis=1)).max() < 4 * of_mean
    assert 0.4 * of_mean < parts.epistemic.mean() < 2 * of_mean
    if noise == "auto":
        within = np.sqrt(y.reshape(-1, 8).var(axis=1, ddof=1).mean())
        assert 0.7 * within < model.noise_std_ < 1.4 * within


def test_noise_is_within_what_repeats_allow():
    """But a few repeats, and copies of records, say nothing about it."""

    def limits(groups, y):
        trainer = _training.OperatorTrainer(
            *(None, None, TrainingData.without_validation(groups[:, None], y[:, None], 0 * y + 1)),
            *(1, None, False, 0, np.ones(len(y)), True, np.zeros((1, 1))),
        )
        return np.ravel(_conditioned._limits_of_noise(trainer))

    rng, repeated = np.random.default_rng(0), np.repeat(np.arange(20.0), 3)
    y = rng.normal(size=60)
    square = 40 * y.reshape(20, 3).var(axis=1, ddof=1).mean()
    expected = np.sqrt(square / stats.chi2.ppf([0.975, 0.025], 40))
    assert_allclose(limits(repeated, y), expected, rtol=1e-6)
    few, copies = np.minimum(np.arange(60.0), 40), np.tile(np.arange(20.0), 3)
    for groups, values in ((few, y), (copies, np.tile(y[:20], 3))):
        assert_array_equal(limits(groups, values), [0, np.inf])


def test_fit_warns_of_a_mean_that_can_be_far_off():
    rng = np.random.default_rng(1)
    X, y = rng.uniform(-1, 1, (12, 1)), rng.normal(size=12)
    with pytest.warns(UserWarning, match="12 functions are too few to learn the noise"):
        small(training__steps=400).fit(X, y)
    with warnings.catch_warnings(action="error"):
        small(training__steps=400).fit(X, np.sin(3 * X[:, 0]))


def test_fit_warm_starts_from_random_weights_with_a_known_noise():
    """Networks must not have seen what they leave out, and scales are those of the new data."""
    X, y = noisy_rows(40, 0)
    model = small(noise_std=NOISE, warm_start=True, training__steps=20).fit(X[:12], y[:12])
    model.set_params(noise_std=1000 * NOISE).fit(X, 1000 * y)
    fresh = small(noise_std=1000 * NOISE, training__steps=20).fit(X, 1000 * y)
    assert_allclose(model.predict(X), fresh.predict(X))


def test_draws_of_noiseless_data_are_as_wide_as_networks_disagree(monkeypatch):
    """With the square root of the ratio of variances in place of its fourth root."""
    monkeypatch.setattr(_conditioned, "_WEIGHT", 1 / 2)
    model = small(noise_std=0.0, training__steps=300).fit(*noisy_rows(20, 0, noise=0.0))
    draws, new = model.fitted_.draws, np.random.default_rng(1).uniform(-1, 1, (500, 2))
    alone = [
        dataclasses.replace(draws, members=draws.members[k : k + 1], directions=one[None, :1])
        for k, one in enumerate(draws.directions)
    ]
    rows = model.fitted_.inputs.transform(new)
    spread = np.std([draw.raw(rows, np.zeros((1, 0)))[0] for draw in alone], axis=0)
    deviations = model.predict_uncertainty(new).epistemic / model.fitted_.targets.scale_.item()
    assert 0.7 < np.sqrt(np.mean(spread**2) / np.mean(deviations**2)) < 1.4


def test_fit_learns_no_scale_from_networks_that_diverged(monkeypatch):
    X, y = noisy_rows(20, 0, noise=0.0)
    model = small(noise_std=0.0, training__steps=50, warm_start=True).fit(X[:12], y[:12])
    monkeypatch.setattr(_training, "_SCALE_STEPS", 50)
    learn = Mock(wraps=_conditioned.learn_noiseless_prior)
    monkeypatch.setattr(_conditioned, "learn_noiseless_prior", learn)
    diverged = iter([True, *[False] * 4])
    monkeypatch.setattr(_training, "has_diverged", lambda member: next(diverged))
    scale = model.fit(X, y).fitted_.draws.prior
    # The next fit keeps the scale, since few functions are new.
    assert_array_equal(model.fit(X[:19], y[:19]).fitted_.draws.prior, scale)
    assert [len(call.args[0]) for call in learn.call_args_list] == [4]


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_fit_stops_early_from_five_rows_on(noise):
    model = small(noise_std=noise, training__steps=5)
    assert [len(model.fit(*noisy_rows(n, 0)).members_) for n in (4, 5)] == [1, 5]


def test_fit_keeps_a_given_scale_with_a_known_noise():
    X, y = noisy_rows(40, 0)
    fast = functools.partial(small, noise_std=NOISE, training__steps=300)
    far = np.full((1, 2), 20.0)
    models = (fast(prior__scale=scale).fit(X, y) for scale in (0.5, 5.0))
    small_one, large = (model.predict_uncertainty(far).epistemic[0] for model in models)
    assert 3 < large / small_one < 11  # the larger one meets the data more closely
    parts = fast(prior__scale=0).fit(X, y).predict_uncertainty(X)
    assert (parts.epistemic < 1e-9).all()
    assert_allclose(parts.aleatoric, NOISE)


def linear(jacobian, y, raw=None, n_folds=5, weight=None):
    """Arguments of `learn_prior` for networks that are linear in their weights."""
    n = len(y)
    raw = np.zeros(n) if raw is None else raw
    derivatives = derivatives_of(jacobian, raw)
    process = _conditioned.ExactProcess(derivatives)
    unseen = np.arange(n) % n_folds == np.arange(n_folds)[:, None]
    weight = np.ones(n) if weight is None else weight
    return [None] * n_folds, lambda member: (derivatives, process), y, weight, unseen


def drawn(n, n_weights, scale, noise, seed=0):
    """Derivatives, and values of a random linear network with noise."""
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(n, n_weights)) / np.sqrt(n_weights)
    values = scale * jacobian @ rng.normal(size=n_weights)
    return jacobian, values + noise * rng.normal(size=n)


def any_noise(*shape):
    """Limits of the noise that allow everything."""
    return np.zeros(shape), np.full(shape, np.inf)


@pytest.mark.parametrize("known", [False, True])
def test_learn_prior_finds_scale_and_noise(known):
    # Many weights, so that values tell the scale; or few, so that they tell the noise.
    given = linear(*drawn(600, 1000 if known else 100, 3.0, 0.5))
    if known:
        prior, (factor, std) = learn_scale(*given, ONE, np.full((1, 1), 0.5))
        assert_allclose(prior.noise * prior.scale**2, 0.25, rtol=0.2)
        assert_allclose(prior.mean_noise, 0.25 / 1000)  # the mean meets the values most closely
        assert_allclose(factor, 1)
        assert_allclose(std, 0.5)
    else:
        prior, (factor, std) = learn_prior(*given, np.arange(600) % 2, any_noise(1, 2))
        assert_allclose(std, 0.5, rtol=0.15)
        assert_allclose(factor, 1, rtol=0.15)
    assert prior.scale == pytest.approx(3, rel=0.35)


@pytest.mark.parametrize("least", [0.05, 0.0])
def test_learn_scale_treats_each_group_by_itself(least):
    """A group without noise does not spoil the others."""
    group, std = np.arange(400) % 2, np.array([[1.0, least]])
    given = linear(*drawn(400, 800, 2.0, std[0, group], seed=1))
    prior, (factor, noise) = learn_scale(*given, group, std)
    assert_allclose(noise, std)
    assert_allclose(prior.scale * factor, 2, rtol=0.5)
    if least:
        ratio = np.median(prior.noise[group == 0]) / np.median(prior.noise[group == 1])
        assert 0.3 < ratio / 400 < 3  # 1 / 0.05 squared


def test_learn_prior_is_as_large_as_errors_where_noise_is_tiny():
    """Draws meet such data more closely than the process that is likeliest, and vary less."""
    variance = np.where(np.arange(600) % 2, 2e-3, 0.0)
    y = np.sqrt(variance + 5e-6) * np.random.default_rng(0).normal(size=600)

    def predict_left_out(targets, left_out, noises, importance):
        noises = np.array(noises)[:, None]
        # Below a noise of 1e-3 the variances fall with it, and the process errs by more.
        share, means = np.minimum(noises / 1e-3, 1), np.zeros((len(noises), 2, left_out.sum()))
        means[:, 1] = targets[1, left_out] * (1 - 1 / share)
        epistemic = share * variance[left_out] + 1e-10
        return means, epistemic + noises, epistemic

    members, make_process, *others = linear(np.zeros((600, 1)), y)
    derivatives, _ = make_process(None)
    process = SimpleNamespace(predict_left_out=predict_left_out)
    given = members, lambda member: (derivatives, process), *others
    prior, (factor, std) = learn_prior(*given, ONE, any_noise(1, 1))
    assert 0 < std[0, 0] < 0.01
    epistemic = (factor * prior.scale) ** 2 * variance * np.minimum(prior.noise / 1e-3, 1)
    assert_allclose(np.mean(epistemic + std**2), np.mean(y**2), rtol=0.2)


def test_learn_prior_of_pure_noise_is_as_large_as_the_noise():
    """A smaller prior would be certain of the mean level, too."""
    jacobian, y = drawn(60, 30, 0.0, 1.0)
    prior, (factor, std) = learn_prior(*linear(jacobian, y), ONE[:60], any_noise(1, 1))
    assert 0.7 < std.item() < 1.3
    assert (prior.noise <= 10).all() and prior.scale * factor.item() > 0.3 * std.item()
    given = linear(*drawn(28, 3, 1.0, 0.5))  # Fewer than thirty values tell the noise, too.
    _, (factor, std) = learn_prior(*given, ONE[:28], any_noise(1, 1))
    assert 0.25 < std < 1 and 0.5 < factor < 2


@pytest.mark.parametrize("known", [False, True])
def test_learnt_scale_follows_the_errors_of_networks(known):
    jacobian, y = drawn(200, 400, 1.0, 0.1)
    _, truth = drawn(200, 400, 1.0, 0.0)
    # An error that no change of the weights takes away; none beyond the prior; hardly any.
    far_off, scales = 3 * np.random.default_rng(3).normal(size=200), []
    for raw in (far_off, 0 * truth, truth):
        given = linear(jacobian, y, raw=raw)
        if known:
            prior, _ = learn_scale(*given, ONE[:200], np.full((1, 1), 0.1))
            scales.append(prior.scale)
        else:
            prior, (_, std) = learn_prior(*given, ONE[:200], any_noise(1, 1))
            scales.append(np.hypot(prior.scale, std.item()))
    assert scales[0] > 2 * scales[1] > 4 * scales[2]
    # What has learnt all but noise is not corrected by more than the draws are.
    assert_array_equal(prior.mean_noise, prior.noise)


@pytest.mark.parametrize("rough", [0.0, 0.05])
def test_learn_noiseless_prior_errs_as_much_as_it_says(rough):
    """The floor holds what networks miss without noise; it is nothing where they miss nothing."""
    jacobian, y = drawn(200, 150, 3.0, rough)
    members, make, *data = linear(jacobian[:100], y[:100])
    given = members, make, *data, ONE[:100], np.zeros((1, 1))
    prior, (factor, noise), error = _conditioned.learn_noiseless_prior(*given, n_functions=100)
    gram, cross = jacobian[:100] @ jacobian[:100].T, jacobian[100:] @ jacobian[:100].T
    unit = np.diag(gram).mean()
    solution = np.linalg.solve(gram / unit + np.diag(prior.noise), cross.T / unit)
    mean = solution.T @ y[:100]
    own = np.diag(jacobian[100:] @ jacobian[100:].T) - 2 * (cross * solution.T).sum(1)
    variance = prior.scale**2 * (own + ((gram @ solution) * solution).sum(0)) / unit
    assert 0.7 < np.sqrt(np.mean((y[100:] - mean) ** 2) / np.mean(variance)) < 1.5
    assert noise == 0 and not prior.draw_noise.any() and 0.1 < error < 1
    assert_allclose(factor, 1)


def test_fit_learns_the_noise_of_fewer_inputs_than_folds_from_repeats():
    X, y = levels(3, 13, 0)
    within = y.reshape(3, -1) - y.reshape(3, -1).mean(axis=1, keepdims=True)
    expected = np.sqrt((within**2).sum() / (len(y) - 3))
    ensemble = build(OperatorEnsembleRegressor, 2, **SMALL)
    for model in (small(training__steps=5), ensemble):
        assert_allclose(model.fit(X, y).noise_std_, expected, rtol=1e-5)


def wave_model(**changes):
    settings = {**operators.WAVE_SETTINGS, "noise_std": 0.0, "training__steps": 500}
    return build(NEONRegressor, **{**settings, **changes})


def test_fit_closes_the_prior_at_the_data_and_draws_are_functions():
    u = inputs(10)
    wave = wave_model().fit(u, waves(u))
    assert wave.fitted_.draws.of_mean().directions.shape[1] == 1
    assert_allclose(wave.predict(NEAR), wave.predict_uncertainty(NEAR).mean, rtol=1e-12, atol=1e-14)
    at_data, new = std_of(wave, u).mean(), std_of(wave, NEAR).mean()
    assert at_data < 0.05 * new and std_of(wave, FAR).mean() > 4 * new
    assert np.sqrt(np.mean((wave.predict(u) - waves(u)) ** 2)) < 2e-5 * waves(u).std()
    noisy = wave_model(noise_std=0.3).fit(u, waves(u))  # meets the data up to noise
    assert std_of(noisy, u).mean() > 3 * at_data
    u = inputs(7)
    error = np.random.default_rng(0).choice([-0.1, 0.1], waves(u).shape)
    model = CalibratedUncertaintyRegressor(wave, cv="prefit").fit(u, waves(u) + error)
    expected = np.corrcoef(wave.sample_y(FAR, 2000, random_state=0).reshape(-1, 2000))
    for draws in (wave.predict_distribution(FAR).sample(2000, 1), model.sample_y(FAR, 2000, 2)):
        assert_allclose(np.corrcoef(draws.reshape(-1, 2000)), expected, atol=0.15)


NETWORKS = {
    "split": EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9)),
    "deep": EncoderDecoder(3, 2, 1, (7, 5, 4), 7, "split", (8, 9, 4)),
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
    pairs = np.c_[np.repeat(x[:, :3], 2, axis=0), np.resize(x[:, 3:], (10, x.shape[1] - 3))]
    given = ARRAYS, weights, directions, pairs
    for found, expected in zip(network.tangents(*given, n_queries=2), network.tangents(*given)):
        assert_allclose(found, expected, atol=1e-12)
    derivatives = network.derivatives(weights, x)
    along = derivatives.along(flat).reshape(tangents.shape)
    jacobian = derivatives.back(np.eye(raw.size))
    assert_allclose(derivatives.raw, raw, atol=1e-12)
    assert_allclose(derivatives.gram(), jacobian @ jacobian.T, atol=1e-8)
    # The kernel in parts of two rows and of one.
    monkeypatch.setattr("skuq.networks._dense._GRAM_ENTRIES", 2 * raw.size * network.n_raw)
    expected = (jacobian @ jacobian.T)[: 2 * network.n_raw]
    assert_allclose(derivatives.rows(np.arange(2)).gram(derivatives), expected, atol=1e-8)
    assert_allclose(derivatives.gram(), jacobian @ jacobian.T, atol=1e-8)
    for s in range(3):
        moved = ([v + h * d[s] for v, d in zip(weights, directions)] for h in (1e-6, -1e-6))
        up, down = (network(ARRAYS, each, x)[0] for each in moved)
        assert_allclose(tangents[s], (up - down) / 2e-6, atol=1e-6)
        assert_allclose(along[s], tangents[s], atol=1e-8)
        assert_allclose(jacobian @ flat[s], tangents[s].ravel(), atol=1e-8)


@pytest.mark.parametrize("each", [False, True])
def test_predict_left_out_is_that_of_a_gaussian_process(each):
    rng = np.random.default_rng(0)
    jacobian, y = rng.normal(size=(40, 200)), rng.normal(size=40)
    process = _conditioned.ExactProcess(derivatives_of(jacobian, np.zeros(40)))
    left_out, targets = np.arange(40) >= 30, np.stack([y, 2 * y + 1])
    noises = [np.full(40, noise) for noise in (0.01, 0.2)] if each else (0.01, 0.2)
    weight = rng.uniform(0.5, 3, 40)
    means, variances, noiseless = process.predict_left_out(targets, left_out, noises, weight)
    gram = jacobian @ jacobian.T / process.unit
    for k, noise in enumerate((0.01, 0.2)):
        covariance = gram[:30, :30] + np.diag((noise + _conditioned.JITTER) / weight[:30])
        weights = gram[30:, :30] @ np.linalg.inv(covariance)
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
    once, given = derivatives_of(jacobian, np.zeros(10)), (y[None], noise, [3, 3] + [1] * 8)
    exact = _conditioned.ExactProcess(once).condition(*map(np.array, given))
    assert_allclose(exact, expected, atol=1e-6)
    sparse = _conditioned.SparseProcess(once, np.arange(10)).condition(*map(np.array, given))
    assert_allclose(sparse, expected, atol=1e-5)


def test_sparse_process_is_exact_where_the_kernel_has_low_rank():
    rng = np.random.default_rng(0)
    jacobian, y = rng.normal(size=(100, 8)), rng.normal(size=(1, 100))
    derivatives = derivatives_of(jacobian, np.zeros(100))
    exact = _conditioned.ExactProcess(derivatives).condition(y, 0.1)
    sparse = _conditioned.SparseProcess(derivatives, np.arange(0, 100, 9)).condition(y, 0.1)
    assert_allclose(sparse, exact, rtol=1e-3, atol=1e-5)


@cases(("limit", "n", "ratio", "error"), ("MAX_EXACT", 200, 5, 0.01), ("MAX_VALUES", 100, 2, 1))
def test_fit_conditions_on_some_of_many_values(monkeypatch, limit, n, ratio, error):
    monkeypatch.setattr(_conditioned, limit, n)
    u = inputs(40)
    model = wave_model(training__steps=200).fit(u, waves(u))
    assert std_of(model, FAR).mean() > ratio * std_of(model, u).mean() > 0
    assert np.sqrt(np.mean((model.predict(u) - waves(u)) ** 2)) < error * waves(u).std()


@pytest.mark.parametrize("changes", [{"loss": "nll"}, {"pretrained": GIVEN}])
def test_fit_trains_an_epinet_where_nothing_can_be_conditioned(changes):
    model = build(NEONRegressor, **SMALL, query_points=operators.QUERIES, n_draws=16, **changes)
    assert hasattr(model.fit(operators.INPUTS, operators.VALUES).fitted_.draws, "member")


def test_exact_process_of_rows_that_nearly_meet_is_positive():
    """In single precision it had eigenvalues of -1e-7, and fits of converged searches failed."""
    rng = np.random.default_rng(0)
    X = rng.random((60, 6))
    X[20:] = X[0] + 1e-3 * rng.standard_normal((40, 6))
    model = small(noise_std=0.0, training__steps=50).fit(X, np.sin(3 * X).sum(axis=1))
    assert np.isfinite(std_of(model, X)).all()
