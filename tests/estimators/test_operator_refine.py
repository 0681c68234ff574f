"""Fits of operator networks that go further: double precision, and warm starts."""

import copy
import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from operators import QUERIES, SMALL, VALUES, WAVE_SETTINGS, build, derivatives_of, inputs, waves
from scipy.optimize import least_squares
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from skuq import NEONRegressor, OperatorEnsembleRegressor
from skuq.training import _predict

U = inputs(len(VALUES))


def rms_at_data(model, u):
    """Root mean square of the members' own errors at their data, in units of Y's scale."""
    draws = model.sample_y(u, 20, 0)
    return np.sqrt(np.mean((draws - waves(u)[..., None]) ** 2)) / waves(u).std()


def ensemble(**changes):
    settings = {**WAVE_SETTINGS, "learning_rate": 1e-3, "batch_size": 64, "training__steps": 300}
    return build(OperatorEnsembleRegressor, 2, **{**settings, "noise_std": 0.0, **changes})


def test_fit_refines_members_to_the_rows_that_have_weight():
    u, values = inputs(10), waves(inputs(10))
    values[9] += 5 * values.std()
    model = ensemble(refine=True).fit(u, values, sample_weight=[1] * 9 + [0])
    assert rms_at_data(model, u[:9]) < 3e-4  # over 1e-2 without
    assert abs(model.predict(u[9:]) - values[9:]).mean() > values[:9].std()
    far = model.predict_uncertainty(u + 2.0).epistemic  # members keep their priors
    assert far.mean() > 100 * rms_at_data(model, u[:9])


def test_fit_refines_many_values_by_lbfgs(monkeypatch):
    monkeypatch.setattr(_predict, "MAX_DUAL_VALUES", 10)
    lbfgs = functools.partial(_predict._lbfgs, max_steps=60, rows_at_once=37)
    monkeypatch.setattr(_predict, "_lbfgs", lbfgs)
    u, values = inputs(10), waves(inputs(10))
    plain, refined = (ensemble(refine=refine).fit(u, values) for refine in (False, True))
    assert rms_at_data(refined, u) < 0.3 * rms_at_data(plain, u)


def test_levenberg_marquardt_finds_scipys_minimum():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    targets = 1.5 * np.tanh(x @ [1.0, -0.5]) + 0.1 * rng.normal(size=30)
    root = rng.uniform(0.5, 2, size=30)

    def derivatives(flat):  # fewer weights than values: there is one minimum nearby
        raw = np.tanh(x @ flat[:2]) * flat[2]
        slope = (1 - np.tanh(x @ flat[:2]) ** 2) * flat[2]
        jacobian = np.column_stack([slope[:, None] * x, np.tanh(x @ flat[:2])])
        return derivatives_of(jacobian, raw)

    start = np.array([0.3, -0.2, 0.5])
    found = _predict.levenberg_marquardt(derivatives, start, targets, root)
    other = least_squares(lambda w: root * (derivatives(w).raw[:, 0] - targets), start, xtol=1e-14)
    assert_allclose(found, other.x, rtol=1e-3)  # it ends where little is gained


def test_fit_refines_rows_that_are_nearly_equal():
    u = np.concatenate([inputs(3), inputs(3) + 1e-9, inputs(3) + 1e-7])
    model = ensemble(refine=True, training__steps=100).fit(u, waves(u))
    assert rms_at_data(model, u) < 1e-3


def test_fit_goes_on_from_weights_and_scales():
    u = inputs(10)
    model = ensemble(warm_start=True).fit(u[:8], waves(u[:8]))
    first = model.fitted_
    model.set_params(training__steps=1, learning_rate=1e-12).fit(u, waves(u))
    for before, after in zip(first.draws.members, model.fitted_.draws.members):
        assert_allclose(after.weights, before.weights, atol=1e-6)
        assert all(map(np.array_equal, before.state, after.state))
    assert_allclose(model.fitted_.inputs.scaling.mean_, first.inputs.scaling.mean_)
    assert_allclose(model.predict(u), first.distribution(u).mean, rtol=1e-3, atol=1e-4)


