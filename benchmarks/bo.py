"""Bayesian optimisation with NEON and NOMU, beside their papers' figures and beside rivals.

    python benchmarks/bo.py --data-dir DIR [--only pollutants parallel ..] [--runs N]

pollutants: 5 initial points, those of the NEON authors' own runs, and 35 more; the best mean
squared error found (section 3.1), beside their runs from the same points.
parallel: the same with 1, 2 and 3 points at once (section 7, Fig. 10; its interferometer cannot
be evaluated here). The searches with 1 are those of the part before.
brusselator: 5 initial points and 30 more (section 3.2). Needs py-pde. Surrogates learn and are
asked for few cells of the field, values are those of the whole. `--functions brusselator_authors`
begins with the five points that come with the authors' program.
nomu: functions of 5 features, 8 initial points and 64 more (NOMU, section 4.2); those of 10 and 20
features, the G-function and Perm are run if `--functions` names them. `--hidden` are the units of
NOMU's three hidden layers, 1024 in the paper.
operator: NEON's error and likelihood on functions held out, beside ensembles of its base network
with seven times its parameters.

Every step of a search is kept at once in bo.json in `--results-dir`, by default
``benchmarks/results``: the script may be stopped at any time and goes on there, also with more
`--runs` or `--steps`. It may run twice at once with other `--methods` or seeds. Fields of the
Brusselator are kept in `--cache-dir`. `--runs 0` prints what there is; `--smoke` tries everything
out in minutes, with other results. `--picture docs/images/bo_pollutants.png` draws the searches.
"""

import argparse
import tempfile
import time
from pathlib import Path

import _bo_operator as operator
import _bo_published as published
import matplotlib.pyplot as plt
import numpy as np
from _bo_loops import FEWER_RUNS, FIELD_DRAWS, FIELD_RESTARTS, LOOPS, Part, rounded, search
from _bo_loops import settings_of as loop_settings
from _bo_problems import coarse_cells, has_brusselator
from _regret import draw_curves
from _stored import STORED, add, read
from _tables import print_table
from nomu import CELL, is_cell, mean_cell

PARTS = LOOPS | {
    "operator": Part(tuple(operator.SIZES), tuple(operator.SIZES), operator.METHODS, 3, 0)
}
FILE = "bo.json"
AFTER = {"pollutants": (15, 30, 35), "brusselator": (5, 10, 20, 30)}
BY_POINTS, BY_ITERATIONS = (6, 12, 18, 24, 30, 35), (3, 6, 9, 12)


def settings_of(part, method, arguments):
    if part != "operator":
        return loop_settings(part, method, arguments)
    steps = arguments.training_steps
    return {} if steps is None else {"training_steps": steps}


def stored_as(part, method):
    """Part and method of the record: one point at once is the search of `pollutants`."""
    return ("pollutants", "neon_lei") if (part, method) == ("parallel", "q1") else (part, method)


def datasets_of(part, arguments):
    chosen = arguments.functions or PARTS[part].usual
    return [dataset for dataset in PARTS[part].datasets if dataset in chosen]


def methods_of(part, arguments):
    return [m for m in PARTS[part].methods if arguments.methods is None or m in arguments.methods]


def cells(part, arguments):
    """(dataset, method, seed) of every run, all methods of a seed before the next seed."""
    runs = PARTS[part].runs if arguments.runs is None else arguments.runs
    first = arguments.first_seed
    for seed in range(first, first + runs):
        for dataset in datasets_of(part, arguments):
            for method in methods_of(part, arguments):
                usual = FEWER_RUNS.get(method, np.inf) if arguments.methods is None else np.inf
                if seed < first + usual:
                    yield dataset, method, seed


