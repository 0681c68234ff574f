"""Problems of composite optimisation, and functions drawn from a network's prior."""

import os
from pathlib import Path

import numpy as np
import pytest
from bo_problems import lowest
from numpy.testing import assert_allclose, assert_array_equal
from problems import OPERATOR_PROBLEMS, BNNFunction, make_bnn_function, make_operator_problem
from scipy.optimize import approx_fprime
from scipy.special import expit, logsumexp

from skuq.backend import ops, value_and_gradient


def made_up_outputs(name, *lead, random_state=0):
    """Outputs (*lead, q[, d_s]) of a size that the problem has."""
    problem, rng = make_operator_problem(name), np.random.default_rng(random_state)
    components = () if problem.n_outputs == 1 else (problem.n_outputs,)
    shape = (*lead, len(problem.query_points), *components)
    if name == "interferometer":
        # Light that differs by little between images, or the greatest has all of the slope.
        return 5 + 0.001 * rng.random(shape)
    return 3 * rng.random(shape)


@pytest.mark.parametrize("name", OPERATOR_PROBLEMS)
def test_objective_of_tensors_is_that_of_arrays_with_its_gradient(name):
    problem, outputs = make_operator_problem(name), made_up_outputs(name, 2, 2).astype("float32")
    direction = made_up_outputs(name, random_state=1)

    def total(tensor):
        values = problem.objective(tensor)
        return ops.sum(values), values

    _, values, gradient = value_and_gradient(total, ops.convert_to_tensor(outputs))
    expected = problem.objective(outputs)
    assert expected.shape == (2, 2) and np.ptp(expected) > 0
    assert_allclose(expected[1, 0], problem.objective(outputs[1, 0]), rtol=1e-6)
    assert np.asarray(values).dtype == np.float32
    # Light is a sum of 4096 pixels in float32, of which the visibility is a difference.
    assert_allclose(values, expected, rtol=3e-3 if name == "interferometer" else 1e-5)

    rise = approx_fprime([0.0], lambda k: problem.objective(outputs[0, 0] + k[0] * direction), 1e-6)
    assert_allclose((np.asarray(gradient)[0, 0] * direction).sum(), rise, rtol=1e-2)
    with pytest.raises(ValueError, match=r"outputs must have shape \(\.\., "):
        problem.objective(np.ones((3, 7)))


def test_pollutants_stored_runs():
    problem = make_operator_problem("pollutants")
    folder = Path(os.environ.get("SKUQ_DATA_DIR", "data"))
    if not (folder / "neon").is_dir():
        pytest.skip(f"no benchmark data in {folder} (set SKUQ_DATA_DIR)")
    with np.load(folder / "neon" / "reference_runs.npz") as kept:
        runs = dict(kept)
    assert_allclose(problem.query_points, runs["pollutants_grid"], atol=1e-6)
    U, stored = runs["pollutants_u_ei_leaky"], runs["pollutants_s_ei_leaky"]
    outputs = problem(U.reshape(-1, 4)).reshape(stored.shape)
    # Stored in float32, of numbers up to some 10.
    assert_allclose(outputs, stored, rtol=1e-6, atol=1e-6)
    target = runs["pollutants_true_s"].astype("float64")
    by_hand = -np.mean((stored.astype("float64") - target) ** 2, axis=-1)
    assert_allclose(problem.objective(stored), by_hand, rtol=1e-4, atol=1e-9)


def test_objectives_by_hand(rng):
    problem, border = make_operator_problem("brusselator"), np.zeros((64, 64, 1))
    border[[0, 1, -2, -1]] = border[:, [0, 1, -2, -1]] = 1
    # Border 1 and inside 10 are 1 everywhere after weighting: a variance of 0.
    flat = np.broadcast_to(np.where(border == 1, 1.0, 10.0), (64, 64, 2)).reshape(4096, 2)
    assert_allclose(problem.objective(flat), 0, atol=1e-25)
    # One component 0, the other the border: a share p = 496 / 8192 of ones.
    one, p = np.concatenate([border, 0 * border], axis=-1).reshape(4096, 2), 496 / 8192
    assert_allclose(problem.objective(one), -p * (1 - p), rtol=1e-12)
    objective = make_operator_problem("interferometer").objective
    images, x = rng.integers(0, 256, (2, 64, 64, 16)) / 400, np.arange(64) / 64
    weights = np.exp(-((x[:, None] - 0.5) ** 2 + (x - 0.5) ** 2) / 0.95**2)
    light = np.einsum("ij,kijt->kt", weights, images)
    most, least = logsumexp(light, axis=1), -logsumexp(-light, axis=1)
    expected = (most - least) / (most + least)
    assert_allclose(objective(images.reshape(2, 4096, 16)), expected, rtol=1e-12)
    for level in (-10.0, 0.0, 1e-3):  # of darkness it is small
        assert abs(objective(np.full((4096, 16), level))) < 0.1
    draws = rng.normal(100, 300, (4096, 16))  # are taken for images
    assert_array_equal(objective(draws), objective(np.clip(draws, 0, 255)))
    # The objective of section 6.4, in plain loops over the cells.
    problem = make_operator_problem("cell_towers")
    outputs = rng.uniform([-90, -95], [-70, -75], (2500, 2))
    total = 0.0
    for power, interference in outputs:
        area = expit(power + 80) * expit(interference + 6 - power)
        total += 0.25 * expit(-80 - power) + 0.75 * expit((interference - power) * area + 6)
    assert_allclose(problem.objective(outputs), total, rtol=1e-12)


def test_bnn_function_by_hand_and_its_prior():
    layers = (
        (np.array([[1, -2]], np.float32), np.array([0.5, 1], np.float32)),
        (np.array([[2], [3]], np.float32), np.array([-1], np.float32)),
    )
    # x = 1: 2 relu(1.5) + 3 relu(-1) - 1; x = -1: 2 relu(-0.5) + 3 relu(3) - 1.
    values = BNNFunction(layers)([[1.0], [-1.0]])
    assert values.tolist() == [2.0, 8.0] and values.dtype == np.float64
    # 2 (x + 0.5) - 1 and 3 (1 - 2 x) more up to x = 0.5
    assert_allclose(lowest(BNNFunction(layers), 0), 1, rtol=0.01)
    function = make_bnn_function(3, hidden_units=(300, 200), prior_std=0.5, random_state=0)
    shapes = [(kernel.shape, bias.shape) for kernel, bias in function.layers]
    assert shapes == [((3, 300), (300,)), ((300, 200), (200,)), ((200, 1), (1,))]
    parameters = np.concatenate([np.ravel(p) for layer in function.layers for p in layer])
    # The relative standard error of a std from 61 601 draws is 0.3 %.
    assert_allclose(parameters.std(), 0.5, rtol=0.015)
    assert_allclose(parameters.mean(), 0, atol=0.01)
    usual = make_bnn_function(20, hidden_units=(300,), random_state=0)
    assert_allclose(usual.layers[0][0].std(), 0.07, rtol=0.03)  # Table 9
