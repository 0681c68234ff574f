"""Searches whose trials are cross-validated, and ensembles that are refitted on all rows."""

import copy
import pickle
import warnings
from unittest.mock import Mock

import joblib
import matplotlib
import numpy as np
import pytest
import training_data
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.model_selection import GroupKFold, KFold, PredefinedSplit, ShuffleSplit
from tiers import cases
from training_data import MemberRefitter, MemberTrainer, Rows, make_splits

import skuq
from skuq.exceptions import CalibrationWarning, SlotsLostError, SmallValidationWarning, TableWarning
from skuq.files import dumps, loads
from skuq.networks import GaussianHead
from skuq.predictive._calibration import UNCALIBRATED
from skuq.search import Catalog
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingRun, predict_members

matplotlib.use("agg")
pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
EVERY = np.arange(60)
SETTINGS = {"n_trials": 3, "n_members": 2, "epochs": 8, "validation": 3, "random_state": 0}


def regressor(space, **settings):
    return skuq.AutoDEUQRegressor(space=space, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def rows(wave):
    return wave[0][:60], wave[1][:60]


@pytest.fixture(scope="module")
def folded(tiny_space, rows):
    return regressor(tiny_space, validation=KFold(3)).fit(*rows)


@pytest.fixture(scope="module")
def refitted(tiny_space, rows):
    return regressor(tiny_space, refit=True).fit(*rows)


@given(
    n=st.integers(12, 60),
    k=st.integers(2, 5),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["numbers", "labels", "groups", "both"]),
)
def test_make_splits_validates_every_row_once(n, k, seed, kind):
    groups = np.arange(n) // 2 if kind in ("groups", "both") else None
    labels = np.arange(n) % 2 if kind in ("labels", "both") else None
    given_rows = Rows(np.zeros((n, 1)), np.zeros((n, 1)), np.ones(n))
    folds = make_splits(given_rows, seed, k, groups=groups, labels=labels).parts
    assert len(folds) == k
    assert_array_equal(np.sort(np.concatenate([valid for _, valid in folds])), np.arange(n))
    for train, valid in folds:
        assert_array_equal(np.sort([*train, *valid]), np.arange(n))
        if groups is not None:
            assert not set(groups[train]) & set(groups[valid])
        elif labels is not None:
            assert abs(labels[valid].mean() - labels.mean()) <= 1 / len(valid)
    # The seed shuffles rows.
    again, other = (make_splits(given_rows, s, k).parts for s in (seed, seed + 1))
    if kind == "numbers":
        assert_array_equal(again[0][1], folds[0][1])
        assert not np.array_equal(np.concatenate([v for _, v in other]), np.arange(n))


