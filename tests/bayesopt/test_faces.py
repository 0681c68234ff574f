"""Searches that converge on a face of the box evaluate points beside it, too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern
from surrogates import expecting, moves_off_faces

from skuq.bayesopt import BayesianOptimizer, MultiStart
from skuq.predictive import Posterior

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


class Slope(RegressorMixin, BaseEstimator):
    """Surrogate of joint draws that rise along each column, more steeply along later ones."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X @ np.arange(1.0, X.shape[1] + 1)

    def posterior_fn(self, n_draws=4, random_state=None):
        def draws(xp, arguments, X):
            return xp.sum(X * arguments[0], axis=-1) * arguments[1][:, None]

        slopes, factors = np.arange(1.0, 4.0), np.linspace(0.9, 1.1, n_draws)
        return Posterior(draws, (slopes, factors), None, n_draws, output_shape=())


@pytest.fixture
def propose(monkeypatch):
    """Ask a search for points while its maximiser finds given ones."""

    def asked(search, points):
        points = np.array(points, dtype="float64")
        monkeypatch.setattr(
            "skuq.bayesopt._step.Step._maximize",
            lambda step, q, acquisition, others=None: points[:q].copy(),
        )
        return search.ask(len(points))

    return asked


CORNER = [[0.001, 0.002, 0.5], [0.002, 0.001, 0.5], [0.003, 0.003, 0.5], [0.5, 0.5, 0.5]]


def corner_search(surrogate, n_results, **settings):
    """A search with results at the edge x0 = x1 = 0, and others far from it."""
    settings = {"maximizer": FEW, "n_draws": 4, "n_initial": 2, "random_state": 0, **settings}
    search = BayesianOptimizer(surrogate, [(0, 1)] * 3, **settings)
    others = 0.8 + np.arange(n_results - 4)[:, None] / 50 + np.zeros(3)
    return search.tell(np.vstack([CORNER, others]), np.arange(float(n_results)))


def test_ask_makes_the_move_of_the_largest_acquisition_alone(propose):
    # Inwards along x1 the surrogate rises twice as fast as along x0; the second point gains more.
    x = propose(corner_search(Slope(), 5), [[0, 0, 0.49], [0, 0, 0.52], [0.3, 0.5, 0.2]])
    assert_allclose(x, [[0, 0, 0.49], [0, 0.02, 0.52], [0.3, 0.5, 0.2]])


@pytest.mark.parametrize("n_results", [4, 5])
def test_ask_moves_every_other_single_point(propose, n_results):
    search, point = corner_search(Slope(), n_results), [[0, 0, 0.5]]
    first = propose(search, point)
    assert (first != point).any() == (n_results == 4)
    search.forget()
    assert_array_equal(propose(search, point), first)
    # Pending points count, where draws are joint.
    search = expecting(search, [[0.9, 0.1, 0.1]])
    assert (propose(search, point) != point).any() == (n_results == 5)


def test_ask_counts_failed_and_pending_points_off_the_face(propose):
    for settle in ("fail", "expect"):
        search, inside = corner_search(Slope(), 4), np.array([[0.02, 0.02, 0.5]])
        if settle == "fail":
            search.tell(inside, [np.nan]).tell([[0.9, 0.2, 0.1]], [0.0])
        else:
            search = expecting(search, [inside[0], [0.9, 0.2, 0.1]])
        # A proposal keeps away from failures: it is at the other end of the third column.
        assert_array_equal(propose(search, [[0, 0, 0.45]])[:, :2], [[0, 0]])


def test_ask_counts_a_proposal_just_beside_a_face_as_on_it(propose):
    x = propose(corner_search(Slope(), 4), [[0.0009, 0.3, 0.5]])
    assert_allclose(x, [[0.0009, 0.3, 0.5]])  # no results near
    x = propose(corner_search(Slope(), 4), [[0.0009, 0.002, 0.5]])
    assert_allclose(x, [[0.02, 0.002, 0.5]])  # along x0 only: 0.002 is off the face of x1
