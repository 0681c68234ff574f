"""UCI regression on the standard splits: AutoDEUQ beside published and measured figures.

    python benchmarks/uci_regression.py --data-dir DIR --dataset concrete --splits 0 1 2 \
        --n-trials 100 --n-jobs 2

`--protocol paper` uses 500 trials and ten `--seeds` of the train/validation split on test
split 0, and prints the mean rank over the sets run, by the paper's Table I
(yearprediction is not among the data).

`--validation 5` cross-validates each trial, `--refit` trains the ensemble again on all rows; both
are kept apart from the runs without.

Every finished run is written to ``benchmarks/results/uci_regression.json`` at once and
not repeated. With `--catalog-dir` a run that was interrupted goes on with its trials.
`--summary` only prints.
"""

import argparse
import copy
import time
import warnings
from pathlib import Path

import numpy as np
from _data import uci
from _stored import STORED, add, read
from published import MEASURED, TABLE_I
from scipy.stats import rankdata

from skuq import AutoDEUQRegressor
from skuq.ensembles import select_greedy
from skuq.exceptions import SmallValidationWarning
from skuq.metrics import coverage_score, crps_loss, gaussian_nll_loss

RESULTS = STORED / "uci_regression.json"


def scores(distribution, y):
    """Everything that is reported of one predictive distribution."""
    mean, std = distribution.mean, distribution.std
    low, high = distribution.interval(0.9).T
    return {
        "nll": gaussian_nll_loss(y, mean, std),
        "nll_mixture": -float(distribution.log_prob(y).mean()),
        "crps": crps_loss(y, mean, std),
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "coverage_90": coverage_score(y, low, high),
    }


def reselected(model, X, y, select):
    """Scores of the same catalog under another selection, a name or a function."""

    def choose(*given, sample_weight):
        return select(*given)

    other = copy.copy(model).reselect(selection=choose if callable(select) else select)
    result = scores(other.predict_distribution(X), y)
    return {"nll": result["nll"], "rmse": result["rmse"], "n_members": len(other.selection_)}


def run(data, seed, settings, catalog_dir):
    """One fit and its scores, as a JSON record."""
    X, y, X_test, y_test = data
    # The names under which records are kept: `cv` is the number of folds.
    settings = {**settings, "validation": settings.get("cv", 0.25)}
    settings.pop("cv", None)
    paper_space = {"space": "dense", "n_members": 5, "calibrate": False}
    model = AutoDEUQRegressor(random_state=seed, verbose=1, catalog_dir=catalog_dir, **paper_space)
    model.set_params(**settings)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        model.fit(X, y)
    seconds = time.perf_counter() - started
    frame = model.catalog_.to_frame()
    return {
        **scores(model.predict_distribution(X_test), y_test),
        "seconds": seconds,
        "n_members": len(model.selection_),
        "weights": model.selection_.weights.round(4).tolist(),
        "validation_loss": model.selection_.loss,
        "n_failed": int((frame.status == "failed").sum()),
        "other_selections": {
            "greedy, min_members=1": reselected(
                model, X_test, y_test, lambda *a: select_greedy(*a, min_members=1)
            ),
            "greedy, k_init=5": reselected(
                model, X_test, y_test, lambda *a: select_greedy(*a, k_init=5)
            ),
            "top": reselected(model, X_test, y_test, "top"),
        },
    }


def matching(records, protocol, dataset, settings):
    return [
        r
        for r in records
        if (r["protocol"], r["dataset"]) == (protocol, dataset)
        and {**r["settings"], "n_jobs": 0} == {**settings, "n_jobs": 0}
    ]


def print_table(dataset, records):
    """Our mean and standard error, then everybody else's."""
    print(f"\n{dataset}: splits {sorted({r['split'] for r in records})}, {len(records)} runs")
    print(f"{'':34s}{'NLL':>16s}{'RMSE':>16s}{'CRPS':>16s}{'90 % cov.':>16s}")

    def cell(values):
        values = np.asarray(values, float)
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        return f"{values.mean():9.3f} ±{error:5.3f}"

    columns = ("nll", "rmse", "crps", "coverage_90")
    print(f"{'AutoDEUQRegressor':34s}", *(cell([r[c] for r in records]) for c in columns))
    print(f"{'  NLL of the mixture itself':34s}", cell([r["nll_mixture"] for r in records]))
    for name in records[0]["other_selections"]:
        others = [r["other_selections"][name] for r in records]
        print(f"{'  selection: ' + name:34s}", *(cell([o[c] for o in others]) for c in columns[:2]))
    print(f"{'  median NLL over the runs':34s}{np.median([r['nll'] for r in records]):10.3f}")
    for name, figures in MEASURED.get(dataset, {}).items():
        shown = "".join(f"{'-' if f is None else f'{f:.3f}':>16s}" for f in figures)
        print(f"{'measured:  ' + name:34s}{shown}")
    for name, figures in TABLE_I[dataset].items():
        print(f"{'published: ' + name:34s}" + "".join(f"{f:16.2f}" for f in figures))


def min_ranks(values):
    """Ranks from 1 for the lowest by Table I's rule: equal to two decimals is the same rank."""
    return rankdata(np.round(values, 2), method="min")


def print_mean_ranks(tables):
    """Table I's last row over the sets run, with ours as a seventh method."""
    names = [*TABLE_I["yacht"], "skuq"]
    for k, (metric, key) in enumerate((("NLL", "nll"), ("RMSE", "rmse"))):
        ranks = []
        for dataset, records in tables.items():
            ours = np.mean([r[key] for r in records])
            values = [*(TABLE_I[dataset][n][k] for n in names[:-1]), ours]
            ranks.append(min_ranks(values))
        shown = ", ".join(f"{n} {r:.1f}" for n, r in zip(names, np.mean(ranks, axis=0)))
        print(f"mean rank by {metric} over {list(tables)}: {shown}")
    print("(yearprediction, the paper's tenth set, is not available here.)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["concrete"], choices=sorted(TABLE_I))
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--n-trials", type=int, default=100)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--search", default="agebo")
    parser.add_argument("--validation", type=int, help="folds of each trial")
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--protocol", choices=["splits", "paper"], default="splits")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 11), help="of the paper")
    parser.add_argument("--catalog-dir", type=Path, help="keeps the trials of interrupted runs")
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    paper = arguments.protocol == "paper"
    settings = {
        "n_trials": 500 if paper else arguments.n_trials,
        "n_jobs": arguments.n_jobs,
        "search": arguments.search,
    }
    settings |= {n: v for n, v in [("cv", arguments.validation), ("refit", arguments.refit)] if v}
    seeds = [(0, seed) for seed in arguments.seeds]
    runs = seeds if paper else [(split, split + 1) for split in arguments.splits]
    tables = {}
    for dataset in arguments.dataset:
        for split, seed in [] if arguments.summary else runs:
            known = matching(read(RESULTS), arguments.protocol, dataset, settings)
            if any((r["split"], r["seed"]) == (split, seed) for r in known):
                continue
            record = {
                "protocol": arguments.protocol,
                "dataset": dataset,
                "split": split,
                "seed": seed,
                "settings": settings,
                **run(
                    uci(arguments.data_dir, dataset, split), seed, settings, arguments.catalog_dir
                ),
            }
            add(RESULTS, record)
        known = matching(read(RESULTS), arguments.protocol, dataset, settings)
        shown = [r for r in known if (r["split"], r["seed"]) in runs]
        if shown:
            print_table(dataset, shown)
            tables[dataset] = shown
    if paper and tables:
        print_mean_ranks(tables)


if __name__ == "__main__":
    main()
