"""Ensembles of networks for tables: calibration, kinds of networks, a limit of time."""

import pickle
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiers import slow_after

from skuq import (
    DeepEnsembleRegressor,
    TabularEnsembleClassifier,
    TabularEnsembleRegressor,
    training,
)
from skuq.ensembles import stacking_weights
from skuq.networks import TabularNetwork
from skuq.persistence import dumps, loads
from skuq.predictive import CategoricalMixture
from skuq.predictive._calibration import fit_out_of_bag_scale

SMALL = {"n_layers": 1, "width": 32, "embedding_dim": 2}
MODULE = "skuq.estimators._ensembles._tabular"
TINY = {"epochs": 6, "random_state": 0}
REGRESSOR = {**TINY, "n_members": 4, "network": TabularNetwork(**SMALL), "validation": 0.3}


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
            model = TabularEnsembleRegressor(**REGRESSOR, calibrate=calibrate)
            fits[n_outputs, calibrate] = model.fit(X, Y)
    return fits


@pytest.fixture(scope="module")
def classifier(classes):
    return TabularEnsembleClassifier(**TINY, n_members=6).fit(*classes)


def calibration(model):
    targets = model.fitted_.targets
    return targets.std_factor, targets.noise_floor


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_calibration_scales_the_total_and_adds_a_floor(pair, table, n_outputs):
    X, _ = table
    X = 1.5 * X
    calibrated, plain = pair[n_outputs, True], pair[n_outputs, False]
    assert calibrated.fitted_.targets.is_calibrated and not plain.fitted_.targets.is_calibrated
    assert calibration(plain) == (1.0, 0.0)
    found, raw = calibrated.predict_uncertainty(X), plain.predict_uncertainty(X)
    assert_allclose(found.total**2, found.aleatoric**2 + found.epistemic**2)
    assert_allclose(found.mean, raw.mean, rtol=1e-9)
    factor, floor = calibration(calibrated)
    floor = floor * calibrated.fitted_.targets.scaling.scale_
    floor = floor[0] if n_outputs == 1 else floor
    assert_allclose(found.epistemic, factor * raw.epistemic, rtol=1e-9)
    assert_allclose(found.aleatoric**2, (factor * raw.aleatoric) ** 2 + floor**2)
    assert_allclose(found.total**2, (factor * raw.total) ** 2 + floor**2)


def test_any_factor_and_floor_do_what_they_say(pair, table):
    X, _ = table
    plain = pair[2, False]
    raw = plain.predict_uncertainty(X)
    model = pickle.loads(pickle.dumps(plain))
    targets = model.fitted_.targets.with_calibration(1.7, 0.4)
    model.fitted_ = replace(model.fitted_, targets=targets)
    found = model.predict_uncertainty(X)
    floor = 0.4 * targets.scaling.scale_
    assert_allclose(found.mean, raw.mean)
    assert_allclose(found.total**2, 1.7**2 * raw.total**2 + floor**2)
    assert_allclose(found.epistemic, 1.7 * raw.epistemic)
    assert calibration(plain) == (1.0, 0.0)  # a copy


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_other_forms_of_a_calibrated_ensemble_agree(pair, table, n_outputs):
    X, _ = table
    model, plain = pair[n_outputs, True], pair[n_outputs, False]
    parts, raw = model.predict_uncertainty(X), plain.predict_uncertainty(X)
    outputs = model.to_keras().predict_on_batch(X)
    for name, values in parts._asdict().items():
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


def test_calibration_is_fitted_on_the_rows_that_members_have_not_seen(pair, table, monkeypatch):
    X, y = table
    seen = []

    def fit(loc, scale, unseen, y, weight):
        seen.append((loc, scale, unseen, y, weight))
        return 2.0, 0.5

    monkeypatch.setattr(f"{MODULE}.fit_out_of_bag_scale", fit)
    weight = np.linspace(1, 3, 160)
    model = TabularEnsembleRegressor(**REGRESSOR).fit(X, y, weight)
    assert calibration(model) == (2.0, 0.5)
    ((loc, scale, unseen, rows, own_weight),) = seen
    assert_array_equal(unseen.sum(axis=1), 48)
    used = len(rows)
    assert unseen.shape == (4, used) and unseen.any(axis=0).all()
    members = model.fitted_.members
    for k, member in enumerate(members):
        assert_allclose(
            np.sort(loc[k][unseen[k], 0]), np.sort(member.held_out[:, 0]), rtol=1e-3, atol=1e-5
        )
    assert own_weight.max() / own_weight.min() > 2


def test_calibration_takes_a_sample_of_many_rows(table, monkeypatch):
    monkeypatch.setattr(f"{MODULE}._MOST_CALIBRATION_ROWS", 60)
    sizes = []
    monkeypatch.setattr(
        f"{MODULE}.fit_out_of_bag_scale",
        lambda *arrays: sizes.append(len(arrays[3])) or fit_out_of_bag_scale(*arrays),
    )
    one, other = (TabularEnsembleRegressor(**REGRESSOR).fit(*table) for _ in range(2))
    assert sizes == [60, 60] and calibration(one) == calibration(other)


