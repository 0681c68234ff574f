"""Fit estimators of any kind on parts of the rows, and predict the rows left out."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn import config_context, get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.parallel import Parallel
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skuq import _params
from skuq._messages import Progress, short_repr
from skuq.estimators._base import input_attributes, unfitted_copy
from skuq.exceptions import CalibrationWarning, UnsavableError
from skuq.tables import _repeats
from skuq.tables._inputs import ForeignInputs, check_groups, group_codes
from skuq.tables._splits import KINDS_OF_FOLDS, Fold, out_of_fold_splits, without_unseen_classes

_N_FOLDS = 5
# Ends of the names of arguments of `fit` that hold validation rows.
_VALIDATION = ("X_val", "y_val", "sample_weight_val", "validation_data")


@dataclass(eq=False, repr=False)
class FittedModel(BaseEstimator):
    """Fitted model that is no estimator of scikit-learn: a Keras model, or a function of X."""

    model: Any

    _methods: ClassVar[tuple[str, ...]] = ("predict", "__call__")

    def fit(self, X, y):
        """Do nothing, since the model is fitted."""
        return self

    def outputs(self, X):
        """Predict numbers (n, m), or (n,)."""
        keras = sys.modules.get("keras")
        # Keras alone would print a bar.
        silent = {"verbose": 0} if keras and isinstance(self.model, keras.Model) else {}
        method = next(name for name in self._methods if hasattr(self.model, name))
        outputs = np.asarray(getattr(self.model, method)(X, **silent))
        if outputs.shape[:1] != np.shape(X)[:1]:
            raise ValueError(
                f"The model must predict each of {np.shape(X)[0]} rows. Got shape {outputs.shape}."
            )
        return outputs

    def __sklearn_is_fitted__(self):
        return True

    def _refuse_to_save(self, where):
        """Raise UnsavableError, which names the model and what can be saved instead."""
        kind = f"{type(self.model).__module__}.{type(self.model).__qualname__}"
        raise UnsavableError(
            f"{where} is a fitted {kind}, which cannot be saved. Save a Keras model by its own "
            "model.save(path), and calibrate it again; or train its architecture by "
            "DeepEnsembleRegressor(network=...) or DeepEnsembleClassifier(network=...), which can "
            "be saved."
        )


class FittedRegression(RegressorMixin, FittedModel):
    """Fitted model of numbers."""

    def predict(self, X):
        """Predict numbers; a single column becomes (n,)."""
        outputs = self.outputs(X)
        return outputs[:, 0] if outputs.shape[1:] == (1,) else outputs


class FittedProbabilities(ClassifierMixin, FittedModel):
    """Fitted model of class probabilities, one column a class, or that of the second of two."""

    _methods = ("predict_proba", *FittedModel._methods)

    def find_classes(self, X, y):
        """Find the labels of the columns: the model's, those of y, or numbers from 0 on."""
        # One row is enough to count the columns.
        n = self.predict_proba(_params.safe_indexing(X, [0])).shape[1]
        labels = np.array(getattr(self.model, "classes_", np.unique(y)))
        if len(labels) != n and np.isin(labels, np.arange(n)).all():
            labels = np.arange(n)
        if len(labels) != n:
            raise ValueError(
                f"The model predicts {n} classes, and y has the labels {labels.tolist()}. Give "
                f"rows of all classes, or number the classes from 0 to {n - 1}."
            )
        self.classes_ = labels

    def predict_proba(self, X):
        """Predict probabilities (n, C)."""
        proba = self.outputs(X)
        if proba.dtype.kind != "f":
            raise TypeError(f"The model must predict probabilities. Got numbers of {proba.dtype}.")
        # A single column is the probability of the second class.
        second = proba.reshape(len(proba), -1)
        return np.hstack([1 - second, second]) if second.shape[1] == 1 else proba

    def predict(self, X):
        """Predict the most probable labels."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def check_estimator(name: str, estimator: Any, is_kind: Callable[[Any], bool], prefit: bool) -> Any:
    """Check the kind of an estimator, and with `prefit` that it is fitted.

    Return it; with `prefit` any other model that predicts is wrapped.
    """
    kind = is_kind.__name__.removeprefix("is_")
    is_estimator = hasattr(estimator, "__sklearn_tags__")
    if not is_estimator and (hasattr(estimator, "predict") or callable(estimator)):
        if not prefit:
            raise TypeError(
                f"{name} must be a scikit-learn {kind}. {type(estimator).__name__} is none: give "
                "cv='prefit', which takes fitted models of any kind, and rows they have not seen, "
                f"or DeepEnsemble{kind.capitalize()}(network=...), which trains your architecture."
            )
        return (FittedProbabilities if kind == "classifier" else FittedRegression)(estimator)
    if not is_estimator or not is_kind(estimator):
        raise ValueError(f"{name} must be a {kind}. Got {estimator!r}.")
    if prefit:
        try:
            check_is_fitted(estimator)
        except NotFittedError as error:
            raise NotFittedError(
                f"With cv='prefit' {name} must be fitted, and {type(estimator).__name__} is not. "
                "Fit it, or use another `cv`. Cloning, as in cross-validation and searches, "
                "discards what it has learnt: wrap it in sklearn.frozen.FrozenEstimator."
            ) from error
    return estimator


def read_foreign_rows(estimator, X, y, sample_weight):
    """Validate the rows of a meta-estimator.

    Returns X, which can be indexed, weights (n,) of at most 1 for scores, the weights for fits, or
    None, and the attributes that scikit-learn reads from X.
    """
    estimator = unfitted_copy(estimator)  # validation writes the number and names of features
    _params.refuse_lazy(X)
    (X,) = indexable(X)
    check_consistent_length(X, y)
    ForeignInputs().validate(X, estimator, reset=True)
    weight = _params.check_weights(sample_weight, X, relative=True)
    if sample_weight is not None:
        sample_weight = _params.check_sample_weight(sample_weight, X)
    return X, weight, sample_weight, input_attributes(estimator)


def learns_nothing(estimator: Any) -> bool:
    """Whether `fit` leaves an estimator as it is, because it is frozen."""
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    return isinstance(last, FrozenEstimator)


def take_argument(estimator: Any, name: str, value: Any, fit_params: dict[str, Any]) -> Any:
    """Find a value per row, which a pipeline's last step may get under its own name.

    That argument is removed from `fit_params`.
    """
    argument = _params.fit_argument(estimator, name)
    own = fit_params.pop(argument, None) if argument else None
    if own is None or value is None:
        return value if own is None else own
    raise TypeError(f"`{name}` and `{argument}` are the same: give one of them.")


def row_params(estimator: Any, sample_weight: Any, groups: Any, name: str) -> dict[str, Any]:
    """Name weights and groups as the estimator's `fit` takes them.

    Few estimators take groups, the others do without. Raise TypeError for weights it cannot take.
    """
    argument = None if groups is None else _params.fit_argument(estimator, "groups")
    found = {} if argument is None else {argument: groups}
    if sample_weight is None or learns_nothing(estimator):
        return found
    argument = _params.fit_argument(estimator)
    if argument is None:
        raise TypeError(
            f"{name} cannot be fitted with `sample_weight`. Leave the weights out, or use an "
            "estimator whose `fit` takes them. Bagging gives weights to all that take them: put "
            "the whole into skuq.make_pipeline, and it draws rows instead."
        )
    return {**found, argument: sample_weight}


def inherit_tags(tags, estimators):
    """Set tags so that only inputs are accepted that all inner estimators accept."""
    inner = [get_tags(e).input_tags for e in estimators if hasattr(e, "__sklearn_tags__")]
    tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
    tags.input_tags.sparse = all(tag.sparse for tag in inner)
    tags.input_tags.pairwise = any(tag.pairwise for tag in inner)
    return tags


def route(
    calibrated: Any, sample_weight: Any, params: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Divide the arguments of `fit` into those of the estimator's `fit`, and groups of rows."""
    estimator = calibrated.estimator
    given = {name: value for name, value in params.items() if value is not None}
    groups = take_argument(estimator, "groups", given.pop("groups", None), given)
    if isinstance(calibrated.cv, str):
        given |= {} if groups is None else {"groups": groups}
        if given:
            raise TypeError(
                f"With cv='prefit' nothing is fitted, and `fit` takes no {sorted(given)}."
            )
        return {}, None
    # With metadata routing estimator and splitter get what they request, otherwise all of it.
    if get_config()["enable_metadata_routing"]:
        for_rows = {"groups": groups, "sample_weight": sample_weight}
        given |= {name: value for name, value in for_rows.items() if value is not None}
        routed = process_routing(calibrated, "fit", **given)
        return routed["estimator"]["fit"], routed["splitter"]["split"].get("groups")
    # Groups are for the splitter, and for estimators that take them.
    return given | row_params(estimator, sample_weight, groups, repr(estimator)), groups


