import sys
import warnings
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.ndimage import affine_transform, gaussian_filter

from skuq.datasets import corrupt_images, corrupt_table
from skuq.datasets._corruptions import TABLE_CORRUPTIONS, TEST_CORRUPTIONS, VALIDATION_CORRUPTIONS
from skuq.datasets._image_transforms import smooth_normals

NAMES = VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS
SHAPES = [(8, 8, 1), (28, 28, 1), (32, 32, 3)]
GREY = np.full((40, 32, 32, 1), 0.5)


def photographs(n, shape):
    """Smooth shapes with a few sharp edges, from 0 to 1: (n, h, w, c)."""
    h, w, c = shape
    rng = np.random.RandomState(0)
    y, x = np.mgrid[:h, :w] / min(h, w)
    images = np.empty((n, *shape))
    for image in images:
        for k in range(c):
            a, b, phase = rng.uniform(2, 12, 2).tolist() + [rng.uniform(0, 6)]
            image[..., k] = 0.4 + 0.3 * np.sin(a * x + b * y + phase)
        top, left = rng.uniform(0.1, 0.5, 2)
        image[(y > top) & (y < top + 0.4) & (x > left) & (x < left + 0.4)] = rng.uniform(0, 1, c)
    return images


def codes(images):
    return np.round(255 * images).astype(np.uint8)


def detail(images):
    """Energy of the differences between neighbours."""
    return np.mean(np.diff(images, axis=1) ** 2) + np.mean(np.diff(images, axis=2) ** 2)


def test_families_are_disjoint_and_whole():
    assert (len(VALIDATION_CORRUPTIONS), len(TEST_CORRUPTIONS), len(set(NAMES))) == (4, 15, 19)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_keeps_shape_dtype_and_range(name, shape):
    images = photographs(6, shape)
    for X in (images, images.astype(np.float32), codes(images), 5 * images - 2):
        corrupted = corrupt_images(X, name, 5, random_state=0)
        assert corrupted.shape == X.shape
        assert corrupted.dtype == X.dtype
        low, high = (X.min(), X.max()) if X.min() < 0 else (0, 255 if X.dtype == "uint8" else 1)
        assert low <= corrupted.min() < corrupted.max() <= high
        assert not np.array_equal(corrupted, X)
        assert_array_equal(corrupted, corrupt_images(X, name, 5, random_state=0))
        untouched = corrupt_images(X, name, 0)
        assert_array_equal(untouched, X)
        assert not np.shares_memory(untouched, X)


# Colour fades first, then strengthens; a stronger affine map before stronger distortions;
# water before mud; small flakes before large ones; pixels that happen to divide the image;
# ice that darkens what it does not whiten; blurs that even out a shuffle of pixels.
UNEVEN = {"saturate", "elastic_transform", "spatter", "snow", "pixelate", "frost", "glass_blur"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(set(NAMES) - UNEVEN))
def test_severity_grows(name, shape):
    X = photographs(60, shape)
    change = [np.abs(corrupt_images(X, name, s, random_state=0) - X).mean() for s in range(6)]
    assert (np.diff(change) > 0).all()


@pytest.mark.parametrize("name", sorted(UNEVEN - {"elastic_transform"}))
def test_mild_is_milder_than_severe(name):
    X = 0.4 * photographs(60, (28, 28, 1))
    change = [np.abs(corrupt_images(X, name, s, random_state=0) - X).mean() for s in (1, 5)]
    assert 0 < change[0] < change[1]


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blurs_lose_detail(name, shape):
    X = photographs(50, shape)
    left = [detail(corrupt_images(X, name, s, random_state=0)) for s in range(6)]
    assert (np.diff(left) < 0).all()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"jpeg_compression"}))
def test_severity_means_about_the_same_whatever_the_size(name):
    # The same pictures at 32 and 64 pixels.
    small, large = (photographs(30, (side, side, 1)) for side in (32, 64))
    change = [np.abs(corrupt_images(X, name, 4, random_state=0) - X).mean() for X in (small, large)]
    assert 0.7 < change[1] / change[0] < 1.4


