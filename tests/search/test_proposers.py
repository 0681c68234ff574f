import warnings

import numpy as np
import pytest
from heads import bound_tabular_space
from numpy.testing import assert_allclose
from plans import without_names
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from tiers import cases

from skuq import search
from skuq._random import generator
from skuq.networks import Categorical, Decisions, DenseSpace, Real, Space
from skuq.search import TrialRecord, _proposers, _strategies

LETTERS = Space([Categorical(name, tuple("abcdef")) for name in ("p", "q", "r")])
UNIT = Space([Real("x", 0.0, 1.0)])
SMALL = Decisions(LETTERS, UNIT)
#: Strategies by their short forms in AutoDEUQ.
STRATEGIES = {
    "agebo": search.AgEBO(),
    "age": search.AgE(),
    "bo": search.BayesianSearch(),
    "init": search.RandomSearch(vary="initialisation"),
    "random": search.RandomSearch(),
    "age-mixed": search.AgE(vary="both"),
    "bo-mixed": search.BayesianSearch(vary="both"),
}
#: Strategies with a forest, and those with ageing evolution.
WITH_FOREST = ("agebo", "bo", "bo-mixed")
WITH_EVOLUTION = ("agebo", "age", "age-mixed")


def make_proposer(strategy, decisions, n_trials, **settings):
    """Make the proposer of a strategy with those of the settings that it has."""
    strategy = clone(STRATEGIES[strategy])
    known = strategy.get_params()
    strategy.set_params(**{k: v for k, v in settings.items() if k in known})
    return strategy.proposer(_strategies.SearchProblem(decisions, n_trials))


def test_evolution_forgets_the_oldest():
    """The best is too old to be in the population: it is never the parent."""
    best = TrialRecord(0, dict.fromkeys("pqr", "a"), score=-10.0)
    young = [TrialRecord(i, dict.fromkeys("pqr", "f"), score=0.0) for i in range(1, 5)]
    evolve = _proposers.AgeingEvolution(LETTERS, population_size=4, sample_size=4)
    for seed in range(20):
        child = evolve.ask([best, *young], [], np.random.default_rng(seed))
        assert sorted(child.values()).count("f") == 2


def test_evolution_is_random_until_the_population_is_full():
    history = [TrialRecord(i, dict.fromkeys("pqr", "a"), score=0.0) for i in range(5)]
    failed = TrialRecord(5, dict.fromkeys("pqr", "a"), status="failed")
    evolve = _proposers.AgeingEvolution(LETTERS, population_size=6, sample_size=2)
    records, seeds = [*history, failed], map(np.random.default_rng, range(50))
    children = [evolve.ask(records, [], rng) for rng in seeds]
    distances = [sum(value != "a" for value in child.values()) for child in children]
    assert max(distances) == 3  # not mutants of "aaa"


@pytest.mark.parametrize("strategy", WITH_EVOLUTION)
@pytest.mark.parametrize(
    ("sample_size", "expected"),
    [(1, np.full(6, 1 / 6)), (2, np.arange(5, -1, -1) / 15), (6, [1, 0, 0, 0, 0, 0])],
)
def test_parents_are_the_best_of_samples_of_size_s(strategy, sample_size, expected):
    """The k-th best of P = 6 wins C(6 - k, S - 1) of C(6, S) draws without replacement."""
    configurations = [{**dict.fromkeys("pqr", c), "x": 0.1 * i} for i, c in enumerate("abcdef")]
    history = [TrialRecord(i, c, score=float(i)) for i, c in enumerate(configurations)]
    settings = {"population_size": 6, "sample_size": sample_size, "n_initial": 100}
    proposer = make_proposer(strategy, SMALL, 20, **settings)
    children = [proposer.ask(history, [], np.random.default_rng(s)) for s in range(400)]
    # One of the letters may have mutated: the other two are the parent's.
    parents = [sorted(child[name] for name in "pqr")[1] for child in children]
    share = [parents.count(c) / 400 for c in "abcdef"]
    assert_allclose(share, expected, atol=0.07)
    assert all(share[k] == 0 for k in range(6) if expected[k] == 0)


