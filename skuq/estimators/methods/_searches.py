"""AutoDEUQ and NES: ensembles from searches of architectures and hyperparameters."""

import functools
import os
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_regressor

from skuq._params import parameters
from skuq.ensembles import GreedySelection
from skuq.ensembles._rules import NES_SELECTIONS, SELECTIONS
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._presets import defaults_in
from skuq.estimators.methods import _search_plan
from skuq.estimators.methods._search_base import SearchEstimator
from skuq.estimators.methods._search_plan import SearchPlan, constraints_with, resolve_rule
from skuq.networks import CellSpace, NASBench201Space
from skuq.networks._given_spaces import AUTODEUQ_SPACES, NES_IMAGE_SPACES, NES_SPACES
from skuq.search import AgEBO, NESEvolution, RandomSearch
from skuq.search._strategies import AUTODEUQ_STRATEGIES, NES_STRATEGIES
from skuq.tables._inputs import ImageInputs, TableInputs
from skuq.tables._targets import CLASS_CONSTRAINTS, TARGET_CONSTRAINTS

#: Short forms of the settings of both estimators.
AUTODEUQ_SETTINGS: dict[str, Any] = {
    "search": AUTODEUQ_STRATEGIES,
    "space": AUTODEUQ_SPACES,
    "selection": SELECTIONS,
}

#: Constraints of the parameters of regressor and classifier.
AUTODEUQ_CONSTRAINTS: dict = constraints_with(AUTODEUQ_SETTINGS)


def make_autodeuq_plan(estimator: Any) -> SearchPlan:
    """Read the parameters of AutoDEUQ; raise ValueError if they contradict each other."""
    space, rule = _search_plan.resolve_space(estimator), resolve_rule(estimator)
    defaults = defaults_in(space)
    strategy = _search_plan.resolve_strategy(estimator, defaults)
    # A strategy that is given is meant, also one whose settings `set_params` has changed.
    is_auto = isinstance(estimator.search, str) and estimator.search == "auto"
    if is_auto and defaults.strategy is not None:
        strategy = defaults.strategy()
    inputs = TableInputs(estimator.preprocess, embed=defaults.embeds)
    return SearchPlan(strategy, space, rule, inputs, defaults.targets(estimator), defaults)


def autodeuq_papers(**of_numbers: Any) -> dict[str, dict[str, Any]]:
    """Return the parameters of the paper's experiments, and of AgEBO's published runs."""
    common = {
        "n_trials": 500,
        "n_members": 5,
        "search": AgEBO(population_size=100, sample_size=10),
        "selection": GreedySelection("nll", min_members=1, max_size=None),
        "calibrate": False,
        **of_numbers,
    }
    return {
        "benchmark": {**common, "space": "benchmark", "epochs": 100, "validation": 0.25},
        "toy": {**common, "space": "toy", "epochs": 200, "validation": 1 / 3},
    }