def test_gaussian_noise_has_its_std(global_random_seed):
    for severity, std in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1):
        Z = corrupt_images(GREY, "gaussian_noise", severity, random_state=global_random_seed)
        # 40 960 draws: the relative standard error of a std is 0.0035.
        assert_allclose(Z.std(), std, rtol=0.015)
        assert_allclose(Z.mean(), 0.5, atol=5 * std / 200)


def test_speckle_noise_grows_with_the_value(global_random_seed):
    for level in (0.25, 0.5):
        Z = corrupt_images(
            np.full_like(GREY, level), "speckle_noise", 5, random_state=global_random_seed
        )
        assert_allclose(Z.std(), 0.2 * level, rtol=0.015)


def test_shot_noise_is_poisson(global_random_seed):
    for severity, photons in enumerate((500, 250, 100, 75, 50), 1):
        Z = corrupt_images(GREY, "shot_noise", severity, random_state=global_random_seed)
        assert_allclose(photons * Z, np.round(photons * Z), atol=1e-9)
        assert_allclose(Z.mean(), 0.5, rtol=0.005)
        # Variance of counts is their mean; five standard errors are 0.035. The brightest
        # counts are cut off at 1, five standard deviations away at the least.
        assert_allclose(Z.var(), 0.5 / photons, rtol=0.035)


def test_impulse_noise_is_salt_and_pepper(global_random_seed):
    Z = corrupt_images(GREY, "impulse_noise", 5, random_state=global_random_seed)
    assert set(np.unique(Z)) == {0, 0.5, 1}
    # 1434 each of 40 960 are expected, give or take 37.
    assert_allclose([(Z == 0).mean(), (Z == 1).mean()], 0.035, atol=5 * 37 / 40_960)


def test_gaussian_blur_is_scipys():
    X = photographs(4, (64, 64, 3))
    for severity, sigma in enumerate((0.4, 0.6, 0.7, 0.8, 1.0), 1):
        for images, factor in ((X, 2), (X[:, ::2, ::2], 1), (X[:, ::8, ::8], 1)):
            expected = [
                gaussian_filter(image, (factor * sigma, factor * sigma, 0), mode="nearest")
                for image in images
            ]
            assert_allclose(corrupt_images(images, "gaussian_blur", severity), expected, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.4, 0.5, 1.7])
def test_smooth_noise_has_the_spread_that_another_blur_leaves(sigma):
    def spread(s):  # std of blurred white noise: the root of the sum of squared weights
        point = np.zeros((101, 101))
        point[50, 50] = 1
        return np.sqrt(np.sum(gaussian_filter(point, s, mode="constant") ** 2))

    one, other = (smooth_normals([np.random.default_rng(0)], (8, 8), 1.0, s) for s in (sigma, 1.0))
    assert_allclose(one / other, spread(sigma) / spread(1.0), rtol=1e-11)


def test_defocus_blur_is_a_mean_over_a_soft_disk():
    point = np.zeros((1, 31, 31, 1))
    point[0, 15, 15] = 1
    spread = corrupt_images(point, "defocus_blur", 5)[0, ..., 0]
    # A radius of 1.5 takes in the nine nearest pixels; their edge is blurred by 0.1 pixel.
    expected = np.zeros((31, 31))
    expected[14:17, 14:17] = 1 / 9
    assert_allclose(spread, expected, atol=1e-12)
    assert_allclose(corrupt_images(GREY, "defocus_blur", 3), GREY)


def test_motion_blur_keeps_light_and_goes_one_way(global_random_seed):
    point = np.zeros((20, 64, 64, 1))
    point[:, 32, 32] = 1
    spread = corrupt_images(point, "motion_blur", 5, random_state=global_random_seed)[..., 0]
    assert_allclose(spread.sum(axis=(1, 2)), 1)
    y, x = np.mgrid[:64, :64] - 32
    centre = np.stack([(spread * x).sum((1, 2)), (spread * y).sum((1, 2))])
    # The mean of half a normal of 5 pixels, cut at 18 and taken in quarters, start included.
    steps = np.arange(0, 18.1, 0.25)
    expected = np.average(steps, weights=np.exp(-0.5 * (steps / 5) ** 2))
    assert_allclose(np.hypot(*centre), expected, rtol=1e-9)
    assert (np.abs(np.degrees(np.arctan(centre[1] / centre[0]))) <= 45).all()


