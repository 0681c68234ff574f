"""Regressors of functions: from a table of functions to trained operator networks.

Notation: n functions, q query points, m components.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array

from skuq._params import Interval, StrOptions, fit_context
from skuq._seeds import draw_entropy, generator
from skuq.estimators._api import UncertaintyRegressor, forget_fit
from skuq.estimators._callbacks import tells_callbacks
from skuq.estimators._network_estimator import check_units, training_progress
from skuq.fitted import FittedOperator
from skuq.networks import OPTIMIZERS, OperatorHead, OperatorNetwork
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._builders import refuse_model
from skuq.networks._operator import keras_base
from skuq.networks._operator_head import OUTPUT_MAPS
from skuq.tables import FunctionInputs, FunctionTargets, TrainingData, read_rows
from skuq.tables._functions import flat_values
from skuq.training import Recipe

#: Constraints of the parameters that all regressors of functions have.
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
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


@dataclass(frozen=True, eq=False)
class OperatorTraining:
    """What the networks of one fit are trained with.

    Attributes
    ----------
    base : OperatorNetwork, str or None
        Base network, as `EpistemicNetwork` has it; None with a given base.
    head : OperatorHead
    data : TrainingData
        Rows are pairs of a function's input and a query point, all pairs of a function together.
    n_queries : int
        Rows of one function.
    recipe : Recipe
    by_function : bool
        Whether batches hold whole functions.
    entropy : int
        Decides all random numbers of the fit.
    """

    base: Any
    head: OperatorHead
    data: TrainingData
    n_queries: int
    recipe: Recipe
    by_function: bool
    entropy: int

    @property
    def n_functions(self) -> int:
        """Functions to train on."""
        return len(self.data.x) // self.n_queries

    def row_order(self, *purpose):
        """Return what draws each epoch's order of rows, or None for a plain permutation."""
        if not self.by_function:
            return None
        return _OrderByFunction(self.n_queries, generator(self.entropy, "order", *purpose))


class OperatorRegressor(UncertaintyRegressor):
    """Fit and score of regressors whose targets are functions, known at query points.

    A subclass trains its networks in `_train`. If it accepts a trained model whose predictions
    are kept, it prepares that in `_fit_given`.
    """

    #: `predict` takes it through its keywords, where scikit-learn's routing does not look.
    __metadata_request__predict = {"query_points": None}

    @fit_context(prefer_skip_nested_validation=True)
    @tells_callbacks
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
        forget_fit(self)
        by_column = self.standardize == "columns"
        inputs = FunctionInputs(
            self.query_points, standardize=bool(self.standardize), only_fitted=by_column
        )
        targets = FunctionTargets(
            self.loss,
            self.output_map,
            standardize=bool(self.standardize),
            by_column=by_column or self.query_points is None,
        )
        rows = read_rows(self, inputs, targets, X, Y, sample_weight)
        rows = rows.take(rows.used)
        self.entropy_ = draw_entropy(self.random_state)
        inputs.fit(rows.X)
        targets.fit(rows.y)
        given = self._fit_given(rows.X, inputs, targets)
        if given is None:
            x, y = inputs.transform(rows.X), targets.transform(rows.y)
        else:  # only what the given model leaves is learnt
            x, y = given.features(rows.X), targets.transform(rows.y, given.mean(rows.X))
        job = OperatorTraining(
            base=_build_base(self, inputs, targets) if given is None else None,
            head=targets.head,
            data=TrainingData.without_validation(x, y, targets.pair_weights(rows.y, rows.weight)),
            n_queries=rows.y.shape[1],
            recipe=_recipe(self, *rows.y.shape[:2]),
            by_function=self.batch_size is not None and self.batch_over == "functions",
            entropy=self.entropy_,
        )
        with training_progress(self.verbose) as progress:
            draws = self._train(job, progress.epochs)
        self.fitted_ = FittedOperator(inputs, targets, draws, given)
        return self

    def _fit_given(self, X, inputs, targets):
        """Fit the `GivenBase` of a model whose predictions are kept; None if there is none."""

    def _train(self, job: OperatorTraining, report):
        """Train the networks, and return the `draws` of a `FittedOperator`."""
        raise NotImplementedError

    @property
    def query_points_(self):
        """Query points of the fit."""
        return self.fitted_.inputs.query_points

    @property
    def n_parameters_(self):
        """Number of trained parameters."""
        return sum(len(member.weights) for member in self.fitted_.draws.members)

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


def _recipe(model, n_functions, n_queries) -> Recipe:
    """Make the recipe from an estimator's parameters: whole epochs, for at least `steps` steps."""
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
    return Recipe(
        optimizer=model.optimizer,
        learning_rate=model.learning_rate,
        epsilon=model.epsilon,
        batch_size=batch,
        epochs=-(-n_steps // -(-n_rows // batch)),
        reduce_lr_patience=None,
        early_stopping_patience=None,
        keep="last",
        schedule=model.schedule,
        final_lr_factor=final(n_steps) if callable(final) else final,
        warmup=model.warmup,
        clip_norm=model.clip_norm,
    )


def _build_base(model, inputs, targets):
    """Build the base network: a description, or the JSON of what the user builds."""
    n_inputs, n_queries = len(inputs.scaling.scale_), inputs.query_points.shape[1]
    n_raw = targets.head.n_raw
    if model.build_base is not None:
        refuse_model("`build_base`", model.build_base, "d_u, d_y, n_outputs")
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
        tuple(check_units("encoder_units", model.encoder_units)),
        int(model.latent),
        model.decoder,
        tuple(decoder_units),
        None if model.fourier_scale is None else float(model.fourier_scale),
        model.activation,
        bool(model.factorize),
    )


@dataclass(frozen=True)
class _OrderByFunction:
    """Random orders of rows in which those of a function stay together."""

    n_queries: int
    rng: np.random.Generator

    def __call__(self, n_rows):
        functions = self.rng.permutation(n_rows // self.n_queries)
        return (functions[:, None] * self.n_queries + np.arange(self.n_queries)).ravel()
