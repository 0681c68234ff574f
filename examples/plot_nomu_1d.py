"""
NOMU and its rivals: eight points of a function without noise
=============================================================

Figs. 4 and 9d of the NOMU paper: bands f ± c σ of five methods that have seen eight points of
the Levy and of the Forrester function. Without noise a model knows the function at its rows, so
that a band should be narrow there, and the wider the further the next row is.

No method has a scale of its own (NOMU's section A.2.1), and the paper draws each with another c.
Here c is such that all bands of a function have the same mean width: what differs is where a
method puts it. Below each band c σ is drawn alone.

The paper's layers are eight times as wide as these, and its hyper deep ensemble chooses from 50
networks instead of 20: this takes half a minute on two cores, ``--units 1024`` many minutes.
"""

# %%
# The rivals as in the paper's appendix B.2.2: networks that predict nothing but the mean
# (``loss="mse"``), for data known to have no noise (``noise_std=0``), trained on all rows
# (``validation=None``) for 1024 epochs. Their uncertainty is the epistemic part alone.
#
# Biases of zero, which are Keras' default, would put all kinks of a first layer at x = 0: with
# one feature that matters, and NOMU's networks begin otherwise, so these do too.
import argparse
import time
import warnings

import matplotlib
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import skuq
from skuq.exceptions import SmallValidationWarning
from skuq.training import Training

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

warnings.simplefilter("ignore", SmallValidationWarning)  # two rows of eight are few, indeed

LINE = np.linspace(-1, 1, 401)[:, None]
MEAN_WIDTH = 0.6  # mean width of every band, from bound to bound
SEED = 6  # seed of the points; with it no gap is wider than 0.5


def levy(X):
    """The Levy function on [-10, 10], scaled to [-1, 1] in and out."""
    w = (10 * X[:, 0] + 3) / 4
    return (
        2 * (np.sin(np.pi * w) ** 2 + (w - 1) ** 2 * (1 + np.sin(2 * np.pi * w) ** 2)) / 15.625 - 1
    )


def forrester(X):
    """The Forrester function on [0, 1], scaled to [-1, 1] in and out."""
    x = (X[:, 0] + 1) / 2
    low, high = -6.02074, 16 * np.sin(8)
    return 2 * ((6 * x - 2) ** 2 * np.sin(12 * x - 4) - low) / (high - low) - 1


def network_of(hidden_units, dropout=0.0):
    """Dense layers whose weights and biases all begin uniformly in [-0.05, 0.05]."""

    def network(input_shape, n_outputs):
        import keras  # only now, as skuq chooses its backend

        def dense(units, activation=None):
            start = [keras.initializers.RandomUniform(-0.05, 0.05) for _ in range(2)]
            return keras.layers.Dense(
                units, activation, kernel_initializer=start[0], bias_initializer=start[1]
            )

        layers = [keras.Input(input_shape)]
        for units in hidden_units:
            layers.append(dense(units, "relu"))
            if dropout:
                layers.append(keras.layers.Dropout(dropout))
        return keras.Sequential([*layers, dense(n_outputs)])

    return network