def test_zoom_blur_is_the_mean_of_enlargements():
    X = photographs(2, (28, 32, 3))
    total = 2 * X
    for factor in 1 + np.arange(1, 7) / 100:
        offset = (np.array([27, 31]) / 2) * (1 - 1 / factor)
        total += affine_transform(X, (1, 1 / factor, 1 / factor, 1), (0, *offset, 0), order=1)
    assert_allclose(corrupt_images(X, "zoom_blur", 1), total / 8, atol=1e-12)


def test_glass_blur_takes_values_of_neighbours():
    X = np.arange(100.0).reshape(1, 10, 10)
    # A blur of 0.05 pixels changes nothing.
    Z = corrupt_images(X, "glass_blur", 1, random_state=0)
    row, column = np.mgrid[:10, :10]
    up, left = row - np.round(Z[0]) // 10, column - np.round(Z[0]) % 10
    assert set(np.unique(up)) == set(np.unique(left)) == {0, 1}


def test_brightness_adds_to_the_value():
    X = photographs(5, (16, 16, 1)) * 0.6
    assert_allclose(corrupt_images(X, "brightness", 5), X + 0.3)


@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_colours_change_as_in_hsv(name):
    color = pytest.importorskip("skimage.color")
    X = photographs(3, (16, 16, 3))
    X[0, :4] = 0.5  # grey
    X[0, 4:6] = 0
    hsv = color.rgb2hsv(X)
    if name == "brightness":
        hsv[..., 2] = np.clip(hsv[..., 2] + 0.2, 0, 1)
    else:
        hsv[..., 1] = np.clip(2 * hsv[..., 1] + 0.1, 0, 1)
    assert_allclose(corrupt_images(X, name, 4), color.hsv2rgb(hsv), atol=1e-12)


def test_saturate_scales_grey():
    X = photographs(5, (16, 16, 1))
    assert_allclose(corrupt_images(X, "saturate", 4), np.clip(2 * X + 0.1, 0, 1))


def test_contrast_keeps_the_mean():
    X = photographs(5, (16, 16, 3))
    Z = corrupt_images(X, "contrast", 3)
    mean = X.mean(axis=(1, 2), keepdims=True)
    assert_allclose(Z.mean(axis=(1, 2), keepdims=True), mean)
    assert_allclose(Z - mean, 0.4 * (X - mean), atol=1e-12)


def test_pixelate_takes_means_by_area():
    transform = pytest.importorskip("skimage.transform")
    X = photographs(2, (32, 28, 3))
    coarse = transform.resize_local_mean(X, (2, 20, 18, 3))
    rows, columns = (np.arange(32) + 0.5) * 20 / 32, (np.arange(28) + 0.5) * 18 / 28
    expected = coarse[:, rows.astype(int)][:, :, columns.astype(int)]
    # Lengths of this image count from its shorter side, which is below 32.
    assert_allclose(corrupt_images(X, "pixelate", 5), expected, atol=1e-12)


@pytest.mark.parametrize("n_channels", [1, 2, 3])
def test_jpeg_compression_is_pillows(n_channels):
    Image = pytest.importorskip("PIL.Image")
    X = codes(photographs(3, (30, 20, n_channels)))
    for image, result in zip(X, corrupt_images(X, "jpeg_compression", 2)):
        pages = [image] if n_channels == 3 else np.moveaxis(image, -1, 0)
        results = [result] if n_channels == 3 else np.moveaxis(result, -1, 0)
        for page, decoded in zip(pages, results):
            file = BytesIO()
            Image.fromarray(np.ascontiguousarray(page)).save(file, "JPEG", quality=65)
            assert_array_equal(decoded, np.asarray(Image.open(file)))


def test_fog_gives_up_contrast():
    X = photographs(20, (28, 28, 1))
    Z = corrupt_images(X, "fog", 2, random_state=0)
    brightest = X.max(axis=(1, 2, 3), keepdims=True)
    clouds = (Z * (brightest + 0.5) / brightest - X) / 0.5
    assert_allclose(clouds.min(axis=(1, 2)), 0, atol=1e-12)
    assert_allclose(clouds.max(axis=(1, 2)), 1, atol=1e-12)


