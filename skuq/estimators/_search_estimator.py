"""Base class of estimators that search: train many networks, keep all, and select an ensemble.

AutoDEUQ and NES share `SearchEstimator.fit`. They differ in their `SearchMethod`, which defines
the search space, the proposer and the selection of members.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections import Counter
from dataclasses import replace
from numbers import Integral

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq._params import fit_context
from skuq._utils._archive import refuse_broken
from skuq._utils._environment import draw_entropy
from skuq._utils._messages import warn_user
from skuq.catalog import Catalog
from skuq.catalog._folder import read_retrained
from skuq.ensembles import Selection
from skuq.estimators._api import forget_fit, to_keras
from skuq.estimators._callbacks import tells_callbacks
from skuq.estimators._durable import begin_search, load_search, open_store
from skuq.estimators._search_data import collect_held_out, read_search_data
from skuq.estimators._search_method import NO_CALIBRATION, SearchMethod
from skuq.estimators._search_trials import make_leaderboard, predict_candidates, score_trials
from skuq.exceptions import MissingPartError
from skuq.fitted import FittedEnsemble
from skuq.search import Limits, RunOptions, Search, SearchResult
from skuq.search._retraining import Retraining
from skuq.tables._inputs import add_input_tags, warn_of_few_rows
from skuq.training import MemberRefitter, MemberRepeater, MemberTrainer

# A repeat may need only this share of its trial's time, since its program is compiled already.
_MIN_SHARE = 0.5
# Share of their epochs for which networks have to be trained to count as trained.
_MIN_SHARE_TRAINED = 0.1
_MOST_FAILURES = 0.25  # share of trials that may fail without a warning


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
        fit_data = read_search_data(
            self, method, X, y, sample_weight, validation_data, shift_validation, groups
        )
        self.entropy_ = draw_entropy(self.random_state)
        self.inputs_, self.targets_ = fit_data.inputs, fit_data.targets
        vars(self).update(method.attributes(fit_data.inputs, fit_data.targets))
        # A user's splitter can make other folds each time, so that the folds identify the search.
        splits = None if isinstance(self.cv, Integral | str | None) else fit_data.splits(self)
        identity, params = fit_data.identity(splits), method.identifying_parameters()
        with open_store(self, params, self._memory, was_fitted, identity) as store:
            self._memory = store if self.catalog_dir is None else None
            self.catalog_path_ = None if store is None else store.path
            if store is not None:
                self.entropy_ = store.entropy or self.entropy_
            splits = splits or fit_data.splits(self)
            self._warn_of_few_rows(splits, fit_data.shifted)
            search = self._make_search(method, fit_data, splits, store, started)
            if store is not None:
                begin_search(store, self, search.held_out)
            result = search.run()
            self._select(result)
            self._retrain(method, search, result, fit_data, splits, store, started)
        self._warn_of_few_members(method)
        self._warn_of_short_training()
        self._warn_of_failures()
        return self

    def _retrain(self, method, search, result, fit_data, splits, store, started):
        """Train selected trials again if the parameters say so: refit them, or repeat them.

        Repeats have other seeds and, with `cv`, other folds. None starts once less than half of
        the time of the fastest is left, and those that are cut short are not used.
        """
        retraining = self._retraining(method, result)
        if retraining is None or result.interrupted:
            return
        timeout = self.trial_timeout
        if retraining.kind == "refit":
            make_evaluation = MemberRefitter
            options = self._options("refit", None, trial_timeout=timeout, raise_on_failures=False)
        else:
            max_time = self._time_of_repeats(retraining, started)
            if max_time == 0:  # start no workers: an earlier fit may have stored some
                stored = [] if store is None else retraining.read_stored(store.retrained)
                self._take_retrained(method, retraining.join(stored))
                return
            folds = None
            if splits.parts is not None:
                rounds = range(1, 1 + method.n_repeats)
                folds = [fit_data.splits(self, repeat).parts for repeat in rounds]
            make_evaluation = functools.partial(MemberRepeater, folds=folds)
            options = self._options(
                "repeats",
                self.repeats,
                max_time=max_time,
                trial_timeout=timeout,
                raise_on_failures=False,
                needs_success=False,
            )
        retrained = retraining.train(search, make_evaluation, options, store)
        self._take_retrained(method, retrained)

    def _retraining(self, method, result):
        """Make the description of the training after the search; None if there is none."""
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
            selection = replace(self.selection_, indices=np.arange(len(chosen)))
            self.calibration_ = method.calibration(selection, candidates)
            self.calibrations_ = (self.calibration_,)

    def _time_left(self, started, share=1.0):
        """Return the seconds that are left of a share of `max_time`; None without a limit."""
        if self.max_time is None:
            return None
        return max(0.01, share * self.max_time - (time.monotonic() - started))

    def _time_of_repeats(self, retraining, started):
        """Return the seconds for repeats: 0 if not one would fit, None without a limit."""
        if self.max_time is None:
            return None
        left = self.max_time - (time.monotonic() - started)
        trials = retraining.trials
        fastest = min((t.seconds / t.share for t in trials if t.share > 0), default=0.0)
        return left if left > _MIN_SHARE * fastest else 0

    def _make_search(self, method, fit_data, splits, store, started):
        """Fit the scales on the training rows, and make the search."""
        inputs, targets = fit_data.inputs, fit_data.targets
        data = splits.training_data(inputs, targets)
        held_out, inputs_of_trials = collect_held_out(
            splits, data, fit_data.shifted, inputs, targets
        )
        space = method.make_space(inputs, len(fit_data.rows.X), data.x, splits.n_train)
        self.decisions_ = space.decisions(data.x.shape[1:], targets.head.n_raw)
        epochs, max_epochs = method.epochs(space, inputs, splits.n_train)
        trainer = MemberTrainer(
            space,
            data,
            targets.head,
            epochs,
            held_out=inputs_of_trials,
            folds=splits.parts,
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
            held_out=held_out,
            store=store,
            options=self._options(
                "search",
                self.n_trials,
                max_time=max_time,
                first_trial=self._time_left(started),
                trial_timeout=self.trial_timeout,
                max_failures=self.max_failures,
            ),
            halving=method.halving(proposer),
            in_stacks=method.is_stackable(proposer),
            seconds=math.inf if self.max_time is None else self.max_time,
        )

    def _options(self, name, number, **limits):
        """Make the options of a search, or of a training after it, with these limits.

        `number` is what the user gave for the number of trials or repeats: "auto" with a limit of
        time means as many as fit into it.
        """
        method, score_name = self._method, self._method.score_name
        if name == "search" and method.objective is not None:
            score_name = "objective"
        is_open = isinstance(number, str) and limits.get("max_time") is not None
        return RunOptions(self.n_jobs, Limits(**limits), self.verbose, name, score_name, is_open)

    # -------------------------------------------------------------- selection

    def _select(self, result: SearchResult, method=None):
        """Select an ensemble for each held-out set, and the one that predicts."""
        self.catalog_ = result.catalog
        self.refitted_, self.repeated_ = result.refitted, result.repeated
        candidates = [result.candidate_predictions([part]) for part in result.sets]
        try:
            chosen = [self._choose(of_set, method) for of_set in candidates]
        except Exception as error:
            error.add_note(
                "The trials are kept in `catalog_`: choose among them with another selection by "
                '`reselect`, for example `reselect(selection="top")`.'
            )
            raise
        self.selections_, self.calibrations_ = zip(*chosen)
        self.selection_, self.calibration_ = chosen[-1]
        # With several shifted sets, the ensemble that predicts is selected on the rows of all of
        # them. With one or none it is the last selection above.
        if len(result.sets) > 2:
            self.selection_, _ = self._choose(result.candidate_predictions(), method)
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

    @staticmethod
    def _warn_of_few_rows(splits, shifted):
        """Warn if members are chosen on few rows, clean or shifted."""
        n_shifted = sum(len(rows.used) for rows in shifted)
        if shifted and n_shifted < splits.n_valid:
            warn_of_few_rows(n_shifted, "More rows in `shift_validation` may help.")
            return
        advice = "`cv`, a larger validation_fraction or validation_data may help."
        warn_of_few_rows(splits.n_valid, advice if splits.parts is None else "")

    def _warn_of_few_members(self, method):
        """Warn if the ensemble has fewer members than epistemic uncertainty needs."""
        params, n_members = method.estimator, len(self.selection_)
        wanted = min(getattr(params, "min_members", 2), params.n_members)
        is_zero = len(self.fitted_.members) == 1 < params.n_members
        if n_members >= wanted and not is_zero:
            return
        found, consequence = f"{n_members} members", ""
        if n_members == 1:
            n = len(self.fitted_.members)
            value = "0" if n == 1 else f"that of {n} networks of one configuration"
            found, consequence = "1 member", f": its epistemic uncertainty is {value}"
        cause, advice = "no more trials succeeded", "Give the search more trials or more time."
        if len(self.catalog_.completed) > n_members:
            cause, advice = "`selection` chose no more", "Another `selection` may choose more."
            if wanted == 1:
                advice = "Set `min_members=2`, which `reselect` takes, too."
        warn_user(f"The ensemble has {found}, as {cause}{consequence}. {advice}")

    def _warn_of_failures(self):
        """Warn if many trials have failed: some networks diverge, but this has another cause."""
        failed = [record.message for record in self.catalog_ if record.failed]
        if len(failed) > _MOST_FAILURES * len(self.catalog_):
            (message, count), *_ = Counter(failed).most_common(1)
            warn_user(
                f"{len(failed)} of {len(self.catalog_)} trials failed, {count} of them with: "
                f"{message} `leaderboard` has the reasons."
            )

    def _warn_of_short_training(self):
        """Warn if `max_time` has left no trial of the ensemble a real part of its training."""
        share = max(self.catalog_[k].share for k in self.selection_.indices)
        if share < _MIN_SHARE_TRAINED and not self.refitted_:
            warn_user(
                f"No network of the ensemble got more than {100 * share:.2g} % of its epochs "
                f"within max_time={self.max_time}. Most of a short first fit goes into loading and "
                "compiling, some seconds for each process. Give it more time."
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

        Warns
        -----
        SmallValidationWarning
            If there are fewer than 100 rows to select on.
        """
        check_is_fitted(self, "catalog_")
        is_new = self._gives_rows(X, y, sample_weight)
        method = self._method_with(settings)
        self._result.check_complete()
        if not hasattr(self, "selections_"):  # `selection` raised an error in `fit`
            self._select(self._result, method)
        if not is_new:
            # The predictions of trials include their repeats.
            candidates = self._result.candidate_predictions(indices=self.catalog_.completed)
        else:
            # Without refits, which the new selection gives up.
            trials = [self._result.member(k).networks for k in self.catalog_.completed]
            candidates = predict_candidates(self, trials, X, y, sample_weight)
            warn_of_few_rows(np.count_nonzero(candidates.weight), "More rows may help.")
        self.selection_, self.calibration_ = self._choose(candidates, method)
        if self.refitted_:
            self.refitted_ = {}
            warn_user(
                "`reselect` trains nothing: members are now the networks of the search instead of "
                "those refitted on all rows. Call `fit` to refit them.",
            )
        self._warn_of_few_members(method)
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
            (smaller is better; of a discarded trial, when it was stopped), `new_score` if X and y
            are given, `weight` in the ensemble, `seconds`, `share` of the full training,
            `n_networks` with repeats, `n_weights` of all of them (missing for networks that a
            pickle has left behind), and the decisions of the configuration. A decision with the
            name of one of these columns has ``decision_`` before it. If a trial has failed, the
            last column is `message`, the reason.

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
            new_scores = score_trials(self, trials, X, y, sample_weight)
        return make_leaderboard(self._result, self.selection_, new_scores)

    def _gives_rows(self, X, y, sample_weight):
        """Tell whether the user gives rows; raise ValueError if they are not complete."""
        is_new = X is not None
        if is_new != (y is not None) or (sample_weight is not None and not is_new):
            raise ValueError("Give both X and y, or neither and no weights.")
        return is_new

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
            among = f"in 0..{len(self.selections_) - 1}"
            if len(self.selections_) == 1:
                among = "0, as `fit` got no `shift_validation`"
            raise ValueError(f"`severity` must be an integer {among}. Got {severity!r}.")
        selection, calibration = self.selections_[severity], self.calibrations_[severity]
        return self._copy(selection_=selection, calibration_=calibration)

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
        n_sets = len(self.selections_)
        changes = {"calibration_": NO_CALIBRATION, "calibrations_": (NO_CALIBRATION,) * n_sets}
        if every_trial:
            self._result.check_complete()
            indices = self.catalog_.completed
            changes |= {"refitted_": {}, "repeated_": {}}

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
        # From here on, only the content of the files can be wrong.
        with refuse_broken(estimator.catalog_path_, let=(OSError, MissingPartError)):
            method, result = estimator._method, SearchResult(catalog)
            estimator._select(result)
            retraining = estimator._retraining(method, result)
            if retraining is not None:
                records = retraining.read_stored(
                    functools.partial(read_retrained, estimator.catalog_path_)
                )
                estimator._take_retrained(method, retraining.join(records))
                # With a limit of time, `fit` may have trained only some of the repeats.
                n_all = len(retraining.requests)
                if len(records) < (n_all if estimator.max_time is None else 1):
                    warn_user(
                        f"{n_all - len(records)} of {n_all} {retraining.kind}s of the chosen "
                        "trials are not stored. In their place, the networks of the search "
                        "predict. `fit` with the same rows trains them.",
                    )
            estimator._warn_of_few_members(method)
        return estimator

    def _trials_to_keep(self):
        """List the positions of the trials that are in any selection."""
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
        if isinstance(state.get("initial_trials"), Catalog):  # only configurations are used
            state["initial_trials"] = state["initial_trials"].keep_arrays_of([])
        if "selection_" in state:
            result = self._result.keep_arrays_of(self._trials_to_keep())
            state["catalog_"] = result.catalog
        return state

    def __sklearn_is_fitted__(self):
        return hasattr(self, "selection_")

    def __sklearn_tags__(self):
        tags = add_input_tags(super().__sklearn_tags__(), self.preprocess)
        # With several jobs the order in which trials finish differs from run to run, and with a
        # time limit their number.
        tags.non_deterministic = self.n_jobs not in (None, 1) or self.max_time is not None
        return tags
