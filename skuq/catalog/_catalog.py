"""Every trial of a search, in the order of proposal, and what its members predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from skuq._registry import saved_as
from skuq.catalog._records import FoldedMember, Member, TrialRecord

__all__ = ["Catalog", "HeldOut"]


@saved_as("catalog.HeldOut")
@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows members are selected on, in units of the standardised y.

    With folds these are all rows: each was predicted by a network that was not trained on it.

    Attributes
    ----------
    rows : ndarray of shape (n_valid,) or None
        Their positions among the rows given to `fit`; None if they were given apart.
    y : ndarray of shape (n_valid, n_outputs)
    weight : ndarray of shape (n_valid,)
        Sample weights, with mean 1.
    shifted : tuple of HeldOut
        Further rows, from another distribution; members' predictions of them follow those of
        the rows above, set after set.
    """

    rows: np.ndarray | None
    y: np.ndarray
    weight: np.ndarray
    shifted: tuple[HeldOut, ...] = ()

    @property
    def sets(self) -> list[tuple[slice, np.ndarray, np.ndarray]]:
        """Of the rows and of each shifted set: where its predictions are, y and weight."""
        parts, start = [], 0
        for part in (self, *self.shifted):
            parts.append((slice(start, start + len(part.y)), part.y, part.weight))
            start += len(part.y)
        return parts


@saved_as("catalog.Catalog", kind="catalog")
class Catalog(Sequence):
    """A sequence of `TrialRecord`, sorted by trial number.

    Parameters
    ----------
    records : iterable of TrialRecord
    held_out : HeldOut, optional
        The validation rows on which every member has predicted.
    """

    def __init__(self, records: Iterable[TrialRecord], held_out: HeldOut | None = None):
        self.records = tuple(sorted(records, key=lambda record: record.trial_number))
        self.held_out = held_out

    @classmethod
    def load(cls, path) -> Catalog:
        """The catalog of a search in a folder, as `catalog_dir` keeps it.

        Parameters
        ----------
        path : path
            The `catalog_dir`, or the folder in it if it holds several searches. The search may
            still be going on.

        Raises
        ------
        FileNotFoundError
            If there is no search.
        ValueError
            If there are several.
        FileFormatError
            If what describes the search is broken, or a trial is none. Trials whose files are
            damaged are left out with a warning.
        """
        from skuq.catalog._folder import load_catalog

        return load_catalog(path)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]

    def __repr__(self):
        n_completed = sum(record.completed for record in self.records)
        return f"<Catalog of {len(self)} trials, {n_completed} completed>"

    @property
    def completed(self) -> np.ndarray:
        """Positions of the trials that gave a member."""
        return np.flatnonzero([record.completed for record in self.records])

    def member(self, index: int) -> Member | FoldedMember:
        """The member of one trial; its `networks` are several where folds were trained.

        Raises
        ------
        LookupError
            If the trial failed.
        """
        record = self.records[index]
        if not record.completed:
            raise LookupError(f"Trial {record.trial_number} has no member: {record.message}")
        return record.result

    def to_frame(self) -> pd.DataFrame:
        """One row a trial: status, score, seconds, configuration, message."""
        rows = []
        for record in self.records:
            member = record.result if record.completed else None
            rows.append(
                {
                    "trial_number": record.trial_number,
                    "status": record.status,
                    "score": record.score,
                    "seconds": record.seconds,
                    "n_epochs": member.n_epochs if member else 0,
                    "best_epoch": member.best_epoch if member else -1,
                    **record.configuration,
                    "message": record.message,
                }
            )
        return pd.DataFrame(rows)

    def keep_arrays_of(self, indices) -> Catalog:
        """A copy in which only these trials keep weights and held-out predictions."""
        kept = set(np.asarray(indices).tolist())
        records = [
            record
            if index in kept or not record.completed
            else replace(record, result=record.result.without_arrays())
            for index, record in enumerate(self.records)
        ]
        return Catalog(records, self.held_out)
