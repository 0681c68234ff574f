"""The tables of figures in the docs agree with the stored results of the benchmarks."""

import re

import pytest
from results_tables import BLOCK, ENTRANCES, PAGES, RESULTS, TABLES, block

TEXT = "\n".join(page.read_text() for page in PAGES)
GUIDES = [page for page in PAGES if page not in ENTRANCES]
SECTIONS = re.split(
    r"^(?=##? )", "\n".join(page.read_text() for page in GUIDES), flags=re.MULTILINE
)
LABELS = ("**Not stored.**", "**At `before-half`.**")
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
CODE = r"`[^`]*`"


def paragraphs(text):
    return [part for part in re.split(r"\n\s*\n", BLOCK.sub("", text)) if part.strip()]


def test_every_table_is_used_and_in_its_block():
    called = {call.split()[0] for call, _ in BLOCK.findall(TEXT)}
    assert called == set(TABLES)
    assert TEXT.count("<!-- ") == 2 * len(BLOCK.findall(TEXT))


def test_other_tables_of_the_results_are_labelled():
    parts = [part for page in RESULTS for part in paragraphs(page.read_text())]
    assert not [
        after
        for before, after in zip(parts, parts[1:])
        if after.startswith("|") and not before.startswith(LABELS)
    ]


@pytest.mark.parametrize("found", list(BLOCK.finditer(TEXT)), ids=lambda found: found[1])
def test_table_is_what_is_stored(found):
    assert found[0] == block(found[1]), "Run python benchmarks/results_tables.py."


def is_told(figure, numbers):
    """Say whether a number of the tables rounds to the figure, whose sign may be left out."""
    digits = len(figure.split(".")[1])
    signed = figure.startswith("-")
    told = (n if signed else abs(n) for n in numbers)
    return any(abs(n - float(figure)) <= 0.5 * 10**-digits + 1e-9 for n in told)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split("\n")[0])
def test_decimals_of_the_text_are_in_the_tables_of_the_section(section):
    tables = "\n".join(found[0] for found in BLOCK.finditer(section))
    numbers = [float(n) for n in re.findall(rf"(?<![\w.]){NUMBER}", tables)]
    stored = [p for p in paragraphs(section) if not p.startswith((*LABELS, "|"))]
    prose = re.sub(CODE, "", "\n".join(stored))
    figures = re.findall(r"(?<![\w.§-])-?\d+\.\d+(?!\.?\d)", prose)
    assert not [figure for figure in figures if not is_told(figure, numbers)]
