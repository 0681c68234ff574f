"""NOMU as it is by default, on eight rows without noise, beside a Gaussian process.

    python benchmarks/nomu_defaults.py [--methods nomu gp ..] [--seeds 10] [--summary]

Ten functions of one feature from skuq.datasets, 8 uniform rows and 100 to test on, the same draws
as in ``benchmarks/nomu.py``. Nothing is chosen on test rows: every model says its mean and its
standard deviation. NLL is without its constant, in units of y, a number a problem. Seconds are
those of the processor.

nomu: ``NOMURegressor(random_state=seed)``.
nomu_noiseless: the same with ``noise_std=0.0``, which says that there is none.
nomu_numbers: ``l_min=0.001, l_max=2, c=1``: nothing is chosen.
gp: scikit-learn's, a constant times RBF, alpha 1e-7, three restarts; std at least 0.001.

Each fit is kept at once in nomu_defaults.json in `--results-dir`, and not repeated but with
`--redo`: the script may be stopped at any time.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from _stored import STORED, matches, read, write
from problems import make_function, make_scarce_regression
from problems.functions import FUNCTIONS_1D
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import NOMURegressor
from skuq.exceptions import SmallValidationWarning
from skuq.networks import NOMUReadout

GP_FLOOR = 1e-3  # least std of a Gaussian process
CHANGES = {
    "nomu": {},
    "nomu_noiseless": {"noise_std": 0.0},
    "nomu_numbers": {"readout": NOMUReadout(l_min=0.001, l_max=2.0, c=1.0)},
}
METHODS = (*CHANGES, "gp")


def problem(function, seed):
    """(X_train, y_train, X_test, y_test)."""
    random_state = 1000 * FUNCTIONS_1D.index(function) + seed  # other points for each function
    return make_scarce_regression(make_function(function, 1), random_state=random_state)


def make_model(method, seed):
    if method != "gp":
        return NOMURegressor(random_state=seed, **CHANGES[method])
    bounds = (1e-5, 1e5)
    kernel = ConstantKernel(1.0, bounds) * RBF(1.0, bounds)
    return GaussianProcessRegressor(kernel, alpha=1e-7, n_restarts_optimizer=3, random_state=seed)


def mean_std(model, X):
    mean, std = model.predict(X, return_std=True)
    floor = GP_FLOOR if isinstance(model, GaussianProcessRegressor) else 0.0
    return mean, np.maximum(std, floor)


def run(method, function, seed):
    """Fit one model; how good its mean and its band are."""
    X, y, X_test, y_test = problem(function, seed)
    model = make_model(method, seed)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.process_time() - started
    mean, std = mean_std(model, X_test)
    z = (y_test - mean) / std
    at_rows = mean_std(model, X)
    return {
        "nll": float(np.mean(np.log(std) + 0.5 * z**2)),
        "coverage": float(np.mean(abs(z) <= 2)),
        "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2))),
        "rmse_at_rows": float(np.sqrt(np.mean((y - at_rows[0]) ** 2))),
        "std_at_rows": float(np.mean(at_rows[1])),
        "std": float(np.mean(std)),
        "seconds": seconds,
    }


def run_missing(path, arguments):
    for seed in range(arguments.seeds):
        for function in FUNCTIONS_1D:
            for method in arguments.methods:
                key = {"method": method, "function": function, "seed": seed}
                records = read(path)
                others = [r for r in records if not matches(r, key)]
                if len(others) < len(records) and not arguments.redo:
                    continue
                found = run(method, function, seed)
                rounded = {name: float(f"{value:.6g}") for name, value in found.items()}
                write(path, [*others, key | rounded])
                print(f"{function} {seed} {method}: {found['nll']:.2f}", flush=True)


def print_summary(records):
    for method in METHODS:
        found = [r for r in records if r["method"] == method]
        if found:
            nll = np.array([r["nll"] for r in found])
            cells = {
                "problems": len(found),
                "median NLL": np.median(nll),
                "worst": nll.max(),
                "coverage": np.mean([r["coverage"] for r in found]),
                "RMSE": np.median([r["rmse"] for r in found]),
                "std at rows": np.median([r["std_at_rows"] for r in found]),
                "std": np.median([r["std"] for r in found]),
                "seconds": np.median([r["seconds"] for r in found]),
            }
            print(method, ", ".join(f"{name} {value:.3g}" for name, value in cells.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    path = arguments.results_dir / "nomu_defaults.json"
    if not arguments.summary:
        run_missing(path, arguments)
    print_summary(read(path))


if __name__ == "__main__":
    main()
