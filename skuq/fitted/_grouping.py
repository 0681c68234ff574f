"""Find groups of rows that are calibrated separately."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from skuq._checks import fill_masked
from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq._warnings import warn_user
from skuq.exceptions import CalibrationWarning

UNCERTAINTY = "uncertainty"
_ROWS_OF_BIN = 50  # least average number of rows in a bin of the predicted uncertainty
_MOST_BINS = 10  # of predicted uncertainty


@saved_as("fitted.Grouping")
@dataclass(frozen=True, eq=False)
class Grouping:
    """Find the group of each row.

    Attributes
    ----------
    by : str, int or callable
        Column of X, function of X that gives labels (n,), or "uncertainty".
    labels : tuple
        Label of each group; for bins of the uncertainty the number of the bin.
    edges : ndarray of shape (n_groups - 1,)
        Inner edges of the bins, as logarithms; empty for labels.
    """

    by: Any
    labels: tuple[Hashable, ...]
    edges: np.ndarray

    __repr__ = record_repr

    @classmethod
    def learn(cls, by: Any, X: Any, log_uncertainty: np.ndarray) -> tuple[Grouping, np.ndarray]:
        """Find the groups of calibration rows.

        Parameters
        ----------
        by : str, int or callable
            See the class.
        X : array-like of shape (n, n_features)
            Calibration rows.
        log_uncertainty : ndarray of shape (n,)
            Logarithm of each row's predicted uncertainty.

        Returns
        -------
        grouping : Grouping
        codes : ndarray of int of shape (n,)
            Position of each row's group; -1 for rows without a label.

        Raises
        ------
        ValueError
            If `by` gives no usable labels.
        """
        if isinstance(by, str) and by == UNCERTAINTY and not _has_column(X, by):
            n_bins = int(np.clip(len(log_uncertainty) // _ROWS_OF_BIN, 1, _MOST_BINS))
            inner = np.arange(1, n_bins) / n_bins
            # If many rows have equal uncertainties, some edges are equal and there are fewer bins.
            edges = np.unique(np.quantile(log_uncertainty, inner, method="higher"))
            edges = edges[edges > log_uncertainty.min()]
            if n_bins > 1 and not len(edges):
                warn_user(
                    'group_by="uncertainty" finds a single group, since the estimator predicts the '
                    "same uncertainty for nearly all rows, as a point estimator does. Group by a "
                    "column or a function of X instead.",
                    CalibrationWarning,
                )
            grouping = cls(by, tuple(range(len(edges) + 1)), edges)
            return grouping, grouping.codes(X, log_uncertainty)
        keys = _labels(by, X, len(log_uncertainty))
        codes, labels = pd.factorize(keys, sort=False)
        if not len(labels):
            raise ValueError(f"`group_by` must give labels. All of {len(keys)} rows have none.")
        counts = np.bincount(codes[codes >= 0])
        if len(labels) > 2 and np.mean(counts == 1) > 0.5:
            raise ValueError(
                f"`group_by` must give labels that rows share. Got {len(labels)} labels for "
                f"{len(keys)} rows, {np.sum(counts == 1)} of them once only. Bin numbers by a "
                "function of X, such as lambda X: numpy.digitize(X[:, 0], edges)."
            )
        return cls(by, tuple(np.asarray(labels, dtype=object).tolist()), np.empty(0)), codes

    def codes(self, X: Any, log_uncertainty: np.ndarray) -> np.ndarray:
        """Find the position (n,) of each row's group; -1 if it has no known label."""
        if isinstance(self.by, str) and self.by == UNCERTAINTY and not _has_column(X, self.by):
            return np.searchsorted(self.edges, log_uncertainty, side="right")
        keys = _labels(self.by, X, len(log_uncertainty))
        code = {label: k for k, label in enumerate(self.labels)}
        # Look up each distinct label once, then map rows to groups.
        distinct, label_of = pd.factorize(keys)
        known = np.array([*(code.get(label, -1) for label in label_of), -1])
        codes = known[distinct]  # a missing label is -1, the last of `known`
        if (codes < 0).any():
            warn_user(
                f"{np.sum(codes < 0)} of {len(codes)} rows are of groups without calibration "
                "rows, and get the calibration of all rows.",
                CalibrationWarning,
            )
        return codes


def _has_column(X: Any, name: str) -> bool:
    return hasattr(X, "columns") and name in X.columns


def _labels(by: str | int | Callable[[Any], Any], X: Any, n_rows: int) -> np.ndarray:
    """Return the labels (n,) as objects; missing labels are None or NaN."""
    if callable(by):
        keys, source = by(X), "The function `group_by`"
    else:
        keys, source = _column(X, by), f"The column {by!r}"
    # Objects, as pandas would make numbers of some of them, such as dates.
    labels = pd.Series(np.asarray(fill_masked(keys), dtype=object).ravel(), dtype=object)
    if len(labels) != n_rows:
        raise ValueError(f"{source} must give one label a row, {n_rows}. Got {len(labels)}.")
    values: np.ndarray = labels.to_numpy()
    return values


def _column(X: Any, column: str | int) -> Any:
    """Return a column of X, given by name or position."""
    if isinstance(column, str):
        if not _has_column(X, column):
            if not hasattr(X, "columns"):
                raise ValueError(
                    "`group_by` must be the position of a column, since X has no names of "
                    f"columns. Got {column!r}."
                )
            raise ValueError(
                f"`group_by` must be a column of X, one of {list(X.columns)}. Got {column!r}."
            )
        return X[column]
    if hasattr(X, "toarray"):
        raise ValueError("`group_by` must be a function of X where X is sparse. Got a column.")
    n_columns = np.shape(X)[1] if np.ndim(X) > 1 else 0
    if not -n_columns <= column < n_columns:
        raise ValueError(f"`group_by` must be a column of X, which has {n_columns}. Got {column}.")
    return X.iloc[:, column] if hasattr(X, "iloc") else np.asarray(X, dtype=object)[:, column]
