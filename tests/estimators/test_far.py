"""Uncertainty of ensembles away from their training rows."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from training_data import Rows

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor, TabularEnsembleRegressor
from skuq.backend import ops
from skuq.estimators.tabular._far import FarUncertainty, with_far_uncertainty
from skuq.files import dumps, loads
from skuq.predictive import CategoricalMixture
from skuq.predictive._calibration import Calibration

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (200, 3))
Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], -9 * X[:, 1]]) + 0.1 * rng.normal(size=(200, 2))
FRAME = pd.DataFrame({"a": X[:, 0], "constant": 0.1, "few": np.where(X[:, 1] > 0, "u", "v")})
FRAME["many"] = [f"k{k % 12}" for k in range(200)]
COUNTS = st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any)
SMALL = {"n_members": 2, "epochs": 20, "random_state": 0}
OUTSIDE = np.concatenate([X[:20], 1.3 * X, 5 * X])


def with_far(model, far):
    other = copy.copy(model)
    other.fitted_ = replace(model.fitted_, far=far)
    return other


def learn(model, X, y, weight=1.0):
    task = SimpleNamespace(rows=Rows(X, y, np.resize(weight, len(X))), entropy=0)
    return with_far(model, with_far_uncertainty(model.fitted_, task).far)


def added(model, Z):
    """Variances that are added to what the networks predict, in variances of y."""
    both = (m.predict_uncertainty(Z).epistemic ** 2 for m in (model, with_far(model, None)))
    return np.subtract(*both) / model.fitted_.targets.scaling.scale_**2


@pytest.fixture(scope="module")
def model():
    return learn(DeepEnsembleRegressor(**SMALL).fit(X, Y), X, Y)


@pytest.fixture(scope="module")
def tabular():
    return TabularEnsembleRegressor(**SMALL).fit(FRAME, Y)


def test_g_is_that_of_the_formula(tabular):
    far, rows = tabular.fitted_.far, tabular.fitted_.encode(FRAME)
    numbers = np.concatenate([rows * k for k in (1, 1.4, 3, 1e6)])
    numbers[::3, -1], numbers[1::3, -1] = 5, np.nan
    z = np.clip((np.nan_to_num(numbers) - far.centre) / far.scale, -10, 10) @ far.matrix
    differs, unseen = numbers[:, -1:] != far.codes.T, np.isnan(numbers[:, -1])
    squares = (cdist(z, far.references) ** 2 + far.squares[-1] * differs).min(axis=1)
    squares += 3 * ((z - np.clip(z, *far.ends)) ** 2).sum(axis=1) + far.squares[-1] * unseen
    excess = np.maximum(np.sqrt(squares) / far.reach - 1, 0)[:, None]
    expected = np.minimum(far.unknown * (np.exp(1.5 * excess) - 1), 1)
    assert {0, 1} < set(expected.ravel())
    coordinates, g = far.look(np, numbers)
    assert_allclose(coordinates, z, atol=1e-9)
    for found in (g, np.square(far.spread(np, numbers)).sum(axis=0)):
        assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_coordinates_reach_and_noise_are_those_of_the_rows(model, tabular):
    for one, rows in ((model, X), (tabular, tabular.fitted_.encode(FRAME))):  # 3 columns vary
        far, d = one.fitted_.far, rows.shape[1]
        z = (rows - far.centre) / far.scale @ far.matrix
        by_codes = (rows[:, -1:] != rows[:, -1]) * (far.squares[-1] if far.codes.size else 0)
        nearest = np.sqrt(np.sort(cdist(z, z) ** 2 + by_codes)[:, 1])
        assert_allclose(far.reach, np.quantile(nearest, 0.99, method="weibull"))
        assert_allclose(far.ends, [z.min(axis=0), z.max(axis=0)])
        # Two random rows differ by 1.8 in a column that varies, and by more where it matters more.
        covariance = np.cov(z.T, bias=True)
        assert_allclose(2 * np.trace(covariance[:d, :d]) + by_codes.mean(), 1.8 * 3)
        whitened = covariance[d:, d:]
        assert_allclose(whitened, np.diag(np.diag(whitened)), atol=1e-9)
        assert_allclose(np.diag(whitened)[np.diag(whitened) > 0], 0.1, rtol=0.02)
    effects = np.square(np.diag(model.fitted_.far.matrix[:, :3]))  # the third column has none
    assert 0.09 < effects[2] < 0.15 and min(effects[:2]) > 0.6
    std = model.predict_distribution(X).scale / model.fitted_.targets.scaling.scale_
    unknown = np.exp(2 * np.log(std).mean(axis=(0, 1)))
    assert_allclose(model.fitted_.far.unknown, unknown, rtol=1e-6)
    for gained in (added(tabular, FRAME.assign(**{c: "new"})) for c in ("few", "many")):
        assert np.median(gained[:, 0]) > 0.3 * tabular.fitted_.far.unknown[0]
    moved = FRAME.assign(constant=0.1 + 1e-7)  # in which no distance is
    assert_allclose(added(tabular, moved), added(tabular, FRAME), atol=1e-9)


def test_all_public_paths_agree(model):
    codes = np.digitize(Y[:, 0], [-0.6, 0.9])
    labels = DeepEnsembleClassifier(**SMALL).fit(X, np.array([*"abc"])[codes])
    labels, parts = learn(labels, X, codes[:, None]), model.predict_uncertainty(OUTSIDE)
    shares = np.bincount(codes) / 200
    assert_allclose(labels.fitted_.far.shares, shares)
    entropy = with_far(labels, None).predict_uncertainty(X).total.mean()
    assert_allclose(labels.fitted_.far.unknown, -entropy / (shares @ np.log(shares)), rtol=1e-6)
    posterior = model.posterior_fn(random_state=0)
    draws = posterior(OUTSIDE)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-6)
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-6)
    # What is added to a single member is correlated as outputs are.
    calibration = Calibration(correlation=((1.0, -0.9), (-0.9, 1.0)))
    one = {"members": model.fitted_.members[:1], "weights": np.ones(1)}
    alone = replace(model.fitted_, **one, calibration=calibration)
    apart = alone.posterior(64, np.random.default_rng(0))(5 * X[:9])
    assert_allclose([np.corrcoef(a.T)[0, 1] for a in np.moveaxis(apart, 1, 0)], -0.9)
    arguments = [ops.convert_to_tensor(a) for a in posterior.arguments]
    tensors = posterior.function(ops, arguments, ops.convert_to_tensor(OUTSIDE))
    assert_allclose(tensors, draws, atol=1e-6)
    for one in (model, labels):
        outputs, parts = one.to_keras().predict_on_batch(OUTSIDE), one.predict_uncertainty(OUTSIDE)
        without = with_far(one, None).predict_uncertainty(OUTSIDE)
        assert np.max(parts.epistemic - without.epistemic) > 0.1
        for name in ("aleatoric", "epistemic", "total"):
            assert_allclose(outputs[name], getattr(parts, name), rtol=1e-4, atol=1e-5)
        assert_array_equal(loads(dumps(one)).predict_uncertainty(OUTSIDE).total, parts.total)
    for part in ({"reach": 0.0}, {"matrix": np.eye(3)}, {"unknown": np.zeros(2)}):
        with pytest.raises(Exception, match="does not fit together"):
            dumps(with_far(model, replace(model.fitted_.far, **part)))


def test_it_is_learnt_where_it_can_be_and_next_to_nothing_inside(model):
    assert np.mean(added(model, np.random.default_rng(1).uniform(-1, 1, (1000, 3))) > 0) < 0.02
    assert_allclose(added(model, np.concatenate([1e6 * X, 1e300 * X])), 1, rtol=1e-3)
    # A transformed y is widened before it is mapped back.
    skewed = DeepEnsembleRegressor(**SMALL, target_transform="yeo-johnson")
    skewed = learn(skewed.fit(X, np.exp(Y[:, 0])), X, Y[:, :1])
    both = (m.predict_distribution(5 * X).inner for m in (skewed, with_far(skewed, None)))
    found = np.subtract(*(inner.uncertainty().epistemic.ravel() ** 2 for inner in both))
    assert_allclose(found, skewed.fitted_.far.look(np, 5 * X)[1][:, 0], rtol=1e-6)
    fars = [learn(model, X[k], Y[k]).fitted_.far for k in (np.arange(20), np.arange(200) % 20)]
    assert_allclose(*(far.reach for far in fars), rtol=0.1)  # copies are no neighbours
    assert all(learn(model, X[k], Y[k]).fitted_.far is None for k in (slice(9), [3] * 50))
    more, weight = (np.append(X, 5 + X[:40], axis=0), Y[np.arange(240) % 200]), np.ones(240)
    assert np.mean(added(learn(model, *more), more[0][200:]) > 0) < 0.2
    weight[200:] = 0  # rows that do not count
    assert (added(learn(model, *more, weight), more[0][200:]) > 0.3).all()


@given(COUNTS, COUNTS, COUNTS, st.integers(1, 9), st.integers(0, 12))
def test_labels_never_change(one, two, shares, weight, x):
    """Also of classes with nearly the same probability. The average moves to the shares."""
    x, shares, nothing = np.array([[float(x)]]), np.array(shares) / np.sum(shares), np.zeros((1, 0))
    far = FarUncertainty(
        *(np.zeros(1), np.ones(1), np.eye(1), np.zeros(1), np.zeros(0), nothing, np.zeros((1, 1))),
        *(np.zeros((2, 1)), np.zeros((1, 4)), 2.0, np.array([0.1]), shares),
    )
    proba = np.array([one, two])[:, None] + np.eye(3)[[1, 2], None] * 1e-11
    weights = np.array([weight, 10 - weight]) / 10
    mixture = CategoricalMixture(proba / proba.sum(axis=2, keepdims=True), weights)
    classes = SimpleNamespace(head=SimpleNamespace(classifies=True))
    before, after = mixture.mean[0], far.widen(mixture, x, classes).mean[0]
    top = before.argmax()
    assert after.argmax() == top
    ahead, more, g = before[top] - before, shares - shares[top], far.look(np, x)[1].item()
    share = min(g, *(ahead[k] / (ahead[k] + more[k]) for k in range(3) if more[k] > 0), 1)
    if np.sort(ahead)[1] > 1e-9:
        assert_allclose(after, before + share * (shares - before), atol=1e-9)