def test_elastic_transform_at_first_is_affine():
    # An affine map takes a plane to a plane; edges, where the image is mirrored, aside.
    y, x = np.mgrid[:64, :64] / 64
    X = np.tile(0.2 + 0.3 * y + 0.2 * x, (20, 1, 1))
    bends = []
    for severity in range(1, 6):
        Z = corrupt_images(X, "elastic_transform", severity, random_state=0)[:, 16:-16, 16:-16]
        assert np.abs(Z - X[:, 16:-16, 16:-16]).mean() > 0.001
        bends.append(np.abs(np.diff(Z, 2, axis=1)).mean())
    assert bends[0] < 1e-12
    assert (np.diff(bends) > 0).all()


@pytest.mark.parametrize("severity", [2, 5])
def test_spatter_weighs_the_same_at_any_size(severity):
    weight = []
    for side in (8, 14, 32, 64):
        X = np.full((150, side, side), 0.4)
        change = corrupt_images(X, "spatter", severity, random_state=0) - X
        assert (change >= 0).all() if severity == 2 else (change <= 0).all()
        weight.append(np.abs(change).mean())
    assert_allclose(weight, weight[2], rtol=0.4)
    assert weight[2] > 0.005


def test_families_give_each_image_one_at_random():
    X = photographs(300, (8, 8, 1))
    chosen = corrupt_images(X, ("contrast", "brightness"), 5, random_state=0)
    lower = np.isclose(chosen, corrupt_images(X, "contrast", 5)).all(axis=(1, 2, 3))
    higher = np.isclose(chosen, corrupt_images(X, "brightness", 5)).all(axis=(1, 2, 3))
    assert (lower ^ higher).all()
    assert 110 < lower.sum() < 190  # 150, give or take 8.7
    for family in ("validation", "test"):
        assert corrupt_images(X, family, random_state=0).shape == X.shape


@pytest.mark.parametrize("kind", ["validation", "test"])
def test_an_image_does_not_depend_on_those_that_follow(kind):
    X = codes(photographs(1100, (8, 8, 1)))  # more than one block
    whole = corrupt_images(X, kind, random_state=3)
    assert_array_equal(whole[:40], corrupt_images(X[:40], kind, random_state=3))
    assert not np.array_equal(whole, corrupt_images(X, kind, random_state=4))


def test_layouts_agree():
    X = photographs(10, (12, 16, 3))
    expected = corrupt_images(X, "test", random_state=0)
    rows = corrupt_images(X.reshape(10, -1), "test", image_shape=(12, 16, 3), random_state=0)
    assert_array_equal(rows.reshape(X.shape), expected)
    grey = X[..., 0]
    expected = corrupt_images(grey[..., None], "test", random_state=0)[..., 0]
    assert_array_equal(corrupt_images(grey, "test", random_state=0), expected)
    rows = corrupt_images(grey.reshape(10, -1), "test", image_shape=(12, 16), random_state=0)
    assert_array_equal(rows.reshape(grey.shape), expected)


def test_value_range_is_black_and_white():
    X = photographs(10, (8, 8, 1))
    expected = corrupt_images(X, "test", random_state=0)
    Z = corrupt_images(4 * X - 1, "test", value_range=(-1, 3), random_state=0)
    assert_allclose(Z, 4 * expected - 1, atol=1e-2)  # JPEG's whole numbers may tip over


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "rain"}, "'gaussian_noise'.*Got 'rain'"),
        ({"kind": ["fog", "rain"]}, "`kind`"),
        ({"kind": []}, "`kind`"),
        ({"severity": 6}, "`severity`.*Got 6"),
        ({"severity": -1}, "`severity`"),
        ({"severity": 1.5}, "`severity`"),
        ({"X": np.zeros((2, 65)), "image_shape": (8, 8)}, "columns, 65. Got .*64"),
        ({"X": np.zeros((2, 64))}, "`image_shape` is needed"),
        ({"image_shape": (4, 16)}, "must be that of X"),
        ({"image_shape": (8.0, 8)}, "whole numbers"),
        ({"X": np.zeros(64)}, "2, 3 or 4 dimensions"),
        ({"X": np.full((2, 8, 8), np.nan)}, "NaN"),
        ({"X": np.zeros((2, 8, 8), bool)}, "bool"),
        ({"X": np.full((2, 8, 8), 300)}, "from 300 to 300"),
        ({"X": np.full((2, 8, 8), 3.0)}, "constant"),
        ({"value_range": (1, 0)}, "lower end first"),
    ],
)
def test_bad_images(change, message):
    with pytest.raises(ValueError, match=message):
        corrupt_images(**{"X": np.zeros((2, 8, 8)), **change})


