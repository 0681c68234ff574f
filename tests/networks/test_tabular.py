"""Networks for tables: their layers in order, the space, and the recipe of its defaults."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from heads import bound_tabular_space, build_tabular, class_recipes
from numpy.testing import assert_allclose
from plans import draw_variables, make_plan
from tiers import cases
from training_data import MemberTrainer

from skuq.networks import Space
from skuq.training import Recipe

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


def test_build_tabular_layers_stand_in_their_order_and_embed_numeric_columns():
    given = {"categories": CODES, "embedding": {"columns": NUMBERS}, "dropout": 0.1}
    model = build_tabular((6,), 2, hidden_units=(8, 8), residual=True, **given)
    expected = "input categories embedding scale hidden_1 activation_1 dropout_1 "
    expected += "hidden_2 activation_2 dropout_2 residual_2 output"
    assert names(model) == expected.split()
    # Embeddings get columns by position in the input, and no codes.
    given = {"categories": CODES, "embedding": {"columns": NUMBERS}}
    layer = build_tabular((6,), 1, hidden_units=(), **given).get_layer("embedding")
    assert layer.columns == [0, 1, 2, 3]  # 4 numbers, before two vectors of 8
    assert layer.output.shape == (None, 4 * 3 + 4 + 2 * 8)
    given = {"categories": CODES, "embedding": {"columns": [5, 2]}}
    some = build_tabular((6,), 1, hidden_units=(1,), activation="linear", **given)
    assert some.get_layer("embedding").columns == [3, 1]
    # A column that nothing embeds has no wave in it: it enters the outputs linearly.
    for column, is_linear in ((0, True), (5, False)):
        steps = np.tile(X[:1], (3, 1))
        steps[:, column] += 30 * np.arange(3)
        assert (np.abs(np.diff(outputs(some, x=steps), n=2, axis=0)).max() < 1e-9) == is_linear


def test_build_tabular_residual_layers_add_what_came_in():
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
    *((100, 5, 128, 0.1, None), (500, 5, 64, 0.3, None), (3000, 3, 256, 0.02, 64)),
)
def test_tabular_space_few_rows_of_classes_train_shortly_with_much_decay(
    n_rows, n_recipes, epochs, decay, patience
):
    space = bound_tabular_space(_inputs(n_rows), classes=True)
    default, (first, *others) = _configuration(space), class_recipes(n_rows)
    recipe = space.recipe(default)
    assert (recipe["epochs"], recipe["weight_decay"]) == (epochs, decay)
    assert recipe["early_stopping_patience"] == patience
    if n_rows == 500:  # the order that is learnt: the one that differs most comes second
        others = [others[-1], *others[:-1]]
    assert space.known_recipes()[1:n_recipes] == others
    assert {**default, **first} == default


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
