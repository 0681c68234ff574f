"""Searches stored in a folder: resumed, loaded, and selected from again."""

import contextlib
import copy
import gc
import os
import pickle
import warnings
from pathlib import Path

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scoringrules import crps_normal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import FunctionTransformer
from tiers import cases, slow_after
from training_data import MemberRepeater, MemberTrainer

import skuq
from skuq import AutoDEUQClassifier, AutoDEUQRegressor, NESClassifier, NESRegressor, exceptions
from skuq.backend import keras
from skuq.estimators.methods._search_store import TemporaryFolder
from skuq.exceptions import CatalogLockedError, CatalogMismatchError, SearchFailedError
from skuq.networks import GaussianHead, Space
from skuq.search import Catalog


@pytest.fixture
def trained(monkeypatch):
    """Seeds of the networks that are trained, in their order."""
    seeds = []
    train, together = MemberTrainer.__call__, MemberTrainer.train_together

    def train_one(self, configuration, seed, *arguments):
        seeds.append(seed)
        return train(self, configuration, seed, *arguments)

    def train_several(self, configurations, seeds_of_members):
        seeds.extend(seeds_of_members)
        return together(self, configurations, seeds_of_members)

    monkeypatch.setattr(MemberTrainer, "__call__", train_one)
    monkeypatch.setattr(MemberTrainer, "train_together", train_several)
    return seeds


class Stop(BaseException):
    """Ends the process, as far as a search can see."""


@pytest.fixture
def stop_at(monkeypatch, trained):
    """Raise an error in place of a training: ``with stop_at(n, error)`` after `n` networks."""

    @contextlib.contextmanager
    def stop(n, error, kind=MemberTrainer):
        train = kind.__call__

        def stopped(self, *arguments):
            if len(trained) >= n:
                raise error
            return train(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "__call__", stopped)
            yield

    return stop


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


def test_fit_trains_no_stored_trial_again(search, trained, tmp_path):
    X, y = table()
    model = search(random_state=None).fit(X, y)
    assert len(trained) == 4 and folders(tmp_path) == [model.catalog_path_]
    again = search(random_state=None).fit(X, y)
    assert len(trained) == 4 and again.entropy_ == model.entropy_
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.catalog_.to_frame().equals(model.catalog_.to_frame())


ORACLE = keras_tuner.oracles.BayesianOptimizationOracle(
    keras_tuner.Objective("score", "min"), max_trials=20, seed=1, num_initial_points=3
)


@pytest.mark.parametrize("strategy", slow_after(3, ["random", "agebo", "bo-mixed", ORACLE]))
def test_fit_with_a_larger_budget_continues(search, trained, strategy):
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("stored", [True, False])
def test_fit_continues_an_interrupted_search(search, trained, stop_at, error, stored):
    X, y = table()
    # A search without a folder of the user's continues by `warm_start`.
    model = search(5) if stored else search(5, catalog_dir=None, warm_start=True)
    if error is KeyboardInterrupt:
        with stop_at(2, error), pytest.warns(UserWarning, match="continuing with 2 of 5"):
            model.fit(X, y)
        assert len(model.catalog_) == 2 and np.isfinite(model.predict(X)).all()
    else:
        with stop_at(2, error), pytest.raises(Stop):
            model.fit(X, y)
    model.fit(X, y)
    assert len(trained) == 5
    assert [record.trial_number for record in model.catalog_] == [0, 1, 2, 3, 4]
    assert_array_equal(model.predict(X), search(5, catalog_dir=None).fit(X, y).predict(X))


