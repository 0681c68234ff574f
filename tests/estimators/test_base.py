import copy
import functools
import inspect
import pickle
import sys
import warnings
from pathlib import Path

import cloudpickle
import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingRegressor, StackingRegressor, VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.multioutput import MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from small_models import TooSure
from tiers import cases
from training_data import NumberTargets

import skuq
from skuq import CalibratedUncertaintyRegressor, UncertaintyPipeline, make_pipeline
from skuq.backend import keras
from skuq.ensembles import GreedySelection
from skuq.estimators._base import Given
from skuq.estimators._task import read_task, warn_if_worse
from skuq.metrics import get_scorer, make_scorers
from skuq.tables._inputs import TableInputs

X = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 2.0]])
NETWORKS, CLASSES = skuq.DeepEnsembleRegressor(), skuq.DeepEnsembleClassifier()
FUNCTIONS, IMAGES = skuq.NEONRegressor(), skuq.NESClassifier()
FIRST_MASKED, PICTURES = [1, 0, 0, 0], np.ones((4, 2, 2, 1))
SURE = skuq.CalibratedUncertaintyRegressor(LinearRegression(), cv=2)
SURE_OF_CLASSES = skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2)
PAGE = (Path(skuq.__file__).parents[1] / "docs" / "pipelines.md").read_text()
ROWS = np.arange(4)
LEAKY = [(ROWS, ROWS[:2]), (ROWS[:2], ROWS[2:])]
TOO_MANY = "`min_members` must be at most `n_members`. Got min_members=4 and n_members=3"
SHARED = "Fold 0 .*has 4 and 2 rows, of which 2 are in both"
METHODS = {"predict_distribution", "predict_interval", "predict_quantiles", "predict_uncertainty"}
METHODS |= {"sample_y", "log_prob"}


def test_fit_refuses_masked_numbers_and_scales_weights_of_validation_rows(plan):
    """Also where X is not preprocessed: images, functions, and on request."""
    masked, pictures = np.ma.masked_less(X, 3), np.ma.masked_less(PICTURES, 3)
    not_preprocessed = skuq.DeepEnsembleRegressor(preprocess=None)
    for model, rows in ((not_preprocessed, masked), (FUNCTIONS, masked), (IMAGES, pictures)):
        with pytest.raises(ValueError, match="X contains NaN"):
            model.fit(rows, np.arange(4) % 2)
    with pytest.raises(ValueError, match="y contains NaN"):
        IMAGES.fit(PICTURES, np.ma.array(np.arange(4), mask=FIRST_MASKED))
    Z, weight = np.random.default_rng(0).normal(size=(40, 2)), np.arange(1, 11)
    validation = {"X_val": Z[:10], "y_val": Z[:10, 0], "sample_weight_val": weight}
    _, data = plan(NETWORKS, Z, Z[:, 0], **validation)
    assert len(data.x_valid) == len(data.y_valid) == 10
    assert_allclose(data.weight_valid, weight / weight.mean(), rtol=1e-6)


def telling(message):
    if message:
        return pytest.warns(UserWarning, match=message)
    return warnings.catch_warnings(action="error")


@cases(
    ("argument", "scale", "shift", "y_shift", "message"),
    ("validation_data", 1, [0, 0, 0], 0, None),
    ("validation_data", 1, [0.9, 0, 0], 0, None),  # later rows of a series
    ("validation_data", [20, 1, 1], [90, 0, 0], 0, r"X has values from 9\d.* in column 0"),
    ("validation_data", 1, [0.9, 0.9, 0], 0, "X has values .* They must be transformed"),
    ("validation_data", 1, [0, 0, 0], 9, "y has values from 9"),
    ("shift_validation", 1, [9, 0, 0], 0, None),  # as corrupted columns
    ("shift_validation", 20, [90, 90, 90], 0, r"of `shift_validation` lie far outside"),
)
def test_validation_rows_in_other_units_are_told(argument, scale, shift, y_shift, message):
    """A pipeline has transformed X, or y, and not these."""
    rng = np.random.default_rng(0)
    X, V = rng.uniform(size=(60, 3)), rng.uniform(size=(20, 3))
    rows = {argument: (V * scale + shift, V[:, 0] + y_shift)}
    given = skuq.NESRegressor(), TableInputs("auto"), NumberTargets(), Given(X, X[:, 0], **rows)
    with telling(message):
        read_task(*given)


@cases(
    ("model", "message"),
    (skuq.HyperDeepEnsembleRegressor(3, min_members=4), TOO_MANY),
    (skuq.AutoDEUQRegressor(n_members=3, selection=GreedySelection(min_members=4)), TOO_MANY),
    (skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=LEAKY), SHARED),
    (skuq.HQEnsembleSelector([(n, LogisticRegression()) for n in "ab"], cv=LEAKY), SHARED),
    (skuq.NOMURegressor(validation=LEAKY), SHARED),
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_fit_refuses_contradictions(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 1, 0, 1])


