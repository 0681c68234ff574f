"""AutoDEUQ: an ensemble from a joint search of architectures and hyperparameters."""

from __future__ import annotations

import functools
import os
from dataclasses import field
from numbers import Integral
from typing import Any

from skuq._params import Interval, StrOptions, parameters
from skuq.ensembles import GreedySelection
from skuq.ensembles._rules import SELECTIONS
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._presets import defaults_in
from skuq.estimators.methods._search_base import SearchEstimator
from skuq.estimators.methods._search_plan import (
    SearchDefaults,
    SearchPlan,
    constraints_with,
    is_splitter,
    resolve_rule,
    resolve_space,
    resolve_strategy,
)
from skuq.files._registry import saved_as
from skuq.networks._given_spaces import AUTODEUQ_SPACES
from skuq.search import AgEBO
from skuq.search._strategies import AUTODEUQ_STRATEGIES
from skuq.tables._inputs import TableInputs
from skuq.tables._targets import CLASS_CONSTRAINTS, TARGET_CONSTRAINTS

#: Short forms of the settings of both estimators.
SETTINGS: dict[str, Any] = {
    "search": AUTODEUQ_STRATEGIES,
    "space": AUTODEUQ_SPACES,
    "selection": SELECTIONS,
}

#: Constraints of the parameters of regressor and classifier.
AUTODEUQ_CONSTRAINTS: dict = {
    **constraints_with(SETTINGS),
    "repeats": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
}


def make_plan(estimator: Any) -> SearchPlan:
    """Read the parameters of AutoDEUQ; raise ValueError if they contradict each other."""
    space, rule = resolve_space(estimator), resolve_rule(estimator)
    defaults = defaults_in(space)
    strategy = resolve_strategy(estimator, defaults)
    # A strategy that is given is meant, also one whose settings `set_params` has changed.
    is_auto = isinstance(estimator.search, str) and estimator.search == "auto"
    if is_auto and defaults.strategy is not None:
        strategy = defaults.strategy()
    return SearchPlan(
        strategy,
        space,
        rule,
        TableInputs(estimator.preprocess, embed=defaults.embeds),
        defaults.targets(estimator),
        defaults,
        n_repeats=_count_repeats(estimator, defaults),
    )


def _count_repeats(estimator: Any, defaults: SearchDefaults) -> int:
    """Resolve `repeats`, and refuse those that have no folds."""
    repeats = estimator.repeats
    if isinstance(repeats, str):
        return defaults.n_repeats(estimator)
    if repeats > 0 and estimator.refit:
        raise ValueError(
            f'`repeats` must be 0 or "auto" with `refit=True`. Got repeats={repeats}: refitted '
            "networks have no folds to repeat. Set refit=False."
        )
    if repeats > 0 and is_splitter(estimator.validation):
        raise ValueError(
            f'`repeats` must be 0 or "auto" with a splitter as `validation`. Got '
            f"repeats={repeats}: a splitter has no other folds. Give a number of folds."
        )
    return repeats


def papers(**of_numbers: Any) -> dict[str, dict[str, Any]]:
    """Return the parameters of the paper's experiments: section III, and its toy task."""
    common = {
        "n_trials": 500,
        "n_members": 5,
        "search": AgEBO(population_size=100, sample_size=10),
        "selection": GreedySelection("nll", min_members=1, max_size=None),
        "repeats": 0,
        "calibrate": False,
        **of_numbers,
    }
    return {
        "benchmark": {**common, "space": "benchmark", "epochs": 100, "validation": 0.25},
        "toy": {**common, "space": "toy", "epochs": 200, "validation": 1 / 3},
    }


