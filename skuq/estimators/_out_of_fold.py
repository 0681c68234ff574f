"""Predictions of rows by clones of an estimator that have not seen them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import has_fit_parameter

from skuq._utils._messages import Progress
from skuq.estimators._folds import fit_fold
from skuq.tables import check_groups
from skuq.tables._inputs import sortable_groups


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
