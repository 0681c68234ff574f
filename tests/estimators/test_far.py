"""Uncertainty of ensembles away from their training rows."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, Matern
from training_data import Rows

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor, TabularEnsembleRegressor
from skuq.backend import ops
from skuq.estimators.tabular import _far_learning
from skuq.estimators.tabular._far import FarUncertainty
from skuq.files import dumps, loads
from skuq.predictive import CategoricalMixture


def truth(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] ** 2


@pytest.fixture(scope="module")
def table():
    """Rows in a square: of four columns two matter."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 4))
    return X, truth(X) + 0.1 * rng.normal(size=300)


def learn(model, X, y, weight=1.0):
    """The model's networks, with what they do not know away from these rows."""
    rows = Rows(np.asarray(X), np.reshape(y, (len(X), -1)), np.resize(weight, len(X)))
    far = _far_learning.learn_far_uncertainty(model.fitted_, rows, model.entropy_)
    return with_far(model, far)


def with_far(model, far):
    other = copy.copy(model)
    other.fitted_ = replace(model.fitted_, far=far)
    return other


def without_far(model):
    return with_far(model, None)


@pytest.fixture(scope="module")
def model(table):
    return learn(DeepEnsembleRegressor(random_state=0).fit(*table), *table)


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
        assert size < error < rms(model.predict_uncertainty(Z).epistemic) * 1.5


KERNELS = {"squared-exponential": RBF, "matern-5/2": partial(Matern, nu=2.5)}
KERNELS["matern-3/2"] = partial(Matern, nu=1.5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_variance_is_that_of_the_formulas(model, kernel):
    """The process uses scikit-learn's kernels here, and distances are SciPy's."""
    far = replace(model.fitted_.far, kernel=kernel)
    Z = np.concatenate([around(d, n=20) for d in (0.5, 1.2, 2, 30)])
    Z[::2, 1] = -Z[::2, 0]
    networks = np.linspace(-12, 12, 80)[:, None]
    x = (Z - far.centre) * far.inverse_stds
    z, process_rows = x * far.slopes, far.rows[: len(far.y)]
    d = cdist(z, far.rows).min(axis=1)
    joint = cdist(x @ far.decorrelation, far.joint_rows).min(axis=1)
    outside = np.linalg.norm(z - np.clip(z, far.rows.min(axis=0), far.rows.max(axis=0)), axis=1)
    share = np.minimum((outside / d) ** 2, 1)
    distances = np.maximum(d / (far.near * (2 - share)), joint / far.joint_near[1])
    rise = np.clip((distances - 1) / 0.5, 0, 1)[:, None]
    correlation = KERNELS[kernel](far.length)
    cross = correlation(z, process_rows)
    inverse = np.linalg.inv(correlation(process_rows) + far.noise * np.eye(len(far.y)))
    variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    variance *= share * far.factors[1] ** 2 + (1 - share) * far.factors[0] ** 2
    apart = far.mean + cross @ inverse @ (far.y - far.mean) - networks
    size = variance[:, None] * far.amplitude**2 + np.clip(apart, -10, 10) ** 2
    expected = rise**2 * size * (1 + (d[:, None] / far.length) ** 2)
    unsure = 1 - 1 / np.maximum(joint / far.joint_near[0], 1)
    expected += (unsure[:, None] * far.doubt) ** 2
    assert np.mean(rise == 0) > 0 and np.mean((rise > 0) & (rise < 1)) > 0
    found = np.square(far.spread(Z, networks)).sum(axis=0)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_constant_columns_do_not_count(model, table):
    """The standard deviation of equal values is rounded: that of many times 0.1 is not 0."""
    X = np.where(np.arange(4) == 2, 0.1, table[0])
    other = learn(model, X, table[1])
    moved = X + [0, 0, 1e-7, 0]
    assert_allclose(other.predict_uncertainty(moved), other.predict_uncertainty(X), rtol=1e-3)


def test_every_public_path_has_it(table):
    X, Y = table[0], np.stack([table[1], -3 * table[1]], axis=1)
    model = learn(DeepEnsembleRegressor(2, epochs=20, random_state=0).fit(X, Y), X, Y)
    Z = np.concatenate([X[:5], around(2, n=30)])
    parts, plain = model.predict_uncertainty(Z), without_far(model).predict_uncertainty(Z)
    assert (parts.epistemic[5:] > plain.epistemic[5:]).all()
    assert_allclose(parts.aleatoric, plain.aleatoric)
    # Draws have exactly the predicted moments, also by tensors.
    posterior = model.posterior_fn(random_state=0)
    draws = posterior(Z)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-6)
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-6)
    arguments = [ops.convert_to_tensor(a) for a in posterior.arguments]
    tensors = posterior.function(ops, arguments, ops.convert_to_tensor(Z))
    assert_allclose(tensors, draws, atol=1e-6)
    outputs = model.to_keras().predict_on_batch(Z)
    for name, values in zip(("mean", "aleatoric", "epistemic", "total"), parts):
        assert_allclose(outputs[name], values, rtol=1e-4, atol=1e-5)
    again = loads(dumps(model))
    assert_array_equal(again.predict_uncertainty(Z).total, parts.total)


