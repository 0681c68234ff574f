"""AutoDEUQ on a tiny space, and with its defaults: the tabular space, folds, calibration."""

import copy
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_diabetes
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold
from small_models import make
from teams import likelihood_statistics
from tiers import cases
from training_data import MemberTrainer

from skuq import AutoDEUQClassifier, AutoDEUQRegressor
from skuq.backend import keras_tuner
from skuq.ensembles import GreedySelection, Selection, select_forward
from skuq.exceptions import SmallValidationWarning
from skuq.files import dumps, loads
from skuq.networks import DenseSpace
from skuq.predictive._calibration import UNCALIBRATED, fit_calibration
from skuq.search import Catalog, TrialRecord

TINY = {"n_trials": 4, "n_members": 3, "epochs": 25, "random_state": 0}
# One small architecture, so that few programs are compiled.
ONE = {"n_layers": 1, "width": 32, "embedding": "none", "residual": False, "activation": "silu"}
SMALL = {"fixed": ONE}
FAST = {"n_trials": 2, "epochs": 3, "random_state": 0, **SMALL}
FEW_ROWS = "ignore::skuq.exceptions.SmallValidationWarning"
ORACLE = keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=4, seed=1)
KEPT_OUT = {"validation_data": (np.eye(2), np.ones(2))}
FAILED = Catalog([TrialRecord(0, status="failed")])


@pytest.fixture(scope="module")
def fitted(wave):
    return AutoDEUQRegressor(**{**FAST, "n_trials": 6, "epochs": 10}).fit(*wave)


@pytest.mark.filterwarnings(FEW_ROWS)
def test_fit_selects_with_repeats_by_the_likelihood_of_classes(tiny_space, iris):
    X, y = iris
    settings = {"n_members": 3, "space": tiny_space, "random_state": 0, "epochs": 20}
    model = AutoDEUQClassifier(4, **settings)
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

    def first(y, proba, n_members, sample_weight=None):
        assert y.dtype == int and proba.shape == (4, len(y), 3) and sample_weight.shape == y.shape
        assert_allclose(proba.sum(axis=2), 1)
        return Selection(np.array([0]), np.ones(1))

    with pytest.warns(UserWarning, match="1 member, as `selection` chose no more: .* is 0"):
        assert model.reselect(selection=first).selection_.indices == [0]


@cases(
    ("parameters", "given", "message"),
    ({}, {"sample_weight": np.arange(120) == 7}, "positive weight. Got 1"),
    ({"validation": 0.2}, KEPT_OUT, "either"),
    ({"validation": KFold(2)}, KEPT_OUT, "either"),
    ({"validation": 2}, {"groups": np.full(120, 7.0)}, "`groups` has one: 7.0. Give `validation_d"),
    ({"space": (3, 4)}, {}, "`space` must be an object with"),
    ({"space": DenseSpace(n_nodes=0)}, {}, "n_nodes.*Got 0"),
    ({"search__kappa": -1}, {}, "kappa.*Got -1"),
    ({"search__initial_trials": [{"wide": 3}]}, {}, r"decisions \['wide'\].*give its `catalog_`"),
    ({"search__initial_trials": FAILED}, {}, "a completed trial .*of 1 trials, 0 co"),
    ({"selection": GreedySelection("brier")}, {}, "`loss` of `selection` must be one of .*'crps'"),
    ({"selection": lambda y, loc: 0}, {}, r"`selection` must be a function of \(y, loc, scale"),
    ({"fixed": {"depth": 10}}, {}, "`fixed` has unknown decisions"),
    ({"fixed": {"units": 11}}, {}, r"`fixed\['units'\]` must lie in"),
    ({"validation": None}, {}, "`validation` must not be None without `validation_data`"),
)
def test_fit_refuses(tiny_space, wave, parameters, given, message):
    tiny = AutoDEUQRegressor(**TINY, space=tiny_space)
    with pytest.raises((ValueError, TypeError), match=message):
        tiny.set_params(**parameters).fit(*wave, **given)
    assert not hasattr(tiny, "catalog_")  # before the search