@saved_as("estimators.AutoDEUQRegressor", kind="estimator")
@parameters
class AutoDEUQRegressor(SearchEstimator, UncertaintyRegressor):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks are trained: for tables, recipes that are good on many of them, then random
    ones. In the paper's space each is proposed on the basis of the finished trials: ageing
    evolution changes the architecture, and Bayesian optimisation the training hyperparameters
    (AgEBO). A network predicts a mixture of three normals, in the paper's space one normal. From
    this catalog, a greedy selection on validation rows chooses up to `n_members`, whose mixture is
    the prediction. The average noise that members predict is the aleatoric uncertainty, and the
    disagreement of their means the epistemic uncertainty.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 50, or with `max_time` as many as fit
        into that time (at most 10,000). An oracle's `max_trials` is a limit, too; the paper has
        500.
    n_members : int, default=5
        Number of members. At most so many distinct trials are selected (K).
    search : str, SearchStrategy or keras_tuner.Oracle, default="auto"
        Strategy that proposes the next network. "auto" is "random" in the tabular space, where no
        strategy was better after the space's known recipes, and "agebo" in other spaces or if its
        settings are given by name, such as ``search__kappa``. "agebo" (`skuq.search.AgEBO`); "age"
        (architectures only, `skuq.search.AgE`), "bo" (hyperparameters only,
        `skuq.search.BayesianSearch`), "init" (neither: only seeds differ,
        `skuq.search.RandomSearch`); "random", "age-mixed", "bo-mixed" (both as one vector). An
        object sets more, such as initial trials and an objective. Or any Keras-Tuner oracle, see
        `skuq.search.OracleSearch`.
    space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "auto" and "tabular" are `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good. "dense" and "benchmark" are the paper's `skuq.networks.DenseSpace`
        of fully connected networks with skip connections, and "toy" is that of its one-dimensional
        example. A callable ``build(hp, input_shape, n_outputs) -> keras.Model``, alone or in a pair
        with ``training(hp) -> dict``, is a space in Keras-Tuner's language, see
        `skuq.networks.KerasTunerSpace`.
    fixed : dict or None, default=None
        Decisions that are not searched, by name. Decisions that `search` does not vary have their
        value here or the space's default.
    selection : {"greedy", "top", "hq", "forward", "replacement", "quick"}, SelectionRule or \
            callable, default="greedy"
        Rule that selects the members: "greedy" is `skuq.ensembles.GreedySelection`, which adds them
        one by one, "top" `skuq.ensembles.TopSelection`, "hq" `skuq.ensembles.HQSelection`, and the
        others are `skuq.ensembles.ForwardSelection`. An object sets the loss to minimise and the
        least number of members. A callable gets ``(y, loc, scale, n_members, sample_weight=...)``,
        or of classes ``(y, proba, n_members, sample_weight=...)``: class codes (n_rows,) and
        probabilities (n_trials, n_rows, n_classes). It returns a `skuq.ensembles.Selection`.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. More are never run, and the best epoch is kept. "auto" is
        the number that the space sets, otherwise 100.
    validation : float, int, cross-validation generator, iterable, "auto" or None, default="auto"
        Share of the rows that is held out to compare networks, or number of folds, or a splitter.
        With folds, every trial trains one network per fold of the rows of positive weight, each
        without the rows of its fold. Search and selection use the out-of-fold predictions of all
        rows, and all networks of the selected trials predict. Folds are better for small tables,
        and multiply the cost by their number. A splitter must test every row once; positions in a
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is 8
        folds in the tabular space (5 above 20,000 rows, fewer below 16), whose folds train as one
        program, and 0.25 in other spaces. Early stopping goes by the same rows.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it (at most 20), and 0 in
        other spaces, with `refit` or with a splitter, which has no other folds.
    calibrate : bool, default=True
        Whether to calibrate the ensemble on its out-of-fold predictions. Its distribution gets a
        factor of its width and a share that is wider, as that of `TabularEnsembleRegressor`.
        Without folds, and with `shift_validation`, only `reselect` on new rows calibrates. False
        lets the members predict alone, without more uncertainty far from the rows.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Tabular networks embed columns of more than ten categories instead.
    target_transform : {"auto", "standard", "yeo-johnson", "quantile", transformer}, default="auto"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing. "auto" takes "yeo-johnson" or "quantile"
        if the standard deviation of y is above 2.5 times that of a normal with the same quartiles,
        otherwise "standard". In other spaces than the tabular one it is "standard".
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one network, in a process with its share of
        the cores. With more than one, proposals depend on the order in which trials finish. Only
        "random" and "init" repeat exactly then.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder. Of two fits of the same search at the
        same time, the second waits for the first, at most `max_time`. See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run
        one at a time in the calling process, whatever `n_jobs` is. A fit with a limit does not
        repeat exactly.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed. Networks that train
        together have as many seconds on average.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous fit. It keeps the trials of the previous fit, and
        adds the missing ones of a larger `n_trials`, if it has the same data and settings, and an
        integer `random_state` or None. If data or settings differ, a new search starts, with a
        warning. With `catalog_dir` trials are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly. This needs ``n_jobs=1``,
        and no `max_time`.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    catalog_ : Catalog
        Every trial, in the order of proposal; ``catalog_.to_frame()`` shows them. A pickled
        estimator keeps the weights of its members only.
    selection_ : Selection
        `indices` of the members in `catalog_`, `weights` that sum to 1, and the `loss` of the
        ensemble on the rows it was selected on, in nats or in units of standardised y.
    selections_ : tuple of Selection
        The selection for each held-out set: the clean rows, then those of `shift_validation`.
    refitted_ : dict of int to Member
        With ``refit=True``, the networks trained on all rows, by their position in `catalog_`.
    repeated_ : dict of int to FoldedMember
        The chosen trials with the networks of their repeats, by their position in `catalog_`.
    calibration_ : Calibration
        Calibration of the ensemble: `factor` of all standard deviations, and `share` of what each
        member predicts that is three times as wide.
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedSearch
        Fitted search, whose ensemble predicts; `fitted_.inputs` and `fitted_.targets` hold the
        scales of X and y.
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
        If `space` cannot be used.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact for small, smooth data.

    Notes
    -----
    Targets are standardised, and so are inputs; in the tabular space these are scaled by their
    quartiles instead. Zero-weight rows are dropped; weights count in the training loss, the
    validation loss and the selection.

    Networks may agree for no reason where they have seen nothing. There the epistemic uncertainty
    grows with the distance from the rows, until the whole is about that of y without X;
    docs/methods/ensembles.md has the formula. It needs 10 rows, and at most 256 encoded columns.

    References
    ----------
    R. Egele, R. Maulik, K. Raghavan, B. Lusch, I. Guyon, P. Balaprakash. "AutoDEUQ:
    Automated Deep Ensemble with Uncertainty Quantification".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import AutoDEUQRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AutoDEUQRegressor(n_trials=2, epochs=3, validation=2, repeats=0, random_state=0)
    >>> model = model.fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 5
    search: Any = "auto"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "greedy"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
    repeats: int | str = "auto"
    calibrate: bool = True
    preprocess: Any = "auto"
    target_transform: Any = "auto"
    n_jobs: int | None = None
    catalog_dir: str | os.PathLike[str] | None = None
    max_time: float | None = None
    trial_timeout: float | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _settings = SETTINGS
    _selection_arrays = {"y": "y", "loc": "loc", "scale": "scale"}
    _parameter_constraints = {
        **AUTODEUQ_CONSTRAINTS,
        "calibrate": ["boolean"],
        **TARGET_CONSTRAINTS,
    }
    _papers = staticmethod(functools.partial(papers, target_transform="standard"))

    def _plan(self, X: Any) -> SearchPlan:
        return make_plan(self)


@saved_as("estimators.AutoDEUQClassifier", kind="estimator")
@parameters
class AutoDEUQClassifier(SearchEstimator, UncertaintyClassifier):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks are trained: for tables, recipes that are good on many of them, then random
    ones. In the paper's space each is proposed on the basis of the finished trials: ageing
    evolution changes the architecture, and Bayesian optimisation the training hyperparameters
    (AgEBO). From this catalog, a greedy selection on validation rows chooses up to `n_members`,
    whose averaged probabilities are the prediction. The members' average entropy is the aleatoric
    uncertainty, and their disagreement the epistemic uncertainty. The paper has regression only;
    this is its method with the negative log likelihood of classes.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 50, or with `max_time` as many as fit
        into that time (at most 10,000). An oracle's `max_trials` is a limit, too; the paper has
        500.
    n_members : int, default=5
        Number of members. At most so many distinct trials are selected (K).
    search : str, SearchStrategy or keras_tuner.Oracle, default="auto"
        Strategy that proposes the next network. "auto" is "random" in the tabular space, where no
        strategy was better after the space's known recipes, and "agebo" in other spaces or if its
        settings are given by name, such as ``search__kappa``. "agebo" (`skuq.search.AgEBO`); "age"
        (architectures only, `skuq.search.AgE`), "bo" (hyperparameters only,
        `skuq.search.BayesianSearch`), "init" (neither: only seeds differ,
        `skuq.search.RandomSearch`); "random", "age-mixed", "bo-mixed" (both as one vector). An
        object sets more, such as initial trials and an objective. Or any Keras-Tuner oracle, see
        `skuq.search.OracleSearch`.
    space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "auto" and "tabular" are `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good. "dense" and "benchmark" are the paper's `skuq.networks.DenseSpace`
        of fully connected networks with skip connections, and "toy" is that of its one-dimensional
        example. A callable ``build(hp, input_shape, n_outputs) -> keras.Model``, alone or in a pair
        with ``training(hp) -> dict``, is a space in Keras-Tuner's language, see
        `skuq.networks.KerasTunerSpace`.
    fixed : dict or None, default=None
        Decisions that are not searched, by name. Decisions that `search` does not vary have their
        value here or the space's default.
    selection : {"auto", "greedy", "top", "hq", "forward", "replacement", "quick", "stacking"}, \
            SelectionRule or callable, default="auto"
        Rule that selects the members: "greedy" is `skuq.ensembles.GreedySelection`, which adds them
        one by one, "top" `skuq.ensembles.TopSelection`, "hq" `skuq.ensembles.HQSelection`,
        "stacking" `skuq.ensembles.StackingSelection`, and the others are
        `skuq.ensembles.ForwardSelection`. "auto" is "stacking" where folds predict every row, and
        otherwise the paper's "greedy". An object sets the loss to minimise and the least number of
        members. A callable gets ``(y, loc, scale, n_members, sample_weight=...)``, or of classes
        ``(y, proba, n_members, sample_weight=...)``: class codes (n_rows,) and probabilities
        (n_trials, n_rows, n_classes). It returns a `skuq.ensembles.Selection`.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. More are never run, and the best epoch is kept. "auto" is
        the number that the space sets, otherwise 100.
    validation : float, int, cross-validation generator, iterable, "auto" or None, default="auto"
        Share of the rows that is held out to compare networks, or number of folds, or a splitter.
        With folds, every trial trains one network per fold of the rows of positive weight, each
        without the rows of its fold. Search and selection use the out-of-fold predictions of all
        rows, and all networks of the selected trials predict. Folds are better for small tables,
        and multiply the cost by their number. A splitter must test every row once; positions in a
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is 8
        folds in the tabular space (5 above 20,000 rows, fewer below 16), whose folds train as one
        program, and 0.25 in other spaces. Early stopping goes by the same rows.
        For classes above 10,000 rows it is some of ten folds if `max_time` is too short for four
        trials of all folds and no trials are stored: several configurations are then better than
        all folds of one. Rows that no fold holds out have weight 0 in the selection.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it (at most 20), and 0 in
        other spaces, with `refit` or with a splitter, which has no other folds.
    calibrate : bool, default=True
        Whether to calibrate the ensemble on its out-of-fold predictions. It gets a
        temperature and a small share of the classes' frequencies, as `TabularEnsembleClassifier`.
        With `shift_validation`, or fewer than 1,000 validation rows without folds, only `reselect`
        on new rows calibrates. False lets the members predict alone, without more uncertainty far
        from the rows.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Tabular networks embed columns of more than ten categories instead.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one network, in a process with its share of
        the cores. With more than one, proposals depend on the order in which trials finish. Only
        "random" and "init" repeat exactly then.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder. Of two fits of the same search at the
        same time, the second waits for the first, at most `max_time`. See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run
        one at a time in the calling process, whatever `n_jobs` is. A fit with a limit does not
        repeat exactly.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed. Networks that train
        together have as many seconds on average.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous fit. It keeps the trials of the previous fit, and
        adds the missing ones of a larger `n_trials`, if it has the same data and settings, and an
        integer `random_state` or None. If data or settings differ, a new search starts, with a
        warning. With `catalog_dir` trials are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly. This needs ``n_jobs=1``,
        and no `max_time`.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    catalog_ : Catalog
        Every trial, in the order of proposal; ``catalog_.to_frame()`` shows them. A pickled
        estimator keeps the weights of its members only.
    selection_ : Selection
        `indices` of the members in `catalog_`, `weights` that sum to 1, and the `loss` of the
        ensemble on the rows it was selected on, in nats or in units of standardised y.
    selections_ : tuple of Selection
        The selection for each held-out set: the clean rows, then those of `shift_validation`.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    refitted_ : dict of int to Member
        With ``refit=True``, the networks trained on all rows, by their position in `catalog_`.
    repeated_ : dict of int to FoldedMember
        The chosen trials with the networks of their repeats, by their position in `catalog_`.
    calibration_ : Calibration
        Calibration of the ensemble: `temperature` of all members, and probabilities of the classes
        that are added to their average (`constant`).
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedSearch
        Fitted search, whose ensemble predicts; `fitted_.inputs` and `fitted_.targets` hold the
        scales of X and y.
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
        If `space` cannot be used.

    See Also
    --------
    NESClassifier : Members chosen for their ensemble, robust to dataset shift.

    Notes
    -----
    Inputs are standardised, or in the tabular space scaled by their quartiles. Zero-weight rows are
    dropped; weights count in the training loss, the validation loss and the selection.

    References
    ----------
    R. Egele, R. Maulik, K. Raghavan, B. Lusch, I. Guyon, P. Balaprakash. "AutoDEUQ:
    Automated Deep Ensemble with Uncertainty Quantification".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import AutoDEUQClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AutoDEUQClassifier(n_trials=2, epochs=3, validation=2, repeats=0, random_state=0)
    >>> model = model.fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 5
    search: Any = "auto"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
    repeats: int | str = "auto"
    calibrate: bool = True
    class_weight: Any = None
    preprocess: Any = "auto"
    n_jobs: int | None = None
    catalog_dir: str | os.PathLike[str] | None = None
    max_time: float | None = None
    trial_timeout: float | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _settings = SETTINGS
    _selection_arrays = {"y": "codes", "proba": "proba"}
    _parameter_constraints = {**AUTODEUQ_CONSTRAINTS, **CLASS_CONSTRAINTS}
    _papers = staticmethod(papers)

    def _plan(self, X: Any) -> SearchPlan:
        return make_plan(self)
