"""Searches and the one recipe at equal wall time.

    python benchmarks/equal_time.py --data-dir ../shared/data --seconds 60 --sets yacht --splits 0
    python benchmarks/equal_time.py --summary

Every method gets the same seconds and the same two jobs:

- "autodeuq": `AutoDEUQRegressor(max_time=...)`, or the classifier.
- "recipe": `TabularEnsembleRegressor`, or the classifier, with as many members as the time allows.
- "random": AutoDEUQ with random search in the same space.
- "agebo": AutoDEUQ with AgEBO in the same space.
- "nes": `NESClassifier(max_time=...)`, if it is asked for.

Each method runs in a process of its own, which has imported everything and trained a small network
before the clock starts. Finished runs are written to ``benchmarks/results/equal_time.json`` at once
and not repeated. `--summary` prints; docs/results/equal_time.md has the table.

    python benchmarks/equal_time.py --data-dir ../shared/data --sets ecoli pima --splits 0 1 2
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from _stored import STORED, add, matches, read
from classes import suite
from leaderboard import class_data, regression_data
from tabular import SMALL

RESULTS = STORED / "equal_time.json"
LARGER = ("kin8nm", "power")
LARGE_CLASSES = ("letter", "pendigits", "adult", "bank", "electricity")
METHODS = ("autodeuq", "recipe", "random", "agebo")
N_JOBS = 2


def make(method, classes, seconds, seed):
    """Make the estimator of a method."""
    import skuq

    kind = "Classifier" if classes else "Regressor"
    if method == "recipe":
        return getattr(skuq, f"TabularEnsemble{kind}")(max_time=seconds, random_state=seed)
    settings = {"search": method} if method in ("random", "agebo") else {}
    return getattr(skuq, f"{'NES' if method == 'nes' else 'AutoDEUQ'}{kind}")(
        max_time=seconds, n_jobs=N_JOBS, random_state=seed, **settings
    )


def fit_recipe(model, seconds, X, y):
    """Fit the recipe with as many members as a first fit shows there is time for."""
    started = time.perf_counter()
    model.fit(X, y)
    used = time.perf_counter() - started
    n_members = len(model.members_)
    n_more = int(n_members * 0.9 * (seconds - used) / used)
    if n_more > n_members:
        model.set_params(n_members=n_more).fit(X, y)
    return time.perf_counter() - started


def data(data_dir, name, split):
    """X, y of the training and of the test part; y is of floats if it is a number."""
    if name in LARGE_CLASSES:
        return class_data(data_dir, name, split)
    if name in (*SMALL, *LARGER):
        X, y, X_test, y_test = regression_data(data_dir, name, split)
        return X, y.astype(float), X_test, y_test.astype(float)
    return next(parts for found, k, parts in suite(data_dir) if (found, k) == (name, split))


def run(method, name, split, seconds, data_dir):
    """Fit one method in this process; return its scores."""
    from skuq.metrics import crps_loss, gaussian_nll_loss

    X, y, X_test, y_test = data(data_dir, name, split)
    classes = y.dtype.kind not in "f"
    small = np.random.default_rng(0).normal(size=(64, 3))
    warm = make("recipe", False, seconds, 0).set_params(n_members=1, epochs=2)
    warm.fit(small, small[:, 0])
    model = make(method, classes, seconds, split)
    started = time.perf_counter()
    if method == "recipe":
        fit_recipe(model, seconds, X, y)
    else:
        model.fit(X, y)
    result = {"seconds": time.perf_counter() - started}
    log_likelihood = model.log_prob(X_test, y_test)
    nll = float(-np.mean(log_likelihood))  # of the predicted distribution itself
    result |= {"nll": nll, "own_nll": nll, "n_networks": len(model.fitted_.members)}
    if not classes:
        mean, std = model.predict(X_test, return_std=True)
        result["nll"] = float(gaussian_nll_loss(y_test, mean, std))
        result["crps"] = float(crps_loss(y_test, mean, std))
        result["rmse"] = float(np.sqrt(np.mean((mean - y_test) ** 2)))
        low, high = model.predict_interval(X_test, coverage=0.9).T
        result["coverage"] = float(np.mean((low <= y_test) & (y_test <= high)))
    if method != "recipe":
        result |= model.catalog_.to_frame()["status"].value_counts().to_dict()
    return result


def stored(records, **key):
    """The record of one fit, or None."""
    return next((r for r in records if matches(r, key)), None)


def own_nll(record):
    """The NLL of the predicted distribution itself; older records have that of a normal alone."""
    return record.get("own_nll", record["nll"])


def crps(record):
    """The CRPS in brackets, of numbers."""
    return f" ({record['crps']:.4f})" if "crps" in record else ""


def summarise(budget):
    """Print each set's NLL (CRPS), and AutoDEUQ's difference to the others in pairs."""
    records = [record for record in read(RESULTS) if record["budget"] == budget]
    pairs = sorted({(record["set"], record["split"]) for record in records})
    found = {
        method: {p: stored(records, method=method, set=p[0], split=p[1]) for p in pairs}
        for method in METHODS
    }
    print(f"\n{budget:g} s: NLL of the test rows (CRPS)")
    print(" " * 24 + "".join(f"{method:>20s}" for method in METHODS))
    for pair in pairs:
        cells = [found[method][pair] for method in METHODS]
        shown = ["-" if r is None else f"{own_nll(r):.3f}{crps(r)}" for r in cells]
        print(f"{pair[0]:20s}{pair[1]:4d}" + "".join(f"{cell:>20s}" for cell in shown))
    ours = found["autodeuq"]
    for other in METHODS[1:]:
        common = [p for p in pairs if ours[p] is not None and found[other][p] is not None]
        if not common:
            continue
        nll = np.array([own_nll(ours[p]) - own_nll(found[other][p]) for p in common])
        error = nll.std(ddof=1) / np.sqrt(len(nll)) if len(nll) > 1 else 0.0
        print(
            f"autodeuq - {other}: mean {nll.mean():+.3f} ± {error:.3f}, median "
            f"{np.median(nll):+.3f}; level or ahead on {np.mean(nll <= 0.01 + error):.0%} "
            f"of {len(nll)}"
        )


def run_in_process(key, data_dir):
    """Run one fit in a process of its own, and return what is recorded of it."""
    command = [sys.executable, __file__, "--child", "--data-dir", str(data_dir)]
    command += ["--methods", key["method"], "--sets", key["set"], "--splits", str(key["split"])]
    command += ["--seconds", str(key["budget"])]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(f"{key} failed:\n{found.stderr[-3000:]}")
    return json.loads(found.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0, 300.0])
    parser.add_argument("--sets", nargs="+", default=[*SMALL, *LARGER])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        warnings.simplefilter("ignore")
        cell = arguments.methods[0], arguments.sets[0], arguments.splits[0], arguments.seconds[0]
        print(json.dumps(run(*cell, arguments.data_dir)))
        return
    for seconds in arguments.seconds:
        for name in [] if arguments.summary else arguments.sets:
            splits = arguments.splits[: 1 if name in (*LARGER, *LARGE_CLASSES) else None]
            for split, method in itertools.product(splits, arguments.methods):
                key = {"method": method, "set": name, "split": split, "budget": seconds}
                if not stored(read(RESULTS), **key):
                    record = key | run_in_process(key, arguments.data_dir)
                    add(RESULTS, record)
                    print(record, flush=True)
        summarise(seconds)


if __name__ == "__main__":
    main()
