"""NEON: functions and plain numbers, given bases, posteriors, and what it refuses."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import operators
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import (
    FAR,
    INPUTS,
    NEAR,
    POINTS,
    QUERIES,
    VALUES,
    WAVE_SETTINGS,
    build,
    inputs,
    std_of,
    waves,
)
from problems import make_operator_problem
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiers import slow_after

import skuq.training
from skuq import NEONRegressor
from skuq.backend import keras, ops
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.tables._functions import FunctionTargets
from skuq.training._job import template_of
from skuq.training._networks import DrawingNetwork
from skuq.training._predict import read_network

layers = keras.layers

SMALL = {
    **operators.SMALL,
    "prior__units": 8,
    "prior__prior_units": 4,
    "prior__n_index": 3,
    "prior__n_index_samples": 2,
    "n_draws": 16,
    "prior": "epinet",
}


def small(**changes):
    return build(NEONRegressor, **{**SMALL, "query_points": QUERIES, **changes})


def fit_small(**changes):
    return small(**changes).fit(INPUTS, VALUES)


def explained(model, X, Y):
    """Share of all values' squares that predictions explain."""
    return 1 - np.sum((model.predict(X) - Y) ** 2) / np.sum((Y - Y.mean()) ** 2)


def wave_model(**changes):
    settings = {
        **WAVE_SETTINGS,
        "prior__units": 8,
        "prior__prior_units": 4,
        "prior__n_index": 4,
        "prior__n_index_samples": 4,
        "n_draws": 64,
        "training__steps": 500,
        "prior": "epinet",
        "noise_std": 0.0,
    }
    return build(NEONRegressor, **{**settings, **changes})


@pytest.fixture(scope="module")
def wave():
    u = inputs(40)
    return wave_model().fit(u, waves(u))


def test_query_points_of_fit_are_the_default(wave):
    assert_array_equal(wave.predict(NEAR), wave.predict(NEAR, query_points=POINTS))
    one = wave.predict(NEAR, query_points=POINTS[3:4])
    assert_allclose(one[:, 0], wave.predict(NEAR)[:, 3], atol=1e-12)


@pytest.mark.slow
def test_a_larger_prior_is_less_sure_away_from_the_inputs():
    u = inputs(40)
    weak, strong = (wave_model(prior__scale=k).fit(u, waves(u)) for k in (0.25, 3.0))
    assert std_of(strong, FAR).mean() > 2 * std_of(weak, FAR).mean()


def test_a_draw_is_one_smooth_function(wave):
    y = np.linspace(0, 2, 101)
    path = np.stack([np.linspace(1.5, 3.5, 101), np.full(101, 1.0)], axis=1)
    along_y = wave.sample_y(FAR[:1], 200, 0, query_points=y)[0]  # (101, 200)
    along_u = wave.sample_y(path, 200, 0)[:, 6]
    for draws in (along_y, along_u):
        spread = draws.std(axis=1).mean()
        assert spread > 0.05
        # Neighbours a hundredth of the range apart nearly agree; independent ones would
        # differ by 1.4 standard deviations.
        assert (
            np.abs(np.diff(draws - draws.mean(axis=1, keepdims=True), axis=0)).max() < 0.5 * spread
        )
        correlation = np.corrcoef(draws[::10])
        assert (np.diag(correlation, 1) > 0.9).all()


def test_draws_agree_with_predictions(wave):
    draws = wave.sample_y(FAR, 3000, random_state=0)
    mean, std = wave.predict(FAR, return_std=True)
    assert draws.shape == (30, 12, 3000)
    # Predictions average over 64 indices: an eighth of a standard deviation is one error.
    assert np.abs((draws.mean(axis=2) - mean) / std).mean() < 0.15
    assert_allclose(draws.std(axis=2).mean(), std.mean(), rtol=0.15)
    assert_array_equal(wave.sample_y(FAR, 3, 1), wave.sample_y(FAR, 3, 1))
    assert abs(wave.sample_y(FAR, 3, 1) - wave.sample_y(FAR, 3, 2)).max() > 0


