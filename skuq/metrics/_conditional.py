"""Score how uncertainty and errors differ between rows.

Here are the coverage of intervals in groups, by uncertainty or by distance from the data; the
error that remains when uncertain rows are left out; and tests whether new rows are distributed
like earlier ones.

Notation: n rows, d features; r is the share of rows retained, of which the least uncertain come
first. Rows of equal uncertainty come in random order, and results are expectations over this
order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from skuq._params import get_feature_names
from skuq._utils._checks import check_count, check_weights, fill_masked
from skuq.metrics._checks import check_intervals, check_same_shape, group_sums


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
    check_count("n_bins", n_bins)
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
    (X,) = _check_tables(X=X)
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
    n_choose = len(choose)
    shortest = max(int(np.ceil(min_share * n_choose)), 1)
    # Longer runs need not be tried: one half of a run of twice the length has no higher mean.
    lengths = np.unique(np.linspace(shortest, min(2 * shortest, n_choose), 21).astype(int))
    worst, slab = np.inf, None
    for direction in directions:
        # A slab of this direction is a run of rows sorted by their projections.
        projected = X[choose] @ direction
        by_position = np.argsort(projected, kind="stable")
        projected = projected[by_position]
        total = np.concatenate([[0], np.cumsum(inside[choose][by_position])])
        # First position of the rows with the same projection, and the position after the last:
        # such rows belong to a run together or not at all.
        begin, end = (np.searchsorted(projected, projected, side) for side in ("left", "right"))
        run = np.inf, 0, 0  # its coverage, first and last position
        for length in lengths:
            first, last = begin[: n_choose - length + 1], end[length - 1 :]
            means = (total[last] - total[first]) / (last - first)
            k = np.argmin(means)
            run = min(run, (means[k], first[k], last[k] - 1))
        if run[0] < worst:
            worst, slab = run[0], (direction, *projected[[*run[1:]]])
    direction, low, high = slab
    projected = X[judge] @ direction
    # The other half judges: the minimum over many slabs is too low on the rows that chose it.
    held = inside[judge][(low <= projected) & (projected <= high)]
    return float(held.mean()) if len(held) else np.nan


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
        If there is anything but finite numbers, the columns differ, or there are fewer reference
        rows than `n_neighbors`.

    Examples
    --------
    >>> neighbor_distance([[1.0], [5.0]], [[0.0], [2.0]])
    array([1., 3.])
    """
    tables = {"X": X, "X_reference": X_reference}
    names, expected = map(get_feature_names, tables.values())
    if not (names is None or expected is None or np.array_equal(names, expected)):
        raise ValueError(
            f"`X` must have the columns of `X_reference`, {list(expected)}. Got {list(names)}."
        )
    X, X_reference = _check_tables(**tables)
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


def _check_tables(**tables) -> list[np.ndarray]:
    """Check that tables hold finite numbers, and return arrays (n, d)."""
    try:
        return [check_array(t, dtype="float64", input_name=name) for name, t in tables.items()]
    except (TypeError, ValueError) as error:
        names = " and ".join(f"`{name}`" for name in tables)
        raise ValueError(
            f"{names} must hold finite numbers, for example those that `preprocessor_.transform` "
            f"of a fitted estimator of skuq makes of other columns: {error}"
        ) from error


def _spread(X):
    """Compute the standard deviation of each column (d,); 1 for constant columns."""
    # The standard deviation of equal numbers is not exactly 0, if their sum was rounded.
    # It is 0 for numbers so tiny that their squares underflow.
    std = X.std(axis=0)
    return np.where((np.ptp(X, axis=0) > 0) & (std > 0), std, 1.0)


def _inside(y_true, lower, upper):
    """Tell which targets (n,) are inside their intervals."""
    y, lower, upper = check_intervals(lower, upper, one_output=True, y_true=y_true)
    return (lower <= y) & (y <= upper)


def error_retention_curve(errors, uncertainty, *, sample_weight=None):
    """Compute the error that is left if the most uncertain rows are given to a perfect oracle.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Uncertainty of each row; larger means less certain.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    retained : ndarray of shape (n_points,)
        Shares of rows, from 0 to 1.
    error : ndarray of shape (n_points,)
        Sum of the retained rows' errors divided by the number of all rows, so that the last value
        is the mean error. The curve is linear between points.

    Raises
    ------
    ValueError
        If shapes differ or are not (n_samples,).

    References
    ----------
    Malinin et al. (2021), "Shifts: A Dataset of Real Distributional Shift Across Multiple
    Large-Scale Tasks".

    Examples
    --------
    >>> error_retention_curve(errors=[0.0, 4.0], uncertainty=[0.1, 0.9])
    (array([0. , 0.5, 1. ]), array([0., 0., 2.]))
    """
    rows = {"errors": errors, "uncertainty": uncertainty}
    errors, uncertainty = check_same_shape(**rows, one_output=True)
    weight = check_weights(sample_weight, errors)
    # Rows of equal uncertainty are one linear piece: in random order, each adds their mean error.
    _, _, rows, sums = group_sums(uncertainty, weight, weight * errors)
    rows, sums = rows[rows > 0], sums[rows > 0]
    retained = np.concatenate([[0.0], np.cumsum(rows)])
    error = np.concatenate([[0.0], np.cumsum(sums)])
    return retained / retained[-1], error / retained[-1]


