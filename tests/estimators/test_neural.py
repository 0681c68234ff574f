"""Deep ensembles, hyper deep ensembles and MC dropout; see test_tabular_ensembles for others."""

import functools
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import sequential
from sklearn.base import clone, is_regressor
from sklearn.datasets import make_classification
from tiers import cases

import skuq
from skuq import training
from skuq.backend import keras
from skuq.exceptions import ShortTrainingWarning
from skuq.files import dumps, loads
from skuq.networks import MLP, GaussianHead, TabularNetwork
from skuq.tables import TrainingData
from skuq.training import Training

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
layers, NETWORK = keras.layers, {"network": MLP((16,)), "epochs": 30, "random_state": 0}
HYPER = {"n_members": 2, "n_trials": 4, "dropout_range": (0.01, 0.2), **NETWORK}
DEEP, DROPOUT = skuq.DeepEnsembleRegressor(3, **NETWORK), skuq.MCDropoutRegressor(20, **NETWORK)
HYPER_DEEP, OF_CLASSES = skuq.HyperDeepEnsembleRegressor(**HYPER), skuq.DeepEnsembleClassifier(3)
KNOWN = {"loss": "mse", "noise_std": 0.1}
BAD_RANGES = (0.1,), (0.5, 0.1), (0.0, 0.5), (0.1, 1.0)
HAS_NO_DROPOUT = "`network` must return a model with Dropout layers"
SMALL = TabularNetwork(n_layers=1, width=4, embedding="none")


@functools.cache
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4))
    return X, 100 + 10 * X[:, 0] + 2 * rng.normal(size=150)


@functools.cache
def classes():
    settings = {"n_features": 5, "n_informative": 4, "n_redundant": 0, "n_classes": 3}
    X, codes = make_classification(150, **settings, random_state=0)
    return X, np.array(["ape", "bee", "cat"])[codes]


def data_of(estimator):
    return table() if is_regressor(estimator) else classes()


def test_fit_by_squared_error_with_known_or_estimated_noise():
    X, y = table()  # its noise is 2
    known = clone(DEEP).set_params(loss="mse", noise_std=2.5, epochs=60).fit(X, y)
    assert_allclose(known.predict_uncertainty(X).aleatoric, 2.5, rtol=1e-9)
    assert known.noise_std_ == pytest.approx(2.5)
    assert 1.2 < clone(known).set_params(noise_std=None).fit(X, y).noise_std_ < 5
    parts = clone(known).set_params(noise_std=0.0, epochs=1).fit(X, y).predict_uncertainty(X)
    assert parts.aleatoric.max() < 1e-6 and (parts.total > 0).all()


def test_fit_validates_each_member_on_rows_of_its_own_or_on_none():
    (X, y), model = table(), clone(DEEP).fit(*table())
    assert all(len(member.held_out) == 30 for member in model.members_)
    # A layer's own penalty would count in the validation loss, as it does in Keras.
    together = clone(DEEP).set_params(network__scale_l2=0.0)
    together.fit(X[:120], y[:120], validation_data=(X[120:], y[120:]))
    for member in together.members_:
        # Its best epoch's loss is the loss of the rows given.
        mean, scale = GaussianHead().distribution(member.held_out.astype(float))
        z = (together.fitted_.targets.transform(y[120:, None]) - mean) / scale
        nll = np.mean(0.5 * np.log(2 * np.pi) + np.log(scale) + 0.5 * z**2)
        assert member.score == pytest.approx(nll, rel=1e-4)
    X, y = table()
    model = clone(DEEP).set_params(validation=None).fit(X, y)
    assert {len(m.history["loss"]) for m in model.members_} == {30}
    assert {m.best_epoch for m in model.members_} == {29}
    assert all(m.held_out.shape == (0, 2) for m in model.members_)
    full, large = (clone(model).set_params(epochs=3, batch_size=n).fit(X, y) for n in (None, 150))
    assert_array_equal(full.predict(X), large.predict(X))


@pytest.mark.parametrize("fraction", [0.2, None])
def test_fit_with_bootstrap_gives_members_other_rows(fraction, plan):
    X, y = table()
    model = clone(DEEP).set_params(validation=fraction, bootstrap=True)
    (job,), _ = plan(model, X, y)
    n = 120 if fraction else 150
    for rows, valid in job.splits:
        assert len(rows) == n and len(set(rows)) < 0.8 * n  # 0.63 are expected
        assert valid is None or not set(rows) & set(valid)
    assert len({tuple(rows) for rows, _ in job.splits}) == 3
    (job,), data = plan(model, X[:120], y[:120], validation_data=(X[120:], y[120:]))
    assert len(data.x_valid) == 30 and all(len(rows) == 120 for rows, _ in job.splits)


