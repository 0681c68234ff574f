"""Parameters of estimators: constraints, and settings that are given as one object.

Scikit-learn's private validation tools are imported here alone. They may move or change with any
release of scikit-learn, and only this file then needs a change.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from sklearn.base import BaseEstimator, clone
from sklearn.base import _fit_context as fit_context
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import (
    HasMethods,
    Hidden,
    Interval,
    Options,
    StrOptions,
    validate_parameter_constraints,
)
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


_T = TypeVar("_T")

#: Parameters that several classes of a family have, in the order in which all list them.
_ORDER = (
    "initial_trials objective "
    "loss noise_std learning_rate batch_size batch_over epochs early_stopping_patience "
    "validation refit repeats training bootstrap refine standardize "
    "calibrate class_weight image_shape preprocess target_transform "
    "n_jobs catalog_dir max_time trial_timeout warm_start random_state verbose"
)
_PLACES = {name: place for place, name in enumerate(_ORDER.split())}


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def parameters(cls: type[_T]) -> type[_T]:
    """Make a class a dataclass of parameters, with a sorted signature (decorator).

    Fields are keyword-only. A dataclass lists those of its base classes first. Here parameters that
    are particular to a family come first, then the others, in one order for all estimators.
    """
    made = dataclass(eq=False, repr=False, kw_only=True)(cls)
    init: Any = vars(made)["__init__"]
    signature = inspect.signature(init)

    def place(parameter: inspect.Parameter) -> tuple[int, int]:
        is_positional = parameter.kind != parameter.KEYWORD_ONLY
        return parameter.kind, -1 if is_positional else _PLACES.get(parameter.name, -1)

    ordered = sorted(signature.parameters.values(), key=place)
    init.__signature__ = signature.replace(parameters=ordered)
    return made


class Settings(BaseEstimator):
    """Base class of parameters that belong together and are given as one object.

    A subclass declares its parameters as fields of a dataclass, which makes an `__init__` that only
    stores them, and their constraints in `_parameter_constraints`. An estimator lists its
    parameters of this kind in `_settings`: ``{parameter: {short form: function that makes the
    settings}}``. A short form is a string, or None. `fit` calls `resolve_settings`, which clones
    and validates the object, so that the parameter itself never changes. Searches of parameters
    reach inside, for example with ``search__kappa``.
    """

    _parameter_constraints: dict = {}

    def validate(self) -> None:
        """Raise InvalidParameterError if a parameter is invalid."""
        self._validate_params()


def settings_constraint(short_forms: Mapping[Any, Any], *classes: type) -> list[Any]:
    """Return the constraints of a parameter that is settings or one of their short forms."""
    names = {name for name in short_forms if isinstance(name, str)}
    others = [name for name in short_forms if not isinstance(name, str)]
    return [*([StrOptions(names)] if names else []), *others, *classes]


def resolve_settings(estimator: Any, name: str) -> Any:
    """Return a validated copy of settings, made from their short form if that is given.

    Other values, such as a user's function, are returned as they are.
    """
    value = getattr(estimator, name)
    short_forms = estimator._settings[name]
    if isinstance(value, Settings):
        settings = clone(value)
    elif _is_short_form(value, short_forms):
        settings = short_forms[value]()
    else:
        return value
    settings.validate()
    return settings


def set_params(self: Any, **params: Any) -> Any:
    """Set parameters of the estimator, also inside of its settings.

    Parameters
    ----------
    **params
        Values by name. ``search__kappa`` is the parameter `kappa` of the settings `search`; if
        `search` is a short form such as "agebo", it is replaced by the object that it stands for.

    Returns
    -------
    self
    """
    short_forms: dict[str, Mapping[Hashable, Callable[[], Settings]]] = self._settings
    known = self.get_params(deep=False)
    for key in [key for key in params if "__" in key]:
        name = key.partition("__")[0]
        value = params.get(name, known.get(name))
        if name in short_forms and _is_short_form(value, short_forms[name]):
            params[name] = short_forms[name][value]()
        elif name in known and not hasattr(value, "set_params"):
            raise ValueError(
                f"Invalid parameter {key!r}: `{name}` of {type(self).__name__} is {value!r}, which "
                f"has no parameters of its own. Set `{name}` to an object that has them."
            )
    return BaseEstimator.set_params(self, **params)


def _is_short_form(value: Any, short_forms: Mapping[Hashable, Any]) -> bool:
    return (value is None or isinstance(value, str)) and value in short_forms
