"""Convert a user's X to the standardised inputs of networks, and read validated rows.

There are three steps: `validate` checks X, `encode` makes a table of numbers, and `transform`
standardises it. Encoders learn from all rows of positive weight, and scales from the training
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_consistent_length, check_X_y, validate_data

from skuq import _params
from skuq._messages import warn_user
from skuq.exceptions import SmallValidationWarning, TableWarning
from skuq.files._registry import saved_as
from skuq.tables._columns import find_far_values, read_table, refuse_sparse
from skuq.tables._preprocessing import TablePreprocessor, allow_tables
from skuq.tables._scaling import ImageScaling, RobustScaling, Scaling

#: Constraint of the parameter `preprocess`.
PREPROCESS_CONSTRAINTS: dict[str, list[Any]] = {
    "preprocess": [_params.StrOptions({"auto"}), _params.HasMethods(["fit", "transform"]), None]
}

_MAX_ONE_HOT_CATEGORIES = 50  # categories of one column, for networks without embeddings


class Inputs:
    """Base of all kinds of inputs, for an X that is used as it is."""

    preprocessor: Any = None
    encodes: bool = False  # whether encoding changes arrays of finite numbers
    scales_only: bool = True  # whether they are only shifted and scaled
    code_columns: Sequence[int] = ()  # positions of encoded columns that hold codes
    scaling: Any

    #: ``validate(X, estimator, *, reset=False, min_rows=1)`` checks X; with `reset` the estimator
    #: stores the number and names of features.
    validate: Callable[..., Any]

    def fit_encoder(self, X: Any, y: Any, weight: np.ndarray, estimator: Any) -> np.ndarray:
        """Learn the encoding from the rows of positive weight, and return X as numbers (n, d)."""
        return X

    def encode(self, X: Any, *, mark_unseen: bool = False) -> np.ndarray:
        """Encode validated X as a table of finite numbers (n, d).

        With `mark_unseen`, NaN marks categories that `fit` did not see, for `fill_unseen`.
        """
        return X

    def encode_array(self, X: np.ndarray, *, mark_unseen: bool = False) -> np.ndarray:
        """Encode an array of finite numbers, with the columns of `fit` in their order."""
        return self.encode(X, mark_unseen=mark_unseen)

    def fill_unseen(self, numbers: np.ndarray, k: int, n: int) -> np.ndarray:
        """Replace the marks of unseen categories by the k-th of `n` known ones."""
        return self.preprocessor.fill_unseen(numbers, k, n)

    def fit(self, numbers: np.ndarray, weight: np.ndarray | None = None) -> Self:
        """Learn the scale of encoded training rows."""
        self.scaling.fit(numbers, weight)
        return self

    def transform(self, numbers: Any, xp: Any = np) -> Any:
        """Standardise encoded rows, an array or a tensor with operations `xp`."""
        return self.scaling.transform(numbers, xp)

    @property
    def n_codes(self) -> dict[int, int]:
        """Number of codes of each column of codes."""
        columns = self.code_columns
        return dict(zip(columns, self.preprocessor.n_codes_)) if columns else {}


@saved_as("tables.TableInputs")
class TableInputs(Inputs):
    """Tables with numbers, categories and missing values, encoded according to `preprocess`.

    Parameters
    ----------
    preprocess : "auto", transformer or None
        The estimators' parameter.
    embed : bool, default=False
        Whether networks embed codes of categories, as those of `TabularSpace` do. Their inputs
        are also scaled robustly.
    scaling : Scaling, optional
        Unfitted scaling. By default `RobustScaling` with `embed`, and `Scaling` without.

    Attributes
    ----------
    preprocessor : "auto", transformer or None
        `preprocess`, which `fit_encoder` replaces by the fitted transformer.
    scaling : Scaling
        Fitted by `fit`.
    feature_names : ndarray of shape (n_features,) or None
        Names of the columns of X in `fit`.
    """

    def __init__(
        self, preprocess: Any = "auto", *, embed: bool = False, scaling: Scaling | None = None
    ) -> None:
        self.preprocessor, self.embed = preprocess, embed
        self.scaling: Any = scaling
        self.feature_names = None
        self._limits: Any = None  # smallest and largest values (d,), where others are far

    def validate(self, X: Any, estimator: Any, *, reset: bool = False, min_rows: int = 1) -> Any:
        """Check X as a float array, as a table, or only its columns for a user's transformer."""
        preprocessor = self.preprocessor
        if preprocessor is None:
            # A masked array would pass its hidden values on.
            refuse_sparse(X)
            X = _params.fill_masked(X)
            X = validate_data(
                estimator, X, reset=reset, dtype="float64", ensure_min_samples=min_rows
            )
        elif isinstance(preprocessor, str | TablePreprocessor):
            X = read_table(estimator, X, reset=reset, min_rows=min_rows)
        else:
            # The user's transformer checks the values; here only the columns are compared.
            X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
            validate_data(estimator, X, reset=reset, skip_check_array=True)
        if reset:
            self.feature_names = getattr(estimator, "feature_names_in_", None)
        return X

    def fit_encoder(self, X: Any, y: Any, weight: np.ndarray, estimator: Any) -> np.ndarray:
        """Fit the preprocessor on the rows with positive weight, and encode X.

        Rows of weight 0 are encoded as zeros, unless `preprocess` is None.
        """
        used = np.flatnonzero(weight > 0)
        if self.preprocessor is None:
            numbers, learnt = X, X[used]
        elif len(used) == len(weight):
            numbers = learnt = self._fit_preprocessor(X, y)
        else:
            # Rows of weight 0 may hold anything: no encoder sees them.
            X, y = _params.safe_split(estimator, X, y, used)
            numbers, learnt = None, self._fit_preprocessor(X, y)
        # A few absurd values would ruin a column. Robust scaling bounds them by itself, and a
        # scaling that is given has its own rules.
        far = None if self.embed or self.scaling is not None else find_far_values(learnt)
        if far is not None:
            self._limits = far.low, far.high
            warn_user(
                "X has values so far from all others that these would look alike to a network: "
                f"{far.describe(learnt, used, self._names(learnt.shape[1]))}. They are taken "
                "for the nearest of the others, here and in predictions. Correct them, make them "
                "missing (NaN), or drop their rows.",
                TableWarning,
            )
        if numbers is None:
            numbers = np.zeros((len(weight), learnt.shape[1]))
            numbers[used] = learnt
        return numbers if self._limits is None else np.clip(numbers, *self._limits)

    def _names(self, n_columns: int) -> Sequence[Any]:
        preprocessor, names = self.preprocessor, self.feature_names
        if isinstance(preprocessor, TablePreprocessor):
            names = preprocessor.get_feature_names_out()
        if preprocessor is not None and not isinstance(preprocessor, TablePreprocessor):
            return [f"{k} of what `preprocess` gives" for k in range(n_columns)]
        return [f"x{k}" for k in range(n_columns)] if names is None else [repr(n) for n in names]

    def _fit_preprocessor(self, X: Any, y: Any) -> np.ndarray:
        preprocessor = self.preprocessor
        if isinstance(preprocessor, str):
            max_categories = None if self.embed else _MAX_ONE_HOT_CATEGORIES
            preprocessor = TablePreprocessor(max_categories=max_categories)
        else:
            preprocessor = clone(preprocessor)
        if isinstance(preprocessor, TablePreprocessor):
            numbers = preprocessor.fit_encode(X, y)
            codes = list(preprocessor.code_columns_)
            if codes and not self.embed:
                names = preprocessor.get_feature_names_out()[codes]
                raise ValueError(
                    f"`preprocess` makes codes of columns {names.tolist()}, for an embedding, "
                    "which these networks do not have. Give TablePreprocessor a number for "
                    "`max_categories`, or a larger `max_one_hot`."
                )
        # Not `fit` and `transform`: encoders that learn from y cross-fit in `fit_transform`.
        elif hasattr(preprocessor, "fit_transform"):
            numbers = _finite_numbers(preprocessor.fit_transform(X, y), len(y))
        else:
            numbers = _finite_numbers(preprocessor.fit(X, y).transform(X), len(y))
        self.preprocessor = preprocessor
        return numbers

    def fit(self, numbers: np.ndarray, weight: np.ndarray | None = None) -> Self:
        """Learn the scale of encoded training rows."""
        if self.scaling is None:
            self.scaling = (RobustScaling if self.embed else Scaling)(self.code_columns)
        self.scaling.fit(numbers, weight, self._names(numbers.shape[1]))
        return self

    def encode(self, X: Any, *, mark_unseen: bool = False) -> np.ndarray:
        """Encode validated X as a table of finite numbers (n, d); see `Inputs`."""
        preprocessor = self.preprocessor
        if preprocessor is None:
            return X
        if isinstance(preprocessor, TablePreprocessor):
            return preprocessor.encode(X, mark_unseen=mark_unseen)
        return _finite_numbers(preprocessor.transform(X), X.shape[0])

    def transform(self, numbers: Any, xp: Any = np) -> Any:
        """Standardise encoded rows, with far values moved to the nearest of the others."""
        if self._limits is not None:
            numbers = xp.minimum(xp.maximum(numbers, self._limits[0]), self._limits[1])
        return super().transform(numbers, xp)

    @property
    def scales_only(self) -> bool:  # type: ignore[override]
        """Whether all that happens to arrays of finite numbers is a shift and a scale."""
        return not self.encodes and self._limits is None

    @property
    def encodes(self) -> bool:  # type: ignore[override]
        """Whether encoding changes arrays of finite numbers."""
        return not getattr(self.preprocessor, "is_identity", self.preprocessor is None)

    def encode_array(self, X: np.ndarray, *, mark_unseen: bool = False) -> np.ndarray:
        """Encode an array of finite numbers, with the columns of `fit` in their order."""
        names = self.feature_names
        # A transformer that selects columns by name needs a frame.
        X = pd.DataFrame(X, columns=names) if names is not None and self.encodes else X
        return self.encode(X, mark_unseen=mark_unseen)

    @property
    def code_columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """Positions of encoded columns that hold codes."""
        return getattr(self.preprocessor, "code_columns_", ())