@pytest.mark.smoke
@pytest.mark.slow
def test_defaults_on_diabetes():
    """The real job, small: better than predicting the mean, with honest coverage."""
    X, y = load_diabetes(return_X_y=True)
    train, test = np.arange(len(y)) % 4 != 0, np.arange(len(y)) % 4 == 0
    model = AutoDEUQRegressor(n_trials=2, epochs=40, n_jobs=2, random_state=0)
    model.fit(X[train], y[train])
    low, high = model.predict_interval(X[test], 0.9)
    assert model.score(X[test], y[test]) > 0.3
    assert 0.75 < np.mean((low <= y[test]) & (y[test] <= high)) <= 1.0


@cases(
    ("returned", "message"),
    (None, "must return a skuq.ensembles.Selection. Got NoneType"),
    (Selection(np.array([99]), np.array([1.0])), r"in 0..5. Got \[99\]"),
    (Selection(np.array([1, 1]), np.array([0.5, 0.5])), "distinct indices"),
    (Selection(np.array([0, 1]), np.array([3.0, 1.0])), "weights that sum to 1"),
    (Selection(np.array([0, 1]), np.array([-1.0, 2.0])), "positive weights"),
)
def test_reselect_refuses_a_selection(fitted, returned, message):
    model = copy.copy(fitted)
    with pytest.raises((TypeError, ValueError), match=message):
        model.reselect(selection=lambda *args, sample_weight: returned)
    assert model.selection_ is fitted.selection_


def test_initial_trials_are_tried_first(fitted, wave):
    X, y = wave
    given = [{"weight_decay": 0.01, "n_layers": 4}, {"learning_rate": 0.05}]
    settings = {**FAST, "epochs": 1}
    model = make(AutoDEUQRegressor, **settings, search__initial_trials=given).fit(X, y)
    tried = [record.configuration for record in model.catalog_]
    assert tried[0]["weight_decay"] == 0.01 and tried[1]["learning_rate"] == 0.05
    assert [c["n_layers"] for c in tried] == [1, 1]  # what is fixed stays so
    # Of another search the best, and in another space what this one decides.
    ranked = sorted((r for r in fitted.catalog_ if r.completed), key=lambda record: record.score)
    expected = [record.configuration for record in ranked[:2]]
    model.set_params(search__initial_trials=fitted.catalog_).fit(X, y)
    assert [record.configuration for record in model.catalog_] == expected
    classifier = make(AutoDEUQClassifier, **settings, search__initial_trials=fitted.catalog_)
    first = classifier.fit(X, y > np.median(y)).catalog_[0].configuration
    assert first["learning_rate"] == expected[0]["learning_rate"]


class Planned(Exception):
    """Raised with the folds of a search, before its first trial."""


@pytest.mark.filterwarnings(FEW_ROWS)
@cases(
    ("settings", "given", "n_rows", "n_folds"),
    ({}, {}, 10, 5),
    ({}, {"groups": np.repeat([0, 1, 2, 3], 3)[:9]}, 9, 2),
    ({}, {}, 3, 2),
    ({}, KEPT_OUT, 20, None),
    ({"validation": 0.25}, {}, 20, None),
    ({"validation": 3}, {}, 20, 3),
    ({"space": DenseSpace(1)}, {}, 20, None),
    *(({}, {}, n, n_folds) for n, n_folds in ((20, 4), (200, 5), (2_001, 3))),  # first numbers
)
def test_fit_validates_by_folds_in_the_tabular_space(settings, given, n_rows, n_folds, monkeypatch):
    def end(*args, folds, **options):
        raise Planned(folds)

    monkeypatch.setattr(MemberTrainer, "__init__", end)
    X, is_large = np.random.default_rng(0).normal(size=(n_rows, 2)), n_rows > 100
    model = AutoDEUQClassifier(**settings) if is_large else AutoDEUQRegressor(1, **settings)
    with pytest.raises(Planned) as planned:
        model.fit(X, X[:, 0] > 0 if is_large else X[:, 0], **given)
    (folds,) = planned.value.args
    assert (folds and len(folds)) == n_folds


