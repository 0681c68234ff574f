import copy
import logging
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import draw_variables, sequential
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from tiers import slow_after
from training_data import train_member

from skuq import AutoDEUQRegressor
from skuq.backend import keras, keras_tuner
from skuq.ensembles import GreedySelection, Selection
from skuq.exceptions import SearchFailedError, SearchSpaceError, SmallValidationWarning
from skuq.networks import DenseSpace, GaussianHead
from skuq.predictive import GaussianMixture
from skuq.tables import TrainingData
from skuq.training import Recipe


@pytest.fixture
def tiny(tiny_space):
    return AutoDEUQRegressor(n_trials=4, n_members=3, epochs=25, space=tiny_space, random_state=0)


@pytest.fixture(scope="module")
def fitted(tiny_space, wave):
    """One fit for all tests that only look at it."""
    return AutoDEUQRegressor(
        n_trials=4, n_members=3, epochs=25, space=tiny_space, random_state=0
    ).fit(*wave)


# ---------------------------------------------------------------- prediction


def test_predictions_are_of_the_members_mixture(fitted, wave):
    X, y = wave
    weights, distribution = fitted.selection_.weights, fitted.predict_distribution(X)
    assert isinstance(distribution, GaussianMixture)
    loc, scale = distribution.loc, distribution.scale
    assert loc.shape == scale.shape == (len(weights), 120) and len(weights) >= 2
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (120,)
    assert_allclose(mean, weights @ loc)
    assert_array_equal(fitted.predict(X), mean)
    parts = fitted.predict_uncertainty(X)
    assert_array_equal(parts.total, std)
    assert_allclose(parts.aleatoric**2, weights @ scale**2)
    assert_allclose(parts.epistemic**2, weights @ (loc - mean) ** 2, atol=1e-12)
    density = weights @ stats.norm.pdf(y, loc, scale)
    assert_allclose(fitted.log_prob(X, y), np.log(density), rtol=1e-9)
    effective = 1 / np.sum(weights**2)
    corrected = distribution.uncertainty(ddof=1).epistemic  # the paper's divisor
    assert_allclose(corrected**2, effective / (effective - 1) * parts.epistemic**2)
    # It has learnt the wave, and how far it is off.
    assert fitted.score(X, y) > 0.9
    assert 0.5 < np.sqrt(np.mean((mean - y) ** 2)) / std.mean() < 2


def test_predict_uncertainty_has_parts_in_units_of_y(fitted, wave):
    X, y = wave
    mean, aleatoric, epistemic, total = fitted.predict_uncertainty(X)
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    assert (aleatoric > 0).all() and (epistemic >= 0).all()
    scaled = clone(fitted).fit(X, 1000 * y - 7)
    assert_allclose(scaled.predict(X), 1000 * mean - 7, rtol=1e-3)
    assert_allclose(scaled.predict(X, return_std=True)[1], 1000 * total, rtol=1e-2)


def test_predict_interval_is_of_the_mixture(fitted, wave):
    X, _ = wave
    distribution = fitted.predict_distribution(X)
    quantiles = fitted.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert (np.diff(quantiles, axis=1) > 0).all()
    assert_allclose(fitted.predict_interval(X, 0.9), quantiles[:, [0, 2]], rtol=1e-10)
    assert_allclose(distribution.cdf(quantiles[:, 0]), 0.05, rtol=1e-7)
    draws = fitted.sample_y(X, 4000, random_state=0)
    inside = ((draws >= quantiles[:, :1]) & (draws <= quantiles[:, 2:])).mean()
    assert abs(inside - 0.9) < 0.02


def test_predict_uncertainty_is_finite_far_away(fitted):
    X = np.array([[1e300, -1e300], [1e30, 0], [-1e10, 1e10]])
    parts = fitted.predict_uncertainty(X)
    assert all(np.isfinite(part).all() for part in parts)
    assert np.isfinite(fitted.predict_interval(X)).all()


def test_predict_distribution_repeats_held_out_predictions(fitted, wave):
    """Predictions rebuilt from stored weights are those the search has seen."""
    X, _ = wave
    fitted = copy.copy(fitted).reselect(calibrate=False)
    rows = fitted.catalog_.held_out.rows
    for index in fitted.selection_.indices:
        member = fitted.catalog_.member(index)
        loc, scale = GaussianHead().distribution(member.held_out.astype(float))
        restored = fitted.fitted_.targets.restore(loc[None, :, 0], scale[None, :, 0])
        mixture = GaussianMixture(*restored)
        alone = fitted.predict_distribution(X[rows])
        k = list(fitted.selection_.indices).index(index)
        assert_allclose(alone.loc[k], mixture.mean, rtol=1e-5)
    assert len(rows) == 30


