"""Base class of ensembles of one architecture, which share `fit`.

Deep ensembles, hyper deep ensembles and MC dropout share `NetworkEstimator.fit`. They differ in
their `TrainingMethod`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from skuq._params import Interval, StrOptions
from skuq._progress import Progress
from skuq._seeds import draw_entropy, trial_seed
from skuq._warnings import warn_user
from skuq.estimators._base import fits, to_keras
from skuq.fitted import FittedEnsemble
from skuq.networks import OPTIMIZERS, GaussianHead, build_mlp
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._plan import make_plan
from skuq.tables import (
    ClassTargets,
    NumberTargets,
    TableInputs,
    check_groups,
    make_splits,
    read_rows,
    read_validation_rows,
)
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, add_input_tags
from skuq.tables._targets import TARGET_CONSTRAINTS
from skuq.training import Recipe, build_checked, predict_members

#: Constraints of the parameters of all ensembles of one architecture.
NETWORK_CONSTRAINTS: dict = {
    "hidden_units": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [str],
    "network": [callable, None],
    "optimizer": [StrOptions(set(OPTIMIZERS))],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "epochs": [Interval(Integral, 1, None, closed="left")],
    "early_stopping_patience": [Interval(Integral, 1, None, closed="left"), None],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
    "schedule": [StrOptions({"constant", "cosine", "exponential"})],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
    **PREPROCESS_CONSTRAINTS,
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}

#: Constraints of the parameters of regressors only.
REGRESSION_CONSTRAINTS: dict = {
    "loss": [StrOptions({"nll", "mse"})],
    "noise_std": [Interval(Real, 0, None, closed="left"), "array-like", None],
    "scale_l2": [Interval(Real, 0, None, closed="left")],
    **TARGET_CONSTRAINTS,
}

# Parameters that are fields of the recipe.
_RECIPE_PARAMETERS = (
    "optimizer",
    "learning_rate",
    "batch_size",
    "epochs",
    "early_stopping_patience",
    "schedule",
    "weight_decay",
)

_SMALLEST_NOISE = 1e-9  # standard deviation of standardised y that replaces noise_std=0


class NetworkEstimator:
    """Base class that fits members of one architecture by the `TrainingMethod` of a subclass."""

    _method_class: type[TrainingMethod]

    @fits
    def fit(self, X, y, sample_weight=None, *, validation_data=None, groups=None):
        """Train the members.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Numbers, booleans, strings and categories, with missing values; see `preprocess`.
        y : array-like of shape (n,) or, for several outputs, (n, n_outputs)
            Targets: numbers or classes.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows on which all members validate, instead of a share of the rows above.
        groups : array-like of shape (n,), optional
            Groups; all rows of a group either train or validate. With groups all members validate
            on the same rows. They have no effect without validation or with `validation_data`.

        Returns
        -------
        self
        """
        method = self._method_class(self)
        method.check_parameters()
        inputs, targets = method.inputs(), method.targets()
        rows = read_rows(self, inputs, targets, X, y, sample_weight, min_rows=method.min_rows)
        groups = check_groups(groups, rows.X)
        if validation_data is not None:
            validation_data = read_validation_rows(self, inputs, targets, validation_data)
        method.check_noise(targets)
        self.entropy_ = draw_entropy(self.random_state)
        splits = make_splits(
            rows,
            self.entropy_,
            fraction=method.validation_share(len(rows.X)),
            n_members=method.n_splits,
            validation=validation_data,
            groups=groups,
            labels=targets.labels(rows.y),
        )
        data = splits.training_data(inputs, targets)
        network = method.build(data, splits, inputs, targets)
        with training_progress(self.verbose) as progress:
            outcome = method.train(network, targets.head, data, splits, progress.epochs)
        targets, noise = method.learn_noise(targets, outcome, data)
        targets = method.calibrate(targets, outcome, data)
        for name, value in {**outcome.attributes, **noise}.items():
            setattr(self, name, value)
        if is_classifier(self):
            self.classes_ = targets.classes
        self.fitted_ = FittedEnsemble(
            inputs, targets, tuple(outcome.members), outcome.weights, method.passes(self.entropy_)
        )
        return self

    @property
    def members_(self):
        """Records of the trained networks."""
        return list(self.fitted_.members)

    @property
    def preprocessor_(self):
        """Fitted preprocessor, or None."""
        return self.fitted_.inputs.preprocessor

    @property
    def weights_(self):
        """Weights of the members in the mixture."""
        return self.fitted_.weights

    to_keras = to_keras

    def member_estimators(self):
        """Return each network as a fitted estimator of its own (with all of its `n_copies`).

        Returns
        -------
        list of (str, estimator) tuples
            Named estimators. Classifiers can be a pool for
            ``HQEnsembleSelector(pool, cv="prefit")``.
        """
        check_is_fitted(self)
        pool = []
        for k in range(len(self.fitted_.members)):
            alone = copy.copy(self)
            alone.fitted_ = self.fitted_.member(k)
            pool.append((f"member{k}", alone))
        return pool

    def __sklearn_tags__(self):
        return add_input_tags(super().__sklearn_tags__(), self.preprocess)


@dataclass
class Outcome:
    """Trained members, their weights in the mixture, and attributes to set.

    `parts` are the rows that each member was trained and validated on, or None if these are the
    same for all members. `attributes` are fitted attributes of the estimator, by name.
    """

    members: list
    weights: np.ndarray
    parts: list | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class TrainingMethod:
    """The parts of a fit: inputs, targets, network and trained members.

    They are made from the estimator's parameters, which are only read, never set.
    """

    #: Number of members with a validation split of their own; None if they share one.
    n_splits: int | None = None
    #: Rate of the dropout layers; None for no dropout layers.
    dropout: float | None = None
    loss: str | None = None

    def __init__(self, estimator):
        self.estimator = estimator
        self.classifies = is_classifier(estimator)
        self.loss = None if self.classifies else estimator.loss

    @property
    def validation_fraction(self) -> float | None:
        """Share of the rows for validation."""
        return self.estimator.validation_fraction

    def validation_share(self, n_rows: int) -> float | None:
        """Return the share of `n_rows` rows for validation."""
        return self.validation_fraction

    @property
    def min_rows(self) -> int:
        """Smallest number of rows that can be fitted."""
        return 2 if self.classifies or self.validation_fraction is not None else 1

    def inputs(self):
        """Make the unfitted inputs."""
        return TableInputs(self.estimator.preprocess)

    def targets(self):
        """Make the unfitted targets."""
        if self.classifies:
            return ClassTargets()
        return NumberTargets(self.estimator.target_transform, loss=self.loss)

    def check_parameters(self) -> None:
        """Raise ValueError if parameters contradict each other."""

    def check_noise(self, targets) -> None:
        """Raise ValueError if `noise_std` is invalid for these targets."""
        if self.loss == "mse" and self.estimator.noise_std is not None:
            _check_noise(self.estimator.noise_std, targets)

    def build(self, data, splits, inputs, targets):
        """Build the network by the user's function, or as an MLP with `hidden_units`."""
        estimator, input_shape, n_raw = self.estimator, data.x.shape[1:], targets.head.n_raw
        if estimator.network is not None:
            return build_checked(estimator.network, input_shape, n_raw, "`network`")
        units = check_units("hidden_units", estimator.hidden_units)
        if estimator.activation not in (*ACTIVATIONS, "swish"):
            raise ValueError(
                f"`activation` must be one of {sorted(ACTIVATIONS)}. Got {estimator.activation!r}."
            )
        scale_l2 = float(estimator.scale_l2) if isinstance(targets.head, GaussianHead) else 0.0
        return build_mlp(
            input_shape,
            n_raw,
            units,
            activation=estimator.activation,
            dropout=self.dropout,
            scale_l2=scale_l2,
        )

    def recipe_fields(self, kind: int = 0) -> dict:
        """Return the fields of the recipe that are parameters of the estimator."""
        return {name: getattr(self.estimator, name) for name in _RECIPE_PARAMETERS}

    def recipe(self, validates: bool, kind: int = 0, **settings) -> Recipe:
        """Make the training recipe of one kind of networks; most methods have a single kind.

        Without validation rows the last epoch is kept. `settings` replace other fields.
        """
        fields = {"reduce_lr_patience": None, "clip_norm": self.estimator.clip_norm}
        fields |= self.recipe_fields(kind)
        if not validates:
            fields |= {"early_stopping_patience": None, "keep": "last"}
        return Recipe(**{**fields, **settings})

    def seeds(self, n: int, first: int = 0) -> list[int]:
        """Derive the seeds of `n` members from number `first` on."""
        return [trial_seed(self.estimator.entropy_, first + k) for k in range(n)]

    def train(self, network, head, data, splits, report: Callable | None) -> Outcome:
        """Train the members."""
        raise NotImplementedError

    def passes(self, entropy: int):
        """Return the dropout masks of MC dropout, or None."""
        return

    def calibrate(self, targets, outcome: Outcome, data):
        """Return the targets with a calibration of the mixture on unseen rows, if there is one."""
        return targets

    def learn_noise(self, targets, outcome: Outcome, data):
        """Set the known or estimated noise in the head of ``loss="mse"``.

        Returns targets and the fitted attribute `noise_std_`, by name.
        """
        if self.loss != "mse":
            return targets, {}
        if self.estimator.noise_std is None:
            scale = noise = _residual_std(outcome, data)
            if not targets.is_transformed:
                noise = scale * targets.scaling.scale_
        else:
            given = np.asarray(self.estimator.noise_std, dtype=float)
            noise = np.broadcast_to(given, targets.n_outputs)
            scale = noise / targets.scaling.scale_
        targets = targets.with_noise(np.maximum(scale, _SMALLEST_NOISE).tolist())
        return targets, {"noise_std_": float(noise[0]) if targets.is_1d else noise}


