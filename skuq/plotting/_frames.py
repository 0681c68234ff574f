"""Trials, decisions and their importance from a catalog, for the displays of searches."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold
from sklearn.utils import check_random_state

# Columns of `Catalog.to_frame` that are not decisions.
_RECORD = (
    "trial_number",
    "status",
    "score",
    "seconds",
    "share",
    "n_epochs",
    "best_epoch",
    "message",
)
_LOG_FROM = 30  # an axis is logarithmic if its ends have a larger ratio: one and a half decades
_N_FOLDS, _N_SHUFFLES = 5, 5  # of permutation importances
#: Smallest number of trials for importances.
FEWEST_TRIALS = 2 * _N_FOLDS


def catalog_frame(catalog) -> pd.DataFrame:
    """Return the frame of a catalog or of a frame; it must have a status and a score."""
    frame = catalog if isinstance(catalog, pd.DataFrame) else None
    if frame is None and hasattr(catalog, "to_frame"):
        frame = catalog.to_frame()
    if frame is None:
        raise TypeError(f"`catalog` must be a Catalog or its frame. Got {catalog!r}.")
    if missing := [name for name in ("status", "score") if name not in frame]:
        raise ValueError(f"The catalog's frame lacks the columns {missing}.")
    return frame.reset_index(drop=True)


def decisions_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that are decisions of a configuration."""
    return frame[[name for name in frame if name not in _RECORD]]


def varied_decisions(configurations: pd.DataFrame) -> list[str]:
    """Return the names of the decisions that have more than one value."""
    return [name for name in configurations if configurations[name].nunique(dropna=False) > 1]


class Axis:
    """Positions of the trials on an axis for one decision.

    Numbers keep their order and distances. If they are positive and span more than one and
    a half decades, the distances are those of their logarithms. Other values are equally
    spaced. A missing number has the position NaN, any other missing value counts as one more.

    Attributes
    ----------
    positions : ndarray of shape (n_trials,)
        Positions in [0, 1].
    codes : ndarray of shape (n_trials,)
        Positions before scaling to [0, 1], the inputs of the forest.
    values : list
        Distinct values in the order of their positions.
    numeric, log : bool
    """

    def __init__(self, values: pd.Series):
        values = values.astype(object).where(values.notna(), None)
        distinct = list(dict.fromkeys(values))
        known = [value for value in distinct if value is not None]
        self.numeric = bool(known) and all(_is_number(value) for value in known)
        self.values = sorted(known) if self.numeric else sorted(distinct, key=_natural)
        ends = self.values[0], self.values[-1]
        self.log = self.numeric and ends[0] > 0 and ends[1] / ends[0] > _LOG_FROM
        self._order = {value: k for k, value in enumerate(self.values)}
        self.codes = self._code(values)
        self._start, end = self._code(ends)
        self._spread = end - self._start or 1.0
        self.positions = self.at(values)

    def at(self, values) -> np.ndarray:
        """Return the positions of values; the ends of the axis are 0 and 1."""
        return (self._code(values) - self._start) / self._spread

    def _code(self, values):
        if not self.numeric:
            return np.array([self._order[value] for value in values], dtype=float)
        values = np.array(values, dtype=float)
        return np.log(values) if self.log else values


def _is_number(value):
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def _natural(value):
    """Return a sort key that puts "16-relu" before "128-relu"."""
    return [
        (0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", str(value)) if t
    ]


def decision_importances(
    configurations: pd.DataFrame, scores, random_state=0
) -> tuple[pd.DataFrame, float]:
    """Compute the permutation importance of each decision in a random forest.

    The forest predicts the *ranks* of the scores, which a single diverged trial hardly
    changes. In each of five folds every decision is shuffled among the held-out trials; the
    fall in R2 is its importance. Values about 0, also below 0, mean no importance.

    Return a frame by decision, largest first, with `mean` and standard `error` over the folds (0
    for decisions that never vary), and the mean R2 of the forests on held-out trials. If R2 is not
    above 0, the importances mean nothing. Raise ValueError if there are fewer than ten trials.
    """
    if len(configurations) < FEWEST_TRIALS:
        raise ValueError(
            f"Importances need at least {FEWEST_TRIALS} completed trials. Got "
            f"{len(configurations)}."
        )
    names = varied_decisions(configurations)
    importances = pd.DataFrame(0.0, index=configurations.columns, columns=["mean", "error"])
    r2 = 0.0
    if names:
        X = np.stack([Axis(configurations[name]).codes for name in names], axis=1)
        ranks = pd.Series(np.asarray(scores, dtype=float)).rank().to_numpy()
        rng = check_random_state(random_state)
        folds = KFold(_N_FOLDS, shuffle=True, random_state=rng).split(X)
        falls, scores = zip(
            *(_shuffle_columns(X, ranks, train, test, rng) for train, test in folds)
        )
        r2 = float(np.mean(scores))
        importances.loc[names, "mean"] = np.mean(falls, axis=0)
        importances.loc[names, "error"] = np.std(falls, axis=0, ddof=1) / np.sqrt(_N_FOLDS)
    return importances.sort_values("mean", ascending=False, kind="stable"), r2


def _shuffle_columns(X, y, train, test, rng):
    """Return the fall in R2 on a fold's test rows for each shuffled column, and R2."""
    forest = RandomForestRegressor(100, random_state=rng).fit(X[train], y[train])
    n_columns = X.shape[1]
    # All shuffled copies, (n_columns, n_shuffles, n_test, n_columns), are predicted in one call:
    # a forest's calls cost more than its rows.
    copies = np.tile(X[test], (n_columns, _N_SHUFFLES, 1, 1))
    for column in range(n_columns):
        for shuffle in range(_N_SHUFFLES):
            copies[column, shuffle, :, column] = rng.permutation(X[test, column])
    given = forest.predict(copies.reshape(-1, n_columns)).reshape(n_columns, -1, len(test))
    # R2 is relative to the variance of all trials, as that of the few in a fold is mostly chance.
    variance = y.var() or 1.0
    errors = ((given - y[test]) ** 2).mean(axis=(1, 2)) / variance
    error = ((forest.predict(X[test]) - y[test]) ** 2).mean() / variance
    return errors - error, 1 - error
