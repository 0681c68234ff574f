"""The space of modern networks for tables, and the recipe of its defaults."""

import math

import numpy as np
import pytest
from plans import class_recipes
from training_data import MemberTrainer

from skuq.networks import Space, TabularSpace
from skuq.training import Recipe


def _inputs(n=200, d=3):
    x = np.random.default_rng(0).normal(size=(n, d))
    x[:, -1] = x[:, -1] > 0  # two values: nothing to embed
    return x


def _configuration(space, **changed):
    architecture, hyperparameters = space.decisions()
    return {**architecture.default(), **hyperparameters.default(), **changed}


@pytest.mark.parametrize("embedding", ["periodic", "piecewise-linear", "none"])
@pytest.mark.parametrize("n_copies", [1, 3])
def test_builds_what_is_decided(embedding, n_copies):
    space = TabularSpace().bind(_inputs())
    model = space.build(_configuration(space, embedding=embedding), (3,), 6, n_copies=n_copies)
    assert model.output_shape == (None, 6)
    layers = [layer.name for layer in model.layers]
    assert ("embedding" in layers) == (embedding != "none")
    assert not any(name.startswith("dropout") for name in layers)
    if embedding != "none":
        assert model.get_layer("embedding").columns == [0, 1]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_drawn_configuration_is_a_network_and_a_recipe(dropout):
    space, rng = TabularSpace().bind(_inputs()), np.random.default_rng(1)
    architecture, hyperparameters = space.decisions()
    for _ in range(5):
        drawn = {**architecture.sample(rng), **hyperparameters.sample(rng), "dropout": dropout}
        model, recipe = space.build(drawn, (3,), 2), Recipe(**space.recipe(drawn))
        names = [variable.path for variable in model.trainable_variables]
        assert len(recipe.factors_of(names)) == len(names)  # every factor is for some weight
        assert (recipe.dropout is not None) == (dropout > 0)


def test_columns_of_codes_are_embedded_as_such():
    x = _inputs()
    x[:, 1] = np.arange(len(x)) % 7
    space = TabularSpace().bind(x, {1: 7})
    model = space.build(_configuration(space), (3,), 2)
    assert model.get_layer("embedding").columns == [0]  # position among those that are no codes
    assert model.get_layer("categories") is not None


def test_classes_have_defaults_of_their_own():
    numbers, classes = TabularSpace().bind(_inputs()), TabularSpace().bind(_inputs(), classes=True)
    assert numbers.recipe(_configuration(numbers))["dropout"] is None
    assert classes.recipe(_configuration(classes))["dropout"] == 0.1
    for space in (numbers, classes):  # the default is a choice of the space
        sum(space.decisions(), Space()).check(_configuration(space), "configuration")


@pytest.mark.parametrize(
    ("n_rows", "n_recipes", "epochs", "decay", "patience"),
    [(100, 5, 128, 0.1, None), (500, 5, 64, 0.3, None), (3000, 3, 256, 0.02, 64)],
)
def test_few_rows_of_classes_train_shortly_with_much_decay(
    n_rows, n_recipes, epochs, decay, patience
):
    space = TabularSpace().bind(_inputs(n_rows), classes=True)
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
def test_trials_that_train_together_keep_their_own_best_epochs(classes):
    space = TabularSpace().bind(_inputs(), classes=classes)
    configuration = _configuration(space)
    for folds, keep in ((None, "best"), ([], "best-jointly")):
        trainer = MemberTrainer(space, None, None, epochs=5, folds=folds)
        assert trainer.recipe(configuration).keep == keep


def test_classes_have_networks_without_hidden_layers():
    space = TabularSpace().bind(_inputs(), classes=True)
    (linear,) = [recipe for recipe in space.known_recipes() if recipe.get("n_layers") == 0]
    model = space.build(_configuration(space, **linear), (3,), 2)
    assert [layer.name for layer in model.layers] == ["input", "output"]
    assert not any(weight.numpy().any() for weight in model.weights)  # no class is preferred
    names = [variable.path for variable in model.trainable_variables]
    recipe = Recipe(**space.recipe(_configuration(space, **linear)))
    recipe.factors_of(names)
    assert recipe.dropout is None  # there is no layer to drop units of


def test_nothing_to_embed():
    space = TabularSpace().bind(np.zeros((50, 2)))
    configuration = _configuration(space)
    model = space.build(configuration, (2,), 2)
    assert "embedding" not in [layer.name for layer in model.layers]
    names = [variable.path for variable in model.trainable_variables]
    Recipe(**space.recipe(configuration)).factors_of(names)


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "epochs"),
    [(2, 32, 512), (1000, 128, 512), (3000, 256, 500), (20_000, 256, 72), (10**6, 256, 78)],
)
def test_length_of_training_goes_by_rows(n_rows, batch_size, epochs):
    """So many steps, more on many rows, but at most 512 epochs."""
    space = TabularSpace().bind(_inputs(), n_rows=n_rows)
    recipe = Recipe(**space.recipe(_configuration(space)))
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)
    steps = min(math.ceil(n_rows / batch_size), recipe.steps_per_epoch)
    assert recipe.epochs * steps <= 6000 + 0.035 * n_rows


def test_epochs_of_large_tables_are_parts_of_them():
    """Epochs are short enough for networks to be validated often."""
    space = TabularSpace().bind(_inputs(), n_rows=10**6)
    recipe = space.recipe(_configuration(space))
    assert recipe["steps_per_epoch"] == 512
    assert recipe["epochs"] > 16
