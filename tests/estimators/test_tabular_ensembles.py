"""Ensembles of networks for tables: calibration, kinds of networks, losses, frames."""

import pickle
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.metrics import log_loss
from tiers import cases

import skuq
from skuq import training
from skuq.estimators.tabular._kinds import (
    Origin,
    averaging_factor,
    class_evidence,
    fit_class_mixture,
    mix_classes,
    weigh_members,
)
from skuq.files import dumps, loads
from skuq.networks import MLP, GaussianHead, TabularNetwork
from skuq.networks._head_normals import SquaredErrorHead
from skuq.predictive import CategoricalMixture
from skuq.predictive._calibration import UNCALIBRATED, Calibration
from skuq.training import Training

SMALL = {"n_layers": 1, "width": 32, "embedding_dim": 2}
MODULE = "skuq.estimators.tabular._kinds"
TINY = {"epochs": 6, "random_state": 0}
REGRESSOR = {**TINY, "n_members": 4, "network": TabularNetwork(**SMALL), "validation": 0.3}
REGRESSOR |= {"loss": "crps"}  # one kind of networks compiles faster than two
ONE_FORM = {**TINY, "network": TabularNetwork(n_layers=1, width=32, embedding="none")}
CLASSIFIER = {**TINY, "n_members": 6, "network": TabularNetwork(**SMALL)}
TWO = {"n_members": 2, "network": TabularNetwork(**SMALL), "epochs": 12, "random_state": 0}
ONE_KIND = {**TWO, "loss": "crps"}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    y = 30 * np.sin(X[:, 0]) + 10 * X[:, 1] + 5 * rng.normal(size=160) + 100
    return X, y


@pytest.fixture(scope="module")
def classes(table):
    X, y = table
    return X, np.where(y > 115, "high", np.where(y > 90, "middle", "low"))


@pytest.fixture(scope="module")
def pair(table):
    """The same ensemble, with and without calibration: of one output, and of two."""
    X, y = table
    fits = {}
    for n_outputs, Y in ((1, y), (2, np.column_stack([y, X[:, 2] - y / 10]))):
        for calibrate in (True, False):
            loss = {1: "gaussian-mixture", 2: "crps"}[n_outputs]
            model = skuq.TabularEnsembleRegressor(**REGRESSOR | {"loss": loss}, calibrate=calibrate)
            fits[n_outputs, calibrate] = model.fit(X, Y)
    return fits


@pytest.fixture(scope="module")
def classifier(classes):
    return skuq.TabularEnsembleClassifier(**CLASSIFIER).fit(*classes)


def calibration(model):
    found = model.fitted_.calibration
    return found.factor, found.floor, found.tail, found.shared


