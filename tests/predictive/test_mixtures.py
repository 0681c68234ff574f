"""Properties of every mixture, whatever its members predict."""

from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate

from skuq.predictive import (
    GaussianMixture,
    Mixture,
    NestedGaussianMixture,
    QuantileMixture,
    StudentTMixture,
    TransformedMixture,
)
from skuq.predictive._mixture import interval_levels

LEVELS = np.array([0.02, 0.1, 0.25, 0.5, 0.6, 0.9, 0.97])


class Bend:
    """y = unit * (z + c * sqrt(1 + z**2)): a hyperbola, with straight ends of slopes 1 -+ c.

    c is in (-1, 1), one for each output where there are several.
    """

    def __init__(self, c, unit=1.0):
        self.c, self.unit = np.asarray(c), unit

    def forward(self, y):
        u = y / self.unit
        return (u - self.c * np.sqrt(u**2 + 1 - self.c**2)) / (1 - self.c**2)

    def inverse(self, z):
        return self.unit * (z + self.c * np.sqrt(1 + z**2))

    def log_derivative(self, y):
        u = y / self.unit
        slope = (1 - self.c * u / np.sqrt(u**2 + 1 - self.c**2)) / (1 - self.c**2)
        return np.log(slope) - np.log(self.unit)

    def output(self, k):
        return Bend(self.c[k], self.unit)


def arrays_of(mixture):
    """Arrays of the members by name, in the order of the constructor."""
    names = [f.name for f in fields(mixture) if f.name not in ("levels", "weights")]
    return {name: getattr(mixture, name) for name in names}


def mixing(rng, k):
    return rng.dirichlet(np.ones(k)) if k > 1 else None


def gaussian(rng, k, shape):
    return GaussianMixture(
        rng.normal(0, 2, (k, *shape)), rng.uniform(0.2, 2, (k, *shape)), mixing(rng, k)
    )


def student(rng, k, shape):
    normal = gaussian(rng, k, shape)
    df = rng.uniform(5, 30, (k, *shape))
    return StudentTMixture(normal.loc, normal.scale, df, normal.weights)


def nested(rng, k, shape):
    loc, scale = rng.normal(0, 2, (k, 3, *shape)), rng.uniform(0.2, 2, (k, 3, *shape))
    probabilities = np.moveaxis(rng.dirichlet(np.ones(3), (k, *shape)), -1, 1)
    return NestedGaussianMixture(loc, scale, probabilities, mixing(rng, k))


def quantiles(rng, k, shape):
    values = np.cumsum(rng.gamma(1, 1, (k, 7, *shape)), axis=1) + rng.normal(0, 2, (k, 1, *shape))
    return QuantileMixture(LEVELS, values, mixing(rng, k))


def bend(shape):
    return Bend(np.linspace(-0.6, 0.7, shape[1])) if len(shape) == 2 else Bend(0.7)


def transformed(make):
    def made(rng, k, shape):
        inner = make(rng, k, shape)
        return TransformedMixture(inner, bend(shape))

    made.__name__ = f"transformed_{make.__name__}"
    return made


PLAIN = [gaussian, student, nested, quantiles]
KINDS = [*PLAIN, *(transformed(make) for make in PLAIN)]
SHAPES = [(6,), (4, 2)]

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def make(kind, shape=(6,), k=3, seed=0):
    return kind(np.random.default_rng(seed), k, shape)


def moments_by_integration(mixture, n_points=20_001):
    """Mean and variance of one row from its cdf F: E[Y] = a + int (1 - F) - int F, from a."""
    a = mixture.quantile(0.5)[0]
    ends = mixture.quantile(1 - 1e-13)[0], mixture.quantile(1e-13)[0]
    many, moments = mixture.rows(np.zeros(n_points, dtype=int)), []
    for end, tail in zip(ends, (lambda y: 1 - many.cdf(y), lambda y: many.cdf(y))):
        # In u = asinh of the distance, so that long tails are short.
        u = np.linspace(0, np.arcsinh(abs(end - a)), n_points)
        slope = tail(a + np.sign(end - a) * np.sinh(u)) * np.cosh(u)
        moments.append([integrate.simpson(power * slope, x=u) for power in (1, 2 * np.sinh(u))])
    (up, up2), (down, down2) = moments
    return a + up - down, up2 + down2 - (up - down) ** 2


