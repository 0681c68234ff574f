"""One table against the field: distributions on tables, by skuq and by its rivals.

    python benchmarks/leaderboard.py --data-dir DIR --rivals-dir VENVS     # all that is missing
    python benchmarks/leaderboard.py --data-dir DIR --only regression --methods tabular --sets wine
    python benchmarks/leaderboard.py --data-dir DIR --summary                   # tables and picture

Every finished run is written to ``benchmarks/results/leaderboard.json`` at once and not repeated.
Rivals run in virtual environments of their own below `--rivals-dir`, made when they are missing;
without it only what is installed here runs. Settings are documented defaults; CatBoost and NGBoost
stop early on a tenth of the rows. skuq's were chosen on inner parts of the training rows of the UCI
sets (splits 0 to 2), of bike and, for classes, of all sets but cancer and digits; rivals were not
tuned. Seconds: skuq's first fit imports TensorFlow, later ones reuse programs; rivals run in
processes of their own, whose imports are mostly not counted. `nll` and `crps` are those of the
normal with the predicted mean and standard deviation, which every method has; `nll_own`, `crps_own`
and intervals are of the distribution that the method predicts (samples have no density). Regression
on the sets of the suite is run, too, and with ``--full`` all 20 splits of the small sets and 5 of
the large ones; the tables have the first five, three or one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from _data import bike, uci
from _field import LEVELS, REQUIREMENTS
from _field import METHODS as RIVALS
from _stored import STORED, add, matches, read
from classes import CLASSIFIERS, PACKAGES, as_categories, table
from scipy.integrate import simpson
from scipy.stats import norm, rankdata, studentized_range
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular import LARGE, SMALL

from skuq import (
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    TabularEnsembleClassifier,
    TabularEnsembleRegressor,
)
from skuq.metrics import brier_loss, crps_loss, ece_loss, gaussian_nll_loss
from skuq.predictive import GaussianMixture

RESULTS = STORED / "leaderboard.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "leaderboard.png"
REGRESSION = (*SMALL, "diabetes", *LARGE, "bike")
SUITE = (
    "boom_bikes",
    "compactiv",
    "excitation_current",
    "medical_cost",
    "mortgage",
    "qsar_fish_toxicity",
    "real_estate_valuation",
    "wankara",
)
CLASSES = ("letter", "pendigits", "adult", "bank", "electricity", "cancer", "digits")
SMALL_CLASSES = ("cancer", "digits")  # scikit-learn's, several random splits
N_SPLITS = dict.fromkeys((*SMALL, "diabetes", *SMALL_CLASSES), 5)
N_SPLITS |= dict.fromkeys(LARGE, 3) | {"protein": 1} | dict.fromkeys(SUITE, 5)
FULL_SPLITS = dict.fromkeys(SMALL, 20) | dict.fromkeys(LARGE, 5)
# The methods of the tables, and what they are called there.
FIELD = {
    "tabular": "**skuq, tabular**",
    "plain": "skuq, plain",
    "gaussian process": "Gaussian process",
    "ngboost": "NGBoost",
    "catboost": "CatBoost",
    "treeffuser": "Treeffuser",
    "boosted quantiles": "boosted quantiles",
}
COVERAGES = (0.5, 0.8, 0.9, 0.95)
N_WORST = 3  # rows of largest NLL that are stored
LARGEST_GP = 1500  # rows


def regression_data(data_dir, name, split):
    """X, y of the training and of the test part."""
    if name == "diabetes":
        X, y = datasets.load_diabetes(return_X_y=True)
        order = np.random.RandomState(split).permutation(len(X))
        train, test = order[: int(0.9 * len(X))], order[int(0.9 * len(X)) :]
    elif name == "bike":
        X, counts, _ = bike(data_dir)
        y, first = np.log1p(counts), int(0.8 * len(X))
        train, test = np.arange(first), np.arange(first, len(X))  # later times
    elif name in SUITE:
        stored = np.load(data_dir / "suite" / "regression" / f"{name}.npz")
        X, y, test = stored["X"], stored["y"], stored["test_idx"][split]
        train = np.setdiff1d(np.arange(len(X)), test)
    else:
        return uci(data_dir, name, split)
    return X[train], y[train], X[test], y[test]


def from_estimator(make):
    """Predictions of a regressor with ``predict(X, return_std=True)``, and its own intervals."""

    def run(X, y, X_test):
        model = make()
        started = time.perf_counter()
        model.fit(X, y)
        fitted = time.perf_counter()
        mean, std = model.predict(X_test, return_std=True)
        ended = time.perf_counter()
        predicted = {"mean": mean, "std": std, "started": started, "fitted": fitted, "ended": ended}
        if hasattr(model, "predict_distribution"):
            predicted["distribution"] = model.predict_distribution(X_test)
        return predicted

    return run


def boosted_quantiles(X, y, X_test):
    """Scikit-learn's boosting at 19 levels, with the normal that has the outer quantiles."""
    started = time.perf_counter()
    models = [
        HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(X, y)
        for q in LEVELS
    ]
    fitted = time.perf_counter()
    quantiles = np.sort([model.predict(X_test) for model in models], axis=0)
    ended = time.perf_counter()
    std = np.maximum((quantiles[-1] - quantiles[0]) / (2 * norm.ppf(LEVELS[-1])), 1e-6)
    times = {"started": started, "fitted": fitted, "ended": ended}
    return {"mean": quantiles[len(LEVELS) // 2], "std": std, "quantiles": quantiles.T, **times}


def gaussian_process():
    kernel = ConstantKernel() * RBF(np.ones(1)) + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2)
    return make_pipeline(StandardScaler(), process)


REGRESSORS = {
    "tabular": from_estimator(lambda: TabularEnsembleRegressor(random_state=0)),
    "plain": from_estimator(lambda: DeepEnsembleRegressor(random_state=0)),
    "boosted quantiles": boosted_quantiles,
    "gaussian process": from_estimator(gaussian_process),
}


def rival_python(folder, method):
    """The interpreter of a rival's virtual environment, which is made if it is missing."""
    home = folder / "-".join(sorted(REQUIREMENTS[method])).replace("<", "_")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS[method]], check=True)
        (home / "ready").touch()
    return python


