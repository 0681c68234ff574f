"""The life of an estimator: fits, interrupts, files and copies in any order (Hypothesis).

After each step it predicts what it did before, unless the step fits it: then what a new estimator
of the same parameters predicts.
"""

import contextlib
import copy
import functools
import itertools
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings, stateful, strategies
from hypothesis.stateful import invariant, precondition, rule
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.validation import check_is_fitted
from small_models import TinySpace
from tiers import slow_after

import skuq
from skuq.estimators._base import Predictor
from skuq.files import dumps, loads
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, OperatorNetwork
from skuq.training import Training, TrainingRun

NET = {"network": MLP((4,)), "epochs": 2, "batch_size": 16, "random_state": 0}
SEARCH = {"n_trials": 3, "n_members": 2, "epochs": 2, "space": TinySpace(), "random_state": 0}
SEARCH["fixed"] = {"units": 8, "activation": "tanh"}  # one program
NOMU = {"artificial": ArtificialInputs(n=5), "epochs": 2, "refit": False, "random_state": 0}
OPERATOR = {"training": Training(steps=5), "batch_size": 16, "n_draws": 20, "random_state": 0}
OPERATOR["network"] = OperatorNetwork(encoder_units=4, latent=4, decoder_units=4)
POOL = [("a", GaussianNB()), ("b", GaussianNB(var_smoothing=1))]
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
    "calibrated classifier": skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2),
    "stored search of classes": skuq.AutoDEUQClassifier(**SEARCH),
    "team": skuq.HQEnsembleSelector(POOL, cv=2),
}
#: Parameters that decide what a fit finds, and their values.
CHANGES = {"random_state": (0, 1), "n_trials": (2, 3), "cv": (2, 3)}

rng = np.random.default_rng(0)
NUMBERS = rng.normal(size=(40, 3))
Y = NUMBERS[:, 0] + 0.3 * rng.normal(size=40)
TABLES = {
    "array": NUMBERS[:, :2],
    "frame": pd.DataFrame(NUMBERS[:, :2], columns=["a", "b"]),
    "wide": NUMBERS[:30],
    "other frame": pd.DataFrame(NUMBERS[10:], columns=["b", "a", "c"]),
}


def targets(model, table):
    y = Y[: len(TABLES[table])]
    return np.where(y > 0, "high", "low") if is_classifier(model) else y


def read(data):
    """Load a file, with the search space that it does not hold, or a pickle."""
    if not data.startswith(b"PK"):
        return pickle.loads(data)
    has_space = hasattr(loads(data), "space")
    return loads(data, parts={"space": TinySpace()} if has_space else None)


def predict(model, table):
    """All predictions of some rows, whose uncertainty is positive and the sum of its parts."""
    X = TABLES[table][:5]
    parts, distribution = model.predict_uncertainty(X), model.predict_distribution(X)
    draws = model.sample_y(X, 2, random_state=0)
    if is_classifier(model):
        assert (parts.total > 0).all()
        assert_allclose(parts.total, parts.aleatoric + parts.epistemic)
        assert_array_equal(distribution.mean, model.predict_proba(X))
        return [*parts, distribution.mean, model.predict(X), draws]
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(std).all() and (std > 0).all()
    assert_allclose(std**2, parts.aleatoric**2 + parts.epistemic**2)
    assert_allclose([distribution.mean, distribution.std], [mean, std])
    return [mean, std, *parts, draws, *model.predict_interval(X)]


def deciding(model):
    return {k: v for k, v in model.get_params(deep=False).items() if k in CHANGES}


@functools.cache
def predictions_of_a_new_one(kind, changes, table):
    model = clone(KINDS[kind]).set_params(**dict(changes))
    return predict(model.fit(TABLES[table], targets(model, table)), table)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


