"""Functions drawn from a network's prior."""

import pickle
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import BNNFunction, make_bnn_function
from problems.bnn import _usual_std, _wide_variance


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
    # Independent: no two layers share a stream.
    assert not np.isin(function.layers[0][0], function.layers[1][0]).any()


@pytest.mark.parametrize("n_features", [1, 4])
def test_wide_variance_is_exact_with_one_hidden_layer(n_features):
    X = np.random.RandomState(1).uniform(-1, 1, (1000, n_features))
    draw = partial(make_bnn_function, n_features, hidden_units=(20,), prior_std=0.6)
    variances = [draw(random_state=seed)(X).var() for seed in range(1, 1001)]
    # The spread of a draw's variance is about that variance: 3 to 5 % from 1000 draws.
    assert_allclose(np.mean(variances), _wide_variance(0.6, n_features, (20,)), rtol=0.12)


PAPER = (1024, 2048, 1024)


@pytest.mark.parametrize("d, std", [(1, 0.114), (2, 0.102), (5, 0.092), (10, 0.084), (20, 0.07)])
def test_usual_std_is_table_9(d, std):
    assert _usual_std(d, PAPER) == std
    if d in (2, 5, 10):  # and agrees with the formula
        assert 0.9 < _wide_variance(std, d, PAPER) < 1.25


@pytest.mark.parametrize("d, hidden", [(3, PAPER), (30, PAPER), (1, (9,))])
def test_usual_std_of_other_sizes_gives_variance_one(d, hidden):
    assert_allclose(_wide_variance(_usual_std(d, hidden), d, hidden), 1, rtol=1e-9)
    assert 0.084 < _usual_std(7, PAPER) < 0.092  # between the entries of the table


def test_make_bnn_function_repeats_and_pickles():
    X = np.linspace(-1, 1, 20)[:, None]
    units = {"hidden_units": (16, 16)}
    one, again, other = (make_bnn_function(**units, random_state=k) for k in (3, 3, 4))
    assert_array_equal(one(X), again(X))
    assert_array_equal(pickle.loads(pickle.dumps(one))(X), one(X))
    assert np.abs(one(X) - other(X)).max() > 0.01
    assert one.n_features == 1 and one.minimum is None and one.minimizer is None
    assert_array_equal(one.bounds, [[-1, 1]])
    with pytest.raises(ValueError, match=r"X must have 1 column\(s\). Got 2"):
        one([[0.0, 0.0]])
