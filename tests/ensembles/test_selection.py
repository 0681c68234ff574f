"""Selections written out: members by moments and by likelihood, and teams by their diversity."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from heads import CategoricalHead
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, special, stats
from scipy.cluster.vq import kmeans2
from sklearn.metrics import cohen_kappa_score, log_loss
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa
from teams import SELECTORS, diversity_score, likelihood_statistics, select_by, select_hq
from tiers import cases

from skuq.ensembles import (
    ForwardSelection,
    Selection,
    StackingSelection,
    _rules,
    _selection,
    _stacking,
    _teams,
    select_forward,
    select_teams,
)
from skuq.ensembles._stacking import stack
from skuq.networks import GaussianHead

LOC = np.arange(8.0).reshape(2, 4)
ONES, MEASURES = np.ones_like(LOC), tuple(_teams.MEASURES)
HALF = np.full((2, 3, 2), 0.5)


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
    assert two.weights[0] > two.weights[1] and two.loss == min(loss for _, loss in two.path[1:])
    # And repeats none where none may be: the loss of the two together is not a number.
    errors, options = np.array([[1.0, 1.0], [2.0, 2.0]]), {"replacement": False, "min_size": 2}
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
    assert sorted(selection.indices) == chosen and selection.weights.min() >= least
    assert len(selection.path) <= 4 * n_members


def test_select_greedy_of_weights_outputs_large_targets_and_nan(rng):
    arrays, weight = normals(0), rng.integers(1, 4, size=15)
    weighted = select_greedy(*arrays, 4, sample_weight=weight)
    repeated = select_greedy(*(np.repeat(a, weight, axis=-1) for a in arrays), 4)
    y, loc, scale = arrays
    one = select_greedy(y, loc, scale, 4)
    outputs = select_greedy(*(np.stack([a, a], axis=-1) for a in arrays), 4)
    large = select_greedy(y + 1e7, loc + 1e7, scale, 4)
    undefined = select_greedy(y, np.r_[loc, loc[:1] * np.nan], np.r_[scale, scale[:1]], 4)
    for same, expected in [(weighted, repeated), (outputs, one), (large, one), (undefined, one)]:
        assert_array_equal(same.indices, expected.indices)
        assert_allclose(same.loss, expected.loss, rtol=1e-6)
    # Weights of given selections sum to 1 in double precision.
    thirds = Selection([2, 0, 1], np.full(3, 1 / 3, "float32"))
    weights = _selection.check_selection(thirds, 3).weights
    assert weights.dtype == float and weights.sum() == pytest.approx(1, abs=1e-15)


@cases(
    ("arguments", "settings", "message"),
    ((LOC, ONES, 0), {}, "`n_members` must be a positive whole number. Got 0"),
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
    y, proba = rng.integers(3, size=20), rng.dirichlet(np.ones(3), (7, 20))
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
    log_likelihood = np.log(np.full((4, 6), 0.5))
    log_likelihood[1, 0] = -np.inf
    log_likelihood[2, 0] = np.nan
    assert select_by_likelihood(log_likelihood, 3).indices.tolist() == [0, 3, 1]
    assert 2 not in select_by_likelihood(log_likelihood, 2, "top").indices
    loss = select_by_likelihood(log_likelihood[1:2], 1).loss  # Probability 0 costs about 708 nats.
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
    likelihood, weight = rng.normal(size=(12, 120)), np.repeat([1.0, 0.0], 60)
    expected = select_by_likelihood(likelihood[:, :60], 8, use_best=True)
    undefined = np.append(likelihood, np.full((1, 120), 9.0), axis=0)
    undefined[-1, 7] = np.nan
    chosen = select_by_likelihood(undefined, 8, use_best=True, sample_weight=weight)
    assert_array_equal(chosen.indices, expected.indices)
    assert 2 <= len(chosen) < 8
    weight[1:] = 0.0  # all of the weight is in one fold
    assert len(select_by_likelihood(likelihood, 5, use_best=True, sample_weight=weight)) == 5
    # Copies add nothing: with groups the size stays what it is on the rows once.
    rng = np.random.default_rng(1)
    y, proba = rng.integers(2, size=200), rng.normal(0.5, 0.25, size=(40, 200)).clip(0.02, 0.98)
    once = np.log(np.where(y == 1, proba, 1 - proba))
    five, groups = np.tile(once, 5), np.tile(np.arange(200), 5)
    size = len(select_by_likelihood(once, 20, use_best=True))
    assert len(select_by_likelihood(five, 20, use_best=True, groups=groups)) == size
    assert len(select_by_likelihood(five, 20, use_best=True)) < size
    # Three good candidates and many that say little: more than three only dilute.
    rng = np.random.default_rng(0)
    good, bad = rng.uniform(0.5, 0.99, size=(3, 400)), rng.uniform(0.05, 0.2, size=(20, 400))
    log_likelihood = np.log(np.concatenate([bad, good]))
    chosen = select_by_likelihood(log_likelihood, 10, use_best=True)
    assert sorted(chosen.indices) == [20, 21, 22]
    assert len(select_by_likelihood(log_likelihood[:, :49], 10, use_best=True)) == 10


def draw(seed, n_models):
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=60)
    return rng.normal(0.6, 1, (n_models, 60)) + hard > 0


def by_rows(right, measure):
    """Formulas 1 to 7 as the paper writes them: pair by pair, or row by row."""
    size, n = right.shape
    if measure in ("qs", "bd", "ck", "ck-formula-1"):
        values = []
        for a, b in combinations(right, 2):
            n11, n10, n01, n00 = (x.sum() for x in (a & b, a & ~b, ~a & b, ~a & ~b))
            top, r1, r0, c1, c0 = n11 * n00 - n01 * n10, n11 + n10, n01 + n00, n11 + n01, n10 + n00
            of_pair = {"qs": top / (n11 * n00 + n01 * n10), "bd": 1 - (n01 + n10) / n}
            of_pair |= {"ck": 2 * top / (r1 * c0 + c1 * r0)}
            values.append((of_pair | {"ck-formula-1": 2 * top / (r1 * r0 + c1 * c0)})[measure])
        return np.mean(values)
    good = right.sum(axis=0)  # l_k
    if measure == "fk":
        p = right.mean()
        return 1 - (good * (size - good)).sum() / (n * size * (size - 1) * p * (1 - p))
    if measure == "kw":
        return 1 - (good * (size - good)).sum() / (n * size**2)
    share = np.bincount(size - good, minlength=size + 1) / n  # p_i
    i = np.arange(size + 1)
    return (i * (i - 1) / (size * (size - 1)) * share).sum() / (i / size * share).sum()


@pytest.mark.parametrize("measure", MEASURES)
def test_diversity_score_is_the_papers_formula(measure, global_random_seed):
    for size in (2, 3, 5):
        right = draw(global_random_seed, size)
        expected = by_rows(right, measure)
        assert_allclose(diversity_score(right, measure=measure), expected, atol=1e-12)


def test_diversity_score_is_that_of_other_libraries_and_of_limit_cases(rng):
    right = rng.random((4, 80)) < 0.6
    table, _ = aggregate_raters(right.T.astype(int))
    assert_allclose(diversity_score(right, measure="fk"), fleiss_kappa(table), atol=1e-12)
    cohen = np.mean([cohen_kappa_score(a, b) for a, b in combinations(right, 2)])
    assert_allclose(diversity_score(right, measure="ck"), cohen, atol=1e-12)
    never, always = np.zeros((3, 5), bool), np.ones((3, 5), bool)
    opposite = np.array([[True, False, True, False], [False, True, False, True]])
    equal = {"ck": 0.0, "ck-formula-1": 0.0, "qs": 0.0, "bd": 1.0, "fk": 1.0, "kw": 1.0, "gd": 1.0}
    other = {"ck": -1, "ck-formula-1": -1, "qs": -1, "bd": 0, "fk": -1, "kw": 0.75, "gd": 0}
    same = np.array([[True, False, True]] * 3), dict.fromkeys(MEASURES, 1.0)
    limits = [(never, equal), (always, equal), (never[:, :0], equal), (opposite, other), same]
    for right, expected in limits:
        assert {m: diversity_score(right, measure=m) for m in MEASURES} == expected
    right = np.ones((2, 200_000), dtype=bool)
    right[0, 0] = right[1, 1] = False
    assert diversity_score(right, measure="qs") == -1
    assert_allclose(diversity_score(right, measure="ck"), 0, atol=1e-5)
    assert diversity_score(right, measure="gd") == 0


def pool(seed, n_models=5, n_samples=90):
    """Probabilities of models of unequal strength that find the same rows hard."""
    rng = np.random.default_rng(seed)
    y, logits = rng.integers(0, 3, n_samples), rng.normal(size=(n_models, n_samples, 3))
    ease = rng.normal(1, 1, n_samples) + rng.normal(0, 0.5, (n_models, 1))
    logits[:, np.arange(n_samples), y] += ease
    return np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True), y


def literal(labels, y, measure, beta, score):
    """Algorithms 2 and 3 as printed (errata for ties), with dictionaries and loops."""
    right, n_models = labels == y, len(labels)
    accuracy, union = right.mean(axis=1), ~right.all(axis=0)
    pruned, table = [], {}

    def score_of(team, rows):
        return diversity_score(right[list(team)][:, rows], measure=measure)

    for size in range(2, n_models + 1):
        every = combinations(range(n_models), size)
        teams = [team for team in every if not any(set(bad) <= set(team) for bad in pruned)]
        scaled = {}
        for focal in range(n_models):
            scores = {t: score_of(t, ~right[focal]) for t in teams if focal in t}
            low, high = min(scores.values(), default=0), max(scores.values(), default=0)
            for t, value in scores.items():
                plain = size == n_models or high == low
                scaled[t, focal] = value if plain else (value - low) / (high - low)
        for t in teams:
            ranks = stats.rankdata(accuracy[list(t)])
            hq = np.average([scaled[t, focal] for focal in t], weights=ranks)
            table[t] = score_of(t, union), hq, vote(labels, y, t)
        used = 1 if score == "hq" else 0
        worst = sorted(teams, key=lambda t: (-round(table[t][used], 12), table[t][2], t))
        pruned += worst[: int(beta * len(teams) + 1e-9)]
    return table, pruned


def vote(labels, y, team, voting="hard", weights=None):
    """Accuracy of a team's votes, row by row."""
    accuracy = (labels == y).mean(axis=1)
    order = sorted(team, key=lambda model: (-accuracy[model], model))
    votes, right = accuracy[order] if weights else np.ones(len(team)), 0
    for row, truth in zip(labels[order].T, y):
        won = [round(votes[row == label].sum(), 9) for label in row]
        enough = max(won) > votes.sum() / 2 + 1e-9 or voting == "hard"
        right += enough and row[int(np.argmax(won))] == truth  # the first, so the most accurate
    return right / len(y)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("score", ["hq", "q"])
