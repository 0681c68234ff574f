"""Errors and warnings of skuq."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CalibrationWarning",
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
    """The cluster on which trials run is lost, so that running trials will never finish."""


class CalibrationWarning(UserWarning):
    """A calibration rests on too few rows, or on rows unlike those predicted."""


class SmallValidationWarning(UserWarning):
    """Members are selected on so few rows that the choice is mostly chance."""


class CatalogLockedError(RuntimeError):
    """The folder of a search is in use by another process or thread."""


class CatalogMismatchError(ValueError):
    """The folder of a search holds the trials of another one."""


class FileFormatError(ValueError):
    """A file is broken, was not written by skuq, or holds something that is never loaded."""


class FileVersionError(FileFormatError):
    """A file was written by a newer skuq."""


class UnsavableError(TypeError):
    """An object to be saved has a part without a safe form; the message names it."""


class MissingPartError(RuntimeError):
    """A part that was not saved is needed: give it to ``skuq.load(path, parts={...})``."""