def test_one_number_a_row_is_plain_regression():
    rng = np.random.default_rng(0)
    X, T = rng.uniform(-1, 1, (2, 80, 2))
    model = wave_model(query_points=None, training__steps=400).fit(X, np.sin(2 * X[:, 0]) + X[:, 1])
    assert model.score(T, np.sin(2 * T[:, 0]) + T[:, 1]) > 0.9
    assert model.predict(T).shape == (80,)
    assert std_of(model, 4 * T).mean() > 2 * std_of(model, X).mean()


@pytest.mark.slow
def test_fourier_features_follow_fast_functions():
    u, y = np.linspace(0.5, 1.5, 5)[:, None], np.linspace(0, 1, 50)
    Y = u * np.sin(30 * y)
    options = {"query_points": y, "network__latent": 32, "training__steps": 300}
    slow, fast = (wave_model(network__fourier_scale=k, **options).fit(u, Y) for k in (None, 5.0))
    assert explained(fast, u, Y) > 0.9 > explained(slow, u, Y)


# The paper's networks and training -----------------------------------------------------------


class _Trained(Exception):
    """Carries what would have been trained."""


def trained(monkeypatch, model, n=2, d_u=4, q=3, d_y=2, m=1):
    """Network and recipe of a fit to n functions, without training."""

    def instead(job, data, **options):
        raise _Trained(template_of(job.network).model, job.recipe, data)

    monkeypatch.setattr(skuq.training, "train", instead)
    rng = np.random.default_rng(0)
    model.query_points = rng.uniform(size=(q, d_y))
    with pytest.raises(_Trained) as caught:
        model.fit(rng.normal(size=(n, d_u)), rng.normal(size=(n, q, m)))
    return caught.value.args


@pytest.mark.parametrize(
    ("name", "changes", "sizes", "n_parameters"),
    [
        ("pollutants", {}, {}, 27_746),
        ("brusselator", {}, {"m": 2}, 38_820),
        ("cell_towers", {}, {"m": 2, "d_u": 30}, 93_096),
        # Table 3 counts an encoder of two layers of 128; the text has four of 64.
        ("interferometer", {"network__encoder_units": (128, 128)}, {"m": 16}, 195_728),
        ("interferometer", {"network__encoder_units": (64,) * 4}, {"m": 16}, 185_232),
    ],
)
def test_networks_have_the_papers_numbers_of_parameters(
    monkeypatch, name, changes, sizes, n_parameters
):
    network, _, _ = trained(monkeypatch, NEONRegressor.from_paper(name, **changes), **sizes)
    assert sum(int(np.prod(shape)) for shape in DrawingNetwork(network).shapes) == n_parameters


