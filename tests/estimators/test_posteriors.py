"""Draws of fitted regressors' functions: their moments, on arrays and on tensors."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import operators
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from plans import sequential
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from small_models import make
from tiers import cases

import skuq
from skuq.backend import compile_program, keras, ops
from skuq.fitted._draws import _count_draws
from skuq.networks import MLP, NOMUNetwork, NOMUReadout, TabularNetwork

SEED = {"random_state": 0}
SMALL = {"network": MLP((8,), "tanh"), "epochs": 8, **SEED}
TABULAR = {"network": TabularNetwork(n_layers=1, width=32, embedding="none"), "epochs": 4, **SEED}
TABULAR["loss"] = "crps"
NUMBERS = {"c": 0.7, "l_min": 0.01, "l_max": 2.0}


def joined(input_shape, n_raw, dropout=0.0):
    """A network that joins its own input behind other layers, with batch statistics."""
    layers, inputs = keras.layers, keras.Input(input_shape)
    x = layers.BatchNormalization()(layers.Dense(6, activation="tanh")(inputs))
    x = layers.Concatenate()([layers.Dropout(dropout)(x), inputs])
    x = layers.LayerNormalization()(layers.Dense(6, activation="silu")(x))
    return keras.Model(inputs, layers.Dense(n_raw)(x))


def unplanned(input_shape, n_raw):
    layers = keras.layers
    return sequential(input_shape, layers.Dense(6), layers.PReLU(), layers.Dense(n_raw))


def nomu(**changes):
    parts = {"network": NOMUNetwork(10, activation="tanh"), "readout": NOMUReadout(**NUMBERS)}
    return skuq.NOMURegressor(**parts, epochs=40, batch_size=None, **SEED).set_params(**changes)


def models(space):
    """One of each kind, and networks with other layers."""
    dropped = partial(joined, dropout=0.3)
    search = {"n_trials": 4, "n_members": 3, "epochs": 8, "space": space, **SEED}
    return {
        "deep": skuq.DeepEnsembleRegressor(3, **SMALL),
        "mse": skuq.DeepEnsembleRegressor(3, loss="mse", **SMALL),
        "joined": skuq.DeepEnsembleRegressor(2, network=joined, epochs=8, **SEED),
        "dropout": skuq.MCDropoutRegressor(20, **SMALL),
        "joined dropout": skuq.MCDropoutRegressor(20, network=dropped, epochs=8, **SEED),
        "nes": make(skuq.NESRegressor, **search, search__vary="both"),
        "tabular": skuq.TabularEnsembleRegressor(2, calibrate=False, **TABULAR),
        "nomu": nomu(),
        "nomu linear": nomu(readout__kind="linear"),
        "nomu noise": nomu(noise_std="learned"),
        "nomu asymmetric": nomu(band="asymmetric"),
    }


# Each with one output or with two: fits take most of the time here.
CASES = [
    *(("deep", 1), ("mse", 2), ("joined", 1), ("dropout", 1), ("nes", 1), ("nomu", 2)),
    *(("tabular", 1), ("nomu asymmetric", 2), ("joined dropout", 2), ("nomu linear", 1)),
    *(("nomu noise", 2), ("nomu asymmetric", 1)),
]


@pytest.fixture(scope="module")
def fitted(table, tiny_space):
    """One fit of each, and one on other rows: with one output, and with two."""
    X, y = table
    known, cache = models(tiny_space), {}

    def fit(name, n_outputs=1, power=1):
        if (key := (name, n_outputs, power)) not in cache:
            targets = y if n_outputs == 1 else np.stack([y, 5 - 2 * X[:, 0] ** 2], axis=1)
            cache[key] = clone(known[name]).fit(X, targets**power)
        return cache[key]

    return fit


@pytest.fixture(scope="module")
def elsewhere():
    return np.random.default_rng(1).uniform(-2, 2, (7, 2))


def tensor(X):
    return ops.convert_to_tensor(X.astype("float32"))


@cases(("name", "n_outputs"), *CASES, quick=8)
def test_posterior_fn_has_the_moments_and_exact_gradients(fitted, elsewhere, name, n_outputs):
    model = fitted(name, n_outputs)
    posterior = model.posterior_fn(32, random_state=0)
    draws, parts = posterior(elsewhere), model.predict_uncertainty(elsewhere)
    assert posterior.output_shape == parts.mean.shape[1:]
    assert draws.shape == (posterior.n_draws, *parts.mean.shape)
    if name != "nomu asymmetric":
        # Weights of tabular members are no fractions of 32.
        tolerance = 0.1 * parts.epistemic.max() if name == "tabular" else 1e-12
        assert_allclose(draws.mean(axis=0), parts.mean, atol=tolerance)
        assert_allclose(draws.std(axis=0), parts.epistemic, atol=tolerance)
    on_tensors = posterior.function(ops, operators.single(posterior), tensor(elsewhere))
    assert ops.convert_to_numpy(on_tensors).dtype == np.float32
    assert (len(getattr(posterior.key, "plans", "")) > 1) == (name in ("nes", "nomu noise"))
    # Far from the rows draws are large, and so are rounding errors of single precision.
    assert_allclose(on_tensors, draws, rtol=1e-4, atol=1e-4)
    operators.assert_exact_gradients(posterior, elsewhere, jit=False)


@cases("name", "dropout", "nomu asymmetric", quick=1)
def test_posterior_fn_of_a_refit_runs_in_the_same_program(fitted, elsewhere, name):
    posterior = fitted(name).posterior_fn(16, random_state=0)
    other = fitted(name, power=2).posterior_fn(16, random_state=1)
    assert posterior.key == other.key and hash(posterior.key) == hash(other.key)
    assert posterior.key != fitted("nomu", 2).posterior_fn(16).key
    example = operators.single(posterior), tensor(elsewhere)
    program = compile_program(lambda *given: posterior.function(ops, *given), example, jit=True)
    draws = program(operators.single(other), tensor(elsewhere))
    assert_allclose(draws, other(elsewhere), rtol=1e-4, atol=1e-4)
    assert abs(other(elsewhere) - posterior(elsewhere)).max() > 0.1


def test_posterior_fn_counts_members_by_their_weights(fitted, elsewhere):
    ensemble = replace(fitted("mse", 2).fitted_, weights=np.array([0.5, 0.125, 0.375]))
    posterior = ensemble.posterior(16, None)
    assert posterior.n_draws == 8  # eighths
    draws, parts = posterior(elsewhere), ensemble.distribution(elsewhere).uncertainty()
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-12)
    assert_allclose(draws.std(axis=0), parts.epistemic, atol=1e-12)
    on_tensors = posterior.function(ops, operators.single(posterior), tensor(elsewhere))
    assert_allclose(on_tensors, draws, rtol=1e-4, atol=1e-4)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_count_draws_is_the_least_that_has_the_weights(parts):
    weights = np.array(parts) / sum(parts)
    counts = _count_draws(weights, 64)
    assert_allclose(counts / counts.sum(), weights, rtol=1e-12)
    assert_array_equal(counts * np.gcd.reduce(parts), parts)


def test_posterior_fn_of_nomu_draws_multiples_of_its_spread_or_quantiles(fitted, elsewhere):
    model = fitted("nomu", 2)
    posterior, parts = model.posterior_fn(8, random_state=0), model.predict_uncertainty(elsewhere)
    assert not posterior.joint and posterior.n_draws == 8
    multiples = (posterior(elsewhere) - parts.mean) / parts.epistemic
    assert_allclose(multiples, np.broadcast_to(multiples[:, :1], multiples.shape), atol=1e-9)
    assert abs(np.corrcoef(multiples[:, 0].T)[0, 1]) < 0.9  # outputs have numbers of their own
    assert_array_equal(model.posterior_fn(8, random_state=0)(elsewhere), posterior(elsewhere))
    assert (model.posterior_fn(8, random_state=1)(elsewhere) != posterior(elsewhere)).any()
    model = fitted("nomu asymmetric", 2)
    distribution = model.predict_distribution(elsewhere)
    draws = model.posterior_fn(256, random_state=0)(elsewhere)
    levels = np.stack([distribution.cdf(draw) for draw in draws])
    assert_allclose(levels, np.broadcast_to(levels[:, :1], levels.shape), atol=1e-9)
    # 256 evenly spread levels: the tails beyond the outermost are what is missing.
    assert_allclose(draws.mean(axis=0), distribution.expected, atol=0.03 * distribution.std.max())
    assert_allclose(draws.std(axis=0), distribution.std, rtol=0.05)


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "without a plan"])
def test_posterior_fn_of_what_has_no_plan_is_in_numpy_only(table, elsewhere, kind):
    if kind == "without a plan":
        model = skuq.DeepEnsembleRegressor(2, network=unplanned, epochs=2, **SEED).fit(*table)
    else:
        model = nomu(pretrained=LinearRegression().fit(*table), band=kind, epochs=5).fit(*table)
    posterior, distribution = model.posterior_fn(16, 0), model.predict_distribution(elsewhere)
    assert posterior.key is None
    draws = posterior(elsewhere)
    if kind == "without a plan":
        assert_array_equal(draws, distribution.loc)
        return
    assert posterior.arguments == ()
    assert_array_equal(pickle.loads(pickle.dumps(posterior))(elsewhere), draws)


@pytest.mark.parametrize("name", ["joined", "tabular"])
def test_posterior_fn_clips_far_inputs_as_predictions_do(fitted, name):
    model, far = fitted(name), np.array([[1e9, 0.0], [0.0, -1e12]])
    posterior = model.posterior_fn()
    tolerance = 0.1 if name == "tabular" else 1e-9  # weights of members are rounded
    assert_allclose(posterior(far).mean(axis=0), model.predict(far), rtol=tolerance)
    assert_allclose(posterior(far[:1]), posterior(np.array([[1e12, 0.0]])), rtol=1e-9)


def test_posterior_fn_refuses(fitted):
    with pytest.raises(ValueError, match="`n_draws` must be a positive whole number. Got 0"):
        fitted("nomu").posterior_fn(0)
    with pytest.raises(ValueError, match="at least 2"):
        fitted("nomu").posterior_fn(1)
