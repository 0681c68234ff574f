import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from tiers import cases

from skuq.ensembles import Selection, _selection, select_forward


def pool(seed, n_candidates=6, n_samples=15):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n_samples)
    loc = y + rng.normal(0, 0.8, size=(n_candidates, n_samples))
    return y, loc, rng.uniform(0.3, 1.5, size=(n_candidates, n_samples))


def select_greedy(y, loc, scale, n_members, *, min_members=2, **settings):
    """As `GreedySelection` does."""
    return select_forward(
        _selection.normal_statistics(y, loc, scale),
        _selection.normal_nll,
        n_members,
        min_members=min_members,
        min_weight=0.5 / min_members,
        **settings,
    )


def mixture_nll(y, loc, scale, members, weight=None):
    """Compute the loss by its definition with SciPy: a normal with the mixture's moments."""
    mean = loc[members].mean(axis=0)
    variance = (scale[members] ** 2 + loc[members] ** 2).mean(axis=0) - mean**2
    return np.average(-stats.norm(mean, np.sqrt(variance)).logpdf(y), weights=weight)


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


@pytest.mark.parametrize("seed", range(12))
def test_select_greedy_is_algorithm_1(seed):
    y, loc, scale = pool(seed)
    ensemble, loss = literal_algorithm_1(y, loc, scale, 4)
    selection = select_greedy(y, loc, scale, 4, min_members=1)
    assert [step[0] for step in selection.path] == ensemble
    assert_allclose(selection.loss, loss, rtol=1e-10)
    counts = {index: ensemble.count(index) / len(ensemble) for index in ensemble}
    assert_allclose(selection.weights, [counts[i] for i in selection.indices])


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


def test_select_greedy_starts_from_the_best_singles(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    singles = [mixture_nll(y, loc, scale, [c]) for c in range(len(loc))]
    path = select_greedy(y, loc, scale, 5, k_init=3).path
    assert [step[0] for step in path[:3]] == np.argsort(singles)[:3].tolist()


def test_select_greedy_counts_weights_as_repeated_rows(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    weight = np.random.default_rng(0).integers(1, 4, size=len(y))
    weighted = select_greedy(y, loc, scale, 4, sample_weight=weight)
    repeat = [np.repeat(a, weight, axis=-1) for a in (y, loc, scale)]
    repeated = select_greedy(*repeat, 4)
    assert weighted.path[0][0] == repeated.path[0][0]
    assert_allclose(weighted.loss, repeated.loss)


def test_select_greedy_never_takes_candidates_with_nan():
    y, loc, scale = pool(0)
    loc[2] = np.nan
    assert 2 not in select_greedy(y, loc, scale, 6).indices
    with pytest.raises(ValueError, match="finite loss"):
        select_greedy(y, loc * np.nan, scale, 2)


def test_select_greedy_of_large_targets_and_of_equal_outputs():
    y, loc, scale = pool(0)
    one = select_greedy(y, loc, scale, 4)
    two_outputs = [np.stack([a, a], axis=-1) for a in (y, loc, scale)]
    for same in (two_outputs, (y + 1e7, loc + 1e7, scale)):
        other = select_greedy(*same, 4)
        np.testing.assert_array_equal(one.indices, other.indices)
        assert_allclose(one.loss, other.loss, rtol=1e-6)
    scales = 1.0, np.ones(4), ONES
    broad = [select_greedy(np.zeros(4), LOC, scale, 2).loss for scale in scales]
    assert broad[0] == broad[1] == broad[2]


def test_select_forward_repeats_no_candidate_where_none_may_be():
    """The loss of the two together is not a number."""

    def loss(mean):
        return np.where(mean == 1.5, np.nan, mean)

    errors = np.array([[1.0, 1.0], [2.0, 2.0]])
    chosen = select_forward([errors], loss, 2, replacement=False, min_size=2)
    assert chosen.path == ((0, 1.0),)
    thirds = Selection([2, 0, 1], np.full(3, 1 / 3, "float32"))
    weights = _selection.check_selection(thirds, 3).weights
    assert weights.dtype == float and weights.sum() == pytest.approx(1, abs=1e-15)


LOC = np.arange(8.0).reshape(2, 4)
ONES = np.ones_like(LOC)


@cases(
    ("select", "arguments", "settings", "message"),
    *(
        (select_greedy, (np.zeros(4), *arguments), settings, message)
        for arguments, settings, message in [
            ((LOC, ONES, 0), {}, "`n_members` must be a positive whole number. Got 0"),
            ((LOC.T, LOC.T, 2), {}, "must have shape"),
            ((LOC, np.ones(3), 2), {}, "broadcast"),
            ((LOC, ONES - 2, 2), {}, "`scale` must be at least 0. Got -1"),
            ((LOC, ONES, 2), {"sample_weight": np.zeros(4)}, "at least one"),
            ((LOC, ONES, 2), {"sample_weight": -np.ones(4)}, "egative"),
        ]
    ),
    (
        select_forward,
        ([np.ones((3, 2))], np.square, 3),
        {"min_members": 2, "min_weight": 0.6},
        r"`min_weight` must be in .*0.5 with min_members=2",
    ),
)
def test_select_refuses(select, arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        select(*arguments, **settings)
