"""Calibration of any estimator, and teams of classifiers that are chosen by their diversity."""

import warnings
from dataclasses import replace
from typing import ClassVar

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special
from scipy.sparse import csr_array
from sklearn import config_context, model_selection
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Perceptron
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from small_models import TooSure
from tiers import cases

import skuq
from skuq import CalibratedUncertaintyClassifier, CalibratedUncertaintyRegressor, HQEnsembleSelector
from skuq.backend import keras
from skuq.ensembles import select_teams
from skuq.exceptions import CalibrationWarning
from skuq.files import dumps, loads
from skuq.fitted._fitted_calibrated import inputs_of_errors
from skuq.metrics import get_scorer
from skuq.networks import MLP
from skuq.predictive import GaussianMixture
from skuq.predictive._calibration import fit_scales, fit_temperature

METHODS = ["scale", "conformal"]


def calibrated(estimator=None, method="scale", **settings):
    estimator = TooSure() if estimator is None else estimator
    return CalibratedUncertaintyRegressor(estimator, method, **settings)


def classifier(estimator=None, **settings):
    estimator = GaussianNB() if estimator is None else estimator
    return CalibratedUncertaintyClassifier(estimator, **settings)


def line(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X @ [1.0, 2.0] + 3 + rng.normal(size=n)


@pytest.mark.parametrize("kind", [TooSure, LinearRegression])  # a wrong std, and none
@pytest.mark.parametrize("method", METHODS)
def test_calibrated_intervals_hold_their_share_of_new_rows(method, kind):
    model = calibrated(kind(), method).fit(*line(1000))
    X, y = line(20_000, seed=1)
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(X, coverage)
        # three standard errors of 1 000 calibration rows
        assert abs(((low <= y) & (y <= high)).mean() - coverage) < 3 * np.sqrt(0.25 / 1000)
    assert_allclose(model.scale_, 5 if kind is TooSure else 1, rtol=0.1)
    assert_allclose(model.predict(X, return_std=True)[1], 1, rtol=0.15)
    parts = model.predict_uncertainty(X[:5])
    assert (parts.epistemic == 0).all() and (parts.aleatoric > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_calibrated_as_if_alone_and_the_point_prediction_stays(method):
    X, y = load_diabetes(return_X_y=True)
    Y = np.stack([y, -y], axis=1)
    model = calibrated(TooSure(), method, cv=3).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert_array_equal(mean, TooSure().fit(X, Y).predict(X))
    assert_array_equal(model.predict(X), mean)
    assert_allclose(model.predict_uncertainty(X).mean, mean, rtol=1e-12)
    assert std.shape == Y.shape and model.log_prob(X, Y).shape == (len(X),)
    assert model.predict_quantiles(X, [0.2, 0.5, 0.6]).shape == (len(X), 3, 2)
    one = calibrated(TooSure(), method, cv=3).fit(X, -y)
    assert_allclose(model.scale_[1], one.scale_)
    found = [end[:, 1] for end in model.predict_interval(X)]
    assert_allclose(found, one.predict_interval(X), rtol=1e-6, atol=1e-6)


def scale_of(mean, std, y):
    return fit_scales([GaussianMixture(mean[None], std[None])], y, np.ones(len(y)))[0]


@pytest.mark.parametrize("form", [KFold, list, lambda rows: np.isin(np.arange(60), rows)])
def test_calibrated_learns_from_held_out_rows(form):
    X, y = line(60)
    cv = KFold(4, shuffle=True, random_state=0)
    splits = list(cv.split(X))
    mean, std = np.empty((2, 60))
    for train, test in splits:
        fitted = TooSure().fit(X[train], y[train])
        mean[test], std[test] = fitted.predict(X[test], return_std=True)
    given = cv if form is KFold else [tuple(map(form, split)) for split in splits]
    model = calibrated(cv=given).fit(X, y)
    assert_allclose(model.scale_, scale_of(mean, std, y))
    with joblib.parallel_config("threading"):
        two = clone(model).set_params(n_jobs=2).fit(X, y)
    assert two.scale_ == model.scale_
    prefit = calibrated(fitted, cv="prefit").fit(X[test], y[test])
    assert prefit.estimator_ is fitted
    assert_allclose(prefit.scale_, scale_of(mean[test], std[test], y[test]))


def test_conditional_learns_the_distribution_of_errors(monkeypatch):
    small = {"n_members": 2, "loss": "crps", "epochs": 60, "random_state": 0}
    monkeypatch.setattr("skuq.estimators.methods._calibrated._NETWORKS_OF_ERRORS", small)
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-1, 1, 300), "group": rng.choice(["quiet", "loud"], 300)})
    loud = (X["group"] == "loud").to_numpy()
    y = 3 * X["a"].to_numpy() + np.where(loud, 2.0, 0.1) * rng.normal(size=300)
    regressor = make_pipeline(make_column_transformer(("passthrough", ["a"])), LinearRegression())
    model = calibrated(regressor, "conditional", cv=3).fit(X, y)
    parts, mean = model.predict_uncertainty(X), model.estimator_.predict(X)
    assert_array_equal(model.predict(X), mean)
    assert_allclose(parts.mean, mean, rtol=1e-9, atol=1e-12)
    assert 1.5 < np.median(parts.total[loud]) < 2.5 and np.median(parts.total[~loud]) < 0.4
    one = calibrated(regressor, cv=3).fit(X, y)  # All rows have one width without it.
    assert model.scale_ == one.scale_
    assert model.log_prob(X, y).mean() > one.log_prob(X, y).mean() + 0.5
    # An exact model's errors are below what floats can hold.
    calibration = model.fitted_.calibration
    assert calibration.smallest_std == np.spacing(abs(y).max())
    wide = replace(calibration, smallest_std=1.0).distribution(model.estimator_, X)
    assert_allclose(wide.std, np.maximum(parts.total, 1.0))
    assert_array_equal(loads(dumps(model)).predict_interval(X), model.predict_interval(X))