@pytest.mark.parametrize(
    "package, name, shape",
    [("PIL", "jpeg_compression", (8, 8, 1)), ("skimage.color", "saturate", (8, 8, 3))],
)
def test_missing_packages_are_named(monkeypatch, package, name, shape):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "skuq\[images\]"'):
        corrupt_images(photographs(1, shape), name)


# Tables


def table(n=200):
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(
        {
            "real": rng.normal(5, 2, n),
            "single": rng.normal(0, 1, n).astype(np.float32),
            "count": rng.poisson(50, n),
            "byte": rng.randint(0, 256, n).astype(np.uint8),
            "text": rng.choice(["a", "b", "c"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n)),
            "yes": rng.uniform(size=n) < 0.3,
            "nullable": pd.array(rng.randint(0, 9, n), dtype="Int64"),
        },
        index=np.arange(n) + 1000,
    )
    frame.loc[1003:1010, ["real", "nullable"]] = np.nan
    return frame


@pytest.mark.parametrize("severity", range(6))
@pytest.mark.parametrize("kind", (*TABLE_CORRUPTIONS, "all"))
def test_frames_keep_their_form(kind, severity):
    X = table()
    before = X.copy()
    Z = corrupt_table(X, kind, severity, random_state=0)
    pd.testing.assert_frame_equal(X, before)
    assert (Z.dtypes == X.dtypes).all()
    assert Z.index.equals(X.index) and Z.columns.equals(X.columns)
    assert Z.isna().equals(X.isna())
    pd.testing.assert_frame_equal(Z, corrupt_table(X, kind, severity, random_state=0))
    same = (Z == X) | X.isna()
    assert same.all(axis=None) == (severity == 0)
    if kind in ("noise", "scaling"):
        assert same[["text", "category", "yes"]].all(axis=None)
    elif severity == 5:
        assert not same.all().any()  # every column has changed somewhere


def test_arrays_and_frames_agree():
    X = np.random.RandomState(0).normal(size=(50, 4))
    for kind in (*TABLE_CORRUPTIONS, "all"):
        Z = corrupt_table(X, kind, random_state=0)
        assert isinstance(Z, np.ndarray)
        assert_array_equal(Z, corrupt_table(pd.DataFrame(X), kind, random_state=0))
        for dtype in (np.float32, np.int16):
            cast = (10 * X).astype(dtype)
            assert corrupt_table(cast, kind, random_state=0).dtype == dtype


def test_table_noise_has_its_std(global_random_seed):
    X = np.random.RandomState(0).normal(size=(20_000, 2)) * [3, 0.5]
    for severity, share in enumerate((0.1, 0.2, 0.4, 0.6, 1.0), 1):
        noise = corrupt_table(X, "noise", severity, random_state=global_random_seed) - X
        # The relative standard error of a std of 20 000 draws is 0.005.
        assert_allclose(noise.std(axis=0), share * X.std(axis=0), rtol=0.025)
        assert_allclose(noise.mean(axis=0), 0, atol=5 * share * 3 / 141)
    noise = corrupt_table(X, "noise", 5, reference=7 * X, random_state=global_random_seed) - X
    assert_allclose(noise.std(axis=0), 7 * X.std(axis=0), rtol=0.025)


