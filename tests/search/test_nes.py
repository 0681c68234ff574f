from collections import Counter

import numpy as np
import pytest
from scipy import stats
from slots import EnsembleEvolution, Mutation, RandomProposer, SearchProblem
from teams import likelihood_statistics, select_by
from tiers import cases

from skuq.networks import Categorical, Decisions, Space
from skuq.search import NESEvolution, TrialRecord

LETTERS = Space([Categorical(name, tuple("abcdef")) for name in ("p", "q", "r")])
NOTHING = Space()


def history(n, seed=0, n_rows=30):
    """Make trials with log likelihoods of `n_rows` clean and `n_rows` shifted rows as results."""
    rng = np.random.default_rng(seed)
    proba = rng.uniform(0.05, 0.95, size=(n, 2, n_rows))
    drawn = LETTERS.sample_many(rng, n)
    return [TrialRecord(k, drawn[k], score=0.0, result=np.log(proba[k])) for k in range(n)]


def judge(part):
    def statistics(records):
        return *likelihood_statistics(np.stack([r.result[part] for r in records])), None

    return statistics


def evolution(p, m, judges=(0,), mutate=lambda configuration, rng: dict(configuration)):
    return EnsembleEvolution(LETTERS.sample, mutate, [judge(k) for k in judges], p, m)


def asked(evolve, records, n=300):
    answers = [evolve.ask(records, [], np.random.default_rng(seed)) for seed in range(n)]
    return Counter(tuple(answer.values()) for answer in answers)


def configurations(records, indices):
    return [tuple(records[k].configuration.values()) for k in indices]


@cases(
    ("n_trials", "expected"),
    (1000, (50, 10)), (400, (50, 10)), (200, (25, 10)), (80, (10, 5)), (64, (8, 4)),
     (12, (6, 3)), (4, (2, 1)), (1, (2, 1)),
)  # fmt: skip
def test_populations(n_trials, expected):
    """The paper's 50 and 10 at 400; an eighth, at least 8, at most half; m half of P."""
    # With fewer trials than the population has members, all are drawn at random.
    found = populations(max(n_trials, 3), n_planned=n_trials)
    assert found == expected


def populations(n_trials, n_planned=None, **settings):
    problem = SearchProblem(Decisions(LETTERS, NOTHING), n_trials, n_planned, criteria=[len])
    proposer = NESEvolution(**settings).proposer(problem)
    return proposer.population_size, proposer.n_parents


def test_population_asked_for():
    assert populations(80, population_size=20, n_parents=7) == (20, 7)
    assert populations(80, population_size=5, n_parents=9) == (5, 5)


@pytest.mark.parametrize(
    ("evolve_on", "expected"),
    [("clean", ["clean"]), ("shift", ["shift"]), ("both", ["clean", "shift"])],
)
def test_evolution_uses_the_criteria_that_it_is_told(evolve_on, expected):
    decisions = Decisions(LETTERS, NOTHING)
    problem = SearchProblem(decisions, 80, criteria=["clean", "shift"])
    assert NESEvolution(evolve_on=evolve_on).proposer(problem).criteria == expected
    assert isinstance(NESEvolution().proposer(SearchProblem(decisions, 1)), RandomProposer)


def test_parents_are_the_ensemble_of_the_population():
    """Algorithm 2, lines 4-5: ForwardSelect of the last P trials, then uniform."""
    records = history(12)
    population = records[-8:]
    statistics, loss, _ = judge(0)(population)
    parents = select_by(statistics, loss, 3).indices
    counts = asked(evolution(8, 3), records)
    assert set(counts) == set(configurations(population, parents))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_clean_and_shifted_rows_are_drawn_alike():
    records = history(10)
    chosen = {}
    for part in (0, 1):
        statistics, loss, _ = judge(part)(records)
        (chosen[part],) = configurations(records, select_by(statistics, loss, 1).indices)
    assert chosen[0] != chosen[1]
    counts = asked(evolution(10, 1, judges=(0, 1)), records)
    assert set(counts) == set(chosen.values())
    assert stats.binomtest(counts[chosen[0]], 300).pvalue > 1e-3


def test_random_until_the_population_is_full_whatever_fails():
    records = history(5)
    failed = [TrialRecord(k, {}, status="failed") for k in range(5, 9)]
    known = set(configurations(records, range(5)))
    assert len(set(asked(evolution(6, 2), records + failed, 40)) - known) > 20
    assert set(asked(evolution(5, 2), records + failed, 40)) <= known


def test_mutation_of_a_space_of_its_own():
    """Architectures change as the space says, hyperparameters as decisions; half and half."""
    hyper = Space([Categorical("rate", tuple(range(9)))])
    start = {"p": "a", "q": "a", "r": "a", "rate": 0}
    both = Mutation(LETTERS, hyper, lambda c, rng: {**c, "p": "f", "q": "f"})
    children = [both(start, np.random.default_rng(seed)) for seed in range(300)]
    replaced = [child for child in children if child["p"] == "f"]
    assert all(child == {**start, "p": "f", "q": "f"} for child in replaced)
    assert all(child["rate"] > 0 for child in children if child["p"] == "a")
    assert stats.binomtest(len(replaced), 300).pvalue > 1e-3


def test_mutation_draws_again_until_something_free_has_changed():
    """Identity stays as likely as it was: only changes of pinned decisions are drawn again."""

    def change(configuration, rng):
        if rng.uniform() < 1 / 3:
            return dict(configuration)
        return {**configuration, "pqr"[rng.integers(3)]: "f"}

    pinned = LETTERS.pin({"p": "a", "q": "a"})
    start = dict.fromkeys("pqr", "a")
    mutate = Mutation(pinned, NOTHING, change)
    children = [mutate(start, np.random.default_rng(seed)) for seed in range(400)]
    changed = [child for child in children if child != start]
    assert all(child == {**start, "r": "f"} for child in changed)
    # One draw in three is the identity, 2/9 change r: of these two kinds 3/5 are identities.
    assert stats.binomtest(len(changed), 400, 2 / 5).pvalue > 1e-3


def test_mutation_leaves_pinned_decisions_alone():
    pinned = LETTERS.pin({"q": "c"})
    start = {"p": "a", "q": "c", "r": "a"}
    for change in (None, lambda c, rng: {"p": "b", "q": "b", "r": "b"}):
        for seed in range(30):
            child = Mutation(pinned, NOTHING, change)(start, np.random.default_rng(seed))
            assert child["q"] == "c" and child != start
    forgetful = Mutation(LETTERS, NOTHING, lambda c, rng: {"p": "f", "q": c["q"], "r": c["r"]})
    start = {"p": "a", "q": "a", "r": "a", "rate": 0.1}
    assert forgetful(start, np.random.default_rng(0)) == {**start, "p": "f"}
