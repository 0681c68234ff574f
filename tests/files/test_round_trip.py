"""Every kind of estimator is saved and loaded, and parts of the user are given again."""

import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from heads import WidthDepthSpace
from numpy.testing import assert_array_equal
from operators import INPUTS, QUERIES, VALUES
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, RepeatedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from small_models import TinySpace
from tiers import cases, slow_after

import skuq
from skuq import networks
from skuq.backend import keras
from skuq.bayesopt import OutputwiseRegressor
from skuq.exceptions import FileFormatError, MissingPartError, SearchSpaceError, UnsavableError
from skuq.files import _registry as _records
from skuq.files import dumps, loads
from skuq.training import Training

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = X[:, 0] + 0.1 * rng.normal(size=60)
BOTH = np.column_stack([Y, np.exp(-Y)])
LABELS, FRAME = np.where(Y > 0, "up", "down"), pd.DataFrame(X, columns=["a", "b", "c"])
FRAME["town"] = rng.choice([f"town {k}" for k in range(12)], 60)
FRAME["kind"] = pd.Categorical(rng.choice(["flat", "house"], 60))
FRAME["gap"] = np.where(rng.uniform(size=60) < 0.2, np.nan, X[:, 1])
FRAME["old"] = X[:, 2] > 0
FRAME["rooms"] = pd.array([None, 1, 2] * 20, "Int64")
IMAGES = rng.normal(size=(40, 6, 6, 1))
BRIGHT = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype(int)
SMALL = {"network": networks.MLP(6), "epochs": 2, "random_state": 0}
NETWORK = networks.TabularNetwork(n_layers=1, width=32, embedding_dim=2)
TABULAR = {"n_members": 2, "network": NETWORK, "epochs": 2, "random_state": 0}
SEARCH = {"n_members": 2, "epochs": 2, "random_state": 0}
NOMU = {"network": networks.NOMUNetwork((6,)), "epochs": 3, "random_state": 0}
NOMU["artificial"] = networks.ArtificialInputs(n=10)
FIXED = {"readout": networks.NOMUReadout(l_min=0.001, l_max=2.0, c=1.0)}
OPERATOR = {"query_points": QUERIES, "training": Training(steps=3), "batch_size": None}
OPERATOR["network"] = networks.OperatorNetwork(encoder_units=6, latent=6, decoder_units=6)
OPERATOR["random_state"] = 0
EPINET = networks.EpiNet(units=6, prior_units=3, n_index=3)
POOL = [("bayes", GaussianNB()), ("linear", LogisticRegression())]
MIXED = [*POOL, ("deep", skuq.DeepEnsembleClassifier(2, **SMALL))]
COLUMNS = [
    ("numbers", StandardScaler(), ["a", "b", "c"]),
    ("kinds", OneHotEncoder(sparse_output=False), ["kind", "town"]),
]
ensemble = functools.partial(skuq.DeepEnsembleRegressor, 2)
nomu = functools.partial(skuq.NOMURegressor, **NOMU)
neon = functools.partial(skuq.NEONRegressor, **OPERATOR, n_draws=6)
DENSE = networks.DenseSpace(n_nodes=2)
CELLS = networks.CellSpace(channels=2, n_cells=1, batch_size=20)
BOUNDED = {"network": networks.OperatorNetwork(latent=6, fourier_scale=1.0), "prior": EPINET}
BOUNDED["output_map"] = "bounded"
BAYES, LOG = make_pipeline(BayesianRidge()), FunctionTransformer(np.log, np.exp)
LINE = LinearRegression().fit(INPUTS, VALUES)
# name -> (estimator, X, y): what is saved in another way than the estimators of test_contract.py.
CASES = {
    "ensemble, power": (ensemble(**SMALL, target_transform="yeo-johnson"), FRAME, np.exp(Y)),
    "tabular": (skuq.TabularEnsembleRegressor(**TABULAR), FRAME, Y),
    "dropout, classes": (skuq.MCDropoutClassifier(5, **SMALL), X, LABELS),
    "autodeuq": (skuq.AutoDEUQRegressor(2, **SEARCH, space=DENSE), FRAME, Y),
    "foreign": (ensemble(**SMALL, preprocess=ColumnTransformer(COLUMNS)), FRAME, Y),
    "nomu": (nomu(**FIXED), X, Y),
    "neon": (neon(), INPUTS, VALUES),
    "hq": (skuq.HQEnsembleSelector(MIXED, cv=2), X, LABELS),
    "conformal": (skuq.CalibratedUncertaintyRegressor(BAYES, "conformal", cv=2), X, Y),
    "pipeline": (skuq.make_pipeline(StandardScaler(), ensemble(**SMALL)), X, Y),
    "ensemble, quantiles of y": (ensemble(**SMALL, target_transform="quantile"), X, Y),
    "ensemble, logarithm of y": (ensemble(**SMALL, target_transform=LOG), X, np.exp(Y)),
    "nes": (skuq.NESRegressor(3, **SEARCH, space=WidthDepthSpace((8,), 1)), X, Y),
    "nes, cells": (skuq.NESClassifier(2, **SEARCH | {"epochs": 1}, space=CELLS), IMAGES, BRIGHT),
    "nomu, asymmetric": (nomu(**FIXED, band="asymmetric"), X, Y),
    "nomu, learnt noise": (nomu(validation=2, noise_std="learned"), X, Y),
    "neon, bounded": (neon(**BOUNDED, noise_std=0.1), INPUTS, VALUES),
    # With a given model there is no other network.
    "neon, given": (neon(network="split", prior=EPINET, pretrained=LINE), INPUTS, VALUES),
    "calibrated": (skuq.CalibratedUncertaintyRegressor(ensemble(**SMALL), cv=2), X, BOTH),
    "pipeline of scikit-learn": (make_pipeline(StandardScaler(), ensemble(**SMALL)), X, Y),
    "frozen": (FrozenEstimator(skuq.MCDropoutRegressor(5, **SMALL)), X, Y),
    "output by output": (OutputwiseRegressor(ensemble(**SMALL)), X, BOTH),
}
# The bytes that skops writes differ each time.
FOREIGN = {"hq", "conformal", "neon, given", "foreign", "ensemble, logarithm of y"}
HOLDING_ANOTHER = TransformedTargetRegressor(skuq.DeepEnsembleRegressor())
HOLDING_ANOTHER = skuq.CalibratedUncertaintyRegressor(HOLDING_ANOTHER)
HOLDING_ITSELF = skuq.DeepEnsembleRegressor()
HOLDING_ITSELF.n_members = [HOLDING_ITSELF]


