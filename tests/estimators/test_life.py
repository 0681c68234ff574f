"""Fits, interrupts, files and copies of an estimator in any order: only a fit changes it."""

import contextlib
import copy
import functools
import os
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings, stateful, strategies
from hypothesis.stateful import initialize, invariant, precondition, rule
from numpy.testing import assert_allclose, assert_equal
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge
from sklearn.utils.validation import check_is_fitted
from small_models import TinySpace
from tiers import slow_after

import skuq
from skuq.estimators._base import Predictor
from skuq.files import loads
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, OperatorNetwork
from skuq.training import Training, TrainingRun

NET = {"network": MLP((4,)), "epochs": 2, "batch_size": 16, "random_state": 0}
SEARCH = {"n_trials": 3, "n_members": 2, "epochs": 2, "space": TinySpace(), "random_state": 0}
SEARCH["fixed"] = {"units": 8, "activation": "tanh"}  # one program
NOMU = {"artificial": ArtificialInputs(n=5), "epochs": 2, "refit": False, "random_state": 0}
OPERATOR = {"training": Training(steps=5), "batch_size": 16, "n_draws": 20, "random_state": 0}
OPERATOR["network"] = OperatorNetwork(encoder_units=4, latent=4, decoder_units=4)
ENSEMBLE = skuq.DeepEnsembleRegressor(2, **NET)
KINDS = {
    "ensemble": ENSEMBLE,
    "stored search": skuq.AutoDEUQRegressor(**SEARCH),
    "calibrated": skuq.CalibratedUncertaintyRegressor(BayesianRidge(), "conformal", cv=2),
    "classifier": skuq.DeepEnsembleClassifier(2, **NET),
    "dropout": skuq.MCDropoutRegressor(3, **NET),
    "nomu": skuq.NOMURegressor(NOMUNetwork((4,)), **NOMU),
    "warm search": skuq.AutoDEUQRegressor(**SEARCH, warm_start=True),
    "neon": skuq.NEONRegressor(**OPERATOR),
    "calibrated ensemble": skuq.CalibratedUncertaintyRegressor(ENSEMBLE, cv=2),
}
#: Parameters that decide what a fit finds, and their values.
CHANGES = {"random_state": (0, 1), "n_trials": (2, 3), "cv": (2, 3)}
NUMBERS = np.random.default_rng(0).normal(size=(40, 4))
Y = NUMBERS[:, 0] + 0.3 * NUMBERS[:, 3]
TABLES = {
    "array": NUMBERS[:, :2],
    "frame": pd.DataFrame(NUMBERS[:, :2], columns=["a", "b"]),
    "wide": NUMBERS[:30, :3],
    "other frame": pd.DataFrame(NUMBERS[10:, :3], columns=["b", "a", "c"]),
}
PLACES = {"write": [(os, "fsync")], "end": [(Predictor, "_take_over")]}
PLACES["training"] = [(TrainingRun, "advance"), (BayesianRidge, "fit")]


def one_of(values):
    return strategies.sampled_from(list(values))


def rows(model, table):
    X, y = TABLES[table], Y[: len(TABLES[table])]
    return X, np.where(y > 0, "high", "low") if is_classifier(model) else y


def read(data):
    if not data.startswith(b"PK"):
        return pickle.loads(data)
    return loads(data, parts={"space": TinySpace()} if hasattr(loads(data), "space") else None)


def predict(model, table):
    """All predictions of some rows, whose uncertainty is positive and the sum of its parts."""
    X = TABLES[table][:5]
    parts, distribution = model.predict_uncertainty(X), model.predict_distribution(X)
    draws = model.sample_y(X, 2, random_state=0)
    assert np.isfinite(parts.total).all() and (parts.total > 0).all()
    if is_classifier(model):
        assert_allclose(parts.total, parts.aleatoric + parts.epistemic)
        assert_equal(distribution.mean, model.predict_proba(X))
        return [*parts, distribution.mean, model.predict(X), draws]
    mean, std = model.predict(X, return_std=True)
    assert_allclose(std**2, parts.aleatoric**2 + parts.epistemic**2)
    assert_allclose([distribution.mean, distribution.std, parts.total], [mean, std, std])
    return [mean, std, *parts, draws, *model.predict_interval(X)]


def deciding(model):
    return {k: v for k, v in model.get_params(deep=False).items() if k in CHANGES}


@functools.cache
def predictions_of_a_new_one(kind, changes, table):
    model = clone(KINDS[kind]).set_params(**dict(changes))
    return predict(model.fit(*rows(model, table)), table)


@contextlib.contextmanager
def pressing_ctrl_c(place, n):
    """Interrupt at the n-th training, write to a disk, or end of a fit."""
    calls = iter(range(1000))

    def pressing(function):
        def call(*args, **kwargs):
            if next(calls) == n:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in PLACES[place]:
            patch.setattr(owner, name, pressing(getattr(owner, name)))
        yield


