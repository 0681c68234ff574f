"""Networks for tables: regression, classification, search, and what each part is worth.

    python benchmarks/tabular.py --data-dir DIR                       # all that is not done yet
    python benchmarks/tabular.py --data-dir DIR --only regression --sets yacht concrete
    python benchmarks/tabular.py --data-dir DIR --only ablations --variants "loss: quantiles"

Every finished run is written to ``benchmarks/results/tabular.json`` at once and not
repeated, so a long benchmark can go on in the next sitting. `--summary` only prints.

Every set has the same settings: the estimators' defaults, but for what a variant's name says.
"""

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from _data import uci
from _stored import STORED, add, matches, read
from published import MEASURED
from scipy.stats import rankdata
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss
from uci_regression import scores

from skuq import (
    AutoDEUQRegressor,
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    TabularEnsembleClassifier,
    TabularEnsembleRegressor,
)
from skuq.exceptions import SmallValidationWarning
from skuq.metrics import ece_loss
from skuq.networks import TabularNetwork
from skuq.training import Training

RESULTS = STORED / "tabular.json"
SMALL = ("yacht", "boston", "energy", "concrete", "wine")
LARGE = ("kin8nm", "power", "naval", "protein")
TABLES = ("letter", "pendigits", "adult", "bank")

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
    "loss: student-t": {"loss": "student-t"},
    "loss: gaussian-mixture": {"loss": "gaussian-mixture"},
    "loss: quantiles": {"loss": "quantiles"},
    "target: yeo-johnson": {"target_transform": "yeo-johnson"},
    "target: quantile": {"target_transform": "quantile"},
    "32 copies in one network": {"n_members": 1, "network": TabularNetwork(n_copies=32)},
}

#: Changes of the tabular network that were tried on held-out tenths of the training parts.
TRIED = {
    "the default": {},
    "two layers": {"network": TabularNetwork(n_layers=2)},
    "two layers, weight decay 0.05": {
        "network": TabularNetwork(n_layers=2),
        "training": Training(weight_decay=0.05),
    },
    "half as many epochs": {"epochs": 128},
    "dropout 0.05": {"network": TabularNetwork(dropout=0.05)},
    "embeddings of 8": {"network": TabularNetwork(embedding_dim=8)},
    "frequency scale 0.1": {"network": TabularNetwork(frequency_scale=0.1)},
    "mish": {"network": TabularNetwork(activation="mish")},
    "loss: nll": {"loss": "nll"},
    "a fifth to validate on": {"validation": 0.2},
}

