"""Tables of seconds, memory and durability."""

import numpy as np
from _tables import markdown, number, significant, stored, table, values
from trial_speed import AGAINST_FIT, seconds_to_level

COSTS = {
    "tabular": "`TabularEnsembleRegressor`",
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
}


@table
def costs():
    """Processor seconds of a fit with default settings, by the number of rows."""
    kept = {(r["method"], r["rows"]): f"{r['processor_seconds']:.0f}" for r in stored("costs")}
    sizes = sorted({n for _, n in kept})
    methods = [name for name in COSTS if any(name == method for method, _ in kept)]
    rows = [[COSTS[name], *(kept.get((name, n), "") for n in sizes)] for name in methods]
    return markdown(["processor seconds", *(f"{n:,} rows" for n in sizes)], rows)


@table
def trial_speed():
    """Random trials against `model.fit`."""
    records = [r for r in stored("trial_speed") if r["part"] == AGAINST_FIT]
    levels = [seconds_to_level(record)[0] for record in records]
    whole = {name: [] for name in levels[0]}
    for record in records:
        seconds = {name: side["seconds"] for name, side in record["sides"].items()}
        fits = {name: seconds.pop(name) for name in list(seconds) if name not in whole}
        for name, value in {**seconds, "fit": min(fits.values())}.items():
            whole[name].append(value)
    to_level = {name: [reached[name] for reached in levels] for name in whole}
    rows = []
    for name in whole:
        row = [name]
        for seconds in (whole, to_level):
            ratios = np.divide(seconds["fit"], seconds[name])
            total = np.sum(seconds["fit"]) / np.sum(seconds[name])
            each = ", ".join(f"{ratio:.1f}" for ratio in ratios)
            row += [f"{np.mean(seconds[name]):.0f} s", f"{total:.1f} ({each})"]
        rows.append(row)
    head = ["", "all trials", "times as fast (each seed)"]
    return markdown([*head, "to the score that all reach", "times as fast (each seed)"], rows)


@table
def metrics_speed():
    """The slowest scores on a million rows, by what is asked."""
    scores, rows = stored("metrics")["rows"], []
    for goal, what in ((1.0, "does not sort"), (3.0, "sorts")):
        slow_first = sorted((s for s in scores if s["goal"] == goal), key=lambda s: -s["seconds"])
        slowest = ", ".join(f"{s['score']} {s['seconds']:.2f} s" for s in slow_first[:3])
        rows.append([what, str(len(slow_first)), f"< {goal:.0f} s", slowest])
    return markdown(["", "scores", "goal", "the three slowest"], rows)


@table
def durability():
    record = stored("durability")
    kill, workers, resume = (record[name] for name in ("kill", "workers", "resume"))
    before = values(kill["runs"], "finished_before")
    ready = [
        np.median(values(resume[how], "from_fit")) for how in ("in the caller", "in two processes")
    ]
    memory = record["memory"]["resident_mb"]
    last = 500 * len(memory) - 499  # the trial of the last measurement
    n_kills, weights = len(kill["runs"]), resume["bytes_of_weights"] / 1e6
    rows = [
        [
            f"SIGKILL of the searching process at a random moment of 40 trials, then `fit` again; "
            f"{n_kills} times (after {before.min():.0f} to {before.max():.0f} finished trials, "
            f"{before.mean():.0f} on average)",
            "0 lost, 0 twice",
            f"{kill['lost']} finished trials lost, {kill['trained_twice']} trained twice, "
            f"{kill['complete']} of {n_kills} catalogs complete",
        ],
        [
            f"SIGKILL of {workers['killed']} worker processes in one search of 40 trials",
            "whole budget",
            f"{workers['trials']} trials: {workers['completed']} completed, "
            f"{len(workers['failed'])} recorded as failed, each with its reason",
        ],
        [
            f"resuming 500 trials of the paper's space ({weights:.0f} MB of weights): until a new "
            "trial builds its network",
            "< 5 s",
            f"{ready[0]:.1f} s after `fit` in a process that has just started, {ready[1]:.1f} s "
            "where trials run in two new processes",
        ],
        ["disk, beside the bytes of the weights", "<= 1.2 x", f"{resume['ratio']:.3f} x"],
        [
            "time that writing costs at one second a trial",
            "< 3 %",
            f"{record['overhead']['median_overhead_percent']:.1f} %",
        ],
        [
            f"{record['memory']['trials']} trials in one search",
            "no growth",
            f"{memory[0]:.0f} MB after the first, {memory[-1]:.0f} MB after {last}",
        ],
    ]
    return markdown(["", "asked", "measured"], rows)


# The engine

WORK = {
    "trials": ("30 random AutoDEUQ trials", "`model.fit`, best of two settings"),
    "ensemble_fit": ("deep ensemble 5 x (1x50)", "loop of `model.fit`"),
    "ensemble_torch_loop": ("the same", "PyTorch loop"),
    "ensemble_torch_stack": ("the same", "one PyTorch stack, the best of four"),
    "fifty_members": ("50 members in one stack", "5 members"),
    "ten_seeds": ("ten seeds of one network", ""),
    "predict_one_row": ("predict 1 row, 5 members", "scikit-learn's MLP"),
    "predict_many_rows": ("predict 100 000 rows", "five `model.predict`"),
    "memory": ("memory", ""),
    "rows": ("time of a step, 1 000 to 100 000 rows", ""),
}


@table
def engine():
    rows = []
    for name, (work, rival) in WORK.items():
        for f in stored("engine")[name]["figures"]:
            met = {True: "yes", False: "**no**", None: ""}[f["met"]]
            sides = ["" if f[k] is None else significant(f[k]) for k in ("ours", "rival")]
            label = f"{work}: {f['label']}"
            rows.append([label, rival, *sides, significant(f["ratio"]), f["goal"], met])
    return markdown(["work", "against", "skuq", "rival", "ratio", "goal", "met"], rows)


@table
def engine_trials():
    """The thirty trials one by one, each against the faster setting of `fit` for it."""
    sides = stored("engine")["trials"]["sides"]
    ours = values(sides["ours"]["trials"], "seconds")
    rivals = [values(side["trials"], "seconds") for name, side in sides.items() if name != "ours"]
    ratios = np.min(rivals, axis=0) / ours
    long = ours > 3
    spread = (ratios.min(), np.median(ratios), ratios.max())
    row = [str(len(ours)), number(ours.sum(), 0), str(long.sum()), number(ours[long].sum(), 0)]
    head = ["trials", "seconds", "trials longer than 3 s", "their seconds"]
    return markdown(
        [*head, "ratio: least, median, largest"], [[*row, ", ".join(number(r, 1) for r in spread)]]
    )


@table
def engine_machine():
    """Show the range of the speeds of processor and memory over the rows of the table."""
    floors = [record["machine"]["floor"] for record in stored("engine").values()]
    rows = []
    for title, name in (
        ("GFLOP/s of float32, one thread", "gflops_float32"),
        ("GB/s of memory", "gigabytes_per_second"),
    ):
        speeds = values(floors, name)
        rows.append(
            [title, *(number(s, 0) for s in (speeds.min(), np.median(speeds), speeds.max()))]
        )
    return markdown(["the machine", "least", "median", "most"], rows)
