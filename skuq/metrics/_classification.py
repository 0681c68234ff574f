"""Score class probabilities, and the members of an ensemble of classifiers.

For the negative log likelihood, use `sklearn.metrics.log_loss`. Notation: K members, n rows, C
classes.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from sklearn.utils.validation import column_or_1d

from skuq._utils._checks import (
    check_count,
    check_member_weights,
    check_weights,
    class_codes,
    fill_masked,
)
from skuq.metrics._checks import average, check_proba


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
    codes = label_columns(y_true, proba, labels)
    weight = check_weights(sample_weight, codes)
    # Sum over classes of p^2, with (p - 1)^2 = p^2 + 1 - 2 p for the true class.
    losses = np.einsum("nc,nc->n", proba, proba) + 1 - 2 * proba[np.arange(len(codes)), codes]
    return float(np.average(np.maximum(losses, 0), weights=weight))


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
    check_count("n_bins", n_bins)
    proba = check_proba(proba)
    codes = label_columns(y_true, proba, labels)
    weight = check_weights(sample_weight, codes)
    predicted = proba.argmax(axis=1)
    confidence = proba[np.arange(len(codes)), predicted]
    # Bins are closed on the right, as in Guo et al.
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence, side="left")
    # The weight of a bin cancels against the denominators of its two means.
    gaps = np.bincount(bins, weights=weight * ((predicted == codes) - confidence))
    return float(np.abs(gaps).sum() / weight.sum())


def label_columns(y_true, proba: np.ndarray, labels) -> np.ndarray:
    """Find which of the C columns of proba (.., n, C) belongs to each row's label: (n,)."""
    y = column_or_1d(fill_masked(y_true))
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
    return class_codes(y, labels, problem="`y_true` has labels that are not in `labels`")


_SMALLEST = np.finfo(float).eps  # smallest probability in a logarithm, as in sklearn's log_loss


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
    members = np.asarray(fill_masked(members))
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
    weight = check_weights(sample_weight, members[0])
    shares = [np.average(a != b, weights=weight) for a, b in combinations(members, 2)]
    return float(np.mean(shares)) if shares else 0.0


def _true_probabilities(y_true, member_proba, labels, weights=None):
    """Return the members' probabilities of the true class, (K, n), and weights (K,)."""
    proba = check_proba(member_proba, name="member_proba", members=True)
    codes = label_columns(y_true, proba, labels)
    # Clip before averaging, so that oracle <= ensemble <= average member always holds.
    p = np.maximum(proba[:, np.arange(len(codes)), codes], _SMALLEST)
    return p, check_member_weights(weights, len(p))
