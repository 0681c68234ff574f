"""Settings of a search with their checks, and the surrogate that is fitted to its results."""

import copy
import inspect
import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel
from sklearn.metrics import r2_score
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from skuq import _params
from skuq._params import parameters
from skuq._random import MAX_SEED, generator, quasi_random_normals, trial_seed
from skuq.backend._scopes import one_thread_if_small
from skuq.bayesopt._acquisition import ACQUISITIONS, Acquisition
from skuq.bayesopt._results import Domain, Results
from skuq.predictive import Posterior


@dataclass(eq=False, repr=False)
class MultiStart(_params.Settings):
    """Maximise acquisition functions by climbing from many starts.

    Parameters
    ----------
    method : {"auto", "lbfgs", "scipy"}, default="auto"
        See `maximize_acquisition`.
    n_restarts : int, default=500
        Number of starts from a Latin hypercube, at most 2**20.

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer, MultiStart
    >>> search = BayesianOptimizer(
    ...     GaussianProcessRegressor(), [(0, 1)], maximizer=MultiStart(n_restarts=50)
    ... )
    """

    method: str = "auto"
    _: KW_ONLY
    n_restarts: int = 500

    _parameter_constraints = {
        "method": [_params.StrOptions({"auto", "lbfgs", "scipy"})],
        "n_restarts": [_params.Interval(Integral, 1, 2**20, closed="both")],
    }


class Direct(_params.Settings):
    """Maximise acquisition functions by SciPy's DIRECT, as in NOMU's code."""

    method = "direct"
    n_restarts = 1  # DIRECT takes no starts


#: Short forms of the parameters of a search that are settings.
SHORT_FORMS: dict[str, Mapping[Any, Any]] = {
    "acquisition": ACQUISITIONS,
    "maximizer": {
        "auto": MultiStart,
        "lbfgs": lambda: MultiStart("lbfgs"),
        "scipy": lambda: MultiStart("scipy"),
        "direct": Direct,
    },
}
# Constraints of the parameters of a search; of settings, once short forms are resolved.
_CONSTRAINTS: dict = {
    "acquisition": _params.settings_constraint(ACQUISITIONS, Acquisition),
    "objective": [callable, None],
    "maximizer": [
        *_params.settings_constraint(SHORT_FORMS["maximizer"], MultiStart),
        _params.Hidden(Direct),
    ],
    "n_draws": [_params.Interval(Integral, 2, None, closed="left")],
    "n_initial": [_params.Interval(Integral, 1, None, closed="left")],
    "noisy": ["boolean"],
    "direction": [_params.StrOptions({"maximize", "minimize"})],
}


@dataclass(frozen=True, eq=False)
class SearchSettings:
    """Everything that decides a step besides results and pending points.

    Parameters of `BayesianOptimizer` under their names, where `domain` holds its bounds. `entropy`
    is the seed, `n_steps` the expected number of steps, and `search` an object that stands for the
    search. Raise TypeError or ValueError if a parameter is wrong.
    """

    estimator: Any
    domain: Domain
    acquisition: Acquisition
    objective: Callable[..., Any] | None
    maximizer: MultiStart | Direct
    n_draws: int
    n_initial: int
    noisy: bool
    direction: str
    entropy: int
    n_steps: int
    search: Hashable

    def __post_init__(self) -> None:
        check_surrogate(self.estimator)
        _params.validate_parameter_constraints(_CONSTRAINTS, vars(self), "BayesianOptimizer")

    @property
    def sign(self) -> int:
        """Sign of values that are maximised."""
        return 1 if self.direction == "maximize" else -1


