"""Does uncertainty find what goes wrong? Of errors of any kind, in numbers or in classes.

Notation: n rows, r the share of rows retained, the least uncertain first. Rows of equal
uncertainty come in random order, and what is given is the expectation over it.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from skuq._checks import check_weights
from skuq.metrics._checks import check_same_shape, group_sums


def error_retention_curve(errors, uncertainty, *, sample_weight=None):
    """Error left if the most uncertain rows were handed to someone who makes none.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Larger is less sure.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    retained : ndarray of shape (n_points,)
        Shares of rows, from 0 to 1.
    error : ndarray of shape (n_points,)
        Sum of the retained rows' errors over the number of all rows, so that it ends at
        the mean error. The curve is linear between points.

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
    _, _, rows, sums = group_sums(uncertainty, weight, weight * errors)
    rows, sums = rows[rows > 0], sums[rows > 0]
    retained = np.concatenate([[0.0], np.cumsum(rows)])
    error = np.concatenate([[0.0], np.cumsum(sums)])
    return retained / retained[-1], error / retained[-1]


def retention_auc(errors, uncertainty, *, sample_weight=None):
    """Area under the error-retention curve.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Larger is less sure.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of the errors; smaller is better. Half the mean error if uncertainty says
        nothing. Judges errors and their ranking together.

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
    """Area under the risk-coverage curve: mean error of the rows retained, over all r.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Errors of any kind: squared or absolute ones of a regressor, 0 and 1 of a classifier.
    uncertainty : array-like of shape (n_samples,)
        Larger is less sure.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of the errors; smaller is better. The mean error if uncertainty says
        nothing.

    Raises
    ------
    ValueError
        If shapes differ or are not (n_samples,).

    Notes
    -----
    The integral over r of the error-retention curve over r, exactly. Geifman and El-Yaniv
    take the mean over whole numbers of rows; the two differ by order log(n) / n, and the
    integral does not change if all rows are repeated.

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
    # Beside a huge weight a tiny one may be lost in rounding.
    slope = np.divide(rise, step, out=np.zeros_like(step), where=step > 0)
    # On each piece the curve is slope * r + offset; the first starts at the origin. The
    # slopes integrate to the curve's last value, the offsets to logarithms.
    offset = (error[:-1] - slope * retained[:-1])[1:]
    return float(error[-1] + offset @ np.log1p(step[1:] / retained[1:-1]))


def ood_auroc_score(score_in, score_out, *, sample_weight=None):
    """Area under the ROC curve of a score that detects out-of-distribution rows.

    Parameters
    ----------
    score_in : array-like of shape (n_in,)
        Scores of rows like the training data: a standard deviation, entropy or another number
        that should be low there.
    score_out : array-like of shape (n_out,)
        Scores of rows unlike the training data, which should be high.
    sample_weight : array-like of shape (n_in + n_out,), optional
        Weights of both sets of rows, in this order.

    Returns
    -------
    float
        Area under the ROC curve: the probability that a row out of the distribution has
        the higher score of two. 1 is best, 0.5 says nothing.

    Raises
    ------
    ValueError
        If a score is empty or not finite.

    See Also
    --------
    sklearn.metrics.roc_auc_score : Called here.

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
            raise ValueError(f"All `sample_weight` of `{name}` are 0.")
    return float(roc_auc_score(is_out, score, sample_weight=weight))
