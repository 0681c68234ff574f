import heads
import numpy as np
import pytest
from heads import GaussianMixtureHead, PackedHead, QuantileHead, StudentTHead
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import integrate, special, stats
from tiers import cases

from skuq.metrics import crps_loss, crps_mixture_loss
from skuq.networks import GaussianHead
from skuq.networks._heads import _log_t_constant

LIKELIHOODS = [
    *(GaussianHead(2), GaussianHead(2, beta=0.5), StudentTHead(2)),
    *(GaussianMixtureHead(2, n_components=3), PackedHead(GaussianHead(2), 4)),
    PackedHead(GaussianMixtureHead(2, n_components=2), 3),
]
CRPS = [GaussianHead(2, score="crps"), PackedHead(GaussianHead(2, score="crps"), 3)]
MIXTURE = GaussianMixtureHead(2, score="crps", validation="crps")
MIXTURES = [MIXTURE, PackedHead(MIXTURE, 2)]
HEADS = [*LIKELIHOODS, *CRPS, *MIXTURES, QuantileHead(2), QuantileHead(2, levels=(0.1, 0.9))]


def numbers(head, rows=(7,), seed=0, n_outputs=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*rows, n_outputs)), rng.normal(size=(*rows, head.n_raw))


def float32(*arrays):
    return [array.astype("float32") for array in arrays]


def gradient(function, raw):
    import tensorflow as tf

    raw = tf.Variable(raw)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(function(raw))
    return np.asarray(tape.gradient(total, raw))


