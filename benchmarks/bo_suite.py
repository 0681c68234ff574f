"""Bayesian optimisation of skuq beside BoTorch, Optuna and random points, on eight problems.

    python benchmarks/bo_suite.py [--only branin pest ..] [--methods neon botorch ..] [--runs N]

The problems and budgets are those of Li et al. 2023 (arXiv 2305.20028), and the pollutants of the
NEON paper. Optics, cell towers, pollutants and the partial differential equation are composite:
NEON learns the function's outputs, the others values.

Rivals need ``pip install botorch optuna``.

Every batch is kept at once in bo_suite.json in `--results-dir`: the script may be stopped at any
time and goes on there. `results_tables.py` makes the tables of what is kept, and
`--picture docs/images/bo_suite.png` draws it. Seconds of a step are those of fit and proposal.
"""

import argparse
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _bo_field import METHODS as RIVALS
from _bo_loops import matern, rounded
from _bo_suite_problems import TASKS, design, n_evaluations, whole_searches
from _regret import draw_curves
from _stored import STORED, add, read
from nomu import CELL, is_cell

from skuq import NEONRegressor
from skuq.bayesopt import BayesianOptimizer, MultiStart
from skuq.networks import ConditionedPrior, OperatorNetwork

FILE = "bo_suite.json"
CHEAP_RUNS, COSTLY_RUNS = 10, 3
COSTLY = ("pde", "cells", "optics")


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


class Rival:
    """A search of another library."""

    def __init__(self, method, task, seed):
        self.search = RIVALS[method](task.bounds.tolist(), task.categories, seed)

    def tell(self, x, evaluations):
        self.search.tell(np.asarray(x).tolist(), [value for _, value in evaluations])

    def ask(self, q):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.array(self.search.ask(q))


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


METHODS = ("neon", "gp", "random", *RIVALS)


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
    if method == "random":
        search = Uniform(task, seed)
    else:
        search = (Rival if method in RIVALS else Own)(method, task, seed)
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
            "versions": {method: version(method)} if method in RIVALS else {},
        }
        add(path, record, CELL)
    best = min(value for _, value in evaluations)
    print(f"{name} {method} {seed}: best {best:.4g}, {sum(seconds):.0f} s", flush=True)


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
    parser.add_argument("--runs", type=int, help="seeds of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--picture", type=Path, help="draw what there is and end")
    cache = Path.home() / ".cache" / "skuq-benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache)
    return parser.parse_args()


def main():
    arguments = parsed()
    path = arguments.results_dir / FILE
    if arguments.picture:
        draw(read(path), arguments.picture)
        return
    for name in arguments.only:
        usual = COSTLY_RUNS if name in COSTLY else CHEAP_RUNS
        n_runs = usual if arguments.runs is None else arguments.runs
        for seed in range(arguments.first_seed, arguments.first_seed + n_runs):
            for method in arguments.methods:
                try:
                    run(path, name, method, seed, arguments)
                except (FloatingPointError, RuntimeError) as error:  # the others go on
                    print(f"FAILED {name} {method} {seed}: {error}", flush=True)


if __name__ == "__main__":
    main()
