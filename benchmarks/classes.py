"""Classes on tables: large ones, small and middle sets and few rows, beside peers.

Estimators have their defaults but for what a method's name says; those of pytabkit have what it
advises for log loss. skuq's were chosen on inner parts of the training rows of all whole
tables but cancer and digits. Peers that are not installed are left out.
"""

import importlib.util
import time

import numpy as np
import pandas as pd
from data import CLASSES, FEW_ROWS, LARGE_CLASSES, WHOLE
from runner import Benchmark, each
from scores import class_scores
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skuq
from skuq.tables import TablePreprocessor


def boosting(**settings):
    return HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=0, **settings
    )


def calibrated(method):
    return lambda: CalibratedClassifierCV(boosting(), method=method)


def as_categories(X, X_test):
    """Strings as pandas categories of the training part, which is what boosting takes."""
    X, X_test = X.copy(), X_test.copy()
    for name in X.select_dtypes(exclude="number"):
        X[name] = X[name].astype("category")
        X_test[name] = pd.Categorical(X_test[name], categories=X[name].cat.categories)
    return X, X_test


def logistic():
    """Logistic regression of standardised numbers and indicators of categories."""
    encode = TablePreprocessor(max_categories=50)
    return make_pipeline(encode, StandardScaler(), LogisticRegression(max_iter=1000))


def forest():
    encode = TablePreprocessor(max_categories=50)
    return make_pipeline(encode, RandomForestClassifier(300, random_state=0))


class CatBoost:
    """CatBoost with early stopping on a tenth of the rows."""

    def fit(self, X, y):
        from catboost import CatBoostClassifier

        X = as_text(X)
        X, X_stop, y, y_stop = train_test_split(X, y, test_size=0.1, random_state=0)
        self.model = CatBoostClassifier(
            verbose=0,
            random_seed=0,
            early_stopping_rounds=50,
            cat_features=list(X.select_dtypes(exclude="number")),
        )
        self.model.fit(X, y, eval_set=(X_stop, y_stop))
        self.classes_ = self.model.classes_
        return self

    def predict_proba(self, X):
        return self.model.predict_proba(as_text(X))


def as_text(X):
    """Categories as text, missing ones included."""
    texts = X.select_dtypes(exclude="number")
    return X.assign(**{name: X[name].astype(str) for name in texts})


def lightgbm():
    from lightgbm import LGBMClassifier

    return LGBMClassifier(verbose=-1, random_state=0)


def pytabkit(name, **settings):
    """A method of pytabkit on one thread that keeps the epoch of the lowest log loss."""
    import pytabkit

    return getattr(pytabkit, name)(
        random_state=0, val_metric_name="cross_entropy", n_threads=1, **settings
    )


METHODS = {
    "tabular": lambda: skuq.TabularEnsembleClassifier(random_state=0),
    "plain": lambda: skuq.DeepEnsembleClassifier(random_state=0),
    "boosting": boosting,
    "boosting, early stopped": lambda: boosting(early_stopping=True, max_iter=1000),
    "logistic": logistic,
    "forest": forest,
    "NES, 120 s": lambda: skuq.NESClassifier(max_time=120, random_state=0),
    "AutoDEUQ, 60 s": lambda: skuq.AutoDEUQClassifier(max_time=60, random_state=0),
    **{f"boosting, {how}": calibrated(how) for how in ("isotonic", "sigmoid", "temperature")},
    "catboost": CatBoost,
    "lightgbm": lightgbm,
    "realmlp": lambda: pytabkit("RealMLP_TD_Classifier", n_cv=8, use_ls=False),
    "tabm": lambda: pytabkit("TabM_D_Classifier"),
}
#: Package of each method that is not always installed.
PACKAGES = {"catboost": "catboost", "lightgbm": "lightgbm"}
PACKAGES |= {"realmlp": "pytabkit", "tabm": "pytabkit"}


def classified(data, make, seed):
    X, y, X_test, y_test = data
    model = make()
    if isinstance(model, HistGradientBoostingClassifier | CalibratedClassifierCV):
        X, X_test = as_categories(X, X_test)
    started, processor = time.perf_counter(), time.process_time()
    model.fit(X, y)
    fitted = time.perf_counter()
    proba = np.asarray(model.predict_proba(X_test), dtype=float)
    ended, used = time.perf_counter(), time.process_time() - processor
    seconds = {"fit_seconds": fitted - started, "predict_seconds": ended - fitted}
    scores = class_scores(proba, np.asarray(y_test), np.asarray(y), model.classes_)
    return scores | seconds | {"processor_seconds": used}


def usual(problem, method):
    """Whole tables have no peers, few rows only what is quick; peers are installed."""
    if importlib.util.find_spec(PACKAGES.get(method, "skuq")) is None:
        return False
    quick = method in ("tabular", "plain", "logistic")
    if problem in FEW_ROWS:
        return quick
    return problem not in WHOLE or quick or method.startswith("boosting")


N_SPLITS = dict.fromkeys(CLASSES, 5) | dict.fromkeys(LARGE_CLASSES, 1)
BENCHMARKS = {"classes": Benchmark(CLASSES, METHODS, each(classified), N_SPLITS, usual)}
