"""Networks for tables: their layers in order, the space, and the recipe of its defaults."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl
from heads import bound_tabular_space, build_mlp, build_tabular, class_recipes
from numpy.testing import assert_allclose
from plans import draw_variables, make_plan
from training_data import MemberTrainer

from skuq.networks import GaussianHead, Space
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, predict_members, train

CODES = {4: 5, 1: 3}
X = np.random.default_rng(0).normal(size=(40, 6))
X[:, 1], X[:, 4] = np.arange(40) % 3, np.arange(40) % 5
NUMBERS = [0, 2, 3, 5]


def names(model):
    return [layer.name for layer in model.layers]


def outputs(model, x=X):
    plan = make_plan(model.to_json())
    flat, state = draw_variables(model, 0)
    return plan(plan.split(flat.astype(float)), state, x)[0]


def test_build_tabular_layers_stand_in_their_order():
    model = build_tabular(
        (6,), 2, hidden_units=(8, 8), categories=CODES, embedding={"columns": NUMBERS}, dropout=0.1,
        residual=True,
    )  # fmt: skip
    first = ["input", "categories", "embedding", "scale"]
    block = ["hidden_{}", "activation_{}", "dropout_{}"]
    second = [*block, "residual_{}"]
    expected = [*first, *(p.format(1) for p in block), *(p.format(2) for p in second), "output"]
    assert names(model) == expected


def test_build_tabular_embeddings_take_the_numeric_columns():
    """Embeddings get columns by position in the input, and no codes."""
    model = build_tabular(
        (6,), 1, categories=CODES, embedding={"columns": NUMBERS}, hidden_units=()
    )
    layer = model.get_layer("embedding")
    assert layer.columns == [0, 1, 2, 3]  # 4 numbers, before two vectors of 8
    assert layer.output.shape == (None, 4 * 3 + 4 + 2 * 8)
    some = build_tabular(
        (6,), 1, categories=CODES, embedding={"columns": [5, 2]}, hidden_units=(1,),
        activation="linear",
    )  # fmt: skip
    assert some.get_layer("embedding").columns == [3, 1]
    # A column that nothing embeds has no wave in it: it enters the outputs linearly.
    steps = np.tile(X[:1], (3, 1))
    steps[:, 0] += np.arange(3)
    assert_allclose(np.diff(outputs(some, x=steps), n=2, axis=0), 0, atol=1e-12)
    steps = np.tile(X[:1], (3, 1))
    steps[:, 5] += 30 * np.arange(3)
    assert np.abs(np.diff(outputs(some, x=steps), n=2, axis=0)).max() > 1e-6


def test_build_tabular_residual_layers_add_what_came_in():
    plain = build_tabular((6,), 1, hidden_units=(8, 8), activation="relu")
    residual = build_tabular((6,), 1, hidden_units=(8, 8), activation="relu", residual=True)
    weights = draw_variables(plain, 0)[0].astype(float)
    _, w1, b1, _, w2, b2, _, w3, b3 = make_plan(plain.to_json()).split(weights)
    first = np.maximum(X @ w1 / np.sqrt(6) + b1, 0)  # scales and alphas start at 1
    second = np.maximum(first @ w2 / np.sqrt(8) + b2, 0)
    assert_allclose(outputs(plain), second @ w3 / np.sqrt(8) + b3, rtol=1e-12)
    assert_allclose(outputs(residual), (first + second) @ w3 / np.sqrt(8) + b3, rtol=1e-12)
    widths = build_tabular((6,), 1, hidden_units=(8, 4, 4), residual=True)
    assert [n for n in names(widths) if "residual" in n] == ["residual_3"]


def test_build_tabular_linear_networks_start_at_zero():
    assert not outputs(build_tabular((6,), 2, hidden_units=())).any()
    assert outputs(build_tabular((6,), 2, hidden_units=(8,))).all()


def test_build_tabular_products_of_many_rows_run_on_one_thread():
    """They are so small that threads would only wait: ten times the processor time."""
    model = build_mlp((6,), 2, (64,), dropout=0.1)
    job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=1), [0])
    members = train(job, TrainingData.without_validation(X, X[:, :1], np.ones(40)))
    threads = []

    def mask(number, rate, shape):
        pools = threadpoolctl.threadpool_info()
        threads.append({p["num_threads"] for p in pools if p["user_api"] == "blas"})
        return 1.0

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        predict_members(members, np.zeros((3000, 6)), dropout_mask=mask)
        assert threads and all(n == {1} for n in threads)


def _inputs(n=200, d=3):
    x = np.random.default_rng(0).normal(size=(n, d))
    x[:, -1] = x[:, -1] > 0  # two values: nothing to embed
    return x


def _configuration(space, **changed):
    architecture, hyperparameters = space.decisions()
    return {**architecture.default(), **hyperparameters.default(), **changed}


@pytest.mark.parametrize("embedding", ["periodic", "piecewise-linear", "none"])
def test_tabular_space_builds_what_is_decided(embedding):
    space = bound_tabular_space(_inputs())
    model = space.build(_configuration(space, embedding=embedding), (3,), 6)
    assert model.output_shape == (None, 6)
    layers = [layer.name for layer in model.layers]
    assert ("embedding" in layers) == (embedding != "none")
    assert not any(name.startswith("dropout") for name in layers)
    if embedding != "none":
        assert model.get_layer("embedding").columns == [0, 1]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_tabular_space_every_drawn_configuration_is_a_network_and_a_recipe(dropout):
    space, rng = bound_tabular_space(_inputs()), np.random.default_rng(1)
    architecture, hyperparameters = space.decisions()
    for _ in range(5):
        drawn = {**architecture.sample(rng), **hyperparameters.sample(rng), "dropout": dropout}
        model, recipe = space.build(drawn, (3,), 2), Recipe(**space.recipe(drawn))
        names = [variable.path for variable in model.trainable_variables]
        assert len(recipe.factors_of(names)) == len(names)  # every factor is for some weight
        assert (recipe.dropout is not None) == (dropout > 0)


def test_tabular_space_columns_of_codes_are_embedded_as_such():
    x = _inputs()
    x[:, 1] = np.arange(len(x)) % 7
    space = bound_tabular_space(x, {1: 7})
    model = space.build(_configuration(space), (3,), 2)
    assert model.get_layer("embedding").columns == [0]  # position among those that are no codes
    assert model.get_layer("categories") is not None


def test_tabular_space_classes_have_defaults_of_their_own():
    numbers, classes = bound_tabular_space(_inputs()), bound_tabular_space(_inputs(), classes=True)
    assert numbers.recipe(_configuration(numbers))["dropout"] is None
    assert classes.recipe(_configuration(classes))["dropout"] == 0.1
    for space in (numbers, classes):  # the default is a choice of the space
        sum(space.decisions(), Space()).check(_configuration(space), "configuration")


@pytest.mark.parametrize(
    ("n_rows", "n_recipes", "epochs", "decay", "patience"),
    [(100, 5, 128, 0.1, None), (500, 5, 64, 0.3, None), (3000, 3, 256, 0.02, 64)],
)
def test_tabular_space_few_rows_of_classes_train_shortly_with_much_decay(
    n_rows, n_recipes, epochs, decay, patience
):
    space = bound_tabular_space(_inputs(n_rows), classes=True)
    recipe = space.recipe(_configuration(space))
    assert (recipe["epochs"], recipe["weight_decay"]) == (epochs, decay)
    assert recipe["early_stopping_patience"] == patience
    others = class_recipes(n_rows)[1:]
    if n_rows == 500:  # the order that is learnt: the one that differs most comes second
        others = [others[-1], *others[:-1]]
    assert space.known_recipes()[1:n_recipes] == others
    # The default is the first recipe.
    default = _configuration(space)
    assert {**default, **class_recipes(n_rows)[0]} == default


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


def test_tabular_space_classes_have_networks_without_hidden_layers():
    space = bound_tabular_space(_inputs(), classes=True)
    (linear,) = [recipe for recipe in space.known_recipes() if recipe.get("n_layers") == 0]
    model = space.build(_configuration(space, **linear), (3,), 2)
    assert [layer.name for layer in model.layers] == ["input", "output"]
    assert not any(weight.numpy().any() for weight in model.weights)  # no class is preferred
    names = [variable.path for variable in model.trainable_variables]
    recipe = Recipe(**space.recipe(_configuration(space, **linear)))
    recipe.factors_of(names)
    assert recipe.dropout is None  # there is no layer to drop units of


def test_tabular_space_nothing_to_embed():
    space = bound_tabular_space(np.zeros((50, 2)))
    configuration = _configuration(space)
    model = space.build(configuration, (2,), 2)
    assert "embedding" not in [layer.name for layer in model.layers]
    names = [variable.path for variable in model.trainable_variables]
    Recipe(**space.recipe(configuration)).factors_of(names)


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "epochs"),
    [(2, 32, 512), (1000, 128, 512), (3000, 256, 500), (20_000, 256, 72), (10**6, 256, 78)],
)
def test_tabular_space_length_of_training_goes_by_rows(n_rows, batch_size, epochs):
    """So many steps, more on many rows, but at most 512 epochs."""
    space = bound_tabular_space(_inputs(), n_rows=n_rows)
    recipe = Recipe(**space.recipe(_configuration(space)))
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)
    steps = min(math.ceil(n_rows / batch_size), recipe.steps_per_epoch)
    assert recipe.epochs * steps <= 6000 + 0.035 * n_rows