def test_programs_of_draws_serve_fits_with_more_rows(model, table):
    fars = [learn(model, *(part[:n] for part in table)).fitted_.far for n in (40, 60)]
    one, two = ([array.shape for array in far.padded_arrays()] for far in fars)
    assert one == two


def test_it_is_learnt_where_it_can_be(model, table):
    X, y = table
    assert learn(model, X[:10], y[:10]).fitted_.far is not None
    noise = np.random.default_rng(0).normal(size=300)
    for rows in ((X[:9], y[:9]), (X, noise), (X, np.zeros(300)), (0 * X, y)):
        assert learn(model, *rows).fitted_.far is None


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


def test_copies_of_rows_are_no_neighbours(table):
    """In a table whose rows are all there twice, new rows are not far."""
    near, joint_near = _far_learning._near_distances(table[0], table[0])
    twice, joint_twice = _far_learning._near_distances(*[np.tile(table[0], (2, 1))] * 2)
    assert twice == near
    assert_allclose(joint_twice, joint_near, rtol=0.1)


def test_noise_is_less_sure_with_unseen_categories(tabular):
    """Also in rows that are near others."""
    frame, model = tabular
    rows = frame[:50].assign(c="w")
    doubt = model.fitted_.far.doubt * model.fitted_.targets.scaling.scale_
    assert added(model, rows).min() > 0.49 * doubt
    labels = DeepEnsembleClassifier(2, epochs=20, random_state=0).fit(frame, frame["a"] > 0)
    labels = learn(labels, labels.fitted_.encode(frame), frame["a"] > 0)
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
    z, y = table[0][:60, :2], table[1][:60, None]
    far = process_of(z, y, "matern-5/2")
    covariance, apart = Matern(nu=2.5)(z) + 0.1 * np.eye(60), y - y.mean()
    regions = _far_learning._left_out_regions(far)
    assert [kind for kind, *_ in regions] == [1, 0, 1] * 2
    for _, left, error, variance in regions:
        rest = np.setdiff1d(np.arange(60), left)
        cross = covariance[np.ix_(left, rest)]
        weights = np.linalg.solve(covariance[np.ix_(rest, rest)], cross.T).T
        assert_allclose(error, apart[left] - weights @ apart[rest], atol=1e-9)
        assert_allclose(variance[:, 0], 1.1 - (weights * cross).sum(axis=1), atol=1e-9)
    assert set(regions[1][1]) == set(np.argsort(z[:, np.argsort(-z.std(axis=0))[0]])[20:40])


def test_few_rows_of_a_region_of_their_own_are_known(model):
    """Reference rows cover small regions too, if there are more rows than reference rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 4))
    X[:5] = 6 + 0.1 * rng.normal(size=(5, 4))
    far = learn(model, X, truth(X)).fitted_.far
    assert far.spread(X[:5], np.zeros((5, 1))) is None
    assert far.spread(X[:5] + 4, np.zeros((5, 1))) is not None


def test_rows_of_nearly_no_weight_make_nothing_known(model, table):
    X, y = table
    there = np.full((30, 4), 3.0) + 0.1 * X[:30]
    weight = np.append(np.ones(300), np.full(30, 1e-9))
    other = learn(model, np.concatenate([X, there]), np.append(y, np.full(30, 50.0)), weight)
    assert (added(other, there) > 0.5).all()


def test_means_of_a_transformed_y_stay_near_those_of_the_networks(table):
    X, y = table
    model = DeepEnsembleRegressor(2, target_transform="yeo-johnson", epochs=50, random_state=0)
    model, Z = learn(model.fit(X, np.exp(2 * y)), X, np.exp(2 * y)), around(4)
    moved = model.predict(Z) - without_far(model).predict(Z)
    assert 0 < abs(moved).max() < np.ptp(np.exp(2 * y))


def test_rare_classes_do_not_decide_where_they_are_constant():
    """Kernels and lengths are searched on a part of the rows, in which a class may be missing."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (200, 4))
    y, rare = truth(z), np.eye(200)[150]
    with np.errstate(all="raise"):
        stretch, _, length, _ = _far_learning.fit_process(z, np.column_stack([y, rare]))
        alone, _, least, _ = _far_learning.fit_process(z, y[:, None])
        _far_learning.fit_process(z, rare[:, None])
    assert_array_equal(stretch, alone)
    assert 0.5 * least < length < 2 * least


@pytest.fixture(scope="module")
def classifier(table):
    codes = np.digitize(truth(table[0]), [-0.3, 0.7])
    model = DeepEnsembleClassifier(3, random_state=0).fit(table[0], np.array([*"abc"])[codes])
    return learn(model, table[0], codes)


def test_classes_become_their_shares_and_members_disagree(classifier):
    model, shares = classifier, classifier.fitted_.far.mean
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
    far = replace(classifier.fitted_.far, mean=np.array([0.5, 0.3, 0.2]))
    mix = np.array([0.4, 0.6])
    mixture = CategoricalMixture(np.array([[[0.2, 0.2, 0.6]], [[0.9, 0.1, 0.0]]]), mix)
    found = far.widen(mixture, np.full((1, 4), 1e6), classifier.fitted_.targets).proba[:, 0]
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
    assert _far_learning.fit_class_factors(far)[0] == 1 / 16
    assert _far_learning.fit_class_factors(by_chance)[0] == 1
