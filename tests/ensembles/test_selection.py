import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from skuq.ensembles import Selection, select_forward, select_greedy, select_top
from skuq.ensembles._hq import select_hq_proba
from skuq.ensembles._likelihood import brier_statistics
from skuq.ensembles._selection import check_selection


def pool(seed, n_candidates=6, n_samples=15):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n_samples)
    loc = y + rng.normal(0, 0.8, size=(n_candidates, n_samples))
    return y, loc, rng.uniform(0.3, 1.5, size=(n_candidates, n_samples))


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
def test_greedy_is_algorithm_1(seed):
    y, loc, scale = pool(seed)
    ensemble, loss = literal_algorithm_1(y, loc, scale, 4)
    selection = select_greedy(y, loc, scale, 4, min_members=1)
    assert [step[0] for step in selection.path] == ensemble
    assert_allclose(selection.loss, loss, rtol=1e-10)
    counts = {index: ensemble.count(index) / len(ensemble) for index in ensemble}
    assert_allclose(selection.weights, [counts[i] for i in selection.indices])


def test_greedy_keeps_min_members_against_the_loss():
    # Candidate 0 is perfect: every other makes the ensemble worse.
    y = np.zeros(30)
    loc = np.array([0.0, 1.0, 5.0])[:, None] * np.ones(30)
    scale = np.full((3, 30), 0.1)
    assert select_greedy(y, loc, scale, 3, min_members=1).indices.tolist() == [0]
    two = select_greedy(y, loc, scale, 3, min_members=2)
    assert sorted(two.indices) == [0, 1]
    # Repeats of 0 improve what the forced step spoiled.
    assert two.weights[0] > two.weights[1]
    assert two.loss == min(loss for _, loss in two.path[1:])


def test_repeats_end_and_no_weight_vanishes():
    """A forced second member that only harms: repeats of the first would never end."""
    y = np.zeros(40)
    loc = np.array([0.0, 3.0])[:, None] * np.ones(40)
    selection = select_greedy(y, loc, np.full((2, 40), 0.1), 5, min_members=2)
    assert len(selection.path) <= 4 * 2 and selection.weights.min() >= 1 / 8


def test_greedy_finds_the_pair_of_opposite_errors():
    y = np.zeros(20)
    loc = np.array([1.0, -1.0, 0.9])[:, None] * np.ones(20)
    selection = select_greedy(y, loc, np.full((3, 20), 0.5), 2)
    assert sorted(selection.indices) == [1, 2]


