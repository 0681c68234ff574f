"""AutoDEUQ with its defaults: the tabular space, folds, calibration."""

import copy
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import KFold
from small_models import make
from tiers import cases, slow_after
from training_data import MemberRepeater, MemberTrainer

from skuq import AutoDEUQClassifier, AutoDEUQRegressor
from skuq.ensembles import GreedySelection, Selection
from skuq.exceptions import SmallValidationWarning
from skuq.files import dumps, loads
from skuq.networks import DenseSpace
from skuq.predictive._calibration import UNCALIBRATED, Calibration
from skuq.search import Catalog, TrialRecord

# One small architecture, so that few programs are compiled.
ONE = {"n_layers": 1, "width": 32, "embedding": "none", "residual": False, "activation": "silu"}
SMALL = {"fixed": ONE}
FAST = {"n_trials": 2, "epochs": 3, "repeats": 0, "random_state": 0, **SMALL}


@pytest.fixture(scope="module")
def fitted(wave):
    return AutoDEUQRegressor(**{**FAST, "n_trials": 10, "epochs": 15}).fit(*wave)


@pytest.fixture(scope="module")
def repeated(wave):
    return AutoDEUQRegressor(**{**FAST, "repeats": 2}).fit(*wave)


def test_fit_begins_with_known_recipes(fitted):
    """With an architecture that is given, recipes that differ in it alone are one."""
    tried = [record.configuration for record in fitted.catalog_]
    assert {c["n_layers"] for c in tried} == {1}
    default = sum(fitted.decisions_[1:], fitted.decisions_[0]).default()
    base = {**default, **SMALL["fixed"]}
    first = [{"loss": "nll"}, {"frequency_scale": 3.0}, {"loss": "nll", "frequency_scale": 3.0}]
    assert tried[:3] == [{**base, **recipe} for recipe in first]


@pytest.mark.parametrize("strategy", slow_after(1, ["age", "init", "bo"]))
def test_fit_begins_with_the_default_of_some_decisions(wave, strategy):
    model = make(AutoDEUQRegressor, **{**FAST, "epochs": 1, "search": strategy}).fit(*wave)
    first = model.catalog_[0].configuration
    assert (first["frequency_scale"], first["loss"]) == (0.3, "crps") or strategy == "bo"


def test_fit_validates_every_row_in_one_of_eight_folds(fitted, wave):
    X, y = wave
    trial = fitted.catalog_.member(int(fitted.catalog_.completed[0]))
    assert len(trial.networks) == 8
    assert_array_equal(np.sort(fitted.catalog_.held_out.rows), np.arange(len(y)))
    assert len(fitted.fitted_.members) == 8 * len(fitted.selection_)
    # The score is the log score of the predicted mixture.
    head, raw = fitted.fitted_.targets.head, trial.held_out.astype(float)
    loc, scale, log_probability = (part[..., 0] for part in head.distribution(raw))
    densities = np.exp(log_probability) * stats.norm.pdf(fitted.catalog_.held_out.y, loc, scale)
    assert_allclose(trial.score, -np.log(densities.sum(axis=1)).mean(), rtol=1e-6)


SHORT = {"max_time": 20}


class Planned(Exception):
    """Raised with the folds of a search, before its first trial."""


