"""What regressors of functions share: data, base network, training, and predictions.

Notation: n inputs, q query points, m components, S draws; values are (n, q, m) inside, and in
the shape of the user's Y outside.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from skuq._checks import check_count
from skuq._params import Interval, StrOptions, fit_context
from skuq._seeds import draw_entropy, generator
from skuq.estimators._base import UncertaintyRegressorMixin
from skuq.estimators._functions import FunctionScaling, check_queries, flat_values
from skuq.estimators._neural import check_units, progress
from skuq.estimators._rows import check_weights
from skuq.networks import OPTIMIZERS
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._operator import OperatorNetwork, keras_base
from skuq.networks._operator_head import OUTPUT_MAPS, OperatorHead
from skuq.networks._plan import ARRAYS
from skuq.predictive import EpistemicNormal, GaussianMixture, Posterior, Uncertainty
from skuq.training import Recipe

__all__ = ["OPERATOR_CONSTRAINTS", "OperatorRegressor"]

_SMALLEST_STD = 1e-9  # of the standardised values: a distribution needs some width

#: Of the parameters that all regressors of functions have.
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
    "steps": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    "batch_over": [StrOptions({"pairs", "functions"})],
    "optimizer": [StrOptions(set(OPTIMIZERS))],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "schedule": [StrOptions({"constant", "cosine", "exponential"})],
    "final_lr_factor": [Interval(Real, 0, 1, closed="right")],
    "warmup": [Interval(Real, 0, 1, closed="both")],
    "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
    "standardize": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class OperatorRegressor(UncertaintyRegressorMixin, BaseEstimator):
    """A regressor whose targets are functions, known at query points.

    A subclass gives ``_train(data, n_queries, recipe, order, report)``, which leaves its
    networks behind, ``_raw(rows, index)``, their raw draws, ``_index(n_draws, rng)``, what tells
    draws apart, and ``_posterior(index, query_points)``.
    """

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, Y, sample_weight=None):
        """Train the network.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
            Finite numbers: each row is the input of one function.
        Y : array-like of shape (n,), (n, q) or (n, q, m)
            The functions' values at the q query points, with m components each.
        sample_weight : array-like of shape (n,), optional
            Of each function; non-negative.

        Returns
        -------
        self
        """
        self.__dict__.pop("scaling_", None)  # a fit that fails must not leave half of another
        Y, self._shape = flat_values(Y)
        X, values = validate_data(
            self, X, Y, dtype="float64", multi_output=True, y_numeric=True, ensure_min_samples=1
        )
        self.entropy_ = draw_entropy(self.random_state)
        weight = check_weights(sample_weight, X)
        used = weight > 0
        X, weight = X[used], weight[used]
        shape = {0: (1, 1), 1: (*self._shape, 1)}.get(len(self._shape), self._shape)
        values = values[used].astype("float64").reshape(-1, *shape)
        self.query_points_ = self._checked_queries(values.shape[1])
        scaling = FunctionScaling(
            self.standardize, self.query_points is None, self.output_map == "bounded"
        )
        scaling.fit(X, self.query_points_, values)
        self._head = OperatorHead(values.shape[2], *self._loss_and_map(values.shape[2]))
        loss = self.loss
        if loss == "auto":
            loss = "relative" if values.shape[1] > 1 else "squared"
        rows, targets = self._prepare(X, values, scaling)
        data = scaling.data(rows, targets, values, weight, loss == "relative")
        n_queries = values.shape[1]
        recipe, order = self._recipe(len(X), n_queries)
        with progress(self.verbose) as report:
            self._train(data, n_queries, recipe, order, report)
        self.index_ = self._index(getattr(self, "n_draws", 0), generator(self.entropy_, "index"))
        self.scaling_ = scaling
        return self

    def _checked_queries(self, n_queries):
        if self.query_points is None:
            return np.linspace(0.0, 1.0, n_queries)[:, None]
        queries = check_queries(self.query_points)
        if len(queries) != n_queries:
            raise ValueError(
                f"`query_points` must have one row for each of the {n_queries} query points of Y. "
                f"Got {len(queries)}."
            )
        return queries

    def _loss_and_map(self, n_components):
        kind = self.loss if self.loss in ("huber", "nll") else "squared"
        if kind == "nll" and self.output_map is not None:
            raise ValueError("loss='nll' has a standard deviation to give and takes no output_map.")
        if callable(self.output_map):
            _check_output_map(self.output_map, n_components)
        return kind, self.output_map

    def _prepare(self, X, values, scaling):
        """Rows and standardised targets to train on."""
        return scaling.rows(X, self.query_points_), scaling.scaled(values)

    def _recipe(self, n_functions, n_queries):
        """How to train, and what makes each epoch's order of rows from a generator, or None."""
        n_rows = n_functions * n_queries
        batch = n_rows if self.batch_size is None else self.batch_size
        order = None
        if self.batch_size is not None and self.batch_over == "functions":
            batch *= n_queries
            order = functools.partial(_ByFunction, n_queries)
        recipe = Recipe(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            batch_size=batch,
            epochs=-(-self.steps // -(-n_rows // batch)),
            reduce_lr_patience=None,
            early_stopping_patience=None,
            keep="last",
            schedule=self.schedule,
            final_lr_factor=self.final_lr_factor,
            warmup=self.warmup,
            clip_norm=self.clip_norm,
            n_draws=self._n_draws_a_step,
        )
        return recipe, order

    _n_draws_a_step = 0

    def _base(self):
        """The base network: a description, or the JSON of what the user builds."""
        n_inputs, n_queries = self.n_features_in_, self.query_points_.shape[1]
        n_raw = self._head.n_raw
        if self.build_base is not None:
            model = self.build_base(n_inputs, n_queries, n_raw)
            return keras_base(model, n_inputs, n_queries, n_raw)
        decoder_units = check_units("decoder_units", self.decoder_units)
        if self.decoder == "split" and self.latent < len(decoder_units):
            raise ValueError(
                "A split decoder cuts the latent vector into one chunk a hidden layer: `latent` "
                f"must be at least {len(decoder_units)}. Got {self.latent}."
            )
        return OperatorNetwork(
            n_inputs,
            n_queries,
            n_raw,
            tuple(check_units("encoder_units", self.encoder_units)),
            int(self.latent),
            self.decoder,
            tuple(decoder_units),
            None if self.fourier_scale is None else float(self.fourier_scale),
            self.activation,
            bool(self.factorize),
        )

    # -- predictions ---------------------------------------------------------------------

    def predict(self, X, return_std=False, query_points=None):
        """Mean of the draws, and on request the total standard deviation.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        return_std : bool, default=False
        query_points : array-like of shape (q, d_y), optional
            Any points, also others than those of `fit`, which are the default. Columns
            without query points of their own have no others.

        Returns
        -------
        mean : ndarray of shape (n[, q[, m]])
        std : ndarray of the same shape
            Only if `return_std`; in units of Y.
        """
        parts = self.predict_uncertainty(X, query_points)
        return (parts.mean, parts.total) if return_std else parts.mean

    def predict_uncertainty(self, X, query_points=None) -> Uncertainty:
        """Mean and standard deviations by source.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        Uncertainty
            Named tuple of mean, aleatoric, epistemic and total, each of shape (n[, q[, m]]) in
            units of Y. Only loss="nll" has an aleatoric part.
        """
        distribution = self.predict_distribution(X, query_points)
        shape = self._outer_shape(query_points)
        return Uncertainty(*(part.reshape(-1, *shape) for part in distribution.uncertainty()))

    def predict_distribution(self, X, query_points=None):
        """The predictive distribution of each value, as a record.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        EpistemicNormal or GaussianMixture
            Of shape (n,) where values are single numbers, else (n, q * m), components beside
            each other: a normal with the draws' mean and standard deviation, or of loss="nll"
            the mixture of all draws (Eq. 5).
        """
        check_is_fitted(self)
        X = self._check_inputs(X)
        mean, scale = self._values(X, self.index_, query_points)
        width = (-1,) if self._outer_shape(query_points) else ()
        mean = mean.reshape(*mean.shape[:2], *width)
        if scale is not None:
            return GaussianMixture(mean, scale.reshape(mean.shape))
        unit = np.broadcast_to(self.scaling_.scale_, self._inner_shape(query_points))
        least = _SMALLEST_STD * unit.reshape(width or ())
        std = np.maximum(mean.std(axis=0), least)
        return EpistemicNormal(self._centre(X, mean, query_points), np.zeros_like(std), std)

    def _centre(self, X, draws, query_points):
        """The prediction, from draws (S, ...)."""
        return draws.mean(axis=0)

    def predict_interval(self, X, coverage=0.9, query_points=None):
        """Central interval that should hold each value with probability `coverage`.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        coverage : float, default=0.9
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        ndarray of shape (n, 2[, q[, m]])
            Lower end first.

        Raises
        ------
        ValueError
            If coverage is outside (0, 1).
        """
        interval = self.predict_distribution(X, query_points).interval(coverage)
        return interval.reshape(len(interval), 2, *self._outer_shape(query_points))

    def predict_quantiles(self, X, quantiles=(0.05, 0.5, 0.95), query_points=None):
        """Quantiles of each value.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        quantiles : array-like of shape (k,), default=(0.05, 0.5, 0.95)
            Probabilities, strictly between 0 and 1.
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        ndarray of shape (n, k[, q[, m]])

        Raises
        ------
        ValueError
            If a probability is outside (0, 1).
        """
        levels = np.atleast_1d(quantiles)
        values = self.predict_distribution(X, query_points).quantile(levels)
        return values.reshape(len(values), len(levels), *self._outer_shape(query_points))

    def sample_y(self, X, n_samples=1, random_state=None, query_points=None):
        """Joint draws: each is one function of inputs and queries.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        ndarray of shape (n[, q[, m]], n_samples)
            With loss="nll" every value has noise of its own.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        X = self._check_inputs(X)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        draws, scale = self._values(X, self._drawn(n_samples, rng), query_points)
        if scale is not None:
            draws = draws + scale * rng.standard_normal(draws.shape)
        draws = draws.reshape(n_samples, len(X), *self._outer_shape(query_points))
        return np.moveaxis(draws, 0, -1)

    def _drawn(self, n, rng):
        """What tells n draws at random apart."""
        return self._index(n, rng, independent=True)

    def log_prob(self, X, y):
        """Log density of each function's values under its predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        y : array-like of shape (n[, q[, m]])

        Returns
        -------
        ndarray of shape (n,)
            In nats; the sum over all values, taken as independent within a draw.
        """
        return super().log_prob(X, flat_values(y)[0])

    def score(self, X, y, sample_weight=None):
        """Coefficient of determination of the mean, weighted by the variance of each value.

        A query at which all functions agree has no say in it.

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

    def posterior_fn(self, n_draws=128, random_state=None, query_points=None) -> Posterior:
        """Draws of the function as a record for Bayesian optimisation, with exact gradients.

        Parameters
        ----------
        n_draws : int, default=128
        random_state : int, RandomState instance or None, default=None
            Of the draws, which stay the same from then on.
        query_points : array-like of shape (q, d_y), optional
            As in `predict`.

        Returns
        -------
        Posterior
            Without noise. Its `key` is equal for fits of equal networks and shapes.
        """
        check_is_fitted(self)
        check_count("n_draws", n_draws)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        return self._posterior(self._index(n_draws, rng), query_points)

    def _queries(self, query_points):
        if query_points is None:
            return self.query_points_
        if self.query_points is None:
            raise ValueError(
                "The columns of Y have no query points of their own: give `query_points` to the "
                "estimator before fitting, to predict at others."
            )
        return check_queries(query_points, self.query_points_.shape[1])

    def _inner_shape(self, query_points):
        return len(self._queries(query_points)), self._head.n_outputs

    def _outer_shape(self, query_points):
        """Shape of one function's values as the user has them."""
        q, m = self._inner_shape(query_points)
        return {0: () if q == 1 else (q,), 1: (q,)}.get(len(self._shape), (q, m))

    def _values(self, X, index, query_points):
        """Draws (S, n, q, m) in units of Y, and of a likelihood its standard deviations."""
        queries = self._queries(query_points)
        raw = self._raw(self.scaling_.rows(X, queries), index)
        mean, scale = self._head.values(ARRAYS, raw)
        shape = (len(raw), len(X), len(queries), self._head.n_outputs)
        mean = mean.reshape(shape) * self.scaling_.scale_ + self.scaling_.mean_
        return mean, None if scale is None else scale.reshape(shape) * self.scaling_.scale_

    def __sklearn_is_fitted__(self):
        return hasattr(self, "scaling_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_output_map(output_map, n_components):
    from skuq.backend import ops

    shape = (2, 3, n_components)
    values = output_map(ops.zeros(shape))
    if not ops.is_tensor(values) or tuple(values.shape) != shape:
        raise ValueError(
            "`output_map` must be a function of `keras.ops` that keeps shapes: from a tensor "
            f"{shape} to one. Got {type(values).__name__} {np.shape(values)}."
        )


@dataclass(frozen=True)
class _ByFunction:
    """Orders of rows in which those of a function stay together."""

    n_queries: int
    rng: np.random.Generator

    def __call__(self, n_rows):
        functions = self.rng.permutation(n_rows // self.n_queries)
        return (functions[:, None] * self.n_queries + np.arange(self.n_queries)).ravel()
