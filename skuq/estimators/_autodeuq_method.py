"""Method of AutoDEUQ: proposers of networks, and selection of ensembles."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path

import numpy as np

from skuq import search
from skuq._params import HasMethods, Hidden, Interval, StrOptions
from skuq._utils._messages import warn_user
from skuq.catalog import Catalog
from skuq.catalog._folder import find_search
from skuq.ensembles import (
    check_selection,
    select_forward,
    select_greedy,
    select_hq,
    select_hq_proba,
    select_top,
)
from skuq.ensembles._likelihood import brier_statistics, class_log_likelihood, likelihood_statistics
from skuq.ensembles._selection import real_weight, select_best
from skuq.estimators._search_method import SEARCH_CONSTRAINTS, SearchMethod, check_takes
from skuq.networks import TabularSpace, resolve_search_space
from skuq.networks._space import Space
from skuq.search import STRATEGIES, make_proposer, pin
from skuq.tables import NumberTargets

_EPOCHS = 100  # default number of epochs in spaces that do not set it
_VALIDATION_FRACTION = 0.25  # "auto", without folds
_N_FOLDS, _N_FOLDS_OF_MANY = 8, 5  # default number of folds, and that for more than _MANY_ROWS
_MANY_ROWS = 20_000
_LOSSES = ("crps", "nll")
_N_REPEATS, _MOST_REPEATS = 2, 20  # default number without `max_time`, and largest number with it
_SEARCH_SHARE = 0.6  # share of `max_time` for the search; repeats have the rest
_N_TAKEN_OVER = 10  # best trials of another search that are used as initial trials
# The paper's experiments: section III, and its toy task.
_PAPER_SETTINGS = {
    "n_trials": 500,
    "n_members": 5,
    "min_members": 1,
    "cv": None,
    "population_size": 100,
    "sample_size": 10,
    "discard": False,
    "repeats": 0,
}
_PAPER_EXPERIMENTS = {
    "benchmark": {"search_space": "benchmark", "epochs": 100, "validation_fraction": 0.25},
    "toy": {"search_space": "toy", "epochs": 200, "validation_fraction": 1 / 3},
}
# Values of `search`: those that evolve the architecture, and those that search architecture and
# hyperparameters.
_EVOLUTIONS = ("agebo", "age", "age-mixed")
_MIXED_SEARCHES = ("agebo", "rs-mixed", "age-mixed", "bo-mixed")

_TUNER_METHODS = ["run_trial", "get_best_models"]  # of Keras-Tuner's tuners

#: Constraints of the parameters of regressor and classifier.
AUTODEUQ_CONSTRAINTS: dict = {
    **SEARCH_CONSTRAINTS,
    "epochs": [*SEARCH_CONSTRAINTS["epochs"], StrOptions({"auto"})],
    "validation_fraction": [*SEARCH_CONSTRAINTS["validation_fraction"], StrOptions({"auto"})],
    "cv": [*SEARCH_CONSTRAINTS["cv"], StrOptions({"auto"})],
    "discard": ["boolean", search.SuccessiveHalving],
    "initial_trials": [None, list, tuple, Catalog, str, os.PathLike],
    "objective": [None, callable],
    "repeats": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
    "min_members": [Interval(Integral, 1, None, closed="left")],
    "n_nodes": [Interval(Integral, 1, None, closed="left")],
    "search": [
        StrOptions(set(STRATEGIES)),
        HasMethods(["create_trial", "end_trial"]),
        Hidden(HasMethods(_TUNER_METHODS)),  # refused with a hint
    ],
    "search_space": [
        StrOptions({"auto", "tabular", "dense", "benchmark", "toy"}),
        *SEARCH_CONSTRAINTS["search_space"],
    ],
    "sample_size": [Interval(Integral, 1, None, closed="left"), None],
    "kappa": [Interval(Real, 0, None, closed="left")],
    "n_initial": [Interval(Integral, 1, None, closed="left")],
    "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    "selection": [StrOptions({"greedy", "top", "hq"}), callable],
}


class AutoDEUQ(SearchMethod):
    """Method of AutoDEUQ: AgEBO and its variants, with greedy selection."""

    selection_parameters = ("n_members", "min_members", "selection", "selection_loss", "calibrate")
    prediction_parameters = ("epistemic_ddof", "repeats")

    def __init__(self, estimator):
        super().__init__(estimator)
        space = estimator.search_space
        self.is_tabular = isinstance(space, str) and space in ("auto", "tabular")
        if self.classifies:
            names = self.selection_parameters
            self.selection_parameters = tuple(name for name in names if name != "calibrate")

    @property
    def n_trials(self):
        n_trials = super().n_trials
        if not isinstance(self.estimator.n_trials, str):
            return n_trials
        return min(n_trials, getattr(self.estimator.search, "max_trials", None) or n_trials)

    @property
    def score_name(self):
        return "CRPS" if self.is_tabular and not self.classifies else "NLL"

    def halving(self, proposer):
        discard = self.estimator.discard
        if discard is not True:
            return discard or None
        default = search.SuccessiveHalving()
        # Initial recipes differ on purpose, and can be slow at first: let all of them finish.
        n_first = len(getattr(proposer, "configurations", ()))
        return replace(default, min_trials=max(default.min_trials, n_first))

    @property
    def n_repeats(self):
        repeats, cv = self.estimator.repeats, self.estimator.cv
        if not isinstance(cv, Integral | str | None):
            return 0  # a user's splitter has no other folds
        if not isinstance(repeats, str):
            return repeats
        if not self.is_tabular:
            return 0
        return _N_REPEATS if self.estimator.max_time is None else _MOST_REPEATS

    @property
    def search_share(self):
        return _SEARCH_SHARE if self.n_repeats and not self.estimator.refit else 1.0

    @property
    def objective(self):
        return self.estimator.objective

    @property
    def calibrates(self):
        return not self.classifies and self.estimator.calibrate

    def validation(self, n_rows, given):
        """Choose folds in the tabular space, where they train as one program, or a single split."""
        estimator = self.estimator
        fraction = estimator.validation_fraction
        is_auto = isinstance(fraction, str)
        cv = estimator.cv
        if isinstance(cv, str):
            in_folds = self.is_tabular and is_auto and not given
            cv = _n_folds(n_rows) if in_folds else None
        return {"fraction": _VALIDATION_FRACTION if is_auto else fraction, "cv": cv}

    def epochs(self, space, inputs, n_train):
        epochs = self.estimator.epochs
        return (_EPOCHS, None) if isinstance(epochs, str) else (epochs, epochs)

    def targets(self):
        if self.classifies or not self.is_tabular:
            return super().targets()
        return NumberTargets(self.estimator.target_transform, loss=_LOSSES[0])

    def make_space(self, inputs, n_rows, x, n_train):
        if self.is_tabular:
            losses = () if self.classifies else _LOSSES
            return TabularSpace(x, inputs.n_codes, n_train, self.classifies, losses)
        return super().make_space(inputs, n_rows, x, n_train)

    def check(self, shifted):
        super().check(shifted)
        given = self.estimator.search
        if isinstance(given, type):
            raise ValueError(
                "`search` must be a name or an oracle, which proposes trials. Got the class "
                f"{given.__name__}: give an object of an oracle's class."
            )
        if all(hasattr(given, name) for name in _TUNER_METHODS):
            raise ValueError(
                "`search` must be a name or an oracle, which proposes trials. Got the tuner "
                f"{type(given).__name__}, which also trains them: give its oracle, "
                "`search=tuner.oracle`, and its model by `search_space`."
            )

    def check_selection(self):
        names = (
            ("y", "proba", "n_members") if self.classifies else ("y", "loc", "scale", "n_members")
        )
        check_takes("selection", self.estimator.selection, names, ("sample_weight",))
        if self.estimator.selection == "hq" and self.estimator.n_members < 2:
            raise ValueError('`n_members` must be at least 2 with `selection="hq"`. Got 1.')

    def resolve_space(self, inputs, n_rows):
        estimator = self.estimator
        return resolve_search_space(
            estimator.search_space, estimator.n_nodes, estimator.max_batch_size
        )

    def identifying_parameters(self):
        given = {"initial_trials": self._given_configurations}
        return {**super().identifying_parameters(), **given}

    def proposer(self, space, held_out):
        """Make the proposer of the search strategy, which starts with the initial trials."""
        estimator, decisions = self.estimator, self.estimator.decisions_
        if isinstance(estimator.search, str):
            population = estimator.population_size or 0
            if estimator.search in _EVOLUTIONS and population >= self.n_trials:
                warn_user(
                    f"Evolution starts after `population_size={population}` trials, and "
                    f"`n_trials` is {self.n_trials}: all architectures are drawn at random. Set a "
                    "smaller `population_size` or more trials.",
                )
            proposer = make_proposer(
                estimator.search,
                decisions,
                self.n_planned,
                fixed_architecture=estimator.fixed_architecture,
                fixed_hyperparameters=estimator.fixed_hyperparameters,
                population_size=estimator.population_size,
                sample_size=estimator.sample_size,
                kappa=estimator.kappa,
                n_initial=estimator.n_initial,
            )
            first = self._initial_configurations(space)
            return search.StartingWith(first, proposer) if first else proposer
        if estimator.initial_trials is not None:
            raise ValueError(
                "`initial_trials` must be None if `search` is a Keras-Tuner oracle, which proposes "
                "every trial itself. Set the oracle's own `hyperparameters`, or use one of skuq's "
                "strategies."
            )
        # Copy the oracle, so that the parameter does not change and `fit` can be called again.
        oracle = copy.deepcopy(estimator.search)
        pinned = pin(decisions, estimator.fixed_architecture, estimator.fixed_hyperparameters)
        return search.OracleProposer(oracle, pinned, self.n_trials)

    @cached_property
    def _given_configurations(self):
        """The configurations that the user gives as `initial_trials`, or None."""
        given = self.estimator.initial_trials
        if isinstance(given, list | tuple):
            if wrong := [trial for trial in given if not isinstance(trial, Mapping)]:
                raise ValueError(
                    "`initial_trials` must be a list of configurations, dicts of decisions. Got "
                    f"{wrong[0]!r} in it."
                )
            return given
        if given is None:
            return None
        if not isinstance(given, Catalog):
            self._check_other_folder(given)
        return _best_configurations(given)

    def _check_other_folder(self, path):
        """Refuse `catalog_dir` as `initial_trials`: it will hold this search, too."""
        catalog_dir = self.estimator.catalog_dir
        if catalog_dir is None:
            return
        source, target = (Path(p).expanduser().resolve() for p in (path, catalog_dir))
        if source != target:
            return
        found = find_search(path)
        advice = f"Use {str(found)!r}."
        if found == target:
            advice = f"Use {str(found.parent)!r} as `catalog_dir`."
        raise ValueError(
            "`initial_trials` must be the folder of another search. Got `catalog_dir`, in which "
            f"this search gets a folder, too. {advice}"
        )

    def _initial_configurations(self, space):
        """Return the configurations of the first trials: the user's, or the space's recipes."""
        estimator = self.estimator
        given, name = self._given_configurations, "initial_trials"
        if given is None:
            known = hasattr(space, "known_recipes") and estimator.search in _MIXED_SEARCHES
            given, name = (space.known_recipes() if known else []), "known_recipes"
        both = sum(estimator.decisions_, Space())
        is_list = isinstance(estimator.initial_trials, list | tuple)
        if name == "initial_trials" and not is_list:  # another search, perhaps of another space
            given = _known_decisions(given, both)
        fixed = {**(estimator.fixed_architecture or {}), **(estimator.fixed_hyperparameters or {})}
        try:
            checked = [{**both.check(configuration, name), **fixed} for configuration in given]
        except ValueError as error:
            raise ValueError(f"{error} {_HOW_TO_START}" if is_list else str(error)) from error
        return [c for k, c in enumerate(checked) if c not in checked[:k]]

    def choose(self, candidates):
        """Select the members by the predictions of all trials on the held-out rows."""
        raw = np.stack(candidates.raw).astype("float64")  # (n_trials, n, n_raw)
        select = self._select_classifiers if self.classifies else self._select_regressors
        return check_selection(select(raw, candidates), len(raw))

    def _select_regressors(self, raw, candidates):
        """Select by the normal distributions that the trials predict."""
        selection, loss = self.estimator.selection, self.estimator.selection_loss
        loc, scale = self.head.distribution(raw)  # (n_trials, n, n_outputs) each
        given = candidates.y, loc, scale, self.estimator.n_members
        weight = candidates.weight
        if callable(selection):
            return selection(*given, sample_weight=weight)
        if selection == "hq":
            return select_hq(*given, sample_weight=weight)
        if selection == "top":
            return select_top(*given, sample_weight=weight, loss=loss)
        min_members = self.estimator.min_members
        return select_greedy(*given, sample_weight=weight, loss=loss, min_members=min_members)

    def _select_classifiers(self, raw, candidates):
        """Select by the class probabilities that the trials predict."""
        selection, n_members = self.estimator.selection, self.estimator.n_members
        y, weight = candidates.y[:, 0].astype(int), candidates.weight
        proba = self.head.probabilities(raw)  # (n_trials, n, n_classes)
        if callable(selection):
            return selection(y, proba, n_members, sample_weight=weight)
        if selection == "hq":
            return select_hq_proba(y, proba, n_members, sample_weight=weight)
        # An ensemble averages these statistics, and `loss` judges the average.
        if self.estimator.selection_loss == "brier":
            statistics, loss = brier_statistics(y, proba)
        else:
            statistics, loss = likelihood_statistics(class_log_likelihood(y, proba))
        if selection == "top":
            return select_best(statistics, loss, n_members, sample_weight=weight)
        min_members = self.estimator.min_members
        return select_forward(
            statistics,
            loss,
            n_members,
            min_members=min_members,
            min_weight=real_weight(min_members),
            sample_weight=weight,
        )


def paper_settings(name):
    """Return the parameters of one of the paper's experiments."""
    if name not in _PAPER_EXPERIMENTS:
        raise ValueError(f"`name` must be one of {sorted(_PAPER_EXPERIMENTS)}. Got {name!r}.")
    return {**_PAPER_SETTINGS, **_PAPER_EXPERIMENTS[name]}


