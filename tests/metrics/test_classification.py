"""Scores of classifiers, of members, and of rejected rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, brier_score_loss, log_loss

from skuq import metrics


def draw(seed, n=200, n_classes=4):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(0.6 * np.ones(n_classes), size=n)
    y = (rng.uniform(size=(n, 1)) > proba.cumsum(axis=1)).sum(axis=1)
    return np.where(rng.uniform(size=n) < 0.2, rng.integers(n_classes, size=n), y), proba


def test_brier_is_sklearns(global_random_seed):
    y, proba = draw(global_random_seed)
    expected = np.mean(np.sum((proba - np.eye(4)[y]) ** 2, axis=1))
    assert_allclose(metrics.brier_loss(y, proba), expected)
    two = proba[:, :2] / proba[:, :2].sum(axis=1, keepdims=True)
    assert_allclose(metrics.brier_loss(y % 2, two), 2 * brier_score_loss(y % 2, two[:, 1]))


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_is_that_of_sklearns_curve(global_random_seed, n_bins):
    y, proba = draw(global_random_seed, n=300)
    correct, confidence = proba.argmax(axis=1) == y, proba.max(axis=1)
    # The curve has no points for empty bins.
    accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins)
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence)
    expected = np.average(np.abs(accuracy - mean), weights=np.unique_counts(bins).counts)
    assert_allclose(metrics.ece_loss(y, proba, n_bins=n_bins), expected)


def test_ece_bins_by_hand():
    # Confidences 0.5 and 0.6 are in different halves: gaps 0.5 right and 0.6 wrong.
    proba = [[0.5, 0.5], [0.6, 0.4]]
    assert_allclose(metrics.ece_loss([0, 1], proba, n_bins=2), (0.5 + 0.6) / 2)
    assert_allclose(metrics.ece_loss([0, 1], proba, n_bins=1), 0.05)


@pytest.mark.parametrize("loss", [metrics.brier_loss, metrics.ece_loss])
def test_labels_may_be_anything_in_any_order(loss):
    y, proba = draw(0)
    names = np.array(["cat", "dog", "eel", "fox"])
    expected = loss(y, proba)
    assert loss(names[y], proba) == expected
    assert loss(list(names[y].astype(object)), proba) == expected
    order = [2, 0, 3, 1]
    assert_allclose(loss(names[y], proba[:, order], labels=names[order]), expected)
    # A class that has no row.
    kept = y != 3
    some = loss(y[kept], proba[kept], labels=range(4))
    assert some == loss(names[y[kept]], proba[kept], labels=names)


def draw_members(seed, n_members=3, n=50, n_classes=4):
    rng = np.random.default_rng(seed)
    return rng.integers(n_classes, size=n), rng.dirichlet(np.ones(n_classes), (n_members, n))


def test_members_losses_are_sklearns(global_random_seed):
    y, members = draw_members(global_random_seed)
    weights, rows = np.array([0.5, 0.3, 0.2]), np.random.default_rng(1).uniform(size=50)
    alone = [log_loss(y, proba, sample_weight=rows) for proba in members]
    average = metrics.average_member_nll_loss(y, members, weights, sample_weight=rows)
    assert_allclose(average, weights @ alone)
    mean = np.tensordot(weights, members, axes=1)
    expected = log_loss(y, mean, sample_weight=rows)
    assert_allclose(metrics.ensemble_nll_loss(y, members, weights, sample_weight=rows), expected)
    best = members[members[:, np.arange(50), y].argmax(axis=0), np.arange(50)]
    expected = log_loss(y, best, sample_weight=rows)
    assert_allclose(metrics.oracle_nll_loss(y, members, sample_weight=rows), expected)


def test_members_probability_0_is_cut_off_as_sklearn_does():
    members = np.array([[[0.0, 1.0]], [[0.0, 1.0]]])
    expected = log_loss([0], members[0], labels=[0, 1])
    for name in ("oracle_nll_loss", "ensemble_nll_loss", "average_member_nll_loss"):
        assert_allclose(getattr(metrics, name)([0], members, labels=[0, 1]), expected)


def test_members_disagreement_is_the_mean_hamming_distance(global_random_seed):
    _, members = draw_members(global_random_seed, n_members=5)
    labels = members.argmax(axis=2)
    expected = pdist(labels, "hamming").mean()
    assert_allclose(metrics.disagreement_score(members), expected)
    assert_allclose(metrics.disagreement_score(np.array(list("abcd"))[labels]), expected)
    weight = np.random.default_rng(0).uniform(size=50)
    expected = pdist(labels, "hamming", w=weight).mean()
    assert_allclose(metrics.disagreement_score(labels, sample_weight=weight), expected)


def draw_retention(seed, n=40):
    rng = np.random.default_rng(seed)
    uncertainty = rng.uniform(size=n)
    return uncertainty * rng.exponential(size=n), uncertainty


def test_retention_area_is_sklearns_under_the_curve(global_random_seed):
    errors, uncertainty = draw_retention(global_random_seed)
    curve = metrics.error_retention_curve(errors, uncertainty)
    assert_allclose(metrics.retention_auc(errors, uncertainty), auc(*curve))
    curve = metrics.error_retention_curve([3.0, 1.0, 2.0, 2.0], [0.9, 0.1, 0.5, 0.2])
    assert_allclose(curve, ([0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.75, 1.25, 2]))


def test_retention_ties_are_an_average_over_orders(rng):
    area, errors = metrics.retention_auc, rng.exponential(size=12)
    uncertainty = np.repeat([1.0, 2.0, 3.0], 4)
    orders = [area(errors, uncertainty + 1e-9 * rng.uniform(size=12)) for _ in range(4000)]
    assert_allclose(area(errors, uncertainty), np.mean(orders), rtol=1e-2)
    assert_allclose(area(errors, np.ones(12)), errors.mean() / 2)
