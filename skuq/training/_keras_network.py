"""Run a Keras model through its own layers, as a pure function of its weights."""

from __future__ import annotations

import math
from typing import Any

from skuq import backend
from skuq.networks._plan import Run

MAX_PASS_ROWS = 8192  # most rows of one forward pass without gradients ..
_MAX_PASS_ENTRIES = 2**23  # .. and most numbers that one layer may return in it: 32 MB


def numbers_per_row(model: Any) -> list[int]:
    """Count the numbers that each layer returns for one row, which determine a pass' memory.

    Axes of unknown length count as one.
    """
    shapes = [
        tensor.shape[1:]
        for layer in model.layers
        for node in layer._inbound_nodes
        for tensor in node.output_tensors
    ]
    return [math.prod(n or 1 for n in shape) for shape in shapes] or [1]


class KerasNetwork:
    """A Keras model as a function of its weights; the members of a stack run one by one.

    The model's own variables are never read. Its random layers draw from Keras' generators, whose
    seeds are part of the state. `n_members` is 0 for one network, without a member axis.
    """

    def __init__(self, model: Any, n_members: int):
        self.model = model
        self.n_members = n_members
        self.chunk = min(MAX_PASS_ROWS, max(1, _MAX_PASS_ENTRIES // max(numbers_per_row(model))))
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, list[Any], Any]:
        """Compute ``(raw, new state, penalty)``, each with the member axis of a stack."""
        if not self.n_members:
            return self._forward(variables, state, x, run.training)
        shared_x = len(x.shape) == len(self.model.input_shape)  # x has no member axis
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
        ops = backend.ops
        # Each variable of the state becomes one of shape (n_members, *shape).
        stacked = [ops.stack(values) for values in zip(*states)]
        return ops.stack(raws), stacked, ops.stack(penalties)

    def _forward(
        self, variables: Any, state: Any, x: Any, training: bool
    ) -> tuple[Any, list[Any], Any]:
        raw, state, penalties = self.model.stateless_call(
            list(variables), list(state), x, training=training, return_losses=True
        )
        return raw, list(state), sum(penalties, backend.ops.convert_to_tensor(0.0))