def make_folds(
    cv: Any, X: Any, y: np.ndarray, used: np.ndarray, groups: Any, kind: str, *, once: bool = False
) -> list[Fold]:
    """Split rows into folds, and leave rows out of the test folds that cannot be tested.

    Parameters
    ----------
    cv : int, cross-validation generator, iterable or None
        Folds. A number, 5 if it is None, divides the rows that are used, stratified by classes.
    X, y, groups : array-like of shape (n, ...), ndarray (n[, m]), array-like of shape (n,) or None
        Rows and their groups.
    used : ndarray of bool of shape (n,)
        Rows of positive weight. The others are not tested.
    kind : {"numbers", "classes", "any"}
        What y holds. Rows of "classes" are not tested if their fold does not train on their class;
        those of "any" are classes that all models know.
    once : bool, default=False
        Whether every row must be in exactly one test fold.
    """
    groups = check_groups(groups, y)
    units = _repeats.find_repeats(X, np.flatnonzero(used), groups)
    if kind == "classes" and len(present := np.unique(y[used])) < 2:
        raise ValueError(
            "y must have at least two classes in rows of positive weight. Got 1 class: "
            f"{present.tolist()}."
        )
    is_number = cv is None or isinstance(cv, Integral)
    rows = np.flatnonzero(used) if is_number else np.arange(len(y))
    units, labels = units if units is None else units[rows], y[rows] if kind == "classes" else None
    distinct = _repeats.DistinctRows.of(units, cv, labels)
    some = rows[distinct.first]
    if is_number:
        # The most folds of which each can have a row of the commonest class.
        classes = kind != "numbers"
        most = np.unique(y[some], return_counts=True)[1].max() if classes else len(some)
        most = most if groups is None else min(most, 1 + group_codes(groups[some]).max())
        cv = KINDS_OF_FOLDS[classes, groups is not None](cv or int(np.clip(most, 2, _N_FOLDS)))
    # Folds are numbered among `some`, and translated to positions in X below.
    table = X if len(some) == len(y) else _params.safe_indexing(X, some)
    splits = out_of_fold_splits(
        cv, table, y[some], None if groups is None else groups[some], once=once
    )
    splits = [tuple(rows[part] for part in distinct.spread(fold)) for fold in splits]
    splits = [(train, test[used[test]]) for train, test in splits]
    if kind == "classes":
        purpose = "choice of a team" if once else "calibration"
        splits = without_unseen_classes(splits, y, used, "cv", purpose, n_classes=2)
    splits = [(train, test) for train, test in splits if len(test)]
    # The remaining rows must be enough to train and to test on.
    if not splits:
        raise ValueError(
            "`cv` must leave rows with positive weights out of training. "
            f"{short_repr(cv)} leaves out none."
        )
    if not all(used[train].any() for train, _ in splits):
        raise ValueError(
            f"`cv` must train every fold on rows with positive weights, of which there are "
            f"{used.sum()}. {short_repr(cv)} does not: a number of folds divides these rows."
        )
    return splits


