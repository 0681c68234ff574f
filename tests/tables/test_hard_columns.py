"""Columns that once broke preprocessing, scaling or target transforms."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from skuq.tables import TablePreprocessor, TargetTransform
from skuq.tables._scaling import RobustScaling


def test_an_outlier_moves_nothing_in_a_column_of_zeros():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(400) < 0.2, 3 * rng.normal(size=400), 0.0)[:, None]
    spoilt = x.copy()
    spoilt[0] = 1e30
    clean = RobustScaling().fit(x).transform(x)[1:]
    np.testing.assert_allclose(
        RobustScaling().fit(spoilt).transform(spoilt)[1:], clean, rtol=0.1, atol=0.05
    )


def test_two_values_are_scaled_by_half_their_range():
    x = np.zeros((50, 1))
    x[:5] = 4.0
    z = 4.0 / 2.0
    scaled = RobustScaling().fit(x).transform(x)
    np.testing.assert_allclose(scaled[0], z / np.sqrt(1 + (z / 3) ** 2))


@pytest.mark.parametrize(("offset", "spread"), [(1e12, 10.0), (1e14, 10.0), (1.6e18, 1e3)])
def test_targets_far_from_zero_survive_a_power(offset, spread):
    y = offset + spread * np.random.default_rng(0).normal(size=(500, 1))
    transform = TargetTransform("yeo-johnson").fit(y)
    back = transform.inverse(transform.forward(y))
    assert abs(back - y).max() < 1e-2 * spread + 4 * np.spacing(offset)
    assert np.isfinite(transform.log_derivative(y)).all()


@pytest.mark.parametrize("kind", ["standard", "yeo-johnson", "quantile"])
def test_targets_whose_squares_vanish(kind):
    y = np.array([[0.0], [1e-300], [0.5e-300], [0.0]])
    with pytest.raises(ValueError, match="so small that their variance underflows"):
        TargetTransform(kind).fit(y)


def test_a_whole_number_beyond_floats():
    table = pd.DataFrame({"huge": [10**400, 1, 2]}, dtype=object)
    with pytest.raises(ValueError, match="'huge'.*beyond the range"):
        TablePreprocessor().fit(table)


def test_dates_as_categories():
    dates = pd.Categorical(pd.date_range("2020", periods=3))
    with pytest.raises(ValueError, match="'day'.*dates"):
        TablePreprocessor().fit(pd.DataFrame({"day": dates}))


def test_numbers_as_text_are_warned_of():
    texts = pd.DataFrame({"x": [f"{k / 4}" for k in range(40)] * 2})
    with pytest.warns(UserWarning, match="numbers as text"):
        TablePreprocessor().fit(texts)


@pytest.mark.parametrize("kind", ["int64", "float32", "U3"])
def test_masked_values_are_missing(kind):
    masked = np.ma.array([[1, 2], [3, 4], [5, 6]], mask=[[0, 1], [0, 0], [0, 0]], dtype=kind)
    gap = np.nan if kind != "U3" else None
    filled = pd.DataFrame({"x0": masked.data[:, 0], "x1": [gap, *masked.data[1:, 1]]})
    expected = TablePreprocessor().fit_transform(filled)
    np.testing.assert_array_equal(TablePreprocessor().fit_transform(masked), expected)


def test_a_fit_that_fails_leaves_none_of_another():
    encoder = TablePreprocessor().fit(np.ones((3, 3)))
    with pytest.raises(ValueError, match="infinity"):
        encoder.fit(np.full((3, 2), np.inf))
    with pytest.raises(NotFittedError):
        encoder.transform(np.ones((3, 2)))


def test_a_fit_that_fails_late_leaves_none_of_another():
    encoder = TablePreprocessor().fit(np.ones((40, 2)))
    texts = pd.DataFrame({"a": np.arange(40.0), "b": [str(k % 20) for k in range(40)]})
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="numbers as text"):
        warnings.simplefilter("error")
        encoder.fit(texts)
    with pytest.raises(NotFittedError):
        encoder.transform(np.ones((3, 2)))
