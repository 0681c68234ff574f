"""Tables of seconds, memory and durability."""

import operator

import numpy as np
from tables import cross, markdown, number, rows, significant, stored, table, values

COSTS = {
    "tabular": "`TabularEnsembleRegressor`",
    "tabular, second fit": ".. a second fit of the process",
    "tabular, classes": "`TabularEnsembleClassifier`",
    "plain": "`DeepEnsembleRegressor`",
    "mc dropout": "`MCDropoutRegressor`",
    "hyper ensemble": "`HyperDeepEnsembleRegressor`",
    "nomu": "`NOMURegressor`",
    "neon": "`NEONRegressor`",
    "operator ensemble": "`OperatorEnsembleRegressor`",
    "nes": '`NESRegressor(space="dense")`',
    "autodeuq": "`AutoDEUQRegressor`",
    "boosting": "scikit-learn's `HistGradientBoostingRegressor`",
    "gaussian process": "scikit-learn's `GaussianProcessRegressor`",
    "catboost": "CatBoost, `RMSEWithUncertainty`",
}


@table
def costs():
    """Processor seconds of a fit with default settings, by the number of rows."""

    def cell(method, n_rows):
        found = rows("costs", n_rows, method)
        seconds = found[0]["processor_seconds"] if found else None
        return "" if seconds is None else number(seconds, 0 if seconds >= 1 else 1)

    sizes = sorted({r["problem"] for r in stored("costs")}, key=int)
    return cross("processor seconds", COSTS, {n: f"{int(n):,} rows" for n in sizes}, cell)


@table
def durability():
    kill = rows("durability", "kill")
    workers, resume, memory = (
        rows("durability", part)[0] for part in ("workers", "resume", "memory")
    )
    before, n_kills = values(kill, "finished_before"), len(kill)
    ready = [np.median(resume[how]) for how in ("in_caller", "in_two_processes")]
    resident = memory["resident_mb"]
    pairs = rows("durability", "overhead")
    slower = 100 * (np.median(values(pairs, "durable") / values(pairs, "plain")) - 1)
    lost, twice = (sum(run[name] for run in kill) for name in ("lost", "twice"))
    complete = sum(run["in_catalog"] == 40 for run in kill)
    table = [
        [
            f"SIGKILL of the searching process at a random moment of 40 trials, then `fit` again; "
            f"{n_kills} times (after {before.min():.0f} to {before.max():.0f} finished trials, "
            f"{before.mean():.0f} on average)",
            "0 lost, 0 twice",
            f"{lost} finished trials lost, {twice} trained twice, "
            f"{complete} of {n_kills} catalogs complete",
        ],
        [
            f"SIGKILL of {workers['killed']} worker processes in one search of 40 trials",
            "whole budget",
            f"{workers['trials']} trials: {workers['completed']} completed, "
            f"{len(workers['failed_trials'])} recorded as failed, each with its reason",
        ],
        [
            f"resuming 500 trials of the paper's space ({resume['bytes_of_weights'] / 1e6:.0f} MB "
            "of weights): until a new trial builds its network",
            "< 5 s",
            f"{ready[0]:.1f} s after `fit` in a process that has just started, {ready[1]:.1f} s "
            "where trials run in two new processes",
        ],
        ["disk, beside the bytes of the weights", "<= 1.2 x", f"{resume['ratio']:.3f} x"],
        ["time that writing costs at one second a trial", "< 3 %", f"{slower:.1f} %"],
        [
            f"{memory['trials']} trials in one search",
            "no growth",
            f"{resident[0]:.0f} MB after the first, {resident[-1]:.0f} MB after "
            f"{500 * len(resident) - 499}",
        ],
    ]
    return markdown(["", "asked", "measured"], table)


# The engine


def side(problem, method, column="seconds"):
    return np.median([r[column] for r in rows("engine", problem, method) if column in r])


def fastest(problem, start):
    """Seconds of the fastest of the methods whose name begins so."""
    methods = {r["method"] for r in rows("engine", problem) if r["method"].startswith(start)}
    return min(side(problem, method) for method in methods)