def test_log_prob_and_scores_refuse_truths_of_other_kinds():
    y = [1.0, 2.0, 3.0, 5.0]
    masked = np.ma.masked_greater(y, 3)
    model = skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2).fit(X, y)
    with pytest.raises(ValueError, match="y contains NaN"):
        model.log_prob(X, masked)
    for name in ("neg_crps", "neg_nll"):
        with pytest.raises(ValueError, match="must be finite"):
            get_scorer(name)(model, X, masked)
    # A column may be named so.
    assert model.fit(X, pd.DataFrame({"_mask": y})).predict(X).shape == (4, 1)
    # Labels are compared with labels of one kind.
    model = skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2).fit(X, [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"not seen in fit: \[nan\]"):
        model.log_prob(X, np.ma.array([0, 1, 0, 1], mask=FIRST_MASKED))
    assert_array_equal(model.log_prob(X, [0.0, 1.0, 0.0, 1.0]), model.log_prob(X, [0, 1, 0, 1]))
    # NumPy would compare 1 and "1" as strings, hence as equal.
    with pytest.raises(ValueError, match=r"not seen in fit: \[0, 1\]"):
        model.fit(X, ["0", "1", "0", "1"]).log_prob(X, [0, 1, 0, 1])


def test_unpickling_registers_layers_of_a_script(monkeypatch):
    class Sine(keras.layers.Layer):
        def call(self, x):
            return keras.ops.sin(x)

    def waves(shape, n_outputs):
        return keras.Sequential([keras.Input(shape), Sine(), keras.layers.Dense(n_outputs)])

    Sine.__module__ = waves.__module__ = "__main__"  # as of a script; both are sent by value
    Sine.__qualname__ = "Sine"
    monkeypatch.setattr(sys.modules["__main__"], "Sine", Sine, raising=False)
    registered = keras.saving.get_custom_objects()
    for estimator in (
        skuq.DeepEnsembleRegressor(network=waves),
        skuq.DeepEnsembleRegressor(network=functools.partial(waves)),
        skuq.AutoDEUQRegressor(space=(waves, None)),
        skuq.CalibratedUncertaintyRegressor(skuq.DeepEnsembleRegressor(network=waves)),
    ):
        keras.saving.register_keras_serializable("skuq_tests")(Sine)
        sent = cloudpickle.dumps(estimator)
        del registered["skuq_tests>Sine"]  # as in a process that is new
        cloudpickle.loads(sent)
        assert registered.pop("skuq_tests>Sine").__name__ == "Sine"


def test_pickling_keeps_parameters(monkeypatch):
    oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=7, seed=1)
    loaded = pickle.loads(pickle.dumps(skuq.AutoDEUQRegressor(search=oracle)))
    assert loaded.search.max_trials == 7 and loaded.search.seed == 1
    model = skuq.DeepEnsembleRegressor(network=oracle)  # any parameter may be given, until `fit`
    assert copy.copy(model).network is oracle

    class StateOfItsOwn(skuq.DeepEnsembleRegressor):
        def __reduce__(self):
            return skuq.DeepEnsembleRegressor, (self.n_members,)

    assert pickle.loads(pickle.dumps(StateOfItsOwn(3))).n_members == 3

    class Local(keras.layers.Layer):
        """Registered inside a function: a plain pickle cannot refer to it."""

    def network(shape, n_outputs):
        raise NotImplementedError

    Local.__module__ = network.__module__ = "__main__"
    network.__qualname__ = "network"
    monkeypatch.setattr(sys.modules["__main__"], "network", network, raising=False)
    monkeypatch.setitem(keras.saving.get_custom_objects(), "skuq_tests>Local", Local)
    keras.saving.register_keras_serializable("skuq_tests")(Local)
    model.set_params(network=network)
    assert pickle.loads(pickle.dumps(model)).network is network


