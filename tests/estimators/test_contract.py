"""Contract of every estimator: one small fit each, refusals, and the classes themselves."""

import functools
import inspect
import pickle
import re
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from copy import deepcopy
from itertools import combinations
from unittest.mock import Mock

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from small_models import TinySpace
from tiers import cases, slow_after

import skuq
from skuq.backend import keras
from skuq.exceptions import SearchFailedError
from skuq.files import dumps, loads
from skuq.fitted import _ensemble
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, OperatorNetwork, TabularNetwork
from skuq.predictive import Interval
from skuq.tables import TablePreprocessor
from skuq.training import Training, TrainingRun

numpydoc = pytest.importorskip("numpydoc.docscrape")
SMALL = {"network": MLP((8,)), "epochs": 5, "batch_size": 16, "random_state": 0}
MIXTURE = {"loss": "gaussian-mixture", **SMALL}
SEARCH = {"n_trials": 2, "n_members": 2, "epochs": 5, "space": TinySpace(), "random_state": 0}
OPERATOR = {"training": Training(steps=20), "batch_size": 16, "random_state": 0}
OPERATOR["network"] = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
TABULAR = {"epochs": 5, "random_state": 0}
TABULAR["network"] = TabularNetwork(n_layers=1, width=32, embedding_dim=2)
NOMU = {"artificial": ArtificialInputs(n=10), "epochs": 20, "refit": False, "random_state": 0}
POOL = [("bayes", GaussianNB()), ("line", LogisticRegression())]
MODELS = [
    skuq.AutoDEUQClassifier(**SEARCH),
    skuq.AutoDEUQRegressor(**SEARCH),
    skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2),
    skuq.CalibratedUncertaintyRegressor(skuq.DeepEnsembleRegressor(2, **MIXTURE), cv=2),
    skuq.DeepEnsembleClassifier(2, **SMALL),
    skuq.DeepEnsembleRegressor(2, **SMALL),
    skuq.HQEnsembleSelector(POOL, cv=3),
    skuq.HyperDeepEnsembleClassifier(2, n_trials=3, **SMALL),
    skuq.HyperDeepEnsembleRegressor(2, n_trials=3, loss="mse", **SMALL),
    skuq.MCDropoutClassifier(10, **SMALL),
    skuq.MCDropoutRegressor(10, target_transform="quantile", **SMALL),
    skuq.NEONRegressor(**OPERATOR, prior="epinet", n_draws=500),
    skuq.NESClassifier(**SEARCH, class_weight="balanced"),
    skuq.NESRegressor(**SEARCH, refit=True),
    skuq.NOMURegressor(NOMUNetwork((8,)), **NOMU),
    skuq.OperatorEnsembleRegressor(2, **OPERATOR),
    skuq.TabularEnsembleClassifier(2, **TABULAR),
    skuq.TabularEnsembleRegressor(2, **TABULAR),
    skuq.make_pipeline(StandardScaler(), skuq.DeepEnsembleRegressor(2, **SMALL)),
]
TREE = DecisionTreeRegressor(max_depth=3, random_state=0)  # the same to the bit in any layout
CONDITIONAL = skuq.CalibratedUncertaintyRegressor(TREE, "conditional", cv=2)
# Classes whose twin is quick, and holds the same functions.
SLOW = {
    *(skuq.AutoDEUQRegressor, skuq.HyperDeepEnsembleClassifier, skuq.MCDropoutClassifier),
    *(skuq.NESClassifier, skuq.OperatorEnsembleRegressor, skuq.TabularEnsembleClassifier),
}
# One of each way to train.
WAYS = {
    *(skuq.AutoDEUQClassifier, skuq.DeepEnsembleRegressor, skuq.NEONRegressor),
    *(skuq.NOMURegressor, skuq.TabularEnsembleRegressor),
}
CASES = [
    pytest.param(k, id=type(m).__name__, marks=[pytest.mark.slow] if type(m) in SLOW else [])
    for k, m in enumerate(MODELS)
]
BY_WAYS = sorted(CASES[:-1], key=lambda case: type(MODELS[case.values[0]]) not in WAYS)
CLASSES = [cls for _, cls in skuq.all_estimators()]
OWN = [cls for cls in CLASSES if cls is not skuq.UncertaintyPipeline]  # which fits as scikit-learn
#: Parameters that have another default or another first sentence in some classes: networks of
#: tables, of functions and of the papers have recipes, losses and noise of their own; the papers'
#: searches choose their own way, and do not calibrate; folds are the default where they pay; NOMU's
#: readout is learnt on rows held out; searches have a `refit`, which comes after `max_time`.
DIFFERENT = {
    *("network", "learning_rate", "batch_size", "epochs", "early_stopping_patience", "training"),
    *("loss", "noise_std", "standardize", "target_transform", "estimator", "max_time"),
    *("n_members", "n_trials", "search", "validation", "refit", "calibrate"),
}
rng = np.random.default_rng(0)
X = pd.DataFrame(rng.uniform(-1, 1, (60, 3)), columns=["a", "b", "c"])
Y = X["a"] + 0.3 * np.sin(3 * X["b"]) + 0.2 * rng.normal(size=60)
NEW = pd.DataFrame(rng.uniform(-1, 1, (12, 3)), columns=X.columns)
LEVELS = [0.01, 0.2, 0.5, 0.8, 0.99]
N_ABSENT = 5  # rows without weight
pytestmark = [
    pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning"),
    pytest.mark.filterwarnings("ignore:The model predicts its validation rows worse"),
]
ARRAYS = {"query_points": np.array([[0.5]]), "noise_std": np.array([0.3])}


