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
from sklearn.utils.validation import validate_data
from tiers import cases
from training_data import NumberTargets

import skuq
from skuq.backend import keras
from skuq.ensembles import GreedySelection
from skuq.estimators import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._base import Given
from skuq.estimators._task import read_task, warn_if_worse
from skuq.fitted._ensemble import Fitted
from skuq.metrics import get_scorer
from skuq.predictive import CategoricalMixture, GaussianMixture
from skuq.tables._inputs import TableInputs


class Numbers:
    """Inputs that take tables of numbers as they are."""

    def validate(self, X, estimator):
        return validate_data(estimator, X, reset=False)


class FittedNumbers(Fitted):
    """Fitted model that defines only the distribution of each row."""

    inputs = Numbers()

    def __init__(self, distribution):
        self.distribution = distribution

    def output_shape(self):
        return ()


class TwoMembers(UncertaintyClassifier):
    """Three classes; the members differ where the first feature is not 0."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.classes_ = np.unique(y)
        self.fitted_ = FittedNumbers(self.distribution)
        return self

    def distribution(self, X):
        shift = 0.25 * np.clip(X[:, 0], -1, 1)
        half = np.full(len(X), 0.5)
        proba = [np.stack([half + s, half - s, np.zeros(len(X))], axis=1) for s in (shift, -shift)]
        return CategoricalMixture(np.array(proba), [0.75, 0.25])


LABELS = ["ant", "bee", "wasp"]
X = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 2.0]])
# The shifts 0, 0.25, -0.25 and 0.125 are halved by weights 3/4 and 1/4.
MEAN = np.array([[0.5, 0.5, 0], [0.625, 0.375, 0], [0.375, 0.625, 0], [0.5625, 0.4375, 0]])


@pytest.fixture
def classifier():
    return TwoMembers().fit(X[:3], LABELS)


def test_predict_proba_has_the_mean_and_spread_of_members(classifier):
    proba, std = classifier.predict_proba(X, return_std=True)
    assert_allclose(proba, MEAN, rtol=1e-15)
    # Two values 2 s apart with weights 3/4 and 1/4: sqrt(3)/4 of the gap.
    spread = np.sqrt(3) / 4 * np.array([0, 0.5, 0.5, 0.25])
    assert_allclose(std, spread[:, None] * [1, 1, 0], rtol=1e-14)
    assert_array_equal(classifier.predict_proba(X), proba)
    # Row 1: H(3/4) by each member.
    parts = classifier.predict_uncertainty(X)
    assert_allclose(parts.aleatoric[1], np.log(4) - 0.75 * np.log(3), rtol=1e-14)
    log_proba = classifier.predict_log_proba(X)
    assert_allclose(log_proba[:, :2], np.log(MEAN[:, :2]), rtol=1e-15)
    assert np.isfinite(log_proba).all() and (log_proba[:, 2] < -700).all()
    found = classifier.log_prob(X, np.array(["bee", "ant", "bee", "wasp"], dtype=object))
    assert_array_equal(found, log_proba[np.arange(4), [1, 0, 1, 2]])


def test_predict_gives_the_spread_of_the_predicted_class(classifier):
    class ThirdIsShaky(TwoMembers):
        def distribution(self, X):
            return CategoricalMixture([[[0.0, 0.2, 0.8]], [[0.0, 0.4, 0.6]], [[0.3, 0.0, 0.7]]])

    assert_array_equal(classifier.predict(X), ["ant", "ant", "bee", "ant"])
    labels, std = ThirdIsShaky().fit(X[:3], LABELS).predict(X[:1], return_std=True)
    assert_array_equal(labels, ["wasp"])
    assert_allclose(std, np.std([0.8, 0.6, 0.7]), rtol=1e-14)


def test_log_prob_names_unknown_labels(classifier):
    with pytest.raises(ValueError, match=r"not seen in fit: \['fly', 'moth'\]"):
        classifier.log_prob(X, ["ant", "moth", "fly", "fly"])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.log_prob(X, LABELS)
    # NumPy would compare 1 and "1" as strings, hence as equal.
    with pytest.raises(ValueError, match=r"not seen in fit: \[1, 2\]"):
        TwoMembers().fit(X[:3], ["1", "2", "3"]).log_prob(X[:2], [1, 2])
    numbers = TwoMembers().fit(X[:3], [1, 2, 3])
    assert_array_equal(numbers.log_prob(X[:2], [1.0, 2.0]), numbers.log_prob(X[:2], [1, 2]))


class Line(UncertaintyRegressor):
    """The first feature, or the first two, with a normal error."""

    def __init__(self, n_outputs=1):
        self.n_outputs = n_outputs

    def fit(self, X, y):
        validate_data(self, X, y, multi_output=True)

        def distribution(X):
            mean = X[:, 0] if self.n_outputs == 1 else X[:, : self.n_outputs]
            return GaussianMixture(mean[None], np.ones((1, *mean.shape)))

        self.fitted_ = FittedNumbers(distribution)
        self.fitted_.output_shape = lambda: () if self.n_outputs == 1 else (self.n_outputs,)
        return self


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_predict_interval_of_several_coverages(n_outputs):
    line = Line(n_outputs).fit(X, X[:, 0])
    outputs = () if n_outputs == 1 else (n_outputs,)
    several = line.predict_interval(X, coverage=[0.9, 0.5, 0.9])
    assert several.shape == (4, 3, 2, *outputs)
    for k, coverage in enumerate((0.9, 0.5, 0.9)):
        one = line.predict_interval(X, coverage)
        assert one.shape == (4, 2, *outputs)
        assert_array_equal(several[:, k], one)
    assert line.predict_interval(X, [0.9]).shape == (4, 1, 2, *outputs)
    for wrong in ([0.5, 1.0], [], [[0.5]], 0, [np.nan], 1 - 2**-53):
        with pytest.raises(ValueError, match=r"`coverage` must lie strictly in \(0, 1\)"):
            line.predict_interval(X, wrong)


NETWORKS, CLASSES = skuq.DeepEnsembleRegressor(), skuq.DeepEnsembleClassifier()
FUNCTIONS, IMAGES = skuq.NEONRegressor(), skuq.NESClassifier()
TEAM = skuq.HQEnsembleSelector([("a", LogisticRegression()), ("b", LogisticRegression())])
FIRST_MASKED = [1, 0, 0, 0]
PICTURES = np.ones((4, 2, 2, 1))


def mixed(*labels):
    return np.array(labels, dtype=object)


def test_fit_refuses_masked_numbers():
    """Also where X is not preprocessed: images, functions, and on request."""
    masked, pictures = np.ma.masked_less(X, 3), np.ma.masked_less(PICTURES, 3)
    not_preprocessed = skuq.DeepEnsembleRegressor(preprocess=None)
    for model, rows in ((not_preprocessed, masked), (FUNCTIONS, masked), (IMAGES, pictures)):
        with pytest.raises(ValueError, match="X contains NaN"):
            model.fit(rows, np.arange(4) % 2)
    with pytest.raises(ValueError, match="y contains NaN"):
        IMAGES.fit(PICTURES, np.ma.array(np.arange(4), mask=FIRST_MASKED))


@cases(
    ("model", "y", "weight", "message"),
    (NETWORKS, np.ma.array([1.0, 2], mask=[1, 0]), None, "y .* contains NaN"),
    (NETWORKS, [1.0, 2], np.ma.array([1.0, 2], mask=[1, 0]), "weight .* NaN"),
    (CLASSES, np.ma.array([0, 1], mask=[1, 0]), None, r"unknown .* \[nan\]"),
    (CLASSES, [2, 0], None, r"unknown classes: \[2\]"),
    (CLASSES, mixed("a", 1), None, "unknown classes"),
)
def test_fit_refuses_validation_rows(model, y, weight, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 1, 0, 1], validation_data=(X[:2], y, weight))


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
    masked = np.ma.masked_greater([1.0, 2.0, 3.0, 4.0], 3)
    model = skuq.CalibratedUncertaintyRegressor(Line(), cv=2).fit(X, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="y contains NaN"):
        model.log_prob(X, masked)
    for name in ("neg_crps", "neg_nll"):
        with pytest.raises(ValueError, match="must be finite"):
            get_scorer(name)(model, X, masked)
    classes = skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2).fit(X, [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"not seen in fit: \[nan\]"):
        classes.log_prob(X, np.ma.array([0, 1, 0, 1], mask=FIRST_MASKED))


def test_fit_takes_a_column_named_mask_for_a_column():
    Y = pd.DataFrame({"_mask": [1.0, 2.0, 3.0, 5.0]})
    model = skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2).fit(X, Y)
    assert model.predict(X).shape == (4, 1)


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


def test_pickling_keeps_parameters():
    oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=7, seed=1)
    loaded = pickle.loads(pickle.dumps(skuq.AutoDEUQRegressor(search=oracle)))
    assert loaded.search.max_trials == 7 and loaded.search.seed == 1
    model = skuq.DeepEnsembleRegressor(network=oracle)  # any parameter may be given, until `fit`
    assert copy.copy(model).network is oracle

    class StateOfItsOwn(skuq.DeepEnsembleRegressor):
        def __reduce__(self):
            return skuq.DeepEnsembleRegressor, (self.n_members,)

    assert pickle.loads(pickle.dumps(StateOfItsOwn(3))).n_members == 3


def test_pickling_passes_over_layers_registered_elsewhere(monkeypatch):
    class Local(keras.layers.Layer):
        """Registered inside a function: a plain pickle cannot refer to it."""

    def network(shape, n_outputs):
        raise NotImplementedError

    Local.__module__ = network.__module__ = "__main__"
    network.__qualname__ = "network"
    monkeypatch.setattr(sys.modules["__main__"], "network", network, raising=False)
    keras.saving.register_keras_serializable("skuq_tests")(Local)
    try:
        loaded = pickle.loads(pickle.dumps(skuq.DeepEnsembleRegressor(network=network)))
    finally:
        del keras.saving.get_custom_objects()["skuq_tests>Local"]
    assert loaded.network is network


@cases(
    "model",
    skuq.DeepEnsembleRegressor(n_members=2, epochs=20),
    skuq.MCDropoutClassifier(epochs=20),
    skuq.NOMURegressor(epochs=30, validation=0.25),
    skuq.AutoDEUQRegressor(space="dense", n_trials=3, epochs=10),
    quick=3,
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_fit_warns_of_models_that_are_worse_than_a_constant(model):
    """Following the advice, a lower learning rate, ends the warning."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=120)
    y = y > rng.normal(size=120) if is_classifier(model) else y
    model = clone(model).set_params(random_state=0)

    def fit(learning_rate):
        rate = {"learning_rate": learning_rate}
        model.set_params(**{"fixed": rate} if hasattr(model, "fixed") else rate)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, y)
        return [w for w in caught if "worse than a constant" in str(w.message)]

    high = {"AutoDEUQRegressor": 0.1, "NOMURegressor": 300.0}.get(type(model).__name__, 10.0)
    (warning,) = fit(high)
    assert warning.filename == __file__ and "lower learning rate" in str(warning.message)
    assert not fit(0.01)


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
