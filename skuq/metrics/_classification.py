"""Score class probabilities, and the members of an ensemble of classifiers.

For the negative log likelihood, use `sklearn.metrics.log_loss`. Notation: K members, n rows, C
classes.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from scipy import special
from sklearn.utils.validation import column_or_1d

from skuq._utils._checks import (
    check_count,
    check_member_weights,
    check_weights,
    class_codes,
    fill_masked,
)
from skuq.metrics._checks import average, check_choice, check_proba, group_sums


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


def ece_loss(y_true, proba, *, n_bins=15, strategy="uniform", labels=None, sample_weight=None):
    """Compute the expected calibration error of the predicted class.

    Rows are binned by confidence, the largest probability. The error is the mean over rows of the
    absolute difference between accuracy and mean confidence of their bin.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    proba : array-like of shape (n_samples, n_classes)
        Class probabilities; each row sums to 1.
    n_bins : int, default=15
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width (Naeini et al., Guo et al.), or of equal weight (adaptive), in which
        rows with the same confidence stay together.
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
    Neural Networks"; Zaidi et al. (2021), "Neural Ensemble Search", section 5. Adaptive
    bins: Nguyen and O'Connor (2015).

    Examples
    --------
    >>> round(ece_loss([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], n_bins=2), 4)
    0.0667
    """
    confidence, correct, weight = _predicted_class(y_true, proba, labels, sample_weight)
    return _binned_gap(confidence, correct, weight, n_bins, strategy)


def reliability_curve(
    y_true, proba, *, n_bins=15, strategy="uniform", labels=None, sample_weight=None
):
    """Compute confidence and accuracy of the predicted class in bins, as compared by `ece_loss`.

    Parameters
    ----------
    y_true, proba, n_bins, strategy, labels, sample_weight
        See `ece_loss`.

    Returns
    -------
    edges : ndarray of shape (n_held + 1,)
        Edges of the bins; with "quantile" only those of bins with rows.
    confidence, accuracy : ndarray of shape (n_held,)
        Means over the rows of each bin; NaN for a bin without rows.
    weight : ndarray of shape (n_held,)
        Total weight of each bin, or its number of rows without weights.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    Examples
    --------
    >>> proba = [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]
    >>> edges, confidence, accuracy, weight = reliability_curve([0, 1, 1], proba, n_bins=2)
    >>> confidence.round(2), accuracy.round(2), weight
    (array([ nan, 0.73]), array([ nan, 0.67]), array([0., 3.]))
    """
    parts = _predicted_class(y_true, proba, labels, sample_weight)
    # Rows without weight would make bins of their own.
    confidence, correct, weight = (part[parts[2] > 0] for part in parts)
    bins = _bin(confidence, weight, n_bins, strategy)
    if strategy == "uniform":
        edges = np.linspace(0, 1, n_bins + 1)
    else:
        # Number only bins that have rows; each ends at its largest confidence.
        _, bins = np.unique(bins, return_inverse=True)
        ends = np.zeros(bins.max() + 1)
        np.maximum.at(ends, bins, confidence)
        edges = np.concatenate([[confidence.min()], ends])
    total, *sums = (
        np.bincount(bins, weights=values, minlength=len(edges) - 1)
        for values in (weight, weight * confidence, weight * correct)
    )
    # 0 / 0 of an empty bin is NaN.
    with np.errstate(invalid="ignore"):
        return edges, sums[0] / total, sums[1] / total, total


def _predicted_class(y_true, proba, labels, sample_weight):
    """Return confidence in the predicted class, whether it is right, and weight, each (n,)."""
    proba = check_proba(proba)
    codes = label_columns(y_true, proba, labels)
    predicted = proba.argmax(axis=1)
    confidence = proba[np.arange(len(codes)), predicted]
    return confidence, predicted == codes, check_weights(sample_weight, codes)


def classwise_ece_loss(
    y_true, proba, *, n_bins=15, strategy="uniform", labels=None, sample_weight=None
):
    """Compute the expected calibration error of each class' probability, averaged over classes.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels of any kind.
    proba : array-like of shape (n_samples, n_classes)
        Class probabilities; each row sums to 1.
    n_bins : int, default=15
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width or of equal weight, for each class.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    float
        Error between 0 and 1; smaller is better. Like `ece_loss`, it is not proper.

    Raises
    ------
    ValueError
        If shapes do not agree, a row is not a distribution or a label is unknown.

    References
    ----------
    Kull et al. (2019), "Beyond temperature scaling: Obtaining well-calibrated multiclass
    probabilities with Dirichlet calibration", section 2.

    Examples
    --------
    >>> round(classwise_ece_loss([0, 1], [[0.9, 0.1], [0.3, 0.7]]), 4)
    0.2
    """
    proba = check_proba(proba)
    codes = label_columns(y_true, proba, labels)
    weight = check_weights(sample_weight, codes)
    gaps = [
        _binned_gap(column, codes == k, weight, n_bins, strategy)
        for k, column in enumerate(proba.T)
    ]
    return float(np.mean(gaps))


def predictive_entropy(proba):
    """Compute the entropy of each row's class probabilities.

    Parameters
    ----------
    proba : array-like of shape (n_samples, n_classes)
        Class probabilities; each row sums to 1.

    Returns
    -------
    ndarray of shape (n_samples,)
        Entropies in nats, between 0 (certain) and log(n_classes).

    Raises
    ------
    ValueError
        If a row is not a distribution.

    Examples
    --------
    >>> predictive_entropy([[1.0, 0.0], [0.5, 0.5]]).round(4)
    array([0.    , 0.6931])
    """
    # Entropies of rows that sum to slightly more than 1 could be slightly negative.
    return np.maximum(special.entr(check_proba(proba)).sum(axis=1), 0.0)


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


def _binned_gap(confidence, correct, weight, n_bins, strategy):
    """Average |accuracy - mean confidence| of the rows' bins over rows."""
    bins = _bin(confidence, weight, n_bins, strategy)
    # The weight of a bin cancels against the denominators of its two means.
    gaps = np.bincount(bins, weights=weight * (correct - confidence))
    return float(np.abs(gaps).sum() / weight.sum())


