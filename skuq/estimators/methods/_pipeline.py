"""Pipelines that predict uncertainty."""

import functools

import numpy as np
import sklearn.pipeline
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.metaestimators import available_if

from skuq._messages import warn_user
from skuq._params import unwrap_estimator
from skuq.estimators._base import Given, Predictor, UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._task import hold_out
from skuq.estimators.methods._search_base import SearchEstimator
from skuq.exceptions import CalibrationWarning
from skuq.files._registry import saved_as
from skuq.tables._inputs import learns_from_y


def _delegate(documented):
    """Make a method that transforms X, then calls the method of this name of the last step.

    Methods that pipelines of scikit-learn have are theirs, except with `return_std`, which
    searches, and pipelines under metadata routing, do not take. If the method returns the last
    step, the pipeline is returned.
    """
    name = documented.__name__
    inherited = name in vars(sklearn.pipeline.Pipeline)  # `predict` and `predict_proba`

    # Raises the AttributeError that names the method.
    @available_if(lambda pipeline: getattr(unwrap_estimator(pipeline)[0], name))
    @functools.wraps(documented)
    def method(self, X=None, *args, **params):
        if inherited and not args and "return_std" not in params:
            return getattr(super(UncertaintyPipeline, self), name)(X, **params)
        last, X = unwrap_estimator(self, X)
        result = getattr(last, name)(X, *args, **params)
        return self if result is last else result

    return method


@saved_as("estimators.UncertaintyPipeline", kind="estimator")
class UncertaintyPipeline(sklearn.pipeline.Pipeline):
    """Pipeline of scikit-learn that also predicts the uncertainty of its last step.

    `predict_interval`, `predict_quantiles`, `predict_distribution`, `predict_uncertainty`,
    `sample_y` and `log_prob` transform X by the other steps and call the last one's method. So do
    `leaderboard` and `reselect` of searches. Attributes, such as `members_`, are those of
    ``pipeline[-1]``. This may be a search, such as `GridSearchCV`, after its fit.

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

    Validation rows that `fit` passes to the last step, such as ``model__X_val``, are not
    transformed, as in scikit-learn, unless ``transform_input=["X_val"]`` names them and metadata
    routing is enabled.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor, UncertaintyPipeline
    >>> X, y = load_diabetes(return_X_y=True)
    >>> calibrated = CalibratedUncertaintyRegressor(BayesianRidge())
    >>> model = UncertaintyPipeline([("pca", PCA(5)), ("model", calibrated)]).fit(X, y)
    >>> lower, upper = model.predict_interval(X[:1], coverage=0.9)
    >>> lower.shape
    (1,)
    """

    def fit(self, X, y=None, **params):
        """Fit the steps in their order; those that learn from y see no validation rows.

        If a step before the last one learns from y, such as a selection of columns, the rows on
        which the last step validates are held out first: all its networks validate on them.

        Parameters
        ----------
        X, y
            Rows, as for the first step.
        **params
            Arguments of the steps' `fit`, such as ``model__sample_weight``.

        Returns
        -------
        self

        Warns
        -----
        CalibrationWarning
            If that is not possible, as for folds, or a regressor is left uncalibrated by it.
        """
        before = sklearn.pipeline.Pipeline(self.steps[:-1], memory=self.memory)
        name, last = self.steps[-1]
        own = {k.removeprefix(f"{name}__"): params[k] for k in params if k.startswith(f"{name}__")}
        # The network may be in a search, a pipeline or a transformation of y.
        inside = {} if isinstance(last, Predictor) else getattr(last, "get_params", dict)()
        frozen = [p.estimator for p in (last, *inside.values()) if isinstance(p, FrozenEstimator)]
        models = [m for m in (last, *inside.values()) if isinstance(m, Predictor)]
        models = [m for m in models if m not in frozen and _validates(m)]
        has_rows = any(name.endswith(("validation_data", "X_val")) for name in params)
        if has_rows or y is None or not (models and learns_from_y(before, X, y, np.arange(len(y)))):
            return super().fit(X, y, **params)
        # A search either has a share or folds of its own, or takes validation rows.
        model, validation = models[0], models[0]._held_out
        has_own = isinstance(last, SearchEstimator) and not isinstance(validation, str)
        if validation is None or has_own or len(own) < len(params) or model is not last:
            warn_user(
                f"Steps before {type(model).__name__} learn from y, and see the rows on which it "
                "validates: what it predicts will be too certain. Give them to the parameter "
                "`preprocess` of networks; put calibration and `cv` around the whole pipeline.",
                CalibrationWarning,
            )
            return super().fit(X, y, **params)
        given = hold_out(
            last, Given(X, y, own.pop("sample_weight", None), groups=own.pop("groups", None))
        )
        fitted, (X_valid, *valid) = clone(before), given.validation_data
        own |= {"sample_weight": given.sample_weight, "groups": given.groups}
        X = fitted.fit_transform(given.X, given.y)
        last.fit(X, given.y, validation_data=(fitted.transform(X_valid), *valid), **own)
        self.steps = [*fitted.steps, (name, last)]
        return self

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


def _validates(model):
    # Calibration over folds holds rows out by `cv`.
    return model._held_out is not None or not isinstance(getattr(model, "cv", "prefit"), str)


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
