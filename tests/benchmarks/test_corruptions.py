"""Corruptions of images and tables."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import corrupt_images, corrupt_table, corruptions
from problems.corruptions import TEST_CORRUPTIONS, VALIDATION_CORRUPTIONS
from tiers import slow

pytestmark = slow  # a problem of benchmarks only

NAMES = VALIDATION_CORRUPTIONS + TEST_CORRUPTIONS


def photographs(n, side=28):
    """Smooth shapes with a sharp edge, from 0 to 1: (n, side, side, 1)."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[:side, :side] / side
    a, b, phase, edge = rng.uniform([[2], [2], [0], [0.2]], [[12], [12], [6], [0.8]], (4, n))
    angles = np.multiply.outer(a, x) + np.multiply.outer(b, y) + phase[:, None, None]
    bright = np.where(x > edge[:, None, None], 0.2, 0.0)
    return (0.4 + 0.3 * np.sin(angles) + bright)[..., None]


@pytest.mark.parametrize("name", NAMES)
def test_corrupt_images_keeps_shape_dtype_and_range(name):
    images = photographs(6)
    for X in (images, np.round(255 * images).astype(np.uint8)):
        corrupted = corrupt_images(X, name, 5, random_state=0)
        assert corrupted.shape == X.shape and corrupted.dtype == X.dtype
        assert 0 <= corrupted.min() < corrupted.max() <= (255 if X.dtype == "uint8" else 1)
        assert not np.array_equal(corrupted, X)
        assert_array_equal(corrupted, corrupt_images(X, name, 5, random_state=0))
        assert_array_equal(corrupt_images(X, name, 0), X)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"saturate", "pixelate"}))
def test_corrupt_images_changes_more_with_severity(name):
    X = photographs(60)
    corrupted = [corrupt_images(X, name, s, random_state=0) for s in range(6)]
    assert (np.diff([np.abs(Z - X).mean() for Z in corrupted]) > 0).all()


def test_corrupt_images_of_families_gives_each_image_one_at_random(monkeypatch):
    X = photographs(1100, 8)  # more than one block
    monkeypatch.setattr(corruptions, "TEST_CORRUPTIONS", ("contrast", "brightness"))
    chosen = corrupt_images(X, "test", 5, random_state=0)
    lower = np.isclose(chosen, corrupt_images(X, "contrast", 5)).all(axis=(1, 2, 3))
    higher = np.isclose(chosen, corrupt_images(X, "brightness", 5)).all(axis=(1, 2, 3))
    assert (lower ^ higher).all()
    assert 480 < lower.sum() < 620  # 550, give or take 17
    # Images that follow change nothing.
    assert_array_equal(chosen[:40], corrupt_images(X[:40], "test", 5, random_state=0))


def test_corrupt_table_has_the_stated_severities():
    X, rows = np.random.RandomState(0).normal(size=(20_000, 2)), {"random_state": 0}
    for k, (std, share) in enumerate(((0.1, 0.05), (0.2, 0.1), (0.4, 0.2), (0.6, 0.3), (1, 0.5))):
        noise = corrupt_table(X, ["noise"], k + 1, reference=3 * X, **rows) - X
        assert_allclose(noise.std(), 3 * std * X.std(), rtol=0.025)
        lost = corrupt_table(X, ["missing"], k + 1, reference=X + 9, **rows) > 8
        assert_allclose(lost.mean(), share, atol=0.01)
    moved = corrupt_table(X, ["permutation"], 5, reference=X, **rows)
    assert_array_equal(np.sort(moved, axis=0), np.sort(X, axis=0))
    each = corrupt_table(X, "all", 5, reference=X, **rows)
    assert_allclose((each == X).mean(), 0.375, atol=0.02)  # none, and half of the other three