@contextlib.contextmanager
def pressing_ctrl_c(n):
    """Interrupt at the n-th training, write to a disk, or end of a fit."""
    calls = itertools.count()

    def pressing(function):
        def call(*args, **kwargs):
            if next(calls) == n:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    places = [(TrainingRun, "advance"), (BayesianRidge, "fit"), (GaussianNB, "fit")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [*places, (os, "fsync"), (Predictor, "_take_over")]:
            patch.setattr(owner, name, pressing(getattr(owner, name)))
        yield


tables = strategies.sampled_from(list(TABLES))


class Life(stateful.RuleBasedStateMachine):
    """An estimator, the table of its last fit and its predictions, and objects left behind."""

    saved = stateful.Bundle("saved")

    def __init__(self, kind):
        super().__init__()
        self.kind, self.known, self.left_behind = kind, None, []
        self.model, self.folder = clone(KINDS[kind]), Path(tempfile.mkdtemp())
        self.n_stored = {}  # trials in the folder, by search
        if "stored" in kind:
            self.model.set_params(catalog_dir=self.folder / "catalog")

    def trials(self):
        return {file: file.stat().st_mtime_ns for file in self.folder.glob("catalog/*/trial-*")}

    @rule(table=tables)
    def fit(self, table, n=None):
        model, before, settings = self.model, self.trials(), deciding(self.model)
        n_trials, search = settings.get("n_trials", 0), (settings.get("random_state"), table)
        try:
            with pressing_ctrl_c(n):
                assert model.fit(TABLES[table], targets(model, table)) is model
        finally:
            stored = self.trials()
            assert before.items() <= stored.items()  # none is trained again
            self.n_stored[search] = self.n_stored.get(search, 0) + len(stored) - len(before)
            assert not stored or self.n_stored[search] <= 3
        self.known = table, predict(model, table)
        # An interrupted search chooses from the trials that have finished.
        if not n_trials or len(model.catalog_) == n_trials:
            new = predictions_of_a_new_one(self.kind, tuple(settings.items()), table)
            assert_same(self.known[1], new)

    @rule(table=tables, n=strategies.integers(0, 7))
    def fit_until_an_interrupt(self, table, n):
        with contextlib.suppress(KeyboardInterrupt):
            self.fit(table, n)

    @rule(table=tables, is_short=strategies.booleans())
    def fit_what_is_refused(self, table, is_short):
        y = targets(self.model, table)
        with pytest.raises(ValueError):
            self.model.fit(TABLES[table], y[1:] if is_short else np.full(len(y), np.nan))

    @rule(data=strategies.data())
    def set_params(self, data):
        name = data.draw(strategies.sampled_from(sorted(deciding(self.model))))
        value = data.draw(strategies.sampled_from(CHANGES[name]))
        assert self.model.set_params(**{name: value}).get_params()[name] == value

    def go_on_with(self, model, known):
        if self.known is not None:
            self.left_behind = [(self.model, self.known), *self.left_behind[:1]]
        self.model, self.known = model, known

    @rule(copied=strategies.sampled_from([copy.copy, copy.deepcopy]))
    def go_on_with_a_copy(self, copied):
        self.go_on_with(copied(self.model), self.known)

    @rule()
    def go_on_with_a_clone(self):
        self.go_on_with(clone(self.model), None)

    @rule(target=saved, dump=strategies.sampled_from([dumps, pickle.dumps]))
    def save(self, dump):
        return dump(self.model), self.known

    @rule(saved=saved)
    def load(self, saved):
        self.go_on_with(read(saved[0]), saved[1])

    @rule()
    def save_until_an_interrupt(self):
        path = self.folder / "model.skuq"
        skuq.save(self.model, path)
        before = path.read_bytes()
        with pressing_ctrl_c(0), pytest.raises(KeyboardInterrupt):
            skuq.save(clone(self.model), path)
        assert path.read_bytes() == before
        assert [file for file in self.folder.iterdir() if file.is_file()] == [path]

    @precondition(lambda self: self.known and getattr(self.model, "catalog_path_", None))
    @rule()
    def go_on_with_the_folder(self):
        given = {"space": TinySpace(), "n_trials": len(self.model.catalog_)}
        loaded = type(self.model).from_catalog(self.model.catalog_path_, **given)
        self.go_on_with(loaded, self.known)

    @precondition(lambda self: self.known)
    @rule()
    def calibrate(self):
        model, X, y = self.model, TABLES[self.known[0]], targets(self.model, self.known[0])
        if is_classifier(model):
            calibrated = skuq.CalibratedUncertaintyClassifier(model, cv="prefit").fit(X, y)
        else:
            calibrated = skuq.CalibratedUncertaintyRegressor(model, cv="prefit").fit(X, y)
            std, of_model = (m.predict(X, return_std=True)[1] for m in (calibrated, model))
            assert_allclose(std, calibrated.scale_ * of_model)
        assert_array_equal(calibrated.predict(X), model.predict(X))

    @invariant()
    def what_was_fitted_predicts_as_before(self):
        for model, known in [(self.model, self.known), *self.left_behind]:
            if known is None:
                continue
            X = TABLES[known[0]]
            check_is_fitted(model)
            assert_same(predict(model, known[0]), known[1])
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
@pytest.mark.parametrize("kind", slow_after(5, KINDS))
def test_life(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {"database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
    n = settings.default.max_examples // 10  # of the profile
    options |= {"max_examples": n, "stateful_step_count": 20}
    life = functools.partial(Life, kind)
    stateful.run_state_machine_as_test(life, settings=settings(**options))
