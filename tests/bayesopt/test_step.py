"""Proposals: batches and pending points, noisy functions, and faces of the box."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern
from surrogates import Agreeing, JointProcess, Marginal, moves_off_faces, search, told
from tiers import cases, slow_after

APART = 1e-3 * np.sqrt(2)  # in the square


def smallest_gap(*groups):
    X = np.vstack(groups)
    return (cdist(X, X) + 9 * np.eye(len(X))).min()


MODELS = [JointProcess(), Marginal(), Agreeing(), JointProcess(compiled=True)]


@pytest.mark.parametrize("acquisition", slow_after(1, ["lei", "ucb"]))
@pytest.mark.parametrize("model", slow_after(3, MODELS), ids=repr)
def test_ask_keeps_points_of_a_batch_apart(model, acquisition):
    for seed in range(2):
        optimizer = told(search(model, acquisition), seed=seed)
        x = optimizer.ask(3)
        assert smallest_gap(x, optimizer.x_) > 1e-6
        assert smallest_gap(x, optimizer.ask()) > APART * 0.999  # the batch is pending


@pytest.mark.parametrize("integer", [[0], [0, 1]])
@pytest.mark.parametrize("model", MODELS[:2], ids=repr)
def test_ask_gives_distinct_whole_numbers(model, integer):
    optimizer = search(model, "ei", [(0, 5), (0, 3)], integer=integer, n_initial=3)
    optimizer.maximize(lambda x: -((x[0] - 2) ** 2) - x[1], 4)
    points = np.vstack([optimizer.ask(4), optimizer.ask(4), optimizer.x_])
    assert len(np.unique(points, axis=0)) == 12


def test_ask_fits_once_until_there_is_a_result_or_another_estimator():
    JointProcess.fits.clear()
    optimizer = told(search(JointProcess()))
    first, second = optimizer.ask(), optimizer.ask()
    assert len(JointProcess.fits) == 1
    assert optimizer.history_[1].seconds_fit == 0
    optimizer.tell(second, [0.0])  # the later one is ready first
    assert_array_equal(optimizer.pending_, first)
    third = optimizer.ask()
    assert len(JointProcess.fits) == 2
    assert smallest_gap(first, third) > APART * 0.999
    for length in (0.4, 0.3):
        optimizer.estimator = None  # the next one may have the address of this one
        optimizer.estimator = JointProcess(length)
        optimizer.ask()
        assert optimizer.model_.length == length


def test_ask_of_threads_gives_different_points():
    optimizer = told(search(JointProcess()))
    with ThreadPoolExecutor(4) as pool:
        asked = np.vstack(list(pool.map(lambda _: optimizer.ask(), range(4))))
    assert smallest_gap(asked) > APART * 0.999
    assert smallest_gap(pickle.loads(pickle.dumps(optimizer)).ask(), asked) > APART * 0.999


def test_ask_takes_marginal_means_for_pending_results():
    JointProcess.fits.clear()
    optimizer = told(search(Marginal()))
    first = optimizer.ask()
    optimizer.ask()
    assert [len(X) for X in JointProcess.fits] == [6, 7]
    assert_array_equal(JointProcess.fits[1][-1:], first)


def gain(optimizer, points, others=()):
    """Improvement expected of points, in addition to that of others, by the draws of the model."""
    drawn = optimizer.model_.drawn_
    known = optimizer.best_value_
    if len(others):
        pending = drawn(optimizer.domain.encode(others)).max(axis=1, keepdims=True)
        known = np.maximum(pending, known)
    return np.maximum(drawn(optimizer.domain.encode(points)) - known, 0).mean(axis=0)


def test_ask_draws_take_their_own_values_at_pending_points():
    """The second point maximises what it adds to the first, over a fine grid."""
    optimizer = told(search(JointProcess(), "ei", n_restarts=50))
    first, second = optimizer.ask(), optimizer.ask()
    side = np.linspace(-1, 1, 60)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    added = gain(optimizer, second, first)[0]
    assert added > 0.99 * gain(optimizer, grid, first).max()
    assert added < gain(optimizer, grid).max()  # a part of this is the first point's


def test_tell_settles_its_point_and_forgets_a_lost_one():
    optimizer = told(search(JointProcess()))
    x = optimizer.ask(3)
    optimizer.tell(x[1] * (1 + 1e-15), 0.5)
    assert_array_equal(optimizer.pending_, x[[0, 2]])
    optimizer.tell(x[0], None)
    optimizer.tell([0.77, 0.77], 0.1)  # not asked for
    assert_array_equal(optimizer.pending_, x[[2]])
    assert len(optimizer.forget(x[2]).pending_) == 0
    asked = optimizer.ask(2)
    assert_array_equal(optimizer.forget().ask(2), asked)


def test_tell_settles_rounded_points():
    optimizer = search(JointProcess(), bounds=[(0.1, 0.3), (1000, 1001)])
    optimizer.tell(optimizer.ask(3).astype("float32"), [1.0, 2.0, 3.0])
    assert not len(optimizer.pending_)
    corner = np.array([0.3, 1001])
    optimizer.tell(corner.astype("float32"), 4.0)  # the nearest number to 0.3 is larger
    assert_array_equal(optimizer.x_[-1], corner)


def test_ask_compiles_an_objective_that_replaces_another():
    settings = {"bounds": [(0, 1)], "n_initial": 5}
    optimizer = search(JointProcess(1.0, compiled=True), "mean", objective=np.negative, **settings)
    X = np.linspace(0, 1, 6)[:, None]
    optimizer.tell(X, X[:, 0].tolist())
    for best in (0.2, 0.8):
        optimizer.objective = lambda y, best=best: -((y - best) ** 2)
        x = optimizer.ask()
        assert abs(x[0, 0] - best) < 0.03
        optimizer.tell(x, x[:, 0].tolist())


@pytest.mark.parametrize("q", [1, 3])
def test_ask_climbs_categories_from_the_best_known_points(q):
    """A domain too large to list: neither a proposal nor the best result has a better neighbour."""
    d, target = 9, np.arange(9) % 3
    settings = {"categories": range(d), "n_restarts": 2, "n_initial": 20}
    optimizer = search(JointProcess(3.0), "ei", [(0, 2)] * d, **settings)
    optimizer.maximize(lambda x: -np.sum(x != target), 24)
    x = optimizer.ask(q)
    for j in range(q):
        others = np.delete(x, j, axis=0)
        unavailable = {tuple(point) for point in [*optimizer.x_, *others]}
        for point in (x[j], optimizer.best_x_):
            moves = (point + np.kron(np.eye(d), [[1], [2]])) % 3  # another value of one column
            near = np.array([move for move in moves if tuple(move) not in unavailable])
            # In a batch the others moved after the first point: it may be a little worse now.
            least = (1 - 1e-9 if q == 1 else 0.7) * gain(optimizer, near, others).max()
            assert gain(optimizer, x[[j]], others)[0] > least


@pytest.mark.parametrize("model", [JointProcess(noise=0.3), Marginal(noise=0.3)])
def test_ask_of_a_noisy_search_may_exceed_the_domain(model):
    optimizer = search(model, "ei", [(0, 1)], integer=[0], noisy=True, n_initial=2)
    optimizer.tell([[0], [1]], [0.0, 1.0])
    x = optimizer.ask(5)
    assert x.shape == (5, 1) and len(np.unique(x)) == 2
    optimizer.tell(x[0], 0.5).forget(x[0])  # each settles one of equal points
    assert len(optimizer.pending_) == 3


def test_best_of_a_noisy_search_follows_the_direction():
    optimizer = search(JointProcess(noise=0.3), "mean", noisy=True, n_initial=2)
    optimizer.tell([*[[0.5, 0.5]] * 2, [-0.9, 0.1], [0.1, -0.9]], [3.0, -1.0, 2.0, 0.0])
    optimizer.ask()
    assert_allclose(optimizer.best_x_, [-0.9, 0.1])  # a 3 is luck: the mean there is 1
    assert 1.3 < optimizer.best_value_ < 2.2
    optimizer.direction = "minimize"  # before its first model
    assert_allclose(optimizer.best_x_, [0.1, -0.9])
    assert optimizer.best_value_ < 0.7
    best, optimizer.n_draws = optimizer.best_value_, 0  # the next step raises an error
    assert optimizer.best_value_ == best
    with pytest.raises(ValueError, match="n_draws"):
        optimizer.ask()


BOX, NONE = search(Marginal(), bounds=[(-1, 1), (0, 10), (0, 1)]).domain, np.empty((0, 3))
#: Three results on the face x0 = -1, of which one lies on x1 = 10, too.
ON_FACE = np.array([[-1, 9.9, 0.5], [-1, 10, 0.52], [-1, 9.85, 0.49]])
X, INSIDE = [[-1, 9.9, 0.5]], [[-0.96, 9.9, 0.5]]


def test_moves_off_faces_goes_inwards_along_columns_that_results_do_not_vary():
    rows, moved = moves_off_faces(BOX, np.array([[-1, 10, 0.5]]), ON_FACE, NONE)
    assert_array_equal(rows, [0])  # results differ in x1
    assert_allclose(moved, [[-0.96, 10, 0.5]])
    corner = np.array([[1, 0, 1.0], [1, 0, 1], [1, 0.05, 1]])  # 0.05 is half a per cent of 10
    rows, moved = moves_off_faces(BOX, np.array([[0.3, 5, 0.5], [1, 0, 1]]), corner, NONE)
    assert_array_equal(rows, [1, 1, 1])
    assert_allclose(moved, [[0.96, 0, 1], [1, 0.2, 1], [1, 0, 0.98]])


@cases(
    ("results", "others", "batch", "n_moves"),
    (ON_FACE, NONE, X, 1),
    (ON_FACE, [[-0.96, 5, 0.5]], X, 1),  # far: it says nothing of the slope here
    (ON_FACE, INSIDE, X, 0),  # failed or pending
    ([*ON_FACE, *INSIDE], NONE, X, 0),
    (ON_FACE, NONE, [*X, *INSIDE], 0),
    (ON_FACE[:2], NONE, X, 0),
    (ON_FACE, NONE, [[-0.9, 9.9, 0.5]], 0),
)
def test_moves_off_faces_needs_results_near_and_none_off_the_face(results, others, batch, n_moves):
    given = (np.array(points) for points in (batch, results, others))
    assert len(moves_off_faces(BOX, *given)[0]) == n_moves


def test_moves_off_faces_are_along_continuous_columns():
    bounds, x = [(0, 3), (0, 1), (0, 2)], np.array([[0, 0.0, 2]])
    mixed = search(Marginal(), bounds=bounds, integer=[0], categories=[2]).domain
    rows, moved = moves_off_faces(mixed, x, np.tile(x, (3, 1)), NONE)
    assert_array_equal(rows, [0])
    assert_allclose(moved, [[0, 0.02, 2]])


def dip_beside_a_face(x):
    """A trend towards the face x0 = 0, and a narrow dip beside it."""
    return x[0] - 0.5 * np.exp(-(((x[0] - 0.05) / 0.03) ** 2)) + (x[1] - 0.5) ** 2


@pytest.mark.parametrize("q", [1, 3])
def test_minimize_finds_a_dip_beside_a_face(q):
    process = GaussianProcessRegressor(Matern(0.5, nu=2.5), optimizer=None, normalize_y=True)
    optimizer = search(process, bounds=[(0, 1)] * 2, n_initial=5, n_draws=128)
    # Results away from the face show the trend only.
    x0 = [[0.3, 0.2], [0.6, 0.9], [0.9, 0.4], [0.45, 0.7], [0.75, 0.1]]
    result = optimizer.minimize(dip_beside_a_face, 30, q=q, x0=x0)
    assert (result.x_iters[:, 0] < 1e-3).sum() >= 3
    assert result.fun < -0.4  # on the face the least value is -0.03
