"""What holds of every estimator: one small fit each, and the classes themselves."""

import functools
import inspect
import pickle
import re
from collections import defaultdict
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from small_models import TinySpace

import skuq
from skuq.exceptions import SearchFailedError
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, OperatorNetwork, TabularNetwork
from skuq.training import Training, TrainingRun

numpydoc = pytest.importorskip("numpydoc.docscrape")

SMALL = {"network": MLP((8,)), "epochs": 5, "batch_size": 16, "random_state": 0}
SEARCH = {"n_trials": 2, "n_members": 2, "epochs": 5, "space": TinySpace(), "random_state": 0}
OPERATOR = {"training": Training(steps=20), "batch_size": 16, "random_state": 0}
OPERATOR["network"] = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
TABULAR = {"epochs": 5, "random_state": 0}
TABULAR["network"] = TabularNetwork(n_layers=1, width=32, embedding_dim=2)
NOMU = {"artificial": ArtificialInputs(n=10), "epochs": 20, "refit": False, "random_state": 0}
POOL = [("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(max_depth=2, random_state=0))]

MODELS = [
    skuq.AutoDEUQClassifier(**SEARCH),
    skuq.AutoDEUQRegressor(**SEARCH),
    skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2),
    skuq.CalibratedUncertaintyRegressor(skuq.DeepEnsembleRegressor(2, **SMALL), cv=2),
    skuq.DeepEnsembleClassifier(2, **SMALL),
    skuq.DeepEnsembleRegressor(2, **SMALL),
    skuq.HQEnsembleSelector(POOL, cv=3),
    skuq.HyperDeepEnsembleClassifier(2, n_trials=3, **SMALL),
    skuq.HyperDeepEnsembleRegressor(2, n_trials=3, **SMALL),
    skuq.MCDropoutClassifier(10, **SMALL),
    skuq.MCDropoutRegressor(10, **SMALL),
    skuq.NEONRegressor(**OPERATOR, prior="epinet", n_draws=500),
    skuq.NESClassifier(**SEARCH),
    skuq.NESRegressor(**SEARCH),
    skuq.NOMURegressor(NOMUNetwork((8,)), **NOMU),
    skuq.OperatorEnsembleRegressor(2, **OPERATOR),
    skuq.TabularEnsembleClassifier(2, **TABULAR),
    skuq.TabularEnsembleRegressor(2, **TABULAR),
    skuq.make_pipeline(StandardScaler(), skuq.DeepEnsembleRegressor(2, **SMALL)),
]
# Classes whose twin is quick, and holds the same functions.
SLOW = {
    *(skuq.AutoDEUQRegressor, skuq.HyperDeepEnsembleClassifier, skuq.MCDropoutClassifier),
    *(skuq.NESClassifier, skuq.OperatorEnsembleRegressor, skuq.TabularEnsembleClassifier),
}
CASES = [
    pytest.param(k, id=type(m).__name__, marks=[pytest.mark.slow] if type(m) in SLOW else [])
    for k, m in enumerate(MODELS)
]
CLASSES = [cls for _, cls in skuq.all_estimators()]
OWN = [cls for cls in CLASSES if cls is not skuq.UncertaintyPipeline]  # which fits as scikit-learn

#: Parameters that have another default or another first sentence in some classes, and why.
DIFFERENT = {
    **dict.fromkeys(
        ["network", "learning_rate", "batch_size", "epochs", "early_stopping_patience", "training"],
        "networks of tables, of functions and of the papers have recipes of their own",
    ),
    **dict.fromkeys(
        ["loss", "noise_std", "standardize"],
        "NOMU's loss has weights; functions have components, and noise that is learnt",
    ),
    "n_members": "tabular ensembles go by the kinds of y; operator networks are small",
    "n_trials": "trials of hyper deep ensembles are in no catalog, and have the paper's number",
    **dict.fromkeys(["search", "selection"], "AutoDEUQ's and NES' papers have their own"),
    "validation": "folds are the default where they pay; NOMU holds out rows for its readout alone",
    "refit": "NOMU's readout is learnt on rows held out, which are then needed",
    "calibrate": "the papers' searches do not, and tabular ensembles cannot with all settings",
    "target_transform": 'the recommended estimators choose by themselves, with "auto"',
    "max_time": "searches have a `refit`, which comes after it",
    "estimator": "a regressor or a classifier",
}

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.uniform(-1, 1, (60, 3)), columns=["a", "b", "c"])
Y = X["a"] + 0.3 * np.sin(3 * X["b"]) + 0.2 * rng.normal(size=60)
NEW = pd.DataFrame(rng.uniform(-1, 1, (12, 3)), columns=X.columns)
LEVELS = [0.01, 0.2, 0.5, 0.8, 0.99]

