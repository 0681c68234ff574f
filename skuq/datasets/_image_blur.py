"""Blurs of images, which lose fine detail. See `_image_noise` for the notation."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate, gaussian_filter

from skuq.datasets._image_fields import resample, scale_length, uniforms


def gaussian_blur(images, rngs, severity):
    """Apply a Gaussian filter; `sigma` is in pixels of a 32-pixel image."""
    return _gaussian(images, (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1])


def _gaussian(images: np.ndarray, sigma: float) -> np.ndarray:
    sigma = scale_length(sigma, images, shrink=False)
    return gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")


def defocus_blur(images, rngs, severity):
    """Average over a disk with a soft edge, as a lens out of focus does."""
    radius, edge = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[severity - 1]
    radius, edge, reach = (scale_length(v, images, shrink=False) for v in (radius, edge, 1.0))
    reach = int(np.ceil(reach))  # pixels of the soft edge outside the disk
    half = int(np.ceil(radius)) + reach
    offsets = np.arange(-half, half + 1)
    disk = (np.hypot(offsets[:, None], offsets) <= radius).astype(float)
    # The disk's own sum is 1, and its blur keeps that: `reach` leaves room for the soft edge.
    kernel = gaussian_filter(disk / disk.sum(), edge, radius=reach, mode="constant")
    return correlate(images, kernel[None, :, :, None], mode="mirror")


def glass_blur(images, rngs, severity):
    """Blur, replace each pixel by a random near one above or to the left, and blur again."""
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    n, h, w, _ = images.shape
    reach = max(1, round(scale_length(1, images, shrink=False)))
    each = np.arange(n)[:, None, None]
    row, column = np.mgrid[:h, :w]
    images = _gaussian(images, sigma)
    for _ in range(rounds):
        # Values come from above and left only, as in the original code.
        up, left = np.stack([rng.randint(-reach, 1, (2, h, w)) for rng in rngs], axis=1)
        images = images[each, (row + up).clip(0, h - 1), (column + left).clip(0, w - 1)]
    return _gaussian(images, sigma)


def motion_blur(images, rngs, severity):
    """Blur along a line within 45 degrees of the horizontal."""
    reach, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    return blur_along(images, uniforms(rngs, -45, 45), reach, sigma)


def blur_along(images: np.ndarray, degrees: np.ndarray, reach: float, sigma: float) -> np.ndarray:
    """Blur along a line of length `reach` from each pixel, with half a Gaussian as weights.

    The line has its own angle for each image; `reach` and `sigma` are in pixels of a 32-pixel
    image. Points on the line are a quarter of a pixel apart and interpolated linearly between
    the four pixels around them, so that motions shorter than a pixel have an effect.
    """
    reach, sigma = scale_length(reach, images), scale_length(sigma, images)
    steps = np.arange(0, reach + 0.125, 0.25)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    half = int(np.ceil(reach)) + 1
    blurred = np.empty_like(images)
    for image, angle, out in zip(images, np.radians(degrees), blurred):
        # Positions in the kernel; rows of an image grow downwards.
        y, x = half - steps * np.sin(angle), half + steps * np.cos(angle)
        kernel = np.zeros((2 * half + 1, 2 * half + 1))
        top, left = np.floor(y).astype(int), np.floor(x).astype(int)
        for down in (0, 1):
            for right in (0, 1):
                # Each point's weight is shared by the four pixels around it, as in interpolation.
                share = (1 - abs(y - top - down)) * (1 - abs(x - left - right))
                np.add.at(kernel, (top + down, left + right), weights * share)
        correlate(image, kernel[:, :, None], output=out, mode="nearest")
    return blurred


def zoom_blur(images, rngs, severity):
    """Average the image and its enlargements by up to 25 per cent, in steps of one."""
    largest = (6, 11, 15, 20, 25)[severity - 1]
    total = 2 * images  # the image itself, and its enlargement by 0 per cent
    for percent in range(1, largest + 1):
        total += zoom_in(images, 1 + percent / 100)
    return total / (largest + 2)


def zoom_in(images: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the middle of images (n, h, w, c) to their size."""

    def interpolation(n: int) -> np.ndarray:  # linear, (n, n)
        centre, pixels = (n - 1) / 2, np.arange(n)
        sources = centre + (pixels - centre) / factor
        return np.maximum(0, 1 - np.abs(sources[:, None] - pixels))

    return resample(images, interpolation)
