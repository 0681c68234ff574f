"""Searches: proposals, batches, results, failures, refused arguments, and posteriors of models."""

import itertools
import math
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from surrogates import SQUARE, Agreeing, JointProcess, Marginal, moves_off_faces, posterior_of, told
from surrogates import search as search_by
from tiers import cases, slow_after

from skuq import CalibratedUncertaintyRegressor, bayesopt
from skuq.bayesopt import MultiStart, OutputwiseRegressor, UpperConfidenceBound
from skuq.bayesopt._step import Step
from skuq.exceptions import SearchFailedError

CALIBRATED = CalibratedUncertaintyRegressor(LinearRegression())
TRANSFORMED = make_pipeline(TransformedTargetRegressor(Marginal()))
TWO = [[0.0, 0.0], [0.1, 0.0]]
APART = 1e-3 * np.sqrt(2)  # in the square
MODELS = [JointProcess(), Marginal(), Agreeing(), JointProcess(compiled=True)]
X = np.random.RandomState(0).uniform(size=(12, 2))
Y = np.column_stack([X.sum(axis=1), np.sin(3 * X[:, 0]), X[:, 1] ** 2])
NEW = np.random.RandomState(1).uniform(size=(7, 2))
BOX, NONE = search_by(Marginal(), bounds=[(-1, 1), (0, 10), (0, 1)]).domain, np.empty((0, 3))
#: Three results on the face x0 = -1, of which one lies on x1 = 10, too.
ON_FACE = np.array([[-1, 9.9, 0.5], [-1, 10, 0.52], [-1, 9.85, 0.49]])
AT, INSIDE = [[-1, 9.9, 0.5]], [[-0.96, 9.9, 0.5]]


def search(bounds=SQUARE, acquisition="lei", estimator=None, **settings):
    return search_by(estimator or Marginal(), acquisition, bounds, **settings)


def bowl(x):
    return (x[0] - 0.3) ** 2 + (x[1] + 0.2) ** 2


class Recorder(RegressorMixin, BaseEstimator):
    """A made-up posterior that records the seeds of its fits, and refuses a number of rows."""

    seeds = []

    def __init__(self, n_refused=None, random_state=None):
        self.n_refused, self.random_state = n_refused, random_state

    def fit(self, X, y):
        Recorder.seeds.append(self.random_state)
        if len(X) == self.n_refused:
            raise FloatingPointError("diverged")
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X, return_std=False):
        return X[:, 0], 0.1 + X[:, -1] ** 2


@pytest.fixture
def recorder():
    Recorder.seeds.clear()
    return Recorder()


def test_domain_encodes_decodes_and_gives_whole_numbers_equal_shares(rng):
    domain = search([(0, 2), (-1, 1), (0, 3)], integer=[2], categories=[0]).domain
    X = np.array([[1, 0.25, 3], [2, -1, 0]])
    encoded = domain.encode(X)
    assert_array_equal(encoded, [[0, 1, 0, 0.25, 3], [0, 0, 1, -1, 0]])
    assert_array_equal(domain.decode(encoded), X)
    assert_array_equal(domain.decode(np.array([[0.2, 0.1, 0.3, 0.5, 1.6]])), [[2, 0.5, 2]])
    assert_array_equal(domain.encoded_bounds, [[0, 1]] * 3 + [[-1, 1], [0, 3]])
    domain = search([(0, 1000), (0, 2)], categories=[1]).domain
    points = np.array([[0, 0], [500, 0], [0, 1]])
    assert_allclose(domain.distance(points, points[:1]), [0, 1, math.sqrt(8)])
    assert domain.distance(points, points[:0]).tolist() == [math.inf] * 3
    assert math.isinf(domain.n_points)
    domain = search([(-1, 2), (0, 1)], integer=[0], categories=[1]).domain
    for X in (domain.sample(4000, rng), domain.design(4000, rng)):
        for column, n in ((0, 4), (1, 2)):
            _, counts = np.unique(X[:, column], return_counts=True)
            # Five standard deviations of a binomial share, at most sqrt(4000 / 4).
            assert len(counts) == n and np.abs(counts - 4000 / n).max() < 5 * math.sqrt(1000)
    assert domain.n_points == len(domain.grid()) == len(np.unique(domain.grid(), axis=0)) == 8


