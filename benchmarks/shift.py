"""Calibration over time and under covariate shift; uncertainty far from the data.

    python benchmarks/shift.py --data-dir DIR [--only PART ...] [--rivals FOLDER] [--summary]

stream: a deep ensemble calibrated on the bike rentals of 2011, tested on 2012 month by month.
Truths arrive after each day, week or month, or never; or only the inputs of 2012 are known. Goal: a
coverage of 90 % intervals of 0.88 to 0.92 overall, and of at least 0.80 in each month.
classes: bank and electricity in time order, trained on the first 80 % (70 %). Labels arrive 10, 100
or 1000 at a time, or never. Goal: half of the expected calibration error and of the log loss. What
maps of the scores fitted to the later labels themselves reach is a bound for the log loss.
epistemic: rise of the epistemic standard deviation, and NLL, on the middle third of a feature after
training on the outer thirds, and on corrupted tables. CatBoost and NGBoost run with ``--rivals``, a
folder for their virtual environments.

Results are added to ``benchmarks/results/shift.json``; stored parts are not run again.
`--summary` prints what is stored.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from _data import bike, uci_rows
from _stored import STORED, add, matches, read, rounded
from leaderboard import run_rival
from problems import corrupt_table
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import (
    CalibratedUncertaintyClassifier,
    CalibratedUncertaintyRegressor,
    DeepEnsembleRegressor,
    MCDropoutRegressor,
    NOMURegressor,
    TabularEnsembleClassifier,
    TabularEnsembleRegressor,
)
from skuq.exceptions import CalibrationWarning, SmallValidationWarning
from skuq.fitted._calibrated import FittedCalibrated, classifier_distribution
from skuq.fitted._learning import learn_calibration, learn_class_calibration
from skuq.metrics import ece_loss, gaussian_nll_loss
from skuq.networks import NOMUNetwork
from skuq.predictive import CategoricalMixture
from skuq.tables import TablePreprocessor

RESULTS = STORED / "shift.json"
METHODS = ("scale", "isotonic", "conformal")
DELAYS = {"day": 24, "week": 168, "month": None, "never": 10**9}
KINDS = ("boosting", "tabular ensemble")
FOLDS = KFold(5, shuffle=True, random_state=0)


# Bike rentals


def bike_years(data_dir):
    """Load the hours of 2011, and those of 2012 in order with their months."""
    X, y, frame = bike(data_dir)
    late = frame["yr"].to_numpy() == 1
    return X[~late], y[~late], X[late], y[late], frame["mnth"].to_numpy()[late]


def run_stream(arguments, name, seed):
    """Run all methods and delays on one fit of the ensemble and of its folds."""
    X, y, X_late, y_late, month = bike_years(arguments.data_dir)
    found = {}
    ensemble = DeepEnsembleRegressor(random_state=seed)
    model = CalibratedUncertaintyRegressor(ensemble, cv=FOLDS).fit(X, y)
    fitted = model.estimator_
    for method in METHODS:
        model.set_params(method=method)
        start = learn_calibration(model.calibration_rows_, method)
        recorded = Recorded(fitted.predict_distribution(X_late))
        for delay, size in DELAYS.items():
            model.fitted_ = FittedCalibrated(recorded, start)
            found[f"{method}, {delay}"] = follow(model, np.arange(len(y_late)), y_late, month, size)
            print(method, delay, found[f"{method}, {delay}"], flush=True)
        model.fitted_ = FittedCalibrated(fitted, start)
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


def run_classes(arguments, name, seed):
    name, kind = name.split(", ")
    X, y, X_late, y_late = stream_of_classes(arguments.data_dir, name)
    if kind == "boosting":
        boosting = HistGradientBoostingClassifier(random_state=seed)
        classifier = make_pipeline(TablePreprocessor(max_categories=20), boosting)
    else:
        classifier = TabularEnsembleClassifier(random_state=seed)
    found = {}
    # Blocks of time: shuffled folds would know the hour of a row from its neighbours.
    model = CalibratedUncertaintyClassifier(classifier, cv=KFold(5)).fit(X, y)
    plain = model.estimator_.predict_proba(X_late)
    found["as it is, never"] = scores(y_late, plain)
    for label, size in {"all": 10**9, "1000": 1000, "100": 100}.items():
        found[f"hindsight, {label}"] = scores(y_late, hindsight(plain[:, 1], y_late, size))
    relearnt = cross_val_predict(classifier, X_late, y_late, cv=FOLDS, method="predict_proba")
    found["trained on them"] = scores(y_late, relearnt)
    late = classifier_distribution(model.estimator_, X_late, model.classes_)
    late = Recorded(late, model.classes_)
    for method in ("temperature", "vector"):
        start = learn_class_calibration(model.calibration_rows_, method, model.classes_)
        for label, size in {"10": 10, "100": 100, "1000": 1000, "never": 10**9}.items():
            model.fitted_, proba = FittedCalibrated(late, start), []
            for rows in np.split(np.arange(len(y_late)), np.arange(size, len(y_late), size)):
                proba.append(model.predict_proba(rows))
                if rows[-1] + 1 < len(y_late):
                    model.partial_calibrate(rows, y_late[rows])
            found[f"{method}, {label}"] = scores(y_late, np.concatenate(proba))
            print(name, method, label, found[f"{method}, {label}"], flush=True)
    return found


def hindsight(score, y, size):
    """Map the scores of each block of rows by the monotone map with their least log loss.

    No increasing map of the scores that stays the same for so many rows has a lower one.
    """
    proba = np.empty(len(y))
    for rows in np.split(np.arange(len(y)), np.arange(size, len(y), size)):
        proba[rows] = IsotonicRegression().fit_transform(score[rows], y[rows])
    return np.stack([1 - proba, proba], axis=1)


def scores(y, proba):
    return {"log_loss": log_loss(y, proba), "ece": ece_loss(y, proba, labels=[False, True])}


# Epistemic uncertainty


def models(seed):
    kernel = ConstantKernel() * RBF(1.0) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return {
        "plain ensemble": DeepEnsembleRegressor(random_state=seed),
        "tabular ensemble": TabularEnsembleRegressor(random_state=seed),
        "MC dropout": MCDropoutRegressor(random_state=seed),
        "NOMU": NOMURegressor(random_state=seed),
        "NOMU, folds with gaps": NOMURegressor(
            NOMUNetwork(connect_layers=0), validation="gaps", random_state=seed
        ),
        "Gaussian process": make_pipeline(StandardScaler(), process),
    }


RIVALS = {"CatBoost, ten virtual members": "catboost ensemble", "NGBoost": "ngboost"}


def predict_parts(method, X, y, X_test, feature, rivals_dir):
    """Predict mean, std and epistemic std, if there is one, of all rows of X_test."""
    if method in RIVALS:
        predicted = run_rival(rivals_dir, RIVALS[method], X, y, X_test)
        return predicted["mean"], predicted["std"], predicted.get("epistemic")
    model = models(feature)[method].fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    if hasattr(model, "predict_uncertainty"):
        return mean, std, model.predict_uncertainty(X_test).epistemic
    # The variance of a Gaussian process without that of its noise.
    noise = np.sqrt(np.exp(model[-1].kernel_.theta[-1])) * model[-1]._y_train_std
    return mean, std, np.sqrt(np.maximum(std**2 - noise**2, 0))


def run_epistemic(arguments, name, feature):
    """Train on nine tenths of the outer thirds of a feature, and test on all else."""
    name, method = name.split(", ", 1)
    X, y = uci_rows(arguments.data_dir, name)
    order, third = np.argsort(X[:, feature], kind="stable"), len(y) // 3
    gap, outer = order[third:-third], np.r_[order[:third], order[-third:]]
    inside, train = np.split(np.random.default_rng(feature).permutation(outer), [len(outer) // 10])
    corrupted = corrupt_table(X[inside], "all", 5, reference=X[train], random_state=0)
    X_test = np.concatenate([X[inside], X[gap], corrupted])
    ends = np.cumsum([len(inside), len(gap)])
    started = time.perf_counter()
    predicted = predict_parts(method, X[train], y[train], X_test, feature, arguments.rivals)
    found = {"seconds": time.perf_counter() - started}
    mean, std, epistemic = (None if a is None else np.split(a, ends) for a in predicted)
    for k, (part, rows) in enumerate([("inside", inside), ("gap", gap), ("corrupted", inside)]):
        found[part] = {
            "nll": gaussian_nll_loss(y[rows], mean[k], std[k]),
            "rmse": float(np.sqrt(np.mean((mean[k] - y[rows]) ** 2))),
        }
        if epistemic is not None:
            found[part]["epistemic"] = float(np.median(epistemic[k]))
            scores = np.concatenate([epistemic[0], epistemic[k]])
            is_out = np.arange(len(scores)) >= len(epistemic[0])
            found[part]["auc"] = float(roc_auc_score(is_out, scores))
    return found


RUNS = {
    "stream": (run_stream, [("bike", 0)]),
    "classes": (
        run_classes,
        [(f"{name}, {kind}", 0) for kind in KINDS for name in ("bank", "electricity")],
    ),
    "epistemic": (
        run_epistemic,
        [
            (f"{name}, {method}", feature)
            for feature in range(8)
            for name in ("energy", "boston", "concrete")
            for method in (*models(0), *RIVALS)
        ],
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--kinds", nargs="+", default=None, help="end of the names to run")
    parser.add_argument("--features", type=int, default=8, help="gaps of each set, at most")
    parser.add_argument("--rivals", type=Path, help="folder of the rivals' environments")
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SmallValidationWarning)
    for part in [] if arguments.summary else arguments.only:
        run, jobs = RUNS[part]
        for name, split in jobs:
            key = {"part": part, "name": name, "split": split}
            if any(matches(record, key) for record in read(RESULTS)):
                continue
            kind = name.split(", ", 1)[-1]
            if arguments.kinds and kind not in arguments.kinds:
                continue
            if split >= arguments.features or (kind in RIVALS and arguments.rivals is None):
                continue
            found = run(arguments, name, split)
            add(RESULTS, {**key, "found": rounded(found)})
            print(part, name, split, found, flush=True)
    summary(read(RESULTS))


if __name__ == "__main__":
    main()
