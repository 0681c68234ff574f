import datetime
import pickle
import re
import warnings
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiers import cases

from skuq.exceptions import TableWarning
from skuq.tables import TablePreprocessor

NAN = np.nan


@parametrize_with_checks([TablePreprocessor(2, max_categories=3)])
def test_sklearn_contract(estimator, check):
    check(estimator)


@pytest.fixture
def mixed():
    columns = {
        "age": [20.0, NAN, 30.0, 60.0, 40.0, NAN],
        "rooms": [1, 2, 3, 4, 5, 6],
        "new": [True, False, True, True, False, False],
        "city": ["Rome", "Oslo", "Rome", "Bonn", None, "Rome"],
        "sex": pd.Categorical(list("mffmmf"), categories=["f", "m", "x"]),
    }
    return pd.DataFrame(columns)


def columns_of(X, encoder=None):
    encoder = encoder or TablePreprocessor().fit(X)
    return dict(zip(encoder.get_feature_names_out().tolist(), encoder.transform(X).T.tolist()))


def test_every_kind_of_column_by_hand(mixed):
    encoder = TablePreprocessor().fit(mixed)
    expected = {
        "age": [20, 35, 30, 60, 40, 35],  # the median of 20, 30, 40 and 60
        "rooms": [1, 2, 3, 4, 5, 6],
        "new": [1, 0, 1, 1, 0, 0],
        "missingindicator_age": [0, 1, 0, 0, 0, 1],
        "city_Bonn": [0, 0, 0, 1, 0, 0],
        "city_Oslo": [0, 1, 0, 0, 0, 0],
        "city_Rome": [1, 0, 1, 0, 0, 1],
        "city_nan": [0, 0, 0, 0, 1, 0],
        "sex_m": [1, 0, 0, 1, 1, 0],
    }
    assert columns_of(mixed, encoder) == expected
    assert columns_of(mixed, pickle.loads(pickle.dumps(encoder))) == expected
    assert encoder.transform(mixed.iloc[[3]]).tolist() == [[60, 4, 1, 0, 1, 0, 0, 0, 1]]
    assert encoder.code_columns_ == encoder.n_codes_ == () and not encoder.is_identity
    with sklearn.config_context(transform_output="pandas"):
        found = TablePreprocessor(2).fit(mixed).transform(mixed)
    assert_array_equal(found.to_numpy(), TablePreprocessor(2).fit_transform(mixed))


def test_numbers_come_out_as_they_are_or_as_medians():
    X = np.random.default_rng(0).normal(size=(30, 4))
    encoder = TablePreprocessor().fit(X)
    assert encoder.is_identity
    assert_array_equal(encoder.transform(X), X)
    assert not np.shares_memory(encoder.transform(X), X)
    integers = (10 * X).astype("int32")
    assert_array_equal(TablePreprocessor().fit_transform(integers), integers)
    assert TablePreprocessor().fit_transform(integers).dtype == "float64"
    frame = pd.DataFrame(X, columns=list("abcd"))
    of_frame = TablePreprocessor().fit(frame).transform(frame)
    assert_array_equal(of_frame, X)
    assert of_frame.flags.writeable and not np.shares_memory(of_frame, frame.to_numpy())
    X = np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]])
    encoder = TablePreprocessor().fit(X)
    with pytest.warns(UserWarning, match=r"\['x0'\], where `fit` saw none"):
        assert_array_equal(encoder.transform([[NAN, 8.0]]), [[2.0, 8.0]])
    filled = TablePreprocessor(missing="median").fit_transform([[1.0], [NAN], [3.0], [8.0]])
    assert_array_equal(filled, [[1.0], [3.0], [3.0], [8.0]])


