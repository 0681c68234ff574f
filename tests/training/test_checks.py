"""Checks of networks of the user's own, before they are trained."""

import numpy as np
import pytest
from plans import sequential, wrong_sum
from tiers import cases

from skuq.backend import keras
from skuq.exceptions import SearchSpaceError
from skuq.training._network_checks import build_checked

layers = keras.layers
Dense = layers.Dense


def check(network):
    """Build a network of three inputs and two raw outputs."""
    return build_checked(network, (3,), 2, "`network`")


def ends_with(*last):
    """Build a network that ends with these layers or functions."""

    def network(shape, n):
        inputs = keras.Input(shape)
        value = Dense(n)(Dense(4)(inputs))
        for layer in last:
            value = layer(value)
        return keras.Model(inputs, value)

    return network


def frozen(between):
    """Build a network one variable of which does not train."""

    def network(shape, n):
        inputs, layer = keras.Input(shape), Dense(4, name="half")
        hidden = layer(inputs)
        layer.kernel.trainable = False
        return keras.Model(inputs, Dense(n)(between(hidden)))

    return network


def two_inputs(shape, n):
    a, b = keras.Input(shape), keras.Input(shape)
    return keras.Model([a, b], Dense(n)(a + b))


def sum_of_wide_and_narrow(shape, n):
    inputs = keras.Input(shape)
    total = layers.Add()([Dense(8)(inputs), Dense(1)(inputs)])
    return keras.Model(inputs, Dense(n)(total))


# Keras cannot import it by its name.
UNREGISTERED = type("Unregistered", (layers.Layer,), {"call": lambda self, x: 2 * x})


@keras.saving.register_keras_serializable("skuq_tests")
class Forgetful(layers.Layer):
    """Loses its factor when it is rebuilt."""

    def __init__(self, factor=1.0, **arguments):
        super().__init__(**arguments)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return {"name": self.name}


def adapted(shape, n):
    normalization = layers.Normalization()
    normalization.adapt(np.arange(12.0).reshape(4, 3))
    return sequential(shape, normalization, Dense(n))


def bfloat16(shape, n):
    return keras.Sequential([keras.Input(shape, dtype="bfloat16"), Dense(n)])


def with_own(layer):
    return lambda shape, n: sequential(shape, layer, Dense(n))


@cases(
    ("network", "message"),
    (lambda shape, n: None, "`network` must return a keras.Model. Got NoneType"),
    (lambda shape: None, r"Got `<lambda>\(shape\)`"),
    (lambda shape, n: sequential(shape, Dense(n + 1)), r"of shape \(None, 2\) .*Got \(None, 3\)"),
    (two_inputs, "one input of shape"),
    (lambda shape, n: sequential((n,), Dense(n)), r"input of shape \(None, 3\)"),
    (with_own(Dense(2, kernel_constraint="non_neg")), "kernel_constraint, and training programs"),
    (frozen(lambda hidden: hidden), "frozen variable 'kernel' in layer 'half'"),
    (frozen(layers.GroupNormalization(2)), "frozen variable 'kernel' in layer 'half'"),
    (sum_of_wide_and_narrow, r"of shape \(None, 1\) to one of shape \(None, 8\)"),
    (with_own(UNREGISTERED()), "cannot be rebuilt from its configuration"),
    (adapted, "copy computes other values.*Give a Normalization layer `mean` and `variance`"),
    (with_own(Forgetful(3.0)), "keeps more"),
    (with_own(Dense(2, dtype="mixed_float16")), "float32.*dtype policy"),
    (bfloat16, "takes, holds and computes float32. Got .'bfloat16', 'float32'."),
    *(
        (ends_with(*last), f"ends with the activation '{name}'.*Dense")
        for last, name in [
            ([layers.Dense(2, "softmax")], "softmax"),
            ([layers.ReLU()], "ReLU"),
            ([keras.ops.softmax], "Softmax"),
            ([keras.Sequential([Dense(2, "tanh"), layers.Flatten()])], "tanh"),
        ]
    ),
)
def test_build_checked_refuses(network, message):
    """For instance probabilities from a softmax, which were taken for logits."""
    with pytest.raises(SearchSpaceError, match=message):
        check(network)


