"""Networks of cells: decisions, mutations, operations and numbers of weights of the papers."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import draw_variables
from scipy.ndimage import convolve
from tiers import cases

from skuq.backend import keras
from skuq.networks import DARTS, CellSpace, Genotype, NASBench201Space, SearchSpace
from skuq.networks import _cells as cells
from skuq.networks import parse_nas_bench_201 as parse
from skuq.networks._cells import Cell, CellLayers
from skuq.training import Recipe

SKIPS = (("skip_connect", 0), ("skip_connect", 1))
EDGES = NASBench201Space().decisions().architecture.names
GOOD = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_3x3~2|"
DECISIONS = {
    "edge_0_1": "conv_3x3", "edge_0_2": "conv_1x1", "edge_1_2": "avg_pool_3x3",
    "edge_0_3": "skip_connect", "edge_1_3": "none", "edge_2_3": "conv_3x3",
}  # fmt: skip


def n_weights(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def applied(function, shape, strides=None):
    """Build layers, or an operation, on an input of this shape; also return the model."""
    inputs = keras.Input(shape)
    if strides:
        name = function
        function = lambda layers, x: cells._APPLY[name](layers, x, strides, "op")  # noqa: E731
    model = keras.Model(inputs, function(CellLayers(), inputs))
    return lambda x: keras.ops.convert_to_numpy(model(x.astype("float32"))), model


def random_image(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_spaces_are_of_the_papers_sizes():
    # Pairs of inputs of nodes 2..5, and two of seven operations, in each of two cells: 1.08e18.
    of_darts = CellSpace(), (1 * 3 * 6 * 10) ** 2 * 49**8
    for space, size in (of_darts, (NASBench201Space(), 15_625)):
        assert math.prod(d.size for d in space.decisions().architecture.decisions) == size
    channels, n_cells = CellSpace.width_depth().decisions().architecture.decisions
    assert (channels.name, channels.choices) == ("channels", (12, 14, 16, 18, 20))
    assert (n_cells.name, n_cells.choices) == ("n_cells", (5, 8, 11))
    assert CellSpace.width_depth().cells({}) == DARTS
    space = CellSpace()  # Default cells are those of DARTS.
    default = space.cells(space.decisions().architecture.default())
    for kind in cells.KINDS:
        ours, theirs = getattr(default, kind), getattr(DARTS, kind)
        # The order of a node's two edges, which are added, means nothing.
        assert [sorted(edges) for edges in ours.nodes] == [sorted(e) for e in theirs.nodes]
        assert ours.concat == theirs.concat


@cases(
    "space",
    CellSpace(channels=2, n_cells=3),
    CellSpace(channels=(2, 4), n_cells=(1, 2), genotype="darts"),
    NASBench201Space(channels=2, n_cells=1),
)
def test_space_is_of_images_with_the_recipe_of_darts(space):
    assert isinstance(space, SearchSpace) and space.takes_images
    assert "takes_images" not in space.get_params()
    recipe = Recipe(**space.recipe({}))
    assert (recipe.optimizer, recipe.momentum, recipe.learning_rate) == ("sgd", 0.9, 0.025)
    assert (recipe.schedule, recipe.batch_size, recipe.clip_norm) == ("cosine", 100, 5.0)
    assert 2 * recipe.l2 == pytest.approx(3e-4)  # the gradient of l2 * w**2 is 2 * l2 * w
    assert recipe.early_stopping_patience is recipe.reduce_lr_patience is None
    assert recipe.keep == "last" and "epochs" not in space.recipe({})
    drawn = space.decisions().hyperparameters.sample(np.random.default_rng(0))
    decided = Recipe(**space.recipe(drawn))
    assert (decided.learning_rate, decided.l2) == (drawn["learning_rate"], drawn["l2"])


@cases(
    ("make", "message"),
    (CellSpace(channels=0).validate, "channels.*Got 0"),
    (CellSpace(n_cells=(5, 1.5)).validate, "`n_cells` must be a positive whole number. Got 1.5"),
    (CellSpace(batch_size=1.5).validate, "batch_size.*Got 1.5"),
    (CellSpace(genotype="nasnet").validate, "genotype.*Got 'nasnet'"),
    (lambda: CellSpace.width_depth().build({}, (4,), 2), r"height, width, channels\). Got \(4,\)"),
    (lambda: Cell([(("conv", 0), SKIPS[1])], [2]), "one of the operations"),
    (lambda: Cell([(SKIPS[0], ("skip_connect", 2))], [2]), r"Node 2 must read nodes in 0\.\.1"),
    (lambda: Cell([SKIPS[:1]], [2]), "must have two edges"),
    (lambda: Cell([SKIPS], [1]), r"nodes in 2\.\.2. Got \(1,\)"),
    (lambda: Cell([SKIPS], []), "one or more distinct"),
    (lambda: Cell([SKIPS], [2, 2]), "distinct nodes"),
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def mutations(space, seed):
    rng, decisions = np.random.default_rng(seed), space.decisions().architecture
    for _ in range(1000):
        parent = {**decisions.sample(rng), "learning_rate": 0.1}
        child = space.mutate(parent, rng)
        assert child["learning_rate"] == 0.1
        decisions.check(decisions.restrict(child), "child")
        yield parent, child


def assert_uniform(counts, n_kinds):
    """Within five standard deviations: one in 300 000 of such counts is not."""
    n, p = sum(counts.values()), 1 / n_kinds
    assert len(counts) == n_kinds
    assert max(abs(c - n * p) for c in counts.values()) < 5 * math.sqrt(n * p * (1 - p))


def edges_of(space, configuration):
    """{(kind, node): [(operation, input), (operation, input)]}"""
    genotype = space.cells(configuration)
    nodes = ((kind, zip(cells.NODES, getattr(genotype, kind).nodes)) for kind in cells.KINDS)
    return {(kind, k): list(edges) for kind, numbered in nodes for k, edges in numbered}


def test_cell_mutations_are_the_papers(global_random_seed):
    space = CellSpace()
    which, edges_hit, nodes_hit = Counter(), Counter(), Counter()
    for parent, child in mutations(space, global_random_seed):
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
            assert old_op == new_op and new_input not in [source for _, source in before[node]]
            which["input"] += 1
            nodes_hit[node] += 1
    assert_uniform(which, 3)
    assert_uniform(edges_hit, 2 * 4 * 2)
    assert_uniform(nodes_hit, 2 * 3)  # node 2 has no other inputs
    for space, n_decisions in ((CellSpace.width_depth(), 2), (NASBench201Space(), 6)):
        pairs = mutations(space, global_random_seed)  # of one decision
        hit = [[name for name in parent if parent[name] != child[name]] for parent, child in pairs]
        assert_uniform(Counter(name for (name,) in hit), n_decisions)
    assert CellSpace(genotype=DARTS).mutate({"other": 1}, np.random.default_rng(0)) == {"other": 1}


def test_pooling_does_not_see_the_padding():
    forward, _ = applied("avg_pool_3x3", (5, 4, 1), 1)
    x = random_image(1, 5, 4, 1)
    sums = convolve(x[0, :, :, 0], np.ones((3, 3)), mode="constant")
    counts = convolve(np.ones((5, 4)), np.ones((3, 3)), mode="constant")
    # Nine float32 additions of numbers near one.
    assert_allclose(forward(x)[0, :, :, 0], sums / counts, atol=1e-6)
    forward, _ = applied("max_pool_3x3", (4, 4, 1), 2)
    assert_array_equal(forward(-np.ones((1, 4, 4, 1))), -1)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 3)])
def test_factorized_reduction_by_hand(height, width):
    forward, model = applied("skip_connect", (height, width, 2), 2)
    x = random_image(1, height, width, 2)
    kernels = {w.path: w.numpy()[0, 0] for w in model.trainable_variables if "conv" in w.path}
    relu = np.maximum(x, 0)
    even = relu[:, ::2, ::2] @ kernels["op_even_conv/kernel"]
    odd, shifted = np.zeros_like(even), relu[:, 1::2, 1::2] @ kernels["op_odd_conv/kernel"]
    odd[:, : shifted.shape[1], : shifted.shape[2]] = shifted
    # Untrained batch normalisation divides by sqrt(1 + 1e-5).
    expected = np.concatenate([even, odd], axis=-1) / math.sqrt(1 + 1e-5)
    assert_allclose(forward(x), expected, atol=1e-6)


@cases(
    ("without", "factor"),
    # All skips: node 1 is x, node 2 is x + x, node 3 is x + x + 2 x.
    ([], 4.0),
    (["edge_1_2", "edge_2_3"], 2.0),
    (["edge_0_1", "edge_0_2"], 1.0),  # nodes 1 and 2 are zero
    (["edge_0_3", "edge_1_3", "edge_2_3"], 0.0),
)
def test_nas_bench_cell_adds_its_paths(without, factor):
    skips = {f"edge_{i}_{j}": "skip_connect" for i, j in itertools.combinations(range(4), 2)}
    edges, add = skips | dict.fromkeys(without, "none"), cells._add_nas_bench_cell
    forward, _ = applied(lambda layers, x: add(layers, edges, x, "cell"), (3, 3, 1))
    x = random_image(2, 3, 3, 1)
    assert_allclose(forward(x), factor * x, rtol=1e-6)


@pytest.mark.filterwarnings("error")  # which would name a layer
def test_first_weights_of_all_operations_follow_from_the_seed():
    everything = Cell([((name, 0), (name, 1)) for name in cells.OPERATIONS], [2, 10])
    space = CellSpace(2, 2, Genotype(everything, everything))
    one, two = (draw_variables(space.build({}, (7, 5, 1), 2), 5) for _ in range(2))
    assert_array_equal(one[0], two[0])


@cases(
    ("n_cells", "genotype", "expected"),
    # Weights counted by the definitions of the operations.
    *((3, None, 2615), (3, "amoebanet", 5499), (2, None, 947), (1, None, 483), (8, None, 8363)),
    quick=2,
)
def test_network_of_cells_has_the_papers_weights_and_resolutions(n_cells, genotype, expected):
    space = CellSpace(channels=2, n_cells=n_cells, genotype=genotype)
    configuration = space.decisions().architecture.sample(np.random.default_rng(n_cells))
    model = space.build(configuration, (7, 5, 2), 3)
    assert n_weights(model) == expected and model.output_shape == (None, 3)
    n_reductions = len({n_cells // 3, 2 * n_cells // 3} - {0})
    # The last cell concatenates four nodes, or three, whose channels each reduction has doubled.
    _, height, _, channels = model.get_layer("mean").input.shape
    assert channels == (3 if genotype else 4) * 2 * 2**n_reductions
    assert height == math.ceil(7 / 2**n_reductions)


@cases(
    ("space", "configuration", "expected"),
    # The largest and the smallest network of NAS-Bench-201 on CIFAR-10 have 1.531546 M and
    # 0.073306 M weights (ranges that several NAS code bases print).
    (NASBench201Space(), dict.fromkeys(EDGES, "conv_3x3"), 1_531_546),
    (NASBench201Space(), dict.fromkeys(EDGES, "skip_connect"), 73_306),
    # 3.3 M in table 1, and 3.34934E+06 in counts of DARTS' code without the auxiliary head.
    (CellSpace(36, 20, "darts"), {}, 3_349_342),
    quick=1,
)
def test_networks_have_the_papers_numbers_of_weights(space, configuration, expected):
    assert n_weights(space.build(configuration, (4, 4, 3), 10)) == expected


def test_nas_bench_strings_become_decisions_of_the_space():
    assert parse(GOOD) == parse(GOOD + "\n") == DECISIONS
    assert NASBench201Space().decisions().architecture.check(DECISIONS, "a") == DECISIONS
    swapped = GOOD.replace("nor_conv_1x1~0|avg_pool_3x3~1", "avg_pool_3x3~1|nor_conv_1x1~0")
    assert parse(swapped) == DECISIONS
    with pytest.raises(ValueError, match=r"'nor_conv_3x3'.*Got \['max_pool'\]"):
        parse(GOOD.replace("skip_connect", "max_pool"))
    more = [None, *(GOOD + end for end in ("+", "+|none~0|", "+rubbish"))]
    changes = ("~2", "~3"), ("~2", "~1"), ("|none~1", ""), ("none", "max pool")
    for wrong in (*more, *(GOOD.replace(*change) for change in changes)):
        with pytest.raises(ValueError, match="its six edges once, as in '(.*)'. Got") as caught:
            parse(wrong)
        assert parse(str(caught.value).split("'")[1])  # which shows one that is right
