"""Score how well uncertainty identifies errors of any kind, in regression or classification.

Notation: n rows; r is the share of rows retained, of which the least uncertain come first. Rows
of equal uncertainty come in random order, and results are expectations over this order.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from skuq._checks import check_weights
from skuq.metrics._checks import check_same_shape, group_sums


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
    errors, uncertainty = check_same_shape(errors=errors, uncertainty=uncertainty)
    if errors.ndim > 1:
        raise ValueError(f"`errors` must have shape (n_samples,). Got {errors.shape}.")
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
    parts = []
    for name, score in (("score_in", score_in), ("score_out", score_out)):
        (score,) = check_same_shape(**{name: score})
        if score.ndim > 1:
            raise ValueError(f"`{name}` must have shape (n_samples,). Got {score.shape}.")
        parts.append(score)
    score = np.concatenate(parts)
    is_out = np.repeat([False, True], [len(part) for part in parts])
    weight = check_weights(sample_weight, score)
    for name, side in (("score_in", ~is_out), ("score_out", is_out)):
        if not weight[side].any():
            raise ValueError(
                f"`sample_weight` must be positive for at least one row of `{name}`. All are 0."
            )
    return float(roc_auc_score(is_out, score, sample_weight=weight))
