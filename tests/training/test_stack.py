"""Stacks: K members in one program equal K programs of one."""

import numpy as np
import pytest
from heads import GaussianMixtureHead
from numpy.testing import assert_allclose
from plans import draw_variables, sequential
from tiers import slow_after
from training_data import make_data, programs, train_member, train_stack

from skuq.backend import keras
from skuq.networks import GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe

layers = keras.layers
HEAD = GaussianHead()


def plain():
    return sequential((3,), layers.Dense(9, activation="tanh"), layers.Dense(2))


def noisy():
    """Build a network with state and noise, and a layer that adds its own penalty."""
    noise = layers.BatchNormalization(momentum=0.8), layers.Dropout(0.3)
    first = layers.Dense(9, activation="relu", kernel_regularizer="l2")
    return sequential((3,), first, *noise, layers.Dense(2))


def assert_equal_runs(stack, alone, rtol=1e-4):
    assert len(stack) == len(alone)
    for one, two in zip(stack, alone):
        assert one.best_epoch == two.best_epoch and one.seed == two.seed
        for name in ("loss", "val_loss", "learning_rate"):
            assert_allclose(one.history[name], two.history[name], rtol=rtol, atol=1e-5)
        assert_allclose(one.weights, two.weights, rtol=rtol, atol=rtol * np.abs(two.weights).max())
        for a, b in zip(one.state, two.state):
            assert_allclose(a, b, rtol=rtol, atol=1e-5)
        assert_allclose(one.held_out, two.held_out, rtol=10 * rtol, atol=1e-4)


def compare(model, recipes, data, seeds=(1, 2, 3), rtol=1e-4):
    stack = train_stack(model, HEAD, recipes, data, seeds, jit=False)
    runs = zip(recipes, seeds)
    alone = [train_member(model, HEAD, recipe, data, seed, jit=False) for recipe, seed in runs]
    assert_equal_runs(stack, alone, rtol)
    return stack


def test_members_of_a_stack_can_weigh_losses_differently():
    """Each learns as from its own loss alone, in one program."""
    data, model = make_data(), sequential((3,), layers.Dense(12))

    def train(weights, weighs_losses=True):
        head = GaussianMixtureHead(n_components=2, weighs_losses=weighs_losses)
        recipes = [
            Recipe(epochs=3, loss_settings=(("crps", weight),) if weighs_losses else ())
            for weight in weights
        ]
        return train_stack(model, head, recipes, data, (1, 2), jit=False)

    alone = [train((1.0, 1.0), weighs_losses=False)[0], train((0.0, 0.0))[1]]
    assert_equal_runs(train((1.0, 0.0)), alone)


@pytest.mark.parametrize("optimizer", slow_after(1, ["nadam", "adadelta", "rmsprop"]))
def test_every_setting_of_their_own_together(optimizer):
    """Also plateaus and early stopping: a member that has stopped stands still."""
    names = ("learning_rate", "reduce_lr_patience", "early_stopping_patience", "l2")
    names += ("weight_decay", "clip_norm", "dropout")
    same = {"batch_size": 16, "epochs": 60, "reduce_lr_factor": 0.5, "schedule": "cosine"}
    recipes = [
        Recipe(optimizer, **dict(zip(names, values)), **same, warmup=0.1)
        for values in (
            (0.003, 3, 5, 0.0, 0.1, 1.0, 0.0),
            (0.1, 2, 4, 1e-3, 0.0, 0.1, 0.4),
            (0.01, None, None, 1e-4, 0.01, 100.0, 0.2),
        )
    ]
    stack = compare(noisy(), recipes, make_data(), rtol=1e-3)
    lengths = [len(member.history["loss"]) for member in stack]
    assert lengths[2] == 60 and min(lengths) < 60


def test_a_diverging_member_does_not_disturb_the_others():
    recipes = [Recipe("sgd", learning_rate=rate, epochs=5) for rate in (0.01, 0.5, 0.02)]
    model = plain()
    seeds = [int(np.random.SeedSequence(k).generate_state(3)[0]) for k in (1, 2, 3)]
    initial = [draw_variables(model, seed) for seed in seeds]
    initial[1][0][:] = np.nan
    stack = train_stack(model, HEAD, recipes, make_data(), [1, 2, 3], start=initial, jit=False)
    assert isinstance(stack[1], FloatingPointError)
    assert "learning_rate=0.5" in str(stack[1])
    alone = [train_member(plain(), HEAD, recipes[k], make_data(), k + 1, jit=False) for k in (0, 2)]
    assert_equal_runs([stack[0], stack[2]], alone)


def test_rows_of_their_own(rng):
    """Each member's split equals that of separate data for this member."""
    data = make_data(n_train=65, n_valid=0)
    splits = [(order[:45], order[45:]) for order in (rng.permutation(65) for _ in range(2))]
    recipe = Recipe(learning_rate=0.01, batch_size=16, epochs=6)
    stack = train_stack(plain(), HEAD, recipe, data, [1, 2], splits=splits)
    alone = []
    for seed, (train, valid) in zip([1, 2], splits):
        parts = [a[rows] for rows in (train, valid) for a in (data.x, data.y, data.weight)]
        rows_of_member = TrainingData(*parts)
        # TrainingData scales weights to a mean of 1; here they are as they were.
        object.__setattr__(rows_of_member, "weight", data.weight[train])
        object.__setattr__(rows_of_member, "weight_valid", data.weight[valid])
        alone.append(train_member(plain(), HEAD, recipe, rows_of_member, seed))
    assert_equal_runs(stack, alone)


def test_seeds_and_settings_share_one_program():
    recipe = Recipe(batch_size=8, epochs=2, l2=1e-3, schedule="cosine")
    train_stack(plain(), HEAD, recipe, make_data(), [1, 2, 3])
    n_made = programs.n_made
    changed = (0.1, 1e-5, "exponential", 44), (1e-4, 0.1, "constant", 43)
    for rate, l2, schedule, n_train in changed:
        settings = {"schedule": schedule, "early_stopping_patience": n_train % 10}
        recipe = Recipe(batch_size=8, epochs=3, learning_rate=rate, l2=l2, **settings)
        # Layers have other names each time: a program knows none.
        train_stack(plain(), HEAD, recipe, make_data(n_train, 19), [4, 5, 6])
    assert programs.n_made == n_made
