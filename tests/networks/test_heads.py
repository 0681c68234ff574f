import numpy as np
from scipy import stats

from skuq.networks import GaussianHead


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


def test_raw_numbers():
    assert GaussianHead(3).n_raw == 6
