"""Read rows: validated X and y, with their weights and groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_consistent_length, check_X_y

from skuq._checks import check_weights, fill_masked
from skuq._warnings import warn_user
from skuq.exceptions import SmallValidationWarning
from skuq.tables._inputs import Inputs

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
    if groups is not None and np.shape(groups) != (len(X),):
        raise ValueError(f"`groups` must have shape ({len(X)},). Got {np.shape(groups)}.")
    if groups is None:
        return None
    groups = np.asarray(fill_masked(groups))
    if groups.dtype.isnative:
        return groups
    return groups.astype(groups.dtype.newbyteorder("="))  # pandas needs native bytes


def sortable_groups(groups: np.ndarray | None) -> np.ndarray | None:
    """Return groups (n,) that the splitters of scikit-learn accept; None if there are none.

    These sort the groups. If names are missing or of several kinds, groups are numbered instead.
    """
    if groups is None:
        return None
    is_mixed = groups.dtype == object and len(set(map(type, groups))) > 1
    return group_codes(groups) if is_mixed or pd.isna(groups).any() else groups


def group_codes(groups: np.ndarray) -> np.ndarray:
    """Number groups (n,) in their order; their names may be of any kinds, None included."""
    codes: np.ndarray = pd.factorize(groups, sort=True, use_na_sentinel=False)[0]
    return codes


def read_rows(
    estimator: Any,
    inputs: Inputs,
    targets: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    min_rows: int = 1,
) -> Rows:
    """Validate the user's arguments of `fit`, and encode them as numbers.

    `inputs` and `targets` learn the encoding from the rows with positive weight.

    Parameters
    ----------
    estimator : estimator
        It gets the attributes `n_features_in_` and `feature_names_in_`.
    inputs : Inputs
    targets : Targets
    X, y, sample_weight :
        The user's arguments.
    min_rows : int, default=1
        Minimum number of rows.
    """
    y = targets.validate(y, estimator)
    X = inputs.validate(X, estimator, reset=True, min_rows=min_rows)
    check_consistent_length(X, y)
    weight = check_weights(sample_weight, X, relative=True)
    values = targets.fit_encoder(y, weight)
    return targets.weigh(Rows(inputs.fit_encoder(X, y, weight, estimator), values, weight))


def read_validation_rows(
    estimator: Any,
    inputs: Inputs,
    targets: Any,
    data: Any,
    name: str = "validation_data",
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
    X = inputs.encode(inputs.validate(X, estimator))
    values = targets.encode(y)
    X, _ = check_X_y(X, values, dtype="float64", multi_output=True)
    given = weight[0] if weight else None
    if given is None or np.any(given):
        rows = targets.weigh(Rows(X, values, check_weights(given, X, relative=True)))
        if len(rows.used):
            return rows.take(rows.used)
    raise ValueError(f"`{name}` must have a row of positive weight. Got {len(X)} rows.")


def warn_of_few_rows(
    n_valid: int,
    advice: str = "A larger `validation` or validation_data may help.",
) -> None:
    """Warn if members are chosen on few validation rows."""
    if n_valid < _ENOUGH_VALIDATION_ROWS:
        warn_user(
            f"Members are chosen on {n_valid} validation rows; below {_ENOUGH_VALIDATION_ROWS} the "
            f"choice depends much on chance. {advice}".rstrip(),
            SmallValidationWarning,
        )
