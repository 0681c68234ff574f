"""Searches of noisy functions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from surrogates import JointProcess, Marginal, search


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
