import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, special
from sklearn.base import BaseEstimator, ClassifierMixin

from skuq import CalibratedUncertaintyClassifier, predictive
from skuq.predictive import EpistemicNormal, GaussianMixture, _calibration
from skuq.predictive._distributions import central_interval, conformal_quantile

pool_variances = _calibration.pool_variances


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


def calibrated(proba, codes):
    """Calibrate probabilities (n, C) of rows of these classes."""
    model = CalibratedUncertaintyClassifier(Members(proba[None]), cv="prefit")
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


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_conformal_intervals_take_the_next_score(shape):
    base, outputs = mixture(4, shape), shape[1:]
    scores = np.sort(np.random.default_rng(0).exponential(size=(9, *outputs)), axis=0)
    reach = np.broadcast_to(np.arange(1, 10).reshape(9, *[1] * len(outputs)) / 10, scores.shape)
    quantile = functools.partial(conformal_quantile, base, scores, reach)
    for coverage, place in [(0.5, 5), (0.9, 9), (0.55, 6), (0.1, 1)]:
        radius = scores[place - 1] * base.std
        ends = np.stack([base.mean - radius, base.mean + radius], axis=1)
        assert_allclose(central_interval(quantile, coverage), ends)
    assert_array_equal(quantile(0.5), base.mean)
    assert (np.diff(quantile(np.linspace(0.06, 0.94, 40)), axis=1) >= 0).all()
    with pytest.raises(ValueError, match="calibration rows reach a coverage of 0.9. Got 0.95"):
        central_interval(quantile, 0.95)


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


def test_few_groups_are_not_pooled_more_than_many():
    # Of pairs of groups too: the estimated variance of the true logarithms is unbiased.
    degrees, a = np.array([20.0, 20.0]), 2.0
    spread = a**2 / 2 - special.polygamma(1, 10.0)  # the variance of two numbers, less their noise
    found = pool_variances(np.exp([0, a]), degrees)
    prior = optimize.brentq(lambda x: special.polygamma(1, x) - spread, 0.01, 100)
    typical = np.exp(a / 2 - special.digamma(10.0) + np.log(10) + special.digamma(prior))
    typical /= prior
    assert_allclose(found, (2 * prior * typical + 20 * np.exp([0, a])) / (2 * prior + 20))
