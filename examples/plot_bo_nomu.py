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
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import NOMURegressor
from skuq.bayesopt import BayesianOptimizer, UpperConfidenceBound
from skuq.networks import NOMUNetwork, NOMUReadout

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


# %%
# With ReLUs and ``readout="linear"`` mean and standard deviation are linear in the inputs and in
# the units h = max(0, z) of the network (Remark 3.2), so that a mixed integer programme finds the
# largest upper bound exactly. A unit with L <= z <= U has the constraints h >= z, h <= U a and
# h <= z - L (1 - a) with a in {0, 1}. One more unit clips the raw uncertainty.
def exact_maximum(readout, bounds, beta):
    """The point of a box with the largest mean + beta std, and this value."""
    weights, shift = readout.raw
    units = [*readout.hidden, (weights[:, None], np.array([shift - readout.l_min]))]
    lower, upper = (np.array(side, dtype=float) for side in zip(*bounds))
    d, n_units = len(bounds), sum(len(bias) for _, bias in units)
    constraints = []
    for kernel, bias in units:
        first, size = len(lower), len(bias)
        least = bias + lower @ np.maximum(kernel, 0) + upper @ np.minimum(kernel, 0)
        most = bias + upper @ np.maximum(kernel, 0) + lower @ np.minimum(kernel, 0)
        least, most = np.minimum(least, 0), np.maximum(most, 0)
        # Columns are inputs and units, then the switches a of the units.
        z, h, a = (np.zeros((size, d + 2 * n_units)) for _ in range(3))
        z[:, :first] = kernel.T
        h[:, first : first + size] = np.eye(size)
        a[:, n_units + first : n_units + first + size] = np.eye(size)
        constraints.append(LinearConstraint(h - most[:, None] * a, -np.inf, 0))
        constraints.append(LinearConstraint(h - z - least[:, None] * a, -np.inf, bias - least))
        constraints.append(LinearConstraint(h - z, bias, np.inf))
        lower, upper = np.append(lower, np.zeros(size)), np.append(upper, most)
    # The last unit is maximised: it needs a ceiling, and no bound from below.
    constraints.pop()
    upper[-1] = min(upper[-1], readout.l_max - readout.l_min)
    objective = np.zeros(d + 2 * n_units)
    objective[: len(readout.mean[0])] = readout.mean[0]
    objective[d + n_units - 1] += beta * readout.unit
    found = milp(
        -objective,
        integrality=np.repeat([0, 1], [d + n_units, n_units]),
        bounds=Bounds(np.append(lower, np.zeros(n_units)), np.append(upper, np.ones(n_units))),
        constraints=constraints,
    )
    return found.x[:d], readout.mean[1] + beta * readout.unit * readout.l_min - found.fun


def compare_with_a_grid():
    X = np.linspace(-1, 1, 8)[:, None]
    readout = NOMUReadout("linear", l_min=0.01, l_max=1.0, c=1.0)
    model = NOMURegressor(NOMUNetwork((16,)), readout=readout, epochs=500, random_state=0)
    readout = model.fit(X, -forrester(X)).readout_weights()
    x, value = exact_maximum(readout, [(-1, 1)], beta=2.0)
    mean, std = readout(LINE)
    print(f"largest bound {value:.4f} at {x[0]:.3f}, on a grid {(mean + 2 * std).max():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the steps of a search with NOMU.")
    parser.add_argument("--output", default="bo_nomu.png")
    parser.add_argument("--units", type=int, default=128, help="1024 is the paper's size")
    parser.add_argument("--seeds", type=int, default=3, help="initial designs")
    arguments = parser.parse_args()
    main(arguments.output, arguments.units, arguments.seeds)
    compare_with_a_grid()

# sphinx_gallery_thumbnail_path = "images/thumbs/bo_nomu.png"
