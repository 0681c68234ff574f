"""What a training program differentiates: a network as a pure function of its weights.

``network.forward(variables, state, x, run) -> (raw, state, penalty)``, where everything
has the program's member axis or none; `chunk` is how many rows one pass should have. Planned
networks run all members at once, others through Keras one member after the other.
"""

from __future__ import annotations

import math

from skuq.backend import keras, ops
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import Plan, Run
from skuq.training._drawing import DrawingNetwork

__all__ = ["make_network", "numbers_per_row"]


def numbers_per_row(model: keras.Model) -> list[int]:
    """How many numbers each layer gives for one row: what decides the memory of a pass.

    Lengths that the model leaves open count as one.
    """
    shapes = [
        tensor.shape[1:]
        for layer in model.layers
        for node in layer._inbound_nodes
        for tensor in node.output_tensors
    ]
    return [math.prod(n or 1 for n in shape) for shape in shapes] or [1]


_ROWS = 8192  # of one pass without gradients, and ..
_ENTRIES = 2**23  # .. numbers that one layer may give in it: 32 MB


def make_network(network: Plan | EpistemicNetwork | str, model, n_members: int):
    """A network with a plan, of draws, or any; `n_members` is 0 for a program of one network."""
    if isinstance(network, Plan):
        return PlannedNetwork(network)
    if isinstance(network, EpistemicNetwork):
        return DrawingNetwork(model, n_members)
    return KerasNetwork(model, n_members)


class PlannedNetwork:
    """A network that a plan describes, with or without a member axis."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.chunk = _ROWS
        self.shapes = [weight.shape for weight in plan.weights]

    def forward(self, variables, state, x, run: Run):
        raw, state = self.plan(variables, state, x, run)
        return raw, state, self._penalty(variables)

    def _penalty(self, variables):
        """Sum of the layers' own weight penalties, of shape () or (n_members,)."""
        total = 0.0
        for weight, value in zip(self.plan.weights, variables):
            axes = tuple(range(-len(weight.shape), 0))
            if weight.l1:
                total = total + weight.l1 * ops.sum(ops.abs(value), axis=axes)
            if weight.l2:
                total = total + weight.l2 * ops.sum(ops.square(value), axis=axes)
        return total


class KerasNetwork:
    """Any other network: Keras' own layers, one member at a time.

    Its random layers draw from Keras' generators, whose seeds are part of the state.
    """

    def __init__(self, model: keras.Model, n_members: int):
        self.model = model
        self.n_members = n_members
        self.chunk = min(_ROWS, max(1, _ENTRIES // max(numbers_per_row(model))))
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]

    def forward(self, variables, state, x, run: Run):
        if not self.n_members:
            return self._forward(variables, state, x, run.training)
        shared_x = len(x.shape) == len(self.model.input_shape)
        each = [
            self._forward(
                [value[k] for value in variables],
                [value[k] for value in state],
                x if shared_x else x[k],
                run.training,
            )
            for k in range(self.n_members)
        ]
        raws, states, penalties = zip(*each)
        stacked = [ops.stack(values) for values in zip(*states)]
        return ops.stack(raws), stacked, ops.stack(penalties)

    def _forward(self, variables, state, x, training):
        raw, state, penalties = self.model.stateless_call(
            list(variables), list(state), x, training=training, return_losses=True
        )
        return raw, list(state), sum(penalties, ops.convert_to_tensor(0.0))
