"""Select an ensemble from the predictions of many candidates, and weight members by stacking.

Everything here works on arrays and is independent of networks. An ensemble's prediction is
always the *average* of some statistics of its members (first and second moments, probabilities,
densities), so that one forward selection serves every kind of prediction.

Notation: candidates c of n_candidates, rows i of n_samples. An ensemble is a multiset of
candidates; the weight of a candidate is its number of repeats divided by the ensemble's size.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import entr, expit, log_softmax, logsumexp, softmax, xlogy

from skuq._utils._checks import check_count, check_weights
from skuq._utils._records import saved_as
from skuq.metrics._regression import crps_normal

#: Arrays (n_candidates, n_samples, ...) that an ensemble averages over its members.
Statistics: TypeAlias = Sequence[np.ndarray]
#: Function from averages of statistics to the loss (n, n_samples, ...) of each row.
Loss: TypeAlias = Callable[..., np.ndarray]


_CHUNK_ENTRIES = 2**17  # numbers of one temporary array: 1 MB, which caches hold


@saved_as("ensembles.Selection")
@dataclass(frozen=True, eq=False)
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
    max_size: int | None = None,
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
        By default ``4 * n_members``.
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
    if not 0 <= min_weight * min_members <= 1 + 1e-9:
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
    most = (1 - (min_members - n_heaviest) * min_weight) * (len(path) + 1) + 1e-9

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
    per_candidate = max(1, statistics[0][0].size)
    step = max(1, _CHUNK_ENTRIES // per_candidate)
    losses = np.empty(n_candidates)
    for start in range(0, n_candidates, step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):  # a bad candidate gets a loss of inf or NaN
            rows = loss(*((total + s[part]) / size for total, s in zip(totals, statistics)))
            losses[part] = _mean_loss(rows, sample_weight)
    return losses


def _mean_loss(rows: np.ndarray, sample_weight: Any) -> np.ndarray:
    """Average losses over outputs, if any, then over rows: (n, n_samples, ..) to (n,)."""
    if rows.ndim > 2:
        rows = rows.reshape(*rows.shape[:2], -1).mean(axis=2)
    return np.average(rows, axis=1, weights=sample_weight)


def normal_statistics(
    y: np.ndarray, loc: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute first and second moments about y of each candidate's normal distributions.

    A moment-matched mixture averages them. Moments about y instead of 0 avoid cancellation if y
    is large.
    """
    y, loc, scale = (np.asarray(values, dtype=float) for values in (y, loc, scale))
    if loc.shape[1:] != y.shape:
        raise ValueError(
            "`loc` must have shape (n_candidates, n_samples), or with an axis of outputs like y. "
            f"Got {loc.shape} for y of shape {y.shape}."
        )
    scale = np.broadcast_to(scale, loc.shape)
    if (scale < 0).any():
        raise ValueError(f"`scale` must be at least 0. Got {np.nanmin(scale):g}.")
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


_MOST_STEPS = 1000  # of expectation maximisation
_TOLERANCE = 1e-6  # the iteration ends when no weight changes by more


