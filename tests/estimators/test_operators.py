"""Regressors of functions: what NEON, with either prior, and ensembles have in common.

Also fits that go further: double precision, and warm starts.
"""

import copy
import functools
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import operators
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import FAR, FURTHER, INPUTS, VALUES, WAVE_SETTINGS, inputs, std_of, waves
from scipy import optimize, stats
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from tiers import cases

import skuq.training
from skuq import NEONRegressor, OperatorEnsembleRegressor, metrics
from skuq.backend import ops
from skuq.estimators.methods import _neon_training as _training
from skuq.training import _predict

SIZES = {"units": 8, "prior_units": 4, "n_index": 4, "n_index_samples": 4}
EPINET = {"prior": "epinet", **{f"prior__{name}": size for name, size in SIZES.items()}}
KINDS = {
    "conditioned": (NEONRegressor, {"prior": "conditioned", "n_draws": 32}),
    "epinet": (NEONRegressor, {**EPINET, "n_draws": 32}),
    "ensemble": (OperatorEnsembleRegressor, {"n_members": 5}),
}
SHAPED = np.stack([WAVE_SETTINGS["query_points"]] * 2, axis=1)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def small(kind, **changes):
    estimator, settings = KINDS[kind]
    settings = {**operators.SMALL, "query_points": operators.QUERIES, **settings, **changes}
    return operators.build(estimator, **settings)


def fit_small(kind, **changes):
    return small(kind, **changes).fit(INPUTS, VALUES)


@functools.cache
def wave(kind, n=40):
    """A model of n smooth functions without noise."""
    u, steps = inputs(n), {"conditioned": 400, "epinet": 500, "ensemble": 400}[kind]
    settings = {**WAVE_SETTINGS, "noise_std": 0.0, "training__steps": steps}
    return small(kind, **settings).fit(u, waves(u))


def test_fit_predicts_between_query_points_and_is_less_certain_away_from_the_inputs(kind):
    model, between = wave(kind), np.linspace(0.05, 1.9, 9)
    expected = waves(operators.NEAR, between)
    error = model.predict(operators.NEAR, query_points=between) - expected
    assert error.shape == (30, 9) and np.sqrt(np.mean(error**2)) < 0.1 * expected.std()
    assert std_of(model, FAR).mean() > 4 * std_of(model, inputs(40)).mean()


@pytest.mark.parametrize("kind", ["conditioned", "epinet"])
def test_sample_y_draws_smooth_functions(kind):
    model, y = wave(kind), np.linspace(0, 2, 101)
    path = np.stack([np.linspace(1.5, 3.5, 101), np.full(101, 1.0)], axis=1)
    along_y = model.sample_y(FAR[:1], 200, 0, query_points=y)[0]  # (101, 200)
    along_u = model.sample_y(path, 200, 0)[:, 6]
    for draws in (along_y, along_u):
        # Neighbours a hundredth of the range apart nearly agree; independent ones would
        # differ by 1.4 standard deviations.
        around, spread = draws - draws.mean(axis=1, keepdims=True), draws.std(axis=1).mean()
        assert 0.005 < spread > 2 * np.abs(np.diff(around, axis=0)).max()
    assert_array_equal(model.sample_y(FAR, 3, 1), model.sample_y(FAR, 3, 1))
    assert abs(model.sample_y(FAR, 3, 1) - model.sample_y(FAR, 3, 2)).max() > 0


