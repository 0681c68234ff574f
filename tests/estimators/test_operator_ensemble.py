"""Ensembles of operator networks: members, priors, bootstrap, and the predictions they share."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import (
    FAR,
    INPUTS,
    NEAR,
    QUERIES,
    SMALL,
    VALUES,
    WAVE_SETTINGS,
    assert_exact_gradients,
    assert_predicts_between_query_points,
    inputs,
    single,
    std_of,
    waves,
)
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from tiers import slow_after

import skuq.training
from skuq import OperatorEnsembleRegressor
from skuq.backend import keras, ops
from skuq.training import predict_draws
from skuq.training._networks import DrawingNetwork
from skuq.training._predict import read_network

layers = keras.layers

FURTHER = np.array([[4.0], [6.0], [-3.0]])


def small(**changes):
    settings = {"n_members": 3, **SMALL, "query_points": QUERIES, **changes}
    return OperatorEnsembleRegressor(**settings)


def fit_small(**changes):
    return small(**changes).fit(INPUTS, VALUES)


def wave_model(**changes):
    return OperatorEnsembleRegressor(
        **{**WAVE_SETTINGS, "noise": 0.0, "n_members": 4, "steps": 400, **changes}
    )


@pytest.fixture(scope="module")
def wave():
    u = inputs(40)
    return wave_model().fit(u, waves(u))


def test_new_functions_are_predicted_at_new_query_points(wave):
    assert_predicts_between_query_points(wave)


def test_uncertainty_grows_away_from_the_inputs(wave):
    assert std_of(wave, FAR).mean() > 10 * std_of(wave, inputs(40)).mean()


def test_uncertainty_shrinks_with_more_functions(wave):
    few = wave_model().fit(inputs(4), waves(inputs(4)))
    assert std_of(wave, NEAR).mean() < 0.5 * std_of(few, NEAR).mean()


@pytest.mark.slow
def test_one_number_a_row_is_plain_regression():
    rng = np.random.default_rng(0)
    X, T = rng.uniform(-1, 1, (2, 80, 2))
    model = wave_model(query_points=None).fit(X, np.sin(2 * X[:, 0]) + X[:, 1])
    assert model.score(T, np.sin(2 * T[:, 0]) + T[:, 1]) > 0.9
    assert std_of(model, 4 * T).mean() > 2 * std_of(model, X).mean()


@pytest.mark.slow
def test_members_differ_by_their_priors(wave):
    """Away from the data, members of a deep ensemble differ by their first weights only."""
    u = inputs(40)
    strong, none = (
        wave_model(prior_scale=scale, steps=200).fit(u, waves(u)) for scale in (20.0, 0.0)
    )
    assert std_of(strong, FAR).mean() > 2 * std_of(none, FAR).mean()


# Members ----------------------------------------------------------------------


def test_predictions_are_moments_of_the_members(wave):
    targets, rows = wave.fitted_.targets, wave.fitted_.inputs.transform(FAR)
    means = np.stack([predict_draws(member, rows)[0] for member in wave.members_])
    means = means.reshape(4, 30, 12) * targets.scale_[0] + targets.mean_[0]
    mean, std = wave.predict(FAR, return_std=True)
    assert_allclose(mean, means.mean(axis=0), atol=1e-12)
    assert_allclose(std, means.std(axis=0), atol=1e-12)
    draws = wave.sample_y(FAR, 50, random_state=0)
    nearest = np.abs(np.moveaxis(draws, -1, 0)[:, None] - means).max(axis=(2, 3)).argmin(axis=1)
    assert_array_equal(np.moveaxis(draws, -1, 0), means[nearest])  # a draw is one member
    assert len(set(nearest)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", slow_after(1, [{}, {"batch_size": 2, "batch_over": "functions"}]), ids=str
)
def test_a_member_is_the_same_trained_alone(monkeypatch, batch):
    calls = []

    def spy(*arguments, **options):
        calls.append((arguments, options))
        return train(*arguments, **options)

    train = skuq.training.train
    monkeypatch.setattr(skuq.training, "train", spy)
    model = fit_small(steps=40, **batch)
    (job, data), _ = calls[0]
    rows = model.fitted_.inputs.transform(INPUTS)
    if not batch:
        for seed, member in zip(job.seeds, model.members_):
            (alone,) = train(replace(job, recipes=job.recipe, seeds=[seed], stacked=False), data)
            assert_allclose(predict_draws(alone, rows), predict_draws(member, rows), atol=1e-4)
    fewer = fit_small(steps=40, n_members=2, **batch)
    for one, other in zip(fewer.members_, model.members_):
        assert_allclose(predict_draws(one, rows), predict_draws(other, rows), atol=1e-4)


def test_priors_are_frozen_and_of_each_member_alone():
    model = fit_small(steps=40)
    drawing = DrawingNetwork(read_network(model.members_[0].network))
    for member in model.members_:
        entropy = np.random.SeedSequence(member.seed).generate_state(4)
        weights, prior = drawing.draw(int(entropy[0]))
        assert len(prior) == len(drawing.shapes)
        for before, after in zip(prior, member.state):
            assert_array_equal(before, after)
        assert abs(member.weights - weights).max() > 1e-3
    kernels = [member.state[0] for member in model.members_]
    assert abs(kernels[0] - kernels[1]).max() > 0.01


def test_without_prior_members_hold_nothing_frozen():
    model = fit_small(prior_scale=0.0)
    assert all(len(member.state) == 0 for member in model.members_)
    assert (std_of(model, INPUTS) > 0).all()
    assert model.n_parameters_ == 3 * len(model.members_[0].weights)


def test_equal_seeds_give_equal_bits():
    first, again, other = (fit_small(random_state=k) for k in (3, 3, 4))
    assert_array_equal(first.predict(FURTHER), again.predict(FURTHER))
    assert_array_equal(std_of(first, FURTHER), std_of(again, FURTHER))
    assert abs(first.predict(FURTHER) - other.predict(FURTHER)).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch",
    slow_after(1, [{"batch_size": 2, "batch_over": "functions"}, {}, {"batch_size": 5}]),
    ids=str,
)
def test_bootstrap_gives_members_whole_functions_of_their_own(monkeypatch, batch):
    caught = []

    def spy(job, data, **options):
        caught.append((job.splits, job.permutations))
        return train(job, data, **options)

    train = skuq.training.train
    monkeypatch.setattr(skuq.training, "train", spy)
    model = fit_small(bootstrap=0.5, **batch)
    splits, permutations = caught[0]
    seen = []
    for rows, valid in splits:
        assert valid is None and len(rows) == 12
        functions = rows.reshape(3, 4)
        assert_array_equal(functions % 4, np.broadcast_to(np.arange(4), (3, 4)))
        assert len(set(functions[:, 0])) == 3
        seen.append(tuple(sorted(functions[:, 0])))
    assert len(set(seen)) > 1
    if "batch_over" in batch:
        order = permutations[0](12).reshape(3, 4)
        assert_array_equal(order % 4, np.broadcast_to(np.arange(4), (3, 4)))
        assert_array_equal(np.sort(order, axis=None), np.arange(12))
    assert np.isfinite(model.predict(FURTHER)).all()


def test_smallest_bootstrap_is_one_function():
    model = fit_small(bootstrap=0.01)
    assert np.isfinite(std_of(model, FURTHER)).all()


def test_function_without_weight_is_absent():
    weight = np.array([1, 1, 0, 1, 1, 0.0])
    odd = np.where(weight[:, None] > 0, VALUES, 1e6)
    weightless = small().fit(INPUTS, odd, sample_weight=weight)
    absent = small().fit(INPUTS[weight > 0], VALUES[weight > 0])
    assert_array_equal(weightless.predict(INPUTS), absent.predict(INPUTS))


def test_wild_members_are_left_out(monkeypatch):
    train = skuq.training.train

    def with_a_wild_one(*arguments, **options):
        members = train(*arguments, **options)
        return [FloatingPointError("diverged"), *members[1:]]

    monkeypatch.setattr(skuq.training, "train", with_a_wild_one)
    with pytest.warns(UserWarning, match="1 of 3 networks diverged"):
        model = fit_small()
    assert len(model.members_) == 2 and model.posterior_fn().n_draws == 2
    assert np.isfinite(std_of(model, FURTHER)).all()


def test_all_wild_is_an_error():
    with pytest.raises(FloatingPointError, match="All 3 networks diverged"):
        fit_small(learning_rate=1e30, clip_norm=None, steps=50)


# The common interface ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "loss"),
    slow_after(
        2,
        [
            *(((), "auto"), ((4, 2), "nll"), ((4,), "auto")),
            *(((), "nll"), ((4, 2), "auto"), ((4,), "nll")),
        ],
    ),
    ids=str,
)
def test_predictions_have_the_shape_of_y(shape, loss):
    Y = VALUES[:, 3] if shape == () else VALUES
    Y = Y if len(shape) < 2 else Y[..., None] * [1, 2]
    model = small(query_points=QUERIES if shape else None, loss=loss).fit(INPUTS, Y)
    parts = model.predict_uncertainty(INPUTS)
    for part in parts:
        assert part.shape == (6, *shape)
    assert (parts.aleatoric > 0).all() == (loss == "nll") and (parts.epistemic > 0).all()
    assert model.sample_y(INPUTS, 5, 0).shape == (6, *shape, 5)
    assert model.log_prob(INPUTS, Y).shape == (6,)
    posterior = model.posterior_fn()
    assert posterior(INPUTS).shape == (3, 6, *shape) and posterior.output_shape == shape


def unplanned(d_u, d_y, n_raw):
    u, y = keras.Input((d_u,)), keras.Input((d_y,))
    value = layers.Dense(8, activation="tanh")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw)(layers.PReLU()(value)))


@pytest.mark.parametrize(
    "changes",
    slow_after(1, [{"loss": "nll"}, {}, {"prior_scale": 0.0}, {"build_base": unplanned}]),
    ids=["nll", "prior", "none", "keras"],
)
def test_posterior_draws_are_the_members(changes):
    model = fit_small(**changes)
    posterior, parts = model.posterior_fn(), model.predict_uncertainty(FURTHER)
    draws = posterior(FURTHER)
    # A Keras model runs in float32 there.
    tolerance = 1e-4 if "build_base" in changes else 1e-9
    assert posterior.joint and posterior.n_draws == 3
    assert_allclose(draws.mean(axis=0), parts.mean, atol=tolerance)
    assert_allclose(draws.std(axis=0), parts.epistemic, atol=tolerance)
    other = small(**changes).fit(INPUTS, VALUES**2).posterior_fn()
    assert posterior.key == other.key and hash(posterior.key) == hash(other.key)
    x = ops.convert_to_tensor(FURTHER.astype("float32"))
    on_tensors = ops.convert_to_numpy(posterior.function(ops, single(other), x))
    assert_allclose(on_tensors, other(FURTHER), atol=1e-4)


@pytest.mark.slow
def test_posterior_has_exact_gradients(wave):
    """Of the frozen priors too."""
    assert_exact_gradients(wave.posterior_fn(), FAR[:5])


@pytest.mark.slow
def test_base_of_ones_own_learns():
    model = fit_small(build_base=unplanned, steps=300, learning_rate=0.02)
    assert np.abs(model.predict(INPUTS) - VALUES).max() < 0.1
    assert std_of(model, FURTHER).mean() > 2 * std_of(model, INPUTS).mean()
    again, loaded = clone(model).fit(INPUTS, VALUES), pickle.loads(pickle.dumps(model))
    for twin in (again, loaded, copy.deepcopy(model)):
        assert_array_equal(twin.predict(FURTHER), model.predict(FURTHER))


@pytest.mark.slow
def test_cross_validation():
    assert np.isfinite(cross_val_score(small(), INPUTS, VALUES, cv=2)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_members": 0}, "'n_members' parameter"),
        ({"prior_scale": -1.0}, "'prior_scale' parameter"),
        ({"bootstrap": 0.0}, "'bootstrap' parameter"),
        ({"bootstrap": 1.5}, "'bootstrap' parameter"),
        ({"query_points": QUERIES[:2]}, "one row for each of the 4"),
        ({"latent": 1, "decoder_units": (8, 8)}, "must be at least 2"),
        ({"build_base": lambda *n: None}, "functional Keras model with inputs u and y"),
    ],
    ids=range(7),
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        fit_small(**changes)


def test_bad_predictions_are_refused():
    model = fit_small()
    for n in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"`n_samples` must be a positive .* Got {n}"):
            model.sample_y(INPUTS, n)
        with pytest.raises(ValueError, match=f"`n_draws` must be a positive .* Got {n}"):
            model.posterior_fn(n)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(np.ones((2, 3)))


def test_a_member_alone_has_hardly_any_uncertainty():
    model = fit_small(n_members=1)
    assert (std_of(model, FURTHER) < 1e-6).all() and (std_of(model, FURTHER) > 0).all()
