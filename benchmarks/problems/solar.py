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


def load_solar_irradiance(path, *, column="11yrCYCLE+BKGRND"):
    r"""Load a yearly reconstruction of solar irradiance, 1610 to 2000, with NOMU's split.

    Parameters
    ----------
    path : str or path-like
        Comma-separated file with a header, a column YEAR and 391 rows in order of time.
    column : str, default='11yrCYCLE+BKGRND'
        Column to predict, in W/m^2.

    Returns
    -------
    X_train : ndarray of shape (194, 1)
        The year, over all rows scaled to [-1, 1]. Both parts are in order of time.
    y_train : ndarray of shape (194,)
        The irradiance, over all rows scaled to [-1, 1].
    X_test : ndarray of shape (197, 1)
    y_test : ndarray of shape (197,)

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a column is missing or holds something else than numbers, or the number of rows is
        not 391.

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
    year, irradiance = (
        minmax_scale(values, (-1, 1)) for values in _read_columns(path, ("YEAR", column))
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


def _read_columns(path, names) -> list[np.ndarray]:
    """Load the columns of numbers, each of shape (391,)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be the irradiance file. There is no file {path}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        known = reader.fieldnames or []
    missing = [name for name in names if name not in known]
    if missing:
        raise ValueError(f"{path} must have a column {missing[0]!r}. Its columns are {known}.")
    if len(rows) != _N_YEARS:
        raise ValueError(
            f"{path} must have {_N_YEARS} rows, the years 1610 to 2000. Got {len(rows)}."
        )
    return [_parse_column(path, name, [row[name] for row in rows]) for name in names]


def _parse_column(path, name, texts) -> np.ndarray:
    """Convert the texts of a file's column to finite numbers, or raise ValueError."""
    try:
        values = np.array(texts, dtype=float)
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if not np.isfinite(values).all():
        raise ValueError(f"Column {name!r} of {path} must hold finite numbers only.")
    return values