@pytest.mark.parametrize(
    ("settings", "fit"),
    [
        ({"validation": None}, {}),
        ({}, {"groups": np.arange(160) % 20}),
        ({}, {"validation_data": True}),
        ({"loss": "student-t"}, {}),
        ({"n_members": 1, "validation": 0.1}, {}),  # 16 rows
    ],
)
def test_where_there_is_nothing_to_calibrate_by(table, settings, fit):
    X, y = table
    fit = {"validation_data": (X[:40], y[:40])} if "validation_data" in fit else fit
    model = TabularEnsembleRegressor(**{**REGRESSOR, "epochs": 2, **settings}).fit(X, y, **fit)
    assert calibration(model) == (1.0, 0.0)
    assert np.isfinite(model.predict(X[:5], return_std=True)).all()


def kinds_of(model):
    """Number of each member's kind, in their order."""
    stripped = [re.sub(r"_\d+", "", member.network) for member in model.members_]
    return np.array([list(dict.fromkeys(stripped)).index(network) for network in stripped])


def embedded(model):
    return np.array(["Embedding" in member.network for member in model.members_])


def assert_equal_within_kinds(model):
    kinds, weights = kinds_of(model), model.weights_
    assert_allclose(weights.sum(), 1)
    for kind in set(kinds):
        assert np.ptp(weights[kinds == kind]) == 0


@pytest.mark.slow
def test_classifiers_mix_kinds_of_networks(classifier, classes):
    assert kinds_of(classifier).tolist() == [0, 0, 1, 1, 2, 2]
    assert embedded(classifier).tolist() == [True, True, False, False, True, True]
    assert_equal_within_kinds(classifier)
    again = TabularEnsembleClassifier(**TINY, n_members=6).fit(*classes)
    assert_array_equal(again.predict_proba(classes[0]), classifier.predict_proba(classes[0]))


def test_weights_are_those_of_stacking_on_rows_held_out(classes, monkeypatch):
    given = []

    def noted(log_likelihood, weight):
        given.append((log_likelihood, weight))
        return stacking_weights(log_likelihood, weight)

    monkeypatch.setattr(f"{MODULE}.stacking_weights", noted)
    X, y = classes
    model = TabularEnsembleClassifier(**TINY, n_members=6).fit(X, y)
    ((log_likelihood, weight),) = given
    assert log_likelihood.shape == (3, 32) and weight.shape == (32,)  # two splits, 16 rows each
    kinds = kinds_of(model)
    shares = stacking_weights(log_likelihood, weight)
    assert_allclose(np.bincount(kinds, model.weights_), shares)
    # All kinds are judged on the same rows: those of their members with the same split.
    for kind in range(3):
        raw = np.concatenate(
            [
                m.held_out
                for m, kind_of_member in zip(model.members_, kinds)
                if kind_of_member == kind
            ]
        )
        log_proba = raw - np.log(np.exp(raw).sum(axis=1, keepdims=True))
        distances = abs(log_proba - log_likelihood[kind][:, None]).min(axis=1)
        assert distances.max() < 1e-5


@pytest.mark.parametrize(
    ("settings", "kinds"),
    slow_after(
        3,
        [
            ({"n_members": 1}, [0]),
            ({"n_members": 2, "network": TabularNetwork(embedding="none")}, [0, 0]),
            ({"n_members": 2, "network": TabularNetwork(n_copies=2)}, [0, 1]),
            ({"n_members": 4}, [0, 0, 1, 2]),
            ({"n_members": 2}, [0, 1]),
            ({"n_members": 3}, [0, 1, 2]),
            ({"n_members": 2, "network": TabularNetwork(embedding="periodic")}, [0, 0]),
            ({"n_members": 4, "network": TabularNetwork(frequency_scale=1.0)}, [0, 0, 1, 1]),
        ],
    ),
)
def test_numbers_of_members(classes, settings, kinds):
    X, y = classes
    model = TabularEnsembleClassifier(**{**TINY, "epochs": 2, **settings}).fit(X, y)
    assert kinds_of(model).tolist() == kinds
    assert_equal_within_kinds(model)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", slow_after(3, ["none", "rare", "validation_data", "groups", "weights"])
)
def test_rows_to_weigh_the_kinds_by(classes, case):
    X, y = classes
    settings, fit = {"n_members": 6, "epochs": 2}, {}
    if case == "none":
        settings["validation"] = None
    elif case == "groups":
        fit["groups"] = np.arange(160) % 20
    elif case == "validation_data":
        fit["validation_data"] = (X[:40], y[:40])
    elif case == "weights":
        fit["sample_weight"] = np.where(np.arange(160) % 3, 1.0, 0.0)
    else:
        y = y.copy()
        y[:2] = "rare"
    model = TabularEnsembleClassifier(**{**TINY, **settings}).fit(X, y, **fit)
    assert_equal_within_kinds(model)
    if case == "none":
        assert_allclose(model.weights_, 1 / 6)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_members_of_all_kinds_meet_on_the_same_splits(classes, monkeypatch):
    """Also where kinds have different numbers of members."""
    train, given = training.train, []

    def noted(jobs, data, **settings):
        given.extend(job.splits for job in jobs)
        return train(jobs, data, **settings)

    monkeypatch.setattr(training, "train", noted)
    TabularEnsembleClassifier(**{**TINY, "epochs": 1}, n_members=4).fit(*classes)
    assert [len(splits) for splits in given] == [2, 1, 1]
    for splits in given[1:]:
        assert_array_equal(splits[0][1], given[0][0][1])
    assert set(given[0][0][1]) != set(given[0][1][1])


