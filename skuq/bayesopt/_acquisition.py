"""What a point or a batch of points is worth asking for, from draws of the objective.

Everything is maximised. Notation: `values` are draws of the objective of shape (n_draws, n),
or (n_draws, n, q) where n batches of q points are judged as one; `best` is the best value
known, in the same units. `xp` is `numpy` or `keras.ops`. Results have shape (n,).

Every batch form is an expectation over the draws of what the batch's best point gives
(q-EI: Wang et al. 2016; leaky: NEON, section 7), and with q = 1 that of a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy import special

__all__ = [
    "ACQUISITIONS",
    "Acquisition",
    "expected_improvement",
    "leaky_expected_improvement",
    "mean",
    "probability_of_improvement",
    "uncertainty",
    "upper_confidence_bound",
]

#: Names that `Acquisition` knows. "lcb" is "ucb": a loop that minimises flips the sign before.
ACQUISITIONS = ("ei", "lei", "pi", "ucb", "lcb", "mean", "uncertainty")

_SQRT_HALF_PI = math.sqrt(math.pi / 2)  # E|g - mu| of a normal, times this, is its std
_TINY = 1e-30  # keeps the root's slope finite where all draws agree; normal in float32


def expected_improvement(xp, values, best):
    """Mean over the draws of ``max(0, value - best)``.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)
    best : float

    Returns
    -------
    array of shape (n,)
        In units of the objective, never negative.

    Notes
    -----
    Where no draw improves, value and gradient are 0: gradients find nothing there.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Table 2.
    """
    return xp.mean(xp.maximum(_batch_best(xp, values) - best, 0.0), axis=0)


def leaky_expected_improvement(xp, values, best, delta=0.01):
    """Expected improvement that still has a slope where no draw improves.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)
    best : float
    delta : float, default=0.01
        Slope below `best`, the paper's default. In a batch the weight of every point that is
        not the best of its draw, or does not improve.

    Returns
    -------
    array of shape (n,)
        In units of the objective. With values in [a, b] closer than ``delta * (b - a)`` to
        expected improvement (Theorem 1).

    Notes
    -----
    ``delta * sum_i gain_i + (1 - delta) * max(0, max_i gain_i)``, with the gains over `best`,
    is the sum of section 7 without its ties: points of a batch that agree to the last digit,
    as they do in a corner of the box, count as the best one once. The printed weights would
    count each of them, and reward a batch of q copies q times.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Eq. 7, 8 and section 7.
    """
    gain = values - best
    total = xp.sum(gain, axis=-1) if _is_batch(values) else gain
    improvement = xp.maximum(_batch_best(xp, gain), 0.0)
    return xp.mean(delta * total + (1.0 - delta) * improvement, axis=0)


def probability_of_improvement(xp, values, best):
    """Share of the draws above `best`, smoothed so that it has a gradient.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)
    best : float

    Returns
    -------
    array of shape (n,)
        In [0, 1].

    Notes
    -----
    A count of draws is flat almost everywhere. Each draw is spread to a normal of h standard
    deviations of the draws, h = 1.6 n_draws**(-1/3) (the rate for distribution functions),
    after all were drawn towards their mean by sqrt(1 - h**2), which keeps the variance
    (Silverman 1986, section 6.4). For normal draws this is the normal formula.
    """
    centre = xp.mean(values, axis=0, keepdims=True)
    bandwidth = min(0.9, 1.6 * values.shape[0] ** (-1 / 3))
    spread = _std(xp, values - centre, keepdims=True)
    shrunk = centre + math.sqrt(1 - bandwidth**2) * (values - centre)
    above = _normal_cdf(xp, (shrunk - best) / (bandwidth * spread))
    return xp.mean(_batch_best(xp, above), axis=0)


def upper_confidence_bound(xp, values, beta=1.0, deviation="std"):
    """Mean plus `beta` standard deviations.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)
    beta : float, default=1.0
        How much an uncertain point is preferred.
    deviation : {"std", "absolute"}, default="std"
        "absolute" has ``sqrt(pi / 2) E|g - mu|`` for the standard deviation, which is the
        same for normals and, being an expectation, has a form for batches. Batches have
        that form in either case: the mean over the draws of the largest
        ``mu + beta * sqrt(pi / 2) * |g - mu|`` of the batch.

    Returns
    -------
    array of shape (n,)
        In units of the objective.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Table 2. Wilson et al. (2017), "The
    reparameterization trick for acquisition functions".
    """
    centre = xp.mean(values, axis=0, keepdims=True)
    return _bound(xp, centre, values - centre, beta, deviation)


def mean(xp, values):
    """Mean over the draws of the value of the batch's best point.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)

    Returns
    -------
    array of shape (n,)
        In units of the objective.
    """
    return xp.mean(_batch_best(xp, values), axis=0)


def uncertainty(xp, values, deviation="std"):
    """Standard deviation of the draws: where the surrogate knows least.

    Parameters
    ----------
    xp : module
        `numpy` or `keras.ops`.
    values : array of shape (n_draws, n) or (n_draws, n, q)
    deviation : {"std", "absolute"}, default="std"
        As in `upper_confidence_bound`.

    Returns
    -------
    array of shape (n,)
        In units of the objective.
    """
    centred = values - xp.mean(values, axis=0, keepdims=True)
    return _bound(xp, 0.0, centred, 1.0, deviation)


@dataclass(frozen=True)
class Acquisition:
    """An acquisition function by name, with its settings.

    Parameters
    ----------
    name : {"ei", "lei", "pi", "ucb", "lcb", "mean", "uncertainty"}
        "lcb" is another name of "ucb": values are maximised, so both prefer the uncertain.
    delta : float, default=0.01
        Slope of "lei", in [0, 1]. With 0 it is "ei", with 1 "mean" of one point.
    beta : float, default=1.0
        Weight of the deviation in "ucb".
    deviation : {"std", "absolute"}, default="std"
        Of "ucb" and "uncertainty", see `upper_confidence_bound`.

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
            raise ValueError(f"name must be one of {', '.join(ACQUISITIONS)}. Got {self.name!r}.")
        if self.deviation not in ("std", "absolute"):
            raise ValueError(f'deviation must be "std" or "absolute". Got {self.deviation!r}.')
        if not (isinstance(self.delta, Real) and 0 <= self.delta <= 1):
            raise ValueError(f"delta must be in [0, 1]. Got {self.delta!r}.")
        if not (isinstance(self.beta, Real) and 0 <= self.beta < math.inf):
            raise ValueError(f"beta must be finite and not negative. Got {self.beta!r}.")

    @property
    def needs_best(self) -> bool:
        """Whether it compares with the best value known."""
        return self.name in ("ei", "lei", "pi")

    def __call__(self, xp, values, best, beta=None):
        """What the points or batches are worth.

        Parameters
        ----------
        xp : module
            `numpy` or `keras.ops`.
        values : array of shape (n_draws, n) or (n_draws, n, q)
        best : float
            Not used unless `needs_best`.
        beta : float, optional
            Instead of the one it was made with.

        Returns
        -------
        array of shape (n,)
        """
        beta = self.beta if beta is None else beta
        if self.name == "ei":
            return expected_improvement(xp, values, best)
        if self.name == "lei":
            return leaky_expected_improvement(xp, values, best, self.delta)
        if self.name == "pi":
            return probability_of_improvement(xp, values, best)
        if self.name == "mean":
            return mean(xp, values)
        if self.name == "uncertainty":
            return uncertainty(xp, values, self.deviation)
        return upper_confidence_bound(xp, values, beta, self.deviation)


def _is_batch(values):
    return len(values.shape) == 3


def _batch_best(xp, values):
    return xp.max(values, axis=-1) if _is_batch(values) else values


def _bound(xp, centre, centred, beta, deviation):
    one_point = not _is_batch(centred) or centred.shape[-1] == 1
    if one_point and deviation == "std":
        bound = centre + beta * _std(xp, centred, keepdims=True)
    else:
        bound = centre + beta * _SQRT_HALF_PI * xp.abs(centred)
    return xp.mean(_batch_best(xp, bound), axis=0)


def _std(xp, centred, keepdims=False):
    variance = xp.mean(xp.square(centred), axis=0, keepdims=keepdims)
    return xp.sqrt(xp.maximum(variance, _TINY))


def _normal_cdf(xp, x):
    return special.ndtr(x) if xp is np else 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
