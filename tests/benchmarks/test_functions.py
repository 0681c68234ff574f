"""The functions of NOMU: values worked by hand, exact ranges, known minimisers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import make_function, make_scarce_regression
from problems.functions import FUNCTIONS_1D, FUNCTIONS_2D, FUNCTIONS_ND
from scipy.optimize import rosen
from tiers import slow

pytestmark = slow  # problems of benchmarks only

EVERY = [(name, 1) for name in FUNCTIONS_1D] + [(name, 2) for name in FUNCTIONS_2D]
EVERY += [(name, d) for name in FUNCTIONS_ND for d in (3, 5, 10, 20)]


def scaled(value, low, high):
    return 2 * (value - low) / (high - low) - 1


# name -> {point: value}: the paper's 1-D formulas.
LINES = {
    "abs": {-1: 1, 0.4: -1, 1: 0.6 * 2 / 1.4 - 1},
    "step": {-1: 1, -1e-9: 1, 0: -1, 1: -1},
    # g = -1.8, 0.2, 1, -0.8; plus 0.4, times 2 / 2.8.
    "kink": {-1: -1, 0: 0.6 / 1.4, 0.4: 1, 1: -0.4 / 1.4},
    "square": {-1: 1, 0: -1, 0.5: -0.5},
    "cubic": {-1: -1, 0.5: 0.125, 1: 1},
    "sine1": {1.2 - 10 / np.pi / 2.5: -1, 0.2: np.sin(-10), -0.8: np.sin(-5)},
    "sine2": {-1: -1, 0: 0, 2 / 11: 1.6 / 11, 1: 1},
    # The paper's constants are rounded: 2.46492193 for 2.46492579, 0.7324646 for 0.7324629.
    "sine3": {
        -1: -1,
        0: 2 / 2.46492193 * (0.5 * np.sin(1.1) * 0.5**0.9 + 0.25 - 0.7324646),
        1: 2 / 2.46492193 * (0.5 * np.sin(np.exp(2.7) + 0.1) + 1.5 - 0.7324646),
    },
    # (6t - 2)^2 sin(12t - 4) is 4 sin(-4), 0 and 16 sin 8.
    "forrester": {
        x: scaled(v, -6.02074, 16 * np.sin(8))
        for x, v in {-1: 4 * np.sin(-4), -1 / 3: 0, 1: 16 * np.sin(8)}.items()
    },
    # z = 10, 1, -3, -10: w = 3.25, 1, 0 and -1.75; sin^2(3.25 pi) = 1/2, and 1 of the double.
    "levy": {
        x: scaled(v, 0, 15.625)
        for x, v in {1: 0.5 + 2 * 2.25**2, 0.1: 0, -0.3: 1, -1: 0.5 + 2 * 2.75**2}.items()
    },
}

# name -> (ends of both sides, least, greatest, {point: value}), in the formula's units.
PLANES = {
    "sphere": ([-5.12, 5.12], 0, 2 * 5.12**2, {(1, 2): 5, (5.12, -5.12): 52.4288}),
    # Factors 2|4x-2| - 1 and |4y-2|.
    "g_function": ([0, 1], -2, 6, {(0.5, 0): -2, (0, 0): 6, (0.25, 0.75): 1, (0.9, 0.5): 0}),
    # (1 + 1 * 19)(30) at 0; the three local minima 30, 84 and 840 of the literature.
    "goldstein_price": (
        [-2, 2], 3, 1e6,
        {(0, 0): 600, (0, -1): 3, (-0.6, -0.4): 30, (1.8, 0.2): 84, (1.2, 0.8): 840},
    ),
    # w = (1, 1), (0, 1) and (0, 0): the middle term is (w-1)^2 (1 + 10 sin^2(pi w + 1)); and
    # w = -1.75 twice: 1/2, then 2.75^2 (1 + 10 sin^2(1 - 1.75 pi)), then 2 * 2.75^2.
    "levy": (
        [-10, 10], 0, 0.5 + 2.75**2 * (3 + 10 * np.sin(1 - 1.75 * np.pi) ** 2),
        {(1, 1): 0, (-3, 1): 1 + 10 * np.sin(1) ** 2, (-3, -3): 2 + 10 * np.sin(1) ** 2},
    ),
    "bukin6": (
        [(-15, -3), (-5, 3)], 0, 100 * np.sqrt(5.25) + 0.05,
        {(-10, 1): 0, (-10, 0): 100, (-5, 2.25): 100 * np.sqrt(2) + 0.05},
    ),
    "rosenbrock": ([-5, 10], 0, 1102581, {(1, 1): 0, (0, 0): 1, (-1, 2): 104, (10, -5): 1102581}),
    # At (-4.5, -4.5): 26.25^2 + 84.375^2 + 417.1875^2.
    "beale": (
        [-4.5, 4.5], 0, 26.25**2 + 84.375**2 + 417.1875**2,
        {(3, 0.5): 0, (0, 0): 14.203125, (1, 1): 14.203125, (-4.5, -4.5): 181853.61328125},
    ),
    # At 5: 50 - 656.25 + 15625/6 + 25 + 25.
    "camel": (
        [-5, 5], 0, 15625 / 6 - 556.25,
        {(0, 0): 0, (1, 1): 2.95 + 1 / 6, (5, 5): 15625 / 6 - 556.25, (1, -1): 0.95 + 1 / 6},
    ),
    # i = 1: 1.5 (x-1) + 2.5 (y/2-1); i = 2: 1.5 (x^2-1) + 4.5 (y^2/4-1).
    "perm": ([-2, 2], 0, 110.5, {(1, 2): 0, (0, 0): 52, (-2, -2): 110.5, (2, 2): 22.5}),
    "branin": (
        [(-5, 0), (10, 15)], 10 / (8 * np.pi), 308.12909601160663,
        {(-np.pi, 12.275): 10 / (8 * np.pi), (0, 0): 56 - 10 / (8 * np.pi)},
    ),
    "styblinski_tang": (
        [-5, 5], -39.16616570377142 * 2, 250,
        {(0, 0): 0, (1, 1): -10, (5, -5): 225, (5, 5): 250},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS_1D)
def test_make_function_of_one_feature_by_hand(name):
    tolerance = 5e-6 if name == "sine3" else 1e-6 if name == "forrester" else 1e-14
    values = make_function(name, 1)(np.reshape([*LINES[name]], (-1, 1)))
    assert_allclose(values, [*LINES[name].values()], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS_2D)
def test_make_function_of_two_features_by_hand(name):
    (lower, upper), low, high, values = PLANES[name]
    X = 2 * (np.array([*values]) - lower) / np.subtract(upper, lower) - 1
    # Bukin's root turns a rounding of 1e-16 into 1e-8 of its argument, 1e-8 of the range.
    tolerance = 5e-8 if name == "bukin6" else 1e-13
    expected = scaled(np.array([*values.values()]), low, high)
    assert_allclose(make_function(name, 2)(X), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name, d", EVERY)
def test_make_function_minimizer_gives_the_minimum(name, d):
    function = make_function(name, d)
    assert function.minimizer.shape == (d,)
    assert np.all(np.abs(function.minimizer) <= 1)
    assert_array_equal(function.bounds, np.tile([-1, 1], (d, 1)))
    tolerance = 5e-8 if name == "bukin6" else 1e-13
    assert_allclose(function(function.minimizer[None]), function.minimum, atol=tolerance, rtol=0)


@pytest.mark.parametrize("d", [2, 5, 20])
def test_make_function_rosenbrock_agrees_with_scipy(d):
    X = np.random.RandomState(0).uniform(-1, 1, (50, d))
    expected = rosen((2.5 + 7.5 * X).T) / (810081 * (d - 2) + 1102581)
    function = make_function("rosenbrock", d)
    assert_allclose(function(X), 2 * expected - 1, rtol=1e-12)
    # The greatest sum of terms of neighbours on a grid, by dynamic programming.
    side = np.linspace(-5, 10, 301)
    links, best = rosen(np.broadcast_arrays(side[:, None], side[None, :])), np.zeros(301)
    for _ in range(d - 1):
        best = (best[:, None] + links).max(axis=0)
    assert best.max() == 810081 * (d - 2) + 1102581
    corner = np.array([[1.0] * (d - 1) + [-1.0]])
    assert_allclose(function(corner), 1, rtol=1e-15)


def test_make_function_has_its_columns():
    assert np.isfinite(make_function("perm", 79)(np.full((1, 79), 0.5)))  # its last dimension
    with pytest.raises(ValueError, match=r"X must have the 2 column\(s\) of 'branin'. Got 3"):
        make_function("branin", 2)(np.zeros((4, 3)))


def test_make_scarce_regression_is_uniform_and_noiseless():
    function = make_function("sphere", 2)
    sets = [make_scarce_regression(function, n_test=20_000, random_state=0) for _ in range(2)]
    for one, other in zip(*sets):
        assert_array_equal(one, other)
    X, y, X_test, y_test = sets[0]
    assert X.shape == (16, 2) and X_test.shape == (20_000, 2)
    assert_array_equal(y, function(X))
    assert_array_equal(y_test, function(X_test))
    assert np.abs(X_test).max() <= 1
    # Standard errors of mean and variance of 20 000 uniforms: 0.004 and 0.002.
    assert_allclose(X_test.mean(axis=0), 0, atol=0.02)
    assert_allclose(np.cov(X_test.T), np.eye(2) / 3, atol=0.01)


def test_make_scarce_regression_near_a_flat_manifold():
    function = make_function("levy", 7)
    settings = {"inputs": "gaussian", "random_state": 0}
    X, y, X_test, y_test = make_scarce_regression(function, 20_000, **settings)
    assert X.shape == (20_000, 7) and X_test.shape == (700, 7)
    assert_array_equal(y_test, function(X_test))
    # The standard error of a variance from 20 000 draws is 1 % of it.
    assert_allclose(np.var(X, axis=0), [0.15] * 5 + [0.001] * 2, rtol=0.05)
    assert_allclose(np.corrcoef(X.T), np.eye(7), atol=0.03)
