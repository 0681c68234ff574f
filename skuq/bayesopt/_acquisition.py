"""Acquisition functions of points and of batches, computed from draws of the objective.

All are maximised. Notation: `values` are draws of the objective of shape (n_draws, n), or
(n_draws, n, q) for n batches of q points; `best` is the best known value, in the same units: one
number, or one for each draw (n_draws,). `xp` is `numpy` or `keras.ops`. Results have shape (n,).

Points that are being evaluated elsewhere are *pending*. A draw is a function, so it has values at
them; the best of these is the *level* that new points must exceed in this draw: one number for
each draw (n_draws,), see `Acquisition.pending_level`.

The form for batches is the mean over the draws of the value of the batch's best point (q-EI: Wang
et al. 2016; leaky: NEON, section 7). With q = 1 it equals the form for single points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy import special

#: Names of acquisition functions. "lcb" equals "ucb": to minimise, the loop negates the objective.
ACQUISITIONS = ("ei", "lei", "pi", "ucb", "lcb", "mean", "uncertainty")

_SQRT_HALF_PI = math.sqrt(math.pi / 2)  # std of a normal is this times E|g - mu|
_TINY = 1e-30  # keeps the slope of the root finite if all draws agree; normal in float32


def expected_improvement(xp, values, best):
    """Compute expected improvement: the mean over the draws of ``max(0, value - best)``.

    If no draw improves, value and gradient are 0, so gradients cannot lead away from there
    (Guilhoto and Perdikaris 2024, "NEON", Table 2).
    """
    values = _batch_best(xp, values)  # (n_draws, n)
    return xp.mean(
        xp.maximum(values - _align_with_draws(xp, best, values), 0.0), axis=0
    )  # E max(0, g - y*)


def leaky_expected_improvement(xp, values, best, delta=0.01):
    """Compute leaky expected improvement, which has a slope even if no draw improves.

    `delta` is the slope below `best`; in a batch, the weight of every point that is not the best
    of its draw, or does not improve. For values in [a, b] the result differs from expected
    improvement by less than ``delta * (b - a)`` (Theorem 1).

    Notes
    -----
    With ``gain_i = value_i - best``, the sum of section 7 equals
    ``delta * sum_i gain_i + (1 - delta) * max(0, max_i gain_i)``, except for ties: points of a
    batch that are exactly equal, as in a corner of the box, count once as the best one. The
    printed weights would count each of them, and reward a batch of q copies q times.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Eq. 7, 8 and section 7.
    """
    gain = values - _align_with_draws(xp, best, values)  # (n_draws, n[, q])
    total = xp.sum(gain, axis=-1) if _is_batch(values) else gain  # (n_draws, n)
    improvement = xp.maximum(_batch_best(xp, gain), 0.0)
    return xp.mean(delta * total + (1.0 - delta) * improvement, axis=0)


def probability_of_improvement(xp, values, best):
    """Compute the probability of improvement, smoothed so that it has a gradient.

    Notes
    -----
    The share of draws above `best` is flat almost everywhere. So draws are shrunk towards their
    mean by sqrt(1 - h**2), and each becomes a normal whose standard deviation is h times that of
    the draws, which keeps the variance (Silverman 1986, section 6.4). The bandwidth is
    h = 1.6 n_draws**(-1/3), the rate for distribution functions. For normal draws this is the
    normal formula.
    """
    centre = xp.mean(values, axis=0, keepdims=True)  # (1, n[, q])
    bandwidth = min(0.9, 1.6 * values.shape[0] ** (-1 / 3))
    spread = _std(xp, values - centre)
    shrunk = centre + math.sqrt(1 - bandwidth**2) * (values - centre)
    # The smoothed indicator of each draw: P(shrunk + h * spread * normal > best).
    above = _normal_cdf(xp, (shrunk - _align_with_draws(xp, best, values)) / (bandwidth * spread))
    return xp.mean(_batch_best(xp, above), axis=0)


def upper_confidence_bound(xp, values, beta=1.0, deviation="std", pending=None):
    """Compute the upper confidence bound: the mean plus `beta` standard deviations.

    With ``deviation="absolute"`` the standard deviation is ``sqrt(pi / 2) E|g - mu|``, which is
    equal for normals. Batches use it in both cases: the mean over the draws of the largest
    ``mu + beta * sqrt(pi / 2) * |g - mu|`` of the batch. With `pending`, the level that pending
    points reach in each draw (n_draws,), single points use it too.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Table 2. Wilson et al. (2017), "The
    reparameterization trick for acquisition functions".
    """
    centre = xp.mean(values, axis=0, keepdims=True)
    return _bound(xp, centre, values - centre, beta, deviation, pending)


def mean(xp, values, pending=None):
    """Compute the mean over the draws of the best value of the batch and of pending points."""
    return xp.mean(_raise_to_level(xp, _batch_best(xp, values), pending), axis=0)


def uncertainty(xp, values, deviation="std", pending=None):
    """Compute the standard deviation of the draws.

    See `upper_confidence_bound` for `deviation` and `pending`.
    """
    centred = values - xp.mean(values, axis=0, keepdims=True)
    return _bound(xp, 0.0, centred, 1.0, deviation, pending)


@dataclass(frozen=True)
class Acquisition:
    """An acquisition function by name, with its settings.

    Parameters
    ----------
    name : {"ei", "lei", "pi", "ucb", "lcb", "mean", "uncertainty"}
        Name of the function. "lcb" is another name of "ucb", as values are maximised.
    delta : float, default=0.01
        Slope of "lei", in [0, 1]. With 0 it is "ei", with 1 "mean" of one point.
    beta : float, default=1.0
        Weight of the deviation in "ucb".
    deviation : {"std", "absolute"}, default="std"
        Measure of deviation in "ucb" and "uncertainty", see `upper_confidence_bound`.

    Raises
    ------
    ValueError
        If the name or the deviation is unknown, `delta` outside of [0, 1] or `beta` negative
        or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import Acquisition
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> Acquisition("ei")(np, values, best=1.0)
    array([0., 2.])
    >>> Acquisition("ucb", beta=2.0)(np, values, best=1.0)
    array([1.5, 5. ])
    """

    name: str = "lei"
    delta: float = 0.01
    beta: float = 1.0
    deviation: str = "std"

    def __post_init__(self):
        if self.name not in ACQUISITIONS:
            raise ValueError(
                f"An acquisition must be one of {', '.join(ACQUISITIONS)}. Got {self.name!r}."
            )
        if self.deviation not in ("std", "absolute"):
            raise ValueError(f'deviation must be "std" or "absolute". Got {self.deviation!r}.')
        if not (isinstance(self.delta, Real) and 0 <= self.delta <= 1):
            raise ValueError(f"delta must be in [0, 1]. Got {self.delta!r}.")
        if not (isinstance(self.beta, Real) and 0 <= self.beta < math.inf):
            raise ValueError(f"beta must be finite and not negative. Got {self.beta!r}.")

    @property
    def needs_best(self) -> bool:
        """Whether it depends on the best known value."""
        return self.name in ("ei", "lei", "pi")

    def __call__(self, xp, values, best, beta=None, pending=None):
        """Compute the acquisition (n,) of points or batches.

        A `beta` replaces its own. `pending` is the `pending_level` of points under evaluation.
        """
        beta = self.beta if beta is None else beta
        # Pending points raise `best`; functions without `best` raise their own values instead.
        if self.needs_best and pending is not None:
            best = xp.maximum(best, pending)
        if self.name == "ei":
            return expected_improvement(xp, values, best)
        if self.name == "lei":
            return leaky_expected_improvement(xp, values, best, self.delta)
        if self.name == "pi":
            return probability_of_improvement(xp, values, best)
        if self.name == "mean":
            return mean(xp, values, pending)
        if self.name == "uncertainty":
            return uncertainty(xp, values, self.deviation, pending)
        return upper_confidence_bound(xp, values, beta, self.deviation, pending)

    def pending_level(self, values, beta=None):
        """Compute what pending points reach in each draw (n_draws,), from values (n_draws, p)."""
        if self.name in ("ei", "lei", "pi", "mean"):
            return values.max(axis=1)
        centre = values.mean(axis=0)
        # The absolute form, which has a value in each draw, as for batches.
        deviations = _SQRT_HALF_PI * np.abs(values - centre)
        if self.name == "uncertainty":
            return deviations.max(axis=1)
        return (centre + (self.beta if beta is None else beta) * deviations).max(axis=1)


def _is_batch(values):
    """Whether values have shape (n_draws, n, q)."""
    return len(values.shape) == 3


def _batch_best(xp, values):
    """Reduce batches (n_draws, n, q) to their best points (n_draws, n)."""
    return xp.max(values, axis=-1) if _is_batch(values) else values


def _align_with_draws(xp, level, values):
    """Reshape a level of each draw (n_draws,) to (n_draws, 1[, 1]); a number stays a number."""
    if not getattr(level, "shape", ()):
        return level
    return xp.reshape(level, (-1,) + (1,) * (len(values.shape) - 1))


def _raise_to_level(xp, values, pending):
    """Raise values (n_draws, n) to the level of pending points, if there are any."""
    return values if pending is None else xp.maximum(values, _align_with_draws(xp, pending, values))


def _bound(xp, centre, centred, beta, deviation, pending):
    """Compute ``centre + beta * deviation``, of batches in the mean over the draws: (n,).

    `centre` is a number or (1, n[, q]), `centred` are draws minus their mean (n_draws, n[, q]).
    """
    one_point = not _is_batch(centred) or centred.shape[-1] == 1
    if one_point and deviation == "std" and pending is None:
        bound = centre + beta * _std(xp, centred)
    else:
        bound = centre + beta * _SQRT_HALF_PI * xp.abs(centred)  # (n_draws, n[, q])
    return xp.mean(_raise_to_level(xp, _batch_best(xp, bound), pending), axis=0)


def _std(xp, centred):
    """Compute standard deviations (1, n[, q]) of centred draws (n_draws, n[, q])."""
    # In units of the largest deviation, since squares of small numbers are 0 in single precision.
    largest = xp.max(xp.abs(centred), axis=0, keepdims=True)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))
    if xp is not np:
        unit = xp.stop_gradient(unit)  # the result does not depend on it
    variance = xp.mean(xp.square(centred / unit), axis=0, keepdims=True)
    return unit * xp.sqrt(xp.maximum(variance, _TINY))


def _normal_cdf(xp, x):
    return special.ndtr(x) if xp is np else 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
