"""Fit an estimator and calibrate its uncertainty on rows that it has not seen."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import field
from numbers import Integral
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.parallel import delayed
from sklearn.utils.validation import column_or_1d

from skuq import _params
from skuq._messages import warn_user
from skuq.estimators._base import Fit, Given, Predictor, UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators.methods import _out_of_fold
from skuq.estimators.methods._deep import DeepEnsembleRegressor
from skuq.exceptions import CalibrationWarning
from skuq.fitted import _fitted_calibrated
from skuq.predictive._calibration import fit_correlation, fit_scales, fit_temperature
from skuq.predictive._normals import EpistemicNormal
from skuq.tables._inputs import group_codes
from skuq.tables._repeats import ignore_warnings_of_repeats, number_rows

_SMALL_WEIGHT = 0.1  # mean weight of a row below which weights are hardly meant as counts

# Networks that "conditional" fits to errors: plain ones take a tenth of the time of those for
# tables, and with the CRPS no longer predict too narrow distributions for few rows.
# Errors stay in their unit, in which the mean of the model is added to their distribution.
_NETWORKS_OF_ERRORS = {"loss": "crps", "target_transform": "standard", "random_state": 0}

_CONSTRAINTS: dict = {
    "estimator": [_params.HasMethods(["fit"]), _params.HasMethods(["predict"]), callable],
    "cv": ["cv_object", _params.StrOptions({"prefit"})],
    "n_jobs": [Integral, None],
    "verbose": ["verbose", None],
}


class _Rows(NamedTuple):
    """What `fit` was given, checked but for y."""

    X: Any
    weight: np.ndarray  # (n,)
    sample_weight: Any  # weights for fits, or None
    params: dict[str, Any]  # further arguments of the estimator's `fit`
    model: Any  # the estimator; with cv="prefit" any fitted model, wrapped as one
    features: dict[str, Any]  # attributes that are read from X


class _HeldOut(NamedTuple):
    """Rows in the order of the folds that predicted them, which can hold a row several times."""

    model: Any  # fitted on all rows
    mixtures: tuple[Any, ...]  # one of each fold
    order: np.ndarray  # numbers of the rows
    X: Any
    groups: Any
    weight: np.ndarray


def _read_rows(estimator: Any, given: Given, is_kind: Callable[[Any], bool]) -> _Rows:
    inner, params = estimator.estimator, dict(given.others)
    model = _out_of_fold.check_estimator(
        "`estimator`", inner, is_kind, isinstance(estimator.cv, str)
    )
    sample_weight = _out_of_fold.take_argument(inner, "sample_weight", given.sample_weight, params)
    X, _, sample_weight, features = _out_of_fold.read_foreign_rows(
        estimator, given.X, given.y, sample_weight
    )
    return _Rows(X, _params.check_weights(sample_weight, X), sample_weight, params, model, features)


def _predict_held_out(
    estimator: Any, rows: _Rows, y: np.ndarray, kind: str, predict: Callable[[Any, Any], Any]
) -> _HeldOut:
    """Fit in each fold and on all rows, and predict the test rows.

    Parameters
    ----------
    estimator : estimator
    rows, y : _Rows, ndarray of shape (n[, m])
    kind : {"numbers", "classes", "any"}
        Kind of y, see `make_folds`.
    predict : callable
        ``predict(fitted estimator, X)``, before calibration.
    """
    weight, used = rows.weight, rows.weight > 0  # others may be predicted as anything
    if used.sum() < 2:
        raise ValueError(
            f"Calibration needs at least 2 rows with positive weights. Got n_samples={used.sum()}."
        )
    if weight[used].mean() < _SMALL_WEIGHT:
        warn_user(
            f"Weights of {used.sum()} rows sum to {weight.sum():.3g}, and count as that many "
            "rows. If they are relative, divide them by their mean.",
            CalibrationWarning,
        )
    fit_params, groups = _out_of_fold.route(estimator, rows.sample_weight, rows.params)
    if isinstance(estimator.cv, str):  # "prefit": one fold, of all rows
        test, model = np.flatnonzero(used), rows.model
        folds = [(predict(model, _params.safe_split(model, rows.X, y, test)[0]), test)]
    else:
        splits = _out_of_fold.make_folds(estimator.cv, rows.X, y, used, groups, kind)
        is_column = y.shape[1:] == (1,) and not get_tags(estimator).target_tags.multi_output
        fit_y = column_or_1d(y, warn=True) if is_column else y
        shared = estimator.estimator, predict, rows.X, fit_y, fit_params
        every = np.arange(len(y)), None
        calls = (delayed(_out_of_fold.fit_and_predict)(*shared, *at) for at in [*splits, every])
        progress = estimator.verbose, "calibration", "fit", len(splits) + 1
        *folds, model = _out_of_fold.run(calls, estimator.n_jobs, *progress)
    mixtures, tests = zip(*folds)
    order = np.concatenate(tests)
    X, groups = (None if v is None else _params.safe_indexing(v, order) for v in (rows.X, groups))
    # A row counts once, also if repeated folds predict it several times. A weight of 2 is that
    # of a row that is there twice, which decides how much priors count.
    n_times = len(order) / len(np.unique(order))
    return _HeldOut(model, mixtures, order, X, groups, weight[order] / n_times)


class CalibratedUncertainty(Predictor):
    """Base class of calibrated regressors and classifiers: `fit` and metadata routing."""

    _skips_nested_validation = False

    def fit(self, X, y, sample_weight=None, **fit_params):
        """Calibrate on out-of-fold predictions, and fit the estimator on all rows.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Whatever the estimator accepts.
        y : array-like of shape (n,), or of numbers (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows, for fitting and for calibrating. A row of weight 2
            counts as two equal rows; weights that are only relative should have the mean 1. A
            pipeline hands them to its last step, as ``step__sample_weight`` does; so with `groups`.
        **fit_params
            Further arguments of the estimator's `fit`. Arrays with one entry per row are divided
            like the rows, while validation rows such as `X_val` go to every fit. `groups` is passed
            to `cv` as well: rows of one group are then never in two folds, also with the default
            of `cv`. With metadata routing enabled, the estimator and `cv` get what they request.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If arguments are invalid, or no fold can test rows of two classes.
        TypeError
            If the estimator does not take the weights, or is no estimator and `cv` not "prefit".

        Warns
        -----
        CalibrationWarning
            If the mean weight is below 0.1, or rows are left out because their fold trains on no
            row of their class.
        """
        return self._fit_by(Given(X, y, sample_weight, others=fit_params))

    # Parts of the fitted model, which the class docstrings describe.
    estimator_ = property(attrgetter("fitted_.estimator"), doc="")

    def get_metadata_routing(self):
        """Describe the metadata that the estimator and `cv` request.

        Returns
        -------
        MetadataRouter
        """
        splitter = GroupKFold() if self.cv is None or isinstance(self.cv, Integral) else self.cv
        fit, split = (MethodMapping().add(caller="fit", callee=name) for name in ("fit", "split"))
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self.estimator, method_mapping=fit)
        return router.add(splitter=splitter, method_mapping=split)

    def __sklearn_tags__(self):
        return _out_of_fold.inherit_tags(super().__sklearn_tags__(), [self.estimator])


@_params.parameters("estimators.CalibratedUncertaintyRegressor", kind="estimator")
class CalibratedUncertaintyRegressor(CalibratedUncertainty, UncertaintyRegressor):
    """Regressor with calibrated standard deviations, intervals and quantiles.

    The estimator predicts every row out of fold, a calibration is learnt from these predictions,
    and the estimator is fitted on all rows. The point prediction remains that of the estimator.

    Parameters
    ----------
    estimator : regressor
        Regressor with `predict_distribution` (all of skuq's) or ``predict(X, return_std=True)``,
        such as scikit-learn's Gaussian process; also as the last step of a pipeline or the
        estimator of a search. A regressor without uncertainty, such as a random forest, gets the
        distribution of its errors, the same for all rows but with ``method="conditional"``. With
        ``cv="prefit"`` also any fitted model with `predict`, such as a Keras model, or a function
        of X.
    method : {"scale", "conformal", "conditional"}, default="scale"
        "scale" multiplies all standard deviations by the factor that maximises the likelihood of
        the calibration rows, shrunk towards 1 by its standard error: a factor that does not differ
        significantly from 1 is 1. This single parameter suits small data. "conformal" also takes
        intervals from the standardised errors. They cover new rows with at least the nominal
        probability, if new rows have the distribution of the calibration rows, whatever it is.
        "conditional" is for point models, such as forests: a small deep ensemble learns the
        distribution of the errors from the columns of X and the prediction, so that widths differ
        from row to row. It needs a table X, and suits a hundred rows or more.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one fold. None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    estimator_ : regressor
        Estimator fitted on all rows.
    scale_ : float or ndarray of shape (n_outputs,)
        Factor of the standard deviations. If `estimator` predicts no uncertainty, it is the
        standard deviation of its errors, also with "conditional", whose predictions do not use it.
    scores_ : ndarray of shape (n,) or (n, n_outputs), or None
        With "conformal", sorted absolute out-of-fold errors in calibrated standard deviations.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyClassifier : Calibrates class probabilities.
    sklearn.calibration.CalibratedClassifierCV : Calibrates probabilities without parts.

    Notes
    -----
    Folds train on fewer rows than the final estimator, so that its uncertainty tends to be too
    large rather than too small. The default folds are not shuffled; for sorted rows use
    ``cv=KFold(5, shuffle=True, random_state=0)``. The conformal guarantee is exact with
    ``cv="prefit"``; over folds it holds as far as the final fit and the fits of the folds agree.
    Calibration does not account for shift: fit again on rows like those to predict.

    With "conditional" the mean of a row's distribution stays the estimator's prediction. Where the
    networks predict a mean error, the standard deviation is the root of its square plus that of
    theirs. Of an exact model it is about the distance between floats of the size of y. The
    aleatoric part is the noise that they predict, and the epistemic part what they disagree on:
    both are about the errors, not about the estimator's own members.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 (scale); Breiman (1995), "Better Subset Regression Using the
    Nonnegative Garrote" (its shrinkage); Lei et al. (2018), section 5.2 (conformal).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq import CalibratedUncertaintyRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CalibratedUncertaintyRegressor(BayesianRidge(), method="conformal").fit(X, y)
    >>> lower, upper = model.predict_interval(X[:1], coverage=0.9)
    >>> lower.round(), upper.round()
    (array([111.]), array([294.]))
    """

    estimator: Any = field(kw_only=False)
    method: str = field(default="scale", kw_only=False)
    cv: Any = None
    n_jobs: int | None = None
    verbose: int | None = None

    _parameter_constraints = {
        **_CONSTRAINTS,
        "method": [_params.StrOptions({"scale", "conformal", "conditional"})],
    }
    _has_posterior = False

    def _fit(self, given):
        rows, y = _read_rows(self, given, is_regressor), _params.check_targets(given.y, self)
        predict = functools.partial(
            _fitted_calibrated.regressor_distribution, output_shape=y.shape[1:]
        )
        held_out = _predict_held_out(self, rows, y, "numbers", predict)
        # A regressor that is fitted already decides between (n,) and (n, 1).
        if y.size == len(y):
            y = y.reshape(-1, *held_out.mixtures[0].mean.shape[1:])
        # Errors that rows of a draw share may be large, and change no marginal.
        mixtures = tuple(
            EpistemicNormal(m.mean, m.aleatoric, m.epistemic)
            if isinstance(m, EpistemicNormal)
            else m
            for m in held_out.mixtures
        )
        y, weight = y[held_out.order], held_out.weight
        scales = fit_scales(mixtures, y, weight, conformal=self.method == "conformal")
        mean, std = (
            np.concatenate([getattr(mixture, name) for mixture in mixtures])
            for name in ("mean", "std")
        )
        correlation = fit_correlation((y - mean) / std, weight, held_out.order)
        calibration = _fitted_calibrated.Recalibration(*scales, correlation=correlation)
        if self.method == "conditional":
            calibration = _fitted_calibrated.ConditionalRecalibration(
                calibration.scale,
                errors=_fit_errors(held_out, mean, std, y, self.verbose),
                smallest_std=np.spacing(np.abs(y).max(axis=0)),
            )
        return Fit(_fitted_calibrated.FittedCalibrated(held_out.model, calibration), rows.features)

    scale_ = property(attrgetter("fitted_.calibration.scale"), doc="")
    scores_ = property(attrgetter("fitted_.calibration.scores"), doc="")

    def predict(self, X, return_std=False):
        """Predict as the estimator does, and on request the calibrated standard deviation.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        mean : ndarray of shape (n[, m])
            Exactly what the estimator predicts.
        std : ndarray of shape (n[, m])
            Calibrated standard deviation, in units of y. Only with `return_std`.
        """
        # The estimator's own prediction: calibration changes what is around it.
        mean = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if np.size(mean) == len(mean):  # some regressors return a column
            mean = np.reshape(mean, (-1, *self.fitted_.output_shape()))
        return (mean, self.predict_distribution(X).std) if return_std else mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            tags.target_tags.multi_output = get_tags(self.estimator).target_tags.multi_output
        return tags


def _fit_errors(held_out, mean, std, y, verbose):
    """Fit the calibrated networks of "conditional" to the errors of held-out rows."""
    networks = DeepEnsembleRegressor(**_NETWORKS_OF_ERRORS, verbose=verbose)
    groups, order = held_out.groups, held_out.order
    if groups is None and len(np.unique(order)) < len(order):
        # Repeated folds predict a row several times, from the same X.
        groups = number_rows(held_out.X, np.arange(len(order)))
    # Their own standard deviations are too small on few rows.
    n_groups = 1 if groups is None else 1 + group_codes(groups).max()
    folds = min(3, n_groups) if n_groups > 1 else KFold(3, shuffle=True, random_state=0)
    errors = CalibratedUncertaintyRegressor(networks, cv=folds)
    inputs = _fitted_calibrated.inputs_of_errors(held_out.X, mean, std)
    # Routing would refuse arguments that the user cannot request for these networks.
    with warnings.catch_warnings(), config_context(enable_metadata_routing=False):
        # Errors without structure are predicted no better than by a constant, and may be.
        warnings.filterwarnings("ignore", "The model predicts its validation rows worse")
        ignore_warnings_of_repeats()
        together = {"groups": groups} if n_groups > 1 else {}
        return errors.fit(inputs, y - mean, held_out.weight, **together)


@_params.parameters("estimators.CalibratedUncertaintyClassifier", kind="estimator")
class CalibratedUncertaintyClassifier(CalibratedUncertainty, UncertaintyClassifier):
    """Classifier with calibrated probabilities.

    The classifier predicts every row out of fold, a calibration is fitted to these predictions by
    maximum likelihood, and the classifier is fitted on all rows. The predicted class remains that
    of the classifier.

    Parameters
    ----------
    estimator : classifier
        Classifier with `predict_distribution` (all of skuq's) or `predict_proba`; also as the last
        step of a pipeline or the estimator of a search. With ``cv="prefit"`` also any model, such
        as a Keras model, whose `predict` gives probabilities (n, C), or of the second of two
        classes, or a function of X that does. Its classes are the labels of y, or numbered from 0.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one fold. None is 1, unless in a
        `joblib.parallel_config` context.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    estimator_ : classifier
        Estimator fitted on all rows.
    temperature_ : float
        Divisor of the log probabilities; above 1 if the classifier was overconfident.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    CalibratedUncertaintyRegressor : Calibrates distributions of numbers.
    sklearn.calibration.CalibratedClassifierCV : Calibrates probabilities by more methods.

    Notes
    -----
    The temperature acts on the averaged probabilities, which is better than on each member's
    (Rahaman and Thiery, 2021) and does not change the predicted class. Its logarithm has a standard
    normal prior. Members keep their differences from the average, shortened where a probability
    would be negative, so that entropies still have parts.

    References
    ----------
    Guo, Pleiss, Sun and Weinberger (2017), "On Calibration of Modern Neural Networks".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skuq import CalibratedUncertaintyClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibratedUncertaintyClassifier(GaussianNB()).fit(X, y).predict(X[:2])
    array([0, 0])
    """

    estimator: Any = field(kw_only=False)
    cv: Any = None
    n_jobs: int | None = None
    verbose: int | None = None

    _parameter_constraints = _CONSTRAINTS

    def _fit(self, given):
        rows, y = _read_rows(self, given, is_classifier), _params.check_labels(given.y)
        model, prefit = rows.model, isinstance(self.cv, str)
        if isinstance(model, _out_of_fold.FittedProbabilities):
            model.find_classes(rows.X, y)
        # A fitted classifier decides the order of the classes, and rows of any may be missing.
        is_fitted = _out_of_fold.learns_nothing(model)
        classes = np.array(model.classes_) if prefit or is_fitted else np.unique(y)
        _params.class_codes(y, classes)  # raises for labels that the estimator does not know
        predict = functools.partial(_fitted_calibrated.classifier_distribution, classes=classes)
        held_out = _predict_held_out(self, rows, y, "any" if is_fitted else "classes", predict)
        mixtures, order = held_out.mixtures, held_out.order
        if not prefit:
            # Classes of which no fold could test a row are not compared with the others.
            lost = np.isin(classes, y[rows.weight > 0]) & ~np.isin(classes, y[order])
            mixtures = [_fitted_calibrated.without_classes(mixture, lost) for mixture in mixtures]
        proba = np.concatenate([mixture.mean for mixture in mixtures])
        temperature = fit_temperature(
            proba, _params.class_codes(y[order], classes), held_out.weight
        )
        fitted = _fitted_calibrated.FittedCalibrated(
            held_out.model, _fitted_calibrated.ClassRecalibration(temperature, classes)
        )
        return Fit(fitted, {**rows.features, "classes_": classes})

    temperature_ = property(attrgetter("fitted_.calibration.temperature"), doc="")

    def predict(self, X, return_std=False):
        """Predict as the classifier does, and on request how much its members differ.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False

        Returns
        -------
        labels : ndarray of shape (n,)
            Exactly what the classifier predicts.
        std : ndarray of shape (n,)
            Standard deviation across members of the predicted class' probability. Only with
            `return_std`.
        """
        labels = self.estimator_.predict(self.fitted_.inputs.validate(X, self))
        if np.shape(labels)[1:] == (1,):  # some classifiers return a column
            labels = np.reshape(labels, -1)
        if not return_std:
            return labels
        std = self.predict_distribution(X).std
        return labels, std[np.arange(len(std)), _params.class_codes(labels, self.classes_)]
