"""Searches whose trials are cross-validated, and ensembles that are refitted on all rows."""

import itertools
import pickle

import joblib
import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, KFold, PredefinedSplit, ShuffleSplit

import skuq
from skuq.catalog import Catalog, Member
from skuq.catalog._records import FoldedMember
from skuq.exceptions import SlotsLostError, SmallValidationWarning
from skuq.networks import GaussianHead
from skuq.networks._heads import CategoricalHead
from skuq.plotting import MemberDiversityDisplay
from skuq.tables._inputs import Rows
from skuq.tables._splits import make_splits
from skuq.training import predict_members
from skuq.training._trainer import MemberRefitter, MemberTrainer

matplotlib.use("agg")
pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")


def regressor(space, **settings):
    settings = {
        "n_trials": 3,
        "n_members": 2,
        "epochs": 8,
        "validation": 3,
        "random_state": 0,
    } | settings
    return skuq.AutoDEUQRegressor(space=space, **settings)


def classifier(space, **settings):
    settings = {
        "n_trials": 3,
        "n_members": 2,
        "epochs": 8,
        "validation": 3,
        "random_state": 0,
    } | settings
    return skuq.NESClassifier(space=space, **settings)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (60, 2))
    return X, 3 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=60) + 10


@pytest.fixture(scope="module")
def folded(tiny_space, rows):
    return regressor(tiny_space, validation=KFold(3)).fit(*rows)


# Which rows are where


@given(
    n=st.integers(12, 60),
    k=st.integers(2, 5),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["numbers", "labels", "groups", "both"]),
)
def test_every_row_validates_once_and_trains_otherwise(n, k, seed, kind):
    groups = np.arange(n) // 2 if kind in ("groups", "both") else None
    labels = np.arange(n) % 2 if kind in ("labels", "both") else None
    given_rows = Rows(np.zeros((n, 1)), np.zeros((n, 1)), np.ones(n))
    folds = make_splits(given_rows, seed, cv=k, groups=groups, labels=labels).parts
    assert len(folds) == k
    assert_array_equal(np.sort(np.concatenate([valid for _, valid in folds])), np.arange(n))
    for train, valid in folds:
        assert_array_equal(np.sort([*train, *valid]), np.arange(n))
        if groups is not None:
            assert not set(groups[train]) & set(groups[valid])
        elif labels is not None:
            assert abs(labels[valid].mean() - labels.mean()) <= 1 / len(valid)


def test_a_number_shuffles_as_the_seed_says(rows):
    parts = Rows(rows[0], rows[1][:, None], np.ones(60))
    one, same, other = (make_splits(parts, seed, cv=3).parts for seed in (0, 0, 1))
    assert_array_equal(one[0][1], same[0][1])
    assert not np.array_equal(one[0][1], other[0][1])
    assert not np.array_equal(one[0][1], np.arange(20))


def test_held_out_predictions_are_of_networks_that_have_not_seen_the_rows(folded, rows):
    x = folded.fitted_.inputs.transform(rows[0])
    for k in folded.catalog_.completed:
        member = folded.catalog_.member(k)
        assert isinstance(member, FoldedMember)
        means, noise = GaussianHead().distribution(predict_members(member.networks, x))
        unseen = np.arange(60) // 20, np.arange(60)
        mean, std = GaussianHead().distribution(member.held_out)
        assert_allclose(mean, means[unseen], rtol=1e-5, atol=1e-6)
        # The variance counts what all networks disagree about.
        assert_allclose(std**2, noise[unseen] ** 2 + means.var(axis=0), rtol=1e-4)
        assert all(network.held_out is None for network in member.networks)


def nll_of_rows(model, member):
    """Compute minus the log density of y under the held-out predictions."""
    y = model.catalog_.held_out.y.astype(float)
    mean, std = model.fitted_.targets.head.distribution(member.held_out.astype(float))
    return -stats.norm.logpdf(y, mean, std)[:, 0]


def test_a_trial_scores_its_loss_over_all_rows(folded):
    held_out = folded.catalog_.held_out
    assert_array_equal(held_out.rows, np.arange(60))
    for k in folded.catalog_.completed:
        member = folded.catalog_.member(k)
        assert_allclose(member.score, nll_of_rows(folded, member).mean(), rtol=1e-6)
        assert_allclose(folded.catalog_[k].score, member.score)


