"""Kinds of members of a tabular ensemble: which there are, their rows, and their training.

Members of one kind have the same architecture and recipe. Classifiers mix tabular networks of
several recipes and logistic regressions, regressors of mixtures two losses.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from skuq import backend
from skuq.estimators.methods import _one_architecture as shared
from skuq.estimators.tabular import _recipes as tuned
from skuq.estimators.tabular._tuned_space import bind_space, class_recipes
from skuq.networks import Member
from skuq.networks._space import Space
from skuq.networks._tabular_network import embed_categories, numeric_columns
from skuq.training import TrainingJob, predict_members
from skuq.training._job import pad_splits
from skuq.training._network_checks import has_diverged

TINY = 1e-30  # smallest squared error, in units of the largest


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
    # Decisions of the user hold for all networks. If the user decides about embeddings, there are
    # neither kinds with other embeddings nor logistic regressions.
    is_given = "embedding" in decisions
    columns, kinds = numeric_columns(task.rows.X, task.inputs.code_columns), []
    for recipe in class_recipes(n_rows, has_numbers=bool(columns)):
        if not _is_linear(recipe):
            given = ("embedding", "frequency_scale") if is_given else ()
            recipe = {k: v for k, v in recipe.items() if k not in given} | decisions
        elif is_given:
            continue
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
    share = min(tuned.VALIDATION, tuned.MOST_VALIDATION_ROWS / n_rows)
    n_units = task.n_units
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


def train_better(estimator, tasks, *given):
    """Train all members for each task; return the task whose members err less, and `train_kinds`.

    Errors are those on the rows that members hold out. Without such rows the first task is the only
    one, also if it took more than half of `max_time`. A training that lost more members than
    another, for want of time or because they diverged, is not kept.
    """
    found, limit = [], estimator.max_time
    for task in tasks if tasks[0].splits.validates else tasks[:1]:
        if found and limit is not None and task.seconds_left(limit) < limit / 2:
            break
        found.append((task, *train_kinds(estimator, task, *given)))
    return min(found, key=lambda each: _error(*each)) if len(found) > 1 else found[0]


def _error(task, members, origins):
    """Compute a key by which the better of several trainings comes first.

    It is a pair: minus the number of members that did not diverge, then the logarithm of their mean
    absolute error on the rows that they hold out, averaged over outputs.
    """
    found = [k for k, member in enumerate(members) if not has_diverged(member)]
    members, origins = [members[k] for k in found], [origins[k] for k in found]
    held_out = [
        (np.abs(y - mean), weight) for y, weight, _, mean in held_out_rows(task, members, origins)
    ]
    if not held_out:
        return 0, np.inf
    errors, weights = map(np.concatenate, zip(*held_out))
    mean = np.average(errors, axis=0, weights=weights if weights.any() else None)
    scaled = np.maximum(mean * task.targets.scaling.scale_, TINY)
    return -len(members), np.log(scaled).mean()


def held_out_rows(task, members, origins):
    """Yield y, weights, raw outputs and means of the rows that each member holds out."""
    data, head = task.data, task.targets.head
    for member, origin in zip(members, origins):
        y, weight = data.y_valid, data.weight_valid
        if origin.part is not None and origin.part[1] is not None:
            y, weight = data.y[origin.part[1]], data.weight[origin.part[1]]
        raw = member.held_out.astype("float64")
        if len(raw):
            yield y, weight, raw, head.means(raw)


def train_kinds(estimator, task, network, kinds, given, n_members):
    """Train all members, and list their origins; members of all kinds train at the same time."""
    data, parts = task.data, task.splits.parts
    padded = parts
    own = parts is not None and parts[0][1] is not None
    uneven = own and len({tuple(map(len, part)) for part in parts}) > 1
    if uneven:
        data, padded = pad_splits(data, parts)
    # Members of all kinds are numbered in turn; seeds go by these numbers.
    seeds = [
        [task.seeds(1, first=k)[0] for k in range(kind, n_members, len(kinds))]
        for kind in range(len(kinds))
    ]
    linear, origins_of_linear, origins = [], [], []
    for kind, own_seeds in enumerate(seeds):
        found = [Origin(kind, k, parts and parts[k]) for k in range(len(own_seeds))]
        if _is_linear(kinds[kind]):  # the networks have the time that is left
            linear += _fit_linear(task, [origin.part for origin in found], own_seeds)
            origins_of_linear += found
        else:
            origins += found
    jobs = _make_jobs(estimator, task, network, kinds, given, seeds, padded)
    members = shared.train_jobs(estimator, task, jobs, data) if jobs else []
    origins = origins[: len(members)]  # kinds for which there was no time are the last ones
    for k, (member, origin) in enumerate(zip(members, origins)):
        if uneven and isinstance(member, Member):
            members[k] = member.with_held_out(member.held_out[: len(origin.part[1])])
    return members + linear, origins + origins_of_linear


def _is_linear(decisions):
    return decisions.get("n_layers") == 0


@backend.in_thread
def _make_jobs(estimator, task, network, kinds, given, seeds, padded):
    """Make a stack of each kind of networks.

    `seeds` are those of the members of each kind, and `padded` the parts of the splits, with
    equally many rows.
    """
    data, targets = task.data, task.targets
    decides_loss = "loss" in kinds[0]
    space = bind_space(task, decides_loss=decides_loss)
    # A kind changes decisions about the architecture and about its training alike.
    decisions = sum(space.decisions(), Space())
    jobs = []
    for changes, own_seeds in zip(kinds, seeds):
        if _is_linear(changes):
            continue
        configuration = decisions.check(changes, "network")
        model = space.build(configuration, data.x.shape[1:], targets.head.n_raw)
        head = space.head(configuration, targets.head)
        recipe = shared.make_recipe(estimator, task, given, space.recipe(configuration))
        splits = padded and padded[: len(own_seeds)]
        job = TrainingJob.of_model(model, head, recipe, own_seeds, stacked=True, splits=splits)
        jobs.append(job)
    return [TrainingJob.joined(jobs)] if decides_loss else jobs


@backend.in_thread
def _fit_linear(task, parts, seeds):
    """Fit logistic regressions, with the penalty that is best on the rows held out.

    A member is a dense layer. Columns of codes have a vector of one number for each class.
    """
    started, data, head = time.perf_counter(), task.data, task.targets.head
    n_codes, columns = task.inputs.n_codes, indicate(data.x, task.inputs.n_codes)
    x, y, n_classes = data.x, data.y[:, 0].astype(int), head.n_classes
    design = np.concatenate(columns, axis=1)
    keras = backend.keras
    inputs = keras.Input(data.x.shape[1:], dtype="float32")
    logits = keras.layers.Dense(n_classes, dtype="float32")
    outputs = logits(embed_categories(inputs, n_codes, n_classes))
    network = keras.Model(inputs, outputs, dtype="float32").to_json()
    best, least, last = None, np.zeros(1), None  # losses are of single rows
    for strength in (
        (*tuned.STRENGTHS, *tuned.WEAK_STRENGTHS)
        if task.splits.validates
        else (tuned.STRENGTH_WITHOUT_VALIDATION,)
    ):
        if strength in tuned.WEAK_STRENGTHS and last is not best:
            break
        found, of_parts = [], []
        for part, seed in zip(parts, seeds):
            train = np.arange(len(x)) if part is None else part[0]
            kernel, bias = _logistic_regression(
                design[train], y[train], data.weight[train], n_classes, strength
            )
            # Numbers of each class, then tables of codes, whose vectors the layer passes on.
            tables = np.split(kernel, np.cumsum([c.shape[1] for c in columns])[:-1])
            passed = [tables[0], *[np.eye(n_classes)] * len(n_codes)]
            blocks = [*tables[1:], np.concatenate(passed), bias]
            weights = np.concatenate([block.ravel() for block in blocks]).astype("float32")
            history = {name: np.zeros(1) for name in ("loss", "val_loss", "learning_rate")}
            member = Member(network, weights, (), history, 0, None, seed, 0.0, "graph")
            x_valid, y_valid, weight = data.x_valid, data.y_valid, data.weight_valid
            if part is not None and part[1] is not None:
                x_valid, y_valid, weight = data.x[part[1]], data.y[part[1]], data.weight[part[1]]
            raw = predict_members([member], x_valid, cache=False)[0]
            found.append(member.with_held_out(raw.astype("float32")))
            of_parts.append(weight * head.scores(y_valid, raw) if len(raw) else np.zeros(1))
        last, losses = found, np.concatenate(of_parts)
        gain = least - losses
        chance = (
            tuned.CLEARLY_BETTER * gain.std() * math.sqrt(len(gain))
            if strength in tuned.WEAK_STRENGTHS
            else 0.0
        )
        if best is None or gain.sum() > chance:
            best, least = found, losses
    seconds = (time.perf_counter() - started) / len(parts)
    return [replace(member, seconds=seconds) for member in best]


def indicate(x, n_codes):
    """List columns of numbers, and indicators of each column of codes, as arrays (n, k)."""
    x = x.astype("float64")
    columns = [x[:, [k for k in range(x.shape[1]) if k not in n_codes]]]
    return columns + [np.eye(n)[x[:, k].astype(int)] for k, n in sorted(n_codes.items())]


def _logistic_regression(x, y, weight, n_classes, strength):
    """Fit a kernel (d, n_classes) and a bias; classes without a row are nearly impossible."""
    kernel, bias = np.zeros((x.shape[1], n_classes)), np.full(n_classes, tuned.IMPOSSIBLE)
    used = weight > 0  # others would be classes of their own
    present = np.unique(y[used])
    bias[present] = 0.0
    if len(present) > 1:
        model = LogisticRegression(C=strength, max_iter=tuned.MOST_NEWTON_STEPS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[used], y[used], weight[used])
        coefficients, intercept = model.coef_, model.intercept_
        if len(present) == 2:  # one logit, that of the second class
            coefficients = np.concatenate([-coefficients, coefficients]) / 2
            intercept = np.concatenate([-intercept, intercept]) / 2
        kernel[:, present], bias[present] = coefficients.T, intercept
    return kernel, bias
