"""Result of a search: its catalog, and the members trained after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skuq.catalog import Catalog, FoldedMember, Member
from skuq.ensembles import Candidates


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, and the members refitted on all rows.

    Attributes
    ----------
    catalog : Catalog
        All trials of the search.
    refitted : dict of int to Member
        Members refitted on all rows, by position in the catalog.
    repeated : dict of int to FoldedMember
        Trials that were trained again, on other folds or with other seeds, by position in the
        catalog. They have all of their networks, and the mixture of their held-out predictions.
    interrupted : bool
        Whether the search ended early, by an interrupt or because it lost its slots.

    Examples
    --------
    >>> from skuq.catalog import Catalog, TrialRecord
    >>> from skuq.search import SearchResult
    >>> result = SearchResult(Catalog([TrialRecord(0, {"units": 8}, score=0.4)]))
    >>> result.catalog, result.interrupted
    (<Catalog of 1 trials, 1 completed>, False)
    """

    catalog: Catalog
    refitted: dict[int, Member] = field(default_factory=dict)
    repeated: dict[int, FoldedMember] = field(default_factory=dict)
    interrupted: bool = False

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

    def candidates(
        self,
        head: Any,
        sets: Sequence[tuple[slice, np.ndarray, np.ndarray]] | None = None,
        indices: Sequence[int] | None = None,
    ) -> Candidates:
        """Collect the trials' predictions for some of the held-out sets.

        Each set has the same total weight. Sets are often versions of the same rows in the same
        order, so that rows with the same position form a group.

        Parameters
        ----------
        head : Head
            Head of the targets.
        sets : list, optional
            Sets to collect, by default the `selection_sets`.
        indices : sequence of int, optional
            Positions of trials, whose repeats are included. By default all completed trials,
            without repeats.
        """
        sets = self.selection_sets if sets is None else sets
        if indices is None:
            self.check_complete()
            members = [self.catalog.member(k) for k in self.catalog.completed]
        else:
            members = [self.member(k) for k in indices]
        raw = [
            np.concatenate([np.asarray(m.held_out)[part] for part, _, _ in sets]) for m in members
        ]
        y = np.concatenate([y for _, y, _ in sets]).astype("float64")
        weight = np.concatenate([weight / weight.sum() for _, _, weight in sets])
        groups = np.concatenate([np.arange(len(y)) for _, y, _ in sets])
        centers = [
            m.center for m in members if isinstance(m, FoldedMember) and m.center is not None
        ]
        is_known = len(self.sets) == 1 and len(centers) == len(members)
        return Candidates(raw, y, head, weight, groups, centers if is_known else None)

    def check_complete(self) -> None:
        """Raise ValueError if the networks outside the ensemble are gone, as in a pickle."""
        members = [self.catalog.member(k) for k in self.catalog.completed]
        if any(network.weights is None for member in members for network in member.networks):
            raise ValueError(
                "The catalog has lost the networks that are not in the ensemble, because "
                "pickling keeps the members only. Do this before pickling, or fit again."
            )

    def member(self, index: int) -> Member | FoldedMember:
        """Return the result of a completed trial, with its repeats."""
        return self.repeated.get(index) or self.catalog.member(index)

    def networks(self, index: int) -> tuple[Member, ...]:
        """Return the networks of a completed trial: the refitted one, or all with its repeats."""
        if index in self.refitted:
            return (self.refitted[index],)
        return self.member(index).networks

    def members(self, selection: Any) -> tuple[tuple[Member, ...], np.ndarray]:
        """Return the networks of a selection, and their weights.

        A trial has one network, or one for each fold, which share the trial's weight.

        Parameters
        ----------
        selection : skuq.ensembles.Selection
            Positions of trials in the catalog, and their weights.
        """
        trials = [self.networks(k) for k in selection.indices]
        counts = [len(networks) for networks in trials]
        weights = np.repeat(selection.weights / counts, counts)
        return tuple(network for networks in trials for network in networks), weights

    def keep_arrays_of(self, indices: Sequence[int]) -> SearchResult:
        """Copy the result, with arrays of these trials only, unless refitted or repeated."""
        kept = [k for k in indices if k not in self.refitted and k not in self.repeated]
        return replace(self, catalog=self.catalog.keep_arrays_of(kept))


def join_trials(trials: Sequence[Any], head: Any) -> FoldedMember:
    """Join several trainings of one configuration to one trial with all their networks.

    The held-out predictions have the moments of the equal mixture, and the score is the mean of
    the trainings' scores.
    """
    networks = [network for trial in trials for network in trial.networks]
    raws = np.stack([np.asarray(trial.held_out, dtype="float64") for trial in trials])
    raw, center = head.pooled(raws), None
    if all(getattr(trial, "center", None) is not None for trial in trials):
        centers = np.stack([trial.center for trial in trials])
        center, n = centers.mean(axis=0), centers.shape[1]
        # Variance of the mixture = mean of the variances + variance of the means. These are the
        # means of all networks; the means in `raws`, of one network each, differ more.
        mean, std = head.distribution(raws[:, :n])
        total = np.square(std).mean(axis=0) + centers.var(axis=0, dtype="float64")
        raw[:n] = head.raw_of(mean.mean(axis=0), np.sqrt(total))
    score = float(np.mean([trial.score for trial in trials]))
    networks = [network.with_held_out(None) for network in networks]
    return FoldedMember(tuple(networks), raw.astype("float32"), score, center)