#: What a fit raises if it fails numerically: another seed may help.
FIT_ERRORS = (FloatingPointError, np.linalg.LinAlgError)
N_ATTEMPTS = 2  # seeds that are tried if a fit fails


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A fitted surrogate and its posterior; `settings` are those of the last step that used it."""

    settings: SearchSettings
    model: Any
    posterior: Posterior
    seconds: float


class Fits:
    """Fits the surrogate to results; keeps the last fit, which pending points do not change."""

    def __init__(self) -> None:
        self.last: Surrogate | None = None
        self._key: tuple = ()

    def surrogate(self, settings: SearchSettings, results: Results, *, keep=True) -> Surrogate:
        """Find the surrogate of these results, or fit it.

        With `keep` it becomes the last fit; the results must then be those of evaluations, not
        predictions. If the fit fails numerically, another seed is tried.

        Raises
        ------
        FloatingPointError, LinAlgError
            If the fit fails with every seed.
        """
        # Results are only ever added, so that their counts identify them. The key keeps the
        # estimator alive: another one could have its id later.
        key = (len(results.X), len(results.failed), settings.estimator, settings.n_draws)
        if keep and self.last is not None and key == self._key:
            self.last = replace(self.last, settings=settings, seconds=0.0)
            return self.last
        for attempt in range(N_ATTEMPTS):
            entropy = derived_seed(settings.entropy, "step", results.n_told, attempt)
            try:
                surrogate = _fit(settings, results, entropy)
                break
            except FIT_ERRORS:
                if attempt == N_ATTEMPTS - 1:
                    raise
        if keep:
            self.last, self._key = surrogate, key
        return surrogate


def _fit(settings, results, entropy) -> Surrogate:
    """Fit a seeded clone to the results."""
    start, X = time.perf_counter(), settings.domain.encode(results.X)
    model = _clone_with_seed(settings.estimator, trial_seed(entropy, 0))
    # Networks have large arrays of their own, and limit threads themselves.
    n_rows = math.inf if hasattr(settings.estimator, "posterior_fn") else len(X)
    with one_thread_if_small(n_rows):
        model = model.fit(X, results.outputs)
    seed = derived_seed(entropy, "posterior", 0)
    posterior = posterior_of(model, settings.n_draws, seed, results.outputs.shape[1:])
    return Surrogate(settings, model, posterior, time.perf_counter() - start)


def _clone_with_seed(estimator, seed):
    """Clone an estimator and seed its `random_state` and those of all its parts."""
    model = clone(estimator)
    # A clone copies callable objects, but programs are found by the same object.
    params = estimator.get_params(deep=True)
    functions = {n: v for n, v in params.items() if callable(v) and not hasattr(v, "get_params")}
    model.set_params(**functions)
    names = sorted(model.get_params(deep=True))
    names = [name for name in names if name == "random_state" or name.endswith("__random_state")]
    seeds = np.random.default_rng(seed).integers(1, MAX_SEED, size=len(names))
    return model.set_params(**{name: int(value) for name, value in zip(names, seeds)})


def derived_seed(entropy: int, *purpose: str | int) -> int:
    """Draw the seed of a purpose from the entropy of a search or of a step."""
    return int(generator(entropy, *purpose).integers(1, MAX_SEED))


def check_surrogate(estimator) -> None:
    """Raise TypeError if draws cannot be had of a regressor once it is fitted."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TypeError(
            "`estimator` must be a regressor, an object and not its class or name. "
            f"Got {estimator!r}."
        )
    # A pipeline predicts as its last step does, and draws of a calibrated model are the model's.
    while isinstance(estimator, Pipeline) or not getattr(estimator, "_has_posterior", True):
        steps = getattr(estimator, "steps", None)
        estimator = steps[-1][1] if steps else estimator.estimator
    if hasattr(estimator, "predict_proba"):
        raise TypeError(f"`estimator` must be a regressor. Got the classifier {estimator!r}.")
    if isinstance(estimator, TransformedTargetRegressor):
        raise TypeError(
            "The standard deviation of a TransformedTargetRegressor is not in units of y. Give the "
            "regressor inside, and let it standardise y itself: all of skuq do, and "
            "GaussianProcessRegressor does with `normalize_y=True`."
        )
    if hasattr(estimator, "posterior_fn") or not hasattr(estimator, "predict"):
        return  # a search or another wrapper may have `predict` only once it is fitted
    parameters = inspect.signature(estimator.predict).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if "return_std" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise TypeError(
            "`estimator` must have `posterior_fn`, or predict(X, return_std=True): "
            f"{type(estimator).__name__} has no uncertainty to search by, and a calibration adds "
            "noise only. DeepEnsembleRegressor(network=...) trains any Keras architecture with it."
        )


