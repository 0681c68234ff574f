"""Columns that once broke preprocessing, scaling or target transforms."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from tiers import cases
from training_data import RobustScaling

from skuq.exceptions import TableWarning
from skuq.tables import TablePreprocessor
from skuq.tables._transforms import TargetTransform


def test_an_outlier_moves_nothing_in_a_column_of_zeros(rng):
    x = np.where(rng.random(400) < 0.2, 3 * rng.normal(size=400), 0.0)[:, None]
    spoilt = x.copy()
    spoilt[0] = 1e30
    clean = RobustScaling().fit(x).transform(x)[1:]
    found = RobustScaling().fit(spoilt).transform(spoilt)[1:]
    np.testing.assert_allclose(found, clean, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(("offset", "spread"), [(1e14, 10.0), (1.6e18, 1e3)])
def test_targets_far_from_zero_survive_a_power(offset, spread):
    y = offset + spread * np.random.default_rng(0).normal(size=(500, 1))
    transform = TargetTransform("yeo-johnson").fit(y)
    back = transform.inverse(transform.forward(y))
    assert abs(back - y).max() < 1e-2 * spread + 4 * np.spacing(offset)
    assert np.isfinite(transform.log_derivative(y)).all()


def test_targets_whose_squares_vanish():
    with pytest.raises(ValueError, match="so small that their variance underflows"):
        TargetTransform("quantile").fit(np.array([[0.0], [1e-300], [0.5e-300], [0.0]]))


DAYS = pd.Timestamp("2021-03-05") + pd.to_timedelta(np.arange(0, 600, 20), unit="D")
NUMBERS = np.round(np.random.default_rng(0).uniform(0.1, 9000, 30), 2)
ROUND = np.round(NUMBERS, -1)
SINCE = (DAYS - pd.Timestamp("2000-01-01")).days.to_numpy(float)
UNTIL_GAP = [*SINCE[:29], np.nan]
COMMA = str.maketrans(".,", ",.")
# Texts, what they are, and the numbers that the advice makes of them.
TEXTS = {
    "iso": (DAYS.strftime("%Y-%m-%d"), "dates", SINCE),
    "iso with zone": (DAYS.strftime("%Y-%m-%dT%H:%M:%S+00:00"), "dates", SINCE),
    "day.month.year": (DAYS.strftime("%d.%m.%Y"), "dates", SINCE),
    "month/day/year": (DAYS.strftime("%m/%d/%Y"), "dates", SINCE),
    "day/month/year": (DAYS.strftime("%d/%m/%Y"), "dates", SINCE),
    "year of two digits": (DAYS.strftime("%d.%m.%y"), "dates", SINCE),
    "fractions of a second": (DAYS.strftime("%Y-%m-%d 00:00:00.000"), "dates", SINCE),
    "day/month/year, 99": ([*DAYS.strftime("%d.%m.%Y")[:29], "99.99.9999"], "dates", UNTIL_GAP),
    "eight digits": (DAYS.strftime("%Y%m%d"), "dates", SINCE),
    "name of month": (DAYS.strftime("%b %d, %Y"), "dates", SINCE),
    "clock": ([f"{k % 12 + 1}:30" for k in range(30)], "times", (np.arange(30) % 12 + 1.5) / 24),
    "gaps": ([*DAYS.strftime("%Y-%m-%d")[:28], None, "?"], "dates", [*SINCE[:28], np.nan, np.nan]),
    "decimal comma": ([f"{x:,.2f}".translate(COMMA) for x in NUMBERS], "decimal comma", NUMBERS),
    "unit": ([f"-{x} km/h".translate(COMMA) for x in NUMBERS], "decimal comma", -NUMBERS),
    "money": ([f"${x:,.2f}" for x in NUMBERS], "with a unit", NUMBERS),
    "comma behind zero": ([f"{x / 1e4:.3f}".translate(COMMA) for x in ROUND], "comma", ROUND / 1e4),
    "minus and currency": ([f"-$ {x:,.2f}" for x in NUMBERS], "with a unit", -NUMBERS),
    "code of a currency": ([f"USD {x}" for x in NUMBERS], "with a unit", NUMBERS),
    "bytes": ([str(x).encode() for x in NUMBERS], "numbers", NUMBERS),
}


@pytest.mark.parametrize("name", TEXTS)
def test_dates_and_numbers_as_text_are_told_with_a_way_out(name, recwarn):
    as_array = name in ("iso", "money")
    texts, what, numbers = TEXTS[name]
    X = pd.DataFrame({"a b": np.array(texts, dtype=object), "z": NUMBERS})
    X = X.to_numpy(dtype=object) if as_array else X
    TablePreprocessor().fit(X)
    (told,) = (w for w in recwarn if issubclass(w.category, TableWarning))
    column = "x0" if as_array else "a b"
    text = str(told.message)
    assert re.match(rf"Column '{column}' holds .*{what}.* as text, such as ", text)
    told = [t.decode() if isinstance(t, bytes) else t for t in texts]
    assert repr(told[0]) in text and repr(next(t for t in told if t != told[0])) in text
    converted = eval(re.search(r"first, as (.*) does\.", text)[1], {"pandas": pd, "X": X})
    np.testing.assert_allclose(converted, numbers, rtol=1e-9)
    recwarn.clear()  # The other way out: they are categories.
    TablePreprocessor().fit(pd.DataFrame({"a": pd.Categorical(texts)}))
    assert not [w for w in recwarn if "as text" in str(w.message)]


@cases(
    "words",
    *("A1 A2 A3", "1A 2B 3C 4A 5B 6D", "1 2 3", "1.2.3 1.2.4 1.3", "MAR MAY JAN"),
    *("10-20 20-30 30-40", "017-00-45 017-00-46", "4wd 2wd fwd", "<20 20-30 >30"),
    "21345678 20219999 20213101",
)
def test_words_are_not_told(words, recwarn):
    TablePreprocessor().fit(pd.DataFrame({"a": words.split() * 4}))
    assert not recwarn


@pytest.mark.parametrize("dates", ["13/01/2021;01/13/2021", "2021-03-04;24.03.2021"])
def test_dates_of_unclear_order_are_told_without_code(dates):
    with pytest.warns(TableWarning, match="holds dates .*pandas.to_datetime with their `format`"):
        TablePreprocessor().fit(pd.DataFrame({"a": dates.split(";") * 4}))


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
    texts = pd.DataFrame({"a": np.arange(40.0), "b": [str(k % 20) for k in range(40)]})
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="numbers as text"):
        warnings.simplefilter("error")
        encoder.fit(np.ones((40, 2))).fit(texts)
    with pytest.raises(NotFittedError):
        encoder.transform(np.ones((3, 2)))