def fit_fold(estimator, X, y, fit_params, train, test=None):
    """Fit a clone on the rows `train`, and return it with X of the rows `test`.

    Entries of `fit_params` with one value per row are divided like the rows, unless they are
    validation rows, which go to every fit. Entries that are None are left out.
    """
    model = clone(estimator)
    # A kernel matrix is cut on both sides, which `safe_split` knows.
    X_train, y_train = _params.safe_split(model, X, y, train)
    given = {name: value for name, value in fit_params.items() if value is not None}
    if isinstance(estimator, FrozenEstimator):  # its fit does nothing, and takes no arguments
        given = {}
    # Validation rows would be divided as well if there were as many of them as training rows.
    whole = {name: v for name, v in given.items() if name.endswith(_VALIDATION)}
    divided = {name: v for name, v in given.items() if name not in whole}
    # Routing would refuse arguments that are named after the steps of a pipeline.
    routes = get_config()["enable_metadata_routing"] and not any("__" in name for name in given)
    try:
        with config_context(enable_metadata_routing=routes), warnings.catch_warnings():
            _repeats.ignore_warnings_of_repeats()
            model.fit(X_train, y_train, **_params.check_method_params(X, divided, train), **whole)
    except ValueError as error:
        # Wrong parameters and the fit of all rows have nothing to do with folds.
        if type(error) is not ValueError or len(train) == len(y):
            raise
        raise ValueError(
            f"A fold that trains on {len(train)} of {len(y)} rows failed: {error}"
        ) from error
    return model, None if test is None else _params.safe_split(model, X, y, test, train)[0]


def run(
    calls: Iterable[Any], n_jobs: Any, verbose: Any, title: str, unit: str, total: int
) -> Iterator[Any]:
    """Run delayed calls in parallel, show the progress, and yield their results in order."""
    results = Parallel(n_jobs, return_as="generator")(calls)
    with Progress(title, unit, total, verbose=verbose) as progress:
        for result in results:
            progress.step()
            yield result


def fit_and_predict(estimator, predict, X, y, fit_params, train, test):
    """Fit a clone; return its predictions of the test rows and these, or itself without any."""
    with warnings.catch_warnings():  # what is fitted here is calibrated, or a part of more
        warnings.filterwarnings("ignore", ".* is not calibrated", CalibrationWarning)
        model, X_test = fit_fold(estimator, X, y, fit_params, train, test)
    return model if test is None else (predict(model, X_test), test)
