"""Select an ensemble from the predictions of many candidates, and weight members by stacking.

Everything here works on arrays and is independent of networks. An ensemble's prediction is
always the *average* of some statistics of its members (first and second moments, probabilities,
densities), so that one forward selection serves every kind of prediction.

Notation: candidates c of n_candidates, rows i of n_samples. An ensemble is a multiset of
candidates; the weight of a candidate is its number of repeats divided by the ensemble's size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from skuq._formulas import crps_normal
from skuq._params import check_count, check_weights
from skuq.files._registry import saved_record

#: Arrays (n_candidates, n_samples, ...) that an ensemble averages over its members.
Statistics: TypeAlias = Sequence[np.ndarray]
#: Function from averages of statistics to the loss (n, n_samples, ...) of each row.
Loss: TypeAlias = Callable[..., np.ndarray]


_CHUNK_ENTRIES = 2**17  # numbers of one temporary array: 1 MB, which caches hold
_ROUNDING_OF_WEIGHTS = 1e-9  # that sums of weights may have beyond their bounds


@saved_record("ensembles.Selection")
class Selection:
    """A selected ensemble: its candidates and their weights.

    Attributes
    ----------
    indices : ndarray of shape (n_members,)
        Distinct candidates, in the order in which they were selected.
    weights : ndarray of shape (n_members,)
        Positive weights of these candidates, summing to 1.
    loss : float
        The ensemble's loss on the rows it was selected on; NaN if none was computed.
    path : tuple of (int, float)
        Steps of the selection: the candidate added, and the ensemble's loss with it.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import Selection
    >>> selection = Selection(np.array([2, 0]), np.array([0.75, 0.25]))
    >>> candidates = np.array([[0.0, 4.0], [9.0, 9.0], [1.0, 2.0]])
    >>> selection.weights @ candidates[selection.indices]
    array([0.75, 2.5 ])
    """

    indices: np.ndarray
    weights: np.ndarray
    loss: float = float("nan")
    path: tuple[tuple[int, float], ...] = ()

    def __len__(self) -> int:
        return len(self.indices)


def select_forward(
    statistics: Statistics,
    loss: Loss,
    n_members: int,
    *,
    replacement: bool = True,
    k_init: int = 1,
    min_members: int = 1,
    min_weight: float = 0.0,
    min_size: int = 1,
    max_size: float | None = None,
    sample_weight: ArrayLike | None = None,
) -> Selection:
    """Select greedily forward on averages of statistics (Caruana et al., 2004).

    Start from the `k_init` best candidates. Then add the candidate that gives the ensemble with
    the lowest loss, as long as the loss strictly falls and there are fewer than `n_members`
    distinct ones. Return the best ensemble on the path that has at least `min_members`
    distinct members and `min_size` members with repeats.

    Parameters
    ----------
    statistics : sequence of ndarray of shape (n_candidates, n_samples, ...)
        Arrays that an ensemble averages over its members.
    loss : callable
        ``loss(*averages) -> ndarray (n, n_samples)`` or more trailing axes: the loss of
        each row from statistics averaged over an ensemble, for n ensembles at once.
    n_members : int
        Maximum number of distinct members.
    replacement : bool, default=True
        Allow a candidate to be added again, which increases its weight.
    k_init : int, default=1
        Number of best single candidates to begin with.
    min_members : int, default=1
        Minimum number of distinct members, reached even if the loss rises. A single member has
        no epistemic uncertainty.
    min_weight : float, default=0.0
        Weight, at most ``1 / min_members``, that repeats must leave to each of `min_members`
        members: the j heaviest leave ``(min_members - j) * min_weight`` to the others. With 0,
        repeats of the best candidates can leave the others almost no weight.
    min_size : int, default=1
        Minimum number of members, with repeats. Fewer are taken if no other candidate can be added.
    max_size : int, optional
        Maximum number of members, with repeats, so that no weight is below ``1 / max_size``.
        By default ``4 * n_members``; ``math.inf`` sets no limit.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If no candidate has a finite loss, or `min_weight` is not in [0, 1 / min_members].

    References
    ----------
    Egele et al., "AutoDEUQ", Algorithm 1, lines 29-39. As printed it accepts an equal loss
    and may never end, so that a strict decrease is required here.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import select_forward
    >>> errors = np.array([[2.0, 2.0], [-1.0, -1.0], [9.0, 9.0]])
    >>> selection = select_forward([errors], lambda mean: mean**2, 2)
    >>> selection.indices, selection.weights.round(3), round(selection.loss, 3)
    (array([1, 0]), array([0.5, 0.5]), 0.25)
    """
    # Candidates without a finite loss are not in `order`: fewer than `n_members` may be left.
    order, singles = rank_candidates(statistics, loss, sample_weight)
    n_members = min(check_count("n_members", n_members), len(order))
    min_members, k_init = min(min_members, n_members), min(k_init, n_members)
    if not 0 <= min_weight * min_members <= 1 + _ROUNDING_OF_WEIGHTS:
        raise ValueError(
            f"`min_weight` must be in [0, 1 / min_members], which is {1 / min_members:.3g} with "
            f"min_members={min_members}: {min_members} members cannot all have more. Got "
            f"{min_weight}."
        )
    max_size = max(4 * n_members if max_size is None else max_size, min_members, min_size)
    path: list[tuple[int, float]] = []
    members: set[int] = set()
    # Sums of the statistics over the members so far, each (n_samples, ...).
    totals, best, best_size = [0.0] * len(statistics), np.inf, 0
    while len(members) < n_members and len(path) < max_size:
        losses = singles  # loss of the ensemble with one more candidate, (n_candidates,)
        if path:
            losses = _ensemble_losses(statistics, loss, totals, len(path) + 1, sample_weight)
        if len(path) < k_init:
            taken = int(order[len(path)])
        else:
            # While `growing`, only new candidates are allowed, and the loss may rise.
            growing = len(members) < max(min_members, k_init)
            excluded = list(members) if growing or not replacement else []
            if not growing:  # no repeat may take the weight that others are due
                excluded += _too_heavy(path, min_members, min_weight)
            allowed = np.isfinite(singles) & ~np.isnan(losses)
            allowed[excluded] = False
            if not allowed.any():
                break
            taken = int(np.argmin(np.where(allowed, losses, np.inf)))
            improves = not path or losses[taken] < path[-1][1]
            if not (growing or len(path) < min_size or improves):
                break
        path.append((taken, float(losses[taken])))
        members.add(taken)
        totals = [total + s[taken] for total, s in zip(totals, statistics)]
        if len(members) >= min_members and len(path) >= min_size and path[-1][1] < best:
            best, best_size = path[-1][1], len(path)
    size = best_size or len(path)
    steps = [index for index, _ in path[:size]]
    indices = list(dict.fromkeys(steps))
    # Repeats give the weights.
    weights = np.array([steps.count(index) for index in indices]) / size
    return Selection(np.array(indices), weights, path[size - 1][1], tuple(path))


def _too_heavy(path: Sequence[tuple[int, float]], min_members: int, min_weight: float) -> list[int]:
    """Find members of which one more repeat would leave too little weight to others."""
    counts = Counter(index for index, _ in path)
    n_heaviest = np.arange(1, min_members)
    # Largest sums of the counts of the 1, 2, .. heaviest members.
    most = (1 - (min_members - n_heaviest) * min_weight) * (len(path) + 1) + _ROUNDING_OF_WEIGHTS

    heavy = []
    for index in counts:
        repeated = sorted((counts + Counter([index])).values(), reverse=True)
        if (np.cumsum(repeated[: min_members - 1]) > most).any():
            heavy.append(index)
    return heavy


def _ensemble_losses(
    statistics: Statistics,
    loss: Loss,
    totals: Sequence[Any],
    size: int,
    sample_weight: ArrayLike | None,
) -> np.ndarray:
    """Compute the ensemble's loss with each candidate added, (n_candidates,).

    `totals` are sums of the statistics over the present members, and `size` is the number of
    members after the addition. Chunks of candidates bound the memory.
    """
    n_candidates = len(statistics[0])
    step = max(1, _CHUNK_ENTRIES // max(1, statistics[0][0].size))
    losses = np.empty(n_candidates)
    for start in range(0, n_candidates, step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):  # a bad candidate gets a loss of inf or NaN
            rows = loss(*((total + s[part]) / size for total, s in zip(totals, statistics)))
            losses[part] = _mean_loss(rows, sample_weight)
    return losses


def _mean_loss(rows: np.ndarray, sample_weight: Any) -> np.ndarray:
    """Average losses over outputs, if any, then over rows: (n, n_samples, ..) to (n,)."""
    rows = rows.reshape(*rows.shape[:2], -1).mean(axis=2) if rows.ndim > 2 else rows
    return np.average(rows, axis=1, weights=sample_weight)


def normal_statistics(
    y: np.ndarray, loc: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute first and second moments about y of each candidate's normal distributions.

    A moment-matched mixture averages them. Moments about y instead of 0 avoid cancellation if y
    is large.
    """
    error = loc - y
    return error, error**2 + scale**2