@kinds
@shapes
def test_moments_are_those_of_the_weighted_members(kind, shape, global_random_seed):
    m = make(kind, shape, seed=global_random_seed)
    assert isinstance(m, Mixture)
    for name in ("mean", "variance", "std", "aleatoric_variance", "epistemic_variance"):
        assert getattr(m, name).shape == shape
    assert m.member_means.shape == m.member_variances.shape == (3, *shape)
    assert_allclose(m.mean, np.average(m.member_means, axis=0, weights=m.weights))
    assert_allclose(m.aleatoric_variance, np.average(m.member_variances, axis=0, weights=m.weights))
    squares = (m.member_means - m.mean) ** 2
    assert_allclose(m.epistemic_variance, np.average(squares, axis=0, weights=m.weights))
    assert_allclose(m.variance, m.aleatoric_variance + m.epistemic_variance)
    assert_allclose(m.std**2, m.variance)
    for ddof in (0, 1):
        mean, aleatoric, epistemic, total = m.uncertainty(ddof)
        assert_allclose(total**2, aleatoric**2 + epistemic**2, rtol=1e-12)
        assert_allclose(mean, m.mean, rtol=1e-14)


@kinds
@shapes
def test_results_have_the_rows_and_outputs(kind, shape):
    m = make(kind, shape)
    y = np.random.default_rng(1).normal(size=shape)
    assert m.log_prob(y).shape == shape[:1]
    assert m.cdf(y).shape == m.cdf(0.3).shape == shape
    assert_allclose(m.cdf(0.3), m.cdf(np.full(shape, 0.3)))
    assert m.quantile(0.3).shape == shape
    assert m.quantile([0.3, 0.4, 0.5]).shape == (shape[0], 3, *shape[1:])
    assert m.interval(0.5).shape == (shape[0], 2, *shape[1:])
    assert_allclose(m.interval(0.5), m.quantile([0.25, 0.75]))
    several = m.interval([0.5, 0.8])
    assert several.shape == (shape[0], 2, 2, *shape[1:])
    assert_allclose(several[:, 0], m.interval(0.5))
    assert_allclose(several[:, 1], m.interval(0.8))


@kinds
@shapes
def test_quantiles_invert_the_cdf(kind, shape, global_random_seed):
    m = make(kind, shape, seed=global_random_seed)
    levels = np.array([1e-9, 1e-4, 0.05, 0.5, 0.93, 1 - 1e-9])
    found = m.quantile(levels)
    for j, level in enumerate(levels):
        assert_allclose(m.cdf(found[:, j]), level, rtol=1e-7, atol=1e-13)
        assert_allclose(m.quantile(level), found[:, j], rtol=1e-10, atol=1e-12)
    probabilities = np.random.default_rng(1).uniform(0.01, 0.99, (4, *shape))
    assert_allclose(
        np.stack([m.cdf(y) for y in m.inverse_cdf(probabilities)]), probabilities, rtol=1e-9
    )


@kinds
def test_quantiles_are_monotone_in_any_order(kind):
    m = make(kind, (20,))
    levels = np.random.default_rng(0).uniform(0.001, 0.999, size=40)
    assert (np.diff(m.quantile(levels)[:, np.argsort(levels)], axis=1) >= 0).all()


@kinds
def test_density_is_the_slope_of_the_cdf(kind, global_random_seed):
    m = make(kind, seed=global_random_seed)
    for level in (0.011, 0.13, 0.55, 0.83, 0.992):
        y, step = m.quantile(level), 1e-5 * m.std
        slope = (m.cdf(y + step) - m.cdf(y - step)) / (2 * step)
        # Rounding of the difference: 1e-16 / 1e-5. Quantile members have steps in density,
        # which a difference across one averages.
        close = np.isclose(np.exp(m.log_prob(y)), slope, rtol=1e-5)
        assert close.all() or (m.log_prob(y - step) != m.log_prob(y + step))[~close].all()
        assert close.mean() > 0.8, (level, np.exp(m.log_prob(y)), slope)


@kinds
def test_joint_density_is_a_sum_over_members_of_products(kind, global_random_seed):
    m = make(kind, (4, 2), seed=global_random_seed)
    y = np.random.default_rng(1).normal(size=(4, 2))
    inner = m.inner if isinstance(m, TransformedMixture) else m
    total = 0.0
    for k, weight in enumerate(m.weights):
        alone = {name: array[k : k + 1] for name, array in arrays_of(inner).items()}
        alone = replace(inner, **alone, weights=None)
        if inner is not m:
            alone = TransformedMixture(alone, m.transform)
        total += weight * np.exp(sum(alone.output(j).log_prob(y[:, j]) for j in range(2)))
    assert_allclose(m.log_prob(y), np.log(total), rtol=1e-10)


@kinds
def test_moments_are_those_of_the_cdf(kind, global_random_seed):
    m = make(kind, (1,), k=2, seed=global_random_seed)
    mean, variance = moments_by_integration(m)
    # Levels beyond 1e-13 contribute to the variance of a t distribution, and the slopes of quantile
    # functions jump.
    rtol = {"student": 1e-3, "quantiles": 1e-4}.get(kind.__name__.split("_")[-1], 1e-6)
    assert_allclose(m.mean, mean, rtol=rtol, atol=rtol)
    assert_allclose(m.variance, variance, rtol=rtol)