def targets(model):
    names = np.array(["low", "middle", "high"])
    return names[np.digitize(Y, [-0.3, 0.3])] if is_classifier(model) else Y.to_numpy()


@pytest.fixture(scope="module", autouse=True)
def fits_share_programs():
    """Fits that differ in the number of rows find each other's compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.training._job._LEAST_ROWS", 256)
        yield


@functools.cache
def fit(k):
    model = CONDITIONAL if k is None else MODELS[k]
    return clone(model).fit(X, targets(model))


@pytest.fixture(params=CASES)
def model(request):
    return fit(request.param)


@pytest.fixture(params=CASES[:-1])
def own(request):
    """A fitted estimator that may be fitted again; the pipeline's `fit` is scikit-learn's."""
    return pickle.loads(pickle.dumps(fit(request.param)))


@pytest.fixture(params=slow_after(len(WAYS), BY_WAYS))
def trained(request):
    """The same for what compiles other programs; quick is one of each way to train."""
    return pickle.loads(pickle.dumps(fit(request.param)))


def predictions(model, rows=NEW):
    draws = model.sample_y(rows, np.uint8(3), random_state=0)
    if is_classifier(model):
        return [*model.predict_uncertainty(rows), model.predict_proba(rows), draws]
    return [*model.predict_uncertainty(rows), model.predict_quantiles(rows, LEVELS), draws]


def identities(named):
    # A search may remember the folder of its trials.
    return {name: id(value) for name, value in named.items() if name != "_folder"}


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


class Recorder:
    def __init__(self):
        self.events, self.fitted = [], []

    def setup(self, estimator, context):
        self.events.append(("setup", context.task_name))

    def teardown(self, estimator, context):
        self.events.append(("teardown", context.task_name))

    def on_fit_task_begin(self, estimator, context):
        self.events.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.events.append(("end", context.task_name, context.task_id))
        if fitted_estimator is not None:
            self.fitted.append((fitted_estimator, X, y))


def unit_of(model):
    """Return the unit that callbacks and progress bars of a fit count, and its number."""
    if isinstance(model, skuq.HQEnsembleSelector):
        return "model", len(POOL)
    if hasattr(model, "estimator"):
        return "fit", 1 + model.cv
    if hasattr(model, "search"):
        return "trial", None if model.refit else 2
    return "epoch", None


def assert_keras_says_the_same(model, rows=NEW):
    """Return the Keras model of an estimator, which predicts what it does."""
    if not hasattr(model, "to_keras"):
        return None
    if isinstance(model, skuq.MCDropoutRegressor | skuq.MCDropoutClassifier):
        with pytest.raises(ValueError, match="to_keras.*MC dropout averages passes with differ"):
            model.to_keras()
        return None
    network, expected = model.to_keras(), model.predict_uncertainty(rows)._asdict()
    if is_classifier(model):
        expected["proba"] = model.predict_proba(rows)
    # Keras' own `predict` would round the inputs to float32.
    served = network.predict_on_batch(np.asarray(rows, float))
    assert served.keys() == expected.keys()
    for name, values in expected.items():
        # A float32's digits of the largest: small epistemic parts are differences.
        largest = max(np.abs(values).max(), 1e-2)
        assert served[name].shape == values.shape
        assert_allclose(served[name], values, atol=2e-5 * largest, rtol=1e-4)
    assert network.to_json()  # it can be saved
    return network


def test_uncertainty_is_finite_and_never_zero_and_that_of_the_model_of_keras(model):
    assert_keras_says_the_same(model)
    *parts, _ = predictions(model)
    assert all(np.isfinite(part).all() for part in parts)
    if is_classifier(model):
        total, aleatoric, epistemic, proba = parts
        assert (proba >= 0).all() and (total > 0).all() and (epistemic >= 0).all()
        assert_allclose(proba.sum(axis=1), 1)
        assert_allclose(total, aleatoric + epistemic)
        return
    mean, aleatoric, epistemic, total, quantiles = parts
    assert mean.shape == (len(NEW),) and (total > 0).all() and (epistemic >= 0).all()
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    assert_allclose(model.predict(NEW, return_std=True), [mean, total], rtol=1e-12)
    assert (np.diff(quantiles, axis=1) > 0).all()


def test_labels_have_the_spread_of_their_class_and_intervals_are_central_quantiles(model):
    if is_classifier(model):
        proba, spread = model.predict_proba(NEW, return_std=True)
        labels, std = model.predict(NEW, return_std=True)
        best = np.arange(len(NEW)), proba.argmax(axis=1)
        assert_array_equal(labels, model.classes_[best[1]])
        assert_array_equal(std, spread[best])
        assert_allclose(model.predict_log_proba(NEW), np.log(proba))
        assert_allclose(model.log_prob(NEW, labels.astype(object)), np.log(proba[best]))
        with pytest.raises(ValueError, match=r"not seen in fit: \['fly', 'moth'\]"):
            model.log_prob(NEW[:4], ["high", "moth", "fly", "fly"])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.log_prob(NEW, labels[:3])
        return
    quantiles = model.predict_quantiles(NEW, LEVELS)
    interval, several = (model.predict_interval(NEW, coverage) for coverage in (0.6, [0.9, 0.6]))
    assert type(interval) is type(model.predict_distribution(NEW).interval()) is Interval
    assert_array_equal(interval, np.moveaxis(quantiles[:, [1, 3]], 1, 0))
    assert several.lower.shape == (len(NEW), 2)
    assert np.shape(model.predict_interval(NEW, [0.9])) == (2, len(NEW), 1)
    assert_array_equal([end[:, 1] for end in several], interval)
    for wrong in ([0.5, 1.0], [], [[0.5]], 0, [np.nan], 1 - 2**-53):
        with pytest.raises(ValueError, match=r"`coverage` must lie strictly in \(0, 1\)"):
            model.predict_interval(NEW, wrong)
    with pytest.raises(TypeError, match="Predictions of .* take no 'alpha'"):
        model.predict_interval(NEW, alpha=0.1)


def test_draws_have_the_moments(model):
    draws = model.sample_y(NEW, 4000, random_state=0)
    if is_classifier(model):
        share, n = model.predict_proba(NEW)[:, 0], draws.shape[1]
        # Five standard errors of a share in 4000 draws: 0.04.
        assert_allclose((draws == "high").sum(axis=1) / n, share, atol=0.04)
        return
    mean, std = model.predict(NEW, return_std=True)
    # Five standard errors of means, and of standard deviations of distributions with some tails.
    assert_allclose(draws.mean(axis=1), mean, atol=0.08 * std.max())
    assert_allclose(draws.std(axis=1), std, rtol=0.12)
    if hasattr(model, "posterior_fn"):
        functions = model.posterior_fn(32, random_state=0)(NEW.to_numpy())
        spread = model.predict_uncertainty(NEW).epistemic
        # NEON's are some of its draws; those of the others have these moments, but for weights of
        # members that are no fractions of 32.
        tolerance = spread.max() if isinstance(model, skuq.NEONRegressor) else 1e-9
        if isinstance(model, skuq.TabularEnsembleRegressor):
            tolerance = 0.1 * spread.max()
        assert_allclose(functions.mean(axis=0), mean, atol=tolerance)
        assert_allclose(functions.std(axis=0), spread, atol=tolerance)


def test_copies_predict_the_same_and_clones_are_not_fitted(model, tmp_path):
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    read = map(loads, map(dumps, (model, mapped)))
    for copy in (pickle.loads(pickle.dumps(model)), mapped, *read):
        assert_same(predictions(copy), predictions(model))
    copy = clone(model)
    assert repr(copy.get_params()) == repr(model.get_params())
    parts = {"fitted_", "preprocessor_", "members_", "weights_", "estimator_", "scale_", "c_"}
    for name in parts & set(dir(type(model))):
        with pytest.raises(NotFittedError, match=f"This {type(model).__name__} instance is not fi"):
            getattr(copy, name)
    with pytest.raises(NotFittedError):
        copy.predict(NEW)


def test_rows_in_blocks_are_predicted_as_together(model, monkeypatch):
    """Blocks bound the memory of predictions."""
    n_rows = 60 if isinstance(model, skuq.NEONRegressor) else 300
    rows = pd.DataFrame(np.random.default_rng(1).normal(size=(n_rows, 3)), columns=X.columns)
    expected, sizes, summarise = predictions(model, rows)[:-1], [], _ensemble.Fitted.summarise

    def recorded(self, X, summary, *args, **query):
        def seen(distribution):
            sizes.append(len(distribution.mean) * self.n_numbers(**query))
            return summary(distribution)

        return summarise(self, X, seen, *args, **query)

    monkeypatch.setattr(_ensemble.Fitted, "summarise", recorded)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**10)
    for found, whole in zip(predictions(model, rows)[:-1], expected, strict=True):
        assert_allclose(found, whole, rtol=1e-9, atol=1e-12)
    assert len(sizes) > 1 and max(sizes) <= 2**10


def test_memory_does_not_grow_with_rows_and_draws_in_blocks_share_their_function(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(2_500, 2))
    model = skuq.MCDropoutRegressor(100, **{**SMALL, "epochs": 1})
    model.fit(rows[:40], rows[:40, 0]).predict(rows[:40])
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**14)
    for method in (model.predict, model.predict_uncertainty, model.sample_y):
        tracemalloc.start()
        method(rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6, method.__name__  # at once they would take 10 MB and more
    model = skuq.DeepEnsembleRegressor(3, loss="mse", noise_std=1e-9, epochs=2, random_state=0)
    whole = model.fit(rows[:60], rows[:60, 0]).sample_y(rows[:200], 5, random_state=0)
    monkeypatch.setattr(_ensemble, "BLOCK_NUMBERS", 2**9)
    assert_allclose(model.sample_y(rows[:200], 5, random_state=0), whole, atol=1e-7)


def test_a_failing_fit_leaves_no_trace(own, monkeypatch):
    model, y, recorder = own, targets(own), Recorder()
    if hasattr(model, "set_callbacks"):
        model.set_callbacks(recorder)
    before, expected = vars(model).copy(), predictions(model)
    with pytest.raises(ValueError):
        model.fit(X, [np.nan] * len(X))
    for kind, method in ((TrainingRun, "advance"), (GaussianNB, "fit")):
        monkeypatch.setattr(kind, method, Mock(side_effect=MemoryError))
    with pytest.raises((MemoryError, SearchFailedError)):
        model.fit(X.rename(columns={"a": "z"}), y)
    assert recorder.events[-1:] in ([], [("teardown", "fit")]) and recorder.fitted == []
    assert identities(vars(model)) == identities(before)
    assert_same(predictions(model), expected)


def test_a_new_fit_replaces_all_results_and_no_parameter(own, capsys):
    model, expected, recorder = own.set_params(verbose=1), predictions(own), Recorder()
    if hasattr(model, "set_callbacks"):  # in newer versions of scikit-learn
        assert model.set_callbacks(recorder) is model
    before = model.get_params(deep=False)
    model.stale_ = 1
    rows, y = pd.concat([X, 100 * X[:N_ABSENT]]), np.r_[targets(model), targets(model)[:N_ABSENT]]
    assert model.fit(rows, y, np.repeat([1.0, 0.0], [len(X), N_ABSENT])) is model
    assert identities(model.get_params(deep=False)) == identities(before)
    assert not hasattr(model, "stale_")
    # GaussianNB's variances count rows of no weight a bit.
    rtol = 0 if "random_state" in before else 1e-3
    for found, whole in zip(predictions(model)[:-1], expected[:-1], strict=True):
        assert_allclose(found, whole, rtol=rtol)
    assert re.search(r"(\d+)/\1\b", capsys.readouterr().err)
    if recorder.events:
        begun, *steps, ended, done = recorder.events[1:]
        assert [recorder.events[0], begun] == [("setup", "fit"), ("begin", "fit", 0)]
        assert [ended, done] == [("end", "fit", 0), ("teardown", "fit")]
        unit, n = unit_of(model)
        n = n or len(steps) // 2
        assert steps == [(event, unit, k) for k in range(n) for event in ("begin", "end")] != []
        ((fitted, own_rows, own_y),) = recorder.fitted
        assert own_rows is rows and own_y is y
        assert_same(predictions(fitted), predictions(model))
        vars(model)["_parent_callback_ctx"] = object()  # while scikit-learn's search fits it
        assert not {"_skl_callbacks", "_parent_callback_ctx"} & vars(loads(dumps(model))).keys()


def test_another_random_state_trains_other_networks(own):
    if "random_state" in own.get_params(deep=False):
        before = own.predict_uncertainty(NEW).total
        other = own.set_params(random_state=1).fit(X, targets(own)).predict_uncertainty(NEW).total
        assert not np.isclose(other, before).all()


def test_frames_are_what_the_preprocessor_makes_of_them(trained):
    if "preprocess" not in trained.get_params(deep=False):
        return
    town = np.resize(["Rome", "Oslo", None], len(X))
    frame = X.assign(town=town, b=X["b"].where(X["a"] < 0.7), rooms=np.arange(len(X)) % 4)
    absent = frame[:N_ABSENT].assign(town="Lima", b=np.inf)  # Rows without weight teach it nothing.
    weight = np.repeat([1.0, 0.0], [len(X), N_ABSENT])
    y, numbers = targets(trained), TablePreprocessor(max_categories=50).fit_transform(frame)
    trained.fit(pd.concat([frame, absent]), np.r_[y, y[:N_ABSENT]], weight)
    assert "town_Lima" not in trained.preprocessor_.get_feature_names_out()
    by_hand = clone(trained).set_params(preprocess=None).fit(numbers, y)
    of_numbers = clone(trained).fit(numbers, y)  # finite numbers are not touched
    assert by_hand.preprocessor_ is None and of_numbers.preprocessor_.is_identity
    found = predictions(trained, frame)
    for other in (by_hand, of_numbers):
        assert_same(predictions(other, numbers), found)


def test_validation_rows_in_parts_are_those_in_a_tuple(trained):
    if "validation_data" in inspect.signature(trained.fit).parameters:
        rows, y, weight = X[:20], targets(trained)[:20], np.linspace(1, 2, 20)
        train = X[20:], targets(trained)[20:]
        found = predictions(trained.fit(*train, validation_data=(rows, y, weight)))
        trained.fit(*train, X_val=rows, y_val=y, sample_weight_val=weight)
        assert_same(predictions(trained), found)


def test_predictions_have_the_shape_of_y(trained):
    of_functions = skuq.NEONRegressor | skuq.OperatorEnsembleRegressor
    if is_classifier(trained) or isinstance(trained, of_functions):
        return
    for n_outputs in (1, 2):
        both = np.column_stack([Y, -50 * Y])[:, :n_outputs]
        *parts, quantiles, draws = predictions(trained.fit(X, both))
        assert_keras_says_the_same(trained)
        assert_allclose(parts[3].mean(axis=0) / parts[3][:, 0].mean(), [1, 50][:n_outputs], rtol=1)
        assert all(part.shape == (len(NEW), n_outputs) for part in parts)
        assert quantiles.shape == (len(NEW), len(LEVELS), n_outputs)
        assert draws.shape == (len(NEW), n_outputs, 3)
        assert np.shape(trained.predict_interval(NEW)) == (2, len(NEW), n_outputs)
        assert np.shape(trained.predict_interval(NEW, [0.9] * 3)) == (2, len(NEW), 3, n_outputs)
        assert trained.log_prob(X, both).shape == (len(X),)
    # Errors of the outputs are opposite: so are the noise of draws, and the joint density.
    if isinstance(trained, skuq.TabularEnsembleRegressor):  # 6 rows are too few to see it
        trained.set_params(validation=0.3).fit(X, both)
    predicted, draws = trained.predict_distribution(NEW), trained.sample_y(NEW, 400, random_state=0)
    independent, mean, std = predicted.with_correlation(None), predicted.mean, predicted.std
    assert_array_equal(independent.quantile(LEVELS), predicted.quantile(LEVELS))
    noise = np.moveaxis((draws - mean[..., None]) / std[..., None], 1, 0)
    assert np.corrcoef(noise.reshape(2, -1))[0, 1] < -0.5
    for drawn, sign in ((predicted, 1), (independent, -1)):  # each is likeliest where it is drawn
        y = np.moveaxis(drawn.sample(100, rng=0), -1, 1)
        assert sign * (predicted.log_prob(y) - independent.log_prob(y)).mean() > 0.1
    singles = getattr(trained, "member_estimators", list)()
    assert all(m.predict_distribution(NEW).correlation is not None for _, m in singles)
    for again in (loads(dumps(trained)), pickle.loads(pickle.dumps(trained))):
        assert_array_equal(again.sample_y(NEW, 400, random_state=0), draws)


@cases(("loss", "n_members", "n_outputs"), ("mse", 1, 2), ("gaussian-mixture", 3, 3))
def test_the_model_of_keras_has_every_head(loss, n_members, n_outputs):
    """Keras takes a column of three offsets for a bias where another axis has three entries."""
    y = X.to_numpy() * [1, 50, 0.1] + [0, 1e4, 5]
    model = skuq.DeepEnsembleRegressor(n_members, loss=loss, **SMALL).fit(X, y[:, :n_outputs])
    assert_keras_says_the_same(model)
    assert (model.predict_uncertainty(NEW).epistemic == 0).all() == (n_members == 1)


def test_the_model_of_keras_is_a_copy_with_the_digits_of_large_offsets_and_transforms_no_y():
    rows = X + [1e7, 1.7e9, 0]
    rows["constant"] = 7.0
    model = skuq.TabularEnsembleRegressor(2, loss="crps", **TABULAR).fit(rows, Y + 1e8)
    rows["constant"] = 8.0  # says nothing
    copied, before = assert_keras_says_the_same(model, rows), model.predict(rows)
    assert not copied.trainable_variables
    for variable in copied.variables:
        variable.assign(variable * 0)
    assert_array_equal(model.predict(rows), before)
    model = skuq.DeepEnsembleRegressor(2, **SMALL, target_transform="yeo-johnson").fit(X, Y)
    model.set_params(target_transform="standard")  # what was fitted counts
    with pytest.raises(ValueError, match="to_keras.*yeo-johnson.*skuq.save"):
        model.to_keras()


def test_the_model_of_keras_takes_images():
    class Convolution(TinySpace):
        takes_images = True

        def build(self, configuration, input_shape, n_outputs):
            x = inputs = keras.Input(input_shape, name="input")
            x = keras.layers.Conv2D(3, 3, activation="relu", name="convolution")(x)
            x = keras.layers.BatchNormalization(name="normalization")(x)
            x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
            return keras.Model(inputs, keras.layers.Dense(n_outputs, name="out")(x), name="net")

    images, y = np.random.default_rng(0).normal(5, 3, size=(60, 6, 5, 2)), np.arange(60) % 3
    model = skuq.NESClassifier(**{**SEARCH, "space": Convolution()}).fit(images, y)
    assert assert_keras_says_the_same(model, images).input_shape == (None, 6, 5, 2)
    # One mean and scale a channel, over all pixels of the rows trained on.
    trained = np.setdiff1d(np.arange(60), model.catalog_.held_out.rows)
    assert_allclose(model.fitted_.inputs.scaling.mean_, images[trained].mean(axis=(0, 1, 2)))
    with pytest.raises(ValueError, match=r"images of shape \(5, 6, 2\)"):
        model.predict(images.transpose(0, 2, 1, 3))
    with pytest.raises(ValueError, match="expecting 60 features"):
        model.predict(images.reshape(60, -1)[:, :20])


# Run in a process that knows nothing.
ELSEWHERE = """
import sys
import keras, numpy as np, tensorflow as tf
folder = sys.argv[1]
X = np.load(folder + "/X.npy")
exported = tf.saved_model.load(folder + "/exported")
served = exported.serve(tf.constant(X))["total"]
loaded = keras.models.load_model(folder + "/model.keras").predict_on_batch(X)["total"]
assert "skuq" not in sys.modules
from skuq.networks import NumericEmbedding  # as the documentation has it
tabular = keras.models.load_model(folder + "/tabular.keras").predict_on_batch(X)["total"]
np.savez(folder + "/out.npz", served=served, loaded=loaded, tabular=tabular)
"""


@pytest.mark.slow
def test_the_model_of_keras_is_saved_in_files_that_need_no_skuq(tmp_path):
    """Built-in layers and operations only, but for networks for tables."""
    model = skuq.DeepEnsembleRegressor(2, **SMALL).fit(X, Y)
    tabular = skuq.TabularEnsembleRegressor(2, **TABULAR).fit(X, Y)
    model.to_keras().save(tmp_path / "model.keras")
    model.to_keras().export(tmp_path / "exported", verbose=False)
    tabular.to_keras().save(tmp_path / "tabular.keras")
    np.save(tmp_path / "X.npy", X)
    subprocess.run([sys.executable, "-c", ELSEWHERE, tmp_path], check=True, timeout=300)
    outputs = np.load(tmp_path / "out.npz")
    for name, of in (("served", model), ("loaded", model), ("tabular", tabular)):
        assert_allclose(outputs[name], of.predict_uncertainty(X).total, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The ensemble has")
def test_a_constant_is_predicted_as_one(own):
    if is_classifier(own):
        return
    y = np.full(len(X), 7.0)
    parts = own.fit(X, y).predict_uncertainty(9 * NEW)
    assert_allclose(parts.mean, 7, rtol=1e-5)
    assert (parts.total > 0).all() and (parts.total < 1e-4).all()
    low, high = own.predict_interval(NEW)
    assert (low <= high).all() and np.ptp([low, high]) < 1e-4
    assert np.isfinite(own.log_prob(X, y)).all()


@pytest.mark.filterwarnings("ignore:The ensemble has")
@pytest.mark.parametrize(("unit", "zero"), [(1e-9, 0.0), (1e9, -1e10)])
def test_units_do_not_matter(own, unit, zero):
    if isinstance(own, skuq.HQEnsembleSelector):
        return  # its models have penalties
    if is_classifier(own):
        expected = own.predict_proba(NEW)
        found = own.fit(X / unit, targets(own)).predict_proba(NEW / unit)
        assert_allclose(found, expected, atol=1e-6)
        return
    mean, std = own.predict(NEW, return_std=True)
    other = own.fit(X / unit, unit * targets(own) + zero).predict(NEW / unit, return_std=True)
    assert_allclose((other[0] - zero) / unit, mean, atol=1e-6 * std.mean())
    assert_allclose(other[1] / unit, std, rtol=1e-6)


# ------------------------------------------------------------------ forms, settings and arrays


def swapped(values):
    values = np.asarray(values)
    return values.astype(values.dtype.newbyteorder())


def read_only(values):
    values = np.array(values, order="F")
    values.flags.writeable = False
    return values


def framed(columns, index, convert=lambda table: table):
    """Make frames with these names of columns, and frames and series with this index of rows."""

    def frame(values):
        table, kind = np.asarray(values), pd.DataFrame if np.ndim(values) == 2 else pd.Series
        names = {"columns": columns} if kind is pd.DataFrame else {}
        rows = index.take(np.arange(len(table)) % len(index))
        return convert(kind(table, rows, **names))

    return frame


DAYS = pd.date_range("2020", periods=7)
LEVELS_OF_NAMES = pd.MultiIndex.from_tuples([("u", "a"), ("u", "b"), ("v", "a")])
#: What scikit-learn takes for X, y and weights.
FORMS = {
    "bytes in another order": swapped,
    "read-only, column by column": read_only,
    "every second row": lambda values: np.repeat(np.asarray(values), 2, axis=0)[::2],
    "masked": np.ma.array,
    "lists": lambda values: np.asarray(values).tolist(),
    "named by dates": framed(DAYS[:3], pd.RangeIndex(9)),
    "named by numbers, nullable": framed([0.5, 1, 2], DAYS, lambda f: f.convert_dtypes()),
    "named by pairs": framed(LEVELS_OF_NAMES, LEVELS_OF_NAMES),
    "objects": framed(pd.CategoricalIndex([*"abc"]), pd.Index([*"xyz"]), lambda f: f.astype("O")),
}
SETTINGS = {"transform_output": "pandas", "enable_metadata_routing": True, "assume_finite": True}


@pytest.fixture(params=[*CASES[:-1], pytest.param(None, id="conditional")])
def any_fitted(request):
    return pickle.loads(pickle.dumps(fit(request.param)))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_taken(any_fitted, form):
    expected, form = predictions(any_fitted), FORMS[form]
    y = targets(any_fitted)
    found = any_fitted.fit(form(X), form(y), form(np.ones(len(X))))
    assert_same(predictions(found, form(NEW)), expected)
    assert found.score(form(X), form(y)) == found.score(form(X), y)
    assert_array_equal(found.log_prob(form(X), form(y)), found.log_prob(form(X), y))


def test_settings_of_scikit_learn_and_numpy_change_nothing(any_fitted):
    far = pd.concat([NEW, 1e6 * NEW])
    expected, y = predictions(any_fitted, far), targets(any_fitted)
    expected.append(any_fitted.log_prob(X, y))
    numbers = {k: v for k, v in any_fitted.get_params(deep=False).items() if type(v) is int}
    any_fitted.set_params(**{name: np.min_scalar_type(n).type(n) for name, n in numbers.items()})
    with config_context(**SETTINGS), np.errstate(all="raise"):
        found = any_fitted.fit(X, y)
        assert_same([*predictions(found, far), found.log_prob(X, y)], expected)
        distribution = found.predict_distribution(far)
        if not is_classifier(found):
            assert (distribution.log_prob(1e6) < -10).all()
            assert np.isfinite(distribution.cdf(0)).all()


def arrays_of(value, seen):
    """List the arrays of an object: attributes of results, in collections and skuq's objects."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that no other object has its id
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays_of(part, seen)
    elif type(value).__module__.startswith("skuq."):
        ends = "_" if hasattr(value, "get_params") else ""
        for name in dir(value):
            if name[0] != "_" and name.endswith(ends) and not callable(getattr(value, name, len)):
                yield from arrays_of(getattr(value, name), seen)


