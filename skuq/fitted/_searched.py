"""Fitted searches: the trials, the ensembles that are chosen among them, and the one that predicts.

`EnsembleRule` chooses an ensemble from the trials' predictions of held-out rows, and calibrates it
on the same rows. `FittedSearch` is the record that predicts, and chooses again without training.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from operator import attrgetter
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from skuq.ensembles import Selection, SelectionRule, TopSelection
from skuq.ensembles._rules import Candidates
from skuq.ensembles._selection import check_selection
from skuq.ensembles._stacking import AVERAGING_FACTOR
from skuq.files._registry import make_read_only, saved_as, saved_record
from skuq.fitted._ensemble import Fitted, FittedEnsemble
from skuq.networks import Member
from skuq.predictive._calibration import UNCALIBRATED, Calibration, fit_calibration
from skuq.search import SearchResult, TrialRecord
from skuq.search._folder import with_decisions
from skuq.tables._repeats import number_rows
from skuq.training import predict_members

_MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more


@saved_as("fitted.Choice")
class Choice(NamedTuple):
    """An ensemble of trials, and its calibration."""

    selection: Selection
    calibration: Calibration


@dataclass(frozen=True)
class EnsembleRule:
    """How an ensemble is chosen among trials and calibrated.

    Attributes
    ----------
    selection : SelectionRule
        Rule that selects the members.
    n_members : int
        Number of members asked for.
    calibrates : bool
        Whether to calibrate. Without, the members predict alone.
    refits : bool
        Whether one network refitted on all rows will predict for each trial, also with folds; or,
        more generally, as many networks of each as have predicted the rows to choose on.
    """

    selection: SelectionRule
    n_members: int
    calibrates: bool = True
    refits: bool = False

    def choose(self, candidates: Candidates, positions: np.ndarray) -> Choice:
        """Choose among candidates, which are the trials at these positions of the catalog."""
        found = self.selection.choose(candidates, self.n_members)
        found = check_selection(found, len(candidates))
        calibration = self.calibrate(found, candidates)
        path = tuple((int(positions[k]), loss) for k, loss in found.path)
        return Choice(replace(found, indices=positions[found.indices], path=path), calibration)

    def calibrate(self, selection: Selection, candidates: Candidates) -> Calibration:
        """Learn the calibration of an ensemble of candidates.

        Without folds there is none, because the rows of a single split are few and were used to
        stop the training of all members. Classes are calibrated by a thousand of them. Outputs are
        correlated in any case, which does not change any of them.
        """
        if not candidates.classifies:
            found = _calibrate_numbers(selection, candidates) if self.calibrates else UNCALIBRATED
            return replace(found, correlation=candidates.fit_correlation(selection))
        if not self.calibrates or not candidates.calibrates:
            return UNCALIBRATED
        _, found = candidates.fit_class_mixture(selection.indices, weights=selection.weights)
        # One network of each trial has predicted a row, and the average of all will.
        if candidates.is_unseen and not self.refits:
            return replace(found, temperature=AVERAGING_FACTOR * found.temperature)
        return found


def _calibrate_numbers(selection: Selection, candidates: Candidates) -> Calibration:
    """Learn factor and share of an ensemble from its out-of-fold predictions."""
    if candidates.centers is None:
        return UNCALIBRATED
    weight: Any = candidates.sample_weight
    rows = np.flatnonzero(weight)  # folds that are not used hold rows of weight 0
    if len(rows) > _MOST_CALIBRATION_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
    raws = [candidates.raw[k][rows].astype("float64") for k in selection.indices]
    parts = [candidates.head.normals(raw[None]) for raw in raws]
    loc, scale, probability = (np.concatenate(arrays) for arrays in zip(*parts))
    # A row was left out by one network of each trial only, and all of them will predict new rows.
    # Means of single networks differ more between trials than means of all networks do: trials
    # get the differences of the latter, about the ensemble's mean of the former.
    means = (probability * loc).sum(axis=1)
    centers = np.stack([candidates.centers[k][rows] for k in selection.indices]).astype("float64")
    centers += np.tensordot(selection.weights, means - centers, 1)
    loc += (centers - means)[:, None]
    unseen = np.ones((len(raws), len(rows)), dtype=bool)
    return fit_calibration(
        loc, scale, probability, selection.weights, unseen, candidates.y[rows], weight[rows]
    )


def without_networks(inputs: Any, targets: Any) -> FittedEnsemble:
    """Make an ensemble of no networks, with the scales of X and y."""
    return FittedEnsemble(inputs, targets, (), np.empty(0))


@saved_record("fitted.FittedSearch", brief=True)
class FittedSearch(Fitted):
    """The trials of a search, and the ensemble of them that predicts.

    Attributes
    ----------
    empty : FittedEnsemble
        Scales of X and y, and what `finish` has added, without networks.
    trials : SearchResult
        All trials, with their refits.
    choice : Choice
        The ensemble that predicts.
    choices : tuple of Choice
        The ensemble for each held-out set: the clean rows, then those of shifted data.
    is_plain : bool
        Whether the members predict alone, without what `finish` has added.
    """

    empty: FittedEnsemble
    trials: SearchResult
    choice: Choice
    choices: tuple[Choice, ...]
    is_plain: bool = False

    @classmethod
    def of_trials(cls, empty: FittedEnsemble, trials: SearchResult, rule: EnsembleRule) -> Self:
        """Choose an ensemble for each held-out set, and the one that predicts."""
        head, positions = empty.targets.head, trials.catalog.completed
        choices = [rule.choose(trials.candidates(head, [part]), positions) for part in trials.sets]
        choice = choices[-1]
        # With several shifted sets, the ensemble that predicts is chosen on the rows of all of
        # them. With one or none it is the last one above.
        if len(trials.sets) > 2:
            choice = rule.choose(trials.candidates(head), positions)
        return cls(empty, trials, choice, tuple(choices), not rule.calibrates)

    # ------------------------------------------------------------------------------ prediction

    @functools.cached_property
    def ensemble(self) -> FittedEnsemble:
        """The ensemble that predicts."""
        members, weights = self.trials.members(self.choice.selection)
        make_read_only(weights)
        empty = without_networks(self.inputs, self.targets) if self.is_plain else self.empty
        return replace(empty, members=members, weights=weights, calibration=self.choice.calibration)

    # Not annotated: these are no fields.
    inputs = property(attrgetter("empty.inputs"))
    targets = property(attrgetter("empty.targets"))
    members = property(attrgetter("ensemble.members"))
    weights = property(attrgetter("ensemble.weights"))
    far = property(attrgetter("ensemble.far"))
    catalog = property(attrgetter("trials.catalog"))

    # The ensemble predicts.
    encode = property(attrgetter("ensemble.encode"))
    distribution_of_encoded = property(attrgetter("ensemble.distribution_of_encoded"))
    predict_mean = property(attrgetter("ensemble.predict_mean"))
    n_numbers = property(attrgetter("ensemble.n_numbers"))
    posterior = property(attrgetter("ensemble.posterior"))
    to_keras = property(attrgetter("ensemble.to_keras"))

    # ------------------------------------------------------------------------- other ensembles

    def finish(self, add: Callable[[FittedEnsemble], FittedEnsemble]) -> Self:
        """Return the search with what ``add(ensemble)`` learns from the ensemble that predicts."""
        found = add(self.ensemble)
        empty = replace(found, members=(), weights=np.empty(0), calibration=UNCALIBRATED)
        return replace(self, empty=empty)

    def select(self, rule: EnsembleRule, candidates: Candidates | None = None) -> Self:
        """Choose another ensemble, by the held-out rows or by other rows' `candidates`.

        Refits are given up, because other trials have none. Raise ValueError if the networks
        outside of the ensemble are gone, as in a pickle.
        """
        trials, positions = replace(self.trials, refitted={}), self.catalog.completed
        trials.check_complete()
        if candidates is None:
            candidates = trials.candidates(self.targets.head)
        choice = rule.choose(candidates, positions)
        return replace(self, trials=trials, choice=choice, is_plain=not rule.calibrates)

    def at(self, severity: int) -> Self:
        """Return the search with the ensemble of one held-out set; ValueError if there is none."""
        n_sets = len(self.choices)
        if not isinstance(severity, Integral) or not 0 <= severity < n_sets:
            among = f"in 0..{n_sets - 1}" if n_sets > 1 else "0, as `fit` got no `shift_validation`"
            raise ValueError(f"`severity` must be an integer {among}. Got {severity!r}.")
        return replace(self, choice=self.choices[severity])

    def of_one_trial(self, index: int, *, as_searched: bool = False) -> Self:
        """Return the search with one trial as its ensemble.

        `as_searched` leaves out refits and what `finish` has added.
        """
        # The calibration is only valid for the whole ensemble, apart from the outputs' correlation.
        calibration = Calibration(correlation=self.choice.calibration.correlation)
        choice = Choice(Selection(np.array([index]), np.ones(1)), calibration)
        alone = replace(self, choice=choice, choices=(choice,) * len(self.choices))
        if not as_searched:
            return alone
        return replace(alone, trials=SearchResult(self.catalog), is_plain=True)

    # ---------------------------------------------------------------------------------- trials

    def predict_trials(
        self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, refits: bool
    ) -> Candidates:
        """Predict further standardised rows with every completed trial.

        `refits` predicts with refitted networks in place of those of the search.
        """
        self.trials.check_complete()
        head = self.targets.head
        trials = self.trials if refits else replace(self.trials, refitted={})
        raws = [_predict_mixture(trials.networks(k), x, head) for k in self.catalog.completed]
        groups = number_rows(x, np.arange(len(x)))
        found = Candidates(raws, y, head, weight, is_unseen=True, calibrates=True, groups=groups)
        return found if found.classifies else replace(found, centers=list(found.loc))

    def best_trial(self, loss: str, severity: int | None = None) -> TrialRecord:
        """Find the best single trial by a loss, on one held-out set or on those of the choice."""
        sets = None
        if severity is not None:
            self.at(severity)  # raises if there is no such set
            sets = [self.trials.sets[severity]]
        candidates = self.trials.candidates(self.targets.head, sets)
        best = int(TopSelection(loss).choose(candidates, 1).indices[0])
        return self.catalog[int(self.catalog.completed[best])]

    def leaderboard(self, candidates: Candidates | None = None) -> pd.DataFrame:
        """Tabulate the trials from the best on, by their scores or those of `candidates`."""
        selection, catalog = self.choice.selection, self.catalog
        weights = dict(zip(selection.indices.tolist(), selection.weights.tolist()))
        scores: dict[int, float] | None = None
        if candidates is not None:
            scores = dict(zip(catalog.completed.tolist(), _mean_scores(candidates)))
        rows = []
        for k, record in enumerate(catalog):
            networks = self.trials.networks(k) if record.completed else ()
            row = {
                "trial": record.trial_number,
                "status": record.status,
                "score": record.score,
                **({} if scores is None else {"new_score": scores.get(k, np.nan)}),
                "weight": weights.get(k, 0.0),
                "seconds": record.seconds,
                "share": record.share,
                "n_networks": len(networks),
                "n_weights": sum(np.nan if n.weights is None else n.n_weights for n in networks),
                "message": record.message,
            }
            rows.append(with_decisions(row, record.configuration))
        frame = pd.DataFrame(rows)
        messages = frame.pop("message")
        if messages.any():
            frame["message"] = messages  # the last column
        # Failed trials, whose score is NaN, come last.
        score = "score" if scores is None else "new_score"
        return frame.sort_values(score, kind="stable", ignore_index=True)

    @property
    def chosen_trials(self) -> np.ndarray:
        """Positions of the trials that are in any of the ensembles."""
        choices = [self.choice, *self.choices]
        return np.unique(np.concatenate([choice.selection.indices for choice in choices]))

    def members_only(self) -> Self:
        """Return the search as files hold it: with the arrays of members only, each once."""
        # Refits have arrays of their own.
        kept = [k for k in self.chosen_trials if k not in self.trials.refitted]
        return replace(self, trials=replace(self.trials, catalog=self.catalog.keep_arrays_of(kept)))


def _predict_mixture(networks: Sequence[Member], x: np.ndarray, head: Any) -> np.ndarray:
    """Predict raw outputs (n, n_raw) that stand for the mixture of a trial's networks."""
    raw = predict_members(networks, x, cache=False)
    return raw[0] if len(raw) == 1 else head.pooled(raw)


def _mean_scores(candidates: Candidates) -> list[float]:
    head, y, weight = candidates.head, candidates.y, candidates.sample_weight
    scores = (head.scores(y, raw.astype("float64")) for raw in candidates.raw)
    return [float(np.average(score, weights=weight)) for score in scores]