class Halving(FunctionTransformer):
    def transform(self, X):
        return np.asarray(X) / 2


@functools.cache
def fitted(name):
    estimator, inputs, targets = CASES[name]
    if name == "frozen":
        estimator.estimator.fit(inputs, targets)
    # Clones would lose what is given fitted.
    estimator = estimator if "given" in name else clone(estimator)
    return estimator.fit(inputs, targets)


def assert_equal_predictions(one, other, inputs):
    for method in ("predict", "predict_uncertainty", "predict_proba", "predict_interval"):
        if hasattr(other, method):
            assert_array_equal(*(getattr(model, method)(inputs) for model in (one, other)))


@pytest.mark.parametrize("name", slow_after(10, CASES))
def test_loads_restores_estimators(name):
    unfitted = clone(CASES[name][0])
    assert repr(loads(dumps(unfitted)).get_params()) == repr(unfitted.get_params())
    estimator, inputs = fitted(name), CASES[name][1]
    data = dumps(estimator)
    loaded = loads(data)
    assert type(loaded) is type(estimator)
    assert repr(loaded.get_params()) == repr(estimator.get_params())
    assert_equal_predictions(loaded, estimator, inputs)
    if name not in FOREIGN:
        assert dumps(loaded) == data == dumps(estimator)


def test_save_and_load(tmp_path):
    path = tmp_path / "model.skuq"
    skuq.save(fitted("autodeuq"), path)
    code = "import skuq, sys; skuq.load(sys.argv[1]); sys.exit('keras' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, path], check=True)  # it loads no backend
    skuq.save(fitted("dropout, classes"), path)  # overwrites
    assert_equal_predictions(skuq.load(str(path)), fitted("dropout, classes"), X)
    with pytest.raises(FileNotFoundError):
        skuq.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no such folder.*nowhere'"):
        skuq.save(skuq.DeepEnsembleRegressor(), tmp_path / "nowhere" / "model.skuq")
    with pytest.raises(ValueError, match="'search.Catalog' is skuq.search"):
        _records.saved_as("search.Catalog")(Halving)
    assert Halving not in _records.BY_CLASS


