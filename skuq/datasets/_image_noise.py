"""Noise corruptions of images: every value changes independently.

Notation, here and in the other corruptions: ``images`` of shape (n, h, w, c) have values from 0 to
1, ``rngs`` holds one RandomState for each image, ``severity`` is 1 to 5. Results may leave [0, 1];
`corrupt_images` clips them.
"""

from __future__ import annotations

import numpy as np

from skuq.datasets._image_fields import normals, uniforms


def gaussian_noise(images, rngs, severity):
    """Add a normal of constant standard deviation."""
    std = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return images + std * normals(rngs, images.shape[1:])


def shot_noise(images, rngs, severity):
    """Draw photon counts from Poisson distributions; `photons` is the expected count at 1."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return np.stack([rng.poisson(photons * image) for rng, image in zip(rngs, images)]) / photons


def impulse_noise(images, rngs, severity):
    """Set a share of the values to 0 or 1 (salt and pepper)."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    u = uniforms(rngs, 0, 1, images.shape[1:])
    return np.where(u < share, u < share / 2, images)


def speckle_noise(images, rngs, severity):
    """Add a normal whose standard deviation is proportional to the value."""
    std = (0.06, 0.10, 0.12, 0.16, 0.20)[severity - 1]
    return images * (1 + std * normals(rngs, images.shape[1:]))
