"""Ways out that messages name are followed: they work, and the message does not come again."""

import re
import warnings
from functools import partial

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from small_models import TinySpace, TooSure

import skuq
from skuq.backend import keras
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, NOMUReadout
from skuq.tables import TablePreprocessor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)
ONE = np.arange(60) == 7
CITY = pd.DataFrame({"x": X[:, 0], "city": RNG.choice(list("uvw"), 60)})
MANY = CITY.assign(city=RNG.choice(list("abcdefghijklmnop"), 60))
DAYS = pd.Series(pd.date_range("2020-01-01", periods=60))
NET = {"network": MLP(4), "epochs": 2, "random_state": 0}
NOMU = {"artificial": ArtificialInputs(n=5), "epochs": 3, "random_state": 0}
NOMU |= {"readout": NOMUReadout(l_min=0.01, l_max=1, c=1)}  # so that there is one training


TINY = partial(skuq.DeepEnsembleRegressor, 2, **NET)


def fit(X=X, y=Y, kind=TINY, **settings):
    """Fit an estimator, by default a tiny ensemble."""
    return kind(**settings).fit(X, y)


def nomu(X=X, **settings):
    settings = {"network": NOMUNetwork((3, 3)), **NOMU, **settings}
    return fit(X, kind=skuq.NOMURegressor, **settings)


def search(**settings):
    settings = {"n_trials": 2, "n_members": 2, "epochs": 2, "space": TinySpace()} | settings
    settings = {"fixed": {"units": 8, "activation": "tanh"}} | settings  # one program
    return fit(kind=skuq.AutoDEUQRegressor, **settings)


def behind(encoder):
    return make_pipeline(encoder, skuq.DeepEnsembleRegressor(2, **NET)).fit(MANY, Y)


def encoded(**settings):
    return fit(MANY, preprocess=TablePreprocessor(**settings))


def calibrated(**settings):
    return fit(kind=skuq.CalibratedUncertaintyRegressor, estimator=TooSure(), **settings)


def evaluated(message, X):
    """Run the code that a message has for a column."""
    code = re.search(r", as (.*) (?:gives|does)\.", message)[1]
    return eval(code, {"pandas": pd, "X": X})


def convert(column):
    """Problem and way out of a column that is to become numbers by code in the message."""
    table = pd.DataFrame({"a b": column, "x": Y})

    def follow(told):
        return TablePreprocessor().fit(table.assign(**{"a b": evaluated(told, table)}))

    return lambda: TablePreprocessor().fit(table), "'a b' holds", follow


def normalising(**settings):
    """Make a function that builds a network with a Normalization layer."""

    def build(input_shape, n_outputs):
        layer = keras.layers.Normalization(**settings)
        if not settings:
            layer.adapt(X)
        return keras.Sequential([keras.Input(input_shape), layer, keras.layers.Dense(n_outputs)])

    return build


SPARSE = sparse.csr_array(X)
GAP = np.where(ONE[:, None], np.nan, X)
ORACLE = keras_tuner.oracles.RandomSearchOracle
GIVEN_ORACLE = ORACLE(max_trials=2, objective="val_loss")

# Columns that become numbers by the code in the message.
COLUMNS = {
    "dates": DAYS,
    "dates of Python": DAYS.dt.date.astype(object),
    "dates with a zone": DAYS.dt.tz_localize("CET"),
    "periods": DAYS.dt.to_period("D"),
    "periods as objects": DAYS.dt.to_period("M").astype(object),
    "durations": DAYS - DAYS[0],
    "times": pd.Series([None, *DAYS.dt.time[1:]], dtype=object),
    "categories of dates": pd.Categorical(DAYS),
    "text of dates": DAYS.dt.strftime("%d.%m.%Y"),
    "text of numbers": [f"{y:.2f} kg".replace(".", ",") for y in Y],
}
# For each: a function, its arguments, a part of the message, and the arguments that this advises.
CALLS = {
    "y of dates": (fit, {"y": DAYS.to_numpy()}, "days since", {"y": (DAYS - DAYS[0]).dt.days}),
    "sparse": (fit, {"X": SPARSE}, "X.toarray", {"X": SPARSE.toarray()}),
    "sparse encoder": (
        *(behind, {"encoder": OneHotEncoder()}, "sparse_output=False"),
        {"encoder": OneHotEncoder(sparse_output=False)},
    ),
    "infinity": (fit, {"X": np.where(ONE[:, None], np.inf, X)}, "by NaN", {"X": GAP}),
    "codes": (encoded, {}, "a number for `max_categories`", {"max_categories": 5}),
    "no linear readout of l_min": (
        *(nomu, {"readout": NOMUReadout(c=1.0)}, "l_min=0.001 and l_max=2"),
        {"readout": NOMUReadout(c=1.0, l_min=0.001, l_max=2)},
    ),
    "refine": (nomu, {"refine": True}, "Set noise_std=0.0", {"refine": True, "noise_std": 0.0}),
    "prefit, not fitted": (calibrated, {"cv": "prefit"}, "use another `cv`", {"cv": 3}),
    "repeated folds": (search, {"validation": ShuffleSplit(3)}, "KFold", {"validation": KFold(3)}),
    "oracle's class": (search, {"search": ORACLE}, "give an object", {"search": GIVEN_ORACLE}),
    "pretrained, not fitted": (
        *(nomu, {"pretrained": LinearRegression()}, "sklearn.frozen.FrozenEstimator"),
        {"pretrained": FrozenEstimator(LinearRegression().fit(X, Y))},
    ),
}
# For each: what is done, a part of the message, and what follows its advice.
ADVICE = {
    "sparse columns": (
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])])),
        "sparse_threshold=0",
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])], sparse_threshold=0)),
    ),
    "new categories": (
        lambda: fit(CITY[CITY["city"] != "u"], Y[CITY["city"] != "u"]).predict(CITY),
        "Fit on rows that have them",
        lambda: fit(CITY).predict(CITY),
    ),
    "adapted layer": (
        lambda: fit(network=normalising()),
        "Give a Normalization layer `mean` and `variance`",
        lambda: fit(network=normalising(mean=[0.0, 1.0], variance=[1.0, 2.0])),
    ),
}
ADVICE |= {name: convert(column) for name, column in COLUMNS.items()}
ADVICE |= {
    name: (partial(function, **problem), told, partial(function, **way_out))
    for name, (function, problem, told, way_out) in CALLS.items()
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_of_messages_works(name):
    problem, told, way_out = ADVICE[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            problem()
            messages = [str(warning.message) for warning in caught]
        except Exception as error:
            messages = [str(error)]
    (message,) = (text for text in messages if re.search(told, text))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way_out(message) if name in COLUMNS else way_out()
    assert not [w for w in caught if re.search(told, str(w.message))]