def run_rival(folder, method, X, y, X_test):
    """Run a rival in its environment, in a process of its own."""
    python = rival_python(folder, method)
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "in.npz", Path(scratch) / "out.npz"
        np.savez(source, X=X, y=y, X_test=X_test)
        script = Path(__file__).with_name("_field.py")
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, script, method, source, target]
        subprocess.run(command, check=True, capture_output=True, env=alone)
        predicted = dict(np.load(target))
    predicted |= {"started": 0.0, "fitted": float(predicted["fit_seconds"])}
    predicted["ended"] = predicted["fitted"] + float(predicted["predict_seconds"])
    return predicted


def predicted_distribution(predicted):
    """The distribution that a method predicts; of samples their quantiles, with `has_density`."""
    if "distribution" in predicted:
        return predicted["distribution"], True
    if "samples" in predicted:
        values = np.quantile(predicted["samples"], LEVELS, axis=0)
        return spread_quantiles(values), False
    if "quantiles" in predicted:
        return spread_quantiles(predicted["quantiles"].T), True
    return GaussianMixture(predicted["mean"][None], predicted["std"][None]), True


def spread_quantiles(values):
    """Distribution with quantiles (19, n) at `LEVELS`; equal ones get a little spread."""
    least = 1e-3 * np.maximum(np.ptp(values, axis=0), 1e-9) / len(values)
    return Quantiles(values + least * np.arange(len(values))[:, None])


class Quantiles:
    """Distribution of each row with these quantiles (19, n) at `LEVELS`.

    The density is constant between levels, and falls exponentially beyond the outermost ones.
    """

    def __init__(self, values):
        self.values, self.density = values, np.diff(LEVELS)[:, None] / np.diff(values, axis=0)
        # Scales of the tails, by which the density is continuous.
        self.below, self.above = LEVELS[0] / self.density[0], (1 - LEVELS[-1]) / self.density[-1]

    def cdf(self, y):
        """Of y (n,) or (n, k)."""
        parts = self.values, self.below, self.above
        values, low, high = (part[..., None] if y.ndim > 1 else part for part in parts)
        below = LEVELS[0] * np.exp(np.minimum(y - values[0], 0) / low)
        above = (1 - LEVELS[-1]) * -np.expm1(np.minimum(values[-1] - y, 0) / high)
        share = np.clip((y - values[:-1]) / np.diff(values, axis=0), 0, 1)
        return below + above + np.tensordot(np.diff(LEVELS), share, 1)

    def log_prob(self, y):
        piece = np.clip((y >= self.values).sum(axis=0) - 1, 0, len(self.density) - 1)
        inside = np.log(np.take_along_axis(self.density, piece[None], axis=0)[0])
        low = np.minimum(y - self.values[0], 0) / self.below
        return inside + low + np.minimum(self.values[-1] - y, 0) / self.above

    def quantile(self, levels):
        """Quantiles (n, k) at k levels."""
        p = np.asarray(levels)[:, None]
        low = self.below * np.minimum(np.log(p / LEVELS[0]), 0)
        high = self.above * np.minimum(np.log((1 - p) / (1 - LEVELS[-1])), 0)
        share = np.clip((p[:, None] - LEVELS[:-1, None]) / np.diff(LEVELS)[:, None], 0, 1)
        return (self.values[0] + (share * np.diff(self.values, axis=0)).sum(axis=1) + low - high).T

    def interval(self, coverage):
        return self.quantile([(1 - coverage) / 2, (1 + coverage) / 2])


