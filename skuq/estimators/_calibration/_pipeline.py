"""Pipelines that predict uncertainty."""

from __future__ import annotations

import functools
import inspect
import threading

import sklearn.pipeline
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skuq._utils._checks import unwrap_estimator
from skuq._utils._records import saved_as
from skuq.backend import in_thread
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor, doc_link_template
from skuq.estimators._searches._search import SearchEstimator

_STEPS = ("steps", "transformer_list")  # parameters of pipelines and unions
# Arguments of `fit` that hold rows like those of X.
_VALIDATION_ROWS = ("X_val", "validation_data", "shift_validation")


def _transform_rows(name, rows, transform):
    """Transform X of validation rows, given as X, as a tuple (X, y, ...) or as several tuples.

    Anything else is returned unchanged, and the estimator refuses it.
    """
    if name.endswith("X_val"):
        return transform(rows)
    if not isinstance(rows, tuple | list):
        return rows
    if name.endswith("shift_validation") and all(isinstance(part, tuple) for part in rows):
        return [(transform(X), *others) for X, *others in rows]
    X, *others = rows
    return transform(X), *others


def _delegate(documented):
    """Make a method that transforms X, then calls the method of this name of the last step.

    Its signature and docstring are those of `documented`, where X or its like comes first. Methods
    that pipelines of scikit-learn have are theirs, except with `return_std`, which searches, and
    pipelines under metadata routing, do not take. If the method returns the last step, the
    pipeline is returned.
    """
    name, signature = documented.__name__, inspect.signature(documented)
    # `predict`, `predict_proba` and `score`
    inherited = name in vars(sklearn.pipeline.Pipeline)

    # Raises the AttributeError that names the method.
    @available_if(lambda pipeline: getattr(unwrap_estimator(pipeline)[0], name))
    @functools.wraps(documented)
    def method(self, *args, **params):
        signature.bind(self, *args, **params)  # raises TypeError
        with _take_over_lock:  # a refit in another thread replaces all steps or none
            steps, _ = _copy_steps(self, share=True)  # what changes is shared with the last step
        has_std = "return_std" in params or (args[1:] and name != "score")
        if inherited and not has_std:
            return getattr(super(UncertaintyPipeline, steps), name)(*args, **params)
        check_is_fitted(steps)
        X, *others = args or (params.pop(list(signature.parameters)[1], None),)
        last, X = unwrap_estimator(steps, X)
        result = getattr(last, name)(X, *others, **params)
        return self if result is last else result

    return method


_take_over_lock = threading.Lock()


def _is_fitted_in_place(step):
    """Tell whether a step is an estimator, or another plain Python object that `fit` changes."""
    plain = type(step).__new__ is object.__new__ and hasattr(step, "__dict__")
    return isinstance(step, BaseEstimator) or (plain and hasattr(step, "fit"))


def _copy_steps(pipeline, *, share=False):
    """Copy a pipeline and its steps, inner pipelines and unions too, which are fitted in place.

    With `share`, a step and its copy have the same attributes, until a fit replaces those of one.

    Returns
    -------
    copied : object
        Estimator with the attributes of the given one.
    pairs : list of (object, object) tuples
        Each object that has been copied, and its copy.
    """
    copied, attributes = object.__new__(type(pipeline)), vars(pipeline)
    has_steps = any(isinstance(attributes.get(name), list | tuple) for name in _STEPS)
    copied.__dict__ = attributes if share and not has_steps else dict(attributes)
    pairs = [(pipeline, copied)]
    for steps in _STEPS:
        if isinstance(attributes.get(steps), list | tuple):
            inner = []
            for name, step, *others in attributes[steps]:
                if _is_fitted_in_place(step):
                    step, own = _copy_steps(step, share=share)
                    pairs += own
                inner.append((name, step, *others))
            setattr(copied, steps, inner)
    return copied, pairs


def _find_parts(step, found):
    """Add estimators that a step has as attributes, and theirs, to `found`, with their attributes.

    A fit of the step may fit them as they are. A copy of the step shares them.
    """
    for part in vars(step).values():
        if _is_fitted_in_place(part) and id(part) not in found:
            found[id(part)] = part, dict(vars(part))
            _find_parts(part, found)


@in_thread  # an interrupt would leave old steps beside new ones
def _take_over(pairs):
    """Give each object the attributes of its copy."""
    with _take_over_lock:
        for old, copied in pairs:
            old.__dict__ = vars(copied)


def _fit_a_copy(documented):
    """Make a method that fits: it fits copies of the steps, which take over at the end.

    Until then, and after a fit that fails, the steps of an earlier fit predict together.
    """
    name = documented.__name__

    # Raises the AttributeError that names the method.
    @available_if(lambda pipeline: getattr(super(UncertaintyPipeline, pipeline), name))
    @functools.wraps(documented)
    def method(self, X, y=None, **params):
        new, pairs = _copy_steps(self)
        parts = {}
        for old, _ in pairs:
            _find_parts(old, parts)
        try:
            result = getattr(super(UncertaintyPipeline, new), name)(X, y, **params)
        except BaseException:  # Ctrl-C too
            for part, attributes in parts.values():
                part.__dict__ = attributes
            for old, copied in pairs:
                if isinstance(old, UncertaintyRegressor | UncertaintyClassifier):
                    # Searches remember their trials, with which the next fit goes on.
                    kept = {k: v for k, v in vars(copied).items() if k[0] == "_"}
                    vars(old).update(kept)
            raise
        # The user's objects stay the steps, except where a cache has given others.
        olds = {id(copied): old for old, copied in pairs}
        for _, copied in pairs:
            for steps in _STEPS:
                if isinstance(vars(copied).get(steps), list):
                    inner = [(n, olds.get(id(s), s), *o) for n, s, *o in vars(copied)[steps]]
                    setattr(copied, steps, inner)
        _take_over(pairs)
        return self if result is new else result

    return method


