"""The methods of benchmarks/nomu.py: NOMU and its rivals with the paper's settings (B.2.2, B.2.6).

Hyper deep ensembles differ from the paper's in three things: their L2 is not multiplied by
1 - dropout, they are chosen by squared error, and a member keeps its best epoch on the
validation rows. Deep ensembles and MC dropout keep the last.
"""

import functools
import sys
import warnings
from unittest import mock

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import (
    DeepEnsembleRegressor,
    HyperDeepEnsembleRegressor,
    MCDropoutRegressor,
    NOMURegressor,
)
from skuq.exceptions import SmallValidationWarning
from skuq.tables._inputs import TableInputs
from skuq.tables._scaling import NoScaling
from skuq.tables._targets import NumberTargets
from skuq.training import Training

METHODS = (
    "nomu",
    "nomu_gradient",
    "gp",
    "mc_dropout",
    "deep_ensemble",
    "hyper_deep_ensemble",
    "hde_star",
)
PAPER_EPOCHS, PAPER_L2 = {"toy": 1024, "solar": 16384}, {"toy": 1e-8, "solar": 1e-19}
GP_FLOOR = 1e-3  # least std of a GP; without one, a cubic fitted exactly has any NLL_min
FLOOR = 1e-6  # least std of the networks: about the precision of float32


def dense(hidden_units, dropout=0.0):
    """A network whose weights and biases all start uniformly in [-0.05, 0.05].

    With Keras' biases of zero all kinks of a first layer of one input are at 0.
    """

    def build(input_shape, n_outputs):
        from skuq.backend import keras

        def layer(units, activation=None):
            start = [keras.initializers.RandomUniform(-0.05, 0.05) for _ in range(2)]
            return keras.layers.Dense(
                units, activation, kernel_initializer=start[0], bias_initializer=start[1]
            )

        layers = [keras.Input(input_shape)]
        for units in hidden_units:
            layers.append(layer(units, "relu"))
            if dropout:
                layers.append(keras.layers.Dropout(dropout))
        return keras.Sequential([*layers, layer(n_outputs)])

    return build


def gaussian_process(seed):
    bounds = (1e-5, 1e5)
    kernel = ConstantKernel(1.0, bounds) * RBF(1.0, bounds)
    return GaussianProcessRegressor(kernel, alpha=1e-7, n_restarts_optimizer=10, random_state=seed)


def nomu(settings, n_features, seed, *, hidden=None, epochs=None, **changes):
    """NOMU with the paper's `settings`, of another width or with other epochs on request."""
    if hidden is not None:
        changes["network__hidden_units"] = (hidden,) * 3
    if epochs is not None:
        changes["epochs"] = epochs
    return NOMURegressor.from_paper(settings, n_features, random_state=seed, **changes)


def unscaled(estimator):
    """Derive a class of an ensemble that does not standardise X and y."""
    module = sys.modules[estimator.__module__]

    def fit(self, X, y):
        inputs = functools.partial(TableInputs, scaling=NoScaling())
        with (
            mock.patch.object(module, "TableInputs", inputs),
            mock.patch.object(module.shared, "make_targets", targets),
        ):
            return estimator.fit(self, X, y)

    def targets(model, n_copies):
        return NumberTargets(loss=model.loss, standardize=False)

    return type(f"Unscaled{estimator.__name__}", (estimator,), {"fit": fit})


def rival(method, solar, n_rows, seed, hidden, epochs, n_search):
    """An ensemble or MC dropout; `hidden` is 1024 for the paper's layers, whatever they are.

    The paper's data are in [-1, 1], and not standardised.
    """
    kind = "solar" if solar else "toy"
    l2 = PAPER_L2[kind] / n_rows
    ensemble_units = (hidden // 4, hidden, hidden // 2)
    common = {
        "loss": "mse",
        "noise_std": 0.0,
        "learning_rate": 1e-3,
        "batch_size": n_rows,
        "epochs": epochs or PAPER_EPOCHS[kind],
        "early_stopping_patience": None,
        "random_state": seed,
    }
    if method == "mc_dropout":
        network = dense((hidden, 2 * hidden, hidden), dropout=0.2)
        return unscaled(MCDropoutRegressor)(
            100, network=network, training=Training(l2=0.8 * l2), validation=None, **common
        )
    if method == "deep_ensemble":
        return unscaled(DeepEnsembleRegressor)(
            5, network=dense(ensemble_units), training=Training(l2=l2), validation=None, **common
        )
    star = method == "hde_star"
    validation = 0.3 if star else 0.2
    l2 = PAPER_L2[kind] / int((1 - validation) * n_rows)
    return unscaled(HyperDeepEnsembleRegressor)(
        5,
        n_trials=n_search,
        network=dense(ensemble_units, dropout=0.5),  # each setting has its own rate
        dropout_range=(1e-3, 0.5 if star else 0.9),
        l2_range=(1e-3 * l2, 1e3 * l2),
        validation=validation,
        refit=star,
        **common,
    )


def fit(model, X, y):
    """The fitted model, without warnings of what the paper's settings bring with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallValidationWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def mean_std(model, X):
    """Mean and standard deviation of the model itself, without noise."""
    if isinstance(model, GaussianProcessRegressor):
        mean, std = model.predict(X, return_std=True)
        return mean, np.maximum(std, GP_FLOOR)
    found = model.predict_uncertainty(X)
    return found.mean, np.maximum(found.epistemic, FLOOR)
