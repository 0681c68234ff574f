"""Tables that benchmarks share: name to a function of the split, which gives train and test parts.

All give (X, y, X_test, y_test). Strings and missing values are as they come.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import train_test_split

SMALL = ("yacht", "boston", "energy", "concrete", "wine")
LARGE = ("kin8nm", "power", "naval", "protein")
SUITE = ("boom_bikes", "compactiv", "excitation_current", "medical_cost", "mortgage")
SUITE += ("qsar_fish_toxicity", "real_estate_valuation", "wankara")
LARGE_CLASSES = ("letter", "pendigits", "adult", "bank", "electricity")
SUITE_CLASSES = ("australian", "car", "contraceptive", "dermatology", "ecoli", "hypothyroid")
SUITE_CLASSES += ("ionosphere", "kc1", "page_blocks", "pima", "saheart", "segment", "vowel")
SUITE_CLASSES += ("yeast",)
KNOWN = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
FEW = (10, 20, 50, 100)  # rows


def folder():
    return Path(os.environ["SKUQ_DATA_DIR"])


def parts(X, y, test, train=None):
    """Rows of the test part, and all others or those of the training part."""
    train = np.setdiff1d(np.arange(len(y)), test) if train is None else train
    return X[train], y[train], X[test], y[test]


# Numbers


def uci_rows(name):
    """All rows of a UCI set: (X, y)."""
    with np.load(folder() / "uci_regression" / f"{name}.npz") as stored:
        return stored["X"], stored["y"].ravel()


def uci(name, split):
    """A standard split of a UCI set."""
    with np.load(folder() / "uci_regression" / f"{name}.npz") as stored:
        train, test = stored["train_idx"][split], stored["test_idx"][split]
    return parts(*uci_rows(name), test, train)


def suite(kind, name, split):
    """A split of a set of the suite."""
    with np.load(folder() / "suite" / kind / f"{name}.npz") as stored:
        return parts(stored["X"], stored["y"], stored["test_idx"][split])


def diabetes(split):
    X, y = datasets.load_diabetes(return_X_y=True)
    order = np.random.RandomState(split).permutation(len(X))
    train, test = np.split(order, [int(0.9 * len(X))])
    return parts(X, y, test, train)


def bike_rows():
    """Bike rentals hour by hour: X, their numbers, and whether they are of 2012."""
    frame = pd.read_csv(folder() / "tabular" / "bike_sharing_hour.csv.gz")
    X = frame.drop(columns=["instant", "dteday", "casual", "registered", "cnt"])
    return X.to_numpy(float), frame["cnt"].to_numpy(float), frame["yr"].to_numpy() == 1


def bike(split):
    """Logarithms of the numbers; later times are tested."""
    X, counts, _ = bike_rows()
    return parts(X, np.log1p(counts), np.arange(int(0.8 * len(X)), len(X)))


REGRESSION = {name: partial(uci, name) for name in SMALL}
REGRESSION |= {"diabetes": diabetes} | {name: partial(uci, name) for name in LARGE}
REGRESSION |= {"bike": bike} | {name: partial(suite, "regression", name) for name in SUITE}


# Classes


def table(name):
    """The training and the test part of a table as frames, and the target's name."""
    tables = folder() / "tabular"
    if name == "letter":
        frame = pd.read_csv(tables / "letter.csv.gz")
        return frame[:16000], frame[16000:], "letter"
    if name == "pendigits":  # the test rows are of other writers
        train, test = (pd.read_csv(tables / f"pendigits_{k}.csv.gz") for k in ("train", "test"))
        return train, test, "class"
    if name == "adult":
        read = partial(pd.read_csv, na_values="?", skipinitialspace=True)
        train, test = (read(tables / f"adult_{part}.csv.gz") for part in ("train", "test"))
        return train, test, "income"
    if name == "electricity":  # in the order of time, as bank
        frame, target = pd.read_csv(tables / "electricity.csv.gz"), "class"
    else:
        frame = pd.read_csv(tables / "bank_additional_full.csv.gz", na_values="unknown")
        # The duration of a call is known only once the target is.
        frame, target = frame.drop(columns="duration"), "y"
    first = int(0.8 * len(frame))
    return frame[:first], frame[first:], target


def whole(name, split):
    """All rows of a table in their given order."""
    train, test, target = table(name)
    return (
        train.drop(columns=target),
        train[target].astype(str).to_numpy(),
        test.drop(columns=target),
        test[target].astype(str).to_numpy(),
    )


def suite_frame(name, split):
    """A set of classes of the suite, as frames."""
    X, y, X_test, y_test = suite("classes", name, split)
    X, X_test = (pd.DataFrame(part).rename(columns=str) for part in (X, X_test))
    return X, y, X_test, y_test


def known(load, split, **sizes):
    """A set of scikit-learn, with random rows to train on."""
    X, y = load(return_X_y=True, as_frame=True)
    X, X_test, y, y_test = train_test_split(
        X, y.to_numpy(), random_state=split, stratify=y, **sizes
    )
    return X, y, X_test, y_test


WHOLE = {name: partial(whole, name) for name in LARGE_CLASSES}
WHOLE |= {"cancer": partial(known, datasets.load_breast_cancer, test_size=0.2)}
WHOLE |= {"digits": partial(known, datasets.load_digits, test_size=0.2)}
MIDDLE = {name: partial(suite_frame, name) for name in SUITE_CLASSES}
MIDDLE |= {name: partial(known, load, test_size=0.25) for name, load in KNOWN.items()}
FEW_ROWS = {
    f"{name}, {n} rows": partial(known, load, train_size=n)
    for name, load in KNOWN.items()
    for n in FEW
}
CLASSES = WHOLE | MIDDLE | FEW_ROWS
