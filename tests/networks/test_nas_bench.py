"""Architectures of NAS-Bench-201, as its tables name them."""

import pytest
from tiers import cases

from skuq.networks import NASBench201Space, parse_nas_bench_201

GOOD = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_3x3~2|"
OPERATIONS = ["conv_3x3", "conv_1x1", "avg_pool_3x3", "skip_connect", "none", "conv_3x3"]
EDGES = ["edge_0_1", "edge_0_2", "edge_1_2", "edge_0_3", "edge_1_3", "edge_2_3"]
DECISIONS = dict(zip(EDGES, OPERATIONS))


def test_strings_become_decisions_of_the_space():
    assert parse_nas_bench_201(GOOD) == parse_nas_bench_201(GOOD + "\n") == DECISIONS
    space = NASBench201Space().decisions().architecture
    assert space.check(parse_nas_bench_201(GOOD), "architecture") == DECISIONS
    swapped = GOOD.replace("nor_conv_1x1~0|avg_pool_3x3~1", "avg_pool_3x3~1|nor_conv_1x1~0")
    assert parse_nas_bench_201(swapped) == DECISIONS
    with pytest.raises(ValueError) as caught:
        parse_nas_bench_201("")
    assert parse_nas_bench_201(str(caught.value).split("'")[1])


@cases(
    "text",
    *(None, "", "nor_conv_3x3", GOOD + "+", GOOD + "+|none~0|", GOOD + "+rubbish"),
    "8:16:32:64:8",  # an architecture of the size search space
    *(GOOD.replace("~2", "~1"), GOOD.replace("~2", "~3")),
    *(GOOD.replace("|none~1", ""), GOOD.replace("none", "max pool")),
)
def test_other_strings_raise(text):
    with pytest.raises(ValueError, match="must name each of its six edges once, as in '"):
        parse_nas_bench_201(text)


@pytest.mark.parametrize("operation", ["max_pool_3x3", "conv_3x3"])
def test_unknown_operations_raise(operation):
    with pytest.raises(ValueError, match=rf"'nor_conv_3x3'.*Got \['{operation}'\]"):
        parse_nas_bench_201(GOOD.replace("nor_conv_3x3", operation))
