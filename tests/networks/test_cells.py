import itertools
import json
import math
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import draw_variables
from scipy.ndimage import convolve
from tiers import cases, slow_after

from skuq.backend import keras
from skuq.networks import AMOEBANET, DARTS, CellSpace, Genotype, NASBench201Space, SearchSpace
from skuq.networks._cells import (
    _APPLY,
    KINDS,
    NODES,
    OPERATIONS,
    Cell,
    CellLayers,
    _add_nas_bench_cell,
)
from skuq.training import Recipe

SPACES = [
    CellSpace(channels=2, n_cells=3),
    CellSpace(channels=(2, 4), n_cells=(1, 2), genotype="darts"),
    NASBench201Space(channels=2, n_cells=1),
]
N_DRAWS = 3000


def size(space):
    return math.prod(decision.size for decision in space.decisions().architecture.decisions)


def n_weights(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def edges_of(space, configuration):
    """{(kind, node): [(operation, input), (operation, input)]}"""
    genotype = space.cells(configuration)
    nodes = ((kind, zip(NODES, getattr(genotype, kind).nodes)) for kind in KINDS)
    return {(kind, k): list(edges) for kind, numbered in nodes for k, edges in numbered}


def applied(function, shape):
    """Build layers on an input of this shape; return a function of arrays, and the model."""
    inputs = keras.Input(shape)
    model = keras.Model(inputs, function(CellLayers(), inputs))
    return lambda x: keras.ops.convert_to_numpy(model(x.astype("float32"))), model


def random_image(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_spaces_are_of_the_papers_sizes():
    # Pairs of inputs of nodes 2..5, and two of seven operations, in each of two cells.
    assert size(CellSpace()) == (1 * 3 * 6 * 10) ** 2 * 49**8  # 1.08e18
    assert size(NASBench201Space()) == 15_625
    channels, n_cells = CellSpace.width_depth().decisions().architecture.decisions
    assert (channels.name, channels.choices) == ("channels", (12, 14, 16, 18, 20))
    assert (n_cells.name, n_cells.choices) == ("n_cells", (5, 8, 11))
    assert CellSpace.width_depth().cells({}) == DARTS


def test_default_cells_are_those_of_darts():
    space = CellSpace()
    cells = space.cells(space.decisions().architecture.default())
    for kind in KINDS:
        ours, theirs = getattr(cells, kind), getattr(DARTS, kind)
        # The order of a node's two edges, which are added, means nothing.
        assert [sorted(edges) for edges in ours.nodes] == [sorted(e) for e in theirs.nodes]
        assert ours.concat == theirs.concat


@pytest.mark.parametrize("space", SPACES)
def test_space_is_a_search_space_of_images(space):
    assert isinstance(space, SearchSpace)
    assert space.takes_images
    assert "takes_images" not in space.get_params()
    with pytest.raises(ValueError, match=r"must be \(height, width, channels\). Got \(4,\)"):
        space.build(space.decisions().architecture.default(), (4,), 2)


@pytest.mark.parametrize("space", SPACES)
def test_recipe_is_that_of_darts(space):
    recipe = Recipe(**space.recipe({}))
    assert (recipe.optimizer, recipe.momentum, recipe.learning_rate) == ("sgd", 0.9, 0.025)
    assert (recipe.schedule, recipe.batch_size, recipe.clip_norm) == ("cosine", 100, 5.0)
    assert 2 * recipe.l2 == pytest.approx(3e-4)  # the gradient of l2 * w**2 is 2 * l2 * w
    assert recipe.early_stopping_patience is recipe.reduce_lr_patience is None
    assert recipe.keep == "last"
    assert "epochs" not in space.recipe({})
    drawn = space.decisions().hyperparameters.sample(np.random.default_rng(0))
    decided = Recipe(**space.recipe(drawn))
    assert (decided.learning_rate, decided.l2) == (drawn["learning_rate"], drawn["l2"])


@cases(
    ("arguments", "message"),
    ({"channels": 0}, "channels.*Got 0"),
    ({"n_cells": (5, 1.5)}, "`n_cells` must be a positive whole number. Got 1.5"),
    ({"batch_size": 1.5}, "batch_size.*Got 1.5"),
    ({"genotype": "nasnet"}, "genotype.*Got 'nasnet'"),
)
def test_space_names_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        CellSpace(**arguments).validate()


@pytest.mark.parametrize("genotype", [DARTS, AMOEBANET])
def test_genotype_round_trips_through_json(genotype):
    stored = json.loads(json.dumps(asdict(genotype)))
    assert Genotype(**stored) == genotype
    assert hash(Genotype(**stored)) == hash(genotype)


@cases(
    ("nodes", "concat", "message"),
    ([(("conv", 0), ("skip_connect", 1))], [2], "one of the operations"),
    ([(("skip_connect", 0), ("skip_connect", 2))], [2], r"Node 2 must read nodes in 0\.\.1"),
    ([(("skip_connect", 0),)], [2], "must have two edges"),
    ([(("skip_connect", 0), ("skip_connect", 1))], [1], r"nodes in 2\.\.2. Got \(1,\)"),
    ([(("skip_connect", 0), ("skip_connect", 1))], [], "one or more distinct"),
    ([(("skip_connect", 0), ("skip_connect", 1))], [2, 2], "distinct nodes"),
)
def test_cell_names_what_is_wrong(nodes, concat, message):
    with pytest.raises(ValueError, match=message):
        Cell(nodes, concat)


def mutations(space, seed):
    rng = np.random.default_rng(seed)
    decisions = space.decisions()
    for _ in range(N_DRAWS):
        parent = {**decisions.architecture.sample(rng), "learning_rate": 0.1, "other": "kept"}
        child = space.mutate(parent, rng)
        yield parent, child


def assert_uniform(counts, n_kinds):
    """Within five standard deviations: one in 300 000 of such counts is not."""
    n = sum(counts.values())
    p = 1 / n_kinds
    assert len(counts) == n_kinds
    assert max(abs(c - n * p) for c in counts.values()) < 5 * math.sqrt(n * p * (1 - p))


def test_cell_mutations_are_the_papers(global_random_seed):
    space = CellSpace()
    architecture = space.decisions().architecture
    which, edges_hit, nodes_hit = Counter(), Counter(), Counter()
    for parent, child in mutations(space, global_random_seed):
        assert (child["learning_rate"], child["other"]) == (0.1, "kept")
        architecture.check(architecture.restrict(child), "child")
        before, after = edges_of(space, parent), edges_of(space, child)
        changed = [node for node in before if before[node] != after[node]]
        if not changed:
            assert child == parent
            which["identity"] += 1
            continue
        (node,) = changed
        ((old_op, old_input),) = set(before[node]) - set(after[node])
        ((new_op, new_input),) = set(after[node]) - set(before[node])
        if old_input == new_input:
            assert old_op != new_op
            which["operation"] += 1
            edges_hit[*node, before[node].index((old_op, old_input))] += 1
        else:
            assert old_op == new_op
            assert new_input not in [source for _, source in before[node]]
            which["input"] += 1
            nodes_hit[node] += 1
    assert_uniform(which, 3)
    assert_uniform(edges_hit, 2 * 4 * 2)
    assert_uniform(nodes_hit, 2 * 3)  # node 2 has no other inputs


def test_mutation_of_given_cells_changes_one_size():
    hit = Counter()
    for parent, child in mutations(CellSpace.width_depth(), 0):
        (name,) = (name for name in parent if parent[name] != child[name])
        hit[name] += 1
    assert_uniform(hit, 2)
    assert set(hit) == {"channels", "n_cells"}
    parent = {"learning_rate": 0.1}
    assert CellSpace(genotype=DARTS).mutate(parent, np.random.default_rng(0)) == parent


def test_nas_bench_mutation_changes_one_operation(global_random_seed):
    hit = Counter()
    for parent, child in mutations(NASBench201Space(), global_random_seed):
        assert child.keys() == parent.keys()
        ((name, _),) = set(child.items()) - set(parent.items())
        hit[name] += 1
    assert_uniform(hit, 6)
    parent = {**parent, "learning_rate": 0.1}
    assert NASBench201Space().mutate(parent, np.random.default_rng(0))["learning_rate"] == 0.1


@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 5), (1, 1)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_keeps_or_halves_the_resolution(operation, height, width):
    for strides in (1, 2):
        forward, _ = applied(
            lambda layers, x, strides=strides: _APPLY[operation](layers, x, strides, "op"),
            (height, width, 2),
        )
        half = (math.ceil(height / strides), math.ceil(width / strides))
        assert forward(random_image(3, height, width, 2)).shape == (3, *half, 2)


def test_average_pooling_counts_real_pixels_only():
    forward, _ = applied(lambda layers, x: _APPLY["avg_pool_3x3"](layers, x, 1, "op"), (5, 4, 1))
    x = random_image(1, 5, 4, 1)
    sums = convolve(x[0, :, :, 0], np.ones((3, 3)), mode="constant")
    counts = convolve(np.ones((5, 4)), np.ones((3, 3)), mode="constant")
    # Nine float32 additions of numbers near one.
    assert_allclose(forward(x)[0, :, :, 0], sums / counts, atol=1e-6)


def test_max_pooling_does_not_see_the_padding():
    forward, _ = applied(lambda layers, x: _APPLY["max_pool_3x3"](layers, x, 2, "op"), (4, 4, 1))
    assert_array_equal(forward(-np.ones((1, 4, 4, 1))), -1)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 3)])
