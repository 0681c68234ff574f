"""Do all estimators still predict the same numbers? Fixed fits on small tables.

    python benchmarks/same_numbers.py --store before.npz
    python benchmarks/same_numbers.py --compare before.npz

`--store` fits every estimator once, at seed 0 and with one job, and writes what it predicts.
`--compare` does so again and prints, for each kind of prediction, the largest absolute
difference and the largest relative to the largest stored number of its kind; it fails if one
of these is above `--tolerance`. Compare on the machine that stored: processors round
differently, and a search may then take other turns. Only the public interface is used, so
that both sides may be different versions. Under a minute.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import skuq
import skuq.exceptions
from skuq.networks import MLP, NOMUNetwork, OperatorNetwork
from skuq.search import AgEBO
from skuq.training import Training

N_ROWS, N_NEW = 120, 30
SMALL = {"network": MLP((16,)), "epochs": 20, "batch_size": 32, "random_state": 0}
SEARCH = {"n_trials": 6, "n_members": 3, "epochs": 10, "random_state": 0, "n_jobs": 1}
PAPER = {
    **SEARCH,
    "space": "dense",
    "search": AgEBO(discard=False),
    "validation": 0.25,
}


def regression_data():
    """Rows to fit on, their targets, and new rows."""
    X, y = load_diabetes(return_X_y=True)
    return X[:N_ROWS], y[:N_ROWS], X[-N_NEW:]


def classification_data():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], np.array(["setosa", "versicolor", "virginica"])[y[order]]
    return X[:N_ROWS], y[:N_ROWS], X[-N_NEW:]


def function_data():
    """Curves over nine points, by two numbers each."""
    inputs = np.random.default_rng(0).uniform(0.5, 1.5, (36, 2))
    values = inputs[:, :1] * np.sin(inputs[:, 1:] * np.linspace(0, 2, 9))
    return inputs[:24], values[:24], inputs[24:]


def pool():
    """Classifiers to choose a team of."""
    return [
        ("linear", LogisticRegression(max_iter=1000)),
        ("bayes", GaussianNB()),
        ("near", KNeighborsClassifier()),
        ("tree", DecisionTreeClassifier(max_depth=2, random_state=0)),
        ("stump", DecisionTreeClassifier(max_depth=1, random_state=0)),
    ]


def functions(estimator):
    """An operator network, small, for curves."""
    return estimator(
        query_points=np.linspace(0, 2, 9),
        network=OperatorNetwork(encoder_units=8, latent=8, decoder_units=8),
        training=Training(steps=60),
        batch_size=None,
        random_state=0,
    )


FITS = {
    "AutoDEUQRegressor": (
        lambda: skuq.AutoDEUQRegressor(**PAPER, calibrate=False),
        regression_data,
    ),
    "AutoDEUQRegressor, cv and refit": (
        lambda: skuq.AutoDEUQRegressor(
            **{**PAPER, "n_trials": 4, "validation": 3}, calibrate=False, refit=True
        ),
        regression_data,
    ),
    "AutoDEUQClassifier": (lambda: skuq.AutoDEUQClassifier(**PAPER), classification_data),
    "NESRegressor": (
        lambda: skuq.NESRegressor(**SEARCH, space="width-depth"),
        regression_data,
    ),
    "NESClassifier": (
        lambda: skuq.NESClassifier(**SEARCH, space="width-depth"),
        classification_data,
    ),
    "DeepEnsembleRegressor": (
        lambda: skuq.DeepEnsembleRegressor(n_members=3, **SMALL),
        regression_data,
    ),
    "DeepEnsembleRegressor, tabular": (
        lambda: skuq.TabularEnsembleRegressor(n_members=2, epochs=10, random_state=0),
        regression_data,
    ),
    "DeepEnsembleClassifier": (
        lambda: skuq.DeepEnsembleClassifier(n_members=3, **SMALL),
        classification_data,
    ),
    "HyperDeepEnsembleRegressor": (
        lambda: skuq.HyperDeepEnsembleRegressor(n_members=2, n_trials=6, **SMALL),
        regression_data,
    ),
    "HyperDeepEnsembleClassifier": (
        lambda: skuq.HyperDeepEnsembleClassifier(n_members=2, n_trials=6, **SMALL),
        classification_data,
    ),
    "MCDropoutRegressor": (
        lambda: skuq.MCDropoutRegressor(n_passes=10, **SMALL),
        regression_data,
    ),
    "MCDropoutClassifier": (
        lambda: skuq.MCDropoutClassifier(n_passes=10, **SMALL),
        classification_data,
    ),
    "NOMURegressor": (
        lambda: skuq.NOMURegressor(NOMUNetwork((16,)), epochs=30, random_state=0),
        lambda: tuple(part[:40] for part in regression_data()),
    ),
    "NEONRegressor": (lambda: functions(skuq.NEONRegressor), function_data),
    "OperatorEnsembleRegressor": (
        lambda: functions(skuq.OperatorEnsembleRegressor).set_params(n_members=3),
        function_data,
    ),
    "CalibratedUncertaintyRegressor": (
        lambda: skuq.CalibratedUncertaintyRegressor(
            skuq.DeepEnsembleRegressor(n_members=2, **SMALL), cv=3
        ),
        regression_data,
    ),
    "CalibratedUncertaintyClassifier": (
        lambda: skuq.CalibratedUncertaintyClassifier(
            skuq.DeepEnsembleClassifier(n_members=2, **SMALL), cv=3
        ),
        classification_data,
    ),
    "HQEnsembleSelector": (
        lambda: skuq.HQEnsembleSelector(pool(), random_state=0),
        classification_data,
    ),
}


def predictions(model, X):
    """All that the fitted model predicts, by name."""
    uncertainty = model.predict_uncertainty(X)
    found = {name: getattr(uncertainty, name) for name in uncertainty._fields}
    if hasattr(model, "predict_proba"):
        found["proba"] = model.predict_proba(X)
        found["class"] = np.searchsorted(model.classes_, model.predict(X)).astype(float)
        return found
    found["mean"], found["std"] = model.predict(X, return_std=True)
    found["interval"] = model.predict_interval(X, coverage=0.9)
    found["draws"] = model.sample_y(X, 3, random_state=0)
    return found


def fit_all(only=None):
    """The arrays of every fit, by estimator and prediction."""
    warnings.simplefilter("ignore", skuq.exceptions.SmallValidationWarning)
    arrays = {}
    for name, (make, data) in FITS.items():
        if only and not any(name.startswith(start) for start in only):
            continue
        start = time.perf_counter()
        X, y, new = data()
        for what, values in predictions(make().fit(X, y), new).items():
            arrays[f"{name}: {what}"] = np.asarray(values, float)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return arrays


def compare(stored, found, tolerance):
    """Print the differences; whether all are within the tolerance."""
    good = True
    print(f"{'':<50}{'absolute':>12}{'relative':>12}")
    for name, values in found.items():
        if name not in stored or stored[name].shape != values.shape:
            print(f"{name:<50}{'not stored, or of another shape':>24}")
            good = False
            continue
        absolute = np.max(np.abs(values - stored[name]))
        relative = absolute / max(np.max(np.abs(stored[name])), np.finfo(float).tiny)
        same = relative <= tolerance  # False for NaN, too
        good &= bool(same)
        print(f"{name:<50}{absolute:>12.2g}{relative:>12.2g}{'' if same else '  !'}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--store", type=Path, help="write the predictions to this file")
    what.add_argument("--compare", type=Path, help="compare them with those of this file")
    parser.add_argument("--only", nargs="+", help="beginnings of names of fits")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    arguments = parser.parse_args()
    found = fit_all(arguments.only)
    if arguments.store:
        np.savez_compressed(arguments.store, **found)
        return
    with np.load(arguments.compare) as stored:
        good = compare(dict(stored), found, arguments.tolerance)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
