"""Scores of relative uncertainty: of bounds ``mean +- c std``, whatever the scale c.

They ask whether standard deviations are wide where errors are large, and leave aside
whether they are too wide on the whole. Notation: n rows, m outputs, z = |y - mean| / std.
"""

from __future__ import annotations

import numpy as np

from skuq._checks import check_weights
from skuq._constants import LOG_SQRT_2PI
from skuq.metrics._checks import average, check_same_shape


def coverage_width_curve(y_true, mean, std, *, sample_weight=None):
    """Coverage and mean width of ``mean +- c std`` for all scales c that matter.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,)
        In units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    scale : ndarray of shape (n_points,)
        c: 0, then every value at which another target is covered, ascending to the
        smallest that covers all. No unit.
    coverage : ndarray of shape (n_points,)
        Share of targets covered, ends of the bounds included; 1 at the end.
    width : ndarray of shape (n_points,)
        Mean width over all rows, ``2 c mean(std)``, in units of y.

    Raises
    ------
    ValueError
        If shapes differ, there are several outputs or a std is not positive.

    Notes
    -----
    Coverage is a staircase in c: between two points it is that of the first.

    References
    ----------
    Heiss et al. (2022), "NOMU: Neural Optimization-based Model Uncertainty", appendix
    B.2.1, Definitions B.2 and B.3.

    Examples
    --------
    >>> scale, coverage, width = coverage_width_curve([0.0, 1.0], [0.5, 3.0], [1.0, 1.0])
    >>> scale, coverage, width
    (array([0. , 0.5, 2. ]), array([0. , 0.5, 1. ]), array([0., 1., 4.]))
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    if y.ndim > 1:
        raise ValueError(
            f"A curve is of one output, `y_true` of shape (n_samples,). Got {y.shape}."
        )
    weight = check_weights(sample_weight, y)
    z = np.where(weight > 0, np.abs(y - mean) / std, 0.0)  # no step for rows that do not count
    order = np.argsort(z)
    scale = np.concatenate([[0.0], z[order]])
    total = np.cumsum(np.concatenate([[0.0], weight[order]]))
    last = np.append(scale[1:] > scale[:-1], True)  # of those covered at once
    scale, coverage = scale[last], total[last] / total[-1]
    return scale, coverage, 2 * scale * np.average(std, weights=weight)


def coverage_width_auc(y_true, mean, std, *, sample_weight=None):
    """Area under the curve of mean width against coverage, from 0 to full coverage.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over outputs. Smaller is better. The same for std times
        any factor.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    See Also
    --------
    coverage_width_curve : The curve.

    Notes
    -----
    The curve climbs straight up while no target is covered and steps to the right by a
    target's share when c reaches its z, at the width ``2 z mean(std)``. So the area is
    exactly ``2 mean(std) mean(z)``, and no grid of scales is needed. The NOMU paper takes
    trapezoids over a geometric grid of c from 1e-3 to 1e3 in 1e5 steps of 0.014 %, where a
    step to the right stands somewhere within a grid step: the two agree to 7e-5 of the
    area while all z are inside the grid. (Trapezoids between the targets themselves would
    cut half a step off each, and give less by half the last width over n.)

    References
    ----------
    Heiss et al. (2022), "NOMU: Neural Optimization-based Model Uncertainty", appendix
    B.2.1, Metric 1.

    Examples
    --------
    >>> coverage_width_auc([0.0, 1.0], [0.5, 3.0], [1.0, 1.0])
    2.5
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    z = average(np.abs(y - mean) / std, sample_weight)
    return float(np.mean(2 * average(std, sample_weight) * z))


def nll_min_loss(y_true, mean, std, *, return_scale=False, sample_weight=None):
    """Gaussian negative log likelihood with all std times the factor that suits y best.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y; std > 0.
    return_scale : bool, default=False
        Whether to return the factor too.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    loss : float
        In nats, with 0.5 log(2 pi); the mean over rows and outputs. Smaller is better.
        -inf if all predictions of an output are exact.
    scale : float or ndarray of shape (n_outputs,)
        Only if `return_scale`: the factor c of each output, ``c**2 = mean(z**2)``. Above 1
        the std were too small.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    Notes
    -----
    The factor is chosen on the rows that are scored, as in the paper. It judges relative
    uncertainty, and is no estimate of what calibration would achieve on new rows. The
    paper leaves out the constant.

    References
    ----------
    Heiss et al. (2022), "NOMU: Neural Optimization-based Model Uncertainty", appendix
    B.2.1, Metrics 2 and 3.

    Examples
    --------
    >>> loss, scale = nll_min_loss([0.0, 0.0], [3.0, 3.0], [1.0, 1.0], return_scale=True)
    >>> round(loss, 4), scale
    (2.5176, 3.0)
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    z = np.abs(y - mean) / std
    largest = np.where(z.max(axis=0) > 0, z.max(axis=0), 1.0)  # squares must not underflow
    scale = largest * np.sqrt(average((z / largest) ** 2, sample_weight))  # (m,) or a number
    with np.errstate(divide="ignore"):
        # With this factor the mean of z**2 is 1.
        losses = LOG_SQRT_2PI + average(np.log(std), sample_weight) + np.log(scale) + 0.5
    loss = float(losses.mean())
    return (loss, scale if y.ndim > 1 else float(scale)) if return_scale else loss
