"""Seconds of every score on a million rows.

    python benchmarks/metrics.py [--n-rows 1000000] [--repeats 3]

Ensembles have 5 members, classes are 10, draws 20 and quantiles 9; every call has weights.
The goal is below 1 s, and below 3 s for what sorts. Prints a table, the median of the
repeats, and writes ``benchmarks/results/metrics.json`` if there are a million rows.
"""

import argparse
import platform
import statistics
import time

import numpy as np
from _stored import STORED, write

from skuq import metrics

RESULTS = STORED / "metrics.json"
N_MEMBERS, N_CLASSES, N_DRAWS = 5, 10, 20
LEVELS = np.linspace(0.1, 0.9, 9)
FULL_SIZE = 1_000_000
GOALS = {"plain": 1.0, "sorts": 3.0}


def cases(n):
    """(name, arguments, keywords, whether it sorts) of each timing."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2, n)
    y = mean + 1.3 * std * rng.standard_normal(n)
    loc = mean + rng.normal(0, 0.3, (N_MEMBERS, n))
    scale = rng.uniform(0.5, 2, (N_MEMBERS, n))
    normal, mixture = (y, mean, std), (y, loc, scale)
    ends = mean - 1.6 * std, mean + 1.6 * std
    weight = {"sample_weight": rng.uniform(0.5, 2, n)}
    for name in ("gaussian_nll_loss", "crps_loss", "nll_min_loss", "coverage_width_auc"):
        yield name, normal, weight, False
    for name in ("mixture_nll_loss", "crps_mixture_loss"):
        yield name, mixture, weight, False
    yield "coverage_width_curve", normal, weight, True
    samples = mean[:, None] + std[:, None] * rng.standard_normal((n, N_DRAWS))
    yield "crps_sample_loss", (y, samples), weight, True
    del samples
    yield "coverage_score", (y, *ends), weight, False
    yield "interval_loss", (y, *ends, 0.9), weight, False
    yield "mean_width", ends, weight, False
    quantiles = mean[:, None] + std[:, None] * np.linspace(-1.3, 1.3, len(LEVELS))
    yield "quantile_loss", (y, quantiles, LEVELS), weight, False
    del quantiles
    yield "pit_values", normal, {}, False
    yield "mixture_pit_values", mixture, {}, False
    yield "quantile_calibration_curve", normal, weight, False
    yield "calibration_error", normal, weight, False
    yield "miscalibration_area", normal, weight, True
    yield "sharpness", (std,), weight, False
    errors = (y - mean) ** 2
    for name in ("error_retention_curve", "retention_auc", "aurc_loss"):
        yield name, (errors, std), weight, True
    yield "ood_auroc_score", (std[: n // 2], 1.2 * std[n // 2 :]), weight, True
    del mean, std, loc, scale, normal, mixture, ends, errors

    members = rng.gamma(0.3, size=(N_MEMBERS, n, N_CLASSES))
    members /= members.sum(axis=2, keepdims=True)
    proba, labels = members.mean(axis=0), rng.integers(N_CLASSES, size=n)
    for name in ("brier_loss", "ece_loss", "classwise_ece_loss"):
        yield name, (labels, proba), weight, False
    for name in ("ece_loss", "classwise_ece_loss"):
        yield name, (labels, proba), {**weight, "strategy": "quantile"}, True
    yield "predictive_entropy", (proba,), {}, False
    for name in ("ensemble_nll_loss", "average_member_nll_loss", "oracle_nll_loss"):
        yield name, (labels, members), weight, False
    yield "disagreement_score", (members,), weight, False
    yield "mutual_information", (members,), {}, False


def seconds(function, arguments, keywords):
    started = time.perf_counter()
    function(*arguments, **keywords)
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-rows", type=int, default=FULL_SIZE)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    print(f"{'score':45s} {'s':>7s}  goal")
    for name, given, keywords, sorts in cases(arguments.n_rows):
        timings = [
            seconds(getattr(metrics, name), given, keywords) for _ in range(arguments.repeats)
        ]
        strategy = keywords.get("strategy")
        label = f"{name}, {strategy} bins" if strategy else name
        took, goal = statistics.median(timings), GOALS["sorts" if sorts else "plain"]
        rows.append({"score": label, "seconds": round(took, 4), "goal": goal, "met": took < goal})
        print(f"{label:45s} {took:7.3f}  < {goal:g} {'' if took < goal else 'MISSED'}", flush=True)
    if arguments.n_rows == FULL_SIZE:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        setting = {"n_rows": FULL_SIZE, "repeats": arguments.repeats}
        write(RESULTS, {**setting, **versions, "rows": rows})


if __name__ == "__main__":
    main()
