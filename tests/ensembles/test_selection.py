"""Selections written out one candidate at a time: by moments of normals, and by likelihood."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.metrics import log_loss
from teams import SELECTORS, likelihood_statistics, select_by
from tiers import cases

from skuq.ensembles import Selection, _selection, select_forward


def normals(seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=15)
    return y, y + rng.normal(0, 0.8, size=(6, 15)), rng.uniform(0.3, 1.5, size=(6, 15))


def select_greedy(y, loc, scale, n_members, *, min_members=2, **settings):
    """Select members and weights as `GreedySelection` does."""
    settings = {"min_members": min_members, "min_weight": 0.5 / min_members, **settings}
    statistics = _selection.normal_statistics(y, loc, scale)
    return select_forward(statistics, _selection.normal_nll, n_members, **settings)


def mixture_nll(y, loc, scale, members):
    """Compute the loss by its definition with SciPy: a normal with the mixture's moments."""
    mean = loc[members].mean(axis=0)
    variance = (scale[members] ** 2 + loc[members] ** 2).mean(axis=0) - mean**2
    return -stats.norm(mean, np.sqrt(variance)).logpdf(y).mean()


def literal_algorithm_1(y, loc, scale, n_members):
    """Lines 29-39, with a strict decrease and our bound on repeats, by brute force."""
    ensemble, min_loss = [], np.inf
    while len(set(ensemble)) < n_members and len(ensemble) < 4 * n_members:
        losses = [mixture_nll(y, loc, scale, [*ensemble, c]) for c in range(len(loc))]
        best = int(np.argmin(losses))
        if not losses[best] < min_loss:
            return ensemble, min_loss
        ensemble.append(best)
        min_loss = losses[best]
    return ensemble, min_loss


@pytest.mark.parametrize("seed", range(6))
def test_select_greedy_is_algorithm_1(seed):
    y, loc, scale = normals(seed)
    ensemble, loss = literal_algorithm_1(y, loc, scale, 4)
    selection = select_greedy(y, loc, scale, 4, min_members=1)
    assert [step for step, _ in selection.path] == ensemble
    assert_allclose(selection.loss, loss, rtol=1e-10)
    counts = [ensemble.count(index) / len(ensemble) for index in selection.indices]
    assert_allclose(selection.weights, counts)
    singles = [mixture_nll(y, loc, scale, [c]) for c in range(len(loc))]
    path = select_greedy(y, loc, scale, 5, k_init=3).path
    assert [step for step, _ in path[:3]] == np.argsort(singles)[:3].tolist()


def constants(*loc, scale=0.5):
    """Targets 0, and candidates that predict one number each."""
    return np.zeros(40), np.outer(loc, np.ones(40)), np.full((len(loc), 40), scale)


def test_select_greedy_keeps_min_members_against_the_loss():
    # Candidate 0 is perfect: every other makes the ensemble worse.
    candidates = constants(0.0, 1.0, 5.0, scale=0.1)
    assert select_greedy(*candidates, 3, min_members=1).indices.tolist() == [0]
    two = select_greedy(*candidates, 3, min_members=2)
    assert sorted(two.indices) == [0, 1]
    # Repeats of 0 improve what the forced step spoiled.
    assert two.weights[0] > two.weights[1]
    assert two.loss == min(loss for _, loss in two.path[1:])
    # And repeats none where none may be: the loss of the two together is not a number.
    errors = np.array([[1.0, 1.0], [2.0, 2.0]])
    options = {"replacement": False, "min_size": 2}
    chosen = select_forward([errors], lambda m: np.where(m == 1.5, np.nan, m), 2, **options)
    assert chosen.path == ((0, 1.0),)


@cases(
    ("loc", "n_members", "chosen", "least"),
    ((1.0, -1.0, 0.9), 2, [1, 2], 1 / 4),  # opposite errors
    ((0.0, 3.0), 5, [0, 1], 1 / 8),  # the second only harms: repeats of the first end
    ((1.0, -1.0, 9.0), 3, [0, 1, 2], 1 / 6),  # the third is far worse than the others
)
def test_select_greedy_leaves_weight_to_each_member(loc, n_members, chosen, least):
    selection = select_greedy(*constants(*loc), n_members, min_members=len(chosen))
    assert sorted(selection.indices) == chosen
    assert selection.weights.min() >= least
    assert len(selection.path) <= 4 * n_members


