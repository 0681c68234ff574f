"""Published results of NAS-Bench-201, as users have them."""

import json

import numpy as np
import pytest

from skuq.networks import NASBench201Space, best_nas_bench_201, parse_nas_bench_201

GOOD = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|none~1|nor_conv_3x3~2|"
DECISIONS = {
    "edge_0_1": "conv_3x3",
    "edge_0_2": "conv_1x1",
    "edge_1_2": "avg_pool_3x3",
    "edge_0_3": "skip_connect",
    "edge_1_3": "none",
    "edge_2_3": "conv_3x3",
}


def all_edges(operation):
    return "+".join("|" + "".join(f"{operation}~{i}|" for i in range(j)) for j in range(1, 4))


TABLE = {all_edges("none"): 2.5, GOOD: 0.7, all_edges("skip_connect"): 1.5}
LAST = dict.fromkeys(DECISIONS, "none")


def test_strings_become_decisions_of_the_space():
    assert parse_nas_bench_201(GOOD) == parse_nas_bench_201(GOOD + "\n") == DECISIONS
    space = NASBench201Space().decisions().architecture
    assert space.check(parse_nas_bench_201(GOOD), "architecture") == DECISIONS
    swapped = GOOD.replace("nor_conv_1x1~0|avg_pool_3x3~1", "avg_pool_3x3~1|nor_conv_1x1~0")
    assert parse_nas_bench_201(swapped) == DECISIONS


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nor_conv_3x3",
        "8:16:32:64:8",  # an architecture of the size search space
        GOOD + "+",
        GOOD + "+|none~0|",
        GOOD + "+rubbish",
        GOOD.replace("~2", "~1"),
        GOOD.replace("~2", "~3"),
        GOOD.replace("|none~1", ""),
        GOOD.replace("none", "max pool"),
    ],
)
def test_other_strings_raise(text):
    with pytest.raises(ValueError, match="must name each of its six edges once, as in '"):
        parse_nas_bench_201(text)


@pytest.mark.parametrize("operation", ["max_pool_3x3", "conv_3x3"])
def test_unknown_operations_raise(operation):
    with pytest.raises(ValueError, match=rf"'nor_conv_3x3'.*Got \['{operation}'\]"):
        parse_nas_bench_201(GOOD.replace("nor_conv_3x3", operation))


def test_the_example_of_the_message_is_one():
    with pytest.raises(ValueError) as caught:
        parse_nas_bench_201("")
    assert parse_nas_bench_201(str(caught.value).split("'")[1])


def test_best_is_the_lowest_loss_or_the_highest_accuracy():
    assert best_nas_bench_201(TABLE) == DECISIONS
    assert best_nas_bench_201(TABLE, "accuracy") == LAST
    assert best_nas_bench_201({all_edges("none"): 1, GOOD: 1.0}) == LAST  # the first of equals
    assert best_nas_bench_201({GOOD: np.float32(1)}) == DECISIONS


def test_files(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    assert best_nas_bench_201(path) == best_nas_bench_201(str(path)) == DECISIONS
    path = tmp_path / "table.csv"
    rows = "".join(f"{text},{loss},{100 - loss}\n" for text, loss in TABLE.items())
    path.write_text("architecture,loss,accuracy\n" + rows)
    assert best_nas_bench_201(path) == best_nas_bench_201(path, "accuracy") == DECISIONS
    path.write_text("architecture,loss\n" + rows)
    with pytest.raises(ValueError, match='columns "architecture" and "accuracy"'):
        best_nas_bench_201(path, "accuracy")
    path.write_text(f"architecture,loss\n{GOOD},1\n{GOOD},2\n")
    with pytest.raises(ValueError, match=r"each architecture once.*Got '\|.*' 2 times"):
        best_nas_bench_201(path)
    path.write_text(f"architecture,loss\n{GOOD}\n")
    with pytest.raises(ValueError, match="must hold a number for each architecture"):
        best_nas_bench_201(path)


class Api:
    """Stands for NASBench201API and NATStopology, with the parts of them that are called."""

    def __len__(self):
        return len(TABLE)

    def arch(self, index):
        return list(TABLE)[index]

    def get_more_info(self, index, dataset, iepoch=None, hp="12", is_random=True):
        loss = list(TABLE.values())[index]
        if hp == "12" or is_random or iepoch is not None:
            loss = -loss
        info = {"train-loss": -loss, "test-loss": -loss, "test-accuracy": loss}
        if dataset != "cifar10":
            info |= {"valid-loss": loss, "valid-accuracy": 10 - loss}
        return info


def test_api_objects_are_asked_for_validation_results_after_200_epochs():
    assert best_nas_bench_201(Api(), dataset="cifar100") == DECISIONS
    assert best_nas_bench_201(Api(), "accuracy", dataset="cifar10-valid") == DECISIONS
    with pytest.raises(ValueError, match="An API object needs `dataset`"):
        best_nas_bench_201(Api())
    with pytest.raises(ValueError, match="no validation results for `dataset='cifar10'`.*-valid"):
        best_nas_bench_201(Api(), dataset="cifar10")


@pytest.mark.parametrize(
    ("results", "arguments", "message"),
    [
        (TABLE, {"score": "nll"}, r"`score` must be one of \['accuracy', 'loss'\]. Got 'nll'"),
        (TABLE, {"dataset": "cifar100"}, "`dataset` can only be set if.*Got 'cifar100'"),
        ({}, {}, "`results` must hold at least one architecture"),
        ({**TABLE, "rubbish": 0.1}, {}, "six edges once.*Got 'rubbish'"),
        ({**TABLE, GOOD: "good"}, {}, "must hold a number for each architecture: .*'good'"),
        ({**TABLE, GOOD: float("nan")}, {}, "must hold a finite number"),
        ({**TABLE, GOOD: [1, 2]}, {}, "must hold a number for each architecture"),
        (list(TABLE), {}, "`results` must be a dict .architecture string: number.*Got \\["),
        ("table.txt", {}, "the path of a .json file .* Got 'table.txt'"),
    ],
)
def test_results_that_cannot_be_read_raise(results, arguments, message):
    with pytest.raises(ValueError, match=message):
        best_nas_bench_201(results, **arguments)


def test_json_files_hold_an_object(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match="`results` must be a dict"):
        best_nas_bench_201(path)