@cases(
    ("kind", "shape", "loss"),
    ("epinet", (), "nll"),
    ("ensemble", (4, 2), "nll"),
    ("conditioned", (1, 3), "auto"),
    ids=str,
)
def test_predict_has_the_shape_of_y(kind, shape, loss):
    Y = VALUES[:, 1] if shape == () else VALUES[:, : shape[0]]
    Y = Y if len(shape) < 2 else Y[..., None] * np.arange(1, shape[1] + 1)
    queries = None if shape == () else operators.QUERIES[: shape[0]]
    model = small(kind, query_points=queries, loss=loss).fit(INPUTS, Y)
    parts = model.predict_uncertainty(INPUTS)
    assert {part.shape for part in parts} == {(6, *shape)}
    assert (parts.aleatoric > 0).all() == (loss == "nll") and (parts.epistemic > 0).all()
    draws, of_y = model.sample_y(INPUTS, 3, 0), model.log_prob(INPUTS, Y)
    assert draws.shape == (6, *shape, 3) and of_y.shape == (6,)
    posterior = model.posterior_fn(5)
    assert posterior.output_shape == shape and posterior(INPUTS).shape == (5, 6, *shape)
    lower, upper = model.predict_interval(INPUTS, 0.5)
    assert lower.shape == (6, *shape) and (lower < upper).all()
    mean, std = model.predict(INPUTS, return_std=True)
    assert model.score(INPUTS, Y) == pytest.approx(
        r2_score(Y.reshape(6, -1), mean.reshape(6, -1), multioutput="variance_weighted")
    )
    expected = stats.norm(mean, std).logpdf(Y).mean(), ((lower <= Y) & (upper >= Y)).mean()
    scores = metrics.make_scorers("neg_gaussian_nll", "coverage_50").values()
    assert_allclose([score(model, INPUTS, Y) for score in scores], expected)


def test_fit_trains_a_network_of_ones_own():
    changes = {"network": operators.operator_of_keras, "training__steps": 300}
    model = fit_small("epinet", **changes, learning_rate=0.02)
    assert np.abs(model.predict(INPUTS) - VALUES).max() < 0.1
    assert std_of(model, FURTHER).mean() > 1.5 * std_of(model, INPUTS).mean()
    again = clone(model).fit(INPUTS, VALUES)
    for twin in (again, pickle.loads(pickle.dumps(model))):
        assert_array_equal(twin.predict(FURTHER), model.predict(FURTHER))
    # Equal keys whatever Keras has called the layers.
    assert model.posterior_fn(8, 0).key == again.posterior_fn(8, 0).key


CHANGES = {
    "functions": ({}, (4,)),
    "components": ({}, (4, 2)),
    "numbers": ({"query_points": None}, ()),
    "fourier": ({"network__fourier_scale": 2.0, "network__decoder": "concat"}, (4,)),
    "nll": ({"loss": "nll"}, (4,)),
    "map": ({"output_map": "decaying"}, (4, 2)),
    "keras": ({"network": operators.operator_of_keras}, (4,)),
}


@cases(
    ("kind", "name"),
    *(("conditioned", name) for name in ("components", "fourier")),
    *(("epinet", name) for name in ("functions", "numbers", "map")),
    *(("ensemble", name) for name in ("nll", "keras")),
    quick=6,
)
def test_posterior_fn_has_the_moments_of_predictions_and_serves_refits(kind, name):
    """Equal keys: the one function with the other's arguments gives the other's draws."""
    changes, shape = CHANGES[name]

    def fit(power):
        Y = VALUES**power
        Y = {0: Y[:, 3], 1: Y, 2: np.stack([Y, 2 - Y], -1)}[len(shape)]
        return small(kind, **changes).fit(INPUTS, Y)

    model, X = fit(1), np.array([[0.7], [1.5], [3.0]])
    posterior = model.fitted_.posterior_of(model.fitted_.draws.index)
    draws, parts = posterior(X), model.predict_uncertainty(X)
    tolerance = 1e-4 if name == "keras" else 1e-9  # a Keras model runs in float32 there
    assert posterior.joint and posterior.n_draws == len(model.fitted_.draws.index)
    assert_allclose(draws.mean(axis=0), parts.mean, atol=tolerance, rtol=tolerance)
    assert_allclose(draws.std(axis=0), parts.epistemic, atol=tolerance, rtol=tolerance)
    first, other = model.posterior_fn(8, 0), fit(2).posterior_fn(8, 0)
    assert first.key == other.key and hash(first.key) == hash(other.key)
    x = ops.convert_to_tensor(X.astype("float32"))
    on_tensors = ops.convert_to_numpy(first.function(ops, operators.single(other), x))
    assert on_tensors.dtype == "float32"
    assert_allclose(on_tensors, other(X), atol=1e-3 * max(1, np.abs(other(X)).max()))