@kinds
def test_one_member_has_no_epistemic_part(kind):
    m = make(kind, (1,), k=1)
    assert m.epistemic_variance == 0 and m.uncertainty(1).epistemic == 0
    assert m.uncertainty(1).total == m.std


@kinds
@shapes
def test_rows_and_outputs_are_those_of_the_whole(kind, shape):
    m = make(kind, shape)
    y = np.random.default_rng(1).normal(size=shape)
    for rows in (slice(2, 3), slice(1, 3), np.array([3, 0])):
        part = m.rows(rows)
        assert_allclose(part.log_prob(y[rows]), m.log_prob(y)[rows], rtol=1e-12)
        assert_allclose(part.cdf(y[rows]), m.cdf(y)[rows], rtol=1e-12)
        assert_allclose(part.mean, m.mean[rows], rtol=1e-12)
        assert_allclose(part.quantile([0.2, 0.7]), m.quantile([0.2, 0.7])[rows], rtol=1e-12)
    if len(shape) == 2:
        for k in range(2):
            marginal = m.output(k)
            assert_allclose(marginal.cdf(y[:, k]), m.cdf(y)[:, k], rtol=1e-12)
            assert_allclose(marginal.variance, m.variance[:, k], rtol=1e-12)
            assert_allclose(marginal.quantile(0.9), m.quantile(0.9)[:, k], rtol=1e-12)


@kinds
@shapes
def test_scaled_is_stretched_about_the_mean(kind, shape):
    m = make(kind, shape)
    factor = 1.7 if len(shape) == 1 else np.array([0.5, 3.0])
    wide = m.scaled(factor)
    assert_allclose(wide.mean, m.mean, rtol=1e-9, atol=1e-12)
    for part in ("variance", "aleatoric_variance", "epistemic_variance"):
        assert_allclose(getattr(wide, part), factor**2 * getattr(m, part), rtol=1e-9)
    y = np.random.default_rng(1).normal(size=shape)
    there = m.mean + factor * (y - m.mean)
    assert_allclose(wide.cdf(there), m.cdf(y), rtol=1e-9)
    lost = np.log(factor * np.ones(shape[1:])).sum()
    assert_allclose(wide.log_prob(there), m.log_prob(y) - lost, rtol=1e-9, atol=1e-10)
    there = m.mean + factor * (m.quantile(0.1) - m.mean)
    assert_allclose(wide.quantile(0.1), there, rtol=1e-9, atol=1e-12)
    assert_allclose(wide.scaled(1 / factor).log_prob(y), m.log_prob(y), rtol=1e-7)
    rows = wide.rows(slice(0, 2))
    assert_allclose(rows.quantile(0.1), there[:2], rtol=1e-9, atol=1e-12)
    if len(shape) == 2:
        assert_allclose(wide.output(1).quantile(0.1), there[:, 1], rtol=1e-9, atol=1e-12)


@kinds
@pytest.mark.parametrize("unit", [1e8, 1e-8])
def test_units_do_not_matter(kind, unit, global_random_seed):
    m = make(kind, seed=global_random_seed)

    def in_unit(record):
        if isinstance(record, TransformedMixture):
            return TransformedMixture(record.inner, Bend(record.transform.c, unit))
        in_units_of_y = ("values", "loc", "scale")
        arrays = arrays_of(record).items()
        return replace(record, **{name: a * unit for name, a in arrays if name in in_units_of_y})

    other = in_unit(m)
    y = np.random.default_rng(1).normal(size=6)
    assert_allclose(other.mean, unit * m.mean, rtol=1e-9)
    assert_allclose(other.std, unit * m.std, rtol=1e-9)
    assert_allclose(other.uncertainty(1).epistemic, unit * m.uncertainty(1).epistemic, rtol=1e-9)
    assert_allclose(other.log_prob(unit * y), m.log_prob(y) - np.log(unit), rtol=1e-9)
    levels = [1e-6, 0.3, 0.999]
    assert_allclose(other.quantile(levels), unit * m.quantile(levels), rtol=1e-9)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_offsets_do_not_matter(kind):
    m = make(kind)
    name, location = next(iter(arrays_of(m).items()))
    far = replace(m, **{name: location + 1e8})
    # Rounding at 1e8 is 7.5e-9 a value, against spreads of order 1.
    assert_allclose(far.variance, m.variance, rtol=1e-6)
    assert_allclose(far.epistemic_variance, m.epistemic_variance, rtol=1e-6)
    y = m.quantile(0.37)
    assert_allclose(far.log_prob(y + 1e8), m.log_prob(y), rtol=1e-6, atol=1e-6)
    assert_allclose(far.quantile([0.1, 0.9]) - 1e8, m.quantile([0.1, 0.9]), atol=1e-6)


