"""Constraints, noisy results, seeds and warm starts of a search."""

import numpy as np
import pytest
import surrogates
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, RegressorMixin
from surrogates import JointProcess, Marginal, search
from tiers import cases, slow_after

from skuq.bayesopt import BayesianOptimizer
from skuq.predictive import Posterior


def value(x):
    """The value is largest in the corner (1, 1)."""
    return x[0] + x[1]


def disc(x):
    """The constraint is at most 0 inside of a disc, where the best value is sqrt(2) / 2."""
    return x[0] ** 2 + x[1] ** 2 - 0.25


BEST = np.sqrt(2) / 2


def evaluated(x):
    return value(x), {"disc": disc(x)}


def test_merit_objective_of_draws_is_that_of_results(rng):
    from skuq.backend import to_tensors

    outputs, measured = rng.normal(size=(5, 7, 3)), rng.normal(size=(5, 7))

    def total(y):
        return y[..., 0] + y[..., 1]

    def last(y):
        return y[..., 2]

    limits = np.stack([outputs[..., 2], measured], axis=-1).reshape(-1, 2)
    units = surrogates.merit_units(total(outputs).ravel(), limits)
    columns = [outputs, measured[..., None], np.broadcast_to(units, (5, 7, 4))]
    columns = np.concatenate(columns, axis=-1)
    objective = surrogates.MeritObjective(total, (3,), (last, None))
    expected = surrogates.merits(total(outputs).ravel(), limits, units).reshape(5, 7)
    # The smooth step is 1e-3 standard deviations wide.
    assert_allclose(objective(columns), expected, atol=1e-6)
    found = np.asarray(objective(to_tensors(columns.astype("float32"))))
    assert_allclose(found, expected, atol=1e-4)
    assert objective == surrogates.MeritObjective(total, (3,), (last, None))


def test_join_posteriors_repeats_the_draws_of_the_smaller():
    def line(xp, arguments, X):
        return arguments[0][:, None] * X[:, 0]

    few, many = (Posterior(line, (np.arange(1.0, n + 1),), "line", n) for n in (2, 3))
    both = surrogates.join_posteriors([few, many], np.array([7.0]))
    draws = both([[1.0], [2.0]])
    assert draws.shape == (3, 2, 3)
    assert_array_equal(draws[:, 0], [[1, 1, 7], [2, 2, 7], [1, 3, 7]])
    assert both.key == surrogates.join_posteriors([few, many], np.array([8.0])).key is not None


@pytest.mark.parametrize("estimator", [JointProcess(1.0), Marginal(1.0)], ids=["joint", "means"])
def test_maximize_learns_and_keeps_a_measured_constraint(estimator):
    optimizer = search(estimator, "ei", output_constraints={"disc": JointProcess(1.0)})
    result = optimizer.maximize(evaluated, 16)
    assert disc(result.x) <= 0
    assert result.fun > 0.9 * BEST
    assert_allclose(optimizer.output_constraints_["disc"], [disc(x) for x in result.x_iters])
    inside = np.array([disc(x) <= 0 for x in result.x_iters])
    assert result.fun == result.values[inside].max() < result.values.max()
    frame = optimizer.to_frame()
    assert list(frame) == ["x0", "x1", "value", "disc", "feasible", "status", "message"]
    assert_array_equal(frame["feasible"], inside)


@pytest.mark.parametrize(
    ("model", "level"),
    [(Marginal(), 0.0), pytest.param(JointProcess(compiled=True), 100.0, marks=pytest.mark.slow)],
)
def test_maximize_comes_near_a_border_that_holds_the_optimum(model, level):
    settings = {"bounds": [(0, 1)], "output_constraints": {"cap": lambda y: y - 0.2 - level}}
    result = search(model, **settings).maximize(lambda x: level + x[0] ** 2, 14)
    assert 0.1995 < result.fun - level <= 0.2


@pytest.mark.parametrize("constrains", slow_after(1, [True, False]))
def test_ask_shares_no_program_of_a_function_whose_globals_have_changed(constrains):
    best = 0.0

    def objective(y):
        return -((y - best) ** 2)

    def cap(y):
        return y - best

    model = JointProcess(1.0, compiled=True)
    functions = {"output_constraints": {"cap": cap}} if constrains else {"objective": objective}
    X, found = np.linspace(0, 1, 6)[:, None], []
    for changed in (0.2, 0.8):
        best = changed
        optimizer = search(model, bounds=[(0, 1)], n_restarts=20, **functions)
        optimizer.tell(X, X[:, 0].tolist())
        found.append(optimizer.ask()[0, 0])
    assert_allclose(found, [0.2, 0.8], atol=0.03)


def test_maximize_warns_without_a_feasible_point():
    optimizer = search(JointProcess(), output_constraints={"never": JointProcess()}, n_initial=4)
    with pytest.warns(UserWarning, match="No evaluated point satisfies all constraints"):
        result = optimizer.maximize(lambda x: (value(x), {"never": 1 + x[0] ** 2}), 6)
    assert abs(result.x[0]) == np.abs(result.x_iters[:, 0]).min()