def with_shared_errors(model, factor, has_floors=True, noise=0.0):
    """The model with shared errors, whose noise is at most `noise` times that of training rows."""
    model = pickle.loads(pickle.dumps(model))
    found = model.fitted_.calibration
    most_noise = tuple(np.multiply(noise, found.most_noise).tolist()) if noise else ()
    other = replace(found, shared=factor, most_noise=most_noise)
    if not has_floors:
        other = replace(other, tail=tuple((scale, 0.0, share) for scale, _, share in found.tail))
    model.fitted_ = replace(model.fitted_, calibration=other)
    return model


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_fit_calibrates_by_a_factor_a_floor_and_a_tail(pair, table, n_outputs):
    X, _ = table
    X = 1.5 * X
    # Calibration leaves alone what is added away from the training rows.
    calibrated, plain = (pickle.loads(pickle.dumps(pair[n_outputs, c])) for c in (True, False))
    for model in calibrated, plain:
        model.fitted_ = replace(model.fitted_, far=None)
    assert calibration(plain) == (1.0, 0.0, (), 0.0) != calibration(calibrated)
    calibrated = with_shared_errors(calibrated, 0.0)
    found, raw = calibrated.predict_uncertainty(X), plain.predict_uncertainty(X)
    assert_allclose(found.mean, raw.mean, rtol=1e-9)
    factor, floor, tail, _ = calibration(calibrated)
    unit = calibrated.fitted_.targets.scaling.scale_
    unit = unit[0] if n_outputs == 1 else unit
    noise, model = (factor * raw.aleatoric) ** 2 + (floor * unit) ** 2, factor * raw.epistemic
    scales, floors, shares = np.transpose(tail)
    stretched = shares @ scales**2 * noise + shares @ floors**2 * unit**2
    assert_allclose(found.total**2, stretched + model**2, rtol=1e-9)
    # The floor of the last component is epistemic.
    moved = np.sqrt(found.epistemic**2 - model**2) / (shares[-1] * floors[-1] * unit)
    assert moved.min() > 0.5 and moved.max() < 1.001
    # Each component at each scale of the tail.
    assert len(tail) > 2 and not floors[:-1].any()
    n_components = {1: 3, 2: 1}[n_outputs] * len(tail)
    assert calibrated.predict_distribution(X).scale.shape[1] == n_components


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_shared_errors_leave_the_density_as_it_is(pair, table, n_outputs):
    X, _ = table
    none, some = (with_shared_errors(pair[n_outputs, True], c, False) for c in (0.0, 0.8))
    distribution, other = none.predict_distribution(X), some.predict_distribution(X)
    y = distribution.mean + np.linspace(-3, 3, 7).reshape(-1, *[1] * distribution.mean.ndim)
    for values in y * np.ones_like(distribution.mean):
        assert_allclose(other.log_prob(values), distribution.log_prob(values), rtol=1e-9)
    before, after = none.predict_uncertainty(X), some.predict_uncertainty(X)
    assert_allclose(after.total, before.total, rtol=1e-9)
    assert (after.epistemic > before.epistemic).all() and (after.aleatoric > 0).all()
    # Narrow normals can give less than the shared error to the epistemic part, and none gives more.
    unit = none.fitted_.calibration.factor
    moved = np.sqrt(after.epistemic**2 - before.epistemic**2)
    ratio = moved / np.sqrt(distribution._disagreement) * unit
    assert ratio.max() < 0.8 * (1 + 1e-9) and np.median(ratio) > 0.5


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_noise_beyond_that_of_training_rows_is_epistemic(pair, table, n_outputs):
    X, _ = table
    free, same, less = (
        with_shared_errors(pair[n_outputs, True], 0.0, False, noise) for noise in (0.0, 1.0, 0.3)
    )
    before, at_rows, after = (model.predict_uncertainty(X) for model in (free, same, less))
    # One row in a hundred has more noise.
    assert (at_rows.aleatoric < before.aleatoric * (1 - 1e-6)).mean() < 0.05
    for parts in at_rows, after:
        assert_allclose(parts.mean, before.mean, rtol=1e-9)
        assert_allclose(parts.total, before.total, rtol=1e-9)
    found = less.fitted_.calibration
    scale, _, share = np.transpose(found.tail)
    stretch = share @ scale**2 * np.square(less.fitted_.targets.scaling.scale_)
    limit = np.reshape(np.multiply(found.most_noise, stretch), before.mean.shape[1:])
    excess = np.maximum(1 - limit / before.aleatoric**2, 0)
    assert (excess > 0).mean() > 0.3
    # The mean epistemic part of a member's normals counts, so that some of the excess stays noise.
    moved = 1 - (after.aleatoric / before.aleatoric) ** 2
    assert_array_equal(moved > 1e-9, excess > 1e-9)
    assert (moved <= excess + 1e-9).all() and (moved >= 0.4 * excess - 1e-9).all()
    y = before.mean + np.linspace(-2, 2, len(X)).reshape(-1, *[1] * (n_outputs - 1)) * before.total
    density = [model.predict_distribution(X).log_prob(y) for model in (free, less)]
    within = (excess == 0).reshape(len(X), -1).all(axis=1)
    assert_allclose(density[1][within], density[0][within], rtol=1e-9)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_fit_calibrates_other_forms_of_an_ensemble_alike(pair, table, n_outputs):
    X, _ = table
    model = with_shared_errors(pair[n_outputs, True], 0.8, noise=0.5)
    plain = pair[n_outputs, False]
    parts, raw = model.predict_uncertainty(X), plain.predict_uncertainty(X)
    outputs = model.to_keras().predict_on_batch(X)
    for name, values in zip(("mean", "aleatoric", "epistemic", "total"), parts):
        largest = abs(values).max()
        assert_allclose(outputs[name], values, rtol=1e-4, atol=2e-6 * largest)
    draws = model.posterior_fn(32, random_state=0)(X)
    assert_allclose(draws.mean(axis=0), parts.mean, rtol=1e-9)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-6, atol=1e-9)
    assert abs(draws.std(axis=0) / raw.epistemic - 1).min() > 1e-4
    for copy in (pickle.loads(pickle.dumps(model)), loads(dumps(model))):
        assert calibration(copy) == calibration(model)
        for one, other in zip(copy.predict_uncertainty(X), parts):
            assert_array_equal(one, other)