# ---------------------------------------------------------- the sklearn house


def test_pickle_keeps_the_members_only(tiny, wave):
    X, y = wave
    fitted = tiny.set_params(n_trials=8, n_members=2).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict(X, return_std=True), fitted.predict(X, return_std=True))
    kept = [r for r in loaded.catalog_ if r.completed and r.result.weights is not None]
    assert len(kept) == len(fitted.selection_) < len(fitted.catalog_)
    assert len(loaded.catalog_.to_frame()) == 8
    assert all(r.result.weights is not None for r in fitted.catalog_ if r.completed)


@pytest.mark.slow
def test_fit_repeats_a_random_search_in_parallel(tiny, wave):
    X, y = wave
    tiny.set_params(search="random")
    alone = clone(tiny).fit(X, y)
    together = clone(tiny).set_params(n_jobs=2).fit(X, y)
    assert_array_equal(alone.predict(X), together.predict(X))
    frames = [m.catalog_.to_frame().drop(columns="seconds") for m in (alone, together)]
    pd.testing.assert_frame_equal(*frames)


# ------------------------------------------------------------------- weights


def test_train_member_weighs_rows_as_repetitions():
    """The core of scikit-learn's check: same start, full batches, no split. 1e-4."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    weight = rng.integers(0, 4, size=30)
    x_valid, y_valid, ones = x[:10], y[:10], np.ones(10)
    repeated = TrainingData(
        np.repeat(x, weight, axis=0), np.repeat(y, weight, axis=0), np.ones(weight.sum()),
        x_valid, y_valid, ones,
    )  # fmt: skip
    weighted = TrainingData(x, y, weight, x_valid, y_valid, ones)
    layers = keras.layers
    model = sequential((2,), layers.Dense(8, "tanh", name="a"), layers.Dense(2, name="b"))
    recipe, start = Recipe(learning_rate=0.01, batch_size=1000, epochs=50), draw_variables(model, 1)
    one, two = (
        train_member(model, GaussianHead(), recipe, data, 1, start=[start])
        for data in (weighted, repeated)
    )
    assert_allclose(one.weights, two.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_fit_minds_sample_weight(tiny):
    """Two contradicting targets at the same inputs: the heavier one wins."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-1, 1, (60, 1)), 2, axis=0)
    y = np.tile([0.0, 1.0], 60)
    weight = np.tile([1.0, 9.0], 60)
    assert abs(tiny.fit(X, y, sample_weight=weight).predict(X).mean() - 0.9) < 0.1
    # Rows of zero weight do not matter, whatever is in them.
    used = weight > 1
    spoiled, clean = np.where(used, y, 1e6), clone(tiny).fit(X[used], y[used]).predict(X)
    assert_array_equal(clone(tiny).fit(X, spoiled, sample_weight=used).predict(X), clean)


# ---------------------------------------------------------------- validation


@pytest.mark.slow
def test_fit_uses_validation_data_and_groups(tiny, wave):
    X, y = wave
    tiny.set_params(epochs=2)
    with pytest.warns(SmallValidationWarning, match="chosen on 40 validation rows"):
        fitted = clone(tiny).fit(X[:80], y[:80], validation_data=(X[80:], y[80:]))
    assert fitted.catalog_.held_out.rows is None and len(fitted.catalog_.held_out.y) == 40
    groups = np.repeat(np.arange(12), 10)
    rows = clone(tiny).fit(X, y, groups=groups).catalog_.held_out.rows
    assert len(rows) == 10 * len(set(groups[rows]))


# ---------------------------------------------------------- search, selection


@pytest.mark.parametrize(
    ("search", "fixed"),
    [
        ("age", ["learning_rate"]),
        ("bo", ["units", "activation"]),
        ("init", ["units", "activation", "learning_rate"]),
        *((name, []) for name in ("agebo", "random", "age-mixed", "bo-mixed")),
    ],
)
def test_fit_by_every_search(tiny, wave, search, fixed):
    fitted = tiny.set_params(search=search, n_trials=6, epochs=2).fit(*wave)
    frame = fitted.catalog_.to_frame()
    assert (frame.status == "completed").all() and len(frame) == 6
    assert (frame[fixed].nunique() == 1).all()


