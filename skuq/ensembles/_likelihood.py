"""Select an ensemble by the likelihood of its averaged densities or probabilities.

The selection needs one number for each candidate and row: the log density, or log probability,
that the candidate gave to the observed target. Therefore classifiers and regressors share it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq._utils._checks import check_count
from skuq.ensembles._selection import (
    Loss,
    Selection,
    Statistics,
    rank_candidates,
    select_best,
    select_forward,
    select_in_order,
)

#: The NES paper's selection first, then three others.
SELECTORS = ("forward", "replacement", "quick", "top")

_SMALLEST = np.finfo(float).tiny  # its log is about -708
_MIN_MEMBERS = 2  # one member has no epistemic uncertainty
_N_FOLDS = 5
_MIN_FOLD = 10  # rows; with fewer rows in a fold, sizes of ensembles are not compared


def likelihood_statistics(
    log_likelihood: ArrayLike,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], Loss]:
    """Make the statistics and the loss for a selection by likelihood, for `select_forward`.

    The statistics, (n_candidates, n_samples) each, are likelihoods divided by the largest of
    their row, the log of that divisor, and the log likelihoods. The loss maps their averages to
    minus the log of the averaged likelihood, in nats.
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    # Divide by the largest likelihood of each row: far in the tail of every candidate a density
    # is 0 in float64, although its log is finite.
    largest = np.where(np.isfinite(log_likelihood), log_likelihood, -np.inf).max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    # A likelihood of zero counts as 708 nats worse than the row's best.
    bounded = np.where(log_likelihood == -np.inf, largest + np.log(_SMALLEST), log_likelihood)
    ratios = np.exp(bounded - largest)

    def averaged_nll(ratio: np.ndarray, largest: np.ndarray, own: np.ndarray) -> np.ndarray:
        # If no member comes within 708 nats of the best candidate, the ratio is 0. The mean of the
        # members' own losses, an upper bound (Jensen), still distinguishes such members.
        return np.where(ratio > _SMALLEST, -np.log(np.maximum(ratio, _SMALLEST)) - largest, -own)

    return (ratios, np.broadcast_to(largest, ratios.shape), bounded), averaged_nll


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
    """Select an ensemble by one of four methods, for any loss of averaged statistics.

    Parameters
    ----------
    statistics, loss :
        See `select_forward`.
    n_members : int
        Size M of the ensemble.
    method : {"forward", "replacement", "quick", "top"}, default="forward"
        "forward" adds the candidate that lowers the ensemble's loss most, each at most once,
        until there are M members. "replacement" can add a candidate again, which increases its
        weight. "quick" goes through the candidates once, from the best, and adds each that
        improves the ensemble; it can end with fewer members. "top" takes the M best single
        candidates.
    use_best : bool, default=False
        Choose the size by cross-validation, from 2 to M, repeats included; see `choose_size`.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.
    groups : array-like of shape (n_samples,), optional
        Groups of rows for `use_best`. Rows of one group, such as versions of one row, always are
        in the same fold.

    Returns
    -------
    Selection

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
    # "forward" must reach M members even if the loss rises, as the paper's ForwardSelect does
    # (section 4); "replacement" counts repeats as members.
    select, settings = {
        "forward": (select_forward, {"replacement": False, "min_members": n_members}),
        "replacement": (select_forward, {"min_size": n_members, "max_size": n_members}),
        "quick": (select_in_order, {}),
        "top": (select_best, {}),
    }[method]
    return select(statistics, loss, n_members, **settings, sample_weight=sample_weight)


def choose_size(
    statistics: Statistics,
    loss: Loss,
    n_members: int,
    method: str = "forward",
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> int:
    """Choose the number of members, from 2 to `n_members`, by cross-validation over rows.

    The loss along a greedy path is too optimistic, because the path was chosen to lower it.
    Therefore the rows are split into five folds, a path is selected on four of them and scored on
    the fifth, and the smallest size with the lowest average loss is returned.
    """
    if sample_weight is not None and not np.all(sample_weight):
        used = np.flatnonzero(sample_weight)  # a fold must not have rows without weight only
        statistics = [np.take(s, used, axis=1) for s in statistics]
        sample_weight = np.asarray(sample_weight)[used]
        groups = None if groups is None else np.asarray(groups)[used]
    n_samples = statistics[0].shape[1]
    _, codes = np.unique(np.arange(n_samples) if groups is None else groups, return_inverse=True)
    n_groups = codes.max() + 1
    # Nothing to choose, or too few groups for folds of ten: keep the size asked for.
    if n_members <= _MIN_MEMBERS or n_groups < _N_FOLDS * _MIN_FOLD:
        return n_members
    # A candidate with a NaN in any row is left out of every fold.
    usable, _ = rank_candidates(statistics, loss, sample_weight)
    statistics = [s[np.sort(usable)] for s in statistics]
    weight = np.ones(n_samples) if sample_weight is None else np.asarray(sample_weight, float)
    # Folds are random, since rows may be sorted, with a fixed seed: the choice is deterministic.
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
        # Averages of the statistics over the first 1, 2, .. members: (path, fold rows, ..).
        path = np.array([index for index, _ in grown.path] or grown.indices)
        sizes = np.arange(1, len(path) + 1).reshape(-1, *[1] * (statistics[0].ndim - 1))
        means = [np.cumsum(s[np.ix_(path, fold)], axis=0) / sizes for s in statistics]
        rows = loss(*means).reshape(len(path), len(fold), -1).mean(axis=2)
        losses = rows @ weight[fold]
        # A path that ended early has its last loss at all larger sizes.
        totals += losses[np.minimum(np.arange(n_members), len(path) - 1)]
    return _MIN_MEMBERS + int(np.argmin(totals[_MIN_MEMBERS - 1 :]))
