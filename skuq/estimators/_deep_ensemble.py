"""Deep ensembles: one architecture, several seeds."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from skuq._params import Interval
from skuq._seeds import generator
from skuq.estimators._neural import (
    REGRESSION_CONSTRAINTS,
    NeuralEstimator,
    RegressionTarget,
    completed,
)
from skuq.estimators._targets import ClassificationTarget

__all__ = ["DeepEnsembleClassifier", "DeepEnsembleRegressor"]


class _DeepEnsemble(NeuralEstimator):
    _parameter_constraints: dict = {
        **NeuralEstimator._parameter_constraints,
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "l2": [Interval(Real, 0, None, closed="left")],
        "adversarial_epsilon": [Interval(Real, 0, None, closed="left")],
        "bootstrap": ["boolean"],
    }

    def __init__(
        self,
        n_members,
        hidden_units,
        activation,
        dropout,
        network,
        optimizer,
        learning_rate,
        batch_size,
        epochs,
        early_stopping_patience,
        validation_fraction,
        schedule,
        l2,
        weight_decay,
        clip_norm,
        adversarial_epsilon,
        bootstrap,
        random_state,
        verbose,
    ):
        self.n_members = n_members
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
        self.adversarial_epsilon = adversarial_epsilon
        self.bootstrap = bootstrap
        self.random_state = random_state
        self.verbose = verbose

    @property
    def _n_splits(self):
        return self.n_members

    @property
    def _dropout_rate(self):
        return self.dropout or None

    def _train(self, model, data, splits, report):
        from skuq.training import train_stack

        if self.bootstrap:
            splits = self._resampled(len(data.x), splits)
        members = train_stack(
            model,
            self._head,
            self._recipe(l2=self.l2, adversarial_epsilon=self.adversarial_epsilon),
            data,
            self._seeds(self.n_members),
            splits=splits,
            report=report,
        )
        kept = completed(members)
        splits = splits and [splits[k] for k in kept]
        return [members[k] for k in kept], np.full(len(kept), 1 / len(kept)), splits

    def _resampled(self, n_rows, splits):
        """Each member's training rows drawn again with replacement."""
        splits = splits or [(np.arange(n_rows), None)] * self.n_members
        rngs = [generator(self.entropy_, "bootstrap", k) for k in range(self.n_members)]
        return [
            (rng.choice(train, size=len(train)), valid) for rng, (train, valid) in zip(rngs, splits)
        ]


