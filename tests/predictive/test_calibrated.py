import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, optimize, special, stats
from sklearn.base import BaseEstimator, ClassifierMixin

from skuq import CalibratedUncertaintyClassifier, predictive
from skuq.predictive import EpistemicNormal, GaussianMixture, _calibration
from skuq.predictive._parametric import scale_epistemic

pool_variances, fit_levels = _calibration.pool_variances, _calibration.fit_levels
KNOTS = np.array([0.0, 0.2, 0.5, 0.9, 1.0]), np.array([0.0, 0.1, 0.6, 0.8, 1.0])


def mixture(seed=0, shape=(4,), k=3):
    rng = np.random.default_rng(seed)
    return GaussianMixture(rng.normal(size=(k, *shape)), rng.uniform(0.5, 2, (k, *shape)))


def test_scale_of_normals_is_the_closed_form(rng):
    y, mean, std = rng.normal(size=(3, 50))
    weight, std = rng.uniform(size=50), abs(std) + 0.1
    folds = [slice(0, 20), slice(20, 50)]
    one, two = GaussianMixture(mean[None], std[None]), EpistemicNormal(mean, 0.6 * std, 0.8 * std)
    for base in (one, two):
        parts = ([a[f] for f in folds] for a in (y, weight))
        c = _calibration.fit_std_factor([base.rows(f) for f in folds], *parts)
        assert_allclose(c, np.sqrt(np.average(((y - mean) / std) ** 2, weights=weight)))
    y = np.random.default_rng(0).normal(size=500)
    for wild in (30.0, 1000.0, 1e6):
        scale = np.array([1.0, 1.0, 1.0, 1.0, wild])[:, None] * np.ones(500)
        base = GaussianMixture(np.zeros((5, 500)), scale)
        assert_allclose(factor(base, y), 1, rtol=0.1)


def factor(base, y):
    return _calibration.fit_std_factor([base], [y], [np.ones(len(y))])


def test_scale_of_mixtures_is_most_likely(global_random_seed):
    base = mixture(global_random_seed, (80,))
    y = base.scaled(2.5).sample(1, 0)[:, 0] * 1.3
    c = factor(base, y)
    nll = [-base.scaled(f * c).log_prob(y).mean() for f in (0.98, 1.0, 1.02)]
    assert nll[1] == min(nll)


def parts_table(noise, model, seed=0, n=4_000):
    """Rows with different shares of noise and model, whose stds are claimed to be 1 / factors."""
    rng = np.random.default_rng(seed)
    aleatoric, epistemic = rng.uniform(0.2, 2, (2, n))
    y = rng.normal(size=n) * np.hypot(noise * aleatoric, model * epistemic)
    return EpistemicNormal(np.zeros(n), aleatoric, epistemic), y


@pytest.mark.parametrize(("noise", "model"), [(0.5, 2.0), (2.0, 0.7), (1.0, 3.0)])
def test_known_wrong_factors_of_both_parts_are_found(noise, model):
    predicted, y = parts_table(noise, model)
    half = [slice(0, 1000), slice(1000, None)]
    folds = [predicted.rows(s) for s in half], [y[s] for s in half]
    c, ratio = _calibration.fit_part_factors(*folds, [np.ones(1000), np.ones(3000)])
    assert_allclose((c, c * ratio), (noise, model), rtol=0.1)