def test_select_teams_scores_and_alpha_are_the_algorithms(measure, score, global_random_seed):
    proba, y = pool(global_random_seed)
    labels = proba.argmax(axis=2)
    table, pruned = literal(labels, y, measure, 0.2, score)
    settings = {"metric": measure, "diversity": score, "filters": ("alpha",), "beta": 0.2}
    got = select_teams(labels, y, **settings).teams_.set_index("team")
    scored = got.dropna()
    assert set(scored.index) == set(table) and set(scored.index[~scored["alpha"]]) == set(pruned)
    for team, expected in table.items():
        assert_allclose(scored.loc[[team], ["q", "hq", "accuracy"]], [expected], atol=1e-9)
    unscored = got[got["hq"].isna()]
    assert len(got) == 26 and not unscored["kept"].any()
    assert all(any(set(bad) <= set(team) for bad in pruned) for team in unscored.index)


def accuracies_of_teams(labels, y, **settings):
    table = select_teams(labels, y, filters=(), **settings).teams_
    return dict(zip(table["team"], table["accuracy"]))


@pytest.mark.parametrize("weights", [None, "accuracy"])
def test_select_teams_votes(weights, global_random_seed):
    proba, y = pool(global_random_seed)
    proba[1] = np.eye(3)[(y + 1) % 3]  # never right
    labels = proba.argmax(axis=2)
    accuracy = (labels == y).mean(axis=1)
    for team, served in accuracies_of_teams(proba, y, weights=weights).items():
        members = list(team)
        mean = np.average(proba[members], axis=0, weights=accuracy[members] if weights else None)
        assert_allclose(served, (mean.argmax(axis=1) == y).mean(), atol=1e-12)
    for voting in ("hard", "majority"):
        settings = {"voting": voting, "weights": weights}
        found = accuracies_of_teams(labels, y, **settings)
        expected = [vote(labels, y, team, **settings) for team in found]
        assert_allclose(list(found.values()), expected, atol=1e-12)
        # Probabilities vote as the labels do that they make most probable.
        assert accuracies_of_teams(proba, y, **settings) == found
    y[:9] = 9  # a class that no model gives
    found = accuracies_of_teams(labels, y)
    assert_allclose(list(found.values()), [vote(labels, y, team) for team in found])


