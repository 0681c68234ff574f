"""Import scikit-learn's private validation tools, for all of skuq.

They may move or change with any release of scikit-learn. Only this file then needs a change.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import HasMethods, Hidden, Interval, Options, StrOptions
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.validation import _check_feature_names_in as check_feature_names_in
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9 has no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Placeholder."""


__all__ = [
    "BaseComposition",
    "BaseSearchCV",
    "CallbackSupportMixin",
    "HasMethods",
    "Hidden",
    "Interval",
    "Options",
    "StrOptions",
    "check_feature_names_in",
    "check_method_params",
    "check_sample_weight",
    "fit_context",
    "safe_indexing",
    "safe_split",
]
