"""Draws of networks whose random prior is conditioned on data in closed form.

Notation: K networks of P weights each; N rows, each a pair of an input and a query point; m
outputs. Every draw has an index z of n_index numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._registry import saved_as
from skuq.catalog import Member
from skuq.networks._plan import ARRAYS, Namespace
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._draws import variables_of

_CHUNK_ENTRIES = 2**20  # numbers held at a time: 8 MB


@saved_as("fitted.FittedOperator.ConditionedDraws")
@dataclass(frozen=True, eq=False)
class ConditionedDraws:
    """Draws of linearised networks, each along random directions in weight space.

    The mean is the average of the networks, each corrected along its first direction. A draw adds
    ``sum_i z_i f_i(x)``, where f_i is the derivative of a network along one of its other
    directions.

    Attributes
    ----------
    members : tuple of Member
        Networks without EpiNet and prior.
    index : ndarray of shape (n_draws, n_index)
        The indices that predictions average over: numbers for the directions of the first network,
        then of the second, and so on.
    directions : ndarray of shape (K, 1 + n_index / K, P)
    """

    members: tuple[Member, ...]
    index: np.ndarray
    directions: np.ndarray

    def quasi_random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw indices (n, n_index) that are spread more evenly than chance does it."""
        return quasi_random_normals(n, self.index.shape[1], rng)

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent indices (n, n_index)."""
        return rng.standard_normal((n, self.index.shape[1]))

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, m) of standardised rows."""
        networks, parts = [], []
        for member, directions in zip(self.members, self.directions):
            network, variables = variables_of(member)
            split = network.split(directions.astype("float64"))
            networks.append((network.network.base, variables, split))
        widest = 64 * self.directions.shape[1] + len(index)
        step = max(16, _CHUNK_ENTRIES // widest)
        for start in range(0, len(rows), step):
            parts.append(draw_linearised(ARRAYS, networks, rows[start : start + step], index))
        return np.concatenate(parts, axis=1)


def draw_linearised(
    space: Namespace, networks: Sequence[Any], rows: Any, index: Any, n_queries: int = 1
) -> Any:
    """Compute draws (S, N, m) of networks, each (base, variables, directions), at rows (N, d).

    Every `n_queries` rows that follow each other are pairs of one input and the query points.
    """
    xp, mean, functions = space.xp, 0.0, []
    for base, variables, directions in networks:
        raw, tangents = base.tangents(space, variables, directions, rows, n_queries)
        mean = mean + (raw + tangents[0]) / len(networks)
        functions.append(tangents[1:])
    joined = xp.concatenate(functions, axis=0)  # (n_index, N, m)
    draws = xp.matmul(index, xp.reshape(joined, (joined.shape[0], -1)))
    return mean + xp.reshape(draws, (-1, *joined.shape[1:]))
