"""Size of NEON's random prior and of the noise, learnt from values that networks leave out.

Each network predicts the values that it has left out, conditioned on all others. Its own errors say
how large noise and spread are together. Which part of them is spread, they do not say where noise
is large: what a network leaves of the values it has seen then is mostly noise, and a prior of the
size of these residuals would be nearly sure everywhere. The shape of the spread is therefore that
of a Gaussian process with the network's tangent kernel that predicts the values themselves, as in
Laplace's approximation of a Bayesian network (Immer et al. 2021).

Notation: n values that are left out; noise variances are in units of the prior's variance.

References
----------
A. Immer, M. Korzepa, M. Bauer. "Improving predictions of Bayesian neural nets via local
linearization", AISTATS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import optimize

from skuq.predictive._out_of_bag import fit_scale

#: Scale of the random prior where none is learnt; that of the paper.
PRIOR_SCALE = 0.75
# Candidates for the noise variance, two in each power of ten. Smaller ones ask for more precision
# than float32 weights have, and intervals become far too narrow.
_NOISES = tuple(10.0 ** np.arange(-5, 2.5, 0.5))
# Noise variance that a scale is learnt with where there is no noise. Errors below one per cent of
# the prior's scale come from the linearisation, and would widen predictions everywhere.
_LEAST_NOISE = 1e-4
_PRIOR_VALUES = 2  # pseudo-values at the usual scale, which stabilise estimates from few values
# Candidates for the scale where the noise is known.
_SCALES = tuple(10.0 ** np.arange(-2, 1.6, 0.25))
_MOST_FACTOR = 6.0  # largest logarithm of a factor of variances
_TINY = 1e-12


class Prior(NamedTuple):
    """Scale of the random prior, and variances of the noise in units of the prior's variance.

    Draws meet the data up to `noise`. The correction of the mean has a noise of its own: a network
    that stopped early has learnt most of what the data say, and the rest is mostly noise.
    """

    scale: float
    noise: np.ndarray
    mean_noise: np.ndarray

    @classmethod
    def of_given(cls, scale: float, variance: np.ndarray) -> Prior:
        """Make the prior of a given scale, and of a given variance of the noise of each value."""
        noise = variance / max(scale, 1e-12) ** 2
        return cls(scale, noise, noise.copy())


class _Errors(NamedTuple):
    """Squared errors of values that networks leave out, for each noise variance: (n_noises, n).

    `of_networks` are those of the networks with their correction, `of_processes` those of the
    Gaussian processes alone. `variances` are predicted, noise included, in units of the prior's.
    `weight` (n,) are the values' weights.
    """

    of_networks: np.ndarray
    of_processes: np.ndarray
    variances: np.ndarray
    weight: np.ndarray


def learn_prior(members, make_process, y, importance, unseen, place, shape):
    """Learn the prior, and the widths of predictions in each place, such as a column.

    Parameters
    ----------
    members : sequence of Member
    make_process : callable
        Makes a member's derivatives and its process.
    y, importance : ndarray of shape (n_values,)
        Values, and their weights.
    unseen : ndarray of bool of shape (n_members, n_values)
        Values that each member leaves out.
    place : ndarray of int of shape (n_values,)
        Number of each value's place.
    shape : tuple of int
        Shape of the places.

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of shape `shape`
        Factor of the epistemic standard deviation, and standard deviation of the noise.
    """
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, _NOISES)
    # The correction of the mean is that with which networks' errors are most likely.
    corrected, _ = _most_likely(errors.of_networks, errors.variances, errors.weight)
    of_networks = errors.of_networks[corrected]
    scale, noise, spread = _spread(errors)
    # The spread's size and the noise are those with which the networks' errors are most likely.
    factor, std = fit_scale(
        of_networks[:, None], spread[:, None], errors.weight, prior_rows=0, fewest_rows=1
    )
    ratios = of_networks / (factor**2 * spread + std**2)
    n_places = int(np.prod(shape))
    sums = np.bincount(place[seen], errors.weight * ratios, n_places)
    counts = np.bincount(place[seen], errors.weight, n_places)
    factors = np.sqrt((sums + _PRIOR_VALUES) / (counts + _PRIOR_VALUES)).reshape(shape)
    prior = Prior(factor * scale, np.full(1, noise), np.full(1, _NOISES[corrected]))
    return prior, (factors, factors * std)


def learn_scale(members, make_process, y, importance, unseen, place, std):
    """Learn the prior with a known noise, whose standard deviations `std` have the places' shape.

    The scale is learnt in each place by itself, as one without noise would have all the say; see
    `learn_prior` for the other parameters and the result.
    """
    variance = std.ravel()[place] ** 2
    noises = [np.maximum(variance / scale**2, _NOISES[0]) for scale in _SCALES]
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, noises)
    # Variances of values: the larger the scale, the less the noise counts.
    totals = errors.variances * np.square(_SCALES)[:, None]
    noises, scales = np.array(noises), np.full(std.size, PRIOR_SCALE)
    prior = Prior.of_given(PRIOR_SCALE, variance)
    for k in np.unique(place[seen]):
        here, at = place[seen] == k, place == k
        of_place = _Errors(*(values[..., here] for values in errors))
        best, corrected, factor = _scale_of_place(of_place, totals[:, here], variance[seen][here])
        scales[k] = factor * _SCALES[best]
        prior.noise[at], prior.mean_noise[at] = noises[best, at], noises[corrected, at]
    # One scale for all, and a factor for each place.
    scale = np.exp(np.log(scales).mean())
    return prior._replace(scale=scale), ((scales / scale).reshape(std.shape), std)


def _scale_of_place(errors, totals, variance):
    """Choose the scale, the correction of the mean, both by number, and a factor of the scale.

    `totals` (n_scales, n) are predicted variances, `variance` (n,) that of the noise.
    """
    losses = (errors.weight * (np.log(totals) + errors.of_processes / totals)).sum(axis=1)
    # Large noise says nothing of the scale: its square's logarithm is normal around the usual one.
    best = np.argmin(losses + np.log(np.square(np.divide(_SCALES, PRIOR_SCALE))) ** 2)
    # The correction with which networks' errors are least, in units of what is expected of them.
    corrected = np.average(
        errors.of_networks / totals[best], axis=1, weights=errors.weight
    ).argmin()
    squares, spread = errors.of_networks[corrected], np.maximum(totals[best] - variance, _TINY)

    def loss(log_factor):
        total = np.exp(log_factor) * spread + variance
        nll = (errors.weight * (np.log(total) + squares / total)).sum()
        return nll + log_factor**2  # of a standard normal, as in `fit_scale`

    bounds = (-_MOST_FACTOR, _MOST_FACTOR)
    found = optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return best, corrected, np.exp(found.x / 2)


def learn_scale_without_noise(members, make_process, y, importance, unseen):
    """Learn the prior's scale from values without noise; see `learn_prior`."""
    errors, _ = _errors_left_out(members, make_process, y, importance, unseen, (_LEAST_NOISE,))
    ratios = errors.of_networks[0] / errors.variances[0]
    total = (errors.weight * ratios).sum() + _PRIOR_VALUES * PRIOR_SCALE**2
    return float(np.sqrt(total / (errors.weight.sum() + _PRIOR_VALUES)))


