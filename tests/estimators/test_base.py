import contextlib
import copy
import functools
import inspect
import pickle
import sys
import warnings

import cloudpickle
import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.utils.validation import validate_data
from tiers import cases, slow_after

import skuq
from skuq.backend import keras
from skuq.ensembles import GreedySelection
from skuq.estimators import UncertaintyClassifier, UncertaintyRegressor
from skuq.fitted._ensemble import Fitted
from skuq.metrics import get_scorer
from skuq.networks import TabularNetwork
from skuq.predictive import CategoricalMixture, ClassUncertainty, GaussianMixture


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
    assert_array_equal(classifier.predict_proba(X[1:2]), proba[1:2])
    parts = classifier.predict_uncertainty(X)
    assert isinstance(parts, ClassUncertainty)
    assert_array_equal(parts.total, parts.aleatoric + parts.epistemic)
    # Row 1: H(3/4) by each member.
    assert_allclose(parts.aleatoric[1], np.log(4) - 0.75 * np.log(3), rtol=1e-14)


def test_predict_gives_the_spread_of_the_predicted_class(classifier):
    class ThirdIsShaky(TwoMembers):
        def distribution(self, X):
            return CategoricalMixture([[[0.0, 0.2, 0.8]], [[0.0, 0.4, 0.6]], [[0.3, 0.0, 0.7]]])

    labels, std = classifier.predict(X, return_std=True)
    assert_array_equal(labels, ["ant", "ant", "bee", "ant"])
    assert_array_equal(classifier.predict(X), labels)
    all_std = classifier.predict_proba(X, return_std=True)[1]
    assert_array_equal(std, all_std[np.arange(4), [0, 0, 1, 0]])
    _, std = ThirdIsShaky().fit(X[:3], LABELS).predict(X[:1], return_std=True)
    assert_allclose(std, np.std([0.8, 0.6, 0.7]), rtol=1e-14)


def test_predict_log_proba_is_finite(classifier):
    log_proba = classifier.predict_log_proba(X)
    assert_allclose(log_proba[:, :2], np.log(MEAN[:, :2]), rtol=1e-15)
    assert np.isfinite(log_proba).all() and (log_proba[:, 2] < -700).all()
    found = classifier.log_prob(X, ["bee", "ant", "bee", "wasp"])
    assert_array_equal(found, log_proba[np.arange(4), [1, 0, 1, 2]])
    as_objects = np.array(["bee", "ant", "bee", "wasp"], dtype=object)
    assert_array_equal(classifier.log_prob(X, as_objects), found)


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


NETWORKS, FUNCTIONS, IMAGES = (
    skuq.DeepEnsembleRegressor(),
    skuq.NEONRegressor(),
    skuq.NESClassifier(),
)
CALIBRATED = skuq.CalibratedUncertaintyRegressor(Line())
CALIBRATED_CLASSES = skuq.CalibratedUncertaintyClassifier(LogisticRegression())
TEAM = skuq.HQEnsembleSelector([("a", LogisticRegression()), ("b", LogisticRegression())])
CLASSES = skuq.DeepEnsembleClassifier()
FIRST_MASKED = [1, 0, 0, 0]
PICTURES = np.ones((4, 2, 2, 1))


class LazyFrame:
    columns = ["a", "b"]

    def collect(self):
        return X


def mixed(*labels):
    return np.array(labels, dtype=object)


