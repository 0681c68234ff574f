"""What a search reads from its estimator's parameters, and how these meet the user's rows."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import is_classifier

from skuq._params import (
    HasMethods,
    Hidden,
    Interval,
    Settings,
    StrOptions,
    resolve_settings,
    settings_constraint,
)
from skuq.ensembles import SelectionRule
from skuq.ensembles._rules import AutomaticSelection, Candidates, FunctionSelection
from skuq.estimators._base import Given
from skuq.estimators._task import VALIDATION, Task
from skuq.estimators.methods._search_store import DURABLE_CONSTRAINTS
from skuq.networks import Decisions, TabularSpace, WithTraining
from skuq.networks._given_spaces import resolve_search_space
from skuq.search import OracleSearch, SearchStrategy
from skuq.search._records import HeldOut
from skuq.tables import TrainingData
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS
from skuq.tables._splits import standardise_rows
from skuq.tables._targets import ClassTargets, NumberTargets
from skuq.training import Recipe

_VALIDATION_SHARE = 0.25  # "auto", without folds
_N_FOLDS, _N_FOLDS_OF_MANY = 8, 5  # default number of folds, and that for more than _MANY_ROWS
_MANY_ROWS = 20_000
# Classes: a table on which a network takes some seconds, and the number of trials for which there
# has to be time. With too little for all folds, trials have some of smaller ones.
_LARGE_ROWS, _SECONDS_OF_NETWORK, _FEWEST_TRIALS, _N_SMALL_FOLDS = 10_000, 12.0, 4, 10
LOSSES = ("crps", "nll")  # of networks that predict mixtures of normals, in a tabular space
_N_REPEATS, _MOST_REPEATS = 2, 20  # default number without `max_time`, and largest number with it
_SEARCH_SHARE = 0.6  # share of `max_time` for the search; repeats have the rest
_EPOCHS = 100  # default number of epochs in spaces that do not set it
_EPOCHS_OF_STEPS = 30, 100  # smallest and largest default, if it follows from a number of steps

#: Constraints of the parameters of all searches.
SEARCH_CONSTRAINTS: dict = {
    "n_trials": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "search": [
        SearchStrategy,
        HasMethods(["create_trial", "end_trial"]),
    ],
    "space": [
        TabularSpace,
        HasMethods(["decisions", "build", "recipe"]),
        callable,
        tuple,
        Hidden(HasMethods(["build"])),  # Keras-Tuner's HyperModel
        Hidden(HasMethods(["run_trial"])),  # its tuners, which are told what to give instead
    ],
    "fixed": [dict, None],
    "selection": [SelectionRule, callable],
    "epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "validation": VALIDATION,
    "refit": ["boolean"],
    "calibrate": ["boolean"],
    **PREPROCESS_CONSTRAINTS,
    **DURABLE_CONSTRAINTS,
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


def constraints_with(short_forms: dict[str, Any]) -> dict[str, Any]:
    """Return the constraints of all searches, with the short forms of one kind's settings."""
    own = {
        name: [*settings_constraint(forms), *SEARCH_CONSTRAINTS[name]]
        for name, forms in short_forms.items()
    }
    return {**SEARCH_CONSTRAINTS, **own}


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """Everything that a search reads from the parameters of its estimator.

    Attributes
    ----------
    strategy : SearchStrategy
    space : SearchSpace, TabularSpace or WithTraining
        Space of networks, which may have to be bound to the rows.
    rule : SelectionRule
    inputs, targets : Inputs, Targets
        Encodings, not fitted yet.
    n_trials : int
        Default number of trials without `max_time`.
    in_folds : bool
        Whether ``validation="auto"`` means folds.
    n_steps : int or None
        Number of optimiser steps from which the default number of epochs follows.
    losses : tuple of str
        Losses among which a tabular space decides.
    starts_with_recipes : bool
        Whether a search starts with the recipes that its space knows.
    stacks : bool
        Whether trials of one architecture that are known in advance train as one program. Their
        seeds then differ from those of other searches with the same `random_state`.
    n_repeats : int
        Number of times that the selected trials are trained again on other folds.
    images : bool
        Whether X can be images, whose shape is then a fitted attribute.
    """

    strategy: SearchStrategy
    space: Any
    rule: SelectionRule
    inputs: Any
    targets: Any
    n_trials: int = 50
    in_folds: bool = False
    n_steps: int | None = None
    losses: tuple[str, ...] = ()
    starts_with_recipes: bool = False
    stacks: bool = False
    n_repeats: int = 0
    images: bool = False

    @property
    def search_share(self) -> float:
        """Share of `max_time` for the search itself; the rest is for repeats."""
        return _SEARCH_SHARE if self.n_repeats else 1.0


