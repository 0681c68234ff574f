import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn import preprocessing
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PowerTransformer, StandardScaler
from tiers import cases

from skuq.tables._transforms import TargetTransform

KINDS = ["yeo-johnson", "quantile"]
LOGARITHM, LOG1P = FunctionTransformer(np.log, np.exp), FunctionTransformer(np.log1p, np.expm1)


@pytest.fixture(scope="module")
def targets():
    """Skewed, normal, whole numbers with ties, and half zeros."""
    rng, n = np.random.default_rng(0), 1000
    columns = [rng.gamma(2, 30, n), rng.normal(-4, 2, n), rng.poisson(3, n)]
    return np.column_stack([*columns, np.where(rng.random(n) < 0.5, 0, rng.lognormal(size=n))])


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_and_the_slope_whatever_networks_predict(kind, targets):
    transform = TargetTransform(kind).fit(targets)
    assert_allclose(transform.inverse(transform.forward(targets)), targets, rtol=1e-9, atol=1e-9)
    scores = np.linspace(-60, 60, 2001)[:, None] * np.ones(4)
    values = transform.inverse(scores)
    assert (np.diff(values, axis=0) > 0).all() and np.isfinite(values).all()
    assert_allclose(transform.forward(values), scores, rtol=1e-9, atol=1e-9)
    assert np.isfinite(transform.inverse(np.full((1, 4), 1e6))).all()
    # Between and beyond the data; off the knots, where second derivatives jump.
    low, high = targets.min(axis=0), targets.max(axis=0)
    y = low + (high - low) * np.random.default_rng(1).uniform(-3, 4, (500, 4))
    step = 1e-6 * (high - low)
    slope = (transform.forward(y + step) - transform.forward(y - step)) / (2 * step)
    off = abs(np.log(slope) - transform.log_derivative(y))
    assert np.quantile(off, 0.99) < 1e-6 and off.max() < 0.02


