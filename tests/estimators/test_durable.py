"""Searches stored in a folder: resumed, loaded, and selected from again."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import OneHotEncoder
from small_models import make
from tiers import slow_after

import skuq
from skuq import AutoDEUQClassifier, AutoDEUQRegressor, NESClassifier, NESRegressor
from skuq.catalog import Catalog, CatalogFolder
from skuq.estimators._searches._descriptions import describe
from skuq.exceptions import (
    CatalogLockedError,
    CatalogMismatchError,
    MissingPartError,
    SearchFailedError,
)
from skuq.networks import GaussianHead
from skuq.networks._space import Space
from skuq.search import SuccessiveHalving
from skuq.training._trainer import MemberRepeater, MemberTrainer


@pytest.fixture
def trained(monkeypatch):
    """Seeds of the networks that are trained, in their order."""
    seeds = []
    train, together = MemberTrainer.__call__, MemberTrainer.train_together

    def one(self, *arguments):
        seeds.append(arguments[1])
        return train(self, *arguments)

    def several(self, configurations, seeds_of_members):
        seeds.extend(seeds_of_members)
        return together(self, configurations, seeds_of_members)

    monkeypatch.setattr(MemberTrainer, "__call__", one)
    monkeypatch.setattr(MemberTrainer, "train_together", several)
    return seeds


@pytest.fixture
def search(tiny_space, tmp_path):
    def make(n_trials=4, kind=AutoDEUQRegressor, **settings):
        settings = {"space": tiny_space, "epochs": 3, "random_state": 0, **settings}
        return kind(n_trials).set_params(**{"catalog_dir": tmp_path, **settings})

    return make


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=n)


def folders(path):
    return sorted(p for p in path.iterdir() if p.is_dir())


def test_what_is_there_is_not_trained_again(search, trained, tmp_path):
    X, y = table()
    model = search().fit(X, y)
    assert len(trained) == 4 and folders(tmp_path) == [model.catalog_path_]
    again = search().fit(X, y)
    assert len(trained) == 4
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.catalog_.to_frame().equals(model.catalog_.to_frame())


@pytest.mark.parametrize("strategy", ["rs-mixed", "agebo", "bo-mixed"])
def test_a_larger_budget_goes_on(search, trained, strategy):
    X, y = table()
    settings = {"search": strategy}
    if strategy == "agebo":
        settings |= {"search__population_size": 3, "search__sample_size": 2}
    search(3, **settings).fit(X, y)
    more = search(6, **settings).fit(X, y)
    whole = search(6, catalog_dir=None, **settings).fit(X, y)
    assert len(trained) == 12 and trained[:6] == trained[6:]
    assert [r.configuration for r in more.catalog_] == [r.configuration for r in whole.catalog_]
    assert_array_equal(more.predict(X), whole.predict(X))
    fewer = search(2, **settings).fit(X, y)
    assert len(fewer.catalog_) == 2 and len(trained) == 12


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_search_that_was_cut_off_goes_on(search, trained, monkeypatch, error):
    X, y = table()
    train = MemberTrainer.__call__

    def cut_off(self, *arguments):
        if len(trained) == 2:
            raise error
        return train(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(MemberTrainer, "__call__", cut_off)
        if error is KeyboardInterrupt:
            with pytest.warns(UserWarning, match="interrupted: continuing with 2 of 5"):
                model = search(5).fit(X, y)
            assert len(model.catalog_) == 2 and np.isfinite(model.predict(X)).all()
        else:
            with pytest.raises(SystemExit):
                search(5).fit(X, y)
    model = search(5).fit(X, y)
    assert len(trained) == len(set(trained)) == 5
    assert_array_equal(model.predict(X), search(5, catalog_dir=None).fit(X, y).predict(X))


def test_without_a_random_state_the_search_that_is_there_is_the_one(search, trained):
    X, y = table()
    model = search(random_state=None).fit(X, y)
    again = search(random_state=None).fit(X, y)
    assert len(trained) == 4 and again.entropy_ == model.entropy_
    assert_array_equal(again.predict(X), model.predict(X))


def test_other_data_or_settings_are_another_search(search, trained, tmp_path):
    X, y = table()
    weights = np.linspace(1, 2, len(X))
    search(2).fit(X, y)
    search(2).fit(X, y + 1e-9)
    search(2).fit(X[:-1], y[:-1])
    search(2).fit(X, y, weights)
    search(2).fit(X, y, groups=np.arange(60) // 2)
    search(2).fit(X, y, validation_data=table(20, 1))
    search(2, epochs=2).fit(X, y)
    search(2, random_state=1).fit(X, y)
    search(2, fixed={"units": 8}).fit(X, y)
    assert len(trained) == 18 and len(folders(tmp_path)) == 9
    # Parameters that do not change a trial do not make another search.
    search(2, n_members=1, selection="top", verbose=1, max_time=1e9).fit(X, y)
    search(2, trial_timeout=1e9, selection__loss="crps").fit(X, y)
    assert len(trained) == 18


def test_long_transformers_are_told_apart_by_their_parameters():
    def transformer(rare):
        steps = [(OneHotEncoder(min_frequency=9), [f"column {k}"]) for k in range(20)]
        steps[9][0].set_params(min_frequency=rare)
        return make_column_transformer(*steps)

    one, same, other = transformer(1), transformer(1), transformer(3)
    assert repr(one) == repr(other)  # scikit-learn leaves the middle out
    assert describe(one) == describe(same) != describe(other)


def test_a_catalog_to_start_from_is_known_by_its_trials(search, trained, tmp_path):
    X, y = table()

    def start(units):
        configuration = {"units": units, "activation": "relu"}
        result = search(1, search__initial_trials=[configuration], catalog_dir=None).fit(X, y)
        return result.catalog_

    catalogs = [start(units) for units in (8, 10)]
    assert repr(catalogs[0]) == repr(catalogs[1])
    for catalog in [*catalogs, catalogs[0]]:
        model = search(1, search__initial_trials=catalog).fit(X, y)
        assert model.catalog_[0].configuration == catalog[0].configuration
    assert len(trained) == 4 and len(folders(tmp_path)) == 2
    # A stored search is known by its trials too, wherever it is.
    for path in folders(tmp_path):
        search(1, search__initial_trials=path).fit(X, y)
    assert len(trained) == 4


def test_the_folder_of_one_search_is_for_it_alone(search, tmp_path):
    X, y = table()
    path = search(2).fit(X, y).catalog_path_
    assert search(2, catalog_dir=str(path)).fit(X, y).catalog_path_ == path
    with pytest.raises(CatalogMismatchError, match=r"X: other values\n.*epochs: 3 there, 7 here"):
        search(2, catalog_dir=path, epochs=7).fit(X + 1, y)


def test_the_folder_of_all_searches_is_no_search_to_start_from(search, tmp_path):
    X, y = table()
    path = search(1).fit(X, y).catalog_path_
    with pytest.raises(ValueError, match=f"Got `catalog_dir`.*Use '{path}'"):
        search(1, search__initial_trials=tmp_path).fit(X, y)
    with pytest.raises(ValueError, match=f"Use '{tmp_path}' as `catalog_dir`"):
        search(1, search__initial_trials=path, catalog_dir=path).fit(X, y)


def test_a_pickle_holds_no_networks_of_the_trials_it_started_from(search):
    X, y = table()
    settings = {"catalog_dir": None, "search__initial_trials": None}
    catalog = search(9, **settings).fit(X, y).catalog_
    model = search(1, **{**settings, "search__initial_trials": catalog}).fit(X, y)
    copied = pickle.loads(pickle.dumps(model))
    for one, none_has_weights in ((copied, True), (model, False)):
        kept = one.search.initial_trials
        networks = [n for k in kept.completed for n in kept[int(k)].result.networks]
        assert {network.weights is None for network in networks} == {none_has_weights}
    again = copied.fit(X, y)
    assert_array_equal(again.predict(X), model.predict(X))


def test_clones_of_a_loaded_search_get_folders_of_their_own(search, tmp_path):
    X, y = table()
    search(2, kind=NESRegressor).fit(X, y)
    loaded = NESRegressor.from_catalog(tmp_path, space=search().space)
    assert loaded.catalog_dir == str(tmp_path)
    assert len(loaded.baseline("deep-ensemble").fit(X, y).catalog_) == loaded.n_members
    assert cross_val_score(loaded, X, y, cv=2).shape == (2,)
    assert len(folders(tmp_path)) == 4


def test_stages_of_numpy_are_read_again(search):
    X, y = table()
    halving = SuccessiveHalving(np.linspace(0.3, 0.6, 2), min_trials=1)
    assert {type(share) for share in halving.shares} == {float}
    settings = {"search__discard": halving, "repeats": 0, "search": "rs-mixed", "n_members": 2}
    assert (search(8, **settings).fit(X, y).catalog_.to_frame().status == "discarded").any()
    assert len(search(8, **settings).fit(X, y).catalog_) == 8


def test_a_pair_of_functions_is_given_again(search, trained, tmp_path):
    from skuq.backend import keras

    def build(hp, input_shape, n_outputs):
        x = keras.Input(input_shape)
        hidden = keras.layers.Dense(hp.Choice("units", [3, 4]), activation="relu")(x)
        return keras.Model(x, keras.layers.Dense(n_outputs)(hidden))

    def training(hp):
        return {"learning_rate": hp.Float("rate", 1e-3, 1e-2), "batch_size": 32}

    (X, y), space = table(), (build, training)
    search(2, space=space, n_members=1).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(tmp_path)
    with pytest.raises(MissingPartError, match="space"):
        clone(loaded).fit(X, y)
    AutoDEUQRegressor.from_catalog(tmp_path, space=space).fit(X, y)
    assert len(trained) == 2


@pytest.mark.slow
def test_a_changed_search_space_is_noticed(search, trained):
    X, y = table()

    def network(units, input_shape, n_outputs):
        from skuq.backend import keras

        return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(units, "tanh"),
                                 keras.layers.Dense(n_outputs)])  # fmt: skip

    def build(hp, *shapes):
        return network(hp.Int("units", 4, 8), *shapes)

    def edited(hp, *shapes):
        return network(hp.Int("units", 4, 16), *shapes)

    edited.__name__, edited.__qualname__ = build.__name__, build.__qualname__
    model = search(2, space=build).fit(X, y)
    with pytest.raises(CatalogMismatchError, match="units: .*high=8.* there, .*high=16.* here"):
        search(2, space=edited).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_)
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert len(trained) == 2


def test_a_search_space_with_other_values_is_another_one(search, trained):
    X, y = table()

    def space_of(width):
        def build(hp, input_shape, n_outputs):
            from skuq.backend import keras

            inputs = keras.Input(input_shape)
            hidden = keras.layers.Dense(width, hp.Choice("activation", ["tanh", "relu"]))(inputs)
            return keras.Model(inputs, keras.layers.Dense(n_outputs)(hidden))

        return build

    paths = [search(2, space=space_of(w)).fit(X, y).catalog_path_ for w in (3, 5, 3)]
    assert paths[0] == paths[2] != paths[1]
    assert len(trained) == 4


def test_only_one_at_a_time(search):
    X, y = table()
    model = search(1).fit(X, y)
    description = model.catalog_path_ / "search.skuq"
    from skuq._utils import _archive

    parts = _archive.read(description, kind="search")["parts"]
    with (
        CatalogFolder(model.catalog_path_, parts),
        pytest.raises(CatalogLockedError, match="Another process or thread"),
    ):
        search(2).fit(X, y)
    assert len(search(2).fit(X, y).catalog_) == 2


def test_from_catalog_is_what_fit_gave(search, trained, tiny_space):
    X, y = table()
    model = search(6).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_)
    for name in ("mean", "aleatoric", "epistemic"):
        one, other = (getattr(m.predict_uncertainty(X), name) for m in (model, loaded))
        assert_array_equal(one, other)
    assert loaded.get_params().keys() == model.get_params().keys()
    assert loaded.entropy_ == model.entropy_ and loaded.n_features_in_ == 2
    three = AutoDEUQRegressor.from_catalog(model.catalog_path_, n_members=3, selection="top")
    assert len(three.selection_) == 3 and three.n_members == 3
    assert_array_equal(model.reselect(n_members=3, selection="top").predict(X), three.predict(X))
    assert len(trained) == 6
    with pytest.raises(RuntimeError, match="`space`.*was not saved"):
        clone(loaded).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_, space=tiny_space)
    assert len(clone(loaded).set_params(n_trials=7).fit(X, y).catalog_) == 7
    assert len(trained) == 7


def test_from_catalog_takes_the_first_trials_as_fit_does(search):
    X, y = table()
    path = search(4).fit(X, y).catalog_path_
    fewer = search(2).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(path)
    assert [r.trial_number for r in loaded.catalog_] == [0, 1]
    assert_array_equal(loaded.predict(X), fewer.predict(X))
    assert len(AutoDEUQRegressor.from_catalog(path, n_trials=4).catalog_) == 4


def test_from_catalog_takes_a_search_that_goes_on(search, monkeypatch):
    X, y = table()
    seen = []
    train = MemberTrainer.__call__

    def look(self, *arguments):
        if len(seen) < 2:
            seen.append(None)
        else:
            seen.append(len(AutoDEUQRegressor.from_catalog(search().catalog_dir).catalog_))
        return train(self, *arguments)

    monkeypatch.setattr(MemberTrainer, "__call__", look)
    search(4).fit(X, y)
    assert seen == [None, None, 2, 3]


def test_from_catalog_refuses_what_it_is_not(search, tmp_path, tiny_space):
    X, y = table()
    with pytest.raises(FileNotFoundError, match="holds no search"):
        AutoDEUQRegressor.from_catalog(tmp_path)
    path = search(2).fit(X, y).catalog_path_
    with pytest.raises(TypeError, match="holds a search of AutoDEUQRegressor. Use AutoDEUQReg"):
        NESRegressor.from_catalog(path)
    with pytest.raises(ValueError, match=r"\['epochs'\] cannot be changed"):
        AutoDEUQRegressor.from_catalog(path, epochs=5)
    with pytest.raises(ValueError, match="'n_members' parameter"):
        AutoDEUQRegressor.from_catalog(path, n_members=0)
    for file in path.glob("trial-*"):
        file.unlink()
    with pytest.raises(SearchFailedError, match="None of the 0 trials"):
        AutoDEUQRegressor.from_catalog(path)
    search(2, epochs=4).fit(X, y)
    with pytest.raises(ValueError, match="holds 2 searches"):
        AutoDEUQRegressor.from_catalog(tmp_path)


def test_frames_and_classes_come_back(search, trained):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["u", "v", None], 80)})
    labels = np.where(X["a"] > 0, "yes", "no")
    model = search(3, kind=AutoDEUQClassifier, class_weight="balanced").fit(X, labels)
    loaded = AutoDEUQClassifier.from_catalog(model.catalog_path_)
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.predict(X[:3]).tolist() == model.predict(X[:3]).tolist()
    assert loaded.feature_names_in_.tolist() == ["a", "b"]
    assert search(3, kind=AutoDEUQClassifier, class_weight="balanced").fit(X, labels) and (
        len(trained) == 3
    )


@pytest.mark.slow
@pytest.mark.parametrize("vary", slow_after(1, ["both", "hyperparameters", "initialisation"]))
def test_neural_ensemble_search_is_durable_too(search, trained, iris, vary):
    X, y = iris
    shift = [(X + 0.1, y), (X + 0.2, y)]
    settings = {
        "kind": NESClassifier,
        "search__vary": vary,
        "n_members": 2,
        "search__population_size": 3,
    }
    model = search(3, **settings).fit(X, y, shift_validation=shift)
    again = search(3, **settings).fit(X, y, shift_validation=shift)
    assert len(trained) == 3
    loaded = NESClassifier.from_catalog(model.catalog_path_)
    for other in (again, loaded):
        assert_array_equal(other.predict_proba(X), model.predict_proba(X))
        assert len(other.selections_) == 3
        assert_array_equal(other.at_severity(2).predict(X), model.at_severity(2).predict(X))
    more = search(5, **settings).fit(X, y, shift_validation=shift)
    assert len(trained) == 5
    whole = search(5, catalog_dir=None, **settings).fit(X, y, shift_validation=shift)
    assert [(r.seed, r.configuration) for r in more.catalog_] == [
        (r.seed, r.configuration) for r in whole.catalog_
    ]
    del trained[5:]
    search(3, **settings).fit(X, y, shift_validation=shift[:1])
    assert len(trained) == 8


@pytest.mark.slow
def test_a_keras_tuner_oracle_goes_on(search, trained):
    keras_tuner = pytest.importorskip("keras_tuner")
    X, y = table()

    def oracle():
        return keras_tuner.oracles.BayesianOptimizationOracle(
            objective=keras_tuner.Objective("score", "min"), max_trials=20, seed=1,
            num_initial_points=3,
        )  # fmt: skip

    search(4, search=oracle()).fit(X, y)
    more = search(7, search=oracle()).fit(X, y)
    whole = search(7, search=oracle(), catalog_dir=None).fit(X, y)
    assert len(trained) == 14
    assert [r.configuration for r in more.catalog_] == [r.configuration for r in whole.catalog_]


def test_folds_and_clones_share_a_folder(search, trained, tmp_path):
    X, y = table(90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = cross_val_score(search(2), X, y, cv=3)
        assert len(trained) == 6 and len(folders(tmp_path)) == 3
        assert_array_equal(cross_val_score(search(2), X, y, cv=3), first)
        grid = GridSearchCV(search(2), {"n_members": [1, 2], "selection": ["top", "greedy"]}, cv=3)
        grid.fit(X, y)
    # The four candidates are chosen from the same networks; only the refit trains some.
    assert len(trained) == 8


def test_a_folder_says_what_the_last_fit_said(search, tmp_path):
    X, y = table()
    model = search(3, n_members=2).fit(X, y)
    search(5, n_members=1, selection__min_members=1).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(tmp_path)
    assert loaded.n_trials == 5 and loaded.n_members == 1 and len(loaded.catalog_) == 5
    size = (model.catalog_path_ / "estimator.skuq").stat().st_size
    model.set_params(n_trials=6).fit(X, y)  # fitted before: nothing of that goes into the file
    assert (model.catalog_path_ / "estimator.skuq").stat().st_size < 1.1 * size


def test_repeats_that_are_there_are_not_trained_again(search, trained):
    X, y = table()
    model = search(repeats=2).fit(X, y)
    n_chosen = len(model.selection_)
    assert len(trained) == 4 + 2 * n_chosen
    again = search(repeats=2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_)
    assert len(trained) == 4 + 2 * n_chosen
    for other in (again, loaded):
        assert_array_equal(other.predict(X, return_std=True), model.predict(X, return_std=True))
        # They are no trials of the search.
        assert other.catalog_.to_frame().equals(model.catalog_.to_frame())
        assert other.leaderboard().equals(model.leaderboard())
    fewer = AutoDEUQRegressor.from_catalog(model.catalog_path_, repeats=1)
    assert len(fewer.fitted_.members) == 2 * n_chosen
    assert_array_equal(fewer.predict(X), search(repeats=1).fit(X, y).predict(X))
    plain = search(repeats=0).fit(X, y)
    assert len(plain.fitted_.members) == n_chosen and len(trained) == 4 + 2 * n_chosen


def test_more_repeats_or_members_train_the_missing_ones(search, trained):
    X, y = table()
    first = search(repeats=1, n_members=2).fit(X, y)
    del trained[:]
    more = search(repeats=2, n_members=4, selection="top").fit(X, y)
    n_common = len({*first.selection_.indices} & {*more.selection_.indices})
    assert len(trained) == 8 - n_common
    whole = search(repeats=2, n_members=4, selection="top", catalog_dir=None).fit(X, y)
    assert_array_equal(more.predict(X), whole.predict(X))
    with pytest.warns(UserWarning, match="4 of 12 repeats of the chosen trials are not stored"):
        AutoDEUQRegressor.from_catalog(more.catalog_path_, repeats=3)


def test_repeats_that_were_cut_off_go_on(search, trained, monkeypatch):
    X, y = table()
    repeat, settings = MemberRepeater.__call__, {"repeats": 2, "n_members": 2, "selection": "top"}

    def cut_off(self, *arguments):
        if len(trained) == 6:
            raise SystemExit
        return repeat(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(MemberRepeater, "__call__", cut_off)
        search(**settings).fit(X, y)
    model = search(**settings).fit(X, y)
    assert len(trained) == len(set(trained)) == 8
    assert_array_equal(model.predict(X), search(**settings, catalog_dir=None).fit(X, y).predict(X))


def test_failed_and_damaged_repeats_are_trained_again(search, trained, monkeypatch):
    X, y = table()
    settings = {"repeats": 2, "n_members": 2, "selection": "top"}

    def fail(self, *arguments):
        raise MemoryError("no room")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="4 of 4 repeats"):
        patch.setattr(MemberRepeater, "__call__", fail)
        search(**settings).fit(X, y)
    model = search(**settings).fit(X, y)
    assert len(trained) == 8
    file = next(iter((model.catalog_path_ / "repeat-001").glob("trial-*.skuq")))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=r"repeat-001/trial-00000\d.skuq cannot be read"):
        again = search(**settings).fit(X, y)
    assert len(trained) == 9
    assert_array_equal(again.predict(X), model.predict(X))


def test_a_warm_start_keeps_repeats(search, trained):
    X, y = table()
    model = search(catalog_dir=None, warm_start=True, repeats=1, n_members=2).fit(X, y)
    expected, n_trained = model.predict(X), len(trained)
    assert_array_equal(model.fit(X, y).predict(X), expected)
    assert len(trained) == n_trained


def test_a_folder_may_be_moved(search, trained, tmp_path, tiny_space):
    X, y = table()
    search(3, catalog_dir=tmp_path / "here").fit(X, y)
    (tmp_path / "here").rename(tmp_path / "there")
    loaded = AutoDEUQRegressor.from_catalog(tmp_path / "there", space=tiny_space)
    assert loaded.set_params(n_trials=4).fit(X, y).catalog_path_.parent == tmp_path / "there"
    assert len(trained) == 4 and not (tmp_path / "here").exists()


def test_other_labels_or_columns_are_another_search(search, trained):
    X, y = table()
    settings = {"kind": AutoDEUQClassifier}
    search(1, **settings).fit(X, np.where(y > 0, "b", "a"))
    search(1, **settings).fit(X, np.where(y > 0, "yes", "no"))
    search(1, **settings).fit(pd.DataFrame(X, columns=["a", "b"]), np.where(y > 0, "b", "a"))
    assert len(trained) == 3


@pytest.mark.slow
def test_functions_with_other_arguments_are_another_search(search, trained):
    from functools import partial

    X, y = table()

    def build(hp, input_shape, n_outputs, width):
        from skuq.backend import keras

        hp.Choice("activation", ["tanh", "relu"])
        return keras.Sequential(
            [keras.Input(input_shape), keras.layers.Dense(width), keras.layers.Dense(n_outputs)]
        )

    for width in (4, 16):
        model = search(1, space=partial(build, width=width)).fit(X, y)
        assert f'"units": {width}' in model.catalog_.member(0).network
    assert len(trained) == 2
    search(1, epochs=np.int64(3)).fit(X, y)
    search(1, epochs=3).fit(X, y)
    assert len(trained) == 3


def test_an_estimator_that_cannot_be_saved_can_go_on(search, trained):
    class Mine(AutoDEUQRegressor):
        pass

    X, y = table()
    with pytest.warns(UserWarning, match="not loaded by `from_catalog`"):
        model = search(2, kind=Mine).fit(X, y)
    with pytest.warns(UserWarning, match="not loaded by `from_catalog`"):
        assert_array_equal(search(2, kind=Mine).fit(X, y).predict(X), model.predict(X))
    assert len(trained) == 2
    with pytest.raises(FileNotFoundError, match="could not be saved"):
        Mine.from_catalog(model.catalog_path_)


def test_a_preprocessor_of_scikit_learn_comes_back(search):
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["u", "v"], 80)})
    columns = make_column_transformer((StandardScaler(), ["a"]), (OneHotEncoder(), ["b"]))
    model = search(2, preprocess=columns).fit(X, X["a"] + (X["b"] == "u"))
    loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_)
    assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_repaired_search_goes_on(search, monkeypatch):
    X, y = table()

    def broken(self, *arguments):
        raise RuntimeError("no gpu")

    with monkeypatch.context() as patch:
        patch.setattr(MemberTrainer, "__call__", broken)
        with pytest.raises(SearchFailedError, match="All 10 trials"):
            search(20).fit(X, y)
    model = search(20).fit(X, y)
    assert len(model.catalog_) == 20 and sum(r.failed for r in model.catalog_) == 10


def test_differences_in_validation_rows_are_readable(search):
    X, y = table()
    path = search(1).fit(X, y, validation_data=table(30, 1)).catalog_path_
    with pytest.raises(CatalogMismatchError, match="validation_data: other values"):
        search(1, catalog_dir=path).fit(X, y, validation_data=table(30, 2))


def test_pickles_know_their_folder(search):
    X, y = table()
    model = search(3).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="lost the networks"):
        again.reselect(n_members=1)
    whole = AutoDEUQRegressor.from_catalog(again.catalog_path_)
    assert len(whole.reselect(n_members=1, selection__min_members=1).selection_) == 1


@pytest.mark.parametrize("loss", ["nll", "crps", "mse"])
def test_another_loss_chooses_the_best_by_it(search, loss):
    X, y = table(200)
    model = search(8, catalog_dir=None).fit(X, y)
    kept = model.selection_
    assert model.reselect(selection="top", selection__loss=loss, n_members=1) is model
    held_out = model.catalog_.held_out
    best = {}
    for index in model.catalog_.completed:
        mean, std = GaussianHead().distribution(
            model.catalog_.member(index).held_out.astype("float64")
        )
        error = held_out.y - mean
        from scipy import stats
        from scoringrules import crps_normal

        best[index] = {
            "nll": -stats.norm.logpdf(held_out.y, mean, std),
            "crps": crps_normal(held_out.y, mean, std),
            "mse": error**2,
        }[loss].mean()
    assert model.selection_.indices.tolist() == [min(best, key=best.get)]
    np.testing.assert_allclose(model.selection_.loss, min(best.values()), rtol=1e-6)
    assert_array_equal(model.reselect().selection_.indices, kept.indices)
    with pytest.raises(ValueError, match="'loss' parameter"):
        model.reselect(selection__loss="best")
    for name in ("epochs", "space"):
        with pytest.raises(ValueError, match=rf"`reselect` can change .*Got \['{name}'\]"):
            model.reselect(**{name: 1})


@pytest.mark.slow
def test_brier_score_of_an_ensemble(iris, search):
    X, y = iris
    model = search(6, kind=AutoDEUQClassifier, catalog_dir=None, selection__loss="brier").fit(X, y)
    proba = model.predict_proba(X[model.catalog_.held_out.rows])
    codes = model.catalog_.held_out.y[:, 0].astype(int)
    expected = ((proba - np.eye(3)[codes]) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(model.selection_.loss, expected, rtol=1e-5)


def test_reselection_on_new_rows(search):
    X, y = table(200)
    model = search(6, catalog_dir=None).fit(X, y)
    X_new, y_new = table(100, 1)
    again = model.reselect(X_new, y_new, n_members=2)
    raw = model.member_estimators(every_trial=True)
    nll = [-m.log_prob(X_new, y_new).mean() for _, m in raw]
    best = model.reselect(X_new, y_new, selection="top", n_members=1).selection_.indices
    assert best.tolist() == [int(np.argmin(nll))] and again is model


def test_limits_are_parameters(search, trained):
    X, y = table()
    model = search(40, max_time=1e-6).fit(X, y)
    assert len(model.catalog_) == len(trained) == 1
    with pytest.raises(SearchFailedError, match=r"All 10 trials so far failed[\s\S]*Timeout"):
        search(20, trial_timeout=1e-9, epochs=5).fit(X, y)
    with pytest.raises(ValueError, match="'catalog_dir' parameter"):
        search(2, catalog_dir=3).fit(X, y)


def test_a_folder_that_cannot_be_is_said_before_anything_is_trained(search, trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        search(2, catalog_dir=tmp_path / "file").fit(*table())
    assert not trained


def test_the_catalog_of_a_folder_has_every_trial(search):
    X, y = table()
    model = search(3).fit(X, y)
    catalog = Catalog.load(model.catalog_path_)
    assert catalog.to_frame().equals(model.catalog_.to_frame())


# --------------------------------------------------------------------------- warm_start


@pytest.mark.parametrize("kind", [AutoDEUQRegressor, AutoDEUQClassifier, NESClassifier])
def test_a_warm_start_adds_trials(search, trained, kind):
    X, y = table()
    y = y if kind is AutoDEUQRegressor else (y > 0).astype(int)
    model = search(3, kind, catalog_dir=None, warm_start=True).fit(X, y)
    model.set_params(n_trials=5).fit(X, y)
    assert len(trained) == 5 and len(model.catalog_) == 5
    whole = search(5, kind, catalog_dir=None).fit(X, y)
    assert_array_equal(model.predict(X), whole.predict(X))
    model.set_params(n_members=1).fit(X, y)  # chosen anew, nothing trained
    assert len(trained) == 10 and model.n_members == 1
    model.set_params(warm_start=False).fit(X, y)
    assert len(trained) == 15


def test_a_warm_start_without_a_random_state_goes_on_with_the_last(search, trained):
    X, y = table()
    model = search(2, catalog_dir=None, warm_start=True, random_state=None).fit(X, y)
    entropy = model.entropy_
    model.set_params(n_trials=3).fit(X, y)
    assert model.entropy_ == entropy and len(trained) == 3


def test_a_warm_start_after_an_interrupt(search, trained, monkeypatch):
    X, y = table()
    train = MemberTrainer.__call__

    def interrupted(self, *arguments):
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train(self, *arguments)

    model = search(5, catalog_dir=None, warm_start=True)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="3 of 5"):
        patch.setattr(MemberTrainer, "__call__", interrupted)
        model.fit(X, y)
    model.fit(X, y)
    assert len(trained) == 5 and [r.trial_number for r in model.catalog_] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "rows", "named"),
    [
        ({"epochs": 2}, 60, r"\['epochs'\]"),
        ({}, 50, r"\['X', 'y'\]"),
        ({"random_state": 1}, 60, r"\['random_state'\]"),
    ],
)
def test_a_warm_start_of_another_search_says_so(search, trained, changes, rows, named):
    X, y = table()
    model = search(2, catalog_dir=None, warm_start=True).fit(X, y)
    with pytest.warns(UserWarning, match=f"warm_start.*{named}.*A new search") as noted:
        model.set_params(**changes).fit(X[:rows], y[:rows])
    assert [w.filename for w in noted if "warm_start" in str(w.message)] == [__file__]
    assert len(trained) == 4
    fresh = search(2, catalog_dir=None, **changes).fit(X[:rows], y[:rows])
    assert_array_equal(model.predict(X), fresh.predict(X))


def test_a_deep_copy_goes_on_with_its_own_trials(search, trained):
    X, y = table()
    model = search(2, catalog_dir=None, warm_start=True).fit(X, y)
    copied = copy.deepcopy(model).set_params(n_trials=3).fit(X, y)
    assert len(trained) == 3
    assert (len(copied.catalog_), len(model.catalog_)) == (3, 2)
    assert len(model.set_params(n_trials=3).fit(X, y).catalog_) == 3 and len(trained) == 4


@pytest.mark.parametrize("how", ["pickle", "save", "no warm_start", "folder"])
def test_warm_starts_that_have_nothing_to_go_on_with(search, trained, tmp_path, how):
    X, y = table()
    model = search(4, n_members=2, catalog_dir=None, warm_start=how != "no warm_start")
    if how == "folder":
        model.set_params(catalog_dir=tmp_path)
    model.fit(X, y)
    n_memory = len(pickle.dumps(model))
    if how == "pickle":
        model = pickle.loads(pickle.dumps(model))
    elif how == "save":
        skuq.save(model, tmp_path / "model.skuq")
        space = model.space
        model = skuq.load(tmp_path / "model.skuq", parts={"space": space})
    model.set_params(n_trials=5, catalog_dir=None, warm_start=True)
    with pytest.warns(UserWarning, match="its trials are not in memory.*A new search starts"):
        model.fit(X, y)
    assert len(trained) == 9
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "warm_start")
        model.set_params(n_trials=6).fit(X, y)
    assert len(trained) == 10
    clone(model).set_params(n_trials=1).fit(X, y)  # says nothing: it was never fitted
    assert len(trained) == 11
    assert len(pickle.dumps(model)) < 1.5 * n_memory  # only members' networks, as ever


def test_a_fit_that_fails_loses_no_trial_in_memory(search, trained, monkeypatch):
    X, y = table()
    model = search(3, catalog_dir=None, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, np.where(y > 1, np.nan, y))

    def failing(self, *arguments):
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(MemberTrainer, "__call__", failing)
        model.set_params(n_trials=5).fit(X, y)
    model.set_params(n_trials=3).fit(X, y)
    assert len(trained) == 3 and len(model.catalog_) == 3
    model.set_params(n_trials=2).fit(X, y)
    assert len(model.catalog_) == 2
    model.set_params(n_trials=3).fit(X, y)
    assert len(trained) == 3 and len(model.catalog_) == 3


def test_a_warm_start_knows_functions_and_objects_from_others(search, trained, tiny_space):
    X, y = table()

    class Other(type(tiny_space)):
        def build(self, configuration, input_shape, n_outputs):
            return super().build({**configuration, "units": 3}, input_shape, n_outputs)

    Other.__qualname__, Other.__module__ = (
        type(tiny_space).__qualname__,
        type(tiny_space).__module__,
    )
    model = search(2, catalog_dir=None, warm_start=True).fit(X, y)
    with pytest.warns(UserWarning, match=r"it differs in \['space'\]"):
        model.set_params(space=Other(), n_trials=3).fit(X, y)
    assert len(trained) == 5
    decisions = Other.decisions
    space = model.space

    def fewer(self, *shape):
        architecture, hyperparameters = decisions(self, *shape)
        return type(decisions(self, *shape))(architecture, Space(hyperparameters.decisions[:1]))

    Other.decisions = fewer
    assert space is model.space
    with pytest.raises(CatalogMismatchError, match=r"\['batch_size'\] differ.*warm_start=False"):
        model.fit(X, y)


def _priced(price):
    return lambda trial: trial.score + price * trial.n_weights


def test_another_price_is_another_search(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    options = {"n_trials": 2, "epochs": 2, "validation": 2, "repeats": 0, "random_state": 0}
    scores = []
    for price in (1e-6, 1.0):
        model = make(
            AutoDEUQRegressor, search__objective=_priced(price), catalog_dir=tmp_path, **options
        )
        scores.append(model.fit(X, X[:, 0]).leaderboard()["score"].to_numpy())
    assert (scores[1] > scores[0] + 1).all()
    trial = model.catalog_[0].result
    assert trial.seconds == sum(network.seconds for network in trial.networks) > 0


@pytest.mark.parametrize("epochs", [3, 10**6])
def test_networks_that_were_hardly_trained_are_told(epochs, search):
    X, y = table()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        search(2, epochs=epochs, max_time=2, catalog_dir=None).fit(X, y)
    said = [str(w.message) for w in told if "% of its epochs within max_time=2" in str(w)]
    assert len(said) == (epochs > 3)


def test_a_fit_that_goes_on_with_a_deadline_runs_a_trial_of_its_own(search):
    X, y = table()
    numbers = []
    for _ in range(3):
        model = search(50, epochs=10**6, max_time=2).fit(X, y)
        numbers.append(len(model.catalog_))
    assert numbers[0] < numbers[1] < numbers[2]
