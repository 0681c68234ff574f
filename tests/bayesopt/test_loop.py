"""Searches: proposals, results, failures, refused arguments, and pickling."""

import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import surrogates
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from surrogates import SQUARE, Marginal
from tiers import cases

from skuq import CalibratedUncertaintyRegressor
from skuq.bayesopt import MultiStart, OutputwiseRegressor, UpperConfidenceBound
from skuq.exceptions import SearchFailedError


def search(bounds=SQUARE, acquisition="lei", estimator=None, **settings):
    return surrogates.search(estimator or Marginal(), acquisition, bounds, **settings)


def bowl(x):
    return (x[0] - 0.3) ** 2 + (x[1] + 0.2) ** 2


def depth(x):
    return -bowl(x)


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


def test_domain_encodes_and_decodes():
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


def test_domain_gives_whole_numbers_equal_shares(rng):
    domain = search([(-1, 2), (0, 1)], integer=[0], categories=[1]).domain
    for X in (domain.sample(4000, rng), domain.design(4000, rng)):
        for column, n in ((0, 4), (1, 2)):
            _, counts = np.unique(X[:, column], return_counts=True)
            # Five standard deviations of a binomial share, at most sqrt(4000 / 4).
            assert len(counts) == n
            assert np.abs(counts - 4000 / n).max() < 5 * math.sqrt(1000)
    assert domain.n_points == len(domain.grid()) == len(np.unique(domain.grid(), axis=0)) == 8


CALIBRATED = CalibratedUncertaintyRegressor(LinearRegression())
TRANSFORMED = make_pipeline(TransformedTargetRegressor(Marginal()))