@pytest.mark.parametrize(
    ("name", "n", "n_steps", "shares", "rates"),
    [
        # Steps counted from 0; rates as a share of the largest.
        ("pollutants", 5, 12_000, (0, 1 / 12, 5 / 12), 0.75 ** np.array([0, 1, 5])),
        ("pollutants", 40, 24_000, (0, 1 / 2, 23 / 24), 0.75 ** np.array([0, 12, 23])),
        ("brusselator", 5, 4_000, (0, 1 / 4, 3 / 4), 0.8 ** np.array([0, 1, 3])),
        ("brusselator", 20, 8_000, (0, 1 / 8, 3 / 4), 0.8 ** np.array([0, 1, 6])),
        # 300 linear steps, then half a cosine from 5e-2 to 3e-3: half-way at 300 + 14 700 / 2.
        ("interferometer", 15, 15_000, (0.01, 0.02, 0.51), (0.5, 1, (1 + 0.06) / 2)),
        ("interferometer", 100, 18_000, (0.01, 0.02, 0.51), (0.5, 1, (1 + 0.06) / 2)),
        # The same from 8e-3 to 3e-3 in 12 000 steps.
        ("cell_towers", 20, 12_000, (0.0125, 0.025, 0.5125), (0.5, 1, (1 + 0.375) / 2)),
        ("cell_towers", 170, 14_400, (0.0125, 0.025, 0.5125), (0.5, 1, (1 + 0.375) / 2)),
    ],
)
def test_steps_and_rates_are_those_of_the_paper(monkeypatch, name, n, n_steps, shares, rates):
    model = NEONRegressor.from_paper(name, batch_size=None)  # a batch an epoch
    _, recipe, _ = trained(monkeypatch, model, n=n)
    assert recipe.epochs == n_steps and recipe.epsilon == model.training.epsilon
    factors = recipe.rate_factors(0, n_steps, n_steps)
    assert factors.max() == pytest.approx(1, rel=1e-3)
    at = np.round(np.array(shares) * n_steps).astype(int)
    assert_allclose(factors[at], rates, rtol=0.01 if recipe.warmup else 1e-9)
    last = {"interferometer": 0.06, "cell_towers": 0.375}
    if name in last:
        assert factors[-1] == pytest.approx(last[name], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "batch_size", "clip_norm", "unit"),
    [("interferometer", 16_384, 5e-7, 255), ("cell_towers", 2_500, 5e-5, None)],
)
def test_clips_are_the_authors_in_the_scale_of_this_loss(name, batch_size, clip_norm, unit):
    """Their loss sums over a batch, times the mean of 1 / |s|^2; errors have units of their own."""
    problem = make_operator_problem(name)
    U = np.random.default_rng(0).uniform(*problem.bounds.T, (15, len(problem.bounds)))
    S = problem(U)
    model = NEONRegressor.from_paper(name)
    targets = FunctionTargets(output_map=model.output_map)
    values = targets.fit_encoder(S, np.ones(15))
    scale = targets.fit(values).scale_
    unit = S.std(axis=(0, 1)) if unit is None else unit
    error = np.random.default_rng(1).normal(size=S.shape) * scale
    theirs = np.mean(1 / np.sum(S**2, axis=(1, 2))) * batch_size
    theirs *= np.mean(np.sum(0.5 * (error / unit) ** 2, axis=-1))
    ours = np.mean(0.5 * (error / scale) ** 2)
    assert model.training.clip_norm == pytest.approx(clip_norm * ours / theirs, rel=0.5)
    assert model.training.epsilon / model.training.clip_norm == pytest.approx(1e-8 / clip_norm)
    assert NEONRegressor.from_paper("brusselator").training.epsilon == 1e-8  # Optax', as it is


def test_steps_may_depend_on_the_number_of_functions(monkeypatch):
    model = small(
        training__steps=lambda n: 10 * n, training__final_lr_factor=lambda steps: 1 / steps
    )
    _, recipe, _ = trained(monkeypatch, model, n=7)
    assert recipe.epochs == 70 and recipe.final_lr_factor == 1 / 70
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match=f"`steps` must give .* Got {wrong} for 6 functions"):
            fit_small(training__steps=lambda n, wrong=wrong: wrong)


def test_settings_of_the_paper_can_be_cloned_and_pickled():
    model = NEONRegressor.from_paper("pollutants")
    for twin in (clone(model), pickle.loads(pickle.dumps(model))):
        assert repr(twin) == repr(model)


def test_columns_have_scales_of_their_own_on_request():
    Y = VALUES * [1, 10, 100, 1000] + [0, 5, 0, -3]
    model = fit_small(standardize="columns")
    targets = small(standardize="columns").fit(INPUTS, Y).fitted_.targets
    assert_allclose(targets.scale_[1:, 0], Y.std(axis=0)[1:])  # the first is constant
    assert_allclose(targets.mean_[:, 0], Y.mean(axis=0))
    assert_array_equal(model.predict(INPUTS, query_points=QUERIES), model.predict(INPUTS))
    with pytest.raises(ValueError, match="standardize='columns' each query point"):
        model.predict(INPUTS, query_points=QUERIES[:2])


@pytest.mark.slow
def test_the_interferometers_settings_train():
    """With the authors' clip and Keras' epsilon hardly a step is taken."""
    u, y = inputs(15), np.linspace(0, 1, 30)
    Y = 0.5 + 0.4 * np.sin(6 * u[:, :1] * y + u[:, 1:])
    sizes = {
        "network__encoder_units": (32,),
        "network__decoder_units": (32, 32),
        "network__latent": 32,
    }
    settings = {"query_points": y, "training__steps": 1500, "batch_size": None, "random_state": 0}
    model = NEONRegressor.from_paper("interferometer", **sizes, **settings)
    assert explained(model.fit(u, Y), u, Y) > 0.9


