"""Corruptions of images by digital processing. See `_image_noise` for the notation."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from scipy.ndimage import map_coordinates

from skuq.datasets._image_fields import area_means, resample, scale_length, smooth_normals, uniforms

_MISSING = '{} needs {}. Install it with `pip install "skuq[images]"`.'


def contrast(images, rngs, severity):
    """Bring values closer to the mean of their image and channel."""
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean = images.mean(axis=(1, 2), keepdims=True)
    return mean + kept * (images - mean)


def saturate(images, rngs, severity):
    """Scale and shift the saturation in HSV, or the intensity of images without colour."""
    if images.shape[-1] != 3:
        # The first two severities of colour take most of it away: nothing to imitate.
        scale, shift = ((1.1, 0), (1.25, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
        return scale * images + shift
    scale, shift = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    try:
        from skimage.color import hsv2rgb, rgb2hsv
    except ImportError as error:
        raise ImportError(_MISSING.format("'saturate' of colour images", "scikit-image")) from error
    hsv = rgb2hsv(images)
    hsv[..., 1] = np.clip(scale * hsv[..., 1] + shift, 0, 1)
    return hsv2rgb(hsv)


def elastic_transform(images, rngs, severity):
    """Move pixels by a random affine map and small smooth displacements."""
    # In pixels of a 32-pixel image: displacement before smoothing, smoothing, affine jitter.
    amplitude, smoothing, jitter = (
        (0.0, 0.0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    )[severity - 1]
    n, h, w, c = images.shape
    moves = scale_length(jitter, images) * uniforms(rngs, -1, 1, (3, 2))
    places = np.stack(np.mgrid[:h, :w], axis=-1)  # (h, w, 2)
    if amplitude:
        # Uniform noise in [-1, 1], as blurred there, has a standard deviation 1/sqrt(3).
        std = scale_length(amplitude, images) / np.sqrt(3)
        sigma = scale_length(smoothing, images)
        displacements = [smooth_normals(rngs, (h, w), sigma, smoothing) for _ in "yx"]
        places = places + std * np.stack(displacements, axis=-1)  # (n, h, w, 2)
    places = np.broadcast_to(places, (n, h, w, 2)).reshape(n, h * w, 2)
    sources = _affine(moves, h, w, places)  # (n, h * w, 2)
    which = np.repeat(np.arange(n), h * w)
    coordinates = (which, *sources.reshape(-1, 2).T)
    moved = [
        map_coordinates(images[..., k], coordinates, order=1, mode="reflect") for k in range(c)
    ]
    return np.stack(moved, axis=-1).reshape(images.shape)


def _affine(moves: np.ndarray, h: int, w: int, places: np.ndarray) -> np.ndarray:
    """Apply an affine map per image to places (n, m, 2).

    `moves` (n, 3, 2) are the displacements of three corners of a centred square.
    """
    third = min(h, w) / 3
    corners = np.array([(1, 1), (1, -1), (-1, -1)]) * third + np.array([h, w]) / 2
    corners = np.column_stack([corners, np.ones(3)])
    # The 3 x 2 map of each image for which corner @ map = move.
    maps = np.linalg.solve(corners, moves)  # (n, 3, 2), for homogeneous coordinates
    return places + places @ maps[:, :2] + maps[:, 2:]


def pixelate(images, rngs, severity):
    """Replace pixels by means over coarser ones."""
    kept = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1] / scale_length(1, images, shrink=False)

    def means_and_back(n: int) -> np.ndarray:  # by area, then the nearest, (n, n)
        n_coarse = max(1, int(n * kept))
        nearest = ((np.arange(n) + 0.5) * n_coarse / n).astype(int)
        return area_means(n, n_coarse)[nearest]

    return resample(images, means_and_back)


def jpeg_compression(images, rngs, severity):
    """Compress each image as JPEG, and decompress it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(_MISSING.format("'jpeg_compression'", "Pillow")) from error
    quality = (80, 65, 58, 50, 40)[severity - 1]
    # Without three channels each is a grey image of its own.
    is_rgb = images.shape[-1] == 3
    pages = images[:, None] if is_rgb else np.moveaxis(images, -1, 1)  # (n, m, h, w[, 3])
    decoded = np.empty_like(pages)
    for place in np.ndindex(pages.shape[:2]):
        file = BytesIO()
        code = np.round(255 * pages[place]).astype(np.uint8)
        Image.fromarray(code).save(file, "JPEG", quality=quality)
        decoded[place] = np.asarray(Image.open(file)) / 255
    return decoded[:, 0] if is_rgb else np.moveaxis(decoded, 1, -1)
