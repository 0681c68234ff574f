"""Parameters and attributes of the same name are documented in the same words.

Each class spells out its own parameters, for the reader; this test keeps the copies equal. Where a
name takes other values in another estimator, its type says so, and its words may differ. Defaults
may differ in any case.
"""

import inspect
import re
from collections import defaultdict

import pytest

import skuq

numpydoc = pytest.importorskip("numpydoc.docscrape")

ESTIMATORS = [value for name in skuq.__all__ if hasattr(value := getattr(skuq, name), "get_params")]


def entries(estimator):
    """Documented parameters and attributes: ``{name: (type without default, description)}``."""
    document = numpydoc.NumpyDocString(inspect.getdoc(estimator))
    return {
        section: {
            name.strip(): (
                re.sub(r"(, )?(default=.*|optional)$", "", " ".join(entry.type.split())),
                " ".join(" ".join(entry.desc).split()),
            )
            for entry in document[section]
            for name in entry.name.split(",")
        }
        for section in ("Parameters", "Attributes")
    }


def wordings():
    """Classes by name and type, and by description: ``{(name, type): {description: [class]}}``."""
    found = defaultdict(lambda: defaultdict(list))
    for estimator in ESTIMATORS:
        for section in entries(estimator).values():
            for name, (kind, description) in section.items():
                found[name, kind][description].append(estimator.__name__)
    return found


WORDINGS = wordings()
# Names whose copies are not equal yet.
PENDING = {
    *("batch_size", "cv", "epochs", "fixed_architecture", "fixed_hyperparameters", "members_"),
    *("n_features_in_", "n_jobs", "n_members", "n_parameters_", "n_trials", "population_size"),
    *("preprocess", "pretrained", "random_state", "refine", "refit", "selection", "selection_"),
    *("validation_fraction", "warm_start", "weights_"),
}
NAMES = [
    pytest.param(name, marks=pytest.mark.xfail(strict=False)) if name in PENDING else name
    for name in sorted({name for name, _ in WORDINGS})
]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_parameter_is_documented_in_the_same_words(name):
    for (other, kind), descriptions in WORDINGS.items():
        if other == name:
            assert len(descriptions) == 1, f"{name} : {kind} in {list(descriptions.values())}"


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.__name__)
def test_every_parameter_is_documented(estimator):
    documented = entries(estimator)
    parameters = documented["Parameters"]
    assert sorted(parameters) == sorted(inspect.signature(estimator).parameters)
    assert all(text for section in documented.values() for _, text in section.values())