def test_select_teams_breaks_ties_and_takes_members_that_are_never_right():
    # Right on 3, 5 and 8 of 10 rows, the third wherever the others are: 3 + 5 against 8 is a tie.
    y = np.zeros(10, int)
    labels = (np.repeat([[3], [5], [8]], 10, axis=1) <= np.arange(10)).astype(int)
    for voting, expected in (("hard", 0.8), ("majority", 0.5)):
        given = accuracies_of_teams(labels, y, voting=voting, weights="accuracy")
        assert given[0, 1, 2] == expected
    chosen = select_teams(labels, y, filters=(), weights="accuracy", max_team_size=2)
    assert chosen.selected_ == (0, 2)
    assert_allclose(chosen.selection.weights, [3 / 11, 8 / 11])
    assert select_teams(np.eye(2)[[[0, 0], [1, 1]]], [0, 1]).teams_["accuracy"].tolist() == [0.5]
    # Members that are never right vote alike.
    chosen = select_teams([[1, 1, 1], [1, 2, 1]], [0, 0, 0], weights="accuracy")
    assert chosen.teams_["accuracy"].max() == 0 and chosen.selected_ == (0, 1)
    assert_allclose(chosen.weights_, [0.5, 0.5])
    chosen = select_teams([[1, 1, 1], [0, 0, 1]], [0, 0, 0], weights="accuracy")
    assert_allclose(chosen.teams_["accuracy"], 2 / 3)
    assert 0 < chosen.weights_[0] < 1e-8


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_select_teams_counts_weights_as_repeated_rows(voting, rng):
    proba, y = pool(0)
    repeats, settings = rng.integers(0, 4, len(y)), {"voting": voting, "metric": [*MEASURES]}
    weighted = select_teams(proba, y, sample_weight=1e-200 * repeats, **settings)
    proba, y = np.repeat(proba, repeats, axis=1), np.repeat(y, repeats)
    repeated = select_teams(proba, y, **settings)
    assert weighted.selected_ == repeated.selected_
    columns = ["q", "hq", "accuracy"]
    assert_allclose(weighted.teams_[columns], repeated.teams_[columns], atol=1e-9)


