"""Properties of every distribution: mixtures, single models, and what is made of others."""

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq import metrics, predictive
from skuq.predictive import EpistemicNormal, GaussianMixture, TwoPieceNormal

ONE, TWO, PAIR = np.ones((1, 1)), np.ones((2, 1)), np.ones((1, 2, 1))
SURE = np.ones((3, 1, 5))  # probabilities of one component
WIDE = [TWO.T[None]] * 2 + [None] * 3


class Bend:
    """y = z + c * sqrt(1 + z**2): a hyperbola with c in (-1, 1), one for each output."""

    def __init__(self, c):
        self.c = np.asarray(c)

    def forward(self, y):
        return (y - self.c * np.sqrt(y**2 + 1 - self.c**2)) / (1 - self.c**2)

    def inverse(self, z):
        return z + self.c * np.sqrt(1 + z**2)

    def log_derivative(self, y):
        return np.log((1 - self.c * y / np.sqrt(y**2 + 1 - self.c**2)) / (1 - self.c**2))

    def output(self, k):
        return Bend(self.c[k])


# Distributions made of a `GaussianMixture`, with its places and its noise.


def nested(m):
    rng, shape = np.random.default_rng(0), (len(m.loc), 3, *m.loc.shape[1:])
    loc = m.loc[:, None] + m.scale[:, None] * rng.normal(size=shape)
    scale = m.scale[:, None] * rng.uniform(0.2, 1, shape)
    probabilities = np.moveaxis(rng.dirichlet(np.ones(3), m.loc.shape), -1, 1)
    return GaussianMixture(loc, scale, m.weights, probabilities)


def transformed(m):
    bend = Bend(np.linspace(-0.6, 0.7, m.mean.shape[1]) if m.mean.ndim == 2 else 0.7)
    return predictive.TransformedMixture(m, bend)


def two_parts(m):
    return m.loc.mean(axis=0), m.scale.mean(axis=0), m.loc.std(axis=0)


def two_piece(m):
    mean, noise, model = two_parts(m)
    return TwoPieceNormal(mean, 0.5 * model, 1.5 * model, noise)


