"""From rows to a trained mean and raw uncertainty: what NOMU trains, and how.

A mean may be trained with the raw uncertainty, before it (where noise is learnt too), or
be given. Notation: n rows, m outputs, n_sides raw uncertainties an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skuq._registry import saved_as
from skuq._seeds import trial_seed
from skuq.catalog._records import Member
from skuq.estimators._artificial import ArtificialInputs
from skuq.estimators._neural import diverged
from skuq.networks import GaussianHead, NomuHead, build_mean, build_nomu
from skuq.tables import Scaling, TrainingData
from skuq.training import Recipe, build_checked, predict_members

__all__ = ["GivenMean", "Job", "KnownNoise", "NomuNetwork", "NomuTrainer", "RawPrediction"]

_FULL_BATCH = 2**30
_EPOCHS, _LEAST_STEPS = 400, 2000
_LEAST_PATIENCE = 10  # epochs


class RawPrediction(NamedTuple):
    """What networks say of rows, before any calibration.

    `mean` (n, m) in units of y; `raw` (n, n_sides * m) of the standardised y; `noise`
    (n, m), a standard deviation in units of y, or None.
    """

    mean: np.ndarray
    raw: np.ndarray
    noise: np.ndarray | None


@saved_as("estimators.NOMURegressor.GivenMean")
class GivenMean:
    """A trained model whose predictions are the mean, as they are.

    Parameters
    ----------
    model : keras.Model or fitted estimator
    """

    def __init__(self, model):
        self.model = model

    @property
    def is_keras(self) -> bool:
        return hasattr(self.model, "predict_on_batch")

    @property
    def shows_layers(self) -> bool:
        """Whether its hidden layers can be copied: a Keras model of one graph, in float32."""
        if not self.is_keras or getattr(self.model, "input_shape", None) is None:
            return False
        return {layer.compute_dtype for layer in self.model._flatten_layers()} == {"float32"}

    def check(self, n_features: int, names=None) -> None:
        """Raise ValueError if the model is not fitted, or not for features like these.

        Parameters
        ----------
        n_features : int
        names : array-like of shape (n_features,), optional
            Of the columns of X, where they have names.
        """
        if self.is_keras:
            if not self.model.built:
                raise ValueError("`pretrained` is a Keras model without weights: train it first.")
            shape = getattr(self.model, "input_shape", None)
            if shape not in (None, (None, n_features)):  # unknown of subclassed models
                raise ValueError(
                    f"`pretrained` must take inputs of shape (None, {n_features}), as X has "
                    f"{n_features} features. It takes {shape}."
                )
            return
        try:
            if hasattr(self.model, "fit"):  # what only predicts is taken at its word
                check_is_fitted(self.model)
        except NotFittedError as error:
            raise NotFittedError(
                "`pretrained` is not fitted. What clones an estimator, as cross-validation and "
                "searches do, loses what it has learnt: wrap it in sklearn.frozen.FrozenEstimator."
            ) from error
        own_names = getattr(self.model, "feature_names_in_", None)
        if names is not None and own_names is not None and list(names) != list(own_names):
            raise ValueError(
                "X must have the columns that `pretrained` was fitted with, in their order: "
                f"{list(own_names)}. Got {list(names)}."
            )
        wanted = getattr(self.model, "n_features_in_", n_features)
        if wanted != n_features:
            raise ValueError(f"`pretrained` takes {wanted} features. X has {n_features}.")

    def __call__(self, X, n_outputs: int) -> np.ndarray:
        """Predictions (n, n_outputs), bit by bit those of the model."""
        if self.is_keras:
            mean = self.model.predict(X, verbose=0)
        else:
            names = getattr(self.model, "feature_names_in_", None)
            mean = self.model.predict(X if names is None else pd.DataFrame(X, columns=names))
        mean = np.asarray(mean, dtype="float64")
        if mean.size != len(X) * n_outputs or not np.isfinite(mean).all():
            raise ValueError(
                f"`pretrained` must predict finite numbers of shape ({len(X)}, {n_outputs}), like "
                f"y. Got shape {mean.shape}{'' if np.isfinite(mean).all() else ' with NaN or inf'}."
            )
        return mean.reshape(len(X), n_outputs)


@saved_as("estimators.NOMURegressor.KnownNoise")
class KnownNoise:
    """A known standard deviation of the data's noise; ``noise(X) -> (n, n_outputs)``.

    Parameters
    ----------
    noise : float or callable
        ``noise(X) -> (n,)`` or (n, n_outputs), in units of y.
    n_outputs : int
    """

    def __init__(self, noise, n_outputs):
        self.noise, self.n_outputs = noise, n_outputs

    def __call__(self, X):
        if not callable(self.noise):
            return np.full((len(X), self.n_outputs), float(self.noise))
        noise = np.asarray(self.noise(X), dtype="float64")
        usable = (noise >= 0) & np.isfinite(noise)
        if noise.shape not in ((len(X),), (len(X), self.n_outputs)) or not usable.all():
            raise ValueError(
                f"`noise` must be a function that gives finite numbers >= 0 of shape ({len(X)},). "
                f"Got shape {noise.shape}{'' if usable.all() else ', some not such numbers'}."
            )
        return np.broadcast_to(noise.reshape(len(X), -1), (len(X), self.n_outputs))


class Job(NamedTuple):
    """One network to train.

    `train` and `valid` are positions of rows; f stops early on the latter, if there are any,
    or after `mean_epochs`, if that is given.
    """

    model: Any  # NOMURegressor
    train: np.ndarray
    valid: np.ndarray | None = None
    mean_epochs: int | None = None


@saved_as("estimators.NOMURegressor.NomuNetwork")
@dataclass(frozen=True, eq=False)
class NomuNetwork:
    """Trained networks as data: ``network(X) -> RawPrediction``.

    Attributes
    ----------
    head : NomuHead
    scaling : Scaling
    member : Member
        Gives r, and the mean with it where `head.with_mean`.
    mean_member : Member or None
        Gives the mean, and the noise where it is learnt, if these were trained first.
    given : GivenMean or None
    noise : callable or None
        Known noise: from X (n, d) to (n, m), in units of y.
    """

    head: NomuHead
    scaling: Scaling
    member: Member
    mean_member: Member | None = None
    given: GivenMean | None = None
    noise: Callable | None = None

    def __call__(self, X) -> RawPrediction:
        inputs, noise = self.scaling.inputs(X), None
        mean, raw = self.head.split(predict_members([self.member], inputs)[0])
        if self.given is not None:
            mean = self.given(X, self.head.n_outputs)
        else:
            if self.mean_member is not None:
                mean, noise = predict_mean(self.mean_member, inputs, self.head.n_outputs)
            mean, restored = self.scaling.restore(mean, 0.0 if noise is None else noise)
            noise = None if noise is None else restored
        if self.noise is not None:
            noise = self.noise(X)
        return RawPrediction(mean, raw, noise)


def predict_mean(member, inputs, n_outputs):
    """Mean (n, m) and, of a network that learnt noise, its noise (n, m), both standardised."""
    raw = predict_members([member], inputs)[0]
    if raw.shape[1] == n_outputs:
        return raw, None
    return GaussianHead(n_outputs).distribution(raw)


def precision(noise) -> np.ndarray:
    """Weights (n,) of rows by their noise (n, m): Eq. 57 with its rescaling.

    Its terms (a) and (b) are those of Eq. 4 over 2 noise**2, and pi_exp and the L2 penalties
    are to be divided by that too: with a constant noise it is Eq. 4, else that with rows
    weighted by 1 / noise**2, on average 1. Several outputs have the mean of their weights;
    noise far below what is typical counts as a hundredth of that.
    """
    typical = [np.median(own[own > 0]) if own.any() else 1.0 for own in noise.T]
    weights = 1 / np.maximum(noise / typical, 1e-2) ** 2
    return (weights / weights.mean(axis=0)).mean(axis=1)


class NomuTrainer:
    """Trains NOMU's networks on one table.

    Parameters
    ----------
    model : NOMURegressor
        Whose parameters describe the networks and their training.
    rows : Rows
        All rows that may train.
    scaling : Scaling
    given : GivenMean or None
    noise : callable or None
        Known noise, as in `NomuNetwork`.
    source : {"uniform", "grid"}, callable or ndarray
        Of artificial inputs, as in `ArtificialInputs`.
    stops_early : bool
        Whether f trains first, for as long as rows held out are better for it.
    validation : Rows or None
        Rows held out that are not among `rows`.
    """

    def __init__(self, model, rows, scaling, given, noise, source, stops_early, validation):
        self.model, self.scaling, self.given, self.noise = model, scaling, given, noise
        self.rows, self.stops_early = rows, stops_early
        self.validation = validation if stops_early else None
        self.n_outputs = rows.y.shape[1]
        self.artificial = ArtificialInputs(
            source,
            model.n_artificial,
            model.box,
            model.box_margin,
            rows.X,
            self.scaling,
        )
        self.learns_noise = model.noise == "learned"
        self.head = NomuHead(
            self.n_outputs,
            with_mean=given is None and not self.learns_noise and not stops_early,
            n_sides=1 + (model.bounds == "asymmetric"),
            stable=model.stable_loss,
            detached=None if model.connect_gradient else NomuHead.detached,
        )

    def train(self, jobs, report) -> list[NomuNetwork]:
        """A network for each job, side by side where they can be.

        Parameters
        ----------
        jobs : list of Job
            Whose models agree in all but seeds and what recipes of a stack may differ in.
        report : callable or None
            Told the number of epochs run.
        """
        if not jobs:
            return []
        if self.head.with_mean or self.given is not None:
            return self._networks(self._side_by_side(jobs, report), [None] * len(jobs))
        means = self._means(jobs, report)
        if self.learns_noise or self.head.n_sides == 2:  # what r sees of rows is each one's own
            sides = [self._on_top(job, mean, report) for job, mean in zip(jobs, means)]
        else:
            sides = self._side_by_side(jobs, report, means)
        return self._networks(sides, means)

    def refitting(self, model, trained) -> Job:
        """What trains a model on all rows, once parts of them have shown for how long."""
        epochs = None
        if self.stops_early:
            best = [network.mean_member.best_epoch + 1 for network, _ in trained]
            epochs = round(float(np.mean(best)))
        return Job(model, np.arange(len(self.rows.X)), None, epochs)

    def _networks(self, members, mean_members):
        _check_completed(members)
        return [
            NomuNetwork(self.head, self.scaling, member, mean, self.given, self.noise)
            for member, mean in zip(members, mean_members)
        ]

    def _means(self, jobs, report):
        """Members of f, with noise if that is learnt: by themselves, in the first of two steps."""
        gaussian = GaussianHead(self.n_outputs)
        head = gaussian if self.learns_noise else NomuHead(self.n_outputs, n_sides=0)
        targets = self.scaling.targets(self.rows.y)
        data = self._data(targets, self.rows.weight * self._precision(self.rows.X), self.validation)

        def recipe(job):
            changes = {"n_artificial": 0, "loss_settings": ()}
            if job.mean_epochs is not None:
                changes["epochs"] = job.mean_epochs
            elif self.stops_early:
                epochs = self._epochs(job)
                changes["early_stopping_patience"] = max(_LEAST_PATIENCE, epochs // 8)
            return self._recipe(job, **changes)

        template = build_checked(
            self._build_mean, self.rows.X.shape[1:], head.n_raw, "NOMU's network of the mean"
        )
        members = self._stacked(jobs, report, template, head, recipe, data, 1)
        _check_completed(members)
        return members

    def _side_by_side(self, jobs, report, means=None):
        """Members of r, or of both parts at once, where all see the same rows."""
        if self.given is not None:
            mean = self.given(self.rows.X, self.n_outputs)
            targets = (self.rows.y - mean) / self.scaling.y_.scale_
        else:
            targets = self.scaling.targets(self.rows.y)
        data = self._data(targets, self.rows.weight * self._precision(self.rows.X))
        if means is None:
            template, initial = self._template(), None
        else:
            from skuq.training import draw_variables

            initial = []
            for job, mean in zip(jobs, means):
                template = self._template(mean)
                initial.append(draw_variables(template, self._seed(job, 2)))
        return self._stacked(jobs, report, template, self.head, self._recipe, data, 0, initial)

    def _on_top(self, job, mean, report):
        """The member of r for one mean, whose errors and noise decide how much each row says."""
        rows = self.rows.take(job.train)
        loc, noise = predict_mean(mean, self.scaling.inputs(rows.X), self.n_outputs)
        weight = rows.weight * self._precision(rows.X)
        if noise is not None:
            weight = rows.weight * precision(noise)
        data = self._data(self.scaling.targets(rows.y) - loc, weight, rows=rows)
        alone = [job._replace(train=np.arange(len(rows.X)), valid=None)]
        template = self._template(mean)
        return self._stacked(alone, report, template, self.head, self._recipe, data, 0)[0]

    def _stacked(self, jobs, report, template, head, recipe_of, data, purpose, initial=None):
        """A member for each job; those with equally many rows and epochs in one program."""
        from skuq.training import train_stack

        members: list[Any] = [None] * len(jobs)
        recipes = [recipe_of(job) for job in jobs]
        kinds = [(len(job.train), recipe.epochs) for job, recipe in zip(jobs, recipes)]
        for kind in sorted(set(kinds)):
            own = [k for k in range(len(jobs)) if kinds[k] == kind]
            validates = self.stops_early and purpose == 1
            trained = train_stack(
                template,
                head,
                [recipes[k] for k in own],
                data,
                [self._seed(jobs[k], purpose) for k in own],
                splits=[(jobs[k].train, jobs[k].valid if validates else None) for k in own],
                initial=None if initial is None else [initial[k] for k in own],
                artificial=self.artificial,
                report=report,
            )
            for k, member in zip(own, trained):
                members[k] = member
        return members

    @staticmethod
    def _seed(job, purpose):
        return trial_seed(job.model.entropy_, purpose)

    def _precision(self, X):
        """Weights of rows by their known noise."""
        if self.noise is None:
            return np.ones(len(X))
        return precision(self.noise(X))

    def _data(self, targets, weight, validation=None, rows=None):
        X = self.scaling.inputs((rows or self.rows).X)
        if validation is None:
            return TrainingData.without_validation(X, targets, weight)
        held_out = self.scaling.inputs(validation.X), self.scaling.targets(validation.y)
        return TrainingData(X, targets, weight, *held_out, validation.weight)

    def _template(self, mean=None):
        """The network that gives r, and the mean with it if that trains beside it."""
        model, given = self.model, None
        if mean is not None:
            from skuq.training import keras_model

            given = keras_model(mean), 1.0, 0.0
        elif self.given is not None and not self.given.shows_layers:
            given = "apart"
        elif self.given is not None:  # the network's inputs are standardised, the model's are not
            x = self.scaling.x_
            given = self.given.model, x.scale_.tolist(), x.mean_.tolist()

        def build(input_shape, n_raw):
            return build_nomu(
                input_shape,
                self.n_outputs,
                hidden_units=model.hidden_units_,
                side_hidden_units=model.side_hidden_units_,
                activation=model.activation,
                connect_layers=model.connect_layers,
                n_sides=self.head.n_sides,
                l2=model.l2,
                side_l2=model.side_l2,
                initial_range=model.initial_range,
                build_f=model.build_f,
                build_r=model.build_r,
                given=given,
                sample=None if self.given is None else self.scaling.inputs(self.rows.X),
            )

        return build_checked(build, self.rows.X.shape[1:], self.head.n_raw, "NOMU's network")

    def _build_mean(self, input_shape, n_raw):
        model = self.model
        return build_mean(
            input_shape,
            n_raw,
            hidden_units=model.hidden_units_,
            activation=model.activation,
            l2=model.l2,
            initial_range=model.initial_range,
            build_f=model.build_f,
        )

    def _epochs(self, job):
        """So many as are asked for, or as make enough steps of few rows."""
        if job.model.epochs is not None:
            return job.model.epochs
        batch_size = job.model.batch_size or len(job.train)
        return max(_EPOCHS, -(-_LEAST_STEPS // -(-len(job.train) // batch_size)))

    def _recipe(self, job, **changes):
        model = job.model
        settings = {
            "optimizer": model.optimizer,
            "learning_rate": model.learning_rate,
            "batch_size": _FULL_BATCH if model.batch_size is None else model.batch_size,
            "epochs": self._epochs(job),
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            "clip_norm": model.clip_norm,
            "n_artificial": self.artificial.n_each,
            "loss_settings": tuple(
                (name, float(getattr(model, name))) for name in ("pi_sqr", "pi_exp", "c_exp")
            ),
        }
        return Recipe(**{**settings, **changes})


def _check_completed(members):
    wild = [member for member in members if diverged(member)]
    if wild:
        reason = f" ({wild[0]})" if isinstance(wild[0], FloatingPointError) else ""
        raise FloatingPointError(
            f"{len(wild)} of {len(members)} networks diverged{reason}. Try a smaller "
            "`learning_rate`, smaller `pi_sqr`, `pi_exp` or `c_exp`, `clip_norm=1.0` or "
            "`stable_loss=True`."
        )
