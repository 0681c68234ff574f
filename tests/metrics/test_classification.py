"""Scores of classifiers, of members, and of rejected rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats
from scipy.spatial.distance import pdist
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, brier_score_loss, log_loss

from skuq import metrics
from skuq.predictive import CategoricalMixture


def draw(seed, n=200, n_classes=4):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(0.6 * np.ones(n_classes), size=n)
    y = (rng.uniform(size=(n, 1)) > proba.cumsum(axis=1)).sum(axis=1)
    return np.where(rng.uniform(size=n) < 0.2, rng.integers(n_classes, size=n), y), proba


def binned_gap(correct, confidence, n_bins, strategy):
    """Compute the gap from scikit-learn's curve, which has no points for empty bins."""
    accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins, strategy=strategy)
    levels = np.linspace(0, 1, n_bins + 1)
    edges = np.percentile(confidence, 100 * levels) if strategy == "quantile" else levels
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=n_bins)
    return np.average(np.abs(accuracy - mean), weights=counts[counts > 0])


def test_brier_is_sklearns(global_random_seed):
    y, proba = draw(global_random_seed)
    expected = np.mean(np.sum((proba - np.eye(4)[y]) ** 2, axis=1))
    assert_allclose(metrics.brier_loss(y, proba), expected)
    two = proba[:, :2] / proba[:, :2].sum(axis=1, keepdims=True)
    assert_allclose(metrics.brier_loss(y % 2, two), 2 * brier_score_loss(y % 2, two[:, 1]))


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_is_that_of_sklearns_curve(global_random_seed, strategy, n_bins):
    # Linear interpolation of quantiles gives equal bins if their number divides the rows.
    y, proba = draw(global_random_seed, n=300)
    top = binned_gap(proba.argmax(axis=1) == y, proba.max(axis=1), n_bins, strategy)
    assert_allclose(metrics.ece_loss(y, proba, n_bins=n_bins, strategy=strategy), top)
    each = [binned_gap(y == k, proba[:, k], n_bins, strategy) for k in range(4)]
    loss = metrics.classwise_ece_loss(y, proba, n_bins=n_bins, strategy=strategy)
    assert_allclose(loss, np.mean(each))


def test_ece_bins_by_hand():
    # Confidences 0.5 and 0.6 are in different halves: gaps 0.5 right and 0.6 wrong.
    proba = [[0.5, 0.5], [0.6, 0.4]]
    assert_allclose(metrics.ece_loss([0, 1], proba, n_bins=2), (0.5 + 0.6) / 2)
    assert_allclose(metrics.ece_loss([0, 1], proba, n_bins=1), 0.05)
    y, proba = [0, 0, 0, 1], [[0.75, 0.25]] * 4
    assert metrics.ece_loss(y, proba, strategy="quantile", n_bins=3) == pytest.approx(0, abs=1e-15)


def test_entropy_is_scipys(global_random_seed):
    _, proba = draw(global_random_seed)
    assert_allclose(metrics.predictive_entropy(proba), stats.entropy(proba, axis=1))


@pytest.mark.parametrize("loss", [metrics.brier_loss, metrics.ece_loss, metrics.classwise_ece_loss])
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


@pytest.mark.parametrize("light", [0, 1e-12])
def test_least_confident_row_may_have_no_weight(light):
    y, proba = [0, 1, 0, 0], [[0.6, 0.4], [0.3, 0.7], [0.9, 0.1], [0.2, 0.8]]
    settings = {"strategy": "quantile", "n_bins": 2}
    expected = metrics.ece_loss(y[1:], proba[1:], **settings)
    found = metrics.ece_loss(y, proba, sample_weight=[light, 1, 1, 1], **settings)
    assert_allclose(found, expected)
    settings |= {"sample_weight": [0, 1, 1, 1]}
    edges, confidence, _, weight = metrics.reliability_curve(y, proba, **settings)
    assert len(weight) == 2 and not np.isnan(confidence).any() and edges[0] == 0.7


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_ece_is_the_gap_of_its_reliability_curve(strategy, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    proba = rng.dirichlet(np.ones(3), size=60)
    y, weight = rng.integers(0, 3, 60), rng.integers(0, 3, 60)
    settings = {"n_bins": 7, "strategy": strategy, "sample_weight": weight}
    _, confidence, accuracy, share = metrics.reliability_curve(y, proba, **settings)
    gap = np.nansum(share * np.abs(accuracy - confidence)) / share.sum()
    assert_allclose(metrics.ece_loss(y, proba, **settings), gap)


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


def test_members_mutual_information_is_the_epistemic_part(global_random_seed):
    _, members = draw_members(global_random_seed)
    weights = np.array([0.5, 0.3, 0.2])
    expected = CategoricalMixture(members, weights).uncertainty().epistemic
    assert_allclose(metrics.mutual_information(members, weights), expected)
    # To second order sum_c var_c / (2 p_c), with variances of 1e-12.
    members = 0.5 + 1e-6 * np.array([[[1, -1]], [[-1, 1]]])
    assert_allclose(metrics.mutual_information(members), 2e-12, rtol=1e-4)


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


def test_retention_aurc_is_the_integral_of_the_risk(global_random_seed):
    errors, uncertainty = draw_retention(global_random_seed)
    retained, error = metrics.error_retention_curve(errors, uncertainty)

    def risk(r):
        return np.interp(r, retained, error) / r

    pieces = [integrate.quad(risk, a, b, epsabs=1e-12)[0] for a, b in zip(retained, retained[1:])]
    assert_allclose(metrics.aurc_loss(errors, uncertainty), sum(pieces), rtol=1e-8)


@pytest.mark.parametrize("area", [metrics.retention_auc, metrics.aurc_loss])
def test_retention_ties_are_an_average_over_orders(area, rng):
    errors, uncertainty = rng.exponential(size=12), np.repeat([1.0, 2.0, 3.0], 4)
    orders = [area(errors, uncertainty + 1e-9 * rng.uniform(size=12)) for _ in range(4000)]
    assert_allclose(area(errors, uncertainty), np.mean(orders), rtol=1e-2)


def test_retention_what_is_ranked_best_and_worst():
    errors, _ = draw_retention(0)
    mean = errors.mean()
    nothing = np.ones(len(errors))
    assert_allclose(metrics.retention_auc(errors, nothing), mean / 2)
    assert_allclose(metrics.aurc_loss(errors, nothing), mean)
    for area in (metrics.retention_auc, metrics.aurc_loss):
        best, worst = area(errors, errors), area(errors, -errors)
        assert best < area(errors, nothing) < worst
        assert area(0 * errors, errors) == 0
        assert area([2.0], [0.3]) == area([2.0], [-5.0])


def test_retention_tiny_weights_beside_huge_ones_do_no_harm():
    found = metrics.aurc_loss([1.0, 5.0, 3.0], [1, 2, 3], sample_weight=[1, 1e-30, 1e-30])
    assert_allclose(found, 1.0)


def test_retention_ood_is_the_mann_whitney_statistic(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    inside, outside = rng.integers(6, size=30), rng.integers(2, 8, size=20)  # with ties
    expected = stats.mannwhitneyu(outside, inside).statistic / 600
    assert_allclose(metrics.ood_auroc_score(inside, outside), expected)
    assert metrics.ood_auroc_score([0.0], [1.0]) == 1
    assert metrics.ood_auroc_score([1.0, 1.0], [1.0]) == 0.5
    weighted = metrics.ood_auroc_score([0.0, 2.0], [1.0], sample_weight=[3, 1, 1])
    assert_allclose(weighted, 0.75)
