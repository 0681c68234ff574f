"""Check networks of the user's own before they are trained."""

import functools

import pytest
from tiers import cases

from skuq.backend import keras
from skuq.exceptions import SearchSpaceError
from skuq.training._network_checks import build_checked


def check(network):
    """Build a network of two inputs and two raw outputs."""
    return build_checked(network, (2,), 2, "`network`")


def dense(n):
    return keras.layers.Dense(n)


def test_build_checked_refuses_unusable_networks():
    def two(shape, n):
        return keras.Sequential([keras.Input(shape), dense(n + 1)])

    def constrained(shape, n):
        normalization = keras.layers.BatchNormalization(gamma_constraint="non_neg")
        return keras.Sequential([keras.Input(shape), normalization, dense(n)])

    def frozen(shape, n, has_plan):
        inputs = keras.Input(shape)
        layer = keras.layers.Dense(4, name="half")
        hidden = layer(inputs)
        layer.kernel.trainable = False
        hidden = hidden if has_plan else keras.layers.GroupNormalization(2)(hidden)
        return keras.Model(inputs, dense(n)(hidden))

    for network, message in (
        (lambda shape, n: None, "`network` must return a keras.Model. Got NoneType"),
        (two, "`network` must return a model with one out"),
        (lambda shape: None, r"Got `<lambda>\(shape\)`"),
        (constrained, "gamma_constraint"),
        (functools.partial(frozen, has_plan=True), "frozen variable 'kernel' in layer 'half'"),
        (functools.partial(frozen, has_plan=False), "frozen variable 'kernel' in layer 'half'"),
    ):
        with pytest.raises(SearchSpaceError, match=message):
            check(network)


@pytest.mark.parametrize("is_planned", [True, False])
@cases(
    "combine",
    lambda wide, narrow: keras.layers.Add()([wide, narrow]),
    lambda wide, narrow: keras.Model([wide, narrow], wide + narrow)([wide, narrow]),
)
def test_build_checked_refuses_sums_that_keras_takes_for_a_bias(combine, is_planned):
    def network(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        wide = keras.layers.Dense(8)(inputs)
        if not is_planned:
            wide = keras.layers.UnitNormalization()(wide)
        total = combine(wide, keras.layers.Dense(1)(inputs))
        return keras.Model(inputs, keras.layers.Dense(n_outputs)(total))

    with pytest.raises(SearchSpaceError, match=r"of shape \(None, 1\) to one of shape \(None, 8\)"):
        check(network)


@cases(
    ("last", "name"),
    (lambda n: keras.layers.Dense(n, activation="softmax"), "softmax"),
    (lambda n: keras.layers.Dense(n, activation="relu"), "relu"),
    (lambda n: keras.Sequential([keras.layers.Dense(n), keras.layers.ReLU()]), "ReLU"),
    (lambda n: lambda x: keras.ops.softmax(keras.layers.Dense(n)(x)), "Softmax"),
    (lambda n: keras.Sequential([keras.layers.Dense(n, "tanh"), keras.layers.Flatten()]), "tanh"),
    (lambda n: keras.layers.Dense(n, activation="linear"), None),
    (lambda n: lambda x: 3 * keras.layers.Dense(n, activation="tanh")(x), None),
)
def test_build_checked_refuses_an_activation_at_the_end(last, name):
    """Outputs are parameters of a distribution: softmax gave probabilities of at most 0.23."""

    def network(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        return keras.Model(inputs, last(n_outputs)(keras.layers.Dense(4)(inputs)))

    if name is None:
        check(network)
    else:
        with pytest.raises(SearchSpaceError, match=f"ends with the activation '{name}'.*Dense"):
            check(network)


def test_build_checked_forgets_how_a_model_was_compiled():
    """Its losses and metrics are not used, and files need not allow them."""

    def network(input_shape, n_outputs):
        inner = keras.Sequential([keras.Input(input_shape), dense(4)])
        inner.compile("adam", "mse")
        model = keras.Sequential([keras.Input(input_shape), inner, dense(n_outputs)])
        model.compile("adam", keras.losses.log_cosh, metrics=["mae"])
        return model

    written = check(network).to_json()
    assert not any(part in written for part in ("Adam", "mse", "log_cosh", "mae"))
