"""The public names, and their documentation."""

import importlib
import inspect

import pytest
from test_layout import RANKS

import skuq

PACKAGES = sorted(set(RANKS) - {"backend", "fitted"})
ESTIMATORS = [name for name in skuq.__all__ if name[0].isupper()]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_have_docstrings(package):
    module = importlib.import_module(f"skuq.{package}")
    assert module.__all__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            assert inspect.getdoc(thing), f"skuq.{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_parameters_are_documented_in_the_order_of_the_signature(package):
    docscrape = pytest.importorskip("numpydoc.docscrape")
    module = importlib.import_module(f"skuq.{package}")
    for thing in filter(callable, (getattr(module, name) for name in module.__all__)):
        entries = docscrape.NumpyDocString(inspect.getdoc(thing))["Parameters"]
        # The first name of each entry: some describe several parameters.
        documented = [entry.name.split(",")[0].strip(" *") for entry in entries]
        parameters = inspect.signature(thing).parameters
        assert documented == [name for name in parameters if name in documented]


def test_top_level_names():
    assert len(ESTIMATORS) == 19 and {"load", "make_pipeline", "save"} <= set(skuq.__all__)
    assert skuq.__version__