def test_gaps_that_fit_has_not_seen_and_columns_without_a_value_are_told(mixed, recwarn):
    encoder = TablePreprocessor().fit(mixed)
    encoder.transform(mixed)
    encoder.transform(mixed.assign(rooms=range(6)))
    assert not recwarn
    gaps = mixed.copy()
    gaps.loc[2, ["age", "rooms", "city", "sex"]] = None  # of these, `fit` has seen the first
    for one in (encoder, pickle.loads(pickle.dumps(encoder))):
        with pytest.warns(UserWarning, match=r"\['rooms', 'sex'\], where `fit` saw none") as caught:
            one.transform(gaps)
        assert len(caught) == 1
    mixed["empty"], mixed["none"] = NAN, None
    with pytest.warns(UserWarning, match=r"\['empty', 'none'\] hold missing values only"):
        encoder = TablePreprocessor().fit(mixed)
    assert encoder.dropped_columns_.tolist() == [5, 6]
    fewer = TablePreprocessor().fit_transform(mixed.iloc[:, :5])
    assert_array_equal(encoder.transform(mixed), fewer)
    assert_array_equal(encoder.transform(mixed.assign(empty=3.0, none="new")), fewer)
    with pytest.raises(ValueError, match="must have at least one value"):
        TablePreprocessor().fit([[NAN], [NAN]])


@pytest.mark.parametrize("max_one_hot", [2, 10])
def test_unseen_categories_are_filled_by_known_ones(max_one_hot, rng):
    """Each time by another one, spread over the mean targets of the known ones."""
    k = rng.integers(8, size=200)
    names = np.array(list("abcdefgh"))[k]
    X = pd.DataFrame({"x": rng.normal(size=200), "c": names, "d": rng.choice(list("uvw"), 200)})
    encoder = TablePreprocessor(max_one_hot)
    known = encoder.fit_encode(X, y=-k)
    with pytest.warns(TableWarning, match="did not see, in columns 'c'"):
        marked = encoder.encode(X.assign(c=X["c"].where(k < 7, "new")), mark_unseen=True)
    assert_array_equal(np.isnan(marked).any(axis=1), k == 7)
    filled = [encoder.fill_unseen(marked, i, 4) for i in range(4)]
    for table in filled:
        assert_array_equal(table[k < 7], known[k < 7])
    rows = [table[k == 7][0] for table in filled]
    found = [row[1:9].argmax() if max_one_hot == 10 else row[1] - 1 for row in rows]
    assert sorted(found) == [0, 2, 4, 6]


def test_many_categories_and_numbers_that_name_classes_become_codes(rng):
    letters = np.array(list("abcdefghijkl"))
    city = pd.Series(rng.choice(letters, 300), dtype=object)
    city[:3] = ["once", "alone", None]  # too rare for codes, except missing
    X = pd.DataFrame({"city": city, "size": np.arange(300.0)})
    encoder = TablePreprocessor().fit(X)
    assert encoder.code_columns_ == (1,) and encoder.n_codes_ == (14,)  # 0, 12 and missing
    codes = encoder.transform(X)
    assert_array_equal(codes[:, 0], X["size"])
    assert codes[:3, 1].tolist() == [0, 0, 13]
    assert_array_equal(codes[3:, 1], np.searchsorted(letters, city[3:].to_numpy(dtype=str)) + 1)
    unseen = pd.DataFrame({"city": ["zz", None, "b"], "size": [0.0, 0.0, 0.0]})
    with pytest.warns(TableWarning, match="33.3 % of the rows"):
        assert encoder.transform(unseen)[:, 1].tolist() == [0, 13, 2]
    assert encoder.get_feature_names_out().tolist() == ["size", "city"]


