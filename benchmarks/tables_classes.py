"""Tables of classifiers: HQ, neural ensemble search, small and middle tables."""

import numpy as np
import pandas as pd
from data import FEW_ROWS, MIDDLE
from hq import COLUMNS, MEASURES
from nes import DATASETS, METHODS
from published import PUBLISHED
from tables import (
    by_seed,
    cross,
    markdown,
    mean,
    mean_error,
    number,
    rows,
    span,
    table,
    values,
)

# HQ

POOLS = {
    ("cifar10", "test"): "CIFAR-10",
    ("imagenet", "val"): "ImageNet",
    ("cifar10_all", "test"): "30 of CIFAR-10",
    ("digits", "test"): "digits",
    ("cora", "test"): "Cora",
}
SHIFTED = {
    ("cifar10", "c101v4"): "CIFAR-10.1 v4",
    ("cifar10", "c101v6"): "CIFAR-10.1 v6",
    ("imagenet", "v2b"): "ImageNetV2",
    ("cifar10_all", "c101v4"): "30 of CIFAR-10, v4",
    ("cifar10_all", "c101v6"): "30 of CIFAR-10, v6",
}


def judged(pool):
    """The runs of a pool on one set of rows to judge on."""
    return [r["judged"][pool[1]] for r in rows("hq", pool[0])]


def rule_means(pool, rule):
    """Means over the runs, with the share of teams kept that are above the best single model."""
    found = np.array([run["rules"][rule] for run in judged(pool)], float)
    share = np.mean(100 * found[:, COLUMNS.index("above")] / found[:, COLUMNS.index("kept")])
    return dict(zip(COLUMNS, found.mean(axis=0)), share=share)


@table
def hq_rules():
    """Compare the rules that choose a team, with generalised diversity."""
    rules = {
        "all teams": "all teams",
        "gd Q mean": "Q, mean",
        "gd Q alpha": "Q (α)",
        "gd HQ alpha": "HQ (α)",
        "gd HQ alpha+K": "**HQ (α + K)**",
        "as many best": "as many, by accuracy alone",
    }
    votes = {"greedy error": "greedy on the error", "vote of all": "vote of all"}

    def cell(rule, pool):
        if rule in votes:
            return mean(values(judged(pool), rule))
        m = rule_means(pool, rule)
        return f"{m['low']:.2f}, {m['share']:.0f} %; {m['served']:.2f}"

    heads = {
        pool: f"{title} (best single {mean(values(judged(pool), 'best single'))})"
        for pool, title in POOLS.items()
    }
    return cross("", rules | votes, heads, cell)


@table
def hq_measures():
    """Compare what is kept by each of the six measures with the paper's tables."""
    rules = {"HQ alpha": "HQ (α)", "HQ alpha+K": "HQ (α + K)"}
    heads = {(p, r): f"{POOLS[p]}, {rules[r]}" for p in list(POOLS)[:2] for r in rules}

    def cell(measure, key):
        if measure == "paper":
            return PUBLISHED["hq"]["table"][key[0][0]].get(key[1], "")
        m = rule_means(key[0], f"{measure} {key[1]}")
        return f"{m['kept']:.0f}: {m['low']:.2f}, {m['share']:.0f} %"

    return cross("", {m: m.upper() for m in MEASURES} | {"paper": "paper"}, heads, cell)


@table
def hq_shifted():
    """Accuracy of what is served on shifted test sets, with generalised diversity."""
    ways = {"best single": "best single", "vote of all": "vote of all"}
    ways |= {"greedy error": "greedy on the error", "gd HQ alpha+K": "HQ (α + K)"}

    def cell(way, pool):
        if way.startswith("gd"):
            return number(rule_means(pool, way)["served"])
        return mean(values(judged(pool), way))

    return cross("", ways, SHIFTED, cell)


# Neural ensemble search

BOOSTING = {
    "HistGradientBoosting": "gradient boosting",
    "sigmoid": ".. sigmoid",
    "temperature": ".. temperature",
}


def of_ten(dataset, method, score="nll"):
    """Scores of ensembles of ten, or of boosting, by seed."""
    runs = sorted(rows("nes", dataset, method), key=lambda r: r["seed"])
    return values([r if method in BOOSTING else r["sizes"]["10"] for r in runs], score)


@table
def nes_methods():
    """NLL of ensembles of ten, mean and standard error over the seeds, and their error rate."""

    def cell(method, dataset):
        nll, error = of_ten(dataset, method), 100 * of_ten(dataset, method, "error").mean()
        return f"{mean_error(nll)}; {error:.1f}", nll.mean()

    heads = {s: f"{s} ({span(by_seed('nes', s, 'NES-RE'))})" for s in DATASETS}
    down = dict(zip(METHODS, METHODS)) | BOOSTING
    return cross("NLL; errors in % (seeds)", down, heads, cell, "down")