def test_one_factor_is_left_where_rows_cannot_tell_the_parts_apart():
    predicted, y = parts_table(1.5, 1.5)
    assert _calibration.fit_part_factors([predicted], [y], [np.ones(len(y))])[1] == 1
    equal = EpistemicNormal(np.zeros(400), np.ones(400), np.full(400, 2.0))
    y = 3 * np.random.default_rng(0).normal(size=400)
    assert _calibration.fit_part_factors([equal], [y], [np.ones(400)])[1] == 1
    assert _calibration.fit_part_factors([mixture(0, (4,), k=1)], [y[:4]], [np.ones(4)])[1] == 1


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_models_part_is_scaled_alone(outputs):
    base = mixture(0, (4, *outputs), k=6)
    shape = 3, 2, 4, *outputs
    loc, scale = base.loc.reshape(shape), base.scale.reshape(shape)
    weights = np.array([0.5, 0.3, 0.2])
    nested = predictive.NestedGaussianMixture(loc, scale, np.full(shape, 0.5), weights)
    one, other = base.uncertainty(), nested.uncertainty()
    functions = 0.5 * np.stack([one.epistemic] * 4)
    normal = EpistemicNormal(one.mean, one.aleatoric, one.epistemic, functions)
    assert_allclose(scale_epistemic(normal, 2.5).functions, 2.5 * functions)
    far = base.widened(np.ones((2, 4, *(outputs or (1,)))))
    for before, parts in ((base, one), (nested, other), (normal, one), (far, far.uncertainty())):
        after = scale_epistemic(before, 2.5).uncertainty()
        assert_allclose(after.mean, parts.mean, atol=1e-12)
        assert_allclose(after.aleatoric, parts.aleatoric, rtol=1e-12)
        assert_allclose(after.epistemic, 2.5 * parts.epistemic, rtol=1e-12)
    with pytest.raises(TypeError, match='Use method="scale"'):
        scale_epistemic(predictive.RecalibratedMixture(base, *KNOTS), 2.0)


@pytest.mark.parametrize("unit", [1e-120, 1e-8, 1e8, 1e120])
def test_scale_has_no_unit_of_its_own(unit):
    base = mixture(0, (80,))
    y = base.sample(1, 0)[:, 0]
    other = GaussianMixture(unit * base.loc, unit * base.scale)
    assert_allclose(factor(other, unit * y), factor(base, y), rtol=1e-3)
    one = GaussianMixture(np.zeros((1, 80)), np.ones((1, 80)))
    assert_allclose(factor(one, unit * y), unit * factor(one, y))


def shrunk(y, std=1.0):
    """The most likely factor of normals with mean 0, and the shrunk one."""
    base = GaussianMixture(np.zeros((1, len(y))), np.full((1, len(y)), std))
    c = factor(base, y)
    return c, _calibration.shrink_std_factor([base], [y], [np.ones(len(y))], c)


@pytest.mark.parametrize("std", [0.2, 0.8, 3.0])
def test_shrinkage_of_the_scale_by_hand(std):
    y = np.random.default_rng(0).standard_t(8, size=400)
    c, found = shrunk(y, std)
    # The score of log c is z**2 - 1 and the curvature 2, with errors z in calibrated stds.
    z = y / (c * std)
    error = np.sqrt(np.mean((z**2 - 1) ** 2) / 400) / 2
    assert_allclose(found, c ** (1 - (2 * error / np.log(c)) ** 2), rtol=1e-3)


def test_weights_of_rows_that_repeat_are_counts():
    """A row of weight 2 is two rows, and one that three folds predict has three thirds."""
    y = 1.2 * np.random.default_rng(0).normal(size=150)
    c, expected = shrunk(np.repeat(y, 3))
    assert 1 < expected < c
    base = GaussianMixture(np.zeros((1, 150)), np.ones((1, 150)))
    assert_allclose(_calibration.shrink_std_factor([base], [y], [np.full(150, 3.0)], c), expected)
    c, expected = shrunk(y)
    found = _calibration.shrink_std_factor([base] * 3, [y] * 3, [np.full(150, 1 / 3)] * 3, c)
    assert_allclose(found, expected)


