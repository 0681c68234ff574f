import numpy as np
import pytest
from scipy import stats
from tiers import cases

from skuq.networks import Categorical, Integer, Real, Space


@pytest.fixture
def space():
    numbers = Integer("batch", 1, 256, log=True), Integer("n", 10, 20)
    rate = Real("rate", 1e-4, 1e-1, log=True)
    return Space((Categorical("c", ("a", "b", "c")), *numbers, rate, Categorical("one", (5,))))


def test_log_uniform_integers_follow_their_law():
    draws = Integer("k", 1, 32, log=True).sample(np.random.default_rng(0), 50_000)
    k = np.arange(1, 33)
    expected = np.log((k + 1) / k) / np.log(33)
    _, p_value = stats.chisquare(np.bincount(draws, minlength=33)[1:], 50_000 * expected)
    assert p_value > 1e-3
    draws = Real("r", 1e-4, 1e-1, log=True).sample(np.random.default_rng(0), 20_000)
    assert stats.kstest(draws, stats.loguniform(1e-4, 1e-1).cdf).pvalue > 1e-3


def test_mutation_changes_exactly_one_decision_to_another_valid_value(space, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    changed = set()
    for _ in range(300):
        parent = space.sample(rng)
        child = space.mutate(parent, rng)
        different = [name for name in space.names if parent[name] != child[name]]
        assert len(different) == 1
        assert space.check(child, "child") == child
        changed.update(different)
    assert changed == {"c", "batch", "n", "rate"}  # "one" has nothing to change to


def test_encoding_and_defaults(space):
    a = {"c": "b", "batch": 8, "n": 12, "rate": 0.01, "one": 5}
    expected = [[0, 1, 0, np.log(8), 12, np.log(0.01), 1]]
    np.testing.assert_allclose(space.encode([a]), expected)
    big = Space((Categorical("t", tuple(range(100, 150))),))
    np.testing.assert_array_equal(big.encode([{"t": 107}]), [[7.0]])
    assert space.check({"n": np.int64(11)}, "fixed") == {**space.default(), "n": 11}


FIXED = [
    ({"x": 1}, r"fixed.*unknown decisions \['x'\]"),
    ({"n": 99}, r"fixed\['n'\].*Got 99"),
    *(({"n": value}, r"fixed\['n'\]") for value in (12.0, float("nan"), "abc", None, True)),
    *(({"rate": value}, r"fixed\['rate'\]") for value in (float("inf"), "abc", None, True)),
]


@cases(("fixed", "words"), *FIXED)
def test_check_refuses(space, fixed, words):
    with pytest.raises(ValueError, match=words):
        space.check(fixed, "fixed")


@cases(
    ("make", "words"),
    (lambda: Integer("k", 5, 4), "low <= high"),
    (lambda: Real("r", 0.0, 1.0, log=True), "log scale"),
    (lambda: Categorical("c", ()), "no choices"),
    (lambda: Space((Categorical("c", (1,)), Categorical("c", (2,)))), "must differ"),
)
def test_decisions_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_space_without_decisions_has_one_configuration(rng):
    empty = Space()
    assert empty.sample(rng) == {} and empty.sample_many(rng, 2) == [{}, {}]
    assert empty.mutate({}, rng) == {}


def test_mutation_ends_where_values_repeat_or_have_all_the_mass(rng):
    assert Space((Categorical("u", (8, 8)),)).mutate({"u": 8}, rng) == {"u": 8}
    neighbours = Space((Real("r", 1.0, float(np.nextafter(1.0, 2.0))),))
    assert neighbours.mutate({"r": 1.0}, rng)["r"] != 1.0
    skewed = Space((Integer("k", 1, 2, log=True),))
    assert {skewed.mutate({"k": 1}, rng)["k"] for _ in range(50)} == {2}
