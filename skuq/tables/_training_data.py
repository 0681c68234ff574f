"""The arrays of one training run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["TrainingData"]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Standardised rows to train on and to validate on, in float32.

    Attributes
    ----------
    x : ndarray of shape (n_train, n_features)
    y : ndarray of shape (n_train, n_outputs)
    weight : ndarray of shape (n_train,)
        Sample weights with mean 1.
    x_valid, y_valid, weight_valid : ndarray
        The same for the validation rows, of which there may be none.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    x_valid: np.ndarray
    y_valid: np.ndarray
    weight_valid: np.ndarray

    def __post_init__(self):
        for name in self.__dataclass_fields__:
            array = np.asarray(getattr(self, name), dtype="float64")
            if name.startswith("weight") and len(array):
                array = array / array.max()  # first: a sum of huge weights overflows
                array = array / array.mean()
            object.__setattr__(self, name, np.ascontiguousarray(array, dtype="float32"))
