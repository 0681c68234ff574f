"""The structure holds: imports go down the ranks, TensorFlow stays where it belongs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "skuq"
MODULES = sorted(ROOT.rglob("*.py"))

RANKS = {
    "backend": 0,
    **dict.fromkeys(["predictive", "metrics", "datasets", "networks"], 1),
    **dict.fromkeys(["catalog", "tables", "ensembles"], 2),
    **dict.fromkeys(["search", "training"], 3),
    **dict.fromkeys(["bayesopt", "plotting"], 4),
    "persistence": 5,
    "estimators": 6,  # a search writes its estimator into its folder
}
# The only places where a backend may be imported by name.
BACKEND_HOMES = {f"backend/{name}.py" for name in ("_keras", "_tfp", "_keras_tuner", "_tensorflow")}


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _package(path):
    return path.relative_to(ROOT).parts[0] if path.parent != ROOT else None


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _rank(package):
    return 0 if package is None or package.startswith("_") else RANKS.get(package, 0)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_to_lower_ranks(path):
    if _name(path) == "__init__.py":
        return
    package = _package(path)
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "skuq" and len(parts) > 1 and parts[1] != package:
            assert _rank(parts[1]) < _rank(package) or _rank(parts[1]) == 0, (
                f"{_name(path)} (rank {_rank(package)}) imports {name} (rank {_rank(parts[1])})"
            )


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_backends_and_private_tools_have_one_door(path):
    roots = {name.split(".")[0] for name in _imports(path)}
    if _name(path) not in BACKEND_HOMES:
        assert not roots & {"keras", "tensorflow", "tensorflow_probability", "keras_tuner"}
    if _name(path) != "_params.py":
        private = [n for n in _imports(path) if n.startswith("sklearn") and "._" in n]
        assert not private, f"{_name(path)} reaches into scikit-learn: {private}"


def test_every_package_has_a_rank():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(RANKS)


def _loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import skuq",
        "from skuq import AutoDEUQRegressor; AutoDEUQRegressor()",
        "from skuq import DeepEnsembleClassifier, HyperDeepEnsembleRegressor, MCDropoutRegressor",
        "from skuq import HQEnsembleSelector; HQEnsembleSelector([])",
        "from skuq import NOMURegressor; NOMURegressor.from_paper('toy')",
        "from skuq import NEONRegressor, OperatorEnsembleRegressor; NEONRegressor()",
        "from skuq.bayesopt import *",
        "from skuq.datasets import make_operator_problem as m; p = m('pollutants'); "
        "from skuq import NEONRegressor; from skuq.bayesopt import BayesianOptimizer; "
        "BayesianOptimizer(NEONRegressor(), p.bounds, objective=p.objective).ask()",
        "from skuq.ensembles import *; from skuq.predictive import *; from skuq.metrics import *",
        "from skuq.plotting import *",
        "from skuq.catalog import *; from skuq.tables import *; from skuq.datasets import *",
        "from skuq.search import make_proposer, open_slots, run_search",
        "from skuq.networks import DenseSkipSpace, GaussianHead",
        "from skuq import load, save; from skuq.persistence import *",
        "import skuq.backend; from skuq.backend import BoundedCache",
    ],
)
def test_no_backend_is_loaded(statement):
    assert not _loaded_by(statement) & {"tensorflow", "keras", "keras_tuner"}


def test_import_is_quick_and_light():
    code = (
        "import time; start = time.perf_counter(); import skuq; print(time.perf_counter() - start)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 1


def test_backend_loads_quietly():
    code = (
        "from skuq.backend import compile_program, keras_tuner, ops, tfd; import numpy as np; "
        "ops.sum(np.ones(3))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
