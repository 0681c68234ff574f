import numpy as np
import pytest

from skuq.networks import Categorical, DenseSpace
from skuq.networks._space import training_hyperparameters


@pytest.mark.parametrize(("n_nodes", "n_decisions"), [(3, 9), (5, 17), (10, 37)])
def test_number_of_decisions(n_nodes, n_decisions):
    assert len(DenseSpace(n_nodes).decisions().architecture) == n_decisions


def test_layer_types_are_the_papers_177():
    first = DenseSpace().decisions().architecture.decisions[0]
    assert len(set(first.choices)) == 177 == 16 * 11 + 1


def test_skips_come_from_up_to_three_anchors_before_the_last():
    assert DenseSpace(3).skips() == [(0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (2, 4)]
    assert [source for source, target in DenseSpace(5).skips() if target == 6] == [2, 3, 4]


def test_training_hyperparameters_are_the_papers():
    by_name = {d.name: d for d in training_hyperparameters(32).decisions}
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
def test_every_choice_of_every_decision_builds():
    """One sweep per decision, with all others random: 177 types, both values of a skip."""
    space = DenseSpace(n_nodes=3)
    architecture = space.decisions().architecture
    rng = np.random.default_rng(0)
    for decision in architecture.decisions:
        assert isinstance(decision, Categorical)
        choices = (
            decision.choices
            if len(decision.choices) < 3
            else rng.permutation(decision.choices)[:20]
        )
        for choice in choices:
            configuration = {**architecture.sample(rng), decision.name: str(choice)}
            if not decision.name.startswith("node"):
                configuration[decision.name] = int(choice)
            model = space.build(configuration, (4,), 2)
            assert model.output_shape == (None, 2)


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


def test_all_identity_is_a_linear_model():
    space = DenseSpace(n_nodes=3)
    default = space.decisions().architecture.default()
    model = space.build({**default, **{f"node_{k}": "identity" for k in (1, 2, 3)}}, (4,), 2)
    assert model.count_params() == 4 * 2 + 2