@parameters("estimators.AutoDEUQRegressor", kind="estimator")
class AutoDEUQRegressor(SearchEstimator, UncertaintyRegressor):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks are trained: for tables, recipes that are good on many of them, then random
    ones. In the paper's space each is proposed on the basis of the finished trials: ageing
    evolution changes the architecture, and Bayesian optimisation the training hyperparameters
    (AgEBO). A network predicts a mixture of three normals, in the paper's space one normal. From
    this catalog, up to `n_members` are selected on rows that were held out, and their mixture is
    the prediction. The average noise that members predict is the aleatoric uncertainty, and the
    disagreement of their means the epistemic uncertainty.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 50, or with `max_time` as many as fit
        into that time (at most 10,000). An oracle's `max_trials` is a limit, too; the paper has
        500.
    n_members : int, default=10
        Number of members. At most so many distinct trials are selected (K); the paper has 5.
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
        `skuq.ensembles.ForwardSelection`. "auto" is "stacking" where folds hold rows out, and
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
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is
        0.25, but in the tabular space four of ten folds for numbers, five folds for classes, and
        three of ten above 2,000 rows. Rows that no fold holds out do not count in the selection.
        Early stopping goes by the same rows.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
    calibrate : bool, default=True
        Whether to calibrate the ensemble on its out-of-fold predictions. Its distribution gets a
        factor of its width and a share that is wider, as that of `TabularEnsembleRegressor`.
        Without folds, and with `shift_validation`, only `reselect` on new rows calibrates. False
        lets the members predict alone, without more uncertainty far from the rows.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only. Tabular networks embed
        columns of more than ten categories instead.
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
    >>> model = AutoDEUQRegressor(n_trials=2, epochs=3, validation=2, random_state=0)
    >>> model = model.fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 10
    search: Any = "auto"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
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

    _settings = AUTODEUQ_SETTINGS
    _selection_arrays = {"y": "y", "loc": "loc", "scale": "scale"}
    _parameter_constraints = {**AUTODEUQ_CONSTRAINTS, **TARGET_CONSTRAINTS}
    _papers = staticmethod(functools.partial(autodeuq_papers, target_transform="standard"))

    def _plan(self, X: Any) -> SearchPlan:
        return make_autodeuq_plan(self)


