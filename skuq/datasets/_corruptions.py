"""Corruptions of images and of tables, in five severities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype
from sklearn.utils import check_array, check_random_state, gen_batches

from skuq.datasets import _image_transforms


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
    name: getattr(_image_transforms, name) for name in VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS
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

    See Also
    --------
    corrupt_table : Corruptions of tables.

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


TABLE_CORRUPTIONS = ("noise", "missing", "scaling", "permutation")

_TABLE_FAMILIES = {"all": TABLE_CORRUPTIONS}
_NUMERIC = ("noise", "scaling")  # kinds that change numeric columns only

# By severity, 1 to 5: standard deviation of the noise in units of the column's, share of the cells
# that are removed or permuted, and factor of the scaling.
_STDS = (0.1, 0.2, 0.4, 0.6, 1.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0)


def corrupt_table(
    X, kind="noise", severity=3, *, columns=None, reference=None, fill="mean", random_state=None
):
    """Corrupt a table's cells, to study predictions under dataset shift.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or DataFrame
        Table to corrupt. Missing cells stay missing. Columns of a DataFrame with a text,
        category or bool dtype hold categories; numbers are taken as quantities.
    kind : str or sequence of str, default="noise"
        Name of a corruption, or several, of which each row gets one at random; ``"all"``
        means all four. The five numbers below are those of the five severities:

        - ``"noise"``: adds a normal with 0.1, 0.2, 0.4, 0.6 or 1 times the standard
          deviation of the column;
        - ``"missing"``: a share of cells, 0.05, 0.1, 0.2, 0.3 or 0.5, is lost, see `fill`;
        - ``"scaling"``: in half of the cells, at random in each row, the distance from the
          mean of the column is multiplied or divided by 1.25, 1.5, 2, 3 or 4, as for sensors
          that drift or have other units. The cells are drawn row by row, since the result of
          one draw for the whole table would depend on luck;
        - ``"permutation"``: a share of each column's cells, as in ``"missing"``, is
          permuted. The distribution of the column stays, its relation to the others is lost.

        ``"noise"`` and ``"scaling"`` do not change columns of a DataFrame that are not numeric.
    severity : int, default=3
        Severity from 1 (mild) to 5 (strong); 0 returns a copy.
    columns : sequence of names or positions, default=None
        The columns to corrupt. By default all.
    reference : array-like of shape (n_reference, n_features) or DataFrame, default=None
        Table from which means, standard deviations and most frequent values are computed,
        preferably the training data. By default X.
    fill : {"mean", "nan"}, default="mean"
        Value of lost cells. "mean" imputes the mean of numbers and the most frequent of other
        values, so that any estimator can predict. "nan" sets NaN, which converts integers to
        float64 and bool to object.
    random_state : int, RandomState instance or None, default=None
        Seed of the corruptions.

    Returns
    -------
    X_corrupted : ndarray or DataFrame, as X
        Table with the same shape, columns, index and dtypes. Integers are rounded, and numbers
        clipped to the range of their dtype.

    Raises
    ------
    ValueError
        If an argument has another value, X does not have two dimensions, `reference` has
        other columns, or noise or scaling is asked for an array that is not numeric.

    See Also
    --------
    corrupt_images : Corruptions of images.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(12.0).reshape(4, 3)
    >>> corrupt_table(X, "missing", 5, fill="nan", random_state=0)
    array([[ 0., nan,  2.],
           [ 3.,  4., nan],
           [ 6., nan,  8.],
           [ 9., 10., 11.]])
    """
    severity = check_severity(severity)
    kinds = resolve_kinds(kind, TABLE_CORRUPTIONS, _TABLE_FAMILIES)
    if fill not in ("mean", "nan"):
        raise ValueError(f"`fill` must be 'mean' or 'nan'. Got {fill!r}.")
    frame = _as_frame(X, "X")
    reference = frame if reference is None else _as_frame(reference, "reference")
    if not frame.columns.equals(reference.columns):
        raise ValueError(
            "`reference` must have the columns of X. "
            f"Got {list(reference.columns)} for {list(frame.columns)}."
        )
    positions = _positions(frame, columns, named=isinstance(X, pd.DataFrame))
    is_numeric = all(_is_number(column) for _, column in frame.items())
    if not isinstance(X, pd.DataFrame) and set(kinds) & set(_NUMERIC) and not is_numeric:
        raise ValueError(
            "X must be an array of numbers for 'noise' and 'scaling', or a DataFrame, whose "
            f"other columns they leave alone. Got dtype {frame.dtypes.iloc[0]}."
        )
    corrupted = frame.copy()
    if severity:
        _corrupt_columns(corrupted, kinds, positions, reference, severity, fill, random_state)
    if isinstance(X, pd.DataFrame):
        return corrupted
    values = corrupted.to_numpy()
    return values if fill == "nan" else values.astype(np.asarray(X).dtype)


def _corrupt_columns(frame, kinds, positions, reference, severity, fill, random_state) -> None:
    """Corrupt columns at `positions` in place; each row gets one of the kinds at random."""
    rng = check_random_state(random_state)
    row_kinds = rng.randint(len(kinds), size=len(frame))
    for k, kind in enumerate(kinds):
        for j in positions:
            column, reference_column = _dense(frame.iloc[:, j]), _dense(reference.iloc[:, j])
            cells = (row_kinds == k) & column.notna().to_numpy()
            if cells.any() and (kind not in _NUMERIC or _is_number(column)):
                # Without a mean or a most frequent value there is nothing to corrupt by.
                is_number = _is_number(reference_column)
                if is_number and np.isinf(_numbers(reference_column)).any():
                    raise ValueError(f"Column {reference_column.name!r} has infinite values.")
                if reference_column.isna().all():
                    raise ValueError(f"`reference` has no value in column {column.name!r}.")
                corrupted = _TABLE_CORRUPTIONS[kind](
                    column, cells, reference_column, severity, fill, rng
                )
                dtype = frame.dtypes.iloc[j]
                if isinstance(dtype, pd.SparseDtype):
                    corrupted = corrupted.astype(pd.SparseDtype(corrupted.dtype, dtype.fill_value))
                frame.isetitem(j, corrupted)


def _dense(column: pd.Series) -> pd.Series:
    return column.sparse.to_dense() if isinstance(column.dtype, pd.SparseDtype) else column


# Each kind returns the column with some of the `cells` (n,) changed. Missing cells are not among
# them.


def _noise(column, cells, reference, severity, fill, rng):
    """Add normal noise to the cells."""
    std = _STDS[severity - 1] * np.nanstd(_numbers(reference))
    noise = std * rng.standard_normal(len(column))
    return _with_numbers(column, cells, _numbers(column) + noise)


def _scaling(column, cells, reference, severity, fill, rng):
    """Move some of the cells away from or towards the mean of the column, by a factor."""
    factor = _FACTORS[severity - 1]
    # Half of the cells keep their value, a quarter is stretched and a quarter shrunk.
    factors = rng.choice([1.0, 1.0, factor, 1 / factor], len(column))
    mean = np.nanmean(_numbers(reference))
    cells = cells & (factors != 1)
    return _with_numbers(column, cells, mean + factors * (_numbers(column) - mean))


def _missing(column, cells, reference, severity, fill, rng):
    """Lose a share of the cells, and fill them with the mean, the most frequent value or NaN."""
    cells = cells & (rng.uniform(size=len(column)) < _SHARES[severity - 1])
    if not cells.any():
        return column
    if fill == "nan":
        return column.mask(cells)
    if _is_number(column):
        return _with_numbers(column, cells, np.full(len(column), np.nanmean(_numbers(reference))))
    most = reference.mode().iloc[0]
    if isinstance(column.dtype, pd.CategoricalDtype) and most not in column.cat.categories:
        column = column.cat.add_categories([most])
    return column.mask(cells, most)


def _permutation(column, cells, reference, severity, fill, rng):
    """Permute a share of the cells among themselves."""
    cells = np.flatnonzero(cells & (rng.uniform(size=len(column)) < _SHARES[severity - 1]))
    order = np.arange(len(column))
    # Only the chosen cells exchange their values.
    order[cells] = rng.permutation(cells)
    return column.iloc[order].set_axis(column.index)


_TABLE_CORRUPTIONS = {
    "noise": _noise,
    "missing": _missing,
    "scaling": _scaling,
    "permutation": _permutation,
}


def _is_number(column: pd.Series) -> bool:
    return is_numeric_dtype(column.dtype) and not is_bool_dtype(column.dtype)


def _numbers(column: pd.Series) -> np.ndarray:
    return column.to_numpy(dtype="float64", na_value=np.nan)


def _with_numbers(column: pd.Series, cells: np.ndarray, numbers: np.ndarray) -> pd.Series:
    """Return the column with `numbers` in `cells`, in its own dtype and within its range."""
    dtype = np.dtype(getattr(column.dtype, "numpy_dtype", column.dtype))
    is_integer = is_integer_dtype(dtype)
    limits = np.iinfo(dtype) if is_integer else np.finfo(dtype)
    numbers = np.round(numbers[cells]) if is_integer else numbers[cells]
    with np.errstate(invalid="ignore", over="ignore"):  # such numbers are replaced below
        values = numbers.astype(dtype)
    # The limits of 64-bit integers are rounded in float64, so that clipping would not do.
    finite = np.isfinite(numbers)
    values[finite & (numbers >= float(limits.max))] = limits.max
    values[finite & (numbers <= float(limits.min))] = limits.min
    column = column.copy()
    column.iloc[cells] = values
    return column


def _as_frame(X, name: str) -> pd.DataFrame:
    """Return a table as a frame; `name` is that of the parameter."""
    if isinstance(X, pd.DataFrame):
        return X
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(
            f"{name} must be a DataFrame or an array (not a sparse one) of two dimensions. "
            f"Got {X.ndim}."
        )
    return pd.DataFrame(X)


def _positions(frame: pd.DataFrame, columns, named: bool) -> list[int]:
    """Return the positions of `columns`, given by name or position, in the table."""
    if columns is None:
        return list(range(frame.shape[1]))
    if isinstance(columns, (str, Integral)):
        columns = [columns]
    positions: list[int] = []
    for column in columns:
        if named and column in frame.columns:
            positions.extend(np.flatnonzero(frame.columns == column))
        elif isinstance(column, Integral) and -frame.shape[1] <= column < frame.shape[1]:
            positions.append(column % frame.shape[1])
        else:
            raise ValueError(
                f"`columns` must be names or positions of columns of X, {list(frame.columns)}. "
                f"Got {column!r}."
            )
    return sorted(set(positions))