@pytest.mark.parametrize(
    ("changes", "batch_size", "epochs"),
    [
        ({"batch_size": 16}, 16, 13),  # 8 batches an epoch
        ({"batch_size": None}, 120, 100),
        ({"batch_size": 4, "batch_over": "functions"}, 48, 34),
        ({"batch_size": 1000}, 1000, 100),
    ],
)
def test_steps_are_whole_epochs(monkeypatch, changes, batch_size, epochs):
    _, recipe, _ = trained(monkeypatch, small(training__steps=100, **changes), n=10, q=12)
    assert (recipe.batch_size, recipe.epochs) == (batch_size, epochs)


def test_relative_loss_weighs_functions_by_their_size():
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
    pairs = targets.pair_weights(values, weight)
    expected = np.repeat(weight / size, 3)
    assert_allclose(pairs / pairs.mean(), expected / expected.mean(), rtol=1e-5)
    plain = FunctionTargets("squared")
    plain.fit(plain.fit_encoder(Y, weight))
    pairs, expected = plain.pair_weights(values, weight), np.repeat(weight, 3)
    assert_allclose(pairs / pairs.mean(), expected / expected.mean(), rtol=1e-5)


def test_relative_loss_serves_functions_and_not_single_numbers(monkeypatch):
    def weights(Y, **changes):
        def instead(job, data, **options):
            raise _Trained(data.weight)

        monkeypatch.setattr(skuq.training, "train", instead)
        with pytest.raises(_Trained) as caught:
            small(query_points=None, **changes).fit(INPUTS, Y)
        return caught.value.args[0]

    assert np.ptp(weights(VALUES[:, 3])) == 0
    assert np.ptp(weights(VALUES, loss="squared")) == 0
    assert np.ptp(weights(VALUES)) > 0
    assert_array_equal(weights(VALUES), weights(VALUES, loss="relative"))


def test_prior_stays_as_it_was_drawn(wave):
    network, seed = read_network(wave.members_[0].network), wave.members_[0].seed
    entropy = np.random.SeedSequence(seed).generate_state(4)
    weights, prior = DrawingNetwork(network).draw(int(entropy[0]))
    for before, after in zip(prior, wave.members_[0].state):
        assert_array_equal(before, after)
    assert (
        len(weights) == wave.n_parameters_ and abs(weights - wave.members_[0].weights).max() > 0.1
    )


@pytest.mark.slow
def test_one_step_without_a_prior_hardly_varies():
    """What a run of a single step knows of z is the first weights' doing alone."""
    plain = small(training__steps=1, learning_rate=1e-9, prior__scale=0.0)
    without, prior = (clone(plain).set_params(prior__scale=k) for k in (0.0, 5.0))
    stds = [std_of(model.fit(INPUTS, VALUES), INPUTS).mean() for model in (without, prior)]
    assert 0 < stds[0] < 0.5 * stds[1]
    network = DrawingNetwork(read_network(without.members_[0].network))
    entropy = np.random.SeedSequence(without.members_[0].seed).generate_state(4)
    assert_allclose(without.members_[0].weights, network.draw(int(entropy[0]))[0], atol=1e-7)


def test_weights_draw_the_fit_to_their_functions():
    u = np.array([[0.0], [0.0]])
    model = small(query_points=None, training__steps=300, learning_rate=0.02, loss="squared")
    model.fit(u, np.array([0.0, 1.0]), sample_weight=[1, 9])
    assert model.predict([[0.0]])[0] == pytest.approx(0.9, abs=0.05)


# Shapes ----------------------------------------------------------------------


def test_single_numbers_with_a_query_point_are_functions_of_it():
    model = small(query_points=[0.3]).fit(INPUTS, VALUES[:, 1])
    assert model.predict(INPUTS).shape == (6,)
    for part in model.predict_uncertainty(INPUTS, query_points=[0.3, 0.4]):
        assert part.shape == (6, 2)
    assert model.sample_y(INPUTS, 3, query_points=[0.3, 0.4]).shape == (6, 2, 3)
    assert model.posterior_fn(8, query_points=[0.3, 0.4])(INPUTS).shape == (8, 6, 2)
    assert_allclose(model.predict(INPUTS, query_points=[0.3, 0.4])[:, 0], model.predict(INPUTS))


