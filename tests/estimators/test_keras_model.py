"""The whole ensemble as one Keras model with the same predictions as the estimator."""

import subprocess
import sys

import numpy as np
import pytest

import skuq
from skuq.backend import keras
from skuq.networks import TabularNetwork

TINY = {"n_members": 2, "epochs": 4, "random_state": 0}
SMALL = TabularNetwork(width=32, n_layers=1)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3)) * [1, 50, 0.1] + [0, 2000, 5]
    return X, 30 * X[:, 0] + 1e4 + rng.normal(size=90)


def assert_same(model, X, inputs=None):
    """The Keras model of an estimator predicts what it does."""
    network = model.to_keras()
    # Keras' own `predict` would round the inputs to float32.
    outputs = network.predict_on_batch(np.asarray(X if inputs is None else inputs, float))
    parts = model.predict_uncertainty(X)
    names = ("mean", "aleatoric", "epistemic", "total")
    expected = {name: getattr(parts, name) for name in names if hasattr(parts, name)}
    if "proba" in outputs:
        expected["proba"] = model.predict_proba(X)
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        assert outputs[name].shape == values.shape
        # A float32's digits of the largest: small epistemic parts are differences.
        largest = max(np.abs(values).max(), 1e-2)
        np.testing.assert_allclose(outputs[name], values, atol=2e-5 * largest, rtol=1e-4)
    assert network.to_json()  # it can be saved
    return network


@pytest.mark.parametrize(
    ("loss", "n_members", "n_outputs"),
    # Keras takes a column of three offsets for a bias where another axis has three entries.
    [("nll", 2, 1), ("mse", 2, 2), ("gaussian-mixture", 3, 3)],
)
def test_to_keras_of_every_head(rows, loss, n_members, n_outputs):
    X, y = rows
    y = y if n_outputs == 1 else np.c_[y, X[:, 1:n_outputs]]
    model = skuq.DeepEnsembleRegressor(**{**TINY, "n_members": n_members}, loss=loss)
    assert_same(model.fit(X, y), X)


@pytest.mark.slow
def test_to_keras_of_one_member_and_of_searches(rows, tiny_space):
    X, y = rows
    search = {"space": tiny_space, "epochs": 4, "random_state": 0, "n_members": 3}
    assert_same(skuq.AutoDEUQRegressor(4, **search).fit(X, y), X)
    assert_same(skuq.AutoDEUQClassifier(4, **search).fit(X, y > 1e4), X)
    one = skuq.DeepEnsembleRegressor(1, epochs=4, random_state=0).fit(X, y)
    assert (assert_same(one, X).predict_on_batch(X)["epistemic"] == 0).all()


def test_to_keras_makes_a_copy_that_keeps_the_digits_of_large_offsets(rows):
    X, y = rows
    X, y = np.c_[X + [1e7, 1.7e9, 0], np.full(len(X), 7.0)], y + 1e8
    model = skuq.TabularEnsembleRegressor(**TINY, loss="crps", network=SMALL).fit(X, y)
    X[:, 3] = 8.0  # a constant column says nothing
    copied = assert_same(model, X)
    assert not copied.trainable_variables
    before = model.predict(X)
    for variable in copied.variables:
        variable.assign(variable * 0)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (skuq.MCDropoutRegressor(epochs=2), "MC dropout"),
        (skuq.DeepEnsembleRegressor(2, epochs=2, target_transform="yeo-johnson"), "yeo-johnson"),
    ],
    ids=["mc-dropout", "target"],
)
def test_to_keras_refuses(rows, model, message):
    model.fit(*rows)
    if message == "yeo-johnson":  # what was fitted counts
        model.set_params(target_transform="standard")
    with pytest.raises(ValueError, match=f"to_keras.*{message}.*skuq.save"):
        model.to_keras()


def test_to_keras_of_images(tiny_space):
    class Convolution(type(tiny_space)):
        takes_images = True

        def build(self, configuration, input_shape, n_outputs):
            x = inputs = keras.Input(input_shape, name="input")
            x = keras.layers.Conv2D(3, 3, activation="relu", name="convolution")(x)
            x = keras.layers.BatchNormalization(name="normalization")(x)
            x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
            return keras.Model(inputs, keras.layers.Dense(n_outputs, name="out")(x), name="net")

    rng = np.random.default_rng(0)
    X, y = rng.normal(5, 3, size=(60, 6, 5, 2)), np.arange(60) % 3
    settings = {"n_members": 2, "space": Convolution(), "epochs": 2, "random_state": 0}
    model = skuq.NESClassifier(2, **settings).fit(X, y)
    assert assert_same(model, X).input_shape == (None, 6, 5, 2)
    # One mean and scale a channel, over all pixels of the rows trained on.
    trained = np.setdiff1d(np.arange(60), model.catalog_.held_out.rows)
    means = X[trained].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(model.fitted_.inputs.scaling.mean_, means)
    for other, message in (
        (X.transpose(0, 2, 1, 3), r"images of shape \(5, 6, 2\)"),
        (X.reshape(60, -1)[:, :20], "expecting 60 features"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(other)


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
def test_to_keras_saves_files_that_need_no_skuq(rows, tmp_path):
    """Built-in layers and operations only, but for networks for tables."""
    X, y = rows
    model = skuq.DeepEnsembleRegressor(**TINY).fit(X, y)
    network = model.to_keras()
    tabular = skuq.TabularEnsembleRegressor(**TINY, network=SMALL).fit(X, y).to_keras()
    network.save(tmp_path / "model.keras")
    network.export(tmp_path / "exported", verbose=False)
    tabular.save(tmp_path / "tabular.keras")
    np.save(tmp_path / "X.npy", X)
    subprocess.run([sys.executable, "-c", ELSEWHERE, tmp_path], check=True, timeout=300)
    outputs = np.load(tmp_path / "out.npz")
    for name in ("served", "loaded"):
        np.testing.assert_allclose(outputs[name], model.predict_uncertainty(X).total, rtol=1e-4)
    expected = tabular.predict_on_batch(X)["total"]
    np.testing.assert_allclose(outputs["tabular"], expected, rtol=1e-6)