@cases(
    ("settings", "error", "message"),
    ({"bounds": [(1, 0)]}, ValueError, "reversed"),
    ({"bounds": np.array([["2020", "2021"]], "M8[D]")}, ValueError, "must be pairs of numbers"),
    ({"bounds": [(0, 1), (2, 2)]}, ValueError, "zero width"),
    ({"bounds": [(-1e308, 1e308)]}, ValueError, "finite.* high - low"),
    ({"bounds": [(0, 1), ["a", "b"]]}, ValueError, "pairs.* a column of codes"),
    ({"integer": [2]}, ValueError, "`integer`"),
    ({"integer": [0], "categories": [0]}, ValueError, "both"),
    ({"categories": [0]}, ValueError, "K - 1"),
    ({"acquisition": "best"}, ValueError, "best"),
    ({"acquisition": bayesopt.LeakyExpectedImprovement(1.5)}, ValueError, "'delta' .* Got 1.5"),
    ({"acquisition": UpperConfidenceBound(-1.0)}, ValueError, "'beta' parameter"),
    ({"acquisition": UpperConfidenceBound(deviation="variance")}, ValueError, "'deviation' par"),
    ({"acquisition": UpperConfidenceBound(mean_width=-1)}, ValueError, "'mean_width' parameter"),
    ({"acquisition": UpperConfidenceBound(2, mean_width=0.5)}, ValueError, "determines `beta`"),
    ({"n_draws": 1}, ValueError, "n_draws"),
    ({"maximizer": "luck"}, ValueError, "'maximizer' (?!.*Direct')"),
    ({"maximizer": MultiStart("direct")}, ValueError, "'method' parameter"),
    ({"objective": 3}, TypeError, "objective"),
    ({"callback": "x"}, TypeError, "`callback` must be a function"),
    ({"direction": "min"}, ValueError, "'direction' parameter"),
    ({"estimator": Marginal}, TypeError, "not its class"),
    ({"estimator": make_pipeline(LinearRegression())}, TypeError, "no uncertainty"),
    ({"estimator": CALIBRATED}, TypeError, "no uncertainty.* a calibration adds noise only"),
    ({"estimator": LogisticRegression()}, TypeError, "Got the classifier"),
    ({"estimator": TRANSFORMED}, TypeError, "not in units of y"),
)
def test_optimizer_refuses_settings(settings, error, message):
    with pytest.raises(error, match=message):
        search(**settings)


def test_ask_depends_on_what_was_told_alone_and_begins_with_a_latin_hypercube(rng):
    one, other = search(), search()
    one.ask()  # asking leaves nothing behind but a pending point
    X = rng.uniform(-1, 1, (6, 2))
    one.forget().tell(X, [bowl(x) for x in X])
    for x in X:
        other.tell(x, bowl(x))
    assert_array_equal(one.ask(2), other.ask(2))
    assert_array_equal(one.ask(), other.ask())
    box = np.array([[-1.0, 1.0], [-1.0, 1.0]])
    latin = search(bounds=box, n_initial=8)
    box += 10  # as for another search
    X = latin.ask(8)
    # Three points of one's own are a design of two columns; the search's own design is whole.
    for n, points, has_model in ((2, one.x_, 0), (3, one.x_, 1), (4, search().ask(4), 0)):
        told = search().tell(points[:n], points[:n, 0])
        assert_array_equal(told.ask()[0] == search().ask(5)[n], [not has_model] * 2)
        assert len(told.history_) == has_model
    for column in X.T:
        assert_array_equal(np.sort(np.floor((column + 1) * 4)), np.arange(8))


