"""The runner: rows are kept as they come, and not run again."""

import numpy as np
import pytest
import regression
import run as command
from runner import Benchmark, each, growing, read, run, summary


def test_rows_are_kept_and_an_interrupted_run_goes_on_with_what_is_run_usually(tmp_path):
    seen = []

    def score(data, method, seed):
        seen.append((data, method, seed))
        if method == "stops" and seen.count(seen[-1]) == 1:
            raise KeyboardInterrupt
        if method == "fails":
            raise ValueError("no such number")
        return {"nll": data + seed + 1 / 3, "curve": [1 / 3]}

    problems = {"one": lambda seed: 1.0, "two": lambda seed: 2.0}
    methods = {name: name for name in ("goes", "stops", "fails")}
    benchmark = Benchmark(problems, methods, each(score), {"one": 2, "two": 1})
    with pytest.raises(KeyboardInterrupt):
        list(run("tiny", benchmark, folder=tmp_path))
    kept = {"problem": "one", "method": "goes", "seed": 0, "nll": 1.333333, "curve": [1 / 3]}
    assert read(tmp_path / "tiny.json") == [kept]
    while True:
        try:
            new = list(run("tiny", benchmark, folder=tmp_path))
            break
        except KeyboardInterrupt:
            continue
    rows = read(tmp_path / "tiny.json")
    assert len(rows) == 9 and rows[-1] == new[-1]  # two seeds of "one", one of "two"
    assert seen.count((1.0, "goes", 0)) == 1 and rows[2]["failed"] == "no such number"
    assert list(run("tiny", benchmark, folder=tmp_path)) == []
    (again,) = run("tiny", benchmark, ["two"], ["goes"], [0], again=True, folder=tmp_path)
    assert again["nll"] == 2.333333 and len(read(tmp_path / "tiny.json")) == 9
    usual = Benchmark(**{**vars(benchmark), "usual": lambda problem, method: method == "goes"})
    tmp_path = tmp_path / "usual"
    assert len(list(run("tiny", usual, folder=tmp_path))) == 3
    assert list(run("tiny", usual, methods=["fails"], folder=tmp_path)) == []
    rows = list(run("tiny", usual, ["two"], ["fails"], [5], folder=tmp_path))
    assert [(r["problem"], r["method"], r["seed"]) for r in rows] == [("two", "fails", 5)]


def test_a_growing_row_goes_on_where_it_was(tmp_path):
    def search(data, end, seed, kept):
        values = list(kept["values"]) if kept else []
        while len(values) < 4:
            if len(values) == end:
                raise FloatingPointError("diverged")
            values.append(len(values))
            yield {"values": values[:]} | ({"unfinished": True} if len(values) < 4 else {})

    benchmark = Benchmark({"line": lambda seed: None}, {"ends": 4, "fails": 2}, growing(search))
    runs = run("search", benchmark, folder=tmp_path)
    assert next(runs)["values"] == [0] and next(runs)["values"] == [0, 1]
    runs.close()
    rows = list(run("search", benchmark, folder=tmp_path))
    assert [len(row["values"]) for row in rows] == [3, 4, 1, 2, 2]
    ended, failed = read(tmp_path / "search.json")
    assert "unfinished" not in ended
    assert failed["values"] == [0, 1] and failed["failed"] == "diverged"
    assert list(run("search", benchmark, folder=tmp_path)) == []


def test_what_the_command_shows_and_refuses(capsys):
    rows = [{"problem": "p", "method": "m", "seed": seed, "nll": seed / 10} for seed in (0, 1)]
    assert "| p         | m        |       2 |  0.05 |" in summary(rows)
    assert "0.05" in summary(rows, "nll")
    with pytest.raises(SystemExit):
        command.main(["operators", "--methods", "nothing"])
    assert "Unknown methods: ['nothing']" in capsys.readouterr().err
    command.main(["baselines", "--summary", "--score", "crps"])
    assert "| yacht " in capsys.readouterr().out


def test_gaps_and_tails_are_rows_in_the_order_of_a_feature(monkeypatch):
    X, y = np.zeros((20, 13)), np.arange(20.0)
    X[:, 4] = y  # the fourth continuous feature: 3 is left out
    monkeypatch.setattr(regression, "uci_rows", lambda name: (X[::-1], y[::-1]))
    for kind, tested in ("gaps", range(6, 13)), ("tails", [0, 1, 2, 3, *range(16, 20)]):
        X_train, y_train, X_test, y_test = regression.without(kind, "boston", 3)
        assert sorted(y_test) == list(tested) and sorted([*y_train, *y_test]) == list(y)
        assert (X_test[:, 4] == y_test).all() and (X_train[:, 4] == y_train).all()
