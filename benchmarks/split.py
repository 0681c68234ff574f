"""The split into noise and model: errors of the mean beside epistemic standard deviations.

    python benchmarks/split.py [--tasks smooth60 ..] [--methods neon plain ..] [--seeds 0 1 ..]
    python benchmarks/split.py --summary

Values of a smooth function of three inputs, with noise of a known size. The epistemic factor is the
root mean square of the mean's errors at new inputs, against the function without noise, each
divided by its epistemic standard deviation: 1 if these are right. Every finished fit is written to
split.json in ``--results-dir`` at once and not repeated.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from _stored import STORED, add, matches, read, rounded
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skuq import (
    AutoDEUQRegressor,
    DeepEnsembleRegressor,
    HyperDeepEnsembleRegressor,
    MCDropoutRegressor,
    NEONRegressor,
    NOMURegressor,
    OperatorEnsembleRegressor,
    TabularEnsembleRegressor,
)

FILE = "split.json"
KEY = ("task", "method", "seed")
#: Number of rows, and standard deviation of the noise; that of the function is 0.85.
TASKS = {
    "smooth20": (20, 0.2),
    "smooth60": (60, 0.2),
    "smooth400": (400, 0.2),
    "quiet100": (100, 0.01),
}
#: Makers of regressors, from the noise and a seed.
METHODS = {
    "autodeuq": lambda noise, seed: AutoDEUQRegressor(n_trials=12, random_state=seed),
    "tabular": lambda noise, seed: TabularEnsembleRegressor(random_state=seed),
    "plain": lambda noise, seed: DeepEnsembleRegressor(random_state=seed),
    "hyper": lambda noise, seed: HyperDeepEnsembleRegressor(random_state=seed),
    "mc dropout": lambda noise, seed: MCDropoutRegressor(random_state=seed),
    "neon": lambda noise, seed: NEONRegressor(random_state=seed),
    "neon, known noise": lambda noise, seed: NEONRegressor(noise_std=noise, random_state=seed),
    "operator ensemble": lambda noise, seed: OperatorEnsembleRegressor(random_state=seed),
    "nomu": lambda noise, seed: NOMURegressor(random_state=seed),
    "gp": lambda noise, seed: GaussianProcess(),
}
_N_NEW = 2000


class GaussianProcess:
    """scikit-learn's Gaussian process with a length scale an input and noise that it learns."""

    def fit(self, X, y):
        kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), nu=2.5) + WhiteKernel()
        self.model = GaussianProcessRegressor(
            kernel, normalize_y=True, n_restarts_optimizer=5, random_state=0
        ).fit(X, y)
        self.noise = np.sqrt(self.model.kernel_.k2.noise_level) * y.std()
        return self

    def predict_parts(self, X):
        mean, total = self.model.predict(X, return_std=True)
        return mean, np.full(len(X), self.noise), np.sqrt(total**2 - self.noise**2)


def function(X):
    """A smooth function of three inputs."""
    return np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.5 * X[:, 0] * X[:, 2]


def predict_parts(model, X):
    """Mean, and standard deviations of noise and model."""
    if isinstance(model, GaussianProcess):
        return model.predict_parts(X)
    parts = model.predict_uncertainty(X)
    return parts.mean, parts.aleatoric, parts.epistemic


def run_missing(path, task, method, seed):
    key = dict(zip(KEY, (task, method, seed)))
    if any(matches(record, key) for record in read(path)):
        return
    n, std = TASKS[task]
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    y = function(X) + std * rng.normal(size=n)
    T = rng.uniform(-1, 1, (_N_NEW, 3))
    truth, t = function(T), function(T) + std * rng.normal(size=_N_NEW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = METHODS[method](std, seed).fit(X, y)
        mean, aleatoric, epistemic = predict_parts(model, T)
    error = mean - truth
    half = 1.645 * np.hypot(aleatoric, epistemic)
    record = key | {
        "factor": float(np.sqrt(np.mean((error / epistemic) ** 2))),
        "ratio": float(np.sqrt(np.mean(error**2) / np.mean(epistemic**2))),
        "error": float(np.sqrt(np.mean(error**2))),
        "noise_std": float(np.mean(aleatoric)),
        "coverage": float(np.mean(np.abs(t - mean) <= half)),
    }
    add(path, rounded(record, 4))
    print(record, flush=True)


def summarise(path):
    titles = ("factor", "ratio", "error", "noise", "90 %")
    print(f"{'task':11s}{'method':>18s}{'seeds':>6s}" + "".join(f"{title:>8s}" for title in titles))
    for task in TASKS:
        for method in METHODS:
            found = [r for r in read(path) if (r["task"], r["method"]) == (task, method)]
            if found:
                names = ("factor", "ratio", "error", "noise_std", "coverage")
                medians = [np.median([r[name] for r in found]) for name in names]
                text = "".join(f"{median:8.3g}" for median in medians)
                print(f"{task:11s}{method:>18s}{len(found):6d}{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    path = arguments.results_dir / FILE
    for seed in [] if arguments.summary else arguments.seeds:
        for method in arguments.methods:
            for task in arguments.tasks:
                run_missing(path, task, method, seed)
    summarise(path)


if __name__ == "__main__":
    main()