def test_tell_takes_one_or_several_and_failures_among_outputs_and_of_the_objective():
    optimizer = search()
    assert optimizer.best_x_ is None and math.isnan(optimizer.best_value_)
    assert optimizer.x_.shape == (0, 2) and optimizer.history_ == ()
    optimizer.tell([0.1, 0.2], 3).tell([[0.3, 0.4], [0.5, 0.6]], [5.0, 1.0])
    optimizer.tell([[0.1, 0.2], [0.3, 0.4]], np.ma.masked_array([1.0, 2.0], mask=[False, True]))
    optimizer.tell(optimizer.ask(), 4.0)  # one row and one number
    assert_array_equal(optimizer.values_, [3, 5, 1, 1, np.nan, 4])
    assert optimizer.x_.shape == (6, 2) and not len(optimizer.pending_)
    assert_array_equal([*optimizer.best_x_, optimizer.best_value_], [0.3, 0.4, 5])
    optimizer.direction = "minimize"
    assert_array_equal([*optimizer.best_x_, optimizer.best_value_], [0.5, 0.6, 1])
    assert "minimize" in repr(optimizer)
    output = np.array([1.0, 2.0])  # a simulator may use one array again and again
    optimizer = search(objective=total)
    for k in range(2):
        output += k
        optimizer.tell([0.1 * k, 0.2], output)
    assert_array_equal(optimizer.y_, [[1, 2], [2, 3]])
    outputs = [np.array([3.0, 4.0]), None, np.nan, [np.nan, 1.0]]
    for first in ([1.0, 2.0], None):
        optimizer = search(objective=total).tell([0.1, 0.1], first)
        optimizer.tell([[0.1 * k, 0.2] for k in range(4)], outputs)
        assert_array_equal(optimizer.values_[1:], [7, np.nan, np.nan, np.nan])
        assert optimizer.y_.shape == (5, 2)

    def objective(outputs):
        if outputs > 1:
            raise np.linalg.LinAlgError("singular")
        return np.log(outputs)

    optimizer = search(objective=objective)
    with np.errstate(all="ignore"):
        optimizer.tell([[0.0, 0.1], [0.1, 0.1], [0.5, 0.5]], [-1.0, 1.0, 2.0])
    assert optimizer.messages_[:2] == ("the objective is NaN, inf or beyond 1e+150", "")
    assert "LinAlgError: singular" in optimizer.messages_[2]
    assert len(optimizer.x_) == 3 and optimizer.best_value_ == 0.0


def total(outputs):
    return outputs.sum(axis=-1)


@cases(
    ("settings", "act", "error", "message"),
    ({}, lambda s: s.tell([0.0, 1.01], 1.0), ValueError, "bounds"),
    ({}, lambda s: s.tell([0.0], 1.0), ValueError, "shape"),
    ({}, lambda s: s.tell([0.0, 0.0], [1.0, 2.0]), ValueError, "objective"),
    ({}, lambda s: s.tell(TWO, 1.0), ValueError, "shape"),
    ({}, lambda s: s.tell(TWO, np.array([1.0, 2 + 1j])), ValueError, "numbers"),
    ({}, lambda s: s.tell(["a", 1], 1.0), ValueError, "`x` must be numbers: could not .*'a'"),
    ({}, lambda s: s.tell(np.ma.masked_array(TWO[0], [0, 1]), 1.0), ValueError, "bounds. Got n"),
    ({"integer": [0]}, lambda s: s.tell([0.5, 0.2], 1.0), ValueError, "whole numbers"),
    ({"objective": np.ravel}, lambda s: s.tell(TWO, TWO), ValueError, "make one number"),
    ({"objective": total}, lambda s: s.tell(TWO, ["high", None]), ValueError, "`y` must be num"),
    ({}, lambda s: s.ask(0), ValueError, "`q`"),
    ({}, lambda s: s.maximize(bowl, 0), ValueError, "`n_calls`"),
    ({}, lambda s: s.maximize(3, 8), TypeError, "`func` must be a function"),
    ({}, lambda s: s.minimize(bowl, 1, x0=TWO), ValueError, "`x0` has 2"),
    ({}, lambda s: s.maximize(lambda x: None, 9), ValueError, "must return numbers. Got None"),
)
def test_optimizer_refuses_calls_and_keeps_nothing(settings, act, error, message):
    optimizer = search(**settings)
    with pytest.raises(error, match=message):
        act(optimizer)
    assert len(optimizer.x_) == 0