@pytest.mark.parametrize("empty_sizes", ["keep", "drop"])
def test_select_teams_filters_by_the_mean_and_weak_cluster(empty_sizes, global_random_seed):
    proba, y = pool(global_random_seed)
    chosen = select_teams(proba, y, diversity="q", filters=("mean",))  # algorithm 1
    teams, mean = chosen.teams_, chosen.teams_["q"].mean()
    assert_array_equal(teams["kept"], teams["q"] < mean)
    assert set(teams["reason"][~teams["kept"]]) == {f"mean: q not below {mean:.4g}"}
    assert chosen.thresholds_ == (("mean", "q", None, mean),)
    proba, y = pool(global_random_seed, n_models=7)
    before = select_teams(proba, y, metric="qs", filters=("alpha",)).teams_
    chosen = select_teams(proba, y, metric="qs", empty_sizes=empty_sizes)
    after, cuts = chosen.teams_, {cut.size: cut.value for cut in chosen.thresholds_}
    for size, group in before[before["kept"]].groupby("size"):
        kept, points = after["kept"][group.index], group[["hq", "accuracy"]].to_numpy()
        spread = np.ptp(points, axis=0)
        if len(group) < 3 or not spread.all():
            # Equal scores: none is below the weak cluster's.
            assert set(kept) == {len(group) < 3 or empty_sizes == "keep"}
            continue
        points = (points - points.min(axis=0)) / spread
        corners = np.array([[0.0, 1.0], [1.0, 0.0]])
        centres, labels = kmeans2(points, corners, iter=100, minit="matrix")
        threshold = group["hq"][labels == centres[:, 1].argmin()].min()
        below = group["hq"] < threshold
        is_cut = below.any() or empty_sizes == "drop"
        assert cuts.get(size) == (threshold if is_cut else None)
        assert_array_equal(kept, below if is_cut else True)


