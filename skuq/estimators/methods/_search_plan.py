"""What a search reads from its estimator's parameters, and how these meet the user's rows."""

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skuq import _params
from skuq.ensembles import SelectionRule
from skuq.ensembles._rules import AutomaticSelection, Candidates, FunctionSelection
from skuq.estimators._base import Given
from skuq.estimators._task import VALIDATION, Task, make_targets
from skuq.estimators.methods._search_store import DURABLE_CONSTRAINTS
from skuq.networks import Decisions, TabularSpace, WithTraining
from skuq.networks._given_spaces import resolve_search_space
from skuq.search import OracleSearch, SearchStrategy
from skuq.search._records import HeldOut
from skuq.tables import TrainingData
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, group_codes
from skuq.tables._repeats import number_rows
from skuq.tables._splits import standardise_rows
from skuq.tables._targets import Targets
from skuq.training import Recipe

_VALIDATION_SHARE = 0.25  # "auto", without folds
_LARGEST_STACK = 16  # networks of one program
_EPOCHS = 100  # default number of epochs in spaces that do not set it
_EPOCHS_OF_STEPS = 30, 100  # smallest and largest default, if it follows from a number of steps


#: Constraints of the parameters of all searches.
SEARCH_CONSTRAINTS: dict = {
    "n_trials": [_params.Interval(Integral, 1, None, closed="left"), _params.StrOptions({"auto"})],
    "n_members": [_params.Interval(Integral, 1, None, closed="left")],
    "search": [SearchStrategy, _params.HasMethods(["create_trial", "end_trial"])],
    "space": [
        TabularSpace,
        _params.HasMethods(["decisions", "build", "recipe"]),
        callable,
        tuple,
        _params.Hidden(_params.HasMethods(["build"])),  # Keras-Tuner's HyperModel
        _params.Hidden(
            _params.HasMethods(["run_trial"])
        ),  # its tuners, which are told what to give instead
    ],
    "fixed": [dict, None],
    "selection": [SelectionRule, callable],
    "epochs": [_params.Interval(Integral, 1, None, closed="left"), _params.StrOptions({"auto"})],
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
        name: [*_params.settings_constraint(forms), *SEARCH_CONSTRAINTS[name]]
        for name, forms in short_forms.items()
    }
    return {**SEARCH_CONSTRAINTS, **own}


@dataclass(frozen=True)
class SearchDefaults:
    """What searches do where their parameters do not say: the papers' methods, with fewer trials.

    ``estimators/_presets.py`` chooses between them and the tuned ones of the recommended space.

    Attributes
    ----------
    n_trials, n_nes_trials : int
        Number of trials of AutoDEUQ and of NES without `max_time`.
    embeds : bool
        Whether networks embed numbers and categories.
    varies : {"architecture", "both"}
        What a strategy with ``vary="auto"`` varies.
    strategy : callable or None
        Makes the strategy that AutoDEUQ's ``search="auto"`` means; None is the paper's.
    starts_with_recipes : bool
        Whether a search starts with the recipes that its space knows.
    pack_size : int
        Number of trials that are proposed at once, and train side by side.
    """

    n_trials: int = 50
    n_nes_trials: int = 50
    embeds: bool = False
    varies: str = "architecture"
    strategy: Callable[[], SearchStrategy] | None = None
    starts_with_recipes: bool = True
    pack_size: int = 1

    def targets(self, estimator: Any) -> Targets:
        """Make the encoding of y: a network predicts one normal of the standardised y."""
        return make_targets(estimator, "nll")

    def validation(self, estimator: Any, task: Task) -> tuple[Any, int | None]:
        """Resolve ``validation="auto"``: a share, or folds and how many are used if not all."""
        return _VALIDATION_SHARE, None

    def prepare(self, task: Task) -> Task:
        """Learn what networks are given before the search, from rows that are split."""
        return task

    def bind(self, space: Any, task: Task) -> Any:
        """Bind the space to the rows, if networks and training depend on them."""
        return space.bind(len(task.rows.X)) if isinstance(space, WithTraining) else space

    def finish(self, ensemble: Any, task: Task) -> Any:
        """Add what is learnt after the search to an ensemble that is calibrated: here nothing."""
        return ensemble


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
    n_steps : int or None
        Number of optimiser steps from which the default number of epochs follows.
    is_baseline : bool
        Whether all trials have one architecture. Their seeds then differ from those of other
        searches with the same `random_state`.
    images : bool
        Whether X can be images, whose shape is then a fitted attribute.
    """

    strategy: SearchStrategy
    space: Any
    rule: SelectionRule
    inputs: Any
    targets: Any
    defaults: SearchDefaults
    n_steps: int | None = None
    is_baseline: bool = False
    images: bool = False

    def pack_size(self, task: Task) -> int:
        """Return the number of trials that train side by side; baselines train as one stack."""
        if isinstance(self.strategy, OracleSearch):  # some propose nothing before the last score
            return 1
        if not self.is_baseline:
            return self.defaults.pack_size
        return _LARGEST_STACK if task.splits.parts is None and task.data.x.ndim == 2 else 1


def resolve_strategy(estimator: Any, defaults: SearchDefaults) -> SearchStrategy:
    """Resolve the parameter `search`; a Keras-Tuner oracle is the short form of `OracleSearch`."""
    strategy = _params.resolve_settings(estimator, "search")
    if not isinstance(strategy, SearchStrategy):
        OracleSearch(strategy).validate()
        # Copy the oracle, so that the parameter does not change and `fit` can be called again.
        strategy = OracleSearch(copy.deepcopy(strategy))
    if strategy.vary == "auto":
        strategy.vary = defaults.varies
    return strategy


def resolve_space(estimator: Any) -> Any:
    """Resolve the parameter `space`, which is not bound to rows yet."""
    space = _params.resolve_settings(estimator, "space")
    return space if isinstance(space, _params.Settings) else resolve_search_space(space)


def resolve_rule(estimator: Any) -> SelectionRule:
    """Resolve the parameter `selection`, and check that it can select `n_members`."""
    rule = _params.resolve_settings(estimator, "selection")
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


def check_arguments(estimator: Any, plan: SearchPlan, given: Given) -> None:
    """Refuse arguments of `fit` that contradict parameters."""
    validation, has_rows = estimator.validation, given.validation_data is not None
    if has_rows and not (validation is None or isinstance(validation, str)):
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


def collect_held_out(task: Task) -> tuple[HeldOut, Any]:
    """Collect the rows that all trials predict, and their inputs (None without shifted rows)."""
    data, splits = task.data, task.splits
    sets, x = [], [data.x_valid]
    for rows in task.shifted:
        # The same steps as for validation rows: float32, and weights with mean 1.
        part = TrainingData.without_validation(*standardise_rows(rows, task.inputs, task.targets))
        sets.append(HeldOut(None, part.y, part.weight))
        x.append(part.x)
    valid, y, weight = data.x_valid, data.y_valid, data.weight_valid
    if splits.parts is not None:  # rows that no fold validates have weight 0
        valid, y, weight = data.x, data.y, np.where(splits.tested, data.weight, 0)
    groups, rows = number_rows(valid, np.arange(len(valid))), splits.positions
    if task.groups is not None and rows is not None:
        groups = group_codes(task.groups[rows])
    held_out = HeldOut(rows, y, weight, tuple(sets), groups)
    return held_out, np.concatenate(x) if task.shifted else None


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
