"""Convert training data to tensors, once for all networks that train on the same data."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from skuq import backend
from skuq.tables._training_data import TrainingData
from skuq.training._job import Split
from skuq.training._program_key import padded_rows, table_rows

# Tensors live as long as the data that they were made of.
_tensors: WeakKeyDictionary[TrainingData, dict[str, Any]] = WeakKeyDictionary()
_lock = threading.Lock()  # groups of members that start together share one copy


def data_tensors(data: TrainingData, splits: Sequence[Split] | None = None) -> dict[str, Any]:
    """Get the tables of a program: columns of x, y and weight joined, rows padded with zeros.

    Returns `table` (n_rows, inputs + outputs + 1), and `valid` if there are validation rows. With
    `splits`, each member has validation rows of its own: `valid` (n_members, n_valid, ..).
    """
    with _lock:
        shared = _tensors.get(data)
        if shared is None:
            shared = _tensors[data] = backend.to_tensors(_shared_tables(data))
    if splits is None:
        return shared
    tensors = {"table": shared["table"]}
    # Members train on rows of one table, but each has its own validation rows.
    rows = _join_columns(data.x, data.y, data.weight)
    valid = np.stack([rows[held_out] for _, held_out in splits])
    if valid.shape[-2]:
        tensors["valid"] = backend.to_tensors(_pad_rows(valid, padded_rows))
    return tensors


def _shared_tables(data: TrainingData) -> dict[str, np.ndarray]:
    tables = {"table": _pad_rows(_join_columns(data.x, data.y, data.weight), table_rows)}
    if len(data.x_valid):
        valid = _join_columns(data.x_valid, data.y_valid, data.weight_valid)
        tables["valid"] = _pad_rows(valid, padded_rows)
    return tables


def _join_columns(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])), y, weight[:, None]], axis=1)


def _pad_rows(table: np.ndarray, size: Callable[[int], int]) -> np.ndarray:
    n_rows = table.shape[-2]
    extra = [(0, 0)] * (table.ndim - 2) + [(0, size(n_rows) - n_rows), (0, 0)]
    return np.pad(table, extra)
