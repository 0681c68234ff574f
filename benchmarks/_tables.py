"""Helpers for tables: stored records, cells, and Markdown for docs/results/ or plain text."""

import json
from functools import cache

import numpy as np
from _stored import STORED, matches

TABLES = {}


def table(function):
    """Register a function that returns a table, under its name."""
    TABLES[function.__name__] = function
    return function


@cache
def stored(name):
    return json.loads((STORED / f"{name}.json").read_text())


def records(file, /, **key):
    """The stored records with these values."""
    return [r for r in stored(file) if matches(r, key)]


def values(rows, column):
    return np.array([row[column] for row in rows], float)


def number(value, digits=2):
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def significant(value, digits=3):
    """Format a number with `digits` significant digits."""
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".").replace("e-0", "e-")


def mean(numbers, digits=2, scale=1):
    return number(scale * np.mean(numbers), digits)


def mean_error(numbers, digits=3, scale=1):
    """Mean ± standard error; the mean alone of a single number."""
    numbers = scale * np.asarray(numbers, float)
    if len(numbers) == 1:
        return number(numbers[0], digits)
    error = numbers.std(ddof=1) / np.sqrt(len(numbers))
    return f"{number(numbers.mean(), digits)} ± {error:.{digits}f}"


def mean_interval(numbers, digits=2):
    """Mean ± half of the 95 % normal interval."""
    half = 1.96 * numbers.std(ddof=1) / np.sqrt(len(numbers))
    return f"{number(numbers.mean(), digits)} ± {half:.{digits}f}"


def bold_lowest(cells, numbers):
    """Cells of a column, with that of the lowest number in bold."""
    best = np.nanmin(numbers)
    return [f"**{cell}**" if n == best else cell for cell, n in zip(cells, numbers)]


def transposed(columns):
    return [list(row) for row in zip(*columns)]


def markdown(head, rows):
    """Write a table of Markdown; numbers do not break before their error."""
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def print_table(title, heads, rows, first=16):
    """Rows of texts; the first of each is its name."""
    print(f"\n{title}")
    widths = [max(map(len, texts)) + 2 for texts in zip(*(row[1:] for row in [heads, *rows]))]
    for name, *texts in [heads, *rows]:
        print(f"{name:{first}s}" + "".join(f"{t:>{w}s}" for t, w in zip(texts, widths)))
