"""Searches that converge on a face of the box evaluate points beside it, too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from skuq.bayesopt import BayesianOptimizer
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._faces import moves_off_faces

NONE = np.empty((0, 3))
BOX = Domain([(-1, 1), (0, 10), (0, 1)])
#: Three results on the face x0 = -1, of which one lies on x1 = 10, too.
ON_FACE = np.array([[-1, 9.9, 0.5], [-1, 10, 0.52], [-1, 9.85, 0.49]])


def test_a_proposal_is_moved_inwards_along_each_column_that_results_do_not_vary():
    rows, moved = moves_off_faces(BOX, np.array([[-1, 10, 0.5]]), ON_FACE, NONE)
    assert_array_equal(rows, [0])  # results differ in x1
    assert_allclose(moved, [[-0.96, 10, 0.5]])
    corner = np.array([[1, 0, 1.0], [1, 0, 1], [1, 0.05, 1]])  # 0.05 is half a per cent of 10
    rows, moved = moves_off_faces(BOX, np.array([[0.3, 5, 0.5], [1, 0, 1]]), corner, NONE)
    assert_array_equal(rows, [1, 1, 1])
    assert_allclose(moved, [[0.96, 0, 1], [1, 0.2, 1], [1, 0, 0.98]])


@pytest.mark.parametrize("column", range(3))
def test_moves_are_of_the_same_share_of_each_side(column):
    x = np.array([0.1, 4, 0.3])
    x[column] = BOX.bounds[column, 1]
    _, moved = moves_off_faces(BOX, x[None], np.tile(x, (3, 1)), NONE)
    width = np.diff(BOX.bounds[column])[0]
    assert_allclose(x[column] - moved[0, column], 0.02 * width)
    assert_allclose(np.delete(moved[0], column), np.delete(x, column))


def test_a_point_off_the_face_is_enough_whatever_its_result():
    x, inside = np.array([[-1, 9.9, 0.5]]), np.array([[-0.96, 9.9, 0.5]])
    assert len(moves_off_faces(BOX, x, ON_FACE, NONE)[0]) == 1
    assert len(moves_off_faces(BOX, x, ON_FACE, inside)[0]) == 0  # failed or pending
    assert len(moves_off_faces(BOX, x, np.vstack([ON_FACE, inside]), NONE)[0]) == 0
    assert len(moves_off_faces(BOX, np.vstack([x, inside]), ON_FACE, NONE)[0]) == 0
    far = np.array([[-0.96, 5, 0.5]])  # says nothing of the slope here
    assert len(moves_off_faces(BOX, x, ON_FACE, far)[0]) == 1


def test_few_results_near_or_none_on_a_face_move_nothing():
    x = np.array([[-1, 9.9, 0.5]])
    assert len(moves_off_faces(BOX, x, ON_FACE[:2], NONE)[0]) == 0
    assert len(moves_off_faces(BOX, np.array([[-0.9, 9.9, 0.5]]), ON_FACE, NONE)[0]) == 0


def test_discrete_columns_are_not_moved():
    mixed = Domain([(0, 3), (0, 1), (0, 2)], integer=[0], categories=[2])
    x = np.array([[0, 0.0, 2]])
    rows, moved = moves_off_faces(mixed, x, np.tile(x, (3, 1)), NONE)
    assert_array_equal(rows, [0])
    assert_allclose(moved, [[0, 0.02, 2]])


def dip_beside_a_face(x):
    """A trend towards the face x0 = 0, and a narrow dip beside it."""
    return x[0] - 0.5 * np.exp(-(((x[0] - 0.05) / 0.03) ** 2)) + (x[1] - 0.5) ** 2


def process():
    return GaussianProcessRegressor(Matern(0.5, nu=2.5), optimizer=None, normalize_y=True)


@pytest.mark.parametrize(
    ("q", "settings"),
    [(1, {}), (2, {}), (3, {}), (4, {}), (1, {"acquisition": "ucb", "maximizer": "direct"})],
)
def test_a_search_finds_a_dip_beside_a_face(q, settings):
    search = BayesianOptimizer(
        process(), [(0, 1), (0, 1)], n_restarts=10, n_initial=5, random_state=0, **settings
    )
    # Results away from the face show the trend only.
    x0 = [[0.3, 0.2], [0.6, 0.9], [0.9, 0.4], [0.45, 0.7], [0.75, 0.1]]
    result = search.minimize(dip_beside_a_face, 35, q=q, x0=x0)
    assert (result.x_iters[:, 0] < 1e-3).sum() >= 3
    assert result.fun < -0.4  # on the face the least value is -0.03


def test_a_search_goes_on_along_a_face():
    search = BayesianOptimizer(process(), [(0, 1)] * 2, n_restarts=10, random_state=0)
    result = search.minimize(lambda x: x[0] + (x[1] - 0.3) ** 2, 25)
    assert result.fun < 1e-4  # at (0, 0.3)
    on_face = result.x_iters[:, 0] == 0
    assert 1 <= (~on_face[12:]).sum() <= 8
