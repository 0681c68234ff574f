"""The irradiance series and the paper's split of it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import load_solar_irradiance

YEARS = np.arange(1610, 2001)


def write(path, irradiance):
    rows = [f"{year},{1366 - value},{value}" for year, value in zip(YEARS, irradiance)]
    path.write_text("\n".join(["YEAR,11yrCYCLE,11yrCYCLE+BKGRND", *rows]) + "\n")
    return path


@pytest.fixture
def made_up(tmp_path):
    """Irradiance that rises by one a year: after scaling, y equals x."""
    return write(tmp_path / "series.csv", YEARS - 1000.0)


def test_load_solar_irradiance_covers_the_series_once(made_up):
    X_train, y_train, X_test, y_test = load_solar_irradiance(str(made_up))
    assert X_train.shape == (194, 1) and X_test.shape == (197, 1)
    assert_allclose(np.sort(np.r_[X_train, X_test][:, 0]), np.linspace(-1, 1, 391), atol=1e-13)
    assert_allclose(y_train, X_train[:, 0], atol=1e-13)
    assert_allclose(y_test, X_test[:, 0], atol=1e-13)
    train, test = (np.round(195 * (X[:, 0] + 1)).astype(int) for X in (X_train, X_test))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(test) > 0)
    for start in (20, 102, 184, 266, 348):  # gaps
        gap = np.arange(start, start + 20)
        assert not np.isin(gap, train).any() and np.isin(gap, test).all()


def test_load_solar_irradiance_has_the_papers_split(data_dir):
    folder = data_dir / "solar_irradiance"
    split = np.load(folder / "nomu_split.npz")
    table = np.loadtxt(folder / "irradiance.csv", delimiter=",", skiprows=1)
    X_train, y_train, X_test, y_test = load_solar_irradiance(folder / "irradiance.csv")
    scaled = 2 * (table - table.min(axis=0)) / np.ptp(table, axis=0) - 1
    train = np.sort(split["train_idx"])
    test = np.sort(np.r_[split["gap_val_idx"], split["extra_val_idx"]])
    for X, y, rows in [(X_train, y_train, train), (X_test, y_test, test)]:
        assert_allclose(X[:, 0], scaled[rows, 0], atol=1e-13)
        # Irradiances of 1365 with a range of 4: rounding of 2e-13 before scaling.
        assert_allclose(y, scaled[rows, 2], atol=1e-11)