@pytest.mark.parametrize("fill", ["mean", "nan"])
def test_missing_cells_are_a_share(fill, global_random_seed):
    X = np.random.RandomState(0).normal(size=(10_000, 3)) + [0, 5, 9]
    reference = X + 100
    for severity, share in enumerate((0.05, 0.1, 0.2, 0.3, 0.5), 1):
        Z = corrupt_table(
            X,
            "missing",
            severity,
            reference=reference,
            fill=fill,
            random_state=global_random_seed,
        )
        missing = np.isnan(Z) if fill == "nan" else np.isclose(Z, reference.mean(axis=0))
        assert_array_equal(Z[~missing], X[~missing])
        std = np.sqrt(share * (1 - share) / 10_000)
        assert_allclose(missing.mean(axis=0), share, atol=5 * std)


def test_missing_texts_become_the_most_frequent():
    X = pd.DataFrame({"text": ["a"] * 60 + ["b"] * 40, "count": [1] * 50 + [4] * 50})
    Z = corrupt_table(X, "missing", 5, random_state=0)
    assert (Z["text"] == "a").sum() > 60
    assert (Z["text"][:60] == "a").all()
    assert set(Z["count"]) == {1, 2, 4}  # the mean 2.5 rounds to even
    holes = corrupt_table(table(), "missing", 5, fill="nan", random_state=0)
    assert holes.isna().any().all()
    assert holes["count"].dtype == "float64"
    assert holes["category"].dtype == "category"


def test_scaling_is_about_the_mean(global_random_seed):
    X = np.random.RandomState(0).normal(size=(20_000, 2)) + [0, 50]
    for severity, factor in enumerate((1.25, 1.5, 2, 3, 4), 1):
        Z = corrupt_table(X, "scaling", severity, random_state=global_random_seed)
        ratio = (Z - X.mean(axis=0)) / (X - X.mean(axis=0))
        for value, share in ((1, 0.5), (factor, 0.25), (1 / factor, 0.25)):
            assert_allclose(np.isclose(ratio, value).mean(axis=0), share, atol=0.018)
        # The factor does not depend on the value: the mean stays, but for luck.
        assert_allclose(Z.mean(axis=0), X.mean(axis=0), atol=5 * factor / 141)


def test_permutation_keeps_the_values_of_each_column(global_random_seed):
    X = table(2000)
    Z = corrupt_table(X, "permutation", 5, random_state=global_random_seed)
    for name in X:
        counts = [frame[name].value_counts().sort_index() for frame in (X, Z)]
        pd.testing.assert_series_equal(*counts)
    # All values of "real" differ, so nearly all cells that are drawn change.
    drawn = 1000 / 2000 * (2000 - X["real"].isna().sum())
    assert abs(((Z["real"] != X["real"]) & X["real"].notna()).sum() - drawn) < 5 * 22.4
    numbers = np.arange(3000.0).repeat(2).reshape(3000, 2)
    Z = corrupt_table(numbers, "permutation", 5, random_state=global_random_seed)
    # A quarter of the pairs stays together.
    assert_allclose((Z[:, 0] == Z[:, 1]).mean(), 0.25, atol=5 * 0.008)


def test_strings_of_arrays():
    X = np.array([["a", "b"], ["a", "c"], ["d", "c"]] * 10)
    Z = corrupt_table(X, ["missing", "permutation"], 5, random_state=0)
    assert Z.dtype == X.dtype
    assert set(np.unique(Z)) == set("abcd")
    assert not np.array_equal(Z, X)


def test_each_row_has_one_kind():
    X = np.random.RandomState(0).normal(size=(4000, 6))
    Z = corrupt_table(X, "all", 5, random_state=0)
    noisy = (np.abs(Z - X) > 0).all(axis=1) & ~np.isin(Z, X).any(axis=1)
    assert 0.2 < noisy.mean() < 0.35  # a quarter, and rows all of whose cells are scaled
    untouched_cells = (Z == X).mean()  # none, a half, a half and a half of the four
    assert_allclose(untouched_cells, 0.375, atol=0.02)


def test_columns_by_name_and_position():
    X = table()
    by_name = corrupt_table(X, "permutation", 5, columns=["real", "text"], random_state=0)
    changed = [name for name in X if not by_name[name].equals(X[name])]
    assert changed == ["real", "text"]
    by_position = corrupt_table(X, "permutation", 5, columns=[4, 0], random_state=0)
    pd.testing.assert_frame_equal(by_name, by_position)
    Z = corrupt_table(np.zeros((9, 3)) + np.arange(9)[:, None], columns=[-1], random_state=0)
    assert_array_equal(Z[:, 0], np.arange(9))
    assert (Z[:, 2] != np.arange(9)).all()