def concatenated(m):
    """Two parts, in another order."""
    order, n = np.random.default_rng(0).permutation(len(m.mean)), len(m.mean)
    back, first = order.argsort(), -(-n // 2)
    parts = m.rows(order[:first]), m.rows(order[first:])
    return predictive.Concatenated(parts, back // first, back % first)


def spread(m):
    """Members share the uncertainty of their function."""
    arrays = np.random.default_rng(0).normal(size=(3, *m.mean.shape))
    return m.widened(m.scale.mean(axis=0) * arrays)


PLAIN = {"gaussian": lambda m: m, "nested": nested}
MIXTURES = PLAIN | {"transformed": lambda m: transformed(nested(m))}
KINDS = MIXTURES | {
    "scaled": lambda m: transformed(m).scaled(2.0),
    "normal": lambda m: EpistemicNormal(*two_parts(m)),
    "two_piece": two_piece,
    "concatenated": concatenated,
}
SPREAD = {
    "spread": spread,
    "nested_spread": lambda m: spread(nested(m)),
    "transformed_spread": lambda m: transformed(spread(nested(m))),
}
SHAPES = [(6,), (4, 2)]
kinds, mixtures, plain, every = (
    pytest.mark.parametrize("kind", group) for group in (KINDS, MIXTURES, PLAIN, KINDS | SPREAD)
)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def members(rng, k, shape):
    weights = rng.dirichlet(np.ones(k)) if k > 1 else None
    return GaussianMixture(rng.normal(0, 2, (k, *shape)), rng.uniform(0.2, 2, (k, *shape)), weights)


def make(kind, shape=(6,), k=3, seed=0):
    return (KINDS | SPREAD)[kind](members(np.random.default_rng(seed), k, shape))


def members_of(m):
    if isinstance(m, predictive.TransformedMixture):
        return [(weight, replace(m, inner=alone)) for weight, alone in members_of(m.inner)]
    if isinstance(m, predictive.Concatenated):
        each = [members_of(part) for part in m.parts]
        return [(same[0][0], replace(m, parts=tuple(p for _, p in same))) for same in zip(*each)]
    if isinstance(m, EpistemicNormal | TwoPieceNormal):
        return [(1.0, m)]
    names = ("loc", "scale", "probabilities")
    arrays = {name: getattr(m, name) for name in names if getattr(m, name) is not None}
    return [
        (weight, replace(m, **{name: a[k : k + 1] for name, a in arrays.items()}, weights=None))
        for k, weight in enumerate(m.weights)
    ]


def simplex(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1])


def bent(*given):
    return predictive.TransformedMixture(make("gaussian", (5,)), Bend(0.5), *given)


def two_of_five(part, row):
    return predictive.Concatenated((make("gaussian", (5,)), make("normal", (5,))), part, row)


@cases(
    ("kind", "arrays"),
    (GaussianMixture, lambda rng: [*rng.random((2, 3, 5)), simplex(rng, 3)]),
    (GaussianMixture, lambda rng: [*rng.random((2, 3, 1, 5)), None, SURE, rng.random((2, 5))]),
    (EpistemicNormal, lambda rng: [*rng.random((3, 5)), rng.random((2, 5))]),
    (TwoPieceNormal, lambda rng: list(rng.random((4, 5)))),
    (TwoPieceNormal, lambda rng: [*rng.random((4, 5, 2)), np.array([[1.0, 0.5], [0.5, 1.0]])]),
    (two_of_five, lambda rng: [rng.integers(2, size=9), rng.integers(5, size=9)]),
    (predictive.CategoricalMixture, lambda rng: [simplex(rng, 3, 5, 4), simplex(rng, 3)]),
    (bent, lambda rng: list(rng.random((2, 5)))),
)
def test_arrays_that_are_given_or_handed_out_change_nothing(kind, arrays):
    given = arrays(np.random.default_rng(0))
    distribution, expected = kind(*given), kind(*copy.deepcopy(given)).sample(9, 0)
    for array in given:
        if array is not None:
            array[...] = array[::-1] / 2
    for array in (*distribution.uncertainty(), distribution.mean, distribution.std):
        array *= 2
    for array in vars(distribution).values():
        assert not isinstance(array, np.ndarray) or not array.flags.writeable
    assert_array_equal(distribution.sample(9, 0), expected)


@mixtures
@shapes
def test_moments_are_those_of_the_weighted_members(kind, shape, global_random_seed):
    m = make(kind, shape, seed=global_random_seed)
    assert isinstance(m, predictive.Mixture)
    mean = np.average(m.member_means, axis=0, weights=m.weights)
    aleatoric = np.average(m.member_variances, axis=0, weights=m.weights)
    epistemic = np.average((m.member_means - mean) ** 2, axis=0, weights=m.weights)
    expected = mean, aleatoric, epistemic, aleatoric + epistemic
    assert_allclose((m.mean, m.aleatoric_variance, m.epistemic_variance, m.variance), expected)
    parts = m.uncertainty()
    assert_allclose((parts.mean, *np.square(parts[1:])), expected)
    assert_allclose(m.std, parts.total)
    one = make(kind, (1,), k=1)
    assert one.epistemic_variance == 0 and one.uncertainty(1).epistemic == 0
    assert one.uncertainty(1).total == one.std


@every
@shapes
def test_quantiles_invert_the_cdf_and_are_ends_of_intervals(kind, shape, global_random_seed):
    m = make(kind, shape, seed=global_random_seed)
    levels = np.array([1e-9, 1e-4, 0.05, 0.5, 0.93, 1 - 1e-9])
    found = m.quantile(levels)
    assert m.quantile(0.3).shape == shape
    assert_array_equal(m.interval(0.5).lower, m.quantile(0.25))
    assert_array_equal(m.interval(0.5).upper, m.quantile(0.75))
    assert_allclose(m.interval([0.5, 0.8]), np.stack([m.interval(0.5), m.interval(0.8)], axis=2))
    for j, level in enumerate(levels):
        assert_allclose(m.cdf(found[:, j]), level, rtol=1e-7, atol=1e-13)
    probabilities = np.random.default_rng(1).uniform(0.01, 0.99, (4, *shape))
    found = [m.cdf(y) for y in m.inverse_cdf(probabilities)]
    assert_allclose(found, probabilities, rtol=1e-8)
    assert np.isfinite(m.log_prob(m.mean + 100 * m.std)).all()


@pytest.mark.parametrize("kind", [*PLAIN, "spread", "two_piece"])
def test_cdf_goes_from_0_to_1(kind):
    # The sum of these weights, added up, is larger than 1 by rounding.
    m = (KINDS | SPREAD)[kind](GaussianMixture(np.zeros((50, 6)), np.ones((50, 6))))
    assert (m.cdf(-np.inf) == 0).all() and (m.cdf([[-1e9, 1e9, np.inf]])[:, 1:] <= 1).all()
    assert_allclose(m.cdf(np.inf), 1, rtol=1e-12)


@every
def test_density_is_the_slope_of_the_cdf_and_jointly_a_sum_of_products(kind, global_random_seed):
    m = make(kind, seed=global_random_seed)
    for level in (0.011, 0.13, 0.55, 0.83, 0.992):
        y, step = m.quantile(level), 1e-5 * m.std
        slope = (m.cdf(y + step) - m.cdf(y - step)) / (2 * step)
        assert_allclose(np.exp(m.log_prob(y)), slope, rtol=1e-5)  # rounding: 1e-16 / 1e-5
    # The joint one is a sum over members of products.
    m = make(kind, (4, 2), seed=global_random_seed)
    y, total = np.random.default_rng(1).normal(size=(4, 2)), 0.0
    for weight, alone in members_of(m):
        total += weight * np.exp(sum(alone.output(j).log_prob(y[:, j]) for j in range(2)))
    assert_allclose(m.log_prob(y), np.log(total), rtol=1e-10)


@pytest.mark.parametrize("kind", SPREAD)
@shapes
def test_spread_is_epistemic_and_shared_by_the_rows_of_a_draw(kind, shape):
    m = make(kind, shape)
    inner = getattr(m, "inner", m)
    parts, plain = m.uncertainty(1), replace(inner, spread=None).uncertainty(1)
    assert (m.shared_variance > 0).all()
    assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2)
    assert_allclose((m.spread**2).sum(axis=0), m.shared_variance)
    if inner is m:
        assert_allclose(parts.epistemic**2, plain.epistemic**2 + m.shared_variance)
        assert_allclose(parts.aleatoric, plain.aleatoric)
        assert_allclose(m.shared_variance, (m.spread**2).sum(axis=0))
    assert_allclose(m.sample(40_000, rng=0).std(axis=-1), m.std, rtol=0.03)
    # Equal rows share what the model does not know, in blocks of their own, too.
    rows = m.rows(np.zeros(2, dtype=int))
    whole = rows.sample(40_000, rng=0)
    blocks = [rows.sample(40_000, rng=k, seed=3)[k] for k in (1, 0)]
    for one, two in (whole, blocks):
        found = np.cov(one.reshape(-1, 40_000)[0], two.reshape(-1, 40_000)[0])[0, 1]
        assert_allclose(found, m.epistemic_variance.ravel()[0], rtol=0.2)


