"""Bayesian optimisation of skuq beside BoTorch, Optuna and random points, on eight problems.

    python benchmarks/bo_suite.py [--only branin pest ..] [--methods neon botorch ..] [--runs N]

The problems and budgets are those of Li et al. 2023 (arXiv 2305.20028), and the pollutants of the
NEON paper. Optics, cell towers, pollutants and the partial differential equation are composite:
NEON learns the function's outputs, the others values.

Rivals run in virtual environments of their own, which the script makes in `--environments`. Their
torch is PyPI's, which on Linux brings gigabytes of CUDA; with the environment variable
``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`` and a ``PIP_CONSTRAINT`` file that
names a version of that index, it is the CPU build. A rival that cannot be installed is recorded as
not run, with the reason.

Every batch is kept at once in bo_suite.json in `--results-dir`: the script may be stopped at any
time and goes on there. `--runs 0` prints what there is, and `--picture docs/images/bo_suite.png`
draws it. Seconds of a step are those of fit and proposal.
"""

import argparse
import json
import os
import subprocess
import time
import venv
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _bo_field import REQUIREMENTS
from _bo_loops import matern, rounded
from _bo_suite_problems import TASKS, best_known, design, n_evaluations, whole_searches, why_not
from _regret import draw_curves
from _stored import STORED, add, read
from _tables import print_table
from nomu import CELL, is_cell

from skuq import DeepEnsembleRegressor, NEONRegressor, NOMURegressor
from skuq.bayesopt import BayesianOptimizer, MultiStart
from skuq.networks import (
    ArtificialInputs,
    ConditionedPrior,
    NOMUNetwork,
    NOMUReadout,
    OperatorNetwork,
)

FILE = "bo_suite.json"
CHEAP_RUNS, COSTLY_RUNS = 10, 3
COSTLY = ("pde", "cells", "optics")
_N_MEMBERS, _FIELD = 16, 10_000  # numbers in one output above which there are fewer draws


def surrogate(method, task):
    """The surrogate of a method of skuq, and the settings of its search."""
    settings = {"acquisition": "lei", "maximizer": MultiStart(n_restarts=200)}
    composite = method == "neon" and task.objective is not None
    if method == "neon":
        points = task.query_points if composite else None
        # A learnt scale explores more: too much in ten dimensions.
        model = NEONRegressor(
            query_points=points, noise_std=0.0, prior=ConditionedPrior(scale=0.75)
        )
        if composite and np.size(task.query_points) > 100:
            model.network = OperatorNetwork(fourier_scale=5.0, latent=96, decoder_units=(64,) * 3)
            settings |= {"n_draws": 32, "maximizer": MultiStart(n_restarts=8)}
    elif method == "nomu":
        box = None if len(task.categories) else task.bounds
        model = NOMURegressor(
            NOMUNetwork((128, 128)),
            readout=NOMUReadout(l_min=1e-3, l_max=2, c=1),
            artificial=ArtificialInputs(box=box),
        )
        settings["acquisition"] = "ei"
    elif method == "ensemble":
        model = DeepEnsembleRegressor(_N_MEMBERS)
    else:
        model = matern(len(task.bounds))
        settings["acquisition"] = "ei"
    return model, settings, composite


class Own:
    """A search of skuq."""

    def __init__(self, method, task, seed):
        model, settings, self.composite = surrogate(method, task)
        self.search = BayesianOptimizer(
            model,
            task.bounds,
            objective=task.objective if self.composite else None,
            categories=task.categories or None,
            n_initial=task.n_initial,
            random_state=seed,
            **settings,
        )

    def tell(self, x, evaluations):
        y = [outputs if self.composite else -value for outputs, value in evaluations]
        self.search.tell(x, np.array(y))

    def ask(self, q):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.search.ask(q)

    def close(self):
        pass


class Uniform:
    """Random points."""

    def __init__(self, task, seed):
        self.rng, self.task = np.random.default_rng([seed, 1]), task

    def tell(self, x, evaluations):
        self.rng.random(len(x))  # so that a search goes on with other points

    def ask(self, q):
        low, high = self.task.bounds.T
        u = self.rng.random((q, len(low)))
        x = low + (high - low) * u
        for column in self.task.categories:
            x[:, column] = np.floor(u[:, column] * (high[column] + 1))
        return x

    def close(self):
        pass


class Rival:
    """An optimiser in an environment of its own, over a pipe."""

    def __init__(self, python, method, task, seed):
        script = Path(__file__).with_name("_bo_field.py")
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, script, method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=alone,
        )
        categories = list(task.categories)
        start = {"bounds": task.bounds.tolist(), "integer": [], "categories": categories}
        self.send(start=start | {"seed": seed})
        self.versions = self.answer()["versions"]

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def tell(self, x, evaluations):
        self.send(tell={"x": np.asarray(x).tolist(), "y": [value for _, value in evaluations]})

    def ask(self, q):
        self.send(ask=q)
        return np.array(self.answer()["x"])

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the rival has ended without an answer")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


METHODS = ("neon", "nomu", "ensemble", "gp", "random", *REQUIREMENTS)


def environment(arguments, method):
    """The interpreter of a rival's environment, made at the first use."""
    home = arguments.environments / method
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        command = [python, "-m", "pip", "install", "-q", *REQUIREMENTS[method]]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (home / "ready").touch()
    return python


def optimiser(method, task, seed, arguments):
    if method == "random":
        return Uniform(task, seed)
    if method in REQUIREMENTS:
        return Rival(environment(arguments, method), method, task, seed)
    return Own(method, task, seed)