def spoil(arrays):
    """Work on arrays in place, where they can be changed; return how many there are."""
    arrays = list(arrays)
    for array in arrays:
        if array.flags.writeable:
            array[...] = array[::-1].copy() if array.dtype.kind not in "fiu" else array + 1
    return len(arrays)


def test_arrays_that_are_handed_out_change_no_prediction(any_fitted):
    loaded = loads(dumps(any_fitted), trusted=["sklearn.tree._tree.Tree"])
    for model in (any_fitted, deepcopy(any_fitted), loaded):
        expected, distribution = predictions(model), model.predict_distribution(NEW)
        mean, std, draws = distribution.mean, distribution.std, distribution.sample(2, 0)
        assert spoil(arrays_of(model, {})) > 1
        assert_same(predictions(model), expected)
        # What is computed is the user's own, and fields of distributions stay as they are.
        results = [*predictions(model), model.predict(NEW), mean.copy(), std.copy()]
        assert all(result.flags.writeable for result in results)
        spoil([*arrays_of(distribution, {}), *distribution.uncertainty(), mean, std])
        found = distribution.mean, distribution.std, distribution.sample(2, 0)
        assert_same(found, [*results[-2:], draws])


def test_arrays_that_were_given_may_be_changed_later(trained):
    rows, y, weight = X.to_numpy(copy=True), targets(trained).copy(), np.ones(len(X))
    given, more = [rows, y, weight], {}
    if "validation_data" in inspect.signature(trained.fit).parameters:
        more = {"validation_data": (rows[:20].copy(), y[:20].copy(), weight[:20].copy())}
        given += more["validation_data"]
    for name in ARRAYS.keys() & trained.get_params(deep=False).keys():
        if name == "query_points" or getattr(trained, "loss", "") == "mse":
            given.append(ARRAYS[name].copy())
            trained.set_params(**{name: given[-1]})
    expected = predictions(trained.fit(rows, y, weight, **more), NEW.to_numpy())
    assert all(array.flags.writeable for array in given) and spoil(given) == len(given)
    assert_same(predictions(trained, NEW.to_numpy()), expected)