class DeepEnsembleRegressor(RegressionTarget, _DeepEnsemble):
    """Networks of one architecture that differ in their seeds, as one mixture.

    Each network predicts a mean and a standard deviation and is trained on the Gaussian
    likelihood. What the members agree to be noise is aleatoric, what they disagree on is
    epistemic uncertainty. All members train side by side in one compiled program.

    Parameters
    ----------
    n_members : int, default=5
        M of the paper.
    hidden_units : int or sequence of int, default=(50,)
        Units of each hidden layer; one layer of 50 is the literature's benchmark.
    activation : str, default="relu"
        Of the hidden layers, by Keras' name.
    dropout : float, default=0.0
        Share of hidden units dropped while training; predictions drop none.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` in place of `hidden_units`,
        `activation`, `dropout` and `scale_l2`, which then have no effect;
        `n_outputs` raw numbers are the means, then numbers that a softplus makes
        standard deviations.
    loss : {"nll", "mse"}, default="nll"
        "mse" trains means only, for noise that is known or the same everywhere.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"`` the noise's standard deviation, in units of y. None estimates
        it from held-out rows, or from training rows where none are held out.
    scale_l2 : float, default=1e-2
        L2 penalty on the last layer of the standard deviations: without it small data
        teach networks to be far too sure (see the documentation's figures).
    optimizer : str, default="adam"
        One of Keras' sgd, rmsprop, adagrad, adam, adadelta, adamax, nadam.
    learning_rate : float, default=0.01
    batch_size : int, default=100
    epochs : int, default=1000
        Most epochs.
    early_stopping_patience : int or None, default=50
        Epochs without a better validation loss before a member stops; its best epoch is
        kept. None never stops, and still keeps the best epoch.
    validation_fraction : float or None, default=0.2
        Share of the rows that a member validates on, others for each member. None trains
        on all rows for all `epochs`.
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        How the learning rate falls over `epochs`.
    l2 : float, default=0.0
        Penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float, default=0.0
        Decoupled weight decay.
    clip_norm : float or None, default=None
        Largest norm of a gradient.
    adversarial_epsilon : float, default=0.0
        Adversarial training (0.01 in the paper): half of the loss on inputs moved by this
        share of each feature's range against the network.
    bootstrap : bool, default=False
        Train each member on rows drawn with replacement.
    random_state : int, RandomState instance or None, default=None
        With an integer everything repeats exactly.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    members_ : list of Member
        Trained networks as data: weights, history, validation predictions.
    weights_ : ndarray of shape (n_members,)
        Of the mixture, summing to 1.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``: known or estimated, in units of y.
    scaling_ : Scaling
        Means and scales of X and y.
    entropy_ : int
        What `random_state` came to; every draw of the fit follows from it.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    HyperDeepEnsembleRegressor : Members that differ in their regularisation too.
    AutoDEUQRegressor : Members from a search of architectures.

    Notes
    -----
    X and y are standardised. Members whose loss stops being finite are left out, with a
    warning. The ensemble loss is not tuned on: early stopping looks at each member alone.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell. "Simple and Scalable Predictive
    Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import DeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DeepEnsembleRegressor(epochs=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    _parameter_constraints: dict = {
        **_DeepEnsemble._parameter_constraints,
        **REGRESSION_CONSTRAINTS,
    }

    def __init__(
        self,
        n_members=5,
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.0,
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
        adversarial_epsilon=0.0,
        bootstrap=False,
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            n_members=n_members,
            hidden_units=hidden_units,
            activation=activation,
            dropout=dropout,
            network=network,
            optimizer=optimizer,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            early_stopping_patience=early_stopping_patience,
            validation_fraction=validation_fraction,
            schedule=schedule,
            l2=l2,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
            adversarial_epsilon=adversarial_epsilon,
            bootstrap=bootstrap,
            random_state=random_state,
            verbose=verbose,
        )
        self.loss = loss
        self.noise_std = noise_std
        self.scale_l2 = scale_l2


class DeepEnsembleClassifier(ClassificationTarget, _DeepEnsemble):
    """Networks of one architecture that differ in their seeds, probabilities averaged.

    Parameters
    ----------
    n_members : int, default=5
        M of the paper.
    hidden_units : int or sequence of int, default=(50,)
        Units of each hidden layer.
    activation : str, default="relu"
        Of the hidden layers, by Keras' name.
    dropout : float, default=0.0
        Share of hidden units dropped while training; predictions drop none.
    network : callable, optional
        ``network(input_shape, n_outputs) -> keras.Model`` in place of `hidden_units`,
        `activation` and `dropout`, which then have no effect;
        `n_outputs` linear outputs are the classes' logits.
    optimizer : str, default="adam"
        One of Keras' sgd, rmsprop, adagrad, adam, adadelta, adamax, nadam.
    learning_rate : float, default=0.01
    batch_size : int, default=100
    epochs : int, default=1000
        Most epochs.
    early_stopping_patience : int or None, default=50
        Epochs without a better validation loss before a member stops; its best epoch is
        kept. None never stops, and still keeps the best epoch.
    validation_fraction : float or None, default=0.2
        Share of the rows that a member validates on, others for each member and of each
        class in proportion. None trains on all rows for all `epochs`.
    schedule : {"constant", "cosine", "exponential"}, default="constant"
        How the learning rate falls over `epochs`.
    l2 : float, default=0.0
        Penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float, default=0.0
        Decoupled weight decay.
    clip_norm : float or None, default=None
        Largest norm of a gradient.
    adversarial_epsilon : float, default=0.0
        Adversarial training: half of the loss on inputs moved by this share of each
        feature's range against the network.
    bootstrap : bool, default=False
        Train each member on rows drawn with replacement.
    random_state : int, RandomState instance or None, default=None
        With an integer everything repeats exactly.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    members_ : list of Member
        Trained networks as data: weights, history, validation predictions.
    weights_ : ndarray of shape (n_members,)
        Of the mixture, summing to 1.
    scaling_ : Scaling
        Means and scales of X.
    entropy_ : int
        What `random_state` came to; every draw of the fit follows from it.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    HyperDeepEnsembleClassifier : Members that differ in their regularisation too.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell. "Simple and Scalable Predictive
    Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeepEnsembleClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        n_members=5,
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.0,
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
        adversarial_epsilon=0.0,
        bootstrap=False,
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            n_members=n_members,
            hidden_units=hidden_units,
            activation=activation,
            dropout=dropout,
            network=network,
            optimizer=optimizer,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            early_stopping_patience=early_stopping_patience,
            validation_fraction=validation_fraction,
            schedule=schedule,
            l2=l2,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
            adversarial_epsilon=adversarial_epsilon,
            bootstrap=bootstrap,
            random_state=random_state,
            verbose=verbose,
        )
