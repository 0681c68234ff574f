"""Base class of estimators that search: train many networks, keep all, and select an ensemble.

AutoDEUQ and NES share `SearchEstimator.fit`. They differ in the `SearchPlan` that each makes of its
parameters: the strategy, the space of networks, the rule of the selection, and defaults.
"""

from __future__ import annotations

import copy
import functools
import math
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import check_is_fitted

from skuq._messages import warn_user
from skuq._random import generator
from skuq.ensembles import Selection
from skuq.estimators._base import Given, fits, to_keras
from skuq.estimators._task import Task, join_validation, read_task
from skuq.estimators.methods._search_choice import (
    choose,
    choose_each,
    make_retraining,
    predict_candidates,
    recalibrate,
    trials_to_keep,
    warn_of_few_members,
    warn_of_few_validation_rows,
    warn_of_trials,
)
from skuq.estimators.methods._search_plan import (
    SearchPlan,
    bind_space,
    check_arguments,
    collect_held_out,
    criterion,
    default_epochs,
    is_splitter,
    resolve_rule,
    resolve_validation,
)
from skuq.estimators.methods._search_store import (
    SELECTION_PARAMETERS,
    begin_search,
    load_search,
    open_store,
    store_again,
)
from skuq.estimators.methods._trial_trainer import MemberRefitter, MemberRepeater, MemberTrainer
from skuq.exceptions import SearchFailedError
from skuq.fitted._ensemble import FittedEnsemble
from skuq.networks import Decisions, TabularSpace
from skuq.predictive._calibration import UNCALIBRATED
from skuq.search import Catalog, Limits, RunOptions, Search, SearchResult
from skuq.search._folder import read_retrained, with_decisions
from skuq.search._loop import Retraining
from skuq.search._proposers import Fixed, RandomProposer, StartingWith
from skuq.search._strategies import SearchProblem, fix_decisions
from skuq.tables._inputs import warn_of_few_rows

_MOST_TRIALS = 10_000  # largest number of trials with `max_time`
# A repeat may need only this share of its trial's time, since its program is compiled already.
_MIN_SHARE = 0.5