def test_maximize_leaves_a_failing_region():
    def half(x):
        if x[0] > 0:
            raise OSError("the machine is too hot")
        return x[0]

    optimizer = search(n_initial=3)
    result = optimizer.maximize(half, 14)
    failed = np.isnan(result.values)
    assert_array_equal(failed, result.x_iters[:, 0] > 0)
    assert result.fun <= 0 and "OSError: the machine is too hot" in optimizer.messages_
    for k in range(np.flatnonzero(~failed)[2] + 1, 14):  # points that the model has proposed
        usable, lost = result.x_iters[:k][~failed[:k]], result.x_iters[:k][failed[:k]]
        x = result.x_iters[k : k + 1]
        nearest = cdist(x, lost).min()
        assert nearest > 0.05 * np.sqrt(2)
        assert nearest > min(0.25 * np.sqrt(2), cdist(x, usable).min())
    optimizer = search()  # it is said early that a function always fails
    with pytest.raises(SearchFailedError, match="KeyError: 'alpha'"):
        optimizer.maximize(lambda x: {}["alpha"], 50)
    assert len(optimizer.x_) == 10


def test_ask_does_not_propose_known_points_again_and_ends_without_others(recorder):
    """The made-up surrogate's best point is the corner, whatever it is told."""
    optimizer = search(acquisition="mean", estimator=recorder, n_initial=1)
    result = optimizer.maximize(lambda x: x[0], 6)
    distances = cdist(result.x_iters, result.x_iters) + 9 * np.eye(6)
    assert distances.min() > 1e-6
    assert result.x_iters[1:, 0].min() > 0.5  # yet they are near the best
    # Rounded proposals climb there, in a domain that is too large to list.
    optimizer = search([(0, 9)] * 4, "mean", recorder, integer=range(4), n_initial=1)
    assert optimizer.tell([0, 0, 0, 0], 0.0).ask()[0, 0] == 9
    optimizer = search([(0, 1)] * 2, integer=[0, 1], n_initial=2)
    result = optimizer.maximize(lambda x: x[0] - x[1], 20, q=3)
    assert len(result.values) == 4 and "known" in result.message
    assert_array_equal(result.x, [1, 0])
    optimizer = search([(0, 1)] * 2, integer=[0, 1])
    optimizer.ask(3)
    with pytest.raises(ValueError, match="All but 1 points of the domain are known or pending"):
        optimizer.ask(2)


def test_minimize_goes_on_where_it_was_and_after_a_pickle():
    given = [[0.5, 0.5], [-0.5, 0.5], [0.5, -0.5]]
    whole, parts = search(), search(callback=lambda optimizer: len(optimizer.x_) == 7)
    result = whole.minimize(bowl, 9, x0=given)
    assert_array_equal(result.x_iters[:3], given)
    assert [record.n_results for record in result.history] == [3, 4, 5, 6, 7, 8]
    assert "callback" in parts.minimize(bowl, 20, x0=given).message and len(parts.x_) == 7
    parts.callback = None
    assert_array_equal(parts.minimize(bowl, 2).x_iters, whole.x_)

    def value(x):
        return np.nan if x[1] > 0.8 else math.sin(3 * x[1]) + x[0] / 500

    bound = UpperConfidenceBound(mean_width=0.3, dynamic_c=True)
    optimizer = search([(0, 900), (-1, 1)], bound, integer=[0])
    optimizer.minimize(value, 7)
    optimizer.ask(2)
    other = pickle.loads(pickle.dumps(optimizer))
    assert_array_equal(other.ask(2), optimizer.ask(2))
    a, b = (each.minimize(value, 2) for each in (optimizer, other))
    assert_array_equal(np.c_[a.x_iters, a.values], np.c_[b.x_iters, b.values])
    assert_array_equal(other.pending_, optimizer.pending_)
    assert other.history_[:2] == optimizer.history_[:2]
    assert (other.messages_, other.beta_) == (optimizer.messages_, optimizer.beta_)


def test_minimize_keeps_everything_when_interrupted_and_reports_in_the_users_sign(capsys):
    calls = itertools.count()

    def impatient(x):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return bowl(x)

    optimizer = search()
    with pytest.warns(UserWarning, match="Interrupted after 6 of 20"):
        result = optimizer.minimize(impatient, 20, q=3)
    assert len(result.values) == len(optimizer.x_) == 6 and len(optimizer.pending_) == 0
    assert len(optimizer.minimize(bowl, 1).values) == 7
    down = search(acquisition="ucb", verbose=1).minimize(bowl, 12)
    assert down.fun == down.values.min() == bowl(down.x) and down.fun < 0.01
    assert len(down.history) == 12 - 5 and "best=" in capsys.readouterr().err


