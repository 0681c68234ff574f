"""Uncertainty of ensembles away from their training rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from tiers import cases

import skuq
from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor, TabularEnsembleRegressor
from skuq.backend import ops
from skuq.estimators.methods import _one_architecture
from skuq.estimators.tabular._far import FarUncertainty
from skuq.estimators.tabular._far_learning import (
    fit_class_factors,
    fit_process,
    with_far_uncertainty,
)
from skuq.files import dumps, loads
from skuq.predictive import CategoricalMixture


def truth(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] ** 2


@pytest.fixture(scope="module", autouse=True)
def plain_ensembles_learn_what_is_far():
    """They train faster than the recommended ones, which are the only ones to do so."""
    finish = _one_architecture.finish

    def finish_and_learn(estimator, task, *given, **named):
        fit = finish(estimator, task, *given, **named)
        return replace(fit, fitted=with_far_uncertainty(fit.fitted, task))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_one_architecture, "finish", finish_and_learn)
        yield


@pytest.fixture(scope="module")
def table():
    """Rows in a square: of four columns two matter."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 4))
    return X, truth(X) + 0.1 * rng.normal(size=300)


@pytest.fixture(scope="module")
def model(table):
    return DeepEnsembleRegressor(random_state=0).fit(*table)


def without_far(model):
    """The same predictions without what is added away from the rows."""
    other = loads(dumps(model))
    other.fitted_ = replace(model.fitted_, far=None)
    return other


def around(distance, n=200):
    """Points on the edge of a square of the first two columns."""
    rng = np.random.default_rng(1)
    Z = rng.uniform(-1, 1, (n, 4))
    Z[:, :2] *= distance / abs(Z[:, :2]).max(axis=1, keepdims=True)
    return Z


def covered(model, Z):
    low, high = model.predict_interval(Z).T
    return np.mean((low < truth(Z)) & (truth(Z) < high))


def test_intervals_hold_beyond_the_rows(model):
    plain = without_far(model)
    for distance, goal in ((1.5, 0.8), (3, 0.7)):
        assert covered(model, around(distance)) >= goal
        assert covered(plain, around(distance)) < 0.3
    far, farther = (model.predict_uncertainty(around(d)).epistemic for d in (3, 30))
    assert np.median(farther) > 5 * np.median(far)
    # In proportion to the distance, also where the networks' means grow themselves.
    farthest = [np.median(model.predict_uncertainty(around(d)).epistemic) for d in (1e3, 1e4)]
    assert 5 < farthest[1] / farthest[0] < 15


def added(model, Z):
    """Standard deviations that are added to what the networks predict."""
    variances = (m.predict_uncertainty(Z).epistemic ** 2 for m in (model, without_far(model)))
    return np.sqrt(np.maximum(np.subtract(*variances), 0))


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


def test_next_to_nothing_is_added_within_the_rows_and_errors_beyond_useless_columns(model):
    inside = around(0.5)
    assert_array_equal(model.predict(inside), without_far(model).predict(inside))
    assert np.quantile(added(model, inside), 0.85) < 1e-6
    assert rms(added(model, inside)) < 0.02  # a fifth of the noise
    beyond = [inside + 2 * np.eye(4)[k] for k in range(4)]
    sizes = [np.median(added(model, Z)) for Z in beyond]
    assert max(sizes[2:]) < 0.25 * min(sizes[:2])
    for Z, size in zip(beyond[2:], sizes[2:]):  # where the networks follow columns without effect
        error = rms(model.predict(Z) - truth(Z))
        assert size < error
        assert 0.7 * error < rms(model.predict_uncertainty(Z).epistemic) < 1.5 * error
    for Z in [inside, *beyond]:
        assert nll(model, Z, truth(Z)) < nll(without_far(model), Z, truth(Z)) + 0.005


def nll(model, Z, y):
    return -model.predict_distribution(Z).log_prob(y).mean()


