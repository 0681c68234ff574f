"""Spaces of decisions, and the space of dense networks."""

import numpy as np
import pytest
from heads import build_mlp
from numpy.testing import assert_allclose
from plans import draw_variables
from scipy import stats
from tiers import cases

from skuq.networks import Categorical, DenseSpace, GaussianHead, Integer, Real, Space
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, train


@pytest.fixture
def space():
    numbers = Integer("batch", 1, 256, log=True), Integer("n", 10, 20)
    rate = Real("rate", 1e-4, 1e-1, log=True)
    return Space((Categorical("c", ("a", "b", "c")), *numbers, rate, Categorical("one", (5,))))


def test_log_uniform_integers_follow_their_law():
    draws = Integer("k", 1, 32, log=True).sample(np.random.default_rng(0), 50_000)
    k = np.arange(1, 33)
    expected = np.log((k + 1) / k) / np.log(33)
    _, p_value = stats.chisquare(np.bincount(draws, minlength=33)[1:], 50_000 * expected)
    assert p_value > 1e-3
    draws = Real("r", 1e-4, 1e-1, log=True).sample(np.random.default_rng(0), 20_000)
    assert stats.kstest(draws, stats.loguniform(1e-4, 1e-1).cdf).pvalue > 1e-3


def test_mutation_changes_exactly_one_decision_to_another_valid_value(space, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    changed = set()
    for _ in range(300):
        parent = space.sample(rng)
        child = space.mutate(parent, rng)
        different = [name for name in space.names if parent[name] != child[name]]
        assert len(different) == 1
        assert space.check(child, "child") == child
        changed.update(different)
    assert changed == {"c", "batch", "n", "rate"}  # "one" has nothing to change to


def test_encoding_and_defaults(space):
    a = {"c": "b", "batch": 8, "n": 12, "rate": 0.01, "one": 5}
    expected = [[0, 1, 0, np.log(8), 12, np.log(0.01), 1]]
    assert_allclose(space.encode([a]), expected)
    big = Space((Categorical("t", tuple(range(100, 150))),))
    assert_allclose(big.encode([{"t": 107}]), [[7.0]])
    assert space.check({"n": np.int64(11)}, "fixed") == {**space.default(), "n": 11}


@cases(
    ("fixed", "words"),
    ({"x": 1}, r"fixed.*unknown decisions \['x'\]"),
    ({"n": 99}, r"fixed\['n'\].*Got 99"),
    *(({"n": value}, r"fixed\['n'\]") for value in (12.0, float("nan"), "abc", None, True)),
    *(({"rate": value}, r"fixed\['rate'\]") for value in (float("inf"), "abc", None, True)),
)
def test_check_refuses(space, fixed, words):
    with pytest.raises(ValueError, match=words):
        space.check(fixed, "fixed")


@cases(
    ("make", "words"),
    (DenseSpace(n_nodes=0).validate, "Got 0"),
    (DenseSpace(max_batch_size=0).validate, "Got 0"),
    (lambda: Integer("k", 5, 4), "low <= high"),
    (lambda: Real("r", 0.0, 1.0, log=True), "log scale"),
    (lambda: Categorical("c", ()), "no choices"),
    (lambda: Space((Categorical("c", (1,)), Categorical("c", (2,)))), "must differ"),
)
def test_decisions_and_spaces_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_mutation_ends_where_there_is_nothing_else(rng):
    """Without decisions, or where values repeat or have all the mass."""
    empty = Space()
    assert empty.sample(rng) == {} and empty.sample_many(rng, 2) == [{}, {}]
    assert empty.mutate({}, rng) == {}
    assert Space((Categorical("u", (8, 8)),)).mutate({"u": 8}, rng) == {"u": 8}
    neighbours = Space((Real("r", 1.0, float(np.nextafter(1.0, 2.0))),))
    assert neighbours.mutate({"r": 1.0}, rng)["r"] != 1.0
    skewed = Space((Integer("k", 1, 2, log=True),))
    assert {skewed.mutate({"k": 1}, rng)["k"] for _ in range(50)} == {2}


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
        assert_allclose(moved[n:].max(), learning_rate, rtol=0.02)
        return moved[:n].max() / learning_rate

    for x, rate, expected in [
        (np.repeat(one, 10, axis=1), 0.01, 1.0),
        (3 * np.repeat(one, 40, axis=1), 0.01, 0.25),  # whatever the unit
        (np.repeat(one, 40, axis=1), 0.005, 0.5),  # low rates bear more columns
        (np.repeat(one, 40, axis=1), 0.1, 0.25),
        (rng.normal(size=(64, 40)), 0.01, 1.0),  # independent columns
    ]:
        assert_allclose(first_step(x, rate), expected, rtol=0.02)


def test_decisions_of_the_dense_space_are_the_papers():
    for n_nodes, n_decisions in ((3, 9), (5, 17), (10, 37)):
        architecture = DenseSpace(n_nodes).decisions().architecture
        assert len(architecture) == n_decisions
        assert len(set(architecture.decisions[0].choices)) == 177 == 16 * 11 + 1
    assert DenseSpace(3).skips() == [(0, 2), (0, 3), (1, 3), (0, 4), (1, 4), (2, 4)]
    assert [source for source, target in DenseSpace(5).skips() if target == 6] == [2, 3, 4]
    found = DenseSpace(max_batch_size=32).decisions().hyperparameters.decisions
    assert {(d.name, d.low, d.high, d.log) for d in found if d.name != "optimizer"} == {
        ("learning_rate", 1e-4, 1e-1, True),
        ("batch_size", 1, 32, True),
        ("reduce_lr_patience", 10, 20, False),
        ("early_stopping_patience", 20, 30, False),
    }
    (optimizer,) = (d for d in found if d.name == "optimizer")
    assert " ".join(optimizer.choices) == "sgd rmsprop adagrad adam adadelta adamax nadam"


def test_forward_pass_of_the_dense_space_by_hand():
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
    assert_allclose(model(x.astype("float32")), out, rtol=1e-4, atol=1e-5)