REFUSALS = [
    *(
        (model, X, y, message)
        for model in (NETWORKS, FUNCTIONS, CALIBRATED)
        for y, message in (
            (mixed(1.0, None, 2.0, 3.0), "y contains NaN"),
            (["1", "2", "nan", "3"], "y contains NaN"),
            (np.ma.masked_greater([1, 2, 3, 4], 3), "y contains NaN"),
            (["1", "2", "inf", "3"], "y contains infinity"),
            (np.arange(4).astype("M8[D]"), "dates or times"),
            (pd.Series(pd.date_range("2020", periods=4, tz="UTC")), "dates or times"),
            (sparse.csr_array(np.ones((4, 1))), "Sparse data was passed for y"),
            (["ant", "bee"] * 2, "is a regressor, .* 'ant'.* TabularEnsembleClassifier"),
            (mixed("ant", "bee", 1, 2), "is a regressor, .* 'ant'.* TabularEnsembleClassifier"),
        )
    ),
    *(
        (model, LazyFrame(), np.arange(4.0), r"X is a LazyFrame, .* Give X\.collect\(\)\.")
        for model in (NETWORKS, skuq.OperatorEnsembleRegressor(), CALIBRATED)
    ),
    # Networks would predict one class with probability 1, and have no doubt.
    *(
        (model, X, ["ant"] * 4, r"at least two classes\. Got 1 class: \['ant'\]")
        for model in (CLASSES, skuq.MCDropoutClassifier(), skuq.AutoDEUQClassifier())
    ),
    *(
        (model, np.ma.masked_less(rows, 3), np.arange(4) % 2, "X contains NaN")
        for model, rows in (
            (skuq.DeepEnsembleRegressor(preprocess=None), X),
            (FUNCTIONS, X),
            (IMAGES, PICTURES),
        )
    ),
    *(
        (model, rows, np.ma.array(np.arange(4).astype(dtype), mask=FIRST_MASKED), "contains NaN")
        for model, rows in ((CLASSES, X), (IMAGES, PICTURES), (CALIBRATED_CLASSES, X), (TEAM, X))
        for dtype in (int, str)
    ),
    *(
        (model, X, labels, f"labels of one type. Got {kinds}")
        for model in (CLASSES, CALIBRATED_CLASSES)
        for other, kinds in ((None, "NoneType and str"), (1, "int and str"))
        for labels in (mixed("a", other, "a", other), mixed(other, "a", other, "a"))
    ),
    (CLASSES, X, mixed(*[True, False] * 2), r"bool as objects, .*asarray\(y\).astype\(bool\)"),
    (NETWORKS, X, ["1,5", "2,5", "3", "4"], "'1,5'. Convert texts of numbers"),
]


@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    REFUSALS,
    ids=[f"{type(case[0]).__name__}-{k}" for k, case in enumerate(REFUSALS)],
)
def test_fit_refuses(model, X, y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit(X, y)


@cases(
    ("model", "y", "weight", "message"),
    (NETWORKS, np.ma.array([1.0, 2], mask=[1, 0]), None, "y .* contains NaN"),
    (NETWORKS, [1.0, 2], np.ma.array([1.0, 2], mask=[1, 0]), "weight .* NaN"),
    (NETWORKS, [1.0, 2], [0, 0], "`validation_data` must have a row of positive weight"),
    (CLASSES, np.ma.array([0, 1], mask=[1, 0]), None, r"unknown .* \[nan\]"),
    (CLASSES, [2, 0], None, r"unknown classes: \[2\]"),
    (CLASSES, mixed("a", 1), None, "unknown classes"),
)
def test_fit_refuses_validation_rows(model, y, weight, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 1, 0, 1], validation_data=(X[:2], y, weight))


TAKE_VALIDATION_ROWS = [
    kind
    for _, kind in skuq.all_estimators()
    if "validation_data" in inspect.signature(kind.fit).parameters
]


@pytest.mark.parametrize("kind", TAKE_VALIDATION_ROWS, ids=lambda kind: kind.__name__)
@cases(
    ("given", "message"),
    ({"X_val": X}, "must be given together. Got `X_val` alone"),
    ({"y_val": X[:, 0], "sample_weight_val": X[:, 0]}, "Got `y_val` and `sample_weight_val`"),
    ({"X_val": X, "y_val": X[:, 0], "validation_data": (X, X[:, 0])}, "Give .* either"),
    ({"X_val": X[:, :1], "y_val": [0, 1, 0, 1]}, "X has 1 features"),
)
def test_fit_refuses_validation_rows_in_parts(kind, given, message):
    with pytest.raises(ValueError, match=message):
        kind().fit(X, [0, 1, 0, 1], **given)


