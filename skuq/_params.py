"""Parameters and arguments that users give: constraints, settings and checks.

Scikit-learn's private validation tools are imported here alone. They may move or change with any
release of scikit-learn, and only this file then needs a change.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar, dataclass_transform

import numpy as np
import pandas as pd
from sklearn import config_context
from sklearn.base import BaseEstimator, clone

# It validates parameters, and not again those of estimators inside, and ends callbacks.
from sklearn.base import _fit_context as fit_context
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._split import GroupsConsumerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils._param_validation import (
    HasMethods,
    Hidden,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_feature_names_in as check_feature_names_in
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples
from sklearn.utils.validation import check_array, has_fit_parameter

from skuq._formulas import SQUARABLE
from skuq.files._registry import saved_as

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9 has no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Placeholder."""


_T = TypeVar("_T")


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def parameters(
    name: str, *, kind: str | None = None, kw_only: bool = True
) -> Callable[[type[_T]], type[_T]]:
    """Make a class a dataclass of its parameters, saved under this name (decorator).

    All are fields of the class itself; single positional ones have ``field(kw_only=False)``.
    """
    make = dataclass(eq=False, repr=False, kw_only=kw_only)
    return lambda cls: saved_as(name, kind=kind)(make(cls))


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
    value, short_forms = getattr(estimator, name), estimator._settings[name]
    # The user's object is never touched: searches share it between clones.
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
        # scikit-learn would set an attribute of the string, and say that it has none.
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


