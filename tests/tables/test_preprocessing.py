import datetime
import pickle
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

from skuq.exceptions import TableWarning
from skuq.tables import TablePreprocessor

NAN = np.nan


@parametrize_with_checks(
    [TablePreprocessor(), TablePreprocessor(2), TablePreprocessor(2, max_categories=3)]
)
def test_sklearn_contract(estimator, check):
    check(estimator)


@pytest.fixture
def mixed():
    """Columns of every common kind, of six rows."""
    return pd.DataFrame(
        {
            "age": [20.0, NAN, 30.0, 60.0, 40.0, NAN],
            "rooms": [1, 2, 3, 4, 5, 6],
            "new": [True, False, True, True, False, False],
            "city": ["Rome", "Oslo", "Rome", "Bonn", None, "Rome"],
            "sex": pd.Categorical(list("mffmmf"), categories=["f", "m", "x"]),
        }
    )


def test_every_kind_of_column_by_hand(mixed):
    encoder = TablePreprocessor().fit(mixed)
    assert encoder.get_feature_names_out().tolist() == [
        *("age", "rooms", "new", "missingindicator_age"),
        *("city_Bonn", "city_Oslo", "city_Rome", "city_nan", "sex_m"),
    ]
    expected = [
        [20, 1, 1, 0, 0, 0, 1, 0, 1],
        [35, 2, 0, 1, 0, 1, 0, 0, 0],  # the median of 20, 30, 40 and 60
        [30, 3, 1, 0, 0, 0, 1, 0, 0],
        [60, 4, 1, 0, 1, 0, 0, 0, 1],
        [40, 5, 0, 0, 0, 0, 0, 1, 1],
        [35, 6, 0, 1, 0, 0, 1, 0, 0],
    ]
    assert_array_equal(encoder.transform(mixed), expected)
    assert_array_equal(encoder.fit_transform(mixed), expected)
    assert encoder.code_columns_ == encoder.n_codes_ == ()
    assert not encoder.is_identity
    assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(mixed), expected)


def test_numbers_come_out_as_they_are():
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


def test_numbers_missing_in_the_test_part_only_are_medians():
    X = np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]])
    encoder = TablePreprocessor().fit(X)
    with pytest.warns(UserWarning, match=r"\['x0'\], where `fit` saw none"):
        assert_array_equal(encoder.transform([[NAN, 8.0]]), [[2.0, 8.0]])
    X = [[1.0], [NAN], [3.0], [8.0]]
    filled = TablePreprocessor(missing="median").fit_transform(X)
    assert_array_equal(filled, [[1.0], [3.0], [3.0], [8.0]])


@pytest.mark.parametrize("missing", ["indicator", "median"])
def test_gaps_that_fit_has_not_seen_are_told_by_column(mixed, missing):
    encoder = TablePreprocessor(missing=missing).fit(mixed)
    gaps = mixed.copy()
    gaps.loc[2, ["age", "rooms", "city", "sex"]] = None  # of these, `fit` has seen the first
    with pytest.warns(UserWarning, match=r"\['rooms', 'sex'\], where `fit` saw none") as caught:
        encoder.transform(gaps)
    assert len(caught) == 1
    loaded = pickle.loads(pickle.dumps(encoder))
    with pytest.warns(UserWarning, match=r"\['rooms', 'sex'\]"):
        loaded.transform(gaps)


def test_gaps_that_fit_has_seen_are_not_told(mixed, recwarn):
    encoder = TablePreprocessor().fit(mixed)
    encoder.transform(mixed)
    encoder.transform(mixed.assign(rooms=range(6)))
    assert not recwarn


def test_a_category_only_in_the_test_part_is_zero_everywhere():
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


