import contextlib
import copy
import functools
import pickle
import sys
import warnings

import cloudpickle
import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.linear_model import BayesianRidge, LogisticRegression
from tiers import cases
from training_data import NumberTargets

import skuq
from skuq.backend import keras
from skuq.ensembles import GreedySelection
from skuq.estimators._base import Given
from skuq.estimators._task import read_task, warn_if_worse
from skuq.metrics import get_scorer
from skuq.tables._inputs import TableInputs

X = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 2.0]])
NETWORKS, CLASSES = skuq.DeepEnsembleRegressor(), skuq.DeepEnsembleClassifier()
FUNCTIONS, IMAGES = skuq.NEONRegressor(), skuq.NESClassifier()
TEAM = skuq.HQEnsembleSelector([("a", LogisticRegression()), ("b", LogisticRegression())])
FIRST_MASKED = [1, 0, 0, 0]
PICTURES = np.ones((4, 2, 2, 1))


def test_fit_refuses_masked_numbers():
    """Also where X is not preprocessed: images, functions, and on request."""
    masked, pictures = np.ma.masked_less(X, 3), np.ma.masked_less(PICTURES, 3)
    not_preprocessed = skuq.DeepEnsembleRegressor(preprocess=None)
    for model, rows in ((not_preprocessed, masked), (FUNCTIONS, masked), (IMAGES, pictures)):
        with pytest.raises(ValueError, match="X contains NaN"):
            model.fit(rows, np.arange(4) % 2)
    with pytest.raises(ValueError, match="y contains NaN"):
        IMAGES.fit(PICTURES, np.ma.array(np.arange(4), mask=FIRST_MASKED))


def test_fit_scales_weights_of_validation_rows_to_a_mean_of_one(plan):
    X, weight = np.random.default_rng(0).normal(size=(40, 2)), np.arange(1, 11)
    validation = {"X_val": X[:10], "y_val": X[:10, 0], "sample_weight_val": weight}
    _, data = plan(NETWORKS, X, X[:, 0], **validation)
    assert len(data.x_valid) == len(data.y_valid) == 10
    assert_allclose(data.weight_valid, weight / weight.mean(), rtol=1e-6)


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
    told = pytest.raises(UserWarning, match=message) if message else contextlib.nullcontext()
    with warnings.catch_warnings(), told:
        warnings.simplefilter("error")
        read_task(*given)


ROWS = np.arange(4)
LEAKY = [(ROWS, ROWS[:2]), (ROWS[:2], ROWS[2:])]
TOO_MANY = "`min_members` must be at most `n_members`. Got min_members=4 and n_members=3"
SHARED = "Fold 0 .*has 4 and 2 rows, of which 2 are in both"


@cases(
    ("model", "message"),
    (skuq.HyperDeepEnsembleRegressor(3, min_members=4), TOO_MANY),
    (skuq.AutoDEUQRegressor(n_members=3, selection=GreedySelection(min_members=4)), TOO_MANY),
    (skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=LEAKY), SHARED),
    (skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=LEAKY), SHARED),
    (clone(TEAM).set_params(cv=LEAKY), SHARED),
    (skuq.NESClassifier(validation=LEAKY), SHARED),
    (skuq.NOMURegressor(validation=LEAKY), SHARED),
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_fit_refuses_contradictions(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 1, 0, 1])


def test_log_prob_and_scores_refuse_masked_truths():
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


def test_log_prob_compares_labels_of_one_kind():
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
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
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
    told = pytest.raises(UserWarning, match=message) if message else contextlib.nullcontext()
    of_constant, weight = (np.broadcast_to(v, len(loss)) for v in (of_constant, weight))
    with warnings.catch_warnings(), told:
        warnings.simplefilter("error")
        warn_if_worse(np.array(loss), of_constant, weight)


def test_all_estimators_are_listed_by_name_and_kind():
    found = dict(skuq.all_estimators())
    assert list(found) == sorted(found)
    names = {name for name in skuq.__all__ if isinstance(getattr(skuq, name), type)}
    assert found == {name: getattr(skuq, name) for name in names}
    assert all(issubclass(cls, BaseEstimator) for cls in found.values())
    regressors, classifiers = skuq.all_estimators("regressor"), skuq.all_estimators(["classifier"])
    assert len(regressors) > 8 and len(classifiers) > 5
    assert not set(regressors) & set(classifiers)
    assert all(name.endswith("Regressor") for name, _ in regressors)
    assert skuq.all_estimators("transformer") == [("HQEnsembleSelector", skuq.HQEnsembleSelector)]
    assert {*skuq.all_estimators(["regressor", "classifier"])} == {*regressors, *classifiers}