@cases(
    ("settings", "given", "n_rows", "n_folds"),
    ({}, {}, 16, 8),
    ({}, {}, 10, 5),
    ({}, {"groups": np.repeat([0, 1, 2, 3], 3)[:9]}, 9, 2),
    ({}, {}, 3, 2),
    ({}, {"validation_data": (np.eye(2), np.ones(2))}, 20, None),
    ({"validation": 0.25}, {}, 20, None),
    ({"validation": 3}, {}, 20, 3),
    ({"space": DenseSpace(1)}, {}, 20, None),
    # Short searches of many rows, for classes
    (SHORT, {}, 10_100, 1),
    ({"max_time": 300}, {}, 10_100, 3),
    ({"max_time": 100, "n_jobs": 3}, {}, 10_100, 3),
    ({"max_time": 300, "n_trials": 2}, {}, 10_100, 7),
    ({"max_time": 700}, {}, 10_100, 8),
    ({**SHORT, "warm_start": True}, {}, 10_100, 8),
    ({}, {}, 10_100, 8),
)
@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_fit_validates_by_folds_in_the_tabular_space(settings, given, n_rows, n_folds, monkeypatch):
    def end(*args, folds, **options):
        raise Planned(folds)

    monkeypatch.setattr(MemberTrainer, "__init__", end)
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    with pytest.raises(Planned) as planned:
        if n_rows > 100:
            AutoDEUQClassifier(**settings).fit(X, X[:, 0] > 0)
        else:
            AutoDEUQRegressor(1, **settings).fit(X, X[:, 0], **given)
    (folds,) = planned.value.args
    assert (folds and len(folds)) == n_folds


@pytest.mark.parametrize(
    ("labels", "told"), [("a" * 20 + "b" * 19 + "c", True), ("abc" * 3, False)]
)
def test_fit_divides_rare_classes(wave, labels, told):
    X, y = wave[0][: len(labels)], np.array(list(labels))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", SmallValidationWarning)
        warnings.filterwarnings("ignore", "The model predicts")  # two epochs of 40 random labels
        model = make(AutoDEUQClassifier, **{**FAST, "n_trials": 1}, selection__min_members=1)
        model.fit(X, y)
    # A class of one row is never trained on when that row validates: only this is told.
    messages = [str(warning.message) for warning in caught]
    assert all("leaves out 1 of 40 rows" in message for message in messages)
    assert bool(messages) == told
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_initial_trials_are_tried_first(wave):
    given = [{"weight_decay": 0.01, "n_layers": 4}, {"learning_rate": 0.05}]
    model = make(AutoDEUQRegressor, **FAST, search__initial_trials=given).fit(*wave)
    tried = [record.configuration for record in model.catalog_]
    assert tried[0]["weight_decay"] == 0.01 and tried[1]["learning_rate"] == 0.05
    assert [c["n_layers"] for c in tried] == [1, 1]  # what is fixed stays so


def test_initial_trials_are_the_best_of_another_search(fitted, wave):
    ranked = sorted((r for r in fitted.catalog_ if r.completed), key=lambda record: record.score)
    expected = [record.configuration for record in ranked[:2]]
    model = make(AutoDEUQRegressor, **FAST, search__initial_trials=fitted.catalog_).fit(*wave)
    assert [record.configuration for record in model.catalog_] == expected


@cases(
    ("initial_trials", "given", "match"),
    ([{"wide": 3}], {}, r"unknown decisions \['wide'\].*give its `catalog_`"),
    ([{"width": 3}], {}, r"`initial_trials\['width'\]` must lie in"),
    ([{}, None], {}, r"`initial_trials` must be a list of configurations.* Got None in it"),
    ([{"score": 1.0}], {}, r"unknown decisions \['score'\].* give its `catalog_`"),
    (Catalog([TrialRecord(0, status="failed")]), {}, "a completed trial .*of 1 trials, 0 co"),
    (None, {"groups": np.full(120, 7.0)}, r"`groups` has one: 7.0. Give `validation_data`"),
)
def test_fit_refuses(wave, initial_trials, given, match):
    with pytest.raises(ValueError, match=match):
        make(AutoDEUQRegressor, **FAST, search__initial_trials=initial_trials).fit(*wave, **given)


def test_initial_trials_of_another_space_keep_what_this_one_decides(fitted, wave):
    X, y = wave
    classifier = make(AutoDEUQClassifier, **FAST, search__initial_trials=fitted.catalog_)
    classifier.fit(X, y > np.median(y))
    best = fitted.leaderboard().iloc[0]
    first = classifier.catalog_[0].configuration
    assert (first["width"], first["learning_rate"]) == (best.width, best.learning_rate)


