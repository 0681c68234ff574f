"""Networks that a training program differentiates, as pure functions of their weights.

``network.forward(variables, state, x, run) -> (raw, state, penalty)``, where everything has the
member axis of a stack, or none in a program of one network. `chunk` is the number of rows for
one forward pass without gradients. Planned networks run all members at once; networks without a
plan run through Keras, one member after the other.
"""

from __future__ import annotations

from typing import Any, Protocol

from skuq import backend
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import Plan, Run
from skuq.training._drawing import DrawingNetwork
from skuq.training._keras_network import MAX_PASS_ROWS, KerasNetwork


class Network(Protocol):
    """A pure function of weights, which also knows their shapes."""

    chunk: int
    shapes: list[tuple[int, ...]]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute ``(raw, new state, penalty)``."""


def make_network(network: Plan | EpistemicNetwork | str, model: Any, n_members: int) -> Network:
    """Make the network of a program from its description, a `Template.identity`.

    `model` is the template itself, and `n_members` is 0 for a program of one network.
    """
    if isinstance(network, Plan):
        return PlannedNetwork(network)
    if isinstance(network, EpistemicNetwork):
        return DrawingNetwork(model, n_members)
    return KerasNetwork(model, n_members)


class PlannedNetwork:
    """A network described by a `Plan`, with or without a member axis."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.chunk = MAX_PASS_ROWS
        self.shapes = [weight.shape for weight in plan.weights]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute ``(raw, new state, penalty)``."""
        raw, state = self.plan(variables, state, x, run)
        return raw, state, self._penalty(variables)

    def _penalty(self, variables: Any) -> Any:
        """Sum the layers' own weight penalties; the result is () or (n_members,)."""
        ops = backend.ops
        total: Any = 0.0
        for weight, value in zip(self.plan.weights, variables):
            axes = tuple(range(-len(weight.shape), 0))
            if weight.l1:
                total = total + weight.l1 * ops.sum(ops.abs(value), axis=axes)
            if weight.l2:
                total = total + weight.l2 * ops.sum(ops.square(value), axis=axes)
        return total
