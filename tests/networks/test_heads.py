import numpy as np
import pytest
from heads import CategoricalHead, GaussianMixtureHead
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import integrate, special, stats
from tiers import cases

from skuq.metrics import crps_loss
from skuq.networks import GaussianHead

LIKELIHOODS = [GaussianHead(2), GaussianHead(2, beta=0.5)]
CRPS = GaussianHead(2, score="crps")
MIXTURE = GaussianMixtureHead(2)
HEADS = [*LIKELIHOODS, CRPS, MIXTURE]


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


def test_loss_is_scipys_normal(global_random_seed):
    head = GaussianHead(2)
    y, raw = float32(*numbers(head, seed=global_random_seed))
    mean, std = head.distribution(raw.astype(float))
    expected = -stats.norm(mean, std).logpdf(y).mean(axis=1)
    assert_allclose(np.asarray(head.loss(y, raw)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", [*LIKELIHOODS, CRPS], ids=repr)
def test_validation_loss_is_the_score_and_without_beta(head):
    y, raw = numbers(head)
    found = np.asarray(head.validation_loss(*float32(y, raw)))
    assert_allclose(head.scores(y, raw), found, rtol=1e-5, atol=1e-6)
    if head is not CRPS:
        assert_allclose(found, -head.log_likelihood(y, raw) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_moments_are_those_of_the_density(head):
    """Numerical integration of the likelihood of one output, the other's held."""
    y, raw = numbers(head, rows=(), seed=3)
    at = np.linspace(-12, 12, 8001)
    both = head.log_likelihood(
        np.stack([at, np.full_like(at, y[1])], axis=1), np.tile(raw, (8001, 1))
    )
    density = np.exp(both - both.max())
    density /= integrate.simpson(density, x=at)
    first, second = (integrate.simpson(density * at**power, x=at) for power in (1, 2))
    mean, std = head.moments(raw)
    assert_allclose(first, mean[0], rtol=1e-6, atol=1e-6)
    assert_allclose(second - first**2, std[0] ** 2, rtol=1e-6)


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_wild_raw_numbers_leave_losses_and_gradients_finite(head, rng):
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


def test_crps_is_that_of_the_metrics(global_random_seed):
    y, raw = numbers(CRPS, seed=global_random_seed)
    mean, scale = CRPS.distribution(raw)
    expected = [crps_loss(y[[k]], mean[[k]], scale[[k]]) for k in range(len(y))]
    assert_allclose(CRPS.loss(*float32(y, raw)), expected, rtol=1e-4, atol=1e-6)


def test_mixture_is_the_sum_of_scipys_normals():
    head = GaussianMixtureHead(2, n_components=3)
    y, raw = numbers(head)
    loc, scale, log_probability = head.distribution(raw)  # (7, 3, 2)
    probability = special.softmax(raw.reshape(7, 3, 3, 2)[:, 0], axis=1)
    assert_allclose(np.exp(log_probability), probability, rtol=1e-12)
    density = (probability * stats.norm(loc, scale).pdf(y[:, None])).sum(axis=1)
    assert_allclose(head.log_likelihood(y, raw), np.log(density).sum(axis=1), rtol=1e-12)


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
    found = head.moments(head.widened(raw, far**2, wide))
    assert_allclose(found, [mean + wide, np.sqrt(std**2 + far**2)], rtol=1e-9)
    if head is MIXTURE:  # which keeps the shape, too
        pooled = head.log_densities(y, head.pooled(np.stack([raw, other])))
        each = [head.log_densities(y, one) for one in (raw, other)]
        assert_allclose(pooled, np.logaddexp(*each) - np.log(2), rtol=1e-9)


def test_raw_zeros_are_a_standard_normal():
    head = GaussianMixtureHead(1, n_components=3)
    mean, std = head.moments(np.zeros((1, 9)))
    assert_allclose(mean, 0, atol=1e-15)
    assert_allclose(std, 1, atol=0.1)
    loc = head.distribution(np.zeros((1, 9)))[0]
    assert_allclose(loc[0, :, 0], stats.norm.ppf([1 / 6, 0.5, 5 / 6]), atol=1e-12)


@cases(
    ("make", "message"),
    (lambda: GaussianHead(beta=-0.1), "beta must lie in"),
    (lambda: GaussianHead(score="brier"), 'score must be "log" or "crps". Got \'brier\''),
    (lambda: GaussianHead(score="crps", beta=0.5), 'beta needs score="log". Got beta=0.5'),
    (lambda: GaussianMixtureHead(n_components=0), "n_components must be at least 1"),
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(scale=st.floats(1e-3, 1e2), n=st.integers(1, 6), seed=st.integers(0, 99))
def test_pooled_classes_have_the_average_probabilities(scale, n, seed):
    raw = scale * np.random.default_rng(seed).normal(size=(n, 5, 3))
    head = CategoricalHead(3)
    expected = head.probabilities(raw).mean(axis=0)
    assert_allclose(head.probabilities(head.pooled(raw)), expected, rtol=1e-9, atol=1e-300)
