"""Every parameter and attribute of an estimator is documented, in one order."""

import inspect
from itertools import combinations

import pytest

import skuq

numpydoc = pytest.importorskip("numpydoc.docscrape")

ESTIMATORS = [value for name in skuq.__all__ if hasattr(value := getattr(skuq, name), "get_params")]


def entries(estimator):
    """Documented parameters and attributes: ``{section: {name: description}}``."""
    document = numpydoc.NumpyDocString(inspect.getdoc(estimator))
    return {
        section: {
            name.strip(): " ".join(entry.desc).strip()
            for entry in document[section]
            for name in entry.name.split(",")
        }
        for section in ("Parameters", "Attributes")
    }


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.__name__)
def test_every_parameter_is_documented(estimator):
    documented = entries(estimator)
    parameters = documented["Parameters"]
    assert list(parameters) == list(inspect.signature(estimator).parameters)
    assert all(text for section in documented.values() for text in section.values())


def test_estimators_list_their_parameters_in_one_order():
    pairs = set()
    for estimator in ESTIMATORS:
        parameters = inspect.signature(estimator).parameters.values()
        pairs |= set(combinations([p.name for p in parameters if p.kind == p.KEYWORD_ONLY], 2))
    assert sorted(pair for pair in pairs if pair[::-1] in pairs) == []
