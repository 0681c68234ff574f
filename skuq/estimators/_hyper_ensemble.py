"""Hyper deep ensembles: members that differ in regularisation and in seeds."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from skuq import training
from skuq._params import Interval
from skuq._utils._environment import generator
from skuq._utils._records import saved_as
from skuq.ensembles import select_forward, select_greedy
from skuq.ensembles._likelihood import likelihood_statistics
from skuq.ensembles._selection import real_weight
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._network_estimator import (
    NETWORK_CONSTRAINTS,
    REGRESSION_CONSTRAINTS,
    NetworkEstimator,
    Outcome,
    TrainingMethod,
    check_dropout_layers,
    find_completed,
)
from skuq.networks import CategoricalHead, GaussianHead
from skuq.tables._inputs import warn_of_few_rows

_CONSTRAINTS: dict = {
    **NETWORK_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "n_search": [Interval(Integral, 1, None, closed="left")],
    "min_members": [Interval(Integral, 1, None, closed="left")],
    "dropout_range": ["array-like"],
    "l2_range": ["array-like"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "refit": ["boolean"],
}


class _HyperDeepEnsemble(TrainingMethod):
    """Method of hyper deep ensembles: NOMU's Algorithm 2, with Algorithm 1 as `_select`."""

    dropout = 0.5  # placeholder; each member's recipe sets its own rate

    def train(self, network, head, data, splits, report):
        """Search settings, select some of them, and train the selected ones with several seeds."""
        estimator = self.estimator
        check_dropout_layers(network)
        warn_of_few_rows(len(data.x_valid))
        settings = self._draw_settings()

        def train_stack(settings, seeds, start=None):
            recipes = [self.recipe(splits.validates, **setting) for setting in settings]
            job = training.TrainingJob.of_model(
                network, head, recipes, seeds, stacked=True, start=start
            )
            return training.train(job, data, report=report)

        # rand_search: networks differ in their settings, and start from the same weights.
        first = training.draw_variables(network, self.seeds(1)[0])
        n_search = estimator.n_search
        searched = train_stack(settings, self.seeds(n_search), [first] * n_search)
        kept = find_completed(searched)
        results = {name: np.array([setting[name] for setting in settings]) for name in settings[0]}
        results["val_loss"] = np.array([getattr(m, "score", np.nan) for m in searched])
        chosen = self._select([searched[k] for k in kept], head, data, min_members=1)

        # Stratification: each selected setting is trained again, with n_members seeds.
        n_members = estimator.n_members
        settings = [settings[kept[i]] for i in chosen.indices for _ in range(n_members)]
        seeds = self.seeds(n_members, first=n_search) * len(chosen.indices)
        stratified = train_stack(settings, seeds)
        kept = find_completed(stratified)
        pool = [stratified[k] for k in kept]
        chosen = self._select(pool, head, data, min_members=estimator.min_members)
        members = [pool[i] for i in chosen.indices]
        settings = [settings[kept[i]] for i in chosen.indices]
        if estimator.refit:
            members = self._continue(network, head, data, members, settings, report)
        attributes = {"search_results_": results, "member_settings_": settings}
        return Outcome(members, chosen.weights, attributes=attributes)

    def _draw_settings(self):
        """Draw rates of dropout and factors of l2 log-uniformly, one pair for each trial."""
        rng = generator(self.estimator.entropy_, "settings")
        drawn = {}
        for name, largest in (("dropout", 0.999), ("l2", np.inf)):
            low, high = _check_range(name, getattr(self.estimator, f"{name}_range"), largest)
            drawn[name] = np.exp(rng.uniform(np.log(low), np.log(high), self.estimator.n_search))
        return [dict(zip(drawn, map(float, pair))) for pair in zip(*drawn.values())]

    def _select(self, pool, head, data, min_members):
        """Select greedily on the validation rows: NOMU's Algorithm 1 (Caruana et al., 2004)."""
        n_members = self.estimator.n_members
        raw = np.stack([member.held_out for member in pool]).astype("float64")
        y, weight = data.y_valid.astype("float64"), data.weight_valid
        if isinstance(head, GaussianHead):
            return select_greedy(
                y,
                *head.distribution(raw),
                n_members,
                sample_weight=weight,
                min_members=min_members,
            )
        if isinstance(head, CategoricalHead):
            # The NLL of the averaged probability of the true class.
            statistics, loss = likelihood_statistics(head.log_likelihood(y, raw))
        else:
            statistics, loss = (raw - y,), np.square
        return select_forward(
            statistics,
            loss,
            n_members,
            sample_weight=weight,
            min_members=min_members,
            min_weight=real_weight(min_members),
        )

    def _continue(self, network, head, data, members, settings, report):
        """Continue training the members on all rows, for the average of their best epochs."""
        epochs = 1 + round(np.mean([member.best_epoch for member in members]))
        changes = {"epochs": epochs, "early_stopping_patience": None, "keep": "last"}
        job = training.TrainingJob.of_model(
            network,
            head,
            [self.recipe(True, **setting, **changes) for setting in settings],
            [member.seed for member in members],
            stacked=True,
            start=[(member.weights, list(member.state)) for member in members],
        )
        longer = training.train(job, data.all_rows(), report=report)
        # A member that diverges keeps its weights from before.
        return [
            old if isinstance(new, FloatingPointError) else replace(new, held_out=old.held_out)
            for old, new in zip(members, longer)
        ]


