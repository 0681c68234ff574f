"""Spaces of decisions, of dense networks and of networks for tables, and their recipes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from heads import bound_tabular_space, build_mlp, build_tabular, class_recipes
from numpy.testing import assert_allclose
from plans import draw_variables, make_plan
from scipy import stats
from tiers import cases
from training_data import MemberTrainer

from skuq import networks
from skuq.networks import Categorical, DenseSpace, GaussianHead, Integer, Real, Space
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, train

CODES, X = {4: 5, 1: 3}, np.random.default_rng(0).normal(size=(40, 6))
X[:, 1], X[:, 4] = np.arange(40) % 3, np.arange(40) % 5
NUMBERS = [0, 2, 3, 5]


@pytest.fixture
def space():
    numbers = Integer("batch", 1, 256, log=True), Integer("n", 10, 20)
    rate = Real("rate", 1e-4, 1e-1, log=True)
    return Space((Categorical("c", ("a", "b", "c")), *numbers, rate, Categorical("one", (5,))))


def test_numbers_follow_their_law_and_are_encoded(space):
    draws = Integer("k", 1, 32, log=True).sample(np.random.default_rng(0), 50_000)
    k = np.arange(1, 33)
    expected = np.log((k + 1) / k) / np.log(33)
    _, p_value = stats.chisquare(np.bincount(draws, minlength=33)[1:], 50_000 * expected)
    assert p_value > 1e-3
    draws = Real("r", 1e-4, 1e-1, log=True).sample(np.random.default_rng(0), 20_000)
    assert stats.kstest(draws, stats.loguniform(1e-4, 1e-1).cdf).pvalue > 1e-3
    a = {"c": "b", "batch": 8, "n": 12, "rate": 0.01, "one": 5}
    expected = [[0, 1, 0, np.log(8), 12, np.log(0.01), 1]]
    assert_allclose(space.encode([a]), expected)
    big = Space((Categorical("t", tuple(range(100, 150))),))
    assert_allclose(big.encode([{"t": 107}]), [[7.0]])
    assert space.check({"n": np.int64(11)}, "fixed") == {**space.default(), "n": 11}


def test_mutation_changes_exactly_one_decision_to_another_valid_value(space, global_random_seed):
    rng, changed = np.random.default_rng(global_random_seed), set()
    for _ in range(300):
        parent = space.sample(rng)
        child = space.mutate(parent, rng)
        different = [name for name in space.names if parent[name] != child[name]]
        assert len(different) == 1 and space.check(child, "child") == child
        changed.update(different)
    assert changed == {"c", "batch", "n", "rate"}  # "one" has nothing to change to


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
    (lambda: Categorical("c", (1,), default=2), "default 2 does not lie in"),
    (lambda: Real("r", 0.0, 1.0, default=2.0), "default 2.0 does not lie in"),
    (networks.CellSpace(channels=()).decisions, "'channels' has no choices"),
    (networks._dense.WidthDepthSpace(()).decisions, "'width' has no choices"),
    (
        networks._dense.WidthDepthSpace((0,)).decisions,
        "`widths` must be a positive whole number. Got 0",
    ),
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

    def first_step(x, learning_rate=0.01, largest=0.1):
        model = build_mlp((x.shape[1],), 2, (8,), activation="tanh")
        settings = {"epochs": 1, "batch_size": 64, "keep": "last", "epsilon": 1e-12}
        recipe = Recipe(learning_rate=learning_rate, largest_input_step=largest, **settings)
        start = draw_variables(model, 1)
        job = TrainingJob.of_model(model, GaussianHead(), recipe, [0], start=[start])
        (after,) = train(job, TrainingData.without_validation(x, y, np.ones(64)))
        moved, n = np.abs(after.weights - start[0]), x.shape[1] * 8
        assert_allclose(moved[n:].max(), learning_rate, rtol=0.02)
        return moved[:n].max() / learning_rate

    for x, rate, expected in [
        (np.repeat(one, 10, axis=1), 0.01, 1.0),
        (3 * np.repeat(one, 40, axis=1), 0.01, 0.25),  # whatever the unit
        (np.repeat(one, 40, axis=1), 0.005, 0.5),  # low rates bear more columns
        (np.repeat(one, 40, axis=1), 0.1, 0.025),
        (rng.normal(size=(64, 40)), 0.01, 1.0),  # independent columns
    ]:
        assert_allclose(first_step(x, rate), expected, rtol=0.02)
        assert_allclose(first_step(x, rate, None), 1, rtol=0.02)  # as papers train


def test_decisions_and_forward_pass_of_the_dense_space_are_the_papers():
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
    # node 1 = 16 relu, node 2 = identity with a skip of the input, output with a skip.
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


def names(model):
    return [layer.name for layer in model.layers]


def outputs(model, x=X):
    plan = make_plan(model.to_json())
    flat, state = draw_variables(model, 0)
    return plan(plan.split(flat.astype(float)), state, x)[0]


def test_build_tabular_layers_stand_in_their_order_and_add_what_came_in():
    given = {"categories": CODES, "embedding": {"columns": NUMBERS}, "dropout": 0.1}
    model = build_tabular((6,), 2, hidden_units=(8, 8), residual=True, **given)
    expected = "input categories embedding scale hidden_1 activation_1 dropout_1 "
    expected += "hidden_2 activation_2 dropout_2 residual_2 output"
    assert names(model) == expected.split()
    # Embeddings get columns by position in the input, and no codes.
    given = {"categories": CODES, "embedding": {"columns": NUMBERS}}
    layer = build_tabular((6,), 1, hidden_units=(), **given).get_layer("embedding")
    assert layer.columns == [0, 1, 2, 3]  # 4 numbers, before two vectors of 2
    assert layer.output.shape == (None, 4 * 3 + 4 + 2 * 2)
    given = {"categories": CODES, "embedding": {"columns": [5, 2]}}
    some = build_tabular((6,), 1, hidden_units=(1,), activation="linear", **given)
    assert some.get_layer("embedding").columns == [3, 1]
    # A column that nothing embeds has no wave in it: it enters the outputs linearly.
    for column, is_linear in ((0, True), (5, False)):
        steps = np.tile(X[:1], (3, 1))
        steps[:, column] += 30 * np.arange(3)
        assert (np.abs(np.diff(outputs(some, x=steps), n=2, axis=0)).max() < 1e-9) == is_linear
    settings = {"hidden_units": (8, 8), "activation": "relu"}
    plain, residual = (build_tabular((6,), 1, **settings, residual=r) for r in (False, True))
    weights = draw_variables(plain, 0)[0].astype(float)
    _, w1, b1, _, w2, b2, _, w3, b3 = make_plan(plain.to_json()).split(weights)
    first = np.maximum(X @ w1 / np.sqrt(6) + b1, 0)  # scales and alphas start at 1
    second = np.maximum(first @ w2 / np.sqrt(8) + b2, 0)
    assert_allclose(outputs(plain), second @ w3 / np.sqrt(8) + b3, rtol=1e-12)
    assert_allclose(outputs(residual), (first + second) @ w3 / np.sqrt(8) + b3, rtol=1e-12)
    widths = build_tabular((6,), 1, hidden_units=(8, 4, 4), residual=True)
    assert [n for n in names(widths) if "residual" in n] == ["residual_3"]
    # Linear networks start at zero.
    assert not outputs(build_tabular((6,), 2, hidden_units=())).any()


def _inputs(n=200, d=3):
    x = np.random.default_rng(0).normal(size=(n, d))
    x[:, -1] = x[:, -1] > 0  # two values: nothing to embed
    return x


def _configuration(space, **changed):
    architecture, hyperparameters = space.decisions()
    return {**architecture.default(), **hyperparameters.default(), **changed}


def assert_trains(space, configuration):
    """Build a network, and return it with its recipe, whose factors are all for some weight."""
    model, recipe = space.build(configuration, (3,), 6), Recipe(**space.recipe(configuration))
    assert model.output_shape == (None, 6)
    paths = [variable.path for variable in model.trainable_variables]
    assert len(recipe.factors_of(paths)) == len(paths)
    return model, recipe


@cases(
    ("embedding", "x", "categories", "columns"),
    ("periodic", _inputs(), {}, [0, 1]),
    ("piecewise-linear", _inputs(), {}, [0, 1]),
    ("none", _inputs(), {}, None),
    ("periodic", _inputs(), {1: 7}, [0]),  # by position among those that are no codes
    ("periodic", np.zeros((50, 3)), {}, None),  # nothing to embed
)
def test_tabular_space_builds_what_is_decided(embedding, x, categories, columns):
    if categories:
        x[:, 1] = np.arange(len(x)) % 7
    space = bound_tabular_space(x, categories)
    model, _ = assert_trains(space, _configuration(space, embedding=embedding))
    found = {layer.name: layer for layer in model.layers}
    assert ("embedding" in found) == (columns is not None)
    assert ("categories" in found) == bool(categories)
    assert not any(name.startswith("dropout") for name in found)
    if columns is not None:
        assert found["embedding"].columns == columns


def test_tabular_space_of_drawn_and_of_default_configurations(rng):
    space = bound_tabular_space(_inputs())
    architecture, hyperparameters = space.decisions()
    for dropout in (0.0, 0.1, 0.2):
        drawn = {**architecture.sample(rng), **hyperparameters.sample(rng), "dropout": dropout}
        _, recipe = assert_trains(space, drawn)
        assert (recipe.dropout is not None) == (dropout > 0)
    for classes, dropout in ((False, None), (True, 0.1)):
        space = bound_tabular_space(_inputs(), classes=classes)
        assert space.recipe(_configuration(space))["dropout"] == dropout
        # The default is a choice of the space.
        sum(space.decisions(), Space()).check(_configuration(space), "configuration")
    # Classes have networks without hidden layers.
    (linear,) = [recipe for recipe in space.known_recipes() if recipe.get("n_layers") == 0]
    model, recipe = assert_trains(space, _configuration(space, **linear))
    assert names(model) == ["input", "output"]
    assert not any(weight.numpy().any() for weight in model.weights)  # no class is preferred
    assert recipe.dropout is None  # there is no layer to drop units of


@cases(
    ("n_rows", "n_recipes", "epochs", "decay", "patience"),
    *((100, 4, 128, 0.1, "cycle"), (500, 4, 64, 0.3, "cycle"), (3000, 3, 256, 0.02, 64)),
)
def test_few_rows_of_classes_train_shortly(n_rows, n_recipes, epochs, decay, patience):
    space = bound_tabular_space(_inputs(n_rows), classes=True)
    default, (first, *others) = _configuration(space), class_recipes(n_rows)
    recipe = space.recipe(default)
    assert (recipe["epochs"], recipe["weight_decay"]) == (epochs, decay)
    assert recipe["early_stopping_patience"] == patience
    if n_rows == 500:  # the order that is learnt: the one that differs most comes second
        others = [others[-1], *others[:-1]]
    assert space.known_recipes()[1:n_recipes] == others and {**default, **first} == default


@pytest.mark.parametrize("classes", [False, True])
def test_tabular_space_trials_that_train_together_keep_their_own_best_epochs(classes):
    space = bound_tabular_space(_inputs(), classes=classes)
    configuration = _configuration(space)
    jointly = "best-calibrated" if classes else "best-jointly"
    alone = "best-calibrated" if classes else "best"  # enough rows to calibrate by
    for folds, n_valid, keep in ((None, 999, "best"), (None, 1000, alone), ([], 0, jointly)):
        data = SimpleNamespace(x_valid=np.empty(n_valid))
        trainer = MemberTrainer(space, data, None, epochs=5, folds=folds)
        assert trainer.recipe(configuration).keep == keep
        # Ensembles are not calibrated at all, or not with rows of shifted distributions.
        for change in ({"calibrate": False}, {"held_out": np.empty(1)}):
            keep = "best" if folds is None else "best-jointly"
            assert replace(trainer, **change).recipe(configuration).keep == keep


@cases(
    ("n_rows", "batch_size", "epochs"),
    *((2, 32, 512), (1000, 128, 512), (3000, 256, 500), (20_000, 256, 72), (10**6, 256, 78)),
)
def test_tabular_space_length_of_training_goes_by_rows(n_rows, batch_size, epochs):
    """So many steps, more on many rows, but at most 512 epochs."""
    space = bound_tabular_space(_inputs(), n_rows=n_rows)
    recipe = Recipe(**space.recipe(_configuration(space)))
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)
    steps = min(math.ceil(n_rows / batch_size), recipe.steps_per_epoch)
    assert recipe.epochs * steps <= 6000 + 0.035 * n_rows