def run_missing(path, part, dataset, method, seed, arguments):
    """One run from where it is, every step saved as it comes."""
    part, method = stored_as(part, method)
    cell = (part, dataset, method, seed, settings_of(part, method, arguments))
    known = [r for r in read(path) if is_cell(r, *cell)]
    record = known[0] if known and not arguments.redo else None
    name, started = f"{part} {dataset} {seed} {method}", time.perf_counter()
    if part == "operator":
        if record is None:
            found = operator.judge(dataset, method, seed, arguments)
            record = dict(zip(CELL, cell)) | {k: rounded(v) for k, v in found.items()}
            add(path, record, CELL)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        return
    n_steps = PARTS[part].steps if arguments.steps is None else arguments.steps
    found = None
    for found in search(part, dataset, method, seed, n_steps, arguments, record):
        add(path, dict(zip(CELL, cell)) | found, CELL)
        if arguments.verbose:
            seconds = time.perf_counter() - started
            n, best = len(found["values"]), np.nanmin(found["values"])
            print(f"  {n} points, best {best:.3g}, {seconds:.0f} s", flush=True)
    if found is not None:
        seconds = time.perf_counter() - started
        best = np.nanmin(found["values"])
        print(f"{name}: best {best:.3g}, {seconds:.1f} s", flush=True)


# Summaries


def records_of(records, part, dataset, method, arguments):
    """By seed."""
    part, method = stored_as(part, method)
    settings = settings_of(part, method, arguments)
    found = [
        r for r in records if (r["part"], r["dataset"], r["method"]) == (part, dataset, method)
    ]
    return {r["seed"]: r for r in found if r["settings"] == settings}


def found_methods(records, part, dataset, arguments):
    """``{method: {seed: record}}`` of all that have any."""
    found = {m: records_of(records, part, dataset, m, arguments) for m in PARTS[part].methods}
    return {method: runs for method, runs in found.items() if runs}


def curve(record, n_start):
    """The best value after each further point, beginning with none."""
    return np.fmin.accumulate(record["values"])[n_start - 1 :]


def after(curves, n):
    """Values after n further points, of those searches that came so far."""
    return np.array([c[n] for c in curves if len(c) > n and np.isfinite(c[n])])


def median_after(curves, n):
    values = after(curves, n)
    if not len(values):
        return "-"
    return f"{np.median(values):.2g}" + (f" ({len(values)})" if len(values) < len(curves) else "")


def seconds_of(runs, name):
    """Of all steps but the first of a search, which compiles: median and largest."""
    seconds = [s for r in runs.values() for s in r["steps"].get(name, [])[1:]]
    return [f"{np.median(seconds):.1f}", f"{np.max(seconds):.1f}"] if seconds else ["-", "-"]


def seconds_of_search(runs):
    steps = [r["steps"] for r in runs.values() if r["steps"]]
    totals = [sum(s["seconds_fit"]) + sum(s["seconds_acquisition"]) for s in steps]
    return f"{np.median(totals):.0f}" if totals else "-"


SECONDS = ("fit", "max", "acquisition", "max", "all steps")


def seconds_columns(runs):
    names = ("seconds_fit", "seconds_acquisition")
    return [text for name in names for text in seconds_of(runs, name)] + [seconds_of_search(runs)]


def print_searches(part, records, arguments):
    dataset = datasets_of(part, arguments)[0]
    marks = sorted({*AFTER[part], arguments.steps or AFTER[part][-1]})
    found = found_methods(records, part, dataset, arguments)
    if not found:
        return
    rows = []
    for method, runs in found.items():
        curves = [curve(r, 5) for r in runs.values()]
        medians = [median_after(curves, n) for n in marks]
        last = after(curves, marks[-1])
        spread = f"{last.min():.2g} .. {last.max():.2g}" if len(last) else "-"
        rows.append([method, str(len(runs)), *medians, spread, *seconds_columns(runs)])
    reference = published.reference_runs(arguments.data_dir)
    if reference is not None:
        of_others = getattr(published, f"{part}_curves")(reference)
        designs = sorted({seed for runs in found.values() for seed in runs})
        for name, curves in of_others.items():
            if part == "pollutants":  # those that ours begin with
                curves = curves[[seed for seed in designs if seed < len(curves)]]
            medians = [median_after(list(curves), n) for n in marks]
            rows.append([name, str(len(curves)), *medians, *[""] * 6])
    heads = ["", "runs", *(f"after {n}" for n in marks), f"range after {marks[-1]}", *SECONDS]
    print_table(f"{part}: median of the best value; seconds of a step", heads, rows, 28)
    if part == "brusselator":
        print_brusselator_notes(found)


