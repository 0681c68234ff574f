"""Corruptions of images by weather and drops on the lens. See `_image_noise` for the notation."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate, distance_transform_edt, gaussian_filter

from skuq.datasets._image_blur import blur_along, zoom_in
from skuq.datasets._image_fields import (
    area_means,
    luminance,
    normals,
    plasma,
    scale_length,
    smooth_normals,
    uniforms,
)

_ICE = np.array([0.85, 0.93, 1.0])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


def _colour_layer(layer: np.ndarray, colour: np.ndarray, n_channels: int) -> np.ndarray:
    """Colour a layer (n, h, w) to (n, h, w, c); it is grey unless there are three channels."""
    return layer[..., None] * (colour if n_channels == 3 else luminance(colour))


def snow(images, rngs, severity):
    """Add streaks of flakes, and whiten the scene."""
    mean, std, size, threshold, reach, sigma, kept = (
        (0.10, 0.2, 1.00, 0.60, 8, 3, 0.95),
        (0.10, 0.2, 1.00, 0.50, 10, 4, 0.90),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.90),
        (0.25, 0.3, 2.25, 0.60, 12, 6, 0.85),
        (0.30, 0.3, 1.25, 0.65, 14, 12, 0.80),
    )[severity - 1]
    layer = mean + std * normals(rngs, images.shape[1:3])[..., None]  # (n, h, w, 1)
    layer = zoom_in(layer, max(scale_length(size, images), 1.0))
    flakes = np.where(layer < threshold, 0, np.minimum(layer, 1))
    flakes = blur_along(flakes, uniforms(rngs, -135, -45), reach, sigma)
    whiter = np.maximum(images, 1.5 * luminance(images) + 0.5)
    # The layer is added twice, once turned by 180 degrees.
    return kept * images + (1 - kept) * whiter + flakes + flakes[:, ::-1, ::-1]


def frost(images, rngs, severity):
    """Add ice on the window: crystals along the ridges of fractal noise, over a haze."""
    kept, added = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    shape = images.shape[1:3]
    haze = plasma(rngs, shape, decay=2.5)
    ridges = 1 - np.abs(2 * plasma(rngs, shape, decay=1.7) - 1)
    ice = 0.4 * haze + 0.8 * haze * ridges**2
    return kept * images + added * _colour_layer(ice, _ICE, images.shape[-1])


def fog(images, rngs, severity):
    """Add clouds of fractal noise, and reduce the contrast."""
    added, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1.0, 2), (1.5, 1.75))[severity - 1]
    clouds = plasma(rngs, images.shape[1:3], decay)[..., None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    return (images + added * clouds) * brightest / (brightest + added)


def brightness(images, rngs, severity):
    """Add to the value in HSV (the largest channel); keep hue and saturation."""
    added = (0.05, 0.10, 0.15, 0.20, 0.30)[severity - 1]
    value = images.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + added, 1)
    # All channels in proportion; black has no hue and turns grey.
    share = np.divide(images, value, out=np.ones_like(images), where=value > 0)
    return share * brighter


def spatter(images, rngs, severity):
    """Add drops on the lens: clear water up to severity 3, then mud."""
    # The mean, standard deviation and blur of noise, the threshold above which a drop is, and the
    # brightness of the water or the blur at the edge of the mud.
    mean, std, smoothing, threshold, brightness_or_blur = (
        (0.62, 0.1, 0.7, 0.70, 0.5),
        (0.65, 0.1, 0.8, 0.70, 0.5),
        (0.65, 0.3, 1.0, 0.69, 0.5),
        (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[severity - 1]
    # In images below 32 pixels drops would be smaller than a pixel. There, they are drawn on a
    # grid of 32 pixels and averaged over the image's pixels.
    scale = scale_length(1, images, shrink=False)
    h, w = images.shape[1:3]
    shape = tuple(round(side * scale / scale_length(1, images)) for side in (h, w))
    rows, columns = area_means(shape[0], h), area_means(shape[1], w).T
    liquid = mean + std * smooth_normals(rngs, shape, scale * smoothing, smoothing)
    drops = liquid >= threshold
    if severity <= 3:
        shine = np.stack([_shine(drop, scale) for drop in drops]) * drops * liquid
        shine /= np.maximum(shine.max(axis=(1, 2), keepdims=True), np.finfo(float).tiny)
        water = rows @ (brightness_or_blur * shine) @ columns
        return images + _colour_layer(water, _WATER, images.shape[-1])
    blur = scale * brightness_or_blur
    mud = gaussian_filter(drops.astype(float), (0, blur, blur), mode="nearest")
    mud[mud < 0.8] = 0
    mud = rows @ mud @ columns
    return images * (1 - mud[..., None]) + _colour_layer(mud, _MUD, images.shape[-1])


def _shine(drop: np.ndarray, scale: float) -> np.ndarray:
    """Compute the light (h, w) from the upper left on drops.

    The height of a drop is the distance from its edge.
    """
    height = distance_transform_edt(drop)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    light = np.maximum(correlate(height, emboss, mode="nearest"), 0)
    return gaussian_filter(light, 0.7 * scale)