@saved_as("tables.ImageInputs")
class ImageInputs(Inputs):
    """Images, as arrays of four axes or as the flat rows of a table.

    Encoded rows are flat, as they are for scikit-learn: ``n_features_in_ == h * w * c``.

    Parameters
    ----------
    shape : tuple of int, or None
        Shape (height, width[, channels]) given by the user; None uses the shape of X.
    flat : bool, default=False
        Whether the networks' inputs are flat rows.
    embed : bool, default=False
        Whether networks are those of `TabularSpace`, whose inputs are robustly scaled flat rows.

    Attributes
    ----------
    shape : tuple of int
        Shape (height, width, channels), set by `validate` in `fit`.
    """

    def __init__(self, shape: Sequence[int] | None, *, flat: bool, embed: bool) -> None:
        self.shape: Any = shape
        self.flat = flat or embed
        self.embed = embed

    def validate(self, X: Any, estimator: Any, *, reset: bool = False, min_rows: int = 1) -> Any:
        """Check images or flat rows, and flatten them."""
        X = np.asarray(X) if isinstance(X, list | tuple) else _params.fill_masked(X)
        n_axes = getattr(X, "ndim", 2)
        if n_axes == 3:
            raise ValueError(
                f"X must have four axes (n, h, w, channels), or flat rows with `image_shape=`. "
                f"Got {X.shape}. One image is X[None]. Grey images have one channel, (n, h, w, 1)."
            )
        shape = tuple(X.shape[1:]) if n_axes == 4 else None
        if not reset and shape not in (None, self.shape):
            raise ValueError(
                f"X has images of shape {shape}, but {type(estimator).__name__} was fitted on "
                f"images of shape {self.shape}."
            )
        # scikit-learn validates tables, and counts features by columns.
        X = X.reshape(len(X), math.prod(shape)) if shape is not None else X
        X = validate_data(estimator, X, reset=reset, dtype="float64", ensure_min_samples=min_rows)
        if reset and self.shape is None:
            self.shape = shape
        elif reset:
            given = tuple(self.shape)
            wanted = given if len(given) == 3 else (*given, 1)
            valid = len(wanted) == 3 and all(isinstance(n, Integral) and int(n) > 0 for n in wanted)
            # The user's shape must be that of the rows, and of X if it has four axes.
            valid = valid and math.prod(wanted) == X.shape[1] and shape in (None, wanted)
            if not valid:
                raise ValueError(
                    "`image_shape` must be (height, width) or (height, width, channels) of images "
                    f"with {X.shape[1]} numbers each. Got {self.shape!r}."
                )
            self.shape = wanted
        return X

    def fit(self, numbers: np.ndarray, weight: np.ndarray | None = None) -> Self:
        """Learn the scale of each channel, or of each column of flat rows."""
        if self.flat:
            self.scaling = RobustScaling() if self.embed else Scaling()
        else:
            self.scaling = ImageScaling(self.shape)
        return super().fit(numbers, weight)


