"""Score whether uncertainty finds the errors.

Notation: n rows; r is the share of rows retained, of which the least uncertain come first. Rows of
equal uncertainty come in random order, and results are expectations over this order.
"""

from __future__ import annotations

import numpy as np

from skuq._utils._checks import check_weights
from skuq.metrics._checks import check_same_shape


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
    _, group = np.unique(uncertainty, return_inverse=True)
    rows, sums = (np.bincount(group, weights=part) for part in (weight, weight * errors))
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
