"""Ways out that messages name are followed: they work, and the message does not come again."""

import re
import warnings
from functools import partial

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from numpy import digitize
from scipy import sparse, special
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC
from small_models import TinySpace, TooSure

import skuq
from skuq.backend import keras
from skuq.bayesopt import BayesianOptimizer
from skuq.ensembles import select_teams
from skuq.metrics import crps_sample_loss, get_scorer
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, NOMUReadout, TabularNetwork
from skuq.plotting import MemberDiversityDisplay
from skuq.search import AgEBO
from skuq.tables import TablePreprocessor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)
LABELS = np.where(Y > 0, "a", "b")
ONE = np.arange(60) == 7
CITY = pd.DataFrame({"x": X[:, 0], "city": RNG.choice(list("uvw"), 60)})
MANY = CITY.assign(city=RNG.choice(list("abcdefghijklmnop"), 60))
DAYS = pd.Series(pd.date_range("2020-01-01", periods=60))
FAR = np.where(ONE[:, None], 1e30, X)
VOTES = RNG.integers(2, size=(3, 60))
PROBABILITIES = RNG.dirichlet([1.0, 1.0], (3, 60))
NET = {"network": MLP(4), "epochs": 2, "random_state": 0}
NOMU = {"artificial": ArtificialInputs(n=5), "epochs": 3, "random_state": 0}
NOMU |= {"readout": NOMUReadout(l_min=0.01, l_max=1, c=1)}  # so that there is one training
TABULAR = skuq.TabularEnsembleRegressor
CALIBRATED = skuq.CalibratedUncertaintyRegressor
CLASSES = skuq.CalibratedUncertaintyClassifier
POOL = [("a", GaussianNB()), ("b", LinearSVC())]
OPERATOR = skuq.NEONRegressor(training=skuq.training.Training(steps=5), random_state=0)


def fit(X=X, y=Y, model=None, kind=skuq.DeepEnsembleRegressor, more=None, **settings):
    """Fit an estimator, by default a tiny ensemble; `more` are further arguments of its `fit`."""
    if model is None:
        ensemble = kind in (skuq.DeepEnsembleRegressor, skuq.DeepEnsembleClassifier)
        model = kind(**({"n_members": 2} | NET | settings if ensemble else settings))
    return model.fit(X, y, **(more or {}))


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


def copies(**settings):
    network = TabularNetwork(n_layers=1, width=32, embedding="none", n_copies=2)
    return fit(kind=skuq.TabularEnsembleRegressor, network=network, epochs=1, **settings)


def calibrated(**settings):
    return fit(kind=CALIBRATED, estimator=TooSure(), **settings)


def evolved(size):
    return search(search=AgEBO(population_size=size, sample_size=2), n_trials=3)


def team(pool=POOL, **settings):
    return skuq.HQEnsembleSelector(pool, cv=3, **settings).fit(X, LABELS)


class PlainModel:
    """No estimator of scikit-learn."""

    def predict(self, X):
        return X[:, 0]


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


class Lazy:
    """Table that has to compute the names of its columns."""

    columns = property(lambda self: pytest.fail("the columns were computed"))

    def collect(self):
        return CITY


