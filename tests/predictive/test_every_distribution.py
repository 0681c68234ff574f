"""Properties of every distribution: mixtures, single models, and what is made of others."""

import pickle
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats

from skuq.predictive import (
    AdaptedDistribution,
    ConformalMixture,
    EpistemicNormal,
    GaussianMixture,
    GroupedDistribution,
    NestedGaussianMixture,
    QuantileMixture,
    RecalibratedMixture,
    StudentTMixture,
    TransformedMixture,
    TwoPieceNormal,
)


class Power:
    """y = sinh(z), of each output alike."""

    forward, inverse = staticmethod(np.arcsinh), staticmethod(np.sinh)

    def log_derivative(self, y):
        return -0.5 * np.log1p(np.square(y))

    def output(self, k):
        return self


def columns(values, shape):
    """Values (q,) of one output, or the same for each of several outputs, (q, m)."""
    return np.stack([values] * shape[1], axis=1) if len(shape) == 2 else values


def nested(loc, scale):
    apart = np.array([-1.0, 1.0]).reshape(1, 2, *[1] * (loc.ndim - 1))
    both = loc[:, None] + 0.6 * scale[:, None] * apart
    return NestedGaussianMixture(both, 0.8 * scale[:, None] + 0 * both, np.full(both.shape, 0.5))


def quantiles(loc, scale):
    levels = np.linspace(0.02, 0.98, 25)
    scores = special.ndtri(levels).reshape(-1, *[1] * (loc.ndim - 1))
    return QuantileMixture(levels, loc[:, None] + scale[:, None] * scores)


def two_parts(loc, scale):
    """Mean, noise and the model's part: those of the mixture, where one of the two is tiny."""
    return loc.mean(axis=0), scale.mean(axis=0), loc.std(axis=0)


def two_piece(loc, scale):
    mean, noise, model = two_parts(loc, scale)
    return TwoPieceNormal(mean, 0.5 * model, 1.5 * model, noise)


def recalibrated(loc, scale):
    knots = columns(np.array([0, 0.2, 0.5, 0.9, 1]), loc.shape[1:])
    return RecalibratedMixture(
        GaussianMixture(loc, scale), knots, columns(np.array([0, 0.25, 0.6, 0.8, 1]), loc.shape[1:])
    )


def conformal(loc, scale):
    reach = np.arange(1, 400) / 400
    scores = special.ndtri(0.5 + 0.5 * reach)
    shape = loc.shape[1:]
    return ConformalMixture(
        GaussianMixture(loc, scale), columns(scores, shape), columns(reach, shape)
    )


def adapted(loc, scale, base=GaussianMixture):
    z = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    return AdaptedDistribution(base(loc, scale), z, columns(0.2 + 1.3 * z, loc.shape[1:]))


def grouped(loc, scale):
    """Rows in two groups in turn, if there are several, with different calibrations."""
    rows = [np.arange(start, loc.shape[1], 2) for start in range(min(loc.shape[1], 2))]
    parts = [make(loc[:, r], scale[:, r]) for make, r in zip((recalibrated, GaussianMixture), rows)]
    return GroupedDistribution(tuple(parts), tuple(rows))


