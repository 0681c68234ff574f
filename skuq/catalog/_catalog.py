"""Catalog of a search: all of its trials in the order of proposal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from skuq._utils._records import saved_as
from skuq.catalog._folder import find_search, read_search, read_trials
from skuq.catalog._records import FoldedMember, HeldOut, Member, TrialRecord


@saved_as("catalog.Catalog", kind="catalog")
class Catalog(Sequence[TrialRecord]):
    """A sequence of the trials of a search, sorted by trial number.

    Parameters
    ----------
    records : iterable of TrialRecord
        The trials, in any order.
    held_out : HeldOut, optional
        Validation rows that every member has predicted.

    Examples
    --------
    >>> from skuq.catalog import Catalog, TrialRecord
    >>> catalog = Catalog(
    ...     [
    ...         TrialRecord(1, {"units": 16}, score=0.4),
    ...         TrialRecord(0, {"units": 8}, status="failed", message="no network"),
    ...     ]
    ... )
    >>> catalog
    <Catalog of 2 trials, 1 completed>
    >>> catalog.to_frame()[["trial_number", "status", "score", "units"]]
       trial_number     status  score  units
    0             0     failed    NaN      8
    1             1  completed    0.4     16
    """

    def __init__(self, records: Iterable[TrialRecord], held_out: HeldOut | None = None):
        self.records = tuple(sorted(records, key=lambda record: record.trial_number))
        self.held_out = held_out

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Catalog:
        """Read the catalog of a search that was run with `catalog_dir`.

        Parameters
        ----------
        path : str or path
            The `catalog_dir`, or the folder of one search in it if it holds several. The search
            may still be running.

        Raises
        ------
        FileNotFoundError
            If the folder holds no search.
        ValueError
            If the folder holds several searches.
        FileFormatError
            If the description of the search is broken, or the file of a trial does not hold a
            trial. Damaged files of trials are skipped with a warning.
        """
        folder = find_search(path)
        search = read_search(folder)
        return cls((record for _, record in read_trials(folder, search)), search.held_out)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> TrialRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TrialRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> TrialRecord | tuple[TrialRecord, ...]:
        return self.records[index]

    def __repr__(self) -> str:
        n_completed = sum(record.completed for record in self.records)
        return f"<Catalog of {len(self)} trials, {n_completed} completed>"

    @property
    def completed(self) -> np.ndarray:
        """Positions of the completed trials."""
        return np.flatnonzero([record.completed for record in self.records])

    def member(self, index: int) -> Member | FoldedMember:
        """Return the member of one trial; with cross-validation it has several `networks`.

        Raises
        ------
        LookupError
            If the trial failed.
        """
        record = self.records[index]
        if not record.completed:
            raise LookupError(f"Trial {record.trial_number} has no member: {record.message}")
        result: Member | FoldedMember = record.result
        return result

    def to_frame(self) -> pd.DataFrame:
        """Tabulate the trials: status, score, time, share of training, configuration, message.

        A decision with the name of another column has ``decision_`` before it.
        """
        rows = []
        for record in self.records:
            member = record.result if record.completed else None
            row = {
                "trial_number": record.trial_number,
                "status": record.status,
                "score": record.score,
                "seconds": record.seconds,
                "share": record.share,
                "n_epochs": member.n_epochs if member else 0,
                "best_epoch": member.best_epoch if member else -1,
                "message": record.message,
            }
            rows.append(with_decisions(row, record.configuration))
        frame = pd.DataFrame(rows)
        if rows:
            frame["message"] = frame.pop("message")  # the last column
        return frame

    def keep_arrays_of(self, indices: npt.ArrayLike) -> Catalog:
        """Copy the catalog, with weights and held-out predictions of these trials only."""
        kept = set(np.asarray(indices).tolist())
        records = [
            record
            if index in kept or not record.completed
            else replace(record, result=record.result.without_arrays())
            for index, record in enumerate(self.records)
        ]
        return Catalog(records, self.held_out)


def with_decisions(row: dict[str, Any], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Add the decisions of a trial to its row of a table, under names that are not taken."""
    decisions = {f"decision_{k}" if k in row else k: v for k, v in configuration.items()}
    return {**row, **decisions}
