"""
Unsure where nothing is known
=============================

Rows of a function with a gap between them, and nothing beyond. Networks agree for no reason where
they have seen nothing, as those of the deep ensemble do. The recommended ensembles therefore add
uncertainty that grows with the distance from the rows, up to that of y. Shaded: two standard
deviations of the whole prediction, and in the title for how many x the truth is inside. Dashed:
without that addition, which is the disagreement of the members and the noise. Recommended
classifiers turn to the shares of the classes, as far as their label stays, and their members
disagree; MC dropout does not.
"""

# %%
# Rows and methods. NOMU learns its own uncertainty away from the rows, and MC dropout has none.
import argparse
import warnings

import matplotlib
import numpy as np
from sklearn.datasets import make_moons
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import skuq

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

warnings.simplefilter("ignore")
LINE = np.linspace(-3, 3, 301)[:, None]
BLUE, ORANGE, SKY = "#0072B2", "#D55E00", "#56B4E9"


def truth(X):
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 0] ** 2


def methods(n_trials):
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    return {
        "DeepEnsembleRegressor": skuq.DeepEnsembleRegressor(random_state=0),
        "TabularEnsembleRegressor": skuq.TabularEnsembleRegressor(random_state=0),
        "AutoDEUQRegressor": skuq.AutoDEUQRegressor(n_trials=n_trials, random_state=0),
        "MCDropoutRegressor": skuq.MCDropoutRegressor(random_state=0),
        "NOMURegressor": skuq.NOMURegressor(random_state=0),
        "Gaussian process": GaussianProcessRegressor(kernel, normalize_y=True, random_state=0),
    }


# %%
# The members' disagreement is in the distribution, whose `shared_variance` is the addition.
def predict(model):
    """Mean, standard deviation, and the latter without what ensembles add."""
    mean, std = model.predict(LINE, return_std=True)
    if not hasattr(model, "predict_distribution"):
        return mean, std, std
    added = getattr(model.predict_distribution(LINE), "shared_variance", 0.0)
    return mean, std, np.sqrt(np.maximum(std**2 - added, 0))


def label_axes(axes, x, y):
    """Label the outer axes only."""
    for axis in axes[-1]:
        axis.set_xlabel(x)
    for axis in axes[:, 0]:
        axis.set_ylabel(y)


# %%
# Two moons: the largest probability, and the part of the entropy that is epistemic.
def draw_classes(out):
    X, y = make_moons(300, noise=0.15, random_state=0)
    x = np.linspace(-4, 5, 91)
    grid = np.stack(np.meshgrid(x, x - 0.25), axis=-1).reshape(-1, 2)
    models = [
        skuq.MCDropoutClassifier(random_state=0),
        skuq.DeepEnsembleClassifier(random_state=0),
        skuq.TabularEnsembleClassifier(random_state=0),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.6), sharex=True, sharey=True)
    for column, model in zip(axes.T, models):
        model.fit(X, y)
        certain = model.predict_proba(grid).max(axis=1)
        epistemic = model.predict_uncertainty(grid).epistemic
        shown = (certain, "largest probability", 0.5, 1), (epistemic, "epistemic", 0, np.log(2))
        for axis, (values, label, low, high) in zip(column, shown):
            values = values.reshape(91, 91)
            drawn = axis.pcolormesh(x, x - 0.25, values, vmin=low, vmax=high, shading="nearest")
            axis.scatter(*X.T, c=np.where(y, ORANGE, SKY), s=3)
            axis.set_title(f"{type(model).__name__}: {label}", fontsize=9)
            figure.colorbar(drawn, ax=axis)
    label_axes(axes, "first feature", "second feature")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="far_from_data.png")
    parser.add_argument("--out-classes", default="far_from_classes.png")
    parser.add_argument("--n-trials", type=int, default=20)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (300, 1))
    X = X[abs(X[:, 0] - 0.3) > 0.4]
    y = truth(X) + 0.1 * rng.normal(size=len(X))

    figure, axes = plt.subplots(
        2, 3, figsize=(11, 6.4), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (name, model) in zip(axes.flat, methods(arguments.n_trials).items()):
        mean, std, alone = predict(model.fit(X, y))
        x = LINE[:, 0]
        low, high = mean - 2 * std, mean + 2 * std
        axis.fill_between(x, low, high, color=SKY, alpha=0.45, lw=0, label="mean ± 2 std")
        for side, label in ((-2, None), (2, "without the addition")):
            axis.plot(x, mean + side * alone, "--", color=BLUE, lw=0.8, label=label)
        axis.plot(x, mean, color=BLUE, label="mean")
        axis.plot(x, truth(LINE), ":", color="black", lw=1.3, label="truth")
        axis.plot(X[:, 0], y, ".", color=ORANGE, ms=3, label="rows")
        inside = np.mean(abs(mean - truth(LINE)) < 2 * std)
        axis.set_title(f"{name}: {inside:.0%} inside", fontsize=10)
        axis.set_ylim(-5, 8)
    label_axes(axes, "x", "y")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(arguments.out, dpi=110)
    draw_classes(arguments.out_classes)


if __name__ == "__main__":
    main()
