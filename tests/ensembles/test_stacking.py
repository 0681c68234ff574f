"""Stacking weights, compared with SciPy's optimisers and with properties of their definition."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from heads import CategoricalHead
from numpy.testing import assert_allclose
from scipy import optimize, special
from scipy.spatial.distance import cdist
from scipy.special import entr, softmax
from scipy.stats import multivariate_normal
from sklearn.metrics import log_loss
from teams import stacking_weights
from tiers import cases

from skuq.ensembles import ForwardSelection, StackingSelection, _rules, _stacking
from skuq.estimators.tabular._kinds import averaging_factor, class_evidence
from skuq.networks import GaussianHead


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
    found = stacking_weights(given, rows)
    assert_allclose(loss(np.log(found)), best.fun, atol=1e-5)
    assert_allclose(found, special.softmax(best.x), atol=1e-2)


def test_stacking_weights_count_a_weight_of_two_twice(rng):
    given, rows = log_likelihood(3, 3), rng.integers(0, 4, 60)
    repeated = stacking_weights(np.repeat(given, rows, axis=1))
    assert_allclose(stacking_weights(given, rows), repeated, rtol=1e-9)
    assert abs(stacking_weights(given) - repeated).max() > 0.01
    far = given + np.linspace(-5000, 5000, 60)
    assert_allclose(stacking_weights(far), stacking_weights(given), atol=1e-9)
    # A further row is one that one model alone predicts.
    alone = np.log(np.eye(3)[[0, 2, 2]].T + 1e-300)
    further = stacking_weights(np.append(given, alone, axis=1))
    assert_allclose(stacking_weights(given, prior=[1.0, 0.0, 2.0]), further, atol=1e-5)


def test_stacking_weights_of_impossible_rows():
    given = log_likelihood(2, 2)
    given[0, :5] = -np.inf  # possible by the second only, which must not get 0
    found = stacking_weights(given)
    assert 0 < found[1] < 1
    impossible = np.append(given, np.full((2, 3), -np.inf), axis=1)
    assert_allclose(stacking_weights(impossible), found)
    assert_allclose(stacking_weights(np.full((4, 3), -np.inf)), 0.25)


@cases(
    ("given", "options", "message"),
    ([0.1, 0.2], {}, "`log_likelihood` must have shape"),
    (np.zeros((0, 2)), {}, "`log_likelihood` must have shape"),
    ([[0.0, np.nan]], {}, "`log_likelihood` must have shape"),
    (np.zeros((2, 3)), {"sample_weight": [1.0, 2.0]}, "sample_weight.shape"),
    (np.zeros((2, 3)), {"sample_weight": [1.0, -1.0, 1.0]}, "Negative values"),
    (np.zeros((2, 3)), {"sample_weight": np.zeros(3)}, "non-zero|All are 0"),
    (np.zeros((2, 3)), {"prior": [1.0, -1.0]}, "`prior` must have 2 numbers >= 0"),
)
def test_stacking_weights_refuse(given, options, message):
    with pytest.raises(ValueError, match=message):
        stacking_weights(given, **options)


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
    assert chosen >= set(first)
    assert 2 <= len(selection) <= 5
    assert_allclose(selection.weights.sum(), 1)
    mixed = np.tensordot(selection.weights, candidates.proba[selection.indices], 1)
    assert_allclose(selection.loss, log_loss(candidates.codes, mixed, labels=range(3)))


def test_automatic_selection_stacks_unseen_rows_only():
    candidates, rule = classifiers(200), _rules.AutomaticSelection(ForwardSelection())
    stacked = rule.choose(candidates, 3)
    assert_allclose(stacked.loss, StackingSelection().choose(candidates, 3).loss)
    forward = rule.choose(replace(candidates, is_unseen=False), 3)
    assert_allclose(forward.weights, 1 / 3)
    y = candidates.y
    raw = [np.hstack([y + scale, np.zeros_like(y)]) for scale in (3.0, 2.0, 0.1)]
    normals = replace(candidates, head=GaussianHead(1), raw=raw)
    assert StackingSelection(min_members=1).choose(normals, 3).indices.tolist() == [2]


def test_mixtures_of_given_weights_get_a_temperature():
    """Logits that are a tenth larger get a temperature that is: it is not one of a grid."""
    candidates, weights = classifiers(3000), np.full(10, 0.1)
    scaled = [replace(candidates, raw=f * np.log(candidates.proba)) for f in (6, 6.6)]
    one, two = (c.fit_class_mixture(weights=weights) for c in scaled)
    assert_allclose(one[0], weights)
    assert 1.05 < two[1].temperature / one[1].temperature < 1.15
    assert 0 < sum(one[1].constant) < 0.05


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_averages_of_more_members_get_the_temperature_at_which_they_are_as_sure(spread, rng):
    """It is known beforehand, from one member of each of three models."""
    logits = 2 * rng.normal(size=(4000, 3)) + spread * rng.normal(size=(9, 4000, 3))
    factor = averaging_factor(logits[:3], np.ones(4000), 3)
    few, many = (softmax(z, axis=-1).mean(axis=0) for z in (logits[:3], logits / factor))
    entropies = [entr(proba).sum(axis=-1).mean() for proba in (few, many)]
    assert_allclose(*entropies, rtol=0.015)
    assert (factor < 0.99) == (spread > 0)
    assert_allclose(averaging_factor(logits[:3], np.ones(4000), 1), 1)


def test_classes_without_a_row_to_judge_by_keep_their_share():
    """A class of one row is never predicted for rows held out; it may come again all the same."""
    candidates, shares = classifiers(500), np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.pad(candidates.raw, ((0, 0), (0, 0), (0, 1)), constant_values=-10.0)
    given = logits, candidates.codes, np.ones(500), shares
    constant = np.array(_stacking.fit_class_mixture(*given)[1].constant)
    assert constant[3] == 0.05
    assert_allclose(np.ptp(constant[:3] / shares[:3]), 0, atol=1e-12)
    assert constant[0] < 0.5 * shares[0]


@cases(
    ("n", "signal", "evidence", "low", "high"),
    (24, 0.0, None, 0.5, 1.0),  # sure models that know nothing
    (24, 6.0, None, 0.0, 0.03),
    (10, 6.0, None, 0.05, 0.08),
    (10, 6.0, -1.0, 0.3, 0.5),  # rows that models happen to predict
    (10, 6.0, 3.0, 0.08, 0.1),
)
def test_shares_get_what_few_rows_do_not_give_to_models(n, signal, evidence, low, high, rng):
    codes = np.arange(n) % 2
    logits = rng.normal(scale=2.0, size=(3, n, 2)) + signal * np.eye(2)[codes]
    given = logits, codes, np.ones(n), np.full(2, 0.5)
    _, found = _stacking.fit_class_mixture(*given, evidence=evidence)
    assert low < sum(found.constant) < high


def test_evidence_of_classes_is_a_ratio_of_likelihoods(rng):
    """Normals of several lengths, noises, and columns: all, or the first principal component."""
    x, codes = rng.normal(size=(12, 3)), np.repeat([0, 1, 3], 4)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    # Directions that sum to 0; and contrasts of the classes that are orthogonal.
    basis = np.linalg.svd(np.eye(12) - 1 / 12)[0][:, :11]
    contrasts = np.repeat([[1.5**0.5, 0.5**0.5], [-(1.5**0.5), 0.5**0.5], [0, -(2**0.5)]], 4, 0)
    component = z @ np.linalg.eigh(z.T @ z)[1][:, -1:]
    columns = z / 3**0.5, component / component.std()
    ratios = []
    for part, length in itertools.product(columns, (0.5, 1.0, 2.0)):
        kernel = basis.T @ np.exp(-cdist(part, part, "sqeuclidean") / (2 * length**2)) @ basis
        kernel *= 12 / np.trace(kernel)
        for signal in (0.2, 0.5, 0.8, 0.95):
            process = multivariate_normal(np.zeros(11), signal * kernel + (1 - signal) * np.eye(11))
            noise = multivariate_normal(np.zeros(11))
            y = (basis.T @ contrasts).T
            ratios.append(np.exp((process.logpdf(y) - noise.logpdf(y)).sum()))
    assert_allclose(class_evidence(x, codes), np.log(np.mean(ratios)))
    # Units and columns without information do not count.
    wide = np.column_stack([5 * x + 3, np.ones(12)])
    assert_allclose(class_evidence(wide, codes), np.log(np.mean(ratios)))
    assert class_evidence(x, 0 * codes) == class_evidence(0 * x, codes) == 0