def test_conditional_adds_columns_to_texts():
    found = inputs_of_errors(np.array([["a"], ["bc"]]), np.array([1.5, 2]), np.array([3, 4.0]))
    assert found.tolist() == [["a", 1.5, 3.0], ["bc", 2.0, 4.0]]


def test_conditional_keeps_groups_together(monkeypatch):
    """Also with metadata routing, which the user cannot request for the networks."""

    def fit(self, X, y, sample_weight=None, groups=None):
        raise KeyError(len(set(groups)))

    monkeypatch.setattr("skuq.DeepEnsembleRegressor.fit", fit)
    model, groups = calibrated(LinearRegression(), "conditional", cv=3), np.arange(60) // 5
    with config_context(enable_metadata_routing=True), pytest.raises(KeyError, match="8"):
        model.fit(*line(60), groups=groups)


class Pair(TooSure):
    """Least squares of two members, one above and one below the line."""

    def predict_distribution(self, X):
        mean, std = self.predict(X, return_std=True)
        return GaussianMixture(np.stack([mean - std, mean + 2 * std]), np.stack([std, 3 * std]))


def test_calibrated_reaches_ends_of_pipelines_and_searches():
    X, y = line(60)
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = calibrated(make_pipeline(StandardScaler(), Pair()), cv=2).fit(frame, y)
    parts, scaled = model.predict_uncertainty(frame), model.estimator_[0].transform(frame)
    base = model.estimator_[-1].predict_distribution(scaled).uncertainty()
    assert_allclose(parts.epistemic, model.scale_ * base.epistemic)
    assert_allclose(parts.aleatoric, model.scale_ * base.aleatoric)
    search = GridSearchCV(TooSure(), {"share": [0.1, 0.3]}, cv=2)
    assert_allclose(calibrated(search, cv=2).fit(X, y).scale_, 10, rtol=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_survives_certain_models_and_perfect_predictions(method):
    X = np.arange(20.0)[:, None]
    for y in (2 * X[:, 0], X[:, 0] ** 2, np.ones(20)):
        model = calibrated(TooSure(0.0), method, cv=2).fit(X, y)
        assert np.isfinite(model.predict_interval(X, 0.8)).all()
        assert (model.predict(X, return_std=True)[1] > 0).all()
    model = calibrated(DummyRegressor(), method, cv=2).fit(X, np.full(20, 7.0))
    std = model.predict(X, return_std=True)[1]
    assert (std > 0).all() and (std < 1e-100).all()
    assert_allclose(model.predict_interval(X, 0.8), 7)


@pytest.mark.filterwarnings("error")
def test_calibrated_hands_on_x_as_it_is():
    X, y = line(60)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(site=["north", "south", "west"] * 20)
    encode = make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough")
    words = [f"{'much' if value else 'no'} rain {k}" for k, value in enumerate(y > 3)]
    dense = FunctionTransformer(lambda X: X.toarray())
    of_words = [CountVectorizer(), dense], words
    for steps, rows in (([encode], frame), of_words, ([dense], csr_array(X))):
        model = calibrated(make_pipeline(*steps, BayesianRidge()), cv=2).fit(rows, y)
        assert model.predict(rows, return_std=True)[1].shape == (60,)
        labels = classifier(make_pipeline(*steps, LogisticRegression()), cv=2).fit(rows, y > 3)
        assert labels.predict(rows, return_std=True)[1].shape == (60,)
    kernel = calibrated(KernelRidge(kernel="precomputed"), cv=2)  # cut on both sides
    scores = model_selection.cross_val_score(kernel, rbf_kernel(X), y, cv=2, error_score="raise")
    assert scores.shape == (2,)


def test_calibrated_opens_frozen_estimators():
    X, y = line(100)
    fitted, rows = make_pipeline(StandardScaler(), TooSure()).fit(X, y), line(80, seed=1)
    frozen = calibrated(FrozenEstimator(fitted), cv=4).fit(*rows, np.ones(80))
    for weight in (None, 1.0):
        assert_allclose(frozen.scale_, calibrated(fitted, cv="prefit").fit(*rows, weight).scale_)
    known = LogisticRegression().fit(X, np.arange(100) % 3)
    model = classifier(FrozenEstimator(known)).fit(X[::3], np.zeros(34, int))
    assert_array_equal(model.classes_, [0, 1, 2])
    assert_array_equal(model.predict(X), known.predict(X))


def sigmoid(X):
    return special.expit(X[:, :1])


def softmax(X):
    return special.softmax(np.column_stack([X, X.sum(axis=1)]), axis=1)


def test_calibrated_takes_fitted_models_that_are_no_estimators(capfd):
    X, y = line(60)
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for estimator, expected in ((net, net(X).numpy()[:, 0]), (lambda X: X[:, :1], X[:, 0])):
        model = calibrated(estimator, cv="prefit").fit(X, y)
        assert_allclose(model.predict(X), expected, rtol=1e-6)
        assert_allclose(model.scale_, np.sqrt(np.mean((y - expected) ** 2)), rtol=1e-6)
        assert np.isfinite(get_scorer("neg_crps")(model, X, y))
    assert capfd.readouterr().out == ""  # no bar
    for estimator, labels, classes in (
        (sigmoid, y > 3, [False, True]),
        (lambda X: sigmoid(X)[:, 0], np.where(y > 3, "b", "a"), ["a", "b"]),
        (softmax, 1 * (y > 3), [0, 1, 2]),
        (softmax, np.where(y > 3, 5, np.where(y > 2, 3, 1)), [1, 3, 5]),
    ):
        model = classifier(estimator, cv="prefit").fit(X, labels)
        assert model.classes_.tolist() == classes
        proba = np.asarray(estimator(X)).reshape(60, -1)
        proba = np.hstack([1 - proba, proba]) if proba.shape[1] == 1 else proba
        assert_array_equal(model.predict(X), model.classes_[proba.argmax(axis=1)])
        logits = np.log(proba) / model.temperature_
        assert_allclose(model.predict_proba(X)[:, 0], special.softmax(logits, axis=1)[:, 0])


def test_calibrated_weighs_rows_and_the_last_step_of_pipelines():
    X, y = line(50)
    model = calibrated(TooSure().fit(X, y), cv="prefit")
    with pytest.warns(CalibrationWarning, match="50 rows sum to 1, and count as that many"):
        model.fit(X, y, np.full(50, 1 / 50))
    with warnings.catch_warnings(action="error"):
        model.fit(X, y, np.r_[np.zeros(45), np.ones(5)])
    X, y = line(60)
    y[:30] *= 10
    weight = np.where(np.arange(60) < 30, 0.01, 2.0)
    expected = calibrated(BayesianRidge(), cv=3).fit(X, y, weight)
    pipeline = make_pipeline(FunctionTransformer(), BayesianRidge())
    outer = make_pipeline("passthrough", pipeline), GridSearchCV(pipeline, {}, cv=2)
    for estimator, name in zip(outer, ("pipeline__bayesianridge", "bayesianridge")):
        model = calibrated(estimator, cv=3).fit(X, y, **{f"{name}__sample_weight": weight})
        assert_allclose(model.scale_, expected.scale_)
        assert_allclose(model.predict(X), expected.predict(X))
    with config_context(enable_metadata_routing=True):  # threads have it too
        base = make_pipeline(BayesianRidge().set_fit_request(sample_weight=True))
        with joblib.parallel_config(backend="threading", n_jobs=2):
            assert_allclose(calibrated(base, cv=3).fit(X, y, weight).scale_, expected.scale_)


class ColumnOf(TooSure):
    """Regressor that predicts a column, as wrappers of other libraries do."""

    def __init__(self, what="both", share=0.2):
        super().__init__(share)
        self.what = what

    def predict(self, X, return_std=False):
        mean, std = super().predict(X, return_std=True)
        mean = mean if self.what == "std" else mean[:, None]
        return (mean, std[:, None]) if return_std else mean


ROWS, VALUES = line(30)
LINE, FITTED = LinearRegression(), TooSure().fit(ROWS, VALUES)
LABELS, SEVEN = np.repeat([0, 1, 2], 10), GridSearchCV(BayesianRidge(), {}, cv=7)
NEAR = GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [2]}, cv=2)
PIPELINE = make_pipeline(StandardScaler(), BayesianRidge())
IN_UNITS = TransformedTargetRegressor(BayesianRidge(), transformer=StandardScaler())
EVERY = np.arange(30)
TWICE = {"sample_weight": EVERY, "bayesianridge__sample_weight": EVERY}