def test_fit_tells_searches_apart(search, trained, tmp_path):
    X, y = table()
    search(1).fit(X, y)
    search(1).fit(X, y + 1e-9)
    search(1).fit(X[:-1], y[:-1])
    search(1).fit(X, y, np.linspace(1, 2, len(X)))
    search(1).fit(X, y, groups=np.arange(60) // 2)
    search(1).fit(X, y, validation_data=table(20, 1))
    search(1).fit(pd.DataFrame(X, columns=["a", "b"]), y)
    search(1, kind=AutoDEUQClassifier).fit(X, np.where(y > 0, "b", "a"))
    search(1).fit(X, y, shift_validation=table(20, 2))
    search(1, kind=AutoDEUQClassifier).fit(X, np.where(y > 0, "yes", "no"))
    for settings in (
        {"epochs": 2},
        {"random_state": 1},
        {"fixed": {"units": 8}},
        *({"search__objective": lambda t, p=price: t.score + p * t.n_weights} for price in (1, 2)),
    ):
        search(1, **settings).fit(X, y)
    assert len(trained) == 15 and len(folders(tmp_path)) == 15
    message = "by `calibrate`: 'log loss at the best temperature' there, 'log loss' here"
    with pytest.warns(UserWarning, match=f"A new search .*\n  score of trials, {message}"):
        search(1, kind=AutoDEUQClassifier, calibrate=False).fit(X, np.where(y > 0, "yes", "no"))
    assert len(trained) == 16 and len(folders(tmp_path)) == 16
    # Parameters that do not change a trial do not make another search.
    search(1, n_members=1, selection="top", verbose=1, calibrate=False).fit(X, y)
    search(1, max_time=1e9).fit(X, y)
    search(1, trial_timeout=1e9, selection__loss="crps", epochs=np.int64(3)).fit(X, y)
    assert len(trained) == 16


def test_trials_of_tables_that_learnt_y_itself_are_another_search(tmp_path, monkeypatch):
    def end(path, parts, max_wait):
        raise InterruptedError(parts)

    monkeypatch.setattr("skuq.estimators.methods._search_store.CatalogFolder", end)
    with pytest.raises(InterruptedError, match="what ridge regression leaves"):
        NESRegressor(1, catalog_dir=tmp_path).fit(*table())


def test_fit_knows_a_catalog_to_start_from_by_its_trials(search, trained, tmp_path):
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


def test_fit_refuses_the_folder_of_another_search(search, tmp_path):
    X, y = table()
    path = search(1).fit(X, y).catalog_path_
    assert search(1, catalog_dir=str(path)).fit(X, y).catalog_path_ == path
    with pytest.raises(CatalogMismatchError, match=r"X: other values\n.*epochs: 3 there, 7 here"):
        search(1, catalog_dir=path, epochs=7).fit(X + 1, y)
    with pytest.raises(CatalogMismatchError, match="validation_data: .*"):
        search(1, catalog_dir=path).fit(X, y, validation_data=table(30, 2))


def test_pickle_drops_networks_of_initial_trials(search):
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


def test_pickle_drops_networks_but_knows_its_folder(search):
    X, y = table()
    model = search(3).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="lost the networks.*`from_catalog`"):
        again.reselect(n_members=1)
    whole = AutoDEUQRegressor.from_catalog(again.catalog_path_)
    assert len(whole.reselect(n_members=1, selection__min_members=1).selection_) == 1


def test_from_catalog_gives_clones_folders_of_their_own(search, tmp_path):
    X, y = table()
    fitted = search(2, kind=NESRegressor).fit(X, y, shift_validation=[table(20, 1), table(20, 2)])
    loaded = NESRegressor.from_catalog(tmp_path, space=search().space)
    assert loaded.catalog_dir == str(tmp_path) and len(loaded.selections_) == 3
    assert_array_equal(loaded.at_severity(2).predict(X), fitted.at_severity(2).predict(X))
    assert len(loaded.baseline("deep-ensemble").fit(X, y).catalog_) == loaded.n_members
    assert cross_val_score(loaded, X, y, cv=2).shape == (2,)
    assert len(folders(tmp_path)) == 4


