"""Every kind of estimator is saved and loaded, with the options that change its attributes."""

import collections
import dataclasses
import datetime
import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dateutil.tz import tzoffset
from heads import WidthDepthSpace, build_mlp
from numpy.testing import assert_array_equal
from sklearn import config_context, model_selection
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, RepeatedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from tiers import cases, slow_after

import skuq
from skuq import networks
from skuq._utils import _records
from skuq.backend import keras
from skuq.bayesopt import OutputwiseRegressor
from skuq.catalog import Catalog
from skuq.exceptions import FileFormatError, MissingPartError, SearchSpaceError, UnsavableError
from skuq.persistence import MissingPart, dumps, loads
from skuq.search import SuccessiveHalving
from skuq.training import Training

rng = np.random.default_rng(0)
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
X = rng.normal(size=(60, 3))
Y = X[:, 0] + 0.1 * rng.normal(size=60)
BOTH = np.column_stack([Y, np.exp(-Y)])
LABELS = np.where(Y > 0, "up", "down")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
FRAME["town"] = rng.choice([f"town {k}" for k in range(12)], 60)
FRAME["kind"] = pd.Categorical(rng.choice(["flat", "house"], 60))
FRAME["gap"] = np.where(rng.uniform(size=60) < 0.2, np.nan, X[:, 1])
FRAME["old"] = X[:, 2] > 0
FRAME["rooms"] = pd.array([None, 1, 2] * 20, "Int64")
IMAGES = rng.normal(size=(40, 6, 6, 1))
BRIGHT = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype(int)
INPUTS = np.linspace(0.5, 2, 6)[:, None]
QUERIES = np.linspace(0, 1, 4)
VALUES = np.sin(INPUTS * QUERIES)

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
tabular = functools.partial(skuq.TabularEnsembleRegressor, **TABULAR)
classifier = functools.partial(skuq.DeepEnsembleClassifier, 2)
dense = networks.DenseSpace(n_nodes=2)
nomu = functools.partial(skuq.NOMURegressor, **NOMU)
neon = functools.partial(skuq.NEONRegressor, **OPERATOR, n_draws=6)
CALIBRATED = skuq.CalibratedUncertaintyRegressor
CLASSES = skuq.CalibratedUncertaintyClassifier

VOTES = {"metric": "ck-formula-1", "cv": KFold(2), "voting": "majority", "weights": "accuracy"}
FOURIER = networks.OperatorNetwork(latent=6, fourier_scale=1.0)
LINE = LinearRegression().fit(INPUTS, VALUES)

