"""The baselines on the UCI splits: deep ensembles, hyper deep ensembles, MC dropout.

    python benchmarks/ensembles.py --data-dir DIR [--dataset boston ..] [--splits 0 1 ..]

Prints NLL (of the moment-matched normal), RMSE, coverage of the 90 % interval and seconds,
mean and standard error over splits, beside the published figures of the AutoDEUQ paper's
Table I. Adds to ``benchmarks/results/ensembles.json``; what it holds is not run again,
and `--summary` prints it. `--set name=value ..` changes parameters of all estimators.
"""

import argparse
import ast
import json
import time
import warnings
from pathlib import Path

import numpy as np
from _data import uci
from _stored import STORED, matches, read, write
from published import TABLE_I
from uci_regression import scores

import skuq

RESULTS = STORED / "ensembles.json"
METHODS = {
    "deep ensemble": "DeepEnsembleRegressor",
    "hyper ensemble": "HyperDeepEnsembleRegressor",
    "MC dropout": "MCDropoutRegressor",
}
COLUMNS = ("nll", "rmse", "coverage_90", "seconds")


def run(data_dir, dataset, split, method, settings):
    X, y, X_test, y_test = uci(data_dir, dataset, split)
    estimator = getattr(skuq, METHODS[method])(random_state=split).set_params(**settings)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", skuq.exceptions.SmallValidationWarning)
        estimator.fit(X, y)
    seconds = time.perf_counter() - started
    return {**scores(estimator.predict_distribution(X_test), y_test), "seconds": seconds}


def cell(values):
    values = np.asarray(values)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():8.3f} ± {error:.3f}"


def print_table(records):
    for dataset in sorted({record["dataset"] for record in records}):
        print(f"\n{dataset}")
        print(f"{'':16s}{'splits':>7s}" + "".join(f"{name:>18s}" for name in COLUMNS))
        for method in METHODS:
            rows = [r for r in records if (r["dataset"], r["method"]) == (dataset, method)]
            for settings in sorted({json.dumps(r["settings"]) for r in rows}):
                found = [r for r in rows if json.dumps(r["settings"]) == settings]
                cells = "".join(f"{cell([r[name] for r in found]):>18s}" for name in COLUMNS)
                print(f"{method:16s}{len(found):7d}{cells}  {'' if settings == '{}' else settings}")
            nll, rmse = TABLE_I.get(dataset, {}).get(method, (np.nan, np.nan))
            print(f"{'  published':23s}{nll:12.2f}{'':6s}{rmse:12.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["boston", "concrete", "energy", "yacht"])
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    settings = {}
    for pair in arguments.set:
        name, value = pair.split("=", 1)
        try:
            settings[name] = ast.literal_eval(value)
        except ValueError:
            settings[name] = value
    records = read(RESULTS)
    for dataset in [] if arguments.summary else arguments.dataset:
        for method in arguments.method:
            for split in arguments.splits:
                key = {"dataset": dataset, "method": method, "split": split, "settings": settings}
                if any(matches(record, key) for record in records):
                    continue
                outcome = run(arguments.data_dir, dataset, split, method, settings)
                records.append(key | outcome)
                write(RESULTS, records)
    print_table(records)


if __name__ == "__main__":
    main()
