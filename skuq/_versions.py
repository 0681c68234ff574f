"""Versions of skuq and of what it stands on, for reports of bugs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

import threadpoolctl

import skuq

_REQUIRED = (
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "joblib",
    "tensorflow",
    "tensorflow-probability",
    "tf-keras",
    "keras",
    "keras-tuner",
    "cloudpickle",
    "filelock",
    "lazy-loader",
    "threadpoolctl",
    "tqdm",
)
_OPTIONAL = (
    "matplotlib",
    "skops",
    "dask",
    "distributed",
    "pooch",
    "scikit-image",
    "pillow",
    "py-pde",
)


def show_versions() -> None:
    """Print versions of Python, skuq and its dependencies, and what the machine is.

    Nothing is imported for that, TensorFlow included. Add the output to reports of bugs.

    Examples
    --------
    >>> import skuq
    >>> skuq.show_versions()  # doctest: +ELLIPSIS
    System
      python: 3...
    """
    system = {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }
    packages = {name: _version(name) for name in (*_REQUIRED, *_OPTIONAL)}
    pools = {pool["prefix"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    _show("System", system)
    _show("Packages", {"skuq": skuq.__version__, **packages})
    _show("Threads of libraries", pools)


def _show(title, values):
    print(title)
    for name, value in values.items():
        print(f"  {name}: {value}")


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