def test_fit_takes_a_keras_tuner_oracle_and_fixed_decisions(tiny, wave):
    oracle = keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=4, seed=1)
    fitted = tiny.set_params(search=oracle, epochs=2).fit(*wave)
    assert len(fitted.catalog_) == 4
    assert not oracle.trials  # a copy was used: the parameter is as it was
    fixed = {"units": 10, "learning_rate": 0.02}
    frame = fitted.set_params(fixed=fixed, n_trials=2).fit(*wave).catalog_.to_frame()
    assert (frame.units == 10).all() and (frame.learning_rate == 0.02).all()


def build(hp, input_shape, n_outputs):
    layers = keras.layers
    return sequential(
        input_shape,
        layers.Dense(hp.Int("units", 4, 16), activation="relu"),
        layers.Dense(n_outputs),
    )


def training(hp):
    return {"learning_rate": hp.Float("lr", 1e-2, 1e-1, sampling="log"), "batch_size": 16}


def test_fit_takes_functions_as_space(tiny, wave):
    X, y = wave
    fitted = clone(tiny).set_params(space=(build, training)).fit(X, y)
    assert {"units", "lr"} <= set(fitted.catalog_.to_frame())
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict(X), fitted.predict(X))
    alone = clone(tiny).set_params(space=build, n_trials=2, epochs=2).fit(X, y)
    assert {"units", "learning_rate", "optimizer"} <= set(alone.catalog_.to_frame())


@pytest.mark.slow
@pytest.mark.parametrize("space", slow_after(1, ["toy", "dense", "benchmark"]))
def test_fit_takes_the_papers_spaces(tiny, wave, space):
    tiny.set_params(space=space, n_trials=2, epochs=2)
    frame = tiny.fit(*wave).catalog_.to_frame()
    assert sum(c.startswith(("node_", "skip_")) for c in frame) == (9 if space == "toy" else 17)


def test_reselect_by_name_and_by_function(fitted):
    model = copy.copy(fitted)
    top = model.reselect(selection="top").selection_
    assert_array_equal(top.indices, np.argsort(model.catalog_.to_frame().score)[:3])
    mse = model.reselect(selection="top", selection__loss="mse").selection_
    assert mse.loss > 0 > top.loss

    def last_two(y, loc, scale, n_members, sample_weight=None):
        assert loc.shape == scale.shape == (4, *y.shape)
        return Selection([2, 3], [0.5, 0.5])

    chosen = model.reselect(selection=last_two)
    assert_array_equal(chosen.selection_.indices, [2, 3])
    assert_array_equal(chosen.fitted_.weights, [0.5, 0.5])


def test_fit_shows_progress_and_logs(tiny, wave, capsys, caplog):
    with caplog.at_level(logging.INFO, logger="skuq"):
        tiny.set_params(verbose=1).fit(*wave)
    assert "4 of 4 trials" in capsys.readouterr().err
    assert sum("score" in message for message in caplog.messages) == 4


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.where(X > 0.9, np.inf, X), y), "infinity"),
        (lambda X, y: (X, np.where(y > 10, np.nan, y)), "y contains NaN"),
        (lambda X, y: (X, np.where(y > 10, np.inf, y)), "y contains infinity"),
        (lambda X, y: (X + 1j, y), "Complex data not supported"),
        (lambda X, y: (X[:0], y[:0]), "0 sample"),
        (lambda X, y: (X[:1], y[:1]), "1 sample"),
        (lambda X, y: (X[:, 0], y), "Expected 2D array"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: (X, np.array(["a"] * len(y))), "Got the label"),
        (lambda X, y: (X, y, -np.ones(120)), "Negative values"),
        (lambda X, y: (X, y, np.zeros(120)), "at least one non-zero|All are 0"),
        (lambda X, y: (X, y, np.arange(120) == 7), "positive weight. Got 1"),
    ],
)
def test_fit_refuses_data(tiny, wave, change, message):
    with pytest.raises(ValueError, match=message):
        tiny.fit(*change(*wave))


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, {"groups": np.arange(200)}, r"`groups` must have shape \(120,\)"),
        ({}, {"groups": np.arange(10)}, r"`groups` must have shape \(120,\)"),
        ({}, {"validation_data": np.ones((9, 2))}, "must be a tuple"),
        ({}, {"validation_data": (np.ones((9, 2)), np.ones((9, 2)))}, "have 1 outputs. Got 2"),
        ({}, {"validation_data": (np.ones((9, 1)), np.ones(9))}, "features"),
        *(
            ({"validation": kind}, {"validation_data": (np.ones((9, 2)), np.ones(9))}, "either")
            for kind in (0.2, 3, KFold(2))
        ),
    ],
)
def test_fit_refuses_what_is_given_with_data(tiny, wave, settings, given, message):
    with pytest.raises(ValueError, match=message):
        tiny.set_params(**settings).fit(*wave, **given)


