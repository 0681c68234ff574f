"""After a search: select ensembles, review them, train them again, and compare the trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from skuq._messages import warn_user
from skuq.ensembles import Selection, SelectionRule
from skuq.ensembles._rules import Candidates
from skuq.ensembles._selection import check_selection
from skuq.ensembles._stacking import AVERAGING_FACTOR
from skuq.estimators._task import Task, warn_if_worse_than_constant
from skuq.networks import Member
from skuq.predictive._calibration import UNCALIBRATED, Calibration
from skuq.predictive._learners import fit_out_of_bag
from skuq.search import Catalog, SearchResult
from skuq.search._loop import Retraining
from skuq.tables._inputs import read_validation_rows, warn_of_few_rows
from skuq.tables._splits import Splits, standardise_rows
from skuq.training import predict_members

# Share of their epochs for which networks have to be trained to count as trained.
_MIN_SHARE_TRAINED = 0.1
_MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more
_MOST_FAILURES = 0.25  # share of trials that may fail without a warning


def choose(
    estimator: Any, rule: SelectionRule, candidates: Candidates, catalog: Catalog
) -> tuple[Selection, Calibration]:
    """Select an ensemble of completed trials, and calibrate it on the same rows."""
    chosen = rule.choose(candidates, estimator.n_members)
    chosen = check_selection(chosen, len(candidates))
    calibration = _calibrate(estimator, chosen, candidates)
    positions = catalog.completed
    path = tuple((int(positions[k]), loss) for k, loss in chosen.path)
    return replace(chosen, indices=positions[chosen.indices], path=path), calibration


def _calibrate(estimator: Any, chosen: Selection, candidates: Candidates) -> Calibration:
    """Fit the calibration of the distribution of an ensemble of candidates.

    Without folds there is none, because the rows of a single split are few and were used to stop
    the training of all members. Classes are calibrated by a thousand of them.
    """
    if candidates.classifies:
        if not estimator.calibrate or not candidates.calibrates:
            return UNCALIBRATED
        _, found = candidates.fit_class_mixture(chosen.indices, weights=chosen.weights)
        if candidates.in_folds and not estimator.refit:  # one network of each predicts a row
            return replace(found, temperature=found.temperature * AVERAGING_FACTOR)
        return found
    if not estimator.calibrate or candidates.centers is None:
        return UNCALIBRATED
    rows = np.arange(len(candidates.y))
    if len(rows) > _MOST_CALIBRATION_ROWS:
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
    raws = [candidates.raw[k][rows].astype("float64") for k in chosen.indices]
    parts = [candidates.head.normals(raw[None]) for raw in raws]
    # Trials with fewer repeats have fewer components: fill up with some of no probability.
    most = max(loc.shape[1] for loc, _, _ in parts)
    loc, scale, probability = (
        np.concatenate(
            [
                np.pad(p, ((0, 0), (0, most - p.shape[1]), (0, 0), (0, 0)), constant_values=fill)
                for p in arrays
            ]
        )
        for arrays, fill in zip(zip(*parts), (0.0, 1.0, 0.0))
    )
    # Means of the networks that have not seen the row differ more between trials than those of
    # all networks of each trial, which predict: take the differences of the latter.
    means = (probability * loc).sum(axis=1)
    centers = np.stack([candidates.centers[k][rows] for k in chosen.indices]).astype("float64")
    centers += np.tensordot(chosen.weights, means - centers, 1)
    loc += (centers - means)[:, None]
    weight: Any = candidates.sample_weight
    unseen = np.ones((len(raws), len(rows)), dtype=bool)
    fitted = fit_out_of_bag(
        loc, scale, probability, chosen.weights, unseen, candidates.y[rows], weight[rows]
    )
    # Trials differ as much as their mean errs: the networks share no more than that.
    return replace(fitted, shared=0.0)


def choose_each(estimator: Any, rule: SelectionRule, result: SearchResult) -> dict[str, Any]:
    """Select an ensemble for each held-out set, and the one that predicts.

    Returns the fitted attributes that describe them, by name. An error that a user's selection
    raises gets the trials as its attribute `estimator`.
    """
    catalog, head = result.catalog, estimator.fitted_.targets.head
    try:
        chosen = [
            choose(estimator, rule, result.candidates(head, [part]), catalog)
            for part in result.sets
        ]
        selections, calibrations = zip(*chosen)
        selection, calibration = chosen[-1]
        # With several shifted sets, the ensemble that predicts is selected on the rows of all of
        # them. With one or none it is the last selection above.
        if len(result.sets) > 2:
            selection, calibration = choose(estimator, rule, result.candidates(head), catalog)
    except Exception as error:
        kept: Any = error
        kept.estimator = estimator._copy(catalog_=catalog, refitted_={}, repeated_={})
        error.add_note(
            "No trial is lost: the `estimator` of this exception (in an interactive session "
            "`sys.last_value.estimator`) holds them. Choose among them with another selection, "
            'for example `estimator.reselect(selection="top")`.'
        )
        raise
    return {
        "selections_": selections,
        "calibrations_": calibrations,
        "selection_": selection,
        "calibration_": calibration,
    }


def trials_to_keep(chosen: dict[str, Any]) -> np.ndarray:
    """List the positions of the trials that are in any selection."""
    selections = [chosen["selection_"], *chosen["selections_"]]
    return np.unique(np.concatenate([selection.indices for selection in selections]))


def make_retraining(
    estimator: Any, plan: Any, result: SearchResult, chosen: dict[str, Any]
) -> Retraining | None:
    """Describe the training after the search; None if there is none."""
    if estimator.refit:
        return Retraining("refit", result, trials_to_keep(chosen).tolist())
    if not plan.n_repeats:
        return None
    selection = chosen["selection_"]
    heaviest_first = np.argsort(-selection.weights, kind="stable")
    indices = selection.indices[heaviest_first].tolist()
    head = estimator.fitted_.targets.head
    return Retraining("repeat", result, indices, plan.n_repeats, head)


def recalibrate(estimator: Any, chosen: dict[str, Any], result: SearchResult) -> dict[str, Any]:
    """Calibrate with the networks of repeats, if there are any."""
    if not result.repeated or len(result.sets) > 1:
        return chosen
    selection = chosen["selection_"]
    candidates = result.candidates(estimator.fitted_.targets.head, indices=selection.indices)
    alone = replace(selection, indices=np.arange(len(selection)))
    calibration = _calibrate(estimator, alone, candidates)
    return {**chosen, "calibration_": calibration, "calibrations_": (calibration,)}


def warn_of_few_validation_rows(splits: Splits, shifted: Any) -> None:
    """Warn if members are chosen on few rows, clean or shifted."""
    n_shifted = sum(len(rows.used) for rows in shifted)
    if shifted and n_shifted < splits.n_valid:
        warn_of_few_rows(n_shifted, "More rows in `shift_validation` may help.")
        return
    advice = "Folds or a larger share as `validation`, or `validation_data`, may help."
    warn_of_few_rows(splits.n_valid, advice if splits.parts is None else "")


def warn_of_few_members(estimator: Any, rule: SelectionRule, n_members: int) -> None:
    """Warn if the ensemble has fewer members than epistemic uncertainty needs.

    Parameters
    ----------
    estimator : SearchEstimator
        Fitted, with the ensemble that predicts.
    rule : SelectionRule
        Rule that selected the ensemble, with the number of members that it should have at least.
    n_members : int
        Number of members asked for.
    """
    found, n = len(estimator.selection_), len(estimator.fitted_.members)
    wanted = min(rule.min_members, n_members)
    if found >= wanted and not n == 1 < n_members:
        return
    described, consequence = f"{found} members", ""
    if found == 1:
        value = "0" if n == 1 else f"that of {n} networks of one configuration"
        described, consequence = "1 member", f": its epistemic uncertainty is {value}"
    cause, advice = "no more trials succeeded", "Give the search more trials or more time."
    if len(estimator.catalog_.completed) > found:
        cause, advice = "`selection` chose no more", "Another `selection` may choose more."
        if wanted == 1:
            advice = "Set `selection__min_members=2`, which `reselect` takes, too."
    warn_user(f"The ensemble has {described}, as {cause}{consequence}. {advice}")


def warn_of_trials(estimator: Any, task: Task) -> None:
    """Warn of trials without a real part of their training, failed ones, and bad predictions."""
    catalog, selection, max_time = estimator.catalog_, estimator.selection_, estimator.max_time
    share = max(catalog[k].share for k in selection.indices)
    if share < _MIN_SHARE_TRAINED and not estimator.refitted_:  # `max_time` has cut them short
        warn_user(
            f"No network of the ensemble got more than {100 * share:.2g} % of its epochs "
            f"within max_time={max_time}. Most of a short first fit goes into loading and "
            "compiling, some seconds for each process. Give it more time."
        )
    # Some networks diverge, but many failures have another cause.
    failed = [record.message for record in catalog if record.failed]
    if len(failed) > _MOST_FAILURES * len(catalog):
        (message, count), *_ = Counter(failed).most_common(1)
        warn_user(
            f"{len(failed)} of {len(catalog)} trials failed, {count} of them with: "
            f"{message} `leaderboard` has the reasons."
        )
    rows, y, weight = catalog.held_out.sets[0]
    raw = np.stack([np.asarray(catalog[k].result.held_out)[rows] for k in selection.indices])
    parts = [(raw, selection.weights, y, weight)]
    fitted = estimator.fitted_
    warn_if_worse_than_constant(fitted.targets.head, fitted.calibration, task.data, parts)


def predict_candidates(
    estimator: Any, trials: Sequence[Sequence[Member]], X: Any, y: Any, sample_weight: Any
) -> Candidates:
    """Predict new rows with every completed trial.

    `trials` are the networks of each, whose mixture predicts.
    """
    inputs, targets = estimator.fitted_.inputs, estimator.fitted_.targets
    data = (X, y) if sample_weight is None else (X, y, sample_weight)
    rows = read_validation_rows(estimator, inputs, targets, data, "X, y")
    x, y, weight = standardise_rows(rows, inputs, targets)
    raws = [predict_members(networks, x, cache=False) for networks in trials]
    raws = [raw[0] if len(raw) == 1 else targets.head.pooled(raw) for raw in raws]
    candidates = Candidates(
        raws, y, targets.head, weight, np.arange(len(x)), is_unseen=True, calibrates=True
    )
    return (
        candidates if candidates.classifies else replace(candidates, centers=list(candidates.loc))
    )
