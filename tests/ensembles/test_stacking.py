"""Stacking weights, compared with SciPy's optimisers and with properties of their definition."""

from dataclasses import replace

import numpy as np
import pytest
from heads import CategoricalHead
from numpy.testing import assert_allclose
from scipy import optimize, special
from sklearn.metrics import log_loss
from tiers import cases

from skuq.ensembles import ForwardSelection, StackingSelection, _rules, _stacking
from skuq.ensembles._stacking import stack
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
    found = stack(given, rows, np.zeros(n_models))
    assert_allclose(loss(np.log(found)), best.fun, atol=1e-5)
    assert_allclose(found, special.softmax(best.x), atol=1e-2)


def test_stacking_weights_count_a_weight_of_two_twice_and_of_impossible_rows(rng):
    given, rows = log_likelihood(3, 3), rng.integers(0, 4, 60)
    none = np.zeros(3)
    repeated = stack(np.repeat(given, rows, axis=1), prior=none)
    assert_allclose(stack(given, rows, none), repeated, rtol=1e-9)
    assert abs(stack(given, prior=none) - repeated).max() > 0.01
    far = given + np.linspace(-5000, 5000, 60)
    assert_allclose(stack(far), stack(given), atol=1e-9)
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


def test_mixtures_get_a_temperature_and_classes_without_rows_their_share():
    """Logits that are a tenth larger get a temperature that is: it is not one of a grid."""
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


@cases(
    ("n", "signal", "low", "high"),
    (24, 0.0, 0.5, 1.0),  # sure models that know nothing
    (24, 6.0, 0.0, 0.03),
    (10, 6.0, 0.05, 0.08),
)
def test_shares_get_what_few_rows_do_not_give_to_models(n, signal, low, high, rng):
    codes = np.arange(n) % 2
    logits = rng.normal(scale=2.0, size=(3, n, 2)) + signal * np.eye(2)[codes]
    _, found = _stacking.fit_class_mixture(logits, codes, np.ones(n), np.full(2, 0.5))
    assert low < sum(found.constant) < high
