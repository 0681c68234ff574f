"""Write the tables of the results and entrance pages from what the benchmarks have stored.

    python benchmarks/results_tables.py

A table stands between ``<!-- begin: NAME ARGUMENTS -->`` and ``<!-- end -->``. NAME is a function
of ``benchmarks/tables_*.py``, which reads ``benchmarks/results/*.json`` and the published figures
of ``benchmarks/*published.py``. All else on the pages stays as it is. No benchmark is run.
``tests/test_site.py`` fails where a page differs from what this script writes.
"""

import re
from pathlib import Path

import tables_classes  # noqa: F401  # each registers its tables
import tables_functions  # noqa: F401
import tables_regression  # noqa: F401
import tables_speed  # noqa: F401
from tables import TABLES

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = sorted((DOCS / "results").glob("*.md"))
ENTRANCES = [DOCS / "index.md", DOCS.parent / "README.md", DOCS.parent / "paper" / "paper.md"]
PAGES = [*RESULTS, DOCS / "choosing.md", *ENTRANCES]
BLOCK = re.compile(r"<!-- begin: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def block(call):
    name, *arguments = call.split()
    return f"<!-- begin: {call} -->\n\n{TABLES[name](*arguments)}\n\n<!-- end -->"


def regenerated(text):
    """The text of a page with every table written anew."""
    return BLOCK.sub(lambda found: block(found[1]), text)


def main():
    for page in PAGES:
        page.write_text(regenerated(page.read_text()))


if __name__ == "__main__":
    main()
