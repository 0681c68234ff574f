"""A simulator of cell towers: received power and interference of 15 antennas on a map.

It follows the antenna pattern and the path loss of 3GPP TR 36.814 (tables A.2.1.1-2 and
A.2.1.1.1-2). The paper on NEON uses power maps of a ray tracer, which are no formula. Magnitudes
are comparable, values of the objective are not.

Notation: n inputs, 15 antennas, q cells of the map; powers are in dBm, gains and losses in dB.
"""

from __future__ import annotations

import functools

import numpy as np

N_ANTENNAS = 15
SIDE = 50  # cells
_EXTENT = 1205.0  # metres: 241 cells of 5 m, downsampled to 50
# Sites of three antennas each, in shares of the extent.
_SITES = np.array([[0.22, 0.25], [0.74, 0.2], [0.5, 0.52], [0.2, 0.78], [0.8, 0.77]])
_HEIGHT, _RECEIVER = 32.0, 1.5  # metres
_GAIN = 14.0  # dB
_WIDTHS, _FLOORS, _BACK = (70.0, 10.0), (25.0, 20.0), 25.0  # degrees; across and upright
_CARRIERS = 600  # that share an antenna's power: a channel of 10 MHz
_SHADOW, _CORRELATION = 8.0, 50.0  # standard deviation in dB, metres
_N_WAVES, _SEED = 256, 0  # random waves that make up the shadow fading of a site


@functools.cache
def _links() -> tuple[np.ndarray, np.ndarray]:
    """Compute what does not depend on tilts and powers.

    Returns
    -------
    gains : ndarray of shape (2, 15, q)
        The horizontal pattern, and shadowing minus path loss, in dB.
    below : ndarray of shape (15, q)
        Angles below the horizon, in degrees.
    """
    numbers = (np.arange(SIDE) + 0.5) / SIDE * _EXTENT
    cells = np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 2)
    offsets = cells - _EXTENT * np.repeat(_SITES, 3, axis=0)[:, None]  # (15, q, 2)
    distance = np.maximum(np.linalg.norm(offsets, axis=-1), 10.0)
    bearing = np.degrees(np.arctan2(offsets[..., 1], offsets[..., 0]))
    facing = np.tile([30.0, 150.0, 270.0], len(_SITES))[:, None]
    # Angle between the antenna's direction and the cell, in [-180, 180).
    across = (bearing - facing + 180.0) % 360.0 - 180.0
    # Horizontal pattern -min(12 (angle / width)^2, floor), in dB.
    pattern = -np.minimum(12 * (across / _WIDTHS[0]) ** 2, _FLOORS[0])
    # Path loss in dB, of the distance in kilometres.
    path = 128.1 + 37.6 * np.log10(np.hypot(distance, _HEIGHT - _RECEIVER) / 1000)
    shadow = np.repeat([_shadow(cells, site) for site in range(len(_SITES))], 3, axis=0)
    below = np.degrees(np.arctan2(_HEIGHT - _RECEIVER, distance))
    return np.stack([pattern, shadow - path]), below


def _shadow(cells: np.ndarray, site: int) -> np.ndarray:
    """Compute the shadowing (q,) of a site: a smooth normal field, by random waves."""
    rng = np.random.default_rng([_SEED, site])
    waves = rng.standard_normal((2, _N_WAVES)) / _CORRELATION
    phases = rng.uniform(0, 2 * np.pi, _N_WAVES)
    return _SHADOW * np.sqrt(2 / _N_WAVES) * np.cos(cells @ waves + phases).sum(axis=1)


def received_power(U: np.ndarray) -> np.ndarray:
    """Compute the strongest power and the sum of the others in each cell: (n, q, 2).

    Inputs (n, 30) are the downtilts in degrees, then the transmitted powers.
    """
    (pattern, gains), below = _links()
    tilts, powers = U[:, :N_ANTENNAS, None], U[:, N_ANTENNAS:, None]
    maps = []
    for tilt, power in zip(tilts, powers):
        upright = -np.minimum(12 * ((below - tilt) / _WIDTHS[1]) ** 2, _FLOORS[1])
        # The sum of both patterns is bounded by the front-to-back ratio.
        antenna = _GAIN + np.maximum(pattern + upright, -_BACK)
        # Gains and losses in dB add up; powers of antennas add up in milliwatts.
        milliwatts = 10 ** ((power - 10 * np.log10(_CARRIERS) + antenna + gains) / 10)
        strongest = milliwatts.max(axis=0)
        others = np.maximum(milliwatts.sum(axis=0) - strongest, 1e-30)
        maps.append(10 * np.log10(np.stack([strongest, others], axis=-1)))
    return np.stack(maps)
