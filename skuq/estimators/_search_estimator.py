"""Base class of estimators that search: train many networks, keep all, and select an ensemble.

AutoDEUQ and NES share `SearchEstimator.fit`. They differ in their `SearchMethod`, which defines
the search space, the proposer and the selection of members.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from skuq._params import HasMethods, Hidden, Interval, fit_context
from skuq._seeds import draw_entropy
from skuq._warnings import warn_user
from skuq.catalog import HeldOut
from skuq.catalog._catalog import with_decisions
from skuq.catalog._search_files import read_retrained
from skuq.ensembles import Selection
from skuq.estimators._api import forget_fit, to_keras
from skuq.estimators._callbacks import tells_callbacks
from skuq.estimators._durable import (
    DURABLE_CONSTRAINTS,
    RUNNING_PARAMETERS,
    begin_search,
    load_search,
    open_store,
)
from skuq.fitted import FittedEnsemble
from skuq.networks import TabularSpace
from skuq.predictive._out_of_bag import fit_scale
from skuq.search import CandidatePredictions, Limits, RunOptions, Search, SearchResult
from skuq.search._retraining import Retraining
from skuq.tables import (
    ClassTargets,
    NumberTargets,
    Rows,
    Splits,
    TableInputs,
    TrainingData,
    check_groups,
    make_splits,
    read_rows,
    read_validation_rows,
)
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, add_input_tags
from skuq.tables._rows import warn_of_few_rows
from skuq.tables._splits import standardise_rows
from skuq.training import MemberRefitter, MemberRepeater, MemberTrainer, predict_members

#: Constraints of the parameters of all searches.
SEARCH_CONSTRAINTS: dict = {
    "n_trials": [Interval(Integral, 1, None, closed="left")],
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "search_space": [
        None,
        HasMethods(["decisions", "build", "recipe"]),
        callable,
        tuple,
        Hidden(HasMethods(["build"])),  # Keras-Tuner's HyperModel
    ],
    "fixed_architecture": [dict, None],
    "fixed_hyperparameters": [dict, None],
    "population_size": [Interval(Integral, 1, None, closed="left"), None],
    "epochs": [Interval(Integral, 1, None, closed="left")],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "cv": ["cv_object"],
    "refit": ["boolean"],
    **PREPROCESS_CONSTRAINTS,
    **DURABLE_CONSTRAINTS,
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


#: Factor of the standard deviation, and floor of the noise, of ensembles without a calibration.
NO_CALIBRATION = (1.0, 0.0)


class SearchMethod:
    """The parts of a search and a selection, made from an estimator's parameters.

    The estimator's parameters and fitted attributes are only read, never set.
    """

    #: Parameters that only change the selection of the ensemble.
    selection_parameters: tuple[str, ...] = ()
    #: Parameters that change the selection of the ensemble, and trials, too.
    reselect_parameters: tuple[str, ...] = ()
    #: Parameters that only change predictions.
    prediction_parameters: tuple[str, ...] = ()
    #: Name of the score that the search minimises, for messages.
    score_name = "NLL"
    #: Whether the ensemble's standard deviation is calibrated on errors on held-out rows.
    calibrates = False
    #: Number of times that the selected trials are trained again on other folds.
    n_repeats = 0
    #: Share of `max_time` for the search itself; the rest is for repeats.
    search_share = 1.0
    #: The user's function that the search minimises instead of a trial's score.
    objective: Any = None

    def __init__(self, estimator):
        self.estimator = estimator
        self.classifies = is_classifier(estimator)
        space = estimator.search_space
        self.is_tabular = isinstance(space, str) and space == "tabular"

    @property
    def n_trials(self) -> int:
        """Number of trials of the search."""
        return self.estimator.n_trials

    def validation(self, n_rows: int, given: bool) -> dict[str, Any]:
        """Return `fraction` and `cv` for the split of rows.

        `given` tells that the user gives validation rows.
        """
        return {"fraction": self.estimator.validation_fraction, "cv": self.estimator.cv}

    @property
    def params_not_in_fingerprint(self) -> set[str]:
        """Parameters that do not change trials."""
        return {*self.selection_parameters, *self.prediction_parameters, *RUNNING_PARAMETERS}

    def identifying_parameters(self) -> dict[str, Any]:
        """Return the parameters that change trials, by name."""
        params = self.estimator.get_params(deep=False)
        return {k: params[k] for k in params if k not in self.params_not_in_fingerprint}

    @property
    def head(self):
        """Head of the fitted targets."""
        return self.estimator.targets_.head

    def check(self, shifted) -> None:
        """Raise ValueError if parameters contradict each other or the shifted sets."""
        self.check_selection()

    def check_selection(self) -> None:
        """Raise ValueError if parameters of the selection contradict each other."""

    def attributes(self, inputs, targets) -> dict[str, Any]:
        """Return fitted attributes that depend on the kind of inputs and targets, by name."""
        return {"classes_": targets.classes} if self.classifies else {}

    def inputs(self, X):
        """Make the unfitted inputs."""
        return TableInputs(self.estimator.preprocess, embed=self.is_tabular)

    def targets(self):
        """Make the unfitted targets."""
        if self.classifies:
            return ClassTargets(self.estimator.class_weight)
        return NumberTargets(self.estimator.target_transform)

    def resolve_space(self, inputs, n_rows: int):
        """Convert the parameter `search_space` to a space, if it is not "tabular"."""
        raise NotImplementedError

    def make_space(self, inputs, n_rows: int, x, n_train: int):
        """Make the search space for `n_rows` rows, of which networks train on `n_train`."""
        if self.is_tabular:
            return TabularSpace(x, inputs.n_codes, n_train, self.classifies)
        return self.resolve_space(inputs, n_rows)

    def halving(self, proposer):
        """Return the rule that discards trials early, or None."""
        return

    def epochs(self, space, inputs, n_train: int) -> tuple[int, int | None]:
        """Return the default number of epochs of a trial, and the maximum of all trials."""
        return self.estimator.epochs, None

    def proposer(self, space, held_out: HeldOut):
        """Make the proposer of configurations."""
        raise NotImplementedError

    def trial_entropy(self, entropy: int) -> int:
        """Derive the entropy of proposals and trials from that of the fit."""
        return entropy

    def is_stackable(self, proposer) -> bool:
        """Tell whether all configurations are known in advance and have one architecture."""
        return False

    def choose(self, candidates: CandidatePredictions) -> Any:
        """Select an ensemble, as a `Selection` of positions among the candidates."""
        raise NotImplementedError

    def calibration(self, chosen, candidates: CandidatePredictions) -> tuple[float, float]:
        """Fit the factor and the floor of the standard deviation of the selected ensemble.

        Without folds there is no calibration, because the rows of a single split are few and were
        used to stop the training of all members.
        """
        if not self.calibrates or candidates.moments is None:
            return NO_CALIBRATION
        raw = np.stack([candidates.raw[k] for k in chosen.indices]).astype("float64")
        loc, _ = self.head.distribution(raw)
        moments = [candidates.moments[k] for k in chosen.indices]
        centers, variances = (np.stack(own).astype("float64") for own in zip(*moments))

        def average(values):
            return np.tensordot(chosen.weights, values, 1)

        # Variance of the mixture of trials = mean of variances + variance of means.
        total = average(variances + (centers - average(centers)) ** 2)
        return fit_scale((candidates.y - average(loc)) ** 2, total, candidates.weight)


class SearchEstimator:
    """Base class that searches, trains and selects, by the `SearchMethod` of a subclass."""

    _method_class: type[SearchMethod]
    _memory = None  # trials of the last fit, if warm_start

    @property
    def _method(self) -> SearchMethod:
        return self._method_class(self)

    @fit_context(prefer_skip_nested_validation=True)
    @tells_callbacks
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
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
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows to validate on, instead of a share of the rows above. It cannot be used with
            `cv`.
        shift_validation : tuple (X, y[, sample_weight]) or list of such tuples, optional
            Labelled rows from the distribution on which the model will be used, or a simulation
            of it (see `skuq.datasets.corrupt_table`). A list holds several severities, the
            highest last. They are never trained on. The ensemble is selected on all of them
            together, each severity with the same weight; see `at_severity`. The evolution of NES
            uses the highest severity.
        groups : array-like of shape (n,), optional
            Groups; all rows of a group either train or validate, unless a splitter given as `cv`
            divides them.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data or parameters are invalid; the message explains which and why.
        SearchFailedError
            If no network could be trained; the message has the reasons.
        """
        started = time.monotonic()
        was_fitted = hasattr(self, "selection_")
        forget_fit(self)
        method = self._method
        given = _read_data(
            self, method, X, y, sample_weight, validation_data, shift_validation, groups
        )
        self.entropy_ = draw_entropy(self.random_state)
        self.inputs_, self.targets_ = given.inputs, given.targets
        vars(self).update(method.attributes(given.inputs, given.targets))
        # A user's splitter can make other folds each time, so that the folds identify the search.
        splits = None if isinstance(self.cv, Integral | str | None) else given.splits(self)
        identity, params = given.identity(splits), method.identifying_parameters()
        with open_store(self, params, self._memory, was_fitted, identity) as store:
            self._memory = store if self.catalog_dir is None else None
            self.catalog_path_ = None if store is None else store.path
            if store is not None:
                self.entropy_ = store.entropy or self.entropy_
            splits = splits or given.splits(self)
            advice = "`cv`, a larger validation_fraction or validation_data may help."
            warn_of_few_rows(splits.n_valid, advice if splits.parts is None else "")
            search = self._make_search(method, given, splits, store, started)
            if store is not None:
                begin_search(store, self, search.held_out)
            result = search.run()
            self._select(result)
            self._retrain(method, search, result, given, splits, store, started)
        self._warn_of_few_members()
        return self

    def _retrain(self, method, search, result, given, splits, store, started):
        """Refit or repeat the selected trials, if that is asked for and there is time."""
        retraining = self._retraining(method, result)
        if retraining is None or (result.interrupted and retraining.kind == "repeat"):
            return
        timeout = self.trial_timeout
        if retraining.kind == "refit":
            make_evaluation = MemberRefitter
            options = self._options("refit", trial_timeout=timeout, raise_on_failures=False)
        else:
            if self.max_time is not None and time.monotonic() - started >= self.max_time:
                return
            folds = None
            if splits.parts is not None:
                rounds = range(1, 1 + method.n_repeats)
                folds = [given.splits(self, repeat).parts for repeat in rounds]
            make_evaluation = functools.partial(MemberRepeater, folds=folds)
            options = self._options(
                "repeats",
                self._time_left(started),
                timeout,
                raise_on_failures=False,
                needs_success=False,
            )
        result = retraining.train(search, make_evaluation, options, store)
        self._take_retrained(method, result)

    def _retraining(self, method, result):
        """Describe the training after the search; None if there is none."""
        if self.refit:
            return Retraining("refit", result, self._trials_to_keep())
        if not method.n_repeats:
            return None
        heaviest_first = np.argsort(-self.selection_.weights, kind="stable")
        chosen = self.selection_.indices[heaviest_first].tolist()
        return Retraining("repeat", result, chosen, method.n_repeats, method.head)

    def _take_retrained(self, method, result):
        """Predict with the networks trained after the search; calibrate with those of repeats."""
        self.refitted_, self.repeated_ = result.refitted, result.repeated
        if result.repeated and len(result.sets) == 1:
            chosen = self.selection_.indices
            candidates = result.candidate_predictions(indices=chosen)
            own = replace(self.selection_, indices=np.arange(len(chosen)))
            self.calibration_ = method.calibration(own, candidates)

    def _time_left(self, started, share=1.0):
        """Return the seconds that are left of a share of `max_time`; None without a limit."""
        if self.max_time is None:
            return None
        return max(0.01, share * self.max_time - (time.monotonic() - started))

    def _make_search(self, method, given, splits, store, started):
        """Fit the scales on the training rows, and make the search."""
        inputs, targets = given.inputs, given.targets
        data = splits.training_data(inputs, targets)
        held_out, inputs_of_trials = _held_out(splits, data, given.shifted, inputs, targets)
        space = method.make_space(inputs, len(given.rows.X), data.x, splits.n_train)
        self.decisions_ = space.decisions(data.x.shape[1:], targets.head.n_raw)
        epochs, max_epochs = method.epochs(space, inputs, splits.n_train)
        trainer = MemberTrainer(
            space,
            data,
            targets.head,
            epochs,
            inputs_of_trials,
            splits.parts,
            timeout=self.trial_timeout,
            max_epochs=max_epochs,
            objective=method.objective,
        )
        proposer = method.proposer(space, held_out)
        max_time = self._time_left(started, method.search_share)
        return Search(
            trainer,
            proposer,
            method.n_trials,
            method.trial_entropy(self.entropy_),
            held_out,
            store,
            self._options("search", max_time, self.trial_timeout, self.max_failures),
            halving=method.halving(proposer),
            in_stacks=method.is_stackable(proposer),
            seconds=math.inf if self.max_time is None else self.max_time,
        )

    def _options(self, name, *args, **kwargs):
        """Make the options of a search or a refit, with these limits."""
        limits = Limits(*args, **kwargs)
        score_name = self._method.score_name
        return RunOptions(self.n_jobs, limits, self.verbose, name=name, score_name=score_name)

    # -------------------------------------------------------------- selection

    def _select(self, result: SearchResult):
        """Select an ensemble for each held-out set, and the one that predicts."""
        self.catalog_ = result.catalog
        self.refitted_, self.repeated_ = result.refitted, result.repeated
        candidates = [result.candidate_predictions([part]) for part in result.sets]
        chosen = [self._choose(own) for own in candidates]
        self.selections_ = tuple(selection for selection, _ in chosen)
        self.selection_, self.calibration_ = chosen[-1]
        # With one set besides the clean rows, the selection on it is the last one above.
        if len(result.sets) > 2:
            self.selection_, _ = self._choose(result.candidate_predictions())
        if len(result.sets) > 1:
            self.calibration_ = NO_CALIBRATION

    def _choose(self, candidates, method=None):
        """Select an ensemble of trials, and calibrate it on the same rows."""
        method = method or self._method
        chosen = method.choose(candidates)
        calibration = method.calibration(chosen, candidates)
        # Candidates are the completed trials.
        positions = self.catalog_.completed
        path = tuple((int(positions[k]), loss) for k, loss in chosen.path)
        return replace(
            chosen, indices=positions[np.asarray(chosen.indices)], path=path
        ), calibration

    def _warn_of_few_members(self):
        """Warn if the ensemble has fewer networks than the minimum for epistemic uncertainty."""
        wanted = min(getattr(self, "min_members", 1), self.n_members)
        n_networks = len(self.fitted_.members)
        if n_networks < wanted:
            is_one = n_networks == 1
            warn_user(
                f"The ensemble has {n_networks} network{'s' * (not is_one)}, as no more trials "
                f"succeeded{': its epistemic uncertainty is 0' * is_one}. Give the search more "
                "trials or more time.",
            )

    @property
    def _result(self) -> SearchResult:
        return SearchResult(self.catalog_, self.refitted_, self.repeated_)

    @property
    def preprocessor_(self):
        """Fitted preprocessor, or None."""
        return self.inputs_.preprocessor

    @property
    def fitted_(self) -> FittedEnsemble:
        """Fitted ensemble of the selected networks."""
        members, weights = self._result.members(self.selection_)
        targets = self.targets_
        if self.calibration_ != NO_CALIBRATION:
            targets = targets.with_calibration(*self.calibration_)
        return FittedEnsemble(self.inputs_, targets, members, weights)

    def reselect(self, X=None, y=None, sample_weight=None, **settings):
        """Select another ensemble from the networks of the search, without training.

        With ``refit=True``, members are then the networks of the search, with a warning.

        Parameters
        ----------
        X, y, sample_weight : optional
            Rows to select on, as in `fit`. They must not be training rows, and should be from the
            distribution on which the model is used now. By default the rows held out in `fit`.
        **settings : dict
            Values of the parameters of the selection, such as `n_members` and `selection`, for
            this selection only. The parameters of the estimator do not change.

        Returns
        -------
        self
            The estimator with a new `selection_`.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members only, or the arguments are
            invalid.
        """
        check_is_fitted(self)
        if (X is None) != (y is None) or (X is None and sample_weight is not None):
            raise ValueError("`reselect` needs both X and y, or neither and no weights.")
        method = self._method_with(settings)
        if X is None:
            # The predictions of trials include their repeats.
            self._result.check_complete()
            candidates = self._result.candidate_predictions(indices=self.catalog_.completed)
        else:
            # Without refits, which the new selection gives up.
            trials = [self._result.member(k).networks for k in self.catalog_.completed]
            candidates = self._candidates_on(trials, X, y, sample_weight)
        self.selection_, self.calibration_ = self._choose(candidates, method)
        if self.refitted_:
            self.refitted_ = {}
            warn_user(
                "`reselect` trains nothing: members are now the networks of the search instead of "
                "those refitted on all rows. Call `fit` to refit them.",
            )
        return self

    def leaderboard(self, X=None, y=None, sample_weight=None):
        """Tabulate the trials from the best on, with their weights in the ensemble.

        Parameters
        ----------
        X, y, sample_weight : optional
            Further rows to score each trial on, by the networks with which it would predict: those
            of the search and of its repeats, or the refitted one.

        Returns
        -------
        DataFrame
            Columns: `trial`, `status`, `score` on the held-out rows (smaller is better; of a
            discarded trial, when it was stopped), `new_score` if X and y are given, `weight` in the
            ensemble, `seconds`, `share` of the full training, `n_networks` with repeats,
            `n_weights` of all of them (missing for networks that a pickle has left behind), and the
            decisions of the configuration. A decision with the name of one of these columns has
            ``decision_`` before it.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members only, and X is given, or if only
            one of X and y, or only weights, are given.
        """
        check_is_fitted(self)
        weights = dict(zip(self.selection_.indices.tolist(), self.selection_.weights.tolist()))
        is_new = X is not None or y is not None or sample_weight is not None
        new = self._scores_on(X, y, sample_weight) if is_new else {}
        rows = []
        for k, record in enumerate(self.catalog_):
            networks = self._result.networks(k) if record.completed else ()
            row = {
                "trial": record.trial_number,
                "status": record.status,
                "score": record.score,
                **({"new_score": new.get(k, np.nan)} if new else {}),
                "weight": weights.get(k, 0.0),
                "seconds": record.seconds,
                "share": record.share,
                "n_networks": len(networks),
                "n_weights": sum(
                    np.nan if network.weights is None else network.n_weights for network in networks
                ),
            }
            rows.append(with_decisions(row, record.configuration))
        frame = pd.DataFrame(rows)
        # Completed trials first, then the discarded ones.
        order = {"completed": 0, "discarded": 1, "failed": 2}
        rank = frame["status"].map(order)
        frame = frame.assign(rank=rank).sort_values(["rank", "score"], kind="stable")
        return frame.drop(columns="rank").reset_index(drop=True)

    def _scores_on(self, X, y, sample_weight):
        """Score each completed trial on other rows; scores are by position in the catalog."""
        trials = [self._result.networks(k) for k in self.catalog_.completed]
        candidates = self._candidates_on(trials, X, y, sample_weight)
        head, weight = self.targets_.head, candidates.weight
        scores = [
            np.average(head.scores(candidates.y, raw.astype("float64")), weights=weight)
            for raw in candidates.raw
        ]
        return dict(zip(self.catalog_.completed.tolist(), map(float, scores)))

    def _candidates_on(self, trials, X, y, sample_weight):
        """Predict other rows with every completed trial; `trials` are their networks."""
        if X is None or y is None:
            raise ValueError("Give both X and y, or neither and no weights.")
        self._result.check_complete()
        data = (X, y) if sample_weight is None else (X, y, sample_weight)
        rows = read_validation_rows(self, self.inputs_, self.targets_, data, "X, y", required=True)
        x, targets, weight = standardise_rows(rows, self.inputs_, self.targets_)
        raws = [predict_members(networks, x, once=True) for networks in trials]
        raws = [raw[0] if len(raw) == 1 else self.targets_.head.pooled(raw) for raw in raws]
        moments = None
        if hasattr(self.targets_.head, "distribution"):
            loc, scale = self.targets_.head.distribution(np.stack(raws).astype("float64"))
            moments = list(zip(loc, scale**2))
        return CandidatePredictions(raws, targets, weight, np.arange(len(x)), moments)

    def _method_with(self, settings):
        """Make and check the method with other parameters of the selection."""
        method = self._method
        allowed = (*method.selection_parameters, *method.reselect_parameters)
        unknown = sorted(set(settings) - set(allowed))
        if unknown:
            raise ValueError(
                f"`reselect` can change the parameters {list(allowed)}. Got {unknown}."
            )
        other = self._copy(**settings)
        other._validate_params()
        method = other._method
        method.check_selection()
        return method

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
            raise ValueError(
                f"`severity` must be an integer in 0..{len(self.selections_) - 1}. "
                f"Got {severity!r}."
            )
        selection = self.selections_[severity]
        same = (
            np.array_equal(own, other)
            for own, other in zip(
                (selection.indices, selection.weights),
                (self.selection_.indices, self.selection_.weights),
            )
        )
        if all(same):
            return self._copy()
        return self._copy(selection_=selection, calibration_=NO_CALIBRATION)

    def member_estimators(self, *, every_trial=False):
        """Return each member as a fitted estimator with one trial.

        Parameters
        ----------
        every_trial : bool, default=False
            Return all completed trials of the catalog, without refits and repeats, instead of the
            members.

        Returns
        -------
        list of (str, estimator) tuples
            Named estimators, for example for ``HQEnsembleSelector(pool, cv="prefit")``. Fit it on
            rows on which the networks were not trained: held-out rows or, with `cv` and `refit`,
            which train on all rows, new ones.
        """
        check_is_fitted(self)
        # The calibration is only valid for the whole ensemble.
        indices = self.selection_.indices
        changes = {"calibration_": NO_CALIBRATION}
        if every_trial:
            self._result.check_complete()
            indices = self.catalog_.completed
            changes |= {"refitted_": {}, "repeated_": {}}
        n_sets = len(self.selections_)

        def alone(k):
            one = Selection(np.array([k]), np.ones(1))
            return self._copy(selection_=one, selections_=(one,) * n_sets, **changes)

        return [(f"trial{k}", alone(k)) for k in indices]

    to_keras = to_keras

    # ---------------------------------------------------------- keeping trials

    @classmethod
    def from_catalog(cls, path, *, trusted=None, **params):
        """Make a fitted estimator from the folder of a finished or unfinished search.

        Nothing is trained, and no data are needed: the ensemble is selected again from the
        stored trials. To continue the search, call `fit` with the same data and the same
        `catalog_dir`.

        Parameters
        ----------
        path : path
            The `catalog_dir` of the search, or the folder in it if it holds several searches.
        trusted : list of str or type, optional
            Trusted types in a scikit-learn transformer given as `preprocess`, see `skuq.load`.
        **params : dict
            Parameters that do not change trials: those of the selection, such as `n_members`, and
            of the run, such as `n_trials` to take the first trials only. Also your own functions
            and objects, such as a `search_space`, which are not stored and are needed to fit again.

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
        method, result = estimator._method, SearchResult(catalog)
        estimator._select(result)
        retraining = estimator._retraining(method, result)
        if retraining is not None:
            read = functools.partial(read_retrained, estimator.catalog_path_)
            stored = retraining.stored(read)
            estimator._take_retrained(method, retraining.joined(stored))
            # How many repeats a limit of time allows is not known.
            n_asked = len(retraining.asked)
            if len(stored) < (n_asked if estimator.max_time is None else 1):
                warn_user(
                    f"{n_asked - len(stored)} of {n_asked} {retraining.kind}s of the chosen trials "
                    "are not stored, and the other networks predict. `fit` with the same rows "
                    "trains them.",
                )
        return estimator

    def _trials_to_keep(self):
        """Positions of the trials that are in any selection."""
        chosen = [self.selection_, *self.selections_]
        return np.unique(np.concatenate([selection.indices for selection in chosen]))

    def _copy(self, **changes):
        """Copy the estimator with everything that it holds; copy.copy would drop trials."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def __copy__(self):
        return self._copy()

    def __deepcopy__(self, memo):
        # Copy all trials, unlike a pickle.
        other = memo[id(self)] = object.__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __getstate__(self):
        # Pickle only the weights of members, so that the file is small.
        state = {name: v for name, v in super().__getstate__().items() if name != "_memory"}
        if "selection_" in state:
            result = self._result.keep_arrays_of(self._trials_to_keep())
            state["catalog_"] = result.catalog
        return state

    def __sklearn_is_fitted__(self):
        return hasattr(self, "selection_")

    def __sklearn_tags__(self):
        tags = add_input_tags(super().__sklearn_tags__(), self.preprocess)
        tags.non_deterministic = self.n_jobs not in (None, 1)
        return tags