@every
@shapes
def test_rows_outputs_and_scaled_distributions_are_those_of_the_whole(kind, shape):
    m, y = make(kind, shape), np.random.default_rng(1).normal(size=shape)
    parts = [(m.rows(rows), rows) for rows in (slice(1, 3), np.array([3, 0]))]
    for part, rows in parts:
        assert_allclose(part.log_prob(y[rows]), m.log_prob(y)[rows], rtol=1e-12)
    if len(shape) == 2:
        parts += [(m.output(k), (slice(None), k)) for k in range(2)]
    for part, at in parts:
        assert_allclose(part.cdf(y[at]), m.cdf(y)[at], rtol=1e-12)
        assert_allclose(part.quantile(0.9), m.quantile(0.9)[at], rtol=1e-12)
        expected = [of_part[at] for of_part in m.uncertainty()]
        assert_allclose(part.uncertainty(), expected, rtol=1e-12)
    near = {"rtol": 1e-9, "atol": 1e-12}  # Scaled is stretched about the mean.
    factor = 1.7 if len(shape) == 1 else np.array([0.5, 3.0])
    wide = m.scaled(factor)
    assert_allclose(wide.mean, m.mean, **near)
    for part in ("variance", "aleatoric_variance", "epistemic_variance"):
        assert_allclose(getattr(wide, part), factor**2 * getattr(m, part), rtol=1e-9)
    there = m.mean + factor * (y - m.mean)
    assert_allclose(wide.cdf(there), m.cdf(y), rtol=1e-9)
    lost = np.log(factor * np.ones(shape[1:])).sum()
    assert_allclose(wide.log_prob(there), m.log_prob(y) - lost, rtol=1e-9, atol=1e-10)
    assert_allclose(wide.scaled(1 / factor).log_prob(y), m.log_prob(y), rtol=1e-7)
    there = m.mean + factor * (m.quantile(0.1) - m.mean)
    assert_allclose(wide.quantile(0.1), there, **near)
    assert_allclose(wide.rows(slice(0, 2)).quantile(0.1), there[:2], **near)
    if len(shape) == 2:
        assert_allclose(wide.output(1).quantile(0.1), there[:, 1], **near)