def test_fit_takes_validation_rows_in_parts(plan):
    X = np.random.default_rng(0).normal(size=(40, 2))
    y, weight, model = (X > 0)[:, 0], np.arange(1, 11), skuq.DeepEnsembleClassifier(2)
    _, tuples = plan(model, X, y, validation_data=(X[:10], y[:10], weight))
    _, parts = plan(model, X, y, X_val=X[:10], y_val=y[:10], sample_weight_val=weight)
    for name in ("x_valid", "y_valid", "weight_valid"):
        assert_array_equal(getattr(parts, name), getattr(tuples, name))
        assert len(getattr(parts, name)) == 10
    assert_allclose(parts.weight_valid, weight / weight.mean(), rtol=1e-6)


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
def test_fit_warns_of_validation_rows_in_other_units(
    argument, scale, shift, y_shift, message, tiny_space
):
    """A pipeline has transformed X, or y, and not these."""
    rng = np.random.default_rng(0)
    X, V = rng.uniform(size=(60, 3)), rng.uniform(size=(20, 3))
    model = skuq.DeepEnsembleRegressor(1, epochs=1)
    if argument == "shift_validation":
        model = skuq.NESRegressor(2, space=tiny_space, epochs=1)
    rows = {argument: (V * scale + shift, V[:, 0] + y_shift)}
    told = pytest.raises(UserWarning, match=message) if message else contextlib.nullcontext()
    with warnings.catch_warnings(), told:
        warnings.filterwarnings("error", "Most rows of")
        model.fit(X, X[:, 0], **rows)


ROWS = np.arange(4)
LEAKY = [(ROWS, ROWS[:2]), (ROWS[:2], ROWS[2:])]


@cases(
    ("model", "message"),
    *(
        (model, "`min_members` must be at most `n_members`. Got min_members=4 and n_members=3")
        for model in (
            skuq.HyperDeepEnsembleRegressor(3, min_members=4),
            skuq.HyperDeepEnsembleClassifier(3, min_members=4),
            skuq.AutoDEUQRegressor(n_members=3, selection=GreedySelection(min_members=4)),
            skuq.NESClassifier(n_members=3, selection=GreedySelection(min_members=4)),
        )
    ),
    *(
        (model, "Fold 0 .*has 4 and 2 rows, of which 2 are in both")
        for model in (
            skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=LEAKY),
            skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=LEAKY),
            clone(TEAM).set_params(cv=LEAKY),
            skuq.AutoDEUQRegressor(validation=LEAKY),
            skuq.NESClassifier(validation=LEAKY),
            skuq.NOMURegressor(validation=LEAKY),
        )
    ),
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
    classes = clone(CALIBRATED_CLASSES).set_params(cv=2).fit(X, [0, 1, 0, 1])
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
    keras.saving.register_keras_serializable("skuq_tests")(Sine)
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
    skuq.DeepEnsembleRegressor(2),
    skuq.HyperDeepEnsembleRegressor(2),
    skuq.MCDropoutClassifier(),
    skuq.TabularEnsembleRegressor(2, network=TabularNetwork(embedding="none")),
    skuq.NOMURegressor(),
    skuq.NEONRegressor(),
    skuq.OperatorEnsembleRegressor(2),
    ids=lambda model: type(model).__name__,
)
def test_fit_trains_networks_of_other_seeds_by_another_random_state(model, plan):
    def seeds(random_state):
        jobs, _ = plan(clone(model).set_params(random_state=random_state), X, [0, 1, 0, 1])
        return [seed for job in jobs for seed in job.seeds]

    assert seeds(3) == seeds(3) and not set(seeds(3)) & set(seeds(4))


@pytest.mark.parametrize(
    "model",
    slow_after(
        3,
        [
            skuq.DeepEnsembleRegressor(n_members=2, epochs=30),
            skuq.MCDropoutClassifier(epochs=30),
            skuq.NOMURegressor(epochs=60, validation=0.25),
            skuq.DeepEnsembleClassifier(n_members=2, epochs=30),
            skuq.HyperDeepEnsembleRegressor(n_members=2, n_trials=3, epochs=30),
            skuq.AutoDEUQRegressor(space="dense", n_trials=3, epochs=10),
        ],
    ),
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


def test_fit_is_silent_about_constant_and_noisy_targets():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = skuq.DeepEnsembleRegressor(n_members=2, epochs=20, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The model predicts")
        model.fit(X, np.ones(60))
        model.set_params(validation=None).fit(X, np.random.default_rng(1).normal(size=60))


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