def retention_auc(errors, uncertainty, *, sample_weight=None):
    """Compute the area under the error-retention curve.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Uncertainty of each row; larger means less certain.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Area in units of the errors; smaller is better. It is half the mean error if uncertainty
        is unrelated to the errors. It measures the errors and their ranking together.

    Raises
    ------
    ValueError
        If shapes differ or are not (n_samples,).

    References
    ----------
    Malinin et al. (2021), "Shifts": R-AUC.

    Examples
    --------
    >>> retention_auc(errors=[0.0, 4.0], uncertainty=[0.1, 0.9])
    0.5
    >>> retention_auc(errors=[0.0, 4.0], uncertainty=[0.5, 0.5])
    1.0
    """
    retained, error = error_retention_curve(errors, uncertainty, sample_weight=sample_weight)
    return float(np.diff(retained) @ (error[1:] + error[:-1]) / 2)


def aurc_loss(errors, uncertainty, *, sample_weight=None):
    """Compute the area under the risk-coverage curve: the retained rows' mean error, over all r.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Uncertainty of each row; larger means less certain.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Area in units of the errors; smaller is better. It is the mean error if uncertainty is
        unrelated to the errors.

    Raises
    ------
    ValueError
        If shapes differ or are not (n_samples,).

    Notes
    -----
    The area is the exact integral over r of the error-retention curve divided by r. Geifman and
    El-Yaniv take the mean over whole numbers of rows. The two differ by order log(n) / n, and
    only the integral does not change if all rows are repeated.

    References
    ----------
    Geifman, Uziel and El-Yaniv (2019), "Bias-Reduced Uncertainty Estimation for Deep
    Neural Classifiers".

    Examples
    --------
    >>> round(aurc_loss(errors=[0.0, 4.0], uncertainty=[0.1, 0.9]), 4)
    0.6137
    >>> aurc_loss(errors=[0.0, 4.0], uncertainty=[0.5, 0.5])
    2.0
    """
    retained, error = error_retention_curve(errors, uncertainty, sample_weight=sample_weight)
    step, rise = np.diff(retained), np.diff(error)
    # A step can round to 0 if a tiny weight is added to a huge one.
    slope = np.divide(rise, step, out=np.zeros_like(step), where=step > 0)
    # On each piece the curve is slope * r + offset, and the first piece starts at the origin. In
    # the integral of (slope * r + offset) / r the slopes sum to the curve's last value, and the
    # offsets are multiplied by logarithms.
    offset = (error[:-1] - slope * retained[:-1])[1:]
    return float(error[-1] + offset @ np.log1p(step[1:] / retained[1:-1]))


def ood_auroc_score(score_in, score_out, *, sample_weight=None):
    """Compute the area under the ROC curve of a score that detects out-of-distribution rows.

    Parameters
    ----------
    score_in : array-like of shape (n_in,)
        Scores of rows like the training data, such as standard deviations or entropies, which
        should be low.
    score_out : array-like of shape (n_out,)
        Scores of rows unlike the training data, which should be high.
    sample_weight : array-like of shape (n_in + n_out,), optional
        Weights of both sets of rows, in this order.

    Returns
    -------
    float
        Area under the ROC curve: the probability that an out-of-distribution row has a higher
        score than an in-distribution row. 1 is best, and 0.5 is the value of random scores.

    Raises
    ------
    ValueError
        If a score is empty or not finite.

    See Also
    --------
    sklearn.metrics.roc_auc_score : The function that computes the area.

    Examples
    --------
    >>> ood_auroc_score([0.1, 0.2, 0.4], [0.3, 0.9])
    0.8333333333333334
    """
    scores = {"score_in": score_in, "score_out": score_out}
    parts = [check_same_shape(**{name: s}, one_output=True)[0] for name, s in scores.items()]
    score = np.concatenate(parts)
    is_out = np.repeat([False, True], [len(part) for part in parts])
    weight = check_weights(sample_weight, score)
    for name, side in (("score_in", ~is_out), ("score_out", is_out)):
        if not weight[side].any():
            raise ValueError(
                f"`sample_weight` must be positive for at least one row of `{name}`. All are 0."
            )
    return float(roc_auc_score(is_out, score, sample_weight=weight))


