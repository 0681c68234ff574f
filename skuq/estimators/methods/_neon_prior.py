"""Learn how large NEON's conditioned prior and the noise are, from values that networks leave out.

Several networks are trained, each without some of the functions. Each of them is linearised in its
weights, which makes it a Gaussian process with the network's tangent kernel, and predicts the
values that it left out from all others. Its errors there are as large as noise and epistemic
uncertainty together should be.

How to divide them between the two takes a second prediction. A trained network has fitted part of
the noise, so that the residuals at the values it has seen are small and mostly noise. A prior
fitted to these residuals would be nearly certain everywhere. How uncertainty varies over the inputs
is therefore taken from the same Gaussian process when it predicts the values themselves instead of
the network's residuals, as in the Laplace approximation of a Bayesian network (Immer et al. 2021).

Notation: n values that are left out. The prior has variance ``scale**2``. Candidate noise variances
are in units of that variance, so that one factorisation serves all scales. Values that share one
noise level and one scale form a *noise group*: those of one output or, where query points have
scales of their own, those of one output at one query point.

References
----------
A. Immer, M. Korzepa, M. Bauer. "Improving predictions of Bayesian neural nets via local
linearization", AISTATS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from skuq.networks._epinet import PRIOR_SCALE
from skuq.predictive._learners import fit_scale, minimise, root_mean_square

# Candidate noise variances in units of the prior's variance, two in each power of ten. Smaller ones
# would need more precision than float32 weights have: intervals became far too narrow with them.
_NOISES = tuple(10.0 ** np.arange(-5, 2.5, 0.5))
_N_SMALL = int(np.searchsorted(_NOISES, 1.01))  # number of candidates up to the prior's variance
# The same for values without noise: what networks miss is their own error, smallest at data.
_NOISELESS_CANDIDATES = (1e-10, *10.0 ** np.arange(-9, -2.9, 0.5))
# Standard deviation of the logarithm of a group's relative noise variance around the overall one.
_LOG_NOISE_STD = 1.0
# The mean of five networks misses new functions by less than each network misses those that it
# leaves out: by so much in the median of ten problems (oscillators, growth, heat, waves, beams).
_GAIN_OF_MEAN = 0.93
# Least difference in log likelihood that decides between candidates, where the values of a function
# count as one, because they depend on each other.
_NOISELESS_ADVANTAGE = 3.0
_LARGEST_SCALE = 10.0  # of such values; where only larger ones would do, noise is likelier
_NEGLIGIBLE_NOISE = 1e-3  # share of the variance at left-out values
_SCALES = tuple(10.0 ** np.arange(-2, 1.6, 0.25))  # candidate scales where the noise is known
_MAX_LOG_FACTOR = 6.0  # bound on the logarithm of a factor of variances
_TINY = 1e-12
_LEAST_SCALE = 1e-6  # of values that are all equal


class Prior(NamedTuple):
    """Scale of the random prior, and variances of the noise in units of the prior's variance.

    `noise` (n,) is the noise up to which draws meet each value. `mean_noise` (n,) is the noise with
    which the mean is corrected towards the data. It can differ: a network that stopped early has
    learnt most of what the data say, and the rest of its residuals is mostly noise. `draw_noise`
    (n,) is the variance of the noise that is drawn for each value: 0 where values have none, and
    `noise` only says how closely networks can meet them. `by_group` (4, n_groups) holds the same of
    each noise group, as learnt without noise from `n_functions`.
    """

    scale: float
    noise: np.ndarray
    mean_noise: np.ndarray
    draw_noise: np.ndarray
    by_group: np.ndarray | None = None
    n_functions: int = 0

    @classmethod
    def of_given(cls, scale: float, variance: np.ndarray) -> Prior:
        """Make the prior of a given scale, and of a given variance of the noise of each value."""
        noise = variance / max(scale, 1e-12) ** 2
        return cls(scale, noise, noise.copy(), noise)


class _Errors(NamedTuple):
    """Errors at left-out values, for each of several candidate noises.

    Attributes
    ----------
    network : ndarray of shape (n_noises, n)
        Squared errors of the networks, corrected by their processes.
    process : ndarray of shape (n_noises, n)
        Squared errors of the processes when they predict the values themselves.
    variances : ndarray of shape (n_noises, n)
        Variances that the processes predict, noise included, in units of the prior's variance.
    noiseless : ndarray of shape (n_noises, n)
        The same without noise, and of draws without noise of their own.
    weight : ndarray of shape (n,)
        Weights of the values.
    """

    network: np.ndarray
    process: np.ndarray
    variances: np.ndarray
    noiseless: np.ndarray
    weight: np.ndarray

    def at(self, candidates: slice) -> _Errors:
        """Return the errors of some of the candidate noises."""
        of_candidates = (values[candidates] for values in self[:4])
        return _Errors._make([*of_candidates, self.weight])

    def of_group(self, members: np.ndarray) -> _Errors:
        """Return the errors of one noise group, given as a mask (n,)."""
        return _Errors(*(values[..., members] for values in self))


def learn_prior(members, make_process, y, importance, unseen, groups, limits, n_functions):
    """Learn the prior and the noise of each noise group.

    A group whose left-out values are far more likely without noise has none, see
    `learn_noiseless_prior`.

    Parameters
    ----------
    members : sequence of Member
    make_process : callable
        Makes a member's derivatives and its process.
    y, importance : ndarray of shape (n_values,)
        Values, and their weights.
    unseen : ndarray of bool of shape (n_members, n_values)
        Values that each member leaves out.
    groups : ndarray of int of shape (n_values,)
        Number of each value's noise group.
    limits : tuple of two ndarrays
        Smallest and largest standard deviation that the noise of each group can have.
    n_functions : int

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of the shape of the limits
        Factor of the epistemic standard deviation, and standard deviation of the noise.
    """
    candidates = *_NOISELESS_CANDIDATES, *_NOISES
    both, seen = _errors_left_out(members, make_process, y, importance, unseen, candidates)
    n_noiseless, groups_seen = len(_NOISELESS_CANDIDATES), groups[seen]
    errors = both.at(slice(n_noiseless, None))
    noiseless = both.at(slice(n_noiseless))
    shape, limits = limits[0].shape, np.reshape(limits, (2, -1))
    priors, std = _GroupPriors(groups, limits.shape[1]), limits[0].copy()
    overall, _ = _likeliest_process(errors)
    for k in np.unique(groups_seen):
        of_group = errors.of_group(groups_seen == k)
        scale, std[k], mean_noise, loss = _learn_group(of_group, overall, *limits[:, k])
        without = _learn_noiseless(noiseless, groups_seen == k, n_functions)
        is_likelier = (loss - without.loss) * n_functions / 2 > _NOISELESS_ADVANTAGE
        if limits[0, k] == 0 and is_likelier and without.scale < _LARGEST_SCALE:
            std[k] = 0.0
            priors.put_noiseless(k, without)
        else:
            priors.put(k, scale, std[k] ** 2, mean_noise)
    prior, factors = priors.joined(shape)
    return prior, (factors, std.reshape(shape))


def learn_noiseless_prior(members, make_process, y, importance, unseen, groups, std, n_functions):
    """Learn the prior of each noise group of values without noise.

    The scale, and how closely networks meet the data, are chosen so that the errors at left-out
    values are most likely. Exact conditioning would trust the linearised networks more than their
    errors allow. See `learn_prior` for the other parameters; `std` are the zeros of
    the noise.

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of the shape of `std`
    error : float
        Root mean square of the networks' errors, divided by that of the values.
    """
    errors, seen = _errors_left_out(
        members, make_process, y, importance, unseen, _NOISELESS_CANDIDATES
    )
    priors, squares = _GroupPriors(groups, std.size), 0.0
    for k in np.unique(groups[seen]):
        here = groups[seen] == k
        found = _learn_noiseless(errors, here, n_functions)
        priors.put_noiseless(k, found)
        squares += errors.weight[here] @ errors.network[found.mean][here]
    size = importance[seen] @ y[seen] ** 2 or 1.0
    error = float(np.sqrt(squares / size))
    return *recall_prior(priors.by_group, groups, std, n_functions), error


def recall_prior(by_group, groups, std, n_functions):
    """Make the prior and the widths of `learn_noiseless_prior` from those of each noise group.

    If all values were equal, nothing was learnt from them, and `n_functions` is 0.
    """
    priors = _GroupPriors(groups, std.size)
    priors.by_group = by_group
    known = n_functions if (by_group[0] > _LEAST_SCALE).any() else 0
    prior, factors = priors.joined(std.shape)
    prior = prior._replace(by_group=by_group, n_functions=known)
    return prior, (factors, np.zeros(std.shape))


class _NoiselessPrior(NamedTuple):
    """Prior of a noise group without noise.

    `mean` and `draws` are positions among the candidate noises: how closely the mean and the draws
    meet the data. `loss` is twice the mean negative log likelihood of the errors.
    """

    mean: int
    draws: int
    scale: float
    loss: float


def _closest(losses, n_functions):
    """Find the smallest candidate that is not clearly worse than the best one."""
    advantage = (losses - losses.min()) * n_functions / 2
    return int(np.argmax(advantage <= _NOISELESS_ADVANTAGE))


def _learn_noiseless(errors, members, n_functions):
    """Learn the prior of a group, given as a mask (n,), as if there were no noise.

    `errors` are those of all groups, for each of the candidates `_NOISELESS_CANDIDATES`.
    """
    # Networks miss left-out values by more where they have to meet all others exactly. Mean and
    # draws meet the data as closely as does not clearly cost them anything elsewhere.
    sizes = np.maximum(np.average(errors.network, axis=1, weights=errors.weight), 1e-300)
    mean, errors = _closest(np.log(sizes), n_functions), errors.of_group(members)
    # Losses of all candidates of the draws, each at its best scale.
    ratios = errors.network[mean] / errors.noiseless
    squares = np.maximum(np.average(ratios, axis=1, weights=errors.weight), 1e-300)
    logs = np.average(np.log(errors.noiseless), axis=1, weights=errors.weight)
    losses = np.log(squares) + logs + 1
    # The mean misses no value on which all draws agree.
    best = max(mean, _closest(losses, n_functions))
    scale = _GAIN_OF_MEAN * _fit_spread(
        np.sqrt(errors.network[mean]), np.sqrt(errors.noiseless[best]), errors.weight
    )
    # Few functions widen it as they do Student's t.
    scale *= np.sqrt((n_functions - 1) / max(n_functions - 3, 1))
    return _NoiselessPrior(mean, best, scale, losses[best])


def _fit_spread(errors, std, weight):
    """Find the factor of standard deviations (n,) that absolute errors (n,) ask for.

    It has the smallest continuous ranked probability score of errors divided by their standard
    deviations. The likeliest factor would be decided by the largest of these. Where errors are
    larger than all deviations say in the root mean square, it is the geometric mean of both.
    """
    if not errors.any():
        return 0.0
    z, unit = errors / std, root_mean_square(errors / std, weight)

    def score(log_factor):
        factor = np.exp(log_factor) * unit
        of = z / factor
        parts = of * (2 * stats.norm.cdf(of) - 1) + 2 * stats.norm.pdf(of) - 1 / np.sqrt(np.pi)
        return factor / unit * np.average(parts, weights=weight)

    factor = np.exp(minimise(score, np.linspace(-8, 1, 40))) * unit
    pooled = root_mean_square(errors, weight) / root_mean_square(std, weight)
    return float(factor * np.sqrt(max(1.0, pooled / factor)))


def _learn_group(errors, overall, least, most):
    """Learn the scale, the noise's standard deviation and the mean's noise of one noise group.

    `overall` is the position of the candidate noise that is most likely for all groups together.
    The noise stays between `least` and `most`; larger errors are attributed to the epistemic part.
    Also returns the loss of the errors: twice the mean negative log likelihood, or infinity if the
    noise is negligible.
    """
    # The mean is corrected with the noise under which the networks' errors are most likely.
    mean_noise, _ = _most_likely(errors.network, errors.variances, errors.weight)
    squares = errors.network[mean_noise]
    # The process that predicts the values themselves says how epistemic variances vary.
    best, scale = _likeliest_process(errors, overall)
    epistemic = scale**2 * np.maximum(errors.variances[best] - _NOISES[best], _TINY)
    # The networks' errors say how large these variances are, and how large the noise is.
    factor, std = fit_scale(
        squares[:, None], epistemic[:, None], errors.weight, prior_rows=0, fewest_rows=1
    )
    if not least <= std <= most:
        std = np.clip(std, least, most)
        factor = _likeliest_factor(squares, epistemic, std**2, errors.weight)
    total = factor**2 * epistemic + std**2
    scale *= factor
    if std**2 > _NOISES[0] * scale**2:
        # With this noise each candidate stands for a scale: relative noise = (std / scale)^2.
        scales = std / np.sqrt(_NOISES[:_N_SMALL])
        totals = scales[:, None] ** 2 * errors.variances[:_N_SMALL]
        scale = _refit_scale(squares, totals, scales, scale, std**2, errors.weight)
    else:
        # Draws meet the data up to the smallest candidate, whose variances can be far smaller.
        epistemic = np.maximum(errors.variances[0] - _NOISES[0], _TINY)
        totals = scale**2 * epistemic[None] + std**2
        scale = _refit_scale(squares, totals, [scale], scale, std**2, errors.weight)
        total = scale**2 * epistemic + std**2
    loss = np.average(np.log(total) + squares / total, weights=errors.weight)
    if std**2 < _NEGLIGIBLE_NOISE * np.average(total, weights=errors.weight):
        loss = np.inf  # there is no noise, and other candidates meet the data more closely
    return scale, std, _NOISES[mean_noise], loss


def _refit_scale(squares, totals, scales, guess, variance, weight):
    """Find the scale that makes the networks' errors most likely, near a `guess` and not below it.

    Multiplying epistemic variances by a factor is not the same as a larger scale: with a larger
    scale the same noise counts less when the process is conditioned. So each of the candidate
    `scales` has its own predicted variances in `totals` (n_scales, n), noise included.
    """
    losses = (weight * (np.log(totals) + squares / totals)).sum(axis=1)
    best = np.argmin(losses + np.log(np.divide(scales, guess) ** 2) ** 2)
    epistemic = np.maximum(totals[best] - variance, _TINY)
    return max(guess, scales[best] * _likeliest_factor(squares, epistemic, variance, weight))


class _GroupPriors:
    """Collects the priors of all noise groups, and joins them to one prior.

    Parameters
    ----------
    groups : ndarray of int of shape (n_values,)
        Number of each value's noise group.
    n_groups : int
    """

    def __init__(self, groups, n_groups):
        self._groups = groups
        # Rows are the scale and the noises of `Prior`.
        self.by_group = np.full((4, n_groups), _NOISES[0])
        self.by_group[0] = PRIOR_SCALE

    def put(self, k, scale, variance, mean_noise):
        """Store the scale of group k, the variance of its noise, and its relative mean noise.

        The mean's noise is at most that of the draws: a correction that trusted values less than
        the draws do would miss values on which all draws agree.
        """
        scale = max(scale, _LEAST_SCALE)
        noise = max(variance / scale**2, _NOISES[0])
        self.by_group[:, k] = scale, noise, min(mean_noise, noise), noise

    def put_noiseless(self, k, found):
        """Store a prior without noise of group k."""
        noises = (_NOISELESS_CANDIDATES[position] for position in (found.draws, found.mean))
        self.by_group[:, k] = max(found.scale, _LEAST_SCALE), *noises, 0.0

    def joined(self, shape):
        """Make one prior, whose scale is the geometric mean of the groups' scales.

        Also returns each group's scale divided by it, the factors of epistemic deviations.
        """
        scale = np.exp(np.log(self.by_group[0]).mean())
        prior = Prior(scale, *self.by_group[1:, self._groups])
        return prior, (self.by_group[0] / scale).reshape(shape)


def learn_scale(members, make_process, y, importance, unseen, groups, std):
    """Learn the prior where the noise is known, from its standard deviations in each noise group.

    Each group has its own scale: in a joint fit a group without noise would decide for all. See
    `learn_prior` for the other parameters and the result; the shape of `std` is that of the widths.
    """
    variances = std.ravel() ** 2
    of_values = variances[groups]
    noises = [np.maximum(of_values / scale**2, _NOISES[0]) for scale in _SCALES]
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, noises)
    # Predicted variances in units of the values: the larger the scale, the less the noise counts.
    totals = errors.variances * np.square(_SCALES)[:, None]
    priors = _GroupPriors(groups, std.size)
    for k in np.unique(groups[seen]):
        here = groups[seen] == k
        group, total, variance = errors.of_group(here), totals[:, here], variances[k]
        losses = (group.weight * (np.log(total) + group.process / total)).sum(axis=1)
        # Values under large noise say little about the scale. A log-normal prior around the default
        # scale keeps it from being chosen by chance.
        best = np.argmin(losses + np.log(np.square(np.divide(_SCALES, PRIOR_SCALE))) ** 2)
        # The correction with the smallest errors relative to the predicted variances.
        ratios = np.average(group.network / total[best], axis=1, weights=group.weight)
        corrected = ratios.argmin()
        squares, epistemic = group.network[corrected], np.maximum(total[best] - variance, _TINY)
        factor = _likeliest_factor(squares, epistemic, variance, group.weight)
        mean_noise = max(variance / _SCALES[corrected] ** 2, _NOISES[0])
        priors.put(k, factor * _SCALES[best], variance, mean_noise)
    prior, factors = priors.joined(std.shape)
    return prior, (factors, std)


def _likeliest_factor(squares, epistemic, variance, weight):
    """Find the factor of epistemic deviations that makes errors most likely, for a known noise.

    Parameters
    ----------
    squares, epistemic, weight : ndarray of shape (n,)
        Squared errors, epistemic variances and weights of values.
    variance : float
        Variance of the noise.
    """

    def loss(log_factor):
        total = np.exp(log_factor) * epistemic + variance
        nll = (weight * (np.log(total) + squares / total)).sum()
        return nll + log_factor**2  # standard normal prior of the logarithm, as in `fit_scale`

    bounds = (-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR)
    found = optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return np.exp(found.x / 2)


def _errors_left_out(members, make_process, y, importance, unseen, noises):
    """Compute the errors at left-out values for each candidate noise.

    Returns
    -------
    errors : _Errors
    seen : ndarray of bool of shape (n_values,)
        Values that have errors: not all of them if the networks of some folds have diverged.
    """
    of_network, of_process, variances, noiseless = np.zeros((4, len(noises), len(y)))
    for member, left_out in zip(members, unseen):
        derivatives, process = make_process(member)
        residual = y - derivatives.raw.ravel()
        # One factorisation predicts both targets: residuals of the network, and values.
        means, variances[:, left_out], noiseless[:, left_out] = process.predict_left_out(
            np.stack([residual, y]), left_out, noises, importance
        )
        of_network[:, left_out] = (residual[left_out] - means[:, 0]) ** 2
        of_process[:, left_out] = (y[left_out] - means[:, 1]) ** 2
    seen = unseen.any(axis=0)
    found = (part[:, seen] for part in (of_network, of_process, variances, noiseless))
    return _Errors(*found, importance[seen]), seen


def _likeliest_process(errors, overall=None):
    """Find the process under which values are most likely: position of its noise, and its scale.

    Only noises up to the prior's variance are candidates: where all is noise, a smaller prior would
    be certain of the mean level, too. `overall`, the position of the noise of all groups, adds a
    log-normal prior around it, since few values hardly tell a large scale from a small one.
    """
    squares, variances = errors.process[:_N_SMALL], errors.variances[:_N_SMALL]
    penalty = 0.0
    if overall is not None:
        penalty = (np.log(np.divide(_NOISES[:_N_SMALL], _NOISES[overall])) / _LOG_NOISE_STD) ** 2
    return _most_likely(squares, variances, errors.weight, penalty)


def _most_likely(squares, variances, weight, penalty=0.0):
    """Find the candidate noise and the scale under which errors are most likely.

    Errors are normal with the predicted variances times the squared scale, whose best value has a
    closed form for each candidate. The `penalty` of each candidate counts like twice the negative
    log likelihood.

    Returns
    -------
    best : int
        Position of the candidate.
    scale : float
    """
    scales = np.maximum(np.average(squares / variances, axis=1, weights=weight), 1e-300)
    losses = np.log(scales) + np.average(np.log(variances), axis=1, weights=weight)
    best = np.argmin(losses * weight.sum() + penalty)
    return best, np.sqrt(scales[best])