def test_columns_without_spread_or_values_survive():
    X = np.column_stack([np.full(5, 2.0), np.full(5, np.nan)])
    for kind in (*TABLE_CORRUPTIONS, "all"):
        assert_array_equal(corrupt_table(X, kind, 5, random_state=0), X)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "rust"}, "'noise', 'missing', 'scaling', 'permutation'.*Got 'rust'"),
        ({"severity": 6}, "`severity`"),
        ({"fill": "zero"}, "`fill`.*'zero'"),
        ({"X": np.zeros(4)}, "two dimensions. Got 1"),
        ({"columns": [2]}, "`columns`.*Got 2"),
        ({"columns": ["a"]}, "`columns`.*Got 'a'"),
        ({"reference": np.zeros((3, 3))}, "`reference` must have the columns"),
        ({"reference": np.full((3, 2), np.nan)}, "`reference` has no value in column 0"),
        ({"X": np.full((4, 2), "a")}, "array of numbers"),
        ({"X": np.zeros((4, 2), bool), "kind": "scaling"}, "array of numbers"),
    ],
)
def test_bad_tables(change, message):
    with pytest.raises(ValueError, match=message):
        corrupt_table(**{"X": np.zeros((4, 2)), **change})


def test_ranges_that_a_dtype_does_not_hold():
    images = np.arange(64, dtype="int8").reshape(1, 8, 8, 1)
    with pytest.raises(ValueError, match=r"`value_range`, \(0, 255\), does not fit into int8"):
        corrupt_images(images, "contrast", 3)
    fits = corrupt_images(images, "contrast", 3, value_range=(0, 127))
    assert fits.dtype == np.int8 and np.ptp(fits) > 0


def test_infinite_columns_and_odd_kinds():
    X = np.arange(20.0).reshape(10, 2)
    X[3, 1] = np.inf
    with pytest.raises(ValueError, match="Column 1 has infinite values"):
        corrupt_table(X, "noise", 3)
    for kind in (None, 3, []):
        with pytest.raises(ValueError, match="`kind` must be"):
            corrupt_table(X, kind, 3)


def test_missing_category_that_only_the_reference_has():
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b"] * 30)})
    other = pd.DataFrame({"c": pd.Categorical(["z"] * 60)})
    filled = corrupt_table(frame, "missing", 5, reference=other, random_state=0)
    assert "z" in set(filled["c"]) and isinstance(filled["c"].dtype, pd.CategoricalDtype)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "Int64", "float16"])
@pytest.mark.parametrize("kind", ["scaling", "noise"])
def test_numbers_beyond_their_dtype_become_its_limits(dtype, kind):
    plain = np.dtype(dtype.lower())
    limits = np.iinfo(plain) if plain.kind in "iu" else np.finfo(plain)
    values = np.repeat(np.array([limits.min, limits.max, 0], dtype=plain), 50)
    frame = pd.DataFrame({"x": pd.Series(values, dtype=dtype)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = corrupt_table(frame, kind, 5, random_state=0)["x"]
    assert found.dtype == frame["x"].dtype
    found = found.to_numpy(dtype=plain)
    assert np.isfinite(found).all() and (found != values).any()
    # Three standard deviations of noise are less than the distance between the limits.
    if kind == "scaling":
        assert (found[values == limits.max] > 0).all()
        assert limits.min == 0 or (found[values == limits.min] < 0).all()


@pytest.mark.parametrize("kind", TABLE_CORRUPTIONS)
def test_sparse_columns_stay_sparse(kind):
    dense = np.repeat([0.0, 0.0, 0.0, 1.0], 25)
    frame = pd.DataFrame({"x": pd.arrays.SparseArray(dense, fill_value=0.0)})
    found = corrupt_table(frame, kind, 5, random_state=0)["x"]
    wanted = corrupt_table(pd.DataFrame({"x": dense}), kind, 5, random_state=0)["x"]
    assert found.dtype == frame["x"].dtype
    assert_array_equal(found.sparse.to_dense(), wanted)
