"""Data sets that several benchmarks share."""

import numpy as np
import pandas as pd


def uci_rows(data_dir, name):
    """All rows of a UCI set: (X, y)."""
    with np.load(data_dir / "uci_regression" / f"{name}.npz") as data:
        return data["X"], data["y"].ravel()


def uci(data_dir, name, split):
    """A standard split of a UCI set: (X_train, y_train, X_test, y_test)."""
    X, y = uci_rows(data_dir, name)
    with np.load(data_dir / "uci_regression" / f"{name}.npz") as data:
        train, test = data["train_idx"][split], data["test_idx"][split]
    return X[train], y[train], X[test], y[test]


def bike(data_dir):
    """Bike rentals hour by hour: X, their numbers, and the table of both."""
    frame = pd.read_csv(data_dir / "tabular" / "bike_sharing_hour.csv.gz")
    X = frame.drop(columns=["instant", "dteday", "casual", "registered", "cnt"])
    return X.to_numpy(float), frame["cnt"].to_numpy(float), frame
