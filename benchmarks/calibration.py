"""Calibrated estimators: coverage of 90 % intervals and NLL, overall and in groups.

    python benchmarks/calibration.py --data-dir DIR [--only coverage|scale] [--sets NAME ...]

coverage: a deep ensemble as it is and with each method of calibration, without and with groups by
the predicted standard deviation, on nine UCI sets and on bike rentals. These are trained on nine
tenths of 2011 and judged on the last tenth and on 2012, which is a real shift. Goals: 90 % within
two points; an NLL of the whole distribution that is not worse by more than 0.005; in ten bins of
the predicted standard deviation, all splits pooled, a coverage within 0.05 of 0.90 or within two
standard errors.
scale: MC dropout and a deep ensemble on boston, splits 0 to 4. Goal: scaling lowers the NLL of each
on every split.

Results are added to ``benchmarks/results/calibration.json``; stored runs are not repeated.
`--summary` prints what is stored.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from _data import bike, uci
from _stored import STORED, add, matches, read, rounded
from scipy.stats import binom
from sklearn.model_selection import KFold

from skuq import (
    CalibratedUncertaintyRegressor,
    DeepEnsembleRegressor,
    MCDropoutRegressor,
)
from skuq.exceptions import CalibrationWarning, SmallValidationWarning
from skuq.fitted._calibrated import FittedCalibrated
from skuq.fitted._learning import learn_calibration
from skuq.metrics import gaussian_nll_loss

RESULTS = STORED / "calibration.json"
METHODS = ("scale", "isotonic", "conformal")
# Splits of each set; the large ones take minutes each.
N_SPLITS = {
    "yacht": 10,
    "boston": 10,
    "energy": 10,
    "concrete": 10,
    "wine": 10,
    "bike": 5,
    "kin8nm": 3,
    "power": 3,
    "naval": 3,
    "protein": 1,
}
FOLDS = KFold(5, shuffle=True, random_state=0)  # shuffled: rows of some sets are sorted
COVERAGE, NEAR = 0.9, 0.05  # of the intervals, and the distance from it that a bin may have
N_BINS = 10


def data_of(data_dir, name, split):
    """Load X and y to train on, and the parts to test on.

    Of "bike" these are the last tenth of 2011, whose other rows train, and 2012.
    """
    if name != "bike":
        X, y, *test = uci(data_dir, name, split)
        return X, y, {name: tuple(test)}
    X, y, frame = bike(data_dir)
    late = frame["yr"].to_numpy() == 1
    order = np.random.default_rng(split).permutation(np.flatnonzero(~late))
    test, train = np.split(order, [len(order) // 10])
    parts = {"bike 2011": (X[test], y[test]), "bike 2012": (X[late], y[late])}
    return X[train], y[train], parts


def run_coverage(data_dir, name, split):
    """Judge all methods on one fit of the ensemble and of its folds."""
    X, y, parts = data_of(data_dir, name, split)
    ensemble = DeepEnsembleRegressor(random_state=split)
    model = CalibratedUncertaintyRegressor(ensemble, "conformal", cv=FOLDS).fit(X, y)
    found, bins = {}, {}
    for part, (X_test, y_test) in parts.items():
        plain = model.estimator_.predict_distribution(X_test)
        # Bins of each split, since the unit of the std may differ between fits.
        bins[part] = np.argsort(np.argsort(plain.std)) * N_BINS // len(y_test)
        counts = np.bincount(bins[part], minlength=N_BINS).tolist()
        found[part] = {"counts": counts, "plain": judged(plain, y_test, bins[part])}
    for method in METHODS:
        for groups in (None, "uncertainty"):
            calibration = learn_calibration(model.calibration_rows_, method, groups)
            model.fitted_ = FittedCalibrated(model.estimator_, calibration)
            for part, (X_test, y_test) in parts.items():
                calibrated = model.predict_distribution(X_test)
                found[part][f"{method}, {groups}"] = judged(calibrated, y_test, bins[part])
    return found


def judged(distribution, y, bins):
    """Compute the mean width and the NLL, and count the rows of each bin in their intervals."""
    low, high = distribution.interval(COVERAGE).T
    inside = (low <= y) & (y <= high)
    return {
        "held": np.bincount(bins[inside], minlength=N_BINS).tolist(),
        "width": float(np.mean(high - low)),
        "nll": float(-distribution.log_prob(y).mean()),
    }


def coverage(part, key):
    """The share of a part's rows in their intervals."""
    return sum(part[key]["held"]) / sum(part["counts"])


