"""Base classes of all estimators: they predict from `fitted_`; decorator of `fit`, pickling, list.

Every estimator has the attribute `fitted_`, a `Fitted` of ``skuq/fitted``. Shapes below are for n
rows, m outputs, q quantiles and C classes; the output axis is absent where y was 1-D.
"""

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

import skuq
from skuq import _params, backend
from skuq._messages import Progress, listening
from skuq._random import random_generator
from skuq.files._registry import PickledByValue, make_read_only
from skuq.networks._keras_models import register_again, registered_in_main
from skuq.predictive import CategoricalMixture, Posterior, _distributions
from skuq.predictive._distributions import ClassUncertainty, Interval, Uncertainty
from skuq.tables._functions import FunctionInputs
from skuq.tables._inputs import add_input_tags


def training_progress(verbose: Any) -> Progress:
    """Show the progress of trainings, in epochs."""
    return Progress("training", "epoch", verbose=verbose)


class Given(NamedTuple):
    """The user's arguments of `fit`."""

    X: Any
    y: Any
    sample_weight: Any = None
    validation_data: Any = None  # a tuple (X, y[, sample_weight])
    groups: Any = None
    shift_validation: Any = None
    others: Mapping[str, Any] = {}  # arguments that are handed on to other estimators


@dataclass(frozen=True, eq=False)
class Fit:
    """Result of a family's `_fit`.

    Attributes
    ----------
    fitted : Fitted
        Fitted model, which becomes the attribute `fitted_`.
    attributes : dict
        Other fitted attributes that the estimator takes over, by name.
    """

    fitted: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)


def unfitted_copy(estimator: Any) -> Any:
    """Copy an estimator with its parameters and without the results of a fit.

    scikit-learn's `validate_data` writes to the estimator that it gets, which is this copy.
    """
    copied = object.__new__(type(estimator))  # `copy` would call what subclasses make of it
    vars(copied).update(_without_results(estimator))
    return copied


def input_attributes(estimator: Any) -> dict[str, Any]:
    """List what scikit-learn's `validate_data` has written: number and names of features."""
    return {name: value for name, value in vars(estimator).items() if name.endswith("_in_")}


def _without_results(estimator: Any) -> dict[str, Any]:
    """List the attributes of an estimator that are no results of a fit."""
    state = vars(estimator).items()
    return {k: value for k, value in state if k.startswith("__") or not k.endswith("_")}


def _summarise(
    estimator: Any, X: Any, summary: Callable[[Any], Any], n_levels: int = 1, /, **query: Any
) -> Any:
    """Summarise the predicted distributions of blocks of rows; see `Fitted.summarise`."""
    return estimator.fitted_.summarise(_validate(estimator, X, query), summary, n_levels, **query)


def _validate(estimator: Any, X: Any, query: Mapping[str, Any]) -> Any:
    """Validate X, and refuse keywords that predictions of this model do not take."""
    inputs = estimator.fitted_.inputs
    if unknown := {*query} - ({"query_points"} if isinstance(inputs, FunctionInputs) else set()):
        raise TypeError(f"Predictions of {type(estimator).__name__} take no {min(unknown)!r}.")
    return inputs.validate(X, estimator)