def test_one_component_is_no_component():
    flat, deep = fit_small(), small().fit(INPUTS, VALUES[..., None])
    assert_array_equal(flat.predict(INPUTS), deep.predict(INPUTS)[..., 0])


@pytest.mark.parametrize(
    "given",
    [
        (pd.DataFrame({"a": INPUTS[:, 0]}), pd.DataFrame(VALUES), pd.DataFrame({"y": QUERIES})),
        (INPUTS.tolist(), VALUES.tolist(), QUERIES.tolist()),
        (np.asfortranarray(np.repeat(INPUTS, 2, 1))[:, ::2], np.asfortranarray(VALUES), QUERIES),
        (INPUTS, VALUES.astype(object), QUERIES[:, None]),
    ],
    ids=["pandas", "lists", "strides", "objects"],
)
def test_containers_make_no_difference(given):
    X, Y, queries = given
    model = small(query_points=queries).fit(X, Y)
    assert_array_equal(model.predict(X), fit_small().predict(INPUTS))
    assert_array_equal(model.predict(X, query_points=queries), model.predict(X))


def test_single_precision_input():
    model = small().fit(INPUTS.astype("float32"), VALUES.astype("float32"))
    assert_allclose(model.predict(INPUTS), fit_small().predict(INPUTS), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_units_make_no_difference(scale):
    base = fit_small()
    of_y, of_x = small().fit(INPUTS, scale * VALUES), small().fit(scale * INPUTS, VALUES)
    expected = base.predict(INPUTS, return_std=True)
    for part, scaled in zip(expected, of_y.predict(INPUTS, return_std=True)):
        assert_allclose(scaled / scale, part, rtol=1e-4, atol=1e-5)
    for part, scaled in zip(expected, of_x.predict(scale * INPUTS, return_std=True)):
        assert_allclose(scaled, part, rtol=1e-4, atol=1e-5)


def test_columns_without_query_points_have_scales_of_their_own():
    """A table of unlike columns is no function."""
    X = inputs(40)
    Y = np.stack([X[:, 0], 1e6 * X[:, 1] + 1e7], axis=1)
    model = wave_model(query_points=None, training__steps=300).fit(X, Y)
    assert r2_score(Y, model.predict(X), multioutput="raw_values").min() > 0.9


@pytest.mark.parametrize(
    "rows",
    [
        (INPUTS[:1], VALUES[:1]),
        (INPUTS, np.full((6, 4), 7.0)),
        (INPUTS, np.zeros((6, 4))),
        (INPUTS, VALUES * (INPUTS > 1)),
        (np.hstack([INPUTS, np.full((6, 1), 3.0)]), VALUES),
        (np.ones((6, 1)), VALUES),
    ],
    ids=["one row", "constant", "zero", "zero functions", "constant column", "one input"],
)
def test_poor_data_give_finite_predictions(rows):
    model = small(n_draws=2, training__steps=2).fit(*rows)
    for part in model.predict(rows[0], return_std=True):
        assert np.isfinite(part).all()
    assert (std_of(model, rows[0]) > 0).all()


def test_far_inputs_and_queries_give_finite_predictions():
    model = fit_small()
    for part in model.predict([[1e30], [-1e300]], return_std=True, query_points=[0, 1e30]):
        assert np.isfinite(part).all()


# Posterior ----------------------------------------------------------------------


def test_posterior_at_other_query_points(wave):
    y = np.array([0.1, 0.77])
    posterior = wave.posterior_fn(64, random_state=0, query_points=y)
    assert posterior.output_shape == (2,)
    mean, std = wave.predict(NEAR, True, query_points=y)
    assert np.abs((posterior(NEAR).mean(axis=0) - mean) / std).mean() < 0.5


# A given base ----------------------------------------------------------------------


def operator_of_keras(d_u, d_y, n_raw, seed=0):
    """Two inputs, and a layer that no plan knows."""
    keras.utils.set_random_seed(seed)
    u, y = keras.Input((d_u,)), keras.Input((d_y,))
    value = layers.Dense(6, activation="tanh")(layers.Concatenate()([u, y]))
    value = layers.PReLU()(layers.LayerNormalization()(value))
    return keras.Model([u, y], layers.Dense(n_raw)(value))


def pairs_of(X, queries):
    return [np.repeat(X, len(queries), axis=0), np.tile(queries[:, None], (len(X), 1))]


def with_given(model, Y=VALUES, **changes):
    settings = {"training__steps": 100, "learning_rate": 0.02, "pretrained": model, **changes}
    return small(**settings).fit(INPUTS, Y)


FURTHER = np.array([[4.0], [6.0], [-3.0]])


@pytest.mark.slow
@pytest.mark.parametrize("n_components", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_given_operator_stays_as_it_is(n_components):
    given = operator_of_keras(1, 1, n_components)
    before = given.get_weights()
    values = given.predict(pairs_of(INPUTS, QUERIES), verbose=0).reshape(6, 4, n_components)
    model = with_given(given, values if n_components == 2 else values[..., 0])
    for X in (INPUTS, FURTHER):
        mean, std = model.predict(X, return_std=True)
        expected = given.predict(pairs_of(X, QUERIES), verbose=0)
        assert_array_equal(mean.ravel(), expected.ravel())
        assert (std > 0).all()
    assert std_of(model, FURTHER).mean() > 2 * std_of(model, INPUTS).mean()
    others = np.array([0.11, 0.5])
    expected = given.predict(pairs_of(INPUTS, others), verbose=0)
    assert_array_equal(model.predict(INPUTS, query_points=others).ravel(), expected.ravel())
    for after, kept in zip(given.get_weights(), before):
        assert_array_equal(after, kept)


def one_input_of_keras():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((1,)), layers.Dense(6, activation="tanh"), layers.Dense(4)]
    )


