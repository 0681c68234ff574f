"""Base of the regressors of functions: validate, scale, and train operator networks.

Notation: n functions, q query points, m components.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array

from skuq._checks import first_true
from skuq._params import Interval, StrOptions
from skuq._seeds import draw_entropy
from skuq.estimators._base import UncertaintyRegressor, fits, training_progress
from skuq.estimators._operator_training import OperatorTraining
from skuq.estimators._operator_widths import FEWEST_FUNCTIONS
from skuq.fitted import FittedOperator
from skuq.fitted._operator import Widths
from skuq.networks import OPTIMIZERS, OperatorNetwork
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._builders import check_builder
from skuq.networks._mlp import check_units
from skuq.networks._operator import keras_base
from skuq.networks._operator_head import OUTPUT_MAPS
from skuq.tables import FunctionInputs, FunctionTargets, TrainingData, read_rows
from skuq.tables._functions import flat_values
from skuq.training import Recipe

#: Constraints of the parameters that all regressors of functions share.
OPERATOR_CONSTRAINTS: dict = {
    "query_points": ["array-like", None],
    "encoder_units": ["array-like", Interval(Integral, 1, None, closed="left")],
    "latent": [Interval(Integral, 1, None, closed="left")],
    "decoder": [StrOptions({"split", "concat"})],
    "decoder_units": ["array-like", Interval(Integral, 1, None, closed="left")],
    "fourier_scale": [Interval(Real, 0, None, closed="neither"), None],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "factorize": ["boolean"],
    "build_base": [callable, None],
    "output_map": [StrOptions(set(OUTPUT_MAPS)), callable, None],
    "loss": [StrOptions({"auto", "relative", "squared", "huber", "nll"})],
    "noise": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left"), "array-like"],
    "steps": [Interval(Integral, 1, None, closed="left"), callable],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    "batch_over": [StrOptions({"pairs", "functions"})],
    "optimizer": [StrOptions(set(OPTIMIZERS))],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "epsilon": [Interval(Real, 0, None, closed="neither")],
    "schedule": [StrOptions({"constant", "cosine", "exponential"})],
    "final_lr_factor": [Interval(Real, 0, 1, closed="right"), callable],
    "warmup": [Interval(Real, 0, 1, closed="both")],
    "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
    "standardize": ["boolean", StrOptions({"columns"})],
    "refine": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


class OperatorRegressor(UncertaintyRegressor):
    """Base class of regressors whose targets are functions, known at query points.

    A subclass trains its networks in `_train`. One that accepts a given model makes its
    `GivenBase` in `_given_base`.
    """

    #: `predict` takes it through its keywords, where scikit-learn's routing does not look.
    __metadata_request__predict = {"query_points": None}

    #: Given model, if a subclass accepts one.
    pretrained: Any = None

    @fits
    def fit(self, X, Y, sample_weight=None):
        """Train the networks.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
            Finite numbers: each row is the input of one function.
        Y : array-like of shape (n,), (n, q) or (n, q, m)
            The functions' values at the q query points, with m components each.
        sample_weight : array-like of shape (n,), optional
            Weight of each function; non-negative.

        Returns
        -------
        self
        """
        previous = getattr(self, "fitted_", None) if self.warm_start else None
        inputs, targets = self._inputs(), self._targets()
        rows = read_rows(self, inputs, targets, X, Y, sample_weight)
        rows = rows.take(rows.used)
        learns_noise = self._learns_noise(len(rows.y))
        self._check_parameters(learns_noise)
        if self._leaves_out(len(rows.y), learns_noise):
            previous = None  # networks must not have seen the functions that they leave out
        given = self._fit_scales(rows, inputs, targets, previous)
        if given is None:
            x, y = inputs.transform(rows.X), targets.transform(rows.y)
        else:  # learn the residuals of the given model
            x, y = given.features(rows.X), targets.transform(rows.y, given.mean(rows.X))
        self.entropy_ = draw_entropy(self.random_state)
        job = OperatorTraining(
            base=_build_base(self, inputs, targets) if given is None else None,
            head=targets.head,
            data=TrainingData.without_validation(x, y, targets.pair_weights(rows.y, rows.weight)),
            n_queries=rows.y.shape[1],
            recipe=_recipe(self, *rows.y.shape[:2]),
            by_function=self.batch_size is not None and self.batch_over == "functions",
            entropy=self.entropy_,
            weight=rows.weight,
            learns_noise=learns_noise,
            noise=self._known_noise(targets),
            expects_none=isinstance(self.noise, str) and not learns_noise,
            refine=self.refine,
            previous=() if previous is None else tuple(previous.draws.members),
        )
        if learns_noise and not job.can_leave_out:
            job = replace(job, learns_noise=False, noise=job.noise_of_repeats()[0])
        with training_progress(self.verbose) as progress:
            draws, widths = self._train(job, progress.epochs)
        self.fitted_ = FittedOperator(
            inputs, targets, draws, given, _make_widths(widths, job, targets)
        )
        return self

    def _inputs(self):
        """Make the unfitted inputs."""
        return FunctionInputs(
            self.query_points,
            standardize=bool(self.standardize),
            only_fitted=self.standardize == "columns",
        )

    def _targets(self):
        """Make the unfitted targets."""
        return FunctionTargets(
            self.loss,
            self.output_map,
            standardize=bool(self.standardize),
            by_column=self.standardize == "columns" or self.query_points is None,
            narrow_constants=self.pretrained is None,
        )

    def _leaves_out(self, n_functions, learns_noise):
        """Tell whether networks may leave functions out."""
        return learns_noise

    def _learns_noise(self, n_functions):
        """Tell whether the noise is learnt, from functions that networks leave out."""
        # A given model has seen the functions that would be left out.
        is_asked = isinstance(self.noise, str) and self.loss != "nll" and self.pretrained is None
        return is_asked and n_functions >= self._fewest_to_learn_noise()

    def _fewest_to_learn_noise(self):
        """Return the least number of functions from which the noise is learnt."""
        return FEWEST_FUNCTIONS

    def _check_parameters(self, learns_noise):
        """Raise ValueError if parameters contradict each other."""
        if not isinstance(self.noise, str):
            noise = np.asarray(self.noise, dtype="float64")
            if not (noise >= 0).all() or not np.isfinite(noise).all():
                raise ValueError(f"`noise` must be finite numbers >= 0. Got {self.noise!r}.")
            if self.loss == "nll" and noise.any():
                raise ValueError("loss='nll' learns the noise: leave `noise` out.")
        if self.refine and (reason := first_true(self._conflicts_with_refine(learns_noise))):
            raise ValueError(
                f"`refine=True` fits the squared error of data without noise, and is not possible "
                f"with {reason}. Set noise=0.0 and leave out what changes the loss."
            )

    def _conflicts_with_refine(self, learns_noise):
        """List what `refine` is not possible with, and whether it is set."""
        is_noisy = learns_noise or (not isinstance(self.noise, str) and np.any(self.noise))
        return {
            f"loss={self.loss!r}": self.loss in ("huber", "nll"),
            "`output_map`": self.output_map is not None,
            "`pretrained`": self.pretrained is not None,
            "`build_base`": self.build_base is not None,
            f"noise={self.noise!r}": is_noisy,
        }

    def _fit_scales(self, rows, inputs, targets, previous):
        """Learn all scales, or keep those of a previous fit, to which its weights belong.

        Returns
        -------
        GivenBase or None
            The given model, if there is one.
        """
        if previous is None:
            inputs.fit(rows.X)
            targets.fit(rows.y)
        else:
            inputs.take_scales(previous.inputs, rows.X)
            targets.take_scales(previous.targets, rows.y)
        given = self._given_base(inputs, targets)
        if given is None:
            return None
        if previous is None or previous.given is None:
            return given.fit(rows.X)
        return given.take_scales(previous.given)

    def _given_base(self, inputs, targets):
        """Make the unfitted `GivenBase` of a given model; None without one."""

    def _known_noise(self, targets):
        """Compute the noise's standard deviation in standardised values; 0 if it is not known."""
        noise = 0.0 if isinstance(self.noise, str) else np.asarray(self.noise, dtype="float64")
        n_columns, m = targets.scale_.shape
        if m == 1 and n_columns > 1 and np.shape(noise) == (n_columns,):
            noise = noise[:, None]  # one for each column of y
        try:
            return np.broadcast_to(noise, targets.scale_.shape) / targets.scale_
        except ValueError as error:
            n_outputs, each = (n_columns, "columns") if m == 1 else (m, "components")
            raise ValueError(
                f"`noise` must be one number, or one for each of the {n_outputs} {each} of y. Got "
                f"shape {noise.shape}."
            ) from error

    def _train(self, job: OperatorTraining, report):
        """Train the networks.

        Returns
        -------
        draws
            See `FittedOperator`.
        widths : tuple of two ndarrays of shape (1, m) or (q, m), or None
            Learnt factor of the epistemic part, and learnt standard deviation of the noise of
            standardised values; None if they are not learnt.
        """
        raise NotImplementedError

    @property
    def members_(self):
        """Trained networks as data."""
        return list(self.fitted_.draws.members)

    @property
    def noise_std_(self):
        """Standard deviation of the noise."""
        widths = self.fitted_.widths
        scale = self.fitted_.targets.scale_
        noise = np.zeros_like(scale) if widths is None else widths.noise
        return noise if len(noise) > 1 else noise[0]

    @property
    def query_points_(self):
        """Query points of the fit."""
        return self.fitted_.inputs.query_points

    @property
    def n_parameters_(self):
        """Number of trained parameters."""
        return sum(len(member.weights) for member in self.members_)

    def score(self, X, y, sample_weight=None):
        """Compute the coefficient of determination of the mean, weighted by each value's variance.

        A query point at which all functions agree has no influence.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        y : array-like of shape (n[, q[, m]])
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float
        """
        y = check_array(flat_values(y)[0], ensure_2d=False, dtype="float64", input_name="y")
        return r2_score(
            y,
            flat_values(self.predict(X))[0],
            sample_weight=sample_weight,
            multioutput="variance_weighted",
        )


