"""Ways out that messages name are followed: they work, and the message does not come again."""

import re
import warnings
from functools import partial

import keras_tuner
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from small_models import TinySpace, TooSure
from tiers import cases

import skuq
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, NOMUReadout
from skuq.tables import TablePreprocessor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y, ONE = X[:, 0] + 0.1 * RNG.normal(size=60), np.arange(60) == 7
MANY = pd.DataFrame({"x": X[:, 0], "city": RNG.choice(list("abcdefghijklmnop"), 60)})
DAYS = pd.Series(pd.date_range("2020-01-01", periods=60))
SPARSE, GAP = sparse.csr_array(X), np.where(ONE[:, None], np.nan, X)
NET = {"network": MLP(4), "epochs": 2, "random_state": 0}
NOMU = {"network": NOMUNetwork((3, 3)), "artificial": ArtificialInputs(n=5), "epochs": 3}
NOMU |= {"readout": NOMUReadout(l_min=0.01, l_max=1, c=1)}  # so that there is one training
SEARCH = {"n_trials": 2, "n_members": 2, "epochs": 2, "space": TinySpace()}
SEARCH |= {"fixed": {"units": 8, "activation": "tanh"}}  # one program


def fit(X=X, y=Y, kind=skuq.DeepEnsembleRegressor, given=NET, **settings):
    return kind(**given | settings).fit(X, y)


nomu = partial(fit, kind=skuq.NOMURegressor, given=NOMU)
search, sure = partial(fit, kind=skuq.AutoDEUQRegressor, given=SEARCH), {"estimator": TooSure()}
calibrated = partial(fit, kind=skuq.CalibratedUncertaintyRegressor, given=sure)


def behind(encoder):
    return make_pipeline(encoder, skuq.DeepEnsembleRegressor(2, **NET)).fit(MANY, Y)


def encoded(**settings):
    return fit(MANY, preprocess=TablePreprocessor(**settings))


def of_city(**settings):
    return behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])], **settings))


def predict_all(first=0):
    known = MANY["city"] >= "abc"[first]
    return fit(MANY[known], Y[known]).predict(MANY)


ORACLE = keras_tuner.oracles.RandomSearchOracle
GIVEN_ORACLE = ORACLE(max_trials=2, objective="val_loss")
DENSE = {"encoder": OneHotEncoder(sparse_output=False)}
LINEAR = {"readout": NOMUReadout(c=1.0, l_min=0.001, l_max=2)}
FROZEN = {"pretrained": FrozenEstimator(LinearRegression().fit(X, Y))}
# A function, its arguments, a part of the message, and the arguments that this advises.
CALLS = {
    "y of dates": (fit, {"y": DAYS.to_numpy()}, "days since", {"y": (DAYS - DAYS[0]).dt.days}),
    "sparse": (fit, {"X": SPARSE}, "X.toarray", {"X": SPARSE.toarray()}),
    "sparse encoder": (behind, {"encoder": OneHotEncoder()}, "sparse_output=False", DENSE),
    "sparse columns": (of_city, {}, "sparse_threshold=0", {"sparse_threshold": 0}),
    "infinity": (fit, {"X": np.where(ONE[:, None], np.inf, X)}, "by NaN", {"X": GAP}),
    "codes": (encoded, {}, "a number for `max_categories`", {"max_categories": 5}),
    "new categories": (predict_all, {"first": 1}, "Fit on rows that have them", {}),
    "no l_min": (nomu, {"readout": NOMUReadout(c=1.0)}, "l_min=0.001 and l_max=2", LINEAR),
    "refine": (nomu, {"refine": True}, "Set noise_std=0.0", {"refine": True, "noise_std": 0.0}),
    "prefit, not fitted": (calibrated, {"cv": "prefit"}, "use another `cv`", {"cv": 3}),
    "repeated folds": (search, {"validation": ShuffleSplit(3)}, "KFold", {"validation": KFold(3)}),
    "oracle's class": (search, {"search": ORACLE}, "give an object", {"search": GIVEN_ORACLE}),
    "not fitted": (nomu, {"pretrained": LinearRegression()}, "sklearn.frozen.Frozen", FROZEN),
}


def messages_of(call, is_right=False, **arguments):
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            call(**arguments)
        except Exception as error:
            if is_right:
                raise
            return [str(error)]
    return [str(warning.message) for warning in caught]


@cases(("call", "problem", "told", "way_out"), *CALLS.values(), ids=list(CALLS))
def test_advice_of_messages_works(call, problem, told, way_out):
    assert sum(told in message for message in messages_of(call, **problem)) == 1
    assert not [m for m in messages_of(call, is_right=True, **way_out) if told in m]


@cases(
    "column",
    DAYS.dt.date.astype(object),
    DAYS.dt.tz_localize("CET"),
    DAYS.dt.to_period("M").astype(object),
    DAYS - DAYS[0],
    pd.Series([None, *DAYS.dt.time[1:]], dtype=object),
    pd.Categorical(DAYS),
)
def test_code_of_messages_makes_numbers_of_columns(column):
    table = pd.DataFrame({"a b": column, "x": Y})
    (told,) = (m for m in messages_of(TablePreprocessor().fit, X=table) if "'a b' holds" in m)
    code = re.search(r", as (.*) (?:gives|does)\.", told)[1]
    table["a b"] = eval(code, {"pandas": pd, "X": table})
    assert not [m for m in messages_of(TablePreprocessor().fit, X=table) if "'a b' holds" in m]
