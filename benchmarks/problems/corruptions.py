"""The corruptions of images that neural ensemble search is judged on, in five severities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_array, check_random_state, gen_batches

from problems import image_transforms


def check_severity(severity: Any) -> int:
    """Return a whole number from 0 to 5, or raise ValueError."""
    if not isinstance(severity, Integral) or not 0 <= int(severity) <= 5:
        raise ValueError(
            "`severity` must be a whole number from 0 (no change) to 5 (most severe). "
            f"Got {severity!r}."
        )
    return int(severity)


def resolve_kinds(
    kind, known: Sequence[str], families: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the names of the corruptions in `kind`: a family, several names or one name."""
    if isinstance(kind, str):
        names = tuple(families.get(kind, (kind,)))
    else:
        names = tuple(kind) if isinstance(kind, Iterable) else ()
    if not names or any(name not in known for name in names):
        raise ValueError(
            f"`kind` must be a family ({', '.join(map(repr, families))}), a corruption's name "
            f"({', '.join(map(repr, known))}) or a sequence of such names. Got {kind!r}."
        )
    return names


VALIDATION_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
TEST_CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)

_IMAGE_FAMILIES = {"validation": VALIDATION_CORRUPTIONS, "test": TEST_CORRUPTIONS}
_IMAGE_CORRUPTIONS = {
    name: getattr(image_transforms, name) for name in VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS
}
_BLOCK = 1000  # images at a time: bounds the memory that float64 copies take


def corrupt_images(
    X, kind="validation", severity=3, *, image_shape=None, value_range=None, random_state=None
):
    """Corrupt each image, to study predictions under dataset shift.

    The 19 corruptions of Hendrycks and Dietterich, with the constants of CIFAR-10-C, in the two
    disjoint families of neural ensemble search: choose ensembles on images of the family
    "validation" and judge them on those of "test".

    Parameters
    ----------
    X : array-like of shape (n, h, w, c), (n, h, w) or (n, h * w * c)
        Images; flat rows need `image_shape`. Images with three channels are in colour; with
        any other number of channels each channel is a grey image.
    kind : str or sequence of str, default="validation"
        Name of a corruption, or several, of which each image gets one at random;
        ``"validation"`` and ``"test"`` mean `VALIDATION_CORRUPTIONS` and `TEST_CORRUPTIONS`.
    severity : int, default=3
        Severity from 1 (mild) to 5 (strong); 0 returns a copy.
    image_shape : tuple (h, w) or (h, w, c), default=None
        Shape of one image; needed if X has two dimensions.
    value_range : tuple (low, high), default=None
        Values of black and white. By default (0, 255) for integers; for floats (0, 1) if all
        of X is within it, else the smallest and the largest value of X. Give it for
        standardised images, otherwise the results depend on which images are corrupted
        together.
    random_state : int, RandomState instance or None, default=None
        Generator that draws a seed for each image in turn, so that additional images do not
        change the results of earlier ones.

    Returns
    -------
    X_corrupted : ndarray of the shape and dtype of X
        Images within `value_range`; integers are rounded.

    Raises
    ------
    ValueError
        If an argument has another value, or X has values that are not finite or lie outside
        `value_range`.
    ImportError
        If Pillow is not installed ("jpeg_compression"), or scikit-image ("saturate" of colour
        images). The extra ``skuq[images]`` installs both.

    Notes
    -----
    Lengths are for images of 32 pixels and scale with ``min(h, w) / 32``, so that a severity
    looks about the same. Blurs (but "motion_blur") and the blocks of "pixelate" only grow, since
    small images would not change. JPEG's blocks have 8 pixels always. Unlike the original,
    which needs OpenCV, ImageMagick and photographs, "frost" adds fractal noise with bright
    ridges; "fog" draws fractal noise by its spectrum; "spatter" shades water by the distance
    from a drop's edge alone; "zoom_blur" and "snow" enlarge about the exact centre;
    "elastic_transform" interpolates once and displaces by normal noise of the same variance;
    "saturate" scales and shifts the intensity of images without colour, with the same
    constants from severity 3 on, and by 1.1 and 1.25 before.

    References
    ----------
    Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions
    and Perturbations", ICLR 2019. Zaidi et al., "Neural Ensemble Search for Uncertainty
    Estimation and Dataset Shift", NeurIPS 2021, appendix B.2: the two families.

    Examples
    --------
    >>> from problems import corrupt_images
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data / 16
    >>> corrupt_images(X, "test", 5, image_shape=(8, 8), random_state=0).shape
    (1797, 64)
    """
    severity = check_severity(severity)
    names = resolve_kinds(kind, tuple(_IMAGE_CORRUPTIONS), _IMAGE_FAMILIES)
    X = check_array(X, dtype="numeric", ensure_2d=False, allow_nd=True, input_name="X")
    if X.dtype.kind not in "iuf":
        raise ValueError(f"X must be numbers. Got dtype {X.dtype}.")
    shape = _image_shape(X, image_shape)
    low, high = _value_range(X, value_range)
    if severity == 0:
        return X.copy()
    seeds = check_random_state(random_state).randint(1, 2**31 - 1, size=len(X))
    corrupted = np.empty_like(X)
    for block in gen_batches(len(X), _BLOCK):
        images = X[block].astype("float64").reshape(-1, *shape)  # (n, h, w, c), from 0 to 1
        images -= low
        images /= high - low
        # Each image has its own seed, so that its corruption does not depend on the others.
        rngs = [np.random.RandomState(seed) for seed in seeds[block]]
        chosen = np.array([rng.randint(len(names)) for rng in rngs])
        for k in np.unique(chosen):
            these = np.flatnonzero(chosen == k)
            corruption = _IMAGE_CORRUPTIONS[names[k]]
            results = corruption(images[these], [rngs[i] for i in these], severity)
            images[these] = results.clip(0, 1)
        values = low + (high - low) * images.reshape(X[block].shape)
        corrupted[block] = values.round() if X.dtype.kind in "iu" else values
    # float32 rounds to either side of a bound.
    return np.clip(corrupted, *np.array([low, high]).astype(X.dtype), out=corrupted)