def test_forest_std_is_the_law_of_total_variance(rng):
    x, y = rng.normal(size=(80, 2)), rng.normal(size=80)
    forest = RandomForestRegressor(7, min_samples_leaf=5, random_state=0).fit(x, y)
    mean, std = _proposers.forest_moments(forest, x[:9])
    # Each tree predicts its leaf's training rows (bootstrap weights: from the tree itself).
    trees = forest.estimators_
    assert_allclose(mean, np.mean([t.predict(x[:9]) for t in trees], axis=0))
    within = np.mean([t.tree_.impurity[t.apply(x[:9])] for t in trees], axis=0)
    between = np.var([t.predict(x[:9]) for t in trees], axis=0)
    assert_allclose(std, np.sqrt(within + between))


def test_the_unit_of_scores_does_not_matter():
    """Diverged networks are clipped, but not every trial if the objective is in large units."""
    scores = {x: 1 + (x - 0.3) ** 2 for x in np.linspace(0, 1, 21).tolist()}
    optimise = _proposers.ForestOptimizer(UNIT, n_candidates=100)

    def proposed(unit):
        points = enumerate(scores.items())
        history = [TrialRecord(i, {"x": x}, score=unit * y) for i, (x, y) in points]
        return [optimise.ask(history, [], np.random.default_rng(s))["x"] for s in range(3)]

    assert_allclose(proposed(1e6), proposed(1.0))
    assert_allclose(proposed(1e6), 0.3, atol=0.1)
    history = [TrialRecord(i, {"x": i / 20}, score=(i / 20 - 0.3) ** 2) for i in range(20)]
    history.append(TrialRecord(20, {"x": 1.0}, score=1e30))
    drawn = [_proposers.ForestOptimizer(UNIT).ask(history, [], np.random.default_rng(s))["x"]
             for s in range(10)]  # fmt: skip
    assert abs(np.median(drawn) - 0.3) < 0.15


def test_failed_trials_repel():
    good = [TrialRecord(i, {"x": 0.2 + 0.01 * i}, score=1.0) for i in range(10)]
    failed = [TrialRecord(i, {"x": 0.5 + 0.05 * i}, status="failed") for i in range(10)]
    better = TrialRecord(99, {"x": 0.25}, score=0.0)
    bad = TrialRecord(98, {"x": 0.45}, score=5.0)
    records = [*good, better, bad, *failed]
    optimise = _proposers.ForestOptimizer(UNIT)
    drawn = [optimise.ask(records, [], np.random.default_rng(s))["x"] for s in range(10)]
    assert max(drawn) < 0.45


def proposed(strategy, history, running=(), **settings):
    """Values of x that a strategy proposes with five seeds; all letters are "a" before."""
    same = dict.fromkeys("pqr", "a")
    history = [TrialRecord(i, same | {"x": x}, score=y) for i, (x, y) in enumerate(history)]
    running = [same | {"x": x} for x in running]
    proposer = make_proposer(strategy, SMALL, 100, **settings)
    seeds = map(np.random.default_rng, range(5))
    return np.array([proposer.ask(history, running, rng)["x"] for rng in seeds])


@pytest.mark.parametrize("strategy", WITH_FOREST)
def test_running_trials_count_as_the_best_score(strategy):
    """Five of them, far from the best trial, draw proposals: each has the best score."""
    history = [(0.05 * i, 1.0 + i) for i in range(10)]
    assert (proposed(strategy, history) < 0.1).all()
    drawn = proposed(strategy, history, running=[0.8, 0.82, 0.84, 0.86, 0.88])
    assert (drawn > 0.6).all()


