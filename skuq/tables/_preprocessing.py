"""Encode tables with columns of any kind as arrays of finite numbers."""

import itertools
import reprlib
from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils.validation import check_is_fitted

from skuq._messages import warn_user
from skuq._params import Interval, StrOptions, check_feature_names_in, fit_context, parameters
from skuq.exceptions import TableWarning
from skuq.files._registry import saved_as
from skuq.tables._columns import CATEGORY, EMPTY, NUMBER, Columns, read_table

# Smallest number of rows with which a category gets a code of its own. Rarer categories share the
# code of unseen ones, which is trained by them.
_FREQUENT = 2


@parameters("tables.TablePreprocessor", kw_only=False)
class TablePreprocessor(TransformerMixin, BaseEstimator):
    """Encode numbers, booleans, strings, categories and missing values as finite numbers.

    Parameters
    ----------
    max_one_hot : int, default=10
        Largest number of categories, a missing value included, that are one-hot encoded as
        columns of 0 and 1. Two categories become a single column.
    max_categories : int or None, default=None
        Encoding of columns with more categories. None encodes each as one column of codes, for an
        embedding: see `code_columns_`. A number one-hot encodes each as at most this many columns:
        its most frequent categories, and one column for all others.
    missing : {"indicator", "median"}, default="indicator"
        Encoding of missing numbers. Both replace them by their column's median; "indicator" adds
        a column of 0 and 1 for each column that had missing numbers in `fit`.

    Attributes
    ----------
    numeric_columns_, categorical_columns_, dropped_columns_ : ndarray of int
        Positions in X of columns read as numbers (booleans included), of columns read as
        categories, and of columns without any value, which are dropped.
    medians_ : ndarray of shape (n_numeric_columns,)
        Medians of the numeric columns.
    categories_ : list of ndarray of str
        Sorted categories of each categorical column, without the missing value.
    code_columns_ : tuple of int
        Positions in the output of columns of codes. Code 0 stands for categories that `fit` has
        not seen, or only once. A missing value has a code of its own if `fit` has seen one.
    n_codes_ : tuple of int
        Number of codes of each of these columns.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X, defined only if X has string column names.

    Raises
    ------
    ValueError
        If a column has infinite numbers, dates or times, or no column has a value; the
        message names the column.
    TypeError
        If X is sparse.

    See Also
    --------
    sklearn.compose.ColumnTransformer : Apply a transformer to each column.
    sklearn.preprocessing.TargetEncoder : Encode categories as numbers learnt from y.

    Notes
    -----
    Numbers come first, in the order of X, so that an array of finite numbers is not changed.
    Indicators follow, then one-hot columns, and codes last. Columns of objects are numbers if
    each object is a number, and otherwise categories, as text: 1 and "1" are the same. A category
    not seen in `fit` is 1 in the column of all others, if `max_categories` has left one, and 0 in
    all other one-hot columns. Of two categories it therefore counts as the first. `transform` warns
    of such categories; networks of skuq predict them as a mixture of known ones.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.tables import TablePreprocessor
    >>> X = pd.DataFrame({"age": [31, None, 54], "city": ["Rome", "Oslo", "Rome"]})
    >>> encoder = TablePreprocessor().fit(X)
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'missingindicator_age', 'city_Rome']
    >>> encoder.transform(X)[1].tolist()
    [42.5, 1.0, 0.0]
    """

    max_one_hot: int = 10
    _: KW_ONLY
    max_categories: int | None = None
    missing: str = "indicator"

    _parameter_constraints = {
        "max_one_hot": [Interval(Integral, 1, None, closed="left")],
        "max_categories": [Interval(Integral, 2, None, closed="left"), None],
        "missing": [StrOptions({"indicator", "median"})],
    }

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None):
        """Learn the kinds of the columns of X, and their medians and categories.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Table to learn from.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        self._fit_columns(X)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def fit_encode(self, X, y=None) -> np.ndarray:
        """Fit, and encode the same table, whose columns are read once.

        y, of numbers or classes, orders the categories for `fill_unseen`.
        """
        return self.encode(self._fit_columns(X, y))

    def _fit_columns(self, X, y=None) -> Columns:
        self.__dict__.pop("n_codes_", None)  # learnt last: a fit that fails leaves none of another
        columns = Columns(read_table(self, X), getattr(self, "feature_names_in_", None))
        kinds = np.array([columns.kind_to_fit(k) for k in range(columns.n)])
        self.numeric_columns_ = np.flatnonzero(kinds == NUMBER)
        self.categorical_columns_ = np.flatnonzero(kinds == CATEGORY)
        self.dropped_columns_ = np.flatnonzero(kinds == EMPTY)
        dropped = [columns.name(k) for k in self.dropped_columns_]
        if len(dropped) == columns.n:
            raise ValueError(
                "X must have at least one value. Got missing values only, in all columns."
            )
        if dropped:
            warn_user(
                f"Columns {dropped} hold missing values only, and are left out.", TableWarning
            )
        # Numbers: medians, and the columns that need an indicator of missing numbers.
        numbers = columns.numbers(self.numeric_columns_)
        missing = np.isnan(numbers).any(axis=0)
        with np.errstate(over="ignore"):
            self.medians_ = np.nanmedian(numbers, axis=0)
        self._indicated = np.flatnonzero(missing if self.missing == "indicator" else [])
        # Categories: vocabularies, and an encoder for columns of few and of many.
        labels = [columns.labels(k) for k in self.categorical_columns_]
        for column, k in zip(labels, self.categorical_columns_):
            n = len(column.codes)
            if not columns.warn_of_text(k) and self.max_one_hot < len(column.names) == n:
                warn_user(
                    f"Column {columns.name(k)!r} has as many categories as rows ({n}), so that "
                    "nothing can be learnt from it for other rows. Leave it out, or convert it to "
                    "numbers.",
                    TableWarning,
                )
        self._columns_with_gaps = self._gaps(missing, labels)
        self.categories_ = [np.sort(column.names) for column in labels]
        self._fit_encoders(columns, labels, y)
        return columns

    def _fit_encoders(self, columns, labels, y):
        """Choose and fit the encoders of the categorical columns, and count their codes."""
        # Columns with few categories are one-hot encoded, the others according to max_categories.
        # Missing values count as one.
        sizes = [len(column.names) + column.has_gaps for column in labels]
        is_small = np.array([n <= self.max_one_hot for n in sizes], dtype=bool)
        small, large = np.flatnonzero(is_small), np.flatnonzero(~is_small)
        of_large = _OneHot(large, self.max_categories) if self.max_categories else _Codes(large)
        self._encoders = [e for e in (_OneHot(small), of_large) if len(e.columns)]
        places = _places(labels, self.categories_, len(columns))
        for encoder in self._encoders:
            encoder.fit(places)
        # Ranks, so that no far value counts much, and classes have numbers.
        target = (
            np.zeros(len(columns)) if y is None else np.asarray(y).reshape(len(columns), -1)[:, 0]
        )
        ranks = pd.factorize(target, sort=True)[0]
        self._by_target = []
        for column in places.T:
            known = column >= 0
            sums, counts = (np.bincount(column[known].astype(int), w) for w in (ranks[known], None))
            self._by_target.append(np.argsort(sums / counts, kind="stable"))
        self.n_codes_ = tuple(n for encoder in self._encoders for n in encoder.n_codes)
        n_columns = len(self.get_feature_names_out())  # codes are the last of them
        self.code_columns_ = tuple(range(n_columns - len(self.n_codes_), n_columns))

    def _gaps(self, missing, labels) -> list[int]:
        """List the columns of X with missing values, from those of numbers and of labels."""
        gaps = [*missing, *(column.has_gaps for column in labels)]
        columns = [*self.numeric_columns_, *self.categorical_columns_]
        return [int(k) for k, has_gap in zip(columns, gaps) if has_gap]

    @property
    def is_identity(self) -> bool:
        """Whether `transform` leaves finite numbers unchanged."""
        return len(self.numeric_columns_) == self.n_features_in_ and not len(self._indicated)

    def transform(self, X):
        """Encode a table as numbers.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Table with the columns of `fit`.

        Returns
        -------
        ndarray of shape (n, n_features_out)
            Finite numbers in float64.
        """
        check_is_fitted(self)
        # Copy, because `encode` can return its argument.
        return np.array(self.encode(read_table(self, X, reset=False)))

    def encode(self, table, *, mark_unseen: bool = False) -> np.ndarray:
        """Encode a table returned by `read_table`, or its `Columns`, without checking them again.

        Warn of gaps and of categories that `fit` did not see. With `mark_unseen`, what stands for
        such a category is NaN, for `fill_unseen`.
        """
        columns = table
        if not isinstance(table, Columns):
            columns = Columns(table, getattr(self, "feature_names_in_", None))
        filled = numbers = columns.numbers(self.numeric_columns_)
        missing = np.isnan(numbers)
        filled = np.where(missing, self.medians_, numbers) if missing.any() else filled
        labels = [columns.labels(k) for k in self.categorical_columns_]
        gaps = self._gaps(missing.any(axis=0), labels)
        if new := sorted(set(gaps) - set(self._columns_with_gaps)):
            names = [str(columns.name(k)) for k in new]
            warn_user(
                f"X has missing values in columns {names}, where `fit` saw none. Numbers are taken "
                "to be the column's median, without more uncertainty, and categories to be "
                "unknown. Fill them in before, or fit on rows with such gaps.",
                TableWarning,
            )
        # An array of finite numbers is returned without a copy.
        if self.is_identity:
            return filled
        places = _places(labels, self.categories_, len(columns))
        # Tell which share of the rows has a category that `fit` did not see, by column.
        told = []
        for j in np.flatnonzero((places < 0).any(axis=0)):
            unseen, known = places[:, j] < 0, reprlib.repr(self.categories_[j][:2].tolist())
            more = " and others" if len(self.categories_[j]) > 2 else ""
            examples = pd.unique(labels[j].names[labels[j].codes[unseen]])[:2].tolist()
            examples = reprlib.repr(examples)  # cuts long texts
            told.append(
                f"{columns.name(self.categorical_columns_[j])!r} ({100 * unseen.mean():.3g} % of "
                f"the rows; such as {examples}, and `fit` saw {known}{more})"
            )
        if told:
            warn_user(
                f"X has categories that `fit` did not see, in columns {', '.join(told)}. The "
                "estimators of skuq take them for any of the known ones, and are less sure there. "
                "Fit on rows that have them, or send the same names as in `fit`.",
                TableWarning,
            )
        parts = [encoder.transform(places) for encoder in self._encoders]
        parts = [filled, missing[:, self._indicated], *parts]
        encoded = np.concatenate(parts, axis=1, dtype="float64")
        if mark_unseen:
            # A gap is a category of its own only if `fit` has seen one.
            has_gaps = np.isin(self.categorical_columns_, self._columns_with_gaps)
            unseen = (places < 0) | (np.isnan(places) & ~has_gaps)
            owners = [encoder.owners for encoder in self._encoders]
            n_others = encoded.shape[1] - sum(map(len, owners))
            for k in np.flatnonzero(unseen.any(axis=0)):
                outputs = n_others + np.flatnonzero(np.concatenate(owners) == k)
                encoded[np.ix_(unseen[:, k], outputs)] = np.nan
        return encoded

    def fill_unseen(self, numbers: np.ndarray, k: int, n: int) -> np.ndarray:
        """Replace the marks of unseen categories by the k-th of `n` known ones.

        They represent all known categories of a column: in the order of their mean targets there
        is one in each n-th part.
        """
        rng = np.random.default_rng(0)  # columns are combined by chance
        places = [
            order[int((rng.permutation(n)[k] + 0.5) / n * len(order))] for order in self._by_target
        ]
        parts = [encoder.transform(np.array([places], float)) for encoder in self._encoders]
        values = np.concatenate(parts, axis=1)
        known = np.full(numbers.shape[1], np.nan)
        known[numbers.shape[1] - values.shape[1] :] = values
        return np.where(np.isnan(numbers), known, numbers)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """List the names of the columns of the output.

        Parameters
        ----------
        input_features : array-like of str of shape (n_features,), optional
            Names of the columns of X; by default those seen in `fit`, or x0, x1 and so on.

        Returns
        -------
        ndarray of str
            Names of the output columns.
        """
        check_is_fitted(self)
        names = check_feature_names_in(self, input_features)
        numeric, categorical = names[self.numeric_columns_], names[self.categorical_columns_]
        parts = [numeric, [f"missingindicator_{name}" for name in numeric[self._indicated]]]
        parts += [encoder.names(categorical, self.categories_) for encoder in self._encoders]
        unique: dict[str, None] = {}
        for name in itertools.chain(*parts):
            while name in unique:  # the category "u" of a column "k", beside a column "k_u"
                name += "_"
            unique[name] = None
        return np.array(list(unique), dtype=object)

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_codes_")

    def __sklearn_tags__(self):
        return allow_tables(super().__sklearn_tags__())


def allow_tables(tags: Any) -> Any:
    """Set scikit-learn's input tags for all that a table can hold."""
    inputs = tags.input_tags
    inputs.allow_nan = inputs.string = inputs.categorical = True
    return tags


