"""What a user can reach, and that it is documented."""

import importlib
import inspect

import pytest

import skuq

PACKAGES = [
    "catalog",
    "datasets",
    "ensembles",
    "estimators",
    "metrics",
    "networks",
    "predictive",
    "search",
    "tables",
    "training",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_have_docstrings(package):
    module = importlib.import_module(f"skuq.{package}")
    assert module.__all__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            assert inspect.getdoc(thing), f"skuq.{package}.{name} has no docstring"


def test_top_level_names():
    assert "AutoDEUQRegressor" in skuq.__all__
    assert skuq.__version__


def test_autodeuq_documents_every_parameter():
    text = inspect.getdoc(skuq.AutoDEUQRegressor)
    parameters = inspect.signature(skuq.AutoDEUQRegressor).parameters
    missing = [name for name in parameters if f"{name}" not in text]
    assert not missing
    assert set(skuq.AutoDEUQRegressor._parameter_constraints) == set(parameters)
