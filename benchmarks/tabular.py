"""Networks for tables: regression, search, and what each part is worth; classes: classes.py.

    python benchmarks/tabular.py --data-dir DIR                       # all that is not done yet
    python benchmarks/tabular.py --data-dir DIR --only regression --sets yacht concrete
    python benchmarks/tabular.py --data-dir DIR --only ablations --variants "loss: nll"

Every finished run is written to ``benchmarks/results/tabular.json`` at once and not
repeated, so a long benchmark can go on in the next sitting.

Every set has the same settings: the estimators' defaults, but for what a variant's name says.
"""

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from _data import uci
from _stored import STORED, add, matches, read
from uci_regression import scores

from skuq import AutoDEUQRegressor, DeepEnsembleRegressor, TabularEnsembleRegressor
from skuq.exceptions import SmallValidationWarning
from skuq.networks import TabularNetwork

RESULTS = STORED / "tabular.json"
SMALL = ("yacht", "boston", "energy", "concrete", "wine")
LARGE = ("kin8nm", "power", "naval", "protein")

#: (NLL, RMSE) asked for on splits 0-4.
GOALS = {
    "yacht": (0.0, 0.40),
    "boston": (2.35, None),
    "energy": (0.60, 0.48),
    "concrete": (2.85, 4.7),
    "wine": (0.91, None),
}

#: Changed parameters of `TabularEnsembleRegressor` by variant.
VARIANTS = {
    "tabular": {},
    "plain": None,  # `DeepEnsembleRegressor`
    "no embedding": {"network": TabularNetwork(embedding="none")},
    "piecewise-linear embedding": {"network": TabularNetwork(embedding="piecewise-linear")},
    "loss: nll": {"loss": "nll"},
    "loss: gaussian-mixture": {"loss": "gaussian-mixture"},
    "target: yeo-johnson": {"target_transform": "yeo-johnson"},
    "target: quantile": {"target_transform": "quantile"},
}


def once(key, run):
    """The record of a key; `run()` only where there is none yet."""
    for record in read(RESULTS):
        if matches(record, key):
            return record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        started = time.perf_counter()
        record = {**key, **run(), "seconds": round(time.perf_counter() - started, 2)}
    add(RESULTS, record)
    print({name: record.get(name) for name in (*key, "nll", "rmse", "ece", "seconds")}, flush=True)
    return record


def judged(distribution, y):
    """`scores`, and the worst row's NLL."""
    nll = 0.5 * ((y - distribution.mean) / distribution.std) ** 2 + np.log(
        distribution.std * np.sqrt(2 * np.pi)
    )
    return {
        **scores(distribution, y),
        "nll_median_row": float(np.median(nll)),
        "nll_worst": nll.max(),
    }


def fitted(model, data):
    """Scores of a regressor on one split's parts."""
    X, y, X_test, y_test = data
    model.fit(X, y)
    chosen = getattr(model, "selection_", model.weights_ if hasattr(model, "weights_") else ())
    return {**judged(model.predict_distribution(X_test), y_test), "n_members": len(chosen)}


def regression(data_dir, sets, splits, variants):
    for name in sets:
        for split in splits:
            data = uci(data_dir, name, split)
            for variant in variants:
                changes = VARIANTS[variant]
                kind = DeepEnsembleRegressor if changes is None else TabularEnsembleRegressor
                once(
                    {"part": "regression", "set": name, "split": split, "variant": variant},
                    partial(fitted, kind(random_state=split, **(changes or {})), data),
                )


def search(data_dir, sets, splits, n_trials):
    for name in sets:
        for split in splits:
            model = AutoDEUQRegressor(n_trials=n_trials, random_state=split, verbose=1)
            once(
                {"part": "search", "set": name, "split": split, "n_trials": n_trials},
                partial(fitted, model, uci(data_dir, name, split)),
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parts = ("regression", "ablations", "search", "large")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--n-trials", type=int, default=60)
    a = parser.parse_args()
    if "regression" in a.only:
        regression(a.data_dir, a.sets or SMALL, a.splits, ["tabular"])
    if "ablations" in a.only:
        regression(a.data_dir, a.sets or SMALL, a.splits, a.variants)
    if "search" in a.only:
        search(a.data_dir, a.sets or SMALL, a.splits, a.n_trials)
    if "large" in a.only:
        for name in a.sets or LARGE:
            splits = [0] if name == "protein" else [s for s in a.splits if s < 3]
            regression(a.data_dir, [name], splits, ["tabular"])


if __name__ == "__main__":
    main()
