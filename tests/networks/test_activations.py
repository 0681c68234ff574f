"""Activations and their derivatives, beside SciPy's differentiation and the backend's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from operators import slope
from plans import ACTIVATIONS, ARRAYS, SLOPES, tensors
from scipy.differentiate import derivative

X = np.linspace(-9, 9, 181)


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "tanh"])
def test_slopes_are_those_of_numerical_differentiation(name):
    expected = derivative(ACTIVATIONS[name], X).df
    assert_allclose(slope(ARRAYS, name, X), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_on_tensors_in_single_precision(name):
    computed = slope(tensors(), name, tensors().xp.convert_to_tensor(X, "float32"))
    assert_allclose(np.asarray(computed), slope(ARRAYS, name, X), atol=1e-6)


def test_large_arrays_give_what_single_rows_give():
    """Many rows run by other formulas, without overflows."""
    x = np.concatenate([np.linspace(-800, 800, 4001), np.linspace(-3, 3, 4001)])
    few = np.array_split(x, 20)
    functions = {**ACTIVATIONS, "cosine": ARRAYS.cosine}
    for name, f in functions.items():
        with np.errstate(all="ignore" if name == "exponential" else "raise", under="ignore"):
            expected = np.concatenate([f(part) for part in few])
            assert_allclose(f(x), expected, rtol=1e-14, atol=1e-12 if name == "cosine" else 0)