@parameters("estimators.AutoDEUQClassifier", kind="estimator")
class AutoDEUQClassifier(SearchEstimator, UncertaintyClassifier):
    """Deep ensemble found by a joint search of architectures and hyperparameters.

    `n_trials` networks are trained: for tables, recipes that are good on many of them, then random
    ones. In the paper's space each is proposed on the basis of the finished trials: ageing
    evolution changes the architecture, and Bayesian optimisation the training hyperparameters
    (AgEBO). From this catalog, a selection on held-out rows chooses up to `n_members`, whose
    averaged probabilities are the prediction. The members' average entropy is the aleatoric
    uncertainty, and their disagreement the epistemic uncertainty. The paper has regression only;
    this is its method with the negative log likelihood of classes.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 50, or with `max_time` as many as fit
        into that time (at most 10,000). An oracle's `max_trials` is a limit, too; the paper has
        500.
    n_members : int, default=10
        Number of members. At most so many distinct trials are selected (K); the paper has 5.
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
        `skuq.ensembles.ForwardSelection`. "auto" is "stacking" where folds hold rows out, and
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
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is
        0.25, but in the tabular space four of ten folds for numbers, five folds for classes, and
        three of ten above 2,000 rows. Rows that no fold holds out do not count in the selection.
        Early stopping goes by the same rows.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
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
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only. Tabular networks embed
        columns of more than ten categories instead.
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
    >>> model = AutoDEUQClassifier(n_trials=2, epochs=3, validation=2, random_state=0)
    >>> model = model.fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 10
    search: Any = "auto"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
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

    _settings = AUTODEUQ_SETTINGS
    _selection_arrays = {"y": "codes", "proba": "proba"}
    _parameter_constraints = {**AUTODEUQ_CONSTRAINTS, **CLASS_CONSTRAINTS}
    _papers = staticmethod(autodeuq_papers)

    def _plan(self, X: Any) -> SearchPlan:
        return make_autodeuq_plan(self)


# Optimiser steps of a training on tables; images have the paper's number of epochs.
_N_STEPS = 500

_VARY_WITH_ONE_ARCHITECTURE = ("hyperparameters", "initialisation")

# Decisions that vary, and the selection, of the paper's baselines.
_BASELINES = {
    "deep-ensemble": ("initialisation", "top"),
    "deep-ensemble-es": ("initialisation", "forward"),
    "hyper-ensemble": ("hyperparameters", "forward"),
}

#: Short forms of the settings of both estimators.
NES_SETTINGS: dict[str, Any] = {
    "search": NES_STRATEGIES,
    "space": NES_SPACES,
    "selection": NES_SELECTIONS,
}

#: Constraints of the parameters of classifier and regressor.
NES_CONSTRAINTS: dict = {**constraints_with(NES_SETTINGS), "image_shape": [tuple, list, None]}


def make_nes_plan(estimator: Any, X: Any) -> SearchPlan:
    """Read the parameters of NES; raise ValueError if they contradict each other or X."""
    rule, shape = resolve_rule(estimator), estimator.image_shape
    n_axes = np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
    # Three axes may be images without channels, which are refused with a hint.
    holds_images = n_axes in (3, 4) or shape is not None
    if holds_images and n_axes != 3 and estimator.preprocess not in ("auto", None):
        raise ValueError(
            '`preprocess` must be "auto" or None for images, which are arrays of numbers. '
            f"Got {estimator.preprocess!r}."
        )
    if holds_images and isinstance(estimator.space, str) and estimator.space in NES_IMAGE_SPACES:
        space = NES_IMAGE_SPACES[estimator.space]()
    else:
        space = _search_plan.resolve_space(estimator)
    takes_images = getattr(space, "takes_images", None)
    if takes_images and not holds_images and X is not None:
        raise ValueError(
            f"`space={estimator.space!r}` needs images: X of shape (n, height, width, channels), "
            "or flat rows and `image_shape=`."
        )
    defaults = defaults_in(space)
    # The paper's searches start at random.
    starts = defaults.embeds
    defaults = replace(defaults, n_trials=defaults.n_nes_trials, starts_with_recipes=starts)
    inputs: Any
    if holds_images:
        # Networks for tables get flat rows, and a user's space gets images unless it refuses them.
        inputs = ImageInputs(shape, flat=takes_images is False, embed=defaults.embeds)
    else:
        inputs = TableInputs(estimator.preprocess, embed=defaults.embeds)
    strategy = _search_plan.resolve_strategy(estimator, defaults)
    targets = defaults.targets(estimator)
    n_steps = None if holds_images and not inputs.flat else _N_STEPS
    return SearchPlan(
        *(strategy, space, rule, inputs, targets, defaults, n_steps),
        is_baseline=strategy.vary in _VARY_WITH_ONE_ARCHITECTURE,
        images=True,
    )


def nes_papers(**of_numbers: Any) -> dict[str, dict[str, Any]]:
    """Return the parameters of the paper's data sets, and of tables, which it does not have."""
    names = "n_trials", "n_members", "epochs", "validation", "space", "fixed"
    # K, M, epochs, and validation rows: a share of the training rows, or "auto" where the data set
    # has its own. Trained weights of NAS-Bench-201 are the benchmark's, hence its training.
    nas_bench = {"learning_rate": 0.1, "l2": 2.5e-4}
    settings: dict[str, tuple] = {
        "cifar-10": (400, 10, 100, 0.2, "darts"),
        "cifar-100": (400, 10, 100, 0.2, "darts"),
        "fashion-mnist": (400, 10, 15, 1 / 6, "darts"),
        "tiny-imagenet": (200, 10, 100, "auto", CellSpace(batch_size=128)),
        "imagenet-16-120": (1000, 3, 200, "auto", NASBench201Space(batch_size=256), nas_bench),
        "dense": (400, 5, "auto", 0.25, "dense"),
    }
    common = {
        "search": NESEvolution(vary="architecture", population_size=50, n_parents=10),
        "selection": "forward",
        "calibrate": False,
        **of_numbers,
    }
    return {name: dict(zip(names, values)) | common for name, values in settings.items()}


