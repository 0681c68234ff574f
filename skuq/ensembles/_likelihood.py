"""Choosing an ensemble by the likelihood of its averaged densities or probabilities.

One number a candidate and row is all it takes: the log density, or log probability, that
the candidate gave to what was observed. So classifiers and regressors are chosen alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import check_count
from skuq.ensembles._selection import (
    Selection,
    rank_candidates,
    select_best,
    select_forward,
    select_in_order,
)
from skuq.ensembles._types import Loss, Statistics

#: The paper's choice first, then the three it was compared with (NES, section 4).
SELECTORS = ("forward", "replacement", "quick", "top")

_SMALLEST = np.finfo(float).tiny
_MIN_MEMBERS = 2  # one has no epistemic part
_N_FOLDS = 5
_MIN_FOLD = 10  # rows; with less to judge by, sizes are not compared


def class_log_likelihood(y: np.ndarray, proba: np.ndarray) -> np.ndarray:
    """What candidates said about the true classes, (n_candidates, n_samples) in nats.

    From codes (n_samples,) and probabilities (n_candidates, n_samples, n_classes).
    """
    with np.errstate(divide="ignore"):  # `likelihood_statistics` knows what to make of -inf
        return np.log(proba[:, np.arange(len(y)), y])


def brier_statistics(y: np.ndarray, proba: np.ndarray) -> tuple[tuple[np.ndarray], Loss]:
    """Compute what an ensemble averages; return it with its Brier score, for `select_forward`.

    From codes (n_samples,) and probabilities (n_candidates, n_samples, n_classes); the score
    is the squared distance from the true class, summed over classes.
    """
    error = np.array(proba, dtype=float)
    error[:, np.arange(len(y)), y] -= 1
    return (error,), lambda mean: (mean**2).sum(axis=-1)


def likelihood_statistics(
    log_likelihood: ArrayLike,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], Loss]:
    """Compute what an ensemble averages, (n_candidates, n_samples) each, for `select_forward`.

    The statistics are likelihoods divided by the largest of their row, the log of that divisor,
    and the log likelihoods themselves. The loss maps their averages to minus log of the averaged
    likelihood, in nats.
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    # A density far out in the tail of every candidate is 0 in float64, its log is not.
    largest = np.where(np.isfinite(log_likelihood), log_likelihood, -np.inf).max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    # What is impossible counts as 708 nats worse than the best.
    bounded = np.where(log_likelihood == -np.inf, largest + np.log(_SMALLEST), log_likelihood)
    ratios = np.exp(bounded - largest)
    return (ratios, np.broadcast_to(largest, ratios.shape), bounded), _averaged_nll


def _averaged_nll(ratio: np.ndarray, largest: np.ndarray, log_likelihood: np.ndarray) -> np.ndarray:
    # Where no member comes within 708 nats of the best candidate, the ratios are 0. The mean
    # of the members' own losses, an upper bound, still tells these members apart.
    return np.where(
        ratio > _SMALLEST, -np.log(np.maximum(ratio, _SMALLEST)) - largest, -log_likelihood
    )


