"""Neural ensemble search: selection on shifted rows, severities, baselines."""

import pickle
import warnings

import numpy as np
import pytest
from heads import WidthDepthSpace, bound_tabular_space
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from slots import EnsembleEvolution
from teams import likelihood_statistics, select_by
from tiers import cases

from skuq import NESClassifier, NESRegressor
from skuq.ensembles import Selection
from skuq.exceptions import SmallValidationWarning
from skuq.networks import CellSpace, NASBench201Space, WithTraining
from skuq.predictive._calibration import UNCALIBRATED
from skuq.search import NESEvolution

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
ONE = {"n_layers": 1, "width": 32, "embedding": "none"}  # one network to compile
NEGATIVE = {"setosa": -1, "versicolor": 1, "virginica": 1}
NO_SETOSA = {**NEGATIVE, "setosa": 0}


def tiny(space, n_trials=6, n_members=3, epochs=15, **settings):
    settings = {"selection": "forward", "calibrate": False, "random_state": 0, **settings}
    model = NESClassifier(n_trials, n_members=n_members, epochs=epochs, space=space)
    return model.set_params(**settings)


def shifted(X, y, by, seed=0):
    return X + by * np.random.RandomState(seed).normal(size=X.shape), y


def select_members(log_likelihood):
    return select_by(*likelihood_statistics(log_likelihood), 3).indices


@pytest.fixture(scope="module")
def fitted(iris, tiny_space):
    severities = [shifted(*iris, by) for by in (0.5, 1.0, 2.0)]
    return tiny(tiny_space, 10).fit(*iris, shift_validation=severities)


@pytest.fixture(scope="module")
def pool(fitted):
    return [trial for _, trial in fitted.member_estimators(every_trial=True)]


@pytest.fixture(scope="module")
def judged(iris, fitted, pool):
    """Log probabilities by each trial of the clean rows, and of those of each severity."""
    clean = [part[fitted.catalog_.held_out.rows] for part in iris]
    sets = [clean, *(shifted(*iris, by) for by in (0.5, 1.0, 2.0))]
    return [np.array([one.log_prob(*part) for one in pool]) for part in sets]


def test_fit_selects_on_shifted_rows_and_weighs_sets_equally(fitted, judged, tiny_space, iris):
    for k, log_prob in enumerate(judged):
        assert_array_equal(fitted.at_severity(k).selection_.indices, select_members(log_prob))
    together = np.concatenate(judged[1:], axis=1)
    assert_array_equal(fitted.selection_.indices, select_members(together))
    assert len(fitted.selections_) == 4
    X, y = iris
    one = shifted(X, y, 1.0)
    many = [np.concatenate([part] * 5) for part in one]
    other, model = shifted(X[:60], y[:60], 3.0, seed=1), tiny(tiny_space, epochs=3)
    two = [clone(model).fit(X, y, shift_validation=[tuple(s), other]) for s in (one, many)]
    assert_array_equal(two[0].selection_.indices, two[1].selection_.indices)
    assert_allclose(two[0].selection_.loss, two[1].selection_.loss)


def test_fit_evolves_where_it_is_told(tiny_space, iris, monkeypatch):
    seen, ask = [], EnsembleEvolution.ask
    noted = lambda self, *a: seen.append(self.criteria) or ask(self, *a)  # noqa: E731
    monkeypatch.setattr(EnsembleEvolution, "ask", noted)
    X, y = iris
    severities = [shifted(X[:n], y[:n], by) for n, by in ((30, 0.5), (60, 2.0))]
    for evolve_on, sizes in (("clean", [37]), ("shift", [60]), ("both", [37, 60])):
        seen.clear()
        model = tiny(tiny_space, 5, epochs=2, search="re", search__evolve_on=evolve_on)
        model.fit(X, y, shift_validation=severities)
        assert [len(criterion(list(model.catalog_))[2]) for criterion in seen[0]] == sizes


def test_reselect_trains_nothing(iris, fitted, pool):
    X_s, y_s = shifted(*iris, 4.0, seed=3)
    model = fitted.at_severity(0)
    assert model.reselect(X_s, y_s) is model and model.catalog_ is model.catalog_
    expected = select_members([one.log_prob(X_s, y_s) for one in pool])
    assert_array_equal(model.selection_.indices, expected)
    assert len(model.reselect(n_members=5).selection_) == 5
    weight = np.zeros(150)
    weight[:50] = 1
    by_weight = model.reselect(X_s, y_s, weight).selection_.indices
    assert_array_equal(by_weight, model.reselect(X_s[:50], y_s[:50]).selection_.indices)
    with pytest.raises(ValueError, match="'n_members' parameter"):
        model.reselect(n_members=0)
    for half in ({"X": X_s}, {"sample_weight": weight}):
        with pytest.raises(ValueError, match="Give both X and y, or neither"):
            model.reselect(**half)
    assert_array_equal(model.selection_.indices, by_weight)  # as it was before
    loaded = pickle.loads(pickle.dumps(fitted))
    for k in range(4):
        expected = fitted.at_severity(k).predict_proba(X_s)
        assert_array_equal(loaded.at_severity(k).predict_proba(X_s), expected)
    with pytest.raises(ValueError, match="keeps the members only"):
        loaded.reselect(X_s, y_s)