_BETS = (-1.0, 0.0, 1.0)
_JUMP = 0.01  # share of the wealth that changes its bet at each row


def exchangeability_martingale(scores, reference, *, random_state=None):
    """Bet against the assumption that new rows have the distribution of the reference rows.

    If they have, the wealth of the bets ever exceeds 1 / a with a probability of at most a, however
    many rows arrive. A logarithm above log(20) = 3.0 therefore rejects the assumption at the 5 %
    level, one above log(100) = 4.6 at the 1 % level.

    Parameters
    ----------
    scores : array-like of shape (n_samples,)
        A number for each new row, in the order of arrival, for example the absolute error in
        predicted standard deviations or the negative log density. If y is not observed, use the
        epistemic standard deviation or `neighbor_distance`.
    reference : array-like of shape (n_reference,)
        The same number for calibration rows, which the model has not been trained on.
    random_state : int, RandomState instance or None, default=None
        Seed for breaking ties of scores at random.

    Returns
    -------
    ndarray of shape (n_samples,)
        Logarithm of the wealth after each row, from a start at 0.

    Raises
    ------
    ValueError
        If scores are not finite or there are none.

    Notes
    -----
    The p-value of a row is the share of rows up to it with a score that is at least as large. The
    bets are those of the "simple jumper": the wealth is divided among the bets that p-values are
    small, uniform or large, and a hundredth of it changes its bet at each row.

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman (2021), "Retrain or not retrain:
    conformal test martingales for change-point detection", Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> before, alike, larger = rng.normal(size=(3, 200))
    >>> bool(exchangeability_martingale(alike, before, random_state=0).max() > 3)
    False
    >>> bool(exchangeability_martingale(2 + larger, before, random_state=0).max() > 3)
    True
    """
    given = {"scores": scores, "reference": reference}
    new, seen = (check_same_shape(**{k: v}, one_output=True)[0].tolist() for k, v in given.items())
    seen.sort()
    uniform = check_random_state(random_state).uniform(size=len(new))
    # Wealth of each bet as a share of the whole; the logarithm of the whole is stored separately.
    wealth, log_whole, path = [1 / len(_BETS)] * len(_BETS), 0.0, np.empty(len(new))
    for t, (score, tie) in enumerate(zip(new, uniform.tolist())):
        below, up_to = bisect_left(seen, score), bisect_right(seen, score)
        larger, equal = len(seen) - up_to, up_to - below + 1  # the row itself is equal
        # Conformal p-value with random ties: uniform if the row is exchangeable with those before.
        p = (larger + tie * equal) / (len(seen) + 1)
        insort(seen, score)
        spread = [(1 - _JUMP) * w + _JUMP / len(_BETS) for w in wealth]
        # The factors 1 + e (p - 1/2) have the mean 1 for uniform p: the wealth is a martingale.
        won = [w * (1 + bet * (p - 0.5)) for w, bet in zip(spread, _BETS)]
        whole = sum(won)
        wealth = [w / whole for w in won]
        log_whole += np.log(whole)
        path[t] = log_whole
    return path


def epistemic_score(distribution):
    """Compute each row's epistemic uncertainty, high for rows unlike the training rows.

    Parameters
    ----------
    distribution : distribution
        Result of an estimator's `predict_distribution`.

    Returns
    -------
    ndarray of shape (n_samples,)
        For regressors the logarithm of the epistemic standard deviation, averaged over outputs. For
        classifiers the mutual information of class and member, in nats. `ood_auroc_score` measures
        how well it separates two sets of rows.

    Raises
    ------
    TypeError
        If the distribution does not tell epistemic from aleatoric uncertainty.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> members = GaussianMixture(np.array([[0.0, -1.0], [0.0, 1.0]]), np.ones((2, 2)))
    >>> epistemic_score(members).round(2)
    array([-354.2,    0. ])
    """
    if hasattr(distribution, "epistemic_variance"):
        smallest = np.finfo(float).tiny  # instead of 0, if members agree to the last digit
        logs = 0.5 * np.log(np.maximum(distribution.epistemic_variance, smallest))
        return logs.reshape(len(logs), -1).mean(axis=1)
    if hasattr(distribution, "uncertainty"):
        return distribution.uncertainty().epistemic
    raise TypeError(
        "`distribution` must be one that `predict_distribution` gives, with an epistemic part. "
        f"Got a {type(distribution).__name__}."
    )
