"""Heads, and NOMU's network, loss and readout, against their formulas."""

import numpy as np
import plans
import pytest
from heads import READOUTS, CategoricalHead, GaussianMixtureHead, NomuHead, build_nomu
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from plans import make_plan, numpy_of
from scipy import integrate, special, stats
from tiers import cases

from skuq.backend import keras
from skuq.networks import GaussianHead
from skuq.predictive import GaussianMixture

layers, LIKELIHOODS = keras.layers, [GaussianHead(2), GaussianHead(2, beta=0.5)]
CRPS, MIXTURE = GaussianHead(2, score="crps"), GaussianMixtureHead(2)


def numbers(head, rows=(7,), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*rows, 2)), rng.normal(size=(*rows, head.n_raw))


def float32(*arrays):
    return [array.astype("float32") for array in arrays]


def gradient(function, raw):
    import tensorflow as tf

    raw = tf.Variable(raw)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(function(raw))
    return np.asarray(tape.gradient(total, raw))


def test_loss_is_scipys_normal_or_the_crps_of_the_metrics(global_random_seed):
    head = GaussianHead(2)
    y, raw = float32(*numbers(head, seed=global_random_seed))
    mean, std = head.distribution(raw.astype(float))
    expected = -stats.norm(mean, std).logpdf(y).mean(axis=1)
    assert_allclose(np.asarray(head.loss(y, raw)), expected, rtol=1e-5, atol=1e-6)
    y, raw = numbers(CRPS, seed=global_random_seed)
    mean, scale = CRPS.distribution(raw)
    expected = GaussianMixture(mean[None], scale[None]).crps(y).mean(axis=1)
    assert_allclose(CRPS.loss(*float32(y, raw)), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", [*LIKELIHOODS, CRPS], ids=repr)
def test_validation_loss_is_the_score_and_without_beta(head):
    y, raw = numbers(head)
    found = np.asarray(head.validation_loss(*float32(y, raw)))
    assert_allclose(head.scores(y, raw), found, rtol=1e-5, atol=1e-6)
    if head is not CRPS:
        assert_allclose(found, -head.log_likelihood(y, raw) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", [*LIKELIHOODS, CRPS, MIXTURE], ids=repr)
def test_moments_are_those_of_the_density_and_wild_raw_numbers_stay_finite(head, rng):
    """Numerical integration of the likelihood of one output, the other's held."""
    y, raw = numbers(head, rows=(), seed=3)
    at = np.linspace(-12, 12, 8001)
    rows = np.stack([at, np.full_like(at, y[1])], axis=1)
    both = head.log_likelihood(rows, np.tile(raw, (8001, 1)))
    density = np.exp(both - both.max())
    density /= integrate.simpson(density, x=at)
    first, second = (integrate.simpson(density * at**power, x=at) for power in (1, 2))
    mean, std = head.moments(raw)
    assert_allclose(first, mean[0], rtol=1e-6, atol=1e-6)
    assert_allclose(second - first**2, std[0] ** 2, rtol=1e-6)
    # Wild raw numbers leave losses and gradients finite.
    y = np.array([[0.0, 3.0], [-5.0, 1.0], [100.0, -100.0]], dtype="float32")
    raw = (rng.normal(size=(3, head.n_raw)) * [[1.0], [30.0], [200.0]]).astype("float32")
    assert np.isfinite(np.asarray(head.loss(y, raw))).all()
    assert np.isfinite(gradient(lambda r: head.loss(y, r), raw)).all()
    assert np.isfinite(head.log_likelihood(y, raw.astype(float))).all()


@pytest.mark.parametrize("beta", [0.25, 1.0])
def test_beta_scales_the_likelihoods_gradient(beta):
    plain, head = GaussianHead(), GaussianHead(beta=beta)
    y, raw = float32(*numbers(plain))
    y = y[:, :1]
    _, scale = plain.distribution(raw)
    expected = gradient(lambda r: plain.loss(y, r), raw) * scale ** (2 * beta)
    assert_allclose(gradient(lambda r: head.loss(y, r), raw), expected, rtol=1e-4)
    assert_allclose(head.loss(y, raw), plain.loss(y, raw) * scale[:, 0] ** (2 * beta), rtol=1e-5)


def test_mixture_is_the_sum_of_scipys_normals():
    head = GaussianMixtureHead(2, n_components=3)
    y, raw = numbers(head)
    loc, scale, log_probability = head.distribution(raw)  # (7, 3, 2)
    probability = special.softmax(raw.reshape(7, 3, 3, 2)[:, 0], axis=1)
    assert_allclose(np.exp(log_probability), probability, rtol=1e-12)
    density = (probability * stats.norm(loc, scale).pdf(y[:, None])).sum(axis=1)
    assert_allclose(head.log_likelihood(y, raw), np.log(density).sum(axis=1), rtol=1e-12)
    head = GaussianMixtureHead(1, n_components=3)  # Raw zeros are a standard normal.
    mean, std = head.moments(np.zeros((1, 9)))
    assert_allclose(mean, 0, atol=1e-15)
    assert_allclose(std, 1, atol=0.1)
    loc = head.distribution(np.zeros((1, 9)))[0]
    assert_allclose(loc[0, :, 0], stats.norm.ppf([1 / 6, 0.5, 5 / 6]), atol=1e-12)


def test_mixtures_are_judged_by_their_crps_and_trained_by_both_scores():
    y, raw = numbers(MIXTURE)
    at = np.linspace(-30, 30, 60_001)
    loc, scale, log_probability = (part[..., None] for part in MIXTURE.distribution(raw))
    cdf = (np.exp(log_probability) * special.ndtr((at - loc) / scale)).sum(axis=1)  # (7, 2, ..)
    crps = integrate.simpson((cdf - (y[..., None] <= at)) ** 2, x=at)
    judged = MIXTURE.validation_loss(*float32(y, raw))
    assert_allclose(judged, crps.mean(axis=1), rtol=2e-3)
    _, std = MIXTURE.moments(raw)
    weighted = crps - std * MIXTURE.log_densities(y, raw)
    assert_allclose(MIXTURE.loss(*float32(y, raw)), weighted.mean(axis=1), rtol=2e-3)
    average = GaussianMixtureHead(2, weighs_losses=True)
    found = average.loss(*float32(y, raw), {"crps": np.float32(0.25)})
    likelihood = -MIXTURE.log_densities(y, raw)
    assert_allclose(found, (0.25 * weighted + 0.75 * likelihood).mean(axis=1), rtol=2e-3)


@pytest.mark.parametrize("head", [GaussianHead(2), MIXTURE], ids=["normal", "mixture"])
def test_pooled_and_widened_numbers_have_the_moments_of_mixtures(head):
    y, raw = numbers(head)
    other = numbers(head, seed=1)[1]
    (mean, std), (far, wide) = head.moments(raw), head.moments(other)
    found = head.moments(head.pooled(np.stack([raw, other])))
    variance = (std**2 + wide**2) / 2 + ((mean - far) / 2) ** 2
    assert_allclose(found, [(mean + far) / 2, np.sqrt(variance)], rtol=1e-9)
    found = head.moments(head.widened(raw, far**2))
    assert_allclose(found, [mean, np.sqrt(std**2 + far**2)], rtol=1e-9)
    if head is MIXTURE:  # which keeps the shape, too
        pooled = head.log_densities(y, head.pooled(np.stack([raw, other])))
        each = [head.log_densities(y, one) for one in (raw, other)]
        assert_allclose(pooled, np.logaddexp(*each) - np.log(2), rtol=1e-9)


@cases(
    ("make", "message"),
    (lambda: GaussianHead(beta=-0.1), "beta must lie in"),
    (lambda: GaussianHead(score="brier"), 'score must be "log" or "crps". Got \'brier\''),
    (lambda: GaussianHead(score="crps", beta=0.5), 'beta needs score="log". Got beta=0.5'),
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(scale=st.floats(1e-3, 1e2), n=st.integers(1, 6), seed=st.integers(0, 99))
def test_pooled_classes_have_the_average_probabilities(scale, n, seed):
    raw, head = scale * np.random.default_rng(seed).normal(size=(n, 5, 3)), CategoricalHead(3)
    expected = head.probabilities(raw).mean(axis=0)
    assert_allclose(head.probabilities(head.pooled(raw)), expected, rtol=1e-9, atol=1e-300)


def settings(**values):
    return {name: np.float32([value]) for name, value in values.items()}


@pytest.mark.parametrize("stable", [False, True])
def test_nomu_head_has_the_terms_of_definition_3_3(stable):
    """Or the stable ones of Eq. 54 and 55."""
    head = NomuHead(2, stable=stable)
    y, raw = float32(*numbers(head))
    raw = 3 * raw
    assert head.n_raw == 4
    f, r = raw[:, :2], raw[:, 2:]
    assert_allclose(numpy_of(head.loss(y, raw)), ((f - y) ** 2).sum(axis=1), rtol=1e-6)
    b = numpy_of(head.row_loss(y, raw, settings(pi_sqr=0.3)))
    huber = np.where(abs(r) <= 1, r**2, 2 * abs(r) - 1) if stable else r**2
    assert_allclose(b, 0.3 * huber.sum(axis=1), rtol=1e-6)
    c, u = numpy_of(head.artificial_loss(raw, settings(pi_exp=0.2, c_exp=1.5))), np.exp(-1.5 * r)
    if stable:
        u = np.where(r >= 0, u, 1 - 1.5 * r)
    assert_allclose(c, 0.2 * u.sum(axis=1), rtol=1e-5)
    far = np.array([[0.0, 0.0, -20.0, 0.0]], dtype="float32")
    loss = numpy_of(head.artificial_loss(far, settings(pi_exp=1.0, c_exp=30.0)))
    assert np.isfinite(loss) == stable


def test_nomu_head_of_two_sides_and_readout_are_the_papers():
    """Eq. 63, and (c) of Definition 3.3 for each side, whatever the level of y."""
    head, pi_sqr = NomuHead(2, n_sides=2, stable=False), settings(pi_sqr=1.0)
    y, raw = float32(*numbers(head))
    f, up, down = raw[:, :2], raw[:, 2:4], raw[:, 4:]
    expected = ((f + up - y) ** 2 + (f - down - y) ** 2).sum(axis=1)
    assert_allclose(numpy_of(head.row_loss(y, raw, pi_sqr)), expected, rtol=1e-5)
    # With the mean given, y is its error, and nothing else changes.
    apart = NomuHead(2, n_sides=2, stable=False, with_mean=False)
    assert_allclose(numpy_of(apart.row_loss(y - f, raw[:, 2:], pi_sqr)), expected, rtol=1e-5)
    # Definition C.1 has (c) of the bounds f + r and r - f.
    c = numpy_of(head.artificial_loss(raw, settings(pi_exp=0.2, c_exp=1.5)))
    assert_allclose(c, 0.2 * np.exp(-1.5 * raw[:, 2:]).sum(axis=1), rtol=1e-5)
    r, low, high = np.linspace(-1, 100, 500), 0.1, 2.0
    expected = high * (1 - np.exp(-(np.maximum(0, r) + low) / high))
    for kind, sigma in (("exponential", expected), ("linear", np.clip(r, low, high))):
        assert_allclose(READOUTS[kind](r, low, high), sigma, rtol=1e-12)


def units_into(model, name):
    return model.get_layer(name).kernel.shape[0]


@cases(("connect", "into_output", "into_2"), (0, 13, 11), (1, 13 + 7, 11), (2, 13 + 7, 11 + 5))
def test_build_nomu_connects_layers_backwards(connect, into_output, into_2):
    units = {"hidden_units": (5, 7), "side_hidden_units": (11, 13)}
    model = build_nomu((3,), 2, **units, connect_layers=connect)
    assert model.output_shape == (None, 4)
    names = "side_output", "side_hidden_2", "side_hidden_1"
    assert [units_into(model, name) for name in names] == [into_output, into_2, 3]
    assert make_plan(model.to_json()) is not None
    with pytest.raises(ValueError, match=r"at most 2 .* Got 3"):
        build_nomu((3,), 1, **units, connect_layers=3)
    with pytest.raises(ValueError, match=r"at most 1 .* Got 2"):
        build_nomu((3,), 1, mean=rescaled, side_hidden_units=(5,), connect_layers=2)


def test_build_nomu_has_penalties_and_first_weights_per_part():
    units, l2 = {"hidden_units": (4,), "side_hidden_units": (4,)}, {"l2": 0.25, "side_l2": 0.5}
    model = build_nomu((3,), 1, **units, **l2, initial_range=0.05)
    penalties = {"mean_hidden_1": 0.25, "mean_output": 0.25, "side_output": 0.25}
    for name, penalty in {**penalties, "side_hidden_1": 0.5}.items():
        layer = model.get_layer(name)
        assert layer.kernel_regularizer.l2 == layer.bias_regularizer.l2 == pytest.approx(penalty)
    assert all(0 < abs(weight).max() <= 0.05 for weight in model.get_weights())


def net(input_shape, n_outputs):
    inputs = keras.Input(input_shape)
    x = layers.BatchNormalization()(layers.Dense(6, activation="tanh")(inputs))
    return keras.Model(inputs, layers.Dense(n_outputs)(x))


def relu(input_shape, n_outputs, *first):
    # With these first weights no unit is 0 for all rows.
    hidden = layers.Dense(9, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=0))
    return plans.sequential(input_shape, *first, hidden, layers.Dense(n_outputs))


def two_heads(input_shape, n_outputs):
    inputs = keras.Input(input_shape)
    x = layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, layers.Concatenate()([layers.Dense(1)(x) for _ in range(n_outputs)]))


def rescaled(input_shape, n_outputs):
    return relu(input_shape, n_outputs, layers.Rescaling(0.5))


@pytest.mark.parametrize(("build", "width"), [(net, 6), (relu, 9), (two_heads, 8), (rescaled, 9)])
def test_build_nomu_takes_any_keras_model_for_f_and_r(build, width):
    """The last hidden layer of f enters r: that of all heads together, and no rescaled input."""
    model = build_nomu((3,), 2, mean=build, side=net)
    assert model.output_shape == (None, 4) and units_into(model, "side_output") == 6 + width
    assert make_plan(model.to_json()) is not None


def features_of(model):
    """Inputs of the last layer of r."""
    seen = keras.Model(model.input, model.get_layer("side_output").input)
    return lambda x: numpy_of(seen(np.asarray(x, dtype="float32")))


def test_build_nomu_freezes_a_given_mean_and_standardises_its_features():
    given = net((3,), 1)
    scale, offset = [2.0, 3.0, 4.0], [1.0, 0.0, -1.0]
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=(given, scale, offset))
    assert model.output_shape == (None, 1)
    trained = {v.path.split("/")[0] for v in model.trainable_variables}
    assert trained == {"side_hidden_1", "side_output"}
    # f's last hidden layer, seen through the copy, for inputs in the user's units.
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    features = keras.Model(given.input, given.layers[-1].input)
    expected = numpy_of(features((x * scale + offset).astype("float32")))
    assert_allclose(features_of(model)(x)[:, -6:], expected, rtol=1e-5, atol=1e-6)
    alone = build_nomu((3,), 2, side_hidden_units=(5,), given="apart")
    assert alone.output_shape == (None, 2) and units_into(alone, "side_output") == 5
    given = relu((3,), 1), [1.0, 2.0, 3.0], [100.0, 200.0, -300.0]  # features of hundreds
    rows = np.random.default_rng(0).normal(size=(50, 3))
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=given, sample=rows)
    features = features_of(model)(rows)[:, 5:]
    assert_allclose(features.mean(axis=0), 0, atol=1e-3)
    assert_allclose(features.var(axis=0).mean(), 1, rtol=1e-3)
    assert make_plan(model.to_json()) is not None
