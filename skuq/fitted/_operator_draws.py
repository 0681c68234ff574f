"""Draws of operator networks as functions of arrays and tensors, for `Posterior`."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq.fitted._conditioned import ConditionedDraws, draw_linearised
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._operator_head import OperatorHead
from skuq.networks._plan import ARRAYS, Run, tensors
from skuq.tables._functions import pair_rows
from skuq.tables._scaling import hard_clip
from skuq.training._drawing import DrawingNetwork
from skuq.training._draws import read_network


@functools.lru_cache(maxsize=32)
def _runnable(network: EpistemicNetwork, n_members: int) -> DrawingNetwork:
    """Make the network before a program is traced: there no variables can be made."""
    return DrawingNetwork(network, n_members)


@dataclass(frozen=True)
class OperatorDraws:
    """The function of a `Posterior`; equal for fits of equal networks.

    Parameters
    ----------
    network : EpistemicNetwork
    head : OperatorHead
    output_shape : tuple of int
        Shape of one function's values as the user has them.
    n_members : int
        Members of an ensemble, which are its draws, or networks of conditioned draws; 0 for one
        network with indices.
    is_conditioned : bool
        Whether draws are those of `linearised` networks.
    """

    network: EpistemicNetwork
    head: OperatorHead
    output_shape: tuple[int, ...]
    n_members: int = 0
    is_conditioned: bool = False

    def key(self, arguments: Sequence[np.ndarray]) -> Hashable:
        """Return what is equal where the same program computes the draws."""
        function = replace(self, network=self.network.without_names())
        return function, tuple(part.shape for part in arguments)

    @classmethod
    def of(
        cls, fitted: Any, index: np.ndarray, points: np.ndarray, output_shape: tuple[int, ...]
    ) -> tuple[OperatorDraws, tuple[np.ndarray, ...]]:
        """Take a fitted operator apart: what stays the same from fit to fit, and the rest.

        Without a given base. Draws are those of `index` (of an ensemble, all members) at query
        `points` (q, d_y) in the user's units. Returns the function and its arguments.
        """
        members, inputs, targets = fitted.draws.members, fitted.inputs, fitted.targets
        network = read_network(members[0].network)
        n_members = 0 if network.n_index else len(members)
        is_conditioned = isinstance(fitted.draws, ConditionedDraws)
        function = cls(network, targets.head, output_shape, n_members, is_conditioned)
        weights = np.stack([member.weights for member in members]).astype("float64")
        states = [np.stack(values) for values in zip(*(member.state for member in members))]
        states = [v.astype("float64") if v.dtype.kind == "f" else v for v in states]
        if n_members and not is_conditioned:
            index = np.zeros((1, 1))  # not used
        elif not n_members:  # without a member axis
            weights, states = weights[0], [v[0] for v in states]
        x, queries = inputs.scaling, inputs.query_scaling.transform(points)
        factor = np.ones((1, 1)) if fitted.widths is None else fitted.widths.factor
        fixed = (x.mean_, x.scale_, queries, targets.mean_, targets.scale_, factor, index)
        arguments = *fixed, *_runnable(network, n_members).split(weights), *states
        if is_conditioned:
            directions = fitted.draws.directions.astype("float64")
            arguments = *arguments, *_runnable(network, n_members).split(directions)
        return function, arguments

    def __call__(self, xp: Any, arguments: Any, X: Any) -> Any:
        """Compute draws (S, n, *output_shape) in units of Y, from X (n, d_u)."""
        x_mean, x_scale, queries, mean, scale, factor, index, *variables = arguments
        space = ARRAYS if xp is np else tensors()
        network = _runnable(self.network, self.n_members)
        n, q = X.shape[0], queries.shape[0]
        # (n * q, d_u + d_y): every input with every query point, both standardised.
        rows = pair_rows(xp, hard_clip(xp, (X - x_mean) / x_scale), queries)
        k = len(network.shapes)
        weights, rest = variables[:k], variables[k:]  # the rest are directions, or the state
        if self.is_conditioned:
            # Variables of all networks have a leading axis; take those of one after the other.
            networks = [
                (self.network.base, [w[i] for w in weights], [d[i] for d in rest])
                for i in range(self.n_members)
            ]
            raw = draw_linearised(space, networks, rows, index, q)
        else:
            run = Run(space, index=index)
            raw, _, _ = network.forward(weights, rest, rows, run)
        values, _ = self.head.values(space, raw)
        # From (S, n * q, m) of one network, or (K, 1, n * q, m) of members, which are the draws.
        values = xp.reshape(values, (-1, n, q, self.head.n_outputs))
        # Stretch the draws about their mean, and return to units of Y.
        centre = xp.mean(values, axis=0)
        values = (centre + factor * (values - centre)) * scale + mean
        return xp.reshape(values, (-1, n, *self.output_shape))
