"""Code in a process of its own, which has imported nothing yet."""

import os
import subprocess
import sys
import time
from pathlib import Path


def run_python(code, input=None, **environment):
    """Run code in a new Python process; return the completed process, or raise if it fails."""
    options = {"capture_output": True, "text": True, "check": True, "timeout": 300}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, input=input, **options)


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def start_python(*arguments, env=None, **options):
    path = os.pathsep.join(p for p in [str(Path(__file__).parents[1]), *sys.path] if p)
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    env = {**os.environ, "PYTHONPATH": path, **(env or {})}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=env, **options)
