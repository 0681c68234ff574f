"""Ensembles of networks for tables: calibration, kinds of networks, losses, frames."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from heads import CategoricalHead
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import KFold
from tiers import cases

import skuq
from skuq import training
from skuq.ensembles._stacking import drop_light, fit_class_mixture
from skuq.estimators.tabular._kinds import Origin, calibrate, mix_classes, weigh_members
from skuq.files import dumps, loads
from skuq.networks import GaussianHead, TabularNetwork
from skuq.networks._heads import SquaredErrorHead
from skuq.predictive import CategoricalMixture, GaussianMixture
from skuq.predictive._calibration import UNCALIBRATED, Calibration, calibrate_normals
from skuq.training import Training

SMALL = {"n_layers": 1, "width": 32, "embedding_dim": 2}
MODULE, TINY = "skuq.estimators.tabular._kinds", {"epochs": 6, "random_state": 0}
REGRESSOR = {**TINY, "n_members": 4, "network": TabularNetwork(**SMALL), "validation": 0.3}
REGRESSOR |= {"loss": "crps"}  # one kind of networks compiles faster than two
ONE_FORM = {**TINY, "network": TabularNetwork(n_layers=1, width=32, embedding="none")}
CLASSIFIER = {**TINY, "n_members": 6, "network": TabularNetwork(**SMALL)}
WEIGHTS = np.array([0.5, 0.3, 0.2])  # of three members


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


@pytest.fixture
def normals(rng):
    """Means, standard deviations and probabilities of two normals: 200 rows, two outputs."""
    shape = (3, 2, 200, 2)
    probability = np.moveaxis(rng.dirichlet([1, 1], (3, 200, 2)), -1, 1)
    return 0.2 * rng.normal(size=shape), rng.uniform(0.3, 1, shape), probability


def mix(normals, weights=WEIGHTS, **calibration):
    loc, scale, probability = calibrate_normals(normals, weights, Calibration(**calibration).arrays)
    return GaussianMixture(loc, scale, weights, probability)


def test_normals_are_calibrated_by_a_factor_and_a_share(normals):
    raw, found = mix(normals).uncertainty(), mix(normals, factor=1.3, share=0.2).uncertainty()
    assert_allclose(found.mean, raw.mean, rtol=1e-9)
    assert_allclose(found.epistemic, 1.3 * raw.epistemic, rtol=1e-9)
    # A fifth is three times as wide.
    assert_allclose(found.aleatoric**2, (0.8 + 0.2 * 9) * (1.3 * raw.aleatoric) ** 2, rtol=1e-9)


@pytest.mark.parametrize("loss", ["gaussian-mixture", "crps"])
def test_all_forms_of_an_ensemble_are_calibrated_alike(table, loss):
    X, y = table
    Y = np.column_stack([y, X[:, 2] - y / 10]) if loss == "crps" else y
    model = skuq.TabularEnsembleRegressor(**REGRESSOR | {"loss": loss, "n_members": 2}).fit(X, Y)
    calibration = model.fitted_.calibration
    assert calibration.factor != 1 and 0 < calibration.share < 0.5
    parts, outputs = model.predict_uncertainty(X), model.to_keras().predict_on_batch(X)
    for name, values in zip(("mean", "aleatoric", "epistemic", "total"), parts):
        assert_allclose(outputs[name], values, rtol=1e-4, atol=2e-6 * abs(values).max())
    draws = model.posterior_fn(1000, random_state=0)(X)  # weights of members are rounded
    assert_allclose(draws.mean(axis=0), parts.mean, rtol=1e-3)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-2)
    assert_array_equal(loads(dumps(model)).predict_uncertainty(X), parts)
    # In units of y, without what is added away from the training rows.
    model.fitted_ = replace(model.fitted_, far=None)
    targets, raw = model.fitted_.targets, model.fitted_.raw(model.fitted_.inputs.transform(X))
    expected = mix(targets.head.normals(raw), model.weights_, **asdict(calibration)).uncertainty()
    parts, unit = model.predict_uncertainty(X), targets.scaling.scale_
    for name in ("aleatoric", "epistemic", "total"):
        assert_allclose(getattr(parts, name).reshape(160, -1), unit * getattr(expected, name))


def task_of(y, head):
    """Task with only the parts needed to compare members on held-out rows."""
    data = SimpleNamespace(y=y, weight=np.ones(len(y)), y_valid=y, weight_valid=np.arange(len(y)))
    splits = SimpleNamespace(validates=True)
    return SimpleNamespace(data=data, targets=SimpleNamespace(head=head), splits=splits)


def member_of(held_out):
    return SimpleNamespace(held_out=held_out, history={"loss": np.zeros(1)})


def test_calibration_is_learnt_on_rows_that_members_have_not_seen(rng, monkeypatch):
    raw, y, head = rng.normal(size=(4, 60, 2)), rng.normal(size=(60, 1)), GaussianHead()
    learnt, seen = Calibration(2.0, 0.5), []
    monkeypatch.setattr(f"{MODULE}.fit_calibration", lambda *given: seen.append(given) or learnt)
    monkeypatch.setattr(f"{MODULE}.predict_members", lambda _, x: raw[:, x[:, 0]])
    task = task_of(y, head)
    task.data.x, task.data.weight, task.entropy = np.arange(60)[:, None], np.arange(1, 61), 0
    # Of 30 rows, by two kinds of two members each, whose rows overlap.
    parts = [(None, np.arange(20)), (None, np.arange(10, 30))]
    origins = [Origin(kind, k, parts[k]) for kind in range(2) for k in range(2)]
    weights = np.array([7, 3, 1, 1]) / 12
    assert calibrate(task, [None] * 4, weights, origins) == learnt
    ((loc, _, _, of_members, unseen, truth, counted),) = seen
    rows, block = np.tile(np.arange(30), 2), np.repeat([0, 1], 30)
    assert_array_equal(loc[:, 0, :, 0], raw[:, rows, 0])
    assert_array_equal(truth, y[rows])
    assert_array_equal(of_members, weights)
    own = [(block == kind) & np.isin(rows, part[1]) for kind, _, part in origins]
    assert_array_equal(unseen, own)
    # Rows count as the members that predict them do: those of the first one seven times as much.
    assert_allclose(counted, (1 + rows) * (weights @ own) / np.sum(own, axis=0))
    # Of many rows there is a sample, which repeats.
    monkeypatch.setattr(f"{MODULE}.tuned.MOST_CALIBRATION_ROWS", 20)
    for _ in range(2):
        calibrate(task, [None] * 4, weights, origins)
    assert len(seen[1][5]) == 40
    assert_array_equal(seen[1][5], seen[2][5])


def test_kinds_are_weighed_by_stacking_on_their_common_rows(rng, monkeypatch):
    seen = []

    def weigh(*arguments):
        seen.append(arguments)
        return np.array([0.95, 0.05])

    monkeypatch.setattr(f"{MODULE}._stacking.stack", weigh)
    head, y, raw = GaussianHead(), rng.normal(size=(96, 1)), 0.1 * rng.normal(size=(2, 2, 48, 2))
    parts = [(None, np.arange(48)), (None, np.arange(48, 96))]
    origins = [Origin(kind, k, parts[k]) for kind in range(2) for k in range(2)]
    members = [member_of(raw[origin.kind, origin.split]) for origin in origins]
    found = weigh_members(task_of(y, head), members, origins, 2)
    loc, scale = (part[..., 0] for part in head.moments(raw.reshape(2, 96, 2)))
    assert_allclose(seen[0][0], norm.logpdf(y[:, 0], loc, scale))
    # Members count inversely to their squared mean errors, shrunk by 20 rows.
    errors = abs(y[:, 0] - loc).reshape(4, 48).mean(axis=1) ** (2 * 48 / 68)
    expected = np.array([0.95, 0.95, 0.05, 0.05]) / errors
    assert_allclose(found, expected / expected.sum())
    # A split in which a member diverged compares nothing.
    found = weigh_members(task_of(y, head), members[:3], origins[:3], 2)
    assert_allclose(seen[1][0], seen[0][0][:, :48])
    assert 5 < found[0] / found[2] < 20 and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("head", [GaussianHead(), SquaredErrorHead()])
def test_members_of_one_kind_weigh_by_their_errors(head, rng):
    y, rows = rng.normal(size=(400, 1)), np.split(np.arange(400), 4)
    raws = [np.repeat(y[k] + e, head.n_raw, axis=1) for k, e in zip(rows, (1, 1, 1, 4))]
    origins = [Origin(0, k, (None, part)) for k, part in enumerate(rows)]
    weights = weigh_members(task_of(y, head), [member_of(raw) for raw in raws], origins, 1)
    errors = np.array([1, 1, 1, 16]) ** (100 / 120)
    assert_allclose(weights, 1 / errors / (1 / errors).sum())
    task = task_of(y, head)
    task.splits.validates = False
    assert_allclose(weigh_members(task, [None] * 4, origins, 1), 0.25)


@cases(
    ("settings", "fit", "reason"),
    ({"validation": None}, {}, "validation=None leaves"),
    ({}, {"groups": np.arange(160) % 20}, "with `groups`"),
    ({}, {"validation_data": (np.zeros((9, 3)), np.arange(9.0))}, "with `validation_data`"),
    ({"loss": "mse"}, {}, 'loss="mse" trains no normals'),
)
def test_fit_calibrates_only_where_it_can(table, settings, fit, reason):
    X, y = table
    model = skuq.TabularEnsembleRegressor(**{**REGRESSOR, "epochs": 2, **settings}).fit(X, y, **fit)
    assert model.fitted_.calibration == UNCALIBRATED
    assert np.isfinite(model.predict(X[:5], return_std=True)).all()
    with pytest.raises(ValueError, match=f"`calibrate=True` .*{reason}"):
        model.set_params(calibrate=True).fit(X, y, **fit)


def test_kinds_of_classifiers_are_weighed_on_rows_out_of_the_bag(rng, monkeypatch):
    """Every row, predicted by the member of each kind that did not train on it."""
    codes, seen = np.arange(158) % 3, []  # folds of 32 and of 31 rows
    x = rng.normal(size=(158, 3)) + codes[:, None]
    parts = [(None, test) for _, test in KFold(5).split(x)]
    origins = [Origin(kind, k, part) for kind in range(2) for k, part in enumerate(parts)]
    raw = (1 + np.arange(2)[:, None, None]) * (np.eye(3)[codes] + rng.normal(size=(2, 158, 3)))
    members = [member_of(raw[kind, part[1]]) for kind, _, part in origins]
    targets = SimpleNamespace(head=CategoricalHead(3), classes=[0, 1, 2])

    def mixed(chosen=range(10)):
        data = SimpleNamespace(x=x, y=codes[:, None], weight=np.ones(158))
        splits = SimpleNamespace(validates=True, parts=parts)
        task = SimpleNamespace(data=data, targets=targets, splits=splits)
        return mix_classes(task, [members[k] for k in chosen], [origins[k] for k in chosen])

    def noted(*arrays):
        seen.append((arrays, *fit_class_mixture(*arrays)))
        return seen[-1][1:]

    monkeypatch.setattr(f"{MODULE}._stacking.fit_class_mixture", noted)
    weights, found = mixed()
    (logits, y, weight, shares), own, alone = seen[-1]
    assert_allclose(softmax(logits, axis=-1), softmax(raw, axis=-1))
    assert_array_equal(y, codes)
    assert_allclose(shares, np.array([53.5, 53.5, 52.5]) / 159.5)
    assert_allclose(weights, np.repeat(drop_light(own), 5) / 5)
    # All members of a kind predict later, so that their average is less sure; one is as sure.
    assert found == replace(alone, temperature=0.9 * alone.temperature)
    assert mixed([0, 5])[1] == seen[-1][2]
    # A member that diverged leaves the weight of its kind, without the rows that it held out.
    weights, _ = mixed(range(1, 10))
    assert seen[-1][0][0].shape == (2, 126, 3)
    assert_allclose(weights, np.repeat(drop_light(seen[-1][1]) / [4, 5], [4, 5]))
    assert_allclose(mixed(range(5, 10))[0], 0.2)


def test_fit_calibrates_the_mixture_of_members_that_did_not_diverge(classes, monkeypatch):
    train, kept = training.train, []

    def diverging(jobs, data, **settings):
        first, *others = train(jobs, data, **settings)
        return [FloatingPointError("diverged"), *others]

    def mix(task, members, origins):
        kept.extend((origin.kind, origin.split) for origin in origins)
        for member, origin in zip(members, origins):
            assert len(member.held_out) == len(origin.part[1])  # 32 rows or 31
        return mix_classes(task, members, origins)

    monkeypatch.setattr(training, "train", diverging)
    monkeypatch.setattr(f"{MODULE}.mix_classes", mix)
    X, y = (part[:158] for part in classes)
    with pytest.warns(UserWarning, match="1 of 10 networks diverged"):
        model = skuq.TabularEnsembleClassifier(**ONE_FORM, n_members=10).fit(X, y)
    assert kept == [(kind, split) for kind in range(2) for split in range(5)][1:]
    found, calibrated = model.fitted_.calibration, model.predict_proba(X)
    raw = model.fitted_.raw(model.fitted_.inputs.transform(X))
    mixed = np.average(softmax(raw / found.temperature, axis=-1), axis=0, weights=model.weights_)
    constant = np.array(found.constant)
    assert_allclose(calibrated, (1 - constant.sum()) * mixed + constant)
    assert (calibrated >= constant).all() and (constant > 0).all()
    assert_array_equal(loads(dumps(model)).predict_proba(X), calibrated)
    assert_allclose(np.asarray(model.to_keras()(X)["proba"]), calibrated, atol=1e-5)
    # Weights of members may sum to a little more than 1.
    sure = CategoricalMixture(np.tile([1.0, 0.0, 0.0], (3, 158, 1)), np.array([0.25, 0.25, 0.5]))
    object.__setattr__(sure, "weights", sure.weights * (1 + 4e-16))
    monkeypatch.setattr(type(model.fitted_), "distribution_of_encoded", lambda *_: sure)
    assert sure.mean.max() > 1 and model.predict_proba(X).max() == 1


@cases(
    ("network", "n_members", "expected"),
    ({**SMALL, "frequency_scale": 1.0}, 4, [1, 1, 1, 1]),
    ({"n_layers": 1, "width": 32, "embedding": "none"}, 3, [2, 1]),
    ({}, 6, [2, 2, 1, 1]),
)
def test_fit_trains_members_of_each_kind_in_turn(classes, plan, network, n_members, expected):
    settings = {"network": TabularNetwork(**network), "n_members": n_members}
    jobs, _ = plan(skuq.TabularEnsembleClassifier(**settings), *classes)
    assert [len(job.seeds) for job in jobs] == expected


@pytest.mark.parametrize("n_rows", [160, 2100])
def test_fit_trains_no_kind_of_networks_twice(plan, n_rows):
    """Kinds differ in how they embed numbers, which tables of categories do not have."""
    rng, classifier = np.random.default_rng(0), skuq.TabularEnsembleClassifier
    X = pd.DataFrame({"town": rng.choice(list("abcdefghijklm"), n_rows)})
    X["sold"], y = rng.choice(["no", "yes"], n_rows), np.arange(n_rows) % 2
    for size, n_kinds in ((None, (2, 2)), (np.arange(n_rows), (4, 3))):
        jobs, _ = plan(classifier(), X.assign(size=size).dropna(axis=1), y)
        assert len(jobs) == n_kinds[n_rows > 2000]
        assert len({(job.network, str(job.recipe)) for job in jobs}) == len(jobs)
    # Kinds have the same splits, also where they have different numbers of members.
    first, second = (job.splits for job in plan(classifier(**ONE_FORM, n_members=3), X, y)[0])
    assert (len(first), len(second)) == (2, 1)
    assert_array_equal(first[0][1], second[0][1])
    assert set(first[0][1]) != set(first[1][1])


def test_fit_validates_on_some_rows_of_large_tables(table, monkeypatch, plan):
    for most, sizes in ((10_000, [16, 48]), (10, [10, 48])):
        monkeypatch.setattr(f"{MODULE}.tuned.MOST_VALIDATION_ROWS", most)
        for validation, size in zip(("auto", 0.3), sizes):
            settings = {**REGRESSOR, "n_members": 1, "validation": validation}
            jobs, _ = plan(skuq.TabularEnsembleRegressor(**settings), *table)
            assert len(jobs[0].splits[0][1]) == size


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of columns that are constant
def test_networks_learn_what_ridge_regression_leaves_where_y_is_linear(rng, plan):
    X, new = rng.normal(size=(2, 80, 5))
    slopes, noise = np.arange(1.0, 6), 0.3 * rng.normal(size=80)
    settings = {"epochs": 1, "learning_rate": 1e-9, "validation": None, "random_state": 0}
    model = skuq.TabularEnsembleRegressor(1, loss="crps", **settings)
    # Each output has its own linear part, or none.
    model.fit(X, np.column_stack([1e6 + X @ slopes + noise, np.square(X[:, 0])]))
    means = model.predict(new)
    assert np.std(means[:, 0] - new @ slopes) < 0.2 and np.ptp(means[:, 1]) < 1e-2
    # Residuals are targets of unit variance, so that no floor makes narrow distributions wide.
    scale = model.fitted_.targets.scaling.scale_
    assert_allclose(scale, [noise.std(), np.square(X[:, 0]).std()], rtol=0.1)
    assert model.fit(X, X @ slopes).score(new, new @ slopes) > 0.99999
    assert_allclose(model.fitted_.targets.scaling.scale_, 1e-4 * np.std(X @ slopes), rtol=1e-5)
    # Beyond ten interquartile ranges the linear part stays as it is.
    far, farther = model.predict([[1e3, 0, 0, 0, 0], [1e6, 0, 0, 0, 0]])
    assert_allclose(far, farther, rtol=1e-3)
    assert_array_equal(loads(dumps(model)).predict(new), model.predict(new))
    # Spectra: many columns that few waves make, and codes, which have no linear part.
    heights, k = rng.normal(size=(90, 6)), np.arange(1, 7)
    waves = (heights / k**2) @ np.cos(np.pi * np.outer(k, np.linspace(0, 1, 50)))
    spectra = pd.DataFrame(waves).assign(site=[f"site {j}" for j in np.arange(90) % 12])
    spectra.columns = spectra.columns.astype(str)
    model.fit(spectra[:40], heights[:40] @ k)
    assert model.score(spectra[40:], heights[40:] @ k) > 0.99
    # Networks learn what is curved, and rows of groups predict each other too well.
    curved, nothing = X @ slopes + np.square(X[:, 4]), (np.ones_like(X), noise)
    for columns, y in ((X, curved), nothing, (X, 0 * noise), (X[:19], X[:19] @ slopes)):
        assert "Unclip" not in plan(model, columns, y)[0][0].network
    groups = {"groups": np.arange(80) % 9}
    assert "Unclip" not in plan(model, X, X @ slopes, **groups)[0][0].network


def test_the_limit_counts_what_comes_before_training(table, monkeypatch):
    """And there may be time for the first kind only."""
    X, y, deadlines = table[0], table[1] > 100, []

    def plan_epochs(jobs, deadline, needs_all):
        deadlines.append(deadline)
        return jobs[:1], np.inf, 0.0

    times = iter([100.0, 107.0])  # at which reading and training begin
    clocks = {"_task": lambda: next(times), "methods._one_architecture": lambda: 107.0}
    for module, clock in clocks.items():
        monkeypatch.setattr(f"skuq.estimators.{module}.time", SimpleNamespace(monotonic=clock))
    shared = "skuq.estimators.methods._one_architecture"
    monkeypatch.setattr(f"{shared}.plan_epochs", plan_epochs)
    # Without validation no kind is left out for its weight.
    settings = {"epochs": 2, "network": TabularNetwork(**SMALL), "validation": None}
    model = skuq.TabularEnsembleClassifier(**settings, max_time=60, random_state=0).fit(X, y)
    assert deadlines == [100 + 60 - 1]  # a second is kept for what follows
    networks = [member for member in model.members_ if member.n_weights > 100]
    assert len(networks) == 5 and len({member.network for member in networks}) == 1
    assert np.isfinite(model.predict_proba(X)).all()


def test_fit_takes_the_recipe_of_the_network(table, plan):
    X, y = table
    for model, targets, rate, drops in (
        (skuq.TabularEnsembleRegressor(**REGRESSOR), y, 0.1, False),
        (skuq.TabularEnsembleRegressor(**REGRESSOR, learning_rate=0.02), y, 0.02, False),
        (skuq.TabularEnsembleClassifier(**CLASSIFIER), y > 100, 0.1, True),
    ):
        for job in plan(model, X, targets)[0]:
            assert {recipe.learning_rate for recipe in job.recipes} == {rate}
            assert ("Dropout" in job.network) == drops
    # Its values need not be in the space of a search.
    given = {"n_layers": 5, "width": 48, "activation": "gelu", "embedding_dim": 3, "dropout": 0.3}
    model = skuq.TabularEnsembleRegressor(**REGRESSOR | {"network": TabularNetwork(**given)})
    ((job, *_), _) = plan(model, X, y)
    found = [job.network.count(text) for text in ('"units": 48', '"gelu"', '"dim": 3')]
    assert found == [5, 5, 1] and job.recipe.dropout == 0.3
    # One program trains both kinds of mixtures.
    mixtures = skuq.TabularEnsembleRegressor(**REGRESSOR | {"loss": "gaussian-mixture"})
    ((job,), _) = plan(mixtures, X, y)
    assert [dict(recipe.loss_settings)["crps"] for recipe in job.recipes] == [1, 1, 0, 0]


@cases(
    ("settings", "message"),
    ({"network__width": 0}, "width"),
    ({"network__dropout": 1.0}, "dropout"),
    ({"network__activation": "maxout"}, "activation"),
    ({"network__embedding": "none"}, "`embedding_dim` has no effect with embedding='none'"),
    ({"network": TabularNetwork(embedding="piecewise-linear", frequency_scale=1.0)}, "`freq"),
    ({"training": Training(steps=3)}, "`training` must only have"),
)
def test_fit_refuses(table, settings, message):
    model = clone(skuq.TabularEnsembleRegressor(**REGRESSOR))  # which others use
    with pytest.raises(ValueError, match=message):
        model.set_params(**settings).fit(*table)
