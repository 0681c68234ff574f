"""The trials of a search that another one goes on with, without a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from skuq.catalog._records import TrialRecord

__all__ = ["CatalogMemory"]


class CatalogMemory(contextlib.nullcontext):
    """As a `CatalogFolder` to a search: the trials there are; new ones are the search's to keep.

    Parameters
    ----------
    records : sequence of TrialRecord, default=()
    entropy : int, optional
        Of the search they are of.
    """

    path = None

    def __init__(self, records: Sequence[TrialRecord] = (), entropy: int | None = None):
        super().__init__(self)
        self.records, self.entropy = list(records), entropy

    def add(self, record: TrialRecord):
        """Nothing to do: the search has it."""