def test_select_teams_serves_the_most_accurate_or_by_a_rule_and_several_measures():
    chosen = select_teams(*pool(3, n_models=6, n_samples=40))
    survivors = chosen.teams_[chosen.teams_["kept"]]
    order = survivors.sort_values(["accuracy", "size", "hq"], ascending=[False, True, True])
    best, selection = order.iloc[0], chosen.selection
    assert (survivors["accuracy"] == best["accuracy"]).sum() > 1
    assert chosen.selected_ == tuple(selection.indices) == best["team"]
    assert_array_equal(np.flatnonzero(chosen.support_), best["team"])
    assert_allclose(selection.weights, 1 / best["size"])
    assert_allclose(selection.loss, -best["accuracy"])
    proba, y = pool(3)
    chosen = select_teams(proba, y, choose=lambda survivors: survivors["hq"].idxmin())
    kept = chosen.teams_[chosen.teams_["kept"]]
    assert chosen.selected_ == kept.loc[kept["hq"].idxmin(), "team"]
    frames = [select_teams(proba, y, metric=m, filters=()).teams_ for m in ("gd", "kw")]
    both = select_teams(proba, y, metric=["gd", "kw"], filters=()).teams_
    mean = sum(frame[["q", "hq"]] for frame in frames) / 2
    assert_allclose(both[["q", "hq"]], mean, atol=1e-9)


def test_select_teams_of_identical_and_perfect_models_and_any_labels():
    chosen = select_teams([[0, 1, 1, 1]] * 4, [0, 1, 0, 1])
    assert chosen.selected_ == (0, 1) and set(chosen.teams_["hq"]) == {1.0}
    assert all(reason.startswith("kmeans skipped") for reason in chosen.teams_["reason"])
    # Where no team of any size were left, all of them are.
    alike = [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]
    chosen = select_teams(alike, [1] * 6, max_team_size=2, filters=("kmeans",), empty_sizes="drop")
    assert chosen.teams_["kept"].tolist() == [True] * 3
    proba, y = pool(0)
    chosen = select_teams([y, *proba.argmax(axis=2)], y)
    assert 0 in chosen.selected_
    pairs = chosen.teams_[chosen.teams_["size"] == 2].set_index("team")["hq"]
    # Pairs are scaled over the teams of one focal model. With any model but 0 as the focal one,
    # no pair is more diverse than that with model 0, which is right where the focal one errs.
    assert_allclose([pairs[0, k] for k in range(1, 6)], 0)
    chosen = select_teams([["yes", "no", "no"], ["no", "no", "no"]], ["yes", "no", "no"])
    assert_allclose(chosen.accuracies_, [1, 2 / 3])
    numbers = np.array([[1, 2, 2], [2, 2, 1]], dtype=object)
    assert select_teams(numbers, [1, 2, 2]).accuracies_[0] == 1
    proba = [[[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]]] * 2
    for classes in (None, ["no", "yes"]):
        teams = select_teams(proba, ["yes", "no", "no"], classes=classes).teams_
        assert teams["accuracy"].tolist() == [1.0]