def refused(model, message, error=ValueError, **given):
    given = {"X": ROWS, "y": LABELS if hasattr(model, "predict_proba") else VALUES, **given}
    return pytest.param(model, given, error, message)


@cases(
    ("model", "given", "error", "message"),
    refused(calibrated(GaussianNB()), "`estimator` must be a regressor"),
    refused(calibrated(LINE, "conditional"), "needs a table .*csr_array", X=csr_array(ROWS)),
    refused(calibrated(NEAR), "fitted with `sample_weight`", TypeError, sample_weight=EVERY),
    refused(calibrated(PIPELINE), "are the same: give one", TypeError, **TWICE),
    refused(calibrated(FITTED, cv="prefit"), "Got n_samples=1", sample_weight=EVERY == 3),
    refused(calibrated(TooSure(np.nan)), "finite numbers"),
    refused(calibrated(ColumnOf("std")), r"of one shape. .* gave \(6,\) and \(6, 1\)"),
    refused(calibrated(cv=model_selection.PredefinedSplit(0 * EVERY - 1)), "`cv` has no folds"),
    refused(calibrated(cv=[(EVERY, EVERY[:5])]), "`cv` must give .* 5 are in both"),
    refused(calibrated(SEVEN, cv=5), "that trains on 6 of 30 rows f", sample_weight=EVERY < 8),
    refused(calibrated(sigmoid), "cv='prefit'.*DeepEnsembleRegressor", TypeError),
    refused(classifier(sigmoid), "cv='prefit'.*DeepEnsembleClassifier", TypeError),
    refused(classifier(sigmoid, cv="prefit"), r"2 classes, and y has the labels \[0, 1, 2\]"),
    refused(classifier(lambda X: 1 * (X[:, 0] > 0), cv="prefit"), "predict pro", TypeError),
    refused(classifier(cv=KFold(3)), r"too few rows to test .* classes \[0, 1, 2\]"),
    refused(classifier(), r"too few rows to test .* classes \[0\]", y=1 * (EVERY > 0)),
    refused(calibrated(lambda X: [0.0, 1.0], cv="prefit"), r"each of 30 rows. .* \(2,\)"),
    refused(calibrated(lambda X: X, cv="prefit"), r"shape \(\) of y's. .* gave \(2,\)"),
    refused(calibrated(FITTED, cv="prefit"), r"no \['groups'\]", TypeError, groups=LABELS),
    refused(calibrated(), r"`groups` must have shape \(30,\)", groups=LABELS[:-1]),
    refused(calibrated(IN_UNITS), "not in units of y", TypeError),
    refused(classifier(cv="prefit"), "must be fitted.*FrozenEstimator", NotFittedError),
)
def test_calibrated_refuses(model, given, error, message):
    with pytest.raises(error, match=message):
        model.fit(**given)


