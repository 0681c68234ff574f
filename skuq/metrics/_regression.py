"""Score predicted distributions of numbers, by their density and by their cdf.

Arguments are in scikit-learn's order. Notation: n rows, m outputs, K members.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from skuq._constants import LOG_SQRT_2PI
from skuq.metrics._checks import average, check_arrays, check_members, check_same_shape


def gaussian_nll_loss(y_true, mean, std, *, sample_weight=None):
    """Compute the negative log likelihood of y under predicted normals.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, means and standard deviations, in units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in nats, with the constant 0.5 log(2 pi); smaller is better.

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
    """Compute the exact negative log likelihood of y under predicted mixtures of normals.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    loc, scale : array-like of shape (n_members, n_samples[, n_outputs])
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, in nats; smaller is better. For several outputs, the logarithm of the
        joint density (in which outputs are independent given the member) is divided by their
        number, so that a single member has its `gaussian_nll_loss`.

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
    joint = special.logsumexp(log_density.sum(axis=2), axis=0, b=weights[:, None])  # (n,)
    return float(LOG_SQRT_2PI - average(joint, sample_weight) / n_outputs)


def crps_loss(y_true, mean, std, *, sample_weight=None):
    """Compute the continuous ranked probability score of predicted normals, in closed form.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, means and standard deviations, in units of y; std > 0.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

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
    """Compute the CRPS of normals from errors of the mean, element by element, without checks."""
    # E|X - y| - E|X - X'| / 2, where E|X - X'| = 2 std / sqrt(pi).
    return _mean_distance(error, std) - std / np.sqrt(np.pi)


def crps_mixture_loss(y_true, loc, scale, weights=None, *, sample_weight=None):
    """Compute the continuous ranked probability score of mixtures of normals, in closed form.

    Each of several outputs is scored by its marginal distribution.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    loc, scale : array-like of shape (n_members, n_samples[, n_outputs])
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

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
    # CRPS = sum_k w_k E|X_k - y| - 1/2 sum_kl w_k w_l E|X_k - X_l| (Eq. 5).
    losses = np.zeros_like(y)
    for k, weight in enumerate(weights):
        losses += weight * _mean_distance(y - loc[k], scale[k])
        # Each pair counts twice, as (k, other) and (other, k), which cancels the factor 1/2.
        for other in range(k):
            spread = np.hypot(scale[k], scale[other])
            losses -= weight * weights[other] * _mean_distance(loc[k] - loc[other], spread)
        losses -= weight**2 * scale[k] / np.sqrt(np.pi)  # the pair (k, k)
    return float(average(losses, sample_weight).mean())


def _mean_distance(shift, std):
    """Compute E|Z| of a normal Z with this mean and standard deviation."""
    z = shift / std
    return std * (z * special.erf(z / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2))


def crps_sample_loss(y_true, samples, *, fair=True, sample_weight=None):
    """Compute the continuous ranked probability score of predictions given as draws.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    samples : array-like of shape (n_samples, n_draws) or (n_samples, n_outputs, n_draws)
        Draws for each row, as returned by `sample_y`, in units of y.
    fair : bool, default=True
        True treats the draws as a sample from the prediction: the score is an unbiased estimate
        of the prediction's score, and can be negative. False treats the empirical distribution of
        the draws as the prediction.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

    Raises
    ------
    ValueError
        If shapes do not agree, or there is only one draw for a fair score.

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
        raise ValueError(
            "A fair score needs at least 2 draws. Got 1. Add draws, or set fair=False."
        )
    error = np.abs(samples - y[..., None]).mean(axis=-1)
    # The sum of distances of all pairs is a weighted sum of sorted draws: the k-th draw is larger
    # than k others and smaller than n_draws - 1 - k.
    rank = 2 * np.arange(n_draws) - (n_draws - 1)
    distance = np.sort(samples, axis=-1) @ rank / (n_draws * (n_draws - fair))
    return float(average(error - distance, sample_weight).mean())
