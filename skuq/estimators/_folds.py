"""Fit foreign estimators on parts of the rows."""

from __future__ import annotations

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags, indexable
from sklearn.utils.validation import check_consistent_length

from skuq._params import check_method_params, check_sample_weight, safe_split
from skuq._utils._checks import check_weights, takes_weights
from skuq.tables import ForeignInputs
from skuq.tables._columns import refuse_lazy


def check_takes_weights(estimator, name: str) -> None:
    """Raise TypeError if an unfitted estimator takes no `sample_weight`."""
    fitted_already = isinstance(estimator, FrozenEstimator)
    if not fitted_already and not takes_weights(estimator):
        raise TypeError(
            f"{name} cannot be fitted with `sample_weight`. Leave the weights out, or use an "
            "estimator whose `fit` takes them."
        )


def fit_fold(estimator, X, y, fit_params, train, test=None):
    """Fit a clone on the rows `train`, and return it with X of the rows `test`.

    Entries of `fit_params` with one value per row are divided like the rows; entries that are None
    are left out.
    """
    model = clone(estimator)
    X_train, y_train = safe_split(model, X, y, train)
    given = {name: value for name, value in fit_params.items() if value is not None}
    if isinstance(estimator, FrozenEstimator):
        given = {}
    model.fit(X_train, y_train, **check_method_params(X, given, train))
    return model, None if test is None else safe_split(model, X, y, test, train)[0]


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


def inherit_tags(tags, estimators):
    """Set tags so that only inputs are accepted that all inner estimators accept."""
    inner = [get_tags(estimator).input_tags for estimator in estimators]
    tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
    tags.input_tags.sparse = all(tag.sparse for tag in inner)
    tags.input_tags.pairwise = any(tag.pairwise for tag in inner)
    return tags
