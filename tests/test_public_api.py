"""The public names, and their documentation."""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_layout import RANKS

import skuq
from skuq.files._registry import record_repr

PACKAGES = sorted(set(RANKS) - {"backend", "fitted"})
ESTIMATORS = [name for name in skuq.__all__ if name[0].isupper()]


@pytest.mark.parametrize("package", PACKAGES)
def test_parameters_are_documented_in_the_order_of_the_signature(package):
    docscrape = pytest.importorskip("numpydoc.docscrape")
    module = importlib.import_module(f"skuq.{package}")
    assert module.__all__
    for thing in filter(callable, (getattr(module, name) for name in module.__all__)):
        assert inspect.getdoc(thing), f"{thing} has no docstring"
        entries = docscrape.NumpyDocString(inspect.getdoc(thing))["Parameters"]
        # The first name of each entry: some describe several parameters.
        documented = [entry.name.split(",")[0].strip(" *") for entry in entries]
        parameters = inspect.signature(thing).parameters
        assert documented == [name for name in parameters if name in documented]


def test_top_level_names():
    assert len(ESTIMATORS) == 19 and {"load", "make_pipeline", "save"} <= set(skuq.__all__)
    assert skuq.__version__


def test_versions_of_dependencies_are_shown(capsys):
    skuq.show_versions()
    shown = capsys.readouterr().out
    assert "python: 3" in shown and "numpy: " in shown and "  keras: " in shown


def test_repr_of_members_says_what_they_are(table):
    network = skuq.networks.MLP((8,))
    model = skuq.DeepEnsembleRegressor(2, network=network, epochs=3, random_state=0).fit(*table)
    assert repr(model.members_[0]).startswith("Member(42 weights, best epoch ")
    assert "members=<tuple of 2 Member>, weights=[0.5, 0.5]" in repr(model.fitted_)


def test_record_repr_describes_fields():
    @dataclass
    class Record:
        small: np.ndarray
        large: np.ndarray
        share: float
        text: str
        names: tuple
        thing: Any

        __repr__ = record_repr

    record = Record(np.arange(2), np.zeros((3, 4)), 1 / 3, "t" * 100, ("a", "b"), object())
    assert repr(record) == (
        "Record(small=[0, 1], large=<float64 array (3, 4)>, share=0.3333, text=<str>, "
        "names=('a', 'b'), thing=<object>)"
    )
