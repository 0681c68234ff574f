"""Code in a process of its own, which has imported nothing yet."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path


def run_python(code, input=None, **environment):
    """Run code in a new Python process; return the completed process, or raise if it fails."""
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **path, **environment},
        input=input,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def start_python(*arguments, env=None, **options):
    """Start Python, which can import what this process can; return the process."""
    path = os.pathsep.join(p for p in [str(Path(__file__).parents[1]), *sys.path] if p)
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    env = {**os.environ, "PYTHONPATH": path, **(env or {})}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=env, **options)


def assert_predicts_without_a_backend(fitted, folder):
    """Pairs of a fitted estimator and inputs: another process predicts the same in NumPy."""
    path = folder / "models.pkl"
    told = [[model.predict(X), *model.predict_uncertainty(X)] for model, X in fitted]
    path.write_bytes(pickle.dumps([(*pair, parts) for pair, parts in zip(fitted, told)]))
    code = (
        "import pickle, sys, numpy as np\n"
        f"for model, X, expected in pickle.load(open({str(path)!r}, 'rb')):\n"
        "    found = [model.predict(X), *model.predict_uncertainty(X)]\n"
        "    for own, other in zip(found, expected, strict=True):\n"
        "        np.testing.assert_array_equal(own, other)\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    assert run_python(code).stdout.strip() == "[]"