def test_names_of_outputs_are_unique():
    """A frame of the output could not be read, if its columns had equal names."""
    table = pd.DataFrame({"k": list("uvw"), "k_u": [1.0, 2.0, 3.0], "missingindicator_z": 4.0})
    encoder = (
        TablePreprocessor().set_output(transform="pandas").fit(table.assign(z=[NAN, 5.0, 6.0]))
    )
    names = ["k_u", "missingindicator_z", "z", "missingindicator_z_", "k_u_", "k_v", "k_w"]
    assert encoder.get_feature_names_out().tolist() == names


def test_the_word_nan_is_no_gap():
    words = pd.DataFrame({"c": ["nan", None, "b", "b"]})
    encoder = TablePreprocessor().fit(words)
    assert encoder.get_feature_names_out().tolist() == ["c_b", "c_nan", "c_nan_missing"]
    assert_array_equal(encoder.transform(words), [[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]])
    X = pd.DataFrame({"code": pd.Categorical([1, 2, 3, 3])})
    encoder = TablePreprocessor().fit(X)
    as_read = pd.DataFrame({"code": [3.0, NAN, 1.0]})
    with pytest.warns(UserWarning, match="where `fit` saw none"):
        assert encoder.transform(as_read).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_many_categories_become_codes(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    letters = np.array(list("abcdefghijkl"))
    city = pd.Series(rng.choice(letters, 300), dtype=object)
    city[:3] = ["once", "alone", None]  # too rare for codes, except missing
    X = pd.DataFrame({"city": city, "size": np.arange(300.0)})
    encoder = TablePreprocessor().fit(X)
    assert encoder.code_columns_ == (1,) and encoder.n_codes_ == (14,)  # 0, 12 and missing
    codes = encoder.transform(X)
    assert_array_equal(codes[:, 0], X["size"])
    assert codes[:3, 1].tolist() == [0, 0, 13]
    expected = np.searchsorted(letters, city[3:].to_numpy(dtype=str)) + 1
    assert_array_equal(codes[3:, 1], expected)
    unseen = pd.DataFrame({"city": ["zz", None, "b"], "size": [0.0, 0.0, 0.0]})
    with pytest.warns(TableWarning, match="33.3 % of the rows"):
        assert encoder.transform(unseen)[:, 1].tolist() == [0, 13, 2]
    assert encoder.get_feature_names_out().tolist() == ["size", "city"]


def test_numbers_whose_values_name_classes_have_codes_too():
    k = np.arange(600) % 20
    gain = 2.0**k
    gain[7:600:60] = NAN
    X = pd.DataFrame({"size": np.arange(600.0), "gain": gain, "city": np.array(list("abc"))[k % 3]})
    encoder = TablePreprocessor(2)
    encoder.fit_encode(X, np.where(k % 2, "yes", "no"), find_recurring=True)
    names = ["size", "gain", "missingindicator_gain", "code_gain", "city"]
    assert encoder.get_feature_names_out().tolist() == names
    assert encoder.code_columns_ == (3, 4) and encoder.n_codes_ == (21, 4)
    new = pd.DataFrame({"size": 0, "gain": [2.0, 3.0, NAN], "city": ["a", "b", "zz"]})
    assert_array_equal(encoder.medians_, [299.5, 1024])
    expected = [[0, 2, 0, 2, 1], [0, 3, 0, 0, 2], [0, 1024, 1, 0, 0]]
    with pytest.warns(TableWarning, match="'city'"):
        assert_array_equal(encoder.transform(new), expected)
    with pytest.warns(TableWarning, match="'city'"):
        marked = encoder.encode(new, mark_unseen=True)
    assert np.isnan(marked).sum() == 1 and encoder.fill_unseen(marked, 0, 1)[2, 4]
    assert encoder.fit(X).code_columns_ == (3,)


def test_missing_values_count_as_one_category():
    frame = pd.DataFrame({"two": list("ababa"), "three": [*"abab", None]})
    encoder = TablePreprocessor(2).fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["two_b", "three"]
    assert (encoder.code_columns_, encoder.n_codes_) == ((1,), (4,))
    X = np.repeat(np.array(list("abcdefghijkl"), dtype=object), 2)[:, None]
    encoder = TablePreprocessor().fit(X)
    assert encoder.n_codes_ == (13,)
    with pytest.warns(UserWarning, match="where `fit` saw none"):
        assert encoder.transform([[None], ["a"]]).tolist() == [[0], [1]]


def test_many_categories_become_a_few_columns_where_codes_are_of_no_use():
    X = np.repeat(list("abcdefghijkl"), [9, 8, 7, *[1] * 9]).astype(object)[:, None]
    encoder = TablePreprocessor(max_categories=4).fit(X)
    names = ["x0_a", "x0_b", "x0_c", "x0_infrequent_sklearn"]
    assert encoder.get_feature_names_out().tolist() == names
    encoded = encoder.transform(X)
    assert encoded.sum(axis=0).tolist() == [9, 8, 7, 9]
    assert (encoded.sum(axis=1) == 1).all()
    with pytest.warns(TableWarning, match="100 % of the rows"):
        assert encoder.transform([["never seen"]]).tolist() == [[0, 0, 0, 1]]
    assert encoder.code_columns_ == ()
    with pytest.raises(ValueError, match="max_categories"):
        TablePreprocessor(max_categories=1).fit(X)


def test_identifiers_are_pointed_out():
    names = [f"customer {k}" for k in range(20)]
    X = pd.DataFrame({"name": names, "x": np.arange(20.0)})
    with pytest.warns(UserWarning, match=r"'name' has as many categories as rows \(20\)"):
        encoder = TablePreprocessor().fit(X)
    assert encoder.n_codes_ == (1,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TablePreprocessor().fit(X.iloc[:5])  # few rows: few categories


def test_columns_without_a_value_are_left_out_by_name(mixed):
    mixed["empty"], mixed["none"] = NAN, None
    with pytest.warns(UserWarning, match=r"\['empty', 'none'\] hold missing values only"):
        encoder = TablePreprocessor().fit(mixed)
    assert encoder.dropped_columns_.tolist() == [5, 6]
    fewer = TablePreprocessor().fit_transform(mixed.iloc[:, :5])
    assert_array_equal(encoder.transform(mixed), fewer)
    assert_array_equal(encoder.transform(mixed.assign(empty=3.0, none="new")), fewer)
    with pytest.raises(ValueError, match="must have at least one value"):
        TablePreprocessor().fit([[NAN], [NAN]])


def test_constant_columns_and_outliers_stay():
    X = pd.DataFrame({"one": [1.0, 1.0, 1.0], "word": ["a", "a", "a"], "x": [1.0, 2.0, 3.0]})
    assert_array_equal(TablePreprocessor().fit_transform(X), [[1, 1, 1], [1, 2, 1], [1, 3, 1]])
    X = np.array([[1.0], [1e30], [-1e30], [NAN]])
    assert_array_equal(TablePreprocessor().fit_transform(X)[:, 0], [1, 1e30, -1e30, 1])


DATES = [
    pd.to_datetime(["2020-01-01", None]),
    pd.to_datetime(["2020-01-01", "2021-01-01"], utc=True),
    pd.to_timedelta([1, 2], unit="D"),
    pd.period_range("2020", periods=2, freq="Y"),
    pd.Series([datetime.date(2020, 1, 1), None], dtype=object),
    pd.Series([pd.Timestamp("2020-01-01"), None], dtype=object),
    pd.Categorical(pd.date_range("2020", periods=2)),
]
NUMBERS = pd.DataFrame({"x": [1.0, 2.0], "b": [np.inf, 0.0], "c": [0.0, -np.inf]})
WITH_TEXT = NUMBERS.assign(w="w")
PLAIN = pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]})
ARRAY = np.arange(4.0).reshape(2, 2)
BY_NAME = "'bought' holds dates or times.*year, month, weekday"
INFINITE = r"contains infinity, in columns \['b', 'c'\]"
# Tables of `fit` and, where that is fine, of `transform`; and the message.
REFUSED = [
    *[(PLAIN.assign(bought=dates), None, BY_NAME) for dates in DATES],
    # Also where fit has seen numbers, which dates could be taken for, or categories.
    *[(PLAIN.assign(bought=[1.0, 2.0]), PLAIN.assign(bought=dates), BY_NAME) for dates in DATES],
    *[(PLAIN.assign(bought=["a", "b"]), PLAIN.assign(bought=dates), BY_NAME) for dates in DATES],
    (np.array([["2020-01-01"]], dtype="datetime64[D]"), None, "'x0' holds dates or times"),
    *[(table, None, INFINITE) for table in (NUMBERS, NUMBERS.astype(object), WITH_TEXT)],
    (ARRAY, [[1.0, np.inf]], r"contains infinity, in columns \['x1'\]"),
    (PLAIN, PLAIN.assign(x=["seven", "8"]), "'x' held numbers in fit.*seven"),
    (PLAIN.set_axis(["u", "u"], axis=1), None, r"unique names. Several are named \['u'\]"),
    (PLAIN, PLAIN.iloc[:, ::-1], "same order"),
    (PLAIN, PLAIN.iloc[:, :1], "missing|seen at fit"),
    (PLAIN.assign(z=np.array([1j, 2])), None, "Complex data not supported.*'z'"),
    (PLAIN.assign(z=pd.Series([1j, 2j], dtype=object)), None, "Complex data not supported.*'z'"),
    (PLAIN[["y"]].iloc[:0], None, r"0 sample\(s\)"),
    (pd.DataFrame(index=range(3)), None, r"0 feature\(s\)"),
    (sparse.eye_array(4).tocsr(), None, "dense data is required"),
    ([{"a": 1.0}, {"a": 2.0}], None, r"in dicts or records. Give `pandas.DataFrame\(X\)`"),
]


