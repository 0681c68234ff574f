import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats
from sklearn.metrics import auc

from skuq.metrics import aurc_loss, error_retention_curve, ood_auroc_score, retention_auc


def draw(seed, n=40):
    rng = np.random.default_rng(seed)
    uncertainty = rng.uniform(size=n)
    return uncertainty * rng.exponential(size=n), uncertainty


def test_curve_by_hand():
    curve = error_retention_curve([3.0, 1.0, 2.0, 2.0], [0.9, 0.1, 0.5, 0.2])
    assert_allclose(curve, ([0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.75, 1.25, 2]))


def test_area_is_sklearns_under_the_curve(global_random_seed):
    errors, uncertainty = draw(global_random_seed)
    curve = error_retention_curve(errors, uncertainty)
    assert_allclose(retention_auc(errors, uncertainty), auc(*curve))


def test_aurc_is_the_integral_of_the_risk(global_random_seed):
    errors, uncertainty = draw(global_random_seed)
    retained, error = error_retention_curve(errors, uncertainty)

    def risk(r):
        return np.interp(r, retained, error) / r

    pieces = [integrate.quad(risk, a, b, epsabs=1e-12)[0] for a, b in zip(retained, retained[1:])]
    assert_allclose(aurc_loss(errors, uncertainty), sum(pieces), rtol=1e-8)


@pytest.mark.parametrize("area", [retention_auc, aurc_loss])
def test_ties_are_an_average_over_orders(area):
    rng = np.random.default_rng(0)
    errors, uncertainty = rng.exponential(size=12), np.repeat([1.0, 2.0, 3.0], 4)
    orders = [area(errors, uncertainty + 1e-9 * rng.uniform(size=12)) for _ in range(4000)]
    assert_allclose(area(errors, uncertainty), np.mean(orders), rtol=1e-2)


def test_what_is_ranked_best_and_worst():
    errors, _ = draw(0)
    mean = errors.mean()
    nothing = np.ones(len(errors))
    assert_allclose(retention_auc(errors, nothing), mean / 2)
    assert_allclose(aurc_loss(errors, nothing), mean)
    for area in (retention_auc, aurc_loss):
        best, worst = area(errors, errors), area(errors, -errors)
        assert best < area(errors, nothing) < worst
        assert area(0 * errors, errors) == 0
        assert area([2.0], [0.3]) == area([2.0], [-5.0])


def test_tiny_weights_beside_huge_ones_do_no_harm():
    assert_allclose(aurc_loss([1.0, 5.0, 3.0], [1, 2, 3], sample_weight=[1, 1e-30, 1e-30]), 1.0)


def test_ood_is_the_mann_whitney_statistic(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    inside, outside = rng.integers(6, size=30), rng.integers(2, 8, size=20)  # with ties
    expected = stats.mannwhitneyu(outside, inside).statistic / 600
    assert_allclose(ood_auroc_score(inside, outside), expected)
    assert ood_auroc_score([0.0], [1.0]) == 1
    assert ood_auroc_score([1.0, 1.0], [1.0]) == 0.5
    weighted = ood_auroc_score([0.0, 2.0], [1.0], sample_weight=[3, 1, 1])
    assert_allclose(weighted, 0.75)
