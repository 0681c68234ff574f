"""Scores of predicted distributions of numbers: their density, and their cdf.

Arguments come in scikit-learn's order. Notation: n rows, m outputs, K members.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from skuq._constants import LOG_SQRT_2PI
from skuq.metrics._checks import average, check_arrays, check_members, check_same_shape


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
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    losses = np.log(std) + 0.5 * ((y - mean) / std) ** 2
    return float(average(losses, sample_weight).mean() + LOG_SQRT_2PI)


def mixture_nll_loss(y_true, loc, scale, weights=None, *, sample_weight=None):
    """Negative log likelihood of y under predicted mixtures of normals, exactly.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    loc, scale : array-like of shape (n_members, n_samples[, n_outputs])
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : array-like of shape (n_members,), optional
        Non-negative, summing to 1; equal by default.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats; the mean over rows. Of several outputs the joint density is taken (given
        the member they are independent) and its logarithm divided by their number, so
        that one member has its `gaussian_nll_loss`. Smaller is better.

    Raises
    ------
    ValueError
        If shapes differ, a scale is not positive or weights do not sum to 1.

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell (2017), "Simple and Scalable Predictive
    Uncertainty Estimation using Deep Ensembles", section 2.4.

    Examples
    --------
    >>> round(mixture_nll_loss([0.0], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]]), 4)
    1.4189
    """
    y, loc, scale, weights = check_members(y_true, loc, scale, weights)
    log_density = -0.5 * ((y - loc) / scale) ** 2 - np.log(scale)
    log_density = log_density.reshape(*loc.shape[:2], -1)  # (K, n, m)
    n_outputs = log_density.shape[2]
    joint = special.logsumexp(log_density.sum(axis=2), axis=0, b=weights[:, None])
    return float(LOG_SQRT_2PI - average(joint, sample_weight) / n_outputs)


def crps_loss(y_true, mean, std, *, sample_weight=None):
    """Continuous ranked probability score of predicted normals, in closed form.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Smaller is better.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    References
    ----------
    Gneiting and Raftery (2007), "Strictly Proper Scoring Rules, Prediction, and
    Estimation", Eq. 21.

    Examples
    --------
    >>> round(crps_loss([0.0], [0.0], [1.0]), 4)
    0.2337
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    return float(average(crps_normal(y - mean, std), sample_weight).mean())


def crps_normal(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Score normals with these errors of the mean, element by element and without checks."""
    return _mean_distance(error, std) - std / np.sqrt(np.pi)


def crps_mixture_loss(y_true, loc, scale, weights=None, *, sample_weight=None):
    """Continuous ranked probability score of mixtures of normals, in closed form.

    With several outputs each is scored by its marginal.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    loc, scale : array-like of shape (n_members, n_samples[, n_outputs])
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : array-like of shape (n_members,), optional
        Non-negative, summing to 1; equal by default.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Smaller is better.

    Raises
    ------
    ValueError
        If shapes differ, a scale is not positive or weights do not sum to 1.

    Notes
    -----
    Time grows with the square of the number of members.

    References
    ----------
    Grimit, Gneiting, Berrocal and Johnson (2006), "The continuous ranked probability
    score for circular variables and its application to mesoscale forecast ensemble
    verification", Eq. 5.

    Examples
    --------
    >>> round(crps_mixture_loss([0.0], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]]), 4)
    0.3594
    """
    y, loc, scale, weights = check_members(y_true, loc, scale, weights)
    losses = np.zeros_like(y)
    for k, weight in enumerate(weights):
        losses += weight * _mean_distance(y - loc[k], scale[k])
        # Half of each pair's weight, twice: as (k, other) and as (other, k).
        for other in range(k):
            spread = np.hypot(scale[k], scale[other])
            losses -= weight * weights[other] * _mean_distance(loc[k] - loc[other], spread)
        losses -= weight**2 * scale[k] / np.sqrt(np.pi)
    return float(average(losses, sample_weight).mean())


def _mean_distance(shift, std):
    """E|Z| of a normal Z with this mean and standard deviation."""
    z = shift / std
    return std * (z * special.erf(z / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2))


def crps_sample_loss(y_true, samples, *, fair=True, sample_weight=None):
    """Continuous ranked probability score of predictions given as draws.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        In units of y.
    samples : array-like of shape (n_samples, n_draws) or (n_samples, n_outputs, n_draws)
        Draws for each row, as `sample_y` gives them; in units of y.
    fair : bool, default=True
        True takes the draws as a sample of the prediction: the score is an unbiased
        estimate of the prediction's own, and may be negative. False takes the draws
        themselves, equally likely, as the prediction.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In units of y; the mean over rows and outputs. Smaller is better.

    Raises
    ------
    ValueError
        If shapes do not fit, or a fair score is asked of a single draw.

    References
    ----------
    Gneiting and Raftery (2007), Eq. 20; Ferro (2014), "Fair scores for ensemble
    forecasts", on the division by n_draws - 1.

    Examples
    --------
    >>> crps_sample_loss([0.0], [[-1.0, 1.0]], fair=False)
    0.5
    >>> crps_sample_loss([0.0], [[-1.0, 1.0]])
    0.0
    """
    (y,) = check_same_shape(y_true=y_true)
    (samples,) = check_arrays(samples=samples)
    n_draws = samples.shape[-1]
    if samples.shape[:-1] != y.shape:
        raise ValueError(
            f"`samples` must have shape (*y_true.shape, n_draws), here ("
            f"{', '.join(map(str, y.shape))}, n_draws). Got {samples.shape}."
        )
    if fair and n_draws < 2:
        raise ValueError("A fair score needs 2 draws at least. Got 1; fair=False takes it as is.")
    error = np.abs(samples - y[..., None]).mean(axis=-1)
    # Each draw is above so many others, and below the rest: the sum of distances of all pairs.
    rank = 2 * np.arange(n_draws) - (n_draws - 1)
    distance = np.sort(samples, axis=-1) @ rank / (n_draws * (n_draws - fair))
    return float(average(error - distance, sample_weight).mean())