def test_dumps_takes_catalogs_and_stores_arrays_and_foreign_objects_once():
    catalog = fitted("autodeuq").catalog_
    loaded = loads(dumps(catalog))
    assert dumps(loaded) == dumps(catalog)
    pd.testing.assert_frame_equal(loaded.to_frame(), catalog.to_frame())
    assert_array_equal(loaded.held_out.y, catalog.held_out.y)
    dropout = fitted("dropout, classes")
    prefit = skuq.CalibratedUncertaintyClassifier(dropout, cv="prefit").fit(X, LABELS)
    assert prefit.estimator is prefit.estimator_
    loaded = loads(dumps(prefit))
    assert loaded.estimator.members_[0].weights is loaded.estimator_.members_[0].weights
    loaded = loads(dumps(fitted("hq")))  # which stores its pool twice
    assert loaded.named_estimators_["bayes"] is loaded.estimators_[loaded.names_.index("bayes")]


@cases(
    "value",
    networks.DenseSpace(3),
    WidthDepthSpace((8, 9)),
    networks.CellSpace(4, (1, 1), networks.DARTS),
    networks.NASBench201Space(4),
    networks.WithTraining(networks.DenseSpace(), networks.Space(), {"optimizer": "sgd"}),
    *(Path("somewhere"), slice(1, None, 2), np.float32, KFold(3), RepeatedKFold(n_repeats=2)),
)
def test_loads_restores_values(value):
    loaded = loads(dumps(skuq.NESRegressor(space=value))).space
    assert type(loaded) is type(value) and repr(loaded) == repr(value)


def test_loads_restores_generators_and_metadata_requests():
    for generator in (np.random.RandomState(1), np.random.default_rng(1)):
        generator.normal()  # it keeps the second of two
        loaded = loads(dumps(skuq.DeepEnsembleRegressor(random_state=generator))).random_state
        assert_array_equal(loaded.normal(size=3), generator.normal(size=3))
    with config_context(enable_metadata_routing=True):
        network = skuq.DeepEnsembleRegressor()
        network.set_fit_request(sample_weight=True, groups="patients", validation_data=False)
        loaded = loads(dumps(network)).get_metadata_routing().fit.requests
        assert loaded == network.get_metadata_routing().fit.requests


@pytest.mark.smoke
def test_loads_takes_a_search_space_of_the_user():
    model = skuq.AutoDEUQRegressor(2, **SEARCH, space=TinySpace()).fit(X, Y)
    data = dumps(model)
    loaded = loads(data)
    assert_equal_predictions(loaded, model, X)
    assert dumps(loaded) == data and "TinySpace" in repr(loaded.space)
    with pytest.raises(MissingPartError, match=r"`space` .*TinySpace.*parts={'space"):
        clone(loaded).fit(X, Y)
    space = TinySpace()
    loaded = loads(data, parts={"space": space})
    assert loaded.space is space
    assert_equal_predictions(clone(loaded).fit(X, Y), model, X)
    with pytest.raises(ValueError, match=r"names that the file does not know: \['network'\]"):
        loads(data, parts={"network": space})
    # Of an estimator in another one, and one of a pair
    outer = skuq.CalibratedUncertaintyRegressor(skuq.AutoDEUQRegressor(space=space))
    assert loads(dumps(outer), parts={"estimator__space": space}).estimator.space is space
    pair = skuq.AutoDEUQRegressor(space=(own_network, own_noise))
    assert loads(dumps(pair), parts={"space__1": own_noise}).space[1] is own_noise


