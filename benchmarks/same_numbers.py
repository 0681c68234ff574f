"""Do all estimators still predict the same numbers? Fixed fits on small tables.

    python benchmarks/same_numbers.py --store before.npz
    python benchmarks/same_numbers.py --compare before.npz

`--store` fits every estimator once, at seed 0 and with one job, and writes what it predicts.
`--compare` does so again and prints, for each kind of prediction, the largest absolute
difference and the largest relative to the largest stored number of its kind; it fails if one
of these is above `--tolerance` or missing. Compare on the machine that stored: processors round
differently, and a search may then take other turns. Only the public interface is used, so
that both sides may be different versions. Some six minutes on two cores; `coverage run
--source skuq --concurrency thread` in front shows which lines the fits run (80 % of them).
"""

import argparse
import os
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import skuq
import skuq.exceptions
from skuq import networks, search
from skuq.networks import MLP, NOMUNetwork, OperatorNetwork
from skuq.training import Training

N_ROWS, N_NEW = 120, 30
SMALL = {"network": MLP((16,)), "epochs": 20, "batch_size": 32, "random_state": 0}
SEARCH = {"n_trials": 6, "n_members": 3, "epochs": 10, "random_state": 0, "n_jobs": 1}
TABLE = {"n_members": 2, "epochs": 12, "random_state": 0}


PAPER = {**SEARCH, "space": "dense", "search": search.AgEBO(), "validation": 0.25}
RECIPES = {**SEARCH, "search": search.RandomSearch(), "validation": 3}


def regression_data():
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


def friedman(n_rows, noise=1.0):
    X, y = make_friedman1(n_rows + N_NEW, n_features=7, noise=noise, random_state=0)
    return X[:-N_NEW], y[:-N_NEW], X[-N_NEW:]


def outputs_data():
    X, y, new = friedman(200)
    return X, np.stack([y, X[:, 0] * y], axis=1), new


def mixed_data(n_rows=300):
    """A frame with gaps, categories, truth values and dates of months as whole numbers."""
    rng = np.random.default_rng(0)
    n = n_rows + N_NEW
    frame = pd.DataFrame(
        {
            "size": rng.lognormal(size=n),
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(40, 9, n)),
            "kind": rng.choice(["a", "b", "c", None], n),
            "level": pd.Categorical(rng.choice(["low", "high"], n)),
            "open": rng.random(n) < 0.5,
            "month": rng.integers(1, 13, n),
            "recurring": rng.choice([0.0, 0.5, 3.0], n),
        }
    )
    effect = (frame["kind"] == "a") * 2.0 + frame["open"] * np.log(frame["size"])
    y = (effect + 0.3 * rng.normal(size=n)).to_numpy()
    return frame[:n_rows], y[:n_rows], frame[n_rows:]


def mixed_classes(n_rows=300):
    X, y, new = mixed_data(n_rows)
    return X, np.digitize(y, [0.2, 1.5]), new


def image_data():
    X, y = load_digits(return_X_y=True)
    return X[:160], y[:160] % 3, X[-N_NEW:]


def extras(X, y, seed=0):
    rng = np.random.default_rng(seed)
    return {"sample_weight": rng.uniform(0.2, 2, len(y)), "groups": rng.integers(0, 8, len(y))}


def pool():
    return [
        ("linear", LogisticRegression(max_iter=1000)),
        ("bayes", GaussianNB()),
        ("near", KNeighborsClassifier()),
        ("tree", DecisionTreeClassifier(max_depth=2, random_state=0)),
        ("stump", DecisionTreeClassifier(max_depth=1, random_state=0)),
    ]


