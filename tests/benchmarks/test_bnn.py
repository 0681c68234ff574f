"""Functions drawn from a network's prior."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from problems import BNNFunction, make_bnn_function


def test_bnn_function_by_hand():
    layers = (
        (np.array([[1, -2]], np.float32), np.array([0.5, 1], np.float32)),
        (np.array([[2], [3]], np.float32), np.array([-1], np.float32)),
    )
    # x = 1: 2 relu(1.5) + 3 relu(-1) - 1; x = -1: 2 relu(-0.5) + 3 relu(3) - 1.
    values = BNNFunction(layers)([[1.0], [-1.0]])
    assert_array_equal(values, [2.0, 8.0])
    assert values.dtype == np.float64


def test_make_bnn_function_parameters_have_the_prior():
    function = make_bnn_function(3, hidden_units=(300, 200), prior_std=0.5, random_state=0)
    shapes = [(kernel.shape, bias.shape) for kernel, bias in function.layers]
    assert shapes == [((3, 300), (300,)), ((300, 200), (200,)), ((200, 1), (1,))]
    parameters = np.concatenate([np.ravel(p) for layer in function.layers for p in layer])
    # The relative standard error of a std from 61 601 draws is 0.3 %.
    assert_allclose(parameters.std(), 0.5, rtol=0.015)
    assert_allclose(parameters.mean(), 0, atol=0.01)
    usual = make_bnn_function(20, hidden_units=(300,), random_state=0)
    assert_allclose(usual.layers[0][0].std(), 0.07, rtol=0.03)  # Table 9