def test_nothing_gets_worse_in_fifty_columns_of_which_four_matter():
    rng = np.random.default_rng(0)
    X, Z = rng.uniform(-1, 1, (2, 400, 50))
    y, new_y = (truth(A) + A[:, 2] * A[:, 3] + 0.1 * rng.normal(size=400) for A in (X, Z))
    model = DeepEnsembleRegressor(random_state=0).fit(X, y)
    wider = np.where(np.arange(50) < 4, Z, 2 * Z)  # half of the values are outside
    for rows in (Z, wider):
        assert nll(model, rows, new_y) < nll(without_far(model), rows, new_y) + 0.005
    assert added(model, wider).max() > 0


def test_constant_columns_do_not_count():
    """The standard deviation of equal values is rounded: that of many times 0.1 is not 0."""
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[:, 2] = 0.1
    model = DeepEnsembleRegressor(2, epochs=5, random_state=0).fit(X, X[:, 0])
    moved = X + [0, 0, 1e-7]
    assert_allclose(model.predict_uncertainty(moved), model.predict_uncertainty(X), rtol=1e-3)


def test_rows_that_break_correlations_are_far(table):
    X, y = table
    X = X.copy()
    X[:, 1] = X[:, 0] + 0.05 * X[:, 2]  # each column alone says nothing about such rows
    model = DeepEnsembleRegressor(2, epochs=20, random_state=0).fit(X, y)
    labels = DeepEnsembleClassifier(2, epochs=20, random_state=0).fit(X, y > 0.3)
    broken = 0.5 * X
    broken[:, 1] *= -1
    broken = broken[abs(broken[:, 0]) > 0.2]
    assert np.median(added(model, broken)) > 10 * rms(added(model, 0.5 * X))
    share = [
        np.mean(abs(labels.predict_proba(Z) - without_far(labels).predict_proba(Z)) > 1e-3)
        for Z in (0.5 * X, broken)
    ]
    assert share[0] < 0.1 < 0.9 < share[1]


def test_gaps_between_rows_are_found(table):
    X, y = table
    kept = abs(X[:, 0]) > 0.5
    model = DeepEnsembleRegressor(random_state=0).fit(X[kept], y[kept])
    Z = around(0.5)
    Z[:, 0] = 0
    assert np.median(model.fitted_.far.spread(Z, np.zeros((200, 1))) ** 2) > 0
    Z[:, 0] = 0.75
    assert np.quantile(added(model, Z), 0.9) < 1e-6


@cases(
    "model",
    TabularEnsembleRegressor(2, epochs=20, random_state=0),
    pytest.param(
        skuq.AutoDEUQRegressor(n_trials=4, epochs=4, random_state=0), marks=pytest.mark.slow
    ),
    pytest.param(skuq.NESRegressor(n_trials=4, epochs=4, random_state=0), marks=pytest.mark.slow),
    ids=lambda model: type(model).__name__,
)
def test_every_public_path_has_it(model, table):
    X, y = table
    model.fit(X, np.stack([y, -3 * y], axis=1))
    Z = np.concatenate([X[:5], around(2, n=30)])
    parts, plain = model.predict_uncertainty(Z), without_far(model).predict_uncertainty(Z)
    assert (parts.epistemic[5:] > plain.epistemic[5:]).all()
    assert_allclose(parts.aleatoric, plain.aleatoric)
    # Draws have exactly the predicted moments, also by tensors and in their gradients.
    posterior = model.posterior_fn(random_state=0)
    draws = posterior(Z)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-6)
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-6)
    if posterior.key is not None:
        arguments = [ops.convert_to_tensor(a) for a in posterior.arguments]
        tensors = posterior.function(ops, arguments, ops.convert_to_tensor(Z))
        assert_allclose(tensors, draws, atol=1e-6)
    outputs = model.to_keras().predict_on_batch(Z)
    for name, values in zip(("mean", "aleatoric", "epistemic", "total"), parts):
        assert_allclose(outputs[name], values, rtol=1e-4, atol=1e-5)
    again = loads(dumps(model))
    assert_array_equal(again.predict_uncertainty(Z).total, parts.total)
    assert "arrays" not in vars(again.fitted_.far).keys() - vars(model.fitted_.far).keys()


