"""The numbers of a calibration, and how they change what the members of an ensemble predict.

Notation: K members, J normals of each, n rows, m outputs, S scales of the tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skuq.files._registry import saved_as

_MOST_SHARED = 0.95  # largest epistemic part of a normal's standard deviation
#: Keeps the gradient of a root finite at 0.
ROOT_FLOOR = 1e-30


@saved_as("predictive.Calibration")
@dataclass(frozen=True)
class Calibration:
    """Numbers that calibrate what an ensemble predicts; the defaults change nothing.

    All are in units of the standardised y. Regressors use the first five, classifiers the others.

    Attributes
    ----------
    factor, floor : float
        Factor of all standard deviations, and a standard deviation added to each member's noise in
        quadrature.
    shared : float
        Standard deviation of the errors that members share, in standard deviations of their means.
        It changes how much of the uncertainty is epistemic, but not the distribution.
    most_noise : tuple of float
        Largest variance of the noise of each output, where training rows show how large it is; more
        is epistemic. Empty leaves the noise as it is.
    tail : tuple of (float, float, float)
        Scale, floor and share of the distributions of which each member's is then mixed; none if
        it stays as it is. The floors are epistemic.
    temperature : float
        Number by which the networks' logits are divided.
    constant : tuple of float
        Probabilities of the classes that are added to those of the networks, which are multiplied
        by what is left to 1. Empty adds none.
    """

    factor: float = 1.0
    floor: float = 0.0
    shared: float = 0.0
    most_noise: tuple[float, ...] = ()
    tail: tuple[tuple[float, float, float], ...] = ()
    temperature: float = 1.0
    constant: tuple[float, ...] = ()

    @property
    def arrays(self) -> NumberArrays | None:
        """The numbers for regressors as arrays; None if they change nothing."""
        found = self.factor, self.floor, self.shared
        if not (self.tail or self.most_noise) and found == (1.0, 0.0, 0.0):
            return None
        tail = np.transpose(self.tail or [(1.0, 0.0, 1.0)])
        limits = np.array(self.most_noise or [np.inf])
        return NumberArrays(*[*np.array(found), limits, *tail])

    @property
    def shares_errors(self) -> bool:
        """Whether a part of the members' own distributions is epistemic."""
        has_floors = any(floor > 0 for _, floor, _ in self.tail)
        return self.shared > 0 or bool(self.most_noise) or has_floors


#: Changes nothing.
UNCALIBRATED = Calibration()


class NumberArrays(NamedTuple):
    """Numbers of a `Calibration` of normals, as arrays or tensors."""

    factor: Any
    floor: Any
    shared: Any
    most_noise: Any  # (m,)
    scales: Any  # (S,) of the tail
    floors: Any  # (S,)
    shares: Any  # (S,)


def calibrate_normals(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any = np
) -> tuple[tuple[Any, Any, Any], Any]:
    """Calibrate the normals (K, J, n, m) of members, in units of the standardised y.

    Means are stretched about the mixture's mean by the factor a, variances become
    ``a**2 * variance + floor**2``, and each member is mixed of itself, stretched about its own mean
    to the scales of the tail, with the tail's floors. Return the normals, and the part of each
    standard deviation that is epistemic: `shared` times the standard deviation of the members'
    means as they were, the tail's floor, and the noise beyond `most_noise`, but at most 0.95 of the
    normal's own, since each keeps some noise. Where noise exceeds `most_noise`, the normals of a
    member get nearer to each other and wider, so that its variance stays. Without `arrays` nothing
    changes.
    """
    if arrays is None:
        return normals, 0.0
    loc, scale, probability = normals
    factor, floor, shared, most_noise, scales, floors, shares = arrays
    mean = xp.sum(probability * loc, axis=1)
    centre = xp.tensordot(weights, mean, axes=1)
    variance = xp.tensordot(weights, xp.square(mean - centre), axes=1)
    # Symbolic tensors of Keras stand to the left of numbers.
    mean = ((mean - centre) * factor + centre)[:, None]
    loc = (loc - centre) * factor + centre
    scale = xp.sqrt(xp.square(scale * factor) + floor**2)
    apart = xp.sum(probability * xp.square(loc - mean), axis=1, keepdims=True)
    noise = xp.sum(probability * (xp.square(scale) + apart), axis=1)
    ratio = xp.maximum(xp.tensordot(weights, noise, axes=1) / most_noise, 1.0)
    excess = 1 - 1 / ratio
    loc = (loc - mean) / xp.sqrt(ratio) + mean
    scale = xp.sqrt(xp.square(scale) + apart * excess)
    tail = range(scales.shape[0])
    loc = xp.concatenate([(loc - mean) * scales[s] + mean for s in tail], axis=1)
    widths = [xp.sqrt(xp.square(scale * scales[s]) + floors[s] ** 2) for s in tail]
    unknown = xp.square(scale) * excess  # noise that no training row has shown
    errors = [
        xp.sqrt(variance * shared**2 + unknown * scales[s] ** 2 + (floors[s] ** 2 + ROOT_FLOOR))
        for s in tail
    ]
    probability = xp.concatenate([probability * shares[s] for s in tail], axis=1)
    parts = [xp.minimum(error, width * _MOST_SHARED) for error, width in zip(errors, widths)]
    return (loc, xp.concatenate(widths, axis=1), probability), xp.concatenate(parts, axis=1)


def calibrated_moments(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any
) -> tuple[Any, Any, Any]:
    """Compute the moments of calibrated normals (K, J, n, m), arrays or tensors.

    Returns means and variances of the members' noise, (K, n, m) each, and the variance (n, m) of
    the errors that they share.
    """
    (loc, scale, probability), part = calibrate_normals(normals, weights, arrays, xp)
    mean = xp.sum(probability * loc, axis=1)
    variance = xp.square(scale) + xp.square(loc - mean[:, None])
    # Means move by the average of their components.
    moved = xp.square(xp.sum(probability * part, axis=1))
    noise = xp.sum(probability * variance, axis=1) - moved
    return mean, noise, xp.tensordot(weights, moved, axes=1)