@pytest.mark.parametrize("strategy", WITH_FOREST)
def test_kappa_is_the_weight_of_exploration(strategy):
    """Scores on the left are better, those on the right differ from one neighbour to the next."""
    history = [(0.04 * i, 0.0) for i in range(10)]
    history += [(0.6 + 0.04 * i, 1.0 + 2 * (i % 2)) for i in range(10)]
    assert (proposed(strategy, history) < 0.5).all()
    assert (proposed(strategy, history, kappa=0) < 0.5).all()
    assert (proposed(strategy, history, kappa=100) > 0.5).all()


@pytest.mark.parametrize("strategy", WITH_FOREST)
def test_n_initial_configurations_are_random(strategy):
    history = [(0.1 * i, float(i)) for i in range(10)]
    assert proposed(strategy, history[:9]).max() > 0.5
    assert proposed(strategy, history).max() < 0.1
    assert proposed(strategy, history[:3], n_initial=4).max() > 0.5
    assert proposed(strategy, history[:4], n_initial=4).max() < 0.1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_proposes_complete_configurations(strategy):
    decisions = DenseSpace(n_nodes=3, max_batch_size=32).decisions()
    both = decisions.architecture + decisions.hyperparameters
    proposer = make_proposer(strategy, decisions, 30)
    history = []
    for i in range(14):  # four of them by a forest
        c = proposer.ask(history, [], generator(1, "ask", i))
        assert both.check(c, "c") == c
        history.append(TrialRecord(i, c, score=float(i % 7)))


def test_what_each_strategy_leaves_fixed():
    decisions = DenseSpace(n_nodes=3).decisions()
    architecture, recipe = {"node_1": "16-relu"}, {"optimizer": "sgd"}

    pinned = _strategies.fix_decisions(decisions, architecture | recipe)

    def varied(strategy):
        proposer = make_proposer(strategy, pinned, 10)
        drawn = [proposer.ask([], [], np.random.default_rng(s)) for s in range(30)]
        assert all(c["node_1"] == "16-relu" and c["optimizer"] == "sgd" for c in drawn)
        return {name for name in drawn[0] if len({c[name] for c in drawn}) > 1}

    nodes = set(decisions.architecture.names) - {"node_1"}
    hyper = set(decisions.hyperparameters.names) - {"optimizer"}
    assert varied("init") == set()
    assert varied("age") == nodes
    assert varied("bo") == hyper
    assert varied("agebo") == varied("random") == nodes | hyper


def test_what_each_strategy_learns_from(rng):
    """Decisions are a mutated parent's, the forest's choice, random, or the defaults."""
    drawn = (LETTERS + UNIT).sample_many(rng, 100)
    scores = [4 * abs(c["x"] - 0.3) + 0.5 * (c["p"] != "c") for c in drawn]
    history = [TrialRecord(i, c, score=y) for i, (c, y) in enumerate(zip(drawn, scores))]
    parent = min(history[-20:], key=lambda record: record.score).configuration

    def observed(strategy):
        proposer = make_proposer(strategy, SMALL, 100, population_size=20, sample_size=20)
        asked = [proposer.ask(history, [], np.random.default_rng(s)) for s in range(15)]
        changes = [{name for name in "pqrx" if c[name] != parent[name]} for c in asked]
        return {
            "one letter mutates": all(len(c - {"x"}) == 1 for c in changes),
            "one decision mutates": all(len(c) == 1 for c in changes),
            "x is the forest's": all(abs(c["x"] - 0.3) < 0.2 for c in asked),
            "p is the forest's": np.mean([c["p"] == "c" for c in asked]) > 0.8,
            "x is the default": all(c["x"] == 0 for c in asked),
            "letters are the default": all(c["p"] == c["q"] == c["r"] == "a" for c in asked),
        }

    expected = {
        "agebo": {"one letter mutates", "x is the forest's"},
        "age": {"one letter mutates", "x is the default"},
        "bo": {"letters are the default", "x is the forest's"},
        "init": {"letters are the default", "x is the default"},
        "random": set(),
        "age-mixed": {"one decision mutates"},
        "bo-mixed": {"x is the forest's", "p is the forest's"},
    }
    assert set(expected) == set(STRATEGIES)
    for strategy, facts in expected.items():
        assert {fact for fact, true in observed(strategy).items() if true} == facts, strategy


