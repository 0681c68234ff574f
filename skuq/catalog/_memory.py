"""Keep the trials of a search in memory, for a later `fit` that continues it."""

from __future__ import annotations

from types import MethodType
from typing import Any

from skuq.catalog._records import HeldOut, TrialRecord
from skuq.exceptions import CatalogMismatchError


class CatalogMemory:
    """Store of a search's trials in memory, with the interface of `CatalogFolder`.

    `objects` are settings that are objects or functions. A folder compares their representations;
    here they must be identical objects.
    """

    path = None

    def __init__(self, parts: dict[str, Any], objects: dict[str, Any]):
        self.parts, self.objects = parts, objects
        self.records: list[TrialRecord] = []
        self.entropy: int | None = None
        self._space: dict[str, str] | None = None
        self._retrained: dict[str, list[TrialRecord]] = {}

    def __enter__(self) -> CatalogMemory:
        return self  # there is no folder to lock

    def __exit__(self, *exception: object) -> None:
        pass

    def differences(self, parts: dict[str, Any], objects: dict[str, Any]) -> list[str]:
        """List the names of parts and objects that differ in another search."""
        names = {*parts, *self.parts}
        changed = {name for name in names if self.parts.get(name) != parts.get(name)}
        changed |= {
            name for name, value in objects.items() if not _is_same(self.objects.get(name), value)
        }
        return sorted(changed)

    def begin(
        self, entropy: int, space: dict[str, str], held_out: HeldOut, estimator: bytes | None
    ) -> None:
        """Set the description of the search.

        Raises CatalogMismatchError if its decisions differ from those of existing trials.
        """
        if self._space is not None and self._space != space:
            names = sorted({*self._space, *space})
            changed = [name for name in names if self._space.get(name) != space.get(name)]
            raise CatalogMismatchError(
                f"The trials in memory are from another search space: {changed} differ. Set "
                "warm_start=False to start a new search."
            )
        self.entropy, self._space = entropy, space

    def add(self, record: TrialRecord) -> None:
        """Add a trial."""
        self.records.append(record)

    def retrained(self, name: str) -> list[TrialRecord]:
        """Return the records of one round of retraining, such as "repeat-000"."""
        return self._retrained.get(name, [])

    def add_retrained(self, name: str, record: TrialRecord) -> None:
        """Add a network of this round, with number and configuration of its trial."""
        self._retrained.setdefault(name, []).append(record)


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two objects are one; methods are if their objects are."""
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return one is other