def test_fit_calibrates_on_the_rows_that_members_have_not_seen(table, monkeypatch):
    X, y = table
    seen = []

    def fit(loc, scale, probability, members, unseen, y, weight):
        seen.append(((probability * loc).sum(axis=1), members, unseen, y, weight))
        return Calibration(2.0, 0.5, 0.7, tail=((1.0, 0.0, 0.9), (3.0, 0.2, 0.1)))

    monkeypatch.setattr(f"{MODULE}.fit_out_of_bag", fit)
    weigh = f"{MODULE.removesuffix('_kinds')}_tabular_ensemble.weigh_members"
    monkeypatch.setattr(weigh, lambda *_: np.array([7, 3, 1, 1]) / 12)
    weight = np.linspace(1, 3, 160)
    model = skuq.TabularEnsembleRegressor(**REGRESSOR).fit(X, y, weight)
    assert calibration(model) == (2.0, 0.5, ((1.0, 0.0, 0.9), (3.0, 0.2, 0.1)), 0.7)
    ((loc, members, unseen, rows, own_weight),) = seen
    assert_array_equal(members, model.weights_)
    assert_array_equal(unseen.sum(axis=1), 48)
    assert unseen.shape == (4, len(rows)) and unseen.any(axis=0).all()
    for mean, is_unseen, member in zip(loc, unseen, model.members_):
        expected = np.sort(model.fitted_.targets.head.moments(member.held_out)[0][:, 0])
        assert_allclose(np.sort(mean[is_unseen, 0]), expected, rtol=1e-3, atol=1e-5)
    # Rows count as the members that predict them do: those of the first one seven times as much.
    given = model.fitted_.targets.transform(y[:, None])[:, 0]
    expected = weight[abs(rows - given).argmin(axis=1)] * (members @ unseen) / unseen.sum(axis=0)
    assert_allclose(own_weight / own_weight.sum(), expected / expected.sum(), rtol=1e-5)
    # Of many rows there is a sample, which repeats.
    monkeypatch.setattr(f"{MODULE}.tuned.MOST_CALIBRATION_ROWS", 60)
    for _ in range(2):
        skuq.TabularEnsembleRegressor(**REGRESSOR).fit(X, y, weight)
    assert len(seen[1][3]) == 60
    assert_array_equal(seen[1][3], seen[2][3])


def test_fit_weighs_both_trainings_of_mixtures_by_stacking(table, monkeypatch):
    X, y = table
    seen = []

    def weigh(log_likelihood, weight):
        seen.append(log_likelihood)
        return np.array([0.95, 0.05])

    def noted(jobs, data, **settings):
        given.extend(jobs)
        return train(jobs, data, **settings)

    train, given = training.train, []
    monkeypatch.setattr(training, "train", noted)
    monkeypatch.setattr(f"{MODULE}.stacking_weights", weigh)
    settings = REGRESSOR | {"loss": "gaussian-mixture", "calibrate": False}
    model = skuq.TabularEnsembleRegressor(**settings).fit(X, y, np.linspace(1, 2, 160))
    # One program trains both kinds.
    (job,) = given
    assert [dict(recipe.loss_settings)["crps"] for recipe in job.recipes] == [1, 1, 0, 0]
    assert len({member.best_epoch for member in model.members_}) == 1
    # Half of the way, of 96 rows beside 100: 0.72. Errors of members are equal but for chance.
    assert_allclose(model.weights_, np.array([6, 6, 2, 2]) / 16)
    # The log likelihood that both kinds give to their common held-out rows.
    head, ((crps, nll),) = model.fitted_.targets.head, seen
    assert crps.shape == nll.shape == (96,)
    y = model.fitted_.targets.transform(y[:, None])
    for kind, values in enumerate((crps, nll)):
        held_out = model.members_[2 * kind].held_out.astype(float)
        every = head.log_likelihood(y[:, None], held_out)  # of all rows' y by each prediction
        assert (np.isclose(every, values[:48], atol=1e-5).any(axis=0)).all()


@cases(
    ("errors", "n_rows", "expected"),
    ([1, 1, 1, 1], 100, [4, 4, 4, 4]),
    ([1, 1, 1, 4], 100, [5, 5, 5, 1]),  # 16 / 49, and one step at least
    ([1, 1, 1, 4], 7, [4, 4, 4, 4]),  # of 28 rows in all
    ([0, 0, 0, 0], 100, [4, 4, 4, 4]),
    # Half of the members have a step at least, which the others give up: 7.9 are 7.
    ([1, 9] * 10, 100, [7, 1] * 10),
)
@pytest.mark.parametrize("head", [GaussianHead(), SquaredErrorHead()])
def test_members_weigh_inversely_to_their_squared_errors(errors, n_rows, expected, head, rng):
    y = rng.normal(size=(len(errors) * n_rows, 1))
    rows = np.split(np.arange(len(y)), len(errors))
    members = []
    for k, error in zip(rows, errors):
        normal = norm.ppf((np.arange(n_rows) + 0.5) / n_rows)[:, None]
        raw = np.repeat(y[k] + error * normal, head.n_raw, axis=1)
        members.append(SimpleNamespace(held_out=raw))
    data = SimpleNamespace(y=y, weight=np.ones(len(y)), y_valid=y[:0], weight_valid=y[:0, 0])
    task = SimpleNamespace(data=data, targets=SimpleNamespace(head=head))
    origins = [Origin(0, k, (None, part)) for k, part in enumerate(rows)]
    assert_allclose(weigh_members(task, members, origins, 1) * 4 * len(errors), expected)


