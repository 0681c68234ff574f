"""Score the members of an ensemble of classifiers: their quality and their diversity.

Notation: K members, n rows, C classes.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import special

from skuq._checks import check_member_weights, check_weights, fill_masked
from skuq.metrics._checks import average, check_proba
from skuq.metrics._classification import label_columns

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
    skuq.ensembles.diversity_score : Measures of diversity of teams.

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