@plain
@cases(
    ("unit", "offset", "tolerance"),
    (1e8, 0.0, 1e-9),
    (1e-8, 0.0, 1e-9),
    (1.0, 1e8, 1e-6),  # rounding at 1e8 is 7.5e-9 a value, against spreads of order 1
)
def test_units_and_offsets_do_not_matter(kind, unit, offset, tolerance):
    m, near, levels = make(kind), {"rtol": tolerance, "atol": tolerance}, [1e-6, 0.3, 0.999]
    other = replace(m, loc=unit * m.loc + offset, scale=unit * m.scale)
    assert_allclose(np.divide(other.uncertainty(1)[1:], unit), m.uncertainty(1)[1:], **near)
    y = m.quantile(levels)
    assert_allclose((other.quantile(levels) - offset) / unit, y, **near)
    assert_allclose(other.log_prob(unit * y + offset) + np.log(unit), m.log_prob(y), **near)


@kinds
def test_samples_are_of_the_distribution_and_share_the_member_or_the_model(kind):
    m, n_draws = make(kind, (4, 2), seed=2), 20_000
    draws = m.sample(n_draws, rng=1)
    assert draws.shape == (4, 2, n_draws)
    for level in (0.05, 0.3, 0.5, 0.9):
        share = (draws <= m.quantile(level)[..., None]).mean(axis=-1)
        assert (abs(share - level) < 5 * np.sqrt(level * (1 - level) / n_draws)).all()
    assert_array_equal(draws, m.sample(n_draws, np.random.default_rng(1)))
    # Five standard errors of a mean; tails of mixtures are heavy.
    expected = m.expected if kind == "two_piece" else m.mean
    assert (abs(draws.mean(axis=-1) - expected) < 5 * m.std / np.sqrt(n_draws)).all()
    assert_allclose(draws.std(axis=-1), m.std, rtol=0.05)
    # The noise of rows averages out, and what the model does not know is common to all rows.
    places = np.reshape([-1.5, -0.5, 0.5, 1.5], (4, 1, 1)) * np.ones((60, 2))
    for loc, noise, expected in ((0 * places[:1], 1.0, np.sqrt(60)), (places, 1e-6, 60)):
        m = KINDS[kind](GaussianMixture(loc, np.full(loc.shape, noise)))
        draws = m.sample(500, rng=0)
        standard = (draws - draws.mean(axis=-1, keepdims=True)) / draws.std(axis=-1, keepdims=True)
        found = standard.sum(axis=0).std(axis=-1)
        assert_allclose(found, expected, rtol=5 / np.sqrt(2 * 500))  # five standard errors
    # Outputs are drawn apart.
    m = make(kind, (1, 2), k=3 if kind in ("normal", "two_piece") else 1)
    draws = m.sample(4000, rng=0)[0]
    assert abs(np.corrcoef(draws.argsort(axis=1).argsort(axis=1))[0, 1]) < 5 / np.sqrt(4000)


