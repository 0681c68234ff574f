"""Functions drawn from a Bayesian neural network's prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.utils import check_array, gen_batches

from skuq._random import random_generator

_HIDDEN_UNITS = (1024, 2048, 1024)
_PRIOR_STD = {1: 0.114, 2: 0.102, 5: 0.092, 10: 0.084, 20: 0.070}  # NOMU, Table 9
_BATCH_ROWS = 1024  # the widest layer of a batch takes 8 MB


@dataclass(frozen=True, eq=False)
class BNNFunction:
    """Fixed ReLU network as a noiseless function on [-1, 1]^d.

    X (n, d) gives y (n,), in float64 but computed in float32: right to about six digits. `layers`
    are pairs of a kernel (n_in, n_out) and a bias (n_out,) in float32, inputs first.
    """

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    minimum: ClassVar[None] = None
    minimizer: ClassVar[None] = None

    def __call__(self, X):
        X = check_array(X, dtype=np.float32, input_name="X")
        if X.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} column(s). Got {X.shape[1]}.")
        batches = [self._forward(X[rows]) for rows in gen_batches(len(X), _BATCH_ROWS)]
        return np.concatenate(batches).astype(np.float64)

    @property
    def n_features(self):
        return len(self.layers[0][0])

    @property
    def bounds(self):
        return np.tile([-1.0, 1.0], (self.n_features, 1))

    def _forward(self, hidden: np.ndarray) -> np.ndarray:
        *below, (kernel, bias) = self.layers
        for inner_kernel, inner_bias in below:
            hidden = np.maximum(hidden @ inner_kernel + inner_bias, 0)
        return (hidden @ kernel + bias)[:, 0]


def make_bnn_function(
    n_features=1, *, hidden_units=_HIDDEN_UNITS, prior_std=None, random_state=None
):
    """Draw a function from a Bayesian ReLU network with independent N(0, prior_std^2) parameters.

    `prior_std=None` takes the paper's Table 9 for the default widths and 1, 2, 5, 10 or 20
    features; otherwise the value at which the variance of the function over uniform inputs is 1,
    averaged over draws, in the limit of wide layers (Cho and Saul, NeurIPS 2009, Eq. 6). The paper
    chose its table for a mean variance of about 1. With the printed values it is 1.5, 1.2, 1.1, 1.0
    and 0.46: the last one lies below the others, and 0.078 would give 1. In one dimension the
    variances of single draws differ widely, with a median of 0.9.
    """
    prior_std = _PRIOR_STD[n_features] if prior_std is None else prior_std
    # A Generator draws float32 directly, and several times faster.
    rng = random_generator(random_state)
    sizes = (n_features, *hidden_units, 1)
    return BNNFunction(
        tuple(
            (_normal(rng, prior_std, (n_in, n_out)), _normal(rng, prior_std, n_out))
            for n_in, n_out in zip(sizes, sizes[1:])
        )
    )


def _normal(rng, std: float, shape) -> np.ndarray:
    return np.float32(std) * rng.standard_normal(shape, dtype=np.float32)