# Labels of booleans, and of the numbers 0 and 1 that another table may hold instead of them.
_TRUTHS = {"0": "False", "1": "True", "False": "0", "True": "1"}


def _places(labels, vocabularies, n):
    """Find the positions (n, n_columns) of n rows' labels in the vocabularies of their columns.

    They are -1 for labels that are not there, and NaN for missing ones.
    """
    places = np.empty((n, len(labels)))
    for k, (column, vocabulary) in enumerate(zip(labels, vocabularies)):
        known = set(vocabulary)
        names = [name if name in known else _TRUTHS.get(name, name) for name in column.names]
        place = pd.Index(vocabulary).get_indexer(pd.Index(names, dtype=object))
        places[:, k] = np.append(place.astype("float64"), np.nan)[column.codes]
    return places


@saved_as("tables.TablePreprocessor.OneHot")
class _OneHot:
    """One-hot encoder of some categorical columns; two categories become one column.

    It uses scikit-learn's encoder on positions in vocabularies, because text would be slow.
    """

    n_codes: Sequence[int] = ()

    def __init__(self, columns, max_categories=None):
        self.columns = columns
        self._encoder = OneHotEncoder(
            max_categories=max_categories,
            handle_unknown="ignore" if max_categories is None else "infrequent_if_exist",
            sparse_output=False,
        ).set_output(transform="default")

    def fit(self, places):
        self._encoder.fit(places[:, self.columns])
        sizes = [len(categories) for categories in self._encoder.categories_]
        self._kept = slice(None)
        if self._encoder.max_categories is None:
            # Drop the first of two categories here: with scikit-learn's `drop`, every unseen
            # category would cause a warning.
            kept = [np.arange(size) > 0 if size == 2 else np.ones(size, bool) for size in sizes]
            self._kept = np.concatenate(kept)
        # scikit-learn's name of an output is "column_position", with our positions.
        names = self._encoder.get_feature_names_out([str(k) for k in self.columns])[self._kept]
        self._categories = [name.split("_", 1)[1] for name in names]
        self.owners = np.array([int(name.split("_", 1)[0]) for name in names])

    def transform(self, places):
        return self._encoder.transform(places[:, self.columns])[:, self._kept]

    def names(self, columns, vocabularies):
        """Make names of the output from those of the categorical columns and their categories."""
        names = []
        for column, category in zip(self.owners, self._categories):
            known = vocabularies[column]
            if category not in ("nan", "infrequent_sklearn"):
                category = known[int(float(category))]
            elif category in known:  # the word "nan" is another category than a missing value
                category += "_missing" if category == "nan" else "_others"
            names.append(f"{columns[column]}_{category}")
        return names


@saved_as("tables.TablePreprocessor.Codes")
class _Codes:
    """Ordinal encoder with codes from 1 on; 0 is for categories not seen, or only once."""

    def __init__(self, columns):
        self.columns = self.owners = columns
        self._encoder = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1, min_frequency=_FREQUENT
        ).set_output(transform="default")

    def fit(self, places):
        self._encoder.fit(places[:, self.columns])
        rare = [0 if few is None else len(few) for few in self._encoder.infrequent_categories_]
        missing = [np.isnan(categories[-1]) for categories in self._encoder.categories_]
        sizes = [len(categories) for categories in self._encoder.categories_]
        self._n_frequent = np.array(sizes) - rare - missing
        self.n_codes = (1 + self._n_frequent + missing).tolist()

    def transform(self, places):
        codes = self._encoder.transform(places[:, self.columns])
        codes[codes == self._n_frequent] = -1  # scikit-learn's common code of rare categories
        return np.where(np.isnan(codes), self._n_frequent, codes) + 1

    def names(self, columns, vocabularies):
        return columns[self.columns]