@every
@shapes
def test_crps_is_twice_the_mean_pinball_loss(kind, shape):
    m, y = make(kind, shape), np.random.default_rng(1).normal(0, 3, size=shape)
    levels = ((np.arange(4000) + 0.5) / 4000).reshape(1, -1, *[1] * (len(shape) - 1))
    over = m.quantile(levels.ravel()) - y[:, None]
    expected, found = 2 * ((over > 0) - levels) * over, m.crps(y)
    assert_allclose(found, expected.mean(axis=1), rtol=1e-3)
    assert_allclose(m.crps(np.stack([y, y + 1], axis=1))[:, 0], found, rtol=1e-12)
    assert_allclose(m.crps(m.mean + 1e9), 1e9, rtol=1e-6)  # far away it is the distance
    assert_allclose(metrics.crps_loss(y, m), found.mean(), rtol=1e-12)
    text = repr(m)
    assert text.startswith(f"{type(m).__name__}(n_samples={shape[0]}, ") and "\n" not in text
    assert len(text) < 160
    first = float(re.search(r"mean\[:3\]=\[+ *([-.\de+]+)", text)[1])
    assert_allclose(first, m.mean.ravel()[0], atol=1e-3)


@every
@pytest.mark.parametrize("r", [0.6, -0.99])
def test_correlated_outputs_keep_their_marginals_and_have_a_gaussian_copula(kind, r):
    plain, y = make(kind, (4, 2)), np.random.default_rng(1).normal(size=(4, 2))
    m = plain.with_correlation([[1, r], [r, 1]])
    if kind == "concatenated":  # of parts, for which the rest is checked
        assert_array_equal([p.correlation for p in m.parts], [[[1, r], [r, 1]]] * len(m.parts))
        return
    for found, expected in ((m.cdf(y), plain.cdf(y)), (m.uncertainty(), plain.uncertainty())):
        assert_array_equal(found, expected)
    assert_array_equal(m.interval(0.9), plain.interval(0.9))
    total = 0.0
    for weight, alone in members_of(m):
        alone = [alone.output(j) for j in range(2)]
        z = stats.norm.ppf([one.cdf(y[:, j]) for j, one in enumerate(alone)]).T
        copula = stats.multivariate_normal(cov=m.correlation).logpdf(z)
        copula -= stats.norm.logpdf(z).sum(axis=1)
        logs = [one.log_prob(y[:, j]) for j, one in enumerate(alone)]
        total += weight * np.exp(copula + np.sum(logs, axis=0))
    assert_allclose(m.log_prob(y), np.log(total), rtol=1e-6)
    assert_allclose(m.rows([2, 0]).log_prob(y[[2, 0]]), m.log_prob(y)[[2, 0]])
    assert_allclose(m.scaled(2.0).log_prob(m.mean), m.log_prob(m.mean) - np.log(4), rtol=1e-6)
    assert_array_equal(pickle.loads(pickle.dumps(m)).log_prob(y), m.log_prob(y))
    with np.errstate(over="ignore"):
        assert not np.isnan(m.log_prob([1e200, -1e200])).any()
    # One member, or one model whose parts have equal shares in all outputs, draws the copula.
    loc = [-1, 0, 1] if kind in ("normal", "two_piece") else [0]
    loc = np.reshape(loc, (-1, 1, 1)) * np.ones((2, 2))
    one = (KINDS | SPREAD)[kind](GaussianMixture(loc, np.ones(loc.shape)))
    one = one.with_correlation(m.correlation)
    draws = one.sample(20_000, rng=0)
    for level in (0.05, 0.5, 0.9):
        share = (draws <= one.quantile(level)[..., None]).mean(axis=-1)
        assert (abs(share - level) < 5 * np.sqrt(level * (1 - level) / 20_000)).all()
    for pair in draws:
        share = stats.spearmanr(*pair).statistic / (6 / np.pi * np.arcsin(r / 2))
        assert 0.97 < share < 1.03 or (kind in SPREAD and share > 0.3)  # shares differ by chance
    with pytest.raises(NotImplementedError, match="with correlated outputs"):
        m.to_tfp()