GIVEN = {
    "keras": one_input_of_keras,
    "linear": lambda: LinearRegression().fit(INPUTS, VALUES),
    "forest": lambda: RandomForestRegressor(5, random_state=0).fit(INPUTS, VALUES),
    "neon": fit_small,
}


def given_values(given, X):
    return given.predict(X, **({"verbose": 0} if isinstance(given, keras.Model) else {}))


@pytest.mark.parametrize("name", slow_after(2, ["keras", "linear", "forest", "neon"]))
@pytest.mark.parametrize("queries", [QUERIES, None], ids=["functions", "columns"])
def test_given_regressor_stays_as_it_is(name, queries):
    given = GIVEN[name]()
    model = with_given(given, query_points=queries, training__steps=100)
    for X in (INPUTS, FURTHER):
        mean, std = model.predict(X, return_std=True)
        assert_array_equal(mean, given_values(given, X))
        assert (std > 0).all() and np.isfinite(std).all()
    assert std_of(model, FURTHER).mean() > 1.5 * std_of(model, INPUTS).mean()


def test_given_regressor_of_single_numbers():
    given = RandomForestRegressor(5, random_state=0).fit(INPUTS, VALUES[:, 3])
    model = with_given(given, VALUES[:, 3], query_points=None)
    assert_array_equal(model.predict(FURTHER), given.predict(FURTHER))
    draws = model.sample_y(FURTHER, 500, 0)
    assert draws.shape == (3, 500)
    assert (abs(draws.mean(axis=1) - given.predict(FURTHER)) < 0.5 * std_of(model, FURTHER)).all()


def test_given_base_gives_draws_in_numpy_only():
    model = with_given(LinearRegression().fit(INPUTS, VALUES), training__steps=5)
    posterior = model.posterior_fn(64, random_state=0)
    assert posterior.key is None
    draws, (mean, std) = posterior(FURTHER), model.predict(FURTHER, return_std=True)
    assert_array_equal(pickle.loads(pickle.dumps(posterior))(FURTHER), draws)
    assert draws.shape == (64, 3, 4)
    assert_allclose(draws.mean(axis=0), mean, atol=0.5 * std.max())
    found = model.fitted_.posterior_of(model.index_)(FURTHER)
    assert_allclose(found.mean(axis=0), mean, atol=1e-9)
    assert_allclose(found.std(axis=0), std, rtol=1e-6)