def test_loss_is_scipys_normal(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    head = GaussianHead(n_outputs=2)
    raw, y = rng.normal(size=(7, 4)).astype("float32"), rng.normal(size=(7, 2)).astype("float32")
    mean, std = head.distribution(raw.astype("float64"))
    expected = -stats.norm(mean, std).logpdf(y).mean(axis=1)
    np.testing.assert_allclose(np.asarray(head.loss(y, raw)), expected, rtol=1e-5)


def test_scale_is_softplus_above_a_floor():
    head = GaussianHead(min_scale=0.01)
    _, scale = head.distribution(np.array([[0.0, 0.0], [0.0, -1e4], [0.0, 50.0]]))
    np.testing.assert_allclose(scale[:, 0], [np.log(2) + 0.01, 0.01, 50.01], rtol=1e-12)


@pytest.mark.parametrize("head", LIKELIHOODS, ids=repr)
def test_validation_loss_is_the_negative_log_likelihood(head):
    y, raw = numbers(head)
    found = np.asarray(head.validation_loss(*float32(y, raw)))
    assert_allclose(found, -head.log_likelihood(y, raw) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_leading_axes_broadcast(head):
    y, raw = numbers(head, rows=(3, 5))
    together = np.asarray(head.loss(*float32(y[0], raw)))
    assert together.shape == (3, 5)
    likelihood, (mean, std) = head.log_likelihood(y[0], raw), head.moments(raw)
    for k in range(3):
        alone = np.asarray(head.loss(*float32(y[0], raw[k])))
        assert_allclose(together[k], alone, rtol=1e-5)
        assert_allclose(likelihood[k], head.log_likelihood(y[0], raw[k]), rtol=1e-12)
        assert_allclose((mean[k], std[k]), head.moments(raw[k]), rtol=1e-12)


@pytest.mark.parametrize("head", [h for h in HEADS if type(h) is not StudentTHead], ids=repr)
def test_moments_are_those_of_the_density(head):
    """Numerical integration of the likelihood of one output, the other's held."""
    y, raw = numbers(head, rows=(), seed=3)
    mean, std = head.moments(raw)
    assert mean.shape == std.shape == (2,)

    def moment(power, far=400):
        # Copy by copy, given which outputs are independent.
        at = np.concatenate([np.linspace(-far, -12, 8001)[:-1], np.linspace(-12, 12, 8001)])
        at = np.concatenate([at, np.linspace(12, far, 8001)[1:]])
        heads = [head] if not isinstance(head, PackedHead) else [head.head] * head.n_copies
        raws = raw.reshape(len(heads), -1)
        total = 0.0
        for head_of_copy, numbers in zip(heads, raws):
            rows = np.broadcast_to(numbers, (len(at), len(numbers)))
            both = head_of_copy.log_likelihood(np.stack([at, np.full_like(at, y[1])], axis=1), rows)
            density = np.exp(both - both.max())
            density /= integrate.simpson(density, x=at)
            total += integrate.simpson(density * at**power, x=at) / len(heads)
        return total

    rtol = 1e-2 if isinstance(head, QuantileHead) else 1e-6  # whose density has steps
    assert_allclose(moment(1), mean[0], rtol=rtol, atol=1e-6)
    assert_allclose(moment(2) - moment(1) ** 2, std[0] ** 2, rtol=rtol)


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_wild_raw_numbers_leave_losses_and_gradients_finite(head, rng):
    y = np.array([[0.0, 3.0], [-5.0, 1.0], [100.0, -100.0]], dtype="float32")
    raw = (rng.normal(size=(3, head.n_raw)) * [[1.0], [30.0], [200.0]]).astype("float32")
    assert np.isfinite(np.asarray(head.loss(y, raw))).all()
    assert np.isfinite(gradient(lambda r: head.loss(y, r), raw)).all()
    assert np.isfinite(head.log_likelihood(y, raw.astype(float))).all()


@pytest.mark.parametrize("beta", [0.25, 0.5, 1.0])
def test_beta_scales_the_likelihoods_gradient(beta):
    y, raw = float32(*numbers(GaussianHead()))
    y = y[:, :1]
    _, scale = GaussianHead().distribution(raw)
    plain = gradient(lambda r: GaussianHead().loss(y, r), raw)
    found = gradient(lambda r: GaussianHead(beta=beta).loss(y, r), raw)
    assert_allclose(found, plain * scale ** (2 * beta), rtol=1e-4)
    expected = GaussianHead().loss(y, raw) * scale[:, 0] ** (2 * beta)
    assert_allclose(GaussianHead(beta=beta).loss(y, raw), expected, rtol=1e-5)


def test_crps_is_that_of_the_metrics(global_random_seed):
    head = GaussianHead(2, score="crps")
    y, raw = numbers(head, seed=global_random_seed)
    mean, scale = head.distribution(raw)
    expected = [crps_loss(y[[k]], mean[[k]], scale[[k]]) for k in range(len(y))]
    for function in (head.loss, head.validation_loss):
        assert_allclose(function(*float32(y, raw)), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("n_copies", "n_outputs"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_crps_of_copies_is_that_of_their_mixture(n_copies, n_outputs):
    inner = GaussianHead(n_outputs, score="crps")
    head = PackedHead(inner, n_copies)
    y, raw = numbers(head, n_outputs=n_outputs)
    loc, scale = inner.distribution(head.unpack(raw))  # (n_copies, 7, n_outputs)
    expected = [crps_mixture_loss(y[[k]], loc[:, [k]], scale[:, [k]]) for k in range(len(y))]
    assert_allclose(head.validation_loss(*float32(y, raw)), expected, rtol=1e-4, atol=1e-6)
    copies = raw.reshape(7, n_copies, -1)
    assert_allclose(inner.mixture_loss(*float32(y, copies)), expected, rtol=1e-4, atol=1e-6)
    pairs = [(c, [k]) for k in range(7) for c in range(n_copies)]
    each = [crps_loss(y[k], loc[c, k], scale[c, k]) for c, k in pairs]
    each = np.mean(np.reshape(each, (7, n_copies)), axis=1)
    assert_allclose(head.loss(*float32(y, raw)), each, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", CRPS, ids=repr)
def test_scores_of_likelihood_remain_those_of_the_normal(head):
    plain = GaussianHead(2)
    plain = PackedHead(plain, 3) if isinstance(head, PackedHead) else plain
    y, raw = numbers(head)
    assert_allclose(head.log_likelihood(y, raw), plain.log_likelihood(y, raw))
    assert_allclose(head.moments(raw), plain.moments(raw))


def test_constant_of_the_t_is_scipys():
    df = np.geomspace(2, 1e4, 500)
    expected = stats.t(df).logpdf(0)
    assert_allclose(_log_t_constant(df, np), expected, rtol=0, atol=2e-9)
    from skuq.backend import ops

    single = np.asarray(_log_t_constant(ops.convert_to_tensor(df.astype("float32")), ops))
    assert_allclose(single, expected, rtol=0, atol=1e-6)


def test_t_is_scipys_and_far_out_a_normal():
    head = StudentTHead(2)
    y, raw = numbers(head)
    loc, scale, df = head.distribution(raw)
    expected = stats.t(df, loc, scale)
    assert (df > 2.1).all()
    assert_allclose(head.log_likelihood(3 * y, raw), expected.logpdf(3 * y).sum(1), rtol=1e-8)
    assert_allclose(head.moments(raw), (expected.mean(), expected.std()), rtol=1e-12)
    many = np.full((7, 2), 1e7)
    normal = GaussianHead(2).log_likelihood(y, raw[:, :4])
    found = head.log_likelihood(y, np.concatenate([raw[:, :4], many], axis=1))
    assert_allclose(found, normal, atol=1e-4)  # terms of z**4 / df


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
    average = GaussianMixtureHead(2, score="weighted")
    found = average.loss(*float32(y, raw), {"crps": np.float32(0.25)})
    likelihood = -MIXTURE.log_densities(y, raw)
    assert_allclose(found, (0.25 * weighted + 0.75 * likelihood).mean(axis=1), rtol=2e-3)
    likelihood = GaussianMixtureHead(2, validation="crps")
    found = likelihood.loss(*float32(y, raw))
    assert_allclose(found, -MIXTURE.log_densities(y, raw).mean(1), rtol=1e-5)
    # Copies of one prediction are that prediction.
    twice = np.concatenate([raw, raw], axis=1)
    found = PackedHead(MIXTURE, 2).validation_loss(*float32(y, twice))
    assert_allclose(found, judged, rtol=1e-4)


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
    mean, std = GaussianMixtureHead(1, n_components=3).moments(np.zeros((1, 9)))
    assert_allclose(mean, 0, atol=1e-15)
    assert_allclose(std, 1, atol=0.1)
    loc, _, _ = GaussianMixtureHead(1, n_components=3).distribution(np.zeros((1, 9)))
    assert_allclose(loc[0, :, 0], stats.norm.ppf([1 / 6, 0.5, 5 / 6]), atol=1e-12)
    head = QuantileHead(2, min_scale=0.0)
    found = head.quantiles(np.zeros((1, head.n_raw)))
    assert found.shape == (1, 19, 2)
    expected = stats.norm.ppf(np.arange(1, 20) / 20)
    assert_allclose(found[0], np.stack([expected, expected], axis=1), atol=1e-12)


@pytest.mark.parametrize("levels", [(0.1, 0.9), (0.2, 0.5, 0.7), tuple(np.arange(1, 100) / 100)])
def test_quantiles_never_cross(levels, global_random_seed):
    head = QuantileHead(3, levels=levels)
    _, raw = numbers(head, (50,), global_random_seed, 3)
    for scale in (1, 100, 1e4):
        assert (np.diff(head.quantiles(scale * raw), axis=-2) >= 0).all()
        from skuq.backend import ops

        single = np.asarray(head.quantiles((scale * raw).astype("float32"), ops))
        assert (np.diff(single, axis=-2) >= 0).all()
    assert_allclose(head.quantiles(raw)[:, len(levels) // 2], raw[:, :3])


def test_pinball_loss_is_scikit_learns():
    from sklearn.metrics import mean_pinball_loss

    head = QuantileHead(2, levels=(0.1, 0.5, 0.8))
    y, raw = numbers(head)
    values = head.quantiles(raw)
    levels = enumerate(head.levels)
    expected = [mean_pinball_loss(y, values[:, k], alpha=level) for k, level in levels]
    assert_allclose(np.mean(head.loss(*float32(y, raw))), np.mean(expected), rtol=1e-5)


def test_packed_loss_is_the_mean_and_likelihood_the_mixture():
    inner = StudentTHead(2)
    head = PackedHead(inner, 3)
    y, raw = numbers(head, (2, 5))
    copies = raw.reshape(2, 5, 3, inner.n_raw)
    losses = [np.asarray(inner.loss(*float32(y, copies[..., k, :]))) for k in range(3)]
    assert_allclose(head.loss(*float32(y, raw)), np.mean(losses, axis=0), rtol=1e-5)
    densities = [np.exp(inner.log_likelihood(y, copies[..., k, :])) for k in range(3)]
    assert_allclose(head.log_likelihood(y, raw), np.log(np.mean(densities, axis=0)), rtol=1e-12)
    head = PackedHead(heads.CategoricalHead(3), 4)
    raw = np.random.default_rng(0).normal(size=(6, 12))
    codes = np.array([[0], [1], [2], [0], [1], [2]])
    proba = special.softmax(raw.reshape(6, 4, 3), axis=-1)
    expected = np.log(proba.mean(axis=1)[np.arange(6), codes[:, 0]])
    assert_allclose(head.log_likelihood(codes, raw), expected, rtol=1e-12)
    each = -np.log(proba[np.arange(6), :, codes[:, 0]]).mean(axis=1)
    assert_allclose(head.loss(*float32(codes, raw)), each, rtol=1e-5)


def test_unpacked_members_come_first_copies_next():
    head = PackedHead(GaussianHead(), 3)
    raw = np.arange(2 * 5 * 6.0).reshape(2, 5, 6)
    found = head.unpack(raw)
    assert found.shape == (6, 5, 2)
    for member in range(2):
        assert_allclose(head.unpack(raw[member]), found[3 * member : 3 * member + 3])
        for copy in range(3):
            expected = raw[member, :, 2 * copy : 2 * copy + 2]
            assert_allclose(found[3 * member + copy], expected)


def test_packed_validation_is_of_what_the_copies_say_together(rng):
    y, codes = rng.normal(size=(6, 2)), np.array([[0], [1], [2], [0], [1], [2]])
    for inner in (heads.SquaredErrorHead(2), QuantileHead(2, levels=(0.1, 0.5, 0.9))):
        head = PackedHead(inner, 3)
        raw = rng.normal(size=(6, head.n_raw))
        copies = raw.reshape(6, 3, -1)
        if isinstance(inner, heads.SquaredErrorHead):
            expected = ((y - copies.mean(axis=1)) ** 2).mean(axis=1)
        else:
            error = y[:, None] - inner.quantiles(copies).mean(axis=1)
            levels = np.array(inner.levels)[:, None]
            expected = np.maximum(levels * error, (levels - 1) * error).mean(axis=(1, 2))
        assert_allclose(head.validation_loss(*float32(y, raw)), expected, rtol=1e-5)
        assert (np.asarray(head.loss(*float32(y, raw))) > expected).all()  # convex losses
    head = PackedHead(heads.CategoricalHead(3), 4)
    raw = rng.normal(size=(6, 12))
    found = head.validation_loss(*float32(codes, raw))
    assert_allclose(found, -head.log_likelihood(codes, raw), rtol=1e-5)


def test_heads_are_hashable_and_equal():
    for head in HEADS:
        assert hash(head) == hash(head)
    assert QuantileHead(levels=[0.1, 0.9]) == QuantileHead(levels=(0.1, 0.9))
    assert hash(PackedHead(QuantileHead(), 2)) == hash(PackedHead(QuantileHead(), 2))


@cases(
    ("make", "message"),
    (lambda: GaussianHead(beta=-0.1), "beta must lie in"),
    (lambda: GaussianHead(score="brier"), 'score must be "log" or "crps". Got \'brier\''),
    (lambda: GaussianHead(score="crps", beta=0.5), 'beta needs score="log". Got beta=0.5'),
    (lambda: StudentTHead(min_df=2.0), "min_df must be above 2"),
    (lambda: GaussianMixtureHead(n_components=0), "n_components must be at least 1"),
    (lambda: PackedHead(GaussianHead(), 0), "n_copies must be at least 1"),
    (lambda: QuantileHead(levels=(0.5,)), "at least two"),
    (lambda: QuantileHead(levels=(0.5, 0.2)), "strictly increasing"),
    (lambda: QuantileHead(levels=(0.0, 0.2)), "strictly increasing"),
    (lambda: QuantileHead(levels=(0.1, np.nan)), "strictly increasing"),
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(scale=st.floats(1e-3, 1e2), n=st.integers(1, 6), seed=st.integers(0, 99))
def test_pooled_classes_have_the_average_probabilities(scale, n, seed):
    raw = scale * np.random.default_rng(seed).normal(size=(n, 5, 3))
    head = heads.CategoricalHead(3)
    expected = head.probabilities(raw).mean(axis=0)
    assert_allclose(head.probabilities(head.pooled(raw)), expected, rtol=1e-9, atol=1e-300)
