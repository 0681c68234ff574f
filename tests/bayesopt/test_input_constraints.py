"""Constraints of the inputs of a search, which no proposed point violates."""

import itertools
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import LinearConstraint, NonlinearConstraint, linprog
from sklearn.base import BaseEstimator, RegressorMixin
from surrogates import SQUARE, Agreeing, JointProcess, Marginal, ReluReadout, search
from tiers import cases, slow_after

from skuq.bayesopt import BayesianOptimizer, MultiStart, UpperConfidenceBound

# The best point of the square is (0.3, 0.3), and that below this line is (0, 0).
LINE = LinearConstraint([1, 1], ub=0.0)


#: Pairs that only slow tests have; SciPy's maximiser has each kind of border in quick ones.
SLOW_BORDERS = {
    *(("lbfgs", border) for border in ("function", "several")),
    *(("direct", border) for border in ("several", "linear", "nonlinear", "equality")),
}


def below_line(X):
    return X[:, 0] + X[:, 1]


class Plane(RegressorMixin, BaseEstimator):
    """The mean is x @ (1, 2, ..), which a network of no hidden units computes."""

    def fit(self, X, y):
        self.weights_ = np.arange(1.0, X.shape[1] + 1)
        return self

    def predict(self, X, return_std=False):
        return X @ self.weights_, np.full(len(X), 0.1)

    def readout_weights(self):
        return ReluReadout((), (self.weights_, 0.0), (0 * self.weights_, 0.1), 0.1, 1.0, 1.0)


BORDERS = {
    "function": below_line,
    "several": [LinearConstraint([1, -1], -0.5, 0.5), LinearConstraint([[1, 1], [2, 2]], -1, 0)],
    "linear": LINE,
    "nonlinear": {"below": NonlinearConstraint(lambda x: x.sum(), -np.inf, 0.0)},
    "equality": LinearConstraint([[1, 1], [2, 2]], 0, 0),  # redundant equalities
}
MAXIMIZERS = {
    "scipy": (Agreeing(), "scipy"),
    "lbfgs": (Agreeing(compiled=True), MultiStart("lbfgs", n_restarts=10)),
    "direct": (Agreeing(), "direct"),  # a thousand times slower
}


@pytest.mark.parametrize(
    ("by", "border"),
    slow_after(9, sorted(itertools.product(MAXIMIZERS, BORDERS), key=SLOW_BORDERS.__contains__)),
)
def test_ask_finds_the_best_point_on_a_border(by, border):
    model, maximizer = MAXIMIZERS[by]
    settings = {"n_initial": 5, "n_draws": 8, "maximizer": maximizer}
    optimizer = search(model, "mean", input_constraints=BORDERS[border], **settings)
    results = optimizer.ask(5)
    optimizer.tell(results, -((results - 0.3) ** 2).sum(axis=1))
    (x,) = optimizer.ask()
    assert x.sum() <= 1e-9
    assert_allclose(x, [0.0, 0.0], atol=0.02 if by == "direct" else 1e-3)


def test_ask_by_milp_finds_the_vertex_of_a_linear_programme(rng):
    A = np.abs(rng.normal(size=(4, 3)))
    constraint = LinearConstraint(A, -np.inf, 1.0)
    settings = {"n_initial": 2, "maximizer": "milp", "input_constraints": constraint}
    acquisition = UpperConfidenceBound(1.0)
    optimizer = BayesianOptimizer(Plane(), [(0, 2)] * 3, acquisition, **settings)
    optimizer.tell(np.zeros((2, 3)) + [[0.1], [0.0]], [0.0, 0.1])
    (x,) = optimizer.ask()
    best = linprog([-1, -2, -3], A, np.ones(4), bounds=[(0, 2)] * 3).x
    assert_allclose(x, best, atol=0.05)  # a proposal on faces is moved inwards
    assert (A @ x <= 1).all()
    # At most two bits and codes together; the network has a weight for each code.
    constraint = LinearConstraint([1, 1, 1, 1], ub=2)
    settings = {**settings, "input_constraints": constraint, "integer": [0, 1, 2]}
    bounds = [(0, 1)] * 3 + [(0, 2)]
    optimizer = BayesianOptimizer(Plane(), bounds, acquisition, categories=[3], **settings)
    optimizer.tell([[0, 0, 0, 0], [1, 0, 0, 0]], [0.0, 0.1])
    found = optimizer.ask()[0]
    assert_array_equal(found, [0, 1, 1, 0])  # 2 + 3 + 4, where the code 2 alone has 6