IMAGES = {**SEARCH, "n_trials": 2, "n_members": 2, "epochs": 1, "image_shape": (8, 8)}
SPACES = (
    networks.CellSpace(channels=2, n_cells=2, batch_size=32),
    networks.NASBench201Space(channels=2, n_cells=1),
)
OPERATOR = {
    "query_points": np.linspace(0, 2, 9),
    "network": OperatorNetwork(encoder_units=8, latent=8, decoder_units=8),
    "training": Training(steps=60),
    "batch_size": None,
    "random_state": 0,
}
NOMU = {"network": NOMUNetwork((16,)), "random_state": 0}
TWO = {"n_members": 2, **SMALL}
CLASSES = {"epochs": 20, "random_state": 0}
TRAININGS = (
    Training(optimizer="sgd", schedule="cosine", clip_norm=1.0),
    Training(adversarial_epsilon=0.01, weight_decay=1e-3),
)
EVOLUTION = {**SEARCH, "search": search.NESEvolution()}
PLAIN = skuq.DeepEnsembleRegressor(**TWO)
#: Estimator, and what is special about the fit, to (settings, data) or (settings, data, keywords
#: of `fit`).
FITS = {
    "AutoDEUQRegressor": ({**PAPER, "calibrate": False}, regression_data),
    "AutoDEUQRegressor, recipes": (RECIPES, partial(friedman, 300)),
    "AutoDEUQRegressor, mixed": (
        {**RECIPES, "n_trials": 4, "selection": "stacking"},
        mixed_data,
        extras,
    ),
    "AutoDEUQRegressor, default search": (
        {"n_trials": 8, "epochs": 8, "random_state": 0, "n_jobs": 1},
        partial(friedman, 200),
    ),
    "AutoDEUQRegressor, Bayesian search": (
        {**PAPER, "n_trials": 12, "search": search.BayesianSearch(), "selection": "hq"},
        regression_data,
    ),
    "AutoDEUQClassifier": (PAPER, classification_data),
    "AutoDEUQClassifier, recipes": (RECIPES, mixed_classes),
    "AutoDEUQClassifier, evolution": (
        {
            **PAPER,
            "n_trials": 12,
            "search": search.AgE(population_size=4, sample_size=2),
            "class_weight": "balanced",
        },
        classification_data,
    ),
    "NESRegressor": ({**SEARCH, "space": "width-depth"}, regression_data),
    "NESRegressor, default space": (EVOLUTION, mixed_data),
    "NESClassifier": ({**SEARCH, "space": "width-depth"}, classification_data),
    "NESClassifier, default space": (EVOLUTION, mixed_classes),
    "NESClassifier, shifted validation": (
        {**SEARCH, "space": "dense"},
        classification_data,
        lambda X, y: {"shift_validation": [(X + 0.3, y), (X + 0.6, y)]},
    ),
    "NESClassifier, cells": ({**IMAGES, "space": SPACES[0]}, image_data),
    "NESClassifier, NAS-Bench-201": ({**IMAGES, "space": SPACES[1]}, image_data),
    "TabularEnsembleRegressor": ({**TABLE, "epochs": 10}, regression_data),
    "TabularEnsembleRegressor, 300 rows": (
        {"epochs": 30, "random_state": 0},
        partial(friedman, 300),
    ),
    "TabularEnsembleRegressor, 6000 rows": ({**TABLE, "epochs": 4}, partial(friedman, 6000)),
    "TabularEnsembleRegressor, mixed": (TABLE, mixed_data),
    "TabularEnsembleRegressor, weights and groups": (TABLE, partial(friedman, 300), extras),
    "TabularEnsembleRegressor, two outputs": (TABLE, outputs_data),
    "TabularEnsembleRegressor, crps": ({**TABLE, "loss": "crps"}, outputs_data),
    "TabularEnsembleClassifier": (CLASSES, classification_data),
    "TabularEnsembleClassifier, mixed": (CLASSES, mixed_classes),
    "TabularEnsembleClassifier, 2500 rows": (
        {**CLASSES, "epochs": 6},
        partial(mixed_classes, 2500),
    ),
    "TabularEnsembleClassifier, weights and groups": (
        {"n_members": 3, "epochs": 10, "class_weight": "balanced", "random_state": 0},
        mixed_classes,
        extras,
    ),
    "DeepEnsembleRegressor": ({**SMALL, "n_members": 3}, regression_data),
    "DeepEnsembleRegressor, weights and groups": (
        {**TWO, "bootstrap": True},
        partial(friedman, 300),
        extras,
    ),
    "DeepEnsembleRegressor, beta-nll": ({**TWO, "loss": "beta-nll"}, outputs_data),
    "DeepEnsembleRegressor, mse": (
        {**TWO, "loss": "mse", "target_transform": "yeo-johnson", "training": TRAININGS[0]},
        regression_data,
    ),
    "DeepEnsembleRegressor, adversarial": ({**TWO, "training": TRAININGS[1]}, regression_data),
    "DeepEnsembleClassifier": ({**SMALL, "n_members": 3}, classification_data),
    "HyperDeepEnsembleRegressor": ({**TWO, "n_trials": 6}, regression_data),
    "HyperDeepEnsembleClassifier": ({**TWO, "n_trials": 6}, classification_data),
    "MCDropoutRegressor": ({**SMALL, "n_passes": 10}, regression_data),
    "MCDropoutClassifier": ({**SMALL, "n_passes": 10}, classification_data),
    "NOMURegressor": ({**NOMU, "epochs": 30}, partial(friedman, 40)),
    "NOMURegressor, linear": ({**NOMU, "epochs": 20, "readout": "linear"}, partial(friedman, 60)),
    "NEONRegressor": (OPERATOR, function_data),
    "NEONRegressor, EpiNet": ({**OPERATOR, "prior": "epinet", "n_draws": 16}, function_data),
    "OperatorEnsembleRegressor": ({**OPERATOR, "n_members": 3}, function_data),
    "CalibratedUncertaintyRegressor": ({"estimator": PLAIN, "cv": 3}, regression_data),
    "CalibratedUncertaintyRegressor, conditional": (
        {"estimator": PLAIN, "method": "conditional", "cv": 3},
        partial(friedman, 200),
    ),
    "CalibratedUncertaintyClassifier": (
        {"estimator": skuq.DeepEnsembleClassifier(**TWO), "cv": 3},
        classification_data,
    ),
    "HQEnsembleSelector": ({"estimators": pool()}, classification_data),
    "HQEnsembleSelector, votes": (
        {"estimators": pool(), "metric": "ck", "voting": "hard"},
        classification_data,
    ),
}


