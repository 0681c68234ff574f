import numpy as np
import pytest
from scipy import stats
from training_data import uniform

from skuq.backend import compile_program

KEYS = np.array([1, 2, 3, 2**31], dtype="uint32")


def draw(key, step=0, stream=0, shape=(200, 50)):
    return np.asarray(uniform(np.asarray(key, dtype="uint32"), np.int32(step), stream, shape))


def test_numbers_are_uniform_and_independent():
    numbers = draw(KEYS)
    assert numbers.shape == (4, 200, 50) and numbers.min() >= 0 and numbers.max() < 1
    # 40 000 numbers; the test's level is 1e-4, and the draw is fixed.
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    columns = [draw(7), draw(8), draw(7, step=1), draw(7, stream=1), draw(7, step=2**20)]
    correlation = np.corrcoef([c.ravel() for c in columns])
    # The std of a correlation of 10 000 pairs is 0.01; ten of them.
    assert np.abs(correlation - np.eye(5)).max() < 0.04
    # Neighbours within a draw, along both axes.
    for a, b in ((numbers[:, 1:], numbers[:, :-1]), (numbers[..., 1:], numbers[..., :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
    # Keys and steps that differ in a few bits give other numbers, not another order.
    assert len(np.intersect1d(draw(7), draw(6))) < 50


def test_a_member_draws_the_same_alone_and_in_a_stack():
    for k, key in enumerate(KEYS):
        np.testing.assert_array_equal(draw(KEYS, 5, 2)[k], draw(key, 5, 2))


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_programs_draw_the_same(jit):
    def program(key, step):
        return uniform(key, step, 3, (10, 4))

    key, step = np.asarray(KEYS), np.int32(9)
    from skuq.backend import to_tensors

    arguments = to_tensors((key, step))
    compiled = compile_program(program, arguments, jit=jit)
    np.testing.assert_array_equal(np.asarray(compiled(*arguments)), draw(KEYS, 9, 3, (10, 4)))