def exact_crps(distribution, y, n_points=401):
    """CRPS of each row: the integral of (F - 1{y <= .})^2, by Simpson's rule on either side."""
    low, high = distribution.quantile([1e-5, 1 - 1e-5]).T
    total = 0.0
    for end in (np.minimum(low, y), np.maximum(high, y)):
        grid = np.linspace(end, y, n_points, axis=1)
        beyond = distribution.cdf(grid) - (end > y)[:, None]
        total = total + abs(simpson(beyond**2, x=grid, axis=1))
    return total


def regression_scores(predicted, y):
    mean, std = predicted["mean"], predicted["std"]
    distribution, has_density = predicted_distribution(predicted)
    scores = {
        "nll": gaussian_nll_loss(y, mean, std),
        "crps": crps_loss(y, mean, std),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "crps_own": float(exact_crps(distribution, y).mean()),
        "nll_own": None,
    }
    if has_density:
        losses = -distribution.log_prob(y)
        worst = np.argsort(-losses)[:N_WORST]
        scores["nll_own"] = float(losses.mean())
        scores["worst_rows"] = [[int(row), float(losses[row])] for row in worst]
    for level in COVERAGES:
        low, high = distribution.interval(level).T
        name = f"{level * 100:.0f}"
        scores[f"coverage_{name}"] = float(np.mean((low <= y) & (y <= high)))
        scores[f"width_{name}"] = float(np.mean(high - low))
    return {
        **scores,
        "coverage": scores["coverage_90"],  # the names of earlier records
        "width": scores["width_90"],
        "sharpness": float(np.sqrt(np.mean(std**2))),
        "fit_seconds": predicted["fitted"] - predicted["started"],
        "predict_seconds": predicted["ended"] - predicted["fitted"],
    }


