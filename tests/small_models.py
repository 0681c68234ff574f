"""A search space and a regressor that cost next to nothing, for tests of everything else."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq.networks import Categorical, Decisions, Space


def make(kind, **settings):
    return kind().set_params(**settings)


class TinySpace:
    """One hidden layer of a few units, trained quickly: for tests of everything else."""

    def __repr__(self):
        return "TinySpace()"

    def decisions(self, input_shape=None, n_outputs=None):
        architecture = Categorical("units", (8, 10)), Categorical("activation", ("tanh", "relu"))
        recipe = Categorical("learning_rate", (0.03, 0.02)), Categorical("batch_size", (16,))
        return Decisions(Space(architecture), Space(recipe))

    def build(self, configuration, input_shape, n_outputs):
        from skuq.backend import keras

        layers, inputs = keras.layers, keras.Input(input_shape, name="input")
        hidden = layers.Dense(configuration["units"], configuration["activation"], name="hidden")
        output = layers.Dense(n_outputs, name="output")
        return keras.Sequential([inputs, hidden, output], name="tiny")

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