def test_best_configuration_is_of_a_severity(fitted, judged):
    losses = np.array([-log_prob.mean(axis=1) for log_prob in judged])
    together = fitted.catalog_[int(losses[1:].mean(axis=0).argmin())].configuration
    assert fitted.best_configuration() == together
    chosen = [fitted.catalog_[int(trial)].configuration for trial in losses.argmin(axis=1)]
    assert len({configuration["units"] for configuration in chosen}) > 1  # else any set would do
    for severity, expected in enumerate(chosen):
        assert fitted.best_configuration(severity) == expected
        fixed = fitted.baseline("hyper-ensemble", severity).fixed
        assert all(fixed[n] == expected[n] for n in fitted.decisions_.architecture.names)
    for severity in (-1, 4, 1.5, "clean"):
        for method in (fitted.at_severity, fitted.best_configuration):
            with pytest.raises(ValueError, match=r"`severity` must be an integer in 0..3. Got"):
                method(severity)


def test_baseline_takes_an_architecture(iris, fitted):
    best = fitted.best_configuration()
    other = {8: 10, 10: 8}[best["units"]]
    given = fitted.baseline("deep-ensemble", architecture={"units": other})
    assert given.fixed["learning_rate"] == best["learning_rate"]
    trials = given.set_params(epochs=1).fit(*iris).catalog_
    assert [record.configuration["units"] for record in trials] == [other] * 3
    assert not {record.seed for record in trials} & {record.seed for record in fitted.catalog_}
    assert_array_equal(trials.held_out.rows, fitted.catalog_.held_out.rows)
    assert fitted.baseline("deep-ensemble-es").n_trials == fitted.n_trials
    # Decisions that are not named have the space's defaults, not the best trial's values.
    default = fitted.decisions_.architecture.default()
    assert fitted.baseline("hyper-ensemble", architecture={}).fixed == default
    for kind, architecture, message in (
        ("bagging", None, "`kind` must be one of"),
        ("deep-ensemble", {"depth": 3}, r"`architecture` has unknown decisions \['depth'\]"),
        ("deep-ensemble", {"units": -1}, r"`architecture\['units'\]` must lie in"),
        ("deep-ensemble", "|none~0|", "`architecture` must be a dict"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.baseline(kind, architecture=architecture)


@cases("selection", "forward", "replacement", "quick", "top", "hq")
def test_reselect_by_every_selection(iris, fitted, selection):
    X, y = (part[fitted.catalog_.held_out.rows] for part in iris)
    model = fitted.at_severity(0).reselect(X, y, selection=selection)
    assert 1 <= len(model.selection_) <= 3
    loss = log_loss(y, model.predict_proba(X), labels=model.classes_)
    assert_allclose(model.selection_.loss, loss, rtol=1e-4)


def test_reselect_takes_use_best_and_a_function(iris, fitted):
    model = fitted.at_severity(0)
    best = model.reselect(*iris, selection="forward", selection__use_best=True, n_members=6)
    assert 2 <= len(best.selection_) <= 6

    def last(log_likelihood, n_members, sample_weight=None):
        assert (log_likelihood.shape, n_members, sample_weight.shape) == ((10, 150), 3, (150,))
        return Selection(np.array([5]), np.ones(1))

    assert model.reselect(*iris, selection=last, n_members=3).selection_.indices.tolist() == [5]


def test_fit_selects_regressors_by_their_mixture(tiny_space, wave):
    X, y = wave
    model = NESRegressor(6, n_members=3, epochs=60, space=tiny_space, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    valid, unit = model.catalog_.held_out.rows, model.fitted_.targets.scaling.scale_[0]
    expected = -model.log_prob(X[valid], y[valid]).mean() - np.log(unit)
    assert_allclose(model.selection_.loss, expected, rtol=1e-4, atol=1e-5)


def test_fit_gives_small_tables_small_batches_and_enough_epochs(iris):
    X, y = iris
    model = NESClassifier(1, space="width-depth", random_state=0)
    model.fit(X[:120], y[:120], validation_data=(X[120:], y[120:]))
    space, configuration = WithTraining(WidthDepthSpace()), model.catalog_[0].configuration
    sizes = [space.bind(n).recipe(configuration)["batch_size"] for n in (120, 6000)]
    assert sizes == [16, 128] and set(configuration) >= {"learning_rate", "l2"}
    assert len(model.catalog_[0].result.history["loss"]) == 63  # 8 steps an epoch: 500 in total


@pytest.mark.slow
@cases(("space", "vary"), (CellSpace(2, 2), "both"), (NASBench201Space(2, 1), "architecture"))
def test_fit_evolves_cells_and_keeps_fixed_hyperparameters(space, vary):
    digits = load_digits()
    images, y = digits.images[:160, ..., None] / 16, digits.target[:160]
    evolution = NESEvolution(vary=vary, population_size=3, n_parents=2)
    model = NESClassifier(6, n_members=2, epochs=1, space=space, search=evolution)
    model.set_params(fixed={"learning_rate": 0.1}, random_state=0).fit(images, y)
    assert model.catalog_.to_frame().status.eq("completed").all()
    assert {r.configuration["learning_rate"] for r in model.catalog_} == {0.1}
    assert (len({r.configuration["l2"] for r in model.catalog_}) > 1) == (vary == "both")
    assert_allclose(model.predict_proba(images).sum(axis=1), 1)
    assert len(model.baseline("deep-ensemble").fit(images, y).catalog_) == 2


@pytest.mark.filterwarnings("always::skuq.exceptions.SmallValidationWarning")
def test_fit_tells_of_few_rows_to_choose_on(tiny_space, iris):
    X, y = np.tile(iris[0], (4, 1)), np.tile(iris[1], 4)
    model = tiny(tiny_space, 2, epochs=1)
    with pytest.warns(SmallValidationWarning, match="on 3 validation rows.*shift_validation"):
        model.fit(X, y, shift_validation=(X[::200], y[::200]))
    with pytest.warns(SmallValidationWarning, match="on 6 validation rows.*More rows may help"):
        model.reselect(X[::100], y[::100])
    with warnings.catch_warnings(action="error", category=SmallValidationWarning):
        model.fit(X, y, shift_validation=(X, y)).reselect(X, y)


def setosas(X, y):
    return X[y == "setosa"], y[y == "setosa"]


@cases(
    ("settings", "shift", "message"),
    ({}, lambda X, y: (X,), r"`shift_validation` must be a tuple \(X, y\)"),
    ({}, lambda X, y: [(X, y), X], r"`shift_validation\[1\]` must be a tuple"),
    ({}, lambda X, y: (X[:, :2], y), "expecting 4 features"),
    ({}, lambda X, y: (X, np.where(y == "setosa", "rosa", y)), "unknown classes: .*rosa"),
    ({"search": NESEvolution(evolve_on="shift")}, None, r'`evolve_on="shift"` of `search` needs'),
    ({"selection": "hq", "n_members": 1}, None, "`n_members` must be at least 2"),
    ({"selection": lambda y, proba, n: 0}, None, r"a function of \(log_likelihood, n_members, s"),
    ({"class_weight": NEGATIVE}, None, "`class_weight` must have finite numbers >= 0"),
    ({"class_weight": NO_SETOSA}, setosas, "`shift_validation` must have a row of positive w"),
    ({"space": "darts"}, None, "space='darts'.* needs images"),
    *(({"image_shape": s}, None, "`image_shape` must be") for s in ((4, 4), (4, -1), (2.0, 2))),
)
def test_fit_refuses(tiny_space, iris, settings, shift, message):
    model = tiny(**{"space": tiny_space, **settings})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*iris, shift_validation=shift and shift(*iris))


def test_fit_of_a_table_has_recipes_and_calibrates_in_folds(iris, tmp_path, monkeypatch):
    X, y = iris
    model = NESClassifier(2, fixed=ONE, epochs=2, random_state=0, catalog_dir=tmp_path)
    model.fit(X, y)
    recipes = bound_tabular_space(X, classes=True).known_recipes()
    for record, recipe in zip(model.catalog_, (recipes[0], recipes[2])):
        assert {**recipe, **ONE}.items() <= record.configuration.items()
    assert all(len(record.result.networks) == 5 for record in model.catalog_)  # folds
    assert len(model.fitted_.members) == 5 * len(model.selection_)
    added, proba = np.array(model.calibration_.constant), model.predict_proba(X)
    assert model.fitted_.ensemble.calibration == model.calibration_
    assert (proba > added).all() and len(added) == 3
    for copied in (pickle.loads(pickle.dumps(model)), NESClassifier.from_catalog(tmp_path)):
        assert_allclose(copied.predict_proba(X), proba)
    plain = model.reselect(calibrate=False)
    assert plain.calibration_ == plain.fitted_.ensemble.calibration == UNCALIBRATED
    alone = [one.predict_proba(X) for _, one in plain.member_estimators()]
    mixed = np.tensordot(plain.selection_.weights, alone, 1)
    assert_allclose(plain.predict_proba(X), mixed, atol=1e-9)
    # All networks of a trial predict new rows, and one predicts each row held out.
    rows = (), (X[::2], y[::2])
    temperatures = [model.reselect(*some).calibration_.temperature for some in rows]
    monkeypatch.setattr("skuq.fitted._searched.AVERAGING_FACTOR", 1.0)
    alone = [model.reselect(*some).calibration_.temperature for some in rows]
    assert_allclose(temperatures, np.multiply([0.9, 1], alone))


def test_from_catalog_plans_for_images(tmp_path, monkeypatch):
    images, y = load_digits().images[:60, ..., None], load_digits().target[:60] > 4
    given = {"space": "dense", "catalog_dir": tmp_path}
    NESClassifier(3, n_members=1, epochs=1, **given).fit(images, y)
    count = lambda _, plan: 1 + hasattr(plan.inputs, "flat")  # noqa: E731
    monkeypatch.setattr("skuq.estimators.methods._search_base.count_trials", count)
    assert len(NESClassifier.from_catalog(tmp_path).catalog_) == 2
