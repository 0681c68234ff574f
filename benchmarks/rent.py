"""What each rule of the recommended ensembles for tables is worth: switched off by itself.

A switch replaces one function while an estimator is fitted. Networks that are trained alike are
trained once and shared by all switches of a table; their seconds count for each of them.
Problems are inner parts of training rows: the seed draws them.
"""

import contextlib
import time
from dataclasses import replace
from functools import partial
from unittest import mock

import data
import numpy as np
from runner import Benchmark
from scores import class_scores, exact_crps
from sklearn.model_selection import train_test_split

import skuq.training
from skuq import TabularEnsembleClassifier, TabularEnsembleRegressor
from skuq.ensembles import _stacking
from skuq.estimators.tabular import _before_training, _kinds, _preset, _recipes, _tabular_ensemble
from skuq.metrics._scores import mixture_crps
from skuq.predictive import _calibration
from skuq.tables import _preprocessing

MOST_ROWS, TEST_ROWS = 400, 300
FEW_TABLES = ("boston", "energy", "concrete", "diabetes", "qsar_fish_toxicity", "wine")
LINEAR_TABLES = ("concrete", "wine", "kin8nm", "diabetes")


# ------------------------------------------------------------------------------------- problems


def inner(load, seed, n_rows=MOST_ROWS, change=None):
    """Rows of a training part to train on, and others to test."""
    X, y = load(0)[:2]
    if change is not None:
        X, y = change(X, y, np.random.RandomState(seed + 1000))
    classes = y.dtype.kind in "OUS" or len(np.unique(y)) <= 20 and load not in NUMBERS
    n_test = min(TEST_ROWS, len(y) // 5)
    rows = np.random.RandomState(seed).permutation(len(y))[:20_000]
    least = np.unique(y[rows], return_counts=True)[1].min() if classes else 0
    train, test = train_test_split(
        rows, test_size=n_test, random_state=seed, stratify=y[rows] if least > 1 else None
    )
    train = train[:n_rows]
    take = (lambda part: X.iloc[part]) if hasattr(X, "iloc") else (lambda part: X[part])
    return take(train), y[train], take(test), y[test]


NUMBERS = [*data.REGRESSION.values()]


def linear_with_noise(X, y, rng):
    """A linear y of the columns, of which noise is 0.3 of the variance."""
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    signal = X @ rng.normal(size=X.shape[1])
    return X, signal + np.sqrt(0.3 / 0.7) * signal.std() * rng.normal(size=len(X))


def spectra(X, y, rng):
    """Two hundred mixtures of five columns; y is linear in these, with noise of 0.05."""
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    X = X[:, :5]
    signal = X @ rng.normal(size=5)
    mixed = X @ rng.normal(size=(5, 200))
    mixed += 0.01 * rng.normal(size=mixed.shape)
    return mixed, signal + np.sqrt(0.05) * signal.std() * rng.normal(size=len(X))


def counts(seed):
    """Bike rentals as they are: many small, few large."""
    X, y, _ = data.bike_rows()
    return X, y


def heavy(X, y, rng):
    """Exponentials of y: a log-normal of a wide spread."""
    return X, np.exp(1.5 * (y - y.mean()) / y.std())


NUMBER_PROBLEMS = {name: partial(inner, load) for name, load in data.REGRESSION.items()}
NUMBER_PROBLEMS |= {
    f"few: {name}": partial(inner, data.REGRESSION[name], n_rows=40) for name in FEW_TABLES
}
NUMBER_PROBLEMS |= {
    f"linear: {name}": partial(inner, data.REGRESSION[name], n_rows=50, change=linear_with_noise)
    for name in LINEAR_TABLES
}
NUMBER_PROBLEMS |= {
    f"spectra: {name}": partial(inner, data.REGRESSION[name], n_rows=100, change=spectra)
    for name in LINEAR_TABLES[:3]
}
NUMBER_PROBLEMS |= {"heavy: counts": partial(inner, counts, n_rows=500)}
NUMBER_PROBLEMS |= {
    f"heavy: {name}": partial(inner, data.REGRESSION[name], n_rows=500, change=heavy)
    for name in ("kin8nm", "concrete")
}
_by_kind: dict = {}
for _name in NUMBER_PROBLEMS:
    _by_kind.setdefault(_name.split(":")[0] if ":" in _name else "", []).append(_name)
_order = [n for _, n in sorted((i / len(v), n) for v in _by_kind.values() for i, n in enumerate(v))]
NUMBER_PROBLEMS = {n: NUMBER_PROBLEMS[n] for n in _order}
CLASS_PROBLEMS = {name: partial(inner, load) for name, load in (data.WHOLE | data.MIDDLE).items()}
CLASS_PROBLEMS |= {
    f"few: {name}": partial(inner, data.CLASSES[name], n_rows=40)
    for name in ("pima", "saheart", "contraceptive", "dermatology", "ionosphere", "australian")
}


# ------------------------------------------------------------------------------------- switches


class Switch(contextlib.ExitStack):
    """Context in which names of modules are replaced."""

    def __init__(self, *changes, **parameters):
        super().__init__()
        self.changes, self.parameters = changes, parameters

    def __enter__(self):
        for module, name, value in self.changes:
            self.enter_context(mock.patch.object(module, name, value))
        return self


FITTED = _calibration.fit_out_of_bag


def without(**changes):
    def fit(*args, **kwargs):
        return replace(FITTED(*args, **kwargs), **changes)

    return fit


def no_reserve(*args, **kwargs):
    with mock.patch.object(_calibration, "_DEFENSIVE_SHARE", 0.0):
        return FITTED(*args, **kwargs)


def equal_weights(task, members, origins, n_kinds):
    return np.full(len(members), 1 / len(members))


def exact_weights(task, members, origins, n_kinds):
    with mock.patch.object(_recipes, "WEIGHT_STEPS", 10_000):
        return WEIGH(task, members, origins, n_kinds)


def stacked(task, members, origins, n_kinds):
    """Kinds by their likelihood on held-out rows, with the prior that classes have."""
    kinds = np.array([origin.kind for origin in origins])
    counts, by_split = np.bincount(kinds, minlength=n_kinds), {}
    for origin, (y, weight, raw, _) in zip(origins, _kinds.held_out_rows(task, members, origins)):
        likelihood = task.targets.head.log_likelihood(y, raw)
        by_split.setdefault(origin.split, {})[origin.kind] = likelihood, weight
    complete = [found for found in by_split.values() if len(found) == n_kinds]
    shares = np.full(n_kinds, 1 / n_kinds)
    if complete:
        likelihoods = np.concatenate(
            [np.stack([f[k][0] for k in range(n_kinds)]) for f in complete], axis=1
        )
        weight = np.concatenate([f[0][1] for f in complete])
        prior = _stacking.stacking_prior(n_kinds)
        shares = _stacking.stacking_weights(likelihoods, weight, prior)
    return (shares / np.maximum(counts, 1))[kinds]


WEIGH, CLASS_MIXTURE = _kinds.weigh_members, _stacking.fit_class_mixture
first_task = [(m, "linear_tasks", lambda task: [task]) for m in (_preset, _tabular_ensemble)]
same = lambda ensemble, task: ensemble  # noqa: E731
class_recipes = _preset.class_recipes


def without_logistic(n_rows, has_numbers=True):
    return [r for r in class_recipes(n_rows, has_numbers) if r.get("n_layers") != 0]


def first_training(n_rows, has_numbers=True):
    found = class_recipes(n_rows, has_numbers)
    return [r for r in found if r["epochs"] == found[0]["epochs"]]


def first_embedding(n_rows, has_numbers=True):
    return [
        r
        for r in class_recipes(n_rows, has_numbers)
        if r.get("n_layers") == 0 or r.get("embedding") != "none"
    ]


def equal_kinds(logits, codes, weight, shares, **others):
    weights, calibration = CLASS_MIXTURE(logits, codes, weight, shares, **others)
    return np.full(len(weights), 1 / len(weights)), calibration


def mixture_with(**changes):
    def fit(*args, **kwargs):
        weights, calibration = CLASS_MIXTURE(*args, **kwargs)
        return weights, replace(calibration, **changes)

    return fit


NUMBER_SWITCHES = {
    "as it is": Switch(),
    "far": Switch((_tabular_ensemble, "with_far_uncertainty", same)),
    "linear part": Switch(*first_task),
    "precisions": Switch((_kinds, "_precisions", lambda errors: np.ones(len(errors)))),
    "weights": Switch((_tabular_ensemble, "weigh_members", equal_weights)),
    "calibration": Switch((_tabular_ensemble, "calibrate", lambda *a: _calibration.UNCALIBRATED)),
    "limit of noise": Switch((_kinds, "limit_noise", lambda normals, weights, fitted: fitted)),
    "quarter steps": Switch((_tabular_ensemble, "weigh_members", exact_weights)),
    "tail": Switch((_kinds, "fit_out_of_bag", without(tail=()))),
    "defensive part": Switch((_kinds, "fit_out_of_bag", no_reserve)),
    "one weighing": Switch((_tabular_ensemble, "weigh_members", stacked)),
    "transform": Switch((_before_training, "transform_of_tails", lambda *a: "standard")),
}
CLASS_SWITCHES = {
    "as it is": Switch(),
    "far": Switch((_tabular_ensemble, "with_far_uncertainty", same)),
    "recurring values": Switch(
        (_preprocessing, "find_recurring_values", lambda *a: {}),
    ),
    "evidence": Switch((_kinds, "_weigh_evidence", lambda task: None)),
    "weights": Switch((_kinds, "fit_class_mixture", equal_kinds)),
    "shares of classes": Switch((_kinds, "fit_class_mixture", mixture_with(constant=()))),
    "temperature": Switch((_kinds, "fit_class_mixture", mixture_with(temperature=1.0))),
    "factor of averages": Switch(
        (_kinds, "AVERAGING_FACTOR", 1.0), (_kinds, "averaging_factor", lambda *a: 1.0)
    ),
    "dropped kinds": Switch((_kinds, "drop_light", lambda weights: weights)),
    "weak penalties": Switch((_recipes, "WEAK_STRENGTHS", ())),
    "logistic regressions": Switch((_kinds, "class_recipes", without_logistic)),
    "second training": Switch((_kinds, "class_recipes", first_training)),
    "second embedding": Switch((_kinds, "class_recipes", first_embedding)),
}


# --------------------------------------------------------------------------------- fits, scores


class SharedTraining:
    """Trains a stack of networks once; its processor seconds count each time it is asked for."""

    def __init__(self):
        self.found, self.seconds = {}, 0.0

    def __call__(self, jobs, rows, **settings):
        members = []
        for job in jobs:
            key = _hash(job), _hash(rows)
            if key not in self.found:
                started = time.process_time()
                trained = skuq.training.train([job], rows, **settings)
                self.found[key] = trained, time.process_time() - started
            else:
                self.seconds += self.found[key][1]
            members += self.found[key][0]
        return members


IS_LINEAR, LOGISTIC = _before_training._is_linear, _kinds._logistic_regression


class Remembered:
    """A function that is computed once for each set of arguments."""

    def __init__(self, function):
        self.function, self.found = function, {}

    def __call__(self, *args):
        key = _hash(args)
        if key not in self.found:
            self.found[key] = self.function(*args)
        return self.found[key]


def _hash(record):
    """Hash a record by what it holds."""
    import joblib

    return joblib.hash(record)


def rows(given, methods, seed, kept, *, estimator, score):
    X, y, X_test, y_test = given
    shared = SharedTraining()
    one, remembered = _kinds.shared, Remembered(IS_LINEAR)
    logistic = Remembered(LOGISTIC)
    for name, switch in methods.items():
        shared.seconds = 0.0
        try:
            with (
                mock.patch.object(one, "training", mock.Mock(train=shared)),
                switch,
                mock.patch.object(_before_training, "_is_linear", remembered),
                mock.patch.object(_kinds, "_logistic_regression", logistic),
            ):
                started = time.process_time()
                model = estimator(random_state=seed, **switch.parameters).fit(X, y)
                seconds = time.process_time() - started + shared.seconds
            scores = score(model, X_test, y_test, y)
        except (ValueError, FloatingPointError) as error:
            yield name, {"failed": str(error)[:300]}
            continue
        yield name, {**scores, "seconds": seconds}


def number_scores(model, X, y, y_train):
    predicted = model.predict_distribution(X)
    std = np.std(y_train)
    if hasattr(predicted, "probabilities"):  # of J normals of each of K members
        weights = predicted.weights[:, None, None] * predicted.probabilities
        parts = (a.reshape(-1, len(y)) for a in (predicted.loc, predicted.scale, weights))
        crps = mixture_crps(y, *parts).mean()
    else:
        crps = exact_crps(predicted, y, 801).mean()
    low, high = predicted.interval(0.9).T
    return {
        "crps": crps / std,
        "nll": -predicted.log_prob(y).mean() - np.log(std),
        "rmse": np.sqrt(np.mean((y - predicted.mean) ** 2)) / std,
        "coverage": np.mean((low <= y) & (y <= high)),
    }


def class_losses(model, X, y, y_train):
    return class_scores(model.predict_proba(X), y, y_train, model.classes_)


BENCHMARKS = {
    "rent_numbers": Benchmark(
        NUMBER_PROBLEMS,
        NUMBER_SWITCHES,
        partial(rows, estimator=TabularEnsembleRegressor, score=number_scores),
        seeds=2,
    ),
    "rent_classes": Benchmark(
        CLASS_PROBLEMS,
        CLASS_SWITCHES,
        partial(rows, estimator=TabularEnsembleClassifier, score=class_losses),
        seeds=2,
    ),
}