def test_fit_tells_functions_apart_by_what_they_use(search, trained, tmp_path):
    X, y = table()

    def space_of(width):
        def build(hp, input_shape, n_outputs):
            inputs = keras.Input(input_shape)
            hidden = keras.layers.Dense(width, hp.Choice("activation", ["tanh", "relu"]))(inputs)
            return keras.Model(inputs, keras.layers.Dense(n_outputs)(hidden))

        def training(hp):
            return {"learning_rate": hp.Float("rate", 1e-3, 1e-2), "batch_size": 32}

        return build, training

    paths = [search(2, space=space_of(w)).fit(X, y).catalog_path_ for w in (3, 5, 3)]
    assert paths[0] == paths[2] != paths[1] and len(trained) == 4
    loaded = AutoDEUQRegressor.from_catalog(paths[0])
    with pytest.raises(exceptions.MissingPartError, match="space"):
        clone(loaded).fit(X, y)
    given = AutoDEUQRegressor.from_catalog(paths[0], space=space_of(3)).fit(X, y)
    assert_array_equal(given.predict(X), loaded.predict(X))
    assert len(trained) == 4


def test_from_catalog_is_what_fit_gave(search, trained, tmp_path, tiny_space):
    X, y = table()
    model = search(6, catalog_dir=tmp_path / "here").fit(X, y)
    (tmp_path / "here").rename(tmp_path / "there")  # a folder may be moved
    path = tmp_path / "there" / model.catalog_path_.name
    loaded = AutoDEUQRegressor.from_catalog(path)
    assert_array_equal(loaded.predict_uncertainty(X), model.predict_uncertainty(X))
    assert loaded.get_params().keys() == model.get_params().keys()
    assert loaded.entropy_ == model.entropy_ and loaded.n_features_in_ == 2
    assert Catalog.load(path).to_frame().equals(model.catalog_.to_frame())
    three = AutoDEUQRegressor.from_catalog(path, n_members=3, selection="top")
    assert len(three.selection_) == 3 and three.n_members == 3
    assert_array_equal(model.reselect(n_members=3, selection="top").predict(X), three.predict(X))
    assert len(trained) == 6
    with pytest.raises(RuntimeError, match="`space`.*was not saved"):
        clone(loaded).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(path, space=tiny_space).set_params(n_trials=7)
    assert loaded.fit(X, y).catalog_path_ == path
    assert len(trained) == len(loaded.catalog_) == 7 and not (tmp_path / "here").exists()


def test_only_one_fit_at_a_time_writes_and_any_may_read(search, monkeypatch):
    X, y = table()
    seen = []
    train = MemberTrainer.__call__

    def look(self, *arguments):
        if len(seen) > 1:
            seen[-1] = len(AutoDEUQRegressor.from_catalog(search().catalog_dir).catalog_)
            with pytest.raises(CatalogLockedError, match="Another process or thread"):
                search(4).fit(X, y)
        seen.append(None)
        return train(self, *arguments)

    monkeypatch.setattr(MemberTrainer, "__call__", look)
    assert len(search(4).fit(X, y).catalog_) == 4
    assert seen == [None, 2, 3, None]