def test_select_greedy_of_weights_outputs_large_targets_and_nan(rng):
    arrays = normals(0)
    weight = rng.integers(1, 4, size=15)
    weighted = select_greedy(*arrays, 4, sample_weight=weight)
    repeated = select_greedy(*(np.repeat(a, weight, axis=-1) for a in arrays), 4)
    y, loc, scale = arrays
    one = select_greedy(y, loc, scale, 4)
    outputs = select_greedy(*(np.stack([a, a], axis=-1) for a in arrays), 4)
    large = select_greedy(y + 1e7, loc + 1e7, scale, 4)
    undefined = select_greedy(y, [*loc, loc[0] * np.nan], [*scale, scale[0]], 4)
    for same, expected in [(weighted, repeated), (outputs, one), (large, one), (undefined, one)]:
        assert_array_equal(same.indices, expected.indices)
        assert_allclose(same.loss, expected.loss, rtol=1e-6)
    broad = [select_greedy(np.zeros(4), LOC, scale, 2).loss for scale in (1.0, ONES[0], ONES)]
    assert broad[0] == broad[1] == broad[2]
    # Weights of given selections sum to 1 in double precision.
    thirds = Selection([2, 0, 1], np.full(3, 1 / 3, "float32"))
    weights = _selection.check_selection(thirds, 3).weights
    assert weights.dtype == float and weights.sum() == pytest.approx(1, abs=1e-15)


LOC = np.arange(8.0).reshape(2, 4)
ONES = np.ones_like(LOC)


