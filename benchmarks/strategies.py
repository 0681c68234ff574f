"""Search strategies in the paper's space: regret against trials.

    python benchmarks/strategies.py --data-dir DIR --sets yacht concrete --splits 0 1
    python benchmarks/strategies.py --summary
    python benchmarks/strategies.py --picture docs/images/strategies.png

Each strategy proposes the same number of networks of AutoDEUQ's paper, one at a time, on the same
split and with the same seed, so that a run repeats exactly and no figure depends on the machine.
The populations of evolution have a quarter of the number of trials.
The regret after a number of trials is the best validation NLL so far minus the best that any
strategy has found on this split. Finished runs are written at once to
``benchmarks/results/strategies.json`` and not repeated. With `--catalog-dir` the trials of a run
that is cut off are stored there, and the next run continues with them.
"""

import argparse
import json
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _stored import STORED, add, matches, read
from _tables import mean_error
from leaderboard import regression_data
from scipy.stats import rankdata

from skuq import AutoDEUQRegressor
from skuq.exceptions import SmallValidationWarning
from skuq.metrics import gaussian_nll_loss
from skuq.plotting import RegretDisplay

RESULTS = STORED / "strategies.json"
STRATEGIES = ("agebo", "random", "age", "bo", "age-mixed", "bo-mixed")
LABELS = {"agebo": "**AgEBO**", "random": "random search", "age": "AgE", "bo": "BO"}
LABELS |= {"age-mixed": "AgE, mixed", "bo-mixed": "BO, mixed"}
SETS = ("yacht", "concrete", "energy")


def run(data_dir, strategy, name, split, n_trials, catalog_dir=None):
    """One search: the score of each trial in its order, and the ensemble's NLL on test rows."""
    X, y, X_test, y_test = regression_data(data_dir, name, split)
    # The paper's population of 100 would never be full: sizes that go with the number of trials.
    model = AutoDEUQRegressor.from_paper(
        n_trials=n_trials,
        search=strategy,
        random_state=split,
        selection="greedy",
        search__discard=False,
        catalog_dir=catalog_dir,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        model.fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    scores = [r.score if r.completed else None for r in model.catalog_]
    return {"scores": scores, "nll": gaussian_nll_loss(y_test, mean, std)}


def curves(records):
    """Regret of each strategy: arrays (n_problems, n_trials) of the problems that all have run."""
    found = {(r["strategy"], r["set"], r["split"], r["n_trials"]): r["scores"] for r in records}
    strategies = [s for s in STRATEGIES if any(key[0] == s for key in found)]
    problems = sorted({key[1:] for key in found})
    problems = [p for p in problems if all((s, *p) in found for s in strategies)]
    regrets = {s: [] for s in strategies}
    for problem in problems:
        # A failed trial is no progress.
        best = {
            s: np.fmin.accumulate(np.array(found[(s, *problem)], dtype=float)) for s in strategies
        }
        least = min(b[-1] for b in best.values())
        for s, values in best.items():
            regrets[s].append(values - least)
    return {s: np.array(rows) for s, rows in regrets.items()}, problems


def rows(records):
    """The table of the comparison: its head, and a row of text for each strategy."""
    regrets, problems = curves(records)
    nll = {(r["strategy"], r["set"], r["split"], r["n_trials"]): r["nll"] for r in records}
    n_trials = next(iter(regrets.values())).shape[1]
    stages = [n_trials // 4, n_trials // 2, n_trials]
    ends = np.array([values[:, -1] for values in regrets.values()])
    ranks = rankdata(ends.round(6), axis=0).mean(axis=1)
    table = []
    for k, (strategy, values) in enumerate(regrets.items()):
        difference = regrets["agebo"][:, -1] - values[:, -1]
        tests = [nll[(strategy, *p)] for p in problems]
        table.append(
            [
                LABELS[strategy],
                *(f"{np.mean(values[:, stage - 1]):.3f}" for stage in stages),
                f"{ranks[k]:.1f}",
                "" if strategy == "agebo" else mean_error(difference),
                "" if strategy == "agebo" else f"{np.sum(difference < 0)} of {len(problems)}",
                f"{np.median(tests):.3f}",
            ]
        )
    head = ["", *(f"regret after {stage}" for stage in stages), "rank", "AgEBO minus it"]
    return [*head, "AgEBO ahead", "median test NLL"], table


def print_summary(records):
    problems = curves(records)[1]
    print(f"{len(problems)} problems: {problems}")
    head, table = rows(records)
    for line in [head, *table]:
        print("".join(f"{cell:>18s}" for cell in line))


def draw(records, path):
    regrets, problems = curves(records)
    named = {LABELS[s].strip("*"): values for s, values in regrets.items()}
    figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    RegretDisplay(named, unit="nats").plot(ax=ax)
    ax.set_title("Regret of the best validation NLL so far")
    ax.get_legend().set_title(f"median of {len(problems)} sets and splits, and the middle half")
    ax.set_xlabel("trials")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--n-trials", type=int, default=100)
    parser.add_argument("--catalog-dir", type=Path, help="folder for the trials of the searches")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    records = read(RESULTS)
    if arguments.summary:
        print_summary(records)
        return
    if arguments.picture:
        draw(records, arguments.picture)
        return
    for split in arguments.splits:
        for name in arguments.sets:
            for strategy in arguments.strategies:
                key = {
                    "strategy": strategy,
                    "set": name,
                    "split": split,
                    "n_trials": arguments.n_trials,
                }
                if any(matches(r, key) for r in records):
                    continue
                found = run(
                    arguments.data_dir,
                    strategy,
                    name,
                    split,
                    arguments.n_trials,
                    arguments.catalog_dir,
                )
                # Others may have been added meanwhile.
                add(RESULTS, {**key, **found})
                records = read(RESULTS)
                print(json.dumps({**key, "nll": found["nll"]}), flush=True)


if __name__ == "__main__":
    main()
