"""Tables of benchmarks/nes.py: rows to train on, to choose on and to judge on."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from problems import corrupt_table
from sklearn.preprocessing import OneHotEncoder

SYNTHETIC = ("pendigits", "letter")  # shifted by `corrupt_table`
NATURAL = ("electricity", "bank")  # in the order of time: later rows are shifted
DATASETS = (*SYNTHETIC, *NATURAL)
# The families are disjoint, as in the paper: one to choose on, another to test on.
VALID_KINDS, TEST_KINDS = ("noise", "missing"), ("scaling", "permutation")
RECENT = 0.1  # share of the training period, at its end, to choose on
VALID = 0.25  # share of the training rows


class Rows(NamedTuple):
    """X (n, d) in float64, y (n,) in 0..n_classes-1."""

    X: np.ndarray
    y: np.ndarray

    def take(self, rows):
        return Rows(self.X[rows], self.y[rows])


class Split(NamedTuple):
    train: Rows
    valid: Rows
    test: Rows
    recent: Rows


def load(data_dir, dataset):
    """All rows, and how many at the beginning are for training."""
    folder = data_dir / "tabular"
    if dataset == "pendigits":  # the test rows are of other writers
        parts = [pd.read_csv(folder / f"pendigits_{part}.csv.gz") for part in ("train", "test")]
        return from_frame(pd.concat(parts), "class"), len(parts[0])
    if dataset == "letter":
        return from_frame(pd.read_csv(folder / "letter.csv.gz"), "letter"), 16000
    if dataset == "electricity":
        rows = from_frame(pd.read_csv(folder / "electricity.csv.gz"), "class")
        return rows, int(0.7 * len(rows.y))
    frame = pd.read_csv(folder / "bank_additional_full.csv.gz")
    # The duration of a call is not known before it, and gives the answer away.
    rows = from_frame(frame.drop(columns="duration"), "y")
    return rows, int(0.8 * len(rows.y))


def from_frame(frame, target):
    """Numbers as they are; of texts a column for each value ("unknown" is one of them)."""
    inputs = frame.drop(columns=target)
    texts = inputs.select_dtypes(exclude="number")
    encoded = OneHotEncoder(sparse_output=False).fit_transform(texts)
    X = np.hstack([inputs.drop(columns=texts.columns).to_numpy(float), encoded])
    return Rows(X, np.unique(frame[target].to_numpy(), return_inverse=True)[1])


def split(data_dir, dataset, seed, max_train, recent=False):
    """Rows for one seed, which draws those to train and to choose on; `test` is always whole.

    With `recent` the end of the training period is kept apart.
    """
    rows, n_train = load(data_dir, dataset)
    n_early = n_train - int(RECENT * n_train) if recent else n_train
    drawn = np.random.default_rng(seed).permutation(n_early)[:max_train]
    valid, train = np.split(drawn, [int(VALID * len(drawn))])
    parts = train, valid, np.arange(n_train, len(rows.y)), np.arange(n_early, n_train)
    return Split(*map(rows.take, parts))


def shifted_sets(dataset, parts, seed):
    """Severity (or "recent") -> rows to choose on and rows to judge on; 0 is not shifted."""
    if dataset in NATURAL:
        return {"recent": (parts.recent, parts.test)}

    def corrupted(rows, kinds, severity, part):
        key = np.random.SeedSequence([seed, severity, part]).generate_state(1)[0]
        X = corrupt_table(rows.X, kinds, severity, reference=parts.train.X, random_state=int(key))
        return rows._replace(X=X)

    return {0: (parts.valid, parts.test)} | {
        severity: (
            corrupted(parts.valid, VALID_KINDS, severity, 0),
            corrupted(parts.test, TEST_KINDS, severity, 1),
        )
        for severity in range(1, 6)
    }
