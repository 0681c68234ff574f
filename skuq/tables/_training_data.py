"""Arrays of one training run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Standardised rows to train on and to validate on, in float32.

    Attributes
    ----------
    x : ndarray of shape (n_train, n_features)
        Inputs of the training rows.
    y : ndarray of shape (n_train, n_outputs)
        Targets of the training rows.
    weight : ndarray of shape (n_train,)
        Sample weights of the training rows, with mean 1.
    x_valid, y_valid, weight_valid : ndarray
        The same for the validation rows, of which there can be none.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    x_valid: np.ndarray
    y_valid: np.ndarray
    weight_valid: np.ndarray

    def __post_init__(self) -> None:
        factors = {}
        for name in self.__dataclass_fields__:
            array = np.asarray(getattr(self, name), dtype="float64")
            if name.startswith("weight") and len(array):
                largest = array.max()
                array = array / largest  # first, because a sum of huge weights overflows
                factors[name] = largest * array.mean()
                array = array / array.mean()
            object.__setattr__(self, name, np.ascontiguousarray(array, dtype="float32"))
        object.__setattr__(self, "_factors", factors)

    @classmethod
    def without_validation(cls, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> TrainingData:
        """Make data without validation rows."""
        return cls(x, y, weight, x[:0], y[:0], weight[:0])

    def with_empty_row(self) -> TrainingData:
        """Copy the data, with one more training row of zeros and of weight 0 at the end."""
        arrays = [getattr(self, name) for name in self.__dataclass_fields__]
        padded = [np.concatenate([a, np.zeros_like(a[:1])]) for a in arrays[:3]]
        return TrainingData(*padded, *arrays[3:])

    def split_rows(self, train: np.ndarray, valid: np.ndarray) -> TrainingData:
        """Split the training rows, given by positions, into training and validation rows."""
        rows = self.x, self.y, self.weight
        return TrainingData(*(a[train] for a in rows), *(a[valid] for a in rows))

    def all_rows(self) -> TrainingData:
        """Use all rows for training, with the weights that were given to the constructor."""
        factors = vars(self)["_factors"]
        weights = [
            getattr(self, name).astype("float64") * factors.get(name, 1.0)
            for name in ("weight", "weight_valid")
        ]
        return TrainingData.without_validation(
            np.concatenate([self.x, self.x_valid]),
            np.concatenate([self.y, self.y_valid]),
            np.concatenate(weights),
        )