def test_programs_of_draws_serve_fits_with_more_rows(table):
    X, y = table
    model = DeepEnsembleRegressor(2, epochs=5, random_state=0)
    one, two = (model.fit(X[:n], y[:n]).posterior_fn(random_state=0) for n in (40, 60))
    assert [a.shape for a in one.arguments] == [a.shape for a in two.arguments]


def test_it_is_learnt_where_it_can_be(table):
    X, y = table
    few = DeepEnsembleRegressor(2, epochs=2, random_state=0)
    assert few.fit(X[:9], y[:9]).fitted_.far is None
    assert few.fit(X, np.random.default_rng(0).normal(size=300)).fitted_.far is None
    assert few.fit(X, np.zeros(300)).fitted_.far is None
    assert few.fit(0 * X, y).fitted_.far is None


@pytest.fixture(scope="module")
def tabular(table):
    """A table with a skewed column and categories, and an ensemble that scales by medians."""
    X, y = table
    frame = pd.DataFrame({"a": X[:, 0], "b": np.exp(2 * X[:, 1]), "c": np.arange(300) % 3})
    frame["c"] = frame["c"].map({0: "x", 1: "y", 2: "z"})
    return frame, TabularEnsembleRegressor(2, epochs=10, random_state=0).fit(frame, y)


def test_rows_are_measured_by_covariances_without_them(tabular):
    """Also where columns are scaled around their medians."""
    frame, model = tabular
    X = pd.get_dummies(frame, dtype=float).to_numpy()
    x = (X - X.mean(axis=0)) / X.std(axis=0)
    covariance = (x.T @ x + 5 * np.eye(5)) / 305  # shrunk by a row for each column
    nearest = []
    for row in x:
        inverse = np.linalg.inv(covariance - np.outer(row, row) / 305)
        squared = np.einsum("ij,jk,ik->i", x - row, inverse, x - row)
        nearest.append(np.sqrt(np.sort(squared)[1]))
    near = np.quantile(nearest, 0.9, method="weibull")
    assert_allclose(model.fitted_.far.joint_near[0], near)


def test_a_far_value_hides_no_distance(tabular, table):
    """One such as 9999, for a missing one, decides neither the scale nor the slope of a column."""
    frame, model = tabular
    changed = frame.assign(a=np.where(np.arange(300) == 0, 9999.0, frame["a"]))
    other, beyond = clone(model).fit(changed, table[1]), frame[1:] + [10, 0, ""]
    assert rms(added(other, beyond)) > rms(added(model, beyond)) / 10
    # To networks a value farther still is the same.
    assert added(other, changed[:1].assign(a=1e9)).max() < 1e-6


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("unit", [2.0**700, 2.0**-700])
def test_units_of_a_column_do_not_count(tabular, table, unit):
    """Not even where the squares of its values are infinite, or 0."""
    frame, model = tabular
    other = clone(model).fit(frame.assign(a=unit * frame["a"]), table[1])
    beyond = frame[1:] + [10, 0, ""]
    expected = added(model, beyond)
    assert_allclose(added(other, beyond.assign(a=unit * beyond["a"])), expected, rtol=1e-6)


def test_copies_of_rows_are_no_neighbours(tabular, table):
    """In a table whose rows are all there twice, new rows are not far."""
    frame, model = tabular
    twice = clone(model).fit(pd.concat([frame, frame]), np.tile(table[1], 2))
    near, joint_near = model.fitted_.far.near, model.fitted_.far.joint_near
    assert 0.5 < twice.fitted_.far.near / near < 2
    assert_allclose(twice.fitted_.far.joint_near, joint_near, rtol=0.1)


