"""Scaling, splits, targets, and absurd values, which are found, named and limited."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import FunctionTransformer
from tiers import cases
from training_data import NoScaling, NumberTargets, RobustScaling, Scaling

from skuq import DeepEnsembleRegressor
from skuq.backend import keras
from skuq.predictive._calibration import UNCALIBRATED
from skuq.tables import TrainingData, _columns, _inputs, _scaling, _splits


def test_scaling_is_standard_and_invertible_or_none(rng):
    X, y = rng.normal(5, 3, (50, 2)), rng.normal(-2, 9, (50, 1))
    X[:, 1] = 7.0
    z = Scaling().fit(X).transform(X)
    assert_allclose(z[:, 0], (X[:, 0] - X[:, 0].mean()) / X[:, 0].std())
    assert_array_equal(z[:, 1], 0)
    scaling = _scaling.TargetScaling().fit(y)
    assert_allclose(scaling.forward(y).std(axis=0), 1)
    loc, scale = scaling.restore(scaling.forward(y), np.ones_like(y))
    assert_allclose(loc, y)
    assert_allclose(scale, y.std())
    scaling = Scaling().fit(np.arange(10.0)[:, None])
    assert_allclose(scaling.transform([[1e300], [-1e300]]), [[1e6], [-1e6]])
    for constant in (1e5, 1e30):
        y = np.full((49, 1), constant)
        assert_array_equal(_scaling.TargetScaling().fit(y).forward(y), 0)
    with pytest.raises(ValueError, match="underflows"):
        _scaling.TargetScaling().fit(1e-170 * rng.normal(size=(20, 1)))
    X, y = 5 + 3 * rng.normal(size=(9, 2)), 100 * rng.normal(size=(9, 1))
    assert_allclose(NoScaling().fit(X).transform(X), X)
    scaling = _scaling.TargetScaling(standardize=False).fit(y)
    assert_allclose(scaling.forward(y), y)
    loc, scale = scaling.restore(y, np.ones((9, 1)))
    assert_allclose(loc, y)
    assert_allclose(scale, 1)


@pytest.mark.parametrize(("size", "spread"), [(1e12, 1e-2), (1.6e18, 1e5), (0.0, 1e-170)])
def test_columns_that_hardly_vary_are_scaled_nevertheless(size, spread, rng):
    values = np.column_stack([size + spread * rng.normal(size=(2000, 1)), rng.normal(size=2000)])
    weight = rng.uniform(0.5, 2, 2000)
    z = Scaling().fit(values, weight).transform(values)
    mean = np.average(z, axis=0, weights=weight)
    assert_allclose(mean, 0, atol=0.05)
    assert_allclose(np.average((z - mean) ** 2, axis=0, weights=weight), 1, rtol=0.01)


def test_overflowing_values_are_refused():
    X = np.column_stack([[1.0, 2.0, 4.0, 5.0], 1.7e308 * np.array([-1, 1, -1, 1])])
    told = r"has values so large that their variance overflows float64, such as -1.7e\+308"
    for kind in (Scaling, NoScaling, RobustScaling):
        with pytest.raises(ValueError, match=f"Column b {told}"):
            kind().fit(X, names=["a", "b"])
    for y in (X[:, [1, 0]], np.full((48, 2), -1.7e308)):
        with pytest.raises(ValueError, match=f"Column 0 of y {told}"):
            fitted_targets(y, transform="yeo-johnson")
    with pytest.raises(ValueError, match=r"Column 'income' has .* such as -1.7e\+308"):
        DeepEnsembleRegressor().fit(as_frame(X), X[:, 0])


def test_split_rows_never_divides_groups_and_weights_have_a_mean_of_one():
    for n, fraction, n_valid in ((10, 0.25, 2), (2, 0.25, 1), (3, 0.9, 2)):
        train, valid = _splits.split_rows(n, fraction, np.random.default_rng(0))
        assert len(valid) == n_valid and sorted([*train, *valid]) == list(range(n))
    groups = np.repeat(np.arange(10), 7)
    train, valid = _splits.split_rows(70, 0.3, np.random.default_rng(0), groups)
    assert len(set(groups[valid])) == 3 and not set(groups[train]) & set(groups[valid])
    with pytest.raises(ValueError, match="at least two groups"):
        _splits.split_rows(5, 0.3, np.random.default_rng(0), [1] * 5)
    assert _inputs.check_groups(np.arange(12).astype(">i8"), np.zeros((12, 1))).dtype.isnative
    groups = np.array([None, "a"] * 5, dtype=object)
    train, valid = _splits.split_rows(10, 0.9, np.random.default_rng(0), groups)
    assert len(train) == len(valid) == 5
    ones = np.ones((4, 1))
    for factor in (1e-300, 1.0, 1e300):
        data = TrainingData(ones, ones, factor * np.arange(1, 5), ones, ones, np.full(4, factor))
        assert_allclose(data.weight, np.arange(1, 5) / 2.5, rtol=1e-6)
        assert_allclose(data.weight_valid, 1)
        assert data.x.dtype == np.float32


def _realmlp(x):
    """Holzmüller et al. 2024, A.2, in one line each."""
    low, high = np.quantile(x, [0.25, 0.75])
    factor = 1 / (high - low) if high > low else 2 / np.ptp(x)
    z = (x - np.median(x)) * factor
    return z / np.sqrt(1 + (z / 3) ** 2)


def test_robust_scaling_is_that_of_realmlp_and_survives_outliers(rng):
    rare = (np.arange(101) < 10) + 0.0  # quartiles coincide, as of most one-hot columns
    X = np.column_stack([rng.standard_t(2, 101), rare, rng.normal(50, 9, 101)])
    expected = np.column_stack([_realmlp(column) for column in X.T])
    assert_allclose(RobustScaling().fit(X).transform(X), expected, rtol=1e-12)
    # Quartiles are 0 and 0.1. The median distance of the five other values from 0 is 2.
    x = np.array([-4, -2, 0, 0, 0, 0, 0, 0, 0.2, 2, 4])[:, None]
    assert_allclose(RobustScaling().fit(x).transform(x), x / np.sqrt(1 + (x / 3) ** 2))
    x = np.arange(50.0)[:, None]
    outlying = np.concatenate([x, [[1e30], [-1e30], [1e300]]])
    scaled = RobustScaling().fit(outlying).transform(outlying)
    assert_allclose(scaled[-3:, 0], [3, -3, 3], rtol=1e-9)
    # The others keep nearly the place that they have without: quartiles move by a few ranks.
    assert_allclose(scaled[:50], RobustScaling().fit(x).transform(x), atol=0.1)
    scaling = RobustScaling().fit(np.full((9, 1), 5.0))
    assert_array_equal(scaling.transform(np.array([[5.0], [7.0], [-1e30]])), 0)
    # Nor does an outlier move anything in a column of zeros.
    rng = np.random.default_rng(0)
    x = np.where(rng.random(400) < 0.2, 3 * rng.normal(size=400), 0.0)[:, None]
    spoilt = x.copy()
    spoilt[0] = 1e30
    clean = RobustScaling().fit(x).transform(x)[1:]
    found = RobustScaling().fit(spoilt).transform(spoilt)[1:]
    assert_allclose(found, clean, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("kind", [Scaling, RobustScaling, NoScaling])
def test_columns_of_codes_stay_as_they_are(kind, rng):
    X = np.column_stack([rng.uniform(-1, 1, 40), rng.integers(2_000_000, size=40), rng.random(40)])
    if kind is NoScaling:  # whose inputs have to be near zero
        X[:, 1] = rng.integers(9, size=40)
    scaling = kind([1]).fit(X)
    assert_array_equal(scaling.transform(X)[:, 1], X[:, 1])
    others = kind().fit(X[:, [0, 2]]).transform(X[:, [0, 2]])
    assert_allclose(scaling.transform(X)[:, [0, 2]], others, rtol=1e-12)


def fitted_targets(y, *more, weight=None, **settings):
    """Targets that have seen y in `fit`, and more rows of validation."""
    targets = NumberTargets(**settings)
    values = targets.fit_encoder(y, np.ones(len(y)) if weight is None else weight)
    for rows in more:
        targets.encode(rows)
    return targets.fit(values)


@pytest.mark.parametrize("transform", ["standard", "yeo-johnson", "quantile"])
@pytest.mark.parametrize("value", [7.0, 0.0, -1e30, 1e-300])
def test_a_constant_is_predicted_as_one(value, transform):
    """Errors of a network, and its standard deviations, vanish beside the value."""
    targets = fitted_targets(np.full(20, value), transform=transform)
    assert_array_equal(targets.transform(np.full((20, 1), value)), 0)
    raw = np.array([[[0.06, -1.5]], [[-0.02, -1.5]]])  # two members, one row
    predicted = targets.head.mixture(raw, np.full(2, 0.5), targets, UNCALIBRATED)
    assert_allclose(predicted.mean, value, rtol=1e-7, atol=1e-7)
    assert 0 < predicted.std[0] < 1e-6 * (abs(value) if abs(value) > 1e-100 else 1.0)
    assert np.isfinite(predicted.log_prob(np.array([value]))).all()
    assert np.ptp(predicted.interval(0.9)) > 0


@pytest.mark.parametrize("transform", ["standard", "quantile"])
def test_few_equal_values_may_be_chance(transform):
    """The next of 14 equal values is another one with a probability of 1 / 16."""
    for value, size in [(-7.0, 7.0), (0.0, 1.0), (1e-30, 1e-30)]:
        for n, unit in [(14, size / 4), (2, size / 2)]:
            targets = fitted_targets(np.full(n, value), transform=transform)
            assert_allclose(targets.transform(np.array([[value + unit]])), [[1.0]])


def test_only_constants_are_narrowed():
    y = np.column_stack([np.full(21, 7.0), np.arange(21.0), [1e9, *[3.0] * 20]])
    weight = np.array([0.0, *[1.0] * 20])
    targets, expected = fitted_targets(y, weight=weight), _scaling.TargetScaling().fit(y)
    narrow = np.finfo("float32").eps * np.array([7, 3.0])
    assert_array_equal(targets.scaling.mean_, expected.mean_)
    assert targets.scaling.scale_[1] == expected.scale_[1]
    assert_allclose(targets.scaling.scale_[0], narrow[0])
    # Validation rows may know better, and training rows that are alike by chance say nothing.
    assert fitted_targets(np.full(20, 7.0), np.array([7.0, 8.0])).scaling.scale_ == 1
    by_chance = NumberTargets()
    by_chance.fit_encoder(np.array([7.0, 7.0, 8.0]), np.ones(3))
    assert by_chance.fit(np.full((2, 1), 7.0)).scaling.scale_ == 1
    for settings in ({"standardize": False}, {"narrow_constants": False}):
        assert fitted_targets(np.full(20, 7.0), **settings).scaling.scale_ == 1


def found(*columns):
    far = _columns.find_far_values(np.column_stack(columns))
    return [] if far is None else list(zip(far.rows.tolist(), far.columns.tolist()))


def replace(x, values):
    x = x.copy()
    x[list(values)] = list(values.values())
    return x


def test_far_values_are_slips_and_sentinels_and_the_first_are_named(rng):
    x = rng.normal(size=1000)
    assert found(x, replace(x, {17: 1e30})) == [(17, 1)]
    assert found(replace(x, {17: -1e300, 900: 1e300})) == [(17, 0), (900, 0)]
    assert found(replace(5e8 + 1e-3 * x, {3: 0.0})) == [(3, 0)]
    assert found(replace(np.where(x > 1, x, 0.0), {5: 1e12})) == [(5, 0)]
    assert found(replace(np.round(x), {5: 99999999.0})) == [(5, 0)]
    # Ordinary columns have none.
    columns = [x, np.exp(2 * x), (x > 2.5) * 1.0, 1e300 * x, np.full(1000, 7.0)]
    columns += [rng.standard_cauchy(1000), rng.poisson(0.01, 1000)]
    columns += [replace(np.zeros(1000), {4: 1e30})]  # a yes or no, in a unit of its own
    assert not found(*columns)
    assert not found([1.0]) and not found([0.0, 1.0]) and not found([0.0, 1.0, 1e30])
    x = replace(np.arange(100.0), {7: 1e30, 8: 1e30, 30: -1e25, 31: 1e30})
    table = np.column_stack([np.arange(100.0), x])
    text = _columns.find_far_values(table).describe(table, 1000 + np.arange(100), ["a", "b"])
    first = "1e+30 in column b, row 1007; 1e+30 in column b, row 1008"
    assert text == f"{first}; -1e+25 in column b, row 1030; and 1 more"


def read_rows(X, y, targets=None, weight=None, **settings):
    """Inputs, and rows that are read as estimators do it."""
    inputs, targets = _inputs.TableInputs(**settings), targets or NumberTargets()
    return inputs, _inputs.read_rows(DeepEnsembleRegressor(), inputs, targets, X, y, weight)


def fit_inputs(X, weight=None, **settings):
    inputs, rows = read_rows(X, np.arange(len(X)) * 1.0, weight=weight, **settings)
    return inputs.fit(rows.X[rows.used], rows.weight[rows.used]), rows


def as_frame(X):
    return pd.DataFrame(X, columns=["age", "income"])


@cases(
    ("make", "settings", "name"),
    (np.array, {}, "'x1'"),
    (as_frame, {}, "'income'"),
    (as_frame, {"preprocess": None}, "'income'"),
    (np.array, {"preprocess": None}, "x1"),
    (np.array, {"preprocess": FunctionTransformer()}, "1 of what `preprocess` gives"),
)
def test_far_values_columns_and_rows_are_named_and_limited(rng, make, settings, name):
    X = rng.normal(size=(200, 2))
    X[150, 1] = 1e30
    weight = (np.arange(200) >= 20) * 1.0  # rows are numbered as the user has them
    with pytest.warns(UserWarning, match=rf"X has values so far.*1e\+30 in column {name}, row 150"):
        inputs, rows = fit_inputs(make(X), weight, **settings)
    others = np.delete(X[20:, 1], 130)
    assert rows.X[150, 1] == others.max()
    assert_allclose(inputs.transform(rows.X[20:]).std(axis=0), 1)
    new = np.array([[0.0, 1e9], [0.0, -1e9]])
    ends = inputs.transform(np.array([[0.0, others.max()], [0.0, others.min()]]))
    assert_array_equal(inputs.transform(inputs.encode(new)), ends)
    assert not inputs.scales_only


def test_far_values_count_by_weight_and_limits_hold_on_tensors_too(rng, recwarn):
    X = rng.normal(size=(200, 2))
    X[150, 1] = 1e30
    inputs, _ = fit_inputs(X, (np.arange(200) != 150) * 1.0)
    assert not recwarn and inputs.scales_only
    with pytest.warns(UserWarning, match="so far"):
        inputs, _ = fit_inputs(X)
    tensors = keras.ops.convert_to_tensor(9 * X)
    assert_allclose(inputs.transform(tensors, keras.ops), inputs.transform(9 * X), rtol=1e-12)
    assert abs(inputs.transform(9 * X)[:, 1]).max() < 4


def test_far_targets_are_named(rng, recwarn):
    y, X = replace(rng.normal(size=200), {11: 1e20}), np.arange(400.0).reshape(200, 2)
    both = np.column_stack([X[:, 0], y])
    for targets, name in ((y, "y"), (both, "1 of y")):
        with pytest.warns(UserWarning, match=rf"1e\+20 in column {name}, row 11.*\"quantile\""):
            read_rows(X, targets)
    recwarn.clear()
    read_rows(X, y, NumberTargets("quantile"))  # for which no value is far
    assert not recwarn