def test_build_checked_takes_a_linear_end_and_forgets_how_a_model_was_compiled():
    """Its losses and metrics are not used, and files need not allow them."""

    def network(shape, n):
        inner = sequential(shape, Dense(4))
        inner.compile("adam", "mse")
        model = sequential(shape, inner, Dense(n))
        model.compile("adam", keras.losses.log_cosh, metrics=["mae"])
        return model

    written = check(network).to_json()
    assert not any(part in written for part in ("Adam", "mse", "log_cosh", "mae"))
    check(ends_with(Dense(2, activation="linear")))
    check(ends_with(Dense(2, activation="tanh"), lambda x: 3 * x))


# Sums that Keras computes wrongly are found, and no others.

KINDS = {
    "Add": lambda inputs: layers.Add()(inputs),
    "Average": lambda inputs: layers.Average()(inputs),
    "+": lambda inputs: sum(inputs[1:], start=inputs[0]),
}


def model_of(kind, shapes):
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, KINDS[kind](inputs))


def rows_that_differ(kind, shapes, rng):
    """Numbers of rows, up to 6, for which Keras differs from NumPy."""
    model, found, rank = model_of(kind, shapes), [], max(map(len, shapes))
    for n_rows in range(1, 7):
        terms = [rng.normal(size=(n_rows, *shape)) for shape in shapes]
        # Layers give all terms the same rank.
        same_rank = [(n_rows, *(1,) * (rank - len(shape)), *shape) for shape in shapes]
        wanted = sum(t.reshape(s) if kind != "+" else t for t, s in zip(terms, same_rank))
        wanted = wanted / len(terms) if kind == "Average" else wanted
        got = np.asarray(model([term.astype("float32") for term in terms]))
        if got.shape != wanted.shape or not np.allclose(got, wanted, atol=1e-5):
            found.append(n_rows)
    return found


def random_shapes(kind, rng):
    """Shapes of two or three terms that can be broadcast."""
    while True:
        rank, n_terms = rng.integers(1, 4), rng.integers(2, 4)
        ranks = rng.integers(1, rank + 1, n_terms) if kind != "+" else [rank] * n_terms
        shapes = [tuple(rng.integers(1, 4, rank).tolist()) for rank in ranks]
        padded = [(1,) * (max(ranks) - len(shape)) + shape for shape in shapes]
        if all(len({*sizes} - {1}) < 2 for sizes in zip(*padded)):
            return shapes


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_refused_exactly_if_keras_differs_from_numpy(kind, global_random_seed):
    rng, n_refused = np.random.default_rng(global_random_seed), 0
    for _ in range(20):
        shapes = random_shapes(kind, rng)
        said, rows = wrong_sum(model_of(kind, shapes)), rows_that_differ(kind, shapes, rng)
        assert (said is not None) == bool(rows), (shapes, rows, said)
        if said is not None and len(shapes) == 2:
            assert f"With {' or '.join(map(str, rows))} rows" in said
        n_refused += said is not None
    assert n_refused > 3


def test_the_advice_can_be_followed_and_models_inside_of_models_are_searched():
    said = wrong_sum(model_of("+", [(4,), (1,)]))
    assert "to one of shape (None, 4)" in said and "Swap the two terms" in said
    assert wrong_sum(model_of("+", [(1,), (4,)])) is None
    outer = [(1, 6), (6, 1)]
    assert "Write `a - (-b)`" in wrong_sum(model_of("+", outer))
    assert wrong_sum(model_of("+", outer[::-1]))
    one, other = map(keras.Input, outer)
    assert wrong_sum(keras.Model([one, other], one - (-other))) is None
    assert wrong_sum(model_of("Add", [(1, 3, 1), (3,), (1,)])) is not None
    add, x = layers.Add(name="total"), keras.Input((4,))
    wide, narrow = layers.Dense(4)(x), layers.Dense(1)(x)
    wrong = keras.Model(x, add([wide, narrow]))
    right = keras.Model(x, add([narrow, wide]))  # the same layer, called on other tensors
    assert wrong_sum(right) is None
    for outer in (wrong, keras.Sequential([keras.Input((4,)), wrong]), keras.Model(x, wrong(x))):
        assert "'total'" in wrong_sum(outer)
