"""Calibrated estimators: coverage of 90 % intervals and NLL.

    python benchmarks/calibration.py --data-dir DIR [--sets NAME ...]

A deep ensemble as it is and with the calibrations "scale" and "conformal", on nine UCI sets and on
bike rentals. These are trained on nine tenths of 2011 and judged on the last tenth and on 2012,
which is a real shift. Goals: 90 % within two points, and an NLL of the whole distribution that is
not worse by more than 0.005.

Results are added to ``benchmarks/results/calibration.json``; stored runs are not repeated.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from _data import bike, uci
from _stored import STORED, add, matches, read, rounded
from sklearn.model_selection import KFold

from skuq import CalibratedUncertaintyRegressor, DeepEnsembleRegressor
from skuq.exceptions import SmallValidationWarning

RESULTS = STORED / "calibration.json"
METHODS = ("as it is", "scale", "conformal")
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


def run(data_dir, name, split):
    """Judge all methods on one fit of the ensemble and of its folds."""
    X, y, parts = data_of(data_dir, name, split)
    ensemble = DeepEnsembleRegressor(random_state=split)
    model = CalibratedUncertaintyRegressor(ensemble, "conformal", cv=FOLDS).fit(X, y)
    found = {}
    for part, (X_test, y_test) in parts.items():
        plain = model.estimator_.predict_distribution(X_test)
        scaled = model.predict_distribution(X_test)  # that of "scale"
        ends = plain.interval(0.9), scaled.interval(0.9), model.predict_interval(X_test, 0.9)
        pairs = zip(METHODS, (plain, scaled, scaled), ends)
        found[part] = {method: judged(d, interval, y_test) for method, d, interval in pairs}
    return found


def judged(distribution, interval, y):
    low, high = interval.T
    return {
        "coverage": float(np.mean((low <= y) & (y <= high))),
        "width": float(np.mean(high - low)),
        "nll": float(-distribution.log_prob(y).mean()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(N_SPLITS), default=list(N_SPLITS))
    parser.add_argument("--splits", type=int, default=10, help="at most so many of each set")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SmallValidationWarning)
    for split in range(arguments.splits):
        for name in arguments.sets:
            key = {"name": name, "split": split}
            if split < N_SPLITS[name] and not any(matches(r, key) for r in read(RESULTS)):
                add(RESULTS, {**key, "found": rounded(run(arguments.data_dir, name, split))})
                print(name, split, flush=True)


if __name__ == "__main__":
    main()
