"""Deep ensembles: networks of one architecture with different seeds."""

from __future__ import annotations

from numbers import Integral, Real

from skuq._params import Interval, StrOptions
from skuq._registry import saved_as
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._deep_method import PLAIN, DeepEnsembleMethod
from skuq.estimators._network_estimator import (
    NETWORK_CONSTRAINTS,
    REGRESSION_CONSTRAINTS,
    NetworkEstimator,
)
from skuq.tables._targets import HEADS
from skuq.training._recipe import SCHEDULES

_CONSTRAINTS: dict = {
    **NETWORK_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "dropout": [Interval(Real, 0, 1, closed="left")],
    "l2": [Interval(Real, 0, None, closed="left")],
    "adversarial_epsilon": [Interval(Real, 0, None, closed="left")],
    "bootstrap": ["boolean"],
    "network": [StrOptions({"tabular"}), callable, None],
    "network_settings": [dict, None],
    "n_copies": [Interval(Integral, 1, None, closed="left")],
    **{
        name: [*NETWORK_CONSTRAINTS[name], StrOptions({"auto"})]
        for name in PLAIN
        if name != "schedule"
    },
    "schedule": [StrOptions({"auto", *SCHEDULES})],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "validation_fraction": [*NETWORK_CONSTRAINTS["validation_fraction"], StrOptions({"auto"})],
}


