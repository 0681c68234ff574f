"""Break the code on purpose in places drawn with a seed, and see which tests notice.

    python -m pytest --cov=skuq --cov-context=test --cov-report=  # writes .coverage
    python tests/breaks.py --seed 0 --places 30 --results breaks.json

Every place is broken in a copy of the checkout; the tests that run its line are tried first, then
those of its package. A finished place is kept in the file of results and not tried again.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ["Add Sub", "Mult Div", "Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or"]
PAIRS = [[getattr(ast, name) for name in pair.split()] for pair in PAIRS]
SWAPS = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}


def changed(node):
    """The kind of break that fits a node, and the node that takes its place; None without one."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        return "operator", type(node)(**vars(node) | {"op": SWAPS[type(node.op)]()})
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return "comparison", ast.Compare(node.left, [SWAPS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return "sign", node.operand
    if isinstance(node, ast.If | ast.IfExp):
        return "condition", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = not node.value if isinstance(node.value, bool) else node.value * 1.5 + 1
        return "constant", ast.Constant(type(node.value)(value))
    return None


def places_of(file):
    """All places of a file that can be broken, with what takes their place."""
    text = file.read_text(encoding="utf-8")
    tree, starts = ast.parse(text), [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    named = [getattr(n, name, None) for n in ast.walk(tree) for name in ("annotation", "returns")]
    typed = {n for part in named if isinstance(part, ast.AST) for n in ast.walk(part)}
    for node in ast.walk(tree):
        if node not in typed and (found := changed(node)):
            kind, new = found
            old = node.test if kind == "condition" else node
            first = starts[old.lineno - 1] + old.col_offset
            last = starts[old.end_lineno - 1] + old.end_col_offset
            yield {
                "file": file.relative_to(ROOT).as_posix(),
                "line": old.lineno,
                "kind": kind,
                "old": " ".join(ast.unparse(old).split()),
                "new": ast.unparse(ast.fix_missing_locations(new)),
                "bytes": [first, last],
            }


def drawn(seed, n):
    """Draw places: one package after the other, one of its files, a kind, a place of this kind."""
    packages = {}
    for file in sorted((ROOT / "skuq").rglob("*.py")):
        if found := list(places_of(file)):
            packages.setdefault(file.relative_to(ROOT).parts[1], []).append(found)
    rng, order = random.Random(seed), []
    while len(order) < n:
        names = rng.sample(sorted(packages), len(packages))
        for name in names:
            found = rng.choice(packages[name])
            kind = rng.choice(sorted({place["kind"] for place in found}))
            place = rng.choice([place for place in found if place["kind"] == kind])
            if place not in order:
                order.append(place)
    return order[:n]


def tests_of(place, coverage):
    """Files of tests: those that run the line, its package's first."""
    package = place["file"].split("/")[1]
    contexts = coverage.contexts_by_lineno(place["file"]).get(place["line"], [])
    files = {context.split("::")[0] for context in contexts if "::" in context}
    own = [f"tests/{package}"] if (ROOT / "tests" / package).is_dir() else []
    return sorted(files, key=lambda f: (not f.startswith(f"tests/{package}/"), f)), own


def tried(place, coverage, seconds):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        skipped = shutil.ignore_patterns(".git", "__pycache__", "_build", "*.egg-info")
        shutil.copytree(ROOT, copy, ignore=skipped)
        broken = copy / place["file"]
        first, last = place["bytes"]
        text = broken.read_bytes()
        broken.write_bytes(text[:first] + f"({place['new']})".encode() + text[last:])
        runs = (_first_failure(copy, some, seconds) for some in tests_of(place, coverage) if some)
        return place | {"caught": next(filter(None, runs), None)}


def _first_failure(copy, files, seconds):
    """The first test that fails; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        run = subprocess.run(
            [*command, *files], cwd=copy, env=environment, timeout=seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {seconds} s"
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return None if run.returncode in (0, 5) else (lines or [run.stdout[-200:]])[0][:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in {"seed": 0, "places": 30, "seconds": 900, "jobs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--results", type=Path, default=Path("breaks.json"))
    arguments, coverage = parser.parse_args(), CoverageData()
    coverage.read()
    done = json.loads(arguments.results.read_text()) if arguments.results.exists() else []
    known = [{k: v for k, v in record.items() if k != "caught"} for record in done]

    def one(place):
        record = tried(place, coverage, arguments.seconds)
        done.append(record)
        arguments.results.write_text(json.dumps(done, indent=1) + "\n")
        print(f"{place['file']}:{place['line']} {place['old']} -> {place['new']}:", end=" ")
        print(record["caught"] or "NOT CAUGHT", flush=True)

    wanted = [p for p in drawn(arguments.seed, arguments.places) if p not in known]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, wanted))
    print(f"{sum(bool(r['caught']) for r in done)} of {len(done)} caught")


if __name__ == "__main__":
    main()
