"""Noise and scale of regressors of functions: known, learnt from functions left out, or none."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import INPUTS, QUERIES, SMALL, VALUES, WAVE_SETTINGS, inputs, waves
from sklearn.base import clone
from tiers import slow_after

import skuq.training
from skuq import NEONRegressor, OperatorEnsembleRegressor
from skuq.estimators._operator_widths import fit_widths
from skuq.training import predict_draws

KINDS = {
    "conditioned": (NEONRegressor, {"epistemic": "conditioned", "n_draws": 32}),
    "epinet": (
        NEONRegressor,
        {
            "epistemic": "epinet",
            "epinet_units": 8,
            "prior_units": 4,
            "n_index": 4,
            "n_index_samples": 4,
            "n_draws": 32,
        },
    ),
    "ensemble": (OperatorEnsembleRegressor, {"n_members": 5}),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def small(kind, **changes):
    estimator, settings = KINDS[kind]
    return estimator(**{**SMALL, "query_points": QUERIES, **settings, **changes})


def noisy_line(n=150, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


def line_model(kind, **changes):
    settings = {**WAVE_SETTINGS, "query_points": None, "steps": 300, **changes}
    return small(kind, **settings)


def test_known_noise_is_the_aleatoric_part(kind):
    model = small(kind, noise=0.2).fit(INPUTS, VALUES)
    none = small(kind, noise=0.0).fit(INPUTS, VALUES)
    parts, others = (m.predict_uncertainty(INPUTS) for m in (model, none))
    assert_allclose(parts.aleatoric, 0.2)
    assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2, rtol=1e-9)
    assert_array_equal(others.aleatoric, 0)
    assert_allclose(model.noise_std_, [0.2])
    assert_array_equal(none.noise_std_, [0])
    draws = model.sample_y(INPUTS, 400, 0)
    assert_allclose(draws.std(axis=-1).mean(), parts.total.mean(), rtol=0.15)
    jumps = np.diff(draws, axis=1).std(axis=-1)  # values have noise of their own
    assert jumps.min() > 0.2


def test_each_component_may_have_its_own_noise(kind):
    Y = np.stack([VALUES, 10 * VALUES], axis=-1)
    model = small(kind, noise=[0.1, 2.0]).fit(INPUTS, Y)
    assert_allclose(model.predict_uncertainty(INPUTS).aleatoric, np.broadcast_to([0.1, 2], Y.shape))
    assert_allclose(model.noise_std_, [0.1, 2.0])


def test_each_member_predicts_once(monkeypatch):
    model, calls = small("ensemble", noise=0.1).fit(INPUTS, VALUES), []

    def counting(member, rows):
        calls.append(member)
        return predict_draws(member, rows)

    monkeypatch.setattr(skuq.training, "predict_draws", counting)
    model.predict(INPUTS, return_std=True)
    assert len(calls) == 5


def test_few_functions_teach_no_noise(kind):
    model = small(kind).fit(INPUTS, VALUES)
    assert model.fitted_.widths is None and (model.noise_std_ == 0).all()


def test_noise_and_scale_are_learnt_from_functions_left_out(kind):
    X, y = noisy_line()
    model = line_model(kind).fit(X, y)
    assert_allclose(model.noise_std_, [0.3], rtol=0.3)
    T, t = noisy_line(400, seed=1)
    low, high = model.predict_interval(T, 0.9).T
    assert 0.82 < np.mean((low <= t) & (t <= high)) < 0.97
    mean, std = model.predict(T, return_std=True)
    nll = np.mean(np.log(std) + 0.5 * ((t - mean) / std) ** 2) + 0.5 * np.log(2 * np.pi)
    of_noise = np.log(0.3) + 0.5 + 0.5 * np.log(2 * np.pi)
    assert nll < of_noise + 0.2
    parts = model.predict_uncertainty(T)
    assert (parts.epistemic > 0).all() and (parts.aleatoric > 0).all()
    draws = model.posterior_fn(16, random_state=0)(T)  # without noise
    assert draws.std(axis=0).mean() < 0.7 * std.mean()


def test_a_prior_of_scale_0_is_off_where_noise_is_learnt():
    X, y = noisy_line(40)
    parts = line_model("conditioned", steps=20, prior_scale=0).fit(X, y).predict_uncertainty(X)
    assert (parts.epistemic < 1e-9).all() and (parts.aleatoric > 0.05).all()


def test_members_stop_after_a_quarter_of_the_epochs_without_a_better_one():
    X, y = noisy_line(60, noise=1.0)
    model = line_model("ensemble", steps=200, learning_rate=0.05).fit(X, y)  # 200 epochs
    for member in model.members_:
        best = int(np.argmin(member.history["val_loss"]))
        assert len(member.history["loss"]) == best + 1 + 50 < 200


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_rows_without_noise_teach_hardly_any(kind):
    u = inputs(40)
    settings = {**WAVE_SETTINGS, "steps": 300}
    model = small(kind, **settings).fit(u, waves(u))
    new = inputs(40, seed=3)
    mean, std = model.predict(new, return_std=True)
    error = waves(new) - mean
    assert model.noise_std_[0] < 0.05 * waves(u).std()
    assert 0.3 < np.sqrt(np.mean((error / std) ** 2)) < 3


@functools.cache
def learnt(kind):
    return line_model(kind, steps=50).fit(*noisy_line(60))


def test_posterior_draws_have_the_scale_of_predictions(kind):
    model, (X, _) = learnt(kind), noisy_line(60)
    draws = model.fitted_.posterior_of(model.fitted_.draws.index)(X)
    parts = model.predict_uncertainty(X)
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-9)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-7, atol=1e-9)


def test_copies_predict_the_same(kind):
    model, (X, y) = learnt(kind), noisy_line(60)
    expected = model.predict(X, return_std=True)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for copied, part in zip(twin.predict(X, return_std=True), expected):
            assert_array_equal(copied, part)
    again = clone(model).fit(X, y)
    assert_array_equal(again.predict(X, return_std=True)[1], expected[1])


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_columns_without_query_points_have_noise_of_their_own(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    Y = np.stack([X[:, 0], 100 * X[:, 0]], axis=1)
    Y += np.array([0.05, 50.0]) * rng.normal(size=Y.shape)
    model = line_model(kind, steps=200).fit(X, Y)
    assert model.noise_std_.shape == (2, 1)
    assert_allclose(model.noise_std_[:, 0], [0.05, 50], rtol=0.5)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (-1.0, "'noise' parameter"),
        ([0.1, 0.2], "one for each of the 1 columns of y. Got shape"),
        ([-0.1], "`noise` must be finite numbers >= 0"),
        ([np.nan], "`noise` must be finite numbers >= 0"),
        ("none", "'noise' parameter"),
    ],
)
def test_bad_noise_is_refused(kind, noise, message):
    with pytest.raises(ValueError, match=message):
        small(kind, noise=noise).fit(INPUTS, VALUES)


def test_likelihoods_learn_their_noise_themselves():
    with pytest.raises(ValueError, match="loss='nll' learns the noise"):
        small("ensemble", loss="nll", noise=0.1).fit(INPUTS, VALUES)


def test_widths_are_those_of_errors_and_variances():
    rng = np.random.default_rng(0)
    variance = rng.uniform(0.1, 2, (4000, 2))
    scale, noise = np.array([0.5, 3.0]), np.array([0.2, 0.0])
    error = rng.normal(size=variance.shape) * np.sqrt(scale**2 * variance + noise**2)
    factor, floor = fit_widths(error**2, variance, np.ones(1000), (1, 2))
    assert_allclose(factor[0], scale, rtol=0.1)
    assert_allclose(floor[0, 0], 0.2, rtol=0.15)
    assert floor[0, 1] < 0.7  # small beside 3
    # Functions of weight 0 do not count.
    error[:2000] = 100
    weight = np.repeat([0, 1], 500)
    fewer = fit_widths(error**2, variance, weight, (1, 2))[0]
    assert_allclose(fewer[0], scale, rtol=0.15)
    # Each column of its own: 4 values a function.
    by_column = np.tile([1, 2, 3, 4.0], 1000)[:, None] * np.ones((4000, 2))
    error = by_column * rng.normal(size=(4000, 2))
    factor, floor = fit_widths(error**2, np.ones((4000, 2)), np.ones(1000), (4, 2))
    assert_allclose(factor**2 + floor**2, [[1, 1], [4, 4], [9, 9], [16, 16]], rtol=0.2)


def test_functions_left_out_are_each_left_out_once(monkeypatch):

    caught, train = [], skuq.training.train

    def spy(job, data, **options):
        caught.append(job.splits)
        return train(job, data, **options)

    monkeypatch.setattr(skuq.training, "train", spy)
    X, y = noisy_line(33)
    line_model("ensemble", n_members=5, steps=5).fit(X, y)
    (splits,) = caught
    assert len({len(train) for train, _ in splits}) == len({len(valid) for _, valid in splits}) == 1
    left_out = [set(valid.tolist()) for _, valid in splits]
    assert sorted(row for part in left_out for row in part) == list(range(33))
    for (train, _), part in zip(splits, left_out):
        assert set(train.tolist()) == set(range(33)) - part


@pytest.mark.parametrize("diverged", ["network", "twin"])
def test_an_epinet_needs_its_network_but_not_the_twin_that_judges_the_noise(diverged, monkeypatch):
    train = skuq.training.train

    def lose_one(*args, **kwargs):
        network, twin = train(*args, **kwargs)
        lost = FloatingPointError("lost")
        return [lost, twin] if diverged == "network" else [network, lost]

    monkeypatch.setattr(skuq.training, "train", lose_one)
    model = line_model("epinet", steps=5)
    X, y = noisy_line(40)
    if diverged == "twin":
        with pytest.warns(UserWarning, match="1 of 2 networks diverged"):
            model.fit(X, y)
        assert model.noise_std_ == 0
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left out: the fit fails
        with pytest.raises(FloatingPointError, match="The network diverged"):
            model.fit(X, y)


# The scale of the prior without noise


def bumps(X, seed):
    """Sum of three bumps of different widths, for inputs (n, d) in the unit box."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.1, 0.9, (3, X.shape[1]))
    widths = rng.uniform(0.2, 0.6, (3, X.shape[1]))
    return np.exp(-((((X[:, None] - centres) / widths) ** 2).sum(axis=-1))) @ [1.0, 2.0, -1.5]