class Recorder(TooSure):
    given: ClassVar[list] = []

    def fit(self, X, y, sample_weight=None, groups=None, validation_data=None):
        super().fit(X, y, sample_weight)
        self.given.append((len(X), groups, validation_data))
        return self


@pytest.mark.parametrize("routing", [False, True])
def test_calibrated_passes_groups_and_validation_data_on(routing):
    X, y = line(60)
    groups, recorder = np.repeat(np.arange(12), 5), Recorder()
    Recorder.given.clear()
    with config_context(enable_metadata_routing=routing):
        if routing:
            recorder.set_fit_request(groups=True, validation_data=True, sample_weight=True)
        model = calibrated(recorder, cv=model_selection.GroupKFold(3))
        asked = model.get_metadata_routing().consumes("fit", ["groups", "validation_data"])
        assert asked == ({"groups", "validation_data"} if routing else {"groups"})
        # Rows to validate on are passed on whole, even if they are as many as those of X.
        model.fit(X, y, np.ones(60), groups=groups, validation_data=(X, y))
    n_rows, own_groups, validation = zip(*Recorder.given)
    assert n_rows == (40, 40, 40, 60) and {len(X_val) for X_val, _ in validation} == {60}
    assert [len(set(some)) for some in own_groups] == [8, 8, 8, 12]


class GroupedBayes(GaussianNB):
    given: ClassVar[list] = []

    def fit(self, X, y, sample_weight=None, groups=None):
        self.given.append((len(X), len(groups), len(set(groups))))
        return super().fit(X, y, sample_weight)