@table
def nes_searches():
    """Log loss and errors of NES-RE minus those of NES-RS with the defaults, paired."""
    found = pd.DataFrame(rows("nes_searches")).pivot(index=["problem", "seed"], columns="method")
    lines = []
    for name, score, factor in (("log loss", "nll", 1), ("errors, %", "error", 100)):
        gap = factor * (found[score, "NES-RE"] - found[score, "NES-RS"])
        by_set = gap.groupby("problem").mean()
        means = [factor * found[score, m].mean() for m in ("NES-RE", "NES-RS")]
        lower = f"{(by_set < 0).sum()} of {len(by_set)}"
        lines.append([name, *(number(v, 3) for v in means), mean_error(by_set), lower])
    return markdown(["12 tables", "NES-RE", "NES-RS", "difference", "NES-RE lower on"], lines)


@table
def nes_gains():
    """NLL chosen on clean rows minus NLL chosen on shifted rows, paired by seed."""

    def cell(method, key):
        runs = sorted(rows("nes_shift", key[0], method), key=lambda r: r["seed"])
        chosen = [r["severities"][key[1]] for r in runs]
        return mean_error([r["clean"]["10"]["nll"] - r["shifted"]["10"]["nll"] for r in chosen], 2)

    methods = {m: m for m in METHODS[:3]}
    heads = {(s, k): f"{s}, {k}" for s in ("pendigits", "letter") for k in "135"}
    return cross("gain at severity", methods, heads, cell)


@table
def nes_images():
    """Means over the seeds of the pools of 80 networks."""

    def cell(method, severity):
        runs = [r for r in rows("nes_images", method=method) if r["networks"] >= 80]
        found = [r["severities"][severity]["10"] for r in runs]
        return f"{mean_error(values(found, 'nll'), 2)}; {100 * values(found, 'error').mean():.1f}"

    heads = {k: f"severity {k}" for k in "0135"}
    return cross("NLL; errors in %", {m: m for m in METHODS[:3]}, heads, cell)


# Small and middle tables of classes

ON_CLASSES = {
    "tabular": "**tabular ensemble**",
    "plain": "plain ensemble",
    "logistic": "logistic regression",
    "forest": "forest",
    "boosting, temperature": "boosting, temperature",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "realmlp": "RealMLP",
    "tabm": "TabM",
    "NES, 120 s": "NES, 120 s",
    "AutoDEUQ, 60 s": "AutoDEUQ, 60 s",
}
PARTS = {"suite": "small and middle sets", "few": "10 to 100 rows"}
N_SPLITS = {"suite": 1, "few": 5}  # that are averaged at most


def of_part(part):
    """The sets of a part."""
    sets = {"suite": sorted(MIDDLE), "few": FEW_ROWS}[part]
    return [name for name in sets if rows("classes", name)]


def log_losses(part):
    """Log losses by set and method: means over the splits that the first three have run."""
    found = {}
    for name in of_part(part):
        runs = {m: by_seed("classes", name, m) for m in ON_CLASSES}
        first = (set(runs[m]) for m in ("tabular", "plain", "logistic"))
        splits = set.intersection(*first, range(N_SPLITS[part]))
        found[name] = {
            m: np.mean([by[k].get("nll", np.nan) for k in splits])
            for m, by in runs.items()
            if splits <= set(by)
        }
    return found


def ratios(part, *rivals):
    """Log losses of the tabular ensemble over the lowest of its rivals', by set."""
    own = {n: by for n, by in log_losses(part).items() if {"tabular", *rivals} <= set(by)}
    return {name: by["tabular"] / min(by[rival] for rival in rivals) for name, by in own.items()}


def in_words(ratio):
    """Geometric mean, both ends and the number of lower ones."""
    quotients = np.array(list(ratio.values()))
    least, most = (number(end(quotients)) for end in (np.min, np.max))
    middle = number(np.exp(np.log(quotients).mean()))
    return f"{middle} ({least}–{most}; {sum(quotients < 1)}/{len(quotients)})"


@table
def classes_small():
    """Compare the tabular ensemble with each rival on the sets that it has run."""

    def cell(rival, part):
        rivals = ("plain", "logistic") if rival == "better" else (rival,)
        found = ratios(part, *rivals)
        return in_words(found) if len(found) > 1 else ""

    left_out = "tabular", "logistic", "forest"
    rivals = {m: title for m, title in ON_CLASSES.items() if m not in left_out}
    rivals |= {"better": "the better of plain ensemble and logistic regression"}
    return cross("log loss over that of", rivals, PARTS, cell)
