import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import integrate

from skuq.predictive import QuantileMixture, TransformedMixture

LEVELS = np.arange(1, 20) / 20


class Identity:
    def forward(self, y):
        return y

    inverse = forward

    def log_derivative(self, y):
        return np.zeros(np.shape(y))


def one(values, levels=LEVELS):
    return QuantileMixture(levels, np.reshape(values, (1, -1, 1)))


def test_by_hand():
    # A half uniform on [0, 2], density 1/4; tails of 1/4 each, of scale (1/4) / (1/4).
    m = one([0.0, 1.0, 2.0], [0.25, 0.5, 0.75])
    assert_allclose(m.cdf(-1.0), 0.25 * np.exp(-1))
    assert_allclose(m.cdf(3.0), 1 - 0.25 * np.exp(-1))
    assert_allclose(m.log_prob([1.3]), np.log(0.25))
    assert_allclose(m.log_prob([5.0]), np.log(0.25) - 3)
    # 1/2 * 4/12 about 1, and 1/2 * (1 + (1 + 1)**2).
    assert_allclose(m.variance, 1 / 6 + 5 / 2)
    assert_allclose(m.mean, 1)


@pytest.mark.parametrize("levels", [LEVELS, np.array([0.1, 0.9]), np.array([0.001, 0.3, 0.5])])
def test_quantiles_given_are_quantiles(levels, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    values = np.sort(rng.normal(size=(1, len(levels), 6)), axis=1)
    m = QuantileMixture(levels, values)
    assert_allclose(m.quantile(levels), values[0].T, rtol=1e-5, atol=1e-5)
    for level, value in zip(levels, values[0]):
        assert_allclose(m.cdf(value), level, rtol=1e-9)


def test_tails_continue_the_density(global_random_seed):
    m = one(np.sort(np.random.default_rng(global_random_seed).normal(size=19)))
    for end in (m.values[0, 0], m.values[0, -1]):
        inside = end - 1e-9 * np.sign(end - m.mean)
        assert_allclose(m.log_prob(end), m.log_prob(inside), atol=1e-6)
        assert_allclose(m.log_prob(2 * end - inside), m.log_prob(end), atol=1e-6)


def test_density_integrates_to_1_with_the_moments(global_random_seed):
    m = one(np.sort(np.random.default_rng(global_random_seed).normal(size=19)))
    ends = m.quantile(1e-14)[0], m.quantile(1 - 1e-14)[0]
    edges = np.concatenate([ends[:1], m.values[0, :, 0], ends[1:]])

    def moment(power):
        return sum(
            integrate.quad(lambda y: y**power * np.exp(m.log_prob(np.array([y]))[0]), a, b)[0]
            for a, b in zip(edges[:-1], edges[1:])
        )

    assert_allclose(moment(0), 1, rtol=1e-7)
    assert_allclose(m.mean, moment(1), rtol=1e-7, atol=1e-9)
    assert_allclose(m.variance, moment(2) - moment(1) ** 2, rtol=1e-7)


def test_rule_for_averages_is_exact_for_moments(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    for levels in (LEVELS, np.array([0.1, 0.9])):
        m = QuantileMixture(levels, np.sort(rng.normal(size=(3, len(levels), 4)), axis=1))
        same = TransformedMixture(m, Identity())
        assert_allclose(same.member_means, m.member_means, rtol=1e-12)
        assert_allclose(same.member_variances, m.member_variances, rtol=1e-10)


values_with_ties = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, -3.0]), st.floats(-1e6, 1e6)), min_size=5, max_size=5
).map(sorted)


@given(
    st.lists(values_with_ties, min_size=1, max_size=4),
    st.sampled_from([1.0, 1e8, 1e-8]),
    st.floats(1e-6, 1 - 1e-6),
)
def test_ties_and_scales_leave_everything_finite_and_in_order(members, unit, level):
    levels = np.array([0.05, 0.3, 0.5, 0.8, 0.99])
    m = QuantileMixture(levels, unit * np.array(members)[:, :, None])
    found = m.quantile([level / 2, level, 1 - (1 - level) / 2])[0]
    assert np.isfinite(found).all() and (np.diff(found) >= 0).all()
    # Between tied values a member is narrower than the finder is exact: the cdf then jumps
    # across the level.
    near = 1e-8 * unit * max(np.abs(members).max(), 1e-3)
    assert m.cdf(found[1] - near) <= level + 1e-9 and m.cdf(found[1] + near) >= level - 1e-9
    if (np.ptp(members, axis=1) > 1).all():
        # Between tied values one rounding of y may be more than 1e-6 of probability.
        rounding = 4 * np.exp(m.log_prob(found[1:2])) * np.spacing(np.abs(unit * m.values).max())
        assert_allclose(m.cdf(found[1]), level, atol=1e-6 + rounding[0])
    assert np.isfinite(m.log_prob(found[:1])).all() and np.isfinite(m.log_prob([0.0])).all()
    assert (m.std > 0).all() and np.isfinite(m.std).all()
    assert (m.epistemic_variance >= 0).all() and (m.aleatoric_variance > 0).all()


def test_all_values_tied_are_a_narrow_distribution():
    for value in (0.0, 5.0, -1e8):
        m = one(np.full(19, value))
        assert_allclose(m.mean, value, rtol=1e-9, atol=1e-90)
        assert 0 < m.std[0] <= 1e-9 * abs(value) + 1e-90
        assert np.isfinite(m.log_prob([value])) and np.isfinite(m.quantile([0.01, 0.99])).all()
        assert m.log_prob([value]) > 10


def test_many_members_invert_exactly(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    m = QuantileMixture(LEVELS, np.sort(rng.normal(size=(12, 19, 40)), axis=1))
    for level in (1e-7, 0.03, 0.051, 0.5, 0.94, 0.999, 1 - 1e-9):
        assert_allclose(m.cdf(m.quantile(level)), level, rtol=1e-9)
