"""UCI regression on the standard splits: AutoDEUQ beside published and measured figures.

    python benchmarks/uci_regression.py --data-dir DIR --dataset concrete --splits 0 1 2 \
        --n-trials 100 --n-jobs 2

`--protocol paper` uses 500 trials and ten `--seeds` of the train/validation split on test
split 0 (yearprediction, the paper's tenth set, is not among the data).

Every finished run is written to ``benchmarks/results/uci_regression.json`` at once and
not repeated. With `--catalog-dir` a run that was interrupted goes on with its trials.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from _data import uci
from _stored import STORED, add, read
from published import TABLE_I

from skuq import AutoDEUQRegressor
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


def run(data, seed, settings, catalog_dir):
    """One fit and its scores, as a JSON record."""
    X, y, X_test, y_test = data
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
    }


def matching(records, protocol, dataset, settings):
    return [
        r
        for r in records
        if (r["protocol"], r["dataset"]) == (protocol, dataset)
        and {**r["settings"], "n_jobs": 0} == {**settings, "n_jobs": 0}
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["concrete"], choices=sorted(TABLE_I))
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--n-trials", type=int, default=100)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--search", default="agebo")
    parser.add_argument("--protocol", choices=["splits", "paper"], default="splits")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 11), help="of the paper")
    parser.add_argument("--catalog-dir", type=Path, help="keeps the trials of interrupted runs")
    arguments = parser.parse_args()
    paper = arguments.protocol == "paper"
    settings = {
        "n_trials": 500 if paper else arguments.n_trials,
        "n_jobs": arguments.n_jobs,
        "search": arguments.search,
    }
    seeds = [(0, seed) for seed in arguments.seeds]
    runs = seeds if paper else [(split, split + 1) for split in arguments.splits]
    for dataset in arguments.dataset:
        for split, seed in runs:
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


if __name__ == "__main__":
    main()
