"""Fit estimators of any kind on parts of the rows, and predict the rows left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, check_cv
from sklearn.utils import get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_consistent_length, has_fit_parameter

from skuq._params import check_method_params, check_sample_weight, safe_split
from skuq._utils._checks import check_weights, takes_weights
from skuq._utils._messages import Progress
from skuq.tables._columns import refuse_lazy
from skuq.tables._inputs import ForeignInputs, check_groups, sortable_groups


def read_foreign_rows(estimator, X, y, sample_weight):
    """Validate the rows of a meta-estimator.

    Returns X, which can be indexed, weights (n,) of at most 1 for scores, and the weights for
    fits, or None.
    """
    refuse_lazy(X)
    (X,) = indexable(X)
    check_consistent_length(X, y)
    ForeignInputs().validate(X, estimator, reset=True)
    weight = check_weights(sample_weight, X, relative=True)
    if sample_weight is not None:
        sample_weight = check_sample_weight(sample_weight, X)
    return X, weight, sample_weight


def check_takes_weights(estimator, name: str) -> None:
    """Raise TypeError if an unfitted estimator takes no `sample_weight`."""
    fitted_already = isinstance(estimator, FrozenEstimator)
    if not fitted_already and not takes_weights(estimator):
        raise TypeError(
            f"{name} cannot be fitted with `sample_weight`. Leave the weights out, or use an "
            "estimator whose `fit` takes them."
        )


def inherit_tags(tags, estimators):
    """Set tags so that only inputs are accepted that all inner estimators accept."""
    inner = [get_tags(estimator).input_tags for estimator in estimators]
    tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
    tags.input_tags.sparse = all(tag.sparse for tag in inner)
    tags.input_tags.pairwise = any(tag.pairwise for tag in inner)
    return tags


def fit_fold(estimator, X, y, fit_params, train, test=None):
    """Fit a clone on the rows `train`, and return it with X of the rows `test`.

    Entries of `fit_params` with one value per row are divided like the rows; entries that are None
    are left out.
    """
    model = clone(estimator)
    # A kernel matrix is cut on both sides, which `safe_split` knows.
    X_train, y_train = safe_split(model, X, y, train)
    given = {name: value for name, value in fit_params.items() if value is not None}
    if isinstance(estimator, FrozenEstimator):  # its fit does nothing, and takes no arguments
        given = {}
    model.fit(X_train, y_train, **check_method_params(X, given, train))
    return model, None if test is None else safe_split(model, X, y, test, train)[0]


def describe_routing(calibrated: Any) -> MetadataRouter:
    """Describe the metadata that the `estimator` and the `cv` of a meta-estimator request."""
    splitter = GroupKFold() if _is_default(calibrated.cv) else calibrated.cv
    fit, split = (MethodMapping().add(caller="fit", callee=callee) for callee in ("fit", "split"))
    return (
        MetadataRouter(owner=calibrated)
        .add_self_request(calibrated)
        .add(estimator=calibrated.estimator, method_mapping=fit)
        .add(splitter=splitter, method_mapping=split)
    )


def route(
    calibrated: Any, X: Any, sample_weight: Any, params: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the arguments of `fit` into those of the estimator's `fit` and of the splitter."""
    given = {name: value for name, value in params.items() if value is not None}
    if given and isinstance(calibrated.cv, str):
        raise TypeError(f"With cv='prefit' nothing is fitted, and `fit` takes no {sorted(given)}.")
    splitting = {"groups": given["groups"]} if "groups" in given else {}
    if sample_weight is not None:
        given["sample_weight"] = sample_weight
    # With metadata routing estimator and splitter get what they request, otherwise all of it.
    if get_config()["enable_metadata_routing"]:
        routed = process_routing(calibrated, "fit", **given)
        return routed["estimator"]["fit"], routed["splitter"]["split"]
    if "groups" in given and not has_fit_parameter(calibrated.estimator, "groups"):
        del given["groups"]
    return given, splitting


def split_rows(
    calibrated: Any, X: Any, y: np.ndarray, used: np.ndarray, splitting: dict[str, Any]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split rows by `cv`, and leave rows out of the test folds that are not `used` (n,)."""
    cv, classifies = calibrated.cv, is_classifier(calibrated)
    if "groups" in splitting:
        splitting = {**splitting, "groups": sortable_groups(check_groups(splitting["groups"], y))}
        cv = splitter_for_groups(cv, classifies)
    splits = check_cv(cv, y, classifier=classifies).split(X, y, **splitting)
    rows = np.arange(len(y))  # splits may be lists or masks
    splits = [(rows[train], rows[test][used[test]]) for train, test in splits]
    splits = [(train, test) for train, test in splits if len(test)]
    if not splits:
        raise ValueError(
            f"`cv` must leave rows with positive weights out of training. {cv!r} leaves out none."
        )
    return splits


def fit_folds(
    calibrated: Any,
    predict: Callable[[Any, Any], Any],
    X: Any,
    y: np.ndarray,
    fit_params: dict[str, Any],
    splits: list[tuple[np.ndarray, np.ndarray]],
) -> Iterator[Any]:
    """Yield predictions and rows of each fold, and then the estimator fitted on all rows."""
    every = np.arange(len(y)), None
    fits = Parallel(calibrated.n_jobs, return_as="generator")(
        delayed(_fit_and_predict)(calibrated.estimator, predict, X, y, fit_params, train, test)
        for train, test in [*splits, every]
    )
    n_fits = len(splits) + 1
    with Progress("calibration", "fit", n_fits, verbose=calibrated.verbose) as progress:
        for fit in fits:
            progress.step()
            yield fit


def _fit_and_predict(estimator, predict, X, y, fit_params, train, test):
    """Fit a clone; return its predictions of the test rows and these, or itself without any."""
    model, X_test = fit_fold(estimator, X, y, fit_params, train, test)
    return model if test is None else (predict(model, X_test), test)


def splitter_for_groups(cv: Any, classifies: bool) -> Any:
    """Return a splitter that keeps groups together, in place of a number of folds or None."""
    if not _is_default(cv):
        return cv
    return (StratifiedGroupKFold if classifies else GroupKFold)(cv or 5)


def _is_default(cv: Any) -> bool:
    """Whether `cv` names no splitter."""
    return cv is None or isinstance(cv, Integral)