def test_from_catalog_refuses_what_it_is_not(search, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no search"):
        AutoDEUQRegressor.from_catalog(tmp_path)
    path = search(2).fit(*table()).catalog_path_
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
    search(2, epochs=4).fit(*table())
    with pytest.raises(ValueError, match="holds 2 searches"):
        AutoDEUQRegressor.from_catalog(tmp_path)


def test_fit_of_clones_shares_a_folder(search, trained, tmp_path):
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


def test_from_catalog_has_the_settings_and_trials_of_the_last_fit(search, tmp_path):
    X, y = table()
    model = search(3, n_members=2).fit(X, y)
    search(5, n_members=1, selection__min_members=1).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(tmp_path)
    assert loaded.n_trials == 5 and loaded.n_members == 1 and len(loaded.catalog_) == 5
    size = (model.catalog_path_ / "estimator.skuq").stat().st_size
    model.set_params(n_trials=6).fit(X, y)  # fitted before: nothing of that goes into the file
    assert (model.catalog_path_ / "estimator.skuq").stat().st_size < 1.1 * size
    fewer = search(2).fit(X, y)
    loaded = AutoDEUQRegressor.from_catalog(tmp_path)
    assert [r.trial_number for r in loaded.catalog_] == [0, 1]
    assert_array_equal(loaded.predict(X), fewer.predict(X))
    assert len(AutoDEUQRegressor.from_catalog(tmp_path, n_trials=4).catalog_) == 4


def test_fit_trains_no_stored_repeat_again(search, trained):
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
    missing = f"{n_chosen} of {3 * n_chosen} repeats of the chosen trials are not stored"
    with pytest.warns(UserWarning, match=missing):
        AutoDEUQRegressor.from_catalog(model.catalog_path_, repeats=3)


def test_fit_continues_interrupted_repeats(search, trained, stop_at):
    X, y = table()
    settings = {"repeats": 2, "n_members": 2, "selection": "top"}
    with stop_at(6, Stop, MemberRepeater), pytest.raises(Stop):
        search(**settings).fit(X, y)
    model = search(**settings).fit(X, y)
    assert len(trained) == len(set(trained)) == 8
    whole = search(**settings, catalog_dir=None, warm_start=True).fit(X, y)
    assert_array_equal(model.predict(X), whole.predict(X))
    whole.fit(X, y)  # it keeps its repeats in memory
    assert len(trained) == 16
    assert_array_equal(model.predict(X), whole.predict(X))


def test_fit_trains_failed_and_damaged_repeats_again(search, trained, stop_at):
    X, y = table()
    settings = {"repeats": 2, "n_members": 2, "selection": "top"}
    failing = stop_at(0, MemoryError("no room"), MemberRepeater)
    with failing, pytest.warns(UserWarning, match="4 of 4 repeats .*MemoryError: no room"):
        failed = search(**settings).fit(X, y)
    assert len(failed.fitted_.members) == 2 and failed.repeated_ == {}
    model = search(**settings).fit(X, y)
    assert len(trained) == 8
    file = next(iter((model.catalog_path_ / "repeat-001").glob("trial-*.skuq")))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=r"repeat-001/trial-00000\d.skuq cannot be read"):
        again = search(**settings).fit(X, y)
    assert len(trained) == 9
    assert_array_equal(again.predict(X), model.predict(X))


def test_fit_continues_an_estimator_that_cannot_be_saved(search, trained):
    settings, (X, y) = {"preprocess": FunctionTransformer(lambda X: X)}, table()
    with pytest.warns(UserWarning, match="not loaded by `from_catalog`"):
        model = search(2, **settings).fit(X, y)
    with pytest.warns(UserWarning, match="not loaded by `from_catalog`"):
        assert_array_equal(search(2, **settings).fit(X, y).predict(X), model.predict(X))
    assert len(trained) == 2
    with pytest.raises(FileNotFoundError, match="could not be saved"):
        AutoDEUQRegressor.from_catalog(model.catalog_path_)


@pytest.mark.parametrize("settings", [{}, {"catalog_dir": None, "warm_start": True}])
def test_fit_keeps_the_folder_of_a_selection_that_fails(search, trained, settings):
    X, y = table()
    model = search(3, selection=lambda *given, sample_weight: 1 / 0, **settings)
    with pytest.raises(ZeroDivisionError) as raised:
        model.fit(X, y)
    (note,) = raised.value.__notes__
    loaded = AutoDEUQRegressor.from_catalog(note.split("'")[1], selection="top")
    model.set_params(selection="top").fit(X, y)
    assert len(trained) == 3
    assert_array_equal(loaded.predict(X), model.predict(X))


def test_folder_of_a_failed_selection_outlives_its_estimator(search):
    model = search(
        3, selection=lambda *given, sample_weight: 1 / 0, catalog_dir=None, warm_start=True
    )
    with pytest.raises(ZeroDivisionError) as raised:
        model.fit(*table())
    (note,) = raised.value.__notes__
    del model, raised
    gc.collect()
    loaded = AutoDEUQRegressor.from_catalog(note.split("'")[1], selection="top")
    assert len(loaded.catalog_) == 3