def bumps_model(**changes):
    settings = {"noise": 0.0, "steps": 600, "learning_rate": 3e-3, **changes}
    return line_model("conditioned", **settings)


@pytest.mark.parametrize("seed", slow_after(2, range(6)))
@pytest.mark.parametrize("d", [2, 4])
def test_errors_without_noise_are_as_large_as_predicted(seed, d):
    rng = np.random.default_rng(seed)
    X, T = rng.random((12 * d, d)), rng.random((400, d))
    mean, std = bumps_model().fit(X, bumps(X, seed)).predict(T, return_std=True)
    z = (mean - bumps(T, seed)) / std
    assert 0.3 < np.sqrt(np.mean(z**2)) < 2.1  # with the paper's scale 1.8 to 5.2
    assert np.mean(np.abs(z) < 2) > 0.6


def test_a_learnt_scale_follows_the_units_of_the_target():
    X = np.random.default_rng(0).random((30, 2))
    y, T = bumps(X, 0), np.random.default_rng(1).random((50, 2))
    std, large = (bumps_model().fit(X, k * y).predict(T, return_std=True)[1] for k in (1, 1024))
    assert_allclose(large, 1024 * std, rtol=1e-5)


def test_a_scale_that_nothing_can_be_learnt_from_is_the_usual_one(monkeypatch):
    X = np.random.default_rng(0).random((20, 2))
    few = X[:4]
    known = [
        bumps_model(noise=0.1, **scale).fit(few, bumps(few, 3)).predict(X, return_std=True)[1]
        for scale in ({}, {"prior_scale": 0.75})
    ]
    assert_array_equal(*known)
    fixed = bumps_model(prior_scale=0.75).fit(X, bumps(X, 3)).predict_uncertainty(X + 0.1)
    train = skuq.training.train

    def diverging(job, data, **options):
        if len(job.seeds) == 1:
            return train(job, data, **options)
        return [FloatingPointError("diverged")] * len(job.seeds)

    monkeypatch.setattr(skuq.training, "train", diverging)
    with pytest.warns(UserWarning, match="scale of the random prior is 0.75"):
        model = bumps_model().fit(X, bumps(X, 3))
    assert_array_equal(model.predict_uncertainty(X + 0.1).epistemic, fixed.epistemic)


def test_few_functions_and_a_trained_epinet_have_the_papers_scale():
    for kind, n in [("conditioned", 4), ("epinet", 6)]:
        usual, fixed = (
            small(kind, noise=0.0, **scale).fit(INPUTS[:n], VALUES[:n]).predict_uncertainty(INPUTS)
            for scale in ({}, {"prior_scale": 0.75})
        )
        assert_array_equal(usual.epistemic, fixed.epistemic)


def test_a_warm_start_learns_the_scale_anew():
    X, T = (np.random.default_rng(k).random((n, 2)) for k, n in enumerate((40, 300)))
    y = bumps(X, 1)
    model = bumps_model(warm_start=True).fit(X, y)
    first = model.predict(T, return_std=True)[1]
    mean, std = model.set_params(steps=5).fit(X, y).predict(T, return_std=True)
    assert np.sqrt(np.mean(((mean - bumps(T, 1)) / std) ** 2)) < 2
    assert 0.3 < std.mean() / first.mean() < 3  # 6 after as few steps as the warm start takes