def test_calibration_is_of_out_of_fold_rows(fitted, wave, monkeypatch):
    noted = Mock(wraps=fit_calibration)
    monkeypatch.setattr("skuq.fitted._searched.fit_calibration", noted)
    model = copy.copy(fitted).reselect()
    ((given, _),) = noted.call_args_list
    loc, scale, probability, weights, unseen, y, _ = given
    assert model.calibration_ == fit_calibration(*given)
    assert model.fitted_.ensemble.calibration == model.calibration_ == fitted.calibration_
    assert_array_equal(weights, fitted.selection_.weights)
    rows = np.flatnonzero(fitted.catalog_.held_out.weight)  # of the folds that are used
    assert_array_equal(y, fitted.catalog_.held_out.y[rows])
    assert unseen.all() and len(rows) == 0.4 * len(wave[0])
    # Trials differ as all of their networks do, about the mean of what single ones predict.
    trials = [fitted.catalog_.member(k) for k in fitted.selection_.indices]
    held_out = np.stack([trial.held_out[rows].astype(float) for trial in trials])
    center = np.stack([trial.center[rows] for trial in trials])
    single, std = fitted.fitted_.targets.head.moments(held_out)
    means = center + np.tensordot(weights, single - center, 1)
    assert_allclose((probability * loc).sum(axis=1), means, atol=1e-6)
    square = (probability * (scale**2 + loc**2)).sum(axis=1)
    assert_allclose(square, std**2 + means**2, atol=1e-6)
    plain = model.reselect(calibrate=False)  # Without it nothing is added to the members.
    assert_array_equal(plain.selection_.indices, fitted.selection_.indices)
    assert plain.fitted_.ensemble.far is None and plain.calibration_ == UNCALIBRATED
    assert_allclose(fitted.predict(wave[0]), plain.predict(wave[0]))
    assert plain.reselect(calibrate=True).fitted_.ensemble.far is fitted.fitted_.ensemble.far


def test_calibration_is_not_of_single_trials_or_shifted_selections(fitted, wave):
    X, y = wave
    _, alone = fitted.member_estimators()[0]
    assert alone.calibration_ == UNCALIBRATED
    other = copy.copy(fitted).reselect(selection="top", n_members=2)
    assert other.calibration_ != fitted.calibration_
    # On other rows, the same trials may be selected with another calibration.
    shifted = copy.copy(fitted).reselect(X, y + 1.0)
    for model in (fitted, other, shifted):
        assert model.at_severity(0).calibration_ == fitted.calibration_
    shifted = AutoDEUQRegressor(**FAST).fit(X, y, shift_validation=(X + 0.1, y))
    assert shifted.calibration_ == UNCALIBRATED


def test_fit_asks_an_oracle_that_waits_for_answers(wave):
    oracle = keras_tuner.oracles.GridSearchOracle(keras_tuner.Objective("score", "min"), 3)
    settings = {**FAST, "n_trials": 3, "epochs": 1, "search": oracle}
    assert len(AutoDEUQRegressor(**settings).fit(*wave).catalog_.completed) == 3


def test_fit_tells_of_one_member(tiny_space, wave):
    model = AutoDEUQRegressor(n_trials=1, epochs=1, space=tiny_space, random_state=0)
    with pytest.warns(UserWarning, match="has 1 member, .* epistemic uncertainty is 0"):
        model.fit(*wave)
    assert (model.predict_uncertainty(wave[0]).epistemic == 0).all()
    with pytest.warns(UserWarning, match="1 member, .* is that of 2 networks of one configuration"):
        model.set_params(validation=2).fit(*wave)
    assert (model.predict_uncertainty(wave[0]).epistemic > 0).all()
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.simplefilter("ignore", SmallValidationWarning)
        model.set_params(selection__min_members=1).fit(*wave)  # two networks of one trial
        model.set_params(validation="auto", n_members=1).fit(*wave)  # what the user asks for
    # The paper's rule may leave one member, too.
    with pytest.warns(UserWarning, match="1 member, as no more trials succeeded.* is 0. Give"):
        model.set_params(n_members=5).fit(*wave)


