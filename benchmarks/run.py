"""Run a benchmark, or show what is kept of it.

    python benchmarks/run.py                                        # names of benchmarks
    python benchmarks/run.py regression --data-dir DIR              # all that is missing
    python benchmarks/run.py regression --problems yacht --methods tabular plain --seeds 0 1
    python benchmarks/run.py regression --summary [--score nll]     # what is kept

``--data-dir`` is the folder of the data sets (or SKUQ_DATA_DIR), ``--peers-dir`` one for virtual
environments of peers (or SKUQ_PEERS_DIR), ``--results-dir`` where rows are kept.
"""

import argparse
import importlib
import json
import os
from dataclasses import replace
from pathlib import Path

from runner import STORED, found, read, run, summary

MODULES = ("regression", "classes", "nomu", "bo", "nes", "hq", "engine", "durability", "rent")


def benchmarks():
    """All benchmarks by name."""
    declared = [importlib.import_module(module).BENCHMARKS for module in MODULES]
    return {name: benchmark for part in declared for name, benchmark in part.items()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--problems", nargs="+")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--again", action="store_true", help="run what is kept, too")
    parser.add_argument("--summary", action="store_true", help="print what is kept")
    parser.add_argument("--score", help="of the summary")
    parser.add_argument("--data-dir")
    parser.add_argument("--peers-dir")
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--print", action="store_true", help=argparse.SUPPRESS)  # one row alone
    a = parser.parse_args(arguments)
    for name, folder in (("SKUQ_DATA_DIR", a.data_dir), ("SKUQ_PEERS_DIR", a.peers_dir)):
        if folder:
            os.environ[name] = folder
    known = benchmarks()
    if a.name is None:
        for name, benchmark in known.items():
            print(f"{name}: {len(benchmark.problems)} problems, {', '.join(benchmark.methods)}")
        return
    if a.summary:
        print(summary(read(a.results_dir / f"{a.name}.json"), a.score))
        return
    if a.name not in known:
        parser.error(f"Unknown benchmark {a.name!r}. Known: {[*known]}.")
    benchmark = known[a.name]
    for kind, names in (("problems", a.problems), ("methods", a.methods)):
        unknown = set(names or ()) - set(getattr(benchmark, kind))
        if unknown:
            parser.error(
                f"Unknown {kind}: {sorted(unknown)}. Known: {[*getattr(benchmark, kind)]}."
            )
    if a.print:
        method = {name: benchmark.methods[name] for name in a.methods}
        here = replace(benchmark, alone=None)
        for _, row in found(a.name, here, a.problems[0], method, a.seeds[0]):
            print(json.dumps(row, default=float))
        return
    for row in run(a.name, benchmark, a.problems, a.methods, a.seeds, a.again, a.results_dir):
        print({k: v for k, v in row.items() if not isinstance(v, list | dict)}, flush=True)


if __name__ == "__main__":
    main()
