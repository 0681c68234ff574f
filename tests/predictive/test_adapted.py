from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats
from tiers import cases

from skuq import predictive
from skuq.predictive import AdaptedDistribution, EpistemicNormal, GaussianMixture
from skuq.predictive._tracking import LEVELS, NOMINAL, LogitTracker, QuantileTracker

Z = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])


def normal(mean, std):
    mean = np.asarray(mean, dtype=float)
    return EpistemicNormal(mean, 0.8 * std * np.ones_like(mean), 0.6 * std * np.ones_like(mean))


def test_adapted_normal_is_the_shifted_and_stretched_normal():
    base = normal([3.0, 5.0], 2.0)
    adapted = AdaptedDistribution(base, Z, 0.5 + 3 * Z)
    true = stats.norm([4.0, 6.0], 6.0)  # mean + 0.5 * 2, 3 * 2
    levels = np.array([1e-12, 0.05, 0.5, 0.99, 1 - 1e-12])
    assert_allclose(adapted.quantile(levels), true.ppf(levels[:, None]).T, rtol=1e-6)
    for y in ([2.0, 30.0], [-90.0, 200.0]):  # the second is 17 and more stds away
        assert_allclose(adapted.log_prob(y), true.logpdf(y), rtol=1e-9)
    assert_allclose(adapted.cdf([2.0, 30.0]), true.cdf([2.0, 30.0]), atol=1e-9)
    # About the point prediction: (0.5**2 + 3**2) * 2**2.
    assert_allclose(adapted.variance, 37.0)
    assert_allclose(adapted.aleatoric_variance, 0.64 * 37)
    assert_array_equal(adapted.mean, base.mean)
    parts = adapted.uncertainty()
    assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2)
    draws = adapted.sample(4000, 0)
    assert_allclose(draws.mean(axis=1), [4, 6], atol=0.4)
    assert_allclose(draws.std(axis=1), 6, rtol=0.05)


def test_scores_grow_by_one_with_each_std_far_out():
    rng = np.random.default_rng(0)
    base = GaussianMixture(rng.normal(size=(3, 5)), rng.uniform(0.5, 2, (3, 5)))
    far = AdaptedDistribution(base, Z, Z)
    for side in (-1, 1):
        edge = base.quantile(special.ndtr(6.0 * side))
        for distance in (0.5, 2.0, 40.0):
            y = edge + side * distance * base.std
            expected = stats.norm.logpdf(6 + distance) - np.log(base.std)
            assert_allclose(far.log_prob(y), expected, rtol=1e-6)
    near = base.mean + np.array([[-4.0], [-1.0], [0.0], [3.0]]) * base.std  # (4, 5)
    assert_allclose(far.quantile(far.cdf(near.T)), near.T, rtol=1e-5, atol=1e-5)


def test_groups_are_put_in_order():
    parts = normal([0.0, 1.0], 1.0), normal([10.0], 3.0)
    grouped = predictive.GroupedDistribution(parts, (np.array([2, 0]), np.array([1])))
    assert_array_equal(grouped.mean, [1.0, 10.0, 0.0])
    assert_array_equal(grouped.std, [1.0, 3.0, 1.0])
    y = np.array([1.5, 12.0, -1.0])
    true = stats.norm([1.0, 10.0, 0.0], [1.0, 3.0, 1.0])
    assert_allclose(grouped.cdf(y), true.cdf(y))
    assert_allclose(grouped.log_prob(y), true.logpdf(y))
    assert_allclose(grouped.interval(0.9), np.stack(true.interval(0.9), axis=1))
    # Rows of all groups share the model's part, 0.36 of the variance, and have their own noise.
    assert_allclose(np.corrcoef(grouped.sample(20_000, 0)), np.eye(3) * 0.64 + 0.36, atol=0.03)
    with pytest.raises(ValueError, match="each row from 0"):
        predictive.GroupedDistribution(parts, (np.array([0, 1]), np.array([1])))


def test_tracker_by_hand():
    tracker = QuantileTracker.start()
    scores = np.array([[3.0]])
    after = tracker.updated(scores)
    # Every quantile is below 3: up by p times the step, 1 / (memory * max(density, 0.1)). Of the
    # memories 15 and 100, the longer begins at 50 rows.
    q = np.searchsorted(LEVELS, 0.95 - 1e-9)
    steps = 1 / (np.array([15, 50]) * stats.norm.pdf(special.ndtri(0.95)))
    assert_allclose(after.positions[[0, 2], q, 0], NOMINAL[q] + 0.95 * steps)
    down = tracker.updated(-scores)
    assert_allclose(down.positions[[0, 2], q, 0], NOMINAL[q] - 0.05 * steps)
    later = replace(tracker, n_rows=70).updated(scores)  # 15 and 100 rows now
    steps[1] /= 2
    assert_allclose(later.positions[[0, 2], q, 0], NOMINAL[q] + 0.95 * steps)
    assert after.n_rows == 1
    assert_allclose(after.recent[0, :, 0], [3.0, np.inf])  # beyond the last level
    assert_allclose(tracker.drift(()).spread, 1) and tracker.drift(()).shift == 0
    # Step sizes that have been equally good so far, as before the first update, count alike.
    tracker = QuantileTracker.start().updated(np.array([[0.3], [-1.2], [2.0]]))
    assert_allclose(tracker.energy, 0, atol=1e-12)
    assert_allclose(tracker.weights, QuantileTracker.start().weights)
    assert (tracker.updated(np.array([[3.0], [2.5]])).energy > 0).all()


