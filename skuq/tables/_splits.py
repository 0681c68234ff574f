"""Which rows train and which validate."""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["split_rows"]


def split_rows(n_rows: int, validation_fraction: float, rng, groups=None):
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
    return np.sort(order[n_valid:]), np.sort(order[:n_valid])