# Estimators of the same X and y, by name.
OF_NUMBERS = {
    "nomu": nomu(**FIXED),
    "nomu, chosen": nomu(validation=2),
    "nomu, asymmetric": nomu(**FIXED, band="asymmetric"),
    "nomu, known noise": nomu(**FIXED, noise_std=0.1),
    "nomu, learnt noise": nomu(**FIXED, noise_std="learned"),
    "ensemble": ensemble(**SMALL),
    "ensemble, quantiles of y": ensemble(**SMALL, target_transform="quantile"),
    "ensemble, dropout": ensemble(**SMALL | {"network": networks.MLP(6, dropout=0.1)}),
    "ensemble, generator": ensemble(**SMALL | {"random_state": np.random.RandomState(3)}),
    "tabular, calibrated": tabular(n_members=4, loss="crps", validation=0.5),
    "hyper": skuq.HyperDeepEnsembleRegressor(2, n_trials=3, **SMALL, dropout_range=(0.01, 0.1)),
    "nes": skuq.NESRegressor(3, **SEARCH, space=WidthDepthSpace((8,), 1)),
    "dropout": skuq.MCDropoutRegressor(5, **SMALL),
    "calibrated, conformal": CALIBRATED(make_pipeline(BayesianRidge()), "conformal", cv=2),
    "pipeline": make_pipeline(StandardScaler(), ensemble(**SMALL)),
    "pipeline, uncertain": skuq.make_pipeline(StandardScaler(), ensemble(**SMALL)),
    "frozen": FrozenEstimator(skuq.MCDropoutRegressor(5, **SMALL)),
}
OF_FRAMES = {
    "tabular": tabular(),
    "foreign preprocessing": ensemble(**SMALL, preprocess=ColumnTransformer(COLUMNS)),
    "autodeuq": skuq.AutoDEUQRegressor(3, **SEARCH, space=dense),
    # It keeps the calibration rows, with pandas' types.
    "calibrated, isotonic": CALIBRATED(ensemble(**SMALL), "isotonic", cv=2),
}
OF_CLASSES = {
    "dropout, classes": skuq.MCDropoutClassifier(5, **SMALL),
    "hq": skuq.HQEnsembleSelector(MIXED, cv=2),
    "hq, votes": skuq.HQEnsembleSelector(MIXED, **VOTES),
    "calibrated, classes": CLASSES(classifier(**SMALL), cv=2),
    "hyper, classes": skuq.HyperDeepEnsembleClassifier(2, n_trials=3, **SMALL),
    "autodeuq, classes": skuq.AutoDEUQClassifier(3, **SEARCH, space=dense),
}
OF_CLASSES_IN_FRAMES = {
    "tabular, classes": skuq.TabularEnsembleClassifier(**TABULAR),
    "classes, frame": classifier(**SMALL),
    "nes, classes": skuq.NESClassifier(2, **SEARCH, space="dense"),
}
OF_FUNCTIONS = {
    "neon": neon(),
    "neon, epinet": neon(prior=EPINET, noise_std=0.1),
    "neon, bounded": neon(network=FOURIER, prior=EPINET, output_map="bounded"),
    "neon, nll": neon(prior=EPINET, loss="nll", standardize=False),
    # With a given model there is no other network.
    "neon, given": neon(network="split", prior=EPINET, pretrained=LINE),
    "operator ensemble": skuq.OperatorEnsembleRegressor(2, **OPERATOR),
}
OF_OUTPUTS = {
    "calibrated": CALIBRATED(ensemble(**SMALL), cv=2),
    "output by output": OutputwiseRegressor(ensemble(**SMALL)),
}
OF_POWERS = {"ensemble, frame, power": ensemble(**SMALL, target_transform="yeo-johnson")}
CELLS = networks.CellSpace(channels=2, n_cells=1, batch_size=20)
OF_IMAGES = {"nes, cells": skuq.NESClassifier(2, **SEARCH | {"epochs": 1}, space=CELLS)}

# One of each kind, and what is saved in another way.
QUICK = (
    *("ensemble, frame, power", "tabular", "tabular, calibrated", "dropout, classes", "autodeuq"),
    *("foreign preprocessing", "nomu", "neon", "hq", "calibrated, isotonic"),
    *("calibrated, classes", "pipeline, uncertain"),
)
# name -> (estimator, X, y); the quick ones come first.
CASES = {
    name: (estimator, *table)
    for estimators, *table in [
        (OF_NUMBERS, X, Y),
        (OF_FRAMES, FRAME, Y),
        (OF_CLASSES, X, LABELS),
        (OF_CLASSES_IN_FRAMES, FRAME, LABELS),
        (OF_FUNCTIONS, INPUTS, VALUES),
        (OF_OUTPUTS, X, BOTH),
        (OF_POWERS, FRAME, np.exp(Y)),
        (OF_IMAGES, IMAGES, BRIGHT),
    ]
    for name, estimator in estimators.items()
}
CASES = {name: CASES[name] for name in sorted(CASES, key=lambda name: name not in QUICK)}

# The bytes that skops writes differ each time.
FOREIGN = {"hq", "hq, votes", "calibrated, conformal", "neon, given", "foreign preprocessing"}


@functools.cache
def fitted(name):
    estimator, inputs, targets = CASES[name]
    if name == "frozen":
        estimator.estimator.fit(inputs, targets)
    # Clones would lose what is given fitted.
    estimator = estimator if "given" in name else clone(estimator)
    return estimator.fit(inputs, targets)


def predictions(estimator, inputs):
    """All that an estimator says, as a list of arrays."""
    said = [estimator.predict(inputs)]
    for method in ("predict_uncertainty", "predict_proba"):
        if hasattr(estimator, method):
            said += list(getattr(estimator, method)(inputs))
    if hasattr(estimator, "predict_interval"):
        said.append(estimator.predict_interval(inputs))
    return said