@cases(("kind", "jit"), ("conditioned", False), ("ensemble", True), ("epinet", True), quick=2)
def test_posterior_fn_has_exact_gradients(kind, jit):
    u = inputs(4)
    model = small(kind, **WAVE_SETTINGS, training__steps=5).fit(u, waves(u))
    operators.assert_exact_gradients(model.posterior_fn(8, random_state=0), operators.NEAR[:5], jit)


NAN = np.where(VALUES > 0.5, np.nan, VALUES)
CONSTANT, REFINED = {"training__schedule": "constant"}, {"refine": True, "noise_std": 0.0}
GIVEN = LinearRegression().fit(INPUTS, VALUES)
REFUSALS = [
    # What Y, query points or numbers cannot be.
    ({"query_points": operators.QUERIES[:2]}, r"one row for each of the 4 .* Got 2"),
    ({"query_points": []}, "0 sample"),
    ({"Y": VALUES[..., None, None]}, r"Y must have shape .* Got \(6, 4, 1, 1\)"),
    ({"Y": np.full((6, 4, 1), "a")}, "must hold numbers: .*'a'"),
    ({"Y": 1e300 * VALUES}, "overflows"),
    ({"noise_std": [0.1, 0.2]}, "one for each of the 1 columns of y. Got shape"),
    ({"noise_std": [-0.1]}, "`noise_std` must be finite numbers >= 0"),
    # Networks that cannot be built.
    ({"network__latent": 1, "network__decoder_units": (8, 8)}, "at least 2. Got 1"),
    ({"network__encoder_units": ()}, "`encoder_units` must be positive integers"),
    ({"network": lambda *n: None}, "functional Keras model with inputs u and y"),
    ({"network": lambda a, b, n: operators.operator_of_keras(a, b, n + 1)}, "one output"),
    ({"output_map": np.tanh}, "`output_map` must be a function of `keras.ops`"),
    ({"output_map": lambda v: v[..., :0]}, "keeps shapes"),
    ({"training__steps": lambda n: 2.5}, "`steps` must give .* Got 2.5 for 6 functions"),
    # Contradictions: what would have no effect is refused.
    ({"loss": "nll", "output_map": "decaying"}, "takes no output_map"),
    ({"loss": "nll", "noise_std": 0.1}, "loss='nll' learns the noise: leave `noise_std`"),
    ({"batch_over": "functions"}, "give a `batch_size`"),
    ({"epochs": 3}, "`epochs` and the `steps` of `training` both give the length"),
    ({"training__l2": 0.1}, "`training` must only have settings that this .* Got l2"),
    ({"training__final_lr_factor": 0.1, **CONSTANT}, "constant `schedule` has no `final_l"),
    ({"refine": True}, "noise_std='auto'. Set noise_std=0.0"),
    ({**REFINED, "loss": "huber"}, "loss='huber'"),
    ({**REFINED, "output_map": "decaying"}, "`output_map`"),
    ({**REFINED, "network": operators.operator_of_keras}, "`network`"),
]
OF_CONDITIONED = [
    ({"loss": "nll"}, "A conditioned prior is not possible with loss='nll'"),
    ({"output_map": "decaying"}, "not possible with `output_map`.*Use prior='epinet'"),
    ({"network": operators.operator_of_keras}, "not possible with a function as `network`"),
    ({"pretrained": GIVEN}, "not possible with `pretrained`"),
    ({"prior__scale": 0.5}, "Give `noise_std`, which is 0.0"),
    ({"n_draws": 2**23}, "'n_draws' parameter"),
]
OF_EPINET = [
    ({"prior__units": (0,)}, "`units` must be positive integers"),
    ({"prior__prior_units": ()}, "`prior_units` must be positive integers"),
    (REFINED, "not possible with a trained EpiNet"),
    ({**REFINED, "pretrained": GIVEN}, "`pretrained`"),
    ({"pretrained": GIVEN, "output_map": "bounded"}, "it excludes `output_map`"),
    ({"pretrained": GIVEN, "network": "concat"}, "it excludes `network`"),
    ({"pretrained": operators.operator_of_keras(2, 1, 1)}, "Keras model as `pretrained`"),
    ({"pretrained": operators.operator_of_keras(1, 1, 2)}, r"\(6, 4, 1\)\. Got shape \(24, 2\)"),
    ({"pretrained": LinearRegression()}, "is not fitted"),
    ({"pretrained": SimpleNamespace(predict=lambda X: NAN)}, "with NaN or inf"),
]
OF_KINDS = {"ensemble": REFUSALS, "conditioned": OF_CONDITIONED, "epinet": OF_EPINET}