def _check_noise(noise_std, targets):
    """Raise ValueError unless `noise_std` is one number >= 0, or one for each output."""
    if targets.is_transformed:
        raise ValueError(
            "`noise_std` must be None with `target_transform="
            f"{targets.scaling.kind!r}`: it is in units of y, in which the noise then depends "
            'on y. None estimates it. Or use target_transform="standard".'
        )
    try:
        noise = np.broadcast_to(np.asarray(noise_std, dtype=float), targets.n_outputs)
        usable = (noise >= 0).all() and np.isfinite(noise).all()
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise ValueError(
            f"`noise_std` must be a number >= 0, or {targets.n_outputs} of them, one for each "
            f"output. Got {noise_std!r}."
        )


def _residual_std(outcome, data):
    """Compute the root mean squared error (n_outputs,), on held-out rows if there are any.

    It is the error of the ensemble's mean if all members have the same rows, and otherwise the
    root of the members' weighted mean squared errors.
    """
    members, weights, parts = outcome.members, outcome.weights, outcome.parts
    if parts is not None and parts[0][1] is not None:
        squares = [
            _mean_square(member.held_out - data.y[rows], data.weight[rows])
            for member, (_, rows) in zip(members, parts)
        ]
        return np.sqrt(np.average(squares, axis=0, weights=weights))
    if len(data.x_valid):
        raw, y, weight = [m.held_out for m in members], data.y_valid, data.weight_valid
    else:
        raw, y, weight = predict_members(members, data.x, cache=False), data.y, data.weight
    return np.sqrt(_mean_square(np.average(raw, axis=0, weights=weights) - y, weight))


