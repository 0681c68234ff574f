import warnings
from collections import Counter

import numpy as np
import pytest
from heads import bound_tabular_space
from numpy.testing import assert_allclose
from plans import without_names
from scipy import stats
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from teams import likelihood_statistics, select_by
from tiers import cases

from skuq import search
from skuq._random import generator
from skuq.networks import Categorical, Decisions, Real, Space
from skuq.search import TrialRecord, _strategies

LETTERS = Space([Categorical(name, tuple("abcdef")) for name in ("p", "q", "r")])
UNIT = Space([Real("x", 0.0, 1.0)])
SMALL, EVOLVED = Decisions(LETTERS, UNIT), Decisions(LETTERS, Space())
SearchProblem, Mutation = _strategies.SearchProblem, _strategies.Mutation
#: Strategies by their short forms in AutoDEUQ.
STRATEGIES = {name: make() for name, make in _strategies.AUTODEUQ_STRATEGIES.items()}
del STRATEGIES["auto"]
AGE = {500: (100, 10), 100: (25, 8), 30: (7, 2), 5: (4, 2)}
#: The paper's 50 and 10 at 400; an eighth, at least 8, at most half; m half of P.
NES = {1000: (50, 10), 400: (50, 10), 200: (25, 10), 80: (10, 5), 64: (8, 4), 12: (6, 3), 1: (2, 1)}


def make_proposer(strategy, decisions, n_trials, **settings):
    strategy = clone(STRATEGIES[strategy])
    known = strategy.get_params()
    strategy.set_params(**{k: v for k, v in settings.items() if k in known})
    return strategy.proposer(SearchProblem(decisions, n_trials))


def test_evolution_is_random_until_the_population_is_full_and_forgets_the_oldest():
    history = [TrialRecord(i, dict.fromkeys("pqr", "a"), score=0.0) for i in range(5)]
    history.append(TrialRecord(5, dict.fromkeys("pqr", "a"), status="failed"))
    evolve = _strategies.AgeingEvolution(LETTERS, population_size=6, sample_size=2)
    children = [evolve.ask(history, [], np.random.default_rng(seed)) for seed in range(50)]
    assert any("a" not in child.values() for child in children)  # no mutants of "aaa"
    # The best is too old to be in the population: it is never the parent.
    best = TrialRecord(0, dict.fromkeys("pqr", "a"), score=-10.0)
    young = [TrialRecord(i, dict.fromkeys("pqr", "f"), score=0.0) for i in range(1, 5)]
    evolve = _strategies.AgeingEvolution(LETTERS, population_size=4, sample_size=4)
    for seed in range(20):
        child = evolve.ask([best, *young], [], np.random.default_rng(seed))
        assert sorted(child.values()).count("f") == 2


@pytest.mark.parametrize(
    ("sample_size", "expected"),
    [(1, np.full(6, 1 / 6)), (2, np.arange(5, -1, -1) / 15), (6, [1, 0, 0, 0, 0, 0])],
)
def test_parents_are_the_best_of_samples_of_size_s(sample_size, expected):
    """The k-th best of P = 6 wins C(6 - k, S - 1) of C(6, S) draws without replacement."""
    history = [TrialRecord(i, dict.fromkeys("pqr", c), score=i) for i, c in enumerate("abcdef")]
    evolve = _strategies.AgeingEvolution(LETTERS, 6, sample_size)
    children = [evolve.ask(history, [], np.random.default_rng(s)) for s in range(400)]
    # One of the letters has mutated: the other two are the parent's.
    parents = [sorted(child.values())[1] for child in children]
    share = [parents.count(c) / 400 for c in "abcdef"]
    assert_allclose(share, expected, atol=0.07)
    assert all(share[k] == 0 for k in range(6) if expected[k] == 0)


def test_forest_std_is_the_law_of_total_variance(rng):
    x, y = rng.normal(size=(80, 2)), rng.normal(size=80)
    forest = RandomForestRegressor(7, min_samples_leaf=5, random_state=0).fit(x, y)
    mean, std = _strategies.forest_moments(forest, x[:9])
    # Each tree predicts its leaf's training rows (bootstrap weights: from the tree itself).
    trees = forest.estimators_
    assert_allclose(mean, np.mean([t.predict(x[:9]) for t in trees], axis=0))
    within = np.mean([t.tree_.impurity[t.apply(x[:9])] for t in trees], axis=0)
    assert_allclose(std, np.sqrt(within + np.var([t.predict(x[:9]) for t in trees], axis=0)))


def proposed(history, running=(), failed=(), **settings):
    """Values of x that a forest proposes with five seeds."""
    records = [TrialRecord(0, {"x": x}, score=y) for x, y in history]
    records += [TrialRecord(0, {"x": x}, status="failed") for x in failed]
    optimise = _strategies.ForestOptimizer(UNIT, n_candidates=500, **settings)
    running, seeds = [{"x": x} for x in running], map(np.random.default_rng, range(5))
    return np.array([optimise.ask(records, running, rng)["x"] for rng in seeds])