def methods(units):
    """Five models, not yet fitted; `units` are 1024 in the paper."""
    ensemble_units = (units // 4, units, units // 2)
    noiseless = {"loss": "mse", "noise_std": 0.0, "batch_size": 8, "epochs": 1024}
    rival = {**noiseless, "learning_rate": 1e-3, "random_state": 0}
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(1.0, (1e-5, 1e5))
    return {
        "NOMU": skuq.NOMURegressor.from_paper(
            "toy", network__hidden_units=(units,) * 3, random_state=0
        ),
        "Gaussian process": GaussianProcessRegressor(
            kernel, alpha=1e-7, n_restarts_optimizer=10, random_state=0
        ),
        "MC dropout": skuq.MCDropoutRegressor(
            network=network_of((units, 2 * units, units), dropout=0.2),
            validation=None,
            training=Training(l2=0.8e-8 / 8),
            **rival,
        ),
        "deep ensemble": skuq.DeepEnsembleRegressor(
            network=network_of(ensemble_units),
            validation=None,
            training=Training(l2=1e-8 / 8),
            **rival,
        ),
        # The paper's HDE*: it chooses on held-out rows, then trains on with all of them.
        "hyper deep ensemble": skuq.HyperDeepEnsembleRegressor(
            network=network_of(ensemble_units, dropout=0.5),  # each setting has its own rate
            n_trials=20,
            dropout_range=(1e-3, 0.5),
            l2_range=(1e-12, 1e-6),
            validation=0.3,
            early_stopping_patience=None,
            refit=True,
            **rival,
        ),
    }


def mean_and_std(model, X):
    """Prediction and the standard deviation of the model, without noise."""
    if isinstance(model, GaussianProcessRegressor):
        return model.predict(X, return_std=True)
    parts = model.predict_uncertainty(X)
    return parts.mean, parts.epistemic


# %%
# Training, and what to look at: how narrow the band is at the rows, in shares of its mean width
# (0 is right here), and how much of the function it holds.
def main(path, units):
    figure, axes = plt.subplots(
        4,
        5,
        figsize=(15, 8.5),
        layout="constrained",
        sharex=True,
        sharey="row",
        gridspec_kw={"height_ratios": [3, 1, 3, 1]},
    )
    print(f"{'':32s}{'seconds':>8s}{'c':>7s}{'at rows':>9s}{'holds':>7s}{'RMSE':>7s}")
    X = np.random.RandomState(SEED).uniform(-1, 1, (8, 1))
    for k, function in enumerate((levy, forrester)):
        name, y = function.__name__, function(X)
        for column, (method, model) in enumerate(methods(units).items()):
            started = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - started
            mean, std = mean_and_std(model, LINE)
            c = MEAN_WIDTH / (2 * std.mean())
            at_rows = mean_and_std(model, X)[1].mean() / std.mean()
            error = abs(mean - function(LINE))
            print(
                f"{name:11s}{method:21s}{seconds:8.1f}{c:7.1f}{at_rows:9.2f}"
                f"{(error <= c * std).mean():7.2f}{np.sqrt((error**2).mean()):7.2f}",
                flush=True,
            )
            upper, lower = axes[2 * k : 2 * k + 2, column]
            draw(upper, lower, mean, c * std, function, X, y)
            upper.set_title(f"{method}, c = {c:.1f}", fontsize=11)
        axes[2 * k + 1, 0].set_ylim(bottom=0)
        axes[2 * k, 0].set_ylabel(f"{name.capitalize()}: y")
        axes[2 * k + 1, 0].set_ylabel("c σ")
    for axis in axes[-1]:
        axis.set_xlabel("x")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def draw(upper, lower, mean, width, function, X, y):
    line = LINE[:, 0]
    upper.fill_between(line, mean - width, mean + width, color="#9ecae1", lw=0, label="f ± c σ")
    upper.plot(line, function(LINE), color="black", lw=1, ls="--", label="function")
    upper.plot(line, mean, color="#08519c", lw=1.4, label="prediction f")
    upper.plot(X[:, 0], y, "o", color="crimson", ms=4.5, zorder=3, label="rows")
    lower.fill_between(line, width, color="#9ecae1", lw=0)
    lower.plot(line, width, color="#3182bd", lw=1)
    lower.plot(X[:, 0], np.zeros(len(X)), "o", color="crimson", ms=4.5, clip_on=False, zorder=3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the bands of five methods.")
    parser.add_argument("--output", default="nomu_1d.png")
    parser.add_argument("--units", type=int, default=128, help="1024 is the paper's size")
    arguments = parser.parse_args()
    main(arguments.output, arguments.units)

# sphinx_gallery_thumbnail_path = "images/thumbs/nomu_1d.png"
