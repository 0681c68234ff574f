"""Run benchmarks: each problem, method and seed gives one row of numbers.

Rows are kept in ``benchmarks/results/NAME.json``, a line each, as soon as they come. A row that is
kept is not run again, so that a benchmark may be stopped, go on later, and run twice at once with
other problems, methods or seeds.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

STORED = Path(__file__).parent / "results"
KEY = ("problem", "method", "seed")
#: What a method may fail with: the failure is its row then, kept like others, which go on.
FAILURES = (ValueError, FloatingPointError, RuntimeError, subprocess.CalledProcessError)


@dataclass(frozen=True)
class Benchmark:
    """One table of numbers.

    Parameters
    ----------
    problems : mapping
        Name to a function of the seed, which gives the data.
    methods : mapping
        Name to what `rows` takes.
    rows : callable
        Takes the data, methods by their names, the seed, and the rows of them that are kept; yields
        pairs of a method's name and its row. A row with `unfinished` is followed by another one of
        this method, also after an interruption. :func:`each` makes it of a function of one method.
    seeds : int or mapping
        Default number of seeds, for all problems or for each.
    usual : callable
        Whether a problem and a method are run unless both are named.
    alone : mapping, default=None
        Runs each row in a process of its own, with these environment variables.
    """

    problems: Mapping
    methods: Mapping
    rows: Callable
    seeds: int | Mapping = 1
    usual: Callable = lambda problem, method: True
    alone: Mapping | None = None

    def n_seeds(self, problem):
        return self.seeds if isinstance(self.seeds, int) else self.seeds[problem]


def each(score):
    """Make `rows` of a function of the data, one method and the seed, which gives its row."""

    def rows(data, methods, seed, kept):
        for name, method in methods.items():
            try:
                yield name, score(data, method, seed)
            except FAILURES as error:
                reason = getattr(error, "stderr", None) or str(error)
                yield name, {"failed": str(reason)[-300:]}

    return rows


def growing(search):
    """Make `rows` of a generator of ever longer rows, which goes on from one that is kept."""

    def rows(data, methods, seed, kept):
        for name, method in methods.items():
            row = kept.get(name)
            try:
                for row in search(data, method, seed, row):  # noqa: B020
                    yield name, row
            except FAILURES as error:  # diverged
                yield name, {**(row or {}), "failed": str(error)[-300:], "unfinished": False}

    return rows


def read(path):
    """The rows of a file; none without a file."""
    return json.loads(path.read_text()) if path.exists() else []


def add(path, row):
    """Add a row in place of an earlier one of its kind, beside what other processes add."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        rows = [r for r in read(path) if any(r[k] != row[k] for k in KEY)] + [row]
        text = ",\n".join(json.dumps(r, default=float) for r in rows)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(f"[\n{text}\n]\n")
        os.replace(unfinished, path)


def rounded(value, digits=7):
    """A number of seven significant digits; all else as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def run(name, benchmark, problems=None, methods=None, seeds=None, again=False, folder=STORED):
    """Run what is not kept yet, all problems of a seed before the next seed; yield new rows."""
    path = folder / f"{name}.json"
    usual = range(max(benchmark.n_seeds(p) for p in benchmark.problems))
    for seed in usual if seeds is None else seeds:
        for problem in problems or benchmark.problems:
            if seeds is None and seed >= benchmark.n_seeds(problem):
                continue
            rows = [r for r in read(path) if (r["problem"], r["seed"]) == (problem, seed)]
            kept = {} if again else {r["method"]: r for r in rows}
            missing = {
                method: benchmark.methods[method]
                for method in methods or benchmark.methods
                if (problems and methods) or benchmark.usual(problem, method)
                if method not in kept or kept[method].get("unfinished")
            }
            for method, numbers in found(name, benchmark, problem, missing, seed, kept):
                row = dict(zip(KEY, (problem, method, seed)))
                row |= {key: rounded(value) for key, value in numbers.items()}
                add(path, row)
                yield row


def found(name, benchmark, problem, methods, seed, kept=()):
    if benchmark.alone is not None:
        for method in methods:
            yield method, in_own_process(name, benchmark.alone, problem, method, seed)
    elif methods:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = benchmark.problems[problem](seed)
            yield from benchmark.rows(data, methods, seed, kept)


def in_own_process(name, environment, problem, method, seed):
    """Compute one row in a new process, with the seconds of that process."""
    import resource  # not on all systems

    command = [sys.executable, Path(__file__).with_name("run.py"), name, "--print"]
    command += ["--problems", problem, "--methods", method, "--seeds", str(seed)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return {"failed": done.stderr[-300:]}
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = json.loads(done.stdout.splitlines()[-1])
    return {"process_seconds": seconds, "processor_seconds": used, **row}


def summary(rows, score=None):
    """Means over the seeds as a table: of all numbers, or of one score by problem and method."""
    frame = pd.DataFrame(rows)
    if score is not None:
        means = frame.pivot_table(score, "problem", "method", sort=False)
        return means.to_markdown(floatfmt=".4g")
    groups = frame.groupby(["problem", "method"], sort=False)
    means = groups.mean(numeric_only=True).drop(columns="seed")
    means.insert(0, "seeds", groups.size())
    return means.replace(np.nan, None).reset_index().to_markdown(index=False, floatfmt=".4g")
