"""Advice, with code, for columns of dates and of numbers as text. Loaded when there is one."""

from __future__ import annotations

import re
from typing import NamedTuple

import pandas as pd

_SHARE = 0.9  # share of texts of one kind; others may be words for a missing value
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = (
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
    r"|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{2}[/.]\d{2}[/.]\d{2}"
    rf"|(\d{{1,2}}[-. ]+)?{_MONTH}[-., ]+(\d{{1,2}}[., ]+)?\d{{4}}"
)
_DATE = rf"({_DAY})([T ]+{_CLOCK})?(Z|[-+]\d{{2}}:?\d{{2}})?"
# Number with groups of three digits, and a currency before or a unit behind it.
_QUANTITY = re.compile(
    r"(?P<minus>[-+]?)\s*(?P<currency>[A-Z]{0,3}[$¢£¥\u20a0-\u20cf]|[A-Z]{3}\b)?\s*"
    r"(?P<number>(?=[-+]?[.,]?\d)[-+]?(\d{1,3}(?P<group>[ ,.'\u00a0\u202f])(\d{3}(?P=group))*\d{3}"
    r"|\d+)?([.,]\d+)?)\s*(?P<unit>[^\d\s,;:.()+-]{0,8})"
)


class Advice(NamedTuple):
    """Two example texts of a column, and the code that converts it."""

    what: str
    examples: list[str]
    advice: str


def days_since(column: str, options: str = "") -> str:
    """Write code that converts dates to days."""
    return (
        f"(pandas.to_datetime({column}, utc=True{options}) - "
        'pandas.Timestamp("2000-01-01", tz="UTC")) / pandas.Timedelta("1D")'
    )


def advise_on_times(column: str, inferred: str) -> str:
    """Write code that converts a column of the type that pandas infers, of dates or times."""
    if inferred == "period":
        return days_since(f"pandas.PeriodIndex({column}).to_timestamp()")
    if inferred == "time":
        column = f'{column}.astype(str), errors="coerce"'
    elif not inferred.startswith("timedelta"):
        return days_since(column)
    return f'pandas.to_timedelta({column}) / pandas.Timedelta("1D")'


def advise_on_texts(texts: list[str], column: str) -> Advice | None:
    """Recognise dates, times and numbers among distinct texts; None if they are words.

    `column` is code for the column, from which the advice makes code that converts it.
    """
    enough = max(2, _SHARE * len(texts))
    times = [text for text in texts if re.fullmatch(_CLOCK, text)]
    if len(times) >= enough:
        days = days_since(f'"2000-01-01 " + {column}', ', errors="coerce", format="mixed"')
        return Advice("times", times, f"Convert them to numbers first, as {days} does.")
    dates = [text for text in texts if re.fullmatch(_DATE, text)]
    if len(dates) >= enough:
        return _advise_on_dates(dates, column)
    return _advise_on_numbers(texts, column, enough)


def _advise_on_dates(dates: list[str], column: str) -> Advice | None:
    """Advise how to convert dates; without code if the order of day and month is not clear."""
    parts = [m for date in dates if (m := re.match(r"(\d\d?)([-/.])(\d\d?)[-/.]", date))]
    no_month = [{int(m[k]) for m in parts} & set(range(13, 32)) for k in (1, 3)]
    # Days come first where points divide, and where the first number is no month.
    points = len(parts) == len(dates) and all(m[2] == "." for m in parts) and not no_month[1]
    day_first = points or bool(no_month[0])
    read = pd.to_datetime(
        pd.Series(dates), utc=True, errors="coerce", format="mixed", dayfirst=day_first
    )
    if read.notna().mean() < _SHARE:
        return None
    advice = "Convert them to numbers first, by pandas.to_datetime with their `format`."
    if not (day_first and (no_month[1] or len(parts) < len(dates))):
        k = read.first_valid_index()
        days = days_since(column, f', errors="coerce", format="mixed", dayfirst={day_first}')
        reading = f"It reads {dates[k]!r} as {read[k]:%d %B %Y}."
        advice = f"Convert them to numbers first, as {days} does. {reading}"
    return Advice("dates", dates, advice)


def _advise_on_numbers(texts: list[str], column: str, enough: float) -> Advice | None:
    """Advise how to convert numbers, if there are `enough` among distinct texts."""
    plain = pd.to_numeric(pd.Series(texts), errors="coerce").notna()
    code, what, examples = column, "numbers", [t for t, holds in zip(texts, plain) if holds]
    if len(examples) < enough:
        quantities = {text: m for text in texts if (m := _QUANTITY.fullmatch(text))}
        examples = list(quantities)
        units = {(match["currency"] or "") + match["unit"] for match in quantities.values()}
        # A letter behind a number, another one for each number, is a name such as 12B.
        few = len(examples) < 3 and not units <= {"", *"%‰°€$£¥"}
        if len(examples) < enough or len(units - {""}) > 1 or few:
            return None
        numbers = [match["number"] for match in quantities.values()]
        # A comma is decimal if another mark makes groups, if it leaves no three digits behind it,
        # or if it stands behind a zero.
        decimal = r"[.' \u00a0\u202f]\d{3},|^[-+]?(0?,\d+|\d*,(\d{1,2}|\d{4,}))$"
        is_decimal = any(re.search(decimal, number) for number in numbers)
        point, what = (",", "a decimal comma") if is_decimal else (".", "a unit or groups")
        code, what = (
            rf'{code}.str.replace(r"[^\d{point}+-]", "", regex=True)',
            f"numbers with {what}",
        )
        code += '.str.replace(",", ".")' if is_decimal else ""
    code = f'pandas.to_numeric({code}, errors="coerce")'
    return Advice(what, examples, f"If they are numbers, convert them first, as {code} does.")