@saved_as("tables.ForeignInputs")
class ForeignInputs(Inputs):
    """Inputs of meta-estimators, which pass X unchanged to inner estimators that validate it."""

    def validate(self, X: Any, estimator: Any, *, reset: bool = False, min_rows: int = 1) -> Any:
        """Store or compare the number and names of features, and return X."""
        _params.refuse_lazy(X)
        if getattr(X, "ndim", 2) != 1:  # the inner estimators raise a clear error for one row
            validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X


def learns_from_y(transformer: Any, X: Any, y: Any, rows: np.ndarray) -> bool:
    """Tell whether a transformer of the user's, or a part of it, learns from y.

    scikit-learn's transformers tell it by a tag. Others do if y changes what they make of `rows` of
    X, or if they do not fit without y.
    """
    if transformer is None or isinstance(transformer, str | TablePreprocessor):
        return False
    parts = [transformer, *transformer.get_params().values()]
    parts = [part for part in parts if hasattr(part, "fit") and not isinstance(part, type)]
    tagged = [part for part in parts if hasattr(part, "__sklearn_tags__")]
    # Scores of columns use y, though the selectors do not require it.
    if any(get_tags(p).target_tags.required or hasattr(p, "score_func") for p in tagged):
        return True
    if all(type(part).__module__.startswith("sklearn.") for part in parts):
        return False
    X, y = (_params.safe_indexing(part, rows) for part in (X, y))
    try:
        made = [clone(transformer).fit(X, *target).transform(X) for target in ((), (y,))]
    except Exception:  # each has its own error without y
        return True
    return joblib.hash(made[0]) != joblib.hash(made[1])