def check_count(name: str, value: Any) -> int:
    """Return `value` as an int; raise ValueError unless it is a whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 1:
        raise ValueError(f"`{name}` must be a positive whole number. Got {value!r}.")
    return int(value)


def fill_masked(values: Any) -> Any:
    """Replace what a masked array hides by NaN: NumPy's functions would use the hidden values.

    Nullable integers and booleans of pandas without a missing one become plain ones: scikit-learn
    would convert them to float64, where large integers are no longer different. Numbers get the
    byte order of the machine, which pandas needs.
    """
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        values = values.astype(dtype.newbyteorder("="))
    dtype = getattr(dtype, "numpy_dtype", None)
    if getattr(dtype, "kind", "") in ("b", "i", "u") and not values.isna().any():
        return values.to_numpy(dtype=dtype)
    # Only masked arrays need the rest.
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values):
        return np.ma.getdata(values)
    kind = "float64" if values.dtype.kind in "biuf" else object
    return np.ma.filled(values.astype(kind), np.nan)


def as_floats(values: Any, name: str = "y") -> np.ndarray:
    """Convert values to an array of floats, with NaN for missing and masked values.

    Raise ValueError, with the name of the argument, for values that are no real numbers.
    """
    try:
        values = fill_masked(values)
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError("imaginary parts would be lost")
        floats = np.asarray(values, dtype="float64")
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be numbers: {error}.") from error
    refuse_dates(array, f"`{name}`")
    return np.where(pd.isna(array), np.nan, floats) if array.dtype.kind == "O" else floats


def read_only_copy(values: Any, dtype: type = float) -> np.ndarray:
    """Copy numbers to an array that neither their giver nor their taker can change."""
    copied: np.ndarray = np.array(values, dtype=dtype)
    copied.flags.writeable = False
    return copied


def refuse_dates(values: Any, name: str) -> None:
    """Raise ValueError for dates and times, which would count in their unit, as whole numbers."""
    dtypes: Any = getattr(values, "dtypes", getattr(values, "dtype", None))
    for dtype in np.ravel(dtypes):
        if getattr(dtype, "kind", None) in ("m", "M"):
            raise ValueError(
                f"{name} must hold numbers. Got dates or times ({dtype}). Convert them first, for "
                "example to days since some day."
            )


def check_targets(y: Any, estimator: Any, name: str = "y") -> np.ndarray:
    """Check that y holds finite numbers, and return float64 of shape (n,) or (n, m).

    Labels, which scikit-learn cannot convert, get a message that says what to do.
    """
    refuse_dates(y, name)
    if y is None:
        who = "A regressor" if estimator is None else f"This {type(estimator).__name__} estimator"
        raise ValueError(f"{who} requires {name} to be passed, but the target y is None")
    try:
        # Not with validate_data, which would forget the names of X's features. NaN are refused
        # whatever scikit-learn is set to assume.
        with config_context(assume_finite=False):
            numbers: np.ndarray = check_array(
                fill_masked(y), ensure_2d=False, dtype="float64", input_name=name
            )
    except (TypeError, ValueError) as error:
        # The last two are of dates, as objects or beside numbers.
        if not re.search(r"could not convert string|float\(\) argument|promoted", str(error)):
            raise
        raise ValueError(
            f"{name} of a regressor must hold numbers: {error}. Convert texts of numbers first, "
            "without units and with decimal points, and dates. Classes are for classifiers, for "
            "example TabularEnsembleClassifier."
        ) from error
    return numbers


def check_labels(y: Any) -> np.ndarray:
    """Check that y holds classes, none of them missing, and return an array (n,)."""
    if y is None:
        raise ValueError("A classifier requires y to be passed, but the target y is None.")
    y = fill_masked(y)
    objects = np.asarray(y).ravel()
    # scikit-learn's message would not say that NaN are in y; None is another type of label, below.
    if objects.dtype == object and (pd.isna(objects) & [v is not None for v in objects]).any():
        raise ValueError("Input y contains NaN: leave out rows whose label is missing.")
    y = column_or_1d(y, warn=True)
    with config_context(assume_finite=False):
        assert_all_finite(y, input_name="y")
    labels = y.tolist() if y.dtype == object else []
    kinds = sorted({"str" if isinstance(label, str) else type(label).__name__ for label in labels})
    if len(kinds) > 1:  # they cannot be sorted
        raise ValueError(
            f"y must have labels of one type. Got {' and '.join(kinds)}. Drop rows whose label is "
            "missing, and convert the others."
        )
    if kinds not in ([], ["str"]) and type_of_target(y, input_name="y") == "unknown":
        kind = kinds[0] if kinds[0] in ("bool", "int") else "str"
        raise ValueError(
            f"Unknown label type: y holds {kinds[0]} as objects, which scikit-learn's scores do "
            f"not take. Give numpy.asarray(y).astype({kind})."
        )
    check_classification_targets(y)
    return y


def check_weights(sample_weight: Any, rows: Any, *, relative: bool = False) -> np.ndarray:
    """Check weights of rows, and return an array (n,); None or a number means equal weights.

    They must be non-negative and not all 0, otherwise ValueError is raised. With `relative` they
    are divided by the largest. Without it they stay as they are, so that counts stay counts,
    unless they are so large that their sums would overflow.
    """
    weight: np.ndarray = check_sample_weight(
        fill_masked(sample_weight), rows, dtype="float64", ensure_non_negative=True
    )
    if not weight.any():
        raise ValueError("`sample_weight` must be positive for at least one row. All are 0.")
    largest = weight.max()
    return weight / largest if relative or largest >= SQUARABLE else weight


def fit_argument(estimator: Any, name: str = "sample_weight") -> str | None:
    """Name the argument of `fit` by which the estimator that predicts gets one value per row.

    A pipeline hands it to its last step, under that step's name. None if it takes none, also
    because the pipeline samples rows.
    """
    if has_fit_parameter(estimator, name):
        return name
    # The `fit` of these takes any keyword, for the estimator inside.
    if isinstance(estimator, BaseSearchCV):
        argument = fit_argument(estimator.estimator, name)
        # A search keeps groups for its own folds, if those are folds of groups.
        if name == "groups" and isinstance(estimator.cv, GroupsConsumerMixin):
            return name
        return None if argument == "groups" else argument
    if isinstance(estimator, TransformedTargetRegressor):
        return fit_argument(estimator.regressor or LinearRegression(), name)
    steps = estimator.steps if isinstance(estimator, Pipeline) else []
    if not steps or any(hasattr(step, "fit_resample") for _, step in steps):
        return None
    last_name, last = steps[-1]
    argument = fit_argument(last, name)
    return None if argument is None else f"{last_name}__{argument}"


def check_member_weights(
    weights: Any, n_members: int, *, positive: bool = False, tolerance: float = 1e-6
) -> np.ndarray:
    """Check weights of members, and return a read-only copy (K,); None means equal weights.

    Raise ValueError unless they are K non-negative numbers (positive ones with `positive`) that
    sum to 1 within the tolerance.
    """
    checked = read_only_copy(np.full(n_members, 1 / n_members) if weights is None else weights)
    # Positive conditions, so that NaN fails.
    sound = checked > 0 if positive else checked >= 0
    if not (checked.shape == (n_members,) and sound.all() and abs(checked.sum() - 1) <= tolerance):
        raise ValueError(
            f"`weights` must be {n_members} {'positive' if positive else 'non-negative'} numbers "
            f"that sum to 1. Got {checked}."
        )
    return checked


def check_probabilities(
    what: str, proba: np.ndarray, axis: int, *, tolerance: float = 1e-6
) -> np.ndarray:
    """Return sums along an axis; raise ValueError unless they are 1, of non-negative numbers."""
    sums = proba.sum(axis=axis)
    # Positive conditions, so that NaN fails.
    if not ((proba >= 0).all() and (abs(sums - 1) <= tolerance).all()):
        raise ValueError(
            f"{what} must be non-negative and sum to 1. The smallest probability is "
            f"{proba.min()}; the sums lie between {sums.min()} and {sums.max()}."
        )
    return sums


def class_codes(
    labels: Any, classes: np.ndarray, problem: str = "y has labels that were not seen in fit"
) -> np.ndarray:
    """Convert labels (n,) or (n, 1) to positions in `classes`.

    Raise ValueError with the text `problem` for unknown labels.
    """
    # Compare in Python, since NumPy's searches would confuse 1 with the class "1".
    code = {label: k for k, label in enumerate(classes.tolist())}
    labels = np.asarray(fill_masked(labels)).ravel().tolist()
    if unknown := set(labels) - code.keys():
        raise ValueError(
            f"{problem}: {sorted(unknown, key=repr)}. The known labels are {classes.tolist()}."
        )
    return np.array([code[label] for label in labels], dtype=int)


def first_true(conditions: Mapping[str, bool]) -> str | None:
    """Find the name of the first condition that holds; None if none does."""
    return next((name for name, holds in conditions.items() if holds), None)


def refuse(problems: Mapping[str, bool]) -> None:
    """Raise ValueError with the first of the messages whose condition holds."""
    if message := first_true(problems):
        raise ValueError(message)


def classifies(estimator: Any) -> bool:
    """Whether a fitted estimator is a classifier."""
    return len(getattr(estimator, "classes_", ())) > 0  # CatBoost's regressors have none


class NoUncertaintyError(TypeError):
    """A regressor does not say how sure it is of its predictions."""


class CoverageError(ValueError):
    """Calibration rows are too few for an interval of this coverage."""


def predict_normal(estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predict mean and standard deviation, each (n[, m]), with a regressor.

    Raise NoUncertaintyError if the estimator gives no standard deviation, and TypeError if it is
    not in units of y.
    """
    # It would transform the mean back, and leave the standard deviation as it is.
    if isinstance(estimator, TransformedTargetRegressor):
        predict_normal(estimator.regressor_, X)  # raises if there is no standard deviation anyway
        raise TypeError(
            "The standard deviation of a TransformedTargetRegressor is not in units of y. Give the "
            "regressor inside, with y as it is: skuq's have `target_transform`. Or put one without "
            "uncertainty inside, and calibrate the whole with CalibratedUncertaintyRegressor."
        )
    try:
        predicted = estimator.predict(X, return_std=True)
    except (TypeError, ValueError) as error:
        if "return_std" not in str(error):
            raise
        predicted = None
    if not isinstance(predicted, tuple | list) or len(predicted) != 2:
        raise NoUncertaintyError(
            "A regressor must have `predict(X, return_std=True)` or `predict_distribution(X)`. "
            f"{estimator!r} does not say how sure it is. CalibratedUncertaintyRegressor(model, "
            "cv='prefit').fit(X, y) with rows it has not seen gives it the distribution of its "
            "errors."
        )
    mean, std = (np.asarray(values, dtype=float) for values in predicted)
    return mean, std


