"""Searches stored in a folder: told apart, resumed, loaded, and selected from again."""

import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
import json
import os
import pickle
import re
import threading
import warnings
from pathlib import Path

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from processes import run_python
from scipy import stats
from scoringrules import crps_normal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import KFold, PredefinedSplit
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from small_models import TinySpace
from tiers import slow_after
from training_data import MemberRefitter, MemberTrainer

from skuq import AutoDEUQClassifier, AutoDEUQRegressor, NESClassifier, NESRegressor
from skuq.backend import keras
from skuq.estimators.methods._search_store import TemporaryFolder
from skuq.exceptions import CatalogMismatchError, SearchFailedError, ShortTrainingWarning
from skuq.networks import GaussianHead
from skuq.search import AgEBO, AgEBOOracle, Catalog, RandomSearch, TrialRecord
from skuq.search._fingerprint import describe

ORACLE = keras_tuner.oracles.BayesianOptimizationOracle(
    keras_tuner.Objective("score", "min"), max_trials=20, seed=1, num_initial_points=3
)
PARTS, FIT_ARGUMENTS = np.arange(60) % 3, {"groups", "validation_data", "shift_validation"}
REFITTED, NOWHERE = {"refit": True, "n_members": 2, "selection": "top"}, {"catalog_dir": None}


@pytest.fixture
def trained(monkeypatch):
    """Seeds of the networks that are trained, in their order."""
    seeds, train = [], MemberTrainer.together

    def noted(self, given, of_trials, *arguments, **changes):
        seeds.extend(of_trials)
        return train(self, given, of_trials, *arguments, **changes)

    monkeypatch.setattr(MemberTrainer, "together", noted)
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
def search(tmp_path):
    def make(n_trials=4, kind=AutoDEUQRegressor, **settings):
        settings = {"space": TinySpace(), "epochs": 3, "random_state": 0, **settings}
        return kind(n_trials).set_params(**{"catalog_dir": tmp_path, **settings})

    return make


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=n)


X, Y = table()


@pytest.mark.parametrize("strategy", slow_after(3, ["agebo", "age-mixed", ORACLE, "bo-mixed"]))
def test_fit_with_a_larger_budget_continues(search, trained, strategy):
    settings = {"search": strategy}
    if strategy == "agebo":
        settings |= {"search__population_size": 3, "search__sample_size": 2}
    search(3, **settings).fit(X, Y)
    more = search(6, **settings).fit(X, Y)
    whole = search(6, catalog_dir=None, **settings).fit(X, Y)
    assert len(trained) == 12 and trained[:6] == trained[6:]
    assert [r.configuration for r in more.catalog_] == [r.configuration for r in whole.catalog_]
    assert_array_equal(more.predict(X), whole.predict(X))
    assert len(search(2, **settings).fit(X, Y).catalog_) == 2 and len(trained) == 12


@pytest.fixture
def identity(search, monkeypatch):
    """Return what identifies a search in its folder; nothing is trained."""

    def end(path, parts, max_wait):
        raise InterruptedError(json.dumps(parts, sort_keys=True))

    def identity_of(X, y, *given, **settings):
        fit_arguments = {k: settings.pop(k) for k in FIT_ARGUMENTS & settings.keys()}
        with monkeypatch.context() as patch, pytest.raises(InterruptedError) as raised:
            patch.setattr("skuq.estimators.methods._search_store.CatalogFolder", end)
            search(1, **settings).fit(X, y, *given, **fit_arguments)
        return str(raised.value)

    return identity_of


