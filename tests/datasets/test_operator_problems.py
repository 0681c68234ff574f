"""The problem of composite optimisation: its map, and its objective."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skuq.datasets import make_operator_problem


def test_make_operator_problem_is_one_object_and_pickles():
    problem = make_operator_problem("pollutants")
    assert problem is make_operator_problem("pollutants")
    copy = pickle.loads(pickle.dumps(problem))
    assert copy.objective is problem.objective
    assert_array_equal(copy.bounds, problem.bounds)
    for act, message in (
        (lambda: make_operator_problem("towers"), "must be 'pollutants'. Got 'towers'"),
        (lambda: problem(np.ones((2, 3))), "4 column"),
        (lambda: problem.bounds.fill(0), "read-only"),
    ):
        with pytest.raises(ValueError, match=message):
            act()


def test_make_operator_problem_pollutants_by_hand():
    problem = make_operator_problem("pollutants")
    # M = 4 sqrt(pi D t) makes the first spill's peak at place 0 and time 30 equal to 2.
    peak = problem([[4 * np.sqrt(np.pi * 0.05 * 30), 0.05, 1.0, 30.25]])[0, 1]
    assert_array_equal(problem.query_points[1], [30, 0])
    assert_allclose(peak, 2.0, rtol=1e-14)
    # The second spill adds nothing before it happens, and is symmetric about its place.
    early, late = problem([[8, 0.1, 0.5, 30.1], [8, 0.1, 2.5, 30.1]])
    before = problem.query_points[:, 0] <= 30
    assert_array_equal(early[before], late[before])
    first, second = early[~before].reshape(3, 2)[:2]  # places 0 and 1, both 0.5 from the spill
    first_spill = problem([[8, 0.1, 1e6, 30.1]])[0][~before].reshape(3, 2)[:2]  # first spill only
    assert_allclose(first - first_spill[0], second - first_spill[1], rtol=1e-10)


def test_make_operator_problem_pollutants_best_is_best(global_random_seed):
    problem = make_operator_problem("pollutants")
    low, high = problem.bounds.T
    assert (low <= problem.best_input).all() and (problem.best_input <= high).all()
    assert problem.objective(problem(problem.best_input[None]))[0] == problem.best_value == 0
    U = np.random.default_rng(global_random_seed).uniform(low, high, (500, 4))
    assert (problem.objective(problem(U)) < 0).all()