@kinds
@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (1,)], ids=str)
def test_tables_hold_values_of_each_row(kind, shape):
    m = make(kind, shape)
    n, *outputs = shape
    table = m.quantile([0.2, 0.5, 0.9]) + 0.1  # (n, 3[, m])
    for method in (m.cdf, m.log_prob):
        found = method(table)
        assert_array_equal(found, np.stack([method(table[:, k]) for k in range(3)], axis=1))
        # One row of limits serves all rows; a number serves all of them, too.
        assert_array_equal(method(table[:1]), method(np.repeat(table[:1], n, axis=0)))
        assert_array_equal(method(0.3), method(np.full(shape, 0.3)))
        assert_array_equal(method(np.full((n, 1, *outputs), 0.3))[:, 0], method(0.3))
        if outputs:
            assert_array_equal(method(table[0, 0]), method(np.repeat(table[:1, 0], n, axis=0)))
        if n == 1:
            assert_array_equal(method(table[0]), found[0])
    # The table of levels is read in the same way.
    p = np.random.default_rng(0).uniform(0.05, 0.95, (n, 4, *outputs))
    found = m.quantile(p)
    for index in np.ndindex(p.shape):
        assert_allclose(found[index], m.quantile(p[index])[index[:1] + index[2:]], rtol=1e-9)
    assert_array_equal(m.quantile(p[:1]), m.quantile(np.repeat(p[:1], n, axis=0)))


@kinds
@shapes
def test_other_shapes_are_refused(kind, shape):
    m = make(kind, shape)
    n, *outputs = shape
    tables = (n, 3) if outputs else (2, n, 3), (n, 3, 1, 1), (n + 1, 3, *outputs)
    for wrong in ((3,), (3, n), *tables):
        expected = re.escape(f"y must have shape {shape}, ") + ".*" + re.escape(f" Got {wrong}.")
        for method in (m.cdf, m.log_prob):
            with pytest.raises(ValueError, match=expected):
                method(np.zeros(wrong))
    for wrong in ((n + 1, 3, *outputs), (n, 3) if outputs else (n, 3, 1)):
        with pytest.raises(ValueError, match=r"Probabilities must .* Got \("):
            m.quantile(np.full(wrong, 0.5))
    for wrong in ([0.5, 1.0], 0.0, np.nan):
        with pytest.raises(ValueError, match="strictly in"):
            m.quantile(wrong)
    for wrong in (1.5, "most", np.full((n, 3), 0.5)):
        with pytest.raises(ValueError, match="`coverage` must"):
            m.interval(wrong)


@every
def test_masked_targets_are_missing_and_records_are_copied_and_pickled(kind):
    m = make(kind)
    masked = np.ma.masked_array(m.mean, mask=np.arange(6) == 1)
    for found in (m.cdf(masked), m.log_prob(masked)):
        assert_array_equal(np.isnan(found), masked.mask)
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert_array_equal(again.quantile(0.3), m.quantile(0.3))
        assert_array_equal(again.uncertainty(), m.uncertainty())
        assert_array_equal(again.sample(3, rng=0), m.sample(3, rng=0))


