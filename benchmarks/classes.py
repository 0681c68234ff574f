"""Tables of classes: small and middle sets, few rows, tables with categories, beside peers.

    python benchmarks/classes.py --data-dir DIR                        # all that is not done yet
    python benchmarks/classes.py --data-dir DIR --only few --methods tabular plain

Every finished run is written to ``benchmarks/results/classes.json`` at once and not repeated.
Peers that are not installed are left out. All estimators have their defaults, but for what a
method's name says; those of pytabkit have the settings that it advises for log loss.
"""

import argparse
import importlib.util
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from _stored import STORED, add, matches, read
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import (
    AutoDEUQClassifier,
    DeepEnsembleClassifier,
    NESClassifier,
    TabularEnsembleClassifier,
)
from skuq.metrics import ece_loss
from skuq.tables import TablePreprocessor

RESULTS = STORED / "classes.json"
TABLES = ("letter", "pendigits", "adult", "bank", "electricity")
KNOWN = {"breast cancer": load_breast_cancer, "wine": load_wine, "iris": load_iris}
FEW = (10, 20, 50, 100)  # rows
N_RANDOM = 4_000  # random rows of a table to train on


def table(data_dir, name):
    """X, y of the training and of the test part, strings and missing values as they come."""
    folder = data_dir / "tabular"
    if name == "letter":
        frame = pd.read_csv(folder / "letter.csv.gz")
        train, test, target = frame[:16000], frame[16000:], "letter"
    elif name == "pendigits":
        train, test = (
            pd.read_csv(folder / f"pendigits_{part}.csv.gz") for part in ("train", "test")
        )
        target = "class"
    elif name == "adult":
        train, test = (
            pd.read_csv(folder / f"adult_{part}.csv.gz", na_values="?", skipinitialspace=True)
            for part in ("train", "test")
        )
        target = "income"
    elif name == "electricity":
        frame = pd.read_csv(folder / "electricity.csv.gz")
        first = int(0.7 * len(frame))
        train, test, target = frame[:first], frame[first:], "class"
    else:
        frame = pd.read_csv(folder / "bank_additional_full.csv.gz", na_values="unknown")
        frame = frame.drop(columns="duration")  # known only once the target is
        first = int(0.8 * len(frame))
        train, test, target = frame[:first], frame[first:], "y"
    return (
        train.drop(columns=target),
        train[target].astype(str),
        test.drop(columns=target),
        test[target].astype(str),
    )


def boosting(**settings):
    return HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=0, **settings
    )


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
        parts = train_test_split(X, y, test_size=0.1, random_state=0)
        texts = list(X.select_dtypes(exclude="number"))
        self.model = CatBoostClassifier(
            verbose=0, random_seed=0, early_stopping_rounds=50, cat_features=texts
        )
        self.model.fit(parts[0], parts[2], eval_set=(parts[1], parts[3]))
        self.classes_ = self.model.classes_
        return self

    def predict_proba(self, X):
        return self.model.predict_proba(as_text(X))


def as_text(X):
    """Categories as text, missing ones included."""
    X = X.copy()
    for name in X.select_dtypes(exclude="number"):
        X[name] = X[name].astype(str)
    return X


def lightgbm():
    from lightgbm import LGBMClassifier

    return LGBMClassifier(verbose=-1, random_state=0)


def pytabkit(name, **settings):
    """A method of pytabkit on one thread that keeps the epoch of the lowest log loss."""
    import pytabkit

    return getattr(pytabkit, name)(
        random_state=0, val_metric_name="cross_entropy", n_threads=1, **settings
    )


CLASSIFIERS = {
    "tabular": lambda: TabularEnsembleClassifier(random_state=0),
    "plain": lambda: DeepEnsembleClassifier(random_state=0),
    "boosting": boosting,
    "boosting, early stopped": lambda: boosting(early_stopping=True, max_iter=1000),
    "logistic": logistic,
    "forest": forest,
    "NES, 120 s": lambda: NESClassifier(max_time=120, random_state=0),
    "AutoDEUQ, 60 s": lambda: AutoDEUQClassifier(max_time=60, random_state=0),
    **{
        f"boosting, {method}": lambda method=method: CalibratedClassifierCV(
            boosting(), method=method
        )
        for method in ("isotonic", "sigmoid", "temperature")
    },
    "catboost": CatBoost,
    "lightgbm": lightgbm,
    "realmlp": lambda: pytabkit("RealMLP_TD_Classifier", n_cv=8, use_ls=False),
    "tabm": lambda: pytabkit("TabM_D_Classifier"),
}
#: Package of each method that is not always installed.
PACKAGES = {
    "catboost": "catboost",
    "lightgbm": "lightgbm",
    "realmlp": "pytabkit",
    "tabm": "pytabkit",
}