def test_groups_reach_models_and_are_kept_together():
    X, y = line(60)
    groups = np.repeat(np.arange(12), 5).tolist()
    pool = [("grouped", GroupedBayes()), ("line", LogisticRegression())]
    GroupedBayes.given.clear()
    skuq.HQEnsembleSelector(pool, cv=3).fit(X, y > 3, groups=groups)
    assert GroupedBayes.given == [(40, 40, 8)] * 3 + [(60, 60, 12)]
    folds = np.array([*model_selection.KFold(2, shuffle=True, random_state=0).split(X)])
    others = skuq.HQEnsembleSelector([*pool[1:], ("bayes", GaussianNB())], cv=folds)
    assert others.fit(X, y > 3).score(X, y > 3) > 0.8
    by_group = model_selection.GroupKFold(2)
    search = model_selection.GridSearchCV(LinearRegression(), {"positive": [False]}, cv=by_group)
    inside = calibrated(search, cv=3).fit(X, y, groups=groups)
    assert inside.scale_ == calibrated(LinearRegression(), cv=3).fit(X, y, groups=groups).scale_
    labels, groups = y > 3, np.array(groups)
    model = calibrated().fit(X, y, groups=groups)
    for some, n_folds in (groups, 5), (groups // 4, 3):  # no more folds than groups
        by_hand = calibrated(cv=list(model_selection.GroupKFold(n_folds).split(X, y, some)))
        assert calibrated().fit(X, y, groups=some).scale_ == by_hand.fit(X, y).scale_
    with config_context(enable_metadata_routing=True):
        assert calibrated().fit(X, y, groups=groups).scale_ == model.scale_
    folds = list(model_selection.StratifiedGroupKFold(5).split(X, labels, groups))
    classes = classifier().fit(X, labels, groups=groups)
    assert classes.temperature_ == classifier(cv=folds).fit(X, labels).temperature_
    # A group may have no name.
    named = np.array([*map(str, range(9)), "9a", "9b", np.nan], dtype=object)[groups]
    assert clone(model).fit(X, y, groups=named).scale_ == model.scale_
    assert clone(classes).fit(X, labels, groups=named).temperature_ == classes.temperature_


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimator", [BayesianRidge(), LinearRegression()], ids=str)
def test_calibrated_predicts_in_the_shape_of_y(method, estimator):
    X, y = line(60)
    model = calibrated(estimator, method, cv=3)
    flat, column = clone(model).fit(X, y), clone(model).fit(X, y[:, None])
    for predict in ("predict", "predict_interval", "predict_uncertainty"):
        one, other = (np.asarray(getattr(m, predict)(X)) for m in (flat, column))
        assert other.size == one.size and other.ndim == one.ndim + 1
        assert_allclose(np.squeeze(other), one, rtol=1e-9)
    assert_allclose(column.log_prob(X, y[:, None]), flat.log_prob(X, y), rtol=1e-9)
    # A regressor that is fitted already decides; some predict columns.
    found, expected = (calibrated(e, method, cv=3).fit(X, y) for e in (ColumnOf(), TooSure()))
    assert_array_equal(found.predict(X, True), expected.predict(X, True))
    prefit = clone(model).set_params(estimator=clone(estimator).fit(X, y), cv="prefit")
    assert prefit.fit(X, y[:, None]).predict_interval(X).lower.shape == (60, 1)


def test_classifier_has_its_temperature_and_keeps_labels_entropies_and_classes():
    X, y = load_breast_cancer(return_X_y=True)
    cv = model_selection.StratifiedKFold(3)
    model = classifier(GaussianNB(), cv=cv).fit(X, y)
    proba = cross_val_predict(GaussianNB(), X, y, cv=cv, method="predict_proba")
    assert model.temperature_ > 2  # naive Bayes is famous for it
    assert_allclose(model.temperature_, fit_temperature(proba, y, np.ones(len(y))))
    X, y = load_iris(return_X_y=True)
    y = np.array(["a", "b", "c"])[y]
    team = HQEnsembleSelector([("a", GaussianNB()), ("b", KNeighborsClassifier())], filters=())
    model, alone = classifier(team, cv=3).fit(X, y), clone(team).fit(X, y)
    assert_array_equal(model.predict(X), alone.predict(X))
    assert model.predict_uncertainty(X).epistemic.max() > 0
    logits = np.log(np.maximum(alone.predict_proba(X), 2**-52)) / model.temperature_
    assert_allclose(model.predict_proba(X), special.softmax(logits, axis=1), atol=1e-9)
    X, y = load_breast_cancer(return_X_y=True)
    eager = model_selection.FixedThresholdClassifier(GaussianNB(), threshold=0.9999)
    model = classifier(eager, cv=3).fit(X, y)
    labels, std = model.predict(X, return_std=True)
    assert_array_equal(labels, clone(eager).fit(X, y).predict(X))
    assert (labels != model.classes_[model.predict_proba(X).argmax(axis=1)]).any()
    assert std.shape == labels.shape


@pytest.mark.filterwarnings("ignore:The least populated class", "ignore:Number of classes")
def test_classifier_leaves_out_classes_that_a_fold_has_not_seen():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:300], np.r_[2, y[1:300]]
    base = make_pipeline(StandardScaler(), LogisticRegression())
    with pytest.warns(CalibrationWarning, match=r"leaves out 1 of 300 rows: 1 of 5 .* \[2\]"):
        model = classifier(base).fit(X, y)
    proba = cross_val_predict(base, X, y, method="predict_proba")[1:, :2]
    proba /= proba.sum(axis=1, keepdims=True)
    assert_allclose(model.temperature_, fit_temperature(proba, y[1:], np.ones(299)), rtol=1e-5)


