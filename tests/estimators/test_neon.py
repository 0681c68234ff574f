"""NEON: functions and plain numbers, given bases, posteriors, and what it refuses."""

import pickle
from functools import partial

import numpy as np
import operators
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import FURTHER, INPUTS, QUERIES, VALUES, FunctionTargets, build, std_of
from plans import sequential
from problems import make_operator_problem
from sklearn import config_context
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from tiers import cases

from skuq import NEONRegressor
from skuq.backend import keras, ops

layers = keras.layers
EPINET = {"prior": "epinet", "prior__units": 8, "prior__prior_units": 4, "prior__n_index": 4}
EPINET |= {"prior__n_index_samples": 4, "n_draws": 64}
SMALL = {**operators.SMALL, **EPINET}
WAVES, TOWERS = {"m": 16, "n": 15}, {"m": 2, "d_u": 30, "n": 170}


def small(**changes):
    return build(NEONRegressor, **{**SMALL, "query_points": QUERIES, **changes})


def fit_small(**changes):
    return small(**changes).fit(INPUTS, VALUES)


def test_predict_takes_the_query_points_of_fit_by_default():
    fitted = fit_small()
    expected = fitted.predict(FURTHER)
    assert_array_equal(fitted.predict(FURTHER, query_points=QUERIES), expected)
    one = fitted.predict(FURTHER, query_points=QUERIES[3:4])
    assert_allclose(one[:, 0], expected[:, 3], atol=1e-12)
    for part in fitted.predict([[1e30], [-1e300]], return_std=True, query_points=[0, 1e30]):
        assert np.isfinite(part).all()


def job_of(plan, model, n=2, d_u=4, q=3, d_y=2, m=1):
    """The first training of a fit to n random functions."""
    rng = np.random.default_rng(0)
    model.query_points = rng.uniform(size=(q, d_y))
    (job,), _ = plan(model, rng.normal(size=(n, d_u)), rng.normal(size=(n, q, m)))
    return job


@cases(
    ("name", "sizes", "n_parameters", "n_steps", "shares", "rates"),
    # Steps counted from 0; rates as a share of the largest.
    ("pollutants", {"n": 40}, 27_746, 24_000, (0, 1 / 2, 23 / 24), 0.75 ** np.array([0, 12, 23])),
    ("brusselator", {"m": 2, "n": 5}, 38_820, 4_000, (0, 1 / 4, 3 / 4), (1, 0.8, 0.8**3)),
    ("brusselator", {"m": 2, "n": 20}, 38_820, 8_000, (0, 1 / 8, 3 / 4), (1, 0.8, 0.8**6)),
    # Table 3 counts an encoder of two layers of 128; the text has four of 64. There are 300 linear
    # steps, then half a cosine from 5e-2 to 3e-3: half-way at 300 + 14 700 / 2.
    ("interferometer", WAVES, 185_232, 15_000, (0.01, 0.02, 0.51, 1), (0.5, 1, 0.53, 0.06)),
    # The same from 8e-3 to 3e-3 in 12 000 steps.
    ("cell_towers", TOWERS, 93_096, 14_400, (0.0125, 0.025, 0.5125, 1), (0.5, 1, 0.6875, 0.375)),
)
def test_from_paper_is_the_papers(plan, name, sizes, n_parameters, n_steps, shares, rates):
    model = NEONRegressor.from_paper(name, batch_size=None)  # a batch an epoch
    job = job_of(plan, model, **sizes)
    assert len(operators.first_draw(job.network, 0)[0]) == n_parameters
    recipe = job.recipe
    assert recipe.epochs == n_steps and recipe.epsilon == model.training.epsilon
    factors = recipe.rate_factors(np.arange(n_steps), n_steps)
    assert factors.max() == pytest.approx(1, rel=1e-3)
    at = np.minimum(np.round(np.array(shares) * n_steps).astype(int), n_steps - 1)
    assert_allclose(factors[at], rates, rtol=0.01 if recipe.warmup else 1e-9)


