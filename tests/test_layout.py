"""The structure holds: imports go down the ranks, in no circles, and load no TensorFlow."""

import ast
import functools
import graphlib
import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "skuq"
RANKS = {
    **dict.fromkeys(["backend", "files"], 0),
    **dict.fromkeys(["predictive", "metrics"], 1),
    **dict.fromkeys(["networks", "model_selection"], 2),
    **dict.fromkeys(["tables", "ensembles"], 3),
    **dict.fromkeys(["search", "training"], 4),
    **dict.fromkeys(["fitted", "bayesopt", "plotting"], 5),
    "estimators": 6,
}
BACKENDS = {"keras", "keras_tuner", "tensorflow", "tensorflow_probability"}
# What has one home: a pattern of imports or attributes, and the only files that may have it.
HOMES = [
    (rf"import ({'|'.join(sorted(BACKENDS))})\b.*", {f"backend/_{n}.py" for n in BACKENDS}),
    (r"import sklearn\b.*\._.*", {"_params.py"}),
    (r"warnings\.warn\w*", {"_messages.py"}),  # which finds the user's line
    (r"importlib\.import_module", {"files/_archive.py"}),  # modules of a file's classes
]


class Import(NamedTuple):
    module: str
    name: str | None = None

    @property
    def full(self):
        return f"{self.module}.{self.name}" if self.name else self.module


class File(NamedTuple):
    name: str  # "search/_loop.py"
    tree: ast.Module
    imports: list[Import]  # also those inside of functions

    @property
    def package(self):
        """The package, or the name of a single file."""
        return self.name.split("/")[0].removesuffix(".py")


def _imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            yield from (Import(node.module, alias.name) for alias in node.names)


@functools.cache
def _files():
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        files[name] = File(name, tree, list(_imports(tree)))
    return files


def _file_of(module):
    path = "/".join(module.split(".")[1:])
    names = (f"{path}.py", f"{path}/__init__.py".lstrip("/"))
    return next((name for name in names if name in _files()), None)


def _stubs():
    """The statements ``from ._file import name as name`` of each package."""
    for stub in sorted(ROOT.rglob("*.pyi")):
        package = ".".join(["skuq", *stub.relative_to(ROOT).parts[:-1]])
        nodes = ast.walk(ast.parse(stub.read_text()))
        yield package, [node for node in nodes if isinstance(node, ast.ImportFrom)]


@functools.cache
def _lazy_names():
    """{package: {public name: the file that defines it}}."""
    found = defaultdict(dict)
    for package, nodes in _stubs():
        for node in nodes:
            home = f"{package}.{node.module}" if node.module else package
            for alias in node.names:
                found[package][alias.name] = _file_of(f"{home}.{alias.name}") or _file_of(home)
    return found


def _targets(file):
    """The files of skuq that a file imports."""
    for imported in file.imports:
        if imported.module.split(".")[0] == "skuq":
            public = _lazy_names()[imported.module].get(imported.name)
            yield _file_of(imported.full) or public or _file_of(imported.module)


def _rank(package):
    return RANKS.get(package, 0)


def _imports_of_skuq():
    """All imports of one package from another: file, import, imported package."""
    for file in _files().values():
        for imported in file.imports:
            package = imported.full.split(".")[1] if imported.full.startswith("skuq.") else None
            if package and package != file.package and file.name != "__init__.py":
                yield file, imported, package


def _goes_up(file, imported, package):
    return 0 < _rank(package) >= _rank(file.package)


def _is_of_bayesopt(file, imported, package):
    """bayesopt imports public names and rank 0 only, and no other package imports it."""
    is_public = imported.name in _lazy_names()[imported.module] or _rank(package) == 0
    return package == "bayesopt" or (file.package == "bayesopt" and not is_public)


@pytest.mark.parametrize("is_fault", [_goes_up, _is_of_bayesopt])
def test_imports_between_packages(is_fault):
    found = list(_imports_of_skuq())
    assert len(found) > 400
    assert not [f"{file.name}: {what.full}" for file, what, p in found if is_fault(file, what, p)]


def test_packages_have_ranks_and_no_circles_and_papers_know_no_recipes():
    papers = [file for name, file in _files().items() if name.startswith("estimators/methods/")]
    imported = [what.full for file in papers for what in file.imports]
    assert len(imported) > 100
    assert not [name for name in imported if name.startswith("skuq.estimators.tabular")]
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(RANKS) - {"model_selection"}
    targets = {name: set(_targets(file)) - {name} for name, file in _files().items()}
    assert None not in set().union(*targets.values())  # an import of what is not there
    assert sum(map(len, targets.values())) > 3 * len(targets)  # or nothing was looked at
    graphlib.TopologicalSorter(targets).prepare()  # raises CycleError, which names a circle


