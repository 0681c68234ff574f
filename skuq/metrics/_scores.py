"""Scores of predictive distributions of numbers and of classes."""

from itertools import combinations

import numpy as np
import pandas as pd
from scipy import special
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import column_or_1d

from skuq import _params
from skuq._formulas import LOG_SQRT_2PI

# Tolerance for sums of probabilities, which are often given in single or half precision.
_SUM_TOLERANCE = 1e-3


def check_arrays(*, finite=True, **arrays) -> list[np.ndarray]:
    """Check that arrays have one length and at least one row, and return them as floats.

    One named `std` must be positive.
    """
    arrays = {name: _params.as_floats(values, name) for name, values in arrays.items()}
    for name, values in arrays.items():
        if values.ndim == 0 or not values.size:
            raise ValueError(f"`{name}` must have at least one row. Got shape {values.shape}.")
        if finite and not np.isfinite(values).all():
            raise ValueError(f"`{name}` must be finite. Got NaN or infinity.")
        if not finite and np.isnan(values).any():
            raise ValueError(f"`{name}` must be numbers. Got NaN.")
    check_consistent_length(*arrays.values())
    if "std" in arrays and not (arrays["std"] > 0).all():
        raise ValueError(f"`std` must be positive. The smallest is {arrays['std'].min()}.")
    return list(arrays.values())


def check_same_shape(*, finite=True, one_output=False, **arrays) -> list[np.ndarray]:
    """Check that arrays have one shape, (n,), (n, m) or (n, q, m), or with `one_output` (n,)."""
    checked = check_arrays(finite=finite, **arrays)
    first, shape = next(iter(arrays)), checked[0].shape
    if len(shape) > 3:  # outputs, or the points and components of functions
        raise ValueError(f"`{first}` must have shape (n,), (n, m) or (n, q, m). Got {shape}.")
    for name, values in zip(arrays, checked):
        if values.shape != shape:
            raise ValueError(
                f"`{name}` must have the shape of {first}, {shape}. Got {values.shape}."
            )
    if one_output and len(shape) > 1:
        raise ValueError(f"`{first}` must have shape (n_samples,). Got {shape}.")
    return checked


def targets_like(mean, y_true) -> np.ndarray:
    """Check targets, and give them the shape of predicted means if `mean` is an array of these."""
    y = {"y_true": _params.reshape_like_prediction(check_arrays(y_true=y_true)[0], mean)}
    return check_same_shape(finite=False, **({"mean": mean} | y if np.shape(mean) else y))[-1]


def check_intervals(lower, upper, **y_true) -> list[np.ndarray]:
    """Check targets (if given) and ends of intervals, all of one shape, which may be infinite."""
    *y, lower, upper = check_same_shape(finite=False, **y_true, lower=lower, upper=upper)
    wrong = np.flatnonzero((lower > upper).reshape(len(lower), -1).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"`lower` must not exceed `upper`. It does in {len(wrong)} rows, first in "
            f"row {wrong[0]}: {lower[wrong[0]]} and {upper[wrong[0]]}."
        )
    return [*y, lower, upper]


def check_choice(name: str, value, choices) -> None:
    """Raise ValueError unless a value is one of the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Got {value!r}.")


def average(values: np.ndarray, sample_weight) -> np.ndarray:
    """Average over rows with weights, separately for each output."""
    weight = _params.check_weights(sample_weight, values)
    used = weight > 0  # rows of weight 0 can be infinite
    return np.average(values[used], axis=0, weights=weight[used])


def check_proba(proba, *, name: str = "proba", members: bool = False) -> np.ndarray:
    """Check class probabilities (n, C), or (K, n, C) of members."""
    (proba,) = check_arrays(**{name: proba})
    axes = ("n_members", "n_samples", "n_classes") if members else ("n_samples", "n_classes")
    if proba.ndim != len(axes):
        raise ValueError(f"`{name}` must have shape ({', '.join(axes)}). Got {proba.shape}.")
    _params.check_probabilities(f"Each row of `{name}`", proba, -1, tolerance=_SUM_TOLERANCE)
    return proba


def brier_loss(y_true, proba, *, labels=None, sample_weight=None):
    """Compute the Brier score: the squared distance of probabilities from the one-hot true class.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    proba : array-like of shape (n_samples, n_classes)
        Class probabilities; each row sums to 1.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows of the sum over classes, between 0 and 2, as Brier defined it; smaller is
        better. For two classes scikit-learn returns half of it by default.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Brier (1950), "Verification of forecasts expressed in terms of probability".

    Examples
    --------
    >>> round(brier_loss(["cat", "dog"], [[1.0, 0.0], [0.2, 0.8]]), 4)
    0.04
    """
    proba = check_proba(proba)
    return float(average(brier(proba, label_columns(y_true, proba, labels)), sample_weight))


def brier(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Compute the Brier score of each row."""
    # Sum over classes of p^2, with (p - 1)^2 = p^2 + 1 - 2 p for the true class.
    losses = np.einsum("nc,nc->n", proba, proba) + 1 - 2 * proba[np.arange(len(codes)), codes]
    return np.maximum(losses, 0)