def print_brusselator_notes(found):
    n, seconds = len(coarse_cells()[0]), []
    for runs in found.values():
        seconds += [s for r in runs.values() for s in r["seconds_evaluation"]]
    print(
        f"Seconds of one field: median {np.median(seconds):.1f}, largest {np.max(seconds):.1f}.\n"
        f"NEON learns {n} of 4096 cells, and the acquisition is that of the variance over these,\n"
        f"each weighted by the cells it stands for, with {FIELD_DRAWS} draws and {FIELD_RESTARTS} "
        "restarts. Values are those of all cells.\n"
        "Stored curves: others' initial points; their scale is not verified (HOGP's are taken\n"
        "for powers of 10 and means, random's for values)."
    )


def print_parallel(part, records, arguments):
    found = found_methods(records, part, "pollutants", arguments)
    if not found:
        return
    seeds = set.intersection(*(set(runs) for runs in found.values()))
    points, iterations = [], []
    for method, runs in found.items():
        q = int(method[1:])
        curves = [curve(r, 5) for seed, r in runs.items() if seed in seeds]
        points.append([method, *(median_after(curves, n) for n in BY_POINTS)])
        points[-1] += seconds_columns(runs)
        iterations.append([method, *(median_after(curves, q * n) for n in BY_ITERATIONS)])
    heads = [f"{len(seeds)} seeds", *(f"after {n}" for n in BY_POINTS), *SECONDS]
    print_table("parallel: median of the best value by points; seconds of a step", heads, points)
    heads = [f"{len(seeds)} seeds", *(f"after {n}" for n in BY_ITERATIONS)]
    print_table("parallel: by iterations of q points", heads, iterations)


def print_functions(part, records, arguments):
    n_last = arguments.steps or PARTS[part].steps
    for dataset in datasets_of(part, arguments):
        found = found_methods(records, part, dataset, arguments)
        if not found:
            continue
        rows = []
        for method, runs in found.items():
            curves = [curve(r, 8) + 1 for r in runs.values()]  # regret: the least value is -1
            at_end = after(curves, n_last)
            row = [method, str(len(runs)), median_after(curves, n_last // 2)]
            row.append(mean_cell(at_end, 5) if len(at_end) else "-")
            paper = published.REGRETS.get(method, {}).get(dataset)
            row.append("" if paper is None else "{:.5f}±{:.5f}".format(*paper))
            place = published.RANKS.get(method.split("_")[0], {}).get(dataset, "")
            row.append("" if paper is None else str(place))
            doublings = [n for r in runs.values() for n in r["steps"].get("n_doublings", [])]
            row.append(f"{np.mean(doublings):.1f}" if doublings else "-")
            rows.append([*row, *seconds_columns(runs)])
        heads = [f"{arguments.hidden} units", "runs", f"after {n_last // 2}", f"after {n_last}"]
        heads += ["paper", "place", "doublings", *SECONDS]
        title = f"{part} {dataset}: mean final regret, 95 % normal interval (median in between)"
        print_table(title, heads, rows, 18)


def print_operator(part, records, arguments):
    rows = []
    for dataset in datasets_of(part, arguments):
        found = found_methods(records, part, dataset, arguments)
        for method, runs in found.items():

            def column(name, runs=runs):
                return np.array([r[name] for r in runs.values()])

            row = [f"{dataset} {method}", str(len(runs)), f"{column('n_parameters')[0]:.0f}"]
            row += [mean_cell(column("relative_l2"), 4), mean_cell(column("nll"), 3)]
            row += [f"{column(k).mean():.3g}" for k in ("nll_uncalibrated", "c")]
            rows.append([*row, f"{np.median(column('seconds')):.0f}"])
    if rows:
        heads = ["", "seeds", "parameters", "relative L2", "NLL", "uncalibrated", "c", "seconds"]
        print_table("operator: functions held out, means and 95 % intervals", heads, rows, 26)


PRINTERS = {
    "pollutants": print_searches,
    "parallel": print_parallel,
    "brusselator": print_searches,
    "nomu": print_functions,
    "operator": print_operator,
}


def runnable(part, arguments):
    """The part's data sets that can be run here; says so where they cannot."""
    datasets = datasets_of(part, arguments)
    if has_brusselator():
        return datasets
    skipped = [dataset for dataset in datasets if dataset.startswith("brusselator")]
    if skipped:
        print(f"SKIPPED {part} {' '.join(skipped)}: py-pde is not there (pip install py-pde).")
    return [dataset for dataset in datasets if dataset not in skipped]


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="holds neon/reference_runs.npz")
    parser.add_argument("--results-dir", type=Path)
    parser.add_argument(
        "--cache-dir", type=Path, default=Path.home() / ".cache" / "skuq-benchmarks"
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--functions", nargs="+", help="functions or data sets of these names")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--runs", type=int, help="seeds of each; 0 prints what has been run")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="points after the initial ones")
    parser.add_argument("--hidden", type=int, default=128, help="units of NOMU's layers")
    parser.add_argument("--training-steps", type=int, help="other than usual, to try things out")
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw the searches on pollutants and end")
    parser.add_argument("--smoke", action="store_true", help="one short run of everything")
    parser.add_argument("--verbose", action="store_true", help="a line for every step")
    arguments = parser.parse_args()
    for name, known in [
        ("functions", {d for part in arguments.only for d in PARTS[part].datasets}),
        ("methods", {m for part in arguments.only for m in PARTS[part].methods}),
    ]:
        unknown = set(getattr(arguments, name) or ()) - known
        if unknown:
            parser.error(f"--{name} must be of {sorted(known)}. Got {sorted(unknown)}.")
    if arguments.smoke:
        for name, small in [("runs", 1), ("steps", 2), ("training_steps", 100)]:
            if getattr(arguments, name) is None:
                setattr(arguments, name, small)
        if arguments.results_dir is None:
            arguments.results_dir = Path(tempfile.mkdtemp(prefix="skuq-bo-"))
    if arguments.results_dir is None:
        arguments.results_dir = STORED
    needed = set(arguments.only) & {"pollutants", "parallel"}
    needed |= {"brusselator_authors"} & set(arguments.functions or ())
    if arguments.data_dir is None and needed and arguments.runs != 0:
        parser.error("--data-dir is needed")
    return arguments