def normal_nll(error: np.ndarray, second_moment: np.ndarray) -> np.ndarray:
    """Compute the NLL of y under a normal with the mixture's mean and variance.

    The variance is E[sigma^2] + V[mu] (AutoDEUQ, Eq. 3), here as second moment minus square of
    the first.
    """
    variance = second_moment - error**2
    return 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)


#: Losses of the mixture's first two moments about y, by name: NLL and CRPS of y under a normal with
#: the mixture's mean and variance, and squared error of the mean.
MOMENT_LOSSES: dict[str, Loss] = {
    "nll": normal_nll,
    "crps": lambda error, second: crps_normal(error, np.sqrt(second - error**2)),
    "mse": lambda error, second: error**2,
}


def select_best(
    statistics: Statistics, loss: Loss, n_members: int, *, sample_weight: ArrayLike | None = None
) -> Selection:
    """Select the candidates with the lowest single losses, equally weighted.

    Parameters and return value are those of `select_forward`.
    """
    order, _ = rank_candidates(statistics, loss, sample_weight)
    chosen = order[: check_count("n_members", n_members)]
    return ensemble_of(chosen, statistics, loss, sample_weight)


def select_in_order(
    statistics: Statistics, loss: Loss, n_members: int, *, sample_weight: ArrayLike | None = None
) -> Selection:
    """Go through the candidates once, from the best, and add each that improves the ensemble.

    Parameters and return value are those of `select_forward`.
    """
    order, singles = rank_candidates(statistics, loss, sample_weight)
    chosen, path = [order[0]], [(int(order[0]), float(singles[order[0]]))]
    for candidate in order[1:]:
        if len(chosen) == n_members:
            break
        ensemble = ensemble_of([*chosen, candidate], statistics, loss, sample_weight)
        # The loss must fall strictly, as in `select_forward`.
        if ensemble.loss < path[-1][1]:
            chosen.append(candidate)
            path.append((int(candidate), ensemble.loss))
    return replace(ensemble_of(chosen, statistics, loss, sample_weight), path=tuple(path))