def ece_loss(y_true, proba, *, n_bins=15, labels=None, sample_weight=None):
    """Compute the expected calibration error of the predicted class.

    Rows are put into bins of equal width by confidence, the largest probability. The error is the
    mean over rows of the absolute difference between accuracy and mean confidence of their bin.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    proba : array-like of shape (n_samples, n_classes)
        Class probabilities; each row sums to 1.
    n_bins : int, default=15
        Number of bins.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Error between 0 and 1; smaller is better. It is not proper: a prediction that ignores X
        can have an error of 0. With few rows it is too large, because accuracies of bins are
        noisy.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Naeini, Cooper and Hauskrecht (2015), "Obtaining Well Calibrated Probabilities Using
    Bayesian Binning"; Guo, Pleiss, Sun and Weinberger (2017), "On Calibration of Modern
    Neural Networks"; Zaidi et al. (2021), "Neural Ensemble Search", section 5.

    Examples
    --------
    >>> round(ece_loss([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], n_bins=2), 4)
    0.0667
    """
    _params.check_count("n_bins", n_bins)
    proba = check_proba(proba)
    codes = label_columns(y_true, proba, labels)
    weight = _params.check_weights(sample_weight, codes)
    predicted = proba.argmax(axis=1)
    confidence = proba[np.arange(len(codes)), predicted]
    # Bins are closed on the right, as in Guo et al.
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence, side="left")
    # The weight of a bin cancels against the denominators of its two means.
    gaps = np.bincount(bins, weights=weight * ((predicted == codes) - confidence))
    return float(np.abs(gaps).sum() / weight.sum())


def label_columns(y_true, proba: np.ndarray, labels) -> np.ndarray:
    """Find which of the C columns of proba (.., n, C) belongs to each row's label: (n,)."""
    y = column_or_1d(_params.fill_masked(y_true))
    n, n_classes = proba.shape[-2:]
    if len(y) != n:
        raise ValueError(f"`y_true` must have {n} rows, as the probabilities. Got {len(y)}.")
    if (missing := pd.isna(y)).any():
        raise ValueError(f"`y_true` must label every row. Row {np.argmax(missing)} has no label.")
    given = labels is not None
    labels = column_or_1d(labels) if given else np.unique(y)
    if len(labels) != n_classes or len(np.unique(labels)) != n_classes:
        hint = "" if given else " These are the labels in y_true; give all classes as `labels`."
        raise ValueError(
            f"`labels` must name the {n_classes} columns of the probabilities. "
            f"Got {labels.tolist()}.{hint}"
        )
    return _params.class_codes(y, labels, problem="`y_true` has labels that are not in `labels`")


# Smallest probability in a logarithm, as in sklearn's log_loss.
LEAST_PROBABILITY = np.finfo(float).eps


def ensemble_nll_loss(y_true, member_proba, weights=None, *, labels=None, sample_weight=None):
    """Compute the negative log likelihood of labels under the members' averaged probabilities.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Class probabilities of the members; each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, in nats; smaller is better. Probabilities below 2.2e-16 count as 2.2e-16.
        The loss is never below `oracle_nll_loss` nor above `average_member_nll_loss`.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Zaidi et al. (2021), "Neural Ensemble Search for Uncertainty Estimation and Dataset
    Shift", section 3 and Proposition 3.1.

    Examples
    --------
    >>> members = [[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> round(ensemble_nll_loss([0, 1], members), 4)
    0.4904
    """
    p, weights = _true_probabilities(y_true, member_proba, labels, weights)
    return -float(average(np.log(weights @ p), sample_weight))