def test_ask_seeds_the_clone_of_every_step_and_tries_a_fit_that_fails_again(recorder):
    model = make_pipeline(StandardScaler(), OutputwiseRegressor(recorder))
    for _ in range(2):
        search(estimator=model, n_initial=2).maximize(bowl, 5)
    seeds = recorder.seeds[:]
    assert recorder.random_state is None and seeds[:3] == seeds[3:] and len(set(seeds)) == 3
    recorder.seeds.clear()
    optimizer = search(estimator=recorder.set_params(n_refused=6), n_initial=5)
    with pytest.warns(UserWarning, match="could not be fitted to 6 results.*diverged"):
        result = optimizer.minimize(bowl, 9)
    assert len(result.x_iters) == 9 and len(optimizer.history_) == 3
    assert len(recorder.seeds) == len(set(recorder.seeds)) == 5


def test_beta_is_of_mean_width_a_function_or_doubled_up_to_the_first_new_proposal(recorder):
    bound = UpperConfidenceBound(mean_width=0.5)
    optimizer = search(acquisition=bound, estimator=recorder, n_initial=2)
    optimizer.maximize(bowl, 6)
    # The made-up std is 0.1 + x**2, on average 0.1 + 1/3, over 20 000 uniform numbers. The
    # tolerance is five standard errors.
    assert_allclose(optimizer.beta_, 0.5 / (2 * (0.1 + 1 / 3)), rtol=0.01)
    assert {record.beta for record in optimizer.history_} == {optimizer.beta_}
    optimizer.acquisition = UpperConfidenceBound(mean_width=0.3)
    assert optimizer.beta_ is None
    optimizer.acquisition = UpperConfidenceBound(3.0)
    optimizer.ask()
    assert optimizer.history_[-1].beta == 3.0
    optimizer.acquisition = UpperConfidenceBound
    with pytest.raises(ValueError, match="'acquisition' parameter"):
        optimizer.ask()
    bound = UpperConfidenceBound(lambda n: 0.1 * n)
    optimizer = search([(0, 1)] * 2, bound, recorder, maximizer="direct")
    optimizer.maximize(bowl, 7)
    assert_allclose([record.beta for record in optimizer.history_], [0.5, 0.6])
    assert min(record.seconds_fit for record in optimizer.history_) > 0
    # The peak of the mean is known and other points are uncertain: some doublings are enough.
    X = np.array([[-0.9], [-0.3], [0.0], [0.3], [0.6]])
    bound = UpperConfidenceBound(1e-3, dynamic_c=True)
    optimizer = search([(-1, 1)], bound, n_initial=5)
    optimizer.tell(X, -(X[:, 0] ** 2))
    with pytest.raises(AttributeError, match="`objective` cannot be changed"):
        optimizer.objective = np.negative
    x, record = optimizer.ask(), optimizer.history_[0]
    assert 0 < record.n_doublings < 15 and record.beta == 1e-3 * 2**record.n_doublings
    assert cdist(x, X).min() > 0.0625  # the first threshold of appendix B.3.2


def test_threshold_of_dynamic_c_falls_from_the_first_model_on(recorder, monkeypatch):
    seen, propose = [], Step._propose_at_once
    monkeypatch.setattr(Step, "_propose_at_once", lambda *a: seen.append(a[-1]) or propose(*a))
    bound, x0 = UpperConfidenceBound(1.0, dynamic_c=True), np.linspace(-0.9, 0.7, 8).reshape(4, 2)
    search([(-1, 1)] * 2, bound, recorder).maximize(bowl, 9, x0=x0)  # 3 would have been enough
    assert_allclose(seen, 0.0625 * 0.16 ** (np.arange(5) / 6))  # NOMU, appendix B.3.2


