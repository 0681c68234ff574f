"""List all estimators."""

from __future__ import annotations

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin

import skuq

_KINDS = {
    "classifier": ClassifierMixin,
    "regressor": RegressorMixin,
    "transformer": TransformerMixin,
}


def all_estimators(type_filter=None):
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
    if kinds is not None and (unknown := set(kinds) - set(_KINDS)):
        raise ValueError(f"`type_filter` must be among {sorted(_KINDS)}. Got {sorted(unknown)}.")
    mixins = (BaseEstimator,) if kinds is None else tuple(_KINDS[kind] for kind in kinds)
    # Packages and functions have lower-case names: they are not loaded for this.
    public = [(name, getattr(skuq, name)) for name in sorted(skuq.__all__) if name[0].isupper()]
    return [(name, cls) for name, cls in public if issubclass(cls, mixins)]