@pytest.mark.parametrize("kind", ["gaussian", "nested", "normal", "two_piece"])
@shapes
def test_against_tensorflow_probability(kind, shape):
    m = make(kind, shape)
    tfp, y = m.to_tfp(), np.random.default_rng(1).normal(0, 3, size=shape)
    assert_allclose(m.log_prob(y), tfp.log_prob(y), rtol=1e-9)
    expected = m.expected if kind == "two_piece" else m.mean
    assert_allclose(expected, tfp.mean(), rtol=1e-9, atol=1e-12)
    assert_allclose(m.variance, tfp.variance(), rtol=1e-9)
    if len(shape) == 1:
        assert_allclose(m.cdf(y), tfp.cdf(y), rtol=1e-9)
    with pytest.raises(NotImplementedError, match="TensorFlow Probability"):
        make("transformed").to_tfp()


@pytest.mark.parametrize("coverage", [0.28, 0.5, 0.72, 0.8, 0.9, 0.98, 1 - 1e-15])
def test_ends_of_intervals_are_the_quantiles_that_one_would_ask_for(coverage):
    # Members without noise: the distribution function has steps at whole percentages.
    steps = GaussianMixture(np.arange(100.0)[:, None], np.full((100, 1), 1e-9))
    for end, level in zip(steps.interval(coverage), ((1 - coverage) / 2, (1 + coverage) / 2)):
        asked = level if 1 - level < 1e-12 else float(f"{level:.12g}")
        assert_allclose(end, steps.quantile(asked), rtol=0, atol=1e-6)


@cases(
    ("record", "arguments", "message"),
    (GaussianMixture, (ONE, 0 * ONE), "scale must be positive"),
    (GaussianMixture, (ONE[0], ONE[0]), "must all have shape"),
    (GaussianMixture, (TWO, TWO, [0.7, 0.7]), "sum to 1"),
    *((GaussianMixture, (TWO, TWO, w), "2 positive num") for w in ([1.0, 0.0], [np.nan, 0.5])),
    (GaussianMixture, (PAIR, PAIR[:, :1], None, 0.5 * PAIR), "must all have shape"),
    (GaussianMixture, (PAIR, PAIR, None, 0.6 * PAIR), "sum to 1"),
    (GaussianMixture, (PAIR, PAIR, None, [[[1.5], [-0.5]]]), "non-negative"),
    (GaussianMixture, (ONE, ONE, None, None, TWO.T), r"spread must have shape \(r, 1\). Got"),
    *(
        (GaussianMixture, (*WIDE, wrong), "correlation must be a positive definite")
        for wrong in (np.ones((2, 2)), np.eye(3), [[1, 0.5], [0, 1]], 2 * np.eye(2))
    ),
    (EpistemicNormal, ([0.0], [1.0, 1.0], [1.0]), "shape"),
    (EpistemicNormal, (np.zeros((1, 1, 1)),) * 3, "shape"),
    (EpistemicNormal, ([0.0], [-1.0], [1.0]), "aleatoric must be finite and at least 0. Got -"),
    (EpistemicNormal, ([0.0] * 2, [1.0] * 2, [1.0, np.nan]), "epistemic must be fin.* Got nan"),
    (EpistemicNormal, ([0.0, 0.0], [1.0, 0.0], [1.0, 0.0]), "must not both be 0"),
    (EpistemicNormal, ([0.0], [1.7e308], [1.7e308]), "must not both be 0, and their root"),
    (EpistemicNormal, (ONE[0], ONE[0], ONE[0], ONE[0]), r"functions must have shape \(r, 1\)"),
    (TwoPieceNormal, (0.0, 1.0, 1.0), "shape"),
    (TwoPieceNormal, ([0.0], [1.0], [1.0], [-2.0]), "aleatoric must be finite"),
    (TwoPieceNormal, ([0.0], [0.0], [1.0]), "lower must be positive where aleatoric is 0"),
    (TwoPieceNormal, ([0.0] * 2, [1.0] * 2, [0.0] * 2, [1.0, 0.0]), "upper must be positive"),
)
def test_bad_parameters_are_refused(record, arguments, message):
    with pytest.raises(ValueError, match=message):
        record(*arguments)