def test_clone_keeps_what_is_given_if_it_is_frozen():
    line = LinearRegression().fit(INPUTS, VALUES)
    kept = clone(small(pretrained=FrozenEstimator(line))).fit(INPUTS, VALUES)
    assert_array_equal(kept.predict(FURTHER), line.predict(FURTHER))
    with pytest.raises(NotFittedError, match="FrozenEstimator"):
        clone(small(pretrained=line)).fit(INPUTS, VALUES)
    given = operator_of_keras(1, 1, 1)
    kept = clone(small(pretrained=given)).fit(INPUTS, VALUES)
    expected = given.predict(pairs_of(FURTHER, QUERIES), verbose=0)
    assert_array_equal(kept.predict(FURTHER).ravel(), expected.ravel())


def test_warm_start_keeps_the_scale_of_given_features():
    given = operator_of_keras(1, 1, 1)
    model = small(pretrained=given, warm_start=True).fit(INPUTS[:3], VALUES[:3])
    first = model.fitted_.given
    kept = model.fit(INPUTS, VALUES).fitted_.given
    assert_array_equal(kept.mean_, first.mean_)
    assert kept.scale_ == first.scale_


# A base of one's own ----------------------------------------------------------------------


# In company ----------------------------------------------------------------------


@pytest.mark.slow
def test_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), small())
    search = GridSearchCV(pipeline, {"neonregressor__learning_rate": [1e-3, 1e-2]}, cv=2)
    search.fit(INPUTS, VALUES)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(INPUTS).shape == (6, 4)


def test_threads_predict_the_same():
    model = pickle.loads(pickle.dumps(fit_small()))  # which has not predicted yet
    X = np.linspace(0, 3, 200)[:, None]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: model.predict(X), range(16)))
    for result in results:
        assert_array_equal(result, results[0])


def test_output_map_of_ones_own():
    model = fit_small(output_map=ops.tanh, training__steps=20)
    assert np.abs(model.fitted_.values(FURTHER, model.index_)[0]).max() <= (
        np.abs(model.fitted_.targets.mean_) + model.fitted_.targets.scale_
    )


def test_each_fit_reads_what_its_output_map_reads():
    limit = 0.5

    def clip(v):
        return ops.clip(v, -limit, limit)

    wide = fit_small(output_map=clip, training__steps=20).predict(FURTHER)
    limit = 1e-3
    second, alone = (fit_small(output_map=m, training__steps=20) for m in (clip, lambda v: clip(v)))
    assert_array_equal(second.predict(FURTHER), alone.predict(FURTHER))
    assert np.ptp(second.predict(FURTHER)) < np.ptp(wide)


@pytest.mark.parametrize(("name", "low"), [("decaying", -np.inf), ("bounded", 0.0)])
def test_output_maps_of_the_paper(name, low):
    model = fit_small(output_map=name, standardize=False)
    draws, _ = model.fitted_.values(FURTHER, model.index_)
    assert draws.min() >= low
    if name == "bounded":
        assert draws.max() <= 1


def test_noise_is_learnt():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    y = X[:, 0] + 0.3 * rng.normal(size=200)
    model = wave_model(query_points=None, loss="nll", noise_std="auto", training__steps=300).fit(
        X, y
    )
    parts = model.predict_uncertainty([[-0.5], [0.0], [0.5]])
    assert_allclose(parts.aleatoric, 0.3, rtol=0.3)
    assert model.sample_y([[0.0]], 2000, 0).std() == pytest.approx(parts.total[1], rel=0.15)
    flat = -0.5 * np.log(2 * np.pi) - 0.5 - np.log(0.3)  # of the noise itself
    assert model.log_prob(X, y).mean() > flat - 0.2


# What it refuses ----------------------------------------------------------------------


def test_given_predictions_that_are_no_numbers_are_refused():
    class Nowhere:
        def predict(self, X):
            return np.full((len(X), 4), np.nan)

    with pytest.raises(ValueError, match="with NaN or inf"):
        small(pretrained=Nowhere()).fit(INPUTS, VALUES)


def test_unknown_problems_of_the_paper_are_refused():
    with pytest.raises(ValueError, match="`name` must be one of .*pollutants.* Got 'rosenbrock'"):
        NEONRegressor.from_paper("rosenbrock")
    assert NEONRegressor.from_paper("pollutants", training__steps=3).training.steps == 3


