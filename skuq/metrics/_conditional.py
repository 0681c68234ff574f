"""Compute the coverage of intervals in groups, by uncertainty, or by distance from the data.

Notation: n rows, d features.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np
import pandas as pd
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from skuq._checks import fill_masked
from skuq.metrics._checks import check_ordered, check_same_shape


def coverage_by_group(y_true, lower, upper, groups):
    """Compute the coverage of intervals in each group of rows.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,)
        Targets and ends of their intervals, in units of y.
    groups : array-like of shape (n_samples,)
        Label of each row's group; numbers, strings or booleans.

    Returns
    -------
    labels : ndarray of shape (n_groups,)
        Labels of the groups, in the order of their first rows.
    coverage : ndarray of shape (n_groups,)
        Share of the targets of the group inside their intervals, ends included.
    counts : ndarray of int of shape (n_groups,)
        Number of rows of the group. For a true coverage p the standard error of the observed one is
        ``sqrt(p * (1 - p) / counts)``.

    Raises
    ------
    ValueError
        If shapes differ, an interval ends before it begins, or a row has no label.

    Examples
    --------
    >>> labels, coverage, counts = coverage_by_group(
    ...     [1.0, 5.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0], ["a", "b", "a"]
    ... )
    >>> labels.tolist(), coverage, counts
    (['a', 'b'], array([1., 0.]), array([2, 1]))
    """
    inside = _inside(y_true, lower, upper)
    groups = column_or_1d(fill_masked(groups))
    check_consistent_length(inside, groups)
    codes, labels = pd.factorize(groups)
    if (codes < 0).any():
        raise ValueError(
            f"`groups` must label every row. Row {np.argmax(codes < 0)} has a missing label."
        )
    counts = np.bincount(codes)
    return np.asarray(labels), np.bincount(codes, weights=inside) / counts, counts


def coverage_curve(y_true, lower, upper, by, *, n_bins=10):
    """Compute the coverage of intervals along a number that each row has.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,)
        Targets and ends of their intervals, in units of y.
    by : array-like of shape (n_samples,)
        Number by which rows are put into bins, for example the predicted standard deviation or
        the distance to the nearest training row (`neighbor_distance`).
    n_bins : int, default=10
        Number of bins with equal numbers of rows. Rows with equal numbers stay together, so there
        may be fewer bins.

    Returns
    -------
    centers : ndarray of shape (n_bins,)
        Median of `by` in each bin, ascending.
    coverage : ndarray of shape (n_bins,)
        Share of the targets of the bin inside their intervals, ends included.
    counts : ndarray of int of shape (n_bins,)
        Number of rows of the bin.

    Raises
    ------
    ValueError
        If shapes differ, an interval ends before it begins, or `n_bins` is not positive.

    Examples
    --------
    >>> centers, coverage, counts = coverage_curve(
    ...     [0.0, 0.0, 5.0, 0.0], [-1.0] * 4, [1.0] * 4, by=[1.0, 2.0, 9.0, 8.0], n_bins=2
    ... )
    >>> centers, coverage, counts
    (array([1.5, 8.5]), array([1. , 0.5]), array([2, 2]))
    """
    inside = _inside(y_true, lower, upper)
    (by,) = check_same_shape(by=by)
    check_consistent_length(inside, by)
    if not isinstance(n_bins, Integral) or n_bins < 1:
        raise ValueError(f"`n_bins` must be a positive whole number. Got {n_bins!r}.")
    edges = np.unique(np.quantile(by, np.arange(1, n_bins) / n_bins, method="higher"))
    # An edge at the smallest value would leave the first bin empty.
    edges = edges[edges > by.min()]
    bins = np.searchsorted(edges, by, side="right")
    counts = np.bincount(bins)
    centers = np.array([np.median(by[bins == k]) for k in range(len(counts))])
    return centers, np.bincount(bins, weights=inside) / counts, counts


def worst_slab_coverage(
    y_true, lower, upper, X, *, min_share=0.1, n_directions=500, random_state=None
):
    """Estimate the coverage in the slab of the feature space in which it is lowest.

    A slab holds the rows whose projection on a direction lies between two numbers. Half of the
    rows choose the worst of many slabs that hold at least a share of them; the coverage is that
    of the other half in this slab, so that the choice does not bias it.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,)
        Targets and ends of their intervals, in units of y.
    X : array-like of shape (n_samples, n_features)
        Finite numbers; they are standardised.
    min_share : float, default=0.1
        Least share of rows in a slab, in (0, 1].
    n_directions : int, default=500
        Number of random directions to try, in addition to those of the features.
    random_state : int, RandomState instance or None, default=None
        Seed of the directions and of the halves.

    Returns
    -------
    float
        Lowest coverage, between 0 and 1; ideally the nominal coverage of the intervals. NaN if none
        of the rows of the second half lies in the slab, which happens with a few dozen rows only.

    Raises
    ------
    ValueError
        If shapes differ, an interval ends before it begins, `min_share` is outside (0, 1], or
        there are fewer than 20 rows.

    References
    ----------
    Cauchois, Gupta and Duchi (2021), "Knowing what you know: valid and validated confidence sets
    in multiclass and multilabel prediction", section 4; Romano, Sesia and Candès (2020),
    "Classification with valid and adaptive coverage", section S1.2 (halves).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(1000.0)[:, None]
    >>> y = np.where(X[:, 0] < 200, 5.0, 0.0)  # a fifth is outside, all on one side
    >>> worst_slab_coverage(y, np.full(1000, -1.0), np.ones(1000), X, random_state=0)
    0.0
    """
    inside = _inside(y_true, lower, upper)
    X = check_array(X, dtype="float64", input_name="X")
    check_consistent_length(inside, X)
    if not 0 < min_share <= 1:
        raise ValueError(f"`min_share` must lie in (0, 1]. Got {min_share}.")
    n, d = X.shape
    if n < 20:
        raise ValueError(f"`worst_slab_coverage` needs at least 20 rows. Got {n}.")
    rng = check_random_state(random_state)
    X = (X - X.mean(axis=0)) / _spread(X)
    # Features and random directions; their lengths do not matter, only the order of projections.
    directions = np.concatenate([np.eye(d), rng.normal(size=(n_directions, d))])
    order = rng.permutation(n)
    choose, judge = order[: n // 2], order[n // 2 :]
    worst, slab = np.inf, None
    for direction in directions:
        projected = X[choose] @ direction
        by_position = np.argsort(projected, kind="stable")
        # The worst slab of this direction, as a run of rows sorted by their projections.
        coverage, first, last = _worst_run(
            inside[choose][by_position], projected[by_position], min_share
        )
        if coverage < worst:
            worst = coverage
            slab = direction, projected[by_position[first]], projected[by_position[last]]
    direction, low, high = slab
    projected = X[judge] @ direction
    # The other half judges: the minimum over many slabs is too low on the rows that chose it.
    held = inside[judge][(low <= projected) & (projected <= high)]
    return float(held.mean()) if len(held) else np.nan


def _worst_run(
    inside: np.ndarray, projected: np.ndarray, min_share: float
) -> tuple[float, int, int]:
    """Find the run of at least a share of the rows (n,) with the lowest coverage.

    Rows are sorted by their projections. Those with equal ones belong to a run together or not at
    all. Return the coverage, and the first and last position of the run.
    """
    n = len(inside)
    shortest = max(int(np.ceil(min_share * n)), 1)
    total = np.concatenate([[0], np.cumsum(inside)])
    # First position of the rows with the same projection, and the position after the last.
    begin = np.searchsorted(projected, projected, side="left")
    end = np.searchsorted(projected, projected, side="right")
    best = (np.inf, 0, 0)
    # Longer runs need not be tried: one half of a run of twice the length has no higher mean.
    for length in np.unique(np.linspace(shortest, min(2 * shortest, n), 21).astype(int)):
        first, last = begin[: n - length + 1], end[length - 1 :]
        means = (total[last] - total[first]) / (last - first)
        k = int(np.argmin(means))
        best = min(best, (float(means[k]), int(first[k]), int(last[k]) - 1))
    return best


def neighbor_distance(X, X_reference, *, n_neighbors=1):
    """Compute the distance of rows to the nearest rows of a reference.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Finite numbers.
    X_reference : array-like of shape (n_reference, n_features)
        Reference rows, for example the training rows. Both tables are divided by the standard
        deviations of the reference; its constant columns keep their units.
    n_neighbors : int, default=1
        Rank of the neighbour whose distance is returned, for example 5 for the fifth nearest.

    Returns
    -------
    ndarray of shape (n_samples,)
        Euclidean distances, in standard deviations.

    Raises
    ------
    ValueError
        If numbers are not finite, or there are fewer reference rows than `n_neighbors`.

    Examples
    --------
    >>> neighbor_distance([[1.0], [5.0]], [[0.0], [2.0]])
    array([1., 3.])
    """
    X = check_array(X, dtype="float64", input_name="X")
    X_reference = check_array(X_reference, dtype="float64", input_name="X_reference")
    if X.shape[1] != X_reference.shape[1]:
        raise ValueError(
            f"`X` must have {X_reference.shape[1]} columns, as `X_reference`. Got {X.shape[1]}."
        )
    if not 1 <= n_neighbors <= len(X_reference):
        raise ValueError(
            f"`n_neighbors` must be between 1 and the {len(X_reference)} reference rows. "
            f"Got {n_neighbors}."
        )
    spread = _spread(X_reference)
    search = NearestNeighbors(n_neighbors=n_neighbors).fit(X_reference / spread)
    distances, _ = search.kneighbors(X / spread)
    return distances[:, -1]


def _spread(X):
    """Compute the standard deviation of each column (d,); 1 for constant columns."""
    # The standard deviation of equal numbers is not exactly 0, if their sum was rounded.
    # It is 0 for numbers so tiny that their squares underflow.
    std = X.std(axis=0)
    return np.where((np.ptp(X, axis=0) > 0) & (std > 0), std, 1.0)


def _inside(y_true, lower, upper):
    """Tell which targets (n,) are inside their intervals."""
    y, lower, upper = check_same_shape(y_true=y_true, lower=lower, upper=upper, finite=False)
    if y.ndim > 1:
        raise ValueError(f"`y_true` must have shape (n_samples,). Got {y.shape}.")
    check_ordered(lower, upper)
    return (lower <= y) & (y <= upper)
