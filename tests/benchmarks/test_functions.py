"""Functions of NOMU against values worked by hand, and corruptions of images and tables."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import corrupt_images, make_function, make_scarce_regression
from problems.corruptions import TEST_CORRUPTIONS, VALIDATION_CORRUPTIONS
from problems.functions import FUNCTIONS_1D, FUNCTIONS_2D, FUNCTIONS_ND
from scipy.optimize import rosen
from tiers import cases, slow

pytestmark = slow  # problems of benchmarks only
EVERY = [(name, 1) for name in FUNCTIONS_1D] + [(name, 2) for name in FUNCTIONS_2D]
EVERY += [(name, d) for name in FUNCTIONS_ND for d in (3, 5, 10, 20)]
NAMES = VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS


def scaled(value, low, high):
    return 2 * (value - low) / (high - low) - 1


FORRESTER = -6.02074, 16 * np.sin(8)  # its ends
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
    # (6t - 2)^2 sin(12t - 4) is 4 sin(-4) and 0.
    "forrester": {-1: scaled(4 * np.sin(-4), *FORRESTER), -1 / 3: scaled(0, *FORRESTER)},
}
# name -> (ends of both sides, least, greatest, {point: value}), in the formula's units.
PLANES = {
    "sphere": ([-5.12, 5.12], 0, 2 * 5.12**2, {(1, 2): 5, (5.12, -5.12): 52.4288}),
    # Factors 2|4x-2| - 1 and |4y-2|.
    "g_function": ([0, 1], -2, 6, {(0.5, 0): -2, (0, 0): 6, (0.25, 0.75): 1, (0.9, 0.5): 0}),
    # (1 + 1 * 19)(30) at 0; the local minima of the literature.
    "goldstein_price": ([-2, 2], 3, 1e6, {(0, 0): 600, (-0.6, -0.4): 30, (1.8, 0.2): 84}),
    "bukin6": ([(-15, -3), (-5, 3)], 0, 100 * np.sqrt(5.25) + 0.05, {(-10, 0): 100}),
    "rosenbrock": ([-5, 10], 0, 1102581, {(0, 0): 1, (-1, 2): 104, (10, -5): 1102581}),
    "beale": ([-4.5, 4.5], 0, 181853.61328125, {(0, 0): 14.203125, (1, 1): 14.203125}),
    "camel": ([-5, 5], 0, 15625 / 6 - 556.25, {(1, 1): 2.95 + 1 / 6, (1, -1): 0.95 + 1 / 6}),
    # i = 1: 1.5 (x-1) + 2.5 (y/2-1); i = 2: 1.5 (x^2-1) + 4.5 (y^2/4-1).
    "perm": ([-2, 2], 0, 110.5, {(0, 0): 52, (-2, -2): 110.5, (2, 2): 22.5}),
    "branin": (
        [(-5, 0), (10, 15)], 10 / (8 * np.pi), 308.12909601160663,
        {(-np.pi, 12.275): 10 / (8 * np.pi), (0, 0): 56 - 10 / (8 * np.pi)},
    ),
    "styblinski_tang": ([-5, 5], -78.33233140754284, 250, {(0, 0): 0, (1, 1): -10, (5, -5): 225}),
}  # fmt: skip


@pytest.mark.parametrize("name, d", EVERY)
def test_make_function_by_hand_and_at_its_minimizer(name, d):
    function = make_function(name, d)
    # Bukin's root turns a rounding of 1e-16 into 1e-8 of its argument, 1e-8 of the range.
    atol = {"sine3": 5e-6, "forrester": 1e-6, "bukin6": 5e-8}.get(name, 1e-13)
    if d == 1 and name in LINES:
        X, expected = np.reshape([*LINES[name]], (-1, 1)), [*LINES[name].values()]
        assert_allclose(function(X), expected, rtol=0, atol=atol)
    if d == 2 and name in PLANES:
        (lower, upper), low, high, values = PLANES[name]
        X = 2 * (np.array([*values]) - lower) / np.subtract(upper, lower) - 1
        expected = scaled(np.array([*values.values()]), low, high)
        assert_allclose(function(X), expected, rtol=0, atol=atol)
    assert function.minimizer.shape == (d,) and np.all(np.abs(function.minimizer) <= 1)
    assert_array_equal(function.bounds, np.tile([-1, 1], (d, 1)))
    assert_allclose(function(function.minimizer[None]), function.minimum, atol=atol, rtol=0)


def test_make_function_of_many_features_agrees_with_scipy_and_has_its_columns():
    for d in (5, 20):
        X = np.random.RandomState(0).uniform(-1, 1, (50, d))
        expected = rosen((2.5 + 7.5 * X).T) / (810081 * (d - 2) + 1102581)
        assert_allclose(make_function("rosenbrock", d)(X), 2 * expected - 1, rtol=1e-12)
    assert np.isfinite(make_function("perm", 79)(np.full((1, 79), 0.5)))  # its last dimension
    with pytest.raises(ValueError, match=r"X must have the 2 column\(s\) of 'branin'. Got 3"):
        make_function("branin", 2)(np.zeros((4, 3)))


@cases("inputs, variances", ("uniform", [1 / 3] * 7), ("gaussian", [0.15] * 5 + [0.001] * 2))
def test_make_scarce_regression_has_its_inputs(inputs, variances):
    function = make_function("levy", 7)
    X, y, X_test, y_test = make_scarce_regression(function, 20_000, inputs=inputs, random_state=0)
    assert X.shape == (20_000, 7) and X_test.shape == (700, 7)
    assert_array_equal(y, function(X))
    assert_array_equal(y_test, function(X_test))
    assert_allclose(np.cov(X.T), np.diag(variances), rtol=0.05, atol=0.01)


def photographs(n, side=28):
    """Smooth shapes with a sharp edge, from 0 to 1: (n, side, side, 1)."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[:side, :side] / side
    a, b, phase, edge = rng.uniform([[2], [2], [0], [0.2]], [[12], [12], [6], [0.8]], (4, n))
    angles = np.multiply.outer(a, x) + np.multiply.outer(b, y) + phase[:, None, None]
    bright = np.where(x > edge[:, None, None], 0.2, 0.0)
    return (0.4 + 0.3 * np.sin(angles) + bright)[..., None]


