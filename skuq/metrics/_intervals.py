"""Score predicted intervals and quantiles. Notation: n rows, m outputs, q quantiles."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import mean_pinball_loss

from skuq._checks import check_weights
from skuq.metrics._checks import average, check_arrays, check_ordered, check_same_shape


def coverage_score(y_true, lower, upper, *, sample_weight=None):
    """Compute the share of targets inside their interval, ends included.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, and lower and upper ends of the intervals, in units of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Coverage between 0 and 1; the best value is the interval's nominal coverage.

    Raises
    ------
    ValueError
        If shapes differ or an interval ends before it begins.

    Examples
    --------
    >>> coverage_score([1.0, 5.0], [0.0, 0.0], [2.0, 2.0])
    0.5
    """
    y, lower, upper = _intervals(lower, upper, y_true=y_true)
    return float(average((lower <= y) & (y <= upper), sample_weight).mean())


def mean_width(lower, upper, *, sample_weight=None):
    """Compute the mean width of intervals.

    Parameters
    ----------
    lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Ends of the intervals, in units of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y. Of two predictions with the same coverage, the
        narrower one is better.

    Raises
    ------
    ValueError
        If shapes differ or an interval ends before it begins.

    Examples
    --------
    >>> mean_width([0.0, 1.0], [2.0, 5.0])
    3.0
    """
    lower, upper = _intervals(lower, upper)
    return float(average(upper - lower, sample_weight).mean())


def interval_loss(y_true, lower, upper, coverage, *, sample_weight=None):
    """Compute the interval (Winkler) score: width plus a penalty for each target outside.

    A target at a distance d from the interval costs ``2 d / (1 - coverage)``. The score is
    proper: its expectation is smallest for the central interval with this coverage.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, and lower and upper ends of the intervals, in units of y.
    coverage : float
        Nominal coverage of the central interval, strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

    Raises
    ------
    ValueError
        If shapes differ, an interval ends before it begins or `coverage` is outside (0, 1).

    References
    ----------
    Gneiting and Raftery (2007), "Strictly Proper Scoring Rules, Prediction, and
    Estimation", Eq. 43.

    Examples
    --------
    >>> round(interval_loss([1.0, 5.0], [0.0, 0.0], [2.0, 2.0], coverage=0.5), 4)
    8.0
    """
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must lie strictly in (0, 1). Got {coverage}.")
    y, lower, upper = _intervals(lower, upper, y_true=y_true)
    outside = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    # Eq. 43 with alpha = 1 - coverage: (u - l) + 2 / alpha * distance outside.
    losses = (upper - lower) + 2 / (1 - coverage) * outside
    return float(average(losses, sample_weight).mean())


def quantile_loss(y_true, y_quantiles, probabilities, *, sample_weight=None):
    """Compute the mean pinball loss of several predicted quantiles.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    y_quantiles : array-like of shape (n_samples, n_quantiles[, n_outputs])
        Predicted quantiles as returned by `predict_quantiles`, in units of y.
    probabilities : array-like of shape (n_quantiles,)
        Levels of the quantiles, strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, quantiles and outputs, in units of y; smaller is better. For many equally
        spaced quantiles, twice this loss approximates the CRPS.

    Raises
    ------
    ValueError
        If shapes do not agree or a probability is outside (0, 1).

    See Also
    --------
    sklearn.metrics.mean_pinball_loss : The loss of one quantile, which is called here for each.

    Examples
    --------
    >>> quantile_loss([1.0], [[0.0, 3.0]], [0.25, 0.75])
    0.375
    """
    (y,) = check_same_shape(y_true=y_true)
    (quantiles,) = check_arrays(y_quantiles=y_quantiles)
    levels = np.atleast_1d(np.asarray(probabilities, dtype=float))
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(
            f"`probabilities` must be numbers strictly in (0, 1). Got {probabilities}."
        )
    expected = (len(y), len(levels), *y.shape[1:])
    if quantiles.shape != expected:
        raise ValueError(f"`y_quantiles` must have shape {expected}. Got {quantiles.shape}.")
    weight = check_weights(sample_weight, y)
    losses = [
        mean_pinball_loss(y, quantiles[:, k], sample_weight=weight, alpha=level)
        for k, level in enumerate(levels)
    ]
    return float(np.mean(losses))


def _intervals(lower, upper, **y_true):
    """Check y_true (if given), lower and upper, which have one shape and can be infinite."""
    *y, lower, upper = check_same_shape(finite=False, **y_true, lower=lower, upper=upper)
    check_arrays(**y_true)  # targets must be finite
    check_ordered(lower, upper)
    return *y, lower, upper
