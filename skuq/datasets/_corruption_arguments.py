"""Checks of the arguments that corruptions of images and of tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any


def check_severity(severity: Any) -> int:
    """Return a whole number from 0 to 5, or raise ValueError."""
    if not isinstance(severity, Integral) or not 0 <= int(severity) <= 5:
        raise ValueError(
            "`severity` must be a whole number from 0 (no change) to 5 (most severe). "
            f"Got {severity!r}."
        )
    return int(severity)


def resolve_kinds(
    kind, known: Sequence[str], families: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the names of the corruptions in `kind`: a family, several names or one name."""
    if isinstance(kind, str):
        names = tuple(families.get(kind, (kind,)))
    else:
        names = tuple(kind) if isinstance(kind, Iterable) else ()
    if not names or any(name not in known for name in names):
        raise ValueError(
            f"`kind` must be a family ({', '.join(map(repr, families))}), a corruption's name "
            f"({', '.join(map(repr, known))}) or a sequence of such names. Got {kind!r}."
        )
    return names