def test_select_teams_counts_teams_before_they_are_made(monkeypatch, rng):
    with monkeypatch.context() as patch:
        patch.setattr("skuq.ensembles._pruning._MOST_SCORED", 100)
        for n_models, settings, message in (
            (26, {}, r"26 models has 67,108,837 teams.*`max_team_size`"),
            (22, {"filters": ("mean",)}, "Without the alpha filter"),
            (286, {"max_team_size": 2}, "at most 256 models"),
            (10, {"beta": 0.0}, "More than 100 teams of 3 models"),
        ):
            with pytest.raises(ValueError, match=message):
                select_teams(np.eye(n_models, 10, dtype=int), np.zeros(10, int), **settings)
    # In a large pool not all teams are scored: only those that were are listed.
    y = rng.integers(0, 3, 100)
    labels = np.where(rng.random((18, 100)) < 0.6, y, rng.integers(0, 3, (18, 100)))
    chosen = select_teams(labels, y, beta=0.3)
    assert chosen.n_possible_ == 2**18 - 19 and len(chosen.teams_) == chosen.n_scored_ < 5000
    assert select_teams(labels, y, max_team_size=2).n_possible_ == 153


@cases(
    ("change", "message"),
    ({"predictions": [[0, 1, 1]]}, "at least two models"),
    ({"predictions": np.zeros((2, 0)), "y": []}, "at least one row"),
    ({"y": [0, 1]}, "must have shape"),
    ({"y": [0, np.nan, 1]}, "no missing values"),
    ({"predictions": np.ma.masked_equal([[0, 1, 1], [0, 2, 1]], 2)}, "no missing values"),
    ({"predictions": [["a", "b", "a"]] * 2}, "no label"),
    ({"predictions": 1.8 * HALF}, "probabilities"),
    ({"predictions": HALF, "y": [0, 1, 2]}, "columns"),
    ({"predictions": HALF, "y": [*"abc"], "classes": [*"ab"]}, "not in `cl"),
    ({"voting": "soft"}, "needs probabilities"),
    ({"voting": "loud"}, "'voting' parameter of select_teams must be"),
    ({"metric": []}, "at least one"),
    ({"filters": "alpha"}, "instance of 'list'"),
    ({"filters": ("alpha", "alpha")}, "distinct"),
    ({"choose": lambda survivors: -5}, "label of the index"),
    ({"sample_weight": [0, 0, 0]}, "zero|All are 0"),
)
def test_select_teams_refuses(change, message):
    arguments = {"predictions": [[0, 1, 1], [0, 0, 1]], "y": [0, 1, 1], **change}
    with pytest.raises(ValueError, match=message):
        select_teams(**arguments)


def candidates(seed, n=7):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=150)
    return y, y + rng.normal(0, rng.uniform(0.2, 0.6, (n, 1)), (n, 150)), np.full((n, 150), 0.4)