class _Given(NamedTuple):
    """The user's arguments of `fit`, validated and encoded."""

    inputs: Any
    targets: Any
    rows: Rows
    validation: Rows | None
    shifted: list[Rows]
    groups: np.ndarray | None

    def splits(self, estimator, repeat: int = 0) -> Splits:
        """Split the rows into training and validation rows; another `repeat` gives other folds."""
        given = self.validation is not None
        return make_splits(
            self.rows,
            estimator.entropy_,
            **estimator._method.validation(self._n_units(), given),
            validation=self.validation,
            groups=self.groups,
            labels=self.targets.labels(self.rows.y),
            repeat=repeat,
        )

    def _n_units(self) -> int:
        """Number of rows of positive weight, or of their groups if there are groups."""
        used = self.rows.used
        return len(used) if self.groups is None else len(np.unique(self.groups[used]))

    def identity(self, splits: Splits | None) -> dict[str, Any]:
        """Return the data that identify the search, by name; `splits` are the user's folds."""
        identity = {
            "X": self.rows.X,
            "y": self.rows.y,
            "sample_weight": self.rows.weight,
            "groups": self.groups,
            "validation_data": self.validation,
            "shift_validation": self.shifted,
        }
        return identity if splits is None else {**identity, "cv": splits.parts}