def pooled_bins(parts, key):
    """Find the largest distance of a bin's coverage from 0.90, and the bins that meet the goal."""
    counts = np.sum([part["counts"] for part in parts], axis=0)
    shares = np.sum([part[key]["held"] for part in parts], axis=0) / counts
    return abs(shares - COVERAGE).max(), abs(shares - COVERAGE) <= allowed(counts)


def allowed(counts):
    """The distance from 0.90 that bins of so many rows may have."""
    return np.maximum(NEAR, 2 * np.sqrt(COVERAGE * (1 - COVERAGE) / counts))


def misses_by_chance(parts):
    """Compute how many bins are expected to miss the goal if each has a coverage of exactly 0.90.

    Rows count as independent.
    """
    counts = np.sum([part["counts"] for part in parts], axis=0)
    expected = 0.0
    for n, distance in zip(counts, allowed(counts)):
        held = np.arange(n + 1)
        outside = abs(held / n - COVERAGE) > distance
        expected += binom.pmf(held[outside], n, COVERAGE).sum()
    return expected


def run_scale(data_dir, kind, split):
    X, y, parts = data_of(data_dir, "boston", split)
    ((X_test, y_test),) = parts.values()
    make = {"deep ensemble": DeepEnsembleRegressor, "MC dropout": MCDropoutRegressor}[kind]
    scaled = CalibratedUncertaintyRegressor(make(random_state=split), cv=FOLDS).fit(X, y)
    nll = [
        gaussian_nll_loss(y_test, *model.predict(X_test, return_std=True))
        for model in (scaled.estimator_, scaled)
    ]
    return {"plain": nll[0], "scaled": nll[1], "c": scaled.scale_}


def summary(records):
    print(f"{'':10s}{'':>24s}{'splits':>7s}{'coverage':>10s}{'NLL':>9s}{'bins missed':>13s}")
    runs = [r["found"] for r in records if r["kind"] == "coverage"]
    for name in dict.fromkeys(part for found in runs for part in found):
        parts = [found[name] for found in runs if name in found]
        for key in [key for key in parts[0] if key != "counts"]:
            rise = np.mean([part[key]["nll"] - part["plain"]["nll"] for part in parts])
            missed = np.sum(~pooled_bins(parts, key)[1])
            share = np.mean([coverage(part, key) for part in parts])
            print(f"{name:10s}{key:>24s}{len(parts):7d}{share:10.3f}{rise:+9.4f}{missed:13d}")
        print(f"{name:10s}{misses_by_chance(parts):63.2f} by chance")
    print(f"\n{'boston':14s}{'split':>6s}{'NLL':>9s}{'scaled':>9s}{'c':>8s}")
    for r in [r for r in records if r["kind"] == "scale"]:
        f = r["found"]
        print(f"{r['name']:14s}{r['split']:6d}{f['plain']:9.3f}{f['scaled']:9.3f}{f['c']:8.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", choices=["coverage", "scale"])
    parser.add_argument("--sets", nargs="+", choices=list(N_SPLITS), default=list(N_SPLITS))
    parser.add_argument("--splits", type=int, default=10, help="at most so many of each set")
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SmallValidationWarning)
    warnings.simplefilter("ignore", CalibrationWarning)  # of groups with few rows
    runs = {"coverage": run_coverage, "scale": run_scale}
    jobs = [("scale", kind, s) for s in range(5) for kind in ("deep ensemble", "MC dropout")]
    jobs += [
        ("coverage", name, split)
        for split in range(arguments.splits)
        for name in arguments.sets
        if split < N_SPLITS[name]
    ]
    for kind, name, split in jobs:
        key = {"kind": kind, "name": name, "split": split}
        stored = any(matches(record, key) for record in read(RESULTS))
        if stored or arguments.summary or arguments.only not in (None, kind):
            continue
        found = runs[kind](arguments.data_dir, name, split)
        add(RESULTS, {**key, "found": rounded(found)})
        print(kind, name, split, flush=True)
    summary(read(RESULTS))


if __name__ == "__main__":
    main()
