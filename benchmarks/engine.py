"""The training engine against its rivals, one row of the table a function.

    python benchmarks/engine.py --data-dir DIR [--only ROW ...]
    python benchmarks/engine.py --summary

Each side runs in a process of its own on one thread and times itself from after the import
of the libraries: building, tracing and compiling count. The whole process' seconds and
processor time are kept beside that; ratios are of the former. With `--repeats` the
median run counts, on both sides. Rows are written to ``benchmarks/results/engine.json`` as
they end, other rows stay. `--quick` runs everything at toy size to see that it works, and
writes nothing.
"""

import argparse
import contextlib
import importlib.metadata
import json
import operator
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from _sides import EPOCHS, SEEDED
from _stored import STORED, read, write

SIDES = Path(__file__).parent / "_sides.py"
RESULTS = STORED / "engine.json"
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
ROWS = {}


def row(*, quick, name=None, **settings):
    """Make a function of ``(run, **settings)`` a row; `quick` are its toy settings."""

    def register(function):
        ROWS[name or function.__name__] = function, settings, {**settings, **quick}
        return function

    return register


def figure(label, ours, rival, ratio, goal, note=""):
    """One line of the table; `goal` reads like ">= 15", or is empty."""
    compare = {">=": operator.ge, "<=": operator.le, "<": operator.lt}
    sign, *bound = goal.split() or [""]
    met = bool(compare[sign](ratio, float(bound[0]))) if goal else None
    names = ("label", "ours", "rival", "ratio", "goal", "met", "note")
    return dict(zip(names, (label, ours, rival, ratio, goal, met, note)))


def fastest(results):
    return min(results.values(), key=lambda result: result["seconds"])


def fits(run, name, settings, **work):
    """`fit` with each of the settings given as jit_compile:steps_per_execution."""
    results = {}
    for text in settings:
        jit, steps = text.split(":")
        results[f"fit {text}"] = run(
            name,
            jit_compile={"true": True, "false": False, "auto": "auto"}[jit],
            steps_per_execution=int(steps),
            **work,
        )
    return results


@row(name="trials", n_trials=SEEDED, fit_settings=(), quick={"n_trials": 1})
def trials_against_fit(run, n_trials, fit_settings):
    ours = run("trials_skuq", n_trials=n_trials)
    rivals = fits(run, "trials_fit", fit_settings, n_trials=n_trials)
    rival = fastest(rivals)
    # Trial by trial against the setting that is best for that very trial.
    best = [min(r["trials"][i]["seconds"] for r in rivals.values()) for i in range(n_trials)]
    pairs = [(a["seconds"], b, b / a["seconds"]) for a, b in zip(ours["trials"], best)]
    epochs = [
        (a["seconds_per_epoch"], b["seconds_per_epoch"])
        for a, b in zip(ours["trials"], rival["trials"])
        if a["epochs"] and b["epochs"]
    ]
    a, b = np.median(np.array(epochs).reshape(-1, 2), axis=0)
    ratio, note = rival["seconds"] / ours["seconds"], processes(ours, rival)
    figures = [
        figure("in total", ours["seconds"], rival["seconds"], ratio, ">= 15", note),
        figure("slowest trial by ratio", *min(pairs, key=lambda pair: pair[2]), ">= 1"),
        figure("median seconds an epoch", a, b, b / a, ""),
    ]
    return figures, {"ours": ours, **rivals}


def ensemble_row(run, rivals_of, goal, epochs, n_members, repeats):
    """Our stack against ``rivals_of(epochs=..)``, whose fastest counts."""
    figures, sides = [], {}
    for n in epochs:
        work = {"epochs": n, "n_members": n_members, "repeats": repeats}
        ours, rivals = run("stack", **work), rivals_of(**work)
        rival = fastest(rivals)
        ratio = rival["seconds"] / ours["seconds"]
        note = f"NLL {ours['nll']:.3f}, {rival['nll']:.3f}; {processes(ours, rival)}"
        figures.append(figure(f"{n} epochs", ours["seconds"], rival["seconds"], ratio, goal, note))
        sides[f"{n} epochs"] = {"ours": ours, **rivals}
    return figures, sides


