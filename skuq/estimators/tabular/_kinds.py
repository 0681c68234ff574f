"""Weigh the kinds of members of a tabular ensemble, and calibrate what they predict together.

Both are learnt from rows that members have not trained on.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from skuq import backend
from skuq._random import generator
from skuq.ensembles import _stacking
from skuq.estimators.methods import _one_architecture as shared
from skuq.estimators.tabular import _recipes as tuned
from skuq.estimators.tabular._preset import bind_space, class_recipes, held_out_share
from skuq.networks._space import Space
from skuq.networks._tabular_network import numeric_columns
from skuq.predictive._calibration import UNCALIBRATED, fit_calibration
from skuq.training import TrainingJob, predict_members


def weigh_members(task, members, origins, n_kinds):
    """Weigh the members of regressors on the rows that they hold out.

    Kinds are weighed by stacking: the members with the same split, one of each kind, are compared
    on their validation rows. Each member then counts inversely to the square of its mean absolute
    error, since with little noise some err several times as much as others. Errors also differ by
    chance: their logarithms are shrunk as the weights of stacking are, by 20 rows.
    """
    if not task.splits.validates:
        return np.full(len(members), 1 / len(members))
    head = task.targets.head
    kinds = np.array([origin.kind for origin in origins])
    counts, shares = np.bincount(kinds, minlength=n_kinds), np.full(n_kinds, 1 / n_kinds)
    by_split: dict = {}  # log likelihood of each validation row by split and kind, and weights
    errors, n_rows = np.zeros(len(members)), np.zeros(len(members))
    for k, (member, origin) in enumerate(zip(members, origins)):
        y, weight = task.data.y_valid, task.data.weight_valid
        if origin.part is not None and origin.part[1] is not None:
            y, weight = task.data.y[origin.part[1]], task.data.weight[origin.part[1]]
        weight = weight if weight.any() else np.ones_like(weight)  # all can underflow in float32
        raw = member.held_out.astype("float64")
        n_rows[k] = len(y)
        errors[k] = np.average(abs(y - head.means(raw)).mean(axis=-1), weights=weight) ** 2
        if n_kinds > 1:
            likelihoods, _ = by_split.setdefault(origin.split, ({}, weight))
            likelihoods[origin.kind] = head.log_likelihood(y, raw)
    # Splits in which a member diverged cannot be compared.
    complete = [found for found in by_split.values() if len(found[0]) == n_kinds]
    if complete:
        likelihoods = np.hstack([[found[k] for k in range(n_kinds)] for found, _ in complete])
        shares = _stacking.stack(likelihoods, np.concatenate([weight for _, weight in complete]))
    errors = np.maximum(errors, np.finfo(float).tiny) ** (n_rows / (n_rows + _stacking.PRIOR_ROWS))
    weights = (shares / np.maximum(counts, 1))[kinds] / errors
    return weights / weights.sum()


def mix_classes(task, members, origins):
    """Weigh the kinds of classifiers, and calibrate their mixture, on rows held out.

    This is stacking of predictive distributions (Yao et al. 2018), with the shares of the classes
    as a further kind. Members of a kind have equal weights. Return the weights of the members and
    the calibration.
    """
    data, targets = task.data, task.targets
    found, kinds = np.unique([origin.kind for origin in origins], return_inverse=True)
    counts, weights = np.bincount(kinds), np.full(len(found), 1 / len(found))
    if not task.splits.validates:
        return (weights / counts)[kinds], UNCALIBRATED
    in_folds, n_classes = task.splits.parts is not None, len(targets.classes)
    y, weight = (data.y, data.weight) if in_folds else (data.y_valid, data.weight_valid)
    # Average probabilities of each kind for the rows that its members have not seen.
    proba = np.zeros((len(found), len(y), n_classes))
    times = np.zeros((len(found), len(y)))
    for member, kind, (_, _, part) in zip(members, kinds, origins):
        rows = slice(None) if part is None or part[1] is None else part[1]
        raw = member.held_out[None].astype("float64")
        proba[kind, rows] += targets.head.probabilities(raw).mean(axis=0)
        times[kind, rows] += 1
    # Rows that a kind has no such prediction of are left out.
    used, calibration = times.all(axis=0) & (weight > 0), UNCALIBRATED
    if used.any() and weight[used].sum() > 0:
        proba = proba[:, used] / times[:, used, None]
        logits = np.log(np.maximum(proba, np.finfo(float).tiny))
        counted = np.bincount(data.y[:, 0].astype(int), data.weight, minlength=n_classes) + 0.5
        weight = weight[used].astype(float)
        weights, calibration = _stacking.fit_class_mixture(
            logits, y[used, 0].astype(int), weight, counted / counted.sum()
        )
        if in_folds and counts.max() > 1:  # one member of a kind predicts a row here, later all
            temperature = _stacking.AVERAGING_FACTOR * calibration.temperature
            calibration = replace(calibration, temperature=temperature)
        weights = _stacking.drop_light(weights)
    return (weights / counts)[kinds], calibration


def calibrate(task, members, weights, origins):
    """Fit the calibration on rows on which some members were not trained."""
    data = task.data
    # Each row is predicted by the members that have not trained on it.
    unseen = np.zeros((len(origins), len(data.x)), dtype=bool)
    for k, origin in enumerate(origins):
        unseen[k, origin.part[1]] = True
    rows = np.flatnonzero(unseen.any(axis=0))
    if len(rows) > tuned.MOST_CALIBRATION_ROWS:
        rng = generator(task.entropy, "calibration")
        rows = np.sort(rng.choice(rows, tuned.MOST_CALIBRATION_ROWS, replace=False))
    # By the members of each kind alone: those that share a split have all not seen the same rows,
    # and their mean would err less than the mean of all members may elsewhere.
    kinds = np.array([origin.kind for origin in origins])[:, None]
    unseen = np.concatenate([unseen[:, rows] & (kinds == k) for k in np.unique(kinds)], axis=1)
    times = unseen.shape[1] // len(rows)
    raw = predict_members(members, data.x[rows])
    normals = task.targets.head.normals(raw.astype("float64"))
    loc, scale, probability = (np.concatenate([part] * times, axis=2) for part in normals)
    rows = np.tile(rows, times)
    # Rows count as the members that predict them do: one that errs much hardly predicts new rows.
    share = weights @ unseen / np.maximum(unseen.sum(axis=0), 1)
    return fit_calibration(
        loc, scale, probability, weights, unseen, data.y[rows], data.weight[rows] * share
    )


class Origin(NamedTuple):
    """Origin of a member of an ensemble of several kinds: its kind of networks and its rows."""

    kind: int  # position of its kind of networks
    split: int  # number of its split of the rows, which it shares with one member of each kind
    part: Any  # its training and validation rows; None if all members have the same rows


def list_kinds(estimator, task, network):
    """List the kinds of networks, several for classes and mixtures, and the number of members."""
    decisions, n_members = network.decisions(), estimator.n_members
    is_auto = isinstance(n_members, str)
    if not is_classifier(estimator):
        n_members = tuned.N_MEMBERS if is_auto else n_members
        changes = tuned.MIXTURE_KINDS if estimator.loss == "gaussian-mixture" else ({},)
        kinds = [{**change, **decisions} for change in changes]
        return kinds[:n_members], n_members
    n_rows, validates = len(task.rows.used), task.validation or estimator.validation is not None
    # Decisions of the user hold for all networks.
    given = ("embedding", "frequency_scale") if "embedding" in decisions else ()
    columns, kinds = numeric_columns(task.rows.X, task.inputs.code_columns), []
    for recipe in class_recipes(n_rows, has_numbers=bool(columns)):
        recipe = {k: v for k, v in recipe.items() if k not in given} | decisions
        # Without validation nothing ends longer trainings in time.
        is_first = not kinds or recipe["epochs"] == kinds[0]["epochs"]
        if recipe not in kinds and (validates or is_first):
            kinds.append(recipe)
    if is_auto:
        return kinds, len(kinds) * (
            tuned.N_FOLDS if n_rows <= tuned.FEW_ROWS_OF_CLASSES else tuned.N_TENTHS
        )
    # Fewer members than kinds: the first kinds only.
    return kinds[:n_members], n_members


def split_rows(estimator, task, n_splits):
    """Split the rows for each of the members of a kind.

    Classifiers validate on folds, of few rows on all of them, so that every row is out of the bag
    once. Others hold out a share for each member.
    """
    validation, n_rows = estimator.validation, len(task.rows.used)
    if not isinstance(validation, str):
        return task.split(validation, n_members=n_splits)
    share, n_units = held_out_share(n_rows), task.n_units
    if is_classifier(estimator) and task.validation is None and n_units >= tuned.FEWEST_FOLDED:
        n_folds = min(
            tuned.N_FOLDS if n_rows <= tuned.FEW_ROWS_OF_CLASSES else round(1 / share), n_units
        )
        # More members than folds have further folds, drawn anew.
        repeats = range(math.ceil(n_splits / n_folds))
        with contextlib.suppress(ValueError):  # no class has rows in two folds
            splits = [task.make_splits(n_folds, repeat=repeat) for repeat in repeats]
            parts = [part for found in splits for part in found.parts][:n_splits]
            return task.with_splits(replace(splits[0], parts=parts))
    return task.split(share, n_members=n_splits)


def train_kinds(estimator, task, network, kinds, given, n_members):
    """Train all members, and list their origins; members of all kinds train at the same time."""
    parts = task.splits.parts
    data, padded = shared.pad_parts(task, parts)
    # Members of all kinds are numbered in turn; seeds go by these numbers.
    seeds = [task.seeds(n_members)[kind :: len(kinds)] for kind in range(len(kinds))]
    origins = [
        Origin(kind, k, parts and parts[k])
        for kind, own in enumerate(seeds)
        for k in range(len(own))
    ]
    jobs = _make_jobs(estimator, task, network, kinds, given, seeds, padded)
    members = shared.train_jobs(estimator, task, jobs, data, [origin.part for origin in origins])
    return members, origins[: len(members)]  # kinds for which there was no time are the last ones


@backend.in_thread
def _make_jobs(estimator, task, network, kinds, given, seeds, padded):
    """Make a stack of each kind of networks.

    `seeds` are those of the members of each kind, and `padded` the parts of the splits, with
    equally many rows.
    """
    data, targets = task.data, task.targets
    decides_loss = "loss" in kinds[0]
    space = bind_space(task, decides_loss=decides_loss)
    # A kind changes decisions about the architecture and about its training alike. The user's may
    # lie outside of the search space.
    defaults = sum(space.decisions(), Space()).default()
    jobs = []
    for changes, own_seeds in zip(kinds, seeds):
        configuration = {**defaults, **changes}
        model = space.build(configuration, data.x.shape[1:], targets.head.n_raw)
        head = space.head(configuration, targets.head)
        recipe = shared.make_recipe(estimator, task, given, space.recipe(configuration))
        splits = padded and padded[: len(own_seeds)]
        job = TrainingJob.of_model(model, head, recipe, own_seeds, stacked=True, splits=splits)
        jobs.append(job)
    return [TrainingJob.joined(jobs)] if decides_loss else jobs
