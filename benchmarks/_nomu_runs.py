"""The parts of benchmarks/nomu.py: the list of runs, and the record of one run."""

import time
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from _data import uci, uci_rows
from _nomu_methods import METHODS, fit, gaussian_process, mean_std, nomu, rival
from _nomu_published import GRID
from problems import load_solar_irradiance, make_bnn_function, make_function, make_scarce_regression
from problems.functions import FUNCTIONS_1D, FUNCTIONS_2D
from sklearn.base import clone

from skuq.metrics import coverage_width_auc, gaussian_nll_loss

DEFAULT = "default"
#: The paper's settings for the gaps, with its remedy: gaps are held out too, and r sees X alone.
GAPS, GAP_CHANGES = "nomu_gaps", {"validation": "gaps", "network__connect_layers": 0}
#: The estimator's names of the numbers of the sensitivity analysis.
PARAMETERS = {
    **{name: f"loss__{name}" for name in ("pi_sqr", "pi_exp", "c_exp")},
    "n_artificial": "artificial__n",
}
#: The sensitivity analysis, by names that stand in place of a method's.
VARIANTS = {DEFAULT: {}} | {
    f"{name}={value:g}": {name: value}
    for name, grid in GRID.items()
    for value in grid
    if value != grid[2]
}
N_FEATURES = {"boston": 13, "concrete": 8, "energy": 8, "wine": 11, "yacht": 6}
UCI = tuple(N_FEATURES)
DIMENSIONS = (1, 2, 5, 10, 20)
BNN = {f"bnn{d}d": d for d in DIMENSIONS}
GAUSS = {f"gauss{d}d": d for d in DIMENSIONS}


class Part(NamedTuple):
    """Settings of one part of the benchmark, as chosen by `--only`."""

    settings: str  # for NOMURegressor.from_paper
    datasets: tuple  # all there are
    usual: tuple  # those run without --functions
    runs: int
    methods: tuple  # those run without --methods


PARTS = {
    "toy1d": Part("toy", FUNCTIONS_1D, FUNCTIONS_1D, 10, METHODS[:-1]),
    "toy2d": Part("toy", FUNCTIONS_2D, FUNCTIONS_2D, 10, ("nomu", *METHODS[2:5])),
    "testbed": Part("testbed", tuple(BNN), ("bnn1d", "bnn2d", "bnn5d"), 30, ("nomu", "gp")),
    "manifold": Part("testbed", tuple(GAUSS), ("gauss1d",), 30, ("nomu", "gp")),
    "sensitivity": Part("testbed", ("bnn1d",), ("bnn1d",), 30, tuple(VARIANTS)),
    "solar": Part("solar", ("solar",), ("solar",), 1, ("nomu", *METHODS[2:5])),
    "uci": Part("uci", UCI, UCI, 5, ("nomu",)),
    "uci_gap": Part("uci_gap", UCI, ("boston", "concrete", "energy", "yacht"), 13, ("nomu", GAPS)),
}


def problem(part, dataset, seed, data_dir):
    """(X_train, y_train, X_test, y_test) of one run."""
    if part == "solar":
        return load_solar_irradiance(data_dir / "solar_irradiance" / "irradiance.csv")
    if part == "uci":
        return uci(data_dir, dataset, seed)
    if part == "uci_gap":  # the middle third along one feature is to be predicted
        X, y = uci_rows(data_dir, dataset)
        train, test = published_gap(X[:, seed])
        return X[train], y[train], X[test], y[test]
    if part in ("toy1d", "toy2d"):
        function = make_function(dataset, {"toy1d": 1, "toy2d": 2}[part])
        # Other points for each function.
        random_state = 1000 * PARTS[part].datasets.index(dataset) + seed
        return make_scarce_regression(function, random_state=random_state)
    function = make_bnn_function((BNN | GAUSS)[dataset], random_state=seed)
    inputs = "gaussian" if dataset in GAUSS else "uniform"
    return make_scarce_regression(function, inputs=inputs, random_state=seed)


def published_gap(values):
    """Split rows by a feature as the published gap sets do: the outer thirds, and the middle one.

    Where equal values lie at the ends of the gap, the sets depend on the order in which NumPy's
    introsort left them. It still sorts objects, while numbers may be sorted by vector instructions.
    Five published test sets (boston 1 and 10, concrete 7, energy 2, yacht 0; repository
    cambridge-mlg/DUN) are reproduced row by row; a stable sort gives quite other ones.
    """
    order, n = np.argsort(values.astype(object)), len(values)
    low, high = round(n / 3), round(2 * n / 3)
    return np.concatenate([order[:low], order[high:]]), order[low:high]