def test_factorized_reduction_by_hand(height, width):
    forward, model = applied(lambda layers, x: _APPLY["skip_connect"](layers, x, 2, "op"),
                             (height, width, 2))  # fmt: skip
    x = random_image(1, height, width, 2)
    kernels = {w.path: w.numpy()[0, 0] for w in model.trainable_variables if "conv" in w.path}
    relu = np.maximum(x, 0)
    even = relu[:, ::2, ::2] @ kernels["op_even_conv/kernel"]
    odd = np.zeros_like(even)
    shifted = relu[:, 1::2, 1::2] @ kernels["op_odd_conv/kernel"]
    odd[:, : shifted.shape[1], : shifted.shape[2]] = shifted
    # Untrained batch normalisation divides by sqrt(1 + 1e-5).
    expected = np.concatenate([even, odd], axis=-1) / math.sqrt(1 + 1e-5)
    assert_allclose(forward(x), expected, atol=1e-6)


@cases(
    ("chosen", "factor"),
    # All skips: node 1 is x, node 2 is x + x, node 3 is x + x + 2 x.
    ({}, 4.0),
    ({"edge_1_2": "none", "edge_2_3": "none"}, 2.0),
    ({"edge_0_1": "none", "edge_0_2": "none"}, 1.0),  # nodes 1 and 2 are zero
    ({"edge_0_3": "none", "edge_1_3": "none", "edge_2_3": "none"}, 0.0),
)
def test_nas_bench_cell_adds_its_paths(chosen, factor):
    skips = {f"edge_{i}_{j}": "skip_connect" for i, j in itertools.combinations(range(4), 2)}
    configuration = {**skips, **chosen}
    forward, _ = applied(
        lambda layers, x: _add_nas_bench_cell(layers, configuration, x, "cell"), (3, 3, 1)
    )
    x = random_image(2, 3, 3, 1)
    assert_allclose(forward(x), factor * x, rtol=1e-6)