def test_fit_takes_weights_for_repeats_of_rows():
    """The core of scikit-learn's equivalence check: full batches, everything trains."""
    X, y = table()[0][:40], table()[1][:40]
    weight = np.r_[np.full(10, 2.0), np.zeros(5), np.ones(25)]
    model = clone(DEEP).set_params(validation=None, batch_size=None)
    weighted = model.fit(X, y, sample_weight=weight).predict(X)
    rows = np.repeat(np.arange(40), weight.astype(int))
    assert_allclose(model.fit(X[rows], y[rows]).predict(X), weighted, rtol=1e-4)


def test_fit_divides_neither_groups_nor_the_only_row_of_a_class(plan):
    X, y = table()
    groups = np.repeat(np.arange(10), 15)
    _, data = plan(clone(DEEP), X, 1.0 * groups, groups=groups)
    assert len(data.y_valid) == 30 and len(np.unique(data.y_valid)) == 2  # two groups of 15
    # Groups of very different size lose no rows: the members share one split.
    _, data = plan(clone(DEEP), X, y, groups=np.r_[np.zeros(120, int), np.arange(1, 31)])
    assert len(data.x_valid) in (6, 125)  # six groups of 31, or with the large one
    # A class of one row is always trained on.
    X, y = classes()
    y = y.astype(object)
    y[:1] = "dodo"
    for seed in range(2):
        (job,), _ = plan(clone(OF_CLASSES).set_params(random_state=seed), X, y)
        assert all(0 in rows for rows, _ in job.splits)


@cases("estimator", OF_CLASSES, skuq.TabularEnsembleClassifier(3))
def test_fit_multiplies_weights_of_classes_and_rows(estimator, plan):
    X, y = classes()
    kept = (y != "cat") | (np.arange(150) % 8 == 0)  # a rare class
    X, y = X[kept], y[kept]
    weight = np.random.default_rng(0).uniform(0.5, 1, len(y))
    by_class = dict(zip(["ape", "bee", "cat"], len(y) / 3 / np.unique(y, return_counts=True)[1]))

    def weights(sample_weight, class_weight=None):
        model = clone(estimator).set_params(class_weight=class_weight, random_state=0)
        _, data = plan(model, X, y, sample_weight)
        return np.concatenate([data.weight, data.weight_valid])

    of_rows = weights(weight * [by_class[label] for label in y])
    for class_weight in (by_class, "balanced"):
        assert_allclose(weights(weight, class_weight), of_rows, rtol=1e-5)
    assert of_rows.max() > 2 * weights(weight).max()


def test_hyper_deep_ensemble_searches_then_stratifies_and_regularises_as_it_says():
    (X, y), model = table(), clone(HYPER_DEEP).fit(*table())
    results = model.search_results_
    assert len(results["l2"]) == 4
    assert (results["dropout"] >= 0.01).all() and (results["dropout"] <= 0.2).all()
    assert (results["l2"] >= 1e-7).all() and (results["l2"] <= 0.1).all()
    tried = set(zip(results["dropout"].tolist(), results["l2"].tolist()))
    kept = [(s["dropout"], s["l2"]) for s in model.member_settings_]
    assert set(kept) <= tried and len(kept) >= 2
    assert_allclose(model.weights_.sum(), 1)
    # Every setting is trained again with the same seeds.
    assert len({member.seed for member in model.members_}) <= 2
    # With all rows, networks go on from where they were.
    longer = clone(model).set_params(refit=True).fit(X, y)
    assert longer.member_settings_ == model.member_settings_
    for a, b in zip(model.members_, longer.members_):
        assert not np.array_equal(a.weights, b.weights)
        assert_array_equal(a.held_out, b.held_out)
    norms = []
    for given in ((10.0, 10.1), (1e-9, 1.1e-9)):
        model = clone(HYPER_DEEP).set_params(n_trials=2, l2_range=given).fit(*table())
        norms.append(np.square(model.members_[0].weights).sum())
    assert norms[0] < 0.5 * norms[1]


def test_mc_dropout_passes_are_the_papers_masks():
    """Eq. 32 and 33 of NOMU by hand: columns dropped, the rest scaled."""
    X, y = table()
    model = clone(DROPOUT).set_params(dropout=0.4, n_passes=200).fit(X, y)
    y_ = model.fitted_.targets.scaling
    passes = (model.predict_distribution(X).loc - y_.mean_) / y_.scale_
    (member,) = model.members_
    w = member.weights.astype(float)
    k1, b1 = w[:64].reshape(4, 16), w[64:80]
    hidden = np.maximum(model.fitted_.inputs.transform(X) @ k1 + b1, 0)
    k_mean, b_mean = w[80:96], w[96]
    contributions = hidden * k_mean / 0.6
    # Each pass is the sum of a subset of the contributions, the same for all rows.
    target = (passes - b_mean).T
    kept, *_ = np.linalg.lstsq(contributions, target, rcond=None)
    assert_allclose(contributions @ kept, target, atol=1e-8)
    assert_allclose(kept, kept > 0.5, atol=1e-6)  # all of a unit or nothing
    full = hidden @ k_mean + b_mean  # And on average nothing is lost: 200 passes.
    spread = np.sqrt((contributions**2 * 0.6 * 0.4).sum(axis=1) / 200)
    assert (np.abs(passes.mean(axis=0) - full) < 5 * spread + 1e-9).all()