def resolve_strategy(estimator: Any, is_tabular: bool) -> SearchStrategy:
    """Resolve the parameter `search`; a Keras-Tuner oracle is the short form of `OracleSearch`.

    `is_tabular` is whether the space is a `TabularSpace`, in which ``vary="auto"`` is "both".
    """
    strategy = resolve_settings(estimator, "search")
    if not isinstance(strategy, SearchStrategy):
        OracleSearch(strategy).validate()
        # Copy the oracle, so that the parameter does not change and `fit` can be called again.
        strategy = OracleSearch(copy.deepcopy(strategy))
    if strategy.vary == "auto":
        strategy.vary = "both" if is_tabular else "architecture"
    return strategy


def resolve_space(estimator: Any) -> Any:
    """Resolve the parameter `space`, which is not bound to rows yet."""
    space = resolve_settings(estimator, "space")
    return space if isinstance(space, Settings) else resolve_search_space(space)


def automatic_repeats(estimator: Any, is_tabular: bool) -> int:
    """Return the number of repeats of the chosen trials, unless the user gives it.

    They are for the tabular space. A refit has no folds to repeat, and a splitter no others.
    """
    if not is_tabular or estimator.refit or is_splitter(estimator.validation):
        return 0
    return _N_REPEATS if estimator.max_time is None else _MOST_REPEATS


def make_targets(estimator: Any, is_tabular: bool) -> ClassTargets | NumberTargets:
    """Make the encoding of y; numbers are mixtures of normals in a tabular space."""
    if is_classifier(estimator):
        return ClassTargets(estimator.class_weight)
    loss = "gaussian-mixture" if is_tabular else "nll"
    return NumberTargets(estimator.target_transform, loss=loss)


def resolve_rule(estimator: Any) -> SelectionRule:
    """Resolve the parameter `selection`, and check that it can select `n_members`."""
    rule = resolve_settings(estimator, "selection")
    if isinstance(estimator.selection, str) and estimator.selection == "auto":
        rule = AutomaticSelection(rule)
    if not isinstance(rule, SelectionRule):
        # Arrays of the candidates that a user's function gets, by the name of its arguments.
        arrays = estimator._selection_arrays
        with contextlib.suppress(ValueError):  # some built-in functions have no signature
            signature = inspect.signature(rule)
            try:
                signature.bind(*arrays, "n_members", sample_weight=None)
            except TypeError as error:
                raise TypeError(
                    f"`selection` must be a function of ({', '.join(arrays)}, n_members, "
                    f"sample_weight=...). Got {rule!r} with the parameters {signature}: {error}."
                ) from error
        rule = FunctionSelection(rule, list(arrays.values()))
    rule.check(estimator.n_members, is_classifier(estimator))
    return rule


def is_splitter(validation: Any) -> bool:
    """Tell whether `validation` is neither a share nor a number of folds."""
    return not isinstance(validation, Real | str | None)


def check_arguments(estimator: Any, plan: SearchPlan, given: Given) -> None:
    """Refuse arguments of `fit` that contradict parameters."""
    validation = estimator.validation
    if given.validation_data is not None and not (validation is None or validation == "auto"):
        raise ValueError(
            "Give either `validation` or `validation_data`: with a share or folds as `validation`, "
            f"rows of `fit` validate. Got both, with validation={validation!r}."
        )
    if given.validation_data is None and validation is None:
        raise ValueError(
            "`validation` must not be None without `validation_data`: a search compares networks "
            'on rows that they were not trained on. Use "auto", a share or folds.'
        )
    if getattr(plan.strategy, "evolve_on", None) == "shift" and given.shift_validation is None:
        raise ValueError('`evolve_on="shift"` of `search` needs `shift_validation`.')


