"""Argument types shared by the predictive distributions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

#: Default of fields that `__post_init__` fills with an array.
FILLED_IN: Any = None
#: Argument of `numpy.random.default_rng`.
RandomSource: TypeAlias = np.random.Generator | int | None
#: Factor of standard deviations: one for all outputs, or (m,).
Factor: TypeAlias = float | np.ndarray
#: Rows to select.
RowIndex: TypeAlias = slice | np.ndarray
