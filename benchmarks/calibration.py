"""Calibrated estimators: coverage of 90 % intervals, and what scaling does to the NLL.

    python benchmarks/calibration.py --data-dir DIR [--only coverage|scale] [--splits N]

coverage: a deep ensemble, plain and with each method of calibration, on splits 0 to 9 of concrete
and energy, and on bike sharing, where it is trained on nine tenths of 2011 and tested on the last
tenth and on 2012 (a real shift). Goal: 90 % within two points, mean over ten splits.
scale: MC dropout and a deep ensemble on boston, splits 0 to 4. Goal: scaling lowers the NLL of each
on every split.

Results are added to ``benchmarks/results/calibration.json``; stored runs are not repeated.
`--summary` prints what is stored.
"""

import argparse
import warnings
from pathlib import Path
from typing import ClassVar

import joblib
import numpy as np
from _data import bike, uci
from _stored import STORED, read, write
from sklearn.model_selection import KFold

from skuq import (
    CalibratedUncertaintyRegressor,
    DeepEnsembleRegressor,
    MCDropoutRegressor,
)
from skuq.exceptions import SmallValidationWarning
from skuq.metrics import coverage_score, gaussian_nll_loss

RESULTS = STORED / "calibration.json"
METHODS = ("plain", "scale", "isotonic", "conformal")
SETS = ("concrete", "energy", "bike 2011", "bike 2012")


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


class Remembered(DeepEnsembleRegressor):
    """Deep ensemble that is fitted once on the same rows, so that all methods share the folds."""

    fits: ClassVar[dict] = {}

    def fit(self, X, y):
        key = joblib.hash((self.get_params(), X, y))
        if key not in self.fits:
            self.fits[key] = super().fit(X, y).__dict__
        self.__dict__.update(self.fits[key])
        return self


def ensemble(split):
    return Remembered(random_state=split)


def calibrated(estimator, method):
    """Shuffled folds: rows of some sets are sorted."""
    if method == "plain":
        return estimator
    folds = KFold(5, shuffle=True, random_state=0)
    return CalibratedUncertaintyRegressor(estimator, method, cv=folds)


def run_coverage(data_dir, name, split, method):
    X, y, parts = data_of(data_dir, name, split)
    model = calibrated(ensemble(split), method).fit(X, y)
    found = {}
    for part, (X_test, y_test) in parts.items():
        mean, std = model.predict(X_test, return_std=True)
        low, high = model.predict_interval(X_test, 0.9).T
        found[part] = {
            "coverage": coverage_score(y_test, low, high),
            "width": float(np.mean(high - low)),
            "nll": gaussian_nll_loss(y_test, mean, std),
        }
    return found


def run_scale(data_dir, kind, split):
    X, y, parts = data_of(data_dir, "boston", split)
    ((X_test, y_test),) = parts.values()
    estimator = {"deep ensemble": ensemble, "MC dropout": dropout}[kind](split)
    plain = estimator.fit(X, y)
    scaled = calibrated(estimator, "scale").fit(X, y)
    nll = [
        gaussian_nll_loss(y_test, *model.predict(X_test, return_std=True))
        for model in (plain, scaled)
    ]
    return {"plain": nll[0], "scaled": nll[1], "c": scaled.scale_}


def dropout(split):
    return MCDropoutRegressor(random_state=split)


def summary(records):
    def table(kind):
        return [r for r in records if r["kind"] == kind]

    def cell(values):
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        return f"{np.mean(values):8.3f} ± {error:.3f}"

    print(f"{'90 % intervals':14s}{'method':>11s}{'splits':>7s}{'coverage':>18s}{'width':>18s}")
    for part in SETS:
        for method in METHODS:
            splits = [r["found"] for r in table("coverage") if r["method"] == method]
            rows = [found[part] for found in splits if part in found]
            if rows:
                cells = [cell([row[name] for row in rows]) for name in ("coverage", "width")]
                print(f"{part:14s}{method:>11s}{len(rows):7d}{cells[0]:>18s}{cells[1]:>18s}")
    print(f"\n{'boston':14s}{'split':>6s}{'NLL':>9s}{'scaled':>9s}{'c':>8s}")
    for r in table("scale"):
        f = r["found"]
        print(f"{r['name']:14s}{r['split']:6d}{f['plain']:9.3f}{f['scaled']:9.3f}{f['c']:8.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", choices=["coverage", "scale"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    records = read(RESULTS)
    jobs = [
        ("scale", kind, split, None)
        for split in range(5)
        for kind in ("deep ensemble", "MC dropout")
    ]
    jobs += [
        ("coverage", name, split, method)
        for split in range(arguments.splits)
        for name in ("concrete", "energy", "bike")
        for method in METHODS
    ]
    done = {(r["kind"], r["name"], r["split"], r["method"]) for r in records}
    warnings.simplefilter("ignore", SmallValidationWarning)
    for kind, name, split, method in [] if arguments.summary else jobs:
        if (kind, name, split, method) in done or arguments.only not in (None, kind):
            continue
        if kind == "scale":
            found = run_scale(arguments.data_dir, name, split)
        else:
            found = run_coverage(arguments.data_dir, name, split, method)
        records.append(
            {"kind": kind, "name": name, "split": split, "method": method, "found": found}
        )
        if method == METHODS[-1]:  # the last that calibrates these folds
            Remembered.fits.clear()
        write(RESULTS, records)
        print(kind, name, split, method, found, flush=True)
    summary(records)


if __name__ == "__main__":
    main()