def class_data(data_dir, name, split):
    """X, y of the training and of the test part."""
    if name in SMALL_CLASSES:
        load = {"cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}[name]
        X, y = load(return_X_y=True, as_frame=True)
        cut = StratifiedShuffleSplit(1, test_size=0.2, random_state=split)
        train, test = next(cut.split(X, y))
        return X.iloc[train], y.iloc[train].astype(str), X.iloc[test], y.iloc[test].astype(str)
    if name == "electricity":
        frame = pd.read_csv(data_dir / "tabular" / "electricity.csv.gz")
        first, y = int(0.8 * len(frame)), frame["class"].astype(str)
        X = frame.drop(columns="class")
        return X[:first], y[:first], X[first:], y[first:]
    return table(data_dir, name)


def class_scores(method, data):
    X, y, X_test, y_test = data
    model = CLASSIFIERS[method]()
    if not isinstance(model, DeepEnsembleClassifier | TabularEnsembleClassifier):
        X, X_test = as_categories(X, X_test)
    started = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    proba = model.predict_proba(X_test)
    ended = time.perf_counter()
    codes = np.searchsorted(model.classes_, y_test)
    return {
        "nll": log_loss(y_test, proba, labels=model.classes_),
        "brier": float(brier_loss(codes, proba)),
        "ece": float(ece_loss(codes, proba)),
        "error": 1 - accuracy_score(codes, proba.argmax(axis=1)),
        "fit_seconds": fitted - started,
        "predict_seconds": ended - fitted,
    }


def once(key, run, needs=None):
    """Run what has no record yet, or one without the score `needs`; a failure is a record, too."""
    found = [record for record in read(RESULTS) if matches(record, key)]
    if any(needs is None or needs in record or "failed" in record for record in found):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            record = {**key, **run()}
        except (subprocess.CalledProcessError, ValueError, FloatingPointError) as error:
            reason = getattr(error, "stderr", None) or str(error).encode()
            record = {**key, "failed": reason.decode(errors="replace")[-300:]}
    add(RESULTS, record, tuple(key))
    print(record, flush=True)


def run_regression(data_dir, rivals_dir, names, methods, n_splits):
    for name in names:
        for split in range(n_splits.get(name, 1)):
            data = regression_data(data_dir, name, split)
            for method in methods:
                if method == "gaussian process" and len(data[0]) > LARGEST_GP:
                    continue
                if method in RIVALS:
                    if rivals_dir is None:
                        continue
                    rival_python(rivals_dir, method)
                key = {"part": "regression", "set": name, "split": split, "method": method}
                once(key, partial(fit_and_score, rivals_dir, method, *data), "nll_own")


def fit_and_score(rivals_dir, method, X, y, X_test, y_test):
    """Fit a regressor of skuq or of a rival, and score its predictions."""
    if method in REGRESSORS:
        predicted = REGRESSORS[method](X, y, X_test)
    else:
        predicted = run_rival(rivals_dir, method, X, y, X_test)
    return regression_scores(predicted, y_test)


def run_classes(data_dir, names, methods):
    for name in names:
        for split in range(N_SPLITS.get(name, 1)):
            data = class_data(data_dir, name, split)
            for method in methods:
                key = {"part": "classes", "set": name, "split": split, "method": method}
                once(key, partial(class_scores, method, data))


def mean_scores(part, score):
    """Frame of methods by sets: means over splits; and the standard errors.

    A method has a mean where all splits of a set have succeeded.
    """
    found = [r for r in read(RESULTS) if r["part"] == part and r.get(score) is not None]
    frame = pd.DataFrame([r for r in found if r["split"] < N_SPLITS.get(r["set"], 1)])
    if frame.empty:
        return frame, frame
    grouped = frame.groupby(["method", "set"])[score]
    wanted = [N_SPLITS.get(name, 1) for _, name in grouped.groups]
    means = grouped.mean()[(grouped.size() == wanted).to_numpy()].unstack()
    order = [name for name in (*REGRESSION, *SUITE, *CLASSES) if name in means]
    return means[order], grouped.sem().unstack().reindex(index=means.index, columns=order)


def mean_ranks(means):
    """Mean rank of each method that has most sets, over the sets that all of them have."""
    most = means.dropna(thresh=means.notna().sum(axis=1).max() // 2)
    complete = most.dropna(axis=1)
    ranks = complete.apply(lambda column: pd.Series(rankdata(column), column.index))
    return ranks.mean(axis=1).sort_values(), complete.shape[1]


def summarise():
    for part, columns in (
        ("regression", ("nll_own", "crps_own", "nll", "crps", "rmse", "coverage", "fit_seconds")),
        ("classes", ("nll", "brier", "ece", "error", "fit_seconds")),
    ):
        if not any(r["part"] == part for r in read(RESULTS)):
            continue
        for score in columns:
            means, errors = mean_scores(part, score)
            if means.empty:
                continue
            print(f"\n{part}: {score}")
            shown = means.round(3).astype(str) + " ± " + errors.round(3).astype(str).fillna("nan")
            print(shown.to_string().replace("nan ± nan", "-").replace(" ± nan", ""))
            if score in ("nll_own", "crps_own", "nll", "crps", "brier"):
                ranks, n_sets = mean_ranks(means)
                print(f"mean rank over {n_sets} sets: {ranks.round(2).to_dict()}")
    draw()


def draw():
    """Critical-difference picture of mean ranks (Nemenyi's test, 5 %)."""
    means, _ = mean_scores("regression", "nll")
    if means.empty or not mean_ranks(means)[1]:
        return  # no set that all methods have run
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(7.5, 6), layout="constrained")
    for axis, score in zip(axes, ("nll", "crps")):
        means, _ = mean_scores("regression", score)
        ranks, n_sets = mean_ranks(means)
        k = len(ranks)
        critical = studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2)
        critical *= np.sqrt(k * (k + 1) / (6 * n_sets))
        for row, (method, rank) in enumerate(ranks.items()):
            colour = "#0072B2" if method in ("tabular", "plain") else "0.5"
            axis.plot(rank, row, "o", color=colour)
            label = FIELD.get(method, method).strip("*")
            axis.annotate(label, (rank, row), (6, 0), textcoords="offset points", va="center")
        best = ranks.iloc[0]
        axis.axvspan(best, best + critical, color="#56B4E9", alpha=0.2, lw=0)
        axis.set(
            xlim=(1 - 0.2, k + 1.2),
            ylim=(k - 0.5, -0.5),
            yticks=[],
            xlabel=f"mean rank by {score.upper()} over {n_sets} sets (1 is best; shaded: not "
            "different from the best by Nemenyi's test)",
        )
    figure.savefig(PICTURE, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--rivals-dir", type=Path)
    parser.add_argument("--only", choices=("regression", "classes"))
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--full", action="store_true", help="all splits, not those of the tables")
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    a = parser.parse_args()
    if not a.summary and a.only != "classes":
        names = [name for name in (*REGRESSION, *SUITE) if a.sets is None or name in a.sets]
        methods = a.methods or [*REGRESSORS, *RIVALS]
        methods = [m for m in methods if m in REGRESSORS or m in RIVALS]
        n_splits = N_SPLITS | FULL_SPLITS if a.full else N_SPLITS
        run_regression(a.data_dir, a.rivals_dir, names, methods, n_splits)
    if not a.summary and a.only != "regression":
        names = [name for name in CLASSES if a.sets is None or name in a.sets]
        methods = [m for m in (a.methods or CLASSIFIERS) if m in CLASSIFIERS and m not in PACKAGES]
        run_classes(a.data_dir, names, methods)
    summarise()


if __name__ == "__main__":
    sys.exit(main())