def processes(ours, rival):
    return f"process {ours['process_seconds']:.1f} s, {rival['process_seconds']:.1f} s"


@row(epochs=(40, 400), n_members=5, repeats=1, fit_settings=(), quick={"epochs": (2,)})
def ensemble_fit(run, fit_settings, **settings):
    def rivals(**work):
        return fits(run, "fit_ensemble", fit_settings, **work)

    return ensemble_row(run, rivals, ">= 40", **settings)


@row(epochs=(40, 400), n_members=5, repeats=1, quick={"epochs": (2,)})
def ensemble_torch_loop(run, **settings):
    def rivals(**work):
        return {"torch loop": run("torch_loop_ensemble", **work)}

    return ensemble_row(run, rivals, ">= 3", **settings)


@row(epochs=(40, 400), n_members=5, repeats=1, quick={"epochs": (2,)})
def ensemble_torch_stack(run, **settings):
    def rivals(**work):
        variants = ("fused", "foreach", "kernel", "vmap")
        return {v: run("torch_stack_ensemble", variant=v, **work) for v in variants}

    return ensemble_row(run, rivals, ">= 1", **settings)


@row(epochs=(40, 400), n_members=(5, 50), repeats=1, quick={"epochs": (2,)})
def fifty_members(run, epochs, n_members, repeats):
    figures, sides = [], {}
    for n in epochs:
        few, many = (run("stack", epochs=n, n_members=m, repeats=repeats) for m in n_members)
        label = f"{n} epochs: {n_members[1]}, {n_members[0]} members"
        note = (
            f"in programs {many['seconds_in_programs']:.2f} s, {few['seconds_in_programs']:.2f} s"
        )
        ratio = many["seconds"] / few["seconds"]
        figures.append(figure(label, many["seconds"], few["seconds"], ratio, "< 6", note))
        sides[f"{n} epochs"] = {"few": few, "many": many}
    return figures, sides


@row(n_seeds=10, epochs=EPOCHS, quick={"n_seeds": 3, "epochs": 2})
def ten_seeds(run, **settings):
    ours = run("seeds_one_after_the_other", **settings)
    first, *others = ours["seeds"]
    worst = max(s["overhead"] for s in others)
    figures = [
        figure("first seed, s", first["seconds"], None, first["seconds"], ""),
        figure("worst other's overhead, s", worst, None, worst, "< 0.3"),
    ]
    return figures, {"ours": ours}


@row(n_calls=1000, quick={"n_calls": 5})
def predict_one_row(run, n_calls):
    ours, rival = (run(name, n_calls=n_calls) for name in ("one_row_ours", "one_row_sklearn"))
    theirs, kinds = (
        rival["seconds"],
        (("mean", "seconds", "<= 3"), ("mean and std", "seconds_with_std", "")),
    )
    figures = [
        figure(label, ours[key], theirs, ours[key] / theirs, goal) for label, key, goal in kinds
    ]
    return figures, {"ours": ours, "scikit-learn": rival}


@row(n_rows=100_000, n_features=13, n_calls=3, quick={"n_rows": 1000, "n_calls": 1})
def predict_many_rows(run, **settings):
    figures, sides = [], {}
    for searched, name in ((False, "five 1x50"), (True, "five searched")):
        work = {"searched": searched, **settings}
        ours = run("many_rows_ours", **work)
        sides[name] = {"ours": ours}
        for batch_size, goal in ((None, ">= 5"), (8192, "")):
            rival = run("many_rows_keras", batch_size=batch_size, **work)
            sides[name][f"keras, batch_size={batch_size}"] = rival
            label = f"{name}, keras' batch {batch_size or 'default'}"
            ratio = rival["seconds"] / ours["seconds"]
            figures.append(figure(label, ours["seconds"], rival["seconds"], ratio, goal))
    return figures, sides


@row(
    checkpoints=(50, 500),
    n_rows=1_000_000,
    n_features=90,
    quick={"checkpoints": (1, 3), "n_rows": 10_000},
)
def memory(run, checkpoints, n_rows, n_features):
    trained = run("memory_of_trials", checkpoints=checkpoints)
    predicted = run("memory_of_prediction", n_rows=n_rows, n_features=n_features)
    first, last = (b / 1e6 for b in trained["resident_bytes"].values())
    extra = predicted["extra_bytes"] / 2**30
    label = f"MB after {checkpoints[1]}, {checkpoints[0]} trials; growth"
    figures = [
        figure(label, last, first, last - first, "< 200"),
        figure(f"GiB to predict {n_rows} rows", extra, None, extra, "< 2"),
    ]
    return figures, {"trials": trained, "prediction": predicted}