@saved_as("estimators.DeepEnsembleRegressor", kind="estimator")
class DeepEnsembleRegressor(NetworkEstimator, UncertaintyRegressor):
    """Deep ensemble: a mixture of networks of one architecture that differ in their seeds.

    Each network predicts a mean and a standard deviation and is trained on the Gaussian
    likelihood. The average noise that members predict is the aleatoric uncertainty, and the
    disagreement of their means the epistemic uncertainty. Members train together in compiled
    programs, on all cores.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members (M in the paper). "auto" is the paper's 5. With ``network="tabular"`` it
        is 8 for numbers, where more than 5 still improve every score, and 9 for classes.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.0
        Share of hidden units dropped in training; predictions drop none.
    network : "tabular" or callable, optional
        "tabular" is a modern network for tables with its own training settings (see
        `skuq.networks.TabularSpace`): better than the plain one on all five UCI sets measured, and
        slower to train. Or ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs`
        linear outputs: the means, then numbers that a softplus turns into standard deviations.
        With either, `hidden_units`, `activation`, `dropout` and `scale_l2` have no effect.
    network_settings : dict, optional
        With ``network="tabular"``, values of the decisions of `skuq.networks.TabularSpace` that
        differ from its defaults, by name, for example ``{"width": 128, "embedding":
        "piecewise-linear"}``.
    n_copies : int, default=1
        With ``network="tabular"``, number of copies of each network that share all but a few of
        their weights (TabM, BatchEnsemble). There are ``n_members * n_copies`` members in all.
    loss : str, default="auto"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "beta-nll": the same with the likelihood's gradient weighted by the
        predicted standard deviation (Seitzer et al. 2022, beta 0.5), so that rows believed to be
        noisy are learnt from, too. "crps": the same two numbers by the continuous ranked
        probability score, which gives better means and intervals where most of y can be predicted.
        "student-t" and "gaussian-mixture" (three components): heavier tails or several modes.
        "quantiles": 19 quantiles that do not cross. "mse": means only, for noise that is known or
        the same everywhere. "auto" is "crps" for ``network="tabular"`` and "nll" otherwise.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out.
    scale_l2 : float, default=1e-2
        L2 penalty on the last layer of the standard deviations. Without it, networks for small data
        are far too confident.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float or "auto", default="auto"
        Learning rate of the optimiser. "auto", here and below, is the setting that
        ``network="tabular"`` was tuned with; for other networks it is 0.01, batches of 100, 1000
        epochs, a patience of 50, a constant schedule and no weight decay.
    batch_size : int or "auto", default="auto"
        Number of rows of a batch.
    epochs : int or "auto", default="auto"
        Maximum number of epochs of one network.
    early_stopping_patience : int, None or "auto", default="auto"
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation_fraction : float, None or "auto", default="auto"
        Share of the rows that is held out for validation, other rows for each member. None trains
        on all rows for all `epochs`. "auto" is 0.1 with ``network="tabular"``, otherwise 0.2.
    schedule : {"auto", "constant", "cosine", "exponential", "flat-cosine", "coslog4"}, \
            default="auto"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float or "auto", default="auto"
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    max_time : float, optional
        Maximum seconds of training, after compilation. If all `epochs` would take longer, the
        schedule is shortened to the epochs that fit; each member keeps its best epoch. Results then
        depend on the speed of the machine. None sets no limit.
    adversarial_epsilon : float, default=0.0
        Adversarial training: half of the loss is taken at inputs moved by this share of each
        feature's range in the direction that increases the loss. 0 disables it; the paper's
        regressions use 0.01.
    bootstrap : bool, default=False
        Train each member on a bootstrap sample: rows drawn with replacement.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. Tabular networks embed columns of more than ten categories
        instead. A scikit-learn transformer is cloned and fitted. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    calibrate : bool, default=True
        With ``network="tabular"`` and a loss that trains normals, whether predicted standard
        deviations are scaled, and given a floor, by the rows that single members have not trained
        on. It needs a validation split of each member's own: without `groups`,
        `validation_data` or ``validation_fraction=None``.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks: weights, history, validation predictions.
    weights_ : ndarray of shape (n_members,)
        Weights of the mixture, which sum to 1.
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
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    HyperDeepEnsembleRegressor : Members that also differ in their regularisation.
    AutoDEUQRegressor : Members from a search of architectures.

    Notes
    -----
    X and y are standardised; with ``network="tabular"`` X is scaled by its quartiles instead.
    Members whose loss stops being finite are left out, with a warning. The ensemble loss is not
    tuned on: early stopping looks at each member alone.

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

    _method_class = DeepEnsembleMethod
    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        **REGRESSION_CONSTRAINTS,
        "loss": [StrOptions({"auto", *HEADS})],
        "calibrate": ["boolean"],
    }

    def __init__(
        self,
        n_members="auto",
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.0,
        network=None,
        network_settings=None,
        n_copies=1,
        loss="auto",
        noise_std=None,
        scale_l2=1e-2,
        optimizer="adam",
        learning_rate="auto",
        batch_size="auto",
        epochs="auto",
        early_stopping_patience="auto",
        validation_fraction="auto",
        schedule="auto",
        l2=0.0,
        weight_decay="auto",
        clip_norm=None,
        max_time=None,
        adversarial_epsilon=0.0,
        bootstrap=False,
        preprocess="auto",
        target_transform="standard",
        calibrate=True,
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.network = network
        self.network_settings = network_settings
        self.n_copies = n_copies
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
        self.max_time = max_time
        self.adversarial_epsilon = adversarial_epsilon
        self.bootstrap = bootstrap
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
        self.loss = loss
        self.noise_std = noise_std
        self.scale_l2 = scale_l2
        self.target_transform = target_transform
        self.calibrate = calibrate


@saved_as("estimators.DeepEnsembleClassifier", kind="estimator")
class DeepEnsembleClassifier(NetworkEstimator, UncertaintyClassifier):
    """Deep ensemble: averaged probabilities of networks that differ in their seeds.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members (M in the paper). "auto" is the paper's 5. With ``network="tabular"`` it
        is 8 for numbers, where more than 5 still improve every score, and 9 for classes.
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.0
        Share of hidden units dropped in training; predictions drop none.
    network : "tabular" or callable, optional
        "tabular" is a modern network for tables with its own training settings (see
        `skuq.networks.TabularSpace`): better than the plain one on three of the six sets
        measured, and slower to train. Or ``network(input_shape, n_outputs) -> keras.Model`` with
        `n_outputs` linear outputs, the classes' logits. With either, `hidden_units`, `activation`
        and `dropout` have no effect.
    network_settings : dict, optional
        With ``network="tabular"``, values of the decisions of `skuq.networks.TabularSpace` that
        differ from its defaults, by name, for example ``{"width": 128, "embedding":
        "piecewise-linear"}``.
    n_copies : int, default=1
        With ``network="tabular"``, number of copies of each network that share all but a few of
        their weights (TabM, BatchEnsemble). There are ``n_members * n_copies`` members in all.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float or "auto", default="auto"
        Learning rate of the optimiser. "auto", here and below, is the setting that
        ``network="tabular"`` was tuned with; for other networks it is 0.01, batches of 100, 1000
        epochs, a patience of 50, a constant schedule and no weight decay.
    batch_size : int or "auto", default="auto"
        Number of rows of a batch.
    epochs : int or "auto", default="auto"
        Maximum number of epochs of one network.
    early_stopping_patience : int, None or "auto", default="auto"
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation_fraction : float, None or "auto", default="auto"
        Share of the rows, of each class in proportion, that is held out for validation, other rows
        for each member. None trains on all rows for all `epochs`. "auto" is 0.1 with
        ``network="tabular"``, otherwise 0.2.
    schedule : {"auto", "constant", "cosine", "exponential", "flat-cosine", "coslog4"}, \
            default="auto"
        Change of the learning rate over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float or "auto", default="auto"
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    max_time : float, optional
        Maximum seconds of training, after compilation. If all `epochs` would take longer, the
        schedule is shortened to the epochs that fit; each member keeps its best epoch. Results then
        depend on the speed of the machine. None sets no limit.
    adversarial_epsilon : float, default=0.0
        Adversarial training: half of the loss is taken at inputs moved by this share of each
        feature's range in the direction that increases the loss. 0 disables it; the paper's
        regressions use 0.01.
    bootstrap : bool, default=False
        Train each member on a bootstrap sample: rows drawn with replacement.
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
    weights_ : ndarray of shape (n_members,)
        Weights of the mixture, which sum to 1.
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
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    HyperDeepEnsembleClassifier : Members that also differ in their regularisation.

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

    _method_class = DeepEnsembleMethod
    _parameter_constraints: dict = _CONSTRAINTS

    def __init__(
        self,
        n_members="auto",
        *,
        hidden_units=(50,),
        activation="relu",
        dropout=0.0,
        network=None,
        network_settings=None,
        n_copies=1,
        optimizer="adam",
        learning_rate="auto",
        batch_size="auto",
        epochs="auto",
        early_stopping_patience="auto",
        validation_fraction="auto",
        schedule="auto",
        l2=0.0,
        weight_decay="auto",
        clip_norm=None,
        max_time=None,
        adversarial_epsilon=0.0,
        bootstrap=False,
        preprocess="auto",
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.network = network
        self.network_settings = network_settings
        self.n_copies = n_copies
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
        self.max_time = max_time
        self.adversarial_epsilon = adversarial_epsilon
        self.bootstrap = bootstrap
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