def resolve_validation(estimator: Any, plan: SearchPlan, task: Task) -> tuple[Any, int | None]:
    """Resolve `validation`: a share or folds, and the number of folds that are used, if not all.

    "auto" is folds, fewer for large data, or a share of the rows.
    """
    validation = estimator.validation
    if not isinstance(validation, str):
        return validation, None
    if not plan.in_folds or task.validation is not None:
        return _VALIDATION_SHARE, None
    if task.n_units < 2 * _N_FOLDS:
        return max(2, task.n_units // 2), None
    n_folds = _N_FOLDS if task.n_units <= _MANY_ROWS else _N_FOLDS_OF_MANY
    if is_classifier(estimator) and task.n_units > _LARGE_ROWS and estimator.max_time is not None:
        # Several recipes in a few folds are better than one or two in all of them. Stored trials
        # keep their folds: a later fit may have more time.
        is_stored = estimator.catalog_dir is not None or estimator.warm_start
        n_trials = _FEWEST_TRIALS
        if not isinstance(estimator.n_trials, str):
            n_trials = min(n_trials, estimator.n_trials)
        seconds = plan.search_share * estimator.max_time * effective_n_jobs(estimator.n_jobs)
        n_in_time = int(seconds / (n_trials * _SECONDS_OF_NETWORK))
        if n_in_time < n_folds and not is_stored:
            return _N_SMALL_FOLDS, max(1, n_in_time)
    return n_folds, None


def collect_held_out(task: Task) -> tuple[HeldOut, Any]:
    """Collect the rows that all trials predict, and their inputs.

    The inputs are None if these are only the validation rows.
    """
    data, splits = task.data, task.splits
    sets, x = [], [data.x_valid]
    for rows in task.shifted:
        # The same steps as for validation rows: float32, and weights with mean 1.
        part = TrainingData.without_validation(*standardise_rows(rows, task.inputs, task.targets))
        sets.append(HeldOut(None, part.y, part.weight))
        x.append(part.x)
    y, weight = data.y_valid, data.weight_valid
    if splits.parts is not None:  # rows that no fold validates have weight 0
        y, weight = data.y, np.where(splits.tested, data.weight, 0)
    held_out = HeldOut(splits.positions, y, weight, tuple(sets))
    return held_out, np.concatenate(x) if task.shifted else None


def bind_space(plan: SearchPlan, task: Task) -> Any:
    """Bind the space to the rows, if networks and training depend on them."""
    if isinstance(plan.space, TabularSpace):
        classes = task.targets.head.classifies
        n_train, codes = task.splits.n_train, task.inputs.n_codes
        return plan.space.bind(task.data.x, codes, n_train, classes, plan.losses, task.linear)
    if isinstance(plan.space, WithTraining):
        return plan.space.bind(len(task.rows.X))
    return plan.space


def default_epochs(plan: SearchPlan, space: Any, decisions: Decisions, n_train: int) -> int:
    """Choose the number of epochs of trials whose configurations do not set it."""
    if plan.n_steps is None:
        return _EPOCHS
    # Small tables need more epochs for the same number of steps.
    architecture, hyperparameters = decisions
    recipe = Recipe(**space.recipe({**architecture.default(), **hyperparameters.default()}))
    steps_per_epoch = math.ceil(n_train / recipe.batch_size)
    return int(np.clip(math.ceil(plan.n_steps / steps_per_epoch), *_EPOCHS_OF_STEPS))


def criterion(head: Any, loss: str, part: Any, records: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return what `EnsembleEvolution` selects parents by: predictions for one held-out set."""
    rows, y, weight = part
    raws = [record.result.held_out[rows] for record in records]
    statistics, of_average = Candidates(raws, y.astype("float64"), head).statistics(loss)
    return statistics, of_average, weight