def test_levels_are_the_weighted_distribution_of_pit(rng):
    pit, weight = rng.beta(2, 5, 4000), rng.uniform(size=4000)
    predicted, observed = fit_levels(pit, weight, 4000)
    found = np.interp([0.1, 0.3, 0.6], predicted, observed)
    assert_allclose(found, stats.beta(2, 5).cdf([0.1, 0.3, 0.6]), atol=0.03)
    assert (np.diff(predicted) > 0).all() and (np.diff(observed) > 0).all()
    assert (predicted[0], predicted[-1], observed[0], observed[-1]) == (0, 1, 0, 1)
    piled, _ = fit_levels(np.r_[np.zeros(50), np.ones(50)], np.ones(100), 100)
    assert (np.diff(piled) > 0).all()
    predicted, observed = fit_levels(np.array([0.3]), np.ones(1), 1)
    assert_allclose(predicted, observed)


def test_weighted_quantile_is_that_of_repeats():
    values, repeats = np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    repeated = np.repeat(values, repeats.astype(int))
    levels = [0.1, 0.4, 0.5, 0.9]
    expected = np.quantile(repeated, levels, method="inverted_cdf")
    assert_array_equal(_calibration.weighted_quantile(values, repeats, levels), expected)


class Members(ClassifierMixin, BaseEstimator):
    """Fitted classifier of given members' probabilities (K, n, C); X are the rows' numbers."""

    def __init__(self, proba):
        self.proba = proba
        self.classes_ = np.arange(proba.shape[2])

    def fit(self, X, y):
        return self

    def predict_distribution(self, X):
        return predictive.CategoricalMixture(self.proba[:, np.ravel(X)])

    def predict(self, X):
        return self.predict_distribution(X).mode


def calibrated(proba, codes, method="temperature", **settings):
    """Calibrate probabilities (n, C), or (K, n, C) of members, of rows of these classes."""
    members = Members(proba if proba.ndim == 3 else proba[None])
    model = CalibratedUncertaintyClassifier(members, method, cv="prefit", **settings)
    return model.fit(np.arange(len(codes))[:, None], codes)


def drawn(proba, rng):
    """Draw the class of each row."""
    return (proba.cumsum(axis=1) < rng.random((len(proba), 1))).sum(axis=1)


def test_temperature_is_most_likely_and_known(rng):
    true = special.softmax(rng.normal(size=(20_000, 3)) * 2, axis=1)
    sure = true**2 / (true**2).sum(axis=1, keepdims=True)
    model = calibrated(sure, drawn(true, rng))
    assert_allclose(model.temperature_, 2.0, rtol=0.03)
    rows = np.arange(20_000)[:, None]
    expected = special.softmax(np.log(sure) / model.temperature_, axis=1)
    assert_allclose(model.predict_proba(rows), expected, atol=1e-12)
    # A class of probability 0 counts as possible.
    certain = np.tile([0.0, 1.0], (100, 1))
    model = calibrated(certain, (np.arange(100) < 5).astype(int))
    odds = (2.0**-52) ** (1 / model.temperature_)
    assert_allclose(model.predict_proba([[0]])[0], [odds / (1 + odds), 1 / (1 + odds)])
    # Without a prior the most likely temperature is 0, whatever the probabilities.
    found = calibrated(np.tile([0.3, 0.7], (10, 1)), np.ones(10, dtype=int)).temperature_
    grid = np.exp(np.linspace(-4, 1, 2001))
    nll = 10 * np.log1p((3 / 7) ** (1 / grid)) + 0.5 * np.log(grid) ** 2
    assert_allclose(found, grid[nll.argmin()], rtol=1e-2)
    assert 0.2 < found < 0.7


@pytest.fixture(params=[(4,), (4, 2)], ids=["one output", "two outputs"])
def recalibrated(request):
    base = mixture(1, request.param)
    knots = KNOTS if len(request.param) == 1 else [np.stack([k, k], axis=1) for k in KNOTS]
    return predictive.RecalibratedMixture(base, *knots)


def test_recalibrated_levels_are_mapped(recalibrated):
    assert_allclose(recalibrated.cdf(recalibrated.base.quantile(0.5)), 0.6, atol=1e-9)
    assert_allclose(recalibrated.quantile(0.6), recalibrated.base.quantile(0.5), atol=1e-9)


