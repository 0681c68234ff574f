import numpy as np
import pytest
from heads import build_mlp

from skuq.networks import DenseSpace, GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, train


@pytest.mark.parametrize("builds", ["mlp", "space"])
@pytest.mark.parametrize("p", [20, 300])
def test_first_kernels_are_glorots_at_any_number_of_columns(builds, p):
    """Their range is sqrt(6 / (inputs + units))."""
    if builds == "mlp":
        kernels = build_mlp((p,), 2, (64, 64)).get_weights()[:4:2]
    else:
        space = DenseSpace(n_nodes=2)
        configuration = {"node_1": "64-relu", "node_2": "64-tanh", "skip_0_2": 1, "skip_0_3": 1}
        by_path = {v.path: v.numpy() for v in space.build(configuration, (p,), 2).variables}
        names = ("node_1", "node_2", "project_0_2", "project_0_3")
        kernels = [by_path[f"{name}/kernel"] for name in names]
    for kernel in kernels:
        expected = np.sqrt(6 / sum(kernel.shape))
        assert 0.9 * expected < np.abs(kernel).max() < 1.001 * expected


def test_rate_of_the_first_layer_goes_by_the_columns_that_vary_together(rng):
    """A first step of Adam moves every weight by the learning rate."""
    y, one = rng.normal(size=(64, 1)), rng.normal(size=(64, 1))

    def first_step(x, learning_rate=0.01):
        model = build_mlp((x.shape[1],), 2, (8,), activation="tanh")
        recipe = {"learning_rate": learning_rate, "epochs": 1, "batch_size": 64}
        recipe = Recipe(**recipe, keep="last", epsilon=1e-12)
        job = TrainingJob.of_model(model, GaussianHead(), recipe, [0])
        # The same job with hardly any step has the first weights.
        still = Recipe(learning_rate=1e-30, epochs=1, batch_size=64)
        still = TrainingJob.of_model(model, GaussianHead(), still, [0])
        data = TrainingData.without_validation(x, y, np.ones(64))
        (after,), (before,) = train(job, data), train(still, data)
        moved, n = np.abs(after.weights - before.weights), x.shape[1] * 8
        np.testing.assert_allclose(moved[n:].max(), learning_rate, rtol=0.02)
        return moved[:n].max() / learning_rate

    for x, rate, expected in [
        (np.repeat(one, 10, axis=1), 0.01, 1.0),
        (np.repeat(one, 40, axis=1), 0.01, 0.25),
        (3 * np.repeat(one, 40, axis=1), 0.01, 0.25),  # whatever the unit
        (np.repeat(one, 40, axis=1), 0.005, 0.5),  # low rates bear more columns
        (np.repeat(one, 40, axis=1), 0.1, 0.25),
        (rng.normal(size=(64, 40)), 0.01, 1.0),  # independent columns
    ]:
        np.testing.assert_allclose(first_step(x, rate), expected, rtol=0.02)


@pytest.mark.parametrize(("n_nodes", "n_decisions"), [(3, 9), (5, 17), (10, 37)])
def test_number_of_decisions(n_nodes, n_decisions):
    assert len(DenseSpace(n_nodes).decisions().architecture) == n_decisions
    first = DenseSpace().decisions().architecture.decisions[0]
    assert len(set(first.choices)) == 177 == 16 * 11 + 1
    assert DenseSpace(3).skips() == [(0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (2, 4)]
    assert [source for source, target in DenseSpace(5).skips() if target == 6] == [2, 3, 4]


def test_hyperparameters_of_the_dense_space_are_the_papers():
    hyperparameters = DenseSpace(max_batch_size=32).decisions().hyperparameters
    by_name = {d.name: d for d in hyperparameters.decisions}
    rate, batch = by_name["learning_rate"], by_name["batch_size"]
    assert (rate.low, rate.high, rate.log) == (1e-4, 1e-1, True)
    assert (batch.low, batch.high, batch.log) == (1, 32, True)
    assert by_name["optimizer"].choices == (
        "sgd", "rmsprop", "adagrad", "adam", "adadelta", "adamax", "nadam",
    )  # fmt: skip
    assert (by_name["reduce_lr_patience"].low, by_name["reduce_lr_patience"].high) == (10, 20)
    stop = by_name["early_stopping_patience"]
    assert (stop.low, stop.high) == (20, 30)


@pytest.mark.parametrize("settings", [{"n_nodes": 0}, {"max_batch_size": 0}])
def test_validate_refuses(settings):
    with pytest.raises(ValueError, match="Got 0"):
        DenseSpace(**settings).validate()


@pytest.mark.slow
def test_all_177_layer_types_build():
    space = DenseSpace(n_nodes=1)
    (decision, _) = space.decisions().architecture.decisions
    for choice in decision.choices:
        model = space.build({"node_1": choice, "skip_0_2": 1}, (3,), 2)
        assert model.output_shape == (None, 2)


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
