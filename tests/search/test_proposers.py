import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq._seeds import generator
from skuq._space import Categorical, Real, Space
from skuq.catalog import TrialRecord
from skuq.networks import DenseSkipSpace
from skuq.search import STRATEGIES, AgeingEvolution, ForestOptimizer, ForestSurrogate, make_proposer
from skuq.search._strategies import population_sizes

LETTERS = Space([Categorical(name, tuple("abcdef")) for name in ("p", "q", "r")])


def records(space, n, seed=0, score=lambda configuration: 0.0):
    rng = np.random.default_rng(seed)
    drawn = space.sample_many(rng, n)
    return [TrialRecord(i, c, score=score(c)) for i, c in enumerate(drawn)]


def test_evolution_mutates_the_best_of_the_sample():
    history = records(LETTERS, 10)
    scored = [TrialRecord(r.trial_number, r.configuration, score=float(i != 7))
              for i, r in enumerate(history)]  # fmt: skip
    evolve = AgeingEvolution(LETTERS, population_size=10, sample_size=10)
    best = scored[7].configuration
    for seed in range(20):
        child = evolve.ask(scored, [], np.random.default_rng(seed))
        assert sum(child[name] != best[name] for name in LETTERS.names) == 1


def test_evolution_forgets_the_oldest():
    """The best is too old to be in the population: it is never the parent."""
    best = TrialRecord(0, dict.fromkeys("pqr", "a"), score=-10.0)
    young = [TrialRecord(i, dict.fromkeys("pqr", "f"), score=0.0) for i in range(1, 5)]
    evolve = AgeingEvolution(LETTERS, population_size=4, sample_size=4)
    for seed in range(20):
        child = evolve.ask([best, *young], [], np.random.default_rng(seed))
        assert sorted(child.values()).count("f") == 2


def test_evolution_is_random_until_the_population_is_full():
    history = [TrialRecord(i, dict.fromkeys("pqr", "a"), score=0.0) for i in range(5)]
    failed = TrialRecord(5, dict.fromkeys("pqr", "a"), status="failed")
    evolve = AgeingEvolution(LETTERS, population_size=6, sample_size=2)
    children = [
        evolve.ask([*history, failed], [], np.random.default_rng(seed)) for seed in range(50)
    ]
    distances = [sum(value != "a" for value in child.values()) for child in children]
    assert max(distances) == 3  # not mutants of "aaa"


def test_sample_of_one_is_a_uniform_parent():
    history = [TrialRecord(i, {"p": c, "q": "a", "r": "a"}) for i, c in enumerate("abcdef")]
    evolve = AgeingEvolution(LETTERS, population_size=6, sample_size=1)
    drawn = {evolve.ask(history, [], np.random.default_rng(s))["p"] for s in range(100)}
    assert drawn == set("abcdef")


def test_forest_std_is_the_law_of_total_variance():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 2)), rng.normal(size=80)
    surrogate = ForestSurrogate(n_estimators=7, min_samples_leaf=5).fit(x, y)
    mean, std = surrogate.predict(x[:9])
    # Each tree predicts its leaf's training rows (bootstrap weights: from the tree itself).
    trees = surrogate._forest.estimators_
    assert_allclose(mean, np.mean([t.predict(x[:9]) for t in trees], axis=0))
    within = np.mean([t.tree_.impurity[t.apply(x[:9])] for t in trees], axis=0)
    between = np.var([t.predict(x[:9]) for t in trees], axis=0)
    assert_allclose(std, np.sqrt(within + between))


def test_bayesian_optimisation_finds_a_minimum():
    space = Space([Real("x", 1e-4, 1e-1, log=True), Categorical("k", ("good", "bad"))])

    def score(c):
        return (np.log10(c["x"]) + 2.5) ** 2 + (c["k"] == "bad")

    history = records(space, 10, score=score)
    optimise = ForestOptimizer(space, n_candidates=1000)
    for i in range(10, 40):
        c = optimise.ask(history, [], generator(0, "ask", i))
        history.append(TrialRecord(i, c, score=score(c)))
    late = [r.configuration for r in history[25:]]
    assert np.mean([c["k"] == "good" for c in late]) > 0.8
    assert np.median([abs(np.log10(c["x"]) + 2.5) for c in late]) < 0.3