def test_nes_judges_single_trials_by_their_scores(tiny_space, rows):
    model = skuq.NESRegressor(
        n_trials=4, n_members=2, space=tiny_space, epochs=8, validation=3, random_state=0
    )
    model.fit(*rows)
    likelihood = [-nll_of_rows(model, model.catalog_.member(k)).mean() for k in range(4)]
    assert_allclose(model.catalog_.to_frame()["score"], np.negative(likelihood), rtol=1e-5)
    best = model.catalog_[int(np.argmax(likelihood))].configuration
    assert model.best_configuration() == best


@pytest.mark.slow
def test_folds_of_unequal_size_count_by_their_rows(tiny_space, rows):
    X, y = rows[0][:50], rows[1][:50]
    model = regressor(tiny_space, n_trials=1, validation=GroupKFold(2)).fit(
        X, y, groups=np.arange(50) > 9
    )
    member = model.catalog_.member(0)
    assert_allclose(member.score, nll_of_rows(model, member).mean(), rtol=1e-6)


@pytest.mark.parametrize("cv", [3, GroupKFold(2)])
def test_rows_count_in_a_score_by_their_weight(tiny_space, rows, cv):
    weight, groups = np.r_[np.ones(40), np.full(10, 20.0)], np.arange(50) > 24
    model = regressor(tiny_space, n_trials=1, validation=cv)
    model.fit(rows[0][:50], rows[1][:50], sample_weight=weight, groups=groups if cv != 3 else None)
    member = model.catalog_.member(0)
    expected = np.average(nll_of_rows(model, member), weights=weight)
    assert_allclose(member.score, expected, rtol=1e-6)