def test_recalibrated_moments_and_samples_agree():
    model = predictive.RecalibratedMixture(mixture(3, (2,)), *KNOTS)
    draws = model.sample(20_000, 0)
    y = np.linspace(-15, 15, 3001)
    density = np.exp(model.log_prob(np.tile(y, (2, 1))))
    mean = integrate.trapezoid(y * density, y)
    variance = integrate.trapezoid((y - mean[:, None]) ** 2 * density, y)
    assert_allclose(model.std, np.sqrt(variance), rtol=2e-3)  # of the grid's steps
    assert_allclose(draws.std(axis=1), model.std, rtol=0.03)


def conformal(n=9, shape=(3,)):
    scores = np.sort(np.random.default_rng(0).exponential(size=(n, *shape[1:])), axis=0)
    reach = np.arange(1, n + 1) / (n + 1)
    if len(shape) > 1:
        reach = np.repeat(reach[:, None], shape[1], axis=1)
    return predictive.ConformalMixture(mixture(4, shape), scores, reach)


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_conformal_intervals_take_the_next_score(shape):
    model = conformal(9, shape)
    for coverage, place in [(0.5, 5), (0.9, 9), (0.55, 6), (0.1, 1)]:
        radius = model.scores[place - 1] * model.std
        ends = np.stack([model.mean - radius, model.mean + radius], axis=1)
        assert_allclose(model.interval(coverage), ends)
    assert_array_equal(model.quantile(0.5), model.mean)
    if len(shape) == 2:
        assert_array_equal(model.output(1).interval(0.9), model.interval(0.9)[..., 1])
    else:
        with pytest.raises(ValueError, match="must all have shape"):
            model.output(0)
    with pytest.raises(ValueError, match="calibration rows reach a coverage of 0.9. Got 0.95"):
        model.interval(0.95)


def test_conformal_cdf_counts_scores():
    model = conformal()
    z = np.array([0.0, 0.5, -0.5])
    below = np.searchsorted(model.scores, 0.5)
    reach = below / 10
    assert_allclose(model.cdf(model.mean + z * model.std), [0.5, 0.5 + reach / 2, 0.5 - reach / 2])
    # At a score itself, the cdf has risen already: P(Y <= y) is right-continuous.
    normal = GaussianMixture(np.zeros((1, 2)), np.ones((1, 2)))
    exact = predictive.ConformalMixture(normal, np.array([1.0, 2, 3]), np.array([0.25, 0.5, 0.75]))
    assert_allclose(exact.cdf([2.0, -2.0]), [0.5 + 0.5 * 2 / 4, 0.5 - 0.5 * 1 / 4])
    y = np.zeros(3)
    assert_array_equal(model.log_prob(y), model.base.log_prob(y))
    assert_array_equal(model.sample(2, 0), model.base.sample(2, 0))


def test_groups_that_differ_by_chance_get_one_variance(rng):
    degrees = np.array([10.0, 50.0, 100.0, 20.0])
    chance = rng.chisquare(degrees) / degrees
    assert_allclose(pool_variances(chance, degrees), np.average(chance, weights=degrees))
    # Groups of many rows that differ keep their own; one without errors gets the common one.
    true = np.array([1.0, 9.0, 100.0, 0.01, 0.0])
    found = pool_variances(true, np.array([500.0, 500.0, 500.0, 500.0, 1.0]))
    assert_allclose(found[:4], true[:4], rtol=0.05)
    assert 0.01 < found[4] < 1
    assert_allclose(pool_variances(np.array([0.0, 0.0]), np.ones(2)), 0)
    assert_allclose(pool_variances(np.array([0.0, 4.0]), np.ones(2)), 4)
    # The differences of two groups of variances 1 and e**a exceed what chance explains by 1e-12.
    degrees = np.array([10.0, 10.0])
    a = np.sqrt(2 * special.polygamma(1, 5.0) + 2e-12)
    assert_allclose(pool_variances(np.exp([0, a]), degrees), (1 + np.exp(a)) / 2)