def test_fit_without_preprocessing_refuses(tiny, wave):
    X, y = wave
    tiny.set_params(preprocess=None)
    with pytest.raises(ValueError, match="contains NaN"):
        tiny.fit(np.where(X > 0.9, np.nan, X), y)
    with pytest.raises(ValueError, match="could not convert|Unable to convert"):
        tiny.fit(np.array([["a", "b"]] * len(y)), y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_trials": 0}, "n_trials.*Got 0"),
        ({"n_members": 0}, "n_members.*Got 0"),
        ({"search": "grid"}, "search.*Got 'grid'"),
        ({"space": "huge"}, "space.*Got 'huge'"),
        ({"space": (3, 4)}, "`space` must be an object with"),
        ({"space": ()}, "`space` must be an object with"),
        ({"search__kappa": -1}, "kappa.*Got -1"),
        ({"search__population_size": 0}, "population_size.*Got 0"),
        ({"search__discard": 3}, "discard.*Got 3"),
        ({"space": DenseSpace(n_nodes=0)}, "n_nodes.*Got 0"),
        ({"selection": "best"}, "selection.*Got 'best'"),
        ({"selection": GreedySelection("brier")}, "`loss` of `selection` must be one of .*'crps'"),
        ({"selection": "hq", "n_members": 1}, "`n_members` must be at least 2 with `selection="),
        ({"fixed": {"depth": 10}}, "`fixed` has unknown decisions"),
        ({"fixed": {"units": 11}}, r"`fixed\['units'\]` must lie in"),
        ({"validation": 1.0}, "validation.*Got 1.0"),
        ({"validation": None}, "`validation` must not be None without `validation_data`"),
        ({"repeats": 1, "refit": True}, "`repeats` must be 0 or .* with `refit=True`"),
        ({"repeats": 1, "validation": KFold(2)}, "`repeats` must be 0 .* splitter as `validation`"),
        ({"max_time": 0}, "max_time.*Got 0"),
        ({"trial_timeout": -1}, "trial_timeout.*Got -1"),
    ],
)
def test_fit_refuses_parameters(tiny, wave, parameters, message):
    with pytest.raises(ValueError, match=message):
        tiny.set_params(**parameters).fit(*wave)


def test_predict_refuses(tiny, fitted, wave):
    X, y = wave
    with pytest.raises(ValueError, match="3 features.*expecting 2 features"):
        fitted.predict(np.zeros((4, 3)))
    with pytest.raises(NotFittedError):
        clone(tiny).predict(X)
    with pytest.raises(ValueError, match="y must have shape"):
        fitted.log_prob(X, y[:5])
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict_interval(X, coverage=90)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", slow_after(1, [2, 3, 5]))
def test_fit_takes_a_handful_of_rows(tiny, wave, n_rows):
    X, y = wave
    fitted = tiny.fit(X[:n_rows], y[:n_rows])
    assert np.isfinite(fitted.predict(X, return_std=True)).all()


def test_fit_takes_constant_columns_and_y(tiny, wave):
    X, y = wave
    fitted = tiny.fit(np.full_like(X, 3.0), np.full_like(y, -4.0))
    mean, std = fitted.predict(X, return_std=True)
    assert_allclose(mean, -4, atol=0.5)
    assert np.isfinite(std).all() and (std > 0).all()


@pytest.mark.slow
def test_fit_names_faults_of_a_space(tiny, wave):
    def raises(hp, input_shape, n_outputs):
        raise ZeroDivisionError("no such luck")

    def sometimes(hp, input_shape, n_outputs):
        if hp.Choice("kind", ["model", "text"]) == "text":
            return "a model"
        return build(hp, input_shape, n_outputs)

    with pytest.raises(SearchSpaceError, match="no such luck"):
        clone(tiny).set_params(space=raises).fit(*wave)
    with pytest.raises(SearchFailedError, match=r"(?s)4 x SearchSpaceError.*Got str"):
        clone(tiny).set_params(space=lambda hp, *a: (hp.Choice("x", [1]), "a model")[1]).fit(*wave)
    some = clone(tiny).set_params(space=(sometimes, training), n_trials=12, search__discard=False)
    some.fit(*wave)
    frame = some.catalog_.to_frame()
    assert set(frame.status) == {"completed", "failed"}
    assert frame.message[frame.status == "failed"].str.contains("Got str").all()