@row(
    n_rows=(1000, 10_000, 100_000),
    n_steps=4000,
    n_calls=3,
    quick={"n_rows": (500, 1000), "n_steps": 20, "n_calls": 1},
)
def rows(run, n_rows, **settings):
    figures, sides = [], {}
    for jit in (False, True):
        sizes = {n: run("step_time", n_rows=n, jit=jit, **settings) for n in n_rows}
        seconds = [size["seconds"] for size in sizes.values()]
        label = f"slowest, fastest step, {'xla' if jit else 'graph'}"
        note = "us a step: " + ", ".join(f"{n} rows {s * 1e6:.0f}" for n, s in zip(sizes, seconds))
        ratio = max(seconds) / min(seconds)
        figures.append(figure(label, max(seconds), min(seconds), ratio, "<= 1.2", note))
        sides[f"jit={jit}"] = sizes
    return figures, sides


def in_own_process(data_dir, name, *, repeats=1, **settings):
    """Run a side in its own process; return its report and the process' figures.

    With several runs, return those of the median run.
    """
    given = json.dumps({"name": name, **settings})
    command = [sys.executable, str(SIDES), str(data_dir), given]
    environment = {**os.environ, **ONE_THREAD}
    runs = []
    for _ in range(repeats):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{name} {settings} failed:\n{done.stderr[-3000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        result = json.loads(done.stdout.splitlines()[-1])
        runs.append({**result, "process_seconds": seconds, "processor_seconds": cpu})
    if repeats == 1:
        return runs[0]
    runs.sort(key=lambda result: result["seconds"])
    return {**runs[(repeats - 1) // 2], "seconds_of_repeats": [r["seconds"] for r in runs]}


def machine(run):
    """Facts that the figures depend on."""
    name = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    packages = ("tensorflow", "keras", "torch", "scikit-learn", "numpy")
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "floor": run("floor"),
    }


def print_table(records):
    def number(value):
        return f"{'-' if value is None else f'{value:.4g}':>11s}"

    print(f"{'row':58s}{'ours':>11s}{'rival':>11s}{'ratio':>11s}{'goal':>8s}  met?")
    for name, record in records.items():
        for f in record["figures"]:
            cells = "".join(number(f[column]) for column in ("ours", "rival", "ratio"))
            met = {True: "yes", False: "NO", None: "-"}[f["met"]]
            line = f"{name + ': ' + f['label']:58s}{cells}{f['goal']:>8s}  {met:4s}  {f['note']}"
            print(line.rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument(
        "--fit-settings",
        nargs="+",
        default=["false:16", "true:16"],
        help="jit_compile:steps_per_execution, each, e.g. auto:1 true:16; the best counts",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each ensemble's side")
    parser.add_argument("--quick", action="store_true", help="toy sizes; nothing is written")
    parser.add_argument("--summary", action="store_true", help="print what is kept")
    arguments = parser.parse_args()
    if arguments.summary:
        print_table(read(RESULTS, dict))
        return
    if arguments.data_dir is None:
        parser.error("--data-dir is needed")

    def run(name, **settings):
        return in_own_process(arguments.data_dir, name, **settings)

    done, failed, facts = {}, [], machine(run)
    for name in arguments.only:
        function, settings, quick = ROWS[name]
        settings = dict(quick if arguments.quick else settings)
        asked = {"fit_settings": arguments.fit_settings, "repeats": arguments.repeats}
        settings |= {key: value for key, value in asked.items() if key in settings}
        print(f"{name} ..", file=sys.stderr, flush=True)
        try:
            figures, sides = function(run, **settings)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        done[name] = {"figures": figures, "sides": sides, "settings": settings, "machine": facts}
        if not arguments.quick:
            write(RESULTS, {**read(RESULTS, dict), name: done[name]})
    print_table(done)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