@pytest.mark.parametrize(("pattern", "homes"), HOMES)
def test_backends_and_private_tools_have_one_home(pattern, homes):
    users = set()
    for file in _files().values():
        used = [f"import {imported.full}" for imported in file.imports]
        used += [ast.unparse(n) for n in ast.walk(file.tree) if isinstance(n, ast.Attribute)]
        if any(re.fullmatch(pattern, name) for name in used):
            users.add(file.name)
    assert users and users <= homes


def test_the_page_on_the_architecture_names_what_there_is():
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:skuq|docs|tests)/[\w/.]+)`", page))
    assert len(named) > 10 and not [name for name in named if not (ROOT.parent / name).exists()]
    rows = re.findall(r"(?m)^\| (`[A-Z].*?) \| `(skuq/[\w/.*]+)`[^|]*\|", page)
    assert len(rows) > 17
    for nouns, home in rows:
        files = (ROOT.parent / home.rpartition("/")[0]).glob("*.py")
        text = "\n".join(file.read_text() for file in files)
        for noun in re.findall(r"`([A-Za-z_]+)`", nouns):
            assert re.search(rf"(?m)^(class|def) {noun}\b", text), noun
    rows = re.findall(r"(?m)^\| (\d) \| (.*?) \|", page)
    ranks = {name: int(n) for n, names in rows for name in re.findall(r"`([a-z_]+)`", names)}
    assert {name: n for name, n in ranks.items() if name in RANKS} == RANKS


def test_type_checkers_see_the_public_names():
    for package, nodes in _stubs():
        names = {alias.asname for node in nodes for alias in node.names}
        assert names == set(importlib.import_module(package).__all__), package


def _run(code, **options):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, **options)


# Code that must not load a backend. One process runs it in this order.
WITHOUT_BACKEND = [
    "import skuq; skuq.show_versions()",
    "from skuq.backend import BoundedCache",
    *(f"from skuq.{name} import *" for name in ("ensembles", "predictive", "metrics", "tables")),
    "from skuq.networks import DenseSpace, GaussianHead",
    "from skuq.networks import CellSpace; import numpy as np; s = CellSpace(); s.recipe({}); "
    "a = s.decisions().architecture; s.mutate(a.default(), np.random.default_rng(0))",
    "from skuq.search import AgEBO, OracleSearch, Search",
    "from skuq.plotting import *; assert 'matplotlib' not in sys.modules",
    *(f"from skuq.{name} import *" for name in ("bayesopt", "files", "estimators")),
    "from skuq import *; AutoDEUQRegressor(); HQEnsembleSelector([]); NEONRegressor()",
    "NOMURegressor.from_paper('toy')",
    "from skuq.bayesopt import BayesianOptimizer; "
    "BayesianOptimizer(NEONRegressor(), np.array([[0, 1]]), objective=lambda y: y.sum(-1)).ask()",
]


def test_import_loads_no_backend_and_is_quick():
    code = ["import sys"]
    for statement in WITHOUT_BACKEND:
        loaded = f"{BACKENDS!r} & set(sys.modules)"
        code += [statement, f"assert not (loaded := {loaded}), f'{{loaded}}: ' + {statement!r}"]
    run = _run("\n".join(code))
    assert run.returncode == 0, run.stderr
    code = "import time; start = time.perf_counter(); import skuq; "
    code += "print(time.perf_counter() - start)"
    assert any(float(_run(code, check=True).stdout) < 1 for _ in range(3))  # other work may slow it


QUIET = "from skuq.backend import *; import numpy as np; ops.sum(np.ones(3))"
LOUD = """
import sys, keras; print('loaded', file=sys.stderr, flush=True)
import numpy as np; from skuq import DeepEnsembleRegressor; X = np.arange(40.0)[:, None]
DeepEnsembleRegressor(2, epochs=1, random_state=0).fit(X, X[:, 0])
"""


@pytest.mark.slow
@pytest.mark.smoke
def test_backend_loads_quietly():
    assert _run(QUIET, check=True).stderr == ""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    assert _run(LOUD, check=True, env=environment).stderr.endswith("loaded\n")