def assert_equal_predictions(one, other, inputs):
    for ours, others in zip(predictions(one, inputs), predictions(other, inputs), strict=True):
        assert_array_equal(ours, others)


def assert_equal_values(one, other):
    """Equal parameters, whatever they are."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert_array_equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for ours, others in zip(one, other):
            assert_equal_values(ours, others)
    elif isinstance(one, np.random.RandomState):
        assert_equal_values(list(one.get_state()), list(other.get_state()))
    elif hasattr(one, "get_params"):
        assert_equal_params(one, other)
    elif isinstance(one, KFold):
        assert vars(one) == vars(other)
    else:
        assert one == other


def assert_equal_params(one, other):
    params, others = one.get_params(), other.get_params()
    assert list(params) == list(others)
    for name in params:
        assert_equal_values(params[name], others[name])


@pytest.mark.parametrize("name", slow_after(len(QUICK), CASES))
def test_loads_restores_fitted_estimators(name):
    estimator, inputs = fitted(name), CASES[name][1]
    data = dumps(estimator)
    loaded = loads(data)
    assert type(loaded) is type(estimator)
    assert_equal_params(loaded, estimator)
    assert_equal_predictions(loaded, estimator, inputs)
    if name not in FOREIGN:  # skops writes other bytes every time
        assert dumps(loaded) == data
        assert dumps(estimator) == data


@pytest.mark.parametrize("name", CASES)
def test_loads_restores_parameters(name):
    estimator = clone(CASES[name][0])
    assert_equal_params(loads(dumps(estimator)), estimator)


AGAIN = [pytest.param("autodeuq", marks=pytest.mark.smoke), "tabular", "nes", "nomu", "hq"]


@pytest.mark.parametrize("name", slow_after(1, ["neon", *AGAIN]))
def test_loads_gives_estimators_that_fit_again(name):
    _, inputs, targets = CASES[name]
    again = clone(loads(dumps(fitted(name)))).fit(inputs, targets)
    assert_equal_predictions(again, fitted(name), inputs)


def test_every_estimator_is_here():
    kinds = {type(estimator).__name__ for estimator, _, _ in CASES.values()}
    assert {name for name in skuq.__all__ if name[0].isupper()} <= kinds


# Resolves each stored name in a process of its own, as a file does that is loaded first.
RESOLVE = """
import os, sys
from skuq._utils._records import find_by_name, find_by_class
from skuq.persistence import loads  # registers what is not skuq's
wrong = []
for name in sys.argv[1:]:
    if not (child := os.fork()):
        saved = find_by_name(name)
        right = saved is not None and saved.name == name and find_by_class(saved.cls) is saved
        os._exit(0 if right and not {"tensorflow", "keras"} & set(sys.modules) else 1)
    if os.waitpid(child, 0)[1]:
        wrong.append(name)