@dataclass(eq=False, repr=False)
class SearchEstimator:
    """Base class that searches, trains and selects."""

    n_trials: int | str = "auto"
    _: KW_ONLY
    n_members: int = 5
    search: Any = "auto"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
    calibrate: bool = True
    preprocess: Any = "auto"
    n_jobs: int | None = None
    catalog_dir: str | os.PathLike[str] | None = None
    max_time: float | None = None
    trial_timeout: float | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    #: Method that reads the parameters, with X of `fit` or None; ValueError if they contradict.
    _plan: ClassVar[Callable[..., SearchPlan]]
    #: Function that returns the parameters of the paper's experiments, by name.
    _papers: ClassVar[Any]
    #: Arrays of the candidates that a function given as `selection` gets, by argument.
    _selection_arrays: ClassVar[dict[str, str]] = {"log_likelihood": "log_likelihood"}

    # Attributes that `fit` sets.
    _folder: Any = field(init=False, default=None)  # of the trials, if warm_start has no other
    catalog_: Catalog = field(init=False)
    refitted_: dict[int, Any] = field(init=False)
    repeated_: dict[int, Any] = field(init=False)
    selection_: Selection = field(init=False)
    fitted_: FittedEnsemble = field(init=False)

    @fits
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        X_val=None,
        y_val=None,
        sample_weight_val=None,
        validation_data=None,
        shift_validation=None,
        groups=None,
    ):
        """Search, train and select.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features), or ndarray of shape (n, h, w, c)
            Numbers, booleans, strings and categories, with missing values, see `preprocess`.
            NES takes images of finite numbers, too.
        y : array-like of shape (n,) or, for several outputs, (n, n_outputs)
            Targets: numbers or classes.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows.
        X_val : array-like or DataFrame of shape (n_val, n_features), optional
            Rows to validate on, instead of a share of the rows above. The parameter `validation`
            must then be "auto" or None. Pipelines transform them with
            ``transform_input=["X_val"]``.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), optional
            Targets of `X_val`.
        sample_weight_val : array-like of shape (n_val,), optional
            Non-negative weights of the rows of `X_val`.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            `X_val`, `y_val` and `sample_weight_val` as one tuple, in place of these.
        shift_validation : tuple (X, y[, sample_weight]) or list of such tuples, optional
            Labelled rows from the distribution on which the model will be used, or a simulation
            of it, such as rows with added noise. A list holds several severities, the highest
            last. They are never trained on. The ensemble is selected on all of them
            together, each severity with the same weight; see `at_severity`. The evolution of NES
            uses the highest severity.
        groups : array-like of shape (n,), optional
            Groups; all rows of a group either train or validate, unless a splitter given as
            `validation` divides them.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data or parameters are invalid; the message explains which and why.
        SearchFailedError
            If no network could be trained; the message has the reasons.

        Notes
        -----
        If your own `selection` raises an error, no trial is lost: the exception's `estimator` holds
        them, and its `reselect` selects among them.
        """
        plan = self._plan(X)
        validation_data = join_validation(validation_data, X_val, y_val, sample_weight_val)
        given = Given(X, y, sample_weight, validation_data, groups, shift_validation)
        check_arguments(self, plan, given)
        task = read_task(self, plan.inputs, plan.targets, given, min_rows=2)
        vars(self).update(task.attributes)
        validation, n_used = resolve_validation(self, plan, task)
        # A user's splitter can make other folds each time, so that the folds identify the search.
        splits = task.make_splits(validation) if is_splitter(validation) else None
        folds = None if splits is None else splits.parts
        with open_store(self, plan, task, folds, self._time_left(task)) as store:
            if store is not None:
                if self._folder is not None and store.entropy is None and hasattr(self, "fitted_"):
                    warn_user(
                        "`warm_start` cannot go on with the last fit: it had other data or "
                        "settings, or its trials are not in this copy. A new search starts."
                    )
                task = replace(task, entropy=store.entropy or task.entropy)
            task = task.with_splits(splits or task.make_splits(validation, n_used=n_used))
            task = task.with_linear_part() if isinstance(plan.space, TabularSpace) else task
            warn_of_few_validation_rows(task.splits, task.shifted)
            search, decisions = self._make_search(plan, task, store)
            # Everything that is known before the first trial: the scales, and no networks.
            found = self._copy(
                **({"classes_": task.targets.classes} if is_classifier(self) else {}),
                **({"image_shape_": getattr(task.inputs, "shape", None)} if plan.images else {}),
                decisions_=decisions,
                entropy_=task.entropy,
                catalog_path_=None if self.catalog_dir is None else store.path,
                preprocessor_=task.inputs.preprocessor,
                fitted_=FittedEnsemble(task.inputs, task.targets, (), np.empty(0)),
            )
            if store is not None:
                begin_search(store, found, task.entropy, decisions, search.held_out)
            result = search.run()
            chosen = choose_each(found, plan.rule, result)
            retraining = make_retraining(found, plan, result, chosen)
            if retraining is not None and not result.interrupted:
                result = self._train_again(retraining, plan, task, search, validation, n_used)
                chosen = recalibrate(found, chosen, result)
            vars(self).update(vars(found._predict_by(result, chosen)))
            self.fitted_ = self.fitted_.with_far_uncertainty(task.rows, task.entropy)
            if store is not None:
                found.fitted_ = replace(found.fitted_, far=self.fitted_.far)
                store_again(store, found)
        warn_of_few_members(self, plan.rule, self.n_members)
        warn_of_trials(self, task)
        return self

    def _make_search(self, plan: SearchPlan, task: Task, store: Any) -> tuple[Search, Decisions]:
        """Make the search, and list the decisions that it could vary."""
        held_out, x_of_trials = collect_held_out(task)
        space, head = bind_space(plan, task), task.targets.head
        decisions = space.decisions(task.data.x.shape[1:], head.n_raw)
        max_epochs = None if isinstance(self.epochs, str) else self.epochs
        strategy = plan.strategy
        trainer = MemberTrainer(
            space,
            task.data,
            head,
            max_epochs or default_epochs(plan, space, decisions, task.splits.n_train),
            held_out=x_of_trials,
            folds=task.splits.parts,
            timeout=self.trial_timeout,
            max_epochs=max_epochs,
            objective=strategy.objective,
            calibrate=self.calibrate,
        )
        # Parents are selected on the clean rows, or on those of the highest severity.
        parts = [held_out.sets[0], *held_out.sets[1:][-1:]]
        n_trials, fixed = self._count_trials(plan), self.fixed or {}
        problem = SearchProblem(
            fix_decisions(decisions, fixed),
            n_trials,
            plan.n_trials if isinstance(self.n_trials, str) else n_trials,
            getattr(space, "mutate", None),
            [functools.partial(criterion, head, plan.rule.loss, part) for part in parts],
            getattr(space, "n_trainings", 1),
        )
        proposer = strategy.proposer(problem)
        # A search that knows all configurations trains them as one program.
        in_stacks = plan.stacks and isinstance(proposer, Fixed | RandomProposer)
        known = plan.starts_with_recipes and hasattr(space, "known_recipes")
        recipes = space.known_recipes() if known else []
        first = strategy.initial_configurations(decisions, recipes, fixed)
        entropy = task.entropy
        if plan.stacks:
            # A baseline has the same split of the rows as its search, and other networks.
            entropy = int(generator(entropy, "one architecture").integers(1, 2**31 - 1))
        options = self._options(
            "search",
            self.n_trials,
            "objective" if strategy.objective is not None else "NLL",
            max_time=self._time_left(task, plan.search_share),
            first_trials=self._time_left(task),
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
            seconds=math.inf if self.max_time is None else self.max_time,
        )
        return search, decisions

    def _count_trials(self, plan: SearchPlan) -> int:
        """Return the number of trials; with `max_time`, "auto" is as many as fit into it."""
        if not isinstance(self.n_trials, str):
            return self.n_trials
        n_trials = plan.n_trials if self.max_time is None else _MOST_TRIALS
        oracle = getattr(plan.strategy, "oracle", None)  # of Keras-Tuner, which may have its own
        return min(n_trials, getattr(oracle, "max_trials", None) or n_trials)

    def _options(self, name: str, number: Any, score_name: str, **limits: Any) -> RunOptions:
        """Make the options of a search, or of a training after it, with these limits.

        `number` is what the user gave for the number of trials or repeats: "auto" with a limit of
        time means as many as fit into it.
        """
        is_open = isinstance(number, str) and limits.get("max_time") is not None
        all_limits = Limits(trial_timeout=self.trial_timeout, **limits)
        return RunOptions(self.n_jobs, all_limits, self.verbose, name, score_name, is_open)

    def _time_left(self, task: Task, share: float = 1.0) -> float | None:
        """Return the seconds that are left of a share of `max_time`; None without a limit."""
        return None if self.max_time is None else max(0.01, task.seconds_left(self.max_time, share))

    def _train_again(
        self,
        retraining: Retraining,
        plan: SearchPlan,
        task: Task,
        search: Search,
        validation: Any,
        n_used: int | None,
    ) -> SearchResult:
        """Train selected trials again: refit them on all rows, or repeat them.

        Repeats have other seeds and other folds, if there are folds. None starts once less than
        half of the time of the fastest is left, and those that are cut short are not used.
        """
        score, store = "NLL", search.store
        if retraining.kind == "refit":
            options = self._options("refit", None, score, raise_on_failures=False)
            return retraining.train(search, MemberRefitter, options, store)
        max_time = None
        if self.max_time is not None:
            max_time = task.seconds_left(self.max_time)
            times = [t.seconds / t.share for t in retraining.trials if t.share > 0]
            if max_time <= _MIN_SHARE * min(times, default=0.0):
                # Start no workers: an earlier fit may have stored some.
                stored = [] if store is None else retraining.read_stored(store.retrained)
                return retraining.join(stored)
        folds: Any = None
        if task.splits.parts is not None:
            rounds = range(1, 1 + plan.n_repeats)
            folds = [task.make_splits(validation, repeat=k, n_used=n_used).parts for k in rounds]
        options = self._options(
            "repeats",
            getattr(self, "repeats", "auto"),
            score,
            max_time=max_time,
            raise_on_failures=False,
            needs_success=False,
        )
        repeat = functools.partial(MemberRepeater, folds=folds)
        return retraining.train(search, repeat, options, store)

    # -------------------------------------------------------------- selection

    def _predict_by(self, result: SearchResult, chosen: dict[str, Any]) -> Any:
        """Return a copy that predicts by a selection; `chosen` are attributes that describe it."""
        members, weights = result.members(chosen["selection_"])
        ensemble = replace(
            self.fitted_, members=members, weights=weights, calibration=chosen["calibration_"]
        )
        return self._copy(
            catalog_=result.catalog,
            refitted_=result.refitted,
            repeated_=result.repeated,
            **chosen,
            fitted_=ensemble,
        )

    _result = property(lambda self: SearchResult(self.catalog_, self.refitted_, self.repeated_))

    def reselect(self, X=None, y=None, sample_weight=None, **settings):
        """Select another ensemble from the networks of the search, without training.

        `fit` selects before it repeats trials (`repeats` of AutoDEUQ), and `reselect` afterwards:
        by predictions that average the networks of the repeats. So it can find other members and
        weights with the same settings. With ``refit=True``, members are then the networks of the
        search, with a warning.

        Parameters
        ----------
        X, y, sample_weight : optional
            Rows to select on, as in `fit`. They must not be training rows, and should be from the
            distribution on which the model is used now. By default the rows held out in `fit`.
        **settings : dict
            Values of the parameters of the selection, such as `n_members`, `selection` and
            ``selection__loss``, for this selection only. The parameters of the estimator do not
            change.

        Returns
        -------
        self
            The estimator with a new `selection_`.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members only, or the arguments are
            invalid.

        Warns
        -----
        SmallValidationWarning
            If there are fewer than 100 rows to select on.
        """
        check_is_fitted(self, "catalog_")
        is_new = self._gives_rows(X, y, sample_weight)
        own = self.get_params(deep=False)
        allowed = [name for name in SELECTION_PARAMETERS if name in own]
        if unknown := sorted(k for k in settings if k.partition("__")[0] not in allowed):
            raise ValueError(f"`reselect` can change the parameters {allowed}. Got {unknown}.")
        # Settings are cloned, since those of the estimator do not change.
        other = self._copy(selection=clone(self.selection, safe=False)).set_params(**settings)
        other._validate_params()
        rule = resolve_rule(other)
        result, head = self._result, self.fitted_.targets.head
        result.check_complete()
        chosen = {}
        if not hasattr(self, "selections_"):  # `selection` raised an error in `fit`
            chosen = choose_each(other, rule, result)
        if not is_new:
            # The predictions of trials include their repeats.
            candidates = result.candidates(head, indices=self.catalog_.completed)
        else:
            # Without refits, which the new selection gives up.
            trials = [result.member(k).networks for k in self.catalog_.completed]
            candidates = predict_candidates(self, trials, X, y, sample_weight)
            warn_of_few_rows(np.count_nonzero(candidates.sample_weight), "More rows may help.")
        selection, calibration = choose(other, rule, candidates, self.catalog_)
        chosen |= {"selection_": selection, "calibration_": calibration}
        had_refits = bool(result.refitted)
        vars(self).update(vars(self._predict_by(replace(result, refitted={}), chosen)))
        if had_refits:
            warn_user(
                "`reselect` trains nothing: members are now the networks of the search instead of "
                "those refitted on all rows. Call `fit` to refit them."
            )
        warn_of_few_members(self, rule, other.n_members)
        return self

    def leaderboard(self, X=None, y=None, sample_weight=None):
        """Tabulate the trials from the best on, with their weights in the ensemble.

        With further rows the best trial is the one that is best on them.

        Parameters
        ----------
        X, y, sample_weight : optional
            Further rows to score each trial on, by the networks with which it would predict: those
            of the search and of its repeats, or the refitted one.

        Returns
        -------
        DataFrame
            Columns: `trial`, `status`, `score` on the held-out rows or value of the `objective`
            (smaller is better), `new_score` if X and y are given, `weight` in the ensemble,
            `seconds`, `share` of the full training, `n_networks` with repeats, `n_weights` of all
            of them (missing for networks that a pickle has left behind), and the decisions of the
            configuration. A decision with the name of one of these columns has ``decision_``
            before it. If a trial has failed, the last column is `message`, the reason.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members only, and X is given, or if only
            one of X and y, or only weights, are given.
        """
        check_is_fitted(self)
        new_scores = None
        if self._gives_rows(X, y, sample_weight):
            self._result.check_complete()
            trials = [self._result.networks(k) for k in self.catalog_.completed]
            candidates = predict_candidates(self, trials, X, y, sample_weight)
            scores = [
                candidates.head.scores(candidates.y, raw.astype("float64"))
                for raw in candidates.raw
            ]
            new_scores = [
                float(np.average(score, weights=candidates.sample_weight)) for score in scores
            ]
        catalog = self._result.catalog
        weights = dict(zip(self.selection_.indices.tolist(), self.selection_.weights.tolist()))
        new = dict(zip(catalog.completed.tolist(), new_scores or []))
        rows = []
        for k, record in enumerate(catalog):
            networks = self._result.networks(k) if record.completed else ()
            row = {
                "trial": record.trial_number,
                "status": record.status,
                "score": record.score,
                **({} if new_scores is None else {"new_score": new.get(k, np.nan)}),
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
        score = "score" if new_scores is None else "new_score"
        return frame.sort_values(score, kind="stable", ignore_index=True)

    def _gives_rows(self, X, y, sample_weight):
        """Tell whether the user gives rows; raise ValueError if they are not complete."""
        is_new = X is not None
        if is_new != (y is not None) or (sample_weight is not None and not is_new):
            raise ValueError("Give both X and y, or neither and no weights.")
        return is_new

    def at_severity(self, severity):
        """Return a copy whose ensemble is selected on one of the held-out sets.

        Parameters
        ----------
        severity : int
            Number of the set: 0 for the clean validation rows, k for the k-th set of
            `shift_validation`.

        Returns
        -------
        estimator
            Fitted copy, which shares its networks with this estimator.
        """
        check_is_fitted(self)
        if not isinstance(severity, Integral) or not 0 <= severity < len(self.selections_):
            among = f"in 0..{len(self.selections_) - 1}"
            if len(self.selections_) == 1:
                among = "0, as `fit` got no `shift_validation`"
            raise ValueError(f"`severity` must be an integer {among}. Got {severity!r}.")
        selection, calibration = self.selections_[severity], self.calibrations_[severity]
        chosen = {"selection_": selection, "calibration_": calibration}
        return self._predict_by(self._result, chosen)

    def member_estimators(self, *, every_trial=False):
        """Return each member as a fitted estimator with one trial.

        Parameters
        ----------
        every_trial : bool, default=False
            Return all completed trials of the catalog, without refits and repeats, instead of the
            members. They are the networks that the search compares, to which nothing is added away
            from the training rows.

        Returns
        -------
        list of (str, estimator) tuples
            Named estimators, for example for ``HQEnsembleSelector(pool, cv="prefit")``. Fit it on
            rows on which the networks were not trained: held-out rows or, with folds and `refit`,
            which train on all rows, new ones.
        """
        check_is_fitted(self)
        result, indices = self._result, self.selection_.indices
        if every_trial:
            result.check_complete()
            result, indices = SearchResult(self.catalog_), self.catalog_.completed
        n_sets = len(self.selections_)

        def alone(k):
            one = Selection(np.array([k]), np.ones(1))
            chosen = {
                "selection_": one,
                "selections_": (one,) * n_sets,
                # The calibration is only valid for the whole ensemble.
                "calibration_": UNCALIBRATED,
                "calibrations_": (UNCALIBRATED,) * n_sets,
            }
            estimator = self._predict_by(result, chosen)
            if every_trial:
                estimator.fitted_ = replace(estimator.fitted_, far=None)
            return estimator

        return [(f"trial{k}", alone(k)) for k in indices]

    to_keras = to_keras

    @classmethod
    def from_paper(cls, name=None, **changes):
        """Make an estimator with the settings of one of the paper's experiments.

        The estimator does not calibrate its uncertainty, as the papers do not. By AutoDEUQ's rule
        an ensemble may have a single member, whose epistemic uncertainty is 0: `fit` warns, and
        ``selection="greedy"`` prevents it.

        Parameters
        ----------
        name : str, optional
            Of AutoDEUQ: "benchmark", the default, is the regression benchmark (500 trials of fully
            connected networks with skip connections, five members), "toy" the one-dimensional task
            of Fig. 1 and 2. Of NES: "darts", the default, and "nas-bench-201" are the spaces of
            images (400 trials by evolution of architectures, population 50, 10 parents); "dense"
            is the same on tables, which the paper does not have.
        **changes : dict
            Parameters that differ from those settings, by name.

        Returns
        -------
        estimator

        Raises
        ------
        ValueError
            If there is no such experiment.

        Examples
        --------
        >>> from skuq import AutoDEUQRegressor
        >>> AutoDEUQRegressor.from_paper(n_trials=20).n_members
        5
        """
        known = cls._papers()
        name = next(iter(known)) if name is None else name
        if name not in known:
            raise ValueError(f"`name` must be one of {sorted(known)}. Got {name!r}.")
        return cls(**known[name]).set_params(**changes)

    # ---------------------------------------------------------- keeping trials

    @classmethod
    def from_catalog(cls, path, *, trusted=None, **params):
        """Make a fitted estimator from the folder of a finished or unfinished search.

        Nothing is trained, and no data are needed: the ensemble is selected again from the
        stored trials. To continue the search, call `fit` with the same data and the same
        `catalog_dir`. The uncertainty that is added far from the rows is that of the last `fit`
        that has ended; until then there is none.

        Parameters
        ----------
        path : path
            The `catalog_dir` of the search, or the folder in it if it holds several searches.
        trusted : list of str or type, optional
            Trusted types in a scikit-learn transformer given as `preprocess`, see `skuq.load`.
        **params : dict
            Parameters that do not change trials: those of the selection, such as `n_members`, and
            of the run, such as `n_trials` to take the first trials only. Also your own functions
            and objects, such as a `space`, which are not stored and are needed to fit again.

        Returns
        -------
        estimator
            Fitted estimator.

        Raises
        ------
        FileNotFoundError
            If the folder holds no search.
        ValueError
            If it holds several searches, or a parameter cannot be changed afterwards.
        TypeError
            If the search belongs to another estimator.
        SearchFailedError
            If no trial has succeeded yet.
        FileFormatError
            If a file is broken.
        """
        estimator, catalog = load_search(cls, path, trusted, params)
        plan = estimator._plan(None)
        n_trials = estimator._count_trials(plan)
        first = Catalog([r for r in catalog if r.trial_number < n_trials], catalog.held_out)
        if not len(first.completed):
            raise SearchFailedError(
                f"None of the {len(first)} trials in {estimator.catalog_path_} has succeeded.",
                first.records,
            )
        result = SearchResult(first)
        chosen = choose_each(estimator, plan.rule, result)
        retraining = make_retraining(estimator, plan, result, chosen)
        if retraining is not None:
            records = retraining.read_stored(
                functools.partial(read_retrained, estimator.catalog_path_)
            )
            result = retraining.join(records)
            chosen = recalibrate(estimator, chosen, result)
            # With a limit of time, `fit` may have trained only some of the repeats.
            n_all = len(retraining.requests)
            if len(records) < (n_all if estimator.max_time is None else 1):
                warn_user(
                    f"{n_all - len(records)} of {n_all} {retraining.kind}s of the chosen "
                    "trials are not stored. In their place, the networks of the search "
                    "predict. `fit` with the same rows trains them."
                )
        estimator = estimator._predict_by(result, chosen)
        warn_of_few_members(estimator, plan.rule, estimator.n_members)
        return estimator

    def _copy(self, **changes):
        """Copy the estimator with everything that it holds, trials outside the ensemble too."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    __copy__ = _copy

    def __deepcopy__(self, memo):
        # Copy all trials, unlike a pickle.
        other = memo[id(self)] = object.__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __getstate__(self):
        # Pickle only the weights of members, so that the file is small, and each network once.
        state = {name: v for name, v in super().__getstate__().items() if name != "_folder"}
        if "selection_" in state:
            trained = self.refitted_.keys() | self.repeated_.keys()  # they have arrays of their own
            kept = [k for k in trials_to_keep(state) if k not in trained]
            state["catalog_"] = self.catalog_.keep_arrays_of(kept)
            state["fitted_"] = replace(self.fitted_, members=(), weights=np.empty(0))
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        if "selection_" in state:
            chosen = {"selection_": self.selection_, "calibration_": self.calibration_}
            vars(self).update(vars(self._predict_by(self._result, chosen)))

    def __sklearn_is_fitted__(self):
        return hasattr(self, "selection_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # With several jobs the order in which trials finish differs from run to run, and with a
        # time limit their number.
        tags.non_deterministic = self.n_jobs not in (None, 1) or self.max_time is not None
        return tags
