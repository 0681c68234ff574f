"""The page on the architecture names the existing packages and modules."""

import importlib
import re
from pathlib import Path

from test_layout import RANKS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_that_the_page_names_exists():
    named = set(re.findall(r"`((?:skuq|docs|tests)/[\w/.]+)`", PAGE))
    assert len(named) > 10 and [name for name in named if not (ROOT / name).exists()] == []


def test_the_nouns_are_where_the_page_says():
    rows = re.findall(r"(?m)^\| (`[A-Z].*?) \| `(skuq/[\w/.*]+)`[^|]*\|", PAGE)
    assert len(rows) > 17
    for nouns, home in rows:
        module = importlib.import_module(
            re.sub(r"/[^/]*\*.*|\.py$", "", home).strip("/").replace("/", ".")
        )
        for noun in re.findall(r"`([A-Za-z_]+)`", nouns):
            if not hasattr(module, noun):  # a protocol or base, defined in a file of the package
                files = Path(module.__file__).parent.glob("*.py")
                is_defined = re.compile(rf"(?m)^(class|def) {noun}\b").search
                assert any(is_defined(file.read_text()) for file in files), noun


def test_the_ranks_are_those_of_the_layout():
    rows = re.findall(r"(?m)^\| (\d) \| (.*?) \|", PAGE)
    packages = {name: int(n) for n, names in rows for name in re.findall(r"`([a-z_]+)`", names)}
    assert {name: n for name, n in packages.items() if name in RANKS} == RANKS
