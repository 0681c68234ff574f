"""What corruptions of images and of tables ask for alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

__all__ = ["check_severity", "resolve_kinds"]


def check_severity(severity) -> int:
    """A whole number from 0 to 5, or ValueError."""
    if not isinstance(severity, Integral) or not 0 <= severity <= 5:
        raise ValueError(
            "`severity` must be a whole number from 0 (no change) to 5 (most severe). "
            f"Got {severity!r}."
        )
    return int(severity)


def resolve_kinds(
    kind, known: Sequence[str], families: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Names of corruptions that `kind` stands for: a family's, those given, or the one given."""
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
