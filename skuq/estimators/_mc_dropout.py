"""MC dropout: one network that predicts in many passes with units dropped at random."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from skuq import training
from skuq._params import Interval
from skuq._utils._records import saved_as
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
from skuq.fitted import DropoutPasses

_CONSTRAINTS: dict = {
    **NETWORK_CONSTRAINTS,
    "n_passes": [Interval(Integral, 1, None, closed="left")],
    "dropout": [Interval(Real, 0, 1, closed="left")],
    "l2": [Interval(Real, 0, None, closed="left")],
}


class _MCDropout(TrainingMethod):
    """Method of MC dropout: one network with dropout layers."""

    def __init__(self, estimator):
        super().__init__(estimator)
        self.dropout = estimator.dropout

    def train(self, network, head, data, splits, report):
        check_dropout_layers(network)
        recipe = self.recipe(splits.validates, l2=self.estimator.l2)
        seeds = self.seeds(1)
        job = training.TrainingJob.of_model(network, head, recipe, seeds, stacked=True)
        members = training.train(job, data, report=report)
        find_completed(members)
        return Outcome(members, np.ones(1))

    def passes(self, entropy):
        return DropoutPasses(self.estimator.n_passes, entropy)


@saved_as("estimators.MCDropoutRegressor", kind="estimator")
class MCDropoutRegressor(NetworkEstimator, UncertaintyRegressor):
    """MC dropout: one network that drops units at random in training and in prediction.

    Every prediction pass is a function drawn from an approximate posterior. The disagreement of
    the passes is the epistemic uncertainty, and the average noise that they predict the aleatoric
    uncertainty.

    Parameters
    ----------
    n_passes : int, default=100
        Number of prediction passes with random units dropped (T in the paper); one call computes
        them all.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.1
        Share of hidden units dropped in training and in every prediction pass.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` with Dropout layers and `n_outputs`
        linear outputs: the means, then numbers that a softplus turns into standard deviations.
        Parameters that describe layers and their rates then have no effect.
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
    validation_fraction : float or None, default=0.2
        Share of the rows that is held out for validation. None trains on all rows for all
        `epochs`.
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases: the paper's prior.
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
    members_ : list of one Member
        Records of the trained networks: weights, history, validation predictions.
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
        If the network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleRegressor : Several networks, which take longer to train and are better far from
        the data.

    References
    ----------
    Y. Gal, Z. Ghahramani. "Dropout as a Bayesian Approximation: Representing Model
    Uncertainty in Deep Learning", ICML 2016. Heiss et al., "NOMU", B.1.2.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import MCDropoutRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MCDropoutRegressor(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_uncertainty(X[:2]).epistemic.shape
    (2,)
    """

    _method_class = _MCDropout
    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        **REGRESSION_CONSTRAINTS,
    }

    def __init__(
        self,
        n_passes=100,
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.1,
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
        schedule="constant",
        l2=0.0,
        weight_decay=0.0,
        clip_norm=None,
        preprocess="auto",
        target_transform="standard",
        random_state=None,
        verbose=None,
    ):
        self.n_passes = n_passes
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.network = network
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation_fraction = validation_fraction
        self.schedule = schedule
        self.l2 = l2
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
        self.loss = loss
        self.noise_std = noise_std
        self.scale_l2 = scale_l2
        self.target_transform = target_transform


@saved_as("estimators.MCDropoutClassifier", kind="estimator")
class MCDropoutClassifier(NetworkEstimator, UncertaintyClassifier):
    """MC dropout: one network that drops units at random in training and in prediction.

    Parameters
    ----------
    n_passes : int, default=100
        Number of prediction passes with random units dropped (T in the paper); one call computes
        them all.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.1
        Share of hidden units dropped in training and in every prediction pass.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` with Dropout layers and `n_outputs`
        linear outputs, the classes' logits. Parameters that describe layers and their rates then
        have no effect.
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
    validation_fraction : float or None, default=0.2
        Share of the rows that is held out for validation. None trains on all rows for all
        `epochs`.
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases: the paper's prior.
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
    members_ : list of one Member
        Records of the trained networks: weights, history, validation predictions.
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
        If the network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleClassifier : Several networks.

    References
    ----------
    Y. Gal, Z. Ghahramani. "Dropout as a Bayesian Approximation: Representing Model
    Uncertainty in Deep Learning", ICML 2016. Heiss et al., "NOMU", B.1.2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MCDropoutClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_uncertainty(X[:2]).epistemic.shape
    (2,)
    """

    _method_class = _MCDropout
    _parameter_constraints: dict = _CONSTRAINTS

    def __init__(
        self,
        n_passes=100,
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.1,
        network=None,
        optimizer="adam",
        learning_rate=0.01,
        batch_size=100,
        epochs=1000,
        early_stopping_patience=50,
        validation_fraction=0.2,
        schedule="constant",
        l2=0.0,
        weight_decay=0.0,
        clip_norm=None,
        preprocess="auto",
        random_state=None,
        verbose=None,
    ):
        self.n_passes = n_passes
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.network = network
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation_fraction = validation_fraction
        self.schedule = schedule
        self.l2 = l2
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