def diverge(monkeypatch, which):
    """Let members of networks without embedding diverge."""
    train = training.train

    def diverging(jobs, data, **settings):
        found = []
        for job in jobs:
            members = train(job, data, **settings)
            if "Embedding" not in job.network:
                members[which] = [FloatingPointError("diverged")] * len(members[which])
            found += members
        return found

    monkeypatch.setattr(training, "train", diverging)


def test_a_kind_that_diverges_gets_no_weight(classes, monkeypatch):
    diverge(monkeypatch, slice(None))
    with pytest.warns(UserWarning, match="2 of 6 networks diverged"):
        model = TabularEnsembleClassifier(**{**TINY, "epochs": 2}, n_members=6).fit(*classes)
    assert embedded(model).all()
    assert_allclose(model.weights_, 0.25)


def test_one_member_that_diverges_leaves_its_kinds_weight(classes, monkeypatch):
    diverge(monkeypatch, slice(0, 1))
    with pytest.warns(UserWarning, match="1 of 6 networks diverged"):
        model = TabularEnsembleClassifier(**{**TINY, "epochs": 2}, n_members=6).fit(*classes)
    assert embedded(model).tolist() == [True, True, False, True, True]
    assert_equal_within_kinds(model)


@pytest.mark.slow
def test_number_of_members_by_default(table):
    X, y = table
    settings = {**TINY, "epochs": 1, "network": TabularNetwork(**SMALL)}
    assert len(TabularEnsembleRegressor(**settings).fit(X, y).members_) == 8
    classifier = TabularEnsembleClassifier(epochs=1, random_state=0).fit(X, y > 100)
    assert len(classifier.members_) == 9


@pytest.mark.parametrize(("validation", "n"), [("auto", 10), (0.3, 48)])
def test_large_tables_validate_on_some_rows(table, monkeypatch, validation, n):
    settings = {**REGRESSOR, "n_members": 1, "epochs": 1, "validation": validation}
    model = TabularEnsembleRegressor(**settings).fit(*table)
    assert len(model.members_[0].held_out) == (16 if validation == "auto" else 48)
    monkeypatch.setattr(f"{MODULE}._MOST_VALIDATION_ROWS", 10)  # instead of 10,000
    assert len(model.fit(*table).members_[0].held_out) == n


@pytest.mark.parametrize("fit", [{"groups": np.arange(160) % 20}, {"validation_data": True}])
def test_calibration_that_is_not_possible_is_refused(table, fit):
    fit = {"validation_data": table} if "validation_data" in fit else fit
    with pytest.raises(ValueError, match="`calibrate=True` is not possible: with `(groups|valid)"):
        TabularEnsembleRegressor(**REGRESSOR, calibrate=True).fit(*table, **fit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    slow_after(1, [TabularEnsembleRegressor, TabularEnsembleClassifier, DeepEnsembleRegressor]),
)
def test_a_limit_of_time_ends_training(table, kind):
    X, y = table
    y = y > 100 if kind is TabularEnsembleClassifier else y
    settings = {"n_members": 2, "random_state": 0, "epochs": 10**5}
    started = time.monotonic()
    model = kind(**settings, max_time=2.0).fit(X, y)
    assert time.monotonic() - started < 60  # with programs to compile
    for member in model.members_:
        assert 1 <= member.n_epochs < 10**5
    assert np.isfinite(model.predict(X)).all()
    tight = kind(**settings, max_time=1e-3).fit(X, y)
    assert all(member.n_epochs == 1 for member in tight.members_)


def test_time_enough_changes_nothing(table):
    X, y = table
    settings = {**REGRESSOR, "n_members": 2, "epochs": 3}
    limited = TabularEnsembleRegressor(**settings, max_time=1000).fit(X, y)
    free = TabularEnsembleRegressor(**settings).fit(X, y)
    assert_array_equal(limited.predict(X), free.predict(X))


def test_probabilities_are_at_most_one(monkeypatch):
    """Weights of members may sum to a little more than 1."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = TabularEnsembleClassifier(3, epochs=2, random_state=0).fit(X, X[:, 0] > 0)
    sure = CategoricalMixture(np.tile([1.0, 0.0], (3, 60, 1)), np.array([0.25, 0.25, 0.5]))
    object.__setattr__(sure, "weights", sure.weights * (1 + 4e-16))
    assert sure.mean.max() > 1
    monkeypatch.setattr(model, "predict_distribution", lambda X: sure)
    assert model.predict_proba(X).max() == 1
