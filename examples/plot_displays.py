"""
All displays on one data set
============================

Diabetes: 442 patients, ten measurements, and how far the disease went in a year. Half of the
patients train the models, the other half shows in pictures how good their uncertainty is.
"""

# %%
# The data, as a regression and as two classes: whether the disease went further than it did
# in the median patient.
import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import train_test_split

import skuq
from skuq import plotting
from skuq.ensembles import GreedySelection
from skuq.exceptions import SmallValidationWarning
from skuq.networks import MLP, DenseSpace

warnings.simplefilter("ignore", SmallValidationWarning)  # 221 rows are few, indeed

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
further_train, further_test = (part > y_train.median() for part in (y_train, y_test))


# %%
# Models. The Gaussian process is there for comparison: displays take any estimator with
# ``predict(X, return_std=True)``.
def fit_regressors():
    kernel = ConstantKernel(1.0) * Matern(10.0, nu=2.5) + WhiteKernel(0.5)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    scaled = (X_train - X_train.mean()) / X_train.std()
    return {
        "ensemble": (skuq.DeepEnsembleRegressor(random_state=0).fit(X_train, y_train), X_test),
        "Gaussian process": (
            process.fit(scaled, y_train),
            (X_test - X_train.mean()) / X_train.std(),
        ),
    }


def fit_pool():
    """An ensemble that trains on 150 rows, and a team of its members chosen on the others."""
    ensemble = skuq.DeepEnsembleClassifier(
        10, network=MLP(dropout=0.2), bootstrap=True, random_state=0
    )
    ensemble.fit(X_train[:150], further_train[:150])
    team = skuq.HQEnsembleSelector(ensemble.member_estimators(), cv="prefit", max_team_size=6)
    return ensemble, team.fit(X_train[150:], further_train[150:])


def fit_search():
    model = skuq.AutoDEUQRegressor(
        40,
        space=DenseSpace(n_nodes=2),
        epochs=30,
        n_members=6,
        selection=GreedySelection(min_members=6),
        random_state=0,
    )
    return model.fit(X_train, y_train)


# %%
# For the regret: the minimum of Forrester's function, -6.02, by a Gaussian process and by chance.
def forrester(x):
    return (6 * x - 2) ** 2 * np.sin(12 * x - 4)


def optimise(seed, guided, n_evaluations=15):
    """Values in the order of evaluation; the first three inputs are drawn."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 1, 401)
    x = rng.choice(grid, n_evaluations, replace=False)
    for k in range(3, n_evaluations if guided else 0):
        process = GaussianProcessRegressor(RBF(0.1, "fixed"), normalize_y=True, alpha=1e-6)
        mean, std = process.fit(x[:k, None], forrester(x[:k])).predict(grid[:, None], True)
        x[k] = grid[np.argmin(np.where(np.isin(grid, x[:k]), np.inf, mean - 2 * std))]
    return forrester(x)


# %%
# Pictures.
def draw_regression(axes, models):
    for name, (model, X_new) in models.items():
        data = model, X_new, y_test
        plotting.QuantileCalibrationDisplay.from_estimator(*data, name=name, ax=axes[1])
        plotting.RetentionDisplay.from_estimator(*data, name=name, ax=axes[2])
    # One feature, and one model of it: bands can be drawn over a single input only.
    bmi = X_train[["bmi"]].to_numpy()
    model = skuq.DeepEnsembleRegressor(random_state=0).fit(bmi, y_train)
    plotting.PredictionBandDisplay.from_estimator(
        model,
        np.linspace(12, 50, 200)[:, None],
        X_train=bmi,
        y_train=y_train,
        x_name="body mass index (kg/m²)",
        name="progression (score)",
        ax=axes[0],
    )


def draw_classification(axes, ensemble, team):
    data = X_test, further_test
    plotting.RetentionDisplay.from_estimator(ensemble, *data, name="ten members", ax=axes[0])
    plotting.RetentionDisplay.from_estimator(team, *data, name="team", ax=axes[0])
    plotting.TeamDisplay.from_teams(team, ax=axes[1])
    plotting.TeamDisplay.from_teams(team, size=3, ax=axes[2])


def draw_search(axes, model):
    plotting.SearchHistoryDisplay.from_estimator(model, score_name="validation NLL", ax=axes[0])
    for name, guided in (("Gaussian process", True), ("random", False)):
        regret = optimise(1, guided) + 6.020741
        display = plotting.SearchHistoryDisplay(regret, score_name="regret", name=name)
        display.plot(axes[1])


# %%
def main(folder):
    import matplotlib.pyplot as plt

    def figure(rows, columns, width, height):
        return plt.subplots(rows, columns, figsize=(width, height), layout="constrained")

    def save(drawn, name):
        drawn.savefig(Path(folder) / f"plotting_{name}.png", dpi=90)
        print(f"{time.perf_counter() - started:5.1f} s: plotting_{name}.png")

    started = time.perf_counter()
    drawn, axes = figure(1, 3, 15, 4.5)
    draw_regression(axes, fit_regressors())
    save(drawn, "regression")
    drawn, axes = figure(1, 3, 15, 4.5)
    draw_classification(axes, *fit_pool())
    save(drawn, "classification")
    drawn, axes = figure(1, 2, 12, 4.5)
    draw_search(axes, fit_search())
    save(drawn, "search")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw every display of skuq.plotting.")
    parser.add_argument("--output-dir", default=".")
    main(parser.parse_args().output_dir)

# sphinx_gallery_thumbnail_path = "images/thumbs/plotting_regression.png"