def test_rows_that_arrive_together_predict_more_than_the_last():
    # Rows arrive by the week, and end with a weekend of a tenth of the spread. The last quantiles
    # alone hold 0.88 of the next week.
    hours, held = np.arange(168 * 20), []
    for seed in range(3):
        scores = np.random.default_rng(seed).normal(size=len(hours))
        scores *= np.where(hours % 168 < 120, 5, 0.5)
        tracker = QuantileTracker.start()
        for week in np.split(scores, 20):
            low, high = tracker.quantiles[[3, -4], 0]
            held.append(np.mean((low <= week) & (week <= high)))
            tracker = tracker.updated(week[:, None])
    held = np.reshape(held, (3, 20))[:, 3:]
    assert abs(held.mean() - 0.9) < 0.01
    assert held.min() > 0.82


# Name, shift, spread at the beginning, and spread at the end.
@cases(
    ("change", "shift", "first", "last"),
    *(("none", 0, 1, 1), ("shift", 3, 1, 1), ("wide", 0, 4, 4), ("slow", 0, 1, 4)),
    *(("huge", 0, 100, 100), ("tiny", 0, 0.1, 0.1)),
)
def test_tracker_follows(change, shift, first, last):
    scores = shift + np.linspace(first, last, 3000) * np.random.default_rng(0).normal(size=3000)
    tracker, held = QuantileTracker.start(), []
    for start in range(0, 3000, 10):
        block = scores[start : start + 10]
        low, high = tracker.quantiles[[3, -4], 0]
        held.append((low <= block) & (block <= high))
        tracker = tracker.updated(block[:, None])
    held = np.concatenate(held)
    assert 0.87 < held[500:].mean() < (0.97 if change == "tiny" else 0.92)
    assert held[:500].mean() > (0.65 if change == "huge" else 0.8)
    drift = tracker.drift(())
    assert_allclose([drift.shift, drift.spread], (shift, last), atol=0.25 * last, rtol=0.15)
    assert abs(drift.coverage - 0.9) < 0.04
    assert drift.n_rows == 3000
    assert (np.diff(tracker.quantiles[:, 0]) > 0).all()


def test_tracker_survives_infinite_scores():
    tracker = QuantileTracker.start().updated(np.array([[np.inf], [-np.inf], [1e200], [0.1]]))
    assert np.isfinite(tracker.positions).all() and np.isfinite(tracker.energy).all()
    assert_allclose(tracker.weights.sum(), 1)
    # Losses beyond all quantiles are the same but for a constant.
    near = QuantileTracker.start().updated(np.array([[50.0], [-50.0], [50.0], [0.1]]))
    assert_allclose(tracker.weights, near.weights)
    # A truth that overflows in units of the standard deviation.
    narrow = AdaptedDistribution(normal([0.0, 0.0], 1e-10), Z, Z)
    with np.errstate(over="ignore"):
        assert_array_equal(narrow.cdf([1e300, 0]), [1, 0.5])


def test_logit_tracker_follows_labels(rng):
    true = rng.dirichlet([1, 1, 1], 4000)
    codes = (true.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    # What is predicted is too sure, and has the first class too rarely.
    predicted = true**2 * [0.3, 1, 1]
    predicted /= predicted.sum(axis=1, keepdims=True)
    tracker = LogitTracker.start(3)
    assert_allclose(tracker.probabilities(predicted), predicted, rtol=1e-12)
    tracker = tracker.updated(predicted[:3000], codes[:3000])
    tracker = tracker.updated(predicted[3000:], codes[3000:])
    drift = tracker.drift()
    assert_allclose(drift.slope, 0.5, rtol=0.1)
    # log(0.3) halved by the slope, taken back, with mean 0 over classes.
    expected = -0.5 * np.log(0.3) * np.array([2, -1, -1]) / 3
    assert_allclose(drift.bias, expected, atol=0.12)
    assert_allclose(tracker.probabilities(predicted), true, atol=0.06)
    assert drift.log_loss < drift.log_loss_without - 0.1
    assert_allclose(tracker.weights.sum(), 1)
