"""The baselines on the UCI splits: deep ensembles, hyper deep ensembles, MC dropout.

    python benchmarks/ensembles.py --data-dir DIR [--dataset boston ..] [--splits 0 1 ..]

Adds NLL (of the moment-matched normal), RMSE, coverage of the 90 % interval and seconds to
``benchmarks/results/ensembles.json``; what it holds is not run again. `--set name=value ..`
changes parameters of all estimators.
"""

import argparse
import ast
import time
import warnings
from pathlib import Path

from _data import uci
from _stored import STORED, matches, read, write
from uci_regression import scores

import skuq

RESULTS = STORED / "ensembles.json"
METHODS = {
    "deep ensemble": "DeepEnsembleRegressor",
    "hyper ensemble": "HyperDeepEnsembleRegressor",
    "MC dropout": "MCDropoutRegressor",
}


def run(data_dir, dataset, split, method, settings):
    X, y, X_test, y_test = uci(data_dir, dataset, split)
    estimator = getattr(skuq, METHODS[method])(random_state=split).set_params(**settings)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", skuq.exceptions.SmallValidationWarning)
        estimator.fit(X, y)
    seconds = time.perf_counter() - started
    return {**scores(estimator.predict_distribution(X_test), y_test), "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["boston", "concrete", "energy", "yacht"])
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    settings = {}
    for pair in arguments.set:
        name, value = pair.split("=", 1)
        try:
            settings[name] = ast.literal_eval(value)
        except ValueError:
            settings[name] = value
    records = read(RESULTS)
    for dataset in arguments.dataset:
        for method in arguments.method:
            for split in arguments.splits:
                key = {"dataset": dataset, "method": method, "split": split, "settings": settings}
                if any(matches(record, key) for record in records):
                    continue
                outcome = run(arguments.data_dir, dataset, split, method, settings)
                records.append(key | outcome)
                write(RESULTS, records)


if __name__ == "__main__":
    main()
