"""AutoDEUQ: an ensemble from a joint search of architectures and hyperparameters."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from skuq import search
from skuq._params import HasMethods, Hidden, Interval, Options, StrOptions
from skuq._registry import saved_as
from skuq._space import Space
from skuq._warnings import warn_user
from skuq.catalog import Catalog
from skuq.catalog._search_files import find_search
from skuq.ensembles import (
    check_selection,
    select_forward,
    select_greedy,
    select_hq,
    select_hq_proba,
    select_top,
)
from skuq.ensembles._likelihood import brier_statistics, class_log_likelihood, likelihood_statistics
from skuq.ensembles._selection import MOMENT_LOSSES, real_weight, select_best
from skuq.estimators._api import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._search_estimator import SEARCH_CONSTRAINTS, SearchEstimator, SearchMethod
from skuq.networks import TabularSpace, resolve_search_space
from skuq.search import STRATEGIES, make_proposer, pin
from skuq.tables import NumberTargets
from skuq.tables._targets import TARGET_CONSTRAINTS

_N_TRIALS = 50  # default number of trials without `max_time`
_MOST_TRIALS = 10_000  # largest number of trials with `max_time`
_EPOCHS = 100  # default number of epochs in spaces that do not set it
_VALIDATION_FRACTION = 0.25
_N_FOLDS, _N_FOLDS_OF_MANY, _MANY_ROWS = 8, 5, 20_000
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
_EVOLVING = ("agebo", "age", "age-mixed")
_SEARCH_EVERYTHING = ("agebo", "rs-mixed", "age-mixed", "bo-mixed")

_TUNER_METHODS = ["run_trial", "get_best_models"]  # of Keras-Tuner's tuners

_CONSTRAINTS: dict = {
    **SEARCH_CONSTRAINTS,
    "n_trials": [*SEARCH_CONSTRAINTS["n_trials"], StrOptions({"auto"})],
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


class _AutoDEUQ(SearchMethod):
    """Method of AutoDEUQ: AgEBO and its variants, with greedy selection."""

    selection_parameters = ("n_members", "min_members", "selection", "selection_loss", "calibrate")
    prediction_parameters = ("epistemic_ddof", "repeats")

    def __init__(self, estimator):
        super().__init__(estimator)
        space = estimator.search_space
        self.is_tabular = isinstance(space, str) and space in ("auto", "tabular")
        if self.classifies:
            own = self.selection_parameters
            self.selection_parameters = tuple(name for name in own if name != "calibrate")

    @property
    def n_trials(self):
        own = self.estimator
        if not isinstance(own.n_trials, str):
            return own.n_trials
        return _N_TRIALS if own.max_time is None else _MOST_TRIALS

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
        own = self.estimator
        fraction = own.validation_fraction
        is_auto = isinstance(fraction, str)
        cv = own.cv
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
        if all(hasattr(given, name) for name in _TUNER_METHODS):
            raise ValueError(
                "`search` must be a name or an oracle, which proposes trials. Got the tuner "
                f"{type(given).__name__}, which also trains them: give its oracle, "
                "`search=tuner.oracle`, and its model by `search_space`."
            )

    def check_selection(self):
        if self.estimator.selection == "hq" and self.estimator.n_members < 2:
            raise ValueError('`n_members` must be at least 2 with `selection="hq"`. Got 1.')

    def resolve_space(self, inputs, n_rows):
        own = self.estimator
        return resolve_search_space(own.search_space, own.n_nodes, own.max_batch_size)

    def identifying_parameters(self):
        given = {"initial_trials": self._given_configurations()}
        return {**super().identifying_parameters(), **given}

    def proposer(self, space, held_out):
        """Make the proposer of the search strategy, which starts with the initial trials."""
        own, decisions = self.estimator, self.estimator.decisions_
        if isinstance(own.search, str):
            if own.search in _EVOLVING and (own.population_size or 0) >= self.n_trials:
                warn_user(
                    f"Evolution starts after `population_size={own.population_size}` trials, and "
                    f"`n_trials` is {self.n_trials}: all architectures are drawn at random. Set a "
                    "smaller `population_size` or more trials.",
                )
            planned = _N_TRIALS if isinstance(own.n_trials, str) else own.n_trials
            proposer = make_proposer(
                own.search,
                decisions,
                planned,
                fixed_architecture=own.fixed_architecture,
                fixed_hyperparameters=own.fixed_hyperparameters,
                population_size=own.population_size,
                sample_size=own.sample_size,
                kappa=own.kappa,
                n_initial=own.n_initial,
            )
            first = self._initial_configurations(space)
            return search.StartingWith(first, proposer) if first else proposer
        if own.initial_trials is not None:
            raise ValueError(
                "`initial_trials` must be None if `search` is a Keras-Tuner oracle, which proposes "
                "every trial itself. Set the oracle's own `hyperparameters`, or use one of skuq's "
                "strategies."
            )
        # Copy the oracle, so that the parameter does not change and `fit` can be called again.
        oracle = copy.deepcopy(own.search)
        pinned = pin(decisions, own.fixed_architecture, own.fixed_hyperparameters)
        return search.OracleProposer(oracle, pinned, self.n_trials)

    def _given_configurations(self):
        """Return the configurations that the user gives as `initial_trials`, or None."""
        given = self.estimator.initial_trials
        if given is None or isinstance(given, list | tuple):
            return given
        return _best_configurations(given)

    def _initial_configurations(self, space):
        """Return the configurations of the first trials: the user's, or the space's recipes."""
        own = self.estimator
        given, name = self._given_configurations(), "initial_trials"
        if given is None:
            known = hasattr(space, "known_recipes") and own.search in _SEARCH_EVERYTHING
            given, name = (space.known_recipes() if known else []), "known_recipes"
        both = sum(own.decisions_, Space())
        fixed = {**(own.fixed_architecture or {}), **(own.fixed_hyperparameters or {})}
        checked = [{**both.check(configuration, name), **fixed} for configuration in given]
        return [c for k, c in enumerate(checked) if c not in checked[:k]]

    def choose(self, candidates):
        """Select the members by the predictions of all trials on the held-out rows."""
        own = self.estimator
        raw = np.stack(candidates.raw).astype("float64")
        if self.classifies:
            predicted = candidates.y[:, 0].astype(int), self.head.probabilities(raw)
        else:
            loc, scale = self.head.distribution(raw)
            if candidates.moments is not None:
                # The variance of a trial includes the disagreement of its networks.
                scale = np.sqrt([variance for _, variance in candidates.moments])
            predicted = candidates.y, loc, scale
        select = own.selection if callable(own.selection) else getattr(self, f"_{own.selection}")
        chosen = select(*predicted, own.n_members, sample_weight=candidates.weight)
        check_selection(chosen, len(raw))
        return chosen

    def _greedy(self, y, *predicted, sample_weight):
        min_members = self.estimator.min_members
        settings = {"min_members": min_members, "sample_weight": sample_weight}
        if self.classifies:
            (proba, n_members), settings["min_weight"] = predicted, real_weight(min_members)
            return select_forward(*self._statistics(y, proba), n_members, **settings)
        return select_greedy(y, *predicted, loss=self.estimator.selection_loss, **settings)

    def _top(self, y, *predicted, sample_weight):
        if self.classifies:
            proba, n_members = predicted
            statistics = self._statistics(y, proba)
            return select_best(*statistics, n_members, sample_weight=sample_weight)
        loss = self.estimator.selection_loss
        return select_top(y, *predicted, sample_weight=sample_weight, loss=loss)

    def _hq(self, y, *predicted, sample_weight):
        select = select_hq_proba if self.classifies else select_hq
        return select(y, *predicted, sample_weight=sample_weight)

    def _statistics(self, y, proba):
        """Make the statistics that an ensemble averages, and the loss of their average."""
        if self.estimator.selection_loss == "brier":
            return brier_statistics(y, proba)
        return likelihood_statistics(class_log_likelihood(y, proba))


def _paper_settings(name):
    """Return the parameters of one of the paper's experiments."""
    if name not in _PAPER_EXPERIMENTS:
        raise ValueError(f"`name` must be one of {sorted(_PAPER_EXPERIMENTS)}. Got {name!r}.")
    return {**_PAPER_SETTINGS, **_PAPER_EXPERIMENTS[name]}


