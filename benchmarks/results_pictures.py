"""Draw the pictures of the results pages from what the benchmarks have stored.

    python benchmarks/results_pictures.py [NAME ...]

No benchmark is run.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from bo_problems import SUITE
from data import SMALL
from nes import DATASETS
from nes import METHODS as POOLS
from published import TABLE_I
from regression import BASELINES, CALIBRATIONS, FIELD
from tables import rows, values
from tables_classes import of_ten
from tables_functions import OF_SUITE, whole_searches
from tables_regression import calibrated, common_scores, timed
from tables_speed import fastest, side

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLOURS = ("#0072B2", "#D55E00", "0.35", "#009E73", "#56B4E9", "#CC79A7")


def dots(points, xlabel, line, scale="linear", errors=None, ticks=None):
    """Draw a row for each key of `points`, and in it a marker for each key of its values.

    Lists are drawn value by value. `line` is what to compare with, one number or two ends.
    """
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.42 * len(points)), layout="constrained")
    labels = list(dict.fromkeys(key for row in points.values() for key in row))
    looks = dict(zip(labels, zip("os^DvP", COLOURS)))
    for place, (title, row) in enumerate(points.items()):
        for label, value in row.items():
            marker, colour = looks[label]
            found, at = np.atleast_1d(value), labels.index(label) - (len(labels) - 1) / 2
            spread = errors[title][label] if errors else None
            look = {"fmt": marker, "color": colour, "ms": 6, "label": label, "alpha": 0.9}
            axes.errorbar(found, np.full(len(found), place + 0.12 * at), xerr=spread, **look)
    if np.ndim(line):
        axes.axvspan(*line, color="0.9", lw=0)
    else:
        axes.axvline(line, color="0.35", lw=1)
    axes.set(xlabel=xlabel, xscale=scale)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_yticks(range(len(points)), points)
    axes.invert_yaxis()
    if len(labels) > 1:
        handles, names = axes.get_legend_handles_labels()
        shown = dict(zip(names, handles))
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        axes.legend(shown.values(), shown, frameon=False, **place)
    return figure


def results_field():
    points = {}
    for name in (*SMALL, "diabetes"):
        means = dict(zip(FIELD, common_scores("regression", name, FIELD, "crps")[0].mean(axis=1)))
        ours = means.pop("tabular")
        points[name] = {FIELD[m]: v / ours for m, v in means.items() if m != "plain"}
    told = "CRPS relative to skuq's tabular ensemble (above 1 is worse)"
    return dots(points, told, 1, "log", ticks=[1, 1.5, 2, 3, 5, 10])


def results_equal_time():
    points = {}
    for (name, method), frame in timed().groupby(["problem", "method"]):
        points.setdefault(name, {})[f"{method} the recipe's time"] = frame["ratio"].mean()
    told = "CRPS or log loss of AutoDEUQ over the recipe's (below 1 is better)"
    return dots(points, told, 1, "log", ticks=[0.8, 1, 1.5, 2, 4, 8])


def results_baselines():
    titles = {m: m.replace("hyper ensemble", "hyper deep ensemble") for m in BASELINES}

    def gap(method, name):
        return np.mean(values(rows("baselines", name, method), "nll")) - TABLE_I[name][method][0]

    points = {s: {title: gap(m, s) for m, title in titles.items()} for s in sorted(SMALL)}
    return dots(points, "NLL here minus the published one (below 0 is better)", 0)


def results_nes():
    gaps = {s: {m: of_ten(s, m) - of_ten(s, "NES-RE") for m in POOLS[1:]} for s in DATASETS}
    points = {s: {m: gap.mean() for m, gap in row.items()} for s, row in gaps.items()}
    errors = {
        s: {m: gap.std(ddof=1) / np.sqrt(len(gap)) for m, gap in row.items()}
        for s, row in gaps.items()
    }
    told = "NLL minus that of NES-RE, with standard errors (above 0: NES-RE is better)"
    return dots(points, told, 0, errors=errors)


def results_calibration():
    found = {method: calibrated(method) for method in CALIBRATIONS}
    points = {
        name: {m: np.mean(values(by[name], "coverage")) for m, by in found.items()}
        for name in found["as it is"]
    }
    told = "share of test rows in 90 % intervals (grey: within two points)"
    return dots(points, told, (0.88, 0.92))


def results_speed():
    points = {"30 trials of a search": {"other work": fastest("30 trials", "fit")}}
    points["30 trials of a search"]["other work"] /= side("30 trials", "skuq")
    for title, name, start in (
        ("five small networks, Keras' fit", "fit", "fit"),
        ("five small networks, PyTorch loop", "loop", "torch"),
        ("five small networks, PyTorch stack", "stack", "torch"),
    ):
        points[title] = {
            f"{n} epochs": fastest(problem, start) / side(problem, "skuq")
            for n in (40, 400)
            for problem in [f"ensemble beside {name}, {n} epochs"]
        }
    ratio = side("one row", "scikit-learn") / side("one row", "skuq")
    points["predict a row, scikit-learn's MLP"] = {"other work": ratio}
    told = "seconds of the rival over those of skuq (above 1: skuq is faster)"
    return dots(points, told, 1, "log", ticks=[0.25, 1, 5, 20, 100])


def bo_suite():
    """The best value so far, or the regret: medians and the middle half of the searches."""
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained")
    for ax, (name, make) in zip(axes.flat, SUITE.items()):
        task = make(0)
        for (method, title), colour in zip(OF_SUITE.items(), COLOURS):
            runs = [r["values"] for r in whole_searches(name, method)]
            if not runs:
                continue
            best = np.fmin.accumulate(runs, axis=1) - task.best_known
            low, middle, high = np.quantile(best, [0.25, 0.5, 0.75], axis=0)
            at = np.arange(1, len(middle) + 1)
            ax.step(at, middle, where="post", color=colour, label=title)
            ax.fill_between(at, low, high, step="post", color=colour, alpha=0.2, linewidth=0)
        known = task.best_value is not None
        ax.set(title=name, xlabel="evaluations", ylabel="regret" if known else "best value so far")
        if known:
            ax.set_yscale("log", nonpositive="clip")
    lines, titles = axes.flat[0].get_legend_handles_labels()
    axes.flat[-1].legend(lines, titles, loc="center")
    axes.flat[-1].axis("off")
    return figure


PICTURES = (results_field, results_equal_time, results_baselines, results_nes)
PICTURES += (results_calibration, results_speed, bo_suite)

if __name__ == "__main__":
    for draw in PICTURES:
        if draw.__name__ in (sys.argv[1:] or [draw.__name__]):
            draw().savefig(IMAGES / f"{draw.__name__}.png", dpi=110)
