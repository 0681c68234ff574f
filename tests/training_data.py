"""Small tables to train on."""

import numpy as np

from skuq.tables import TrainingData

__all__ = ["make_data", "split_table"]


def split_table(n_train, *parts):
    """Use the first rows of ``x, y, weight`` for training and the others for validation."""
    return TrainingData(*(a[:n_train] for a in parts), *(a[n_train:] for a in parts))


def make_data(n_train=45, n_valid=20, n_outputs=1, seed=0):
    """Noisy sines of the first of three columns, with weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_train + n_valid, 3))
    y = np.sin(x[:, :1]) + 0.3 * rng.normal(size=(n_train + n_valid, n_outputs))
    return split_table(n_train, x, y, rng.uniform(0.2, 3, n_train + n_valid))