def run(path, name, method, seed, arguments):
    """Go on with one search from where it is, every batch saved as it comes."""
    cell = ("suite", name, method, seed, {})
    task = TASKS[name](arguments.cache_dir)
    known = next((r for r in read(path) if is_cell(r, *cell)), None)
    x = design(task, seed) if known is None else np.array(known["x"])
    seconds = [] if known is None else known["seconds"]
    end = n_evaluations(task)
    if len(x) >= end:
        return
    evaluations = [task.evaluate(point) for point in x]
    search = optimiser(method, task, seed, arguments)
    try:
        search.tell(x, evaluations)
        while len(x) < end:
            started = time.perf_counter()
            batch = search.ask(min(task.q, end - len(x)))
            seconds = [*seconds, rounded(time.perf_counter() - started, 3)]
            results = [task.evaluate(point) for point in batch]
            search.tell(batch, results)
            x, evaluations = np.vstack([x, batch]), evaluations + results
            record = {
                "part": "suite",
                "dataset": name,
                "method": method,
                "seed": seed,
                "settings": {},
                "x": x.tolist(),
                "values": [rounded(value) for _, value in evaluations],
                "seconds": seconds,
                "versions": getattr(search, "versions", {}),
            }
            add(path, record, CELL)
    finally:
        search.close()
    best = min(value for _, value in evaluations)
    print(f"{name} {method} {seed}: best {best:.4g}, {sum(seconds):.0f} s", flush=True)


def note_absent(path, method, reason):
    """Record that a rival cannot be run here."""
    cell = {"part": "absent", "dataset": "", "method": method, "seed": 0, "settings": {}}
    add(path, cell | {"reason": reason}, CELL)
    print(f"NOT RUN: {method}: {reason}", flush=True)


def print_suite(path, arguments):
    records = [r for r in read(path) if r["part"] == "suite"]
    for name in arguments.only:
        of_task = [r for r in records if r["dataset"] == name]
        if not of_task:
            continue
        task = TASKS[name](arguments.cache_dir)
        best = best_known(task)
        end = n_evaluations(task)
        marks = sorted({(task.n_initial + end) // 2, end})
        rows = []
        for method in METHODS:
            runs = [r for r in of_task if r["method"] == method]
            if not runs:
                continue
            row = [method, str(len(runs))]
            for n in marks:
                values = [min(r["values"][:n]) - best for r in runs if len(r["values"]) >= n]
                text = f"{np.median(values):.3g}" if values else "-"
                row.append(text + (f" ({len(values)})" if len(values) < len(runs) else ""))
            seconds = [s for r in runs for s in r["seconds"][1:]]
            row.append(f"{np.median(seconds):.1f}" if seconds else "-")
            rows.append(row)
        what = "best value" if task.best_value is None else "regret"
        heads = [f"median {what}", "runs", *(f"after {n}" for n in marks), "s a step"]
        print_table(name, heads, rows)
    for r in read(path):
        if r["part"] == "absent":
            print(f"NOT RUN: {r['method']}: {r['reason']}")


PICTURED = {
    "neon": "NEON",
    "botorch": "BoTorch, qLogEI",
    "optuna": "Optuna, GPSampler",
    "random": "random points",
    "gp": "Gaussian process, EI (three problems)",
}


def draw(records, path):
    """Draw the best value so far, or the regret, of problems that all methods have searched."""
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained")
    free = iter(axes.flat)
    for name, make in TASKS.items():
        values = {
            title: [r["values"] for r in whole_searches(records, name, method)]
            for method, title in PICTURED.items()
        }
        gp = values.pop(PICTURED["gp"])  # last, so that colours are the same without it
        if not all(values.values()):  # colours go by the order of the methods
            continue
        if gp:
            values[PICTURED["gp"]] = gp
        ax = next(free)
        best = {title: np.fmin.accumulate(runs, axis=1) for title, runs in values.items()}
        optimum = make(None).best_value
        if optimum is None:
            draw_curves(ax, best, "best value so far", log=False)
        else:
            regret = {title: np.maximum(runs - optimum, 0) for title, runs in best.items()}
            draw_curves(ax, regret, "simple regret")
        ax.get_legend().remove()
        ax.set_title(name)
    for ax in free:
        ax.set_axis_off()
    drawn = next(ax for ax in axes.flat if ax.lines)
    lines, titles = drawn.get_legend_handles_labels()
    figure.legend(lines, titles, loc="outside lower center", ncols=len(titles))
    figure.savefig(path, dpi=100)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--runs", type=int, help="seeds of each; 0 prints what has been run")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--picture", type=Path, help="draw what there is and end")
    cache = Path.home() / ".cache" / "skuq-benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache)
    parser.add_argument("--environments", type=Path, default=cache / "environments")
    return parser.parse_args()


def main():
    arguments = parsed()
    path = arguments.results_dir / FILE
    if arguments.picture:
        draw(read(path), arguments.picture)
        return
    methods = [] if arguments.runs == 0 else list(arguments.methods)
    for method in set(methods) & set(REQUIREMENTS):
        try:
            environment(arguments, method)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or str(error)).strip().splitlines()[-1]
            note_absent(path, method, reason)
            methods.remove(method)
    for name in arguments.only:
        if methods and why_not(name):
            print(f"SKIPPED {name}: {why_not(name)}", flush=True)
            continue
        usual = COSTLY_RUNS if name in COSTLY else CHEAP_RUNS
        n_runs = usual if arguments.runs is None else arguments.runs
        for seed in range(arguments.first_seed, arguments.first_seed + n_runs):
            for method in methods:
                try:
                    run(path, name, method, seed, arguments)
                except (FloatingPointError, RuntimeError) as error:  # the others go on
                    print(f"FAILED {name} {method} {seed}: {error}", flush=True)
    print_suite(path, arguments)


if __name__ == "__main__":
    main()