@cases(
    ("arguments", "settings", "message"),
    ((LOC, ONES, 0), {}, "`n_members` must be a positive whole number. Got 0"),
    ((LOC.T, LOC.T, 2), {}, "must have shape"),
    ((LOC, np.ones(3), 2), {}, "broadcast"),
    ((LOC, ONES - 2, 2), {}, "`scale` must be at least 0. Got -1"),
    ((LOC * np.nan, ONES, 2), {}, "finite loss"),
    ((LOC, ONES, 2), {"sample_weight": np.zeros(4)}, "at least one"),
    ((LOC, ONES, 2), {"min_weight": 0.6}, r"`min_weight` must be in .*0.5 with min_members=2"),
)
def test_select_greedy_refuses(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        select_greedy(np.zeros(4), *arguments, **settings)


def select_by_likelihood(log_likelihood, *arguments, **settings):
    return select_by(*likelihood_statistics(log_likelihood), *arguments, **settings)


def classes_of_pool(seed):
    """True codes, probabilities, and log probabilities of the true classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=20)
    proba = rng.dirichlet(np.ones(3), (7, 20))
    return y, proba, np.log(proba[:, np.arange(20), y])


def nll(y, proba, members):
    """Compute the loss by its definition with scikit-learn: average, then log loss."""
    return log_loss(y, proba[members].mean(axis=0), labels=[0, 1, 2])


def one_by_one(y, proba, n_members, method):
    """The paper's four selections, one candidate at a time."""
    everyone = range(len(proba))
    ranked = sorted(everyone, key=lambda c: nll(y, proba, [c]))
    if method == "top":
        return ranked[:n_members]
    if method == "quick":
        chosen = ranked[:1]
        for c in ranked[1:]:
            if len(chosen) < n_members and nll(y, proba, [*chosen, c]) < nll(y, proba, chosen):
                chosen.append(c)
        return chosen
    chosen = []
    while len(chosen) < n_members:
        allowed = [c for c in everyone if method == "replacement" or c not in chosen]
        chosen.append(min(allowed, key=lambda c: nll(y, proba, [*chosen, c])))
    return chosen


@pytest.mark.parametrize("method", SELECTORS)
@pytest.mark.parametrize("seed", range(4))
def test_select_by_likelihood_is_the_papers(method, seed):
    y, proba, log_likelihood = classes_of_pool(seed)
    expected = one_by_one(y, proba, 4, method)
    selection = select_by_likelihood(log_likelihood, 4, method)
    assert selection.indices.tolist() == list(dict.fromkeys(expected))
    counts = [expected.count(c) / len(expected) for c in selection.indices]
    assert_allclose(selection.weights, counts)
    assert_allclose(selection.loss, nll(y, proba, expected), rtol=1e-9)


def test_select_by_likelihood_of_sizes_and_of_impossible_and_undefined_rows():
    log_likelihood = np.log([[0.99] * 9, [0.01] * 9, [0.02] * 9])
    selection = select_by_likelihood(log_likelihood, 3)
    assert [step for step, _ in selection.path] == selection.indices.tolist() == [0, 2, 1]
    for method in ("quick", "replacement"):
        assert select_by_likelihood(log_likelihood, 3, method).indices.tolist() == [0]
    with pytest.raises(ValueError, match=r"`method` must be one of .*'forward'.* Got 'best'"):
        select_by_likelihood(log_likelihood, 3, "best")
    log_likelihood = np.log(np.full((4, 6), 0.5))
    log_likelihood[1, 0] = -np.inf
    log_likelihood[2, 0] = np.nan
    assert select_by_likelihood(log_likelihood, 3).indices.tolist() == [0, 3, 1]
    assert 2 not in select_by_likelihood(log_likelihood, 2, "top").indices
    # Probability 0 costs about 708 nats.
    loss = select_by_likelihood(log_likelihood[1:2], 1).loss
    assert_allclose(loss, (5 * np.log(2) + 708.4) / 6, rtol=1e-4)


@pytest.mark.parametrize("method", SELECTORS)
def test_select_by_likelihood_of_weights_few_candidates_and_far_tails(method, rng):
    *_, log_likelihood = classes_of_pool(3)
    counts = rng.integers(1, 4, size=20)
    weighted = select_by_likelihood(log_likelihood, 4, method, sample_weight=counts)
    repeated = select_by_likelihood(np.repeat(log_likelihood, counts, axis=1), 4, method)
    assert weighted.indices.tolist() == repeated.indices.tolist()
    assert_allclose(weighted.loss, repeated.loss)
    assert len(select_by_likelihood(log_likelihood[:3], 10, method)) <= 3
    # These densities are 0 in float64; the log says which is nearer.
    tails = np.array([[-5000.0, -1.0], [-900.0, -1.1], [-1.0, -6000.0]])
    selection = select_by_likelihood(tails, 1, method)
    assert selection.indices.tolist() == [1] and selection.loss == pytest.approx(450.55)


def test_select_by_likelihood_use_best(rng):
    likelihood = rng.normal(size=(12, 120))
    weight = np.repeat([1.0, 0.0], 60)
    expected = select_by_likelihood(likelihood[:, :60], 8, use_best=True)
    undefined = np.append(likelihood, np.full((1, 120), 9.0), axis=0)
    undefined[-1, 7] = np.nan
    chosen = select_by_likelihood(undefined, 8, use_best=True, sample_weight=weight)
    assert_array_equal(chosen.indices, expected.indices)
    assert 2 <= len(chosen) < 8
    weight[1:] = 0.0  # all of the weight is in one fold
    assert len(select_by_likelihood(likelihood, 5, use_best=True, sample_weight=weight)) == 5
    # Copies add nothing: with groups the size stays what it is on the rows once.
    y, proba = rng.integers(2, size=200), rng.normal(0.5, 0.25, size=(40, 200)).clip(0.02, 0.98)
    once = np.log(np.where(y == 1, proba, 1 - proba))
    five, groups = np.tile(once, 5), np.tile(np.arange(200), 5)
    size = len(select_by_likelihood(once, 20, use_best=True))
    assert len(select_by_likelihood(five, 20, use_best=True, groups=groups)) == size
    assert len(select_by_likelihood(five, 20, use_best=True)) < size
    # Three good candidates and many that say little: more than three only dilute.
    good, bad = rng.uniform(0.5, 0.99, size=(3, 400)), rng.uniform(0.05, 0.2, size=(20, 400))
    log_likelihood = np.log(np.concatenate([bad, good]))
    chosen = select_by_likelihood(log_likelihood, 10, use_best=True)
    assert sorted(chosen.indices) == [20, 21, 22]
    assert len(select_by_likelihood(log_likelihood[:, :49], 10, use_best=True)) == 10
