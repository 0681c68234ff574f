"""The problems of benchmarks/bo_suite.py: known minima, and fields from few cells."""

import numpy as np
import pytest
from _bo_suite_problems import TASKS, ackley, branin, hartmann6, on_few_cells, pest_control
from numpy.testing import assert_allclose
from problems import make_operator_problem


def test_tasks_have_known_minima():
    assert_allclose(branin(np.array([np.pi, 2.275])), TASKS["branin"](None).best_value)
    x = np.array([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573])
    assert_allclose(hartmann6(x), TASKS["hartmann6"](None).best_value, atol=1e-6)
    assert_allclose(ackley(np.zeros(10)), 0.0, atol=1e-14)


def test_pest_control_by_hand():
    never, always = pest_control(np.zeros(25)), pest_control(np.full(25, 4))
    assert 0 < never <= 25
    # The last pesticide costs 0.5 a stage without a discount; pests above the threshold cost more.
    assert always >= 12.5
    assert pest_control(np.zeros(25)) == never  # its random numbers are fixed
    # The first of five stages of pesticide 1 costs 1 - 0.2 * 5 / 25.
    few = np.zeros(25)
    few[:5] = 1
    assert pest_control(few) < never + 5 * (1 - 0.2 * 5 / 25)


@pytest.mark.parametrize(
    ("name", "block", "side", "low", "high"),
    [("cell_towers", 2, 25, [-90, -90], [-70, -70]), ("interferometer", 4, 16, [-9] * 16, 270)],
)
def test_on_few_cells_stands_for_blocks(name, block, side, low, high):
    problem = make_operator_problem(name)
    rows, objective = on_few_cells(name, block)
    assert len(rows) == side**2
    blocks = np.random.default_rng(0).uniform(low, high, (side, side, len(low)))
    field = np.repeat(np.repeat(blocks, block, axis=0), block, axis=1).reshape(-1, len(low))
    assert_allclose(objective(field[rows]), problem.objective(field), rtol=1e-12)
    assert objective is on_few_cells(name, block)[1]
