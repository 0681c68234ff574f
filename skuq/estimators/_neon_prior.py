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

from skuq.predictive._calibration import fit_scale

#: Scale of the random prior where none is learnt; that of the paper.
PRIOR_SCALE = 0.75
# Candidates for the noise variance, two in each power of ten. Smaller ones ask for more precision
# than float32 weights have, and intervals become far too narrow.
_NOISES = tuple(10.0 ** np.arange(-5, 2.5, 0.5))
_N_SMALL = int(np.searchsorted(_NOISES, 1.01))  # candidates up to the prior's variance
_NOISE_SPREAD = 1.0  # standard deviation of a place's logarithm of the noise variance
# Noise variance that a scale is learnt with where there is no noise. Errors below one per cent of
# the prior's scale come from the linearisation, and would widen predictions everywhere.
_LEAST_NOISE = 1e-4
_PRIOR_VALUES = 2  # pseudo-values at the usual scale, which stabilise estimates from few values
# Candidates for the scale where the noise is known.
_SCALES = tuple(10.0 ** np.arange(-2, 1.6, 0.25))
_MOST_FACTOR = 6.0  # largest logarithm of a factor of variances
_TINY = 1e-12
_LEAST_SCALE = 1e-6  # of values that are all equal


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


def learn_prior(members, make_process, y, importance, unseen, place, limits):
    """Learn the prior and the noise, in each place by itself, such as a column.

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
    limits : tuple of two ndarrays
        Least and largest standard deviation that the noise of each place can have.

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of the shape of the limits
        Factor of the epistemic standard deviation, and standard deviation of the noise.
    """
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, _NOISES)
    shape, limits = limits[0].shape, np.reshape(limits, (2, -1))
    places, std = _Places(place, limits.shape[1]), limits[0].copy()
    usual, _ = _likeliest_spread(errors)
    for k in np.unique(place[seen]):
        here = place[seen] == k
        of_place = _Errors(*(values[..., here] for values in errors))
        scale, std[k], mean_noise = _prior_of_place(of_place, usual, *limits[:, k])
        places.put(k, scale, std[k] ** 2, mean_noise)
    return places.prior(), (places.factors(shape), std.reshape(shape))


def _prior_of_place(errors, usual, least, most):
    """Learn the scale, the noise's standard deviation, and the noise of the mean's correction.

    `usual` is the number of the noise that is most likely in all places together. What the noise
    cannot explain within its limits belongs to the spread.
    """
    # The correction of the mean is that with which networks' errors are most likely.
    corrected, _ = _most_likely(errors.of_networks, errors.variances, errors.weight)
    squares = errors.of_networks[corrected]
    best, scale = _likeliest_spread(errors, usual)
    spread = scale**2 * np.maximum(errors.variances[best] - _NOISES[best], _TINY)
    # The spread's size and the noise are those with which the networks' errors are most likely.
    factor, std = fit_scale(
        squares[:, None], spread[:, None], errors.weight, prior_rows=0, fewest_rows=1
    )
    if not least <= std <= most:
        std = np.clip(std, least, most)
        factor = _likely_factor(squares, spread, std**2, errors.weight)
    scale *= factor
    if std**2 > _NOISES[0] * scale**2:
        # Spreads of all scales with this noise.
        scales = std / np.sqrt(_NOISES[:_N_SMALL])
        totals = scales[:, None] ** 2 * errors.variances[:_N_SMALL]
        scale = _matching_scale(squares, totals, scales, scale, std**2, errors.weight)
    return scale, std, _NOISES[corrected]


def _matching_scale(squares, totals, scales, usual, variance, weight):
    """Find the scale whose spread fits networks' errors, near a `usual` one and not below it.

    A factor of a spread is not a factor of the scale: with a larger scale, the same noise counts
    less. `totals` (n_scales, n) are variances predicted with each of the `scales`.
    """
    losses = (weight * (np.log(totals) + squares / totals)).sum(axis=1)
    best = np.argmin(losses + np.log((scales / usual) ** 2) ** 2)
    spread = np.maximum(totals[best] - variance, _TINY)
    return max(usual, scales[best] * _likely_factor(squares, spread, variance, weight))


class _Places:
    """Priors of all places, which are joined to one.

    Parameters
    ----------
    place : ndarray of int of shape (n_values,)
        Number of each value's place.
    n_places : int
    """

    def __init__(self, place, n_places):
        self._place, self._scales = place, np.full(n_places, PRIOR_SCALE)
        self._noise, self._mean_noise = np.full((2, len(place)), _NOISES[0])

    def put(self, k, scale, variance, mean_noise):
        """Set the scale and the noise of a place: its variance, and that of the correction.

        A correction that trusted values less than the draws do would miss what many values say.
        """
        at = self._place == k
        self._scales[k] = scale = max(scale, _LEAST_SCALE)
        self._noise[at] = noise = max(variance / scale**2, _NOISES[0])
        self._mean_noise[at] = min(mean_noise, noise)

    def prior(self):
        """Make the prior of one scale for all."""
        return Prior(self._scale, self._noise, self._mean_noise)

    def factors(self, shape):
        """Compute the factor of the scale in each place."""
        return (self._scales / self._scale).reshape(shape)

    @property
    def _scale(self):
        return np.exp(np.log(self._scales).mean())


