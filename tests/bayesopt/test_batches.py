"""Batches and pending points: proposals keep apart, and draws are conditioned on pending points."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from surrogates import SQUARE, Agreeing, JointProcess, Marginal, search
from tiers import slow_after

import skuq
from skuq import NEONRegressor
from skuq.bayesopt import BayesianOptimizer, ExpectedImprovement
from skuq.bayesopt._acquisition import (
    ACQUISITIONS,
    AcquisitionTask,
    CompiledAcquisition,
    acquisition_of,
)
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.datasets import make_function
from skuq.exceptions import FileFormatError
from skuq.training import Training

APART = 1e-3 * np.sqrt(2)  # in the square


def told(optimizer, n=6, seed=0):
    X = np.random.default_rng(seed).uniform(-1, 1, (n, 2))
    return optimizer.tell(X, -((X - 0.3) ** 2).sum(axis=1))


def smallest_gap(*groups):
    X = np.vstack(groups)
    return (cdist(X, X) + 9 * np.eye(len(X))).min()


SURROGATES = {
    "joint": JointProcess(),
    "agreeing": Agreeing(),
    "marginal": Marginal(),
    "compiled": JointProcess(compiled=True),
    "agreeing, compiled": Agreeing(compiled=True),
}


@pytest.mark.parametrize("acquisition", slow_after(1, ["lei", "ucb", "mean"]))
@pytest.mark.parametrize("name", slow_after(3, SURROGATES))
def test_points_of_a_batch_are_apart(name, acquisition):
    for seed in range(2 if "compiled" in name else 6):
        optimizer = told(search(SURROGATES[name], acquisition, random_state=seed), seed=seed)
        x = optimizer.ask(3)
        assert smallest_gap(x, optimizer.x_) > 1e-6
        assert smallest_gap(x) > APART * 0.999


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_batches_of_neon_are_apart(seed):
    function = make_function("branin")
    model = NEONRegressor(training=Training(steps=300))
    optimizer = search(model, bounds=function.bounds, n_restarts=100, random_state=seed)
    optimizer.minimize(lambda x: function(x[None])[0], 9, q=3)
    for _ in range(2):
        assert smallest_gap(optimizer.ask(3), optimizer.pending_[:-3]) > APART * 0.999


@pytest.mark.parametrize("integer", [None, [0], [0, 1]])
def test_batches_of_whole_numbers_are_distinct(integer):
    bounds = [(0, 5), (0, 3 if integer == [0, 1] else 3.0)]
    for name in ("joint", "marginal"):
        optimizer = search(SURROGATES[name], "ei", bounds, integer=integer, n_initial=3)
        optimizer.maximize(lambda x: -((x[0] - 2) ** 2) - x[1], 4)
        points = np.vstack([optimizer.ask(4), optimizer.ask(4), optimizer.x_])
        assert len(np.unique(points, axis=0)) == 12


# Pending points


@pytest.mark.parametrize("name", slow_after(4, SURROGATES))
def test_asked_again_before_a_result_it_gives_other_points(name):
    optimizer = told(search(SURROGATES[name]))
    x = np.vstack([optimizer.ask() for _ in range(4)])
    assert smallest_gap(x, optimizer.x_) > 1e-6
    assert smallest_gap(x) > APART * 0.999
    assert_array_equal(optimizer.pending_, x)
    assert [record.n_pending for record in optimizer.history_] == [0, 1, 2, 3]


def test_workers_share_the_fit_until_there_is_a_result():
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


def test_another_estimator_is_fitted():
    JointProcess.fits.clear()
    optimizer = told(search(JointProcess()))
    optimizer.ask()
    for length in (0.4, 0.3):
        optimizer.estimator = None  # the next one may have the address of this one
        optimizer.estimator = JointProcess(length)
        optimizer.ask()
        assert optimizer.model_.length == length
    assert len(JointProcess.fits) == 3


def test_threads_ask_for_different_points():
    optimizer = told(search(JointProcess()))
    with ThreadPoolExecutor(4) as pool:
        asked = np.vstack(list(pool.map(lambda _: optimizer.ask(), range(4))))
    assert smallest_gap(asked) > APART * 0.999
    assert smallest_gap(pickle.loads(pickle.dumps(optimizer)).ask(), asked) > APART * 0.999


def test_copies_of_a_search_do_not_change_with_it():
    optimizer = told(search(JointProcess()))
    state = optimizer.__getstate__()  # what pickle reads while other threads tell results
    optimizer.tell(optimizer.ask(), [0.5])
    assert len(state["_log"].x) == len(state["_log"].outputs) == len(optimizer._log) - 1
    assert len(state["_state"].history) == len(optimizer.history_) - 1


def test_copies_of_a_search_part_ways():
    one = told(search(JointProcess()))
    one.ask()
    other = copy.copy(one)
    for optimizer, y in ((one, 1.0), (other, -9.0)):
        optimizer.tell([0.5, 0.5], y).ask()
        assert optimizer.model_.y_[-1] == y


def test_a_loop_changes_results_under_the_lock(monkeypatch):
    optimizer, held = search(JointProcess(), n_initial=9), []
    for name in ("add", "add_failures", "expect", "forget"):
        method = getattr(optimizer._log, name)

        def recorded(*args, method=method):
            held.append(optimizer._lock._is_owned())
            return method(*args)

        monkeypatch.setattr(optimizer._log, name, recorded)
    with pytest.warns(UserWarning, match="initial ones"):
        optimizer.maximize(lambda x: 1 / max(x[0], 0), 6, q=2, x0=[[0.5, 0.5], [-0.5, 0.5]])
    assert optimizer._log.n_failed and len(held) > 6 and all(held)


def test_a_marginal_surrogate_believes_its_means_at_pending_points():
    JointProcess.fits.clear()
    optimizer = told(search(Marginal()))
    first = optimizer.ask()
    optimizer.ask()
    assert [len(X) for X in JointProcess.fits] == [6, 7]
    assert_array_equal(JointProcess.fits[1][-1:], first)


def test_draws_take_their_own_values_at_pending_points():
    """The second point maximises what it adds to the first, over a fine grid."""
    optimizer = told(search(JointProcess(), "ei", n_restarts=50))
    first, second = optimizer.ask(), optimizer.ask()
    step = optimizer._step()
    side = np.linspace(-1, 1, 60)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    known = np.maximum(step.posterior(first), optimizer.best_value_)

    def added(X):
        return np.maximum(step.posterior(X) - known, 0).mean(axis=0)

    assert added(second)[0] > 0.99 * added(grid).max()
    alone = np.maximum(step.posterior(grid) - optimizer.best_value_, 0).mean(axis=0)
    assert added(second)[0] < alone.max()  # a part of this is the first point's


def test_a_result_settles_its_point_and_a_lost_one_is_forgotten():
    optimizer = told(search(JointProcess()))
    x = optimizer.ask(3)
    optimizer.tell(x[1] * (1 + 1e-15), 0.5)
    assert_array_equal(optimizer.pending_, x[[0, 2]])
    optimizer.tell(x[0], None)
    optimizer.tell([0.77, 0.77], 0.1)  # not asked for
    assert_array_equal(optimizer.pending_, x[[2]])
    assert len(optimizer.forget(x[2]).pending_) == 0
    optimizer.ask(2)
    assert len(optimizer.forget().pending_) == 0


@pytest.mark.parametrize("bounds", [SQUARE, [(0.1, 0.3), (1000, 1001)]])
def test_rounded_points_are_settled(bounds):
    optimizer = search(JointProcess(), bounds=bounds)
    optimizer.tell(optimizer.ask(3).astype("float32"), [1.0, 2.0, 3.0])
    corner = np.array(bounds)[:, 1]
    optimizer._log.expect(corner[None])
    optimizer.tell(corner.astype("float32"), 4.0)  # the nearest number to 0.3 is larger
    assert not len(optimizer.pending_)
    assert_array_equal(optimizer.x_[-1], corner)


def test_whole_numbers_are_not_rounded():
    optimizer = search(JointProcess(), bounds=[(0, 2**30)], integer=[0])
    with pytest.raises(ValueError, match="within the bounds"):
        optimizer.tell([2**30 + 50], 1.0)


def test_neighbouring_whole_numbers_are_other_points():
    optimizer = search(JointProcess(), bounds=[(0, 1), (0, 10**7)], integer=[1])
    optimizer._log.expect(np.array([[0.5, 1000.0], [0.5, 1001.0]]))
    optimizer.tell([0.5, 1001], 1.0)
    assert_array_equal(optimizer.pending_, [[0.5, 1000]])
    optimizer.tell([0.5, 1003], 1.0)
    assert_array_equal(optimizer.pending_, [[0.5, 1000]])


def test_a_forgotten_point_may_be_asked_again():
    optimizer = told(search(JointProcess()))
    x = optimizer.ask()
    assert_array_equal(optimizer.forget().ask(), x)


def test_the_initial_design_goes_on_while_points_are_pending():
    whole, parts = search(JointProcess(), n_initial=6), search(JointProcess(), n_initial=6)
    design = whole.ask(6)
    assert_array_equal(np.vstack([parts.ask(), parts.ask(2), parts.ask(3)]), design)
    later = parts.ask(2)  # no model yet: none of the six results is there
    assert smallest_gap(design, later) > 0
    parts.tell(design[::-1], np.arange(6.0))
    assert_array_equal(parts.pending_, later)


def test_a_small_domain_is_not_asked_for_more_than_it_has():
    optimizer = search(JointProcess(), bounds=[(0, 1)] * 2, integer=[0, 1], n_initial=2)
    optimizer.tell([[0, 0], [1, 1]], [0.0, 1.0])
    x = np.vstack([optimizer.ask(), optimizer.ask()])
    assert len(np.unique(x, axis=0)) == 2
    with pytest.raises(ValueError, match="All but 0 points of the domain are known or pending"):
        optimizer.ask()


def test_pending_points_are_saved(tmp_path):
    optimizer = told(search(JointProcess()))
    optimizer.ask(2)
    optimizer.save(tmp_path / "search.skuq")
    other = BayesianOptimizer.load(tmp_path / "search.skuq", JointProcess())
    assert_array_equal(other.pending_, optimizer.pending_)
    assert_array_equal(other.ask(), optimizer.ask())
    assert other.history_[0] == optimizer.history_[0]
    with pytest.raises(FileFormatError, match="Read it with BayesianOptimizer.load of skuq"):
        skuq.load(tmp_path / "search.skuq")


def test_points_of_an_interrupted_loop_are_not_expected():
    optimizer = search(JointProcess(), n_initial=2)

    def impatient(x):
        if len(optimizer.x_) == 4:
            raise KeyboardInterrupt
        return x[0]

    with pytest.warns(UserWarning, match="Interrupted"):
        optimizer.maximize(impatient, 9, q=3)
    assert len(optimizer.x_) == 4 and len(optimizer.pending_) == 0


def test_a_loop_leaves_the_pending_points_of_others():
    """A noisy function may be evaluated twice in one place, by the loop and by a worker."""
    optimizer = search(JointProcess(noise=0.3), "ei", [(0, 1)], integer=[0], noisy=True)
    optimizer.ask(4)
    with pytest.warns(UserWarning, match="initial ones"):
        optimizer.maximize(lambda x: x[0], 2, x0=[[0], [1]])
    assert len(optimizer.pending_) == 4


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("name", ["ei", "lei", "pi", "mean", "uncertainty", "ucb"])
def test_acquisition_beside_pending_points_is_that_of_the_whole_batch(name, q):
    rng = np.random.default_rng(0)
    values, known = rng.normal(size=(40, 5, q)), rng.normal(size=(40, 2))
    acquisition = ACQUISITIONS[name]().at(0.7)
    level = acquisition.pending_level(known)
    beside = acquisition(np, values, 0.4, pending=level)
    together = np.concatenate([values, np.repeat(known[:, None], 5, axis=1)], axis=-1)
    if name == "lei":  # the gains of the known points are the same everywhere
        whole = acquisition(np, together, 0.4)
        assert_allclose(np.diff(beside), np.diff(whole), atol=1e-12)
    elif name == "pi":  # smoothed by its own bandwidth: only the order is the same
        assert beside.max() < acquisition(np, values, 0.4).max()
    else:
        whole = acquisition(np, together, 0.4)
        alone = np.maximum(known.max(axis=1) - 0.4, 0).mean() if name == "ei" else 0.0
        assert_allclose(beside, whole - alone, atol=1e-12)


@pytest.mark.parametrize("name", ["lei", "ucb"])
def test_compiled_programs_know_pending_points(name):
    posterior = told(search(JointProcess(compiled=True)))._step().posterior
    acquisition, box = ACQUISITIONS[name](), np.array(SQUARE, dtype=float)
    level = acquisition.pending_level(posterior([[0.2, 0.2], [0.4, 0.1]]))
    task = AcquisitionTask(posterior, acquisition, None, box, -0.1, 1, level)
    u = np.random.default_rng(0).random((9, 2))
    exact = acquisition_of(task)(u)
    assert_allclose(CompiledAcquisition(task).values(u), exact, atol=1e-4)
    assert_allclose(CompiledAcquisition(task, "float64").values(u), exact, atol=1e-12)
    assert np.abs(acquisition_of(task._replace(pending=None))(u) - exact).max() > 1e-3


@dataclass
class Shifted:
    """An objective that is not hashable, as data classes are not."""

    shift: float

    def __call__(self, outputs):
        return outputs - self.shift


@pytest.mark.parametrize("constraints", [None, {"low": Shifted(2.0)}])
def test_steps_share_programs_for_functions_that_are_not_hashable(constraints):
    optimizer = told(search(JointProcess(), objective=Shifted(0.1), constraints=constraints))
    one, other = (optimizer._step().objective for _ in range(2))
    assert one is not other
    assert one == other and hash(one) == hash(other)


def test_pending_points_need_joint_draws():
    posterior = told(search(Marginal()))._step().posterior
    with pytest.raises(ValueError, match="joint"):
        maximize_acquisition(posterior, "ei", None, SQUARE, 0.0, pending=[[0.0, 0.0]], n_restarts=2)


# What a search shows of itself


def test_a_search_can_be_read():
    optimizer = search(JointProcess(), n_initial=3)
    assert repr(optimizer) == (
        "<BayesianOptimizer: JointProcess, 'lei', maximize, 2 columns; 0 results, 0 pending>"
    )
    optimizer.tell([[0.5, 0.5], [0.1, 0.1]], [1.25, np.nan])
    x = optimizer.ask(2)
    assert repr(optimizer) == (
        "<BayesianOptimizer: JointProcess, 'lei', maximize, 2 columns; 2 results (1 failed), "
        "2 pending, best value 1.25>"
    )
    frame = optimizer.to_frame()
    assert list(frame) == ["x0", "x1", "value", "status", "message"]
    assert frame["status"].tolist() == ["completed", "failed", "pending", "pending"]
    assert_array_equal(frame[["x0", "x1"]].to_numpy()[2:], x)
    assert frame["message"].tolist() == ["", "NaN, inf or beyond 1e+150", "", ""]
    assert frame["value"].isna().tolist() == [False, True, True, True]


@pytest.mark.parametrize("q", [1, 3])
def test_categories_are_climbed_from_the_best_known_points(q):
    """A domain too large to list: neither a proposal nor the best result has a better neighbour."""
    d, target = 9, np.arange(9) % 3
    optimizer = search(
        JointProcess(3.0), "ei", [(0, 2)] * d, categories=range(d), n_restarts=2, n_initial=20
    )
    optimizer.maximize(lambda x: -np.sum(x != target), 24)
    x = optimizer.ask(q)
    optimizer.forget()
    step, acquisition = optimizer._step(), ExpectedImprovement()
    for j in range(q):
        others = np.delete(x, j, axis=0)
        value = step._values_with(others, x[[j]], acquisition)[0]
        for point in (x[j], optimizer.best_x_):
            near = optimizer.domain.neighbours(point, 0, None)
            near = near[step._is_available(near, others)]
            # In a batch the others moved after the first point: it may be a little worse now.
            best = step._values_with(others, near, acquisition).max()
            assert value > (1 - 1e-9 if q == 1 else 0.7) * best