def test_missing_values_and_new_categories():
    frame = pd.DataFrame({"two": list("ababa"), "three": [*"abab", None]})
    encoder = TablePreprocessor(2).fit(frame)
    expected = {"two_b": [0, 1, 0, 1, 0], "three": [1, 2, 1, 2, 3]}
    assert columns_of(frame, encoder) == expected
    assert (encoder.code_columns_, encoder.n_codes_) == ((1,), (4,))
    encoder = TablePreprocessor(2).fit(frame[:4].assign(three=list("abcc")))
    with pytest.warns(UserWarning, match="where `fit` saw none"):
        assert encoder.transform(frame)[:, 1].tolist() == [0, 0, 0, 0, 0]
    words = pd.DataFrame({"c": ["nan", None, "b"]})  # The word "nan" is no gap.
    expected = {"c_b": [0, 0, 1], "c_nan": [1, 0, 0], "c_nan_missing": [0, 1, 0]}
    assert columns_of(words) == expected
    encoder = TablePreprocessor().fit(pd.DataFrame({"code": pd.Categorical([1, 2, 3, 3])}))
    as_read = pd.DataFrame({"code": [3.0, NAN, 1.0]})
    with pytest.warns(UserWarning, match="where `fit` saw none"):
        assert encoder.transform(as_read).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    encoder = TablePreprocessor().fit(np.array([["a"], ["b"], ["c"]], dtype=object))
    told = r"did not see.*'x0' \(50 % of the rows; such as \['d'\], and `fit` saw \['a', 'b'\] and "
    with pytest.warns(TableWarning, match=told) as caught:
        assert_array_equal(encoder.transform([["d"], ["b"]]), [[0, 0, 0], [0, 1, 0]])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="where `fit` saw none"):
        assert_array_equal(encoder.transform([[None]]), [[0, 0, 0]])
    of_two = TablePreprocessor().fit(np.array([["a"], ["b"]], dtype=object))
    with pytest.warns(TableWarning, match=r"such as \['d+\.\.\.d+'\]"):  # long texts are cut
        encoder.transform([["d" * 9999]])
    # Codes in place of the categories: a column wholly unseen.
    with pytest.warns(TableWarning, match=r"100 % of the rows; such as \['1', '0'\]"):
        assert_array_equal(of_two.transform(np.array([[1], [0]])), [[0], [0]])
    # A frame of the output could not be read, if its columns had equal names.
    table = pd.DataFrame({"k": list("uvw"), "k_u": [1.0, 2.0, 3.0], "missingindicator_z": 4.0})
    encoder = TablePreprocessor().fit(table.assign(z=[NAN, 5.0, 6.0]))
    names = ["k_u", "missingindicator_z", "z", "missingindicator_z_", "k_u_", "k_v", "k_w"]
    assert encoder.get_feature_names_out().tolist() == names


def test_many_categories_become_a_few_columns_and_identifiers_are_pointed_out():
    X = np.repeat(list("abcdefghijkl"), [9, 8, 7, *[1] * 9]).astype(object)[:, None]
    encoder = TablePreprocessor(max_categories=4).fit(X)
    names = ["x0_a", "x0_b", "x0_c", "x0_infrequent_sklearn"]
    assert encoder.get_feature_names_out().tolist() == names
    encoded = encoder.transform(X)
    assert encoded.sum(axis=0).tolist() == [9, 8, 7, 9] and (encoded.sum(axis=1) == 1).all()
    with pytest.warns(TableWarning, match="100 % of the rows"):
        assert encoder.transform([["never seen"]]).tolist() == [[0, 0, 0, 1]]
    assert encoder.code_columns_ == ()
    with pytest.raises(ValueError, match="max_categories"):
        TablePreprocessor(max_categories=1).fit(X)
    # Identifiers
    X = pd.DataFrame({"name": [f"customer {k}" for k in range(20)], "x": np.arange(20.0)})
    with pytest.warns(UserWarning, match=r"'name' has as many categories as rows \(20\)"):
        encoder = TablePreprocessor().fit(X)
    assert encoder.n_codes_ == (1,)
    with warnings.catch_warnings(action="error"):
        TablePreprocessor().fit(X.iloc[:5])  # few rows: few categories