def test_fit_raises_if_all_trials_diverge(tiny, wave):
    def explosive(hp, input_shape, n_outputs):
        """Infinite from the start, whatever the seed."""
        huge, dense = keras.initializers.Constant(1e30), keras.layers.Dense
        layers = [dense(n, kernel_initializer=huge) for n in (hp.Int("units", 2, 9), n_outputs)]
        return sequential(input_shape, *layers)

    with pytest.raises(SearchFailedError, match="FloatingPointError: Training diverged") as error:
        tiny.set_params(space=explosive).fit(*wave)
    assert len(error.value.records) == 4
    assert len(pickle.loads(pickle.dumps(error.value)).records) == 4


def test_fit_emits_no_other_warnings(tiny, fitted, wave):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SmallValidationWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        again = tiny.fit(*wave).predict(wave[0], return_std=True)
    assert_array_equal(again, fitted.predict(wave[0], return_std=True))


# ------------------------------------------------------------------ real data


@pytest.mark.smoke
@pytest.mark.slow
def test_defaults_on_diabetes():
    """The real job, small: better than predicting the mean, with honest coverage."""
    X, y = load_diabetes(return_X_y=True)
    train, test = np.arange(len(y)) % 4 != 0, np.arange(len(y)) % 4 == 0
    model = AutoDEUQRegressor(n_trials=2, epochs=40, n_jobs=2, random_state=0)
    model.fit(X[train], y[train])
    low, high = model.predict_interval(X[test], 0.9).T
    assert model.score(X[test], y[test]) > 0.3
    assert 0.75 < np.mean((low <= y[test]) & (y[test] <= high)) <= 1.0


@pytest.mark.slow
def test_defaults_beat_the_deep_ensemble_on_yacht(data_dir):
    """Split 0 with a small budget; a deep ensemble of 2017 has NLL 0.6 there."""
    data = np.load(data_dir / "uci_regression" / "yacht.npz")
    train, test = data["train_idx"][0], data["test_idx"][0]
    model = AutoDEUQRegressor(n_trials=30, n_jobs=2, random_state=1)
    model.fit(data["X"][train], data["y"][train])
    mean, std = model.predict(data["X"][test], return_std=True)
    from skuq.metrics import gaussian_nll_loss

    assert gaussian_nll_loss(data["y"][test], mean, std) < 0.6


# ---------------------------------------------------- found by trying to break it


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "must return a skuq.ensembles.Selection. Got NoneType"),
        (Selection(np.array([], int), np.array([])), "distinct indices, at least one"),
        (Selection(np.array([99]), np.array([1.0])), r"in 0..3. Got \[99\]"),
        (Selection(np.array([1, 1]), np.array([0.5, 0.5])), "distinct indices"),
        (Selection(np.array([0, 1]), np.array([3.0, 1.0])), "weights that sum to 1"),
        (Selection(np.array([0, 1]), np.array([-1.0, 2.0])), "positive weights"),
    ],
)
def test_reselect_refuses_a_selection(fitted, returned, message):
    model = copy.copy(fitted)
    with pytest.raises((TypeError, ValueError), match=message):
        model.reselect(selection=lambda *args, sample_weight: returned)
    assert model.selection_ is fitted.selection_


def test_fit_that_fails_keeps_the_old_model(tiny_space, wave):
    X, y = wave[:2]

    def fail(y, loc, scale, n_members, sample_weight):
        raise ZeroDivisionError

    model = AutoDEUQRegressor(2, epochs=5, space=tiny_space, random_state=0).fit(X, y)
    expected = model.predict(X)
    for settings, given, error in (
        ({}, {"groups": [1]}, ValueError),
        ({"selection": fail}, {}, ZeroDivisionError),
    ):
        with pytest.raises(error):
            model.set_params(**settings).fit(X, y, **given)
        assert_array_equal(model.predict(X), expected)
        assert len(model.catalog_) == 2


def test_grid_search_reaches_into_settings(tiny, wave):
    grid = {
        "search__kappa": [0.1, 1.0],
        "space": ["dense"],
        "space__n_nodes": [1],
        "selection__loss": ["crps"],
    }
    tiny.set_params(n_trials=1, n_members=1, epochs=1)
    found = GridSearchCV(tiny, grid, cv=2).fit(*wave).best_estimator_
    assert found.search.kappa == 0.1 and found.selection.loss == "crps"
    assert found.decisions_.architecture.names == ["node_1", "skip_0_2"]
