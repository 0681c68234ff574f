import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiers import cases

from skuq.datasets import corrupt_table
from skuq.datasets._corruptions import TABLE_CORRUPTIONS


def table(n=200):
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(
        {
            "real": rng.normal(5, 2, n),
            "single": rng.normal(0, 1, n).astype(np.float32),
            "count": rng.poisson(50, n),
            "byte": rng.randint(0, 256, n).astype(np.uint8),
            "text": rng.choice(["a", "b", "c"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n)),
            "yes": rng.uniform(size=n) < 0.3,
            "nullable": pd.array(rng.randint(0, 9, n), dtype="Int64"),
        },
        index=np.arange(n) + 1000,
    )
    frame.loc[1003:1010, ["real", "nullable"]] = np.nan
    return frame


@pytest.mark.parametrize("severity", [0, 1, 5])
@pytest.mark.parametrize("kind", (*TABLE_CORRUPTIONS, "all"))
def test_corrupt_table_keeps_the_form_of_frames_and_arrays(kind, severity):
    X = table()
    before = X.copy()
    Z = corrupt_table(X, kind, severity, random_state=0)
    pd.testing.assert_frame_equal(X, before)
    assert (Z.dtypes == X.dtypes).all()
    assert Z.index.equals(X.index) and Z.columns.equals(X.columns)
    assert Z.isna().equals(X.isna())
    pd.testing.assert_frame_equal(Z, corrupt_table(X, kind, severity, random_state=0))
    same = (Z == X) | X.isna()
    assert same.all(axis=None) == (severity == 0)
    if kind in ("noise", "scaling"):
        assert same[["text", "category", "yes"]].all(axis=None)
    elif severity == 5:
        assert not same.all().any()  # every column has changed somewhere
    X = np.random.RandomState(0).normal(size=(50, 4))
    Z = corrupt_table(X, kind, severity, random_state=0)
    assert isinstance(Z, np.ndarray)
    assert_array_equal(Z, corrupt_table(pd.DataFrame(X), kind, severity, random_state=0))
    for dtype in (np.float32, np.int16):
        cast = (10 * X).astype(dtype)
        assert corrupt_table(cast, kind, severity, random_state=0).dtype == dtype
    # Columns without spread or values stay as they are.
    X = np.column_stack([np.full(5, 2.0), np.full(5, np.nan)])
    assert_array_equal(corrupt_table(X, kind, severity, random_state=0), X)


def test_corrupt_table_noise_has_its_std(global_random_seed):
    X = np.random.RandomState(0).normal(size=(20_000, 2)) * [3, 0.5]
    for severity, share in enumerate((0.1, 0.2, 0.4, 0.6, 1.0), 1):
        noise = corrupt_table(X, "noise", severity, random_state=global_random_seed) - X
        # The relative standard error of a std of 20 000 draws is 0.005.
        assert_allclose(noise.std(axis=0), share * X.std(axis=0), rtol=0.025)
        assert_allclose(noise.mean(axis=0), 0, atol=5 * share * 3 / 141)
    noise = corrupt_table(X, "noise", 5, reference=7 * X, random_state=global_random_seed) - X
    assert_allclose(noise.std(axis=0), 7 * X.std(axis=0), rtol=0.025)


@pytest.mark.parametrize("fill", ["mean", "nan"])
def test_corrupt_table_missing_cells_are_a_share(fill, global_random_seed):
    X = np.random.RandomState(0).normal(size=(10_000, 3)) + [0, 5, 9]
    reference = X + 100
    for severity, share in enumerate((0.05, 0.1, 0.2, 0.3, 0.5), 1):
        settings = {"reference": reference, "fill": fill, "random_state": global_random_seed}
        Z = corrupt_table(X, "missing", severity, **settings)
        missing = np.isnan(Z) if fill == "nan" else np.isclose(Z, reference.mean(axis=0))
        assert_array_equal(Z[~missing], X[~missing])
        std = np.sqrt(share * (1 - share) / 10_000)
        assert_allclose(missing.mean(axis=0), share, atol=5 * std)


def test_corrupt_table_fills_missing_texts_with_the_most_frequent():
    X = pd.DataFrame({"text": ["a"] * 60 + ["b"] * 40, "count": [1] * 50 + [4] * 50})
    Z = corrupt_table(X, "missing", 5, random_state=0)
    assert (Z["text"] == "a").sum() > 60
    assert (Z["text"][:60] == "a").all()
    assert set(Z["count"]) == {1, 2, 4}  # the mean 2.5 rounds to even
    holes = corrupt_table(table(), "missing", 5, fill="nan", random_state=0)
    assert holes.isna().any().all()
    assert holes["count"].dtype == "float64"
    assert holes["category"].dtype == "category"
    other = table().assign(category=pd.Categorical(["z"] * 200))  # only the reference has it
    filled = corrupt_table(table(), "missing", 5, reference=other, random_state=0)
    assert "z" in set(filled["category"]) and filled["category"].dtype == "category"
    strings = np.array([["a", "b"], ["a", "c"], ["d", "c"]] * 10)
    Z = corrupt_table(strings, ["missing", "permutation"], 5, random_state=0)
    assert Z.dtype == strings.dtype and set(np.unique(Z)) == set("abcd")
    assert not np.array_equal(Z, strings)