def own_network(shape, n_outputs):
    return sequential(shape, layers.Dense(12), layers.Dropout(0.1), layers.Dense(n_outputs))


def without_dropout(shape, n_outputs):
    return sequential(shape, layers.Dense(12), layers.Dense(n_outputs))


@cases(
    ("estimator", "settings", "message"),
    *((model, {"training": Training(steps=5)}, ".*Got steps=5") for model in (DEEP, HYPER_DEEP)),
    (DROPOUT, {"training": Training(steps=5)}, "`training` must only have .*Got steps=5"),
    (DEEP, {"training__final_lr_factor": 0.1}, '`final_lr_factor` needs schedule="cosine"'),
    (DEEP, {"training__epsilon": 1e-8, "training__optimizer": "sgd"}, "`epsilon`"),
    (DEEP, {"noise_std": 0.1}, "`noise_std` needs loss=\"mse\".*loss='nll'"),
    (DEEP, {**KNOWN, "target_transform": "quantile"}, "must be None with `target_transform"),
    (DEEP, {**KNOWN, "noise_std": [1.0, 2.0, 3.0]}, "`noise_std` must be a number"),
    (DEEP, {**KNOWN, "noise_std": [-1.0]}, "`noise_std` must be a number >= 0"),
    *((DEEP, {"network__hidden_units": bad}, "hidden_units") for bad in (0, (), (8, 0), (2.5,))),
    (DEEP, {"network__activation": "celu"}, "'activation' .* Got 'celu'"),
    (DEEP, {"loss": "mse", "network__scale_l2": 0.1}, "`scale_l2` needs a loss"),
    (OF_CLASSES, {"network__scale_l2": 0.1}, "`scale_l2` needs a loss"),
    (OF_CLASSES, {"class_weight": {"ape": -1, "bee": 1, "cat": 1}}, "finite numbers >= 0"),
    (OF_CLASSES, {"class_weight": {"ape": 0, "bee": 0, "cat": 0}}, "must leave a class"),
    *((HYPER_DEEP, {"dropout_range": bad}, "dropout_range") for bad in BAD_RANGES),
    (HYPER_DEEP, {"training__l2": 0.1}, "`training` must only have .*Got l2=0.1"),
    (HYPER_DEEP, {"network__dropout": 0.1}, "has no effect beside `dropout_range`"),
    (HYPER_DEEP, {"validation": None}, "validation"),
    (HYPER_DEEP, {"network": without_dropout}, HAS_NO_DROPOUT),
    (DROPOUT, {"network": without_dropout}, HAS_NO_DROPOUT),
    (DROPOUT, {"network__dropout": 0.1}, "has no effect beside `dropout`"),
    (DROPOUT, {"network": own_network, "dropout": 0.1}, '`dropout` must be "auto"'),
)
def test_fit_refuses(estimator, settings, message):
    with pytest.raises(ValueError, match=message):
        clone(estimator).set_params(**settings).fit(*data_of(estimator))


@pytest.mark.parametrize("learning_rate", [1000.0, 1e38])
def test_fit_reports_divergence(learning_rate):
    """With the smaller rate an epoch before had a finite validation loss."""
    wild = clone(DEEP).set_params(learning_rate=learning_rate, training__optimizer="sgd")
    with pytest.raises(FloatingPointError, match="All 3 networks diverged.*clip_norm"):
        wild.fit(*table())


@pytest.mark.parametrize("model", [DEEP, skuq.TabularEnsembleClassifier(2, network=SMALL)])
def test_fit_tells_of_a_time_that_is_too_short_and_of_one_that_is_enough(model):
    X, y = data_of(model)
    model = clone(model).set_params(epochs=300, early_stopping_patience=None, random_state=0)
    short = "0.33 % of their epochs .* max_time=0.001:"
    with pytest.warns(ShortTrainingWarning, match=short) as told:
        model.set_params(max_time=1e-3).fit(X, y)
    text = next(str(w.message) for w in told if w.category is ShortTrainingWarning)
    assert [member.n_epochs for member in model.members_] == [1] * len(model.members_)
    # The first one follows the advice. The other stops early, which is all that it would do.
    enough = int(re.search(r"max_time=(\d+) is enough", text)[1])
    stops = {"epochs": 10**7, "early_stopping_patience": 1, "learning_rate": 1e-30, "max_time": 60}
    with warnings.catch_warnings(action="error", category=ShortTrainingWarning):
        model.set_params(max_time=enough).fit(X, y)
        model.set_params(**stops).fit(X, y)
    assert max(member.n_epochs for member in model.members_) < 10