@cases(
    ("constraints", "given", "error", "message"),
    ({"a": 3}, {}, TypeError, "functions of the outputs or regressors"),
    ({"a": JointProcess}, {}, TypeError, "functions of the outputs or regressors"),
    ([abs], {}, TypeError, "dict of names"),
    ({1: abs}, {}, TypeError, "must be strings"),
    *(
        ({name: JointProcess()}, {}, ValueError, f"a column of `to_frame.*'{name}'")
        for name in ("value", "x1", "status")
    ),
    *(
        ({"disc": JointProcess()}, given, ValueError, message)
        for given, message in [
            (None, r"one value for each measured constraint, \['disc'\]"),
            ({"disk": 1.0}, "Got .'disk'"),
            ({"disc": [1.0, 2.0]}, "one number for each of 1 points"),
            ({"disc": "low"}, "one number for each of 1 points"),
            ({"disc": True}, "at most 0 where a result is feasible.*True or False"),
        ]
    ),
    # True would count as 1, which is infeasible.
    ({"low": lambda y: y < 2}, None, ValueError, "write y <= c as y - c. Got True or False"),
)
def test_constraints_refuse(constraints, given, error, message):
    with pytest.raises(error, match=message):
        search(JointProcess(), output_constraints=constraints).tell([0.0, 0.0], 1.0, given)


def test_tell_takes_constraints_that_are_not_finite_for_failures():
    optimizer = search(JointProcess(), output_constraints={"disc": JointProcess()})
    optimizer.tell([[0.0, 0.0], [0.1, 0.1]], [1.0, 2.0], {"disc": [np.nan, -1.0]})
    assert optimizer.messages_ == ("constraint 'disc' is NaN, inf or beyond 1e+150", "")
    assert np.isnan(optimizer.output_constraints_["disc"][0])
    assert optimizer.best_value_ == 2.0


def test_load_needs_constraints_by_name(tmp_path):
    settings = {"output_constraints": {"disc": JointProcess(), "low": lambda y: y - 2}}
    optimizer, path = search(JointProcess(), **settings), tmp_path / "search.skuq"
    optimizer.maximize(evaluated, 7)
    optimizer.save(path)
    with pytest.raises(ValueError, match="disc"):
        BayesianOptimizer.load(path, JointProcess())
    expected = optimizer.ask()
    for given in (settings["output_constraints"], optimizer.output_constraints):
        other = BayesianOptimizer.load(path, JointProcess(), output_constraints=given)
        assert other.output_constraints.names == ("disc", "low")
        assert_array_equal(other.ask(), expected)
        assert_array_equal(other.output_constraints_["disc"], optimizer.output_constraints_["disc"])


def test_maximize_may_evaluate_a_noisy_function_twice_in_one_place():
    model, settings = JointProcess(noise=0.3), {"noisy": True, "n_initial": 2}
    optimizer = search(model, "mean", [(0, 1)], integer=[0], **settings)
    result = optimizer.maximize(lambda x: x[0], 6)
    assert len(result.values) == 6
    assert len(np.unique(result.x_iters)) == 2


@pytest.mark.parametrize("model", [JointProcess(noise=0.3), Marginal(noise=0.3)])
def test_ask_of_a_noisy_search_may_exceed_the_domain(model):
    optimizer = search(model, "ei", [(0, 1)], integer=[0], noisy=True, n_initial=2)
    optimizer.tell([[0], [1]], [0.0, 1.0])
    x = optimizer.ask(5)
    assert x.shape == (5, 1) and len(np.unique(x)) == 2
    optimizer.tell(x[0], 0.5)  # one result settles one of equal points
    assert len(optimizer.pending_) == 4
    optimizer.forget(x[0])
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
    optimizer = search(JointProcess(noise=0.3), "mean", noisy=True, n_initial=2)
    optimizer.tell([[0.1, 0.2], [0.5, 0.5], [0.9, 0.1]], [0.3, 1.0, 0.2])
    optimizer.ask()
    best = optimizer.best_value_
    optimizer.n_draws = 0  # the next step raises an error
    assert optimizer.best_value_ == best
    assert "best value" in repr(optimizer)
    with pytest.raises(ValueError, match="n_draws"):
        optimizer.ask()


class WarmFailure(Marginal):
    """Diverges whenever it continues from an earlier fit."""

    def __init__(self, length=0.5, noise=1e-6, warm_start=True, random_state=None):
        super().__init__(length, noise, random_state=random_state)
        self.warm_start = warm_start

    def fit(self, X, y):
        if hasattr(self, "X_"):
            raise FloatingPointError("diverged")
        return super().fit(X, y)


def test_maximize_follows_a_failed_warm_start_by_a_cold_one():
    optimizer = search(WarmFailure(), n_initial=3, reseed=False)
    optimizer.maximize(value, 6)
    assert len(optimizer.history_) == 3


class Warm(RegressorMixin, BaseEstimator):
    """Counts its fits, as an estimator with a warm start does."""

    seeds, counts = [], []

    def __init__(self, warm_start=False, random_state=None):
        self.warm_start, self.random_state = warm_start, random_state

    def fit(self, X, y):
        self.n_features_in_ = X.shape[1]
        self.n_fits_ = 1 + (getattr(self, "n_fits_", 0) if self.warm_start else 0)
        Warm.seeds.append(self.random_state)
        Warm.counts.append(self.n_fits_)
        return self

    def predict(self, X, return_std=False):
        return X[:, 0], 0.1 + X[:, -1] ** 2


@pytest.mark.parametrize(("warm", "reseed"), [(True, False), (False, False), (False, True)])
def test_maximize_goes_on_from_the_last_fit_and_keeps_its_seed(warm, reseed):
    Warm.counts.clear(), Warm.seeds.clear()
    optimizer = search(Warm(warm), n_initial=3, reseed=reseed)
    optimizer.maximize(value, 6)
    first = optimizer.model_
    optimizer.ask()
    assert Warm.counts == ([1, 2, 3, 4] if warm else [1] * 4)
    assert len(set(Warm.seeds)) == (4 if reseed else 1)
    assert first is not optimizer.model_ and first.n_fits_ == (3 if warm else 1)
    optimizer.estimator = Warm(warm)  # a warm start needs the same estimator
    optimizer.maximize(value, 1)
    assert Warm.counts[4] == 1