@kinds
def test_weights_are_repeats(kind):
    """A member of weight 2/3 is the same member taken twice of three."""
    m = make(kind, k=2)
    inner = m.inner if isinstance(m, TransformedMixture) else m
    three = {name: array[[0, 0, 1]] for name, array in arrays_of(inner).items()}
    weighted = replace(inner, weights=[2 / 3, 1 / 3])
    repeated = replace(inner, **three, weights=None)
    if inner is not m:
        weighted, repeated = (TransformedMixture(r, m.transform) for r in (weighted, repeated))
    for name in ("mean", "aleatoric_variance", "epistemic_variance"):
        assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-10)
    y = np.random.default_rng(1).normal(size=6)
    assert_allclose(weighted.log_prob(y), repeated.log_prob(y), rtol=1e-12)
    assert_allclose(weighted.quantile(0.9), repeated.quantile(0.9), rtol=1e-9)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_a_draw_is_one_member_for_all_rows(kind):
    """Members lie far apart, in another order in each row: all rows show the same one."""
    m, rng = make(kind, (5,), k=4), np.random.default_rng(0)
    apart = np.stack([rng.permutation([-300.0, -100.0, 100.0, 300.0]) for _ in range(5)], axis=1)
    name, location = next(iter(arrays_of(m).items()))
    apart = apart.reshape(4, *[1] * (location.ndim - 2), 5)
    draws = replace(m, **{name: location + apart}).sample(400, rng=1)
    members = abs(draws - apart.reshape(4, 5, 1)).argmin(axis=0)  # (5, 400)
    assert_array_equal(members, np.broadcast_to(members[0], members.shape))
    shares = np.bincount(members[0], minlength=4) / 400
    assert (abs(shares - m.weights) < 5 * np.sqrt(m.weights / 400)).all()


@kinds
def test_outputs_are_drawn_apart_but_share_the_member(kind):
    m = make(kind, (1, 2), k=1)
    draws = m.sample(4000, rng=0)[0]
    ranks = draws.argsort(axis=1).argsort(axis=1)
    assert abs(np.corrcoef(ranks)[0, 1]) < 5 / np.sqrt(4000)


@kinds
def test_no_rows_are_no_trouble(kind):
    m = make(kind).rows(slice(0, 0))
    assert m.mean.shape == m.quantile(0.5).shape == m.log_prob(np.zeros(0)).shape == (0,)
    assert m.interval().shape == (0, 2) and m.sample(3, rng=0).shape == (0, 3)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_weights_must_sum_to_1(kind):
    m = make(kind)
    for wrong in ([0.5, 0.5], [0.5, 0.5, 0.5], [1.0, 0.0, 0.0], [np.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="`weights` must be 3 positive numbers"):
            replace(m, weights=wrong)


@pytest.mark.parametrize("kind", [gaussian, student, nested], ids=lambda kind: kind.__name__)
@shapes
def test_against_tensorflow_probability(kind, shape):
    m = make(kind, shape)
    tfp = m.to_tfp()
    y = np.random.default_rng(1).normal(0, 3, size=shape)
    assert_allclose(m.log_prob(y), tfp.log_prob(y), rtol=1e-9)
    assert_allclose(m.mean, tfp.mean(), rtol=1e-9, atol=1e-12)
    assert_allclose(m.variance, tfp.variance(), rtol=1e-9)
    if len(shape) == 1:
        assert_allclose(m.cdf(y), tfp.cdf(y), rtol=1e-9)


@pytest.mark.parametrize("kind", [quantiles, KINDS[4]], ids=lambda kind: kind.__name__)
def test_what_tensorflow_probability_lacks_is_said(kind):
    with pytest.raises(NotImplementedError, match="TensorFlow Probability"):
        make(kind).to_tfp()


@pytest.mark.parametrize("coverage", [0.28, 0.5, 0.72, 0.8, 0.9, 0.98, 1 - 1e-15])
def test_ends_of_intervals_are_the_quantiles_that_one_would_ask_for(coverage):
    # Members without noise: the distribution function has steps at whole percentages.
    steps = GaussianMixture(np.arange(100.0)[:, None], np.full((100, 1), 1e-9))
    (found,) = steps.interval(coverage)
    for end, level in zip(found, ((1 - coverage) / 2, (1 + coverage) / 2)):
        asked = level if 1 - level < 1e-12 else float(f"{level:.12g}")
        assert_allclose(end, steps.quantile(asked)[0], rtol=0, atol=1e-6)
    lower, upper = interval_levels(coverage)
    assert min(lower, 1 - upper) < 1e-12 or (lower, upper) == (round(lower, 12), round(upper, 12))
    assert steps.interval(coverage).shape == (1, 2)