def _oracles_by_value(params: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap parameters that are oracles of Keras-Tuner, which hold lambdas, for a pickle."""
    oracle: Any = getattr(backend.loaded("keras_tuner"), "Oracle", ())  # none without it
    return {name: PickledByValue(v) for name, v in params.items() if isinstance(v, oracle)}


def _layers_of_script(params: Mapping[str, Any]) -> dict[str, Any]:
    """Find the registered layers of a script or notebook, if a parameter is of it.

    They reach the workers of joblib by value, together with the function that builds networks of
    them, but without the decorators that have registered them with Keras.
    """
    if not any(map(_is_of_script, params.values())):
        return {}
    # Only classes that a pickle can refer to by name.
    main, registered = sys.modules["__main__"], registered_in_main().items()
    return {k: c for k, c in registered if getattr(main, c.__qualname__, None) is c}


def _is_of_script(value: Any) -> bool:
    """Tell whether a function or object, or a direct part of it, is of ``__main__``.

    Parts are the elements of a collection, or the attributes and the function of an object.
    """
    value = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, tuple | list):
        function = getattr(value, "func", getattr(value, "__func__", None))  # partials, methods
        value = [value, function, *getattr(value, "__dict__", {}).values()]
    return any(getattr(part, "__module__", None) == "__main__" for part in value)


def _make_with_layers(layers: dict[str, Any], make: Any, arguments: tuple[Any, ...]) -> Any:
    register_again(layers)
    return make(*arguments)


class Predictor(_params.CallbackSupportMixin, BaseEstimator):  # type: ignore[misc]
    """Base of regressors and classifiers: reads settings, pickles, and predicts from `fitted_`."""

    #: Parameters that are settings: their short forms by name.
    _settings: ClassVar[Mapping[str, Mapping[Any, Any]]] = {}

    #: How rows are held out, the parameter `validation`; None if none are.
    @property
    def _held_out(self) -> Any:
        return getattr(self, "validation", None)

    #: Whether estimators that are fitted inside skip the validation of their parameters: not those
    #: that the user gives.
    _skips_nested_validation: ClassVar[bool] = True

    #: Compute the fit of validated parameters: ``_fit(given) -> Fit``. It reads the estimator, with
    #: what an earlier fit has left, and never writes to it.
    _fit: ClassVar[Callable[..., Fit]]

    # Underflows are harmless, also where the caller has NumPy raise an error.
    @np.errstate(under="ignore")
    def _fit_by(self, given: Given) -> Any:
        """Validate the parameters, call `_fit`, and take its results over in one step.

        Until then, what was fitted before predicts, also in other threads. It stays if the new fit
        fails or is interrupted.
        """
        context = _params.fit_context(prefer_skip_nested_validation=self._skips_nested_validation)
        return context(Predictor._fit_with_callbacks)(self, given)

    def _fit_with_callbacks(self, given: Given) -> Any:
        # scikit-learn (1.9 and later) calls callbacks at the start, for each step that `Progress`
        # counts, and at the end, when they can use the fitted estimator. After an error
        # `fit_context` ends them. Without callbacks of its own, an estimator inside of another one
        # is silent.
        if not getattr(self, "_skl_callbacks", None):
            with listening(None):
                return self._take_over(self._fit(given))
        context = self._init_callback_context(max_subtasks=None)
        context.call_on_fit_task_begin(estimator=self, X=given.X, y=given.y)

        def count(unit: str, n: int) -> None:
            for _ in range(n):
                step = context.subcontext(task_name=unit)
                step.call_on_fit_task_begin(estimator=self)
                step.call_on_fit_task_end(estimator=self)

        with listening(count):
            self._take_over(self._fit(given))
        context.call_on_fit_task_end(
            estimator=self, X=given.X, y=given.y, reconstruction_attributes={}
        )
        return self

    def _take_over(self, fit: Fit) -> Any:
        """Become the fitted estimator: the only place that writes results, in one swap."""
        results = {**fit.attributes, "fitted_": fit.fitted}
        make_read_only(results)
        self.__dict__ = {**_without_results(self), **results}
        return self

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        # Arrays of a pickle can be changed again.
        make_read_only([value for name, value in vars(self).items() if name.endswith("_")])

    @functools.cached_property
    def fitted_(self) -> Any:
        # Asked for only as long as the object has no such attribute. So everything that a fitted
        # model gives raises NotFittedError, which is an AttributeError.
        raise NotFittedError(
            f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with appropriate "
            "arguments before using this estimator."
        )

    def set_params(self, **params: Any) -> Any:
        """Set parameters of the estimator, also inside of its settings.

        Parameters
        ----------
        **params
            Values by name. ``search__kappa`` is the parameter `kappa` of the settings `search`; if
            `search` is a short form such as "agebo", it is replaced by the object that it stands
            for.

        Returns
        -------
        self
        """
        return super().set_params(**_params.replace_short_forms(self, params))

    _exports_keras = False  # whether the fitted model is an ensemble of networks

    @available_if(operator.attrgetter("_exports_keras"))  # type: ignore[untyped-decorator]
    def to_keras(self, ddof: int = 0) -> Any:
        """Build one Keras model of the whole ensemble, for example to be served or exported.

        It holds copies of the weights, with scaling before and mixing after the networks.
        ``model.save("model.keras")`` saves it. (With tabular networks, a process that loads it
        needs ``from skuq.networks import NumericEmbedding`` first, which registers the layers.)
        ``model.export(folder)`` writes a SavedModel that needs neither Keras nor skuq.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Degrees of freedom of the epistemic variance of regressors, as in `uncertainty` of
            `predict_distribution`.

        Returns
        -------
        keras.Model
            Model with float64 inputs of shape (n, n_features), or images. They are the output of
            `preprocessor_.transform`, which is X itself if it holds finite numbers only. The
            networks inside compute in float32, so that outputs agree with `predict_uncertainty` to
            about six digits. Call it (``model(X)``) or use `predict_on_batch`: Keras' `predict`
            rounds X to float32 first, which is exact for years but not for seconds since 1970.
            Outputs are a dictionary with the names of `predict_uncertainty`: for regressors "mean",
            "aleatoric", "epistemic" and "total" of shape (n,) or (n, m), in units of y; for
            classifiers "proba" of shape (n, m), in the order of `classes_`, and "total",
            "aleatoric" and "epistemic" of shape (n,), in nats.
            Categories that `fit` did not see are zeros in these inputs, and predicted by them
            without more uncertainty, other than by the estimator: `preprocessor_.transform` warns
            of them.

        Raises
        ------
        ValueError
            If the mixture's moments cannot be computed in Keras: with a `target_transform`, or MC
            dropout.
        """
        return self.fitted_.to_keras(ddof)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle an estimator with parameters that are oracles, or of a script with layers."""
        # (function, arguments, attributes, ..), of which only the attributes are of interest.
        reduced = BaseEstimator.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced  # a subclass with a form of its own
        make, arguments, state, *rest = reduced
        params = {name: state[name] for name in self._get_param_names() if name in state}
        if layers := _layers_of_script(params):
            make, arguments = _make_with_layers, (layers, make, arguments)
        return make, arguments, {**state, **_oracles_by_value(params)}, *rest

    def __copy__(self) -> Any:
        """Copy an estimator with everything that it holds, which a pickle of it may not."""
        copied = object.__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __sklearn_tags__(self) -> Any:
        return add_input_tags(super().__sklearn_tags__(), getattr(self, "preprocess", None))


class UncertaintyRegressor(RegressorMixin, Predictor):  # type: ignore[misc]
    """Prediction methods of all regressors.

    Methods' keywords `query` are the `query_points` of regressors of functions; others take none.

    Examples
    --------
    >>> from skuq import DeepEnsembleRegressor
    >>> from skuq.estimators import UncertaintyRegressor
    >>> issubclass(DeepEnsembleRegressor, UncertaintyRegressor)
    True
    """

    @np.errstate(under="ignore")
    def predict_distribution(self, X: Any, **query: Any) -> Any:
        """Predict the distribution of each row.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        **query
            Regressors of functions take ``query_points``, an array-like of shape (q, d_y), which
            can be any points; by default those of `fit`.

        Returns
        -------
        object
            Distribution with means, parts of the variance, cdf, quantile, log_prob, sample and,
            if one exists, `to_tfp()`; for most estimators a `skuq.predictive.GaussianMixture`.
            The values of a function are one row of (n, q * m).
        """
        return self.fitted_.distribution(_validate(self, X, query), **query)

    def predict_uncertainty(self, X: Any, **query: Any) -> Uncertainty:
        """Predict means, and standard deviations by source.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        **query
            See `predict_distribution`.

        Returns
        -------
        Uncertainty
            Named tuple of mean, aleatoric, epistemic and total, each of shape (n[, m])
            in units of y; ``total**2 == aleatoric**2 + epistemic**2``.
        """
        parts = _summarise(self, X, lambda distribution: distribution.uncertainty(), **query)
        shape = self.fitted_.output_shape(**query)
        return Uncertainty(*(part.reshape(len(part), *shape) for part in parts))

    def predict(self, X: Any, return_std: bool = False, **query: Any) -> Any:
        """Predict means, and on request total standard deviations.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        return_std : bool, default=False
            Also return standard deviations.
        **query
            See `predict_distribution`.

        Returns
        -------
        mean : ndarray of shape (n[, m])
        std : ndarray of shape (n[, m])
            Total standard deviations in units of y, returned if `return_std`.
        """
        if return_std:
            parts = self.predict_uncertainty(X, **query)
            return parts.mean, parts.total
        mean = self.fitted_.predict_mean(_validate(self, X, query), **query)
        return mean.reshape(len(mean), *self.fitted_.output_shape(**query))

    def predict_interval(self, X: Any, coverage: Any = 0.9, **query: Any) -> Interval:
        """Predict the central interval that contains y with probability `coverage`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        coverage : float or array-like of shape (k,), default=0.9
            Probability of the interval, or of each of k intervals, in (0, 1).
        **query
            See `predict_distribution`.

        Returns
        -------
        Interval
            Named pair of the lower and upper ends, each of shape (n[, m]), or (n, k[, m]) for
            several coverages. They are quantiles of the predictive distribution.

        Raises
        ------
        ValueError
            If coverage is outside (0, 1).
        """

        def interval_of(distribution: Any) -> Interval:
            quantile = functools.partial(self.fitted_.quantile, distribution)
            return _distributions.central_interval(quantile, coverage)

        ends = _summarise(self, X, interval_of, 2 * np.size(coverage), **query)
        # The values of a function are columns of the distribution, and get their axes back.
        shape = *ends[0].shape[: 1 + np.ndim(coverage)], *self.fitted_.output_shape(**query)
        return Interval(*(end.reshape(shape) for end in ends))

    def predict_quantiles(
        self, X: Any, quantiles: Any = (0.05, 0.5, 0.95), **query: Any
    ) -> np.ndarray:
        """Predict quantiles of the distribution itself, not of a moment-matched normal.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        quantiles : float or array-like of shape (q,), default=(0.05, 0.5, 0.95)
            Probabilities, strictly between 0 and 1.
        **query
            See `predict_distribution`.

        Returns
        -------
        ndarray of shape (n, q[, m])

        Raises
        ------
        ValueError
            If a probability is outside (0, 1).
        """
        levels, quantile = np.atleast_1d(quantiles), self.fitted_.quantile
        values = _summarise(self, X, lambda d: quantile(d, levels), levels.size, **query)
        return values.reshape(*values.shape[:2], *self.fitted_.output_shape(**query))

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = None, **query: Any
    ) -> np.ndarray:
        """Draw targets jointly: each draw is one function for all rows, plus noise of each row.

        All rows of a draw share what is epistemic: they come from one member of an ensemble, one
        function of NEON or one multiple of NOMU's model uncertainty. Noise is drawn anew for every
        row and draw, with the correlation of the outputs' errors on held-out rows; that of NEON is
        independent. So totals, counts and simulated paths may be computed from each draw.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=None
            Seed of the draws.
        **query
            See `predict_distribution`.

        Returns
        -------
        ndarray of shape (n[, m], n_samples)

        Raises
        ------
        ValueError
            If `n_samples` is not a positive whole number.
        """
        n_samples = _params.check_count("n_samples", n_samples)
        X, rng = _validate(self, X, query), random_generator(random_state)
        return self.fitted_.sample(X, n_samples, rng, **query)

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Compute the log density of each row's y under its predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        y : array-like of shape (n[, m])
            Observed targets.

        Returns
        -------
        ndarray of shape (n,)
            Joint log density of all outputs, which are correlated as in `sample_y`, in nats; the
            density is per units of y. The values of a function are treated as independent.

        Raises
        ------
        ValueError
            If y has another shape.
        """
        distribution = self.predict_distribution(X)
        y = check_array(
            _params.fill_masked(y), ensure_2d=False, allow_nd=True, dtype="float64", input_name="y"
        )
        # The distribution would also take tables of several values of each row.
        n, outputs = np.shape(X)[0], self.fitted_.output_shape()
        if len(y) != n or y[0].size != math.prod(outputs):
            raise ValueError(f"y must have shape {(n, *outputs)}. Got {y.shape}.")
        return distribution.log_prob(y.reshape(-1, y[0].size) if outputs else y.ravel())

    _has_posterior = True  # whether fitted models can draw functions

    @available_if(operator.attrgetter("_has_posterior"))  # type: ignore[untyped-decorator]
    def posterior_fn(self, n_draws: int = 128, random_state: Any = None, **query: Any) -> Posterior:
        """Return draws of the function for Bayesian optimisation, with exact gradients.

        Parameters
        ----------
        n_draws : int, default=128
            Number of draws. The draws of an ensemble are its members, repeated in proportion to
            their weights; `n_draws` is then only used if the weights are not fractions with a
            smaller denominator.
        random_state : int, RandomState instance or None, default=None
            Seed of the draws, which do not change afterwards.
        **query
            See `predict_distribution`.

        Returns
        -------
        Posterior
            Draws without noise: their mean and standard deviation are the mean and the epistemic
            part of `predict_uncertainty`. A draw of NOMU is the
            prediction plus a multiple of its standard deviation, the same for all rows; with
            asymmetric bounds it is a quantile, and the draws' mean is that of `TwoPieceNormal`,
            not its mode. `key` is equal for fits of equal networks. It is None, without
            gradients, if layers or a `pretrained` model run only in Keras, or if `preprocess` or
            `target_transform` change numbers.

        Raises
        ------
        ValueError
            If `n_draws` is not a positive whole number, or is 1 for NOMU.
        """
        _params.check_count("n_draws", n_draws)
        return self.fitted_.posterior(int(n_draws), random_generator(random_state), **query)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class UncertaintyClassifier(ClassifierMixin, Predictor):  # type: ignore[misc]
    """Prediction methods of all classifiers, whose `classes_` are in the order of class codes.

    Examples
    --------
    >>> from skuq import DeepEnsembleClassifier
    >>> from skuq.estimators import UncertaintyClassifier
    >>> issubclass(DeepEnsembleClassifier, UncertaintyClassifier)
    True
    """

    @np.errstate(under="ignore")
    def predict_distribution(self, X: Any) -> CategoricalMixture:
        """Predict the distribution of each row's class.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.

        Returns
        -------
        CategoricalMixture
            Distribution of class codes, with mean, mode, std, entropies, log_prob, sample and
            `to_tfp()`.
        """
        return self.fitted_.distribution(_validate(self, X, {}))

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Predict class probabilities, averaged over the members.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        return_std : bool, default=False
            Also return standard deviations.

        Returns
        -------
        proba : ndarray of shape (n, C)
            Probabilities, with columns in the order of `classes_`.
        std : ndarray of shape (n, C)
            Standard deviation of each probability over members, returned if `return_std`.
        """

        def summary(distribution: CategoricalMixture) -> Any:
            # Rounding can make weights sum to more than 1.
            proba = np.minimum(distribution.mean, 1.0)
            return (proba, distribution.std) if return_std else proba

        return _summarise(self, X, summary)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Predict the logarithm of the averaged class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, C)
            Log probabilities in nats; about -708 instead of -inf for a probability of 0.
        """
        return _summarise(self, X, lambda distribution: distribution.log_mean)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the most probable class, and on request the members' disagreement about it.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        return_std : bool, default=False
            Also return standard deviations.

        Returns
        -------
        labels : ndarray of shape (n,)
            Predicted labels.
        std : ndarray of shape (n,)
            Standard deviation over members of the predicted class' probability, returned if
            `return_std`.
        """

        def summary(distribution: CategoricalMixture) -> Any:
            mode = distribution.mode
            labels = self.classes_[mode]
            return (labels, distribution.std[np.arange(len(mode)), mode]) if return_std else labels

        return _summarise(self, X, summary)

    def predict_uncertainty(self, X: Any) -> ClassUncertainty:
        """Predict the entropy of each row's class, by source.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ClassUncertainty
            Named tuple of total, aleatoric and epistemic, each of shape (n,), in nats and
            never negative; ``total == aleatoric + epistemic``.
        """
        return _summarise(self, X, lambda distribution: distribution.uncertainty())

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw labels jointly: each draw takes one member for all rows.

        Given the member, the labels of rows are drawn independently with its probabilities. So
        counts of labels may be computed from each draw.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows to predict.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=None
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n, n_samples)
            Drawn labels.
        """
        n_samples = _params.check_count("n_samples", n_samples)
        fitted = self.fitted_
        X = fitted.inputs.validate(X, self)
        return self.classes_[fitted.sample(X, n_samples, random_generator(random_state))]

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Compute the log of the averaged probability of each row's label.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,)
            Observed labels, which must be in `classes_`.

        Returns
        -------
        ndarray of shape (n,)
            Log probabilities in nats; about -708 instead of -inf for a probability of 0.

        Raises
        ------
        ValueError
            If y has labels that are not in `classes_`, or another number of rows than X.
        """
        distribution = self.predict_distribution(X)
        y = column_or_1d(_params.fill_masked(y))
        check_consistent_length(distribution.mean, y)
        return distribution.log_prob(_params.class_codes(y, self.classes_))


