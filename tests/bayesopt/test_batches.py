"""Batches and pending points: proposals keep apart, and draws are conditioned on pending points."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.spatial.distance import cdist
from surrogates import SQUARE, Agreeing, JointProcess, Marginal, search, told
from tiers import slow_after

APART = 1e-3 * np.sqrt(2)  # in the square


def smallest_gap(*groups):
    X = np.vstack(groups)
    return (cdist(X, X) + 9 * np.eye(len(X))).min()


SURROGATES = {"joint": JointProcess(), "agreeing": Agreeing(), "marginal": Marginal()}
SURROGATES |= {"compiled": JointProcess(compiled=True)}
SURROGATES |= {"agreeing, compiled": Agreeing(compiled=True)}


@pytest.mark.parametrize("acquisition", slow_after(1, ["lei", "ucb", "mean"]))
@pytest.mark.parametrize("name", slow_after(3, SURROGATES))
def test_ask_keeps_points_of_a_batch_apart(name, acquisition):
    for seed in range(2 if "compiled" in name else 6):
        optimizer = told(search(SURROGATES[name], acquisition, random_state=seed), seed=seed)
        x = optimizer.ask(3)
        assert smallest_gap(x, optimizer.x_) > 1e-6
        assert smallest_gap(x, optimizer.ask()) > APART * 0.999  # the batch is pending


@pytest.mark.parametrize("integer", [None, [0], [0, 1]])
@pytest.mark.parametrize("name", ["joint", "marginal"])
def test_ask_gives_distinct_whole_numbers(name, integer):
    bounds = [(0, 5), (0, 3 if integer == [0, 1] else 3.0)]
    optimizer = search(SURROGATES[name], "ei", bounds, integer=integer, n_initial=3)
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
    assert len(JointProcess.fits) == 4


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


def gain(optimizer, points, others=None):
    """Improvement expected of points, in addition to that of others, by the draws of the model."""
    known = optimizer.best_value_

    def draws(X):
        return optimizer.model_.drawn_(optimizer.domain.encode(X))

    if others is not None:
        known = np.maximum(draws(others).max(axis=1, keepdims=True), known)
    return np.maximum(draws(points) - known, 0).mean(axis=0)


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
    assert len(optimizer.forget().pending_) == 0
    assert_array_equal(optimizer.ask(2), asked)


@pytest.mark.parametrize("bounds", [SQUARE, [(0.1, 0.3), (1000, 1001)]])
def test_tell_settles_rounded_points(bounds):
    optimizer = search(JointProcess(), bounds=bounds)
    optimizer.tell(optimizer.ask(3).astype("float32"), [1.0, 2.0, 3.0])
    assert not len(optimizer.pending_)
    corner = np.array(bounds)[:, 1]
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
        beside = others if q > 1 else None
        unavailable = {tuple(point) for point in [*optimizer.x_, *others]}
        for point in (x[j], optimizer.best_x_):
            moves = (point + np.kron(np.eye(d), [[1], [2]])) % 3  # another value of one column
            near = np.array([move for move in moves if tuple(move) not in unavailable])
            # In a batch the others moved after the first point: it may be a little worse now.
            least = (1 - 1e-9 if q == 1 else 0.7) * gain(optimizer, near, beside).max()
            assert gain(optimizer, x[[j]], beside)[0] > least
