import numpy as np
import pytest
from heads import build_mlp
from plans import draw_variables
from tiers import cases

from skuq.networks import DenseSpace, GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, train


@pytest.mark.parametrize("p", [20, 300])
def test_first_kernels_are_glorots_at_any_number_of_columns(p):
    """Their range is sqrt(6 / (inputs + units))."""
    configuration = {"node_1": "64-relu", "node_2": "64-tanh", "skip_0_2": 1, "skip_0_3": 1}
    models = build_mlp((p,), 2, (64, 64)), DenseSpace(n_nodes=2).build(configuration, (p,), 2)
    kernels = [v for model in models for v in model.get_weights() if v.ndim == 2 and v.size > 200]
    assert len(kernels) == 6
    for kernel in kernels:
        expected = np.sqrt(6 / sum(kernel.shape))
        assert 0.9 * expected < np.abs(kernel).max() < 1.001 * expected


def test_rate_of_the_first_layer_goes_by_the_columns_that_vary_together(rng):
    """A first step of Adam moves every weight by the learning rate."""
    y, one = rng.normal(size=(64, 1)), rng.normal(size=(64, 1))

    def first_step(x, learning_rate=0.01):
        model = build_mlp((x.shape[1],), 2, (8,), activation="tanh")
        settings = {"epochs": 1, "batch_size": 64, "keep": "last", "epsilon": 1e-12}
        recipe, start = Recipe(learning_rate=learning_rate, **settings), draw_variables(model, 1)
        job = TrainingJob.of_model(model, GaussianHead(), recipe, [0], start=[start])
        (after,) = train(job, TrainingData.without_validation(x, y, np.ones(64)))
        moved, n = np.abs(after.weights - start[0]), x.shape[1] * 8
        np.testing.assert_allclose(moved[n:].max(), learning_rate, rtol=0.02)
        return moved[:n].max() / learning_rate

    for x, rate, expected in [
        (np.repeat(one, 10, axis=1), 0.01, 1.0),
        (3 * np.repeat(one, 40, axis=1), 0.01, 0.25),  # whatever the unit
        (np.repeat(one, 40, axis=1), 0.005, 0.5),  # low rates bear more columns
        (np.repeat(one, 40, axis=1), 0.1, 0.25),
        (rng.normal(size=(64, 40)), 0.01, 1.0),  # independent columns
    ]:
        np.testing.assert_allclose(first_step(x, rate), expected, rtol=0.02)


@cases(("n_nodes", "n_decisions"), (3, 9), (5, 17), (10, 37))
def test_number_of_decisions(n_nodes, n_decisions):
    architecture = DenseSpace(n_nodes).decisions().architecture
    assert len(architecture) == n_decisions
    assert len(set(architecture.decisions[0].choices)) == 177 == 16 * 11 + 1
    assert DenseSpace(3).skips() == [(0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (2, 4)]
    assert [source for source, target in DenseSpace(5).skips() if target == 6] == [2, 3, 4]


def test_hyperparameters_of_the_dense_space_are_the_papers():
    found = DenseSpace(max_batch_size=32).decisions().hyperparameters.decisions
    assert {(d.name, d.low, d.high, d.log) for d in found if d.name != "optimizer"} == {
        ("learning_rate", 1e-4, 1e-1, True),
        ("batch_size", 1, 32, True),
        ("reduce_lr_patience", 10, 20, False),
        ("early_stopping_patience", 20, 30, False),
    }
    (optimizer,) = (d for d in found if d.name == "optimizer")
    assert " ".join(optimizer.choices) == "sgd rmsprop adagrad adam adadelta adamax nadam"


@pytest.mark.parametrize("settings", [{"n_nodes": 0}, {"max_batch_size": 0}])
def test_validate_refuses(settings):
    with pytest.raises(ValueError, match="Got 0"):
        DenseSpace(**settings).validate()


def test_forward_pass_by_hand():
    """node 1 = 16 relu, node 2 = identity with a skip of the input, output with a skip."""
    space = DenseSpace(n_nodes=2)
    configuration = {
        "node_1": "16-relu", "node_2": "identity", "skip_0_2": 1, "skip_0_3": 0, "skip_1_3": 1,
    }  # fmt: skip
    model = space.build(configuration, (3,), 2)
    w = {v.path: v.numpy().astype("float64") for v in model.variables}
    x = np.random.default_rng(0).normal(size=(5, 3))
    one = np.maximum(x @ w["node_1/kernel"] + w["node_1/bias"], 0)
    two = one + x @ w["project_0_2/kernel"]
    out = (two + one @ w["project_1_3/kernel"]) @ w["output/kernel"] + w["output/bias"]
    np.testing.assert_allclose(model(x.astype("float32")), out, rtol=1e-4, atol=1e-5)