def test_make_splits_trains_on_every_class():
    """With fewer rows of a class than folds, too, which are tested apart."""
    for n in (6, 60):
        labels = np.repeat(np.arange(n // 2), 2)
        given_rows = Rows(np.zeros((n, 1)), labels[:, None], np.ones(n))
        folds = make_splits(given_rows, 0, 5, labels=labels).parts
        assert_array_equal(np.sort(np.concatenate([valid for _, valid in folds])), np.arange(n))
        assert all(len(valid) == len(set(labels[valid])) for _, valid in folds)
    # If only some folds are used, they are folds that train on every class.
    labels = np.repeat([0, 1, 2], [30, 29, 1])
    rows = Rows(np.zeros((60, 1)), np.zeros((60, 1)), np.ones(60))
    with warnings.catch_warnings(action="error"):  # no row is left out
        splits = make_splits(rows, 0, 10, labels=labels, n_used=9)
    assert all(59 in train for train, _ in splits.parts)
    assert splits.n_valid == splits.tested.sum() == 54


@pytest.mark.parametrize(("deadline", "n"), [(0.0, 2), (np.inf, 3)])
def test_a_trial_predicts_by_its_networks_or_without_time_by_two(folded, rows, deadline, n):
    """Each row is predicted by the network of its fold, which has not seen it."""
    x, y = folded.fitted_.inputs.transform(rows[0]), folded.catalog_.held_out.y
    assert all(network.held_out is None for network in folded.catalog_.member(0).networks)
    data = TrainingData.without_validation(x, y, np.ones(60))
    folds, head = list(KFold(3).split(x)), GaussianHead()
    networks = [
        network.with_held_out(predict_members([network], x[valid])[0])
        for network, (_, valid) in zip(folded.catalog_.member(0).networks, folds)
    ]
    trainer = MemberTrainer(None, data, head, 1, held_out=x[:5], folds=folds)
    trial = trainer.join(networks, deadline)
    means, noise = head.distribution(predict_members(networks, x))
    unseen = np.arange(60) // 20, np.arange(60)
    mean, std = head.distribution(trial.held_out[:60])
    # The variance counts what the networks disagree about, without bias.
    assert_allclose(mean, means[unseen], rtol=1e-5, atol=1e-6)
    variance = means[:n].var(axis=0, ddof=1) * 2 / 3
    assert_allclose(std**2, noise[unseen] ** 2 + variance, rtol=1e-4)
    assert_allclose(trial.center, means[:n].mean(axis=0), rtol=1e-4, atol=1e-6)
    mixed, _ = head.distribution(trial.held_out[60:])
    assert_allclose(mixed, means[:n, :5].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_fit_weighs_rows_in_a_score(tiny_space, rows):
    weight, groups = np.r_[np.ones(40), np.full(10, 20.0)], np.arange(50) > 24
    model = regressor(tiny_space, n_trials=1, validation=GroupKFold(2))
    model.fit(rows[0][:50], rows[1][:50], sample_weight=weight, groups=groups)
    member = model.catalog_.member(0)
    mean, std = model.fitted_.targets.head.distribution(member.held_out.astype(float))
    nll = -stats.norm.logpdf(model.catalog_.held_out.y.astype(float), mean, std)[:, 0]
    expected = np.average(nll, weights=weight)
    assert_allclose([member.score, model.catalog_[0].score], expected, rtol=1e-6)
    assert_array_equal(model.catalog_.held_out.rows, np.arange(50))
    assert member.seconds == sum(network.seconds for network in member.networks) > 0


@pytest.mark.parametrize("heavy", [1.0, 20.0])
def test_fit_trains_folds_of_other_weight_alone(tiny_space, rows, monkeypatch, heavy):
    """A stack does not divide each fold's losses by its own weights. A few copies do no harm."""
    runs = Mock(wraps=TrainingRun)
    monkeypatch.setattr("skuq.training._train.TrainingRun", runs)
    weight = np.r_[np.ones(40), np.full(20, heavy)]
    regressor(tiny_space, n_trials=1, validation=KFold(3)).fit(*rows, sample_weight=weight)
    stacked = [call.args[0].stacked for call in runs.call_args_list]
    assert stacked == ([True] if heavy == 1 else [False] * 3)
    again = np.r_[0:60, 5, 5, 5]
    with pytest.warns(TableWarning, match="X has repeated rows: 6 %"):
        regressor(tiny_space, n_trials=1, validation=3).fit(*(part[again] for part in rows))
    assert runs.call_args.args[0].stacked


def test_pickles_hold_no_networks_of_what_was_refitted(folded, refitted, tiny_space, rows):
    for model in (folded, refitted):
        mean, std = model.predict(rows[0], return_std=True)
        pickled = pickle.loads(pickle.dumps(model))
        for other in (pickled, loads(dumps(model), parts={"space": tiny_space})):
            assert_array_equal(other.predict(rows[0], True), (mean, std))
        assert_allclose(np.asarray(model.to_keras()(rows[0])["total"]), std, rtol=1e-4)
        draws = np.asarray(model.posterior_fn()(rows[0]))  # a whole number of them for each member
        rounding = np.ptp(draws, axis=0) * len(model.fitted_.members) / (2 * len(draws))
        assert (abs(draws.mean(axis=0) - mean) <= rounding + 1e-4).all()
        members = [pickled.catalog_.member(k) for k in pickled.catalog_.completed]
        weights = [network.weights is None for member in members for network in member.networks]
        assert all(weights) == model.refit
        assert all(member.weights is not None for member in pickled.refitted_.values())


def test_fit_refits_as_train_member_does(tiny_space, rows):
    X, y = rows
    model = regressor(tiny_space, validation="auto", refit=True)
    # The rows to validate on are trained on, too.
    model.fit(X[:40], y[:40], validation_data=(X[40:], y[40:]))
    (k, member), *_ = model.refitted_.items()
    configuration, x = model.catalog_[k].configuration, model.fitted_.inputs.transform(X)
    y = model.fitted_.targets.transform(y[:, None])
    n_epochs = 1 + model.catalog_.member(k).best_epoch
    recipe = Recipe(**tiny_space.recipe(configuration), epochs=n_epochs, **training_data.PLAIN)
    network, data = tiny_space.build(configuration, (2,), 2), TrainingData.without_validation
    seed, every = model.catalog_[k].seed, data(x, y, np.ones(60))
    alone = training_data.train_member(network, GaussianHead(), recipe, every, seed)
    assert_allclose(member.weights, alone.weights, rtol=1e-4, atol=1e-5)


def test_fit_refits_with_the_learning_rates_of_the_search(tiny_space, rows, monkeypatch):
    class Reduced(type(tiny_space)):
        def recipe(self, configuration):
            return {**super().recipe(configuration), "reduce_lr_patience": 1}

    asked, train = [], MemberTrainer.__call__

    def watched(self, configuration, seed, budget=None, **changes):
        asked.append((seed, changes))
        return train(self, configuration, seed, budget, **changes)

    monkeypatch.setattr(MemberTrainer, "__call__", watched)
    model = regressor(Reduced(), epochs=40, refit=True).fit(*rows)
    seed, changes = asked[-1]
    (member,) = [r.result for r in model.catalog_ if r.seed == seed]
    n = 1 + member.best_epoch
    rates = [network.history["learning_rate"] for network in member.networks]
    rates = [np.r_[rate, np.full(n, rate[-1])][:n] / rate[0] for rate in rates]
    assert np.min(rates) < 0.2
    assert_allclose(changes["epoch_rates"], stats.gmean(rates), rtol=1e-5)
    assert changes["epochs"] == n and changes["reduce_lr_patience"] is None


def test_fit_keeps_networks_that_cannot_be_refitted(tiny_space, rows, monkeypatch):
    train, asked_for = MemberRefitter.__call__, []

    def fails_once(self, asked, seed):
        asked_for.append(asked["trial"])
        if len(asked_for) == 1:
            raise FloatingPointError("diverged")
        return train(self, asked, seed)

    monkeypatch.setattr(MemberRefitter, "__call__", fails_once)
    with pytest.warns(UserWarning, match="1 of 2 networks"):
        model = regressor(tiny_space, refit=True).fit(*rows)
    # Networks of the trial that failed, and the one refitted.
    counts = [3 if trial == asked_for[0] else 1 for trial in model.selection_.indices]
    assert len(model.fitted_.members) == sum(counts)
    weights = np.repeat(model.selection_.weights / counts, counts)
    assert_allclose(model.fitted_.weights, weights, rtol=1e-12)
    assert np.isfinite(model.predict(rows[0], return_std=True)).all()


@pytest.mark.parametrize("error", [SlotsLostError, KeyboardInterrupt])
def test_fit_keeps_the_search_if_refits_fail(tiny_space, rows, monkeypatch, error):
    where = "__init__" if error is SlotsLostError else "__call__"
    monkeypatch.setattr(MemberRefitter, where, Mock(side_effect=error("gone")))
    with pytest.warns(UserWarning, match="could not be refitted.*gone"):
        model = regressor(tiny_space, refit=True, epochs=2).fit(*rows)
    assert model.refitted_ == {} and len(model.fitted_.members) == 3 * len(model.selection_)


def test_fit_refits_after_a_search_that_was_cut_short_in_threads(tiny_space, rows):
    settings = {"n_trials": 200, "epochs": 200, "search": "random", "max_time": 0.5, "n_jobs": 2}
    model = regressor(tiny_space, validation="auto", refit=True, **settings)
    with joblib.parallel_config(backend="threading"):
        model.fit(*rows)
    assert len(model.catalog_) < 200 and sorted(model.refitted_) == sorted(model.selection_.indices)


def test_member_estimators_hold_nothing_of_the_others(folded, refitted, tiny_space, rows):
    """Those of every trial are of the search, those of a refitted ensemble its own."""
    (name, member), *others = folded.member_estimators()
    assert others
    networks = pickle.loads(pickle.dumps(member)).catalog_
    held = [k for k in networks.completed if networks.member(k).networks[0].weights is not None]
    assert [f"trial{k}" for k in held] == [name]
    assert_array_equal(member.at_severity(0).predict(rows[0]), member.predict(rows[0]))
    model = copy.copy(refitted)
    of_ensemble = dict(model.member_estimators())
    every = dict(model.member_estimators(every_trial=True))
    assert all(len(e.fitted_.members) == 1 for e in of_ensemble.values())
    assert all(len(e.fitted_.members) == 3 for e in every.values())
    board = model.leaderboard().set_index("trial")
    chosen = [int(name.removeprefix("trial")) for name in of_ensemble]
    assert (board.loc[chosen].n_networks == 1).all()
    # Members that are selected anew have not been refitted.
    with pytest.warns(UserWarning, match="trains nothing"):
        model.reselect()
    assert_array_equal(model.predict(rows[0]), regressor(tiny_space).fit(*rows).predict(rows[0]))


def test_reselect_on_other_rows_sees_all_folds(tiny_space, rows):
    X, y = rows[0][:20], rows[1][:20]
    model = regressor(tiny_space, n_trials=5).fit(*rows)
    trials = [trial for _, trial in model.member_estimators(every_trial=True)]
    moments = [trial.predict(X, return_std=True) for trial in trials]  # of all its folds
    nll = [-stats.norm.logpdf(y, mean, std).mean() for mean, std in moments]
    chosen = model.reselect(X, y, selection="top").selection_.indices
    assert_array_equal(np.sort(chosen), np.sort(np.argsort(nll)[: len(chosen)]))
    assert np.argmin(nll) in model.reselect(X, y, selection="greedy").selection_.indices


def test_from_catalog_restores_folds_and_refits(tiny_space, rows, tmp_path, monkeypatch):
    settings = {"catalog_dir": tmp_path, "refit": True}
    model, read = regressor(tiny_space, **settings).fit(*rows), Catalog.load(tmp_path)
    assert [len(record.result.networks) for record in read] == [3] * 3
    assert_array_equal(read.member(0).held_out, model.catalog_.member(0).held_out)
    with monkeypatch.context() as patch:
        patch.setattr(MemberTrainer, "__call__", None)  # nothing is trained
        again = regressor(tiny_space, **settings).fit(*rows)
        alone = skuq.AutoDEUQRegressor.from_catalog(tmp_path)
        for other in (again, alone):
            assert_array_equal(other.predict(rows[0]), model.predict(rows[0]))
        searched = skuq.AutoDEUQRegressor.from_catalog(tmp_path, refit=False)
        without = regressor(tiny_space, catalog_dir=tmp_path).fit(*rows)  # the same search
        assert_array_equal(without.predict(rows[0]), searched.predict(rows[0]))
        assert not np.array_equal(without.predict(rows[0]), model.predict(rows[0]))
    for file in model.catalog_path_.glob("refits/*"):
        file.unlink()
    with pytest.warns(UserWarning, match="2 of 2 refits of the chosen trials are not stored"):
        alone = skuq.AutoDEUQRegressor.from_catalog(tmp_path, refit=True)
    assert_array_equal(alone.predict(rows[0]), searched.predict(rows[0]))


def test_fit_uses_up_a_generator_and_leaves_rows_without_weight_out(tiny_space, rows, tmp_path):
    model = regressor(tiny_space, validation=KFold(3).split(rows[0]), catalog_dir=tmp_path)
    assert len(model.fit(*rows).catalog_.member(0).networks) == 3
    with pytest.raises(ValueError, match="A generator can only be used once"):
        model.fit(*rows)
    X, y = rows
    weight = np.ones(60)
    weight[[3, 41]] = 0
    folds = [(k != EVERY % 3, np.arange(k, 60, 3)) for k in range(3)]  # masks and positions
    used = np.flatnonzero(weight)
    number = {int(row): k for k, row in enumerate(used)}
    parts = [(EVERY[train], test) for train, test in folds]
    of_used = [tuple([number[int(r)] for r in part if r in number] for part in f) for f in parts]
    model = regressor(tiny_space, validation=folds).fit(X, y, weight)
    alone = regressor(tiny_space, validation=of_used).fit(X[used], y[used])
    assert_allclose(model.predict(X), alone.predict(X), rtol=1e-5)
    assert_array_equal(model.catalog_.held_out.rows, used)
    predefined = regressor(tiny_space, validation=PredefinedSplit(EVERY % 3)).fit(X, y, weight)
    assert_array_equal(predefined.predict(X), model.predict(X))


@pytest.mark.filterwarnings("default::skuq.exceptions.SmallValidationWarning")
@pytest.mark.parametrize(("cv", "advice"), [(0.25, "Folds or a larger share"), (3, "on chance.$")])
def test_fit_advises_on_few_rows(tiny_space, rows, cv, advice):
    with pytest.warns(SmallValidationWarning, match=advice):
        regressor(tiny_space, validation=cv, n_trials=1).fit(*rows)


@cases(
    ("settings", "message"),
    ({"validation": 61}, "`validation` cannot split the rows: .* number of samples"),
    ({"validation": ShuffleSplit(3)}, "`validation` must .* exactly one test fold"),
    ({"validation": []}, "`validation` has no folds"),
    ({"validation": [(EVERY, EVERY)]}, "has 60 and 60 rows, of which 60 are in both"),
    ({"validation": [([], EVERY)]}, "has 0 and 60"),
    ({"validation": [([60], EVERY)]}, "`validation` must give positions of 60 rows"),
    ({"validation": [([0.5], EVERY)]}, "must give positions of 60 rows"),
    ({"validation": [(k != EVERY % 3, k == EVERY % 3) for k in (0, 1)]}, "There are 60 rows"),
)
def test_fit_refuses(tiny_space, rows, settings, message):
    model = regressor(tiny_space, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(*rows)


@pytest.mark.filterwarnings("default::skuq.exceptions.CalibrationWarning")
@pytest.mark.parametrize("n_rows", [31, 30])
def test_many_rows_of_a_single_split_calibrate_classes(tiny_space, rows, monkeypatch, n_rows):
    monkeypatch.setattr("skuq.search._records.CALIBRATION_ROWS", n_rows)
    settings = {"epochs": 2, "validation": 0.5, "random_state": 0}
    model = skuq.AutoDEUQClassifier(2, space=tiny_space, **settings).fit(rows[0], rows[1] > 10)
    assert (model.calibration_ == UNCALIBRATED) == (n_rows == 31)
    assert model.set_params(calibrate=False).reselect().calibration_ == UNCALIBRATED


def test_rows_whose_class_no_fold_trains_on_are_not_compared(tiny_space, rows):
    X, y = rows
    labels = np.where(EVERY == 7, "rare", np.where(y > 10, "up", "down"))
    settings = {"n_members": 1, "epochs": 2, "validation": 3, "random_state": 0}
    model = skuq.AutoDEUQClassifier(2, space=tiny_space, **settings)
    with pytest.warns(CalibrationWarning, match=r"leaves out 1 of 60 rows: .* \['rare'\]"):
        model.fit(X, labels)
    held_out = model.catalog_.held_out
    assert_array_equal(held_out.weight == 0, held_out.rows == 7)
    for temperatures in (np.geomspace(0.6, 4.0, 9), np.ones(1)):
        for k, score in enumerate(model.catalog_.to_frame()["score"]):
            raw = model.catalog_.member(k).held_out / temperatures[:, None, None]
            losses = model.fitted_.targets.head.scores(held_out.y, raw)
            assert_allclose(score, losses[:, held_out.weight > 0].mean(axis=1).min(), rtol=1e-5)
        # Trials are scored as they are used.
        with pytest.warns(CalibrationWarning):
            model.set_params(calibrate=False).fit(X, labels)