@pytest.mark.parametrize(
    ("name", "batch_size", "clip_norm", "unit"),
    [("interferometer", 16_384, 5e-7, 255), ("cell_towers", 2_500, 5e-5, None)],
)
def test_from_paper_has_the_authors_clips(name, batch_size, clip_norm, unit):
    """Their loss sums over a batch, times the mean of 1 / |s|^2; errors have units of their own."""
    problem = make_operator_problem(name)
    U = np.random.default_rng(0).uniform(*problem.bounds.T, (15, len(problem.bounds)))
    S, model = problem(U), NEONRegressor.from_paper(name)
    targets = FunctionTargets(output_map=model.output_map)
    scale = targets.fit(targets.fit_encoder(S, np.ones(15))).scale_
    unit = S.std(axis=(0, 1)) if unit is None else unit
    error = np.random.default_rng(1).normal(size=S.shape) * scale
    theirs = np.mean(1 / np.sum(S**2, axis=(1, 2))) * batch_size
    theirs *= np.mean(np.sum(0.5 * (error / unit) ** 2, axis=-1))
    ours = np.mean(0.5 * (error / scale) ** 2)
    assert model.training.clip_norm == pytest.approx(clip_norm * ours / theirs, rel=0.5)
    assert model.training.epsilon / model.training.clip_norm == pytest.approx(1e-8 / clip_norm)
    assert NEONRegressor.from_paper("brusselator").training.epsilon == 1e-8  # Optax', as it is
    with pytest.raises(ValueError, match="`name` must be one of .*pollutants.* Got 'rosenbrock'"):
        NEONRegressor.from_paper("rosenbrock")


def test_fit_gives_columns_scales_of_their_own_on_request():
    Y = VALUES * [1, 10, 100, 1000] + [0, 5, 0, -3]
    model = small(standardize="columns").fit(INPUTS, Y)
    targets = model.fitted_.targets
    assert_allclose(targets.scale_[1:, 0], Y.std(axis=0)[1:])  # the first is constant
    assert_allclose(targets.mean_[:, 0], Y.mean(axis=0))
    assert_array_equal(model.predict(INPUTS, query_points=QUERIES), model.predict(INPUTS))
    with pytest.raises(ValueError, match="standardize='columns' each query point"):
        model.predict(INPUTS, query_points=QUERIES[:2])


@cases(
    ("changes", "batch_size", "epochs"),
    ({"batch_size": 16}, 16, 13),  # 8 batches an epoch
    ({"batch_size": None}, 120, 100),
    ({"batch_size": 4, "batch_over": "functions"}, 48, 34),
)
def test_fit_takes_whole_epochs_of_steps(plan, changes, batch_size, epochs):
    recipe = job_of(plan, small(training__steps=100, **changes), n=10, q=12).recipe
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)


def test_function_targets_weigh_functions_by_their_size():
    """Eq. 2: each squared error over the function's squared norm, both in the same units."""
    rng = np.random.default_rng(0)
    _, Y, weight = rng.normal(size=(5, 2)), rng.normal(size=(5, 3, 2)), rng.uniform(1, 2, 5)
    Y *= np.array([1, 2, 3, 4, 1e-3])[:, None, None] * [1, 100]
    targets = FunctionTargets("relative")
    values = targets.fit_encoder(Y, weight)
    targets.fit(values)
    assert_allclose(targets.scale_, Y.std(axis=(0, 1))[None], rtol=1e-12)
    size = ((Y / targets.scale_) ** 2).mean(axis=(1, 2))
    assert size[4] < 0.01 * size.mean()  # a function of nearly nothing has a share at least
    size[4] = 0.01 * size.mean()
    pairs, expected = targets.pair_weights(values, weight), np.repeat(weight / size, 3)
    assert_allclose(pairs / pairs.mean(), expected / expected.mean(), rtol=1e-5)
    plain = FunctionTargets("squared")
    plain.fit(plain.fit_encoder(Y, weight))
    pairs, expected = plain.pair_weights(values, weight), np.repeat(weight, 3)
    assert_allclose(pairs / pairs.mean(), expected / expected.mean(), rtol=1e-5)


def test_fit_takes_relative_errors_of_functions_and_not_of_single_numbers(plan):
    def weights(Y, **changes):
        return plan(small(query_points=None, **changes), INPUTS, Y)[1].weight

    assert np.ptp(weights(VALUES[:, 3])) == np.ptp(weights(VALUES, loss="squared")) == 0
    assert np.ptp(weights(VALUES)) > 0
    assert_array_equal(weights(VALUES), weights(VALUES, loss="relative"))


def one_input_of_keras():
    keras.utils.set_random_seed(0)
    return sequential((1,), layers.Dense(6, activation="tanh"), layers.Dense(4))