def rank_candidates(
    statistics: Statistics, loss: Loss, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rank candidates with a finite loss from the best, and return all candidates' losses, too."""
    if sample_weight is not None:
        check_weights(sample_weight, np.asarray(statistics[0][0]))
    # Ensembles of one candidate: no totals yet.
    losses = _ensemble_losses(statistics, loss, [0.0] * len(statistics), 1, sample_weight)
    usable = np.isfinite(losses)
    if not usable.any():
        raise ValueError("No candidate has a finite loss on the rows to select on.")
    return np.argsort(np.where(usable, losses, np.inf), kind="stable")[: usable.sum()], losses


def ensemble_of(
    chosen: Any, statistics: Statistics, loss: Loss, sample_weight: ArrayLike | None
) -> Selection:
    """Make the ensemble of these candidates with equal weights, and compute its loss."""
    chosen = np.asarray(chosen)
    mean = [s[chosen].mean(axis=0, keepdims=True) for s in statistics]
    value = float(_mean_loss(loss(*mean), sample_weight)[0])
    return Selection(chosen, np.full(len(chosen), 1 / len(chosen)), value)


def check_selection(chosen: Any, n_candidates: int) -> Selection:
    """Check the selection returned by a user's function: distinct indices and valid weights.

    Returns it with arrays, in place of lists.
    """
    if not isinstance(chosen, Selection):
        raise TypeError(
            f"`selection` must return a skuq.ensembles.Selection. Got {type(chosen).__name__}."
        )
    indices, weights = np.asarray(chosen.indices), np.asarray(chosen.weights, dtype=float)
    sound = indices.ndim == 1 and indices.size and indices.dtype.kind in "iu"
    # A repeat, or a number that is no candidate's, leaves fewer candidates than indices.
    if not sound or np.isin(np.arange(n_candidates), indices).sum() != len(indices):
        raise ValueError(
            "`selection` must return distinct indices, at least one, in "
            f"0..{n_candidates - 1}. Got {chosen.indices}."
        )
    if weights.shape != indices.shape or not (weights > 0).all() or abs(weights.sum() - 1) > 1e-6:
        raise ValueError(
            f"`selection` must return {len(indices)} positive weights that sum to 1. "
            f"Got {chosen.weights}."
        )
    return replace(chosen, indices=indices, weights=weights / weights.sum())


_UNDERFLOW = np.finfo(float).tiny  # its log is about -708
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
    bounded = np.where(log_likelihood == -np.inf, largest + np.log(_UNDERFLOW), log_likelihood)
    ratios = np.exp(bounded - largest)

    def averaged_nll(ratio: np.ndarray, largest: np.ndarray, own: np.ndarray) -> np.ndarray:
        # If no member comes within 708 nats of the best candidate, the ratio is 0. The mean of the
        # members' own losses, an upper bound (Jensen), still distinguishes such members.
        return np.where(ratio > _UNDERFLOW, -np.log(np.maximum(ratio, _UNDERFLOW)) - largest, -own)

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
        losses = loss(*means).reshape(len(path), len(fold), -1).mean(axis=2) @ weight[fold]
        # A path that ended early has its last loss at all larger sizes.
        totals += losses[np.minimum(np.arange(n_members), len(path) - 1)]
    return _MIN_MEMBERS + int(np.argmin(totals[_MIN_MEMBERS - 1 :]))
