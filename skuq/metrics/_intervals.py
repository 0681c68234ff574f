"""Scores of predicted intervals and quantiles. Notation: n rows, m outputs, q quantiles."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import mean_pinball_loss

from skuq._checks import check_weights
from skuq.metrics._checks import average, check_arrays, check_ordered, check_same_shape


def coverage_score(y_true, lower, upper, *, sample_weight=None):
    """Share of targets inside their interval, ends included.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        Between 0 and 1; best equal to the interval's nominal coverage.

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
    """Mean width of intervals.

    Parameters
    ----------
    lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Of two predictions with the same
        coverage the narrower is better.

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
    """Interval (Winkler) score: width, and a fine for each target outside.

    A miss by d costs ``2 d / (1 - coverage)``. Proper: the expected score is smallest for
    the central interval that has this coverage.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    coverage : float
        Nominal coverage of the central interval, strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Smaller is better.

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
    losses = (upper - lower) + 2 / (1 - coverage) * outside
    return float(average(losses, sample_weight).mean())


def quantile_loss(y_true, y_quantiles, probabilities, *, sample_weight=None):
    """Pinball loss of several predicted quantiles, their mean.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    y_quantiles : array-like of shape (n_samples, n_quantiles[, n_outputs])
        As `predict_quantiles` gives them, in units of y.
    probabilities : array-like of shape (n_quantiles,)
        Strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows, quantiles and outputs. Smaller is better. Twice
        this tends to the CRPS as equally spaced quantiles become many.

    Raises
    ------
    ValueError
        If shapes do not fit or a probability is outside (0, 1).

    See Also
    --------
    sklearn.metrics.mean_pinball_loss : Of one quantile; called here for each.

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
    """Arrays of one shape: y_true if given, lower, upper. Intervals may be unbounded."""
    *y, lower, upper = check_same_shape(finite=False, **y_true, lower=lower, upper=upper)
    check_ordered(lower, upper)
    return *y, lower, upper