def test_failed_and_running_trials_enter_the_model():
    """Failures repel; with exploration, running trials (the liar) do so as well."""
    space = Space([Real("x", 0.0, 1.0)])
    good = [TrialRecord(i, {"x": 0.2 + 0.01 * i}, score=1.0) for i in range(10)]
    failed = [TrialRecord(i, {"x": 0.5 + 0.05 * i}, status="failed") for i in range(10)]
    better = TrialRecord(99, {"x": 0.25}, score=0.0)
    bad = TrialRecord(98, {"x": 0.45}, score=5.0)
    drawn = [
        ForestOptimizer(space).ask([*good, better, bad, *failed], [], np.random.default_rng(s))["x"]
        for s in range(10)
    ]
    assert max(drawn) < 0.45


def test_diverged_scores_do_not_swamp_the_model():
    space = Space([Real("x", 0.0, 1.0)])
    history = [TrialRecord(i, {"x": i / 20}, score=(i / 20 - 0.3) ** 2) for i in range(20)]
    history.append(TrialRecord(20, {"x": 1.0}, score=1e30))
    drawn = [ForestOptimizer(space).ask(history, [], np.random.default_rng(s))["x"]
             for s in range(10)]  # fmt: skip
    assert abs(np.median(drawn) - 0.3) < 0.15


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_proposes_complete_configurations(strategy):
    decisions = DenseSkipSpace(n_nodes=3, max_batch_size=32).decisions()
    both = decisions.architecture + decisions.hyperparameters
    proposer = make_proposer(strategy, decisions, n_trials=30)
    history = []
    for i in range(30):
        c = proposer.ask(history, [], generator(1, "ask", i))
        assert both.check(c, "c") == c
        history.append(TrialRecord(i, c, score=float(i % 7)))


def test_what_each_strategy_leaves_fixed():
    decisions = DenseSkipSpace(n_nodes=3).decisions()
    architecture, recipe = {"node_1": "16-relu"}, {"optimizer": "sgd"}

    def varied(strategy):
        proposer = make_proposer(
            strategy, decisions, 10, fixed_architecture=architecture, fixed_hyperparameters=recipe
        )
        drawn = [proposer.ask([], [], np.random.default_rng(s)) for s in range(30)]
        assert all(c["node_1"] == "16-relu" and c["optimizer"] == "sgd" for c in drawn)
        return {name for name in drawn[0] if len({c[name] for c in drawn}) > 1}

    nodes = set(decisions.architecture.names) - {"node_1"}
    hyper = set(decisions.hyperparameters.names) - {"optimizer"}
    assert varied("init") == set()
    assert varied("age") == nodes
    assert varied("bo") == hyper
    assert varied("agebo") == varied("rs-mixed") == nodes | hyper


def test_unknown_names_are_refused():
    decisions = DenseSkipSpace().decisions()
    with pytest.raises(ValueError, match="`search` must be one of"):
        make_proposer("grid", decisions, 10)
    with pytest.raises(ValueError, match="fixed_architecture.*unknown"):
        make_proposer("age", decisions, 10, fixed_architecture={"layer": 1})
    with pytest.raises(ValueError, match=r"fixed_hyperparameters\['learning_rate'\].*Got 5"):
        make_proposer("age", decisions, 10, fixed_hyperparameters={"learning_rate": 5})


@pytest.mark.parametrize(
    ("n_trials", "expected"), [(500, (100, 10)), (100, (25, 8)), (30, (7, 2)), (5, (4, 2))]
)
def test_populations_shrink_with_the_budget(n_trials, expected):
    assert population_sizes(n_trials) == expected
    assert expected[0] < n_trials  # there is something left to evolve
    assert population_sizes(n_trials, 3, 50) == (3, 3)
