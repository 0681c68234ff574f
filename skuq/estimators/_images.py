"""Images at the door of an estimator: as arrays of four axes, or as flat rows of a table."""

from __future__ import annotations

import math
from numbers import Integral

from skuq.tables import ImageScaling

__all__ = ["ImageInputsMixin"]


class ImageInputsMixin:
    """Lets (n, h, w, c) in, and flat rows whose `image_shape` the user gives.

    Inside, and for scikit-learn, rows are flat: ``n_features_in_ == h * w * c``. Must come
    before the target in the order of classes.
    """

    @property
    def _preprocess(self):
        return None if self._holds_images else super()._preprocess

    def _check_table(self, X, y):
        n_axes = getattr(X, "ndim", 2)
        self._holds_images = n_axes == 4 or self.image_shape is not None
        if self._holds_images and self.preprocess not in ("auto", None):
            raise ValueError(
                "`preprocess` is for tables: images are arrays of numbers. Leave it at its "
                f"default. Got {self.preprocess!r}."
            )
        if n_axes == 3:
            raise ValueError(
                f"X has three axes, {X.shape}. Images need one for channels, (n, h, w, 1), or "
                "come as flat rows with `image_shape=`."
            )
        shape = tuple(X.shape[1:]) if n_axes == 4 else None
        X, y = super()._check_table(X if shape is None else _flat(X), y)
        self.image_shape_ = self._shape_of_images(shape, X.shape[1])
        self._n_rows = X.shape[0]  # of sparse tables too
        return X, y

    def _shape_of_images(self, shape, n_features):
        """(h, w, c), or None for tables."""
        if self.image_shape is None:
            return shape
        given = tuple(self.image_shape)
        given = given if len(given) == 3 else (*given, 1)
        sound = len(given) == 3 and all(isinstance(n, Integral) and n > 0 for n in given)
        if not sound or math.prod(given) != n_features or shape not in (None, given):
            raise ValueError(
                "`image_shape` must be (height, width) or (height, width, channels) of images "
                f"with {n_features} numbers each. Got {self.image_shape!r}."
            )
        return given

    def _check_inputs(self, X):
        if getattr(X, "ndim", 2) == 4 and self.image_shape_ is not None:
            if tuple(X.shape[1:]) != self.image_shape_:
                raise ValueError(
                    f"X has images of shape {tuple(X.shape[1:])}, but "
                    f"{type(self).__name__} was fitted on {self.image_shape_}."
                )
            X = _flat(X)
        return super()._check_inputs(X)

    @property
    def _sees_images(self):
        """Whether networks get images; dense ones get flat rows."""
        takes = False if self._is_tabular else getattr(self._space(), "takes_images", None)
        if takes and self.image_shape_ is None:
            raise ValueError(
                f"`search_space={self.search_space!r}` is for images: X of shape "
                "(n, height, width, channels), or flat rows and `image_shape=`."
            )
        return self.image_shape_ is not None and takes is not False

    def _new_scaling(self):
        scaling = super()._new_scaling()
        if not self._sees_images:
            return scaling
        return ImageScaling(self.image_shape_, scaling.target_transform)


def _flat(images):
    return images.reshape(len(images), math.prod(images.shape[1:]))