def add_input_tags(tags: Any, preprocess: Any) -> Any:
    """Set scikit-learn's input tags according to the parameter `preprocess`."""
    if isinstance(preprocess, str):
        return allow_tables(tags)
    if preprocess is not None:
        tags.input_tags = get_tags(preprocess).input_tags
    return tags


def _finite_numbers(numbers: Any, n_rows: int) -> np.ndarray:
    """Convert the output of a user's transformer to an array (n, d) of finite numbers."""
    if sparse.issparse(numbers):  # the default of scikit-learn's encoders
        numbers = numbers.toarray()
    try:
        numbers = check_array(numbers, dtype="float64")
        check_consistent_length(numbers, np.empty(n_rows))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`preprocess` must convert X to a table of finite numbers, row by row: {error}"
        ) from error
    return numbers


_ENOUGH_VALIDATION_ROWS = 100  # with fewer there is a warning


class Rows(NamedTuple):
    """Validated rows: X (n, d) and y (n, m) in float64, weights (n,) of at most 1."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Select rows by position or mask."""
        return Rows(self.X[rows], self.y[rows], self.weight[rows])

    @property
    def used(self) -> np.ndarray:
        """Positions of the rows with positive weight."""
        return np.flatnonzero(self.weight > 0)


def check_groups(groups: Any, X: Any) -> np.ndarray | None:
    """Check groups, and return an array (n,), or None if there are none."""
    if groups is None:
        return None
    if np.shape(groups) != (len(X),):
        raise ValueError(f"`groups` must have shape ({len(X)},). Got {np.shape(groups)}.")
    return np.asarray(_params.fill_masked(groups))


