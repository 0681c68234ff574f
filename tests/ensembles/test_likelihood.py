import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.metrics import log_loss
from teams import SELECTORS, likelihood_statistics, select_by
from tiers import cases


def select_by_likelihood(log_likelihood, *arguments, **settings):
    return select_by(*likelihood_statistics(log_likelihood), *arguments, **settings)


def pool(seed, n_candidates=7, n_samples=20, n_classes=3):
    """True codes, probabilities, and log probabilities of the true classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_samples)
    proba = rng.dirichlet(np.ones(n_classes), (n_candidates, n_samples))
    return y, proba, np.log(proba[:, np.arange(n_samples), y])


def nll(y, proba, members, weight=None):
    """Compute the loss by its definition with scikit-learn: average, then log loss."""
    return log_loss(y, proba[members].mean(axis=0), sample_weight=weight, labels=[0, 1, 2])


def literal(y, proba, n_members, method):
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
@pytest.mark.parametrize("seed", range(8))
def test_select_by_likelihood_is_the_papers(method, seed):
    y, proba, log_likelihood = pool(seed)
    expected = literal(y, proba, 4, method)
    selection = select_by_likelihood(log_likelihood, 4, method)
    assert selection.indices.tolist() == list(dict.fromkeys(expected))
    counts = [expected.count(c) / len(expected) for c in selection.indices]
    assert_allclose(selection.weights, counts)
    assert_allclose(selection.loss, nll(y, proba, expected), rtol=1e-9)


def test_select_by_likelihood_forward_reaches_its_size_against_the_loss():
    log_likelihood = np.log([[0.99] * 9, [0.01] * 9, [0.02] * 9])
    selection = select_by_likelihood(log_likelihood, 3)
    assert selection.indices.tolist() == [0, 2, 1]
    assert [loss for _, loss in selection.path] == sorted(loss for _, loss in selection.path)
    assert select_by_likelihood(log_likelihood, 3, "quick").indices.tolist() == [0]
    assert select_by_likelihood(log_likelihood, 3, "replacement").indices.tolist() == [0]


@pytest.mark.parametrize("method", SELECTORS)
def test_select_by_likelihood_counts_weights_as_repeated_rows(method):
    y, _, log_likelihood = pool(3)
    counts = np.random.default_rng(0).integers(1, 4, size=len(y))
    weighted = select_by_likelihood(log_likelihood, 4, method, sample_weight=counts)
    repeated = select_by_likelihood(np.repeat(log_likelihood, counts, axis=1), 4, method)
    assert weighted.indices.tolist() == repeated.indices.tolist()
    assert_allclose(weighted.loss, repeated.loss)


@pytest.mark.parametrize("method", SELECTORS)
def test_select_by_likelihood_of_few_candidates_and_far_out_in_the_tails(method):
    *_, few = pool(0, n_candidates=3)
    assert len(select_by_likelihood(few, 10, method)) <= 3
    tails = np.array([[-5000.0, -1.0], [-900.0, -1.1], [-1.0, -6000.0]])
    selection = select_by_likelihood(tails, 1, method)
    assert selection.indices.tolist() == [1] and selection.loss == pytest.approx(450.55)


def test_select_by_likelihood_orders_densities_that_underflow():
    """All are 0 in float64; the log says which is nearer."""
    y = np.array([0.0, 100.0, 0.0])
    loc = np.array([[0.0, 0.0, 0.0], [0.0, 30.0, 0.0]])
    log_likelihood = stats.norm(loc, 1.0).logpdf(y)
    assert np.exp(log_likelihood[:, 1]).tolist() == [0, 0]
    selection = select_by_likelihood(log_likelihood, 1)
    assert selection.indices.tolist() == [1]
    assert_allclose(selection.loss, -log_likelihood[1].mean())
    # Candidates that give probability 0 cost about 708 nats a row if others do not.
    impossible = np.log(np.full((2, 4), 0.5))
    impossible[0, 0] = -np.inf
    loss = select_by_likelihood(impossible[:1], 1).loss
    assert_allclose(loss, (3 * np.log(2) + 708.4) / 4, rtol=1e-4)


def test_select_by_likelihood_of_impossible_and_undefined_rows():
    log_likelihood = np.log(np.full((4, 6), 0.5))
    log_likelihood[1, 0] = -np.inf
    log_likelihood[2, 0] = np.nan
    selection = select_by_likelihood(log_likelihood, 3)
    assert selection.indices[:2].tolist() == [0, 3] and np.isfinite(selection.loss)
    assert 2 not in select_by_likelihood(log_likelihood, 2, "top").indices


@cases(
    ("arguments", "message"),
    *(((np.zeros((2, 3)), n), "`n_members` must be a positive") for n in (0, -1, 1.5)),
    ((np.zeros((2, 3)), 1, "best"), r"`method` must be one of .*'forward'.* Got 'best'"),
    ((np.full((2, 3), np.nan), 1), "No candidate has a finite loss"),
)
def test_select_by_likelihood_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        select_by_likelihood(*arguments)


def test_select_by_likelihood_use_best_ignores_undefined_and_weightless_rows(rng):
    log_likelihood = np.log(rng.uniform(0.3, 0.9, size=(30, 200)))
    undefined = np.log(rng.uniform(0.9, 0.99, size=(1, 200)))
    undefined[0, 7] = np.nan
    without = select_by_likelihood(log_likelihood, 12, use_best=True)
    both = np.concatenate([log_likelihood, undefined])
    found = select_by_likelihood(both, 12, use_best=True)
    assert_array_equal(found.indices, without.indices)
    likelihood = np.random.default_rng(0).normal(size=(6, 120))
    weight = np.repeat([1.0, 0.0], 60)
    chosen = select_by_likelihood(likelihood, 5, use_best=True, sample_weight=weight)
    expected = select_by_likelihood(likelihood[:, :60], 5, use_best=True)
    assert_array_equal(chosen.indices, expected.indices)
    weight[1:] = 0.0  # all of the weight is in one fold
    assert len(select_by_likelihood(likelihood, 5, use_best=True, sample_weight=weight)) == 5


def test_select_by_likelihood_use_best_keeps_versions_of_rows_together():
    """Copies add nothing: with groups the size stays what it is on the rows once."""
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=200)
    proba = np.clip(rng.normal(0.5, 0.25, size=(40, 200)), 0.02, 0.98)
    once = np.log(np.where(y == 1, proba, 1 - proba))
    five, groups = np.tile(once, 5), np.tile(np.arange(200), 5)
    size = len(select_by_likelihood(once, 20, use_best=True))
    assert len(select_by_likelihood(five, 20, use_best=True, groups=groups)) == size
    assert len(select_by_likelihood(five, 20, use_best=True)) < size


def test_select_by_likelihood_use_best_takes_fewer_of_many_rows(rng):
    """Three good candidates and many that say little: more than three only dilute."""
    good = np.log(rng.uniform(0.5, 0.99, size=(3, 400)))
    bad = np.log(rng.uniform(0.05, 0.2, size=(20, 400)))
    chosen = select_by_likelihood(np.concatenate([bad, good]), 10, use_best=True)
    assert sorted(chosen.indices) == [20, 21, 22]
    log_likelihood = np.log(np.stack([np.full(200, 0.9), np.full(200, 0.1), np.full(200, 0.2)]))
    assert select_by_likelihood(log_likelihood, 3, use_best=True).indices.tolist() == [0, 2]
    few = log_likelihood[:, :49]
    assert len(select_by_likelihood(few, 3, use_best=True)) == 3