def trial_seconds(method):
    return values(rows("engine", "30 trials", method)[0]["trials"], "seconds")


def of_trials():
    """Seconds of each trial, and of the faster setting of `fit` for it."""
    fits = [trial_seconds(method) for method in ("fit true:16", "fit false:16")]
    return trial_seconds("skuq"), np.min(fits, axis=0)


def seconds_an_epoch():
    """Medians over the trials of which no side has seen one diverge."""
    methods = "skuq", "fit true:16", "fit false:16"
    trials = [rows("engine", "30 trials", method)[0]["trials"] for method in methods]
    found = np.array([values(of, "seconds_per_epoch") for of in trials])
    ours, *fits = found[:, np.isfinite(found).all(axis=0)]
    return np.median(ours), np.median(np.min(fits, axis=0))


def compared(work, rival, label, ours, theirs, goal, ratio):
    """One line; a goal reads like ">= 15", or is empty."""
    met = ""
    if goal:
        compare = {">=": operator.ge, "<=": operator.le, "<": operator.lt}
        sign, bound = goal.split()
        met = "yes" if compare[sign](ratio, float(bound)) else "**no**"
    sides = significant(ours), significant(theirs)
    return [f"{work}: {label}", rival, *sides, significant(ratio), goal, met]


def faster(work, rival, label, ours, theirs, goal):
    return compared(work, rival, label, ours, theirs, goal, theirs / ours)


def slower(work, rival, label, ours, theirs, goal):
    return compared(work, rival, label, ours, theirs, goal, ours / theirs)


def trial_lines():
    line = "30 random AutoDEUQ trials", "`model.fit`, best of two settings"
    ours, fits = of_trials()
    worst = np.argmin(fits / ours)
    yield faster(*line, "in total", ours.sum(), fastest("30 trials", "fit"), ">= 15")
    yield faster(*line, "slowest trial by ratio", ours[worst], fits[worst], ">= 1")
    yield faster(*line, "median seconds an epoch", *seconds_an_epoch(), "")


def ensemble_lines():
    for work, rival, name, start, goal in (
        ("deep ensemble 5 x (1x50)", "loop of `model.fit`", "fit", "fit", ">= 40"),
        ("the same", "PyTorch loop", "loop", "torch", ">= 3"),
        ("the same", "one PyTorch stack, the best of four", "stack", "torch", ">= 1"),
    ):
        for n in (40, 400):
            problem = f"ensemble beside {name}, {n} epochs"
            sides = side(problem, "skuq"), fastest(problem, start)
            yield faster(work, rival, f"{n} epochs", *sides, goal)
    for n in (40, 400):
        problem = f"fifty members, {n} epochs"
        sides = side(problem, "skuq, 50"), side(problem, "skuq")
        label = f"{n} epochs: 50, 5 members"
        yield slower("50 members in one stack", "5 members", label, *sides, "< 6")


def prediction_lines():
    line = "predict 1 row, 5 members", "scikit-learn's MLP"
    rival = side("one row", "scikit-learn")
    yield slower(*line, "mean", side("one row", "skuq"), rival, "<= 3")
    with_std = side("one row", "skuq", "seconds_with_std")
    yield slower(*line, "mean and std", with_std, rival, "")
    line = "predict 100 000 rows", "five `model.predict`"
    for name in ("five 1x50", "five searched"):
        for size, goal in (("default", ">= 5"), ("8192", "")):
            problem, label = f"many rows, {name}", f"{name}, keras' batch {size}"
            sides = side(problem, "skuq"), side(problem, f"keras, batch {size}")
            yield faster(*line, label, *sides, goal)


@table
def engine():
    """Ours, the rival, and the goal of their ratio."""
    head = ["work", "against", "skuq", "rival", "ratio", "goal", "met"]
    return markdown(head, [*trial_lines(), *ensemble_lines(), *prediction_lines()])
