"""The trials of a search that the next `fit` may go on with, without a folder."""

from __future__ import annotations

import contextlib

from skuq.catalog._records import TrialRecord
from skuq.exceptions import CatalogMismatchError

__all__ = ["CatalogMemory"]


class CatalogMemory(contextlib.nullcontext):
    """To a search the same as a `CatalogFolder`, for as long as the process lives.

    Parameters
    ----------
    parts : dict
        What the search is, as of a `CatalogFolder`.
    objects : dict
        Those of its settings that are objects or functions. In a folder they are known by what
        they say of themselves; here they have to be the same ones.

    Attributes
    ----------
    records : list of TrialRecord
        In the order in which they finished.
    entropy : int or None
        Of the search; None before its first trial.
    """

    path = None

    def __init__(self, parts: dict, objects: dict):
        super().__init__(self)
        self.parts, self.objects = parts, objects
        self.records, self.entropy, self._space = [], None, None

    def differences(self, parts: dict, objects: dict) -> list[str]:
        """Names of what another search has otherwise."""
        names = {*parts, *self.parts}
        changed = {name for name in names if self.parts.get(name) != parts.get(name)}
        changed |= {name for name, own in objects.items() if self.objects.get(name) is not own}
        return sorted(changed)

    def begin(self, entropy: int, space: dict, held_out, front):
        """Say what is searched; the decisions must be those of an earlier search.

        Raises
        ------
        CatalogMismatchError
            If they are others.
        """
        if self._space not in (None, space):
            names = sorted({*self._space, *space})
            changed = [name for name in names if self._space.get(name) != space.get(name)]
            raise CatalogMismatchError(
                f"The trials in memory are of another search space: {changed} differ. Set "
                "warm_start=False for a new search."
            )
        self.entropy, self._space = entropy, space

    def add(self, record: TrialRecord):
        """Keep a trial."""
        self.records.append(record)
