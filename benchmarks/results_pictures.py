"""Draw the pictures of the results pages from what the benchmarks have stored.

    python benchmarks/results_pictures.py

Each picture shows the first finding of a page. No benchmark is run.
"""

from pathlib import Path

import matplotlib
import numpy as np
from _tables import records, stored
from _tables_classifiers import DATASETS, METHODS, nes, score
from _tables_uci import (
    EQUAL_TIME,
    SMALL,
    calibrated_parts,
    own_nll,
    recipe,
    scores_of_common_splits,
)
from calibration import METHODS as CALIBRATIONS
from leaderboard import FIELD
from published import TABLE_I

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LOOKS = [
    ("o", "#0072B2"),
    ("s", "#D55E00"),
    ("^", "0.35"),
    ("D", "#009E73"),
    ("v", "#56B4E9"),
    ("P", "#CC79A7"),
]


def dots(name, points, xlabel, line, scale="linear", errors=None, ticks=None):
    """Draw a row for each key of `points`, and in it a marker for each key of its values.

    Lists are drawn value by value. `line` is what to compare with, one number or two ends.
    """
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.42 * len(points)), layout="constrained")
    labels = list(dict.fromkeys(key for row in points.values() for key in row))
    for place, (title, row) in enumerate(points.items()):
        for at, (label, (marker, colour)) in enumerate(zip(labels, LOOKS)):
            if label not in row:
                continue
            found = np.atleast_1d(row[label])
            height = np.full(len(found), place + 0.12 * (at - (len(labels) - 1) / 2))
            spread = errors[title][label] if errors else None
            axes.errorbar(
                found, height, xerr=spread, fmt=marker, color=colour, ms=6, label=label, alpha=0.9
            )
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
    handles, names = axes.get_legend_handles_labels()
    if len(labels) > 1:
        shown = dict(zip(names, handles))
        axes.legend(
            shown.values(), shown, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
        )
    figure.savefig(IMAGES / f"results_{name}.png", dpi=110)
    plt.close(figure)


def draw_field():
    sets = (*SMALL, "diabetes")
    found = {s: scores_of_common_splits("regression", s, FIELD, "crps")[0] for s in sets}
    means = {s: dict(zip(FIELD, np.mean(common, axis=1))) for s, common in found.items()}
    points = {
        s: {FIELD[m]: row[m] / row["tabular"] for m in FIELD if m not in ("tabular", "plain")}
        for s, row in means.items()
    }
    told = "CRPS relative to skuq's tabular ensemble (above 1 is worse)"
    dots("field", points, told, 1, "log", ticks=[1, 1.5, 2, 3, 5, 10])


def draw_equal_time():
    found = {}
    for r in records("equal_time"):
        if r["set"] != "wine":  # whole numbers: its NLL is that of narrow peaks
            found.setdefault((r["budget"], r["set"], r["split"]), {})[r["method"]] = own_nll(r)
    points = {}
    for (seconds, name, split), by in sorted(found.items()):
        for method in by.keys() - {"autodeuq"}:
            gap = by[method] - by["autodeuq"]
            points.setdefault(f"{name}, {split}", {})[EQUAL_TIME[seconds, method]] = gap
    told = "NLL minus that of AutoDEUQ (above 0: AutoDEUQ is better)"
    dots("equal_time", points, told, 0)


def draw_tabular():
    changes = ("plain", "no embedding", "loss: nll", "target: yeo-johnson")
    means = {
        change: {s: np.mean([r["crps"] for r in recipe(s, range(5), change)]) for s in SMALL}
        for change in ("tabular", *changes)
    }
    points = {
        "plain network" if change == "plain" else change: {
            s: means[change][s] / means["tabular"][s] for s in SMALL
        }
        for change in changes
    }
    told = "CRPS relative to the recipe (above 1 is worse)"
    dots("tabular", points, told, 1, "log", ticks=[0.8, 1, 1.25, 1.5, 2, 3])


def draw_baselines():
    methods = {
        "deep ensemble": "deep ensemble",
        "hyper ensemble": "hyper deep ensemble",
        "MC dropout": "MC dropout",
    }
    points = {
        s: {
            title: np.mean([r["nll"] for r in records("ensembles", method=m, dataset=s)])
            - TABLE_I[s][m][0]
            for m, title in methods.items()
        }
        for s in sorted(SMALL)
    }
    dots("baselines", points, "NLL here minus the published one (below 0 is better)", 0)


def draw_nes():
    rivals = [method for method in METHODS if method != "NES-RE"]
    gaps = {
        s: {m: score(runs, m, 10, "nll") - score(runs, "NES-RE", 10, "nll") for m in rivals}
        for s in DATASETS
        for runs in [nes("tabular", s)]
    }
    points = {s: {m: gap.mean() for m, gap in row.items()} for s, row in gaps.items()}
    errors = {
        s: {m: gap.std(ddof=1) / np.sqrt(len(gap)) for m, gap in row.items()}
        for s, row in gaps.items()
    }
    told = "NLL minus that of NES-RE, with standard errors (above 0: NES-RE is better)"
    dots("nes", points, told, 0, errors=errors)


def draw_calibration():
    points = {
        name: {method: np.mean([p[method]["coverage"] for p in parts]) for method in CALIBRATIONS}
        for name, parts in calibrated_parts().items()
    }
    told = "share of test rows in 90 % intervals (grey: within two points)"
    dots("calibration", points, told, (0.88, 0.92))


def draw_speed():
    work = {
        "trials": "30 trials of a search",
        "ensemble_fit": "five small networks, Keras' fit",
        "ensemble_torch_loop": "five small networks, PyTorch loop",
        "ensemble_torch_stack": "five small networks, PyTorch stack",
        "predict_one_row": "predict a row, scikit-learn's MLP",
    }
    points = {}
    for name, title in work.items():
        for figure in stored("engine")[name]["figures"]:
            if figure["label"] in ("in total", "40 epochs", "400 epochs", "mean"):
                epochs = figure["label"] if "epochs" in figure["label"] else "other work"
                ratio = figure["rival"] / figure["ours"]
                points.setdefault(title, {})[epochs] = ratio
    told = "seconds of the rival over those of skuq (above 1: skuq is faster)"
    dots("speed", points, told, 1, "log", ticks=[0.25, 1, 5, 20, 100])


if __name__ == "__main__":
    for draw in (
        draw_field,
        draw_equal_time,
        draw_tabular,
        draw_baselines,
        draw_nes,
        draw_calibration,
        draw_speed,
    ):
        draw()
