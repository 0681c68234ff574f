"""
NOMU: what the numbers of its loss do
=====================================

Figs. 23 to 27 of the NOMU paper: bands f ± 2 σ on eight points of the Levy function, when the
weights of the loss are changed. pi_sqr and pi_exp are changed together: their product says how
firmly the two demands are made, to be sure at rows and unsure elsewhere, and their ratio which
of the two wins.

Layers have 128 units instead of the paper's 1024, so that all takes about a minute on two
cores; artificial inputs lie on a grid over [-1.1, 1.1], as in the paper.
"""

# %%
# The settings.
import argparse
import time

import matplotlib
import numpy as np

from skuq import NOMURegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

PI_SQR, PI_EXP, C_EXP, N_ARTIFICIAL = 0.1, 0.01, 30, 128  # the paper's
SETTINGS = {
    "the paper's settings": {f"pi_sqr {PI_SQR}, pi_exp {PI_EXP}, c_exp {C_EXP}": {}},
    "product of pi_exp and pi_sqr": {
        "times 0.001": {
            "loss__pi_sqr": PI_SQR * 0.001**0.5,
            "loss__pi_exp": PI_EXP * 0.001**0.5,
        },
        "times 10": {"loss__pi_sqr": PI_SQR * 10**0.5, "loss__pi_exp": PI_EXP * 10**0.5},
    },
    "ratio of pi_exp to pi_sqr": {
        "divided by 16": {"loss__pi_sqr": PI_SQR * 4, "loss__pi_exp": PI_EXP / 4},
        "times 16": {"loss__pi_sqr": PI_SQR / 4, "loss__pi_exp": PI_EXP * 4},
    },
    "c_exp": {"15": {"loss__c_exp": C_EXP / 2}, "60": {"loss__c_exp": C_EXP * 2}},
    "number of artificial inputs": {"16": {"artificial__n": 16}, "1024": {"artificial__n": 1024}},
}
COLOURS = ("#0072B2", "#E69F00")
LINE = np.linspace(-1, 1, 401)[:, None]


def levy(X):
    """The Levy function on [-10, 10], scaled to [-1, 1] in and out."""
    w = (10 * X[:, 0] + 3) / 4
    return (
        2 * (np.sin(np.pi * w) ** 2 + (w - 1) ** 2 * (1 + np.sin(2 * np.pi * w) ** 2)) / 15.625 - 1
    )


# %%
# Training: nine networks.
def fitted(units, seed):
    """Title of a panel to a dictionary of fitted models by label."""
    X = np.random.RandomState(seed).uniform(-1, 1, (8, 1))
    y = levy(X)
    common = {"network__hidden_units": (units,) * 3, "random_state": 0}
    models = {}
    for title, variants in SETTINGS.items():
        models[title] = {}
        for label, changes in variants.items():
            started = time.perf_counter()
            model = NOMURegressor.from_paper("toy", **common, **changes)
            models[title][label] = model.fit(X, y)
            print(f"{title}, {label}: {time.perf_counter() - started:.1f} s", flush=True)
    return models, X, y


# %%
# A small product or a large c_exp makes bands more like a tube; ten times the product does little
# more. A large ratio widens, here at the rows above all. The number of artificial inputs matters
# little as long as gaps between rows hold some.
def main(path, units, seed):
    models, X, y = fitted(units, seed)
    figure, axes = plt.subplots(
        4,
        3,
        figsize=(13, 8.5),
        layout="constrained",
        gridspec_kw={"height_ratios": [3, 1, 3, 1]},
    )
    panels = [axes[row : row + 2, column] for row in (0, 2) for column in range(3)]
    (usual,) = models["the paper's settings"].values()
    print(f"{'':58s}{'2 σ at rows':>12s}{'mean':>7s}{'largest':>9s}")
    for (upper, lower), (title, settings) in zip(panels, models.items()):
        for colour, (label, model) in zip(COLOURS, settings.items()):
            mean, std = model.predict(LINE, return_std=True)
            at_rows = model.predict(X, return_std=True)[1]
            print(
                f"{title + ': ' + label:58s}{2 * at_rows.mean():12.3f}{2 * std.mean():7.2f}"
                f"{2 * std.max():9.2f}"
            )
            draw(upper, lower, label, colour, mean, 2 * std)
        draw_frame(upper, lower, X, y)
        if len(settings) > 1:
            width = 2 * usual.predict(LINE, return_std=True)[1]
            lower.plot(LINE, width, color="0.4", lw=1, ls=":")
            upper.legend(loc="upper center", fontsize="small", ncols=2)
        upper.set_title(title, fontsize=11)
    share_scales(panels)
    draw_legend(panels[-1])
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def draw(upper, lower, label, colour, mean, width):
    line = LINE[:, 0]
    upper.fill_between(line, mean - width, mean + width, color=colour, alpha=0.3, lw=0)
    upper.plot(line, mean, color=colour, lw=1.4, label=label)
    lower.plot(line, width, color=colour, lw=1.4)


def draw_frame(upper, lower, X, y):
    upper.plot(LINE, levy(LINE), color="black", lw=1, ls="--")
    upper.plot(X[:, 0], y, "o", color="crimson", ms=4.5, zorder=3)
    lower.plot(X[:, 0], np.zeros(len(X)), "o", color="crimson", ms=4.5, clip_on=False, zorder=3)
    upper.set(ylabel="y", xticks=[-1, -0.5, 0, 0.5, 1])
    upper.tick_params(labelbottom=False)
    lower.set(ylabel="2 σ", xlabel="x", xticks=[-1, -0.5, 0, 0.5, 1])


def share_scales(panels):
    """One range for all upper axes, with room for a legend, and one for all lower ones."""
    for part, room in ((0, 0.6), (1, 0.1)):
        ends = np.array([panel[part].dataLim.intervaly for panel in panels[:-1]])
        for panel in panels:
            panel[part].set_ylim(ends[:, 0].min() - 0.1 * (1 - part), ends[:, 1].max() + room)


def draw_legend(panel):
    for axis in panel:
        axis.axis("off")
    kinds = {
        "function": {"color": "black", "lw": 1, "ls": "--"},
        "rows": {"color": "crimson", "marker": "o", "ms": 4.5, "ls": ""},
        "prediction f, above; 2 σ, below": {"color": COLOURS[0], "lw": 1.4},
        "f ± 2 σ": {"color": COLOURS[0], "alpha": 0.3, "lw": 8},
        "2 σ with the paper's settings": {"color": "0.4", "lw": 1, "ls": ":"},
    }
    handles = [plt.Line2D([], [], **style) for style in kinds.values()]
    panel[0].legend(handles, kinds, loc="center", frameon=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw NOMU's bands for other losses.")
    parser.add_argument("--output", default="nomu_hyperparameters.png")
    parser.add_argument("--units", type=int, default=128, help="1024 is the paper's size")
    parser.add_argument("--seed", type=int, default=6, help="of the eight points")
    arguments = parser.parse_args()
    main(arguments.output, arguments.units, arguments.seed)

# sphinx_gallery_thumbnail_path = "images/thumbs/nomu_hyperparameters.png"
