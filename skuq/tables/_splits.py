"""Which rows train and which validate."""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["split_rows"]


def split_rows(n_rows: int, validation_fraction: float, rng, groups=None, labels=None):
    """Positions of training and of validation rows, both sorted and never empty.

    Parameters
    ----------
    n_rows : int
        At least 2.
    validation_fraction : float
        Share of the rows (with `groups`: of the groups) that validate.
    rng : numpy.random.Generator
    groups : array-like of shape (n_rows,), optional
        Rows of one group are never divided.
    labels : array-like of shape (n_rows,), optional
        Classes to divide in proportion, each with a training row as far as the rows
        that do not validate suffice. Ignored with `groups`.

    Raises
    ------
    ValueError
        If there are fewer than two rows, or two groups.
    """
    if groups is not None:
        codes, named = pd.factorize(np.asarray(groups), use_na_sentinel=False)
        if len(named) < 2:
            raise ValueError("`groups` must name at least two groups: one has to validate.")
        n_valid = int(np.clip(round(validation_fraction * len(named)), 1, len(named) - 1))
        validates = np.isin(codes, rng.permutation(len(named))[:n_valid])
        return np.flatnonzero(~validates), np.flatnonzero(validates)
    if n_rows < 2:
        raise ValueError(f"Training and validation need at least 2 rows. Got {n_rows}.")
    n_valid = int(np.clip(round(validation_fraction * n_rows), 1, n_rows - 1))
    order = rng.permutation(n_rows)
    if labels is not None:
        order = _interleaved(order, np.asarray(labels)[order])
    return np.sort(order[n_valid:]), np.sort(order[:n_valid])


def _interleaved(order, labels):
    """The same rows so that every beginning has all classes in about their proportion.

    The last row of each class comes last of all, where it trains.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rank = pd.Series(codes).groupby(codes).cumcount().to_numpy()  # within its class
    position = (rank + 0.5) / counts[codes]
    position[rank == counts[codes] - 1] = 2.0
    return order[np.argsort(position, kind="stable")]
