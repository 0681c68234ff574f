"""Measure the cost of a grid search over quick fits: processor seconds of all processes.

    python benchmarks/grid_search.py --backend loky --n-jobs 2 --grids 1

Each grid search makes nine fits of `DeepEnsembleRegressor` to 300 rows. What the first one pays to
start processes, to import libraries and to compile is the difference between one and two.
"""

import argparse
import os
import time
import warnings

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor
from sklearn.model_selection import GridSearchCV

from skuq import DeepEnsembleRegressor


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["loky", "threading"], default="loky")
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--grids", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = X[:, 0] + 0.1 * rng.normal(size=300)
    grid = {"learning_rate": [0.003, 0.01, 0.03]}
    started = time.perf_counter()
    for _ in range(arguments.grids):
        with joblib.parallel_config(backend=arguments.backend):
            search = GridSearchCV(
                DeepEnsembleRegressor(random_state=0),
                grid,
                cv=3,
                n_jobs=arguments.n_jobs,
                refit=False,
            )
            search.fit(X, y)
    seconds = time.perf_counter() - started
    get_reusable_executor().shutdown()  # only the times of ended children are counted
    processor = sum(os.times()[:4])
    print(f"{arguments}: {seconds:.1f} s, {processor:.1f} s of the processor")


if __name__ == "__main__":
    main()
