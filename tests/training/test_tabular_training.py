"""Parts of the engine for tables: schedules of dropout, rows of large tables, blocks."""

import numpy as np
import pytest
from heads import build_tabular
from numpy.testing import assert_array_equal
from plans import Run, draw_variables, make_plan
from tiers import slow
from training_data import STEADY, split_table, train_member

from skuq.backend import ops
from skuq.networks import GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe, _losses, _program, predict_members

HEAD = GaussianHead()
PLAIN = {**STEADY, "keep": "last"}


def make_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(65, 4))
    y = np.sin(2 * x[:, :1]) + 0.1 * rng.normal(size=(65, 1))
    return split_table(45, x, y, rng.uniform(0.5, 2, 65))


def small():
    return build_tabular((4,), 2, hidden_units=(9,), dropout=0.2)


@pytest.mark.parametrize("dropout", [0.4, pytest.param(None, marks=slow)])
def test_dropout_falls_in_the_second_half(dropout):
    """The fourth of four steps has half the rate; its mask is the noise's own."""
    model, data = small(), make_data()
    flat, state = draw_variables(model, 3)
    recipe = Recipe(
        "sgd", 1e-30, batch_size=500, epochs=4, dropout=dropout, dropout_schedule="flat-cosine",
        **PLAIN,
    )  # fmt: skip
    member = train_member(model, HEAD, recipe, data, 1, start=[(flat, state)])
    rate = 0.2 if dropout is None else dropout
    for step, share in ((3, 1.0), (4, 0.5)):
        expected = dropped_loss(model, flat, state, data, step, share * rate)
        assert member.history["loss"][step - 1] == pytest.approx(expected, rel=1e-4)


def dropped_loss(model, flat, state, data, step, rate):
    words = np.random.SeedSequence(1).generate_state(4)
    order = np.random.default_rng(int(words[1]))
    for _ in range(step):
        rows = order.permutation(len(data.x))
    rows = np.resize(rows, 48)  # as padded

    def mask(number, own_rate, shape):
        key = ops.convert_to_tensor(np.uint32(words[2])), ops.convert_to_tensor(np.int32(step))
        numbers = _losses.uniform(*key, number, tuple(shape))
        return (np.asarray(numbers) >= np.float32(rate)) / (1 - rate)

    plan = make_plan(model.to_json())
    raw, _ = plan(plan.split(flat.astype(float)), state, data.x[rows], Run(dropout_mask=mask))
    real = rows[: len(data.x)]
    return np.mean(data.weight[real] * HEAD.scores(data.y[real], raw[: len(data.x)]))


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=slow)], ids=["graph", "xla"])
def test_vectors_of_many_categories_train(jit):
    """A table so large that it is a block of its own, from which rows are taken."""
    x = np.tile(np.arange(1.0, 41)[:, None] * 250, (2, 1))
    y = np.sin(np.arange(80) % 40)[:, None]
    data = TrainingData(x, y, np.ones(80), x, y, np.ones(80))
    model = build_tabular((1,), 2, hidden_units=(16,), categories={0: 10_001}, activation="tanh")
    recipe = Recipe(learning_rate=0.03, batch_size=80, epochs=40, **PLAIN)
    member = train_member(model, HEAD, recipe, data, 1, jit=jit)
    raw = predict_members([member], x)[0]
    assert np.sqrt(np.mean((raw[:, :1] - y) ** 2)) < 0.3
    seed = int(np.random.SeedSequence(1).generate_state(1)[0])
    plan = make_plan(model.to_json())
    first, table = (plan.split(w)[0] for w in (draw_variables(model, seed)[0], member.weights))
    assert_array_equal(np.flatnonzero((table != first).any(axis=1)), x[:40, 0].astype(int))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_numbers_of_variables_spread_over_blocks(jit, lead):
    blocks = _program.Blocks([(300, 300), (4,), (3, 2), (5_000,), (2, 40, 70)], jit)
    numbers = np.arange(10.0).reshape(2, 5)
    numbers = numbers if lead else numbers[0]
    ones = blocks.pack(np.ones((*lead, sum(blocks.sizes))))
    spread = blocks.join([a * b for a, b in zip(ones, blocks.spread(numbers))])
    assert_array_equal(spread, np.repeat(numbers, blocks.sizes, axis=-1))