def average_member_nll_loss(y_true, member_proba, weights=None, *, labels=None, sample_weight=None):
    """Compute the negative log likelihood of labels under each member, averaged over members.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Class probabilities of the members; each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over members and rows, in nats; it measures the strength of single members. Smaller
        is better. Probabilities below 2.2e-16 count as 2.2e-16.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Zaidi et al. (2021), "Neural Ensemble Search", section 3.

    Examples
    --------
    >>> members = [[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> round(average_member_nll_loss([0, 1], members), 4)
    0.5199
    """
    p, weights = _true_probabilities(y_true, member_proba, labels, weights)
    return -float(average(weights @ np.log(p), sample_weight))


def oracle_nll_loss(y_true, member_proba, *, labels=None, sample_weight=None):
    """Compute the negative log likelihood of labels if an oracle chose the best member of each row.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Class probabilities of the members; each row sums to 1.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, in nats. For members of equal strength, smaller means more diverse.
        Probabilities below 2.2e-16 count as 2.2e-16.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Zaidi et al. (2021), "Neural Ensemble Search", section 3.

    Examples
    --------
    >>> members = [[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    >>> round(oracle_nll_loss([0, 1], members), 4)
    0.3466
    """
    p, _ = _true_probabilities(y_true, member_proba, labels)
    return -float(average(np.log(p.max(axis=0)), sample_weight))


def disagreement_score(members, *, sample_weight=None):
    """Compute the share of rows on which two members predict different classes, over all pairs.

    Parameters
    ----------
    members : array-like of shape (n_members, n_samples) or (n_members, n_samples, n_classes)
        Predicted labels of any kind, or class probabilities, of which the largest is the
        predicted class.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Between 0 and 1; larger is more diverse. 0 for a single member.

    Raises
    ------
    ValueError
        If `members` has another shape, or rows of probabilities are not distributions.

    See Also
    --------
    skuq.ensembles.select_teams : Measures of diversity of teams.

    References
    ----------
    Zaidi et al. (2021), "Neural Ensemble Search", section 3: predictive disagreement.

    Examples
    --------
    >>> round(disagreement_score([["a", "b"], ["a", "a"], ["a", "b"]]), 4)
    0.3333
    """
    members = np.asarray(_params.fill_masked(members))
    if members.ndim == 3:
        members = check_proba(members, name="members", members=True).argmax(axis=2)
    if members.ndim != 2 or not members.size:
        raise ValueError(
            "`members` must be labels (n_members, n_samples) or probabilities (n_members, "
            f"n_samples, n_classes). Got shape {members.shape}."
        )
    if members.dtype.kind == "f" and not (members == np.round(members)).all():
        raise ValueError(
            "`members` with two axes must be labels. Got fractions. Probabilities need the shape "
            "(n_members, n_samples, n_classes), also for two classes."
        )
    weight = _params.check_weights(sample_weight, members[0])
    shares = [np.average(a != b, weights=weight) for a, b in combinations(members, 2)]
    return float(np.mean(shares)) if shares else 0.0


def _true_probabilities(y_true, member_proba, labels, weights=None):
    """Return the members' probabilities of the true class, (K, n), and weights (K,)."""
    proba = check_proba(member_proba, name="member_proba", members=True)
    codes = label_columns(y_true, proba, labels)
    # Clip before averaging, so that oracle <= ensemble <= average member always holds.
    p = np.maximum(proba[:, np.arange(len(codes)), codes], LEAST_PROBABILITY)
    return p, _params.check_member_weights(weights, len(p))


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
    return float(average(normal_nll(y_true, mean, std), sample_weight).mean())


def normal_nll(y_true, mean, std) -> np.ndarray:
    """Compute the negative log likelihood of each y (n[, m]) under its normal."""
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    return np.log(std) + 0.5 * ((y - mean) / std) ** 2 + LOG_SQRT_2PI


@np.errstate(under="ignore")
def nll_loss(y_true, distribution, *, sample_weight=None):
    """Compute the negative log likelihood of y under predicted distributions.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    distribution : object
        Distribution of each row, with a method ``log_prob(y)``, as `predict_distribution` returns
        it.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, in nats; smaller is better. For several outputs, the logarithm of the
        joint density is divided by their number, so that independent normals have their
        `gaussian_nll_loss`.

    Raises
    ------
    ValueError
        If y has another shape than the distribution.

    Examples
    --------
    >>> from skuq.predictive import GaussianMixture
    >>> two = GaussianMixture(loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]])
    >>> round(nll_loss([0.0], two), 4)
    1.4189
    """
    y = targets_like(np.broadcast_to(0.0, getattr(distribution, "_shape", ())), y_true)
    return -float(average(distribution.log_prob(y), sample_weight)) / y[0].size