@pytest.mark.slow
def test_base_of_ones_own_can_be_searched():
    model = small(network=operator_of_keras, training__steps=50).fit(INPUTS, VALUES)
    box = np.array([[INPUTS.min(), INPUTS.max()]])
    x, value = maximize_acquisition(
        model.posterior_fn(8, 0), "mean", _sum, box, 0.0, n_restarts=5, random_state=0
    )
    grid = np.linspace(*box[0], 200)[:, None]
    assert value >= model.posterior_fn(8, 0)(grid).mean(axis=0).sum(axis=-1).max() - 1e-3


def _sum(outputs):
    return outputs[..., 0] + outputs[..., 1] + outputs[..., 2] + outputs[..., 3]


@pytest.mark.slow
def test_bounded_values_reach_over_their_whole_range():
    images = 130 + 70 * np.sin(3 * INPUTS + np.arange(4))
    model = small(output_map="bounded", training__steps=1500, learning_rate=0.02).fit(
        INPUTS, images
    )
    assert explained(model, INPUTS, images) > 0.9
    draws, _ = model.fitted_.values(FURTHER, model.index_)
    low, spread = images.min(), np.ptp(images)
    assert draws.min() > low - 0.1 * spread and draws.max() < low + 1.1 * spread


@pytest.mark.parametrize(
    "method",
    [
        "predict_distribution",
        "predict_uncertainty",
        "predict",
        "predict_interval",
        "predict_quantiles",
        "sample_y",
        "posterior_fn",
    ],
)
def test_unknown_keywords_are_named_with_the_method(wave, method):
    arguments = () if method == "posterior_fn" else (INPUTS,)
    with pytest.raises(TypeError, match=rf"^NEONRegressor\.{method}\(\) got .* 'points'$"):
        getattr(wave, method)(*arguments, points=[[0.5]])


def test_query_points_of_predict_can_be_routed():
    with config_context(enable_metadata_routing=True):
        model = NEONRegressor().set_predict_request(query_points=True)
        routed = model.get_metadata_routing().consumes("predict", ["query_points"])
    assert routed == {"query_points"}


def test_query_points_of_a_frame_keep_their_columns():
    rng = np.random.default_rng(0)
    points = pd.DataFrame({"t": rng.uniform(size=6), "x": rng.uniform(size=6)})
    U, S = rng.normal(size=(8, 2)), rng.normal(size=(8, 6))
    model = build(
        NEONRegressor, query_points=points, noise_std=0.0, training__steps=2, random_state=0
    ).fit(U, S)
    assert_array_equal(model.predict(U, query_points=points), model.predict(U))
    assert_array_equal(model.predict(U, query_points=points.to_numpy()), model.predict(U))
    with pytest.raises(ValueError, match=r"must have the columns .*\['t', 'x'\]. Got \['x', 't'\]"):
        model.predict(U, query_points=points[["x", "t"]])


def test_frozen_layers_of_a_base_are_refused():
    def build(d_u, d_y, n_outputs):
        u, y = keras.Input((d_u,)), keras.Input((d_y,))
        frozen = keras.layers.Dense(4, trainable=False, name="fixed")(u)
        joined = keras.layers.Concatenate()([frozen, y])
        return keras.Model([u, y], keras.layers.Dense(n_outputs)(joined))

    with pytest.raises(ValueError, match="no frozen layers or variables.*of 'fixed'"):
        small(network=build, training__steps=5).fit(INPUTS, VALUES)


def test_a_base_with_a_sum_that_keras_takes_for_a_bias_is_refused():
    def build(d_u, d_y, n_outputs, is_first):
        from skuq.backend import keras

        u, y = keras.Input((d_u,)), keras.Input((d_y,))
        hidden = keras.layers.Dense(4)(keras.layers.Concatenate()([u, y]))
        scale = keras.layers.Dense(1)(y)  # one number for each row
        terms = [scale, hidden] if is_first else [hidden, scale]
        total = keras.layers.Add(name="total")(terms)
        return keras.Model([u, y], keras.layers.Dense(n_outputs)(total))

    model = small(training__steps=5)
    with pytest.raises(ValueError, match="'total' adds a tensor.*With 4 rows.*Swap the two"):
        model.set_params(network=partial(build, is_first=False)).fit(INPUTS, VALUES)
    model.set_params(network=partial(build, is_first=True)).fit(INPUTS, VALUES)
