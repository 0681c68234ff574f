"""AutoDEUQ: an ensemble from a joint search of architectures and hyperparameters."""

from __future__ import annotations

from numbers import Integral

from skuq._params import Options, StrOptions
from skuq._registry import saved_as
from skuq.ensembles._selection import MOMENT_LOSSES
from skuq.estimators._autodeuq_method import AUTODEUQ_CONSTRAINTS, AutoDEUQ, paper_settings
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._search_estimator import SearchEstimator
from skuq.tables._targets import TARGET_CONSTRAINTS


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
        `max_time` as many as fit into that time (at most 10,000), and at most the `max_trials` of
        an oracle.
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
        number. A splitter must test every row once; positions in a list of folds count all rows.
        None holds out `validation_fraction`. "auto" is 8 folds in the tabular space (5 above 20,000
        rows, fewer below 16), whose folds train as one program, and None in other spaces, with
        `validation_data` or with a number as `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it (at most 20), and 0 in
        other spaces. It has no effect with `refit` or a splitter as `cv`.
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
        Configurations to try first, completed by the space's defaults; fixed decisions keep their
        values. From a catalog, or from the folder of a search, the ten best are taken, without
        decisions that this space does not have. None uses the known recipes of a tabular space if
        `search` is "agebo" or a mixed one, which vary all that recipes differ in, and otherwise no
        initial trials.
    objective : callable or None, default=None
        ``objective(trial) -> float``, minimised by the search instead of ``trial.score``, for
        example with a penalty on size: ``lambda trial: trial.score + 1e-6 * trial.n_weights``. A
        trial is a `skuq.catalog.FoldedMember`, whose `n_weights` and `seconds` are sums over its
        networks, or a `Member` without `cv` in the paper's spaces. `seconds` are those of a full
        training without compilation; with them, a fit does not repeat exactly. Early discarding
        always uses the score, and the ensemble is selected by `selection_loss`: for an ensemble of
        cheap members also give a `selection` of your own.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `search` fixes all decisions of one kind,
        those not named have the space's default value.
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is a quarter of `n_trials`, from 4 to the paper's 100, and
        a third of that, from 2 to the paper's 10. With ``n_trials="auto"`` they are those of 50
        trials, 12 and 4, whatever `max_time` is.
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
        most 50 for a column of X. Tabular networks embed columns of more than ten categories
        instead. A scikit-learn transformer is cloned and fitted. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals depend on the order in which trials finish, so that only
        "rs-mixed" and "init" with ``discard=False`` repeat exactly.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder, unless two of them would run the same
        search at the same time (CatalogLockedError). See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run
        one at a time in the calling process, whatever `n_jobs` is. A fit with a limit does not
        repeat exactly.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed. Networks that train
        together have as many seconds on average.
    max_failures : int or None, default=None
        Maximum number of failed trials; one more ends the search with an error that shows the
        reasons. None ends it only if the first ten all fail.
    warm_start : bool, default=False
        Let another `fit` with the same data and settings, and with an integer `random_state` or
        None, keep the trials of the previous fit and add the missing ones of a larger `n_trials`.
        If data or settings differ, a new search starts, with a warning. With `catalog_dir` trials
        are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer and ``n_jobs=1``, and without `max_time`,
        results repeat exactly.
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
    selections_ : tuple of Selection
        The selection for each held-out set: the clean rows, then those of `shift_validation`.
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
    Targets are standardised, and so are inputs; in the tabular space these are scaled by their
    quartiles instead. Zero-weight rows are dropped; weights count in the training loss, the
    validation loss and the selection.

    References
    ----------
    R. Egele, R. Maulik, K. Raghavan, B. Lusch, I. Guyon, P. Balaprakash. "AutoDEUQ:
    Automated Deep Ensemble with Uncertainty Quantification".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import AutoDEUQRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AutoDEUQRegressor(n_trials=2, epochs=3, repeats=0, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    _method_class = AutoDEUQ
    _parameter_constraints: dict = {
        **AUTODEUQ_CONSTRAINTS,
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

        The estimator does not calibrate its uncertainty, as the paper does not. By the paper's
        rule an ensemble may have a single member, whose epistemic uncertainty is 0: `fit` warns,
        and ``min_members=2`` prevents it.

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
        return cls(**{**paper_settings(name), "calibrate": False, **changes})


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
        `max_time` as many as fit into that time (at most 10,000), and at most the `max_trials` of
        an oracle.
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
        number. A splitter must test every row once; positions in a list of folds count all rows.
        None holds out `validation_fraction`. "auto" is 8 folds in the tabular space (5 above 20,000
        rows, fewer below 16), whose folds train as one program, and None in other spaces, with
        `validation_data` or with a number as `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    repeats : int or "auto", default="auto"
        Number of times that the selected trials are trained again after the search, on other folds
        and with other seeds. Their networks are added to the ensemble. "auto" is 2 in the tabular
        space, or with `max_time` as many as fit into the last 40 % of it (at most 20), and 0 in
        other spaces. It has no effect with `refit` or a splitter as `cv`.
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
        Configurations to try first, completed by the space's defaults; fixed decisions keep their
        values. From a catalog, or from the folder of a search, the ten best are taken, without
        decisions that this space does not have. None uses the known recipes of a tabular space if
        `search` is "agebo" or a mixed one, which vary all that recipes differ in, and otherwise no
        initial trials.
    objective : callable or None, default=None
        ``objective(trial) -> float``, minimised by the search instead of ``trial.score``, for
        example with a penalty on size: ``lambda trial: trial.score + 1e-6 * trial.n_weights``. A
        trial is a `skuq.catalog.FoldedMember`, whose `n_weights` and `seconds` are sums over its
        networks, or a `Member` without `cv` in the paper's spaces. `seconds` are those of a full
        training without compilation; with them, a fit does not repeat exactly. Early discarding
        always uses the score, and the ensemble is selected by `selection_loss`: for an ensemble of
        cheap members also give a `selection` of your own.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `search` fixes all decisions of one kind,
        those not named have the space's default value.
    population_size, sample_size : int or None, default=None
        P and S of ageing evolution. None is a quarter of `n_trials`, from 4 to the paper's 100, and
        a third of that, from 2 to the paper's 10. With ``n_trials="auto"`` they are those of 50
        trials, 12 and 4, whatever `max_time` is.
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
        most 50 for a column of X. Tabular networks embed columns of more than ten categories
        instead. A scikit-learn transformer is cloned and fitted. None takes finite numbers only.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals depend on the order in which trials finish, so that only
        "rs-mixed" and "init" with ``discard=False`` repeat exactly.
    catalog_dir : str, path or None, default=None
        Folder that stores the search. Each trial is on disk when it finishes, and `fit` with the
        same data and settings continues with the stored trials. Each search has a subfolder of its
        own, so that folds and clones can share the folder, unless two of them would run the same
        search at the same time (CatalogLockedError). See `from_catalog`.
    max_time : float or None, default=None
        Maximum seconds of `fit`, without `refit`. Trials are shortened to fit into the time that is
        left. The first trial always finishes, so that there is an ensemble, and compilation of
        networks can exceed the limit. Below 30 seconds, or 100 with at most two jobs, trials run
        one at a time in the calling process, whatever `n_jobs` is. A fit with a limit does not
        repeat exactly.
    trial_timeout : float or None, default=None
        Seconds after which a trial is stopped and recorded as failed. Networks that train
        together have as many seconds on average.
    max_failures : int or None, default=None
        Maximum number of failed trials; one more ends the search with an error that shows the
        reasons. None ends it only if the first ten all fail.
    warm_start : bool, default=False
        Let another `fit` with the same data and settings, and with an integer `random_state` or
        None, keep the trials of the previous fit and add the missing ones of a larger `n_trials`.
        If data or settings differ, a new search starts, with a warning. With `catalog_dir` trials
        are always kept.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer and ``n_jobs=1``, and without `max_time`,
        results repeat exactly.
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
    selections_ : tuple of Selection
        The selection for each held-out set: the clean rows, then those of `shift_validation`.
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
    >>> model = AutoDEUQClassifier(n_trials=2, epochs=3, repeats=0, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    _method_class = AutoDEUQ
    _parameter_constraints: dict = {
        **AUTODEUQ_CONSTRAINTS,
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
        return cls(**{**paper_settings(name), **changes})