def test_fit_continues_a_search_whose_trials_failed(search, stop_at):
    X, y = table()
    message = "All 10 trials"
    with stop_at(0, RuntimeError("no gpu")), pytest.raises(SearchFailedError, match=message):
        search(20).fit(X, y)
    model = search(20).fit(X, y)
    assert len(model.catalog_) == 20 and sum(r.failed for r in model.catalog_) == 10


def test_reselect_takes_the_best_by_another_loss(search):
    X, y = table()
    model = search(8, catalog_dir=None).fit(X, y)
    kept = model.selection_
    held_out = model.catalog_.held_out
    raw = np.stack([model.catalog_.member(k).held_out for k in model.catalog_.completed])
    mean, std = GaussianHead().distribution(raw.astype("float64"))
    losses = {
        "nll": -stats.norm.logpdf(held_out.y, mean, std),
        "crps": crps_normal(held_out.y, mean, std),
        "mse": (held_out.y - mean) ** 2,
    }
    for loss, values in losses.items():
        values = values.mean(axis=(1, 2))
        assert model.reselect(selection="top", selection__loss=loss, n_members=1) is model
        assert model.selection_.indices.tolist() == [model.catalog_.completed[values.argmin()]]
        assert_allclose(model.selection_.loss, values.min(), rtol=1e-6)
    assert_array_equal(model.reselect().selection_.indices, kept.indices)
    with pytest.raises(ValueError, match="'loss' parameter"):
        model.reselect(selection__loss="best")
    for name in ("epochs", "space"):
        with pytest.raises(ValueError, match=rf"`reselect` can change .*Got \['{name}'\]"):
            model.reselect(**{name: 1})


def test_fit_keeps_its_limits(search, trained, tmp_path):
    X, y = table()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        search(2, catalog_dir=tmp_path / "file").fit(X, y)
    with pytest.raises(ValueError, match="'catalog_dir' parameter"):
        search(2, catalog_dir=3).fit(X, y)
    assert not trained
    model = search(40, max_time=1e-6).fit(X, y)
    assert len(model.catalog_) == len(trained) == 1
    with pytest.raises(SearchFailedError, match=r"All 10 trials so far failed[\s\S]*Timeout"):
        search(20, trial_timeout=1e-9, epochs=5).fit(X, y)


@pytest.mark.parametrize(
    ("kind", "random_state"),
    [(AutoDEUQRegressor, 0), (AutoDEUQRegressor, None), (NESClassifier, 0)],
)
def test_warm_start_adds_trials(search, trained, kind, random_state):
    X, y = table()
    y = y if kind is AutoDEUQRegressor else (y > 0).astype(int)
    settings = {"catalog_dir": None, "random_state": random_state}
    model = search(3, kind, **settings, warm_start=True).fit(X, y)
    entropy, copied = model.entropy_, copy.deepcopy(model)
    model.set_params(n_trials=5).fit(X, y)
    assert len(trained) == len(model.catalog_) == 5 and model.entropy_ == entropy
    if random_state is not None:
        whole = search(5, kind, **settings).fit(X, y)
        assert_array_equal(model.predict(X), whole.predict(X))
    n_trained = len(trained)
    model.set_params(n_members=1).fit(X, y)  # chosen anew, nothing trained
    assert len(trained) == n_trained and model.n_members == 1
    # A deep copy goes on with the same trials, which are removed with the last estimator.
    assert len(copied.catalog_) == 3
    assert len(copied.set_params(n_trials=4).fit(X, y).catalog_) == 4
    assert len(trained) == n_trained
    folder = Path(model._folder.path)
    assert model.catalog_path_ is None and len(list(folder.glob("*/trial-*"))) == 5
    model.set_params(warm_start=False).fit(X, y)
    assert len(trained) == n_trained + 5 and folder.exists()
    del copied
    gc.collect()
    assert not folder.exists()


