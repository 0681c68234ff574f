"""Helpers for tables of the pages: stored rows, cells, and Markdown."""

from functools import cache

import numpy as np
import pandas as pd
from runner import STORED, read

TABLES = {}


def table(function):
    """Register a function that returns a table, under its name."""
    TABLES[function.__name__] = function
    return function


@cache
def stored(name):
    """All rows of a benchmark but for failures."""
    return [row for row in read(STORED / f"{name}.json") if "failed" not in row]


def rows(benchmark, problem=None, method=None):
    """The rows of a problem, a method or both."""
    wanted = {"problem": problem, "method": method}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    return [r for r in stored(benchmark) if all(r[k] == v for k, v in wanted.items())]


def by_seed(benchmark, problem, method):
    return {r["seed"]: r for r in rows(benchmark, problem, method)}


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


def mean(numbers, digits=2):
    return number(np.mean(numbers), digits)


def mean_error(numbers, digits=3):
    """Mean ± standard error; the mean alone of a single number."""
    numbers = np.asarray(numbers, float)
    if len(numbers) == 1:
        return number(numbers[0], digits)
    error = numbers.std(ddof=1) / np.sqrt(len(numbers))
    return f"{number(numbers.mean(), digits)} ± {error:.{digits}f}"


def mean_interval(numbers, digits=2):
    """Mean ± half of the 95 % normal interval."""
    half = 1.96 * numbers.std(ddof=1) / np.sqrt(len(numbers))
    return f"{number(numbers.mean(), digits)} ± {half:.{digits}f}"


def span(splits):
    """Splits as text: 0-4."""
    splits = sorted(splits)
    if splits == list(range(splits[0], splits[-1] + 1)) and len(splits) > 1:
        return f"{splits[0]}-{splits[-1]}"
    return ", ".join(map(str, splits))


def markdown(head, rows):
    """Write a table of texts; numbers do not break before their error."""
    text = pd.DataFrame(rows).to_markdown(index=False, headers=head, disable_numparse=True)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def cross(corner, down, across, cell, lowest=None):
    """A table of `cell(name, name)`, whose names have titles in `down` and `across`.

    With `lowest` ("down" or "across") cells are pairs of a text and a number, and the text of the
    lowest number of each column, or row, is bold.
    """
    texts = [[cell(d, a) for a in across] for d in down]
    if lowest is not None:
        numbers = np.array([[figure for _, figure in row] for row in texts], float)
        best = np.fmin.reduce(numbers, axis=0 if lowest == "down" else 1, keepdims=True)
        bold = numbers == best
        texts = [
            [f"**{text}**" if is_best else text for (text, _), is_best in zip(*row)]
            for row in zip(texts, bold)
        ]
    rows = [[title, *row] for title, row in zip(down.values(), texts)]
    return markdown([corner, *across.values()], rows)