def test_warnings_of_points_rounded_by_hand_of_few_calls_and_of_large_batches():
    optimizer = search([(0, 1), (0, 9)], integer=[1])
    (x,) = optimizer.ask()
    with pytest.warns(UserWarning, match="near but not equal"):
        optimizer.tell(x + [0.004, 0], 1.0)
    assert len(optimizer.pending_) == 1
    with warnings.catch_warnings(action="error"):
        optimizer.tell([x[0], (x[1] + 1) % 10], 1.0)  # another whole number is another point
        optimizer.tell([x - [0.001, 0], x], [1.0, 2.0])  # settled by the same call
        assert not len(optimizer.pending_)
    with pytest.warns(UserWarning, match="n_initial=5"):
        search().maximize(bowl, 4)
    optimizer = search(n_initial=1, n_restarts=2, acquisition="mean").tell([0.0, 0.0], 1.0)
    with pytest.warns(UserWarning, match="q=21"):
        optimizer.ask(21)


def smallest_gap(*groups):
    X = np.vstack(groups)
    return (cdist(X, X) + 9 * np.eye(len(X))).min()


@pytest.mark.parametrize("acquisition", slow_after(1, ["lei", "ucb"]))
@pytest.mark.parametrize("model", slow_after(3, MODELS), ids=repr)
def test_ask_keeps_points_of_a_batch_apart(model, acquisition):
    for seed in range(2):
        optimizer = told(search_by(model, acquisition), seed=seed)
        x = optimizer.ask(3)
        assert smallest_gap(x, optimizer.x_) > 1e-6
        assert smallest_gap(x, optimizer.ask()) > APART * 0.999  # the batch is pending


def test_ask_fits_once_until_there_is_a_result_or_another_estimator_and_in_threads():
    JointProcess.fits.clear()
    optimizer = told(search_by(JointProcess()))
    first, second = optimizer.ask(), optimizer.ask()
    assert len(JointProcess.fits) == 1 and optimizer.history_[1].seconds_fit == 0
    optimizer.tell(second, [0.0])  # the later one is ready first
    assert_array_equal(optimizer.pending_, first)
    third = optimizer.ask()
    assert len(JointProcess.fits) == 2 and smallest_gap(first, third) > APART * 0.999
    for length in (0.4, 0.3):
        optimizer.estimator = None  # the next one may have the address of this one
        optimizer.estimator = JointProcess(length)
        optimizer.ask()
        assert optimizer.model_.length == length
    optimizer = told(search_by(JointProcess()))
    with ThreadPoolExecutor(4) as pool:
        asked = np.vstack(list(pool.map(lambda _: optimizer.ask(), range(4))))
    assert smallest_gap(asked) > APART * 0.999
    assert smallest_gap(pickle.loads(pickle.dumps(optimizer)).ask(), asked) > APART * 0.999
    JointProcess.fits.clear()
    optimizer = told(search_by(Marginal()))
    first = optimizer.ask()
    optimizer.ask()
    assert [len(X) for X in JointProcess.fits] == [6, 7]
    assert_array_equal(JointProcess.fits[1][-1:], first)


def gain(optimizer, points, others=()):
    """Improvement expected of points, in addition to that of others, by the draws of the model."""
    drawn, known = optimizer.model_.drawn_, optimizer.best_value_
    if len(others):
        pending = drawn(optimizer.domain.encode(others)).max(axis=1, keepdims=True)
        known = np.maximum(pending, known)
    return np.maximum(drawn(optimizer.domain.encode(points)) - known, 0).mean(axis=0)


def test_pending_points_count_by_their_draws_and_are_settled_or_forgotten():
    """The second point maximises what it adds to the first, over a fine grid."""
    optimizer = told(search_by(JointProcess(), "ei", n_restarts=50))
    first, second = optimizer.ask(), optimizer.ask()
    side = np.linspace(-1, 1, 60)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    added = gain(optimizer, second, first)[0]
    assert added > 0.99 * gain(optimizer, grid, first).max()
    assert added < gain(optimizer, grid).max()  # a part of this is the first point's
    optimizer = told(search_by(JointProcess()))
    x = optimizer.ask(3)
    optimizer.tell(x[1] * (1 + 1e-15), 0.5)
    assert_array_equal(optimizer.pending_, x[[0, 2]])
    optimizer.tell(x[0], None)
    optimizer.tell([0.77, 0.77], 0.1)  # not asked for
    assert_array_equal(optimizer.pending_, x[[2]])
    assert len(optimizer.forget(x[2]).pending_) == 0
    asked = optimizer.ask(2)
    assert_array_equal(optimizer.forget().ask(2), asked)
    optimizer = search_by(JointProcess(), bounds=[(0.1, 0.3), (1000, 1001)])
    optimizer.tell(optimizer.ask(3).astype("float32"), [1.0, 2.0, 3.0])
    assert not len(optimizer.pending_)
    corner = np.array([0.3, 1001])
    optimizer.tell(corner.astype("float32"), 4.0)  # the nearest number to 0.3 is larger
    assert_array_equal(optimizer.x_[-1], corner)


