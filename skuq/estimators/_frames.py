"""Tables at the door of an estimator: frames as they come, by the parameter `preprocess`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from skuq._params import HasMethods, StrOptions, safe_split
from skuq.estimators._rows import Rows, check_weights
from skuq.networks import TabularSpace
from skuq.tables import TablePreprocessor
from skuq.tables._columns import read_table

__all__ = ["PREPROCESS_CONSTRAINTS", "FrameInputsMixin"]

PREPROCESS_CONSTRAINTS: dict = {
    "preprocess": [StrOptions({"auto"}), HasMethods(["fit", "transform"]), None],
}

_MOST_COLUMNS_EACH = 50  # of a categorical column, for networks that embed none


class FrameInputsMixin:
    """Lets tables in as `preprocess` says, and makes the numbers of them that networks get.

    Must come before the prediction API in the order of classes. Between `_check_table` and
    `_encoded_rows` X is as it was given, but for its type.
    """

    @property
    def _is_tabular(self) -> bool:
        """Whether networks are of `TabularSpace`: they embed codes of categories."""
        chosen = getattr(self, "network", None), getattr(self, "search_space", None)
        return any(isinstance(choice, str) and choice == "tabular" for choice in chosen)

    def _tabular_space(self, x, n_rows) -> TabularSpace:
        """The space of networks for inputs x, of which so many are trained on."""
        columns = self._code_columns
        codes = dict(zip(columns, self.preprocessor_.n_codes_)) if columns else {}
        return TabularSpace(x, codes, n_rows, is_classifier(self))

    @property
    def _preprocess(self):
        """What is to be fitted: the parameter, unless inputs are no tables."""
        return self.preprocess

    def _check_pair(self, X, y, *, ensure_min_samples=1, **checks):
        """X with its names and y, checked for `fit`; `checks` are those of y."""
        if self._preprocess is None:
            checks["ensure_min_samples"] = ensure_min_samples
            return validate_data(self, X, y, dtype="float64", **checks)
        y = validate_data(self, y=y, **checks)
        X = self._read(self._preprocess, X, ensure_min_samples=ensure_min_samples)
        check_consistent_length(X, y)
        return X, y

    def _read(self, preprocess, X, *, reset=True, ensure_min_samples=1):
        """X past the door, in the type that `preprocess` takes."""
        if isinstance(preprocess, str | TablePreprocessor):
            return read_table(self, X, reset=reset, ensure_min_samples=ensure_min_samples)
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return X

    def _encoded_rows(self, X, y, sample_weight) -> Rows:
        """Rows of numbers; what makes them learns from the rows of positive weight."""
        weight, targets = check_weights(sample_weight, X), self._targets(y)
        if self._preprocess is None:
            self.preprocessor_ = None
            return Rows(X, targets, weight)
        used = np.flatnonzero(weight > 0)
        every = len(used) == len(weight)
        X_used, y_used = (X, y) if every else safe_split(self, X, y, used)
        self.preprocessor_, numbers = self._fit_preprocessor(X_used, y_used)
        if not every:  # the others are in no part of the rows
            numbers, used_numbers = np.zeros((len(weight), numbers.shape[1])), numbers
            numbers[used] = used_numbers
        return Rows(numbers, targets, weight)

    def _fit_preprocessor(self, X, y):
        """A fitted transformer, and what it makes of the rows it has learnt from."""
        if isinstance(self._preprocess, str):
            most = None if self._is_tabular else _MOST_COLUMNS_EACH
            preprocessor = TablePreprocessor(max_categories=most)
        else:
            preprocessor = clone(self._preprocess)
        if isinstance(preprocessor, TablePreprocessor):
            preprocessor.fit(X)
            self._check_codes(preprocessor)
            return preprocessor, preprocessor.encode(X)
        # Not the same as `fit` and `transform`: encoders that learn from y fold the rows.
        if hasattr(preprocessor, "fit_transform"):
            numbers = preprocessor.fit_transform(X, y)
        else:
            numbers = preprocessor.fit(X, y).transform(X)
        return preprocessor, _finite_numbers(numbers, len(y))

    def _check_codes(self, preprocessor):
        if len(preprocessor.code_columns_) and not self._is_tabular:
            names = preprocessor.get_feature_names_out()[list(preprocessor.code_columns_)]
            raise ValueError(
                f"`preprocess` makes codes of columns {names.tolist()}, for an embedding, which "
                "these networks do not have. Give TablePreprocessor a number for "
                "`max_categories`, or a larger `max_one_hot`."
            )

    def _check_inputs(self, X):
        """Rows of numbers (n, d) from X as `predict` gets it."""
        preprocessor = self.preprocessor_
        if preprocessor is None:
            return super()._check_inputs(X)
        X = self._read(preprocessor, X, reset=False)
        if isinstance(preprocessor, TablePreprocessor):
            return preprocessor.encode(X)
        return _finite_numbers(preprocessor.transform(X), X.shape[0])

    @property
    def _takes_numbers_as_they_are(self) -> bool:
        """Whether arrays of finite numbers reach the networks unchanged, but for scaling."""
        preprocessor = self.preprocessor_
        return preprocessor is None or getattr(preprocessor, "is_identity", False)

    def _check_array_of_inputs(self, X):
        """`_check_inputs` of an array whose columns are those of `fit`, in their order."""
        names = getattr(self, "feature_names_in_", None)
        return self._check_inputs(X if names is None else pd.DataFrame(X, columns=names))

    @property
    def _code_columns(self):
        return getattr(self.preprocessor_, "code_columns_", ())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if isinstance(self.preprocess, str):
            tags.input_tags.allow_nan = True
            tags.input_tags.string = True
            tags.input_tags.categorical = True
        elif self.preprocess is not None:
            tags.input_tags = get_tags(self.preprocess).input_tags
        return tags


def _finite_numbers(numbers, n_rows):
    """What a user's transformer gives, as an array (n, d)."""
    if sparse.issparse(numbers):  # as encoders give it by default
        numbers = numbers.toarray()
    try:
        numbers = check_array(numbers, dtype="float64")
        check_consistent_length(numbers, np.empty(n_rows))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`preprocess` must make a table of finite numbers of X, row by row: {error}"
        ) from error
    return numbers
