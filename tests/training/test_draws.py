"""Training of and prediction by networks with several draws: steps, stacks, slices, priors."""

from dataclasses import replace

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import DrawingNetwork
from plans import Run, float32, tensors
from tiers import slow_after
from training_data import INDEX_STREAM, STEADY, normal, train_member, train_stack

from skuq.backend import BACKEND, BoundedCache, ops
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingRun

BASE = operators.EncoderDecoder(2, 1, 1, (6,), 4, "split", (5,))
LAYERS = operators.EpiNetLayers(BASE.n_features, 1, 3, (6,), (4,), 0.75)
EPISTEMIC = operators.EpistemicNetwork(BASE, 1, LAYERS)
PRIOR = operators.EpistemicNetwork(BASE, 1, prior_scale=1.0)
HEAD = operators.OperatorHead(1)
RECIPE = {"learning_rate": 0.01, "batch_size": 40, "epochs": 30, "keep": "last", "n_draws": 4}
RECIPE = Recipe(**RECIPE, **STEADY)


def table(n=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    y = np.sin(x[:, :1] + x[:, 2:])
    return TrainingData.without_validation(x, y, rng.uniform(0.5, 1.5, n))


@pytest.fixture(scope="module")
def data():
    return table()


@pytest.fixture(scope="module")
def member(data):
    return train_member(EPISTEMIC, HEAD, RECIPE, data, 5)


def first(network, seed):
    """First weights and state of a member with this seed."""
    entropy = np.random.SeedSequence(seed).generate_state(4)
    return DrawingNetwork(network).draw(int(entropy[0]))


@pytest.mark.parametrize("prior_scale", slow_after(1, [0.75, 0.0]))
def test_a_step_follows_the_gradient_of_the_loss(data, prior_scale):
    """One step of gradient descent, with the indices that the step draws."""
    epinet = replace(EPISTEMIC.epinet, prior_scale=prior_scale)
    network = replace(EPISTEMIC, epinet=epinet)
    recipe = replace(RECIPE, optimizer="sgd", epochs=1)
    after = train_member(network, HEAD, recipe, data, 5)
    drawing, (flat, state) = DrawingNetwork(network), first(network, 5)
    key = np.uint32(np.random.SeedSequence(5).generate_state(4)[2])
    index = normal(key, np.int32(1), INDEX_STREAM, (4, 3))
    slope = _slope(drawing, flat, state, data, index)
    assert_allclose(after.weights, flat - recipe.learning_rate * slope, atol=1e-6)


def _slope(drawing, flat, state, data, index):
    x, y, weight = float32([data.x, data.y, data.weight])

    def loss(variables):
        run = Run(tensors(), training=True, index=index)
        draws = drawing.forward(variables, float32(state), x, run)[0]  # (S, N, 1)
        error = 0.5 * ops.square(draws[..., 0] - y[:, 0])
        return ops.mean(ops.mean(error, axis=0) * weight), ()

    _, _, slopes = BACKEND.value_and_gradient(loss, float32(drawing.split(flat)))
    return np.concatenate([np.ravel(slope) for slope in slopes])


def test_prior_is_frozen_and_the_rest_learns(member, data):
    weights, prior = first(EPISTEMIC, 5)
    assert len(prior) == len(member.state) == 2
    for before, after in zip(prior, member.state):
        assert_array_equal(before, after)
    drawing = DrawingNetwork(EPISTEMIC)
    moved = [abs(a - b).max() for a, b in zip(*map(drawing.split, (weights, member.weights)))]
    assert min(moved) > 0
    assert member.history["loss"][-1] < 0.5 * member.history["loss"][0]


def test_randomised_prior_is_frozen(data):
    members = train_stack(PRIOR, HEAD, replace(RECIPE, n_draws=0), data, [3, 4])
    for seed, member in zip([3, 4], members):
        weights, prior = first(PRIOR, seed)
        for before, after in zip(prior, member.state, strict=True):
            assert_array_equal(before, after)
        assert abs(member.weights - weights).max() > 0.01


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_a_prior_computed_once_trains_as_one_computed_in_each_step(monkeypatch, data, epsilon):
    """Adversarial training moves the rows, so that there the prior changes from step to step."""
    recipe = replace(RECIPE, n_draws=0, batch_size=8, epochs=3, adversarial_epsilon=epsilon)
    rows = [(np.arange(30), None), (np.arange(39, 9, -1), None)]
    members = []
    for prior in (TrainingRun._prior, lambda run, template: None):
        monkeypatch.setattr(TrainingRun, "_prior", prior)
        monkeypatch.setattr("skuq.training._train.programs", BoundedCache(2))
        members.append(train_stack(PRIOR, HEAD, recipe, data, [3, 4], splits=rows))
    for once, each in zip(*members):
        assert_allclose(once.weights, each.weights, atol=1e-5)


def test_indices_of_a_step_are_standard_normal():
    key = np.uint32(12)
    steps = map(np.int32, range(1, 41))
    numbers = [normal(key, step, INDEX_STREAM, (100, 16)) for step in steps]
    numbers = [ops.convert_to_numpy(values) for values in numbers]
    numbers = np.stack(numbers).astype(float)
    n = numbers.size
    assert abs(numbers.mean()) < 4 / np.sqrt(n)
    assert abs(numbers.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((numbers**4).mean() - 3) < 4 * np.sqrt(96 / n)
    pairs = numbers.reshape(-1, 16)
    correlations = np.corrcoef(pairs.T) - np.eye(16)
    assert abs(correlations).max() < 4.5 / np.sqrt(len(pairs))
    following = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]
    assert abs(following) < 4 / np.sqrt(n)


def in_float32(member, x, index):
    """The network's own forward pass on tensors."""
    drawing = DrawingNetwork(operators.read_network(member.network))
    run = Run(tensors(), index=float32([index])[0])
    weights, state = float32(drawing.split(member.weights)), float32(member.state)
    return ops.convert_to_numpy(drawing.forward(weights, state, float32([x])[0], run)[0])


def test_predictions_are_those_of_the_network(member, data, monkeypatch):
    index = np.random.default_rng(0).normal(size=(7, 3))
    draws = operators.predict_draws(member, data.x, index)
    assert draws.shape == (7, 40, 1) and draws.dtype == np.float64
    assert_allclose(draws, in_float32(member, data.x, index), atol=1e-5)
    index = np.random.default_rng(0).normal(size=(300, 3))
    x = table(100).x
    together = operators.predict_draws(member, x, index)
    apart = np.concatenate([operators.predict_draws(member, row[None], index) for row in x], axis=1)
    assert_allclose(together, apart, atol=1e-12)
