"""Base class of estimators that search: train many networks, keep all, and select an ensemble.

AutoDEUQ and NES share `SearchEstimator.fit`. They differ in the `SearchPlan` that each makes of its
parameters: the strategy, the space of networks, the rule of the selection, and defaults.
"""

import copy
import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone, is_classifier

from skuq._messages import warn_user
from skuq._random import generator
from skuq.estimators._base import Fit, Given, Predictor, unfitted_copy
from skuq.estimators._task import (
    Task,
    join_validation,
    read_task,
    warn_if_worse_than_constant,
    warn_of_short_training,
)
from skuq.estimators.methods import _search_plan, _search_store
from skuq.estimators.methods._trial_trainer import MemberRefitter, MemberTrainer
from skuq.exceptions import SearchFailedError
from skuq.fitted._searched import EnsembleRule, FittedSearch, without_networks
from skuq.networks import Decisions
from skuq.search import Catalog, Limits, RunOptions, Search, SearchResult, _strategies
from skuq.search._folder import has_estimator, read_refits, write_estimator
from skuq.search._loop import Refits
from skuq.tables._inputs import read_validation_rows, warn_of_few_rows
from skuq.tables._splits import standardise_rows


class SearchEstimator(Predictor):
    """Base class that searches, trains and selects."""

    #: Method that reads the parameters, with X of `fit` or None; ValueError if they contradict.
    _plan: ClassVar[Callable[..., _search_plan.SearchPlan]]
    #: Method that returns the parameters of the paper's experiments, by name.
    _papers: ClassVar[Callable[..., dict[str, dict[str, Any]]]]
    #: Arrays of the candidates that a function given as `selection` gets, by argument.
    _selection_arrays: ClassVar[dict[str, str]] = {"log_likelihood": "log_likelihood"}

    _exports_keras = True
    _folder: Any = None  # `TemporaryFolder` of the trials, if `warm_start` has no other

    # What the fitted search holds; the class docstrings describe it.
    catalog_ = property(attrgetter("fitted_.catalog"), doc="")
    refitted_ = property(attrgetter("fitted_.trials.refitted"), doc="")
    selection_ = property(attrgetter("fitted_.choice.selection"), doc="")
    calibration_ = property(attrgetter("fitted_.choice.calibration"), doc="")
    selections_ = property(lambda self: tuple(c.selection for c in self.fitted_.choices), doc="")
    preprocessor_ = property(attrgetter("fitted_.inputs.preprocessor"), doc="")

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
        If your own `selection` raises an error, no trial is lost: they are in a folder, which the
        error names, and `from_catalog` selects among them.
        """
        # The trials of a warm start are in the folder also if this fit fails, for the next one.
        has_folder = self.catalog_dir is not None or not self.warm_start
        self._folder = None if has_folder else self._folder or _search_store.TemporaryFolder()
        validation = join_validation(validation_data, X_val, y_val, sample_weight_val)
        return self._fit_by(Given(X, y, sample_weight, validation, groups, shift_validation))

    def _fit(self, given: Given) -> Fit:
        plan = self._plan(given.X)
        _search_plan.check_arguments(self, plan, given)
        task = read_task(self, plan.inputs, plan.targets, given, min_rows=2)
        validation, n_used = self.validation, None  # number of folds that are used, if not all
        if isinstance(validation, str):
            validation, n_used = plan.defaults.validation(self, task)
        # A user's splitter can make other folds each time, so that the folds identify the search.
        is_splitter = not isinstance(validation, Real | str | None)
        splits = task.make_splits(validation) if is_splitter else None
        folds = None if splits is None else splits.parts
        parts = functools.partial(_search_store.identify, self, plan, task, folds)
        with _search_store.open_store(self, parts, time_left(self, task)) as store:
            task = replace(task, entropy=self._entropy_of(store) or task.entropy)
            task = task.with_splits(splits or task.make_splits(validation, n_used=n_used))
            task = plan.defaults.prepare(task)
            warn_of_few_validation_rows(task)
            search, decisions = make_search(self, plan, task, store)
            # Everything that is known before the first trial.
            attributes = {
                **task.attributes,
                **({"classes_": task.targets.classes} if is_classifier(self) else {}),
                **({"image_shape_": getattr(task.inputs, "shape", None)} if plan.images else {}),
                "decisions_": decisions,
            }
            empty = without_networks(task.inputs, task.targets)
            params = self.get_params(deep=False)
            start = _search_store.SearchStart(type(self).__name__, params, attributes, empty)
            if store is not None:
                loadable = self.catalog_dir is not None
                _search_store.begin_search(store, self, start, search.held_out, loadable=loadable)
            trials, rule = search.run(), self._ensemble_rule(plan.rule)
            with _search_store.keeping_trials(store, self, start, parts, trials.catalog):
                fitted = FittedSearch.of_trials(empty, trials, rule)
                if self.refit and not trials.interrupted:  # the chosen trials only
                    refits = Refits(trials, fitted.chosen_trials.tolist())
                    options = _run_options(self, "refit", None, "NLL", raise_on_failures=False)
                    trials = refits.train(search, MemberRefitter, options, store)
                    fitted = replace(fitted, trials=trials)
                if self.calibrate:
                    fitted = fitted.finish(functools.partial(plan.defaults.finish, task=task))
            # Calibration may have added to what `from_catalog` needs.
            if store is not None and has_estimator(store.path):
                start = start._replace(empty=fitted.empty)
                write_estimator(store.path, start.to_bytes(self))
        limit = self.max_time if len(fitted.catalog) < count_trials(self, plan) else None
        warn_of_few_members(fitted, rule, limit, time.monotonic() - task.started)
        warn_of_trials(fitted, task, self.max_time)
        path = None if self.catalog_dir is None else store.path
        return Fit(fitted, {**attributes, "catalog_path_": path})

    def _entropy_of(self, store: Any) -> int | None:
        """Return the origin of the random numbers of a stored search; None of a new one."""
        if store is None:
            return None
        if self._folder is not None and store.entropy is None and "fitted_" in vars(self):
            warn_user(
                "`warm_start` cannot go on with the last fit: it had other data or settings, or "
                "its trials are not in this copy. A new search starts."
            )
        return store.entropy

    def _ensemble_rule(self, rule: Any) -> EnsembleRule:
        return EnsembleRule(rule, self.n_members, self.calibrate, self.refit)

    def reselect(self, X=None, y=None, sample_weight=None, **settings):
        """Select another ensemble from the networks of the search, without training.

        With ``refit=True``, members are then the networks of the search, with a warning.

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
        fitted, own = self.fitted_, self.get_params(deep=False)
        allowed = [name for name in _search_store.SELECTION_PARAMETERS if name in own]
        if unknown := sorted(k for k in settings if k.partition("__")[0] not in allowed):
            raise ValueError(f"`reselect` can change the parameters {allowed}. Got {unknown}.")
        # Settings are cloned, since those of the estimator do not change.
        other = unfitted_copy(self)
        other.selection = clone(self.selection, safe=False)
        other.set_params(**settings)._validate_params()
        rule = other._ensemble_rule(_search_plan.resolve_rule(other))
        candidates = self._predict_trials(X, y, sample_weight, refits=False)
        if candidates is not None:
            warn_of_few_rows(np.count_nonzero(candidates.sample_weight), "More rows may help.")
        # All networks of a trial have predicted further rows, and will predict.
        rule = replace(rule, refits=candidates is not None)
        self.fitted_ = fitted.select(rule, candidates)
        if fitted.trials.refitted:
            warn_user(
                "`reselect` trains nothing: members are now the networks of the search instead of "
                "those refitted on all rows. Call `fit` to refit them."
            )
        warn_of_few_members(self.fitted_, rule)
        return self

    def leaderboard(self, X=None, y=None, sample_weight=None):
        """Tabulate the trials from the best on, with their weights in the ensemble.

        With further rows the best trial is the one that is best on them.

        Parameters
        ----------
        X, y, sample_weight : optional
            Further rows to score each trial on, by the networks with which it would predict: those
            of the search, or the refitted one.

        Returns
        -------
        DataFrame
            Columns: `trial`, `status`, `score` on the held-out rows or value of the `objective`
            (smaller is better), `new_score` if X and y are given, `weight` in the ensemble,
            `seconds`, `share` of the full training, `n_networks`, `n_weights` of all
            of them (missing for networks that a pickle has left behind), and the decisions of the
            configuration. A decision with the name of one of these columns has ``decision_``
            before it. If a trial has failed, the last column is `message`, the reason.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members only, and X is given, or if only
            one of X and y, or only weights, are given.
        """
        return self.fitted_.leaderboard(self._predict_trials(X, y, sample_weight, refits=True))

    def _predict_trials(self, X, y, sample_weight, *, refits):
        """Predict the user's rows with every trial; None without rows."""
        if (X is None) != (y is None) or (sample_weight is not None and X is None):
            raise ValueError("Give both X and y, or neither and no weights.")
        if X is None:
            return None
        fitted, rows = self.fitted_, (X, y) if sample_weight is None else (X, y, sample_weight)
        rows = read_validation_rows(self, fitted.inputs, fitted.targets, rows, "X, y")
        x, y, weight = standardise_rows(rows, fitted.inputs, fitted.targets)
        return fitted.predict_trials(x, y, weight, refits=refits)

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
        return self._predicting_by(self.fitted_.at(severity))

    def _predicting_by(self, fitted: FittedSearch) -> Any:
        """Copy the estimator, with another fitted search."""
        copied = copy.copy(self)
        copied.fitted_ = fitted
        return copied

    def member_estimators(self, *, every_trial=False):
        """Return each member as a fitted estimator with one trial.

        Parameters
        ----------
        every_trial : bool, default=False
            Return all completed trials of the catalog, without refits, instead of the members.
            They are the networks that the search compares, to which nothing is added away from the
            training rows.

        Returns
        -------
        list of (str, estimator) tuples
            Named estimators, for example for ``HQEnsembleSelector(pool, cv="prefit")``. Fit it on
            rows on which the networks were not trained: held-out rows or, with folds and `refit`,
            which train on all rows, new ones.
        """
        fitted, indices = self.fitted_, self.selection_.indices
        if every_trial:
            fitted.trials.check_complete()
            indices = self.catalog_.completed
        return [
            (f"trial{k}", self._predicting_by(fitted.of_one_trial(int(k), as_searched=every_trial)))
            for k in indices
        ]

    @classmethod
    def from_paper(cls, name=None, **changes):
        """Make an estimator with the settings of one of the paper's experiments.

        Where AutoDEUQ's paper gives no value, its published code does. Members predict alone. By
        AutoDEUQ's rule an ensemble may have a single member, whose epistemic uncertainty is 0:
        `fit` warns, and ``selection="greedy"`` prevents it.

        Parameters
        ----------
        name : str, optional
            Of AutoDEUQ: "benchmark", the default, is the regression benchmark (500 trials of fully
            connected networks with skip connections, five members), "toy" the one-dimensional task
            of Fig. 1 and 2. Of NES: the data set, "cifar-10" (default), "cifar-100",
            "fashion-mnist", "tiny-imagenet" or "imagenet-16-120" (`validation_data` of the last two
            are their own), or "dense" for tables, which the paper does not have.
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
        estimator, start, catalog, path = _search_store.load_search(cls, path, trusted, params)
        shape = start.attributes.get("image_shape_")
        plan = estimator._plan(None if shape is None else np.empty((0, *shape)))
        n_trials = count_trials(estimator, plan)
        first = Catalog([r for r in catalog if r.trial_number < n_trials], catalog.held_out)
        if not len(first.completed):
            raise SearchFailedError(
                f"None of the {len(first)} trials in {path} has succeeded.", first.records
            )
        rule = estimator._ensemble_rule(plan.rule)
        fitted = FittedSearch.of_trials(start.empty, SearchResult(first), rule)
        if estimator.refit:
            refits = Refits(fitted.trials, fitted.chosen_trials.tolist())
            records, n_all = refits.find(read_refits(path)), len(refits.indices)
            fitted = replace(fitted, trials=refits.join(records))
            if len(records) < n_all:
                warn_user(
                    f"{n_all - len(records)} of {n_all} refits of the chosen trials are not "
                    "stored. In their place, the networks of the search predict. `fit` with the "
                    "same rows trains them."
                )
        warn_of_few_members(fitted, rule)
        return estimator._take_over(Fit(fitted, {**start.attributes, "catalog_path_": path}))

    # ------------------------------------------------------------------ copies

    def __getstate__(self) -> dict[str, Any]:
        # Files hold neither the folder of a warm start nor the networks outside of the ensemble.
        state = {name: v for name, v in super().__getstate__().items() if name != "_folder"}
        if "fitted_" in state:
            state["fitted_"] = self.fitted_.members_only()
        return state

    def __deepcopy__(self, memo: Any) -> Any:
        other = memo[id(self)] = object.__new__(type(self))
        other.__setstate__(copy.deepcopy(vars(self), memo))
        return other

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With several jobs the order in which trials finish differs from run to run, and with a
        # time limit their number.
        tags.non_deterministic = self.n_jobs not in (None, 1) or self.max_time is not None
        return tags


_MOST_TRIALS = 10_000  # largest number of trials with `max_time`
_MIN_SHARE = 0.5  # a search that took more of `max_time` ended because of it
_MOST_FAILURES = 0.25  # share of trials that may fail without a warning


# --------------------------------------------------------------------------------------- search


def count_trials(estimator: Any, plan: _search_plan.SearchPlan) -> int:
    """Return the number of trials; with `max_time`, "auto" is as many as fit into it."""
    if not isinstance(estimator.n_trials, str):
        return estimator.n_trials
    n_trials = plan.defaults.n_trials if estimator.max_time is None else _MOST_TRIALS
    oracle = getattr(plan.strategy, "oracle", None)  # of Keras-Tuner, which may have its own
    return min(n_trials, getattr(oracle, "max_trials", None) or n_trials)


def time_left(estimator: Any, task: Task) -> float | None:
    """Return the seconds that are left of `max_time`; None without a limit."""
    return None if estimator.max_time is None else max(0.01, task.seconds_left(estimator.max_time))


def _run_options(estimator: Any, name: str, number: Any, score: str, **limits: Any) -> RunOptions:
    """Make the options of a search, or of a training after it, with these limits.

    `number` is what the user gave for the number of trials: "auto" with a limit of time means as
    many as fit into it.
    """
    is_open = isinstance(number, str) and limits.get("max_time") is not None
    all_limits = Limits(trial_timeout=estimator.trial_timeout, **limits)
    return RunOptions(estimator.n_jobs, all_limits, estimator.verbose, name, score, is_open)


def _make_proposer(
    estimator: Any,
    plan: _search_plan.SearchPlan,
    space: Any,
    head: Any,
    decisions: Decisions,
    held_out: Any,
) -> Any:
    """Let the strategy make its proposer for this space and number of trials."""
    # Parents are selected on the clean rows, or on those of the highest severity.
    parts = [held_out.sets[0], *held_out.sets[1:][-1:]]
    n_trials = count_trials(estimator, plan)
    problem = _strategies.SearchProblem(
        _strategies.fix_decisions(decisions, estimator.fixed or {}),
        n_trials,
        # Populations are sized by the number of trials that is planned, not by what `max_time`
        # may let in.
        plan.defaults.n_trials if isinstance(estimator.n_trials, str) else n_trials,
        getattr(space, "mutate", None),
        [functools.partial(_search_plan.criterion, head, plan.rule.loss, part) for part in parts],
        getattr(space, "n_trainings", 1),
    )
    return plan.strategy.proposer(problem)


def make_search(
    estimator: Any, plan: _search_plan.SearchPlan, task: Task, store: Any
) -> tuple[Search, Decisions]:
    """Make the search, and list the decisions that it can vary."""
    held_out, x_of_trials = _search_plan.collect_held_out(task)
    space, head, strategy = plan.defaults.bind(plan.space, task), task.targets.head, plan.strategy
    decisions = space.decisions(task.data.x.shape[1:], head.n_raw)
    max_epochs = None if isinstance(estimator.epochs, str) else estimator.epochs
    # Trials are evaluated in workers by this trainer: it has the rows, and needs no estimator.
    trainer = MemberTrainer(
        space,
        task.data,
        head,
        max_epochs or _search_plan.default_epochs(plan, space, decisions, task.splits.n_train),
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
    known = plan.defaults.starts_with_recipes and hasattr(space, "known_recipes")
    recipes = space.known_recipes() if known else []
    first = strategy.initial_configurations(decisions, recipes, fixed)
    entropy = task.entropy
    if plan.is_baseline:
        # A baseline has the same split of the rows as its search, and other networks.
        entropy = int(generator(entropy, "one architecture").integers(1, 2**31 - 1))
    score = "NLL" if strategy.objective is None else "objective"
    left = time_left(estimator, task)
    options = _run_options(estimator, "search", estimator.n_trials, score, max_time=left)
    search = Search(
        trainer,
        _strategies.StartingWith(first, proposer) if first else proposer,
        n_trials,
        entropy,
        held_out=held_out,
        store=store,
        options=options,
        pack_size=plan.pack_size(task),
        seconds=math.inf if estimator.max_time is None else estimator.max_time,
    )
    return search, decisions


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