IDENTIFIED = CITY.assign(city=[f"n{k}" for k in range(60)])
LAZY = Lazy()
SPARSE = sparse.csr_array(X)
GAP = np.where(ONE[:, None], np.nan, X)
BIG = {"X": 1e9 * X}
FAR_Y = {"y": np.where(ONE, 1e30, Y)}
DRAW = {"y_true": [0.0], "samples": [[1.0]]}
SQUARE = {"estimator": TooSure(), "bounds": [(-1, 1)], "maximizer": "milp"}
OF_CLASSES = {"kind": skuq.DeepEnsembleClassifier}
NEAREST = KNeighborsClassifier()
ORACLE = keras_tuner.oracles.RandomSearchOracle
GIVEN_ORACLE = ORACLE(max_trials=2, objective="val_loss")
GROUP = {"groups": np.ones(60)}

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
    "sparse strings": (fit, {"X": SPARSE}, "leave strings", {"X": CITY}),
    "sparse encoder": (
        *(behind, {"encoder": OneHotEncoder()}, "sparse_output=False"),
        {"encoder": OneHotEncoder(sparse_output=False)},
    ),
    "lazy": (fit, {"X": LAZY}, r"Give X.collect\(\)", {"X": LAZY.collect()}),
    "infinity": (fit, {"X": np.where(ONE[:, None], np.inf, X)}, "by NaN", {"X": GAP}),
    "far, missing": (fit, {"X": FAR}, "so far from", {"X": GAP}),
    "far, dropped": (fit, {"X": FAR}, "drop their rows", {"X": FAR[~ONE], "y": Y[~ONE]}),
    "far y": (
        *(fit, {**FAR_Y, "target_transform": "standard"}, 'target_transform="auto"'),
        {**FAR_Y, "target_transform": "quantile"},
    ),
    "huge": (fit, {"X": 1.7e308 * np.sign(X)}, "Rescale it", {"X": np.sign(X)}),
    "small y": (fit, {"y": 1e-200 * Y}, "Rescale y", {"y": Y}),
    "empty column": (fit, {"X": CITY.assign(e=np.nan)}, "left out", {"X": CITY}),
    "identifiers": (fit, {"X": IDENTIFIED}, "as many categories as rows", {"X": CITY[["x"]]}),
    "codes": (encoded, {}, "a number for `max_categories`", {"max_categories": 5}),
    "codes, one-hot": (encoded, {}, "larger `max_one_hot`", {"max_one_hot": 20}),
    "labels as y": (fit, {"y": LABELS}, "Classes are for classifiers", {"y": LABELS, **OF_CLASSES}),
    "labels of two types": (
        *(fit, {"y": np.where(ONE, 1, LABELS.astype(object)), **OF_CLASSES}, "convert the others"),
        {"y": np.where(ONE, "1", LABELS), **OF_CLASSES},
    ),
    "unscaled": (nomu, BIG | {"standardize": False}, "standardize=T", BIG | {"standardize": True}),
    "no linear readout of l_min": (
        *(nomu, {"readout": NOMUReadout(c=1.0)}, "l_min=0.001 and l_max=2"),
        {"readout": NOMUReadout(c=1.0, l_min=0.001, l_max=2)},
    ),
    "network and units": (
        *(nomu, {"network": NOMUNetwork(mean=lambda *a: None, hidden_units=(3, 3))}),
        *("leave one of them out", {"network": NOMUNetwork((3, 3))}),
    ),
    "refine": (nomu, {"refine": True}, "Set noise_std=0.0", {"refine": True, "noise_std": 0.0}),
    "mse of copies": (copies, {"loss": "mse"}, 'Use loss="nll"', {"loss": "nll"}),
    "scale_l2": (
        *(fit, {"network": MLP(4, scale_l2=0.1), "loss": "mse"}, "leave it out"),
        {"network": MLP(4), "loss": "mse"},
    ),
    "parts of noise alone": (
        *(fit, {"kind": CALIBRATED, "estimator": LinearRegression(), "method": "parts"}),
        *('Use method="scale"', {"kind": CALIBRATED, "estimator": LinearRegression()}),
    ),
    "folds used up": (calibrated, {"cv": iter(())}, "give a list", {"cv": [*KFold(3).split(X)]}),
    "prefit, not fitted": (calibrated, {"cv": "prefit"}, "use another `cv`", {"cv": 3}),
    "group_by": (
        *(calibrated, {"group_by": lambda X: X[:, 0]}),
        r"lambda X: numpy.digitize\(X\[:, 0\], edges\)",
        {"group_by": lambda X: digitize(X[:, 0], [0.0])},
    ),
    "repeated folds": (search, {"validation": ShuffleSplit(3)}, "KFold", {"validation": KFold(3)}),
    "one group": (search, {"validation": 2, "more": GROUP}, "or no groups", {"validation": 2}),
    "oracle's class": (search, {"search": ORACLE}, "give an object", {"search": GIVEN_ORACLE}),
    "population": (evolved, {"size": 5}, "Set a smaller `population_size`", {"size": 2}),
    "votes, wrapped": (
        *(team, {}, "sklearn.calibration.CalibratedClassifierCV"),
        {"pool": [POOL[0], ("b", CalibratedClassifierCV(LinearSVC()))]},
    ),
    "votes, hard": (team, {}, "use `voting='hard'`", {"voting": "hard"}),
    "logits": (
        *(select_teams, {"predictions": np.log(PROBABILITIES), "y": VOTES[0]}),
        r"scipy.special.softmax\(logits, axis=-1\)",
        {"predictions": special.softmax(np.log(PROBABILITIES), axis=-1), "y": VOTES[0]},
    ),
    "labels of another type": (
        *(select_teams, {"predictions": VOTES, "y": LABELS}, "Convert one of them"),
        {"predictions": np.where(VOTES, "a", "b"), "y": LABELS},
    ),
    "pretrained, not fitted": (
        *(nomu, {"pretrained": LinearRegression()}, "sklearn.frozen.FrozenEstimator"),
        {"pretrained": FrozenEstimator(LinearRegression().fit(X, Y))},
    ),
    "one draw": (crps_sample_loss, dict(DRAW, fair=True), "set fair=False", dict(DRAW, fair=False)),
    "milp": (BayesianOptimizer, SQUARE, 'acquisition="ucb"', SQUARE | {"acquisition": "ucb"}),
}
# For each: what is done, a part of the message, and what follows its advice.
ADVICE = {
    "sparse columns": (
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])])),
        "sparse_threshold=0",
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])], sparse_threshold=0)),
    ),
    "parameter of a string": (
        lambda: TABULAR().set_params(preprocess__missing="median"),
        "an object that has them",
        lambda: TABULAR(preprocess=TablePreprocessor()).set_params(preprocess__missing="median"),
    ),
    "new gaps": (
        lambda: fit(CITY).predict(CITY.assign(x=GAP[:, 0])),
        "fit on rows with such gaps",
        lambda: fit(CITY.assign(x=GAP[:, 0])).predict(CITY.assign(x=np.nan)),
    ),
    "new categories": (
        lambda: fit(CITY[CITY["city"] != "u"], Y[CITY["city"] != "u"]).predict(CITY),
        "Fit on rows that have them",
        lambda: fit(CITY).predict(CITY),
    ),
    "points only": (
        lambda: get_scorer("neg_nll")(LinearRegression().fit(X, Y), X, Y),
        r"CalibratedUncertaintyRegressor\(model, cv='prefit'\).fit\(X, y\)",
        lambda: get_scorer("neg_nll")(
            CALIBRATED(LinearRegression().fit(X, Y), cv="prefit").fit(X, Y), X, Y
        ),
    ),
    "y of another unit": (
        lambda: get_scorer("neg_nll")(TransformedTargetRegressor(BayesianRidge()).fit(X, Y), X, Y),
        "calibrate the whole with CalibratedUncertaintyRegressor",
        lambda: CALIBRATED(TransformedTargetRegressor(LinearRegression()), cv=2).fit(X, Y),
    ),
    "weights of bagging": (
        lambda: BaggingClassifier(CLASSES(NEAREST, cv=2), 2).fit(X, LABELS),
        "put the whole into skuq.make_pipeline",
        lambda: BaggingClassifier(skuq.make_pipeline(CLASSES(NEAREST, cv=2)), 2).fit(X, LABELS),
    ),
    "no estimator": (
        lambda: CALIBRATED(PlainModel()).fit(X, Y),
        "give cv='prefit'",
        lambda: CALIBRATED(PlainModel(), cv="prefit").fit(X, Y).predict(X, return_std=True),
    ),
    "no classes_": (
        lambda: get_scorer("neg_brier")(PlainModel(), X, LABELS),
        r"CalibratedUncertaintyClassifier\(model, cv='prefit'\)",
        lambda: get_scorer("neg_brier")(
            CLASSES(LogisticRegression().fit(X, LABELS), cv="prefit").fit(X, LABELS), X, LABELS
        ),
    ),
    "adapted layer": (
        lambda: fit(network=normalising()),
        "Give a Normalization layer `mean` and `variance`",
        lambda: fit(network=normalising(mean=[0.0, 1.0], variance=[1.0, 2.0])),
    ),
    "plot of arrays": (
        lambda: MemberDiversityDisplay.from_estimator(LinearRegression().fit(X, Y), X),
        "use `from_predictions`",
        lambda: MemberDiversityDisplay.from_predictions(np.stack([Y, Y + 0.1, Y - X[:, 1]])),
    ),
    "steps twice": (
        lambda: fit(model=skuq.NEONRegressor(epochs=3, training=skuq.training.Training(steps=5))),
        "Leave one of them out",
        lambda: fit(model=OPERATOR),
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