@pytest.mark.parametrize("n_cells", slow_after(1, (4, 3, 5, 6, 1, 2, 7, 8)))
def test_cell_network_of_any_depth(n_cells):
    space = CellSpace(channels=2, n_cells=n_cells)
    configuration = space.decisions().architecture.sample(np.random.default_rng(n_cells))
    shape = [(8, 8, 3), (4, 4, 1), (7, 5, 1), (1, 1, 2)][n_cells % 4]
    model = space.build(configuration, shape, 3)
    assert model.output_shape == (None, 3)
    assert np.isfinite(model(random_image(2, *shape))).all()
    n_reductions = len({n_cells // 3, 2 * n_cells // 3} - {0})
    # The last cell concatenates four nodes, whose channels each reduction has doubled.
    assert model.get_layer("mean").input.shape[-1] == 4 * 2 * 2**n_reductions
    height = model.get_layer("mean").input.shape[1]
    assert height == math.ceil(shape[0] / 2**n_reductions)


@pytest.mark.parametrize("space", slow_after(1, SPACES))
def test_network_is_keras_own_json(space):
    configuration = space.decisions().architecture.sample(np.random.default_rng(0))
    network = space.build(configuration, (6, 5, 1), 3).to_json()
    assert network == space.build(configuration, (6, 5, 1), 3).to_json()
    model = keras.models.model_from_json(network)
    assert json.loads(model.to_json()) == json.loads(network)
    for layer in json.loads(network)["config"]["layers"]:
        assert layer["module"] == "keras.layers"
        assert layer["registered_name"] is None
        policy = layer["config"]["dtype"]
        assert (policy if isinstance(policy, str) else policy["config"]["name"]) == "float32"


@pytest.mark.filterwarnings("error")
def test_first_weights_follow_from_the_seed():
    """This holds for all operations; a warning would name the layer for which it does not."""
    everything = Cell([((operation, 0), (operation, 1)) for operation in OPERATIONS], [2, 10])
    genotype = Genotype(everything, everything)
    space = CellSpace(2, 2, genotype)
    one, two = (draw_variables(space.build({}, (4, 4, 1), 2), 5) for _ in range(2))
    assert_array_equal(one[0], two[0])


def count(genotype, image_channels, n_outputs, channels, n_cells):
    """Weights of a network of cells, from the papers' definitions of the operations."""

    def reduce(c_in, c):
        return c_in * c + 2 * c

    def operation(name, c, strides):
        k = int(name[-1]) if name[-1].isdigit() else 0
        if name.startswith("sep"):
            return 2 * (k * k * c + c * c + 2 * c)
        if name.startswith("dil"):
            return k * k * c + c * c + 2 * c
        if name == "conv_7x1_1x7":
            return 14 * c * c + 2 * c
        return reduce(c, c) if name == "skip_connect" and strides == 2 else 0

    stem, c, total = 3 * channels, channels, 0
    before, last = stem, stem
    for i in range(n_cells):
        reduces = i > 0 and i in (n_cells // 3, 2 * n_cells // 3)
        cell = genotype.reduction if reduces else genotype.normal
        c = 2 * c if reduces else c
        total += reduce(before, c) + reduce(last, c)
        for name, source in itertools.chain(*cell.nodes):
            total += operation(name, c, 2 if reduces and source < 2 else 1)
        before, last = last, c * len(cell.concat)
    return total + 9 * image_channels * stem + 2 * stem + (last + 1) * n_outputs


@pytest.mark.parametrize("n_cells, seed", slow_after(2, [(3, 2), (2, 1), (1, 0), (4, 3), (6, 4)]))
def test_number_of_weights(n_cells, seed):
    space = CellSpace(channels=4, n_cells=n_cells)
    configuration = space.decisions().architecture.sample(np.random.default_rng(seed))
    model = space.build(configuration, (5, 6, 2), 3)
    assert n_weights(model) == count(space.cells(configuration), 2, 3, 4, n_cells)


def test_amoebanet():
    model = CellSpace(channels=2, n_cells=3, genotype="amoebanet").build({}, (8, 8, 3), 10)
    assert n_weights(model) == count(AMOEBANET, 3, 10, 2, 3)
    # Each cell concatenates three of its five nodes; two reductions.
    assert model.get_layer("mean").input.shape[-1] == 3 * 2 * 4
    assert np.isfinite(model(random_image(2, 8, 8, 3))).all()
    # 3.3 M in the DARTS paper (table 1), and 3.34934E+06 in counts of its code without
    # the auxiliary head.
    assert count(DARTS, 3, 10, 36, 20) == 3_349_342
    assert count(DARTS, 3, 10, 16, 8) == 246_106  # the size that NES trains


# The smallest and the largest network of the benchmark on CIFAR-10 have 0.073306 M and
# 1.531546 M weights (ranges that several NAS code bases print), and each conv_3x3 edge
# makes a sixth of the difference.
@cases(
    ("operations", "expected"),
    *((["conv_3x3"] * 6, 1_531_546), (["skip_connect"] * 6, 73_306), (["none"] * 6, 73_306)),
    (["conv_3x3"] * 3 + ["skip_connect"] + ["conv_3x3"] * 2, 1_288_506),
    quick=1,
)
def test_nas_bench_number_of_weights(operations, expected):
    space = NASBench201Space()
    names = space.decisions().architecture.names
    model = space.build(dict(zip(names, operations)), (4, 4, 3), 10)
    assert n_weights(model) == expected