def stacking_weights(
    log_likelihood: ArrayLike,
    sample_weight: ArrayLike | None = None,
    prior: ArrayLike | None = None,
) -> np.ndarray:
    """Find the mixture weights (n_models,) that maximise the likelihood of held-out rows.

    `log_likelihood` (n_models, n_samples) is in nats. `prior` (n_models,) are numbers of further
    rows that each model alone predicts, a Dirichlet prior: on few rows the weights would otherwise
    be those of chance. They count beside the effective number of rows. The log likelihood is
    concave in the weights, so that expectation maximisation converges to the maximum (Yao et al.
    2018, Eq. 4). Rows to which every model gives probability 0 are ignored.
    """
    log_likelihood = np.asarray(log_likelihood, dtype=float)
    if log_likelihood.ndim != 2 or not log_likelihood.size or np.isnan(log_likelihood).any():
        raise ValueError(
            "`log_likelihood` must have shape (n_models, n_samples) and no NaN. "
            f"Got an array of shape {log_likelihood.shape}."
        )
    n_models = len(log_likelihood)
    weight = check_weights(sample_weight, log_likelihood.T)
    further = np.zeros(n_models) if prior is None else np.asarray(prior, dtype=float)
    if further.shape != (n_models,) or not (further >= 0).all():
        raise ValueError(f"`prior` must have {n_models} numbers >= 0. Got {prior!r}.")
    largest = log_likelihood.max(axis=0)  # (n_samples,): divided out, against underflow
    rows = np.isfinite(largest) & (weight > 0)
    shares = np.full(n_models, 1 / n_models)
    if not rows.any():
        return shares
    likelihood = np.exp(log_likelihood[:, rows] - largest[rows])
    weight = weight[rows] / weight[rows].sum()
    # Weights of the rows, which share 1 with the further ones.
    n_effective = 1 / np.square(weight).sum()
    further, weight = (v / (n_effective + further.sum()) for v in (further, n_effective * weight))
    for _ in range(_MOST_STEPS):
        # The new weight of a model is its mean posterior probability over the rows:
        # w_k <- sum_i a_i w_k p_ki / sum_j w_j p_ji, with row weights a_i. Further rows add theirs.
        updated = shares * (likelihood @ (weight / (shares @ likelihood))) + further
        change, shares = abs(updated - shares).max(), updated
        if change < _TOLERANCE:
            break
    return shares / shares.sum()


_TEMPERATURES = np.exp(np.linspace(-1.2, 1.6, 15))  # that a mixture's temperature is chosen from
_TEMPERATURE_SPREAD = 0.5  # standard deviation of the prior of its logarithm
_PRIOR_ROWS = 20.0  # that stacking adds to the held-out rows, divided evenly among the models
_DROPPED = 0.2  # weight of the members together that are dropped
_CONSTANT_ROWS = 0.3  # rows that the class shares are taken to predict better than models do
# Rows predicted in five folds are not independent: their mean loss has the variance of that of
# 1 / (1 + 5 / 4) as many rows (Nadeau and Bengio 2003, whose n_2 / n_1 is 1 / 4).
_ROWS_PER_INDEPENDENT_ROW = 2.25
#: Factor of a temperature when more members are averaged later, where it is not measured.
AVERAGING_FACTOR = 0.9
_FACTORS = np.geomspace(0.3, 1.0, 13)  # at which averages are as sure as what they average
_LENGTHS = 0.5, 1.0, 2.0  # of processes, where a column has the standard deviation 1
_SIGNALS = 0.2, 0.5, 0.8, 0.95  # shares of the variance of classes that processes explain
_ODDS_OF_SHARES = 2.0  # prior odds that classes do not depend on the rows
_CHANCE = 25.0  # nats that a held-out row may gain by chance, over the number of rows


def stacking_prior(n_models: int, n_first: int | None = None) -> np.ndarray:
    """Return the rows that the prior of stacking adds for each model: 20, for the first alike."""
    n_first = n_models if n_first is None else min(n_first, n_models)
    return np.where(np.arange(n_models) < n_first, _PRIOR_ROWS / n_first, 0.0)