@cases(("kind", "changes", "message"), *((k, *row) for k in OF_KINDS for row in OF_KINDS[k]))
def test_fit_refuses(kind, changes, message):
    settings = {name: value for name, value in changes.items() if name != "Y"}
    with pytest.raises(ValueError, match=message):
        small(kind, **settings).fit(INPUTS, changes.get("Y", VALUES))


def test_predict_refuses():
    model = fit_small("conditioned")
    for points, message in (
        (np.zeros((3, 2)), r"\(q, 1\), as in fit. Got \(3, 2\)"),
        ([np.nan], "NaN"),
        (np.array(["2020"], "M8[D]"), "`query_points` must hold numbers"),
        (np.zeros((2, 2, 2)), "dim 3"),
        (np.ma.masked_equal([0.5, 1], 1), "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(INPUTS, query_points=points)
    with pytest.raises(ValueError, match=r"shape \(6, 4\). Got \(6, 2\)"):
        model.log_prob(INPUTS, VALUES[:, :2])
    with pytest.raises(ValueError, match="different number of output"):
        model.score(INPUTS, VALUES[:, :2])
    with pytest.raises(ValueError, match="`n_samples` must be a positive .* Got 2.5"):
        model.sample_y(INPUTS, 2.5)
    with pytest.raises(ValueError, match="functions at query points.*`skuq.save`"):
        model.fitted_.to_keras()
    for method in ("predict", "predict_interval", "sample_y"):
        with pytest.raises(TypeError, match="Predictions of NEONRegressor take no 'points'"):
            getattr(model, method)(INPUTS, points=[[0.5]])


def noisy_line(n=150, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


def line_model(kind, **changes):
    settings = {**WAVE_SETTINGS, "query_points": None, "training__steps": 300}
    return small(kind, **{**settings, **changes})


def test_fit_with_known_noise_has_it_as_the_aleatoric_part():
    model = fit_small("ensemble", noise_std=0.2)
    assert_allclose(model.predict_uncertainty(INPUTS).aleatoric, 0.2)
    assert_allclose(model.noise_std_, [0.2])
    # Values have noise of their own.
    assert np.diff(model.sample_y(INPUTS, 400, 0), axis=1).std(axis=-1).min() > 0.2
    # Each component may have its own, or each column without query points.
    for Y, queries in (np.dstack([VALUES, 10 * VALUES]), operators.QUERIES), (VALUES[:, :2], None):
        model = small("ensemble", noise_std=[0.1, 2.0], query_points=queries).fit(INPUTS, Y)
        assert_allclose(model.predict_uncertainty(INPUTS).aleatoric, 0 * Y + [0.1, 2])
        assert_allclose(np.ravel(model.noise_std_), [0.1, 2.0])


def test_fit_learns_noise_and_scale_from_functions_left_out(kind):
    few = fit_small(kind)
    assert few.fitted_.widths is None and (few.noise_std_ == 0).all()
    assert_array_equal(few.predict_uncertainty(INPUTS).aleatoric, 0)
    (X, y), (T, t) = noisy_line(), noisy_line(400, seed=1)
    model = line_model(kind).fit(X, y)
    assert_allclose(model.noise_std_, [0.3], rtol=0.3)
    low, high = model.predict_interval(T, 0.9)
    assert 0.82 < np.mean((low <= t) & (t <= high)) < 0.97
    mean, std = model.predict(T, return_std=True)
    assert np.mean(np.log(std) + 0.5 * ((t - mean) / std) ** 2) < np.log(0.3) + 0.5 + 0.2
    parts = model.predict_uncertainty(T)
    draws = model.fitted_.posterior_of(model.fitted_.draws.index)(T)  # without noise
    assert draws.std(axis=0).mean() < 0.7 * std.mean()
    assert_allclose(draws.mean(axis=0), parts.mean, atol=1e-9)
    assert_allclose(draws.std(axis=0), parts.epistemic, rtol=1e-7, atol=1e-9)


def test_fit_without_query_points_learns_the_noise_of_each_column():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    Y = np.stack([X[:, 0], 100 * X[:, 0]], axis=1)
    Y += np.array([0.05, 50.0]) * rng.normal(size=Y.shape)
    model = line_model("conditioned", training__steps=200).fit(X, Y)
    assert model.noise_std_.shape == (2, 1)
    assert_allclose(model.noise_std_[:, 0], [0.05, 50], rtol=0.5)


@pytest.mark.parametrize("n_repeats", [1, 3])
def test_fit_leaves_each_function_out_once_and_equal_inputs_together(plan, n_repeats):
    X, y = noisy_line(33)
    X[:] = np.repeat(X[: 33 // n_repeats], n_repeats, axis=0)
    (job,), _ = plan(line_model("ensemble"), X, y)
    assert job.recipe.early_stopping_patience == job.recipe.epochs // 4
    train, left_out = (np.array(part) for part in zip(*job.splits))  # of equal sizes
    left_out = list(map(set, left_out.tolist()))
    assert set.union(*left_out) == set(range(33)) and sum(map(len, left_out)) == 33
    for rows, part in zip(train.tolist(), left_out):
        assert set(rows) == set(range(33)) - part and not np.isin(X[rows], X[list(part)]).any()


def diverging(patch, *positions):
    """Let the members at these positions of each training diverge."""
    train, lost = skuq.training.train, FloatingPointError("lost")

    def lose_some(*args, **kwargs):
        members = train(*args, **kwargs)
        return [lost if k in positions else member for k, member in enumerate(members)]

    patch.setattr(skuq.training, "train", lose_some)


def test_fit_of_an_epinet_needs_its_network_but_not_its_twin(monkeypatch):
    model, rows = line_model("epinet", training__steps=5), noisy_line(40)
    with monkeypatch.context() as patch:
        diverging(patch, 1)
        with pytest.warns(UserWarning, match="1 of 2 networks diverged"):
            model.fit(*rows)
        assert model.noise_std_ == 0
    diverging(monkeypatch, 0)
    silent = warnings.catch_warnings(action="error")  # nothing is left out: the fit fails
    with silent, pytest.raises(FloatingPointError, match="The network diverged"):
        model.fit(*rows)


def test_fit_leaves_members_out_that_diverge(monkeypatch):
    changes = {"learning_rate": 1e30, "training__clip_norm": None, "training__steps": 50}
    with pytest.raises(FloatingPointError, match="All 5 networks diverged"):
        fit_small("ensemble", **changes)
    diverging(monkeypatch, 0)
    with pytest.warns(UserWarning, match="1 of 5 networks diverged"):
        model = fit_small("ensemble")
    assert len(model.members_) == 4 and model.posterior_fn().n_draws == 4
    assert np.isfinite(std_of(model, FURTHER)).all()


def test_fit_takes_the_usual_scale_where_all_networks_diverge(monkeypatch):
    # A warm start with 1.5 times the functions learns it from networks of their own.
    start = small("conditioned", noise_std=0.0, warm_start=True)
    fixed, model = (clone(start).fit(INPUTS[:4], VALUES[:4]) for _ in "ab")
    fixed.set_params(prior__scale=0.75).fit(INPUTS, VALUES)  # as in the paper
    monkeypatch.setattr(_training, "has_diverged", lambda member: True)
    monkeypatch.setattr(_training, "_SCALE_STEPS", 5)
    with pytest.warns(UserWarning, match="scale of the random prior is 0.75"):
        model.fit(INPUTS, VALUES)
    assert_array_equal(std_of(model, FURTHER), std_of(fixed, FURTHER))


def test_predict_gives_moments_of_members_whose_priors_are_frozen():
    model = wave("ensemble")
    targets, rows = model.fitted_.targets, model.fitted_.inputs.transform(FAR)
    means = np.stack([operators.predict_draws(member, rows)[0] for member in model.members_])
    means = means.reshape(5, 30, 12) * targets.scale_[0] + targets.mean_[0]
    expected = means.mean(axis=0), means.std(axis=0)
    assert_allclose(model.predict(FAR, return_std=True), expected, atol=1e-12)
    draws = np.moveaxis(model.sample_y(FAR, 50, random_state=0), -1, 0)
    nearest = np.abs(draws[:, None] - means).max(axis=(2, 3)).argmin(axis=1)
    assert_array_equal(draws, means[nearest])  # a draw is one member
    assert len(set(nearest)) == 5
    model = fit_small("ensemble")
    for member in model.members_:
        weights, prior = operators.first_draw(member.network, member.seed)
        assert all(map(np.array_equal, prior, member.state)) and len(prior) == len(member.state)
        assert abs(member.weights - weights).max() > 1e-3
    kernels = [member.state[0] for member in model.members_]
    assert abs(kernels[0] - kernels[1]).max() > 0.01
    none = fit_small("ensemble", prior_scale=0.0)
    assert all(len(member.state) == 0 for member in none.members_)
    assert none.n_parameters_ == 5 * len(none.members_[0].weights)


def test_members_have_functions_of_their_own_and_are_never_certain(plan):
    whole = {"subsample": 0.5, "batch_size": 2, "batch_over": "functions"}
    (job,), _ = plan(small("ensemble", **whole), INPUTS, VALUES)
    order = job.permutations[0](12)
    assert_array_equal(np.sort(order), np.arange(12))
    assert {valid for _, valid in job.splits} == {None}
    for rows in (order, *(rows for rows, _ in job.splits)):
        assert_array_equal(rows.reshape(3, 4) % 4, np.broadcast_to(np.arange(4), (3, 4)))
    chosen = {frozenset(rows[::4].tolist()) for rows, _ in job.splits}
    assert {len(functions) for functions in chosen} == {3} and len(chosen) > 1
    # One member has hardly any uncertainty; the smallest subsample is one function.
    std = std_of(fit_small("ensemble", n_members=1), FURTHER)
    assert (std > 0).all() and (std < 1e-6).all()
    (job,), _ = plan(small("ensemble", subsample=0.01), INPUTS, VALUES)
    assert {len(rows) for rows, _ in job.splits} == {4}


def rms_at_data(model, u):
    """Root mean square of the members' own errors at their data, in units of Y's scale."""
    draws = model.sample_y(u, 20, 0)
    return np.sqrt(np.mean((draws - waves(u)[..., None]) ** 2)) / waves(u).std()


def ensemble(**changes):
    settings = {**WAVE_SETTINGS, "learning_rate": 1e-3, "batch_size": 64, "training__steps": 300}
    settings |= {"n_members": 2, "noise_std": 0.0}
    return small("ensemble", **{**settings, **changes})


def test_fit_refines_members_to_the_rows_that_have_weight_and_many_values_by_lbfgs(monkeypatch):
    u, values = inputs(10), waves(inputs(10))
    values[9] += 5 * values.std()
    model = ensemble(refine=True).fit(u, values, sample_weight=[1] * 9 + [0])
    assert rms_at_data(model, u[:9]) < 3e-4  # over 1e-2 without
    assert abs(model.predict(u[9:]) - values[9:]).mean() > values[:9].std()
    far = model.predict_uncertainty(u + 2.0).epistemic  # members keep their priors
    assert far.mean() > 100 * rms_at_data(model, u[:9])
    nearly_equal = np.concatenate([inputs(3), inputs(3) + 1e-9, inputs(3) + 1e-7])
    model.set_params(training__steps=100).fit(nearly_equal, waves(nearly_equal))
    assert rms_at_data(model, nearly_equal) < 1e-3
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
        raw, slope = np.tanh(x @ flat[:2]) * flat[2], (1 - np.tanh(x @ flat[:2]) ** 2) * flat[2]
        jacobian = np.column_stack([slope[:, None] * x, np.tanh(x @ flat[:2])])
        return operators.derivatives_of(jacobian, raw)

    start = np.array([0.3, -0.2, 0.5])
    found = _predict.levenberg_marquardt(derivatives, start, targets, root)
    other = optimize.least_squares(
        lambda w: root * (derivatives(w).raw[:, 0] - targets), start, xtol=1e-14
    )
    assert_allclose(found, other.x, rtol=1e-3)  # it ends where little is gained


def test_warm_starts_go_on_from_weights_and_close_priors_at_new_data(monkeypatch):
    u = inputs(10)
    model = ensemble(warm_start=True).fit(u[:8], waves(u[:8]))
    first = model.fitted_
    model.set_params(training__steps=1, learning_rate=1e-12).fit(u, waves(u))
    for before, after in zip(first.draws.members, model.fitted_.draws.members):
        assert_allclose(after.weights, before.weights, atol=1e-6)
        assert all(map(np.array_equal, before.state, after.state))
    assert_allclose(model.fitted_.inputs.scaling.mean_, first.inputs.scaling.mean_)
    assert_allclose(model.predict(u), first.distribution(u).mean, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr("skuq.estimators.methods._neon_training._SCALE_STEPS", 100)
    u, points = inputs(10), WAVE_SETTINGS["query_points"][::3]
    settings = {"noise_std": 0.0, "warm_start": True, "refine": True, "training__steps": 100}
    settings = {**WAVE_SETTINGS, **settings, "query_points": points}
    model = small("conditioned", **settings).fit(u[:9], waves(u[:9], points))
    before = model.predict_uncertainty(u[9:]).epistemic.mean()
    model.set_params(training__steps=1).fit(u, waves(u, points))
    assert model.predict_uncertainty(u[9:]).epistemic.mean() < 0.1 * before


def test_warm_starts_add_members_and_learn_the_noise_of_a_cold_start():
    model = fit_small("ensemble", n_members=2, noise_std=0.0, warm_start=True)
    before = [member.state[0] for member in model.members_]
    model.set_params(n_members=4).fit(INPUTS, VALUES)
    after = [member.state[0] for member in model.members_]
    assert_allclose(after[:2], before)
    assert min(abs(after[k] - after[j]).max() for k in range(4) for j in range(k)) > 0.1
    u, settings = inputs(30), {**WAVE_SETTINGS, **operators.SMALL, "n_members": 2}
    cold = small("ensemble", **settings).fit(u, waves(u))
    warm = clone(cold).set_params(warm_start=True).fit(u, waves(u)).fit(u, waves(u))
    assert_allclose(warm.noise_std_, cold.noise_std_)
    assert_allclose(warm.members_[0].weights, cold.members_[0].weights)


@pytest.fixture(scope="module")
def started():
    settings = {**WAVE_SETTINGS, **operators.SMALL, "noise_std": 0.0, "warm_start": True}
    return small("conditioned", **settings).fit(inputs(30), waves(inputs(30)))


@cases(
    ("changes", "message"),
    ({"X": inputs(30)[:, [0, 1, 0]]}, "2 features of X. Got 3 .*warm_start=False"),
    ({"Y": np.stack([waves(inputs(30))] * 2, axis=2)}, "1 components of Y. Got 2"),
    ({"query_points": SHAPED}, "columns of `query_points`. Got 2"),
    ({"X": inputs(30)[:, :1], "noise_std": "auto"}, "2 features of X. Got 1"),
    ({"network__latent": 7}, "changed their architecture"),
    ({"standardize": False}, "had standardize=True. Got standardize=False"),
    ids=range(6),
)
def test_fit_refuses_other_networks_in_a_warm_start(started, changes, message):
    settings = {name: value for name, value in changes.items() if name not in "XY"}
    model = copy.deepcopy(started).set_params(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(changes.get("X", inputs(30)), changes.get("Y", waves(inputs(30))))


def test_fit_asks_the_given_model_that_it_has_now_in_a_warm_start():
    second = LinearRegression().fit(INPUTS, VALUES + 1)
    model = fit_small("epinet", pretrained=GIVEN, noise_std=0.0, warm_start=True)
    model.set_params(pretrained=second, query_points=operators.QUERIES + 1).fit(INPUTS, VALUES + 1)
    assert_allclose(model.predict(INPUTS), second.predict(INPUTS))


def test_constants_do_not_spoil_the_others_and_are_not_kept():
    """Values that all functions share at a query point are common: boundary conditions."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    Y = np.stack([np.full(40, 5.0), X[:, 0], X[:, 0] ** 2], axis=1)
    settings = {"query_points": None, "training__steps": 400, "learning_rate": 0.01}
    settings |= {"network__encoder_units": 16, "network__latent": 16, "network__decoder_units": 4}
    model = small("ensemble", n_members=2, noise_std=0.0, **settings).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean[:, 0], 5, rtol=1e-5)
    assert (std[:, 0] < 1e-4).all()
    assert np.abs(mean - Y)[:, 1:].mean() < 0.3 and np.median(std[:, 1:]) > 1e-3
    Y = np.stack([np.full(4, 5.0), np.array([1.0, 2, 3, 4])], axis=1)
    wide = np.array([25 + (value / Y[:, 1].std()) ** 2 for value in Y[:, 1]])
    # A constant counts as 1 in place of its square.
    for narrow, size in ((True, wide - 24), (False, wide)):
        targets = operators.FunctionTargets(by_column=True, narrow_constants=narrow)
        values = targets.fit_encoder(Y, None)
        weights = targets.fit(values).pair_weights(values, np.ones(4))
        assert_allclose(weights.reshape(4, 2)[:, 0] * size, 2)
    X, settings = np.random.default_rng(0).normal(size=(20, 2)), {"query_points": None}
    settings |= {"noise_std": 0.0, "training__steps": 400, "n_members": 2}
    model = small("ensemble", **settings, warm_start=True).fit(X, np.full(20, 7.0))
    assert np.abs(model.fit(X, X[:, 0]).predict(X) - X[:, 0]).mean() < 0.3
    given = LinearRegression().fit(X, X[:, 0])
    model = small("epinet", pretrained=given, query_points=None, noise_std=0.0).fit(X, np.zeros(20))
    assert std_of(model, X).min() > 1e-4
    # A model of a frame gets its columns by name, and no others.
    given = SimpleNamespace(feature_names_in_=["a", "b"], predict=lambda X: X["b"].to_numpy())
    frame = pd.DataFrame(X, columns=["a", "b"])
    model.set_params(pretrained=given).fit(frame, X[:, 1])
    assert_allclose(model.predict(frame), X[:, 1], rtol=1e-6)
    with pytest.raises(ValueError, match=r"fitted with, in their order: \['a', 'b'\]"):
        model.fit(frame[["b", "a"]], X[:, 1])
    # One row is not taken for a constant.
    assert std_of(small("conditioned", query_points=None).fit(X[:1], [7.0]), X[1:]).min() > 1e-3