def test_unseen_categories_have_no_distance(tabular):
    """Rows near and far get what they get with a category that `fit` has seen."""
    frame, model = tabular
    rows = pd.concat([frame[:50], frame[:50] + [3, 0, ""]])
    fitted = model.fitted_
    seen, unseen = (
        [
            fitted.far.spread(fitted.inputs.fill_unseen(encoded, 0, 1), np.zeros((100, 1)))
            for encoded in (fitted.encode(rows.assign(c=category)) for category in categories)
        ]
        for categories in ("xyz", "w")
    )
    assert np.isclose(seen, unseen).any(axis=0).all()
    assert rms(unseen[0][:, 50:]) > 10 * rms(unseen[0][:, :50])


def test_noise_is_less_sure_with_unseen_categories(tabular):
    """Also in rows that are near others."""
    frame, model = tabular
    rows = frame[:50].assign(c="w")
    doubt = model.fitted_.far.doubt * model.fitted_.targets.scaling.scale_
    assert added(model, rows).min() > 0.49 * doubt
    labels = DeepEnsembleClassifier(5, epochs=20, random_state=0).fit(frame, frame["a"] > 0)
    proba, before = (m.predict_proba(rows) for m in (labels, without_far(labels)))
    shares = labels.fitted_.far.mean
    apart = abs(before - shares) > 0.01
    moved = ((before - proba) / (before - shares))[apart]
    assert (moved > 0.049).all()  # of the way to the shares of the classes


def process_of(z, y, kernel):
    """A process of scaled rows, of length 1 and with noise 0.1."""
    one = np.ones(y.shape[1])
    return FarUncertainty(
        *(np.zeros(2), np.ones(2), np.ones(2), np.eye(2), z, z),
        *(y, y.mean(axis=0), 0.1, np.ones(2), kernel, 1.0, 0.1, one, np.ones(2)),
        *(np.zeros((2, 4)), one, np.full((2, 2), [[-9.0], [9.0]])),
    )


def test_left_out_thirds_are_predictions_without_them(table):
    """The closed form of errors agrees with a process that has not seen the rows."""
    X, y = table
    z, y = X[:60, :2], y[:60, None]
    far = process_of(z, y, "matern-5/2")
    left, rest = np.arange(20), np.arange(20, 60)
    inverse = far.arrays.whitening @ far.arrays.whitening.T
    error = np.linalg.inv(inverse[:20, :20]) @ far.arrays.alpha[:20]
    covariance = far._covariance(z)
    weights = np.linalg.solve(covariance[np.ix_(rest, rest)], (y - y.mean())[rest])
    predicted = covariance[np.ix_(left, rest)] @ weights
    assert_allclose(error, (y - y.mean())[left] - predicted, atol=1e-9)


def test_few_rows_of_a_region_of_their_own_are_known():
    """Reference rows cover small regions too, if there are more rows than reference rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    X[:5] = 6 + 0.1 * rng.normal(size=(5, 3))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.1 * rng.normal(size=2000)
    model = DeepEnsembleRegressor(2, epochs=20, random_state=0).fit(X, y)
    assert model.fitted_.far.spread(X[:5], np.zeros((5, 1))) is None
    assert model.fitted_.far.spread(X[:5] + 4, np.zeros((5, 1))) is not None


def test_rows_of_nearly_no_weight_make_nothing_known(table):
    X, y = table
    there = np.full((30, 4), 3.0) + 0.1 * X[:30]
    weight = np.append(np.ones(300), np.full(30, 1e-9))
    model = DeepEnsembleRegressor(2, epochs=20, random_state=0)
    model.fit(np.concatenate([X, there]), np.append(y, np.full(30, 50.0)), sample_weight=weight)
    assert (model.predict_uncertainty(there).epistemic > 1).all()


def test_means_of_a_transformed_y_stay_near_those_of_the_networks(table):
    X, y = table
    model = DeepEnsembleRegressor(target_transform="yeo-johnson", epochs=50, random_state=0)
    model.fit(X, np.exp(2 * y))
    Z = around(4)
    moved = model.predict(Z) - without_far(model).predict(Z)
    assert abs(moved).max() < np.ptp(np.exp(2 * y))
    assert model.fitted_.far.spread(Z, np.zeros((200, 1))) is not None


def test_rare_classes_do_not_decide_where_they_are_constant():
    """Kernels and lengths are searched on a part of the rows, in which a class may be missing."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (200, 4))
    y, rare = truth(z), np.eye(200)[150]
    with np.errstate(all="raise"):
        stretch, _, length, _ = fit_process(z, np.column_stack([y, rare]))
        alone, _, least, _ = fit_process(z, y[:, None])
        fit_process(z, rare[:, None])
    assert_array_equal(stretch, alone)
    assert 0.5 * least < length < 2 * least