def test_yeo_johnson_is_that_of_scikit_learn(rng):
    y = np.column_stack([rng.gamma(3, 2, 500), -rng.gamma(3, 2, 500), rng.normal(0, 3, 500)])
    first, median, third = np.quantile(y, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
    transform = TargetTransform("yeo-johnson").fit(y)
    standard = (y - median) / ((third - first) / 2)
    other = PowerTransformer().fit(standard)
    assert ((other.lambdas_ > 0) & (other.lambdas_ < 2)).all()
    assert_allclose([output.power for output in transform.outputs_], other.lambdas_, atol=1e-5)
    assert_allclose(transform.forward(y), other.transform(standard), atol=1e-4)


@pytest.mark.parametrize(("kind", "atol"), [("yeo-johnson", 1e-5), ("quantile", 1e-9)])
def test_weights_count_like_repeats(kind, atol, rng):
    y, times = rng.gamma(1.5, 2, (2000, 1)), rng.integers(1, 5, 2000)
    weighted = TargetTransform(kind).fit(y, times / 7)
    repeated = TargetTransform(kind).fit(np.repeat(y, times, axis=0))
    assert_allclose(weighted.forward(y), repeated.forward(y), atol=atol)


def test_yeo_johnson_of_heavy_tails_stays_onto_and_goes_straight_on_at_a_distance_of_one_range(rng):
    """The most likely power would map all numbers below a bound; the fitted one does not."""
    y = np.random.default_rng(0).lognormal(1, 3, (500, 1))
    assert PowerTransformer().fit(y).lambdas_[0] < -0.05
    transform = TargetTransform("yeo-johnson").fit(y)
    assert 0 <= transform.outputs_[0].power < 1e-6
    assert np.isfinite(transform.inverse(np.array([[50.0], [-50.0], [1e4]]))).all()
    # That of scikit-learn has the bound, near which it would be steep, and goes straight on.
    transform = TargetTransform(PowerTransformer()).fit(y)
    far = transform.forward(y).max() + np.array([[0.0], [1.0], [2.0]])
    steps = np.diff(transform.inverse(far), axis=0)
    assert_allclose(steps[1], steps[0], rtol=1e-6)
    y = rng.gamma(2, 2, (300, 1))
    transform = TargetTransform("yeo-johnson").fit(y)
    far = y.max() + np.ptp(y) * np.array([1.0, 2.0, 3.0, 100.0])[:, None]
    steps = np.diff(transform.forward(far), axis=0)[:, 0]
    assert_allclose(steps / np.diff(far, axis=0)[:, 0], steps[0] / np.ptp(y), rtol=1e-10)


def test_quantiles_have_normal_scores_and_are_few_of_small_data(rng):
    y = rng.standard_cauchy((5000, 1))
    transform = TargetTransform("quantile").fit(y)
    z = transform.forward(y)[:, 0]
    assert stats.kstest(z, "norm").statistic < 0.01 and abs(z).max() < 4
    other = preprocessing.quantile_transform(y, n_quantiles=1000, output_distribution="normal")
    inner = abs(other[:, 0]) < 2
    assert_allclose(z[inner], other[inner, 0], atol=0.05)
    for n, n_intervals in ((5, 1), (60, 6), (5000, 100)):
        transform = TargetTransform("quantile").fit(rng.normal(size=(n, 1))).outputs_[0]
        assert len(transform.scores) == n_intervals + 3  # an interval more on either side
    y = np.array([0.0] * 50 + [1.0] * 30 + [7.0] * 20)[:, None]
    z = TargetTransform("quantile").fit(y).forward(np.array([[0.0], [7.0]]))
    assert_allclose(z[:, 0], stats.norm.ppf([0.25, 0.9]), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit, zero", [(1e-9, -1e-7), (1e9, 1e11)])
def test_units_and_zero_do_not_matter(kind, unit, zero, targets):
    expected = TargetTransform(kind).fit(targets)
    transform, other = TargetTransform(kind).fit(unit * targets + zero), unit * targets + zero
    # Quantiles are steep at ties, where rounding shows most.
    assert_allclose(transform.forward(other), expected.forward(targets), rtol=1e-5, atol=1e-7)
    slope = expected.log_derivative(targets) - np.log(unit)
    assert_allclose(transform.log_derivative(other), slope, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@cases("y", [0.0, 1.0], [1e-12, 3e-12, 2e-12], [1, 2, 1e30], [-1e8, 5], [0.0] * 9, [1e30] * 9)
def test_few_and_odd_values(kind, y):
    y = np.array(y)[:, None]
    transform = TargetTransform(kind).fit(y)
    z, slopes = transform.forward(y), transform.log_derivative(y)
    assert (np.diff(z[np.argsort(y[:, 0]), 0]) >= 0).all() and np.isfinite(z).all()
    assert np.isfinite(slopes).all() and (np.ptp(y) or not (z.any() or slopes.any()))
    assert_allclose(transform.inverse(z), y, rtol=1e-6 * (np.ptp(y) > 0), atol=1e-9 * np.ptp(y))


@pytest.mark.parametrize("kind", KINDS)
def test_one_output_of_several(kind, targets):
    transform = TargetTransform(kind).fit(targets)
    alone, z = transform.output(2), np.random.default_rng(0).normal(size=(3, 5, 7, 4))
    for what in ("inverse", "forward", "log_derivative"):
        whole = getattr(transform, what)(z)
        assert whole.shape == z.shape
        assert_array_equal(getattr(alone, what)(z[..., 2]), whole[..., 2])
    assert_array_equal(pickle.loads(pickle.dumps(transform)).inverse(z), transform.inverse(z))


@cases(
    ("transformer", "tolerance"),
    (StandardScaler(), 1e-12),
    (make_pipeline(LOG1P, preprocessing.RobustScaler()), 1e-7),
    (FunctionTransformer(np.sqrt, np.square), 1e-7),
    (PowerTransformer(), 1e-7),
    (PowerTransformer("box-cox"), 1e-7),
    # It has kinks, at 50 quantiles, and is constant beyond the data.
    (preprocessing.QuantileTransformer(n_quantiles=50, output_distribution="normal"), 0.01),
    (preprocessing.QuantileTransformer(n_quantiles=50), 0.01),
)
def test_transformers_of_scikit_learn_are_read_off_and_go_on(transformer, tolerance, rng):
    y = np.column_stack([rng.lognormal(1, 1, 300), 1 + rng.poisson(3, 300)])
    transform = TargetTransform(transformer).fit(y)
    for k, column in enumerate(y.T[:, :, None]):
        expected = StandardScaler().fit_transform(transformer.fit_transform(column))[:, 0]
        assert_allclose(transform.output(k).forward(column[:, 0]), expected, atol=tolerance)
    scores = np.linspace(-60, 60, 2001)[:, None] * np.ones(2)
    values = transform.inverse(scores)
    assert (np.diff(values, axis=0) > 0).all() and np.isfinite(values).all()
    assert_allclose(transform.forward(values), scores, atol=1e-8)
    assert np.isfinite(transform.log_derivative(values)).all()


@cases(
    ("transformer", "y"),
    (FunctionTransformer(np.negative, np.negative), [1, 2, 3]),
    (FunctionTransformer(np.floor, np.floor), [1, 1.5, 3]),
    (FunctionTransformer(np.square, np.sqrt), [-1, 0, 3]),
    (FunctionTransformer(np.log1p), [1, 2, 3]),  # without an inverse
    (LOGARITHM, [0, 1, 2]),
)
@pytest.mark.filterwarnings("ignore:The provided functions", "ignore:divide by zero")
def test_transformers_that_do_not_increase_are_refused(transformer, y):
    with pytest.raises(ValueError, match=r"increasing.*FunctionTransformer.* and y from \S+ to \d"):
        TargetTransform(transformer).fit(np.reshape(y, (3, 1)).astype(float))


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
