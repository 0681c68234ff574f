import copy
import logging
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tiers import slow_after
from training_data import train_member

from skuq import AutoDEUQRegressor
from skuq.backend import keras
from skuq.ensembles import GreedySelection, Selection
from skuq.exceptions import SearchFailedError, SearchSpaceError, SmallValidationWarning
from skuq.networks import DenseSpace, GaussianHead
from skuq.predictive import GaussianMixture
from skuq.tables import TrainingData
from skuq.training import Recipe
from skuq.training._networks import draw_variables


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


def test_the_whole_api_is_of_the_members_mixture(fitted, wave):
    X, y = wave
    weights, distribution = fitted.selection_.weights, fitted.predict_distribution(X)
    assert isinstance(distribution, GaussianMixture)
    loc, scale = distribution.loc, distribution.scale
    assert loc.shape == scale.shape == (len(weights), 120)
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (120,)
    assert_allclose(mean, weights @ loc)
    assert_array_equal(fitted.predict(X), mean)
    parts = fitted.predict_uncertainty(X)
    assert parts._fields == ("mean", "aleatoric", "epistemic", "total")
    assert_array_equal(parts.total, std)
    assert_allclose(parts.aleatoric**2, weights @ scale**2)
    assert_allclose(parts.epistemic**2, weights @ (loc - mean) ** 2, atol=1e-12)
    assert fitted.predict_interval(X).shape == (120, 2)
    assert fitted.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (120, 3)
    assert fitted.sample_y(X, 7, random_state=0).shape == (120, 7)
    density = weights @ stats.norm.pdf(y, loc, scale)
    assert_allclose(fitted.log_prob(X, y), np.log(density), rtol=1e-9)


@pytest.mark.slow
def test_shapes_with_several_outputs(tiny, wave):
    X, y = wave
    Y = np.column_stack([y, -2 * y, np.zeros_like(y)])
    fitted = tiny.fit(X, Y)
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (120, 3)
    assert fitted.predict_interval(X).shape == (120, 2, 3)
    assert fitted.predict_quantiles(X, [0.1, 0.5, 0.9, 0.95]).shape == (120, 4, 3)
    assert fitted.sample_y(X, 7, random_state=0).shape == (120, 3, 7)
    assert fitted.log_prob(X, Y).shape == (120,)
    assert_allclose(fitted.predict_distribution(X).to_tfp().log_prob(Y), fitted.log_prob(X, Y))


def test_column_y_is_one_output(tiny, wave):
    X, y = wave
    one, column = clone(tiny).fit(X, y), clone(tiny).fit(X, y[:, None])
    assert_array_equal(one.predict(X), column.predict(X)[:, 0])


def test_it_learns(fitted, wave):
    X, y = wave
    mean, std = fitted.predict(X, return_std=True)
    assert fitted.score(X, y) > 0.9
    assert 0.5 < np.sqrt(np.mean((mean - y) ** 2)) / std.mean() < 2


def test_parts_and_units(fitted, wave):
    X, y = wave
    mean, aleatoric, epistemic, total = fitted.predict_uncertainty(X)
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    assert (aleatoric > 0).all() and (epistemic >= 0).all()
    scaled = clone(fitted).fit(X, 1000 * y - 7)
    assert_allclose(scaled.predict(X), 1000 * mean - 7, rtol=1e-3)
    assert_allclose(scaled.predict(X, return_std=True)[1], 1000 * total, rtol=1e-2)


def test_interval_and_quantiles_are_the_mixtures(fitted, wave):
    X, _ = wave
    distribution = fitted.predict_distribution(X)
    quantiles = fitted.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert (np.diff(quantiles, axis=1) > 0).all()
    assert_allclose(fitted.predict_interval(X, 0.9), quantiles[:, [0, 2]], rtol=1e-10)
    assert_allclose(distribution.cdf(quantiles[:, 0]), 0.05, rtol=1e-7)
    draws = fitted.sample_y(X, 4000, random_state=0)
    inside = ((draws >= quantiles[:, :1]) & (draws <= quantiles[:, 2:])).mean()
    assert abs(inside - 0.9) < 0.02


