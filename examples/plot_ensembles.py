"""
Three classical ensembles: what each is unsure of
=================================================

Deep ensembles, hyper deep ensembles and MC dropout on two small tasks. Above, the cubic of
Lakshminarayanan et al. (2017, Fig. 1): 20 rows of ``y = x**3 + noise`` with noise of
standard deviation 3, seen in [-4, 4] and predicted in [-6, 6]. Below, two classes in the
plane, and the mutual information of class and member: what the members disagree on.
"""

# %%
# The tasks. The cubic is trained as in the paper's figure: on all rows, for a fixed time.
import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import make_moons

import skuq
from skuq.exceptions import SmallValidationWarning
from skuq.networks import MLP

warnings.simplefilter("ignore", SmallValidationWarning)  # twenty rows are few, indeed

rng = np.random.default_rng(3)
X = rng.uniform(-4, 4, size=(20, 1))
y = X[:, 0] ** 3 + 3 * rng.standard_normal(20)
line = np.linspace(-6, 6, 300)[:, None]

X_moons, y_moons = make_moons(200, noise=0.15, random_state=0)
side = np.linspace(-3, 4, 120)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)

FIXED = {"network": MLP((100,)), "epochs": 400, "batch_size": 20}
REGRESSORS = {
    "deep ensemble": skuq.DeepEnsembleRegressor(
        validation=None, loss="mse", noise_std=3.0, **FIXED, random_state=0
    ),
    "hyper deep ensemble": skuq.HyperDeepEnsembleRegressor(
        loss="mse", noise_std=3.0, dropout_range=(1e-3, 0.3), refit=True, **FIXED, random_state=0
    ),
    "MC dropout": skuq.MCDropoutRegressor(
        validation=None, loss="mse", noise_std=3.0, **FIXED, random_state=0
    ),
}
CLASSIFIERS = {
    "deep ensemble": skuq.DeepEnsembleClassifier(network=MLP((50, 50)), random_state=0),
    "hyper deep ensemble": skuq.HyperDeepEnsembleClassifier(
        network=MLP((50, 50)), n_trials=20, random_state=0
    ),
    "MC dropout": skuq.MCDropoutClassifier(network=MLP((50, 50)), random_state=0),
}


# %%
# Training. Each ensemble is one compiled program, however many members it has.
def main(path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 7), layout="constrained")
    for name, upper, lower in zip(REGRESSORS, *axes):
        started = time.perf_counter()
        parts = REGRESSORS[name].fit(X, y).predict_uncertainty(line)
        classifier = CLASSIFIERS[name].fit(X_moons, y_moons)
        information = classifier.predict_uncertainty(grid).epistemic
        print(f"{name}: both trained in {time.perf_counter() - started:.1f} s")
        draw_regression(upper, name, parts)
        levels = np.linspace(0, np.log(2), 22)  # one scale: two classes have at most log 2
        mesh = lower.contourf(side, side, information.reshape(120, 120), levels=levels)
        lower.scatter(*X_moons.T, c=y_moons, cmap="coolwarm", s=8, edgecolors="white", lw=0.3)
        lower.set(aspect="equal", xlabel="first feature", ylabel="second feature")
        inside = np.abs(line[:, 0]) < 3
        outside = np.abs(line[:, 0]) > 5
        print(
            f"  epistemic std inside {parts.epistemic[inside].mean():.2f}, "
            f"outside {parts.epistemic[outside].mean():.2f}; accuracy on the moons "
            f"{classifier.score(X_moons, y_moons):.3f}"
        )
    figure.colorbar(mesh, ax=axes[1], label="mutual information (nats)", format="%.2f")
    axes[0, 0].legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def draw_regression(axis, name, parts):
    for std, colour, label in (
        (parts.total, "#9ecae1", "mean ± 2 total std"),
        (parts.epistemic, "#0072B2", "mean ± 2 epistemic std"),
    ):
        axis.fill_between(
            line[:, 0], parts.mean - 2 * std, parts.mean + 2 * std, color=colour, label=label, lw=0
        )
    axis.plot(line, parts.mean, color="black", lw=1, label="mean")
    axis.plot(line, line**3, color="black", lw=1, ls="--", label="truth")
    axis.scatter(X[:, 0], y, color="crimson", s=12, zorder=3, label="rows")
    axis.set(title=name, ylim=(-200, 200), xlabel="x", ylabel="y")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the picture of three ensembles.")
    parser.add_argument("--output", default="ensembles.png")
    main(parser.parse_args().output)

# sphinx_gallery_thumbnail_path = "images/thumbs/ensembles.png"
