"""Errors and warnings that are skuq's own."""

__all__ = ["SearchFailedError", "SearchSpaceError", "SmallValidationWarning"]


class SearchSpaceError(ValueError):
    """A search space cannot be used: it raises, or returns no usable network."""


class SearchFailedError(RuntimeError):
    """A search ended without a single usable member.

    Attributes
    ----------
    records : tuple of TrialRecord
        Every trial that was run, each with the reason of its failure.
    """

    def __init__(self, message, records=()):
        super().__init__(message)
        self.records = tuple(records)

    def __reduce__(self):
        return type(self), (self.args[0], self.records)


class SmallValidationWarning(UserWarning):
    """Members are chosen on so few rows that the choice is mostly chance."""
