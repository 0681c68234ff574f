"""Errors and warnings that are skuq's own."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CatalogLockedError",
    "CatalogMismatchError",
    "FileFormatError",
    "FileVersionError",
    "MissingPartError",
    "SearchFailedError",
    "SearchSpaceError",
    "SlotsLostError",
    "SmallValidationWarning",
    "UnsavableError",
]


class SearchSpaceError(ValueError):
    """A search space cannot be used: it raises, or returns no usable network."""


class SearchFailedError(RuntimeError):
    """A search ended without a single usable member.

    Attributes
    ----------
    records : tuple of TrialRecord
        Every trial that was run, each with the reason of its failure.
    """

    def __init__(self, message: str, records: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.records)


class SlotsLostError(ConnectionError):
    """The cluster on which trials run is gone: none of those that run will ever finish."""


class SmallValidationWarning(UserWarning):
    """Members are chosen on so few rows that the choice is mostly chance."""


class CatalogLockedError(RuntimeError):
    """The folder of a search is in use by another process or thread."""


class CatalogMismatchError(ValueError):
    """The folder of a search holds the trials of another one."""


class FileFormatError(ValueError):
    """A file is broken, was not written by skuq, or asks for what loading never does."""


class FileVersionError(FileFormatError):
    """A file was written by a newer skuq."""


class UnsavableError(TypeError):
    """A part of what is to be saved has no safe form; the message names it."""


class MissingPartError(RuntimeError):
    """A part that was not saved is needed; give it to ``skuq.load(path, parts={...})``."""