def test_corrupt_table_scaling_is_about_the_mean(global_random_seed):
    X = np.random.RandomState(0).normal(size=(20_000, 2)) + [0, 50]
    for severity, factor in enumerate((1.25, 1.5, 2, 3, 4), 1):
        Z = corrupt_table(X, "scaling", severity, random_state=global_random_seed)
        ratio = (Z - X.mean(axis=0)) / (X - X.mean(axis=0))
        for value, share in ((1, 0.5), (factor, 0.25), (1 / factor, 0.25)):
            assert_allclose(np.isclose(ratio, value).mean(axis=0), share, atol=0.018)
        # The factor does not depend on the value: the mean stays, but for luck.
        assert_allclose(Z.mean(axis=0), X.mean(axis=0), atol=5 * factor / 141)


def test_corrupt_table_permutation_keeps_the_values_of_columns(global_random_seed):
    X = table(2000)
    Z = corrupt_table(X, "permutation", 5, random_state=global_random_seed)
    for name in X:
        counts = [frame[name].value_counts().sort_index() for frame in (X, Z)]
        pd.testing.assert_series_equal(*counts)
    # All values of "real" differ, so nearly all cells that are drawn change.
    drawn = 1000 / 2000 * (2000 - X["real"].isna().sum())
    assert abs(((Z["real"] != X["real"]) & X["real"].notna()).sum() - drawn) < 5 * 22.4
    numbers = np.arange(3000.0).repeat(2).reshape(3000, 2)
    Z = corrupt_table(numbers, "permutation", 5, random_state=global_random_seed)
    # A quarter of the pairs stays together.
    assert_allclose((Z[:, 0] == Z[:, 1]).mean(), 0.25, atol=5 * 0.008)


def test_corrupt_table_gives_each_row_one_kind():
    X = np.random.RandomState(0).normal(size=(4000, 6))
    Z = corrupt_table(X, "all", 5, random_state=0)
    noisy = (np.abs(Z - X) > 0).all(axis=1) & ~np.isin(Z, X).any(axis=1)
    assert 0.2 < noisy.mean() < 0.35  # a quarter, and rows all of whose cells are scaled
    untouched_cells = (Z == X).mean()  # none, a half, a half and a half of the four
    assert_allclose(untouched_cells, 0.375, atol=0.02)


def test_corrupt_table_takes_columns_by_name_and_position():
    X = table()
    by_name = corrupt_table(X, "permutation", 5, columns=["real", "text"], random_state=0)
    changed = [name for name in X if not by_name[name].equals(X[name])]
    assert changed == ["real", "text"]
    by_position = corrupt_table(X, "permutation", 5, columns=[4, 0], random_state=0)
    pd.testing.assert_frame_equal(by_name, by_position)
    Z = corrupt_table(np.zeros((9, 3)) + np.arange(9)[:, None], columns=[-1], random_state=0)
    assert_array_equal(Z[:, 0], np.arange(9))
    assert (Z[:, 2] != np.arange(9)).all()


@cases(
    "change, message",
    ({"kind": "rust"}, "'noise', 'missing', 'scaling', 'permutation'.*Got 'rust'"),
    ({"severity": 6}, "`severity`"),
    ({"fill": "zero"}, "`fill`.*'zero'"),
    ({"X": np.zeros(4)}, "two dimensions. Got 1"),
    ({"columns": [2]}, "`columns`.*Got 2"),
    ({"columns": ["a"]}, "`columns`.*Got 'a'"),
    ({"reference": np.zeros((3, 3))}, "`reference` must have the columns"),
    ({"reference": np.full((3, 2), np.nan)}, "`reference` has no value in column 0"),
    ({"X": np.full((4, 2), "a")}, "array of numbers"),
    ({"X": np.zeros((4, 2), bool), "kind": "scaling"}, "array of numbers"),
    ({"X": np.array([[0.0, np.inf], [1, 2]])}, "Column 1 has infinite values"),
    *(({"kind": kind}, "`kind` must be") for kind in (None, 3, [])),
)
def test_corrupt_table_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        corrupt_table(**{"X": np.zeros((4, 2)), **change})


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "Int64", "float16"])
@pytest.mark.parametrize("kind", ["scaling", "noise"])
def test_corrupt_table_clips_numbers_to_the_limits_of_their_dtype(dtype, kind):
    plain = np.dtype(dtype.lower())
    limits = np.iinfo(plain) if plain.kind in "iu" else np.finfo(plain)
    values = np.repeat(np.array([limits.min, limits.max, 0], dtype=plain), 50)
    frame = pd.DataFrame({"x": pd.Series(values, dtype=dtype)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = corrupt_table(frame, kind, 5, random_state=0)["x"]
    assert found.dtype == frame["x"].dtype
    found = found.to_numpy(dtype=plain)
    assert np.isfinite(found).all() and (found != values).any()
    # Three standard deviations of noise are less than the distance between the limits.
    if kind == "scaling":
        assert (found[values == limits.max] > 0).all()
        assert limits.min == 0 or (found[values == limits.min] < 0).all()


@pytest.mark.parametrize("kind", TABLE_CORRUPTIONS)
def test_corrupt_table_keeps_sparse_columns(kind):
    dense = np.repeat([0.0, 0.0, 0.0, 1.0], 25)
    frame = pd.DataFrame({"x": pd.arrays.SparseArray(dense, fill_value=0.0)})
    found = corrupt_table(frame, kind, 5, random_state=0)["x"]
    wanted = corrupt_table(pd.DataFrame({"x": dense}), kind, 5, random_state=0)["x"]
    assert found.dtype == frame["x"].dtype
    assert_array_equal(found.sparse.to_dense(), wanted)