def test_classifier_folds_of_few_rows_and_of_models_that_know_all_classes():
    X, y = load_iris(return_X_y=True)
    few = np.r_[:3, 50:53, 100:103]  # Three rows of each class are divided into three folds.
    assert classifier(LogisticRegression()).fit(X[few], y[few]).temperature_ > 0
    known = FrozenEstimator(GaussianNB().fit(X, y))  # knows classes that folds do not have
    for frozen in (known, make_pipeline(FunctionTransformer(), known)):
        prefit = classifier(frozen, cv="prefit").fit(X, y)
        assert_allclose(classifier(frozen, cv=KFold(3)).fit(X, y).temperature_, prefit.temperature_)


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_counts_weights_as_repeats_and_repeated_folds_once(method):
    rng = np.random.default_rng(3)
    X = np.column_stack([np.repeat([0.0, 1.0], 60), rng.normal(size=120)])
    y = rng.standard_t(3, size=120) * (1 + X[:, 0])
    constant = FrozenEstimator(DummyRegressor(strategy="constant", constant=0.0).fit(X, y))

    def predicted(X, y, *weight, **settings):
        model = calibrated(constant, method, **settings).fit(X, y, *weight)
        return model, model.predict_quantiles([[0.0, 0.0], [1.0, 0.0]], [0.1, 0.6, 0.9])

    weight = np.tile([1.0, 3.0], 60)
    rows = np.repeat(np.arange(120), weight.astype(int))
    weighted = predicted(X, y, weight, cv="prefit")[1]
    assert_allclose(weighted, predicted(X[rows], y[rows], cv="prefit")[1], rtol=1e-9)
    _, once = predicted(X, y, cv=KFold(5, shuffle=True, random_state=0))
    repeats = model_selection.RepeatedKFold(n_splits=5, n_repeats=10, random_state=0)
    model, ten_times = predicted(X, y, cv=repeats)
    assert_allclose(ten_times, once, rtol=1e-6)
    if method == "conformal":
        assert len(model.scores_) == 1200
        # 120 rows reach a coverage of 120 / 121, however often each is predicted.
        with pytest.raises(ValueError, match="reach a coverage of 0.9917"):
            model.predict_interval(X, 0.995)


def test_conformal_calibration_of_weighted_rows_by_hand():
    # Errors 1, 2, 3, 4 of normals with std 1 and weights 4, 3, 2, 1.
    X, y, weight = np.zeros((4, 1)), [1.0, -2, 3, -4], np.array([4.0, 3, 2, 1]) / 2.5
    model = calibrated(lambda X: np.zeros(len(X)), "conformal", cv="prefit").fit(X, y, weight)
    scale = np.sqrt((4 * 1 + 3 * 4 + 2 * 9 + 1 * 16) / 10)
    assert_allclose(model.scale_, scale)
    assert_allclose(model.scores_ * scale, [1, 2, 3, 4])
    # A new row has the mean weight 2.5: of 12.5.
    assert_allclose(model.fitted_.calibration.coverage, np.array([4, 7, 9, 10]) / 12.5)


def test_calibrated_takes_stacks_that_predict_only_after_fit():
    X, y = load_iris(return_X_y=True)
    stack = StackingClassifier([("a", GaussianNB())], cv=2)
    assert classifier(stack, cv=2).fit(X, y).score(X, y) > 0.9
    pool = [("stack", stack), ("bayes", GaussianNB())]
    assert HQEnsembleSelector(pool, cv=3).fit(X, y).score(X, y) > 0.9


def make_pool():
    return [
        ("linear", make_pipeline(StandardScaler(), LogisticRegression())),
        ("bayes", GaussianNB()),
        ("near", KNeighborsClassifier()),
        ("tree", DecisionTreeClassifier(max_depth=2, random_state=0)),
        ("stump", DecisionTreeClassifier(max_depth=1, random_state=0)),
    ]


BAYES, OTHER = ("bayes", GaussianNB()), ("near", KNeighborsClassifier())
X, Y = load_digits(return_X_y=True)
X, X_NEW, Y, Y_NEW = model_selection.train_test_split(
    X[:600], Y[:600], test_size=300, random_state=0, stratify=Y[:600]
)


@pytest.fixture(scope="module")
def fitted():
    return [(name, model.fit(X, Y)) for name, model in make_pool()]


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_hq_selector_chooses_by_out_of_fold_predictions(voting):
    pool = make_pool()
    model = HQEnsembleSelector(pool, voting=voting, cv=3).fit(X, Y)
    method = "predict" if voting == "hard" else "predict_proba"
    predictions = [cross_val_predict(m, X, Y, cv=3, method=method) for _, m in pool]
    chosen = select_teams(predictions, Y, voting=voting)
    pd.testing.assert_frame_equal(model.teams_, chosen.teams_)
    assert model.selected_ == chosen.selected_
    assert (model.n_possible_, model.n_scored_) == (26, chosen.n_scored_)
    assert list(model.named_estimators_) == [pool[k][0] for k in model.selected_]
    vote = VotingClassifier([pool[k] for k in model.selected_], voting=voting).fit(X, Y)
    # scikit-learn's ties of votes go to the first class.
    sole = np.sort(model.predict_proba(X_NEW), axis=1) @ np.r_[[0] * 8, -1, 1] > 1e-3
    assert sole.mean() > 0.5
    assert_array_equal(model.predict(X_NEW)[sole], vote.predict(X_NEW)[sole])
    if voting == "soft":
        assert_allclose(model.predict_proba(X_NEW), vote.predict_proba(X_NEW))


