"""Parameters of estimators: constraints, and settings that are given as one object.

Private tools of scikit-learn are imported here alone: they may move or change with any release,
and only this file then needs a change.
"""

from collections.abc import Mapping
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


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def parameters(cls: type[_T]) -> type[_T]:
    """Make a class a dataclass of its parameters, which are keyword-only (decorator).

    Positional ones are fields with ``field(kw_only=False)``. The class body has all parameters, in
    the order of the signature: base classes have none.
    """
    return dataclass(eq=False, repr=False, kw_only=True)(cls)


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


def replace_short_forms(estimator: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for `set_params`, with settings in place of short forms that it reaches into.

    Raise ValueError if a key reaches into a value without parameters.
    """
    short_forms, known, replaced = estimator._settings, estimator.get_params(deep=False), {}
    for key in [key for key in params if "__" in key]:
        name = key.partition("__")[0]
        value = params.get(name, known.get(name))
        if name in short_forms and _is_short_form(value, short_forms[name]):
            replaced[name] = short_forms[name][value]()
        elif name in known and not hasattr(value, "set_params"):
            raise ValueError(
                f"Invalid parameter {key!r}: `{name}` of {type(estimator).__name__} is {value!r}, "
                f"which has no parameters of its own. Set `{name}` to an object that has them."
            )
    return {**params, **replaced}


def _is_short_form(value: Any, short_forms: Mapping[Any, Any]) -> bool:
    return (value is None or isinstance(value, str)) and value in short_forms
