"""Types of arguments that the records of predictive distributions share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

#: Default of fields for which `__post_init__` puts an array.
FILLED_IN: Any = None
#: Source of random numbers, as `numpy.random.default_rng` takes it.
RandomSource: TypeAlias = np.random.Generator | int | None
#: Factor of standard deviations, one for all outputs or (m,).
Factor: TypeAlias = float | np.ndarray
#: Rows to select.
RowIndex: TypeAlias = slice | np.ndarray
