"""
Bayesian optimisation with NOMU, step by step
=============================================

Section 4.2 of the NOMU paper, on the Forrester function of one variable. Each step trains a network
on all that is known, and evaluates the function next where the lower bound f - β σ is lowest: where
the function is small, or may be for all that is known.

The paper's protocol decides how large β is (appendix B.3). At the first step it is chosen such that
the band's mean width is ``mean_width``. If a proposal is nearly a known point, little would be
learnt there: β is doubled (``dynamic_c``) until the proposal is another.

Layers have 128 units instead of the paper's 1024, and the bound's lowest point is sought with
gradients, not with DIRECT (``maximizer="direct"``), which takes longer. Takes two to four minutes
on two idle cores (220 s of processor time).
"""

# %%
# The function is scaled to [-1, 1] in and out, as in the paper; its minimum is at x = 0.51.
import argparse
import time
import warnings

import matplotlib
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import NOMURegressor
from skuq.bayesopt import BayesianOptimizer, UpperConfidenceBound

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at the end of its range

N_INITIAL, N_STEPS = 4, 12
MEAN_WIDTH = 0.5  # the wider one of the paper's two
LINE = np.linspace(-1, 1, 401)[:, None]
SHOWN = (0, 1, 2, 3, 5, 8)  # steps


def forrester(X):
    x = (X[:, 0] + 1) / 2
    low, high = -6.0207400557670825, 16 * np.sin(8)
    return 2 * ((6 * x - 2) ** 2 * np.sin(12 * x - 4) - low) / (high - low) - 1


def value(x):
    return forrester(x[None])[0]


def initial_points(seed):
    return np.random.default_rng(seed).uniform(-1, 1, (N_INITIAL, 1))


# %%
# ``model_`` is the regressor of the last step, a fitted clone: the callback keeps each.
def search(estimator, seed):
    """What a search has found after four given points and twelve steps, and the models of these."""
    models = []
    optimizer = BayesianOptimizer(
        estimator,
        [(-1, 1)],
        UpperConfidenceBound(mean_width=MEAN_WIDTH, dynamic_c=True),
        n_initial=N_INITIAL,
        random_state=seed,
        callback=lambda search: models.append(search.model_),
    )
    started = time.perf_counter()
    result = optimizer.minimize(value, N_INITIAL + N_STEPS, x0=initial_points(seed))
    seconds = (time.perf_counter() - started) / N_STEPS
    print(
        f"seed {seed}  {type(estimator).__name__:26s} regret {result.fun + 1:.1e} "
        f"at x = {result.x[0]:.3f}, {seconds:.1f} s a step",
        flush=True,
    )
    return result, [model for model in models if model is not None]


def run(seed, units):
    """Method to the values found; the search with NOMU and its models."""
    nomu = NOMURegressor.from_paper("bayesopt", network__hidden_units=(units,) * 3)
    result, models = search(nomu, seed)
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(1.0, (1e-5, 1e5))
    of_process, _ = search(GaussianProcessRegressor(kernel, alpha=1e-7), seed)
    rng = np.random.default_rng([seed, 1])
    guesses = np.concatenate([initial_points(seed), rng.uniform(-1, 1, (N_STEPS, 1))])
    found = {
        "NOMU": result.values,
        "Gaussian process": of_process.values,
        "random": forrester(guesses),
    }
    return found, result, models


# %%
# Above the band f ± β σ and the function, below the acquisition, minus the lower bound, whose
# highest point is evaluated next. β is that of the step, doublings included.
def main(path, units, n_seeds):
    runs = [run(seed, units) for seed in range(n_seeds)]
    figure, axes = plt.subplots(
        5,
        3,
        figsize=(14, 11),
        layout="constrained",
        gridspec_kw={"height_ratios": [3, 1.3, 3, 1.3, 3]},
    )
    _, result, models = runs[0]
    for k, step in enumerate(SHOWN):
        column, row = k % 3, 2 * (k // 3)
        draw(axes[row : row + 2, column], result, models[step], step)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    lower_handles, lower_labels = axes[1, 0].get_legend_handles_labels()
    grid = axes[-1, 0].get_gridspec()
    for axis in axes[-1]:
        axis.remove()
    regret = figure.add_subplot(grid[-1, :2])
    colours = iter(("#0072B2", "#E69F00", "#009E73", "#CC79A7"))
    styles = iter(("-", "--", "-.", ":"))
    for name in runs[0][0]:
        best = np.minimum.accumulate([found[name] + 1.0 for found, _, _ in runs], axis=1)
        low, middle, high = np.quantile(best, [0.25, 0.5, 0.75], axis=0)
        steps, colour = np.arange(1, len(middle) + 1), next(colours)
        regret.step(steps, middle, where="post", color=colour, ls=next(styles), label=name)
        regret.fill_between(steps, low, high, step="post", color=colour, alpha=0.2, lw=0)
    regret.set(yscale="log", ylabel="simple regret")
    title = f"median of {len(runs)} seeds, band holds 50% of them"
    regret.legend(title=title, fontsize="small", title_fontsize="small")
    regret.axvline(N_INITIAL + 0.5, color="0.6", lw=1, ls=":")
    regret.set_xlabel(f"evaluations (the first {N_INITIAL} are the same for all)")
    regret.set_title(f"regret, initial designs: {n_seeds}", fontsize=11)
    key = figure.add_subplot(grid[-1, 2])
    key.axis("off")
    key.legend(handles + lower_handles, labels + lower_labels, loc="center", frameon=False)
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def draw(panel, result, model, step):
    upper, lower = panel
    record, line = result.history[step], LINE[:, 0]
    known, following = slice(record.n_results), record.n_results
    mean, std = model.predict(LINE, return_std=True)
    width = record.beta * std
    upper.fill_between(line, mean - width, mean + width, color="#9ecae1", lw=0, label="f ± β σ")
    upper.plot(line, forrester(LINE), color="black", lw=1, ls="--", label="function")
    upper.plot(line, mean, color="#08519c", lw=1.4, label="prediction f")
    x, y = result.x_iters[:, 0], result.values
    upper.plot(x[known], y[known], "o", color="crimson", ms=4.5, zorder=3, label="known points")
    upper.plot(x[following], y[following], "*", color="#E69F00", ms=12, zorder=4, mec="black")
    acquisition = width - mean
    lower.plot(line, acquisition, color="#009E73", lw=1.4, label="acquisition, β σ − f")
    lower.plot(
        x[following],
        acquisition.max(),
        "*",
        color="#E69F00",
        ms=12,
        mec="black",
        label="next point",
    )
    for axis in panel:
        axis.axvline(x[following], color="#E69F00", lw=1, ls=":")
        axis.set(xlim=(-1.03, 1.03), xticks=[-1, -0.5, 0, 0.5, 1])
    doubled = f" = {record.beta / 2**record.n_doublings:.2g} · {2**record.n_doublings}"
    upper.set_title(
        f"step {step + 1}: β = {record.beta:.2g}{doubled if record.n_doublings else ''}",
        fontsize=11,
    )
    upper.set(ylabel="y", ylim=(-2, 2))
    upper.tick_params(labelbottom=False)
    lower.set(xlabel="x", ylabel="β σ − f")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the steps of a search with NOMU.")
    parser.add_argument("--output", default="bo_nomu.png")
    parser.add_argument("--units", type=int, default=128, help="1024 is the paper's size")
    parser.add_argument("--seeds", type=int, default=3, help="initial designs")
    arguments = parser.parse_args()
    main(arguments.output, arguments.units, arguments.seeds)

# sphinx_gallery_thumbnail_path = "images/thumbs/bo_nomu.png"
