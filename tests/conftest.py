"""Small things every test may use."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq._space import Categorical, Space
from skuq.networks import Decisions


class TinySpace:
    """One hidden layer of a few units, trained quickly: for tests of everything else."""

    def __repr__(self):
        return "TinySpace()"

    def decisions(self, input_shape=None, n_outputs=None):
        return Decisions(
            Space((Categorical("units", (8, 10)), Categorical("activation", ("tanh", "relu")))),
            Space(
                (
                    Categorical("learning_rate", (0.03, 0.02)),
                    Categorical("batch_size", (16,)),
                )
            ),
        )

    def build(self, configuration, input_shape, n_outputs):
        from skuq.backend import keras

        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input(input_shape, name="input"),
                layers.Dense(
                    configuration["units"], activation=configuration["activation"], name="hidden"
                ),
                layers.Dense(n_outputs, name="output"),
            ],
            name="tiny",
        )

    def recipe(self, configuration):
        return {name: configuration[name] for name in ("learning_rate", "batch_size")}


class TooSure(RegressorMixin, BaseEstimator):
    """Ordinary least squares with a made-up standard deviation: for calibration."""

    def __init__(self, share=0.2):
        self.share = share

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
        self.line_ = LinearRegression().fit(X, y, sample_weight)
        used = np.ones(len(y), bool) if sample_weight is None else np.asarray(sample_weight) > 0
        self.std_ = self.share * np.std(y[used] - self.line_.predict(X[used]), axis=0)
        return self

    def predict(self, X, return_std=False):
        check_is_fitted(self)
        mean = self.line_.predict(validate_data(self, X, reset=False))
        return (mean, np.broadcast_to(self.std_, mean.shape)) if return_std else mean


@pytest.fixture(scope="session", autouse=True)
def trials_of_one_job_run_here():
    """Whatever memory earlier tests have left in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.search._slots._MAX_BYTES", float("inf"))
        yield


@pytest.fixture(scope="session")
def tiny_space():
    return TinySpace()


@pytest.fixture(params=[0, 1, 7])
def global_random_seed(request):
    return request.param


@pytest.fixture
def wave():
    """120 noisy rows of a smooth function of two inputs."""
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (120, 2))
    return X, 3 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=120) + 10


@pytest.fixture(scope="session")
def iris():
    """Iris in a fixed random order, with names as labels."""
    X, y = load_iris(return_X_y=True)
    order = np.random.RandomState(0).permutation(150)
    return X[order], np.array(["setosa", "versicolor", "virginica"])[y[order]]


@pytest.fixture(scope="session")
def data_dir():
    """Folder of the real benchmark data; tests that want it skip where it is missing."""
    folder = Path(os.environ.get("SKUQ_DATA_DIR", "data"))
    if not (folder / "uci_regression").is_dir():
        pytest.skip(f"no benchmark data in {folder} (set SKUQ_DATA_DIR)")
    return folder


def pytest_make_parametrize_id(config, val, argname):
    """Settings as they are, but for addresses: they differ between the processes tests run in."""
    return re.sub(" at 0x[0-9a-f]+", "", str(val)) if isinstance(val, dict) else None
