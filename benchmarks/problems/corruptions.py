"""Corruptions of images and tables, in five severities."""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state, gen_batches

from problems import image_transforms

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

_IMAGE_CORRUPTIONS = {
    name: getattr(image_transforms, name) for name in VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS
}
_BLOCK = 1000  # images at a time: bounds the memory that float64 copies take


def corrupt_images(X, kind="validation", severity=3, *, random_state=None):
    """Corrupt each image, to study predictions under dataset shift.

    The 19 corruptions of Hendrycks and Dietterich, with the constants of CIFAR-10-C, in the two
    disjoint families of neural ensemble search: choose ensembles on images of the family
    "validation" and judge them on those of "test".

    Parameters
    ----------
    X : ndarray of shape (n, h, w, c)
        Images without colour, of whole numbers from 0 to 255 or of other numbers from 0 to 1.
    kind : str, default="validation"
        Name of a corruption, or a family of which each image gets one at random: "validation" and
        "test" mean `VALIDATION_CORRUPTIONS` and `TEST_CORRUPTIONS`.
    severity : int, default=3
        Severity from 1 (mild) to 5 (strong); 0 returns a copy.
    random_state : int, RandomState instance or None, default=None
        Generator that draws a seed for each image in turn, so that additional images do not
        change the results of earlier ones.

    Returns
    -------
    X_corrupted : ndarray of the shape and dtype of X
        Images in the same range; whole numbers are rounded.

    Notes
    -----
    Lengths are for images of 32 pixels and scale with ``min(h, w) / 32``, so that a severity
    looks about the same. Blurs (but "motion_blur") and the blocks of "pixelate" only grow, since
    small images would not change. JPEG's blocks have 8 pixels always. Unlike the original,
    which needs OpenCV, ImageMagick and photographs, "frost" adds fractal noise with bright
    ridges; "fog" draws fractal noise by its spectrum; "spatter" shades water by the distance
    from a drop's edge alone; "zoom_blur" and "snow" enlarge about the exact centre;
    "elastic_transform" interpolates once and displaces by normal noise of the same variance;
    "saturate" scales and shifts the intensity, with the same constants from severity 3 on, and by
    1.1 and 1.25 before.

    References
    ----------
    Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions
    and Perturbations", ICLR 2019. Zaidi et al., "Neural Ensemble Search for Uncertainty
    Estimation and Dataset Shift", NeurIPS 2021, appendix B.2: the two families.

    Examples
    --------
    >>> from problems import corrupt_images
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().images[..., None] / 16
    >>> corrupt_images(X, "test", 5, random_state=0).shape
    (1797, 8, 8, 1)
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
            corruption = _IMAGE_CORRUPTIONS[names[k]]
            results = corruption(images[these], [rngs[i] for i in these], severity)
            images[these] = results.clip(0, 1)
        values = high * images
        corrupted[block] = values.round() if X.dtype.kind in "iu" else values
    return corrupted


TABLE_CORRUPTIONS = ("noise", "missing", "scaling", "permutation")
# By severity, 1 to 5: standard deviation of the noise in units of the column's, share of the cells
# that are lost or permuted, and factor of the scaling.
_STDS = (0.1, 0.2, 0.4, 0.6, 1.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0)


def corrupt_table(X, kinds, severity, *, reference, random_state):
    """Corrupt a table of numbers (n, d); each row gets one of the kinds at random.

    Noise is normal. Lost cells get the mean of the column in the reference. Scaling multiplies or
    divides the distance of half of the cells from that mean by a factor. Permutation exchanges a
    share of the cells of each column.
    """
    kinds = TABLE_CORRUPTIONS if kinds == "all" else kinds
    rng = check_random_state(random_state)
    row_kinds = rng.randint(len(kinds), size=len(X))
    corrupted, n = X.copy(), len(X)
    for k, kind in enumerate(kinds):
        cells = row_kinds == k
        for column, seen in zip(corrupted.T, reference.T) if cells.any() else ():
            if kind == "noise":
                noise = _STDS[severity - 1] * np.std(seen) * rng.standard_normal(n)
                column[cells] += noise[cells]
            elif kind == "scaling":
                factor = _FACTORS[severity - 1]
                # Half of the cells keep their value, a quarter is stretched and a quarter shrunk.
                factors = rng.choice([1.0, 1.0, factor, 1 / factor], n)
                moved = cells & (factors != 1)
                mean = np.mean(seen)
                column[moved] = mean + factors[moved] * (column[moved] - mean)
            else:
                chosen = cells & (rng.uniform(size=n) < _SHARES[severity - 1])
                if kind == "missing":
                    column[chosen] = np.mean(seen)
                else:
                    chosen = np.flatnonzero(chosen)
                    column[chosen] = column[rng.permutation(chosen)]
    return corrupted