@cases(("changes", "rows"), ({"epochs": 2}, 60), ({}, 50), ({"random_state": 1}, 60))
def test_warm_start_of_another_search_says_so(search, trained, changes, rows):
    X, y = table()
    model = search(2, catalog_dir=None, warm_start=True).fit(X, y)
    with pytest.warns(UserWarning, match="`warm_start` cannot go on.*A new search") as noted:
        model.set_params(**changes).fit(X[:rows], y[:rows])
    assert [w.filename for w in noted if "warm_start" in str(w.message)] == [__file__]
    assert len(trained) == 4
    fresh = search(2, catalog_dir=None, **changes).fit(X[:rows], y[:rows])
    assert_array_equal(model.predict(X), fresh.predict(X))


@pytest.mark.parametrize("how", ["pickle", "save", "no warm_start", "folder"])
def test_warm_start_of_a_copy_without_trials_says_so(search, trained, tmp_path, how):
    X, y = table()
    model = search(4, n_members=2, catalog_dir=None, warm_start=how != "no warm_start")
    if how == "folder":
        model.set_params(catalog_dir=tmp_path)
    model.fit(X, y)
    if how == "pickle":
        model = pickle.loads(pickle.dumps(model))
    elif how == "save":
        skuq.save(model, tmp_path / "model.skuq")
        space = model.space
        model = skuq.load(tmp_path / "model.skuq", parts={"space": space})
    model.set_params(n_trials=5, catalog_dir=None, warm_start=True)
    with pytest.warns(UserWarning, match="its trials are not in this copy. A new search starts"):
        model.fit(X, y)
    assert len(trained) == 9
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "warm_start")
        model.set_params(n_trials=6).fit(X, y)
    assert len(trained) == 10
    clone(model).set_params(n_trials=1).fit(X, y)  # says nothing: it was never fitted
    assert len(trained) == 11
    catalog = pickle.loads(pickle.dumps(model)).catalog_  # with the networks of members only
    kept = [k for k in catalog.completed if catalog.member(k).networks[0].weights is not None]
    assert set(kept) == set(model.selection_.indices.tolist())


def test_warm_start_survives_a_failed_fit(search, trained, stop_at):
    X, y = table()
    model = search(3, catalog_dir=None, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, np.where(y > 1, np.nan, y))
    with stop_at(0, Stop), pytest.raises(Stop):
        model.set_params(n_trials=5).fit(X, y)
    for n_trials in (3, 2, 3):
        assert len(model.set_params(n_trials=n_trials).fit(X, y).catalog_) == n_trials
    assert len(trained) == 3


def test_fit_refuses_trials_of_other_decisions(search, tiny_space, monkeypatch):
    X, y = table()
    model = search(2, catalog_dir=None, warm_start=True).fit(X, y)
    decide = type(tiny_space).decisions

    def fewer(self, *shape):
        architecture, others = decisions = decide(self, *shape)
        return type(decisions)(architecture, Space(others.decisions[:1]))

    monkeypatch.setattr(type(tiny_space), "decisions", fewer)
    with pytest.raises(CatalogMismatchError, match="batch_size"):
        model.fit(X, y)


@pytest.mark.parametrize(("epochs", "max_time"), [(3, 1e6), (10**6, 0.3)])
def test_fit_tells_of_networks_that_were_hardly_trained(epochs, max_time, search):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        search(2, epochs=epochs, max_time=max_time, catalog_dir=None).fit(*table())
    said = [w for w in told if f"% of its epochs within max_time={max_time}" in str(w.message)]
    assert len(said) == (epochs > 3)


@pytest.mark.slow
def test_fit_with_a_deadline_adds_a_trial_to_those_stored(search):
    models = [search(50, epochs=10**6, max_time=0.2).fit(*table()) for _ in range(3)]
    one, two, three = (len(model.catalog_) for model in models)
    assert one < two < three


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_leaves_the_trials_of_a_warm_start():
    folder = TemporaryFolder()
    child = os.fork()
    if child == 0:
        del folder  # which is its last use in the child
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(folder.path).is_dir()
    path = folder.path
    del folder
    assert not Path(path).exists()
