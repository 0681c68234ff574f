"""What a search leaves: its catalog, and the predictions that ensembles are selected on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from skuq.catalog import Catalog, Member


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
        raw = [
            np.concatenate([np.asarray(m.held_out)[part] for part, _, _ in sets]) for m in members
        ]
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