def space_of(width):
    def build(hp, input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        hidden = keras.layers.Dense(width, hp.Choice("activation", ["tanh", "relu"]))(inputs)
        return keras.Model(inputs, keras.layers.Dense(n_outputs)(hidden))

    return build, lambda hp: {"learning_rate": hp.Float("rate", 1e-3, 1e-2), "batch_size": 32}


def trial_of(units):
    """A catalog to start from; those of all units look alike."""
    return Catalog([TrialRecord(0, {"units": units, "activation": "relu"}, score=1.0)])


def test_fit_tells_searches_apart(identity):
    labels, classifier = np.where(Y > 0, "b", "a"), {"kind": AutoDEUQClassifier}
    found = [
        identity(X, Y),
        identity(X, Y + 1e-9),
        identity(X[:-1], Y[:-1]),
        identity(X, Y, np.linspace(1, 2, len(X))),
        identity(X, Y, groups=np.arange(60) // 2),
        identity(X, Y, validation_data=table(20, 1)),
        identity(X, Y, shift_validation=table(20, 2)),
        identity(pd.DataFrame(X, columns=["a", "b"]), Y),
        identity(X, labels, **classifier),
        identity(X, np.where(Y > 0, "yes", "no"), **classifier),
        identity(X, labels, **classifier, calibrate=False),
        identity(X, Y, epochs=2),
        identity(X, Y, random_state=1),
        identity(X, Y, fixed={"units": 8}),
        *(identity(X, Y, search__initial_trials=trial_of(units)) for units in (8, 10)),
        *(identity(X, Y, space=space_of(width)) for width in (3, 5)),
        *(identity(X, Y, validation=cv) for cv in (2, KFold(3), PredefinedSplit(PARTS))),
        identity(X, Y, kind=NESRegressor),
        identity(X, Y, kind=NESRegressor, space="auto"),
        *(identity(X, Y, search=own(RandomSearch, "proposer", k)()) for k in (1, 2)),
    ]
    for price in (1, 2):
        priced = {"search__objective": lambda t, p=price: t.score + p * t.n_weights}
        found.append(identity(X, Y, **priced))
    assert len(set(found)) == len(found)
    assert "log loss at the best temperature" in found[9] and '"log loss"' in found[10]
    # Parameters that do not change a trial do not make another search.
    settings = {"n_members": 1, "selection": "top", "verbose": 1, "calibrate": False}
    assert identity(X, Y, **settings) == found[0]
    assert identity(X, Y, max_time=1e9, trial_timeout=1e9) == found[0]
    assert identity(X, Y, selection__loss="crps", epochs=np.int64(3)) == found[0]
    assert identity(X, Y, search__initial_trials=trial_of(8)) == found[14]
    assert identity(X, Y, space=space_of(3)) == found[16]
    # The folds count, whoever makes them.
    assert identity(X, Y, validation=list(KFold(3).split(X))) == found[19]
    assert identity(X, Y, validation=PredefinedSplit(PARTS.copy())) == found[20]


def test_pickle_drops_networks_of_initial_trials(search):
    settings = {"catalog_dir": None, "search__initial_trials": None}
    catalog = search(4, **settings).fit(X, Y).catalog_
    model = search(1, **{**settings, "search__initial_trials": catalog}).fit(X, Y)
    copied = pickle.loads(pickle.dumps(model))
    for one, none_has_weights in ((copied, True), (model, False)):
        kept = one.search.initial_trials
        networks = [n for k in kept.completed for n in kept[int(k)].result.networks]
        assert {network.weights is None for network in networks} == {none_has_weights}
    assert_array_equal(copied.fit(X, Y).predict(X), model.predict(X))


def test_from_catalog_gives_clones_folders_of_their_own(search, tmp_path):
    fitted = search(2, kind=NESRegressor).fit(X, Y, shift_validation=[table(20, 1), table(20, 2)])
    loaded = NESRegressor.from_catalog(tmp_path, space=TinySpace())
    assert loaded.catalog_dir == str(tmp_path) and len(loaded.selections_) == 3
    assert_array_equal(loaded.at_severity(2).predict(X), fitted.at_severity(2).predict(X))
    assert len(loaded.baseline("deep-ensemble").fit(X, Y).catalog_) == loaded.n_members
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 2


def test_from_catalog_is_what_fit_gave(search, trained, tmp_path):
    model = search(6, catalog_dir=tmp_path / "here").fit(X, Y)
    (tmp_path / "here").rename(tmp_path / "there")  # a folder may be moved
    path = tmp_path / "there" / model.catalog_path_.name
    loaded = AutoDEUQRegressor.from_catalog(path)
    assert_array_equal(loaded.predict_uncertainty(X), model.predict_uncertainty(X))
    assert loaded.get_params().keys() == model.get_params().keys()
    assert loaded.entropy_ == model.entropy_ and loaded.n_features_in_ == 2
    assert Catalog.load(path).to_frame().equals(model.catalog_.to_frame())
    with pytest.raises(ValueError, match="lost the networks.*`from_catalog`"):
        pickle.loads(pickle.dumps(model)).reselect(n_members=1)
    three = AutoDEUQRegressor.from_catalog(path, n_members=3, selection="top")
    assert len(three.selection_) == 3 and three.n_members == 3
    assert_array_equal(model.reselect(n_members=3, selection="top").predict(X), three.predict(X))
    assert len(trained) == 6
    with pytest.raises(RuntimeError, match="`space`.*was not saved"):
        clone(loaded).fit(X, Y)
    loaded = AutoDEUQRegressor.from_catalog(path, space=TinySpace()).set_params(n_trials=7)
    assert loaded.fit(X, Y).catalog_path_ == path
    assert len(trained) == len(loaded.catalog_) == 7 and not (tmp_path / "here").exists()


def test_from_catalog_refuses_what_it_is_not(search, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no search"):
        AutoDEUQRegressor.from_catalog(tmp_path)
    path = search(2).fit(X, Y).catalog_path_
    with pytest.raises(TypeError, match="holds a search of AutoDEUQRegressor. Use AutoDEUQReg"):
        NESRegressor.from_catalog(path)
    with pytest.raises(ValueError, match=r"\['epochs'\] cannot be changed"):
        AutoDEUQRegressor.from_catalog(path, epochs=5)
    with pytest.raises(ValueError, match="'n_members' parameter"):
        AutoDEUQRegressor.from_catalog(path, n_members=0)
    with pytest.raises(CatalogMismatchError, match=r"X: other values\n.*epochs: 3 there, 7 here"):
        search(1, catalog_dir=path, epochs=7).fit(X + 1, Y)
    for file in path.glob("trial-*"):
        file.unlink()
    with pytest.raises(SearchFailedError, match="None of the 0 trials"):
        AutoDEUQRegressor.from_catalog(path)


def test_from_catalog_has_the_settings_and_trials_of_the_last_fit(search, tmp_path):
    model = search(3, n_members=2).fit(X, Y)
    search(5, n_members=1, selection__min_members=1).fit(X, Y)
    loaded = AutoDEUQRegressor.from_catalog(tmp_path)
    assert loaded.n_trials == 5 and loaded.n_members == 1 and len(loaded.catalog_) == 5
    size = (model.catalog_path_ / "estimator.skuq").stat().st_size
    model.set_params(n_trials=6).fit(X, Y)  # fitted before: nothing of that goes into the file
    assert (model.catalog_path_ / "estimator.skuq").stat().st_size < 1.1 * size
    fewer, loaded = search(2).fit(X, Y), AutoDEUQRegressor.from_catalog(tmp_path)
    assert [r.trial_number for r in loaded.catalog_] == [0, 1]
    assert_array_equal(loaded.predict(X), fewer.predict(X))
    assert len(AutoDEUQRegressor.from_catalog(tmp_path, n_trials=4).catalog_) == 4


def test_fit_trains_no_stored_refit_again(search, trained):
    model = search(refit=True).fit(X, Y)
    n_chosen = len(model.selection_)
    assert len(trained) == 4 + n_chosen
    again = search(refit=True).fit(X, Y)
    with warnings.catch_warnings(action="error"):
        loaded = AutoDEUQRegressor.from_catalog(model.catalog_path_)
    for other in (again, loaded):
        assert_array_equal(other.predict(X, return_std=True), model.predict(X, return_std=True))
        # They are no trials of the search.
        assert other.catalog_.to_frame().equals(model.catalog_.to_frame())
        assert other.leaderboard().equals(model.leaderboard())
    plain = search().fit(X, Y)
    assert not plain.refitted_ and len(trained) == 4 + n_chosen
    assert not np.array_equal(plain.predict(X), model.predict(X))


def test_fit_trains_missing_and_failed_refits(search, trained, stop_at):
    with stop_at(5, Stop, MemberRefitter), pytest.raises(Stop):
        search(**REFITTED).fit(X, Y)
    model = search(**REFITTED).fit(X, Y)
    assert len(trained) == 6
    whole = search(**REFITTED, catalog_dir=None, warm_start=True).fit(X, Y)
    assert_array_equal(model.predict(X), whole.predict(X))
    whole.fit(X, Y)  # it keeps its refits in memory
    assert len(trained) == 12
    assert_array_equal(model.predict(X), whole.predict(X))
    failing = stop_at(0, MemoryError("no room"), MemberRefitter)
    with failing, pytest.warns(UserWarning, match="2 of 2 networks .*MemoryError: no room"):
        failed = search(**REFITTED, epochs=1).fit(X, Y)
    assert len(failed.fitted_.members) == 2 and failed.refitted_ == {}
    assert len(failed.fit(X, Y).refitted_) == 2 and len(trained) == 18


def test_fit_continues_an_estimator_that_cannot_be_saved(search, trained):
    for _ in range(2):
        with pytest.warns(UserWarning, match="not loaded by `from_catalog`"):
            model = search(2, preprocess=FunctionTransformer(lambda X: X)).fit(X, Y)
    assert len(trained) == 2
    with pytest.raises(FileNotFoundError, match="could not be saved"):
        AutoDEUQRegressor.from_catalog(model.catalog_path_)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("settings", [{}, NOWHERE, {**NOWHERE, "warm_start": True}])
def test_fit_keeps_the_folder_of_a_selection_that_fails(search, trained, settings, error):
    def fail(*given, sample_weight):
        raise error

    model = search(3, selection=fail, **settings)
    with pytest.raises(error) as raised:
        model.fit(X, Y)
    (note,) = raised.value.__notes__
    del raised
    path, call = re.search(r"AutoDEUQRegressor.from_catalog\('(.*)', (.*)\)", note).groups()
    assert call == 'selection="top"'
    loaded = AutoDEUQRegressor.from_catalog(path, selection="top")
    model.set_params(selection="top").fit(X, Y)
    assert len(trained) == (6 if settings == NOWHERE else 3)
    assert_array_equal(loaded.predict(X), model.predict(X))
    del model
    gc.collect()
    assert len(Catalog.load(path)) == 3


def test_reselect_takes_the_best_by_another_loss(search):
    model = search(8, catalog_dir=None).fit(X, Y)
    kept, held_out = model.selection_, model.catalog_.held_out
    raw = np.stack([model.catalog_.member(k).held_out for k in model.catalog_.completed])
    mean, std = GaussianHead().distribution(raw.astype("float64"))
    losses = {"crps": crps_normal(held_out.y, mean, std), "mse": (held_out.y - mean) ** 2}
    losses["nll"] = -stats.norm.logpdf(held_out.y, mean, std)
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


@pytest.mark.parametrize(("kind", "random_state"), [(AutoDEUQRegressor, None), (NESClassifier, 0)])
def test_warm_start_adds_trials(search, trained, kind, random_state):
    y = Y if kind is AutoDEUQRegressor else (Y > 0).astype(int)
    settings = {"catalog_dir": None, "random_state": random_state}
    model = search(3, kind, **settings, warm_start=True).fit(X, y)
    entropy, copied = model.entropy_, copy.deepcopy(model)
    model.set_params(n_trials=5).fit(X, y)
    assert len(trained) == len(model.catalog_) == 5 and model.entropy_ == entropy
    if random_state is not None:
        assert_array_equal(model.predict(X), search(5, kind, **settings).fit(X, y).predict(X))
    n_trained = len(trained)
    model.set_params(n_members=1).fit(X, y)  # chosen anew, nothing trained
    assert len(trained) == n_trained and model.n_members == 1
    # A deep copy goes on with the same trials, which are removed with the last estimator.
    assert len(copied.catalog_) == 3 and len(copied.set_params(n_trials=4).fit(X, y).catalog_) == 4
    assert len(trained) == n_trained
    folder = Path(model._folder.path)
    assert model.catalog_path_ is None and len(list(folder.glob("*/trial-*"))) == 5
    model.set_params(warm_start=False).fit(X, y)
    assert len(trained) == n_trained + 5 and folder.exists()
    del copied
    gc.collect()
    assert not folder.exists()


def test_warm_start_of_another_search_says_so(search, trained, stop_at):
    model = search(2, catalog_dir=None, warm_start=True).fit(X, Y)
    with stop_at(0, Stop), pytest.raises(Stop):
        model.set_params(n_trials=3).fit(X, Y)
    model.set_params(n_trials=2).fit(X, Y)  # a fit that fails changes nothing
    assert len(trained) == 2
    with pytest.warns(UserWarning, match="`warm_start` cannot go on.*A new search") as noted:
        model.set_params(epochs=2).fit(X[:50], Y[:50])
    assert [w.filename for w in noted if "warm_start" in str(w.message)] == [__file__]
    assert len(trained) == 4
    fresh = search(2, catalog_dir=None, epochs=2).fit(X[:50], Y[:50])
    assert_array_equal(model.predict(X), fresh.predict(X))


@pytest.mark.parametrize("how", ["pickle", "no warm_start"])
def test_warm_start_of_a_copy_without_trials_says_so(search, trained, how):
    model = search(2, n_members=1, catalog_dir=None, warm_start=how != "no warm_start").fit(X, Y)
    if how == "pickle":
        model = pickle.loads(pickle.dumps(model))
        catalog = model.catalog_  # with the networks of members only
        kept = [k for k in catalog.completed if catalog.member(k).networks[0].weights is not None]
        assert kept == model.selection_.indices.tolist()
    model.set_params(n_trials=3, warm_start=True)
    with pytest.warns(UserWarning, match="its trials are not in this copy. A new search starts"):
        model.fit(X, Y)
    assert len(trained) == 5
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "warm_start")
        model.set_params(n_trials=4).fit(X, Y)
        clone(model).set_params(n_trials=1).fit(X, Y)  # it was never fitted
    assert len(trained) == 7


@pytest.mark.parametrize(("epochs", "max_time"), [(3, 1e6), (10**6, 1e-3)])
def test_fit_tells_of_networks_that_were_hardly_trained(epochs, max_time, search):
    with warnings.catch_warnings(record=True, action="always") as told:
        search(2, epochs=epochs, max_time=max_time, catalog_dir=None).fit(X, Y)
    said = [str(w.message) for w in told if w.category is ShortTrainingWarning]
    few = [str(w.message) for w in told if f"max_time={max_time} was over after" in str(w.message)]
    assert len(said) == len(few) == (epochs > 3)
    if said:
        assert "% of their epochs within max_time=0.001:" in said[0]
        assert "is enough for 2." in few[0]
        # Both trials need as long.
        once, twice = (int(re.findall(r"max_time=(\d+) is", text)[0]) for text in (*said, *few))
        assert once < twice <= 2 * once


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_leaves_the_trials_of_a_warm_start():
    folder, child = TemporaryFolder(), os.fork()
    if child == 0:
        del folder  # which is its last use in the child
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(folder.path).is_dir()
    path = folder.path
    del folder
    assert not Path(path).exists()


def priced(price):
    return lambda trial: trial.score + price * trial.n_weights


def recursive(factor):
    def factorial(n):
        return 1 if n < 1 else factor * n * factorial(n - 1)

    return factorial


class Priced:
    def __init__(self, price):
        self.price = price

    def score(self, trial):
        return self.price * trial.score


@dataclasses.dataclass
class Data:
    rows: object
    names: frozenset = frozenset("abcd")


def transformer(rare):
    """A long one, of whose display scikit-learn leaves the middle out."""
    steps = [(OneHotEncoder(min_frequency=9), [f"column {k}"]) for k in range(20)]
    steps[9][0].set_params(min_frequency=rare)
    return make_column_transformer(*steps)


def own(base, method, number):
    return type("Own", (base,), {method: eval(f"lambda self, *a, **k: {number}")})


MADE = {
    "closure": priced,
    "default": lambda k: eval("lambda t, *, price=price: price * t", {"price": k}),
    "code": lambda k: eval(f"lambda t: {k} * t"),
    "name": lambda k: eval(f"lambda t: {('min', 'max')[k - 1]}(t)"),
    "signature": lambda k: eval(f"lambda {'*' * k}t: t"),
    "partial": lambda k: functools.partial(priced, k),
    "cached": lambda k: functools.lru_cache(priced(k)),
    "decorated": lambda k: functools.wraps(priced)(priced(k)),
    "recursive": recursive,
    "method": lambda k: Priced(k).score,
    "object": Priced,
    "object of functions": lambda k: Data(priced(k)),
    "generator": lambda k: np.random.RandomState(k),
    "sets": lambda k: functools.partial(priced, {"a", "b", k}),
    "array": lambda k: Data(np.repeat([1, k, 1], 1000)),
    "frame": lambda k: Data(pd.DataFrame({"a": np.repeat([1, k, 1], 1000), "b": "x"})),
    "class": lambda k: (Priced, Data)[k - 1],
    "transformer": transformer,
    "own transformer": lambda k: own(OneHotEncoder, "fit", k)(),
    "AgEBO's oracle": lambda k: AgEBOOracle(search=AgEBO(kappa=float(k))),
    "oracle": lambda k: keras_tuner.oracles.BayesianOptimizationOracle("loss", beta=k),
}


@pytest.mark.parametrize("kind", MADE)
def test_functions_and_objects_are_compared_by_the_values_they_use(kind):
    one, same, other = (describe(MADE[kind](k)) for k in (1, 1, 2))
    assert json.loads(json.dumps(one)) == one and one == same != other


def test_values_that_a_function_encloses_are_told_apart():
    values = 1, 1.0, True, "1", 0.0, -0.0, min, max, np.exp, np.log, int, range(3), range(4)
    described = [json.dumps(describe(priced(value))) for value in values]
    for (one, first), (other, second) in itertools.combinations(zip(values, described), 2):
        assert first != second, (one, other)


def test_describe_ends_for_what_is_hard_to_describe():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def shared(price):
        def low(t):
            return price * t

        for _ in range(40):  # 2 ** 40 descriptions, if each mention were one

            def low(t, one=low, other=low):
                return one(t) + other(t)

        return low

    one, other = Priced(None), Priced(None)
    one.price, other.price = other, one
    for value in (even, one, threading.Lock(), iter([1]), (n for n in [1]), np):
        json.dumps(describe(value))
        json.dumps(describe(priced(value)))
    assert describe(shared(1.0)) == describe(shared(1.0)) != describe(shared(2.0))


SCRIPT = """
from functools import partial
import numpy as np
from skuq.search._fingerprint import describe

def outer(k):
    def inner(t):
        return t + k
    return inner

class Kept:
    def __init__(self, names):
        self.names = names
    def __call__(self, t):
        return t in {'a', 'b'}

f = lambda t, k=2.0, s=frozenset('xyz'): t in {'a', 'b', 'c'} or outer(k)(t)
print(describe([outer, outer(3), f, partial(f, {'x', 'y'}, kept=Kept({'x', 'y', 'z'}))]))
"""


def test_a_function_is_the_same_in_another_process_until_it_is_edited(tmp_path):
    def said(script, seed="1"):
        path = tmp_path / "script.py"
        path.write_text(script)
        run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
        return run_python(run, PYTHONHASHSEED=seed).stdout

    whole = said(SCRIPT)
    assert whole.count("digest") == 4 and said(SCRIPT, "2") == whole
    for old, new in [("t + k", "t - k"), ("{'a', 'b'}\n", "{'a'}\n")]:
        assert said(SCRIPT.replace(old, new)) != whole
    console = said(f"exec({SCRIPT!r})", "2")  # without source
    assert console != said(f"exec({SCRIPT.replace('t + k', 't - k')!r})")
