"""Helpers of several corruptions of images: lengths, random textures, resampling.

Notation: ``rngs`` is a list of n RandomStates, one for each image; fields have shape
(n, h, w), images (n, h, w, c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.ndimage import gaussian_filter

Rngs = Sequence[np.random.RandomState]

# The constants of CIFAR-10-C are pixels of images this wide.
_CIFAR_WIDTH = 32


def scale_length(length: float, images: np.ndarray, *, shrink: bool = True) -> float:
    """Convert a length in pixels of a 32-pixel image to pixels of images (n, h, w, ..).

    With ``shrink=False`` the length is never reduced: blurs are about a pixel wide, and a fraction
    of a pixel would not change a small image.
    """
    ratio = min(images.shape[1:3]) / _CIFAR_WIDTH
    return length * (ratio if shrink else max(ratio, 1.0))


def normals(rngs: Rngs, shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard normals of shape (n, *shape), with one generator per image."""
    return np.stack([rng.standard_normal(shape) for rng in rngs])


def uniforms(rngs: Rngs, low: float, high: float, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Draw uniform numbers in [low, high) of shape (n, *shape), with one generator per image."""
    return np.stack([rng.uniform(low, high, shape) for rng in rngs])


def smooth_normals(
    rngs: Rngs, shape: tuple[int, int], sigma: float, like_sigma: float
) -> np.ndarray:
    """Draw white noise (n, h, w), blurred by a Gaussian of `sigma` pixels.

    Its standard deviation is the one that a blur of `like_sigma` leaves, so that the
    same thresholds and amplitudes suit a texture drawn coarser or finer.
    """
    field = gaussian_filter(normals(rngs, shape), (0, sigma, sigma), mode="wrap")
    return field * _blurred_std(like_sigma) / _blurred_std(sigma)


def _blurred_std(sigma: float) -> float:
    """Compute the standard deviation of white noise in the plane after a Gaussian blur."""
    # The blur is a product of two one-dimensional kernels k: the variance of blurred white noise
    # is (sum k^2)^2, and its root the sum of squares.
    point = np.zeros(2 * int(4 * sigma + 1) + 1)
    point[len(point) // 2] = 1
    return float(np.sum(gaussian_filter(point, sigma, mode="constant") ** 2))


def plasma(rngs: Rngs, shape: tuple[int, int], decay: float) -> np.ndarray:
    """Draw cloudy fractal noise (n, h, w) from 0 to 1.

    The amplitude of each octave is that of the octave below divided by `decay`, as in the
    diamond-square algorithm. In two dimensions these are Fourier amplitudes of
    f**-(1 + log2(decay)).
    """
    h, w = shape
    frequency = np.hypot(np.fft.fftfreq(h)[:, None], np.fft.rfftfreq(w))
    frequency[0, 0] = np.inf  # no mean
    # White noise with its amplitudes scaled by a power of the frequency.
    spectrum = np.fft.rfft2(normals(rngs, shape)) * frequency ** -(1 + np.log2(decay))
    field = np.fft.irfft2(spectrum, s=shape)
    field -= field.min(axis=(1, 2), keepdims=True)
    return field / np.maximum(field.max(axis=(1, 2), keepdims=True), np.finfo(float).tiny)


def luminance(colour: np.ndarray) -> np.ndarray:
    """Compute the luminance (..., 1) of RGB by ITU-R 601; of other channels, their mean."""
    if colour.shape[-1] == 3:
        return (colour @ [0.299, 0.587, 0.114])[..., None]
    return colour.mean(axis=-1, keepdims=True)


def area_means(n: int, n_coarse: int) -> np.ndarray:
    """Make the matrix (n_coarse, n) that averages n pixels over coarser ones."""
    edges = np.linspace(0, n, n_coarse + 1)[:, None]
    fine = np.arange(n)
    overlap = np.minimum(edges[1:], fine + 1) - np.maximum(edges[:-1], fine)
    return np.maximum(overlap, 0) * n_coarse / n


def resample(images: np.ndarray, weights: Callable[[int], np.ndarray]) -> np.ndarray:
    """Multiply the rows, then the columns, of images by the matrix ``weights(n)`` of n pixels."""
    for axis in (1, 2):
        lines = np.moveaxis(images, axis, -1) @ weights(images.shape[axis]).T
        images = np.moveaxis(lines, -1, axis)
    return images