def test_copies_keep_calibration_and_members(fitted, wave):
    networks = np.array([network.weights for network in fitted.fitted_.members])
    assert len(np.unique(networks, axis=0)) == len(networks) == 4 * len(fitted.selection_)
    for copied in (copy.deepcopy(fitted), loads(dumps(fitted))):
        assert copied.calibration_ == fitted.calibration_ != UNCALIBRATED
        assert_array_equal(copied.predict(5 * wave[0], True), fitted.predict(5 * wave[0], True))
    _, one = fitted.member_estimators(every_trial=True)[0]
    assert loads(dumps(one)).leaderboard().n_weights.isna().sum() == 5  # not 0: nobody knows


def test_fit_refits_nothing_after_an_interrupted_search(tiny_space, wave):
    scores = iter([1.0])

    def interrupt(trial):
        for score in scores:
            return score
        raise KeyboardInterrupt

    settings = {"n_trials": 3, "epochs": 1, "space": tiny_space, "random_state": 0}
    settings |= {"refit": True, "selection__min_members": 1, "search__objective": interrupt}
    model = make(AutoDEUQRegressor, **settings)
    with pytest.warns(UserWarning, match="Search interrupted: continuing with 1 of 3 trials"):
        model.fit(*wave)
    assert len(model.selection_) == 1 and model.refitted_ == {}


def test_leaderboard_of_the_trials_and_has_reasons_of_failed_trials(fitted, wave, tiny_space):
    X, y = wave
    board = fitted.leaderboard()
    assert board.index.tolist() == list(range(6)) and board.score.is_monotonic_increasing
    chosen = board[board.weight > 0].set_index("trial").weight
    numbers = [fitted.catalog_[int(k)].trial_number for k in fitted.selection_.indices]
    assert_allclose(chosen[numbers], fitted.selection_.weights)
    assert (board.n_networks == 4).all() and (board.n_weights > 100).all()
    with pytest.raises(ValueError, match="Give both X and y"):
        fitted.leaderboard(None, y)
    X, y = X[:20] + 0.01, y[:20]
    board, unit = fitted.leaderboard(X, y), fitted.fitted_.targets.scaling.scale_[0]
    for name, estimator in fitted.member_estimators(every_trial=True):
        number = fitted.catalog_[int(name.removeprefix("trial"))].trial_number
        expected = -estimator.log_prob(X, y).mean() - np.log(unit)
        assert_allclose(board[board.trial == number].new_score, expected, rtol=1e-5)
    assert board.index.tolist() == list(range(6)) and "message" not in board
    assert board.new_score.is_monotonic_increasing and not board.score.is_monotonic_increasing
    numbers = iter(range(6))

    def fails(trial):
        if next(numbers) % 2:
            raise KeyError("dropout")
        return trial.score

    settings = {"epochs": 2, "space": tiny_space, "random_state": 0, "validation": 2}
    settings |= {"selection": "greedy", "search__objective": fails}
    model = make(AutoDEUQRegressor, n_trials=6, **settings)
    with pytest.warns(UserWarning, match="3 of 6 trials failed, 3 .*`objective` raised KeyError"):
        model.fit(*wave)
    board = model.leaderboard()
    assert board.columns[-1] == "message"
    assert (board.message != "").tolist() == [False] * 3 + [True] * 3
    # Trials are known by their position in the catalog, with those that failed.
    steps = {step for step, _ in model.selection_.path}
    assert set(model.selection_.indices) <= steps <= {0, 2, 4}
