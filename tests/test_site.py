"""The pages: links lead somewhere; tables, figures and messages are what is stored or coded."""

import inspect
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import results_tables
from results_tables import BLOCK, PAGES, RESULTS, TABLES, block
from tables import rows
from tables_classes import ratios
from tables_regression import SIX, common_scores, timed

import skuq

ROOT = Path(__file__).parents[1]
ENTRANCES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
API = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
LISTED = set(re.findall(r"^   ([\w.]+)$", API, re.MULTILINE))
METHODS = [*sorted((ROOT / "docs" / "methods").glob("*.md")), ROOT / "docs" / "bayesopt.md"]


@pytest.mark.parametrize("name", ENTRANCES)
def test_local_links_lead_to_files(name):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / name).read_text())
    local = [link for link in links if not link.startswith("http")]
    assert local or name == "CHANGELOG.md"
    assert not [link for link in local if not (ROOT / link).exists()]


def test_figures_quoted_messages_and_public_names_are_those_stored_and_coded():
    section = (ROOT / "README.md").read_text().split("## How good is it?")[1].split("\n## ")[0]
    figures = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", section)
    tables = "\n".join(found[0] for found in BLOCK.finditer(TEXT))
    assert figures
    assert not [figure for figure in figures if not re.search(rf"(?<![\d.]){figure}(?!\d)", tables)]
    # The tables of troubles and warnings begin with what skuq says, "…" for what varies.
    source = "".join(path.read_text() for path in (ROOT / "skuq").rglob("*.py"))
    source = re.sub(r'"\n\s*f?"', "", source)  # strings go on in the next line
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quotes = re.findall(r'^\| (?:`\w+` \| )?"(.+?)" \|', page, re.MULTILINE)
    assert len(quotes) > 5
    pieces = [piece.strip() for quote in quotes for piece in re.split(r"…|\d+", quote)]
    assert not [piece for piece in pieces if piece not in source]
    packages = {name for name in skuq.__all__ if inspect.ismodule(getattr(skuq, name))}
    public = set(skuq.__all__) - packages
    for package in packages:
        public |= {f"{package}.{name}" for name in getattr(skuq, package).__all__}
    assert public == LISTED


def test_words_of_the_recommended_estimators_and_comparisons_are_those_of_results():
    """Check README, the front page and what beats them in choosing.md."""

    def nll(benchmark, problem, method):
        return np.mean([row["nll"] for row in rows(benchmark, problem, method)])

    for name in ("boston", "concrete", "energy", "wine", "yacht"):
        assert nll("baselines", name, "deep ensemble") < nll("baselines", name, "MC dropout")
    for name in ("electricity", "bank"):  # tested on later rows
        assert nll("classes", name, "boosting, temperature") < nll("classes", name, "tabular")
    for rival in ("ensemble", "rpn"):
        assert nll("operators", None, "neon") < nll("operators", None, rival)
    logs = timed().assign(ratio=lambda frame: np.log(frame["ratio"]))
    found = logs.groupby(["method", "kind"])["ratio"].agg(["mean", "median"])
    assert found.loc["three times", "numbers"]["mean"] == pytest.approx(np.log(0.99), abs=0.005)
    assert (found["median"].drop(("three times", "numbers")).abs() < 0.02).all()  # level
    assert "below that of the plain" in skuq.TabularEnsembleRegressor.__doc__
    assert "five of six sets" in skuq.TabularEnsembleRegressor.__doc__
    scores = [common_scores("regression", s, ("tabular", "plain"), "crps")[0] for s in SIX]
    assert sum(tabular.mean() < plain.mean() for tabular, plain in scores) == 5
    assert "on most tables" in skuq.TabularEnsembleClassifier.__doc__
    for part in ("suite", "few"):
        assert np.mean([ratio < 1 for ratio in ratios(part, "plain").values()]) > 0.6


@pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)
def test_methods_state_the_defaults_of_their_signatures(page):
    table = page.read_text().split("## Settings that matter")[1].split("\n## ")[0]
    name = re.search(r"\| of `([\w.]+)` \| default \|", table)[1]
    parameters = inspect.signature(attrgetter(name)(skuq)).parameters
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", table, re.MULTILINE)
    assert len(rows) >= 2
    shown = {key: text.replace('"', "'") for key, text in rows}
    assert {key: repr(parameters[key].default) for key in shown} == shown


TEXT = "\n".join(page.read_text() for page in PAGES)
GUIDES = "\n".join(page.read_text() for page in PAGES if page not in results_tables.ENTRANCES)
SECTIONS = re.split(r"(?m)^(?=##? )", GUIDES)
LABEL, NUMBER = "**At `before-half`.**", r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def paragraphs(text):
    return [part for part in re.split(r"\n\s*\n", BLOCK.sub("", text)) if part.strip()]


def test_every_table_is_in_its_block_or_labelled():
    called = {call.split()[0] for call, _ in BLOCK.findall(TEXT)}
    assert called == set(TABLES) and TEXT.count("<!-- ") == 2 * len(BLOCK.findall(TEXT))
    parts = [part for page in RESULTS for part in paragraphs(page.read_text())]
    assert not [
        after
        for before, after in zip(parts, parts[1:])
        if after.startswith("|") and not before.startswith(LABEL)
    ]


@pytest.mark.parametrize("found", list(BLOCK.finditer(TEXT)), ids=lambda found: found[1])
def test_table_is_what_is_stored(found):
    assert found[0] == block(found[1]), "Run python benchmarks/results_tables.py."


def is_told(figure, numbers):
    """Say whether a number of the tables rounds to the figure, whose sign may be left out."""
    digits, signed = len(figure.split(".")[1]), figure.startswith("-")
    told = (n if signed else abs(n) for n in numbers)
    return any(abs(n - float(figure)) <= 0.5 * 10**-digits + 1e-9 for n in told)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split("\n")[0])
def test_decimals_of_the_text_are_in_the_tables_of_the_section(section):
    tables = "\n".join(found[0] for found in BLOCK.finditer(section))
    numbers = [float(n) for n in re.findall(rf"(?<![\w.]){NUMBER}", tables)]
    stored = [p for p in paragraphs(section) if not p.startswith((LABEL, "|"))]
    prose = re.sub(r"`[^`]*`", "", "\n".join(stored))
    figures = re.findall(r"(?<![\w.§-])-?\d+\.\d+(?!\.?\d)", prose)
    assert not [figure for figure in figures if not is_told(figure, numbers)]
