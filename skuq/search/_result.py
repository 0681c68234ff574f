"""What a search leaves: its catalog, and the predictions that ensembles are selected on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from skuq.catalog import Catalog, Member
from skuq.search._limits import RunOptions
from skuq.search._loop import run_trials
from skuq.search._proposers import FixedSequence

__all__ = ["CandidatePredictions", "SearchResult"]


class CandidatePredictions(NamedTuple):
    """Predictions of all completed trials for rows that ensembles are selected on.

    Attributes
    ----------
    raw : list of ndarray of shape (n, n_raw)
        Raw outputs, one array a trial.
    y : ndarray of shape (n, n_outputs)
        Standardised targets.
    weight : ndarray of shape (n,)
    groups : ndarray of shape (n,)
        Equal for versions of the same row in several sets.
    """

    raw: list[np.ndarray]
    y: np.ndarray
    weight: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, and the members refitted on all rows.

    Attributes
    ----------
    catalog : Catalog
    refitted : dict of int to Member
        By position in the catalog.
    """

    catalog: Catalog
    refitted: dict[int, Member] = field(default_factory=dict)

    @property
    def sets(self) -> list[tuple[slice, np.ndarray, np.ndarray]]:
        """All held-out sets: the clean rows first, then each shifted set."""
        assert self.catalog.held_out is not None
        return self.catalog.held_out.sets

    @property
    def selection_sets(self) -> list[tuple[slice, np.ndarray, np.ndarray]]:
        """The sets that the ensemble is selected on: the shifted ones, if there are any."""
        clean, *shifted = self.sets
        return shifted or [clean]

    def candidate_predictions(
        self, sets: Sequence[tuple[slice, np.ndarray, np.ndarray]] | None = None
    ) -> CandidatePredictions:
        """Collect what the trials predict for some of the held-out sets.

        Each set counts the same. Sets are often versions of the same rows, in the same order:
        rows of one position are a group.

        Parameters
        ----------
        sets : list, optional
            By default the `selection_sets`.
        """
        self.check_complete()
        sets = self.selection_sets if sets is None else sets
        members = [self.catalog.member(k) for k in self.catalog.completed]
        raw = [np.concatenate([_held_out(m)[part] for part, _, _ in sets]) for m in members]
        y = np.concatenate([y for _, y, _ in sets]).astype("float64")
        weight = np.concatenate([weight / weight.sum() for _, _, weight in sets])
        return CandidatePredictions(
            raw, y, weight, np.concatenate([np.arange(len(y)) for _, y, _ in sets])
        )

    def check_complete(self) -> None:
        """Raise ValueError if the networks outside the ensemble are gone, as in a pickle."""
        members = [self.catalog.member(k) for k in self.catalog.completed]
        if any(network.weights is None for member in members for network in member.networks):
            raise ValueError(
                "The catalog has lost the networks that are not in the ensemble: pickling keeps "
                "the members only. Do this before pickling, or fit again."
            )

    def members(self, selection: Any) -> tuple[tuple[Member, ...], np.ndarray]:
        """Networks of a selection and their weights: one a trial, or those of its folds.

        Parameters
        ----------
        selection : skuq.ensembles.Selection
        """
        own = self.catalog.member
        trials = [
            (self.refitted[k],) if k in self.refitted else own(k).networks
            for k in selection.indices
        ]
        counts = [len(networks) for networks in trials]
        weights = np.repeat(selection.weights / counts, counts)
        return tuple(network for networks in trials for network in networks), weights

    def keep_arrays_of(self, indices: Sequence[int]) -> SearchResult:
        """Copy the result; only these trials keep their arrays, unless they are refitted."""
        kept = [k for k in indices if k not in self.refitted]
        return replace(self, catalog=self.catalog.keep_arrays_of(kept))

    def refit(
        self,
        indices: Sequence[int],
        make_evaluate: Callable[[list[Any]], Callable[..., Any]],
        entropy: int,
        options: RunOptions,
    ) -> SearchResult:
        """Train the networks of some trials again, on all rows.

        Whatever goes wrong, the search is not lost: trials whose refit fails keep their
        networks, with a warning.

        Parameters
        ----------
        indices : sequence of int
            Positions of the trials in the catalog.
        make_evaluate : callable
            ``make_evaluate(records)`` returns an evaluation of ``{"trial": trial_number}``.
        entropy : int
        options : RunOptions
        """
        records = [self.catalog[k] for k in indices]
        proposer = FixedSequence([{"trial": record.trial_number} for record in records])
        finished: list[Any] = []
        reason = ""
        try:
            evaluate = make_evaluate(records)
            finished = run_trials(evaluate, proposer, len(records), entropy, options=options)
        except (Exception, KeyboardInterrupt) as error:
            reason = f"{type(error).__name__}: {error}"
        members = {r.configuration["trial"]: r.result for r in finished if r.completed}
        if len(members) < len(records):
            failures = (r.message for r in finished if not r.completed)
            reason = reason or next(failures, "interrupted")
            warnings.warn(
                f"{len(records) - len(members)} of {len(records)} networks could not be refitted "
                f"on all rows: those of the search stand in for them ({reason}).",
                stacklevel=4,
            )
        positions = {record.trial_number: k for k, record in enumerate(self.catalog)}
        refitted = {positions[number]: member for number, member in members.items()}
        return replace(self, refitted=refitted)


def _held_out(member: Any) -> np.ndarray:
    """A completed trial's predictions of the held-out rows."""
    return np.asarray(member.held_out)