def _read_data(
    estimator, method, X, y, sample_weight, validation_data, shift_validation, groups
) -> _Given:
    """Validate and encode the user's arguments of `fit`."""
    named = _named_sets(shift_validation)
    method.check(named)
    is_auto = isinstance(estimator.cv, str)
    if estimator.cv is not None and not is_auto and validation_data is not None:
        raise ValueError(
            "Give either `cv` or `validation_data`: with `cv` every row validates. "
            f"Got both, with cv={estimator.cv!r}."
        )
    inputs, targets = method.inputs(X), method.targets()
    rows = read_rows(estimator, inputs, targets, X, y, sample_weight, min_rows=2)
    groups = check_groups(groups, rows.X)
    read = functools.partial(read_validation_rows, estimator, inputs, targets, required=True)
    validation = None if validation_data is None else read(validation_data)
    shifted = [read(data, name) for name, data in named]
    return _Given(inputs, targets, rows, validation, shifted, groups)


def _held_out(splits, data, shifted, inputs, targets):
    """Collect the rows that all trials predict, and their inputs.

    The inputs are None if these are only the validation rows.
    """
    sets, x = [], [data.x_valid]
    for rows in shifted:
        # The same steps as for validation rows: float32, and weights with mean 1.
        part = TrainingData.without_validation(*standardise_rows(rows, inputs, targets))
        sets.append(HeldOut(None, part.y, part.weight))
        x.append(part.x)
    folds = splits.parts is not None
    own = (data.y, data.weight) if folds else (data.y_valid, data.weight_valid)
    held_out = HeldOut(splits.positions, *own, tuple(sets))
    return held_out, np.concatenate(x) if shifted else None


def _named_sets(shift_validation):
    """List pairs (name, data) of one shifted set or several."""
    if shift_validation is None:
        return []
    several = isinstance(shift_validation, list) or (
        isinstance(shift_validation, tuple)
        and all(isinstance(part, tuple) for part in shift_validation)
    )
    if not several:
        return [("shift_validation", shift_validation)]
    if not shift_validation:
        raise ValueError(
            "`shift_validation` must be (X, y), a list of such pairs, or None. Got an empty list."
        )
    return [(f"shift_validation[{k}]", part) for k, part in enumerate(shift_validation)]
