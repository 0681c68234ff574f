import numpy as np
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist
from sklearn.metrics import log_loss

from skuq.metrics import (
    average_member_nll_loss,
    disagreement_score,
    ensemble_nll_loss,
    mutual_information,
    oracle_nll_loss,
)
from skuq.predictive import CategoricalMixture


def draw(seed, n_members=3, n=50, n_classes=4):
    rng = np.random.default_rng(seed)
    return rng.integers(n_classes, size=n), rng.dirichlet(np.ones(n_classes), (n_members, n))


def test_losses_are_sklearns(global_random_seed):
    y, members = draw(global_random_seed)
    weights, rows = np.array([0.5, 0.3, 0.2]), np.random.default_rng(1).uniform(size=50)
    alone = [log_loss(y, proba, sample_weight=rows) for proba in members]
    average = average_member_nll_loss(y, members, weights, sample_weight=rows)
    assert_allclose(average, weights @ alone)
    mean = np.tensordot(weights, members, axes=1)
    expected = log_loss(y, mean, sample_weight=rows)
    assert_allclose(ensemble_nll_loss(y, members, weights, sample_weight=rows), expected)
    best = members[members[:, np.arange(50), y].argmax(axis=0), np.arange(50)]
    expected = log_loss(y, best, sample_weight=rows)
    assert_allclose(oracle_nll_loss(y, members, sample_weight=rows), expected)


def test_probability_0_is_cut_off_as_sklearn_does():
    members = np.array([[[0.0, 1.0]], [[0.0, 1.0]]])
    expected = log_loss([0], members[0], labels=[0, 1])
    for loss in (oracle_nll_loss, ensemble_nll_loss, average_member_nll_loss):
        assert_allclose(loss([0], members, labels=[0, 1]), expected)


def test_disagreement_is_the_mean_hamming_distance(global_random_seed):
    _, members = draw(global_random_seed, n_members=5)
    labels = members.argmax(axis=2)
    expected = pdist(labels, "hamming").mean()
    assert_allclose(disagreement_score(members), expected)
    assert_allclose(disagreement_score(np.array(list("abcd"))[labels]), expected)
    weight = np.random.default_rng(0).uniform(size=50)
    expected = pdist(labels, "hamming", w=weight).mean()
    assert_allclose(disagreement_score(labels, sample_weight=weight), expected)


def test_mutual_information_is_the_epistemic_part(global_random_seed):
    _, members = draw(global_random_seed)
    weights = np.array([0.5, 0.3, 0.2])
    expected = CategoricalMixture(members, weights).uncertainty().epistemic
    assert_allclose(mutual_information(members, weights), expected)


def test_members_that_nearly_agree_are_told_apart():
    # To second order sum_c var_c / (2 p_c), with variances of 1e-12.
    members = 0.5 + 1e-6 * np.array([[[1, -1]], [[-1, 1]]])
    assert_allclose(mutual_information(members), 2e-12, rtol=1e-4)