def learn_scale(members, make_process, y, importance, unseen, place, std):
    """Learn the prior with a known noise, whose standard deviations `std` have the places' shape.

    The scale is learnt in each place by itself, as one without noise would have all the say; see
    `learn_prior` for the other parameters and the result.
    """
    variances = std.ravel() ** 2
    of_values = variances[place]
    noises = [np.maximum(of_values / scale**2, _NOISES[0]) for scale in _SCALES]
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, noises)
    # Variances of values: the larger the scale, the less the noise counts.
    totals = errors.variances * np.square(_SCALES)[:, None]
    places = _Places(place, std.size)
    for k in np.unique(place[seen]):
        here = place[seen] == k
        of_place = _Errors(*(values[..., here] for values in errors))
        scale, corrected = _scale_of_place(of_place, totals[:, here], variances[k])
        mean_noise = max(variances[k] / _SCALES[corrected] ** 2, _NOISES[0])
        places.put(k, scale, variances[k], mean_noise)
    return places.prior(), (places.factors(std.shape), std)


def _scale_of_place(errors, totals, variance):
    """Choose the scale, and by its number that of the mean's correction.

    `totals` (n_scales, n) are predicted variances, `variance` is that of the noise.
    """
    losses = (errors.weight * (np.log(totals) + errors.of_processes / totals)).sum(axis=1)
    # Large noise says nothing of the scale: its square's logarithm is normal around the usual one.
    best = np.argmin(losses + np.log(np.square(np.divide(_SCALES, PRIOR_SCALE))) ** 2)
    # The correction with which networks' errors are least, in units of what is expected of them.
    corrected = np.average(
        errors.of_networks / totals[best], axis=1, weights=errors.weight
    ).argmin()
    squares, spread = errors.of_networks[corrected], np.maximum(totals[best] - variance, _TINY)
    return _likely_factor(squares, spread, variance, errors.weight) * _SCALES[best], corrected


def _likely_factor(squares, spread, variance, weight):
    """Find the factor of the spread with which errors are most likely, with a known noise."""

    def loss(log_factor):
        total = np.exp(log_factor) * spread + variance
        nll = (weight * (np.log(total) + squares / total)).sum()
        return nll + log_factor**2  # of a standard normal, as in `fit_scale`

    bounds = (-_MOST_FACTOR, _MOST_FACTOR)
    found = optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return np.exp(found.x / 2)


def learn_scale_without_noise(members, make_process, y, importance, unseen):
    """Learn the prior's scale from values without noise; see `learn_prior`.

    Also return the root mean square of the networks' errors, in units of the values' own.
    """
    errors, _ = _errors_left_out(members, make_process, y, importance, unseen, (_LEAST_NOISE,))
    ratios = errors.of_networks[0] / errors.variances[0]
    total = (errors.weight * ratios).sum() + _PRIOR_VALUES * PRIOR_SCALE**2
    scale = float(np.sqrt(total / (errors.weight.sum() + _PRIOR_VALUES)))
    size = np.average(y**2, weights=importance) or 1.0
    return scale, float(np.sqrt(np.average(errors.of_networks[0], weights=errors.weight) / size))


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


def _likeliest_spread(errors, usual=None):
    """Find the process with which values are most likely: its noise, by number, and its scale.

    The noise is at most as large as the prior: where all is noise, a smaller prior would be sure of
    the level, too. With the number of a `usual` noise, the noise's logarithm is normal around it,
    since few values hardly tell a large scale from a small one.
    """
    squares, variances = errors.of_processes[:_N_SMALL], errors.variances[:_N_SMALL]
    penalty = 0.0
    if usual is not None:
        penalty = (np.log(np.divide(_NOISES[:_N_SMALL], _NOISES[usual])) / _NOISE_SPREAD) ** 2
    return _most_likely(squares, variances, errors.weight, penalty)


def _most_likely(squares, variances, weight, penalty=0.0):
    """Find the noise, by number, and the scale with which errors are most likely.

    Errors are normal with the predicted variances times the squared scale. The penalties of the
    noises are on the scale of twice the negative log likelihood.
    """
    scales = np.maximum(np.average(squares / variances, axis=1, weights=weight), 1e-300)
    losses = np.log(scales) + np.average(np.log(variances), axis=1, weights=weight)
    best = np.argmin(losses * weight.sum() + penalty)
    return best, np.sqrt(scales[best])