@parameters("estimators.NESClassifier", kind="estimator")
class NESClassifier(SearchEstimator, UncertaintyClassifier):
    """Ensemble of networks of different architectures, found by neural ensemble search.

    Networks are drawn at random, or evolve: each is then a mutation of a network that improves the
    ensemble of the others. From this pool, the members are chosen whose *averaged* probabilities
    have the lowest negative log likelihood on validation rows: by forward selection, and where
    folds hold rows out, by stacking with a prior. With validation rows of shifted data, the
    ensemble is selected to be robust to such a shift. `from_paper` has the paper's settings.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 20 in the tabular space, where each
        trains a network for every fold, and 50 in others, or with `max_time` as many as fit into
        that time (at most 10,000). The paper's K: 200 to 1000.
    n_members : int, default=5
        Number of members. The paper has 3 to 30 (M).
    search : {"re", "random"}, SearchStrategy or keras_tuner.Oracle, default="random"
        Search strategy: "re" is evolution (NES-RE, Algorithm 2; `skuq.search.NESEvolution`),
        "random" is random search (NES-RS, Algorithm 1; ``RandomSearch(vary="auto")``). Both vary
        the training, too, in the tabular space, and the architecture alone in others, as the paper.
        An object sets more, such as the decisions that vary, the first trials, the size of the
        population and an objective. Both were level on twelve tables.
    space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "tabular" ("auto" for tables): `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good; "dense": fully connected networks with skip connections, three
        variable nodes; "width-depth": layers of equal width; "darts" ("auto" for images): normal
        and reduction cells; "nas-bench-201": its cells. Or an object such as
        `skuq.networks.CellSpace` with other channels and cells, or a space in Keras-Tuner's
        language, see `skuq.networks.KerasTunerSpace`. "dense" and "width-depth" have NES' training
        of tables, see `skuq.networks.WithTraining`.
    fixed : dict or None, default=None
        Decisions that are not searched, by name. Decisions that `search` does not vary have their
        value here or the space's default.
    selection : {"auto", "forward", "replacement", "quick", "top", "hq", "greedy", "stacking"}, \
            SelectionRule or callable, default="auto"
        Rule that selects the members: "forward", "replacement" and "quick" are
        `skuq.ensembles.ForwardSelection`, "top" is `skuq.ensembles.TopSelection` by the loss of the
        mixture, "hq" `skuq.ensembles.HQSelection`, "greedy" `skuq.ensembles.GreedySelection` and
        "stacking" `skuq.ensembles.StackingSelection`. "auto" is "stacking" where folds hold
        rows out, and otherwise the paper's "forward". An object sets the loss to minimise, which
        the evolution minimises, too. A callable gets
        ``(log_likelihood, n_members, sample_weight=...)`` with log likelihoods (n_trials, n_rows)
        and returns a `skuq.ensembles.Selection`.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. The learning rate follows a cosine schedule over them. In a
        space that sets the number itself, as "tabular" does, it is the maximum. "auto" is the
        paper's 100 for images (the paper uses 15 on Fashion-MNIST), and for tables in other spaces
        the number of epochs that has 500 steps of the optimiser, at least 30 and at most 100.
    validation : float, int, cross-validation generator, iterable, "auto" or None, default="auto"
        Share of the rows that is held out to compare networks, or number of folds, or a splitter.
        With folds, every trial trains one network per fold of the rows of positive weight, each
        without the rows of its fold. Search and selection use the out-of-fold predictions of all
        rows, and all networks of the selected trials predict. Folds are better for small tables,
        and multiply the cost by their number. A splitter must test every row once; positions in a
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is
        0.25, but in the tabular space four of ten folds for numbers, five folds for classes, and
        three of ten above 2,000 rows. Rows that no fold holds out do not count in the selection.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
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
    image_shape : tuple (h, w) or (h, w, c), or None, default=None
        Shape of images that are given as flat rows; images (n, h, w, c) do not need it.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own. Categories become indicator columns, at
        most 50 for a column of X; networks of the tabular space embed columns of more than ten
        instead. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
        Images must be finite numbers, too.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one network, in a process with its share of
        the cores. With more than one, proposals depend on the order in which trials finish. With
        "random" results repeat exactly all the same.
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
    calibration_ : Calibration
        Calibration of the ensemble: `temperature` of all members, and probabilities of the classes
        that are added to their average (`constant`).
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    image_shape_ : tuple (h, w, c) or None
        Shape of one image; None for tables.
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
        Number of features seen during `fit`. Images have h * w * c.
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
    DeepEnsembleClassifier : Networks of one architecture with different seeds.

    Notes
    -----
    Inputs are standardised, in the tabular space by their quartiles. Zero-weight rows are dropped;
    weights count in the training loss and in the selection.

    References
    ----------
    S. Zaidi, A. Zela, T. Elsken, C. Holmes, F. Hutter, Y. W. Teh. "Neural Ensemble Search for
    Uncertainty Estimation and Dataset Shift".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import NESClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NESClassifier(n_trials=2, n_members=2, epochs=5, validation=2, random_state=0)
    >>> model = model.fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    >>> total, aleatoric, epistemic = model.predict_uncertainty(X[:2])
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 5
    search: Any = "random"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
    calibrate: bool = True
    class_weight: Any = None
    image_shape: Any = None
    preprocess: Any = "auto"
    n_jobs: int | None = None
    catalog_dir: str | os.PathLike[str] | None = None
    max_time: float | None = None
    trial_timeout: float | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _settings = NES_SETTINGS
    _parameter_constraints = {**NES_CONSTRAINTS, **CLASS_CONSTRAINTS}
    _papers = staticmethod(nes_papers)

    def _plan(self, X: Any) -> SearchPlan:
        return make_nes_plan(self, X)

    def best_configuration(self, severity=None):
        """Return the configuration of the best single trial.

        Parameters
        ----------
        severity : int or None, default=None
            Held-out set on which trials are compared: 0 is the clean validation rows, k the k-th
            set of `shift_validation`. None is all shifted sets together, with the same weight for
            each, or the clean rows if there are no shifted sets.

        Returns
        -------
        dict
            ``{decision name: value}``.

        Raises
        ------
        ValueError
            If there is no such set, or the estimator was pickled, which keeps the members only.
        """
        return dict(self.fitted_.best_trial(resolve_rule(self).loss, severity).configuration)

    def baseline(self, kind, severity=None, *, architecture=None):
        """Make an estimator that the paper compares with, on the best configuration of this search.

        Parameters
        ----------
        kind : {"deep-ensemble", "deep-ensemble-es", "hyper-ensemble"}
            "deep-ensemble" trains `n_members` networks that differ in their seeds (DeepEns (RS), if
            this search was random); "deep-ensemble-es" trains `n_trials` such networks and selects
            among them (appendix C.3); "hyper-ensemble" trains `n_trials` that differ in their
            training, in the paper's spaces in learning rate and L2, and selects (C.4).
        severity : int or None, default=None
            Held-out set on which the configuration is the best, see `best_configuration`.
        architecture : dict or None, default=None
            Architecture to use instead of the best one; decisions that it does not name have the
            space's defaults. With the best one in NAS-Bench-201, see
            `skuq.networks.parse_nas_bench_201`, a deep ensemble is DeepEns (Optimal).

        Returns
        -------
        estimator
            Not fitted yet, and not calibrated. Networks trained in all: those of this search, and
            its own. With the same `random_state` it splits rows as this search did, but trains
            other networks.

        Raises
        ------
        ValueError
            If there is no such kind, set or architecture, or the estimator was pickled, which keeps
            the members alone.
        """
        if kind not in _BASELINES:
            raise ValueError(f"`kind` must be one of {sorted(_BASELINES)}. Got {kind!r}.")
        vary, selection = _BASELINES[kind]
        configuration = self.best_configuration(severity)
        architectures, hyperparameters = self.decisions_
        if architecture is None:
            architecture = architectures.restrict(configuration)
        elif not isinstance(architecture, Mapping):
            raise ValueError(
                f"`architecture` must be a dict {{decision name: value}}. Got {architecture!r}."
            )
        # Decisions that a baseline does not vary have the best trial's values.
        fixed = architectures.check(architecture, "architecture")
        if kind != "hyper-ensemble":
            fixed |= hyperparameters.restrict(configuration)
        of_numbers = {"target_transform": "standard"} if is_regressor(self) else {}
        return clone(self).set_params(
            search=RandomSearch(vary=vary),
            selection=selection,
            n_trials=self.n_members if kind == "deep-ensemble" else self.n_trials,
            fixed=fixed,
            calibrate=False,  # members alone, as in the paper
            **of_numbers,
        )


@parameters("estimators.NESRegressor", kind="estimator")
class NESRegressor(SearchEstimator, UncertaintyRegressor):
    """Ensemble of networks of different architectures, found by neural ensemble search.

    Networks that predict a mixture of three normals, in the spaces of the paper one normal, are
    drawn at random, or evolve: each is then a mutation of a network that improves the ensemble of
    the others. From this pool, the members are chosen whose *averaged* densities have the lowest
    negative log likelihood on validation rows: by forward selection, and where folds hold rows out,
    by stacking. With shifted validation rows, the ensemble is to be robust to such a shift.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials, and size of the catalog. "auto" is 20 in the tabular space, where each
        trains a network for every fold, and 50 in others, or with `max_time` as many as fit into
        that time (at most 10,000). The paper's K: 200 to 1000.
    n_members : int, default=5
        Number of members. The paper has 3 to 30 (M).
    search : {"re", "random"}, SearchStrategy or keras_tuner.Oracle, default="random"
        Search strategy: "re" is evolution (NES-RE, Algorithm 2; `skuq.search.NESEvolution`),
        "random" is random search (NES-RS, Algorithm 1; ``RandomSearch(vary="auto")``). Both vary
        the training, too, in the tabular space, and the architecture alone in others, as the paper.
        An object sets more, such as the decisions that vary, the first trials, the size of the
        population and an objective. Both were level on twelve tables.
    space : str, SearchSpace, callable or pair, default="auto"
        Space of networks. "tabular" ("auto" for tables): `skuq.networks.TabularSpace`, which embeds
        numbers and categories, decides the number of epochs itself, and whose first trials are
        recipes known to be good; "dense": fully connected networks with skip connections, three
        variable nodes; "width-depth": layers of equal width; "darts" ("auto" for images): normal
        and reduction cells; "nas-bench-201": its cells. Or an object such as
        `skuq.networks.CellSpace` with other channels and cells, or a space in Keras-Tuner's
        language, see `skuq.networks.KerasTunerSpace`. "dense" and "width-depth" have NES' training
        of tables, see `skuq.networks.WithTraining`.
    fixed : dict or None, default=None
        Decisions that are not searched, by name. Decisions that `search` does not vary have their
        value here or the space's default.
    selection : {"auto", "forward", "replacement", "quick", "top", "hq", "greedy", "stacking"}, \
            SelectionRule or callable, default="auto"
        Rule that selects the members: "forward", "replacement" and "quick" are
        `skuq.ensembles.ForwardSelection`, "top" is `skuq.ensembles.TopSelection` by the loss of the
        mixture, "hq" `skuq.ensembles.HQSelection`, "greedy" `skuq.ensembles.GreedySelection` and
        "stacking" `skuq.ensembles.StackingSelection`. "auto" is "stacking" where folds hold
        rows out, and otherwise the paper's "forward". An object sets the loss to minimise, which
        the evolution minimises, too. A callable gets
        ``(log_likelihood, n_members, sample_weight=...)`` with log likelihoods (n_trials, n_rows)
        and returns a `skuq.ensembles.Selection`.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. The learning rate follows a cosine schedule over them. In a
        space that sets the number itself, as "tabular" does, it is the maximum. "auto" is the
        paper's 100 for images (the paper uses 15 on Fashion-MNIST), and for tables in other spaces
        the number of epochs that has 500 steps of the optimiser, at least 30 and at most 100.
    validation : float, int, cross-validation generator, iterable, "auto" or None, default="auto"
        Share of the rows that is held out to compare networks, or number of folds, or a splitter.
        With folds, every trial trains one network per fold of the rows of positive weight, each
        without the rows of its fold. Search and selection use the out-of-fold predictions of all
        rows, and all networks of the selected trials predict. Folds are better for small tables,
        and multiply the cost by their number. A splitter must test every row once; positions in a
        list of folds count all rows. With `validation_data` it must be "auto" or None. "auto" is
        0.25, but in the tabular space four of ten folds for numbers, five folds for classes, and
        three of ten above 2,000 rows. Rows that no fold holds out do not count in the selection.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen. Rows of
        `validation_data` are among them. Each member trains for the number of epochs that was best
        in the search; with folds one network replaces those of the folds. These trainings do not
        count towards `max_time`. If a training fails, the networks of the search are kept.
    calibrate : bool, default=True
        Whether to calibrate the ensemble on its out-of-fold predictions. Its distribution gets a
        factor of its width and a share that is wider, as that of `TabularEnsembleRegressor`.
        Without folds, and with `shift_validation`, only `reselect` on new rows calibrates. False
        lets the members predict alone, without more uncertainty far from the rows.
    image_shape : tuple (h, w) or (h, w, c), or None, default=None
        Shape of images that are given as flat rows; images (n, h, w, c) do not need it.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own. Categories become indicator columns, at
        most 50 for a column of X; networks of the tabular space embed columns of more than ten
        instead. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
        Images must be finite numbers, too.
    target_transform : {"auto", "standard", "yeo-johnson", "quantile", transformer}, default="auto"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing. "auto" takes "yeo-johnson" or "quantile"
        if the standard deviation of y is above 2.5 times that of a normal with the same quartiles,
        otherwise "standard". In other spaces than the tabular one it is "standard".
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one network, in a process with its share of
        the cores. With more than one, proposals depend on the order in which trials finish. With
        "random" results repeat exactly all the same.
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
    calibration_ : Calibration
        Calibration of the ensemble: `factor` of all standard deviations, and `share` of what each
        member predicts that is three times as wide.
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    image_shape_ : tuple (h, w, c) or None
        Shape of one image; None for tables.
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
        Number of features seen during `fit`. Images have h * w * c.
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
    AutoDEUQRegressor : Search that includes training hyperparameters, with greedy selection.

    Notes
    -----
    Inputs and targets are scaled as in `AutoDEUQRegressor`. Zero-weight rows are dropped; weights
    count in the training loss and in the selection.

    References
    ----------
    S. Zaidi, A. Zela, T. Elsken, C. Holmes, F. Hutter, Y. W. Teh. "Neural Ensemble Search for
    Uncertainty Estimation and Dataset Shift".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import NESRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NESRegressor(n_trials=2, n_members=2, epochs=5, validation=2, random_state=0)
    >>> model = model.fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    n_trials: int | str = field(default="auto", kw_only=False)
    n_members: int = 5
    search: Any = "random"
    space: Any = "auto"
    fixed: dict[str, Any] | None = None
    selection: Any = "auto"
    epochs: int | str = "auto"
    validation: Any = "auto"
    refit: bool = False
    calibrate: bool = True
    image_shape: Any = None
    preprocess: Any = "auto"
    target_transform: Any = "auto"
    n_jobs: int | None = None
    catalog_dir: str | os.PathLike[str] | None = None
    max_time: float | None = None
    trial_timeout: float | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _settings = NES_SETTINGS
    _parameter_constraints = {**NES_CONSTRAINTS, **TARGET_CONSTRAINTS}
    _papers = staticmethod(functools.partial(nes_papers, target_transform="standard"))

    def _plan(self, X: Any) -> SearchPlan:
        return make_nes_plan(self, X)

    best_configuration = NESClassifier.best_configuration
    baseline = NESClassifier.baseline
