import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from skuq.metrics import (
    brier_loss,
    classwise_ece_loss,
    ece_loss,
    predictive_entropy,
    reliability_curve,
)


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
    assert_allclose(brier_loss(y, proba), expected)
    two = proba[:, :2] / proba[:, :2].sum(axis=1, keepdims=True)
    assert_allclose(brier_loss(y % 2, two), 2 * brier_score_loss(y % 2, two[:, 1]))


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_is_that_of_sklearns_curve(global_random_seed, strategy, n_bins):
    # Linear interpolation of quantiles gives equal bins if their number divides the rows.
    y, proba = draw(global_random_seed, n=300)
    top = binned_gap(proba.argmax(axis=1) == y, proba.max(axis=1), n_bins, strategy)
    assert_allclose(ece_loss(y, proba, n_bins=n_bins, strategy=strategy), top)
    each = [binned_gap(y == k, proba[:, k], n_bins, strategy) for k in range(4)]
    loss = classwise_ece_loss(y, proba, n_bins=n_bins, strategy=strategy)
    assert_allclose(loss, np.mean(each))


def test_bins_are_closed_on_the_right():
    # Confidences 0.5 and 0.6 are in different halves: gaps 0.5 right and 0.6 wrong.
    proba = [[0.5, 0.5], [0.6, 0.4]]
    assert_allclose(ece_loss([0, 1], proba, n_bins=2), (0.5 + 0.6) / 2)
    assert_allclose(ece_loss([0, 1], proba, n_bins=1), 0.05)


def test_rows_of_one_confidence_share_a_quantile_bin():
    y, proba = [0, 0, 0, 1], [[0.75, 0.25]] * 4
    assert ece_loss(y, proba, strategy="quantile", n_bins=3) == pytest.approx(0, abs=1e-15)


def test_entropy_is_scipys(global_random_seed):
    _, proba = draw(global_random_seed)
    assert_allclose(predictive_entropy(proba), stats.entropy(proba, axis=1))


@pytest.mark.parametrize("loss", [brier_loss, ece_loss, classwise_ece_loss])
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
    expected = ece_loss(y[1:], proba[1:], **settings)
    assert_allclose(ece_loss(y, proba, sample_weight=[light, 1, 1, 1], **settings), expected)
    edges, confidence, _, weight = reliability_curve(
        y, proba, sample_weight=[0, 1, 1, 1], **settings
    )
    assert len(weight) == 2 and not np.isnan(confidence).any() and edges[0] == 0.7


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_ece_is_the_gap_of_its_reliability_curve(strategy, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    proba = rng.dirichlet(np.ones(3), size=60)
    y, weight = rng.integers(0, 3, 60), rng.integers(0, 3, 60)
    settings = {"n_bins": 7, "strategy": strategy, "sample_weight": weight}
    _, confidence, accuracy, share = reliability_curve(y, proba, **settings)
    gap = np.nansum(share * np.abs(accuracy - confidence)) / share.sum()
    assert_allclose(ece_loss(y, proba, **settings), gap)
