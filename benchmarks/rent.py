"""Switch off each rule of the recommended ensembles by itself, and see what it is worth.

A switch replaces a name of a module. Networks that are trained alike are trained once for all
switches of a table. Problems are inner parts of training rows; kinds of them stand before a colon.
"""

import contextlib
import time
from dataclasses import replace
from functools import partial
from unittest import mock

import data
import joblib
import numpy as np
from runner import Benchmark
from scores import class_scores
from sklearn.model_selection import train_test_split

from skuq import TabularEnsembleClassifier, TabularEnsembleRegressor, training
from skuq.ensembles import _stacking
from skuq.estimators.tabular import _kinds, _recipes, _tabular_ensemble, _targets

MOST_ROWS, TEST_ROWS = 400, 300


def inner(load, seed, n_rows=MOST_ROWS, change=None, stratify=False):
    X, y = load(0)[:2]
    if change is not None:
        X, y = change(X, y, np.random.RandomState(seed + 1000))
    rows = np.random.RandomState(seed).permutation(len(y))[:20_000]
    stratify = stratify and np.unique(y[rows], return_counts=True)[1].min() > 1
    train, test = train_test_split(
        rows,
        test_size=min(TEST_ROWS, len(y) // 5),
        random_state=seed,
        stratify=y[rows] if stratify else None,
    )
    take = (lambda part: X.iloc[part]) if hasattr(X, "iloc") else (lambda part: X[part])
    return take(train[:n_rows]), y[train[:n_rows]], take(test), y[test]


def _scaled(X):
    return (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)


def linear(X, y, rng):
    X = _scaled(X)
    signal = X @ rng.normal(size=X.shape[1])
    return X, signal + np.sqrt(0.3 / 0.7) * signal.std() * rng.normal(size=len(X))


def spectra(X, y, rng):
    """Two hundred mixtures of five columns; y is linear in these, with noise of 0.05."""
    X = _scaled(X)[:, :5]
    signal, mixed = X @ rng.normal(size=5), X @ rng.normal(size=(5, 200))
    mixed += 0.01 * rng.normal(size=mixed.shape)
    return mixed, signal + np.sqrt(0.05) * signal.std() * rng.normal(size=len(X))


def heavy(X, y, rng):
    return X, np.exp(1.5 * (y - y.mean()) / y.std())


SMALL = ("boston", "energy", "concrete", "diabetes", "qsar_fish_toxicity", "wine")
WIDE = ("concrete", "wine", "kin8nm", "diabetes")
KINDS = {
    "few": (SMALL, {"n_rows": 40}),
    "linear": (WIDE, {"n_rows": 50, "change": linear}),
    "spectra": (WIDE[:3], {"n_rows": 100, "change": spectra}),
    "heavy": (("kin8nm", "concrete"), {"n_rows": 500, "change": heavy}),
}
NUMBERS = {name: partial(inner, load) for name, load in data.REGRESSION.items()}
NUMBERS |= {"heavy: counts": partial(inner, lambda split: data.bike_rows(), n_rows=500)}
NUMBERS |= {
    f"{kind}: {name}": partial(inner, data.REGRESSION[name], **settings)
    for kind, (names, settings) in KINDS.items()
    for name in names
}
FEW_CLASSES = ("pima", "saheart", "contraceptive", "dermatology", "ionosphere", "australian")
CLASSES = {
    name: partial(inner, load, stratify=True) for name, load in (data.WHOLE | data.MIDDLE).items()
}
CLASSES |= {
    f"few: {name}": partial(inner, data.CLASSES[name], n_rows=40, stratify=True)
    for name in FEW_CLASSES
}


def fitted_without(function, **changes):
    def fit(*args):
        found = function(*args)
        *first, last = found if isinstance(found, tuple) else (found,)
        changed = replace(last, **changes)
        return (*first, changed) if first else changed

    return fit


def equal_weights(task, members, origins, n_kinds):
    return np.full(len(members), 1 / len(members))


def equal_kinds(logits, *args):
    _, calibration = MIX(logits, *args)
    return np.full(len(logits), 1 / len(logits)), calibration


def recipes_of(name):
    def found(*args, **kwargs):
        recipes = RECIPES(*args, **kwargs)
        return [r for r in recipes if r.get(name) == recipes[0].get(name)]

    return found


CALIBRATE, MIX, RECIPES = _kinds.fit_calibration, _stacking.fit_class_mixture, _kinds.class_recipes
FAR = {"far": [(_tabular_ensemble, "with_far_uncertainty", lambda ensemble, task: ensemble)]}
NUMBER_SWITCHES = FAR | {
    "weights": [(_kinds, "weigh_members", equal_weights)],
    "calibration": [(_kinds, "fit_calibration", fitted_without(CALIBRATE, factor=1.0, share=0.0))],
    "share": [(_kinds, "fit_calibration", fitted_without(CALIBRATE, share=0.0))],
    "transform": [(_targets, "transform_of_tails", lambda *a: "standard")],
    "likelihood": [(_recipes, "MIXTURE_KINDS", ({"loss": "crps"},))],
    "half of the epochs": [(_recipes, "MOST_EPOCHS", 256)],
}
CLASS_SWITCHES = FAR | {
    "weights": [(_stacking, "fit_class_mixture", equal_kinds)],
    "shares of classes": [(_stacking, "fit_class_mixture", fitted_without(MIX, constant=()))],
    "temperature": [(_stacking, "fit_class_mixture", fitted_without(MIX, temperature=1.0))],
    "second training": [(_kinds, "class_recipes", recipes_of("epochs"))],
    "second embedding": [(_kinds, "class_recipes", recipes_of("embedding"))],
}


class Trainer:
    def __init__(self):
        self.found, self.seconds = {}, 0.0

    def __call__(self, jobs, rows, **settings):
        members = []
        for job in jobs:
            key = joblib.hash((job, rows))
            if key in self.found:
                self.seconds += self.found[key][1]
            else:
                started = time.process_time()
                trained = training.train([job], rows, **settings)
                self.found[key] = trained, time.process_time() - started
            members += self.found[key][0]
        return members


def rows(given, methods, seed, kept, *, estimator, score):
    X, y, X_test, y_test = given
    trainer = Trainer()
    for name, changes in methods.items():
        trainer.seconds = 0.0
        with contextlib.ExitStack() as stack:
            for module, attribute, value in changes:
                stack.enter_context(mock.patch.object(module, attribute, value))
            stack.enter_context(
                mock.patch.object(_kinds.shared, "training", mock.Mock(train=trainer))
            )
            started = time.process_time()
            model = estimator(random_state=seed).fit(X, y)
            seconds = time.process_time() - started + trainer.seconds
        yield name, {**score(model, X_test, y_test, y), "seconds": seconds}


def number_scores(model, X, y, y_train):
    """Scores of a distribution, in standard deviations of y."""
    predicted, std = model.predict_distribution(X), np.std(y_train)
    low, high = predicted.interval(0.9)
    return {
        "crps": predicted.crps(y).mean() / std,
        "nll": -predicted.log_prob(y).mean() - np.log(std),
        "rmse": np.sqrt(np.mean((y - predicted.mean) ** 2)) / std,
        "coverage": np.mean((low <= y) & (y <= high)),
    }


def class_losses(model, X, y, y_train):
    return class_scores(model.predict_proba(X), y, y_train, model.classes_)


NUMBER_FITS = partial(rows, estimator=TabularEnsembleRegressor, score=number_scores)
CLASS_FITS = partial(rows, estimator=TabularEnsembleClassifier, score=class_losses)
AS_IT_IS = {"as it is": []}
BENCHMARKS = {
    "rent_numbers": Benchmark(NUMBERS, AS_IT_IS | NUMBER_SWITCHES, NUMBER_FITS, seeds=2),
    "rent_classes": Benchmark(CLASSES, AS_IT_IS | CLASS_SWITCHES, CLASS_FITS, seeds=2),
}