pytestmark = [
    pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning"),
    pytest.mark.filterwarnings("ignore:The model predicts its validation rows worse"),
]


def targets(model):
    return np.where(Y > 0, "high", "low") if is_classifier(model) else Y.to_numpy()


@functools.cache
def fit(k):
    return clone(MODELS[k]).fit(X, targets(MODELS[k]))


@pytest.fixture(params=CASES)
def model(request):
    return fit(request.param)


@pytest.fixture(params=CASES[:-1])
def own(request):
    """A fitted estimator that may be fitted again; the pipeline's `fit` is scikit-learn's."""
    return pickle.loads(pickle.dumps(fit(request.param)))


def predictions(model, rows=NEW):
    draws = model.sample_y(rows, 3, random_state=0)
    if is_classifier(model):
        return [*model.predict_uncertainty(rows), model.predict_proba(rows), draws]
    return [*model.predict_uncertainty(rows), model.predict_quantiles(rows, LEVELS), draws]


def identities(named):
    # A search may remember the folder of its trials.
    return {name: id(value) for name, value in named.items() if name != "_folder"}


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


def test_every_estimator_is_here():
    assert {type(model) for model in MODELS} == set(CLASSES)


def test_uncertainty_is_finite_and_never_zero(model):
    *parts, _ = predictions(model)
    assert all(np.isfinite(part).all() for part in parts)
    if is_classifier(model):
        total, aleatoric, epistemic, proba = parts
        assert (proba >= 0).all() and (total > 0).all() and (epistemic >= 0).all()
        assert_allclose(proba.sum(axis=1), 1)
        assert_allclose(total, aleatoric + epistemic)
        return
    mean, aleatoric, epistemic, total, quantiles = parts
    assert mean.shape == (len(NEW),) and (total > 0).all() and (epistemic >= 0).all()
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    assert_allclose(model.predict(NEW, return_std=True), [mean, total], rtol=1e-12)
    assert (np.diff(quantiles, axis=1) > 0).all()
    assert_array_equal(model.predict_interval(NEW, 0.6), quantiles[:, [1, 3]])


def test_draws_have_the_moments(model):
    draws = model.sample_y(NEW, 4000, random_state=0)
    if is_classifier(model):
        share, n = model.predict_proba(NEW)[:, 0], draws.shape[1]
        # Five standard errors of a share in 4000 draws: 0.04.
        assert_allclose((draws == "high").sum(axis=1) / n, share, atol=0.04)
        return
    mean, std = model.predict(NEW, return_std=True)
    # Five standard errors of means, and of standard deviations of distributions with some tails.
    assert_allclose(draws.mean(axis=1), mean, atol=0.08 * std.max())
    assert_allclose(draws.std(axis=1), std, rtol=0.12)