@pytest.mark.slow
def test_smaller_folds_are_filled_up_with_a_row_that_counts_nothing(tiny_space, rows):
    X, y = rows[0][:13], rows[1][:13]
    model = regressor(tiny_space, n_trials=1, epochs=1, validation=KFold(3)).fit(X, y)
    whole = regressor(tiny_space, n_trials=1, epochs=1, validation=KFold(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.training._trainer.make_plan", lambda network: None)
        whole.fit(X, y)
    for one, other in zip(*(m.catalog_.member(0).networks for m in (model, whole))):
        assert_allclose(one.weights, other.weights, atol=2e-3)  # Adam takes no size from a loss


@pytest.mark.slow
def test_side_by_side_is_as_one_after_the_other(folded, tiny_space, rows, monkeypatch):
    monkeypatch.setattr("skuq.training._trainer.make_plan", lambda network: None)
    alone = regressor(tiny_space, validation=KFold(3)).fit(*rows)
    for k in range(3):
        one, other = folded.catalog_.member(k), alone.catalog_.member(k)
        assert_allclose(one.held_out, other.held_out, rtol=1e-3, atol=1e-4)
        for a, b in zip(one.networks, other.networks):
            assert_allclose(a.weights, b.weights, rtol=1e-3, atol=1e-4)
            assert a.best_epoch == b.best_epoch


@pytest.mark.parametrize("heavy", [1.0, 20.0])
def test_folds_of_other_weight_are_trained_alone(tiny_space, rows, monkeypatch, heavy):
    # A stack does not divide each fold's losses by its own weights.
    from skuq.training import _engine  # loads TensorFlow

    stacked, run = [], _engine.TrainingRun

    def watched(job, data):
        stacked.append(job.stacked)
        return run(job, data)

    monkeypatch.setattr(_engine, "TrainingRun", watched)
    weight = np.r_[np.ones(40), np.full(20, heavy)]
    regressor(tiny_space, n_trials=1, validation=KFold(3)).fit(*rows, sample_weight=weight)
    assert stacked == ([True] if heavy == 1 else [False] * 3)


@pytest.mark.slow
def test_many_folds_are_several_stacks(tiny_space, rows, monkeypatch):
    X, y = rows[0][:24], rows[1][:24]
    whole = regressor(tiny_space, n_trials=1, validation=8).fit(X, y).catalog_.member(0)
    monkeypatch.setattr("skuq.training._trainer._LARGEST_STACK", 3)
    parts = regressor(tiny_space, n_trials=1, validation=8).fit(X, y).catalog_.member(0)
    assert len(parts.networks) == 8
    assert_allclose(parts.held_out, whole.held_out, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_rows_without_weight_are_in_no_fold(tiny_space, rows):
    weight = np.r_[np.zeros(20), np.ones(40)]
    some = regressor(tiny_space).fit(*rows, sample_weight=weight)
    assert_array_equal(some.catalog_.held_out.rows, np.arange(20, 60))
    fewer = regressor(tiny_space).fit(rows[0][20:], rows[1][20:])
    assert_allclose(some.predict(rows[0]), fewer.predict(rows[0]), rtol=1e-6)


def test_groups_stay_together(tiny_space, rows):
    groups = np.repeat([None, *"abcdefgh", 9, 10, 11], 5)  # names of any kinds
    model = regressor(tiny_space, n_trials=1).fit(*rows, groups=groups)
    x, member = model.fitted_.inputs.transform(rows[0]), model.catalog_.member(0)
    predicted = predict_members(member.networks, x)
    by_network = np.abs(predicted - member.held_out).max(axis=-1).argmin(axis=0)
    assert all(len(set(of_group)) == 1 for of_group in by_network.reshape(12, 5))


# What the ensemble predicts


def test_all_networks_of_the_trials_chosen_predict(folded, rows):
    distribution = folded.predict_distribution(rows[0])
    n_trials = len(folded.selection_.indices)
    assert distribution.member_means.shape == (3 * n_trials, 60)
    assert_allclose(distribution.weights.reshape(-1, 3).sum(axis=1), folded.selection_.weights)
    expected = distribution.weights @ distribution.member_means
    assert_allclose(folded.predict(rows[0]), expected)


@pytest.mark.parametrize("refit", [False, True])
def test_it_repeats_and_is_kept(tiny_space, rows, refit, tmp_path):
    model = regressor(tiny_space, refit=refit).fit(*rows)
    expected = model.predict(rows[0], return_std=True)
    again = clone(model).fit(*rows)
    assert_array_equal(again.predict(rows[0], return_std=True), expected)
    pickled = pickle.loads(pickle.dumps(model))
    assert_array_equal(pickled.predict(rows[0], return_std=True), expected)
    skuq.save(model, tmp_path / "model.skuq")
    loaded = skuq.load(tmp_path / "model.skuq", parts={"space": tiny_space})
    assert_array_equal(loaded.predict(rows[0], return_std=True), expected)
    keras_model = model.to_keras()
    assert_allclose(np.asarray(keras_model(rows[0])["total"]), expected[1], rtol=1e-4)
    means = model.posterior_fn()(rows[0])
    assert_allclose(np.mean(means, axis=0), expected[0], rtol=1e-4)


def test_a_pickle_of_an_ensemble_trained_anew_holds_only_that(tiny_space, rows):
    model = pickle.loads(pickle.dumps(regressor(tiny_space, refit=True).fit(*rows)))
    members = [model.catalog_.member(k) for k in model.catalog_.completed]
    assert all(network.weights is None for member in members for network in member.networks)
    assert all(member.weights is not None for member in model.refitted_.values())
    with pytest.raises(ValueError, match="lost the networks"):
        model.reselect()


@pytest.mark.slow
def test_two_processes_find_the_same(tiny_space, rows):
    settings = {"search": "rs-mixed", "refit": True}
    one, two = (regressor(tiny_space, n_jobs=n, **settings).fit(*rows) for n in (1, 2))
    assert_allclose(one.predict(rows[0]), two.predict(rows[0]), rtol=1e-5)


@pytest.mark.slow
def test_classes(tiny_space, iris):
    model = classifier(tiny_space, epochs=40).fit(*iris)
    assert model.score(*iris) > 0.9
    assert len(model.member_estimators()) == len(model.selection_.indices)
    labels = iris[1][model.catalog_.held_out.rows]
    codes = model.catalog_.held_out.y[:, 0].astype(int)
    assert_array_equal(model.classes_[codes], labels)
    anew = classifier(tiny_space, epochs=40, refit=True).fit(*iris)
    assert anew.score(*iris) > 0.9


# Trained anew


@pytest.mark.parametrize("cv", ["auto", 3])
def test_networks_of_the_ensemble_are_trained_anew_on_all_rows(tiny_space, rows, cv):
    model = regressor(tiny_space, validation=cv, refit=True).fit(*rows)
    assert sorted(model.refitted_) == sorted(model.selection_.indices)
    for k, member in model.refitted_.items():
        assert type(member) is Member
        assert member.n_epochs == member.best_epoch + 1 == model.catalog_.member(k).best_epoch + 1
        assert member.seed == model.catalog_[k].seed
    members = [model.refitted_[k] for k in model.selection_.indices]
    x = model.fitted_.inputs.transform(rows[0])
    assert_array_equal(model.fitted_.raw(x), predict_members(members, x))


def test_they_are_what_training_on_all_rows_makes_of_them(tiny_space, rows):
    from training_data import train_member

    from skuq.tables import TrainingData
    from skuq.training import Recipe

    model = regressor(tiny_space, validation=3, refit=True).fit(*rows)
    (k, member), *_ = model.refitted_.items()
    configuration, x = model.catalog_[k].configuration, model.fitted_.inputs.transform(rows[0])
    data = TrainingData.without_validation(
        x, model.fitted_.targets.transform(rows[1][:, None]), np.ones(60)
    )
    recipe = Recipe(
        **tiny_space.recipe(configuration),
        epochs=1 + model.catalog_.member(k).best_epoch,
        reduce_lr_patience=None,
        early_stopping_patience=None,
        keep="last",
    )
    network = tiny_space.build(configuration, (2,), 2)
    alone = train_member(network, GaussianHead(), recipe, data, model.catalog_[k].seed)
    assert_allclose(member.weights, alone.weights, rtol=1e-4, atol=1e-5)


def test_learning_rates_fall_anew_as_they_fell_in_the_search(tiny_space, rows, monkeypatch):
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
    assert changes["epochs"] == n
    assert changes["reduce_lr_patience"] is None


def test_those_that_cannot_be_are_those_of_the_search(tiny_space, rows, monkeypatch):
    searched, train = regressor(tiny_space).fit(*rows), MemberRefitter.__call__

    def fails(self, asked, seed):
        raise FloatingPointError("diverged")

    monkeypatch.setattr(MemberRefitter, "__call__", fails)
    with pytest.warns(UserWarning, match="could not be refitted.*: diverged"):
        model = regressor(tiny_space, refit=True).fit(*rows)
    assert model.refitted_ == {}
    assert_array_equal(model.predict(rows[0]), searched.predict(rows[0]))

    first = int(searched.selection_.indices[0])

    def fails_once(self, asked, seed):
        return fails(self, asked, seed) if asked["trial"] == first else train(self, asked, seed)

    monkeypatch.setattr(MemberRefitter, "__call__", fails_once)
    with pytest.warns(UserWarning, match="1 of 2 networks"):
        model = regressor(tiny_space, refit=True).fit(*rows)
    counts = [3, 1]  # networks of the trial that failed, and the one refitted
    assert len(model.fitted_.members) == sum(counts)
    weights = np.repeat(model.selection_.weights / counts, counts)
    assert_allclose(model.fitted_.weights, weights, rtol=1e-12)
    assert_allclose(model.fitted_.weights.sum(), 1, rtol=1e-12)
    assert np.isfinite(model.predict(rows[0], return_std=True)).all()


@pytest.mark.parametrize(
    ("error", "where"),
    [
        *itertools.product([SlotsLostError, MemoryError], ["__init__", "__call__"]),
        (KeyboardInterrupt, "__call__"),
    ],
)
def test_no_error_loses_the_search(tiny_space, rows, monkeypatch, error, where):
    def fails(self, *args):
        raise error("gone")

    monkeypatch.setattr(MemberRefitter, where, fails)
    with pytest.warns(UserWarning, match="could not be refitted.*gone"):
        model = regressor(tiny_space, refit=True).fit(*rows)
    assert np.isfinite(model.predict(rows[0])).all()


@pytest.mark.slow
def test_each_is_tried_however_many_fail(tiny_space, rows, monkeypatch):
    train = MemberRefitter.__call__
    settings = {"n_trials": 12, "n_members": 12, "selection": "top", "search": "rs-mixed"}
    model = regressor(tiny_space, validation="auto", **settings).fit(*rows)
    last, n_members = int(model.selection_.indices[-1]), len(model.selection_.indices)

    def fails_but_for_one(self, asked, seed):
        if asked["trial"] != last:
            raise FloatingPointError("diverged")
        return train(self, asked, seed)

    monkeypatch.setattr(MemberRefitter, "__call__", fails_but_for_one)
    with pytest.warns(UserWarning, match=f"{n_members - 1} of {n_members} networks"):
        model = regressor(tiny_space, validation="auto", refit=True, **settings).fit(*rows)
    assert list(model.refitted_) == [last]


def test_they_are_trained_after_a_search_that_was_cut_short_in_threads(tiny_space, rows):
    model = regressor(
        tiny_space,
        validation="auto",
        n_trials=200,
        epochs=200,
        search="rs-mixed",
        max_time=0.5,
        n_jobs=2,
        refit=True,
    )
    with joblib.parallel_config(backend="threading"):
        model.fit(*rows)
    assert len(model.catalog_) < 200
    assert sorted(model.refitted_) == sorted(model.selection_.indices)


@pytest.mark.slow
@pytest.mark.parametrize("cv", ["auto", 2])
def test_images(cv):
    def build(hp, input_shape, n_outputs):
        from skuq.backend import keras

        inputs = keras.Input(input_shape)
        x = keras.layers.Conv2D(hp.Choice("filters", [2, 3]), 3, use_bias=False)(inputs)
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization()(x))
        return keras.Model(inputs, keras.layers.Dense(n_outputs)(x))

    rng = np.random.RandomState(0)
    X, y = rng.rand(24, 6, 6, 1), np.arange(24) % 2
    model = classifier(build, validation=cv, refit=True, epochs=2, n_trials=2).fit(X, y)
    assert len(model.refitted_) == len(model.selection_.indices)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_a_pool_of_every_trial_is_as_the_search_has_trained_it(tiny_space, rows):
    model = regressor(tiny_space, refit=True).fit(*rows)
    of_ensemble = dict(model.member_estimators())
    every = dict(model.member_estimators(every_trial=True))
    assert all(len(e.fitted_.members) == 1 for e in of_ensemble.values())
    assert all(len(e.fitted_.members) == 3 for e in every.values())
    # The leaderboard scores members by the networks with which they predict.
    board = model.leaderboard(*rows).set_index("trial")
    unit = np.log(model.fitted_.targets.scaling.scale_[0])
    for name, estimator in of_ensemble.items():
        scored = board.loc[int(name.removeprefix("trial"))]
        assert scored.n_networks == 1
        expected = -estimator.log_prob(*rows).mean() - unit
        assert_allclose(scored.new_score, expected, rtol=1e-5)


def test_a_member_holds_nothing_of_the_others(folded, rows):
    (name, member), *others = folded.member_estimators()
    assert others
    networks = pickle.loads(pickle.dumps(member)).catalog_
    held = [k for k in networks.completed if networks.member(k).networks[0].weights is not None]
    assert [f"trial{k}" for k in held] == [name]
    assert_array_equal(member.at_severity(0).predict(rows[0]), member.predict(rows[0]))


# Selecting again


def test_selecting_again_on_the_same_rows(folded, rows, tiny_space):
    model = regressor(tiny_space, validation=KFold(3)).fit(*rows).reselect(n_members=3)
    expected = regressor(tiny_space, validation=KFold(3), n_members=3).fit(*rows)
    assert_array_equal(model.selection_.indices, expected.selection_.indices)
    assert_array_equal(folded.predict(rows[0]), clone(folded).fit(*rows).predict(rows[0]))


@pytest.mark.parametrize("selection", ["greedy", "top", "hq"])
def test_selecting_again_on_other_rows_sees_all_folds(tiny_space, rows, selection):
    model = regressor(tiny_space, n_trials=5).fit(*rows)
    model.reselect(rows[0][:20], rows[1][:20], selection=selection)
    indices = np.unique(model.selection_.indices)
    assert len(indices) >= 2
    nll = []
    for _, trial in model.member_estimators(every_trial=True):
        mean, std = trial.predict(rows[0][:20], return_std=True)  # moments of all its folds
        nll.append(-stats.norm.logpdf(rows[1][:20], mean, std).mean())
    if selection == "top":
        assert_array_equal(indices, np.sort(np.argsort(nll)[: len(indices)]))
    assert np.argmin(nll) in indices or selection == "hq"


def test_selecting_again_gives_up_what_was_trained_anew(tiny_space, rows):
    searched = regressor(tiny_space).fit(*rows)
    model = regressor(tiny_space, refit=True).fit(*rows)
    with pytest.warns(UserWarning, match="trains nothing"):
        model.reselect()
    assert_array_equal(model.predict(rows[0]), searched.predict(rows[0]))


@pytest.mark.slow
def test_shifted_rows_are_predicted_by_all_folds(tiny_space, iris):
    X, y = iris
    shifted = [(X[:30] + 0.3, y[:30]), (X[:30] + 0.9, y[:30])]
    model = classifier(tiny_space, refit=True).fit(X, y, shift_validation=shifted)
    clean, *parts = model.catalog_.held_out.sets
    assert [len(part[1]) for part in (clean, *parts)] == [150, 30, 30]
    for k in model.catalog_.completed:
        member = model.catalog_.member(k)
        raw = predict_members(member.networks, model.fitted_.inputs.transform(shifted[1][0]))
        expected = CategoricalHead(3).probabilities(raw).mean(axis=0)
        assert_allclose(
            CategoricalHead(3).probabilities(member.held_out[-30:]), expected, rtol=1e-4
        )
    kept = [model.selection_, *model.selections_]
    assert set(model.refitted_) == {k for selection in kept for k in selection.indices}
    for severity in range(3):
        one = model.at_severity(severity)
        assert len(one.fitted_.members) == len(one.selection_.indices)


# On disk


def test_a_search_goes_on_and_is_read_from_its_folder(tiny_space, rows, tmp_path, monkeypatch):
    settings = {"catalog_dir": tmp_path, "refit": True}
    model = regressor(tiny_space, **settings).fit(*rows)
    read = Catalog.load(tmp_path)
    assert [type(record.result) for record in read] == [FoldedMember] * 3
    assert_array_equal(read.member(0).held_out, model.catalog_.member(0).held_out)
    assert_array_equal(
        read.member(0).networks[2].weights, model.catalog_.member(0).networks[2].weights
    )

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
    for file in model.catalog_path_.glob("refit-000/*"):
        file.unlink()
    with pytest.warns(UserWarning, match="2 of 2 refits of the chosen trials are not stored"):
        alone = skuq.AutoDEUQRegressor.from_catalog(tmp_path, refit=True)
    assert_array_equal(alone.predict(rows[0]), searched.predict(rows[0]))


def test_other_folds_are_another_search(tiny_space, rows, tmp_path):
    parts = np.arange(60) % 3
    other = np.r_[parts[1:], parts[:1]]
    same = PredefinedSplit(parts), PredefinedSplit(parts.copy())
    for cv in (
        "auto",
        2,
        3,
        KFold(3),
        *same,
        PredefinedSplit(other),
        list(KFold(3).split(rows[0])),
    ):
        regressor(tiny_space, validation=cv, n_trials=1, catalog_dir=tmp_path).fit(*rows)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_generator_of_folds_serves_one_fit(tiny_space, rows, tmp_path):
    model = regressor(tiny_space, validation=KFold(3).split(rows[0]), catalog_dir=tmp_path).fit(
        *rows
    )
    assert len(model.catalog_.member(0).networks) == 3
    with pytest.raises(ValueError, match="A generator can only be used once"):
        model.fit(*rows)


def test_warm_start_adds_trials(tiny_space, rows):
    model = regressor(tiny_space, warm_start=True, refit=True).fit(*rows)
    first = [record.result for record in model.catalog_]
    model.set_params(n_trials=5).fit(*rows)
    assert [record.result for record in model.catalog_][:3] == first
    assert len(model.catalog_) == 5
    with pytest.warns(UserWarning, match=r"differs in \['validation'\]"):
        model.set_params(validation=KFold(3)).fit(*rows)
    again = [record.result for record in model.catalog_]
    model.set_params(validation=KFold(3)).fit(*rows)
    assert [record.result for record in model.catalog_] == again


# Bad input, and pictures


def test_masks_are_positions(folded, tiny_space, rows):
    masks = [(np.arange(60) // 20 != k, np.arange(60) // 20 == k) for k in range(3)]
    model = regressor(tiny_space, validation=masks).fit(*rows)
    assert_array_equal(model.predict(rows[0]), folded.predict(rows[0]))


def test_folds_of_all_rows_leave_out_rows_without_weight(tiny_space, rows):
    X, y = rows
    weight = np.ones(60)
    weight[[3, 41]] = 0
    folds = [(np.flatnonzero(np.arange(60) % 3 != k), np.arange(k, 60, 3)) for k in range(3)]
    used = np.flatnonzero(weight)
    number = {int(row): k for k, row in enumerate(used)}
    of_used = [tuple([number[int(r)] for r in part if r in number] for part in f) for f in folds]
    model = regressor(tiny_space, validation=folds).fit(X, y, weight)
    alone = regressor(tiny_space, validation=of_used).fit(X[used], y[used])
    assert_allclose(model.predict(X), alone.predict(X), rtol=1e-5)
    predefined = regressor(tiny_space, validation=PredefinedSplit(np.arange(60) % 3)).fit(
        X, y, weight
    )
    assert_array_equal(predefined.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="must give positions of 60 rows"):
        regressor(tiny_space, validation=[([60], np.arange(60))]).fit(X, y, weight)
    with pytest.raises(ValueError, match="There are 60 rows"):
        regressor(tiny_space, validation=folds[:2]).fit(X, y, weight)


@pytest.mark.filterwarnings("default::skuq.exceptions.SmallValidationWarning")
@pytest.mark.parametrize(("cv", "advice"), [(0.25, "Folds or a larger share"), (3, "on chance.$")])
def test_advice_for_few_rows(tiny_space, rows, cv, advice):
    with pytest.warns(SmallValidationWarning, match=advice):
        regressor(tiny_space, validation=cv, n_trials=1).fit(*rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": 1}, "The 'validation' parameter"),
        ({"validation": 61}, "greater than the number of samples"),
        ({"validation": ShuffleSplit(3)}, "exactly one test fold"),
        ({"validation": []}, "has no folds"),
        (
            {"validation": [(np.arange(60), np.arange(60))]},
            "has 60 and 60 rows, of which 60 are in both",
        ),
        ({"validation": [([], np.arange(60))]}, "has 0 and 60"),
        ({"validation": [([60], np.arange(60))]}, "must give positions of 60 rows"),
        ({"validation": [([0.5], np.arange(60))]}, "must give positions of 60 rows"),
        ({"validation": "three"}, "The 'validation' parameter"),
        ({"refit": "yes"}, "The 'refit' parameter"),
    ],
    ids=str.split(
        "one too-many overlapping-tests none same-rows untrained beyond fractions text refit"
    ),
)
def test_bad_settings(tiny_space, rows, settings, message):
    model = regressor(tiny_space, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(*rows)
    with pytest.raises(NotFittedError):
        model.predict(rows[0])


def test_validation_data_and_folds_contradict_each_other(tiny_space, rows):
    with pytest.raises(ValueError, match="Give either `validation` or `validation_data`"):
        regressor(tiny_space).fit(*rows, validation_data=rows)


def test_rows_to_validate_on_are_trained_on_anew(tiny_space, rows):
    X, y = rows
    beside = regressor(tiny_space, validation="auto", refit=True)
    beside.fit(X[:40], y[:40], validation_data=(X[40:], y[40:]))
    alone = clone(beside).fit(X[:40], y[:40], validation_data=(X[40:], y[40:] + 1e-9))
    assert len(beside.refitted_) == len(beside.selection_.indices)
    assert_allclose(beside.predict(X), alone.predict(X), rtol=1e-3)


def test_a_picture_of_members_says_which_trial_they_are_of(folded, rows):
    display = MemberDiversityDisplay.from_estimator(folded, rows[0], random_state=0)
    assert len(display.coordinates) == 3 * len(folded.selection_.indices)
    assert set(display.groups) == {f"trial {k}" for k in folded.selection_.indices}
    distances = MemberDiversityDisplay.from_estimator(folded, kind="distance").distances
    assert distances.shape == (len(folded.selection_.indices),) * 2