def test_without_replacement_every_weight_is_equal(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    from skuq.ensembles._selection import normal_nll, normal_statistics

    selection = select_forward(
        normal_statistics(y, loc, scale), normal_nll, 4, replacement=False, min_members=4
    )
    assert len(set(selection.indices)) == 4
    assert_allclose(selection.weights, 0.25)
    assert_allclose(selection.loss, mixture_nll(y, loc, scale, selection.indices), rtol=1e-10)


def test_k_init_starts_from_the_best_singles(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    singles = [mixture_nll(y, loc, scale, [c]) for c in range(len(loc))]
    path = select_greedy(y, loc, scale, 5, k_init=3).path
    assert [step[0] for step in path[:3]] == np.argsort(singles)[:3].tolist()


def test_sample_weights_count_as_repeated_rows(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    weight = np.random.default_rng(0).integers(1, 4, size=len(y))
    weighted = select_greedy(y, loc, scale, 4, sample_weight=weight)
    repeat = [np.repeat(a, weight, axis=-1) for a in (y, loc, scale)]
    repeated = select_greedy(*repeat, 4)
    assert weighted.path[0][0] == repeated.path[0][0]
    assert_allclose(weighted.loss, repeated.loss)


def test_large_targets_do_not_cancel():
    y, loc, scale = pool(0)
    near, far = select_greedy(y, loc, scale, 4), select_greedy(y + 1e7, loc + 1e7, scale, 4)
    np.testing.assert_array_equal(near.indices, far.indices)
    assert_allclose(near.loss, far.loss, rtol=1e-6)


def test_candidates_with_nan_are_never_taken():
    y, loc, scale = pool(0)
    loc[2] = np.nan
    for select in (select_greedy, select_top):
        assert 2 not in select(y, loc, scale, 6).indices
    with pytest.raises(ValueError, match="finite loss"):
        select_greedy(y, loc * np.nan, scale, 2)
    with pytest.raises(ValueError, match="finite loss"):
        select_top(y, loc * np.nan, scale, 2)


def test_several_outputs_average():
    y, loc, scale = pool(0)
    two = [np.stack([a, a], axis=-1) for a in (y, loc, scale)]
    one, both = select_greedy(y, loc, scale, 4), select_greedy(*two, 4)
    np.testing.assert_array_equal(one.indices, both.indices)
    assert_allclose(one.loss, both.loss)


def test_top_takes_the_best_singles(global_random_seed):
    y, loc, scale = pool(global_random_seed)
    singles = [mixture_nll(y, loc, scale, [c]) for c in range(len(loc))]
    selection = select_top(y, loc, scale, 3)
    np.testing.assert_array_equal(selection.indices, np.argsort(singles)[:3])
    assert_allclose(selection.weights, 1 / 3)
    assert_allclose(selection.loss, mixture_nll(y, loc, scale, selection.indices), rtol=1e-10)


def test_greedy_returns_the_best_ensemble_of_its_path():
    for seed in range(10):
        y, loc, scale = pool(seed)
        selection = select_greedy(y, loc, scale, 4, min_members=2)
        taken = [index for index, _ in selection.path]
        eligible = [
            loss for k, (_, loss) in enumerate(selection.path, 1) if len(set(taken[:k])) >= 2
        ]
        assert selection.loss == min(eligible)


@given(seed=st.integers(0, 999), min_members=st.integers(1, 4), n_members=st.integers(4, 6))
def test_the_heaviest_members_leave_the_others_real_weight(seed, min_members, n_members):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=40)
    loc = y + rng.normal(size=(8, 1)) ** 2 * rng.normal(size=(8, 40))
    chosen = select_greedy(y, loc, np.full((8, 40), 0.5), n_members, min_members=min_members)
    assert len(chosen) >= min_members
    heaviest = np.cumsum(np.sort(chosen.weights)[::-1])
    for k in range(1, min_members):  # half of an equal share for each of the others
        assert heaviest[k - 1] <= 1 - (min_members - k) * 0.5 / min_members + 1e-9


def test_one_of_three_members_is_not_left_without_weight():
    """The third is far worse than two others that are as good as each other."""
    y = np.zeros(40)
    loc = np.array([1.0, -1.0, 9.0])[:, None] * np.ones(40)
    chosen = select_greedy(y, loc, np.full((3, 40), 0.5), 3, min_members=3)
    assert chosen.weights.min() >= 1 / 6


def test_no_candidate_is_repeated_where_none_is_allowed():
    """The loss of the two together is not a number."""

    def loss(mean):
        return np.where(mean == 1.5, np.nan, mean)

    errors = np.array([[1.0, 1.0], [2.0, 2.0]])
    chosen = select_forward([errors], loss, 2, replacement=False, min_size=2)
    assert chosen.path == ((0, 1.0),)


def test_a_weight_that_not_all_members_can_have_is_refused():
    with pytest.raises(ValueError, match=r"`min_weight` must be in .*0.5 with min_members=2"):
        select_forward([np.ones((3, 2))], np.square, 3, min_members=2, min_weight=0.6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_members": 0}, "`n_members` must be a positive whole number. Got 0"),
        ({"n_members": 2, "loss": "rmse"}, r"`loss` must be one of \['nll', 'crps', 'mse'\]. Got"),
    ],
)
@pytest.mark.parametrize("select", [select_greedy, select_top])
def test_impossible_arguments(select, settings, message):
    with pytest.raises(ValueError, match=message):
        select(*pool(0), **settings)


def test_weights_of_a_users_selection_may_be_single_precision():
    weights = check_selection(Selection([2, 0, 1], np.full(3, 1 / 3, "float32")), 3).weights
    assert weights.dtype == float and weights.sum() == pytest.approx(1, abs=1e-15)


def test_codes_that_are_no_classes():
    proba = np.full((2, 4, 2), 0.5)
    for y in ([-1, 1, 1, -1], [0, 1, 2, 1], [0.0, 1.0, 0.0, 1.0], ["a", "b", "a", "b"]):
        with pytest.raises(ValueError, match="class codes from 0 to 1"):
            select_hq_proba(y, proba, 2)
        with pytest.raises(ValueError, match="class codes from 0 to 1"):
            brier_statistics(y, proba)


def test_wrong_candidates():
    y, loc = np.zeros(4), np.arange(8.0).reshape(2, 4)
    with pytest.raises(ValueError, match="must have shape"):
        select_greedy(y, loc.T, loc.T, 2)
    with pytest.raises(ValueError, match="`scale` must have the shape"):
        select_greedy(y, loc, np.ones((2, 4, 1)), 2)
    with pytest.raises(ValueError, match="`scale` must be at least 0. Got -1"):
        select_greedy(y, loc, np.where(loc == 0, -1, 1), 2)
    with pytest.raises(ValueError, match="at least one"):
        select_greedy(y, loc, np.ones_like(loc), 2, sample_weight=np.zeros(4))
    for weight, message in ((np.zeros(4), "at least one"), (-np.ones(4), "egative")):
        with pytest.raises(ValueError, match=message):
            select_top(y, loc, np.ones_like(loc), 2, sample_weight=weight)
    broad = [select_greedy(y, loc, scale, 2).loss for scale in (1.0, np.ones(4), np.ones((2, 4)))]
    assert broad[0] == broad[1] == broad[2]
