"""Benchmarks on tables of numbers: all regressors, peers, calibration, gaps, costs, equal time.

- regression: the field. skuq's settings were chosen on inner parts of the training rows of the UCI
  sets (splits 0 to 2) and of bike, those of peers not. Peers of `peer.py` run in virtual
  environments of their own, made if they are missing, with ``--peers-dir``.
- baselines: deep ensembles, hyper deep ensembles, MC dropout.
- neon: NEON's defaults on tables.
- autodeuq: searches of the paper's space. In its Table I, of 500 trials (60 on large sets), seeds
  are those of the split into training and validation rows, on split 0 of the UCI sets.
- calibration: coverage of 90 % intervals and NLL. Bike is trained on nine tenths of 2011 and judged
  on the other tenth and on 2012. Goals: 90 % within two points, NLL not worse by more than 0.005.
- gaps: tested where a feature (the seed) has its middle third or its outer sixths, trained on all
  other rows (github.com/nnuncert/nnuncert); features that it takes for categories are left out.
- costs: processor seconds of a fit with default settings; the first fit of a process.
- equal_time: AutoDEUQ in once and three times the recipe's processor time.
"""

import importlib.util
import os
import subprocess
import tempfile
import time
import venv
from functools import partial
from pathlib import Path
from unittest import mock

import joblib
import numpy as np
from data import (
    CLASSES,
    LARGE,
    LARGE_CLASSES,
    REGRESSION,
    SMALL,
    SUITE,
    SUITE_CLASSES,
    bike_rows,
    parts,
    uci,
    uci_rows,
)
from peer import LEVELS, REQUIREMENTS
from runner import Benchmark, each
from scipy.stats import norm
from scores import Predicted, Quantiles, regression_scores
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import skuq


def estimator(make):
    """Make a method of a function of the seed that makes an estimator."""

    def predict(X, y, X_test, seed):
        model = make(seed)
        started = time.perf_counter()
        model.fit(X, y)
        fitted = time.perf_counter()
        mean, std = model.predict(X_test, return_std=True)
        ended = time.perf_counter()
        seconds = fitted - started, ended - fitted
        if isinstance(model, Pipeline):  # a Gaussian process
            return Predicted(mean, std, *seconds)
        return Predicted(mean, std, *seconds, model.predict_distribution(X_test))

    return predict


def boosted_quantiles(X, y, X_test, seed):
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
    middle = quantiles[len(LEVELS) // 2]
    return Predicted(middle, std, fitted - started, ended - fitted, Quantiles(quantiles))


def gaussian_process(X, y, X_test, seed):
    """A process with a length scale for each feature."""
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1]), (1e-2, 1e4)) + WhiteKernel()
    restarts = {"n_restarts_optimizer": 2, "random_state": seed}
    process = GaussianProcessRegressor(kernel, normalize_y=True, **restarts)
    model = make_pipeline(StandardScaler(), process)
    return estimator(lambda _: model)(X, y, X_test, seed)


def peer_python(method):
    """The interpreter of a peer's virtual environment, which is made if it is missing."""
    home = Path(os.environ["SKUQ_PEERS_DIR"])
    home /= "-".join(sorted(REQUIREMENTS[method])).replace("<", "_")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS[method]], check=True)
        (home / "ready").touch()
    return python


def peer(method, X, y, X_test, seed):
    """Run a peer in its environment, in a process of its own."""
    python = peer_python(method)
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "in.npz", Path(scratch) / "out.npz"
        np.savez(source, X=X, y=y, X_test=X_test)
        script = Path(__file__).with_name("peer.py")
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, script, method, source, target]
        subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
        found = dict(np.load(target))
    samples = found.pop("samples", None)
    if samples is not None:
        found["distribution"] = Quantiles(np.quantile(samples, LEVELS, axis=0))
    return Predicted(**found, has_density=samples is None)


def scored(data, method, seed):
    X, y, X_test, y_test = data
    return regression_scores(method(X, y, X_test, seed), y_test)


def seeded(kind, **settings):
    """A method whose seed is that of the row, unless one is given."""
    return estimator(lambda seed: getattr(skuq, kind)(**{"random_state": seed} | settings))


fixed = partial(seeded, random_state=0)


# The methods of the pages, and what they are called there.
FIELD = {
    "tabular": "**skuq, tabular**",
    "plain": "skuq, plain",
    "gaussian process": "Gaussian process",
    "ngboost": "NGBoost",
    "catboost": "CatBoost",
    "treeffuser": "Treeffuser",
    "boosted quantiles": "boosted quantiles",
}
FIELD_METHODS = {
    "tabular": fixed("TabularEnsembleRegressor"),
    "plain": fixed("DeepEnsembleRegressor"),
    "boosted quantiles": boosted_quantiles,
    "gaussian process": gaussian_process,
    **{name: partial(peer, name) for name in REQUIREMENTS},
}
N_SPLITS = dict.fromkeys(REGRESSION, 5) | dict.fromkeys(LARGE, 3) | {"protein": 1, "bike": 1}


