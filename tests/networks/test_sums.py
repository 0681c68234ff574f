"""Sums that Keras computes wrongly are found, and no others."""

import numpy as np
import pytest
from plans import wrong_sum

from skuq.backend import keras

KINDS = {
    "Add": lambda inputs: keras.layers.Add()(inputs),
    "Average": lambda inputs: keras.layers.Average()(inputs),
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


def test_the_advice_can_be_followed():
    said = wrong_sum(model_of("+", [(4,), (1,)]))
    assert "to one of shape (None, 4)" in said and "Swap the two terms" in said
    assert wrong_sum(model_of("+", [(1,), (4,)])) is None
    outer = [(1, 6), (6, 1)]
    assert "Write `a - (-b)`" in wrong_sum(model_of("+", outer))
    assert wrong_sum(model_of("+", outer[::-1]))
    one, other = map(keras.Input, outer)
    assert wrong_sum(keras.Model([one, other], one - (-other))) is None
    assert wrong_sum(model_of("Add", [(1, 3, 1), (3,), (1,)])) is not None


def test_models_inside_of_models_are_searched_and_others_are_not():
    add, x = keras.layers.Add(name="total"), keras.Input((4,))
    wide, narrow = keras.layers.Dense(4)(x), keras.layers.Dense(1)(x)
    wrong = keras.Model(x, add([wide, narrow]))
    right = keras.Model(x, add([narrow, wide]))  # the same layer, called on other tensors
    assert wrong_sum(right) is None
    for outer in (wrong, keras.Sequential([keras.Input((4,)), wrong]), keras.Model(x, wrong(x))):
        assert "'total'" in wrong_sum(outer)