def reshape_like_prediction(y: Any, mean: Any) -> np.ndarray:
    """Reshape targets to the prediction's shape: some estimators drop an axis of length 1."""
    targets, shape = as_floats(y), np.shape(mean)
    fits = targets.size == np.prod(shape) and targets.shape[:1] == shape[:1]
    return targets.reshape(shape) if fits else targets


def unwrap_estimator(estimator: Any, X: Any = None) -> tuple[Any, Any]:
    """Find the estimator inside searches, pipelines and frozen estimators, and its input X.

    Needed for what those do not delegate: `predict_distribution`, and ``predict(X,
    return_std=True)`` of searches, and of pipelines under metadata routing.
    """
    if hasattr(estimator, "best_estimator_"):
        return unwrap_estimator(estimator.best_estimator_, X)
    if isinstance(estimator, FrozenEstimator):
        return unwrap_estimator(estimator.estimator, X)
    if isinstance(estimator, Pipeline):
        if X is not None and len(estimator) > 1:
            # The pipeline itself knows which of its steps act on new rows: samplers do not.
            outer = copy.copy(estimator)
            outer.steps = [*estimator.steps[:-1], ("input", _ReturnsInput())]
            X = outer.predict(X)
        return unwrap_estimator(estimator[-1], X)
    return estimator, X


