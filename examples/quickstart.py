"""
Quick start: a tabular ensemble on real data
============================================

Uncertainty in about a minute, and how good it is, on
scikit-learn's diabetes data: predict the progression of the disease a year later. Prints a
table of test scores beside a Gaussian process and a single network, and saves a figure.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import DeepEnsembleRegressor, TabularEnsembleRegressor
from skuq.metrics import coverage_score, gaussian_nll_loss
from skuq.training import cache_compiled_programs

FIGURE = Path("quickstart.png")


def normal_interval(mean, std, coverage=0.9):
    """Lower and upper ends of a normal's interval, for models that give only mean and std."""
    from scipy.stats import norm

    return norm(mean, std).interval(coverage)


def main():
    cache_compiled_programs()  # the second run takes less time
    X, y = load_diabetes(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    ensemble = TabularEnsembleRegressor(random_state=0)
    single = DeepEnsembleRegressor(n_members=1, random_state=0)
    # Length scales of columns that do not matter grow without end.
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1]), (1e-2, 1e7)) + WhiteKernel()
    process = make_pipeline(
        StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    )
    models = {
        "TabularEnsembleRegressor": ensemble,
        "a single network": single,
        "GaussianProcessRegressor": process,
    }

    print(f"{len(y_train)} rows to train on, {len(y_test)} to test on")
    print(f"\n{'test scores':26s}{'NLL':>8s}{'RMSE':>8s}{'90 % interval covers':>22s}")
    rows = []
    for name, model in models.items():
        model.fit(X_train, y_train)
        mean, std = model.predict(X_test, return_std=True)
        interval = normal_interval(mean, std)
        if name != "GaussianProcessRegressor":
            interval = model.predict_interval(X_test, coverage=0.9)
        nll = gaussian_nll_loss(y_test, mean, std)
        rmse = np.sqrt(np.mean((y_test - mean) ** 2))
        covered = coverage_score(y_test, *interval)
        rows.append(f"{name:26s}{nll:8.3f}{rmse:8.2f}{covered:21.0%}")
    print("\n".join(rows))

    parts = ensemble.predict_uncertainty(X_test)
    print("\nthe first three patients (progression ± noise ± what the model does not know):")
    for mean, aleatoric, epistemic in list(zip(parts.mean, parts.aleatoric, parts.epistemic))[:3]:
        print(f"  {mean:5.0f} ± {aleatoric:.0f} ± {epistemic:.0f}")

    draw(ensemble, X_test, y_test)
    print(f"\nfigure: {FIGURE.resolve()}")


def draw(model, X, y):
    """Left: do intervals cover what they say? Right: is a large std a large error?"""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")

    levels = np.linspace(0.05, 0.95, 19)
    covered = [coverage_score(y, *model.predict_interval(X, level)) for level in levels]
    # If the intervals were perfect, the share covered would still scatter like this.
    scatter = 1.96 * np.sqrt(levels * (1 - levels) / len(y))
    left.plot([0, 1], [0, 1], color="0.6", lw=1, label="perfect")
    left.fill_between(
        levels, levels - scatter, levels + scatter, color="0.9", label="95 % of perfect models"
    )
    left.plot(levels, covered, "o-", ms=4, color="#0072B2", label="TabularEnsembleRegressor")
    left.set(
        xlabel="nominal coverage of the interval",
        ylabel=f"share of {len(y)} test rows inside",
        xlim=(0, 1),
        ylim=(0, 1),
        title="Calibration",
    )
    left.legend(loc="upper left", frameon=False)

    mean, _, epistemic, std = model.predict_uncertainty(X)
    points = right.scatter(std, np.abs(y - mean), s=16, c=epistemic / std, cmap="cividis")
    figure.colorbar(points, ax=right, label="epistemic share of the std")
    ends = np.array([std.min(), std.max()])
    right.plot(ends, ends, color="0.4", lw=1, label="1 std: 68 % below")
    right.plot(ends, 2 * ends, color="0.4", lw=1, ls="--", label="2 std: 95 % below")
    right.set(
        xlabel="predicted std [disease progression]",
        ylabel="absolute error [disease progression]",
        title="Error against predicted std",
        ylim=(0, 1.25 * np.abs(y - mean).max()),
    )
    right.legend(loc="upper left", frameon=False)
    figure.savefig(FIGURE, dpi=120)


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = "images/thumbs/quickstart.png"