def test_predict_distribution_has_the_papers_divisor(fitted, wave):
    X, _ = wave
    weights = fitted.selection_.weights
    assert len(weights) > 1
    effective = 1 / np.sum(weights**2)
    distribution = fitted.predict_distribution(X)
    before, after = distribution.uncertainty(), distribution.uncertainty(ddof=1)
    assert_allclose(after.epistemic**2, effective / (effective - 1) * before.epistemic**2)


def test_far_inputs_give_finite_uncertainty(fitted):
    X = np.array([[1e300, -1e300], [1e30, 0], [-1e10, 1e10]])
    parts = fitted.predict_uncertainty(X)
    assert all(np.isfinite(part).all() for part in parts)
    assert np.isfinite(fitted.predict_interval(X)).all()


def test_members_predict_what_was_held_out(fitted, wave):
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


def test_seeds_of_no_random_state_differ(tiny, wave):
    X, y = wave
    unseeded = clone(tiny).set_params(random_state=None).fit(X, y)
    other = clone(tiny).set_params(random_state=None).fit(X, y)
    assert unseeded.entropy_ != other.entropy_


def test_pickle_round_trip_and_size(tiny, wave):
    X, y = wave
    fitted = tiny.set_params(n_trials=8, n_members=2).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict(X, return_std=True), fitted.predict(X, return_std=True))
    kept = [r for r in loaded.catalog_ if r.completed and r.result.weights is not None]
    assert len(kept) == len(fitted.selection_) < len(fitted.catalog_)
    assert len(loaded.catalog_.to_frame()) == 8
    assert all(r.result.weights is not None for r in fitted.catalog_ if r.completed)


@pytest.mark.slow
def test_cross_validation_and_grid_search(tiny, wave):
    X, y = wave
    cv = KFold(3, shuffle=True, random_state=0)
    assert cross_val_score(tiny, X, y, cv=cv).min() > 0.7
    grid = GridSearchCV(tiny, {"n_members": [1, 2], "epochs": [2, 20]}, cv=cv).fit(X, y)
    assert grid.best_params_["epochs"] == 20


@pytest.mark.slow
def test_nested_parallelism(tiny, wave):
    """Folds in processes, trials asked for in processes too: they run inline, no deadlock."""
    tiny.set_params(n_jobs=2, search="rs-mixed")
    parallel = cross_val_score(tiny, *wave, cv=2, n_jobs=2)
    assert_allclose(parallel, cross_val_score(tiny.set_params(n_jobs=1), *wave, cv=2))


@pytest.mark.slow
def test_random_search_repeats_in_parallel(tiny, wave):
    X, y = wave
    tiny.set_params(search="rs-mixed")
    alone = clone(tiny).fit(X, y)
    together = clone(tiny).set_params(n_jobs=2).fit(X, y)
    assert_array_equal(alone.predict(X), together.predict(X))
    frames = [m.catalog_.to_frame().drop(columns="seconds") for m in (alone, together)]
    pd.testing.assert_frame_equal(*frames)


@pytest.mark.slow
def test_pipeline_on_a_frame_with_strings(tiny, wave):
    X, y = wave
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame["kind"] = np.where(X[:, 0] > 0, "up", "down")
    columns = ColumnTransformer(
        [("n", StandardScaler(), ["a", "b"]), ("c", OneHotEncoder(), ["kind"])]
    )
    model = make_pipeline(columns, tiny).fit(frame, pd.Series(y))
    mean, std = model.predict(frame, return_std=True)
    assert mean.shape == std.shape == (120,)
    assert model.score(frame, y) > 0.8
    wrapped = TransformedTargetRegressor(clone(tiny), func=np.log, inverse_func=np.exp)
    assert wrapped.fit(X, y).score(X, y) > 0.8


def test_feature_names(tiny, wave):
    X, y = wave
    frame = pd.DataFrame(X, columns=["a", "b"])
    fitted = tiny.fit(frame, y)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["b", "a"]])


# ------------------------------------------------------------------- weights


