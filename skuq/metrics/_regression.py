"""Scores of predicted normals and intervals. Arguments in scikit-learn's order."""

from __future__ import annotations

import numpy as np
from scipy import special
from sklearn.utils import check_consistent_length

__all__ = ["coverage_score", "crps_loss", "gaussian_nll_loss"]


def _mean(losses, sample_weight):
    """Mean over outputs, then the weighted mean over rows."""
    losses = losses.reshape(len(losses), -1).mean(axis=1)
    return float(np.average(losses, weights=sample_weight))


def _arrays(y_true, **others):
    y = np.asarray(y_true, dtype=float)
    arrays = [np.asarray(values, dtype=float) for values in others.values()]
    check_consistent_length(y, *arrays)
    for name, values in zip(others, arrays):
        if values.shape != y.shape:
            raise ValueError(
                f"`{name}` must have the shape of y_true, {y.shape}. Got {values.shape}."
            )
    if "std" in others and not (arrays[-1] > 0).all():
        raise ValueError(f"`std` must be positive. The smallest is {arrays[-1].min()}.")
    return y, *arrays


def gaussian_nll_loss(y_true, mean, std, *, sample_weight=None):
    """Negative log likelihood of y under predicted normals, with 0.5 log(2 pi).

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats; the mean over rows and outputs. Smaller is better.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    Examples
    --------
    >>> round(gaussian_nll_loss([0.0], [0.0], [1.0]), 4)
    0.9189
    """
    y, mean, std = _arrays(y_true, mean=mean, std=std)
    losses = 0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * ((y - mean) / std) ** 2
    return _mean(losses, sample_weight)


def crps_loss(y_true, mean, std, *, sample_weight=None):
    """Continuous ranked probability score of predicted normals, in closed form.

    Parameters and errors are those of `gaussian_nll_loss`.

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Smaller is better.

    References
    ----------
    Gneiting and Raftery (2007), Eq. 21.

    Examples
    --------
    >>> round(crps_loss([0.0], [0.0], [1.0]), 4)
    0.2337
    """
    y, mean, std = _arrays(y_true, mean=mean, std=std)
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    losses = std * (z * (2 * special.ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return _mean(losses, sample_weight)


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

    Examples
    --------
    >>> coverage_score([1.0, 5.0], [0.0, 0.0], [2.0, 2.0])
    0.5
    """
    y, lower, upper = _arrays(y_true, lower=lower, upper=upper)
    return _mean(((lower <= y) & (y <= upper)).astype(float), sample_weight)
