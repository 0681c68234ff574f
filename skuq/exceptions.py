"""Errors and warnings of skuq."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CalibrationWarning",
    "CatalogLockedError",
    "CatalogMismatchError",
    "FileFormatError",
    "MissingPartError",
    "SearchFailedError",
    "SearchSpaceError",
    "ShortTrainingWarning",
    "SlotsLostError",
    "SmallValidationWarning",
    "TableWarning",
    "UnsavableError",
]


class SearchSpaceError(ValueError):
    """A search space cannot be used: it raises, or returns no usable network.

    Examples
    --------
    >>> from skuq.exceptions import SearchSpaceError
    >>> issubclass(SearchSpaceError, ValueError)
    True
    """


class SearchFailedError(RuntimeError):
    """A search ended without a single usable member.

    Attributes
    ----------
    records : tuple of TrialRecord
        Every trial that was run, each with the reason of its failure.

    Examples
    --------
    >>> from skuq.exceptions import SearchFailedError
    >>> SearchFailedError("No trial succeeded.").records
    ()
    """

    def __init__(self, message: str, records: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.records)


class SlotsLostError(ConnectionError):
    """The cluster on which trials run is lost, so that running trials will never finish.

    Examples
    --------
    >>> from skuq.exceptions import SlotsLostError
    >>> issubclass(SlotsLostError, ConnectionError)
    True
    """


class CalibrationWarning(UserWarning):
    """A calibration rests on too few rows, or on rows unlike those predicted.

    Examples
    --------
    >>> import warnings
    >>> from skuq.exceptions import CalibrationWarning
    >>> warnings.filterwarnings("error", category=CalibrationWarning)
    """


class ShortTrainingWarning(UserWarning):
    """A limit of time left networks so few of their epochs that they are hardly trained.

    Examples
    --------
    >>> import warnings
    >>> from skuq.exceptions import ShortTrainingWarning
    >>> warnings.filterwarnings("error", category=ShortTrainingWarning)
    """


class SmallValidationWarning(UserWarning):
    """Members are selected on so few rows that the choice is mostly chance.

    Examples
    --------
    >>> import warnings
    >>> from skuq.exceptions import SmallValidationWarning
    >>> warnings.filterwarnings("ignore", category=SmallValidationWarning)
    """


class TableWarning(UserWarning):
    """X or y has a column or values that are probably not meant as they are read.

    Text that holds dates or numbers, categories or gaps that `fit` did not see, columns without a
    value, identifiers, and values far from all others are told by column.

    Examples
    --------
    >>> import warnings
    >>> from skuq.exceptions import TableWarning
    >>> warnings.filterwarnings("error", category=TableWarning)
    """


class CatalogLockedError(RuntimeError):
    """The folder of a search is in use by another process or thread.

    Examples
    --------
    >>> import tempfile
    >>> from skuq.search import CatalogFolder
    >>> from skuq.exceptions import CatalogLockedError
    >>> with tempfile.TemporaryDirectory() as folder, CatalogFolder(folder, {"data": "f00d"}):
    ...     try:
    ...         with CatalogFolder(folder, {"data": "f00d"}):
    ...             pass
    ...     except CatalogLockedError:
    ...         print("The search is running.")
    The search is running.
    """


class CatalogMismatchError(ValueError):
    """The folder of a search holds the trials of another one.

    Examples
    --------
    >>> from skuq.exceptions import CatalogMismatchError
    >>> issubclass(CatalogMismatchError, ValueError)
    True
    """


class FileFormatError(ValueError):
    """A file is broken, was not written by skuq, or holds something that is never loaded.

    Examples
    --------
    >>> from skuq.exceptions import FileFormatError
    >>> issubclass(FileFormatError, ValueError)
    True
    """


class UnsavableError(TypeError):
    """An object to be saved has a part without a safe form; the message names it.

    Examples
    --------
    >>> from skuq.exceptions import UnsavableError
    >>> issubclass(UnsavableError, TypeError)
    True
    """


class MissingPartError(RuntimeError):
    """A part that was not saved is needed: give it to ``skuq.load(path, parts={...})``.

    Examples
    --------
    >>> from skuq.exceptions import MissingPartError
    >>> issubclass(MissingPartError, RuntimeError)
    True
    """
