"""NEON's defaults on tables: coverage and likelihood beside the plain ensemble's.

    python benchmarks/neon.py --data-dir DIR [--sets yacht wine] [--splits 0 1]

Every finished run is written to ``benchmarks/results/neon.json`` at once and not repeated. Splits
are those of the UCI sets, and scores those of benchmarks/leaderboard.py: NLL of the normal with the
predicted mean and standard deviation, and coverage of the method's own 90 % interval. Defaults were
chosen on inner parts of training rows. Functions are in benchmarks/bo.py (`--only operator`).
"""

import argparse
import warnings
from pathlib import Path

from _stored import STORED, add, matches, read
from leaderboard import from_estimator, regression_data, regression_scores
from tabular import SMALL

from skuq import DeepEnsembleRegressor, NEONRegressor, OperatorEnsembleRegressor

RESULTS = STORED / "neon.json"
METHODS = {
    "neon": from_estimator(lambda: NEONRegressor(random_state=0)),
    "plain": from_estimator(lambda: DeepEnsembleRegressor(random_state=0)),
    "operator ensemble": from_estimator(lambda: OperatorEnsembleRegressor(random_state=0)),
}
KEY = ("set", "split", "method")


def run_missing(data_dir, name, split, method):
    key = dict(zip(KEY, (name, split, method)))
    if any(matches(record, key) for record in read(RESULTS)):
        return
    X, y, X_test, y_test = regression_data(data_dir, name, split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = key | regression_scores(METHODS[method](X, y, X_test), y_test)
    add(RESULTS, record)
    print(record, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=["neon", "plain"], choices=list(METHODS))
    arguments = parser.parse_args()
    for split in arguments.splits:
        for name in arguments.sets:
            for method in arguments.methods:
                run_missing(arguments.data_dir, name, split, method)


if __name__ == "__main__":
    main()