@pytest.fixture(scope="module")
def classifier(table):
    X, y = table
    labels = np.array(["a", "b", "c"])[np.digitize(truth(X), [-0.3, 0.7])]
    model = DeepEnsembleClassifier(3, random_state=0).fit(X, labels)
    return model, model.fitted_.far.mean


def test_classes_become_their_shares_and_members_disagree(classifier):
    model, shares = classifier
    plain, Z = without_far(model), np.concatenate([around(0.5, n=30), around(1000, n=30)])
    parts, before = model.predict_uncertainty(Z), plain.predict_uncertainty(Z)
    assert_allclose(model.predict_proba(Z)[30:], np.tile(shares, (30, 1)), atol=0.01)
    assert np.mean(model.predict_proba(Z)[:30] == plain.predict_proba(Z)[:30]) > 0.9
    assert parts.epistemic[30:].min() > 0.6 > before.epistemic[30:].mean() + 0.1
    # A draw is one member for all rows, and far away a member is sure.
    drawn = model.predict_distribution(Z).sample(20_000, 0)
    assert_allclose([np.mean(drawn[30:] == c) for c in range(3)], shares, atol=0.02)
    outputs = model.to_keras().predict_on_batch(Z)
    assert_allclose(outputs["proba"], model.predict_proba(Z), atol=1e-5)
    assert_allclose(outputs["epistemic"], parts.epistemic, atol=1e-4)
    assert_array_equal(loads(dumps(model)).predict_proba(Z), model.predict_proba(Z))


def test_members_keep_to_the_classes_that_they_predict(classifier):
    """Two members that disagree are each sure of what they predicted, once nothing is known."""
    far = replace(classifier[0].fitted_.far, mean=np.array([0.5, 0.3, 0.2]))
    mix = np.array([0.4, 0.6])
    mixture = CategoricalMixture(np.array([[[0.2, 0.2, 0.6]], [[0.9, 0.1, 0.0]]]), mix)
    found = far.widen(mixture, np.full((1, 4), 1e6), classifier[0].fitted_.targets).proba[:, 0]
    assert_allclose(found, [[0, 0.5, 0.5], [5 / 6, 1 / 6, 0]], atol=1e-6)
    assert_allclose(mix @ found, far.mean, atol=1e-9)


def test_next_to_nothing_is_added_to_classes_where_that_wins():
    """Labels that go on in left-out regions as they are beside them, and labels by chance."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (200, 2)) * [0.15, 1]  # regions are left out by the second column
    z = z[np.argsort(z[:, 0])]
    y = np.eye(2)[np.r_[np.zeros(100, int), np.ones(100, int)]]
    far = process_of(z, y, "squared-exponential")
    by_chance = replace(far, y=y[rng.permutation(200)])
    assert fit_class_factors(far)[0] == 1 / 16
    assert fit_class_factors(by_chance)[0] == 1