def crps_loss(y_true, distribution, *, sample_weight=None):
    """Compute the continuous ranked probability score of predicted distributions.

    Each of several outputs is scored by its marginal distribution.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    distribution : object
        Distribution of each row, with a method ``crps(y)``, as `predict_distribution` returns it.
        ``GaussianMixture(mean[None], std[None])`` is that of normals.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

    Raises
    ------
    ValueError
        If y has another shape than the distribution.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> round(crps_loss([0.0], GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))), 4)
    0.2337
    """
    y = targets_like(np.broadcast_to(0.0, getattr(distribution, "_shape", ())), y_true)
    return float(average(distribution.crps(y), sample_weight).mean())


def coverage_score(y_true, lower, upper, *, sample_weight=None):
    """Compute the share of targets inside their interval, ends included.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, and lower and upper ends of the intervals, in units of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Coverage between 0 and 1; the best value is the interval's nominal coverage.

    Raises
    ------
    ValueError
        If shapes differ or an interval ends before it begins.

    Examples
    --------
    >>> coverage_score([1.0, 5.0], [0.0, 0.0], [2.0, 2.0])
    0.5
    """
    return float(average(inside(y_true, lower, upper), sample_weight).mean())


def inside(y_true, lower, upper) -> np.ndarray:
    """Say for each y (n[, m]), which must be finite, whether its interval holds it."""
    y, lower, upper = check_intervals(lower, upper, y_true=y_true)
    check_arrays(y_true=y)
    return (lower <= y) & (y <= upper)


def mean_width(lower, upper, *, sample_weight=None):
    """Compute the mean width of intervals.

    Parameters
    ----------
    lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Ends of the intervals, in units of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y. Of two predictions with the same coverage, the
        narrower one is better.

    Raises
    ------
    ValueError
        If shapes differ or an interval ends before it begins.

    Examples
    --------
    >>> mean_width([0.0, 1.0], [2.0, 5.0])
    3.0
    """
    lower, upper = check_intervals(lower, upper)
    return float(average(upper - lower, sample_weight).mean())


def interval_loss(y_true, lower, upper, coverage, *, sample_weight=None):
    """Compute the interval (Winkler) score: width plus a penalty for each target outside.

    A target at a distance d from the interval costs ``2 d / (1 - coverage)``. The score is
    proper: its expectation is smallest for the central interval with this coverage.

    Parameters
    ----------
    y_true, lower, upper : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, and lower and upper ends of the intervals, in units of y.
    coverage : float
        Nominal coverage of the central interval, strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows and outputs, in units of y; smaller is better.

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
    return float(average(winkler(y_true, lower, upper, coverage), sample_weight).mean())


def winkler(y_true, lower, upper, coverage) -> np.ndarray:
    """Compute the interval score of each y (n[, m])."""
    y, lower, upper = check_intervals(lower, upper, y_true=y_true)
    check_arrays(y_true=y)  # finite
    outside = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    # Eq. 43 with alpha = 1 - coverage: (u - l) + 2 / alpha * distance outside.
    return (upper - lower) + 2 / (1 - coverage) * outside


def quantile_loss(y_true, y_quantiles, probabilities, *, sample_weight=None):
    """Compute the mean pinball loss of several predicted quantiles.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    y_quantiles : array-like of shape (n_samples, n_quantiles[, n_outputs])
        Predicted quantiles as returned by `predict_quantiles`, in units of y.
    probabilities : array-like of shape (n_quantiles,)
        Levels of the quantiles, strictly between 0 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Mean over rows, quantiles and outputs, in units of y; smaller is better. For many equally
        spaced quantiles, twice this loss approximates the CRPS.

    Raises
    ------
    ValueError
        If shapes do not agree or a probability is outside (0, 1).

    See Also
    --------
    sklearn.metrics.mean_pinball_loss : The loss of one quantile.

    Examples
    --------
    >>> quantile_loss([1.0], [[0.0, 3.0]], [0.25, 0.75])
    0.375
    """
    (y,) = check_same_shape(y_true=y_true)
    (quantiles,) = check_arrays(y_quantiles=y_quantiles)
    levels = np.atleast_1d(np.asarray(probabilities, dtype=float))
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"`probabilities` must be strictly in (0, 1). Got {probabilities}.")
    expected = (len(y), len(levels), *y.shape[1:])
    if quantiles.shape != expected:
        raise ValueError(f"`y_quantiles` must have shape {expected}. Got {quantiles.shape}.")
    return float(average(pinball(y, quantiles, levels), sample_weight).mean())


def pinball(y, quantiles, levels) -> np.ndarray:
    """Compute the pinball loss of each y (n[, m]), the mean over k quantiles (n, k[, m])."""
    errors, levels = y[:, None] - quantiles, levels.reshape(-1, *[1] * (y.ndim - 1))
    return np.maximum(levels * errors, (levels - 1) * errors).mean(axis=1)


def quantile_calibration_curve(
    y_true=None, mean=None, std=None, *, pit=None, n_levels=100, sample_weight=None
):
    """Compute the observed share of targets below predicted quantiles of each level.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Targets, means and standard deviations of normals, in units of y; std > 0.
    pit : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Values of the predicted cdf at y, instead of the three above.
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
    pit = read_pit(y_true, mean, std, pit)
    weight = _params.check_weights(sample_weight, pit)
    _params.check_count("n_levels", n_levels)
    if n_levels < 2:
        raise ValueError(f"`n_levels` must be at least 2. Got {n_levels}.")
    expected, observed = np.linspace(0, 1, n_levels), []
    for column in pit.reshape(len(pit), -1).T:
        # Count rows by the first expected level that includes them, without sorting the rows.
        first = np.searchsorted(expected, column, side="left")
        total = np.cumsum(np.bincount(first, weights=weight, minlength=n_levels))
        # The last of the expected levels is 1, which includes all rows.
        observed.append(total / total[-1])
    return expected, np.stack(observed, axis=-1).reshape(n_levels, *pit.shape[1:])