def classified(model, data):
    """Scores of a classifier; classes that training rows do not have are not tested."""
    X, y, X_test, y_test = data
    if isinstance(model, HistGradientBoostingClassifier | CalibratedClassifierCV):
        X, X_test = as_categories(X, X_test)
    tested = np.isin(y_test, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    proba = np.asarray(model.predict_proba(X_test[tested]), dtype=float)
    codes = np.searchsorted(model.classes_, y_test[tested])
    shares = np.bincount(np.searchsorted(model.classes_, y), minlength=len(model.classes_)) / len(y)
    likelihood = np.maximum(proba[np.arange(len(codes)), codes], 1e-15)
    return {
        "nll": -np.log(likelihood).mean(),
        "nll_of_shares": -np.log(shares[codes]).mean(),
        "ece": float(ece_loss(codes, proba)),
        "accuracy": accuracy_score(codes, proba.argmax(axis=1)),
    }


def suite(data_dir):
    """(set, split, data) of all sets of the suite, then of scikit-learn's: a quarter is tested."""
    for path in sorted((data_dir / "suite" / "classes").glob("*.npz")):
        with np.load(path) as stored:
            X, y, tests = pd.DataFrame(stored["X"]), stored["y"], stored["test_idx"]
        X.columns = X.columns.astype(str)
        for split, test in enumerate(tests):
            train = np.setdiff1d(np.arange(len(y)), test)
            yield path.stem, split, (X.iloc[train], y[train], X.iloc[test], y[test])
    for name, load in KNOWN.items():
        X, y = load(return_X_y=True, as_frame=True)
        for split in range(5):
            parts = train_test_split(
                X, y.to_numpy(), test_size=0.25, random_state=split, stratify=y
            )
            yield name, split, (parts[0], parts[2], parts[1], parts[3])


def few(data_dir):
    """(set with its number of rows, split, data): 10 to 100 rows of scikit-learn's sets."""
    for name, load in KNOWN.items():
        X, y = load(return_X_y=True, as_frame=True)
        for n in FEW:
            for split in range(5):
                parts = train_test_split(
                    X, y.to_numpy(), train_size=n, random_state=split, stratify=y
                )
                yield f"{name}, {n} rows", split, (parts[0], parts[2], parts[1], parts[3])


def random_rows(data_dir):
    """(table, split, data): 4,000 random rows to train on, 10,000 others to test on."""
    for name in TABLES:
        X, y, X_test, y_test = table(data_dir, name)
        X, y = pd.concat([X, X_test]), pd.concat([y, y_test]).to_numpy()
        for split in range(3):
            order = np.random.RandomState(split).permutation(len(y))
            train, test = order[:N_RANDOM], order[N_RANDOM:][:10_000]
            yield name, split, (X.iloc[train], y[train], X.iloc[test], y[test])


def whole(data_dir):
    """(table, 0, data) in their given order, of bank and electricity that of time."""
    for name in TABLES:
        X, y, X_test, y_test = table(data_dir, name)
        yield name, 0, (X, y.to_numpy(), X_test, y_test.to_numpy())


PARTS = {"suite": suite, "few": few, "random rows": random_rows, "classification": whole}


def run(part, data_dir, methods, sets, splits):
    for name, split, data in PARTS[part](data_dir):
        if (sets and name.split(",")[0] not in sets) or split not in splits:
            continue
        for method in methods:
            key = {"part": part, "set": name, "split": split, "method": method}
            if any(matches(record, key) for record in read(RESULTS)):
                continue
            started, cpu = time.perf_counter(), time.process_time()
            record = {**key, **classified(CLASSIFIERS[method](), data)}
            record["seconds"] = round(time.perf_counter() - started, 2)
            record["cpu_seconds"] = round(time.process_time() - cpu, 2)
            add(RESULTS, record)
            print(*key.values(), f"NLL {record['nll']:.4f}, {record['seconds']} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    installed = [
        m for m in CLASSIFIERS if importlib.util.find_spec(PACKAGES.get(m, "skuq")) is not None
    ]
    parser.add_argument("--methods", nargs="+", choices=installed, default=installed)
    a = parser.parse_args()
    for part in a.only:
        run(part, a.data_dir, a.methods, a.sets, a.splits)


if __name__ == "__main__":
    main()
