"""Posterior draws of the regression function, as a function of the inputs.

Notation: n rows. One draw is one function, evaluated jointly at all rows and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Numbers of draws computed at a time. Hidden layers need about 30 times as many numbers.
_ENTRIES_PER_CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of a fitted regressor's function, at any inputs and in any array library.

    `arguments` holds everything that changes from fit to fit. `function` stays the same, so that
    a program compiled from it can be used again after every later fit.

    Parameters
    ----------
    function : callable
        ``(xp, arguments, X) -> draws`` of shape ``(n_draws, n, *output_shape)``, for X of shape
        (n, n_features) in the user's units; draws are in units of y. `xp` is `numpy` (arrays
        in float64) or `keras.ops` (tensors, all in float32 or all in float64). The same X gives
        the same draws, and a row's draws do not depend on the other rows.
    arguments : tuple of ndarray
        Everything that changes from fit to fit: weights, scalers, indices.
    key : hashable or None
        Identity of the function: posteriors with equal keys have the same function. None means
        that `function` works in NumPy only, so that there are no exact gradients.
    n_draws : int
        Number of draws, at least 1.
    output_shape : tuple of int
        Shape of one row's output: () for one number, (q,) or (q, d_s) for function values.
    joint : bool, default=True
        Whether draws are from the joint distribution over rows. False if only the marginal
        distributions are right, for example if a draw is the mean plus a multiple of the standard
        deviation, with the same multiple for all rows.

    Raises
    ------
    TypeError
        If `function` is not callable, or `key` is not hashable.
    ValueError
        If `n_draws` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import Posterior
    >>> slopes = np.array([1.0, 3.0])
    >>> lines = Posterior(
    ...     lambda xp, arguments, X: arguments[0][:, None] * X[:, 0],
    ...     arguments=(slopes,), key="lines", n_draws=2, output_shape=(),
    ... )
    >>> lines([[1.0], [2.0]])
    array([[1., 2.],
           [3., 6.]])
    """

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    key: Hashable | None
    n_draws: int
    output_shape: tuple[int, ...] = ()
    joint: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable. Got {self.function!r}.")
        hash(self.key)
        if self.n_draws < 1:
            raise ValueError(f"n_draws must be at least 1. Got {self.n_draws}.")
        arguments = tuple(np.asarray(argument) for argument in self.arguments)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "output_shape", tuple(self.output_shape))

    @np.errstate(under="ignore")
    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Evaluate the draws at the rows of X, in NumPy.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Inputs in the user's units.

        Returns
        -------
        ndarray of shape ``(n_draws, n, *output_shape)``
            Draws in float64, in units of y.

        Raises
        ------
        ValueError
            If X is not two-dimensional, or `function` returns another shape.
        """
        X = np.asarray(X, dtype="float64")
        if X.ndim != 2:
            raise ValueError(f"X must have shape (n, n_features). Got {X.shape}.")
        # Rows can be computed in chunks, since their draws do not depend on other rows.
        numbers = self.n_draws * math.prod(self.output_shape)
        step = max(1, _ENTRIES_PER_CHUNK // max(1, numbers))
        parts = []
        for start in range(0, max(1, len(X)), step):
            rows = X[start : start + step]
            draws = np.asarray(self.function(np, self.arguments, rows), dtype="float64")
            expected = (self.n_draws, len(rows), *self.output_shape)
            if draws.shape != expected:
                raise ValueError(
                    "function must return draws of shape (n_draws, n, *output_shape) = "
                    f"{expected}. Got {draws.shape}."
                )
            parts.append(draws)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