def group_codes(groups: np.ndarray) -> np.ndarray:
    """Number groups (n,) in their order; their names may be of any kinds, None included."""
    return pd.factorize(groups, sort=True, use_na_sentinel=False)[0]


def read_rows(
    estimator: Any, inputs: Inputs, targets: Any, X: Any, y: Any, weight: Any, min_rows: int = 1
) -> Rows:
    """Validate the user's arguments of `fit`, and encode them as numbers.

    `inputs` and `targets` learn the encoding from the rows with positive weight.

    Parameters
    ----------
    estimator : estimator
        It gets the attributes `n_features_in_` and `feature_names_in_`.
    inputs : Inputs
    targets : Targets
    X, y, weight :
        The user's arguments.
    min_rows : int, default=1
        Minimum number of rows.
    """
    y = targets.validate(y, estimator)
    X = inputs.validate(X, estimator, reset=True, min_rows=min_rows)
    check_consistent_length(X, y)
    # Weights first: encoders must not learn from rows of weight 0.
    weight = _params.check_weights(weight, X, relative=True)
    values = targets.fit_encoder(y, weight)
    return targets.weigh(Rows(inputs.fit_encoder(X, y, weight, estimator), values, weight))


def read_validation_rows(
    estimator: Any, inputs: Inputs, targets: Any, data: Any, name: str = "validation_data"
) -> Rows:
    """Validate and encode separate validation rows given by the user.

    Parameters
    ----------
    estimator : estimator
        Its number and names of features are compared with those of the rows.
    inputs : Inputs
    targets : Targets
    data : tuple (X, y) or (X, y, sample_weight)
    name : str
        Name of the argument, for error messages.

    Returns
    -------
    Rows
        The rows with positive weight, at least one.
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(
            f"`{name}` must be a tuple (X, y) or (X, y, sample_weight). Got {type(data).__name__}."
        )
    X, y, *weight = data
    X, values = inputs.encode(inputs.validate(X, estimator)), targets.encode(y)
    X, _ = check_X_y(X, values, dtype="float64", multi_output=True)
    given = weight[0] if weight else None
    # All weights 0, or all class weights 0: there is no row to validate on.
    if given is None or np.any(given):
        rows = targets.weigh(Rows(X, values, _params.check_weights(given, X, relative=True)))
        if len(rows.used):
            return rows.take(rows.used)
    raise ValueError(f"`{name}` must have a row of positive weight. Got {len(X)} rows.")


def warn_of_few_rows(
    n_valid: int, advice: str = "A larger `validation` or validation_data may help."
) -> None:
    """Warn if members are chosen on few validation rows."""
    if n_valid < _ENOUGH_VALIDATION_ROWS:
        warn_user(
            f"Members are chosen on {n_valid} validation rows; below {_ENOUGH_VALIDATION_ROWS} the "
            f"choice depends much on chance. {advice}".rstrip(),
            SmallValidationWarning,
        )