def test_training_data_keeps_weights_in_all_rows():
    weight, x = np.where(np.arange(20) < 5, 100.0, 1.0), np.zeros((20, 1))
    data = TrainingData(x[:12], x[:12], weight[:12], x[12:], x[12:], weight[12:])
    assert_allclose(data.all_rows().weight, weight / weight.mean(), rtol=1e-6)
    assert len(data.all_rows().x_valid) == 0


@pytest.mark.parametrize("estimator", [HYPER_DEEP, skuq.HyperDeepEnsembleClassifier(**HYPER)])
def test_hyper_deep_ensemble_gives_a_second_member_real_weight(estimator, monkeypatch):
    """The first network is right on all validation rows, and the others are wrong."""
    train = training.train

    def right_and_wrong(job, data, **settings):
        y = data.y_valid
        good = y if is_regressor(estimator) else np.concatenate([1 - y, y], axis=1) * 8.0
        found = zip(train(job, data, **settings), [1.0, -1.0, -0.5])
        return [replace(member, held_out=scale * good) for member, scale in found]

    monkeypatch.setattr(training, "train", right_and_wrong)
    X, y = classes()[0], classes()[0][:, 0] > 0
    model = clone(estimator).set_params(n_members=3, n_trials=3, epochs=1)
    if is_regressor(estimator):
        model.set_params(loss="mse")
    assert_allclose(model.fit(X, y).weights_.max(), 0.75, atol=0.1)
    assert len(model.set_params(min_members=1).fit(X, y).weights_) == 1


@keras.saving.register_keras_serializable("skuq-tests")
class Masked(keras.layers.Layer):
    """A layer with variables of no float, and with none at all."""

    def build(self, input_shape):
        fixed = {"trainable": False}
        self.mask = self.add_weight(input_shape[1:], "ones", "bool", name="mask", **fixed)
        self.empty = self.add_weight((0,), name="empty", **fixed)

    def call(self, inputs):
        return keras.ops.where(self.mask, inputs, 0.0)


@pytest.mark.parametrize("seed", [None, 3])
def test_fit_draws_frozen_layers_of_members(seed):
    def network(input_shape, n_outputs):
        initializer, inputs = keras.initializers.GlorotUniform(seed), keras.Input(input_shape)
        frozen = layers.Dense(6, kernel_initializer=initializer, trainable=False)(inputs)
        hidden = layers.Add()([Masked()(frozen)])  # a sum of one
        return keras.Model(inputs, layers.Dense(n_outputs)(hidden))

    def kernels(random_state):
        model = skuq.DeepEnsembleRegressor(2, network=network, epochs=1, random_state=random_state)
        return [member.state[0] for member in model.fit(X, X[:, 0]).members_]

    X = np.linspace(0, 1, 20)[:, None]
    one, two = kernels(0)
    again, other = kernels(0), kernels(1)
    assert_array_equal(again, [one, two])
    # Without a seed of the user's, members and fits have features of their own.
    assert np.array_equal(one, two) == np.array_equal(one, other[0]) == (seed is not None)


def test_predict_combines_one_number_with_many_as_keras_does():
    def network(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        product = layers.Multiply()([layers.Dense(1)(inputs), layers.Dense(8)(inputs)])
        return keras.Model(inputs, layers.Dense(n_outputs)(product))

    X = np.linspace(0, 1, 20)[:, None]
    model = skuq.DeepEnsembleRegressor(1, network=network, epochs=1, batch_size=8, random_state=0)
    model.fit(X, X[:, 0])
    for n in (7, 8):  # rows as many as units, too
        served = keras.ops.convert_to_numpy(model.to_keras()(X[:n])["mean"])
        assert_allclose(served.ravel(), model.predict(X)[:n], rtol=1e-4, atol=1e-5)


def test_fit_does_not_train_frozen_attention():
    def network(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        rows = layers.Reshape((3, 2))(inputs)
        attention = layers.MultiHeadAttention(2, 3, trainable=False)
        hidden = attention(rows, rows)  # it builds layers of its own
        return keras.Model(inputs, layers.Dense(n_outputs)(layers.Flatten()(hidden)))

    X = np.random.default_rng(0).normal(size=(40, 6))
    model = skuq.DeepEnsembleRegressor(2, network=network, epochs=2, random_state=0).fit(X, X[:, 0])
    assert [len(member.weights) for member in model.members_] == [6 * 2 + 2] * 2  # of the last
    assert_array_equal(loads(dumps(model)).predict(X), model.predict(X))