@pytest.mark.parametrize(("table", "later", "message"), REFUSED)
def test_refused_tables_are_named(table, later, message):
    encoder = TablePreprocessor()
    if later is not None:
        encoder.fit(table)
    is_no_table = sparse.issparse(table) or isinstance(table, list)
    with pytest.raises(TypeError if is_no_table else ValueError, match=message):
        encoder.fit(table) if later is None else encoder.transform(later)


def test_pandas_own_kinds_of_columns():
    X = pd.DataFrame(
        {
            "compute": pd.array([1, None, 3], dtype="Int64"),  # no method of a lazy frame
            "f": pd.array([0.5, 1.5, None], dtype="Float64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": pd.array(["u", "v", None], dtype="string"),
            "sparse": pd.arrays.SparseArray([0.0, 0.0, 2.0]),
        }
    )
    numbers = {"compute": [1, 2, 3], "f": [0.5, 1.5, 1], "b": [1, 0.5, 0], "sparse": [0, 0, 2]}
    gaps = {"compute": [0, 1, 0], "f": [0, 0, 1], "b": [0, 1, 0]}
    texts = {"s_u": [1, 0, 0], "s_v": [0, 1, 0], "s_nan": [0, 0, 1]}
    gaps = {f"missingindicator_{name}": column for name, column in gaps.items()}
    expected = numbers | gaps | texts
    encoder = TablePreprocessor().set_output(transform="pandas")
    pd.testing.assert_frame_equal(encoder.fit_transform(X), pd.DataFrame(expected, dtype=float))


def test_columns_of_objects():
    numbers = {"numbers": [1, 2.5, None, Decimal("4")], "truth": [True, None, False, True]}
    texts = {"mixed": [1, "1", "a", None], "unhashable": [[1], [1], [2], None]}
    X = pd.DataFrame({**numbers, **texts, "floats": [1.0, "1", "b", "b"]}, dtype=object)
    encoder = TablePreprocessor().fit(X)
    assert encoder.numeric_columns_.tolist() == [0, 1]
    assert encoder.get_feature_names_out()[4:].tolist() == [
        *("mixed_1", "mixed_a", "mixed_nan"),
        *("unhashable_[1]", "unhashable_[2]", "unhashable_nan"),
        "floats_b",  # a number and the same as text are one category
    ]
    encoded = encoder.transform(X)
    assert_array_equal(encoded[:, 0], [1, 2.5, 2.5, 4])
    assert_array_equal(encoded[:, 1], [1, 1, 0, 1])
    assert_array_equal(encoded[:, 4:], [
        [1, 0, 0, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 1],
        [0, 0, 1, 0, 0, 1, 1],
    ])  # fmt: skip


def test_lists_and_arrays_of_text():
    rows = [["a", 1.0], ["b", 2.0], ["c", 4.0]]
    expected = [[1, 1, 0, 0], [2, 0, 1, 0], [4, 0, 0, 1]]
    assert_array_equal(TablePreprocessor().fit_transform(rows), expected)
    assert_array_equal(TablePreprocessor().fit_transform(np.array(rows, dtype=object)), expected)
    as_text = TablePreprocessor().fit(np.array(rows))  # numpy made text of all
    names = as_text.get_feature_names_out().tolist()
    assert names == ["x0_a", "x0_b", "x0_c", "x1_1.0", "x1_2.0", "x1_4.0"]
    encoder = TablePreprocessor().fit(PLAIN)
    assert encoder.transform(pd.DataFrame({"x": ["7"], "y": ["b"]})).tolist() == [[7, 1]]


def test_one_row(mixed):
    whole = TablePreprocessor().fit(mixed)
    assert_array_equal(whole.transform(mixed.iloc[[3]]), whole.transform(mixed)[[3]])
    other = mixed.iloc[[0]].assign(city="Bonn", sex="m")
    assert TablePreprocessor().fit(mixed.iloc[[3]]).transform(other).shape == (1, 5)


def test_pandas_output_everywhere_is_no_trouble(mixed):
    import sklearn

    expected = TablePreprocessor(2).fit(mixed).transform(mixed)
    with sklearn.config_context(transform_output="pandas"):
        found = TablePreprocessor(2).fit(mixed).transform(mixed)
    assert_array_equal(found.to_numpy(), expected)


def test_frames_of_polars(mixed):
    expected = TablePreprocessor().fit_transform(mixed)
    polars = pytest.importorskip("polars")
    columns = {name: mixed[name].astype(object).tolist() for name in mixed}
    for name in ("age", "city"):
        columns[name] = [None if pd.isna(value) else value for value in columns[name]]
    frame = polars.DataFrame(columns).with_columns(polars.col("sex").cast(polars.Categorical))
    encoder = TablePreprocessor().fit(frame)
    assert encoder.feature_names_in_.tolist() == list(mixed)
    assert_array_equal(encoder.transform(frame), expected)
    dates = frame.with_columns(polars.date(2020, 1, 1).alias("day"))
    with pytest.raises(ValueError, match="'day' holds dates or times"):
        TablePreprocessor().fit(dates)


def test_categories_of_booleans_are_read_from_numbers():
    truth = np.array([True, False, False, True, False])
    frame = pd.DataFrame({"g": pd.Categorical(truth)})
    encoder = TablePreprocessor().fit(frame)
    wanted = encoder.transform(frame)
    for later in (truth.astype(int), truth.astype(float), truth):
        assert_array_equal(encoder.transform(pd.DataFrame({"g": later})), wanted)
    with pytest.warns(TableWarning, match="'g'"):
        unknown = encoder.transform(pd.DataFrame({"g": [1, 0, 0, 1, 0, 2]}))
    assert_array_equal(unknown[:5], wanted)  # a row does not change how others are read
    numbers = TablePreprocessor().fit(pd.DataFrame({"g": pd.Categorical([0, 1, 1])}))
    read = [numbers.transform(pd.DataFrame({"g": later})) for later in ([0, 1], [False, True])]
    assert_array_equal(*read)