_KINDS: dict[str, type] = {
    "classifier": ClassifierMixin,
    "regressor": RegressorMixin,
    "transformer": TransformerMixin,
}


def all_estimators(type_filter: Any = None) -> list[tuple[str, type]]:
    """List the estimators of skuq, like `sklearn.utils.discovery.all_estimators`.

    Parameters
    ----------
    type_filter : {"classifier", "regressor", "transformer"}, list of these or None, default=None
        Kinds of estimators to list. None lists all, pipelines included.

    Returns
    -------
    list of (str, type) tuples
        Names and classes, sorted by name.

    Raises
    ------
    ValueError
        If there is no such kind.

    Examples
    --------
    >>> from skuq import all_estimators
    >>> [name for name, _ in all_estimators("classifier")][:2]
    ['AutoDEUQClassifier', 'CalibratedUncertaintyClassifier']
    """
    kinds = [type_filter] if isinstance(type_filter, str) else type_filter
    if unknown := [kind for kind in kinds or () if kind not in _KINDS]:
        raise ValueError(f"`type_filter` must be of {sorted(_KINDS)}. Got {unknown}.")
    mixins = (BaseEstimator,) if kinds is None else tuple(_KINDS[kind] for kind in kinds)
    # Packages and functions have lower-case names: they are not loaded for this.
    public = [(n, getattr(skuq, n)) for n in sorted(vars(skuq)["__all__"]) if n[0].isupper()]
    return [(name, cls) for name, cls in public if issubclass(cls, mixins)]