@cases(
    ("make", "queries"),
    (one_input_of_keras, QUERIES),
    (lambda: FrozenEstimator(LinearRegression().fit(INPUTS, VALUES)), None),
    ids=["keras", "linear"],
)
def test_fit_keeps_a_given_regressor_as_it_is(make, queries):
    given = make()
    settings = {"training__steps": 100, "learning_rate": 0.02, "pretrained": given}
    model = fit_small(**settings, query_points=queries)
    posterior = model.fitted_.posterior_of(model.index_)
    assert posterior.key is None
    copied = pickle.loads(pickle.dumps(posterior))
    for X in (INPUTS, FURTHER):
        mean, std = model.predict(X, return_std=True)
        assert_array_equal(mean, given.predict(X))
        assert (std > 0).all() and np.isfinite(std).all()
        draws = posterior(X)
        assert_allclose(draws.mean(axis=0), mean, atol=1e-7)
        assert_allclose(draws.std(axis=0), std, rtol=1e-5)
        assert_array_equal(copied(X), draws)
    assert std_of(model, FURTHER).mean() > 1.5 * std_of(model, INPUTS).mean()


def test_fit_keeps_a_keras_model_of_u_and_y_as_it_is_and_reads_what_its_output_map_reads():
    given = operators.operator_of_keras(1, 1, 1)
    before = given.get_weights()
    model = clone(small(pretrained=given, warm_start=True)).fit(INPUTS[:3], VALUES[:3])
    first = model.fitted_.given
    hidden = first.features(INPUTS[:3])[:, :8]  # of one scale
    assert_allclose(hidden.mean(axis=0), 0, atol=1e-5)
    assert_allclose(hidden.var(axis=0).mean(), 1, rtol=1e-5)
    kept = model.fit(INPUTS, VALUES).fitted_.given
    assert_array_equal(kept.mean_, first.mean_)
    assert kept.scale_ == first.scale_
    for queries in (QUERIES, np.array([0.11, 0.5])):
        pairs = [np.repeat(FURTHER, len(queries), axis=0), np.tile(queries[:, None], (3, 1))]
        expected = given.predict(pairs, verbose=0)
        assert_array_equal(model.predict(FURTHER, query_points=queries).ravel(), expected.ravel())
    assert (std_of(model, FURTHER) > 0).all()
    assert all(map(np.array_equal, given.get_weights(), before))
    limit = 0.5

    def clip(v):
        return ops.clip(v, -limit, limit)

    wide, limit = fit_small(output_map=clip).predict(FURTHER), 1e-3
    narrow = fit_small(output_map=clip).predict(FURTHER)
    assert np.ptp(narrow) <= 2e-3 * VALUES.std() < np.ptp(wide)


def test_fit_learns_the_noise_by_likelihood():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    y = X[:, 0] + 0.3 * rng.normal(size=200)
    settings = {**operators.WAVE_SETTINGS, **EPINET, "query_points": None, "training__steps": 300}
    model = build(NEONRegressor, **settings, loss="nll").fit(X, y)
    assert_allclose(model.predict_uncertainty([[-0.5], [0.0], [0.5]]).aleatoric, 0.3, rtol=0.3)
    flat = -0.5 * np.log(2 * np.pi) - 0.5 - np.log(0.3)  # of the noise itself
    assert model.log_prob(X, y).mean() > flat - 0.2


def test_predict_takes_query_points_of_a_frame_with_their_columns():
    rng = np.random.default_rng(0)
    points = pd.DataFrame({"t": rng.uniform(size=6), "x": rng.uniform(size=6)})
    U, S = rng.normal(size=(8, 2)), rng.normal(size=(8, 6))
    model = small(query_points=points, noise_std=0.0).fit(U, S)
    assert_array_equal(model.predict(U, query_points=points), model.predict(U))
    assert_array_equal(model.predict(U, query_points=points.to_numpy()), model.predict(U))
    with pytest.raises(ValueError, match=r"must have the columns .*\['t', 'x'\]. Got \['x', 't'\]"):
        model.predict(U, query_points=points[["x", "t"]])
    with config_context(enable_metadata_routing=True):
        routed = NEONRegressor().set_predict_request(query_points=True).get_metadata_routing()
        assert routed.consumes("predict", ["query_points"])


def test_fit_refuses_frozen_layers_and_sums_that_keras_takes_for_a_bias():
    def build(d_u, d_y, n_outputs, is_first, trainable=True):
        u, y = keras.Input((d_u,)), keras.Input((d_y,))
        hidden = layers.Dense(4, name="fixed", trainable=trainable)(layers.Concatenate()([u, y]))
        terms = [layers.Dense(1)(y), hidden]  # the first is one number for each row
        total = layers.Add(name="total")(terms if is_first else terms[::-1])
        return keras.Model([u, y], layers.Dense(n_outputs)(total))

    with pytest.raises(ValueError, match="'total' adds a tensor.*With 4 rows.*Swap the two"):
        fit_small(network=partial(build, is_first=False))
    with pytest.raises(ValueError, match="no frozen layers or variables.*of 'fixed'"):
        fit_small(network=partial(build, is_first=True, trainable=False))