def own_noise(X):
    return 0.1 + np.abs(X[:, 0])


def own_network(input_shape, n_outputs):
    x = keras.Input(input_shape)
    bent = keras.ops.logaddexp(x[:, :1], 1.0) + keras.ops.erf(keras.layers.Dense(4)(x))
    return keras.Model(x, keras.layers.Dense(n_outputs)(bent))


def test_loads_predicts_without_the_functions_of_the_user():
    model = skuq.DeepEnsembleRegressor(2, network=own_network, epochs=2, random_state=0).fit(X, Y)
    loaded = loads(dumps(model))
    assert_equal_predictions(loaded, model, X)
    with pytest.raises(SearchSpaceError, match="MissingPartError.*own_network"):
        loaded.fit(X, Y)
    for estimator, name, part, (inputs, targets) in (
        (nomu(**FIXED), "noise_std", own_noise, (X, Y)),
        (neon(query_points=None), "output_map", keras.ops.tanh, (X[:6], Y[:6])),
    ):
        model = estimator.set_params(**{name: part}).fit(inputs, targets)
        data = dumps(model)
        assert_equal_predictions(loads(data, parts={name: part}), model, inputs)
        with pytest.raises(MissingPartError, match=f"`{name}`"):
            loads(data).predict(inputs, return_std=True)


def test_networks_and_transformers_that_are_not_safe_are_refused():
    x = keras.Input((3,))
    doubled = keras.layers.Lambda(lambda x: 2 * x, output_shape=(3,))(x)
    model = loads(dumps(fitted("dropout, classes")))
    member = dataclasses.replace(model.members_[0], network=keras.Model(x, doubled).to_json())
    model.fitted_ = dataclasses.replace(model.fitted_, members=(member,))
    with pytest.raises(UnsavableError, match=r"members\[0\] cannot be saved: .*Lambda.*keras.ops"):
        dumps(model)
    model = ensemble(**SMALL, preprocess=Halving()).fit(X, Y)
    data = dumps(model)
    with pytest.raises(FileFormatError, match=r"`preprocess` holds .*known to be safe.*Halving"):
        loads(data)
    parts = {"preprocess": Halving(), "fitted__inputs__preprocessor": Halving()}
    for given in ({"trusted": [Halving]}, {"trusted": [f"{__name__}.Halving"]}, {"parts": parts}):
        assert_equal_predictions(loads(data, **given), model, X)


def test_loads_names_missing_skops_and_passes_on_version_warnings(monkeypatch):
    pipeline, foreign = dumps(fitted("pipeline")), dumps(fitted("foreign"))
    with monkeypatch.context() as patch, pytest.warns(InconsistentVersionWarning):
        patch.setattr("sklearn.base.__version__", "0.0")
        loads(pipeline)  # which holds a StandardScaler
    find = importlib.util.find_spec
    without = lambda name, *more: None if name == "skops" else find(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(UnsavableError, match=r"estimators\[0\]\[1\] is a .*skuq\[skops\]"):
        dumps(fitted("hq"))
    with pytest.raises(FileFormatError, match=r"skuq\[skops\]"):
        loads(foreign)
    assert_equal_predictions(loads(dumps(fitted("tabular"))), fitted("tabular"), FRAME)


@cases(
    ("thing", "message"),
    (LinearRegression(), "Only estimators of skuq.*best_estimator_"),
    (ensemble(preprocess=FunctionTransformer(lambda X: X)), "preprocess .*skops cannot.*lambdas"),
    (HOLDING_ITSELF, "too many levels, or holds itself"),
    (skuq.DeepEnsembleRegressor(n_members={8}), r"estimator\.n_members is a .*set"),
    (skuq.DeepEnsembleRegressor(n_members=[0, FRAME]), r"n_members\[1\] is a pandas"),
    (HOLDING_ANOTHER, r"estimator\.estimator is a .* that holds skuq.*DeepEnsembleRegressor"),
)
def test_save_refuses(thing, message, tmp_path):
    with pytest.raises(UnsavableError, match=message):
        skuq.save(thing, tmp_path / "model.skuq")
    assert not os.listdir(tmp_path)