# ------------------------------------------------------------------ refusals

#: A value that no class takes, for each parameter that any class checks.
WRONG = {
    **dict.fromkeys(["batch_size", "early_stopping_patience", "epochs", "learning_rate"], 0),
    **dict.fromkeys(["max_time", "min_members", "n_members", "n_passes", "n_trials"], 0),
    **dict.fromkeys(["noise_std", "prior_scale", "random_state", "trial_timeout"], -1),
    **dict.fromkeys(["cv", "max_team_size", "n_draws"], 1),
    **dict.fromkeys(["beta", "dropout", "subsample", "validation"], 1.0),
    **dict.fromkeys(["catalog_dir", "dropout_range", "image_shape", "l2_range", "query_points"], 3),
    **dict.fromkeys(["artificial", "band", "batch_over", "bootstrap", "calibrate", "choose"], "x"),
    **dict.fromkeys(["class_weight", "diversity", "estimator", "filters", "fixed", "loss"], "x"),
    **dict.fromkeys(["method", "metric", "n_jobs", "network", "output_map", "preprocess"], "x"),
    **dict.fromkeys(["empty_sizes", "pretrained", "prior", "readout", "refine", "refit"], "x"),
    **dict.fromkeys(["search", "selection", "space", "standardize", "target_transform"], "x"),
    **dict.fromkeys(["training", "verbose", "voting", "warm_start", "weights"], "x"),
}


