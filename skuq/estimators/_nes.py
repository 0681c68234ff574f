"""Neural ensemble search: ensembles of networks of different architectures."""

from __future__ import annotations

from skuq._params import StrOptions
from skuq._registry import saved_as
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._nes_method import (
    NES_CONSTRAINTS,
    NeuralEnsembleSearch,
    baseline,
    best_configuration,
)
from skuq.estimators._search_estimator import SearchEstimator
from skuq.tables._targets import TARGET_CONSTRAINTS


@saved_as("estimators.NESClassifier", kind="estimator")
class NESClassifier(SearchEstimator, UncertaintyClassifier):
    """Ensemble of networks of different architectures, found by neural ensemble search.

    Networks are trained one by one, each a mutation of a network that improves the ensemble of
    the others. From this pool, forward selection chooses the members whose *averaged*
    probabilities have the lowest negative log likelihood on validation rows. With validation
    rows of shifted data, the ensemble is selected to be robust to such a shift.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials (K), and size of the catalog; 400 in the paper. "auto" is 50, or with
        `max_time` as many as fit into that time (at most 10,000).
    n_members : int, default=5
        Number of members of the ensemble (M); 3 to 30 in the paper.
    strategy : {"re", "rs"}, default="re"
        Search strategy: evolution (NES-RE, Algorithm 2) or random search (NES-RS, Algorithm 1).
    vary : {"architecture", "hyperparameters", "both", "initialisation"}, default="architecture"
        Decisions that can differ between members; the others have their values in `fixed_...` or
        the space's defaults. With "initialisation" only seeds differ.
    search_space : None, str, SearchSpace, callable or pair, default=None
        Space of networks. "dense" (default for tables): fully connected networks with skip
        connections, three variable nodes; "width-depth": layers of equal width; "darts" (default
        for images): normal and reduction cells; "nas-bench-201": its cells; "tabular":
        `skuq.networks.TabularSpace`, which decides the number of epochs itself. Or an object such
        as `skuq.networks.CellSpace` with other channels and cells, or a space in Keras-Tuner's
        language, see `skuq.networks.KerasTunerSpace`.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `vary` fixes all decisions of one kind, those
        not named have the space's default value.
    image_shape : tuple (h, w) or (h, w, c), or None, default=None
        Shape of images that are given as flat rows; images (n, h, w, c) do not need it.
    population_size, n_parents : int or None, default=None
        P and m of the evolution. None is the paper's 50 and 10 for budgets of 400 and more; for
        smaller ones P is an eighth of `n_trials`, at least 8 and at most half of it, and m half of
        P, at most 10. m is never larger than P.
    evolve_on : {"both", "clean", "shift"}, default="both"
        With `shift_validation`, the rows on which evolution selects parents. "both" draws for each
        proposal either the clean rows or those of the highest severity (NES-RE); "clean" is
        NES-RE-0.
    selection : {"forward", "replacement", "quick", "top", "hq"} or callable, default="forward"
        Rule that selects the members, see `skuq.ensembles.select_by_likelihood`; "hq" prunes teams
        of the 20 best by diversity. A callable gets ``(log_likelihood, n_members,
        sample_weight=...)`` with log likelihoods (n_trials, n_rows) and returns a
        `skuq.ensembles.Selection`.
    use_best : bool, default=False
        Choose the number of members by cross-validation on the held-out rows, from 2 to `n_members`
        (repeats counted). It cannot be used with "hq" and callables.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, in the training loss and in the selection; they multiply
        sample weights. "balanced" is inversely proportional to their frequencies in y.
    epochs : int or None, default=None
        Number of epochs of one network, over which its learning rate follows a cosine schedule, or
        its maximum in a space that sets the number itself, as "tabular" does. None uses the
        paper's 100 for images (the paper uses 15 on Fashion-MNIST), and for tables the number of
        epochs that has 500 steps of the optimiser, at least 30 and at most 100.
    validation_fraction : float, default=0.25
        Share of the rows that is held out for the search and the selection. Ignored with `cv` or
        `validation_data`.
    cv : int, cross-validation generator, iterable or None, default=None
        Number of folds or a splitter, in place of `validation_fraction`. Every trial then trains
        one network per fold of the rows of positive weight, each without the rows of its fold.
        Search and selection use the out-of-fold predictions of all rows, and all networks of the
        selected trials predict. Folds are better for small tables, and multiply the cost by their
        number. A splitter must test every row once; positions in a list of folds count all rows.
        None holds out `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only; so do images.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals of the evolution depend on the order in which trials finish, so
        that only "rs" repeats exactly.
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
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    image_shape_ : tuple (h, w, c) or None
        Shape of one image; None for tables.
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
        Number of features seen during `fit`; h * w * c for images.
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
    DeepEnsembleClassifier : Networks of one architecture with different seeds.

    Notes
    -----
    Inputs are standardised. Zero-weight rows are dropped; weights count in the training
    loss and in the selection.

    References
    ----------
    S. Zaidi, A. Zela, T. Elsken, C. Holmes, F. Hutter, Y. W. Teh. "Neural Ensemble Search for
    Uncertainty Estimation and Dataset Shift".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import NESClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NESClassifier(n_trials=3, n_members=2, epochs=5, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    >>> total, aleatoric, epistemic = model.predict_uncertainty(X[:2])
    """

    _method_class = NeuralEnsembleSearch
    _parameter_constraints: dict = {
        **NES_CONSTRAINTS,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        n_trials="auto",
        *,
        n_members=5,
        strategy="re",
        vary="architecture",
        search_space=None,
        fixed_architecture=None,
        fixed_hyperparameters=None,
        image_shape=None,
        population_size=None,
        n_parents=None,
        evolve_on="both",
        selection="forward",
        use_best=False,
        class_weight=None,
        epochs=None,
        validation_fraction=0.25,
        cv=None,
        refit=False,
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
        self.strategy = strategy
        self.vary = vary
        self.search_space = search_space
        self.fixed_architecture = fixed_architecture
        self.fixed_hyperparameters = fixed_hyperparameters
        self.image_shape = image_shape
        self.population_size = population_size
        self.n_parents = n_parents
        self.evolve_on = evolve_on
        self.selection = selection
        self.use_best = use_best
        self.class_weight = class_weight
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.refit = refit
        self.preprocess = preprocess
        self.n_jobs = n_jobs
        self.catalog_dir = catalog_dir
        self.max_time = max_time
        self.trial_timeout = trial_timeout
        self.max_failures = max_failures
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    best_configuration = best_configuration
    baseline = baseline


@saved_as("estimators.NESRegressor", kind="estimator")
class NESRegressor(SearchEstimator, UncertaintyRegressor):
    """Ensemble of networks of different architectures, found by neural ensemble search.

    Networks that predict a mean and a standard deviation are trained one by one, each a mutation
    of a network that improves the ensemble of the others. From this pool, forward selection
    chooses the members whose *averaged* densities have the lowest negative log likelihood on
    validation rows. With validation rows of shifted data, the ensemble is selected to be robust
    to such a shift.

    Parameters
    ----------
    n_trials : int or "auto", default="auto"
        Number of trials (K), and size of the catalog; 400 in the paper. "auto" is 50, or with
        `max_time` as many as fit into that time (at most 10,000).
    n_members : int, default=5
        Number of members of the ensemble (M); 3 to 30 in the paper.
    strategy : {"re", "rs"}, default="re"
        Search strategy: evolution (NES-RE, Algorithm 2) or random search (NES-RS, Algorithm 1).
    vary : {"architecture", "hyperparameters", "both", "initialisation"}, default="architecture"
        Decisions that can differ between members; the others have their values in `fixed_...` or
        the space's defaults. With "initialisation" only seeds differ.
    search_space : None, str, SearchSpace, callable or pair, default=None
        Space of networks. "dense" (default for tables): fully connected networks with skip
        connections, three variable nodes; "width-depth": layers of equal width; "darts" (default
        for images): normal and reduction cells; "nas-bench-201": its cells; "tabular":
        `skuq.networks.TabularSpace`, which decides the number of epochs itself. Or an object such
        as `skuq.networks.CellSpace` with other channels and cells, or a space in Keras-Tuner's
        language, see `skuq.networks.KerasTunerSpace`.
    fixed_architecture, fixed_hyperparameters : dict or None, default=None
        Decisions that are not searched, by name. If `vary` fixes all decisions of one kind, those
        not named have the space's default value.
    image_shape : tuple (h, w) or (h, w, c), or None, default=None
        Shape of images that are given as flat rows; images (n, h, w, c) do not need it.
    population_size, n_parents : int or None, default=None
        P and m of the evolution. None is the paper's 50 and 10 for budgets of 400 and more; for
        smaller ones P is an eighth of `n_trials`, at least 8 and at most half of it, and m half of
        P, at most 10. m is never larger than P.
    evolve_on : {"both", "clean", "shift"}, default="both"
        With `shift_validation`, the rows on which evolution selects parents. "both" draws for each
        proposal either the clean rows or those of the highest severity (NES-RE); "clean" is
        NES-RE-0.
    selection : {"forward", "replacement", "quick", "top", "hq"} or callable, default="forward"
        Rule that selects the members, see `skuq.ensembles.select_by_likelihood`; "hq" prunes teams
        of the 20 best by diversity. A callable gets ``(log_likelihood, n_members,
        sample_weight=...)`` with log likelihoods (n_trials, n_rows) and returns a
        `skuq.ensembles.Selection`.
    use_best : bool, default=False
        Choose the number of members by cross-validation on the held-out rows, from 2 to `n_members`
        (repeats counted). It cannot be used with "hq" and callables.
    selection_loss : {"mixture", "normal"}, default="mixture"
        Loss that the selection minimises: minus log of the averaged densities, for which the
        paper's Proposition 3.1 holds, or the NLL of the normal with the mixture's mean and
        variance.
    epochs : int or None, default=None
        Number of epochs of one network, over which its learning rate follows a cosine schedule, or
        its maximum in a space that sets the number itself, as "tabular" does. None uses the
        paper's 100 for images (the paper uses 15 on Fashion-MNIST), and for tables the number of
        epochs that has 500 steps of the optimiser, at least 30 and at most 100.
    validation_fraction : float, default=0.25
        Share of the rows that is held out for the search and the selection. Ignored with `cv` or
        `validation_data`.
    cv : int, cross-validation generator, iterable or None, default=None
        Number of folds or a splitter, in place of `validation_fraction`. Every trial then trains
        one network per fold of the rows of positive weight, each without the rows of its fold.
        Search and selection use the out-of-fold predictions of all rows, and all networks of the
        selected trials predict. Folds are better for small tables, and multiply the cost by their
        number. A splitter must test every row once; positions in a list of folds count all rows.
        None holds out `validation_fraction`.
    refit : bool, default=False
        Train the members again on all rows, including `validation_data`, after the search. Each
        trains for the number of epochs that was best in the search; with `cv` one network replaces
        those of the folds. These trainings do not count towards `max_time`. If a training fails,
        the networks of the search are kept.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only; so do images.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    n_jobs : int or None, default=None
        Number of networks trained in parallel, each in a process with its share of the cores. With
        more than one, proposals of the evolution depend on the order in which trials finish, so
        that only "rs" repeats exactly.
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
        ensemble on the rows it was selected on, in nats and units of the standardised y.
    selections_ : tuple of Selection
        The selection for each held-out set: the clean rows, then those of `shift_validation`.
    refitted_ : dict of int to Member
        With ``refit=True``, the networks trained on all rows, by their position in `catalog_`.
    decisions_ : Decisions
        Decisions that the search could vary: the spaces `architecture` and `hyperparameters`.
    image_shape_ : tuple (h, w, c) or None
        Shape of one image; None for tables.
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
        Number of features seen during `fit`; h * w * c for images.
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
    AutoDEUQRegressor : Search that includes training hyperparameters, with greedy selection.

    Notes
    -----
    Inputs and targets are standardised. Zero-weight rows are dropped; weights count in the training
    loss and in the selection.

    References
    ----------
    S. Zaidi, A. Zela, T. Elsken, C. Holmes, F. Hutter, Y. W. Teh. "Neural Ensemble Search for
    Uncertainty Estimation and Dataset Shift".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import NESRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NESRegressor(n_trials=3, n_members=2, epochs=5, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    _method_class = NeuralEnsembleSearch
    _parameter_constraints: dict = {
        **NES_CONSTRAINTS,
        "selection_loss": [StrOptions({"mixture", "normal"})],
        **TARGET_CONSTRAINTS,
    }

    def __init__(
        self,
        n_trials="auto",
        *,
        n_members=5,
        strategy="re",
        vary="architecture",
        search_space=None,
        fixed_architecture=None,
        fixed_hyperparameters=None,
        image_shape=None,
        population_size=None,
        n_parents=None,
        evolve_on="both",
        selection="forward",
        use_best=False,
        selection_loss="mixture",
        epochs=None,
        validation_fraction=0.25,
        cv=None,
        refit=False,
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
        self.strategy = strategy
        self.vary = vary
        self.search_space = search_space
        self.fixed_architecture = fixed_architecture
        self.fixed_hyperparameters = fixed_hyperparameters
        self.image_shape = image_shape
        self.population_size = population_size
        self.n_parents = n_parents
        self.evolve_on = evolve_on
        self.selection = selection
        self.use_best = use_best
        self.selection_loss = selection_loss
        self.epochs = epochs
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.refit = refit
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

    best_configuration = best_configuration
    baseline = baseline