# Pairs come first in `teams_`, and the team of all models last.
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("weights", [None, "accuracy"])
@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_serves_what_it_judged(fitted, voting, weights, place):
    settings = {"filters": (), "choose": lambda teams: teams.index[place]}
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting, weights=weights, **settings)
    model.fit(X_NEW, Y_NEW)
    assert all(member is dict(fitted)[n] for n, member in model.named_estimators_.items())
    if weights == "accuracy":
        accuracy = model.accuracies_[list(model.selected_)]
        assert_allclose(model.weights_, accuracy / accuracy.sum())
    assert_allclose(model.accuracies_, [m.score(X_NEW, Y_NEW) for _, m in fitted])
    judged = model.teams_.set_index("team").loc[[model.selected_], "accuracy"].item()
    right = model.predict(X_NEW) == Y_NEW
    if voting == "majority":
        # The other rows get the label with the most votes, which may be right.
        assert right.mean() > judged
        right &= model.predict_proba(X_NEW).max(axis=1) > 0.5 + 1e-6
    assert_allclose(right.mean(), judged, atol=1e-12)


@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_predicts_and_transforms_by_its_members(fitted, voting):
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting).fit(X_NEW, Y_NEW)
    names = [model.names_[k] for k in model.selected_]
    # Parameters of a later fit do not count.
    model.set_params(voting="hard" if voting == "soft" else "soft", estimators=fitted[:2])
    assert list(model.named_estimators_) == names
    proba, std = model.predict_proba(X, return_std=True)
    columns = list(model.get_feature_names_out())
    if voting == "soft":
        members = np.stack([m.predict_proba(X) for m in model.estimators_])
        assert_allclose(std, members.std(axis=0), atol=1e-12)
        label, spread = model.predict(X, return_std=True)
        assert_array_equal(label, model.classes_[proba.argmax(axis=1)])
        assert_allclose(spread, std[np.arange(len(X)), proba.argmax(axis=1)])
        assert model.predict_uncertainty(X).epistemic.max() > 0.01
        assert_allclose(model.transform(X), np.concatenate(members, axis=1))
        assert columns == [f"hqensembleselector_{name}{k}" for name in names for k in range(10)]
    else:
        votes = np.stack([m.predict(X) for m in model.estimators_])
        members = (votes[:, :, None] == model.classes_).astype(float)
        assert_array_equal(model.transform(X), votes.T)
        assert columns == [f"hqensembleselector_{name}" for name in names]
        assert np.isneginf(model.predict_log_proba(X)).any()
    assert_allclose(proba, members.mean(axis=0), atol=1e-6 * (voting != "soft"))


def test_hq_selector_keeps_groups_together_and_passes_sample_weight_to_members_and_choice(fitted):
    groups, pool = np.arange(len(Y)) // 3, [BAYES, OTHER]
    by_group, stratified = model_selection.GroupKFold(3), model_selection.StratifiedGroupKFold(5)
    for cv, kind in ((None, stratified), (by_group, by_group)):
        found = HQEnsembleSelector(pool, cv=cv).fit(X, Y, groups=groups)
        expected = HQEnsembleSelector(pool, cv=list(kind.split(X, Y, groups))).fit(X, Y)
        pd.testing.assert_frame_equal(found.teams_, expected.teams_)
    pool = [*make_pool()[3:], ("deep", DecisionTreeClassifier(random_state=1))]
    weight = np.where(Y < 5, 1.0, 0.0)
    frozen = [(n, FrozenEstimator(clone(m).fit(X, Y))) for n, m in pool]
    model = HQEnsembleSelector(frozen, cv="prefit").fit(X, Y, weight)
    assert_allclose(model.accuracies_, [m.score(X[Y < 5], Y[Y < 5]) for _, m in frozen])
    fresh = HQEnsembleSelector(pool, cv=3).fit(X, Y, weight)
    member = clone(pool[fresh.selected_[0]][1]).fit(X, Y, sample_weight=weight)
    assert_array_equal(fresh.estimators_[0].predict(X), member.predict(X))
    # Frozen models are not fitted again, so that they need not take weights.
    frozen = [(name, FrozenEstimator(m)) for name, m in fitted]
    mixed = HQEnsembleSelector([*frozen, ("bayes2", GaussianNB())], cv=3)
    mixed.fit(X_NEW, Y_NEW, np.ones(len(Y_NEW)))
    assert_allclose(mixed.accuracies_[:5], [m.score(X_NEW, Y_NEW) for _, m in fitted])
    assert mixed.names_[5] == "bayes2" and mixed.accuracies_[5] < 1


def test_hq_selector_compares_teams_on_classes_that_folds_have_seen():
    labels = np.where(np.arange(300) < 2, 99, Y)  # both rows are in the first fold
    pool = make_pool()[1:4]
    with pytest.warns(CalibrationWarning, match=r"choice of a team leaves out 2 .* classes \[99\]"):
        model = HQEnsembleSelector(pool, cv=KFold(3)).fit(X, labels)
    predictions = [cross_val_predict(m, X, labels, cv=KFold(3))[2:] for _, m in pool]
    assert_allclose(model.accuracies_, [np.mean(p == labels[2:]) for p in predictions])
    assert 99 in model.classes_