def _errors_left_out(members, make_process, y, importance, unseen, noises):
    """Compute the errors of what networks leave out, for each noise variance.

    Also tell which values these are (n_values,): the networks of some folds may have diverged.
    """
    of_networks, of_processes, variances = np.zeros((3, len(noises), len(y)))
    for member, left_out in zip(members, unseen):
        derivatives, process = make_process(member)
        residual = y - derivatives.raw.ravel()
        means, variances[:, left_out] = process.predict_left_out(
            np.stack([residual, y]), left_out, noises, importance
        )
        of_networks[:, left_out] = (residual[left_out] - means[:, 0]) ** 2
        of_processes[:, left_out] = (y[left_out] - means[:, 1]) ** 2
    seen = unseen.any(axis=0)
    found = of_networks[:, seen], of_processes[:, seen], variances[:, seen], importance[seen]
    return _Errors(*found), seen


def _spread(errors):
    """Find the process with which values are most likely.

    Returns
    -------
    scale, noise : float
        `noise` is in units of the squared scale.
    variances : ndarray of shape (n,)
        Predicted variances without the noise.
    """
    best, scale = _most_likely(errors.of_processes, errors.variances, errors.weight)
    spread = np.maximum(errors.variances[best] - _NOISES[best], _TINY)
    return scale, _NOISES[best], scale**2 * spread


def _most_likely(squares, variances, weight):
    """Find the noise, by number, and the scale with which errors are most likely.

    Errors are normal with the predicted variances times the squared scale.
    """
    scales = np.maximum(np.average(squares / variances, axis=1, weights=weight), 1e-300)
    best = np.argmin(np.log(scales) + np.average(np.log(variances), axis=1, weights=weight))
    return best, np.sqrt(scales[best])