PICTURED = {
    "conditioned_lei": "NEON, conditioned prior",
    "neon_lei": "NEON, trained EpiNet",
    "gp_composite": "Gaussian process for each output",
    "gp": "Gaussian process of the value",
    "random": "random points",
}


def draw_pollutants(records, arguments):
    """Draw the best value so far of searches with 5 initial and 35 further points."""
    shown = {}
    for method, title in PICTURED.items():
        runs = records_of(records, "pollutants", "pollutants", method, arguments).values()
        whole = [r["values"] for r in runs if len(r["values"]) >= 40]
        if whole:
            shown[title] = np.fmin.accumulate(np.array(whole)[:, :40], axis=1)
    reference = published.reference_runs(arguments.data_dir)
    if reference is not None:
        shown["the authors' NEON"] = published.pollutants_curves(reference)["authors' ei_leaky"][:5]
        # Theirs begin with the best of the five initial points.
        start = np.repeat(shown["the authors' NEON"][:, :1], 4, axis=1)
        shown["the authors' NEON"] = np.hstack([start, shown["the authors' NEON"]])
    figure, ax = plt.subplots(figsize=(10, 4.5), layout="constrained")
    draw_curves(ax, shown, "simple regret (squared concentration)")
    ax.get_legend().set(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    ax.set_title("Pollutants: median and quartiles of the searches, leaky or plain EI")
    figure.savefig(arguments.picture, dpi=120)


def main():
    arguments = parsed()
    path = arguments.results_dir / FILE
    if arguments.picture:
        draw_pollutants(read(path), arguments)
        return
    for part in arguments.only if arguments.runs != 0 else []:
        allowed, started = runnable(part, arguments), time.perf_counter()
        for dataset, method, seed in cells(part, arguments):
            if dataset not in allowed:
                continue
            try:
                run_missing(path, part, dataset, method, seed, arguments)
            except FloatingPointError as error:  # diverged: the others go on
                print(f"FAILED {part} {dataset} {seed} {method}: {error}", flush=True)
        print(f"{part}: {time.perf_counter() - started:.0f} s in all", flush=True)
    records = read(path)
    for part in arguments.only:
        PRINTERS[part](part, records, arguments)


if __name__ == "__main__":
    main()