def can_run(method):
    """Say whether a method is of skuq or the folder of peers exists."""
    return not isinstance(method, partial) or "SKUQ_PEERS_DIR" in os.environ


def in_field(problem, method):
    """Gaussian processes run on sets of up to 1,500 training rows."""
    if not can_run(FIELD_METHODS[method]):
        return False
    return method != "gaussian process" or problem not in (*LARGE, "bike", "compactiv")


BASELINES = {
    "deep ensemble": seeded("DeepEnsembleRegressor"),
    "hyper ensemble": seeded("HyperDeepEnsembleRegressor"),
    "MC dropout": seeded("MCDropoutRegressor"),
}
ON_TABLES = {
    "neon": fixed("NEONRegressor"),
    "plain": fixed("DeepEnsembleRegressor"),
}


def uci_sets(*names):
    return {name: REGRESSION[name] for name in names}


# AutoDEUQ


def search(data, n_trials, seed):
    """A search of the paper's space: 100 trials on the split of the seed, others on split 0."""
    paper = n_trials != 100
    X, y, X_test, y_test = data(0 if paper else seed)
    changes = {"random_state": seed if paper else seed + 1}
    # A population of 100 would leave 100 trials at random.
    changes |= {} if n_trials == 500 else {"search": "agebo"}
    model = skuq.AutoDEUQRegressor.from_paper(n_trials=n_trials, n_jobs=2, **changes)
    row = regression_scores(estimator(lambda _: model)(X, y, X_test, seed), y_test)
    selection, frame = model.selection_, model.catalog_.to_frame()
    row |= {"n_members": len(selection), "weights": selection.weights.round(4).tolist()}
    return row | {
        "validation_loss": selection.loss,
        "n_failed": int((frame.status == "failed").sum()),
    }


# Calibration

CALIBRATIONS = ("as it is", "scale", "conformal")
N_CALIBRATED = dict.fromkeys(SMALL, 10) | {"bike": 5, "kin8nm": 3, "power": 3, "naval": 3}
N_CALIBRATED["protein"] = 1
FOLDS = KFold(5, shuffle=True, random_state=0)  # shuffled: rows of some sets are sorted