def calibration_error(
    y_true=None, mean=None, std=None, *, pit=None, n_levels=100, sample_weight=None
):
    """Compute the mean absolute difference between nominal levels and observed shares.

    Parameters
    ----------
    y_true, mean, std : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Targets, means and standard deviations of normals, in units of y; std > 0.
    pit : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
        Values of the predicted cdf at y, instead of the three above.
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
        y_true, mean, std, pit=pit, n_levels=n_levels, sample_weight=sample_weight
    )
    return float(np.abs(observed.T - expected).mean())


def pit_values(y_true, mean, std):
    """Compute the cdf of predicted normals at y (n[, m])."""
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    return special.ndtr((y - mean) / std)


def read_pit(y_true, mean, std, pit):
    """Check that either normals or PIT values are given, and return PIT values (n[, m])."""
    values = {"y_true": y_true, "mean": mean, "std": std, "pit": pit}
    given = [name for name, value in values.items() if value is not None]
    if given not in (["y_true", "mean", "std"], ["pit"]):
        raise ValueError(f"Give either `y_true`, `mean` and `std`, or `pit`. Got {given}.")
    if pit is None:
        return pit_values(y_true, mean, std)
    (pit,) = check_same_shape(pit=pit)
    if pit.min() < 0 or pit.max() > 1:
        raise ValueError(
            f"`pit` must have numbers in [0, 1]. Got values from {pit.min()} to {pit.max()}."
        )
    return pit


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

    Notes
    -----
    The curve is that of ``mean +- c std`` for all factors c. It is vertical while no target is
    covered, and steps to the right by a target's share when c reaches its z, at the width
    ``2 z mean(std)``. Therefore the area is exactly ``2 mean(std) mean(z)``. The NOMU paper uses
    the trapezoidal rule, in its code over c from 1e-3 to 1e3, which agrees to 7e-5 of the area if
    all z are inside these.

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


def nll_min_loss(y_true, mean, std, *, sample_weight=None):
    """Compute the Gaussian negative log likelihood after all std are multiplied by the best factor.

    The factor of each output is c with ``c**2 = mean(z**2)``.

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
        It is -inf if all predictions of an output are exact.

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
    >>> round(nll_min_loss([0.0, 0.0], [3.0, 3.0], [1.0, 1.0]), 4)
    2.5176
    """
    y, mean, std = check_same_shape(y_true=y_true, mean=mean, std=std)
    z = np.abs(y - mean) / std
    largest = np.where(z.max(axis=0) > 0, z.max(axis=0), 1.0)  # squares must not underflow
    scale = largest * np.sqrt(average((z / largest) ** 2, sample_weight))  # (m,) or a number
    with np.errstate(divide="ignore"):
        # Mean over rows of log(c std) + (z / c)^2 / 2, where the mean of (z / c)^2 is 1.
        losses = LOG_SQRT_2PI + average(np.log(std), sample_weight) + np.log(scale) + 0.5
        return float(losses.mean())


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
    weight = _params.check_weights(sample_weight, errors)
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