def test_forest_explores_by_kappa_after_n_initial_away_from_failed_and_towards_running_trials():
    """Scores on the left are better, those on the right differ from one neighbour to the next."""
    history = [(0.04 * i, 0.0) for i in range(10)]
    history += [(0.6 + 0.04 * i, 1.0 + 2 * (i % 2)) for i in range(10)]
    assert (proposed(history) < 0.5).all() and (proposed(history, kappa=0) < 0.5).all()
    assert (proposed(history, kappa=100) > 0.5).all()
    history = [(0.1 * i, float(i)) for i in range(10)]
    assert proposed(history[:9]).max() > 0.5 and proposed(history).max() < 0.1
    assert proposed(history[:3], n_initial=4).max() > 0.5
    assert proposed(history[:4], n_initial=4).max() < 0.1
    # Diverged networks are clipped, but not every trial if the objective is in large units.
    x = np.linspace(0, 1, 21)
    scores = 1 + (x - 0.3) ** 2
    assert_allclose(proposed(zip(x, 1e6 * scores)), proposed(zip(x, scores)))
    assert_allclose(proposed(zip(x, scores)), 0.3, atol=0.1)
    scores[-1] = 1e30
    assert abs(np.median(proposed(zip(x, scores))) - 0.3) < 0.15
    history = [(0.2 + 0.01 * i, 1.0) for i in range(10)]
    history += [(0.25, 0.0), (0.45, 5.0)]
    assert proposed(history, failed=np.linspace(0.5, 0.95, 10)).max() < 0.45
    # Five of them, far from the best trial, draw proposals.
    history = [(0.05 * i, 1.0 + i) for i in range(10)]
    assert (proposed(history) < 0.1).all()
    assert (proposed(history, running=[0.8, 0.82, 0.84, 0.86, 0.88]) > 0.6).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fixed_decisions_stay_and_settings_reach_the_forest(strategy):
    fixed = {"p": "b", "x": 0.5}
    proposer = make_proposer(strategy, _strategies.fix_decisions(SMALL, fixed), 10)
    asked = [proposer.ask([], [], np.random.default_rng(seed)) for seed in range(30)]
    assert all(c["p"] == "b" and c["x"] == 0.5 for c in asked)
    varies = strategy not in ("bo", "init")
    assert {name for name in "qr" if len({c[name] for c in asked}) > 1} == set("qr" * varies)
    if strategy in ("agebo", "bo", "bo-mixed"):
        proposer = make_proposer(strategy, SMALL, 100, kappa=0.5, n_initial=4)
        forest = getattr(proposer, "second", proposer)
        assert (forest.kappa, forest.n_initial) == (0.5, 4)


def test_what_each_strategy_learns_from(rng):
    """Decisions are a mutated parent's, the forest's choice, random, or the defaults."""
    drawn = (LETTERS + UNIT).sample_many(rng, 100)
    scores = [4 * abs(c["x"] - 0.3) + 0.5 * (c["p"] != "c") for c in drawn]
    history = [TrialRecord(i, c, score=y) for i, (c, y) in enumerate(zip(drawn, scores))]
    parent = min(history[-20:], key=lambda record: record.score).configuration

    def observed(strategy):
        proposer = make_proposer(strategy, SMALL, 100, population_size=20, sample_size=20)
        asked = [proposer.ask(history, [], np.random.default_rng(s)) for s in range(8)]
        assert all((LETTERS + UNIT).check(c, "asked") == c for c in asked)
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


