"""Calibration in groups, over time and under covariate shift; uncertainty far from the data.

    python benchmarks/shift.py --data-dir DIR [--only PART ...] [--summary]

stream: a deep ensemble calibrated on the bike rentals of 2011, tested on 2012 month by month.
Truths arrive after each day, week or month, or never; or only the inputs of 2012 are known. Goal: a
coverage of 90 % intervals of 0.88 to 0.92 overall, and of at least 0.80 in each month.
classes: bank and electricity in time order, trained on the first 80 % (70 %). Labels arrive 10, 100
or 1000 at a time, or never. Goal: half of the expected calibration error and of the log loss.
groups: coverage of 90 % intervals in ten bins of the predicted standard deviation, all splits
pooled, on concrete, wine, kin8nm and protein. Goal: each bin within 0.05 of 0.90, or within two
standard errors.
epistemic: rise of the epistemic standard deviation, and NLL, on the middle third of a feature after
training on the outer thirds, and on corrupted tables.

Results are added to ``benchmarks/results/shift.json``; stored parts are not run again.
`--summary` prints what is stored.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from _data import bike, uci, uci_rows
from _stored import STORED, read, write
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import (
    CalibratedUncertaintyClassifier,
    CalibratedUncertaintyRegressor,
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    MCDropoutRegressor,
    NOMURegressor,
)
from skuq.datasets import corrupt_table
from skuq.exceptions import CalibrationWarning, SmallValidationWarning
from skuq.fitted._calibrated import classifier_distribution
from skuq.metrics import ece_loss, gaussian_nll_loss, ood_auroc_score
from skuq.predictive import CategoricalMixture
from skuq.tables import TablePreprocessor

RESULTS = STORED / "shift.json"
METHODS = ("scale", "isotonic", "conformal")
DELAYS = {"day": 24, "week": 168, "month": None, "never": 10**9}
KINDS = ("boosting", "tabular ensemble")
FOLDS = KFold(5, shuffle=True, random_state=0)
N_BINS = 10


# Bike rentals


def bike_years(data_dir):
    """Load the hours of 2011, and those of 2012 in order with their months."""
    X, y, frame = bike(data_dir)
    late = frame["yr"].to_numpy() == 1
    return X[~late], y[~late], X[late], y[late], frame["mnth"].to_numpy()[late]


def run_stream(data_dir, name, seed):
    """Run all methods and delays on one fit of the ensemble and of its folds."""
    X, y, X_late, y_late, month = bike_years(data_dir)
    found = {}
    ensemble = DeepEnsembleRegressor(random_state=seed)
    model = CalibratedUncertaintyRegressor(ensemble, cv=FOLDS).fit(X, y)
    fitted = model.estimator_
    for method in METHODS:
        start = model.set_params(method=method)._learn(model.calibration_rows_)
        model.estimator_ = Recorded(fitted.predict_distribution(X_late))
        for delay, size in DELAYS.items():
            model.calibration_ = start
            found[f"{method}, {delay}"] = follow(model, np.arange(len(y_late)), y_late, month, size)
            print(method, delay, found[f"{method}, {delay}"], flush=True)
        model.calibration_, model.estimator_ = start, fitted
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalibrationWarning)
            model.recalibrate(X_late)
        ratio = model.density_ratio_
        found[f"{method}, target"] = follow(model, X_late, y_late, month, 10**9) | {
            "n_effective": ratio.n_effective,
            "unsupported": ratio.unsupported,
            "auc": ratio.auc,
            "warned": any(w.category is CalibrationWarning for w in caught),
        }
        print(method, "target", found[f"{method}, target"], flush=True)
    return found


class Recorded:
    """Estimator with predictions made in advance; its X are positions of rows."""

    def __init__(self, mixture, classes=None):
        self.mixture = mixture
        if classes is not None:
            self.classes_ = classes

    def predict_distribution(self, X):
        if hasattr(self, "classes_"):
            return CategoricalMixture(self.mixture.proba[:, X], self.mixture.weights)
        return self.mixture.rows(X)


def follow(model, X, y, month, size):
    """Compute the coverage of 90 % intervals predicted before the truths of their rows arrive."""
    ends = np.arange(size, len(y), size) if size else np.flatnonzero(np.diff(month)) + 1
    inside, width, nll = [], [], []
    started = time.perf_counter()
    for rows in np.split(np.arange(len(y)), ends):
        distribution = model.predict_distribution(X[rows])
        low, high = distribution.interval(0.9).T
        inside.append((low <= y[rows]) & (y[rows] <= high))
        width.append(high - low)
        nll.append(-distribution.log_prob(y[rows]))
        if rows[-1] + 1 < len(y):
            model.partial_calibrate(X[rows], y[rows])
    inside = np.concatenate(inside)
    return {
        "coverage": float(inside.mean()),
        "months": [float(inside[month == m].mean()) for m in range(1, 13)],
        "width": float(np.concatenate(width).mean()),
        "nll": float(np.concatenate(nll).mean()),
        "seconds": time.perf_counter() - started,
    }


# Classes


def stream_of_classes(data_dir, name):
    if name == "bank":
        frame = pd.read_csv(
            data_dir / "tabular" / "bank_additional_full.csv.gz", keep_default_na=False
        ).drop(columns="duration")
        X, y, share = frame.drop(columns="y"), frame["y"].to_numpy() == "yes", 0.8
    else:
        frame = pd.read_csv(data_dir / "tabular" / "electricity.csv.gz")
        X, y, share = frame.drop(columns="class"), frame["class"].to_numpy() == 1, 0.7
    n = int(share * len(y))
    return X.iloc[:n], y[:n], X.iloc[n:].reset_index(drop=True), y[n:]


def run_classes(data_dir, name, seed):
    name, kind = name.split(", ")
    X, y, X_late, y_late = stream_of_classes(data_dir, name)
    if kind == "boosting":
        boosting = HistGradientBoostingClassifier(random_state=seed)
        classifier = make_pipeline(TablePreprocessor(max_categories=20), boosting)
    else:
        classifier = DeepEnsembleClassifier(network="tabular", random_state=seed)
    found = {}
    # Blocks of time: shuffled folds would know the hour of a row from its neighbours.
    model = CalibratedUncertaintyClassifier(classifier, cv=KFold(5)).fit(X, y)
    plain = model.estimator_.predict_proba(X_late)
    found["as it is, never"] = scores(y_late, plain)
    late = classifier_distribution(model.estimator_, X_late, model.classes_)
    late = Recorded(late, model.classes_)
    model.estimator_ = late
    for method in ("temperature", "vector"):
        model.set_params(method=method)
        start = model._learn(model.calibration_rows_)
        for label, size in {"10": 10, "100": 100, "1000": 1000, "never": 10**9}.items():
            model.calibration_, proba = start, []
            for rows in np.split(np.arange(len(y_late)), np.arange(size, len(y_late), size)):
                proba.append(model.predict_proba(rows))
                if rows[-1] + 1 < len(y_late):
                    model.partial_calibrate(rows, y_late[rows])
            found[f"{method}, {label}"] = scores(y_late, np.concatenate(proba))
            print(name, method, label, found[f"{method}, {label}"], flush=True)
    return found


def scores(y, proba):
    return {"log_loss": log_loss(y, proba), "ece": ece_loss(y, proba, labels=[False, True])}


# Groups


def run_groups(data_dir, name, split):
    """Count the rows in their 90 % intervals, in ten bins of the predicted std; compute the NLL."""
    X, y, X_test, y_test = uci(data_dir, name, split)
    ensemble = DeepEnsembleRegressor(random_state=split)
    model = CalibratedUncertaintyRegressor(ensemble, "conformal", cv=FOLDS).fit(X, y)
    plain = model.estimator_.predict_distribution(X_test)
    # Bins of each split, since the unit of the std may differ between fits.
    bins = np.argsort(np.argsort(plain.std)) * N_BINS // len(y_test)
    found = {
        "counts": np.bincount(bins, minlength=N_BINS).tolist(),
        "plain": {"nll": float(-plain.log_prob(y_test).mean())},
    }
    for method in METHODS:
        for groups in (None, "uncertainty"):
            model.set_params(method=method, groups=groups)
            model.calibration_ = model._learn(model.calibration_rows_)
            low, high = model.predict_interval(X_test, 0.9).T
            inside = (low <= y_test) & (y_test <= high)
            found[f"{method}, {groups}"] = {
                "held": np.bincount(bins[inside], minlength=N_BINS).tolist(),
                "nll": float(-model.log_prob(X_test, y_test).mean()),
            }
    return found


# Epistemic uncertainty


def models(seed):
    kernel = ConstantKernel() * RBF(1.0) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return {
        "plain ensemble": DeepEnsembleRegressor(random_state=seed),
        "tabular ensemble": DeepEnsembleRegressor(network="tabular", random_state=seed),
        "MC dropout": MCDropoutRegressor(random_state=seed),
        "NOMU": NOMURegressor(random_state=seed),
        "Gaussian process": make_pipeline(StandardScaler(), process),
    }


def run_epistemic(data_dir, name, feature):
    """Train on nine tenths of the outer thirds of a feature, and test on all else."""
    X, y = uci_rows(data_dir, name)
    order, third = np.argsort(X[:, feature], kind="stable"), len(y) // 3
    gap, outer = order[third:-third], np.r_[order[:third], order[-third:]]
    inside, train = np.split(np.random.default_rng(feature).permutation(outer), [len(outer) // 10])
    corrupted = corrupt_table(X[inside], "all", 5, reference=X[train], random_state=0)
    parts = {
        "inside": (X[inside], y[inside]),
        "gap": (X[gap], y[gap]),
        "corrupted": (corrupted, y[inside]),
    }
    found = {}
    for method, model in models(feature).items():
        started = time.perf_counter()
        model.fit(X[train], y[train])
        found[method] = {"seconds": time.perf_counter() - started}
        epistemic = {}
        for part, (X_part, y_part) in parts.items():
            mean, std = model.predict(X_part, return_std=True)
            if hasattr(model, "predict_uncertainty"):
                epistemic[part] = model.predict_uncertainty(X_part).epistemic
            else:  # the variance of a Gaussian process without that of its noise
                noise = np.sqrt(np.exp(model[-1].kernel_.theta[-1])) * model[-1]._y_train_std
                epistemic[part] = np.sqrt(np.maximum(std**2 - noise**2, 0))
            found[method][part] = {
                "nll": gaussian_nll_loss(y_part, mean, std),
                "rmse": float(np.sqrt(np.mean((mean - y_part) ** 2))),
                "epistemic": float(np.median(epistemic[part])),
                "auc": ood_auroc_score(epistemic["inside"], epistemic[part]),
            }
        print(name, feature, method, found[method], flush=True)
    return found


RUNS = {
    "stream": (run_stream, [("bike", 0)]),
    "classes": (
        run_classes,
        [(f"{name}, {kind}", 0) for kind in KINDS for name in ("bank", "electricity")],
    ),
    "groups": (
        run_groups,
        [(name, split) for split in range(20) for name in ("concrete", "wine")]
        + [(name, split) for split in range(3) for name in ("kin8nm", "protein")],
    ),
    "epistemic": (
        run_epistemic,
        [(name, feature) for feature in range(8) for name in ("energy", "boston", "concrete")],
    ),
}


def summary(records):
    def found(part, name=None):
        return [r["found"] for r in records if r["part"] == part and name in (None, r["name"])]

    streams = found("stream")
    for key in streams[0] if streams else ():
        runs = [run[key] for run in streams]
        coverage = np.mean([run["coverage"] for run in runs])
        worst = min(min(run["months"]) for run in runs)
        print(f"{key:20s} {coverage:.3f}  worst month {worst:.3f}", end="")
        print(f"  width {np.mean([run['width'] for run in runs]):.0f}")
    for name in (f"{name}, {kind}" for kind in KINDS for name in ("bank", "electricity")):
        for run in found("classes", name):
            for key, score in run.items():
                print(f"{name:28s} {key:20s} {score['log_loss']:.3f} {score['ece']:.3f}")
    for name in ("concrete", "wine", "kin8nm", "protein"):
        runs = found("groups", name)
        for key in [key for key in (runs[0] if runs else ()) if key not in ("counts", "plain")]:
            worst, _ = pooled_bins(runs, key)
            nll = np.mean([run[key]["nll"] - run["plain"]["nll"] for run in runs])
            print(f"{name:10s} {key:25s} worst bin off by {worst:.3f}, NLL {nll:+.4f}")


def pooled_bins(runs, key):
    """Find the largest distance of a bin's coverage from 0.90, and the bins that meet the goal."""
    counts = np.sum([run["counts"] for run in runs], axis=0)
    coverage = np.sum([run[key]["held"] for run in runs], axis=0) / counts
    allowed = np.maximum(0.05, 2 * np.sqrt(0.09 / counts))
    return abs(coverage - 0.9).max(), abs(coverage - 0.9) <= allowed


def rounded(found):
    """Round all numbers in dictionaries and lists to six decimals."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 6) if isinstance(found, float) else found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    records = read(RESULTS)
    done = {(r["part"], r["name"], r["split"]) for r in records}
    warnings.simplefilter("ignore", SmallValidationWarning)
    for part in [] if arguments.summary else arguments.only:
        run, jobs = RUNS[part]
        for name, split in jobs:
            if (part, name, split) in done:
                continue
            found = run(arguments.data_dir, name, split)
            records.append({"part": part, "name": name, "split": split, "found": rounded(found)})
            write(RESULTS, records)
    summary(records)


if __name__ == "__main__":
    main()