def fit_class_mixture(
    logits: np.ndarray,
    codes: np.ndarray,
    weight: np.ndarray,
    shares: np.ndarray,
    n_first: int | None = None,
    weights: np.ndarray | None = None,
    *,
    evidence: float | None = None,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Fit a mixture of classifiers: weights w, a temperature T, and the weight a of class shares.

    The mixture predicts ``(1 - a) * sum_k w_k softmax(logits_k / T) + a * shares``. Weights, T and
    a maximise the likelihood of rows that the models were not trained on, times a prior. On few
    rows the prior divides the weight evenly among the models, T is above 1, and a is at least
    about 1 / n: that no row of n was an error does not show that there are none. The mixture is
    then averaged with the shares alone, by the probabilities of both given these rows, or given
    `evidence` of another kind. Classes without such a row keep their whole share, since nothing
    shows that models would recognise them.

    Parameters
    ----------
    logits : ndarray of shape (n_models, n, n_classes)
        Predictions of rows by models that were not trained on them.
    codes, weight : ndarray of shape (n,)
        Classes of the rows, and their weights.
    shares : ndarray of shape (n_classes,)
        Shares of the classes, all positive.
    n_first : int, optional
        Number of first models that the prior divides the weight among; by default all.
    weights : ndarray of shape (n_models,), optional
        Weights w that are given, so that only T and a are fitted.
    evidence : float, optional
        Result of `class_evidence`. Few held-out rows can gain much by chance: the gain then counts
        less. By default models and shares are equally probable before the held-out rows.

    Returns
    -------
    weights : ndarray of shape (n_models,)
        Weights w of the models, which sum to 1.
    temperature : float
        T, for averages of as many members as predict the rows here; see `averaging_factor`.
    constant : ndarray of shape (n_classes,)
        Probabilities c of classes: the mixture predicts ``(1 - c.sum()) * p + c``, where p are the
        weighted probabilities of the models.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman (2018), "Using Stacking to Average Bayesian
    Predictive Distributions", Section 3 (pseudo-Bayesian model averaging).

    C. Nadeau and Y. Bengio (2003), "Inference for the Generalization Error".

    R. Rahaman and A. Thiery (2021), "Uncertainty Quantification and Deep Ensembles": averages of
    calibrated members are not sure enough.
    """
    rows = np.arange(len(codes))
    n_models = len(logits) if weights is None else 1
    prior = np.append(stacking_prior(n_models, n_first), _CONSTANT_ROWS)
    n_effective = weight.sum() ** 2 / np.square(weight).sum()
    fits = []
    for temperature in _TEMPERATURES:
        log_proba = log_softmax(logits / temperature, axis=-1)[:, rows, codes]
        if weights is not None:  # one model, the mixture
            log_proba = logsumexp(log_proba, axis=0, b=weights[:, None], keepdims=True)
        log_proba = np.append(log_proba, np.log(shares)[codes][None], axis=0)
        found = stacking_weights(log_proba, weight, prior)
        fit = np.average(logsumexp(log_proba, axis=0, b=found[:, None]), weights=weight)
        # Members trained on few rows are too sure.
        surprise = (np.log(temperature) - n_effective**-0.5) / _TEMPERATURE_SPREAD
        loss = 0.5 * surprise**2 - n_effective * fit
        fits.append((loss - xlogy(prior, found).sum(), found, fit))
    losses = np.array([loss for loss, *_ in fits])
    best = int(losses.argmin())
    _, found, fit = fits[best]
    temperature = float(_TEMPERATURES[best])
    if 0 < best < len(fits) - 1:  # between those of the grid, by a parabola
        below, least, above = losses[best - 1 : best + 2]
        steps = 0.5 * (below - above) / (below - 2 * least + above)
        temperature *= float(_TEMPERATURES[1] / _TEMPERATURES[0]) ** steps
    if weights is None:
        weights = found[:-1] / found[:-1].sum()
    # Posterior probability that models do not predict better than the shares alone.
    gain = n_effective * (fit - np.average(np.log(shares)[codes], weights=weight))
    log_odds = gain / _ROWS_PER_INDEPENDENT_ROW
    if evidence is not None:
        log_odds = np.logaddexp(
            evidence - np.log(_ODDS_OF_SHARES), log_odds - _CHANCE / n_effective
        )
    p_shares = expit(-log_odds)
    judged = np.bincount(codes, weight, minlength=len(shares)) > 0
    added = found[-1] + p_shares * (1 - found[-1])
    return weights, temperature, shares * np.where(judged, added, 1.0)


def averaging_factor(logits: np.ndarray, weight: np.ndarray, n_members: int) -> float:
    """Estimate the factor of a temperature when more members of each model are averaged later.

    An average is less sure than its members. How much less is seen in the average of one member of
    each model; members of one model are taken to disagree as much as those of two models do.

    Parameters
    ----------
    logits : ndarray of shape (n_models, n, n_classes)
        Predictions of rows by one member of each of two or more models, divided by the temperature.
    weight : ndarray of shape (n,)
        Weights of the rows.
    n_members : int
        Number of members of each model that are averaged later.
    """

    def entropy(factor: float) -> Any:
        """Compute the mean entropy of the average of the models."""
        return entr(softmax(logits / factor, axis=-1).mean(axis=0)).sum(axis=-1) @ weight

    alone = (entr(softmax(logits, axis=-1)).sum(axis=-1) @ weight).mean()
    # The entropy rises with the factor.
    log_factor = np.interp(alone, [entropy(factor) for factor in _FACTORS], np.log(_FACTORS))
    # An average of n members has 1 - 1 / n of what two disagree about.
    n_models = len(logits)
    before, later = 1 - 1 / n_models, 1 - 1 / (n_models * n_members)
    return float(np.exp(log_factor * (later / before - 1)))


def class_evidence(x: np.ndarray, codes: np.ndarray) -> float:
    """Compute the log Bayes factor of classes that depend on x over classes that do not.

    Gaussian processes of the indicators of classes, with several lengths and shares of noise, are
    averaged, and compared with noise alone. Half of them see all columns, and half the first
    principal component: where columns repeat each other, it says most of what they say. All rows
    count at once, so that of ten rows of noise fewer seem to depend on x than held-out rows do.

    Parameters
    ----------
    x : ndarray of shape (n, d)
        Encoded rows.
    codes : ndarray of shape (n,)
        Classes of the rows.

    Returns
    -------
    float
        Log Bayes factor in nats; 0 if all rows or all classes are equal.

    References
    ----------
    C. Rasmussen and C. Williams (2006), "Gaussian Processes for Machine Learning", Sections 5.4
    and 6.5 (labels as numbers).
    """
    x = x[:, np.ptp(x, axis=0) > 0]
    if not x.size or not np.ptp(codes):
        return 0.0
    n = len(x)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    left, scales, _ = np.linalg.svd(x, full_matrices=False)
    first = left[:, :1] * scales[0]
    # Uncorrelated contrasts of the classes, each with a mean square of 1.
    indicators = np.eye(codes.max() + 1)[codes]
    vectors, scales, _ = np.linalg.svd(indicators - indicators.mean(axis=0), full_matrices=False)
    contrasts = vectors[:, scales > 1e-9 * scales[0]] * np.sqrt(n)
    log_factors = []
    for columns, length in itertools.product((x, first), _LENGTHS):
        squares = cdist(columns, columns, "sqeuclidean") / columns.var(axis=0).sum()
        kernel = np.exp(-0.5 * squares / length**2)
        # The mean of a process is unknown: it is taken out. With variance 1 it does not count.
        kernel = kernel - kernel.mean(axis=0)
        kernel -= kernel.mean(axis=1, keepdims=True)
        values, vectors = np.linalg.eigh(kernel * (n / np.trace(kernel)) + 1 / n)
        power, values = np.square(vectors.T @ contrasts).sum(axis=1), np.maximum(values, 0)
        for signal in _SIGNALS:
            variances = signal * values + 1 - signal
            log_factor = power - power / variances - contrasts.shape[1] * np.log(variances)
            log_factors.append(0.5 * log_factor.sum())
    return float(logsumexp(log_factors) - np.log(len(log_factors)))


def drop_light(weights: np.ndarray, min_members: int = 1) -> np.ndarray:
    """Set the lightest weights of a mixture to 0 that together are at most a fifth.

    Members that few rows cannot tell from useless ones only make predictions slower. The heaviest
    `min_members` keep theirs, and the result sums to 1.
    """
    order = np.argsort(weights)[: max(len(weights) - min_members, 0)]
    kept = weights.copy()
    kept[order[np.cumsum(weights[order]) <= _DROPPED]] = 0
    return kept / kept.sum()
