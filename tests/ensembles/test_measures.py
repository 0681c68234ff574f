"""The six Q measures, compared with other libraries and the paper's formulas for single rows."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa
from teams import diversity_score

MEASURES = ("ck", "ck-formula-1", "qs", "bd", "fk", "kw", "gd")


def draw(seed, n_models=5, n_samples=60):
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=n_samples)
    return rng.normal(0.6, 1, (n_models, n_samples)) + hard > 0


def pairs(right):
    """N11, N10, N01, N00 of every pair."""
    for i, j in combinations(range(len(right)), 2):
        a, b = right[i], right[j]
        yield (a & b).sum(), (a & ~b).sum(), (~a & b).sum(), (~a & ~b).sum()


def by_rows(right, measure):
    """Formulas 1 to 7 as the paper writes them: pair by pair, or row by row."""
    size, n = right.shape
    of_pair = {
        "qs": lambda n11, n10, n01, n00: (n11 * n00 - n01 * n10) / (n11 * n00 + n01 * n10),
        "bd": lambda n11, n10, n01, n00: 1 - (n01 + n10) / n,
        "ck": lambda n11, n10, n01, n00: (
            2 * (n11 * n00 - n01 * n10) / ((n11 + n10) * (n10 + n00) + (n11 + n01) * (n01 + n00))
        ),
        "ck-formula-1": lambda n11, n10, n01, n00: (
            2 * (n11 * n00 - n01 * n10) / ((n11 + n10) * (n01 + n00) + (n11 + n01) * (n10 + n00))
        ),
    }
    if measure in of_pair:
        return np.mean([of_pair[measure](*counts) for counts in pairs(right)])
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
@pytest.mark.parametrize("size", [2, 3, 5])
def test_diversity_score_is_the_papers_formula(measure, size, global_random_seed):
    right = draw(global_random_seed, size)
    assert_allclose(diversity_score(right, measure=measure), by_rows(right, measure), atol=1e-12)


def test_diversity_score_kappas_equal_other_libraries(global_random_seed):
    right = np.random.default_rng(global_random_seed).random((4, 80)) < 0.6
    rated = right.astype(int)
    table, _ = aggregate_raters(rated.T)
    fleiss = diversity_score(right, measure="fk")
    assert_allclose(fleiss, fleiss_kappa(table), atol=1e-12)
    cohen = np.mean([cohen_kappa_score(a, b) for a, b in combinations(rated, 2)])
    assert_allclose(diversity_score(right, measure="ck"), cohen, atol=1e-12)


RIGHT = arrays(bool, st.tuples(st.integers(2, 6), st.integers(1, 12)))


@given(RIGHT, st.data(), st.sampled_from([1, 1e-200, 1 / 3, 1e200]))
def test_diversity_score_counts_weights_as_repeated_rows(right, data, factor):
    """Only the ratios of weights count."""
    n = right.shape[1]
    repeats = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    assume(repeats.any())
    repeated = np.repeat(right, repeats, axis=1)
    for measure in MEASURES:
        weighted = diversity_score(right, measure=measure, sample_weight=factor * repeats)
        assert_allclose(weighted, diversity_score(repeated, measure=measure), atol=1e-11)


def test_diversity_score_limit_cases():
    never, always = np.zeros((3, 5), bool), np.ones((3, 5), bool)
    for right in (never, always, never[:, :0]):
        given = {m: diversity_score(right, measure=m) for m in MEASURES}
        pairwise = {"ck": 0.0, "ck-formula-1": 0.0, "qs": 0.0, "bd": 1.0}
        assert given == {**pairwise, "fk": 1.0, "kw": 1.0, "gd": 1.0}
    same = np.array([[True, False, True]] * 3)
    assert {diversity_score(same, measure=m) for m in MEASURES} == {1.0}
    opposite = np.array([[True, False, True, False], [False, True, False, True]])
    given = {m: diversity_score(opposite, measure=m) for m in MEASURES}
    pairwise = {"ck": -1.0, "ck-formula-1": -1.0, "qs": -1.0, "bd": 0.0}
    assert given == {**pairwise, "fk": -1.0, "kw": 0.75, "gd": 0.0}


def test_diversity_score_sees_rare_errors_among_many_rows():
    right = np.ones((2, 2_000_000), dtype=bool)
    right[0, 0] = right[1, 1] = False
    assert diversity_score(right, measure="qs") == -1
    assert_allclose(diversity_score(right, measure="ck"), 0, atol=1e-6)
    assert diversity_score(right, measure="gd") == 0
    right = draw(0)
    teams = [(0, 1), (4, 2, 3), (0, 1, 2, 3, 4)]
    expected = [diversity_score(right[list(team)]) for team in teams]
    assert_allclose(diversity_score(right, teams=teams), expected, rtol=0)
