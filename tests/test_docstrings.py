"""Parameters and attributes of the same name are documented in the same words, in one order.

Sentences after the first, defaults, and words where the type differs, may be an estimator's own.
"""

import inspect
import re
from collections import defaultdict
from difflib import SequenceMatcher
from itertools import combinations

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


@pytest.mark.parametrize("name", sorted({name for name, _ in WORDINGS}))
def test_the_same_parameter_is_documented_in_the_same_words(name):
    for (other, kind), descriptions in WORDINGS.items():
        if other != name:
            continue
        first = {description.split(". ")[0].rstrip(".") for description in descriptions}
        assert len(first) == 1, f"{name} : {kind} in {list(descriptions.values())}"
        # A sentence is the same, or another one: copies that drift apart stay similar.
        sentences = sorted({s for text in descriptions for s in re.split(r"(?<=\.) ", text)})
        for one, two in combinations(sentences, 2):
            assert SequenceMatcher(None, one, two).ratio() < 0.8, f"{name}: {one!r} or {two!r}?"


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.__name__)
def test_every_parameter_is_documented(estimator):
    documented = entries(estimator)
    parameters = documented["Parameters"]
    assert list(parameters) == list(inspect.signature(estimator).parameters)
    assert all(text for section in documented.values() for _, text in section.values())


def test_estimators_list_their_parameters_in_one_order():
    pairs = set()
    for estimator in ESTIMATORS:
        parameters = inspect.signature(estimator).parameters.values()
        pairs |= set(combinations([p.name for p in parameters if p.kind == p.KEYWORD_ONLY], 2))
    assert sorted(pair for pair in pairs if pair[::-1] in pairs) == []