class Life(stateful.RuleBasedStateMachine):
    """An estimator, the table of its last fit and its predictions, and objects left behind."""

    saved = stateful.Bundle("saved")

    def __init__(self, kind):
        super().__init__()
        self.kind, self.known, self.left_behind = kind, None, []
        self.model, self.folder = clone(KINDS[kind]), Path(tempfile.mkdtemp())
        self.n_stored = Counter()  # trials in the folder, by search
        if "stored" in kind:
            self.model.set_params(catalog_dir=self.folder / "catalog")

    def trials(self):
        return {file: file.stat().st_mtime_ns for file in self.folder.glob("catalog/*/trial-*")}

    @initialize(table=one_of(TABLES))
    def begin(self, table):
        self.fit(table)

    @rule(table=one_of(TABLES), place=one_of(PLACES), n=one_of([0, 1]))
    def fit_until_an_interrupt(self, table, place, n):
        self.fit(table, place, n)

    @rule(table=one_of(TABLES))
    def fit(self, table, place="end", n=-1):
        model, before, changes = self.model, self.trials(), deciding(self.model)
        ended, search = False, (changes.get("random_state"), table)
        with pressing_ctrl_c(place, n), contextlib.suppress(KeyboardInterrupt):
            ended = model.fit(*rows(model, table)) is model
        stored = self.trials()
        assert before.items() <= stored.items()  # none is trained again
        self.n_stored[search] += len(stored) - len(before)
        assert not stored or self.n_stored[search] <= 3
        assert ended or (n >= 0 and not (place == "training" and self.n_stored[search]))
        if not ended:
            return
        self.known = table, predict(model, table)
        if n < 0 or len(getattr(model, "catalog_", ())) == changes.get("n_trials", 0):
            new = predictions_of_a_new_one(self.kind, tuple(changes.items()), table)
            assert_equal(self.known[1], new)

    @rule(table=one_of(TABLES))
    def fit_what_is_refused(self, table):
        with pytest.raises(ValueError):
            self.model.fit(TABLES[table], np.full(len(TABLES[table]), np.nan))

    @rule(data=strategies.data())
    def set_params(self, data):
        name = data.draw(one_of(deciding(self.model)))
        value = data.draw(one_of(CHANGES[name]))
        assert self.model.set_params(**{name: value}).get_params()[name] == value

    def go_on_with(self, model, known):
        self.left_behind = [(self.model, self.known), *self.left_behind[:1]]
        self.model, self.known = model, known

    @rule(copied=one_of([copy.copy, copy.deepcopy, clone]))
    def go_on_with_a_copy(self, copied):
        self.go_on_with(copied(self.model), None if copied is clone else self.known)

    @rule(target=saved, is_pickle=strategies.booleans())
    def save(self, is_pickle):
        path = self.folder / "model.skuq"
        skuq.save(self.model, path)
        data = path.read_bytes()
        with pressing_ctrl_c("write", 0), pytest.raises(KeyboardInterrupt):
            skuq.save(clone(self.model), path)
        assert path.read_bytes() == data
        assert [file for file in self.folder.iterdir() if file.is_file()] == [path]
        return pickle.dumps(self.model) if is_pickle else data, self.known

    @rule(saved=saved)
    def load(self, saved):
        self.go_on_with(read(saved[0]), saved[1])

    @precondition(lambda self: self.known and getattr(self.model, "catalog_path_", None))
    @rule()
    def go_on_with_the_folder(self):
        given = {"space": TinySpace(), "n_trials": len(self.model.catalog_)}
        loaded = type(self.model).from_catalog(self.model.catalog_path_, **given)
        self.go_on_with(loaded, self.known)

    @precondition(lambda self: self.known)
    @rule()
    def calibrate(self):
        model, (X, y) = self.model, rows(self.model, self.known[0])
        if is_classifier(model):
            calibrated = skuq.CalibratedUncertaintyClassifier(model, cv="prefit").fit(X, y)
        else:
            calibrated = skuq.CalibratedUncertaintyRegressor(model, cv="prefit").fit(X, y)
            std, of_model = (m.predict(X, return_std=True)[1] for m in (calibrated, model))
            assert_allclose(std, calibrated.scale_ * of_model)
        assert_equal(calibrated.predict(X), model.predict(X))

    @invariant()
    def what_was_fitted_predicts_as_before(self):
        objects = [(self.model, self.known), *self.left_behind]
        for model, (table, predictions) in (pair for pair in objects if pair[1]):
            X = TABLES[table]
            check_is_fitted(model)
            assert_equal(predict(model, table), predictions)
            names = getattr(model, "feature_names_in_", [])
            assert list(names) == list(getattr(X, "columns", []))
            assert model.n_features_in_ == X.shape[1]
            with pytest.raises(ValueError, match=f"{X.shape[1]} features"):
                model.predict(np.asarray(X)[:, 1:])

    @invariant()
    def what_was_not_fitted_says_so(self):
        unfitted = clone(self.model)
        assert repr(unfitted.get_params()) == repr(self.model.get_params())
        for model in [unfitted, *([] if self.known else [self.model])]:
            assert not [name for name in vars(model) if name.endswith("_in_")]
            for use in (check_is_fitted, lambda model: model.predict(NUMBERS)):
                with pytest.raises(NotFittedError):
                    use(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", slow_after(6, KINDS))
def test_life(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {"database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
    options |= {"max_examples": settings.default.max_examples // 6, "stateful_step_count": 30}
    stateful.run_state_machine_as_test(functools.partial(Life, kind), settings=settings(**options))
