"""Training of and prediction by networks with several draws: steps, stacks, slices, priors."""

from dataclasses import replace

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import DrawingNetwork, first_draw
from plans import Run, float32, tensors
from scipy import stats
from training_data import (
    INDEX_STREAM,
    STEADY,
    make_data,
    normal,
    train_member,
    train_stack,
    uniform,
)

from skuq.backend import BACKEND, BoundedCache, ops
from skuq.training import Recipe, TrainingJob, TrainingRun

BASE = operators.EncoderDecoder(2, 1, 1, (6,), 4, "split", (5,))
LAYERS = operators.EpiNetLayers(BASE.n_features, 1, 3, (6,), (4,), 0.75)
EPISTEMIC = operators.EpistemicNetwork(BASE, 1, LAYERS)
PRIOR = operators.EpistemicNetwork(BASE, 1, prior_scale=1.0)
HEAD = operators.OperatorHead(1)
RECIPE = Recipe(learning_rate=0.01, batch_size=40, epochs=1, keep="last", n_draws=4, **STEADY)


@pytest.fixture(scope="module")
def data():
    return make_data(40, 0)


def test_a_step_follows_the_gradient_of_the_loss(data):
    """One step of gradient descent, with the indices that the step draws."""
    recipe = replace(RECIPE, optimizer="sgd")
    after = train_member(EPISTEMIC, HEAD, recipe, data, 5)
    drawing, (flat, state) = DrawingNetwork(EPISTEMIC), first_draw(EPISTEMIC, 5)
    key = np.uint32(np.random.SeedSequence(5).generate_state(4)[2])
    index = normal(key, np.int32(1), INDEX_STREAM, (4, 3))
    slope = _slope(drawing, flat, state, data, index)
    assert_allclose(after.weights, flat - recipe.learning_rate * slope, atol=1e-6)
    for frozen, found in zip(state, after.state, strict=True):
        assert_array_equal(found, frozen)


def _slope(drawing, flat, state, data, index):
    x, y, weight = float32([data.x, data.y, data.weight])

    def loss(variables):
        run = Run(tensors(), training=True, index=index)
        draws = drawing.forward(variables, float32(state), x, run)[0]  # (S, N, 1)
        error = 0.5 * ops.square(draws[..., 0] - y[:, 0])
        return ops.mean(ops.mean(error, axis=0) * weight), ()

    _, _, slopes = BACKEND.value_and_gradient(loss, float32(drawing.split(flat)))
    return np.concatenate([np.ravel(slope) for slope in slopes])


def test_a_prior_computed_once_trains_as_one_computed_in_each_step(monkeypatch, data):
    recipe = replace(RECIPE, n_draws=0, batch_size=8, epochs=3)
    rows = [(np.arange(30), None), (np.arange(39, 9, -1), None)]
    members = []
    for prior in (TrainingRun._prior, lambda run, template: None):
        monkeypatch.setattr(TrainingRun, "_prior", prior)
        monkeypatch.setattr("skuq.training._train.programs", BoundedCache(2))
        members.append(train_stack(PRIOR, HEAD, recipe, data, [3, 4], splits=rows))
    for seed, once, each in zip([3, 4], *members):
        assert_allclose(once.weights, each.weights, atol=1e-5)
        weights, frozen = first_draw(PRIOR, seed)
        assert abs(once.weights - weights).max() > 0.01
        for before, after in zip(frozen, once.state, strict=True):
            assert_array_equal(before, after)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_a_prior_is_not_computed_once_if_adversarial_training_moves_the_rows(data, epsilon):
    recipe = replace(RECIPE, n_draws=0, adversarial_epsilon=epsilon)
    run = TrainingRun(TrainingJob.of_model(PRIOR, HEAD, recipe, [3]), data)
    assert ("prior" in run._tables) == (epsilon == 0)


def test_indices_of_a_step_are_standard_normal():
    steps = [normal(np.uint32(12), np.int32(k), INDEX_STREAM, (100, 16)) for k in range(1, 41)]
    numbers = np.stack([ops.convert_to_numpy(values) for values in steps]).astype(float)
    n = numbers.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs((numbers**power).mean() - mean) < 4 * np.sqrt(variance / n)
    correlations = np.corrcoef(numbers.reshape(-1, 16).T) - np.eye(16)
    assert abs(correlations).max() < 4.5 / np.sqrt(n / 16)
    following = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]
    assert abs(following) < 4 / np.sqrt(n)


def test_predictions_are_those_of_the_network(data):
    member = train_member(EPISTEMIC, HEAD, RECIPE, data, 5)
    drawing, index = DrawingNetwork(EPISTEMIC), np.random.default_rng(0).normal(size=(7, 3))
    run = Run(tensors(), index=float32([index])[0])
    weights, state = float32(drawing.split(member.weights)), float32(member.state)
    expected = drawing.forward(weights, state, *float32([data.x]), run)[0]
    draws = operators.predict_draws(member, data.x, index)
    assert draws.shape == (7, 40, 1) and draws.dtype == np.float64
    assert_allclose(draws, ops.convert_to_numpy(expected), atol=1e-5)
    index = np.random.default_rng(0).normal(size=(300, 3))
    x = make_data(100, 0).x  # so many draws that rows are predicted in parts
    together = operators.predict_draws(member, x, index)
    assert_allclose(together[:, -9:], operators.predict_draws(member, x[-9:], index), atol=1e-12)


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
