"""Run what a plan says: make the search, train chosen trials again, and warn of bad outcomes."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from typing import Any

import numpy as np

from skuq._messages import warn_user
from skuq._random import generator
from skuq.estimators._task import Task, warn_if_worse_than_constant, warn_of_short_training
from skuq.estimators.methods._search_plan import (
    SearchPlan,
    collect_held_out,
    criterion,
    default_epochs,
)
from skuq.estimators.methods._trial_trainer import MemberRefitter, MemberRepeater, MemberTrainer
from skuq.fitted._searched import FittedSearch
from skuq.networks import Decisions
from skuq.search import Limits, RunOptions, Search, SearchResult
from skuq.search._loop import Retraining
from skuq.search._proposers import Fixed, RandomProposer, StartingWith
from skuq.search._strategies import SearchProblem, fix_decisions
from skuq.tables._inputs import warn_of_few_rows

_MOST_TRIALS = 10_000  # largest number of trials with `max_time`
# A repeat may need only this share of its trial's time, since its program is compiled already.
_MIN_SHARE = 0.5
_MOST_FAILURES = 0.25  # share of trials that may fail without a warning


# --------------------------------------------------------------------------------------- search


def count_trials(estimator: Any, plan: SearchPlan) -> int:
    """Return the number of trials; with `max_time`, "auto" is as many as fit into it."""
    if not isinstance(estimator.n_trials, str):
        return estimator.n_trials
    n_trials = plan.defaults.n_trials if estimator.max_time is None else _MOST_TRIALS
    oracle = getattr(plan.strategy, "oracle", None)  # of Keras-Tuner, which may have its own
    return min(n_trials, getattr(oracle, "max_trials", None) or n_trials)


def time_left(estimator: Any, task: Task, share: float = 1.0) -> float | None:
    """Return the seconds that are left of a share of `max_time`; None without a limit."""
    if estimator.max_time is None:
        return None
    return max(0.01, task.seconds_left(estimator.max_time, share))


def _run_options(
    estimator: Any, name: str, number: Any, score_name: str, **limits: Any
) -> RunOptions:
    """Make the options of a search, or of a training after it, with these limits.

    `number` is what the user gave for the number of trials or repeats: "auto" with a limit of
    time means as many as fit into it.
    """
    is_open = isinstance(number, str) and limits.get("max_time") is not None
    all_limits = Limits(trial_timeout=estimator.trial_timeout, **limits)
    return RunOptions(estimator.n_jobs, all_limits, estimator.verbose, name, score_name, is_open)


def _make_proposer(
    estimator: Any, plan: SearchPlan, space: Any, head: Any, decisions: Decisions, held_out: Any
) -> Any:
    """Let the strategy make its proposer for this space and number of trials."""
    # Parents are selected on the clean rows, or on those of the highest severity.
    parts = [held_out.sets[0], *held_out.sets[1:][-1:]]
    n_trials = count_trials(estimator, plan)
    problem = SearchProblem(
        fix_decisions(decisions, estimator.fixed or {}),
        n_trials,
        # Populations are sized by the number of trials that is planned, not by what `max_time`
        # may let in.
        plan.defaults.n_trials if isinstance(estimator.n_trials, str) else n_trials,
        getattr(space, "mutate", None),
        [functools.partial(criterion, head, plan.rule.loss, part) for part in parts],
        getattr(space, "n_trainings", 1),
    )
    return plan.strategy.proposer(problem)


def make_search(
    estimator: Any, plan: SearchPlan, task: Task, store: Any
) -> tuple[Search, Decisions]:
    """Make the search, and list the decisions that it can vary."""
    held_out, x_of_trials = collect_held_out(task)
    space, head, strategy = plan.defaults.bind(plan.space, task), task.targets.head, plan.strategy
    decisions = space.decisions(task.data.x.shape[1:], head.n_raw)
    max_epochs = None if isinstance(estimator.epochs, str) else estimator.epochs
    # Trials are evaluated in workers by this trainer: it has the rows, and needs no estimator.
    trainer = MemberTrainer(
        space,
        task.data,
        head,
        max_epochs or default_epochs(plan, space, decisions, task.splits.n_train),
        held_out=x_of_trials,
        folds=task.splits.parts,
        timeout=estimator.trial_timeout,
        max_epochs=max_epochs,
        objective=strategy.objective,
        calibrate=estimator.calibrate,
    )
    n_trials, fixed = count_trials(estimator, plan), estimator.fixed or {}
    proposer = _make_proposer(estimator, plan, space, head, decisions, held_out)
    # Known recipes and the user's own configurations are tried before the proposer is asked. A
    # search that knows all configurations trains them as one program.
    in_stacks = plan.stacks and isinstance(proposer, Fixed | RandomProposer)
    known = plan.defaults.starts_with_recipes and hasattr(space, "known_recipes")
    recipes = space.known_recipes() if known else []
    first = strategy.initial_configurations(decisions, recipes, fixed)
    entropy = task.entropy
    if plan.stacks:
        # A baseline has the same split of the rows as its search, and other networks.
        entropy = int(generator(entropy, "one architecture").integers(1, 2**31 - 1))
    options = _run_options(
        estimator,
        "search",
        estimator.n_trials,
        "objective" if strategy.objective is not None else "NLL",
        max_time=time_left(estimator, task, plan.search_share),
        first_trials=time_left(estimator, task),
    )
    search = Search(
        trainer,
        StartingWith(first, proposer) if first else proposer,
        n_trials,
        entropy,
        held_out=held_out,
        store=store,
        options=options,
        in_stacks=in_stacks and not first,
        seconds=math.inf if estimator.max_time is None else estimator.max_time,
    )
    return search, decisions


# ------------------------------------------------------------------------------ training again


def make_retraining(estimator: Any, plan: SearchPlan, fitted: FittedSearch) -> Retraining | None:
    """Describe the training after the search; None if there is none."""
    if estimator.refit:
        return Retraining("refit", fitted.trials, fitted.chosen_trials.tolist())
    if not plan.n_repeats:
        return None
    selection = fitted.choice.selection
    heaviest_first = np.argsort(-selection.weights, kind="stable")
    indices = selection.indices[heaviest_first].tolist()
    return Retraining("repeat", fitted.trials, indices, plan.n_repeats, fitted.targets.head)


def train_again(
    estimator: Any, retraining: Retraining, task: Task, search: Search, validation: tuple[Any, Any]
) -> SearchResult:
    """Refit chosen trials on all rows, or repeat them.

    Repeats have other seeds and other folds, if there are folds: `validation` are the folds and
    how many of them are used. None starts once less than half of the time of the fastest is left,
    and those that are cut short are not used.
    """
    score, store = "NLL", search.store
    # All rows train, so that a refit validates nothing; its time is not limited.
    if retraining.kind == "refit":
        options = _run_options(estimator, "refit", None, score, raise_on_failures=False)
        return retraining.train(search, MemberRefitter, options, store)
    max_time = None
    if estimator.max_time is not None:
        max_time = task.seconds_left(estimator.max_time)
        times = [t.seconds / t.share for t in retraining.trials if t.share > 0]
        if max_time <= _MIN_SHARE * min(times, default=0.0):
            # Start no workers: an earlier fit may have stored some.
            stored = [] if store is None else retraining.read_stored(store.retrained)
            return retraining.join(stored)
    folds: Any = None  # a repeat without folds differs in its seed
    if task.splits.parts is not None:
        cv, n_used = validation
        rounds = range(1, 1 + retraining.n_rounds)
        folds = [task.make_splits(cv, repeat=k, n_used=n_used).parts for k in rounds]
    options = _run_options(
        estimator,
        "repeats",
        getattr(estimator, "repeats", "auto"),
        score,
        max_time=max_time,
        raise_on_failures=False,
        needs_success=False,
    )
    repeat = functools.partial(MemberRepeater, folds=folds)
    return retraining.train(search, repeat, options, store)


# ------------------------------------------------------------------------------------ warnings


def warn_of_few_validation_rows(task: Task) -> None:
    """Warn if members are chosen on few rows, clean or shifted."""
    splits, n_shifted = task.splits, sum(len(rows.used) for rows in task.shifted)
    if task.shifted and n_shifted < splits.n_valid:
        warn_of_few_rows(n_shifted, "More rows in `shift_validation` may help.")
        return
    advice = "Folds or a larger share as `validation`, or `validation_data`, may help."
    warn_of_few_rows(splits.n_valid, advice if splits.parts is None else "")


def warn_of_few_members(
    fitted: FittedSearch, rule: Any, max_time: float | None = None, seconds: float = 0.0
) -> None:
    """Warn if the ensemble has fewer members than its `EnsembleRule` needs to show disagreement.

    `max_time` is the limit of its fit, if that ended early, and `seconds` is the fit's time.
    """
    found, n = len(fitted.choice.selection), len(fitted.members)
    wanted = min(rule.selection.min_members, rule.n_members)
    if found >= wanted and not n == 1 < rule.n_members:
        return
    described, consequence = f"{found} members", ""
    if found == 1:
        value = "0" if n == 1 else f"that of {n} networks of one configuration"
        described, consequence = "1 member", f": its epistemic uncertainty is {value}"
    cause, advice = "no more trials succeeded", "Give the search more trials or more time."
    completed = [fitted.catalog[k] for k in fitted.catalog.completed]
    if max_time is not None and seconds > _MIN_SHARE * max_time:
        whole = max(map(_seconds_of_whole_training, completed))
        wanted = max(wanted, 2)
        enough = math.ceil(seconds - sum(record.seconds for record in completed) + wanted * whole)
        cause = f"max_time={max_time} was over after {len(completed)} trial(s)"
        advice = f"One takes {math.ceil(whole)} s: max_time={enough} is enough for {wanted}."
    if len(completed) > found:
        cause, advice = "`selection` chose no more", "Another `selection` may choose more."
        if wanted == 1:
            advice = "Set `selection__min_members=2`, which `reselect` takes, too."
    warn_user(f"The ensemble has {described}, as {cause}{consequence}. {advice}")


def _seconds_of_whole_training(record: Any) -> float:
    """Estimate the time of a trial that is not shortened, with its compilation."""
    trained = sum(network.seconds for network in record.result.networks)
    return float(record.seconds + trained * (1 / record.share - 1))


def warn_of_trials(fitted: FittedSearch, task: Task, max_time: float | None) -> None:
    """Warn of trials without a real part of their training, failed ones, and bad predictions."""
    catalog, selection = fitted.catalog, fitted.choice.selection
    if not fitted.trials.refitted:  # a refit has no limit
        best = max((catalog[k] for k in selection.indices), key=lambda record: record.share)
        seconds = time.monotonic() - task.started + _seconds_of_whole_training(best)
        warn_of_short_training(best.share, max_time, seconds)
    # Some networks diverge, but many failures have another cause.
    failed = [record.message for record in catalog if record.failed]
    if len(failed) > _MOST_FAILURES * len(catalog):
        (message, count), *_ = Counter(failed).most_common(1)
        warn_user(
            f"{len(failed)} of {len(catalog)} trials failed, {count} of them with: "
            f"{message} `leaderboard` has the reasons."
        )
    rows, y, weight = fitted.trials.sets[0]
    raw = np.stack([np.asarray(catalog[k].result.held_out)[rows] for k in selection.indices])
    parts = [(raw, selection.weights, y, weight)]
    warn_if_worse_than_constant(fitted.targets.head, fitted.choice.calibration, task.data, parts)
