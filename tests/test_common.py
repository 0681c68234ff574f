"""scikit-learn's own checks, in full, on tiny settings."""

import random

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_models import TinySpace, TooSure

import skuq
from skuq import networks
from skuq.bayesopt import OutputwiseRegressor
from skuq.training import Training

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "training is stochastic, so a repeated row and a weight of 2 agree in expectation "
        "and not to 1e-7; test_neural holds the core (full batch, same start)"
    )
}
RUN = {"epochs": 40, "learning_rate": 0.03, "batch_size": 16}
NETWORK = {"network": networks.MLP((8,)), **RUN}
OPERATOR = {"training": Training(steps=150), "learning_rate": 0.02, "batch_size": 16}
OPERATOR["network"] = networks.OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
POOL = [("linear", LogisticRegression()), ("bayes", GaussianNB())]
POOL += [("tree", DecisionTreeClassifier(random_state=0))]
SEARCH = {"n_trials": 2, "epochs": 30, "space": TinySpace(), "random_state": 0}
TABULAR = {"epochs": 40, "random_state": 0}
TABULAR["network"] = networks.TabularNetwork(n_layers=1, width=32, embedding_dim=2)
SHORT = {**NETWORK, "epochs": 20, "random_state": 0}
HYPER = {"n_trials": 3, **NETWORK, "dropout_range": (0.01, 0.1), "random_state": 0}
FEW = {"artificial": networks.ArtificialInputs(n=10), "epochs": 20}
FEW |= {"refit": False, "random_state": 0}
FASTER = {**OPERATOR, "training": Training(steps=75), "prior": networks.ConditionedPrior(n_index=3)}
# One of each way to train, and what costs nothing.
QUICK = [
    skuq.DeepEnsembleRegressor(2, **SHORT),
    # Of one architecture, so that trials share a program.
    skuq.AutoDEUQClassifier(n_members=2, **SEARCH, fixed={"units": 8, "activation": "tanh"}),
    skuq.NOMURegressor(networks.NOMUNetwork((8,)), **FEW, learning_rate=0.02, batch_size=16),
    skuq.NEONRegressor(**FASTER, n_draws=8, random_state=0),
    skuq.HQEnsembleSelector(POOL, cv=3),
    skuq.CalibratedUncertaintyRegressor(TooSure(), "scale", cv=2),
    skuq.CalibratedUncertaintyRegressor(TooSure(), "conformal", cv=2),
    skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2),
]
LARGER = {**NETWORK, "network": networks.MLP(30), "epochs": 80}
OTHERS = [
    skuq.AutoDEUQRegressor(n_members=2, **SEARCH),
    skuq.AutoDEUQRegressor(**SEARCH, validation=2, refit=True),
    skuq.DeepEnsembleClassifier(2, **NETWORK, random_state=0),
    skuq.TabularEnsembleRegressor(2, **TABULAR),
    skuq.TabularEnsembleClassifier(3, **TABULAR),
    skuq.HyperDeepEnsembleRegressor(2, **HYPER),
    skuq.HyperDeepEnsembleClassifier(2, **HYPER),
    skuq.MCDropoutRegressor(10, dropout=0.02, **LARGER, random_state=0),
    skuq.MCDropoutClassifier(10, dropout=0.05, **NETWORK, random_state=0),
    skuq.OperatorEnsembleRegressor(2, **OPERATOR, prior_scale=0.1, random_state=0),
    skuq.NESClassifier(n_members=2, **{**SEARCH, "epochs": 40}),
    skuq.NESRegressor(n_members=2, **{**SEARCH, "epochs": 40}),
    OutputwiseRegressor(TooSure()),
    skuq.HQEnsembleSelector(POOL, cv=3, voting="hard"),
    skuq.HQEnsembleSelector(POOL, cv=3, voting="majority", weights="accuracy"),
]
#: Checks that are quick for every network: of others the first one stands for all.
TRAINING = {"check_regressors_train", "check_parameters_default_constructible"}


@pytest.fixture(autouse=True)
def random_numbers_of_python_stay(monkeypatch):
    """Neither `fit` nor a prediction advances the caller's global generator, as Keras does."""
    # Checks that differ in the number of rows find each other's compiled programs.
    monkeypatch.setattr("skuq.training._job._LEAST_ROWS", 256)
    before = random.getstate()
    yield
    assert random.getstate() == before


def _expected(estimator):
    return EXPECTED_FAILURES if hasattr(estimator, "epochs") else {}


def _quick(cases):
    """Checks are slow that a network has passed with other arrays, or the first estimator."""
    for case in cases:
        estimator, check = getattr(case, "values", case)
        is_slow = {"readonly_memmap", "X_dtype"} & set(check.keywords)
        if isinstance(estimator, skuq.NOMURegressor | skuq.NEONRegressor):
            is_slow |= {check.func.__name__} - TRAINING
        is_slow = is_slow and hasattr(estimator, "epochs") or estimator not in QUICK
        yield pytest.param(estimator, check, marks=[pytest.mark.slow] if is_slow else [])


EVERY = parametrize_with_checks(QUICK + OTHERS, expected_failed_checks=_expected)


@pytest.mark.parametrize(EVERY.args[0], _quick(EVERY.args[1]), **EVERY.kwargs)
def test_sklearn_contract(estimator, check):
    if reason := _expected(estimator).get(check.func.__name__):
        pytest.xfail(reason)
    check(estimator)