@pytest.mark.parametrize("cls", OWN, ids=lambda cls: cls.__name__)
def test_fit_refuses_wrong_parameters(cls):
    (small,) = (model for model in MODELS if type(model) is cls)
    for name in inspect.signature(cls).parameters:
        if name == "estimators":
            continue  # of the selector, which has a table of its own
        with pytest.raises(ValueError, match=f"The '{name}' parameter of {cls.__name__} must be"):
            clone(small).set_params(**{name: WRONG[name]}).fit(X, targets(small))


class LazyFrame:
    columns = ["a", "b", "c"]

    def collect(self):
        return X


def mixed(*labels):
    return np.array(labels, dtype=object)


FIRST_MASKED = [1, 0, 0, 0]
MASKED, COUNT = np.ma.array([0, 1, 0, 1], mask=FIRST_MASKED), np.arange(4) % 2
NAMED = r"y of a regressor must .* 'ant'.* TabularEnsembleClassifier"
WRONG_NUMBERS = [
    (mixed(1.0, None, 2.0, 3.0), "y contains NaN"),
    (["1", "2", "nan", "3"], "y contains NaN"),
    (np.ma.masked_greater([1, 2, 3, 4], 3), "y contains NaN"),
    (["1", "2", "inf", "3"], "y contains infinity"),
    (["1,5", "2,5", "3", "4"], "'1,5'. Convert texts of numbers"),
    (np.arange(4).astype("M8[D]"), "dates or times"),
    (pd.Series(pd.date_range("2020", periods=4, tz="UTC")), "dates or times"),
    (pd.DataFrame({"day": DAYS[:4], "next": DAYS[1:5]}), "dates or times"),
    (list(DAYS[:4].date), "must hold numbers: .*, and dates"),
    (sparse.csr_array(np.ones((4, 1))), "Sparse data was passed for y"),
    (["ant", "bee"] * 2, NAMED),
    (mixed("ant", "bee", 1, 2), NAMED),
]
WRONG_LABELS = [
    # Networks would predict one class with probability 1, and have no doubt.
    (["ant"] * 4, r"at least two classes.* Got 1 class: \['ant'\]"),
    (MASKED, "contains NaN"),
    (np.ma.array(COUNT.astype(str), mask=FIRST_MASKED), "contains NaN"),
    (mixed("a", None, "a", None), "labels of one type. Got NoneType and str"),
    (mixed(1, "a", 1, "a"), "labels of one type. Got int and str"),
    (mixed(*[True, False] * 2), r"bool as objects, .*asarray\(y\).astype\(bool\)"),
]
WRONG_WEIGHTS = [
    (-np.ones(4), "Negative values"),
    (np.zeros(4), "at least one non-zero|All are 0"),
    (np.ones(3), "sample_weight.shape"),
    (MASKED, "sample_weight contains NaN"),
]
ROWS = X[:4]
WRONG_VALIDATION_ROWS = [
    ({"X_val": ROWS}, "must be given together. Got `X_val` alone"),
    ({"y_val": COUNT, "sample_weight_val": COUNT}, "Got `y_val` and `sample_weight_val`"),
    ({"X_val": ROWS, "y_val": COUNT, "validation_data": (ROWS, COUNT)}, "Give .* either"),
    ({"X_val": ROWS[["a"]], "y_val": COUNT}, "feature names"),
    ({"validation_data": (ROWS, COUNT, np.zeros(4))}, "must have a row of positive weight"),
    ({"validation_data": (ROWS, COUNT, MASKED)}, "weight .* NaN"),
    ({"validation_data": (ROWS, MASKED)}, r"y .* contains NaN|unknown .* \[nan\]"),
    ({"validation_data": (ROWS, DAYS[:4])}, "y of validation .* dates|unknown classes"),
]