def predictions(model, X):
    uncertainty = model.predict_uncertainty(X)
    found = {name: getattr(uncertainty, name) for name in uncertainty._fields}
    if hasattr(model, "predict_proba"):
        found["proba"] = model.predict_proba(X)
        found["class"] = np.searchsorted(model.classes_, model.predict(X)).astype(float)
        return found
    found["mean"], found["std"] = model.predict(X, return_std=True)
    found["interval"] = np.stack(model.predict_interval(X, coverage=0.9), axis=1)
    found["draws"] = model.sample_y(X, 3, random_state=0)
    return found


def fit_and_predict(name, settings, data, further=None):
    X, y, new = data()
    model = getattr(skuq, name.split(",")[0])(**settings)
    return predictions(model.fit(X, y, **(further(X, y) if further else {})), new)


def fit_all():
    """The arrays of every fit, by name and prediction; one that fails has none."""
    warnings.simplefilter("ignore", UserWarning)  # of few rows, and of few epochs
    arrays = {}
    for name, row in FITS.items():
        try:
            for what, values in fit_and_predict(name, *row).items():
                arrays[f"{name}: {what}"] = np.asarray(values, float)
        except Exception:
            traceback.print_exc()
    return arrays


def compare(stored, found, tolerance):
    """Print the differences; whether all are within the tolerance."""
    rows, names = [], [*found, *sorted(stored.keys() - found.keys())]
    for name in names:
        old, new = stored.get(name), found.get(name)
        if old is None or new is None or old.shape != new.shape:
            # Its fit failed, or a version lacks it.
            rows.append(
                (name, np.nan, np.nan, "gone" if new is None else "new, or of another shape")
            )
            continue
        absolute = np.max(np.abs(new - old))
        relative = absolute / max(np.max(np.abs(old)), np.finfo(float).tiny)
        rows.append((name, absolute, relative, "" if relative <= tolerance else "!"))  # ! for NaN
    frame = pd.DataFrame(rows, columns=["", "absolute", "relative", " "])
    print(frame.to_markdown(index=False, floatfmt=".2g"))
    return not any(row[-1] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--store", type=Path, help="write the predictions to this file")
    what.add_argument("--compare", type=Path, help="compare them with those of this file")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    arguments = parser.parse_args()
    found = fit_all()
    if arguments.store:
        np.savez_compressed(arguments.store, **found)
        return
    with np.load(arguments.compare) as stored:
        sys.exit(0 if compare(dict(stored), found, arguments.tolerance) else 1)


if __name__ == "__main__":
    main()
