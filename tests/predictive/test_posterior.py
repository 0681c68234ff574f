"""Draws of functions: shapes, chunks of rows, evenly spread normals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq._random import quasi_random_normals
from skuq.predictive import Posterior


def lines(slopes, **changes):
    settings = {"key": "lines", "n_draws": len(slopes), "output_shape": ()}
    return Posterior(lambda xp, a, X: a[0] @ X.T, (slopes,), **{**settings, **changes})


def test_posterior_evaluates_every_draw_at_every_row():
    draws = lines([[1.0, 0.0], [2.0, 1.0]])([[1, 2], [3, 4], [5, 6]])
    assert_array_equal(draws, [[1, 3, 5], [4, 10, 16]])
    assert draws.dtype == "float64"
    assert lines(np.eye(2))(np.empty((0, 2))).shape == (2, 0)


def test_chunks_of_rows_change_nothing(monkeypatch, rng):
    posterior, X = lines(np.eye(3)), rng.normal(size=(11, 3))
    monkeypatch.setattr("skuq.predictive._posterior._ENTRIES_PER_CHUNK", 6)
    assert_array_equal(posterior(X), X.T)


@cases(
    ("changes", "X", "error", "message"),
    *(({}, X, ValueError, r"X must have shape \(n, n_features\)") for X in ([1.0, 2.0], 3.0)),
    ({"output_shape": (4,)}, np.ones((3, 2)), ValueError, r"\(2, 3, 4\).*Got \(2, 3\)"),
    ({"n_draws": 0}, None, ValueError, "n_draws"),
    ({"key": []}, None, TypeError, "hash"),
)
def test_posterior_refuses(changes, X, error, message):
    with pytest.raises(error, match=message):
        lines(np.eye(2), **changes)(X)


@pytest.mark.parametrize("n_draws", [2, 10, 128])
def test_quasi_random_normals_have_exact_moments(n_draws, global_random_seed):
    normals = quasi_random_normals(n_draws, 5, np.random.default_rng(global_random_seed))
    assert_allclose(normals.mean(axis=0), 0, atol=1e-15 * n_draws)
    assert_allclose(np.mean(normals**2, axis=0), 1, rtol=1e-12)


def test_quasi_random_normals_are_spread_more_evenly_than_chance(global_random_seed):
    normals = quasi_random_normals(128, 16, np.random.default_rng(global_random_seed))
    # Kolmogorov's distance of 128 chance draws is 0.075 in the median; one in every 128th
    # quantile has 1/128, and the shift and the scale move it by a little.
    distance = max(stats.kstest(column, "norm").statistic for column in normals.T)
    assert distance < 0.03


@pytest.mark.parametrize(("n_draws", "n_columns"), [(1, 3), (8, 0)])
def test_quasi_random_normals_of_no_variance_are_refused(n_draws, n_columns):
    with pytest.raises(ValueError, match="n_draws must be at least 2"):
        quasi_random_normals(n_draws, n_columns, np.random.default_rng(0))