@pytest.mark.parametrize("model", MODELS[:-1], ids=lambda model: type(model).__name__)
def test_fit_refuses_wrong_data(model):
    for y, message in WRONG_LABELS if is_classifier(model) else WRONG_NUMBERS:
        with pytest.raises((TypeError, ValueError), match=message):
            model.fit(ROWS, y)
    with pytest.raises(TypeError, match="missing .* '[yY]'"):
        model.fit(ROWS)
    with pytest.raises(TypeError, match=r"X is a LazyFrame, .* Give X\.collect\(\)\."):
        model.fit(LazyFrame(), COUNT)
    for weight, message in WRONG_WEIGHTS:
        with pytest.raises(ValueError, match=message):
            model.fit(ROWS, COUNT, weight)
    if "validation_data" in inspect.signature(model.fit).parameters:
        for given, message in WRONG_VALIDATION_ROWS:
            with pytest.raises(ValueError, match=message):
                model.fit(ROWS, COUNT, **given)
        if is_classifier(model):
            with pytest.raises(ValueError, match=r"unknown classes: \[2\]"):
                model.fit(ROWS, COUNT, validation_data=(ROWS, 2 * COUNT))
    assert not hasattr(model, "n_features_in_")


# ------------------------------------------------------------------ classes


def entries(cls):
    """Documented parameters and attributes: ``{section: {name: (type, description)}}``."""
    document = numpydoc.NumpyDocString(inspect.getdoc(cls))
    return {
        section: {
            name.strip(): (entry.type, " ".join(entry.desc).strip())
            for entry in document[section]
            for name in entry.name.split(",")
        }
        for section in ("Parameters", "Attributes")
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_parameter_is_documented(cls):
    documented = entries(cls)
    assert list(documented["Parameters"]) == list(inspect.signature(cls).parameters)
    assert all(text for section in documented.values() for _, text in section.values())


@pytest.mark.parametrize("cls", OWN, ids=lambda cls: cls.__name__)
def test_a_class_shows_its_signature(cls):
    names = list(inspect.signature(cls).parameters)
    assert list(cls.__annotations__) == names and len(names) <= 20
    assert set(cls._parameter_constraints) == set(names)
    above = [base for base in cls.__mro__[1:] if base.__module__.startswith("skuq.estimators")]
    assert len(above) <= 3 and not any("__dataclass_fields__" in vars(base) for base in above)
    assert {"fit", "_fit"} <= {name for base in (cls, *above) for name in vars(base)}


def test_every_estimator_is_here_with_one_order_default_and_sentence_of_parameters():
    assert {type(model) for model in MODELS} == set(CLASSES)
    pairs = set()
    for cls in CLASSES:
        parameters = inspect.signature(cls).parameters.values()
        pairs |= set(combinations([p.name for p in parameters if p.kind == p.KEYWORD_ONLY], 2))
    assert sorted(pair for pair in pairs if pair[::-1] in pairs) == []
    defaults, sentences = defaultdict(set), defaultdict(set)
    for cls in OWN:
        parameters = inspect.signature(cls).parameters
        for name, (_, text) in entries(cls)["Parameters"].items():
            defaults[name].add(repr(parameters[name].default))
            sentences[name].add(re.split(r"(?<=[.:])\s", text)[0])
    found = {name for name in defaults if len(defaults[name]) > 1 or len(sentences[name]) > 1}
    assert found == DIFFERENT
