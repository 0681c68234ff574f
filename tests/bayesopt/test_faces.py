"""Searches that converge on a face of the box evaluate points beside it, too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern
from surrogates import moves_off_faces

from skuq.bayesopt import BayesianOptimizer, MultiStart

NONE, FEW = np.empty((0, 3)), MultiStart(n_restarts=10)


def domain_of(bounds, **settings):
    return BayesianOptimizer(GaussianProcessRegressor(), bounds, **settings).domain


BOX = domain_of([(-1, 1), (0, 10), (0, 1)])
#: Three results on the face x0 = -1, of which one lies on x1 = 10, too.
ON_FACE = np.array([[-1, 9.9, 0.5], [-1, 10, 0.52], [-1, 9.85, 0.49]])


def test_moves_off_faces_goes_inwards_along_columns_that_results_do_not_vary():
    rows, moved = moves_off_faces(BOX, np.array([[-1, 10, 0.5]]), ON_FACE, NONE)
    assert_array_equal(rows, [0])  # results differ in x1
    assert_allclose(moved, [[-0.96, 10, 0.5]])
    corner = np.array([[1, 0, 1.0], [1, 0, 1], [1, 0.05, 1]])  # 0.05 is half a per cent of 10
    rows, moved = moves_off_faces(BOX, np.array([[0.3, 5, 0.5], [1, 0, 1]]), corner, NONE)
    assert_array_equal(rows, [1, 1, 1])
    assert_allclose(moved, [[0.96, 0, 1], [1, 0.2, 1], [1, 0, 0.98]])


def test_moves_off_faces_needs_results_near_and_none_off_the_face():
    x, inside = np.array([[-1, 9.9, 0.5]]), np.array([[-0.96, 9.9, 0.5]])
    assert len(moves_off_faces(BOX, x, ON_FACE, NONE)[0]) == 1
    assert len(moves_off_faces(BOX, x, ON_FACE, inside)[0]) == 0  # failed or pending
    assert len(moves_off_faces(BOX, x, np.vstack([ON_FACE, inside]), NONE)[0]) == 0
    assert len(moves_off_faces(BOX, np.vstack([x, inside]), ON_FACE, NONE)[0]) == 0
    far = np.array([[-0.96, 5, 0.5]])  # says nothing of the slope here
    assert len(moves_off_faces(BOX, x, ON_FACE, far)[0]) == 1
    x = np.array([[-1, 9.9, 0.5]])
    assert len(moves_off_faces(BOX, x, ON_FACE[:2], NONE)[0]) == 0
    assert len(moves_off_faces(BOX, np.array([[-0.9, 9.9, 0.5]]), ON_FACE, NONE)[0]) == 0
    mixed, x = domain_of([(0, 3), (0, 1), (0, 2)], integer=[0], categories=[2]), [[0, 0.0, 2]]
    rows, moved = moves_off_faces(mixed, np.array(x), np.tile(x, (3, 1)), NONE)
    assert_array_equal(rows, [0])
    assert_allclose(moved, [[0, 0.02, 2]])


def dip_beside_a_face(x):
    """A trend towards the face x0 = 0, and a narrow dip beside it."""
    return x[0] - 0.5 * np.exp(-(((x[0] - 0.05) / 0.03) ** 2)) + (x[1] - 0.5) ** 2


@pytest.mark.parametrize("q", [1, 3])
def test_minimize_finds_a_dip_beside_a_face(q):
    process = GaussianProcessRegressor(Matern(0.5, nu=2.5), optimizer=None, normalize_y=True)
    search = BayesianOptimizer(process, [(0, 1)] * 2, maximizer=FEW, n_initial=5, random_state=0)
    # Results away from the face show the trend only.
    x0 = [[0.3, 0.2], [0.6, 0.9], [0.9, 0.4], [0.45, 0.7], [0.75, 0.1]]
    result = search.minimize(dip_beside_a_face, 30, q=q, x0=x0)
    assert (result.x_iters[:, 0] < 1e-3).sum() >= 3
    assert result.fun < -0.4  # on the face the least value is -0.03
