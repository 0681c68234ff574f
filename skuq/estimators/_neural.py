"""From a table to trained networks: what ensembles of one architecture share.

An estimator here is a kind of target (numbers or classes) times a way of training:
`RegressionTarget` or `ClassificationTarget`, and a subclass of `NeuralEstimator` whose
`_train` makes the members.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from dataclasses import replace
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from tqdm.auto import tqdm

from skuq._params import Interval, StrOptions, fit_context
from skuq._seeds import draw_entropy, generator, trial_seed
from skuq.estimators._frames import PREPROCESS_CONSTRAINTS
from skuq.estimators._keras_model import KerasModelMixin
from skuq.estimators._records import HEADS
from skuq.estimators._rows import check_groups, check_validation_data, split
from skuq.estimators._targets import TARGET_CONSTRAINTS, GaussianTarget
from skuq.networks import (
    OPTIMIZERS,
    GaussianHead,
    build_mlp,
)
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._plan import make_plan
from skuq.tables import TrainingData
from skuq.training import Recipe, build_checked, predict_members

__all__ = [
    "REGRESSION_CONSTRAINTS",
    "TRAINING",
    "NeuralEstimator",
    "RegressionTarget",
    "check_dropout_layers",
    "check_units",
    "completed",
    "diverged",
    "progress",
]

#: Of the parameters that regressors have and classifiers have not.
REGRESSION_CONSTRAINTS: dict = {
    "loss": [StrOptions({"nll", "mse"})],
    "noise_std": [Interval(Real, 0, None, closed="left"), "array-like", None],
    "scale_l2": [Interval(Real, 0, None, closed="left")],
    **TARGET_CONSTRAINTS,
}

#: Parameters that are fields of the recipe.
TRAINING = (
    "optimizer",
    "learning_rate",
    "batch_size",
    "epochs",
    "early_stopping_patience",
    "schedule",
    "weight_decay",
)

_SMALLEST_NOISE = 1e-9  # of the standardised y, where the user says there is none


class NeuralEstimator(KerasModelMixin, BaseEstimator):
    """A table, one architecture, and members trained on it."""

    _parameter_constraints: dict = {
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
        "verbose": ["verbose"],
    }

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, *, validation_data=None, groups=None):
        """Train the members.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Numbers, booleans, strings and categories, with missing values; see `preprocess`.
        y : array-like of shape (n,) or, of numbers, (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows that all members validate on, instead of a share of the rows above.
        groups : array-like of shape (n,), optional
            Rows of one group are never divided between training and validation; with
            groups all members validate on the same rows. Without effect where there is
            no validation, or with `validation_data`.

        Returns
        -------
        self
        """
        X, y = self._check_table(X, y)
        if hasattr(self, "members_"):  # a fit that fails must not leave half of another
            del self.members_
        self.entropy_ = draw_entropy(self.random_state)
        rows = self._encoded_rows(X, y, sample_weight)
        groups = check_groups(groups, rows.X)
        if validation_data is not None:
            validation_data = check_validation_data(self, validation_data, self._check_targets)
        self._head = self._packed(self._make_head(rows.y.shape[1]))
        data, splits = self._prepare(rows, validation_data, groups)
        model = self._build(data, splits)
        with progress(self.verbose) as report:
            self.members_, self.weights_, splits = self._train(model, data, splits, report)
        self._finish(data, splits)
        return self

    @property
    def _validation_fraction(self):
        return self.validation_fraction

    def _prepare(self, rows, validation_data, groups):
        """`TrainingData`, and each member's own split of it if they have one.

        Where every member has validation rows of its own, all rows are `data.x`.
        """
        labels = self._labels(rows.y)
        if validation_data is not None or self._validation_fraction is None:
            train, valid, splits = rows.take(rows.weight > 0), validation_data, None
        elif self._n_splits is None or groups is not None:
            # Groups differ in size, and the members of a stack have equally many rows.
            rng = generator(self.entropy_, "split")
            train, valid = split(rows, self._validation_fraction, rng, groups, labels)
            train, valid, splits = rows.take(train), rows.take(valid), None
        else:
            used = np.flatnonzero(rows.weight > 0)
            train, valid = rows.take(used), None
            labels = None if labels is None else labels[used]
            rngs = [generator(self.entropy_, "split", k) for k in range(self._n_splits)]
            splits = [split(train, self._validation_fraction, rng, labels=labels) for rng in rngs]
        self._has_validation = splits is not None or valid is not None
        self.scaling_ = self._fit_scaling(train)
        parts = self._scaled(train)
        parts += self._scaled(valid) if valid is not None else tuple(part[:0] for part in parts)
        return TrainingData(*parts), splits

    # A split for each of so many members; None for one that all share.
    _n_splits = None
    # Rate of the dropout layers; None for no such layers.
    _dropout_rate = None

    def _scaled(self, rows):
        return self.scaling_.inputs(rows.X), self._scaled_targets(rows.y), rows.weight

    def _build(self, data, splits):
        """The network, from the user's function or as layers of `hidden_units`."""
        input_shape, n_raw = data.x.shape[1:], self._head.n_raw
        if self.network is not None:
            return build_checked(self.network, input_shape, n_raw, "`network`")
        units = check_units("hidden_units", self.hidden_units)
        if self.activation not in (*ACTIVATIONS, "swish"):
            raise ValueError(
                f"`activation` must be one of {sorted(ACTIVATIONS)}. Got {self.activation!r}."
            )
        scale_l2 = self.scale_l2 if isinstance(self._head, GaussianHead) else 0.0
        return build_mlp(
            input_shape,
            n_raw,
            units,
            activation=self.activation,
            dropout=self._dropout_rate,
            scale_l2=scale_l2,
        )

    def _recipe(self, **settings) -> Recipe:
        own = {"reduce_lr_patience": None, "clip_norm": self.clip_norm, **self._training()}
        if not self._has_validation:
            own |= {"early_stopping_patience": None, "keep": "last"}
        return Recipe(**{**own, **settings})

    def _packed(self, head):
        """The head of a network that may hold several members."""
        return head

    def _training(self):
        """Fields of the recipe that parameters of the same names decide."""
        return {name: getattr(self, name) for name in TRAINING}

    def _seeds(self, n, first=0):
        return [trial_seed(self.entropy_, first + k) for k in range(n)]

    def _finish(self, data, splits):
        """What is estimated after training."""

    def member_estimators(self):
        """Each network as a fitted ensemble of one (of its copies, with `n_copies`).

        Returns
        -------
        list of (str, estimator) tuples
            Of classifiers a pool for ``HQEnsembleSelector(pool, cv="prefit")``.
        """
        check_is_fitted(self)
        pool = []
        for k, member in enumerate(self.members_):
            alone = copy.copy(self)
            alone.members_, alone.weights_ = [member], np.ones(1)
            pool.append((f"member{k}", alone))
        return pool

    def __sklearn_is_fitted__(self):
        return hasattr(self, "members_")

    def _mixture_weights(self, n):
        """Weights (n,) of what `_raw` gives."""
        return self.weights_

    # ``(layer number, rate, shape) -> mask`` of units that predictions drop.
    _dropout_mask = None

    def _members(self):
        return self.members_

    def _raw(self, X):
        """Raw outputs (n_members, n, n_raw)."""
        return predict_members(self.members_, self.scaling_.inputs(X))


class RegressionTarget(GaussianTarget):
    """Numbers, one or several a row, with a Gaussian likelihood or squared error."""

    def _targets(self, y):
        targets = super()._targets(y)
        if self._loss == "mse" and self.noise_std is not None:
            self._check_noise()
        return targets

    def _check_noise(self):
        if self.target_transform != "standard":
            raise ValueError(
                "`noise_std` is in units of y, and with `target_transform="
                f"{self.target_transform!r}` noise has another size for every y. Leave it None, "
                'to be estimated, or take target_transform="standard".'
            )
        try:
            noise = np.broadcast_to(np.asarray(self.noise_std, dtype=float), self._n_outputs)
            usable = (noise >= 0).all() and np.isfinite(noise).all()
        except (TypeError, ValueError):
            usable = False
        if not usable:
            raise ValueError(
                f"`noise_std` must be a number >= 0, or {self._n_outputs} of them, one for each "
                f"output. Got {self.noise_std!r}."
            )

    def _make_head(self, n_outputs):
        return HEADS[self._loss](n_outputs)

    @property
    def _loss(self):
        return self.loss

    def _finish(self, data, splits):
        if self._loss != "mse":
            return
        if self.noise_std is None:
            scale = noise = _residual_std(self.members_, self.weights_, data, splits)
            if self.scaling_.target_transform is None:
                noise = scale * self.scaling_.y_.scale_
        else:
            noise = np.broadcast_to(np.asarray(self.noise_std, dtype=float), self._n_outputs)
            scale = noise / self.scaling_.y_.scale_
        self._head = replace(self._head, scale=tuple(np.maximum(scale, _SMALLEST_NOISE).tolist()))
        self.noise_std_ = float(noise[0]) if self._y_is_1d else noise


@contextlib.contextmanager
def progress(verbose):
    """What a stack reports its epochs to: a bar, if the user wants one."""
    if not verbose:
        yield None
        return
    with tqdm(desc="training", unit="epoch") as bar:
        yield bar.update


def check_units(name: str, given) -> list[int]:
    """The units of each hidden layer, from a parameter of that name."""
    try:
        units = np.atleast_1d(given)
        usable = units.ndim == 1 and units.dtype.kind in "iu" and (units >= 1).all()
    except ValueError:  # ragged
        usable = False
    if not usable or not len(units):
        raise ValueError(f"`{name}` must be positive integers, one a hidden layer. Got {given!r}.")
    return units.tolist()


def completed(members) -> list[int]:
    """Positions of the members among what a stack gave; warns of those that diverged.

    A member whose training loss stopped being finite is left out even if an earlier epoch
    could be kept: one wild member ruins a mixture.

    Raises
    ------
    FloatingPointError
        If none was trained.
    """
    kept = [k for k, member in enumerate(members) if not diverged(member)]
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
        warnings.warn(
            f"{len(members) - len(kept)} of {len(members)} networks diverged and were left out.",
            stacklevel=5,
        )
    return kept


def diverged(member) -> bool:
    """Whether what a stack gave is no member, or one whose loss was not finite throughout."""
    return isinstance(member, FloatingPointError) or not np.isfinite(member.history["loss"]).all()


def check_dropout_layers(model):
    """The plan of a network that drops units.

    Raises
    ------
    ValueError
        If it has no dropout layer, or layers that have to run through Keras.
    """
    plan = make_plan(model.to_json())
    if plan is None or not plan.n_dropouts:
        raise ValueError(
            "`network` must return a model with Dropout layers, made of Dense, Activation, Add, "
            "Multiply, Concatenate, BatchNormalization and LayerNormalization layers only."
        )
    return plan


def _residual_std(members, weights, data, splits):
    """Root mean squared error (n_outputs,): held out where there is anything held out.

    Of the ensemble's mean where its members share their rows, else the members' own.
    """
    if splits is not None and splits[0][1] is not None:
        squares = [
            _mean_square(member.held_out - data.y[rows], data.weight[rows])
            for member, (_, rows) in zip(members, splits)
        ]
        return np.sqrt(np.average(squares, axis=0, weights=weights))
    if len(data.x_valid):
        raw, y, weight = [m.held_out for m in members], data.y_valid, data.weight_valid
    else:
        raw, y, weight = predict_members(members, data.x, once=True), data.y, data.weight
    return np.sqrt(_mean_square(np.average(raw, axis=0, weights=weights) - y, weight))


def _mean_square(error, weight):
    """Weighted mean over rows; plain where float32 has lost every weight."""
    weight = weight if weight.sum() > 0 else None
    return np.average(np.square(error, dtype=float), axis=0, weights=weight)