def select_by(
    statistics: Statistics,
    loss: Loss,
    n_members: int,
    method: str = "forward",
    *,
    use_best: bool = False,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
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
        Let M be the most, and take the size of the path, from 2 on and repeats counted, that
        does best on rows that had no part in it; see `choose_size`.
    sample_weight : array-like of shape (n_samples,), optional
    groups : array-like of shape (n_samples,), optional
        For `use_best`: rows of one group, such as versions of one row, all have a part or none.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If the method is unknown, `n_members` no positive integer, or no candidate has a
        finite loss.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    section 4.
    """
    if method not in SELECTORS:
        raise ValueError(f"`method` must be one of {SELECTORS}. Got {method!r}.")
    check_count("n_members", n_members)
    if use_best:
        n_members = choose_size(
            statistics, loss, n_members, method, sample_weight=sample_weight, groups=groups
        )
    select, settings = {
        "forward": (select_forward, {"replacement": False, "min_members": n_members}),
        "replacement": (select_forward, {"min_size": n_members, "max_size": n_members}),
        "quick": (select_in_order, {}),
        "top": (select_best, {}),
    }[method]
    return select(statistics, loss, n_members, **settings, sample_weight=sample_weight)


def select_by_likelihood(
    log_likelihood: ArrayLike,
    n_members: int,
    method: str = "forward",
    *,
    use_best: bool = False,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Selection:
    """An ensemble from what each candidate said about the observed labels or targets.

    Parameters
    ----------
    log_likelihood : array-like of shape (n_candidates, n_samples)
        Log probability of each row's true class, or log density of its y, in nats, on rows
        that the candidates were not trained on. -inf counts as 708 nats worse than the row's
        best; a candidate with NaN is not taken.
    n_members, method, use_best, sample_weight, groups :
        As in `select_by`.

    Returns
    -------
    Selection
        Its loss is the NLL of the averaged probabilities or densities.

    Examples
    --------
    Two of three candidates complement each other, though the third is better than either:

    >>> import numpy as np
    >>> proba = np.array([[0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.9, 0.8], [0.4, 0.4, 0.4, 0.4]])
    >>> select_by_likelihood(np.log(proba), 2, "top").indices
    array([2, 0])
    >>> chosen = select_by_likelihood(np.log(proba[:2]), 2)
    >>> chosen.indices, round(chosen.loss, 4)
    (array([0, 1]), 0.7195)
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    if log_likelihood.ndim != 2 or not log_likelihood.size:
        raise ValueError(
            "`log_likelihood` must have shape (n_candidates, n_samples), one of each at least. "
            f"Got {log_likelihood.shape}."
        )
    return select_by(
        *likelihood_statistics(log_likelihood),
        n_members,
        method,
        use_best=use_best,
        sample_weight=sample_weight,
        groups=groups,
    )


def choose_size(
    statistics: Statistics,
    loss: Loss,
    n_members: int,
    method: str = "forward",
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> int:
    """The number of members, from 2 to `n_members`, that does best on rows not selected on.

    The loss along a greedy path falls because the path was chosen to make it fall. So the
    rows are cut into five parts; a path is grown on each four and judged on the fifth, and
    the smallest size with the lowest average loss wins.
    """
    n_samples = statistics[0].shape[1]
    _, codes = np.unique(np.arange(n_samples) if groups is None else groups, return_inverse=True)
    n_groups = codes.max() + 1
    if n_members <= _MIN_MEMBERS or n_groups < _N_FOLDS * _MIN_FOLD:
        return n_members
    usable, _ = rank_candidates(
        statistics, loss, sample_weight
    )  # what is NaN in one fold is in none
    statistics = [s[np.sort(usable)] for s in statistics]
    weight = np.ones(n_samples) if sample_weight is None else np.asarray(sample_weight, float)
    # Drawn, since rows may come sorted; always the same, since choosing is no experiment.
    fold_of = np.random.default_rng(0).permutation(n_groups)[codes] % _N_FOLDS
    totals = np.zeros(n_members)
    for k in range(_N_FOLDS):
        fold, rest = np.flatnonzero(fold_of == k), np.flatnonzero(fold_of != k)
        grown = select_by(
            [np.take(s, rest, axis=1) for s in statistics],
            loss,
            n_members,
            method,
            sample_weight=weight[rest],
        )
        path = np.array([index for index, _ in grown.path] or grown.indices)
        sizes = np.arange(1, len(path) + 1).reshape(-1, *[1] * (statistics[0].ndim - 1))
        means = [np.cumsum(s[np.ix_(path, fold)], axis=0) / sizes for s in statistics]
        rows = loss(*means).reshape(len(path), len(fold), -1).mean(axis=2)
        losses = rows @ weight[fold]
        # A path that ended early stays what it was.
        totals += losses[np.minimum(np.arange(n_members), len(path) - 1)]
    return _MIN_MEMBERS + int(np.argmin(totals[_MIN_MEMBERS - 1 :]))