def test_hq_selector_takes_fitted_models_of_any_kind_and_members_of_an_ensemble(fitted):
    functions = [(name, model.predict_proba) for name, model in fitted]
    for voting in ("soft", "hard"):
        model = HQEnsembleSelector(functions, cv="prefit", voting=voting).fit(X_NEW, Y_NEW)
        assert_allclose(model.accuracies_, [m.score(X_NEW, Y_NEW) for _, m in fitted])
    # They know classes of which no row compares them.
    part = HQEnsembleSelector(fitted, cv="prefit").fit(X_NEW[Y_NEW < 3], Y_NEW[Y_NEW < 3])
    assert len(part.classes_) == 10
    unfitted = skuq.DeepEnsembleClassifier(2, network=MLP((16,)), epochs=8, random_state=0)
    with pytest.raises(NotFittedError):
        unfitted.member_estimators()
    networks = unfitted.fit(X, Y)
    pool = networks.member_estimators()
    mean = np.mean([member.predict_proba(X_NEW) for _, member in pool], axis=0)
    assert_allclose(mean, networks.predict_proba(X_NEW))
    assert HQEnsembleSelector(pool, cv="prefit").fit(X_NEW, Y_NEW).score(X_NEW, Y_NEW) > 0.8


def test_grid_search_reaches_into_the_pool():
    model = HQEnsembleSelector(make_pool()[1:4], cv=2)
    grid = GridSearchCV(model, {"tree__max_depth": [1, 4], "bayes": ["drop"]}, cv=2).fit(X, Y)
    best = grid.best_estimator_
    assert best.names_ == ["near", "tree"]
    assert best.named_estimators_["tree"].max_depth == grid.best_params_["tree__max_depth"]
    assert len(set(grid.cv_results_["mean_test_score"])) == 2


def test_hq_selector_cross_validates_models_on_the_labels_as_they_are():
    X, y = load_iris(return_X_y=True)
    labels = np.array(["a", "b", "c"])[y]
    tilted = LogisticRegression(class_weight={"a": 50, "b": 1, "c": 1}, max_iter=500)
    folds = model_selection.StratifiedKFold(3)
    expected = cross_val_predict(tilted, X, labels, cv=folds)
    for voting in ("soft", "hard"):
        model = HQEnsembleSelector([("tilted", tilted), BAYES], cv=folds, voting=voting)
        assert_allclose(model.fit(X, labels).accuracies_[0], np.mean(expected == labels))


class Odd(ClassifierMixin, BaseEstimator):
    """Classifier that predicts given values as probabilities."""

    def __init__(self, give=None):
        self.give = give

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full((len(X), 1), self.classes_[0])

    def predict_proba(self, X):
        return self.give(len(X), len(self.classes_))


NO_PROBABILITIES = [
    lambda n, c: np.full((n, c), np.nan),
    lambda n, c: np.full((n, c), 0.5 / c),
    lambda n, c: np.full((n, c - 1), 1 / (c - 1)),
    lambda n, c: np.tile(np.r_[-1, 2, np.zeros(c - 2)], (n, 1)),
]
MANY = [(f"t{k}", DecisionTreeClassifier(max_depth=1, random_state=k)) for k in range(26)]
KNOWN, FEW = (("a", GaussianNB().fit(X[n > Y], Y[n > Y])) for n in (10, 8))
PREFIT = {"cv": "prefit"}


@cases(
    ("pool", "params", "message"),
    ([], {}, "at least two"),
    ([BAYES, ("other", "passthrough")], {}, 'must be classifiers or "drop"'),
    ([BAYES, GaussianNB()], {}, "tuples"),
    ([BAYES, BAYES], {}, "not unique"),
    ([BAYES, ("other", LinearRegression())], {}, "must be a classifier"),
    ([BAYES, ("other", Perceptron())], {}, "no predict_proba"),
    ([BAYES, ("f", KNOWN[1].predict_proba)], {}, "'f' in .* must be a scikit-learn classifier"),
    (MANY, {}, "67,108,837 teams"),
    ([BAYES, OTHER], {"cv": model_selection.ShuffleSplit(3)}, "`cv` must .* exactly one test fold"),
    ([BAYES, OTHER], {"beta": 0.3, "filters": ("mean",)}, 'add "alpha" to `filters`'),
    *(([("odd", Odd(give)), BAYES], {}, "of Odd.* must give") for give in NO_PROBABILITIES),
    ([BAYES, OTHER], {"sample_weight": Y}, "'near' in .* cannot be fitted with `sample_weight`"),
    ([BAYES, OTHER], {"y": 0 * Y}, "1 class"),
    ([KNOWN, OTHER], PREFIT, "'near' in .* must be fitted"),
    ([KNOWN, ("few", FEW[1])], PREFIT, "same classes. 'few' knows"),
    ([KNOWN, ("b", KNOWN[1])], {**PREFIT, "y": Y + 5}, "not seen in fit"),
    ([KNOWN, ("b", KNOWN[1])], {**PREFIT, "groups": Y}, "leave out `groups`"),
)
def test_hq_selector_refuses(pool, params, message):
    of_fit = {"y", "sample_weight", "groups"} & set(params)
    given, settings = {"y": Y} | {name: params[name] for name in of_fit}, params.keys() - of_fit
    model = HQEnsembleSelector(pool, **{name: params[name] for name in settings})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(X, **given)
