"""NEON without noise: errors beside predicted deviations, with the paper's scale and a learnt one.

    python benchmarks/neon_scale.py [--tasks sine10 bumps ..] [--seeds 0 1 ..] [--summary]

A factor is the root mean square of errors at new inputs, each divided by its predicted standard
deviation: 1 if these are right. Every finished fit is written to neon_scale.json in
``benchmarks/results`` at once and not repeated.
"""

import argparse
import time
import warnings

import numpy as np
from _stored import STORED, add, matches, read, rounded
from scipy.stats import qmc

from skuq import NEONRegressor
from skuq.datasets import make_operator_problem
from skuq.networks import ConditionedPrior

RESULTS = STORED / "neon_scale.json"
KEY = ("task", "seed", "scale")
SCALES = (0.75, "auto")
_N_NEW = 500
_POLLUTANTS = make_operator_problem("pollutants")
_WAVE_POINTS = np.linspace(0, 1, 20)


def bumps(seed):
    """Four bumps in six dimensions, as Hartmann's function has them, at random places."""
    rng = np.random.default_rng([77, seed])
    heights = rng.uniform(1, 3.2, 4)
    slopes = np.exp(rng.uniform(np.log(0.05), np.log(17), (4, 6)))
    centres = rng.uniform(0.05, 0.95, (4, 6))
    return lambda x: np.exp(-(slopes * (x[:, None] - centres) ** 2).sum(axis=-1)) @ -heights


def sine(seed):
    """A sine on a parabola, of one input."""
    return lambda x: np.sin(10 * x[:, 0] - 5) + (2 * x[:, 0] - 1) ** 2


def waves(seed):
    """Waves of different amplitude and frequency, at 20 query points."""
    amplitude, frequency = (lambda x: 0.5 + 1.5 * x[:, 1:]), (lambda x: 3 + 9 * x[:, :1])
    return lambda x: amplitude(x) * np.sin(frequency(x) * _WAVE_POINTS)


def pollutants(seed):
    """Concentrations after two spills: the NEON paper's problem."""
    low, high = _POLLUTANTS.bounds.T
    return lambda x: _POLLUTANTS(low + (high - low) * x)


#: Function, number of inputs, number of rows or functions, query points.
TASKS = {
    "sine10": (sine, 1, 10, None),
    "sine20": (sine, 1, 20, None),
    "bumps": (bumps, 6, 60, None),
    "waves12": (waves, 2, 12, _WAVE_POINTS),
    "waves40": (waves, 2, 40, _WAVE_POINTS),
    "pollutants": (pollutants, 4, 20, _POLLUTANTS.query_points),
}


def run_missing(task, seed, scale):
    key = dict(zip(KEY, (task, seed, scale)))
    if any(matches(record, key) for record in read(RESULTS)):
        return
    make, d, n, query_points = TASKS[task]
    function = make(seed)
    X = qmc.LatinHypercube(d, rng=np.random.default_rng(seed)).random(n)
    T = np.random.default_rng([seed, 1]).random((_N_NEW, d))
    model = NEONRegressor(
        query_points=query_points,
        noise_std=0.0,
        prior=ConditionedPrior(scale=scale),
        random_state=seed,
    )
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, function(X))
    seconds = time.perf_counter() - started
    mean, std = model.predict(T, return_std=True)
    truth = function(T)
    ratio = (mean - truth) / std
    record = key | {
        "factor": float(np.sqrt(np.mean(ratio**2))),
        "within_two": float(np.mean(np.abs(ratio) < 2)),
        "rmse": float(np.sqrt(np.mean((mean - truth) ** 2)) / truth.std()),
        "seconds": seconds,
    }
    add(RESULTS, rounded(record, 4))
    print(record, flush=True)


def summarise():
    print(f"{'task':12s}{'scale':>6s}{'seeds':>6s}{'factor':>8s}{'within 2':>9s}{'RMSE':>8s}")
    for task in TASKS:
        for scale in SCALES:
            found = [r for r in read(RESULTS) if (r["task"], r["scale"]) == (task, scale)]
            if found:
                medians = [
                    np.median([r[k] for r in found]) for k in ("factor", "within_two", "rmse")
                ]
                text = "".join(f"{m:{w}.3g}" for m, w in zip(medians, (8, 9, 8)))
                print(f"{task:12s}{scale!s:>6s}{len(found):6d}{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    for seed in [] if arguments.summary else arguments.seeds:
        for task in arguments.tasks:
            for scale in SCALES:
                run_missing(task, seed, scale)
    summarise()


if __name__ == "__main__":
    main()