sys.exit(f"not found, or not without a backend: {wrong}" if wrong else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", slow_after(1, [8, 1]))
def test_find_by_name_loads_no_backend(every):
    source = "".join(path.read_text() for path in Path(skuq.__file__).parent.rglob("*.py"))
    names = sorted(set(re.findall(r'saved_as\("([\w.]+)"', source)))
    assert len(names) > 60
    subprocess.run([sys.executable, "-c", RESOLVE, *names[::every]], check=True)


def test_saved_as_refuses_a_name_of_another_class():
    with pytest.raises(ValueError, match="'catalog.Catalog' is skuq.catalog"):
        _records.saved_as("catalog.Catalog")(Halving)
    assert _records.find_by_class(Halving) is None


def test_save_and_load(tmp_path):
    path = tmp_path / "model.skuq"
    for estimator in (skuq.DeepEnsembleRegressor(), fitted("ensemble")):  # overwrites
        skuq.save(estimator, path)
    assert_equal_predictions(skuq.load(str(path)), fitted("ensemble"), X)
    assert os.listdir(tmp_path) == ["model.skuq"]
    with pytest.raises(FileNotFoundError):
        skuq.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        skuq.save(estimator, tmp_path / "nowhere" / "model.skuq")
    with pytest.raises(IsADirectoryError):
        skuq.load(tmp_path)


def test_dumps_is_as_small_as_a_pickle():
    model = fitted("autodeuq")
    assert len(dumps(model)) < 1.2 * len(pickle.dumps(model)) + 20_000
    loaded = loads(dumps(model))
    kept = [record.result.weights is not None for record in loaded.catalog_ if record.completed]
    assert sum(kept) == len(model.selection_)


def test_save_takes_catalogs(tmp_path):
    catalog = fitted("autodeuq").catalog_
    skuq.save(catalog, tmp_path / "catalog.skuq")
    loaded = skuq.load(tmp_path / "catalog.skuq")
    assert isinstance(loaded, Catalog)
    pd.testing.assert_frame_equal(loaded.to_frame(), catalog.to_frame())
    for record, other in zip(catalog, loaded):
        assert_array_equal(record.result.weights, other.result.weights)
        assert_array_equal(record.result.held_out, other.result.held_out)
    assert_array_equal(loaded.held_out.y, catalog.held_out.y)


def test_dumps_stores_an_array_once():
    prefit = skuq.CalibratedUncertaintyRegressor(fitted("ensemble"), cv="prefit").fit(X, Y)
    assert prefit.estimator is prefit.estimator_
    loaded = loads(dumps(prefit))
    assert loaded.estimator.members_[0].weights is loaded.estimator_.members_[0].weights
    assert_equal_predictions(loaded, prefit, X)


L2 = networks.Space((networks.Real("l2", 1e-3, 1),))


@cases(
    "space",
    networks.DenseSpace(3),
    WidthDepthSpace((8, 9)),
    networks.CellSpace(4, (1, 1), networks.DARTS),
    networks.NASBench201Space(4),
    networks.WithTraining(networks.DenseSpace(), L2, {"optimizer": "sgd"}),
)
def test_loads_restores_search_spaces(space):
    loaded = loads(dumps(skuq.NESRegressor(space=space))).space
    assert type(loaded) is type(space)
    shape = (6, 6, 1) if getattr(space, "takes_images", False) else (3,)
    assert loaded.decisions(shape, 1) == space.decisions(shape, 1)


FRAME_OF_OBJECTS = pd.DataFrame(
    {"a": [1, 2], "team": [(0, 1), (1, 2)], 3: ["x", None], "b": [True, False]},
    index=pd.Index(["p", "q"], name="row"),
).rename_axis(columns="column")
FRAME_OF_TYPES = pd.DataFrame(
    {
        "whole": pd.array([1, None], "Int64"),
        "real": pd.array([None, 0.5], "Float32"),
        "true": pd.array([True, None], "boolean"),
        "text": pd.array(["a", None], "string"),
        "kind": pd.Categorical(["u", None], ["v", "u"], ordered=True),
        "number": pd.Categorical([3, 1]),
        "day": pd.to_datetime(["2020-01-01", None]),
        "here": pd.to_datetime(["2020-01-01", None]).tz_localize("Europe/Berlin"),
        "there": pd.to_datetime(["2020-01-01", None]).tz_localize("+01:30"),
    }
)
DAYS = pd.DatetimeIndex(["2020-01-01", "2020-03-01"], name="day")
HALVING = SuccessiveHalving((0.1, 0.5), 3.0, 5)


@cases(
    "value",
    Path("somewhere"),
    HALVING,
    *(FRAME_OF_OBJECTS, FRAME_OF_OBJECTS[[]]),
    *(FRAME_OF_TYPES, FRAME_OF_TYPES.set_axis(DAYS), FRAME_OF_TYPES.iloc[:0]),
    *(pd.Series([0.1, 0.2], name="q"), pd.Series(["a", None], index=[3, 1])),
    *(np.random.RandomState(1), np.random.RandomState(np.random.PCG64(1))),
    *(np.random.Generator(getattr(np.random, kind)(1)) for kind in BIT_GENERATORS),
    ids=lambda value: type(value).__name__,
)
def test_loads_restores_values(value):
    if hasattr(value, "normal"):
        value.normal()  # it keeps the second of two, or a half of 64 bits
        value.bit_generator.random_raw() if hasattr(value, "bit_generator") else None
    loaded = loads(dumps(skuq.DeepEnsembleRegressor(random_state=value))).random_state
    assert type(loaded) is type(value)
    if hasattr(value, "normal"):
        assert_array_equal(loaded.normal(size=3), value.normal(size=3))
    elif isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(loaded, value)
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(loaded, value)
    else:
        assert loaded == value


def test_loads_restores_settings():
    settings = {"search__kappa": 0.5, "selection__loss": "crps", "space__n_nodes": 2}
    loaded = loads(dumps(skuq.AutoDEUQRegressor(space="dense").set_params(**settings)))
    assert settings.items() <= loaded.get_params().items()


def _holding_itself():
    model = skuq.DeepEnsembleRegressor()
    model.n_members = [model]
    return model


def _with(value):
    return skuq.DeepEnsembleRegressor(n_members=value)


SECONDS = pd.date_range("2020", periods=1, tz=tzoffset(None, 60))


class OwnSpace:
    def decisions(self, input_shape=None, n_outputs=None):
        units, rate = ("units", (4, 6)), ("learning_rate", (0.03,))
        spaces = (networks.Space((networks.Categorical(*given),)) for given in (units, rate))
        return networks.Decisions(*spaces)

    def build(self, configuration, input_shape, n_outputs):
        return build_mlp(input_shape, n_outputs, [configuration["units"]])

    def recipe(self, configuration):
        return {"learning_rate": configuration["learning_rate"], "batch_size": 16}


def own_network(input_shape, n_outputs):
    x = keras.Input(input_shape)
    bent = keras.ops.logaddexp(x[:, :1], 1.0) + keras.ops.erf(keras.layers.Dense(4)(x))
    return keras.Model(x, keras.layers.Dense(n_outputs)(bent))


def test_loads_takes_a_search_space_of_the_user():
    model = skuq.AutoDEUQRegressor(2, **SEARCH, space=OwnSpace()).fit(X, Y)
    data = dumps(model)
    loaded = loads(data)
    assert_equal_predictions(loaded, model, X)
    assert dumps(loaded) == data
    assert "OwnSpace" in repr(loaded.space)
    assert loaded.space == loads(data).space
    with pytest.raises(MissingPartError, match=r"`space` .*OwnSpace.*parts={'space"):
        clone(loaded).fit(X, Y)
    space = OwnSpace()
    loaded = loads(data, parts={"space": space})
    assert loaded.space is space
    assert_equal_predictions(clone(loaded).fit(X, Y), model, X)
    with pytest.raises(ValueError, match=r"names that the file does not know: \['network'\]"):
        loads(data, parts={"network": space})


def test_loads_names_parts_of_nested_estimators():
    inner = skuq.AutoDEUQRegressor(2, **SEARCH, space=OwnSpace())
    model = skuq.CalibratedUncertaintyRegressor(inner, cv=2).fit(X, Y)
    data = dumps(model)
    assert_equal_predictions(loads(data), model, X)
    space = OwnSpace()
    loaded = loads(data, parts={"estimator__space": space})
    assert loaded.estimator.space is space
    assert loaded.estimator_.space is space


def test_loads_predicts_without_the_function_of_the_network():
    model = skuq.DeepEnsembleRegressor(2, network=own_network, epochs=2, random_state=0).fit(X, Y)
    loaded = loads(dumps(model))
    assert_equal_predictions(loaded, model, X)
    with pytest.raises(SearchSpaceError, match="MissingPartError.*function .*own_network"):
        loaded.fit(X, Y)
    space = networks.KerasTunerSpace(own_network)
    loaded = loads(dumps(skuq.AutoDEUQRegressor(space=space)), parts={"space": space})
    assert loaded.space is space


def own_training(hp):
    return {"learning_rate": 0.01, "batch_size": 8}


def test_loads_takes_a_pair_of_functions_whole_or_in_parts():
    pair = own_network, own_training
    data = dumps(skuq.AutoDEUQRegressor(space=pair))
    in_parts = {"space__0": pair[0], "space__1": pair[1]}
    for parts in ({"space": pair}, {"space": list(pair)}, in_parts):
        assert loads(data, parts=parts).space == pair
    missing = loads(data, parts={"space__0": own_network}).space[1]
    with pytest.raises(MissingPartError, match=r"`space__1` .* give `space` to"):
        missing()
    with pytest.raises(ValueError, match=r"does not know: \['space'\]"):
        loads(data, parts={"space": own_network})


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def with_lambda(input_shape, n_outputs):
    x = keras.Input(input_shape)
    scaled = keras.layers.Lambda(lambda x: 2 * x, output_shape=input_shape)(x)
    return keras.Model(x, keras.layers.Dense(n_outputs)(scaled))


def with_own_layer(input_shape, n_outputs):
    x = keras.Input(input_shape)
    return keras.Model(x, keras.layers.Dense(n_outputs)(Doubled()(x)))


def test_save_refuses_networks_that_would_not_be_loaded(tmp_path):
    model = loads(dumps(fitted("ensemble")))
    for network, name in ((with_lambda, "Lambda"), (with_own_layer, "Doubled")):
        config = network((3,), 2).to_json()
        member = dataclasses.replace(model.members_[0], network=config)
        model.fitted_ = dataclasses.replace(model.fitted_, members=(member,))
        told = rf"members\[0\] cannot be saved: .*{name}"
        with pytest.raises(UnsavableError, match=told) as caught:
            skuq.save(model, tmp_path / "model.skuq")
        assert ("register" in str(caught.value)) is (network is with_own_layer)
    assert not os.listdir(tmp_path)


def own_noise(X):
    return 0.1 + np.abs(X[:, 0])


@cases(
    ("estimator", "name", "part"),
    (nomu(**FIXED), "noise_std", own_noise),
    (neon(query_points=None), "output_map", keras.ops.tanh),
    quick=1,
)
def test_loads_takes_functions_that_predict(estimator, name, part):
    inputs, targets = (X, Y) if name == "noise_std" else (X[:6], Y[:6])
    model = clone(estimator).set_params(**{name: part}).fit(inputs, targets)
    data = dumps(model)
    assert_equal_predictions(loads(data, parts={name: part}), model, inputs)
    with pytest.raises(MissingPartError, match=f"`{name}`"):
        loads(data).predict(inputs, return_std=True)


class Halving(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.asarray(X) / 2

    def __sklearn_is_fitted__(self):
        return True


class Unwritable(Halving):
    def __init__(self, function=lambda: None):
        self.function = function

    def __getstate__(self):
        raise ValueError("cannot be written")


def test_loads_needs_trust_in_transformers_of_the_user():
    model = ensemble(**SMALL, preprocess=Halving()).fit(X, Y)
    data = dumps(model)
    with pytest.raises(FileFormatError, match=r"`preprocess` holds .*known to be safe.*Halving"):
        loads(data)
    loaded = loads(data, parts={"preprocess": Halving(), "fitted__inputs__preprocessor": Halving()})
    assert_equal_predictions(loaded, model, X)
    with pytest.raises(FileFormatError, match="Halving"):
        loads(data, trusted=["somewhere.Else"])
    assert_equal_predictions(loads(data, trusted=[Halving]), model, X)


def test_dumps_warns_of_parts_that_skops_cannot_write():
    # A parameter is not needed to predict, and is given again without a warning.
    assert type(loads(dumps(ensemble(preprocess=Unwritable()))).preprocess) is MissingPart
    model = ensemble(**SMALL, preprocess=FunctionTransformer(lambda X: 2 * X)).fit(X, Y)
    name = "fitted__inputs__preprocessor"
    with pytest.warns(UserWarning, match=rf"preprocessor is not saved, .*parts={{'{name}': \.\.\."):
        data = dumps(model)
    with pytest.raises(MissingPartError, match=name):
        loads(data).predict(X)
    loaded = loads(data, parts={name: model.fitted_.inputs.preprocessor})
    assert_equal_predictions(loaded, model, X)


@pytest.mark.parametrize("splitter", [RepeatedKFold, model_selection.RepeatedStratifiedKFold])
def test_loads_restores_repeated_splitters(splitter):
    cv = splitter(n_splits=3, n_repeats=2, random_state=0)
    loaded = loads(dumps(skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=cv))).cv
    for ours, others in zip(loaded.split(X, LABELS), cv.split(X, LABELS), strict=True):
        assert_equal_values(ours, others)


def test_loads_restores_metadata_requests():
    given = {"sample_weight": 1 + np.arange(60) % 3, "patients": np.repeat(np.arange(12), 5)}
    with config_context(enable_metadata_routing=True):
        network = skuq.DeepEnsembleRegressor()
        network.set_fit_request(sample_weight=True, groups="patients", validation_data=False)
        line = make_pipeline(BayesianRidge().set_fit_request(sample_weight=True))
        cv = GroupKFold(3).set_split_request(groups="patients")
        model = skuq.CalibratedUncertaintyRegressor(line, cv=cv).fit(X, Y, **given)
        for estimator in (network, model):
            loaded = loads(dumps(estimator))
            asked = [e.get_metadata_routing().consumes("fit", given) for e in (loaded, estimator)]
            assert asked == [set(given)] * 2
        assert loads(dumps(network)).get_metadata_routing().fit.requests["validation_data"] is False
        assert_equal_predictions(loaded, model, X)
        assert_equal_predictions(clone(loaded).fit(X, Y, **given), model, X)


def test_loads_needs_trust_in_trees():
    pool = [("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(max_depth=2))]
    model = skuq.HQEnsembleSelector(pool, cv=2).fit(X, LABELS)
    data = dumps(model)
    with pytest.raises(FileFormatError, match=r"sklearn\.tree\._tree\.Tree"):
        loads(data)
    loaded = loads(data, trusted=["sklearn.tree._tree.Tree"])
    assert_equal_predictions(loaded, model, X)
    assert loaded.named_estimators_["tree"] is loaded.estimators_[model.names_.index("tree")]


def test_dumps_and_loads_name_missing_skops(monkeypatch):
    foreign = dumps(fitted("calibrated, conformal"))
    find = importlib.util.find_spec

    def find_others(name, *more):
        return None if name == "skops" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    with pytest.raises(UnsavableError, match=r"estimators\[0\]\[1\] is a .*skuq\[skops\]"):
        dumps(fitted("hq"))
    with pytest.raises(FileFormatError, match=r"skuq\[skops\]"):
        loads(foreign)
    assert_equal_predictions(loads(dumps(fitted("tabular"))), fitted("tabular"), FRAME)


@cases(
    ("thing", "message"),
    (LinearRegression(), "Only estimators of skuq.*BayesianOptimizer has its own `save`"),
    (GridSearchCV(skuq.DeepEnsembleRegressor(), {}), "best_estimator_"),
    (_holding_itself(), "levels deep, or holds itself"),
    (_with({8}), r"estimator\.n_members is a .*set"),
    (_with(pd.Index([8])), r"n_members is a pandas"),
    (_with(collections.OrderedDict(a=1)), r"n_members is a collections\."),
    (_with(datetime.timedelta(1)), r"n_members is a datetime\."),
    (_with(pd.DataFrame({"a": [1]}, SECONDS)), "n_members has .*index"),
    (_with(pd.DataFrame({"a": pd.PeriodIndex(["2020-01"], freq="M")})), "'a' of type period"),
    (_with(pd.DataFrame({"a": pd.arrays.SparseArray([0.0])})), "'a' of type Sparse"),
    (_with(pd.DataFrame({("a", "b"): [1]})), "n_members has .*several levels"),
    (_with(FRAME.iloc[:1].set_index(["a", "b"])), "n_members has .*several levels"),
    (
        CALIBRATED(TransformedTargetRegressor(skuq.DeepEnsembleRegressor())),
        r"estimator\.estimator is a .* that holds skuq.*DeepEnsembleRegressor",
    ),
)
def test_save_refuses(thing, message, tmp_path):
    with pytest.raises(UnsavableError, match=message):
        skuq.save(thing, tmp_path / "model.skuq")
    assert not os.listdir(tmp_path)


def test_loads_passes_on_version_warnings_of_scikit_learn(monkeypatch):
    data = dumps(fitted("pipeline"))  # which holds a StandardScaler
    monkeypatch.setattr("sklearn.base.__version__", "0.0")
    with pytest.warns(InconsistentVersionWarning):
        loads(data)
