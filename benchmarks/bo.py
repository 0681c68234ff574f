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
`--runs`. It may run twice at once with other `--methods` or seeds. Fields of the
Brusselator are kept in `--cache-dir`. `results_tables.py` makes the tables of what is kept.
"""

import argparse
import time
from pathlib import Path

import _bo_operator as operator
import numpy as np
from _bo_loops import LOOPS, Part, rounded, search, settings_of
from _stored import STORED, add, read
from nomu import CELL, is_cell

PARTS = LOOPS | {
    "operator": Part(tuple(operator.SIZES), tuple(operator.SIZES), operator.METHODS, 3, 0)
}
FILE = "bo.json"


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
                yield dataset, method, seed


def run_missing(path, part, dataset, method, seed, arguments):
    """One run from where it is, every step saved as it comes."""
    part, method = stored_as(part, method)
    cell = (part, dataset, method, seed, settings_of(method, arguments))
    known = [r for r in read(path) if is_cell(r, *cell)]
    record = known[0] if known else None
    name, started = f"{part} {dataset} {seed} {method}", time.perf_counter()
    if part == "operator":
        if record is None:
            found = operator.judge(method, seed)
            record = dict(zip(CELL, cell)) | {k: rounded(v) for k, v in found.items()}
            add(path, record, CELL)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        return
    found = None
    for found in search(part, dataset, method, seed, PARTS[part].steps, arguments, record):
        add(path, dict(zip(CELL, cell)) | found, CELL)
    if found is not None:
        seconds = time.perf_counter() - started
        best = np.nanmin(found["values"])
        print(f"{name}: best {best:.3g}, {seconds:.1f} s", flush=True)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="holds neon/reference_runs.npz")
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument(
        "--cache-dir", type=Path, default=Path.home() / ".cache" / "skuq-benchmarks"
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--functions", nargs="+", help="functions or data sets of these names")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--runs", type=int, help="seeds of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=128, help="units of NOMU's layers")
    arguments = parser.parse_args()
    for name, known in [
        ("functions", {d for part in arguments.only for d in PARTS[part].datasets}),
        ("methods", {m for part in arguments.only for m in PARTS[part].methods}),
    ]:
        unknown = set(getattr(arguments, name) or ()) - known
        if unknown:
            parser.error(f"--{name} must be of {sorted(known)}. Got {sorted(unknown)}.")
    needed = set(arguments.only) & {"pollutants", "parallel"}
    needed |= {"brusselator_authors"} & set(arguments.functions or ())
    if arguments.data_dir is None and needed:
        parser.error("--data-dir is needed")
    return arguments


def main():
    arguments = parsed()
    path = arguments.results_dir / FILE
    for part in arguments.only:
        started = time.perf_counter()
        for dataset, method, seed in cells(part, arguments):
            try:
                run_missing(path, part, dataset, method, seed, arguments)
            except FloatingPointError as error:  # diverged: the others go on
                print(f"FAILED {part} {dataset} {seed} {method}: {error}", flush=True)
        print(f"{part}: {time.perf_counter() - started:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