DATES = [
    pd.to_datetime(["2020-01-01", None]),
    pd.to_timedelta([1, 2], unit="D"),
    pd.period_range("2020", periods=2, freq="Y"),
    pd.Series([datetime.date(2020, 1, 1), None], dtype=object),
    pd.Categorical(pd.date_range("2020", periods=2)),
]
NUMBERS = pd.DataFrame({"x": [1.0, 2.0], "b": [np.inf, 0.0], "c": [0.0, -np.inf]})
PLAIN = pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]})
BY_NAME = "'bought' holds dates or times.*year, month, weekday"
INFINITE = r"contains infinity, in columns \['b', 'c'\]"
# Tables of `fit` and, where that is fine, of `transform`; and the message.
REFUSED = [
    *[(PLAIN.assign(bought=dates), None, BY_NAME) for dates in DATES],
    # Also where fit has seen numbers, which dates could be taken for, or categories.
    (PLAIN.assign(bought=[1.0, 2.0]), PLAIN.assign(bought=DATES[0]), BY_NAME),
    (PLAIN.assign(bought=["a", "b"]), PLAIN.assign(bought=DATES[-1]), BY_NAME),
    *[(table, None, INFINITE) for table in (NUMBERS, NUMBERS.assign(w="w"))],
    (np.eye(2), [[1.0, np.inf]], r"contains infinity, in columns \['x1'\]"),
    (PLAIN, PLAIN.assign(x=["seven", "8"]), "'x' held numbers in fit.*seven"),
    (PLAIN.set_axis(["u", "u"], axis=1), None, r"unique names. Several are named \['u'\]"),
    (PLAIN, PLAIN.iloc[:, ::-1], "same order"),
    (PLAIN, PLAIN.iloc[:, :1], "missing|seen at fit"),
    (PLAIN.assign(z=np.array([1j, 2])), None, "Complex data not supported.*'z'"),
    (PLAIN[["y"]].iloc[:0], None, r"0 sample\(s\)"),
    (pd.DataFrame(index=range(3)), None, r"0 feature\(s\)"),
    (sparse.eye_array(4).tocsr(), None, "dense data is required"),
    ([{"a": 1.0}, {"a": 2.0}], None, r"in dicts or records. Give `pandas.DataFrame\(X\)`"),
]


@pytest.mark.parametrize(("table", "later", "message"), REFUSED)
def test_refused_tables_are_named(table, later, message):
    encoder, is_no_table = TablePreprocessor(), sparse.issparse(table) or isinstance(table, list)
    with pytest.raises(TypeError if is_no_table else ValueError, match=message):
        encoder.fit(table).transform(table if later is None else later)


def test_columns_of_pandas_own_kinds_and_of_objects():
    kinds = {
        "compute": pd.array([1, None, 3], dtype="Int64"),  # no method of a lazy frame
        "f": pd.array([0.5, 1.5, None], dtype="Float64"),
        "b": pd.array([True, None, False], dtype="boolean"),
        "s": pd.array(["u", "v", None], dtype="string"),
        "sparse": pd.arrays.SparseArray([0.0, 0.0, 2.0]),
    }
    numbers = {"compute": [1, 2, 3], "f": [0.5, 1.5, 1], "b": [1, 0.5, 0], "sparse": [0, 0, 2]}
    gaps = {"compute": [0, 1, 0], "f": [0, 0, 1], "b": [0, 1, 0]}
    texts = {"s_u": [1, 0, 0], "s_v": [0, 1, 0], "s_nan": [0, 0, 1]}
    gaps = {f"missingindicator_{name}": column for name, column in gaps.items()}
    assert columns_of(pd.DataFrame(kinds)) == numbers | gaps | texts
    # Columns of objects
    numbers = {"numbers": [1, 2.5, None, Decimal("4")], "truth": [True, None, False, True]}
    texts = {"mixed": [1, "1", "a", None], "lists": [[1], [1], [2], None]}
    X = pd.DataFrame({**numbers, **texts, "floats": [1.0, "1", "b", "b"]}, dtype=object)
    numbers = {"numbers": [1, 2.5, 2.5, 4], "truth": [1, 1, 0, 1]}
    gaps = {"missingindicator_numbers": [0, 0, 1, 0], "missingindicator_truth": [0, 1, 0, 0]}
    mixed = {"mixed_1": [1, 1, 0, 0], "mixed_a": [0, 0, 1, 0], "mixed_nan": [0, 0, 0, 1]}
    lists = {"lists_[1]": [1, 1, 0, 0], "lists_[2]": [0, 0, 1, 0], "lists_nan": [0, 0, 0, 1]}
    floats = {"floats_b": [0, 0, 1, 1]}  # a number and the same as text are one category
    assert columns_of(X) == numbers | gaps | mixed | lists | floats
    frame = lambda values: pd.DataFrame({"g": values})  # noqa: E731
    encoder = TablePreprocessor().fit(frame(pd.Categorical([True, False, False])))
    for later in ([1, 0], [1.0, 0.0], [True, False]):
        assert encoder.transform(frame(later)).tolist() == [[1], [0]]
    with pytest.warns(TableWarning, match="'g'"):  # a row does not change how others are read
        assert encoder.transform(frame([1, 0, 2])).tolist() == [[1], [0], [0]]
    encoder = TablePreprocessor().fit(frame(pd.Categorical([0, 1, 1])))
    assert encoder.transform(frame([False, True])).tolist() == [[0], [1]]


