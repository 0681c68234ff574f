"""Choosing an ensemble by the likelihood of its averaged densities or probabilities.

One number a candidate and row is all it takes: the log density, or log probability, that
the candidate gave to what was observed. So classifiers and regressors are chosen alike.
"""

from __future__ import annotations

import numpy as np

from skuq.ensembles._selection import Selection, select_best, select_forward, select_in_order

__all__ = [
    "SELECTORS",
    "choose_size",
    "class_log_likelihood",
    "likelihood_statistics",
    "select_by_likelihood",
    "select_by",
]

#: The paper's choice first, then the three it was compared with (NES, section 4).
SELECTORS = ("forward", "replacement", "quick", "top")

_SMALLEST = np.finfo(float).tiny
_MIN_MEMBERS = 2  # one has no epistemic part
_N_FOLDS = 5
_MIN_FOLD = 10  # rows; with less to judge by, sizes are not compared


def class_log_likelihood(y, proba) -> np.ndarray:
    """What candidates said about the true classes, (n_candidates, n_samples) in nats.

    From codes (n_samples,) and probabilities (n_candidates, n_samples, n_classes).
    """
    with np.errstate(divide="ignore"):  # `likelihood_statistics` knows what to make of -inf
        return np.log(proba[:, np.arange(len(y)), y])


def likelihood_statistics(log_likelihood):
    """What an ensemble averages, and its loss: for `select_forward`.

    Parameters
    ----------
    log_likelihood : ndarray of shape (n_candidates, n_samples)
        Of each row's observation, in nats.

    Returns
    -------
    statistics : tuple of two ndarray of shape (n_candidates, n_samples)
        Likelihoods divided by the largest of their row, and the log of that divisor.
    loss : callable
        From their averages to minus log of the averaged likelihood.
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    # A density far out in the tail of every candidate is 0 in float64, its log is not.
    largest = np.where(np.isfinite(log_likelihood), log_likelihood, -np.inf).max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    ratios = np.exp(log_likelihood - largest)
    return (ratios, np.broadcast_to(largest, ratios.shape)), _averaged_nll


def _averaged_nll(ratio, largest):
    return -np.log(np.maximum(ratio, _SMALLEST)) - largest


def select_by(
    statistics, loss, n_members, method="forward", *, use_best=False, sample_weight=None
) -> Selection:
    """One of the four selections of the NES paper, for any loss of averages.

    Parameters
    ----------
    statistics, loss :
        As in `select_forward`.
    n_members : int
        M, the size of the ensemble.
    method : {"forward", "replacement", "quick", "top"}, default="forward"
        "forward" adds the candidate that lowers the ensemble's loss most, each at most once,
        until there are M. "replacement" may take a candidate again, which then counts more.
        "quick" goes once through the candidates from the best on and takes what improves the
        ensemble; it may end with fewer. "top" takes the M best on their own.
    use_best : bool, default=False
        Let M be the most, and take the size of the path that does best on rows that had no
        part in it; see `choose_size`.
    sample_weight : array-like of shape (n_samples,), optional

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If the method is unknown, or no candidate has a finite loss.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    section 4.
    """
    if method not in SELECTORS:
        raise ValueError(f"`method` must be one of {SELECTORS}. Got {method!r}.")
    if use_best:
        n_members = choose_size(statistics, loss, n_members, method, sample_weight=sample_weight)
    select, settings = {
        "forward": (select_forward, {"replacement": False, "min_members": n_members}),
        "replacement": (select_forward, {"min_size": n_members, "max_size": n_members}),
        "quick": (select_in_order, {}),
        "top": (select_best, {}),
    }[method]
    return select(statistics, loss, n_members, **settings, sample_weight=sample_weight)


def select_by_likelihood(
    log_likelihood, n_members, method="forward", *, use_best=False, sample_weight=None
) -> Selection:
    """An ensemble from what each candidate said about the observed labels or targets.

    Parameters
    ----------
    log_likelihood : array-like of shape (n_candidates, n_samples)
        Log probability of each row's true class, or log density of its y, in nats, on rows
        that the candidates were not trained on. -inf and NaN are very bad, no more.
    n_members, method, use_best, sample_weight :
        As in `select_by`.

    Returns
    -------
    Selection
        Its loss is the NLL of the averaged probabilities or densities.

    Examples
    --------
    Two of three candidates complement each other, though the third is better than either:

    >>> import numpy as np
    >>> proba = np.array([[0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.9, 0.9], [0.4, 0.4, 0.4, 0.4]])
    >>> select_by_likelihood(np.log(proba), 2, "top").indices
    array([2, 0])
    >>> chosen = select_by_likelihood(np.log(proba[:2]), 2)
    >>> chosen.indices, round(chosen.loss, 4)
    (array([0, 1]), 0.6931)
    """
    statistics, loss = likelihood_statistics(log_likelihood)
    return select_by(
        statistics, loss, n_members, method, use_best=use_best, sample_weight=sample_weight
    )


def choose_size(statistics, loss, n_members, method="forward", *, sample_weight=None) -> int:
    """The number of members, from 2 to `n_members`, that does best on rows not selected on.

    The loss along a greedy path falls because the path was chosen to make it fall. So the
    rows are cut into five parts; a path is grown on each four and judged on the fifth, and
    the smallest size with the lowest average loss wins.
    """
    n_samples = statistics[0].shape[1]
    if n_members <= _MIN_MEMBERS or n_samples < _N_FOLDS * _MIN_FOLD:
        return n_members
    weight = np.ones(n_samples) if sample_weight is None else np.asarray(sample_weight, float)
    # Drawn, since rows may come sorted; always the same, since choosing is no experiment.
    folds = np.array_split(np.random.default_rng(0).permutation(n_samples), _N_FOLDS)
    totals = np.zeros(n_members)
    for fold in folds:
        rest = np.setdiff1d(np.arange(n_samples), fold)
        grown = select_by(
            [s[:, rest] for s in statistics], loss, n_members, method, sample_weight=weight[rest]
        )
        path = [index for index, _ in grown.path] or grown.indices.tolist()
        sizes = np.arange(1, len(path) + 1).reshape(-1, *[1] * (statistics[0].ndim - 1))
        means = [np.cumsum(s[np.ix_(path, fold)], axis=0) / sizes for s in statistics]
        rows = loss(*means).reshape(len(path), len(fold), -1).mean(axis=2)
        losses = rows @ weight[fold]
        # A path that ended early stays what it was.
        totals += losses[np.minimum(np.arange(n_members), len(path) - 1)]
    return _MIN_MEMBERS + int(np.argmin(totals[_MIN_MEMBERS - 1 :]))