def random_problem(rng, d, kind):
    """Draw a box, constraints around a point of it, and a check of points."""
    bounds = np.column_stack([rng.uniform(-5, 0, d), rng.uniform(1, 5, d)])
    whole = rng.random(d) < {"mixed": 0.5, "whole": 1.0}.get(kind, 0.0)
    codes = whole & (rng.random(d) < 0.3)
    bounds[whole], bounds[codes] = (-2, 3), (0, 2)
    centre = bounds[:, 0] + np.diff(bounds)[:, 0] * rng.uniform(0.2, 0.8, d)
    A = rng.normal(size=(d + 1, d))
    ub = A @ centre + np.abs(A).sum(axis=1) * (0.6 if whole.any() else 0.1)
    constraints = [LinearConstraint(A, -np.inf, ub)]

    def is_feasible(X):
        offsets = np.abs(X - centre)
        if kind == "functions":
            return ((offsets**2).sum(axis=1) <= 0.5) & (offsets.sum(axis=1) <= 0.9)
        is_on_plane = np.isclose(X.sum(axis=1), centre.sum(), atol=1e-7)
        return (ub >= X @ A.T).all(axis=1) & (is_on_plane | (kind != "equality"))

    if kind == "equality":
        constraints.append(LinearConstraint(np.ones(d), centre.sum(), centre.sum()))
    if kind == "functions":
        constraints = [
            lambda X: ((X - centre) ** 2).sum(axis=1) - 0.5,
            NonlinearConstraint(lambda x: np.abs(x - centre).sum(), -np.inf, 0.9),
        ]
    return bounds, whole, codes, constraints, is_feasible


@pytest.mark.parametrize("kind", ["plain", "mixed", "whole", "equality", "functions"])
@pytest.mark.parametrize("model", [JointProcess(1.0), Marginal(1.0)], ids=["joint", "means"])
def test_all_points_that_are_asked_for_are_feasible(global_random_seed, model, kind):
    rng = np.random.default_rng(global_random_seed)
    for d in (1, 3) if kind == "functions" else (1 + (kind == "equality"), 3, 6):
        bounds, whole, codes, constraints, is_feasible = random_problem(rng, d, kind)
        columns = {"integer": np.flatnonzero(whole & ~codes), "categories": np.flatnonzero(codes)}
        settings = {"input_constraints": constraints, "n_initial": d + 1, "n_restarts": 5}
        optimizer = search(model, "ei", bounds, **columns, **settings)
        for q in (d + 1, 2, 1):
            q = int(min(q, optimizer.domain.n_points - len(optimizer.x_)))
            if not q:
                break
            X = optimizer.ask(q)
            assert is_feasible(X).all(), (d, kind)
            optimizer.tell(X, -((X - bounds.mean(axis=1)) ** 2).sum(axis=1))
            assert len(np.unique(X, axis=0)) == len(X)


def test_ask_proposes_every_feasible_point_of_a_grid_and_no_other():
    """Of a million points ten have two ones in twenty columns that are given by five."""
    A = np.kron(np.eye(5), np.ones(4))  # one of each four columns
    rows = np.concatenate([A[:1], np.eye(20)[4:8], np.eye(20)[8:]])
    constraint = LinearConstraint(rows, [1] + [0] * 16, [1] + [0] * 15 + [1])
    settings = {"integer": range(20), "input_constraints": constraint, "n_initial": 3}
    optimizer = search(JointProcess(), "mean", [(0, 1)] * 20, **settings)
    result = optimizer.maximize(lambda x: x.sum() + 0.1 * x[0], 20)
    assert result.message == "Every point of the domain is known."
    assert len(result.x_iters) == 8 and optimizer.domain.n_points == 8
    with pytest.raises(ValueError, match="All but 0 points"):
        optimizer.ask()


def test_ask_keeps_constraints_of_many_whole_numbers():
    settings = {"input_constraints": LinearConstraint([1, -1], 3, 5), "n_initial": 3}
    optimizer = search(JointProcess(), bounds=[(0, 1e6)] * 2, integer=[0, 1], **settings)
    X = optimizer.ask(3)
    optimizer.tell(X, [0.0, 1.0, 2.0])
    X = np.vstack([X, optimizer.ask(2)])
    assert set(np.subtract(*X.T)) <= {3, 4, 5} and len(np.unique(X, axis=0)) == 5