@saved_as("estimators.UncertaintyPipeline", kind="estimator")
class UncertaintyPipeline(sklearn.pipeline.Pipeline):
    """Pipeline of scikit-learn that also predicts the uncertainty of its last step.

    `predict_interval`, `predict_quantiles`, `predict_distribution`, `predict_uncertainty`,
    `sample_y` and `log_prob` transform X by the other steps and call the last one's method. So do
    `leaderboard` and `reselect` of searches of networks. Attributes, such as `members_`, are those
    of the last step, ``pipeline[-1]``. This may be a search, such as `GridSearchCV`, after its fit.

    Parameters
    ----------
    steps : list of (str, estimator) tuples
        Names and estimators, in their order: transformers first, the estimator that predicts last.
    transform_input : list of str, default=None
        Names of metadata that the steps transform, as in `sklearn.pipeline.Pipeline`.
    memory : str or object with the joblib.Memory interface, default=None
        Cache of the fitted transformers; None does not cache.
    verbose : bool, default=False
        Whether to print the time that each step takes to fit.

    See Also
    --------
    make_pipeline : Make a pipeline with automatic names of the steps.
    sklearn.pipeline.Pipeline : The same without these methods.

    Notes
    -----
    Networks standardise X and y themselves and take tables with strings and gaps (see
    `preprocess`), so that a pipeline is needed for other steps only.

    A fit that fails or is interrupted leaves all steps as an earlier fit made them. (Pipelines of
    scikit-learn then have new transformers before an old last step.)

    Validation rows that `fit` passes to the last step, such as ``model__X_val`` or
    ``model__validation_data``, are transformed by the other steps, as X is: do not transform them
    before. The same holds for `shift_validation`. (Pipelines of scikit-learn leave them as they
    are, unless ``transform_input=["X_val"]`` names `X_val` and metadata routing is enabled.)

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor, UncertaintyPipeline
    >>> X, y = load_diabetes(return_X_y=True)
    >>> calibrated = CalibratedUncertaintyRegressor(BayesianRidge())
    >>> model = UncertaintyPipeline([("pca", PCA(5)), ("model", calibrated)]).fit(X, y)
    >>> model.predict_interval(X[:1], coverage=0.9).shape
    (1, 2)
    """

    _doc_link_module = "skuq"
    _doc_link_template = doc_link_template

    fit = _fit_a_copy(sklearn.pipeline.Pipeline.fit)
    fit_predict = _fit_a_copy(sklearn.pipeline.Pipeline.fit_predict)
    fit_transform = _fit_a_copy(sklearn.pipeline.Pipeline.fit_transform)
    score = _delegate(sklearn.pipeline.Pipeline.score)
    predict = _delegate(UncertaintyRegressor.predict)
    predict_proba = _delegate(UncertaintyClassifier.predict_proba)
    predict_distribution = _delegate(UncertaintyRegressor.predict_distribution)
    predict_interval = _delegate(UncertaintyRegressor.predict_interval)
    predict_quantiles = _delegate(UncertaintyRegressor.predict_quantiles)
    predict_uncertainty = _delegate(UncertaintyRegressor.predict_uncertainty)
    sample_y = _delegate(UncertaintyRegressor.sample_y)
    log_prob = _delegate(UncertaintyRegressor.log_prob)
    leaderboard = _delegate(SearchEstimator.leaderboard)
    reselect = _delegate(SearchEstimator.reselect)

    def _get_metadata_for_step(self, *, step_idx, step_params, all_params):
        # scikit-learn transforms the arguments that `transform_input` names in this method.
        is_last, own = step_idx == len(self) - 1 > 0, {}
        fit_params = step_params.get("fit", {}) if is_last else {}
        for name, value in fit_params.items():
            if value is not None and name.rpartition("__")[2] in _VALIDATION_ROWS:
                own[name] = _transform_rows(name, value, self[:-1].transform)
        others = {name: value for name, value in fit_params.items() if name not in own}
        if own:
            step_params = {**step_params, "fit": others}
        params = super()._get_metadata_for_step(
            step_idx=step_idx, step_params=step_params, all_params=all_params
        )
        return {**params, "fit": {**params["fit"], **own}} if own else params


def make_pipeline(*steps, memory=None, transform_input=None, verbose=False):
    """Make an `UncertaintyPipeline` of steps that are named after their classes.

    Parameters
    ----------
    *steps : estimators
        Transformers, and last the estimator that predicts.
    memory, transform_input, verbose
        See `UncertaintyPipeline`.

    Returns
    -------
    UncertaintyPipeline

    Examples
    --------
    >>> from sklearn.feature_selection import VarianceThreshold
    >>> from skuq import DeepEnsembleRegressor, make_pipeline
    >>> list(make_pipeline(VarianceThreshold(), DeepEnsembleRegressor()).named_steps)
    ['variancethreshold', 'deepensembleregressor']
    """
    named = sklearn.pipeline.make_pipeline(*steps).steps
    return UncertaintyPipeline(
        named, memory=memory, transform_input=transform_input, verbose=verbose
    )
