"""Networks for tables: regression, search, and what each part is worth; classes: classes.py.

    python benchmarks/tabular.py --data-dir DIR                       # all that is not done yet
    python benchmarks/tabular.py --data-dir DIR --only regression --sets yacht concrete
    python benchmarks/tabular.py --data-dir DIR --only ablations --variants "loss: nll"

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
from _data import uci
from _stored import STORED, add, matches, read
from published import MEASURED
from scipy.stats import rankdata
from uci_regression import scores

from skuq import (
    AutoDEUQRegressor,
    DeepEnsembleRegressor,
    TabularEnsembleRegressor,
)
from skuq.exceptions import SmallValidationWarning
from skuq.networks import TabularNetwork
from skuq.training import Training

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


def search(data_dir, sets, splits, n_trials):
    for name in sets:
        for split in splits:
            model = AutoDEUQRegressor(n_trials=n_trials, random_state=split, verbose=1)
            once(
                {"part": "search", "set": name, "split": split, "n_trials": n_trials},
                partial(fitted, model, uci(data_dir, name, split)),
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parts = (
        "regression",
        "ablations",
        "search",
        "large",
        "tuning",
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--n-trials", type=int, default=60)
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    a = parser.parse_args()
    if not a.summary:
        if "regression" in a.only:
            regression(a.data_dir, a.sets or SMALL, a.splits, ["tabular"])
        if "ablations" in a.only:
            regression(a.data_dir, a.sets or SMALL, a.splits, a.variants)
        if "tuning" in a.only:
            tuning(a.data_dir)
        if "search" in a.only:
            search(a.data_dir, a.sets or SMALL, a.splits, a.n_trials)
        if "large" in a.only:
            for name in a.sets or LARGE:
                splits = [0] if name == "protein" else [s for s in a.splits if s < 3]
                regression(a.data_dir, [name], splits, ["tabular"])
    print_regression()
    print_tuning()


if __name__ == "__main__":
    main()