def _bin(confidence, weight, n_bins, strategy):
    """Assign rows to bins, (n,), by confidence."""
    check_choice("strategy", strategy, ("uniform", "quantile"))
    check_count("n_bins", n_bins)
    if strategy == "uniform":  # bins are closed on the right, as in Guo et al.
        return np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence, side="left")
    _, group, total = group_sums(confidence, weight)
    share = np.cumsum(total) / total.sum()
    # Subtract a little, because rounding can put the end of a bin just above a whole number.
    return np.maximum(np.ceil(share * n_bins - 1e-9).astype(int) - 1, 0)[group]


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


def mutual_information(member_proba, weights=None):
    """Compute each row's mutual information of class and member, its epistemic uncertainty.

    It is the entropy of the averaged probabilities minus the average of the members' entropies.

    Parameters
    ----------
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Class probabilities of the members; each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Weights of the members: non-negative, summing to 1; equal by default.

    Returns
    -------
    ndarray of shape (n_samples,)
        Mutual information in nats, never negative, and 0 if the members agree.

    Raises
    ------
    ValueError
        If a row is not a distribution.

    References
    ----------
    Depeweg et al. (2018), "Decomposition of Uncertainty in Bayesian Deep Learning".

    Examples
    --------
    >>> mutual_information([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.9, 0.1]]]).round(4)
    array([0.6931, 0.    ])
    """
    proba = check_proba(member_proba, name="member_proba", members=True)
    weights = check_member_weights(weights, len(proba))
    # Computed as a mean Kullback-Leibler divergence from the average, because the difference of
    # entropies cancels for members that nearly agree.
    mean = np.maximum(np.tensordot(weights, proba, axes=1), np.finfo(float).tiny)
    return np.maximum(weights @ special.kl_div(proba, mean).sum(axis=2), 0.0)


def _true_probabilities(y_true, member_proba, labels, weights=None):
    """Return the members' probabilities of the true class, (K, n), and weights (K,)."""
    proba = check_proba(member_proba, name="member_proba", members=True)
    codes = label_columns(y_true, proba, labels)
    # Clip before averaging, so that oracle <= ensemble <= average member always holds.
    p = np.maximum(proba[:, np.arange(len(codes)), codes], _SMALLEST)
    return p, check_member_weights(weights, len(p))
