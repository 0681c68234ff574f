"""Argument types shared by the functions that select ensembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

#: Arrays (n_candidates, n_samples, ...) that an ensemble averages over its members.
Statistics: TypeAlias = Sequence[np.ndarray]
#: Function from averages of statistics to the loss (n, n_samples, ...) of each row.
Loss: TypeAlias = Callable[..., np.ndarray]