def test_few_groups_are_not_pooled_more_than_many():
    # Of pairs of groups too: the estimated variance of the true logarithms is unbiased.
    degrees, a = np.array([20.0, 20.0]), 2.0
    spread = a**2 / 2 - special.polygamma(1, 10.0)  # the variance of two numbers, less their noise
    found = pool_variances(np.exp([0, a]), degrees)
    prior = optimize.brentq(lambda x: special.polygamma(1, x) - spread, 0.01, 100)
    typical = np.exp(a / 2 - special.digamma(10.0) + np.log(10) + special.digamma(prior))
    typical /= prior
    assert_allclose(found, (2 * prior * typical + 20 * np.exp([0, a])) / (2 * prior + 20))


def test_vector_scaling_is_found(rng):
    true = rng.dirichlet([1, 1, 1], 20_000)
    codes, rows = drawn(true, rng), np.arange(20_000)
    slopes, biases = np.array([2.0, 0.5, 1.0]), np.array([0.0, 1.0, -1.0])
    # So that scaling with these gives the truth, but for a row's normaliser.
    given = special.softmax((np.log(true) - biases) / slopes, axis=1)
    found = calibrated(given, codes, "vector").predict_proba(rows[:, None])
    nll = [-np.log(p[rows, codes]).mean() for p in (true, given, found)]
    assert nll[2] < nll[1] - 0.05


def test_vector_scaling_of_few_rows_stays_near_the_temperature():
    """Slopes and biases have a normal prior of precision 0.1 about those of the temperature."""
    rng, rows = np.random.default_rng(0), np.arange(12)
    proba = rng.dirichlet([1, 1, 1], 12)
    codes = drawn(proba, rng)
    centre = np.r_[np.full(3, 1 / calibrated(proba, codes).temperature_), np.zeros(3)]

    def logits(parameters):
        return parameters[:3] * np.log(proba) + parameters[3:]

    def loss(parameters):
        given = special.log_softmax(logits(parameters), axis=1)[rows, codes]
        return 0.05 * np.sum((parameters - centre) ** 2) - given.sum()

    best = optimize.minimize(loss, centre).x
    found = calibrated(proba, codes, "vector").predict_proba(rows[:, None])
    assert_allclose(found, special.softmax(logits(best), axis=1), atol=1e-4)


@pytest.mark.parametrize("share", [0.6, 1.0, 2.0])
def test_spread_is_that_of_the_truth_about_the_average(share):
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        # 300 kinds of ten rows, on which members differ as the truth differs from them.
        centre = np.repeat(rng.uniform(0.45, 0.55, 300), 10)
        noise = np.repeat(0.12 * rng.normal(size=(9, 300)), 10, axis=1)
        members = 0.95 * np.clip(centre + (noise[1:] - noise[1:].mean(axis=0)) / share, 0, 1)
        truth = 0.95 * (centre + noise[0])
        codes = (rng.random(3000) < truth).astype(int)
        proba = np.stack([1 - members, members], axis=2)
        found.append(calibrated(proba, codes, calibrate_epistemic=True).spread_)
    spread = np.sqrt(np.mean(np.square(found)))
    if share < 2:
        assert_allclose(spread, share, rtol=0.25)
    else:  # 3000 rows are not sure enough of it to leave the prior behind
        assert 1.2 < spread < 2
    assert calibrated(proba[:1], codes, calibrate_epistemic=True).spread_ == 1


def test_spread_of_members_that_differ_for_nothing_is_small(rng):
    members = 0.5 + 0.3 * rng.choice([-1.0, 1.0], (8, 3000))
    members = np.clip(members + 0.5 - members.mean(axis=0), 0.01, 0.99)
    proba, codes = np.stack([1 - members, members], axis=2), rng.integers(0, 2, 3000)
    assert calibrated(proba, codes, calibrate_epistemic=True).spread_ < 0.5