def test_fit_closes_a_conditioned_prior_at_new_data_in_a_warm_start(monkeypatch):
    monkeypatch.setattr("skuq.estimators.methods._neon_training._SCALE_STEPS", 100)
    u, points = inputs(10), WAVE_SETTINGS["query_points"][::3]
    settings = {"noise_std": 0.0, "warm_start": True, "refine": True, "training__steps": 100}
    settings = {**WAVE_SETTINGS, **settings, "query_points": points}
    model = build(NEONRegressor, **settings).fit(u[:9], waves(u[:9], points))
    before = model.predict_uncertainty(u[9:]).epistemic.mean()
    model.set_params(training__steps=1).fit(u, waves(u, points))
    assert model.predict_uncertainty(u[9:]).epistemic.mean() < 0.1 * before


def test_fit_adds_members_of_their_own_in_a_warm_start():
    settings = {"query_points": QUERIES, "noise_std": 0.0, "warm_start": True, **SMALL}
    model = build(OperatorEnsembleRegressor, 2, **settings).fit(U, VALUES)
    before = [member.state[0] for member in model.members_]
    after = [member.state[0] for member in model.set_params(n_members=4).fit(U, VALUES).members_]
    assert_allclose(after[:2], before)
    assert min(abs(after[k] - after[j]).max() for k in range(4) for j in range(k)) > 0.1


def test_fit_learns_the_noise_from_networks_of_a_cold_start():
    u = inputs(30)
    settings = {**WAVE_SETTINGS, **SMALL}
    cold = build(OperatorEnsembleRegressor, 2, **settings).fit(u, waves(u))
    warm = clone(cold).set_params(warm_start=True).fit(u, waves(u)).fit(u, waves(u))
    assert_allclose(warm.noise_std_, cold.noise_std_)
    assert_allclose(warm.members_[0].weights, cold.members_[0].weights)


@pytest.fixture(scope="module")
def started():
    settings = {**WAVE_SETTINGS, **SMALL, "noise_std": 0.0, "warm_start": True}
    return build(NEONRegressor, **settings).fit(inputs(30), waves(inputs(30)))


SHAPED = np.stack([WAVE_SETTINGS["query_points"]] * 2, axis=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": inputs(30)[:, [0, 1, 0]]}, "2 features of X. Got 3 .*warm_start=False"),
        ({"Y": np.stack([waves(inputs(30))] * 2, axis=2)}, "1 components of Y. Got 2"),
        ({"query_points": SHAPED}, "columns of `query_points`. Got 2"),
        ({"X": inputs(30)[:, :1], "noise_std": "auto"}, "2 features of X. Got 1"),
        ({"network__latent": 7}, "changed their architecture"),
        ({"standardize": False}, "had standardize=True. Got standardize=False"),
    ],
    ids=range(6),
)
def test_fit_refuses_other_networks_in_a_warm_start(started, changes, message):
    settings = {name: value for name, value in changes.items() if name not in "XY"}
    model = copy.deepcopy(started).set_params(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(changes.get("X", inputs(30)), changes.get("Y", waves(inputs(30))))


def test_fit_asks_the_given_model_that_it_has_now_in_a_warm_start():
    settings = {"query_points": QUERIES, "warm_start": True, "noise_std": 0.0, **SMALL}
    first, second = LinearRegression().fit(U, VALUES), LinearRegression().fit(U, VALUES + 1)
    model = build(NEONRegressor, pretrained=first, **settings).fit(U, VALUES)
    shifted = np.asarray(QUERIES) + 1
    model.set_params(pretrained=second, query_points=shifted).fit(U, VALUES + 1)
    assert_allclose(model.predict(U), second.predict(U))