def test_select_hq_judges_teams_by_the_nll_of_their_mixture(global_random_seed):
    y, loc, scale = candidates(global_random_seed)
    chosen = select_hq(y, loc, scale, 3)
    team = chosen.indices
    mean = loc[team].mean(axis=0)
    std = np.sqrt((scale[team] ** 2 + loc[team] ** 2).mean(axis=0) - mean**2)
    assert_allclose(chosen.loss, -stats.norm(mean, std).logpdf(y).mean(), rtol=1e-9)
    two = [np.stack([a, a], axis=-1) for a in (y, loc, scale)]
    assert_array_equal(select_hq(*two, 3).indices, team)
    weight = np.r_[np.ones(100), np.zeros(50)]
    part = select_hq(y[:100], loc[:, :100], scale[:, :100], 3)
    assert_array_equal(select_hq(y, loc, scale, 3, sample_weight=weight).indices, part.indices)
    copies = [0, 0, *range(7)]  # 0, 1 and 2 are one
    chosen = select_hq(y, loc[copies], scale[copies], 4)
    assert len({0, 1, 2} & set(chosen.indices.tolist())) <= 1
    assert len(select_hq(*candidates(1, n=60), 3).indices) <= 3
    y, loc, scale = candidates(0)
    loc[1:] = np.nan
    assert select_hq(y, loc, scale, 3).indices.tolist() == [0]
    with pytest.raises(ValueError, match="finite loss"):
        select_hq(y, loc * np.nan, scale, 3)


def log_likelihood(seed, n_models):
    return np.random.default_rng(seed).normal(size=(n_models, 60))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("n_models", "weighted"), [(2, True), (3, False)])
def test_stacking_weights_are_scipys_optimum(seed, n_models, weighted):
    given = log_likelihood(seed, n_models) + np.linspace(0.3, -0.1, n_models)[:, None]
    rows = np.random.default_rng(seed).uniform(0, 3, 60) if weighted else None

    def loss(logits):
        mixed = special.logsumexp(given, axis=0, b=special.softmax(logits)[:, None])
        return -np.average(mixed, weights=rows)

    settings = {"xatol": 1e-8, "fatol": 1e-12}
    best = optimize.minimize(loss, np.zeros(n_models), method="Nelder-Mead", options=settings)
    found = stack(given, rows, np.zeros(n_models))
    assert_allclose(loss(np.log(found)), best.fun, atol=1e-5)
    assert_allclose(found, special.softmax(best.x), atol=1e-2)


def test_stacking_weights_count_a_weight_of_two_twice_and_of_impossible_rows(rng):
    given, rows = log_likelihood(3, 3), rng.integers(0, 4, 60)
    none = np.zeros(3)
    repeated = stack(np.repeat(given, rows, axis=1), prior=none)
    assert_allclose(stack(given, rows, none), repeated, rtol=1e-9)
    assert abs(stack(given, prior=none) - repeated).max() > 0.01
    assert_allclose(stack(given + np.linspace(-5000, 5000, 60)), stack(given), atol=1e-9)
    # Twenty further rows count for all models alike.
    assert_allclose(stack(given), stack(given, prior=np.full(3, 20 / 3)))
    # A further row is one that one model alone predicts.
    alone = np.log(np.eye(3)[[0, 2, 2]].T + 1e-300)
    further = stack(np.append(given, alone, axis=1), prior=none)
    assert_allclose(stack(given, prior=[1.0, 0.0, 2.0]), further, atol=1e-5)
    given = log_likelihood(2, 2)
    given[0, :5] = -np.inf  # possible by the second only, which must not get 0
    found = stack(given, prior=np.zeros(2))
    assert 0 < found[1] < 1
    impossible = np.append(given, np.full((2, 3), -np.inf), axis=1)
    assert_allclose(stack(impossible, prior=np.zeros(2)), found)
    assert_allclose(stack(np.full((4, 3), -np.inf)), 0.25)