def _make_widths(learnt, job, targets):
    """Make the widths of predictions, in units of Y: learnt, of the known noise, or None."""
    if learnt is not None:
        factor, noise = learnt
    elif job.noise.any():
        factor, noise = np.ones_like(job.noise), job.noise
    else:
        return None
    return Widths(factor, noise * targets.scale_)


def _recipe(model, n_functions, n_queries) -> Recipe:
    """Make the recipe of an estimator: the fewest whole epochs with at least `steps` steps."""
    n_steps = model.steps(n_functions) if callable(model.steps) else model.steps
    if not isinstance(n_steps, Integral) or n_steps < 1:
        raise ValueError(
            f"`steps` must give an integer >= 1. Got {n_steps!r} for {n_functions} functions."
        )
    final = model.final_lr_factor
    n_rows = n_functions * n_queries
    batch = n_rows if model.batch_size is None else model.batch_size
    if model.batch_size is not None and model.batch_over == "functions":
        batch *= n_queries
    n_steps_per_epoch = math.ceil(n_rows / batch)
    return Recipe(
        optimizer=model.optimizer,
        learning_rate=model.learning_rate,
        epsilon=model.epsilon,
        batch_size=batch,
        epochs=math.ceil(n_steps / n_steps_per_epoch),
        reduce_lr_patience=None,
        early_stopping_patience=None,
        keep="last",
        schedule=model.schedule,
        final_lr_factor=final(n_steps) if callable(final) else final,
        warmup=model.warmup,
        clip_norm=model.clip_norm,
    )


def _build_base(model, inputs, targets):
    """Build the base network: its description, or the JSON of the model that the user builds."""
    n_inputs, n_queries = len(inputs.scaling.scale_), inputs.query_points.shape[1]
    n_raw = targets.head.n_raw
    if model.build_base is not None:
        check_builder("`build_base`", model.build_base, "d_u, d_y, n_outputs")
        built = model.build_base(n_inputs, n_queries, n_raw)
        return keras_base(built, n_inputs, n_queries, n_raw)
    decoder_units = check_units("decoder_units", model.decoder_units)
    if model.decoder == "split" and model.latent < len(decoder_units):
        raise ValueError(
            "A split decoder cuts the latent vector into one chunk a hidden layer: `latent` "
            f"must be at least {len(decoder_units)}. Got {model.latent}."
        )
    return OperatorNetwork(
        n_inputs,
        n_queries,
        n_raw,
        encoder_units=tuple(check_units("encoder_units", model.encoder_units)),
        latent=int(model.latent),
        decoder=model.decoder,
        decoder_units=tuple(decoder_units),
        fourier_scale=None if model.fourier_scale is None else float(model.fourier_scale),
        activation=model.activation,
        factorized=bool(model.factorize),
    )