def test_initial_points_fill_the_feasible_set():
    """A band that takes 1 % of the cube: designs spread over its length."""
    band = LinearConstraint([[1, -1, 0], [0, 1, -1]], -0.1, 0.1)
    optimizer = search(JointProcess(), bounds=[(-1, 1)] * 3, input_constraints=band, n_initial=10)
    X = optimizer.ask(10)
    assert (np.abs(np.diff(X, axis=1)) <= 0.1).all()
    assert np.sort(X[:, 0])[0] < -0.6 and np.sort(X[:, 0])[-1] > 0.6
    assert np.diff(np.sort(X[:, 0])).max() < 0.6


def test_results_that_violate_are_learned_but_never_the_best():
    optimizer = search(JointProcess(), "ei", input_constraints={"line": below_line}, n_initial=3)
    with pytest.warns(UserWarning, match=r"\[0.9, 0.9\] violates the input constraint 'line'"):
        optimizer.tell([[0.9, 0.9], [-0.5, 0.1], [-0.2, -0.3]], [9.0, 1.0, 2.0])
    assert_array_equal(optimizer.best_x_, [-0.2, -0.3])
    assert optimizer.to_frame()["feasible"].tolist() == [False, True, True]
    assert below_line(optimizer.ask(3)).max() <= 0
    assert_array_equal(JointProcess.fits[-1][0], [0.9, 0.9])
    assert optimizer.best_value_ == 2.0
    rounded = optimizer.pending_.astype("float32")  # without a warning
    optimizer.tell(rounded, [0.0, 0.0, 0.0])


def test_load_needs_input_constraints_again(tmp_path):
    constraints, path = {"line": LINE}, tmp_path / "search.skuq"
    optimizer = search(JointProcess(), input_constraints=constraints, n_initial=3)
    optimizer.tell(optimizer.ask(3), [0.0, 1.0, 2.0])
    optimizer.save(path)
    with pytest.raises(ValueError, match=r"has the `input_constraints` \['line'\]"):
        BayesianOptimizer.load(path, JointProcess())
    again = pickle.loads(pickle.dumps(optimizer))
    loaded = BayesianOptimizer.load(path, JointProcess(), input_constraints=constraints)
    expected = optimizer.ask(2)
    assert_array_equal(loaded.ask(2), expected)
    assert_array_equal(again.ask(2), expected)


@cases(
    ("constraint", "error", "message"),
    (3, TypeError, "LinearConstraint or NonlinearConstraint of SciPy, or functions"),
    ({"type": "ineq", "fun": below_line}, TypeError, "'ineq'"),
    (LinearConstraint([1, 1, 1], ub=0), ValueError, r"with 2 columns.*Got shape \(1, 3\)"),
    (LinearConstraint([1, 1], 1, 0), ValueError, "lb <= ub"),
    (NonlinearConstraint(np.sum, 0, 0), ValueError, "an equality.*LinearConstraint"),
    (lambda x: x[0] + x[1] - 1, ValueError, r"one number for each row.*Got \(2,\)"),
    (lambda x: x.sum() - 1, ValueError, r"one number for each row.*Got \(\)"),
    (lambda X: X[:, 2], ValueError, r"raised IndexError.*points of shape"),
    (lambda X: X[:, 0] < 0, ValueError, "write x <= c as x - c"),
    ({"far": lambda X: X[:, 0] + 2}, ValueError, "No point.*satisfies.*'far'"),
    ({"nan": lambda X: X[:, 0] * np.nan}, ValueError, "No point.*satisfies.*'nan'"),
    (LinearConstraint([1, 1], lb=3), ValueError, "No point within the bounds"),
    (LinearConstraint([2, 0], 1, 1), ValueError, "No point within the bounds"),
)
def test_input_constraints_refuse(constraint, error, message):
    integer = [0] if "No point" in message else None
    with pytest.raises(error, match=message):
        search(JointProcess(), input_constraints=constraint, integer=integer)


def test_input_constraints_refuse_what_a_search_cannot_keep():
    optimizer = search(JointProcess(), input_constraints=LINE)
    with pytest.raises(ValueError, match="`x0` must be feasible, but .*violates"):
        optimizer.minimize(sum, 5, x0=[0.5, 0.5])
    with pytest.raises(ValueError, match="cannot use `input_constraints` other than Linear"):
        BayesianOptimizer(Plane(), SQUARE, "ucb", maximizer="milp", input_constraints=below_line)
    with pytest.raises(TypeError, match="functions of the outputs or regressors"):
        search(JointProcess(), output_constraints={"line": LINE})
