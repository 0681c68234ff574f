import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from training_data import NoScaling, NumberTargets, RobustScaling, Scaling

from skuq import DeepEnsembleRegressor
from skuq.tables import TargetTransform, TrainingData, _inputs, _scaling, _splits


def test_scaling_is_standard_and_invertible(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    X, y = rng.normal(5, 3, (50, 2)), rng.normal(-2, 9, (50, 1))
    inputs, scaling = Scaling().fit(X), _scaling.TargetScaling().fit(y)
    assert_allclose(inputs.transform(X).mean(axis=0), 0, atol=1e-12)
    assert_allclose(scaling.forward(y).std(axis=0), 1)
    loc, scale = scaling.restore(scaling.forward(y), np.ones_like(y))
    assert_allclose(loc, y)
    assert_allclose(scale, y.std())
    scaling = Scaling().fit(np.arange(10.0)[:, None])
    assert_allclose(scaling.transform([[1e300], [-1e300]]), [[1e6], [-1e6]])


def test_scaling_of_constant_columns():
    X, y = np.full((10, 2), 7.0), np.full((10, 1), 1e5)
    assert_allclose(Scaling().fit(X).transform(X), 0)
    assert_allclose(_scaling.TargetScaling().fit(y).forward(y), 0)
    y = np.full((49, 1), 1e30)
    assert_allclose(_scaling.TargetScaling().fit(y).forward(y), 0)


@pytest.mark.parametrize(("size", "spread"), [(1e12, 1e-2), (1.6e18, 1e5), (0.0, 1e-170)])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_that_hardly_vary_are_scaled_nevertheless(size, spread, weighted):
    rng = np.random.default_rng(0)
    values = np.column_stack([size + spread * rng.normal(size=(2000, 1)), rng.normal(size=2000)])
    weight = rng.uniform(0.5, 2, 2000) if weighted else None
    scaling = Scaling().fit(values, weight)
    z = (values - scaling.mean_) / scaling.scale_
    mean = np.average(z, axis=0, weights=weight)
    assert_allclose(mean, 0, atol=0.05)
    assert_allclose(np.average((z - mean) ** 2, axis=0, weights=weight), 1, rtol=0.01)


def test_targets_whose_variance_underflows_are_refused():
    with pytest.raises(ValueError, match="underflows"):
        _scaling.TargetScaling().fit(1e-170 * np.random.default_rng(0).normal(size=(20, 1)))


def test_overflowing_values_are_refused():
    X = np.column_stack([[1.0, 2.0, 4.0, 5.0], 1.7e308 * np.array([-1, 1, -1, 1])])
    told = r"has values so large that their variance overflows float64, such as -1.7e\+308"
    for kind in (Scaling, NoScaling, RobustScaling):
        with pytest.raises(ValueError, match=f"Column b {told}"):
            kind().fit(X, names=["a", "b"])
    for transform in ("standard", "yeo-johnson", "quantile"):
        for y in (X[:, [1, 0]], np.full((48, 2), -1.7e308), np.full((20, 2), [-1.7e308, 1.0])):
            with pytest.raises(ValueError, match=f"Column 0 of y {told}"):
                fitted_targets(y, transform=transform)
    with pytest.raises(ValueError, match=r"Column 'income' has .* such as -1.7e\+308"):
        frame = pd.DataFrame(X, columns=["age", "income"])
        DeepEnsembleRegressor().fit(frame, X[:, 0])


@pytest.mark.parametrize(("n", "fraction", "n_valid"), [(10, 0.25, 2), (2, 0.25, 1), (3, 0.9, 2)])
def test_both_parts_have_rows(n, fraction, n_valid):
    train, valid = _splits.split_rows(n, fraction, np.random.default_rng(0))
    assert len(valid) == n_valid
    assert sorted([*train, *valid]) == list(range(n))


def test_split_rows_never_divides_groups():
    groups = np.repeat(np.arange(10), 7)
    train, valid = _splits.split_rows(70, 0.3, np.random.default_rng(0), groups)
    assert not set(groups[train]) & set(groups[valid])
    assert len(set(groups[valid])) == 3
    with pytest.raises(ValueError, match="at least two groups"):
        _splits.split_rows(5, 0.3, np.random.default_rng(0), [1] * 5)
    groups = _inputs.check_groups(np.repeat([7, 8, 9], 4).astype(">i8"), np.zeros((12, 1)))
    train, valid = _splits.split_rows(12, 0.3, np.random.default_rng(0), groups)
    assert not set(groups[train]) & set(groups[valid])
    groups = np.array([None, "a"] * 5, dtype=object)
    train, valid = _splits.split_rows(10, 0.9, np.random.default_rng(0), groups)
    assert len(train) == len(valid) == 5


def test_training_data_scales_weights_to_a_mean_of_one():
    ones = np.ones((4, 1))
    data = TrainingData(ones, ones, np.arange(1, 5), ones, ones, np.full(4, 9.0))
    assert_allclose(data.weight, np.arange(1, 5) / 2.5)
    assert_allclose(data.weight_valid, 1)
    assert data.x.dtype == np.float32
    ones = np.ones((4, 1))
    for factor in (1e-300, 1e-50, 1e50, 1e300):
        data = TrainingData(ones, ones, factor * np.arange(1, 5), ones, ones, np.full(4, factor))
        assert_allclose(data.weight, np.arange(1, 5) / 2.5, rtol=1e-6)


def test_no_scaling_leaves_units_alone():
    rng = np.random.default_rng(0)
    X, y = 5 + 3 * rng.normal(size=(9, 2)), 100 * rng.normal(size=(9, 1))
    assert_allclose(NoScaling().fit(X).transform(X), X)
    scaling = _scaling.TargetScaling(standardize=False).fit(y)
    assert_allclose(scaling.forward(y), y)
    loc, scale = scaling.restore(y, np.ones((9, 1)))
    assert_allclose(loc, y)
    assert_allclose(scale, 1)


def _realmlp(x):
    """Holzmüller et al. 2024, A.2, in one line each."""
    low, high = np.quantile(x, [0.25, 0.75])
    factor = 1 / (high - low) if high > low else 2 / np.ptp(x)
    z = (x - np.median(x)) * factor
    return z / np.sqrt(1 + (z / 3) ** 2)


def test_robust_scaling_is_that_of_realmlp(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    rare = (np.arange(101) < 10) + 0.0  # quartiles coincide, as of most one-hot columns
    X = np.column_stack([rng.standard_t(2, 101), rare, rng.normal(50, 9, 101)])
    scaling = RobustScaling().fit(X)
    expected = np.column_stack([_realmlp(column) for column in X.T])
    assert_allclose(scaling.transform(X), expected, rtol=1e-12)
    assert (abs(scaling.transform(X)) < 3).all()


def test_robust_scaling_survives_outliers():
    x = np.arange(50.0)[:, None]
    outlying = np.concatenate([x, [[1e30], [-1e30], [1e300]]])
    scaled = RobustScaling().fit(outlying).transform(outlying)
    assert_allclose(scaled[-3:, 0], [3, -3, 3], rtol=1e-9)
    # The others keep nearly the place that they have without: quartiles move by a few ranks.
    assert_allclose(scaled[:50], RobustScaling().fit(x).transform(x), atol=0.1)
    scaling = RobustScaling().fit(np.full((9, 1), 5.0))
    assert_array_equal(scaling.transform(np.array([[5.0], [7.0], [-1e30]])), 0)


@pytest.mark.parametrize("kind", [Scaling, RobustScaling, NoScaling])
def test_columns_of_codes_stay_as_they_are(kind, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    X = np.column_stack([rng.uniform(-1, 1, 40), rng.integers(2_000_000, size=40), rng.random(40)])
    if kind is NoScaling:  # whose inputs have to be near zero
        X[:, 1] = rng.integers(9, size=40)
    scaling = kind([1]).fit(X)
    assert_array_equal(scaling.transform(X)[:, 1], X[:, 1])
    others = kind().fit(X[:, [0, 2]]).transform(X[:, [0, 2]])
    assert_allclose(scaling.transform(X)[:, [0, 2]], others, rtol=1e-12)


def test_targets_by_a_transform():
    y = np.random.default_rng(0).lognormal(size=(60, 2))
    targets = NumberTargets("yeo-johnson").fit(y)
    expected = TargetTransform("yeo-johnson").fit(y).forward(y)
    assert_allclose(targets.transform(y), expected, rtol=1e-12)


def fitted_targets(y, *more, weight=None, **settings):
    """Targets that have seen y in `fit`, and more rows of validation."""
    targets = NumberTargets(**settings)
    values = targets.fit_encoder(y, np.ones(len(y)) if weight is None else weight)
    for rows in more:
        targets.encode(rows)
    return targets.fit(values)


@pytest.mark.parametrize("transform", ["standard", "yeo-johnson", "quantile"])
@pytest.mark.parametrize("value", [7.0, 0.0, -1e30, 1e150, 1e-30, 1e-300])
def test_a_constant_is_predicted_as_one(value, transform):
    """Errors of a network, and its standard deviations, vanish beside the value."""
    targets = fitted_targets(np.full(20, value), transform=transform)
    assert_array_equal(targets.transform(np.full((20, 1), value)), 0)
    raw = np.array([[[0.06, -1.5]], [[-0.02, -1.5]]])  # two members, one row
    predicted = targets.distribution(raw, np.full(2, 0.5))
    assert_allclose(predicted.mean, value, rtol=1e-7, atol=1e-7)
    assert 0 < predicted.std[0] < 1e-6 * (abs(value) if abs(value) > 1e-100 else 1.0)
    assert np.isfinite(predicted.log_prob(np.array([value]))).all()
    assert np.ptp(predicted.interval(0.9)) > 0


@pytest.mark.parametrize("transform", ["standard", "yeo-johnson", "quantile"])
def test_few_equal_values_may_be_chance(transform):
    """The next of 14 equal values is another one with a probability of 1 / 16."""
    for value, size in [(-7.0, 7.0), (0.0, 1.0), (1e-30, 1e-30)]:
        for n, unit in [(14, size / 4), (2, size / 2)]:
            targets = fitted_targets(np.full(n, value), transform=transform)
            assert_allclose(targets.transform(np.array([[value + unit]])), [[1.0]])


def test_only_constants_are_narrowed():
    y = np.column_stack([np.full(21, 7.0), np.arange(21.0), [1e9, *[3.0] * 20]])
    weight = np.array([0.0, *[1.0] * 20])
    targets = fitted_targets(y, weight=weight)
    expected = _scaling.TargetScaling().fit(y)
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