@cases(
    ("settings", "error", "message"),
    ({"bounds": [(1, 0)]}, ValueError, "reversed"),
    ({"bounds": [(0, 1), (2, 2)]}, ValueError, "zero width"),
    ({"bounds": [(-1e308, 1e308)]}, ValueError, "finite.* high - low"),
    ({"bounds": [(0, 1), ["a", "b"]]}, ValueError, "pairs.* a column of codes"),
    ({"integer": [2]}, ValueError, "`integer`"),
    ({"integer": [0], "categories": [0]}, ValueError, "both"),
    ({"categories": [0]}, ValueError, "K - 1"),
    ({"acquisition": "best"}, ValueError, "best"),
    ({"acquisition": UpperConfidenceBound(-1.0)}, ValueError, "beta"),
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


def test_ask_begins_with_a_latin_hypercube():
    X = search(n_initial=8).ask(8)
    for column in X.T:
        assert_array_equal(np.sort(np.floor((column + 1) * 4)), np.arange(8))


def test_ask_depends_on_what_was_told_alone(rng):
    one, other = search(), search()
    one.ask()  # asking leaves nothing behind but a pending point
    X = rng.uniform(-1, 1, (6, 2))
    one.forget().tell(X, [depth(x) for x in X])
    for x in X:
        other.tell(x, depth(x))
    assert_array_equal(one.ask(2), other.ask(2))
    assert_array_equal(one.ask(), other.ask())


def test_tell_takes_one_or_several():
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


def total(outputs):
    return outputs.sum(axis=-1)


TWO = [[0.0, 0.0], [0.1, 0.0]]


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
    ({"integer": [0, 1]}, lambda s: s.ask(10), ValueError, "All but 9"),
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
    assert result.fun <= 0
    assert "OSError: the machine is too hot" in optimizer.messages_
    for k in range(np.flatnonzero(~failed)[2] + 1, 14):  # points that the model has proposed
        usable, lost = result.x_iters[:k][~failed[:k]], result.x_iters[:k][failed[:k]]
        x = result.x_iters[k : k + 1]
        nearest = cdist(x, lost).min()
        assert nearest > 0.05 * np.sqrt(2)
        assert nearest > min(0.25 * np.sqrt(2), cdist(x, usable).min())


def test_maximize_says_early_that_a_function_always_fails():
    def broken(x):
        raise KeyError("alpha")

    optimizer = search()
    with pytest.raises(SearchFailedError, match="KeyError: 'alpha'"):
        optimizer.maximize(broken, 50)
    assert len(optimizer.x_) == 10


@pytest.mark.parametrize("first", [[1.0, 2.0], None])
def test_tell_takes_failures_among_outputs(first):
    optimizer = search(objective=total).tell([0.1, 0.1], first)
    outputs = [np.array([3.0, 4.0]), None, np.nan, [np.nan, 1.0]]
    optimizer.tell([[0.1 * k, 0.2] for k in range(4)], outputs)
    assert_array_equal(optimizer.values_[1:], [7, np.nan, np.nan, np.nan])
    assert optimizer.y_.shape == (5, 2)


def test_ask_does_not_propose_known_points_again(recorder):
    """The made-up surrogate's best point is the corner, whatever it is told."""
    optimizer = search(acquisition="mean", estimator=recorder, n_initial=1)
    result = optimizer.maximize(lambda x: x[0], 6)
    distances = cdist(result.x_iters, result.x_iters) + 9 * np.eye(6)
    assert distances.min() > 1e-6
    assert result.x_iters[1:, 0].min() > 0.5  # yet they are near the best
    # Rounded proposals climb there, in a domain that is too large to list.
    optimizer = search([(0, 9)] * 4, "mean", recorder, integer=range(4), n_initial=1)
    assert optimizer.tell([0, 0, 0, 0], 0.0).ask()[0, 0] == 9


def test_minimize_reports_in_the_users_sign(capsys):
    down = search(acquisition="ucb", verbose=1).minimize(bowl, 12)
    assert down.fun == down.values.min() == bowl(down.x)
    assert down.fun < 0.01
    assert len(down.history) == 12 - 5
    assert "best=" in capsys.readouterr().err


def test_maximize_goes_on_where_it_was():
    given = [[0.5, 0.5], [-0.5, 0.5], [0.5, -0.5]]
    whole, parts = search(), search(callback=lambda optimizer: len(optimizer.x_) == 7)
    result = whole.maximize(depth, 9, x0=given)
    assert_array_equal(result.x_iters[:3], given)
    assert [record.n_results for record in result.history] == [5, 6, 7, 8]
    assert "callback" in parts.maximize(depth, 20, x0=given).message
    assert len(parts.x_) == 7
    parts.callback = None
    assert_array_equal(parts.maximize(depth, 2).x_iters, whole.x_)


def test_minimize_keeps_everything_when_interrupted():
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


def test_maximize_and_ask_warn_of_few_calls_and_of_large_batches():
    with pytest.warns(UserWarning, match="n_initial=5"):
        search().maximize(bowl, 4)
    optimizer = search(n_initial=1, n_restarts=2, acquisition="mean").tell([0.0, 0.0], 1.0)
    with pytest.warns(UserWarning, match="q=21"):
        optimizer.ask(21)


def test_beta_may_be_a_function_of_the_number_of_results(recorder):
    bound = UpperConfidenceBound(lambda n: 0.1 * n)
    optimizer = search([(0, 1)] * 2, bound, recorder, maximizer="direct")
    optimizer.maximize(bowl, 7)
    assert_allclose([record.beta for record in optimizer.history_], [0.5, 0.6])
    assert min(record.seconds_fit for record in optimizer.history_) > 0


def test_ask_seeds_the_clone_of_every_step(recorder):
    model = make_pipeline(StandardScaler(), OutputwiseRegressor(recorder))
    for _ in range(2):
        search(estimator=model, n_initial=2).maximize(bowl, 5)
    seeds = recorder.seeds
    assert recorder.random_state is None
    assert seeds[:3] == seeds[3:] and len(set(seeds)) == 3


def test_maximize_ends_when_the_domain_is_used_up():
    optimizer = search([(0, 1)] * 2, integer=[0, 1], n_initial=2)
    result = optimizer.maximize(lambda x: x[0] - x[1], 20, q=3)
    assert len(result.values) == 4
    assert "known" in result.message
    assert_array_equal(result.x, [1, 0])
    optimizer = search([(0, 1)] * 2, integer=[0, 1])
    optimizer.ask(3)
    with pytest.raises(ValueError, match="All but 1 points of the domain are known or pending"):
        optimizer.ask(2)


def test_ask_with_mean_width_fixes_beta_once(recorder):
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


def test_ask_with_dynamic_c_stops_at_the_first_new_proposal():
    """The peak of the mean is known and other points are uncertain: some doublings are enough."""
    X = np.array([[-0.9], [-0.3], [0.0], [0.3], [0.6]])
    bound = UpperConfidenceBound(1e-3, dynamic_c=True)
    optimizer = search([(-1, 1)], bound, n_initial=5)
    optimizer.tell(X, -(X[:, 0] ** 2))
    x = optimizer.ask()
    record = optimizer.history_[0]
    assert 0 < record.n_doublings < 15
    assert record.beta == 1e-3 * 2**record.n_doublings
    assert cdist(x, X).min() > 0.0625  # the first threshold of appendix B.3.2


def test_tell_takes_an_objective_that_raises_or_is_not_finite_for_a_failure():
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


def test_ask_tries_a_fit_that_fails_again_and_goes_on(recorder):
    optimizer = search(estimator=recorder.set_params(n_refused=6), n_initial=5)
    with pytest.warns(UserWarning, match="could not be fitted to 6 results.*diverged"):
        result = optimizer.minimize(bowl, 9)
    assert len(result.x_iters) == 9 and len(optimizer.history_) == 3
    assert len(recorder.seeds) == len(set(recorder.seeds)) == 5


def test_a_pickled_search_goes_on_with_the_same_points():
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


def test_tell_warns_of_points_rounded_by_hand():
    optimizer = search([(0, 1), (0, 9)], integer=[1])
    (x,) = optimizer.ask()
    with pytest.warns(UserWarning, match="near but not equal"):
        optimizer.tell(x + [0.004, 0], 1.0)
    assert len(optimizer.pending_) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.tell([x[0], (x[1] + 1) % 10], 1.0)  # another whole number is another point
        optimizer.tell([x - [0.001, 0], x], [1.0, 2.0])  # settled by the same call
        assert not len(optimizer.pending_)
