"""NEON with noise, learnt or known: errors of the mean beside epistemic deviations.

    python benchmarks/neon_noise.py [--tasks smooth60 ..] [--seeds 0 1 ..] [--summary]

The epistemic factor is the root mean square of the mean's errors at new inputs, against the
function without noise, each divided by its epistemic standard deviation: 1 if these are right.
Every finished fit is written to neon_noise.json in ``--results-dir`` at once and not repeated.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from _stored import STORED, add, matches, read, rounded

from skuq import NEONRegressor

FILE = "neon_noise.json"
KEY = ("task", "seed", "noise")
NOISES = ("learnt", "known")
#: Number of rows, and standard deviation of the noise; that of the function is 0.85.
TASKS = {
    "smooth20": (20, 0.2),
    "smooth60": (60, 0.2),
    "smooth400": (400, 0.2),
    "quiet100": (100, 0.01),
}
_N_NEW = 2000


def function(X):
    """A smooth function of three inputs."""
    return np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.5 * X[:, 0] * X[:, 2]


def run_missing(path, task, seed, noise):
    key = dict(zip(KEY, (task, seed, noise)))
    if any(matches(record, key) for record in read(path)):
        return
    n, std = TASKS[task]
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    y = function(X) + std * rng.normal(size=n)
    T = rng.uniform(-1, 1, (_N_NEW, 3))
    truth, t = function(T), function(T) + std * rng.normal(size=_N_NEW)
    model = NEONRegressor(noise="auto" if noise == "learnt" else std, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    parts = model.predict_uncertainty(T)
    low, high = model.predict_interval(T, 0.9).T
    record = key | {
        "factor": float(np.sqrt(np.mean(((parts.mean - truth) / parts.epistemic) ** 2))),
        "error": float(np.sqrt(np.mean((parts.mean - truth) ** 2))),
        "noise_std": float(np.mean(parts.aleatoric)),
        "coverage": float(np.mean((low <= t) & (t <= high))),
    }
    add(path, rounded(record, 4))
    print(record, flush=True)


def summarise(path):
    titles = ("factor", "error", "noise", "90 %")
    print(f"{'task':11s}{'noise':>7s}{'seeds':>6s}" + "".join(f"{title:>8s}" for title in titles))
    for task in TASKS:
        for noise in NOISES:
            found = [r for r in read(path) if (r["task"], r["noise"]) == (task, noise)]
            if found:
                names = ("factor", "error", "noise_std", "coverage")
                medians = [np.median([r[name] for r in found]) for name in names]
                text = "".join(f"{median:8.3g}" for median in medians)
                print(f"{task:11s}{noise:>7s}{len(found):6d}{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    path = arguments.results_dir / FILE
    for seed in [] if arguments.summary else arguments.seeds:
        for task in arguments.tasks:
            for noise in NOISES:
                run_missing(path, task, seed, noise)
    summarise(path)


if __name__ == "__main__":
    main()