def _n_folds(n_rows):
    """Return the number of folds for `n_rows` rows: fewer for large data, which train long."""
    if n_rows < 2 * _N_FOLDS:
        return max(2, n_rows // 2)
    return _N_FOLDS if n_rows <= _MANY_ROWS else _N_FOLDS_OF_MANY


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


@saved_as("estimators.AutoDEUQRegressor", kind="estimator")
class AutoDEUQRegressor(SearchEstimator, UncertaintyRegressor):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks that predict a mean and a standard deviation are trained, each proposed
    on the basis of the finished trials: ageing evolution changes the architecture, and Bayesian
    optimisation the training hyperparameters (AgEBO). From this catalog, a greedy selection on
    validation rows chooses up to `n_members`, whose mixture is the prediction. The average noise
    that members predict is the aleatoric uncertainty, and the disagreement of their means the
    epistemic uncertainty.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog; 500 in the paper. "auto" is 50, or with
        `max_time` as many as fit into that time.
    n_members : int, default=5
        Maximum number of distinct members (K).
    min_members : int, default=2
        Minimum number of distinct members. A single member has no epistemic uncertainty; 1 is the
        paper's greedy rule.
    n_nodes : int, default=5
        Number of variable nodes of the architecture: 5 in the paper's benchmark, 3 in its toy
        task.
    epochs : int or "auto", default="auto"
        Maximum number of epochs of one network, of which the best is kept. "auto" is the number
        that the space sets, otherwise 100.
    validation_fraction : float or "auto", default="auto"
        Share of the rows that is held out for early stopping, the search and the selection.
        Ignored with `cv` or `validation_data`. "auto" is 0.25.
    cv : int, cross-validation generator, iterable, "auto" or None, default="auto"
        Number of folds or a splitter, in place of `validation_fraction`. Every trial then trains
        one network per fold of the rows of positive weight, each without the rows of its fold.
        Search and selection use the out-of-fold predictions of all rows, and all networks of the
        selected trials predict. Folds are better for small tables, and multiply the cost by their
        number. A splitter must test every row once. None holds out `validation_fraction`. "auto" is
        8 folds in the tabular space (5 above 20,000 rows), whose folds train as one program, and
        None in other spaces, with `validation_data` or with a number as `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it, and 0 in other spaces. It
        has no effect with `refit` or a splitter as `cv`.
    search : str or keras_tuner.Oracle, default="agebo"
        Rule that proposes the next network: "agebo"; "age" (architectures only), "bo"
        (hyperparameters only), "init" (neither: only seeds differ); "rs-mixed", "age-mixed",
        "bo-mixed" (both as one vector). Or any Keras-Tuner oracle.
    search_space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "auto" and "tabular" are `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good. "dense" is the paper's: fully connected networks with skip
        connections, with `n_nodes` and `max_batch_size`; "benchmark" and "toy" are its presets. A
        callable ``build(hp, input_shape, n_outputs) -> keras.Model``, alone or in a pair with
        ``training(hp) -> dict``, is a space in Keras-Tuner's language, see
        `skuq.networks.KerasTunerSpace`.
    discard : bool or SuccessiveHalving, default=True
        Stop trials early if their scores are worse than those of others at the same stage. They are
        recorded as discarded and cannot become members. True is `skuq.search.SuccessiveHalving` by
        its defaults, which lets all initial trials finish.
    initial_trials : list of dict, Catalog, path or None, default=None
        Configurations to try first, completed by the space's defaults. From a catalog, or from the
        folder of a search, the ten best are taken. None uses the known recipes of a tabular space,
        and no initial trials in other spaces.
    objective : callable or None, default=None
        ``objective(trial) -> float``, minimised by the search instead of ``trial.score``, for
        example with a penalty on size: ``lambda trial: trial.score + 1e-6 * trial.n_weights``. A
        trial is a `skuq.catalog.Member` or `FoldedMember`. Early discarding always uses the score.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `search` fixes all decisions of one kind,
        those not named have the space's default value.
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is the paper's 100 and 10 for large budgets,
        and a quarter of `n_trials` and a third of that for small ones.
    kappa : float, default=0.001
        Weight of the standard deviation in the Bayesian optimisation; larger explores more. Keep it
        small with several jobs, since running trials count as the best.
    n_initial : int, default=10
        Number of random configurations before the Bayesian optimisation begins.
    max_batch_size : int, default=256
        Largest batch size of the space; a size larger than the data means full batches.
    selection : {"greedy", "top", "hq"} or callable, default="greedy"
        Rule that selects the members. "greedy" adds them one by one, "top" takes the trials with
        the lowest single `selection_loss`, and "hq" prunes teams by diversity
        (`skuq.ensembles.select_hq`) and weights members equally. A callable gets ``(y, loc, scale,
        n_members, sample_weight=...)`` and returns a `skuq.ensembles.Selection`.
    selection_loss : {"nll", "crps", "mse"}, default="nll"
        Loss that "greedy" and "top" minimise: the NLL (the paper's) or CRPS of the normal with the
        mixture's mean and variance, or the squared error of the mean. "hq" uses its own losses.
    calibrate : bool, default=True
        Whether to scale the ensemble's standard deviation so that it fits the out-of-fold errors,
        as `DeepEnsembleRegressor` does. Without folds, and with `shift_validation`, only `reselect`
        on new rows calibrates.
    epistemic_ddof : {0, 1}, default=0
        Degrees of freedom of the epistemic variance: 0 is the mixture's own variance of the means;
        1 is the paper's Eq. 4 (K - 1), used by `predict` and `predict_uncertainty` but not by
        quantiles.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals depend on the order in which trials finish, so that only
        "rs-mixed" and "init" repeat exactly.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder. See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run in
        the calling process.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed.
    max_failures : int or None, default=None
        Maximum number of failed trials; one more ends the search with an error that shows the
        reasons. None ends it only if the first ten all fail.
    warm_start : bool, default=False
        Let another `fit` with the same data and settings, and with an integer `random_state` or
        None, keep the trials of the previous fit and add the missing ones of a larger `n_trials`.
        If data or settings differ, a new search starts, with a warning. With `catalog_dir` trials
        are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer and ``n_jobs=1`` results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    catalog_ : Catalog
        Every trial, in the order of proposal; ``catalog_.to_frame()`` shows them. A pickled
        estimator keeps the weights of its members only.
    selection_ : Selection
        `indices` of the members in `catalog_`, `weights` that sum to 1, and the `loss` of the
        ensemble on the rows it was selected on, in units of the standardised y.
    refitted_ : dict of int to Member
        With ``refit=True``, the networks trained on all rows, by their position in `catalog_`.
    repeated_ : dict of int to FoldedMember
        The chosen trials with the networks of their repeats, by their position in `catalog_`.
    calibration_ : tuple of (float, float)
        Factor of the standard deviation, and floor of the noise in units of the standardised y.
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    catalog_path_ : Path or None
        Folder of this search in `catalog_dir`.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    SearchFailedError
        If no network could be trained; it shows the reasons.
    SearchSpaceError
        If `search_space` cannot be used.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact for small, smooth data.

    Notes
    -----
    Inputs and targets are standardised. Zero-weight rows are dropped; weights count in
    the training loss, the validation loss and the selection.

    References
    ----------
    R. Egele, R. Maulik, K. Raghavan, B. Lusch, I. Guyon, P. Balaprakash. "AutoDEUQ:
    Automated Deep Ensemble with Uncertainty Quantification".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import AutoDEUQRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AutoDEUQRegressor(n_trials=2, epochs=10, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    _method_class = _AutoDEUQ
    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        "selection_loss": [StrOptions(set(MOMENT_LOSSES))],
        "calibrate": ["boolean"],
        "epistemic_ddof": [Options(Integral, {0, 1})],
        **TARGET_CONSTRAINTS,
    }

    def __init__(
        self,
        n_trials="auto",
        *,
        n_members=5,
        min_members=2,
        n_nodes=5,
        epochs="auto",
        validation_fraction="auto",
        cv="auto",
        refit=False,
        repeats="auto",
        search="agebo",
        search_space="auto",
        discard=True,
        initial_trials=None,
        objective=None,
        fixed_architecture=None,
        fixed_hyperparameters=None,
        population_size=None,
        sample_size=None,
        kappa=0.001,
        n_initial=10,
        max_batch_size=256,
        selection="greedy",
        selection_loss="nll",
        calibrate=True,
        epistemic_ddof=0,
        preprocess="auto",
        target_transform="standard",
        n_jobs=None,
        catalog_dir=None,
        max_time=None,
        trial_timeout=None,
        max_failures=None,
        warm_start=False,
        random_state=None,
        verbose=None,
    ):
        self.n_trials = n_trials
        self.n_members = n_members
        self.min_members = min_members
        self.n_nodes = n_nodes
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.refit = refit
        self.repeats = repeats
        self.search = search
        self.search_space = search_space
        self.discard = discard
        self.initial_trials = initial_trials
        self.objective = objective
        self.fixed_architecture = fixed_architecture
        self.fixed_hyperparameters = fixed_hyperparameters
        self.population_size = population_size
        self.sample_size = sample_size
        self.kappa = kappa
        self.n_initial = n_initial
        self.max_batch_size = max_batch_size
        self.selection = selection
        self.selection_loss = selection_loss
        self.calibrate = calibrate
        self.epistemic_ddof = epistemic_ddof
        self.preprocess = preprocess
        self.target_transform = target_transform
        self.n_jobs = n_jobs
        self.catalog_dir = catalog_dir
        self.max_time = max_time
        self.trial_timeout = trial_timeout
        self.max_failures = max_failures
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_paper(cls, name="benchmark", **changes):
        """Make an estimator with the settings of one of the paper's experiments.

        Parameters
        ----------
        name : {"benchmark", "toy"}, default="benchmark"
            "benchmark" is the regression benchmark (500 trials of fully connected networks with
            skip connections, five members), "toy" the one-dimensional task of Fig. 1 and 2.
        **changes : dict
            Parameters that differ from those settings, by name.

        Returns
        -------
        estimator

        Examples
        --------
        >>> AutoDEUQRegressor.from_paper(n_trials=20).n_members
        5
        """
        return cls(**{**_paper_settings(name), "calibrate": False, **changes})


@saved_as("estimators.AutoDEUQClassifier", kind="estimator")
class AutoDEUQClassifier(SearchEstimator, UncertaintyClassifier):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks are trained, each proposed on the basis of the finished trials: ageing
    evolution changes the architecture, and Bayesian optimisation the training hyperparameters
    (AgEBO). From this catalog, a greedy selection on validation rows chooses up to `n_members`,
    whose averaged probabilities are the prediction. The members' average entropy is the aleatoric
    uncertainty, and their disagreement the epistemic uncertainty. The paper has regression only;
    this is its method with the negative log likelihood of classes.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog; 500 in the paper. "auto" is 50, or with
        `max_time` as many as fit into that time.
    n_members : int, default=5
        Maximum number of distinct members (K).
    min_members : int, default=2
        Minimum number of distinct members. A single member has no epistemic uncertainty; 1 is the
        paper's greedy rule.
    n_nodes : int, default=5
        Number of variable nodes of the architecture: 5 in the paper's benchmark, 3 in its toy
        task.
    epochs : int or "auto", default="auto"
        Maximum number of epochs of one network, of which the best is kept. "auto" is the number
        that the space sets, otherwise 100.
    validation_fraction : float or "auto", default="auto"
        Share of the rows that is held out for early stopping, the search and the selection.
        Ignored with `cv` or `validation_data`. "auto" is 0.25.
    cv : int, cross-validation generator, iterable, "auto" or None, default="auto"
        Number of folds or a splitter, in place of `validation_fraction`. Every trial then trains
        one network per fold of the rows of positive weight, each without the rows of its fold.
        Search and selection use the out-of-fold predictions of all rows, and all networks of the
        selected trials predict. Folds are better for small tables, and multiply the cost by their
        number. A splitter must test every row once. None holds out `validation_fraction`. "auto" is
        8 folds in the tabular space (5 above 20,000 rows), whose folds train as one program, and
        None in other spaces, with `validation_data` or with a number as `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it, and 0 in other spaces. It
        has no effect with `refit` or a splitter as `cv`.
    search : str or keras_tuner.Oracle, default="agebo"
        Rule that proposes the next network: "agebo"; "age" (architectures only), "bo"
        (hyperparameters only), "init" (neither: only seeds differ); "rs-mixed", "age-mixed",
        "bo-mixed" (both as one vector). Or any Keras-Tuner oracle.
    search_space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "auto" and "tabular" are `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good. "dense" is the paper's: fully connected networks with skip
        connections, with `n_nodes` and `max_batch_size`; "benchmark" and "toy" are its presets. A
        callable ``build(hp, input_shape, n_outputs) -> keras.Model``, alone or in a pair with
        ``training(hp) -> dict``, is a space in Keras-Tuner's language, see
        `skuq.networks.KerasTunerSpace`.
    discard : bool or SuccessiveHalving, default=True
        Stop trials early if their scores are worse than those of others at the same stage. They are
        recorded as discarded and cannot become members. True is `skuq.search.SuccessiveHalving` by
        its defaults, which lets all initial trials finish.
    initial_trials : list of dict, Catalog, path or None, default=None
        Configurations to try first, completed by the space's defaults. From a catalog, or from the
        folder of a search, the ten best are taken. None uses the known recipes of a tabular space,
        and no initial trials in other spaces.
    objective : callable or None, default=None
        ``objective(trial) -> float``, minimised by the search instead of ``trial.score``, for
        example with a penalty on size: ``lambda trial: trial.score + 1e-6 * trial.n_weights``. A
        trial is a `skuq.catalog.Member` or `FoldedMember`. Early discarding always uses the score.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `search` fixes all decisions of one kind,
        those not named have the space's default value.
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is the paper's 100 and 10 for large budgets,
        and a quarter of `n_trials` and a third of that for small ones.
    kappa : float, default=0.001
        Weight of the standard deviation in the Bayesian optimisation; larger explores more. Keep it
        small with several jobs, since running trials count as the best.
    n_initial : int, default=10
        Number of random configurations before the Bayesian optimisation begins.
    max_batch_size : int, default=256
        Largest batch size of the space; a size larger than the data means full batches.
    selection : {"greedy", "top", "hq"} or callable, default="greedy"
        Rule that selects the members. "greedy" adds them one by one, "top" takes the trials with
        the lowest single `selection_loss`, and "hq" prunes teams by diversity
        (`skuq.ensembles.select_hq_proba`) and weights members equally. A callable gets ``(y, proba,
        n_members, sample_weight=...)``, class codes (n_rows,) and probabilities (n_trials, n_rows,
        n_classes), and returns a `skuq.ensembles.Selection`.
    selection_loss : {"nll", "brier"}, default="nll"
        Loss that "greedy" and "top" minimise: minus log of the averaged probability of the true
        class, or the Brier score. "hq" uses its own losses.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, in the training loss and in the selection; they multiply
        sample weights. "balanced" is inversely proportional to their frequencies in y.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals depend on the order in which trials finish, so that only
        "rs-mixed" and "init" repeat exactly.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder. See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run in
        the calling process.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed.
    max_failures : int or None, default=None
        Maximum number of failed trials; one more ends the search with an error that shows the
        reasons. None ends it only if the first ten all fail.
    warm_start : bool, default=False
        Let another `fit` with the same data and settings, and with an integer `random_state` or
        None, keep the trials of the previous fit and add the missing ones of a larger `n_trials`.
        If data or settings differ, a new search starts, with a warning. With `catalog_dir` trials
        are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer and ``n_jobs=1`` results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    catalog_ : Catalog
        Every trial, in the order of proposal; ``catalog_.to_frame()`` shows them. A pickled
        estimator keeps the weights of its members only.
    selection_ : Selection
        `indices` of the members in `catalog_`, `weights` that sum to 1, and the `loss` of the
        ensemble on the rows it was selected on, in nats.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    refitted_ : dict of int to Member
        With ``refit=True``, the networks trained on all rows, by their position in `catalog_`.
    repeated_ : dict of int to FoldedMember
        The chosen trials with the networks of their repeats, by their position in `catalog_`.
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    catalog_path_ : Path or None
        Folder of this search in `catalog_dir`.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    SearchFailedError
        If no network could be trained; it shows the reasons.
    SearchSpaceError
        If `search_space` cannot be used.

    See Also
    --------
    NESClassifier : Members chosen for their ensemble, robust to dataset shift.

    Notes
    -----
    Inputs are standardised. Zero-weight rows are dropped; weights count in
    the training loss, the validation loss and the selection.

    References
    ----------
    R. Egele, R. Maulik, K. Raghavan, B. Lusch, I. Guyon, P. Balaprakash. "AutoDEUQ:
    Automated Deep Ensemble with Uncertainty Quantification".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import AutoDEUQClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AutoDEUQClassifier(n_trials=2, epochs=10, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    _method_class = _AutoDEUQ
    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        "selection_loss": [StrOptions({"nll", "brier"})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        n_trials="auto",
        *,
        n_members=5,
        min_members=2,
        n_nodes=5,
        epochs="auto",
        validation_fraction="auto",
        cv="auto",
        refit=False,
        repeats="auto",
        search="agebo",
        search_space="auto",
        discard=True,
        initial_trials=None,
        objective=None,
        fixed_architecture=None,
        fixed_hyperparameters=None,
        population_size=None,
        sample_size=None,
        kappa=0.001,
        n_initial=10,
        max_batch_size=256,
        selection="greedy",
        selection_loss="nll",
        class_weight=None,
        preprocess="auto",
        n_jobs=None,
        catalog_dir=None,
        max_time=None,
        trial_timeout=None,
        max_failures=None,
        warm_start=False,
        random_state=None,
        verbose=None,
    ):
        self.n_trials = n_trials
        self.n_members = n_members
        self.min_members = min_members
        self.n_nodes = n_nodes
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.refit = refit
        self.repeats = repeats
        self.search = search
        self.search_space = search_space
        self.discard = discard
        self.initial_trials = initial_trials
        self.objective = objective
        self.fixed_architecture = fixed_architecture
        self.fixed_hyperparameters = fixed_hyperparameters
        self.population_size = population_size
        self.sample_size = sample_size
        self.kappa = kappa
        self.n_initial = n_initial
        self.max_batch_size = max_batch_size
        self.selection = selection
        self.selection_loss = selection_loss
        self.class_weight = class_weight
        self.preprocess = preprocess
        self.n_jobs = n_jobs
        self.catalog_dir = catalog_dir
        self.max_time = max_time
        self.trial_timeout = trial_timeout
        self.max_failures = max_failures
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_paper(cls, name="benchmark", **changes):
        """Make an estimator with the settings of one of the paper's experiments.

        Parameters
        ----------
        name : {"benchmark", "toy"}, default="benchmark"
            "benchmark" is the regression benchmark (500 trials of fully connected networks with
            skip connections, five members), "toy" the one-dimensional task of Fig. 1 and 2.
        **changes : dict
            Parameters that differ from those settings, by name.

        Returns
        -------
        estimator

        Examples
        --------
        >>> AutoDEUQClassifier.from_paper(n_trials=20).n_members
        5
        """
        return cls(**{**_paper_settings(name), **changes})
