"""The structure holds: imports go down the ranks, in no circles, and load no TensorFlow.

Inside a function stand only imports of `skuq.backend`, of modules that load it, and of optional
libraries. ``training.train(...)`` counts as an import of the file that defines `train`.
"""

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1] / "skuq"

RANKS = {
    **dict.fromkeys(["backend", "files"], 0),
    **dict.fromkeys(["predictive", "metrics"], 1),
    "networks": 2,
    **dict.fromkeys(["tables", "ensembles"], 3),
    **dict.fromkeys(["search", "training"], 4),
    **dict.fromkeys(["fitted", "bayesopt", "plotting"], 5),
    "estimators": 6,
}
BACKENDS = {"keras", "keras_tuner", "tensorflow", "tensorflow_probability"}
# The only files that may import a backend by its name.
BACKEND_HOMES = {f"backend/{name}.py" for name in ("_keras", "_tensorflow")}
# Names of skuq.backend.
WITHOUT_TENSORFLOW = {
    *("BoundedCache", "check_fork", "in_thread", "loaded", "run_in_threads", "_scopes")
}
OPTIONAL = {"PIL", "dask", "distributed", "matplotlib", "pde", "pooch", "skimage", "skops"}


class Import(NamedTuple):
    """An import: of a module, or of a name in one."""

    module: str
    name: str | None
    is_deferred: bool

    @property
    def full(self):
        return f"{self.module}.{self.name}" if self.name else self.module


class File(NamedTuple):
    """A file of skuq and what it says."""

    name: str  # "search/_loop.py"
    tree: ast.Module
    imports: list[Import]

    @property
    def package(self):
        return self.name.split("/")[0] if "/" in self.name else None


def _imports(tree):
    """All imports of a file, with whether they stand inside a function."""
    found = []

    def visit(node, is_deferred):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, None, is_deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            found.extend(Import(node.module, alias.name, is_deferred) for alias in node.names)
        is_deferred |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, is_deferred)

    visit(tree, False)
    return found


@functools.cache
def _files():
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        files[name] = File(name, tree, _imports(tree))
    return files


@functools.cache
def _lazy_names():
    """{package: {public name: the file that defines it}}, from stubs or ``lazy_loader.attach``."""
    found = defaultdict(dict)
    for file in _files().values():
        if not file.name.endswith("__init__.py"):
            continue
        package = ".".join(["skuq", *file.name.split("/")[:-1]])
        folder = file.name.removesuffix("__init__.py")
        stub = (ROOT / file.name).with_suffix(".pyi")
        for node in ast.walk(ast.parse(stub.read_text())) if stub.exists() else ():
            if isinstance(node, ast.ImportFrom) and node.module:
                home = _file_of(f"{package}.{node.module}") or f"{folder}{node.module}.py"
                found[package].update({alias.name: home for alias in node.names})
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_loader.attach":
                names = {word.arg: word.value for word in node.keywords}
                for module, names_of_module in ast.literal_eval(names["submod_attrs"]).items():
                    home = _file_of(f"{package}.{module}") or f"{folder}{module}.py"
                    found[package].update(dict.fromkeys(names_of_module, home))
    return found


def _file_of(module):
    """The file of a module of skuq; None if there is none."""
    path = "/".join(module.split(".")[1:])
    names = (f"{path}.py", f"{path}/__init__.py".lstrip("/"))
    return next((name for name in names if name in _files()), None)


def _targets(file):
    """The files of skuq that a file depends on."""
    packages = {}  # what `from skuq import training` calls it
    for imported in file.imports:
        if imported.module.split(".")[0] != "skuq":
            continue
        if (whole := _file_of(imported.full)) is not None:  # a module or a package
            if whole.endswith("__init__.py") and imported.name:
                packages[imported.name] = imported.full
            yield whole
        else:
            yield _lazy_names()[imported.module].get(imported.name) or _file_of(imported.module)
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = _lazy_names()[packages.get(node.value.id)].get(node.attr)
            if home is not None:
                yield home


def _rank(package):
    return RANKS.get(package, 0)


def test_imports_go_to_lower_ranks():
    faults = [
        f"{file.name} (rank {_rank(file.package)}) imports {imported.full}"
        for file in _files().values()
        for imported in file.imports
        if file.name != "__init__.py" and imported.full.startswith("skuq.")
        for package in [imported.full.split(".")[1]]
        if package != file.package and 0 < _rank(package) >= _rank(file.package)
    ]
    assert not faults


def test_bayesopt_is_a_leaf():
    """It imports public names and the packages of rank 0 only, and no other package imports it."""
    faults = []
    for file in _files().values():
        for imported in file.imports:
            package = imported.full.split(".")[1] if imported.full.startswith("skuq.") else None
            if package == file.package or file.name == "__init__.py":
                continue
            is_public = imported.name in _lazy_names()[imported.module]
            is_public |= _rank(package) == 0
            if package == "bayesopt" or (file.package == "bayesopt" and package and not is_public):
                faults.append(f"{file.name} imports {imported.full}")
    assert not faults


def test_the_papers_know_nothing_of_the_recommended_recipes():
    faults = [
        f"{file.name} imports {imported.full}"
        for file in _files().values()
        if file.name.startswith("estimators/methods/")
        for imported in file.imports
        if imported.full.startswith("skuq.estimators.tabular")
    ]
    assert not faults


def test_each_file_name_occurs_once():
    names = Counter(name.split("/")[-1] for name in _files())
    assert [name for name, n in names.items() if n > 1] == ["__init__.py"]


def test_every_package_has_a_rank():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(RANKS)