GROUPS = np.arange(160) % 20


@cases(
    ("settings", "fit", "reason"),
    ({"validation": None}, {}, "validation=None leaves"),
    ({}, {"groups": GROUPS}, "with `groups`"),
    ({}, {"validation_data": True}, "with `validation_data`"),
    ({"loss": "mse"}, {}, 'loss="mse" trains no normals'),
)
def test_fit_calibrates_only_where_it_can(table, settings, fit, reason):
    X, y = table
    fit = {"validation_data": (X[:40], y[:40])} if "validation_data" in fit else fit
    model = skuq.TabularEnsembleRegressor(**{**REGRESSOR, "epochs": 2, **settings}).fit(X, y, **fit)
    assert calibration(model) == (1.0, 0.0, (), 0.0)
    assert np.isfinite(model.predict(X[:5], return_std=True)).all()
    with pytest.raises(ValueError, match=f"`calibrate=True` .*{reason}"):
        model.set_params(calibrate=True).fit(X, y, **fit)


def kinds_of(model):
    """Number of each member's kind, in their order."""
    stripped = [re.sub(r"_\d+", "", member.network) for member in model.members_]
    return np.array([list(dict.fromkeys(stripped)).index(network) for network in stripped])


def test_fit_weighs_kinds_on_rows_out_of_the_bag(classes, monkeypatch):
    """Every row, predicted by the member of each kind that did not train on it."""
    given, mixed = [], []

    def noted(*arrays, **further):
        given.append((arrays, further))
        return fit_class_mixture(*arrays, **further)

    def noted_parts(*parts):
        mixed.append(parts)
        return mix_classes(*parts)

    monkeypatch.setattr(f"{MODULE}.fit_class_mixture", noted)
    monkeypatch.setattr("skuq.estimators.tabular._tabular_ensemble.mix_classes", noted_parts)
    monkeypatch.setattr("skuq.ensembles._stacking._DROPPED", 0)
    X, y = classes
    model = skuq.TabularEnsembleClassifier(**{**ONE_FORM, "n_members": 10}).fit(X, y)
    ((arrays, further),) = given
    logits, codes, weight, shares = arrays
    assert logits.shape == (2, 160, 3) and (weight > 0).all()
    assert_array_equal(model.classes_[codes], y)
    shares_of_kinds, alone = fit_class_mixture(*arrays, **further)
    ((task, members, origins),) = mixed
    evidence = pytest.approx(class_evidence(task.data.x.astype(float), codes))
    assert further == {"evidence": evidence}
    # A single member of each kind predicts new rows as it does those held out.
    _, single = mix_classes(task, members[::5], origins[::5])
    assert single == fit_class_mixture(*given[1][0], **given[1][1])[1]
    # Rows of a group may be alike, and are no evidence of what holds for other groups.
    mix_classes(replace(task, groups=np.arange(160) // 4), members, origins)
    assert given[2][1]["evidence"] is None
    # Rows of nearly no weight are no evidence either.
    light = replace(task.data, weight=np.where(np.arange(160) < 40, 1, 1e-9))
    mix_classes(replace(task, data=light), members, origins)
    few = class_evidence(task.data.x[:40].astype(float), codes[:40])
    assert given[3][1]["evidence"] == pytest.approx(few)
    # With more rows the factor of the temperature is measured on the rows held out.
    monkeypatch.setattr(f"{MODULE}.tuned.FEW_ROWS_OF_CLASSES", 100)
    _, averaged = mix_classes(task, members, origins)
    whole = fit_class_mixture(*given[4][0], **given[4][1])[1].temperature
    factor = averaging_factor(logits / whole, weight, 5)
    assert averaged.temperature == pytest.approx(whole * factor)
    assert_allclose(model.weights_, np.repeat(shares_of_kinds, 5) / 5)
    # All members of a kind predict later, so that their average is less sure.
    found = model.fitted_.calibration
    assert found == replace(alone, temperature=0.9 * alone.temperature)
    assert_allclose(np.ptp(found.constant / shares), 0, atol=1e-12)
    # Each kind is judged on the rows held out from its members.
    for kind in range(2):
        raw = np.concatenate([member.held_out for member in model.members_[5 * kind :][:5]])
        found = np.sort(softmax(raw, axis=1), axis=0)
        assert_allclose(found, np.sort(softmax(logits[kind], axis=1), axis=0), atol=1e-5)


def test_fit_calibrates_the_mixture_of_classes(classes):
    X, y = classes
    model = skuq.TabularEnsembleClassifier(**ONE_FORM, n_members=3).fit(X, y)
    found, calibrated = model.fitted_.calibration, model.predict_proba(X)
    raw = model.fitted_.raw(model.fitted_.inputs.transform(X))
    mixed = np.average(softmax(raw / found.temperature, axis=-1), axis=0, weights=model.weights_)
    constant = np.array(found.constant)
    assert_allclose(calibrated, (1 - constant.sum()) * mixed + constant)
    assert (calibrated >= constant).all() and (constant > 0).all()
    assert_array_equal(loads(dumps(model)).predict_proba(X), calibrated)
    assert_allclose(np.asarray(model.to_keras()(X)["proba"]), calibrated, atol=1e-5)


def test_fit_to_few_noisy_rows_is_no_surer_than_the_classes_shares():
    rng = np.random.default_rng(0)
    X, y, X_new = rng.normal(size=(12, 4)), np.arange(12) % 2, rng.normal(size=(400, 4))
    y_new = rng.integers(2, size=400)
    model = skuq.TabularEnsembleClassifier(**ONE_FORM, n_members=10).fit(X, y)
    assert log_loss(y_new, model.predict_proba(X_new)) < 1.1 * np.log(2)


def test_logistic_regression_learns_classes_that_small_differences_of_columns_tell(
    monkeypatch, rng
):
    monkeypatch.setattr("skuq.estimators.methods._one_architecture.train_jobs", lambda *_: [])
    # The difference of two columns is a hundredth of them: its weights are penalised most.
    level, difference = rng.normal(size=(2, 900))
    X, y = np.c_[level, level + 0.01 * difference], 3 * difference > rng.logistic(size=900)
    classifier = skuq.TabularEnsembleClassifier(random_state=0).fit(X[:300], y[:300])
    assert log_loss(y[300:], classifier.predict_proba(X[300:])) < 0.5


@cases(
    ("network", "kinds"),
    ({**SMALL, "frequency_scale": 1.0}, [0, 1, 0, 2]),
    ({"n_layers": 1, "width": 32, "embedding": "none"}, [0, 0]),
    (None, [0, 0, 1, 0, 1, 2]),
    (None, [0, 1]),
    ({"embedding": "periodic"}, [0, 0]),
    (None, [0]),
    quick=3,
)
def test_fit_trains_members_of_each_kind_in_turn(classes, monkeypatch, network, kinds):
    monkeypatch.setattr("skuq.ensembles._stacking._DROPPED", 0)
    X, y = classes
    network = {} if network is None else {"network": TabularNetwork(**network)}
    settings = {**TINY, **network, "epochs": 2, "n_members": len(kinds)}
    model = skuq.TabularEnsembleClassifier(**settings).fit(X, y)
    assert kinds_of(model).tolist() == kinds


def test_fit_gives_members_of_all_kinds_the_same_splits(classes, plan):
    """Also where kinds have different numbers of members."""
    jobs, _ = plan(skuq.TabularEnsembleClassifier(**ONE_FORM, n_members=3), *classes)
    given = [job.splits for job in jobs]
    assert [len(splits) for splits in given] == [2, 1]
    for splits in given[1:]:
        assert_array_equal(splits[0][1], given[0][0][1])
    assert set(given[0][0][1]) != set(given[0][1][1])


@pytest.mark.parametrize("n_rows", [160, 2100])
def test_fit_trains_no_kind_of_networks_twice(plan, n_rows):
    """Kinds differ in how they embed numbers, which tables of categories do not have."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"town": rng.choice(list("abcdefghijklm"), n_rows)})
    X["sold"], y = rng.choice(["no", "yes"], n_rows), np.arange(n_rows) % 2
    for size, n_kinds in ((None, (2, 2)), (np.arange(n_rows), (4, 3))):
        jobs, _ = plan(skuq.TabularEnsembleClassifier(), X.assign(size=size).dropna(axis=1), y)
        assert len(jobs) == n_kinds[n_rows > 2000]
        assert len({(job.network, str(job.recipe)) for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    ("n_lost", "weights"), [(2, [0.3125, 0.3125, 0.1875, 0.1875]), (1, [0.25, 0.25, 0.3, 0.1, 0.1])]
)
def test_fit_leaves_out_members_that_diverge(classes, monkeypatch, n_lost, weights):
    """A kind without members has no weight; one member that diverges leaves its kind's weight."""
    train = training.train

    def diverging(jobs, data, **settings):
        found = []
        for job in jobs:
            members = train(job, data, **settings)
            if "Embedding" not in job.network:
                members[:n_lost] = [FloatingPointError("diverged")] * n_lost
            found += members
        return found

    monkeypatch.setattr(training, "train", diverging)
    embeddings = ({"frequency_scale": 0.3}, {"embedding": "none"}, {"frequency_scale": 3.0})
    kinds = [{**embedding, **SMALL} for embedding in embeddings]
    monkeypatch.setattr(
        "skuq.estimators.tabular._tabular_ensemble.list_kinds", lambda *_: (kinds, 6)
    )

    def weigh(logits, *_, **__):
        weights = np.array([0.5, 0.3, 0.2])[: len(logits)]
        return weights / weights.sum(), UNCALIBRATED

    monkeypatch.setattr(f"{MODULE}.fit_class_mixture", weigh)
    monkeypatch.setattr("skuq.ensembles._stacking._DROPPED", 0)
    with pytest.warns(UserWarning, match=f"{n_lost} of 6 networks diverged"):
        model = skuq.TabularEnsembleClassifier(**{**CLASSIFIER, "epochs": 2}).fit(*classes)
    expected = [True, True, False, True, True]
    embedded = ["Embedding" in member.network for member in model.members_]
    assert embedded == [kept for kept in expected if kept or n_lost == 1]
    assert_allclose(model.weights_, weights)  # equal within a kind


@pytest.mark.parametrize(("validation", "n"), [("auto", 10), (0.3, 48)])
def test_fit_validates_on_some_rows_of_large_tables(table, monkeypatch, plan, validation, n):
    model = skuq.TabularEnsembleRegressor(**{**REGRESSOR, "n_members": 1, "validation": validation})
    ((_, valid),) = plan(model, *table)[0][0].splits
    assert len(valid) == (16 if validation == "auto" else 48)
    monkeypatch.setattr(f"{MODULE}.tuned.MOST_VALIDATION_ROWS", 10)  # instead of 10,000
    ((_, valid),) = plan(model, *table)[0][0].splits
    assert len(valid) == n


def test_wide_tables_of_low_rank_start_from_ridge_regression():
    rng = np.random.default_rng(0)
    heights, k = rng.normal(size=(90, 6)), np.arange(1, 7)
    waves = np.cos(np.pi * np.outer(k, np.linspace(0, 1, 50)))
    X, y = (heights / k**2) @ waves, heights @ k**1.0
    X = np.column_stack([X, np.arange(90) % 12]).astype(object)
    X[:, -1] = [f"site {site:.0f}" for site in X[:, -1]]  # codes, which have no linear part
    settings = {"n_members": 1, "epochs": 1, "learning_rate": 1e-9, "validation": None}
    model = skuq.TabularEnsembleRegressor(**{**ONE_FORM, "loss": "crps", **settings})
    assert model.fit(X[:40], y[:40]).score(X[40:], y[40:]) > 0.99
    assert loads(dumps(model)).score(X[40:], y[40:]) > 0.99
    # Among independent columns it finds those that count by itself.
    model.fit(rng.normal(size=(40, 50)), y[:40])
    assert "Unclip" not in model.members_[0].network


def test_tables_that_are_linear_but_for_noise_start_from_ridge_regression(rng):
    X, new = rng.normal(size=(2, 80, 5))
    slopes, noise = np.arange(1.0, 6), 0.3 * rng.normal(size=80)
    settings = {"epochs": 1, "learning_rate": 1e-9, "validation": None, "random_state": 0}
    model = skuq.TabularEnsembleRegressor(1, loss="crps", **settings)
    # Each output has its own linear part, or none.
    model.fit(X, np.column_stack([1e6 + X @ slopes + noise, np.square(X[:, 0])]))
    means = model.predict(new)
    assert np.std(means[:, 0] - new @ slopes) < 0.2
    assert np.ptp(means[:, 1]) < 1e-2
    # Residuals are targets of unit variance, so that no floor makes narrow distributions wide.
    scale = model.fitted_.targets.scaling.scale_
    assert_allclose(scale, [noise.std(), np.square(X[:, 0]).std()], rtol=0.1)
    assert model.fit(X, X @ slopes).score(new, new @ slopes) > 0.99999
    assert_allclose(model.fitted_.targets.scaling.scale_, 1e-4 * np.std(X @ slopes), rtol=1e-5)
    # Beyond ten interquartile ranges the linear part stays as it is.
    far, farther = model.predict([[1e3, 0, 0, 0, 0], [1e6, 0, 0, 0, 0]])
    assert_allclose(far, farther, rtol=1e-3)
    # Networks learn what is curved, though it is a tenth of y, and do not follow lines to far rows.
    curved = (X, X @ slopes + np.square(X[:, 4])), (X**7, X**7 @ slopes)
    for columns, y in (*curved, (np.ones_like(X), noise)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # of columns that are constant
            assert "Unclip" not in model.fit(columns, y).members_[0].network


@pytest.mark.parametrize("transform", ["yeo-johnson", "quantile"])
def test_a_table_that_may_be_linear_can_have_a_transformed_y(transform):
    X, y = (part[:90] for part in load_diabetes(return_X_y=True))
    model = skuq.TabularEnsembleRegressor(2, epochs=2, target_transform=transform, random_state=0)
    assert np.isfinite(model.fit(X, y).predict(X)).all()


def test_networks_show_whether_a_noisy_table_is_linear(rng, monkeypatch):
    """Noise hides by how much ridge regression is better than kernels."""
    X = rng.normal(size=(90, 5))
    y, new, trained = X @ np.arange(1.0, 6) + 3 * rng.normal(size=90), X[:50], []
    train = training.train
    monkeypatch.setattr(training, "train", lambda *a, **k: trained.append(1) or train(*a, **k))
    model = skuq.TabularEnsembleRegressor(2, epochs=1, learning_rate=1e-9, random_state=0)
    # Untrained networks err more than ridge regression; without held-out rows nothing shows it.
    for settings, n_trained, is_linear in (
        ({}, 2, True),
        ({"validation": None}, 1, False),
        ({"max_time": 1e-3}, 1, False),
    ):
        trained.clear()
        fitted = clone(model).set_params(**settings).fit(X, y)
        assert len(trained) == n_trained
        assert ["Unclip" in m.network for m in fitted.members_] == [is_linear] * 2
    assert np.corrcoef(clone(model).fit(X, y).predict(new), new @ np.arange(1.0, 6))[0, 1] > 0.97

    # A training that lost members is not kept, however little the others err.
    def losing(*given, **settings):
        members = train(*given, **settings)
        is_linear = "Unclip" in members[0].network
        return [FloatingPointError("diverged"), *members[1:]] if is_linear else members

    monkeypatch.setattr(training, "train", losing)
    assert len(clone(model).fit(X, y).members_) == 2
    # Networks that err less without the linear part are kept.
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(f"{MODULE}._error", lambda task, *_: float(task.linear is not None))
    assert "Unclip" not in clone(model).fit(X, y).members_[0].network


def test_the_limit_counts_what_comes_before_training(table, monkeypatch):
    """And there may be time for the first kind only."""
    X, y, deadlines = table[0], table[1] > 100, []

    def shorten(jobs, data, deadline):
        deadlines.append(deadline)
        return jobs[:1]

    times = iter([100.0, 107.0])  # at which reading and training begin
    clocks = {"_task": lambda: next(times), "methods._one_architecture": lambda: 107.0}
    for module, clock in clocks.items():
        monkeypatch.setattr(f"skuq.estimators.{module}.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("skuq.estimators.methods._one_architecture.shorten", shorten)
    # Without validation no kind is left out for its weight.
    model = skuq.TabularEnsembleClassifier(validation=None, max_time=60, random_state=0).fit(X, y)
    assert deadlines == [100 + 60 - 1]  # a second is kept for what follows
    networks = [member for member in model.members_ if member.n_weights > 100]
    assert len(networks) == 5 and len({member.network for member in networks}) == 1
    assert np.isfinite(model.predict_proba(X)).all()


def test_predict_proba_is_at_most_one(classifier, classes, monkeypatch):
    """Weights of members may sum to a little more than 1."""
    sure = CategoricalMixture(np.tile([1.0, 0.0, 0.0], (3, 160, 1)), np.array([0.25, 0.25, 0.5]))
    object.__setattr__(sure, "weights", sure.weights * (1 + 4e-16))
    assert sure.mean.max() > 1
    monkeypatch.setattr(type(classifier.fitted_), "distribution_of_encoded", lambda *_: sure)
    assert classifier.predict_proba(classes[0]).max() == 1


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 160
    columns = {"size": rng.normal(size=n), "town": rng.choice([f"town {k}" for k in range(20)], n)}
    X = pd.DataFrame({**columns, "kind": rng.choice(["flat", "house", None], n)})
    X.loc[::7, "size"] = np.nan
    y = X["size"].fillna(0) + (X["kind"] == "house") + 0.1 * rng.normal(size=n)
    return X, y.to_numpy()


@cases(
    ("loss", "is_nested"),
    ("mse", False),
    ("gaussian-mixture", True),
    ("crps", True),  # calibrated: the normal and its tail
    ("nll", True),
    quick=3,
)
def test_fit_with_every_loss_gives_the_whole_prediction(frame, loss, is_nested):
    X, y = frame
    model = skuq.TabularEnsembleRegressor(**TWO, loss=loss).fit(X, y)
    distribution = model.predict_distribution(X[:9])
    assert (distribution.probabilities is not None) == is_nested
    assert np.isfinite(model.log_prob(X[:9], y[:9])).all()
    draws = model.posterior_fn(n_draws=8)
    assert draws.n_draws >= 2


def test_fit_learns_more_than_the_mean(frame):
    X, y = frame
    model = skuq.TabularEnsembleRegressor(**{**ONE_KIND, "epochs": 128}).fit(X[:120], y[:120])
    # Inputs are scaled robustly, smoothly bounded by 3.
    inputs, far = model.fitted_.inputs, X[:2].assign(size=[1e9, -1e9])
    assert_allclose(inputs.transform(inputs.encode(far))[:, 0], [3, -3])
    error = np.mean((model.predict(X[120:]) - y[120:]) ** 2)
    assert error < 0.3 * np.var(y[120:])
    # Columns of codes are embedded, which other networks do not take.
    assert len(model.preprocessor_.code_columns_) == 1
    assert '"CategoryEmbedding"' in model.members_[0].network
    assert np.isfinite(model.predict(X[:3].assign(town="elsewhere"))).all()
    plain = skuq.DeepEnsembleRegressor(1, network=MLP(4), epochs=1, random_state=0).fit(X, y)
    assert not plain.preprocessor_.code_columns_


def test_fit_takes_the_recipe_of_the_network(frame, plan):
    X, y = frame
    for model, targets, rate, drops in (
        (skuq.TabularEnsembleRegressor(**ONE_KIND), y, 0.1, False),
        (skuq.TabularEnsembleRegressor(**ONE_KIND, learning_rate=0.02), y, 0.02, False),
        (skuq.DeepEnsembleRegressor(1, network=MLP(4)), y, 0.01, False),
        (skuq.TabularEnsembleClassifier(**TWO), y > 0, 0.1, True),
    ):
        for job in plan(model, X, targets)[0]:
            assert {recipe.learning_rate for recipe in job.recipes} == {rate}
            assert ("Dropout" in job.network) == drops


@cases(
    ("settings", "message"),
    ({"network__width": 48}, "width"),
    ({"network__n_layers": 9}, "n_layers"),
    ({"network__embedding": "none"}, "`embedding_dim` has no effect with embedding='none'"),
    ({"network": TabularNetwork(embedding="piecewise-linear", frequency_scale=1.0)}, "`freq"),
    ({"network": "tabulr"}, "network"),
    ({"network": lambda shape, n: None}, "network"),
    ({"loss": "auto"}, "loss"),
    ({"max_time": -1.0}, "max_time"),
    ({"training": Training(steps=3)}, "`training` must only have"),
    ({"calibrate": True, "loss": "mse"}, "`calibrate=True` is not possible: loss="),
    ({"calibrate": True, "validation": None}, "`calibrate=True` is not .*: validation=None"),
)
def test_fit_refuses(frame, settings, message):
    model = clone(skuq.TabularEnsembleRegressor(**TWO))  # not to change its network for others
    with pytest.raises(ValueError, match=message):
        model.set_params(**settings).fit(*frame)


def test_classifiers_embed_recurring_values_that_name_classes():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=800), 7.0 * rng.integers(0, 30, 800)])
    X[X[:, 1] > 98, 1] += 9_996  # not a grid
    y = (X[:, 1] % 2).astype(int)
    model = skuq.TabularEnsembleClassifier(**ONE_FORM).fit(X, y)
    assert model.preprocessor_.code_columns_ == (2,)
    new = np.append(X, [[0, 3.5], [0, -1e9]], axis=0)
    proba = model.predict_proba(new)
    assert log_loss(y, proba[:-2]) < 0.1
    assert_array_equal(loads(dumps(model)).predict_proba(new), proba)
    outputs = model.to_keras()(model.preprocessor_.transform(new))
    assert_allclose(np.asarray(outputs["proba"]), proba, rtol=1e-4, atol=1e-6)
    # Rows of a group are alike, and values of a group alone would name it.
    grouped = clone(model).fit(X, y, groups=np.arange(800) % 20)
    regressor = skuq.TabularEnsembleRegressor(n_members=1, **ONE_FORM).fit(X, y)
    assert not any(fit.preprocessor_.code_columns_ for fit in (grouped, regressor))
