"""Ways out that messages name are followed: they work, and the message does not come again."""

import re
import warnings

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
from skuq.persistence import dumps, loads
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


def behind(transformer):
    return make_pipeline(transformer, skuq.DeepEnsembleRegressor(2, **NET)).fit(MANY, Y)


def team(pool, **settings):
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


def held(table):
    """Save and load an estimator with a table among its parameters."""
    return loads(dumps(skuq.NOMURegressor(artificial=ArtificialInputs(kind=table))))


class Lazy:
    """Table that has to compute the names of its columns."""

    columns = property(lambda self: pytest.fail("the columns were computed"))

    def collect(self):
        return CITY


PERIODS = pd.DataFrame({"a": DAYS.dt.to_period("M")})
LAZY = Lazy()
CALIBRATED = skuq.CalibratedUncertaintyRegressor
CLASSES = skuq.CalibratedUncertaintyClassifier
NEAREST = KNeighborsClassifier()
POOL = [("a", GaussianNB()), ("b", LinearSVC())]
TABULAR = skuq.TabularEnsembleRegressor
COPIES = TabularNetwork(n_layers=1, width=32, embedding="none", n_copies=2)
ORACLE = keras_tuner.oracles.RandomSearchOracle

# For each: what is done, a part of the message, and what follows its advice. Where the advice has
# code, the way out is a function of the message.
ADVICE = {
    "dates": convert(DAYS),
    "dates of Python": convert(DAYS.dt.date.astype(object)),
    "dates with a zone": convert(DAYS.dt.tz_localize("CET")),
    "periods": convert(DAYS.dt.to_period("D")),
    "periods as objects": convert(DAYS.dt.to_period("M").astype(object)),
    "durations": convert(DAYS - DAYS[0]),
    "times": convert(pd.Series([None, *DAYS.dt.time[1:]], dtype=object)),
    "categories of dates": convert(pd.Categorical(DAYS)),
    "text of dates": convert(DAYS.dt.strftime("%d.%m.%Y")),
    "text of numbers": convert([f"{y:.2f} kg".replace(".", ",") for y in Y]),
    "y of dates": (
        lambda: fit(y=DAYS.to_numpy()),
        "days since some day",
        lambda: fit(y=(DAYS - DAYS[0]).dt.days),
    ),
    "sparse": (
        lambda: fit(sparse.csr_array(X)),
        "X.toarray",
        lambda: fit(sparse.csr_array(X).toarray()),
    ),
    "sparse encoder": (
        lambda: behind(OneHotEncoder()),
        "sparse_output=False",
        lambda: behind(OneHotEncoder(sparse_output=False)),
    ),
    "sparse columns": (
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])])),
        "sparse_threshold=0",
        lambda: behind(ColumnTransformer([("c", OneHotEncoder(), ["city"])], sparse_threshold=0)),
    ),
    "sparse strings": (lambda: fit(sparse.csr_array(X)), "leave strings", lambda: fit(CITY)),
    "lazy": (lambda: fit(LAZY), r"Give X.collect\(\)", lambda: fit(LAZY.collect())),
    "parameter of a string": (
        lambda: TABULAR().set_params(preprocess__missing="median"),
        "an object that has them",
        lambda: TABULAR(preprocess=TablePreprocessor()).set_params(preprocess__missing="median"),
    ),
    "infinity": (
        lambda: fit(np.where(ONE[:, None], np.inf, X)),
        "by NaN",
        lambda: fit(np.where(ONE[:, None], np.nan, X)),
    ),
    "far, missing": (
        lambda: fit(FAR),
        "so far from",
        lambda: fit(np.where(FAR == 1e30, np.nan, FAR)),
    ),
    "far, dropped": (lambda: fit(FAR), "drop their rows", lambda: fit(FAR[~ONE], Y[~ONE])),
    "far y": (
        lambda: fit(y=np.where(ONE, 1e30, Y), target_transform="standard"),
        'target_transform="auto"',
        lambda: fit(y=np.where(ONE, 1e30, Y), target_transform="quantile"),
    ),
    "huge": (lambda: fit(1.7e308 * np.sign(X)), "Rescale it", lambda: fit(np.sign(X))),
    "small y": (lambda: fit(y=1e-200 * Y), "Rescale y", lambda: fit(y=Y)),
    "empty column": (lambda: fit(CITY.assign(e=np.nan)), "left out", lambda: fit(CITY)),
    "identifiers": (
        lambda: fit(CITY.assign(city=[f"n{k}" for k in range(60)])),
        "as many categories as rows",
        lambda: fit(CITY[["x"]]),
    ),
    "new gaps": (
        lambda: fit(CITY).predict(CITY.assign(x=np.where(ONE, np.nan, X[:, 0]))),
        "fit on rows with such gaps",
        lambda: fit(CITY.assign(x=np.where(ONE, np.nan, X[:, 0]))).predict(CITY.assign(x=np.nan)),
    ),
    "new categories": (
        lambda: fit(CITY[CITY["city"] != "u"], Y[CITY["city"] != "u"]).predict(CITY),
        "Fit on rows that have them",
        lambda: fit(CITY).predict(CITY),
    ),
    "codes": (
        lambda: fit(MANY, preprocess=TablePreprocessor()),
        "a number for `max_categories`",
        lambda: fit(MANY, preprocess=TablePreprocessor(max_categories=5)),
    ),
    "codes, one-hot": (
        lambda: fit(MANY, preprocess=TablePreprocessor()),
        "larger `max_one_hot`",
        lambda: fit(MANY, preprocess=TablePreprocessor(20)),
    ),
    "labels of a regressor": (
        lambda: fit(y=LABELS),
        "Classes are for classifiers",
        lambda: fit(y=LABELS, kind=skuq.DeepEnsembleClassifier),
    ),
    "labels of two types": (
        lambda: fit(y=np.where(ONE, 1, LABELS.astype(object)), kind=skuq.DeepEnsembleClassifier),
        "convert the others",
        lambda: fit(y=np.where(ONE, "1", LABELS), kind=skuq.DeepEnsembleClassifier),
    ),
    "unscaled": (
        lambda: nomu(1e9 * X, standardize=False),
        "standardize=True",
        lambda: nomu(1e9 * X, standardize=True),
    ),
    "no linear readout of l_min": (
        lambda: nomu(readout=NOMUReadout(c=1.0)),
        "l_min=0.001 and l_max=2",
        lambda: nomu(readout=NOMUReadout(c=1.0, l_min=0.001, l_max=2)),
    ),
    "network and units": (
        lambda: nomu(network=NOMUNetwork(mean=lambda *a: None, hidden_units=(3, 3))),
        "leave one of them out",
        lambda: nomu(network=NOMUNetwork((3, 3))),
    ),
    "refine": (
        lambda: nomu(refine=True),
        "Set noise_std=0.0",
        lambda: nomu(refine=True, noise_std=0.0),
    ),
    "mse of copies": (
        lambda: fit(kind=TABULAR, network=COPIES, loss="mse", epochs=1),
        'Use loss="nll"',
        lambda: fit(kind=TABULAR, network=COPIES, loss="nll", epochs=1),
    ),
    "scale_l2": (
        lambda: fit(network=MLP(4, scale_l2=0.1), loss="mse"),
        "leave it out",
        lambda: fit(network=MLP(4), loss="mse"),
    ),
    "parts of noise alone": (
        lambda: fit(kind=CALIBRATED, estimator=LinearRegression(), method="parts"),
        'Use method="scale"',
        lambda: fit(kind=CALIBRATED, estimator=LinearRegression(), method="scale"),
    ),
    "folds used up": (
        lambda: fit(kind=CALIBRATED, estimator=TooSure(), cv=iter(())),
        "give a list",
        lambda: fit(kind=CALIBRATED, estimator=TooSure(), cv=list(KFold(3).split(X))),
    ),
    "folds that repeat": (
        lambda: search(validation=ShuffleSplit(3)),
        "as KFold does",
        lambda: search(validation=KFold(3)),
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
    "prefit, not fitted": (
        lambda: CALIBRATED(TooSure(), cv="prefit").fit(X, Y),
        "use another `cv`",
        lambda: CALIBRATED(TooSure(), cv=3).fit(X, Y),
    ),
    "group_by": (
        lambda: CALIBRATED(TooSure(), group_by=lambda X: X[:, 0]).fit(X, Y),
        r"lambda X: numpy.digitize\(X\[:, 0\], edges\)",
        lambda: CALIBRATED(TooSure(), group_by=lambda X: digitize(X[:, 0], [0.0])).fit(X, Y),
    ),
    "no classes_": (
        lambda: get_scorer("neg_brier")(PlainModel(), X, LABELS),
        r"CalibratedUncertaintyClassifier\(model, cv='prefit'\)",
        lambda: get_scorer("neg_brier")(
            CLASSES(LogisticRegression().fit(X, LABELS), cv="prefit").fit(X, LABELS), X, LABELS
        ),
    ),
    "votes, wrapped": (
        lambda: team(POOL),
        "sklearn.calibration.CalibratedClassifierCV",
        lambda: team([POOL[0], ("b", CalibratedClassifierCV(LinearSVC()))]),
    ),
    "votes, hard": (
        lambda: team(POOL),
        "use `voting='hard'`",
        lambda: team(POOL, voting="hard"),
    ),
    "logits": (
        lambda: select_teams(np.log(PROBABILITIES), VOTES[0]),
        r"scipy.special.softmax\(logits, axis=-1\)",
        lambda: select_teams(special.softmax(np.log(PROBABILITIES), axis=-1), VOTES[0]),
    ),
    "labels of another type": (
        lambda: select_teams(VOTES, LABELS),
        "Convert one of them",
        lambda: select_teams(np.where(VOTES, "a", "b"), LABELS),
    ),
    "pretrained, not fitted": (
        lambda: nomu(pretrained=LinearRegression()),
        "sklearn.frozen.FrozenEstimator",
        lambda: nomu(pretrained=FrozenEstimator(LinearRegression().fit(X, Y))),
    ),
    "one group": (
        lambda: search(validation=2, more={"groups": np.ones(60)}),
        "or no groups",
        lambda: search(validation=2),
    ),
    "oracle's class": (
        lambda: search(search=ORACLE),
        "give an object",
        lambda: search(search=ORACLE(max_trials=2, objective="val_loss")),
    ),
    "population": (
        lambda: search(search=AgEBO(population_size=5, sample_size=2), n_trials=3),
        "Set a smaller `population_size`",
        lambda: search(search=AgEBO(population_size=2, sample_size=2), n_trials=3),
    ),
    "one draw": (
        lambda: crps_sample_loss([0.0], [[1.0]], fair=True),
        "or set fair=False",
        lambda: crps_sample_loss([0.0], [[1.0]], fair=False),
    ),
    "adapted layer": (
        lambda: fit(network=normalising()),
        "Give a Normalization layer `mean` and `variance`",
        lambda: fit(network=normalising(mean=[0.0, 1.0], variance=[1.0, 2.0])),
    ),
    "mixed-integer programme": (
        lambda: BayesianOptimizer(TooSure(), [(-1, 1)], maximizer="milp"),
        'acquisition="ucb"',
        lambda: BayesianOptimizer(TooSure(), [(-1, 1)], acquisition="ucb", maximizer="milp"),
    ),
    "plot of arrays": (
        lambda: MemberDiversityDisplay.from_estimator(LinearRegression().fit(X, Y), X),
        "use `from_predictions`",
        lambda: MemberDiversityDisplay.from_predictions(np.stack([Y, Y + 0.1, Y - X[:, 1]])),
    ),
    "columns that files do not hold": (
        lambda: held(PERIODS),
        r"astype\(str\)",
        lambda: held(PERIODS.astype(str)),
    ),
    "index that files do not hold": (
        lambda: held(CITY.set_index(["x", "city"])),
        "Call `reset_index`",
        lambda: held(CITY.set_index(["x", "city"]).reset_index()),
    ),
    "steps twice": (
        lambda: fit(model=skuq.NEONRegressor(epochs=3, training=skuq.training.Training(steps=5))),
        "Leave one of them out",
        lambda: fit(model=OPERATOR),
    ),
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
        way_out(message) if way_out.__code__.co_argcount else way_out()
    assert not [w for w in caught if re.search(told, str(w.message))]
