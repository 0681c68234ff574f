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

from skuq.ensembles import _teams

MEASURES = tuple(_teams.MEASURES)


def draw(seed, n_models):
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=60)
    return rng.normal(0.6, 1, (n_models, 60)) + hard > 0


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
        pairs = combinations(right, 2)
        counts = [
            [(a & b).sum(), (a & ~b).sum(), (~a & b).sum(), (~a & ~b).sum()] for a, b in pairs
        ]
        return np.mean([of_pair[measure](*count) for count in counts])
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


def test_diversity_score_kappas_equal_other_libraries(rng):
    right = rng.random((4, 80)) < 0.6
    table, _ = aggregate_raters(right.T.astype(int))
    assert_allclose(diversity_score(right, measure="fk"), fleiss_kappa(table), atol=1e-12)
    cohen = np.mean([cohen_kappa_score(a, b) for a, b in combinations(right, 2)])
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
    opposite = np.array([[True, False, True, False], [False, True, False, True]])
    equal = {"ck": 0.0, "ck-formula-1": 0.0, "qs": 0.0, "bd": 1.0, "fk": 1.0, "kw": 1.0, "gd": 1.0}
    other = {"ck": -1, "ck-formula-1": -1, "qs": -1, "bd": 0, "fk": -1, "kw": 0.75, "gd": 0}
    same = np.array([[True, False, True]] * 3), dict.fromkeys(MEASURES, 1.0)
    limits = [(never, equal), (always, equal), (never[:, :0], equal), (opposite, other), same]
    for right, expected in limits:
        assert {m: diversity_score(right, measure=m) for m in MEASURES} == expected


def test_diversity_score_sees_rare_errors_among_many_rows():
    right = np.ones((2, 200_000), dtype=bool)
    right[0, 0] = right[1, 1] = False
    assert diversity_score(right, measure="qs") == -1
    assert_allclose(diversity_score(right, measure="ck"), 0, atol=1e-5)
    assert diversity_score(right, measure="gd") == 0