KINDS = {
    "gaussian": GaussianMixture,
    "student": lambda loc, scale: StudentTMixture(loc, scale, np.full(loc.shape, 12.0)),
    "nested": nested,
    "quantile": quantiles,
    "transformed": lambda loc, scale: TransformedMixture(GaussianMixture(loc, scale), Power()),
    "scaled": lambda loc, scale: TransformedMixture(nested(loc, scale), Power()).scaled(2.0),
    "normal": lambda loc, scale: EpistemicNormal(*two_parts(loc, scale)),
    "two_piece": two_piece,
    "recalibrated": recalibrated,
    "conformal": conformal,
    "adapted": adapted,
    "adapted_recalibrated": lambda loc, scale: adapted(loc, scale, recalibrated),
    "grouped": grouped,
    "adapted_grouped": lambda loc, scale: adapted(loc, scale, grouped),
}
PLAIN = ["gaussian", "student", "nested", "quantile", "transformed", "scaled", "normal"]
SHAPES = [(6,), (4, 2)]
kinds = pytest.mark.parametrize("kind", KINDS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def make(kind, shape=(6,), seed=0):
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(size=(3, *shape)), rng.uniform(0.3, 1, (3, *shape))
    return KINDS[kind](loc, scale)


@kinds
@pytest.mark.parametrize("outputs", [(), (2,)], ids=["one output", "two outputs"])
def test_total_of_draws_of_many_rows(kind, outputs):
    """The noise of rows averages out, and what the model does not know is common to all rows."""
    n, n_draws = 60, 500
    loc = np.broadcast_to([[-1.5], [-0.5], [0.5], [1.5]], (4, n))
    loc = np.broadcast_to(loc.reshape(4, n, *[1] * len(outputs)), (4, n, *outputs))
    for source, members, noise, expected in (
        ("noise", 0 * loc, 1.0, np.sqrt(n)),
        ("model", loc, 1e-6, n),
    ):
        record = KINDS[kind](members, np.full(loc.shape, noise))
        draws = np.asarray(record.sample(n_draws, rng=0))
        standard = (draws - draws.mean(axis=-1, keepdims=True)) / draws.std(axis=-1, keepdims=True)
        found = standard.sum(axis=0).std(axis=-1)
        # Five standard errors of a standard deviation. Mapped levels reach from one member to
        # the next in some rows, by the rows' noise.
        low = 0.85 if source == "model" else 1 - 5 / np.sqrt(2 * n_draws)
        assert (found > low * expected).all(), (source, found)
        assert (found < (1 + 5 / np.sqrt(2 * n_draws)) * expected).all(), (source, found)


@kinds
def test_rows_of_two_groups_are_drawn_with_noise_of_their_own(kind):
    draws = KINDS[kind](np.zeros((1, 8)), np.ones((1, 8))).sample(1000, rng=1)
    apart = np.corrcoef(draws.argsort(axis=1).argsort(axis=1)) - np.eye(8)
    assert abs(apart).max() < 5 / np.sqrt(1000)


@kinds
@shapes
def test_samples_are_of_the_distribution(kind, shape):
    record = make(kind, shape, seed=2)
    n_draws = 20_000 if kind in PLAIN else 2000  # where draws are mapped by quantiles
    draws = record.sample(n_draws, rng=1)
    assert draws.shape == (*shape, n_draws)
    base = record.base if kind == "conformal" else record  # whose draws they are
    for level in (0.05, 0.3, 0.5, 0.9):
        share = (draws <= base.quantile(level)[..., None]).mean(axis=-1)
        assert (abs(share - level) < 5 * np.sqrt(level * (1 - level) / n_draws)).all()
    assert_array_equal(draws, record.sample(n_draws, np.random.default_rng(1)))


@kinds
@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 2), (1,), (1, 2)], ids=str)
def test_tables_hold_values_of_each_row(kind, shape):
    record = make(kind, shape)
    n, *outputs = shape
    levels = np.array([0.2, 0.5, 0.9])
    table = record.quantile(levels) + 0.1  # (n, 3[, m])
    for method, outer in ((record.cdf, shape), (record.log_prob, (n,))):
        found = method(table)
        assert found.shape == (n, 3, *outer[1:])
        for k in range(3):
            assert_array_equal(found[:, k], method(table[:, k]))
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
    found = record.quantile(p)
    assert found.shape == p.shape
    for row in range(n):
        for k in range(4):
            common = [record.quantile(level) for level in p[row, k].ravel()]
            for output, quantile in enumerate(common):
                at = (row, output) if outputs else (row,)
                assert_allclose(found[row, k][at[1:]], quantile[at], rtol=1e-9)
    assert_array_equal(record.quantile(p[:1]), record.quantile(np.repeat(p[:1], n, axis=0)))
    if kind != "conformal":  # whose cdf has steps
        assert_allclose(record.cdf(found), p, rtol=1e-6)


@kinds
@shapes
def test_other_shapes_are_refused(kind, shape):
    record = make(kind, shape)
    n, *outputs = shape
    tables = (n, 3) if outputs else (2, n, 3), (n, 3, 1, 1), (n + 1, 3, *outputs)
    for wrong in ((3,), (3, n), *tables):
        for method in (record.cdf, record.log_prob):
            expected = f"y must have shape {shape}, .* Got {wrong}."
            with pytest.raises(ValueError, match=re.escape(expected).replace(r"\.\*", ".*")):
                method(np.zeros(wrong))
    for wrong in ((n + 1, 3, *outputs), (n, 3) if outputs else (n, 3, 1)):
        for method, message in (
            (record.quantile, r"Probabilities must .* Got \("),
            (record.interval, r"`coverage` must .* be a number or have shape \(k,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                method(np.full(wrong, 0.5))
    for wrong in ([0.5, 1.0], 0.0, np.full((n, 2, *outputs), np.nan)):
        with pytest.raises(ValueError, match="strictly in"):
            record.quantile(wrong)
    with pytest.raises(ValueError, match="coverage"):
        record.interval(1.5)


@kinds
def test_masked_targets_are_missing(kind):
    record = make(kind)
    masked = np.ma.masked_array(record.mean, mask=np.arange(6) == 1)
    for found in (record.cdf(masked), record.log_prob(masked)):
        assert_array_equal(np.isnan(found), masked.mask)


@kinds
def test_records_pickle(kind):
    record = make(kind)
    again = pickle.loads(pickle.dumps(record))
    assert_array_equal(again.quantile(0.3), record.quantile(0.3))
    assert_array_equal(again.uncertainty(), record.uncertainty())


@pytest.mark.parametrize("kind", ["gaussian", "nested", "normal", "two_piece"])
def test_draws_of_tensorflow_probability_are_of_independent_rows(kind):
    loc = np.broadcast_to(np.array([[-2.0], [2.0]]), (2, 100))
    record = KINDS[kind](loc, np.full((2, 100), 0.1))
    draws = np.asarray(record.to_tfp().sample(1000, seed=0))
    total = (draws - draws.mean(axis=0)).sum(axis=1) / draws.std()
    assert_allclose(total.std(), 10, rtol=0.15)
    assert stats.kstest(draws[:, 0], record.sample(1000, rng=0)[0]).pvalue > 1e-3
