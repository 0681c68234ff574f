"""Transforms that corrupt images: noise, blur, weather and digital processing.

Notation: ``images`` of shape (n, h, w, c) have values from 0 to 1, ``rngs`` holds one RandomState
for each image, ``severity`` is 1 to 5; fields have shape (n, h, w). Results may leave [0, 1];
`corrupt_images` clips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
from scipy.ndimage import correlate, distance_transform_edt, gaussian_filter, map_coordinates

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


def contrast(images, rngs, severity):
    """Bring values closer to the mean of their image and channel."""
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean = images.mean(axis=(1, 2), keepdims=True)
    return mean + kept * (images - mean)


def saturate(images, rngs, severity):
    """Scale and shift the intensity of grey images."""
    # The first two severities of colour take most of it away: nothing to imitate.
    scale, shift = ((1.1, 0), (1.25, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    return scale * images + shift


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
    """Compress each channel of an image as JPEG, and decompress it."""
    from PIL import Image  # an optional library

    quality = (80, 65, 58, 50, 40)[severity - 1]
    pages = np.moveaxis(images, -1, 1)  # (n, c, h, w)
    decoded = np.empty_like(pages)
    for place in np.ndindex(pages.shape[:2]):
        file = BytesIO()
        code = np.round(255 * pages[place]).astype(np.uint8)
        Image.fromarray(code).save(file, "JPEG", quality=quality)
        decoded[place] = np.asarray(Image.open(file)) / 255
    return np.moveaxis(decoded, 1, -1)