#: The same for classes.
TRIED_CLASSES = {
    "the default": {},
    "as for regression": {"network": TabularNetwork(dropout=0.0, frequency_scale=0.3)},
    "no dropout": {"network": TabularNetwork(dropout=0.0)},
    "dropout 0.2": {"network": TabularNetwork(dropout=0.2)},
    "frequency scale 0.3": {"network": TabularNetwork(frequency_scale=0.3)},
    "frequency scale 1": {"network": TabularNetwork(frequency_scale=1.0)},
    "frequency scale 10": {"network": TabularNetwork(frequency_scale=10.0)},
    "learning rate 0.05": {"learning_rate": 0.05},
    "piecewise-linear embedding": {"network": TabularNetwork(embedding="piecewise-linear")},
    "a fifth to validate on": {"validation": 0.2},
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


def known(**key):
    return [r for r in read(RESULTS) if matches(r, key)]


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


def inner(data):
    """A tenth of a training part to judge by, the rest to train on: no row of the test part."""
    X, y = data[:2]
    order = np.random.RandomState(1000).permutation(len(X))
    judges, trains = np.sort(order[: len(X) // 10]), np.sort(order[len(X) // 10 :])
    return X[trains], y[trains], X[judges], y[judges]


def tuning(data_dir):
    for variant, changes in TRIED.items():
        for name in SMALL:
            for split in range(3):
                model = TabularEnsembleRegressor(random_state=split, **changes)
                once(
                    {"part": "tuning", "set": name, "split": split, "variant": variant},
                    partial(fitted, model, inner(uci(data_dir, name, split))),
                )


def inner_classes(data, name):
    """A tenth to judge by: of bank the latest rows, as in its test part, of pendigits the last."""
    X, y = data[:2]
    order = np.arange(len(X))
    if name in ("letter", "adult"):
        order = np.random.RandomState(1000).permutation(len(X))
    first = len(X) - len(X) // 10
    trains, judges = np.sort(order[:first]), np.sort(order[first:])
    return X.iloc[trains], y.iloc[trains], X.iloc[judges], y.iloc[judges]


def tuning_classes(data_dir, sets):
    for variant, changes in TRIED_CLASSES.items():
        for name in sets:
            model = TabularEnsembleClassifier(random_state=0, **changes)
            once(
                {"part": "tuning classes", "set": name, "variant": variant},
                partial(classified, model, inner_classes(table(data_dir, name), name)),
            )


def search(data_dir, sets, splits, n_trials):
    for name in sets:
        for split in splits:
            model = AutoDEUQRegressor(n_trials=n_trials, random_state=split, verbose=1)
            once(
                {"part": "search", "set": name, "split": split, "n_trials": n_trials},
                partial(fitted, model, uci(data_dir, name, split)),
            )


def table(data_dir, name):
    """X, y of the training and of the test part, strings and missing values as they come."""
    folder = data_dir / "tabular"
    if name == "letter":
        frame = pd.read_csv(folder / "letter.csv.gz")
        train, test, target = frame[:16000], frame[16000:], "letter"
    elif name == "pendigits":
        train, test = (
            pd.read_csv(folder / f"pendigits_{part}.csv.gz") for part in ("train", "test")
        )
        target = "class"
    elif name == "adult":
        train, test = (
            pd.read_csv(folder / f"adult_{part}.csv.gz", na_values="?", skipinitialspace=True)
            for part in ("train", "test")
        )
        target = "income"
    else:
        frame = pd.read_csv(folder / "bank_additional_full.csv.gz", na_values="unknown")
        frame = frame.drop(columns="duration")  # known only once the target is
        first = int(0.8 * len(frame))
        train, test, target = frame[:first], frame[first:], "y"
    return (
        train.drop(columns=target),
        train[target].astype(str),
        test.drop(columns=target),
        test[target].astype(str),
    )


def boosting(**settings):
    return HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=0, **settings
    )


def as_categories(X, X_test):
    """Strings as pandas categories of the training part, which is what boosting takes."""
    X, X_test = X.copy(), X_test.copy()
    for name in X.select_dtypes(exclude="number"):
        X[name] = X[name].astype("category")
        X_test[name] = pd.Categorical(X_test[name], categories=X[name].cat.categories)
    return X, X_test


CLASSIFIERS = {
    "tabular": lambda: TabularEnsembleClassifier(random_state=0),
    "plain": lambda: DeepEnsembleClassifier(random_state=0),
    "boosting": boosting,
    "boosting, early stopped": lambda: boosting(early_stopping=True, max_iter=1000),
    **{
        f"boosting, {method}": lambda method=method: CalibratedClassifierCV(
            boosting(), method=method
        )
        for method in ("isotonic", "sigmoid", "temperature")
    },
}


def classified(model, data):
    """Scores of a classifier."""
    X, y, X_test, y_test = data
    if not isinstance(model, DeepEnsembleClassifier | TabularEnsembleClassifier):
        X, X_test = as_categories(X, X_test)
    model.fit(X, y)
    proba = model.predict_proba(X_test)
    codes = np.searchsorted(model.classes_, y_test)
    return {
        "nll": log_loss(y_test, proba, labels=model.classes_),
        "ece": float(ece_loss(codes, proba)),
        "accuracy": accuracy_score(codes, proba.argmax(axis=1)),
    }


def classification(data_dir, sets, methods):
    for name in sets:
        data = table(data_dir, name)
        for method in methods:
            once(
                {"part": "classification", "set": name, "method": method},
                partial(classified, CLASSIFIERS[method](), data),
            )


def mean_and_error(records, name):
    values = np.array([r[name] for r in records], float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():8.3f} ±{error:6.3f}"


def print_regression():
    columns = ("nll", "nll_mixture", "rmse", "crps", "coverage_90")
    for name in (*SMALL, *LARGE):
        rows = {
            variant: known(part="regression", set=name, variant=variant) for variant in VARIANTS
        }
        rows |= {f"AutoDEUQ, {n} trials": known(part="search", set=name, n_trials=n) for n in (60,)}
        rows = {variant: records for variant, records in rows.items() if records}
        if not rows:
            continue
        print(f"\n{name}{'':27s}{'splits':>8s}" + "".join(f"{c:>17s}" for c in columns))
        for variant, records in rows.items():
            cells = "".join(f"{mean_and_error(records, c):>17s}" for c in columns)
            worst = max(r["nll"] for r in records) - np.median([r["nll"] for r in records])
            seconds = np.median([r["seconds"] for r in records])
            print(
                f"  {variant:30s}{len(records):5d}{cells}  worst split +{worst:.2f}, {seconds:.0f}s"
            )
        if name in GOALS:
            print(f"  goal: NLL {GOALS[name][0]}, RMSE {GOALS[name][1]}")
        for peer, figures in MEASURED.get(name, {}).items():
            shown = "".join(f"{'-' if f is None else f'{f:.3f}':>17s}" for f in figures)
            print(f"  measured: {peer:30s}{'':12s}{shown}")
    print_mean_ranks()


def print_mean_ranks():
    """Print mean ranks by NLL over the small sets, on the splits that both have."""
    ranks, pairs = [], 0
    for name in SMALL:
        ours, searched = (
            {r["split"]: r["nll"] for r in records}
            for records in (
                known(part="regression", set=name, variant="tabular"),
                known(part="search", set=name, n_trials=60),
            )
        )
        both = sorted(set(ours) & set(searched))
        pairs += len(both)
        if both:
            means = [np.mean([part[s] for s in both]) for part in (ours, searched)]
            ranks.append(rankdata(means))
    if ranks:
        print(
            f"\nmean rank by NLL over {len(ranks)} sets, {pairs} pairs of runs: one recipe, "
            f"search: {np.mean(ranks, axis=0)}"
        )


def print_tuning():
    for variant in TRIED:
        records = known(part="tuning", variant=variant)
        if records:
            means = [np.mean([r[c] for r in records]) for c in ("nll", "nll_mixture", "crps")]
            shown = "".join(f"{mean:10.3f}" for mean in means)
            print(f"tried: {variant:32s}{len(records):4d} runs, NLL, mixture's, CRPS:{shown}")
    print(f"\n{'tried for classes: NLL':54s}" + "".join(f"{name:>12s}" for name in TABLES))
    for variant in TRIED_CLASSES:
        nll = {r["set"]: r["nll"] for r in known(part="tuning classes", variant=variant)}
        if nll:
            print(f"{variant:54s}" + "".join(f"{nll.get(name, np.nan):12.4f}" for name in TABLES))


def print_classification():
    for name in TABLES:
        records = known(part="classification", set=name)
        if records:
            print(f"\n{name:30s}{'NLL':>10s}{'ECE':>10s}{'accuracy':>10s}{'seconds':>10s}")
        for r in records:
            print(
                f"  {r['method']:28s}{r['nll']:10.4f}{r['ece']:10.4f}{r['accuracy']:10.4f}"
                f"{r['seconds']:10.1f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parts = (
        "regression",
        "ablations",
        "classification",
        "search",
        "large",
        "tuning",
        "tuning-classes",
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--methods", nargs="+", choices=CLASSIFIERS, default=list(CLASSIFIERS))
    parser.add_argument("--n-trials", type=int, default=60)
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    a = parser.parse_args()
    if not a.summary:
        if "regression" in a.only:
            regression(a.data_dir, a.sets or SMALL, a.splits, ["tabular"])
        if "classification" in a.only:
            classification(a.data_dir, a.sets or TABLES, a.methods)
        if "ablations" in a.only:
            regression(a.data_dir, a.sets or SMALL, a.splits, a.variants)
        if "tuning" in a.only:
            tuning(a.data_dir)
        if "tuning-classes" in a.only:
            tuning_classes(a.data_dir, a.sets or TABLES)
        if "search" in a.only:
            search(a.data_dir, a.sets or SMALL, a.splits, a.n_trials)
        if "large" in a.only:
            for name in a.sets or LARGE:
                splits = [0] if name == "protein" else [s for s in a.splits if s < 3]
                regression(a.data_dir, [name], splits, ["tabular"])
    print_regression()
    print_tuning()
    print_classification()


if __name__ == "__main__":
    main()