def _n_folds(n_rows):
    """Return the number of folds for `n_rows` rows: fewer for large data, which train long."""
    if n_rows < 2 * _N_FOLDS:
        return max(2, n_rows // 2)
    return _N_FOLDS if n_rows <= _MANY_ROWS else _N_FOLDS_OF_MANY


_HOW_TO_START = (
    "To start from the best trials of a fitted search give its `catalog_`, or the `configuration` "
    "of one of its records."
)


def _known_decisions(configurations, space):
    """Leave out decisions of another search that this space does not have, with a warning."""
    unknown = sorted({name for c in configurations for name in c} - set(space.names))
    if not unknown:
        return configurations
    kept = [{k: v for k, v in c.items() if k in space.names} for c in configurations]
    if not any(kept):
        raise ValueError(
            "`initial_trials` must be trials of a similar search space. Got a search with the "
            f"decisions {unknown}, none of which this space has: {list(space.names)}."
        )
    warn_user(
        f"`initial_trials` has decisions that this search space does not have: {unknown}. They "
        "are left out."
    )
    return kept


def _best_configurations(trials):
    """Return the configurations of the best trials of a catalog, or of a search's folder."""
    catalog = trials if isinstance(trials, Catalog) else Catalog.load(find_search(trials))
    completed = [catalog[int(k)] for k in catalog.completed]
    if not completed:
        raise ValueError(
            f"`initial_trials` must have a completed trial to start from. Got {catalog!r}. Give "
            "another catalog, a list of configurations, or None."
        )
    best = sorted(completed, key=lambda record: record.score)[:_N_TAKEN_OVER]
    return [record.configuration for record in best]
