"""Score the calibration of predicted quantiles, from values of the predicted cdf at y.

These values (PIT, the probability integral transform) are uniform for a calibrated prediction
of any shape, so that with ``pit=`` mixtures are scored by their own cdf.
Notation: n rows, m outputs.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from skuq._checks import check_weights
from skuq.metrics._checks import average, check_choice, check_members, check_same_shape


def pit_values(y_true, mean, std):
    """Compute the probability integral transform of y under predicted normals: their cdf at y.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, means and standard deviations, in units of y; std > 0.

    Returns
    -------
    ndarray of the shape of y_true
        Values in [0, 1], which are uniform if predictions are calibrated.

    Raises
    ------
    ValueError
        If shapes differ or a std is not positive.

    References
    ----------
    Gneiting, Balabdaoui and Raftery (2007), "Probabilistic forecasts, calibration and
    sharpness".

    Examples
    --------
    >>> pit_values([0.0, 3.0], [0.0, 1.0], [1.0, 1.0]).round(4)
    array([0.5   , 0.9772])
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    return special.ndtr((y - mean) / std)


def mixture_pit_values(y_true, loc, scale, weights=None):
    """Compute the probability integral transform of y under predicted mixtures of normals.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    loc, scale : array-like of shape (n_members, n_samples[, n_outputs])
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.

    Returns
    -------
    ndarray of the shape of y_true
        Values in [0, 1], which are uniform if predictions are calibrated.

    Raises
    ------
    ValueError
        If shapes differ, a scale is not positive or weights do not sum to 1.

    Examples
    --------
    >>> mixture_pit_values([0.0], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]])
    array([0.5])
    """
    y, loc, scale, weights = check_members(y_true, loc, scale, weights)
    # Rounding can make sums of weights larger than 1.
    return np.minimum(np.tensordot(weights, special.ndtr((y - loc) / scale), axes=1), 1.0)


def quantile_calibration_curve(
    y_true=None, mean=None, std=None, *, pit=None, kind="quantile", n_levels=100, sample_weight=None
):
    """Compute the observed share of targets below (or inside) each nominal level.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Targets, means and standard deviations of normals, in units of y; std > 0.
    pit : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Values of the predicted cdf at y, instead of the three above.
    kind : {"quantile", "interval"}, default="quantile"
        Meaning of a level: the level of a quantile, with the share of targets below it, or the
        coverage of a central interval, with the share of targets inside.
    n_levels : int, default=100
        Number of levels, equally spaced from 0 to 1, ends included.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    expected : ndarray of shape (n_levels,)
        Nominal levels.
    observed : ndarray of shape (n_levels,) or (n_levels, n_outputs)
        Shares of targets, which equal `expected` if predictions are calibrated.

    Raises
    ------
    ValueError
        If both or neither of `pit` and the normals are given, shapes differ, a std is not
        positive or a PIT value is outside [0, 1].

    References
    ----------
    Kuleshov, Fenner and Ermon (2018), "Accurate Uncertainties for Deep Learning Using
    Calibrated Regression", section 3.5.

    Examples
    --------
    >>> expected, observed = quantile_calibration_curve(pit=[0.1, 0.4, 0.6, 0.9], n_levels=3)
    >>> expected, observed
    (array([0. , 0.5, 1. ]), array([0. , 0.5, 1. ]))
    """
    levels, weight = _levels(y_true, mean, std, pit, kind, sample_weight)
    if n_levels < 2:
        raise ValueError(f"`n_levels` must be at least 2. Got {n_levels}.")
    expected = np.linspace(0, 1, n_levels)
    observed = [_shares(expected, column, weight) for column in levels.reshape(len(levels), -1).T]
    return expected, np.stack(observed, axis=-1).reshape(n_levels, *levels.shape[1:])


def calibration_error(
    y_true=None, mean=None, std=None, *, pit=None, kind="quantile", n_levels=100, sample_weight=None
):
    """Compute the mean absolute difference between nominal levels and observed shares.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Targets, means and standard deviations of normals, in units of y; std > 0.
    pit : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Values of the predicted cdf at y, instead of the three above.
    kind : {"quantile", "interval"}, default="quantile"
        Levels of quantiles, or of central intervals.
    n_levels : int, default=100
        Number of levels, equally spaced from 0 to 1, ends included.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over outputs, between 0 and 0.5; smaller is better. It is not proper: a prediction
        that ignores X can have an error close to 0.

    Raises
    ------
    ValueError
        As in `quantile_calibration_curve`.

    See Also
    --------
    miscalibration_area : The limit for many levels.

    References
    ----------
    Chung, Char, Guo, Schneider and Neiswanger (2021), "Uncertainty Toolbox", the mean
    absolute calibration error.

    Examples
    --------
    >>> calibration_error([0.0, 0.0], mean=[0.0, 0.0], std=[1.0, 1.0], n_levels=5)
    0.2
    """
    expected, observed = quantile_calibration_curve(
        y_true, mean, std, pit=pit, kind=kind, n_levels=n_levels, sample_weight=sample_weight
    )
    return float(np.abs(observed.T - expected).mean())