def with_parts(name, split):
    """X and y to train on, and the parts to test on."""
    if name != "bike":
        X, y, *test = uci(name, split)
        return X, y, {name: tuple(test)}
    X, y, late = bike_rows()
    order = np.random.default_rng(split).permutation(np.flatnonzero(~late))
    test, train = np.split(order, [len(order) // 10])
    return X[train], y[train], {"bike 2011": (X[test], y[test]), "bike 2012": (X[late], y[late])}


def calibrated(data, methods, seed, kept):
    """Judge all calibrations on one fit of the ensemble and of its folds."""
    X, y, parts = data
    ensemble = skuq.DeepEnsembleRegressor(random_state=seed)
    model = skuq.CalibratedUncertaintyRegressor(ensemble, "conformal", cv=FOLDS).fit(X, y)
    rows = {name: {} for name in CALIBRATIONS}
    for part, (X_test, y_test) in parts.items():
        plain = model.estimator_.predict_distribution(X_test)
        scaled = model.predict_distribution(X_test)  # that of "scale"
        ends = plain.interval(0.9), scaled.interval(0.9), model.predict_interval(X_test, 0.9)
        for name, distribution, (low, high) in zip(rows, (plain, scaled, scaled), ends):
            rows[name][part] = {
                "coverage": float(np.mean((low <= y_test) & (y_test <= high))),
                "width": float(np.mean(high - low)),
                "nll": float(-distribution.log_prob(y_test).mean()),
            }
    yield from rows.items()


# Gaps and tails

#: Columns of continuous features, as in the published table; None: all.
CONTINUOUS = dict.fromkeys(("yacht", "concrete", "kin8nm", "power")) | {
    "boston": [0, 1, 2, *range(4, 13)],
    "energy": [0, 1, 2, 3, 6],
    "wine": [*range(7), *range(8, 11)],
}
N_FEATURES = {"yacht": 6, "boston": 12, "concrete": 8, "energy": 5, "wine": 10}
N_FEATURES |= {"kin8nm": 8, "power": 4}


def without(kind, name, seed):
    """Test the middle third, or the outer sixths, of the rows sorted by a feature."""
    X, y = uci_rows(name)
    order = np.argsort(X[:, (CONTINUOUS[name] or range(X.shape[1]))[seed]], kind="stable")
    n = len(y)
    if kind == "gaps":
        return parts(X, y, order[n // 3 : 2 * n // 3])
    return parts(X, y, np.r_[order[: -(-n // 6)], order[5 * n // 6 :]])


# Costs

COSTS = {
    "tabular": skuq.TabularEnsembleRegressor(random_state=0),
    "tabular, second fit": skuq.TabularEnsembleRegressor(random_state=0),
    "tabular, classes": skuq.TabularEnsembleClassifier(random_state=0),
    "plain": skuq.DeepEnsembleRegressor(random_state=0),
    "mc dropout": skuq.MCDropoutRegressor(random_state=0),
    "hyper ensemble": skuq.HyperDeepEnsembleRegressor(random_state=0),
    "nomu": skuq.NOMURegressor(random_state=0),
    "neon": skuq.NEONRegressor(random_state=0),
    "operator ensemble": skuq.OperatorEnsembleRegressor(random_state=0),
    "nes": skuq.NESRegressor(space="dense", random_state=0),
    "autodeuq": skuq.AutoDEUQRegressor(random_state=0),
    "boosting": HistGradientBoostingRegressor(random_state=0),
    "gaussian process": GaussianProcessRegressor(
        RBF(np.ones(10)) + WhiteKernel(), normalize_y=True
    ),
}
if importlib.util.find_spec("catboost"):
    from catboost import CatBoostRegressor

    COSTS["catboost"] = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", verbose=0, allow_writing_files=False
    )
ON_MANY_ROWS = ("tabular", "tabular, classes", "plain", "mc dropout", "boosting")


def friedman(n_rows, seed):
    return make_friedman1(n_samples=n_rows, n_features=10, noise=1.0, random_state=0)


def cost(data, method, seed):
    """Seconds of one fit; classes are the terciles of the values."""
    X, y = data
    if isinstance(method, skuq.TabularEnsembleClassifier):
        y = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    if method is COSTS["tabular, second fit"]:  # its program is compiled
        method.fit(X, y)
    processor, clock = sum(os.times()[:4]), time.perf_counter()
    method.fit(X, y)
    return {
        "processor_seconds": sum(os.times()[:4]) - processor,
        "seconds": time.perf_counter() - clock,
    }


def costs_usually(problem, method):
    few = problem == "1000" or (problem == "10000" and method == "hyper ensemble")
    return few or method in ON_MANY_ROWS


# Equal time


def after_time(data, times, seed):
    """Fit the recipe, and a search in so many times its time, each after its programs are compiled.

    The clock is the processor's, whose time other work on the machine does not take.
    """
    X, y, X_test, y_test = data
    kind = "Regressor" if y.dtype.kind == "f" else "Classifier"
    recipe = getattr(skuq, f"TabularEnsemble{kind}")(random_state=seed)
    search = getattr(skuq, f"AutoDEUQ{kind}")(n_trials=4 * times, random_state=seed)
    clock, row = dict.fromkeys(["monotonic", "perf_counter"], time.process_time), {}
    with mock.patch.multiple(time, **clock), joblib.parallel_config(n_jobs=1):
        for model, name in ((recipe, "_recipe"), (search, "")):
            model.fit(X, y)
            if model is search:
                search.set_params(n_trials="auto", max_time=times * row["seconds_recipe"])
            started = time.process_time()
            model.fit(X, y)
            row[f"seconds{name}"] = time.process_time() - started
            row[f"nll{name}"] = -float(np.mean(model.log_prob(X_test, y_test)))
            if kind == "Regressor":
                row[f"crps{name}"] = float(np.mean(model.predict_distribution(X_test).crps(y_test)))
    return row | {"n_trials": len(model.catalog_), "n_networks": len(model.fitted_.members)}


TIMED = {name: REGRESSION[name] for name in (*SMALL, "kin8nm", "power", *SUITE)}
TIMED |= {name: CLASSES[name] for name in (*LARGE_CLASSES, *SUITE_CLASSES)}

BENCHMARKS = {
    "regression": Benchmark(REGRESSION, FIELD_METHODS, each(scored), N_SPLITS, in_field),
    "baselines": Benchmark(uci_sets(*SMALL), BASELINES, each(scored), 5),
    "neon": Benchmark(uci_sets(*SMALL), ON_TABLES, each(scored), 5),
    "autodeuq": Benchmark(
        {name: lambda seed, name=name: partial(uci, name) for name in (*SMALL, *LARGE)},
        {"100 trials": 100, "500 trials": 500, "60 trials": 60},
        each(search),
        5,
        lambda problem, method: problem in ("yacht", "concrete") and method == "100 trials",
    ),
    "calibration": Benchmark(
        {name: partial(with_parts, name) for name in N_CALIBRATED},
        dict.fromkeys(CALIBRATIONS),
        calibrated,
        N_CALIBRATED,
    ),
    "gaps": Benchmark(
        {
            f"{name}, {kind}": partial(without, kind, name)
            for kind in ("gaps", "tails")
            for name in N_FEATURES
        },
        {method: FIELD_METHODS[method] for method in ("tabular", "plain", "gaussian process")}
        | {"catboost": FIELD_METHODS["catboost"]},
        each(scored),
        {f"{name}, {kind}": n for name, n in N_FEATURES.items() for kind in ("gaps", "tails")},
        lambda problem, method: (
            in_field(problem.split(",")[0], method)
            and not (problem.startswith("wine") and method == "gaussian process")  # slow
        ),
    ),
    "costs": Benchmark(
        {str(n): partial(friedman, n) for n in (1_000, 10_000, 100_000)},
        COSTS,
        each(cost),
        usual=costs_usually,
        alone={},
    ),
    "equal_time": Benchmark(TIMED, {"once": 1, "three times": 3}, each(after_time), 3, alone={}),
}