def test_sample_weight_is_repetition_for_full_batches():
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
    model = keras.Sequential(
        [keras.Input((2,), name="i"), layers.Dense(8, "tanh", name="a"), layers.Dense(2, name="b")]
    )
    recipe, start = Recipe(learning_rate=0.01, batch_size=1000, epochs=50), draw_variables(model, 1)
    one, two = (
        train_member(model, GaussianHead(), recipe, data, 1, start=[start])
        for data in (weighted, repeated)
    )
    assert_allclose(one.weights, two.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_rows_of_zero_weight_do_not_matter(tiny, wave):
    X, y = wave
    weight = np.ones(120)
    weight[:30] = 0
    spoiled = y.copy()
    spoiled[:30] = 1e6
    clean = clone(tiny).fit(X[30:], y[30:]).predict(X)
    assert_array_equal(clone(tiny).fit(X, spoiled, sample_weight=weight).predict(X), clean)


@pytest.mark.slow
def test_weights_pull(tiny):
    """Two contradicting targets at the same inputs: the heavier one wins."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-1, 1, (60, 1)), 2, axis=0)
    y = np.tile([0.0, 1.0], 60)
    weight = np.tile([1.0, 9.0], 60)
    assert abs(tiny.fit(X, y, sample_weight=weight).predict(X).mean() - 0.9) < 0.1


# ---------------------------------------------------------------- validation


@pytest.mark.slow
def test_validation_data_and_groups(tiny, wave):
    X, y = wave
    fitted = clone(tiny).fit(X[:80], y[:80], validation_data=(X[80:], y[80:]))
    assert fitted.catalog_.held_out.rows is None and len(fitted.catalog_.held_out.y) == 40
    groups = np.repeat(np.arange(12), 10)
    fitted = clone(tiny).fit(X, y, groups=groups)
    rows = fitted.catalog_.held_out.rows
    assert len(rows) == 10 * len(set(groups[rows]))
    with pytest.raises(ValueError, match="must be a tuple"):
        clone(tiny).fit(X, y, validation_data=X)
    with pytest.raises(ValueError, match="must have 1 outputs. Got 2"):
        clone(tiny).fit(X, y, validation_data=(X, np.column_stack([y, y])))
    with pytest.raises(ValueError, match="features"):
        clone(tiny).fit(X, y, validation_data=(X[:, :1], y))


def test_small_validation_sets_warn(tiny, wave):
    with pytest.warns(SmallValidationWarning, match="chosen on 30 validation rows"):
        tiny.fit(*wave)


# ---------------------------------------------------------- search, selection


@pytest.mark.parametrize(
    "search", ["agebo", "age", "bo", "init", "rs-mixed", "age-mixed", "bo-mixed"]
)
def test_every_search(tiny, wave, search):
    fitted = tiny.set_params(search=search, n_trials=6).fit(*wave)
    frame = fitted.catalog_.to_frame()
    assert (frame.status == "completed").all() and len(frame) == 6
    fixed = {"age": ["learning_rate"], "bo": ["units", "activation"],
             "init": ["units", "activation", "learning_rate"]}  # fmt: skip
    for name in fixed.get(search, []):
        assert frame[name].nunique() == 1


def test_fixed_decisions(tiny, wave):
    tiny.set_params(fixed={"units": 10, "learning_rate": 0.02})
    frame = tiny.fit(*wave).catalog_.to_frame()
    assert (frame.units == 10).all() and (frame.learning_rate == 0.02).all()


def test_keras_tuner_oracle_as_search(tiny, wave):
    from skuq.backend import keras_tuner

    oracle = keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=4, seed=1)
    fitted = tiny.set_params(search=oracle).fit(*wave)
    assert len(fitted.catalog_) == 4
    assert not oracle.trials  # a copy was used: the parameter is as it was
    again = fitted.set_params(fixed={"units": 10}).fit(*wave)
    assert (again.catalog_.to_frame().units == 10).all()


def build(hp, input_shape, n_outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(hp.Int("units", 4, 16), activation="relu"),
            layers.Dense(n_outputs),
        ]
    )


def training(hp):
    return {"learning_rate": hp.Float("lr", 1e-2, 1e-1, sampling="log"), "batch_size": 16}


def test_a_users_own_space(tiny, wave):
    X, y = wave
    fitted = clone(tiny).set_params(space=(build, training)).fit(X, y)
    assert {"units", "lr"} <= set(fitted.catalog_.to_frame())
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(loaded.predict(X), fitted.predict(X))
    alone = clone(tiny).set_params(space=build, n_trials=2, epochs=2).fit(X, y)
    assert {"units", "learning_rate", "optimizer"} <= set(alone.catalog_.to_frame())


@pytest.mark.slow
@pytest.mark.parametrize("space", slow_after(1, ["toy", "dense", "benchmark"]))
def test_the_papers_spaces(tiny, wave, space):
    tiny.set_params(space=space, n_trials=2, epochs=2)
    frame = tiny.fit(*wave).catalog_.to_frame()
    assert sum(c.startswith(("node_", "skip_")) for c in frame) == (9 if space == "toy" else 17)


@pytest.mark.slow
def test_batches_larger_than_the_data(tiny, wave):
    X, y = wave
    tiny.set_params(space="dense", fixed={"batch_size": 256}, n_trials=1, epochs=2)
    assert tiny.fit(X[:20], y[:20]).predict(X).shape == (120,)


def test_selection_by_name_and_by_callable(tiny, wave):
    X, y = wave
    top = clone(tiny).set_params(selection="top").fit(X, y)
    order = np.argsort(top.catalog_.to_frame().score)[:3]
    assert_array_equal(top.selection_.indices, order)
    mse = clone(top).set_params(selection__loss="mse").fit(X, y)
    assert mse.selection_.loss > 0 > top.selection_.loss

    def last_two(y, loc, scale, n_members, sample_weight=None):
        assert loc.shape == scale.shape == (4, *y.shape)
        return Selection([2, 3], [0.5, 0.5])

    chosen = clone(tiny).set_params(selection=last_two).fit(X, y)
    assert_array_equal(chosen.selection_.indices, [2, 3])
    assert_array_equal(chosen.fitted_.weights, [0.5, 0.5])


def test_selection_never_leaves_a_single_member_unless_asked(tiny, wave):
    assert len(clone(tiny).fit(*wave).selection_) >= 2
    single = clone(tiny).set_params(n_members=1).fit(*wave)
    assert len(single.selection_) == 1
    assert_array_equal(single.predict_uncertainty(wave[0]).epistemic, 0)


def test_progress_and_log(tiny, wave, capsys, caplog):
    with caplog.at_level(logging.INFO, logger="skuq"):
        tiny.set_params(verbose=1).fit(*wave)
    assert "4 of 4 trials" in capsys.readouterr().err
    assert sum("score" in message for message in caplog.messages) == 4


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("spoil", "message"),
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
    ],
)
def test_bad_arrays(tiny, wave, spoil, message):
    with pytest.raises(ValueError, match=message):
        tiny.fit(*spoil(*wave))


def test_bad_numbers_without_preprocessing(tiny, wave):
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
def test_bad_parameters(tiny, wave, parameters, message):
    with pytest.raises(ValueError, match=message):
        tiny.set_params(**parameters).fit(*wave)


@pytest.mark.parametrize("validation", [0.2, 3, KFold(2)])
def test_fit_refuses_two_kinds_of_validation(tiny, wave, validation):
    with pytest.raises(ValueError, match="Give either `validation` or `validation_data`"):
        tiny.set_params(validation=validation).fit(*wave, validation_data=wave)


def test_bad_predictions(tiny, fitted, wave):
    X, y = wave
    with pytest.raises(ValueError, match="3 features.*expecting 2 features"):
        fitted.predict(np.zeros((4, 3)))
    with pytest.raises(NotFittedError):
        clone(tiny).predict(X)
    with pytest.raises(ValueError, match="y must have shape"):
        fitted.log_prob(X, y[:5])
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict_interval(X, coverage=90)


def test_negative_or_vanishing_weights(tiny, wave):
    X, y = wave
    with pytest.raises(ValueError, match="Negative values"):
        tiny.fit(X, y, sample_weight=-np.ones(120))
    with pytest.raises(ValueError, match="at least one non-zero|All are 0"):
        tiny.fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="positive weight. Got 1"):
        tiny.fit(X, y, sample_weight=np.arange(120) == 7)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", slow_after(1, [2, 3, 5]))
def test_a_handful_of_rows(tiny, wave, n_rows):
    X, y = wave
    fitted = tiny.fit(X[:n_rows], y[:n_rows])
    assert np.isfinite(fitted.predict(X, return_std=True)).all()


def test_constant_columns_and_constant_y(tiny, wave):
    X, y = wave
    fitted = tiny.fit(np.full_like(X, 3.0), np.full_like(y, -4.0))
    mean, std = fitted.predict(X, return_std=True)
    assert_allclose(mean, -4, atol=0.5)
    assert np.isfinite(std).all() and (std > 0).all()


@pytest.mark.slow
def test_spaces_that_raise_or_return_no_model(tiny, wave):
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


def test_all_trials_diverging(tiny, wave):
    def explosive(hp, input_shape, n_outputs):
        """Infinite from the start, whatever the seed."""
        huge = {"kernel_initializer": keras.initializers.Constant(1e30)}
        dense = keras.layers.Dense
        return keras.Sequential(
            [
                keras.Input(input_shape),
                dense(hp.Int("units", 2, 9), **huge),
                dense(n_outputs, **huge),
            ]
        )

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
def test_default_space_on_diabetes():
    """The real job, small: better than predicting the mean, with honest coverage."""
    X, y = load_diabetes(return_X_y=True)
    train, test = np.arange(len(y)) % 4 != 0, np.arange(len(y)) % 4 == 0
    model = AutoDEUQRegressor(n_trials=12, epochs=60, n_jobs=2, random_state=0)
    model.fit(X[train], y[train])
    low, high = model.predict_interval(X[test], 0.9).T
    assert model.score(X[test], y[test]) > 0.3
    assert 0.75 < np.mean((low <= y[test]) & (y[test] <= high)) <= 1.0


@pytest.mark.slow
def test_yacht_beats_the_deep_ensemble(data_dir):
    """Split 0 with a small budget; a deep ensemble of 2017 has NLL 0.6 there."""
    data = np.load(data_dir / "uci_regression" / "yacht.npz")
    train, test = data["train_idx"][0], data["test_idx"][0]
    model = AutoDEUQRegressor(n_trials=30, n_jobs=2, random_state=1)
    model.fit(data["X"][train], data["y"][train])
    mean, std = model.predict(data["X"][test], return_std=True)
    from skuq.metrics import gaussian_nll_loss

    assert gaussian_nll_loss(data["y"][test], mean, std) < 0.6


# ---------------------------------------------------- found by trying to break it


@pytest.mark.parametrize("scale", slow_after(2, [1e-300, 1e300, 1e-50, 1e50]))
def test_scale_of_sample_weights_does_not_matter(tiny, wave, scale):
    X, y = wave
    weight = np.linspace(1, 3, 120)
    expected = clone(tiny).fit(X, y, sample_weight=weight).predict(X)
    assert_allclose(clone(tiny).fit(X, y, sample_weight=scale * weight).predict(X), expected)


@pytest.mark.parametrize("groups", [np.arange(200), np.arange(10)])
def test_groups_of_the_wrong_length(tiny, wave, groups):
    with pytest.raises(ValueError, match=r"`groups` must have shape \(120,\)"):
        tiny.fit(*wave, groups=groups)


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
def test_selections_that_cannot_be_used(tiny, wave, returned, message):
    tiny.set_params(selection=lambda *args, sample_weight: returned)
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        tiny.fit(*wave)
    with pytest.raises(NotFittedError):
        tiny.predict(wave[0])
    # The trials are kept.
    searched = raised.value.estimator
    with pytest.raises(NotFittedError):
        searched.predict(wave[0])
    chosen = searched.reselect(selection="top")
    assert len(chosen.catalog_) == 4 and len(chosen.selections_) == 1
    assert_array_equal(
        chosen.predict(wave[0]), tiny.set_params(selection="top").fit(*wave).predict(wave[0])
    )


@pytest.mark.slow
def test_first_prediction_of_many_members_is_quiet(tiny, wave, capfd):
    tiny.set_params(n_trials=8, n_members=7, selection__min_members=7, space="dense", epochs=2)
    tiny.fit(*wave).predict(wave[0])
    assert "WARNING" not in capfd.readouterr().err


@pytest.mark.slow
def test_small_validation_data_warn_too(tiny, wave):
    X, y = wave
    with pytest.warns(SmallValidationWarning, match="chosen on 1 validation rows"):
        tiny.fit(X, y, validation_data=(X[:1], y[:1]))


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