def miscalibration_area(
    y_true=None, mean=None, std=None, *, pit=None, kind="quantile", sample_weight=None
):
    """Compute the exact area between the calibration curve and the diagonal.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Targets, means and standard deviations of normals, in units of y; std > 0.
    pit : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Values of the predicted cdf at y, instead of the three above.
    kind : {"quantile", "interval"}, default="quantile"
        Levels of quantiles, or of central intervals.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over outputs, between 0 and 0.5; smaller is better. It is not proper: a prediction
        that ignores X can have an area close to 0.

    Raises
    ------
    ValueError
        If both or neither of `pit` and the normals are given, shapes differ, a std is not
        positive or a PIT value is outside [0, 1].

    Notes
    -----
    The curve is a step function with a step at each target, so that no levels must be chosen.
    For ``kind="quantile"`` the area is the Wasserstein distance between the PIT values and the
    uniform distribution.

    Examples
    --------
    >>> miscalibration_area([0.0, 0.0], mean=[0.0, 0.0], std=[1.0, 1.0])
    0.25
    """
    levels, weight = _levels(y_true, mean, std, pit, kind, sample_weight)
    areas = [_area_from_diagonal(column, weight) for column in levels.reshape(len(levels), -1).T]
    return float(np.mean(areas))


def sharpness(std, *, sample_weight=None):
    """Compute the root mean square of predicted standard deviations.

    Parameters
    ----------
    std : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Positive standard deviations, in units of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over outputs, in units of y. Of two calibrated predictions, the one with the smaller
        value is more informative.

    Raises
    ------
    ValueError
        If a std is not positive.

    References
    ----------
    Kuleshov, Fenner and Ermon (2018), section 3.5.

    Examples
    --------
    >>> sharpness([1.0, 7.0])
    5.0
    """
    (std,) = check_same_shape(std=std)
    return float(np.sqrt(average(std**2, sample_weight)).mean())


def _levels(y_true, mean, std, pit, kind, sample_weight):
    """Compute the smallest level that includes each row's target, (n[, m]), and weights (n,)."""
    check_choice("kind", kind, ("quantile", "interval"))
    values = {"y_true": y_true, "mean": mean, "std": std, "pit": pit}
    given = [name for name, value in values.items() if value is not None]
    if given not in (["y_true", "mean", "std"], ["pit"]):
        raise ValueError(f"Give either `y_true`, `mean` and `std`, or `pit`. Got {given}.")
    if pit is None:
        pit = pit_values(y_true, mean, std)
    else:
        (pit,) = check_same_shape(pit=pit)
        if pit.min() < 0 or pit.max() > 1:
            raise ValueError(
                f"`pit` must have numbers in [0, 1]. Got values from {pit.min()} to {pit.max()}."
            )
    # The smallest central interval that holds y has the coverage |2 PIT - 1|.
    return (np.abs(2 * pit - 1) if kind == "interval" else pit), check_weights(sample_weight, pit)


def _shares(expected, levels, weight):
    """Compute the weighted share of levels (n,) at or below each of the expected levels."""
    # Count rows by the first expected level that includes them, without sorting the rows.
    first = np.searchsorted(expected, levels, side="left")
    total = np.cumsum(np.bincount(first, weights=weight, minlength=len(expected)))
    # The last of the expected levels is 1, which includes all rows.
    return total / total[-1]


def _area_from_diagonal(levels, weight):
    """Integrate |(share of levels at or below p) - p| over p in [0, 1]."""
    order = np.argsort(levels)
    total = np.cumsum(weight[order])
    # The share is constant between sorted levels.
    height = np.concatenate([[0.0], total / total[-1]])
    edges = np.concatenate([[0.0], levels[order], [1.0]])

    def integral(p):
        """Evaluate the antiderivative of |p - height|."""
        return 0.5 * (p - height) * np.abs(p - height)

    return np.sum(integral(edges[1:]) - integral(edges[:-1]))