def test_random_search_of_tables_compiles_few_programs():
    """Fifty trials have at most twenty architectures, and random ones three trainings each."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    space = bound_tabular_space(x, decides_loss=True)
    decisions = space.decisions()
    problem = SearchProblem(decisions, 50, n_trainings=space.n_trainings)
    first = search.RandomSearch().initial_configurations(decisions, space.known_recipes(), {})
    proposer, history = _strategies.StartingWith(first, search.RandomSearch().proposer(problem)), []
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
    assert search.RandomSearch(vary="architecture").proposer(problem).n_trainings == 1


@cases(
    ("strategy", "second", "expected"),
    (search.AgE, "sample_size", AGE),
    (search.NESEvolution, "n_parents", NES),
)
def test_populations_shrink_with_the_budget(strategy, second, expected):
    def sizes(n_planned, **settings):
        problem = SearchProblem(EVOLVED, 101, n_planned, criteria=[len])
        proposer = strategy(**settings).proposer(problem)
        proposer = getattr(proposer, "first", proposer)
        return proposer.population_size, getattr(proposer, second)

    assert {n: sizes(n) for n in expected} == expected and sizes(None) == sizes(101)
    assert sizes(80, population_size=20, **{second: 7}) == (20, 7)
    assert sizes(80, population_size=5, **{second: 9}) == (5, 5)


@pytest.mark.parametrize("strategy", [search.AgEBO, search.AgE, search.NESEvolution])
def test_it_is_said_that_a_population_is_never_full(strategy):
    problem = SearchProblem(SMALL, 10, criteria=[len])
    with pytest.warns(UserWarning, match="all are drawn at random"):
        strategy(population_size=10).proposer(problem)
    with warnings.catch_warnings(action="error"):
        strategy(population_size=9).proposer(problem)
        strategy().proposer(problem)


@cases(
    ("strategy", "message"),
    (search.AgEBO(kappa=-1), "kappa.*Got -1"),
    (search.BayesianSearch(n_initial=0), "n_initial.*Got 0"),
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


def drawn(n, n_rows=30):
    """Make trials with log likelihoods of `n_rows` clean and `n_rows` shifted rows as results."""
    rng = np.random.default_rng(0)
    proba, letters = rng.uniform(0.05, 0.95, size=(n, 2, n_rows)), LETTERS.sample_many(rng, n)
    return [TrialRecord(k, letters[k], score=0.0, result=np.log(proba[k])) for k in range(n)]


def judge(part):
    def statistics(records):
        return *likelihood_statistics(np.stack([r.result[part] for r in records])), None

    return statistics


def evolution(p, m, judges=(0,)):
    criteria = [judge(k) for k in judges]
    return _strategies.EnsembleEvolution(LETTERS.sample, lambda c, rng: dict(c), criteria, p, m)


def asked(evolve, records, n=300):
    answers = [evolve.ask(records, [], np.random.default_rng(seed)) for seed in range(n)]
    return Counter(tuple(answer.values()) for answer in answers)


def configurations(records, indices):
    return [tuple(records[k].configuration.values()) for k in indices]


def test_parents_are_the_ensemble_of_a_full_population_by_clean_or_shifted_rows():
    """Algorithm 2, lines 4-5: ForwardSelect of the last P trials, then uniform."""
    records = drawn(12)
    population = records[-8:]
    statistics, loss, _ = judge(0)(population)
    parents, counts = select_by(statistics, loss, 3).indices, asked(evolution(8, 3), records)
    assert set(counts) == set(configurations(population, parents))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    records, chosen = drawn(10), {}
    for part in (0, 1):
        statistics, loss, _ = judge(part)(records)
        (chosen[part],) = configurations(records, select_by(statistics, loss, 1).indices)
    assert chosen[0] != chosen[1]
    counts = asked(evolution(10, 1, judges=(0, 1)), records)
    assert set(counts) == set(chosen.values())
    assert stats.binomtest(counts[chosen[0]], 300).pvalue > 1e-3
    records, failed = drawn(5), [TrialRecord(k, {}, status="failed") for k in range(5, 9)]
    known = set(configurations(records, range(5)))
    assert len(set(asked(evolution(6, 2), records + failed, 40)) - known) > 20
    assert set(asked(evolution(5, 2), records + failed, 40)) <= known
    proposer = search.NESEvolution().proposer(SearchProblem(EVOLVED, 1))  # never full
    assert isinstance(proposer, _strategies.RandomProposer)


def test_mutation_changes_something_free_and_half_of_the_time_as_the_space_says():
    """Identity stays as likely as it was: only changes of pinned decisions are drawn again."""

    def change(configuration, rng):
        if rng.uniform() < 1 / 3:
            return dict(configuration)
        return {**configuration, "pqr"[rng.integers(3)]: "f"}

    pinned, start = LETTERS.pin({"p": "a", "q": "a"}), dict.fromkeys("pqr", "a")
    mutate = Mutation(pinned, Space(), change)
    children = [mutate(start, np.random.default_rng(seed)) for seed in range(400)]
    changed = [child for child in children if child != start]
    assert all(child == {**start, "r": "f"} for child in changed)
    # One draw in three is the identity, 2/9 change r: of these two kinds 3/5 are identities.
    assert stats.binomtest(len(changed), 400, 2 / 5).pvalue > 1e-3
    pinned, start = LETTERS.pin({"q": "c"}), {"p": "a", "q": "c", "r": "a"}
    for change in (None, lambda c, rng: {"p": "b", "q": "b"}):  # which forgets the others
        for seed in range(30):
            child = Mutation(pinned, Space(), change)(start, np.random.default_rng(seed))
            assert child["q"] == "c" and set(child) == set("pqr") and child != start
    # Half of the time it is an architecture that changes, as the space says.
    hyper = Space([Categorical("rate", tuple(range(9)))])
    start = {"p": "a", "q": "a", "r": "a", "rate": 0}
    both = Mutation(LETTERS, hyper, lambda c, rng: {**c, "p": "f", "q": "f"})
    children = [both(start, np.random.default_rng(seed)) for seed in range(300)]
    replaced = [child for child in children if child["p"] == "f"]
    assert all(child == {**start, "p": "f", "q": "f"} for child in replaced)
    assert all(child["rate"] > 0 for child in children if child["p"] == "a")
    assert stats.binomtest(len(replaced), 300).pvalue > 1e-3
