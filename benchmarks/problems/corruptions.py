"""Corruptions of images, in five severities.

Notation: ``images`` of shape (n, h, w, c) have values from 0 to 1, ``rngs`` holds one RandomState
for each image, ``severity`` is 1 to 5. Results may leave [0, 1]; `corrupt_images` clips them.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate, gaussian_filter
from sklearn.utils import check_random_state, gen_batches

VALIDATION_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "saturate")
TEST_CORRUPTIONS = ("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "fog")
TEST_CORRUPTIONS += ("brightness", "contrast", "pixelate")
_BLOCK = 1000  # images at a time: bounds the memory that float64 copies take
_CIFAR_WIDTH = 32  # of images whose pixels the constants of CIFAR-10-C are


def corrupt_images(X, kind="validation", severity=3, *, random_state=None):
    """Corrupt each image, to study predictions under dataset shift.

    Eleven of the 19 corruptions of Hendrycks and Dietterich (ICLR 2019), with the constants of
    CIFAR-10-C, in the two disjoint families of neural ensemble search (appendix B.2): choose
    ensembles on images of the family "validation" and judge them on those of "test". Blurs and the
    blocks of "pixelate" grow with the image; "fog" draws fractal noise by its spectrum.

    Parameters
    ----------
    X : ndarray of shape (n, h, w, c)
        Images without colour, of whole numbers from 0 to 255 or of other numbers from 0 to 1.
    kind : str
        Name of a corruption, or of a family of which each image gets one at random.
    severity : int
        From 1 (mild) to 5 (strong); 0 returns a copy.
    random_state : int, RandomState instance or None
        Draws a seed for each image in turn: further images do not change earlier results.
    """
    families = {"validation": VALIDATION_CORRUPTIONS, "test": TEST_CORRUPTIONS}
    names = families.get(kind, (kind,))
    high = 255.0 if X.dtype.kind in "iu" else 1.0
    if severity == 0:
        return X.copy()
    seeds = check_random_state(random_state).randint(1, 2**31 - 1, size=len(X))
    corrupted = np.empty_like(X)
    for block in gen_batches(len(X), _BLOCK):
        images = X[block].astype("float64") / high
        # Each image has its own seed, so that its corruption does not depend on the others.
        rngs = [np.random.RandomState(seed) for seed in seeds[block]]
        chosen = np.array([rng.randint(len(names)) for rng in rngs])
        for k in np.unique(chosen):
            these = np.flatnonzero(chosen == k)
            corruption = globals()[names[k]]
            results = corruption(images[these], [rngs[i] for i in these], severity)
            images[these] = results.clip(0, 1)
        values = high * images
        corrupted[block] = values.round() if X.dtype.kind in "iu" else values
    return corrupted


def grown(length, images):
    """A length in pixels of a 32-pixel image; longer on larger images."""
    return length * max(min(images.shape[1:3]) / _CIFAR_WIDTH, 1.0)


def normals(rngs, shape):
    """Draw standard normals of shape (n, *shape), with one generator per image."""
    return np.stack([rng.standard_normal(shape) for rng in rngs])


def uniforms(rngs, low, high, shape=()):
    """Draw uniform numbers in [low, high) of shape (n, *shape), with one generator per image."""
    return np.stack([rng.uniform(low, high, shape) for rng in rngs])


def plasma(rngs, shape, decay):
    """Draw cloudy fractal noise (n, h, w) from 0 to 1.

    Amplitudes are divided by `decay` from octave to octave, as in the diamond-square algorithm: in
    two dimensions these are Fourier amplitudes of f**-(1 + log2(decay)).
    """
    h, w = shape
    frequency = np.hypot(np.fft.fftfreq(h)[:, None], np.fft.rfftfreq(w))
    frequency[0, 0] = np.inf  # no mean
    spectrum = np.fft.rfft2(normals(rngs, shape)) * frequency ** -(1 + np.log2(decay))
    field = np.fft.irfft2(spectrum, s=shape)
    field -= field.min(axis=(1, 2), keepdims=True)
    return field / np.maximum(field.max(axis=(1, 2), keepdims=True), np.finfo(float).tiny)


def area_means(n, n_coarse):
    """Make the matrix (n_coarse, n) that averages n pixels over coarser ones."""
    edges = np.linspace(0, n, n_coarse + 1)[:, None]
    fine = np.arange(n)
    overlap = np.minimum(edges[1:], fine + 1) - np.maximum(edges[:-1], fine)
    return np.maximum(overlap, 0) * n_coarse / n


def resample(images, weights):
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


def _gaussian(images, sigma):
    sigma = grown(sigma, images)
    return gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")


def defocus_blur(images, rngs, severity):
    """Average over a disk with a soft edge, as a lens out of focus does."""
    radius, edge = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[severity - 1]
    radius, edge, reach = (grown(v, images) for v in (radius, edge, 1.0))
    reach = int(np.ceil(reach))  # pixels of the soft edge outside the disk
    half = int(np.ceil(radius)) + reach
    offsets = np.arange(-half, half + 1)
    disk = (np.hypot(offsets[:, None], offsets) <= radius).astype(float)
    kernel = gaussian_filter(disk / disk.sum(), edge, radius=reach, mode="constant")
    return correlate(images, kernel[None, :, :, None], mode="mirror")


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


def pixelate(images, rngs, severity):
    """Replace pixels by means over coarser ones."""
    kept = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1] / grown(1, images)

    def means_and_back(n):  # by area, then the nearest, (n, n)
        n_coarse = max(1, int(n * kept))
        return area_means(n, n_coarse)[((np.arange(n) + 0.5) * n_coarse / n).astype(int)]

    return resample(images, means_and_back)
