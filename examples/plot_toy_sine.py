"""
AutoDEUQ's toy task: what each part of the search adds
======================================================

Figure 1 of the AutoDEUQ paper, in its whole space and with its settings: ``y = 2 sin(x)`` seen in
two regions with two noise levels, and nothing between and outside. The search of architectures and
hyperparameters is beside a search of architectures only, one of hyperparameters only, and other
first weights only. The paper trains 500 networks a panel, this script by default 100 (some ten
minutes on a free core).

The task is hard to learn: a standard deviation of x has 25 radians of phase. Nearly all networks of
the space predict the mean.
"""

# %%
# The task and the four searches. The paper's hand-tuned network is not in its text; this one
# was chosen on the validation rows.
import argparse
from pathlib import Path

import numpy as np

from skuq import AutoDEUQRegressor

ARCHITECTURE = {"node_1": "256-relu", "node_2": "256-relu", "node_3": "256-relu"}
TRAINING = {
    "learning_rate": 1e-3,
    "batch_size": 4,
    "optimizer": "rmsprop",
    "reduce_lr_patience": 20,
    "early_stopping_patience": 30,
}
SEARCHES = {  # populations are a quarter of the trials
    "AutoDEUQ (AgEBO)": {"search": "agebo"},
    "AgE: architectures": {"search": "age", "fixed": TRAINING},
    "BO: hyperparameters": {"search": "bo", "fixed": ARCHITECTURE},
    "first weights": {"search": "init", "fixed": ARCHITECTURE | TRAINING},
}
REGIONS = ((-30, -20), (20, 30))


def gapped_sine(n_samples=400):
    """Rows in [-30, -20] with noise of standard deviation 0.5, and in [20, 30] with 1."""
    rng = np.random.RandomState(0)
    x = np.concatenate([rng.uniform(low, high, n_samples // 2) for low, high in REGIONS])
    y = 2 * np.sin(x) + np.where(x < 0, 0.5, 1.0) * rng.standard_normal(n_samples)
    return x[:, None], y


# %%
# Expected are an aleatoric std near 0.5 on the left and 1.0 on the right, and an epistemic
# std that is small there and large in the gap and outside.
def in_regions(x, *regions):
    return np.any([(low <= x) & (x <= high) for low, high in regions], axis=0)


def summary(model, x):
    """Mean aleatoric std in the two training regions; mean epistemic std by kind."""
    _, aleatoric, epistemic, _ = model.predict_uncertainty(x[:, None])
    left, right = (aleatoric[in_regions(x, region)].mean() for region in REGIONS)
    inside = epistemic[in_regions(x, *REGIONS)].mean()
    gap = epistemic[in_regions(x, (-20, 20))].mean()
    outside = epistemic[~in_regions(x, (-30, 30))].mean()
    return left, right, inside, gap, outside


def draw_panel(axes, model, title, x):
    X, y = gapped_sine()
    mean, aleatoric, epistemic, total = model.predict_uncertainty(x[:, None])
    for low, high in REGIONS:
        axes.axvspan(low, high, color="0.93", lw=0)
    bands = {"± 2 total std": (total, "#F5CF85"), "± 2 aleatoric std": (aleatoric, "#9AD2F2")}
    for label, (std, color) in bands.items():
        axes.fill_between(x, mean - 2 * std, mean + 2 * std, color=color, lw=0, label=label)
    axes.plot(X[:, 0], y, ".", color="0.25", ms=1.5, label="training rows")
    axes.plot(x, 2 * np.sin(x), color="0.4", lw=0.8, ls="--", label="2 sin(x)")
    axes.plot(x, mean, color="#0072B2", lw=1.3, label="mean")
    axes.set(title=title, xlabel="x", xlim=(-40, 40), ylim=(-12, 12))
    axes.title.set_fontsize(10)


# %%
# The NLL of the mean with the overall std is 1.42 (y has unit variance): below 1.3 a network has
# learnt some of the sine.
def main():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser()
    parser.add_argument("--n-trials", type=int, default=100)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--catalog-dir", help="keeps the trials, so that a run can go on")
    parser.add_argument("--figure", type=Path, default=Path("toy_sine.png"))
    arguments = parser.parse_args()

    x = np.linspace(-40, 40, 200)
    figure, panels = plt.subplots(1, 4, figsize=(14, 3.8), layout="constrained", sharey=True)
    names = ("aleatoric left", "right", "epistemic inside", "gap", "outside")
    print(f"{'mean std':20s}" + "".join(f"{name:>17s}" for name in names), "  learnt", flush=True)
    for panel, (title, changes) in zip(panels, SEARCHES.items()):
        run = {"n_jobs": arguments.n_jobs, "catalog_dir": arguments.catalog_dir, "random_state": 0}
        model = AutoDEUQRegressor.from_paper("toy", n_trials=arguments.n_trials, **run, **changes)
        model.fit(*gapped_sine())
        learnt = sum(trial.score < 1.3 for trial in model.catalog_)
        figures = "".join(f"{value:17.2f}" for value in summary(model, x))
        print(f"{title:20s}{figures}{learnt:9d}", flush=True)
        draw_panel(panel, model, f"{title}: {learnt} of {len(model.catalog_)} learnt", x)
    panels[0].set_ylabel("y")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(arguments.figure, dpi=110)


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = "images/thumbs/toy_sine.png"
