"""Scores of an ensemble of classifiers by its members: how good, and how different.

Notation: K members, n rows, C classes.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import special

from skuq._checks import check_member_weights, check_weights
from skuq.metrics._checks import average, check_proba
from skuq.metrics._classification import label_columns

_SMALLEST = np.finfo(float).eps  # of a probability in a logarithm, as in scikit-learn's log_loss


def ensemble_nll_loss(y_true, member_proba, weights=None, *, labels=None, sample_weight=None):
    """Negative log likelihood of labels under the members' averaged probabilities.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Non-negative, summing to 1; equal by default.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats; the mean over rows. Smaller is better. Probabilities below 2.2e-16 count
        as that. Never below `oracle_nll_loss` nor above `average_member_nll_loss`.

    Raises
    ------
    ValueError
        If shapes do not fit, a row is no distribution or a label is unknown.

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
    """Negative log likelihood of labels under each member, averaged over members.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Non-negative, summing to 1; equal by default.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats; how strong members are on their own. Smaller is better. Probabilities
        below 2.2e-16 count as that.

    Raises
    ------
    ValueError
        If shapes do not fit, a row is no distribution or a label is unknown.

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
    """Negative log likelihood of labels if each row had its best member.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Labels of any kind.
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Each row sums to 1.
    labels : array-like of shape (n_classes,), optional
        Classes in the order of the columns; by default the sorted labels of y_true.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        In nats. For members equally strong, small means diverse. Probabilities below
        2.2e-16 count as that.

    Raises
    ------
    ValueError
        If shapes do not fit, a row is no distribution or a label is unknown.

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
    """Share of rows on which two members differ, averaged over all pairs.

    Parameters
    ----------
    members : array-like of shape (n_members, n_samples) or (n_members, n_samples, n_classes)
        Labels of any kind, or class probabilities, of which the largest counts.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    float
        Between 0 and 1; larger is more diverse. 0 for a single member.

    Raises
    ------
    ValueError
        If `members` has another shape or rows of probabilities are no distributions.

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
    members = np.asarray(members)
    if members.ndim == 3:
        members = check_proba(members, name="members", members=True).argmax(axis=2)
    if members.ndim != 2 or not members.size:
        raise ValueError(
            "`members` must be labels (n_members, n_samples) or probabilities (n_members, "
            f"n_samples, n_classes). Got shape {members.shape}."
        )
    if members.dtype.kind == "f" and not (members == np.round(members)).all():
        raise ValueError(
            "`members` with two axes must be labels. Probabilities need the shape (n_members, "
            "n_samples, n_classes), also of two classes."
        )
    weight = check_weights(sample_weight, members[0])
    shares = [np.average(a != b, weights=weight) for a, b in combinations(members, 2)]
    return float(np.mean(shares)) if shares else 0.0


def mutual_information(member_proba, weights=None):
    """Mutual information of class and member for each row: epistemic uncertainty.

    The entropy of the averaged probabilities less the average of the members' entropies.

    Parameters
    ----------
    member_proba : array-like of shape (n_members, n_samples, n_classes)
        Each row sums to 1.
    weights : array-like of shape (n_members,), optional
        Non-negative, summing to 1; equal by default.

    Returns
    -------
    ndarray of shape (n_samples,)
        In nats, never negative; 0 where members agree.

    Raises
    ------
    ValueError
        If a row is no distribution.

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
    # As a divergence: the difference of entropies cancels for members that nearly agree.
    mean = np.maximum(np.tensordot(weights, proba, axes=1), np.finfo(float).tiny)
    return np.maximum(weights @ special.kl_div(proba, mean).sum(axis=2), 0.0)


def _true_probabilities(y_true, member_proba, labels, weights=None):
    """Each member's probability of the true class, (K, n), and weights (K,)."""
    proba = check_proba(member_proba, name="member_proba", members=True)
    codes = label_columns(y_true, proba, labels)
    # Cut off before averaging, so that oracle <= ensemble <= average member always holds.
    p = np.maximum(proba[:, np.arange(len(codes)), codes], _SMALLEST)
    return p, check_member_weights(weights, len(p))