@cases(
    ("model", "high"),
    (skuq.DeepEnsembleRegressor(n_members=2, epochs=20), 10.0),
    (skuq.MCDropoutClassifier(epochs=20), 10.0),
    (skuq.NOMURegressor(epochs=60, validation=0.25), 300.0),
    (skuq.AutoDEUQRegressor(space="dense", n_trials=3, epochs=10), 0.1),
    quick=2,
)
def test_fit_warns_of_models_that_are_worse_than_a_constant(model, high):
    """Following the advice, a lower learning rate, ends the warning."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=120)
    y = y > rng.normal(size=120) if is_classifier(model) else y
    for learning_rate, n_told in ((high, 1), (0.01, 0)):
        rate = {"learning_rate": learning_rate}
        model = clone(model).set_params(**{"fixed": rate} if hasattr(model, "fixed") else rate)
        with warnings.catch_warnings(record=True, action="always") as caught:
            model.set_params(random_state=0).fit(X, y)
        told = [w for w in caught if "worse than a constant" in str(w.message)]
        assert len(told) == n_told
        for warning in told:
            assert warning.filename == __file__ and "lower learning rate" in str(warning.message)


@cases(
    ("loss", "of_constant", "weight", "message"),
    ([1.09] * 10, 1, 1, None),
    ([1.12] * 10, 1, 1, "is 1.12 times as large"),
    ([1.12] * 9, 1, 1, None),  # too few rows to tell
    ([1.0] * 10, 0, 1, None),  # of a y that does not vary
    ([1.0] * 9 + [99.0], 1, [1] * 9 + [0], None),
    ([2.0] * 10, 1, 0, None),
)
def test_models_clearly_worse_than_a_constant_are_told(loss, of_constant, weight, message):
    of_constant, weight = (np.broadcast_to(v, len(loss)) for v in (of_constant, weight))
    with telling(message):
        warn_if_worse(np.array(loss), of_constant, weight)


def test_all_estimators_are_listed_by_name_and_kind():
    found = dict(skuq.all_estimators())
    assert list(found) == sorted(found)
    names = {name for name in skuq.__all__ if isinstance(getattr(skuq, name), type)}
    assert found == {name: getattr(skuq, name) for name in names}
    assert all(issubclass(cls, BaseEstimator) for cls in found.values())
    regressors, classifiers = skuq.all_estimators("regressor"), skuq.all_estimators(["classifier"])
    assert len(regressors) > 8 and len(classifiers) > 5 and not set(regressors) & set(classifiers)
    assert all(name.endswith("Regressor") for name, _ in regressors)
    assert skuq.all_estimators("transformer") == [("HQEnsembleSelector", skuq.HQEnsembleSelector)]
    assert {*skuq.all_estimators(["regressor", "classifier"])} == {*regressors, *classifiers}
    with pytest.raises(ValueError, match=r"must be of \['classifier', .*Got \['cluster'\]"):
        skuq.all_estimators(["regressor", "cluster"])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    return X, X @ [1.0, 2.0, 0.0] + 0.3 * rng.normal(size=80)


def test_pipeline_has_the_methods_of_the_last_step(rows):
    X, y = rows
    steps = StandardScaler(), SelectKBest(f_regression, k=2)
    pipeline = make_pipeline(*steps, CalibratedUncertaintyRegressor(TooSure(), cv=3)).fit(X, y)
    transformed, last = pipeline[:-1].transform(X), pipeline[-1]
    assert transformed.shape == (80, 2)
    for name, *arguments in (
        ("predict_interval",),
        ("predict_interval", 0.5),
        ("predict_quantiles", [0.2, 0.8]),
        ("predict_uncertainty",),
        ("sample_y", 3, 0),
        ("log_prob", y),
    ):
        ours, theirs = getattr(pipeline, name), getattr(last, name)
        assert_array_equal(ours(X, *arguments), theirs(transformed, *arguments))
    expected = last.predict(transformed, True)
    assert_array_equal(pipeline.predict_distribution(X).std, expected[1])
    assert_array_equal(pipeline.predict(X), expected[0])
    with config_context(enable_metadata_routing=True):
        for found in (pipeline.predict(X, return_std=True), pipeline.predict(X, True)):
            assert_array_equal(found, expected)
        assert pipeline.predict_interval(X).lower.shape == (80,)
    assert isinstance(pipeline, Pipeline) and isinstance(pipeline[:-1], UncertaintyPipeline)
    scores = cross_validate(pipeline, X, y, cv=2, scoring=make_scorers("neg_nll", "coverage_90"))
    assert (scores["test_coverage_90"] > 0.7).all() and np.isfinite(scores["test_neg_nll"]).all()


def test_pipeline_passes_on_methods_of_searches_and_has_only_what_the_last_step_has(rows):
    X, _ = rows
    search = skuq.AutoDEUQRegressor()
    model = make_pipeline(PCA(2), search)
    with pytest.raises(NotFittedError):
        model.leaderboard()
    Z = model[0].fit_transform(X)
    search.leaderboard = lambda X=None, y=None: (search, X, y)
    search.reselect = lambda X=None, y=None, **settings: (settings, X, y)
    assert model.leaderboard() == (search, None, None)
    assert_allclose(model.leaderboard(X)[1], Z)
    assert model.reselect(n_members=3) == ({"n_members": 3}, None, None)
    X, y = rows
    line = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
    assert not [name for name in METHODS if hasattr(line, name)]
    with pytest.raises(AttributeError, match="predict_interval"):
        line.predict_interval(X)
    assert not hasattr(line, "predict_proba")
    unfitted = make_pipeline(StandardScaler(), skuq.DeepEnsembleRegressor())
    assert not [name for name in METHODS if not hasattr(unfitted, name)]
    with pytest.raises(NotFittedError):
        unfitted.predict_interval(X)
    for name in METHODS | {"predict"}:  # which are documented as those of the step
        ours, theirs = getattr(UncertaintyPipeline, name), getattr(skuq.DeepEnsembleRegressor, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)
        assert inspect.signature(ours) == inspect.signature(theirs)


@cases(
    ("row", "outer", "inner"),
    ("`skuq.make_pipeline`", make_pipeline(StandardScaler(), SURE), None),
    ("`GridSearchCV`", GridSearchCV(SURE, {"cv": [2]}, cv=2), lambda m: m.best_estimator_),
    ("scikit-learn's `make_pipeline`", Pipeline([("model", SURE)]), lambda m: m[-1]),
    ("`FrozenEstimator`", FrozenEstimator(SURE), None),
    ("`TransformedTargetRegressor`", TransformedTargetRegressor(SURE), None),
    ("`StackingRegressor`, inside", StackingRegressor([("sure", SURE)], cv=2), None),
    ("`StackingRegressor`, `final_estimator`", StackingRegressor([("a", Ridge())], SURE), None),
    ("`VotingRegressor`", VotingRegressor([("sure", SURE)]), None),
    ("`BaggingRegressor`", BaggingRegressor(SURE, 2), None),
    ("`MultiOutputRegressor`", MultiOutputRegressor(SURE), lambda m: m.estimators_[0]),
    ("`CalibratedClassifierCV`", CalibratedClassifierCV(SURE_OF_CLASSES, cv=2), None),
    ("`CalibratedUncertaintyRegressor`", clone(SURE).set_params(estimator=SURE), None),
)
def test_the_page_says_what_keeps_the_uncertainty(row, outer, inner):
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int) if is_classifier(outer) else X
    y = y if y.ndim == 1 or isinstance(outer, MultiOutputRegressor) else y.sum(axis=1)
    model, works = FrozenEstimator(SURE.fit(X, y)) if "Frozen" in row else outer.fit(X, y), []
    for use in (
        lambda: model.predict_uncertainty(X).total,
        lambda: model.predict(X, return_std=True)[1],
        lambda: get_scorer("neg_nll")(model, X, y),
    ):
        try:
            works.append("yes" if np.isfinite(use()).all() else "no")
        except (AttributeError, TypeError, ValueError):
            works.append("no")
    assert f"| {row} | {' | '.join(works)} |" in PAGE
    if inner is not None:
        assert inner(model).predict_uncertainty(X).total.shape == (40,)


def test_pipeline_of_classifiers(rows):
    X, y = rows
    model = make_pipeline(PCA(2), skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2))
    model.fit(X, y > 0)
    proba, std = model.predict_proba(X, return_std=True)
    assert_array_equal(proba, model.predict_proba(X))
    assert std.shape == proba.shape == (80, 2)
    assert model.predict_uncertainty(X).total.shape == model.log_prob(X, y > 0).shape == (80,)
    assert not hasattr(model, "predict_interval")
    assert CalibratedClassifierCV(model, cv=2).fit(X, y > 0).predict_proba(X).shape == (80, 2)


class Doubling(BaseEstimator):
    """Sampler, as those of imbalanced-learn: it has no `transform`."""

    def fit_resample(self, X, y):
        return np.concatenate([X, X[y == 1]]), np.concatenate([y, y[y == 1]])


class Sampled(Pipeline):
    def _validate_steps(self):
        pass

    def fit(self, X, y):
        (_, scaler), (_, sampler), (_, model) = self.steps
        model.fit(*sampler.fit_resample(scaler.fit_transform(X), y))
        return self

    def predict_proba(self, X):
        return self.steps[2][1].predict_proba(self.steps[0][1].transform(X))

    def predict(self, X):
        return self.steps[2][1].predict(self.steps[0][1].transform(X))


def test_pipeline_with_a_sampler_is_asked_itself(rows):
    X, y = rows[0], (rows[1] > 0).astype(int)
    steps = [("scale", StandardScaler()), ("sample", Doubling()), ("model", GaussianNB())]
    sampled = Sampled(steps).fit(X, y)
    proba = sampled.predict_proba(X)
    assert_allclose(get_scorer("neg_nll")(sampled, X, y), get_scorer("neg_log_loss")(sampled, X, y))
    model = skuq.CalibratedUncertaintyClassifier(sampled, cv=3).fit(X, y)
    assert_array_equal(model.estimator_.predict_proba(X), proba)
    with pytest.raises(TypeError, match="cannot be fitted with `sample_weight`"):
        model.fit(X, y, np.ones(80))  # which would not fit the sampled rows
