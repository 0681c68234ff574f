"""Reconstructed solar irradiance with gaps."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import minmax_scale

_N_YEARS = 391
# Rows of the five gaps of NOMU's test set: where each starts, and how many it has.
_GAP_STARTS = (20, 102, 184, 266, 348)
_GAP_ROWS = 20
_SPLIT_SEED = 655  # the paper's


def load_solar_irradiance(path):
    r"""Load a yearly reconstruction of solar irradiance, 1610 to 2000, with NOMU's split.

    Parameters
    ----------
    path : str or path-like
        Comma-separated file with a header, a column YEAR, a column 11yrCYCLE+BKGRND (W/m^2), and
        391 rows in order of time.

    Returns
    -------
    X_train : ndarray of shape (194, 1)
        The year, over all rows scaled to [-1, 1]. Both parts are in order of time.
    y_train : ndarray of shape (194,)
        The irradiance, over all rows scaled to [-1, 1].
    X_test : ndarray of shape (197, 1)
    y_test : ndarray of shape (197,)

    Notes
    -----
    The test part has five gaps of 20 years, from rows 20, 102, 184, 266 and 348, and a random
    third of the other rows. The random third is the paper's own: the seed is fixed.

    References
    ----------
    Heiss et al., "NOMU", ICML 2022, section 4.1.3 and appendix B.2.6. The paper cites
    Steinhilber, Beer and Froehlich, "Total solar irradiance during the Holocene", 2009; the
    names of the file's columns are those of Lean's reconstruction.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from problems import load_solar_irradiance
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "irradiance.csv"  # a stand-in for the file
    ...     rows = [f"{year},{1360 + year % 11}" for year in range(1610, 2001)]
    ...     _ = path.write_text("\n".join(["YEAR,11yrCYCLE+BKGRND", *rows]))
    ...     X_train, y_train, X_test, y_test = load_solar_irradiance(path)
    >>> X_train.shape, X_test.shape
    ((194, 1), (197, 1))
    """
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    year, irradiance = (
        minmax_scale(np.array([row[name] for row in rows], dtype=float), (-1, 1))
        for name in ("YEAR", "11yrCYCLE+BKGRND")
    )
    # Rows of the gaps are test rows, and so is a third of the others.
    gaps = np.add.outer(_GAP_STARTS, np.arange(_GAP_ROWS)).ravel()
    others = np.setdiff1d(np.arange(_N_YEARS), gaps)
    train, _ = train_test_split(others, train_size=2 / 3, random_state=_SPLIT_SEED)
    in_train = np.isin(np.arange(_N_YEARS), train)
    return (
        year[in_train, None],
        irradiance[in_train],
        year[~in_train, None],
        irradiance[~in_train],
    )