@pytest.mark.parametrize("q", [1, 3])
def test_ask_climbs_categories_from_the_best_known_points(q):
    """A domain too large to list: neither a proposal nor the best result has a better neighbour."""
    d, target = 9, np.arange(9) % 3
    settings = {"categories": range(d), "n_restarts": 2, "n_initial": 20}
    optimizer = search_by(JointProcess(3.0), "ei", [(0, 2)] * d, **settings)
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


def test_a_noisy_search_may_exceed_the_domain_and_its_best_follows_the_direction():
    for model in (JointProcess(noise=0.3), Marginal(noise=0.3)):
        optimizer = search_by(model, "ei", [(0, 1)], integer=[0], noisy=True, n_initial=2)
        x = optimizer.tell([[0], [1]], [0.0, 1.0]).ask(5)
        assert x.shape == (5, 1) and len(np.unique(x)) == 2
        optimizer.tell(x[0], 0.5).forget(x[0])  # each settles one of equal points
        assert len(optimizer.pending_) == 3
    optimizer = search_by(JointProcess(noise=0.3), "mean", noisy=True, n_initial=2)
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


def test_moves_off_faces_needs_results_near_and_goes_along_columns_that_they_do_not_vary():
    for results, others, batch, n_moves in (
        (ON_FACE, NONE, AT, 1),
        (ON_FACE, [[-0.96, 5, 0.5]], AT, 1),  # far: it says nothing of the slope here
        (ON_FACE, INSIDE, AT, 0),  # failed or pending
        ([*ON_FACE, *INSIDE], NONE, AT, 0),
        (ON_FACE, NONE, [*AT, *INSIDE], 0),
        (ON_FACE[:2], NONE, AT, 0),  # too few
        (ON_FACE, NONE, [[-0.9, 9.9, 0.5]], 0),
    ):
        given = (np.array(points) for points in (batch, results, others))
        assert len(moves_off_faces(BOX, *given)[0]) == n_moves
    rows, moved = moves_off_faces(BOX, np.array([[-1, 10, 0.5]]), ON_FACE, NONE)
    assert_array_equal(rows, [0])  # results differ in x1
    assert_allclose(moved, [[-0.96, 10, 0.5]])
    corner = np.array([[1, 0, 1.0], [1, 0, 1], [1, 0.05, 1]])  # 0.05 is half a per cent of 10
    rows, moved = moves_off_faces(BOX, np.array([[0.3, 5, 0.5], [1, 0, 1]]), corner, NONE)
    assert_array_equal(rows, [1, 1, 1])
    assert_allclose(moved, [[0.96, 0, 1], [1, 0.2, 1], [1, 0, 0.98]])
    bounds, x = [(0, 3), (0, 1), (0, 2)], np.array([[0, 0.0, 2]])  # one column is continuous
    mixed = search_by(Marginal(), bounds=bounds, integer=[0], categories=[2]).domain
    rows, moved = moves_off_faces(mixed, x, np.tile(x, (3, 1)), NONE)
    assert_array_equal(rows, [0])
    assert_allclose(moved, [[0, 0.02, 2]])