class _ReturnsInput(BaseEstimator):
    """Last step of a pipeline, whose prediction is what the other steps make of X."""

    def fit(self, X, y=None):
        return self

    def predict(self, X):
        return X

    def __sklearn_is_fitted__(self):
        return True


def class_probabilities(
    model, X, classes: np.ndarray, *, tolerance: float = 1e-3, rounding: float = 1e-9
) -> np.ndarray:
    """Predict probabilities (n, C) in the order of `classes`; 0 for those the model has not seen.

    Raise ValueError if the model's predictions are not probabilities: their sums may differ from 1
    by the tolerance, as those of half precision do. More than rounding is divided out.
    """
    proba = np.asarray(model.predict_proba(X), dtype=float)
    known, sums = class_codes(model.classes_, classes), proba.sum(axis=-1)
    is_sound = (proba >= 0).all() and (abs(sums - 1) < tolerance).all()  # NaN fails
    if proba.shape[1:] != known.shape or not is_sound:
        raise ValueError(
            f"predict_proba of {model!r} must give non-negative numbers of shape "
            f"(n_samples, {len(known)}), with sums of 1. Got shape {proba.shape}, numbers from "
            f"{proba.min(initial=np.inf)} to {proba.max(initial=-np.inf)}."
        )
    if (abs(sums - 1) > rounding).any():  # probabilities in single precision
        proba = proba / sums[:, None]
    # A fold may lack a class that others have.
    every = np.zeros((len(proba), len(classes)))
    every[:, known] = proba
    return every


def refuse_lazy(X: Any) -> None:
    """Raise TypeError for a table whose rows are not in memory, as of polars and Dask."""
    for method in ("collect", "compute"):
        # Not the columns themselves: a lazy frame may have to compute their names, and warn of it.
        # Methods are the class': a frame of pandas may have a column of this name.
        if hasattr(type(X), method) and "columns" in dir(X):
            raise TypeError(
                f"X is a {type(X).__name__}, whose rows are not in memory. Give X.{method}()."
            )