def _image_shape(X, image_shape) -> tuple[int, int, int]:
    """Return the shape (h, w, c) of the images in X."""
    given = None if image_shape is None else tuple(image_shape)
    if given is not None and (
        len(given) not in (2, 3) or any(not isinstance(v, Integral) or v < 1 for v in given)
    ):
        raise ValueError(
            f"`image_shape` must be (h, w) or (h, w, c), of whole numbers. Got {image_shape!r}."
        )
    if X.ndim == 2:
        if given is None:
            raise ValueError("`image_shape` is needed: X has rows of pixels, not images.")
        if np.prod(given) != X.shape[1]:
            raise ValueError(
                f"`image_shape` must have as many values as X has columns, {X.shape[1]}. "
                f"Got {given}, hence {np.prod(given)}."
            )
        shape = given
    elif X.ndim in (3, 4):
        shape = X.shape[1:]
        if given is not None and given != shape:
            raise ValueError(f"`image_shape` must be that of X, {shape}. Got {given}.")
    else:
        raise ValueError(f"X must have 2, 3 or 4 dimensions. Got {X.ndim}.")
    return (*shape, 1) if len(shape) == 2 else shape


def _value_range(X, value_range) -> tuple[float, float]:
    """Return the values of black and white; check that X lies between them."""
    smallest, largest = X.min(), X.max()
    if value_range is not None:
        low, high = value_range
    elif X.dtype.kind in "iu":
        # Whole numbers are taken for bytes, fractions within [0, 1] for intensities.
        low, high = 0, 255
    elif smallest >= 0 and largest <= 1:
        low, high = 0, 1
    else:
        low, high = smallest, largest
    low, high = float(low), float(high)
    if not low < high:
        raise ValueError(
            f"`value_range` must have its lower end first. Got ({low:g}, {high:g})"
            + (" from a constant X: pass it." if value_range is None else ".")
        )
    limits = np.iinfo(X.dtype) if X.dtype.kind in "iu" else np.finfo(X.dtype)
    if low < limits.min or high > limits.max:
        raise ValueError(
            f"`value_range`, ({low:g}, {high:g}), does not fit into {X.dtype}. Pass a smaller "
            "one, or X in another dtype."
        )
    if smallest < low or largest > high:
        raise ValueError(
            f"X must be within `value_range`, ({low:g}, {high:g}), pass another or clip X. "
            f"Got values from {smallest:g} to {largest:g}."
        )
    return low, high
