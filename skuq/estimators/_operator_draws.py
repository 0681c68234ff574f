"""Draws of operator networks as functions of arrays and tensors, for `Posterior`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._operator_head import OperatorHead
from skuq.networks._plan import ARRAYS, Run, tensors
from skuq.tables._scaling import FARTHEST
from skuq.training._drawing import DrawingNetwork
from skuq.training._draws import read_network

__all__ = ["OperatorDraws"]


@functools.lru_cache(maxsize=32)
def _runnable(network: EpistemicNetwork, n_members: int) -> DrawingNetwork:
    """Made before a program is traced: a Keras model has variables, which cannot be made there."""
    return DrawingNetwork(network, n_members)


@dataclass(frozen=True)
class OperatorDraws:
    """The function of a `Posterior`; equal for fits of equal networks.

    Parameters
    ----------
    network : EpistemicNetwork
    head : OperatorHead
    output_shape : tuple of int
        Of one function's values as the user has them.
    n_members : int
        Of an ensemble, whose members are its draws; 0 for one network with indices.
    """

    network: EpistemicNetwork
    head: OperatorHead
    output_shape: tuple
    n_members: int = 0

    def key(self, arguments) -> tuple:
        """Equal where the same program computes the draws."""
        function = replace(self, network=self.network.without_names())
        return function, tuple(part.shape for part in arguments)

    @classmethod
    def arguments(cls, members, index, scaling, queries) -> tuple:
        """What the function takes, from trained members (one, or an ensemble's)."""
        n_members = 0 if index is not None else len(members)
        x, network = scaling.inputs_.x_, _runnable(read_network(members[0].network), n_members)
        weights: Any = [member.weights.astype("float64") for member in members]
        state: Any = [
            [v.astype("float64") if v.dtype.kind == "f" else v for v in member.state]
            for member in members
        ]
        if index is None:
            weights, state = np.stack(weights), [np.stack(values) for values in zip(*state)]
        else:
            (weights,), (state,) = weights, state
        fixed = (x.mean_, x.scale_, scaling.queries_.inputs(queries), scaling.mean_, scaling.scale_)
        index = np.zeros((1, 1)) if index is None else index
        return (*fixed, index, *network.split(weights), *state)

    def __call__(self, xp, arguments, X):
        """Draws (S, n, *output_shape) in units of Y, from X (n, d_u)."""
        x_mean, x_scale, queries, mean, scale, index, *variables = arguments
        space = ARRAYS if xp is np else tensors()
        network = _runnable(self.network, self.n_members)
        n, q = X.shape[0], queries.shape[0]
        u = xp.clip((X - x_mean) / x_scale, -FARTHEST, FARTHEST)
        rows = xp.concatenate([xp.repeat(u, q, axis=0), xp.tile(queries, (n, 1))], axis=-1)
        k = len(network.shapes)
        raw, _, _ = network.forward(variables[:k], variables[k:], rows, Run(space, index=index))
        values, _ = self.head.values(space, raw)
        values = xp.reshape(values, (-1, n, q, self.head.n_outputs)) * scale + mean
        return xp.reshape(values, (-1, n, *self.output_shape))
