"""Posteriors of any regressor, and one regressor for each output."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from surrogates import posterior_of, search

from skuq.bayesopt import OutputwiseRegressor

X = np.random.RandomState(0).uniform(size=(12, 2))
Y = np.column_stack([X.sum(axis=1), np.sin(3 * X[:, 0]), X[:, 1] ** 2])
NEW = np.random.RandomState(1).uniform(size=(7, 2))


def gaussian_process():
    return GaussianProcessRegressor(alpha=1e-6, optimizer=None, normalize_y=True)


def test_posterior_of_a_process_has_its_moments():
    model = gaussian_process().fit(X, Y[:, 0])
    model.lock = threading.Lock()  # it cannot be copied
    posterior = posterior_of(model, 16, 0, ())
    mean, std = model.predict(NEW, return_std=True)
    draws = posterior(NEW)
    assert (posterior.key, posterior.joint, draws.shape) == (None, False, (16, 7))
    assert_allclose(draws.mean(axis=0), mean, rtol=1e-10)
    assert_allclose(draws.std(axis=0), std, rtol=1e-6)
    assert_array_equal(posterior_of(model, 16, 0, ())(NEW), draws)
    assert not np.array_equal(posterior_of(model, 16, 1, ())(NEW), draws)


@pytest.mark.parametrize(
    "wrap", [lambda gp: gp, lambda gp: make_pipeline(StandardScaler(), gp), OutputwiseRegressor]
)
def test_posterior_of_a_process_has_no_noise(wrap):
    """It is that of a process whose noise is `alpha`, which scikit-learn leaves out."""
    given = {"optimizer": None, "normalize_y": True}
    noise = WhiteKernel(0.1) + ConstantKernel() * WhiteKernel(0.2)
    white = GaussianProcessRegressor(RBF(0.5) + noise, alpha=0.0, **given)
    plain = GaussianProcessRegressor(RBF(0.5), alpha=0.3, **given)
    found, expected = (wrap(model).fit(X, Y[:, 0]) for model in (white, plain))
    draws = [posterior_of(model, 8, 0, ())(NEW) for model in (found, expected)]
    assert_allclose(*draws, rtol=1e-9)
    assert found.predict(NEW, return_std=True)[1].min() > 0.5 * Y[:, 0].std()  # as it was


def test_maximize_by_a_process_of_one_output_with_an_axis():
    objective = {"objective": lambda y: -((y[..., 0] - 0.3) ** 2)}
    optimizer = search(gaussian_process(), bounds=[(0, 1)], **objective)
    assert abs(optimizer.maximize(lambda x: [x[0]], 7).x[0] - 0.3) < 0.05


def test_posterior_of_many_outputs_draws_them_independently():
    model = OutputwiseRegressor(gaussian_process()).fit(X, Y)
    draws = posterior_of(model, 256, 0, (3,))(NEW)
    assert draws.shape == (256, 7, 3)
    # Sobol's columns are nearly uncorrelated: chance would give 1/16.
    assert_allclose(np.corrcoef(draws[:, 0].T), np.eye(3), atol=0.1)
    mean, std = np.zeros((7, 3)), np.ones((7, 1))  # one for all outputs of a row
    model = SimpleNamespace(predict=lambda X, return_std: (mean, std))
    assert_allclose(posterior_of(model, 8, 0, (3,))(NEW).std(axis=0), np.ones((7, 3)))


def test_outputwise_is_one_regressor_a_column():
    model = OutputwiseRegressor(gaussian_process()).fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    for j in range(3):
        own_mean, own_std = gaussian_process().fit(X, Y[:, j]).predict(NEW, return_std=True)
        assert_allclose(mean[:, j], own_mean, rtol=1e-10)
        assert_allclose(std[:, j], own_std, rtol=1e-6)
    assert_array_equal(model.predict(NEW), mean)
