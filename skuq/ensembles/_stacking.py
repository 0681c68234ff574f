"""Compute weights of models by stacking their predictive distributions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import check_weights

_MOST_STEPS = 1000  # of expectation maximisation
_TOLERANCE = 1e-6  # the iteration ends when no weight changes by more


def stacking_weights(
    log_likelihood: ArrayLike, sample_weight: ArrayLike | None = None
) -> np.ndarray:
    """Find the mixture weights that maximise the likelihood of held-out rows.

    Parameters
    ----------
    log_likelihood : array-like of shape (n_models, n_samples)
        Log density, or log probability of the true class, in nats, on rows that no model was
        trained on.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows, not all 0.

    Returns
    -------
    ndarray of shape (n_models,)
        Non-negative weights that sum to 1. Rows to which every model gives probability 0 are
        ignored.

    Raises
    ------
    ValueError
        If shapes do not agree, a log likelihood is NaN, or no weight is positive.

    Notes
    -----
    The log likelihood of a mixture is concave in its weights. Expectation maximisation converges
    to the maximum.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman (2018), "Using Stacking to Average Bayesian
    Predictive Distributions", Eq. 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import stacking_weights
    >>> stacking_weights(np.log([[0.9, 0.9, 0.1], [0.5, 0.5, 0.5]])).round(3)
    array([0.417, 0.583])
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    if log_likelihood.ndim != 2 or not log_likelihood.size or np.isnan(log_likelihood).any():
        raise ValueError(
            "`log_likelihood` must have shape (n_models, n_samples) and no NaN. "
            f"Got an array of shape {log_likelihood.shape}."
        )
    n_models = len(log_likelihood)
    weight = check_weights(sample_weight, log_likelihood.T)
    largest = log_likelihood.max(axis=0)  # (n_samples,): divided out, against underflow
    rows = np.isfinite(largest) & (weight > 0)
    shares = np.full(n_models, 1 / n_models)
    if not rows.any():
        return shares
    likelihood = np.exp(log_likelihood[:, rows] - largest[rows])
    weight = weight[rows] / weight[rows].sum()
    for _ in range(_MOST_STEPS):
        # The new weight of a model is its mean posterior probability over the rows:
        # w_k <- sum_i a_i w_k p_ki / sum_j w_j p_ji, with row weights a_i.
        updated = shares * (likelihood @ (weight / (shares @ likelihood)))
        change, shares = abs(updated - shares).max(), updated
        if change < _TOLERANCE:
            break
    return shares / shares.sum()
