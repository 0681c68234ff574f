"""What a search reads from its estimator's parameters, and how these meet the user's rows."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class SearchDefaults:
    """What a search does where its parameters are "auto". The defaults here are the papers'.

    Attributes
    ----------
    n_trials : int
        Number of trials without `max_time`.
    validation_share : float
        Share of the rows that validates, where there are no folds.
    n_folds, n_folds_of_many, many_rows : int
        Number of folds, 0 for none, and the number of them for more rows than `many_rows`.
    n_small_folds, fewest_trials : int
        Number of folds of large tables of classes of which a search uses some, where `max_time` is
        too short for so many trials in all folds.
    large_rows : int
        Number of rows of a large table.
    seconds_of_network : float
        Time that the training of one network takes on a large table.
    n_repeats, most_repeats : int
        Number of repeats of the chosen trials without `max_time`, and largest number with it.
    search_share : float
        Share of `max_time` for the search, if there are repeats.
    loss : str
        Loss of networks that predict numbers.
    losses : tuple of str
        Losses among which a tabular space decides for numbers.
    embeds : bool
        Whether networks embed numbers and categories.
    varies : {"architecture", "both"}
        What the strategy varies.
    starts_with_recipes : bool
        Whether a search starts with the recipes that its space knows.
    identity : dict
        What identifies the trials besides parameters and rows, for numbers.
    """

    n_trials: int = 50
    validation_share: float = 0.25
    n_folds: int = 0
    n_folds_of_many: int = 0
    many_rows: float = math.inf
    n_small_folds: int = 0
    fewest_trials: int = 0
    large_rows: float = math.inf
    seconds_of_network: float = math.inf
    n_repeats: int = 0
    most_repeats: int = 0
    search_share: float = 0.6
    loss: str = "nll"
    losses: tuple[str, ...] = ()
    embeds: bool = False
    varies: str = "architecture"
    starts_with_recipes: bool = True
    identity: Mapping[str, str] = field(default_factory=dict)


PAPERS = SearchDefaults()

#: Defaults of the tabular space, in which the folds of a trial train as one program.
TABULAR = SearchDefaults(
    n_folds=8,
    n_folds_of_many=5,
    many_rows=20_000,
    n_small_folds=10,
    fewest_trials=4,
    large_rows=10_000,
    seconds_of_network=12.0,
    n_repeats=2,
    most_repeats=20,
    loss="gaussian-mixture",
    losses=("crps", "nll"),
    embeds=True,
    varies="both",
    # Trials of earlier versions learnt y itself.
    identity={"targets of trials": "what ridge regression leaves, where y is linear"},
)


def add_far_term(ensemble: Any, task: Task) -> Any:
    """Let an ensemble learn its uncertainty far from the training rows."""
    return ensemble.with_far_uncertainty(task.rows, task.entropy)


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
    defaults : SearchDefaults
    prepare : callable
        ``prepare(task) -> task`` with what is learnt before the networks.
    finish : callable
        ``finish(ensemble, task) -> ensemble`` with what is learnt after them; with
        ``calibrate=False`` members predict alone, without it.
    n_steps : int or None
        Number of optimiser steps from which the default number of epochs follows.
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
    defaults: SearchDefaults = PAPERS
    prepare: Callable[[Task], Task] = lambda task: task
    finish: Callable[[Any, Task], Any] = lambda ensemble, task: ensemble
    n_steps: int | None = None
    stacks: bool = False
    n_repeats: int = 0
    images: bool = False

    @property
    def search_share(self) -> float:
        """Share of `max_time` for the search itself; the rest is for repeats."""
        return self.defaults.search_share if self.n_repeats else 1.0


def resolve_strategy(estimator: Any, defaults: SearchDefaults) -> SearchStrategy:
    """Resolve the parameter `search`; a Keras-Tuner oracle is the short form of `OracleSearch`."""
    strategy = resolve_settings(estimator, "search")
    if not isinstance(strategy, SearchStrategy):
        OracleSearch(strategy).validate()
        # Copy the oracle, so that the parameter does not change and `fit` can be called again.
        strategy = OracleSearch(copy.deepcopy(strategy))
    if strategy.vary == "auto":
        strategy.vary = defaults.varies
    return strategy


def resolve_space(estimator: Any) -> Any:
    """Resolve the parameter `space`, which is not bound to rows yet."""
    space = resolve_settings(estimator, "space")
    return space if isinstance(space, Settings) else resolve_search_space(space)


def automatic_repeats(estimator: Any, defaults: SearchDefaults) -> int:
    """Return the number of repeats of the chosen trials, unless the user gives it.

    A refit has no folds to repeat, and a splitter no others.
    """
    if estimator.refit or is_splitter(estimator.validation):
        return 0
    return defaults.n_repeats if estimator.max_time is None else defaults.most_repeats


def defaults_of(space: Any) -> SearchDefaults:
    """Choose the defaults of a search by its space of networks."""
    return TABULAR if isinstance(space, TabularSpace) else PAPERS


def plan_parts(estimator: Any, defaults: SearchDefaults) -> dict[str, Any]:
    """Return the fields of a plan that follow from its defaults: targets and what trains around."""
    if is_classifier(estimator):
        targets: Any = ClassTargets(estimator.class_weight)
    else:
        targets = NumberTargets(estimator.target_transform, loss=defaults.loss)
    prepare = {"prepare": Task.with_linear_part} if defaults.embeds else {}
    return {"targets": targets, "defaults": defaults, "finish": add_far_term, **prepare}


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
    parts = given.validation_data, *given.validation_parts
    has_rows = any(part is not None for part in parts)
    if has_rows and not (validation is None or validation == "auto"):
        raise ValueError(
            "Give either `validation` or `validation_data`: with a share or folds as `validation`, "
            f"rows of `fit` validate. Got both, with validation={validation!r}."
        )
    if not has_rows and validation is None:
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
    defaults = plan.defaults
    if not isinstance(estimator.validation, str):
        return estimator.validation, None
    if not defaults.n_folds or task.validation is not None:
        return defaults.validation_share, None
    if task.n_units < 2 * defaults.n_folds:
        return max(2, task.n_units // 2), None
    is_large, is_huge = (task.n_units > n for n in (defaults.large_rows, defaults.many_rows))
    n_folds = defaults.n_folds_of_many if is_huge else defaults.n_folds
    if is_classifier(estimator) and is_large and estimator.max_time is not None:
        # Several recipes in a few folds are better than one or two in all of them. Stored trials
        # keep their folds: a later fit may have more time.
        is_stored = estimator.catalog_dir is not None or estimator.warm_start
        n_trials = defaults.fewest_trials
        if not isinstance(estimator.n_trials, str):
            n_trials = min(n_trials, estimator.n_trials)
        seconds = plan.search_share * estimator.max_time * effective_n_jobs(estimator.n_jobs)
        n_in_time = int(seconds / (n_trials * defaults.seconds_of_network))
        if n_in_time < n_folds and not is_stored:
            return defaults.n_small_folds, max(1, n_in_time)
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
        classes = hasattr(task.targets.head, "probabilities")
        n_train, codes = task.splits.n_train, task.inputs.n_codes
        losses = () if classes else plan.defaults.losses
        return plan.space.bind(task.data.x, codes, n_train, classes, losses, task.linear)
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