def test_copies_predict_the_same_and_clones_are_not_fitted(model):
    assert_same(predictions(pickle.loads(pickle.dumps(model))), predictions(model))
    copy = clone(model)
    assert repr(copy.get_params()) == repr(model.get_params())
    parts = {"fitted_", "preprocessor_", "members_", "weights_", "estimator_", "scale_", "c_"}
    for name in parts & set(dir(type(model))):
        with pytest.raises(NotFittedError, match=f"This {type(model).__name__} instance is not fi"):
            getattr(copy, name)
    with pytest.raises(NotFittedError):
        copy.predict(NEW)


def test_rows_are_predicted_alone_as_together(model):
    together, some = predictions(model)[:-1], NEW.iloc[[7, 2]]
    for part, whole in zip(predictions(model, some)[:-1], together, strict=True):
        assert_allclose(part, whole[[7, 2]], rtol=1e-9, atol=1e-12)


def test_features_are_named(model):
    assert model.n_features_in_ == 3 and list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(NEW.rename(columns={"a": "z"}))


def test_a_failing_fit_leaves_no_trace(own, monkeypatch):
    model, y = own, targets(own)
    before, expected = vars(model).copy(), predictions(model)

    def fail(*args, **kwargs):
        raise MemoryError

    with pytest.raises(ValueError):
        model.fit(X, [np.nan] * len(X))
    for kind, method in ((TrainingRun, "advance"), (GaussianNB, "fit")):
        monkeypatch.setattr(kind, method, fail)
    with pytest.raises((MemoryError, SearchFailedError)):
        model.fit(X.rename(columns={"a": "z"}), y)
    assert identities(vars(model)) == identities(before)
    assert_same(predictions(model), expected)


def test_a_new_fit_replaces_all_results_and_no_parameter(own):
    model, expected, before = own, predictions(own), own.get_params(deep=False)
    model.stale_ = 1
    assert model.fit(X, targets(model)) is model
    assert identities(model.get_params(deep=False)) == identities(before)
    assert not hasattr(model, "stale_")
    assert_same(predictions(model), expected)


# ------------------------------------------------------------------ classes


def entries(cls):
    """Documented parameters and attributes: ``{section: {name: (type, description)}}``."""
    document = numpydoc.NumpyDocString(inspect.getdoc(cls))
    return {
        section: {
            name.strip(): (entry.type, " ".join(entry.desc).strip())
            for entry in document[section]
            for name in entry.name.split(",")
        }
        for section in ("Parameters", "Attributes")
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_parameter_is_documented(cls):
    documented = entries(cls)
    assert list(documented["Parameters"]) == list(inspect.signature(cls).parameters)
    assert all(text for section in documented.values() for _, text in section.values())


@pytest.mark.parametrize("cls", OWN, ids=lambda cls: cls.__name__)
def test_a_class_shows_its_signature(cls):
    names = list(inspect.signature(cls).parameters)
    assert list(cls.__annotations__) == names and len(names) <= 20
    assert set(cls._parameter_constraints) == set(names)
    above = [base for base in cls.__mro__[1:] if base.__module__.startswith("skuq.estimators")]
    assert len(above) <= 3
    assert not any("__dataclass_fields__" in vars(base) for base in above)
    assert {"fit", "_fit"} <= {name for base in (cls, *above) for name in vars(base)}


def test_parameters_have_one_order():
    pairs = set()
    for cls in CLASSES:
        parameters = inspect.signature(cls).parameters.values()
        pairs |= set(combinations([p.name for p in parameters if p.kind == p.KEYWORD_ONLY], 2))
    assert sorted(pair for pair in pairs if pair[::-1] in pairs) == []


def test_one_name_has_one_default_and_one_sentence():
    defaults, sentences = defaultdict(set), defaultdict(set)
    for cls in OWN:
        parameters = inspect.signature(cls).parameters
        for name, (_, text) in entries(cls)["Parameters"].items():
            defaults[name].add(repr(parameters[name].default))
            sentences[name].add(re.split(r"(?<=[.:])\s", text)[0])
    found = {name for name in defaults if len(defaults[name]) > 1 or len(sentences[name]) > 1}
    assert found == set(DIFFERENT)
