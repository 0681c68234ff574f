import copy
import logging
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import sequential
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold
from teams import likelihood_statistics
from tiers import cases, slow_after

from skuq import AutoDEUQClassifier, AutoDEUQRegressor
from skuq.backend import keras, keras_tuner
from skuq.ensembles import GreedySelection, Selection, select_forward
from skuq.exceptions import SearchFailedError
from skuq.metrics import gaussian_nll_loss
from skuq.networks import DenseSpace
from skuq.predictive import GaussianMixture

TINY = {"n_trials": 4, "n_members": 3, "epochs": 25, "random_state": 0}


@pytest.fixture
def tiny(tiny_space):
    return AutoDEUQRegressor(**TINY, space=tiny_space)


@pytest.fixture(scope="module")
def fitted(tiny_space, wave):
    """One fit for all tests that only look at it."""
    return AutoDEUQRegressor(**TINY, space=tiny_space).fit(*wave)


def test_predictions_are_of_the_members_mixture(fitted, wave):
    X, y = wave
    weights, distribution = fitted.selection_.weights, fitted.predict_distribution(X)
    assert isinstance(distribution, GaussianMixture)
    loc, scale = distribution.loc, distribution.scale
    assert loc.shape == scale.shape == (len(weights), 120) and len(weights) >= 2
    mean, std = fitted.predict(X, return_std=True)
    assert_allclose(mean, weights @ loc)
    parts = fitted.predict_uncertainty(X)
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


@cases(
    ("search", "fixed"),
    ("age", ["learning_rate"]),
    ("bo", ["units", "activation"]),
    ("init", ["units", "activation", "learning_rate"]),
    *((name, []) for name in ("agebo", "random", "age-mixed", "bo-mixed")),
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


@pytest.mark.slow
@pytest.mark.parametrize("space", slow_after(1, ["toy", "dense", "benchmark"]))
def test_fit_takes_the_papers_spaces(tiny, wave, space):
    tiny.set_params(space=space, n_trials=2, epochs=2)
    frame = tiny.fit(*wave).catalog_.to_frame()
    assert sum(c.startswith(("node_", "skip_")) for c in frame) == (9 if space == "toy" else 17)


def tiny_classifier(space, **settings):
    settings = {"n_members": 3, "space": space, "random_state": 0, **settings}
    return AutoDEUQClassifier(4, **settings)


@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_fit_selects_with_repeats_by_the_likelihood_of_classes(tiny_space, iris):
    X, y = iris
    model = tiny_classifier(tiny_space, epochs=20)
    model.fit(X[:100], y[:100], validation_data=(X[100:], y[100:]))
    pool = [one for _, one in model.member_estimators(every_trial=True)]
    likelihood = np.array([one.log_prob(X[100:], y[100:]) for one in pool])
    settings = {"min_members": 2, "min_weight": 0.25}
    expected = select_forward(*likelihood_statistics(likelihood), 3, **settings)
    assert_array_equal(model.selection_.indices, expected.indices)
    assert_allclose(model.selection_.weights, expected.weights)
    assert len(model.selection_) >= 2 and model.score(X, y) > 0.8
    within = model.predict_proba(X[100:])
    assert_allclose(model.selection_.loss, log_loss(y[100:], within), rtol=1e-5)


def test_fit_gives_a_selection_of_classes_codes_and_probabilities(tiny_space, iris):
    def first(y, proba, n_members, sample_weight=None):
        assert y.dtype == int and proba.shape == (4, len(y), 3) and sample_weight.shape == y.shape
        assert_allclose(proba.sum(axis=2), 1)
        return Selection(np.array([0]), np.ones(1))

    model = tiny_classifier(tiny_space, selection=first, epochs=2)
    assert model.fit(*iris).selection_.indices == [0]


def test_fit_shows_progress_and_logs(tiny, wave, capsys, caplog):
    with caplog.at_level(logging.INFO, logger="skuq"):
        tiny.set_params(verbose=1).fit(*wave)
    told = capsys.readouterr().err
    assert "4/4" in told and "best NLL" in told
    assert sum("score" in message for message in caplog.messages) == 4
    tiny.set_params(search__objective=lambda trial: trial.n_weights, epochs=1).fit(*wave)
    assert "best objective" in capsys.readouterr().err


@cases(
    ("validation", "given", "message"),
    ("auto", {"sample_weight": -np.ones(120)}, "Negative values"),
    ("auto", {"sample_weight": np.zeros(120)}, "at least one non-zero|All are 0"),
    ("auto", {"sample_weight": np.arange(120) == 7}, "positive weight. Got 1"),
    (0.2, {"validation_data": (np.eye(2), np.ones(2))}, "either"),
    (3, {"validation_data": (np.eye(2), np.ones(2))}, "either"),
    (KFold(2), {"validation_data": (np.eye(2), np.ones(2))}, "either"),
    ids=["negative", "zeros", "one row", "share", "folds", "splitter"],
)
def test_fit_refuses_data(tiny, wave, validation, given, message):
    with pytest.raises(ValueError, match=message):
        tiny.set_params(validation=validation).fit(*wave, **given)


@cases(
    ("parameters", "message"),
    ({"n_trials": 0}, "n_trials.*Got 0"),
    ({"n_members": 0}, "n_members.*Got 0"),
    ({"search": "grid"}, "search.*Got 'grid'"),
    ({"space": "huge"}, "space.*Got 'huge'"),
    ({"space": (3, 4)}, "`space` must be an object with"),
    ({"space": ()}, "`space` must be an object with"),
    ({"search__kappa": -1}, "kappa.*Got -1"),
    ({"search__population_size": 0}, "population_size.*Got 0"),
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
)
def test_fit_refuses_parameters(tiny, wave, parameters, message):
    with pytest.raises(ValueError, match=message):
        tiny.set_params(**parameters).fit(*wave)


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
    assert gaussian_nll_loss(data["y"][test], mean, std) < 0.6


@cases(
    ("returned", "message"),
    (None, "must return a skuq.ensembles.Selection. Got NoneType"),
    (Selection(np.array([], int), np.array([])), "distinct indices, at least one"),
    (Selection(np.array([99]), np.array([1.0])), r"in 0..3. Got \[99\]"),
    (Selection(np.array([1, 1]), np.array([0.5, 0.5])), "distinct indices"),
    (Selection(np.array([0, 1]), np.array([3.0, 1.0])), "weights that sum to 1"),
    (Selection(np.array([0, 1]), np.array([-1.0, 2.0])), "positive weights"),
)
def test_reselect_refuses_a_selection(fitted, returned, message):
    model = copy.copy(fitted)
    with pytest.raises((TypeError, ValueError), match=message):
        model.reselect(selection=lambda *args, sample_weight: returned)
    assert model.selection_ is fitted.selection_


def test_grid_search_reaches_into_settings(tiny, wave):
    grid = {"search__kappa": [0.1, 1.0], "selection__loss": ["crps"]}
    grid |= {"space": ["dense"], "space__n_nodes": [1]}
    tiny.set_params(n_trials=1, n_members=1, epochs=1)
    found = GridSearchCV(tiny, grid, cv=2).fit(*wave).best_estimator_
    assert found.search.kappa == 0.1 and found.selection.loss == "crps"
    assert found.decisions_.architecture.names == ["node_1", "skip_0_2"]