@pytest.mark.parametrize("q", [1, 3])
def test_minimize_finds_a_dip_beside_a_face(q):
    def dip(x):
        """A trend towards the face x0 = 0, and a narrow dip beside it."""
        return x[0] - 0.5 * np.exp(-(((x[0] - 0.05) / 0.03) ** 2)) + (x[1] - 0.5) ** 2

    process = GaussianProcessRegressor(Matern(0.5, nu=2.5), optimizer=None, normalize_y=True)
    optimizer = search_by(process, bounds=[(0, 1)] * 2, n_initial=5, n_draws=128)
    # Results away from the face show the trend only.
    x0 = [[0.3, 0.2], [0.6, 0.9], [0.9, 0.4], [0.45, 0.7], [0.75, 0.1]]
    result = optimizer.minimize(dip, 30, q=q, x0=x0)
    assert (result.x_iters[:, 0] < 1e-3).sum() >= 3
    assert result.fun < -0.4  # on the face the least value is -0.03


# Posteriors of any regressor, and one regressor for each output.


def gaussian_process():
    return GaussianProcessRegressor(alpha=1e-6, optimizer=None, normalize_y=True)


def test_posterior_of_a_process_has_its_moments_and_may_have_an_axis():
    model = gaussian_process().fit(X, Y[:, 0])
    model.lock = threading.Lock()  # it cannot be copied
    posterior = posterior_of(model, 16, 0, ())
    mean, std = model.predict(NEW, return_std=True)
    draws = posterior(NEW)
    assert (posterior.key, posterior.joint, draws.shape) == (None, False, (16, 7))
    assert_allclose(draws.mean(axis=0), mean, rtol=1e-10)
    assert_allclose(draws.std(axis=0), std, rtol=1e-6)
    assert_array_equal(posterior_of(model, 16, 0, ())(NEW), draws)
    assert not np.array_equal(posterior_of(model, 16, 1, ())(NEW), draws)
    objective = {"objective": lambda y: -((y[..., 0] - 0.3) ** 2)}
    optimizer = search_by(gaussian_process(), bounds=[(0, 1)], **objective)
    assert abs(optimizer.maximize(lambda x: [x[0]], 7).x[0] - 0.3) < 0.05
    for alpha in (0.25, 0.5):  # the same results
        optimizer.estimator = gaussian_process().set_params(alpha=alpha)
        assert len(optimizer.ask(1)) == 1 and optimizer.model_.alpha == alpha


@cases("wrap", lambda gp: gp, lambda gp: make_pipeline(StandardScaler(), gp), OutputwiseRegressor)
def test_posterior_of_a_process_has_no_noise(wrap):
    """It is that of a process whose noise is `alpha`, which scikit-learn leaves out."""
    given = {"optimizer": None, "normalize_y": True}
    noise = WhiteKernel(0.1) + ConstantKernel() * WhiteKernel(0.2)
    white = GaussianProcessRegressor(RBF(0.5) + noise, alpha=0.0, **given)
    plain = GaussianProcessRegressor(RBF(0.5), alpha=0.3, **given)
    found, expected = (wrap(model).fit(X, Y[:, 0]) for model in (white, plain))
    draws = [posterior_of(model, 8, 0, ())(NEW) for model in (found, expected)]
    assert_allclose(*draws, rtol=1e-9)
    assert found.predict(NEW, return_std=True)[1].min() > 0.5 * Y[:, 0].std()  # as it was


def test_outputwise_is_one_regressor_a_column_whose_draws_are_independent():
    model = OutputwiseRegressor(gaussian_process()).fit(X, Y)
    draws = posterior_of(model, 256, 0, (3,))(NEW)
    assert draws.shape == (256, 7, 3)
    # Sobol's columns are nearly uncorrelated: chance would give 1/16.
    assert_allclose(np.corrcoef(draws[:, 0].T), np.eye(3), atol=0.1)
    mean, std = np.zeros((7, 3)), np.ones((7, 1))  # one for all outputs of a row
    model = SimpleNamespace(predict=lambda X, return_std: (mean, std))
    assert_allclose(posterior_of(model, 8, 0, (3,))(NEW).std(axis=0), np.ones((7, 3)))
    model = OutputwiseRegressor(gaussian_process()).fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    for j in range(3):
        own_mean, own_std = gaussian_process().fit(X, Y[:, j]).predict(NEW, return_std=True)
        assert_allclose(mean[:, j], own_mean, rtol=1e-10)
        assert_allclose(std[:, j], own_std, rtol=1e-6)
    assert_array_equal(model.predict(NEW), mean)