def unfitted(part, method, X, seed, arguments):
    """A model as the paper sets it."""
    settings, (n, d) = PARTS[part].settings, X.shape
    if method == "gp":
        return gaussian_process(seed)
    if method.startswith("nomu"):
        hidden = None if part in ("uci", "uci_gap") else arguments.hidden
        changes = {"network__connect_gradient": method == "nomu_gradient"}
        changes = GAP_CHANGES if method == GAPS else changes
        return nomu(settings, d, seed, hidden=hidden, epochs=arguments.epochs, **changes)
    return rival(
        method, part == "solar", n, seed, arguments.hidden, arguments.epochs, arguments.n_search
    )


def judged(y, mean, std):
    """Scores that leave the factor c of std open.

    The NLL with any c, without the constant, is log_std + log(c) + z2 / (2 c**2). So these
    few numbers are all that a choice of one c for many functions needs.
    """
    error = y - mean
    log_std, z2 = np.mean(np.log(std)), np.mean((error / std) ** 2)
    return {
        "auc": coverage_width_auc(y, mean, std),
        "nll_min": log_std + 0.5 * np.log(z2) + 0.5,
        "log_std": log_std,
        "z2": z2,
        "mse": np.mean(error**2),
    }


def run(part, method, data, seed, arguments):
    """One fit and its scores."""
    X, y, X_test, y_test = data
    model = unfitted(part, method, X, seed, arguments)
    started = time.perf_counter()
    fit(model, X, y)
    found = {"seconds": time.perf_counter() - started}
    mean, std = mean_std(model, X_test)
    if part in ("uci", "uci_gap"):
        found["nll"] = gaussian_nll_loss(y_test, mean, std)
        found["rmse"] = np.sqrt(np.mean((y_test - mean) ** 2))
        return found | {"c": model.c_, "l_min": model.l_min_, "l_max": model.l_max_}
    found |= judged(y_test, mean, std)
    if part == "solar":  # for the picture, a number a year
        found["train_rmse"] = np.sqrt(np.mean((mean_std(model, X)[0] - y) ** 2))
        x = np.linspace(-1, 1, 391)
        found["curve"] = [np.round(v, 4).tolist() for v in (x, *mean_std(model, x[:, None]))]
    return found


def parameters_of(variant):
    """Parameters of a variant of the sensitivity analysis, by their names in the estimator."""
    return {PARAMETERS[name]: value for name, value in VARIANTS[variant].items()}


def variants(data, seed, missing, arguments):
    """The sensitivity analysis on one function: pairs of a variant's name and its record."""
    X, y, X_test, y_test = data

    def record(model, seconds):
        return {"seconds": seconds, **judged(y_test, *mean_std(model, X_test))}

    def varying(*names):
        return [v for v in missing if any(name in VARIANTS[v] for name in names)]

    base = unfitted("sensitivity", "nomu", X, seed, arguments)
    read_otherwise = varying("l_min", "l_max")
    beside = varying("pi_sqr", "pi_exp", "c_exp")
    if read_otherwise or DEFAULT in missing:
        beside.insert(0, DEFAULT)
    models = []
    for variant in beside + varying("n_artificial"):
        models.append(clone(base).set_params(**parameters_of(variant)))
        started = time.perf_counter()
        models[-1].fit(X, y)
        yield variant, record(models[-1], time.perf_counter() - started)
    for variant in read_otherwise:  # variants of the prediction by the same network
        model = copy(models[0])
        readout = replace(model.fitted_.readout, **VARIANTS[variant])
        model.fitted_ = replace(model.fitted_, readout=readout)
        yield variant, record(model, 0.0)


def settings_of(part, method, arguments):
    """Return the settings that must be equal for two records to be compared."""
    if method == "gp":
        return {}
    settings = {} if part in ("uci", "uci_gap") else {"hidden": arguments.hidden}
    if arguments.epochs is not None:
        settings["epochs"] = arguments.epochs
    if method in ("hyper_deep_ensemble", "hde_star"):
        settings["n_search"] = arguments.n_search
    return settings


def datasets_of(part, arguments):
    chosen = arguments.functions or PARTS[part].usual
    return [dataset for dataset in PARTS[part].datasets if dataset in chosen]


def methods_of(part, arguments):
    if part == "sensitivity" or arguments.methods is None:
        return PARTS[part].methods
    allowed = (*METHODS[:2], GAPS) if part in ("uci", "uci_gap") else METHODS
    return [method for method in allowed if method in arguments.methods]


def cells(part, arguments):
    """(dataset, seed) of every run, all data sets of a seed before the next seed."""
    n_runs = arguments.runs or PARTS[part].runs
    for seed in range(arguments.first_seed, arguments.first_seed + n_runs):
        for dataset in datasets_of(part, arguments):
            # There a seed is a split, or the feature that has the gap.
            n_splits = {"uci": 20, "uci_gap": N_FEATURES.get(dataset)}.get(part)
            if n_splits is None or seed < n_splits:
                yield dataset, seed
