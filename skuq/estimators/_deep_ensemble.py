"""Deep ensembles: one architecture, several seeds."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np

from skuq import training
from skuq._params import Interval, StrOptions
from skuq._registry import saved_as
from skuq._seeds import generator
from skuq._space import Space
from skuq.ensembles import stacking_weights
from skuq.estimators._api import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._network_estimator import (
    NETWORK_CONSTRAINTS,
    REGRESSION_CONSTRAINTS,
    NetworkEstimator,
    Outcome,
    TrainingMethod,
    completed,
)
from skuq.networks import GaussianHead, TabularSpace
from skuq.predictive._out_of_bag import fit_out_of_bag_scale
from skuq.tables import ClassTargets, NumberTargets, TableInputs
from skuq.tables._targets import HEADS, unpack_copies
from skuq.training._recipe import SCHEDULES

#: What "auto" stands for with networks other than "tabular".
_PLAIN = {
    "learning_rate": 0.01,
    "batch_size": 100,
    "epochs": 1000,
    "early_stopping_patience": 50,
    "schedule": "constant",
    "weight_decay": 0.0,
}

# What "auto" stands for with network="tabular" and with others.
_VALIDATION_FRACTION = {True: 0.1, False: 0.2}
_N_MEMBERS = 5
_N_TABULAR_MEMBERS = {"regressor": 8, "classifier": 9}
_MOST_VALIDATION_ROWS = 10_000
_MOST_CALIBRATION_ROWS = 5_000
_PRIOR_ROWS = 100  # weight of equal shares of the kinds, in rows
# Which of these is best differs from set to set, for classes much more than for numbers.
_CLASS_KINDS = ({"frequency_scale": 0.3}, {"embedding": "none"}, {"frequency_scale": 3.0})

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
        for name in _PLAIN
        if name != "schedule"
    },
    "schedule": [StrOptions({"auto", *SCHEDULES})],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "validation_fraction": [*NETWORK_CONSTRAINTS["validation_fraction"], StrOptions({"auto"})],
}


class _DeepEnsemble(TrainingMethod):
    """Members that differ in their seeds, trained as one stack."""

    def __init__(self, estimator):
        super().__init__(estimator)
        network = estimator.network
        self.is_tabular = isinstance(network, str) and network == "tabular"
        is_auto = isinstance(estimator.n_members, str)
        default = _N_MEMBERS
        if self.is_tabular:
            default = _N_TABULAR_MEMBERS["classifier" if self.classifies else "regressor"]
        self.n_members = default if is_auto else estimator.n_members
        self.kinds = self._kinds()[: self.n_members]
        self.n_kinds = len(self.kinds)
        self.n_splits = -(-self.n_members // self.n_kinds)
        self.dropout = estimator.dropout or None
        self._defaults = [_PLAIN]
        if self.loss == "auto":
            self.loss = "crps" if self.is_tabular else "nll"

    @property
    def validation_fraction(self):
        fraction = self.estimator.validation_fraction
        is_auto = isinstance(fraction, str)
        return _VALIDATION_FRACTION[self.is_tabular] if is_auto else fraction

    def validation_share(self, n_rows):
        fraction = self.validation_fraction
        if not isinstance(self.estimator.validation_fraction, str):
            return fraction
        return min(fraction, _MOST_VALIDATION_ROWS / n_rows)

    def inputs(self):
        return TableInputs(self.estimator.preprocess, embed=self.is_tabular)

    def targets(self):
        n_copies = self.estimator.n_copies
        if self.classifies:
            return ClassTargets(n_copies=n_copies)
        return NumberTargets(self.estimator.target_transform, loss=self.loss, n_copies=n_copies)

    def check_parameters(self):
        own = self.estimator
        if own.n_copies > 1 and not self.is_tabular:
            raise ValueError(
                'Only network="tabular" has `n_copies` members in one network. '
                f"Got n_copies={own.n_copies} and network={own.network!r}."
            )
        if own.n_copies > 1 and self.loss == "mse":
            raise ValueError(
                f'loss="mse" is for n_copies=1: take loss="nll". Got n_copies={own.n_copies}.'
            )
        if own.network_settings is not None and not self.is_tabular:
            raise ValueError(
                '`network_settings` is for network="tabular". '
                f"Got {own.network_settings!r} and network={own.network!r}."
            )

    def _kinds(self):
        """List the settings of each kind of networks."""
        settings = self.estimator.network_settings or {}
        if not (self.is_tabular and self.classifies) or "embedding" in settings:
            return [settings]
        kinds = [{**kind, **settings} for kind in _CLASS_KINDS]
        return [kind for k, kind in enumerate(kinds) if kind not in kinds[:k]]

    def build(self, data, splits, inputs, targets):
        """Build the network of each kind, and decide its training."""
        if not self.is_tabular:
            return [super().build(data, splits, inputs, targets)]
        own = self.estimator
        space = TabularSpace(data.x, inputs.n_codes, splits.n_train, self.classifies)
        decisions = sum(space.decisions(), Space())
        configurations = [decisions.check(kind, "network_settings") for kind in self.kinds]
        self._defaults = [space.recipe(configuration) for configuration in configurations]
        shapes = data.x.shape[1:], targets.head.n_raw
        return [space.build(c, *shapes, n_copies=own.n_copies) for c in configurations]

    def recipe_fields(self, kind=0):
        given = {name: v for name, v in super().recipe_fields().items() if v != "auto"}
        fields = {**self._defaults[kind], **given}
        if "beta_2" in fields and fields["optimizer"] not in ("adam", "adamax", "nadam"):
            del fields["beta_2"]
        return fields

    def train(self, network, head, data, splits, report):
        """Train the members of each kind; member k of every kind has the same split."""
        own, jobs, deadline = self.estimator, [], math.inf
        parts, positions = [], []
        for kind, model in enumerate(network):
            numbers = range(kind, self.n_members, self.n_kinds)
            own_parts = splits.parts and splits.parts[: len(numbers)]
            if own.bootstrap:
                own_parts = self._resampled(len(data.x), own_parts, numbers)
            penalties = {"l2": own.l2, "adversarial_epsilon": own.adversarial_epsilon}
            recipe = self.recipe(splits.validates, kind=kind, **penalties)
            seeds = [self.seeds(1, first=k)[0] for k in numbers]
            fields = {"stacked": True, "splits": own_parts}
            jobs.append(training.TrainingJob.of_model(model, head, recipe, seeds, **fields))
            parts += own_parts or [None] * len(numbers)
            positions += [(kind, row) for row in range(len(numbers))]
        if own.max_time is not None:
            jobs, deadline = training.shorten(jobs, data, own.max_time)
        members = sum(training.train_all(jobs, data, report=report, deadline=deadline), [])
        kept = completed(members)
        members, parts, positions = ([of[k] for k in kept] for of in (members, parts, positions))
        weights = self._weights(members, parts, positions, head, data)
        return Outcome(members, weights, parts if splits.parts else None)

    def _weights(self, members, parts, positions, head, data):
        """Weigh the kinds by stacking on the rows that validate; members of a kind are equal."""
        kinds = np.array([kind for kind, _ in positions])
        counts = np.bincount(kinds, minlength=self.n_kinds)
        shares = np.full(self.n_kinds, 1 / self.n_kinds)
        if self.n_kinds > 1 and counts.all() and len(members[0].held_out):
            shares = self._stacked_kinds(members, parts, positions, head, data)
        shares = np.where(counts, shares, 0)
        return (shares / np.maximum(counts, 1))[kinds] / shares.sum()

    def _stacked_kinds(self, members, parts, positions, head, data):
        """Find the shares of the kinds whose mixture is most likely on rows none has seen.

        Stacking of predictive distributions (Yao et al. 2018); kinds meet on the rows that their
        members with the same split validate on.
        """
        losses = {}
        for member, part, (kind, row) in zip(members, parts, positions):
            own = part is not None and part[1] is not None
            y, weight = data.y_valid, data.weight_valid
            if own:
                y, weight = data.y[part[1]], data.weight[part[1]]
            losses.setdefault(row, {})[kind] = head.log_likelihood(y, member.held_out), weight
        complete = [kinds for kinds in losses.values() if len(kinds) == self.n_kinds]
        if not complete:
            return np.full(self.n_kinds, 1 / self.n_kinds)
        log_likelihood = np.concatenate(
            [np.stack([kinds[k][0] for k in range(self.n_kinds)]) for kinds in complete], axis=1
        )
        weight = np.concatenate([kinds[0][1] for kinds in complete])
        # Float32 may have lost every weight.
        return stacking_weights(log_likelihood, weight if weight.any() else None)

    def calibrate(self, targets, outcome, data):
        """Scale the predicted standard deviation by rows that some members have not seen."""
        parts = outcome.parts
        if self.classifies or not self.is_tabular or parts is None:
            return targets
        if not self.estimator.calibrate:
            return targets
        unseen = np.zeros((len(parts), len(data.x)), dtype=bool)
        for k, (_, valid) in enumerate(parts):
            unseen[k, valid] = True
        rows = np.flatnonzero(unseen.any(axis=0))
        if len(rows) > _MOST_CALIBRATION_ROWS:
            rng = generator(self.estimator.entropy_, "calibration")
            rows = np.sort(rng.choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
        raw = training.predict_members(outcome.members, data.x[rows])
        head, raw, _ = unpack_copies(targets.head, raw, outcome.weights)
        if not isinstance(head, GaussianHead):
            return targets
        unseen = np.repeat(unseen[:, rows], len(raw) // len(parts), axis=0)
        predicted = head.distribution(raw)
        factor, floor = fit_out_of_bag_scale(*predicted, unseen, data.y[rows], data.weight[rows])
        return targets.with_calibration(factor, floor)

    def _resampled(self, n_rows, parts, numbers):
        """Draw the training rows of some members again, with replacement."""
        entropy = self.estimator.entropy_
        parts = parts or [(np.arange(n_rows), None)] * len(numbers)
        rngs = [generator(entropy, "bootstrap", k) for k in numbers]
        return [
            (rng.choice(train, size=len(train)), valid) for rng, (train, valid) in zip(rngs, parts)
        ]


@saved_as("estimators.DeepEnsembleRegressor", kind="estimator")
class DeepEnsembleRegressor(NetworkEstimator, UncertaintyRegressor):
    """Networks of one architecture that differ in their seeds, as one mixture.

    Each network predicts a mean and a standard deviation and is trained on the Gaussian
    likelihood. What the members agree to be noise is aleatoric, what they disagree on is
    epistemic uncertainty. Members train side by side in compiled programs, on all cores.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members (M in the paper). "auto" is the paper's 5, and 8 with
        ``network="tabular"``, where more than 5 still improve every score.
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
        What each network predicts, and its loss. "nll": mean and standard deviation of a normal,
        by likelihood. "beta-nll": the same with the likelihood's gradient weighted by the
        predicted standard deviation (Seitzer et al. 2022, beta 0.5), so that rows believed to be
        noisy are learnt from, too. "crps": the same two numbers by the continuous ranked
        probability score, which gives better means and intervals where most of y can be
        predicted. "student-t" and "gaussian-mixture" (three components): heavier
        tails or several modes. "quantiles": 19 quantiles that do not cross. "mse": means only, for
        noise that is known or the same everywhere. "auto" is "crps" for ``network="tabular"``
        and "nll" otherwise.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out.
    scale_l2 : float, default=1e-2
        L2 penalty on the last layer of the standard deviations. Without it, networks of small data
        are far too sure.
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
        How the learning rate changes over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float or "auto", default="auto"
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    max_time : float, optional
        Seconds that training may take, after compilation. If all `epochs` would take longer,
        the schedule is shortened to those that fit; each member keeps its best epoch. Results
        then depend on the speed of the machine. None sets no limit.
    adversarial_epsilon : float, default=0.0
        Adversarial training: half of the loss is taken on inputs that are moved by this share of
        each feature's range in the direction that increases the loss. 0 disables it; the paper's
        regressions have 0.01.
    bootstrap : bool, default=False
        Whether to train each member on rows drawn with replacement.
    preprocess : "auto", transformer or None, default="auto"
        How X becomes numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns,
        at most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only.
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
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    members_ : list of Member
        Trained networks as data: weights, history, validation predictions.
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

    _method_class = _DeepEnsemble
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
        verbose=0,
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
    """Networks of one architecture that differ in their seeds, probabilities averaged.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members (M in the paper). "auto" is the paper's 5, and 8 with
        ``network="tabular"``, where more than 5 still improve every score.
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
        How the learning rate changes over `epochs`, see `skuq.training.Recipe`.
    l2 : float, default=0.0
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float or "auto", default="auto"
        Factor of decoupled weight decay.
    clip_norm : float or None, default=None
        Maximum norm of a gradient; None does not clip.
    max_time : float, optional
        Seconds that training may take, after compilation. If all `epochs` would take longer,
        the schedule is shortened to those that fit; each member keeps its best epoch. Results
        then depend on the speed of the machine. None sets no limit.
    adversarial_epsilon : float, default=0.0
        Adversarial training: half of the loss is taken on inputs that are moved by this share of
        each feature's range in the direction that increases the loss. 0 disables it; the paper's
        regressions have 0.01.
    bootstrap : bool, default=False
        Whether to train each member on rows drawn with replacement.
    preprocess : "auto", transformer or None, default="auto"
        How X becomes numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns,
        at most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Trained networks as data: weights, history, validation predictions.
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

    _method_class = _DeepEnsemble
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
        verbose=0,
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