@pytest.mark.parametrize("classes", [False, True])
def test_random_search_of_tables_compiles_few_programs(classes):
    """Fifty trials have at most twenty architectures, and random ones three trainings each."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    space = bound_tabular_space(x, classes=classes, decides_loss=not classes)
    decisions = space.decisions()
    problem = _strategies.SearchProblem(decisions, 50, n_trainings=space.n_trainings)
    first = search.RandomSearch().initial_configurations(decisions, space.known_recipes(), {})
    proposer, history = _proposers.StartingWith(first, search.RandomSearch().proposer(problem)), []
    for k in range(50):
        # In whichever order trials finish, and while some of them run.
        shuffled = [history[i] for i in generator(1, "order", k).permutation(k)]
        running = [record.configuration for record in shuffled[:2]]
        asked = proposer.ask(shuffled[2:], running, generator(1, "ask", k))
        assert asked == proposer.ask(history, [], generator(1, "ask", k))
        history.append(TrialRecord(k, asked, score=0.0))
    architectures = [{k: r.configuration[k] for k in decisions.architecture.names} for r in history]
    counts = [architectures.count(architecture) for architecture in architectures]
    assert sum(1 / n for n in counts) <= 20
    of_recipes = architectures[: len(first)]
    assert {n for a, n in zip(architectures[:-3], counts) if a not in of_recipes} == {3}
    one, *_, other = (r for r, a in zip(history, architectures) if a == architectures[20])
    assert one.configuration != other.configuration
    one, other = (space.build(r.configuration, (3,), 4).to_json() for r in (one, other))
    assert without_names(one) == without_names(other)
    # Trials that differ in nothing but their architecture do not share it.
    alone = search.RandomSearch(vary="architecture").proposer(problem)
    assert alone.n_trainings == 1


@pytest.mark.parametrize(
    "n_trials, expected", [(500, (100, 10)), (100, (25, 8)), (30, (7, 2)), (5, (4, 2))]
)
def test_proposer_populations_shrink_with_the_budget(n_trials, expected):
    def sizes(**settings):
        proposer = make_proposer("age-mixed", SMALL, n_trials, **settings)
        return proposer.population_size, proposer.sample_size

    assert sizes() == expected
    assert expected[0] < n_trials  # there is something left to evolve
    assert sizes(population_size=3, sample_size=50) == (3, 3)


@pytest.mark.parametrize("strategy", [search.AgEBO, search.AgE, search.NESEvolution])
@pytest.mark.parametrize(("population_size", "warns"), [(10, True), (9, False), (None, False)])
def test_proposer_warns_of_a_population_that_is_never_full(strategy, population_size, warns):
    problem = _strategies.SearchProblem(SMALL, 10, criteria=[len])
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        strategy(population_size=population_size).proposer(problem)
    assert ["all are drawn at random" in str(w.message) for w in noted] == [True] * warns


@cases(
    ("strategy", "message"),
    (search.AgEBO(kappa=-1), "kappa.*Got -1"),
    (search.AgEBO(n_initial=0), "n_initial.*Got 0"),
    (search.AgE(vary="initialisation"), "vary.*Got 'initialisation'"),
    (search.RandomSearch(vary="depth"), "vary.*Got 'depth'"),
    (search.RandomSearch(objective=3), "objective.*Got 3"),
    (search.RandomSearch(initial_trials=[{}, 3]), "must be a list of config.*Got 3 in it"),
    (search.NESEvolution(evolve_on="noise"), "evolve_on.*Got 'noise'"),
    (search.NESEvolution(n_parents=0), "n_parents.*Got 0"),
)
def test_validate_refuses(strategy, message):
    with pytest.raises(ValueError, match=message):
        strategy.validate()
