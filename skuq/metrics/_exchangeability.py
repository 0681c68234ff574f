"""Test whether new rows are distributed like earlier ones, by conformal test martingales."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from sklearn.utils import check_random_state

from skuq.metrics._checks import check_same_shape

_BETS = (-1.0, 0.0, 1.0)
_JUMP = 0.01  # share of the wealth that changes its bet at each row


def exchangeability_martingale(scores, reference, *, random_state=None):
    """Bet against the assumption that new rows have the distribution of the reference rows.

    If they have, the wealth of the bets ever exceeds 1 / a with a probability of at most a, however
    many rows arrive. A logarithm above log(20) = 3.0 therefore rejects the assumption at the 5 %
    level, one above log(100) = 4.6 at the 1 % level.

    Parameters
    ----------
    scores : array-like of shape (n_samples,)
        A number for each new row, in the order of arrival, for example the absolute error in
        predicted standard deviations or the negative log density. If truths are not known, use the
        epistemic standard deviation or `neighbor_distance`.
    reference : array-like of shape (n_reference,)
        The same number for calibration rows, which the model has not been trained on.
    random_state : int, RandomState instance or None, default=None
        Seed for breaking ties of scores at random.

    Returns
    -------
    ndarray of shape (n_samples,)
        Logarithm of the wealth after each row, from a start at 0.

    Raises
    ------
    ValueError
        If scores are not finite or there are none.

    Notes
    -----
    The p-value of a row is the share of rows up to it with a score that is at least as large. The
    bets are those of the "simple jumper": the wealth is divided among the bets that p-values are
    small, uniform or large, and a hundredth of it changes its bet at each row.

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman (2021), "Retrain or not retrain:
    conformal test martingales for change-point detection", Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> before, alike, larger = rng.normal(size=(3, 200))
    >>> bool(exchangeability_martingale(alike, before, random_state=0).max() > 3)
    False
    >>> bool(exchangeability_martingale(2 + larger, before, random_state=0).max() > 3)
    True
    """
    checked = []
    for name, values in (("scores", scores), ("reference", reference)):
        (values,) = check_same_shape(**{name: values})
        if values.ndim > 1:
            raise ValueError(f"`{name}` must have shape (n_samples,). Got {values.shape}.")
        checked.append(values.tolist())
    new, seen = checked[0], sorted(checked[1])
    uniform = check_random_state(random_state).uniform(size=len(new))
    # Wealth of each bet as a share of the whole; the logarithm of the whole is stored separately.
    wealth, log_whole, path = [1 / len(_BETS)] * len(_BETS), 0.0, np.empty(len(new))
    for t, (score, tie) in enumerate(zip(new, uniform.tolist())):
        below, up_to = bisect_left(seen, score), bisect_right(seen, score)
        larger, equal = len(seen) - up_to, up_to - below + 1  # the row itself is equal
        # Conformal p-value with random ties: uniform if the row is exchangeable with those before.
        p = (larger + tie * equal) / (len(seen) + 1)
        insort(seen, score)
        spread = [(1 - _JUMP) * w + _JUMP / len(_BETS) for w in wealth]
        # The factors 1 + e (p - 1/2) have the mean 1 for uniform p: the wealth is a martingale.
        won = [w * (1 + bet * (p - 0.5)) for w, bet in zip(spread, _BETS)]
        whole = sum(won)
        wealth = [w / whole for w in won]
        log_whole += np.log(whole)
        path[t] = log_whole
    return path


def epistemic_score(distribution):
    """Compute each row's epistemic uncertainty, high for rows unlike the training rows.

    Parameters
    ----------
    distribution : distribution
        Result of an estimator's `predict_distribution`.

    Returns
    -------
    ndarray of shape (n_samples,)
        For regressors the logarithm of the epistemic standard deviation, averaged over outputs. For
        classifiers the mutual information of class and member, in nats. `ood_auroc_score` measures
        how well it separates two sets of rows.

    Raises
    ------
    TypeError
        If the distribution does not tell epistemic from aleatoric uncertainty.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> members = GaussianMixture(np.array([[0.0, -1.0], [0.0, 1.0]]), np.ones((2, 2)))
    >>> epistemic_score(members).round(2)
    array([-354.2,    0. ])
    """
    if hasattr(distribution, "epistemic_variance"):
        smallest = np.finfo(float).tiny  # instead of 0, if members agree to the last digit
        logs = 0.5 * np.log(np.maximum(distribution.epistemic_variance, smallest))
        return logs.reshape(len(logs), -1).mean(axis=1)
    if hasattr(distribution, "uncertainty"):
        return distribution.uncertainty().epistemic
    raise TypeError(
        "`distribution` must be one that `predict_distribution` gives, with an epistemic part. "
        f"Got a {type(distribution).__name__}."
    )
