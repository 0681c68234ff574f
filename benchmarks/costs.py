"""Processor seconds of a fit with default settings, at 1,000, 10,000 and 100,000 rows.

    python benchmarks/costs.py [--only tabular plain] [--rows 1000 10000]

Friedman's function of ten features with noise; classes are the terciles of its values. Each fit is
the first of a process of its own, so that importing TensorFlow and compiling count. Processor time
of all threads and child processes, which other work on the machine hardly changes, and the seconds
that passed, which it does. Every fit is kept in ``benchmarks/results/costs.json`` and not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from _stored import STORED, read, write
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skuq

RESULTS = STORED / "costs.json"
FEW, SOME, MANY = 1_000, 10_000, 100_000
# {name: (estimator, largest number of rows)}
CASES = {
    "tabular": (skuq.TabularEnsembleRegressor(random_state=0), MANY),
    "tabular, classes": (skuq.TabularEnsembleClassifier(random_state=0), MANY),
    "plain": (skuq.DeepEnsembleRegressor(random_state=0), MANY),
    "mc dropout": (skuq.MCDropoutRegressor(random_state=0), MANY),
    "hyper ensemble": (skuq.HyperDeepEnsembleRegressor(random_state=0), SOME),
    "nomu": (skuq.NOMURegressor(random_state=0), FEW),
    "neon": (skuq.NEONRegressor(random_state=0), FEW),
    "operator ensemble": (skuq.OperatorEnsembleRegressor(random_state=0), FEW),
    "nes": (skuq.NESRegressor(space="dense", random_state=0), FEW),
    "autodeuq": (skuq.AutoDEUQRegressor(random_state=0), FEW),
    "boosting": (HistGradientBoostingRegressor(random_state=0), MANY),
    "gaussian process": (
        GaussianProcessRegressor(RBF(np.ones(10)) + WhiteKernel(), normalize_y=True),
        FEW,
    ),
}


def processor_seconds():
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def fit(name, n_rows):
    """Seconds of one fit, as a record."""
    X, y = make_friedman1(n_samples=n_rows, n_features=10, noise=1.0, random_state=0)
    if "classes" in name:
        y = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    processor, clock = processor_seconds(), time.perf_counter()
    CASES[name][0].fit(X, y)
    return {
        "method": name,
        "rows": n_rows,
        "processor_seconds": processor_seconds() - processor,
        "seconds": time.perf_counter() - clock,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--rows", nargs="*", type=int, default=[FEW, SOME, MANY])
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)  # what the child processes run
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps(fit(arguments.fit[0], int(arguments.fit[1]))))
        return
    kept = read(RESULTS)
    done = {(record["method"], record["rows"]) for record in kept}
    for n_rows in arguments.rows:
        for name in arguments.only:
            if (name, n_rows) in done or n_rows > CASES[name][1]:
                continue
            command = [sys.executable, __file__, "--fit", name, str(n_rows)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            kept.append(json.loads(run.stdout.splitlines()[-1]))
            write(RESULTS, kept)
            print(kept[-1], flush=True)


if __name__ == "__main__":
    main()