def _check_range(name, given, largest):
    """Check a range (low, high) of a setting, and return it as an array."""
    try:
        values = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (2,) or not 0 < values[0] <= values[1] < largest:
        raise ValueError(
            f"`{name}_range` must be two numbers, 0 < low <= high < {largest}. Got {given!r}."
        )
    return values


@saved_as("estimators.HyperDeepEnsembleRegressor", kind="estimator")
class HyperDeepEnsembleRegressor(NetworkEstimator, UncertaintyRegressor):
    """Hyper deep ensemble: members that differ in regularisation and in seeds.

    `n_search` random settings of dropout and L2 are trained from the same first weights, in one
    program. A greedy selection finds settings whose networks complement each other. Each of them
    is trained again with `n_members` seeds, and the selection is repeated.

    Parameters
    ----------
    n_members : int, default=5
        Maximum number of distinct members, and number of seeds with which each selected setting is
        trained.
    n_search : int, default=50
        Number of random settings that are tried (kappa in NOMU's Algorithm 2).
    min_members : int, default=2
        Minimum number of distinct members. A single member has no epistemic uncertainty; 1 is the
        paper's greedy rule.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout_range : pair of float, default=(1e-3, 0.9)
        Range from which the settings' dropout rates are drawn log-uniformly.
    l2_range : pair of float, default=(1e-7, 1e-1)
        Range from which the settings' penalties ``l2 * sum(w**2)`` are drawn log-uniformly; six
        powers of ten, as in the paper.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` with Dropout layers, whose rates the
        settings replace, and `n_outputs` linear outputs: the means, then numbers that a softplus
        turns into standard deviations. Parameters that describe layers then have no effect.
    loss : {"nll", "mse"}, default="nll"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "mse": means only, for noise that is known or the same everywhere.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out.
    scale_l2 : float, default=1e-2
        L2 penalty on the last layer of the standard deviations. Without it, networks for small data
        are far too confident.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int, default=100
        Number of rows of a batch.
    epochs : int, default=1000
        Maximum number of epochs of one network.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation_fraction : float, default=0.2
        Share of the rows that is held out for validation and selection, the same rows for all
        members.
    refit : bool, default=False
        Continue training the members on all rows after their selection (HDE* in NOMU).
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    weight_decay : float, default=0.0
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. Tabular networks embed columns of more than ten categories
        instead. A scikit-learn transformer is cloned and fitted. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks: weights, history, validation predictions.
    member_settings_ : list of dict
        `dropout` and `l2` of each member.
    weights_ : ndarray of shape (n_members,)
        Weights of the mixture, which sum to 1: shares of the steps at which the selection added
        each member.
    search_results_ : dict of ndarray of shape (n_search,)
        `dropout`, `l2` and `val_loss` of each setting tried; NaN if it diverged.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``, known or estimated standard deviation of the noise, in units of y (of
        transformed y, with a `target_transform`).
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleRegressor : Seeds alone.
    AutoDEUQRegressor : Architectures too.

    References
    ----------
    F. Wenzel, J. Snoek, D. Tran, R. Jenatton. "Hyperparameter Ensembles for Robustness
    and Uncertainty Quantification", NeurIPS 2020. Heiss et al., "NOMU", B.1.4, Algorithms
    1 and 2.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import HyperDeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HyperDeepEnsembleRegressor(n_search=5, epochs=20, random_state=0).fit(X, y)
    >>> len(model.search_results_["val_loss"])
    5
    """

    _method_class = _HyperDeepEnsemble
    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        **REGRESSION_CONSTRAINTS,
    }

    def __init__(
        self,
        n_members=5,
        *,
        n_search=50,
        min_members=2,
        hidden_units=(50,),
        activation="relu",
        dropout_range=(1e-3, 0.9),
        l2_range=(1e-7, 1e-1),
        network=None,
        loss="nll",
        noise_std=None,
        scale_l2=1e-2,
        optimizer="adam",
        learning_rate=0.01,
        batch_size=100,
        epochs=1000,
        early_stopping_patience=50,
        validation_fraction=0.2,
        refit=False,
        schedule="constant",
        weight_decay=0.0,
        clip_norm=None,
        preprocess="auto",
        target_transform="standard",
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.n_search = n_search
        self.min_members = min_members
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout_range = dropout_range
        self.l2_range = l2_range
        self.network = network
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
        self.loss = loss
        self.noise_std = noise_std
        self.scale_l2 = scale_l2
        self.target_transform = target_transform


@saved_as("estimators.HyperDeepEnsembleClassifier", kind="estimator")
class HyperDeepEnsembleClassifier(NetworkEstimator, UncertaintyClassifier):
    """Hyper deep ensemble: members that differ in regularisation and in seeds.

    `n_search` random settings of dropout and L2 are trained from the same first weights, in one
    program. A greedy selection finds settings whose networks complement each other. Each of them
    is trained again with `n_members` seeds, and the selection is repeated.

    Parameters
    ----------
    n_members : int, default=5
        Maximum number of distinct members, and number of seeds with which each selected setting is
        trained.
    n_search : int, default=50
        Number of random settings that are tried (kappa in NOMU's Algorithm 2).
    min_members : int, default=2
        Minimum number of distinct members. A single member has no epistemic uncertainty; 1 is the
        paper's greedy rule.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout_range : pair of float, default=(1e-3, 0.9)
        Range from which the settings' dropout rates are drawn log-uniformly.
    l2_range : pair of float, default=(1e-7, 1e-1)
        Range from which the settings' penalties ``l2 * sum(w**2)`` are drawn log-uniformly; six
        powers of ten, as in the paper.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` with Dropout layers, whose rates the
        settings replace, and `n_outputs` linear outputs, the classes' logits. Parameters that
        describe layers then have no effect.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int, default=100
        Number of rows of a batch.
    epochs : int, default=1000
        Maximum number of epochs of one network.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation_fraction : float, default=0.2
        Share of the rows that is held out for validation and selection, the same rows for all
        members.
    refit : bool, default=False
        Continue training the members on all rows after their selection (HDE* in NOMU).
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    weight_decay : float, default=0.0
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. Tabular networks embed columns of more than ten categories
        instead. A scikit-learn transformer is cloned and fitted. None takes finite numbers only.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Records of the trained networks: weights, history, validation predictions.
    member_settings_ : list of dict
        `dropout` and `l2` of each member.
    weights_ : ndarray of shape (n_members,)
        Weights of the mixture, which sum to 1: shares of the steps at which the selection added
        each member.
    search_results_ : dict of ndarray of shape (n_search,)
        `dropout`, `l2` and `val_loss` of each setting tried; NaN if it diverged.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleClassifier : Seeds alone.

    References
    ----------
    F. Wenzel, J. Snoek, D. Tran, R. Jenatton. "Hyperparameter Ensembles for Robustness
    and Uncertainty Quantification", NeurIPS 2020. Heiss et al., "NOMU", B.1.4, Algorithms
    1 and 2.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skuq import HyperDeepEnsembleClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HyperDeepEnsembleClassifier(n_search=5, epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    """

    _method_class = _HyperDeepEnsemble
    _parameter_constraints: dict = _CONSTRAINTS

    def __init__(
        self,
        n_members=5,
        *,
        n_search=50,
        min_members=2,
        hidden_units=(50,),
        activation="relu",
        dropout_range=(1e-3, 0.9),
        l2_range=(1e-7, 1e-1),
        network=None,
        optimizer="adam",
        learning_rate=0.01,
        batch_size=100,
        epochs=1000,
        early_stopping_patience=50,
        validation_fraction=0.2,
        refit=False,
        schedule="constant",
        weight_decay=0.0,
        clip_norm=None,
        preprocess="auto",
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.n_search = n_search
        self.min_members = min_members
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout_range = dropout_range
        self.l2_range = l2_range
        self.network = network
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