@pytest.mark.parametrize(("name", "epochs"), [("benchmark", 100), ("toy", 200)])
def test_from_paper(name, epochs):
    model = AutoDEUQRegressor.from_paper(name, random_state=3)
    assert (model.n_trials, model.n_members, model.repeats) == (500, 5, 0)
    search, selection = model.search, model.selection
    assert (search.population_size, search.sample_size, search.kappa) == (100, 10, 0.001)
    assert (model.space, model.epochs, model.random_state) == (name, epochs, 3)
    assert (model.validation < 0.5, model.calibrate) == (True, False)
    assert (selection.loss, selection.min_members) == ("nll", 1)
    classifier = AutoDEUQClassifier.from_paper(name, n_trials=4)
    assert (classifier.n_trials, classifier.space) == (4, name)
    with pytest.raises(ValueError, match=r"`name` must be .* \['benchmark', 'toy'\]. Got 'uci'"):
        AutoDEUQRegressor.from_paper("uci")


def test_calibration_is_of_out_of_fold_rows(fitted, wave):
    X, _ = wave
    plain = copy.copy(fitted).reselect(calibrate=False)
    assert_array_equal(plain.selection_.indices, fitted.selection_.indices)
    factor, floor = fitted.calibration_.factor, fitted.calibration_.floor
    assert (factor, floor) != (1.0, 0.0) and plain.calibration_ == UNCALIBRATED
    # Held-out errors are more likely under the calibrated variance.
    held_out, weights = fitted.catalog_.held_out, fitted.selection_.weights
    trials = [fitted.catalog_.member(k) for k in fitted.selection_.indices]
    loc, std = fitted.fitted_.targets.head.moments(np.stack([t.held_out for t in trials]))
    center = np.stack([t.center for t in trials])
    spread = (center - np.tensordot(weights, center, 1)) ** 2
    total = np.tensordot(weights, std**2 + spread, 1)
    mean = np.tensordot(weights, loc, 1)
    before = stats.norm.logpdf(held_out.y, mean, np.sqrt(total)).mean()
    after = stats.norm.logpdf(held_out.y, mean, np.sqrt(factor**2 * total + floor**2)).mean()
    assert after > before
    assert fitted.fitted_.ensemble.calibration == fitted.calibration_  # which predictions follow
    assert_allclose(fitted.predict(X), plain.predict(X))


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
    # On the clean rows the same trials are selected with the same weights.
    clean, alone = shifted.at_severity(0).selection_, AutoDEUQRegressor(**FAST).fit(X, y).selection_
    assert_array_equal(clean.indices, alone.indices)
    assert_allclose(clean.weights, alone.weights)
    assert_allclose(clean.loss, alone.loss, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_fit_tells_of_one_member(tiny_space, wave):
    model = AutoDEUQRegressor(n_trials=1, epochs=2, space=tiny_space, random_state=0)
    with pytest.warns(UserWarning, match="has 1 member, .* epistemic uncertainty is 0"):
        model.fit(*wave)
    assert (model.predict_uncertainty(wave[0]).epistemic == 0).all()
    with pytest.warns(UserWarning, match="1 member, .* is that of 2 networks of one configuration"):
        model.set_params(validation=2).fit(*wave)
    assert (model.predict_uncertainty(wave[0]).epistemic > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", SmallValidationWarning)
        model.set_params(selection__min_members=1).fit(*wave)  # two networks of one trial
        model.set_params(validation="auto", n_members=1).fit(*wave)  # what the user asks for
    # The paper's rule may leave one member, too.
    with pytest.warns(UserWarning, match="1 member, as no more trials succeeded.* is 0. Give"):
        model.set_params(n_members=5).fit(*wave)

    def take_first(y, loc, scale, n_members, sample_weight):
        assert loc.shape == scale.shape == (2, *y.shape)
        return Selection(np.array([0]), np.ones(1))

    model.set_params(n_trials=2, selection__min_members=2).fit(*wave)
    with pytest.warns(UserWarning, match="1 member, as `selection` chose no more: .* is 0"):
        model.reselect(selection=take_first)
    assert_array_equal(model.selection_.indices, [0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.reselect(selection="top", n_members=1)


def test_short_fit_of_many_rows_compares_trials_on_some_folds(wave, monkeypatch):
    monkeypatch.setattr("skuq.estimators.tabular._recipes.LARGE_ROWS", 30)
    monkeypatch.setattr("skuq.estimators.tabular._recipes.SECONDS_OF_NETWORK", 6.0)
    X, y = wave
    settings = {**FAST, "repeats": 1, "max_time": 60}
    model = AutoDEUQClassifier(**settings).fit(X, y > np.median(y))
    held_out = model.catalog_.held_out
    tested = held_out.rows[held_out.weight > 0]
    assert len(tested) == 0.3 * len(y)
    assert len(model.repeated_) == len(model.selection_)
    for k, trial in model.repeated_.items():
        assert len(trial.networks) == 6
        # Repeats predict the same rows, so that all of them are averages of two networks.
        first, both = model.catalog_.member(k).held_out, trial.held_out
        assert (first != both)[held_out.weight > 0].any(axis=-1).all()
    assert len(model.fitted_.members) == 6 * len(model.selection_)


def test_fit_joins_repeats_of_other_folds(repeated, wave):
    X, y = wave
    assert set(repeated.repeated_) == set(repeated.selection_.indices.tolist())
    for k, trial in repeated.repeated_.items():
        first = repeated.catalog_.member(k)
        assert len(trial.networks) == 24
        for one, other in zip(trial.networks, first.networks):
            assert_array_equal(one.weights, other.weights)
        seeds = [network.seed for network in trial.networks]
        assert len(set(seeds)) == 24
        # Out of fold: averages of three networks, each of other folds.
        loc, _ = repeated.fitted_.targets.head.moments(trial.held_out.astype(float))
        alone, _ = repeated.fitted_.targets.head.moments(first.held_out.astype(float))
        assert np.mean((loc - trial.center) ** 2) < np.mean((alone - first.center) ** 2)
    weights = repeated.fitted_.weights
    assert len(repeated.fitted_.members) == len(weights) == 24 * len(repeated.selection_)
    assert_allclose(weights.sum(), 1)
    members = np.array([network.weights for network in repeated.fitted_.members])
    assert len(np.unique(members, axis=0)) == len(members)
    board = repeated.leaderboard()
    n_networks = board[board.weight > 0].n_networks
    assert (n_networks == 24).all() and n_networks.sum() == len(members)
    assert board.n_weights.notna().all()
    _, one = repeated.member_estimators(every_trial=True)[0]
    assert loads(dumps(one)).leaderboard().n_weights.isna().sum() == 1  # not 0: nobody knows


def test_fit_repeats_exactly_and_survives_copies(repeated, wave, tmp_path, monkeypatch):
    X, _ = wave
    X = np.vstack([X, 5 * X])  # also far from the rows
    expected = repeated.predict(X, return_std=True)[1]
    stored = clone(repeated).set_params(catalog_dir=tmp_path).fit(*wave)
    for copied in (stored, copy.deepcopy(repeated), copy.copy(repeated), loads(dumps(repeated))):
        assert copied.calibration_ == repeated.calibration_
        assert_array_equal(copied.predict(X, return_std=True)[1], expected)
    assert len(copy.copy(repeated).reselect().selection_) == len(repeated.selection_)
    # Stored repeats are read again, and nothing is trained.
    monkeypatch.setattr(MemberTrainer, "__call__", None)
    for again in (clone(stored).fit(*wave), AutoDEUQRegressor.from_catalog(stored.catalog_path_)):
        assert_array_equal(again.predict(X, return_std=True)[1], expected)


@pytest.mark.parametrize(
    "settings",
    [{"space": DenseSpace(1)}, {**SMALL, "validation": KFold(2)}, {**SMALL, "refit": True}],
)
def test_repeats_are_for_folds_of_the_tabular_space(wave, settings):
    model = AutoDEUQRegressor(1, n_members=1, epochs=1, random_state=0, **settings).fit(*wave)
    assert model.repeated_ == {}


def test_fit_begins_no_repeat_after_the_deadline(tiny_space, wave, monkeypatch, tmp_path):
    settings = {"n_trials": 2, "epochs": 2, "space": tiny_space, "random_state": 0}
    settings["selection"] = GreedySelection(min_members=1)
    stored = AutoDEUQRegressor(**settings, repeats=1, catalog_dir=tmp_path).fit(*wave)

    class Late(MemberRepeater):
        def __init__(self, *arguments, **settings):
            raise AssertionError("no time is left")

    monkeypatch.setattr("skuq.estimators.methods._search_run.MemberRepeater", Late)
    settings |= {"repeats": 2, "max_time": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SmallValidationWarning)
        warnings.filterwarnings("ignore", "The ensemble has 1 member")
        AutoDEUQRegressor(**settings).fit(*wave)
        again = AutoDEUQRegressor(**settings, catalog_dir=tmp_path).fit(*wave)
    assert sorted(again.repeated_) == sorted(stored.repeated_) != []  # those of the folder


def test_fit_repeats_seeds_without_folds(tiny_space, wave):
    settings = {"n_trials": 2, "epochs": 2, "space": tiny_space, "random_state": 0}
    model = AutoDEUQRegressor(**settings, repeats=2).fit(*wave)
    assert len(model.fitted_.members) == 3 * len(model.selection_)
    trial = model.repeated_[int(model.selection_.indices[0])]
    assert len({network.seed for network in trial.networks}) == 3


@pytest.mark.parametrize("retraining", [{"repeats": 2}, {"refit": True}], ids=str)
def test_fit_trains_nothing_after_an_interrupted_search(tiny_space, wave, retraining):
    calls = []

    def interrupt(trial):
        calls.append(trial)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return trial.score

    settings = {"n_trials": 3, "epochs": 2, "space": tiny_space, "random_state": 0}
    settings |= {**retraining, "selection__min_members": 1, "search__objective": interrupt}
    model = make(AutoDEUQRegressor, **settings)
    with pytest.warns(UserWarning, match="Search interrupted: continuing with 1 of 3 trials"):
        model.fit(*wave)
    assert len(model.selection_) == 1
    assert model.repeated_ == {} and model.refitted_ == {}


def test_fit_fills_a_gap_by_the_recipe_that_is_missing(wave, tmp_path):
    settings = {**FAST, "n_trials": 3, "epochs": 1, "catalog_dir": tmp_path}
    model = AutoDEUQRegressor(**settings).fit(*wave)
    expected = [record.configuration for record in model.catalog_]
    for path in model.catalog_path_.glob("trial-000001.skuq"):
        path.unlink()
    again = AutoDEUQRegressor(**settings).fit(*wave)
    assert [record.configuration for record in again.catalog_] == expected


def test_leaderboard_of_the_trials(fitted, wave):
    X, y = wave
    board = fitted.leaderboard()
    assert len(board) == len(fitted.catalog_) and "new_score" not in board
    done = board[board.status == "completed"]
    assert done.index.tolist() == list(range(len(done)))
    assert done.score.is_monotonic_increasing
    chosen = board[board.weight > 0].set_index("trial").weight
    numbers = [fitted.catalog_[int(k)].trial_number for k in fitted.selection_.indices]
    assert_allclose(chosen[numbers], fitted.selection_.weights)
    assert (done.n_networks == 8).all() and (done.n_weights > 100).all()

    for given in [(X,), (None, y), (None, None, np.ones(len(y)))]:
        with pytest.raises(ValueError, match="Give both X and y"):
            fitted.leaderboard(*given)
    X_new, y_new = X[:20] + 0.01, y[:20]
    board = fitted.leaderboard(X_new, y_new)
    for number, estimator in fitted.member_estimators(every_trial=True):
        position = int(number.removeprefix("trial"))
        row = board[board.trial == fitted.catalog_[position].trial_number]
        unit = fitted.fitted_.targets.scaling.scale_[0]
        expected = -estimator.log_prob(X_new, y_new).mean() - np.log(unit)
        assert_allclose(row.new_score, expected, rtol=1e-5)
    done = board[board.status == "completed"]
    assert done.index.tolist() == list(range(len(done))) and "message" not in board
    assert done.new_score.is_monotonic_increasing and not done.score.is_monotonic_increasing


def test_leaderboard_has_reasons_of_failed_trials(wave, tiny_space):
    numbers = iter(range(6))

    def fails(trial):
        if next(numbers) % 2:
            raise KeyError("dropout")
        return trial.score

    settings = {"epochs": 2, "space": tiny_space, "random_state": 0, "validation": 2}
    model = make(AutoDEUQRegressor, n_trials=6, **settings, search__objective=fails)
    with pytest.warns(UserWarning, match="3 of 6 trials failed, 3 .*`objective` raised KeyError"):
        model.fit(*wave)
    board = model.leaderboard()
    assert board.columns[-1] == "message"
    assert (board.message != "").tolist() == [False] * 3 + [True] * 3
    # Trials are known by their position in the catalog, with those that failed.
    steps = {step for step, _ in model.selection_.path}
    assert set(model.selection_.indices) <= steps <= {0, 2, 4}


def test_reselect_without_calibration_gives_members_alone(fitted):
    model = copy.copy(fitted)
    assert model.fitted_.ensemble.far is not None
    alone = model.reselect(calibrate=False).fitted_.ensemble
    assert alone.far is None and alone.calibration == Calibration()
    assert model.reselect().fitted_.ensemble.far is fitted.fitted_.ensemble.far


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_fit_keeps_trials_if_the_selection_fails(error, wave, tiny_space):
    def fail(*given, sample_weight):
        raise error

    settings = {"epochs": 2, "space": tiny_space, "random_state": 0, "validation": 2}
    wrong = AutoDEUQRegressor(3, **settings, selection=lambda y, loc: 0)
    with pytest.raises(TypeError, match=r"`selection` must be a function of \(y, loc, scale"):
        wrong.fit(*wave)
    assert not hasattr(wrong, "catalog_")  # before the search
    failing = AutoDEUQRegressor(3, **settings, selection=fail)
    with pytest.raises(error) as raised:
        failing.fit(*wave)
    (note,) = raised.value.__notes__
    folder, call = re.search(r"AutoDEUQRegressor.from_catalog\('(.*)', (.*)\)", note).groups()
    assert call == 'selection="top"'
    chosen = AutoDEUQRegressor.from_catalog(folder, selection="top")
    expected = AutoDEUQRegressor(3, **settings, selection="top").fit(*wave)
    assert_array_equal(chosen.predict(wave[0]), expected.predict(wave[0]))
    assert_array_equal(chosen.at_severity(0).predict(wave[0]), expected.predict(wave[0]))


@pytest.mark.parametrize(("limit", "n_jobs"), [(None, None), (None, 2), (5.0, None)])
def test_tags_are_deterministic_for_one_job_without_a_deadline(limit, n_jobs):
    tags = AutoDEUQRegressor(max_time=limit, n_jobs=n_jobs).__sklearn_tags__()
    assert tags.non_deterministic == (limit is not None or n_jobs is not None)