def test_lists_arrays_of_text_and_frames_like_those_of_polars_and_pyarrow(mixed):
    rows = [["a", 1.0], ["b", 2.0], ["c", 4.0]]
    expected = {"x1": [1, 2, 4], "x0_a": [1, 0, 0], "x0_b": [0, 1, 0], "x0_c": [0, 0, 1]}
    assert columns_of(rows) == columns_of(np.array(rows, dtype=object)) == expected
    names = ["x0_a", "x0_b", "x0_c", "x1_1.0", "x1_2.0", "x1_4.0"]
    assert list(columns_of(np.array(rows))) == names  # numpy made text of all
    encoder = TablePreprocessor().fit(PLAIN)
    assert encoder.transform(pd.DataFrame({"x": ["7"], "y": ["b"]})).tolist() == [[7, 1]]
    columns = [SimpleNamespace(name=name, to_numpy=mixed[name].to_numpy) for name in mixed]
    polars = SimpleNamespace(columns=list(mixed), get_columns=lambda: columns)
    arrow = SimpleNamespace(column_names=list(mixed), to_pandas=lambda: mixed)
    for frame in (polars, arrow):
        encoder = TablePreprocessor().fit(frame)
        assert encoder.feature_names_in_.tolist() == list(mixed)
        assert columns_of(frame, encoder) == columns_of(mixed)


DAYS = pd.Timestamp("2021-03-05") + pd.to_timedelta(np.arange(0, 600, 20), unit="D")
AMOUNTS = np.round(np.random.default_rng(0).uniform(0.1, 9000, 30), 2)
ROUND, SINCE = np.round(AMOUNTS, -1), (DAYS - pd.Timestamp("2000-01-01")).days.to_numpy(float)
UNTIL_GAP, COMMA = [*SINCE[:29], np.nan], str.maketrans(".,", ",.")
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
    "decimal comma": ([f"{x:,.2f}".translate(COMMA) for x in AMOUNTS], "decimal comma", AMOUNTS),
    "unit": ([f"-{x} km/h".translate(COMMA) for x in AMOUNTS], "decimal comma", -AMOUNTS),
    "money": ([f"${x:,.2f}" for x in AMOUNTS], "with a unit", AMOUNTS),
    "comma behind zero": ([f"{x / 1e4:.3f}".translate(COMMA) for x in ROUND], "comma", ROUND / 1e4),
    "minus and currency": ([f"-$ {x:,.2f}" for x in AMOUNTS], "with a unit", -AMOUNTS),
    "code of a currency": ([f"USD {x}" for x in AMOUNTS], "with a unit", AMOUNTS),
    "bytes": ([str(x).encode() for x in AMOUNTS], "numbers", AMOUNTS),
}


@pytest.mark.parametrize("name", TEXTS)
def test_dates_and_numbers_as_text_are_told_with_a_way_out(name, recwarn):
    as_array = name in ("iso", "money")
    texts, what, numbers = TEXTS[name]
    X = pd.DataFrame({"a b": np.array(texts, dtype=object), "z": AMOUNTS})
    X = X.to_numpy(dtype=object) if as_array else X
    TablePreprocessor().fit(X)
    (told,) = (w for w in recwarn if issubclass(w.category, TableWarning))
    column, text = "x0" if as_array else "a b", str(told.message)
    assert re.match(rf"Column '{column}' holds .*{what}.* as text, such as ", text)
    told = [t.decode() if isinstance(t, bytes) else t for t in texts]
    assert repr(told[0]) in text and repr(next(t for t in told if t != told[0])) in text
    converted = eval(re.search(r"first, as (.*) does\.", text)[1], {"pandas": pd, "X": X})
    assert_allclose(converted, numbers, rtol=1e-9)
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
    assert_array_equal(TablePreprocessor().fit_transform(masked), expected)


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