@pytest.mark.parametrize("name", NAMES)
def test_corrupt_images_keeps_shape_dtype_and_range_and_changes_more_with_severity(name):
    images = photographs(6)
    for X in (images, np.round(255 * images).astype(np.uint8)):
        corrupted = corrupt_images(X, name, 5, random_state=0)
        assert corrupted.shape == X.shape and corrupted.dtype == X.dtype
        assert 0 <= corrupted.min() < corrupted.max() <= (255 if X.dtype == "uint8" else 1)
        assert not np.array_equal(corrupted, X)
        assert_array_equal(corrupted, corrupt_images(X, name, 5, random_state=0))
        assert_array_equal(corrupt_images(X, name, 0), X)
    if name not in ("saturate", "pixelate"):
        X = photographs(60)
        corrupted = [corrupt_images(X, name, s, random_state=0) for s in range(6)]
        assert (np.diff([np.abs(Z - X).mean() for Z in corrupted]) > 0).all()


def test_corrupt_images_of_families_gives_each_image_one_at_random(monkeypatch):
    X = photographs(1100, 8)  # more than one block
    monkeypatch.setattr("problems.corruptions.TEST_CORRUPTIONS", ("contrast", "brightness"))
    chosen = corrupt_images(X, "test", 5, random_state=0)
    lower = np.isclose(chosen, corrupt_images(X, "contrast", 5)).all(axis=(1, 2, 3))
    higher = np.isclose(chosen, corrupt_images(X, "brightness", 5)).all(axis=(1, 2, 3))
    assert (lower ^ higher).all()
    assert 480 < lower.sum() < 620  # 550, give or take 17
    # Images that follow change nothing.
    assert_array_equal(chosen[:40], corrupt_images(X[:40], "test", 5, random_state=0))