def test_no_circles_between_files():
    names = list(_files())
    numbers = {name: number for number, name in enumerate(names)}
    graph = np.zeros((len(names), len(names)), dtype=int)
    for file in _files().values():
        for target in _targets(file):
            assert target is not None, f"{file.name} imports what is not there"
            if target != file.name:
                graph[numbers[file.name], numbers[target]] = 1
    assert graph.sum() > 3 * len(names)  # or nothing was looked at
    _, labels = connected_components(graph, connection="strong")
    circles = defaultdict(set)
    for name, label in zip(names, labels):
        circles[label].add(name)
    assert not [circle for circle in circles.values() if len(circle) > 1]


def _loads_backend(name):
    """Whether a file loads a backend when it is imported."""
    return name in _files() and any(
        imported.module == "skuq.backend"
        and imported.name not in WITHOUT_TENSORFLOW
        and not imported.is_deferred
        for imported in _files()[name].imports
    )


def test_imports_stand_at_the_top():
    faults = defaultdict(list)
    for file in _files().values():
        for imported in file.imports:
            root, *path = imported.full.split(".")
            allowed = root in OPTIONAL | BACKENDS or (root == "skuq" and path[:1] == ["backend"])
            allowed |= _loads_backend(_file_of(imported.full) or _file_of(imported.module))
            if imported.is_deferred and not allowed:
                faults[file.name].append(imported.full)
    assert not faults, "imports inside functions; see the top of this file"


def test_no_module_is_named_in_a_string():
    faults = []
    for file in _files().values():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"skuq(\.\w+)+", node.value):
                    faults.append(f"{file.name}: {node.value!r}")
            elif isinstance(node, ast.Call):
                function = ast.unparse(node.func)
                is_import = function == "__import__" or function.endswith("import_module")
                # A file names the modules that register its classes.
                if is_import and file.name != "files/_archive.py":
                    faults.append(f"{file.name}: {ast.unparse(node)}")
    assert not faults


def test_backends_and_private_tools_have_one_home():
    faults = []
    for file in _files().values():
        for imported in file.imports:
            if imported.module.split(".")[0] in BACKENDS and file.name not in BACKEND_HOMES:
                faults.append(f"{file.name} imports {imported.full}")
            is_private = imported.full.startswith("sklearn") and "._" in imported.full
            if is_private and file.name != "_params.py":
                faults.append(f"{file.name} reaches into scikit-learn: {imported.full}")
    assert not faults


def test_type_checkers_see_the_public_names():
    faults = []
    for stub in sorted(ROOT.rglob("*.pyi")):
        package = ".".join(["skuq", *stub.relative_to(ROOT).parts[:-1]])
        nodes = ast.walk(ast.parse(stub.read_text()))
        names = {a.asname for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
        if names != set(importlib.import_module(package).__all__):
            faults.append(package)
    assert not faults, "the names in __init__.pyi are not those of __init__.py"


def _run(code, **options):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, **options)


# Code that must not load a backend. One process runs it in this order.
WITHOUT_BACKEND = [
    "import skuq; skuq.show_versions()",
    "import skuq.backend; from skuq.backend import BoundedCache",
    "from skuq.ensembles import *; from skuq.predictive import *; from skuq.metrics import *",
    "from skuq.tables import *",
    "from skuq.networks import DenseSpace, GaussianHead",
    "from skuq.networks import CellSpace; import numpy as np; s = CellSpace(); s.recipe({}); "
    "a = s.decisions().architecture; s.mutate(a.default(), np.random.default_rng(0))",
    "from skuq.search import AgEBO, OracleSearch, Search",
    "from skuq.plotting import *; assert 'matplotlib' not in sys.modules",
    "from skuq.bayesopt import *",
    "from skuq import load, save; from skuq.files import *",
    "from skuq import AutoDEUQRegressor; AutoDEUQRegressor()",
    "from skuq import DeepEnsembleClassifier, HyperDeepEnsembleRegressor, MCDropoutRegressor",
    "from skuq import HQEnsembleSelector; HQEnsembleSelector([])",
    "from skuq import NOMURegressor; NOMURegressor.from_paper('toy')",
    "from skuq import NEONRegressor, OperatorEnsembleRegressor; NEONRegressor()",
    "from skuq.estimators import *",
    "from skuq.bayesopt import BayesianOptimizer; "
    "BayesianOptimizer(NEONRegressor(), np.array([[0, 1]]), objective=lambda y: y.sum(-1)).ask()",
]


def test_no_backend_is_loaded():
    code = ["import sys"]
    for statement in WITHOUT_BACKEND:
        loaded = f"{BACKENDS!r} & set(sys.modules)"
        code += [statement, f"assert not (loaded := {loaded}), f'{{loaded}}: ' + {statement!r}"]
    run = _run("\n".join(code))
    assert run.returncode == 0, run.stderr


def test_import_is_quick():
    code = "import time; start = time.perf_counter(); import skuq; "
    code += "print(time.perf_counter() - start)"
    assert any(float(_run(code, check=True).stdout) < 1 for _ in range(3))  # other work may slow it


@pytest.mark.slow
@pytest.mark.smoke
def test_backend_loads_quietly():
    code = "from skuq.backend import compile_program, keras_tuner, ops, tfd; import numpy as np; "
    code += "ops.sum(np.ones(3))"
    assert _run(code, check=True).stderr == ""


@pytest.mark.slow
def test_what_follows_a_loud_import_of_keras_is_quiet():
    code = (
        "import sys, keras; print('loaded', file=sys.stderr, flush=True); import numpy as np; "
        "from skuq import DeepEnsembleRegressor; X = np.arange(40.0)[:, None]; "
        "DeepEnsembleRegressor(2, epochs=1, random_state=0).fit(X, X[:, 0])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    assert _run(code, check=True, env=environment).stderr.endswith("loaded\n")