@cases(
    ("given", "options", "message"),
    ([0.1, 0.2], {}, "`held_out_log_density` must have shape"),
    (np.zeros((0, 2)), {}, "`held_out_log_density` must have shape"),
    ([[0.0, np.nan]], {}, "`held_out_log_density` must have shape"),
    (np.zeros((2, 3)), {"row_weight": [1.0, 2.0]}, "sample_weight.shape"),
    (np.zeros((2, 3)), {"row_weight": [1.0, -1.0, 1.0]}, "Negative values"),
    (np.zeros((2, 3)), {"row_weight": np.zeros(3)}, "non-zero|All are 0"),
    (np.zeros((2, 3)), {"prior": [1.0, -1.0]}, "`prior` must have 2 numbers >= 0"),
)
def test_stacking_weights_refuse(given, options, message):
    with pytest.raises(ValueError, match=message):
        stack(given, **options)


def classifiers(n):
    """Ten classifiers of n rows, of which the eighth is a little better."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    signal = np.array([1.0] * 7 + [2.0] + [1.0] * 2)[:, None, None] * np.eye(3)[y]
    raw = signal + rng.normal(size=(10, n, 3))
    return _rules.Candidates(raw, y[:, None].astype(float), CategoricalHead(3), is_unseen=True)


@pytest.mark.parametrize(("n", "chosen"), [(5, {0, 1, 2, 3, 4}), (2000, {7})])
def test_stacking_selection_needs_rows_to_leave_the_first_candidates(n, chosen):
    candidates = classifiers(n)
    selection = StackingSelection().choose(candidates, 5)
    first = selection.indices if n == 5 else selection.indices[:1]
    assert chosen >= set(first) and 2 <= len(selection) <= 5
    assert_allclose(selection.weights.sum(), 1)
    mixed = np.tensordot(selection.weights, candidates.proba[selection.indices], 1)
    assert_allclose(selection.loss, log_loss(candidates.codes, mixed, labels=range(3)))


def test_automatic_selection_stacks_unseen_rows_and_mixtures_get_a_temperature():
    candidates, rule = classifiers(200), _rules.AutomaticSelection(ForwardSelection())
    stacked = rule.choose(candidates, 3)
    assert_allclose(stacked.loss, StackingSelection().choose(candidates, 3).loss)
    assert_allclose(rule.choose(replace(candidates, is_unseen=False), 3).weights, 1 / 3)
    y = candidates.y
    raw = [np.hstack([y + scale, np.zeros_like(y)]) for scale in (3.0, 2.0, 0.1)]
    normals = replace(candidates, head=GaussianHead(1), raw=raw)
    assert StackingSelection(min_members=1).choose(normals, 3).indices.tolist() == [2]
    # Logits that are a tenth larger get a temperature that is: it is not one of a grid.
    candidates, weights = classifiers(3000), np.full(10, 0.1)
    scaled = [replace(candidates, raw=f * np.log(candidates.proba)) for f in (6, 6.6)]
    one, two = (c.fit_class_mixture(weights=weights) for c in scaled)
    assert_allclose(one[0], weights)
    assert 1.05 < two[1].temperature / one[1].temperature < 1.15 and 0 < sum(one[1].constant) < 0.05
    # A class of one row is never predicted for rows held out; it may come again all the same.
    candidates, shares = classifiers(500), np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.pad(candidates.raw, ((0, 0), (0, 0), (0, 1)), constant_values=-10.0)
    given = logits, candidates.codes, np.ones(500), shares
    constant = np.array(_stacking.fit_class_mixture(*given)[1].constant)
    assert constant[3] == 0.05
    assert_allclose(np.ptp(constant[:3] / shares[:3]), 0, atol=1e-12)
    assert constant[0] < 0.5 * shares[0]


@pytest.mark.parametrize("n", [10, 24])
def test_shares_get_what_few_rows_do_not_give_to_models(n, rng):
    codes = np.arange(n) % 2
    logits = rng.normal(scale=2.0, size=(3, n, 2)) + 6 * np.eye(2)[codes]
    _, found = _stacking.fit_class_mixture(logits, codes, np.ones(n), np.full(2, 0.5))
    assert 0.3 < sum(found.constant) * (n + 20.3) < 0.45  # a row of shares predicts half as well
