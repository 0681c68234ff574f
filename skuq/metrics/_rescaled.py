"""Score relative uncertainty: bounds ``mean +- c std`` for all scales c.

These scores measure whether standard deviations are large where errors are large, and ignore
whether they are too large overall. Notation: n rows, m outputs, z = |y - mean| / std.
"""

from __future__ import annotations

import numpy as np

from skuq._checks import check_weights
from skuq._constants import LOG_SQRT_2PI
from skuq.metrics._checks import average, check_same_shape


def coverage_width_curve(y_true, mean, std, *, sample_weight=None):
    """Compute coverage and mean width of ``mean +- c std`` for all relevant scales c.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,)
        Targets, means and standard deviations, in units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    scale : ndarray of shape (n_points,)
        Scales c: 0, and every value at which a further target is covered, in increasing order up
        to the smallest value that covers all targets.
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
    Coverage is a step function of c, constant between two points.

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
            f"`y_true` must have shape (n_samples,), since a curve is of one output. Got {y.shape}."
        )
    weight = check_weights(sample_weight, y)
    z = np.where(weight > 0, np.abs(y - mean) / std, 0.0)  # no step for rows of weight 0
    order = np.argsort(z)
    scale = np.concatenate([[0.0], z[order]])
    total = np.cumsum(np.concatenate([[0.0], weight[order]]))
    last = np.append(scale[1:] > scale[:-1], True)  # the last of targets covered at the same c
    scale, coverage = scale[last], total[last] / total[-1]
    return scale, coverage, 2 * scale * np.average(std, weights=weight)


def coverage_width_auc(y_true, mean, std, *, sample_weight=None):
    """Compute the area under the curve of mean width against coverage, from 0 to full coverage.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, means and standard deviations, in units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over outputs, in units of y; smaller is better. It does not change if std is
        multiplied by a factor.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    See Also
    --------
    coverage_width_curve : The curve.

    Notes
    -----
    The curve is vertical while no target is covered, and steps to the right by a target's share
    when c reaches its z, at the width ``2 z mean(std)``. Therefore the area is exactly
    ``2 mean(std) mean(z)``, and no grid of scales is needed. The NOMU paper uses the trapezoidal
    rule over a geometric grid of c from 1e-3 to 1e3, in 1e5 steps of 0.014 %, in which a step to
    the right lies somewhere within a grid step. The two agree to 7e-5 of the area if all z are
    inside the grid. (Trapezoids between the targets themselves would cut off half of each step,
    and give an area smaller by half the last width divided by n.)

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
    """Compute the Gaussian negative log likelihood after all std are multiplied by the best factor.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, means and standard deviations, in units of y; std > 0.
    return_scale : bool, default=False
        Also return the factor.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    loss : float
        Mean over rows and outputs, in nats, with the constant 0.5 log(2 pi); smaller is better.
        It is -inf if all predictions of an output are exact.
    scale : float or ndarray of shape (n_outputs,)
        Factor c of each output, ``c**2 = mean(z**2)``, returned if `return_scale`. Above 1 the
        std were too small.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    Notes
    -----
    As in the paper, the factor is chosen on the rows that are scored. The loss therefore measures
    relative uncertainty, and does not estimate the effect of a calibration on new rows. The paper
    omits the constant.

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
        # Mean over rows of log(c std) + (z / c)^2 / 2, where the mean of (z / c)^2 is 1.
        losses = LOG_SQRT_2PI + average(np.log(std), sample_weight) + np.log(scale) + 0.5
    loss = float(losses.mean())
    return (loss, scale if y.ndim > 1 else float(scale)) if return_scale else loss
