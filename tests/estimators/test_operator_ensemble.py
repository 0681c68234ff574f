"""Ensembles of operator networks: members, priors, bootstrap, and the predictions they share."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import (
    FAR,
    FURTHER,
    INPUTS,
    QUERIES,
    SMALL,
    VALUES,
    WAVE_SETTINGS,
    build,
    first_draw,
    inputs,
    predict_draws,
    std_of,
    waves,
)
from tiers import slow_after

import skuq.training
from skuq import OperatorEnsembleRegressor
from skuq.backend import keras

layers = keras.layers


def small(**changes):
    settings = {"n_members": 3, **SMALL, "query_points": QUERIES, **changes}
    return build(OperatorEnsembleRegressor, **settings)


def fit_small(**changes):
    return small(**changes).fit(INPUTS, VALUES)


def wave_model(**changes):
    return build(
        OperatorEnsembleRegressor,
        **{**WAVE_SETTINGS, "noise_std": 0.0, "n_members": 4, "training__steps": 400, **changes},
    )


@pytest.fixture(scope="module")
def wave():
    u = inputs(40)
    return wave_model().fit(u, waves(u))


# Members ----------------------------------------------------------------------


def test_predict_gives_moments_of_the_members(wave):
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
def test_fit_trains_members_as_if_alone(monkeypatch, batch):
    calls = []

    def spy(*arguments, **options):
        calls.append((arguments, options))
        return train(*arguments, **options)

    train = skuq.training.train
    monkeypatch.setattr(skuq.training, "train", spy)
    model = fit_small(training__steps=40, **batch)
    (job, data), _ = calls[0]
    rows = model.fitted_.inputs.transform(INPUTS)
    if not batch:
        for seed, member in zip(job.seeds, model.members_):
            (alone,) = train(replace(job, recipes=job.recipe, seeds=[seed], stacked=False), data)
            assert_allclose(predict_draws(alone, rows), predict_draws(member, rows), atol=1e-4)
    fewer = fit_small(training__steps=40, n_members=2, **batch)
    for one, other in zip(fewer.members_, model.members_):
        assert_allclose(predict_draws(one, rows), predict_draws(other, rows), atol=1e-4)


def test_fit_freezes_priors_of_each_member_alone():
    model = fit_small(training__steps=40)
    for member in model.members_:
        weights, prior = first_draw(member.network, member.seed)
        assert len(prior) == len(member.state)
        for before, after in zip(prior, member.state):
            assert_array_equal(before, after)
        assert abs(member.weights - weights).max() > 1e-3
    kernels = [member.state[0] for member in model.members_]
    assert abs(kernels[0] - kernels[1]).max() > 0.01


def test_fit_without_prior_freezes_nothing():
    model = fit_small(prior_scale=0.0)
    assert all(len(member.state) == 0 for member in model.members_)
    assert (std_of(model, INPUTS) > 0).all()
    assert model.n_parameters_ == 3 * len(model.members_[0].weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch",
    slow_after(1, [{"batch_size": 2, "batch_over": "functions"}, {}, {"batch_size": 5}]),
    ids=str,
)
def test_fit_with_subsample_gives_members_whole_functions_of_their_own(monkeypatch, batch):
    caught = []

    def spy(job, data, **options):
        caught.append((job.splits, job.permutations))
        return train(job, data, **options)

    train = skuq.training.train
    monkeypatch.setattr(skuq.training, "train", spy)
    model = fit_small(subsample=0.5, **batch)
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


def test_fit_leaves_wild_members_out(monkeypatch):
    train = skuq.training.train

    def with_a_wild_one(*arguments, **options):
        members = train(*arguments, **options)
        return [FloatingPointError("diverged"), *members[1:]]

    monkeypatch.setattr(skuq.training, "train", with_a_wild_one)
    with pytest.warns(UserWarning, match="1 of 3 networks diverged"):
        model = fit_small()
    assert len(model.members_) == 2 and model.posterior_fn().n_draws == 2
    assert np.isfinite(std_of(model, FURTHER)).all()


@pytest.mark.parametrize(
    ("changes", "largest"), [({"n_members": 1}, 1e-6), ({"subsample": 0.01}, np.inf)], ids=str
)
def test_predict_is_never_certain(changes, largest):
    """One member has hardly any uncertainty; the smallest subsample is one function."""
    std = std_of(fit_small(**changes), FURTHER)
    assert (std > 0).all() and (std < largest).all()
