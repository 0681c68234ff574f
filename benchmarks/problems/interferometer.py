"""A simulator of an interferometer, with the constants of published runs of its optimisation.

Two Gaussian beams meet on a camera of 64 x 64 pixels. Two mirrors shift and tilt the second one,
by amounts that are linear in their positions. A piston then moves its phase: twelve frames forward
over one wavelength, and four back. Constants are least-squares fits to the 75 stored inputs:
centres and tilts of the stored beams are linear in the inputs with R2 above 0.9999.
"""

from __future__ import annotations

import numpy as np

SIDE = 64  # pixels
WHITE = 255.0  # largest value of a pixel
_LIGHT = np.array([51.7, 49.0])  # greatest intensity of each beam
_WIDTHS = np.array([12.62, 12.96])  # pixels to where its amplitude is 1 / e
# Of the first and of the second mirror: pixels of shift and radians a pixel of tilt, for rows and
# columns. The mirrors have a position for each, in the order rows, columns, rows, columns.
_SHIFTS = np.array([[-19.76, 27.95], [-3.31, -4.66]])
_TILTS = np.array([[2.003, -2.832], [1.012, 1.429]])
_PHASES = np.pi * np.concatenate([np.arange(12) / 6, 1.5 - np.arange(4) / 2])


def interferograms(U: np.ndarray) -> np.ndarray:
    """Simulate the images (n, 4096, 16), in 0 to 255, of mirror positions (n, 4) in [-1, 1]."""
    pixels = np.arange(SIDE) - SIDE / 2
    positions = U.reshape(-1, 2, 2)  # mirrors, then rows and columns
    shifts, tilts = (np.sum(positions * slopes, axis=1) for slopes in (_SHIFTS, _TILTS))

    def along(axis, shift, width):
        return np.exp(-((pixels - shift[:, [axis]]) ** 2) / width**2)

    # Amplitudes and phases are products and sums of those along rows and columns.
    still = np.zeros_like(shifts)
    beams = [
        np.sqrt(light) * along(0, shift, width)[:, :, None] * along(1, shift, width)[:, None]
        for light, shift, width in zip(_LIGHT, (still, shifts), _WIDTHS)
    ]
    phase = tilts[:, :1, None] * pixels[:, None] + tilts[:, 1:, None] * pixels
    fringes = np.cos(phase[..., None] + _PHASES)  # (n, 64, 64, 16)
    first, second = beams
    # Interference: I = A1^2 + A2^2 + 2 A1 A2 cos(phase).
    light = (first**2 + second**2)[..., None] + (2 * first * second)[..., None] * fringes
    return light.reshape(len(U), SIDE**2, len(_PHASES))