def posterior_of(estimator, n_draws, random_state, output_shape):
    """Get draws of a fitted regressor's function.

    They are the estimator's own, if it has `posterior_fn`. Otherwise the posterior is in NumPy and
    not joint: a draw is the mean plus z standard deviations, with one normal z for all rows, and
    outputs are independent. `output_shape` is the shape of one row's outputs, which scikit-learn
    flattens.
    """
    if hasattr(estimator, "posterior_fn"):
        return estimator.posterior_fn(n_draws=n_draws, random_state=random_state)
    estimator = _without_noise(estimator)
    rng = np.random.default_rng(random_state)
    normals = quasi_random_normals(n_draws, math.prod(output_shape), rng)

    def function(xp, arguments, X):
        mean, std = _params.predict_normal(estimator, X)
        std = np.broadcast_to(std, mean.shape).reshape(len(X), *output_shape)
        mean = mean.reshape(std.shape)
        # (n, *output_shape) by (n_draws, 1, *output_shape): one z for all rows of a draw
        return mean + std * arguments[0].reshape(n_draws, 1, *output_shape)

    return Posterior(
        function, (normals,), key=None, n_draws=n_draws, output_shape=output_shape, joint=False
    )


def _without_noise(estimator):
    """Copy a regressor so that Gaussian processes in it predict deviations of the function.

    scikit-learn adds the noise of a `WhiteKernel` to them, which makes every point promising.
    """
    if any(True for _ in _white_kernels(estimator)):  # others may hold what cannot be copied
        estimator = copy.deepcopy(estimator)
        for part in _white_kernels(estimator):
            part.noise_level = 0.0
    return estimator


def _white_kernels(estimator):
    """Yield the kernels of noise of fitted Gaussian processes."""
    for model in getattr(estimator, "estimators_", [estimator]):
        kernel = getattr(_params.unwrap_estimator(model)[0], "kernel_", None)
        if isinstance(kernel, Kernel):
            parts = kernel, *kernel.get_params().values()
            yield from (part for part in parts if isinstance(part, WhiteKernel))


@parameters("bayesopt.OutputwiseRegressor", kind="estimator", kw_only=False)
class OutputwiseRegressor(RegressorMixin, BaseEstimator):
    """Fit a clone of a regressor to each output.

    With a Gaussian process this is the composite surrogate of Astudillo and Frazier (2019) with
    independent outputs.

    Parameters
    ----------
    estimator : object
        Regressor of one output.

    Attributes
    ----------
    estimators_ : list
        The fitted clones, one for each output.
    n_features_in_ : int
        Number of features seen by `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.
    output_shape_ : tuple of int
        Shape of the outputs of one row; () if y was 1-D.

    References
    ----------
    Astudillo and Frazier (2019), "Bayesian optimization of composite functions", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import OutputwiseRegressor
    >>> X = np.linspace(0, 1, 5)[:, None]
    >>> one = GaussianProcessRegressor(optimizer=None)  # a clone is fitted to each output
    >>> model = OutputwiseRegressor(one).fit(X, np.hstack([X, 2 * X]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((5, 2), (5, 2))
    """

    estimator: Any

    def fit(self, X, y):
        """Fit a clone to each output.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,), (n, m) or (n, q, d_s)

        Returns
        -------
        self
        """
        values = np.asarray(y)
        self.output_shape_ = values.shape[1:]
        y = _params.check_targets(values.reshape(len(values), -1) if values.ndim > 2 else y, self)
        X = validate_data(self, X, dtype="float64")
        check_consistent_length(X, y)
        self.estimators_ = [clone(self.estimator).fit(X, one) for one in y.reshape(len(y), -1).T]
        return self

    def predict(self, X, return_std=False):
        """Predict means, and standard deviations on request.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of the shape of y
        std : ndarray of the shape of y
            If `return_std`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype="float64")
        shape = (len(X), *self.output_shape_)
        if not return_std:
            return np.stack([e.predict(X) for e in self.estimators_], axis=1).reshape(shape)
        parts = zip(*(e.predict(X, return_std=True) for e in self.estimators_))
        mean, std = (np.stack(columns, axis=1).reshape(shape) for columns in parts)
        return mean, std

    def score(self, X, y, sample_weight=None):
        """Compute the coefficient of determination of the means, averaged over the outputs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of the shape of `fit`
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float
        """
        predicted = self.predict(X)
        y, predicted = (np.reshape(values, (len(predicted), -1)) for values in (y, predicted))
        return r2_score(y, predicted, sample_weight=sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