def _mean_square(error, weight):
    """Average squares over rows with weights; unweighted if all weights underflow in float32."""
    weight = weight if weight.sum() > 0 else None
    return np.average(np.square(error, dtype=float), axis=0, weights=weight)


def training_progress(verbose) -> Progress:
    """Show the progress of trainings, in epochs."""
    return Progress("training", "epoch", verbose=verbose, every_step=False)


def check_units(name: str, given) -> list[int]:
    """Check a parameter with the number of units of each hidden layer."""
    try:
        units = np.atleast_1d(given)
        usable = units.ndim == 1 and units.dtype.kind in "iu" and (units >= 1).all()
    except ValueError:  # nested sequences of different lengths
        usable = False
    if not usable or not len(units):
        raise ValueError(
            f"`{name}` must be positive integers, one for each hidden layer. Got {given!r}."
        )
    return units.tolist()


def find_completed(members) -> list[int]:
    """Find the positions of members that did not diverge, and warn if some did.

    A member whose training loss stopped being finite is left out even if an earlier epoch was
    finite, because a single bad member ruins a mixture. Raises FloatingPointError if all members
    diverged.
    """
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        what = "The network" if len(members) == 1 else f"All {len(members)} networks"
        first = "."
        if isinstance(members[0], Exception):
            first = f", the first with: {str(members[0]).rstrip('.')}."
        raise FloatingPointError(
            f"{what} diverged{first} Try a smaller `learning_rate`, "
            "weaker penalties, or `clip_norm=1.0`."
        )
    if len(kept) < len(members):
        warn_user(
            f"{len(members) - len(kept)} of {len(members)} networks diverged and were left out.",
        )
    return kept


def has_diverged(member) -> bool:
    """Tell whether training failed, or the loss was not finite in every epoch."""
    return isinstance(member, FloatingPointError) or not np.isfinite(member.history["loss"]).all()


def check_dropout_layers(model):
    """Raise ValueError if a network has no dropout layer, or layers that only Keras can run."""
    plan = make_plan(model.to_json())
    if plan is None or not plan.n_dropouts:
        raise ValueError(
            "`network` must return a model with Dropout layers, made of Dense, Activation, Add, "
            "Multiply, Concatenate, BatchNormalization and LayerNormalization layers only."
        )
